//! Addition, subtraction and multiplication of bytes whose scales may differ.

use super::Function;
use crate::backend::cpu::args::{Bound, NativeKernel, Scratch, Store, part, product, reach};
use crate::backend::cpu::bytes::{self, Arithmetic, Bytes, Fixed, Job, Limits, MOST_BYTES};
use crate::backend::cpu::isa::Isa;
use crate::backend::cpu::simd::{self, Simd};
use crate::backend::kernel::KernelSpec;
use crate::kernels::cpu::moves::pieces;
use crate::kernels::int8_quantize::cpu::Quantizer;

type Args = super::Args<Bound>;

/// Bits by which operands of a sum are shifted left before they are scaled.
const HEADROOM: u32 = 20;

pub struct Int8Binary {
    isa: Isa,
    function: Function,
    is_fixed: bool,
}

impl Args {
    fn limits(&self) -> Limits {
        Limits::new(self.zero, self.low, self.high)
    }

    fn planes(&self) -> usize {
        self.count.div_ceil(self.words.max(1)).div_ceil(self.inner.max(1))
    }

    /// Whether both operands are read contiguously, without broadcasting.
    fn is_one_run(&self) -> bool {
        let plane = self.inner * self.words;
        [(self.a_words, self.a_rows), (self.b_words, self.b_rows)]
            .iter()
            .all(|(row, rows)| {
                (self.inner == 1 || *row == self.words) && (self.planes() == 1 || *rows == plane)
            })
    }

    /// Number of contiguous runs, and of the words in each.
    fn runs(&self) -> [usize; 2] {
        if self.is_one_run() {
            [1, self.count]
        } else {
            [self.count.checked_div(self.words).unwrap_or(0), self.words]
        }
    }
}

impl NativeKernel for Int8Binary {
    type Signature = super::Args;

    fn new(spec: &KernelSpec, isa: Isa) -> Option<Self> {
        Some(Self {
            isa,
            function: Function::of(spec),
            is_fixed: spec.defines.contains_key(crate::kernels::FIXED),
        })
    }

    fn fits(&self, args: &Args) -> bool {
        let plane = product(&[args.words, args.inner]);
        let last = |row, rows| reach(&[[args.inner, row], [args.planes(), rows]], args.words);
        args.count == 0
            || plane > 0
                && args.count.is_multiple_of(plane)
                && args.limits().are_bytes()
                && args.a.holds::<u32>(last(args.a_words, args.a_rows))
                && args.b.holds::<u32>(last(args.b_words, args.b_rows))
                && args.y.holds::<u32>(args.count)
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        let [runs, words] = args.runs();
        let parts = if runs == 1 { words } else { runs };
        pieces(args.count.saturating_mul(4), parts, threads)
    }

    unsafe fn run(&self, args: &Args, _: &Store<'_>, piece: usize, pieces: usize, _: &mut Scratch) {
        let [runs, words] = args.runs();
        let function = self.function;
        let run = |a: usize, b: usize, y: usize, count: usize| {
            // SAFETY: inside the operands, which fit; the piece owns these results.
            unsafe {
                let run = Run {
                    args,
                    function,
                    a: args.a.as_ptr::<i8>().add(4 * a),
                    b: args.b.as_ptr::<i8>().add(4 * b),
                    y: args.y.as_ptr::<u8>().add(4 * y),
                    count: 4 * count,
                };
                if self.is_fixed {
                    bytes::run(self.isa, run);
                } else {
                    simd::run(self.isa, Floats(run));
                }
            }
        };
        if runs == 1 {
            let own = part(words, 16, piece, pieces);
            run(own.start, own.start, own.start, own.len());
            return;
        }
        for i in part(runs, 1, piece, pieces) {
            let (middle, plane) = (i % args.inner, i / args.inner);
            let a = middle * args.a_words + plane * args.a_rows;
            let b = middle * args.b_words + plane * args.b_rows;
            run(a, b, i * words, words);
        }
    }
}

/// Contiguous results.
struct Run<'a> {
    args: &'a Args,
    function: Function,
    a: *const i8,
    b: *const i8,
    y: *mut u8,
    /// Number of bytes.
    count: usize,
}

impl Job for Run<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Bytes>(self) {
        let args = self.args;
        let shifts = [args.a_shift, args.b_shift, args.shift];
        // The multipliers of sums are usually below 1, without left shifts.
        let is_left = shifts.iter().any(|s| *s > 0);
        unsafe {
            match (self.function, is_left) {
                (Function::Add, false) => self.all::<S, ADD, false>(),
                (Function::Sub, false) => self.all::<S, SUB, false>(),
                (Function::Add, true) => self.all::<S, ADD, true>(),
                (Function::Sub, true) => self.all::<S, SUB, true>(),
                (Function::Mul, _) => self.all::<S, MUL, true>(),
            }
        }
    }
}

const ADD: u8 = 0;
const SUB: u8 = 1;
const MUL: u8 = 2;

/// Parameters as vectors. Each factor has mantissas, left shifts and right shifts.
struct Vectors<S: Bytes> {
    zeros: [S::I; 2],
    factors: [[S::I; 3]; 3],
    limits: [S::I; 3],
}

impl Run<'_> {
    /// # Safety
    /// As for [`Bytes`]; there are `count` bytes at each address.
    #[inline(always)]
    unsafe fn all<S: Bytes, const FUNCTION: u8, const LEFT: bool>(&self) {
        let (vector, args) = (4 * S::LANES, self.args);
        unsafe {
            let vectors = Vectors::<S> {
                zeros: [S::splat(args.a_zero), S::splat(args.b_zero)],
                factors: [
                    bytes::fixed::<S>(S::splat(args.a_mantissa), S::splat(args.a_shift)),
                    bytes::fixed::<S>(S::splat(args.b_mantissa), S::splat(args.b_shift)),
                    bytes::fixed::<S>(S::splat(args.mantissa), S::splat(args.shift)),
                ],
                limits: args.limits().vectors::<S>(),
            };
            let mut at = 0;
            while at + vector <= self.count {
                let v = block::<S, FUNCTION, LEFT>(&vectors, self.a.add(at), self.b.add(at));
                S::store_bytes(self.y.add(at), v);
                at += vector;
            }
            let rest = self.count - at;
            if rest > 0 {
                let (mut a, mut b) = ([0i8; MOST_BYTES], [0i8; MOST_BYTES]);
                a.as_mut_ptr().copy_from_nonoverlapping(self.a.add(at), rest);
                b.as_mut_ptr().copy_from_nonoverlapping(self.b.add(at), rest);
                let v = block::<S, FUNCTION, LEFT>(&vectors, a.as_ptr(), b.as_ptr());
                S::store_bytes(a.as_mut_ptr().cast(), v);
                self.y.add(at).copy_from_nonoverlapping(a.as_ptr().cast(), rest);
            }
        }
    }
}

/// Contiguous results that are computed in floats.
struct Floats<'a>(Run<'a>);

impl simd::Job for Floats<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Run {
            args,
            function,
            a,
            b,
            y,
            count,
        } = self.0;
        // SAFETY: nobody else uses the results.
        let (a, b, y) = unsafe {
            (
                std::slice::from_raw_parts(a, count),
                std::slice::from_raw_parts(b, count),
                std::slice::from_raw_parts_mut(y, count),
            )
        };
        let quantizer = Quantizer::new(args.scale, args.limits());
        let real = |scale: f32, zero: i32, q: i8| scale * (i32::from(q) - zero) as f32;
        let fill = |y: &mut [u8], of: fn(f32, f32) -> f32| {
            for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
                let (a, b) = (
                    real(args.a_scale, args.a_zero, *a),
                    real(args.b_scale, args.b_zero, *b),
                );
                *y = quantizer.of(of(a, b)) as u8;
            }
        };
        match function {
            Function::Add => fill(y, |a, b| a + b),
            Function::Sub => fill(y, |a, b| a - b),
            Function::Mul => fill(y, |a, b| a * b),
        }
    }
}

/// A vector of results.
/// # Safety
/// As for [`Bytes`].
#[inline(always)]
unsafe fn block<S: Bytes, const FUNCTION: u8, const LEFT: bool>(
    by: &Vectors<S>,
    a: *const i8,
    b: *const i8,
) -> S::B {
    unsafe {
        let mut sums = [S::splat(0); 4];
        for (q, sum) in sums.iter_mut().enumerate() {
            let a = S::sub(S::widen(a.add(q * S::LANES)), by.zeros[0]);
            let b = S::sub(S::widen(b.add(q * S::LANES)), by.zeros[1]);
            let v = if FUNCTION == MUL {
                S::mul(a, b)
            } else {
                let one = S::splat(1 << HEADROOM);
                let a = multiplied::<S, LEFT>(S::mul(a, one), by.factors[0]);
                let b = multiplied::<S, LEFT>(S::mul(b, one), by.factors[1]);
                if FUNCTION == SUB {
                    S::sub(a, b)
                } else {
                    S::add(a, b)
                }
            };
            *sum = multiplied::<S, LEFT>(v, by.factors[2]);
        }
        S::in_order(S::narrow(sums, &by.limits))
    }
}

/// `x` times a factor. `LEFT` must be set if the factor has a left shift.
/// # Safety
/// As for [`Bytes`].
#[inline(always)]
unsafe fn multiplied<S: Bytes, const LEFT: bool>(x: S::I, factor: [S::I; 3]) -> S::I {
    unsafe {
        let x = if LEFT { Fixed::raised::<S>(x, factor) } else { x };
        Fixed::apply::<S>(x, factor)
    }
}
