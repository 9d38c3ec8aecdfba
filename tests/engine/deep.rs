//! Graphs that are deep or wide: nothing recurses over them, and planning them ends soon.

use std::sync::Arc;
use transformer_lite::unstable::backend::Caps;
use transformer_lite::unstable::graph::op::concat::Concat;
use transformer_lite::unstable::graph::op::log_softmax::LogSoftmax;
use transformer_lite::unstable::graph::op::matmul::MatMul;
use transformer_lite::unstable::graph::op::pointwise::{Binary, Pointwise};
use transformer_lite::unstable::graph::op::softmax::Softmax;
use transformer_lite::unstable::graph::pass::{Pipeline, Target};
use transformer_lite::unstable::graph::{Edit, Graph, Op, ValueId};
use transformer_lite::unstable::plan::{Options, Plan};
use transformer_lite::unstable::shape::{Fact, Shape};
use transformer_lite::unstable::tensor::{DType, HostTensor};

/// Calls `f` on a thread with a stack that a recursion over thousands of nodes overflows.
fn on_a_small_stack(f: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(1 << 19);
        thread.spawn_scoped(scope, f).unwrap().join().unwrap();
    });
}

fn input(edit: &mut Edit<'_>, name: &str, sizes: &[usize]) -> ValueId {
    let v = edit.add_value(name, Some(Fact::new(DType::F32, Shape::fixed(sizes))));
    edit.add_input(v);
    v
}

fn node(edit: &mut Edit<'_>, op: impl Op + 'static, inputs: &[ValueId]) -> ValueId {
    let y = edit.add_value("y", None);
    let inputs = inputs.iter().copied().map(Some).collect();
    edit.add_node("node", vec!["node".to_owned()], Box::new(op), inputs, vec![y]);
    y
}

fn softmax() -> Softmax {
    Softmax {
        axis: -1,
        flatten: false,
    }
}

fn planned(graph: &mut Graph) -> Plan {
    Pipeline::of(&Target::DEVICE).run(graph).unwrap();
    Plan::compile(graph, &Caps::generic_gpu(), &Options::default()).unwrap()
}

#[test]
fn values_inside_values_may_be_many() {
    const DEEP: usize = 3000;
    on_a_small_stack(|| {
        let mut graph = Graph::default();
        let mut edit = Edit::new(&mut graph);
        let x = input(&mut edit, "x", &[64, 64]);
        let mut y = node(&mut edit, softmax(), &[x]);
        for i in 0..DEEP {
            let part = match i % 2 {
                0 => node(&mut edit, softmax(), &[x]),
                _ => node(
                    &mut edit,
                    LogSoftmax {
                        hard: false,
                        axis: -1,
                        flatten: false,
                    },
                    &[x],
                ),
            };
            y = node(&mut edit, Concat { axis: 0 }, &[y, part]);
        }
        edit.add_output(y);
        let plan = planned(&mut graph);
        // Every concatenation is a part of the next one.
        let whole = u64::try_from((DEEP + 1) * 64 * 64 * 4).unwrap();
        assert!(plan.memory.arena < whole + whole / 2, "{}", plan.memory.arena);
    });
}

#[test]
fn scales_before_a_softmax_may_be_many() {
    on_a_small_stack(|| {
        let mut graph = Graph::default();
        let mut edit = Edit::new(&mut graph);
        let mut x = input(&mut edit, "x", &[1, 2, 4, 4]);
        let v = input(&mut edit, "v", &[1, 2, 4, 8]);
        let scalar = HostTensor::from_f32(&[], &[1.5]).unwrap();
        let scale = edit.add_const("scale", Arc::new(scalar));
        for _ in 0..6000 {
            x = node(&mut edit, Pointwise::binary("Mul", Binary::Mul), &[x, scale]);
        }
        let weights = node(&mut edit, softmax(), &[x]);
        let y = node(&mut edit, MatMul { trans_b: false }, &[weights, v]);
        edit.add_output(y);
        Pipeline::of(&Target::DEVICE).run(&mut graph).unwrap();
    });
}

#[test]
fn outputs_may_be_many() {
    let mut graph = Graph::default();
    let mut edit = Edit::new(&mut graph);
    let x = input(&mut edit, "x", &[4]);
    for i in 0..4000u16 {
        let scalar = HostTensor::from_f32(&[], &[f32::from(i)]).unwrap();
        let scale = edit.add_const("scale", Arc::new(scalar));
        let y = node(&mut edit, Pointwise::binary("Mul", Binary::Mul), &[x, scale]);
        edit.add_output(y);
    }
    let plan = planned(&mut graph);
    assert_eq!((plan.steps.len(), plan.outputs.len()), (4000, 4000));
}
