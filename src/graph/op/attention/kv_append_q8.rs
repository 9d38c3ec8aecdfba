//! Appends rows to an 8-bit state in place (own domain, made by the pass `kv_q8`):
//! [`crate::graph::op::kv_append`] for a cache of half the size.
//!
//! Operands: the state, `i32 [1, past, heads, d / 4 + 1]`, and new float rows `[1, n, heads, d]`.
//! The result is the state with `past + n` rows, in the same memory (or wrapped within its window),
//! or with a third operand the state with its rows at these places, as in [`crate::graph::op::kv_append`].
//! The row of a head is `d / 4` words with four signed 8-bit values each, the first one in the
//! lowest bits, followed by an `f32` scale: the largest magnitude of the row divided by 127. Values
//! are rounded to nearest, ties to even.

use crate::graph::op::case::{Case, given, input};
use crate::graph::op::kv_append::{check_places, destination, ring, scattered};
use crate::graph::op::sizes::Sizes;
use crate::graph::op::{InferCx, Inputs, Op, OpDef, OpError, OpResult, never_in_files, operand};
use crate::kernels::kv_append_q8::{Args, KERNEL};
use crate::lower::{Call, Location, LowerCx};
use crate::quant::to_bytes;
use crate::shape::{Dim, Fact, Shape, product};
use crate::tensor::{DType, HostTensor};

/// Work-items per row of a head.
const ITEMS: u32 = 16;
/// The axis that grows.
const AXIS: usize = 1;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvAppendQ8;

/// Words of a row of `d` elements; `None` if `d` is not a multiple of 4.
pub fn words(d: &Dim) -> Option<Dim> {
    d.exact_div(&4.into())?.add(&1.into()).ok()
}

/// Quantizes a row to 8 bits.
fn encode(row: &[f32], out: &mut Vec<u8>) {
    let (codes, scale) = to_bytes(row);
    out.extend(codes.flat_map(i8::to_le_bytes));
    out.extend(scale.to_le_bytes());
}

/// Decodes rows of `words` words to floats.
pub fn decode(data: &[u8], words: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(data.len());
    for row in data.chunks_exact(4 * words.max(1)) {
        if let Some((codes, scale)) = row.split_last_chunk() {
            let scale = f32::from_le_bytes(*scale);
            let code = |b: &u8| f32::from(i8::from_le_bytes([*b]));
            out.extend(codes.iter().map(|b| code(b) * scale));
        }
    }
    out
}

fn check(state: &Fact, new: &Fact) -> OpResult<Shape> {
    let mismatch = || {
        OpError::mismatch(
            "state i32 [1, past, heads, d / 4 + 1] and rows [1, n, heads, d]",
            state,
            new,
        )
    };
    let ([one, past, heads, w], [new_one, n, new_heads, d]) =
        (state.shape.0.as_slice(), new.shape.0.as_slice())
    else {
        return Err(mismatch());
    };
    let fits = one.is(1) && new_one.is(1) && heads == new_heads && words(d).as_ref() == Some(w);
    if !fits || state.dtype != DType::I32 || !new.dtype.is_float() {
        return Err(mismatch());
    }
    Ok(Shape(vec![1.into(), past.add(n)?, heads.clone(), w.clone()]))
}

impl Op for KvAppendQ8 {
    fn name(&self) -> &str {
        "KvAppendQ8"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let (state, new) = (cx.fact(0)?, cx.fact(1)?);
        let all = check(state, new)?;
        match cx.opt(2) {
            None => Ok(vec![Fact::new(DType::I32, all)]),
            Some(places) => {
                check_places(places, new.shape.0.get(AXIS))?;
                Ok(vec![state.clone()])
            }
        }
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let (state, new) = (operand(inputs, 0)?, operand(inputs, 1)?);
        let fact = |t: &HostTensor| Fact::new(t.dtype(), Shape::fixed(t.shape()));
        let shape = check(&fact(state), &fact(new))?.as_fixed().unwrap_or_default();
        let mut rows = Vec::new();
        let d = new.shape().last().copied().unwrap_or(1).max(1);
        for row in new.to_f32()?.chunks_exact(d) {
            encode(row, &mut rows);
        }
        if let Some(places) = inputs.get(2).copied().flatten() {
            let data = scattered(state, &rows, places, AXIS)?;
            return Ok(vec![HostTensor::from_bytes(DType::I32, state.shape(), &data)?]);
        }
        let data = [state.bytes()?, &rows].concat();
        Ok(vec![HostTensor::from_bytes(DType::I32, &shape, &data)?])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let (state, new) = (cx.shape(0)?, cx.shape(1)?);
        let target = cx.output(0)?;
        if !matches!(target.location, Location::State(_)) {
            return Err(OpError::expected("result", "a state", "an activation"));
        }
        let (Some(d), Some(heads)) = (new.0.last().and_then(Dim::as_const), new.0.get(AXIS + 1)) else {
            return Err(OpError::Unsupported(format!(
                "appending {new} in 8 bits (the row size is not constant)"
            )));
        };
        let rows = product(&new.0[..AXIS + 2])?;
        let (places, live, start) = destination(cx, 2, &state.0[AXIS].mul(heads)?)?;
        let call = Call::new(&KERNEL, ITEMS);
        let call = match ring(cx, &state.0[AXIS], &new.0[AXIS], heads)? {
            Some(rows) if places.is_none() => call.define("RING", rows),
            _ => call,
        };
        let call = call.define("DIM", d).grid(rows.clone(), 1, 1).may_be_padded();
        let args = Args {
            x: cx.input(1)?,
            places,
            live,
            state: target,
            rows,
            start,
            heads: heads.clone(),
        };
        cx.emit(call, args)
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        // Per element: the maximum, a division and a rounding.
        sizes.input_elements(1).saturating_mul(3)
    }

    fn elements_read(&self, input: usize, sizes: &Sizes) -> u64 {
        if input == 0 {
            0
        } else {
            sizes.input_elements(input)
        }
    }
}

pub static DEF: OpDef = OpDef {
    onnx: &[],
    import: never_in_files,
    kernels: &[&KERNEL.kernel],
    cases,
};

fn cases() -> Vec<Case> {
    let past = HostTensor::zeros(DType::I32, &[1, 2, 3, 17]).map(given);
    let places = HostTensor::from_ints(DType::I32, &[3], &[1, -1, 0]).map(given);
    let all = past.map(|past| {
        let append = Case::new(KvAppendQ8, vec![past.clone(), input(&[1, 2, 3, 64])]);
        let rows = |places| Case::new(KvAppendQ8, vec![past, input(&[1, 3, 3, 64]), places]);
        std::iter::once(append).chain(places.map(rows))
    });
    all.into_iter()
        .flatten()
        .map(|c| c.host_only("needs a state; the model tests append on every device"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_within_half_a_step_and_zeros_stay() {
        let row: Vec<f32> = (0..64u8).map(|i| (f32::from(i) - 20.0) / 7.0).collect();
        let mut out = Vec::new();
        encode(&row, &mut out);
        encode(&[0.0; 64], &mut out);
        assert_eq!(out.len(), 2 * 17 * 4);
        let found = decode(&out, 17);
        let step = 43.0 / 7.0 / 127.0;
        for (a, b) in row.iter().zip(&found) {
            assert!((a - b).abs() <= step * 0.5001, "{a} became {b}");
        }
        assert_eq!(found[63], 43.0 / 7.0);
        assert_eq!(found[64..], [0.0; 64]);
    }
}
