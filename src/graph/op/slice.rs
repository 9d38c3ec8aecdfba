//! Slices along axes with starts, ends and steps as operands.
//!
//! ONNX `Slice` from opset 1 (starts, ends and axes as attributes) and 10 (as operands). Starts and ends may be expressions of symbols.

use super::case::{Case, input};
use super::transpose::Start;
use super::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, axis, gather_strided, onnx, operand, strides, transpose};
use crate::plan::lower::LowerCx;
use crate::shape::{Dim, Fact, Shape};
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

/// Starts, ends, axes and steps. Axes and steps may be left out.
struct Lists {
    starts: Vec<Dim>,
    ends: Vec<Dim>,
    axes: Option<Vec<Dim>>,
    steps: Option<Vec<Dim>>,
}

impl Lists {
    /// Of operands 1 to 4, each by `get`, where `has` says that it is there.
    fn of(has: impl Fn(usize) -> bool, get: impl Fn(usize) -> OpResult<Vec<Dim>>) -> OpResult<Self> {
        let optional = |i| if has(i) { get(i).map(Some) } else { Ok(None) };
        Ok(Self { starts: get(1)?, ends: get(2)?, axes: optional(3)?, steps: optional(4)? })
    }

    fn parts(&self, shape: &[Dim]) -> OpResult<Vec<Part>> {
        parts(shape, &self.starts, &self.ends, self.axes.as_deref(), self.steps.as_deref())
    }

    fn infer(&self, x: &Fact) -> OpResult<Vec<Fact>> {
        let parts = self.parts(&x.shape.0)?;
        Ok(vec![Fact::new(x.dtype, Shape(parts.into_iter().map(|p| p.count).collect()))])
    }

    fn eval(&self, x: &HostTensor) -> OpResult<Vec<HostTensor>> {
        let parts = self.parts(&Shape::fixed(x.shape()).0)?;
        let (mut start, mut sizes, mut step) = (0usize, Vec::new(), Vec::new());
        for (p, s) in parts.iter().zip(strides(x.shape())) {
            let number = |d: &Dim| d.as_const().and_then(|v| usize::try_from(v).ok()).unwrap_or(0);
            sizes.push(number(&p.count));
            start += number(&p.start) * s;
            step.push(isize::try_from(s).unwrap_or(0) * isize::try_from(p.step).unwrap_or(0));
        }
        Ok(vec![gather_strided(x, &sizes, start, &step)?])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let shape = cx.shape(0)?;
        let parts = self.parts(&shape.0)?;
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
        let cut = parts.iter().zip(&shape.0).position(|(p, d)| p.count != *d || p.step != 1);
        let one_cut = cut.is_some_and(|a| {
            let whole = |(p, d): (&Part, &Dim)| p.step == 1 && p.count == *d;
            parts[a].step == 1
                && shape.0[..a].iter().all(|d| d.is(1))
                && parts[a + 1..].iter().zip(&shape.0[a + 1..]).all(whole)
        });
        let mut padded = true;
        for (p, s) in parts.iter().zip(transpose::dim_strides(&shape.0)?) {
            padded &= p.start.is(0) || s.as_const().is_some();
            start = start.add(&p.start.mul(&s)?)?;
            sizes.push(p.count.clone());
            step.push(s.mul(&p.step.into())?);
        }
        if one_cut && cx.view(0, 0, &start)? {
            return Ok(());
        }
        transpose::emit_strided(cx, &sizes, &Start { at: start, padded }, &step)
    }
}

/// The result where bounds are data of the run: the sizes along the sliced axes are not known.
fn unknown(cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
    let x = cx.fact(0)?;
    let rank = x.shape.rank();
    let starts = cx.fact(1)?.shape.0.first().and_then(Dim::as_const).unwrap_or(0);
    let axes: Vec<usize> = match cx.opt(3) {
        None => (0..rank).take(usize::try_from(starts).unwrap_or(0)).collect(),
        Some(list) if list.as_dims().is_some() => cx.ints(3)?.into_iter().map(|a| axis(a, rank)).collect::<OpResult<_>>()?,
        Some(_) => (0..rank).collect(),
    };
    let size = |(i, n): (usize, &Dim)| if axes.contains(&i) { cx.unknown(0, i, Some(n.clone())) } else { n.clone() };
    Ok(vec![Fact::new(x.dtype, Shape(x.shape.0.iter().enumerate().map(size).collect()))])
}

impl Op for Slice {
    fn name(&self) -> &str {
        "Slice"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        if (1..=4).any(|i| cx.opt(i).is_some_and(|f| f.as_dims().is_none())) {
            return unknown(cx);
        }
        Lists::of(|i| cx.opt(i).is_some(), |i| cx.dims(i))?.infer(cx.fact(0)?)
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let has = |i: usize| inputs.get(i).copied().flatten().is_some();
        let list = |i| Ok(operand(inputs, i)?.to_i64()?.into_iter().map(Dim::from).collect());
        Lists::of(has, list)?.eval(operand(inputs, 0)?)
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        Lists::of(|i| cx.has(i), |i| cx.dims(i))?.lower(cx)
    }

    fn reads(&self, input: usize) -> bool {
        input == 0
    }

    fn moves(&self, input: usize) -> bool {
        input == 0
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
