//! Matmul of quantized activations and E0M weights.
//!
//! With activations `a * q` and weights `s * (level + c * unit - b)`, the sum over a block is
//! `s * (a * unit * sum(q * c) + (level - b) * a * sum(q))`. The integer dot product is exact, and
//! floats are added in the same order for any number of rows.

#[cfg(target_arch = "aarch64")]
mod arm;
mod dot;
mod form;
pub mod layout;
pub(crate) mod places;
mod portable;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod tile;
pub(crate) mod unpack;
pub(crate) mod words;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::backend::cpu::args::{Bound, NativeKernel, Scratch, Store, product};
use crate::backend::cpu::isa::Isa;
use crate::backend::cpu::simd;
use crate::backend::kernel::KernelSpec;
use form::{Codes, Form};
use layout::{Layout, STEP, Words};
use places::{Grid, Places, Results};
use std::ops::Range;
pub(crate) use tile::PANEL;
use tile::{Call, DecodeScales, Tile};
use unpack::{Matrix, Unpack};

type Args = super::ProductArgs<Bound>;

/// The kernel `product_e0m`.
pub struct ProductE0m {
    isa: Isa,
    form: Form,
    group: usize,
    block: usize,
    parts: bool,
}

impl ProductE0m {
    fn layout(&self, rows: usize) -> Layout {
        Layout::new(self.isa, self.form.planes, rows)
    }

    fn grid(&self, args: &Args) -> Grid {
        Grid {
            panels: args.n.div_ceil(PANEL),
            tiles: self.layout(args.m).tiles(args.m),
        }
    }
}

impl NativeKernel for ProductE0m {
    type Signature = super::ProductArgs;

    fn new(spec: &KernelSpec, isa: Isa) -> Option<Self> {
        let define = |name| usize::try_from(*spec.defines.get(name)?).ok();
        let (group, block) = (define(crate::kernels::matmul_e0m::GROUP)?, define(super::BLOCK)?);
        let planes = define(super::PLANES).unwrap_or(1);
        let sizes = block > 0 && block.is_multiple_of(STEP) && group > 0 && group.is_multiple_of(block);
        (sizes && (1..=2).contains(&planes)).then_some(Self {
            isa,
            form: Form {
                codes: Codes::new(define(crate::kernels::matmul_e0m::BITS)?)?,
                planes,
            },
            group,
            block,
            parts: define(crate::kernels::matmul_e0m::PARTS).is_some(),
        })
    }

    /// Results are checked as they are stored.
    fn fits(&self, args: &Args) -> bool {
        let Args { m, n, k, .. } = *args;
        let layout = self.layout(m);
        let factors = layout.factors(k, self.block);
        m == 0
            || n == 0
            || self.form.tile(self.isa, layout).is_some()
                && Matrix::fit(
                    [args.codes, args.scales],
                    [args.codes2, args.scales2],
                    [n, k],
                    self.form.codes.bits(),
                    self.group,
                )
                && args.x.holds::<u32>(product(&[layout.tile(k), layout.tiles(m)]))
                && args.factors.holds::<f32>(product(&[factors, layout.tiles(m)]))
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        let matrices = 1 + usize::from(args.codes2.is_some());
        let weights = args.n.saturating_mul(args.k).saturating_mul(matrices);
        let bytes = weights.saturating_mul(self.form.codes.bits()) / 8;
        self.grid(args)
            .pieces(threads, bytes, weights.saturating_mul(args.m))
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, piece: usize, pieces: usize, scratch: &mut Scratch) {
        let (panels, tiles) = self.grid(args).piece(piece, pieces);
        let layout = self.layout(args.m);
        if args.m == 0 || args.n == 0 {
            return;
        }
        // The arguments fit, so there is a function.
        let Some(function) = self.form.tile(self.isa, layout) else {
            return;
        };
        // SAFETY: inputs are only read.
        let work = unsafe {
            let size = [args.n, args.k];
            let matrix =
                |codes, scales| Matrix::new([codes, scales], size, self.form.codes.bits(), self.group);
            Work {
                kernel: self,
                args,
                layout,
                function,
                x: &args.x.slice()[..layout.tile(args.k) * layout.tiles(args.m)],
                factors: &args.factors.slice()[..layout.factors(args.k, self.block) * layout.tiles(args.m)],
                first: matrix(args.codes, args.scales),
                second: args.codes2.zip(args.scales2).map(|(c, s)| matrix(c, s)),
            }
        };
        // SAFETY: this piece owns the results of its panels and tiles.
        unsafe { work.run(store, panels, tiles, scratch) };
    }
}

/// What all pieces of a dispatch share.
struct Work<'a> {
    kernel: &'a ProductE0m,
    args: &'a Args,
    layout: Layout,
    function: Tile,
    x: &'a [u32],
    factors: &'a [f32],
    first: Matrix<'a>,
    second: Option<Matrix<'a>>,
}

impl Work<'_> {
    fn places(&self) -> Places {
        let a = self.args;
        Places::new(
            a.y_stride,
            self.kernel.parts,
            [a.end0, a.end1],
            [a.start1, a.start2],
        )
    }

    fn matrices(&self) -> impl Iterator<Item = &Matrix<'_>> {
        [Some(&self.first), self.second.as_ref()].into_iter().flatten()
    }

    /// The distance between levels, and the level of integer 0.
    fn unit_and_level(&self) -> (f32, f32) {
        let form = self.kernel.form;
        (
            1.0 / (1u32 << (form.codes.bits() - 1)) as f32,
            form.level(self.kernel.isa),
        )
    }

    /// Number of weights of a panel that are unpacked at once; `None` for widths that are read as
    /// they are stored.
    fn unpacked(&self, tiles: usize) -> Option<usize> {
        let Codes::Unpacked(_) = self.kernel.form.codes else {
            return None;
        };
        // One tile of rows: as many as stay in the L1 cache. More: all, once for all tiles.
        const LEAST: usize = 512;
        let group = self.kernel.group;
        let whole = if group.is_multiple_of(32) {
            group
        } else {
            group.saturating_mul(4)
        };
        let chunk = whole.saturating_mul(LEAST.div_ceil(whole));
        Some(if tiles > 1 {
            self.args.k
        } else {
            chunk.min(self.args.k)
        })
    }

    /// # Safety
    /// The caller owns the results of these panels and tiles.
    unsafe fn run(
        &self,
        store: &Store<'_>,
        panels: Range<usize>,
        tiles: Range<usize>,
        scratch: &mut Scratch,
    ) {
        // Weights of a block of panels and a chunk of rows stay in the L2 cache. With more panels
        // at once, an epilogue gets longer rows of results.
        const WEIGHTS: usize = 96 << 10;
        const ROWS: usize = 384 << 10;
        const MOST: usize = 16;
        let k = self.args.k;
        let matrices = self.matrices().count();
        let chunk = self.unpacked(tiles.len());
        let codes = match chunk {
            Some(_) => 2 * PANEL * k / STEP,
            None => PANEL * unpack::rows(self.kernel.form.codes.bits(), k),
        };
        let scales = if self.layout.height > 1 {
            2 * PANEL * k.div_ceil(self.kernel.group)
        } else {
            0
        };
        let panel = matrices * (codes + scales);
        let one = tiles.len() <= 1;
        let at_once = if one {
            MOST
        } else {
            (WEIGHTS / 4 / panel.max(1)).clamp(1, MOST)
        };
        let bytes = chunk.unwrap_or(0) / STEP * 2 * PANEL;
        let sums = self.layout.height * at_once * PANEL;
        let (results, decoded) = (matrices * sums, matrices * at_once * scales);
        let words = results + decoded + bytes * if one { 1 } else { matrices * at_once };
        let (floats, unpacked) = scratch.of::<u32>(words).split_at_mut(results + decoded);
        let (results, scales) = bytemuck::cast_slice_mut(floats).split_at_mut(results);
        let (values, second) = results.split_at_mut(sums);
        let mut space = Space {
            values,
            second,
            scales,
            unpacked,
            width: at_once * PANEL,
            chunk,
        };
        let rows = (ROWS / 4 / self.layout.tile(k).max(1)).max(1);
        for first in tiles.clone().step_by(rows) {
            let tiles = first..(first + rows).min(tiles.end);
            for block in panels.clone().step_by(at_once) {
                let block = block..(block + at_once).min(panels.end);
                unsafe { self.block(store, block, tiles.clone(), one, &mut space) };
            }
        }
    }

    /// Multiplies a block of panels and a chunk of tiles. `one`: the piece has only one tile.
    ///
    /// # Safety
    /// The caller owns the results.
    unsafe fn block(
        &self,
        store: &Store<'_>,
        panels: Range<usize>,
        tiles: Range<usize>,
        one: bool,
        space: &mut Space<'_>,
    ) {
        let Args { n, k, column, m, .. } = *self.args;
        let matrices = self.matrices().count();
        let (height, width) = (self.layout.height, space.width);
        let bytes = space.chunk.unwrap_or(0) / STEP * 2 * PANEL;
        let groups = k.div_ceil(self.kernel.group) * PANEL;
        let all = || panels.clone().flat_map(|p| self.matrices().map(move |m| (m, p)));
        if !one && space.chunk.is_some() {
            let spaces = space.unpacked.chunks_exact_mut(bytes.max(1));
            for ((matrix, panel), space) in all().zip(spaces) {
                self.unpack(matrix, panel, 0..k, space);
            }
        }
        if height > 1 {
            let spaces = space.scales.chunks_exact_mut((2 * groups).max(1));
            for ((matrix, panel), out) in all().zip(spaces) {
                let scales = &matrix.scales[panel * groups..][..groups];
                let (unit, level) = self.unit_and_level();
                let decode = DecodeScales {
                    scales,
                    unit,
                    level,
                    out,
                };
                // SAFETY: the processor has the instruction set.
                unsafe { simd::run(self.kernel.isa, decode) };
            }
        }
        for tile in tiles {
            for (p, panel) in panels.clone().enumerate() {
                for (i, matrix) in self.matrices().enumerate() {
                    let out = if i == 0 {
                        &mut *space.values
                    } else {
                        &mut *space.second
                    };
                    let source = match space.chunk {
                        None => Source::Packed,
                        Some(chunk) if one => Source::Chunks(chunk, &mut *space.unpacked),
                        Some(_) => Source::Unpacked(&space.unpacked[(p * matrices + i) * bytes..][..bytes]),
                    };
                    let scales = match height {
                        1 => &matrix.scales[panel * groups..][..groups],
                        _ => {
                            let at = (p * matrices + i) * 2 * groups;
                            bytemuck::cast_slice(&space.scales[at..][..2 * groups])
                        }
                    };
                    self.tile(
                        matrix,
                        panel,
                        tile,
                        scales,
                        (&mut out[p * PANEL..], width),
                        source,
                    );
                }
            }
            let columns = column + panels.start * PANEL..column + (panels.end * PANEL).min(n);
            let results = Results {
                values: &mut *space.values,
                second: (matrices > 1).then_some(&mut *space.second),
                width,
            };
            let rows = tile * height..((tile + 1) * height).min(m);
            unsafe { self.places().store(store, results, rows, columns) };
        }
    }

    /// Unpacks weights of a panel.
    fn unpack(&self, matrix: &Matrix<'_>, panel: usize, weights: Range<usize>, out: &mut [u32]) {
        let bits = self.kernel.form.codes.bits();
        let words = unpack::rows(bits, self.args.k) * PANEL;
        let unpack = Unpack {
            bits,
            per4: self.layout.words == Words::Int16,
            panel: &matrix.codes[panel * words..][..words],
            first: weights.start / STEP,
            out: &mut out[..weights.len() / STEP * 2 * PANEL],
        };
        // SAFETY: the processor has the instruction set.
        unsafe { unpack.run_on(self.kernel.isa) };
    }

    /// Multiplies a panel and a tile.
    fn tile(
        &self,
        matrix: &Matrix<'_>,
        panel: usize,
        tile: usize,
        scales: &[u32],
        (out, stride): (&mut [f32], usize),
        source: Source<'_>,
    ) {
        let (kernel, layout, k) = (self.kernel, self.layout, self.args.k);
        let words = unpack::rows(kernel.form.codes.bits(), k) * PANEL;
        let factors = layout.factors(k, kernel.block);
        let per_group = if layout.height > 1 { 2 * PANEL } else { PANEL };
        let (unit, level) = self.unit_and_level();
        let x = &self.x[tile * layout.tile(k)..][..layout.tile(k)];
        let factors = &self.factors[tile * factors..][..factors];
        let out = &mut out[..(layout.height - 1) * stride + PANEL];
        // Weights `from .. from + count`, a whole number of groups except at the end.
        let mut run = |codes: &[u32], from: usize, count: usize| {
            let call = Call {
                codes: codes.as_ptr(),
                scales: scales[from / kernel.group * per_group..].as_ptr(),
                x: x[from / STEP * layout.step()..].as_ptr(),
                factors: factors[from / kernel.block * 2 * layout.height..].as_ptr(),
                k: count,
                group: kernel.group,
                block: kernel.block,
                unit,
                level,
                out: out.as_mut_ptr(),
                stride,
                resume: from > 0,
            };
            // SAFETY: the slices are those of the panel and the tile.
            unsafe { (self.function)(&call) }
        };
        match source {
            Source::Packed => run(&matrix.codes[panel * words..][..words], 0, k),
            Source::Unpacked(codes) => run(codes, 0, k),
            Source::Chunks(chunk, space) => {
                for from in (0..k).step_by(chunk) {
                    let count = chunk.min(k - from);
                    self.unpack(matrix, panel, from..from + count, space);
                    run(&space[..count / STEP * 2 * PANEL], from, count);
                }
            }
        }
    }
}

/// Scratch memory of a piece.
struct Space<'a> {
    /// Results of a tile and a block of panels, in rows of `width`; `second` is for the second
    /// matrix.
    values: &'a mut [f32],
    second: &'a mut [f32],
    width: usize,
    /// Decoded scales, for each panel of a block and each matrix; empty for one row.
    scales: &'a mut [f32],
    unpacked: &'a mut [u32],
    /// Number of weights that are unpacked at once; `None` for widths that are read as they are.
    chunk: Option<usize>,
}

/// Where a tile reads its weights.
enum Source<'a> {
    Packed,
    /// The whole panel as bytes.
    Unpacked(&'a [u32]),
    /// Unpacks this many weights at a time into the space.
    Chunks(usize, &'a mut [u32]),
}
