//! A new axis of one value, with another where an index points. ONNX `OneHot` from opset 9.
//!
//! Operands: indices, depth, and the values off and on. An index outside of -depth to depth - 1 points nowhere.

use super::case::{Case, constant, input};
use super::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, axis, onnx, operand};
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::HostTensor;

/// See the module documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OneHot {
    /// Place of the new axis in the result; negative counts from the end.
    pub axis: i64,
}

/// A tensor of numbers as integers; fractions are cut off.
fn whole(x: &HostTensor) -> OpResult<Vec<i64>> {
    #[expect(clippy::cast_possible_truncation, reason = "as the operator is defined")]
    if x.dtype().is_float() {
        return Ok(x.to_f64()?.iter().map(|v| *v as i64).collect());
    }
    Ok(x.to_i64()?)
}

fn depth(x: &HostTensor) -> OpResult<usize> {
    match whole(x)?.as_slice() {
        [d] => usize::try_from(*d).map_err(|_| OpError::expected("depth", "0 or more", d)),
        list => Err(OpError::expected(
            "depth",
            "one number",
            format!("{} of them", list.len()),
        )),
    }
}

impl Op for OneHot {
    fn name(&self) -> &str {
        "OneHot"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let (index, count, values) = (cx.fact(0)?, cx.fact(1)?, cx.fact(2)?);
        let a = axis(self.axis, index.shape.rank() + 1)?;
        let size = match count.as_const() {
            Some(tensor) => Dim::from_usize(depth(tensor)?),
            None if count.dtype.is_int() => match cx.sizes(1)?.as_slice() {
                [one] => one.clone(),
                list => {
                    return Err(OpError::expected(
                        "depth",
                        "one number",
                        format!("{} of them", list.len()),
                    ));
                }
            },
            None => cx.unknown(0, a, None),
        };
        let mut shape = index.shape.0.clone();
        shape.insert(a, size);
        Ok(vec![Fact::new(values.dtype, Shape(shape))])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let (index, values) = (operand(inputs, 0)?, operand(inputs, 2)?);
        let depth = depth(operand(inputs, 1)?)?;
        let a = axis(self.axis, index.shape().len() + 1)?;
        if values.len() != 2 {
            return Err(OpError::expected(
                "values",
                "two, off and on",
                format!("{values:?}"),
            ));
        }
        let (off, on) = values.bytes()?.split_at(values.dtype().size());
        let mut shape = index.shape().to_vec();
        shape.insert(a, depth);
        let (outer, _, inner) = super::around(&shape, a)?;
        let size = i64::try_from(depth).unwrap_or(i64::MAX);
        let hot: Vec<i64> = whole(index)?
            .into_iter()
            .map(|i| if i < 0 { i.saturating_add(size) } else { i })
            .collect();
        let mut out: Vec<u8> = super::room(&[super::count(&shape)?, values.dtype().size()])?;
        for (o, d, i) in
            (0..outer).flat_map(|o| (0..size).flat_map(move |d| (0..inner).map(move |i| (o, d, i))))
        {
            out.extend_from_slice(if hot.get(o * inner + i) == Some(&d) {
                on
            } else {
                off
            });
        }
        Ok(vec![HostTensor::from_bytes(values.dtype(), &shape, &out)?])
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    Ok(Box::new(OneHot {
        axis: a.int("axis")?.unwrap_or(-1),
    }))
}

/// The registry's entry.
pub static DEF: OpDef = OpDef {
    onnx: &[onnx("OneHot", 9)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let values = HostTensor::from_f32(&[2], &[0.0, 1.0]).map(constant);
    let case = |axis| {
        let inputs = vec![
            input(&[2, 3]).ints(-6, 6),
            input(&[]).values(&[5]).constant(),
            values.clone().ok()?,
        ];
        Some(Case::new(OneHot { axis }, inputs).host_only("no kernel"))
    };
    [case(-1), case(1)].into_iter().flatten().collect()
}
