//! Comparisons with values that PyTorch computed; see `data/make.py`.

use burn::tensor::{Device, Tensor, TensorData};
use serde_json::Value;
use std::collections::HashMap;
use std::path::PathBuf;
use transformer_lite::unstable::quant::fixed::Affine;
use transformer_lite_qat::fake::{Bits, Grid, fake_weights, weight_scales};
use transformer_lite_qat::network::{Network, Pass, Role, Statistics, numbers};
use transformer_lite_qat::task::classes::cross_entropy;

fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

fn json(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(data(name)).unwrap()).unwrap()
}

fn floats(v: &Value) -> Vec<f32> {
    v.as_array()
        .unwrap()
        .iter()
        .map(|v| v.as_f64().unwrap() as f32)
        .collect()
}

fn tensor(values: Vec<f32>, shape: [usize; 4]) -> Tensor<4> {
    Tensor::from_data(TensorData::new(values, shape), &Device::flex())
}

fn assert_near(found: &[f32], expected: &[f32], bound: f32, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        assert!(
            (f - e).abs() <= bound * e.abs().max(1.0),
            "{what}, element {i}: found {f}, expected {e}"
        );
    }
}

#[test]
fn fake_quantization_and_its_gradient_equal_pytorchs() {
    let cases = json("fake.json");
    let cases = cases.as_array().unwrap();
    assert_eq!(cases.len(), 30);
    for case in cases {
        let bits = Bits::try_from(u8::try_from(case["bits"].as_u64().unwrap()).unwrap()).unwrap();
        let values = floats(&case["x"]);
        let weights = case["kind"] == "weights";
        let shape = if weights {
            [4, 3, 2, 2]
        } else {
            [1, 1, 1, values.len()]
        };
        let x = tensor(values, shape).autodiff().require_grad();
        let y = if weights {
            let axis = case["axis"].as_u64().map(|a| usize::try_from(a).unwrap());
            let scales = weight_scales(&x, axis, bits, None);
            assert_near(
                &numbers(scales.clone()).unwrap(),
                &floats(&case["scales"]),
                1e-7,
                "scales",
            );
            fake_weights(x.clone(), scales, bits)
        } else {
            let scale = case["scale"].as_f64().unwrap() as f32;
            let zero = i32::try_from(case["zero"].as_i64().unwrap()).unwrap();
            Grid::with(Affine { scale, zero }, bits).fake(x.clone())
        };
        assert_near(
            &numbers(y.clone().inner()).unwrap(),
            &floats(&case["y"]),
            1e-6,
            "result",
        );
        let weight = tensor(floats(&case["weight"]), shape);
        let gradients = (y * weight).sum().backward();
        assert_near(
            &numbers(x.grad(&gradients).unwrap()).unwrap(),
            &floats(&case["gradient"]),
            1e-6,
            "gradient",
        );
    }
}

#[test]
fn a_training_step_of_a_network_has_pytorchs_gradients() {
    let expected = json("net.json");
    let network = Network::open(&data("net.onnx")).unwrap();
    assert_eq!((network.picture, network.outputs()), ([2, 8, 8], 3));
    let labels: Vec<usize> = floats(&expected["labels"]).iter().map(|v| *v as usize).collect();
    let parameters: Vec<Tensor<4>> = network
        .initial(&Device::flex())
        .unwrap()
        .into_iter()
        .zip(&network.parameters)
        .map(|(t, p)| {
            if p.role == Role::Statistic {
                t
            } else {
                t.autodiff().require_grad()
            }
        })
        .collect();
    let pass = Pass {
        parameters: &parameters,
        statistics: Statistics::Batch,
        quantization: None,
        observe: false,
    };
    let made = network
        .forward(tensor(floats(&expected["x"]), [4, 2, 8, 8]), &pass)
        .unwrap();
    assert_near(
        &numbers(made.logits.clone().inner()).unwrap(),
        &floats(&expected["logits"]),
        1e-5,
        "logits",
    );
    let (loss, _) = cross_entropy(made.logits, &labels, 3);
    assert_near(
        &numbers(loss.clone().inner()).unwrap(),
        &[expected["loss"].as_f64().unwrap() as f32],
        1e-5,
        "loss",
    );
    let gradients = loss.backward();
    let found: HashMap<&str, Vec<f32>> = network
        .parameters
        .iter()
        .zip(&parameters)
        .filter_map(|(p, t)| Some((p.name.as_str(), numbers(t.grad(&gradients)?).unwrap())))
        .collect();
    for (name, values) in expected["gradients"].as_object().unwrap() {
        assert_near(&found[name.as_str()], &floats(values), 2e-5, name);
    }
    assert_eq!(found.len(), expected["gradients"].as_object().unwrap().len());
    assert_eq!(made.statistics.len(), 4);
}
