//! Maximum, mean or p-norm over windows. Padding does not count unless `PADDED` is set.
//!
//! Rows of a window are reduced first, then columns.

use crate::backend::cpu::args::{Bound, Kernel, Memory, Scratch, Store, dtype, part, product};
use crate::backend::cpu::isa::Isa;
use crate::backend::cpu::simd::{self, Job, Simd};
use crate::backend::kernel::KernelSpec;
use crate::kernels::cpu::gemm;
use crate::kernels::cpu::window::{Line, Window};
use crate::tensor::DType;
use std::ops::Range;

type Args = super::Args<Bound>;

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Max,
    Mean {
        /// Whether padding counts, up to `end_h` and `end_w`.
        padded: bool,
    },
    Norm(f32),
}

pub struct Pool {
    isa: Isa,
    window: Window,
    kind: Kind,
    x: DType,
}

impl Kernel for Pool {
    type Signature = super::Args;

    fn new(spec: &KernelSpec, isa: Isa) -> Option<Self> {
        let is_set = |name| spec.defines.get(name).is_some_and(|v| *v != 0);
        let kind = match (is_set("MEAN"), spec.defines.get("NORM")) {
            (true, _) => Kind::Mean {
                padded: is_set("PADDED"),
            },
            (_, Some(p)) => Kind::Norm(*p as f32),
            _ => Kind::Max,
        };
        let x = dtype(spec, 0)?;
        let known = match x {
            DType::F32 => true,
            DType::I32 => kind == Kind::Max,
            _ => false,
        };
        known.then_some(Self {
            isa,
            window: Window::of(spec)?,
            kind,
            x,
        })
    }

    fn fits(&self, args: &Args) -> bool {
        let planes = |rows: usize| product(&[rows.div_ceil(args.out_h), args.in_h, args.in_w]);
        match rows(args) {
            0 => true,
            rows => args.out_h > 0 && args.x.holds::<f32>(planes(rows)),
        }
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        let taps = self.window.rows.kernel + self.window.columns.kernel;
        gemm::pieces(args.count.saturating_mul(taps * 4), threads)
            .min(rows(args))
            .max(1)
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, piece: usize, pieces: usize, scratch: &mut Scratch) {
        let rows = part(rows(args), 1, piece, pieces);
        let (window, kind) = (self.window, self.kind);
        // SAFETY: the processor supports the instruction set; the rest by the contract.
        unsafe {
            match self.x {
                DType::I32 => simd::run(
                    self.isa,
                    Integers {
                        args,
                        window,
                        rows,
                        y: store.y,
                        scratch,
                    },
                ),
                _ => simd::run(
                    self.isa,
                    Floats {
                        args,
                        window,
                        kind,
                        store,
                        rows,
                        scratch,
                    },
                ),
            }
        }
    }
}

/// Rows of results in all planes.
fn rows(args: &Args) -> usize {
    args.count.checked_div(args.out_w).unwrap_or(0)
}

/// For row `row` of results: the rows of x in its windows.
fn taps(args: &Args, window: Window, row: usize) -> impl ExactSizeIterator<Item = usize> {
    let (plane, oy) = (row / args.out_h, row % args.out_h);
    let Args { in_h, pad_h, .. } = *args;
    let first = window.rows.element(oy, 0, pad_h) + (plane * in_h).cast_signed();
    let step = window.rows.dilation;
    let inside = window.rows.taps(oy, pad_h, in_h);
    inside.map(move |tap| first.wrapping_add_unsigned(tap * step).cast_unsigned())
}

/// Applies `to[i] = each(to[i], from[element])` for the elements of a tap that are inside.
#[inline(always)]
fn along<T: Copy>(line: Line, tap: usize, pad: i32, from: &[T], to: &mut [T], each: impl Fn(T, T) -> T) {
    let inside = line.inside(tap, pad, from.len(), to.len());
    let first = line.element(inside.start, tap, pad).max(0).cast_unsigned();
    let (Some(from), Some(to)) = (from.get(first..), to.get_mut(inside)) else {
        return;
    };
    match line.stride {
        1 => to.iter_mut().zip(from).for_each(|(t, f)| *t = each(*t, *f)),
        2 => to
            .iter_mut()
            .zip(from.iter().step_by(2))
            .for_each(|(t, f)| *t = each(*t, *f)),
        n => to
            .iter_mut()
            .zip(from.iter().step_by(n))
            .for_each(|(t, f)| *t = each(*t, *f)),
    }
}

/// A row of x.
/// # Safety
/// It is inside x.
#[inline(always)]
unsafe fn row_of<'a, T>(args: &Args, row: usize) -> &'a [T] {
    // SAFETY: by the contract.
    unsafe { std::slice::from_raw_parts(args.x.as_ptr::<T>().add(row * args.in_w), args.in_w) }
}

struct Integers<'a> {
    args: &'a Args,
    window: Window,
    rows: Range<usize>,
    y: Memory,
    scratch: &'a mut Scratch,
}

impl Job for Integers<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self {
            args,
            window,
            rows,
            y,
            scratch,
        } = self;
        let high = scratch.of::<i32>(args.in_w);
        let used = window.columns.used(args.pad_w, args.in_w, args.out_w);
        for row in rows {
            high.fill(i32::MIN);
            for row in taps(args, window, row) {
                // SAFETY: inside x, which fits.
                let x = unsafe { row_of::<i32>(args, row) };
                high.iter_mut().zip(x).for_each(|(m, x)| *m = (*m).max(*x));
            }
            // SAFETY: results of this piece.
            let y = unsafe { y.slice_mut::<i32>(row * args.out_w..(row + 1) * args.out_w) };
            y.fill(i32::MIN);
            for tap in used.iter().copied() {
                along(window.columns, tap, args.pad_w, high, y, Ord::max);
            }
        }
    }
}

struct Floats<'a> {
    args: &'a Args,
    window: Window,
    kind: Kind,
    store: &'a Store<'a>,
    rows: Range<usize>,
    scratch: &'a mut Scratch,
}

/// The larger one; NaN if either is NaN.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if b > a || b.is_nan() { b } else { a }
}

/// A term of a p-norm.
#[inline(always)]
fn term(v: f32, p: f32) -> f32 {
    if p == 1.0 {
        v.abs()
    } else if p == 2.0 {
        v * v
    } else {
        v.abs().powf(p)
    }
}

impl Job for Floats<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self {
            args,
            window,
            kind,
            store,
            rows,
            scratch,
        } = self;
        let line = window.columns;
        let used = line.used(args.pad_w, args.in_w, args.out_w);
        let (high, rest) = scratch.floats(args.in_w + 2 * args.out_w).split_at_mut(args.in_w);
        let (y, columns) = rest.split_at_mut(args.out_w);
        if let Kind::Mean { padded } = kind {
            count_columns(args, line, padded, columns);
        }
        let least = if kind == Kind::Max { f32::NEG_INFINITY } else { 0.0 };
        for row in rows {
            high.fill(least);
            y.fill(least);
            let taps = taps(args, window, row);
            let mut met = taps.len();
            for row in taps {
                // SAFETY: inside x, which fits.
                let x = unsafe { row_of::<f32>(args, row) };
                let pairs = high.iter_mut().zip(x);
                match kind {
                    Kind::Max => pairs.for_each(|(m, x)| *m = larger(*m, *x)),
                    Kind::Mean { .. } => pairs.for_each(|(s, x)| *s += x),
                    Kind::Norm(p) => pairs.for_each(|(s, x)| *s += term(*x, p)),
                }
            }
            for tap in used.iter().copied() {
                match kind {
                    Kind::Max => along(line, tap, args.pad_w, high, y, larger),
                    _ => along(line, tap, args.pad_w, high, y, |a, b| a + b),
                }
            }
            match kind {
                Kind::Max => {}
                Kind::Mean { padded } => {
                    if padded {
                        met = counted(window.rows, row % args.out_h, args.pad_h, args.end_h);
                    }
                    let met = met as f32;
                    y.iter_mut()
                        .zip(&*columns)
                        .for_each(|(y, n)| *y /= (met * n).max(1.0));
                }
                Kind::Norm(1.0) => {}
                Kind::Norm(2.0) => y.iter_mut().for_each(|v| *v = v.sqrt()),
                Kind::Norm(p) => y.iter_mut().for_each(|v| *v = v.powf(1.0 / p)),
            }
            // SAFETY: results of this piece.
            unsafe { store.put(row * args.out_w, y, None) };
        }
    }
}

/// Counts the columns of each window of a row that are not left out as padding.
fn count_columns(args: &Args, line: Line, padded: bool, to: &mut [f32]) {
    for (i, to) in to.iter_mut().enumerate() {
        let count = if padded {
            counted(line, i, args.pad_w, args.end_w)
        } else {
            line.taps(i, args.pad_w, args.in_w).len()
        };
        *to = count as f32;
    }
}

/// How many taps of window `i` are before element `end`, padding included.
fn counted(line: Line, i: usize, pad: i32, end: i32) -> usize {
    let room = end as isize - line.element(i, 0, pad);
    room.max(0)
        .unsigned_abs()
        .div_ceil(line.dilation)
        .min(line.kernel)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::cpu::testing::{self, Case, Conv};

    /// `None` for the maximum.
    type Reduce = Option<(&'static str, i64)>;

    fn reference(c: &Conv, x: &[f32], reduce: Reduce, padded: bool) -> Vec<f64> {
        let mut y = Vec::new();
        for plane in x.chunks_exact(c.size[0] * c.size[1]) {
            for i in 0..c.out(0) * c.out(1) {
                let (mut sum, mut most, mut count) = (0f64, f64::NEG_INFINITY, 0);
                for tap in 0..c.taps() {
                    let at = |o: usize, k: usize, a: usize| {
                        (o * c.strides[a] + k * c.dilations[a]) as i32 - c.pads[a]
                    };
                    let (iy, ix) = (
                        at(i / c.out(1), tap / c.kernel[1], 0),
                        at(i % c.out(1), tap % c.kernel[1], 1),
                    );
                    let end = |a: usize| c.size[a] as i32 + c.after[a];
                    count += usize::from(padded && iy < end(0) && ix < end(1));
                    if (0..c.size[0] as i32).contains(&iy) && (0..c.size[1] as i32).contains(&ix) {
                        let v = f64::from(plane[iy as usize * c.size[1] + ix as usize]);
                        sum += match reduce {
                            Some(("NORM", p)) => v.abs().powi(p as i32),
                            _ => v,
                        };
                        most = most.max(v);
                        count += usize::from(!padded);
                    }
                }
                y.push(match reduce {
                    None => most,
                    Some(("NORM", p)) => sum.powf(1.0 / p as f64),
                    Some(_) => sum / count.max(1) as f64,
                });
            }
        }
        y
    }

    fn words(c: &Conv, planes: usize) -> Vec<u32> {
        let sizes = [
            planes * c.out(0) * c.out(1),
            c.size[0],
            c.size[1],
            c.out(0),
            c.out(1),
        ];
        let ends = [0, 1].map(|a| c.size[a] as i32 + c.after[a]);
        let pads = c.pads.iter().chain(&ends).map(|v| v.cast_unsigned());
        sizes.iter().map(|v| *v as u32).chain(pads).collect()
    }

    #[test]
    fn pools_match() {
        for c in Conv::cases() {
            let planes = c.images * c.groups;
            let x = testing::floats(3, planes * c.size[0] * c.size[1]);
            let kinds: [(Reduce, bool); 6] = [
                (None, false),
                (Some(("MEAN", 1)), false),
                (Some(("MEAN", 1)), true),
                (Some(("NORM", 1)), false),
                (Some(("NORM", 2)), false),
                (Some(("NORM", 3)), false),
            ];
            for (reduce, padded) in kinds {
                let mut defines = c.defines();
                defines.extend(reduce);
                defines.push(("PADDED", i64::from(padded)));
                let case = Case::<Pool> {
                    words: words(&c, planes),
                    operands: vec![Some((DType::F32, testing::memory(&x)))],
                    defines,
                    kernel: std::marker::PhantomData,
                };
                case.check(
                    &reference(&c, &x, reduce, padded),
                    1e-5,
                    &format!("{c:?} {reduce:?} {padded}"),
                );
            }
        }
    }

    #[test]
    fn maxima_of_integers_match() {
        let c = Conv::new([2, 3, 1, 1], [7, 9], [3, 2])
            .strided([2, 2], [1, 1])
            .padded([1, 1], [1, 0]);
        let x: Vec<i32> = testing::floats(3, 6 * 63)
            .iter()
            .map(|v| (v * 2e9) as i32)
            .collect();
        let exact: Vec<f32> = x.iter().map(|v| (v >> 10) as f32).collect();
        let shifted: Vec<i32> = x.iter().map(|v| v >> 10).collect();
        let want: Vec<i32> = reference(&c, &exact, None, false)
            .iter()
            .map(|v| *v as i32)
            .collect();
        for isa in Isa::supported() {
            let y = testing::memory(&vec![0i32; want.len()]);
            let spec = KernelSpec {
                defines: c.defines().into_iter().collect(),
                operands: vec![Some(DType::I32); 2],
                ..crate::kernels::cpu::blank()
            };
            let kernel = Pool::new(&spec, isa).unwrap();
            let memory = [Some(testing::memory(&shifted)), Some(y)];
            let args =
                <Args as crate::backend::kernel::Arguments<Bound>>::read(&words(&c, 6), &memory).unwrap();
            let store = Store { y, epilogue: None };
            // SAFETY: one piece does all.
            let got = unsafe {
                kernel.run(&args, &store, 0, 1, &mut Scratch::default());
                y.slice::<i32>()
            };
            assert_eq!(got, want);
        }
    }

    #[test]
    fn maximum_with_nan_is_nan() {
        assert!(larger(f32::NAN, 1.0).is_nan() && larger(1.0, f32::NAN).is_nan());
    }
}
