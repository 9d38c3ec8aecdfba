//! What plans cost, against counts by hand.

use super::*;
use transformer_lite::unstable::backend::Caps;
use transformer_lite::unstable::graph::op::attention::Attention;
use transformer_lite::unstable::graph::op::conv::Conv;
use transformer_lite::unstable::graph::op::matmul::MatMul;
use transformer_lite::unstable::graph::op::window::Window;
use transformer_lite::unstable::llm::ModelFolder;
use transformer_lite::unstable::llm::load::{LoadOptions, PlannedDecoder};
use transformer_lite::unstable::plan::NodeCost;
use transformer_lite::unstable::shape::Symbol;

/// The costs of a graph on a device that does not exist, with symbol `n` of this value.
fn costs(graph: &Graph, caps: &Caps, n: i64) -> Vec<NodeCost> {
    let plan = Plan::compile(graph, caps, &options(&[("n", 100)])).unwrap();
    plan.costs(Bindings::new().set(&Symbol::new("n"), n)).unwrap()
}

/// Operator, FLOPs, bytes read and bytes written of each node.
fn told(costs: &[NodeCost]) -> Vec<(&str, u64, u64, u64)> {
    let one = |c: &'_ NodeCost| (c.flops, c.read(), c.written());
    costs
        .iter()
        .map(|c| {
            let (flops, read, written) = one(c);
            (c.op.as_str(), flops, read, written)
        })
        .collect()
}

impl Build {
    fn weight(&mut self, sizes: &[usize]) -> ValueId {
        self.count += 1;
        let name = format!("weight{}", self.count);
        Edit::new(&mut self.graph).add_const(&name, Arc::new(random(sizes, 7)))
    }
}

#[test]
fn a_product_and_what_follows_it() {
    let mut b = Build::default();
    let x = b.input("x", DType::F32, "n 64");
    let w = b.weight(&[64, 32]);
    let y = b.node(MatMul { trans_b: false }, &[x, w]);
    let z = b.node(unary(Unary::Neg), &[y]);
    let graph = b.finish(&[z]);
    for caps in [Caps::generic_gpu(), fake_caps()] {
        let found = costs(&graph, &caps, 10);
        let product = ("MatMul", 2 * 10 * 64 * 32, 4 * (10 * 64 + 64 * 32), 4 * 10 * 32);
        assert_eq!(told(&found), [product, ("Neg", 10 * 32, 4 * 320, 4 * 320)]);
    }
}

#[test]
fn an_open_size_is_named() {
    let mut b = Build::default();
    let x = b.input("x", DType::F32, "n 64");
    let y = b.node(unary(Unary::Neg), &[x]);
    let graph = b.finish(&[y]);
    let plan = Plan::compile(&graph, &Caps::generic_gpu(), &options(&[("n", 100)])).unwrap();
    let e = plan.costs(&Bindings::new()).unwrap_err();
    tlite_testing::assert_carries(e, &["n"]);
}

#[test]
fn attention_sees_its_window() {
    for (window, keys) in [(None, 50), (Some(8), 8 + 2), (Some(400), 50)] {
        let mut b = Build::default();
        let q = b.input("q", DType::F32, "1 3 4 16");
        let k = b.input("k", DType::F32, "1 n 2 16");
        let v = b.input("v", DType::F32, "1 n 2 16");
        let op = Attention {
            window,
            ..Attention::scaled(0.25)
        };
        let y = b.node(op, &[q, k, v]);
        let graph = b.finish(&[y]);
        let found = costs(&graph, &Caps::generic_gpu(), 50);
        let [all] = found.as_slice() else {
            panic!("{found:?}")
        };
        // A product for each score and one for each part of the result, of 16 elements; keys and
        // values have half of the heads.
        assert_eq!(all.flops, 2 * 2 * 3 * 4 * 16 * keys, "{window:?}");
        let queries = 4 * 3 * 4 * 16;
        assert_eq!(
            (all.read(), all.written()),
            (queries + 2 * 4 * keys * 2 * 16, queries)
        );
    }
}

#[test]
fn causal_attention_computes_scores_it_shows() {
    // 10 queries after 40 keys: the first sees 41, the last 50.
    for (window, pairs) in [(None, 10 * 50 - 45), (Some(8), 10 * 8)] {
        let mut b = Build::default();
        let q = b.input("q", DType::F32, "1 10 4 16");
        let k = b.input("k", DType::F32, "1 n 2 16");
        let v = b.input("v", DType::F32, "1 n 2 16");
        let op = Attention {
            causal: true,
            window,
            ..Attention::scaled(0.25)
        };
        let y = b.node(op, &[q, k, v]);
        let graph = b.finish(&[y]);
        let found = costs(&graph, &Caps::generic_gpu(), 50);
        assert_eq!(found[0].flops, 2 * 2 * pairs * 4 * 16, "{window:?}");
    }
}

#[test]
fn a_convolution_in_groups() {
    let mut b = Build::default();
    let x = b.input("x", DType::F32, "1 8 n 10");
    let w = b.weight(&[16, 4, 3, 3]);
    let conv = Conv {
        window: Window::new(&[]),
        group: 2,
    };
    let y = b.node(conv, &[x, w]);
    let graph = b.finish(&[y]);
    let found = costs(&graph, &Caps::generic_gpu(), 12);
    let results: u64 = 16 * 10 * 8;
    assert_eq!(found[0].flops, 2 * results * 4 * 9);
    assert_eq!(found[0].written(), 4 * results);
    // Weights are padded to whole tiles on some devices.
    let least = 4 * (8 * 12 * 10 + 16 * 4 * 9);
    assert!(
        (least..2 * least).contains(&found[0].read()),
        "{}",
        found[0].read()
    );
}

#[test]
fn tables_are_read_by_rows() {
    let mut b = Build::default();
    let table = b.weight(&[1000, 16]);
    let at = b.input("at", DType::I64, "n");
    let y = b.node(Gather { axis: 0 }, &[table, at]);
    let graph = b.finish(&[y]);
    let found = costs(&graph, &Caps::generic_gpu(), 3);
    assert_eq!(told(&found), [("Gather", 0, 4 * (3 * 16 + 4), 4 * 3 * 16)]);
}

/// Sums of FLOPs, bytes read and bytes written of the nodes whose operator begins so.
fn sums(costs: &[NodeCost], op: &str) -> (u64, u64, u64) {
    let of = costs.iter().filter(|c| c.op.starts_with(op));
    of.fold((0, 0, 0), |(f, r, w), c| {
        (f + c.flops, r + c.read(), w + c.written())
    })
}

#[test]
fn a_decoder_appends_rows_and_reads_all() {
    let (_dir, model) = tlite_testing::tiny_model("llama", Default::default());
    let folder = ModelFolder::open(&model).unwrap();
    let options = LoadOptions {
        context: Some(64),
        greedy: false,
        ..LoadOptions::default()
    };
    let planned = PlannedDecoder::new(&folder, &options, &Caps::generic_gpu()).unwrap();
    let decode = |past| {
        let mut runs = planned.costs(1, past).unwrap();
        assert_eq!(runs.len(), 1);
        runs.pop().unwrap()
    };
    let (near, far) = (decode(10), decode(30));
    // What is new is written whatever lies before; what is read grows by 20 rows of keys and values
    // for each layer.
    assert_eq!(sums(&near, "RotaryAppend"), sums(&far, "RotaryAppend"));
    // It writes the turned queries too, which are as large as what attention writes.
    let appended = sums(&near, "RotaryAppend").2 - sums(&near, "Attention").2;
    assert!(appended > 0);
    let read = |costs: &[NodeCost]| sums(costs, "Attention").1;
    // The mask grows too, by halves or floats for each key.
    let more = read(&far) - read(&near);
    assert!(
        (20 * appended..=20 * appended + 20 * 4 * 8).contains(&more),
        "{more} for {appended}"
    );
    // Prompts in runs of a chunk.
    let runs = planned.costs(60, 0).unwrap();
    assert_eq!(runs.len(), 1);
    assert!(planned.costs(65, 0).is_err() && planned.costs(1, 64).is_err());
}

#[test]
fn smollm2_against_its_sizes() {
    let Some(dir) = std::env::var_os("TLITE_TEST_MODEL_DIR") else {
        assert!(
            tlite_testing::required().is_empty(),
            "TLITE_TEST_MODEL_DIR is not set"
        );
        tlite_testing::not_tested("TLITE_TEST_MODEL_DIR names no folder with a model");
        return;
    };
    let folder = ModelFolder::open(&std::path::Path::new(&dir).join("e0m4")).unwrap();
    let options = LoadOptions {
        greedy: false,
        ..LoadOptions::default()
    };
    let planned = PlannedDecoder::new(&folder, &options, &Caps::generic_gpu()).unwrap();
    let (layers, width, kv, inner, vocabulary): (u64, u64, u64, u64, u64) = (30, 576, 192, 1536, 49152);
    let body = layers * width * (2 * width + 2 * kv + 3 * inner);
    let head = width * vocabulary;
    for (past, keys) in [(128, 129), (1024, 1025)] {
        let costs = planned.costs(1, past).unwrap().remove(0);
        let flops: u64 = costs.iter().map(|c| c.flops).sum();
        let read: u64 = costs.iter().map(NodeCost::read).sum();
        let attention = layers * 4 * width * keys;
        assert_eq!(
            costs
                .iter()
                .filter(|c| c.op == "Attention")
                .map(|c| c.flops)
                .sum::<u64>(),
            attention
        );
        let products = 2 * (body + head) + attention;
        // The rest is a few operations for each activation.
        assert!(
            (products..products + products / 100).contains(&flops),
            "{flops} at {past}"
        );
        // 4 bits a weight, 8 in the head, and 4 bytes for each 32; keys and values in halves.
        let weights = body / 2 + head + (body + head) / 32 * 4;
        let cache = layers * 2 * keys * kv * 2;
        let bytes = weights + cache;
        assert!(
            (bytes..bytes + bytes / 20).contains(&read),
            "{read} at {past}, {bytes} by hand"
        );
    }
    // A prompt computes the head once for each run of a chunk.
    let runs = planned.costs(256, 0).unwrap();
    assert_eq!(runs.len(), 2);
    for (run, costs) in (1u64..).zip(&runs) {
        let flops: u64 = costs.iter().map(|c| c.flops).sum();
        // A query sees the keys up to its own.
        let attention = layers * 4 * width * (128 * 128 * (run - 1) + 128 * 129 / 2);
        let products = 2 * (128 * body + head) + attention;
        assert!(
            (products..products + products / 50).contains(&flops),
            "{flops} in run {run}, {products} by hand"
        );
    }
}
