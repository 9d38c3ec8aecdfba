//! Results of nodes on the host that kernels read through views, or that are parts of something.

use super::*;
use transformer_lite::kernel;
use transformer_lite::unstable::backend::KernelCode;
use transformer_lite::unstable::backend::kernel::{
    ByLanguage, ExpandReason, Kernel, Language, Signature, TypedKernel,
};
use transformer_lite::unstable::graph::op::split::Split;
use transformer_lite::unstable::lower::{Call, LowerCx};

fn run(graph: &Arc<Graph>, given: &[(&str, HostTensor)]) {
    for device in devices() {
        let _turn = device.turn();
        let plan = Plan::compile(graph, &device.caps, &options(&[])).unwrap();
        assert!(!plan.host.is_empty(), "nothing runs on the host");
        let mut executor = Executor::new(Box::new(device.share()), graph, vec![plan]).unwrap();
        for _ in 0..2 {
            check(&mut executor, graph, given);
        }
    }
}

/// Some dispatches on the device, one after another.
fn device_work(b: &mut Build, x: ValueId) -> ValueId {
    let softmax = Softmax {
        axis: -1,
        flatten: false,
    };
    (0..3).fold(b.node(unary(Unary::Neg), &[x]), |y, _| {
        b.node(softmax.clone(), &[y])
    })
}

#[test]
fn a_host_result_is_a_part_of_a_joined_value() {
    let mut b = Build::default();
    let x = b.input("x", DType::F32, "128");
    let (host, device) = (b.node(OnHost, &[x]), b.node(unary(Unary::Relu), &[x]));
    let both = b.node(Concat { axis: 0 }, &[host, device]);
    let y = b.node(unary(Unary::Neg), &[both]);
    // Parts that all come from the host, read there only.
    let other = b.node(OnHost, &[device]);
    let parts = b.node(Concat { axis: 0 }, &[host, other]);
    let z = b.node(OnHost, &[parts]);
    run(&b.finish(&[y, z]), &[("x", random(&[128], 1))]);
}

#[test]
fn a_host_result_lives_until_its_views_are_read() {
    let mut b = Build::default();
    let x = b.input("x", DType::F32, "256");
    let host = b.node(OnHost, &[x]);
    let split = Split {
        axis: 0,
        sizes: Some(vec![128, 128]),
        parts: 2,
        uneven: false,
    };
    let list = b.ints(&[2, 128]);
    let shaped = b.node(Reshape::Reshape { allow_zero: false }, &[host, list]);
    let parts = b.nodes(split, &[host], 2);
    // Something on the device between the result and what reads it.
    let y = device_work(&mut b, x);
    let late = b.node(OnHost, &[parts[1]]);
    let sum = b.node(Pointwise::binary("Add", Binary::Add), &[late, parts[0]]);
    let late = b.node(OnHost, &[shaped]);
    run(&b.finish(&[y, sum, late]), &[("x", random(&[256], 2))]);
}

#[test]
fn outputs_that_are_views_of_inputs_and_of_host_results() {
    let mut b = Build::default();
    let x = b.input("x", DType::F32, "6 4");
    let list = b.ints(&[24]);
    let same = b.node(Reshape::Reshape { allow_zero: false }, &[x, list]);
    let host = b.node(OnHost, &[x]);
    let turned = b.node(Reshape::Reshape { allow_zero: false }, &[host, list]);
    let y = device_work(&mut b, x);
    run(&b.finish(&[same, turned, host, y]), &[("x", random(&[6, 4], 3))]);
    // Indices of what is not zero, as torch gives them: transposed.
    let mut b = Build::default();
    let x = b.input("x", DType::F32, "9");
    let at = b.node(NonZero, &[x]);
    let turned = b.node(Transpose { perm: None }, &[at]);
    run(
        &b.finish(&[turned]),
        &[(
            "x",
            HostTensor::from_f32(&[9], &[0., 1., 0., 2., 3., 0., 0., 4., 0.]).unwrap(),
        )],
    );
}

kernel! {
    static IN_BOTH: TypedKernel<Args> = "elementwise/pointwise" { count: U32 } [y: Out]
}
static IN_OPENCL_C: TypedKernel<Args> = TypedKernel::new(Kernel {
    sources: ByLanguage {
        wgsl: None,
        ..IN_BOTH.kernel.sources
    },
    ..Kernel::new("pointwise", Args::PARAMS, Args::OPERANDS)
});

/// An operator whose kernel exists in OpenCL C only.
#[derive(Clone, Debug, PartialEq)]
struct InOneLanguage;

impl Op for InOneLanguage {
    fn name(&self) -> &str {
        "InOneLanguage"
    }

    fn infer(&self, cx: &InferCx<'_>) -> Result<Vec<Fact>, OpError> {
        OnHost.infer(cx)
    }

    fn eval(&self, inputs: &[Option<&HostTensor>]) -> Result<Vec<HostTensor>, OpError> {
        OnHost.eval(inputs)
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<(), OpError> {
        let (y, count) = (cx.output(0)?, 8.into());
        cx.emit(Call::new(&IN_OPENCL_C, 8), Args { y, count })
    }
}

#[test]
fn kernel_without_source_runs_on_the_host() {
    let mut b = Build::default();
    let x = b.input("x", DType::F32, "8");
    let y = b.node(InOneLanguage, &[x]);
    let graph = b.finish(&[y]);
    let plan = |language| {
        let mut caps = fake_caps();
        caps.profile.code = KernelCode::Source(language);
        Plan::compile(&graph, &caps, &options(&[])).unwrap()
    };
    let (opencl, wgpu) = (plan(Language::OpenClC), plan(Language::Wgsl));
    assert_eq!((opencl.host.len(), opencl.steps.len()), (0, 1));
    assert_eq!((wgpu.host.len(), wgpu.steps.len()), (1, 0));
    assert!(
        matches!(&wgpu.host[0].why, HostReason::Kernel(why) if why.contains("WGSL")),
        "{:?}",
        wgpu.host[0].why
    );
    let error = opencl.kernels[0].expand(Language::Wgsl).unwrap_err();
    assert_eq!(error.reason, ExpandReason::NoSource(Language::Wgsl));
}

/// `-x` on the device, `x + d` in `f64` on the host, and what follows from it in `f32` on the
/// device again.
#[test]
fn types_that_devices_do_not_hold_stay_on_the_host() {
    let cast = |to| Pointwise {
        name: "Cast".to_owned(),
        expr: Expr::Cast(to, Box::new(Expr::Input(0))),
    };
    let mut b = Build::default();
    let (x, d) = (b.input("x", DType::F32, "n 3"), b.input("d", DType::F64, "n 3"));
    let minus = b.node(unary(Unary::Neg), &[x]);
    let wide = b.node(cast(DType::F64), &[minus]);
    let sum = b.node(Pointwise::binary("Add", Binary::Add), &[wide, d]);
    let turned = b.node(
        Transpose {
            perm: Some(vec![1, 0]),
        },
        &[sum],
    );
    let narrow = b.node(cast(DType::F32), &[turned]);
    let out = b.node(unary(Unary::Sigmoid), &[narrow]);
    let count = b.node(cast(DType::U64), &[d]);
    let graph = b.finish(&[out, sum, count]);
    let mut fused = (*graph).clone();
    Pipeline {
        passes: vec![FUSE],
        edit_limit: usize::MAX,
    }
    .run(&mut fused)
    .unwrap();
    assert_eq!(
        fused.nodes().count(),
        graph.nodes().count(),
        "nothing is joined over f64"
    );
    let plan = Plan::compile(&graph, &fake_caps(), &options(&[("n", 16)])).unwrap();
    assert_eq!((plan.host.len(), plan.steps.len()), (5, 2));
    let wide = |h: &HostStep| matches!(h.why, HostReason::Type(DType::F64 | DType::U64));
    assert!(plan.host.iter().all(wide), "{:?}", plan.host);
    for device in devices() {
        let _turn = device.turn();
        let plan = Plan::compile(&graph, &device.caps, &options(&[("n", 16)])).unwrap();
        let mut executor = Executor::new(Box::new(device.share()), &graph, vec![plan]).unwrap();
        for n in [1, 5, 16] {
            let d: Vec<f64> = (0u32..n * 3).map(|i| 1e9 + f64::from(i) / 3.0).collect();
            let rows = usize::try_from(n).unwrap();
            let d = HostTensor::from_f64(&[rows, 3], &d).unwrap();
            check(&mut executor, &graph, &[("x", random(&[rows, 3], 6)), ("d", d)]);
        }
    }
}

/// An output that is another name of a value, as exporters that put the sequence first have their
/// logits, is stored as any other.
#[test]
fn outputs_are_floats_under_any_name() {
    let mut b = Build::default();
    let x = b.input("x", DType::F32, "1 4 8");
    let square = b.node(Pointwise::binary("Mul", Binary::Mul), &[x, x]);
    let perm = Some(vec![1, 0, 2]);
    let turned = b.node(Transpose { perm }, &[square]);
    let inside = b.node(unary(Unary::Neg), &[square]);
    let last = b.node(unary(Unary::Abs), &[inside]);
    let graph = b.finish(&[turned, last]);
    let halves = Options {
        float: DType::F16,
        ..options(&[])
    };
    for device in devices() {
        let _turn = device.turn();
        // Native kernels do not compute in halves.
        if device.caps.profile.language().is_none() {
            continue;
        }
        let plan = Plan::compile(&graph, &device.caps, &halves).unwrap();
        assert!(
            plan.outputs.iter().all(|o| o.device == DType::F32),
            "{:?}",
            plan.outputs
        );
        // Two products of elements and one of their negative: the new name takes no dispatch.
        assert_eq!(plan.steps.len(), 3);
        let name = plan.outputs[0].name.clone();
        let mut executor = Executor::new(Box::new(device.share()), &graph, vec![plan]).unwrap();
        // Exact in a half; its square is not.
        let v = 1.0 + 1.0 / 1024.0;
        let given = HostTensor::from_f32(&[1, 4, 8], &[v; 32]).unwrap();
        executor.write(0, "x", &given).unwrap();
        executor.run(0, &Bindings::new()).unwrap();
        let found = executor.read(0, &name).unwrap();
        assert_eq!(found.to_f32().unwrap().as_ref(), [v * v; 32]);
    }
}
