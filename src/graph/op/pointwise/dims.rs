//! Elementwise operators over small integers and truth values that derivation knows as expressions of symbols.

use super::{Binary, Expr, Unary, broadcast_to};
use crate::graph::op::{InferCx, OpResult};
use crate::shape::{Constraints, Dim, Fact, MAX_KNOWN};
use crate::tensor::{DType, HostTensor};

/// Every element of the result, row-major, when each can be told from what is known of the operands.
pub(super) fn known(expr: &Expr, cx: &InferCx<'_>, result: &Fact) -> OpResult<Option<Vec<Dim>>> {
    if !result.dtype.is_int() && result.dtype != DType::Bool {
        return Ok(None);
    }
    let Some(shape) = result.shape.as_fixed() else { return Ok(None) };
    let count = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    let Some(count) = count.filter(|n| *n <= MAX_KNOWN) else { return Ok(None) };
    let mut operands = Vec::with_capacity(cx.inputs.len());
    for fact in cx.inputs {
        operands.push(match fact {
            Some(fact) => spread(fact, &shape)?,
            None => None,
        });
    }
    let at = |i| value(expr, &operands, i, cx.constraints());
    Ok((0..count).map(at).collect())
}

/// The known elements of an operand, one for each element of a result of `shape`.
fn spread(fact: &Fact, shape: &[usize]) -> OpResult<Option<Vec<Dim>>> {
    let (Some(dims), Some(own)) = (fact.as_dims(), fact.shape.as_fixed()) else { return Ok(None) };
    let positions: Vec<i64> = (0i64..).take(dims.len()).collect();
    let positions = broadcast_to(&HostTensor::from_i64(&own, &positions)?, shape)?.to_i64()?;
    let pick = |i: i64| usize::try_from(i).ok().and_then(|i| dims.get(i).cloned());
    Ok(positions.into_iter().map(pick).collect())
}

/// The expression's value for element `at` of the result.
fn value(expr: &Expr, operands: &[Option<Vec<Dim>>], at: usize, known: &Constraints) -> Option<Dim> {
    let go = |e: &Expr| value(e, operands, at, known);
    match expr {
        Expr::Input(i) => operands.get(*i)?.as_ref()?.get(at).cloned(),
        #[expect(clippy::cast_possible_truncation, reason = "integer constants are stored widened")]
        Expr::Const(v, t) if !t.is_float() => Some(Dim::from(*v as i64)),
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
        Expr::Not(x) => truth(Some(go(x)?.is(0)).filter(|_| go(x).is_some_and(|d| d.as_const().is_some()))),
        Expr::Binary(f, a, b) if f.is_logical() => {
            let (a, b) = (go(a).and_then(|d| d.as_const()), go(b).and_then(|d| d.as_const()));
            let (a, b) = (a.map(|v| v != 0), b.map(|v| v != 0));
            // One side alone can decide.
            let deciding = *f == Binary::Or;
            match (f, a, b) {
                (Binary::And | Binary::Or, Some(v), _) | (Binary::And | Binary::Or, _, Some(v)) if v == deciding => {
                    truth(Some(v))
                }
                (_, Some(a), Some(b)) => Some(f.ints(i64::from(a), i64::from(b)).into()),
                _ => None,
            }
        }
        Expr::Binary(f, a, b) if f.is_comparison() => truth(compare(known, *f, &go(a)?, &go(b)?)),
        Expr::Binary(f, a, b) => arithmetic(known, *f, &go(a)?, &go(b)?),
        Expr::Select(c, a, b) => match go(c).and_then(|d| d.as_const()) {
            Some(0) => go(b),
            Some(_) => go(a),
            None => go(a).filter(|a| go(b).as_ref() == Some(a)),
        },
        _ => None,
    }
}

fn truth(v: Option<bool>) -> Option<Dim> {
    v.map(|v| i64::from(v).into())
}

/// Whether an integer type holds `v`.
fn holds(t: DType, v: i64) -> bool {
    match t {
        DType::U8 => u8::try_from(v).is_ok(),
        DType::I8 => i8::try_from(v).is_ok(),
        DType::U32 => u32::try_from(v).is_ok(),
        DType::I32 => i32::try_from(v).is_ok(),
        _ => true,
    }
}

/// Whether `d >= v` in every run, in none, or that is not known.
fn at_least(known: &Constraints, d: &Dim, v: i64) -> Option<bool> {
    known.at_least(d, v).or_else(|| {
        let other = d.mul(&(-1).into()).ok()?;
        known.at_least(&other, v.checked_neg()?.checked_add(1)?).map(|below| !below)
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

/// A function of two integers other than a comparison.
pub(in crate::graph::op) fn arithmetic(known: &Constraints, f: Binary, a: &Dim, b: &Dim) -> Option<Dim> {
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
            // Truncation and flooring agree on what is not negative, and where nothing remains.
            known.divide(a, b).or_else(|| if at_least(known, a, 0) == Some(true) { a.div_floor(b).ok() } else { None })
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
            // The two differ where the dividend is negative.
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
