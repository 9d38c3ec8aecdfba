//! Matrices quantized with AWQ, as `AutoAWQ` stores them in version `gemm`: 4 bits,
//! `w = scale * (q - zero)`.
//!
//! For K inputs, N outputs and groups of g inputs: `qweight`, `i32[K][N / 8]`; `qzeros`,
//! `i32[ceil(K / g)][N / 8]`; `scales`, `f16[ceil(K / g)][N]`. The nibbles of a word, lowest first,
//! are columns 0, 2, 4, 6, 1, 3, 5, 7 of a block of eight.

use super::safetensors::Tensor;
use super::store::{Stored, decoded};
use transformer_lite::unstable::error::Result;
use transformer_lite::unstable::quant::{Bits, Format, Grid, GridColumn, Grids};

/// AWQ settings of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awq {
    /// Inputs per group; `None` for one group per column.
    pub group: Option<usize>,
}

/// Bit shift of column j in a block of eight.
const SHIFTS: [u32; 8] = [0, 16, 4, 20, 8, 24, 12, 28];

/// The nibble of column `j` in row `row`, with `words` words per row.
fn nibble(tensor: Tensor<'_>, row: usize, words: usize, j: usize) -> u8 {
    let [low, ..] = (tensor.word(row * words + j / 8) >> SHIFTS[j % 8]).to_le_bytes();
    low & 15
}

impl Awq {
    /// A matrix of `outputs` x `inputs`. An error if a tensor has another shape or type.
    pub fn stored<'a>(
        &self,
        [qweight, qzeros, scales]: [Tensor<'a>; 3],
        inputs: usize,
        outputs: usize,
    ) -> Result<Stored<'a>> {
        let (k, n, words) = (inputs, outputs, outputs / 8);
        let group = self.group.unwrap_or(k);
        let groups = k.div_ceil(group);
        if !n.is_multiple_of(8) {
            return Err(qweight.bad(format!(
                "{n} columns of 4 bits do not fill whole words; expected a multiple of 8"
            )));
        }
        qweight.expect("I32", &[k, words])?;
        qzeros.expect("I32", &[groups, words])?;
        let steps = scales.finite(&[groups, n])?;
        let packed_group = self.group.unwrap_or_else(|| k.next_multiple_of(8));
        let grids = || {
            let steps = steps.clone();
            Grids {
                format: Format::new(Bits::Four, packed_group),
                k,
                n,
                column: Box::new(move |j, out: &mut GridColumn| {
                    out.grids.extend((0..groups).map(|g| {
                        let scale = steps.get(g * n + j).copied().unwrap_or(f32::NAN);
                        Grid::around(f64::from(scale), f64::from(nibble(qzeros, g, words, j)))
                    }));
                    out.codes.extend((0..k).map(|i| nibble(qweight, i, words, j)));
                }),
            }
        };
        Ok(Stored {
            rows: decoded(grids(), None),
            grids: Some(grids()),
            order: None,
            kind: "4-bit AWQ".to_owned(),
            bytes: [qweight, qzeros, scales]
                .iter()
                .map(|t| t.bytes.len() as u64)
                .sum(),
        })
    }
}
