//! Matrices quantized with GPTQ, as `AutoGPTQ` and `GPTQModel` store them:
//! `w = scale * (q - zero)`.
//!
//! For K inputs, N outputs, groups of g inputs and b bits (2, 3, 4 or 8): `qweight`,
//! `i32[K * b / 32][N]`, each column a bit stream, lowest bits of a word first; `qzeros`,
//! `i32[ceil(K / g)][N * b / 32]`, each row such a stream; `scales`, `f16[ceil(K / g)][N]`;
//! `g_idx`, `i32[K]`, the group of each input, which with act-order differs from its index divided
//! by g. The format `gptq` stores zero points minus 1, `gptq_v2` unchanged.

use super::safetensors::Tensor;
use super::store::{Stored, decoded};
use transformer_lite::unstable::error::Result;
use transformer_lite::unstable::quant::{Bits, Format, Grid, GridColumn, Grids, by_group};

/// GPTQ settings of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gptq {
    /// Bits per weight: 2, 3, 4 or 8.
    pub bits: Bits,
    /// Inputs per group; `None` for one group per column.
    pub group: Option<usize>,
    /// True if zero points are stored unchanged.
    pub plain_zeros: bool,
}

/// The tensors of a matrix.
#[derive(Clone, Copy)]
pub struct Parts<'a> {
    pub qweight: Tensor<'a>,
    pub qzeros: Tensor<'a>,
    pub scales: Tensor<'a>,
    /// Group of each input.
    pub g_idx: Option<Tensor<'a>>,
}

/// Value `i` of a bit stream with the words `word(0)`, `word(1)`, ...
fn value(bits: Bits, i: usize, word: impl Fn(usize) -> u32) -> u8 {
    let at = i * bits.count() as usize;
    let (w, shift) = (at / 32, at % 32);
    let mut both = u64::from(word(w));
    if shift + bits.count() as usize > 32 {
        both |= u64::from(word(w + 1)) << 32;
    }
    let [low, ..] = (both >> shift).to_le_bytes();
    low & bits.top()
}

impl Gptq {
    /// A matrix of `outputs` x `inputs`. An error if a tensor has another shape or type, or if
    /// groups differ in size.
    pub fn stored<'a>(&self, parts: Parts<'a>, inputs: usize, outputs: usize) -> Result<Stored<'a>> {
        let Parts {
            qweight,
            qzeros,
            scales,
            g_idx,
        } = parts;
        let (k, n, bits) = (inputs, outputs, self.bits);
        let words = |count: usize| {
            let all = count
                .checked_mul(bits.count() as usize)
                .filter(|b| b.is_multiple_of(32));
            all.map(|b| b / 32).ok_or_else(|| {
                let bits = bits.count();
                qweight.bad(format!(
                    "a {k} x {n} matrix of {bits} bits does not fill whole words"
                ))
            })
        };
        let group = self.group.unwrap_or(k);
        let groups = k.div_ceil(group);
        let (rows, zero_words) = (words(k)?, words(n)?);
        qweight.expect("I32", &[rows, n])?;
        qzeros.expect("I32", &[groups, zero_words])?;
        let steps = scales.finite(&[groups, n])?;
        let order = match g_idx {
            Some(g_idx) => {
                g_idx.expect("I32", &[k])?;
                let of = |i: usize| g_idx.word(i) as usize;
                by_group(k, group, of).map_err(|(g, found, wanted)| {
                    g_idx.bad(format!("expected {wanted} inputs in group {g}, found {found}"))
                })?
            }
            None => None,
        };
        // Rounded up: an E0M group is a multiple of 8 weights and may be longer than a column.
        let packed_group = self.group.unwrap_or_else(|| k.next_multiple_of(8));
        let plain_zeros = self.plain_zeros;
        let grids = || {
            let (steps, order) = (steps.clone(), order.clone());
            let zero = move |g: usize, j: usize| {
                let stored = value(bits, j, |w| qzeros.word(g * zero_words + w));
                match (plain_zeros, bits) {
                    (true, _) => stored,
                    // As the tools that write these files read them.
                    (false, Bits::Three) => stored + 1,
                    (false, _) => stored.wrapping_add(1) & bits.top(),
                }
            };
            Grids {
                format: Format::new(bits, packed_group),
                k,
                n,
                column: Box::new(move |j, out: &mut GridColumn| {
                    out.grids.extend((0..groups).map(|g| {
                        let scale = steps.get(g * n + j).copied().unwrap_or(f32::NAN);
                        Grid::around(f64::from(scale), f64::from(zero(g, j)))
                    }));
                    let code = |i: usize| value(bits, i, |w| qweight.word(w * n + j));
                    match &order {
                        Some(order) => out.codes.extend(order.iter().map(|i| code(*i))),
                        None => out.codes.extend((0..k).map(code)),
                    }
                }),
            }
        };
        let all = [Some(qweight), Some(qzeros), Some(scales), g_idx];
        Ok(Stored {
            rows: decoded(grids(), order.clone()),
            grids: Some(grids()),
            order,
            kind: format!("{}-bit GPTQ", bits.count()),
            bytes: all.iter().flatten().map(|t| t.bytes.len() as u64).sum(),
        })
    }
}
