//! Reductions over up to three ranges of axes.

use super::{Finish, Join, Map};
use crate::backend::cpu::args::{Bound, NativeKernel, Scratch, Store, dtype, part};
use crate::backend::cpu::isa::Isa;
use crate::backend::cpu::simd::{self, Job, Simd};
use crate::backend::kernel::KernelSpec;
use crate::kernels::cpu::moves::{Cursor, Elem, RUN, Sink, merged, pieces};
use crate::tensor::DType;
use bytemuck::Pod;

type Args = super::Args<Bound>;

/// Combines the elements of each row r into `y[r]`.
pub struct Reduce {
    isa: Isa,
    elem: Elem,
    map: Map,
    join: Join,
    finish: Finish,
    /// Whether operand and results have 64 bits.
    longs: [bool; 2],
    /// The smallest and the largest integer.
    ends: (i64, i64),
}

/// Kept and reduced axes, merged, innermost first.
#[derive(Clone, Copy, Debug)]
struct Shape {
    kept: ([usize; 3], [isize; 3]),
    reduced: ([usize; 3], [isize; 3]),
    cols: usize,
}

impl Shape {
    fn new(a: &Args) -> Self {
        let axes = |count: usize, [n, m]: [usize; 2], steps: [usize; 3]| {
            let last = count.checked_div(n * m).unwrap_or(0);
            let (sizes, steps, _) = merged([n, m, last], steps.map(usize::cast_signed));
            (sizes, steps)
        };
        Self {
            kept: axes(a.rows, [a.n1, a.n2], [a.k0, a.k1, a.k2]),
            reduced: axes(a.cols, [a.m1, a.m2], [a.r0, a.r1, a.r2]),
            cols: a.cols,
        }
    }

    /// Offset of a row.
    fn row(&self, row: usize) -> usize {
        Cursor::new(self.kept.0, self.kept.1, 0, row)
            .offset
            .cast_unsigned()
    }

    /// Offsets of the runs of reduced elements; a run lies along the innermost axis.
    #[inline(always)]
    fn runs(&self) -> impl Iterator<Item = usize> + use<> {
        let ([n, n1, n2], [_, s1, s2]) = self.reduced;
        let n2 = if n == 0 { 0 } else { n2 };
        let at = move |i: usize, j: usize| i * s2.cast_unsigned() + j * s1.cast_unsigned();
        (0..n2).flat_map(move |i| (0..n1).map(move |j| at(i, j)))
    }

    /// Offsets of all reduced elements.
    #[inline(always)]
    fn elements(&self) -> impl Iterator<Item = usize> + use<> {
        let (n, step) = (self.reduced.0[0], self.reduced.1[0].cast_unsigned());
        self.runs().flat_map(move |at| (0..n).map(move |i| at + i * step))
    }

    fn is_of_rows(&self) -> bool {
        self.reduced.1[0] == 1
    }

    fn is_of_columns(&self) -> bool {
        !self.is_of_rows() && self.kept.1[0] == 1
    }
}

/// A [`Map`] and a [`Join`], for vectors.
trait Op: 'static {
    const MAP: Map;
    const JOIN: Join;
    const FIRST: f32 = match Self::JOIN {
        Join::Sum => 0.0,
        Join::Largest => f32::NEG_INFINITY,
        Join::Smallest => f32::INFINITY,
        Join::Product => 1.0,
    };
    /// Whether combining elements can lose NaN.
    const WATCH: bool = matches!(Self::JOIN, Join::Largest | Join::Smallest);

    /// # Safety
    /// As for [`Simd`].
    #[inline(always)]
    unsafe fn term<S: Simd>(v: S::F, top: S::F) -> S::F {
        unsafe {
            match Self::MAP {
                Map::Same => v,
                Map::Absolute => S::abs(v),
                Map::Squared => S::mul(v, v),
                Map::Exponential => simd::exp::<S>(S::sub(v, top)),
            }
        }
    }

    /// # Safety
    /// As for [`Simd`].
    #[inline(always)]
    unsafe fn join<S: Simd>(a: S::F, b: S::F) -> S::F {
        unsafe {
            match Self::JOIN {
                Join::Sum => S::add(a, b),
                Join::Largest => S::max(a, b),
                Join::Smallest => S::min(a, b),
                Join::Product => S::mul(a, b),
            }
        }
    }

    #[inline(always)]
    fn join_one(a: f32, b: f32) -> f32 {
        match Self::JOIN {
            Join::Sum => a + b,
            Join::Largest => {
                if a > b {
                    a
                } else {
                    b
                }
            }
            Join::Smallest => {
                if a < b {
                    a
                } else {
                    b
                }
            }
            Join::Product => a * b,
        }
    }

    #[inline(always)]
    fn term_one(v: f32, top: f32) -> f32 {
        match Self::MAP {
            Map::Same => v,
            Map::Absolute => v.abs(),
            Map::Squared => v * v,
            Map::Exponential => (v - top).exp(),
        }
    }

    /// Combines all lanes.
    /// # Safety
    /// As for [`Simd`].
    #[inline(always)]
    unsafe fn all<S: Simd>(v: S::F) -> f32 {
        // SAFETY: no set has more than 16 lanes.
        unsafe {
            if Self::JOIN == Join::Sum {
                return S::sum(v);
            }
            let mut lanes = [Self::FIRST; 16];
            S::store(lanes.as_mut_ptr(), v);
            lanes[..S::LANES]
                .iter()
                .fold(Self::FIRST, |a, b| Self::join_one(a, *b))
        }
    }
}

macro_rules! ops {
    ($($name:ident = $map:ident, $join:ident;)*) => {
        $(struct $name;
        impl Op for $name {
            const MAP: Map = Map::$map;
            const JOIN: Join = Join::$join;
        })*
    };
}

ops! {
    Sum = Same, Sum;
    Largest = Same, Largest;
    Smallest = Same, Smallest;
    Product = Same, Product;
    SumAbsolute = Absolute, Sum;
    SumSquares = Squared, Sum;
    SumExponentials = Exponential, Sum;
}

/// Combines one row in f64, correctly for all floats. Also returns the maximum, or 0 if none is to
/// be added.
fn exact<O: Op>(x: &[f32], shape: &Shape, base: usize) -> (f32, f32) {
    let all = || shape.elements().map(|at| x[base + at]);
    let mut top = 0.0;
    if O::MAP == Map::Exponential {
        let most = all().fold(f32::NEG_INFINITY, f32::max);
        top = if most.is_finite() { most } else { 0.0 };
    }
    let join = |a: f64, v: f32| {
        let v = match O::MAP {
            Map::Same => f64::from(v),
            Map::Absolute => f64::from(v.abs()),
            Map::Squared => f64::from(v).powi(2),
            Map::Exponential => f64::from(v - top).exp(),
        };
        match O::JOIN {
            Join::Sum => a + v,
            Join::Product => a * v,
            Join::Largest if a.is_nan() || a > v => a,
            Join::Smallest if a.is_nan() || a < v => a,
            _ => v,
        }
    };
    (all().fold(f64::from(O::FIRST), join) as f32, top)
}

/// Reduces rows whose elements are contiguous.
struct ReduceRows<'a, O> {
    x: &'a [f32],
    shape: &'a Shape,
    /// The first row; there are as many rows as results.
    first: usize,
    y: &'a mut [f32],
    finish: Finish,
    op: std::marker::PhantomData<O>,
}

/// Accumulators of a row.
struct Sums<F> {
    parts: [F; 4],
    rest: f32,
    /// Sums of the elements, to detect NaN.
    watch: [F; 2],
    watch_rest: f32,
}

impl<F: Copy> Sums<F> {
    #[inline(always)]
    unsafe fn new<S: Simd<F = F>, O: Op>() -> Self {
        let (first, zero) = unsafe { (S::splat(O::FIRST), S::splat(0.0)) };
        Self {
            parts: [first; 4],
            rest: O::FIRST,
            watch: [zero; 2],
            watch_rest: 0.0,
        }
    }

    /// Adds contiguous elements.
    #[inline(always)]
    unsafe fn add<S: Simd<F = F>, O: Op>(&mut self, x: &[f32], top: f32) {
        // SAFETY: chunks have as many elements as are read.
        unsafe {
            let tops = S::splat(top);
            let mut chunks = x.chunks_exact(4 * S::LANES);
            for chunk in &mut chunks {
                for (i, part) in self.parts.iter_mut().enumerate() {
                    let v = S::load(chunk.as_ptr().add(i * S::LANES));
                    if O::WATCH {
                        self.watch[i % 2] = S::add(self.watch[i % 2], v);
                    }
                    *part = O::join::<S>(*part, O::term::<S>(v, tops));
                }
            }
            let mut chunks = chunks.remainder().chunks_exact(S::LANES);
            for chunk in &mut chunks {
                let v = S::load(chunk.as_ptr());
                if O::WATCH {
                    self.watch[0] = S::add(self.watch[0], v);
                }
                self.parts[0] = O::join::<S>(self.parts[0], O::term::<S>(v, tops));
            }
            for v in chunks.remainder() {
                if O::WATCH {
                    self.watch_rest += v;
                }
                self.rest = O::join_one(self.rest, O::term_one(*v, top));
            }
        }
    }

    /// All elements combined; `None` if some may be NaN.
    #[inline(always)]
    unsafe fn result<S: Simd<F = F>, O: Op>(self) -> Option<f32> {
        let [a, b, c, d] = self.parts;
        unsafe {
            if O::WATCH && (S::sum(S::add(self.watch[0], self.watch[1])) + self.watch_rest).is_nan() {
                return None;
            }
            let all = O::join::<S>(O::join::<S>(a, b), O::join::<S>(c, d));
            Some(O::join_one(O::all::<S>(all), self.rest))
        }
    }
}

impl<O: Op> ReduceRows<'_, O> {
    /// Combines one row; `None` if some element may be NaN and [`Op::WATCH`] is set.
    #[inline(always)]
    unsafe fn row<S: Simd, P: Op>(&self, base: usize, top: f32) -> Option<f32> {
        unsafe {
            let n = self.shape.reduced.0[0];
            let mut sums = Sums::new::<S, P>();
            for at in self.shape.runs() {
                sums.add::<S, P>(&self.x[base + at..base + at + n], top);
            }
            sums.result::<S, P>()
        }
    }
}

impl<O: Op> Job for ReduceRows<'_, O> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (sizes, steps) = self.shape.kept;
        let mut cursor = Cursor::new(sizes, steps, 0, self.first);
        for i in 0..self.y.len() {
            let base = cursor.offset.cast_unsigned();
            let result = unsafe {
                if O::MAP == Map::Exponential {
                    let top = self.row::<S, Largest>(base, 0.0).filter(|t| t.is_finite());
                    top.and_then(|top| Some((self.row::<S, O>(base, top)?, top)))
                } else {
                    self.row::<S, O>(base, 0.0).map(|v| (v, 0.0))
                }
            };
            let (v, top) = result.unwrap_or_else(|| exact::<O>(self.x, self.shape, base));
            self.y[i] = self.finish.of(v, top, self.shape.cols);
            cursor.advance(1);
        }
    }
}

impl Finish {
    #[inline(always)]
    fn of(self, v: f32, top: f32, cols: usize) -> f32 {
        match self {
            Self::Same => v,
            Self::Mean => v / cols as f32,
            Self::Root => v.sqrt(),
            Self::Logarithm => v.ln() + top,
        }
    }
}

/// Columns that are reduced together.
const COLUMNS: usize = 512;
/// Rows that are summed before the sums are added to the total; this keeps rounding errors small.
const ROWS: usize = 256;

/// Reduces columns whose results are contiguous.
struct Columns<'a, O> {
    x: &'a [f32],
    shape: &'a Shape,
    first: usize,
    y: &'a mut [f32],
    finish: Finish,
    op: std::marker::PhantomData<O>,
}

/// Sums of columns over up to [`ROWS`] rows, and the largest element of each column, to which
/// exponentials are relative.
struct Block<'a, F> {
    sums: [f32; COLUMNS],
    top: &'a [f32],
    /// Sums of all elements, to detect NaN.
    watch: F,
    watch_rest: f32,
}

impl<F: Copy> Block<'_, F> {
    /// Joins the vector at element `j` of each of `N` rows to the sums.
    #[inline(always)]
    unsafe fn join<S: Simd<F = F>, O: Op, const N: usize>(&mut self, rows: &[&[f32]; N], j: usize) {
        // SAFETY: rows, sums and tops have these elements.
        unsafe {
            let tops = S::load(self.top.as_ptr().add(j));
            let mut sum = S::load(rows[0].as_ptr().add(j));
            let mut all = O::term::<S>(sum, tops);
            for x in &rows[1..] {
                let v = S::load(x.as_ptr().add(j));
                all = O::join::<S>(all, O::term::<S>(v, tops));
                sum = S::add(sum, v);
            }
            if O::WATCH {
                self.watch = S::add(self.watch, sum);
            }
            let y = self.sums.as_mut_ptr().add(j);
            S::store(y, O::join::<S>(S::load(y), all));
        }
    }

    /// Joins `N` rows, which have as many elements as `top`, to the sums.
    #[inline(always)]
    unsafe fn add<S: Simd<F = F>, O: Op, const N: usize>(&mut self, rows: &[&[f32]; N]) {
        let n = self.top.len();
        let whole = n / S::LANES * S::LANES;
        let mut j = 0;
        while j < whole {
            // SAFETY: this vector lies within the rows.
            unsafe { self.join::<S, O, N>(rows, j) };
            j += S::LANES;
        }
        for x in rows {
            for j in whole..n {
                if O::WATCH {
                    self.watch_rest += x[j];
                }
                self.sums[j] = O::join_one(self.sums[j], O::term_one(x[j], self.top[j]));
            }
        }
    }

    /// Joins the sums to `y` and resets them.
    #[inline(always)]
    fn flush<O: Op>(&mut self, y: &mut [f32]) {
        for (y, s) in y.iter_mut().zip(&mut self.sums) {
            *y = O::join_one(*y, *s);
            *s = O::FIRST;
        }
    }
}

/// Reduces columns from offset `base` on to `y`; false if some element may be NaN and [`Op::WATCH`]
/// is set. `top` has as many elements as `y`.
#[inline(always)]
unsafe fn columns<S: Simd, O: Op>(x: &[f32], shape: &Shape, base: usize, y: &mut [f32], top: &[f32]) -> bool {
    let n = y.len();
    y.fill(O::FIRST);
    let mut some: [&[f32]; 4] = [&[]; 4];
    let mut count = 0;
    // SAFETY: rows have n elements.
    unsafe {
        let mut block = Block {
            sums: [O::FIRST; COLUMNS],
            top,
            watch: S::splat(0.0),
            watch_rest: 0.0,
        };
        for at in shape.elements() {
            some[count % 4] = &x[base + at..base + at + n];
            count += 1;
            if count % 4 == 0 {
                block.add::<S, O, 4>(&some);
            }
            if count == ROWS {
                block.flush::<O>(y);
                count = 0;
            }
        }
        for row in &some[..count % 4] {
            block.add::<S, O, 1>(&[row]);
        }
        block.flush::<O>(y);
        !(O::WATCH && (S::sum(block.watch) + block.watch_rest).is_nan())
    }
}

impl<O: Op> Job for Columns<'_, O> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { x, shape, .. } = self;
        let (sizes, steps) = shape.kept;
        let mut cursor = Cursor::new(sizes, steps, 0, self.first);
        let mut rest = self.y;
        let mut tops = [0.0; COLUMNS];
        while !rest.is_empty() {
            let n = cursor.row().min(rest.len()).min(COLUMNS);
            let (y, next) = rest.split_at_mut(n);
            let base = cursor.offset.cast_unsigned();
            let top = &mut tops[..n];
            let all_numbers = unsafe {
                let finite = O::MAP != Map::Exponential
                    || columns::<S, Largest>(x, shape, base, top, &[0.0; COLUMNS][..n])
                        && top.iter().all(|t| t.is_finite());
                finite && columns::<S, O>(x, shape, base, y, top)
            };
            for (j, (y, top)) in y.iter_mut().zip(top).enumerate() {
                let (v, top) = if all_numbers {
                    (*y, *top)
                } else {
                    exact::<O>(x, shape, base + j)
                };
                *y = self.finish.of(v, top, shape.cols);
            }
            cursor.advance(n);
            rest = next;
        }
    }
}

impl Reduce {
    /// # Safety
    /// As for [`NativeKernel::run`].
    unsafe fn floats<O: Op>(&self, x: &[f32], shape: &Shape, first: usize, y: &mut [f32]) {
        let (finish, op) = (self.finish, std::marker::PhantomData::<O>);
        // SAFETY: the processor supports `isa`.
        unsafe {
            if shape.is_of_rows() {
                simd::run(
                    self.isa,
                    ReduceRows {
                        x,
                        shape,
                        first,
                        y,
                        finish,
                        op,
                    },
                );
            } else if shape.is_of_columns() {
                simd::run(
                    self.isa,
                    Columns {
                        x,
                        shape,
                        first,
                        y,
                        finish,
                        op,
                    },
                );
            } else {
                for (i, y) in y.iter_mut().enumerate() {
                    let (v, top) = exact::<O>(x, shape, shape.row(first + i));
                    *y = finish.of(v, top, shape.cols);
                }
            }
        }
    }

    /// Combines one row of integers. Their low bits do not depend on the bits of sums.
    fn int<T: Pod + Into<i64>>(&self, x: &[T], shape: &Shape, row: usize) -> i64 {
        let base = shape.row(row);
        let all = shape.elements().map(|at| match (self.map, x[base + at].into()) {
            (Map::Absolute, v) => v.wrapping_abs(),
            (Map::Squared, v) => v.wrapping_mul(v),
            (_, v) => v,
        });
        match self.join {
            Join::Sum => all.fold(0, i64::wrapping_add),
            Join::Product => all.fold(1, i64::wrapping_mul),
            Join::Largest => all.fold(self.ends.0, i64::max),
            Join::Smallest => all.fold(self.ends.1, i64::min),
        }
    }

    /// The rows `range` of results of 64 bits.
    ///
    /// # Safety
    /// As for [`NativeKernel::run`].
    unsafe fn long(&self, args: &Args, shape: &Shape, store: &Store<'_>, range: std::ops::Range<usize>) {
        for row in range {
            // SAFETY: nobody writes the operand; the piece owns the result.
            unsafe {
                let y = match self.longs[0] {
                    true => self.int(args.x.slice::<i64>(), shape, row),
                    false => self.int(args.x.slice::<i32>(), shape, row),
                };
                store.put(row, &[y], None);
            }
        }
    }
}

impl NativeKernel for Reduce {
    type Signature = super::Args;
    const LONGS: &'static [&'static str] = &["x", "y"];

    fn new(spec: &KernelSpec, isa: Isa) -> Option<Self> {
        let elem = Elem::of(spec, 1)?;
        let longs = [0, 1].map(|i| dtype(spec, i) == Some(DType::I64));
        let number = |name| usize::try_from(spec.defines.get(name).copied().unwrap_or(0)).ok();
        let map = *Map::ALL.get(number(super::MAP)?)?;
        let join = *Join::ALL.get(number(super::JOIN)?)?;
        let finish = *Finish::ALL.get(number(super::FINISH)?)?;
        let of_ints = map != Map::Exponential && finish == Finish::Same;
        if longs == [true, false]
            || elem.halves(spec, 0)?
            || elem == Elem::Int && !of_ints
            || map != Map::Same && join != Join::Sum
        {
            return None;
        }
        Some(Self {
            isa,
            elem,
            map,
            join,
            finish,
            longs,
            ends: match longs[1] {
                true => (i64::MIN, i64::MAX),
                false => (i32::MIN.into(), i32::MAX.into()),
            },
        })
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        let parts = if Shape::new(args).is_of_columns() {
            args.rows / 256
        } else {
            args.rows
        };
        let work = if self.map == Map::Exponential { 8 } else { 1 };
        pieces(args.rows * args.cols * work, parts, threads)
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, piece: usize, pieces: usize, scratch: &mut Scratch) {
        let shape = Shape::new(args);
        let range = part(
            args.rows,
            if shape.is_of_columns() { 16 } else { 1 },
            piece,
            pieces,
        );
        let sink = Sink { store };
        // SAFETY: nobody writes the operand; the piece owns the results.
        unsafe {
            if self.longs[1] {
                return self.long(args, &shape, store, range);
            }
            let (x, ints) = (args.x.slice::<f32>(), args.x.slice::<i32>());
            sink.fill(range, RUN, scratch, |first, y| {
                if self.elem == Elem::Int {
                    for (i, y) in y.iter_mut().enumerate() {
                        *y = (self.int(ints, &shape, first + i) as i32).cast_unsigned();
                    }
                    return;
                }
                let y = bytemuck::cast_slice_mut(y);
                match (self.map, self.join) {
                    (Map::Absolute, _) => self.floats::<SumAbsolute>(x, &shape, first, y),
                    (Map::Squared, _) => self.floats::<SumSquares>(x, &shape, first, y),
                    (Map::Exponential, _) => self.floats::<SumExponentials>(x, &shape, first, y),
                    (Map::Same, Join::Sum) => self.floats::<Sum>(x, &shape, first, y),
                    (Map::Same, Join::Largest) => self.floats::<Largest>(x, &shape, first, y),
                    (Map::Same, Join::Smallest) => self.floats::<Smallest>(x, &shape, first, y),
                    (Map::Same, Join::Product) => self.floats::<Product>(x, &shape, first, y),
                }
            });
        }
    }
}

#[cfg(test)]
mod tests;
