//! Concatenation of the rows of two operands.

use crate::backend::cpu::args::{Bound, NativeKernel, Scratch, Store, part};
use crate::backend::cpu::isa::Isa;
use crate::backend::kernel::KernelSpec;
use crate::kernels::cpu::moves::{Elem, RUN, Sink, Word, pieces};
use half::f16;

type Args = super::Args<Bound>;

/// Rows of `a_len` elements of `a` and `b_len` elements of `b`.
pub struct Concat {
    halves: [bool; 2],
}

/// As [`join`], element by element.
fn join_each<A: Word, B: Word>(a: &[A], b: &[B], args: &Args, first: usize, y: &mut [u32]) {
    let (a_len, len) = (args.a_len, args.a_len + args.b_len);
    let (row, mut at) = (first / len, first % len);
    let mut a = a[row * a_len + at.min(a_len)..].iter();
    let mut b = b[row * args.b_len + at.saturating_sub(a_len)..].iter();
    for y in y {
        let v = if at < a_len {
            a.next().map(|v| v.word())
        } else {
            b.next().map(|v| v.word())
        };
        *y = v.unwrap_or(0);
        at = if at + 1 == len { 0 } else { at + 1 };
    }
}

/// Writes the results from element `first` on.
fn join<A: Word, B: Word>(a: &[A], b: &[B], args: &Args, first: usize, y: &mut [u32]) {
    let (a_len, len) = (args.a_len, args.a_len + args.b_len);
    let (mut row, mut at, mut rest) = (first / len, first % len, y);
    while !rest.is_empty() {
        let end = if at < a_len { a_len } else { len };
        let (to, next) = rest.split_at_mut((end - at).min(rest.len()));
        if at < a_len {
            let from = row * a_len + at;
            A::copy(&a[from..from + to.len()], to);
        } else {
            let from = row * args.b_len + at - a_len;
            B::copy(&b[from..from + to.len()], to);
        }
        at += to.len();
        if at == len {
            (row, at) = (row + 1, 0);
        }
        rest = next;
    }
}

/// # Safety
/// As for [`NativeKernel::run`].
unsafe fn fill<A: Word, B: Word>(
    args: &Args,
    sink: Sink<'_, '_>,
    range: std::ops::Range<usize>,
    scratch: &mut Scratch,
) {
    // SAFETY: nobody writes the operands; the piece owns the results.
    unsafe {
        let (a, b) = (args.a.slice::<A>(), args.b.slice::<B>());
        let is_short = args.a_len + args.b_len <= 12;
        sink.fill(range, RUN, scratch, |first, y| {
            if is_short {
                join_each(a, b, args, first, y);
            } else {
                join(a, b, args, first, y);
            }
        });
    }
}

impl NativeKernel for Concat {
    type Signature = super::Args;
    const HALVES: &'static [&'static str] = &["a", "b"];

    fn new(spec: &KernelSpec, _: Isa) -> Option<Self> {
        let elem = Elem::of(spec, 2)?;
        Some(Self {
            halves: [elem.halves(spec, 0)?, elem.halves(spec, 1)?],
        })
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        pieces(args.count, args.count / RUN, threads)
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, piece: usize, pieces: usize, scratch: &mut Scratch) {
        if args.a_len + args.b_len == 0 {
            return;
        }
        let sink = Sink { store };
        let range = part(args.count, 16, piece, pieces);
        unsafe {
            match self.halves {
                [false, false] => fill::<u32, u32>(args, sink, range, scratch),
                [false, true] => fill::<u32, f16>(args, sink, range, scratch),
                [true, false] => fill::<f16, u32>(args, sink, range, scratch),
                [true, true] => fill::<f16, f16>(args, sink, range, scratch),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Concat;
    use crate::kernels::cpu::moves::check::{Given, blank, expect, floats, ints};
    use half::f16;

    #[test]
    fn concat_joins_rows() {
        for (rows, a_len, b_len) in [
            (1, 5, 7),
            (9, 3, 1),
            (4, 0, 5),
            (4, 6, 0),
            (3, 0, 0),
            (0, 2, 2),
            (37, 40, 65),
        ] {
            let params = [rows * (a_len + b_len), a_len, b_len].map(|n| n as u32);
            fn rows_of<T: Copy>(a: &[T], b: &[T], [rows, a_len, b_len]: [usize; 3]) -> Vec<T> {
                let row =
                    |i: usize| [&a[i * a_len..(i + 1) * a_len], &b[i * b_len..(i + 1) * b_len]].concat();
                (0..rows).flat_map(row).collect()
            }
            let (a, b) = (floats(rows * a_len, 1), floats(rows * b_len, 2));
            let want = Given::F(rows_of(&a, &b, [rows, a_len, b_len]));
            let operands = [Given::F(a.clone()), Given::F(b.clone()), blank(&want)];
            expect::<Concat>(&[], &params, &operands, &[want], 0.0);

            let half: Vec<f16> = a.iter().map(|v| f16::from_f32(*v)).collect();
            let a: Vec<f32> = half.iter().map(|v| v.to_f32()).collect();
            let want = Given::F(rows_of(&a, &b, [rows, a_len, b_len]));
            let operands = [Given::H(half.clone()), Given::F(b.clone()), blank(&want)];
            expect::<Concat>(&[], &params, &operands, &[want], 0.0);
            let want = Given::F(rows_of(&b, &a, [rows, b_len, a_len]));
            let swapped = [params[0], params[2], params[1]];
            let operands = [Given::F(b), Given::H(half), blank(&want)];
            expect::<Concat>(&[], &swapped, &operands, &[want], 0.0);

            let (a, b) = (ints(rows * a_len, 1, 99), ints(rows * b_len, 2, 99));
            let want = Given::I(rows_of(&a, &b, [rows, a_len, b_len]));
            expect::<Concat>(
                &[],
                &params,
                &[Given::I(a), Given::I(b), blank(&want)],
                &[want],
                0.0,
            );
        }
    }
}
