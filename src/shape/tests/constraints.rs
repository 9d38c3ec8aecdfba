//! Decisions against random bindings, and what must be decided.

use super::{Expr, expr};
use crate::shape::constraints::{ConstraintError, Constraints, Relation};
use crate::shape::{Bindings, Dim, Symbol};
use crate::testing::{assert_carries, carries};
use proptest::prelude::*;

fn d(s: &str) -> Dim {
    Dim::parse(s).unwrap_or_else(|e| panic!("{e}"))
}

fn known(s: &str) -> Constraints {
    Constraints::parse(s).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn the_examples_of_the_paper() {
    let none = Constraints::new();
    assert_eq!(none.compare(&d("N*4096"), &d("N*32*128")), Relation::Equal);
    assert_eq!(none.divide(&d("N*4096"), &d("N*32*128")), Some(1.into()));
    assert_eq!(none.compare(&d("N*4096"), &d("sumN*2*128")), Relation::Unknown);
    assert_eq!(
        none.compare(&d("N*4096"), &d("N*2*128")),
        Relation::GreaterOrEqual
    );
    let cache = known("sumN == past + N, N >= 1");
    assert_eq!(cache.apply(&d("sumN - N")), d("past"));
    assert_eq!(
        cache.compare(&d("sumN*4096"), &d("N*4096")),
        Relation::GreaterOrEqual
    );
    assert_eq!(cache.compare(&d("sumN*4096"), &d("N*2*128")), Relation::Greater);
    assert_eq!(cache.compare(&d("N*4096"), &d("sumN*2*128")), Relation::Unknown);
}

#[test]
fn decisions() {
    use Relation::*;
    for (text, a, b, relation) in [
        ("", "a", "a + 1", Less),
        ("", "a", "-1", Greater),
        ("", "2*a + 1", "2*b", NotEqual),
        ("", "64*(a//64)", "a", LessOrEqual),
        ("", "64*(a//64) + 63", "a", GreaterOrEqual),
        ("", "64*ceil(a/64)", "a", GreaterOrEqual),
        ("", "n*(a//n)", "a", LessOrEqual),
        ("", "n*(a//n) + n", "a", Greater),
        ("", "a % n", "n", Less),
        ("", "a % 64", "63", LessOrEqual),
        ("", "a % 64", "0", GreaterOrEqual),
        ("", "a // n", "0", GreaterOrEqual),
        ("", "a//2 + (a + 1)//2", "a", Equal),
        ("", "a - a//4", "3*a//4", GreaterOrEqual),
        ("", "ceil(3*a/4)", "a - a//4", Equal),
        ("", "min(a, b)", "a", LessOrEqual),
        ("", "max(a, b)", "b", GreaterOrEqual),
        ("", "min(a, b) + max(a, b)", "a + b", Equal),
        ("", "min(a, b)", "a + b", LessOrEqual),
        ("", "max(a - b, 0)", "a", LessOrEqual),
        ("", "max(min(a, 10), 0)", "10", LessOrEqual),
        ("", "(a + 1)*(b + 1)", "a*b", Greater),
        ("", "a*b", "a", Unknown),
        ("", "a", "b", Unknown),
        ("b >= 1", "a*b", "a", GreaterOrEqual),
        ("b >= 1", "(a + c)*b", "a + c", GreaterOrEqual),
        ("b >= 2, a >= 1", "a", "a*b", Less),
        ("N >= 1", "N*N", "N", GreaterOrEqual),
        ("N >= 2", "N*N", "N", Greater),
        ("N <= 2048", "N*N", "2048*N", LessOrEqual),
        ("N <= 2048", "N//4096", "0", Equal),
        ("1 <= N <= 2048", "min(N, 2048)", "N", Equal),
        ("1 <= N < 2048", "N", "2047", LessOrEqual),
        ("N > 3", "N", "4", GreaterOrEqual),
        ("N = 5", "N*M", "5*M", Equal),
        ("5 == N", "N", "6", Less),
        ("past == sumN - N", "sumN", "N", GreaterOrEqual),
        ("past == sumN - N, N >= 1", "sumN", "past", Greater),
        ("M <= N", "2*M*K", "3*N*K", LessOrEqual),
        ("M <= N, N <= L", "M", "L", LessOrEqual),
        ("M < N, N < L", "M + 2", "L", LessOrEqual),
        ("past + N <= 2048, N >= 1", "past", "2047", LessOrEqual),
        ("2*a == 3*b", "4*a + c", "6*b + c", Equal),
        ("a*b == 64", "a*b*c", "64*c", Equal),
        (
            "height == 32*h, width == 32*w",
            "height//8*(width//8)",
            "16*h*w",
            Equal,
        ),
        ("height == 32*h", "(height - 1)//2 + 1", "height//2", Equal),
        ("N % 64 == 0", "(N + 63)//64*64", "N", Equal),
        ("N % 64 == 0, N >= 1", "N", "64", GreaterOrEqual),
        ("N % 64 == 0, N % 48 == 0", "N % 192", "0", Equal),
        ("N % 64 == 0", "N", "2*M + 1", NotEqual),
        ("(a + b) % 4 == 0", "4*((a + b)//4)", "a + b", Equal),
        ("x >= -5", "x", "-5", GreaterOrEqual),
        ("a == b, b == c", "a", "c", Equal),
    ] {
        let c = known(text);
        assert_eq!(c.compare(&d(a), &d(b)), relation, "{a} and {b} with {text}");
        let mirror = match relation {
            Less => Greater,
            Greater => Less,
            LessOrEqual => GreaterOrEqual,
            GreaterOrEqual => LessOrEqual,
            same => same,
        };
        assert_eq!(c.compare(&d(b), &d(a)), mirror, "{b} and {a} with {text}");
        let le = match relation {
            Less | LessOrEqual | Equal => Some(true),
            Greater => Some(false),
            _ => None,
        };
        assert_eq!(c.le(&d(a), &d(b)), le, "{a} <= {b} with {text}");
    }
}

#[test]
fn forms_and_quotients() {
    for (text, dim, form) in [
        ("sumN == past + N", "sumN*2", "2*N + 2*past"),
        ("N % 64 == 0", "N", "N"),
        ("N % 64 == 0", "(N + 63)/64", "N/64"),
        ("N % 64 == 0", "N/32 + N/16", "3*(N/32)"),
        ("N % 64 == 0, N % 48 == 0", "M + N/3", "M + N/3"),
        ("N <= 2048, N >= 1", "min(N, 2048) + max(N, 1)", "2*N"),
        ("N <= 63", "(N + 64)/64", "1"),
        ("M <= N", "min(M, N, L)", "min(M, L)"),
        ("h == 32*k, k % 2 == 0", "h", "32*k"),
    ] {
        assert_eq!(known(text).apply(&d(dim)), d(form), "{dim} with {text}");
    }
    let c = known("N % 64 == 0, height == 32*h");
    assert_eq!(c.divide(&d("N*M"), &d("32*M")), Some(d("N/32")));
    assert_eq!(c.divide(&d("height*3"), &d("h")), Some(96.into()));
    assert_eq!(c.divide(&d("N"), &d("128")), None);
    assert_eq!(c.divide(&d("N"), &d("0")), None);
    let bounds = known("1 <= N <= 2048, past <= 100, sumN == past + N");
    assert_eq!(bounds.range(&d("sumN")), (Some(1), Some(2148)));
    let joint = known("past + N <= 2048, N >= 1");
    assert_eq!(joint.range(&d("past")), (Some(0), Some(2047)));
    assert_eq!(joint.range(&d("64*(N + past)")).1, Some(64 * 2048));
    assert_eq!(joint.range(&d("N")).0, Some(1));
    // A lower bound below 0 takes back what was concluded from 0, whatever came first.
    for text in ["c == 5 - a, c >= -3", "c >= -3, c == 5 - a"] {
        assert_eq!(known(text).range(&d("a")), (Some(0), Some(8)), "{text}");
    }
}

#[test]
fn contradictions_name_both_sides() {
    for (text, parts) in [
        ("N >= 10, N <= 5", ["N <= 5", "N >= 10"]),
        ("N <= -1", ["N <= -1", "N >= 0"]),
        ("N == 5, N == 6", ["N == 6", "-1"]),
        ("N == N + 1", ["N == N + 1", "-1"]),
        ("2*N == 2*M + 1", ["2*N", "2*M + 1"]),
        ("1 <= N <= 8, N == 9", ["N == 9", "1 <= N <= 8"]),
        ("sumN == past + N, sumN <= 5, N >= 6", ["N >= 6", "sumN <= 5"]),
        ("N % 64 == 0, 1 <= N <= 63", ["N <= 63", "64*floor(N/64)"]),
        (
            "1 <= N <= 63, N % 64 == 0",
            ["N - 64*floor(N/64) == 0", "1 <= N <= 63"],
        ),
        ("M <= N, N <= M - 1", ["N <= M - 1", "M <= N"]),
        ("a*b == -1", ["a*b == -1", "0"]),
    ] {
        let error = Constraints::parse(text).unwrap_err();
        assert!(matches!(error, ConstraintError::Contradiction { .. }), "{error}");
        for part in parts {
            assert!(carries(&error.to_string(), part), "{text}: {error}");
        }
    }
    let mut c = known("N >= 3");
    let before = c.clone();
    assert!(c.add_text("M == 4, N == 2").is_err());
    assert_eq!(c, before, "a failed addition changes nothing");
}

#[test]
fn bad_text_is_refused() {
    for text in [
        "N",
        "N <",
        "<= 3",
        "N => 3",
        "N != 3",
        "1 <= N <= ",
        "N == 2,",
        ",",
        "a b == 3",
        "é == 1",
        "N === 3",
    ] {
        assert!(Constraints::parse(text).is_err(), "{text} was accepted");
    }
    assert!(Constraints::parse(" ").unwrap().is_empty());
    let many: Vec<String> = (0..300).map(|i| format!("a{i} == b{i} + c{i}")).collect();
    assert!(Constraints::parse(&many.join(",")).is_err());
}

#[test]
fn bindings_are_checked_and_completed() {
    let c = known("1 <= N <= 2048, sumN == past + N, min(N, past) <= M");
    let all = Bindings::from([("N", 5), ("past", 3), ("sumN", 8)]);
    c.check(&all).unwrap();
    assert_eq!(c.complete(&[("N", 5), ("past", 3)].into()).unwrap(), all);
    assert_eq!(c.complete(&[("N", 5), ("sumN", 8)].into()).unwrap(), all);
    for (bindings, values) in [
        (
            Bindings::from([("N", 4096)]),
            &["N", "4096", "1 <= N <= 2048"][..],
        ),
        ([("past", -1)].into(), &["past", "-1", "past >= 0"]),
        (
            [("N", 5), ("past", 3), ("sumN", 9)].into(),
            &["sumN == N + past", "9", "8", "N=5, past=3, sumN=9"],
        ),
        (
            [("N", 5), ("past", 3), ("M", 2)].into(),
            &["min(N, past) <= M", "3", "2", "M=2, N=5, past=3"],
        ),
    ] {
        assert_carries(c.check(&bindings).unwrap_err(), values);
    }
    let error = known("height == 32*h")
        .complete(&[("height", 100)].into())
        .unwrap_err();
    assert_carries(error, &["height == 32*h", "h", "height=100"]);
    assert_eq!(
        known("N == 5").complete(&Bindings::new()).unwrap(),
        [("N", 5)].into()
    );
}

#[test]
fn text_round_trips() {
    for text in [
        "",
        "1 <= N <= 2048, sumN == N + past",
        "N <= 7, a*b <= c, N - 64*floor(N/64) == 0",
    ] {
        assert_eq!(known(text).to_string(), text);
    }
}

fn relation() -> impl Strategy<Value = (&'static str, Expr, Expr)> {
    let sign = prop_oneof![3 => Just("<="), 1 => Just("<"), 1 => Just(">="), 2 => Just("==")];
    (sign, expr(), expr())
}

fn simple() -> impl Strategy<Value = String> {
    prop_oneof![
        (0i64..4, 0i64..30).prop_map(|(l, h)| format!("{l} <= a <= {}", l + h)),
        (0i64..4).prop_map(|l| format!("b >= {l}")),
        (-8i64..1).prop_map(|l| format!("c >= {l}")),
        (0i64..20).prop_map(|h| format!("b < {h}")),
        (2i64..7).prop_map(|n| format!("a % {n} == 0")),
        (2i64..7).prop_map(|n| format!("c % {n} == 0")),
        (1i64..5).prop_map(|n| format!("a == {n}*b")),
        Just("c == a + b".to_owned()),
        Just("b == c - a".to_owned()),
        (1i64..9).prop_map(|n| format!("a + b <= {n}")),
        Just("a <= b".to_owned()),
        Just("2*a == 3*b".to_owned()),
        Just("b == c".to_owned()),
    ]
}

fn holds(text: &str, b: &Bindings, given: &[(&str, Expr, Expr)]) -> Option<bool> {
    for item in text.split(", ").filter(|t| !t.is_empty()) {
        // The checker, on relations by themselves.
        if Constraints::parse(item).ok()?.check(b).is_err() {
            return Some(false);
        }
    }
    for (sign, x, y) in given {
        let (x, y) = (x.value(b)?, y.value(b)?);
        let ok = match *sign {
            "<=" => x <= y,
            "<" => x < y,
            ">=" => x >= y,
            _ => x == y,
        };
        if !ok {
            return Some(false);
        }
    }
    Some(true)
}

#[test]
fn relations_are_few_so_that_questions_end() {
    let products = |n| {
        let one = |i| format!("x{i}*y{} <= x{}*y{i}", i + 1, i + 2);
        (0..n).map(one).collect::<Vec<_>>().join(", ")
    };
    Constraints::parse(&products(10)).unwrap();
    let e = Constraints::parse(&products(3000)).unwrap_err();
    assert!(matches!(e, ConstraintError::Parse { .. }), "{e}");
    // Bounds are no relations.
    let bounds: Vec<_> = (0..3000).map(|i| format!("1 <= x{i} <= 9")).collect();
    Constraints::parse(&bounds.join(", ")).unwrap();
}

#[test]
fn a_refused_bound_changes_nothing() {
    let known = Constraints::parse("a + b <= 10, 2 <= a, c == a + b").unwrap();
    for (name, lo, hi) in [("a", Some(11), None), ("a", None, Some(1)), ("c", Some(11), None)] {
        let mut next = known.clone();
        let e = next.bound(&Symbol::new(name), lo, hi).unwrap_err();
        assert!(matches!(e, ConstraintError::Contradiction { .. }), "{e}");
        assert_eq!(next, known, "{e}");
    }
}

proptest! {
    /// Every decision holds for every binding inside of the constraints.
    #[test]
    fn no_binding_contradicts_a_decision(
        items in prop::collection::vec(simple(), 0..4),
        odd in prop::option::weighted(0.3, relation()),
        x in expr(),
        y in expr(),
    ) {
        let mut text = items.join(", ");
        let given: Vec<_> = odd.into_iter().collect();
        let plain = text.clone();
        for (sign, l, r) in &given {
            let comma = if text.is_empty() { "" } else { ", " };
            text = format!("{text}{comma}{} {sign} {}", l.text(), r.text());
        }
        let (Ok(dx), Ok(dy)) = (Dim::parse(&x.text()), Dim::parse(&y.text())) else { return Ok(()) };
        let parsed = Constraints::parse(&text);
        let contradiction = match &parsed {
            Err(ConstraintError::Contradiction { .. }) => true,
            Err(_) => return Ok(()),
            Ok(_) => false,
        };
        let c = parsed.unwrap_or_default();
        let (relation, le, range, quotient, form) =
            (c.compare(&dx, &dy), c.le(&dx, &dy), c.range(&dx), c.divide(&dx, &dy), c.apply(&dx));
        for a in 0..9i64 {
            for b in 0..9i64 {
                for cc in -9..18i64 {
                    let bindings = Bindings::from([("a", a * 2), ("b", b), ("c", cc)]);
                    if holds(&plain, &bindings, &given) != Some(true) {
                        continue;
                    }
                    if cc < 0 && !plain.contains("c >=") {
                        continue;
                    }
                    prop_assert!(!contradiction, "{} holds for {:?}", text, bindings);
                    if given.is_empty() {
                        prop_assert!(c.check(&bindings).is_ok(), "{:?}", c.check(&bindings));
                    }
                    let (Some(vx), Some(vy)) = (x.value(&bindings), y.value(&bindings)) else { continue };
                    let ok = match relation {
                        Relation::Equal => vx == vy,
                        Relation::NotEqual => vx != vy,
                        Relation::LessOrEqual => vx <= vy,
                        Relation::GreaterOrEqual => vx >= vy,
                        Relation::Less => vx < vy,
                        Relation::Greater => vx > vy,
                        Relation::Unknown => true,
                    };
                    prop_assert!(ok, "{} and {}: {:?} with {} at {:?}", dx, dy, relation, text, bindings);
                    prop_assert!(le.is_none_or(|le| le == (vx <= vy)), "{} <= {} with {}", dx, dy, text);
                    prop_assert!(range.0.is_none_or(|l| i128::from(l) <= vx), "{} >= {:?} with {}", dx, range, text);
                    prop_assert!(range.1.is_none_or(|h| i128::from(h) >= vx), "{} <= {:?} with {}", dx, range, text);
                    let value = |d: &Dim| d.eval(&bindings).map(i128::from);
                    prop_assert_eq!(value(&form).unwrap_or(vx), vx, "{} became {} with {}", dx, form, text);
                    if let Some(q) = &quotient {
                        let back = value(q).unwrap_or(0).saturating_mul(vy);
                        prop_assert_eq!(back, vx, "{} by {} with {}", dx, dy, text);
                    }
                }
            }
        }
    }

    #[test]
    fn parser_never_panics(text in "[a-c0-9<>=,; +*/()%-]{0,50}", other in any::<String>()) {
        if let Ok(c) = Constraints::parse(&text) {
            let again = Constraints::parse(&c.to_string());
            prop_assert_eq!(again.map(|c| c.to_string()), Ok(c.to_string()));
        }
        let _ = Constraints::parse(&other);
    }
}
