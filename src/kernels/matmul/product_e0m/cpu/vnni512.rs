//! AVX-512 VNNI: four products of bytes in 32 bits, for all 16 columns of a panel at once.

use super::form::{Codes, Form};
use super::tile::{self, Call, Dot, Tile, by_height};
use std::arch::x86_64::*;

/// Weights of 4 bits.
struct Nibbles<const PLANES: usize>;
/// Weights in bytes.
struct Bytes<const PLANES: usize>;

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn run<D: Dot<M>, const M: usize>(call: &Call) {
    // SAFETY: by the contract of `Tile`.
    unsafe { tile::tile::<D, M>(call) }
}

pub fn pick(form: Form, height: usize) -> Option<Tile> {
    match (form.codes, form.planes) {
        (Codes::Four, 1) => by_height!(run, Nibbles<1>, height, 1 2 3 4 5 6 8 10 12),
        (Codes::Four, _) => by_height!(run, Nibbles<2>, height, 1 2 3 4 5 6 8 10 12),
        (_, 1) => by_height!(run, Bytes<1>, height, 1 2 3 4 5 6 8 10 12),
        (_, _) => by_height!(run, Bytes<2>, height, 1 2 3 4 5 6 8 10 12),
    }
}

/// The functions of [`Dot`] on floats.
macro_rules! floats {
    () => {
        type F = __m512;
        const COLUMNS: usize = 16;

        #[inline(always)]
        unsafe fn splat(v: f32) -> __m512 {
            unsafe { _mm512_set1_ps(v) }
        }
        #[inline(always)]
        unsafe fn load(at: *const f32) -> __m512 {
            unsafe { _mm512_loadu_ps(at) }
        }
        #[inline(always)]
        unsafe fn store(at: *mut f32, v: __m512) {
            unsafe { _mm512_storeu_ps(at, v) }
        }
        #[inline(always)]
        unsafe fn halves(at: *const u32) -> [__m512; 2] {
            unsafe {
                let v = _mm512_loadu_si512(at.cast());
                [
                    _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v)),
                    _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(v))),
                ]
            }
        }
        #[inline(always)]
        unsafe fn sub(a: __m512, b: __m512) -> __m512 {
            unsafe { _mm512_sub_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn mul(a: __m512, b: __m512) -> __m512 {
            unsafe { _mm512_mul_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
            unsafe { _mm512_fmadd_ps(a, b, c) }
        }
    };
}

/// 16 integers for each row, in two vectors each if these are few: dot products take several
/// cycles, so one alone would wait for itself.
struct Sums<const M: usize>([[__m512i; M]; 2]);

impl<const M: usize> Sums<M> {
    const SECOND: usize = if M <= 4 { 1 } else { 0 };

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: by the contract of `Dot`.
        unsafe { Self([[_mm512_setzero_si512(); M]; 2]) }
    }

    /// Adds products of unsigned bytes and the signed bytes of each row.
    #[inline(always)]
    unsafe fn madd(&mut self, set: usize, codes: __m512i, x: *const u32) {
        // SAFETY: by the contract of `Dot`.
        unsafe {
            for m in 0..M {
                let x = _mm512_set1_epi32(x.add(m).read().cast_signed());
                self.0[set][m] = _mm512_dpbusd_epi32(self.0[set][m], codes, x);
            }
        }
    }

    /// Multiplies sums of high bytes by 256.
    #[inline(always)]
    unsafe fn raise(&mut self) {
        // SAFETY: by the contract of `Dot`.
        unsafe {
            for set in 0..=Self::SECOND {
                for m in 0..M {
                    self.0[set][m] = _mm512_slli_epi32::<8>(self.0[set][m]);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn floats(self) -> [__m512; M] {
        // SAFETY: by the contract of `Dot`.
        unsafe {
            let mut out = [_mm512_setzero_ps(); M];
            for (m, out) in out.iter_mut().enumerate() {
                let sum = match Self::SECOND {
                    0 => self.0[0][m],
                    _ => _mm512_add_epi32(self.0[0][m], self.0[1][m]),
                };
                *out = _mm512_cvtepi32_ps(sum);
            }
            out
        }
    }
}

/// Loads 16 words of a panel, and for one row fetches those 4 KB on, which the processor's own
/// prefetchers do not do at the end of a page.
#[inline(always)]
unsafe fn words<const M: usize>(at: *const u32) -> __m512i {
    // SAFETY: by the contract of `Dot`; the prefetched address need not be valid.
    unsafe {
        if M == 1 {
            _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(1024).cast());
        }
        _mm512_loadu_si512(at.cast())
    }
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "by the contract of the trait")]
impl<const M: usize, const PLANES: usize> Dot<M> for Nibbles<PLANES> {
    const CODES: usize = 16;
    const WORDS: usize = 2 * PLANES;
    floats!();

    #[inline(always)]
    unsafe fn dot(codes: *const u32, x: *const u32, steps: usize) -> [Self::F; M] {
        unsafe {
            let mask = _mm512_set1_epi8(15);
            let mut sums = Sums::<M>::zero();
            for plane in 0..PLANES {
                if plane == 1 {
                    sums.raise();
                }
                for v in 0..steps {
                    let word = words::<M>(codes.add(v * 16));
                    let x = x.add((v * PLANES + plane) * 2 * M);
                    sums.madd(0, _mm512_and_si512(word, mask), x);
                    let high = _mm512_and_si512(_mm512_srli_epi16::<4>(word), mask);
                    sums.madd(Sums::<M>::SECOND, high, x.add(M));
                }
            }
            sums.floats()
        }
    }
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "by the contract of the trait")]
impl<const M: usize, const PLANES: usize> Dot<M> for Bytes<PLANES> {
    const CODES: usize = 32;
    const WORDS: usize = 2 * PLANES;
    floats!();

    #[inline(always)]
    unsafe fn dot(codes: *const u32, x: *const u32, steps: usize) -> [Self::F; M] {
        unsafe {
            let mut sums = Sums::<M>::zero();
            for plane in 0..PLANES {
                if plane == 1 {
                    sums.raise();
                }
                for v in 0..steps {
                    let x = x.add((v * PLANES + plane) * 2 * M);
                    sums.madd(0, words::<M>(codes.add(2 * v * 16)), x);
                    sums.madd(
                        Sums::<M>::SECOND,
                        words::<M>(codes.add((2 * v + 1) * 16)),
                        x.add(M),
                    );
                }
            }
            sums.floats()
        }
    }
}
