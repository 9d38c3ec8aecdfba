//! Elements at the places that an index tensor addresses. [`GatherPlaces`] reads them, [`Scatter`]
//! writes them.

use crate::backend::cpu::args::{Bound, NativeKernel, Scratch, Store, dtype, part};
use crate::backend::cpu::isa::Isa;
use crate::backend::kernel::KernelSpec;
use crate::kernels::cpu::moves::{Cursor, Elem, RUN, Sink, Word, pieces};

type Args = super::Args<Bound>;

/// How indices address a tensor.
#[derive(Clone, Copy, Debug)]
enum Addressing {
    /// One index per `row` elements, along an axis.
    Along,
    /// Tuples of this many indices, one per slice of `row` elements.
    Tuple(usize),
}

impl Addressing {
    fn new(spec: &KernelSpec) -> Option<Self> {
        if dtype(spec, 1)?.is_float() {
            return None;
        }
        match spec.defines.get(super::TUPLE) {
            None => Some(Self::Along),
            Some(n) => usize::try_from(*n).ok().filter(|n| *n <= 4).map(Self::Tuple),
        }
    }
}

/// The offset of an index along an axis of `n` elements, `step` apart; `None` if it is outside.
#[inline(always)]
fn along(index: i32, n: i32, step: usize) -> Option<usize> {
    let index = if index < 0 { index.wrapping_add(n) } else { index };
    (index >= 0 && index < n).then(|| index.cast_unsigned() as usize * step)
}

/// Calls `f(element, run, place)` for runs of elements in `range` of the tensor with the shape of
/// the indices. The elements of a run are contiguous at their places too. `place` is `None` if it
/// is outside the tensor.
#[inline(always)]
fn places(
    form: Addressing,
    args: &Args,
    index: &[i32],
    range: std::ops::Range<usize>,
    mut f: impl FnMut(usize, usize, Option<usize>),
) {
    match form {
        Addressing::Along => {
            let Args {
                m1,
                m2,
                m3,
                m4,
                n0,
                s0,
                ..
            } = *args;
            let row = args.row.max(1);
            let sizes = [m1, m2, m3, m4, usize::MAX];
            let steps = [args.t0, args.t1, args.t2, args.t3, args.t4].map(|t| t as isize);
            if sizes.contains(&0) {
                return;
            }
            let mut cursor = Cursor::new(sizes, steps, 0, range.start);
            let mut at = range.start;
            while at < range.end {
                let n = cursor.row().min(range.end - at);
                let mut base = cursor.offset.cast_unsigned();
                for i in at..at + n {
                    f(i, 1, along(index[i / row], n0, s0).map(|p| base + p));
                    base += args.t0;
                }
                cursor.advance(n);
                at += n;
            }
        }
        Addressing::Tuple(tuple) => {
            let row = args.row;
            if row == 0 {
                return;
            }
            let sizes = [
                (args.n0, args.s0),
                (args.n1, args.s1),
                (args.n2, args.s2),
                (args.n3, args.s3),
            ];
            let mut at = range.start;
            while at < range.end {
                let (slice, inside) = (at / row, at % row);
                let n = (row - inside).min(range.end - at);
                let indices = &index[slice * tuple..(slice + 1) * tuple];
                let each = indices.iter().zip(&sizes).map(|(i, (n, s))| along(*i, *n, *s));
                f(at, n, each.sum::<Option<usize>>().map(|p| p + inside));
                at += n;
            }
        }
    }
}

/// `y[i] = x[place(i)]`, or 0 where an index is outside of `x`.
pub struct GatherPlaces {
    halves: bool,
    form: Addressing,
}

impl GatherPlaces {
    /// # Safety
    /// As for [`NativeKernel::run`].
    unsafe fn go<T: Word>(
        &self,
        args: &Args,
        store: &Store<'_>,
        range: std::ops::Range<usize>,
        scratch: &mut Scratch,
    ) {
        let sink = Sink { store };
        // SAFETY: nobody writes the operands; the piece owns the results.
        unsafe {
            let (x, index) = (args.x.slice::<T>(), args.index.slice::<i32>());
            sink.fill(range, RUN, scratch, |first, y| {
                places(self.form, args, index, first..first + y.len(), |i, n, place| {
                    let to = &mut y[i - first..i - first + n];
                    match (place, to) {
                        (Some(place), [one]) => *one = x[place].word(),
                        (Some(place), to) => T::copy(&x[place..place + n], to),
                        (None, to) => to.fill(0),
                    }
                });
            });
        }
    }
}

impl NativeKernel for GatherPlaces {
    type Signature = super::Args;
    const HALVES: &'static [&'static str] = &["x"];

    fn new(spec: &KernelSpec, _: Isa) -> Option<Self> {
        let elem = Elem::of(spec, 2)?;
        Some(Self {
            halves: elem.halves(spec, 0)?,
            form: Addressing::new(spec)?,
        })
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        pieces(args.count, args.count / RUN, threads)
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, piece: usize, pieces: usize, scratch: &mut Scratch) {
        let range = part(args.count, 16, piece, pieces);
        unsafe {
            if self.halves {
                self.go::<half::f16>(args, store, range, scratch);
            } else {
                self.go::<u32>(args, store, range, scratch);
            }
        }
    }
}

/// `y[place(i)] = x[i]` where an index is inside `y`; other elements of `y` are kept. If several
/// elements have the same place, the last one is stored, so there is only one piece.
pub struct Scatter {
    form: Addressing,
}

impl NativeKernel for Scatter {
    type Signature = super::Args;

    fn new(spec: &KernelSpec, _: Isa) -> Option<Self> {
        Some(Self {
            form: Addressing::new(spec)?,
        })
    }

    fn pieces(&self, _: &Args, _: usize) -> usize {
        1
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, piece: usize, _: usize, scratch: &mut Scratch) {
        if piece > 0 {
            return;
        }
        let sink = Sink { store };
        // SAFETY: nobody writes the operands.
        let (x, index) = unsafe { (args.x.slice::<u32>(), args.index.slice::<i32>()) };
        places(self.form, args, index, 0..args.count, |i, n, place| {
            let Some(place) = place else {
                return;
            };
            for done in (0..n).step_by(RUN) {
                let from = &x[i + done..i + n.min(done + RUN)];
                let values = scratch.of::<u32>(from.len());
                values.copy_from_slice(from);
                // SAFETY: one piece owns all results.
                unsafe { sink.put(place + done, values) };
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{GatherPlaces, Scatter};
    use crate::kernels::cpu::moves::check::{Given, blank, expect, floats, ints};
    use half::f16;

    /// Parameters and places of indices of `shape` along axis `a` of a tensor of shape `x`.
    fn along(x: &[usize], shape: &[usize], a: usize, index: &[i32]) -> (Vec<u32>, Vec<Option<usize>>) {
        let rank = x.len();
        let mut steps = vec![1; rank];
        for i in (1..rank).rev() {
            steps[i - 1] = steps[i] * x[i];
        }
        let places = index.iter().enumerate().map(|(i, k)| {
            let (mut rest, mut at) = (i, 0);
            for d in (0..rank).rev() {
                at += if d == a { 0 } else { rest % shape[d] * steps[d] };
                rest /= shape[d];
            }
            let k = if *k < 0 { k + x[a] as i32 } else { *k };
            (k >= 0 && k < x[a] as i32).then(|| at + k as usize * steps[a])
        });
        let mut params = vec![
            index.len() as u32,
            1,
            x[a] as u32,
            1,
            1,
            1,
            steps[a] as u32,
            0,
            0,
            0,
        ];
        let axes: Vec<usize> = (0..rank).rev().collect();
        params.extend((0..4).map(|i| axes.get(i).map_or(1, |d| shape[*d] as u32)));
        params.extend((0..5).map(|i| {
            axes.get(i)
                .map_or(0, |d| if *d == a { 0 } else { steps[*d] as u32 })
        }));
        (params, places.collect())
    }

    /// The same for tuples of `tuple` indices.
    fn tuples(x: &[usize], tuple: usize, index: &[i32], lead: usize) -> (Vec<u32>, Vec<Option<usize>>) {
        let row: usize = x[tuple..].iter().product();
        let steps: Vec<usize> = (0..tuple).map(|i| x[i + 1..].iter().product()).collect();
        let places = (0..lead * row).map(|i| {
            let mut at = Some(i % row);
            for d in 0..tuple {
                let k = index[i / row * tuple + d];
                let k = if k < 0 { k + x[d] as i32 } else { k };
                at = at
                    .filter(|_| k >= 0 && k < x[d] as i32)
                    .map(|a| a + k as usize * steps[d]);
            }
            at
        });
        let mut params = vec![(lead * row) as u32, row as u32];
        params.extend((0..4).map(|i| if i < tuple { x[i] as u32 } else { 1 }));
        params.extend((0..4).map(|i| if i < tuple { steps[i] as u32 } else { 0 }));
        params.extend([1, 1, 1, 1, 0, 0, 0, 0, 0]);
        (params, places.collect())
    }

    fn gather_and_scatter(
        defines: &[(&'static str, i64)],
        size: usize,
        index: &[i32],
        (params, places): (Vec<u32>, Vec<Option<usize>>),
    ) {
        let at = Given::I(index.to_vec());
        let x = floats(size, 5);
        let want = Given::F(places.iter().map(|p| p.map_or(0.0, |p| x[p])).collect());
        let operands = [Given::F(x), at.clone(), blank(&want)];
        expect::<GatherPlaces>(defines, &params, &operands, &[want], 0.0);
        let x: Vec<f16> = floats(size, 5).into_iter().map(f16::from_f32).collect();
        let want = Given::F(places.iter().map(|p| p.map_or(0.0, |p| x[p].to_f32())).collect());
        let operands = [Given::H(x), at.clone(), blank(&want)];
        expect::<GatherPlaces>(defines, &params, &operands, &[want], 0.0);
        let x = ints(size, 5, 99);
        let want = Given::I(places.iter().map(|p| p.map_or(0, |p| x[p])).collect());
        let operands = [Given::I(x), at.clone(), blank(&want)];
        expect::<GatherPlaces>(defines, &params, &operands, &[want], 0.0);

        let x = ints(places.len(), 5, 99);
        let old = ints(size, 6, 99);
        let mut want = old.clone();
        places
            .iter()
            .zip(&x)
            .for_each(|(p, v)| p.iter().for_each(|p| want[*p] = *v));
        let operands = [Given::I(x.clone()), at.clone(), Given::I(old)];
        expect::<Scatter>(defines, &params, &operands, &[Given::I(want)], 0.0);
        // With floats that an epilogue changes. It applies only to elements that are written, so
        // all of them must be written.
        let mut all: Vec<usize> = places.iter().flatten().copied().collect();
        all.sort_unstable();
        all.dedup();
        if all.len() == size {
            let x = floats(places.len(), 5);
            let mut want = vec![0.0; size];
            places
                .iter()
                .zip(&x)
                .for_each(|(p, v)| p.iter().for_each(|p| want[*p] = *v));
            let operands = [Given::F(x), at, Given::F(vec![9.0; size])];
            expect::<Scatter>(defines, &params, &operands, &[Given::F(want)], 0.0);
        }
    }

    #[test]
    fn indices_along_an_axis_match() {
        for (x, shape, a) in [
            (vec![7], vec![40], 0),
            (vec![5, 3], vec![2, 3], 0),
            (vec![2, 2, 7], vec![2, 1, 3], 2),
            (vec![3, 9, 4, 5, 2], vec![3, 6, 3, 5, 2], 1),
            (vec![3, 900], vec![2, 1500], 1),
            (vec![3, 4], vec![0, 4], 0),
        ] {
            let n: usize = shape.iter().product();
            for limit in [x[a] as i32 + 2, x[a] as i32 / 2] {
                let index = ints(n, 8, limit);
                gather_and_scatter(&[], x.iter().product(), &index, along(&x, &shape, a, &index));
            }
        }
    }

    #[test]
    fn tuples_of_indices_match() {
        for (x, tuple, lead) in [
            (vec![4, 3, 3], 1, 2),
            (vec![3, 5], 2, 70),
            (vec![3, 5, 2], 0, 3),
            (vec![2, 3, 4, 5, 6], 4, 9),
            (vec![2, 3, 2000], 2, 5),
            (vec![2, 3, 0], 2, 5),
        ] {
            let index = ints(lead * tuple, 8, 4);
            let defines = [("TUPLE", tuple as i64)];
            gather_and_scatter(
                &defines,
                x.iter().product(),
                &index,
                tuples(&x, tuple, &index, lead),
            );
        }
    }
}
