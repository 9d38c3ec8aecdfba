//! Values without elements in some runs.

use super::{Build, devices, unary};
use transformer_lite::unstable::cancel::Cancel;
use transformer_lite::unstable::graph::Graph;
use transformer_lite::unstable::graph::op::concat::Concat;
use transformer_lite::unstable::graph::op::pointwise::{Expr, Pointwise, Unary};
use transformer_lite::unstable::graph::op::reduce::{Kind, Reduce};
use transformer_lite::unstable::runner::{Named, Runner, RunnerOptions};
use transformer_lite::unstable::tensor::{DType, HostTensor};

/// The results on every device equal those of the interpreter.
fn same(graph: &Graph, inputs: &[(&str, HostTensor)]) {
    let inputs: Vec<Named> = inputs.iter().map(|(n, t)| ((*n).to_owned(), t.clone())).collect();
    let run = |mut runner: Runner| {
        let results = runner.run(&inputs, &Cancel::default());
        results.unwrap_or_else(|e| panic!("{}", e.chain()))
    };
    let options = RunnerOptions::default();
    let expected = run(Runner::of(graph.clone(), None, &options).unwrap());
    for device in devices() {
        let _turn = device.turn();
        let found = run(Runner::of(graph.clone(), Some(Box::new(device.share())), &options).unwrap());
        assert_eq!(found, expected, "{}", device.caps.backend);
    }
}

#[test]
fn extremes_of_no_elements_fill_all_results() {
    let reduce = |kind, axis| Reduce {
        kind,
        axes: Some(vec![axis]),
        keep: false,
        noop_without_axes: false,
    };
    let mut b = Build::default();
    let z = b.input("z", DType::I64, "64");
    let x = b.input("x", DType::U64, "64 0");
    // The memory of this value is used again.
    let other = b.node(unary(Unary::Neg), &[z]);
    let sum = b.node(reduce(Kind::Sum, 0), &[other]);
    let y = b.node(reduce(Kind::Max, 1), &[x]);
    let z = HostTensor::from_i64(&[64], &[65536; 64]).unwrap();
    let x = HostTensor::from_u64(&[64, 0], &[]).unwrap();
    same(&b.finish(&[sum, y]), &[("z", z), ("x", x)]);
}

#[test]
fn parts_without_elements_may_be_last() {
    let mut b = Build::default();
    let x = b.input("x", DType::F32, "rows 512");
    let z = b.input("z", DType::I64, "1 512");
    let cast = Pointwise {
        name: "Cast".to_owned(),
        expr: Expr::Cast(DType::I64, Box::new(Expr::Input(0))),
    };
    let part = b.node(cast, &[x]);
    let all = b.node(Concat { axis: 0 }, &[z, part]);
    let y = b.node(unary(Unary::Neg), &[all]);
    let graph = b.finish(&[y]);
    let z = HostTensor::from_i64(&[1, 512], &[3; 512]).unwrap();
    for rows in [0, 2, 0] {
        let x = HostTensor::from_f32(&[rows, 512], &vec![-7.0; rows * 512]).unwrap();
        same(&graph, &[("x", x), ("z", z.clone())]);
    }
}
