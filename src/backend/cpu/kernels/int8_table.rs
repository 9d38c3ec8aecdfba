//! Table lookup for functions of one byte.

use super::moves::pieces;
use crate::backend::cpu::args::{Kernel, Scratch, Store, arguments, part};
use crate::backend::cpu::isa::Isa;
use crate::backend::kernel::KernelSpec;

arguments! {
    pub struct Args { count: U32 } [x: In, table: In, y: Out]
}

/// `y = table[x + 128]`; `count` counts words.
pub struct Int8Table;

impl Kernel for Int8Table {
    type Args = Args;

    fn new(_: &KernelSpec, _: Isa) -> Option<Self> {
        Some(Self)
    }

    fn fits(&self, args: &Args) -> bool {
        args.x.holds::<u32>(args.count) && args.table.holds::<u8>(256) && args.y.holds::<u32>(args.count)
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        pieces(args.count.saturating_mul(4), args.count, threads)
    }

    unsafe fn run(&self, args: &Args, _: &Store<'_>, piece: usize, pieces: usize, _: &mut Scratch) {
        // SAFETY: nobody writes it, and it has 256 bytes.
        let table: &[u8] = unsafe { args.table.slice() };
        let Some(table) = table.first_chunk::<256>() else {
            return;
        };
        let range = part(args.count, 16, piece, pieces);
        let (x, y) = (args.x.as_ptr::<[u8; 4]>(), args.y.as_ptr::<[u8; 4]>());
        for i in range {
            // SAFETY: inside the operands; the piece owns these results.
            unsafe {
                let word = x.add(i).read();
                y.add(i).write(word.map(|v| table[usize::from(v ^ 0x80)]));
            }
        }
    }
}
