//! Masks in the forms that exporters give them, and forms that see more or less.

use super::*;
use crate::graph::derive::derive;
use crate::graph::op::pointwise::{Binary, Expr};
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

/// What is visible by a mask of positions of keys, positions of queries, a float mask and a truth
/// value of each key that are inputs, and ones for each key.
fn visible(mask: Expr) -> Visible {
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
    let ones = node("ones", Box::new(Expand), &[step, total]);
    let rows = node("rows", Box::new(Range), &[before, total, step]);
    let queries = node("queries", Box::new(Reshape::Unsqueeze), &[rows, axis]);
    let op = Pointwise {
        name: "mask".to_owned(),
        expr: mask,
    };
    let mask = node("mask", Box::new(op), &[keys, queries, opaque, padding, ones]);
    edit.add_output(mask);
    derive(&mut graph).unwrap();
    Masks::default().visible(&graph, mask, &Dim::symbol("past"))
}

fn window(mask: Expr) -> Option<i64> {
    visible(mask).window
}

/// What a mask replaces exactly: causality and window.
fn exact(mask: Expr) -> Option<(bool, Option<i64>)> {
    let found = visible(mask);
    found.exact.then_some((found.causal, found.window))
}

fn not(x: Expr) -> Expr {
    Expr::Not(Box::new(x))
}

/// 0 where the condition holds, else [`HIDDEN`].
fn masked(c: Expr) -> Expr {
    choose(c, float(0.0), float(HIDDEN))
}

fn cast(t: DType, x: Expr) -> Expr {
    Expr::Cast(t, Box::new(x))
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

#[test]
fn exact_masks_are_found_in_any_form() {
    let causal_alone = Some((true, None));
    assert_eq!(exact(masked(causal())), causal_alone);
    let later = of(Binary::Greater, input_of(0), input_of(1));
    assert_eq!(
        exact(choose(later.clone(), float(HIDDEN), float(0.0))),
        causal_alone
    );
    assert_eq!(exact(masked(not(later.clone()))), causal_alone);
    let before_next = of(Binary::Less, input_of(0), of(Binary::Add, input_of(1), int(1.0)));
    assert_eq!(exact(masked(before_next)), causal_alone);
    // A truth value times a low number, and (1 - seen) times one.
    let low = of(Binary::Mul, cast(DType::F32, later.clone()), float(HIDDEN));
    assert_eq!(exact(low.clone()), causal_alone);
    let hidden = of(Binary::Sub, float(1.0), cast(DType::F32, causal()));
    assert_eq!(exact(of(Binary::Mul, hidden, float(HIDDEN))), causal_alone);
    assert_eq!(
        exact(of(Binary::Max, low.clone(), float(HIDDEN / 2.0))),
        causal_alone
    );
    // The same mask twice.
    assert_eq!(
        exact(of(Binary::Add, low.clone(), masked(causal()))),
        causal_alone
    );
    assert_eq!(exact(of(Binary::Min, low, masked(causal()))), causal_alone);
    let either = of(Binary::Or, causal(), causal());
    assert_eq!(exact(masked(either)), causal_alone);
    // Nothing hidden.
    assert_eq!(exact(float(0.0)), Some((false, None)));
    let window = of(Binary::And, causal(), near(6.0));
    assert_eq!(exact(masked(window.clone())), Some((true, Some(6))));
    assert_eq!(
        exact(masked(of(Binary::And, window, near(4.0)))),
        Some((true, Some(4)))
    );
    let sum = of(Binary::Add, masked(causal()), masked(near(9.0)));
    assert_eq!(exact(sum), Some((true, Some(9))));
    assert_eq!(exact(masked(near(9.0))), Some((false, Some(9))));
}

#[test]
fn ones_hide_nothing() {
    let causal_alone = Some((true, None));
    let ones = || input_of(4);
    let both = of(Binary::And, causal(), cast(DType::Bool, ones()));
    assert_eq!(exact(masked(both)), causal_alone);
    // (1 - ones) times a low number.
    let padding = of(
        Binary::Mul,
        of(Binary::Sub, float(1.0), cast(DType::F32, ones())),
        float(HIDDEN),
    );
    assert_eq!(
        exact(of(Binary::Add, masked(causal()), padding.clone())),
        causal_alone
    );
    assert_eq!(exact(padding), Some((false, None)));
    // Hidden where causal mask and padding are both 0: nowhere.
    let sum = of(Binary::Add, masked(causal()), cast(DType::F32, ones()));
    let hidden = of(Binary::Equal, sum, float(0.0));
    assert_eq!(
        exact(choose(hidden, float(HIDDEN), masked(causal()))),
        causal_alone
    );
    let missing = of(Binary::Equal, ones(), int(0.0));
    let missing = of(Binary::Or, not(causal()), missing);
    assert_eq!(exact(choose(missing, float(HIDDEN), float(0.0))), causal_alone);
}

#[test]
fn masks_that_hide_more_or_less_are_not_exact() {
    // One key more or less.
    let shifted = |by: f64| {
        of(
            Binary::LessOrEqual,
            input_of(0),
            of(Binary::Add, input_of(1), int(by)),
        )
    };
    for by in [-1.0, 1.0] {
        assert_eq!(exact(masked(shifted(by))), None, "{by}");
        assert!(!visible(masked(shifted(by))).causal, "{by}");
    }
    // The future and something else.
    assert_eq!(exact(masked(of(Binary::And, causal(), input_of(3)))), None);
    assert_eq!(exact(of(Binary::Add, masked(causal()), input_of(2))), None);
    assert_eq!(exact(of(Binary::Min, masked(causal()), input_of(2))), None);
    let first = of(Binary::Greater, input_of(0), int(0.0));
    assert_eq!(exact(masked(of(Binary::And, causal(), first))), None);
    let other = of(Binary::Equal, input_of(0), input_of(1));
    assert_eq!(exact(masked(of(Binary::And, causal(), not(other.clone())))), None);
    // Some of the future is visible.
    assert_eq!(exact(masked(of(Binary::Or, causal(), input_of(3)))), None);
    assert_eq!(
        exact(masked(of(Binary::Or, causal(), other.clone()))),
        Some((true, None))
    );
    let far = of(
        Binary::Greater,
        input_of(0),
        of(Binary::Add, input_of(1), int(5.0)),
    );
    assert_eq!(exact(masked(of(Binary::Or, causal(), far))), None);
    // Not low enough, or not 0 for visible keys.
    assert_eq!(exact(choose(causal(), float(0.0), float(-100.0))), None);
    assert_eq!(exact(choose(causal(), float(1.0), float(HIDDEN))), None);
    assert_eq!(exact(choose(causal(), input_of(2), float(HIDDEN))), None);
    assert_eq!(exact(of(Binary::Add, masked(causal()), float(1.0))), None);
    assert_eq!(exact(choose(causal(), float(HIDDEN), float(0.0))), None);
    // Zero times an infinite number is not a number.
    let later = cast(DType::F32, not(causal()));
    assert_eq!(exact(of(Binary::Mul, later, float(f64::NEG_INFINITY))), None);
    assert_eq!(exact(input_of(2)), None);
    let twice = of(Binary::Mul, input_of(0), int(2.0));
    assert_eq!(exact(masked(of(Binary::LessOrEqual, twice, input_of(1)))), None);
}

/// What is visible by a mask that `ScatterND` puts into ones, by indices of queries and keys. An
/// index of queries is `ahead` positions late.
fn visible_scattered(ahead: i64) -> Visible {
    let mut graph = Graph::default();
    let mut edit = Edit::new(&mut graph);
    let dims = |text: &str| text.split(' ').map(|d| Dim::parse(d).unwrap()).collect();
    let mut value = |name: &str, dtype, known: Option<Vec<Dim>>, shape: Vec<Dim>| {
        let mut fact = Fact::new(dtype, Shape(shape));
        if let Some(list) = known {
            fact.known = crate::shape::Known::Dims(list);
        }
        let v = edit.add_value(name, Some(fact));
        edit.add_input(v);
        v
    };
    let ones = value("ones", DType::F32, None, dims("s s"));
    let mut list = |name: &str, text: &str| {
        let known: Vec<Dim> = dims(text);
        let shape = vec![Dim::from_usize(known.len())];
        value(name, DType::I64, Some(known), shape)
    };
    let (zero, one, s) = (list("zero", "0"), list("one", "1"), list("end", "s"));
    let start = list("start", &ahead.to_string());
    let last = list("last", &format!("s+{ahead}"));
    let (third, sizes) = (list("third", "2"), list("sizes", "s s 1"));
    let mut node = |name: &str, op: Box<dyn Op>, inputs: &[ValueId]| {
        let v = edit.add_value(name, None);
        let inputs = inputs.iter().map(|v| Some(*v)).collect();
        edit.add_node(name, Vec::new(), op, inputs, vec![v]);
        v
    };
    let unsqueeze = || Box::new(Reshape::Unsqueeze);
    let rows = node("rows", Box::new(Range), &[start, last, one]);
    let keys = node("keys", Box::new(Range), &[zero, s, one]);
    let queries = node("queries", unsqueeze(), &[rows, one]);
    let expr = masked(causal());
    let name = "mask".to_owned();
    let mask = node("mask", Box::new(Pointwise { name, expr }), &[keys, queries]);
    let queries = node("of queries", unsqueeze(), &[queries, third]);
    let keys = node("of keys", unsqueeze(), &[keys, one]);
    let queries = node("each query", Box::new(Expand), &[queries, sizes]);
    let keys = node("each key", Box::new(Expand), &[keys, sizes]);
    let places = node("places", Box::new(Concat { axis: -1 }), &[queries, keys]);
    let op = Scatter {
        axis: None,
        reduction: Reduction::Replace,
    };
    let all = node("all", Box::new(op), &[ones, places, mask]);
    edit.add_output(all);
    derive(&mut graph).unwrap();
    Masks::default().visible(&graph, all, &Dim::from(ahead))
}

#[test]
fn scattered_masks_are_found_if_they_replace_all() {
    let found = visible_scattered(0);
    assert!(found.exact && found.causal, "{found:?}");
    assert_eq!(visible_scattered(1), Visible::default());
}

/// What is visible by a constant, of which `sequence` rows and `total` columns are used from
/// `first` on.
fn visible_constant(tensor: HostTensor, first: &str) -> Visible {
    let mut graph = Graph::default();
    let mut edit = Edit::new(&mut graph);
    let matrix = edit.add_const("matrix", Arc::new(tensor));
    let dims = |text: &str| Dim::parse(text).unwrap();
    let mut known = |name: &str, list: &[Dim]| {
        let fact = Fact {
            known: crate::shape::Known::Dims(list.to_vec()),
            ..Fact::new(DType::I64, Shape::fixed(&[list.len()]))
        };
        let v = edit.add_value(name, Some(fact));
        edit.add_input(v);
        v
    };
    let starts = known("starts", &[dims(first), 0.into()]);
    let ends = known("ends", &[dims("past + s"), dims("past + s")]);
    let axes = known("axes", &[2.into(), 3.into()]);
    let v = edit.add_value("mask", None);
    let inputs = [matrix, starts, ends, axes].map(Some).to_vec();
    edit.add_node("mask", Vec::new(), Box::new(Slice), inputs, vec![v]);
    edit.add_output(v);
    derive(&mut graph).unwrap();
    Masks::default().visible(&graph, v, &Dim::symbol("past"))
}

#[test]
fn triangles_of_constants_are_found() {
    let triangle = |diagonal: usize| {
        let seen = (0..64).map(|i| if i % 8 <= i / 8 + diagonal { 0.0 } else { -65504.0 });
        HostTensor::from_f32(&[1, 1, 8, 8], &seen.collect::<Vec<_>>()).unwrap()
    };
    let found = visible_constant(triangle(0), "past");
    assert!(found.exact && found.causal, "{found:?}");
    for (tensor, first) in [
        (triangle(1), "past"),
        (triangle(0), "0"),
        (triangle(0), "past + 1"),
    ] {
        let found = visible_constant(tensor, first);
        assert!(!found.exact && !found.causal, "{first}: {found:?}");
    }
    let mut one_more = triangle(0).to_f32().unwrap().into_owned();
    one_more[8 * 3 + 5] = 0.0;
    let found = visible_constant(HostTensor::from_f32(&[1, 1, 8, 8], &one_more).unwrap(), "past");
    assert!(!found.exact, "{found:?}");
}
