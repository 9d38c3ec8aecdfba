//! Plans: memory of random graphs, sizes that change from run to run, lengths that only data tells,
//! wrong input.

mod cases;
mod costs;
mod empty;
mod halves;
mod indices;
mod joint;
mod known;
mod lengths;
mod loops;
mod masks;
mod on_host;
mod values;

use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;
use tlite_testing::{assert_error, fake_caps, present as devices};
use transformer_lite::unstable::error::ErrorKind;
use transformer_lite::unstable::executor::Executor;
use transformer_lite::unstable::graph::interp::Interpreter;
use transformer_lite::unstable::graph::op::InferCx;
use transformer_lite::unstable::graph::op::attention::Attention;
use transformer_lite::unstable::graph::op::concat::Concat;
use transformer_lite::unstable::graph::op::expand::Expand;
use transformer_lite::unstable::graph::op::gather::Gather;
use transformer_lite::unstable::graph::op::matmul::MatMul;
use transformer_lite::unstable::graph::op::non_zero::NonZero;
use transformer_lite::unstable::graph::op::pointwise::{Binary, Expr, Pointwise, Unary};
use transformer_lite::unstable::graph::op::reshape::Reshape;
use transformer_lite::unstable::graph::op::shape_of::ShapeOf;
use transformer_lite::unstable::graph::op::slice::Slice;
use transformer_lite::unstable::graph::op::softmax::Softmax;
use transformer_lite::unstable::graph::op::top_k::TopK;
use transformer_lite::unstable::graph::op::transpose::Transpose;
use transformer_lite::unstable::graph::pass::{FUSE, Pipeline};
use transformer_lite::unstable::graph::{Edit, Graph, Op, OpError, ValueId, derive};
use transformer_lite::unstable::plan::{
    HostReason, HostStep, LaunchState, Options, Plan, Segment, Shared, Tensor,
};
use transformer_lite::unstable::shape::{Bindings, Dim, Fact, Shape};
use transformer_lite::unstable::tensor::{DType, HostTensor};

/// A graph under construction.
#[derive(Default)]
struct Build {
    graph: Graph,
    count: usize,
}

fn unary(f: Unary) -> Pointwise {
    let expr = Expr::Unary(f, Box::new(Expr::Input(0)));
    Pointwise {
        name: format!("{f:?}"),
        expr,
    }
}

fn shape(text: &str) -> Shape {
    Shape(text.split_whitespace().map(|d| Dim::parse(d).unwrap()).collect())
}

impl Build {
    fn input(&mut self, name: &str, dtype: DType, sizes: &str) -> ValueId {
        let mut edit = Edit::new(&mut self.graph);
        let id = edit.add_value(name, Some(Fact::new(dtype, shape(sizes))));
        edit.add_input(id);
        id
    }

    fn ints(&mut self, values: &[i64]) -> ValueId {
        let t = HostTensor::from_i64(&[values.len()], values).unwrap();
        self.count += 1;
        Edit::new(&mut self.graph).add_const(&format!("list{}", self.count), Arc::new(t))
    }

    fn nodes(&mut self, op: impl Op + 'static, inputs: &[ValueId], results: usize) -> Vec<ValueId> {
        let mut edit = Edit::new(&mut self.graph);
        self.count += 1;
        let n = self.count;
        let out: Vec<_> = (0..results)
            .map(|i| edit.add_value(&format!("v{n}_{i}"), None))
            .collect();
        let inputs = inputs.iter().copied().map(Some).collect();
        edit.add_node(&format!("node{n}"), Vec::new(), Box::new(op), inputs, out.clone());
        out
    }

    fn node(&mut self, op: impl Op + 'static, inputs: &[ValueId]) -> ValueId {
        self.nodes(op, inputs, 1)[0]
    }

    /// The graph, as it is imported.
    fn underived(mut self, outputs: &[ValueId]) -> Graph {
        for v in outputs {
            Edit::new(&mut self.graph).add_output(*v);
        }
        self.graph
    }

    fn finish(self, outputs: &[ValueId]) -> Arc<Graph> {
        let mut graph = self.underived(outputs);
        derive::derive(&mut graph).unwrap();
        Arc::new(graph)
    }
}

fn options(bounds: &[(&str, i64)]) -> Options {
    let mut all = Bindings::new();
    for (name, v) in bounds {
        all.set(&transformer_lite::unstable::shape::Symbol::new(name), *v);
    }
    Options {
        bounds: all,
        ..Options::default()
    }
}

fn random(shape: &[usize], seed: u64) -> HostTensor {
    let mut state = seed;
    let count: usize = shape.iter().product();
    HostTensor::from_f32(shape, &tlite_testing::gguf::random(&mut state, count)).unwrap()
}

/// All outputs by name, from the interpreter.
fn reference(graph: &Arc<Graph>, given: &[(&str, HostTensor)]) -> HashMap<String, HostTensor> {
    let inputs = given
        .iter()
        .map(|(n, t)| (graph.input(n).unwrap(), t.clone()))
        .collect();
    let out = Interpreter::new(graph.clone()).unwrap().run(inputs).unwrap();
    out.into_iter()
        .map(|(v, t)| (graph.value(v).name.clone(), t))
        .collect()
}

fn check(executor: &mut Executor, graph: &Arc<Graph>, given: &[(&str, HostTensor)]) {
    for (name, tensor) in given {
        executor.write(0, name, tensor).unwrap();
    }
    let bindings = executor.bindings(0).unwrap();
    executor.run(0, &bindings).unwrap();
    for (name, wanted) in reference(graph, given) {
        let found = executor.read(0, &name).unwrap();
        assert_eq!(found.shape(), wanted.shape(), "{name} at {bindings:?}");
        if wanted.dtype().is_float() {
            let (a, b) = (found.to_f64().unwrap(), wanted.to_f64().unwrap());
            for (x, y) in a.iter().zip(b.iter()) {
                assert!(
                    (x - y).abs() <= 1e-4 * (1.0 + y.abs()),
                    "{name} at {bindings:?}: {x} for {y}"
                );
            }
        } else {
            assert_eq!(
                found.to_i64().unwrap(),
                wanted.to_i64().unwrap(),
                "{name} at {bindings:?}"
            );
        }
    }
}

/// The tensor whose memory `t` shares.
fn root<'a>(plan: &'a Plan, mut t: &'a Tensor) -> &'a Tensor {
    while let Some(Shared::View(of) | Shared::InPlace(of)) = &t.shared {
        t = plan.tensors.iter().find(|t| t.name == *of).unwrap();
    }
    t
}

/// An operator without kernels: `1 - x`.
#[derive(Clone, Debug, PartialEq)]
struct OnHost;

impl Op for OnHost {
    fn name(&self) -> &str {
        "OnHost"
    }

    fn infer(&self, cx: &InferCx<'_>) -> Result<Vec<Fact>, OpError> {
        Ok(vec![cx.fact(0)?.clone()])
    }

    fn eval(&self, inputs: &[Option<&HostTensor>]) -> Result<Vec<HostTensor>, OpError> {
        let x = inputs[0].unwrap();
        let y: Vec<f32> = x.to_f32()?.iter().map(|v| 1.0 - v).collect();
        Ok(vec![HostTensor::from_f32(x.shape(), &y)?])
    }
}

/// A random graph over `x [1, n, 8]`, `y [1, m, 8]` and `z [1, 16, 8]`, with symbols up to 24.
fn random_graph(recipe: &[(u8, usize, usize)]) -> Arc<Graph> {
    let mut b = Build::default();
    // Values with the name of their number of rows, and whether rows are the second axis.
    let mut values: Vec<(ValueId, String)> = vec![
        (b.input("x", DType::F32, "1 n 8"), "n".to_owned()),
        (b.input("y", DType::F32, "1 m 8"), "m".to_owned()),
        (b.input("z", DType::F32, "1 16 8"), "16".to_owned()),
    ];
    for (kind, i, j) in recipe {
        let (v, rows) = values[i % values.len()].clone();
        let (w, other) = values[j % values.len()].clone();
        let made = match kind % 9 {
            0 => (b.node(unary(Unary::Relu), &[v]), rows),
            1 if rows == other => (b.node(Pointwise::binary("Add", Binary::Add), &[v, w]), rows),
            2 if rows.len() + other.len() < 40 => {
                (b.node(Concat { axis: 1 }, &[v, w]), format!("{rows}+{other}"))
            }
            3 => {
                let lists = [b.ints(&[1]), b.ints(&[i64::MAX]), b.ints(&[1])];
                let back = b.node(Slice, &[v, lists[0], lists[1], lists[2]]);
                // Keeps at least one row: the first one again in front.
                (b.node(Concat { axis: 1 }, &[back, v]), format!("{rows}-1+{rows}"))
            }
            4 => {
                let turned = b.node(
                    Transpose {
                        perm: Some(vec![0, 2, 1]),
                    },
                    &[v],
                );
                let list = b.ints(&[1, -1, 8]);
                (
                    b.node(Reshape::Reshape { allow_zero: false }, &[turned, list]),
                    rows,
                )
            }
            5 => (
                b.node(
                    Softmax {
                        axis: -1,
                        flatten: false,
                    },
                    &[v],
                ),
                rows,
            ),
            6 => (b.node(OnHost, &[v]), rows),
            7 if rows == "16" => {
                let lists = [b.ints(&[8]), b.ints(&[16]), b.ints(&[1])];
                (b.node(Slice, &[v, lists[0], lists[1], lists[2]]), "8".to_owned())
            }
            _ => {
                let (starts, ends, axes) = (b.ints(&[0]), b.ints(&[4]), b.ints(&[2]));
                let half = b.node(Slice, &[v, starts, ends, axes]);
                (b.node(Concat { axis: 2 }, &[half, half]), rows)
            }
        };
        values.push(made);
    }
    let last = values.len() - 1;
    // One of them through another view of it, which may be an input.
    let list = b.ints(&[1, 8, -1]);
    let (_, i, _) = recipe[0];
    let view = b.node(
        Reshape::Reshape { allow_zero: false },
        &[values[i % values.len()].0, list],
    );
    let mut outputs = vec![values[last].0, values[last / 2].0, view];
    outputs.retain(|v| b.graph.producer(*v).is_some());
    outputs.dedup();
    b.finish(&outputs)
}

const SYMBOLS: [(&str, i64); 2] = [("n", 24), ("m", 24)];

fn recipe() -> impl Strategy<Value = Vec<(u8, usize, usize)>> {
    prop::collection::vec((0u8..9, 0usize..40, 0usize..40), 1..14)
}

proptest! {
    /// No two tensors that live at one time share a byte, unless one is the other's view or
    /// overwrites it; and no tensor outgrows its bytes within the bounds.
    #[test]
    fn live_tensors_never_overlap(recipe in recipe(), n in 1i64..25, m in 1i64..25) {
        let graph = random_graph(&recipe);
        let plan = Plan::compile(&graph, &fake_caps(), &options(&SYMBOLS)).unwrap();
        let here = Bindings::from([("n", n), ("m", m)]);
        for (i, a) in plan.tensors.iter().enumerate() {
            prop_assert!(a.offset + a.bytes <= plan.memory.arena);
            prop_assert!(a.size.eval(&here).unwrap() <= i64::try_from(a.bytes).unwrap(), "{} of {}", a.size, a.name);
            for b in &plan.tensors[i + 1..] {
                let meet = a.first <= b.last && b.first <= a.last;
                let touch = a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
                let kin = root(&plan, a).name == root(&plan, b).name;
                prop_assert!(!(meet && touch) || kin, "{a:?} and {b:?}");
            }
        }
        let memory = &plan.memory;
        prop_assert!(memory.lower_bound <= memory.arena);
        let gained = memory.gained_by_views + memory.gained_in_place + memory.gained_by_packing;
        prop_assert!(memory.without_reuse - gained <= memory.arena);
        let formula = Dim::parse(&memory.formula).unwrap();
        let most = formula.eval(&Bindings::from(SYMBOLS)).unwrap();
        prop_assert!(most >= i64::try_from(memory.arena).unwrap(), "{} for {}", formula, memory.arena);
        plan.bind(&here, &mut LaunchState::default()).unwrap();
    }
}

#[test]
fn random_graphs_run_as_on_the_host() {
    for device in devices() {
        let _turn = device.turn();
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        for case in 0..40 {
            use proptest::strategy::ValueTree;
            let graph = random_graph(&recipe().new_tree(&mut runner).unwrap().current());
            for bounds in [&SYMBOLS[..], &[]] {
                let plan = Plan::compile(&graph, &device.caps, &options(bounds)).unwrap();
                let mut executor = Executor::new(Box::new(device.share()), &graph, vec![plan]).unwrap();
                for (n, m) in [(3, 17), (24, 1), (1, 2), (24, 24)] {
                    let given = [
                        ("x", random(&[1, n, 8], case)),
                        ("y", random(&[1, m, 8], case + 100)),
                        ("z", random(&[1, 16, 8], case + 200)),
                    ];
                    check(&mut executor, &graph, &given);
                }
            }
        }
    }
}

/// `softmax(relu(x) + x)` and the rows of both operands joined.
fn mixed() -> Arc<Graph> {
    let mut b = Build::default();
    let (x, y) = (
        b.input("x", DType::F32, "1 n 8"),
        b.input("y", DType::F32, "1 m 8"),
    );
    let r = b.node(unary(Unary::Relu), &[x]);
    let s = b.node(Pointwise::binary("Add", Binary::Add), &[r, x]);
    let p = b.node(
        Softmax {
            axis: -1,
            flatten: false,
        },
        &[s],
    );
    let j = b.node(Concat { axis: 1 }, &[p, y]);
    b.finish(&[j])
}

/// Figure 1 of the paper: tensors flow through Reshape and Transpose, whose shapes are computed by
/// Shape, Gather, Mul, Unsqueeze and Concat.
#[test]
fn the_papers_demonstration_graph_leaves_no_shape_operator() {
    let mut b = Build::default();
    let x = b.input("x", DType::F32, "1 N 4096");
    let shape_of = b.node(ShapeOf { start: 0, end: None }, &[x]);
    let one = b.ints(&[1]);
    let n = b.node(Gather { axis: 0 }, &[shape_of, one]);
    let (lead, heads) = (b.ints(&[1]), b.ints(&[32, 128]));
    let target = b.node(Concat { axis: 0 }, &[lead, n, heads]);
    let split = b.node(Reshape::Reshape { allow_zero: false }, &[x, target]);
    let turned = b.node(
        Transpose {
            perm: Some(vec![0, 2, 1, 3]),
        },
        &[split],
    );
    let out = b.node(
        Softmax {
            axis: -1,
            flatten: false,
        },
        &[turned],
    );
    let graph = b.finish(&[out]);
    assert_eq!(graph.fact(split).unwrap().shape, shape("1 N 32 128"));
    assert_eq!(graph.fact(out).unwrap().shape, shape("1 32 N 128"));
    let classes = transformer_lite::unstable::graph::class::classes(&graph).unwrap();
    let of = |v: ValueId| classes[&graph.producer(v).unwrap().0];
    use transformer_lite::unstable::graph::class::Class;
    for v in [shape_of, n, target] {
        assert_eq!(of(v), Class::Shape, "{}", graph.value(v).name);
    }
    for v in [split, turned, out] {
        assert_eq!(of(v), Class::Tensor, "{}", graph.value(v).name);
    }
    let plan = Plan::compile(&graph, &fake_caps(), &options(&[("N", 512)])).unwrap();
    assert!(plan.host.is_empty());
    assert!(matches!(plan.segments.as_slice(), [Segment::Device(_)]));
}

#[test]
fn wrong_input_is_refused_by_name() {
    let graph = mixed();
    let Some(device) = devices().into_iter().next() else {
        return;
    };
    let _turn = device.turn();
    let plan = Plan::compile(&graph, &device.caps, &options(&[("n", 16), ("m", 16)])).unwrap();
    let mut executor = Executor::new(Box::new(device.share()), &graph, vec![plan]).unwrap();
    let refused = |r: transformer_lite::unstable::error::Result<()>, kind, values: &[&str]| {
        assert_error(&r.unwrap_err(), kind, values);
    };
    let mismatch = ErrorKind::ShapeMismatch;
    let written = executor.write(0, "z", &random(&[1], 1));
    refused(written, ErrorKind::Other, &["\"z\"", "x, y"]);
    let written = executor.write(0, "x", &random(&[3, 8], 1));
    refused(written, mismatch, &["\"x\"", "[1, n, 8]", "[3, 8]"]);
    let written = executor.write(0, "x", &HostTensor::from_i64(&[1, 1, 8], &[0; 8]).unwrap());
    refused(written, mismatch, &["\"x\"", "f32", "i64"]);
    executor.write(0, "x", &random(&[1, 4, 8], 1)).unwrap();
    executor.write(0, "y", &random(&[1, 2, 8], 1)).unwrap();
    let ran = executor.run(0, &Bindings::from([("n", 5), ("m", 2)]));
    refused(ran, mismatch, &["\"x\"", "n = 5", "[1, 4, 8]"]);
    let ran = executor.run(0, &Bindings::from([("n", 4)]));
    refused(ran, ErrorKind::MissingInput, &["m"]);
    let ran = executor.run(0, &Bindings::from([("n", 4), ("m", 17)]));
    refused(ran, ErrorKind::Other, &["m", "17", "16"]);
    executor.run(0, &Bindings::from([("n", 4), ("m", 2)])).unwrap();
    // Sizes that the model says are equal, and are not.
    let mut b = Build::default();
    let (x, y) = (b.input("x", DType::F32, "p 8"), b.input("y", DType::F32, "q 8"));
    let sum = b.node(Pointwise::binary("Add", Binary::Add), &[x, y]);
    let graph = b.finish(&[sum]);
    let plan = Plan::compile(&graph, &fake_caps(), &options(&[("p", 8), ("q", 8)])).unwrap();
    let mut bound = LaunchState::default();
    plan.bind(&Bindings::from([("p", 3), ("q", 3)]), &mut bound)
        .unwrap();
    let e = plan.bind(&Bindings::from([("p", 3), ("q", 4)]), &mut bound);
    refused(e, mismatch, &["node1", "p", "q = 4"]);
    plan.bind(&Bindings::from([("p", 5), ("q", 5)]), &mut bound)
        .unwrap();
}

/// Rows that a mask hides wholly: the least number in every place. All are alike then, and nothing
/// is no number.
#[test]
fn softmax_of_the_least_numbers() {
    for axis in [-1, 0] {
        let mut b = Build::default();
        let x = b.input("x", DType::F32, "3 n");
        let softmax = Softmax { axis, flatten: false };
        let y = b.node(softmax, &[x]);
        let graph = b.finish(&[y]);
        for device in devices() {
            let _turn = device.turn();
            let plan = Plan::compile(&graph, &device.caps, &options(&[("n", 70)])).unwrap();
            let mut executor = Executor::new(Box::new(device.share()), &graph, vec![plan]).unwrap();
            for n in [5, 70] {
                let mut data = vec![f32::MIN; 3 * n];
                data[2 * n..].iter_mut().for_each(|v| *v = 1.0);
                let x = HostTensor::from_f32(&[3, n], &data).unwrap();
                check(&mut executor, &graph, &[("x", x)]);
            }
        }
    }
}

/// Sizes of 0 in an open plan.
#[test]
fn nothing_runs_as_nothing() {
    let graph = mixed();
    for device in devices() {
        let _turn = device.turn();
        let plan = Plan::compile(&graph, &device.caps, &options(&[])).unwrap();
        let mut executor = Executor::new(Box::new(device.share()), &graph, vec![plan]).unwrap();
        for (n, m) in [(0, 3), (0, 0), (4, 0), (5, 2)] {
            let given = [("x", random(&[1, n, 8], 1)), ("y", random(&[1, m, 8], 2))];
            check(&mut executor, &graph, &given);
        }
    }
}

#[test]
fn parts_need_no_copies() {
    // Two halves of 64 channels, one changed, joined again: the slice is a view and the parts are
    // written in place.
    let mut b = Build::default();
    let x = b.input("x", DType::F32, "1 128 4 4");
    let y = b.node(unary(Unary::Neg), &[x]);
    let cut = |b: &mut Build, from, to| {
        let lists = [b.ints(&[from]), b.ints(&[to]), b.ints(&[1])];
        b.node(Slice, &[y, lists[0], lists[1], lists[2]])
    };
    let (front, back) = (cut(&mut b, 0, 64), cut(&mut b, 64, 128));
    let front = b.node(unary(Unary::Relu), &[front]);
    let back = b.node(unary(Unary::Sigmoid), &[back]);
    let out = b.node(Concat { axis: 1 }, &[front, back]);
    let graph = b.finish(&[out]);
    let plan = Plan::compile(&graph, &fake_caps(), &options(&[])).unwrap();
    assert_eq!(plan.steps.len(), 3, "a negation and two functions");
    let views = plan
        .tensors
        .iter()
        .filter(|t| matches!(t.shared, Some(Shared::View(_))));
    assert_eq!(views.count(), 4);
    for device in devices() {
        let _turn = device.turn();
        let plan = Plan::compile(&graph, &device.caps, &options(&[])).unwrap();
        let mut executor = Executor::new(Box::new(device.share()), &graph, vec![plan]).unwrap();
        check(&mut executor, &graph, &[("x", random(&[1, 128, 4, 4], 6))]);
    }
}

/// The host repeats what a sample computes: of the nodes with a kernel it is the one with the least
/// work, in runs of any size.
#[test]
fn samples_are_nodes_with_the_least_work() {
    let mut b = Build::default();
    let sizes = ["128 16", "sequence 16", "8 16", "1024 16"];
    let names = ["a", "b", "c", "d"];
    let ends: Vec<ValueId> = names
        .iter()
        .zip(sizes)
        .map(|(name, sizes)| {
            let x = b.input(name, DType::F32, sizes);
            b.node(unary(Unary::Relu), &[x])
        })
        .collect();
    let graph = b.finish(&ends);
    for (most, wanted) in [(32, "node3"), (4, "node2")] {
        let plan = Plan::compile(&graph, &fake_caps(), &options(&[("sequence", most)])).unwrap();
        let samples: Vec<&str> = plan.samples.iter().map(|s| s.node.name.as_str()).collect();
        assert_eq!((plan.kernels.len(), samples), (1, vec![wanted]));
    }
}
