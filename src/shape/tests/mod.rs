//! Normal form, text and evaluation of [`Dim`] against brute force.

mod constraints;

use super::{Bindings, Dim, DimError, Symbol};
use crate::testing::assert_carries;
use proptest::prelude::*;

fn d(s: &str) -> Dim {
    Dim::parse(s).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn normal_form_decides_equality() {
    assert_eq!(
        d("sumN-N").add(&d("N")).unwrap(),
        d("sumN"),
        "the paper's concatenation example"
    );
    for (a, b) in [
        ("2*h + h", "3*h"),
        ("(a+b)*(a-b)", "a*a - b*b"),
        ("(a+b)**2", "a**2 + 2*a*b + b**2"),
        ("(2*n+4)/2", "n+2"),
        ("N//4//16", "N//64"),
        ("(N/4 + 3)/5", "(N + 12)/20"),
        ("(N - N/2)/2", "(N + 1)/4"),
        ("(6*N + 5)/9", "(2*N + 1)/3"),
        ("(64*N + M + 70)/64", "N + 1 + (M + 6)/64"),
        ("-(-N//8)", "(N + 7)//8"),
        ("ceil(N/8)", "(N + 7)//8"),
        ("ceil(a/b)", "(a + b - 1)/b"),
        ("-(-a//b)", "ceil(a/b)"),
        ("(a*b + c)/b", "a + c/b"),
        ("(2*a*c)/(2*b*c)", "a/b"),
        ("(a + b + 1)/(a + b)", "1 + 1/(a + b)"),
        ("(N + 64*M) % 64", "N % 64"),
        ("(N + 3*M) % M", "N % M"),
        ("mod(N, 8)", "N - 8*(N//8)"),
        ("min(a, min(b, a))", "min(b, a)"),
        ("min(3, N, 5)", "min(N, 3)"),
        ("min(N + 1, N + 4, 7)", "min(N, 6) + 1"),
        ("max(a + c, b + c)", "max(a, b) + c"),
        ("min(64*a, 64*b)", "64*min(a, b)"),
        ("max(min(a, b) + 1, min(b, a))", "min(a, b) + 1"),
        ("min(-max(a, b), c)", "min(-a, -b, c)"),
        ("min(2*min(a, b) + c, d)", "min(2*a + c, 2*b + c, d)"),
        ("Min(a, b)*Max(c, 2)", "min(b, a)*max(2, c)"),
        ("floor(height/2 - 1/2)", "(height - 1)/2"),
        ("floor(floor(height/2 - 1/2)/2) + 1", "(height + 3)/4"),
        ("floor(0.5*n + 0.25)", "(2*n + 1)/4"),
        ("ceiling(min(a, b/2))", "-(max(-2*a, -b)/2)"),
        ("floor(a/b + c/b)", "(a + c)/b"),
        ("floor(-a/3)", "-((a + 2)/3)"),
        ("0*a", "0"),
        ("3 / 2", "1"),
        ("-3 / 2", "-2"),
        ("-3 % 5", "2"),
        ("max(a)", "a"),
    ] {
        assert_eq!(d(a), d(b), "{a} and {b}");
    }
    assert_ne!(d("N/2"), d("N"));
    assert_ne!(d("min(a, b)"), d("max(a, b)"));
}

#[test]
fn division_without_remainder() {
    assert_eq!(
        d("N*4096").exact_div(&d("N*32*128")),
        Some(1.into()),
        "the paper's reuse example"
    );
    assert_eq!(d("N*4096").exact_div(&d("sumN*256")), None);
    for (a, b, q) in [
        ("a*c + b*c", "a + b", Some("c")),
        ("a*a - b*b", "a + b", Some("a - b")),
        ("a*a*a - 1", "a - 1", Some("a*a + a + 1")),
        ("6*a*b", "-4*a", None),
        ("8*a*b", "-4*a", Some("-2*b")),
        ("3*(h/2)*w + w", "w", Some("3*(h/2) + 1")),
        ("(h/2 + 1)*(w/2 + 1)*64", "(w/2 + 1)*16", Some("4*(h/2 + 1)")),
        ("0", "a", Some("0")),
        ("a", "0", None),
        ("1", "a", None),
        ("a + 1", "a", None),
    ] {
        assert_eq!(d(a).exact_div(&d(b)), q.map(d), "{a} by {b}");
    }
}

#[test]
fn text_is_stable() {
    for (text, printed) in [
        ("past+seq", "past + seq"),
        ("2*N-1", "2*N - 1"),
        ("0", "0"),
        ("-3", "-3"),
        ("(N + 3)/4", "floor((N + 3)/4)"),
        ("3*N//4", "floor(3*N/4)"),
        ("(N*M)//5 * 2", "2*floor(M*N/5)"),
        ("a // (b*c)", "floor(a/(b*c))"),
        ("a // b", "floor(a/b)"),
        ("5 // b", "floor(5/b)"),
        ("min(a, b)*2", "2*min(a, b)"),
        ("a*b - c", "a*b - c"),
        ("N % 64", "N - 64*floor(N/64)"),
        ("-9223372036854775807 - 1", "-9223372036854775807 - 1"),
        ("a*(-9223372036854775807 - 1)", "-9223372036854775807*a - a"),
    ] {
        assert_eq!(d(text).to_string(), printed);
        assert_eq!(d(printed), d(text), "{printed}");
    }
}

/// A detector declares its sizes as its exporter printed them; its convolutions of stride 2 compute
/// the same.
#[test]
fn declared_and_computed_sizes_of_a_convolution_agree() {
    let (mut declared, mut computed) = ("height/2 - 1/2".to_owned(), d("height"));
    for level in 1..=5 {
        computed = computed
            .sub(&1.into())
            .unwrap()
            .floor_div(2)
            .unwrap()
            .add(&1.into())
            .unwrap();
        declared = format!("floor({declared})");
        assert_eq!(d(&format!("{declared} + 1")), computed);
        let n = 1 << level;
        assert_eq!(computed.to_string(), format!("floor((height + {})/{n})", n - 1));
        declared += "/2";
    }
}

#[test]
fn bad_text_is_refused() {
    for s in [
        "",
        " ",
        "a+",
        "(a",
        "a)",
        "a b",
        "1/0",
        "a/(3-5)",
        "a % 0",
        "99999999999999999999",
        "min()",
        "min(a,)",
        "floor(a, b)",
        "mod(a)",
        "é",
        "a.b",
        "1.5",
        "2h",
        "a**99",
        "a**b",
        "floor(a/2) + a/2.0",
        "p2o.DynamicDimension.0",
        "?",
    ] {
        assert!(Dim::parse(s).is_err(), "{s} was accepted");
    }
    for c in ["(", "-", "floor(", "min(a,", "2*("] {
        let text = c.repeat(10_000);
        let error = Dim::parse(&text).unwrap_err();
        // Long before the end, where something is missing.
        assert!(
            matches!(error, DimError::Parse { at, .. } if at < 1000),
            "{error}"
        );
        let error = error.to_string();
        assert!(error.len() < 400, "a message of {} bytes", error.len());
    }
    let long = "a+".repeat(1 << 16) + "a";
    let error = Dim::parse(&long).unwrap_err();
    assert!(matches!(error, DimError::Parse { at: 0, .. }), "{error}");
    let wide: Vec<String> = (0..300).map(|i| format!("a{i}")).collect();
    assert!(matches!(Dim::parse(&wide.join("+")), Err(DimError::TooLarge(_))));
    assert!(Dim::parse("(a+b+c+d+e)**16").is_err());
}

#[test]
fn identifiers() {
    for good in ["a", "_", "N2", "past_sequence_length"] {
        assert_eq!(Symbol::parse(good).unwrap().name(), good);
    }
    for bad in ["", "2h", "a-b", "p2o.0", "é", "a b", "a\0"] {
        assert_carries(Symbol::parse(bad).unwrap_err(), &[&format!("`{bad}`")]);
    }
    assert!(Symbol::parse(&"a".repeat(10_000)).unwrap_err().to_string().len() < 400);
}

#[test]
fn overflow_is_an_error() {
    let big: Dim = i64::MAX.into();
    assert!(big.add(&1.into()).is_err());
    assert!(big.mul(&d("n")).unwrap().eval(&[("n", 2)].into()).is_err());
    let min: Dim = i64::MIN.into();
    assert!(Dim::from(0).sub(&min).is_err());
    assert!(min.mul(&(-1).into()).is_err());
    assert_eq!(min.exact_div(&(-1).into()), None);
    assert_eq!(min.floor_div(1).unwrap(), min);
}

#[test]
fn a_divisor_must_be_positive() {
    let e = d("a // (b - 2)");
    assert_eq!(e.eval(&[("a", 7), ("b", 5)].into()).unwrap(), 2);
    let error = e.eval(&[("a", 7), ("b", 2)].into()).unwrap_err();
    assert!(matches!(error, DimError::Divisor { value: 0, .. }), "{error}");
    assert_carries(error, &["a", "b - 2", "0"]);
    assert!(d("a").floor_div(0).is_err());
    assert!(d("a").div_ceil(&(-1).into()).is_err());
}

/// Nesting grows with the length of a model, so it must end in an error and not in an overflow of
/// the stack.
#[test]
fn nesting_made_by_steps_is_refused() {
    let (a, b) = (d("a"), d("b"));
    let mut e = a.clone();
    let mut steps = 0;
    while let Ok(next) = e
        .mul(&b)
        .and_then(|e| e.maximum(&a))
        .and_then(|e| e.add(&1.into()))
    {
        e = next;
        steps += 1;
        assert!(steps < 1000, "{steps} levels were accepted");
    }
    assert!(steps > 20, "only {steps} levels");
    assert_eq!(Dim::parse(&e.to_string()).is_ok(), steps < 60);
    let mut wide = a;
    for i in 0..64 {
        let Ok(next) = wide
            .mul(&b)
            .and_then(|x| x.minimum(&wide.add(&Dim::symbol(&format!("s{i}")))?))
        else {
            return;
        };
        wide = next;
    }
    panic!("an expression of exponential size was accepted");
}

#[test]
fn replacing_symbols() {
    let with = [(Symbol::new("a"), d("b + 1")), (Symbol::new("b"), d("2*a"))].into();
    assert_eq!(d("a*b + c").replace(&with).unwrap(), d("2*a*b + 2*a + c"));
    assert_eq!(
        d("max(a, b // 2) % 4").replace(&with).unwrap(),
        d("max(b + 1, a) % 4")
    );
    let zero = [(Symbol::new("n"), d("0"))].into();
    assert!(d("m // n").replace(&zero).is_err());
}

/// An expression as the tests see it.
#[derive(Clone, Debug)]
pub(super) enum Expr {
    Number(i64),
    Symbol(&'static str),
    Two(&'static str, Box<Expr>, Box<Expr>),
    /// `floor((x*c + y)/n)` or `ceil`, in the exact form.
    Round(bool, Box<Expr>, i64, Box<Expr>, i64),
}

impl Expr {
    pub fn text(&self) -> String {
        self.text_in(false)
    }

    /// The text inside of a `floor`, where one sign divides exactly, or outside.
    fn text_in(&self, exact: bool) -> String {
        match self {
            Self::Number(v) => format!("({v})"),
            Self::Symbol(s) => (*s).to_owned(),
            Self::Two(f, a, b) => {
                let (a, b) = (a.text_in(exact), b.text_in(exact));
                match *f {
                    "min" | "max" | "mod" => format!("{f}({a}, {b})"),
                    "/" if exact => format!("({a} // {b})"),
                    _ => format!("({a} {f} {b})"),
                }
            }
            Self::Round(up, x, c, y, n) => {
                let name = if *up { "ceil" } else { "floor" };
                format!("{name}({c}*{}/{n} + {}/{n})", x.text_in(true), y.text_in(true))
            }
        }
    }

    /// The value by definition; `None` where it has none.
    pub fn value(&self, b: &Bindings) -> Option<i128> {
        let floor = |a: i128, b: i128| (b > 0).then(|| a.div_euclid(b));
        Some(match self {
            Self::Number(v) => (*v).into(),
            Self::Symbol(s) => b.get(&Symbol::new(s))?.into(),
            Self::Two(f, x, y) => {
                let (x, y) = (x.value(b)?, y.value(b)?);
                match *f {
                    "+" => x + y,
                    "-" => x - y,
                    "*" => x.checked_mul(y)?,
                    "min" => x.min(y),
                    "max" => x.max(y),
                    "%" | "mod" => x - y * floor(x, y)?,
                    _ => floor(x, y)?,
                }
            }
            Self::Round(up, x, c, y, n) => {
                let num = x.value(b)?.checked_mul((*c).into())? + y.value(b)?;
                if *up {
                    -floor(-num, (*n).into())?
                } else {
                    floor(num, (*n).into())?
                }
            }
        })
    }
}

pub(super) fn expr() -> impl Strategy<Value = Expr> {
    let leaf = prop_oneof![
        (-9i64..10).prop_map(Expr::Number),
        prop_oneof![Just("a"), Just("b"), Just("c")].prop_map(Expr::Symbol),
    ];
    leaf.prop_recursive(4, 24, 2, |inner| {
        let name = prop_oneof![
            4 => prop_oneof![Just("+"), Just("-"), Just("*")],
            2 => prop_oneof![Just("min"), Just("max")],
            1 => prop_oneof![Just("/"), Just("//"), Just("%"), Just("mod")],
        ];
        let boxed = inner.clone().prop_map(Box::new);
        let number = (1i64..9).prop_map(|n| Box::new(Expr::Number(n)));
        prop_oneof![
            4 => (name, boxed.clone(), boxed.clone()).prop_map(|(f, x, y)| Expr::Two(f, x, y)),
            1 => (boxed.clone(), number).prop_map(|(x, n)| Expr::Two("/", x, n)),
            1 => (any::<bool>(), boxed.clone(), -4i64..5, boxed, 1i64..9)
                .prop_map(|(up, x, c, y, n)| Expr::Round(up, x, c, y, n)),
        ]
    })
}

proptest! {
    #[test]
    fn normalising_keeps_the_value(e in expr(), a in -9i64..50, b in 0i64..50, c in 0i64..9) {
        let text = e.text();
        let bindings = Bindings::from([("a", a), ("b", b), ("c", c)]);
        let Ok(dim) = Dim::parse(&text) else { return Ok(()) };
        prop_assert_eq!(Dim::parse(&dim.to_string()), Ok(dim.clone()), "{} is not read back", text);
        // Where no value is defined there may be one, since a divisor that divides exactly is not
        // checked.
        let Some(value) = e.value(&bindings) else { return Ok(()) };
        match dim.eval(&bindings) {
            Ok(v) => prop_assert_eq!(i128::from(v), value, "{} became {}", text, dim),
            Err(DimError::Overflow(_)) => {}
            // What a factor that is negative was cancelled from.
            Err(DimError::Divisor { .. }) => prop_assert!(a < 0, "{} became {}", text, dim),
            Err(other) => return Err(TestCaseError::fail(other.to_string())),
        }
        if a >= 0 {
            if let Ok(high) = dim.upper_bound(&[("a", 50), ("b", 50), ("c", 50)].into()) {
                prop_assert!(value <= high.into(), "{} is above {}", text, high);
            }
            if dim.is_non_negative() {
                prop_assert!(value >= 0, "{} is negative", text);
            }
        }
        if let Ok(part) = dim.substitute(&[("a", a)].into()) {
            prop_assert_eq!(part.eval(&bindings).map(i128::from).unwrap_or(value), value);
        }
        let with = [(Symbol::new("a"), d("b + c")), (Symbol::new("b"), d("a - 1"))].into();
        let moved = Bindings::from([("a", b + 1), ("b", a - c), ("c", c)]);
        if let Ok(replaced) = dim.replace(&with) {
            prop_assert_eq!(replaced.eval(&moved).map(i128::from).unwrap_or(value), value);
        }
    }

    #[test]
    fn quotients_multiply_back(x in expr(), y in expr()) {
        let (Ok(x), Ok(y)) = (Dim::parse(&x.text()), Dim::parse(&y.text())) else { return Ok(()) };
        if let Some(q) = x.exact_div(&y) {
            prop_assert_eq!(q.mul(&y), Ok(x.clone()));
        }
        if let Ok(product) = x.mul(&y) && !y.is(0) {
            prop_assert_eq!(product.exact_div(&y), Some(x));
        }
    }

    #[test]
    fn parser_never_panics(text in "[a-c0-9+*/()min%floreci.,_ -]{0,60}") {
        if let Ok(dim) = Dim::parse(&text) {
            prop_assert_eq!(Dim::parse(&dim.to_string()), Ok(dim));
        }
    }

    #[test]
    fn parser_never_panics_on_any_text(text in any::<String>(), many in 1usize..400) {
        let _ = Dim::parse(&text);
        let _ = Dim::parse(&text.repeat(many));
        let _ = Symbol::parse(&text);
        prop_assert!(Symbol::parse(Symbol::new(&text).name()).is_ok() || text.len() > 200);
    }
}
