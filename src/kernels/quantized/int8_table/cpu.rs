//! Table lookup for functions of one byte.

use crate::backend::cpu::args::{Bound, NativeKernel, Scratch, Store, part};
use crate::backend::cpu::bytes::{self, Bytes, Job, MOST_BYTES};
use crate::backend::cpu::isa::Isa;
use crate::backend::kernel::KernelSpec;
use crate::kernels::cpu::moves::pieces;

type Args = super::Args<Bound>;

/// `y = table[x + 128]`; `count` counts words.
pub struct Int8Table {
    isa: Isa,
}

impl NativeKernel for Int8Table {
    type Signature = super::Args;

    fn new(_: &KernelSpec, isa: Isa) -> Option<Self> {
        Some(Self { isa })
    }

    fn fits(&self, args: &Args) -> bool {
        args.x.holds::<u32>(args.count) && args.table.holds::<u8>(256) && args.y.holds::<u32>(args.count)
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        pieces(args.count.saturating_mul(4), args.count, threads)
    }

    unsafe fn run(&self, args: &Args, _: &Store<'_>, piece: usize, pieces: usize, _: &mut Scratch) {
        let range = part(args.count, 16, piece, pieces);
        let (x, y) = (args.x.as_ptr::<u32>(), args.y.as_ptr::<u32>());
        // SAFETY: inside the operands.
        let (x, y) = unsafe { (x.add(range.start), y.add(range.start)) };
        let job = Run {
            x: x.cast(),
            y: y.cast(),
            table: args.table.as_ptr(),
            bytes: 4 * range.len(),
        };
        // SAFETY: `isa` is supported. As `fits` has checked, the operands hold the run, and the
        // table has 256 bytes. The piece owns its results.
        unsafe { bytes::run(self.isa, job) }
    }
}

/// A run of bytes, and a table of 256.
struct Run {
    x: *const u8,
    table: *const u8,
    y: *mut u8,
    bytes: usize,
}

impl Job for Run {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Bytes>(self) {
        let Self { x, table, y, bytes } = self;
        let step = 4 * S::LANES;
        let whole = bytes / step * step;
        // SAFETY: inside the run.
        unsafe {
            for i in (0..whole).step_by(step) {
                S::store_bytes(y.add(i), S::lookup(table, S::load_bytes(x.add(i))));
            }
            let rest = bytes - whole;
            if rest > 0 {
                let mut last = [0u8; MOST_BYTES];
                x.add(whole).copy_to_nonoverlapping(last.as_mut_ptr(), rest);
                let v = S::lookup(table, S::load_bytes(last.as_ptr()));
                S::store_bytes(last.as_mut_ptr(), v);
                y.add(whole).copy_from_nonoverlapping(last.as_ptr(), rest);
            }
        }
    }
}
