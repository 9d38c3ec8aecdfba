//! Models whose weights are codes already, against the interpreter's reading of them.

use super::super::nodes::int;
use super::super::*;
use prost::Message;
use std::collections::HashMap;
use std::sync::Arc;
use tlite_testing::onnx::read_back;
use tlite_testing::{assert_carries, assert_error};
use transformer_lite::unstable::error::ErrorKind;
use transformer_lite::unstable::graph::derive::derive;
use transformer_lite::unstable::graph::interp::Interpreter;
use transformer_lite::unstable::graph::onnx::proto::StringStringEntryProto;
use transformer_lite::unstable::graph::onnx::proto::{
    AttributeProto, DimensionProto, DimensionValue, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    TensorProto, TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto,
};
use transformer_lite::unstable::tensor::HostTensor;

const K: usize = 96;
const N: usize = 34;

const F32: i32 = 1;
const U8: i32 = 2;
const I8: i32 = 3;
const I32: i32 = 6;
const U4: i32 = 21;
const I4: i32 = 22;

fn noise(i: usize) -> u8 {
    ((i * 167 + i / 7 * 59 + i / 31 * 13) % 256) as u8
}

fn noises(count: usize) -> Vec<u8> {
    (0..count).map(noise).collect()
}

fn tensor(name: &str, data_type: i32, dims: &[usize], raw_data: Vec<u8>) -> TensorProto {
    TensorProto {
        name: name.to_owned(),
        data_type,
        dims: dims.iter().map(|d| *d as i64).collect(),
        raw_data,
        ..Default::default()
    }
}

/// Scales that halves hold, or with a factor that makes them none.
fn scales(dims: &[usize], factor: f32) -> TensorProto {
    let count = dims.iter().product::<usize>();
    let values = (0..count).map(|i| factor * (1 + i * 5 % 31) as f32 / 1024.0);
    tensor("scales", F32, dims, values.flat_map(f32::to_le_bytes).collect())
}

fn node(domain: &str, op: &str, input: &[&str], output: &str, attribute: Vec<AttributeProto>) -> NodeProto {
    NodeProto {
        domain: domain.to_owned(),
        op_type: op.to_owned(),
        name: format!("/{output}"),
        input: input.iter().map(|i| (*i).to_owned()).collect(),
        output: vec![output.to_owned()],
        attribute,
        ..NodeProto::default()
    }
}

fn value(name: &str, last: usize) -> ValueInfoProto {
    let size = |v: usize| DimensionProto {
        value: Some(DimensionValue::Value(v as i64)),
    };
    let shape = TensorShapeProto {
        dim: vec![size(3), size(last)],
    };
    ValueInfoProto {
        name: name.to_owned(),
        r#type: Some(TypeProto {
            tensor_type: Some(TensorTypeProto {
                elem_type: F32,
                shape: Some(shape),
            }),
        }),
    }
}

/// A folder with a model of `x[3, K]` to `y[3, N]`.
fn model(initializer: Vec<TensorProto>, node: Vec<NodeProto>) -> tempfile::TempDir {
    let opset = |domain: &str, version| OperatorSetIdProto {
        domain: domain.to_owned(),
        version,
    };
    let proto = ModelProto {
        ir_version: 9,
        opset_import: vec![opset("", 21), opset("com.microsoft", 1)],
        graph: Some(GraphProto {
            name: "g".to_owned(),
            node,
            initializer,
            input: vec![value("x", K)],
            output: vec![value("y", N)],
            ..Default::default()
        }),
        ..Default::default()
    };
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("in")).unwrap();
    std::fs::write(dir.path().join("in").join(MODEL), proto.encode_to_vec()).unwrap();
    dir
}

fn result(folder: &Path) -> Vec<f32> {
    let mut graph = import(&folder.join(MODEL)).unwrap();
    derive(&mut graph).unwrap();
    let (input, output) = (graph.input("x").unwrap(), graph.output("y").unwrap());
    let x: Vec<f32> = (0..3 * K)
        .map(|i| f32::from(noise(i * 3)) / 128.0 - 1.0)
        .collect();
    let x = HostTensor::from_f32(&[3, K], &x).unwrap();
    let interpreter = Interpreter::new(Arc::new(graph)).unwrap();
    let y = interpreter.run(HashMap::from([(input, x)])).unwrap();
    y[&output].to_f32().unwrap().into_owned()
}

fn run(dir: &tempfile::TempDir) -> Result<Summary> {
    let [input, output] = ["in", "out"].map(|f| dir.path().join(f));
    quantize(&input, &output, &Options::default(), &mut |_| ())
}

/// Quantizes the model, and compares what both make. Operators and initialisers that are left are
/// told.
#[track_caller]
fn same(dir: &tempfile::TempDir, bits: Bits, group: usize, exact: bool, left: &[&str]) {
    let summary = run(dir).unwrap();
    let [w] = &summary.weights[..] else {
        panic!("{:?}", summary.weights)
    };
    assert_eq!((w.bits, w.group), (bits, group));
    assert_eq!(w.max_error == 0.0, exact, "{}", w.max_error);
    assert!(w.relative_error < 1e-3, "{}", w.relative_error);
    let out = dir.path().join("out");
    let model = read_back::open(&out.join(MODEL));
    assert_eq!(model.count("MatMulE0M"), 1);
    for op in ["MatMulNBits", "DequantizeLinear", "Transpose", "MatMul"] {
        assert_eq!(model.count(op), 0, "{op}");
    }
    let bytes = std::fs::read(out.join(MODEL)).unwrap();
    let graph = ModelProto::decode(bytes.as_slice()).unwrap().graph.unwrap();
    let names: Vec<&str> = graph.initializer.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names[..2], ["w.codes", "w.scales"]);
    assert_eq!(&names[2..], left);
    let (wanted, found) = (result(&dir.path().join("in")), result(&out));
    let square = |a: &f32, b: &f32| f64::from(a - b) * f64::from(a - b);
    let norm: f64 = wanted.iter().map(|v| square(v, &0.0)).sum();
    let error: f64 = wanted.iter().zip(&found).map(|(a, b)| square(a, b)).sum();
    let bound = if exact { 1e-12 } else { 1e-6 };
    assert!(norm > 0.0 && error / norm < bound, "{:e}", error / norm);
}

fn nbits(bits: i64, block: i64, inputs: &[&str], extra: Vec<TensorProto>, factor: f32) -> tempfile::TempDir {
    let (b, x) = (block as usize, bits as usize);
    let blocks = K.div_ceil(b);
    let codes = tensor("w", U8, &[N, blocks, b * x / 8], noises(N * blocks * b * x / 8));
    let mut initializer = vec![codes, scales(&[N * blocks], factor)];
    initializer.extend(extra);
    let attributes = vec![
        int("K", K as i64),
        int("N", N as i64),
        int("bits", bits),
        int("block_size", block),
        int("accuracy_level", 4),
    ];
    let mut all = vec!["x", "w", "scales"];
    all.extend(inputs);
    model(
        initializer,
        vec![node("com.microsoft", "MatMulNBits", &all, "y", attributes)],
    )
}

#[test]
fn products_of_few_bits_keep_their_codes() {
    same(&nbits(4, 32, &[], vec![], 1.0), Bits::Four, 32, true, &[]);
    same(&nbits(8, 64, &[], vec![], 1.0), Bits::Eight, 64, true, &[]);
    same(&nbits(2, 16, &[], vec![], 1.0), Bits::Two, 16, true, &[]);
    same(&nbits(4, 128, &[], vec![], 0.7), Bits::Four, 128, false, &[]);
    let zeros = |count| tensor("zeros", U8, &[count], noises(count));
    same(
        &nbits(4, 32, &["zeros"], vec![zeros(N * 2)], 1.0),
        Bits::Four,
        32,
        true,
        &[],
    );
    same(
        &nbits(8, 32, &["zeros"], vec![zeros(N * 3)], 1.0),
        Bits::Eight,
        32,
        true,
        &[],
    );
    let floats: Vec<u8> = (0..N * 3)
        .flat_map(|i| f32::from(noise(i) % 15).to_le_bytes())
        .collect();
    let zeros = tensor("zeros", F32, &[N, 3], floats);
    same(
        &nbits(4, 32, &["zeros"], vec![zeros], 1.0),
        Bits::Four,
        32,
        true,
        &[],
    );
}

#[test]
fn an_order_of_rows_and_a_bias_are_nodes_around_the_product() {
    let of = |i: usize| (i * 7 % K / 32) as i32;
    let g_idx = tensor(
        "g_idx",
        I32,
        &[K],
        (0..K).flat_map(|i| of(i).to_le_bytes()).collect(),
    );
    let bias = (0..N).flat_map(|i| f32::from(noise(i)).to_le_bytes()).collect();
    let bias = tensor("bias", F32, &[N], bias);
    let dir = nbits(4, 32, &["", "g_idx", "bias"], vec![g_idx, bias], 1.0);
    same(&dir, Bits::Four, 32, true, &["w.order", "bias"]);
    // Blocks of unlike sizes are left to the engine, which runs them as floats; the rest of the
    // model is quantized.
    let uneven = tensor("g_idx", I32, &[K], vec![0; 4 * K]);
    let dir = nbits(4, 32, &["", "g_idx"], vec![uneven], 1.0);
    let values = ["g_idx", "32", "1", "0"];
    let error = run(&dir).unwrap_err();
    assert_error(&error, ErrorKind::InvalidFile, &["\"w\""]);
    assert_carries(error, &values);
    let path = dir.path().join("in").join(MODEL);
    let mut proto = ModelProto::decode(std::fs::read(&path).unwrap().as_slice()).unwrap();
    let graph = proto.graph.as_mut().unwrap();
    let floats = (0..K * K).flat_map(|i| (f32::from(noise(i)) - 128.0).to_le_bytes());
    graph
        .initializer
        .push(tensor("first", F32, &[K, K], floats.collect()));
    graph.node[0].input[0] = "h".to_owned();
    graph
        .node
        .insert(0, node("", "MatMul", &["x", "first"], "h", vec![]));
    std::fs::write(&path, proto.encode_to_vec()).unwrap();
    let summary = run(&dir).unwrap();
    assert_eq!((summary.weights.len(), summary.left.len()), (1, 1));
    assert_carries(&summary.left[0].reason, &values);
    assert_eq!(result(&dir.path().join("out")).len(), 3 * N);
}

#[test]
fn results_of_another_type_than_the_scales() {
    // Of rows that are to be halves: GatherE0M gives single precision.
    let table = |data_type: i64| {
        let attributes = vec![
            int("axis", 0),
            int("block_size", 0),
            int("output_dtype", data_type),
        ];
        let nodes = vec![
            dequantize(attributes),
            node("", "Gather", &["d", "tokens"], "rows", vec![int("axis", 0)]),
            node("", "Cast", &["rows"], "wide", vec![int("to", 1)]),
            node("", "ReduceSum", &["wide"], "sum", vec![int("keepdims", 0)]),
            node("", "MatMul", &["x", "second"], "m", vec![]),
            node("", "Add", &["m", "sum"], "y", vec![]),
        ];
        let second = (0..K * N)
            .flat_map(|i| (f32::from(noise(i)) - 128.0).to_le_bytes())
            .collect();
        let all = vec![
            tensor("w", I8, &[N, K], noises(K * N)),
            scales(&[N], 1.0),
            tensor("second", F32, &[K, N], second),
        ];
        let dir = model(all, nodes);
        let path = dir.path().join("in").join(MODEL);
        let mut proto = ModelProto::decode(std::fs::read(&path).unwrap().as_slice()).unwrap();
        proto.opset_import[0].version = 23;
        let graph = proto.graph.as_mut().unwrap();
        let mut tokens = value("tokens", 1);
        tokens
            .r#type
            .as_mut()
            .unwrap()
            .tensor_type
            .as_mut()
            .unwrap()
            .elem_type = 7;
        graph.input.push(tokens);
        std::fs::write(&path, proto.encode_to_vec()).unwrap();
        dir
    };
    for (data_type, kept) in [(1, true), (10, false)] {
        let dir = table(data_type);
        let summary = run(&dir).unwrap();
        let names: Vec<&str> = summary.weights.iter().map(|w| w.name.as_str()).collect();
        assert_eq!(names.contains(&"w"), kept, "{data_type}: {:?}", summary.left);
        if !kept {
            assert_carries(&summary.left[0].reason, &["f16"]);
        }
        let mut graph = import(&dir.path().join("out").join(MODEL)).unwrap();
        derive(&mut graph).unwrap();
    }
}

#[test]
fn tensors_of_few_bits_that_stay_are_copied() {
    // Read by a node that takes no packed weight, from a file beside the model.
    let outside = tensor("w", I4, &[K, N], noises(K * N / 2));
    let nodes = vec![
        dequantize(vec![int("axis", 1)]),
        node("", "Gemm", &["x", "d"], "g", vec![]),
        node("", "MatMul", &["x", "second"], "m", vec![]),
        node("", "Add", &["m", "g"], "y", vec![]),
    ];
    let second = (0..K * N)
        .flat_map(|i| (f32::from(noise(i)) - 128.0).to_le_bytes())
        .collect();
    let all = vec![outside, scales(&[N], 1.0), tensor("second", F32, &[K, N], second)];
    let dir = model(all, nodes);
    let path = dir.path().join("in").join(MODEL);
    let mut proto = ModelProto::decode(std::fs::read(&path).unwrap().as_slice()).unwrap();
    let w = &mut proto.graph.as_mut().unwrap().initializer[0];
    std::fs::write(dir.path().join("in/other.bin"), std::mem::take(&mut w.raw_data)).unwrap();
    w.data_location = 1;
    w.external_data = vec![StringStringEntryProto {
        key: "location".to_owned(),
        value: "other.bin".to_owned(),
    }];
    std::fs::write(&path, proto.encode_to_vec()).unwrap();
    let given = result(&dir.path().join("in"));
    let summary = run(&dir).unwrap();
    let left: Vec<&str> = summary.left.iter().map(|l| l.name.as_str()).collect();
    assert_eq!((summary.weights.len(), left), (1, vec!["w"]));
    let out = dir.path().join("out");
    let model = read_back::open(&out.join(MODEL));
    assert_eq!(model.tensor("w").2, noises(K * N / 2));
    let back = dir.path().join("back");
    std::fs::create_dir(&back).unwrap();
    dequantize_into(&out, &back, &mut |_| ()).unwrap();
    for folder in [out, back] {
        let found = result(&folder);
        let off: f32 = given.iter().zip(&found).map(|(a, b)| (a - b).powi(2)).sum();
        let all: f32 = given.iter().map(|a| a * a).sum();
        assert!((off / all).sqrt() < 0.1, "{}", folder.display());
    }
}

/// `d = DequantizeLinear(w, scales)`.
fn dequantize(attributes: Vec<AttributeProto>) -> NodeProto {
    node("", "DequantizeLinear", &["w", "scales"], "d", attributes)
}

/// `y = x * DequantizeLinear(w)`, through a transpose if `w` is one.
fn dequantized(
    codes: TensorProto,
    scales: TensorProto,
    zeros: Option<TensorProto>,
    attributes: Vec<AttributeProto>,
    transposed: bool,
) -> tempfile::TempDir {
    let mut inputs = vec!["w", "scales"];
    inputs.extend(zeros.as_ref().map(|_| "zeros"));
    let mut nodes = vec![node("", "DequantizeLinear", &inputs, "d", attributes)];
    if transposed {
        nodes.push(node("", "Transpose", &["d"], "t", vec![]));
    }
    let weight = if transposed { "t" } else { "d" };
    nodes.push(node("", "MatMul", &["x", weight], "y", vec![]));
    model([codes, scales].into_iter().chain(zeros).collect(), nodes)
}

#[test]
fn dequantized_matrices_keep_their_codes() {
    let along = |axis, block| vec![int("axis", axis), int("block_size", block)];
    let w = |data_type, dims: &[usize], bits: usize| tensor("w", data_type, dims, noises(K * N * bits / 8));
    let z = |data_type, dims: &[usize], bytes: usize| Some(tensor("zeros", data_type, dims, noises(bytes)));
    // A scale for each column, for all, and for each block along K, as it is and transposed.
    let dir = dequantized(
        w(I8, &[K, N], 8),
        scales(&[N], 1.0),
        z(I8, &[N], N),
        vec![int("axis", 1)],
        false,
    );
    same(&dir, Bits::Eight, K, true, &[]);
    let dir = dequantized(
        w(I8, &[N, K], 8),
        scales(&[N], 1.0),
        None,
        vec![int("axis", 0)],
        true,
    );
    same(&dir, Bits::Eight, K, true, &[]);
    let dir = dequantized(w(U8, &[K, N], 8), scales(&[], 1.0), z(U8, &[], 1), vec![], false);
    same(&dir, Bits::Eight, K, true, &[]);
    let dir = dequantized(w(I4, &[K, N], 4), scales(&[3, N], 1.0), None, along(0, 32), false);
    same(&dir, Bits::Four, 32, true, &[]);
    let zeros = z(U4, &[3, N], 3 * N / 2);
    let dir = dequantized(
        w(U4, &[K, N], 4),
        scales(&[3, N], 1.0),
        zeros,
        along(-2, 32),
        false,
    );
    same(&dir, Bits::Four, 32, true, &[]);
    let zeros = z(U4, &[N, 6], 3 * N);
    let dir = dequantized(w(U4, &[N, K], 4), scales(&[N, 6], 1.0), zeros, along(1, 16), true);
    same(&dir, Bits::Four, 16, true, &[]);
    let dir = dequantized(w(I8, &[N, K], 8), scales(&[N, 3], 0.7), None, along(1, 32), true);
    same(&dir, Bits::Eight, 32, false, &[]);
}

#[test]
fn what_is_no_grid_along_columns_is_left() {
    let w = |name: &str| tensor(name, I8, &[K, N], noises(K * N));
    let refused = |dir: &tempfile::TempDir, values: &[&str]| {
        let error = run(dir).unwrap_err();
        assert_error(&error, ErrorKind::InvalidFile, &["\"w\""]);
        assert_carries(error, values);
    };
    let rows = dequantized(w("w"), scales(&[K], 1.0), None, vec![int("axis", 0)], false);
    refused(&rows, &["K"]);
    let attributes = vec![int("axis", 1), int("block_size", 17)];
    let across = dequantized(w("w"), scales(&[K, 2], 1.0), None, attributes, false);
    refused(&across, &["K"]);
    let attributes = vec![int("axis", 0), int("block_size", 12)];
    let odd = dequantized(w("w"), scales(&[8, N], 1.0), None, attributes, false);
    refused(&odd, &["12", "8"]);
    // Scales that another node reads stay, and so does its part of the graph.
    let nodes = vec![
        dequantize(vec![int("axis", 1)]),
        node("", "MatMul", &["x", "d"], "m", vec![]),
        node("", "Add", &["m", "scales"], "y", vec![]),
    ];
    let dir = model(vec![w("w"), scales(&[N], 1.0)], nodes);
    let mut bad = scales(&[N], 1.0);
    bad.raw_data[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    same(&dir, Bits::Eight, K, true, &["scales"]);
    let dir = dequantized(w("w"), bad, None, vec![int("axis", 1)], false);
    refused(&dir, &["0", "NaN"]);
}
