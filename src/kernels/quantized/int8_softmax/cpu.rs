//! Softmax of rows of bytes, with a table of exponentials.

use crate::backend::cpu::args::{Bound, NativeKernel, Scratch, Store, part, product};
use crate::backend::cpu::isa::Isa;
use crate::backend::cpu::simd::{self, Job, Simd};
use crate::backend::kernel::KernelSpec;
use crate::kernels::cpu::moves::pieces;

type Args = super::Args<Bound>;

/// `table[largest - x]` divided by its sum over the row, with scale 1/256 and zero point -128.
pub struct Int8Softmax(Isa);

impl NativeKernel for Int8Softmax {
    type Signature = super::Args;

    fn new(_: &KernelSpec, isa: Isa) -> Option<Self> {
        Some(Self(isa))
    }

    fn fits(&self, args: &Args) -> bool {
        let words = product(&[args.rows, args.words]);
        args.channels <= args.words.saturating_mul(4)
            && args.x.holds::<u32>(words)
            && args.table.holds::<u32>(256)
            && args.y.holds::<u32>(words)
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        pieces(product(&[args.rows, args.words, 16]), args.rows, threads)
    }

    unsafe fn run(&self, args: &Args, _: &Store<'_>, piece: usize, pieces: usize, scratch: &mut Scratch) {
        let stride = args.words * 4;
        // SAFETY: nobody writes it, and it has 256 words.
        let table: &[u32] = unsafe { args.table.slice() };
        let Some(table) = table.first_chunk::<256>() else {
            return;
        };
        for row in part(args.rows, 1, piece, pieces) {
            let own = row * stride..(row + 1) * stride;
            let copy = scratch.of::<i8>(stride);
            // SAFETY: x is copied first, since the results may share its memory; the piece owns
            // the results.
            unsafe {
                let x = args.x.as_ptr::<i8>().add(own.start);
                copy.as_mut_ptr().copy_from_nonoverlapping(x, stride);
                let y = args.y.slice_mut::<u8>(own);
                let x = &copy[..args.channels];
                simd::run(self.0, Row { x, table, y });
            }
        }
    }
}

struct Row<'a> {
    x: &'a [i8],
    table: &'a [u32; 256],
    y: &'a mut [u8],
}

impl Job for Row<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let most = self.x.iter().fold(i8::MIN, |m, v| m.max(*v));
        let entry = |v: &i8| self.table[usize::from(most.abs_diff(*v))];
        let sum = self.x.iter().map(entry).fold(0, u32::wrapping_add);
        self.y.fill(0x80);
        for (y, x) in self.y.iter_mut().zip(self.x) {
            let share = entry(x).wrapping_mul(256).wrapping_add(sum / 2) / sum.max(1);
            *y = share.min(255) as u8 ^ 0x80;
        }
    }
}
