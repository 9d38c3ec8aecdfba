//! Questions about expressions that [`Constraints`] decide.

use super::Constraints;
use crate::shape::bounds::{Interval, Question};
use crate::shape::dim::{Atom, Dim, DimError, Term, common_divisor};
use crate::shape::symbol::Symbol;

/// How two expressions compare in every run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// The same value in every run.
    Equal,
    /// Never the same value; either one may be larger.
    NotEqual,
    /// The first is never larger; they may be equal.
    LessOrEqual,
    /// The first is never smaller; they may be equal.
    GreaterOrEqual,
    /// The first is always smaller.
    Less,
    /// The first is always larger.
    Greater,
    /// Not known, or it differs between runs.
    Unknown,
}

impl Constraints {
    pub(super) fn question<T>(&self, ask: impl FnOnce(&Question<'_>) -> T) -> T {
        let bound = |s: &Symbol| self.interval(s);
        ask(&Question::new(&bound, &self.positive))
    }

    /// `dim` with solved symbols replaced.
    fn forward(&self, dim: &Dim) -> Option<Dim> {
        dim.replace(&self.solved).ok()
    }

    /// `dim` without hidden symbols.
    pub(super) fn backward(&self, dim: &Dim) -> Result<Dim, DimError> {
        if self.hidden.is_empty() {
            return Ok(dim.clone());
        }
        let mut out = Dim::from(dim.constant());
        for t in dim.terms() {
            let (mut factor, mut product) = (t.factor, Dim::from(1));
            for atom in t.product.iter() {
                let with = match atom {
                    Atom::Symbol(s) => match self.hidden.get(s) {
                        // k*(N/n) is (k/g)*floor(N*g/n), which is N itself if n divides k.
                        Some(part) => {
                            let g = common_divisor([factor.unsigned_abs(), part.by.unsigned_abs()]);
                            factor /= g;
                            Dim::from(&part.base).floor_div(part.by / g)?
                        }
                        None => s.into(),
                    },
                    other => self.rebuilt(other, &|d| self.backward(d))?,
                };
                product = product.mul(&with)?;
            }
            out = out.add(&product.scale(factor)?)?;
        }
        Ok(out)
    }

    /// Rebuilds an atom with `change` applied to its inner expressions.
    fn rebuilt(&self, atom: &Atom, change: &dyn Fn(&Dim) -> Result<Dim, DimError>) -> Result<Dim, DimError> {
        let all = |args: &[Dim]| args.iter().map(change).collect::<Result<Vec<_>, _>>();
        match atom {
            Atom::Symbol(s) => Ok(s.into()),
            Atom::Floor(f) => change(&f.num)?.div_floor(&change(&f.den)?),
            Atom::Min(c) => Dim::choose(self.pruned(all(&c.args)?, true), true),
            Atom::Max(c) => Dim::choose(self.pruned(all(&c.args)?, false), false),
        }
    }

    /// The operands of a `min` or `max` that can affect its value.
    fn pruned(&self, mut args: Vec<Dim>, smallest: bool) -> Vec<Dim> {
        let mut i = 0;
        while i < args.len() {
            let beaten = |(j, other): (usize, &Dim)| {
                let d = if smallest {
                    args[i].sub(other)
                } else {
                    other.sub(&args[i])
                };
                j != i && d.is_ok_and(|d| self.question(|q| q.at_least(&d, 0)))
            };
            if args.iter().enumerate().any(beaten) {
                args.remove(i);
            } else {
                i += 1;
            }
        }
        args
    }

    /// `dim` without solved symbols; bounds are used to simplify `floor`, `min` and `max`.
    fn decided(&self, dim: &Dim) -> Result<Dim, DimError> {
        let plain = |t: &Term| t.product.iter().all(|a| matches!(a, Atom::Symbol(_)));
        if dim.terms().iter().all(plain) {
            return Ok(dim.clone());
        }
        let mut out = Dim::from(dim.constant());
        for t in dim.terms() {
            let mut product = Dim::from(t.factor);
            for atom in t.product.iter() {
                let mut new = self.rebuilt(atom, &|d| self.decided(d))?;
                if matches!(atom, Atom::Floor(_))
                    && let (Some(l), Some(h)) = self.whole(&new)
                    && l == h
                {
                    new = l.into();
                }
                product = product.mul(&new)?;
            }
            out = out.add(&product)?;
        }
        Ok(out)
    }

    fn whole(&self, dim: &Dim) -> (Option<i64>, Option<i64>) {
        let i = self.question(|q| q.range(dim));
        let small = |v: Option<i128>| v.and_then(|v| i64::try_from(v).ok());
        (small(i.lo), small(i.hi))
    }

    /// Simplifies `dim` under the constraints: solved symbols are replaced, and bounds decide what
    /// they can. The result is equal for every binding that satisfies the constraints.
    pub fn apply(&self, dim: &Dim) -> Dim {
        if dim.as_const().is_some() {
            return dim.clone();
        }
        let new = dim
            .replace(&self.solved)
            .and_then(|d| self.decided(&d))
            .and_then(|d| self.backward(&d));
        new.unwrap_or_else(|_| dim.clone())
    }

    /// Bounds of `dim` over all bindings that satisfy the constraints; `None` if unknown.
    pub fn range(&self, dim: &Dim) -> (Option<i64>, Option<i64>) {
        match self.forward(dim) {
            Some(d) => self.whole(&d),
            None => (None, None),
        }
    }

    /// The difference after replacement, or before it if that is already constant.
    fn difference(&self, a: &Dim, b: &Dim) -> Option<Dim> {
        if a == b {
            return Some(0.into());
        }
        let d = a.sub(b).ok()?;
        if d.as_const().is_some() {
            Some(d)
        } else {
            self.forward(&d)
        }
    }

    /// `Some(true)` if both have the same value in every run, `Some(false)` if in none, `None` if
    /// unknown.
    pub fn equal(&self, a: &Dim, b: &Dim) -> Option<bool> {
        match self.compare(a, b) {
            Relation::Equal => Some(true),
            Relation::NotEqual | Relation::Less | Relation::Greater => Some(false),
            _ => None,
        }
    }

    /// `Some(true)` if `dim >= v` holds in every run, `Some(false)` if in none, `None` if unknown.
    pub fn at_least(&self, dim: &Dim, v: i64) -> Option<bool> {
        self.le(&v.into(), dim)
    }

    /// `Some(true)` if `a <= b` holds in every run, `Some(false)` if in none, `None` if unknown.
    pub fn le(&self, a: &Dim, b: &Dim) -> Option<bool> {
        let d = self.difference(a, b)?;
        if let Some(v) = d.as_const() {
            return Some(v <= 0);
        }
        let minus = d.scale(-1).ok()?;
        let samples = self.question(|q| q.samples(&d));
        let (may, must) = (samples.iter().any(|v| *v <= 0), samples.iter().all(|v| *v <= 0));
        if must && self.question(|q| q.at_least(&minus, 0)) {
            return Some(true);
        }
        if !may && self.question(|q| q.at_least(&d, 1)) {
            return Some(false);
        }
        if may && !must {
            None
        } else {
            self.by_quotient(a, b)
        }
    }

    /// Decides `a <= b` by division: `b == q*a` with `a >= 0` and `q >= 1`, or the reverse.
    fn by_quotient(&self, a: &Dim, b: &Dim) -> Option<bool> {
        let (a, b) = (self.forward(a)?, self.forward(b)?);
        let least = |d: &Dim, v: i128| self.question(|q| q.at_least(d, v));
        if let Some(q) = b.exact_div(&a)
            && least(&q, 1)
            && least(&a, 0)
        {
            return Some(true);
        }
        // If a == q*b with q >= 2 and b >= 1, then a is larger.
        let q = a.exact_div(&b)?;
        (least(&q, 2) && least(&b, 1)).then_some(false)
    }

    /// The quotient, if `b` divides `a` without remainder in every run.
    pub fn divide(&self, a: &Dim, b: &Dim) -> Option<Dim> {
        if let Some(q) = a.exact_div(b) {
            return Some(q);
        }
        let q = self.forward(a)?.exact_div(&self.forward(b)?)?;
        self.backward(&q).ok()
    }

    /// Compares the two over all runs.
    pub fn compare(&self, a: &Dim, b: &Dim) -> Relation {
        let Some(d) = self.difference(a, b) else {
            return Relation::Unknown;
        };
        let never = d.constant() != 0 && d.constant().unsigned_abs() % d.content().max(1) != 0;
        let range = if let Some(v) = d.as_const() {
            Interval::number(v.into())
        } else {
            let samples = self.question(|q| q.samples(&d));
            if samples.iter().any(|v| *v < 0) && samples.iter().any(|v| *v > 0) {
                return if never {
                    Relation::NotEqual
                } else {
                    Relation::Unknown
                };
            }
            self.question(|q| q.range(&d))
        };
        match (range.lo, range.hi) {
            (Some(0), Some(0)) => Relation::Equal,
            (Some(1..), _) => Relation::Greater,
            (_, Some(h)) if h < 0 => Relation::Less,
            _ if never => Relation::NotEqual,
            (Some(0), _) => Relation::GreaterOrEqual,
            (_, Some(0)) => Relation::LessOrEqual,
            _ if self.by_quotient(a, b) == Some(true) => Relation::LessOrEqual,
            _ if self.by_quotient(b, a) == Some(true) => Relation::GreaterOrEqual,
            _ => Relation::Unknown,
        }
    }
}
