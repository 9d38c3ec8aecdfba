//! Samples of images at given positions.

use crate::backend::cpu::args::{Bound, NativeKernel, Scratch, Store, dtype, part};
use crate::backend::cpu::isa::Isa;
use crate::backend::kernel::KernelSpec;
use crate::kernels::cpu::moves::{Sink, pieces};
use crate::tensor::DType;
use crate::tensor::resample::{Padding, Sampler, cubic};

type Args = super::Args<Bound>;

/// `y[n, c, i]` is `x[n, c]` at the position `grid[n, i]`, interpolated among some elements
/// along each axis.
pub struct GridSample(Sampler);

/// Positions that are sampled together.
const BLOCK: usize = 64;
/// Largest number of neighbours of a position.
const MOST: usize = 16;
/// A neighbour outside of the input, which counts as 0.
const OUTSIDE: usize = usize::MAX;

impl NativeKernel for GridSample {
    type Signature = super::Args;

    fn new(spec: &KernelSpec, _: Isa) -> Option<Self> {
        let floats = (0..3).all(|i| dtype(spec, i) == Some(DType::F32));
        let has = |name| spec.defines.contains_key(name);
        let padding = if has(super::BORDER) {
            Padding::Border
        } else if has(super::REFLECTION) {
            Padding::Reflection
        } else {
            Padding::Zeros
        };
        let taps = usize::try_from(*spec.defines.get(super::TAPS)?).ok()?;
        let corners = has(super::CORNERS);
        (floats && matches!(taps, 1 | 2 | 4)).then_some(Self(Sampler {
            taps,
            padding,
            corners,
        }))
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        let blocks = args.count / (args.channels * BLOCK).max(1);
        pieces(4 * args.count * self.0.taps, blocks, threads)
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, piece: usize, pieces: usize, _: &mut Scratch) {
        let Args {
            count,
            places,
            channels,
            in_h,
            in_w,
            ..
        } = *args;
        let area = in_h * in_w;
        if count == 0 || area == 0 || places == 0 || channels == 0 {
            return;
        }
        // SAFETY: nobody writes the operands.
        let (x, grid) = unsafe { (args.x.slice::<f32>(), args.grid.slice::<f32>()) };
        let sink = Sink { store };
        let per_image = places.div_ceil(BLOCK);
        let images = count / channels / places;
        let side = self.0.taps;
        let square = side * side;
        let cubic = |x: f32, low: f32, i: f32| cubic(-0.75, (x - (low + i)).abs());
        let mut taps = [[(OUTSIDE, 0.0f32); MOST]; BLOCK];
        for block in part(images * per_image, 1, piece, pieces) {
            let (image, from) = (block / per_image, block % per_image * BLOCK);
            let n = BLOCK.min(places - from);
            let grid = &grid[2 * (image * places + from)..2 * (image * places + from + n)];
            for (taps, at) in taps.iter_mut().zip(grid.chunks_exact(2)) {
                let rows = self.0.neighbours(at[1], in_h, cubic);
                let cols = self.0.neighbours(at[0], in_w, cubic);
                for (i, tap) in taps[..square].iter_mut().enumerate() {
                    let ((row, u), (col, w)) = (rows[i / side], cols[i % side]);
                    let at = row.zip(col).map_or(OUTSIDE, |(row, col)| row * in_w + col);
                    *tap = (at, u * w);
                }
            }
            for channel in 0..channels {
                let plane = image * channels + channel;
                let x = &x[plane * area..(plane + 1) * area];
                let mut values = [0u32; BLOCK];
                for (value, taps) in values.iter_mut().zip(&taps[..n]) {
                    let each = taps[..square]
                        .iter()
                        .map(|(at, w)| x.get(*at).map_or(0.0, |v| v * w));
                    *value = each.sum::<f32>().to_bits();
                }
                // SAFETY: the piece owns these positions of all channels.
                unsafe { sink.put(plane * places + from, &mut values[..n]) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::GridSample;
    use crate::kernels::cpu::moves::check::{Given, blank, expect, floats};

    fn run(defines: &[(&'static str, i64)], x: &[f32], grid: &[f32], sizes: [usize; 5], want: Vec<f32>) {
        let [images, channels, h, w, places] = sizes;
        let params = [images * channels * places, places, channels, h, w].map(|n| n as u32);
        let want = Given::F(want);
        let operands = [Given::F(x.to_vec()), Given::F(grid.to_vec()), blank(&want)];
        expect::<GridSample>(defines, &params, &operands, &[want], 1e-5);
    }

    /// The sample of an image of h x w at (gx, gy), as the kernel's definition says.
    fn sample(x: &[f32], [h, w]: [i32; 2], [gx, gy]: [f32; 2], [taps, padding, corners]: [i64; 3]) -> f32 {
        let position = |v: f32, n: i32| {
            let n = n as f32;
            let x = if corners == 1 {
                (v + 1.0) / 2.0 * (n - 1.0)
            } else {
                ((v + 1.0) * n - 1.0) / 2.0
            };
            if taps == 4 { x } else { pad(x, n, padding, corners) }
        };
        fn pad(mut x: f32, n: f32, padding: i64, corners: i64) -> f32 {
            let (low, high) = if corners == 1 {
                (0.0, n - 1.0)
            } else {
                (-0.5, n - 0.5)
            };
            match padding {
                0 => x,
                1 => x.clamp(0.0, n - 1.0),
                _ if high <= low => 0.0,
                _ => {
                    while x < low || x > high {
                        x = if x < low { 2.0 * low - x } else { 2.0 * high - x };
                    }
                    x.clamp(0.0, n - 1.0)
                }
            }
        }
        let axis = |v: f32, n: i32| -> Vec<(i32, f32)> {
            let p = position(v, n);
            let low = p.floor();
            let list: Vec<(f32, f32)> = match taps {
                1 => vec![(p.round_ties_even(), 1.0)],
                2 => vec![(low, 1.0 - (p - low)), (low + 1.0, p - low)],
                _ => (-1..3)
                    .map(|i| (low + i as f32, super::cubic(-0.75, (p - low - i as f32).abs())))
                    .collect(),
            };
            list.into_iter()
                .map(|(i, w)| (pad(i, n as f32, padding, corners).round() as i32, w))
                .collect()
        };
        let mut sum = 0.0;
        for (r, u) in axis(gy, h) {
            for (c, v) in axis(gx, w) {
                if (0..h).contains(&r) && (0..w).contains(&c) {
                    sum += u * v * x[(r * w + c) as usize];
                }
            }
        }
        sum
    }

    #[test]
    fn samples_match_in_all_modes() {
        for sizes in [
            [2, 3, 5, 4, 150],
            [1, 1, 1, 7, 5],
            [1, 2, 3, 1, 64],
            [0, 1, 3, 3, 5],
        ] {
            let [images, channels, h, w, places] = sizes;
            let x = floats(images * channels * h * w, 1);
            let grid: Vec<f32> = floats(images * places * 2, 2).iter().map(|v| v * 1.7).collect();
            for (taps, padding, corners) in [1, 2, 4]
                .into_iter()
                .flat_map(|t| (0..3).flat_map(move |p| (0..2).map(move |c| (t, p, c))))
            {
                let mut defines = vec![("TAPS", taps)];
                defines.extend((padding == 1).then_some(("BORDER", 1)));
                defines.extend((padding == 2).then_some(("REFLECTION", 1)));
                defines.extend((corners == 1).then_some(("CORNERS", 1)));
                let mut want = Vec::new();
                for (plane, i) in (0..images * channels).flat_map(|p| (0..places).map(move |i| (p, i))) {
                    let x = &x[plane * h * w..(plane + 1) * h * w];
                    let at = 2 * (plane / channels * places + i);
                    let kind = [taps, padding, corners];
                    want.push(sample(x, [h as i32, w as i32], [grid[at], grid[at + 1]], kind));
                }
                run(&defines, &x, &grid, sizes, want);
            }
        }
    }

    #[test]
    fn positions_that_are_no_numbers_are_outside() {
        let grid = [
            f32::NAN,
            0.0,
            f32::INFINITY,
            0.0,
            0.0,
            f32::NEG_INFINITY,
            0.0,
            0.0,
        ];
        run(
            &[("TAPS", 1)],
            &[5.0; 9],
            &grid,
            [1, 1, 3, 3, 4],
            vec![0.0, 0.0, 0.0, 5.0],
        );
    }
}
