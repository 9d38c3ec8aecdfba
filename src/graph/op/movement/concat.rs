//! Concatenation along one axis. ONNX `Concat` from opset 4.
//!
//! On a device, each operand after the first is one dispatch that appends it to the previous ones.

use crate::graph::bounds::BoundsCx;
use crate::graph::op::case::{Case, input};
use crate::graph::op::{
    ANY, Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, axis, onnx, operand, pointwise, split_at,
    transpose,
};
use crate::kernels::concat::{Args, KERNEL};
use crate::lower::{Call, LowerCx};
use crate::num;
use crate::shape::{Dim, Fact, product};
use crate::tensor::{DType, HostTensor};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Concat {
    /// The axis to concatenate along; negative values count from the end.
    pub axis: i64,
}

impl Op for Concat {
    fn name(&self) -> &str {
        "Concat"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let first = cx.fact(0)?;
        let a = axis(self.axis, first.shape.rank())?;
        let mut shape = first.shape.clone();
        for i in 1..cx.inputs.len() {
            let f = cx.fact(i)?;
            if f.dtype != first.dtype {
                return Err(OpError::mismatch("element types", first.dtype, f.dtype));
            }
            if f.shape.rank() != shape.rank() {
                return Err(OpError::mismatch("ranks", &first.shape, &f.shape));
            }
            for (i, (have, add)) in shape.0.iter_mut().zip(&f.shape.0).enumerate() {
                *have = if i == a {
                    have.add(add)?
                } else {
                    cx.same("sizes outside the concatenated axis", have, add)?
                };
            }
        }
        Ok(vec![Fact::new(first.dtype, shape)])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let first = operand(inputs, 0)?;
        let a = axis(self.axis, first.shape().len())?;
        let mut shape = first.shape().to_vec();
        shape[a] = 0;
        let mut rows = Vec::new();
        for i in 0..inputs.len() {
            let x = operand(inputs, i)?;
            let fits = x.shape().len() == shape.len()
                && x.shape()
                    .iter()
                    .zip(&shape)
                    .enumerate()
                    .all(|(i, (x, y))| i == a || x == y);
            if !fits {
                return Err(OpError::mismatch(
                    "shapes outside the concatenated axis",
                    format!("{:?}", first.shape()),
                    format!("{:?}", x.shape()),
                ));
            }
            let row = crate::graph::op::count(&x.shape()[a..])?.saturating_mul(x.dtype().size());
            shape[a] += x.shape()[a];
            rows.push((x.bytes()?, row));
        }
        let outer = crate::graph::op::count(&shape[..a])?;
        let mut out: Vec<u8> =
            crate::graph::op::room(&[crate::graph::op::count(&shape)?, first.dtype().size()])?;
        for o in 0..outer {
            for (bytes, row) in &rows {
                out.extend_from_slice(num::part(bytes, o * row..(o + 1) * row)?);
            }
        }
        Ok(vec![HostTensor::from_bytes(first.dtype(), &shape, &out)?])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let n = cx.input_count();
        if n == 1 {
            return cx.alias(0, 0);
        }
        let a = axis(self.axis, cx.shape(0)?.rank())?;
        let (outer, mut have, inner) = split_at(&cx.shape(0)?, a)?;
        if outer.is(1) && self.place_parts(cx, a, &inner)? {
            return Ok(());
        }
        let dtype = cx.output(0)?.dtype;
        let (out, words) = cx.output(0)?.words();
        let part = |cx: &mut LowerCx<'_>, i| match dtype {
            DType::I64 => Ok(pointwise::stored_as(cx, i, dtype)?.words().0),
            _ => cx.input(i),
        };
        let inner = inner.mul(&words.into())?;
        let mut joined = part(cx, 0)?;
        for i in 1..n {
            let b = part(cx, i)?;
            let add = cx.shape(i)?.0[a].clone();
            let both = have.add(&add)?;
            let count = product(&[outer.clone(), both.clone(), inner.clone()])?;
            let y = if i + 1 == n {
                out
            } else {
                cx.temp(out.dtype, count.clone())
            };
            let call = Call::new(&KERNEL, 64).grid(count.ceil_div(2 * 64)?, 1, 1);
            let args = Args {
                a: joined,
                b,
                y,
                count,
                a_len: have.mul(&inner)?,
                b_len: add.mul(&inner)?,
            };
            cx.emit(call, args)?;
            (joined, have) = (y, both);
        }
        Ok(())
    }

    fn moves(&self, _: usize) -> bool {
        true
    }

    fn keeps_all(&self, _: usize, _: &BoundsCx<'_>) -> bool {
        true
    }
}

impl Concat {
    /// If each part is contiguous in the result and starts where a view can, the producers of the
    /// parts write them there directly; a part whose producer cannot is copied. Otherwise returns
    /// false and does nothing.
    fn place_parts(&self, cx: &mut LowerCx<'_>, a: usize, inner: &Dim) -> OpResult<bool> {
        let (mut start, mut starts) = (Dim::from(0), Vec::new());
        for i in 0..cx.input_count() {
            if !cx.is_view_start(0, &start)? {
                return Ok(false);
            }
            starts.push(start.clone());
            start = start.add(&cx.shape(i)?.0[a].mul(inner)?)?;
        }
        for (i, start) in starts.iter().enumerate() {
            if cx.shape(i)?.count()?.is(0) || cx.join(i, 0, start)? {
                continue;
            }
            let count = cx.shape(i)?.count()?;
            let (from, to) = (cx.input(i)?, cx.window(0, start, count.clone())?);
            let to = to.ok_or_else(|| OpError::NoKernel(format!("part {i} at {start}")))?;
            transpose::emit_copy(cx, from, to, &[count], &transpose::Start::first(), &[1.into()])?;
        }
        Ok(true)
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let axis = a
        .int("axis")?
        .ok_or_else(|| OpError::expected("attribute `axis`", "an integer", "nothing"))?;
    Ok(Box::new(Concat { axis }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("Concat", 4, ANY)],
    import,
    kernels: &[&KERNEL.kernel],
    cases,
};

fn cases() -> Vec<Case> {
    let case =
        |axis, shapes: &[&[usize]]| Case::new(Concat { axis }, shapes.iter().map(|s| input(s)).collect());
    vec![
        case(-1, &[&[3, 5, 32], &[3, 5, 32]]),
        case(0, &[&[3, 5], &[4, 5]]),
        case(1, &[&[2, 1, 3], &[2, 2, 3], &[2, 3, 3]]),
        case(-1, &[&[7], &[1], &[33]]),
        case(0, &[&[3, 40], &[0, 40]]),
        case(1, &[&[1, 0], &[1, 40], &[1, 0]]),
    ]
}
