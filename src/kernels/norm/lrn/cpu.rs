//! Local response normalization: `x / (bias + factor * sum(x^2))^beta`. The sum is over the channel
//! of `x`, the `before` channels before it and the `after` channels after it.

use crate::backend::cpu::args::{Bound, NativeKernel, Piece, Scratch, Store, dtype, product};
use crate::backend::cpu::isa::Isa;
use crate::backend::cpu::simd::{self, Job, Simd};
use crate::backend::kernel::KernelSpec;
use crate::kernels::cpu::gemm;
use crate::tensor::DType;

type Args = super::Args<Bound>;

pub struct Lrn {
    isa: Isa,
}

impl NativeKernel for Lrn {
    type Signature = super::Args;

    fn new(spec: &KernelSpec, isa: Isa) -> Option<Self> {
        (dtype(spec, 0) == Some(DType::F32)).then_some(Self { isa })
    }

    fn fits(&self, args: &Args) -> bool {
        let Args { channels, plane, .. } = *args;
        let all = |planes: usize| product(&[planes.div_ceil(channels), channels, plane]);
        match planes(args) {
            0 => true,
            planes => channels > 0 && args.x.holds::<f32>(all(planes)),
        }
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        let terms = (args.before.saturating_add(args.after)).min(args.channels) + 40;
        gemm::pieces(args.count.saturating_mul(terms), threads)
            .min(planes(args))
            .max(1)
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, piece: usize, pieces: usize, scratch: &mut Scratch) {
        // SAFETY: the processor supports `isa`; the operands fit.
        unsafe { simd::run(self.isa, Piece::new(self, args, store, piece, pieces, scratch)) }
    }
}

fn planes(args: &Args) -> usize {
    args.count.checked_div(args.plane).unwrap_or(0)
}

impl Job for Piece<'_, Lrn> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        const BLOCK: usize = 1024;
        let (args, store, planes) = (self.args, self.store, self.part(planes(self.args), 1));
        let results = self.scratch.floats(BLOCK);
        for plane in planes {
            let channel = plane % args.channels.max(1);
            let first = plane - channel.min(args.before);
            let last = plane + (args.channels - 1 - channel).min(args.after);
            for start in (0..args.plane).step_by(BLOCK) {
                let count = BLOCK.min(args.plane - start);
                let results = &mut results[..count];
                results.fill(0.0);
                for other in first..=last {
                    // SAFETY: a part of a plane of x.
                    let x = unsafe { row(args, other, start, count) };
                    results.iter_mut().zip(x).for_each(|(s, x)| *s += x * x);
                }
                // SAFETY: as above.
                let x = unsafe { row(args, plane, start, count) };
                for (y, x) in results.iter_mut().zip(x) {
                    let sum = args.bias + args.factor * *y;
                    // The usual exponent needs only square roots.
                    let power = if args.beta == 0.75 {
                        let root = sum.sqrt();
                        root * root.sqrt()
                    } else {
                        sum.powf(args.beta)
                    };
                    *y = x / power;
                }
                // SAFETY: results of this piece.
                unsafe { store.put(plane * args.plane + start, results, None) };
            }
        }
    }
}

/// Elements of a plane.
/// # Safety
/// They are inside x.
#[inline(always)]
unsafe fn row(args: &Args, plane: usize, start: usize, count: usize) -> &[f32] {
    unsafe { std::slice::from_raw_parts(args.x.as_ptr::<f32>().add(plane * args.plane + start), count) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::cpu::testing::{self, Case};

    #[test]
    fn normalized_channels_match() {
        for (images, channels, plane, [before, after], beta) in [
            (2, 7, 35, [2, 2], 0.75f32),
            (1, 3, 1, [1, 2], 0.5),
            (2, 1, 1030, [9, 9], 0.75),
            (1, 5, 0, [1, 1], 0.75),
        ] {
            let x = testing::floats(5, images * channels * plane);
            let (factor, bias) = (0.7f32, 1.5f32);
            let mut want = Vec::new();
            for (i, v) in x.iter().enumerate() {
                let c = i / plane % channels;
                let (first, last) = (c - before.min(c), (c + after).min(channels - 1));
                let squares = (first..=last).map(|o| f64::from(x[i + o * plane - c * plane]).powi(2));
                let sum = f64::from(bias) + f64::from(factor) * squares.sum::<f64>();
                want.push(f64::from(*v) / sum.powf(f64::from(beta)));
            }
            let sizes = [x.len(), channels, plane, before, after].map(|v| v as u32);
            let case = Case::<Lrn> {
                words: sizes
                    .into_iter()
                    .chain([factor, bias, beta].map(f32::to_bits))
                    .collect(),
                operands: vec![Some((DType::F32, testing::memory(&x)))],
                defines: Vec::new(),
                kernel: std::marker::PhantomData,
            };
            case.check(&want, 1e-6, &format!("{channels} of {plane}"));
        }
    }
}
