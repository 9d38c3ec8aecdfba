//! Normalization of rows by mean and variance, with scale and bias (`norm`), and its form without
//! mean and bias (`norm_row`).

use crate::backend::cpu::args::{
    Bound, Memory, NativeKernel, Piece, Scratch, Store, pieces_of, product, reach,
};
use crate::backend::cpu::isa::Isa;
use crate::backend::cpu::simd::{self, Job, Simd, load_part};
use crate::backend::kernel::KernelSpec;

type Args = super::Args<Bound>;

/// Elements that are summed in single precision, and results that are computed at once before an
/// epilogue is applied.
const BLOCK: usize = 4096;

/// The kernel `norm`.
pub struct Norm {
    isa: Isa,
    /// The mean is subtracted.
    center: bool,
    /// Each column has its own scale and bias.
    by_column: bool,
}

impl NativeKernel for Norm {
    type Signature = super::Args;

    fn new(spec: &KernelSpec, isa: Isa) -> Option<Self> {
        let has = |name| spec.defines.contains_key(name);
        Some(Self {
            isa,
            center: has(super::CENTER),
            by_column: has(super::BY_COLUMN),
        })
    }

    fn fits(&self, args: &Args) -> bool {
        let Args { rows, cols, .. } = *args;
        let count = product(&[rows, cols]);
        let sets = rows.min(args.sets.max(1));
        let scales = if self.by_column {
            cols.min(count)
        } else {
            reach(&[[sets, args.per]], cols.div_ceil(args.run.max(1)))
        };
        let hold =
            |operands: [Option<Memory>; 2], count| operands.iter().flatten().all(|m| m.holds::<f32>(count));
        hold([Some(args.x), Some(args.y)], count)
            && hold([args.scale, args.bias], scales)
            && hold([args.mean, args.variance], sets)
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        pieces_of(args.rows, args.cols / 2, threads)
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, piece: usize, pieces: usize, scratch: &mut Scratch) {
        // SAFETY: the processor supports `isa`; the operands fit.
        unsafe { simd::run(self.isa, Piece::new(self, args, store, piece, pieces, scratch)) }
    }
}

/// Turns elements of a row into results: `(x - center) * factor + term`, then `* scale[c] +
/// bias[c]` if columns have their own scales or biases.
struct Transform {
    center: f32,
    factor: f32,
    term: f32,
    scale: Option<*const f32>,
    bias: Option<*const f32>,
}

impl Job for Piece<'_, Norm> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Args {
            cols, sets, per, run, ..
        } = *self.args;
        let (sets, run) = (sets.max(1), run.max(1));
        let at = |m: Option<Memory>| m.map(|m| m.as_ptr::<f32>().cast_const());
        let [scale, bias, mean, variance] = [
            self.args.scale,
            self.args.bias,
            self.args.mean,
            self.args.variance,
        ]
        .map(at);
        for row in self.part(self.args.rows, 1) {
            let start = row * cols;
            // SAFETY: the operands have these elements; rows belong to the piece.
            unsafe {
                let x = self.args.x.as_ptr::<f32>().cast_const().add(start);
                let (center, spread) = match (mean, variance) {
                    (Some(mean), Some(variance)) => (*mean.add(row % sets), *variance.add(row % sets)),
                    _ => statistics::<S>(x, cols, self.kernel.center),
                };
                let factor = 1.0 / (spread + self.args.epsilon).sqrt();
                if self.kernel.by_column {
                    let line = Transform {
                        center,
                        factor,
                        term: 0.0,
                        scale,
                        bias,
                    };
                    write::<S>(self.store, start, x, cols, &line, self.scratch);
                    continue;
                }
                for first in (0..cols).step_by(run) {
                    let set = row % sets * per + first / run;
                    let line = Transform {
                        center,
                        factor: factor * scale.map_or(1.0, |s| *s.add(set)),
                        term: bias.map_or(0.0, |b| *b.add(set)),
                        scale: None,
                        bias: None,
                    };
                    let count = run.min(cols - first);
                    write::<S>(
                        self.store,
                        start + first,
                        x.add(first),
                        count,
                        &line,
                        self.scratch,
                    );
                }
            }
        }
    }
}

/// Mean (0 unless `center`) and variance of `n` elements.
#[inline(always)]
unsafe fn statistics<S: Simd>(x: *const f32, n: usize, center: bool) -> (f32, f32) {
    let count = n.max(1) as f64;
    unsafe {
        let mean = if center {
            (sum::<S, false>(x, n, 0.0) / count) as f32
        } else {
            0.0
        };
        (mean, (sum::<S, true>(x, n, mean) / count) as f32)
    }
}

/// The sum of all `x - center`, or of their squares.
#[inline(always)]
unsafe fn sum<S: Simd, const SQUARES: bool>(x: *const f32, n: usize, center: f32) -> f64 {
    unsafe {
        let shift = S::splat(center);
        let mut all = 0.0;
        for first in (0..n).step_by(BLOCK) {
            let end = (first + BLOCK).min(n);
            let mut sums = [S::splat(0.0); 4];
            let mut i = first;
            while i + 4 * S::LANES <= end {
                for (lane, sum) in sums.iter_mut().enumerate() {
                    let v = S::sub(S::load(x.add(i + lane * S::LANES)), shift);
                    *sum = if SQUARES {
                        S::fma(v, v, *sum)
                    } else {
                        S::add(v, *sum)
                    };
                }
                i += 4 * S::LANES;
            }
            while i < end {
                let count = S::LANES.min(end - i);
                let v = S::sub(load_part::<S>(x.add(i), count, center), shift);
                sums[0] = if SQUARES {
                    S::fma(v, v, sums[0])
                } else {
                    S::add(v, sums[0])
                };
                i += count;
            }
            let total = S::add(S::add(sums[0], sums[1]), S::add(sums[2], sums[3]));
            all += f64::from(S::sum(total));
        }
        all
    }
}

/// Stores `n` results from result `first` on.
#[inline(always)]
unsafe fn write<S: Simd>(
    store: &Store<'_>,
    first: usize,
    x: *const f32,
    n: usize,
    line: &Transform,
    scratch: &mut Scratch,
) {
    unsafe {
        if let Some(y) = store.address(first) {
            return apply::<S>(x, y, n, line, 0);
        }
        for from in (0..n).step_by(BLOCK) {
            let count = BLOCK.min(n - from);
            let values = scratch.floats(count);
            apply::<S>(x.add(from), values.as_mut_ptr(), count, line, from);
            store.put(first + from, values, None);
        }
    }
}

/// Computes `n` results, of the columns from `column` on. `y` may be `x`.
#[inline(always)]
unsafe fn apply<S: Simd>(x: *const f32, y: *mut f32, n: usize, line: &Transform, column: usize) {
    unsafe {
        let (center, factor, term) = (S::splat(line.center), S::splat(line.factor), S::splat(line.term));
        let whole = n / S::LANES * S::LANES;
        for i in (0..whole).step_by(S::LANES) {
            let mut v = S::fma(S::sub(S::load(x.add(i)), center), factor, term);
            if let Some(scale) = line.scale {
                v = S::mul(v, S::load(scale.add(column + i)));
            }
            if let Some(bias) = line.bias {
                v = S::add(v, S::load(bias.add(column + i)));
            }
            S::store(y.add(i), v);
        }
        for i in whole..n {
            let mut v = (*x.add(i) - line.center) * line.factor + line.term;
            if let Some(scale) = line.scale {
                v *= *scale.add(column + i);
            }
            if let Some(bias) = line.bias {
                v += *bias.add(column + i);
            }
            *y.add(i) = v;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::cpu::harness::{Random, compare, memory, run, spec};
    use crate::tensor::DType;

    struct Shape {
        rows: usize,
        cols: usize,
        /// Sets, scales per set, and neighbours that share a scale; `None` for scales of columns.
        place: Option<[usize; 3]>,
        center: bool,
        /// Whether there are operands for scale, for bias, and for mean and variance.
        has: [bool; 3],
    }

    fn reference(s: &Shape, x: &[f32], others: &[Vec<f32>; 4], epsilon: f64) -> Vec<f64> {
        let mut y = Vec::new();
        for row in 0..s.rows {
            let x: Vec<f64> = x[row * s.cols..][..s.cols]
                .iter()
                .map(|v| f64::from(*v))
                .collect();
            let n = s.cols as f64;
            let [sets, per, run] = s.place.unwrap_or([1, s.cols, 1]);
            let mut mean = if s.center { x.iter().sum::<f64>() / n } else { 0.0 };
            let mut variance = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
            if s.has[2] {
                mean = f64::from(others[2][row % sets]);
                variance = f64::from(others[3][row % sets]);
            }
            for (c, v) in x.iter().enumerate() {
                let at = if s.place.is_some() {
                    row % sets * per + c / run
                } else {
                    c
                };
                let mut v = (v - mean) / (variance + epsilon).sqrt();
                if s.has[0] {
                    v *= f64::from(others[0][at]);
                }
                if s.has[1] {
                    v += f64::from(others[1][at]);
                }
                y.push(v);
            }
        }
        y
    }

    fn check(s: &Shape) {
        let mut random = Random(7);
        let mut x = random.floats(s.rows * s.cols);
        x.iter_mut().for_each(|v| *v += 0.5);
        let [set, per, run_length] = s.place.unwrap_or([1, s.cols, 1]);
        let mut others = [set * per, set * per, set, set].map(|n| random.floats(n));
        others[3].iter_mut().for_each(|v| *v = v.abs() + 0.1);
        let want = reference(s, &x, &others, 1e-5);
        let has = [s.has[0], s.has[1], s.has[2], s.has[2]];
        let mut defines = vec![];
        if s.place.is_none() {
            defines.push(("BY_COLUMN", 1));
        }
        if s.center {
            defines.push(("CENTER", 1));
        }
        let types = has.map(|h| h.then_some(DType::F32));
        let spec = spec(
            &defines,
            &[&[Some(DType::F32)], &types[..], &[Some(DType::F32)]].concat(),
        );
        let words = [s.rows, s.cols, set, per, run_length].map(|v| v as u32);
        let words = [&words[..], &[1e-5f32.to_bits()]].concat();
        for (isa, epilogue, in_place) in Isa::supported().flat_map(|i| {
            [
                (i, false, false),
                (i, true, false),
                (i, false, true),
                (i, true, true),
            ]
        }) {
            let (mut from, mut y) = (x.clone(), vec![f32::NAN; x.len()]);
            let y_at = if in_place {
                memory(&mut from)
            } else {
                memory(&mut y)
            };
            let mut operands = vec![Some(memory(&mut from))];
            operands.extend(others.iter_mut().zip(has).map(|(o, h)| h.then(|| memory(o))));
            operands.push(Some(y_at));
            run::<Norm>(&spec, isa, &words, &operands, y_at, epilogue, 4);
            let found = if in_place { &from } else { &y };
            compare(&format!("{isa:?}"), found, &want, epilogue, 3e-6);
        }
    }

    #[test]
    fn norm_of_columns_matches() {
        for (rows, cols) in [(1, 576), (5, 67), (3, 1), (40, 1030), (2, 9000)] {
            for center in [false, true] {
                for has in [[true, false, false], [true, true, false], [false, false, false]] {
                    check(&Shape {
                        rows,
                        cols,
                        place: None,
                        center,
                        has,
                    });
                }
            }
        }
    }

    #[test]
    fn norm_of_sets_and_given_statistics_match() {
        check(&Shape {
            rows: 6,
            cols: 35,
            place: Some([3, 1, 35]),
            center: true,
            has: [true, true, false],
        });
        check(&Shape {
            rows: 4,
            cols: 84,
            place: Some([2, 4, 21]),
            center: true,
            has: [true, true, false],
        });
        check(&Shape {
            rows: 6,
            cols: 35,
            place: Some([3, 1, 35]),
            center: false,
            has: [true, true, true],
        });
    }
}
