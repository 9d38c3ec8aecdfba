use super::*;
use half::f16;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tlite_testing::onnx::read_back::{self, Model};
use tlite_testing::{assert_carries, assert_error, assert_usage};
use transformer_lite::unstable::error::ErrorKind;
use transformer_lite::unstable::graph::derive::derive;
use transformer_lite::unstable::graph::interp::Interpreter;
use transformer_lite::unstable::graph::onnx::import;
use transformer_lite::unstable::graph::onnx::write::{Attr, NodeSpec};
use transformer_lite::unstable::quant::{ByGroup, ColumnMethod, Packed};
use transformer_lite::unstable::tensor::{DType, HostTensor};

mod formats;
mod given;
mod resume;

const VOCAB: usize = 130;
const HIDDEN: usize = 40;
const INNER: usize = 96;

fn node<'a>(op: &'a str, inputs: &'a [&'a str], output: &'a [&'a str]) -> NodeSpec<'a> {
    NodeSpec {
        domain: "",
        op,
        name: output[0],
        inputs,
        outputs: output,
        attributes: &[],
    }
}

/// Smooth pseudo-random weights, near what trained ones look like.
fn noise(shape: &[usize], seed: u32) -> HostTensor {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as f32 / u32::MAX as f32 - 0.5
    };
    let data: Vec<f32> = (0..shape.iter().product())
        .map(|_| (0..4).map(|_| uniform()).sum::<f32>() * 0.3)
        .collect();
    HostTensor::from_f32(shape, &data).unwrap()
}

/// A model under construction: tokens to logits.
struct Tiny {
    dir: tempfile::TempDir,
    writer: ModelWriter,
}

impl Tiny {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("in");
        std::fs::create_dir(&folder).unwrap();
        let mut writer = ModelWriter::create(Stage::Convert, &folder, MODEL, "tiny").unwrap();
        writer.opset("", 18);
        writer.metadata("license", "none");
        writer
            .add_input("input_ids", DType::I64, &[1.into(), "sequence".into()])
            .unwrap();
        Self { dir, writer }
    }

    fn weight(&mut self, name: &str, tensor: &HostTensor) {
        self.writer.add_initializer(name, tensor).unwrap();
    }

    fn node(&mut self, n: NodeSpec<'_>) {
        self.writer.add_node(n).unwrap();
    }

    fn output(&mut self, name: &str, last: usize) {
        self.writer
            .add_output(name, DType::F32, &[1.into(), "sequence".into(), last.into()])
            .unwrap();
    }

    /// Embedding, two products with a nonlinearity between, and the tied head.
    fn body(&mut self) {
        self.body_of(HIDDEN, &noise(&[HIDDEN, INNER], 2));
    }

    fn body_of(&mut self, hidden: usize, up: &HostTensor) {
        self.weight("embed", &noise(&[VOCAB, hidden], 1));
        self.weight("up", up);
        self.weight("down", &noise(&[INNER, hidden], 3));
        self.weight("bias", &noise(&[hidden], 4));
        self.node(node("Gather", &["embed", "input_ids"], &["x"]));
        self.node(node("MatMul", &["x", "up"], &["u"]));
        self.node(node("Sigmoid", &["u"], &["s"]));
        self.node(node("MatMul", &["s", "down"], &["d"]));
        self.node(node("Add", &["d", "bias"], &["y"]));
        self.node(NodeSpec {
            attributes: &[("perm", Attr::Ints(vec![1, 0]))],
            ..node("Transpose", &["embed"], &["head"])
        });
        self.node(node("MatMul", &["y", "head"], &["logits"]));
        self.output("logits", VOCAB);
    }

    fn finish(self) -> tempfile::TempDir {
        self.writer.finish().unwrap();
        self.dir
    }
}

fn tied() -> tempfile::TempDir {
    tied_of(HIDDEN)
}

fn tied_of(hidden: usize) -> tempfile::TempDir {
    let mut tiny = Tiny::new();
    tiny.body_of(hidden, &noise(&[hidden, INNER], 2));
    tiny.finish()
}

fn run(dir: &tempfile::TempDir, options: &Options) -> Result<Summary> {
    quantize(
        &dir.path().join("in"),
        &dir.path().join("out"),
        options,
        &mut |_| (),
    )
}

fn quantized(dir: &tempfile::TempDir) -> Model {
    read_back::open(&dir.path().join("out").join(MODEL))
}

fn logits(folder: &Path) -> Vec<f32> {
    let mut graph = import(&folder.join(MODEL)).unwrap();
    derive(&mut graph).unwrap();
    let (input, output) = (graph.input("input_ids").unwrap(), graph.output("logits").unwrap());
    let ids = HostTensor::from_i64(&[1, 5], &[0, 7, 129, 64, 7]).unwrap();
    let result = Interpreter::new(Arc::new(graph))
        .unwrap()
        .run(HashMap::from([(input, ids)]))
        .unwrap();
    result[&output].to_f32().unwrap().into_owned()
}

/// Nothing but the input is there.
fn nothing_left(dir: &tempfile::TempDir) {
    let names: Vec<_> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(names, ["in"]);
}

#[test]
fn a_model_survives_and_tied_weights_are_packed_once() {
    let dir = tied();
    std::fs::write(dir.path().join("in/config.json"), "{}").unwrap();
    std::fs::create_dir(dir.path().join("in/folder")).unwrap();
    let mut last = 0;
    let mut total = 0;
    let summary = quantize(
        &dir.path().join("in"),
        &dir.path().join("out"),
        &Options::default(),
        &mut |p| {
            assert!(p.done >= last && !p.tensor.is_empty());
            (last, total) = (p.done, p.total);
        },
    )
    .unwrap();
    assert_eq!(last, total, "progress ends at its total");
    let lines: Vec<_> = summary
        .weights
        .iter()
        .map(|w| (w.name.as_str(), w.bits, w.group))
        .collect();
    assert_eq!(
        lines,
        [
            ("embed", Bits::Eight, 128),
            ("up", Bits::Four, 128),
            ("down", Bits::Four, 128)
        ]
    );
    assert_eq!(summary.left, []);
    let up = &summary.weights[1];
    assert_eq!(
        (up.shape.as_slice(), up.bytes_before),
        (&[HIDDEN, INNER][..], 4 * 40 * 96)
    );
    assert_eq!(up.bytes_after, 40 * 96 / 2 + 4 * 96);
    assert!(up.mae > 0.0 && up.mae < up.mae_int4.unwrap() && up.mse > 0.0);
    assert!(
        up.relative_error > 0.01 && up.relative_error < 0.12,
        "{}",
        up.relative_error
    );
    assert!(summary.weights[0].relative_error < 0.007);

    let model = quantized(&dir);
    let count = |op| model.count(op);
    assert_eq!(
        ["MatMul", "Gather", "Transpose", "MatMulE0M", "GatherE0M", "Add"].map(count),
        [0, 0, 0, 3, 1, 1]
    );
    assert_eq!(
        model.node_inputs("x"),
        ["input_ids", "embed.codes", "embed.scales"]
    );
    assert_eq!(model.node_inputs("logits"), ["y", "embed.codes", "embed.scales"]);
    assert_eq!(model.inputs, ["input_ids[1,sequence]"]);
    let (shape, codes) = model.matrix("up.codes");
    assert_eq!((shape, codes.len()), (vec![5, INNER], 5 * INNER * 4));
    let out = dir.path().join("out");
    assert_eq!(std::fs::read(out.join("config.json")).unwrap(), b"{}");
    assert!(!out.join("folder").exists());
    let bytes = |folder: &str| -> u64 {
        let size = |name| {
            std::fs::metadata(dir.path().join(folder).join(name))
                .unwrap()
                .len()
        };
        size(MODEL) + size("model.onnx.data")
    };
    assert_eq!(
        (summary.bytes_before, summary.bytes_after),
        (bytes("in"), bytes("out"))
    );

    let norm = |v: &mut dyn Iterator<Item = f32>| v.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    let given = logits(&dir.path().join("in"));
    let relative = |folder: &Path| {
        let found = logits(folder);
        norm(&mut given.iter().zip(&found).map(|(a, b)| a - b)) / norm(&mut given.iter().copied())
    };
    let eight = dir.path().join("eight");
    let options = Options {
        bits: Bits::Eight,
        ..Options::default()
    };
    quantize(&dir.path().join("in"), &eight, &options, &mut |_| ()).unwrap();
    let (four, eight) = (relative(&out), relative(&eight));
    assert!(four < 0.12 && eight < 0.008 && eight > 1e-6, "{four} {eight}");
}

#[test]
fn packed_columns_are_those_of_the_reference() {
    let dir = tied();
    run(
        &dir,
        &Options {
            group_size: 16,
            ..Options::default()
        },
    )
    .unwrap();
    let model = quantized(&dir);
    let check = |name: &str, bits, weight: &HostTensor, transposed: bool| {
        let data = weight.to_f32().unwrap();
        let [rows, columns] = weight.shape()[..] else {
            panic!()
        };
        let (k, n) = if transposed {
            (columns, rows)
        } else {
            (rows, columns)
        };
        let at = |i: usize, j: usize| {
            if transposed {
                data[j * columns + i]
            } else {
                data[i * columns + j]
            }
        };
        // 40 is no multiple of 16 and less than 32: the last group is short.
        let p = Packed::quantize(bits, 16, k, n, &ByGroup::from(Method::Mse), &at).unwrap();
        let (shape, codes) = model.matrix(&format!("{name}.codes"));
        assert_eq!(shape, [bits.rows(k), n]);
        assert_eq!(codes, bytemuck::cast_slice::<u32, u8>(&p.codes), "{name}");
        let (shape, scales) = model.matrix(&format!("{name}.scales"));
        assert_eq!(shape, [k.div_ceil(16), n, 2]);
        assert_eq!(scales, bytemuck::cast_slice::<u32, u8>(&p.scales), "{name}");
    };
    check("embed", Bits::Eight, &noise(&[VOCAB, HIDDEN], 1), true);
    check("up", Bits::Four, &noise(&[HIDDEN, INNER], 2), false);
    check("down", Bits::Four, &noise(&[INNER, HIDDEN], 3), false);
}

#[test]
fn what_is_not_replaced_is_copied_byte_by_byte() {
    let dir = tied();
    // A field that this engine does not know, in the model and in the graph.
    let path = dir.path().join("in").join(MODEL);
    let mut bytes = std::fs::read(&path).unwrap();
    wire::put(&mut bytes, 500, b"of the model");
    let mut graph = Vec::new();
    wire::put(&mut graph, 10, b"doc of the graph");
    wire::put(&mut bytes, 7, &graph);
    std::fs::write(&path, bytes).unwrap();
    run(&dir, &Options::default()).unwrap();
    let bytes = std::fs::read(dir.path().join("out").join(MODEL)).unwrap();
    for kept in [&b"of the model"[..], b"doc of the graph", b"license"] {
        assert!(bytes.windows(kept.len()).any(|w| w == kept), "{kept:?}");
    }
    let model = quantized(&dir);
    let (offset, shape, bias) = model.tensor("bias");
    assert_eq!((offset, shape), (None, vec![HIDDEN]));
    assert_eq!(bias, noise(&[HIDDEN], 4).bytes().unwrap());
}

#[test]
fn refusals_are_listed() {
    let mut tiny = Tiny::new();
    tiny.body();
    let mut product = |name: &str, shape: &[usize], from: &str| {
        tiny.weight(name, &noise(shape, 5));
        let out = format!("{name}_out");
        tiny.node(node("MatMul", &[from, name], &[&out]));
        out
    };
    let odd = product("odd", &[HIDDEN, 7], "y");
    product("short", &[7, 8], &odd);
    let shared = product("shared", &[HIDDEN, 8], "y");
    product("both", &[HIDDEN, HIDDEN], "y");
    product("out", &[HIDDEN, 8], "y");
    tiny.node(node("Add", &[&shared, "shared"], &["sum"]));
    tiny.node(node("Transpose", &["both"], &["both_t"]));
    tiny.node(node("MatMul", &["y", "both_t"], &["both_t_out"]));
    tiny.output("out", 8);
    tiny.weight("angles", &noise(&[64, 8], 6));
    tiny.node(node("Shape", &["y"], &["shape"]));
    tiny.node(node("Gather", &["angles", "shape"], &["rotary"]));
    let halves = HostTensor::from_f16(&[VOCAB, 8], &vec![f16::ONE; VOCAB * 8]).unwrap();
    tiny.weight("halves", &halves);
    tiny.node(node("Gather", &["halves", "input_ids"], &["h"]));
    let dir = tiny.finish();
    let summary = run(&dir, &Options::default()).unwrap();
    let names: Vec<&str> = summary.weights.iter().map(|w| w.name.as_str()).collect();
    assert_eq!(names, ["embed", "up", "down"]);
    let left: HashMap<&str, &str> = summary
        .left
        .iter()
        .map(|l| (l.name.as_str(), l.reason.as_str()))
        .collect();
    for (name, values) in [
        ("odd", &["40 x 7"][..]),
        ("short", &["7 x 8"]),
        ("shared", &["Add", "\"sum\""]),
        ("halves", &["f16", "\"h\""]),
        // Read as it is and transposed; an output of the graph; rows by position. No value tells
        // these apart.
        ("both", &[]),
        ("out", &[]),
        ("angles", &[]),
    ] {
        assert_carries(left[name], values);
    }
    let reasons: HashSet<&str> = left.values().copied().collect();
    assert_eq!((left.len(), reasons.len()), (7, 7), "{left:?}");
    let model = quantized(&dir);
    assert_eq!((model.count("MatMul"), model.count("Transpose")), (6, 1));
    assert_eq!(model.tensor("halves").2, halves.bytes().unwrap());
    assert_eq!(model.tensor("shared").2, noise(&[HIDDEN, 8], 5).bytes().unwrap());
}

#[test]
fn half_precision_products_and_head_bits() {
    let mut tiny = Tiny::new();
    let data: Vec<f16> = noise(&[HIDDEN, VOCAB], 9)
        .to_f32()
        .unwrap()
        .iter()
        .map(|v| f16::from_f32(*v))
        .collect();
    let halves = HostTensor::from_f16(&[HIDDEN, VOCAB], &data).unwrap();
    tiny.weight("head", &halves);
    tiny.weight("embed", &noise(&[VOCAB, HIDDEN], 1));
    tiny.node(node("Gather", &["embed", "input_ids"], &["x"]));
    tiny.node(NodeSpec {
        attributes: &[("to", Attr::Int(10))],
        ..node("Cast", &["x"], &["x16"])
    });
    tiny.node(node("MatMul", &["x16", "head"], &["l16"]));
    tiny.node(NodeSpec {
        attributes: &[("to", Attr::Int(1))],
        ..node("Cast", &["l16"], &["logits"])
    });
    tiny.output("logits", VOCAB);
    let dir = tiny.finish();
    let summary = run(&dir, &Options::default()).unwrap();
    assert_eq!(
        summary.weights.iter().map(|w| w.bits).collect::<Vec<_>>(),
        [Bits::Eight; 2],
        "the head is found behind a cast"
    );
    assert!(summary.weights[0].relative_error < 0.007);
    std::fs::remove_dir_all(dir.path().join("out")).unwrap();
    let summary = run(
        &dir,
        &Options {
            head_bits: Bits::Four,
            ..Options::default()
        },
    )
    .unwrap();
    assert_eq!(
        summary.weights.iter().map(|w| w.bits).collect::<Vec<_>>(),
        [Bits::Four; 2]
    );
    assert_eq!(logits(&dir.path().join("out")).len(), 5 * VOCAB);
}

#[test]
fn bad_weights_are_named_and_nothing_is_left() {
    for (bad, at, values) in [
        (f32::NAN, 3 * INNER + 17, &["[3, 17]", "NaN"][..]),
        (f32::INFINITY, 39 * INNER + 95, &["[39, 95]", "inf"]),
        (1e30, 5, &[]),
    ] {
        let mut tiny = Tiny::new();
        let mut data = noise(&[HIDDEN, INNER], 2).to_f32().unwrap().into_owned();
        data[at] = bad;
        tiny.weight("up", &HostTensor::from_f32(&[HIDDEN, INNER], &data).unwrap());
        tiny.weight("embed", &noise(&[VOCAB, HIDDEN], 1));
        tiny.node(node("Gather", &["embed", "input_ids"], &["x"]));
        tiny.node(node("MatMul", &["x", "up"], &["logits"]));
        tiny.output("logits", INNER);
        let dir = tiny.finish();
        let e = run(&dir, &Options::default()).unwrap_err();
        assert_error(&e, ErrorKind::InvalidFile, &[MODEL, "\"up\""]);
        assert_carries(&e, values);
        nothing_left(&dir);
    }
    let mut tiny = Tiny::new();
    let mut data = noise(&[VOCAB, HIDDEN], 1).to_f32().unwrap().into_owned();
    (data[129 * HIDDEN + 2], data[70 * HIDDEN + 5]) = (f32::NAN, f32::NEG_INFINITY);
    tiny.weight("embed", &HostTensor::from_f32(&[VOCAB, HIDDEN], &data).unwrap());
    tiny.node(node("Gather", &["embed", "input_ids"], &["logits"]));
    tiny.output("logits", HIDDEN);
    let dir = tiny.finish();
    for _ in 0..5 {
        let e = run(&dir, &Options::default()).unwrap_err();
        assert_error(&e, ErrorKind::InvalidFile, &["[70, 5]", "-inf"]);
    }
}

#[test]
fn damaged_models_and_impossible_outputs() {
    let dir = tied();
    let model = dir.path().join("in").join(MODEL);
    let data = dir.path().join("in/model.onnx.data");
    let good = std::fs::read(&model).unwrap();
    let failure = |values: &[&str]| {
        let e = run(&dir, &Options::default()).unwrap_err();
        assert_error(&e, ErrorKind::InvalidFile, values);
        nothing_left(&dir);
        e
    };
    // At the very end stands the metadata, which a model can do without.
    for cut in (0..good.len() - 20).step_by(13) {
        std::fs::write(&model, &good[..cut]).unwrap();
        assert!(run(&dir, &Options::default()).is_err(), "cut at {cut}");
        nothing_left(&dir);
    }
    std::fs::write(&model, &good).unwrap();
    let weights = std::fs::read(&data).unwrap();
    std::fs::write(&data, &weights[..weights.len() - 1]).unwrap();
    failure(&["model.onnx.data", &(weights.len() - 1).to_string()]);
    std::fs::remove_file(&data).unwrap();
    let e = failure(&["model.onnx.data"]);
    let cause = std::error::Error::source(&e).and_then(|e| e.downcast_ref::<std::io::Error>());
    assert_eq!(cause.unwrap().kind(), std::io::ErrorKind::NotFound);
    std::fs::write(&data, &weights).unwrap();

    let (input, out) = (dir.path().join("in"), dir.path().join("out"));
    let refused = |input: &Path, out: &Path, options: &Options, option: &str, values: &[&str]| {
        let e = quantize(input, out, options, &mut |_| ()).unwrap_err();
        assert_usage(&e, option, values);
        nothing_left(&dir);
    };
    let options = Options::default();
    let full = format!("output {}", input.display());
    refused(&input, &input, &options, &full, &[]);
    refused(&dir.path().join("none"), &out, &options, "folder", &["none"]);
    for group_size in [0, 8, 20, 264] {
        refused(
            &input,
            &out,
            &Options {
                group_size,
                ..options
            },
            "group_size",
            &[&group_size.to_string()],
        );
    }
    let e = quantize(&input, &dir.path().join("no/out"), &options, &mut |_| ()).unwrap_err();
    assert_error(&e, ErrorKind::Io, &["no"]);
    run(&dir, &options).unwrap();
    let again = quantize(&out, &dir.path().join("twice"), &options, &mut |_| ()).unwrap_err();
    assert_error(&again, ErrorKind::InvalidFile, &[MODEL]);
    assert!(!dir.path().join("twice").exists());
}

#[test]
fn a_model_without_matrices_is_refused() {
    let mut tiny = Tiny::new();
    tiny.weight("odd", &noise(&[VOCAB, 7], 1));
    tiny.node(node("Gather", &["odd", "input_ids"], &["logits"]));
    tiny.output("logits", 7);
    let dir = tiny.finish();
    let e = run(&dir, &Options::default()).unwrap_err();
    assert_error(&e, ErrorKind::InvalidFile, &["\"odd\"", "7 x 130"]);
    nothing_left(&dir);
}

/// Names in the folder of a test, sorted.
fn names(dir: &tempfile::TempDir) -> Vec<String> {
    let entries = std::fs::read_dir(dir.path()).unwrap();
    let mut names: Vec<String> = entries
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn damaged_data_is_named_when_it_is_loaded() {
    let dir = tied();
    run(&dir, &Options::default()).unwrap();
    let data = dir.path().join("out/model.onnx.data");
    let good = std::fs::read(&data).unwrap();
    let model = quantized(&dir);
    for name in ["embed.codes", "up.codes", "down.scales"] {
        let offset = model.tensor(name).0.unwrap();
        let mut bad = good.clone();
        bad[offset + 5] ^= 0x10;
        std::fs::write(&data, &bad).unwrap();
        let e = import(&dir.path().join("out").join(MODEL)).unwrap_err();
        assert_error(&e, ErrorKind::InvalidFile, &[name]);
    }
    std::fs::write(&data, &good).unwrap();
    import(&dir.path().join("out").join(MODEL)).unwrap();
}

#[test]
fn all_formats_and_whole_columns_run() {
    let dir = tied_of(64);
    let given = logits(&dir.path().join("in"));
    let norm = |v: &mut dyn Iterator<Item = f32>| v.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    let mut last = f64::INFINITY;
    for bits in Bits::ALL {
        let out = dir.path().join(bits.to_string());
        let options = Options {
            bits,
            head_bits: bits,
            group_size: if bits == Bits::Five { PER_CHANNEL } else { 32 },
            ..Options::default()
        };
        let summary = quantize(&dir.path().join("in"), &out, &options, &mut |_| ()).unwrap();
        assert!(
            summary.weights.iter().all(|w| w.bits == bits),
            "{:?}",
            summary.left
        );
        if bits == Bits::Five {
            assert_eq!(
                summary.weights.iter().map(|w| w.group).collect::<Vec<_>>(),
                [64, 64, 96]
            );
        } else {
            let wanted = f64::from(bits.count()) + 1.0;
            assert!(
                (summary.bits_per_weight - wanted).abs() < 1e-9,
                "{}",
                summary.bits_per_weight
            );
        }
        let found = logits(&out);
        let off = norm(&mut given.iter().zip(&found).map(|(a, b)| a - b)) / norm(&mut given.iter().copied());
        assert!(off < last, "{bits}: {off} after {last}");
        last = off;
    }
    assert!(last < 0.01, "{last}");
}

#[test]
fn methods_are_compared_on_request() {
    let dir = tied();
    let options = Options {
        compare: true,
        ..Options::default()
    };
    let summary = run(&dir, &options).unwrap();
    for w in &summary.weights {
        let ratio = |m| w.compared.iter().find(|c| c.0 == m).unwrap().1;
        assert_eq!(w.compared.len(), 3, "{w:?}");
        assert!(
            ratio("mae") < ratio("mse") && ratio("mse") < ratio("rtn"),
            "{w:?}"
        );
    }
}

#[test]
fn what_a_quantized_model_stands_for() {
    let dir = tied();
    run(&dir, &Options::default()).unwrap();
    let (out, back) = (dir.path().join("out"), dir.path().join("back"));
    std::fs::write(out.join("config.json"), "{}").unwrap();
    std::fs::create_dir(&back).unwrap();
    let done = dequantize_into(&out, &back, &mut |_| ()).unwrap();
    assert_eq!(done.weights, 3);
    let model = read_back::open(&back.join(MODEL));
    let count = |op| model.count(op);
    assert_eq!(
        ["MatMulE0M", "GatherE0M", "MatMul", "Gather", "Transpose"].map(count),
        [0, 0, 3, 1, 1]
    );
    let (_, shape, table) = model.tensor("embed");
    assert_eq!((shape, table.len()), (vec![VOCAB, HIDDEN], VOCAB * HIDDEN * 2));
    assert_eq!(std::fs::read(back.join("config.json")).unwrap(), b"{}");
    let bytes = std::fs::read(back.join(MODEL)).unwrap();
    assert!(
        !bytes
            .windows(OWN_DOMAIN.len())
            .any(|w| w == OWN_DOMAIN.as_bytes()),
        "no operator set of ours"
    );
    for (a, b) in logits(&out).iter().zip(logits(&back)) {
        assert!((a - b).abs() < 2e-3, "{a} became {b}");
    }
    let e = dequantize_into(&dir.path().join("in"), &back, &mut |_| ()).unwrap_err();
    assert_error(&e, ErrorKind::InvalidFile, &[MODEL]);
    assert!(
        dequantize_into(dir.path(), &back, &mut |_| ())
            .unwrap_err()
            .is_usage()
    );
}
