//! Where results go, and how a dispatch is divided.

use crate::backend::cpu::args::Store;
use std::ops::Range;

/// Where results go: all in rows of `stride` columns, or, with `ends`, in three results with the
/// columns up to the first end, up to the second, and the rest (`cl/common/parts`).
#[derive(Clone, Copy, Debug)]
pub struct Places {
    stride: usize,
    ends: Option<Ends>,
}

#[derive(Clone, Copy, Debug)]
pub struct Ends {
    ends: [usize; 2],
    /// The first element of the second and the third result.
    starts: [usize; 2],
}

/// Results of some columns: `values`, and those of a second matrix, in rows `width` floats apart.
pub struct Results<'a> {
    pub values: &'a mut [f32],
    pub second: Option<&'a mut [f32]>,
    pub width: usize,
}

/// Memory to prefetch: results in rows `stride` floats apart. It may be of no object.
#[derive(Clone, Copy, Debug)]
pub struct Ahead {
    pub at: *const f32,
    pub stride: usize,
}

impl Places {
    /// Rows of `stride` columns; with `parts`, three results with these ends and starts.
    pub fn new(stride: usize, parts: bool, ends: [usize; 2], starts: [usize; 2]) -> Self {
        Self {
            stride,
            ends: parts.then_some(Ends { ends, starts }),
        }
    }

    /// The run of columns from `column` on that are neighbours: its length (at most `count`), and
    /// the place of its first column in a row.
    fn run(&self, column: usize, count: usize, row: usize) -> (usize, usize) {
        let Some(Ends {
            ends: [first, second],
            starts,
        }) = self.ends
        else {
            return (count, row * self.stride + column);
        };
        let (from, end, start) = if column < first {
            (0, first, 0)
        } else if column < second {
            (first, second, starts[0])
        } else {
            (second, self.stride.max(column + count), starts[1])
        };
        let columns = if column < second {
            end - from
        } else {
            self.stride.saturating_sub(from)
        };
        (count.min(end - column), start + row * columns + column - from)
    }

    /// Where the results of column `column` are, from row `row` on.
    pub fn ahead(&self, store: &Store<'_>, row: usize, column: usize) -> Ahead {
        let [first, next] = [row, row + 1].map(|row| self.run(column, 1, row).1);
        Ahead {
            at: store.y.as_ptr::<f32>().wrapping_add(first),
            stride: next - first,
        }
    }

    /// Stores rows `rows` of columns `columns`.
    ///
    /// # Safety
    /// The caller owns these results.
    pub unsafe fn store(
        &self,
        store: &Store<'_>,
        results: Results<'_>,
        rows: Range<usize>,
        columns: Range<usize>,
    ) {
        let Results {
            values,
            mut second,
            width,
        } = results;
        for (i, row) in rows.enumerate() {
            let mut column = columns.start;
            while column < columns.end {
                let (count, first) = self.run(column, columns.end - column, row);
                let at = i * width + column - columns.start;
                let values = &mut values[at..at + count];
                let second = second.as_mut().map(|s| &s[at..at + count]);
                unsafe {
                    match store.direct(first..first + count) {
                        Some(y) if second.is_none() => y.copy_from_slice(values),
                        _ => store.put(first, values, second),
                    }
                }
                column += count;
            }
        }
    }
}

/// A dispatch in pieces: parts of the panels times parts of the tiles of rows.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    pub panels: usize,
    pub tiles: usize,
}

impl Grid {
    /// Parts of the tiles, if panels are few.
    fn row_parts(self) -> usize {
        const MANY: usize = 16;
        (MANY / self.panels.max(1)).min(self.tiles / 4).max(1)
    }

    /// Pieces for this many threads; `bytes` of weights are read and `products` computed.
    pub fn pieces(self, threads: usize, bytes: usize, products: usize) -> usize {
        /// Less is done by one thread.
        const LEAST_BYTES: usize = 50_000;
        /// About 20 microseconds.
        const LEAST_PRODUCTS: usize = 1 << 21;
        if threads <= 1 || self.panels == 0 {
            return 1;
        }
        if self.tiles <= 1 {
            return if bytes < LEAST_BYTES {
                1
            } else {
                threads.min(self.panels)
            };
        }
        let wanted = (products / LEAST_PRODUCTS).clamp(1, 8 * threads);
        let rows = self.row_parts().min(wanted);
        if rows < self.row_parts() {
            return wanted.min(self.panels);
        }
        rows * (wanted / rows).clamp(1, self.panels)
    }

    /// The panels and tiles of a piece.
    pub fn piece(self, piece: usize, pieces: usize) -> (Range<usize>, Range<usize>) {
        let rows = match self.row_parts() {
            rows if pieces.is_multiple_of(rows) => rows,
            _ => 1,
        };
        let part = |count, i, parts| crate::backend::cpu::args::part(count, 1, i, parts);
        (
            part(self.panels, piece / rows, pieces / rows),
            part(self.tiles, piece % rows, rows),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_each_tile_once() {
        for panels in [1, 2, 3, 8, 17, 96] {
            for tiles in [1, 3, 8, 64] {
                let grid = Grid { panels, tiles };
                for threads in [1, 2, 5] {
                    for products in [0, 1 << 22, 1 << 25, 1 << 30] {
                        let pieces = grid.pieces(threads, products / 2, products);
                        assert!(pieces >= 1 && pieces <= 8 * threads, "{grid:?}: {pieces}");
                        let mut seen = vec![0; panels * tiles];
                        for piece in 0..pieces {
                            let (p, t) = grid.piece(piece, pieces);
                            p.for_each(|p| t.clone().for_each(|t| seen[p * tiles + t] += 1));
                        }
                        assert!(seen.iter().all(|s| *s == 1), "{grid:?} in {pieces}");
                    }
                }
            }
        }
    }
}
