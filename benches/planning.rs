//! Passes and planning of graphs with very many nodes: the time per node must not grow with their
//! number.
//!
//! `cargo bench --bench planning`. Reading a file and printing a report are not measured.

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use std::sync::Arc;
use transformer_lite::unstable::backend::Caps;
use transformer_lite::unstable::graph::op::pointwise::{Binary, Expr, Pointwise, Unary};
use transformer_lite::unstable::graph::op::softmax::Softmax;
use transformer_lite::unstable::graph::pass::{Pipeline, Target};
use transformer_lite::unstable::graph::{Edit, Graph, Op, ValueId};
use transformer_lite::unstable::plan::{Options, Plan};
use transformer_lite::unstable::shape::{Bindings, Dim, Fact, Shape};
use transformer_lite::unstable::tensor::{DType, HostTensor};

const NODES: [usize; 3] = [2_500, 5_000, 10_000];

fn input(edit: &mut Edit<'_>) -> ValueId {
    let shape = Shape(vec![Dim::symbol("n"), 4.into()]);
    let x = edit.add_value("x", Some(Fact::new(DType::F32, shape)));
    edit.add_input(x);
    x
}

fn node(edit: &mut Edit<'_>, i: usize, op: impl Op + 'static, inputs: &[ValueId]) -> ValueId {
    let name = format!("y{i}");
    let y = edit.add_value(&name, None);
    let inputs = inputs.iter().copied().map(Some).collect();
    edit.add_node(&name, vec![name.clone()], Box::new(op), inputs, vec![y]);
    y
}

fn scale(edit: &mut Edit<'_>, i: usize) -> ValueId {
    let bits = u32::try_from(i).expect("a small number");
    let tensor = HostTensor::from_f32(&[4], &[f32::from_bits(bits); 4]).expect("a small tensor");
    edit.add_const(&format!("w{i}"), Arc::new(tensor))
}

/// Each node reads the result of the previous one.
fn chain(nodes: usize) -> Graph {
    let mut graph = Graph::default();
    let mut edit = Edit::new(&mut graph);
    let mut x = input(&mut edit);
    for i in 0..nodes {
        let f = if i % 2 == 0 { Unary::Neg } else { Unary::Relu };
        let op = Pointwise {
            name: format!("{f:?}"),
            expr: Expr::Unary(f, Box::new(Expr::Input(0))),
        };
        x = node(&mut edit, i, op, &[x]);
    }
    edit.add_output(x);
    graph
}

/// Each node reads the input and a constant of its own; all results are outputs.
fn wide(nodes: usize) -> Graph {
    let mut graph = Graph::default();
    let mut edit = Edit::new(&mut graph);
    let x = input(&mut edit);
    for i in 0..nodes {
        let w = scale(&mut edit, i);
        let y = node(&mut edit, i, Pointwise::binary("Mul", Binary::Mul), &[x, w]);
        edit.add_output(y);
    }
    graph
}

/// Operators that no pass merges, each followed by a scale.
fn scaled(nodes: usize) -> Graph {
    let mut graph = Graph::default();
    let mut edit = Edit::new(&mut graph);
    let mut x = input(&mut edit);
    for i in (0..nodes).step_by(2) {
        let op = Softmax {
            axis: -1,
            flatten: false,
        };
        let y = node(&mut edit, i, op, &[x]);
        let w = scale(&mut edit, i);
        x = node(&mut edit, i + 1, Pointwise::binary("Mul", Binary::Mul), &[y, w]);
    }
    edit.add_output(x);
    graph
}

fn plan(graph: &mut Graph) -> Plan {
    Pipeline::of(&Target::DEVICE).run(graph).expect("passes");
    let options = Options {
        bounds: Bindings::from([("n", 512)]),
        ..Options::default()
    };
    Plan::compile(graph, &Caps::generic_gpu(), &options).expect("a plan")
}

fn benches(c: &mut Criterion) {
    type Make = fn(usize) -> Graph;
    let kinds: [(&str, Make); 3] = [("chain", chain), ("wide", wide), ("scaled", scaled)];
    for (name, make) in kinds {
        let mut group = c.benchmark_group(format!("planning/{name}"));
        group.sample_size(10);
        for nodes in NODES {
            let graph = make(nodes);
            group.throughput(criterion::Throughput::Elements(graph.nodes().count() as u64));
            group.bench_with_input(BenchmarkId::from_parameter(nodes), &graph, |b, graph| {
                b.iter_batched_ref(|| graph.clone(), plan, BatchSize::LargeInput);
            });
        }
    }
}

criterion_group!(all, benches);
criterion_main!(all);
