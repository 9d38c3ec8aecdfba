//! AVX2: bytes with sums of pairs in 16 bits, and 16-bit integers with sums in 32 bits. AVX-VNNI
//! and AVX-512 VNNI: bytes with sums of four in 32 bits.

use super::dot::{Multiply, tiles};
use super::row::row;
use super::tile::{Call, Tile, tile};
use crate::backend::cpu::simd::{intrinsics, x86};
use std::arch::asm;
use std::arch::x86_64::*;

/// AVX2, with activations of `LANE` bits.
#[derive(Clone, Copy)]
pub struct Avx2<const LANE: usize>;
#[derive(Clone, Copy)]
pub struct AvxVnni;
#[derive(Clone, Copy)]
pub struct Avx512Vnni;

/// The same value, which the compiler does not look into: it would reorder long sums so that there
/// are too few registers.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn opaque(mut v: __m256i) -> __m256i {
    // SAFETY: no instruction.
    unsafe { asm!("/* {0} */", inout(ymm_reg) v, options(pure, nomem, nostack, preserves_flags)) };
    v
}

/// As [`Multiply::opaque`].
#[expect(clippy::pointers_in_nomem_asm_block, reason = "nothing is read through it")]
#[inline(always)]
fn pointer<T>(mut at: *const T) -> *const T {
    // SAFETY: no instruction.
    unsafe { asm!("/* {0} */", inout(reg) at, options(pure, nomem, nostack, preserves_flags)) };
    at
}

// Few rows have two vectors of 8 columns. Many have one, twice for a panel, so that all sums stay
// in registers.

impl<const LANE: usize> Multiply for Avx2<LANE> {
    type S = x86::Avx2;
    type Sum = __m256i;
    const LANE: usize = LANE;
    const NARROW: usize = if LANE == 8 { 4 } else { 0 };
    const UNROLL: bool = true;
    #[inline(always)]
    fn opaque<T>(at: *const T) -> *const T {
        pointer(at)
    }
    tiles!("avx2,fma,f16c"; 2; 2: 2; 1: 3 4 5 6);
    intrinsics! {
        zero() -> __m256i = _mm256_setzero_si256();
        madd(sum: __m256i, weights: __m256i, x: __m256i) -> __m256i = opaque(if LANE == 8 {
            _mm256_add_epi16(sum, _mm256_maddubs_epi16(weights, x))
        } else {
            _mm256_add_epi32(sum, _mm256_madd_epi16(weights, x))
        });
        add(total: __m256i, sum: __m256i, shift: u32) -> __m256i = _mm256_add_epi32(total, if LANE == 8 {
            _mm256_madd_epi16(sum, _mm256_set1_epi16(1 << shift))
        } else {
            sum
        });
        float(total: __m256i) -> __m256 = _mm256_cvtepi32_ps(total);
    }
}

impl Multiply for AvxVnni {
    type S = x86::Avx2;
    type Sum = __m256i;
    #[inline(always)]
    fn opaque<T>(at: *const T) -> *const T {
        pointer(at)
    }
    tiles!("avxvnni,avx2,fma,f16c"; 2; 2: 2; 1: 3 4 5 6);
    intrinsics! {
        zero() -> __m256i = _mm256_setzero_si256();
        madd(sum: __m256i, weights: __m256i, x: __m256i) -> __m256i = _mm256_dpbusd_avx_epi32(sum, weights, x);
        add(total: __m256i, sum: __m256i, shift: u32) -> __m256i = {
            _mm256_add_epi32(total, _mm256_sll_epi32(sum, _mm_cvtsi32_si128(shift.cast_signed())))
        };
        float(total: __m256i) -> __m256 = _mm256_cvtepi32_ps(total);
    }
}

impl Multiply for Avx512Vnni {
    type S = x86::Avx512;
    type Sum = __m512i;
    const TWO_SUMS: usize = 4;
    tiles!("avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c"; 1; 1: 2 3 4 5 6 8 10 12);
    #[inline(always)]
    fn opaque<T>(at: *const T) -> *const T {
        pointer(at)
    }
    intrinsics! {
        zero() -> __m512i = _mm512_setzero_si512();
        madd(sum: __m512i, weights: __m512i, x: __m512i) -> __m512i = _mm512_dpbusd_epi32(sum, weights, x);
        add(total: __m512i, sum: __m512i, shift: u32) -> __m512i = {
            _mm512_add_epi32(total, _mm512_sll_epi32(sum, _mm_cvtsi32_si128(shift.cast_signed())))
        };
        float(total: __m512i) -> __m512 = _mm512_cvtepi32_ps(total);
    }
}
