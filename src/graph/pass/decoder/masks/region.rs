//! Sets of positions, described by integers that are linear in the positions.

use crate::shape::{Constraints, Dim};

/// An integer that is linear in the positions of its element: `constant` plus the sum of positions
/// times `factors`, the last axis first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AffineForm {
    pub constant: Dim,
    pub factors: Vec<i64>,
}

impl AffineForm {
    pub fn constant(constant: Dim) -> Self {
        Self {
            constant,
            factors: Vec::new(),
        }
    }

    pub fn factor(&self, axis: usize) -> i64 {
        self.factors.get(axis).copied().unwrap_or(0)
    }

    /// `self + by * other`.
    pub fn plus(&self, other: &Self, by: i64) -> Option<Self> {
        let axes = self.factors.len().max(other.factors.len());
        let factor = |a: usize| self.factor(a).checked_add(other.factor(a).checked_mul(by)?);
        Some(Self {
            constant: self.constant.add(&other.constant.mul(&by.into()).ok()?).ok()?,
            factors: (0..axes).map(factor).collect::<Option<_>>()?,
        })
    }

    /// `self - other - less`.
    pub fn minus(&self, other: &Self, less: i64) -> Option<Self> {
        self.plus(other, -1)?.plus(&Self::constant(less.into()), -1)
    }

    /// The form that is not negative exactly where this one is negative.
    pub fn negated(&self) -> Option<Self> {
        Self::constant((-1).into()).plus(self, -1)
    }

    /// The same integer at all positions, if it is.
    pub fn uniform(&self) -> Option<&Dim> {
        let plain = self.factors.iter().all(|f| *f == 0);
        plain.then_some(&self.constant)
    }

    pub fn as_const(&self) -> Option<i64> {
        self.uniform()?.as_const()
    }

    /// Moves the factor of each axis to the axis `place` returns (counted from the last), or drops
    /// it for `None`.
    pub fn moved(&self, place: &dyn Fn(usize) -> Option<usize>) -> Self {
        let mut factors = Vec::new();
        for (axis, factor) in self.factors.iter().enumerate().filter(|(_, f)| **f != 0) {
            if let Some(to) = place(axis) {
                if factors.len() <= to {
                    factors.resize(to + 1, 0);
                }
                factors[to] = *factor;
            }
        }
        Self {
            constant: self.constant.clone(),
            factors,
        }
    }

    /// The form for positions counted from `starts` (the last axis first).
    pub fn shifted(&self, starts: &[Dim]) -> Option<Self> {
        let mut constant = self.constant.clone();
        for (factor, start) in self.factors.iter().zip(starts) {
            constant = constant.add(&start.mul(&(*factor).into()).ok()?).ok()?;
        }
        Some(Self {
            constant,
            factors: self.factors.clone(),
        })
    }

    /// The smallest value at positions of a tensor with these sizes, the last axis first.
    fn least(&self, sizes: &[Dim]) -> Option<Dim> {
        let mut least = self.constant.clone();
        for (axis, factor) in self.factors.iter().enumerate().filter(|(_, f)| **f < 0) {
            let last = sizes.get(axis)?.sub(&1.into()).ok()?;
            least = least.add(&last.mul(&(*factor).into()).ok()?).ok()?;
        }
        Some(least)
    }

    /// True if this is not negative at any position of a tensor with these sizes, the last axis
    /// first.
    pub fn holds_everywhere(&self, sizes: &[Dim], known: &Constraints) -> bool {
        let least = self.least(sizes);
        least.is_some_and(|least| known.at_least(&least, 0) == Some(true))
    }

    /// True if `other` is not negative where this is not negative.
    fn implies(&self, other: &Self, known: &Constraints) -> bool {
        let difference = other.minus(self, 0);
        let uniform = difference.as_ref().and_then(Self::uniform);
        uniform.is_some_and(|d| known.at_least(d, 0) == Some(true))
    }

    /// True if one of the two is negative at each position.
    fn excludes(&self, other: &Self, known: &Constraints) -> bool {
        let sum = self.plus(other, 1);
        let uniform = sum.as_ref().and_then(Self::uniform);
        uniform.is_some_and(|d| known.at_least(d, 0) == Some(false))
    }
}

/// A set of positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// None of these is negative at a position of the set.
    pub conditions: Vec<AffineForm>,
    /// Every position where none of the conditions is negative is in the set.
    pub exact: bool,
}

impl Region {
    /// All positions.
    pub fn all() -> Self {
        Self {
            conditions: Vec::new(),
            exact: true,
        }
    }

    /// No position.
    pub fn none() -> Self {
        Self::of(AffineForm::constant((-1).into()))
    }

    /// Any set.
    pub fn unknown() -> Self {
        Self {
            conditions: Vec::new(),
            exact: false,
        }
    }

    /// The positions where `condition` is not negative.
    pub fn of(condition: AffineForm) -> Self {
        Self {
            conditions: vec![condition],
            exact: true,
        }
    }

    pub fn is_all(&self) -> bool {
        self.conditions.is_empty() && self.exact
    }

    pub fn is_none(&self) -> bool {
        let never = |c: &AffineForm| c.as_const().is_some_and(|v| v < 0);
        self.conditions.iter().any(never)
    }

    /// True if every position of the set meets `condition`.
    fn meets(&self, condition: &AffineForm, known: &Constraints) -> bool {
        self.is_none() || self.conditions.iter().any(|c| c.implies(condition, known))
    }

    pub fn and(&self, other: &Self, known: &Constraints) -> Self {
        if self.is_none() || other.is_none() {
            return Self::none();
        }
        let mut both = self.clone();
        both.exact = self.exact && other.exact;
        for condition in &other.conditions {
            if both.conditions.iter().any(|c| c.excludes(condition, known)) {
                return Self::none();
            }
            if !both.meets(condition, known) {
                both.conditions.retain(|c| !condition.implies(c, known));
                both.conditions.push(condition.clone());
            }
        }
        both
    }

    pub fn or(&self, other: &Self, known: &Constraints) -> Self {
        if self.is_none() {
            return other.clone();
        }
        if other.is_none() {
            return self.clone();
        }
        // Conditions of the one that the other meets too hold in both.
        let met = |of: &Self, by: &Self| -> Vec<AffineForm> {
            let met = of.conditions.iter().filter(|c| by.meets(c, known));
            met.cloned().collect()
        };
        let (own, others) = (met(self, other), met(other, self));
        // One set contains the other if the other meets all of its conditions.
        let contains = self.exact && own.len() == self.conditions.len()
            || other.exact && others.len() == other.conditions.len();
        let either = Self {
            conditions: own,
            exact: true,
        };
        let rest = Self {
            conditions: others,
            exact: true,
        };
        Self {
            exact: contains,
            ..either.and(&rest, known)
        }
    }

    /// All other positions.
    pub fn complement(&self) -> Self {
        if self.is_none() {
            return Self::all();
        }
        match self.conditions.as_slice() {
            [] if self.exact => Self::none(),
            [one] if self.exact => one.negated().map_or_else(Self::unknown, Self::of),
            _ => Self::unknown(),
        }
    }

    /// The same with every form mapped by `to`; `None` if that fails for one.
    pub fn moved(&self, to: &dyn Fn(&AffineForm) -> Option<AffineForm>) -> Option<Self> {
        Some(Self {
            conditions: self.conditions.iter().map(to).collect::<Option<_>>()?,
            exact: self.exact,
        })
    }
}
