//! AVX-512 with VNNI, AVX2 with VNNI, and AVX2.

use super::{Bytes, Job};
use crate::backend::cpu::simd::intrinsics;
use std::arch::x86_64::*;

/// AVX-512 with dot products of unsigned and signed bytes.
#[derive(Clone, Copy)]
pub struct Vnni512;
/// AVX2 with such dot products.
#[derive(Clone, Copy)]
pub struct Vnni256;
/// AVX2, with even and odd bytes multiplied as 16-bit integers.
#[derive(Clone, Copy)]
pub struct Avx2;

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
#[inline(never)]
unsafe fn vnni512<J: Job>(job: J) -> J::Out {
    unsafe { job.run::<Vnni512>() }
}

#[target_feature(enable = "avxvnni,avx2,fma,f16c")]
#[inline(never)]
unsafe fn vnni256<J: Job>(job: J) -> J::Out {
    unsafe { job.run::<Vnni256>() }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline(never)]
unsafe fn avx2<J: Job>(job: J) -> J::Out {
    unsafe { job.run::<Avx2>() }
}

/// Largest float below 2^31. Conversions of larger floats do not saturate.
const MOST: f32 = 2_147_483_520.0;

impl Bytes for Vnni512 {
    const LANES: usize = 16;
    const ROWS: usize = 12;
    const FLIP: u32 = 0x8080_8080;
    const STEP: usize = 1;
    type I = __m512i;
    type F = __m512;
    type B = __m512i;
    type W = __m512i;
    type X = __m512i;
    intrinsics! {
        splat(v: i32) -> __m512i = _mm512_set1_epi32(v);
        load(at: *const i32) -> __m512i = _mm512_loadu_si512(at.cast());
        store(at: *mut i32, v: __m512i) -> () = _mm512_storeu_si512(at.cast(), v);
        widen(at: *const i8) -> __m512i = _mm512_cvtepi8_epi32(_mm_loadu_si128(at.cast()));
        add(a: __m512i, b: __m512i) -> __m512i = _mm512_add_epi32(a, b);
        sub(a: __m512i, b: __m512i) -> __m512i = _mm512_sub_epi32(a, b);
        mul(a: __m512i, b: __m512i) -> __m512i = _mm512_mullo_epi32(a, b);
        load_floats(at: *const f32) -> __m512 = _mm512_loadu_ps(at);
        load_bytes(at: *const u8) -> __m512i = _mm512_loadu_si512(at.cast());
        store_bytes(at: *mut u8, v: __m512i) -> () = _mm512_storeu_si512(at.cast(), v);
        flip(v: __m512i) -> __m512i = _mm512_xor_si512(v, _mm512_set1_epi8(i8::MIN));
        store_block(at: *mut u8, v: __m512i, block: usize) -> () = {
            let v = match block {
                0 => _mm512_castsi512_si128(v),
                1 => _mm512_extracti32x4_epi32::<1>(v),
                2 => _mm512_extracti32x4_epi32::<2>(v),
                _ => _mm512_extracti32x4_epi32::<3>(v),
            };
            _mm_storeu_si128(at.cast(), v);
        };
        weights(words: __m512i) -> __m512i = words;
        broadcast(at: *const u32) -> __m512i = _mm512_set1_epi32(at.read().cast_signed());
        activations(words: __m512i) -> __m512i = words;
        dot(sum: __m512i, w: __m512i, x: __m512i) -> __m512i = _mm512_dpbusd_epi32(sum, x, w);
        interleave(v: [__m512i; 4]) -> [__m512i; 4] = {
            let (a, b) = (_mm512_unpacklo_epi8(v[0], v[1]), _mm512_unpacklo_epi8(v[2], v[3]));
            let (c, d) = (_mm512_unpackhi_epi8(v[0], v[1]), _mm512_unpackhi_epi8(v[2], v[3]));
            [
                _mm512_unpacklo_epi16(a, b),
                _mm512_unpackhi_epi16(a, b),
                _mm512_unpacklo_epi16(c, d),
                _mm512_unpackhi_epi16(c, d),
            ]
        };
        scaled(sum: __m512i, factor: __m512) -> __m512i = {
            let v = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), factor);
            _mm512_cvtps_epi32(_mm512_min_ps(v, _mm512_set1_ps(MOST)))
        };
        shifted(x: __m512i, n: __m512i) -> __m512i = {
            let y = _mm512_sllv_epi32(x, n);
            let lost = _mm512_cmpneq_epi32_mask(_mm512_srav_epi32(y, n), x);
            let end = _mm512_xor_si512(_mm512_srai_epi32::<31>(x), _mm512_set1_epi32(i32::MAX));
            _mm512_mask_mov_epi32(y, lost, end)
        };
        doubling_high(a: __m512i, b: __m512i) -> __m512i = {
            let half = _mm512_set1_epi64(1 << 30);
            let even = _mm512_add_epi64(_mm512_mul_epi32(a, b), half);
            let odd = _mm512_mul_epi32(_mm512_srli_epi64::<32>(a), _mm512_srli_epi64::<32>(b));
            let odd = _mm512_slli_epi64::<1>(_mm512_add_epi64(odd, half));
            _mm512_mask_mov_epi32(_mm512_srli_epi64::<31>(even), 0xAAAA, odd)
        };
        divided(x: __m512i, n: __m512i) -> __m512i = {
            let mask = _mm512_sub_epi32(_mm512_sllv_epi32(_mm512_set1_epi32(1), n), _mm512_set1_epi32(1));
            let threshold = _mm512_sub_epi32(_mm512_srli_epi32::<1>(mask), _mm512_srai_epi32::<31>(x));
            let up = _mm512_cmpgt_epi32_mask(_mm512_and_si512(x, mask), threshold);
            let y = _mm512_srav_epi32(x, n);
            _mm512_mask_add_epi32(y, up, y, _mm512_set1_epi32(1))
        };
        max(a: __m512i, b: __m512i) -> __m512i = _mm512_max_epi32(a, b);
        narrow(v: [__m512i; 4], limits: &[__m512i; 3]) -> __m512i = {
            let a = _mm512_adds_epi16(_mm512_packs_epi32(v[0], v[1]), limits[0]);
            let b = _mm512_adds_epi16(_mm512_packs_epi32(v[2], v[3]), limits[0]);
            _mm512_min_epi8(_mm512_max_epi8(_mm512_packs_epi16(a, b), limits[1]), limits[2])
        };
        in_order(v: __m512i) -> __m512i = {
            let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            _mm512_permutexvar_epi32(order, v)
        };
        lookup(table: *const u8, v: __m512i) -> __m512i = {
            let mut at = _mm512_xor_si512(v, _mm512_set1_epi8(i8::MIN));
            let mut y = _mm512_setzero_si512();
            for i in 0..16 {
                let part = _mm512_broadcast_i32x4(_mm_loadu_si128(table.add(16 * i).cast()));
                // Shuffles select 0 for positions whose highest bit is set: all from 16 on.
                let within = _mm512_adds_epu8(at, _mm512_set1_epi8(0x70));
                y = _mm512_or_si512(y, _mm512_shuffle_epi8(part, within));
                at = _mm512_sub_epi8(at, _mm512_set1_epi8(16));
            }
            y
        };
    }
    #[inline(always)]
    unsafe fn call<J: Job>(job: J) -> J::Out {
        unsafe { vnni512(job) }
    }
}

/// The functions for vectors of 256 bits that do not multiply bytes.
macro_rules! avx2 {
    () => {
        const LANES: usize = 8;
        type I = __m256i;
        type F = __m256;
        type B = __m256i;
        intrinsics! {
            splat(v: i32) -> __m256i = _mm256_set1_epi32(v);
            load(at: *const i32) -> __m256i = _mm256_loadu_si256(at.cast());
            store(at: *mut i32, v: __m256i) -> () = _mm256_storeu_si256(at.cast(), v);
            widen(at: *const i8) -> __m256i = _mm256_cvtepi8_epi32(_mm_loadl_epi64(at.cast()));
            add(a: __m256i, b: __m256i) -> __m256i = _mm256_add_epi32(a, b);
            sub(a: __m256i, b: __m256i) -> __m256i = _mm256_sub_epi32(a, b);
            mul(a: __m256i, b: __m256i) -> __m256i = _mm256_mullo_epi32(a, b);
            load_floats(at: *const f32) -> __m256 = _mm256_loadu_ps(at);
            load_bytes(at: *const u8) -> __m256i = _mm256_loadu_si256(at.cast());
            store_bytes(at: *mut u8, v: __m256i) -> () = _mm256_storeu_si256(at.cast(), v);
            store_block(at: *mut u8, v: __m256i, block: usize) -> () = {
                let v = match block {
                    0 => _mm256_castsi256_si128(v),
                    _ => _mm256_extracti128_si256::<1>(v),
                };
                _mm_storeu_si128(at.cast(), v);
            };
            interleave(v: [__m256i; 4]) -> [__m256i; 4] = {
                let (a, b) = (_mm256_unpacklo_epi8(v[0], v[1]), _mm256_unpacklo_epi8(v[2], v[3]));
                let (c, d) = (_mm256_unpackhi_epi8(v[0], v[1]), _mm256_unpackhi_epi8(v[2], v[3]));
                [
                    _mm256_unpacklo_epi16(a, b),
                    _mm256_unpackhi_epi16(a, b),
                    _mm256_unpacklo_epi16(c, d),
                    _mm256_unpackhi_epi16(c, d),
                ]
            };
            scaled(sum: __m256i, factor: __m256) -> __m256i = {
                let v = _mm256_mul_ps(_mm256_cvtepi32_ps(sum), factor);
                _mm256_cvtps_epi32(_mm256_min_ps(v, _mm256_set1_ps(MOST)))
            };
            shifted(x: __m256i, n: __m256i) -> __m256i = {
                let y = _mm256_sllv_epi32(x, n);
                let kept = _mm256_cmpeq_epi32(_mm256_srav_epi32(y, n), x);
                let end = _mm256_xor_si256(_mm256_srai_epi32::<31>(x), _mm256_set1_epi32(i32::MAX));
                _mm256_blendv_epi8(end, y, kept)
            };
            doubling_high(a: __m256i, b: __m256i) -> __m256i = {
                let half = _mm256_set1_epi64x(1 << 30);
                let even = _mm256_add_epi64(_mm256_mul_epi32(a, b), half);
                let odd = _mm256_mul_epi32(_mm256_srli_epi64::<32>(a), _mm256_srli_epi64::<32>(b));
                let odd = _mm256_slli_epi64::<1>(_mm256_add_epi64(odd, half));
                _mm256_blend_epi32::<0xAA>(_mm256_srli_epi64::<31>(even), odd)
            };
            divided(x: __m256i, n: __m256i) -> __m256i = {
                let one = _mm256_set1_epi32(1);
                let mask = _mm256_sub_epi32(_mm256_sllv_epi32(one, n), one);
                let threshold = _mm256_sub_epi32(_mm256_srli_epi32::<1>(mask), _mm256_srai_epi32::<31>(x));
                let up = _mm256_cmpgt_epi32(_mm256_and_si256(x, mask), threshold);
                _mm256_sub_epi32(_mm256_srav_epi32(x, n), up)
            };
            max(a: __m256i, b: __m256i) -> __m256i = _mm256_max_epi32(a, b);
            narrow(v: [__m256i; 4], limits: &[__m256i; 3]) -> __m256i = {
                let a = _mm256_adds_epi16(_mm256_packs_epi32(v[0], v[1]), limits[0]);
                let b = _mm256_adds_epi16(_mm256_packs_epi32(v[2], v[3]), limits[0]);
                _mm256_min_epi8(_mm256_max_epi8(_mm256_packs_epi16(a, b), limits[1]), limits[2])
            };
            in_order(v: __m256i) -> __m256i = {
                _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
            };
            lookup(table: *const u8, v: __m256i) -> __m256i = {
                // As with 512 bits.
                let mut at = _mm256_xor_si256(v, _mm256_set1_epi8(i8::MIN));
                let mut y = _mm256_setzero_si256();
                for i in 0..16 {
                    let part = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.add(16 * i).cast()));
                    let within = _mm256_adds_epu8(at, _mm256_set1_epi8(0x70));
                    y = _mm256_or_si256(y, _mm256_shuffle_epi8(part, within));
                    at = _mm256_sub_epi8(at, _mm256_set1_epi8(16));
                }
                y
            };
        }
    };
}

impl Bytes for Vnni256 {
    const ROWS: usize = 6;
    const FLIP: u32 = 0x8080_8080;
    const STEP: usize = 1;
    type W = __m256i;
    type X = __m256i;
    avx2!();
    intrinsics! {
        weights(words: __m256i) -> __m256i = words;
        flip(v: __m256i) -> __m256i = _mm256_xor_si256(v, _mm256_set1_epi8(i8::MIN));
        broadcast(at: *const u32) -> __m256i = _mm256_set1_epi32(at.read().cast_signed());
        activations(words: __m256i) -> __m256i = words;
        dot(sum: __m256i, w: __m256i, x: __m256i) -> __m256i = _mm256_dpbusd_avx_epi32(sum, x, w);
    }
    #[inline(always)]
    unsafe fn call<J: Job>(job: J) -> J::Out {
        unsafe { vnni256(job) }
    }
}

/// The even and the odd bytes of words as 16-bit integers.
#[inline(always)]
unsafe fn halves(words: __m256i) -> [__m256i; 2] {
    unsafe {
        [
            _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(words)),
            _mm256_srai_epi16::<8>(words),
        ]
    }
}

impl Bytes for Avx2 {
    const ROWS: usize = 4;
    const FLIP: u32 = 0;
    const STEP: usize = 2;
    type W = [__m256i; 2];
    type X = [__m256i; 2];
    avx2!();
    intrinsics! {
        weights(words: __m256i) -> [__m256i; 2] = halves(words);
        flip(v: __m256i) -> __m256i = v;
        broadcast(at: *const u32) -> [__m256i; 2] = [
            _mm256_set1_epi32(at.read().cast_signed()),
            _mm256_set1_epi32(at.add(1).read().cast_signed()),
        ];
        activations(words: __m256i) -> [__m256i; 2] = halves(words);
        dot(sum: __m256i, w: [__m256i; 2], x: [__m256i; 2]) -> __m256i = {
            let sum = _mm256_add_epi32(sum, _mm256_madd_epi16(w[0], x[0]));
            _mm256_add_epi32(sum, _mm256_madd_epi16(w[1], x[1]))
        };
    }
    #[inline(always)]
    unsafe fn call<J: Job>(job: J) -> J::Out {
        unsafe { avx2(job) }
    }
}
