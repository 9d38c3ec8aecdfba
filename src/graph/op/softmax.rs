//! Softmax over one axis. ONNX opset 13 on; earlier opsets flatten to two axes and are refused at import.
//!
//! Kernels reduce the last axis; another axis is for the host.

use super::case::{Case, input};
use super::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, axis, onnx, operand, strides};
use crate::backend::kernel::Kernel;
use crate::plan::lower::{Call, LowerCx};
use crate::shape::{Fact, product};
use crate::tensor::HostTensor;

static KERNEL: Kernel = crate::kernel!(softmax { rows: U32, cols: U32 } [x: In Elem, y: Out Elem]);

/// See the module documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Softmax {
    /// The axis whose elements sum to 1; negative counts from the end.
    pub axis: i64,
}

impl Op for Softmax {
    fn name(&self) -> &str {
        "Softmax"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.fact(0)?;
        axis(self.axis, x.shape.rank())?;
        Ok(vec![Fact::new(x.dtype, x.shape.clone())])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let a = axis(self.axis, x.shape().len())?;
        let (n, step) = (x.shape()[a], strides(x.shape())[a]);
        let mut y = x.to_f32()?.into_owned();
        for start in (0..y.len()).filter(|i| i / step % n == 0) {
            let at = |i: usize| start + i * step;
            let max = (0..n).map(|i| y[at(i)]).fold(f32::NEG_INFINITY, f32::max);
            let sum: f64 = (0..n).map(|i| f64::from(y[at(i)] - max).exp()).sum();
            for i in 0..n {
                #[expect(clippy::cast_possible_truncation, reason = "rounding to the result type is meant")]
                let v = (f64::from(y[at(i)] - max).exp() / sum) as f32;
                y[at(i)] = v;
            }
        }
        Ok(vec![HostTensor::from_floats(x.dtype(), x.shape(), &y)?])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let shape = cx.shape(0)?;
        if axis(self.axis, shape.rank())? + 1 != shape.rank() {
            return Err(OpError::NoKernel(format!("softmax over axis {} of {shape}; kernels take the last", self.axis)));
        }
        let Some((cols, before)) = shape.0.split_last() else {
            return Err(OpError::expected("rank", "1 or more", 0));
        };
        let rows = product(before)?;
        let tile = if rows.is(1) || cols.exact_div(&2.into()).is_some() { 1 } else { 2 };
        let call = Call::new(&KERNEL, 64)
            .operand(cx.input(0)?)
            .operand(cx.output(0)?)
            .define("ROWS", tile)
            .grid(rows.ceil_div(tile)?, 1, 1)
            .field(&rows)
            .field(cols)
            .may_work_in_place();
        cx.emit(call)
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    Ok(Box::new(Softmax { axis: a.int("axis")?.unwrap_or(-1) }))
}

/// The registry's entry.
pub static DEF: OpDef = OpDef { onnx: &[onnx("Softmax", 13)], import, kernels: &[&KERNEL], cases };

fn cases() -> Vec<Case> {
    let case = |x: &[usize], axis| Case::new(Softmax { axis }, vec![input(x).range(-8.0, 8.0)]);
    vec![
        case(&[3, 130], -1),
        case(&[2, 5, 7], -1),
        case(&[1, 1025], -1),
        case(&[4, 1], -1),
        case(&[9, 33], 1),
        Case::new(Softmax { axis: 1 }, vec![input(&[2, 5, 7])]).host_only("softmax over an inner axis"),
    ]
}
