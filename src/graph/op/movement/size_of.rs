//! The number of elements of a value. ONNX `Size` from opset 1.

use crate::graph::op::case::{Case, input};
use crate::graph::op::{Attributes, InferCx, Inputs, Op, OpDef, OpResult, onnx, operand};
use crate::num;
use crate::shape::{Fact, Known, Shape};
use crate::tensor::{DType, HostTensor};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeOf;

impl Op for SizeOf {
    fn name(&self) -> &str {
        "Size"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let mut fact = Fact::new(DType::I64, Shape::default());
        fact.known = Known::Dims(vec![cx.fact(0)?.shape.count()?]);
        Ok(vec![fact])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let n = num::signed(operand(inputs, 0)?.len());
        Ok(vec![HostTensor::from_i64(&[], &[n])?])
    }

    fn reads(&self, _: usize) -> bool {
        false
    }

    fn decides(&self, _: usize) -> bool {
        false
    }
}

fn import(_: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    Ok(Box::new(SizeOf))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("Size", 1, 1)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    vec![Case::new(SizeOf, vec![input(&[2, 3, 4])]).host_only("sizes are known when planning")]
}
