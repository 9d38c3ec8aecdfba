//! Upper and lower triangles of matrices.

use crate::backend::cpu::args::{Bound, NativeKernel, Scratch, Store, dtype, part};
use crate::backend::cpu::isa::Isa;
use crate::backend::kernel::KernelSpec;
use crate::kernels::cpu::moves::{Elem, RUN, Sink, pieces};
use crate::tensor::DType;

type Args = super::Args<Bound>;

/// `x` on and above (`upper`) or on and below a diagonal, and 0 elsewhere. May work in place.
pub struct Trilu {
    upper: bool,
    /// Words of an element.
    words: usize,
}

impl NativeKernel for Trilu {
    type Signature = super::Args;
    const LONGS: &'static [&'static str] = &["x", "y"];

    fn new(spec: &KernelSpec, _: Isa) -> Option<Self> {
        let elem = Elem::of(spec, 1)?;
        let [x, y] = [0, 1].map(|i| dtype(spec, i) == Some(DType::I64));
        if elem.halves(spec, 0)? || x != y || y && spec.epilogue.is_some() {
            return None;
        }
        Some(Self {
            upper: spec.defines.contains_key(super::UPPER),
            words: if y { 2 } else { 1 },
        })
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        pieces(args.count, args.count / RUN, threads)
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, piece: usize, pieces: usize, scratch: &mut Scratch) {
        let Args {
            count,
            rows,
            cols,
            diagonal,
            x,
            ..
        } = *args;
        if count == 0 || rows == 0 || cols == 0 {
            return;
        }
        let words = self.words;
        assert!(
            x.holds::<u32>(count.saturating_mul(words)) && store.y.holds::<u32>(count.saturating_mul(words)),
            "the operands have all elements"
        );
        let sink = Sink { store };
        let range = part(count, 16, piece, pieces);
        let (from, to): (*const u32, *mut u32) = (x.as_ptr(), store.y.as_ptr());
        let mut at = range.start;
        while at < range.end {
            let (row, col) = (at / cols % rows, at % cols);
            let n = (cols - col)
                .min(range.end - at)
                .min(if sink.is_direct() { cols } else { RUN });
            // Columns from `bound` on are above the diagonal (`upper`) or below it.
            let bound = row as i64 + i64::from(diagonal) + i64::from(!self.upper) - col as i64;
            let bound = usize::try_from(bound).unwrap_or(0).min(n);
            let kept = if self.upper { bound..n } else { 0..bound };
            let zeros = if self.upper { 0..bound } else { bound..n };
            let values = if sink.is_direct() {
                // SAFETY: inside the results, by the assertion.
                unsafe { to.add(at * words) }
            } else {
                scratch.of::<u32>(n).as_mut_ptr()
            };
            // SAFETY: the piece owns elements `at..at + n` of the results, and of `x` if it is the
            // same memory; `values` has room for them.
            unsafe {
                std::ptr::copy(
                    from.add((at + kept.start) * words),
                    values.add(kept.start * words),
                    kept.len() * words,
                );
                std::ptr::write_bytes(values.add(zeros.start * words), 0, zeros.len() * words);
                if !sink.is_direct() {
                    sink.put(at, std::slice::from_raw_parts_mut(values, n));
                }
            }
            at += n;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Trilu;
    use crate::backend::cpu::args::{Memory, NativeKernel, Scratch, Store};
    use crate::backend::cpu::isa::Isa;
    use crate::backend::kernel::Arguments;
    use crate::backend::kernel::KernelSpec;
    use crate::kernels::cpu::moves::check::{Given, blank, expect, floats, ints};
    use crate::tensor::DType;

    fn keep<T: Copy + Default>(x: &[T], upper: bool, [rows, cols]: [usize; 2], diagonal: i64) -> Vec<T> {
        let kept = |(i, v): (usize, &T)| {
            let above = (i % cols) as i64 - (i / cols % rows) as i64 - diagonal;
            if if upper { above >= 0 } else { above <= 0 } {
                *v
            } else {
                T::default()
            }
        };
        x.iter().enumerate().map(kept).collect()
    }

    const CASES: [(usize, usize, usize, i32); 7] = [
        (1, 5, 5, 0),
        (3, 4, 7, -1),
        (2, 1, 65, 3),
        (2, 33, 20, 2),
        (1, 3, 3, 1 << 30),
        (1, 3, 3, -(1 << 30)),
        (2, 40, 1500, 700),
    ];

    #[test]
    fn trilu_keeps_a_triangle() {
        for (batch, rows, cols, diagonal) in CASES {
            for upper in [false, true] {
                let count = batch * rows * cols;
                let params = [count as u32, rows as u32, cols as u32, diagonal as u32];
                let defines: &[(&'static str, i64)] = if upper { &[("UPPER", 1)] } else { &[] };
                let x = floats(count, 2);
                let want = Given::F(keep(&x, upper, [rows, cols], diagonal.into()));
                expect::<Trilu>(defines, &params, &[Given::F(x), blank(&want)], &[want], 0.0);
                let x = ints(count, 2, 9);
                let want = Given::I(keep(&x, upper, [rows, cols], diagonal.into()));
                expect::<Trilu>(defines, &params, &[Given::I(x), blank(&want)], &[want], 0.0);
            }
        }
    }

    #[test]
    fn trilu_works_in_place() {
        let double = |_: usize, v: &mut [f32], _: Option<&[f32]>| v.iter_mut().for_each(|v| *v *= 2.0);
        for (batch, rows, cols, diagonal) in CASES {
            for with in [false, true] {
                let count = batch * rows * cols;
                let params = [count as u32, rows as u32, cols as u32, diagonal as u32];
                let mut x = floats(count, 2);
                let mut want = keep(&x, true, [rows, cols], diagonal.into());
                want.iter_mut().for_each(|v| *v *= if with { 2.0 } else { 1.0 });
                // SAFETY: `x` outlives the run.
                let memory = unsafe { Memory::new(x.as_mut_ptr().cast(), 4 * count) };
                let spec = KernelSpec {
                    defines: [("UPPER", 1)].into(),
                    operands: vec![Some(DType::F32); 2],
                    ..crate::kernels::cpu::blank()
                };
                let kernel = Trilu::new(&spec, Isa::Portable).unwrap();
                let args = super::Args::read(&params, &[Some(memory); 2]).unwrap();
                let store = Store {
                    y: memory,
                    epilogue: if with { Some(&double) } else { None },
                };
                for piece in 0..3 {
                    // SAFETY: the operands have all elements.
                    unsafe { kernel.run(&args, &store, piece, 3, &mut Scratch::default()) };
                }
                assert_eq!(x, want);
            }
        }
    }
}
