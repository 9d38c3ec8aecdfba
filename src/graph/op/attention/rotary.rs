//! Rotary position embedding (own domain, made by the passes `rotary` and `rotary_interleaved`).
//!
//! Operands: x `[batch, sequence, heads, dim]`, or with the first two axes swapped; dim is even.
//! With halves, cos and sin are `[batch, sequence, 1, dim]`: `y = x * cos + rotate_half(x) * sin`
//! with `rotate_half([a, b]) = [-b, a]`. With interleaved pairs they are
//! `[batch, sequence, 1, pairs]`: elements `2 i` and `2 i + 1` are rotated by angle i, and elements
//! after the last pair stay.

use crate::graph::op::case::{Case, input};
use crate::graph::op::sizes::Sizes;
use crate::graph::op::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, operand, own};
use crate::kernels::rotary::{Args, KERNEL, NEIGHBOURS};
use crate::lower::{Call, LowerCx};
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::HostTensor;

/// Which elements of a head form a pair to rotate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairs {
    /// `i` and `i + n / 2` of the first n elements.
    Halves,
    /// `2 i` and `2 i + 1`.
    Neighbours,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rotary {
    /// Which elements form a pair.
    pub pairs: Pairs,
}

impl Rotary {
    fn check(&self, x: &Shape, cos: &Shape, sin: &Shape) -> OpResult<()> {
        let pairs_fit = |d: &Dim, angles: &Dim| match self.pairs {
            Pairs::Halves => d == angles,
            Pairs::Neighbours => {
                matches!((d.as_const(), angles.as_const()), (Some(d), Some(n)) if n >= 0 && n <= d / 2)
            }
        };
        let fits = cos == sin
            && match (x.0.as_slice(), cos.0.as_slice()) {
                ([b, s, _, d], [cb, cs, one, cd]) => {
                    b == cb && s == cs && one.is(1) && pairs_fit(d, cd) && d.exact_div(&2.into()).is_some()
                }
                _ => false,
            };
        if fits {
            return Ok(());
        }
        let what = match self.pairs {
            Pairs::Halves => "x [b, s, h, d] and angles [b, s, 1, d]",
            Pairs::Neighbours => "x [b, s, h, d] and angles [b, s, 1, d / 2 or less]",
        };
        Err(OpError::mismatch(what, x, format!("{cos}, {sin}")))
    }
}

impl Op for Rotary {
    fn name(&self) -> &str {
        "Rotary"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.fact(0)?;
        self.check(&x.shape, &cx.fact(1)?.shape, &cx.fact(2)?.shape)?;
        Ok(vec![Fact::new(x.dtype, x.shape.clone())])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let (x, cos, sin) = (operand(inputs, 0)?, operand(inputs, 1)?, operand(inputs, 2)?);
        self.check(
            &Shape::fixed(x.shape()),
            &Shape::fixed(cos.shape()),
            &Shape::fixed(sin.shape()),
        )?;
        let (heads, dim, angles) = (x.shape()[2], x.shape()[3], cos.shape()[3]);
        let (data, cos, sin) = (x.to_f32()?, cos.to_f32()?, sin.to_f32()?);
        let half = dim / 2;
        let mut y = Vec::with_capacity(data.len());
        for (i, row) in data.chunks_exact(dim.max(1)).enumerate() {
            let angle = i / heads * angles;
            if self.pairs == Pairs::Neighbours {
                for (j, pair) in row.chunks_exact(2).enumerate() {
                    let (a, b) = (pair[0], pair[1]);
                    let (c, s) = match j < angles {
                        true => (cos[angle + j], sin[angle + j]),
                        false => (1.0, 0.0),
                    };
                    y.extend([a * c - b * s, b * c + a * s]);
                }
                continue;
            }
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
        let mut call = Call::new(&KERNEL, 64).grid(count.ceil_div(2 * 64)?, 1, 1);
        call = call.define_if(NEIGHBOURS, self.pairs == Pairs::Neighbours);
        let args = Args {
            x: cx.input(0)?,
            cosine: cx.input(1)?,
            sine: cx.input(2)?,
            y: cx.output(0)?,
            count,
            heads: x.0[2].clone(),
            dim: x.0[3].clone(),
            angles: cx.shape(1)?.0[3].clone(),
        };
        cx.emit(call, args)
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        sizes.results().saturating_mul(3)
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let pairs = match a.int("neighbours")?.unwrap_or(0) {
        0 => Pairs::Halves,
        _ => Pairs::Neighbours,
    };
    Ok(Box::new(Rotary { pairs }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[own("Rotary", 3)],
    import,
    kernels: &[&KERNEL.kernel],
    cases,
};

fn cases() -> Vec<Case> {
    let case = |pairs, [b, s, h, d]: [usize; 4], angles| {
        let angles = || input(&[b, s, 1, angles]);
        Case::new(Rotary { pairs }, vec![input(&[b, s, h, d]), angles(), angles()])
    };
    vec![
        case(Pairs::Halves, [1, 1, 9, 64], 64),
        case(Pairs::Halves, [1, 5, 3, 64], 64),
        case(Pairs::Halves, [1, 3, 2, 6], 6),
        case(Pairs::Halves, [1, 7, 1, 130], 130),
        case(Pairs::Neighbours, [1, 1, 9, 64], 32),
        case(Pairs::Neighbours, [5, 1, 3, 64], 16),
        case(Pairs::Neighbours, [2, 3, 2, 6], 1),
        case(Pairs::Neighbours, [1, 7, 1, 130], 65),
    ]
}
