//! Padding, or cropping where a pad is negative.

use super::Mode;
use crate::backend::cpu::args::{Bound, NativeKernel, Scratch, Store, part};
use crate::backend::cpu::isa::Isa;
use crate::backend::kernel::KernelSpec;
use crate::kernels::cpu::moves::{Cursor, Elem, RUN, Sink, Word, first_word, pieces};

type Args = super::Args<Bound>;

impl Mode {
    /// The element of an axis of `n` elements that is shown at `i`; `None` for the padding value.
    #[inline(always)]
    fn source(self, i: isize, n: isize) -> Option<usize> {
        if i >= 0 && i < n {
            return Some(i.cast_unsigned());
        }
        if n <= 0 {
            return None;
        }
        let at = match self {
            Self::Constant => return None,
            Self::Edge => i.clamp(0, n - 1),
            Self::Wrap => i.rem_euclid(n),
            Self::Reflect => {
                let period = (2 * (n - 1)).max(1);
                let at = i.rem_euclid(period);
                at.min(period - at) % n
            }
        };
        Some(at.cast_unsigned())
    }
}

/// `x` with elements added before and after the ends of its axes.
pub struct Pad {
    elem: Elem,
    halves: bool,
    value_halves: bool,
    mode: Mode,
}

struct Padding<'a, T> {
    x: &'a [T],
    mode: Mode,
    sizes: [usize; 5],
    from: [isize; 5],
    before: [isize; 5],
    value: u32,
}

impl<T: Word> Padding<'_, T> {
    /// The start in `x` of the row at `index`; `None` if it is all padding.
    fn row(&self, index: &[usize; 5]) -> Option<usize> {
        let (mut at, mut step) = (0, self.from[0].cast_unsigned());
        for ((i, n), before) in index.iter().zip(self.from).zip(self.before).skip(1) {
            at += self.mode.source(i.cast_signed() - before, n)? * step;
            step *= n.cast_unsigned();
        }
        Some(at)
    }

    /// Writes the elements of a row from index `first` on.
    fn part(&self, row: Option<usize>, first: usize, y: &mut [u32]) {
        let Some(row) = row else {
            return y.fill(self.value);
        };
        let n = self.from[0];
        let at = first.cast_signed() - self.before[0];
        let len = y.len().cast_signed();
        // Elements `from..to` of `y` are elements of `x`; the others are padding.
        let from = (-at).clamp(0, len);
        let to = (n - at).clamp(from, len);
        let [head, to_end] = [from.cast_unsigned(), to.cast_unsigned()];
        if head < to_end {
            let start = row + (at + from).cast_unsigned();
            T::copy(&self.x[start..start + to_end - head], &mut y[head..to_end]);
        }
        for i in (0..head).chain(to_end..y.len()) {
            let source = self.mode.source(at + i.cast_signed(), n);
            y[i] = source.map_or(self.value, |s| self.x[row + s].word());
        }
    }

    fn fill(&self, first: usize, y: &mut [u32]) {
        let mut cursor = Cursor::new(self.sizes, [0; 5], 0, first);
        let mut rest = y;
        while !rest.is_empty() {
            let n = cursor.row().min(rest.len());
            let (to, next) = rest.split_at_mut(n);
            self.part(self.row(&cursor.index), cursor.index[0], to);
            cursor.advance(n);
            rest = next;
        }
    }
}

impl Pad {
    /// # Safety
    /// As for [`NativeKernel::run`].
    unsafe fn go<T: Word>(
        &self,
        args: &Args,
        store: &Store<'_>,
        [piece, pieces]: [usize; 2],
        scratch: &mut Scratch,
    ) {
        let fill = match self.elem {
            Elem::Float => args.fill.to_bits(),
            Elem::Int => (args.fill as i32).cast_unsigned(),
        };
        // SAFETY: nobody writes it.
        let value = args
            .value
            .and_then(|v| unsafe { first_word(v, self.value_halves) });
        let inner = args.n0 * args.n1 * args.n2 * args.n3;
        if inner == 0 {
            return;
        }
        let padding = Padding {
            // SAFETY: nobody writes it.
            x: unsafe { args.x.slice::<T>() },
            mode: self.mode,
            sizes: [args.n0, args.n1, args.n2, args.n3, args.count.div_ceil(inner)],
            from: [args.m0, args.m1, args.m2, args.m3, args.m4].map(|m| m.max(0) as isize),
            before: [args.b0, args.b1, args.b2, args.b3, args.b4].map(|b| b as isize),
            value: value.unwrap_or(fill),
        };
        let range = part(args.count, 16, piece, pieces);
        let sink = Sink { store };
        // SAFETY: the piece owns the results.
        unsafe { sink.fill(range, RUN, scratch, |first, y| padding.fill(first, y)) }
    }
}

impl NativeKernel for Pad {
    type Signature = super::Args;
    const HALVES: &'static [&'static str] = &["x", "value"];

    fn new(spec: &KernelSpec, _: Isa) -> Option<Self> {
        let elem = Elem::of(spec, 2)?;
        Some(Self {
            elem,
            halves: elem.halves(spec, 0)?,
            value_halves: elem.halves(spec, 1)?,
            mode: Mode::of(spec),
        })
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        pieces(args.count, args.count / RUN, threads)
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, piece: usize, pieces: usize, scratch: &mut Scratch) {
        let cut = [piece, pieces];
        unsafe {
            if self.halves {
                self.go::<half::f16>(args, store, cut, scratch);
            } else {
                self.go::<u32>(args, store, cut, scratch);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Pad;
    use crate::kernels::cpu::moves::check::{Given, blank, expect, floats, ints};
    use half::f16;

    /// Axes innermost first: size of the operand, pads before and after.
    fn try_case(axes: &[(i32, i32, i32)]) {
        let modes: [(&[(&'static str, i64)], u32); 4] = [
            (&[], 0),
            (&[("EDGE", 1)], 1),
            (&[("REFLECT", 1)], 2),
            (&[("WRAP", 1)], 3),
        ];
        for (define, mode) in modes {
            let sizes: Vec<i32> = axes.iter().map(|(m, b, e)| m + b + e).collect();
            let count: i32 = sizes.iter().product();
            let need: i32 = axes.iter().map(|a| a.0).product();
            if mode > 0 && need == 0 {
                continue;
            }
            let place = |i: i32| -> Option<usize> {
                let (mut rest, mut at, mut step) = (i, 0, 1);
                for ((m, b, _), n) in axes.iter().zip(&sizes) {
                    let mut p = rest % n - b;
                    rest /= n;
                    while p < 0 || p >= *m {
                        p = match mode {
                            0 => return None,
                            1 => p.clamp(0, m - 1),
                            2 if *m == 1 => 0,
                            2 => {
                                if p < 0 {
                                    -p
                                } else {
                                    2 * (m - 1) - p
                                }
                            }
                            _ => {
                                if p < 0 {
                                    p + m
                                } else {
                                    p - m
                                }
                            }
                        };
                    }
                    at += p * step;
                    step *= m;
                }
                Some(at as usize)
            };
            let places: Vec<Option<usize>> = (0..count).map(place).collect();
            let mut params = vec![count as u32];
            params.extend((0..4).map(|i| sizes.get(i).map_or(1, |n| *n as u32)));
            params.extend((0..5).map(|i| axes.get(i).map_or(1, |n| n.0 as u32)));
            params.extend((0..5).map(|i| axes.get(i).map_or(0, |n| n.1 as u32)));
            params.push(2.5f32.to_bits());
            let mut defines = vec![("RANK", axes.len().max(1) as i64)];
            defines.extend(define);

            let x = floats(need as usize, 7);
            let want = Given::F(places.iter().map(|p| p.map_or(2.5, |p| x[p])).collect());
            let operands = [Given::F(x.clone()), Given::None, blank(&want)];
            expect::<Pad>(&defines, &params, &operands, &[want], 0.0);
            let want = Given::F(places.iter().map(|p| p.map_or(-1.0, |p| x[p])).collect());
            let operands = [Given::F(x), Given::F(vec![-1.0]), blank(&want)];
            expect::<Pad>(&defines, &params, &operands, &[want], 0.0);
            let x: Vec<f16> = floats(need as usize, 7).into_iter().map(f16::from_f32).collect();
            let want = Given::F(places.iter().map(|p| p.map_or(0.5, |p| x[p].to_f32())).collect());
            let operands = [Given::H(x), Given::H(vec![f16::from_f32(0.5)]), blank(&want)];
            expect::<Pad>(&defines, &params, &operands, &[want], 0.0);
            let x = ints(need as usize, 7, 1000);
            let want = Given::I(places.iter().map(|p| p.map_or(2, |p| x[p])).collect());
            expect::<Pad>(
                &defines,
                &params,
                &[Given::I(x), Given::None, blank(&want)],
                &[want],
                0.0,
            );
        }
    }

    #[test]
    fn pad_modes_match() {
        try_case(&[(7, 2, 3)]);
        try_case(&[(1, 4, 3)]);
        try_case(&[(4, 9, 11), (3, 5, 7)]);
        try_case(&[(40, -3, -5), (5, 2, -1), (3, 0, 0)]);
        try_case(&[(5, 1, 0), (4, 2, 1), (3, -1, 2), (2, 1, 1), (2, 1, 2)]);
        try_case(&[(0, 2, 3), (4, 0, 1)]);
        try_case(&[(3, 2, -5), (4, 0, 1)]);
        try_case(&[(30, -40, 20), (2, 0, 1)]);
        try_case(&[(1030, 4, 30), (3, 2, 2)]);
    }
}
