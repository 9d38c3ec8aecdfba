//! Checks that indices are inside their axes.

use crate::backend::cpu::args::{Kernel, Scratch, Store, arguments};
use crate::backend::cpu::isa::Isa;
use crate::backend::kernel::KernelSpec;

arguments! {
    pub struct Args { count, columns: U32; low, n0, n1, n2, n3, code: I32 } [x: In, fault: Out]
}

/// `fault[0] = code` if an index is outside the axis of its column.
pub struct CheckIndices;

impl Kernel for CheckIndices {
    type Args = Args;

    fn new(_: &KernelSpec, _: Isa) -> Option<Self> {
        Some(Self)
    }

    fn fits(&self, args: &Args) -> bool {
        args.x.holds::<i32>(args.count) && args.fault.holds::<i32>(1)
    }

    fn pieces(&self, _: &Args, _: usize) -> usize {
        1
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, _: usize, _: usize, _: &mut Scratch) {
        // SAFETY: nobody writes the indices.
        let x = unsafe { args.x.slice::<i32>() };
        let sizes = [args.n0, args.n1, args.n2, args.n3];
        let inside = |(i, v): (usize, &i32)| {
            let n = sizes.get(i % args.columns.max(1)).copied().unwrap_or(0);
            (if args.low != 0 { -n } else { 0 }..n).contains(v)
        };
        if !x.iter().take(args.count).enumerate().all(inside) {
            // SAFETY: the only piece owns the result.
            unsafe { store.put(0, &[args.code], None) };
        }
    }
}
