//! Local response normalization: `x / (bias + alpha / size * sum(x^2))^beta`, summed over the
//! `size` surrounding channels.
//!
//! ONNX `LRN` from opset 1.

use crate::graph::op::case::{Case, input};
use crate::graph::op::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, onnx, operand, split_at};
use crate::kernels::lrn::{Args, KERNEL};
use crate::lower::{Call, LowerCx};
use crate::num;
use crate::quota;
use crate::shape::{Dim, Fact};
use crate::tensor::HostTensor;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lrn {
    /// Scale of the mean square.
    pub alpha: f32,
    pub beta: f32,
    /// Added to the mean square.
    pub bias: f32,
    /// Number of channels in a sum.
    pub size: i64,
}

impl Op for Lrn {
    fn name(&self) -> &str {
        "LRN"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.float(0)?;
        if x.shape.rank() < 2 {
            return Err(OpError::expected("rank", "2 or more", x.shape.rank()));
        }
        Ok(vec![Fact::new(x.dtype, x.shape.clone())])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let [_, c, rest @ ..] = x.shape() else {
            return Err(OpError::expected("rank", "2 or more", x.shape().len()));
        };
        let plane = crate::graph::op::count(rest)?;
        let data = x.to_f32()?;
        let mut y = data.to_vec();
        // For an even size, one more channel is after than before.
        let size = num::exact::<usize, _>(self.size, "a number of channels")?;
        let (before, behind) = (size.saturating_sub(1) / 2, size / 2);
        #[expect(clippy::cast_precision_loss, reason = "a number of channels")]
        let factor = f64::from(self.alpha) / size as f64;
        if plane * c > 0 {
            for (x, y) in data.chunks_exact(plane * c).zip(y.chunks_exact_mut(plane * c)) {
                for (channel, y) in y.chunks_exact_mut(plane).enumerate() {
                    quota::check()?;
                    let range = channel.saturating_sub(before)
                        ..channel.saturating_add(behind).saturating_add(1).min(*c);
                    for (i, y) in y.iter_mut().enumerate() {
                        let square = |c: usize| f64::from(x[c * plane + i]).powi(2);
                        let sum: f64 = range.clone().map(square).sum();
                        #[expect(
                            clippy::cast_possible_truncation,
                            reason = "rounding to the result type is intended"
                        )]
                        let v = (f64::from(*y)
                            / (f64::from(self.bias) + factor * sum).powf(f64::from(self.beta)))
                            as f32;
                        *y = v;
                    }
                }
            }
        }
        Ok(vec![HostTensor::from_floats(x.dtype(), x.shape(), &y)?])
    }

    #[expect(clippy::cast_precision_loss, reason = "a number of channels")]
    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let x = cx.shape(0)?;
        let (_, channels, plane) = split_at(&x, 1)?;
        let count = x.count()?;
        cx.loops("sums", &self.size.saturating_mul(2).into())?;
        let call = Call::new(&KERNEL, 64).grid(count.ceil_div(2 * 64)?, 1, 1);
        let args = Args {
            x: cx.input(0)?,
            y: cx.output(0)?,
            count,
            channels,
            plane,
            before: Dim::from((self.size - 1) / 2),
            after: Dim::from(self.size / 2),
            factor: self.alpha / self.size as f32,
            bias: self.bias,
            beta: self.beta,
        };
        cx.emit(call, args)
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let size = a.int("size")?.unwrap_or(0);
    if !(1..=i64::from(i32::MAX)).contains(&size) {
        return Err(OpError::expected("attribute `size`", "1 or more", size));
    }
    Ok(Box::new(Lrn {
        alpha: a.float("alpha")?.unwrap_or(1e-4),
        beta: a.float("beta")?.unwrap_or(0.75),
        bias: a.float("bias")?.unwrap_or(1.0),
        size,
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("LRN", 1, 1)],
    import,
    kernels: &[&KERNEL.kernel],
    cases,
};

fn cases() -> Vec<Case> {
    let case = |size, x: &[usize]| {
        Case::new(
            Lrn {
                alpha: 0.5,
                beta: 0.75,
                bias: 1.0,
                size,
            },
            vec![input(x)],
        )
    };
    vec![
        case(3, &[2, 5, 4, 3]),
        case(4, &[1, 7, 5]),
        case(9, &[1, 3, 2, 2]),
    ]
}
