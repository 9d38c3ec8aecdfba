//! Vectors of 8-bit integers and of 32-bit sums, with one type for each way in which instruction
//! sets multiply bytes.
//!
//! As with [`super::simd`], the inner loops of a kernel are a [`Job`], generic over [`Bytes`], and
//! [`run`] runs the variant for an instruction set. All functions of a job must be
//! `#[inline(always)]`, and closures must not use vectors.
//!
//! A vector has [`Bytes::LANES`] words, and four times as many bytes. Functions that turn four
//! vectors of words into one of bytes, or the reverse, work in blocks of 16 bytes: word
//! `4 * block + i` of vector `q` belongs to byte `16 * block + 4 * q + i`.

#[cfg(target_arch = "aarch64")]
pub mod arm;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use super::isa::Isa;
pub use crate::tensor::PANEL;
pub use portable::Portable;
use std::marker::PhantomData;

/// Largest number of bytes in a vector.
pub const MOST_BYTES: usize = 64;

/// Vectors of an instruction set. All functions are safe to call only inside a [`Job`] that
/// [`run`] has started.
#[expect(clippy::missing_safety_doc, reason = "the trait states it")]
pub trait Bytes: Copy + Send + Sync + 'static {
    /// Words in a vector.
    const LANES: usize;
    /// Largest number of rows of activations whose sums with 16 columns, or with 32 if a vector has
    /// 16 words, fit in registers.
    const ROWS: usize;
    /// XOR mask that makes signed activations unsigned for dot products that need it; otherwise 0.
    const FLIP: u32;
    /// Number of words to which [`prepare`] widens a word of activations.
    const STEP: usize;
    /// A vector of `i32`.
    type I: Copy;
    /// A vector of `f32`.
    type F: Copy;
    /// A vector of `i8`.
    type B: Copy;
    /// Words of weights in the form that [`Bytes::dot`] takes.
    type W: Copy;
    /// Words of activations in the form that [`Bytes::dot`] takes.
    type X: Copy;

    unsafe fn splat(v: i32) -> Self::I;
    unsafe fn load(at: *const i32) -> Self::I;
    unsafe fn store(at: *mut i32, v: Self::I);
    /// Reads `LANES` bytes and sign-extends them to words.
    unsafe fn widen(at: *const i8) -> Self::I;
    /// Wraps, as do [`Bytes::sub`] and [`Bytes::mul`].
    unsafe fn add(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn sub(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn mul(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn load_floats(at: *const f32) -> Self::F;
    unsafe fn load_bytes(at: *const u8) -> Self::B;
    unsafe fn store_bytes(at: *mut u8, v: Self::B);
    /// Applies `FLIP` to activations.
    unsafe fn flip(v: Self::B) -> Self::B;
    /// Stores the 16 bytes of a block.
    unsafe fn store_block(at: *mut u8, v: Self::B, block: usize);

    unsafe fn weights(words: Self::I) -> Self::W;
    /// Broadcasts a word of activations, which [`prepare`] stored as `STEP` words, to all lanes.
    unsafe fn broadcast(at: *const u32) -> Self::X;
    /// Words of activations to which `FLIP` was applied.
    unsafe fn activations(words: Self::I) -> Self::X;
    /// Adds the dot product of four bytes to each word of `sum`; wraps.
    unsafe fn dot(sum: Self::I, w: Self::W, x: Self::X) -> Self::I;
    /// Words of the four bytes at the same position in the four vectors.
    unsafe fn interleave(v: [Self::B; 4]) -> [Self::I; 4];

    /// Sums times factors in `f32`, rounded to nearest, ties to even; saturates.
    unsafe fn scaled(sum: Self::I, factor: Self::F) -> Self::I;
    /// `x * 2^n` for `n` from 0 to 31; saturates.
    unsafe fn shifted(x: Self::I, n: Self::I) -> Self::I;
    /// The high half of `2 a b` for `b` above -2^31, rounded to nearest, ties upward.
    unsafe fn doubling_high(a: Self::I, b: Self::I) -> Self::I;
    /// `x / 2^n` for `n` from 0 to 31, rounded to nearest, ties away from zero.
    unsafe fn divided(x: Self::I, n: Self::I) -> Self::I;
    /// The larger word of each lane.
    unsafe fn max(a: Self::I, b: Self::I) -> Self::I;
    /// Narrows words to bytes: adds a zero point, then clamps. [`Limits::vectors`] makes `limits`.
    /// The order of the bytes depends on the instruction set.
    unsafe fn narrow(v: [Self::I; 4], limits: &[Self::I; 3]) -> Self::B;
    /// Brings the bytes of [`Bytes::narrow`] into the order of the words of the four vectors.
    unsafe fn in_order(v: Self::B) -> Self::B;
    /// Entries `v + 128` of a table; `table` points to 256 bytes that can be read.
    unsafe fn lookup(table: *const u8, v: Self::B) -> Self::B;

    /// Runs a job in a function that is compiled for the instruction set.
    unsafe fn call<J: Job>(job: J) -> J::Out;
}

/// Work that is compiled for each instruction set.
pub trait Job {
    type Out;
    /// # Safety
    /// The processor must support the instructions of `S`. Implementations are
    /// `#[inline(always)]`.
    unsafe fn run<S: Bytes>(self) -> Self::Out;
}

/// Runs a job with the vectors of `isa`.
/// # Safety
/// The processor supports `isa`, and what the job requires holds.
pub unsafe fn run<J: Job>(isa: Isa, job: J) -> J::Out {
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => x86::Vnni512::call(job),
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => x86::Vnni256::call(job),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => x86::Avx2::call(job),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => arm::Neon::call(job),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDot | Isa::NeonI8mm => arm::NeonDot::call(job),
            _ => Portable::call(job),
        }
    }
}

/// A [`Job`] that requantizes sums in one of the arithmetics.
pub trait ScaledJob {
    /// # Safety
    /// As for [`Job::run`]. Implementations are `#[inline(always)]`.
    unsafe fn run<S: Bytes, A: Arithmetic>(self);
}

/// Runs a job with the vectors of `isa`, in fixed-point or float arithmetic.
/// # Safety
/// As for [`run`].
pub unsafe fn run_scaled<J: ScaledJob>(isa: Isa, is_fixed: bool, job: J) {
    struct By<A, J>(J, PhantomData<A>);
    impl<A: Arithmetic, J: ScaledJob> Job for By<A, J> {
        type Out = ();
        #[inline(always)]
        unsafe fn run<S: Bytes>(self) {
            unsafe { self.0.run::<S, A>() }
        }
    }
    unsafe {
        if is_fixed {
            run(isa, By::<Fixed, J>(job, PhantomData));
        } else {
            run(isa, By::<Float, J>(job, PhantomData));
        }
    }
}

/// Prepares words of activations for [`Bytes::broadcast`]: writes `STEP` words for each.
/// # Safety
/// As for [`Bytes`]; `from` can be read and `to` can be written.
#[inline(always)]
pub unsafe fn prepare<S: Bytes>(from: *const u32, to: *mut u32, count: usize) {
    for i in 0..count {
        unsafe { put::<S>(from.add(i).read_unaligned(), to.add(i * S::STEP)) }
    }
}

/// As [`prepare`], for four words. `STEP` must be 1.
/// # Safety
/// As for [`prepare`].
#[inline(always)]
pub unsafe fn prepare_four<S: Bytes>(from: *const u32, to: *mut u32) {
    unsafe {
        let v = from.cast::<u128>().read_unaligned();
        to.cast::<u128>()
            .write_unaligned(v ^ (u128::from(S::FLIP) * 0x1_0000_0001_0000_0001_0000_0001));
    }
}

/// As [`prepare`], for `count` copies of a word.
/// # Safety
/// As for [`prepare`].
#[inline(always)]
pub unsafe fn fill<S: Bytes>(word: u32, to: *mut u32, count: usize) {
    for i in 0..count {
        unsafe { put::<S>(word, to.add(i * S::STEP)) }
    }
}

/// Writes a word for [`Bytes::broadcast`]: with `FLIP` applied, or split into its even and its odd
/// bytes as 16-bit integers.
#[inline(always)]
unsafe fn put<S: Bytes>(word: u32, to: *mut u32) {
    let wide = |shift: u32| {
        let [low, high] = [word >> shift, word >> (shift + 16)].map(|v| v as u8 as i8 as i16 as u16);
        u32::from(low) | u32::from(high) << 16
    };
    unsafe {
        if S::STEP == 2 {
            to.write(wide(0));
            to.add(1).write(wide(8));
        } else {
            to.write(word ^ S::FLIP);
        }
    }
}

/// The zero point and the bounds of results.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub zero: i32,
    pub low: i32,
    pub high: i32,
}

impl Limits {
    pub fn new(zero: i32, low: i32, high: i32) -> Self {
        Self { zero, low, high }
    }

    /// Whether all are 8-bit integers.
    pub fn are_bytes(self) -> bool {
        [self.zero, self.low, self.high]
            .iter()
            .all(|v| i8::try_from(*v).is_ok())
    }

    /// The `limits` of [`Bytes::narrow`]: the zero point in all 16-bit lanes, and the bounds in all
    /// bytes.
    /// # Safety
    /// As for [`Bytes`].
    #[inline(always)]
    pub unsafe fn vectors<S: Bytes>(self) -> [S::I; 3] {
        unsafe {
            [
                S::splat((self.zero & 0xFFFF).wrapping_mul(0x0001_0001)),
                S::splat((self.low & 0xFF).wrapping_mul(0x0101_0101)),
                S::splat((self.high & 0xFF).wrapping_mul(0x0101_0101)),
            ]
        }
    }

    /// The 8-bit result of a rounded sum.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the bounds are those of the type or narrower"
    )]
    pub fn of(self, rounded: i32) -> i8 {
        rounded.saturating_add(self.zero).max(self.low).min(self.high) as i8
    }
}

/// How sums are requantized.
pub trait Arithmetic: 'static {
    /// Number of lists of factors: floats, or mantissas and shifts.
    const LISTS: usize;
    /// The factors of a vector of sums.
    type Factors<S: Bytes>: Copy;
    /// Reads factors: floats, or mantissas from `first` and shifts from `second` on.
    /// # Safety
    /// As for [`Bytes`]; a vector of words can be read from each list.
    unsafe fn load<S: Bytes>(first: *const u32, second: *const u32) -> Self::Factors<S>;
    /// Scales a sum. Factors with left shifts need [`Arithmetic::raised`] first.
    /// # Safety
    /// As for [`Bytes`].
    unsafe fn apply<S: Bytes>(sum: S::I, factors: Self::Factors<S>) -> S::I;
    /// Applies the left shifts of the factors to a sum.
    /// # Safety
    /// As for [`Bytes`].
    #[inline(always)]
    unsafe fn raised<S: Bytes>(sum: S::I, _factors: Self::Factors<S>) -> S::I {
        sum
    }
}

/// A multiplication in `f32`.
pub struct Float;
/// A fixed-point multiplication and a right shift, both rounded.
pub struct Fixed;

impl Arithmetic for Float {
    const LISTS: usize = 1;
    type Factors<S: Bytes> = S::F;
    #[inline(always)]
    unsafe fn load<S: Bytes>(first: *const u32, _: *const u32) -> S::F {
        unsafe { S::load_floats(first.cast()) }
    }
    #[inline(always)]
    unsafe fn apply<S: Bytes>(sum: S::I, factor: S::F) -> S::I {
        unsafe { S::scaled(sum, factor) }
    }
}

impl Arithmetic for Fixed {
    const LISTS: usize = 2;
    /// Mantissas, left shifts and right shifts.
    type Factors<S: Bytes> = [S::I; 3];
    #[inline(always)]
    unsafe fn load<S: Bytes>(first: *const u32, second: *const u32) -> [S::I; 3] {
        unsafe { fixed::<S>(S::load(first.cast()), S::load(second.cast())) }
    }
    #[inline(always)]
    unsafe fn apply<S: Bytes>(sum: S::I, [mantissa, _, right]: [S::I; 3]) -> S::I {
        unsafe { S::divided(S::doubling_high(sum, mantissa), right) }
    }
    #[inline(always)]
    unsafe fn raised<S: Bytes>(sum: S::I, [_, left, _]: [S::I; 3]) -> S::I {
        unsafe { S::shifted(sum, left) }
    }
}

/// Whether any of these shifts of [`Fixed`] is a left shift.
pub fn any_left(shifts: &[u32]) -> bool {
    shifts.iter().any(|s| s.cast_signed() > 0)
}

/// The factors of [`Fixed`] with these mantissas and shifts; positive shifts go left.
/// # Safety
/// As for [`Bytes`].
#[inline(always)]
pub unsafe fn fixed<S: Bytes>(mantissa: S::I, shift: S::I) -> [S::I; 3] {
    unsafe {
        let zero = S::splat(0);
        [mantissa, S::max(shift, zero), S::max(S::sub(zero, shift), zero)]
    }
}

/// A sum times a float, rounded to nearest, ties to even; saturates. Products from 2^22 on are
/// truncated.
#[inline(always)]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "rounded to nearest and saturated"
)]
pub fn scaled(sum: i32, factor: f32) -> i32 {
    /// 1.5 * 2^23. A sum with it has no bits for a fraction, so adding it rounds.
    const SHIFT: f32 = 12_582_912.0;
    let v = sum as f32 * factor;
    // The caller clamps larger results to 8 bits, so their fraction does not matter.
    let v = if v.abs() < 4_194_304.0 {
        (v + SHIFT) - SHIFT
    } else {
        v
    };
    v as i32
}

/// A sum times `mantissa * 2^(shift - 31)`, rounded twice as gemmlowp does.
#[inline(always)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the high half of a product, and a clamped one"
)]
pub fn multiplied(sum: i32, mantissa: i32, shift: i32) -> i32 {
    let wide = i64::from(sum) << shift.clamp(0, 31);
    let left = wide.clamp(i32::MIN.into(), i32::MAX.into());
    let high = ((left * i64::from(mantissa) + (1 << 30)) >> 31) as i32;
    divided(high, (-shift).clamp(0, 31))
}

/// `x / 2^n`, rounded to nearest, ties away from zero.
#[inline(always)]
fn divided(x: i32, n: i32) -> i32 {
    let mask = ((1u32 << n) - 1).cast_signed();
    let threshold = (mask >> 1) + i32::from(x < 0);
    (x >> n) + i32::from((x & mask) > threshold)
}

#[cfg(test)]
mod tests;
