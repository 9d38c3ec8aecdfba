//! Batched matmul of two byte activations.

use crate::backend::cpu::args::{Bound, NativeKernel, Piece, Scratch, Store, product, reach};
use crate::backend::cpu::bytes::{self, Arithmetic, Bytes, Limits, PANEL, ScaledJob};
use crate::backend::cpu::isa::Isa;
use crate::backend::kernel::KernelSpec;
use crate::kernels::cpu::int8_tile::{Scales, Tiles};
use crate::kernels::int8_conv::cpu::{WORDS, across};
use std::ops::Range;

type Args = super::Args<Bound>;

/// `y[z, i, j]` is the requantized sum over k of `(a[z, i, k] - a_zero) * (b[z, j, k] - b_zero)`.
/// Rows of y have whole words.
pub struct Int8MatMul {
    isa: Isa,
    is_fixed: bool,
}

impl NativeKernel for Int8MatMul {
    type Signature = super::Args;

    fn new(spec: &KernelSpec, isa: Isa) -> Option<Self> {
        let is_fixed = spec.defines.contains_key(crate::kernels::FIXED);
        Some(Self { isa, is_fixed })
    }

    fn fits(&self, args: &Args) -> bool {
        let matrix = |step, rows| reach(&[[args.batch, step]], product(&[rows, args.words]));
        args.limits().are_bytes()
            && args.n <= args.outputs.saturating_mul(4)
            && args.k <= args.words.saturating_mul(4)
            && args.a.holds::<u32>(matrix(args.a_step, args.m))
            && args.b.holds::<u32>(matrix(args.b_step, args.n))
            && args.y.holds::<u32>(product(&[args.batch, args.m, args.outputs]))
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        // Approximate nanoseconds of multiply-adds, and of packing b.
        let work = product(&[args.batch, args.m, args.n, args.words]) / 40;
        let nanos = work.saturating_add(product(&[args.batch, args.n, args.words]));
        if threads < 2 || nanos < 8_000 {
            return 1;
        }
        (nanos / 8_000)
            .clamp(threads, 2 * threads)
            .min(args.batch * args.m)
            .max(1)
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, piece: usize, pieces: usize, scratch: &mut Scratch) {
        let job = Piece::new(self, args, store, piece, pieces, scratch);
        // SAFETY: the processor supports the instruction set.
        unsafe { bytes::run_scaled(self.isa, self.is_fixed, job) }
    }
}

/// Rows of a that are prepared at once.
const ROWS: usize = 192;
/// Panels of b that are packed at once.
const PANELS: usize = 16;

impl ScaledJob for Piece<'_, Int8MatMul> {
    #[inline(always)]
    unsafe fn run<S: Bytes, A: Arithmetic>(self) {
        let args = self.args;
        if args.n == 0 || args.words == 0 {
            return;
        }
        // Rows of a, counted over all matrices.
        let rows = self.part(args.batch * args.m, 1);
        let (m, words) = (args.m, args.words);
        let stride = words * S::STEP;
        let most = PANELS.min(args.outputs.div_ceil(WORDS));
        let tall = ROWS.min(rows.len());
        let panel = words * PANEL;
        let room = self
            .scratch
            .of::<u32>(most * (panel + 3 * PANEL) + tall * (stride + 1));
        let (panels, rest) = room.split_at_mut(most * panel);
        let (lists, rest) = rest.split_at_mut(most * 3 * PANEL);
        let (starts, x) = rest.split_at_mut(tall);
        let mut at = rows.start;
        while at < rows.end {
            // The rows of one matrix.
            let (z, i) = (at / m, at % m);
            let own = (m - i).min(rows.end - at);
            let mut first = 0;
            while first < args.outputs {
                let outputs = (most * WORDS).min(args.outputs - first);
                // SAFETY: the operands fit, and the piece owns these results.
                unsafe {
                    let scales = args.pack::<S, A>(z, first..first + outputs, panels, lists);
                    let mut done = 0;
                    while done < own {
                        let count = tall.min(own - done);
                        args.ready::<S>(z, i + done, &mut starts[..count], x);
                        let tiles = Tiles {
                            x: x.as_ptr(),
                            stride,
                            rows: count,
                            depth: words,
                            w: panels.as_ptr().cast(),
                            panel,
                            scales,
                            row_start: starts.as_ptr().cast(),
                            y: args
                                .y
                                .as_ptr::<u8>()
                                .add(((at + done) * args.outputs + first) * 4),
                            pitch: args.outputs * 4,
                            columns: [0; 2],
                            limits: args.limits(),
                        };
                        across::<S, A>(tiles, 0, 0..outputs);
                        done += count;
                    }
                }
                first += outputs;
            }
            at += own;
        }
    }
}

impl Args {
    fn limits(&self) -> Limits {
        Limits::new(self.zero, self.low, self.high)
    }

    /// A mask of the bits of word `k` of a row that hold elements.
    #[inline(always)]
    fn mask(&self, k: usize) -> u32 {
        if k + 1 < self.words {
            u32::MAX
        } else {
            self.tail as u32
        }
    }

    /// Packs the columns of matrix `z` of b for the output words `outputs` into panels. The initial
    /// sum of a column holds what its own elements and the zero points add. Columns after the last
    /// one are 0.
    /// # Safety
    /// The operands fit; there is room for the panels, and three words for each of their columns.
    #[inline(always)]
    unsafe fn pack<S: Bytes, A: Arithmetic>(
        &self,
        z: usize,
        outputs: Range<usize>,
        panels: &mut [u32],
        lists: &mut [u32],
    ) -> Scales {
        let columns = outputs.len().next_multiple_of(WORDS) * 4;
        let (start, rest) = lists.split_at_mut(columns);
        let (one, two) = rest.split_at_mut(columns);
        let both = self.a_zero.wrapping_mul(self.b_zero).wrapping_mul(self.k as i32);
        // The offset of unsigned activations acts like a zero point.
        let moved = self.a_zero + if S::FLIP == 0 { 0 } else { 128 };
        let (first, second) = if A::LISTS == 2 {
            (self.mantissa.cast_unsigned(), self.shift.cast_unsigned())
        } else {
            (self.factor.to_bits(), 0)
        };
        for c in 0..columns {
            let j = outputs.start * 4 + c;
            let to = &mut panels[c / PANEL * self.words * PANEL + c % PANEL..];
            if j >= self.n {
                to.iter_mut().step_by(PANEL).take(self.words).for_each(|w| *w = 0);
                (start[c], one[c], two[c]) = (0, 0, 0);
                continue;
            }
            // SAFETY: the operands fit.
            let from = unsafe { self.b.as_ptr::<u32>().add(z * self.b_step + j * self.words) };
            let mut sum = 0i32;
            for (k, to) in to.iter_mut().step_by(PANEL).take(self.words).enumerate() {
                // SAFETY: as above.
                *to = unsafe { from.add(k).read_unaligned() } & self.mask(k);
                sum = sum.wrapping_add(total(*to));
            }
            start[c] = both.wrapping_sub(moved.wrapping_mul(sum)).cast_unsigned();
            (one[c], two[c]) = (first, second);
        }
        Scales {
            start: start.as_ptr().cast(),
            first: one.as_ptr(),
            second: two.as_ptr(),
            is_left: A::LISTS == 2 && self.shift > 0,
        }
    }

    /// Prepares rows of matrix `z` of a, from row `i` on, and the initial sum of each row.
    /// # Safety
    /// The operands fit; there is room for the rows.
    #[inline(always)]
    unsafe fn ready<S: Bytes>(&self, z: usize, i: usize, starts: &mut [u32], x: &mut [u32]) {
        for (r, start) in starts.iter_mut().enumerate() {
            unsafe {
                let from = self.a.as_ptr::<u32>().add(z * self.a_step + (i + r) * self.words);
                let mut sum = 0i32;
                for k in 0..self.words {
                    sum = sum.wrapping_add(total(from.add(k).read_unaligned() & self.mask(k)));
                }
                *start = self.b_zero.wrapping_mul(sum).wrapping_neg().cast_unsigned();
                let to = x[r * self.words * S::STEP..][..self.words * S::STEP].as_mut_ptr();
                bytes::prepare::<S>(from, to, self.words);
            }
        }
    }
}

/// The sum of the signed bytes of a word.
#[inline(always)]
fn total(word: u32) -> i32 {
    word.to_le_bytes()
        .iter()
        .map(|b| i32::from(b.cast_signed()))
        .sum()
}
