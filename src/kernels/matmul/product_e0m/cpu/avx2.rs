//! AVX2: 8-bit products with sums of pairs in 16 bits, and 16-bit products with sums in 32 bits.

use super::form::{Codes, Form};
use super::tile::{self, Call, Dot, Tile, by_height};
use std::arch::asm;
use std::arch::x86_64::*;

// Forms have `V` vectors of 8 columns: two for few rows, and for many rows one, twice for a panel,
// so that all sums stay in registers.

/// Weights of 4 bits with bytes: sums of 8 products of `15 * 128 * 2` fit in 16 bits.
struct Nibbles<const V: usize>;
/// Weights of 8 bits with bytes, as two numbers of 4 bits.
struct TwoNibbles<const V: usize>;
/// Weights of fewer bits in bytes: sums of `AT_ONCE` products fit in 16 bits.
struct Bytes<const V: usize, const AT_ONCE: usize>;
/// Weights of 4 bits with 16-bit integers.
struct NibblesBy16<const V: usize>;
/// Weights in bytes with 16-bit integers.
struct BytesBy16<const V: usize>;

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run<D: Dot<M>, const M: usize>(call: &Call) {
    // SAFETY: by the contract of `Tile`.
    unsafe { tile::tile::<D, M>(call) }
}

/// The function of a form with one vector or two.
macro_rules! by_rows {
    ($form:ident $(, $more:literal)?; $height:expr) => {
        match $height {
            1 | 2 => by_height!(run, $form<2 $(, $more)?>, $height, 1 2),
            _ => by_height!(run, $form<1 $(, $more)?>, $height, 3 4 5 6),
        }
    };
}
pub(super) use by_rows;

pub fn pick(form: Form, height: usize) -> Option<Tile> {
    match (form.codes, form.planes) {
        (Codes::Four, 1) => by_rows!(Nibbles; height),
        (Codes::Four, _) => by_rows!(NibblesBy16; height),
        (Codes::Eight, 1) => by_rows!(TwoNibbles; height),
        (Codes::Unpacked(6), 1) => by_rows!(Bytes, 2; height),
        (Codes::Unpacked(5), 1) => by_rows!(Bytes, 4; height),
        (Codes::Unpacked(_), 1) => by_rows!(Bytes, 16; height),
        (Codes::Eight | Codes::Unpacked(_), _) => by_rows!(BytesBy16; height),
    }
}

/// The functions of [`Dot`] on floats: `V` vectors.
macro_rules! floats {
    () => {
        type F = [__m256; V];
        const COLUMNS: usize = 8 * V;

        #[inline(always)]
        unsafe fn splat(v: f32) -> [__m256; V] {
            unsafe { [_mm256_set1_ps(v); V] }
        }
        #[inline(always)]
        unsafe fn load(at: *const f32) -> [__m256; V] {
            each!(j, _mm256_loadu_ps(at.add(8 * j)))
        }
        #[inline(always)]
        unsafe fn store(at: *mut f32, v: [__m256; V]) {
            for (j, v) in v.into_iter().enumerate() {
                unsafe { _mm256_storeu_ps(at.add(8 * j), v) };
            }
        }
        #[inline(always)]
        unsafe fn halves(at: *const u32) -> [[__m256; V]; 2] {
            unsafe { $crate::kernels::product_e0m::cpu::avx2::halves::<V>(at) }
        }
        #[inline(always)]
        unsafe fn sub(a: [__m256; V], b: [__m256; V]) -> [__m256; V] {
            each!(j, _mm256_sub_ps(a[j], b[j]))
        }
        #[inline(always)]
        unsafe fn mul(a: [__m256; V], b: [__m256; V]) -> [__m256; V] {
            each!(j, _mm256_mul_ps(a[j], b[j]))
        }
        #[inline(always)]
        unsafe fn fma(a: [__m256; V], b: [__m256; V], c: [__m256; V]) -> [__m256; V] {
            each!(j, _mm256_fmadd_ps(a[j], b[j], c[j]))
        }
    };
}
pub(super) use floats;

/// `V` vectors: that of each index.
macro_rules! each {
    ($j:ident, $value:expr) => {{
        // SAFETY: by the contract of the caller.
        unsafe {
            let mut out = [_mm256_setzero_ps(); V];
            for ($j, out) in out.iter_mut().enumerate() {
                *out = $value;
            }
            out
        }
    }};
}
pub(super) use each;

/// The same for integers.
macro_rules! each_integer {
    ($j:ident, $value:expr) => {{
        // SAFETY: by the contract of the caller.
        unsafe {
            let mut out = [_mm256_setzero_si256(); V];
            for ($j, out) in out.iter_mut().enumerate() {
                *out = $value;
            }
            out
        }
    }};
}

/// A loop over steps, without branches for the usual four.
macro_rules! by_step {
    ($steps:expr, $v:ident, $body:block) => {
        if $steps == 4 {
            by_step!(@ $v, $body, 0 1 2 3);
        } else {
            for $v in 0..$steps $body
        }
    };
    (@ $v:ident, $body:block, $($i:literal)*) => {
        $({
            let $v: usize = $i;
            $body
        })*
    };
}

/// The low and the high halves of words as floats.
#[inline(always)]
pub(super) unsafe fn halves<const V: usize>(at: *const u32) -> [[__m256; V]; 2] {
    // SAFETY: by the contract of the caller.
    unsafe {
        let words = words::<V>(at);
        let (mut low, mut high) = ([_mm256_setzero_ps(); V], [_mm256_setzero_ps(); V]);
        for j in 0..V {
            let v = _mm256_and_si256(words[j], _mm256_set1_epi32(0xFFFF));
            let v = _mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
            low[j] = _mm256_cvtph_ps(v);
            let v = _mm256_srli_epi32::<16>(words[j]);
            let v = _mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
            high[j] = _mm256_cvtph_ps(v);
        }
        [low, high]
    }
}

/// The integers of some columns for each row.
pub(super) type Sums<const M: usize, const V: usize> = [[__m256i; V]; M];

#[inline(always)]
pub(super) unsafe fn zeros<const M: usize, const V: usize>() -> Sums<M, V> {
    // SAFETY: the processor has AVX2.
    unsafe { [[_mm256_setzero_si256(); V]; M] }
}

#[inline(always)]
pub(super) unsafe fn to_floats<const M: usize, const V: usize>(sums: Sums<M, V>) -> [[__m256; V]; M] {
    // SAFETY: the processor has AVX2.
    unsafe {
        let mut out = [[_mm256_setzero_ps(); V]; M];
        for m in 0..M {
            for j in 0..V {
                out[m][j] = _mm256_cvtepi32_ps(sums[m][j]);
            }
        }
        out
    }
}

/// Loads words of a panel.
#[inline(always)]
pub(super) unsafe fn words<const V: usize>(at: *const u32) -> [__m256i; V] {
    each_integer!(j, _mm256_loadu_si256(at.add(8 * j).cast()))
}

#[inline(always)]
pub(super) unsafe fn and<const V: usize>(a: [__m256i; V], mask: i32) -> [__m256i; V] {
    each_integer!(j, _mm256_and_si256(a[j], _mm256_set1_epi32(mask)))
}

/// Shifts halves of words right.
#[inline(always)]
pub(super) unsafe fn shift<const N: i32, const V: usize>(a: [__m256i; V]) -> [__m256i; V] {
    each_integer!(j, _mm256_srli_epi16::<N>(a[j]))
}

/// Fetches the words 4 KB on, which the processor's own prefetchers do not do at the end of a page.
#[inline(always)]
pub(super) unsafe fn prefetch<const M: usize>(at: *const u32) {
    if M == 1 {
        // SAFETY: a hint; the address need not be valid.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(1024).cast()) }
    }
}

/// The same value, which the compiler does not look into: it would reorder long sums so that there
/// are too few registers.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn opaque(mut v: __m256i) -> __m256i {
    // SAFETY: no instruction.
    unsafe { asm!("/* {0} */", inout(ymm_reg) v, options(pure, nomem, nostack, preserves_flags)) };
    v
}

/// Adds products of bytes in 16 bits: pairs of neighbouring bytes.
#[inline(always)]
unsafe fn madd8<const M: usize, const V: usize>(sums: &mut Sums<M, V>, codes: [__m256i; V], x: *const u32) {
    // SAFETY: by the contract of the caller.
    unsafe {
        for (m, sum) in sums.iter_mut().enumerate() {
            let x = _mm256_set1_epi32(x.add(m).read().cast_signed());
            for j in 0..V {
                sum[j] = opaque(_mm256_add_epi16(sum[j], _mm256_maddubs_epi16(codes[j], x)));
            }
        }
    }
}

/// Adds products of 16 bits in 32 bits.
#[inline(always)]
unsafe fn madd16<const M: usize, const V: usize>(sums: &mut Sums<M, V>, codes: [__m256i; V], x: *const u32) {
    // SAFETY: by the contract of the caller.
    unsafe {
        for (m, sum) in sums.iter_mut().enumerate() {
            let x = _mm256_set1_epi32(x.add(m).read().cast_signed());
            for j in 0..V {
                sum[j] = opaque(_mm256_add_epi32(sum[j], _mm256_madd_epi16(codes[j], x)));
            }
        }
    }
}

/// Adds `by` times the pairs of sums of 16 bits to those of 32 bits.
#[inline(always)]
unsafe fn widen<const M: usize, const V: usize>(sums: &mut Sums<M, V>, short: &Sums<M, V>, by: i16) {
    // SAFETY: the processor has AVX2.
    unsafe {
        for m in 0..M {
            for j in 0..V {
                let pairs = _mm256_madd_epi16(short[m][j], _mm256_set1_epi16(by));
                sums[m][j] = _mm256_add_epi32(sums[m][j], pairs);
            }
        }
    }
}

/// Sums of 16 bits of at most four steps of [`Nibbles`].
#[inline(always)]
unsafe fn nibbles<const M: usize, const V: usize>(
    codes: *const u32,
    x: *const u32,
    steps: usize,
) -> Sums<M, V> {
    // SAFETY: by the contract of the caller.
    unsafe {
        let mut short = zeros::<M, V>();
        by_step!(steps, v, {
            prefetch::<M>(codes.add(v * 16));
            let word = words::<V>(codes.add(v * 16));
            madd8(&mut short, and(word, 0x0F0F_0F0F), x.add(2 * v * M));
            madd8(
                &mut short,
                and(shift::<4, V>(word), 0x0F0F_0F0F),
                x.add((2 * v + 1) * M),
            );
        });
        short
    }
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "by the contract of the trait")]
impl<const M: usize, const V: usize> Dot<M> for Nibbles<V> {
    const CODES: usize = 16;
    const WORDS: usize = 2;
    floats!();

    #[inline(always)]
    unsafe fn dot(mut codes: *const u32, mut x: *const u32, mut steps: usize) -> [Self::F; M] {
        unsafe {
            let mut sums = zeros::<M, V>();
            if steps >= 4 {
                widen(&mut sums, &nibbles::<M, V>(codes, x, 4), 1);
                steps -= 4;
                while steps >= 4 {
                    codes = codes.add(64);
                    x = x.add(8 * M);
                    widen(&mut sums, &nibbles::<M, V>(codes, x, 4), 1);
                    steps -= 4;
                }
                if steps == 0 {
                    return to_floats(sums);
                }
                codes = codes.add(64);
                x = x.add(8 * M);
            }
            widen(&mut sums, &nibbles::<M, V>(codes, x, steps), 1);
            to_floats(sums)
        }
    }
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "by the contract of the trait")]
impl<const M: usize, const V: usize> Dot<M> for TwoNibbles<V> {
    const CODES: usize = 32;
    const WORDS: usize = 2;
    floats!();

    #[inline(always)]
    unsafe fn dot(codes: *const u32, x: *const u32, steps: usize) -> [Self::F; M] {
        unsafe {
            let mut sums = zeros::<M, V>();
            let mut at = 0;
            while at < 2 * steps {
                let end = (at + 8).min(2 * steps);
                let (mut low, mut high) = (zeros::<M, V>(), zeros::<M, V>());
                for v in at..end {
                    prefetch::<M>(codes.add(v * 16));
                    let word = words::<V>(codes.add(v * 16));
                    madd8(&mut low, and(word, 0x0F0F_0F0F), x.add(v * M));
                    madd8(&mut high, and(shift::<4, V>(word), 0x0F0F_0F0F), x.add(v * M));
                }
                widen(&mut sums, &low, 1);
                widen(&mut sums, &high, 16);
                at = end;
            }
            to_floats(sums)
        }
    }
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "by the contract of the trait")]
impl<const M: usize, const V: usize, const AT_ONCE: usize> Dot<M> for Bytes<V, AT_ONCE> {
    const CODES: usize = 32;
    const WORDS: usize = 2;
    floats!();

    #[inline(always)]
    unsafe fn dot(codes: *const u32, x: *const u32, steps: usize) -> [Self::F; M] {
        unsafe {
            let mut sums = zeros::<M, V>();
            let mut at = 0;
            while at < 2 * steps {
                let end = (at + AT_ONCE).min(2 * steps);
                let mut short = zeros::<M, V>();
                for v in at..end {
                    madd8(&mut short, words::<V>(codes.add(v * 16)), x.add(v * M));
                }
                widen(&mut sums, &short, 1);
                at = end;
            }
            to_floats(sums)
        }
    }
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "by the contract of the trait")]
impl<const M: usize, const V: usize> Dot<M> for NibblesBy16<V> {
    const CODES: usize = 16;
    const WORDS: usize = 4;
    floats!();

    #[inline(always)]
    unsafe fn dot(codes: *const u32, x: *const u32, steps: usize) -> [Self::F; M] {
        unsafe {
            let mut sums = zeros::<M, V>();
            by_step!(steps, v, {
                prefetch::<M>(codes.add(v * 16));
                let word = words::<V>(codes.add(v * 16));
                let x = x.add(4 * v * M);
                madd16(&mut sums, and(word, 0x000F_000F), x);
                madd16(&mut sums, and(shift::<4, V>(word), 0x000F_000F), x.add(M));
                madd16(&mut sums, and(shift::<8, V>(word), 0x000F_000F), x.add(2 * M));
                madd16(&mut sums, shift::<12, V>(word), x.add(3 * M));
            });
            to_floats(sums)
        }
    }
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "by the contract of the trait")]
impl<const M: usize, const V: usize> Dot<M> for BytesBy16<V> {
    const CODES: usize = 32;
    const WORDS: usize = 4;
    floats!();

    #[inline(always)]
    unsafe fn dot(codes: *const u32, x: *const u32, steps: usize) -> [Self::F; M] {
        unsafe {
            let mut sums = zeros::<M, V>();
            for v in 0..2 * steps {
                prefetch::<M>(codes.add(v * 16));
                let word = words::<V>(codes.add(v * 16));
                madd16(&mut sums, and(word, 0x00FF_00FF), x.add(2 * v * M));
                madd16(&mut sums, shift::<8, V>(word), x.add((2 * v + 1) * M));
            }
            to_floats(sums)
        }
    }
}
