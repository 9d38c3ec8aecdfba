//! Forward passes equal those of the engine.

use burn::tensor::{Device, Tensor, TensorData};
use std::path::Path;
use transformer_lite::unstable::cancel::Cancel;
use transformer_lite::unstable::error::Stage;
use transformer_lite::unstable::graph::onnx::write::{Attr, ModelWriter, NodeSpec};
use transformer_lite::unstable::runner::{Runner, RunnerOptions};
use transformer_lite::unstable::tensor::{DType, HostTensor};
use transformer_lite_qat::arch::{Activation, Architecture, Design, write};
use transformer_lite_qat::network::{Network, Pass, Statistics, numbers};

fn noise(count: usize) -> Vec<f32> {
    (0..count)
        .map(|i| ((i * 2_654_435_761) % 1000) as f32 / 500.0 - 1.0)
        .collect()
}

/// Compares the outputs of a model for three pictures.
fn check(path: &Path) {
    let network = Network::open(path).unwrap();
    let [c, h, w] = network.picture;
    let x = noise(3 * c * h * w);
    let parameters = network.initial(&Device::flex()).unwrap();
    let pass = Pass {
        parameters: &parameters,
        statistics: Statistics::Frozen,
        quantization: None,
        observe: false,
    };
    let batch = Tensor::from_data(TensorData::new(x.clone(), [3, c, h, w]), &Device::flex());
    let found = numbers(network.forward(batch, &pass).unwrap().logits).unwrap();
    let mut runner = Runner::load(path, None, &RunnerOptions::default()).unwrap();
    let x = HostTensor::from_f32(&[3, c, h, w], &x).unwrap();
    let expected = runner
        .run(&[(network.input_name.clone(), x)], &Cancel::default())
        .unwrap();
    let expected = expected[0].1.to_f32().unwrap();
    let largest = expected.iter().fold(0f32, |a, b| a.max(b.abs()));
    assert_eq!(found.len(), expected.len());
    for (f, e) in found.iter().zip(expected.iter()) {
        assert!((f - e).abs() <= 1e-4 * largest, "found {f}, expected {e}");
    }
}

#[test]
fn built_in_networks_compute_as_the_engine() {
    use Architecture::{Lenet, MobilenetV1, Resnet8, Resnet20, Resnet32, Ssdlite};
    for (architecture, resolution) in [
        (Lenet, 28),
        (Resnet8, 16),
        (Resnet20, 8),
        (Resnet32, 8),
        (MobilenetV1, 72),
        (Ssdlite, 40),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let design = Design {
            architecture,
            resolution,
            channels: 3,
            classes: 5,
            width: 0.25,
            activation: if resolution > 16 {
                Activation::Relu6
            } else {
                Activation::Relu
            },
            seed: 3,
        };
        let output = folder.path().join("net");
        write(&design, &output, None).unwrap();
        check(&output.join("model.onnx"));
        let copy = folder.path().join("copy");
        let counts = write(
            &Design {
                seed: 4,
                classes: 7,
                ..design
            },
            &copy,
            Some(&output),
        )
        .unwrap();
        // Weights and bias of one classifier, or of two heads.
        let other = if architecture == Ssdlite { 4 } else { 2 };
        assert_eq!(counts[0] + other, counts[1], "all other weights are copied");
    }
}

/// A model that is written node by node; each node reads values by name.
struct Maker(ModelWriter, usize);

impl Maker {
    fn constant(&mut self, name: &str, shape: &[usize]) {
        let values = noise(shape.iter().product());
        self.0
            .add_constant(name, &HostTensor::from_f32(shape, &values).unwrap())
            .unwrap();
    }

    fn node(&mut self, op: &str, inputs: &[&str], output: &str, attributes: &[(&str, Attr)]) {
        self.1 += 1;
        let name = format!("{op}{}", self.1);
        let outputs = [output];
        let spec = NodeSpec {
            domain: "",
            op,
            name: &name,
            inputs,
            outputs: &outputs,
            attributes,
        };
        self.0.add_node(spec).unwrap();
    }
}

#[test]
fn operators_compute_as_the_engine() {
    let folder = tempfile::tempdir().unwrap();
    let mut m = Maker(
        ModelWriter::without_data(Stage::Convert, folder.path(), "model.onnx", "g"),
        0,
    );
    m.0.opset("", 17);
    m.0.add_input("x", DType::F32, &["n".into(), 2.into(), 9.into(), 8.into()])
        .unwrap();
    m.0.add_output("y", DType::F32, &["n".into(), 6.into()]).unwrap();
    let ints = |v: &[i64]| Attr::Ints(v.to_vec());
    m.constant("w1", &[4, 1, 3, 2]);
    m.constant("b1", &[4]);
    m.node(
        "Conv",
        &["x", "w1", "b1"],
        "c",
        &[
            ("group", Attr::Int(2)),
            ("pads", ints(&[1, 0, 0, 1])),
            ("strides", ints(&[2, 1])),
            ("dilations", ints(&[1, 2])),
        ],
    );
    m.node("HardSigmoid", &["c"], "gate", &[("alpha", Attr::Float(0.3))]);
    m.node("Mul", &["c", "gate"], "m", &[]);
    for (op, out) in [
        ("Sigmoid", "s"),
        ("HardSwish", "h"),
        ("Tanh", "t"),
        ("LeakyRelu", "l"),
        ("Elu", "e"),
    ] {
        m.node(op, &["m"], out, &[]);
    }
    m.node(
        "Concat",
        &["s", "h", "t", "l", "e"],
        "k",
        &[("axis", Attr::Int(-3))],
    );
    m.node(
        "MaxPool",
        &["k"],
        "p",
        &[
            ("kernel_shape", ints(&[2, 3])),
            ("pads", ints(&[0, 1, 1, 1])),
            ("strides", ints(&[1, 2])),
        ],
    );
    m.node(
        "AveragePool",
        &["p"],
        "a",
        &[("kernel_shape", ints(&[2, 2])), ("pads", ints(&[0, 1, 1, 0]))],
    );
    m.constant("w2", &[20, 3, 2, 2]);
    m.node(
        "ConvTranspose",
        &["a", "w2"],
        "d",
        &[("strides", ints(&[2, 2])), ("output_padding", ints(&[1, 0]))],
    );
    for part in ["scale", "bias", "mean"] {
        m.constant(part, &[3]);
    }
    m.0.add_constant("variance", &HostTensor::from_f32(&[3], &[0.5, 1.0, 2.0]).unwrap())
        .unwrap();
    m.node(
        "BatchNormalization",
        &["d", "scale", "bias", "mean", "variance"],
        "z",
        &[],
    );
    m.node("Transpose", &["z"], "r", &[("perm", ints(&[0, 2, 3, 1]))]);
    m.node(
        "ReduceMean",
        &["r"],
        "g",
        &[("axes", ints(&[1])), ("keepdims", Attr::Int(0))],
    );
    m.constant("w3", &[3, 6]);
    m.node("MatMul", &["g", "w3"], "u", &[]);
    m.node(
        "ReduceMean",
        &["u"],
        "v",
        &[("axes", ints(&[1])), ("keepdims", Attr::Int(0))],
    );
    m.node("Softmax", &["v"], "w", &[("axis", Attr::Int(-1))]);
    m.node("Sub", &["v", "w"], "y", &[]);
    m.0.finish().unwrap();
    check(&folder.path().join("model.onnx"));
}
