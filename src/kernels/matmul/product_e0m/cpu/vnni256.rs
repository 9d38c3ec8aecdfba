//! AVX-VNNI: four products of bytes in 32 bits, in vectors of 256 bits.

use super::avx2::{Sums, and, by_rows, each, floats, prefetch, shift, to_floats, words, zeros};
use super::form::{Codes, Form};
use super::tile::{self, Call, Dot, Tile, by_height};
use std::arch::x86_64::*;

/// Weights of 4 bits.
struct Nibbles<const V: usize, const PLANES: usize>;
/// Weights in bytes.
struct Bytes<const V: usize, const PLANES: usize>;

#[target_feature(enable = "avxvnni,avx2,fma,f16c")]
unsafe fn run<D: Dot<M>, const M: usize>(call: &Call) {
    // SAFETY: by the contract of `Tile`.
    unsafe { tile::tile::<D, M>(call) }
}

pub fn pick(form: Form, height: usize) -> Option<Tile> {
    match (form.codes, form.planes) {
        (Codes::Four, 1) => by_rows!(Nibbles, 1; height),
        (Codes::Four, _) => by_rows!(Nibbles, 2; height),
        (_, 1) => by_rows!(Bytes, 1; height),
        (_, _) => by_rows!(Bytes, 2; height),
    }
}

/// Adds products of unsigned bytes and the signed bytes of each row.
#[inline(always)]
unsafe fn madd<const M: usize, const V: usize>(sums: &mut Sums<M, V>, codes: [__m256i; V], x: *const u32) {
    // SAFETY: by the contract of the caller.
    unsafe {
        for (m, sum) in sums.iter_mut().enumerate() {
            let x = _mm256_set1_epi32(x.add(m).read().cast_signed());
            for j in 0..V {
                sum[j] = _mm256_dpbusd_avx_epi32(sum[j], codes[j], x);
            }
        }
    }
}

/// Multiplies sums of high bytes by 256.
#[inline(always)]
unsafe fn raise<const M: usize, const V: usize>(sums: &mut Sums<M, V>) {
    // SAFETY: the processor has AVX2.
    unsafe {
        for sum in sums.iter_mut().flatten() {
            *sum = _mm256_slli_epi32::<8>(*sum);
        }
    }
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "by the contract of the trait")]
impl<const M: usize, const V: usize, const PLANES: usize> Dot<M> for Nibbles<V, PLANES> {
    const CODES: usize = 16;
    const WORDS: usize = 2 * PLANES;
    floats!();

    #[inline(always)]
    unsafe fn dot(codes: *const u32, x: *const u32, steps: usize) -> [Self::F; M] {
        unsafe {
            let mut sums = zeros::<M, V>();
            for plane in 0..PLANES {
                if plane == 1 {
                    raise(&mut sums);
                }
                for v in 0..steps {
                    if plane == 0 {
                        prefetch::<M>(codes.add(v * 16));
                    }
                    let word = words::<V>(codes.add(v * 16));
                    let x = x.add((v * PLANES + plane) * 2 * M);
                    madd(&mut sums, and(word, 0x0F0F_0F0F), x);
                    madd(&mut sums, and(shift::<4, V>(word), 0x0F0F_0F0F), x.add(M));
                }
            }
            to_floats(sums)
        }
    }
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "by the contract of the trait")]
impl<const M: usize, const V: usize, const PLANES: usize> Dot<M> for Bytes<V, PLANES> {
    const CODES: usize = 32;
    const WORDS: usize = 2 * PLANES;
    floats!();

    #[inline(always)]
    unsafe fn dot(codes: *const u32, x: *const u32, steps: usize) -> [Self::F; M] {
        unsafe {
            let mut sums = zeros::<M, V>();
            for plane in 0..PLANES {
                if plane == 1 {
                    raise(&mut sums);
                }
                for v in 0..steps {
                    for half in 0..2 {
                        let at = codes.add((2 * v + half) * 16);
                        if plane == 0 {
                            prefetch::<M>(at);
                        }
                        madd(
                            &mut sums,
                            words::<V>(at),
                            x.add(((v * PLANES + plane) * 2 + half) * M),
                        );
                    }
                }
            }
            to_floats(sums)
        }
    }
}
