//! Elements of every type.

use super::{Binary, Expr, Pointwise, import};
use crate::graph::op::Op;
use crate::tensor::{DType, HostTensor};

/// Types of 64 bits keep all of them.
#[test]
fn wide_elements() {
    let run = |op: &Pointwise, x: &[HostTensor]| {
        let inputs: Vec<_> = x.iter().map(Some).collect();
        op.eval(&inputs).unwrap().remove(0)
    };
    let binary = |f| Pointwise::binary("f", f);
    let cast = |to| Pointwise {
        name: "Cast".to_owned(),
        expr: Expr::Cast(to, Box::new(Expr::Input(0))),
    };
    let doubles = [1.0, 1e-12].map(|v| HostTensor::from_f64(&[], &[v]).unwrap());
    let sum = run(&binary(Binary::Add), &doubles);
    assert_eq!(sum.f64s().unwrap().as_ref(), [1.0 + 1e-12]);
    let large = [u64::MAX, 2].map(|v| HostTensor::from_u64(&[], &[v]).unwrap());
    let of = |f| run(&binary(f), &large);
    assert_eq!(of(Binary::Div).u64s().unwrap().as_ref(), [u64::MAX / 2]);
    assert_eq!(of(Binary::Mod).u64s().unwrap().as_ref(), [1]);
    assert_eq!(of(Binary::Max).u64s().unwrap().as_ref(), [u64::MAX]);
    assert_eq!(of(Binary::ShiftRight).u64s().unwrap().as_ref(), [u64::MAX >> 2]);
    assert_eq!(of(Binary::Greater).to_i64().unwrap(), [1]);
    let float = run(&cast(DType::F64), &large[..1]);
    assert_eq!(float.f64s().unwrap().as_ref(), [18_446_744_073_709_551_615.0]);
    assert_eq!(
        run(&cast(DType::U64), &[float]),
        large[0],
        "what is too large becomes the largest"
    );
    let narrow = run(
        &cast(DType::I16),
        &[HostTensor::from_i32(&[2], &[40_000, -1]).unwrap()],
    );
    assert_eq!(narrow.to_i64().unwrap(), [40_000 - 65_536, -1]);
}

#[test]
fn celu_of_every_float_type() {
    let alpha = 0.3f32;
    let op = Pointwise {
        name: "Celu".to_owned(),
        expr: import::celu(alpha),
    };
    let alpha = f64::from(alpha);
    let wanted = [alpha * (-0.5 / alpha).exp_m1(), 0.0, 3.0];
    for (dtype, bound) in [
        (DType::F64, 1e-14),
        (DType::F32, 1e-6),
        (DType::F16, 1e-3),
        (DType::BF16, 4e-3),
    ] {
        let x = HostTensor::from_f64s(dtype, &[3], &[-0.5, 0.0, 3.0]).unwrap();
        let y = op.eval(&[Some(&x)]).unwrap().remove(0);
        assert_eq!(y.dtype(), dtype);
        for (y, wanted) in y.to_f64().unwrap().iter().zip(wanted) {
            assert!((y - wanted).abs() <= bound, "{dtype}: {wanted}, found {y}");
        }
    }
}

#[test]
fn shifts_drop_bits_beyond_a_narrow_type() {
    let x = HostTensor::from_ints(DType::I8, &[4], &[64, 1, -64, -100]).unwrap();
    let by = HostTensor::from_ints(DType::I8, &[4], &[1, 7, 3, 8]).unwrap();
    let run = |f| {
        let y = Pointwise::binary("BitShift", f).eval(&[Some(&x), Some(&by)]);
        y.unwrap().remove(0).to_i64().unwrap()
    };
    assert_eq!(run(Binary::ShiftLeft), [-128, -128, 0, 0]);
    assert_eq!(run(Binary::ShiftRight), [32, 0, -8, -1]);
}
