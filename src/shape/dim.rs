//! Symbolic integers in one normal form.
//!
//! A [`Dim`] is a sum of integer-weighted products of atoms. An atom is a symbol, or an opaque
//! `floordiv`, `min` or `max` of other dims. Every constructor normalises, so equality, ordering and
//! hashing are derived and cheap. Arithmetic is checked: a result outside `i64` is an error, never a
//! wrong number.

use super::symbol::{Bindings, Symbol};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Why an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DimError {
    /// A coefficient or value left the range of `i64`.
    #[error("integer overflow in {0}")]
    Overflow(String),
    /// A symbol without a value was met.
    #[error("symbol `{0}` has no value")]
    Unbound(Symbol),
    /// A divisor is zero or negative.
    #[error("division of {0} by {1}")]
    BadDivisor(String, i64),
    /// Text that is no expression.
    #[error("`{text}` is not an integer expression: {why} at byte {at}")]
    Parse {
        /// The whole text.
        text: String,
        /// What was expected or found.
        why: &'static str,
        /// Position in `text`.
        at: usize,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Atom {
    Symbol(Symbol),
    FloorDiv(Box<Dim>, i64),
    Min(Box<Dim>, Box<Dim>),
    Max(Box<Dim>, Box<Dim>),
}

/// A product of atoms, sorted; the empty product is 1.
type Monomial = Vec<Atom>;

/// A symbolic integer; see the module documentation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Dim {
    /// Never holds a zero coefficient.
    terms: BTreeMap<Monomial, i64>,
}

impl From<i64> for Dim {
    fn from(v: i64) -> Self {
        let mut terms = BTreeMap::new();
        if v != 0 {
            terms.insert(Vec::new(), v);
        }
        Self { terms }
    }
}

impl From<i32> for Dim {
    fn from(v: i32) -> Self {
        i64::from(v).into()
    }
}

impl From<u32> for Dim {
    fn from(v: u32) -> Self {
        i64::from(v).into()
    }
}

impl From<&Symbol> for Dim {
    fn from(s: &Symbol) -> Self {
        Self::atom(Atom::Symbol(s.clone()))
    }
}

impl Dim {
    /// The symbol `name`.
    pub fn symbol(name: &str) -> Self {
        (&Symbol::new(name)).into()
    }

    /// The number `v`; saturates above `i64`.
    pub fn from_usize(v: usize) -> Self {
        i64::try_from(v).unwrap_or(i64::MAX).into()
    }

    /// Reads `text`: identifiers, integers, `+ - *`, `/` or `//` (floor division by a positive
    /// integer), unary minus, `min(a, b)`, `max(a, b)` and parentheses.
    pub fn parse(text: &str) -> Result<Self, DimError> {
        Parser {
            text,
            at: 0,
            depth: 0,
        }
        .whole()
    }

    fn atom(a: Atom) -> Self {
        Self {
            terms: BTreeMap::from([(vec![a], 1)]),
        }
    }

    /// The number, when the expression is constant.
    pub fn as_const(&self) -> Option<i64> {
        match self.terms.len() {
            0 => Some(0),
            1 => self.terms.get(&Vec::new() as &Monomial).copied(),
            _ => None,
        }
    }

    /// True for the constant `v`.
    pub fn is(&self, v: i64) -> bool {
        self.as_const() == Some(v)
    }

    fn overflow(&self, op: &str, other: &Self) -> DimError {
        DimError::Overflow(format!("({self}) {op} ({other})"))
    }

    /// `self + other`.
    pub fn add(&self, other: &Self) -> Result<Self, DimError> {
        let mut terms = self.terms.clone();
        for (m, c) in &other.terms {
            let slot = terms.entry(m.clone()).or_insert(0);
            *slot = slot.checked_add(*c).ok_or_else(|| self.overflow("+", other))?;
            if *slot == 0 {
                terms.remove(m);
            }
        }
        if terms.len() > MAX_TERMS {
            return Err(DimError::Overflow(format!(
                "an expression of more than {MAX_TERMS} terms"
            )));
        }
        Ok(Self { terms })
    }

    /// `self - other`.
    pub fn sub(&self, other: &Self) -> Result<Self, DimError> {
        self.add(&other.mul(&(-1).into())?)
    }

    /// `self * other`.
    pub fn mul(&self, other: &Self) -> Result<Self, DimError> {
        let mut out = Self::default();
        for (ma, ca) in &self.terms {
            let mut terms = BTreeMap::new();
            for (mb, cb) in &other.terms {
                let mut m: Monomial = ma.iter().chain(mb).cloned().collect();
                m.sort();
                let c = ca.checked_mul(*cb).ok_or_else(|| self.overflow("*", other))?;
                terms.insert(m, c);
            }
            out = out.add(&Self { terms })?;
        }
        Ok(out)
    }

    /// The quotient, when `other` divides `self` for every binding by the rules known here: each term of
    /// `self` divided by the single term `other` leaves an integer-weighted product, or `self` is a
    /// constant multiple of `other`.
    pub fn exact_div(&self, other: &Self) -> Option<Self> {
        if other.terms.is_empty() {
            return None;
        }
        if self.terms.is_empty() {
            return Some(0.into());
        }
        if other.terms.len() == 1 {
            let (m, c) = other.terms.iter().next()?;
            let mut terms = BTreeMap::new();
            for (tm, tc) in &self.terms {
                if tc.checked_rem(*c)? != 0 {
                    return None;
                }
                let mut rest = tm.clone();
                for atom in m {
                    let i = rest.iter().position(|a| a == atom)?;
                    rest.remove(i);
                }
                terms.insert(rest, tc.checked_div(*c)?);
            }
            return Some(Self { terms });
        }
        // A constant multiple, or a multiple by one product: guess from the first terms, then check.
        let (m0, c0) = other.terms.iter().next()?;
        for (tm, tc) in &self.terms {
            let lead = Self {
                terms: BTreeMap::from([(tm.clone(), *tc)]),
            };
            let div = Self {
                terms: BTreeMap::from([(m0.clone(), *c0)]),
            };
            if let Some(q) = lead.exact_div(&div)
                && q.mul(other).is_ok_and(|p| p == *self)
            {
                return Some(q);
            }
        }
        None
    }

    /// `floor(self / divisor)` for a positive `divisor`; terms that divide exactly are taken out.
    pub fn floor_div(&self, divisor: i64) -> Result<Self, DimError> {
        if divisor <= 0 {
            return Err(DimError::BadDivisor(self.to_string(), divisor));
        }
        if divisor == 1 {
            return Ok(self.clone());
        }
        if let Some(v) = self.as_const() {
            return Ok(v.div_euclid(divisor).into());
        }
        let mut whole = Self::default();
        let mut rest = Self::default();
        for (m, c) in &self.terms {
            let q = c.div_euclid(divisor);
            let r = c.rem_euclid(divisor);
            if q != 0 {
                whole.terms.insert(m.clone(), q);
            }
            if r != 0 {
                rest.terms.insert(m.clone(), r);
            }
        }
        if let Some(v) = rest.as_const() {
            return whole.add(&v.div_euclid(divisor).into());
        }
        whole.add(&Self::atom(Atom::FloorDiv(Box::new(rest), divisor)))
    }

    /// `ceil(self / divisor)` for a positive `divisor`.
    pub fn ceil_div(&self, divisor: i64) -> Result<Self, DimError> {
        if let Some(q) = self.exact_div(&divisor.into()) {
            return Ok(q);
        }
        self.add(&(divisor - 1).into())?.floor_div(divisor)
    }

    /// The smaller of two.
    pub fn minimum(&self, other: &Self) -> Result<Self, DimError> {
        Ok(match self.sub(other)?.as_const() {
            Some(d) if d <= 0 => self.clone(),
            Some(_) => other.clone(),
            None => {
                let (a, b) = if self <= other {
                    (self, other)
                } else {
                    (other, self)
                };
                Self::atom(Atom::Min(Box::new(a.clone()), Box::new(b.clone())))
            }
        })
    }

    /// The larger of two.
    pub fn maximum(&self, other: &Self) -> Result<Self, DimError> {
        Ok(match self.sub(other)?.as_const() {
            Some(d) if d >= 0 => self.clone(),
            Some(_) => other.clone(),
            None => {
                let (a, b) = if self <= other {
                    (self, other)
                } else {
                    (other, self)
                };
                Self::atom(Atom::Max(Box::new(a.clone()), Box::new(b.clone())))
            }
        })
    }

    /// True when no binding of symbols to 0 or more makes it negative, by the signs of its terms alone.
    pub fn is_non_negative(&self) -> bool {
        let atom = |a: &Atom| match a {
            Atom::Symbol(_) => true,
            Atom::FloorDiv(d, _) => d.is_non_negative(),
            Atom::Min(x, y) => x.is_non_negative() && y.is_non_negative(),
            Atom::Max(x, y) => x.is_non_negative() || y.is_non_negative(),
        };
        self.terms.iter().all(|(m, c)| *c >= 0 && m.iter().all(atom))
    }

    /// The value under `bindings`.
    pub fn eval(&self, bindings: &Bindings) -> Result<i64, DimError> {
        let mut sum = 0i64;
        for (m, c) in &self.terms {
            let mut product = *c;
            for atom in m {
                let v = atom.eval(bindings)?;
                product = product
                    .checked_mul(v)
                    .ok_or_else(|| DimError::Overflow(self.to_string()))?;
            }
            sum = sum
                .checked_add(product)
                .ok_or_else(|| DimError::Overflow(self.to_string()))?;
        }
        Ok(sum)
    }

    /// Replaces bound symbols by their values and normalises again.
    pub fn substitute(&self, bindings: &Bindings) -> Result<Self, DimError> {
        let mut out = Self::default();
        for (m, c) in &self.terms {
            let mut product = Self::from(*c);
            for atom in m {
                product = product.mul(&atom.substitute(bindings)?)?;
            }
            out = out.add(&product)?;
        }
        Ok(out)
    }

    /// The largest value while every symbol stays within `0..=bound`, by interval arithmetic over the
    /// terms. A symbol without a bound is [`DimError::Unbound`].
    pub fn upper_bound(&self, bounds: &Bindings) -> Result<i64, DimError> {
        Ok(self.range(bounds)?.1)
    }

    fn range(&self, bounds: &Bindings) -> Result<(i64, i64), DimError> {
        let over = || DimError::Overflow(self.to_string());
        let (mut lo, mut hi) = (0i64, 0i64);
        for (m, c) in &self.terms {
            let (mut l, mut h) = (*c, *c);
            for atom in m {
                let (al, ah) = atom.range(bounds)?;
                let mut all = [0i64; 4];
                for (slot, (a, b)) in all.iter_mut().zip([(l, al), (l, ah), (h, al), (h, ah)]) {
                    *slot = a.checked_mul(b).ok_or_else(over)?;
                }
                l = all.iter().copied().min().unwrap_or(0);
                h = all.iter().copied().max().unwrap_or(0);
            }
            lo = lo.checked_add(l).ok_or_else(over)?;
            hi = hi.checked_add(h).ok_or_else(over)?;
        }
        Ok((lo, hi))
    }

    /// Adds every symbol met to `out`.
    pub fn symbols(&self, out: &mut BTreeSet<Symbol>) {
        for atom in self.terms.keys().flatten() {
            match atom {
                Atom::Symbol(s) => {
                    out.insert(s.clone());
                }
                Atom::FloorDiv(a, _) => a.symbols(out),
                Atom::Min(a, b) | Atom::Max(a, b) => {
                    a.symbols(out);
                    b.symbols(out);
                }
            }
        }
    }
}

impl Atom {
    fn eval(&self, b: &Bindings) -> Result<i64, DimError> {
        Ok(match self {
            Self::Symbol(s) => b.get(s).ok_or_else(|| DimError::Unbound(s.clone()))?,
            Self::FloorDiv(d, n) => d.eval(b)?.div_euclid(*n),
            Self::Min(x, y) => x.eval(b)?.min(y.eval(b)?),
            Self::Max(x, y) => x.eval(b)?.max(y.eval(b)?),
        })
    }

    fn substitute(&self, b: &Bindings) -> Result<Dim, DimError> {
        match self {
            Self::Symbol(s) => Ok(b.get(s).map_or_else(|| s.into(), Dim::from)),
            Self::FloorDiv(d, n) => d.substitute(b)?.floor_div(*n),
            Self::Min(x, y) => x.substitute(b)?.minimum(&y.substitute(b)?),
            Self::Max(x, y) => x.substitute(b)?.maximum(&y.substitute(b)?),
        }
    }

    fn range(&self, bounds: &Bindings) -> Result<(i64, i64), DimError> {
        Ok(match self {
            Self::Symbol(s) => (0, bounds.get(s).ok_or_else(|| DimError::Unbound(s.clone()))?),
            Self::FloorDiv(d, n) => {
                let (l, h) = d.range(bounds)?;
                (l.div_euclid(*n), h.div_euclid(*n))
            }
            Self::Min(x, y) => {
                let ((a, b), (c, d)) = (x.range(bounds)?, y.range(bounds)?);
                (a.min(c), b.min(d))
            }
            Self::Max(x, y) => {
                let ((a, b), (c, d)) = (x.range(bounds)?, y.range(bounds)?);
                (a.max(c), b.max(d))
            }
        })
    }
}

impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Symbol(s) => write!(f, "{s}"),
            Self::FloorDiv(d, n) => write!(f, "(({d})/{n})"),
            Self::Min(a, b) => write!(f, "min({a}, {b})"),
            Self::Max(a, b) => write!(f, "max({a}, {b})"),
        }
    }
}

impl fmt::Display for Dim {
    /// Terms in order, constant last: `past + seq`, `2*N - 1`. The text parses back to an equal dim.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.terms.is_empty() {
            return f.write_str("0");
        }
        let constant_last = self
            .terms
            .iter()
            .skip(usize::from(self.terms.contains_key(&Vec::new() as &Monomial)));
        let constant = self.terms.get(&Vec::new() as &Monomial).map(|c| (Vec::new(), *c));
        let mut first = true;
        for (m, c) in constant_last.map(|(m, c)| (m.clone(), *c)).chain(constant) {
            let magnitude = c.unsigned_abs();
            match (first, c < 0) {
                (true, true) => f.write_str("-")?,
                (true, false) => {}
                (false, true) => f.write_str(" - ")?,
                (false, false) => f.write_str(" + ")?,
            }
            first = false;
            if m.is_empty() || magnitude != 1 {
                write!(f, "{magnitude}")?;
            }
            for (i, atom) in m.iter().enumerate() {
                if i > 0 || magnitude != 1 {
                    f.write_str("*")?;
                }
                write!(f, "{atom}")?;
            }
        }
        Ok(())
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

/// Expressions with more terms are refused, so that products in hostile text cannot fill the memory.
const MAX_TERMS: usize = 256;

/// Nesting deeper than this is refused, so that hostile text cannot exhaust the stack.
const MAX_DEPTH: usize = 64;

impl Parser<'_> {
    fn error(&self, why: &'static str) -> DimError {
        DimError::Parse {
            text: self.text.to_owned(),
            why,
            at: self.at,
        }
    }

    fn peek(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        while bytes.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        bytes.get(self.at).copied()
    }

    fn take(&mut self, c: u8) -> bool {
        let hit = self.peek() == Some(c);
        self.at += usize::from(hit);
        hit
    }

    fn word(&mut self) -> &str {
        let rest = self.text.get(self.at..).unwrap_or("");
        let n = rest
            .bytes()
            .take_while(|b| b.is_ascii_alphanumeric() || *b == b'_')
            .count();
        let word = rest.get(..n).unwrap_or("");
        self.at += n;
        word
    }

    fn whole(mut self) -> Result<Dim, DimError> {
        let d = self.sum()?;
        if self.peek().is_some() {
            Err(self.error("unexpected character"))
        } else {
            Ok(d)
        }
    }

    fn sum(&mut self) -> Result<Dim, DimError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.error("too deeply nested"));
        }
        let mut d = self.product()?;
        loop {
            if self.take(b'+') {
                d = d.add(&self.product()?)?;
            } else if self.take(b'-') {
                d = d.sub(&self.product()?)?;
            } else {
                self.depth -= 1;
                return Ok(d);
            }
        }
    }

    fn product(&mut self) -> Result<Dim, DimError> {
        let mut d = self.factor()?;
        loop {
            if self.take(b'*') {
                d = d.mul(&self.factor()?)?;
            } else if self.take(b'/') {
                self.take(b'/');
                let n = self
                    .factor()?
                    .as_const()
                    .ok_or_else(|| self.error("divisor is not a number"))?;
                d = d.floor_div(n)?;
            } else {
                return Ok(d);
            }
        }
    }

    fn factor(&mut self) -> Result<Dim, DimError> {
        match self.peek() {
            Some(b'-') => {
                self.at += 1;
                self.depth += 1;
                if self.depth > MAX_DEPTH {
                    return Err(self.error("too deeply nested"));
                }
                let d = self.factor()?.mul(&(-1).into());
                self.depth -= 1;
                d
            }
            Some(b'(') => {
                self.at += 1;
                let d = self.sum()?;
                if self.take(b')') {
                    Ok(d)
                } else {
                    Err(self.error("expected `)`"))
                }
            }
            Some(c) if c.is_ascii_digit() => {
                let word = self.word().to_owned();
                word.parse::<i64>()
                    .map(Dim::from)
                    .map_err(|_| self.error("not a 64-bit integer"))
            }
            Some(c) if c.is_ascii_alphabetic() || c == b'_' => {
                let word = self.word().to_owned();
                if matches!(word.as_str(), "min" | "max") && self.take(b'(') {
                    let a = self.sum()?;
                    if !self.take(b',') {
                        return Err(self.error("expected `,`"));
                    }
                    let b = self.sum()?;
                    if !self.take(b')') {
                        return Err(self.error("expected `)`"));
                    }
                    return if word == "min" {
                        a.minimum(&b)
                    } else {
                        a.maximum(&b)
                    };
                }
                Ok(Dim::symbol(&word))
            }
            Some(_) => Err(self.error("unexpected character")),
            None => Err(self.error("unexpected end")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn d(s: &str) -> Dim {
        Dim::parse(s).unwrap()
    }

    #[test]
    fn normal_form_decides_equality() {
        assert_eq!(
            d("sumN-N").add(&d("N")).unwrap(),
            d("sumN"),
            "the paper's concatenation example"
        );
        assert_eq!(d("2*h + h"), d("3*h"));
        assert_eq!(d("(a+b)*(a-b)"), d("a*a - b*b"));
        assert_eq!(d("(2*n+4)/2"), d("n+2"));
        assert_eq!(
            d("N*4096").exact_div(&d("N*32*128")),
            Some(1.into()),
            "the paper's reuse example"
        );
        assert_eq!(d("N*4096").exact_div(&d("sumN*256")), None);
        assert_eq!(d("a*c + b*c").exact_div(&d("a + b")), Some(d("c")));
    }

    #[test]
    fn text_round_trips() {
        for s in [
            "0",
            "-3",
            "past + seq",
            "2*N - 1",
            "(N + 3)/4",
            "min(a, b)*2",
            "a*b - c",
        ] {
            let e = d(s);
            assert_eq!(d(&e.to_string()), e, "{s} printed as {e}");
        }
        assert_eq!(d("past+seq").to_string(), "past + seq");
        assert_eq!(d("2*N-1").to_string(), "2*N - 1");
    }

    #[test]
    fn bad_text_is_refused() {
        for s in [
            "",
            "a+",
            "(a",
            "a b",
            "1/0",
            "a/b",
            "99999999999999999999",
            "min(a)",
            "é",
        ] {
            assert!(Dim::parse(s).is_err(), "{s} was accepted");
        }
        assert!(Dim::parse(&"(".repeat(10_000)).is_err());
        assert!(Dim::parse(&"-".repeat(10_000)).is_err());
    }

    #[test]
    fn overflow_is_an_error() {
        let big: Dim = i64::MAX.into();
        assert!(big.add(&1.into()).is_err());
        assert!(big.mul(&d("n")).unwrap().eval(&[("n", 2)].into()).is_err());
    }

    fn expr() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![
            (-9i64..10).prop_map(|v| format!("({v})")),
            prop_oneof![Just("a"), Just("b"), Just("c")].prop_map(str::to_owned),
        ];
        leaf.prop_recursive(4, 24, 2, |inner| {
            prop_oneof![
                (
                    inner.clone(),
                    inner.clone(),
                    prop_oneof![Just("+"), Just("-"), Just("*")]
                )
                    .prop_map(|(x, y, o)| format!("({x}{o}{y})")),
                (inner.clone(), 1i64..6).prop_map(|(x, n)| format!("({x}/{n})")),
                (inner.clone(), inner).prop_map(|(x, y)| format!("min({x}, {y})")),
            ]
        })
    }

    /// Evaluates the text directly, without normalising.
    fn brute(text: &str, b: &Bindings) -> i64 {
        fn go(p: &mut Parser<'_>, b: &Bindings) -> i64 {
            match p.peek() {
                Some(b'(') => {
                    p.at += 1;
                    let negative = p.take(b'-');
                    let x = go(p, b) * if negative { -1 } else { 1 };
                    let v = match p.peek() {
                        Some(b'+') => {
                            p.at += 1;
                            x + go(p, b)
                        }
                        Some(b'-') => {
                            p.at += 1;
                            x - go(p, b)
                        }
                        Some(b'*') => {
                            p.at += 1;
                            x * go(p, b)
                        }
                        Some(b'/') => {
                            p.at += 1;
                            x.div_euclid(go(p, b))
                        }
                        _ => x,
                    };
                    assert!(p.take(b')'), "test grammar");
                    v
                }
                _ => match p.word() {
                    "min" => {
                        p.take(b'(');
                        let x = go(p, b);
                        p.take(b',');
                        let y = go(p, b);
                        p.take(b')');
                        x.min(y)
                    }
                    w => w.parse().unwrap_or_else(|_| b.get(&Symbol::new(w)).unwrap()),
                },
            }
        }
        go(
            &mut Parser {
                text,
                at: 0,
                depth: 0,
            },
            b,
        )
    }

    proptest! {
        #[test]
        fn normalising_keeps_the_value(text in expr(), a in 0i64..50, b in 0i64..50, c in 0i64..50) {
            let bindings = Bindings::from([("a", a), ("b", b), ("c", c)]);
            if let Ok(e) = Dim::parse(&text) {
                prop_assert_eq!(e.eval(&bindings).unwrap(), brute(&text, &bindings), "{} became {}", text, e);
                prop_assert_eq!(Dim::parse(&e.to_string()).unwrap(), e.clone());
                let high = e.upper_bound(&[("a", 50), ("b", 50), ("c", 50)].into()).unwrap();
                prop_assert!(e.eval(&bindings).unwrap() <= high);
                let part = e.substitute(&[("a", a)].into()).unwrap();
                prop_assert_eq!(part.eval(&bindings).unwrap(), e.eval(&bindings).unwrap());
            }
        }

        #[test]
        fn parser_never_panics(text in "[a-c0-9+*/()min, -]{0,40}") {
            let _ = Dim::parse(&text);
        }
    }
}
