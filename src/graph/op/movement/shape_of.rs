//! The shape of a value as integers. ONNX `Shape` from opset 1; `start` and `end` from 15.

use crate::graph::op::case::{Case, input};
use crate::graph::op::{Attributes, InferCx, Inputs, Op, OpDef, OpResult, onnx, operand};
use crate::num;
use crate::shape::{Fact, Known, Shape};
use crate::tensor::{DType, HostTensor};
use std::ops::Range;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapeOf {
    /// First axis; negative values count from the end.
    pub start: i64,
    /// End axis (exclusive); `None` for the rank.
    pub end: Option<i64>,
}

impl ShapeOf {
    fn range(&self, rank: usize) -> OpResult<Range<usize>> {
        let r = num::signed(rank);
        let clamp = |v: i64| num::exact::<usize, _>(if v < 0 { v + r } else { v }.clamp(0, r), "an axis");
        let start = clamp(self.start)?;
        Ok(start..self.end.map_or(Ok(rank), clamp)?.max(start))
    }
}

impl Op for ShapeOf {
    fn name(&self) -> &str {
        "Shape"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let shape = &cx.fact(0)?.shape;
        let dims = shape.0[self.range(shape.rank())?].to_vec();
        let mut fact = Fact::new(DType::I64, Shape::fixed(&[dims.len()]));
        fact.known = Known::Dims(dims);
        Ok(vec![fact])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let shape = operand(inputs, 0)?.shape();
        let list: Vec<i64> = shape[self.range(shape.len())?]
            .iter()
            .map(|d| num::signed(*d))
            .collect();
        Ok(vec![HostTensor::from_i64(&[list.len()], &list)?])
    }

    fn reads(&self, _: usize) -> bool {
        false
    }

    fn decides(&self, _: usize) -> bool {
        false
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    Ok(Box::new(ShapeOf {
        start: a.int("start")?.unwrap_or(0),
        end: a.int("end")?,
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("Shape", 1, 1)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    vec![
        Case::new(ShapeOf { start: -2, end: None }, vec![input(&[2, 3, 4])])
            .host_only("shapes are known when planning"),
    ]
}
