//! `start, start + delta, ...` up to `limit`. ONNX `Range` from opset 11.
//!
//! Runs on a device if the operands are integers known as expressions, even if their type is float.

use crate::graph::bounds::{Bounds, BoundsCx};
use crate::graph::op::case::{Case, input};
use crate::graph::op::types::Types;
use crate::graph::op::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, onnx, operand, room};
use crate::kernels::range::{Args, KERNEL};
use crate::lower::{Call, LowerCx};
use crate::num;
use crate::shape::{Dim, EXACT, Fact, Known, MAX_KNOWN, Shape};
use crate::tensor::HostTensor;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range;

/// Start, step and number of elements.
fn parts(start: &[Dim], limit: &[Dim], delta: &[Dim]) -> OpResult<(Dim, i64, Dim)> {
    let ([start], [limit], [delta]) = (start, limit, delta) else {
        return Err(OpError::expected("operands", "scalars", "lists"));
    };
    let step = delta
        .as_const()
        .filter(|d| *d != 0)
        .ok_or_else(|| OpError::expected("delta", "a constant other than 0", delta))?;
    let span = if step > 0 {
        limit.sub(start)?
    } else {
        start.sub(limit)?
    };
    let count = span.ceil_div(step.checked_abs().unwrap_or(i64::MAX))?;
    Ok((
        start.clone(),
        step,
        count.as_const().map_or(count, |n| n.max(0).into()),
    ))
}

/// Start, step and number of elements of a float range.
fn float_parts(start: &HostTensor, limit: &HostTensor, delta: &HostTensor) -> OpResult<(f32, f32, usize)> {
    let one = |t: &HostTensor| -> OpResult<f32> {
        t.to_f32()?
            .first()
            .copied()
            .ok_or_else(|| OpError::expected("operand", "a scalar", "nothing"))
    };
    let (start, limit, delta) = (one(start)?, one(limit)?, one(delta)?);
    let n = ((limit - start) / delta).ceil().max(0.0);
    if !(0.0..=1e9).contains(&n) {
        return Err(OpError::expected("number of elements", "0 to 1e9", n));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked above"
    )]
    let n = n as usize;
    Ok((start, delta, n))
}

/// The elements of an operand as integers, if they are known to be integers.
fn whole(fact: &Fact) -> Option<Vec<Dim>> {
    let quotients = |f: &Fact| {
        f.as_quotients()?
            .into_iter()
            .map(|q| Some(q.num).filter(|_| q.den == 1))
            .collect()
    };
    fact.as_dims().or_else(|| quotients(fact))
}

impl Op for Range {
    fn name(&self) -> &str {
        "Range"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let dtype = cx.typed(0, Types::NUMBER)?.dtype;
        for i in 1..3 {
            cx.typed(i, Types::NUMBER)?;
        }
        let fact = |n: Dim| Fact::new(dtype, Shape(vec![n]));
        let constants: Option<Vec<_>> = (0..3)
            .map(|i| cx.opt(i).and_then(Fact::as_const).map(AsRef::as_ref))
            .collect();
        if let (true, Some([start, limit, delta])) = (dtype.is_float(), constants.as_deref()) {
            return Ok(vec![fact(Dim::from_usize(float_parts(start, limit, delta)?.2))]);
        }
        let lists: Option<Vec<_>> = (0..3).map(|i| cx.opt(i).and_then(whole)).collect();
        let Some([start, limit, delta]) = lists.as_deref() else {
            return Ok(vec![fact(cx.unknown(0, 0, None))]);
        };
        if !matches!(delta.as_slice(), [d] if d.as_const().is_some()) {
            return Ok(vec![fact(cx.unknown(0, 0, None))]);
        }
        let (start, step, count) = parts(start, limit, delta)?;
        // A range whose limit is before its start is empty.
        let count = if cx.constraints().at_least(&count, 0) == Some(true) {
            count
        } else {
            count.maximum(&0.into())?
        };
        let mut fact = fact(count.clone());
        if dtype.is_float() {
            for end in [&start, &start.add(&count.mul(&step.into())?)?] {
                let room = Dim::from(EXACT).sub(end)?;
                cx.require(room, "distance to the largest integer that is exact in a float")?;
            }
            return Ok(vec![fact]);
        }
        if let Some(n) = count
            .as_const()
            .filter(|n| usize::try_from(*n).is_ok_and(|n| n <= MAX_KNOWN))
        {
            fact.known = Known::Dims(
                (0..n)
                    .map(|i| start.add(&(i * step).into()))
                    .collect::<Result<_, _>>()?,
            );
        }
        Ok(vec![fact])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let (start, limit, delta) = (operand(inputs, 0)?, operand(inputs, 1)?, operand(inputs, 2)?);
        let dtype = start.dtype();
        if dtype.is_float() {
            let (start, delta, n) = float_parts(start, limit, delta)?;
            #[expect(clippy::cast_precision_loss, reason = "as the operator is defined")]
            let elements = (0..n).map(|i| start + i as f32 * delta);
            let mut data: Vec<f32> = room(&[n])?;
            data.extend(elements);
            return Ok(vec![HostTensor::from_floats(dtype, &[n], &data)?]);
        }
        let list =
            |t: &HostTensor| -> OpResult<Vec<Dim>> { Ok(t.to_i64()?.into_iter().map(Dim::from).collect()) };
        let (start, step, count) = parts(&list(start)?, &list(limit)?, &list(delta)?)?;
        let constant = |d: &Dim| {
            d.as_const()
                .ok_or_else(|| OpError::expected("bound", "a constant", d))
        };
        let (start, count) = (constant(&start)?, constant(&count)?);
        let mut data: Vec<i64> = room(&[num::exact(count, "a number of elements")?])?;
        data.extend((0..count).map(|i| start.wrapping_add(i.wrapping_mul(step))));
        Ok(vec![HostTensor::from_ints(dtype, &[data.len()], &data)?])
    }

    fn bounds(&self, cx: &BoundsCx<'_>) -> Vec<Option<Bounds>> {
        vec![
            cx.input(0)
                .zip(cx.input(1))
                .map(|(start, limit)| start.join(limit)),
        ]
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let mut lists = Vec::new();
        for i in 0..3 {
            let list = whole(cx.fact(i)?);
            lists.push(list.ok_or_else(|| OpError::NoKernel(format!("input {i} is not a known integer")))?);
        }
        let [start, limit, delta] = lists.as_slice() else {
            return Err(OpError::expected("operands", 3, lists.len()));
        };
        let (start, step, _) = parts(start, limit, delta)?;
        emit(cx, &start, step)
    }

    fn reads(&self, _: usize) -> bool {
        false
    }

    fn keeps_precision(&self) -> bool {
        true
    }
}

/// Emits `start`, `start + step`, ... as result 0.
pub(crate) fn emit(cx: &mut LowerCx<'_>, start: &Dim, step: i64) -> OpResult<()> {
    let count = cx.out_fact(0)?.shape.count()?;
    let (live, start) = cx.live(start);
    let call = Call::new(&KERNEL, 64)
        .grid(count.ceil_div(2 * 64)?, 1, 1)
        .may_be_padded();
    let args = Args {
        live,
        y: cx.output(0)?,
        count,
        start,
        delta: step.into(),
    };
    cx.emit(call, args)
}

fn import(_: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    Ok(Box::new(Range))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("Range", 11, 3)],
    import,
    kernels: &[&KERNEL.kernel],
    cases,
};

fn cases() -> Vec<Case> {
    let one = |v: i64| input(&[]).values(&[v]).constant();
    let case = |a, b, c| Case::new(Range, vec![one(a), one(b), one(c)]);
    let number = |v: f32| {
        HostTensor::from_f32(&[], &[v])
            .map(crate::graph::op::case::constant)
            .ok()
    };
    let floats = |a, b, c| Some(Case::new(Range, vec![number(a)?, number(b)?, number(c)?]));
    let whole = [floats(0.0, 131.0, 1.0), floats(7.0, -60.0, -2.0)];
    let all = whole.into_iter().chain([floats(0.5, 3.0, 0.25)]).flatten();
    let all = all.chain([case(5, 6, 1), case(-3, 200, 7), case(9, -9, -2)]);
    // Symbolic lengths run on devices too; see tests/references/conformance/symbolic.rs.
    let folded = all.map(|case| case.host_only("constants are folded when planning"));
    folded.chain([case(0, 129, 1)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_that_no_memory_holds_is_an_error() {
        let run = |limit| {
            let [start, limit, delta] = [0, limit, 1].map(|v| HostTensor::from_i64(&[], &[v]).unwrap());
            Range.eval(&[Some(&start), Some(&limit), Some(&delta)])
        };
        assert!(run(1 << 62).is_err());
        assert_eq!(run(3).unwrap()[0].to_i64().unwrap(), [0, 1, 2]);
    }
}
