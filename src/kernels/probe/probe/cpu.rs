//! Kernels that measure the processor, and random numbers.

use crate::backend::cpu::args::{Bound, Memory, NativeKernel, Scratch, Store, dtype, part};
use crate::backend::cpu::isa::Isa;
use crate::backend::cpu::simd::{self, Job, Simd};
use crate::backend::kernel::KernelSpec;
use crate::kernels::product_e0m::PLANES;
use crate::tensor::DType;
use half::f16;

type WalkArgs = super::WalkArgs<Bound>;

/// Words of an element, a vector of four.
const ITEM: usize = 4;

impl WalkArgs {
    /// The words that work-item `piece` of `next` walks.
    fn words(&self, piece: usize, available: usize) -> std::ops::Range<usize> {
        let end = self.count.saturating_mul(ITEM).min(available);
        let at = |i: usize| i.saturating_mul(self.each).saturating_mul(ITEM).min(end);
        at(piece)..at(piece + 1)
    }
}

/// The kernel `probe_copy`.
pub struct Copy;

impl NativeKernel for Copy {
    type Signature = super::WalkArgs;

    fn new(_: &KernelSpec, _: Isa) -> Option<Self> {
        Some(Self)
    }

    fn pieces(&self, args: &WalkArgs, _: usize) -> usize {
        args.next.min(args.count).max(1)
    }

    unsafe fn run(&self, args: &WalkArgs, _: &Store<'_>, piece: usize, _: usize, _: &mut Scratch) {
        let range = args.words(piece, args.x.elements::<u32>().min(args.y.elements::<u32>()));
        // SAFETY: pieces write different words; nobody writes `x`.
        unsafe {
            args.y
                .slice_mut::<u32>(range.clone())
                .copy_from_slice(&args.x.slice()[range]);
        }
    }
}

/// The kernel `probe_read`.
pub struct Read(Isa);

impl NativeKernel for Read {
    type Signature = super::WalkArgs;

    fn new(_: &KernelSpec, isa: Isa) -> Option<Self> {
        Some(Self(isa))
    }

    fn pieces(&self, args: &WalkArgs, _: usize) -> usize {
        args.next.clamp(1, args.y.elements::<u32>().max(1))
    }

    unsafe fn run(&self, args: &WalkArgs, _: &Store<'_>, piece: usize, _: usize, _: &mut Scratch) {
        // SAFETY: each piece writes its own word; nobody writes `x`.
        unsafe {
            let x: &[u32] = &args.x.slice()[args.words(piece, args.x.elements::<u32>())];
            args.y.slice_mut::<u32>(piece..piece + 1)[0] = simd::run(self.0, Sum(x));
        }
    }
}

/// The sum of words.
struct Sum<'a>(&'a [u32]);

impl Job for Sum<'_> {
    type Out = u32;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> u32 {
        let mut sums = [0u32; 64];
        let (blocks, rest) = self.0.as_chunks::<64>();
        for block in blocks {
            for (sum, x) in sums.iter_mut().zip(block) {
                *sum = sum.wrapping_add(*x);
            }
        }
        sums.iter().chain(rest).fold(0, |sum, x| sum.wrapping_add(*x))
    }
}

/// Number of pieces of a kernel that measures arithmetic: each work-group writes an element of `y`.
fn rows(y: Memory, [x, ..]: [u32; 3]) -> usize {
    (x as usize).min(y.elements::<f32>()).max(1)
}

/// The kernel `probe_f32`: eight chains of multiply-adds over sixteen elements in each work-group.
pub struct Floats(Isa);

impl NativeKernel for Floats {
    type Signature = super::FloatArgs;

    fn new(_: &KernelSpec, isa: Isa) -> Option<Self> {
        Some(Self(isa))
    }

    fn pieces(&self, _: &super::FloatArgs<Bound>, _: usize) -> usize {
        1
    }

    fn work_groups(&self, args: &super::FloatArgs<Bound>, grid: [u32; 3]) -> Option<usize> {
        Some(rows(args.y, grid))
    }

    unsafe fn run(
        &self,
        args: &super::FloatArgs<Bound>,
        _: &Store<'_>,
        piece: usize,
        _: usize,
        _: &mut Scratch,
    ) {
        let job = Chains {
            start: (piece & 7) as f32,
            values: [args.factor, args.addend],
            rounds: args.rounds,
        };
        // SAFETY: each piece writes its own element.
        unsafe { args.y.slice_mut::<f32>(piece..piece + 1)[0] = simd::run(self.0, job) };
    }
}

struct Chains {
    start: f32,
    values: [f32; 2],
    rounds: usize,
}

/// Vectors that are computed at once: enough to hide latency, and few enough to stay in registers.
const AT_ONCE: usize = 8;

impl Job for Chains {
    type Out = f32;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> f32 {
        let passes = 8 * 16 / S::LANES / AT_ONCE;
        let mut total = 0.0;
        for pass in 0..passes {
            unsafe {
                let [m, c] = self.values.map(|v| S::splat(v));
                let mut sums = [S::splat(self.start + pass as f32); AT_ONCE];
                for _ in 0..self.rounds {
                    for sum in &mut sums {
                        *sum = S::fma(*sum, m, c);
                    }
                }
                for sum in sums {
                    total += S::sum(sum);
                }
            }
        }
        total
    }
}

/// The kernel `probe_dot`: in each work-group and round, eight chains of four dot products of bytes
/// over sixteen words, computed as matmuls with quantized weights compute them. With two planes,
/// one operand of each product has 16 bits.
pub struct Dots {
    dots: unsafe fn(rounds: usize, factor: i32) -> i32,
    /// Rounds of `dots` in each round of the kernel.
    passes: usize,
}

impl NativeKernel for Dots {
    type Signature = super::DotArgs;

    fn new(spec: &KernelSpec, isa: Isa) -> Option<Self> {
        let words = spec.defines.contains_key(PLANES);
        let dots: Option<unsafe fn(usize, i32) -> i32> = match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => Some(x86::vnni512),
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => Some(x86::vnni256),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 if words => Some(x86::avx2_words),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => Some(x86::avx2),
            _ => None,
        };
        // Where only bytes can be multiplied, 16-bit integers take a pass for each of theirs.
        let passes = if words && isa != Isa::Avx2 { 2 } else { 1 };
        dots.map(|dots| Self { dots, passes })
    }

    fn pieces(&self, _: &super::DotArgs<Bound>, _: usize) -> usize {
        1
    }

    fn work_groups(&self, args: &super::DotArgs<Bound>, grid: [u32; 3]) -> Option<usize> {
        Some(rows(args.y, grid))
    }

    unsafe fn run(
        &self,
        args: &super::DotArgs<Bound>,
        _: &Store<'_>,
        piece: usize,
        _: usize,
        _: &mut Scratch,
    ) {
        // SAFETY: `new` chose the function by the processor's instruction set.
        let sum = unsafe { (self.dots)(args.rounds * self.passes, args.factor as i32) };
        // SAFETY: each piece writes its own element.
        unsafe { args.y.slice_mut::<f32>(piece..piece + 1)[0] = sum as f32 };
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! Each round computes 32 dot products of sixteen words.

    use std::arch::x86_64::*;
    use std::hint::black_box;

    #[target_feature(enable = "avx512f,avx512vnni")]
    pub fn vnni512(rounds: usize, factor: i32) -> i32 {
        let [a, b] = [factor, factor ^ 0x0101].map(|v| black_box(_mm512_set1_epi32(v)));
        let mut sums = [_mm512_setzero_si512(); 16];
        for _ in 0..rounds * 2 {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, a, b);
            }
        }
        sums.iter()
            .fold(0, |all: i32, sum| all.wrapping_add(_mm512_reduce_add_epi32(*sum)))
    }

    #[target_feature(enable = "avx2,avxvnni")]
    pub fn vnni256(rounds: usize, factor: i32) -> i32 {
        let [a, b] = [factor, factor ^ 0x0101].map(|v| black_box(_mm256_set1_epi32(v)));
        let mut sums = [_mm256_setzero_si256(); 8];
        for _ in 0..rounds * 8 {
            for sum in &mut sums {
                *sum = _mm256_dpbusd_avx_epi32(*sum, a, b);
            }
        }
        sums.iter().fold(0, |all: i32, sum| {
            all.wrapping_add(_mm256_extract_epi32::<0>(*sum))
        })
    }

    /// Eight results of `maddubs` are summed in 16 bits before they are widened.
    #[target_feature(enable = "avx2")]
    pub fn avx2(rounds: usize, factor: i32) -> i32 {
        let [mut a, b] = [factor, factor ^ 0x0101].map(|v| black_box(_mm256_set1_epi32(v)));
        let ones = _mm256_set1_epi16(1);
        let mut wide = [_mm256_setzero_si256(); 4];
        // Each round computes 64 dot products of half as many words, in eight steps.
        for _ in 0..rounds * 2 {
            let mut sums = [_mm256_setzero_si256(); 4];
            for _ in 0..8 {
                for (i, sum) in sums.iter_mut().enumerate() {
                    // Operands change, so that the compiler cannot reuse a result.
                    if i % 2 == 0 {
                        a = _mm256_add_epi8(a, b);
                    }
                    *sum = match i % 2 {
                        0 => _mm256_add_epi16(*sum, _mm256_maddubs_epi16(a, b)),
                        _ => _mm256_add_epi16(*sum, _mm256_maddubs_epi16(b, a)),
                    };
                }
            }
            for (wide, sum) in wide.iter_mut().zip(sums) {
                *wide = _mm256_add_epi32(*wide, _mm256_madd_epi16(sum, ones));
            }
        }
        wide.iter().fold(0, |all: i32, sum| {
            all.wrapping_add(_mm256_extract_epi32::<0>(*sum))
        })
    }

    /// 16-bit products, whose pairs are summed in 32 bits.
    #[target_feature(enable = "avx2")]
    pub fn avx2_words(rounds: usize, factor: i32) -> i32 {
        let mut a = black_box(_mm256_set1_epi16(factor as i16));
        let b = [1, 2, 3, 4].map(|v| black_box(_mm256_set1_epi16(v)));
        let mut sums = [_mm256_setzero_si256(); 4];
        for _ in 0..rounds * 32 {
            // The operand changes, so that the compiler cannot reuse a result.
            a = _mm256_add_epi16(a, b[0]);
            for (sum, b) in sums.iter_mut().zip(b) {
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(a, b));
            }
        }
        sums.iter().fold(0, |all: i32, sum| {
            all.wrapping_add(_mm256_extract_epi32::<0>(*sum))
        })
    }
}

type RandomArgs = super::RandomArgs<Bound>;

/// The kernel `random`: pairs of numbers made from a seed and their position.
pub struct Random {
    bits: bool,
    halves: bool,
}

/// A permutation of words that hides the relation of neighbouring inputs.
fn hash(x: u32) -> u32 {
    let x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    let x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

/// A number from -1 to below 1, from the highest 24 bits.
fn unit(bits: u32) -> f32 {
    (bits >> 8) as f32 / 8_388_608.0 - 1.0
}

impl NativeKernel for Random {
    type Signature = super::RandomArgs;
    const HALVES: &'static [&'static str] = &["y"];

    fn new(spec: &KernelSpec, _: Isa) -> Option<Self> {
        Some(Self {
            bits: spec.defines.contains_key(super::BITS),
            halves: dtype(spec, 0)? == DType::F16,
        })
    }

    fn pieces(&self, args: &RandomArgs, threads: usize) -> usize {
        (args.pairs >> 14).clamp(1, 8 * threads)
    }

    unsafe fn run(&self, args: &RandomArgs, _: &Store<'_>, piece: usize, pieces: usize, _: &mut Scratch) {
        let range = part(args.pairs, 16, piece, pieces);
        let of = |i: usize| hash(hash(i as u32) ^ args.seed as u32);
        let float = |i: usize| match i % 2 {
            0 => args.center + args.spread * unit(of(i)),
            _ => args.center_odd + args.spread_odd * unit(of(i)),
        };
        let elements = 2 * range.start..2 * range.end;
        // SAFETY: pieces have different elements.
        unsafe {
            if self.halves {
                let y = args.y.slice_mut::<f16>(elements.clone());
                for (y, i) in y.iter_mut().zip(elements) {
                    *y = f16::from_f32(float(i));
                }
            } else {
                let y = args.y.slice_mut::<u32>(elements.clone());
                for (y, i) in y.iter_mut().zip(elements) {
                    *y = if self.bits { of(i) } else { float(i).to_bits() };
                }
            }
        }
    }
}
