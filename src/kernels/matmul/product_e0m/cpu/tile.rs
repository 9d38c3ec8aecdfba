//! The product of a tile of quantized rows and a panel of 16 columns.

use super::dot::{Floats, Multiply, dot, rows, words};
use super::layout::STEP;
use super::places::Ahead;
use super::scales::Meaning;
use crate::backend::cpu::simd::Simd;
pub use crate::tensor::PANEL;

/// The most weights whose products are summed in 32 bits: of 8 bits, with 16-bit activations.
pub const SPAN: usize = 256;
/// Weights in a block, most often; and in groups of most nested scales.
const COMMON: usize = 32;
const HALF: usize = 16;

/// A tile and a panel. All pointers are to their starts.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub codes: *const u32,
    /// For one row the words of the panel, and for more what [`super::scales::DecodeScales`] makes
    /// of them.
    pub scales: *const u32,
    pub x: *const u32,
    pub factors: *const f32,
    /// Weights of a column.
    pub k: usize,
    pub group: usize,
    pub block: usize,
    pub meaning: Meaning,
    /// Rows of 16 sums, `stride` floats apart.
    pub out: *mut f32,
    pub stride: usize,
    /// Where the results go in the end.
    pub results: Ahead,
}

/// Multiplies.
///
/// # Safety
/// The processor has the instruction set of the function, and the pointers of the call are valid.
pub type Tile = unsafe fn(&Call);

/// The body of each [`Tile`], for `M` rows and `V` vectors of columns at once.
///
/// # Safety
/// As for [`Tile`].
#[inline(always)]
pub unsafe fn tile<A: Multiply, const BITS: usize, const PLANES: usize, const M: usize, const V: usize>(
    call: &Call,
) {
    for m in 0..M {
        A::S::prefetch(call.results.at.wrapping_add(m * call.results.stride).cast());
    }
    let mut part = *call;
    let columns = V * A::S::LANES;
    for _ in 0..PANEL / columns {
        // SAFETY: `columns` divides the panel.
        unsafe {
            columns_of::<A, BITS, PLANES, M, V>(&part);
            part.codes = part.codes.wrapping_add(columns);
            part.scales = part.scales.wrapping_add(columns);
            part.out = part.out.wrapping_add(columns);
        }
    }
}

/// The first `V` vectors of columns.
#[inline(always)]
unsafe fn columns_of<A: Multiply, const BITS: usize, const PLANES: usize, const M: usize, const V: usize>(
    call: &Call,
) {
    // SAFETY: the pointers stay inside of the panel and the tile.
    unsafe {
        let acc = match call.block {
            COMMON if call.k.is_multiple_of(COMMON) => groups::<A, BITS, PLANES, COMMON, M, V>(call),
            HALF if call.k.is_multiple_of(HALF) => groups::<A, BITS, PLANES, HALF, M, V>(call),
            _ => groups::<A, BITS, PLANES, 0, M, V>(call),
        };
        for (m, acc) in acc.into_iter().enumerate() {
            for (j, acc) in acc.into_iter().enumerate() {
                A::S::store(call.out.add(m * call.stride + j * A::S::LANES), acc);
            }
        }
    }
}

/// Sums over the columns. Blocks have `BLOCK` weights, or any number if it is 0.
#[inline(always)]
unsafe fn groups<
    A: Multiply,
    const BITS: usize,
    const PLANES: usize,
    const BLOCK: usize,
    const M: usize,
    const V: usize,
>(
    call: &Call,
) -> [[Floats<A>; V]; M] {
    let (mut at, mut k) = (At::new(call), call.k);
    // SAFETY: as for the tile.
    unsafe {
        let mut acc = [[A::S::splat(0.0); V]; M];
        while k > 0 {
            let mut group = k.min(call.group);
            k -= group;
            let [unit, rest] = at.scales::<A::S, V>();
            while group > 0 {
                if BLOCK > 0 {
                    group -= BLOCK;
                    // Finishing each row at once takes fewer registers.
                    let dots = at.dot::<A, BITS, PLANES, M, V>(BLOCK);
                    at.add::<A::S, M, V>(&mut acc, dots, unit, Some(rest));
                } else {
                    let block = group.min(call.block);
                    group -= block;
                    at.spans::<A, BITS, PLANES, M, V>(&mut acc, unit, block);
                    at.rest::<A::S, M, V>(&mut acc, rest);
                }
                at.factors = at.factors.add(2 * M);
            }
        }
        acc
    }
}

/// What is multiplied next.
struct At {
    codes: *const u32,
    scales: *const f32,
    x: *const u32,
    factors: *const f32,
}

impl At {
    fn new(call: &Call) -> Self {
        Self {
            codes: call.codes,
            scales: call.scales.cast(),
            x: call.x,
            factors: call.factors,
        }
    }

    /// Distances and weights of integer 0 of the next group.
    #[inline(always)]
    unsafe fn scales<S: Simd, const V: usize>(&mut self) -> [[S::F; V]; 2] {
        unsafe {
            let at = self.scales;
            self.scales = at.add(2 * PANEL);
            [load::<S, V>(at), load::<S, V>(at.add(PANEL))]
        }
    }

    /// Integer sums over `count` weights, a multiple of a step.
    #[inline(always)]
    unsafe fn dot<A: Multiply, const BITS: usize, const PLANES: usize, const M: usize, const V: usize>(
        &mut self,
        count: usize,
    ) -> [[Floats<A>; V]; M] {
        let steps = count / STEP;
        unsafe {
            self.codes = A::opaque(self.codes);
            self.x = A::opaque(self.x);
            // The processor's own prefetchers stop at the end of a page.
            for row in 0..steps * rows(BITS) {
                A::S::prefetch(self.codes.wrapping_add(row * PANEL + 1024).cast());
            }
            let dots = dot::<A, BITS, PLANES, M, V>(self.codes, self.x, steps);
            self.codes = self.codes.add(steps * rows(BITS) * PANEL);
            self.x = self.x.add(steps * words::<A>() * PLANES * M);
            dots
        }
    }

    /// Adds products of a block, of any length.
    #[inline(always)]
    unsafe fn spans<A: Multiply, const BITS: usize, const PLANES: usize, const M: usize, const V: usize>(
        &mut self,
        acc: &mut [[Floats<A>; V]; M],
        unit: [Floats<A>; V],
        mut block: usize,
    ) {
        unsafe {
            while block > 0 {
                let span = block.min(SPAN);
                block -= span;
                if span >= STEP {
                    let dots = self.dot::<A, BITS, PLANES, M, V>(span);
                    self.add::<A::S, M, V>(acc, dots, unit, None);
                }
                if !span.is_multiple_of(STEP) {
                    // Half a step: 4 weights of 8 bits, the last ones of the column.
                    let mut last = [0u32; 2 * PANEL];
                    self.codes
                        .copy_to_nonoverlapping(last.as_mut_ptr(), V * A::S::LANES);
                    let dots = dot::<A, BITS, PLANES, M, V>(last.as_ptr(), self.x, 1);
                    self.add::<A::S, M, V>(acc, dots, unit, None);
                }
            }
        }
    }

    /// Adds products of a block, and those of `rest` and the sums of activations.
    #[inline(always)]
    unsafe fn add<S: Simd, const M: usize, const V: usize>(
        &self,
        acc: &mut [[S::F; V]; M],
        dots: [[S::F; V]; M],
        unit: [S::F; V],
        rest: Option<[S::F; V]>,
    ) {
        for m in 0..M {
            // SAFETY: a tile has `M` scales and `M` sums per block.
            unsafe {
                let scale = S::splat(*self.factors.add(m));
                for j in 0..V {
                    acc[m][j] = S::fma(S::mul(dots[m][j], scale), unit[j], acc[m][j]);
                    if let Some(rest) = rest {
                        acc[m][j] = S::fma(rest[j], S::splat(*self.factors.add(M + m)), acc[m][j]);
                    }
                }
            }
        }
    }

    /// Adds products of `rest` and the sums of activations.
    #[inline(always)]
    unsafe fn rest<S: Simd, const M: usize, const V: usize>(
        &self,
        acc: &mut [[S::F; V]; M],
        rest: [S::F; V],
    ) {
        for (m, acc) in acc.iter_mut().enumerate() {
            // SAFETY: as for `add`.
            unsafe {
                let sum = S::splat(*self.factors.add(M + m));
                for j in 0..V {
                    acc[j] = S::fma(rest[j], sum, acc[j]);
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn load<S: Simd, const V: usize>(at: *const f32) -> [S::F; V] {
    unsafe {
        let mut out = [S::splat(0.0); V];
        for (j, out) in out.iter_mut().enumerate() {
            *out = S::load(at.add(j * S::LANES));
        }
        out
    }
}
