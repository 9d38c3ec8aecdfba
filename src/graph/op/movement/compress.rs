//! Selects the slices along an axis, or the elements, for which a condition holds. ONNX `Compress`
//! from opset 9.
//!
//! A condition shorter than the axis counts as false for the rest. The number of selected slices is
//! known only in the run, unless the condition is constant.

use crate::graph::op::case::{Case, input};
use crate::graph::op::non_zero::{decided, truths};
use crate::graph::op::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, around, axis, onnx, operand,
};
use crate::num;
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::{DType, HostTensor};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compress {
    /// The axis; `None` flattens the operand first.
    pub axis: Option<i64>,
}

impl Op for Compress {
    fn name(&self) -> &str {
        "Compress"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let (x, condition) = (cx.fact(0)?, cx.fact(1)?);
        if condition.dtype != DType::Bool || condition.shape.rank() != 1 {
            return Err(OpError::expected(
                "condition",
                "truth values of one axis",
                condition,
            ));
        }
        let (mut shape, a) = match self.axis {
            Some(a) => (x.shape.0.clone(), axis(a, x.shape.rank())?),
            None => (vec![x.shape.count()?], 0),
        };
        if let Some(slot) = shape.get_mut(a) {
            *slot = match decided(cx, condition) {
                Some(list) => Dim::from_usize(list.into_iter().filter(|t| *t).count()),
                None => cx.unknown(0, a, Some(slot.clone())),
            };
        }
        Ok(vec![Fact::new(x.dtype, Shape(shape))])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let keep = truths(operand(inputs, 1)?)?;
        let (mut shape, a) = match self.axis {
            Some(a) => (x.shape().to_vec(), axis(a, x.shape().len())?),
            None => (vec![x.len()], 0),
        };
        let (outer, n, inner) = around(&shape, a)?;
        if keep.len() > n {
            return Err(OpError::expected(
                "condition",
                format!("at most {n} truth values"),
                keep.len(),
            ));
        }
        let row = inner * x.dtype().size();
        let mut out = Vec::new();
        for o in 0..outer {
            for (j, _) in keep.iter().enumerate().filter(|(_, keep)| **keep) {
                let from = (o * n + j) * row;
                out.extend_from_slice(num::part(x.bytes()?, from..from + row)?);
            }
        }
        if let Some(slot) = shape.get_mut(a) {
            *slot = keep.into_iter().filter(|k| *k).count();
        }
        Ok(vec![HostTensor::from_bytes(x.dtype(), &shape, &out)?])
    }

    fn moves(&self, input: usize) -> bool {
        input == 0
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    Ok(Box::new(Compress { axis: a.int("axis")? }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("Compress", 9, 2)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let case = |axis, x: &[usize], n: usize| {
        Case::new(Compress { axis }, vec![input(x), input(&[n]).bools()])
            .host_only("the size of the result depends on data")
    };
    vec![case(Some(1), &[3, 5, 2], 4), case(None, &[3, 5], 15)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_of_two_bytes() {
        let bf16 = |shape: &[usize], data| HostTensor::from_floats(DType::BF16, shape, data).unwrap();
        let x = bf16(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let keep = HostTensor::from_bool(&[3], &[true, false, true]).unwrap();
        let run = |axis| {
            Compress { axis }
                .eval(&[Some(&x), Some(&keep)])
                .unwrap()
                .remove(0)
        };
        assert_eq!(run(Some(1)), bf16(&[2, 2], &[1.0, 3.0, 4.0, 6.0]));
        assert_eq!(run(None), bf16(&[2], &[1.0, 3.0]));
    }
}
