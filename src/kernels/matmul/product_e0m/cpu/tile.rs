//! The product of a tile of quantized rows and a panel of 16 columns.

use super::dot::{Floats, Multiply, dot, rows, words};
use super::layout::STEP;
use super::scales::Meaning;
use crate::backend::cpu::simd::Simd;
pub use crate::tensor::PANEL;

/// The most weights whose products are summed in 32 bits: of 8 bits, with 16-bit activations.
pub const SPAN: usize = 256;
/// Weights in a block, most often.
const COMMON: usize = 32;

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
    let Call {
        mut codes,
        mut scales,
        mut x,
        mut factors,
        mut k,
        ..
    } = *call;
    // SAFETY: the pointers stay inside of the panel and the tile.
    unsafe {
        let mut acc = [[A::S::splat(0.0); V]; M];
        while k > 0 {
            let mut group = k.min(call.group);
            k -= group;
            let at = scales.cast::<f32>();
            scales = scales.add(2 * PANEL);
            let [unit, rest] = [load::<A::S, V>(at), load::<A::S, V>(at.add(PANEL))];
            while group > 0 {
                let block = group.min(call.block);
                group -= block;
                let steps = COMMON / STEP;
                if block == COMMON {
                    // Finishing each row at once takes fewer registers.
                    let dots = dot::<A, BITS, PLANES, M, V>(codes, x, steps);
                    add::<A::S, M, V>(&mut acc, dots, factors, unit, Some(rest));
                    codes = codes.add(steps * rows(BITS) * PANEL);
                    x = x.add(steps * words::<A>() * PLANES * M);
                } else {
                    [codes, x] = spans::<A, BITS, PLANES, M, V>(&mut acc, [codes, x], factors, unit, block);
                    for (m, acc) in acc.iter_mut().enumerate() {
                        let factor = A::S::splat(*factors.add(M + m));
                        for j in 0..V {
                            acc[j] = A::S::fma(rest[j], factor, acc[j]);
                        }
                    }
                }
                factors = factors.add(2 * M);
            }
        }
        for (m, acc) in acc.into_iter().enumerate() {
            for (j, acc) in acc.into_iter().enumerate() {
                A::S::store(call.out.add(m * call.stride + j * A::S::LANES), acc);
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

/// Adds products of a block, of any length.
#[inline(always)]
unsafe fn spans<A: Multiply, const BITS: usize, const PLANES: usize, const M: usize, const V: usize>(
    acc: &mut [[Floats<A>; V]; M],
    [mut codes, mut x]: [*const u32; 2],
    factors: *const f32,
    unit: [Floats<A>; V],
    mut block: usize,
) -> [*const u32; 2] {
    // SAFETY: as for the tile.
    unsafe {
        while block > 0 {
            let span = block.min(SPAN);
            block -= span;
            let steps = span / STEP;
            if steps > 0 {
                let dots = dot::<A, BITS, PLANES, M, V>(codes, x, steps);
                add::<A::S, M, V>(acc, dots, factors, unit, None);
                codes = codes.add(steps * rows(BITS) * PANEL);
                x = x.add(steps * words::<A>() * PLANES * M);
            }
            if !span.is_multiple_of(STEP) {
                // Half a step: 4 weights of 8 bits, the last ones of the column.
                let mut last = [0u32; 2 * PANEL];
                codes.copy_to_nonoverlapping(last.as_mut_ptr(), V * A::S::LANES);
                let dots = dot::<A, BITS, PLANES, M, V>(last.as_ptr(), x, 1);
                add::<A::S, M, V>(acc, dots, factors, unit, None);
            }
        }
        [codes, x]
    }
}

/// Adds products of a block, and those of `rest` and the sums of activations.
#[inline(always)]
unsafe fn add<S: Simd, const M: usize, const V: usize>(
    acc: &mut [[S::F; V]; M],
    dots: [[S::F; V]; M],
    factors: *const f32,
    unit: [S::F; V],
    rest: Option<[S::F; V]>,
) {
    for m in 0..M {
        // SAFETY: a tile has `M` scales and `M` sums per block.
        unsafe {
            let scale = S::splat(*factors.add(m));
            for j in 0..V {
                acc[m][j] = S::fma(S::mul(dots[m][j], scale), unit[j], acc[m][j]);
                if let Some(rest) = rest {
                    acc[m][j] = S::fma(rest[j], S::splat(*factors.add(M + m)), acc[m][j]);
                }
            }
        }
    }
}
