//! NEON with `sdot`, and with `smmla` for more than one row. Both multiply signed bytes, so 128 is
//! subtracted from weights of 8 bits; `Form::level` is that of the result.

use super::form::{Codes, Form};
use super::neon::floats;
use super::tile::{self, Call, Dot, Tile, by_height};
use crate::backend::cpu::bytes::arm::sdot;
use std::arch::aarch64::*;
use std::arch::asm;

/// Weights of 4 bits.
struct Nibbles<const PLANES: usize>;
/// Weights in bytes, signed if `FLIP`.
struct Bytes<const PLANES: usize, const FLIP: bool>;
/// The same for `smmla`.
struct PairNibbles<const PLANES: usize>;
struct PairBytes<const PLANES: usize, const FLIP: bool>;

unsafe fn run<D: Dot<M>, const M: usize>(call: &Call) {
    // SAFETY: by the contract of `Tile`.
    unsafe { tile::tile::<D, M>(call) }
}

pub fn pick(form: Form, row_pairs: bool, height: usize) -> Option<Tile> {
    type Flipped<const PLANES: usize> = Bytes<PLANES, true>;
    type Plain<const PLANES: usize> = Bytes<PLANES, false>;
    type PairFlipped<const PLANES: usize> = PairBytes<PLANES, true>;
    type PairPlain<const PLANES: usize> = PairBytes<PLANES, false>;
    if row_pairs {
        return match (form.codes, form.planes) {
            (Codes::Four, 1) => by_height!(run, PairNibbles<1>, height, 2 4),
            (Codes::Four, _) => by_height!(run, PairNibbles<2>, height, 2 4),
            (Codes::Eight, 1) => by_height!(run, PairFlipped<1>, height, 2 4),
            (Codes::Eight, _) => by_height!(run, PairFlipped<2>, height, 2 4),
            (Codes::Unpacked(_), 1) => by_height!(run, PairPlain<1>, height, 2 4),
            (Codes::Unpacked(_), _) => by_height!(run, PairPlain<2>, height, 2 4),
        };
    }
    match (form.codes, form.planes) {
        (Codes::Four, 1) => by_height!(run, Nibbles<1>, height, 1 2 3 4),
        (Codes::Four, _) => by_height!(run, Nibbles<2>, height, 1 2 3 4),
        (Codes::Eight, 1) => by_height!(run, Flipped<1>, height, 1 2 3 4),
        (Codes::Eight, _) => by_height!(run, Flipped<2>, height, 1 2 3 4),
        (Codes::Unpacked(_), 1) => by_height!(run, Plain<1>, height, 1 2 3 4),
        (Codes::Unpacked(_), _) => by_height!(run, Plain<2>, height, 1 2 3 4),
    }
}

/// Adds the 2 x 2 dot products of two rows and two columns of eight bytes.
#[inline(always)]
unsafe fn smmla(sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let mut out = sum;
    // SAFETY: the processor has the instruction, by the contract of `Dot`.
    unsafe {
        asm!(
            ".arch_extension i8mm", "smmla {0:v}.4s, {1:v}.16b, {2:v}.16b",
            inout(vreg) out, in(vreg) a, in(vreg) b, options(pure, nomem, nostack)
        );
    }
    out
}

/// Four columns of a row of words: the bytes of low and high nibbles.
#[inline(always)]
unsafe fn nibbles(at: *const u32) -> [int8x16_t; 2] {
    // SAFETY: by the contract of the caller.
    unsafe {
        let word = vreinterpretq_u8_u32(vld1q_u32(at));
        [
            vreinterpretq_s8_u8(vandq_u8(word, vdupq_n_u8(15))),
            vreinterpretq_s8_u8(vshrq_n_u8::<4>(word)),
        ]
    }
}

/// Four columns of both rows of words of a step.
#[inline(always)]
unsafe fn bytes<const FLIP: bool>(at: *const u32) -> [int8x16_t; 2] {
    // SAFETY: by the contract of the caller.
    unsafe {
        let words = [
            vreinterpretq_u8_u32(vld1q_u32(at)),
            vreinterpretq_u8_u32(vld1q_u32(at.add(16))),
        ];
        let flip = vdupq_n_u8(if FLIP { 128 } else { 0 });
        [
            vreinterpretq_s8_u8(veorq_u8(words[0], flip)),
            vreinterpretq_s8_u8(veorq_u8(words[1], flip)),
        ]
    }
}

/// Dot products of the operands that `codes` says of a step and a column.
#[inline(always)]
unsafe fn by_row<const M: usize, const PLANES: usize>(
    codes: impl Fn(usize, usize) -> [int8x16_t; 2],
    x: *const u32,
    steps: usize,
) -> [[float32x4_t; 4]; M] {
    // SAFETY: by the contract of `Dot`.
    unsafe {
        let mut sums = [[vdupq_n_s32(0); 4]; M];
        for plane in 0..PLANES {
            if plane == 1 {
                sums = sums.map(|s| s.map(|s| vshlq_n_s32::<8>(s)));
            }
            for v in 0..steps {
                let x = x.add((v * PLANES + plane) * 2 * M);
                let codes = [0, 4, 8, 12].map(|c| codes(v, c));
                for half in 0..2 {
                    for m in 0..M {
                        let x = vreinterpretq_s8_u32(vld1q_dup_u32(x.add(half * M + m)));
                        for j in 0..4 {
                            sums[m][j] = sdot(sums[m][j], codes[j][half], x);
                        }
                    }
                }
            }
        }
        sums.map(|s| s.map(|s| vcvtq_f32_s32(s)))
    }
}

/// The same by pairs of rows, `M` an even number.
#[inline(always)]
unsafe fn by_pairs<const M: usize, const PLANES: usize>(
    codes: impl Fn(usize, usize) -> [int8x16_t; 2],
    x: *const u32,
    steps: usize,
) -> [[float32x4_t; 4]; M] {
    // SAFETY: by the contract of `Dot`.
    unsafe {
        // Sums of rows 2p and 2p + 1 are in the first and the second array of pair p.
        let mut sums = [[vdupq_n_s32(0); 4]; M];
        for plane in 0..PLANES {
            if plane == 1 {
                sums = sums.map(|s| s.map(|s| vshlq_n_s32::<8>(s)));
            }
            for v in 0..steps {
                let x = x.add((v * PLANES + plane) * 2 * M);
                for j in 0..4 {
                    let [a, b] = codes(v, 4 * j).map(|c| vreinterpretq_s32_s8(c));
                    let first = vreinterpretq_s8_s32(vzip1q_s32(a, b));
                    let second = vreinterpretq_s8_s32(vzip2q_s32(a, b));
                    for p in 0..M / 2 {
                        let x = vreinterpretq_s8_u32(vld1q_u32(x.add(4 * p)));
                        sums[2 * p][j] = smmla(sums[2 * p][j], x, first);
                        sums[2 * p + 1][j] = smmla(sums[2 * p + 1][j], x, second);
                    }
                }
            }
        }
        let mut out = [[vdupq_n_f32(0.0); 4]; M];
        for p in 0..M / 2 {
            for j in 0..4 {
                // Columns 4j and 4j + 1 and the next two, of the first row and of the second.
                let (a, b) = (
                    vreinterpretq_s64_s32(sums[2 * p][j]),
                    vreinterpretq_s64_s32(sums[2 * p + 1][j]),
                );
                out[2 * p][j] = vcvtq_f32_s32(vreinterpretq_s32_s64(vzip1q_s64(a, b)));
                out[2 * p + 1][j] = vcvtq_f32_s32(vreinterpretq_s32_s64(vzip2q_s64(a, b)));
            }
        }
        out
    }
}

/// Implements [`Dot`] with one of the functions above.
macro_rules! dot {
    ([$($param:tt)*] $form:ty, $words:literal, $by:ident, $codes:expr) => {
        #[allow(clippy::undocumented_unsafe_blocks, reason = "by the contract of the trait")]
        impl<const M: usize, const PLANES: usize, $($param)*> Dot<M> for $form {
            const CODES: usize = $words;
            const WORDS: usize = 2 * PLANES;
            floats!();

            #[inline(always)]
            unsafe fn dot(codes: *const u32, x: *const u32, steps: usize) -> [Self::F; M] {
                unsafe {
                    $by::<M, PLANES>(|step, column| $codes(codes.add(step * $words + column)), x, steps)
                }
            }
        }
    };
}

dot!([] Nibbles<PLANES>, 16, by_row, nibbles);
dot!([const FLIP: bool] Bytes<PLANES, FLIP>, 32, by_row, bytes::<FLIP>);
dot!([] PairNibbles<PLANES>, 16, by_pairs, nibbles);
dot!([const FLIP: bool] PairBytes<PLANES, FLIP>, 32, by_pairs, bytes::<FLIP>);
