//! Shape inference of elementwise operators: evaluates them over symbolic integers, truth values
//! and quotients.

use super::{Binary, Expr, Unary, broadcast_to};
use crate::graph::op::{InferCx, OpResult};
use crate::shape::{Constraints, Dim, EXACT, Fact, Known, MAX_KNOWN, Quotient};
use crate::tensor::{DType, HostTensor};

/// What is known of every element of the result, row-major.
pub(super) fn known(expr: &Expr, cx: &InferCx<'_>, result: &Fact) -> OpResult<Known> {
    let Some(shape) = result.shape.as_fixed() else {
        return Ok(Known::No);
    };
    let count = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    let Some(count) = count.filter(|n| *n <= MAX_KNOWN) else {
        return Ok(Known::No);
    };
    let mut operands = Vec::with_capacity(cx.inputs.len());
    for fact in cx.inputs {
        operands.push(match fact {
            Some(fact) => spread(fact, &shape)?,
            None => None,
        });
    }
    let at = |at| Element {
        operands: &operands,
        at,
        cx,
    };
    Ok(match result.dtype {
        DType::F32 => (0..count)
            .map(|i| at(i).float(expr))
            .collect::<Option<_>>()
            .map_or(Known::No, Known::Quotients),
        t if t.is_float() => Known::No,
        _ => (0..count)
            .map(|i| at(i).int(expr))
            .collect::<Option<_>>()
            .map_or(Known::No, Known::Dims),
    })
}

/// The known elements of an operand, broadcast to a result of `shape`.
fn spread(fact: &Fact, shape: &[usize]) -> OpResult<Option<Vec<Quotient>>> {
    let elements = fact
        .as_dims()
        .map(|d| d.into_iter().map(Quotient::whole).collect());
    let (Some(elements), Some(own)) = (elements.or_else(|| fact.as_quotients()), fact.shape.as_fixed())
    else {
        return Ok(None);
    };
    let positions: Vec<i64> = (0i64..).take(elements.len()).collect();
    let positions = broadcast_to(&HostTensor::from_i64(&own, &positions)?, shape)?.to_i64()?;
    let pick = |i: i64| usize::try_from(i).ok().and_then(|i| elements.get(i).cloned());
    Ok(positions.into_iter().map(pick).collect())
}

/// Evaluator of one element of the result.
#[derive(Clone, Copy)]
struct Element<'a> {
    operands: &'a [Option<Vec<Quotient>>],
    at: usize,
    cx: &'a InferCx<'a>,
}

impl Element<'_> {
    fn is_float(&self, expr: &Expr) -> bool {
        let types: Vec<DType> = self
            .cx
            .inputs
            .iter()
            .map(|f| f.map_or(DType::F16, |f| f.dtype))
            .collect();
        expr.dtype(&types).is_ok_and(DType::is_float)
    }

    /// The value of an expression that is not a float.
    fn int(&self, expr: &Expr) -> Option<Dim> {
        let known = self.cx.constraints();
        let go = |e: &Expr| self.int(e);
        match expr {
            Expr::Input(i) => self
                .operands
                .get(*i)?
                .as_ref()?
                .get(self.at)
                .filter(|q| q.den == 1)
                .map(|q| q.num.clone()),
            #[expect(
                clippy::cast_possible_truncation,
                reason = "integer constants are stored widened"
            )]
            Expr::Const(v, t) if !t.is_float() => Some(Dim::from(*v as i64)),
            Expr::Cast(t, x) if self.is_float(x) => {
                let q = self.float(x).filter(|_| matches!(t, DType::I64 | DType::I32))?;
                // Conversion truncates towards zero.
                if q.den == 1 || at_least(known, &q.num, 0) == Some(true) {
                    self.floor(&q)
                } else {
                    None
                }
            }
            Expr::Cast(DType::Bool, x) => truth(known.equal(&go(x)?, &0.into()).map(|zero| !zero)),
            // Sizes fit 32 bits; narrower types wrap.
            Expr::Cast(DType::I64 | DType::I32, x) => go(x),
            Expr::Cast(t, x) if t.is_int() => go(x).filter(|d| d.as_const().is_some_and(|v| holds(*t, v))),
            Expr::Unary(Unary::Neg, x) => go(x)?.mul(&(-1).into()).ok(),
            Expr::Unary(Unary::Abs, x) => {
                let x = go(x)?;
                let negative = x.mul(&(-1).into()).ok()?;
                match at_least(known, &x, 0) {
                    Some(true) => Some(x),
                    Some(false) => Some(negative),
                    None => x.maximum(&negative).ok(),
                }
            }
            Expr::Not(x) => go(x)?.as_const().map(|v| i64::from(v == 0).into()),
            Expr::Binary(f, a, b) if f.is_logical() => {
                let truth_of = |e: &Expr| go(e).and_then(|d| d.as_const()).map(|v| v != 0);
                match (f, truth_of(a), truth_of(b)) {
                    // One operand alone can decide.
                    (Binary::And, Some(false), _) | (Binary::And, _, Some(false)) => Some(0.into()),
                    (Binary::Or, Some(true), _) | (Binary::Or, _, Some(true)) => Some(1.into()),
                    (_, Some(a), Some(b)) => Some(f.ints(i64::from(a), i64::from(b)).into()),
                    _ => None,
                }
            }
            Expr::Binary(f, a, b) if f.is_comparison() && !self.is_float(a) => {
                truth(compare(known, *f, &go(a)?, &go(b)?))
            }
            Expr::Binary(f, a, b) if !f.is_comparison() => arithmetic(known, *f, &go(a)?, &go(b)?),
            Expr::Select(c, a, b) => match go(c).and_then(|d| d.as_const()) {
                Some(0) => go(b),
                Some(_) => go(a),
                None => go(a).filter(|a| go(b).as_ref() == Some(a)),
            },
            _ => None,
        }
    }

    /// The value of a float expression.
    fn float(&self, expr: &Expr) -> Option<Quotient> {
        let go = |e: &Expr| self.float(e);
        match expr {
            Expr::Input(i) => self.operands.get(*i)?.as_ref()?.get(self.at).cloned(),
            #[expect(clippy::cast_possible_truncation, reason = "constants are stored widened")]
            Expr::Const(v, DType::F32) => Quotient::of(*v as f32),
            Expr::Cast(DType::F32, x) if self.is_float(x) => go(x),
            Expr::Cast(DType::F32, x) => self.int(x).map(Quotient::whole),
            Expr::Unary(Unary::Neg, x) => {
                let q = go(x)?;
                Some(Quotient {
                    num: q.num.mul(&(-1).into()).ok()?,
                    den: q.den,
                })
            }
            Expr::Unary(Unary::Floor, x) => self.floor(&go(x)?).map(Quotient::whole),
            Expr::Unary(Unary::Ceil, x) => {
                let q = go(x)?;
                let negative = Quotient {
                    num: q.num.mul(&(-1).into()).ok()?,
                    den: q.den,
                };
                self.floor(&negative)?.mul(&(-1).into()).ok().map(Quotient::whole)
            }
            Expr::Binary(f, a, b) => {
                let (a, b) = (go(a)?, go(b)?);
                if !a.is_exact() || !b.is_exact() {
                    return None;
                }
                let scale = |q: &Quotient, by: i64| q.num.mul(&by.into()).ok();
                // Large numbers may cancel to a small sum, which would hide that they were inexact.
                if matches!(f, Binary::Add | Binary::Sub)
                    && a.num.as_const().is_none()
                    && b.num.as_const().is_none()
                {
                    return None;
                }
                let q = match f {
                    Binary::Add => Quotient {
                        num: scale(&a, b.den)?.add(&scale(&b, a.den)?).ok()?,
                        den: a.den.checked_mul(b.den)?,
                    },
                    Binary::Sub => Quotient {
                        num: scale(&a, b.den)?.sub(&scale(&b, a.den)?).ok()?,
                        den: a.den.checked_mul(b.den)?,
                    },
                    Binary::Mul => Quotient {
                        num: a.num.mul(&b.num).ok()?,
                        den: a.den.checked_mul(b.den)?,
                    },
                    Binary::Div => {
                        let divisor = b.num.as_const().filter(|v| *v > 0)?;
                        Quotient {
                            num: scale(&a, b.den)?,
                            den: a.den.checked_mul(divisor)?,
                        }
                    }
                    _ => return None,
                };
                Some(q)
            }
            Expr::Select(c, a, b) => match self.int(c).and_then(|d| d.as_const()) {
                Some(0) => go(b),
                Some(_) => go(a),
                None => None,
            },
            _ => None,
        }
    }

    /// The floor of a quotient. If the numerator is small enough to be an exact float, rounding the
    /// quotient to a float does not cross an integer.
    fn floor(&self, q: &Quotient) -> Option<Dim> {
        for sign in [1, -1] {
            let room = Dim::from(EXACT).sub(&q.num.mul(&sign.into()).ok()?).ok()?;
            self.cx
                .require(room, "distance to the largest integer that is exact in a float")
                .ok()?;
        }
        q.num.floor_div(q.den).ok()
    }
}

fn truth(v: Option<bool>) -> Option<Dim> {
    v.map(|v| i64::from(v).into())
}

/// True if an integer type can hold `v`.
fn holds(t: DType, v: i64) -> bool {
    t.int_range()
        .is_none_or(|(low, high)| (low..=high).contains(&v.into()))
}

/// Whether `d >= v`: in every run, in none, or `None` if unknown.
fn at_least(known: &Constraints, d: &Dim, v: i64) -> Option<bool> {
    known.at_least(d, v).or_else(|| {
        let other = d.mul(&(-1).into()).ok()?;
        known
            .at_least(&other, v.checked_neg()?.checked_add(1)?)
            .map(|below| !below)
    })
}

fn compare(known: &Constraints, f: Binary, a: &Dim, b: &Dim) -> Option<bool> {
    let less = |a: &Dim, b: &Dim| at_least(known, &b.sub(a).ok()?, 1);
    match f {
        Binary::Less => less(a, b),
        Binary::Greater => less(b, a),
        Binary::LessOrEqual => less(b, a).map(|v| !v),
        Binary::GreaterOrEqual => less(a, b).map(|v| !v),
        Binary::Equal => known.equal(a, b).or_else(|| match (less(a, b), less(b, a)) {
            (Some(true), _) | (_, Some(true)) => Some(false),
            (Some(false), Some(false)) => Some(true),
            _ => None,
        }),
        _ => None,
    }
}

/// A binary integer function other than a comparison.
pub(crate) fn arithmetic(known: &Constraints, f: Binary, a: &Dim, b: &Dim) -> Option<Dim> {
    match f {
        Binary::Add => a.add(b).ok(),
        Binary::Sub => a.sub(b).ok(),
        Binary::Mul => a.mul(b).ok(),
        Binary::Min | Binary::Max => {
            let smaller = match f {
                Binary::Min => (a, b),
                _ => (b, a),
            };
            match at_least(known, &b.sub(a).ok()?, 0) {
                Some(true) => Some(smaller.0.clone()),
                Some(false) => Some(smaller.1.clone()),
                None if f == Binary::Min => a.minimum(b).ok(),
                None => a.maximum(b).ok(),
            }
        }
        Binary::Div => {
            if let (Some(a), Some(b)) = (a.as_const(), b.as_const()) {
                return a.checked_div(b).map(Dim::from);
            }
            if at_least(known, b, 1) != Some(true) {
                return None;
            }
            // Truncation and flooring agree for non-negative values and for exact division.
            known.divide(a, b).or_else(|| {
                if at_least(known, a, 0) == Some(true) {
                    a.div_floor(b).ok()
                } else {
                    None
                }
            })
        }
        Binary::Mod | Binary::FMod => {
            if let (Some(_), Some(_)) = (a.as_const(), b.as_const()) {
                return Some(f.ints(a.as_const()?, b.as_const()?).into()).filter(|_| !b.is(0));
            }
            if at_least(known, b, 1) != Some(true) {
                return None;
            }
            if known.divide(a, b).is_some() {
                return Some(0.into());
            }
            // The two differ for a negative dividend.
            let plain = f == Binary::Mod || at_least(known, a, 0) == Some(true);
            if plain { a.modulo(b).ok() } else { None }
        }
        Binary::Pow => {
            let exponent = b.as_const().filter(|n| (0..=8).contains(n))?;
            (0..exponent).try_fold(Dim::from(1), |p, _| p.mul(a)).ok()
        }
        _ => None,
    }
}
