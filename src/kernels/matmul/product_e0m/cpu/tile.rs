//! The product of a tile of quantized rows and a panel of 16 columns.

use super::layout::STEP;
use crate::backend::cpu::simd::{Job, Simd};
pub use crate::tensor::PANEL;
use half::f16;

/// The most weights whose products are summed in 32 bits: of 8 bits, with 16-bit activations.
const SPAN: usize = 256;
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

/// Vectors of `COLUMNS` columns and dot products of a form, for `M` rows.
///
/// All functions are safe to call only where the processor has the instruction set.
#[allow(clippy::missing_safety_doc, reason = "the trait states it")]
pub trait Dot<const M: usize> {
    /// `COLUMNS` floats.
    type F: Copy;
    /// Columns at once: 16 or 8.
    const COLUMNS: usize;
    /// Words of a step of a panel, and of a row of a tile.
    const CODES: usize;
    const WORDS: usize;

    unsafe fn splat(v: f32) -> Self::F;
    unsafe fn load(at: *const f32) -> Self::F;
    unsafe fn store(at: *mut f32, v: Self::F);
    /// The low and the high halves of words.
    unsafe fn halves(at: *const u32) -> [Self::F; 2];
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// Sums of integer products over `steps` steps, as floats. `steps` is 1 to `SPAN / STEP`.
    unsafe fn dot(codes: *const u32, x: *const u32, steps: usize) -> [Self::F; M];
}

/// The body of each [`Tile`].
///
/// # Safety
/// As for [`Tile`].
#[inline(always)]
pub unsafe fn tile<D: Dot<M>, const M: usize>(call: &Call) {
    let mut part = *call;
    for _ in 0..PANEL / D::COLUMNS {
        // SAFETY: by the contract, of columns of the panel.
        unsafe {
            columns::<D, M>(&part);
            part.codes = part.codes.wrapping_add(D::COLUMNS);
            part.scales = part.scales.wrapping_add(D::COLUMNS);
            part.out = part.out.wrapping_add(D::COLUMNS);
        }
    }
}

/// The first `COLUMNS` columns.
#[inline(always)]
unsafe fn columns<D: Dot<M>, const M: usize>(call: &Call) {
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
        let mut acc = [D::splat(0.0); M];
        if call.resume {
            for (m, acc) in acc.iter_mut().enumerate() {
                *acc = D::load(call.out.add(m * call.stride));
            }
        }
        while k > 0 {
            let mut group = k.min(call.group);
            k -= group;
            let [unit, rest] = if M == 1 {
                let [scale, bias] = D::halves(scales);
                scales = scales.add(PANEL);
                [
                    D::mul(scale, D::splat(call.unit)),
                    D::mul(scale, D::sub(D::splat(call.level), bias)),
                ]
            } else {
                let at = scales.cast::<f32>();
                scales = scales.add(2 * PANEL);
                [D::load(at), D::load(at.add(PANEL))]
            };
            while group > 0 {
                let block = group.min(call.block);
                group -= block;
                if block == COMMON {
                    let dots = D::dot(codes, x, COMMON / STEP);
                    add::<D, M>(&mut acc, dots, factors, unit);
                } else {
                    spans::<D, M>(&mut acc, [codes, x], factors, unit, block);
                }
                for (m, acc) in acc.iter_mut().enumerate() {
                    *acc = D::fma(rest, D::splat(*factors.add(M + m)), *acc);
                }
                codes = codes.add(block / STEP * D::CODES);
                x = x.add(block / STEP * D::WORDS * M);
                factors = factors.add(2 * M);
            }
        }
        for (m, acc) in acc.into_iter().enumerate() {
            D::store(call.out.add(m * call.stride), acc);
        }
    }
}

/// Adds products of a block, of any length.
#[inline(always)]
unsafe fn spans<D: Dot<M>, const M: usize>(
    acc: &mut [D::F; M],
    [mut codes, mut x]: [*const u32; 2],
    factors: *const f32,
    unit: D::F,
    mut block: usize,
) {
    // SAFETY: as for the tile.
    unsafe {
        while block > 0 {
            let span = block.min(SPAN);
            block -= span;
            let steps = span / STEP;
            if steps > 0 {
                add::<D, M>(acc, D::dot(codes, x, steps), factors, unit);
                codes = codes.add(steps * D::CODES);
                x = x.add(steps * D::WORDS * M);
            }
            if !span.is_multiple_of(STEP) {
                // Half a step: 4 weights of 8 bits, the last ones of the column.
                let mut last = [0u32; 2 * PANEL];
                codes.copy_to_nonoverlapping(last.as_mut_ptr(), D::COLUMNS);
                add::<D, M>(acc, D::dot(last.as_ptr(), x, 1), factors, unit);
            }
        }
    }
}

#[inline(always)]
unsafe fn add<D: Dot<M>, const M: usize>(
    acc: &mut [D::F; M],
    dots: [D::F; M],
    scales: *const f32,
    unit: D::F,
) {
    for (m, acc) in acc.iter_mut().enumerate() {
        // SAFETY: a tile has `M` scales per block.
        *acc = unsafe { D::fma(D::mul(dots[m], D::splat(*scales.add(m))), unit, *acc) };
    }
}

/// The [`Tile`] of function `$run` and form `$form` for a height.
macro_rules! by_height {
    ($run:ident, $form:ty, $height:expr, $($m:literal)*) => {
        match $height {
            $($m => Some($run::<$form, $m> as $crate::kernels::product_e0m::cpu::tile::Tile),)*
            _ => None,
        }
    };
}
pub(super) use by_height;
