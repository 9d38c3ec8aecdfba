//! Conditions on positions that must hold where a mask leaves a key visible.
//!
//! Each value that a mask depends on is described by how its elements follow from their positions:
//! a [`AffineForm`] of integers, a truth value with conditions for true and for false, or a number
//! that is low unless conditions hold. All conditions are necessary, none is sufficient. Unknown
//! operators give no conditions.

use crate::graph::op::expand::Expand;
use crate::graph::op::pointwise::{Binary, Expr, Pointwise, Unary};
use crate::graph::op::range::Range;
use crate::graph::op::reshape::Reshape;
use crate::graph::op::slice::Slice;
use crate::graph::op::transpose::Transpose;
use crate::graph::op::trilu::Trilu;
use crate::graph::pass::pattern::input;
use crate::graph::{Graph, Node, ValueId};
use crate::shape::Dim;
use crate::tensor::DType;
use std::collections::HashMap;

/// A key whose score gets this addend or less has no weight.
const LOW: f64 = -1e4;
/// How many values in a row are followed.
const DEEPEST: usize = 64;

/// An integer that is linear in the positions of its element: `constant` plus the sum of positions
/// times `factors`, the last axis first.
#[derive(Clone, Debug, PartialEq, Eq)]
struct AffineForm {
    constant: Dim,
    factors: Vec<i64>,
}

/// What is known of the elements of a value.
#[derive(Clone, Debug)]
enum AbstractValue {
    Any,
    /// They are this integer, as an integer or a float.
    Integer(AffineForm),
    /// They are truth values, or 1 and 0.
    Truth {
        /// None of these is negative where the element is true.
        yes: Vec<AffineForm>,
        /// None of these is negative where the element is false.
        no: Vec<AffineForm>,
    },
    Float {
        /// The float is at most `low` wherever one of these is negative.
        seen: Vec<AffineForm>,
        /// Upper bound of a masked element.
        low: f64,
        /// Upper bound of all elements.
        most: f64,
    },
}

impl AffineForm {
    fn constant(constant: Dim) -> Self {
        Self {
            constant,
            factors: Vec::new(),
        }
    }

    fn factor(&self, axis: usize) -> i64 {
        self.factors.get(axis).copied().unwrap_or(0)
    }

    /// `self + by * other`.
    fn plus(&self, other: &Self, by: i64) -> Option<Self> {
        let axes = self.factors.len().max(other.factors.len());
        let factor = |a: usize| self.factor(a).checked_add(other.factor(a).checked_mul(by)?);
        Some(Self {
            constant: self.constant.add(&other.constant.mul(&by.into()).ok()?).ok()?,
            factors: (0..axes).map(factor).collect::<Option<_>>()?,
        })
    }

    /// `self - other - less`.
    fn minus(&self, other: &Self, less: i64) -> Option<Self> {
        self.plus(other, -1)?.plus(&Self::constant(less.into()), -1)
    }

    fn as_const(&self) -> Option<i64> {
        let plain = self.factors.iter().all(|f| *f == 0);
        self.constant.as_const().filter(|_| plain)
    }

    /// Moves the factor of each axis to the axis `place` returns (counted from the last), or drops
    /// it for `None`.
    fn moved(&self, place: &dyn Fn(usize) -> Option<usize>) -> Self {
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
}

/// The union of `a` and `b`.
fn all(a: &[AffineForm], b: &[AffineForm]) -> Vec<AffineForm> {
    let mut both = a.to_vec();
    both.extend(b.iter().filter(|l| !a.contains(l)).cloned());
    both
}

/// The intersection of `a` and `b`.
fn common(a: &[AffineForm], b: &[AffineForm]) -> Vec<AffineForm> {
    a.iter().filter(|l| b.contains(l)).cloned().collect()
}

impl AbstractValue {
    fn float(most: f64) -> Self {
        Self::Float {
            seen: Vec::new(),
            low: f64::NEG_INFINITY,
            most,
        }
    }

    /// The same, with every line mapped by `to`.
    fn moved(self, to: &dyn Fn(&AffineForm) -> AffineForm) -> Self {
        let each = |list: Vec<AffineForm>| list.iter().map(to).collect();
        match self {
            Self::Any => Self::Any,
            Self::Integer(line) => Self::Integer(to(&line)),
            Self::Truth { yes, no } => Self::Truth {
                yes: each(yes),
                no: each(no),
            },
            Self::Float { seen, low, most } => Self::Float {
                seen: each(seen),
                low,
                most,
            },
        }
    }

    /// Conditions if this is a truth value, else none.
    fn truth(&self) -> (Vec<AffineForm>, Vec<AffineForm>) {
        match self {
            Self::Truth { yes, no } => (yes.clone(), no.clone()),
            _ => (Vec::new(), Vec::new()),
        }
    }

    /// Conditions and bounds of the value as a float.
    fn number(&self) -> (Vec<AffineForm>, f64, f64) {
        let constant = |line: &AffineForm| line.as_const().and_then(|v| i32::try_from(v).ok()).map(f64::from);
        match self {
            Self::Float { seen, most, .. } if seen.is_empty() => (Vec::new(), f64::NEG_INFINITY, *most),
            Self::Float { seen, low, most } => (seen.clone(), *low, *most),
            Self::Integer(line) => (
                Vec::new(),
                f64::NEG_INFINITY,
                constant(line).unwrap_or(f64::INFINITY),
            ),
            Self::Truth { .. } => (Vec::new(), f64::NEG_INFINITY, 1.0),
            Self::Any => (Vec::new(), f64::NEG_INFINITY, f64::INFINITY),
        }
    }

    fn as_const(&self) -> Option<f64> {
        match self {
            Self::Integer(_) => Some(self.number().2).filter(|v| v.is_finite()),
            // A constant is its own bound, and no condition lowers it.
            Self::Float { seen, low, most } if seen.is_empty() && low == most => Some(*most),
            _ => None,
        }
    }

    fn not(self) -> Self {
        match self {
            Self::Truth { yes, no } => Self::Truth { yes: no, no: yes },
            _ => Self::Any,
        }
    }

    fn and(&self, other: &Self) -> Self {
        let (a, b) = (self.truth(), other.truth());
        Self::Truth {
            yes: all(&a.0, &b.0),
            no: common(&a.1, &b.1),
        }
    }
}

/// Elementwise selection of floats: `a` where the condition holds, else `b`.
fn select(condition: &AbstractValue, a: &AbstractValue, b: &AbstractValue) -> AbstractValue {
    let (yes, no) = condition.truth();
    let ((seen_a, low_a, most_a), (seen_b, low_b, most_b)) = (a.number(), b.number());
    let most = most_a.max(most_b);
    let (a_is_low, b_is_low) = (most_a <= LOW, most_b <= LOW);
    let (seen, low) = match (a_is_low, b_is_low) {
        (_, true) => (all(&yes, &seen_a), low_a.max(most_b)),
        (true, false) => (all(&no, &seen_b), low_b.max(most_a)),
        // Keep only what both branches require. A branch that is not low itself must be low by its
        // own conditions.
        (false, false) => (common(&seen_a, &seen_b), low_a.max(low_b)),
    };
    AbstractValue::Float {
        low: if seen.is_empty() { f64::NEG_INFINITY } else { low },
        seen,
        most,
    }
}

/// Combines two floats that may each be low by their own conditions. `low` computes the bound from
/// a low operand and the upper bound of the other.
fn either(a: &AbstractValue, b: &AbstractValue, low: &dyn Fn(f64, f64) -> f64, most: f64) -> AbstractValue {
    let ((seen_a, low_a, most_a), (seen_b, low_b, most_b)) = (a.number(), b.number());
    let (mut seen, mut all_low) = (Vec::new(), f64::NEG_INFINITY);
    for (own, low) in [(seen_a, low(low_a, most_b)), (seen_b, low(low_b, most_a))] {
        // Skip bounds that are NaN or not low.
        if low <= LOW && !own.is_empty() {
            seen = all(&seen, &own);
            all_low = all_low.max(low);
        }
    }
    AbstractValue::Float {
        seen,
        low: all_low,
        most,
    }
}

/// A comparison of two integers.
fn compare(f: Binary, a: &AffineForm, b: &AffineForm) -> Option<AbstractValue> {
    let truth = |yes: AffineForm, no: Option<AffineForm>| AbstractValue::Truth {
        yes: vec![yes],
        no: no.into_iter().collect(),
    };
    Some(match f {
        Binary::LessOrEqual => truth(b.minus(a, 0)?, a.minus(b, 1)),
        Binary::Less => truth(b.minus(a, 1)?, a.minus(b, 0)),
        Binary::GreaterOrEqual => truth(a.minus(b, 0)?, b.minus(a, 1)),
        Binary::Greater => truth(a.minus(b, 1)?, b.minus(a, 0)),
        Binary::Equal => AbstractValue::Truth {
            yes: vec![a.minus(b, 0)?, b.minus(a, 0)?],
            no: Vec::new(),
        },
        _ => return None,
    })
}

fn binary(f: Binary, a: &AbstractValue, b: &AbstractValue) -> Option<AbstractValue> {
    use AbstractValue::{Integer, Truth};
    if let (Integer(a), Integer(b)) = (a, b) {
        let line = match f {
            Binary::Add => a.plus(b, 1)?,
            Binary::Sub => a.plus(b, -1)?,
            Binary::Mul => match (a.as_const(), b.as_const()) {
                (_, Some(by)) => AffineForm::constant(0.into()).plus(a, by)?,
                (Some(by), _) => AffineForm::constant(0.into()).plus(b, by)?,
                _ => return None,
            },
            _ => return compare(f, a, b),
        };
        return Some(Integer(line));
    }
    let (most_a, most_b) = (a.number().2, b.number().2);
    Some(match (f, a, b) {
        (Binary::And, ..) | (Binary::Mul, Truth { .. }, Truth { .. }) => a.and(b),
        (Binary::Or, ..) => a.clone().not().and(&b.clone().not()).not(),
        (Binary::Sub, _, Truth { .. }) if a.as_const() == Some(1.0) => b.clone().not(),
        // A truth value (1 or 0) times a low constant.
        (Binary::Mul, Truth { .. }, _) if b.as_const().is_some() => select(a, b, &AbstractValue::float(0.0)),
        (Binary::Mul, _, Truth { .. }) if a.as_const().is_some() => select(b, a, &AbstractValue::float(0.0)),
        (Binary::Add, ..) => either(a, b, &|low, most| low + most, most_a + most_b),
        (Binary::Min, ..) => either(a, b, &f64::min, most_a.min(most_b)),
        // The maximum is at least the constant.
        (Binary::Max, _, _) => {
            let raised = |x: &AbstractValue, by: f64| {
                let (seen, low, most) = x.number();
                AbstractValue::Float {
                    seen,
                    low: low.max(by),
                    most: most.max(by),
                }
            };
            match (a.as_const(), b.as_const()) {
                (_, Some(by)) => raised(a, by),
                (Some(by), None) => raised(b, by),
                _ => return None,
            }
        }
        _ => return None,
    })
}

fn expression(e: &Expr, operands: &[AbstractValue]) -> AbstractValue {
    let go = |e: &Expr| expression(e, operands);
    match e {
        Expr::Input(i) => operands.get(*i).cloned().unwrap_or(AbstractValue::Any),
        Expr::Const(v, t) => constant(*v, *t),
        Expr::Not(x) => go(x).not(),
        Expr::Cast(t, x) => match go(x) {
            // Nonzero numbers are true; nothing follows for their positions.
            AbstractValue::Integer(_) | AbstractValue::Float { .. } if *t == DType::Bool => {
                AbstractValue::Any
            }
            AbstractValue::Float { .. } if !t.is_float() => AbstractValue::Any,
            x => x,
        },
        Expr::Unary(Unary::Neg, x) => match go(x) {
            AbstractValue::Integer(line) => AffineForm::constant(0.into())
                .plus(&line, -1)
                .map_or(AbstractValue::Any, AbstractValue::Integer),
            _ => AbstractValue::Any,
        },
        Expr::Binary(f, a, b) => binary(*f, &go(a), &go(b)).unwrap_or(AbstractValue::Any),
        Expr::Select(c, a, b) => match (go(a), go(b)) {
            (a @ AbstractValue::Truth { .. }, b) | (a, b @ AbstractValue::Truth { .. }) => {
                let (c, other) = (go(c), go(c).not());
                c.and(&a).not().and(&other.and(&b).not()).not()
            }
            (a, b) => select(&go(c), &a, &b),
        },
        Expr::Unary(..) | Expr::Test(..) => AbstractValue::Any,
    }
}

fn constant(v: f64, t: DType) -> AbstractValue {
    if t == DType::Bool {
        // A condition that never holds marks the impossible case.
        let never = vec![AffineForm::constant((-1).into())];
        let (yes, no) = if v == 0.0 {
            (never, Vec::new())
        } else {
            (Vec::new(), never)
        };
        return AbstractValue::Truth { yes, no };
    }
    #[expect(
        clippy::cast_possible_truncation,
        reason = "integer constants are stored widened"
    )]
    if t.is_int() {
        return AbstractValue::Integer(AffineForm::constant((v as i64).into()));
    }
    AbstractValue::Float {
        seen: Vec::new(),
        low: v,
        most: v,
    }
}

/// Memoizes what is known of values.
#[derive(Default)]
pub(super) struct Masks {
    known: HashMap<ValueId, AbstractValue>,
}

impl Masks {
    /// An upper bound on the number of keys that `mask` leaves visible to a query, its own key
    /// included. The last axes of the mask are queries and keys; `past` keys come before the first
    /// query. `None` if all keys may be visible.
    pub fn window(&mut self, g: &Graph, mask: ValueId, past: &Dim) -> Option<i64> {
        let AbstractValue::Float { seen, low, .. } = self.of(g, mask, 0) else {
            return None;
        };
        if low > LOW {
            return None;
        }
        let windows = seen.iter().filter_map(|line| {
            let others = line.factors.iter().skip(2).all(|f| *f == 0);
            // position of the key - position of the query among the new ones + constant >= 0
            let fits = others && line.factor(0) == 1 && line.factor(1) == -1;
            let window = past.add(&line.constant).ok()?.add(&1.into()).ok()?;
            window.as_const().filter(|w| fits && *w > 0)
        });
        windows.min()
    }

    fn of(&mut self, g: &Graph, v: ValueId, deep: usize) -> AbstractValue {
        if let Some(known) = self.known.get(&v) {
            return known.clone();
        }
        let fact = g.value(v).fact.as_ref();
        let Some(fact) = fact.filter(|_| deep < DEEPEST) else {
            return AbstractValue::Any;
        };
        let one = match (fact.as_dims().as_deref(), fact.as_const()) {
            (Some([d]), _) if fact.dtype.is_int() => {
                Some(AbstractValue::Integer(AffineForm::constant(d.clone())))
            }
            (_, Some(t)) if t.len() == 1 => {
                let value = t.to_f32().ok().and_then(|v| v.first().copied());
                value.map(|v| constant(f64::from(v), fact.dtype))
            }
            _ => None,
        };
        let found = one.or_else(|| {
            let (_, node) = g.producer(v)?;
            self.result(g, node, v, deep + 1)
        });
        // An axis of size 1 may be broadcast, so its position is 0.
        let sizes = &fact.shape.0;
        let real = |axis: usize| sizes.iter().rev().nth(axis).filter(|d| !d.is(1)).map(|_| axis);
        let known = found
            .unwrap_or(AbstractValue::Any)
            .moved(&|line| line.moved(&real));
        self.known.insert(v, known.clone());
        known
    }

    /// What is known of a node's result `v`.
    fn result(&mut self, g: &Graph, node: &Node, v: ValueId, deep: usize) -> Option<AbstractValue> {
        let op = node.op.as_ref();
        let dims = |i: usize| dims(g, input(node, i)?);
        if let Some(op) = op.downcast::<Pointwise>() {
            let operand = |v: &Option<ValueId>| v.map_or(AbstractValue::Any, |v| self.of(g, v, deep));
            let operands: Vec<AbstractValue> = node.inputs.iter().map(operand).collect();
            return Some(expression(&op.expr, &operands));
        }
        if op.downcast::<Range>().is_some() {
            let (start, step) = (dims(0)?, dims(2)?);
            let ([start], [step]) = (start.as_slice(), step.as_slice()) else {
                return None;
            };
            return Some(AbstractValue::Integer(AffineForm {
                constant: start.clone(),
                factors: vec![step.as_const()?],
            }));
        }
        let x = input(node, 0)?;
        if op.downcast::<Reshape>().is_some() {
            let known = self.of(g, x, deep);
            return reshaped(known, sizes(g, x)?, sizes(g, v)?);
        }
        if op.downcast::<Expand>().is_some() {
            return Some(self.of(g, x, deep));
        }
        if let Some(op) = op.downcast::<Transpose>() {
            let rank = sizes(g, x)?.len();
            let axes = op.axes(rank).ok()?;
            let place = |axis: usize| {
                let from = rank.checked_sub(axis + 1)?;
                let to = axes.iter().position(|a| *a == from)?;
                Some(rank - 1 - to)
            };
            return Some(self.of(g, x, deep).moved(&|line| line.moved(&place)));
        }
        if op.downcast::<Slice>().is_some() {
            let firsts = dims(1)?.iter().all(|d| d.is(0));
            let steps = input(node, 4).is_none_or(|_| dims(4).is_some_and(|s| s.iter().all(|d| d.is(1))));
            return (firsts && steps).then(|| self.of(g, x, deep));
        }
        let op = op.downcast::<Trilu>()?;
        let diagonal = match input(node, 1) {
            Some(_) => dims(1)?.first()?.clone(),
            None => 0.into(),
        };
        let kept = triangle(op.upper, &diagonal)?;
        let known = self.of(g, x, deep);
        Some(match known {
            AbstractValue::Truth { .. } => kept.and(&known),
            _ => select(&kept, &known, &constant(0.0, DType::F32)),
        })
    }
}

fn dims(g: &Graph, v: ValueId) -> Option<Vec<Dim>> {
    g.value(v).fact.as_ref()?.as_dims()
}

fn sizes(g: &Graph, v: ValueId) -> Option<&[Dim]> {
    Some(g.value(v).fact.as_ref()?.shape.0.as_slice())
}

/// What is known after a reshape that only adds or removes axes of size 1.
fn reshaped(known: AbstractValue, from: &[Dim], to: &[Dim]) -> Option<AbstractValue> {
    let axes = |sizes: &[Dim]| -> Vec<(usize, Dim)> {
        let all = sizes.iter().rev().cloned().enumerate();
        all.filter(|(_, d)| !d.is(1)).collect()
    };
    let (from, to) = (axes(from), axes(to));
    let same = from.iter().map(|a| &a.1).eq(to.iter().map(|a| &a.1));
    let place = |axis: usize| {
        let at = from.iter().position(|(a, _)| *a == axis)?;
        to.get(at).map(|(a, _)| *a)
    };
    same.then(|| known.moved(&|line| line.moved(&place)))
}

/// Whether an element is on or above the diagonal of a matrix, or on or below it.
fn triangle(upper: bool, diagonal: &Dim) -> Option<AbstractValue> {
    let line = |factors: [i64; 2], constant: Dim| AffineForm {
        constant,
        factors: factors.to_vec(),
    };
    let minus = |less: i64| Dim::from(-less).sub(diagonal).ok();
    // Kept on and below the diagonal: key <= row + diagonal.
    let below = line([-1, 1], diagonal.clone());
    let (yes, no) = if upper {
        (
            line([1, -1], minus(0)?),
            below.plus(&AffineForm::constant(1.into()), -1)?,
        )
    } else {
        (below, line([1, -1], minus(1)?))
    };
    Some(AbstractValue::Truth {
        yes: vec![yes],
        no: vec![no],
    })
}

#[cfg(test)]
mod tests;
