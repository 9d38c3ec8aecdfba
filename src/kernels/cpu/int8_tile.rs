//! Tiles of byte matmuls: some rows of activations by one, two or four panels of weights.

use crate::backend::cpu::bytes::{Arithmetic, Bytes, Job, Limits, MOST_BYTES, PANEL};
use std::marker::PhantomData;

/// Rows of activations, and up to four panels of weights.
#[derive(Clone, Copy)]
pub struct Tiles {
    /// Words of the first row, as `bytes::prepare` makes them.
    pub x: *const u32,
    /// Words from one row to the next.
    pub stride: usize,
    pub rows: usize,
    /// Words of a row, not counting widening by `Bytes::STEP`.
    pub depth: usize,
    /// The first panel: for each word of a row, one word for each of 16 columns.
    pub w: *const i32,
    /// Words from one panel to the next.
    pub panel: usize,
    pub scales: Scales,
    /// Initial sums of rows, added to those of the columns; null if all are 0.
    pub row_start: *const i32,
    /// The result of the first row and the first column of the first panel.
    pub y: *mut u8,
    /// Results from one row to the next.
    pub pitch: usize,
    /// The first and the end of the columns that are stored; multiples of 4.
    pub columns: [usize; 2],
    pub limits: Limits,
}

/// Initial sums and factors of the columns of panels.
#[derive(Clone, Copy)]
pub struct Scales {
    /// Initial sums.
    pub start: *const i32,
    /// Factors, as `Arithmetic::load` reads them.
    pub first: *const u32,
    pub second: *const u32,
    /// Whether any factor has a left shift.
    pub is_left: bool,
}

impl Scales {
    /// The scales from column `i` on.
    pub fn from(self, i: usize) -> Self {
        Self {
            start: self.start.wrapping_add(i),
            first: self.first.wrapping_add(i),
            second: self.second.wrapping_add(i),
            ..self
        }
    }
}

impl Tiles {
    /// Computes all rows.
    /// # Safety
    /// As for [`Bytes`]. The rows exist, and so do 16 columns of weights and scales for each of
    /// `panels` panels; the caller owns the results. `panels` is 1, or 2 or 4 if vectors have 16
    /// words.
    #[inline(always)]
    pub unsafe fn run<S: Bytes, A: Arithmetic>(self, panels: usize) {
        if self.rows == 0 {
            return;
        }
        // SAFETY: a vector of 16 words spans the columns of a panel.
        unsafe {
            match (S::LANES, panels) {
                (16, 4) => by_height::<S, A, 4>(self),
                (16, 2) => by_height::<S, A, 2>(self),
                (16, _) => by_height::<S, A, 1>(self),
                (8, _) => by_height::<S, A, 2>(self),
                _ => by_height::<S, A, 4>(self),
            }
        }
    }
}

/// Heights of tiles.
const HEIGHTS: [usize; 8] = [1, 2, 3, 4, 6, 8, 10, 12];

/// The height of tiles, at most `most`, that computes `rows` rows with the least work. The last
/// tile overlaps the previous one.
const fn height(rows: usize, most: usize) -> usize {
    let (mut best, mut least, mut i) = (1, usize::MAX, 0);
    while i < HEIGHTS.len() {
        let h = HEIGHTS[i];
        // A tile also loads weights.
        let work = rows.div_ceil(h) * (2 * h + 3);
        if h <= rows && h <= most && work <= least {
            (best, least) = (h, work);
        }
        i += 1;
    }
    best
}

/// The largest height of tiles of `N` vectors.
const fn most<S: Bytes, const N: usize>() -> usize {
    if N > 2 && S::LANES == PANEL {
        S::ROWS / 2
    } else {
        S::ROWS
    }
}

/// # Safety
/// As for [`Tiles::run`].
#[inline(always)]
unsafe fn by_height<S: Bytes, A: Arithmetic, const N: usize>(tiles: Tiles) {
    macro_rules! call {
        ($($m:literal)*) => {
            match height(tiles.rows, most::<S, N>()) {
                $($m if $m <= most::<S, N>() => unsafe { S::call(Height::<A, $m, N>(tiles, PhantomData)) },)*
                _ => unsafe { S::call(Height::<A, 1, N>(tiles, PhantomData)) },
            }
        };
    }
    call!(2 3 4 6 8 10 12);
}

/// Tiles of `M` rows and `N` vectors of columns.
struct Height<A, const M: usize, const N: usize>(Tiles, PhantomData<A>);

impl<A: Arithmetic, const M: usize, const N: usize> Job for Height<A, M, N> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Bytes>(self) {
        // Other combinations are never called.
        if M > most::<S, N>() || S::LANES * N < PANEL {
            return;
        }
        let mut row = 0;
        while row < self.0.rows {
            // SAFETY: all `M` rows exist.
            unsafe { tile::<S, A, M, N>(&self.0, row.min(self.0.rows - M)) };
            row += M;
        }
    }
}

/// # Safety
/// As for [`Tiles::run`]; there are `M` rows from `row` on.
#[inline(always)]
unsafe fn tile<S: Bytes, A: Arithmetic, const M: usize, const N: usize>(tiles: &Tiles, row: usize) {
    unsafe {
        let mut start = [S::splat(0); N];
        for (j, v) in start.iter_mut().enumerate() {
            *v = S::load(tiles.scales.start.add(j * S::LANES));
        }
        let mut sums = [start; M];
        if !tiles.row_start.is_null() {
            for (m, sums) in sums.iter_mut().enumerate() {
                let own = S::splat(*tiles.row_start.add(row + m));
                for v in sums {
                    *v = S::add(*v, own);
                }
            }
        }
        let stride = tiles.stride;
        let mut x = tiles.x.add(row * stride);
        let mut w = tiles.w;
        for _ in 0..tiles.depth {
            let mut weights = [S::weights(S::splat(0)); N];
            for (j, weights) in weights.iter_mut().enumerate() {
                let (panel, column) = (j * S::LANES / PANEL, j * S::LANES % PANEL);
                *weights = S::weights(S::load(w.add(panel * tiles.panel + column)));
            }
            // Four rows are addressed with one base register and multiples of the stride.
            let fours = [x, x.wrapping_add(4 * stride), x.wrapping_add(8 * stride)];
            for m in 0..M {
                let v = S::broadcast(fours[m / 4].add(m % 4 * stride));
                for j in 0..N {
                    sums[m][j] = S::dot(sums[m][j], weights[j], v);
                }
            }
            x = x.add(S::STEP);
            w = w.add(PANEL);
        }
        finish::<S, A, M, N>(tiles, row, sums);
    }
}

/// Scales the sums of `M` rows from `row` on and stores the results.
/// # Safety
/// As for [`tile`].
#[inline(always)]
unsafe fn finish<S: Bytes, A: Arithmetic, const M: usize, const N: usize>(
    tiles: &Tiles,
    row: usize,
    sums: [[S::I; N]; M],
) {
    let Scales {
        first,
        second,
        is_left,
        ..
    } = tiles.scales;
    unsafe {
        let limits = tiles.limits.vectors::<S>();
        let mut factors = [A::load::<S>(first, second); N];
        for (j, factors) in factors.iter_mut().enumerate() {
            *factors = A::load::<S>(first.add(j * S::LANES), second.add(j * S::LANES));
        }
        let mut scaled = sums;
        if is_left {
            for row in &mut scaled {
                for (v, factors) in row.iter_mut().zip(factors) {
                    *v = A::raised::<S>(*v, factors);
                }
            }
        }
        for row in &mut scaled {
            for (v, factors) in row.iter_mut().zip(factors) {
                *v = A::apply::<S>(*v, factors);
            }
        }
        let is_whole = tiles.columns[0] == 0 && tiles.columns[1] == N * S::LANES;
        let rows = 4 / N;
        let y = tiles.y.wrapping_add(row * tiles.pitch);
        if is_whole {
            for i in 0..M.div_ceil(rows) {
                let bytes = four::<S, M, N>(&scaled, i * rows, &limits);
                let y = y.wrapping_add(i * rows * tiles.pitch);
                if N * S::LANES == 4 * PANEL {
                    S::store_bytes(y, bytes);
                    continue;
                }
                let of_row = N * S::LANES / PANEL;
                for block in 0..S::LANES / 4 {
                    if i * rows + block / of_row < M {
                        let y = y.wrapping_add(block / of_row * tiles.pitch + block % of_row * PANEL);
                        S::store_block(y, bytes, block);
                    }
                }
            }
        } else {
            store_part::<S, M, N>(tiles, y, &scaled, &limits);
        }
    }
}

/// The bytes of four vectors of scaled sums, from row `m` on.
/// # Safety
/// As for [`Bytes`].
#[inline(always)]
unsafe fn four<S: Bytes, const M: usize, const N: usize>(
    scaled: &[[S::I; N]; M],
    m: usize,
    limits: &[S::I; 3],
) -> S::B {
    let mut four = [scaled[m][0]; 4];
    for (i, v) in four.iter_mut().enumerate() {
        *v = scaled[(m + i / N).min(M - 1)][i % N];
    }
    unsafe { S::in_order(S::narrow(four, limits)) }
}

/// Stores only the columns that `Tiles::columns` selects.
/// # Safety
/// As for [`tile`]; `y` is the first result of the first row.
#[inline(always)]
unsafe fn store_part<S: Bytes, const M: usize, const N: usize>(
    tiles: &Tiles,
    y: *mut u8,
    scaled: &[[S::I; N]; M],
    limits: &[S::I; 3],
) {
    let (rows, of_row) = (4 / N, N * S::LANES / PANEL);
    for i in 0..M.div_ceil(rows) {
        unsafe {
            let bytes = four::<S, M, N>(scaled, i * rows, limits);
            let mut part = [0u8; MOST_BYTES];
            S::store_bytes(part.as_mut_ptr(), bytes);
            for r in 0..rows.min(M - i * rows) {
                let y = y.wrapping_add((i * rows + r) * tiles.pitch);
                let part = part.as_ptr().add(r * of_row * PANEL);
                let [from, to] = tiles.columns;
                match (from, to) {
                    (0, 8) => y.cast::<[u8; 8]>().write(part.cast::<[u8; 8]>().read()),
                    _ => y.add(from).copy_from_nonoverlapping(part.add(from), to - from),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_divided_evenly() {
        assert_eq!([1, 5, 7, 12, 49].map(|rows| height(rows, 12)), [1, 3, 4, 12, 10]);
        for rows in 1..200 {
            for most in [2, 4, 6, 12] {
                assert!(height(rows, most) <= most.min(rows));
            }
        }
    }
}
