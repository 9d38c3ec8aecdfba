//! Root-mean-square normalisation over the last axis: `y = x / sqrt(mean(x^2) + epsilon) * scale`.
//!
//! ONNX `RMSNormalization`, opset 23, `axis = -1` only; also what the `rms_norm` pass makes of the
//! decomposed form. The statistics are in `f32` whatever the storage type.

use super::case::{Case, input};
use super::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, onnx, operand};
use crate::backend::kernel::Kernel;
use crate::plan::lower::{Call, LowerCx};
use crate::shape::{Fact, product};
use crate::tensor::HostTensor;

static KERNEL: Kernel = crate::kernel!(rms_norm { rows: U32, cols: U32, epsilon: F32 } [x: In Elem, scale: In Elem, y: Out Elem]);

/// See the module documentation.
#[derive(Clone, Debug, PartialEq)]
pub struct RmsNorm {
    /// Added to the mean of squares.
    pub epsilon: f32,
}

impl Op for RmsNorm {
    fn name(&self) -> &str {
        "RMSNormalization"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let (x, scale) = (cx.fact(0)?, cx.fact(1)?);
        if scale.shape.rank() != 1 || scale.shape.0.first() != x.shape.0.last() {
            return Err(OpError::mismatch("last axis and scale", &x.shape, &scale.shape));
        }
        Ok(vec![Fact::new(x.dtype, x.shape.clone())])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let (x, scale) = (operand(inputs, 0)?, operand(inputs, 1)?);
        let cols = x.shape().last().copied().unwrap_or(1).max(1);
        let (data, scale) = (x.to_f32()?, scale.to_f32()?);
        let mut y = Vec::with_capacity(data.len());
        for row in data.chunks_exact(cols) {
            let squares: f64 = row.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
            #[expect(clippy::cast_precision_loss, reason = "a row has far fewer than 2^52 elements")]
            let inverse = 1.0 / (squares / cols as f64 + f64::from(self.epsilon)).sqrt();
            #[expect(clippy::cast_possible_truncation, reason = "rounding to the result type is meant")]
            y.extend(row.iter().zip(scale.iter()).map(|(v, s)| (f64::from(*v) * inverse * f64::from(*s)) as f32));
        }
        Ok(vec![HostTensor::from_floats(x.dtype(), x.shape(), &y)?])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let shape = cx.shape(0)?;
        let Some((cols, before)) = shape.0.split_last() else {
            return Err(OpError::expected("rank", "1 or more", 0));
        };
        let rows = product(before)?;
        let tile = if rows.is(1) || cols.exact_div(&2.into()).is_some() { 1 } else { 2 };
        let call = Call::new(&KERNEL, 64)
            .operand(cx.input(0)?)
            .operand(cx.input(1)?)
            .operand(cx.output(0)?)
            .define("ROWS", tile)
            .grid(rows.ceil_div(tile)?, 1, 1)
            .field(&rows)
            .field(cols)
            .field(self.epsilon)
            .may_work_in_place();
        cx.emit(call)
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let axis = a.int("axis")?.unwrap_or(-1);
    if axis != -1 {
        return Err(OpError::Unsupported(format!("normalisation from axis {axis}; only the last axis (-1)")));
    }
    // The type of the statistics: always f32 or wider here.
    a.int("stash_type")?;
    Ok(Box::new(RmsNorm { epsilon: a.float("epsilon")?.unwrap_or(1e-5) }))
}

/// The registry's entry.
pub static DEF: OpDef = OpDef { onnx: &[onnx("RMSNormalization", 23)], import, kernels: &[&KERNEL], cases };

fn cases() -> Vec<Case> {
    let case = |x: &[usize]| {
        let cols = x.last().copied().unwrap_or(1);
        Case::new(RmsNorm { epsilon: 1e-5 }, vec![input(x), input(&[cols]).constant()])
    };
    vec![case(&[1, 576]), case(&[3, 130]), case(&[5, 33]), case(&[2, 3, 1]), case(&[1, 1, 1025]), case(&[1, 7])]
}
