//! Ranges of integers.

use crate::backend::cpu::args::{Bound, NativeKernel, Scratch, Store, dtype, part};
use crate::backend::cpu::isa::Isa;
use crate::backend::kernel::KernelSpec;
use crate::kernels::cpu::moves::{Elem, RUN, Sink, pieces};

type Args = super::Args<Bound>;

/// `y[i] = live[start] + i * delta`.
pub struct Range {
    elem: Elem,
}

impl NativeKernel for Range {
    type Signature = super::Args;

    fn new(spec: &KernelSpec, _: Isa) -> Option<Self> {
        if dtype(spec, 0)?.is_float() {
            return None;
        }
        Some(Self {
            elem: Elem::of(spec, 1)?,
        })
    }

    fn fits(&self, args: &Args) -> bool {
        args.start < args.live.elements::<i32>()
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        pieces(args.count, args.count / RUN, threads)
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, piece: usize, pieces: usize, scratch: &mut Scratch) {
        // SAFETY: nobody writes it.
        let Some(start) = (unsafe { args.live.slice::<i32>() }).get(args.start).copied() else {
            return;
        };
        let sink = Sink { store };
        let range = part(args.count, 16, piece, pieces);
        let fill = |first: usize, y: &mut [u32]| {
            let mut v = start.wrapping_add((first as i32).wrapping_mul(args.delta));
            for y in y {
                *y = match self.elem {
                    Elem::Float => (v as f32).to_bits(),
                    Elem::Int => v.cast_unsigned(),
                };
                v = v.wrapping_add(args.delta);
            }
        };
        // SAFETY: the piece owns the results.
        unsafe { sink.fill(range, RUN, scratch, fill) }
    }
}

#[cfg(test)]
mod tests {
    use super::Range;
    use crate::kernels::cpu::moves::check::{Given, blank, expect};

    #[test]
    fn ranges_match() {
        for (count, start, delta) in [(0, 1, 1), (5, -3, 7), (2000, 9, -2), (3, i32::MAX, 1)] {
            let params = [count, 1, delta as u32];
            let value = |i: u32| start.wrapping_add(i as i32 * delta);
            let live = Given::I(vec![100, start]);
            let want = Given::I((0..count).map(value).collect());
            expect::<Range>(&[], &params, &[live.clone(), blank(&want)], &[want], 0.0);
            let want = Given::F((0..count).map(|i| value(i) as f32).collect());
            expect::<Range>(&[], &params, &[live, blank(&want)], &[want], 0.0);
        }
    }
}
