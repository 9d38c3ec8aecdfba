//! The memory of quantized activations, which the kernels `quantize_activations` and `product_e0m`
//! share. Rows are divided into tiles. A tile holds, for each 8 activations of its rows, a step:
//! `2 * planes` words per row. Its scales are `[block][2][height]` floats: the scale of a block and
//! the scale times the sum of its integers.

use crate::backend::cpu::isa::Isa;

/// Activations per step.
pub const STEP: usize = 8;

/// What the words of a step hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Words {
    /// `[plane][2][height]`: bytes in the order of the weights in a word.
    Bytes,
    /// `[plane][height / 2][2 rows][2]`, the operands of `smmla`.
    RowPairs,
    /// `[4][height]`: two signed 16-bit integers each, in order.
    Int16,
}

/// Tiles of quantized rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub words: Words,
    pub planes: usize,
    /// Rows in a tile.
    pub height: usize,
}

/// The largest tile of a form.
const fn most_rows(isa: Isa) -> usize {
    match isa {
        Isa::Portable => 2,
        Isa::Neon | Isa::NeonDot | Isa::NeonI8mm => 4,
        Isa::Avx2 | Isa::AvxVnni => 6,
        Isa::Avx512Vnni => 12,
    }
}

impl Layout {
    /// The layout of `rows` rows.
    pub fn new(isa: Isa, planes: usize, rows: usize) -> Self {
        let rows = rows.max(1);
        let height = rows.div_ceil(rows.div_ceil(most_rows(isa)));
        let words = match isa {
            Isa::Portable | Isa::Avx2 | Isa::Neon if planes == 2 => Words::Int16,
            Isa::NeonI8mm if height > 1 => Words::RowPairs,
            _ => Words::Bytes,
        };
        // Not all of the large heights have a function.
        let even = words == Words::RowPairs || height > 6;
        let height = if even { height.next_multiple_of(2) } else { height };
        Self {
            words,
            planes,
            height,
        }
    }

    pub fn tiles(self, rows: usize) -> usize {
        rows.div_ceil(self.height)
    }

    /// Words of a step of a tile.
    pub fn step(self) -> usize {
        2 * self.planes * self.height
    }

    /// Words of a tile.
    pub fn tile(self, k: usize) -> usize {
        k.div_ceil(STEP) * self.step()
    }

    /// Floats of a tile's scales.
    pub fn factors(self, k: usize, block: usize) -> usize {
        k.div_ceil(block) * 2 * self.height
    }

    /// The place in a step of word `word` of a plane (of all four words of `Words::Int16`).
    pub fn place(self, plane: usize, word: usize, row: usize) -> usize {
        match self.words {
            Words::Bytes | Words::Int16 => (plane * 2 + word) * self.height + row,
            Words::RowPairs => plane * 2 * self.height + row / 2 * 4 + row % 2 * 2 + word,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_rows_within_the_memory() {
        for isa in Isa::ALL {
            for rows in 1..100 {
                for planes in [1, 2] {
                    let l = Layout::new(isa, planes, rows);
                    let padded = l.tiles(rows) * l.height;
                    assert!(
                        padded >= rows && padded < rows + 16,
                        "{isa:?}, {rows} rows: {l:?}"
                    );
                    assert!(rows > 1 || l.height == 1, "{isa:?}: {l:?}");
                    let words = if l.words == Words::Int16 { 4 } else { 2 };
                    let mut seen = vec![false; l.step()];
                    for plane in 0..if words == 4 { 1 } else { planes } {
                        for word in 0..words {
                            for row in 0..l.height {
                                assert!(
                                    !std::mem::replace(&mut seen[l.place(plane, word, row)], true),
                                    "{l:?}"
                                );
                            }
                        }
                    }
                    assert!(seen.iter().all(|s| *s), "{l:?}");
                }
            }
        }
    }
}
