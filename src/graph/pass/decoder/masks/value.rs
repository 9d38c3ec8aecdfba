//! What is known of the elements of a value, and how elementwise functions change it.

use super::region::{AffineForm, Region};
use crate::graph::op::pointwise::{Binary, Expr, Unary};
use crate::shape::{Constraints, Dim};
use crate::tensor::DType;

/// A key whose score gets this addend or less has no weight.
pub(super) const LOW: f64 = -1e4;

/// Integers up to this one are exact in every float type.
const EXACT: f64 = 256.0;

/// What is known of the elements of a value.
#[derive(Clone, Debug)]
pub(super) enum AbstractValue {
    Any,
    /// They are this integer, as an integer or a float.
    Integer(AffineForm),
    /// They are truth values, or 1 and 0.
    Truth {
        /// Where the element is true.
        yes: Region,
        /// Where the element is false.
        no: Region,
    },
    Float(Number),
}

/// A float with two levels.
#[derive(Clone, Debug)]
pub(super) struct Number {
    /// The float is at most `low` wherever one of these is negative.
    pub seen: Vec<AffineForm>,
    /// Upper bound of a masked element.
    pub low: f64,
    /// Upper bound of all elements.
    pub most: f64,
    /// The float wherever none of `seen` is negative, if it is known.
    pub rest: Option<f64>,
    /// No element is infinite or NaN.
    pub finite: bool,
}

impl Number {
    /// Floats of which only an upper bound is known.
    fn below(most: f64) -> Self {
        Self {
            seen: Vec::new(),
            low: f64::NEG_INFINITY,
            most,
            rest: None,
            finite: false,
        }
    }

    /// One float at all positions.
    fn uniform(v: f64) -> Self {
        Self {
            rest: Some(v),
            finite: v.is_finite(),
            ..Self::below(v)
        }
    }

    /// A float at the positions of `seen`, which is `rest` there if the set is exactly known.
    fn masked(seen: Region, low: f64, most: f64, rest: Option<f64>) -> Self {
        Self {
            low: if seen.conditions.is_empty() {
                f64::NEG_INFINITY
            } else {
                low
            },
            rest: rest.filter(|_| seen.exact),
            seen: seen.conditions,
            most: if most.is_nan() { f64::INFINITY } else { most },
            finite: false,
        }
    }

    fn as_const(&self) -> Option<f64> {
        self.rest.filter(|_| self.seen.is_empty())
    }

    /// The positions that may be above `low`.
    fn region(&self) -> Region {
        Region {
            conditions: self.seen.clone(),
            exact: true,
        }
    }
}

impl AbstractValue {
    /// The same constant at all positions.
    pub fn constant(v: f64, t: DType) -> Self {
        if t == DType::Bool {
            return Self::holds(if v == 0.0 { Region::none() } else { Region::all() });
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "integer constants are stored widened"
        )]
        if t.is_int() {
            return Self::Integer(AffineForm::constant((v as i64).into()));
        }
        Self::Float(Number::uniform(v))
    }

    /// A truth value that holds in this set.
    pub fn holds(yes: Region) -> Self {
        Self::Truth {
            no: yes.complement(),
            yes,
        }
    }

    /// The same, with every form mapped by `to`; `None` if that fails for one.
    pub fn moved(self, to: &dyn Fn(&AffineForm) -> Option<AffineForm>) -> Option<Self> {
        Some(match self {
            Self::Any => Self::Any,
            Self::Integer(form) => Self::Integer(to(&form)?),
            Self::Truth { yes, no } => Self::Truth {
                yes: yes.moved(to)?,
                no: no.moved(to)?,
            },
            Self::Float(number) => Self::Float(Number {
                seen: number.seen.iter().map(to).collect::<Option<_>>()?,
                ..number
            }),
        })
    }

    /// True if all elements are known to be the same.
    pub fn is_uniform(&self) -> bool {
        match self {
            Self::Any => false,
            Self::Integer(form) => form.uniform().is_some(),
            Self::Truth { yes, no } => yes.is_all() || no.is_all(),
            Self::Float(number) => number.as_const().is_some(),
        }
    }

    /// True if all elements of both are known to be the same.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Integer(a), Self::Integer(b)) => a.uniform().is_some() && a.uniform() == b.uniform(),
            (Self::Truth { .. }, Self::Truth { .. }) | (Self::Float(_), Self::Float(_)) => {
                self.as_const().is_some() && self.as_const() == other.as_const()
            }
            _ => false,
        }
    }

    /// Where a truth value is true, and where it is false.
    fn truth(&self) -> [Region; 2] {
        match self {
            Self::Truth { yes, no } => [yes.clone(), no.clone()],
            _ => [Region::unknown(), Region::unknown()],
        }
    }

    /// The value as a float.
    pub fn number(&self) -> Number {
        let constant = |form: &AffineForm| form.as_const().and_then(|v| i32::try_from(v).ok()).map(f64::from);
        match self {
            Self::Float(number) => number.clone(),
            Self::Integer(form) => {
                constant(form).map_or_else(|| Number::below(f64::INFINITY), Number::uniform)
            }
            Self::Truth { yes, .. } if yes.is_all() => Number::uniform(1.0),
            Self::Truth { no, .. } if no.is_all() => Number::uniform(0.0),
            Self::Truth { .. } => Number {
                finite: true,
                ..Number::below(1.0)
            },
            Self::Any => Number::below(f64::INFINITY),
        }
    }

    fn as_const(&self) -> Option<f64> {
        self.number().as_const()
    }

    fn not(self) -> Self {
        match self {
            Self::Truth { yes, no } => Self::Truth { yes: no, no: yes },
            _ => Self::Any,
        }
    }

    /// The value converted to `t`.
    fn cast(self, t: DType) -> Self {
        if t == DType::Bool {
            return match &self {
                Self::Truth { .. } => self,
                Self::Integer(form) if form.as_const().is_none() => Self::Any,
                _ => equal_to(&self, 0.0).map_or(Self::Any, Self::not),
            };
        }
        match self {
            Self::Float(number) => {
                let whole = |v: &f64| v.fract() == 0.0 && v.abs() <= EXACT;
                let rest = number.rest.filter(whole);
                let finite = number.finite && t == DType::F32;
                match (t.is_float(), number.seen.is_empty(), rest) {
                    (true, ..) => Self::Float(Number {
                        rest,
                        finite,
                        ..number
                    }),
                    (false, true, Some(v)) => Self::constant(v, t),
                    _ => Self::Any,
                }
            }
            value => value,
        }
    }
}

/// A comparison with a constant: what it gives where a float has its upper level, and below.
fn levels(f: Binary, number: &Number, by: f64) -> Option<[bool; 2]> {
    let rest = number.rest?;
    // Below, the float is at most `low`.
    let low = number.low;
    let (above, below) = match f {
        Binary::Equal => (rest == by, (low < by).then_some(false)),
        Binary::Less => (rest < by, (low < by).then_some(true)),
        Binary::LessOrEqual => (rest <= by, (low <= by).then_some(true)),
        Binary::Greater => (rest > by, (low <= by).then_some(false)),
        Binary::GreaterOrEqual => (rest >= by, (low < by).then_some(false)),
        _ => return None,
    };
    Some([above, below?])
}

/// A comparison of floats, one of which is constant, or of truth values as 1 and 0.
fn compare_number(f: Binary, a: &AbstractValue, by: f64) -> Option<AbstractValue> {
    if let AbstractValue::Truth { .. } = a {
        let [yes, no] = [1.0, 0.0].map(|v| levels(f, &Number::uniform(v), by).map(|l| l[0]));
        return Some(match (yes?, no?) {
            (true, true) => AbstractValue::holds(Region::all()),
            (false, false) => AbstractValue::holds(Region::none()),
            (true, false) => a.clone(),
            (false, true) => a.clone().not(),
        });
    }
    let number = a.number();
    let [above, below] = levels(f, &number, by)?;
    let seen = AbstractValue::holds(number.region());
    Some(match (above, below) {
        (true, true) => AbstractValue::holds(Region::all()),
        (false, false) => AbstractValue::holds(Region::none()),
        (true, false) => seen,
        (false, true) => seen.not(),
    })
}

fn equal_to(a: &AbstractValue, by: f64) -> Option<AbstractValue> {
    compare_number(Binary::Equal, a, by)
}

/// The comparison with exchanged operands.
fn mirrored(f: Binary) -> Binary {
    match f {
        Binary::Less => Binary::Greater,
        Binary::LessOrEqual => Binary::GreaterOrEqual,
        Binary::Greater => Binary::Less,
        Binary::GreaterOrEqual => Binary::LessOrEqual,
        f => f,
    }
}

/// Rules that may use relations of sizes.
pub(super) struct Rules<'a> {
    pub known: &'a Constraints,
}

impl Rules<'_> {
    pub fn and(&self, a: &AbstractValue, b: &AbstractValue) -> AbstractValue {
        let ([yes_a, no_a], [yes_b, no_b]) = (a.truth(), b.truth());
        AbstractValue::Truth {
            yes: yes_a.and(&yes_b, self.known),
            no: no_a.or(&no_b, self.known),
        }
    }

    fn or(&self, a: &AbstractValue, b: &AbstractValue) -> AbstractValue {
        self.and(&a.clone().not(), &b.clone().not()).not()
    }

    /// Elementwise selection of floats: `a` where the condition holds, else `b`.
    pub fn select(&self, condition: &AbstractValue, a: &AbstractValue, b: &AbstractValue) -> AbstractValue {
        let [yes, no] = condition.truth();
        let (a, b) = (a.number(), b.number());
        let most = a.most.max(b.most);
        let shown_a = yes.and(&a.region(), self.known);
        let shown_b = no.and(&b.region(), self.known);
        let number = match (a.most <= LOW, b.most <= LOW) {
            (_, true) => Number::masked(shown_a, a.low.max(b.most), most, a.rest),
            (true, false) => Number::masked(shown_b, b.low.max(a.most), most, b.rest),
            (false, false) => {
                let rest = match (shown_a.is_none(), shown_b.is_none()) {
                    (true, _) => b.rest,
                    (_, true) => a.rest,
                    _ => a.rest.filter(|_| a.rest == b.rest),
                };
                let shown = shown_a.or(&shown_b, self.known);
                Number::masked(shown, a.low.max(b.low), most, rest)
            }
        };
        AbstractValue::Float(Number {
            finite: a.finite && b.finite,
            ..number
        })
    }

    /// Elementwise selection of truth values or floats.
    pub fn choose(&self, c: &AbstractValue, a: &AbstractValue, b: &AbstractValue) -> AbstractValue {
        use AbstractValue::Truth;
        if matches!((a, b), (Truth { .. }, _) | (_, Truth { .. })) {
            let other = c.clone().not();
            return self.or(&self.and(c, a), &self.and(&other, b));
        }
        self.select(c, a, b)
    }

    /// Combines two floats that may each be low by their own conditions. `by` combines two numbers,
    /// and also a low one with an upper bound of the other.
    fn either(&self, a: &Number, b: &Number, by: &dyn Fn(f64, f64) -> f64) -> AbstractValue {
        let (mut seen, mut low, mut all) = (Region::all(), f64::NEG_INFINITY, true);
        for (own, other) in [(a, b), (b, a)] {
            if own.seen.is_empty() {
                continue;
            }
            let bound = by(own.low, other.most);
            // Skip bounds that are NaN or not low.
            if bound <= LOW {
                seen = seen.and(&own.region(), self.known);
                low = low.max(bound);
            } else {
                all = false;
            }
        }
        let rest = a.rest.zip(b.rest).map(|(a, b)| by(a, b)).filter(|_| all);
        AbstractValue::Float(Number::masked(seen, low, by(a.most, b.most), rest))
    }

    /// A comparison of two integers.
    fn compare(&self, f: Binary, a: &AffineForm, b: &AffineForm) -> Option<AbstractValue> {
        let holds = |form| AbstractValue::holds(Region::of(form));
        Some(match f {
            Binary::LessOrEqual => holds(b.minus(a, 0)?),
            Binary::Less => holds(b.minus(a, 1)?),
            Binary::GreaterOrEqual => holds(a.minus(b, 0)?),
            Binary::Greater => holds(a.minus(b, 1)?),
            Binary::Equal => self.and(&holds(a.minus(b, 0)?), &holds(b.minus(a, 0)?)),
            _ => return None,
        })
    }

    fn integers(&self, f: Binary, a: &AffineForm, b: &AffineForm) -> Option<AbstractValue> {
        Some(AbstractValue::Integer(match f {
            Binary::Add => a.plus(b, 1)?,
            Binary::Sub => a.plus(b, -1)?,
            Binary::Mul => match (a.as_const(), b.as_const()) {
                (_, Some(by)) => AffineForm::constant(0.into()).plus(a, by)?,
                (Some(by), _) => AffineForm::constant(0.into()).plus(b, by)?,
                _ => return None,
            },
            _ => return self.compare(f, a, b),
        }))
    }

    fn product(&self, a: &AbstractValue, b: &AbstractValue) -> Option<AbstractValue> {
        use AbstractValue::Truth;
        let zero = AbstractValue::Float(Number::uniform(0.0));
        match (a, b) {
            (Truth { .. }, Truth { .. }) => Some(self.and(a, b)),
            // A truth value (1 or 0) times a number.
            (Truth { .. }, x) if x.number().finite => Some(self.select(a, x, &zero)),
            (x, Truth { .. }) if x.number().finite => Some(self.select(b, x, &zero)),
            _ => {
                let (x, by) = match (a.as_const(), b.as_const()) {
                    (_, Some(by)) => (a, by),
                    (Some(by), _) => (b, by),
                    _ => return None,
                };
                let x = x.number();
                if by.is_finite() && by > 0.0 {
                    return Some(AbstractValue::Float(Number {
                        low: x.low * by,
                        most: x.most * by,
                        rest: x.rest.map(|v| v * by),
                        finite: x.finite && by <= 1.0,
                        ..x
                    }));
                }
                let constant = x.as_const()? * by;
                Some(AbstractValue::Float(Number::uniform(constant))).filter(|_| constant.is_finite())
            }
        }
    }

    /// The maximum of a number and a constant.
    fn raised(a: &AbstractValue, b: &AbstractValue) -> Option<AbstractValue> {
        let (x, by) = match (a.as_const(), b.as_const()) {
            (_, Some(by)) => (a.number(), by),
            (Some(by), None) => (b.number(), by),
            _ => return None,
        };
        Some(AbstractValue::Float(Number {
            low: x.low.max(by),
            most: x.most.max(by),
            rest: x.rest.map(|v| v.max(by)),
            ..x
        }))
    }

    fn binary(&self, f: Binary, a: &AbstractValue, b: &AbstractValue) -> Option<AbstractValue> {
        use AbstractValue::{Integer, Truth};
        if let (Integer(a), Integer(b)) = (a, b) {
            return self.integers(f, a, b);
        }
        Some(match (f, a, b) {
            (Binary::And, ..) => self.and(a, b),
            (Binary::Or, ..) => self.or(a, b),
            (Binary::Sub, _, Truth { .. }) if a.as_const() == Some(1.0) => b.clone().not(),
            (Binary::Mul, ..) => self.product(a, b)?,
            (Binary::Add, ..) => self.either(&a.number(), &b.number(), &|a, b| a + b),
            (Binary::Sub, ..) => {
                let by = Number::uniform(-b.as_const()?);
                self.either(&a.number(), &by, &|a, b| a + b)
            }
            (Binary::Min, ..) => self.either(&a.number(), &b.number(), &f64::min),
            (Binary::Max, ..) => Self::raised(a, b)?,
            _ => match (a.as_const(), b.as_const()) {
                (_, Some(by)) => compare_number(f, a, by)?,
                (Some(by), None) => compare_number(mirrored(f), b, by)?,
                _ => return None,
            },
        })
    }

    pub fn expression(&self, e: &Expr, operands: &[AbstractValue]) -> AbstractValue {
        let go = |e: &Expr| self.expression(e, operands);
        match e {
            Expr::Input(i) => operands.get(*i).cloned().unwrap_or(AbstractValue::Any),
            Expr::Const(v, t) => AbstractValue::constant(*v, *t),
            Expr::Not(x) => go(x).not(),
            Expr::Cast(t, x) => go(x).cast(*t),
            Expr::Unary(Unary::Neg, x) => match go(x) {
                AbstractValue::Integer(form) => AffineForm::constant(Dim::from(0))
                    .plus(&form, -1)
                    .map_or(AbstractValue::Any, AbstractValue::Integer),
                _ => AbstractValue::Any,
            },
            Expr::Binary(f, a, b) => self.binary(*f, &go(a), &go(b)).unwrap_or(AbstractValue::Any),
            Expr::Select(c, a, b) => self.choose(&go(c), &go(a), &go(b)),
            Expr::Unary(..) | Expr::Test(..) => AbstractValue::Any,
        }
    }
}
