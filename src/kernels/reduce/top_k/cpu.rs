//! The largest or smallest elements along an axis.

use crate::backend::cpu::args::{Bound, NativeKernel, Scratch, Store, part};
use crate::backend::cpu::isa::Isa;
use crate::backend::kernel::KernelSpec;
use crate::kernels::cpu::moves::{Elem, Sink, pieces};

type Args = super::Args<Bound>;

/// The `kept` largest or smallest elements of each line, sorted, and their positions. Equal
/// elements keep their order. Both zeros are equal; NaN counts as larger than any number.
pub struct TopK {
    elem: Elem,
    largest: bool,
}

impl TopK {
    /// The sort key of an element: as unsigned integers, keys have the order of the result.
    #[inline(always)]
    fn key(&self, word: u32) -> u32 {
        let word = match self.elem {
            Elem::Float if word & 0x7fff_ffff == 0 => 0,
            Elem::Float if word & 0x7fff_ffff > 0x7f80_0000 => 0x7fff_ffff,
            _ => word,
        };
        let key = match self.elem {
            Elem::Float if word >> 31 == 1 => !word,
            _ => word ^ (1 << 31),
        };
        if self.largest { !key } else { key }
    }
}

impl NativeKernel for TopK {
    type Signature = super::Args;

    fn new(spec: &KernelSpec, _: Isa) -> Option<Self> {
        let elem = Elem::of(spec, 1)?;
        let fits = !elem.halves(spec, 0)? && Elem::of(spec, 2)? == Elem::Int;
        fits.then(|| Self {
            elem,
            largest: spec.defines.contains_key(super::LARGEST),
        })
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        let lines = args.count / args.n.max(1);
        // A comparison takes several times as long as a move.
        pieces(8 * args.count, lines, threads)
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, piece: usize, pieces: usize, scratch: &mut Scratch) {
        let Args { count, n, inner, .. } = *args;
        let kept = args.kept.min(n);
        if kept == 0 || inner == 0 {
            return;
        }
        // SAFETY: nobody writes it.
        let x = unsafe { args.x.slice::<u32>() };
        let sink = Sink { store };
        // The line, sorted by key, then by position; after it, the values of the results.
        let all = scratch.of::<u64>(n + kept.div_ceil(2));
        let (line, values) = all.split_at_mut(n);
        let values = &mut bytemuck::cast_slice_mut::<u64, u32>(values)[..kept];
        for i in part(count / n, 1, piece, pieces) {
            let (outer, inside) = (i / inner, i % inner);
            let elements = &x[outer * n * inner + inside..];
            for ((j, word), to) in elements.iter().step_by(inner).enumerate().zip(&mut *line) {
                *to = u64::from(self.key(*word)) << 32 | j as u64;
            }
            if kept < n {
                line.select_nth_unstable(kept - 1);
            }
            line[..kept].sort_unstable();
            let first = outer * kept * inner + inside;
            for (k, v) in line[..kept].iter().enumerate() {
                values[k] = elements[(*v & u64::from(u32::MAX)) as usize * inner];
                // SAFETY: the piece owns the results of its lines.
                unsafe { args.at.slice_mut::<u32>(first + k * inner..first + k * inner + 1)[0] = *v as u32 };
            }
            // SAFETY: the piece owns the results of its lines.
            unsafe {
                if inner == 1 {
                    sink.put(first, values);
                } else {
                    for (k, value) in values.chunks_exact_mut(1).enumerate() {
                        sink.put(first + k * inner, value);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::TopK;
    use crate::kernels::cpu::moves::check::{Given, blank, expect, floats, ints};
    use crate::num::ascending;
    use std::cmp::Ordering;

    fn best<T: Copy>(
        x: &[T],
        [outer, n, inner, kept]: [usize; 4],
        better: impl Fn(&T, &T) -> Ordering,
    ) -> (Vec<T>, Vec<i32>) {
        let (mut y, mut at) = (Vec::new(), vec![0; outer * kept * inner]);
        y.extend(x.iter().copied().cycle().take(outer * kept * inner));
        for (o, i) in (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))) {
            let mut line: Vec<usize> = (0..n).collect();
            line.sort_by(|a, b| better(&x[(o * n + a) * inner + i], &x[(o * n + b) * inner + i]));
            for (k, j) in line[..kept].iter().enumerate() {
                y[(o * kept + k) * inner + i] = x[(o * n + j) * inner + i];
                at[(o * kept + k) * inner + i] = *j as i32;
            }
        }
        (y, at)
    }

    #[test]
    fn top_k_matches_sorted_lines() {
        for sizes in [
            [3, 9, 1, 4],
            [1, 5, 6, 5],
            [3, 130, 1, 130],
            [2, 1000, 3, 7],
            [2, 4, 3, 0],
            [0, 3, 1, 2],
        ] {
            let [outer, n, inner, kept] = sizes;
            for largest in [false, true] {
                let turn = |o: Ordering| if largest { o.reverse() } else { o };
                let defines: &[(&'static str, i64)] = if largest { &[("LARGEST", 1)] } else { &[] };
                let params = [outer * n * inner, n, inner, kept].map(|v| v as u32);
                let mut x = floats(outer * n * inner, 8);
                x.iter_mut().for_each(|v| *v = (*v * 40.0).round());
                let odd = [0.0, f32::NAN, f32::INFINITY, -0.0, f32::NEG_INFINITY, -f32::NAN];
                x.iter_mut().zip(odd).for_each(|(x, v)| *x = v);
                let (y, at) = best(&x, sizes, |a, b| turn(ascending(a, b)));
                let want = [Given::F(y), Given::I(at)];
                let operands = [Given::F(x), blank(&want[0]), blank(&want[1])];
                expect::<TopK>(defines, &params, &operands, &want, 0.0);
                let x = ints(outer * n * inner, 8, 20);
                let (y, at) = best(&x, sizes, |a, b| turn(a.cmp(b)));
                let want = [Given::I(y), Given::I(at)];
                let operands = [Given::I(x), blank(&want[0]), blank(&want[1])];
                expect::<TopK>(defines, &params, &operands, &want, 0.0);
            }
        }
    }
}
