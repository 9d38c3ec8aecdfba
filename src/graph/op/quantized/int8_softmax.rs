//! Softmax of 8-bit integers along the last axis, with integers only.
//!
//! A table holds the exponential of each possible difference from the largest element. The result
//! is a rounded quotient of integers, with scale 1/256 and zero point -128. It differs from the
//! exact softmax by at most one step.

use crate::graph::op::case::{Case, constant};
use crate::graph::op::int8::{self, byte_operand, fact, tensor, word_operand};
use crate::graph::op::{InferCx, Inputs, Op, OpDef, OpError, OpResult, never_in_files, operand};
use crate::kernels::int8_softmax::{Args, KERNEL};
use crate::lower::{Call, LowerCx, Planned};
use crate::num;
use crate::shape::{Dim, Fact};
use crate::tensor::{DType, HostTensor};

/// Operand 1 is the [`table`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Int8Softmax {
    /// Size of the last axis without its padding.
    pub channels: i64,
}

/// Position of the bit that stands for 1 in the table: the sum of `channels` exponentials, and 256
/// times one of them plus half of that sum, fit 32 bits.
fn bits(channels: i64) -> u32 {
    23.min(channels.max(1).leading_zeros().saturating_sub(64 - 31))
}

/// `exp(-i * scale)` for i from 0 to 255 as fixed-point integers; `None` for more than 65,535
/// channels.
pub fn table(scale: f32, channels: i64) -> Option<HostTensor> {
    let bits = bits(channels);
    if bits < 15 {
        return None;
    }
    let one = f64::from(1u32 << bits);
    #[expect(clippy::cast_possible_truncation, reason = "at most 2^23")]
    let of = |i: u32| (one * (-f64::from(i) * f64::from(scale)).exp()).round() as i64;
    let list: Vec<i64> = (0..256).map(of).collect();
    HostTensor::from_ints(DType::I32, &[list.len()], &list).ok()
}

impl Op for Int8Softmax {
    fn name(&self) -> &str {
        "Int8Softmax"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = fact(cx, 0)?;
        let (_, last) = int8::last(&x.shape.0)?;
        if *last != int8::padded(&self.channels.into())? || self.channels < 1 {
            return Err(OpError::expected("last axis", self.channels, last));
        }
        let table = cx.fact(1)?;
        if table.dtype != DType::I32 || !int8::only(&table.shape.0)?.is(256) {
            return Err(OpError::expected("table", "i32[256]", table));
        }
        Ok(vec![Fact::new(x.dtype, x.shape.clone())])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let (x, data) = byte_operand(inputs, 0)?;
        let table = operand(inputs, 1)?.to_i64()?;
        let (_, stride) = int8::last(x.shape())?;
        let channels = crate::graph::op::fixed_size(&self.channels.into())?;
        let mut y = crate::graph::op::filled(x.shape(), -128i8)?;
        for (x, y) in data.chunks((*stride).max(1)).zip(y.chunks_mut((*stride).max(1))) {
            let x = num::part(x, ..channels)?;
            let most = x.iter().max().copied().unwrap_or(0);
            let exp = |v: &i8| num::at(&table, usize::from(most.abs_diff(*v))).copied();
            let sum = x.iter().map(exp).sum::<Result<i64, _>>()?;
            for (y, x) in y.iter_mut().zip(x) {
                let share = (exp(x)? * 256 + sum / 2) / sum.max(1);
                #[expect(clippy::cast_possible_truncation, reason = "between 8-bit bounds")]
                let step = (share - 128).clamp(-128, 127) as i8;
                *y = step;
            }
        }
        Ok(vec![tensor(x.shape(), &y)?])
    }

    fn stores_bytes(&self) -> bool {
        true
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let words = Dim::from(self.channels).ceil_div(4)?;
        cx.loops("rows", &self.channels.saturating_mul(3).into())?;
        let count = int8::words(&cx.shape(0)?)?;
        let rows = count.exact_div(&words);
        let args = Args::<Planned> {
            x: word_operand(cx, 0)?,
            table: cx.input(1)?,
            y: cx.output(0)?,
            rows: rows.ok_or_else(|| OpError::expected("elements", "whole rows", &count))?,
            channels: self.channels.into(),
            words,
        };
        cx.emit(Call::new(&KERNEL, 64).grid(args.rows.ceil_div(64)?, 1, 1), args)
    }
}

pub static DEF: OpDef = OpDef {
    onnx: &[],
    import: never_in_files,
    kernels: &[&KERNEL.kernel],
    cases,
};

fn cases() -> Vec<Case> {
    let case = |(shape, channels): (&[usize], i64)| {
        let table = table(0.07, channels)?;
        let op = Int8Softmax { channels };
        Some(Case::new(op, vec![int8::case_input(shape), constant(table)]))
    };
    let shapes: [(&[usize], i64); 3] = [(&[3, 12], 10), (&[2, 3, 8], 8), (&[2, 1000], 1000)];
    shapes.into_iter().filter_map(case).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_quotients_fit_32_bits() {
        for channels in [1, 2, 255, 256, 1000, 65_535] {
            let bits = bits(channels);
            assert!(bits >= 15, "{channels}");
            let sum = (channels as u64) << bits;
            assert!((256 << bits) + sum / 2 <= u64::from(u32::MAX), "{channels}");
        }
        assert_eq!(table(0.1, 1 << 17), None);
    }
}
