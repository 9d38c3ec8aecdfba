//! Constraints on the symbols of a model: bounds, and equations between symbols.
//!
//! A symbol without a declared lower bound is a size: 0 or more. Answers hold for every binding
//! that satisfies the constraints; [`Constraints::check`] checks one binding. Subtraction and
//! division follow the paper (section 2.1): known expressions replace symbols, then the difference
//! of two sizes is bounded. If the difference does not decide, a quotient that is a whole
//! expression does.

mod decide;

pub use decide::Relation;

use super::bounds::{Interval, Question};
use super::dim::{Atom, Dim, DimError, common_divisor};
use super::symbol::{Bindings, Symbol, shortened};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Why constraints contradict each other, or why a binding violates them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    /// No binding satisfies both.
    #[error("{added} contradicts {known}")]
    Contradiction {
        /// The constraint that was to be added.
        added: String,
        /// The constraint that was already known.
        known: String,
    },
    /// The value of a symbol is out of bounds.
    #[error("{symbol} is {value}, but must satisfy {bound}")]
    Bound {
        /// The symbol whose value is refused.
        symbol: Symbol,
        /// The value in the binding.
        value: i64,
        /// The bounds as text.
        bound: String,
    },
    /// A relation does not hold.
    #[error("{relation} does not hold: {left} (left) and {right} (right) with {bindings}")]
    Broken {
        /// Both expressions with the relation sign.
        relation: String,
        /// Value of the left expression.
        left: i64,
        /// Value of the right expression.
        right: i64,
        /// The symbols of the relation and their values.
        bindings: String,
    },
    /// No integer value of a symbol satisfies an equation.
    #[error("{relation} has no integer solution for {symbol} with {bindings}")]
    NoSolution {
        /// Both expressions and what relates them.
        relation: String,
        /// The symbol without a value.
        symbol: Symbol,
        /// The other symbols of the relation and their values.
        bindings: String,
    },
    /// The text is not a constraint.
    #[error("`{text}` is not a constraint: {why}")]
    Parse {
        /// The text, shortened if it is long.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// An expression in a constraint is invalid or has no value.
    #[error(transparent)]
    Dim(#[from] DimError),
}

/// Declared bounds of one symbol, both inclusive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bounds {
    lo: Option<i64>,
    hi: Option<i64>,
}

/// `left == right` or `left <= right`, as declared.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Given {
    left: Dim,
    right: Dim,
    equal: bool,
}

impl fmt::Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.equal { "==" } else { "<=" };
        write!(f, "{} {sign} {}", self.left, self.right)
    }
}

/// An expression that is 0 or more, and the constraint that implies it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Inequality {
    dim: Dim,
    text: String,
}

/// A hidden symbol: a declared symbol divided by a number.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DividedSymbol {
    base: Symbol,
    by: i64,
}

/// Maximum number of relations. Each one may take part in every proof.
const MAX_RELATIONS: usize = 64;

/// Bounds and equations of symbols, and the questions they decide.
///
/// ```
/// use transformer_lite::unstable::shape::{Constraints, Dim};
///
/// let known = Constraints::parse("1 <= N <= 2048, sumN == past + N, N % 64 == 0")?;
/// let d = |text| Dim::parse(text).unwrap();
/// assert_eq!(known.equal(&d("sumN - N"), &d("past")), Some(true));
/// assert_eq!(known.le(&d("N*N"), &d("2048*N")), Some(true));
/// assert_eq!(known.le(&d("N*4096"), &d("sumN*256")), None);
/// assert_eq!(known.divide(&d("N*3"), &d("32")), Some(d("3*(N/32)")));
/// # Ok::<(), transformer_lite::unstable::shape::constraints::ConstraintError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Constraints {
    bounds: BTreeMap<Symbol, Bounds>,
    given: Vec<Given>,
    /// Symbols and the expressions that replace them. The expressions hold none of these symbols.
    solved: BTreeMap<Symbol, Dim>,
    /// Symbols used in `solved` for the quotient of another symbol: if `N` is a multiple of 64, it
    /// is 64 times a hidden symbol.
    hidden: BTreeMap<Symbol, DividedSymbol>,
    /// What the relations and the bounds of solved symbols imply beyond `bounds`.
    facts: Vec<Inequality>,
    /// The same expressions, in the form used by questions.
    positive: Vec<Dim>,
}

impl Constraints {
    /// No constraints, except that sizes are not negative.
    pub fn new() -> Self {
        Self::default()
    }

    /// Parses constraints: relations of [`Dim`] expressions by `==`, `=`, `<=`, `<`, `>=`, `>`,
    /// which may be chained. They are separated by commas or semicolons:
    /// `1 <= N <= 2048, sumN == past + N, N % 64 == 0`.
    pub fn parse(text: &str) -> Result<Self, ConstraintError> {
        let mut out = Self::default();
        out.add_text(text)?;
        Ok(out)
    }

    /// Adds the constraints of `text`; see [`Constraints::parse`]. On error nothing is added.
    pub fn add_text(&mut self, text: &str) -> Result<(), ConstraintError> {
        let mut next = self.clone();
        if !text.trim().is_empty() {
            for part in split(text, |c| matches!(c, ',' | ';')) {
                next.add_relation(part)?;
            }
        }
        *self = next;
        Ok(())
    }

    fn add_relation(&mut self, text: &str) -> Result<(), ConstraintError> {
        let bad = |why| ConstraintError::Parse {
            text: shortened(text.trim()),
            why,
        };
        // Expressions and the signs between them.
        let mut rest = text;
        let (mut dims, mut signs) = (Vec::new(), Vec::new());
        while let Some(at) = rest.find(['<', '>', '=', '!']) {
            let (before, after) = rest.split_at(at);
            let found = ["<=", ">=", "==", "<", ">", "="]
                .into_iter()
                .find_map(|sign| Some((sign, after.strip_prefix(sign)?)));
            let (sign, after) =
                found.ok_or_else(|| bad("unknown sign: expected `==`, `<=`, `<`, `>=` or `>`"))?;
            dims.push(Dim::parse(before)?);
            signs.push(sign);
            rest = after;
        }
        dims.push(Dim::parse(rest)?);
        if signs.is_empty() {
            return Err(bad("expected a relation with `==`, `<=`, `<`, `>=` or `>`"));
        }
        for (sign, pair) in signs.iter().zip(dims.windows(2)) {
            let [a, b] = pair else { continue };
            match *sign {
                "<=" => self.at_most(a, b)?,
                "<" => self.at_most(&a.add(&1.into())?, b)?,
                ">=" => self.at_most(b, a)?,
                ">" => self.at_most(&b.add(&1.into())?, a)?,
                _ => self.equate(a, b)?,
            }
        }
        Ok(())
    }

    /// Declares `lo <= symbol <= hi`. `None` leaves that side unchanged; repeated bounds are
    /// intersected. The first lower bound replaces the default of 0 and may be negative.
    pub fn bound(
        &mut self,
        symbol: &Symbol,
        lo: Option<i64>,
        hi: Option<i64>,
    ) -> Result<(), ConstraintError> {
        if lo.is_some_and(|lo| lo < 0) && self.bounds.get(symbol).is_none_or(|b| b.lo.is_none()) {
            // Conclusions drawn from the default no longer hold.
            let mut next = self.without_conclusions(symbol, lo)?;
            next.tighten(symbol, lo, hi).map_err(|e| self.blamed(e))?;
            *self = next;
            return Ok(());
        }
        // Models may have very many symbols: nothing is copied but what may change.
        let (before, facts) = (self.bounds.get(symbol).copied(), self.facts.len());
        self.tighten(symbol, lo, hi).map_err(|e| {
            match before {
                Some(b) => self.bounds.insert(symbol.clone(), b),
                None => self.bounds.remove(symbol),
            };
            self.facts.truncate(facts);
            self.positive.truncate(facts);
            self.blamed(e)
        })
    }

    /// Intersects the bounds of `symbol` with these.
    fn tighten(&mut self, symbol: &Symbol, lo: Option<i64>, hi: Option<i64>) -> Result<(), ConstraintError> {
        let added = text_of(symbol, Bounds { lo, hi });
        let before = self.bounds.get(symbol).copied().unwrap_or_default();
        let own = Bounds {
            lo: before.lo.max(lo),
            hi: before.hi.into_iter().chain(hi).min(),
        };
        self.bounds.insert(symbol.clone(), own);
        let interval = self.interval(symbol);
        if let (Some(l), Some(h)) = (interval.lo, interval.hi)
            && l > h
        {
            let known = text_of(symbol, before);
            return Err(ConstraintError::Contradiction { added, known });
        }
        let solved = self.solved.get(symbol).cloned();
        let in_facts = self.facts.iter().any(|f| f.dim.depends_on(symbol));
        if solved.is_none() && !in_facts && self.hidden.values().all(|part| part.base != *symbol) {
            return Ok(());
        }
        if let Some(e) = solved {
            self.add_bound_facts(&e, own, &added)?;
        }
        self.finish(&added)
    }

    /// The same constraints, with the lower bound `lo` of `symbol` declared before the relations.
    fn without_conclusions(&self, symbol: &Symbol, lo: Option<i64>) -> Result<Self, ConstraintError> {
        let mut next = Self {
            bounds: self.bounds.clone(),
            ..Self::default()
        };
        next.bounds.entry(symbol.clone()).or_default().lo = lo;
        for g in &self.given {
            if g.equal {
                next.equate(&g.left, &g.right)?;
            } else {
                next.at_most(&g.left, &g.right)?;
            }
        }
        Ok(next)
    }

    /// States `left == right`. A symbol that occurs once, with coefficient 1 or -1, is solved for
    /// and replaced everywhere. Otherwise the equation is kept as a fact.
    pub fn equate(&mut self, left: &Dim, right: &Dim) -> Result<(), ConstraintError> {
        let given = Given {
            left: left.clone(),
            right: right.clone(),
            equal: true,
        };
        let added = given.to_string();
        let mut next = self.with(given)?;
        let d = left.sub(right)?.replace(&self.solved)?;
        let content = common_divisor([d.content()]);
        let d = match d.exact_div(&content.into()) {
            Some(d) => d,
            None => {
                // The terms are multiples of a number that does not divide the constant.
                let shown = self.backward(&d).unwrap_or(d);
                let known = format!("({left}) - ({right}) == {shown}, which is never 0 for integers");
                return Err(ConstraintError::Contradiction { added, known });
            }
        };
        if let Some(v) = d.as_const() {
            if v == 0 {
                *self = next;
                return Ok(());
            }
            let known = format!("({left}) - ({right}) == {v}");
            return Err(ConstraintError::Contradiction { added, known });
        }
        next.solve(&d, left, right, &added)?;
        next.finish(&added).map_err(|e| self.blamed(e))?;
        *self = next;
        Ok(())
    }

    /// States `left <= right`. A relation between a symbol and a number becomes a bound.
    pub fn at_most(&mut self, left: &Dim, right: &Dim) -> Result<(), ConstraintError> {
        match (
            left.as_symbol(),
            right.as_const(),
            left.as_const(),
            right.as_symbol(),
        ) {
            (Some(s), Some(v), _, _) => return self.bound(s, None, Some(v)),
            (_, _, Some(v), Some(s)) => return self.bound(s, Some(v), None),
            _ => {}
        }
        let given = Given {
            left: left.clone(),
            right: right.clone(),
            equal: false,
        };
        let added = given.to_string();
        let mut next = self.with(given)?;
        next.add_fact(right.sub(left)?.replace(&self.solved)?, &added)?;
        next.finish(&added).map_err(|e| self.blamed(e))?;
        *self = next;
        Ok(())
    }

    fn with(&self, given: Given) -> Result<Self, ConstraintError> {
        if self.given.len() >= MAX_RELATIONS {
            return Err(ConstraintError::Parse {
                text: shortened(&given.to_string()),
                why: "too many constraints",
            });
        }
        let mut next = self.clone();
        next.given.push(given);
        Ok(next)
    }

    /// Applies `d == 0`.
    fn solve(&mut self, d: &Dim, left: &Dim, right: &Dim, added: &str) -> Result<(), ConstraintError> {
        if let Some((s, n)) = multiple(d) {
            let part = match self.hidden.get(&s) {
                Some(p) => DividedSymbol {
                    base: p.base.clone(),
                    by: p
                        .by
                        .checked_mul(n)
                        .ok_or_else(|| DimError::Overflow(added.to_owned()))?,
                },
                None => DividedSymbol {
                    base: s.clone(),
                    by: n,
                },
            };
            let h = Symbol::hidden(&format!("{}/{}", part.base, part.by));
            self.hidden.insert(h.clone(), part);
            return self.put(&s, Dim::from(&h).mul(&n.into())?, true, added);
        }
        // Prefer the symbol that stands alone on a side, unless another one is better known to be a
        // size.
        let mut best: Option<([bool; 4], Symbol, Dim)> = None;
        for t in d.terms() {
            let ([Atom::Symbol(s)], 1 | -1) = (t.product.as_ref(), t.factor) else {
                continue;
            };
            let others = d.sub(&Dim::of_term(t))?;
            if others.depends_on(s) {
                continue;
            }
            let expression = others.scale(-t.factor)?;
            let alone = |side: &Dim| side.as_symbol() == Some(s);
            let rank = [
                !self.hidden.contains_key(s),
                expression.is_non_negative(),
                alone(left),
                alone(right),
            ];
            if best.as_ref().is_none_or(|(r, _, _)| rank > *r) {
                best = Some((rank, s.clone(), expression));
            }
        }
        if let Some((_, s, expression)) = best {
            return self.put(&s, expression, false, added);
        }
        self.add_fact(d.clone(), added)?;
        self.add_fact(d.scale(-1)?, added)
    }

    /// Replaces `symbol` by `expression`. `same`: its bounds already equal those of the symbol.
    fn put(
        &mut self,
        symbol: &Symbol,
        expression: Dim,
        same: bool,
        added: &str,
    ) -> Result<(), ConstraintError> {
        let with = BTreeMap::from([(symbol.clone(), expression.clone())]);
        for e in self.solved.values_mut() {
            *e = e.replace(&with)?;
        }
        for f in std::mem::take(&mut self.facts) {
            self.add_fact(f.dim.replace(&with)?, &f.text)?;
        }
        self.solved.insert(symbol.clone(), expression.clone());
        if same {
            return Ok(());
        }
        let interval = self.interval(symbol);
        let small = |v: Option<i128>| v.and_then(|v| i64::try_from(v).ok());
        let own = Bounds {
            lo: small(interval.lo),
            hi: small(interval.hi),
        };
        let text = match self.bounds.get(symbol) {
            Some(b) => text_of(symbol, *b),
            None => added.to_owned(),
        };
        self.add_bound_facts(&expression, own, &text)
    }

    fn add_bound_facts(&mut self, expression: &Dim, own: Bounds, text: &str) -> Result<(), ConstraintError> {
        if let Some(lo) = own.lo {
            self.add_fact(expression.sub(&lo.into())?, text)?;
        }
        if let Some(hi) = own.hi {
            self.add_fact(Dim::from(hi).sub(expression)?, text)?;
        }
        Ok(())
    }

    /// Adds `dim >= 0`, unless the bounds of the symbols already imply it.
    fn add_fact(&mut self, dim: Dim, text: &str) -> Result<(), ConstraintError> {
        let content = common_divisor([dim.content()]);
        let dim = if dim.as_const().is_some() {
            dim
        } else {
            dim.reduced(content)?
        };
        let bound = |s: &Symbol| self.interval(s);
        let known = Question::new(&bound, &[]).at_least(&dim, 0);
        if !known && self.facts.iter().all(|f| f.dim != dim) {
            self.facts.push(Inequality {
                dim,
                text: text.to_owned(),
            });
        }
        Ok(())
    }

    /// Looks for a fact that `added` makes impossible, and prepares the facts for questions.
    fn finish(&mut self, added: &str) -> Result<(), ConstraintError> {
        self.positive = self.facts.iter().map(|f| f.dim.clone()).collect();
        for f in &self.facts {
            let hi = self.question(|q| q.range(&f.dim).hi);
            if hi.is_some_and(|v| v < 0) {
                return Err(ConstraintError::Contradiction {
                    added: added.to_owned(),
                    known: f.text.clone(),
                });
            }
        }
        for (h, part) in &self.hidden {
            let i = self.interval(h);
            if let (Some(l), Some(hi)) = (i.lo, i.hi)
                && l > hi
            {
                let own = self.bounds.get(&part.base).copied().unwrap_or_default();
                return Err(ConstraintError::Contradiction {
                    added: added.to_owned(),
                    known: format!("{}, {} % {} == 0", text_of(&part.base, own), part.base, part.by),
                });
            }
        }
        Ok(())
    }

    /// A constraint that cannot hold by itself contradicts all of these.
    fn blamed(&self, error: ConstraintError) -> ConstraintError {
        match error {
            ConstraintError::Contradiction { added, known } if added == known => {
                let known = match self.is_empty() {
                    true => "that sizes are 0 or more".to_owned(),
                    false => shortened(&self.to_string()),
                };
                ConstraintError::Contradiction { added, known }
            }
            other => other,
        }
    }

    /// Bounds of a symbol, without what the equations imply.
    fn interval(&self, symbol: &Symbol) -> Interval {
        let (base, by) = match self.hidden.get(symbol) {
            Some(p) => (&p.base, i128::from(p.by)),
            None => (symbol, 1),
        };
        let own = self.bounds.get(base).copied().unwrap_or_default();
        Interval {
            lo: Some(-(-i128::from(own.lo.unwrap_or(0))).div_euclid(by)),
            hi: own.hi.map(|h| i128::from(h).div_euclid(by)),
        }
    }

    /// Checks that `bindings` satisfy the constraints. Relations with an unbound symbol are
    /// skipped.
    pub fn check(&self, bindings: &Bindings) -> Result<(), ConstraintError> {
        for (symbol, value) in bindings.iter() {
            let own = self.bounds.get(symbol).copied().unwrap_or_default();
            if value < own.lo.unwrap_or(0) || own.hi.is_some_and(|h| value > h) {
                return Err(ConstraintError::Bound {
                    symbol: symbol.clone(),
                    value,
                    bound: text_of(
                        symbol,
                        Bounds {
                            lo: own.lo.or(Some(0)),
                            ..own
                        },
                    ),
                });
            }
        }
        for g in &self.given {
            let (left, right) = match (g.left.eval(bindings), g.right.eval(bindings)) {
                (Err(DimError::Unbound(_)), _) | (_, Err(DimError::Unbound(_))) => continue,
                (left, right) => (left?, right?),
            };
            let holds = if g.equal { left == right } else { left <= right };
            if !holds {
                return Err(ConstraintError::Broken {
                    relation: g.to_string(),
                    left,
                    right,
                    bindings: g.values(bindings),
                });
            }
        }
        Ok(())
    }

    /// `bindings`, completed by the equations: with `sumN == past + N`, any two values give the
    /// third.
    pub fn complete(&self, bindings: &Bindings) -> Result<Bindings, ConstraintError> {
        let mut out = bindings.clone();
        loop {
            let mut changed = false;
            for g in self.given.iter().filter(|g| g.equal) {
                let rest = g.left.sub(&g.right)?.substitute(&out)?;
                let [t] = rest.terms() else { continue };
                let [Atom::Symbol(s)] = t.product.as_ref() else {
                    continue;
                };
                // factor*s + constant == 0
                let value = rest.constant().checked_neg().and_then(|v| {
                    let divides = v.checked_rem(t.factor)? == 0;
                    divides.then(|| v.checked_div(t.factor))?
                });
                let value = value.ok_or_else(|| ConstraintError::NoSolution {
                    relation: g.to_string(),
                    symbol: s.clone(),
                    bindings: g.values(&out),
                })?;
                out.set(s, value);
                changed = true;
            }
            if !changed {
                return Ok(out);
            }
        }
    }

    /// Every symbol that has bounds or occurs in a relation.
    pub fn symbols(&self) -> BTreeSet<Symbol> {
        let mut out: BTreeSet<Symbol> = self.bounds.keys().cloned().collect();
        for g in &self.given {
            g.left.symbols(&mut out);
            g.right.symbols(&mut out);
        }
        out
    }

    /// All conditions of a run with the text of their constraint: `left == right` if the flag is
    /// set, else `left <= right`.
    pub fn relations(&self) -> impl Iterator<Item = (Dim, Dim, bool, String)> {
        let bounds = self.bounds.iter().flat_map(|(s, b)| {
            let low = b.lo.filter(|lo| *lo > 0).map(|lo| (lo.into(), Dim::from(s)));
            let high = b.hi.map(|hi| (Dim::from(s), hi.into()));
            let text = text_of(s, *b);
            low.into_iter()
                .chain(high)
                .map(move |(l, r)| (l, r, false, text.clone()))
        });
        let given = self.given.iter();
        bounds.chain(given.map(|g| (g.left.clone(), g.right.clone(), g.equal, g.to_string())))
    }

    /// The equations, as declared.
    pub fn equations(&self) -> impl Iterator<Item = (&Dim, &Dim)> {
        self.given.iter().filter(|g| g.equal).map(|g| (&g.left, &g.right))
    }

    /// The relations `left <= right`, as declared, without bounds of a single symbol.
    pub fn inequalities(&self) -> impl Iterator<Item = (&Dim, &Dim)> {
        self.given
            .iter()
            .filter(|g| !g.equal)
            .map(|g| (&g.left, &g.right))
    }

    /// True if there are no constraints.
    pub fn is_empty(&self) -> bool {
        self.bounds.is_empty() && self.given.is_empty()
    }
}

impl Given {
    /// The symbols of both sides that have a value, such as `N=3, past=5`.
    fn values(&self, bindings: &Bindings) -> String {
        let mut symbols = BTreeSet::new();
        self.left.symbols(&mut symbols);
        self.right.symbols(&mut symbols);
        let one = |s: &Symbol| bindings.get(s).map(|v| format!("{s}={v}"));
        symbols.iter().filter_map(one).collect::<Vec<_>>().join(", ")
    }
}

/// `(s, n)` if `d == 0` implies that the symbol `s` is a multiple of `n`.
fn multiple(d: &Dim) -> Option<(Symbol, i64)> {
    let (1 | -1, [x, y], 0) = (d.terms().first()?.factor.signum(), d.terms(), d.constant()) else {
        return None;
    };
    let (s, f, n) = match (x.product.as_ref(), y.product.as_ref()) {
        ([Atom::Symbol(s)], [Atom::Floor(f)]) if x.factor.abs() == 1 => {
            (s, f, y.factor.checked_mul(-x.factor)?)
        }
        ([Atom::Floor(f)], [Atom::Symbol(s)]) if y.factor.abs() == 1 => {
            (s, f, x.factor.checked_mul(-y.factor)?)
        }
        _ => return None,
    };
    (n > 1 && f.num.as_symbol() == Some(s) && f.den.is(n)).then(|| (s.clone(), n))
}

/// The parts of `text` between separators outside of parentheses.
fn split(text: &str, separator: fn(char) -> bool) -> Vec<&str> {
    let (mut depth, mut start, mut out) = (0usize, 0, Vec::new());
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            c if depth == 0 && separator(c) => {
                out.extend(text.get(start..at));
                start = at + c.len_utf8();
            }
            _ => {}
        }
    }
    out.extend(text.get(start..));
    out
}

fn text_of(symbol: &Symbol, b: Bounds) -> String {
    match (b.lo, b.hi) {
        (Some(l), Some(h)) => format!("{l} <= {symbol} <= {h}"),
        (Some(l), None) => format!("{symbol} >= {l}"),
        (None, Some(h)) => format!("{symbol} <= {h}"),
        (None, None) => format!("{symbol} >= 0"),
    }
}

impl fmt::Display for Constraints {
    /// Bounds, then relations: `1 <= N <= 2048, sumN == past + N`. The text parses back to equal
    /// constraints, except for their order.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bounds = self.bounds.iter().map(|(s, b)| text_of(s, *b));
        let relations = self.given.iter().map(Given::to_string);
        for (i, text) in bounds.chain(relations).enumerate() {
            f.write_str(if i > 0 { ", " } else { "" })?;
            f.write_str(&text)?;
        }
        Ok(())
    }
}
