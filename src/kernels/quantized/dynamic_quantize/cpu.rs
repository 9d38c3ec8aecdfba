//! Quantization of floats to 8 bits by their range.

use crate::backend::cpu::args::{Bound, NativeKernel, Scratch, Store, dtype};
use crate::backend::cpu::isa::Isa;
use crate::backend::cpu::simd::{self, Job, Simd};
use crate::backend::kernel::KernelSpec;
use crate::kernels::cpu::moves::Elem;
use crate::tensor::DType;

type Args = super::Args<Bound>;

/// `y = round(x / scale) + zero`, from 0 to 255. The range of all elements and 0 determines `scale`
/// and `zero`.
pub struct DynamicQuantize {
    isa: Isa,
}

/// The smallest and the largest of the elements and 0.
struct Bounds<'a>(&'a [f32]);

impl Job for Bounds<'_> {
    type Out = [f32; 2];
    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> [f32; 2] {
        let mut chunks = self.0.chunks_exact(2 * S::LANES);
        // SAFETY: chunks have as many elements as are read.
        let [mut low, mut high] = unsafe {
            let zero = S::splat(0.0);
            let (mut low, mut high) = ([zero; 2], [zero; 2]);
            for chunk in &mut chunks {
                for i in 0..2 {
                    let v = S::load(chunk.as_ptr().add(i * S::LANES));
                    low[i] = S::min(v, low[i]);
                    high[i] = S::max(v, high[i]);
                }
            }
            let low = S::min(low[0], low[1]);
            [
                -S::largest(S::sub(zero, low)),
                S::largest(S::max(high[0], high[1])),
            ]
        };
        for v in chunks.remainder() {
            (low, high) = (low.min(*v), high.max(*v));
        }
        [low, high]
    }
}

/// Quantizes elements.
struct Quantize<'a> {
    x: &'a [f32],
    y: &'a mut [i32],
    by: f32,
    offset: f32,
}

/// Elements that are quantized as floats before they are converted to integers.
const BLOCK: usize = 256;

impl Job for Quantize<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { x, y, by, offset } = self;
        let mut values = [0.0f32; BLOCK];
        for (x, y) in x.chunks(BLOCK).zip(y.chunks_mut(BLOCK)) {
            let whole = x.len() / S::LANES * S::LANES;
            let mut i = 0;
            while i < whole {
                // SAFETY: `x` and `values` have this vector.
                unsafe {
                    let v = S::div(S::load(x.as_ptr().add(i)), S::splat(by));
                    let v = S::add(S::round(v), S::splat(offset));
                    let v = S::min(S::max(v, S::splat(0.0)), S::splat(255.0));
                    S::store(values.as_mut_ptr().add(i), v);
                }
                i += S::LANES;
            }
            for (v, x) in values[whole..].iter_mut().zip(&x[whole..]) {
                *v = ((x / by).round_ties_even() + offset).clamp(0.0, 255.0);
            }
            for (y, v) in y.iter_mut().zip(&values) {
                *y = *v as i32;
            }
        }
    }
}

impl NativeKernel for DynamicQuantize {
    type Signature = super::Args;

    fn new(spec: &KernelSpec, isa: Isa) -> Option<Self> {
        let floats = [0, 2].into_iter().all(|i| dtype(spec, i) == Some(DType::F32));
        let ints = [1, 3].into_iter().all(|i| Elem::of(spec, i) == Some(Elem::Int));
        (floats && ints).then_some(Self { isa })
    }

    fn pieces(&self, _: &Args, _: usize) -> usize {
        1
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, piece: usize, _: usize, _: &mut Scratch) {
        if piece > 0 {
            return;
        }
        // SAFETY: nobody writes the operand; the only piece owns all results.
        unsafe {
            let x = &args.x.slice::<f32>()[..args.count];
            let [low, high] = simd::run(self.isa, Bounds(x));
            let range = (high - low) / 255.0;
            let by = if range == 0.0 { 1.0 } else { range };
            let offset = (-low / by).round_ties_even().clamp(0.0, 255.0);
            let y = store.y.slice_mut::<i32>(0..args.count);
            simd::run(self.isa, Quantize { x, y, by, offset });
            args.scale.slice_mut::<f32>(0..1)[0] = range;
            args.zero.slice_mut::<i32>(0..1)[0] = offset as i32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::DynamicQuantize;
    use crate::kernels::cpu::moves::check::{Given, blank, expect, floats};

    #[test]
    fn dynamic_quantization_matches() {
        for (n, scale, shift) in [
            (0, 1.0, 0.0),
            (1, 0.0, 0.0),
            (7, 3.0, 0.0),
            (1000, 0.5, 2.0),
            (333, 9.0, -20.0),
        ] {
            let x: Vec<f32> = floats(n, 3).iter().map(|v| v * scale + shift).collect();
            let (low, high) = x
                .iter()
                .fold((0.0f32, 0.0f32), |(l, h), v| (l.min(*v), h.max(*v)));
            let range = (high - low) / 255.0;
            let by = if range == 0.0 { 1.0 } else { range };
            let zero = (-low / by).round_ties_even().clamp(0.0, 255.0);
            let of = |v: &f32| ((v / by).round_ties_even() + zero).clamp(0.0, 255.0) as i32;
            let want = [
                Given::I(x.iter().map(of).collect()),
                Given::F(vec![range]),
                Given::I(vec![zero as i32]),
            ];
            let operands = [Given::F(x), blank(&want[0]), blank(&want[1]), blank(&want[2])];
            expect::<DynamicQuantize>(&[], &[n as u32], &operands, &want, 0.0);
        }
    }
}
