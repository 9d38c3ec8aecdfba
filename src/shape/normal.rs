//! Division, remainder, minimum and maximum of [`Dim`], each in its normal form.

use super::dim::{Atom, Dim, DimError, MAX_TERMS, Term, common_divisor, gcd, without};

/// A `min` or `max` with more operands is not flattened further.
const MAX_OPERANDS: usize = 32;

impl Dim {
    /// The leading term of a division: the first one of the highest degree.
    fn lead(&self) -> Option<&Term> {
        // `max_by` keeps the last of equals; of two products of one degree the smaller one leads.
        let order = |a: &&Term, b: &&Term| {
            let degree = a.product.len().cmp(&b.product.len());
            degree.then_with(|| b.product.cmp(&a.product))
        };
        self.terms().iter().max_by(order)
    }

    /// The quotient, if `self` is a multiple of `other` as a polynomial in its atoms.
    pub fn exact_div(&self, other: &Self) -> Option<Self> {
        if let Some(n) = other.as_const() {
            return self.divided(n);
        }
        let lead = other.lead()?;
        let (mut quotient, mut rest) = (Self::default(), self.clone());
        // Each step removes the leading term of the remainder for good. Longer quotients are not
        // kept.
        for _ in 0..MAX_TERMS {
            let Some(first) = rest.lead() else { break };
            let product = without(&first.product, &lead.product)?;
            if first.factor.checked_rem(lead.factor)? != 0 {
                return None;
            }
            let q = Self::product_of(product, first.factor.checked_div(lead.factor)?);
            rest = rest.sub(&q.mul(other).ok()?).ok()?;
            quotient = quotient.add(&q).ok()?;
        }
        rest.is(0).then_some(quotient)
    }

    /// Every coefficient divided by `n`; `None` if there is a remainder.
    fn divided(&self, n: i64) -> Option<Self> {
        let div = |c: i64| (c.checked_rem(n)? == 0).then(|| c.checked_div(n))?;
        let term = |t: &Term| {
            Some(Term {
                product: t.product.clone(),
                factor: div(t.factor)?,
            })
        };
        let terms = self.terms().iter().map(term).collect::<Option<Vec<_>>>()?;
        Self::sorted(terms, div(self.constant())?).ok()
    }

    /// The greatest common divisor of all coefficients; 0 if there are no terms.
    pub(super) fn content(&self) -> u64 {
        self.terms()
            .iter()
            .fold(0, |g, t| gcd(g, t.factor.unsigned_abs()))
    }

    /// Divides every term by `n` and the constant with rounding down.
    pub(super) fn reduced(&self, n: i64) -> Result<Self, DimError> {
        let bad = || DimError::BadDivisor(self.to_string(), n);
        let terms = self.with_constant(0).divided(n).ok_or_else(bad)?;
        Ok(terms.with_constant(self.constant().checked_div_euclid(n).ok_or_else(bad)?))
    }

    /// `floor(self / divisor)` for a positive `divisor`.
    pub fn floor_div(&self, divisor: i64) -> Result<Self, DimError> {
        if divisor <= 0 {
            return Err(DimError::BadDivisor(self.to_string(), divisor));
        }
        let (mut whole, mut num, mut n) = (Self::default(), self.clone(), divisor);
        loop {
            let (multiple, rest) = num.split(n)?;
            whole = whole.add(&multiple)?;
            num = rest;
            if num.terms().is_empty() {
                return Ok(whole);
            }
            let g = common_divisor([num.content(), n.unsigned_abs()]);
            if g > 1 {
                num = num.reduced(g)?;
                n /= g;
            } else if let Some((x, m)) = num.unnest(n) {
                (num, n) = (x, m);
            } else {
                break;
            }
        }
        // Rounding a negative down is rounding a positive up: one form for `-(-x/n)` and
        // `(x + n - 1)/n`.
        if num.terms().iter().all(|t| t.factor < 0) {
            num = Self::from(n - 1).sub(&num)?;
            return whole.sub(&Self::floor_atom(num, n.into())?);
        }
        whole.add(&Self::floor_atom(num, n.into())?)
    }

    /// `(q, r)` with `self == n*q + r`, every coefficient of `r` below `n` in magnitude, and its
    /// constant in `0..n`.
    fn split(&self, n: i64) -> Result<(Self, Self), DimError> {
        let (mut whole, mut rest) = (Vec::new(), Vec::new());
        for t in self.terms() {
            for (list, factor) in [(&mut whole, t.factor / n), (&mut rest, t.factor % n)] {
                if factor != 0 {
                    list.push(Term {
                        product: t.product.clone(),
                        factor,
                    });
                }
            }
        }
        Ok((
            Self::sorted(whole, self.constant().div_euclid(n))?,
            Self::sorted(rest, self.constant().rem_euclid(n))?,
        ))
    }

    /// `floor((y ± floor(x/a)) / n)` as one floor: numerator and divisor. `None` if there is no
    /// inner floor of that kind, more than one, or the numbers grow too large.
    fn unnest(&self, n: i64) -> Option<(Self, i64)> {
        let mut inner = None;
        for t in self.terms() {
            if let [Atom::Floor(f)] = t.product.as_ref()
                && let (1 | -1, Some(a)) = (t.factor, f.den.as_const())
            {
                if inner.is_some() {
                    return None;
                }
                inner = Some((t, &f.num, a));
            }
        }
        let (term, x, a) = inner?;
        let rest = self.sub(&Self::of_term(term)).ok()?.scale(a).ok()?;
        let num = if term.factor == 1 {
            rest.add(x)
        } else {
            rest.add(&(a - 1).into()).ok()?.sub(x)
        };
        Some((num.ok()?, n.checked_mul(a)?))
    }

    /// `floor(self / divisor)`. A symbolic divisor must be positive in every run, else evaluation
    /// fails ([`DimError::Divisor`]). If it divides exactly, it cancels and nothing is checked.
    pub fn div_floor(&self, divisor: &Self) -> Result<Self, DimError> {
        if let Some(n) = divisor.as_const() {
            return self.floor_div(n);
        }
        if let Some(q) = self.exact_div(divisor) {
            return Ok(q);
        }
        let (whole, num) = self.split_by(divisor)?;
        // Common factors: products first, if there is no constant, then numbers.
        let (mut num, mut den) = (num, divisor.clone());
        if num.constant() == 0
            && den.constant() == 0
            && let Some(common) = shared(num.terms().iter().chain(den.terms()))
        {
            let by = Self::product_of(common, 1);
            if let (Some(x), Some(y)) = (num.exact_div(&by), den.exact_div(&by))
                && y.as_const().is_none_or(|n| n > 0)
            {
                (num, den) = (x, y);
            }
        }
        let g = common_divisor([num.content(), den.content(), den.constant().unsigned_abs()]);
        if g > 1 {
            (num, den) = (num.reduced(g)?, den.reduced(g)?);
        }
        if den.as_const().is_some() {
            return whole.add(&num.floor_div(den.constant())?);
        }
        if num.is(0) {
            return Ok(whole);
        }
        let negative = !num.terms().is_empty() || num.constant() < 0;
        if negative && num.terms().iter().all(|t| t.factor < 0) {
            // floor(-x/n) = -floor((x - 1)/n) - 1
            let up = Self::from(-1).sub(&num)?.div_floor(&den)?;
            return whole.sub(&up)?.sub(&1.into());
        }
        whole.add(&Self::floor_atom(num, den)?)
    }

    /// `(q, r)` with `self == divisor*q + r` and nothing obvious left to move out of `r`.
    fn split_by(&self, divisor: &Self) -> Result<(Self, Self), DimError> {
        let Some(first) = divisor.terms().first() else {
            return Ok((0.into(), self.clone()));
        };
        let alone = divisor.terms().len() == 1 && divisor.constant() == 0;
        let (mut whole, mut rest) = (Self::default(), self.clone());
        for t in self.terms() {
            let Some(left) = without(&t.product, &first.product) else {
                continue;
            };
            let factor = t.factor.checked_div(first.factor).unwrap_or(0);
            if factor == 0 || !(alone || left.is_empty()) {
                continue;
            }
            let q = Self::product_of(left, factor);
            let smaller = rest.sub(&q.mul(divisor)?)?;
            if alone || smaller.terms().len() < rest.terms().len() {
                (whole, rest) = (whole.add(&q)?, smaller);
            }
        }
        Ok((whole, rest))
    }

    /// `ceil(self / divisor)` for a positive `divisor`.
    pub fn ceil_div(&self, divisor: i64) -> Result<Self, DimError> {
        self.div_ceil(&divisor.into())
    }

    /// `ceil(self / divisor)`; see [`Dim::div_floor`] for the requirement on the divisor.
    pub fn div_ceil(&self, divisor: &Self) -> Result<Self, DimError> {
        if let Some(n) = divisor.as_const()
            && n <= 0
        {
            return Err(DimError::BadDivisor(self.to_string(), n));
        }
        if let Some(q) = self.exact_div(divisor) {
            return Ok(q);
        }
        self.add(&divisor.sub(&1.into())?)?.div_floor(divisor)
    }

    /// `self - divisor*floor(self / divisor)`: in `0..divisor` for a positive divisor; see
    /// [`Dim::div_floor`] for the requirement on the divisor.
    pub fn modulo(&self, divisor: &Self) -> Result<Self, DimError> {
        self.sub(&self.div_floor(divisor)?.mul(divisor)?)
    }

    /// The smaller of two.
    pub fn minimum(&self, other: &Self) -> Result<Self, DimError> {
        Self::choose(vec![self.clone(), other.clone()], true)
    }

    /// The larger of two.
    pub fn maximum(&self, other: &Self) -> Result<Self, DimError> {
        Self::choose(vec![self.clone(), other.clone()], false)
    }

    /// The smallest or the largest of `args`; 0 if there are none.
    pub(super) fn choose(mut args: Vec<Self>, smallest: bool) -> Result<Self, DimError> {
        let (mut outside, mut times, mut smallest) = (Self::default(), 1i64, smallest);
        loop {
            // The largest of negatives is the negated smallest of positives.
            let mut factors = args.iter().flat_map(|a| a.terms()).map(|t| t.factor).peekable();
            if factors.peek().is_some() && factors.all(|f| f < 0) {
                args = args.iter().map(|a| a.scale(-1)).collect::<Result<_, _>>()?;
                (times, smallest) = (-times, !smallest);
            }
            let flat = flatten(&mut args, smallest)?;
            args.sort_unstable();
            // Operands with the same terms are neighbours; the one with the decisive constant
            // stays.
            if smallest {
                args.dedup_by(|b, a| a.terms() == b.terms());
            } else {
                args.reverse();
                args.dedup_by(|b, a| a.terms() == b.terms());
                args.reverse();
            }
            let Some(first) = args.first() else {
                return Ok(outside);
            };
            let part = if args.len() == 1 {
                first.clone()
            } else {
                let same = |t: &&Term| args.iter().all(|a| a.terms().contains(t));
                let common: Vec<Term> = first.terms().iter().filter(same).cloned().collect();
                let constants = args.iter().filter(|a| !a.terms().is_empty());
                let constant = constants.map(|a| a.constant()).min().unwrap_or(0);
                Self::sorted(common, constant)?
            };
            outside = outside.add(&part.scale(times)?)?;
            if args.len() == 1 {
                return Ok(outside);
            }
            if !part.is(0) {
                for a in &mut args {
                    *a = a.sub(&part)?;
                }
            }
            let coefficients = args
                .iter()
                .flat_map(|a| [a.content(), a.constant().unsigned_abs()]);
            let g = common_divisor(coefficients);
            if g > 1 {
                for a in &mut args {
                    *a = a.reduced(g)?;
                }
                times = times
                    .checked_mul(g)
                    .ok_or_else(|| outside.overflow("*", &g.into()))?;
            }
            if part.is(0) && g == 1 && !flat {
                break;
            }
        }
        outside.add(&Self::choice_atom(args, smallest)?.scale(times)?)
    }
}

/// The atoms that all products share; `None` if there are none.
fn shared<'a>(mut terms: impl Iterator<Item = &'a Term>) -> Option<Vec<Atom>> {
    let mut common = terms.next()?.product.to_vec();
    for t in terms {
        let mut left = t.product.to_vec();
        common.retain(|a| {
            let at = left.iter().position(|b| b == a);
            at.map(|i| left.remove(i)).is_some()
        });
    }
    (!common.is_empty()).then_some(common)
}

/// Replaces each operand `c*min(x, y) + r` of a `min` by `c*x + r` and `c*y + r`; `max` likewise.
/// True if anything changed.
fn flatten(args: &mut Vec<Dim>, smallest: bool) -> Result<bool, DimError> {
    let mut changed = false;
    let mut out = Vec::with_capacity(args.len());
    for a in args.iter() {
        let mut inner = a
            .terms()
            .iter()
            .filter_map(|t| match (t.product.as_ref(), t.factor > 0) {
                ([Atom::Min(c)], true) | ([Atom::Max(c)], false) if smallest => Some((t, c)),
                ([Atom::Max(c)], true) | ([Atom::Min(c)], false) if !smallest => Some((t, c)),
                _ => None,
            });
        match (inner.next(), inner.next()) {
            (Some((term, choice)), None) if args.len() + out.len() + choice.args.len() <= MAX_OPERANDS => {
                let rest = a.sub(&Dim::of_term(term))?;
                for x in &choice.args {
                    out.push(x.scale(term.factor)?.add(&rest)?);
                }
                changed = true;
            }
            _ => out.push(a.clone()),
        }
    }
    *args = out;
    Ok(changed)
}
