//! The position of the largest or smallest element along an axis.

use crate::backend::cpu::args::{Bound, NativeKernel, Scratch, Store, dtype, part};
use crate::backend::cpu::isa::Isa;
use crate::backend::cpu::simd::{self, Job, Simd};
use crate::backend::kernel::KernelSpec;
use crate::kernels::cpu::moves::{Elem, pieces};
use crate::tensor::DType;
use std::cmp::Ordering;

type Args = super::Args<Bound>;

/// The position of the largest or smallest element of each line; of equal elements the first or the
/// last one. NaN counts as larger, or smaller, than any number.
pub struct ArgMax {
    isa: Isa,
    floats: bool,
    smallest: bool,
    last: bool,
}

/// Which element of a line is taken.
trait Choice: Copy + 'static {
    const SMALLEST: bool;
    const LAST: bool;
}

/// The [`Choice`] with these constants.
#[derive(Clone, Copy)]
struct Take<const SMALLEST: bool, const LAST: bool>;

impl<const SMALLEST: bool, const LAST: bool> Choice for Take<SMALLEST, LAST> {
    const SMALLEST: bool = SMALLEST;
    const LAST: bool = LAST;
}

/// Whether `v`, which comes later, is taken instead of `best`.
#[inline(always)]
fn is_better<C: Choice, T: PartialOrd>(v: T, best: T) -> bool {
    match v.partial_cmp(&best) {
        Some(Ordering::Equal) => C::LAST,
        Some(Ordering::Less) => C::SMALLEST,
        Some(Ordering::Greater) => !C::SMALLEST,
        // The element or the best one is NaN.
        None if v.partial_cmp(&v).is_none() => C::LAST || best.partial_cmp(&best).is_some(),
        None => false,
    }
}

/// The position in a line, compared element by element.
fn each<C: Choice, T: PartialOrd + Copy>(line: impl Iterator<Item = T>) -> usize {
    let mut best: Option<(usize, T)> = None;
    for (i, v) in line.enumerate() {
        if best.is_none_or(|(_, best)| is_better::<C, T>(v, best)) {
            best = Some((i, v));
        }
    }
    best.map_or(0, |(i, _)| i)
}

/// Lines that are searched together if the elements of a line are not contiguous.
const LINES: usize = 1024;
/// Elements of a contiguous line that are searched together.
const BLOCK: usize = 1024;

/// Searches lines of floats from line `first` on, one for each result.
struct Search<'a, C> {
    x: &'a [f32],
    cols: usize,
    inner: usize,
    first: usize,
    y: &'a mut [i32],
    choice: std::marker::PhantomData<C>,
}

impl<C: Choice> Search<'_, C> {
    /// The best value of a block; `None` if an element may be NaN.
    #[inline(always)]
    unsafe fn best<S: Simd>(block: &[f32]) -> Option<f32> {
        let first = *block.first()?;
        let better = |a: f32, b: f32| if is_better::<C, f32>(a, b) { a } else { b };
        let (mut all, mut watch) = (first, 0.0);
        // SAFETY: chunks have as many elements as are read.
        unsafe {
            let mut best = [S::splat(first); 2];
            let mut sum = [S::splat(0.0); 2];
            let mut chunks = block.chunks_exact(2 * S::LANES);
            for chunk in &mut chunks {
                for i in 0..2 {
                    let v = S::load(chunk.as_ptr().add(i * S::LANES));
                    sum[i] = S::add(sum[i], v);
                    best[i] = if C::SMALLEST {
                        S::min(v, best[i])
                    } else {
                        S::max(v, best[i])
                    };
                }
            }
            all = better(
                if C::SMALLEST {
                    -S::largest(S::sub(S::splat(0.0), S::min(best[0], best[1])))
                } else {
                    S::largest(S::max(best[0], best[1]))
                },
                all,
            );
            for v in chunks.remainder() {
                watch += v;
                all = better(*v, all);
            }
            watch += S::sum(S::add(sum[0], sum[1]));
        }
        (!watch.is_nan()).then_some(all)
    }

    /// The position in a contiguous line.
    #[inline(always)]
    unsafe fn line<S: Simd>(line: &[f32]) -> usize {
        // The start of the best block, and its best value.
        let mut found: Option<(usize, f32)> = None;
        for (i, block) in line.chunks(BLOCK).enumerate() {
            let Some(best) = (unsafe { Self::best::<S>(block) }) else {
                return each::<C, f32>(line.iter().copied());
            };
            if found.is_none_or(|(_, old)| is_better::<C, f32>(best, old)) {
                found = Some((i * BLOCK, best));
            }
        }
        let Some((start, best)) = found else {
            return 0;
        };
        let block = &line[start..line.len().min(start + BLOCK)];
        let mut same = block.iter();
        let place = if C::LAST {
            same.rposition(|v| *v == best)
        } else {
            same.position(|v| *v == best)
        };
        start + place.unwrap_or(0)
    }

    /// The positions in lines whose elements are `inner` apart, from offset `base` on.
    #[inline(always)]
    unsafe fn lines<S: Simd>(x: &[f32], [cols, inner, base]: [usize; 3], y: &mut [i32]) {
        let n = y.len();
        // Positions are kept as floats, which are exact below 2^24.
        let mut whole = if cols < 1 << 24 {
            n / S::LANES * S::LANES
        } else {
            0
        };
        let row = |c: usize| &x[base + c * inner..base + c * inner + n];
        let mut found = Best {
            best: [0.0; LINES],
            place: [0.0; LINES],
        };
        found.best[..n].copy_from_slice(row(0));
        // SAFETY: rows have n elements, and `whole` is at most n.
        unsafe {
            let mut watch = S::splat(0.0);
            let mut c = 0;
            while c + 4 <= cols {
                let rows = [row(c), row(c + 1), row(c + 2), row(c + 3)];
                found.add::<S, C, 4>(&rows, c, whole, &mut watch);
                c += 4;
            }
            while c < cols {
                found.add::<S, C, 1>(&[row(c)], c, whole, &mut watch);
                c += 1;
            }
            if S::sum(watch).is_nan() {
                whole = 0;
            }
        }
        for (y, p) in y[..whole].iter_mut().zip(found.place) {
            *y = p as i32;
        }
        for (j, y) in y.iter_mut().enumerate().skip(whole) {
            *y = each::<C, f32>((0..cols).map(|c| x[base + c * inner + j])) as i32;
        }
    }
}

/// The best values of some lines so far, and their positions.
struct Best {
    best: [f32; LINES],
    place: [f32; LINES],
}

impl Best {
    /// Compares with the first `n` elements (whole vectors) of `rows`, which start at row `first`.
    #[inline(always)]
    unsafe fn add<S: Simd, C: Choice, const N: usize>(
        &mut self,
        rows: &[&[f32]; N],
        first: usize,
        n: usize,
        watch: &mut S::F,
    ) {
        let mut j = 0;
        while j < n {
            // SAFETY: rows and arrays have this vector.
            unsafe {
                let (to, to_place) = (self.best.as_mut_ptr().add(j), self.place.as_mut_ptr().add(j));
                let (mut best, mut place) = (S::load(to), S::load(to_place));
                for (i, row) in rows.iter().enumerate() {
                    let v = S::load(row.as_ptr().add(j));
                    let at = S::splat((first + i) as f32);
                    *watch = S::add(*watch, v);
                    let [low, high] = if C::SMALLEST { [v, best] } else { [best, v] };
                    place = if C::LAST {
                        S::select_less(high, low, place, at)
                    } else {
                        S::select_less(low, high, at, place)
                    };
                    best = if C::SMALLEST {
                        S::min(v, best)
                    } else {
                        S::max(v, best)
                    };
                }
                S::store(to, best);
                S::store(to_place, place);
            }
            j += S::LANES;
        }
    }
}

impl<C: Choice> Job for Search<'_, C> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self {
            x,
            cols,
            inner,
            first,
            y,
            ..
        } = self;
        if inner == 1 {
            for (i, y) in y.iter_mut().enumerate() {
                *y = unsafe { Self::line::<S>(&x[(first + i) * cols..(first + i + 1) * cols]) } as i32;
            }
            return;
        }
        let (mut at, mut rest) = (first, y);
        while !rest.is_empty() {
            let (outer, inside) = (at / inner, at % inner);
            let n = (inner - inside).min(rest.len()).min(LINES);
            let (y, next) = rest.split_at_mut(n);
            unsafe { Self::lines::<S>(x, [cols, inner, outer * cols * inner + inside], y) };
            at += n;
            rest = next;
        }
    }
}

impl ArgMax {
    /// # Safety
    /// As for [`NativeKernel::run`].
    unsafe fn search<C: Choice>(&self, args: &Args, first: usize, y: &mut [i32]) {
        let Args { cols, inner, .. } = *args;
        if self.floats {
            let choice = std::marker::PhantomData::<C>;
            // SAFETY: nobody writes the operand; the processor supports `isa`.
            return unsafe {
                simd::run(
                    self.isa,
                    Search {
                        x: args.x.slice(),
                        cols,
                        inner,
                        first,
                        y,
                        choice,
                    },
                );
            };
        }
        // SAFETY: nobody writes the operand.
        let x = unsafe { args.x.slice::<i32>() };
        for (i, y) in y.iter_mut().enumerate() {
            let base = (first + i) / inner * cols * inner + (first + i) % inner;
            *y = each::<C, i32>((0..cols).map(|c| x[base + c * inner])) as i32;
        }
    }
}

impl NativeKernel for ArgMax {
    type Signature = super::Args;

    fn new(spec: &KernelSpec, isa: Isa) -> Option<Self> {
        let has = |name| spec.defines.contains_key(name);
        let floats = match dtype(spec, 0)? {
            DType::F32 => true,
            other if other.is_float() => return None,
            _ => false,
        };
        let fits = Elem::of(spec, 1)? == Elem::Int && floats == has(super::FLOATS);
        fits.then(|| Self {
            isa,
            floats,
            smallest: has(super::SMALLEST),
            last: has(super::LAST),
        })
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        let parts = if args.inner == 1 {
            args.count
        } else {
            args.count / 256
        };
        pieces(args.count * args.cols, parts, threads)
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, piece: usize, pieces: usize, _: &mut Scratch) {
        if args.inner == 0 || args.cols == 0 {
            return;
        }
        let range = part(args.count, if args.inner == 1 { 1 } else { 16 }, piece, pieces);
        // SAFETY: the piece owns the results.
        unsafe {
            let y = store.y.slice_mut::<i32>(range.clone());
            match (self.smallest, self.last) {
                (false, false) => self.search::<Take<false, false>>(args, range.start, y),
                (false, true) => self.search::<Take<false, true>>(args, range.start, y),
                (true, false) => self.search::<Take<true, false>>(args, range.start, y),
                (true, true) => self.search::<Take<true, true>>(args, range.start, y),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ArgMax;
    use crate::kernels::cpu::moves::check::{Given, blank, expect, floats, ints};

    fn find<T: PartialOrd + Copy>(
        x: &[T],
        [outer, cols, inner]: [usize; 3],
        [smallest, last]: [bool; 2],
    ) -> Vec<i32> {
        let is_nan = |v: &T| v.partial_cmp(v).is_none();
        let mut all = Vec::new();
        for (o, i) in (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))) {
            let mut best: Option<(usize, T)> = None;
            for j in 0..cols {
                let v = x[(o * cols + j) * inner + i];
                let better = best.is_none_or(|(_, b)| match (is_nan(&v), is_nan(&b)) {
                    (false, false) => (if smallest { v < b } else { v > b }) || last && v == b,
                    (new, old) => new && (last || !old),
                });
                if better {
                    best = Some((j, v));
                }
            }
            all.push(best.map_or(0, |b| b.0 as i32));
        }
        all
    }

    #[test]
    fn positions_match() {
        for sizes in [
            [3, 33, 1],
            [1, 1, 1],
            [2, 5000, 1],
            [1, 5, 6],
            [2, 70, 600],
            [40, 2, 3],
            [0, 3, 1],
            [2, 3, 0],
        ] {
            let [outer, cols, inner] = sizes;
            let params = [outer * inner, cols, inner].map(|n| n as u32);
            for (smallest, last) in [(false, false), (false, true), (true, false), (true, true)] {
                let mut defines = Vec::new();
                defines.extend(smallest.then_some(("SMALLEST", 1)));
                defines.extend(last.then_some(("LAST", 1)));
                let x = ints(outer * cols * inner, 3, 9);
                let want = Given::I(find(&x, sizes, [smallest, last]));
                expect::<ArgMax>(&defines, &params, &[Given::I(x), blank(&want)], &[want], 0.0);
                defines.push(("FLOATS", 1));
                for special in [0.5, -0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let mut x: Vec<f32> = floats(outer * cols * inner, 5)
                        .iter()
                        .map(|v| (v * 20.0).round())
                        .collect();
                    let n = x.len();
                    for i in [0, 7, n / 3, n / 2, n.saturating_sub(1)] {
                        if let Some(v) = x.get_mut(i) {
                            *v = special;
                        }
                    }
                    let want = Given::I(find(&x, sizes, [smallest, last]));
                    expect::<ArgMax>(&defines, &params, &[Given::F(x), blank(&want)], &[want], 0.0);
                }
            }
        }
    }
}
