//! Convolution and transposed convolution, in a plain form. There are faster kernels for
//! convolution with constant weights.

use crate::backend::cpu::args::{Bound, NativeKernel, Piece, Scratch, Store, dtype, product, reach};
use crate::backend::cpu::isa::Isa;
use crate::backend::cpu::simd::{self, Job, Simd};
use crate::backend::kernel::KernelSpec;
use crate::kernels::cpu::gemm;
use crate::kernels::cpu::window::{Line, Window};
use crate::tensor::DType;
use bytemuck::Pod;

type Args = super::Args<Bound>;

/// An element: `f32`, or `i32` whose sums wrap.
trait Number: Pod {
    const ZERO: Self;
    /// `self + w * x`.
    fn plus(self, w: Self, x: Self) -> Self;
}

impl Number for f32 {
    const ZERO: Self = 0.0;
    #[inline(always)]
    fn plus(self, w: Self, x: Self) -> Self {
        self + w * x
    }
}

impl Number for i32 {
    const ZERO: Self = 0;
    #[inline(always)]
    fn plus(self, w: Self, x: Self) -> Self {
        self.wrapping_add(w.wrapping_mul(x))
    }
}

pub struct Conv {
    isa: Isa,
    /// Elements are `i32`.
    integers: bool,
    window: Window,
    /// Weights have the order input channels, output channels, taps; else output channels are
    /// outermost.
    transposed: bool,
    /// Output channels of a tile.
    tile: usize,
}

impl NativeKernel for Conv {
    type Signature = super::Args;

    fn new(spec: &KernelSpec, isa: Isa) -> Option<Self> {
        let is_set = |name| spec.defines.get(name).is_some_and(|v| *v != 0);
        if is_set(super::PACKED) {
            return None;
        }
        let tile = usize::try_from(*spec.defines.get(super::TILE)?).ok()?.max(1);
        let integers = dtype(spec, 0) == Some(DType::I32);
        let same = (0..3).all(|i| dtype(spec, i).is_none_or(|d| d == DType::I32));
        Some(Self {
            isa,
            integers,
            window: match integers {
                true => Window::of(spec).filter(|_| same)?,
                false => Window::of_floats(spec)?,
            },
            transposed: is_set(super::TRANSPOSED),
            tile,
        })
    }

    fn fits(&self, args: &Args) -> bool {
        let Args {
            channels,
            rows,
            parts,
            ..
        } = *args;
        if args.total < 0 || parts == 0 || images(args) == 0 {
            return args.total >= 0;
        }
        // Groups up to the last one of this dispatch, and their output channels.
        let groups = (args.first.saturating_add(parts) - 1) / args.tiles.max(1) + 1;
        let outputs = product(&[groups, rows]);
        let weights = product(&[outputs, channels, self.window.taps()]);
        let planes = product(&[groups, channels, args.in_h, args.in_w]);
        args.x.holds::<f32>(reach(&[[images(args), args.image]], planes))
            && args.w.holds::<f32>(weights)
            && args.bias.is_none_or(|b| b.holds::<f32>(outputs))
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        let channels = images(args) * args.parts * self.tile;
        let terms = args.channels * self.window.taps();
        let plane = match self.transposed {
            true => args.in_h * args.in_w,
            false => args.out_h * args.out_w,
        };
        let work = channels.saturating_mul(plane).saturating_mul(terms);
        gemm::pieces(work.saturating_mul(8), threads).min(channels).max(1)
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, piece: usize, pieces: usize, scratch: &mut Scratch) {
        // SAFETY: the processor supports the instruction set.
        unsafe { simd::run(self.isa, Piece::new(self, args, store, piece, pieces, scratch)) }
    }
}

/// Images of `args.total` elements, which are not negative.
fn images(args: &Args) -> usize {
    args.total.unsigned_abs() as usize / args.image.max(1)
}

impl Job for Piece<'_, Conv> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the elements have this type.
        unsafe {
            match self.kernel.integers {
                true => self.channels::<i32>(),
                false => self.channels::<f32>(),
            }
        }
    }
}

impl Piece<'_, Conv> {
    /// # Safety
    /// As for [`Job::run`]; elements have type `T`.
    #[inline(always)]
    unsafe fn channels<T: Number>(self) {
        let (kernel, args, store) = (self.kernel, self.args, self.store);
        // Output channels of all images; the last tile may have some that do not exist.
        let channels = self.part(images(args) * args.parts * kernel.tile, 1);
        let each = args.parts * kernel.tile;
        let phases = Phases::new(kernel, args.out_w);
        let length = phases.count * phases.length;
        let (sums, line) = self.scratch.of::<T>(length + args.out_w).split_at_mut(length);
        for channel in channels {
            let (image, at) = (channel / each, channel % each);
            let (part, t) = (at / kernel.tile, at % kernel.tile);
            let (tile, tiles) = (args.first + part, args.tiles.max(1));
            let (group, row) = (tile / tiles, tile % tiles * kernel.tile + t);
            if row >= args.rows {
                continue;
            }
            let m = group * args.rows + row;
            let taps = kernel.window.taps();
            // The first weight.
            let start = match kernel.transposed {
                true => (group * args.channels * args.rows + row) * taps,
                false => m * args.channels * taps,
            };
            let x = image * args.image + group * args.channels * args.in_h * args.in_w;
            for oy in 0..args.out_h {
                // SAFETY: inside the operands, which fit.
                unsafe {
                    sums.fill(args.bias.map_or(T::ZERO, |b| *b.as_ptr::<T>().add(m)));
                    let w = args.w.as_ptr::<T>().add(start);
                    let x = args.x.as_ptr::<T>().add(x);
                    kernel.row(args, oy, x, w, phases, sums);
                    let first = ((image * args.outputs + m) * args.out_h + oy) * args.out_w;
                    if phases.count == 1 {
                        store.put(first, sums, None);
                    } else {
                        phases.interleave(sums, line);
                        store.put(first, line, None);
                    }
                }
            }
        }
    }
}

impl Conv {
    /// Adds the terms of row `oy` of results.
    /// # Safety
    /// `x` is the first input channel of the group, and `w` the first weight of the output channel.
    #[inline(always)]
    unsafe fn row<T: Number>(
        &self,
        args: &Args,
        oy: usize,
        x: *const T,
        w: *const T,
        phases: Phases,
        sums: &mut [T],
    ) {
        let Window { rows, columns } = self.window;
        // The distance between weights of input channels.
        let step = if self.transposed { args.rows } else { 1 } * self.window.taps();
        for ky in 0..rows.kernel {
            let Some(iy) = self.input_row(args, oy, ky) else {
                continue;
            };
            for kx in 0..columns.kernel {
                for channel in 0..args.channels {
                    // SAFETY: inside the operands.
                    let (x, w) = unsafe {
                        let x = x.add((channel * args.in_h + iy) * args.in_w);
                        let tap = ky * columns.kernel + kx;
                        (
                            std::slice::from_raw_parts(x, args.in_w),
                            *w.add(channel * step + tap),
                        )
                    };
                    if self.transposed {
                        phases.spread([kx, args.out_w], columns, args.pad_w, x, w, sums);
                    } else {
                        columns.along(kx, args.pad_w, x, sums, |s: T, x| s.plus(w, x));
                    }
                }
            }
        }
    }

    /// The row of x that tap row `ky` multiplies for row `oy` of the results.
    fn input_row(&self, args: &Args, oy: usize, ky: usize) -> Option<usize> {
        let rows = self.window.rows;
        if !self.transposed {
            return rows.get(oy, ky, args.pad_h, args.in_h);
        }
        let at = usize::try_from(oy.cast_signed() - rows.element(0, ky, args.pad_h)).ok()?;
        let row = at.is_multiple_of(rows.stride).then_some(at / rows.stride)?;
        (row < args.in_h).then_some(row)
    }
}

/// How the sums of a row lie in memory: those of a transposed convolution by their position modulo
/// the stride, so that the neighbours that a tap reaches are adjacent.
#[derive(Clone, Copy)]
struct Phases {
    count: usize,
    /// Sums of a phase.
    length: usize,
}

impl Phases {
    fn new(kernel: &Conv, out: usize) -> Self {
        let stride = kernel.window.columns.stride;
        let count = if kernel.transposed {
            stride.min(out.max(1))
        } else {
            1
        };
        Self {
            count,
            length: out.div_ceil(count),
        }
    }

    /// Adds `w` times a row to the results, of `out`, that tap `tap` of a transposed convolution
    /// reaches.
    #[inline(always)]
    fn spread<T: Number>(self, [tap, out]: [usize; 2], line: Line, pad: i32, x: &[T], w: T, sums: &mut [T]) {
        let inside = line.inside(tap, pad, out, x.len());
        let first = line.element(inside.start, tap, pad).max(0).cast_unsigned();
        let at = first % line.stride * self.length + first / line.stride;
        let (Some(x), Some(sums)) = (x.get(inside), sums.get_mut(at..)) else {
            return;
        };
        sums.iter_mut().zip(x).for_each(|(s, x)| *s = s.plus(w, *x));
    }

    /// Brings the sums of a row in order.
    #[inline(always)]
    fn interleave<T: Number>(self, sums: &[T], row: &mut [T]) {
        for (phase, sums) in sums.chunks_exact(self.length.max(1)).enumerate() {
            let to = &mut row[phase..];
            to.iter_mut()
                .step_by(self.count)
                .zip(sums)
                .for_each(|(y, sum)| *y = *sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::cpu::testing::{self, Case};

    fn words(c: &testing::Conv, tile: usize, size: [usize; 2], out: [usize; 2], channels: usize) -> Vec<u32> {
        let tiles = c.rows.div_ceil(tile);
        let image = c.groups * channels * size[0] * size[1];
        let words = [
            size[0],
            size[1],
            out[0],
            out[1],
            channels,
            c.rows,
            c.groups * c.rows,
        ];
        let more = [tiles, 0, tiles * c.groups, image, c.images * image];
        let words = words.iter().chain(&more).map(|v| *v as u32);
        words.chain(c.pads.map(i32::cast_unsigned)).collect()
    }

    #[test]
    fn convolutions_match() {
        const TILE: usize = 4;
        for (i, c) in testing::Conv::cases().iter().enumerate() {
            let (x, w, bias) = c.data(i as u64);
            let want = c.reference(&x, &w, bias.as_deref());
            let mut defines = c.defines();
            defines.push(("TILE", TILE as i64));
            let case = Case::<Conv> {
                words: words(c, TILE, c.size, [c.out(0), c.out(1)], c.channels),
                operands: vec![
                    Some((DType::F32, testing::memory(&x))),
                    Some((DType::F32, testing::memory(&w))),
                    bias.as_ref().map(|b| (DType::F32, testing::memory(b))),
                ],
                defines,
                kernel: std::marker::PhantomData,
            };
            case.check(&want, 1e-5, &format!("{c:?}"));
        }
    }

    #[test]
    fn transposed_convolutions_match() {
        for (i, c) in testing::Conv::cases().iter().enumerate() {
            // The transposed convolution maps the results of `c` back to its input.
            let (size, out) = ([c.out(0), c.out(1)], c.size);
            let channels = 3;
            let c = testing::Conv { channels, ..*c };
            let count = c.images * c.groups * channels * size[0] * size[1];
            let x = testing::floats(7 + i as u64, count);
            let w = testing::floats(99 + i as u64, c.groups * channels * c.rows * c.taps());
            let mut want = vec![0f64; c.images * c.groups * c.rows * out[0] * out[1]];
            for (at, x) in x.iter().enumerate() {
                let (ix, iy) = (at % size[1], at / size[1] % size[0]);
                let channel = at / size[1] / size[0];
                let (group, image) = (channel / channels % c.groups, channel / channels / c.groups);
                for r in 0..c.rows {
                    for tap in 0..c.taps() {
                        let (ky, kx) = (tap / c.kernel[1], tap % c.kernel[1]);
                        let to = |i: usize, k: usize, a: usize| {
                            (i * c.strides[a] + k * c.dilations[a]) as i32 - c.pads[a]
                        };
                        let (oy, ox) = (to(iy, ky, 0), to(ix, kx, 1));
                        if (0..out[0] as i32).contains(&oy) && (0..out[1] as i32).contains(&ox) {
                            let m = (image * c.groups + group) * c.rows + r;
                            let w = w[(channel % (channels * c.groups) * c.rows + r) * c.taps() + tap];
                            let y = (m * out[0] + oy as usize) * out[1] + ox as usize;
                            want[y] += f64::from(*x) * f64::from(w);
                        }
                    }
                }
            }
            let mut defines = c.defines();
            defines.extend([("TILE", 4), ("TRANSPOSED", 1)]);
            let case = Case::<Conv> {
                words: words(&c, 4, size, out, channels),
                operands: vec![
                    Some((DType::F32, testing::memory(&x))),
                    Some((DType::F32, testing::memory(&w))),
                    None,
                ],
                defines,
                kernel: std::marker::PhantomData,
            };
            case.check(&want, 1e-5, &format!("{c:?}"));
        }
    }
}
