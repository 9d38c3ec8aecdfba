//! Elementwise operators where others store their results, and operators that only move elements.

use super::*;
use transformer_lite::unstable::graph::op::conv::Conv;
use transformer_lite::unstable::graph::op::window::Window;
use transformer_lite::unstable::graph::pass::{EPILOGUE, SINK_TRANSPOSES};

fn product(b: &mut Build) -> ValueId {
    let (x, w) = (b.input("x", "s,4"), b.input("w", "4,6"));
    b.node(MatMul { trans_b: false }, &[x, w])
}

#[test]
fn elementwise_operators_are_done_where_others_store() {
    let sizes = [("s", 3)];
    // With its own shape, a row and a column; as either operand, and as both.
    for other in ["s,6", "6", "s,1", "1"] {
        for first in [true, false] {
            let mut b = Build::default();
            let y = product(&mut b);
            let o = b.input("other", other);
            let (p, q) = if first { (y, o) } else { (o, y) };
            let y = b.binary(Binary::Sub, p, q);
            b.output(y);
            assert_eq!(b.pass(EPILOGUE, &sizes), 1, "{other} {first}");
            assert!(b.has("MatMul+") && b.nodes() == 1);
        }
    }
    let mut b = Build::default();
    let y = product(&mut b);
    let y = b.binary(Binary::Mul, y, y);
    b.output(y);
    assert_eq!(b.pass(EPILOGUE, &sizes), 1);
    let mut b = Build::default();
    let (x, w) = (b.input("x", "1,2,s,5"), b.input("w", "3,2,1,1"));
    let conv = Conv {
        window: Window::new(&[]),
        group: 1,
    };
    let y = b.node(conv, &[x, w]);
    let y = b.unary(Unary::Sigmoid, y);
    b.output(y);
    assert_eq!(b.pass(EPILOGUE, &sizes), 1);
    assert!(b.has("Conv+") && b.nodes() == 1);
}

#[test]
fn what_must_not_be_done_where_another_stores() {
    let sizes = [("s", 3)];
    let none = |mut b: Build, what: &str| assert_eq!(b.pass(EPILOGUE, &sizes), 0, "{what}");
    let mut b = Build::default();
    let p = product(&mut b);
    let y = b.unary(Unary::Exp, p);
    b.output(y);
    b.output(p);
    none(b, "a result that is an output");
    let mut b = Build::default();
    let p = product(&mut b);
    for f in [Unary::Exp, Unary::Abs] {
        let y = b.unary(f, p);
        b.output(y);
    }
    none(b, "a result with two readers");
    let mut b = Build::default();
    let p = product(&mut b);
    let o = b.input("other", "5,s,6");
    let y = b.binary(Binary::Add, p, o);
    b.output(y);
    none(b, "a result that is repeated");
    let mut b = Build::default();
    let p = product(&mut b);
    let zero = b.floats(&[], &[0.0]);
    let y = b.binary(Binary::Less, p, zero);
    let cast = Pointwise {
        name: "Cast".to_owned(),
        expr: Expr::Cast(DType::F32, Box::new(Expr::Input(0))),
    };
    let y = b.node(cast, &[y]);
    b.output(y);
    none(b, "a truth value");
    let mut b = Build::default();
    let x = b.input("x", "s,4");
    let weights = b.node(
        Softmax {
            axis: -1,
            flatten: false,
        },
        &[x],
    );
    let y = b.unary(Unary::Exp, weights);
    b.output(y);
    none(b, "an operator whose kernels take none");
}

#[test]
fn of_two_products_one_takes_the_sum() {
    let mut b = Build::default();
    let (x, w) = (b.input("x", "s,4"), b.input("w", "4,6"));
    let one = b.node(MatMul { trans_b: false }, &[x, w]);
    let u = b.input("u", "4,6");
    let two = b.node(MatMul { trans_b: false }, &[x, u]);
    let y = b.binary(Binary::Add, one, two);
    b.output(y);
    assert_eq!(b.pass(EPILOGUE, &[("s", 3)]), 1);
    assert!(b.has("MatMul+") && b.has("MatMul") && b.nodes() == 2);
}

#[test]
fn transposes_cancel() {
    let sizes = [("s", 3)];
    let mut b = Build::default();
    let x = b.input("x", "2,s,4");
    let y = b.swap(x, &[1, 2, 0]);
    let y = b.swap(y, &[2, 0, 1]);
    let y = b.unary(Unary::Exp, y);
    b.output(y);
    assert_eq!(b.pass(SINK_TRANSPOSES, &sizes), 1);
    assert_eq!(b.nodes(), 1);
    // Across elementwise operators, one with an operand that is a single element, one with two that
    // are moved alike.
    let mut b = Build::default();
    let (x, z) = (b.input("x", "2,s,4"), b.input("z", "2,s,4"));
    let half = b.floats(&[1], &[0.5]);
    let (x, z) = (b.swap(x, &[0, 2, 1]), b.swap(z, &[0, 2, 1]));
    let x = b.binary(Binary::Mul, x, half);
    let sum = b.binary(Binary::Add, x, z);
    let y = b.swap(sum, &[0, 2, 1]);
    let y = b.unary(Unary::Exp, y);
    b.output(y);
    b.pass(SINK_TRANSPOSES, &sizes);
    assert!(!b.has("Transpose") && b.nodes() == 3);
    // To another order, the two become one; what makes an output of the model stays.
    let mut b = Build::default();
    let x = b.input("x", "2,s,4");
    let y = b.swap(x, &[1, 2, 0]);
    let y = b.swap(y, &[1, 0, 2]);
    b.output(y);
    assert_eq!(b.pass(SINK_TRANSPOSES, &sizes), 1);
    assert_eq!(b.nodes(), 1);
}

#[test]
fn what_must_not_be_moved() {
    let sizes = [("s", 3)];
    let none = |mut b: Build, what: &str| assert_eq!(b.pass(SINK_TRANSPOSES, &sizes), 0, "{what}");
    let mut b = Build::default();
    let (x, row) = (b.input("x", "2,s,4"), b.input("row", "4,1"));
    let t = b.swap(x, &[0, 2, 1]);
    let y = b.binary(Binary::Add, t, row);
    b.output(y);
    none(b, "beside an operand that is not moved");
    let mut b = Build::default();
    let x = b.input("x", "2,s,4");
    let t = b.swap(x, &[0, 2, 1]);
    for f in [Unary::Exp, Unary::Abs] {
        let y = b.unary(f, t);
        b.output(y);
    }
    none(b, "with two readers");
    let mut b = Build::default();
    let (x, z) = (b.input("x", "4,s,4"), b.input("z", "s,4,4"));
    let (x, z) = (b.swap(x, &[2, 1, 0]), b.swap(z, &[1, 0, 2]));
    let y = b.binary(Binary::Add, x, z);
    b.output(y);
    none(b, "moved apart");
}

#[test]
fn reshapes_come_behind_elementwise_operators() {
    let mut b = Build::default();
    let p = product(&mut b);
    let shape = b.list(&[-1, 2, 3]);
    let y = b.node(Reshape::Reshape { allow_zero: false }, &[p, shape]);
    let y = b.unary(Unary::Exp, y);
    b.output(y);
    assert_eq!(b.pass(SINK_TRANSPOSES, &[("s", 3)]), 1);
    assert_eq!(b.pass(EPILOGUE, &[("s", 3)]), 1);
}

#[test]
fn slices_join() {
    let slice = |b: &mut Build, x, axis: i64, from: i64, to: i64, step: i64| {
        let lists = [from, to, axis, step].map(|v| b.list(&[v]));
        b.node(Slice, &[x, lists[0], lists[1], lists[2], lists[3]])
    };
    let mut b = Build::default();
    let x = b.input("x", "8,9,s");
    let y = slice(&mut b, x, 0, 1, -2, 1);
    let y = slice(&mut b, y, -1, 0, 2, 1);
    let y = slice(&mut b, y, 1, -1, -20, -3);
    b.output(y);
    assert_eq!(b.pass(SINK_TRANSPOSES, &[("s", 5)]), 2);
    assert_eq!(b.nodes(), 1);
    // Of one axis, and where the first has another reader.
    let mut b = Build::default();
    let x = b.input("x", "8,9,s");
    let y = slice(&mut b, x, 0, 1, 7, 1);
    let z = slice(&mut b, y, 0, 2, 4, 1);
    b.output(z);
    assert_eq!(b.pass(SINK_TRANSPOSES, &[("s", 5)]), 0);
    let mut b = Build::default();
    let x = b.input("x", "8,9,s");
    let y = slice(&mut b, x, 0, 1, 7, 1);
    for axis in [1, 2] {
        let z = slice(&mut b, y, axis, 0, 2, 1);
        b.output(z);
    }
    assert_eq!(b.pass(SINK_TRANSPOSES, &[("s", 5)]), 0);
}

#[test]
fn parts_and_concatenations_cancel() {
    let sizes = [("s", 5)];
    let mut b = Build::default();
    let (x, z) = (b.input("x", "s,4"), b.input("z", "s,3"));
    let joined = b.node(Concat { axis: 1 }, &[x, z]);
    let (p, q) = (b.part(joined, 0, 4), b.part(joined, -3, 7));
    let (p, q) = (b.unary(Unary::Exp, p), b.unary(Unary::Abs, q));
    b.output(p);
    b.output(q);
    assert_eq!(b.pass(SINK_TRANSPOSES, &sizes), 2);
    assert_eq!(b.nodes(), 2);
    let halves = |from: i64, swapped: bool| {
        let mut b = Build::default();
        let x = b.input("x", "s,8");
        let (p, q) = (b.part(x, from, 4), b.part(x, 4, 8));
        let parts = if swapped { [q, p] } else { [p, q] };
        let y = b.node(Concat { axis: 1 }, &parts);
        let y = b.unary(Unary::Exp, y);
        b.output(y);
        b
    };
    let mut b = halves(0, false);
    assert_eq!(b.pass(SINK_TRANSPOSES, &sizes), 1);
    assert_eq!(b.nodes(), 1);
    for (from, swapped) in [(1, false), (0, true)] {
        assert_eq!(
            halves(from, swapped).pass(SINK_TRANSPOSES, &sizes),
            0,
            "{from} {swapped}"
        );
    }
    // A part that covers some of two.
    let mut b = Build::default();
    let (x, z) = (b.input("x", "s,4"), b.input("z", "s,3"));
    let joined = b.node(Concat { axis: 1 }, &[x, z]);
    let y = b.part(joined, 2, 6);
    b.output(y);
    assert_eq!(b.pass(SINK_TRANSPOSES, &sizes), 0);
}
