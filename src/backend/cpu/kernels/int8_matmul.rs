//! Matmul of two matrices of bytes.

use super::moves::pieces;
use crate::backend::cpu::args::{Kernel, Scratch, Store, arguments, part, product, reach};
use crate::backend::cpu::bytes::{self, Limits};
use crate::backend::cpu::isa::Isa;
use crate::backend::cpu::simd::{self, Job, Simd};
use crate::backend::kernel::KernelSpec;
use std::ops::Range;

arguments! {
    pub struct Args {
        m, n, k, words, tail, outputs, a_step, b_step, batch: U32;
        a_zero, b_zero, mantissa, shift, zero, low, high: I32; factor: F32
    } [a: In, b: In, y: Out]
}

/// `y[z, i, j]` is the scaled sum over k of `(a[z, i, k] - a_zero) * (b[z, j, k] - b_zero)`. Rows
/// of y have whole words.
pub struct Int8MatMul {
    isa: Isa,
    is_fixed: bool,
}

impl Kernel for Int8MatMul {
    type Args = Args;

    fn new(spec: &KernelSpec, isa: Isa) -> Option<Self> {
        let is_fixed = spec.defines.contains_key("FIXED");
        Some(Self { isa, is_fixed })
    }

    fn fits(&self, args: &Args) -> bool {
        let matrix = |step, rows| reach(&[[args.batch, step]], product(&[rows, args.words]));
        args.n <= args.outputs.saturating_mul(4)
            && args.k <= args.words.saturating_mul(4)
            && args.a.holds::<u32>(matrix(args.a_step, args.m))
            && args.b.holds::<u32>(matrix(args.b_step, args.n))
            && args.y.holds::<u32>(product(&[args.batch, args.m, args.outputs]))
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        let work = product(&[args.batch, args.m, args.n, args.words + 8]) / 8;
        pieces(work, args.batch * args.m, threads)
    }

    unsafe fn run(&self, args: &Args, _: &Store<'_>, piece: usize, pieces: usize, scratch: &mut Scratch) {
        let rows = part(args.batch * args.m, 1, piece, pieces);
        let pitch = args.outputs * 4;
        // SAFETY: nobody writes the operands; the piece owns these results; the processor supports
        // the instruction set.
        unsafe {
            let job = Rows {
                args,
                is_fixed: self.is_fixed,
                y: args.y.slice_mut(rows.start * pitch..rows.end * pitch),
                rows,
                totals: scratch.of(args.n),
            };
            simd::run(self.isa, job);
        }
    }
}

struct Rows<'a> {
    args: &'a Args,
    is_fixed: bool,
    rows: Range<usize>,
    y: &'a mut [i8],
    /// For sums of the rows of b.
    totals: &'a mut [i32],
}

#[inline(always)]
fn dot(a: &[i8], b: &[i8]) -> i32 {
    let products = a.iter().zip(b).map(|(a, b)| i32::from(*a) * i32::from(*b));
    products.fold(0, i32::wrapping_add)
}

#[inline(always)]
fn total(a: &[i8]) -> i32 {
    a.iter().fold(0, |sum, v| sum.wrapping_add(i32::from(*v)))
}

impl Job for Rows<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self {
            args,
            is_fixed,
            rows,
            y,
            totals,
        } = self;
        let (k, pitch) = (args.k, args.words * 4);
        let limits = Limits::new(args.zero, args.low, args.high);
        let of = |sum: i32| match is_fixed {
            true => limits.of(bytes::multiplied(sum, args.mantissa, args.shift)),
            false => limits.of(bytes::scaled(sum, args.factor)),
        };
        // SAFETY: nobody writes the operands.
        let (a, b) = unsafe { (args.a.slice::<i8>(), args.b.slice::<i8>()) };
        let mut ready = None;
        for (row, y) in rows.zip(y.chunks_exact_mut((args.outputs * 4).max(1))) {
            let (z, i) = (row / args.m, row % args.m);
            let a = &a[z * args.a_step * 4 + i * pitch..][..k];
            let b = &b[z * args.b_step * 4..][..args.n * pitch];
            if ready != Some(z) {
                ready = Some(z);
                for (j, to) in totals.iter_mut().enumerate() {
                    *to = total(&b[j * pitch..][..k]);
                }
            }
            let of_a = total(a).wrapping_mul(args.b_zero);
            let both = args.b_zero.wrapping_mul(k as i32);
            y.fill(of(0));
            for (j, (y, of_b)) in y.iter_mut().zip(&*totals).enumerate() {
                let sum = dot(a, &b[j * pitch..][..k]);
                let moved = args
                    .a_zero
                    .wrapping_mul(both.wrapping_sub(*of_b))
                    .wrapping_sub(of_a);
                *y = of(sum.wrapping_add(moved));
            }
        }
    }
}
