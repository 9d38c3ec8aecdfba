//! Softmax along an inner axis, or its logarithm ([`Form::Log`]). With [`Form::Hard`], the first of
//! the largest elements becomes 1 and the others 0.

use super::Form;
use crate::backend::cpu::args::{Bound, NativeKernel, Piece, Scratch, Store, pieces_of, product};
use crate::backend::cpu::isa::Isa;
use crate::backend::cpu::simd::{self, Job, Simd, exp};
use crate::backend::kernel::KernelSpec;
use crate::kernels::softmax::cpu::positive;

type Args = super::InnerArgs<Bound>;

/// Neighbouring rows that are computed at once; a multiple of the lanes of all sets.
const WIDTH: usize = 64;

/// The kernel `softmax_axis`.
pub struct SoftmaxAxis {
    isa: Isa,
    form: Form,
}

impl NativeKernel for SoftmaxAxis {
    type Signature = super::InnerArgs;

    fn new(spec: &KernelSpec, isa: Isa) -> Option<Self> {
        let form = Form::of(spec);
        Some(Self { isa, form })
    }

    fn fits(&self, args: &Args) -> bool {
        let count = product(&[args.outer, args.cols, args.inner]);
        args.x.holds::<f32>(count) && args.y.holds::<f32>(count)
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        let units = args.outer * args.inner.div_ceil(WIDTH);
        pieces_of(units, args.cols * args.inner.min(WIDTH) * 2, threads)
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, piece: usize, pieces: usize, scratch: &mut Scratch) {
        // SAFETY: the processor supports `isa`; the operands fit.
        unsafe { simd::run(self.isa, Piece::new(self, args, store, piece, pieces, scratch)) }
    }
}

/// For each row of a unit: the largest element, its position, and the inverse or the logarithm of
/// the sum of exponentials.
struct RowStats {
    top: [f32; WIDTH],
    place: [u32; WIDTH],
    sum: [f32; WIDTH],
}

impl Job for Piece<'_, SoftmaxAxis> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Args { cols, inner, .. } = *self.args;
        let per = inner.div_ceil(WIDTH).max(1);
        // A unit is up to [`WIDTH`] neighbouring rows.
        for unit in self.part(self.args.outer * inner.div_ceil(WIDTH), 1) {
            let first = unit % per * WIDTH;
            let (base, width) = (unit / per * cols * inner + first, WIDTH.min(inner - first));
            // SAFETY: the operands have these elements, and this unit owns the results.
            unsafe {
                let x = self.args.x.as_ptr::<f32>().cast_const().add(base);
                let found = find::<S>(x, cols, inner, width, self.kernel.form);
                if inner == 1 {
                    let values = self.scratch.floats(cols);
                    for (c, y) in values.iter_mut().enumerate() {
                        *y = one(*x.add(c), &found, 0, c, self.kernel.form);
                    }
                    self.store.put(base, values, None);
                    continue;
                }
                for c in 0..cols {
                    let mut line = [0.0; WIDTH];
                    std::ptr::copy_nonoverlapping(x.add(c * inner), line.as_mut_ptr(), width);
                    results::<S>(&mut line, &found, c, self.kernel.form);
                    match self.store.address(base + c * inner) {
                        Some(y) => std::ptr::copy_nonoverlapping(line.as_ptr(), y, width),
                        None => self.store.put(base + c * inner, &line[..width], None),
                    }
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn find<S: Simd>(x: *const f32, cols: usize, inner: usize, width: usize, form: Form) -> RowStats {
    let mut found = RowStats {
        top: [f32::NEG_INFINITY; WIDTH],
        place: [0; WIDTH],
        sum: [0.0; WIDTH],
    };
    unsafe {
        for c in 0..cols {
            for i in 0..width {
                let v = *x.add(c * inner + i);
                // Of all the largest, NaN is the first.
                let odd = form == Form::Hard && v.is_nan() && !found.top[i].is_nan();
                if v > found.top[i] || odd {
                    found.top[i] = v;
                    found.place[i] = c as u32;
                }
            }
        }
        if form == Form::Hard {
            return found;
        }
        for c in 0..cols {
            let mut line = [0.0; WIDTH];
            std::ptr::copy_nonoverlapping(x.add(c * inner), line.as_mut_ptr(), width);
            for i in (0..width).step_by(S::LANES) {
                let e = exp::<S>(S::sub(
                    S::load(line.as_ptr().add(i)),
                    S::load(found.top.as_ptr().add(i)),
                ));
                let sum = found.sum.as_mut_ptr().add(i);
                S::store(sum, S::add(S::load(sum), e));
            }
        }
        for sum in &mut found.sum {
            let total = positive(*sum);
            *sum = if form == Form::Log {
                total.ln()
            } else {
                1.0 / total
            };
        }
    }
    found
}

/// Turns elements `c` of the rows into results.
#[inline(always)]
unsafe fn results<S: Simd>(line: &mut [f32; WIDTH], found: &RowStats, c: usize, form: Form) {
    // SAFETY: all arrays have `WIDTH` elements, a multiple of the lanes.
    unsafe {
        for i in (0..WIDTH).step_by(S::LANES) {
            let at = line.as_mut_ptr().add(i);
            let v = S::sub(S::load(at), S::load(found.top.as_ptr().add(i)));
            match form {
                Form::Hard => {
                    for (y, place) in line.iter_mut().zip(found.place).skip(i).take(S::LANES) {
                        *y = f32::from(u8::from(place as usize == c));
                    }
                }
                Form::Log => S::store(at, S::sub(v, S::load(found.sum.as_ptr().add(i)))),
                Form::Plain => S::store(at, S::mul(exp::<S>(v), S::load(found.sum.as_ptr().add(i)))),
            }
        }
    }
}

/// The result of element `c` of row `i`.
fn one(v: f32, found: &RowStats, i: usize, c: usize, form: Form) -> f32 {
    match form {
        Form::Hard => f32::from(u8::from(found.place[i] as usize == c)),
        Form::Log => v - found.top[i] - found.sum[i],
        Form::Plain => (v - found.top[i]).exp() * found.sum[i],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::cpu::harness::{Random, compare, memory, run, spec};
    use crate::tensor::DType;

    fn reference(x: &[f32], [outer, cols, inner]: [usize; 3], form: Form) -> Vec<f64> {
        let mut y = vec![0.0; x.len()];
        for (o, i) in (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))) {
            let at = |c: usize| (o * cols + c) * inner + i;
            let v = |c: usize| f64::from(x[at(c)]);
            let top = (0..cols).map(v).fold(f64::NEG_INFINITY, f64::max);
            let place = (0..cols).find(|c| v(*c) == top);
            let sum: f64 = (0..cols).map(|c| (v(c) - top).exp()).sum();
            for c in 0..cols {
                y[at(c)] = match form {
                    Form::Plain => (v(c) - top).exp() / sum,
                    Form::Log => v(c) - top - sum.ln(),
                    Form::Hard => f64::from(u8::from(place == Some(c))),
                };
            }
        }
        y
    }

    #[test]
    fn all_forms_match() {
        let mut random = Random(5);
        for shape in [
            [2, 5, 7],
            [3, 16, 84],
            [1, 5, 2],
            [4, 9, 1],
            [2, 300, 130],
            [2, 0, 3],
        ] {
            let x: Vec<f32> = random.floats(shape.iter().product());
            let x: Vec<f32> = x.iter().map(|v| (v * 12.0).round()).collect();
            for (form, define) in [
                (Form::Plain, "PLAIN"),
                (Form::Log, "LOG"),
                (Form::Hard, "HARDMAX"),
            ] {
                let want = reference(&x, shape, form);
                let spec = spec(&[(define, 1)], &[Some(DType::F32); 2]);
                for (isa, epilogue) in Isa::supported().flat_map(|i| [(i, false), (i, true)]) {
                    let (mut x, mut y) = (x.clone(), vec![f32::NAN; x.len()]);
                    let y_at = memory(&mut y);
                    let operands = [Some(memory(&mut x)), Some(y_at)];
                    let words = shape.map(|v| v as u32);
                    run::<SoftmaxAxis>(&spec, isa, &words, &operands, y_at, epilogue, 3);
                    compare(&format!("{isa:?} {form:?} {shape:?}"), &y, &want, epilogue, 5e-6);
                }
            }
        }
    }
}
