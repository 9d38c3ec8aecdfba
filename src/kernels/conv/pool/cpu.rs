//! Maximum, mean or p-norm over windows. Padding does not count unless `PADDED` is set.
//!
//! Rows of a window are reduced first, then columns.

use crate::backend::cpu::args::{Bound, NativeKernel, Piece, Scratch, Store, dtype, product};
use crate::backend::cpu::isa::Isa;
use crate::backend::cpu::simd::{self, Job, Simd};
use crate::backend::kernel::KernelSpec;
use crate::kernels::cpu::gemm;
use crate::kernels::cpu::window::{Line, Window};
use crate::tensor::DType;
use bytemuck::Pod;
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

impl NativeKernel for Pool {
    type Signature = super::Args;

    fn new(spec: &KernelSpec, isa: Isa) -> Option<Self> {
        let is_set = |name| spec.defines.get(name).is_some_and(|v| *v != 0);
        let kind = match (is_set(super::MEAN), spec.defines.get(super::NORM)) {
            (true, _) => Kind::Mean {
                padded: is_set(super::PADDED),
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
        // SAFETY: the processor supports the instruction set.
        unsafe { simd::run(self.isa, Piece::new(self, args, store, piece, pieces, scratch)) }
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

/// A row of x.
/// # Safety
/// It is inside x.
#[inline(always)]
unsafe fn row_of<'a, T>(args: &Args, row: usize) -> &'a [T] {
    unsafe { std::slice::from_raw_parts(args.x.as_ptr::<T>().add(row * args.in_w), args.in_w) }
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

impl Job for Piece<'_, Pool> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (pool, args, store, rows) = (self.kernel, self.args, self.store, self.part(rows(self.args), 1));
        let (high, wide) = (pool.window.rows, pool.window.columns);
        let room = self.scratch.floats(args.in_w + 2 * args.out_w);
        let (counts, space) = room.split_at_mut(args.out_w);
        let sum = |a: f32, b: f32| a + b;
        // SAFETY: elements have these types.
        unsafe {
            match pool.kind {
                Kind::Max if pool.x == DType::I32 => {
                    let (space, fold) = (bytemuck::cast_slice_mut(space), (i32::MIN, Ord::max, Ord::max));
                    pool.reduce(args, store, rows, space, fold, |_, _, _| {});
                }
                Kind::Max => {
                    let fold = (f32::NEG_INFINITY, larger, larger);
                    pool.reduce(args, store, rows, space, fold, |_, _, _| {});
                }
                Kind::Mean { padded } => {
                    count_columns(args, wide, padded, counts);
                    pool.reduce(args, store, rows, space, (0.0, sum, sum), |row, met, y| {
                        let met = match padded {
                            true => high.counted(row % args.out_h, args.pad_h, args.end_h),
                            false => met,
                        };
                        let met = met as f32;
                        let pairs = y.iter_mut().zip(&*counts);
                        pairs.for_each(|(y, n)| *y /= (met * n).max(1.0));
                    });
                }
                Kind::Norm(p) => {
                    let add = |s: f32, x: f32| s + term(x, p);
                    pool.reduce(args, store, rows, space, (0.0, add, sum), |_, _, y| {
                        if p == 2.0 {
                            y.iter_mut().for_each(|v| *v = v.sqrt());
                        } else if p != 1.0 {
                            y.iter_mut().for_each(|v| *v = v.powf(1.0 / p));
                        }
                    });
                }
            }
        }
    }
}

impl Pool {
    /// Reduces the windows of the rows `rows` of results. `fold` has the initial value, what adds
    /// an element to those of the column above it, and what adds a column. `finish` gets the index
    /// of a row, how many rows of x are in its windows, and the results.
    /// # Safety
    /// As for [`NativeKernel::run`]; elements have type `T`.
    #[inline(always)]
    unsafe fn reduce<T: Pod>(
        &self,
        args: &Args,
        store: &Store<'_>,
        rows: Range<usize>,
        space: &mut [T],
        fold: (T, impl Fn(T, T) -> T, impl Fn(T, T) -> T),
        finish: impl Fn(usize, usize, &mut [T]),
    ) {
        let (start, down, across) = fold;
        let wide = self.window.columns;
        let used = wide.used(args.pad_w, args.in_w, args.out_w);
        let (column, y) = space.split_at_mut(args.in_w);
        for row in rows {
            column.fill(start);
            y.fill(start);
            let taps = taps(args, self.window, row);
            let met = taps.len();
            for row in taps {
                // SAFETY: inside x, which fits.
                let x = unsafe { row_of::<T>(args, row) };
                column.iter_mut().zip(x).for_each(|(c, x)| *c = down(*c, *x));
            }
            for tap in &used {
                wide.along(*tap, args.pad_w, column, y, &across);
            }
            finish(row, met, y);
            // SAFETY: results of this piece.
            unsafe { store.put(row * args.out_w, y, None) };
        }
    }
}

/// Counts the columns of each window of a row that are not left out as padding.
fn count_columns(args: &Args, line: Line, padded: bool, to: &mut [f32]) {
    for (i, to) in to.iter_mut().enumerate() {
        let count = if padded {
            line.counted(i, args.pad_w, args.end_w)
        } else {
            line.taps(i, args.pad_w, args.in_w).len()
        };
        *to = count as f32;
    }
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
