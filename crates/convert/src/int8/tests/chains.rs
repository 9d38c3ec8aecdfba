//! Networks of nodes in a row, against the source.

use super::*;

/// A node: its operator, its further operands, and its attributes.
type Link<'a> = (&'a str, &'a [&'a str], &'a [(&'a str, Attr)]);

/// A network of nodes in a row: each reads the result of the one before, and constants. The input
/// is `x [1, 2, 4, 4]`, and the output the last result.
fn chain(folder: &Path, nodes: &[Link<'_>], constants: &[(&str, HostTensor)], sizes: &[usize]) -> PathBuf {
    let mut w = ModelWriter::without_data(Stage::Quantize, folder, "chain.onnx", "chain");
    w.opset("", 13);
    let picture = [1, 2, 4, 4].map(Size::from);
    w.add_input("x", DType::F32, &picture).unwrap();
    for (name, tensor) in constants {
        w.add_constant(name, tensor).unwrap();
    }
    let mut last = "x".to_owned();
    for (i, (op, more, attributes)) in nodes.iter().enumerate() {
        let name = format!("{op}{i}");
        let inputs = [&[last.as_str()][..], more].concat();
        w.add_node(NodeSpec {
            domain: "",
            op,
            name: &name,
            inputs: &inputs,
            outputs: &[&name],
            attributes,
        })
        .unwrap();
        last = name;
    }
    let sizes: Vec<Size> = sizes.iter().map(|n| Size::from(*n)).collect();
    w.add_output(&last, DType::F32, &sizes).unwrap();
    w.finish().unwrap();
    folder.join("chain.onnx")
}

/// Quantizes a chain, equalized.
fn equalized(nodes: &[Link<'_>], constants: &[(&str, HostTensor)], sizes: &[usize]) -> Summary {
    let folder = tempfile::tempdir().unwrap();
    let model = chain(folder.path(), nodes, constants, sizes);
    let changed = Options {
        equalize: true,
        ..options()
    };
    let output = folder.path().join("int8.onnx");
    run_with(&model, &output, &changed, 4, &random_item).unwrap()
}

#[test]
fn only_channels_that_can_be_rescaled_are_equalized() {
    // The channels of the first result differ in their ranges.
    let first: Vec<f32> = (0..8u8)
        .zip(numbers(1, 8))
        .map(|(i, v)| v * f32::from(1 + i / 2 * 9))
        .collect();
    let w1 = ("w1", tensor(&[4, 2, 1, 1], &first));
    let w2 = ("w2", tensor(&[3, 4, 1, 1], &numbers(2, 12)));
    let bounds = [("zero", tensor(&[], &[0.0])), ("six", tensor(&[], &[6.0]))];
    let conv: Link<'_> = ("Conv", &["w1"], &[]);
    let relu: Link<'_> = ("Relu", &[], &[]);
    let last: Link<'_> = ("Conv", &["w2"], &[]);
    let pool = [("kernel_shape", Attr::Ints(vec![2, 2]))];
    let clip: Link<'_> = ("Clip", &["zero", "six"], &[]);
    let found = equalized(&[conv, relu, last], &[w1.clone(), w2.clone()], &[1, 3, 4, 4]);
    assert_eq!(found.equalized, 1);
    assert!(found.outputs[0].median_snr > 30.0, "{:?}", found.outputs);
    // A bound of all channels, behind a mean.
    let constants = [&[w1.clone(), w2.clone()], &bounds[..]].concat();
    let nodes = [conv, ("AveragePool", &[][..], &pool[..]), clip, last];
    let found = equalized(&nodes, &constants, &[1, 3, 3, 3]);
    assert_eq!(found.equalized, 0);
    assert!(found.outputs[0].median_snr > 30.0, "{:?}", found.outputs);
    // Axis 1 becomes another one: [1, 4, 4, 4] to [4, 4, 4].
    let shape = HostTensor::from_i64(&[1], &[0]).unwrap();
    let constants = [w1, ("axes", shape), ("w3", tensor(&[3, 4, 1], &numbers(2, 12)))];
    let nodes = [conv, ("Squeeze", &["axes"][..], &[][..]), ("Conv", &["w3"], &[])];
    let found = equalized(&nodes, &constants, &[4, 3, 4]);
    assert_eq!(found.equalized, 0);
    assert!(found.outputs[0].median_snr > 30.0, "{:?}", found.outputs);
}

#[test]
fn biases_that_differ_between_rows_stay_in_floats() {
    let folder = tempfile::tempdir().unwrap();
    let constants = [
        ("w", tensor(&[16, 4], &numbers(2, 64))),
        ("column", tensor(&[2, 1], &[1.0, -1.0])),
        ("shape", HostTensor::from_i64(&[2], &[2, 16]).unwrap()),
        ("v", tensor(&[4, 3], &numbers(3, 12))),
    ];
    let nodes: [Link<'_>; 3] = [
        ("Reshape", &["shape"], &[]),
        ("Gemm", &["w", "column"], &[]),
        ("MatMul", &["v"], &[]),
    ];
    let model = chain(folder.path(), &nodes, &constants, &[2, 3]);
    let output = folder.path().join("int8.onnx");
    let summary = run_with(&model, &output, &options(), 4, &random_item).unwrap();
    assert!(summary.left.iter().any(|l| l.op == "Gemm"), "{:?}", summary.left);
    assert!(summary.outputs[0].median_snr > 30.0, "{:?}", summary.outputs);
}

#[test]
fn weights_that_nodes_compute_are_quantized() {
    let folder = tempfile::tempdir().unwrap();
    let mut w = ModelWriter::without_data(Stage::Quantize, folder.path(), "net.onnx", "net");
    w.opset("", 13);
    w.add_input("x", DType::F32, &[1, 2, 4, 4].map(Size::from))
        .unwrap();
    // More than derivation folds.
    let wide = tensor(&[70_000, 4], &numbers(2, 280_000));
    w.add_constant("wide", &wide).unwrap();
    for (op, inputs, out) in [
        ("Transpose", &["wide"][..], "turned"),
        ("MatMul", &["x", "turned"], "y"),
    ] {
        w.add_node(NodeSpec {
            domain: "",
            op,
            name: out,
            inputs,
            outputs: &[out],
            attributes: &[],
        })
        .unwrap();
    }
    w.add_output("y", DType::F32, &[1, 2, 4, 70_000].map(Size::from))
        .unwrap();
    w.finish().unwrap();
    let output = folder.path().join("int8.onnx");
    let model = folder.path().join("net.onnx");
    let summary = run_with(&model, &output, &options(), 2, &random_item).unwrap();
    assert_eq!(summary.layers.len(), 1);
    assert!(summary.left.is_empty(), "{:?}", summary.left);
}
