//! Batch normalization with given statistics:
//! `(x - mean) / sqrt(variance + epsilon) * scale + bias` for each channel (axis 1).
//!
//! ONNX `BatchNormalization` from opset 6 (`is_test`), 7 and 9 (`spatial` until 8), 14 and 15
//! (`training_mode`): inference only. Statistics per element instead of per channel (`spatial = 0`)
//! are not supported.

use crate::graph::op::case::{Case, input};
use crate::graph::op::norm::{self, RowNorm, ScaleIndex};
use crate::graph::op::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, onnx, operand};
use crate::lower::LowerCx;
use crate::shape::{Fact, product};
use crate::tensor::HostTensor;

/// Operands: `x [n, c, ..]`, then scale, bias, mean and variance, each `[c]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNorm {
    /// Added to the variance.
    pub epsilon: f32,
}

impl Op for BatchNorm {
    fn name(&self) -> &str {
        "BatchNormalization"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.float(0)?;
        let c = x
            .shape
            .0
            .get(1)
            .ok_or_else(|| OpError::expected("rank", "2 or more", x.shape.rank()))?;
        for i in 1..5 {
            let f = cx.float(i)?;
            let [size] = f.shape.0.as_slice() else {
                return Err(OpError::expected(format!("rank of input {i}"), 1, f.shape.rank()));
            };
            cx.same("channels of input and statistics", c, size)?;
        }
        Ok(vec![Fact::new(x.dtype, x.shape.clone())])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let [_, c, rest @ ..] = x.shape() else {
            return Err(OpError::expected("rank", "2 or more", x.shape().len()));
        };
        let plane = crate::graph::op::count(rest)?;
        let mut lists = Vec::new();
        for i in 1..5 {
            let list = operand(inputs, i)?.to_f32()?;
            if list.len() != *c {
                return Err(OpError::mismatch(
                    "channels of input and statistics",
                    c,
                    list.len(),
                ));
            }
            lists.push(list);
        }
        let [scale, bias, mean, variance] = lists.as_slice() else {
            return Err(OpError::expected("statistics", 4, lists.len()));
        };
        let mut y = x.to_f32()?.into_owned();
        let channels = scale
            .iter()
            .zip(bias.iter())
            .zip(mean.iter().zip(variance.iter()));
        for (plane, ((scale, bias), (mean, variance))) in
            y.chunks_exact_mut(plane.max(1)).zip(channels.cycle())
        {
            let factor = scale / (variance + self.epsilon).sqrt();
            for v in plane {
                *v = (*v - mean) * factor + bias;
            }
        }
        Ok(vec![HostTensor::from_floats(x.dtype(), x.shape(), &y)?])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let x = cx.shape(0)?;
        let [n, c, rest @ ..] = x.0.as_slice() else {
            return Err(OpError::expected("rank", "2 or more", x.rank()));
        };
        let (rows, cols) = (n.mul(c)?, product(rest)?);
        let place = ScaleIndex::Set {
            sets: c.clone(),
            per: 1.into(),
            run: cols.clone(),
        };
        norm::emit(
            cx,
            &RowNorm {
                rows,
                cols,
                place,
                center: true,
                given: true,
                epsilon: self.epsilon,
            },
        )
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let epsilon = a.float("epsilon")?.unwrap_or(1e-5);
    // The update rate of running statistics; inference does not update them.
    a.float("momentum")?;
    a.int("is_test")?;
    if a.int("training_mode")?.unwrap_or(0) != 0 || a.output_count() > 1 {
        return Err(OpError::Unsupported(
            "batch normalization in training mode".to_owned(),
        ));
    }
    if a.int("spatial")?.unwrap_or(1) == 0 {
        return Err(OpError::Unsupported(
            "statistics per element (`spatial` is 0)".to_owned(),
        ));
    }
    Ok(Box::new(BatchNorm { epsilon }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("BatchNormalization", 6, 5).outputs(5)],
    import,
    kernels: &[&crate::kernels::norm::KERNEL.kernel],
    cases,
};

fn cases() -> Vec<Case> {
    let case = |x: &[usize], c: usize| {
        let list = || input(&[c]);
        let inputs = vec![input(x), list(), list(), list(), list().range(0.25, 2.0)];
        Case::new(BatchNorm { epsilon: 1e-3 }, inputs)
    };
    vec![case(&[2, 3, 5, 7], 3), case(&[3, 5], 5), case(&[1, 4, 9], 4)]
}
