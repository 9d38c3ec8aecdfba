//! What the pass `integer` refuses and why, and the memory that a model takes with it.

use std::path::Path;
use std::sync::Arc;
use transformer_lite::unstable::backend::Caps;
use transformer_lite::unstable::graph::pass::integer::coverage;
use transformer_lite::unstable::graph::pass::{Pipeline, Target};
use transformer_lite::unstable::graph::{Edit, Graph, derive, onnx};
use transformer_lite::unstable::plan::{Options, Plan};
use transformer_lite::unstable::quant::fixed::Arithmetic;
use transformer_lite::unstable::shape::Fact;
use transformer_lite::unstable::tensor::{DType, HostTensor};

fn model(case: &str) -> Graph {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/integer");
    onnx::import(&folder.join(case).join("model.onnx")).unwrap()
}

/// The reason why a convolution stays float if `constant` replaces its constant `name`; `None` if
/// it does not.
fn refusal(name: &str, constant: HostTensor) -> Option<String> {
    let mut graph = model("conv_1x1_per_channel");
    let value = graph.find(name).unwrap();
    Edit::new(&mut graph).set_fact(value, Fact::of(Arc::new(constant)));
    derive::derive(&mut graph).unwrap();
    let coverage = coverage(&graph, Arithmetic::Fixed).unwrap();
    let float = coverage.float_nodes.first();
    assert_eq!(coverage.nodes, usize::from(float.is_none()), "{name}");
    float.map(|n| {
        assert_eq!((n.node.as_str(), n.op.as_str()), ("conv_3", "Conv"), "{name}");
        n.reason.clone()
    })
}

fn floats(shape: &[usize], data: &[f32]) -> HostTensor {
    HostTensor::from_f32(shape, data).unwrap()
}

fn bytes(shape: &[usize], data: &[i64]) -> HostTensor {
    HostTensor::from_ints(DType::I8, shape, data).unwrap()
}

#[test]
fn constants_that_integers_cannot_hold_are_refused() {
    let scale = |s| refusal("x0.scale", floats(&[], &[s]));
    assert_eq!(scale(0.5), None);
    for bad in [0.0, -1.0, f32::NAN, f32::INFINITY, 1e-40] {
        assert!(scale(bad).unwrap().contains("a scale of"), "{bad}");
    }
    assert!(
        refusal("y0.scale", floats(&[], &[1e-30]))
            .unwrap()
            .contains("scale")
    );
    let list = |n| refusal("w.scale", floats(&[12], &[n; 12]));
    assert_eq!(list(0.25), None);
    assert!(list(0.0).unwrap().contains("a scale of 0"));
    // Weights without their zero points need 9 bits.
    let zeros = refusal("w.zero", bytes(&[12], &[127; 12])).unwrap();
    assert!(zeros.contains("zero point"), "{zeros}");
}

#[test]
fn sums_that_could_exceed_32_bits_are_refused() {
    let bias = |b: i64| {
        let list = HostTensor::from_ints(DType::I32, &[12], &[b; 12]).unwrap();
        refusal("b", list)
    };
    assert_eq!(bias(1 << 30), None);
    assert!(bias(i64::from(i32::MAX)).unwrap().contains("32 bits"));
}

#[test]
fn a_bias_of_another_scale_is_quantized_again() {
    // Doubling the scale of the bias doubles what each of its integers stands for.
    let given = |scale: f32| {
        let mut graph = model("conv_1x1_per_channel");
        let value = graph.find("b.scale").unwrap();
        let old = graph
            .fact(value)
            .unwrap()
            .as_const()
            .unwrap()
            .to_f32()
            .unwrap()
            .into_owned();
        let new: Vec<f32> = old.iter().map(|s| s * scale).collect();
        Edit::new(&mut graph).set_fact(value, Fact::of(Arc::new(floats(&[12], &new))));
        Pipeline::of(&Target::HOST).run(&mut graph).unwrap();
        let bias = graph.find("conv_3/bias").unwrap();
        graph.fact(bias).unwrap().as_const().unwrap().to_i64().unwrap()
    };
    let (once, twice) = (given(1.0), given(2.0));
    let original = model("conv_1x1_per_channel");
    let b = original.find("b").unwrap();
    let b = original.fact(b).unwrap().as_const().unwrap().to_i64().unwrap();
    for ((once, twice), b) in once.into_iter().zip(twice).zip(b) {
        assert_eq!(twice - once, b);
    }
}

/// Activations of a quantized network take a byte per element instead of four.
#[test]
fn activations_take_bytes() {
    let arena = |integer| {
        let mut graph = model("resnet8");
        let target = Target {
            integer,
            ..Target::DEVICE
        };
        Pipeline::of(&target).run(&mut graph).unwrap();
        let options = Options {
            every_on_device: true,
            ..Options::default()
        };
        let plan = Plan::compile(&graph, &Caps::generic_gpu(), &options).unwrap();
        assert_eq!(plan.host.len(), 0);
        plan.memory.arena
    };
    let (bytes, floats) = (arena(Some(Arithmetic::Float)), arena(None));
    assert!(bytes * 10 <= floats * 3, "{bytes} of {floats} bytes");
}
