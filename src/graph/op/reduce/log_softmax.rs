//! Variants of softmax: its logarithm, and the indicator of the largest element.
//!
//! ONNX `LogSoftmax` and `Hardmax` from opset 1 (over all axes from `axis` on, 1 by default) and 13
//! (over `axis`, the last by default).

use crate::graph::op::case::{Case, MASKED, input};
use crate::graph::op::softmax::{self, eval_rows, infer_rows};
use crate::graph::op::{Attributes, InferCx, Inputs, Op, OpDef, OpResult, onnx};
use crate::kernels::softmax::Form;
use crate::lower::LowerCx;
use crate::shape::Fact;
use crate::tensor::HostTensor;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSoftmax {
    /// `Hardmax`: 1 at the first largest element, 0 elsewhere, instead of the logarithm.
    pub hard: bool,
    /// The axis; negative values count from the end.
    pub axis: i64,
    /// Treat all axes from `axis` on as one.
    pub flatten: bool,
}

impl Op for LogSoftmax {
    fn name(&self) -> &str {
        if self.hard { "Hardmax" } else { "LogSoftmax" }
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        infer_rows(cx, self.axis)
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        eval_rows(inputs, self.axis, self.flatten, |row| {
            let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            if self.hard {
                // NaN counts as the largest.
                let nan = row.iter().position(|v| v.is_nan());
                let first = nan.or_else(|| row.iter().position(|v| *v == max));
                row.iter_mut()
                    .enumerate()
                    .for_each(|(i, v)| *v = f64::from(u8::from(Some(i) == first)));
                return;
            }
            let sum: f64 = row.iter().map(|v| (v - max).exp()).sum();
            row.iter_mut().for_each(|v| *v = *v - max - sum.ln());
        })
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        softmax::emit(
            cx,
            self.axis,
            self.flatten,
            if self.hard { Form::Hard } else { Form::Log },
        )
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let flatten = a.opset() < 13;
    let axis = a.int("axis")?.unwrap_or(if flatten { 1 } else { -1 });
    Ok(Box::new(LogSoftmax {
        hard: a.op_type() == "Hardmax",
        axis,
        flatten,
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("LogSoftmax", 1, 1), onnx("Hardmax", 1, 1)],
    import,
    kernels: &[
        &crate::kernels::softmax::LAST.kernel,
        &crate::kernels::softmax::INNER.kernel,
    ],
    cases,
};

fn cases() -> Vec<Case> {
    let case = |hard, axis, flatten| {
        Case::new(
            LogSoftmax { hard, axis, flatten },
            vec![input(&[3, 5, 7]).range(-8.0, 8.0)],
        )
    };
    let masked = |hard, axis, x: &[usize]| {
        let op = LogSoftmax {
            hard,
            axis,
            flatten: false,
        };
        Case::new(op, vec![input(x).floats(MASKED)])
    };
    vec![
        masked(false, -1, &[6, 3]),
        masked(false, 0, &[3, 6]),
        masked(true, -1, &[6, 3]),
        masked(true, 0, &[3, 6]),
        case(false, -1, false),
        case(false, 0, false),
        case(false, 1, true),
        case(true, 1, false),
        case(true, 1, true),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values() {
        let x = HostTensor::from_f32(&[1, 3], &[0.0, 1.0, 1.0]).unwrap();
        let run = |hard| {
            let op = LogSoftmax {
                hard,
                axis: -1,
                flatten: false,
            };
            op.eval(&[Some(&x)]).unwrap()[0].to_f32().unwrap().into_owned()
        };
        assert_eq!(run(true), [0.0, 1.0, 0.0]);
        let sum: f32 = run(false).iter().map(|v| v.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6);
    }
}
