//! Values, substitution and ranges of [`Dim`].

use super::dim::{Atom, Choice, Dim, DimError, Floor};
use super::symbol::{Bindings, Symbol};
use std::collections::BTreeMap;

impl Dim {
    /// The value under `bindings`; an error if a symbol is unbound.
    pub fn eval(&self, bindings: &Bindings) -> Result<i64, DimError> {
        let over = || DimError::Overflow(self.to_string());
        let mut sum = self.constant();
        for t in self.terms() {
            let mut product = 1i64;
            for atom in t.product.iter() {
                product = product.checked_mul(atom.eval(bindings)?).ok_or_else(over)?;
            }
            product = product.checked_mul(t.factor).ok_or_else(over)?;
            sum = sum.checked_add(product).ok_or_else(over)?;
        }
        Ok(sum)
    }

    /// Replaces bound symbols by their values and normalizes again.
    pub fn substitute(&self, bindings: &Bindings) -> Result<Self, DimError> {
        self.map(&|s| bindings.get(s).map(Self::from))
    }

    /// Replaces symbols by expressions, all at once, and normalizes again.
    pub fn replace(&self, with: &BTreeMap<Symbol, Self>) -> Result<Self, DimError> {
        if with.is_empty() {
            return Ok(self.clone());
        }
        self.map(&|s| with.get(s).cloned())
    }

    /// Replaces every symbol for which `with` returns an expression.
    pub(super) fn map(&self, with: &dyn Fn(&Symbol) -> Option<Self>) -> Result<Self, DimError> {
        let mut kept = Vec::with_capacity(self.terms().len());
        let mut changed = Self::from(self.constant());
        for t in self.terms() {
            if t.product.iter().any(|a| a.touched(with)) {
                let mut product = Self::from(t.factor);
                for atom in t.product.iter() {
                    product = product.mul(&atom.map(with)?)?;
                }
                changed = changed.add(&product)?;
            } else {
                kept.push(t.clone());
            }
        }
        changed.add(&Self::sorted(kept, 0)?)
    }

    fn touched(&self, with: &dyn Fn(&Symbol) -> Option<Self>) -> bool {
        self.terms()
            .iter()
            .flat_map(|t| t.product.iter())
            .any(|a| a.touched(with))
    }

    /// An upper bound while every symbol stays within `0..=bound`, by interval arithmetic over the
    /// terms. A symbol without a bound is [`DimError::Unbound`].
    pub fn upper_bound(&self, bounds: &Bindings) -> Result<i64, DimError> {
        Ok(self.bounds(bounds)?.1)
    }

    /// A lower and an upper bound, as in [`Dim::upper_bound`].
    pub fn bounds(&self, bounds: &Bindings) -> Result<(i64, i64), DimError> {
        let over = || DimError::Overflow(self.to_string());
        let (mut lo, mut hi) = (self.constant(), self.constant());
        for t in self.terms() {
            let (mut l, mut h) = (t.factor, t.factor);
            for atom in t.product.iter() {
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
}

impl Atom {
    /// True if the symbol occurs in it.
    pub(super) fn holds(&self, symbol: &Symbol) -> bool {
        self.touched(&|s| (s == symbol).then(Dim::default))
    }

    fn touched(&self, with: &dyn Fn(&Symbol) -> Option<Dim>) -> bool {
        match self {
            Self::Symbol(s) => with(s).is_some(),
            Self::Floor(f) => f.num.touched(with) || f.den.touched(with),
            Self::Min(c) | Self::Max(c) => c.args.iter().any(|a| a.touched(with)),
        }
    }

    fn eval(&self, b: &Bindings) -> Result<i64, DimError> {
        Ok(match self {
            Self::Symbol(s) => b.get(s).ok_or_else(|| DimError::Unbound(s.clone()))?,
            Self::Floor(f) => {
                let (num, den) = (f.num.eval(b)?, f.den.eval(b)?);
                if den <= 0 {
                    return Err(f.bad_divisor(den));
                }
                num.div_euclid(den)
            }
            Self::Min(c) => pick(c, |a| a.eval(b), i64::min)?,
            Self::Max(c) => pick(c, |a| a.eval(b), i64::max)?,
        })
    }

    fn map(&self, with: &dyn Fn(&Symbol) -> Option<Dim>) -> Result<Dim, DimError> {
        let all = |c: &Choice| c.args.iter().map(|a| a.map(with)).collect::<Result<Vec<_>, _>>();
        match self {
            _ if !self.touched(with) => Ok(self.clone().into()),
            Self::Symbol(s) => Ok(with(s).unwrap_or_else(|| s.into())),
            Self::Floor(f) => f.num.map(with)?.div_floor(&f.den.map(with)?),
            Self::Min(c) => Dim::choose(all(c)?, true),
            Self::Max(c) => Dim::choose(all(c)?, false),
        }
    }

    fn range(&self, bounds: &Bindings) -> Result<(i64, i64), DimError> {
        let both = |c: &Choice, f: fn(i64, i64) -> i64| -> Result<(i64, i64), DimError> {
            Ok((
                pick(c, |a| Ok(a.bounds(bounds)?.0), f)?,
                pick(c, |a| Ok(a.bounds(bounds)?.1), f)?,
            ))
        };
        Ok(match self {
            Self::Symbol(s) => (0, bounds.get(s).ok_or_else(|| DimError::Unbound(s.clone()))?),
            Self::Floor(f) => {
                let ((l, h), (dl, dh)) = (f.num.bounds(bounds)?, f.den.bounds(bounds)?);
                if dh <= 0 {
                    return Err(f.bad_divisor(dh));
                }
                let dl = dl.max(1);
                (
                    l.div_euclid(dl).min(l.div_euclid(dh)),
                    h.div_euclid(dl).max(h.div_euclid(dh)),
                )
            }
            Self::Min(c) => both(c, i64::min)?,
            Self::Max(c) => both(c, i64::max)?,
        })
    }
}

impl Floor {
    pub(super) fn bad_divisor(&self, value: i64) -> DimError {
        DimError::Divisor {
            dividend: self.num.to_string(),
            divisor: self.den.to_string(),
            value,
        }
    }
}

/// Folds the operands of `choice` with `better`.
fn pick(
    choice: &Choice,
    value: impl Fn(&Dim) -> Result<i64, DimError>,
    better: fn(i64, i64) -> i64,
) -> Result<i64, DimError> {
    let mut best: Option<i64> = None;
    for a in &choice.args {
        let v = value(a)?;
        best = Some(best.map_or(v, |b| better(b, v)));
    }
    Ok(best.unwrap_or(0))
}
