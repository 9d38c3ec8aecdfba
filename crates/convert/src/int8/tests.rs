mod chains;

use super::*;
use std::path::PathBuf;
use tempfile::TempDir;
use transformer_lite::unstable::cancel::Cancel;
use transformer_lite::unstable::error::{Error, ErrorKind, Stage};
use transformer_lite::unstable::graph::derive;
use transformer_lite::unstable::graph::onnx::proto::{GraphProto, NodeProto, TensorProto};
use transformer_lite::unstable::graph::onnx::write::{Attr, ModelWriter, NodeSpec, Size};
use transformer_lite::unstable::graph::onnx::{decode, import};
use transformer_lite::unstable::graph::pass::integer::{FloatNode, coverage};
use transformer_lite::unstable::llm::sampler::SplitMix64;
use transformer_lite::unstable::quant::fixed::Arithmetic;
use transformer_lite::unstable::runner::{Runner, RunnerOptions};
use transformer_lite::unstable::tensor::{DType, HostTensor};

fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut random = SplitMix64::new(seed);
    (0..count)
        .map(|_| (2.0 * random.next_f64() - 1.0) as f32)
        .collect()
}

fn tensor(shape: &[usize], data: &[f32]) -> HostTensor {
    HostTensor::from_f32(shape, data).unwrap()
}

fn options() -> Options {
    Options {
        ranges: RangeMethod::MinMax,
        per_tensor: false,
        symmetric: false,
        equalize: false,
        compensate: false,
        correct_bias: false,
        keep_float: HashSet::new(),
        compared: 4,
    }
}

/// Two convolutions, the first with normalization and `Relu` and a dead channel; their results,
/// concatenated, and a third one.
fn model(folder: &Path) -> PathBuf {
    let mut w = ModelWriter::without_data(Stage::Quantize, folder, "net.onnx", "net");
    w.opset("", 11);
    let node = |w: &mut ModelWriter, op, name, inputs: &[&str], attributes: &[(&str, Attr)]| {
        let outputs = [format!("{name}_out")];
        let outputs = [outputs[0].as_str()];
        w.add_node(NodeSpec {
            domain: "",
            op,
            name,
            inputs,
            outputs: &outputs,
            attributes,
        })
        .unwrap();
    };
    let picture = [1, 2, 4, 4].map(Size::from);
    w.add_input("x", DType::F32, &picture).unwrap();
    let mut first = numbers(1, 8);
    first[6..].fill(0.0);
    w.add_constant("w1", &tensor(&[4, 2, 1, 1], &first)).unwrap();
    for (name, values) in [
        ("scale", [1.0, 0.5, 2.0, 1.5]),
        ("beta", [0.1, -0.1, 0.0, 0.3]),
        ("mean", [0.0, 0.2, -0.1, 0.0]),
        ("variance", [1.0, 0.5, 2.0, 1.0]),
    ] {
        w.add_constant(name, &tensor(&[4], &values)).unwrap();
    }
    w.add_constant("w2", &tensor(&[4, 4, 1, 1], &numbers(2, 16)))
        .unwrap();
    w.add_constant("w3", &tensor(&[3, 8, 1, 1], &numbers(3, 24)))
        .unwrap();
    w.add_constant("b3", &tensor(&[3], &[0.5, -0.5, 0.0])).unwrap();
    node(&mut w, "Conv", "first", &["x", "w1"], &[]);
    node(
        &mut w,
        "BatchNormalization",
        "norm",
        &["first_out", "scale", "beta", "mean", "variance"],
        &[],
    );
    node(&mut w, "Relu", "relu", &["norm_out"], &[]);
    node(&mut w, "Conv", "second", &["relu_out", "w2"], &[]);
    node(
        &mut w,
        "Concat",
        "both",
        &["relu_out", "second_out"],
        &[("axis", Attr::Int(1))],
    );
    node(&mut w, "Conv", "third", &["both_out", "w3", "b3"], &[]);
    w.add_output("third_out", DType::F32, &[1, 3, 4, 4].map(Size::from))
        .unwrap();
    w.finish().unwrap();
    folder.join("net.onnx")
}

type Items = dyn Fn(usize) -> Result<Item>;

fn random_item(i: usize) -> Result<Item> {
    Ok(vec![(
        "x".to_owned(),
        tensor(&[1, 2, 4, 4], &numbers(100 + i as u64, 32)),
    )])
}

fn run_with(model: &Path, output: &Path, options: &Options, count: usize, read: &Items) -> Result<Summary> {
    let set = CalibrationSet {
        names: (0..count).map(|i| format!("item {i}")).collect(),
        read,
        metadata: vec![("prepared".to_owned(), "as told".to_owned())],
    };
    quantize(
        model,
        Output::create(output, false)?,
        options,
        &set,
        &Open {
            backend: &|| Ok(None),
            limits: &Limits::default(),
        },
        &|_, _, _| (),
    )
}

struct Made {
    _folder: TempDir,
    path: PathBuf,
    summary: Summary,
    graph: GraphProto,
    opset: i64,
}

impl Made {
    fn of(options: &Options) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("int8.onnx");
        let summary = run_with(&model(folder.path()), &path, options, 8, &random_item).unwrap();
        let model = decode::model(Stage::Import, &path, &std::fs::read(&path).unwrap()).unwrap();
        Self {
            _folder: folder,
            path,
            summary,
            opset: model.opset_import[0].version,
            graph: model.graph.unwrap(),
        }
    }

    fn tensor(&self, name: &str) -> &TensorProto {
        self.graph.initializer.iter().find(|t| t.name == name).unwrap()
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        let bytes = self.tensor(name).raw_data.as_chunks::<4>().0;
        bytes.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }

    fn producer(&self, value: &str) -> &NodeProto {
        self.graph
            .node
            .iter()
            .find(|n| n.output.iter().any(|o| o == value))
            .unwrap()
    }

    fn convolutions(&self) -> impl Iterator<Item = &NodeProto> {
        self.graph.node.iter().filter(|n| n.op_type == "Conv")
    }
}

#[test]
fn weights_and_biases_have_the_right_integers_and_scales() {
    for per_tensor in [false, true] {
        let made = Made::of(&Options {
            per_tensor,
            ..options()
        });
        assert_eq!((made.opset, made.convolutions().count()), (13, 3));
        for conv in made.convolutions() {
            let [x, w] = [0, 1].map(|i| made.producer(&conv.input[i]));
            assert_eq!([&x.op_type, &w.op_type], ["DequantizeLinear"; 2]);
            let codes = &made.tensor(&w.input[0]).raw_data;
            assert!(codes.iter().all(|c| c.cast_signed() >= -127), "{}", conv.name);
            assert!(made.tensor(&w.input[2]).raw_data.iter().all(|z| *z == 0));
            let (scales, input) = (made.floats(&w.input[1]), made.floats(&x.input[1])[0]);
            assert_eq!(
                scales.len(),
                if per_tensor {
                    1
                } else {
                    made.tensor(&w.input[0]).dims[0] as usize
                }
            );
            if let Some(bias) = conv.input.get(2) {
                let bias = made.producer(bias);
                let wanted: Vec<f32> = scales.iter().map(|s| s * input).collect();
                assert_eq!(made.floats(&bias.input[1]), wanted, "{}", conv.name);
            }
        }
    }
}

#[test]
fn a_dead_channel_gets_the_least_scale() {
    let made = Made::of(&options());
    let first = made.convolutions().next().unwrap();
    let w = made.producer(&first.input[1]);
    assert_eq!(made.floats(&w.input[1])[3], 2f32.powi(-24));
    assert_eq!(&made.tensor(&w.input[0]).raw_data[6..], [0, 0]);
}

#[test]
fn a_concatenation_and_its_operands_share_a_range() {
    let made = Made::of(&options());
    let concat = made.graph.node.iter().find(|n| n.op_type == "Concat").unwrap();
    let scales: HashSet<&String> = concat.input.iter().map(|i| &made.producer(i).input[1]).collect();
    let reader = made.convolutions().nth(2).unwrap();
    assert_eq!(scales.len(), 1);
    assert!(scales.contains(&made.producer(&reader.input[0]).input[1]));
}

#[test]
fn normalization_is_folded_and_the_model_runs() {
    let made = Made::of(&options());
    assert!(made.graph.node.iter().all(|n| n.op_type != "BatchNormalization"));
    let mut runner = Runner::load(&made.path, None, &RunnerOptions::default()).unwrap();
    runner.run(&random_item(0).unwrap(), &Cancel::default()).unwrap();
    let output = &made.summary.outputs[0];
    assert!(output.median_snr > 30.0, "{output:?}");
    assert_eq!(made.summary.layers.len(), 4);
    assert_eq!(made.summary.layers[0].ops, ["Conv", "BatchNormalization", "Relu"]);
}

#[test]
fn equalization_and_correction_keep_the_function() {
    for per_tensor in [false, true] {
        let changed = Options {
            per_tensor,
            equalize: true,
            compensate: true,
            correct_bias: true,
            ranges: RangeMethod::Mse,
            ..options()
        };
        let made = Made::of(&changed);
        assert!(
            made.summary.outputs[0].median_snr > 30.0,
            "{:?}",
            made.summary.outputs
        );
    }
}

#[test]
fn symmetric_activations_have_no_zero_point() {
    let made = Made::of(&Options {
        symmetric: true,
        ..options()
    });
    assert!(made.summary.layers.iter().all(|l| l.zero == 0));
    let quantizes = |n: &&NodeProto| n.op_type == "QuantizeLinear";
    for n in made.graph.node.iter().filter(quantizes) {
        assert_eq!(made.tensor(&n.input[2]).raw_data, [0]);
    }
}

#[test]
fn nodes_stay_in_floats_on_request() {
    let made = Made::of(&Options {
        keep_float: HashSet::from(["third".to_owned()]),
        ..options()
    });
    let third = made.convolutions().find(|n| n.name == "third").unwrap();
    assert_eq!(third.input[1], "w3");
    assert_eq!(made.summary.left[1].name, "third");
}

#[test]
fn the_noisiest_last_layer_is_named() {
    let made = Made::of(&options());
    let last = made.summary.outputs[0].last_layer.as_ref().unwrap();
    assert_eq!(last.name, "third");
    // Without it, the output comes from the other two, through a node in floats.
    let made = Made::of(&Options {
        keep_float: HashSet::from(["third".to_owned()]),
        ..options()
    });
    let ratios = made.summary.layers.iter().filter_map(|l| l.snr);
    let last = made.summary.outputs[0].last_layer.as_ref().unwrap();
    assert_eq!(ratios.clone().count(), 2);
    assert_eq!(Some(last.snr), ratios.min_by(f64::total_cmp));
}

/// A network with gates, means, a product of two activations and a softmax; the size of pictures
/// is open, or 4 x 4.
fn gates(folder: &Path, open: bool) -> PathBuf {
    let mut w = ModelWriter::without_data(Stage::Quantize, folder, "gates.onnx", "gates");
    w.opset("", 13);
    let node = |w: &mut ModelWriter, op, name: &str, inputs: &[&str], attributes: &[(&str, Attr)]| {
        w.add_node(NodeSpec {
            domain: "",
            op,
            name,
            inputs,
            outputs: &[name],
            attributes,
        })
        .unwrap();
    };
    let side = || if open { Size::from("side") } else { Size::from(4) };
    let picture = [Size::from(1), Size::from(2), side(), side()];
    w.add_input("x", DType::F32, &picture).unwrap();
    w.add_constant("w", &tensor(&[2, 2, 1, 1], &numbers(1, 4)))
        .unwrap();
    for (name, value) in [("three", 3.0), ("six", 6.0), ("zero", 0.0)] {
        w.add_constant(name, &tensor(&[], &[value])).unwrap();
    }
    node(&mut w, "Conv", "conv", &["x", "w"], &[]);
    node(&mut w, "Sigmoid", "gate", &["conv"], &[]);
    node(&mut w, "Mul", "silu", &["conv", "gate"], &[]);
    node(&mut w, "Add", "plus", &["silu", "three"], &[]);
    node(&mut w, "Clip", "clip", &["plus", "zero", "six"], &[]);
    node(&mut w, "Mul", "product", &["silu", "clip"], &[]);
    node(&mut w, "Div", "swish", &["product", "six"], &[]);
    node(&mut w, "GlobalAveragePool", "mean", &["swish"], &[]);
    node(&mut w, "Mul", "scaled", &["swish", "mean"], &[]);
    node(&mut w, "MatMul", "square", &["scaled", "swish"], &[]);
    node(&mut w, "Flatten", "flat", &["mean"], &[]);
    w.add_constant("w2", &tensor(&[2, 3], &numbers(4, 6))).unwrap();
    node(
        &mut w,
        "Gemm",
        "z",
        &["flat", "w2"],
        &[("alpha", Attr::Float(0.5))],
    );
    w.add_output("z", DType::F32, &[1, 3].map(Size::from)).unwrap();
    node(&mut w, "Softmax", "y", &["square"], &[("axis", Attr::Int(-1))]);
    w.add_output("y", DType::F32, &[Size::from(1), Size::from(2), side(), side()])
        .unwrap();
    w.finish().unwrap();
    folder.join("gates.onnx")
}

#[test]
fn what_is_quantized_runs_in_integers() {
    for open in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let model = gates(folder.path(), open);
        let path = folder.path().join("int8.onnx");
        let summary = run_with(&model, &path, &options(), 4, &random_item).unwrap();
        let mut made = import(&path).unwrap();
        derive::derive(&mut made).unwrap();
        let found = coverage(&made, Arithmetic::Float).unwrap();
        let left: HashSet<&str> = summary.left.iter().map(|l| l.name.as_str()).collect();
        let nodes: Vec<&FloatNode> = found.float_nodes.iter().collect();
        assert!(nodes.iter().all(|n| left.contains(n.node.as_str())), "{nodes:?}");
        let wanted: &[&str] = if open {
            &["mean", "flat", "square", "y"]
        } else {
            &[]
        };
        let missing: Vec<&&str> = wanted.iter().filter(|n| !left.contains(**n)).collect();
        assert!(missing.is_empty() && left.len() == wanted.len(), "{left:?}");
        let quantized: usize = summary.layers.iter().map(|l| l.ops.len()).sum();
        assert_eq!(found.nodes, quantized);
    }
}

/// Quantizes with these items; expects an error, and nothing beside the model.
fn refused(count: usize, read: &Items, change: impl Fn(&mut Options)) -> Error {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let mut options = options();
    change(&mut options);
    let mut errors = Vec::new();
    for output in ["out", "out.onnx"] {
        errors.push(run_with(&model, &folder.path().join(output), &options, count, read).unwrap_err());
        let entries: Vec<_> = std::fs::read_dir(folder.path())
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert_eq!(entries, ["net.onnx"]);
    }
    errors.remove(0)
}

#[test]
fn bad_calibration_sets_are_named_and_leave_nothing() {
    let e = refused(0, &random_item, |_| ());
    assert!(e.is_usage() && e.to_string().contains("empty"), "{e}");
    let constant = |_| Ok(vec![("x".to_owned(), tensor(&[1, 2, 4, 4], &[0.5; 32]))]);
    let e = refused(3, &constant, |_| ());
    assert!(e.is_usage() && e.to_string().contains("\"x\" is 0.5"), "{e}");
    let large = |_| Ok(vec![("x".to_owned(), tensor(&[1, 2, 5, 4], &numbers(1, 40)))]);
    let e = refused(3, &large, |_| ());
    assert!(
        e.chain().contains("item 0") && e.chain().contains('5'),
        "{}",
        e.chain()
    );
    let wrong = |_| Ok(vec![("z".to_owned(), tensor(&[1, 2, 4, 4], &numbers(1, 32)))]);
    let e = refused(3, &wrong, |_| ());
    assert_eq!(e.kind(), ErrorKind::MissingInput, "{}", e.chain());
}

#[test]
fn values_that_are_not_finite_are_named_with_their_node() {
    let with = |v: f32| {
        move |i: usize| {
            let mut data = numbers(i as u64, 32);
            if i == 2 {
                data.fill(v);
            }
            Ok(vec![("x".to_owned(), tensor(&[1, 2, 4, 4], &data))])
        }
    };
    let e = refused(4, &with(f32::NAN), |_| ());
    assert!(
        e.chain().contains("input \"x\"") && e.chain().contains("item 2"),
        "{}",
        e.chain()
    );
    // Finite inputs whose products are not.
    let e = refused(4, &with(3e38), |_| ());
    let Error::Node { node, source, .. } = &e else {
        panic!("{e}")
    };
    assert!(
        matches!(source.downcast_ref(), Some(Refused::NotFinite { .. })),
        "{source}"
    );
    assert!(["relu", "second", "third"].contains(&node.as_str()), "{node}");
}

#[test]
fn sums_that_can_leave_32_bits_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let k = 70_000;
    let mut w = ModelWriter::without_data(Stage::Quantize, folder.path(), "wide.onnx", "wide");
    w.opset("", 13);
    w.add_input("x", DType::F32, &[1, k].map(Size::from)).unwrap();
    w.add_constant("w", &tensor(&[k, 1], &vec![0.5; k])).unwrap();
    let (inputs, outputs) = (["x", "w"], ["y"]);
    w.add_node(NodeSpec {
        domain: "",
        op: "MatMul",
        name: "product",
        inputs: &inputs,
        outputs: &outputs,
        attributes: &[],
    })
    .unwrap();
    w.add_output("y", DType::F32, &[1, 1].map(Size::from)).unwrap();
    w.finish().unwrap();
    let read = move |i| {
        Ok(vec![(
            "x".to_owned(),
            tensor(
                &[1, k],
                &numbers(i as u64, k).iter().map(|v| v.abs()).collect::<Vec<_>>(),
            ),
        )])
    };
    let e = run_with(
        &folder.path().join("wide.onnx"),
        &folder.path().join("out"),
        &options(),
        2,
        &read,
    );
    let e = e.unwrap_err();
    let Error::Node { node, source, .. } = &e else {
        panic!("{e}")
    };
    assert_eq!(node, "product");
    assert!(
        matches!(source.downcast_ref(), Some(Refused::Overflow { channel: 0, .. })),
        "{source}"
    );
}

#[test]
fn unsuitable_models_and_names_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let made = Made::of(&options());
    let e = run_with(
        &made.path,
        &folder.path().join("again"),
        &options(),
        2,
        &random_item,
    )
    .unwrap_err();
    assert!(e.to_string().contains("quantized already"), "{e}");
    let e = refused(2, &random_item, |o| {
        o.keep_float.insert("fourth".to_owned());
    });
    assert!(e.is_usage() && e.to_string().contains("\"fourth\""), "{e}");
}

/// A grouped convolution with windows that overlap and padding.
fn windows(folder: &Path) -> PathBuf {
    let mut w = ModelWriter::without_data(Stage::Quantize, folder, "windows.onnx", "windows");
    w.opset("", 13);
    w.add_input("x", DType::F32, &[1, 4, 12, 12].map(Size::from))
        .unwrap();
    let mut weights = numbers(5, 4 * 2 * 9);
    // Makes the steps of all weights coarse.
    weights[0] = 20.0;
    w.add_constant("w", &tensor(&[4, 2, 3, 3], &weights)).unwrap();
    let (inputs, outputs) = (["x", "w"], ["y"]);
    w.add_node(NodeSpec {
        domain: "",
        op: "Conv",
        name: "product",
        inputs: &inputs,
        outputs: &outputs,
        attributes: &[
            ("group", Attr::Int(2)),
            ("strides", Attr::Ints(vec![2, 1])),
            ("pads", Attr::Ints(vec![1, 0, 1, 1])),
        ],
    })
    .unwrap();
    w.add_output("y", DType::F32, &[1, 4, 6, 11].map(Size::from))
        .unwrap();
    w.finish().unwrap();
    folder.join("windows.onnx")
}

#[test]
fn compensated_weights_lose_less_than_nearest_ones() {
    let folder = tempfile::tempdir().unwrap();
    let model = windows(folder.path());
    // Neighbouring elements are alike.
    let smooth = |i: usize| {
        let value = |at: usize| ((at % 144) as f32 / 40.0 + i as f32 + (at / 144) as f32).sin();
        let data: Vec<f32> = (0..4 * 144).map(value).collect();
        Ok(vec![("x".to_owned(), tensor(&[1, 4, 12, 12], &data))])
    };
    let made = |name: &str, compensate: bool| {
        let options = Options {
            per_tensor: true,
            compensate,
            ..options()
        };
        let output = folder.path().join(name);
        let made = run_with(&model, &output, &options, 8, &smooth).unwrap();
        (made.outputs[0].median_snr, std::fs::read(output).unwrap())
    };
    let (nearest, _) = made("nearest.onnx", false);
    let (compensated, bytes) = made("compensated.onnx", true);
    assert!(compensated > nearest + 3.0, "{compensated} {nearest}");
    assert_eq!(made("again.onnx", true).1, bytes);
}

#[test]
fn biases_make_up_for_mean_errors() {
    let folder = tempfile::tempdir().unwrap();
    let model = windows(folder.path());
    // Far from 0, so that rounded weights cause mean errors.
    let offset = |i: usize| {
        let data: Vec<f32> = numbers(i as u64, 576).iter().map(|v| 2.0 + 0.2 * v).collect();
        Ok(vec![("x".to_owned(), tensor(&[1, 4, 12, 12], &data))])
    };
    let snr = |name: &str, correct_bias: bool| {
        let options = Options {
            per_tensor: true,
            correct_bias,
            ..options()
        };
        let made = run_with(&model, &folder.path().join(name), &options, 8, &offset).unwrap();
        made.outputs[0].median_snr
    };
    let (plain, corrected) = (snr("plain.onnx", false), snr("corrected.onnx", true));
    assert!(corrected > plain + 3.0, "{corrected} {plain}");
}

#[test]
fn elements_have_channels_and_positions() {
    // Two pictures, three channels, four elements of each.
    let pictures = rounding::Layout::of(&[2, 3, 2, 2], true);
    assert_eq!(pictures.place(0), (0, 0));
    assert_eq!(pictures.place(7), (1, 3));
    assert_eq!(pictures.place(12), (0, 4));
    let rows = rounding::Layout::of(&[2, 3], false);
    assert_eq!(rows.place(4), (1, 1));
    // The mean square of a position is 4.5 + 0.5: 0.03 * 5 / (square + 0.03 * 5).
    let weights = rows.weights(&[3.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
    assert!((weights[0] - 0.15 / 9.15).abs() < 1e-6, "{weights:?}");
    assert!((weights[1] - 0.15 / 1.15).abs() < 1e-6, "{weights:?}");
    assert_eq!(rows.weights(&[0.0; 6]), [0.0, 0.0]);
}
