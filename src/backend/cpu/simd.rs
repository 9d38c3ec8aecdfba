//! Vectors of floats, one type for each instruction set, so that a kernel is written once.
//!
//! A kernel's inner loops are a [`Job`], generic over [`Simd`]; [`run`] compiles them for each
//! instruction set and calls the form for the given one. All functions of a job must be
//! `#[inline(always)]`, and closures must not use vectors: code that is not inlined is compiled
//! without the instruction set, and each vector operation in it becomes a call. `tools/test.sh`
//! looks for such calls.

use super::isa::Isa;
use half::f16;

/// Vectors of an instruction set. All functions are safe to call only inside a [`Job`] that
/// [`run`] has started.
#[expect(clippy::missing_safety_doc, reason = "the trait states it")]
pub trait Simd: Copy + Send + Sync + 'static {
    /// Floats in a vector.
    const LANES: usize;
    /// A vector of f32.
    type F: Copy;

    unsafe fn splat(v: f32) -> Self::F;
    /// Reads `LANES` floats at any alignment.
    unsafe fn load(at: *const f32) -> Self::F;
    unsafe fn store(at: *mut f32, v: Self::F);
    /// Reads `LANES` halves.
    unsafe fn load_f16(at: *const f16) -> Self::F;
    /// Stores as halves, rounded to nearest, ties to even.
    unsafe fn store_f16(at: *mut f16, v: Self::F);
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, fused if the instruction set supports it.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The larger one; `b` if either is NaN.
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// The smaller one; `b` if either is NaN.
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn abs(a: Self::F) -> Self::F;
    unsafe fn sqrt(a: Self::F) -> Self::F;
    /// To the nearest integer, ties to even.
    unsafe fn round(a: Self::F) -> Self::F;
    /// `x` where `a < b`, else `y`.
    unsafe fn select_less(a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F;
    /// 2 to the power of `n`, an integer from -126 to 127.
    unsafe fn exp2_int(n: Self::F) -> Self::F;
    /// The sum of all lanes, pairwise.
    unsafe fn sum(v: Self::F) -> f32;
    /// The largest lane.
    unsafe fn largest(v: Self::F) -> f32;
    /// Prefetches memory that will be read soon; any address is allowed.
    #[inline(always)]
    fn prefetch(_at: *const u8) {}
    /// Sums of pairs, for each group of four lanes: `[a0 + a1, a2 + a3, b0 + b1, b2 + b3]`.
    unsafe fn fold(a: Self::F, b: Self::F) -> Self::F;
    /// Stores four sums: of lanes 0, 4, .., of lanes 1, 5, .., and so on. So
    /// `store_fours(at, fold(fold(a, b), fold(c, d)))` stores the sums of vectors a, b, c and d.
    unsafe fn store_fours(at: *mut f32, v: Self::F);
}

/// Work that is compiled for each instruction set.
pub trait Job {
    type Out;
    /// # Safety
    /// The processor has the instructions of `S`. Implementations are `#[inline(always)]`.
    unsafe fn run<S: Simd>(self) -> Self::Out;
}

/// Runs a job with the vectors of `isa`.
/// # Safety
/// The processor supports `isa`, and what the job requires holds.
pub unsafe fn run<J: Job>(isa: Isa, job: J) -> J::Out {
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => x86::avx512(job),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => x86::avx2(job),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon | Isa::NeonDot | Isa::NeonI8mm => job.run::<arm::Neon>(),
            _ => job.run::<Portable>(),
        }
    }
}

/// `x` between two bounds. NaN stays NaN.
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub unsafe fn clamp<S: Simd>(x: S::F, [low, high]: [f32; 2]) -> S::F {
    // The second operand of a minimum or maximum stays if it is NaN.
    unsafe { S::min(S::splat(high), S::max(S::splat(low), x)) }
}

/// e to the power of `x`; relative error below 2e-7. 0 if `x` is below -87.3; at most e^88. NaN
/// stays NaN.
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub unsafe fn exp<S: Simd>(x: S::F) -> S::F {
    unsafe {
        let x_in = x;
        // The second operand of a minimum or maximum stays if it is NaN.
        let x = S::max(S::splat(-87.3), S::min(S::splat(88.0), x));
        let n = S::round(S::mul(x, S::splat(std::f32::consts::LOG2_E)));
        let p = exp_rest::<S>(x, n);
        let y = S::mul(p, S::exp2_int(n));
        S::select_less(x_in, S::splat(-87.3), S::splat(0.0), y)
    }
}

/// e to the power of `x` over the whole range of floats; relative error below 3e-7.
///
/// # Safety
///
/// As for [`Simd`].
#[inline(always)]
pub unsafe fn exp_all<S: Simd>(x: S::F) -> S::F {
    unsafe {
        // `x` is the second operand, so that NaN is kept.
        let x = S::max(S::splat(-104.0), S::min(S::splat(89.0), x));
        let n = S::round(S::mul(x, S::splat(std::f32::consts::LOG2_E)));
        let p = exp_rest::<S>(x, n);
        // In two steps, because the power of two alone may be out of range.
        let half = S::round(S::mul(n, S::splat(0.5)));
        S::mul(S::mul(p, S::exp2_int(half)), S::exp2_int(S::sub(n, half)))
    }
}

/// e to the power of `x - n ln 2`, where `n` is the integer nearest to `x / ln 2`.
///
/// # Safety
///
/// As for [`Simd`].
#[inline(always)]
unsafe fn exp_rest<S: Simd>(x: S::F, n: S::F) -> S::F {
    unsafe {
        let r = S::fma(n, S::splat(-0.693_359_4), x);
        let r = S::fma(n, S::splat(2.121_944_4e-4), r);
        let mut p = S::splat(1.987_569_1e-4);
        for c in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
            p = S::fma(p, r, S::splat(c));
        }
        S::add(S::fma(S::mul(r, r), p, r), S::splat(1.0))
    }
}

/// The hyperbolic tangent: by a polynomial near 0, elsewhere by the exponential.
///
/// # Safety
///
/// As for [`Simd`].
#[inline(always)]
pub unsafe fn tanh<S: Simd>(x: S::F) -> S::F {
    unsafe {
        let (one, z) = (S::splat(1.0), S::mul(x, x));
        let mut p = S::splat(-5.704_988_7e-3);
        for c in [2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1] {
            p = S::fma(p, z, S::splat(c));
        }
        let near = S::fma(S::mul(p, z), x, x);
        let e = exp_all::<S>(S::mul(S::abs(x), S::splat(-2.0)));
        let far = S::div(S::sub(one, e), S::add(one, e));
        let far = S::select_less(x, S::splat(0.0), S::sub(S::splat(0.0), far), far);
        S::select_less(S::abs(x), S::splat(0.625), near, far)
    }
}

/// The error function, by the formula of the reference.
///
/// # Safety
///
/// As for [`Simd`].
#[inline(always)]
pub unsafe fn erf<S: Simd>(x: S::F) -> S::F {
    unsafe {
        let (one, zero) = (S::splat(1.0), S::splat(0.0));
        let t = S::min(S::splat(10.0), S::abs(x));
        let s = S::mul(t, t);
        let high = S::fma(S::splat(-1.728_534_7e-5), t, S::splat(3.831_972e-4));
        let low = S::fma(S::splat(-3.883_964_7e-3), t, S::splat(2.425_462_2e-2));
        let mut r = S::fma(high, s, low);
        for c in [-1.067_778_8e-1, -6.348_467e-1, -1.287_175_1e-1] {
            r = S::fma(r, t, S::splat(c));
        }
        let far = S::sub(one, exp_all::<S>(S::fma(r, t, S::sub(zero, t))));
        let far = S::select_less(x, zero, S::sub(zero, far), far);
        let mut n = S::splat(-5.967_617e-4);
        for c in [
            4.991_194e-3,
            -2.676_813_5e-2,
            1.128_199_3e-1,
            -3.761_253_4e-1,
            1.283_791_7e-1,
        ] {
            n = S::fma(n, s, S::splat(c));
        }
        S::select_less(t, S::splat(0.927_734_4), S::fma(n, x, x), far)
    }
}

/// Largest number of lanes of any instruction set.
const MOST_LANES: usize = 16;

/// Reads the first `n` lanes; the others become `fill`.
/// # Safety
/// As for [`Simd`]; `n <= LANES`, and `n` floats can be read.
#[inline(always)]
pub unsafe fn load_part<S: Simd>(at: *const f32, n: usize, fill: f32) -> S::F {
    let mut lanes = [fill; MOST_LANES];
    // SAFETY: no set has more lanes than the array.
    unsafe {
        std::ptr::copy_nonoverlapping(at, lanes.as_mut_ptr(), n);
        S::load(lanes.as_ptr())
    }
}

/// Stores the first `n` lanes.
/// # Safety
/// As for [`Simd`]; `n <= LANES`, and `n` floats can be written.
#[inline(always)]
pub unsafe fn store_part<S: Simd>(at: *mut f32, n: usize, v: S::F) {
    let mut lanes = [0.0; MOST_LANES];
    // SAFETY: no set has more lanes than the array.
    unsafe {
        S::store(lanes.as_mut_ptr(), v);
        std::ptr::copy_nonoverlapping(lanes.as_ptr(), at, n);
    }
}

/// Plain Rust: arrays that the compiler may vectorize.
#[derive(Clone, Copy)]
pub struct Portable;

#[inline(always)]
fn each(f: impl Fn(usize) -> f32) -> [f32; 4] {
    std::array::from_fn(f)
}

/// Not inlined, nor is [`narrow`]: conversions take many instructions.
#[inline(never)]
fn widen(v: [f16; 4]) -> [f32; 4] {
    v.map(f16::to_f32)
}

#[inline(never)]
fn narrow(v: [f32; 4]) -> [f16; 4] {
    v.map(f16::from_f32)
}

impl Simd for Portable {
    const LANES: usize = 4;
    type F = [f32; 4];

    #[inline(always)]
    unsafe fn splat(v: f32) -> Self::F {
        [v; 4]
    }
    #[inline(always)]
    unsafe fn load(at: *const f32) -> Self::F {
        unsafe { at.cast::<Self::F>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(at: *mut f32, v: Self::F) {
        unsafe { at.cast::<Self::F>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn load_f16(at: *const f16) -> Self::F {
        widen(unsafe { at.cast::<[f16; 4]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store_f16(at: *mut f16, v: Self::F) {
        unsafe { at.cast::<[f16; 4]>().write_unaligned(narrow(v)) }
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        each(|i| a[i] + b[i])
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        each(|i| a[i] - b[i])
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        each(|i| a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        each(|i| a[i] / b[i])
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        each(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        each(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        each(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn abs(a: Self::F) -> Self::F {
        each(|i| a[i].abs())
    }
    #[inline(always)]
    unsafe fn sqrt(a: Self::F) -> Self::F {
        each(|i| a[i].sqrt())
    }
    #[inline(always)]
    unsafe fn round(a: Self::F) -> Self::F {
        // Adding 1.5 * 2^23 leaves no bits for a fraction; larger numbers have none.
        const SHIFT: f32 = 12_582_912.0;
        each(|i| match a[i].abs() < 4_194_304.0 {
            true => ((a[i] + SHIFT) - SHIFT).copysign(a[i]),
            false => a[i],
        })
    }
    #[inline(always)]
    unsafe fn select_less(a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F {
        each(|i| if a[i] < b[i] { x[i] } else { y[i] })
    }
    #[inline(always)]
    unsafe fn exp2_int(n: Self::F) -> Self::F {
        each(|i| f32::from_bits((n[i] as i32).wrapping_add(127).cast_unsigned() << 23))
    }
    #[inline(always)]
    unsafe fn sum(v: Self::F) -> f32 {
        (v[0] + v[2]) + (v[1] + v[3])
    }
    #[inline(always)]
    unsafe fn largest(v: Self::F) -> f32 {
        v.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
    #[inline(always)]
    unsafe fn fold(a: Self::F, b: Self::F) -> Self::F {
        [a[0] + a[1], a[2] + a[3], b[0] + b[1], b[2] + b[3]]
    }
    #[inline(always)]
    unsafe fn store_fours(at: *mut f32, v: Self::F) {
        unsafe { at.cast::<[f32; 4]>().write_unaligned(v) }
    }
}

/// Implements functions of a trait by intrinsics.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! intrinsics {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $out:ty = $body:expr;)*) => {
        $(#[inline(always)]
        #[allow(unused_unsafe, reason = "some functions only pass a value on")]
        unsafe fn $name($($arg: $ty),*) -> $out {
            // SAFETY: the processor has the instructions.
            unsafe { $body }
        })*
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use intrinsics;

#[cfg(target_arch = "x86_64")]
pub mod x86 {
    //! AVX2 with FMA and F16C, and AVX-512.

    use super::{Job, Simd};
    use half::f16;
    use std::arch::x86_64::*;

    #[derive(Clone, Copy)]
    pub struct Avx2;
    #[derive(Clone, Copy)]
    pub struct Avx512;

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn avx2<J: Job>(job: J) -> J::Out {
        unsafe { job.run::<Avx2>() }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
    pub(super) unsafe fn avx512<J: Job>(job: J) -> J::Out {
        unsafe { job.run::<Avx512>() }
    }

    impl Simd for Avx2 {
        #[inline(always)]
        fn prefetch(at: *const u8) {
            // SAFETY: a hint, which reads nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
        }
        const LANES: usize = 8;
        type F = __m256;
        intrinsics! {
            splat(v: f32) -> __m256 = _mm256_set1_ps(v);
            load(at: *const f32) -> __m256 = _mm256_loadu_ps(at);
            store(at: *mut f32, v: __m256) -> () = _mm256_storeu_ps(at, v);
            load_f16(at: *const f16) -> __m256 = _mm256_cvtph_ps(_mm_loadu_si128(at.cast()));
            store_f16(at: *mut f16, v: __m256) -> () = _mm_storeu_si128(at.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v));
            add(a: __m256, b: __m256) -> __m256 = _mm256_add_ps(a, b);
            sub(a: __m256, b: __m256) -> __m256 = _mm256_sub_ps(a, b);
            mul(a: __m256, b: __m256) -> __m256 = _mm256_mul_ps(a, b);
            div(a: __m256, b: __m256) -> __m256 = _mm256_div_ps(a, b);
            fma(a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_fmadd_ps(a, b, c);
            max(a: __m256, b: __m256) -> __m256 = _mm256_max_ps(a, b);
            min(a: __m256, b: __m256) -> __m256 = _mm256_min_ps(a, b);
            abs(a: __m256) -> __m256 = _mm256_andnot_ps(_mm256_set1_ps(-0.0), a);
            sqrt(a: __m256) -> __m256 = _mm256_sqrt_ps(a);
            round(a: __m256) -> __m256 = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a);
            select_less(a: __m256, b: __m256, x: __m256, y: __m256) -> __m256 = _mm256_blendv_ps(y, x, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b));
            exp2_int(n: __m256) -> __m256 = {
                let n = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(n))
            };
            sum(v: __m256) -> f32 = {
                let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
                let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
                _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
            };
            largest(v: __m256) -> f32 = {
                let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
                let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
                _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)))
            };
            fold(a: __m256, b: __m256) -> __m256 = _mm256_hadd_ps(a, b);
            store_fours(at: *mut f32, v: __m256) -> () = {
                _mm_storeu_ps(at, _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v)));
            };
        }
    }

    impl Simd for Avx512 {
        #[inline(always)]
        fn prefetch(at: *const u8) {
            // SAFETY: a hint, which reads nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
        }
        const LANES: usize = 16;
        type F = __m512;
        intrinsics! {
            splat(v: f32) -> __m512 = _mm512_set1_ps(v);
            load(at: *const f32) -> __m512 = _mm512_loadu_ps(at);
            store(at: *mut f32, v: __m512) -> () = _mm512_storeu_ps(at, v);
            load_f16(at: *const f16) -> __m512 = _mm512_cvtph_ps(_mm256_loadu_si256(at.cast()));
            store_f16(at: *mut f16, v: __m512) -> () = _mm256_storeu_si256(at.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v));
            add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
            sub(a: __m512, b: __m512) -> __m512 = _mm512_sub_ps(a, b);
            mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
            div(a: __m512, b: __m512) -> __m512 = _mm512_div_ps(a, b);
            fma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
            max(a: __m512, b: __m512) -> __m512 = _mm512_max_ps(a, b);
            min(a: __m512, b: __m512) -> __m512 = _mm512_min_ps(a, b);
            abs(a: __m512) -> __m512 = _mm512_abs_ps(a);
            sqrt(a: __m512) -> __m512 = _mm512_sqrt_ps(a);
            round(a: __m512) -> __m512 = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a);
            select_less(a: __m512, b: __m512, x: __m512, y: __m512) -> __m512 = _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), y, x);
            exp2_int(n: __m512) -> __m512 = {
                let n = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
                _mm512_castsi512_ps(_mm512_slli_epi32::<23>(n))
            };
            sum(v: __m512) -> f32 = _mm512_reduce_add_ps(v);
            largest(v: __m512) -> f32 = _mm512_reduce_max_ps(v);
            fold(a: __m512, b: __m512) -> __m512 = {
                _mm512_add_ps(_mm512_shuffle_ps::<0x88>(a, b), _mm512_shuffle_ps::<0xDD>(a, b))
            };
            store_fours(at: *mut f32, v: __m512) -> () = {
                let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(v)));
                Avx2::store_fours(at, _mm256_add_ps(_mm512_castps512_ps256(v), high));
            };
        }
    }
}

#[cfg(target_arch = "aarch64")]
pub mod arm {
    //! NEON.

    use super::Simd;
    use half::f16;
    use std::arch::aarch64::*;

    #[derive(Clone, Copy)]
    pub struct Neon;

    impl Simd for Neon {
        const LANES: usize = 4;
        type F = float32x4_t;
        intrinsics! {
            splat(v: f32) -> float32x4_t = vdupq_n_f32(v);
            load(at: *const f32) -> float32x4_t = vld1q_f32(at);
            store(at: *mut f32, v: float32x4_t) -> () = vst1q_f32(at, v);
            load_f16(at: *const f16) -> float32x4_t = {
                let v = at.cast::<[u16; 4]>().read_unaligned();
                let y: float32x4_t;
                std::arch::asm!("fcvtl {y:v}.4s, {x:v}.4h", y = out(vreg) y, x = in(vreg) vld1_u16(v.as_ptr()), options(pure, nomem, nostack));
                y
            };
            store_f16(at: *mut f16, v: float32x4_t) -> () = {
                let y: uint16x4_t;
                std::arch::asm!("fcvtn {y:v}.4h, {x:v}.4s", y = out(vreg) y, x = in(vreg) v, options(pure, nomem, nostack));
                vst1_u16(at.cast(), y)
            };
            add(a: float32x4_t, b: float32x4_t) -> float32x4_t = vaddq_f32(a, b);
            sub(a: float32x4_t, b: float32x4_t) -> float32x4_t = vsubq_f32(a, b);
            mul(a: float32x4_t, b: float32x4_t) -> float32x4_t = vmulq_f32(a, b);
            div(a: float32x4_t, b: float32x4_t) -> float32x4_t = vdivq_f32(a, b);
            fma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t = vfmaq_f32(c, a, b);
            max(a: float32x4_t, b: float32x4_t) -> float32x4_t = vbslq_f32(vcgtq_f32(a, b), a, b);
            min(a: float32x4_t, b: float32x4_t) -> float32x4_t = vbslq_f32(vcltq_f32(a, b), a, b);
            abs(a: float32x4_t) -> float32x4_t = vabsq_f32(a);
            sqrt(a: float32x4_t) -> float32x4_t = vsqrtq_f32(a);
            round(a: float32x4_t) -> float32x4_t = vrndnq_f32(a);
            select_less(a: float32x4_t, b: float32x4_t, x: float32x4_t, y: float32x4_t) -> float32x4_t = vbslq_f32(vcltq_f32(a, b), x, y);
            exp2_int(n: float32x4_t) -> float32x4_t = {
                let n = vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127));
                vreinterpretq_f32_s32(vshlq_n_s32::<23>(n))
            };
            sum(v: float32x4_t) -> f32 = vaddvq_f32(v);
            largest(v: float32x4_t) -> f32 = vmaxvq_f32(v);
            fold(a: float32x4_t, b: float32x4_t) -> float32x4_t = vpaddq_f32(a, b);
            store_fours(at: *mut f32, v: float32x4_t) -> () = vst1q_f32(at, v);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Exp<'a>(&'a [f32], &'a mut [f32]);
    impl Job for Exp<'_> {
        type Out = ();
        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            for (x, y) in self
                .0
                .chunks_exact(S::LANES)
                .zip(self.1.chunks_exact_mut(S::LANES))
            {
                // SAFETY: chunks have `LANES` elements.
                unsafe { S::store(y.as_mut_ptr(), exp::<S>(S::load(x.as_ptr()))) }
            }
        }
    }

    #[test]
    fn exponentials_are_exact_to_a_few_units() {
        let x: Vec<f32> = (0..1600).map(|i| (i as f32 - 800.0) / 8.5).collect();
        for isa in Isa::supported() {
            let mut y = vec![0.0; x.len()];
            // SAFETY: supported.
            unsafe { run(isa, Exp(&x, &mut y)) };
            for (x, y) in x.iter().zip(&y) {
                let want = f64::from(*x).min(88.0).exp();
                let want = if *x < -87.3 { 0.0 } else { want };
                assert!(
                    (f64::from(*y) - want).abs() <= 3e-7 * want,
                    "{isa:?}: exp({x}) = {y}, not {want}"
                );
            }
        }
    }

    struct Functions;
    impl Job for Functions {
        type Out = ();
        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            let lanes: [[f32; 16]; 4] =
                std::array::from_fn(|v| std::array::from_fn(|i| (v * 100 + i) as f32 / 8.0 - 5.0));
            // SAFETY: arrays have 16 elements.
            unsafe {
                let [a, b, c, d] = lanes.map(|v| S::load(v.as_ptr()));
                let mut sums = [0.0; 4];
                S::store_fours(sums.as_mut_ptr(), S::fold(S::fold(a, b), S::fold(c, d)));
                for (sum, v) in sums.iter().zip(&lanes) {
                    assert_eq!(*sum, v.iter().take(S::LANES).sum::<f32>());
                }
                let mut y = [0f32; 16];
                S::store(y.as_mut_ptr(), tanh::<S>(a));
                for (y, x) in y.iter().zip(&lanes[0]).take(S::LANES) {
                    assert!(
                        (f64::from(*y) - f64::from(*x).tanh()).abs() < 2e-7,
                        "tanh({x}) = {y}"
                    );
                }
                let mut y = [7f32; 16];
                store_part::<S>(y.as_mut_ptr(), 3, load_part::<S>(lanes[1].as_ptr(), 2, 9.0));
                assert_eq!(y[..4], [lanes[1][0], lanes[1][1], 9.0, 7.0]);
                S::prefetch(std::ptr::null());
            }
        }
    }

    #[test]
    fn sums_parts_and_tangents_are_right() {
        for isa in Isa::supported() {
            // SAFETY: supported.
            unsafe { run(isa, Functions) };
        }
    }
}
