//! Indices and lengths outside of their range: every device refuses what the interpreter refuses.

use super::{Build, devices};
use std::sync::Arc;
use transformer_lite::unstable::backend::Backend;
use transformer_lite::unstable::cancel::Cancel;
use transformer_lite::unstable::error::{Result, Stage};
use transformer_lite::unstable::graph::onnx::write::{Attr, ModelWriter, NodeSpec, Size};
use transformer_lite::unstable::graph::op::gather::Gather;
use transformer_lite::unstable::graph::op::pointwise::{Binary, Expr, Pointwise};
use transformer_lite::unstable::runner::{Named, Runner, RunnerOptions};
use transformer_lite::unstable::tensor::{DType, HostTensor};

fn ints(dtype: DType, values: &[i64]) -> HostTensor {
    HostTensor::from_ints(dtype, &[values.len()], values).unwrap()
}

/// Runs with `given` in the interpreter and on all devices. All fail, or all return this many
/// results.
fn agree(load: impl Fn(Option<Box<dyn Backend>>) -> Result<Runner>, given: &[Named], works: bool) {
    let run = |runner: &mut Runner| runner.run(given, &Cancel::default());
    let mut host = load(None).unwrap();
    let wanted = run(&mut host);
    assert_eq!(wanted.is_ok(), works, "host: {given:?}");
    for device in devices() {
        let _turn = device.turn();
        let mut runner = load(Some(Box::new(device.share()))).unwrap();
        let found = run(&mut runner);
        match (found, &wanted) {
            (Ok(found), Ok(wanted)) => assert_eq!(&found, wanted, "{given:?}"),
            (Err(_), Err(_)) => {}
            (found, _) => panic!("{given:?}: {:?}", found.map_err(|e| e.chain())),
        }
    }
}

#[test]
fn computed_indices_are_checked() {
    let graph = || {
        let mut b = Build::default();
        let (x, y) = (b.input("x", DType::I64, "3"), b.input("y", DType::I64, "3"));
        let table = b.ints(&[5, 6, 7, 8]);
        let index = b.node(Pointwise::binary("Add", Binary::Add), &[x, y]);
        let rows = b.node(Gather { axis: 0 }, &[table, index]);
        Arc::unwrap_or_clone(b.finish(&[rows]))
    };
    let load = |device| Runner::of(graph(), device, &RunnerOptions::default());
    for (x, works) in [
        ([0, 3, -4], true),
        ([0, 4, 0], false),
        ([-5, 0, 0], false),
        // 0 in 32 bits.
        ([1 << 32, 0, 0], false),
        ([i64::MIN, 0, 0], false),
    ] {
        let given = [
            ("x".to_owned(), ints(DType::I64, &x)),
            ("y".to_owned(), ints(DType::I64, &[0; 3])),
        ];
        agree(load, &given, works);
    }
}

#[test]
fn converted_indices_are_checked() {
    let number = |v: f64, t| Expr::Const(v, t);
    let cast = |x| Expr::Cast(DType::I64, Box::new(x));
    let half = |x| Expr::Binary(Binary::Mul, Box::new(x), Box::new(number(0.5, DType::F32)));
    let through_float = cast(half(Expr::Cast(DType::F32, Box::new(Expr::Input(0)))));
    let ints = |dtype, v| ints(dtype, &[v]);
    let floats = |v| HostTensor::from_f32(&[1], &[v]).unwrap();
    for (expr, x, works) in [
        (cast(Expr::Input(0)), ints(DType::I32, 3), true),
        (cast(Expr::Input(0)), ints(DType::I32, 100), false),
        (cast(Expr::Input(0)), ints(DType::I32, i64::from(i32::MIN)), false),
        (cast(Expr::Input(0)), floats(-4.0), true),
        (cast(Expr::Input(0)), floats(100.0), false),
        (cast(Expr::Input(0)), floats(1e30), false),
        // 3 in 32 bits.
        (cast(Expr::Input(0)), ints(DType::U64, (1 << 32) + 3), false),
        (through_float.clone(), ints(DType::I64, 6), true),
        (through_float, ints(DType::I64, 1 << 40), false),
    ] {
        let (dtype, expr) = (x.dtype(), &expr);
        let graph = || {
            let mut b = Build::default();
            let x = b.input("x", dtype, "1");
            let table = b.ints(&[5, 6, 7, 8]);
            let op = Pointwise {
                name: "Index".to_owned(),
                expr: expr.clone(),
            };
            let index = b.node(op, &[x]);
            let rows = b.node(Gather { axis: 0 }, &[table, index]);
            Arc::unwrap_or_clone(b.finish(&[rows]))
        };
        let load = |device| Runner::of(graph(), device, &RunnerOptions::default());
        agree(load, &[("x".to_owned(), x)], works);
    }
}

#[test]
fn lengths_of_sequences_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = ModelWriter::create(Stage::Import, folder.path(), "model.onnx", "lengths").unwrap();
    writer.opset("", 20);
    let sizes = |list: &[usize]| list.iter().map(|n| Size::Fixed(*n)).collect::<Vec<_>>();
    writer.add_input("x", DType::F32, &sizes(&[3, 2, 1])).unwrap();
    writer.add_input("lengths", DType::I32, &sizes(&[2])).unwrap();
    let weights = HostTensor::from_f32(&[1, 1, 1], &[1.0]).unwrap();
    writer.add_constant("w", &weights).unwrap();
    let node = NodeSpec {
        op: "RNN",
        name: "rnn",
        domain: "",
        inputs: &["x", "w", "w", "", "lengths"],
        outputs: &["y"],
        attributes: &[
            ("hidden_size", Attr::Int(1)),
            ("activations", Attr::Strs(vec!["Relu".to_owned()])),
        ],
    };
    writer.add_node(node).unwrap();
    writer.add_output("y", DType::F32, &sizes(&[3, 1, 2, 1])).unwrap();
    writer.finish().unwrap();
    let path = folder.path().join("model.onnx");
    let load = |device| Runner::load(&path, device, &RunnerOptions::default());
    for (lengths, works) in [
        ([0, 3], true),
        ([2, 1], true),
        ([4, 1], false),
        ([1, -1], false),
        ([i64::from(i32::MIN), 1], false),
    ] {
        let x = HostTensor::from_f32(&[3, 2, 1], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
        let given = [
            ("x".to_owned(), x),
            ("lengths".to_owned(), ints(DType::I32, &lengths)),
        ];
        agree(load, &given, works);
    }
}
