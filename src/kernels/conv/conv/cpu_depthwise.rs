//! Convolution with one input channel in each group.
//!
//! Bands of rows are copied to scratch with their padding. Elements are separated by their position
//! modulo the strides, so that one tap of neighbouring windows is a contiguous vector. Weights are
//! `Pack::Plain`.

use crate::backend::cpu::args::{Bound, NativeKernel, Piece, Scratch, Store, UNBOUNDED, product};
use crate::backend::cpu::isa::Isa;
use crate::backend::cpu::simd::{self, Job, Simd};
use crate::backend::kernel::KernelSpec;
use crate::kernels::cpu::gemm;
use crate::kernels::cpu::window::{Line, Window};

type Args = super::DepthwiseArgs<Bound>;

/// Elements of a band, which stays in the L1 cache.
const BAND: usize = 4 << 10;

pub struct ConvDepthwise {
    isa: Isa,
    window: Window,
}

impl NativeKernel for ConvDepthwise {
    type Signature = super::DepthwiseArgs;

    fn new(spec: &KernelSpec, isa: Isa) -> Option<Self> {
        let window = Window::of_floats(spec)?;
        Some(Self { isa, window })
    }

    fn fits(&self, args: &Args) -> bool {
        let planes = product(&[args.images, args.channels]);
        let windows = product(&[planes, args.rows, args.out_h, args.out_w]);
        let outputs = product(&[args.channels, args.rows]);
        windows == 0
            || u32::try_from(product(&self.band(args))).is_ok()
                && args.x.holds::<f32>(product(&[planes, args.in_h, args.in_w]))
                && args.w.holds::<f32>(product(&[outputs, self.window.taps()]))
                && args.bias.is_none_or(|b| b.holds::<f32>(outputs))
                && args.y.holds::<f32>(windows)
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        let windows = args.images * args.channels * args.out_h * args.out_w;
        let work = windows.saturating_mul(args.rows * (self.window.taps() + 2));
        // Loads limit the speed, not multiply-adds.
        let pieces = gemm::pieces(work.saturating_mul(4), threads);
        pieces.min(args.images * args.channels).max(1)
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, piece: usize, pieces: usize, scratch: &mut Scratch) {
        // SAFETY: the processor supports the instruction set.
        unsafe { simd::run(self.isa, Piece::new(self, args, store, piece, pieces, scratch)) }
    }
}

/// Elements by which a window reaches beyond the first one of its phase.
fn reach(line: Line) -> usize {
    line.reach() / line.stride
}

impl ConvDepthwise {
    /// Phases of a band, their rows and the elements of a row. There are results.
    fn band(&self, args: &Args) -> [usize; 3] {
        let (high, wide) = (self.window.rows, self.window.columns);
        let phases = product(&[high.stride, wide.stride]);
        let length = args.out_w.saturating_add(reach(wide));
        let rows = (BAND / product(&[phases, length])).saturating_sub(reach(high));
        let height = rows.clamp(1, args.out_h).saturating_add(reach(high));
        [phases, height, length]
    }
}

/// Rows of a plane with their padding. A *phase* holds the elements whose positions have the same
/// remainders modulo the strides: a matrix of `height` rows of `length` elements. In a phase, the
/// elements of a tap of neighbouring windows are adjacent, and windows of all rows form one run.
struct Band<'a> {
    args: &'a Args,
    window: Window,
    height: usize,
    length: usize,
    /// True if the band is the whole plane.
    is_plane: bool,
    space: &'a mut [f32],
}

/// Vectors of results that are computed together.
const VECTORS: usize = 4;

impl Job for Piece<'_, ConvDepthwise> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (args, window, store) = (self.args, self.kernel.window, self.store);
        let (taps, windows) = (window.taps(), args.out_h * args.out_w);
        let planes = self.part(args.images * args.channels, 1);
        if planes.is_empty() || args.rows * windows == 0 {
            return;
        }
        let [phases, height, length] = self.kernel.band(args);
        let (rows, slack) = (height - reach(window.rows), VECTORS * S::LANES);
        // The last vectors of the last tap end beyond the phases.
        let sizes = [
            phases * height * length + reach(window.columns) + slack,
            S::LANES + rows * length + slack,
        ];
        let (offsets, rest) = self.scratch.floats(taps + sizes[0] + sizes[1]).split_at_mut(taps);
        let (space, sums) = rest.split_at_mut(sizes[0]);
        let offsets = bytemuck::cast_slice_mut::<f32, u32>(offsets);
        places(window, height, length, offsets);
        let clamp = store.clamp().filter(|b| *b != UNBOUNDED);
        space.fill(0.0);
        let mut band = Band {
            args,
            window,
            height,
            length,
            is_plane: rows == args.out_h,
            space,
        };
        for plane in planes {
            let mut first = 0;
            while first < args.out_h {
                let rows = rows.min(args.out_h - first);
                unsafe { band.fill::<S>(plane, first) };
                for r in 0..args.rows {
                    let m = plane % args.channels * args.rows + r;
                    // SAFETY: weights and bias of the channel; results of this piece.
                    unsafe {
                        let bias = args.bias.map_or(0.0, |b| *b.as_ptr::<f32>().add(m));
                        let w = args.w.as_ptr::<f32>().add(m * taps);
                        let (from, count) = (band.space.as_ptr(), rows * length);
                        let to = sums.as_mut_ptr().add(S::LANES);
                        match taps {
                            9 => windows_of::<S, 9>(from, offsets, w, bias, clamp, count, to),
                            _ => windows_of::<S, 0>(from, offsets, w, bias, clamp, count, to),
                        }
                        let to = (plane * args.rows + r) * windows + first * args.out_w;
                        put::<S>(store, to, sums, [rows, args.out_w, length]);
                    }
                }
                first += rows;
            }
        }
    }
}

/// Writes the place of each tap of the first window, in phases of `height` rows of `length`
/// elements. All have places of 32 bits.
fn places(window: Window, height: usize, length: usize, to: &mut [u32]) {
    let (high, wide) = (window.rows, window.columns);
    for (tap, place) in to.iter_mut().enumerate() {
        let (dy, dx) = (
            tap / wide.kernel * high.dilation,
            tap % wide.kernel * wide.dilation,
        );
        let phase = dy % high.stride * wide.stride + dx % wide.stride;
        let at = (phase * height + dy / high.stride) * length + dx / wide.stride;
        *place = at as u32;
    }
}

impl Band<'_> {
    /// Copies the rows of plane `plane` for the windows from row `first` on. Columns of padding are
    /// already zero.
    #[inline(always)]
    unsafe fn fill<S: Simd>(&mut self, plane: usize, first: usize) {
        let (args, height, length) = (self.args, self.height, self.length);
        // The taps of such windows are the phases.
        let [high, wide] = [self.window.rows, self.window.columns].map(|line| Line { dilation: 1, ..line });
        for q in 0..high.stride * wide.stride {
            let (qy, qx) = (q / wide.stride, q % wide.stride);
            let columns = wide.inside(qx, args.pad_w, args.in_w, length);
            let from = wide.element(columns.start, qx, args.pad_w);
            for i in 0..height {
                let at = (q * height + i) * length;
                let y = high.get(first + i, qy, args.pad_h, args.in_h);
                if let Some(y) = y.filter(|_| !columns.is_empty()) {
                    // SAFETY: the elements are inside a row of x and inside the row of the phase.
                    unsafe {
                        let row = (plane * args.in_h + y) * args.in_w;
                        let x = args.x.as_ptr::<f32>().add(row).offset(from);
                        let to = self.space.as_mut_ptr().add(at + columns.start);
                        pick::<S>(x, to, columns.len(), wide.stride);
                    }
                } else if !self.is_plane {
                    // If the band is the whole plane, these rows stay zero.
                    self.space[at..at + length].fill(0.0);
                }
            }
        }
    }
}

/// Copies `count` elements that are `stride` apart.
#[inline(always)]
unsafe fn pick<S: Simd>(from: *const f32, to: *mut f32, count: usize, stride: usize) {
    let mut i = 0;
    unsafe {
        match stride {
            1 if count >= S::LANES => {
                while i < count {
                    let at = i.min(count - S::LANES);
                    S::store(to.add(at), S::load(from.add(at)));
                    i += S::LANES;
                }
            }
            2 if count > 8 => {
                // The second element of the last pair may not exist.
                let pairs = count - 1;
                while i < pairs {
                    let at = i.min(pairs - 8);
                    let values = from.add(2 * at).cast::<[[f32; 2]; 8]>().read_unaligned();
                    to.add(at)
                        .cast::<[f32; 8]>()
                        .write_unaligned(values.map(|[v, _]| v));
                    i += 8;
                }
                i = pairs;
            }
            _ => {}
        }
        while i < count {
            *to.add(i) = *from.add(i * stride);
            i += 1;
        }
    }
}

/// Sums of `count` windows, rounded up to [`VECTORS`] vectors. `offsets` are those of the taps. If
/// `T` is not 0, it is the number of taps.
#[inline(always)]
unsafe fn windows_of<S: Simd, const T: usize>(
    from: *const f32,
    offsets: &[u32],
    weights: *const f32,
    bias: f32,
    clamp: Option<[f32; 2]>,
    count: usize,
    to: *mut f32,
) {
    let taps = if T > 0 { T } else { offsets.len() };
    let offsets = offsets.as_ptr();
    unsafe {
        let mut known = [S::splat(0.0); T];
        for (tap, w) in known.iter_mut().enumerate() {
            *w = S::splat(*weights.add(tap));
        }
        let mut i = 0;
        while i < count {
            let mut sums = [S::splat(bias); VECTORS];
            for tap in 0..taps {
                let w = match known.get(tap) {
                    Some(w) => *w,
                    None => S::splat(*weights.add(tap)),
                };
                let from = from.add(i + *offsets.add(tap) as usize);
                for (v, sum) in sums.iter_mut().enumerate() {
                    *sum = S::fma(S::load(from.add(v * S::LANES)), w, *sum);
                }
            }
            if let Some(bounds) = clamp {
                for sum in &mut sums {
                    *sum = simd::clamp::<S>(*sum, bounds);
                }
            }
            for (v, sum) in sums.iter().enumerate() {
                S::store(to.add(i + v * S::LANES), *sum);
            }
            i += VECTORS * S::LANES;
        }
    }
}

/// Stores `rows` rows of `count` sums. Rows are `length` apart and start at the second vector of
/// `sums`.
/// # Safety
/// As for [`Simd`]; the caller owns the results.
#[inline(always)]
unsafe fn put<S: Simd>(store: &Store<'_>, first: usize, sums: &mut [f32], [rows, count, length]: [usize; 3]) {
    let space = sums.as_mut_ptr();
    let direct = store.clamp().is_some();
    // SAFETY: results of the caller, or sums before those that are read next.
    let to = unsafe {
        if direct {
            store.y.as_ptr::<f32>().add(first)
        } else {
            space
        }
    };
    for row in 0..rows {
        let mut i = 0;
        // SAFETY: as above. All rows but the last may write into the next, which is stored later.
        unsafe {
            let (from, to) = (space.add(S::LANES + row * length), to.add(row * count));
            while i + S::LANES <= count || i < count && row + 1 < rows && count - i + count >= S::LANES {
                S::store(to.add(i), S::load(from.add(i)));
                i += S::LANES;
            }
            while i < count {
                *to.add(i) = *from.add(i);
                i += 1;
            }
        }
    }
    if !direct {
        // SAFETY: results of the caller.
        unsafe { store.put(first, &sums[..rows * count], None) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::cpu::testing::{self, Case, Conv};
    use crate::tensor::DType;

    #[test]
    fn depthwise_convolutions_match() {
        for (i, c) in Conv::cases().iter().filter(|c| c.channels == 1).enumerate() {
            let (x, w, bias) = c.data(i as u64);
            let words = [
                c.images,
                c.groups,
                c.rows,
                c.size[0],
                c.size[1],
                c.out(0),
                c.out(1),
            ];
            let mut words: Vec<u32> = words.iter().map(|v| *v as u32).collect();
            words.extend(c.pads.map(i32::cast_unsigned));
            let case = Case::<ConvDepthwise> {
                words,
                operands: vec![
                    Some((DType::F32, testing::memory(&x))),
                    Some((DType::F32, testing::memory(&w))),
                    bias.as_ref().map(|b| (DType::F32, testing::memory(b))),
                ],
                defines: c.defines(),
                kernel: std::marker::PhantomData,
            };
            case.check(&c.reference(&x, &w, bias.as_deref()), 1e-5, &format!("{c:?}"));
        }
    }
}
