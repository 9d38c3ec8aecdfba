//! Masks in the forms that exporters give them, and forms that see more.

use super::*;
use crate::graph::derive::derive;
use crate::graph::{Edit, Op};
use crate::shape::{Fact, Shape};
use crate::tensor::HostTensor;
use std::sync::Arc;

const HIDDEN: f64 = -65504.0;

fn input_of(i: usize) -> Expr {
    Expr::Input(i)
}

fn of(f: Binary, a: Expr, b: Expr) -> Expr {
    Expr::Binary(f, Box::new(a), Box::new(b))
}

fn int(v: f64) -> Expr {
    Expr::Const(v, DType::I64)
}

fn float(v: f64) -> Expr {
    Expr::Const(v, DType::F32)
}

fn choose(c: Expr, a: Expr, b: Expr) -> Expr {
    Expr::Select(Box::new(c), Box::new(a), Box::new(b))
}

/// The window of a mask of places of keys, places of queries, a float mask and a truth value of
/// each key that come as inputs.
fn window(mask: Expr) -> Option<i64> {
    let mut graph = Graph::default();
    let mut edit = Edit::new(&mut graph);
    let [s, past] = ["s", "past"].map(Dim::symbol);
    let total = past.add(&s).unwrap();
    let mut given = |name: &str, dtype, sizes: &[&Dim]| {
        let shape = Shape(sizes.iter().map(|d| (*d).clone()).collect());
        let v = edit.add_value(name, Some(Fact::new(dtype, shape)));
        edit.add_input(v);
        v
    };
    let one = Dim::from(1);
    let ids = given("ids", DType::I64, &[&one, &s]);
    let cache = given("cache", DType::F32, &[&one, &one, &past, &one]);
    let opaque = given("opaque", DType::F32, &[&one, &one, &s, &total]);
    let padding = given("padding", DType::Bool, &[&one, &one, &one, &total]);
    let mut node = |name: &str, op: Box<dyn Op>, inputs: &[ValueId]| {
        let v = edit.add_value(name, None);
        let inputs = inputs.iter().map(|v| Some(*v)).collect();
        edit.add_node(name, Vec::new(), op, inputs, vec![v]);
        v
    };
    let size = |axis: i64| {
        Box::new(crate::graph::op::shape_of::ShapeOf {
            start: axis,
            end: Some(axis + 1),
        })
    };
    let (sequence, before) = (node("s", size(1), &[ids]), node("past", size(2), &[cache]));
    let sum = Pointwise::binary("Add", Binary::Add);
    let total = node("total", Box::new(sum), &[before, sequence]);
    let mut ints = |name: &str, v: &[i64]| {
        let shape: &[usize] = if name == "axis" { &[1] } else { &[] };
        edit.add_const(name, Arc::new(HostTensor::from_i64(shape, v).unwrap()))
    };
    let (zero, step, axis) = (ints("zero", &[0]), ints("one", &[1]), ints("axis", &[1]));
    let mut node = |name: &str, op: Box<dyn Op>, inputs: &[ValueId]| {
        let v = edit.add_value(name, None);
        let inputs = inputs.iter().map(|v| Some(*v)).collect();
        edit.add_node(name, Vec::new(), op, inputs, vec![v]);
        v
    };
    let keys = node("keys", Box::new(Range), &[zero, total, step]);
    let rows = node("rows", Box::new(Range), &[before, total, step]);
    let queries = node("queries", Box::new(Reshape::Unsqueeze), &[rows, axis]);
    let op = Pointwise {
        name: "mask".to_owned(),
        expr: mask,
    };
    let mask = node("mask", Box::new(op), &[keys, queries, opaque, padding]);
    edit.add_output(mask);
    derive(&mut graph).unwrap();
    Masks::default().window(&graph, mask, &Dim::symbol("past"))
}

fn causal() -> Expr {
    of(Binary::LessOrEqual, input_of(0), input_of(1))
}

/// The query is less than `n` behind the key.
fn near(n: f64) -> Expr {
    of(Binary::Greater, input_of(0), of(Binary::Sub, input_of(1), int(n)))
}

#[test]
fn windows_are_found_in_any_form() {
    let not = |x| Expr::Not(Box::new(x));
    let both = || of(Binary::And, of(Binary::And, causal(), input_of(3)), near(6.0));
    assert_eq!(window(choose(both(), float(0.0), float(HIDDEN))), Some(6));
    assert_eq!(window(choose(not(both()), float(HIDDEN), float(0.0))), Some(6));
    let either = of(Binary::Or, not(causal()), not(near(4.0)));
    assert_eq!(window(choose(either, float(HIDDEN), float(0.0))), Some(4));
    // Less what is far, from a mask that came in.
    let far = of(
        Binary::GreaterOrEqual,
        of(Binary::Sub, input_of(1), input_of(0)),
        int(9.0),
    );
    let far = choose(far, float(HIDDEN), float(0.0));
    assert_eq!(window(of(Binary::Min, input_of(2), far.clone())), Some(9));
    let hides = choose(causal(), float(0.0), float(HIDDEN));
    assert_eq!(window(of(Binary::Add, hides, far)), Some(9));
    // (1 - seen) times something low.
    let seen = Expr::Cast(DType::F32, Box::new(near(3.0)));
    let hidden = of(Binary::Sub, float(1.0), seen);
    let low = of(Binary::Mul, hidden, float(HIDDEN));
    assert_eq!(window(low.clone()), Some(3));
    assert_eq!(window(of(Binary::Max, low, float(HIDDEN / 2.0))), Some(3));
    let narrower = of(Binary::And, near(8.0), near(5.0));
    assert_eq!(window(choose(narrower, float(0.0), float(HIDDEN))), Some(5));
    let own = of(Binary::Equal, input_of(0), input_of(1));
    assert_eq!(window(choose(own, float(0.0), float(HIDDEN))), Some(1));
}

#[test]
fn what_may_see_more_has_none() {
    let masked = |c| choose(c, float(0.0), float(HIDDEN));
    assert_eq!(window(masked(causal())), None);
    assert_eq!(window(input_of(2)), None);
    assert_eq!(window(masked(of(Binary::Or, near(6.0), input_of(3)))), None);
    // A score that only falls a little is seen.
    assert_eq!(window(choose(near(6.0), float(0.0), float(-100.0))), None);
    // What comes in may raise it again.
    assert_eq!(window(of(Binary::Add, masked(near(6.0)), input_of(2))), None);
    // The far side, and every other place.
    assert_eq!(window(masked(Expr::Not(Box::new(near(6.0))))), None);
    let twice = of(Binary::Mul, input_of(0), int(2.0));
    assert_eq!(window(masked(of(Binary::Greater, twice, input_of(1)))), None);
    let never = of(
        Binary::Greater,
        input_of(0),
        of(Binary::Add, input_of(1), int(2.0)),
    );
    assert_eq!(window(masked(never)), None);
    assert_eq!(window(choose(near(6.0), float(HIDDEN), float(0.0))), None);
}
