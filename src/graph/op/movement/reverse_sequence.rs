//! Reverses the first elements along one axis, with a length for each index of another axis.
//!
//! ONNX `ReverseSequence` from opset 10.

use crate::graph::op::case::{Case, input};
use crate::graph::op::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, axis, onnx, operand, strides, to_sizes,
};
use crate::num;
use crate::shape::Fact;
use crate::tensor::HostTensor;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReverseSequence {
    /// The axis whose indices have a length each.
    pub batch: i64,
    /// The axis to reverse.
    pub time: i64,
}

impl Op for ReverseSequence {
    fn name(&self) -> &str {
        "ReverseSequence"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let (x, lengths) = (cx.fact(0)?, cx.fact(1)?);
        let (batch, time) = (
            axis(self.batch, x.shape.rank())?,
            axis(self.time, x.shape.rank())?,
        );
        if batch == time {
            return Err(OpError::expected("axes", "two different ones", batch));
        }
        let ([n], Some(size)) = (lengths.shape.0.as_slice(), x.shape.0.get(batch)) else {
            return Err(OpError::expected("lengths", "one axis", lengths));
        };
        cx.same("number of lengths and size of the axis", n, size)?;
        Ok(vec![Fact::new(x.dtype, x.shape.clone())])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let shape = x.shape();
        let (batch, time) = (axis(self.batch, shape.len())?, axis(self.time, shape.len())?);
        let lengths = to_sizes(operand(inputs, 1)?)?;
        if let Some(n) = lengths.iter().find(|n| **n > shape[time]) {
            return Err(OpError::expected("length", format!("at most {}", shape[time]), n));
        }
        let (steps, size) = (strides(shape), x.dtype().size());
        let mut out = Vec::with_capacity(x.bytes()?.len());
        for i in 0..x.len() {
            let (b, t) = (i / steps[batch] % shape[batch], i / steps[time] % shape[time]);
            let n = *num::at(&lengths, b)?;
            let from = if t < n {
                i - t * steps[time] + (n - 1 - t) * steps[time]
            } else {
                i
            };
            out.extend_from_slice(num::part(x.bytes()?, from * size..(from + 1) * size)?);
        }
        Ok(vec![HostTensor::from_bytes(x.dtype(), shape, &out)?])
    }

    fn moves(&self, input: usize) -> bool {
        input == 0
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let (batch, time) = (
        a.int("batch_axis")?.unwrap_or(1),
        a.int("time_axis")?.unwrap_or(0),
    );
    Ok(Box::new(ReverseSequence { batch, time }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("ReverseSequence", 10, 2)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let inputs = vec![input(&[4, 3, 2]), input(&[3]).values(&[4, 0, 3]).constant()];
    vec![Case::new(ReverseSequence { batch: 1, time: 0 }, inputs).host_only("no kernel")]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::DType;

    #[test]
    fn elements_of_two_bytes() {
        let bf16 = |data| HostTensor::from_floats(DType::BF16, &[3, 2], data).unwrap();
        let x = bf16(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let lengths = HostTensor::from_i64(&[2], &[3, 2]).unwrap();
        let op = ReverseSequence { batch: 1, time: 0 };
        let y = op.eval(&[Some(&x), Some(&lengths)]).unwrap().remove(0);
        assert_eq!(y, bf16(&[5.0, 4.0, 3.0, 2.0, 1.0, 6.0]));
    }
}
