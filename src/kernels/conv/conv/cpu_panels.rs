//! Convolution with constant weights, as a matmul of weights and gathered windows.
//!
//! For each image and group: `y[rows, windows] = w[rows, depth] * x[depth, windows] + bias`, where
//! `depth` runs over input channels and taps. Windows are gathered into panels of 16. Weights are
//! packed at load as `Pack::Tiles` with tiles of [`TILE`] output channels of a group.

use crate::backend::cpu::args::{Bound, NativeKernel, Piece, Scratch, Store, part, product};
use crate::backend::cpu::isa::Isa;
use crate::backend::cpu::simd::{self, Job, Simd};
use crate::backend::kernel::KernelSpec;
use crate::kernels::cpu::gemm::{self, COLUMNS, PANEL, Panels, Product, Results, Right, TILE, Tiles};
use crate::kernels::cpu::window::Window;
use std::ops::Range;

type Args = super::PanelArgs<Bound>;

/// Sums of a block, which stay in the L2 cache.
const SUMS: usize = 1 << 16;
/// The smallest piece, in panels of windows and tiles of output channels.
const PART: [usize; 2] = [3, 4];

pub struct ConvPanels {
    isa: Isa,
    window: Window,
}

impl NativeKernel for ConvPanels {
    type Signature = super::PanelArgs;

    fn new(spec: &KernelSpec, isa: Isa) -> Option<Self> {
        let window = Window::of_floats(spec)?;
        Some(Self { isa, window })
    }

    fn fits(&self, args: &Args) -> bool {
        let Args {
            images,
            groups,
            channels,
            rows,
            ..
        } = *args;
        let windows = product(&[images, groups, rows, args.out_h, args.out_w]);
        let tiles = product(&[groups, rows.div_ceil(TILE), TILE]);
        windows == 0
            || args
                .x
                .holds::<f32>(product(&[images, groups, channels, args.in_h, args.in_w]))
                && args
                    .w
                    .holds::<f32>(product(&[tiles, channels, self.window.taps()]))
                && args.bias.is_none_or(|b| b.holds::<f32>(product(&[groups, rows])))
                && args.y.holds::<f32>(windows)
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        let windows = args.images * args.groups * args.out_h * args.out_w;
        let work = windows.saturating_mul(args.rows * args.channels * self.window.taps());
        let (across, down) = grid(args, gemm::pieces(work, threads));
        across * down
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, piece: usize, pieces: usize, scratch: &mut Scratch) {
        // SAFETY: the processor supports the instruction set.
        unsafe { simd::run(self.isa, Piece::new(self, args, store, piece, pieces, scratch)) }
    }
}

/// Panels of an image and group.
const fn panels(args: &Args) -> usize {
    (args.out_h * args.out_w).div_ceil(PANEL)
}

/// Into how many parts the panels of all images and groups, and the output channels, are cut.
fn grid(args: &Args, pieces: usize) -> (usize, usize) {
    let all = args.images * args.groups * panels(args);
    let across = pieces.clamp(1, all.div_ceil(PART[0]).max(1));
    let tiles = args.rows.div_ceil(TILE);
    (across, (pieces / across).clamp(1, tiles.div_ceil(PART[1]).max(1)))
}

impl Job for Piece<'_, ConvPanels> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (args, store, window, piece) = (self.args, self.store, self.kernel.window, self.piece);
        let (across, down) = grid(args, self.pieces);
        if piece >= across * down {
            return;
        }
        let rows = part(args.rows, 2 * TILE, piece / across, down);
        let (panels, windows) = (panels(args), args.out_h * args.out_w);
        let own = part(args.images * args.groups * panels, 1, piece % across, across);
        if rows.is_empty() || own.is_empty() {
            return;
        }
        let (taps, plane) = (window.taps(), args.in_h * args.in_w);
        let depth = args.channels * taps;
        let step = gemm::k_step(depth, taps);
        let most = SUMS / PANEL / rows.len().max(step);
        let most = most.clamp(1, COLUMNS / PANEL);
        let sums = gemm::sums(rows.len(), most * PANEL);
        let is_column = windows == 1 && plane == 1 && taps == 1;
        let room = if is_column {
            TILE * depth
        } else {
            step * most * PANEL
        };
        let (sums, space) = self.scratch.floats(sums + room).split_at_mut(sums);
        let tiles = args.rows.div_ceil(TILE) * depth * TILE;
        let mut panel = own.start;
        while panel < own.end {
            let (group, first) = (panel / panels, panel % panels);
            let count = most.min(panels - first).min(own.end - panel);
            let (column, end) = (first * PANEL, ((first + count) * PANEL).min(windows));
            let channel = group % args.groups * args.rows;
            // SAFETY: tiles of w, and elements of the bias, of this group.
            let (left, bias) = unsafe {
                let at = args
                    .w
                    .as_ptr::<f32>()
                    .add(group % args.groups * tiles + rows.start * depth);
                let bias = args.bias.map(|b| b.as_ptr::<f32>().add(channel + rows.start));
                (Tiles { at, depth }, bias)
            };
            let image = group / args.groups * args.groups * args.rows;
            let first = (image + channel + rows.start) * windows;
            let product = Product {
                left,
                rows: rows.len(),
                k: depth,
                step,
                bias: bias.map_or(std::ptr::null(), <*mut f32>::cast_const),
                y: Results {
                    store,
                    first,
                    stride: windows,
                },
            };
            let mut gather = Gather {
                args,
                window,
                start: group * args.channels * plane,
                first: column,
                count: end - column,
                space: &mut *space,
            };
            panel += count;
            if is_column {
                unsafe { gather.column::<S>(&product, &mut sums[..rows.len()]) };
                continue;
            }
            unsafe { product.columns::<S, _>(column, end - column, &mut gather, sums) };
        }
    }
}

/// Windows, which are the columns of a matrix.
struct Gather<'a> {
    args: &'a Args,
    window: Window,
    /// The first element of x of this image and group.
    start: usize,
    /// The first window.
    first: usize,
    count: usize,
    space: &'a mut [f32],
}

impl Right for Gather<'_> {
    type E = f32;
    #[inline(always)]
    unsafe fn panels<S: Simd>(&mut self, k: Range<usize>, panels: usize) -> Panels<f32> {
        let size = k.len() * PANEL;
        debug_assert!(panels * size <= self.space.len(), "space for {panels} panels");
        let taps = self.window.taps();
        let channels = k.start / taps..k.end / taps;
        let a = self.args;
        let is_plain = (self.window).is_plain([a.in_h, a.in_w], [a.out_h, a.out_w], [a.pad_h, a.pad_w]);
        // SAFETY: the space has these panels.
        unsafe {
            if is_plain {
                self.copy::<S>(channels, panels, size);
            } else if a.in_h * a.in_w == 0 {
                // There is only padding, and no element to read.
                self.space[..panels * size].fill(0.0);
            } else {
                for panel in 0..panels {
                    let to = self.space.as_mut_ptr().add(panel * size);
                    self.gather::<S>(channels.clone(), self.first + panel * PANEL, to);
                }
            }
        }
        Panels {
            at: self.space.as_ptr(),
            row: PANEL,
            panel: size,
        }
    }
}

/// The elements of one tap of 16 windows.
struct Tap {
    /// Offsets in the plane; 0 for windows whose tap is outside.
    offsets: [u32; PANEL],
    /// All bits set; none for windows whose tap is outside.
    masks: [u32; PANEL],
    /// The offset of the first window, possibly outside, if those of the others follow directly.
    run: Option<isize>,
    is_inside: bool,
}

impl Gather<'_> {
    /// Computes the only column of a product, whose terms are adjacent: tiles are read as vectors.
    ///
    /// # Safety
    ///
    /// As for [`Product::columns`].
    #[inline(always)]
    unsafe fn column<S: Simd>(&mut self, product: &Product<'_, Tiles>, sums: &mut [f32]) {
        const VECTORS: usize = 3;
        let (count, block) = (product.k * TILE, 2 * VECTORS * S::LANES);
        debug_assert!(block.is_multiple_of(2 * TILE), "whole terms");
        // SAFETY: x has a term for each channel; tiles are whole.
        unsafe {
            let x = self.args.x.as_ptr::<f32>().add(self.start);
            for (k, to) in self.space.chunks_exact_mut(TILE).enumerate() {
                to.fill(*x.add(k));
            }
            let x = self.space.as_ptr();
            for (tile, to) in sums.chunks_mut(TILE).enumerate() {
                let w = product.left.at.add(tile * count);
                let mut all = [S::splat(0.0); 2 * VECTORS];
                let mut i = 0;
                while i + block <= count {
                    for (v, sum) in all.iter_mut().enumerate() {
                        let at = i + v * S::LANES;
                        *sum = S::fma(S::load(w.add(at)), S::load(x.add(at)), *sum);
                    }
                    i += block;
                }
                let mut lanes = [0.0; VECTORS * 16];
                for v in 0..VECTORS {
                    S::store(
                        lanes.as_mut_ptr().add(v * S::LANES),
                        S::add(all[v], all[v + VECTORS]),
                    );
                }
                while i < count {
                    lanes[i % TILE] += *w.add(i) * *x.add(i);
                    i += 1;
                }
                for (r, y) in to.iter_mut().enumerate() {
                    let bias = product.bias_of(tile * TILE + r);
                    *y = lanes.iter().skip(r).step_by(TILE).fold(bias, |sum, v| sum + v);
                }
            }
            product.y.store.put(product.y.first, sums, None);
        }
    }

    /// Copies windows that are single elements.
    #[inline(always)]
    unsafe fn copy<S: Simd>(&mut self, channels: Range<usize>, panels: usize, size: usize) {
        let plane = self.args.in_h * self.args.in_w;
        let whole = self.count / PANEL;
        // SAFETY: the elements are inside x and inside the space.
        unsafe {
            let from = self.args.x.as_ptr::<f32>().add(self.start + self.first);
            let to = self.space.as_mut_ptr();
            for (i, channel) in channels.enumerate() {
                let (from, to) = (from.add(channel * plane), to.add(i * PANEL));
                for panel in 0..whole {
                    let mut lane = 0;
                    while lane < PANEL {
                        S::store(
                            to.add(panel * size + lane),
                            S::load(from.add(panel * PANEL + lane)),
                        );
                        lane += S::LANES;
                    }
                }
                if whole < panels {
                    let to = to.add(whole * size);
                    to.write_bytes(0, PANEL);
                    std::ptr::copy_nonoverlapping(from.add(whole * PANEL), to, self.count % PANEL);
                }
            }
        }
    }

    /// Gathers 16 windows from number `first` on.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        reason = "places in planes fit 32 bits"
    )]
    #[inline(always)]
    unsafe fn gather<S: Simd>(&self, channels: Range<usize>, first: usize, to: *mut f32) {
        let (args, w) = (self.args, self.window);
        let taps = w.taps();
        let plane = args.in_h * args.in_w;
        let (mut rows, mut columns) = ([0i32; PANEL], [0i32; PANEL]);
        let (mut row, mut column) = (first / args.out_w, first % args.out_w);
        for (r, c) in rows.iter_mut().zip(&mut columns) {
            *r = w.rows.element(row, 0, args.pad_h) as i32;
            *c = w.columns.element(column, 0, args.pad_w) as i32;
            column += 1;
            if column == args.out_w {
                (row, column) = (row + 1, 0);
            }
        }
        // Vectors may be read anywhere inside x.
        let len = args.images * args.groups * args.channels * plane;
        let base = self.start + channels.start * plane;
        let last = base + (channels.len().max(1) - 1) * plane;
        for tap in 0..taps {
            let dy = (tap / w.columns.kernel * w.rows.dilation) as i32;
            let dx = (tap % w.columns.kernel * w.columns.dilation) as i32;
            let found = self.tap(&rows, &columns, [dy, dx]);
            let run = found.run.filter(|at| {
                let start = base.cast_signed() + at;
                start >= 0 && last.cast_signed() + at + (PANEL * 2) as isize <= len.cast_signed()
            });
            // SAFETY: offsets are inside the plane, and runs inside x.
            unsafe {
                let to = to.add(tap * PANEL);
                let x = args.x.as_ptr::<f32>().add(base);
                for i in 0..channels.len() {
                    let to = to.add(i * taps * PANEL);
                    match run {
                        Some(at) if w.columns.stride == 1 && found.is_inside => {
                            let from = x.offset((i * plane).cast_signed() + at);
                            let mut lane = 0;
                            while lane < PANEL {
                                S::store(to.add(lane), S::load(from.add(lane)));
                                lane += S::LANES;
                            }
                        }
                        Some(at) if w.columns.stride == 1 => {
                            let from = x.offset((i * plane).cast_signed() + at).cast::<[u32; PANEL]>();
                            masked(&from.read_unaligned(), &found.masks, to);
                        }
                        Some(at) => {
                            let from = x
                                .offset((i * plane).cast_signed() + at)
                                .cast::<[[u32; 2]; PANEL]>();
                            masked(&from.read_unaligned().map(|[v, _]| v), &found.masks, to);
                        }
                        None => {
                            let mut values = [0; PANEL];
                            for (v, at) in values.iter_mut().zip(&found.offsets) {
                                *v = x.add(i * plane + *at as usize).cast::<u32>().read();
                            }
                            masked(&values, &found.masks, to);
                        }
                    }
                }
            }
        }
    }

    /// The tap at distances `dy` and `dx` from the first tap.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        reason = "places in planes fit 32 bits"
    )]
    #[inline(always)]
    fn tap(&self, rows: &[i32; PANEL], columns: &[i32; PANEL], [dy, dx]: [i32; 2]) -> Tap {
        let (in_h, in_w) = (self.args.in_h as i32, self.args.in_w as i32);
        let stride = self.window.columns.stride as i32;
        let first = (rows[0] + dy).wrapping_mul(in_w).wrapping_add(columns[0] + dx);
        let mut tap = Tap {
            offsets: [0; PANEL],
            masks: [0; PANEL],
            run: None,
            is_inside: false,
        };
        let (mut all, mut follow) = (u32::MAX, stride <= 2);
        // Most windows lie in one row and reach no padding.
        let (end, y) = (PANEL - 1, rows[0] + dy);
        let is_row = rows[0] == rows[end] && follow && (0..in_h).contains(&y);
        if is_row && columns[0] + dx >= 0 && columns[end] + dx < in_w {
            for j in 0..PANEL {
                tap.offsets[j] = first.wrapping_add(j as i32 * stride).cast_unsigned();
            }
            tap.masks = [u32::MAX; PANEL];
            tap.is_inside = true;
            tap.run = Some(first as isize);
            return tap;
        }
        for j in 0..PANEL {
            let (y, x) = (rows[j] + dy, columns[j] + dx);
            let inside =
                (y.cast_unsigned() < in_h.cast_unsigned()) & (x.cast_unsigned() < in_w.cast_unsigned());
            let mask = 0u32.wrapping_sub(u32::from(inside));
            let at = y.wrapping_mul(in_w).wrapping_add(x);
            follow &= at == first.wrapping_add((j as i32).wrapping_mul(stride));
            tap.offsets[j] = at.cast_unsigned() & mask;
            tap.masks[j] = mask;
            all &= mask;
        }
        tap.is_inside = all != 0;
        tap.run = follow.then_some(first as isize);
        tap
    }
}

/// Stores the values whose masks are set, and 0 for the others.
#[inline(always)]
unsafe fn masked(values: &[u32; PANEL], masks: &[u32; PANEL], to: *mut f32) {
    let mut out = [0; PANEL];
    for j in 0..PANEL {
        out[j] = values[j] & masks[j];
    }
    // SAFETY: a row of a panel.
    unsafe { to.cast::<[u32; PANEL]>().write_unaligned(out) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::cpu::testing::{self, Case, Conv};
    use crate::tensor::DType;

    fn tiles(w: &[f32], rows: usize, depth: usize) -> Vec<f32> {
        let mut out = Vec::new();
        for group in w.chunks_exact(rows * depth) {
            for tile in 0..rows.div_ceil(TILE) {
                for k in 0..depth {
                    out.extend(
                        (0..TILE).map(|t| group.get((tile * TILE + t) * depth + k).copied().unwrap_or(0.0)),
                    );
                }
            }
        }
        out
    }

    #[test]
    fn convolutions_match() {
        // Without rows of x, all windows are padding.
        let empty = Conv::new([1, 1, 2, 7], [0, 9], [1, 3]).padded([1, 0], [2, 0]);
        for (i, c) in Conv::cases().iter().chain([&empty]).enumerate() {
            let (x, w, bias) = c.data(i as u64);
            let words = [
                c.images,
                c.groups,
                c.channels,
                c.rows,
                c.size[0],
                c.size[1],
                c.out(0),
                c.out(1),
            ];
            let mut words: Vec<u32> = words.iter().map(|v| *v as u32).collect();
            words.extend(c.pads.map(i32::cast_unsigned));
            let case = Case::<ConvPanels> {
                words,
                operands: vec![
                    Some((DType::F32, testing::memory(&x))),
                    Some((
                        DType::F32,
                        testing::memory(&tiles(&w, c.rows, c.channels * c.taps())),
                    )),
                    bias.as_ref().map(|b| (DType::F32, testing::memory(b))),
                ],
                defines: c.defines(),
                kernel: std::marker::PhantomData,
            };
            case.check(&c.reference(&x, &w, bias.as_deref()), 1e-5, &format!("{c:?}"));
        }
    }
}
