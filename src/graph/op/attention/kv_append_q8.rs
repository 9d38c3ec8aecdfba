//! Keys and values in 8 bits (made by the pass `kv_q8`): the form of a cache of half the size,
//! which [`crate::graph::op::kv_append`] writes and [`crate::graph::op::attention`] reads.
//!
//! Such a cache is `i32 [.., heads, d / 4 + 1]`. The row of a head is `d / 4` words with four
//! signed 8-bit values each, the first one in the lowest bits, followed by an `f32` scale: the
//! largest magnitude of the row divided by 127. Values are rounded to nearest, ties to even.

use crate::graph::op::{OpError, OpResult};
use crate::quant::to_bytes;
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::{DType, HostTensor};
use std::borrow::Cow;

/// Work-items per row of a head.
pub(crate) const ITEMS: u32 = 16;

/// True for a cache of this type that holds float rows in 8 bits.
pub(crate) fn is_q8(cache: DType, rows: DType) -> bool {
    cache == DType::I32 && rows.is_float()
}

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
fn decode(data: &[u8], words: usize) -> Vec<f32> {
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

/// Float rows as a cache of this form stores them.
pub(crate) fn encoded(rows: &HostTensor) -> OpResult<HostTensor> {
    let mut shape = rows.shape().to_vec();
    let last = shape.last_mut();
    let last = last.ok_or_else(|| OpError::expected("rows", "rank 4", 0))?;
    let d = std::mem::replace(last, *last / 4 + 1);
    let mut data = Vec::new();
    for row in rows.to_f32()?.chunks_exact(d.max(1)) {
        encode(row, &mut data);
    }
    Ok(HostTensor::from_bytes(DType::I32, &shape, &data)?)
}

/// The fact of [`encoded`] rows.
pub(crate) fn encoded_fact(rows: &Fact) -> OpResult<Fact> {
    let last = rows.shape.0.split_last();
    let words = last.and_then(|(d, before)| Some(Shape([before, &[words(d)?]].concat())));
    let shape = words.ok_or_else(|| OpError::expected("rows", "[.., d] with d a multiple of 4", rows))?;
    Ok(Fact::new(DType::I32, shape))
}

/// Keys or values of a cache as floats, `d` for each head.
pub(crate) fn decoded(cache: &HostTensor, d: usize) -> OpResult<Cow<'_, HostTensor>> {
    if cache.dtype() != DType::I32 {
        return Ok(Cow::Borrowed(cache));
    }
    let mut shape = cache.shape().to_vec();
    let last = shape.last_mut();
    let last = last.ok_or_else(|| OpError::expected("rows", "rank 4", 0))?;
    let words = std::mem::replace(last, d);
    let floats = HostTensor::from_f32(&shape, &decode(cache.bytes()?, words))?;
    Ok(Cow::Owned(floats))
}

/// The shape of keys or values of a cache as floats, for these queries.
pub(crate) fn decoded_shape(cache: &Fact, q: &Fact) -> OpResult<Shape> {
    if cache.dtype != DType::I32 {
        return Ok(cache.shape.clone());
    }
    let (Some(d), Some((w, before))) = (q.shape.0.last(), cache.shape.0.split_last()) else {
        return Err(OpError::mismatch("queries and rows", q, cache));
    };
    if words(d).as_ref() != Some(w) {
        return Err(OpError::mismatch(
            "queries [.., d] and rows i32 [.., d / 4 + 1]",
            q,
            cache,
        ));
    }
    Ok(Shape([before, std::slice::from_ref(d)].concat()))
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
