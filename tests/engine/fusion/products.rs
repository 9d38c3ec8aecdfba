//! Products of one operand with packed weights.

use super::*;
use transformer_lite::unstable::graph::op::matmul_e0m::QuantizedMatMul;
use transformer_lite::unstable::graph::op::rms_norm::RmsNorm;
use transformer_lite::unstable::graph::pass::{EPILOGUE, GATE_UP, JOINT_MATMUL, NORM_MATMUL};
use transformer_lite::unstable::quant::{Bits, ByGroup, Format, Method, Packed};

/// Codes and scales of a constant of 64 rows and `n` columns, as `product` reads them.
fn weight(b: &mut Build, product: &QuantizedMatMul, n: usize) -> [ValueId; 2] {
    let Format { bits, group, .. } = product.format;
    let at = |i: usize, j: usize| ((i * 7 + j * 3 + n) % 17) as f32 / 8.0 - 1.0;
    let packed = Packed::quantize(bits, group, 64, n, &ByGroup::from(Method::Mse), &at).unwrap();
    let scales: Vec<half::f16> = packed.pairs().iter().flatten().copied().collect();
    let codes = HostTensor::from_u32(&[bits.rows(64), n], &packed.codes).unwrap();
    let scales = HostTensor::from_f16(&[64 / group, n, 2], &scales).unwrap();
    let mut edit = Edit::new(&mut b.0);
    [codes, scales].map(|t| edit.add_const("packed", Arc::new(t)))
}

/// A product of `x`, whose rows have 64 elements, with a constant of `n` columns.
fn product(b: &mut Build, x: ValueId, product: QuantizedMatMul, n: usize) -> ValueId {
    let [codes, scales] = weight(b, &product, n);
    b.node(product, &[x, codes, scales])
}

const FOUR: QuantizedMatMul = QuantizedMatMul::new(Format::new(Bits::Four, 32));

/// Products of `x [s, 64]`, each read by one elementwise operator; with `kept` the first is an
/// output.
fn products(all: &[(QuantizedMatMul, usize)], kept: bool) -> Build {
    let mut b = Build::default();
    let x = b.input("x", "s,64");
    for (i, (p, n)) in all.iter().enumerate() {
        let y = product(&mut b, x, p.clone(), *n);
        let z = b.unary(Unary::Tanh, y);
        b.output(z);
        if kept && i == 0 {
            b.output(y);
        }
    }
    b
}

/// Numbers of results of the joint nodes.
fn joint(b: &Build) -> Vec<usize> {
    let nodes = b.0.nodes().filter(|(_, n)| {
        n.op.downcast::<QuantizedMatMul>()
            .is_some_and(|op| op.weights > 1)
    });
    nodes.map(|(_, n)| n.outputs.len()).collect()
}

#[test]
fn projections_of_one_operand_are_one_node() {
    let sizes = [("s", 3)];
    let mut b = products(&[(FOUR, 64), (FOUR, 16), (FOUR, 10)], false);
    assert_eq!(b.pass(JOINT_MATMUL, &sizes), 1);
    assert_eq!(joint(&b), [3]);
    assert_eq!(b.nodes(), 4);
    // More than a kernel takes are several nodes.
    let mut b = products(
        &[(FOUR, 64), (FOUR, 16), (FOUR, 10), (FOUR, 8), (FOUR, 12)],
        false,
    );
    assert_eq!(b.pass(JOINT_MATMUL, &sizes), 2);
    assert_eq!(joint(&b), [3, 2]);
    // The alike among others.
    let eight = QuantizedMatMul::new(Format::new(Bits::Eight, 32));
    let mut b = products(&[(FOUR, 64), (eight, 16), (FOUR, 10)], false);
    assert_eq!(b.pass(JOINT_MATMUL, &sizes), 1);
    assert_eq!(joint(&b), [2]);
}

#[test]
fn projections_that_must_not_be_joined() {
    let sizes = [("s", 3)];
    let none = |mut b: Build, what: &str| assert_eq!(b.pass(JOINT_MATMUL, &sizes), 0, "{what}");
    let eight = QuantizedMatMul::new(Format::new(Bits::Eight, 32));
    none(products(&[(FOUR, 64), (eight, 64)], false), "other bits");
    let wide = QuantizedMatMul::new(Format::new(Bits::Four, 64));
    none(products(&[(FOUR, 64), (wide, 64)], false), "other groups");
    none(products(&[(FOUR, 64), (FOUR, 16)], true), "an output");
    none(products(&[(FOUR, 64)], false), "one alone");
    let mut b = products(&[(FOUR, 64), (FOUR, 16)], false);
    assert_eq!(b.pass(EPILOGUE, &sizes), 2);
    none(b, "an epilogue");
    let mut b = Build::default();
    for name in ["x", "y"] {
        let x = b.input(name, "s,64");
        let y = product(&mut b, x, FOUR, 16);
        let z = b.unary(Unary::Tanh, y);
        b.output(z);
    }
    none(b, "other operands");
    let mut b = Build::default();
    let [codes, scales] = weight(&mut b, &FOUR, 16);
    for name in ["x", "y"] {
        let x = b.input(name, "s,64");
        let y = b.node(FOUR, &[x, codes, scales]);
        let z = b.unary(Unary::Tanh, y);
        b.output(z);
    }
    none(b, "other operands, one weight");
}

#[test]
fn products_of_one_operand_are_joined_whatever_else_reads_their_weights() {
    let mut b = Build::default();
    let [codes, scales] = weight(&mut b, &FOUR, 16);
    for (name, n) in [("x", 64), ("y", 10)] {
        let x = b.input(name, "s,64");
        let shared = b.node(FOUR, &[x, codes, scales]);
        for y in [shared, product(&mut b, x, FOUR, n)] {
            let z = b.unary(Unary::Tanh, y);
            b.output(z);
        }
    }
    assert_eq!(b.pass(JOINT_MATMUL, &[("s", 3)]), 2);
    assert_eq!(joint(&b), [2, 2]);
}

/// A feed-forward layer's first half, `up * silu(gate)`, of `x [s, 64]` behind a norm; with `kept`
/// the gate is an output.
fn gated(up: (QuantizedMatMul, usize), gate: (QuantizedMatMul, usize), kept: bool) -> Build {
    let mut b = Build::default();
    let x = b.input("x", "s,64");
    let gain = HostTensor::from_f32(&[64], &[1.5; 64]).unwrap();
    let gain = Edit::new(&mut b.0).add_const("gain", Arc::new(gain));
    let normed = b.node(RmsNorm { epsilon: 1e-5 }, &[x, gain]);
    let gate = product(&mut b, normed, gate.0, gate.1);
    let up = product(&mut b, normed, up.0, up.1);
    let power = b.unary(Unary::Sigmoid, gate);
    let open = b.binary(Binary::Mul, gate, power);
    let y = b.binary(Binary::Mul, open, up);
    b.output(y);
    if kept {
        b.output(gate);
    }
    b
}

fn has<T: 'static>(b: &Build, test: impl Fn(&T) -> bool) -> bool {
    b.0.nodes().any(|(_, n)| n.op.downcast::<T>().is_some_and(&test))
}

#[test]
fn gates_join_the_products_that_they_open_and_norms_both() {
    let sizes = [("s", 1)];
    let mut b = gated((FOUR, 16), (FOUR, 16), false);
    b.pass(FUSE, &sizes);
    assert_eq!(b.pass(EPILOGUE, &sizes), 1);
    assert_eq!(b.pass(GATE_UP, &sizes), 1);
    assert!(has::<QuantizedMatMul>(&b, |op| op.gate.is_some() && op.norm.is_none()));
    assert_eq!(b.pass(NORM_MATMUL, &sizes), 1);
    assert!(has::<QuantizedMatMul>(&b, |op| op.gate.is_some() && op.norm == Some(1e-5)));
    assert_eq!(b.nodes(), 1);
}

#[test]
fn gates_that_stay_apart() {
    let sizes = [("s", 1)];
    let eight = QuantizedMatMul::new(Format::new(Bits::Eight, 32));
    for (mut b, what) in [
        (gated((FOUR, 16), (eight, 16), false), "other bits"),
        (gated((FOUR, 16), (FOUR, 16), true), "an output"),
    ] {
        b.pass(FUSE, &sizes);
        assert_eq!(b.pass(EPILOGUE, &sizes), 1, "{what}");
        assert_eq!(b.pass(GATE_UP, &sizes), 0, "{what}");
        // The norm joins each of them all the same.
        assert_eq!(b.pass(NORM_MATMUL, &sizes), 1, "{what}");
        assert!(!has::<RmsNorm>(&b, |_| true), "{what}");
    }
}
