//! Selects slices by tuples of indices. ONNX `GatherND` from opset 11; `batch_dims` from 12.
//! Negative indices count from the end.

use crate::graph::bounds::{Bounds, BoundsCx};
use crate::graph::op::case::{Case, input};
use crate::graph::op::gather_elements::{self, Places, wrap};
use crate::graph::op::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, as_usize, count, onnx, operand, room, strides,
};
use crate::lower::LowerCx;
use crate::num;
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::HostTensor;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatherNd {
    /// Number of leading axes that operand and indices share.
    pub batch_dims: usize,
}

/// Start of the slice, in elements, that each tuple of `indices` addresses in a tensor of `shape`.
/// Both share the first `batch` axes.
pub(crate) fn starts(shape: &[usize], indices: &HostTensor, batch: usize) -> OpResult<Vec<usize>> {
    let bad = || {
        OpError::mismatch(
            "shapes of operand and indices",
            format!("{shape:?}"),
            format!("{indices:?}"),
        )
    };
    let (tuple, lead) = indices.shape().split_last().ok_or_else(bad)?;
    let (axes, steps) = (shape.get(batch..batch + tuple).ok_or_else(bad)?, strides(shape));
    let groups = count(lead.get(..batch).ok_or_else(bad)?)?;
    if lead.get(..batch) != shape.get(..batch) {
        return Err(bad());
    }
    let each = count(num::part(lead, batch..)?)?;
    let row = count(num::part(shape, batch..)?)?;
    let data = indices.to_i64()?;
    let mut out = room(&[groups, each])?;
    for i in 0..groups * each {
        let list = num::part(&data, i * tuple..(i + 1) * tuple)?;
        let mut at = i / each.max(1) * row;
        for ((index, n), step) in list.iter().zip(axes).zip(num::part(&steps, batch..)?) {
            at += wrap(*index, *n)? * step;
        }
        out.push(at);
    }
    Ok(out)
}

impl Op for GatherNd {
    fn name(&self) -> &str {
        "GatherND"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let (x, index) = (cx.fact(0)?, cx.fact(1)?);
        let bad = || OpError::mismatch("shapes of operand and indices", &x.shape, &index.shape);
        let (tuple, lead) = index.shape.0.split_last().ok_or_else(bad)?;
        let tuple = as_usize(tuple);
        let tuple = tuple
            .ok_or_else(|| OpError::expected("last axis of the indices", "a constant size", &index.shape))?;
        let rest = self
            .batch_dims
            .checked_add(tuple)
            .and_then(|n| x.shape.0.get(n..))
            .ok_or_else(bad)?;
        if lead.len() < self.batch_dims || !index.dtype.is_int() {
            return Err(bad());
        }
        let mut shape: Vec<Dim> = Vec::new();
        for (i, n) in lead.iter().enumerate() {
            let other = if i < self.batch_dims {
                x.shape.0.get(i)
            } else {
                None
            };
            shape.push(other.map_or_else(|| Ok(n.clone()), |x| cx.same("batch sizes", n, x))?);
        }
        shape.extend(rest.iter().cloned());
        Ok(vec![Fact::new(x.dtype, Shape(shape))])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let (x, index) = (operand(inputs, 0)?, operand(inputs, 1)?);
        let starts = starts(x.shape(), index, self.batch_dims)?;
        let tuple = index.shape().last().copied().unwrap_or(0);
        let rest = num::part(x.shape(), self.batch_dims + tuple..)?;
        let row = count(rest)? * x.dtype().size();
        let mut out = Vec::new();
        for at in starts {
            let from = at * x.dtype().size();
            out.extend_from_slice(num::part(x.bytes()?, from..from + row)?);
        }
        let mut shape = index.shape().to_vec();
        shape.pop();
        shape.extend(rest);
        Ok(vec![HostTensor::from_bytes(x.dtype(), &shape, &out)?])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        if self.batch_dims > 0 {
            return Err(OpError::NoKernel(format!(
                "tuples of indices with {} batch axes",
                self.batch_dims
            )));
        }
        let places = Places::tuples(&cx.shape(0)?, &cx.shape(1)?)?;
        gather_elements::emit(cx, places)
    }

    fn moves(&self, input: usize) -> bool {
        input == 0
    }

    fn accepts(&self, input: usize, cx: &BoundsCx<'_>) -> Option<Bounds> {
        (input == 1).then(|| cx.any_index(0))
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let batch = a.int("batch_dims")?.unwrap_or(0);
    let batch_dims = usize::try_from(batch).ok().filter(|b| *b < 64);
    let batch_dims =
        batch_dims.ok_or_else(|| OpError::expected("attribute `batch_dims`", "0 to 63", batch))?;
    Ok(Box::new(GatherNd { batch_dims }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("GatherND", 11, 2)],
    import,
    kernels: &[
        &crate::kernels::gather_places::KERNEL.kernel,
        &crate::kernels::check_indices::KERNEL.kernel,
    ],
    cases,
};

fn cases() -> Vec<Case> {
    let case = |batch_dims, x: &[usize], index: &[usize], n: i64| {
        Case::new(
            GatherNd { batch_dims },
            vec![input(x), input(index).ints(-n, n - 1)],
        )
    };
    vec![
        case(0, &[3, 3, 2], &[5, 2], 3),
        case(0, &[4, 3, 5], &[2, 3, 1], 4),
        case(0, &[2, 2, 2, 2], &[7, 4], 2),
        case(1, &[2, 4, 3], &[2, 1], 4).host_only("batch dimensions"),
    ]
}
