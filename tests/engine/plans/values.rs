//! Plans that a runner makes for the values of small inputs.

use super::{Build, devices};
use std::sync::Arc;
use transformer_lite::unstable::cancel::Cancel;
use transformer_lite::unstable::graph::op::concat::Concat;
use transformer_lite::unstable::graph::op::reduce::{Kind, Reduce};
use transformer_lite::unstable::graph::op::resize::{Coordinates, Mode, Nearest, Resize};
use transformer_lite::unstable::graph::op::slice::Slice;
use transformer_lite::unstable::graph::{Edit, Graph, Op};
use transformer_lite::unstable::runner::{Runner, RunnerOptions};
use transformer_lite::unstable::tensor::{DType, HostTensor};

fn ints(values: &[i64]) -> HostTensor {
    HostTensor::from_i64(&[values.len()], values).unwrap()
}

fn numbers() -> HostTensor {
    let data: Vec<f32> = (0u8..12).map(f32::from).collect();
    HostTensor::from_f32(&[3, 4], &data).unwrap()
}

/// `op` over `x [3, 4]`, further constants, and the input `list` of one integer behind them.
fn graph(op: impl Op + 'static, constants: &[i64]) -> Graph {
    let mut b = Build::default();
    let x = b.input("x", DType::F32, "3 4");
    let list = b.input("list", DType::I64, "1");
    let mut operands = vec![x];
    for v in constants {
        let v = b.ints(&[*v]);
        operands.push(v);
    }
    operands.push(list);
    let y = b.node(op, &operands);
    Arc::unwrap_or_clone(b.finish(&[y]))
}

fn run(runner: &mut Runner, list: i64) -> Result<HostTensor, String> {
    let given = [("x".to_owned(), numbers()), ("list".to_owned(), ints(&[list]))];
    let mut results = runner.run(&given, &Cancel::default()).map_err(|e| e.chain())?;
    Ok(results.remove(0).1)
}

fn nodes_on_host(runner: &Runner) -> usize {
    runner.plan().unwrap().host.len()
}

#[test]
fn other_axes_have_another_plan() {
    for device in devices() {
        let _turn = device.turn();
        let op = Reduce {
            kind: Kind::Sum,
            axes: None,
            keep: false,
            noop_without_axes: false,
        };
        let mut runner = Runner::of(
            graph(op, &[]),
            Some(Box::new(device.share())),
            &RunnerOptions::default(),
        )
        .unwrap();
        for (axis, sums) in [
            (0, vec![12.0, 15.0, 18.0, 21.0]),
            (1, vec![6.0, 22.0, 38.0]),
            (-1, vec![6.0, 22.0, 38.0]),
            (0, vec![12.0, 15.0, 18.0, 21.0]),
        ] {
            let y = run(&mut runner, axis).unwrap();
            assert_eq!(y.f32s().unwrap(), sums, "axis {axis}");
            assert_eq!(nodes_on_host(&runner), 0, "axis {axis}");
        }
        let error = run(&mut runner, 5).unwrap_err();
        tlite_testing::assert_carries(error, &["axis", "5"]);
        let y = run(&mut runner, 1).unwrap();
        assert_eq!(*y.f32s().unwrap(), [6.0, 22.0, 38.0], "after an error");
    }
}

#[test]
fn values_that_change_often_get_the_plan_for_all() {
    for device in devices() {
        let _turn = device.turn();
        let mut runner = Runner::of(
            graph(Slice, &[0]),
            Some(Box::new(device.share())),
            &RunnerOptions::default(),
        )
        .unwrap();
        for (run_number, end) in (0..12).map(|i| (i, 1 + i % 3)) {
            let y = run(&mut runner, end).unwrap();
            let rows = usize::try_from(end).unwrap();
            assert_eq!(y.shape(), [rows, 4], "run {run_number}");
            assert_eq!(
                y.f32s().unwrap(),
                &numbers().f32s().unwrap()[..4 * rows],
                "run {run_number}"
            );
            assert_eq!(nodes_on_host(&runner) == 0, run_number < 8, "run {run_number}");
        }
    }
}

#[test]
fn computed_scales_have_another_plan() {
    for device in devices() {
        let _turn = device.turn();
        // A resize of two axes; the scale of the second one is an input.
        let mut b = Build::default();
        let x = b.input("x", DType::F32, "n m");
        let ratio = b.input("ratio", DType::F32, "1");
        let one = Arc::new(HostTensor::from_f32(&[1], &[1.0]).unwrap());
        let one = Edit::new(&mut b.graph).add_const("one", one);
        let scales = b.node(Concat { axis: 0 }, &[one, ratio]);
        let resize = Resize::plain(Mode::Nearest(Nearest::Floor), Coordinates::Asymmetric);
        let y = b.node(resize, &[x, scales]);
        let graph = b.underived(&[y]);
        let options = RunnerOptions::default();
        let mut runner = Runner::of(graph, Some(Box::new(device.share())), &options).unwrap();
        for (ratio, columns) in [(2.0, 8), (0.5, 2), (2.0, 8)] {
            let ratio = HostTensor::from_f32(&[1], &[ratio]).unwrap();
            let given = [("x".to_owned(), numbers()), ("ratio".to_owned(), ratio)];
            let y = runner.run(&given, &Cancel::default()).unwrap().remove(0).1;
            assert_eq!(y.shape(), [3, columns]);
            assert_eq!(nodes_on_host(&runner), 0);
        }
    }
}
