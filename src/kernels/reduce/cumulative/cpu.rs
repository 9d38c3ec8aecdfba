//! Cumulative sums and products along an axis.

use crate::backend::cpu::args::{Bound, NativeKernel, Scratch, Store, dtype, part};
use crate::backend::cpu::isa::Isa;
use crate::backend::kernel::KernelSpec;
use crate::kernels::cpu::moves::{Elem, pieces};
use crate::tensor::DType;
use bytemuck::Pod;

type Args = super::Args<Bound>;

/// For each element, the sum or product of all up to it. Floats are accumulated in f64.
pub struct Cumulative {
    elem: Elem,
    /// Whether operand and results have 64 bits.
    longs: [bool; 2],
    product: bool,
    exclusive: bool,
    reverse: bool,
}

/// Lines that are accumulated together if the elements of a line are not contiguous; elements of a
/// line that are stored at once if they are.
const RUN: usize = 256;

impl Cumulative {
    /// Accumulates lines `range`, starting from `first`. `step` adds an element to a sum, and
    /// `result` makes a result of it.
    /// # Safety
    /// As for [`NativeKernel::run`].
    #[inline(always)]
    unsafe fn lines<T: Pod, A: Copy, Y: Pod>(
        &self,
        args: &Args,
        store: &Store<'_>,
        range: std::ops::Range<usize>,
        (first, step, result): (A, impl Fn(A, T) -> A, impl Fn(A) -> Y),
    ) {
        let Args { cols, inner, .. } = *args;
        // SAFETY: nobody writes it.
        let x = unsafe { args.x.slice::<T>() };
        let mut values = [Y::zeroed(); RUN];
        if inner == 1 {
            for line in range {
                let mut sum = first;
                for done in (0..cols).step_by(RUN) {
                    let n = RUN.min(cols - done);
                    let at = line * cols + if self.reverse { cols - done - n } else { done };
                    let mut add = |(v, y): (&T, &mut Y)| {
                        let next = step(sum, *v);
                        *y = result(if self.exclusive { sum } else { next });
                        sum = next;
                    };
                    let each = x[at..at + n].iter().zip(&mut values[..n]);
                    if self.reverse {
                        each.rev().for_each(&mut add);
                    } else {
                        each.for_each(&mut add);
                    }
                    // SAFETY: the piece owns this line of results.
                    unsafe { store.put(at, &values[..n], None) };
                }
            }
            return;
        }
        let mut line = range.start;
        while line < range.end {
            let (outer, inside) = (line / inner, line % inner);
            let n = RUN.min(inner - inside).min(range.end - line);
            let mut sums = [first; RUN];
            for c in 0..cols {
                let c = if self.reverse { cols - 1 - c } else { c };
                let at = (outer * cols + c) * inner + inside;
                for ((sum, v), y) in sums.iter_mut().zip(&x[at..at + n]).zip(&mut values) {
                    let next = step(*sum, *v);
                    *y = result(if self.exclusive { *sum } else { next });
                    *sum = next;
                }
                // SAFETY: the piece owns these lines of results.
                unsafe { store.put(at, &values[..n], None) };
            }
            line += n;
        }
    }
}

impl NativeKernel for Cumulative {
    type Signature = super::Args;
    const LONGS: &'static [&'static str] = &["x", "y"];

    fn new(spec: &KernelSpec, _: Isa) -> Option<Self> {
        let elem = Elem::of(spec, 1)?;
        let longs = [0, 1].map(|i| dtype(spec, i) == Some(DType::I64));
        if longs == [true, false] {
            return None;
        }
        let has = |name| spec.defines.contains_key(name);
        (!elem.halves(spec, 0)?).then(|| Self {
            elem,
            longs,
            product: has(super::PRODUCT),
            exclusive: has(super::EXCLUSIVE),
            reverse: has(super::REVERSE),
        })
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        // A sum takes several times as long as a move.
        pieces(4 * args.lines * args.cols, args.lines, threads)
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, piece: usize, pieces: usize, _: &mut Scratch) {
        if args.inner == 0 {
            return;
        }
        let range = part(args.lines, if args.inner == 1 { 1 } else { 16 }, piece, pieces);
        let float = |v: f64| v as f32;
        let (sum, product) = (i64::wrapping_add, i64::wrapping_mul);
        unsafe {
            match (self.elem, self.longs, self.product) {
                (Elem::Float, _, false) => {
                    self.lines(args, store, range, (0.0, |s, v: f32| s + f64::from(v), float));
                }
                (Elem::Float, _, true) => {
                    self.lines(args, store, range, (1.0, |s, v: f32| s * f64::from(v), float));
                }
                (_, [_, false], false) => self.lines(args, store, range, (0, u32::wrapping_add, |v| v)),
                (_, [_, false], true) => self.lines(args, store, range, (1, u32::wrapping_mul, |v| v)),
                (_, [true, _], false) => self.lines(args, store, range, (0, sum, |v| v)),
                (_, [true, _], true) => self.lines(args, store, range, (1, product, |v| v)),
                (_, _, false) => {
                    self.lines(args, store, range, (0, |s, v: i32| sum(s, v.into()), |v| v));
                }
                (_, _, true) => {
                    self.lines(args, store, range, (1, |s, v: i32| product(s, v.into()), |v| v));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Cumulative;
    use crate::kernels::cpu::moves::check::{Given, blank, expect, floats, ints};

    #[test]
    fn cumulative_sums_and_products_match() {
        for (outer, cols, inner) in [
            (1, 7, 1),
            (3, 600, 1),
            (2, 5, 300),
            (4, 9, 3),
            (2, 0, 3),
            (2, 3, 0),
            (0, 4, 1),
        ] {
            for bits in 0..8 {
                let [product, exclusive, reverse] = [1, 2, 4].map(|b| bits & b != 0);
                let mut defines = Vec::new();
                for (name, set) in [
                    ("PRODUCT", product),
                    ("EXCLUSIVE", exclusive),
                    ("REVERSE", reverse),
                ] {
                    defines.extend(set.then_some((name, 1)));
                }
                let count = outer * cols * inner;
                let x: Vec<f32> = floats(count, 3).iter().map(|v| 1.0 + v / 8.0).collect();
                let k = ints(count, 4, 50);
                let (mut y, mut z) = (x.clone(), k.clone());
                for o in 0..outer {
                    for i in 0..inner {
                        let (mut s, mut t) = (f64::from(u8::from(product)), i32::from(product));
                        for c in 0..cols {
                            let c = if reverse { cols - 1 - c } else { c };
                            let at = (o * cols + c) * inner + i;
                            let v = f64::from(x[at]);
                            let next = if product { s * v } else { s + v };
                            let next_int = if product {
                                t.wrapping_mul(k[at])
                            } else {
                                t.wrapping_add(k[at])
                            };
                            y[at] = if exclusive { s } else { next } as f32;
                            z[at] = if exclusive { t } else { next_int };
                            (s, t) = (next, next_int);
                        }
                    }
                }
                let params = [outer * inner, cols, inner].map(|n| n as u32);
                let want = Given::F(y);
                expect::<Cumulative>(&defines, &params, &[Given::F(x), blank(&want)], &[want], 0.0);
                let want = Given::I(z);
                expect::<Cumulative>(&defines, &params, &[Given::I(k), blank(&want)], &[want], 0.0);
            }
        }
    }
}
