//! What a plan or an import refuses instead of computing something else.

use std::sync::Arc;
use tlite_testing::assert_carries;
use transformer_lite::unstable::backend::{Caps, DeviceKind};
use transformer_lite::unstable::error::ErrorKind;
use transformer_lite::unstable::graph::op::concat::Concat;
use transformer_lite::unstable::graph::op::conv::Conv;
use transformer_lite::unstable::graph::op::expand::Expand;
use transformer_lite::unstable::graph::op::gather::Gather;
use transformer_lite::unstable::graph::op::matmul::MatMul;
use transformer_lite::unstable::graph::op::one_hot::OneHot;
use transformer_lite::unstable::graph::op::pointwise::{Binary, Pointwise};
use transformer_lite::unstable::graph::op::slice::Slice;
use transformer_lite::unstable::graph::op::softmax::Softmax;
use transformer_lite::unstable::graph::op::tile::Tile;
use transformer_lite::unstable::graph::op::window::Window;
use transformer_lite::unstable::graph::{Edit, Graph, Op, ValueId, derive};
use transformer_lite::unstable::plan::{LaunchState, Options, Plan};
use transformer_lite::unstable::shape::{Bindings, Dim, Fact, Shape};
use transformer_lite::unstable::tensor::{DType, HostTensor};

fn caps() -> Caps {
    let caps = Caps {
        kind: DeviceKind::Discrete,
        params_align: 256,
        max_buffer_bytes: 1 << 30,
        ..Caps::generic_gpu()
    };
    caps.with(|device| {
        device.dedicated_memory = true;
        device.view_align = 256;
        device.max_workgroup = 256;
    })
}

fn list(edit: &mut Edit<'_>, name: &str, data: &[i64]) -> ValueId {
    edit.add_const(name, Arc::new(HostTensor::from_i64(&[data.len()], data).unwrap()))
}

fn options(bounds: &[(&str, i64)]) -> Options {
    let mut all = Bindings::new();
    for (name, v) in bounds {
        all.set(&transformer_lite::unstable::shape::Symbol::new(name), *v);
    }
    Options {
        float: DType::F16,
        bounds: all,
        ..Options::default()
    }
}

/// `x[:, from..to]` of `x [2, s]`, planned for up to 64 columns.
fn sliced(from: i64, to: i64) -> (Plan, Shape) {
    let mut graph = Graph::default();
    let mut edit = Edit::new(&mut graph);
    let dims = vec![Dim::from(2), Dim::symbol("s")];
    let x = edit.add_value("x", Some(Fact::new(DType::F32, Shape(dims))));
    edit.add_input(x);
    let (from, to, axes) = (
        list(&mut edit, "from", &[from]),
        list(&mut edit, "to", &[to]),
        list(&mut edit, "axes", &[1]),
    );
    let y = edit.add_value("y", None);
    let inputs = [x, from, to, axes].map(Some).to_vec();
    edit.add_node("slice", Vec::new(), Box::new(Slice), inputs, vec![y]);
    edit.add_output(y);
    derive::derive(&mut graph).unwrap();
    let shape = graph.fact(y).unwrap().shape.clone();
    (
        Plan::compile(&graph, &caps(), &options(&[("s", 64)])).unwrap(),
        shape,
    )
}

#[test]
fn slices_end_with_their_operand() {
    let cases = [
        (0, 10, [(5, 5), (30, 10)]),
        (-5, i64::MAX, [(3, 3), (30, 5)]),
        // Columns 2 to the last but one: of two, none.
        (2, -1, [(5, 2), (2, 0)]),
        (-1, i64::MAX, [(0, 0), (5, 1)]),
    ];
    for (from, to, sizes) in cases {
        let (plan, shape) = sliced(from, to);
        for (s, expected) in sizes {
            let bindings = Bindings::from([("s", s)]);
            assert_eq!(
                shape.eval(&bindings).unwrap(),
                [2, expected],
                "x[:, {from}:{to}] of {s} columns"
            );
            plan.bind(&bindings, &mut LaunchState::default()).unwrap();
        }
    }
    let (plan, _) = sliced(2, -1);
    let bind = |s| plan.bind(&Bindings::from([("s", s)]), &mut LaunchState::default());
    bind(5).unwrap();
    assert_carries(bind(65).unwrap_err(), &["s", "65", "64"]);
}

#[test]
fn a_flip_of_nothing_is_nothing() {
    let x = HostTensor::zeros(DType::F32, &[0]).unwrap();
    let list = |v: i64| HostTensor::from_i64(&[1], &[v]).unwrap();
    let (from, to, axes, steps) = (list(-1), list(i64::MIN), list(0), list(-1));
    let inputs = [Some(&x), Some(&from), Some(&to), Some(&axes), Some(&steps)];
    assert_eq!(Slice.eval(&inputs).unwrap()[0].shape(), [0]);
}

#[test]
fn tensors_without_elements_cost_nothing() {
    let far = 1usize << 40;
    let tensor = |shape: &[usize]| HostTensor::zeros(DType::F32, shape).unwrap();
    let x = tensor(&[far, 0, 2]);
    let run = |op: &dyn Op, inputs: &[&HostTensor]| {
        let inputs: Vec<Option<&HostTensor>> = inputs.iter().copied().map(Some).collect();
        op.run(&inputs).unwrap()[0].shape().to_vec()
    };
    assert_eq!(
        run(
            &Softmax {
                axis: -1,
                flatten: false
            },
            &[&x]
        ),
        [far, 0, 2]
    );
    assert_eq!(run(&Concat { axis: 0 }, &[&x, &x]), [2 * far, 0, 2]);
    let at = HostTensor::from_i64(&[1], &[1]).unwrap();
    assert_eq!(run(&Gather { axis: 2 }, &[&x, &at]), [far, 0, 1]);
    let pow = Pointwise::binary("Add", Binary::Add);
    assert_eq!(run(&pow, &[&x, &x]), [far, 0, 2]);
}

#[test]
fn what_no_memory_holds_is_an_error() {
    let x = HostTensor::from_f32(&[1], &[1.0]).unwrap();
    let far = HostTensor::from_i64(&[1], &[1 << 50]).unwrap();
    let values = HostTensor::from_f32(&[2], &[0.0, 1.0]).unwrap();
    let index = HostTensor::from_i64(&[1], &[0]).unwrap();
    assert!(Tile.eval(&[Some(&x), Some(&far)]).is_err());
    assert!(Expand.eval(&[Some(&x), Some(&far)]).is_err());
    assert!(
        OneHot { axis: -1 }
            .eval(&[Some(&index), Some(&far), Some(&values)])
            .is_err()
    );
}

#[test]
fn an_output_that_is_a_constant_needs_no_run() {
    let mut graph = Graph::default();
    let mut edit = Edit::new(&mut graph);
    let sum = HostTensor::from_f32(&[2], &[2.0, 4.0]).unwrap();
    let one = edit.add_const("one", Arc::new(HostTensor::from_f32(&[2], &[1.0, 2.0]).unwrap()));
    let y = edit.add_value("total", None);
    let op = Pointwise::binary("Add", Binary::Add);
    edit.add_node(
        "add",
        Vec::new(),
        Box::new(op),
        vec![Some(one), Some(one)],
        vec![y],
    );
    edit.add_output(y);
    derive::derive(&mut graph).unwrap();
    let plan = Plan::compile(&graph, &caps(), &options(&[])).unwrap();
    assert!(plan.steps.is_empty() && plan.host.is_empty());
    assert_eq!(plan.output("total").unwrap().constant.as_deref(), Some(&sum));
}

#[test]
fn hostile_expressions_end_soon() {
    let text: Vec<String> = (0..30).map(|i| format!("(a{i}+b{i})")).collect();
    assert!(Dim::parse(&text.join("*")).is_err());
}

/// A plan of an operator over inputs of these shapes, for a GPU with or without fast local memory.
fn planned(op: impl Op + 'static, shapes: &[&[Dim]], bounds: &[(&str, i64)], fast_local: bool) -> Plan {
    let mut graph = Graph::default();
    let mut edit = Edit::new(&mut graph);
    let mut inputs = Vec::new();
    for (i, shape) in shapes.iter().enumerate() {
        let x = edit.add_value(
            &format!("x{i}"),
            Some(Fact::new(DType::F32, Shape(shape.to_vec()))),
        );
        edit.add_input(x);
        inputs.push(Some(x));
    }
    let y = edit.add_value("y", None);
    edit.add_node("node", Vec::new(), Box::new(op), inputs, vec![y]);
    edit.add_output(y);
    derive::derive(&mut graph).unwrap();
    let caps = caps().with(|device| device.fast_local = fast_local);
    Plan::compile(&graph, &caps, &options(bounds)).unwrap()
}

#[test]
fn batches_beyond_a_grid_are_computed_in_rounds() {
    let many = |z: i64, shape: [i64; 2]| [z.into(), shape[0].into(), shape[1].into()];
    for z in [65_535, 65_536, 70_000, 200_000] {
        for fast_local in [false, true] {
            for columns in [7, 8] {
                let op = MatMul { trans_b: false };
                let plan = planned(op, &[&many(z, [5, 8]), &many(z, [8, columns])], &[], fast_local);
                let mut bound = LaunchState::default();
                plan.bind(&Bindings::new(), &mut bound).unwrap();
                let grids = &bound.launch.grids;
                assert!(
                    grids.iter().flatten().all(|n| *n <= caps().profile.max_grid),
                    "{z} batches of {columns} columns, fast local memory {fast_local}: {grids:?}"
                );
            }
        }
    }
    let (n, images) = (Dim::symbol("n"), |n: &Dim| {
        vec![n.clone(), 64.into(), 3.into(), 3.into()]
    });
    let weights = [64, 16, 3, 3].map(Dim::from);
    let conv = Conv {
        window: Window::new(&[3, 3]),
        group: 4,
    };
    let plan = planned(conv, &[&images(&n), &weights], &[("n", 20_000)], true);
    assert!(plan.kernels.iter().any(|k| k.kernel.name == "conv_tiled"));
    let mut bound = LaunchState::default();
    for (n, z) in [(10, 40), (20_000, 65_535)] {
        plan.bind(&Bindings::from([("n", n)]), &mut bound).unwrap();
        assert_eq!(bound.launch.grids[0][2], z);
    }
}

#[test]
fn convolutions_of_more_elements_than_kernels_count_are_refused() {
    let images = [Dim::symbol("n"), 64.into(), 512.into(), 512.into()];
    let weights = [64, 64, 3, 3].map(Dim::from);
    let conv = Conv {
        window: Window::new(&[3, 3]),
        group: 1,
    };
    let plan = planned(conv, &[&images, &weights], &[("n", 300)], true);
    assert!(plan.kernels.iter().any(|k| k.kernel.name == "conv_tiled"));
    let bind = |n| plan.bind(&Bindings::from([("n", n)]), &mut LaunchState::default());
    // 255 images are below 2^32 elements, 129 above 2^31.
    bind(129).unwrap();
    bind(255).unwrap();
    let e = bind(256).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::ShapeMismatch, "{e}");
    assert_carries(e, &["32", "n = 256"]);
}
