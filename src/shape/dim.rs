//! Symbolic integers in one normal form.
//!
//! A [`Dim`] is a constant plus a sum of integer-weighted products of atoms. An atom is a symbol or
//! an opaque `floor(a/b)`, `min` or `max` of other dims. Every constructor normalizes, so equality,
//! ordering and hashing are derived and cheap:
//!
//! * sums and products are expanded, equal products are combined, terms are sorted;
//! * `floor(a/n)` of a number `n` moves whole multiples of `n`, common factors and inner floors
//!   out; `ceil` and `mod` are expressed by it;
//! * `min` and `max` are flat, hold no two operands with a constant difference, and move terms that
//!   all operands share out.
//!
//! Arithmetic is checked: a result outside `i64` is an error, never a wrong number. The size and
//! depth of an expression are limited, so hostile input exhausts neither time nor stack. Clones
//! share their terms.

use super::parse;
use super::print::Unsigned;
use super::symbol::Symbol;
use crate::num;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Why an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DimError {
    /// A coefficient or value left the range of `i64`.
    #[error("integer overflow in {0}")]
    Overflow(String),
    /// An expression has too many parts or is too deeply nested; the text names the limit.
    #[error("expression too large: {0}")]
    TooLarge(String),
    /// A size is negative: the expression and its value.
    #[error("size {0} is negative: {1}")]
    Negative(String, i64),
    /// A symbol has no value.
    #[error("symbol `{0}` has no value")]
    Unbound(Symbol),
    /// A divisor is zero or negative: dividend and divisor.
    #[error("division of {0} by {1}: the divisor must be positive")]
    BadDivisor(String, i64),
    /// A divisor that depends on symbols is zero or negative under their values.
    #[error("division of {dividend} by {divisor}, which is {value}: the divisor must be positive")]
    Divisor {
        /// The dividend as an expression.
        dividend: String,
        /// The divisor as an expression.
        divisor: String,
        /// The value of the divisor.
        value: i64,
    },
    /// Not a valid C identifier.
    #[error("`{0}` is not a valid C identifier")]
    Symbol(String),
    /// The text is not an expression.
    #[error("`{text}` is not an integer expression: {why} at byte {at}")]
    Parse {
        /// The text, shortened if it is long.
        text: String,
        /// What was expected or found.
        why: &'static str,
        /// Byte position in `text`.
        at: usize,
    },
}

/// Maximum number of terms, so that products in hostile text cannot fill memory.
pub(super) const MAX_TERMS: usize = 256;

/// Maximum number of symbols, inner expressions counted at each occurrence.
pub(super) const MAX_SIZE: u32 = 4096;

/// Maximum nesting, so that hostile text cannot exhaust the stack.
pub(super) const MAX_DEPTH: u32 = 64;

/// A part that cannot be written as a sum of products.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Atom {
    Symbol(Symbol),
    Floor(Arc<Floor>),
    Min(Arc<Choice>),
    Max(Arc<Choice>),
}

/// `floor(num/den)`.
#[derive(Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Floor {
    pub num: Dim,
    /// Above 0 if it is a number; otherwise checked at evaluation.
    pub den: Dim,
    weight: Weight,
}

/// Operands of a `min` or `max`: two or more, sorted.
#[derive(Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Choice {
    pub args: Vec<Dim>,
    weight: Weight,
}

/// Size of an expression.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Weight {
    depth: u32,
    size: u32,
}

impl Weight {
    fn join(self, other: Self) -> Self {
        Self {
            depth: self.depth.max(other.depth),
            size: self.size.saturating_add(other.size),
        }
    }

    /// Weight of an atom that holds expressions of this weight.
    fn above(self) -> Result<Self, DimError> {
        Self {
            depth: self.depth + 1,
            ..self
        }
        .checked()
    }

    fn checked(self) -> Result<Self, DimError> {
        if self.size > MAX_SIZE {
            return Err(DimError::TooLarge(format!("more than {MAX_SIZE} symbols")));
        }
        if self.depth > MAX_DEPTH {
            return Err(DimError::TooLarge(format!("more than {MAX_DEPTH} levels")));
        }
        Ok(self)
    }
}

/// An integer-weighted product of one or more sorted atoms. The weight is not 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Term {
    pub product: Arc<[Atom]>,
    pub factor: i64,
}

/// A symbolic integer; see the module documentation.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Dim {
    /// Sorted, with distinct products; `None` if there are no terms.
    terms: Option<Arc<[Term]>>,
    constant: i64,
}

impl From<i64> for Dim {
    fn from(constant: i64) -> Self {
        Self {
            terms: None,
            constant,
        }
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
        Atom::Symbol(s.clone()).into()
    }
}

impl From<Atom> for Dim {
    fn from(atom: Atom) -> Self {
        Self {
            terms: Some(Arc::new([Term {
                product: Arc::new([atom]),
                factor: 1,
            }])),
            constant: 0,
        }
    }
}

/// The greatest common divisor of numbers, or 1 if that is 0 or outside `i64`.
pub(super) fn common_divisor(numbers: impl IntoIterator<Item = u64>) -> i64 {
    match i64::try_from(numbers.into_iter().fold(0, gcd)) {
        Ok(0) | Err(_) => 1,
        Ok(g) => g,
    }
}

/// The greatest common divisor; 0 only for two zeros.
pub(super) fn gcd(a: u64, b: u64) -> u64 {
    let (mut a, mut b) = (a, b);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The sorted product `whole` without the atoms of `part`; `None` if it does not hold them all.
pub(super) fn without(whole: &[Atom], part: &[Atom]) -> Option<Vec<Atom>> {
    let mut rest = Vec::with_capacity(whole.len().checked_sub(part.len())?);
    let mut part = part.iter().peekable();
    for atom in whole {
        if part.peek().is_some_and(|p| *p == atom) {
            part.next();
        } else {
            rest.push(atom.clone());
        }
    }
    part.peek().is_none().then_some(rest)
}

/// Merges two sorted products.
fn joined(a: &[Atom], b: &[Atom]) -> Arc<[Atom]> {
    let (mut x, mut y) = (a.iter().peekable(), b.iter().peekable());
    let mut out = Vec::with_capacity(a.len() + b.len());
    loop {
        let next = match (x.peek(), y.peek()) {
            (Some(p), Some(q)) if p <= q => x.next(),
            (_, Some(_)) => y.next(),
            (Some(_), None) => x.next(),
            (None, None) => return out.into(),
        };
        out.extend(next.cloned());
    }
}

impl Dim {
    /// The symbol `name`; characters that an identifier cannot hold become `_`.
    pub fn symbol(name: &str) -> Self {
        (&Symbol::new(name)).into()
    }

    /// The length, count or index `v`.
    pub fn from_usize(v: usize) -> Self {
        num::signed(v).into()
    }

    /// Parses an expression:
    ///
    /// * C identifiers, integers, parentheses, unary `-`, `+ - *`, and `**` with a small exponent;
    /// * `/` and `//`, both floor division, and `%`, its remainder, which has the sign of the
    ///   divisor;
    /// * `min` and `max` of one or more operands, `mod(a, b)`, `floor(..)`, `ceil(..)`, also as
    ///   `Min`, `Max`, `Mod`, `ceiling`, `FloorDiv`, `CeilDiv`.
    ///
    /// Inside `floor` and `ceil`, `/` is exact division and decimal fractions are allowed, as
    /// computer algebra systems print them: `floor(height/2 - 1/2)` is `floor((height - 1)/2)`.
    pub fn parse(text: &str) -> Result<Self, DimError> {
        parse::dim(text)
    }

    /// The sum of `terms`, in any order, and `constant`.
    fn collect(mut terms: Vec<Term>, constant: i64) -> Result<Self, DimError> {
        terms.sort_unstable_by(|a, b| a.product.cmp(&b.product));
        let mut out: Vec<Term> = Vec::with_capacity(terms.len());
        for t in terms {
            match out.last_mut() {
                Some(last) if last.product == t.product => {
                    last.factor = last.factor.checked_add(t.factor).ok_or_else(|| {
                        DimError::Overflow(format!("{} + {}", Unsigned(last), Unsigned(&t)))
                    })?;
                }
                _ => out.push(t),
            }
        }
        out.retain(|t| t.factor != 0);
        Self::sorted(out, constant)
    }

    /// The sum of `terms`, already in normal form, and `constant`.
    pub(super) fn sorted(terms: Vec<Term>, constant: i64) -> Result<Self, DimError> {
        if terms.len() > MAX_TERMS {
            return Err(DimError::TooLarge(format!("more than {MAX_TERMS} terms")));
        }
        weigh(&terms).checked()?;
        Ok(Self {
            terms: (!terms.is_empty()).then(|| terms.into()),
            constant,
        })
    }

    /// The terms, without the constant.
    pub(super) fn terms(&self) -> &[Term] {
        self.terms.as_deref().unwrap_or_default()
    }

    /// The constant, without the terms.
    pub(super) fn constant(&self) -> i64 {
        self.constant
    }

    /// The product of sorted `atoms`, times `factor`.
    pub(super) fn product_of(atoms: Vec<Atom>, factor: i64) -> Self {
        match (atoms.is_empty(), factor) {
            (_, 0) => 0.into(),
            (true, _) => factor.into(),
            _ => Self {
                terms: Some(Arc::new([Term {
                    product: atoms.into(),
                    factor,
                }])),
                constant: 0,
            },
        }
    }

    /// One term as an expression.
    pub(super) fn of_term(term: &Term) -> Self {
        Self {
            terms: Some(Arc::new([term.clone()])),
            constant: 0,
        }
    }

    /// The same terms with another constant.
    pub(super) fn with_constant(&self, constant: i64) -> Self {
        Self {
            terms: self.terms.clone(),
            constant,
        }
    }

    /// The value, if the expression is constant.
    pub fn as_const(&self) -> Option<i64> {
        self.terms.is_none().then_some(self.constant)
    }

    /// The symbol, if the expression is a single symbol.
    pub fn as_symbol(&self) -> Option<&Symbol> {
        match (self.terms(), self.constant) {
            ([Term { product, factor: 1 }], 0) => match product.as_ref() {
                [Atom::Symbol(s)] => Some(s),
                _ => None,
            },
            _ => None,
        }
    }

    /// True for the constant `v`.
    pub fn is(&self, v: i64) -> bool {
        self.as_const() == Some(v)
    }

    pub(super) fn overflow(&self, op: &str, other: &Self) -> DimError {
        DimError::Overflow(format!("({self}) {op} ({other})"))
    }

    /// `self + times * other`.
    fn plus(&self, other: &Self, times: i64) -> Option<Result<Self, DimError>> {
        let constant = self.constant.checked_add(other.constant.checked_mul(times)?)?;
        if other.terms.is_none() {
            return Some(Ok(self.with_constant(constant)));
        }
        if self.terms.is_none() && times == 1 {
            return Some(Ok(other.with_constant(constant)));
        }
        let (mut a, mut b) = (self.terms().iter().peekable(), other.terms().iter().peekable());
        let mut out = Vec::with_capacity(a.len() + b.len());
        loop {
            let order = match (a.peek(), b.peek()) {
                (Some(x), Some(y)) => x.product.cmp(&y.product),
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (None, None) => return Some(Self::sorted(out, constant)),
            };
            match order {
                std::cmp::Ordering::Less => out.extend(a.next().cloned()),
                std::cmp::Ordering::Greater => {
                    if let Some(y) = b.next() {
                        out.push(Term {
                            product: y.product.clone(),
                            factor: y.factor.checked_mul(times)?,
                        });
                    }
                }
                std::cmp::Ordering::Equal => {
                    if let (Some(x), Some(y)) = (a.next(), b.next()) {
                        let factor = x.factor.checked_add(y.factor.checked_mul(times)?)?;
                        if factor != 0 {
                            out.push(Term {
                                product: x.product.clone(),
                                factor,
                            });
                        }
                    }
                }
            }
        }
    }

    /// The sum; an error if a coefficient overflows.
    pub fn add(&self, other: &Self) -> Result<Self, DimError> {
        self.plus(other, 1)
            .unwrap_or_else(|| Err(self.overflow("+", other)))
    }

    /// The difference; an error if a coefficient overflows.
    pub fn sub(&self, other: &Self) -> Result<Self, DimError> {
        self.plus(other, -1)
            .unwrap_or_else(|| Err(self.overflow("-", other)))
    }

    pub(super) fn scale(&self, times: i64) -> Result<Self, DimError> {
        match times {
            0 => Ok(0.into()),
            1 => Ok(self.clone()),
            _ => Self::default()
                .plus(self, times)
                .unwrap_or_else(|| Err(self.overflow("*", &times.into()))),
        }
    }

    /// The expanded product; an error if a coefficient overflows.
    pub fn mul(&self, other: &Self) -> Result<Self, DimError> {
        if let Some(v) = other.as_const() {
            return self.scale(v);
        }
        if let Some(v) = self.as_const() {
            return other.scale(v);
        }
        let overflow = || self.overflow("*", other);
        let mut out = Vec::with_capacity((self.terms().len() + 1) * (other.terms().len() + 1));
        for a in self.terms() {
            for b in other.terms() {
                out.push(Term {
                    product: joined(&a.product, &b.product),
                    factor: a.factor.checked_mul(b.factor).ok_or_else(overflow)?,
                });
            }
        }
        for (one, times) in [(self, other.constant), (other, self.constant)] {
            if times != 0 {
                for t in one.terms() {
                    out.push(Term {
                        product: t.product.clone(),
                        factor: t.factor.checked_mul(times).ok_or_else(overflow)?,
                    });
                }
            }
        }
        let constant = self.constant.checked_mul(other.constant).ok_or_else(overflow)?;
        Self::collect(out, constant)
    }

    /// `floor(num/den)` of normalized expressions.
    pub(super) fn floor_atom(num: Self, den: Self) -> Result<Self, DimError> {
        let weight = num.weight().join(den.weight()).above()?;
        Ok(Atom::Floor(Arc::new(Floor { num, den, weight })).into())
    }

    /// `min(args)` or `max(args)` of two or more normalized expressions.
    pub(super) fn choice_atom(args: Vec<Self>, smallest: bool) -> Result<Self, DimError> {
        let all = args.iter().fold(Weight::default(), |w, a| w.join(a.weight()));
        let weight = all.above()?;
        let choice = Arc::new(Choice { args, weight });
        let atom = if smallest {
            Atom::Min(choice)
        } else {
            Atom::Max(choice)
        };
        Ok(atom.into())
    }

    fn weight(&self) -> Weight {
        weigh(self.terms())
    }

    /// True for a sum of products of symbols, without quotients, `min` or `max`.
    pub fn is_polynomial(&self) -> bool {
        let plain = |t: &Term| t.product.iter().all(|a| matches!(a, Atom::Symbol(_)));
        self.terms().iter().all(plain)
    }

    /// True if the signs of the terms alone show that it is never negative for symbols of 0 or
    /// more.
    pub fn is_non_negative(&self) -> bool {
        let atom = |a: &Atom| match a {
            Atom::Symbol(_) => true,
            Atom::Floor(f) => f.num.is_non_negative(),
            Atom::Min(c) => c.args.iter().all(Self::is_non_negative),
            Atom::Max(c) => c.args.iter().any(Self::is_non_negative),
        };
        let term = |t: &Term| t.factor >= 0 && t.product.iter().all(atom);
        self.constant >= 0 && self.terms().iter().all(term)
    }

    /// Adds every symbol of the expression to `out`.
    pub fn symbols(&self, out: &mut BTreeSet<Symbol>) {
        for atom in self.terms().iter().flat_map(|t| t.product.iter()) {
            match atom {
                Atom::Symbol(s) => {
                    out.insert(s.clone());
                }
                Atom::Floor(f) => {
                    f.num.symbols(out);
                    f.den.symbols(out);
                }
                Atom::Min(c) | Atom::Max(c) => c.args.iter().for_each(|a| a.symbols(out)),
            }
        }
    }

    /// The sum of `dims`.
    pub fn sum<'a>(dims: impl IntoIterator<Item = &'a Self>) -> Result<Self, DimError> {
        dims.into_iter().try_fold(Self::default(), |sum, d| sum.add(d))
    }

    /// True if the symbol occurs in the expression.
    pub fn depends_on(&self, symbol: &Symbol) -> bool {
        self.terms()
            .iter()
            .flat_map(|t| t.product.iter())
            .any(|a| a.holds(symbol))
    }
}

fn weigh(terms: &[Term]) -> Weight {
    terms
        .iter()
        .flat_map(|t| t.product.iter())
        .fold(Weight::default(), |w, a| w.join(a.weight()))
}

impl Atom {
    fn weight(&self) -> Weight {
        match self {
            Self::Symbol(_) => Weight { depth: 0, size: 1 },
            Self::Floor(f) => f.weight,
            Self::Min(c) | Self::Max(c) => c.weight,
        }
    }
}
