//! The product of a tile of quantized rows and a panel of 16 columns.

use super::dot::{Floats, Multiply, dot, rows, words};
use super::layout::STEP;
use super::words::Words;
use crate::backend::cpu::simd::{Job, Simd};
pub use crate::tensor::PANEL;
use half::f16;

/// The most weights whose products are summed in 32 bits: of 8 bits, with 16-bit activations.
pub const SPAN: usize = 256;
/// Weights in a block, most often.
const COMMON: usize = 32;

/// A tile, a panel, and the part of K that is multiplied. All pointers are to its start.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub codes: *const u32,
    /// For one row 16 words per group, and for more what [`DecodeScales`] makes of them.
    pub scales: *const u32,
    pub x: *const u32,
    pub factors: *const f32,
    /// Weights of a column.
    pub k: usize,
    pub group: usize,
    pub block: usize,
    /// The distance of levels, and the level of an integer 0.
    pub unit: f32,
    pub level: f32,
    /// Rows of 16 sums, `stride` floats apart.
    pub out: *mut f32,
    pub stride: usize,
    /// Whether `out` holds the sums of the weights before.
    pub resume: bool,
}

/// Decodes scales and biases of a panel: for each group 16 distances of levels, and 16 values of an
/// integer 0. The same operations as a tile of one row does.
pub struct DecodeScales<'a> {
    pub scales: &'a [u32],
    pub unit: f32,
    pub level: f32,
    pub out: &'a mut [f32],
}

impl Job for DecodeScales<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let groups = self.scales.as_chunks::<PANEL>().0;
        for (words, out) in groups.iter().zip(self.out.as_chunks_mut::<{ 2 * PANEL }>().0) {
            let (mut scale, mut bias) = ([f16::ZERO; PANEL], [f16::ZERO; PANEL]);
            for (i, word) in words.iter().enumerate() {
                scale[i] = f16::from_bits(*word as u16);
                bias[i] = f16::from_bits((word >> 16) as u16);
            }
            for i in (0..PANEL).step_by(S::LANES) {
                // SAFETY: whole vectors of arrays.
                unsafe {
                    let scale = S::load_f16(scale.as_ptr().add(i));
                    let bias = S::load_f16(bias.as_ptr().add(i));
                    let rest = S::mul(scale, S::sub(S::splat(self.level), bias));
                    S::store(out.as_mut_ptr().add(i), S::mul(scale, S::splat(self.unit)));
                    S::store(out.as_mut_ptr().add(PANEL + i), rest);
                }
            }
        }
    }
}

/// Multiplies and adds to the sums.
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
        if call.resume {
            for (m, acc) in acc.iter_mut().enumerate() {
                *acc = load::<A::S, V>(call.out.add(m * call.stride));
            }
        }
        while k > 0 {
            let mut group = k.min(call.group);
            k -= group;
            let [unit, rest] = if M == 1 {
                let at = scales;
                scales = scales.add(PANEL);
                decode::<A::S, V>(at, call.unit, call.level)
            } else {
                let at = scales.cast::<f32>();
                scales = scales.add(2 * PANEL);
                [load::<A::S, V>(at), load::<A::S, V>(at.add(PANEL))]
            };
            while group > 0 {
                let block = group.min(call.block);
                group -= block;
                let steps = COMMON / STEP;
                if block == COMMON {
                    // Finishing each row at once takes fewer registers; for one row it does not
                    // matter.
                    let dots = dot::<A, BITS, PLANES, M, V>(codes, x, steps);
                    add::<A::S, M, V>(&mut acc, dots, factors, unit, (M > 1).then_some(rest));
                    codes = codes.add(steps * rows(BITS) * PANEL);
                    x = x.add(steps * words::<A>() * PLANES * M);
                } else {
                    [codes, x] = spans::<A, BITS, PLANES, M, V>(&mut acc, [codes, x], factors, unit, block);
                }
                if M == 1 || block != COMMON {
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

/// What [`DecodeScales`] makes of the scales and biases of a group.
#[inline(always)]
unsafe fn decode<S: Words, const V: usize>(at: *const u32, unit: f32, level: f32) -> [[S::F; V]; 2] {
    unsafe {
        let (mut units, mut rest) = ([S::splat(0.0); V], [S::splat(0.0); V]);
        for j in 0..V {
            let pair = S::words(at.add(j * S::LANES));
            let scale = S::halves(pair);
            let bias = S::halves(S::right(pair, 16));
            units[j] = S::mul(scale, S::splat(unit));
            rest[j] = S::mul(scale, S::sub(S::splat(level), bias));
        }
        [units, rest]
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
