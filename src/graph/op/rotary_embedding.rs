//! Rotary position embedding by caches of cosines and sines. ONNX `RotaryEmbedding` from opset 23.
//!
//! Operands: x `[batch, heads, sequence, size]` or `[batch, sequence, heads * size]`; cosines and sines, of each position of
//! the batch `[batch, sequence, half]` or, with positions as operand 3, a table `[positions, half]`.

use super::case::{Case, input};
use super::gather_elements::wrap;
use super::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, onnx, operand};
use crate::shape::Fact;
use crate::tensor::HostTensor;

/// See the module documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RotaryEmbedding {
    /// Pairs are neighbours, else the two halves.
    pub interleaved: bool,
    /// Elements of a head that are rotated; 0 means all.
    pub rotated: usize,
    /// Number of heads where x has three axes.
    pub heads: usize,
}

impl Op for RotaryEmbedding {
    fn name(&self) -> &str {
        "RotaryEmbedding"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.fact(0)?;
        if !(x.shape.rank() == 4 || x.shape.rank() == 3 && self.heads > 0) {
            return Err(OpError::expected("operand", "four axes, or three and the number of heads", x));
        }
        let caches = if cx.opt(3).is_some() { 2 } else { 3 };
        for i in [1, 2] {
            if cx.fact(i)?.shape.rank() != caches {
                return Err(OpError::expected(format!("input {i}"), format!("{caches} axes"), cx.fact(i)?));
            }
        }
        Ok(vec![Fact::new(x.dtype, x.shape.clone())])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let (cos, sin) = (operand(inputs, 1)?, operand(inputs, 2)?);
        let positions = inputs.get(3).copied().flatten().map(HostTensor::to_i64).transpose()?;
        // A row is one head of one token; rows of a token are together where x has three axes.
        let (batch, heads, sequence, size, together) = match x.shape() {
            [b, h, s, n] => (*b, *h, *s, *n, false),
            [b, s, n] if self.heads > 0 && n % self.heads == 0 => (*b, self.heads, *s, n / self.heads, true),
            _ => return Err(OpError::expected("operand", "whole heads", format!("{x:?}"))),
        };
        let rotated = if self.rotated == 0 { size } else { self.rotated };
        let half = rotated / 2;
        if rotated > size || cos.shape().last() != Some(&half) || sin.shape() != cos.shape() {
            let found = format!("{cos:?} and {sin:?}");
            return Err(OpError::expected("cosines and sines", format!("{half} of each for {size} elements"), found));
        }
        let lines = cos.len().checked_div(half).unwrap_or(0);
        if positions.is_none() && lines != batch * sequence {
            return Err(OpError::expected("cosines", format!("one line for each of {} tokens", batch * sequence), lines));
        }
        let (data, cos, sin) = (x.to_f32()?, cos.to_f32()?, sin.to_f32()?);
        let mut y = data.to_vec();
        for (row, out) in y.chunks_exact_mut(size.max(1)).enumerate() {
            let token = if together { row / heads } else { row / (heads * sequence) * sequence + row % sequence };
            let line = match &positions {
                Some(p) => wrap(p.get(token).copied().unwrap_or(-1), lines)?,
                None => token,
            };
            for i in 0..half {
                let (a, b) = if self.interleaved { (2 * i, 2 * i + 1) } else { (i, half + i) };
                let (c, s) = (cos[line * half + i], sin[line * half + i]);
                (out[a], out[b]) = (c * out[a] - s * out[b], s * out[a] + c * out[b]);
            }
        }
        Ok(vec![HostTensor::from_floats(x.dtype(), x.shape(), &y)?])
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let number = |name: &str| {
        let v = a.int(name)?.unwrap_or(0);
        usize::try_from(v).map_err(|_| OpError::expected(format!("attribute `{name}`"), "0 or more", v))
    };
    Ok(Box::new(RotaryEmbedding {
        interleaved: a.int("interleaved")?.unwrap_or(0) != 0,
        rotated: number("rotary_embedding_dim")?,
        heads: number("num_heads")?,
    }))
}

/// The registry's entry.
pub static DEF: OpDef = OpDef { onnx: &[onnx("RotaryEmbedding", 23)], import, kernels: &[], cases };

fn cases() -> Vec<Case> {
    let table = || input(&[9, 4]).constant();
    let op = RotaryEmbedding { interleaved: false, rotated: 0, heads: 2 };
    let inputs = vec![input(&[2, 3, 16]), table(), table(), input(&[2, 3]).ints(0, 8)];
    vec![Case::new(op, inputs).host_only("no kernel")]
}
