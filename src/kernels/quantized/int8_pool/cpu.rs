//! Max and average pooling of bytes.

use crate::backend::cpu::args::{Bound, NativeKernel, Piece, Scratch, Store, product};
use crate::backend::cpu::bytes::{self, Limits};
use crate::backend::cpu::isa::Isa;
use crate::backend::cpu::simd::{self, Job, Simd};
use crate::backend::kernel::KernelSpec;
use crate::kernels::cpu::moves::pieces;
use crate::kernels::cpu::window::Window;
use crate::kernels::int8_conv::cpu::{holds_images, lists};

type Args = super::Args<Bound>;

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Max,
    /// The mean, rounded to nearest, ties away from zero.
    Mean,
    /// The sum times a factor for the number of elements.
    Sum {
        is_fixed: bool,
    },
}

pub struct Int8Pool {
    isa: Isa,
    window: Window,
    kind: Kind,
    /// Whether padding up to `end_h` and `end_w` counts as elements.
    padded: bool,
}

impl NativeKernel for Int8Pool {
    type Signature = super::Args;

    fn new(spec: &KernelSpec, isa: Isa) -> Option<Self> {
        let is_set = |name| spec.defines.contains_key(name);
        let kind = match (is_set(super::MEAN), is_set(super::SUM)) {
            (true, _) => Kind::Mean,
            (_, true) => Kind::Sum {
                is_fixed: is_set(crate::kernels::FIXED),
            },
            _ => Kind::Max,
        };
        let window = Window::of(spec)?;
        Some(Self {
            isa,
            window,
            kind,
            padded: is_set(super::PADDED),
        })
    }

    fn fits(&self, args: &Args) -> bool {
        if args.count == 0 {
            return true;
        }
        let taps = self.window.taps();
        let factors = match self.kind {
            Kind::Sum { is_fixed } => product(&[taps, lists(is_fixed)]),
            _ => 0,
        };
        let plane = product(&[args.in_h, args.in_w, args.words]);
        let windows = product(&[args.out_h, args.out_w]);
        args.words > 0
            && args.count.is_multiple_of(args.words)
            && args.factors.map_or(factors == 0, |f| f.holds::<u32>(factors))
            && args.y.holds::<u32>(args.count)
            && holds_images(args.x, args.count / args.words, windows, plane)
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        let rows = args.count.checked_div(args.words).unwrap_or(0);
        let work = product(&[args.count, self.window.taps() + 8]) / 4;
        pieces(work, rows, threads)
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, piece: usize, pieces: usize, scratch: &mut Scratch) {
        // SAFETY: the processor supports the instruction set.
        unsafe { simd::run(self.isa, Piece::new(self, args, store, piece, pieces, scratch)) }
    }
}

impl Job for Piece<'_, Int8Pool> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (args, window, kind) = (self.args, self.kernel.window, self.kernel.kind);
        if args.count == 0 {
            return;
        }
        let rows = self.part(args.count / args.words, 1);
        let channels = args.words * 4;
        // SAFETY: nobody writes the operands, and the piece owns these results.
        let (x, factors, y): (&[i8], &[u32], &mut [i8]) = unsafe {
            let factors = args.factors.map_or(&[][..], |f| f.slice());
            let y = args.y.slice_mut(rows.start * channels..rows.end * channels);
            (args.x.slice(), factors, y)
        };
        let sums = self.scratch.of::<i32>(channels);
        for (row, y) in rows.zip(y.chunks_exact_mut(channels)) {
            let (ox, line) = (row % args.out_w, row / args.out_w);
            let (oy, image) = (line % args.out_h, line / args.out_h);
            let (high, wide) = (window.rows, window.columns);
            let down = high.taps(oy, args.pad_h, args.in_h);
            let across = wide.taps(ox, args.pad_w, args.in_w);
            let inside = down.len() * across.len();
            let taps = match self.kernel.padded {
                true => high.counted(oy, args.pad_h, args.end_h) * wide.counted(ox, args.pad_w, args.end_w),
                false => inside,
            };
            let zeros = |count: usize| args.x_zero.wrapping_mul(count as i32);
            // Padding that counts has the real value 0.
            let start = match kind {
                Kind::Max => -128,
                Kind::Mean => zeros(taps - inside.min(taps)),
                Kind::Sum { .. } => zeros(inside).wrapping_neg(),
            };
            sums.fill(start);
            for ky in down {
                let iy = high.element(oy, ky, args.pad_h).cast_unsigned();
                for kx in across.clone() {
                    let ix = wide.element(ox, kx, args.pad_w).cast_unsigned();
                    let at = ((image * args.in_h + iy) * args.in_w + ix) * channels;
                    let x = &x[at..at + channels];
                    if kind == Kind::Max {
                        sums.iter_mut()
                            .zip(x)
                            .for_each(|(s, x)| *s = (*s).max((*x).into()));
                    } else {
                        sums.iter_mut().zip(x).for_each(|(s, x)| *s += i32::from(*x));
                    }
                }
            }
            finish(args, window, kind, factors, taps, sums, y);
        }
    }
}

/// Stores the results of a window of `taps` elements.
#[inline(always)]
fn finish(args: &Args, window: Window, kind: Kind, factors: &[u32], taps: usize, sums: &[i32], y: &mut [i8]) {
    let is_sum = matches!(kind, Kind::Sum { .. });
    let limits = Limits::new(if is_sum { args.zero } else { 0 }, args.low, args.high);
    let each = y.iter_mut().zip(sums);
    let at = taps.max(1) - 1;
    match kind {
        Kind::Max => each.for_each(|(y, v)| *y = limits.of(*v)),
        Kind::Mean => {
            let taps = taps as i32;
            each.for_each(|(y, v)| {
                let half = if *v > 0 { taps / 2 } else { -(taps / 2) };
                *y = limits.of((*v + half) / taps.max(1));
            });
        }
        Kind::Sum { is_fixed: false } => {
            let factor = f32::from_bits(factors[at]);
            each.for_each(|(y, v)| *y = limits.of(bytes::scaled(*v, factor)));
        }
        Kind::Sum { .. } => {
            let mantissa = factors[at].cast_signed();
            let shift = factors[window.taps() + at].cast_signed();
            each.for_each(|(y, v)| *y = limits.of(bytes::multiplied(*v, mantissa, shift)));
        }
    }
}
