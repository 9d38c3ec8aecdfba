//! Checks that indices are inside their axes.

use crate::backend::cpu::args::{Bound, NativeKernel, Scratch, Store};
use crate::backend::cpu::isa::Isa;
use crate::backend::kernel::KernelSpec;

type Args = super::Args<Bound>;

/// `fault[0] = code` if an index is outside the axis of its column.
pub struct CheckIndices;

impl NativeKernel for CheckIndices {
    type Signature = super::Args;

    fn new(_: &KernelSpec, _: Isa) -> Option<Self> {
        Some(Self)
    }

    fn fits(&self, args: &Args) -> bool {
        (1..=4).contains(&args.columns) && args.x.holds::<i32>(args.count) && args.fault.holds::<i32>(1)
    }

    fn pieces(&self, _: &Args, _: usize) -> usize {
        1
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, _: usize, _: usize, _: &mut Scratch) {
        // SAFETY: nobody writes the indices.
        let x = unsafe { args.x.slice::<i32>() };
        let inside = |(i, v): (usize, &i32)| {
            let n = match i % args.columns {
                0 => args.n0,
                1 => args.n1,
                2 => args.n2,
                _ => args.n3,
            };
            (-n..n).contains(v)
        };
        if !x.iter().take(args.count).enumerate().all(inside) {
            // SAFETY: the only piece owns the result.
            unsafe { store.put(0, &[args.code], None) };
        }
    }
}
