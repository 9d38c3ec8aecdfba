//! Samples of images at given positions.

use crate::backend::cpu::args::{Bound, Kernel, Scratch, Store, dtype, part};
use crate::backend::cpu::isa::Isa;
use crate::backend::kernel::KernelSpec;
use crate::kernels::cpu::moves::{Sink, pieces};
use crate::tensor::DType;

type Args = super::Args<Bound>;

/// How positions outside the input are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Padding {
    Zeros,
    Border,
    Reflection,
}

/// `y[n, c, i]` is `x[n, c]` at the position `grid[n, i]`, interpolated among `taps` elements along
/// each axis.
pub struct GridSample {
    taps: usize,
    padding: Padding,
    corners: bool,
}

/// Positions that are sampled together.
const BLOCK: usize = 64;
/// Largest number of neighbours of a position.
const MOST: usize = 16;
/// A neighbour outside of the input, which counts as 0.
const OUTSIDE: usize = usize::MAX;

/// The weight of an element at distance `d` in cubic interpolation.
fn cubic(d: f32) -> f32 {
    let a = -0.75;
    if d <= 1.0 {
        ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0
    } else if d < 2.0 {
        ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a
    } else {
        0.0
    }
}

impl GridSample {
    /// Mirrors `x` at the centers or borders of the outermost of `n` elements until it is inside.
    fn reflect(&self, x: f32, n: f32) -> f32 {
        let (low, high) = if self.corners {
            (0.0, n - 1.0)
        } else {
            (-0.5, n - 0.5)
        };
        let span = high - low;
        if span <= 0.0 {
            return 0.0;
        }
        let at = (x - low).rem_euclid(2.0 * span);
        (low + at.min(2.0 * span - at)).clamp(0.0, n - 1.0)
    }

    /// Neighbours of the coordinate `v` along an axis of `size` elements, and their weights.
    fn neighbours(&self, v: f32, size: usize) -> [(usize, f32); 4] {
        let n = size as f32;
        let mut x = if self.corners {
            (v + 1.0) / 2.0 * (n - 1.0)
        } else {
            ((v + 1.0) * n - 1.0) / 2.0
        };
        if !x.is_finite() {
            x = -2.0;
        }
        // Cubic interpolation applies padding to each neighbour, other modes to the position.
        if self.taps != 4 {
            x = match self.padding {
                Padding::Zeros => x.clamp(-2.0, n + 1.0),
                Padding::Border => x.clamp(0.0, n - 1.0),
                Padding::Reflection => self.reflect(x, n),
            };
        }
        let low = x.floor();
        let all: [(f32, f32); 4] = match self.taps {
            1 => [(x.round_ties_even(), 1.0), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0)],
            2 => [
                (low, 1.0 - (x - low)),
                (low + 1.0, x - low),
                (0.0, 0.0),
                (0.0, 0.0),
            ],
            _ => std::array::from_fn(|i| {
                let at = low + i as f32 - 1.0;
                (at, cubic((x - at).abs()))
            }),
        };
        all.map(|(at, weight)| {
            let at = match self.padding {
                Padding::Zeros => at,
                Padding::Border => at.clamp(0.0, n - 1.0),
                Padding::Reflection => self.reflect(at, n).round(),
            };
            let inside = at >= 0.0 && at < n;
            (if inside { at as usize } else { OUTSIDE }, weight)
        })
    }
}

impl Kernel for GridSample {
    type Signature = super::Args;

    fn new(spec: &KernelSpec, _: Isa) -> Option<Self> {
        let floats = (0..3).all(|i| dtype(spec, i) == Some(DType::F32));
        let has = |name| spec.defines.contains_key(name);
        let padding = if has("BORDER") {
            Padding::Border
        } else if has("REFLECTION") {
            Padding::Reflection
        } else {
            Padding::Zeros
        };
        let taps = usize::try_from(*spec.defines.get("TAPS")?).ok()?;
        (floats && matches!(taps, 1 | 2 | 4)).then(|| Self {
            taps,
            padding,
            corners: has("CORNERS"),
        })
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        let blocks = args.count / (args.channels * BLOCK).max(1);
        pieces(4 * args.count * self.taps, blocks, threads)
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
        let square = self.taps * self.taps;
        let mut taps = [[(OUTSIDE, 0.0f32); MOST]; BLOCK];
        for block in part(images * per_image, 1, piece, pieces) {
            let (image, from) = (block / per_image, block % per_image * BLOCK);
            let n = BLOCK.min(places - from);
            let grid = &grid[2 * (image * places + from)..2 * (image * places + from + n)];
            for (taps, at) in taps.iter_mut().zip(grid.chunks_exact(2)) {
                let (rows, cols) = (self.neighbours(at[1], in_h), self.neighbours(at[0], in_w));
                for (i, tap) in taps[..square].iter_mut().enumerate() {
                    let ((row, u), (col, w)) = (rows[i / self.taps], cols[i % self.taps]);
                    let outside = row == OUTSIDE || col == OUTSIDE;
                    *tap = (if outside { OUTSIDE } else { row * in_w + col }, u * w);
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
                    .map(|i| (low + i as f32, super::cubic((p - low - i as f32).abs())))
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
