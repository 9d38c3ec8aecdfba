//! Softmax of rows, or its logarithm.

use super::Form;
use crate::backend::cpu::args::{Bound, NativeKernel, Piece, Scratch, Store, pieces_of, product};
use crate::backend::cpu::isa::Isa;
use crate::backend::cpu::simd::{self, Job, Simd, exp, load_part, store_part};
use crate::backend::kernel::KernelSpec;

type Args = super::Args<Bound>;

/// The kernel `softmax`.
pub struct Softmax {
    isa: Isa,
    log: bool,
}

impl NativeKernel for Softmax {
    type Signature = super::Args;

    fn new(spec: &KernelSpec, isa: Isa) -> Option<Self> {
        Some(Self {
            isa,
            log: Form::of(spec) == Form::Log,
        })
    }

    fn fits(&self, args: &Args) -> bool {
        let count = product(&[args.rows, args.cols]);
        args.x.holds::<f32>(count) && args.y.holds::<f32>(count)
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        pieces_of(args.rows, args.cols, threads)
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, piece: usize, pieces: usize, scratch: &mut Scratch) {
        // SAFETY: the processor supports `isa`; the operands fit.
        unsafe { simd::run(self.isa, Piece::new(self, args, store, piece, pieces, scratch)) }
    }
}

impl Job for Piece<'_, Softmax> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let cols = self.args.cols;
        for row in self.part(self.args.rows, 1) {
            let start = row * cols;
            // SAFETY: the operands have these elements; rows belong to the piece.
            unsafe {
                let x = self.args.x.as_ptr::<f32>().cast_const().add(start);
                if let Some(y) = self.store.address(start) {
                    row_to::<S>(x, y, cols, self.kernel.log);
                } else {
                    let values = self.scratch.floats(cols);
                    row_to::<S>(x, values.as_mut_ptr(), cols, self.kernel.log);
                    self.store.put(start, values, None);
                }
            }
        }
    }
}

/// A sum of exponentials, which is not 0 even if all elements are minus infinity.
pub fn positive(sum: f32) -> f32 {
    const LEAST: f32 = 1e-30;
    // NaN stays.
    if sum < LEAST { LEAST } else { sum }
}

/// Writes the softmax of `n` elements to `y`, which may be `x`.
#[inline(always)]
unsafe fn row_to<S: Simd>(x: *const f32, y: *mut f32, n: usize, log: bool) {
    unsafe {
        let mut top = S::splat(f32::NEG_INFINITY);
        for i in (0..n).step_by(S::LANES) {
            let v = if i + S::LANES <= n {
                S::load(x.add(i))
            } else {
                load_part::<S>(x.add(i), n - i, f32::NEG_INFINITY)
            };
            top = S::max(v, top);
        }
        let top = S::splat(S::largest(top));
        let mut sum = S::splat(0.0);
        for i in (0..n).step_by(S::LANES) {
            if i + S::LANES <= n {
                let e = exp::<S>(S::sub(S::load(x.add(i)), top));
                sum = S::add(sum, e);
                if !log {
                    S::store(y.add(i), e);
                }
            } else {
                let e = exp::<S>(S::sub(load_part::<S>(x.add(i), n - i, f32::NEG_INFINITY), top));
                sum = S::add(sum, e);
                if !log {
                    store_part::<S>(y.add(i), n - i, e);
                }
            }
        }
        let sum = positive(S::sum(sum));
        let (from, factor) = if log {
            (x, 1.0)
        } else {
            (y.cast_const(), 1.0 / sum)
        };
        let (log_sum, factor) = (S::splat(sum.ln()), S::splat(factor));
        for i in (0..n).step_by(S::LANES) {
            let count = S::LANES.min(n - i);
            let whole = count == S::LANES;
            let v = if whole {
                S::load(from.add(i))
            } else {
                load_part::<S>(from.add(i), count, 0.0)
            };
            // The maximum is subtracted first: this is exact for the largest elements.
            let v = if log {
                S::sub(S::sub(v, top), log_sum)
            } else {
                S::mul(v, factor)
            };
            if whole {
                S::store(y.add(i), v);
            } else {
                store_part::<S>(y.add(i), count, v);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::cpu::harness::{Random, compare, memory, run, spec};
    use crate::tensor::DType;

    #[test]
    fn one_element_that_is_nan_makes_the_row_nan() {
        let spec = spec(&[], &[Some(DType::F32); 2]);
        for isa in Isa::supported() {
            let mut x: Vec<f32> = (0..3 * 40).map(|i| i as f32).collect();
            x[40 + 7] = f32::NAN;
            let mut y = vec![0.0; x.len()];
            let operands = [Some(memory(&mut x)), Some(memory(&mut y))];
            run::<Softmax>(&spec, isa, &[3, 40], &operands, memory(&mut y), false, 1);
            let nan = y
                .iter()
                .enumerate()
                .filter(|(_, v): &(usize, &f32)| v.is_nan())
                .map(|(i, _)| i);
            assert!(nan.eq(40..80), "{isa:?} {y:?}");
        }
    }

    #[test]
    fn softmax_matches() {
        let mut random = Random(5);
        for (rows, cols) in [(3, 130), (1, 1025), (4, 1), (70, 511), (2, 0), (0, 5)] {
            let mut x: Vec<f32> = random.floats(rows * cols);
            x.iter_mut().for_each(|v| *v *= 20.0);
            for log in [true, false] {
                if let Some(v) = x.get_mut(3).filter(|_| cols > 4 && !log) {
                    *v = f32::NEG_INFINITY;
                }
                let defines = if log { &[("LOG", 1)][..] } else { &[] };
                let spec = spec(defines, &[Some(DType::F32); 2]);
                let mut want = Vec::new();
                for row in x.chunks_exact(cols.max(1)) {
                    let top = row.iter().fold(f32::NEG_INFINITY, |m, v| m.max(*v));
                    let e: Vec<f64> = row.iter().map(|v| f64::from(*v) - f64::from(top)).collect();
                    let sum: f64 = e.iter().map(|v| v.exp()).sum();
                    want.extend(e.iter().map(|v| if log { v - sum.ln() } else { v.exp() / sum }));
                }
                for (isa, epilogue, in_place) in
                    Isa::supported().flat_map(|i| [(i, false, false), (i, true, false), (i, false, true)])
                {
                    let (mut from, mut y) = (x.clone(), vec![f32::NAN; x.len()]);
                    let y_at = if in_place {
                        memory(&mut from)
                    } else {
                        memory(&mut y)
                    };
                    let operands = [Some(memory(&mut from)), Some(y_at)];
                    run::<Softmax>(
                        &spec,
                        isa,
                        &[rows as u32, cols as u32],
                        &operands,
                        y_at,
                        epilogue,
                        3,
                    );
                    let found = if in_place { &from } else { &y };
                    compare(&format!("{isa:?} {rows} x {cols}"), found, &want, epilogue, 2e-6);
                }
            }
        }
    }
}
