//! Slices along axes with starts, ends and steps as operands.
//!
//! ONNX `Slice` from opset 1 (starts, ends and axes as attributes) and 10 (as operands). Starts and ends may be expressions of symbols.

use super::case::{Case, input};
use super::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, axis, gather_strided, onnx, operand, strides, transpose};
use crate::plan::lower::LowerCx;
use crate::shape::{Dim, Fact, Known, Shape};
use crate::tensor::HostTensor;

/// See the module documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice;

/// What one axis keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    start: Dim,
    step: i64,
    count: Dim,
}

/// An end beyond every size means "to the end".
const FAR: i64 = 1 << 31;

/// A bound made non-negative and clamped to `low..=size + high`.
///
/// Symbolic sizes are at least 1. A symbolic bound is taken as inside the size; [`Op::lower`] makes that a condition of every
/// run, and the host, which slices by numbers, does not need it.
fn clamp(bound: &Dim, size: &Dim, low: i64, high: i64) -> OpResult<Dim> {
    let top = size.add(&high.into())?;
    let Some(v) = bound.as_const() else { return Ok(bound.clone()) };
    if v >= FAR - 1 {
        return Ok(top);
    }
    if v <= -FAR + 1 {
        return Ok(low.into());
    }
    if let (Some(n), Some(top)) = (size.as_const(), top.as_const()) {
        let v = if v < 0 { v.saturating_add(n) } else { v };
        return Ok(v.min(top).max(low).into());
    }
    Ok(match v {
        -1 => size.add(bound)?,
        0 | 1 if high == 0 => v.into(),
        v if v < 0 => size.add(bound)?.maximum(&low.into())?,
        v => top.minimum(&v.into())?,
    })
}

fn parts(shape: &[Dim], starts: &[Dim], ends: &[Dim], axes: Option<&[Dim]>, steps: Option<&[Dim]>) -> OpResult<Vec<Part>> {
    let mut out: Vec<Part> =
        shape.iter().map(|d| Part { start: 0.into(), step: 1, count: d.clone() }).collect();
    if starts.len() != ends.len() {
        return Err(OpError::mismatch("numbers of starts and ends", starts.len(), ends.len()));
    }
    for (i, (start, end)) in starts.iter().zip(ends).enumerate() {
        let number = |list: Option<&[Dim]>, default: i64, what: &'static str| match list {
            None => Ok(default),
            Some(l) => l
                .get(i)
                .and_then(Dim::as_const)
                .ok_or_else(|| OpError::expected(what, "one constant a start", format!("{} values", l.len()))),
        };
        let a = axis(number(axes, i64::try_from(i).unwrap_or(i64::MAX), "axes")?, shape.len())?;
        let step = number(steps, 1, "steps")?;
        let size = &shape[a];
        if size.is(0) {
            continue;
        }
        let span = match step {
            0 => return Err(OpError::expected("step", "not 0", 0)),
            s if s > 0 => {
                let (from, to) = (clamp(start, size, 0, 0)?, clamp(end, size, 0, 0)?);
                out[a].start = from.clone();
                to.sub(&from)?
            }
            _ => {
                let (from, to) = (clamp(start, size, 0, -1)?, clamp(end, size, -1, -1)?);
                out[a].start = from.clone();
                from.sub(&to)?
            }
        };
        let count = span.ceil_div(step.checked_abs().ok_or_else(|| OpError::expected("step", "a small integer", step))?)?;
        out[a].count = match count.as_const() {
            Some(n) => n.max(0).into(),
            None => count,
        };
        out[a].step = step;
    }
    Ok(out)
}

impl Op for Slice {
    fn name(&self) -> &str {
        "Slice"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.fact(0)?;
        let optional = |i| if cx.opt(i).is_some() { cx.dims(i).map(Some) } else { Ok(None) };
        let (axes, steps) = (optional(3)?, optional(4)?);
        let parts = parts(&x.shape.0, &cx.dims(1)?, &cx.dims(2)?, axes.as_deref(), steps.as_deref())?;
        let mut fact = Fact::new(x.dtype, Shape(parts.iter().map(|p| p.count.clone()).collect()));
        if let (Some(dims), [p]) = (x.as_dims(), parts.as_slice())
            && let (Some(start), Some(count)) = (p.start.as_const(), p.count.as_const())
        {
            let pick = |i: i64| usize::try_from(start + i * p.step).ok().and_then(|i| dims.get(i).cloned());
            if let Some(d) = (0..count).map(pick).collect() {
                fact.known = Known::Dims(d);
            }
        }
        Ok(vec![fact])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let list = |i: usize| -> OpResult<Option<Vec<Dim>>> {
            Ok(match inputs.get(i).copied().flatten() {
                Some(t) => Some(t.to_i64()?.into_iter().map(Dim::from).collect()),
                None => None,
            })
        };
        let (starts, ends, axes, steps) = (list(1)?, list(2)?, list(3)?, list(4)?);
        let shape = Shape::fixed(x.shape());
        let parts =
            parts(&shape.0, &starts.unwrap_or_default(), &ends.unwrap_or_default(), axes.as_deref(), steps.as_deref())?;
        let from = strides(x.shape());
        let (mut start, mut sizes, mut step) = (0usize, Vec::new(), Vec::new());
        for (p, s) in parts.iter().zip(from) {
            let number = |d: &Dim| d.as_const().and_then(|v| usize::try_from(v).ok()).unwrap_or(0);
            sizes.push(number(&p.count));
            start += number(&p.start) * s;
            step.push(isize::try_from(s).unwrap_or(0) * isize::try_from(p.step).unwrap_or(0));
        }
        Ok(vec![gather_strided(x, &sizes, start, &step)?])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let shape = cx.shape(0)?;
        let optional = |cx: &LowerCx<'_>, i| if cx.has(i) { cx.dims(i).map(Some) } else { Ok(None) };
        let (axes, steps) = (optional(cx, 3)?, optional(cx, 4)?);
        let parts = parts(&shape.0, &cx.dims(1)?, &cx.dims(2)?, axes.as_deref(), steps.as_deref())?;
        if parts.iter().zip(&shape.0).all(|(p, d)| p.step == 1 && p.start.is(0) && p.count == *d) {
            return cx.alias(0, 0);
        }
        for (p, size) in parts.iter().zip(&shape.0) {
            let last = p.start.add(&p.count.sub(&1.into())?.mul(&p.step.into())?)?;
            let (low, high) = if p.step > 0 { (&p.start, &last) } else { (&last, &p.start) };
            cx.require(p.count.clone(), "a slice ends before it starts");
            cx.require(low.clone(), "a slice starts before its operand");
            cx.require(size.sub(&1.into())?.sub(high)?, "a slice ends behind its operand");
        }
        let (mut start, mut sizes, mut step) = (Dim::from(0), Vec::new(), Vec::new());
        for (p, s) in parts.iter().zip(transpose::dim_strides(&shape.0)?) {
            start = start.add(&p.start.mul(&s)?)?;
            sizes.push(p.count.clone());
            step.push(s.mul(&p.step.into())?);
        }
        transpose::emit_strided(cx, &sizes, &start, &step)
    }

    fn reads(&self, input: usize) -> bool {
        input == 0
    }

    fn keeps_precision(&self) -> bool {
        true
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    if a.opset() < 10 {
        let mut lists = Vec::new();
        for name in ["starts", "ends"] {
            lists.push(a.ints(name)?.ok_or_else(|| OpError::expected(format!("attribute `{name}`"), "integers", "nothing"))?);
        }
        lists.extend(a.ints("axes")?);
        for list in lists {
            a.add_operand(HostTensor::from_i64(&[list.len()], &list)?);
        }
    }
    Ok(Box::new(Slice))
}

/// The registry's entry.
pub static DEF: OpDef = OpDef { onnx: &[onnx("Slice", 1)], import, kernels: &[], cases };

fn cases() -> Vec<Case> {
    let list = |v: &[i64]| input(&[v.len()]).values(v).constant();
    let case = |x: &[usize], start: &[i64], end: &[i64], axes: &[i64], steps: &[i64]| {
        Case::new(Slice, vec![input(x), list(start), list(end), list(axes), list(steps)])
    };
    vec![
        case(&[3, 5, 64], &[32], &[i64::MAX], &[2], &[1]),
        case(&[7, 9], &[-3, 1], &[100, 8], &[0, 1], &[1, 3]),
        case(&[7, 9], &[-1], &[i64::MIN], &[1], &[-2]),
        case(&[2, 3, 4], &[1, 0, 1], &[2, 3, 3], &[0, 1, 2], &[1, 1, 1]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbolic_bounds() {
        let dims = |t: &str| t.split(',').map(|d| Dim::parse(d).unwrap()).collect::<Vec<_>>();
        let p = parts(&dims("1,s,8"), &dims("s-1"), &dims("9223372036854775807"), Some(&dims("1")), None).unwrap();
        assert_eq!((p[1].start.clone(), p[1].count.clone()), (Dim::parse("s-1").unwrap(), 1.into()));
        let p = parts(&dims("s"), &dims("-1"), &dims("9223372036854775807"), None, None).unwrap();
        assert_eq!(p[0].count, 1.into());
        assert!(parts(&dims("s"), &dims("0"), &dims("1"), None, Some(&dims("0"))).is_err());
    }
}
