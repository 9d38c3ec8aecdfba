//! Quantization of floats to the integer domain, and dequantization.

use crate::backend::cpu::args::{Bound, NativeKernel, Scratch, Store, dtype, part, product};
use crate::backend::cpu::bytes::Limits;
use crate::backend::cpu::isa::Isa;
use crate::backend::cpu::simd::{self, Job, Simd};
use crate::backend::kernel::KernelSpec;
use crate::kernels::cpu::moves::{Elem, RUN, Sink, pieces};
use crate::kernels::int8_layout::cpu::Stored;
use crate::tensor::DType;

type QuantizeArgs = super::QuantizeArgs<Bound>;

type DequantizeArgs = super::DequantizeArgs<Bound>;

/// Quantizes floats `[.., channels, inner]` to bytes `[.., inner, 4 * words]`.
pub struct Int8Quantize(Isa);

/// Dequantizes bytes `[.., inner, stride]` to floats `[.., channels, inner]`.
pub struct Int8Dequantize(Isa);

impl NativeKernel for Int8Quantize {
    type Signature = super::QuantizeArgs;

    fn new(spec: &KernelSpec, isa: Isa) -> Option<Self> {
        (dtype(spec, 0)? == DType::F32).then_some(Self(isa))
    }

    fn fits(&self, args: &QuantizeArgs) -> bool {
        if args.count == 0 {
            return true;
        }
        if args.words == 0 || args.inner == 0 || args.channels > args.words * 4 {
            return false;
        }
        let rows = args.count / args.words;
        let floats = product(&[rows / args.inner, args.channels, args.inner]);
        rows * args.words == args.count
            && rows.is_multiple_of(args.inner)
            && args.x.holds::<f32>(floats)
            && args.y.holds::<u32>(args.count)
    }

    fn pieces(&self, args: &QuantizeArgs, threads: usize) -> usize {
        let rows = args.count.checked_div(args.words).unwrap_or(0);
        pieces(args.count.saturating_mul(4), rows.div_ceil(CHUNK), threads)
    }

    unsafe fn run(&self, args: &QuantizeArgs, _: &Store<'_>, piece: usize, pieces: usize, _: &mut Scratch) {
        if args.count == 0 {
            return;
        }
        let rows = part(args.count / args.words, CHUNK, piece, pieces);
        // SAFETY: nobody writes x; the piece owns these results; the processor supports the
        // instruction set.
        unsafe {
            let job = ByteRows {
                args,
                x: args.x.slice(),
                y: args.y.slice_mut(rows.start * args.words..rows.end * args.words),
                first: rows.start,
            };
            simd::run(self.0, job);
        }
    }
}

/// Rows of results that are computed at once.
const CHUNK: usize = 64;

struct ByteRows<'a> {
    args: &'a QuantizeArgs,
    x: &'a [f32],
    y: &'a mut [u32],
    first: usize,
}

/// Scale, bounds and zero point, ready to quantize floats.
#[derive(Clone, Copy)]
pub(crate) struct Quantizer {
    scale: f32,
    bounds: [f32; 2],
    zero: i32,
}

impl Quantizer {
    pub fn new(scale: f32, limits: Limits) -> Self {
        Self {
            scale,
            bounds: [limits.low, limits.high].map(|v| (v - limits.zero) as f32),
            zero: limits.zero,
        }
    }

    /// The byte for a float, in the low bits.
    #[inline(always)]
    pub fn of(self, x: f32) -> u32 {
        /// 1.5 * 2^23. Adding it rounds to an integer, which is then in the low bits.
        const SHIFT: f32 = 12_582_912.0;
        let v = x / self.scale;
        let v = if v.is_nan() { 0.0 } else { v };
        let [low, high] = self.bounds;
        // NaN was replaced above.
        let v = if v > low { v } else { low };
        let v = if v < high { v } else { high };
        let q = (v + SHIFT).to_bits().cast_signed() - SHIFT.to_bits().cast_signed();
        (q + self.zero).cast_unsigned() & 0xFF
    }
}

impl Job for ByteRows<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { args, x, y, first } = self;
        let QuantizeArgs {
            channels,
            words,
            inner,
            ..
        } = *args;
        let limits = Limits::new(args.zero, args.low, args.high);
        let quantizer = Quantizer::new(args.scale, limits);
        let fill = u32::from(limits.of(0).cast_unsigned());
        if inner == 1 {
            for (i, y) in y.chunks_exact_mut(words).enumerate() {
                let x = &x[(first + i) * channels..(first + i + 1) * channels];
                let y: &mut [u8] = bytemuck::cast_slice_mut(y);
                y[channels..].fill(fill as u8);
                for (y, x) in y.iter_mut().zip(x) {
                    *y = quantizer.of(*x) as u8;
                }
            }
            return;
        }
        let mut done = 0;
        let rows = y.len() / words;
        let mut all = [0u32; CHUNK];
        while done < rows {
            let row = first + done;
            let (outer, at) = (row / inner, row % inner);
            let count = CHUNK.min(rows - done).min(inner - at);
            for word in 0..words {
                let all = &mut all[..count];
                all.fill(0);
                for b in 0..4 {
                    let c = 4 * word + b;
                    if c >= channels {
                        all.iter_mut().for_each(|v| *v |= fill << (8 * b));
                        continue;
                    }
                    let from = (outer * channels + c) * inner + at;
                    for (v, x) in all.iter_mut().zip(&x[from..from + count]) {
                        *v |= quantizer.of(*x) << (8 * b);
                    }
                }
                let to = &mut y[done * words..(done + count) * words];
                if words == 1 {
                    to.copy_from_slice(all);
                } else {
                    for (y, v) in to.iter_mut().skip(word).step_by(words).zip(&*all) {
                        *y = *v;
                    }
                }
            }
            done += count;
        }
    }
}

impl NativeKernel for Int8Dequantize {
    type Signature = super::DequantizeArgs;

    fn new(spec: &KernelSpec, isa: Isa) -> Option<Self> {
        (Elem::of(spec, 1)? == Elem::Float).then_some(Self(isa))
    }

    fn fits(&self, args: &DequantizeArgs) -> bool {
        args.stored().fits(args.x, args.count)
    }

    fn pieces(&self, args: &DequantizeArgs, threads: usize) -> usize {
        pieces(args.count, args.count, threads)
    }

    unsafe fn run(
        &self,
        args: &DequantizeArgs,
        store: &Store<'_>,
        piece: usize,
        pieces: usize,
        scratch: &mut Scratch,
    ) {
        // SAFETY: nobody writes it.
        let x: &[i8] = unsafe { args.x.slice() };
        let isa = self.0;
        let fill = |first: usize, y: &mut [u32]| {
            // SAFETY: the processor supports the instruction set.
            unsafe { simd::run(isa, Floats { args, x, first, y }) }
        };
        // SAFETY: the piece owns the results.
        unsafe { (Sink { store }).fill(part(args.count, 16, piece, pieces), RUN, scratch, fill) }
    }
}

struct Floats<'a> {
    args: &'a DequantizeArgs,
    x: &'a [i8],
    first: usize,
    y: &'a mut [u32],
}

impl Job for Floats<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { args, x, first, y } = self;
        let DequantizeArgs { scale, zero, .. } = *args;
        let value = |x: i8| (scale * (i32::from(x) - zero) as f32).to_bits();
        args.stored().read(x, first, y, value);
    }
}

impl DequantizeArgs {
    fn stored(&self) -> Stored {
        Stored::new(self.channels, self.stride, self.inner)
    }
}
