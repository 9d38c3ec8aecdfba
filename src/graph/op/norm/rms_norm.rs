//! RMS normalization: `y = x / sqrt(mean(x^2) + epsilon) * scale`.
//!
//! ONNX `RMSNormalization` from opset 23. [`RmsNorm`] normalizes over the last axis; the pass
//! `norm` also creates it from the decomposed form. [`RmsNormFrom`] normalizes over all axes from
//! any one on. Statistics are in `f32`, whatever the storage type.

use crate::graph::op::case::{Case, input};
use crate::graph::op::pointwise::broadcast_to;
use crate::graph::op::types::Types;
use crate::graph::op::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, axis, norm, onnx, operand,
};
use crate::lower::LowerCx;
use crate::num;
use crate::shape::{Dim, Fact, product};
use crate::tensor::HostTensor;

/// RMS normalization over the last axis.
#[derive(Clone, Debug, PartialEq)]
pub struct RmsNorm {
    /// Added to the mean of squares.
    pub epsilon: f32,
}

/// RMS normalization over all axes from one on; the scale broadcasts to their shape.
#[derive(Clone, Debug, PartialEq)]
pub struct RmsNormFrom {
    /// First of the normalized axes; negative values count from the end.
    pub axis: i64,
    /// Added to the mean of squares.
    pub epsilon: f32,
}

/// Normalizes rows of `cols` elements, with one scale per column.
fn normalise(x: &HostTensor, cols: usize, scale: &[f32], epsilon: f32) -> OpResult<HostTensor> {
    let data = x.to_f32()?;
    let mut y = Vec::with_capacity(data.len());
    for row in data.chunks_exact(cols.max(1)) {
        let squares: f64 = row.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
        #[expect(
            clippy::cast_precision_loss,
            reason = "a row has far fewer than 2^52 elements"
        )]
        let inverse = 1.0 / (squares / cols as f64 + f64::from(epsilon)).sqrt();
        #[expect(
            clippy::cast_possible_truncation,
            reason = "rounding to the result type is intended"
        )]
        y.extend(
            row.iter()
                .zip(scale)
                .map(|(v, s)| (f64::from(*v) * inverse * f64::from(*s)) as f32),
        );
    }
    Ok(HostTensor::from_floats(x.dtype(), x.shape(), &y)?)
}

impl Op for RmsNormFrom {
    fn name(&self) -> &str {
        "RMSNormalization"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let (x, scale) = (cx.typed(0, Types::FLOAT)?, cx.typed(1, Types::FLOAT)?);
        let from = axis(self.axis, x.shape.rank())?;
        let part = num::part(&x.shape.0, from..)?;
        if cx.broadcast(part, &scale.shape.0)?.0 != part {
            return Err(OpError::mismatch(
                "normalized axes and scale",
                &x.shape,
                &scale.shape,
            ));
        }
        Ok(vec![Fact::new(x.dtype, x.shape.clone())])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let part = num::part(x.shape(), axis(self.axis, x.shape().len())?..)?;
        let scale = broadcast_to(operand(inputs, 1)?, part)?;
        Ok(vec![normalise(x, scale.len(), &scale.to_f32()?, self.epsilon)?])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let (x, scale) = (cx.shape(0)?, cx.shape(1)?);
        let (before, part) = x.0.split_at(axis(self.axis, x.rank())?);
        if scale.0 != part {
            return Err(OpError::NoKernel(format!(
                "a scale {scale} of {x} from axis {}",
                self.axis
            )));
        }
        emit(cx, before, part, self.epsilon)
    }
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
        let cols = x.shape().last().copied().unwrap_or(1);
        Ok(vec![normalise(x, cols, &scale.to_f32()?, self.epsilon)?])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let shape = cx.shape(0)?;
        let Some((cols, before)) = shape.0.split_last() else {
            return Err(OpError::expected("rank", "1 or more", 0));
        };
        emit(cx, before, std::slice::from_ref(cols), self.epsilon)
    }
}

/// Emits the normalization of rows over the axes `part`; the axes `before` count the rows.
fn emit(cx: &mut LowerCx<'_>, before: &[Dim], part: &[Dim], epsilon: f32) -> OpResult<()> {
    let (rows, cols) = (product(before)?, product(part)?);
    norm::emit(
        cx,
        &norm::RowNorm {
            rows,
            cols,
            place: norm::ScaleIndex::Column,
            center: false,
            given: false,
            epsilon,
        },
    )
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let (axis, epsilon) = (a.int("axis")?.unwrap_or(-1), a.float("epsilon")?.unwrap_or(1e-5));
    // Type of the statistics: always f32 or wider here.
    a.int("stash_type")?;
    if axis == -1 {
        return Ok(Box::new(RmsNorm { epsilon }));
    }
    Ok(Box::new(RmsNormFrom { axis, epsilon }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("RMSNormalization", 23, 2)],
    import,
    kernels: &[
        &crate::kernels::norm::KERNEL.kernel,
        &crate::kernels::norm::ROW.kernel,
    ],
    cases,
};

fn cases() -> Vec<Case> {
    let case = |x: &[usize]| {
        let cols = x.last().copied().unwrap_or(1);
        Case::new(
            RmsNorm { epsilon: 1e-5 },
            vec![input(x), input(&[cols]).constant()],
        )
    };
    let from = RmsNormFrom {
        axis: 1,
        epsilon: 1e-5,
    };
    let over_two = Case::new(from, vec![input(&[2, 3, 5]), input(&[3, 5]).constant()]);
    vec![
        over_two,
        case(&[1, 576]),
        case(&[3, 130]),
        case(&[5, 33]),
        case(&[2, 3, 1]),
        case(&[1, 1, 1025]),
        case(&[1, 7]),
        case(&[3, 1028]),
    ]
}
