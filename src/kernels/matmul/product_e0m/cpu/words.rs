//! Vectors of words, and weights made of their bits.

use super::tile::PANEL;
use crate::backend::cpu::isa::Isa;
use crate::backend::cpu::simd::{self, Simd};
use half::f16;

/// Vectors of `LANES` words. As for [`Simd`], the processor must have the instruction set.
pub trait Words: Simd {
    type U: Copy;

    unsafe fn words(at: *const u32) -> Self::U;
    /// A word in all lanes.
    unsafe fn word(at: *const u32) -> Self::U;
    unsafe fn store_words(at: *mut u32, v: Self::U);
    unsafe fn and(a: Self::U, mask: u32) -> Self::U;
    unsafe fn or(a: Self::U, b: Self::U) -> Self::U;
    unsafe fn or_all(a: Self::U, bits: u32) -> Self::U;
    unsafe fn xor(a: Self::U, bits: u32) -> Self::U;
    /// `n` is less than 32.
    unsafe fn left(a: Self::U, n: usize) -> Self::U;
    unsafe fn right(a: Self::U, n: usize) -> Self::U;
    /// Field `i` of `width` bits of each `lane` bits, 8 or 16.
    unsafe fn field(a: Self::U, lane: usize, width: usize, i: usize) -> Self::U;
    /// Bits of floats.
    unsafe fn floats(a: Self::U) -> Self::F;
    /// Integers below 2^31 as floats.
    unsafe fn integers(a: Self::U) -> Self::F;
    /// The low halves of words as floats.
    unsafe fn halves(a: Self::U) -> Self::F;
}

/// Work that is compiled for each instruction set, as [`simd::Job`] is.
pub trait WordsJob {
    /// # Safety
    /// The processor has the instructions of `S`. Implementations are `#[inline(always)]`.
    unsafe fn run<S: Words>(self);
}

/// Runs a job with the vectors of `isa`.
///
/// # Safety
/// The processor supports `isa`, and what the job requires holds.
pub unsafe fn run<J: WordsJob>(isa: Isa, job: J) {
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => x86::avx512(job),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => x86::avx2(job),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon | Isa::NeonDot | Isa::NeonI8mm => job.run::<simd::arm::Neon>(),
            _ => job.run::<simd::Portable>(),
        }
    }
}

/// The widths of the planes of the high and the low bits, as src/quant/format.rs has them.
pub(super) const fn planes(bits: usize) -> [usize; 2] {
    match bits {
        3 => [2, 1],
        5 => [4, 1],
        6 => [4, 2],
        bits => [bits, 0],
    }
}

/// The words of eight weights, of some columns: those of both planes, or, for 8 bits, of the first
/// and the last four weights. Field 0 starts at bit 0.
///
/// # Safety
/// `panel` points to the column in the first row of a panel that has this step.
#[inline(always)]
pub unsafe fn step<S: Words, const BITS: usize>(panel: *const u32, step: usize, last: bool) -> [S::U; 2] {
    unsafe {
        if BITS == 8 {
            let first = panel.add(2 * step * PANEL);
            // The last step may have four weights.
            let second = if last { first } else { first.add(PANEL) };
            return [S::words(first), S::words(second)];
        }
        if BITS == 4 {
            return [S::words(panel.add(step * PANEL)); 2];
        }
        let [high, low] = const { planes(BITS) };
        if low == 0 {
            let word = S::words(panel.add(step * high / 4 * PANEL));
            return [S::right(word, step % (4 / high) * 4 * high); 2];
        }
        let row = |plane, width| (step / 4 * BITS + plane + step % 4 * width / 4) * PANEL;
        let first = S::words(panel.add(row(0, high)));
        let first = if high == 4 {
            first
        } else {
            S::right(first, step % (4 / high) * 4 * high)
        };
        let second = S::words(panel.add(row(high, low)));
        [first, S::right(second, step % (4 / low) * 4 * low)]
    }
}

/// The lowest `width` bits of each `lane` bits of a word.
pub(super) const fn mask(lane: usize, width: usize) -> u32 {
    ((1 << width) - 1) * (u32::MAX / ((1 << lane) - 1))
}

/// Moves field `i` of `width` bits so that its lowest bit is bit `to`, and clears all others.
#[inline(always)]
unsafe fn field<S: Words>(word: S::U, i: usize, width: usize, to: usize) -> S::U {
    let from = i / 2 * width + i % 2 * 16;
    unsafe {
        let moved = match from.cmp(&to) {
            std::cmp::Ordering::Less => S::left(word, to - from),
            std::cmp::Ordering::Equal => word,
            std::cmp::Ordering::Greater => S::right(word, from - to),
        };
        S::and(moved, ((1 << width) - 1) << to)
    }
}

/// Weight `k` of a step before scale and bias: a number in `[2, 4)`, whose fraction it is.
///
/// # Safety
/// As for [`Words`].
#[inline(always)]
pub unsafe fn level<S: Words, const BITS: usize>(words: [S::U; 2], k: usize) -> S::F {
    let [high, low] = const { planes(BITS) };
    unsafe {
        let bits = match BITS {
            8 => field::<S>(words[k / 4], k % 4, 8, 15),
            _ => field::<S>(words[0], k, high, 23 - high),
        };
        let bits = if low > 0 {
            S::or(bits, field::<S>(words[1], k, low, 23 - BITS))
        } else {
            bits
        };
        S::floats(S::or_all(bits, 0x4000_0000))
    }
}

/// Not inlined: a conversion takes many instructions.
#[inline(never)]
fn half(bits: u32) -> f32 {
    f16::from_bits(bits as u16).to_f32()
}

impl Words for simd::Portable {
    type U = [u32; 4];

    #[inline(always)]
    unsafe fn words(at: *const u32) -> Self::U {
        unsafe { at.cast::<Self::U>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn word(at: *const u32) -> Self::U {
        [unsafe { at.read() }; 4]
    }
    #[inline(always)]
    unsafe fn store_words(at: *mut u32, v: Self::U) {
        unsafe { at.cast::<Self::U>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn and(a: Self::U, mask: u32) -> Self::U {
        a.map(|a| a & mask)
    }
    #[inline(always)]
    unsafe fn or(a: Self::U, b: Self::U) -> Self::U {
        std::array::from_fn(|i| a[i] | b[i])
    }
    #[inline(always)]
    unsafe fn or_all(a: Self::U, bits: u32) -> Self::U {
        a.map(|a| a | bits)
    }
    #[inline(always)]
    unsafe fn xor(a: Self::U, bits: u32) -> Self::U {
        a.map(|a| a ^ bits)
    }
    #[inline(always)]
    unsafe fn left(a: Self::U, n: usize) -> Self::U {
        a.map(|a| a << n)
    }
    #[inline(always)]
    unsafe fn right(a: Self::U, n: usize) -> Self::U {
        a.map(|a| a >> n)
    }
    #[inline(always)]
    unsafe fn field(a: Self::U, lane: usize, width: usize, i: usize) -> Self::U {
        a.map(|a| a >> (i * width) & mask(lane, width))
    }
    #[inline(always)]
    unsafe fn floats(a: Self::U) -> Self::F {
        a.map(f32::from_bits)
    }
    #[inline(always)]
    unsafe fn integers(a: Self::U) -> Self::F {
        a.map(|v| v as f32)
    }
    #[inline(always)]
    unsafe fn halves(a: Self::U) -> Self::F {
        a.map(half)
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Words, WordsJob, mask};
    use crate::backend::cpu::simd::intrinsics;
    use crate::backend::cpu::simd::x86::{Avx2, Avx512};
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn avx2<J: WordsJob>(job: J) {
        unsafe { job.run::<Avx2>() }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
    pub(super) unsafe fn avx512<J: WordsJob>(job: J) {
        unsafe { job.run::<Avx512>() }
    }

    impl Words for Avx2 {
        type U = __m256i;
        intrinsics! {
            words(at: *const u32) -> __m256i = _mm256_loadu_si256(at.cast());
            word(at: *const u32) -> __m256i = _mm256_set1_epi32(at.read().cast_signed());
            store_words(at: *mut u32, v: __m256i) -> () = _mm256_storeu_si256(at.cast(), v);
            and(a: __m256i, mask: u32) -> __m256i = {
                _mm256_and_si256(a, _mm256_set1_epi32(mask.cast_signed()))
            };
            or(a: __m256i, b: __m256i) -> __m256i = _mm256_or_si256(a, b);
            or_all(a: __m256i, bits: u32) -> __m256i = {
                _mm256_or_si256(a, _mm256_set1_epi32(bits.cast_signed()))
            };
            xor(a: __m256i, bits: u32) -> __m256i = {
                _mm256_xor_si256(a, _mm256_set1_epi32(bits.cast_signed()))
            };
            left(a: __m256i, n: usize) -> __m256i = _mm256_sll_epi32(a, _mm_cvtsi32_si128(n as i32));
            right(a: __m256i, n: usize) -> __m256i = _mm256_srl_epi32(a, _mm_cvtsi32_si128(n as i32));
            field(a: __m256i, lane: usize, width: usize, i: usize) -> __m256i = {
                let moved = _mm256_srl_epi16(a, _mm_cvtsi32_si128((i * width) as i32));
                if (i + 1) * width == 16 {
                    moved
                } else {
                    Self::and(moved, mask(lane, width))
                }
            };
            floats(a: __m256i) -> __m256 = _mm256_castsi256_ps(a);
            integers(a: __m256i) -> __m256 = _mm256_cvtepi32_ps(a);
            halves(a: __m256i) -> __m256 = {
                let a = _mm256_and_si256(a, _mm256_set1_epi32(0xFFFF));
                let a = _mm_packus_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256::<1>(a));
                _mm256_cvtph_ps(a)
            };
        }
    }

    impl Words for Avx512 {
        type U = __m512i;
        intrinsics! {
            words(at: *const u32) -> __m512i = _mm512_loadu_si512(at.cast());
            word(at: *const u32) -> __m512i = _mm512_set1_epi32(at.read().cast_signed());
            store_words(at: *mut u32, v: __m512i) -> () = _mm512_storeu_si512(at.cast(), v);
            and(a: __m512i, mask: u32) -> __m512i = {
                _mm512_and_si512(a, _mm512_set1_epi32(mask.cast_signed()))
            };
            or(a: __m512i, b: __m512i) -> __m512i = _mm512_or_si512(a, b);
            or_all(a: __m512i, bits: u32) -> __m512i = {
                _mm512_or_si512(a, _mm512_set1_epi32(bits.cast_signed()))
            };
            xor(a: __m512i, bits: u32) -> __m512i = {
                _mm512_xor_si512(a, _mm512_set1_epi32(bits.cast_signed()))
            };
            left(a: __m512i, n: usize) -> __m512i = _mm512_sll_epi32(a, _mm_cvtsi32_si128(n as i32));
            right(a: __m512i, n: usize) -> __m512i = _mm512_srl_epi32(a, _mm_cvtsi32_si128(n as i32));
            field(a: __m512i, lane: usize, width: usize, i: usize) -> __m512i = {
                let moved = _mm512_srl_epi16(a, _mm_cvtsi32_si128((i * width) as i32));
                if (i + 1) * width == 16 {
                    moved
                } else {
                    Self::and(moved, mask(lane, width))
                }
            };
            floats(a: __m512i) -> __m512 = _mm512_castsi512_ps(a);
            integers(a: __m512i) -> __m512 = _mm512_cvtepi32_ps(a);
            halves(a: __m512i) -> __m512 = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(a));
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::{Words, mask};
    use crate::backend::cpu::simd::arm::Neon;
    use crate::backend::cpu::simd::intrinsics;
    use std::arch::aarch64::*;

    impl Words for Neon {
        type U = uint32x4_t;
        intrinsics! {
            words(at: *const u32) -> uint32x4_t = vld1q_u32(at);
            word(at: *const u32) -> uint32x4_t = vld1q_dup_u32(at);
            store_words(at: *mut u32, v: uint32x4_t) -> () = vst1q_u32(at, v);
            and(a: uint32x4_t, mask: u32) -> uint32x4_t = vandq_u32(a, vdupq_n_u32(mask));
            or(a: uint32x4_t, b: uint32x4_t) -> uint32x4_t = vorrq_u32(a, b);
            or_all(a: uint32x4_t, bits: u32) -> uint32x4_t = vorrq_u32(a, vdupq_n_u32(bits));
            xor(a: uint32x4_t, bits: u32) -> uint32x4_t = veorq_u32(a, vdupq_n_u32(bits));
            left(a: uint32x4_t, n: usize) -> uint32x4_t = vshlq_u32(a, vdupq_n_s32(n as i32));
            right(a: uint32x4_t, n: usize) -> uint32x4_t = vshlq_u32(a, vdupq_n_s32(-(n as i32)));
            field(a: uint32x4_t, lane: usize, width: usize, i: usize) -> uint32x4_t = {
                let right = -((i * width) as i32);
                let moved = if lane == 8 {
                    vreinterpretq_u32_u8(vshlq_u8(vreinterpretq_u8_u32(a), vdupq_n_s8(right as i8)))
                } else {
                    vreinterpretq_u32_u16(vshlq_u16(vreinterpretq_u16_u32(a), vdupq_n_s16(right as i16)))
                };
                if (i + 1) * width == lane {
                    moved
                } else {
                    Self::and(moved, mask(lane, width))
                }
            };
            floats(a: uint32x4_t) -> float32x4_t = vreinterpretq_f32_u32(a);
            integers(a: uint32x4_t) -> float32x4_t = vcvtq_f32_u32(a);
            halves(a: uint32x4_t) -> float32x4_t = {
                let y: float32x4_t;
                std::arch::asm!(
                    "fcvtl {y:v}.4s, {x:v}.4h", y = out(vreg) y, x = in(vreg) vmovn_u32(a),
                    options(pure, nomem, nostack)
                );
                y
            };
        }
    }
}
