//! Runs that contradict what a plan for all sizes takes for granted: the runner plans for their
//! case.

use super::{Build, devices};
use transformer_lite::unstable::cancel::Cancel;
use transformer_lite::unstable::error::ErrorKind;
use transformer_lite::unstable::graph::op::conv::Conv;
use transformer_lite::unstable::graph::op::matmul::MatMul;
use transformer_lite::unstable::graph::op::pointwise::{Binary, Pointwise};
use transformer_lite::unstable::graph::op::reshape::Reshape;
use transformer_lite::unstable::graph::op::slice::Slice;
use transformer_lite::unstable::graph::op::window::{AutoPad, Window};
use transformer_lite::unstable::graph::{Edit, Graph};
use transformer_lite::unstable::note::Note;
use transformer_lite::unstable::runner::{Named, Runner, RunnerOptions};
use transformer_lite::unstable::shape::Fact;
use transformer_lite::unstable::tensor::{DType, HostTensor};

/// A tensor that counts.
fn counting(shape: &[usize]) -> HostTensor {
    let data: Vec<f32> = (0u8..).map(f32::from).take(shape.iter().product()).collect();
    HostTensor::from_f32(shape, &data).unwrap()
}

fn given(all: &[(&str, &[usize])]) -> Vec<Named> {
    let named = |(name, shape): &(&str, &[usize])| ((*name).to_owned(), counting(shape));
    all.iter().map(named).collect()
}

/// Runs `each` with a runner of `graph` on every device and on the interpreter.
fn everywhere(graph: &Graph, each: impl Fn(&mut Runner)) {
    let options = RunnerOptions::default();
    each(&mut Runner::of(graph.clone(), None, &options).unwrap());
    for device in devices() {
        let _turn = device.turn();
        each(&mut Runner::of(graph.clone(), Some(Box::new(device.share())), &options).unwrap());
    }
}

fn run(runner: &mut Runner, inputs: &[Named]) -> HostTensor {
    let results = runner.run(inputs, &Cancel::default());
    results.unwrap_or_else(|e| panic!("{}", e.chain())).remove(0).1
}

#[test]
fn symbols_are_broadcast() {
    let mut b = Build::default();
    let (x, z) = (b.input("x", DType::F32, "n 3"), b.input("z", DType::F32, "m 3"));
    let y = b.node(Pointwise::binary("Add", Binary::Add), &[x, z]);
    let graph = b.underived(&[y]);
    everywhere(&graph, |runner| {
        for (n, m, all) in [(2, 2, 2), (4, 1, 4), (1, 3, 3), (5, 1, 5), (1, 1, 1), (2, 2, 2)] {
            let y = run(runner, &given(&[("x", &[n, 3]), ("z", &[m, 3])]));
            let expected: Vec<f32> = (0u8..3 * all)
                .map(|i| {
                    let at = |rows: usize| f32::from(if rows == 1 { i % 3 } else { i });
                    at(n) + at(m)
                })
                .collect();
            assert_eq!(y.shape(), [usize::from(all), 3]);
            assert_eq!(*y.f32s().unwrap(), expected, "{n} and {m}");
        }
        let error = runner.run(&given(&[("x", &[2, 3]), ("z", &[4, 3])]), &Cancel::default());
        assert_eq!(error.unwrap_err().kind(), ErrorKind::ShapeMismatch);
        let y = run(runner, &given(&[("x", &[1, 3]), ("z", &[1, 3])]));
        assert_eq!(*y.f32s().unwrap(), [0.0, 2.0, 4.0], "after an error");
    });
}

#[test]
fn the_first_row_is_broadcast_over_all() {
    let mut b = Build::default();
    let x = b.input("x", DType::F32, "b 2");
    let ends = [b.ints(&[0]), b.ints(&[1])];
    let first = b.node(Slice, &[x, ends[0], ends[1]]);
    let y = b.node(Pointwise::binary("Sub", Binary::Sub), &[x, first]);
    let graph = b.underived(&[y]);
    everywhere(&graph, |runner| {
        for rows in [1u8, 3, 2] {
            let y = run(runner, &given(&[("x", &[rows.into(), 2])]));
            let expected: Vec<f32> = (0..2 * rows).map(|i| f32::from(i - i % 2)).collect();
            assert_eq!(*y.f32s().unwrap(), expected, "{rows} rows");
        }
    });
}

#[test]
fn names_of_sizes_may_be_wrong() {
    let mut b = Build::default();
    // Nothing determines `k` but its half.
    let (x, z) = (b.input("x", DType::F32, "n k/2"), b.input("z", DType::F32, "n 2"));
    let y = b.node(MatMul { trans_b: false }, &[x, z]);
    let graph = b.underived(&[y]);
    everywhere(&graph, |runner| {
        let y = run(runner, &given(&[("x", &[2, 2]), ("z", &[2, 2])]));
        assert_eq!(*y.f32s().unwrap(), [2.0, 3.0, 6.0, 11.0]);
        assert_eq!(runner.notes().count(), 0, "no size differs");
        let y = run(runner, &given(&[("x", &[2, 3]), ("z", &[3, 2])]));
        assert_eq!(*y.f32s().unwrap(), [10.0, 13.0, 28.0, 40.0]);
        let told = |n: &Note| matches!(n, Note::SizesDiffer { names } if *names == ["`n`"]);
        assert_eq!(runner.notes().filter(|n| told(n)).count(), 1);
        let y = run(runner, &given(&[("x", &[1, 2]), ("z", &[2, 2])]));
        assert_eq!(*y.f32s().unwrap(), [2.0, 3.0]);
        assert_eq!(runner.notes().filter(|n| told(n)).count(), 1, "said once");
    });
}

#[test]
fn windows_and_ranks_are_those_of_the_run() {
    let mut b = Build::default();
    let (x, w) = (
        b.input("x", DType::F32, "n c l"),
        b.input("w", DType::F32, "o c k"),
    );
    let window = Window {
        kernel: Vec::new(),
        strides: Vec::new(),
        dilations: Vec::new(),
        pads: Vec::new(),
        auto_pad: AutoPad::Explicit,
        ceil: false,
    };
    let conv = Conv { window, group: 1 };
    let y = b.node(conv, &[x, w]);
    let graph = b.underived(&[y]);
    everywhere(&graph, |runner| {
        let y = run(runner, &given(&[("x", &[1, 1, 4]), ("w", &[1, 1, 2])]));
        assert_eq!(*y.f32s().unwrap(), [1.0, 2.0, 3.0]);
        let y = run(runner, &given(&[("x", &[1, 1, 4]), ("w", &[1, 1, 3])]));
        assert_eq!(*y.f32s().unwrap(), [5.0, 8.0]);
    });

    let mut b = Build::default();
    let (x, z) = (b.input("x", DType::F32, "2"), b.input("z", DType::F32, "2"));
    let y = b.node(Pointwise::binary("Mul", Binary::Mul), &[x, z]);
    let mut graph = b.underived(&[y]);
    let x = graph.input("x").unwrap();
    let mut edit = Edit::new(&mut graph);
    edit.forget_shape(x, DType::F32);
    everywhere(&graph, |runner| {
        for shape in [&[2usize][..], &[3, 2], &[1, 1, 2], &[]] {
            let y = run(runner, &given(&[("x", shape), ("z", &[2])]));
            let last = y.shape().len() - 1;
            assert_eq!((y.shape()[last], last), (2, shape.len().max(1) - 1), "{shape:?}");
        }
        let wrong = [
            ("x".to_owned(), HostTensor::from_i64(&[2], &[1, 2]).unwrap()),
            given(&[("z", &[2])]).remove(0),
        ];
        assert!(runner.run(&wrong, &Cancel::default()).is_err());
    });
}

#[test]
fn a_shape_may_be_an_input() {
    let mut b = Build::default();
    let (x, s) = (b.input("x", DType::F32, "n"), b.input("s", DType::I64, "r"));
    let y = b.node(Reshape::Reshape { allow_zero: false }, &[x, s]);
    let graph = b.underived(&[y]);
    everywhere(&graph, |runner| {
        for shape in [&[2, 3][..], &[3, 2], &[6], &[1, 2, 3]] {
            let list = HostTensor::from_i64(&[shape.len()], shape).unwrap();
            let inputs = [given(&[("x", &[6])]), vec![("s".to_owned(), list)]].concat();
            let y = run(runner, &inputs);
            let found: Vec<i64> = y.shape().iter().map(|n| i64::try_from(*n).unwrap()).collect();
            assert_eq!(found, shape);
        }
    });
}

#[test]
fn initializers_may_be_replaced() {
    let mut b = Build::default();
    let x = b.input("x", DType::F32, "n");
    let y = b.input("w", DType::F32, "1");
    let z = b.node(Pointwise::binary("Add", Binary::Add), &[x, y]);
    let mut graph = b.underived(&[z]);
    let w = graph.input("w").unwrap();
    let mut edit = Edit::new(&mut graph);
    edit.remove_input(w);
    edit.set_fact(
        w,
        Fact::of(std::sync::Arc::new(HostTensor::from_f32(&[1], &[10.0]).unwrap())),
    );
    edit.add_default(w);
    everywhere(&graph, |runner| {
        let x = given(&[("x", &[2])]);
        assert_eq!(*run(runner, &x).f32s().unwrap(), [10.0, 11.0]);
        let five = ("w".to_owned(), HostTensor::from_f32(&[1], &[5.0]).unwrap());
        let replaced = [x.clone(), vec![five]].concat();
        assert_eq!(*run(runner, &replaced).f32s().unwrap(), [5.0, 6.0]);
        assert_eq!(*run(runner, &x).f32s().unwrap(), [10.0, 11.0]);
    });
}
