//! Elements picked one by one along an axis. ONNX `GatherElements` from opset 11; negative indices count from the end.

use super::case::{Case, input};
use super::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, axis, onnx, operand, strides};
use crate::shape::Fact;
use crate::tensor::HostTensor;

/// See the module documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatherElements {
    /// The axis along which indices point; negative counts from the end.
    pub axis: i64,
}

/// An index along an axis of `n` elements, from 0.
pub(super) fn wrap(index: i64, n: usize) -> OpResult<usize> {
    let size = i64::try_from(n).unwrap_or(i64::MAX);
    usize::try_from(if index < 0 { index.saturating_add(size) } else { index })
        .ok()
        .filter(|i| *i < n)
        .ok_or_else(|| OpError::expected("index", format!("-{n} to {}", size - 1), index))
}

/// For each element of `indices`, the element of a tensor of `shape` that it points to along axis `a`.
pub(super) fn targets(shape: &[usize], indices: &HostTensor, a: usize) -> OpResult<Vec<usize>> {
    let own = indices.shape();
    if own.len() != shape.len() {
        return Err(OpError::mismatch("ranks", format!("{shape:?}"), format!("{own:?}")));
    }
    if let Some((i, _)) = own.iter().zip(shape).enumerate().find(|(i, (n, size))| *i != a && n > size) {
        return Err(OpError::expected(format!("axis {i} of the indices"), format!("at most {}", shape[i]), own[i]));
    }
    let (from, to) = (strides(own), strides(shape));
    let place = |(i, index): (usize, i64)| {
        let others: usize = (0..own.len()).filter(|x| *x != a).map(|x| i / from[x] % own[x] * to[x]).sum();
        Ok(others + wrap(index, shape.get(a).copied().unwrap_or(0))? * to.get(a).copied().unwrap_or(0))
    };
    indices.to_i64()?.into_iter().enumerate().map(place).collect()
}

impl Op for GatherElements {
    fn name(&self) -> &str {
        "GatherElements"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let (x, index) = (cx.fact(0)?, cx.fact(1)?);
        axis(self.axis, x.shape.rank())?;
        if !index.dtype.is_int() || index.shape.rank() != x.shape.rank() {
            return Err(OpError::expected("indices", format!("integers of {} axes", x.shape.rank()), index));
        }
        Ok(vec![Fact::new(x.dtype, index.shape.clone())])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let (x, index) = (operand(inputs, 0)?, operand(inputs, 1)?);
        let a = axis(self.axis, x.shape().len())?;
        let size = x.dtype().size();
        let mut out = Vec::with_capacity(index.len() * size);
        for at in targets(x.shape(), index, a)? {
            out.extend_from_slice(x.bytes()?.get(at * size..(at + 1) * size).unwrap_or_default());
        }
        Ok(vec![HostTensor::from_bytes(x.dtype(), index.shape(), &out)?])
    }

    fn moves(&self, input: usize) -> bool {
        input == 0
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    Ok(Box::new(GatherElements { axis: a.int("axis")?.unwrap_or(0) }))
}

/// The registry's entry.
pub static DEF: OpDef = OpDef { onnx: &[onnx("GatherElements", 11)], import, kernels: &[], cases };

fn cases() -> Vec<Case> {
    let case = |axis, x: &[usize], index: &[usize], n: i64| {
        Case::new(GatherElements { axis }, vec![input(x), input(index).ints(-n, n - 1)]).host_only("no kernel")
    };
    vec![case(0, &[5, 3], &[2, 3], 5), case(-1, &[2, 3, 7], &[2, 2, 9], 7)]
}
