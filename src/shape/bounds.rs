//! Lower bounds of expressions whose symbols are bounded: sound, and complete for what shapes need.
//!
//! Four methods are tried and the best result wins. Each is a proof for all values inside the
//! bounds.
//!
//! * **Intervals**: every atom is written as its minimum plus a remainder. `N*N - N` with
//!   `N = 1 + n` is `n*n + n`.
//! * **Common factors**: `2048*N - N*N` is `N*(2048 - N)`.
//! * **Elimination** of one `floor`, `min` or `max`: in `q*floor(a/n) + r` the floor lies between
//!   `(a - n + 1)/n` and `a/n`; `q*min(a, b) + r` is either `q*a + r` or `q*b + r`.
//! * **Facts** (expressions known to be 0 or more): a multiple of one is subtracted so that a term
//!   cancels.

use super::dim::{Atom, Choice, Dim, Term, gcd, without};
use super::symbol::{Bindings, Symbol};
use crate::num;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Minimum and maximum value; `None` means unbounded. Wider than `i64` so that sums of bounds do
/// not overflow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Interval {
    pub lo: Option<i128>,
    pub hi: Option<i128>,
}

impl Interval {
    pub fn number(v: i128) -> Self {
        Self {
            lo: Some(v),
            hi: Some(v),
        }
    }

    fn negative(self) -> Self {
        let minus = |v: Option<i128>| v.and_then(i128::checked_neg);
        Self {
            lo: minus(self.hi),
            hi: minus(self.lo),
        }
    }

    /// Minimum of the product; `None` if it is unbounded or too large.
    fn mul_low(self, other: Self) -> Option<i128> {
        // A missing bound is infinite. 0 times infinity is 0 here, since every actual value is
        // finite.
        let corner = |a: Option<i128>, b: Option<i128>| match (a, b) {
            (Some(0), _) | (_, Some(0)) => Some(0),
            (Some(a), Some(b)) => a.checked_mul(b),
            _ => None,
        };
        let sign = |v: Option<i128>, otherwise: i128| v.map_or(otherwise, i128::signum);
        let mut least: Option<i128> = None;
        for (a, sa) in [(self.lo, sign(self.lo, -1)), (self.hi, sign(self.hi, 1))] {
            for (b, sb) in [(other.lo, sign(other.lo, -1)), (other.hi, sign(other.hi, 1))] {
                match corner(a, b) {
                    Some(v) => least = Some(least.map_or(v, |l| l.min(v))),
                    None if sa * sb < 0 => return None,
                    None => {}
                }
            }
        }
        least
    }

    fn mul(self, other: Self) -> Self {
        Self {
            lo: self.mul_low(other),
            hi: self.negative().mul_low(other).and_then(i128::checked_neg),
        }
    }
}

fn ceil(a: i128, n: i128) -> i128 {
    let q = a.div_euclid(n);
    if a.rem_euclid(n) == 0 {
        q
    } else {
        q.saturating_add(1)
    }
}

/// Step budget of one question. Expressions larger than shapes need run out of steps and get a
/// weaker answer.
const STEPS: u32 = 100;

/// Number of bindings that [`Question::samples`] tries.
const WITNESSES: usize = 5;

/// Sample value for a symbol without an upper bound.
const FAR: i128 = 1000;

/// Maximum depth of eliminations.
const DEPTH: u32 = 10;

/// Maximum number of facts combined.
const CHAIN: u32 = 3;

/// Products of a higher degree are not expanded.
const DEGREE: usize = 8;

/// One question. Its expressions contain no solved symbols.
pub(super) struct Question<'a> {
    bound: &'a dyn Fn(&Symbol) -> Interval,
    facts: &'a [Dim],
    steps: Cell<u32>,
    /// Intervals of atoms found so far.
    met: RefCell<HashMap<Atom, Interval>>,
}

impl<'a> Question<'a> {
    pub fn new(bound: &'a dyn Fn(&Symbol) -> Interval, facts: &'a [Dim]) -> Self {
        Self {
            bound,
            facts,
            steps: Cell::new(0),
            met: RefCell::default(),
        }
    }

    pub fn range(&self, d: &Dim) -> Interval {
        let lo = self.low(d, None, 0, 0);
        self.steps.set(0);
        Interval {
            lo,
            hi: self.high(d, 0),
        }
    }

    /// True if `d >= v` is proven for all bindings.
    pub fn at_least(&self, d: &Dim, v: i128) -> bool {
        self.low(d, Some(v), 0, 0).is_some_and(|l| l >= v)
    }

    /// Values of `d` at a few bindings that satisfy the bounds and facts. They refute most false
    /// claims faster than a search for a proof.
    pub fn samples(&self, d: &Dim) -> Vec<i64> {
        let mut symbols = BTreeSet::new();
        d.symbols(&mut symbols);
        self.facts.iter().for_each(|f| f.symbols(&mut symbols));
        let mut out = Vec::with_capacity(WITNESSES);
        'witness: for n in 0..WITNESSES {
            let mut bindings = Bindings::new();
            for (i, s) in symbols.iter().enumerate() {
                let range = (self.bound)(s);
                let lo = range.lo.unwrap_or(-FAR);
                // Distinct numbers for symbols without an upper bound.
                let far = i128::from(num::wide(i + 1)).saturating_mul(FAR);
                let hi = range.hi.unwrap_or(lo.saturating_add(far));
                let value = match n {
                    0 => hi,
                    1 => lo,
                    2 => lo.saturating_add(1).min(hi),
                    _ if (n + i) % 2 == 0 => lo,
                    _ => hi,
                };
                let Ok(value) = i64::try_from(value) else {
                    continue 'witness;
                };
                bindings.set(s, value);
            }
            let kept = |f: &Dim| f.eval(&bindings).is_ok_and(|v| v >= 0);
            if self.facts.iter().all(kept) {
                out.extend(d.eval(&bindings).ok());
            }
        }
        out
    }

    fn high(&self, d: &Dim, depth: u32) -> Option<i128> {
        self.low(&d.scale(-1).ok()?, None, depth, 0)?.checked_neg()
    }

    fn inner(&self, d: &Dim, depth: u32) -> Interval {
        Interval {
            lo: self.low(d, None, depth + 1, CHAIN - 1),
            hi: d
                .scale(-1)
                .ok()
                .and_then(|m| self.low(&m, None, depth + 1, CHAIN - 1))
                .and_then(i128::checked_neg),
        }
    }

    /// A lower bound of `d`. The search stops once it reaches `target`.
    fn low(&self, d: &Dim, target: Option<i128>, depth: u32, chain: u32) -> Option<i128> {
        if let Some(v) = d.as_const() {
            return Some(v.into());
        }
        let mut best = self.leaf(d, depth);
        self.steps.set(self.steps.get().saturating_add(1));
        if depth >= DEPTH {
            return best;
        }
        let ways: [ProofMethod<'a>; 3] = [Self::factored, Self::eliminated, Self::by_facts];
        for way in ways {
            let done = best.is_some_and(|b| target.is_some_and(|t| b >= t));
            if done || self.steps.get() > STEPS {
                break;
            }
            let search = ProofSearch { target, depth, chain };
            best = best.max(way(self, d, search));
        }
        best
    }

    /// Bound by intervals of the atoms.
    fn leaf(&self, d: &Dim, depth: u32) -> Option<i128> {
        let mut atoms: BTreeMap<&Atom, Interval> = BTreeMap::new();
        for a in d.terms().iter().flat_map(|t| t.product.iter()) {
            if !atoms.contains_key(a) {
                atoms.insert(a, self.atom(a, depth));
            }
        }
        let range = |a: &Atom| atoms.get(a).copied().unwrap_or_default();
        let plain = d.terms().iter().try_fold(i128::from(d.constant()), |sum, t| {
            let start = Interval::number(t.factor.into());
            let product = t.product.iter().fold(start, |p, a| p.mul(range(a)));
            sum.checked_add(product.lo?)
        });
        let moved = atoms.values().any(|i| i.lo != Some(0)) && d.terms().iter().any(|t| t.product.len() > 1);
        if moved {
            plain.max(shifted(d, &range))
        } else {
            plain
        }
    }

    fn atom(&self, atom: &Atom, depth: u32) -> Interval {
        if let Atom::Symbol(s) = atom {
            return (self.bound)(s);
        }
        if let Some(i) = self.met.borrow().get(atom) {
            return *i;
        }
        let i = self.atom_anew(atom, depth);
        self.met.borrow_mut().insert(atom.clone(), i);
        i
    }

    fn atom_anew(&self, atom: &Atom, depth: u32) -> Interval {
        match atom {
            Atom::Symbol(s) => (self.bound)(s),
            Atom::Floor(f) => {
                let num = self.inner(&f.num, depth);
                let den = match f.den.as_const() {
                    Some(n) => Interval::number(n.into()),
                    None => self.inner(&f.den, depth),
                };
                // A non-positive divisor has no value at all, so 1 is a safe minimum.
                let least = den.lo.unwrap_or(1).max(1);
                let most = den.hi.map(|h| h.max(least));
                let lo = num.lo.map(|v| match most {
                    _ if v < 0 => v.div_euclid(least),
                    Some(m) => v.div_euclid(m),
                    None => 0,
                });
                let hi = num.hi.map(|v| match most {
                    _ if v >= 0 => v.div_euclid(least),
                    Some(m) => v.div_euclid(m),
                    None => -1,
                });
                Interval { lo, hi }
            }
            Atom::Min(c) => self.least(c, depth, false),
            Atom::Max(c) => self.least(c, depth, true).negative(),
        }
    }

    /// Interval of the smallest operand or, if `negate`, of the negated largest one.
    fn least(&self, choice: &Choice, depth: u32, negate: bool) -> Interval {
        let parts = choice.args.iter().map(|a| {
            let i = self.inner(a, depth);
            if negate { i.negative() } else { i }
        });
        let parts: Vec<Interval> = parts.collect();
        Interval {
            lo: parts.iter().map(|i| i.lo).min().flatten(),
            hi: parts.iter().filter_map(|i| i.hi).min(),
        }
    }

    /// Bound by the common factor of all terms.
    fn factored(&self, d: &Dim, s: ProofSearch) -> Option<i128> {
        let [first, rest @ ..] = d.terms() else {
            return None;
        };
        let mut common = first.product.to_vec();
        for t in rest {
            let mut left = t.product.to_vec();
            common.retain(|a| {
                let at = left.iter().position(|b| b == a);
                at.map(|i| left.remove(i)).is_some()
            });
        }
        if rest.is_empty() || common.is_empty() {
            return None;
        }
        let by = Dim::product_of(common, 1);
        let quotient = d.with_constant(0).exact_div(&by)?;
        let product = self.inner(&by, s.depth).mul(self.inner(&quotient, s.depth));
        product.lo?.checked_add(d.constant().into())
    }

    /// Bound after eliminating one floor, minimum or maximum.
    fn eliminated(&self, d: &Dim, s: ProofSearch) -> Option<i128> {
        let mut seen: Vec<&Atom> = Vec::new();
        let mut best = None;
        for a in d.terms().iter().flat_map(|t| t.product.iter()) {
            if matches!(a, Atom::Symbol(_)) || seen.contains(&a) {
                continue;
            }
            seen.push(a);
            let Some((q, rest)) = linear(d, a) else { continue };
            best = best.max(match a {
                Atom::Floor(f) => self.without_floor(&f.num, &f.den, &q, &rest, s),
                Atom::Min(c) => self.without_choice(c, true, &q, &rest, s),
                Atom::Max(c) => self.without_choice(c, false, &q, &rest, s),
                Atom::Symbol(_) => None,
            });
            if s.enough(best) || self.steps.get() > STEPS {
                break;
            }
        }
        best
    }

    /// `Some(true)` if `q >= 0` always, `Some(false)` if `q <= 0` always.
    fn sign(&self, q: &Dim, depth: u32) -> Option<bool> {
        let range = self.inner(q, depth);
        if range.lo.is_some_and(|v| v >= 0) {
            return Some(true);
        }
        range.hi.is_some_and(|v| v <= 0).then_some(false)
    }

    /// A lower bound of `q*floor(num/den) + rest`.
    fn without_floor(&self, num: &Dim, den: &Dim, q: &Dim, rest: &Dim, s: ProofSearch) -> Option<i128> {
        let multiple = q.exact_div(den).and_then(|m| m.as_const());
        let up = match multiple {
            Some(m) => m >= 0,
            None => self.sign(q, s.depth)?,
        };
        let num = if up {
            num.sub(den).ok()?.add(&1.into()).ok()?
        } else {
            num.clone()
        };
        // If the factor is a multiple of the divisor, the divisor drops out: n*floor(a/n) lies in
        // a-n+1..=a.
        if let Some(m) = multiple {
            let least = num.scale(m).ok()?.add(rest).ok()?;
            return self.low(&least, s.target, s.depth + 1, s.chain);
        }
        let scaled = q.mul(&num).ok()?.add(&rest.mul(den).ok()?).ok()?;
        if let Some(n) = den.as_const() {
            let n = i128::from(n);
            let target = s
                .target
                .and_then(|t| t.checked_sub(1)?.checked_mul(n)?.checked_add(1));
            return self
                .low(&scaled, target, s.depth + 1, s.chain)
                .map(|v| ceil(v, n));
        }
        // den*value >= scaled, and den >= 1.
        let least = self.low(&scaled, None, s.depth + 1, s.chain)?;
        if least > 0 {
            return Some(1);
        }
        let near = scaled.add(den).ok()?.sub(&1.into()).ok()?;
        if least == 0 || self.low(&near, Some(0), s.depth + 1, s.chain)? >= 0 {
            return Some(0);
        }
        Some(least)
    }

    /// A lower bound of `q*min(..) + rest` or `q*max(..) + rest`.
    fn without_choice(
        &self,
        c: &Choice,
        smallest: bool,
        q: &Dim,
        rest: &Dim,
        s: ProofSearch,
    ) -> Option<i128> {
        let sign = self.sign(q, s.depth);
        // The value equals one operand. If the sign of `q` turns the choice around, any operand
        // gives a lower bound.
        let any = sign.is_some_and(|up| up != smallest);
        let mut out: Option<Option<i128>> = None;
        for a in &c.args {
            let with = q.mul(a).and_then(|p| p.add(rest)).ok();
            let low = with.and_then(|d| self.low(&d, s.target, s.depth + 1, s.chain));
            out = Some(match out {
                None => low,
                Some(old) if any => old.max(low),
                Some(old) => old.min(low),
            });
            if any && s.enough(out.flatten()) {
                break;
            }
        }
        out.flatten()
    }

    /// Bound by one fact: if `d == k*fact + rest` and `k >= 0`, then `d >= rest`.
    fn by_facts(&self, d: &Dim, s: ProofSearch) -> Option<i128> {
        if s.chain >= CHAIN {
            return None;
        }
        let mut best = None;
        for fact in self.facts {
            for (f, t) in fact
                .terms()
                .iter()
                .flat_map(|f| d.terms().iter().map(move |t| (f, t)))
            {
                if let Some((rest, times)) = self.less_fact(d, t, fact, f, s.depth) {
                    let target = s
                        .target
                        .and_then(|v| v.checked_sub(1)?.checked_mul(times)?.checked_add(1));
                    let low = self.low(&rest, target, s.depth + 1, s.chain + 1);
                    best = best.max(low.map(|v| ceil(v, times)));
                }
                if s.enough(best) || self.steps.get() > STEPS {
                    return best;
                }
            }
        }
        best
    }

    /// `(rest, n)` with `n*d == k*fact + rest`, `n > 0` and `k >= 0`, such that term `t` of `d`
    /// cancels against term `f` of `fact`.
    fn less_fact(&self, d: &Dim, t: &Term, fact: &Dim, f: &Term, depth: u32) -> Option<(Dim, i128)> {
        if (t.factor > 0) != (f.factor > 0) {
            return None;
        }
        let more = without(&t.product, &f.product)?;
        let positive = |a: &Atom| self.atom(a, depth + 1).lo.is_some_and(|v| v >= 0);
        if !more.iter().all(positive) {
            return None;
        }
        let g = gcd(t.factor.unsigned_abs(), f.factor.unsigned_abs());
        let times = i64::try_from(f.factor.unsigned_abs() / g).ok()?;
        let k = i64::try_from(t.factor.unsigned_abs() / g).ok()?;
        let part = fact.mul(&Dim::product_of(more, k)).ok()?;
        let rest = d.scale(times).ok()?.sub(&part).ok()?;
        Some((rest, times.into()))
    }
}

/// A method that finds a lower bound.
type ProofMethod<'a> = fn(&Question<'a>, &Dim, ProofSearch) -> Option<i128>;

/// Target and remaining budget of a search.
#[derive(Clone, Copy)]
struct ProofSearch {
    target: Option<i128>,
    depth: u32,
    chain: u32,
}

impl ProofSearch {
    fn enough(self, best: Option<i128>) -> bool {
        best.is_some_and(|b| self.target.is_some_and(|t| b >= t))
    }
}

/// `(q, r)` with `d == q*atom + r`. `q` and `r` may hold the atom only inside other atoms.
fn linear(d: &Dim, atom: &Atom) -> Option<(Dim, Dim)> {
    let (mut q, mut rest) = (Dim::default(), d.clone());
    for t in d.terms() {
        if let Some(left) = without(&t.product, std::slice::from_ref(atom)) {
            if left.contains(atom) {
                return None;
            }
            rest = rest.sub(&Dim::of_term(t)).ok()?;
            q = q.add(&Dim::product_of(left, t.factor)).ok()?;
        }
    }
    Some((q, rest))
}

/// A lower bound after every atom is written as its bound plus a remainder of 0 or more.
fn shifted(d: &Dim, range: &dyn Fn(&Atom) -> Interval) -> Option<i128> {
    let mut sum: BTreeMap<Vec<&Atom>, i128> = BTreeMap::new();
    for t in d.terms() {
        if t.product.len() > DEGREE {
            return None;
        }
        let mut expanded: Vec<(Vec<&Atom>, i128)> = vec![(Vec::new(), t.factor.into())];
        for a in t.product.iter() {
            let i = range(a);
            let (start, sign) = match (i.lo, i.hi) {
                (Some(l), _) => (l, 1),
                (None, Some(h)) => (h, -1),
                (None, None) => return None,
            };
            let mut next = Vec::with_capacity(2 * expanded.len());
            for (product, factor) in expanded {
                let mut longer = product.clone();
                longer.push(a);
                next.push((longer, factor.checked_mul(sign)?));
                if start != 0 {
                    next.push((product, factor.checked_mul(start)?));
                }
            }
            expanded = next;
        }
        for (product, factor) in expanded {
            let slot = sum.entry(product).or_insert(0);
            *slot = slot.checked_add(factor)?;
        }
    }
    let mut total = i128::from(d.constant());
    for (product, factor) in sum {
        if product.is_empty() {
            total = total.checked_add(factor)?;
        } else if factor < 0 {
            let mut most = factor;
            for a in product {
                let i = range(a);
                most = most.checked_mul(i.hi?.checked_sub(i.lo?)?)?;
            }
            total = total.checked_add(most)?;
        }
    }
    Some(total)
}
