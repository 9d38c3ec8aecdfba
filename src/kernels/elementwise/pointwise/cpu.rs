//! Elementwise functions: an epilogue without a kernel.

use crate::backend::cpu::args::{Bound, NativeKernel, Scratch, Store, part};
use crate::backend::cpu::isa::Isa;
use crate::backend::kernel::KernelSpec;

type Args = super::Args<Bound>;

/// Smallest number of elements that is worth a piece of its own.
const PIECE: usize = 16 << 10;

pub struct Pointwise;

impl NativeKernel for Pointwise {
    type Signature = super::Args;
    const LONGS: &'static [&'static str] = &["y"];

    fn new(spec: &KernelSpec, _: Isa) -> Option<Self> {
        spec.epilogue.as_ref().map(|_| Self)
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        (args.count / PIECE).clamp(1, 4 * threads)
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, piece: usize, pieces: usize, _: &mut Scratch) {
        let range = part(args.count, 16, piece, pieces);
        // SAFETY: pieces have different results.
        unsafe { store.fill(range) };
    }
}
