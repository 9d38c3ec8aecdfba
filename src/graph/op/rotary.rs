//! Rotary position embedding, halves form: `y = x * cos + rotate_half(x) * sin` with
//! `rotate_half([a, b]) = [-b, a]` (own domain, made by the `rotary` pass).
//!
//! Operands: x `[batch, sequence, heads, dim]`, cos and sin `[batch, sequence, 1, dim]`; dim is even.

use super::case::{Case, input};
use super::sizes::Sizes;
use super::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, operand, own};
use crate::backend::kernel::Kernel;
use crate::plan::lower::{Call, LowerCx};
use crate::shape::{Fact, Shape};
use crate::tensor::HostTensor;

static KERNEL: Kernel = crate::kernel!(rotary { count: U32, heads: U32, dim: U32 } [x: In Elem, cosine: In Elem, sine: In Elem, y: Out Elem]);

/// See the module documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rotary;

fn check(x: &Shape, cos: &Shape, sin: &Shape) -> OpResult<()> {
    let fits = cos == sin
        && match (x.0.as_slice(), cos.0.as_slice()) {
            ([b, s, _, d], [cb, cs, one, cd]) => {
                b == cb && s == cs && one.is(1) && d == cd && d.exact_div(&2.into()).is_some()
            }
            _ => false,
        };
    if fits {
        Ok(())
    } else {
        Err(OpError::mismatch(
            "x [b, s, h, d] and angles [b, s, 1, d]",
            x,
            format!("{cos}, {sin}"),
        ))
    }
}

impl Op for Rotary {
    fn name(&self) -> &str {
        "Rotary"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.fact(0)?;
        check(&x.shape, &cx.fact(1)?.shape, &cx.fact(2)?.shape)?;
        Ok(vec![Fact::new(x.dtype, x.shape.clone())])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let (x, cos, sin) = (operand(inputs, 0)?, operand(inputs, 1)?, operand(inputs, 2)?);
        check(
            &Shape::fixed(x.shape()),
            &Shape::fixed(cos.shape()),
            &Shape::fixed(sin.shape()),
        )?;
        let (heads, dim) = (x.shape()[2], x.shape()[3]);
        let (data, cos, sin) = (x.to_f32()?, cos.to_f32()?, sin.to_f32()?);
        let half = dim / 2;
        let mut y = Vec::with_capacity(data.len());
        for (i, row) in data.chunks_exact(dim.max(1)).enumerate() {
            let angle = i / heads * dim;
            y.extend((0..dim).map(|j| {
                let other = if j < half { -row[j + half] } else { row[j - half] };
                row[j] * cos[angle + j] + other * sin[angle + j]
            }));
        }
        Ok(vec![HostTensor::from_floats(x.dtype(), x.shape(), &y)?])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let x = cx.shape(0)?;
        let count = x.count()?;
        let call = Call::new(&KERNEL, 64)
            .operand(cx.input(0)?)
            .operand(cx.input(1)?)
            .operand(cx.input(2)?)
            .operand(cx.output(0)?)
            .grid(count.ceil_div(2 * 64)?, 1, 1)
            .field(&count)
            .field(&x.0[2])
            .field(&x.0[3]);
        cx.emit(call)
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        sizes.results().saturating_mul(3)
    }
}

fn import(_: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    Ok(Box::new(Rotary))
}

/// The registry's entry.
pub static DEF: OpDef = OpDef {
    onnx: &[own("Rotary")],
    import,
    kernels: &[&KERNEL],
    cases,
};

fn cases() -> Vec<Case> {
    let case = |s, h, d| {
        Case::new(
            Rotary,
            vec![input(&[1, s, h, d]), input(&[1, s, 1, d]), input(&[1, s, 1, d])],
        )
    };
    vec![case(1, 9, 64), case(5, 3, 64), case(3, 2, 6), case(7, 1, 130)]
}
