//! Positions of the nonzero elements, in row-major order. ONNX `NonZero` from opset 9.
//!
//! The result has one row per axis of the operand and one column per position. The number of
//! positions is known only in the run, unless the elements are known.

use crate::graph::bounds::{Bounds, BoundsCx};
use crate::graph::op::case::{Case, input};
use crate::graph::op::{Attributes, InferCx, Inputs, Op, OpDef, OpResult, onnx, operand, strides};
use crate::num;
use crate::shape::{Dim, Fact, Known, MAX_KNOWN, Shape};
use crate::tensor::{DType, HostTensor};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NonZero;

/// For each axis of `shape`, the index of each position.
fn indices(shape: &[usize], positions: &[usize]) -> Vec<i64> {
    let along = |(n, step): (&usize, usize)| {
        let n = *n;
        positions.iter().map(move |p| num::signed(p / step % n))
    };
    shape.iter().zip(strides(shape)).flat_map(along).collect()
}

/// For each element, whether it is nonzero.
pub(crate) fn truths(x: &HostTensor) -> OpResult<Vec<bool>> {
    if x.dtype().is_float() {
        return Ok(x.to_f64()?.iter().map(|v| *v != 0.0).collect());
    }
    Ok(x.to_bits()?.into_iter().map(|v| v != 0).collect())
}

/// For each element of a small integer or boolean tensor, whether it is nonzero, if known for all.
pub(crate) fn decided(cx: &InferCx<'_>, fact: &Fact) -> Option<Vec<bool>> {
    let zero = |d: &Dim| cx.constraints().equal(d, &0.into()).map(|zero| !zero);
    fact.as_dims()?.iter().map(zero).collect()
}

fn positions(truths: &[bool]) -> Vec<usize> {
    truths
        .iter()
        .enumerate()
        .filter(|(_, t)| **t)
        .map(|(i, _)| i)
        .collect()
}

impl Op for NonZero {
    fn name(&self) -> &str {
        "NonZero"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.fact(0)?;
        let rank = Dim::from_usize(x.shape.rank());
        let known = x.shape.as_fixed().zip(decided(cx, x));
        let Some((shape, truths)) = known else {
            let count = cx.unknown(0, 1, Some(x.shape.count()?));
            return Ok(vec![Fact::new(DType::I64, Shape(vec![rank, count]))]);
        };
        let at = positions(&truths);
        let mut fact = Fact::new(DType::I64, Shape(vec![rank, Dim::from_usize(at.len())]));
        let list = indices(&shape, &at);
        if list.len() <= MAX_KNOWN {
            fact.known = Known::Dims(list.into_iter().map(Dim::from).collect());
        }
        Ok(vec![fact])
    }

    fn bounds(&self, cx: &BoundsCx<'_>) -> Vec<Option<Bounds>> {
        vec![Some(Bounds::new(0, cx.any_index(0).high.max(0)))]
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let at = positions(&truths(x)?);
        Ok(vec![HostTensor::from_i64(
            &[x.shape().len(), at.len()],
            &indices(x.shape(), &at),
        )?])
    }
}

fn import(_: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    Ok(Box::new(NonZero))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("NonZero", 9, 1)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    vec![Case::new(NonZero, vec![input(&[3, 5]).bools()]).host_only("the size of the result depends on data")]
}
