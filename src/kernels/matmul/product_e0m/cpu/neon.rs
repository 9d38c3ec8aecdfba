//! NEON without dot products: 8-bit products in 16 bits (as in appendix B of Jacob et al.,
//! "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference"),
//! and 16-bit products in 32 bits.

use super::form::{Codes, Form};
use super::tile::{self, Call, Dot, Tile, by_height};
use std::arch::aarch64::*;

/// Weights of 4 bits with bytes.
struct Nibbles;
/// Weights of 8 bits with bytes, as two numbers of 4 bits.
struct TwoNibbles;
/// Weights of fewer bits in bytes: sums of `AT_ONCE` products fit in 16 bits.
struct Bytes<const AT_ONCE: usize>;
/// Weights of 4 bits with 16-bit integers.
struct NibblesBy16;
/// Weights in bytes with 16-bit integers.
struct BytesBy16;

unsafe fn run<D: Dot<M>, const M: usize>(call: &Call) {
    // SAFETY: by the contract of `Tile`.
    unsafe { tile::tile::<D, M>(call) }
}

pub fn pick(form: Form, height: usize) -> Option<Tile> {
    match (form.codes, form.planes) {
        (Codes::Four, 1) => by_height!(run, Nibbles, height, 1 2 3 4),
        (Codes::Four, _) => by_height!(run, NibblesBy16, height, 1 2 3 4),
        (Codes::Eight, 1) => by_height!(run, TwoNibbles, height, 1 2 3 4),
        (Codes::Unpacked(6), 1) => by_height!(run, Bytes<4>, height, 1 2 3 4),
        (Codes::Unpacked(5), 1) => by_height!(run, Bytes<8>, height, 1 2 3 4),
        (Codes::Unpacked(_), 1) => by_height!(run, Bytes<16>, height, 1 2 3 4),
        (Codes::Eight | Codes::Unpacked(_), _) => by_height!(run, BytesBy16, height, 1 2 3 4),
    }
}

/// The functions of [`Dot`] on floats: four vectors.
macro_rules! floats {
    () => {
        type F = [float32x4_t; 4];
        const COLUMNS: usize = 16;

        #[inline(always)]
        unsafe fn splat(v: f32) -> [float32x4_t; 4] {
            unsafe { [vdupq_n_f32(v); 4] }
        }
        #[inline(always)]
        unsafe fn load(at: *const f32) -> [float32x4_t; 4] {
            unsafe { [0, 1, 2, 3].map(|j| vld1q_f32(at.add(4 * j))) }
        }
        #[inline(always)]
        unsafe fn store(at: *mut f32, v: [float32x4_t; 4]) {
            for (j, v) in v.into_iter().enumerate() {
                unsafe { vst1q_f32(at.add(4 * j), v) };
            }
        }
        #[inline(always)]
        unsafe fn halves(at: *const u32) -> [[float32x4_t; 4]; 2] {
            use $crate::kernels::product_e0m::cpu::neon::half;
            unsafe {
                let words = [0, 1, 2, 3].map(|j| vld1q_u32(at.add(4 * j)));
                [
                    words.map(|w| half(vmovn_u32(w))),
                    words.map(|w| half(vshrn_n_u32::<16>(w))),
                ]
            }
        }
        #[inline(always)]
        unsafe fn sub(a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
            unsafe { [0, 1, 2, 3].map(|j| vsubq_f32(a[j], b[j])) }
        }
        #[inline(always)]
        unsafe fn mul(a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
            unsafe { [0, 1, 2, 3].map(|j| vmulq_f32(a[j], b[j])) }
        }
        #[inline(always)]
        unsafe fn fma(a: [float32x4_t; 4], b: [float32x4_t; 4], c: [float32x4_t; 4]) -> [float32x4_t; 4] {
            unsafe { [0, 1, 2, 3].map(|j| vfmaq_f32(c[j], a[j], b[j])) }
        }
    };
}
pub(super) use floats;

/// Halves as floats.
#[inline(always)]
pub(super) unsafe fn half(v: uint16x4_t) -> float32x4_t {
    let y: float32x4_t;
    // SAFETY: an instruction of all processors with NEON.
    unsafe {
        std::arch::asm!(
            "fcvtl {y:v}.4s, {x:v}.4h", y = out(vreg) y, x = in(vreg) v, options(pure, nomem, nostack)
        );
    }
    y
}

/// Sums of four columns: pairs of lanes are added to one column.
type Pairs<const M: usize> = [[int32x4_t; 2]; M];

#[inline(always)]
unsafe fn zeros<const M: usize>() -> Pairs<M> {
    // SAFETY: all processors have NEON.
    unsafe { [[vdupq_n_s32(0); 2]; M] }
}

/// The sums of four columns at a time, from `each`, which is called with the first column.
#[inline(always)]
unsafe fn by_columns<const M: usize>(each: impl Fn(usize) -> Pairs<M>) -> [[float32x4_t; 4]; M] {
    // SAFETY: all processors have NEON.
    unsafe {
        let mut out = [[vdupq_n_f32(0.0); 4]; M];
        for j in 0..4 {
            let sums = each(4 * j);
            for m in 0..M {
                out[m][j] = vcvtq_f32_s32(vpaddq_s32(sums[m][0], sums[m][1]));
            }
        }
        out
    }
}

/// Adds products of signed bytes of four columns in 16 bits.
#[inline(always)]
unsafe fn madd8<const M: usize>(sums: &mut [[int16x8_t; 2]; M], codes: uint8x16_t, x: *const u32) {
    // SAFETY: by the contract of the caller.
    unsafe {
        let codes = vreinterpretq_s8_u8(codes);
        for (m, sum) in sums.iter_mut().enumerate() {
            let x = vreinterpretq_s8_u32(vld1q_dup_u32(x.add(m)));
            sum[0] = vmlal_s8(sum[0], vget_low_s8(codes), vget_low_s8(x));
            sum[1] = vmlal_high_s8(sum[1], codes, x);
        }
    }
}

/// Adds products of 16 bits of four columns in 32 bits.
#[inline(always)]
unsafe fn madd16<const M: usize>(sums: &mut Pairs<M>, codes: uint16x8_t, x: *const u32) {
    // SAFETY: by the contract of the caller.
    unsafe {
        let codes = vreinterpretq_s16_u16(codes);
        for (m, sum) in sums.iter_mut().enumerate() {
            let x = vreinterpretq_s16_u32(vld1q_dup_u32(x.add(m)));
            sum[0] = vmlal_s16(sum[0], vget_low_s16(codes), vget_low_s16(x));
            sum[1] = vmlal_high_s16(sum[1], codes, x);
        }
    }
}

/// Adds pairs of sums of 16 bits to those of 32 bits.
#[inline(always)]
unsafe fn widen<const M: usize>(sums: &mut Pairs<M>, short: &[[int16x8_t; 2]; M]) {
    // SAFETY: all processors have NEON.
    unsafe {
        for m in 0..M {
            sums[m][0] = vpadalq_s16(sums[m][0], short[m][0]);
            sums[m][1] = vpadalq_s16(sums[m][1], short[m][1]);
        }
    }
}

#[inline(always)]
unsafe fn bytes(at: *const u32) -> uint8x16_t {
    // SAFETY: by the contract of the caller.
    unsafe { vreinterpretq_u8_u32(vld1q_u32(at)) }
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "by the contract of the trait")]
impl<const M: usize> Dot<M> for Nibbles {
    const CODES: usize = 16;
    const WORDS: usize = 2;
    floats!();

    #[inline(always)]
    unsafe fn dot(codes: *const u32, x: *const u32, steps: usize) -> [Self::F; M] {
        unsafe {
            by_columns::<M>(|column| {
                let mut sums = zeros::<M>();
                // Sums of 16 products of at most 15 * 128 fit in 16 bits.
                for first in (0..steps).step_by(8) {
                    let mut short = [[vdupq_n_s16(0); 2]; M];
                    for v in first..steps.min(first + 8) {
                        let word = bytes(codes.add(v * 16 + column));
                        madd8(&mut short, vandq_u8(word, vdupq_n_u8(15)), x.add(2 * v * M));
                        madd8(&mut short, vshrq_n_u8::<4>(word), x.add((2 * v + 1) * M));
                    }
                    widen(&mut sums, &short);
                }
                sums
            })
        }
    }
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "by the contract of the trait")]
impl<const M: usize> Dot<M> for TwoNibbles {
    const CODES: usize = 32;
    const WORDS: usize = 2;
    floats!();

    #[inline(always)]
    unsafe fn dot(codes: *const u32, x: *const u32, steps: usize) -> [Self::F; M] {
        unsafe {
            by_columns::<M>(|column| {
                let (mut low_sums, mut high_sums) = (zeros::<M>(), zeros::<M>());
                for first in (0..2 * steps).step_by(16) {
                    let mut low = [[vdupq_n_s16(0); 2]; M];
                    let mut high = low;
                    for v in first..(2 * steps).min(first + 16) {
                        let word = bytes(codes.add(v * 16 + column));
                        madd8(&mut low, vandq_u8(word, vdupq_n_u8(15)), x.add(v * M));
                        madd8(&mut high, vshrq_n_u8::<4>(word), x.add(v * M));
                    }
                    widen(&mut low_sums, &low);
                    widen(&mut high_sums, &high);
                }
                for m in 0..M {
                    for i in 0..2 {
                        low_sums[m][i] = vaddq_s32(low_sums[m][i], vshlq_n_s32::<4>(high_sums[m][i]));
                    }
                }
                low_sums
            })
        }
    }
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "by the contract of the trait")]
impl<const M: usize, const AT_ONCE: usize> Dot<M> for Bytes<AT_ONCE> {
    const CODES: usize = 32;
    const WORDS: usize = 2;
    floats!();

    #[inline(always)]
    unsafe fn dot(codes: *const u32, x: *const u32, steps: usize) -> [Self::F; M] {
        unsafe {
            by_columns::<M>(|column| {
                let mut sums = zeros::<M>();
                for first in (0..2 * steps).step_by(AT_ONCE) {
                    let mut short = [[vdupq_n_s16(0); 2]; M];
                    for v in first..(2 * steps).min(first + AT_ONCE) {
                        madd8(&mut short, bytes(codes.add(v * 16 + column)), x.add(v * M));
                    }
                    widen(&mut sums, &short);
                }
                sums
            })
        }
    }
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "by the contract of the trait")]
impl<const M: usize> Dot<M> for NibblesBy16 {
    const CODES: usize = 16;
    const WORDS: usize = 4;
    floats!();

    #[inline(always)]
    unsafe fn dot(codes: *const u32, x: *const u32, steps: usize) -> [Self::F; M] {
        unsafe {
            let mask = vdupq_n_u16(15);
            by_columns::<M>(|column| {
                let mut sums = zeros::<M>();
                for v in 0..steps {
                    let word = vreinterpretq_u16_u32(vld1q_u32(codes.add(v * 16 + column)));
                    let x = x.add(4 * v * M);
                    madd16(&mut sums, vandq_u16(word, mask), x);
                    madd16(&mut sums, vandq_u16(vshrq_n_u16::<4>(word), mask), x.add(M));
                    madd16(&mut sums, vandq_u16(vshrq_n_u16::<8>(word), mask), x.add(2 * M));
                    madd16(&mut sums, vshrq_n_u16::<12>(word), x.add(3 * M));
                }
                sums
            })
        }
    }
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "by the contract of the trait")]
impl<const M: usize> Dot<M> for BytesBy16 {
    const CODES: usize = 32;
    const WORDS: usize = 4;
    floats!();

    #[inline(always)]
    unsafe fn dot(codes: *const u32, x: *const u32, steps: usize) -> [Self::F; M] {
        unsafe {
            by_columns::<M>(|column| {
                let mut sums = zeros::<M>();
                for v in 0..2 * steps {
                    let word = vreinterpretq_u16_u32(vld1q_u32(codes.add(v * 16 + column)));
                    let x = x.add(2 * v * M);
                    madd16(&mut sums, vandq_u16(word, vdupq_n_u16(255)), x);
                    madd16(&mut sums, vshrq_n_u16::<8>(word), x.add(M));
                }
                sums
            })
        }
    }
}
