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
mod row;
pub(crate) mod scales;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod tile;
pub(crate) mod unpack;
pub(crate) mod words;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::backend::cpu::args::{Bound, NativeKernel, Scratch, Store, part, product};
use crate::backend::cpu::isa::Isa;
use crate::backend::kernel::KernelSpec;
use crate::kernels::matmul_e0m;
use crate::quant::{Bits, Format};
use form::Form;
use layout::{Layout, STEP, Words};
use places::{Ahead, Grid, Places, Results};
use scales::DecodeScales;
use std::ops::Range;
pub(crate) use tile::PANEL;
use tile::{Call, Tile};
use unpack::{Matrix, Unpack};

type Args = super::ProductArgs<Bound>;

/// The format of the weights of a native kernel.
pub(crate) fn format_of(spec: &KernelSpec) -> Option<Format> {
    let define = |name| spec.defines.get(name).copied();
    let bits = Bits::new(define(matmul_e0m::BITS)?)?;
    let group = usize::try_from(define(matmul_e0m::GROUP)?).ok()?;
    let group = group.checked_mul(usize::try_from(define(matmul_e0m::SPAN).unwrap_or(1)).ok()?)?;
    if define(matmul_e0m::NESTED).is_some() {
        return Format::nested(bits).filter(|format| format.group == group);
    }
    (group > 0).then(|| Format::new(bits, group))
}

/// The kernel `product_e0m`.
pub struct ProductE0m {
    isa: Isa,
    form: Form,
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
        let (format, block) = (format_of(spec)?, define(super::BLOCK)?);
        let planes = define(super::PLANES).unwrap_or(1);
        let sizes = block > 0 && block.is_multiple_of(STEP) && format.group.is_multiple_of(block);
        (sizes && (1..=2).contains(&planes)).then_some(Self {
            isa,
            form: Form { format, planes },
            block,
            parts: define(matmul_e0m::PARTS).is_some(),
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
                    self.form.format,
                )
                && args.x.holds::<u32>(product(&[layout.tile(k), layout.tiles(m)]))
                && args.factors.holds::<f32>(product(&[factors, layout.tiles(m)]))
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        let matrices = 1 + usize::from(args.codes2.is_some());
        let weights = args.n.saturating_mul(args.k).saturating_mul(matrices);
        let bytes = weights.saturating_mul(self.form.bits()) / 8;
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
            let matrix = |codes, scales| Matrix::new([codes, scales], size, self.form.format);
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

    /// Words of the decoded scales of a panel; 0 for one row, which reads them as they are stored.
    fn scale_words(&self) -> usize {
        match self.layout.height {
            1 => 0,
            _ => self.args.k.div_ceil(self.kernel.form.format.group) * 2 * PANEL,
        }
    }

    /// Words of the weights of a panel that are unpacked before they are multiplied; 0 for widths
    /// that are read as they are stored.
    fn unpacked_words(&self) -> usize {
        let unpacks = self.layout.height > 1 && self.kernel.form.is_unpacked();
        if unpacks {
            self.args.k / STEP * 2 * PANEL
        } else {
            0
        }
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
        let (bytes, scales) = (self.unpacked_words(), self.scale_words());
        let codes = if bytes > 0 { bytes } else { self.code_words() };
        let panel = matrices * (codes + scales);
        let at_once = if tiles.len() <= 1 && bytes == 0 {
            MOST
        } else {
            (WEIGHTS / 4 / panel.max(1)).clamp(1, MOST)
        };
        let sums = self.layout.height * at_once * PANEL;
        let (results, decoded) = (matrices * sums, matrices * at_once * scales);
        let words = results + decoded + matrices * at_once * bytes;
        let (floats, unpacked) = scratch.of::<u32>(words).split_at_mut(results + decoded);
        let (results, scales) = bytemuck::cast_slice_mut(floats).split_at_mut(results);
        let (values, second) = results.split_at_mut(sums);
        let mut space = Space {
            values,
            second,
            scales,
            unpacked,
            width: at_once * PANEL,
        };
        let first = tiles.start;
        let chunks = tiles
            .len()
            .div_ceil((ROWS / 4 / self.layout.tile(k).max(1)).max(1));
        for chunk in 0..chunks {
            let tiles = part(tiles.len(), 1, chunk, chunks);
            let tiles = first + tiles.start..first + tiles.end;
            for block in panels.clone().step_by(at_once) {
                let block = block..(block + at_once).min(panels.end);
                unsafe { self.block(store, block, tiles.clone(), &mut space) };
            }
        }
    }

    /// Multiplies a block of panels and a chunk of tiles.
    ///
    /// # Safety
    /// The caller owns the results.
    unsafe fn block(
        &self,
        store: &Store<'_>,
        panels: Range<usize>,
        tiles: Range<usize>,
        space: &mut Space<'_>,
    ) {
        let Args { n, k, column, m, .. } = *self.args;
        let (kernel, matrices) = (self.kernel, self.matrices().count());
        let (height, width) = (self.layout.height, space.width);
        let (bytes, scales, codes) = (self.unpacked_words(), self.scale_words(), self.code_words());
        let stored = kernel.form.format.scale_rows(k) * PANEL;
        for tile in tiles.clone() {
            let rows = tile * height..((tile + 1) * height).min(m);
            for (p, panel) in panels.clone().enumerate() {
                let results = self.places().ahead(store, rows.start, column + panel * PANEL);
                for (i, matrix) in self.matrices().enumerate() {
                    let at = p * matrices + i;
                    let codes = &matrix.codes[panel * codes..][..codes];
                    let stored = &matrix.scales[panel * stored..][..stored];
                    let unpacked = &mut space.unpacked[at * bytes..][..bytes];
                    let decoded = &mut space.scales[at * scales..][..scales];
                    if tile == tiles.start {
                        // SAFETY: the processor has the instruction set.
                        unsafe { self.prepare(codes, stored, unpacked, decoded) };
                    }
                    let codes = if bytes > 0 { unpacked } else { codes };
                    let scales = match height {
                        1 => stored,
                        _ => bytemuck::cast_slice(decoded),
                    };
                    let out = match i {
                        0 => &mut *space.values,
                        _ => &mut *space.second,
                    };
                    self.tile(tile, codes, scales, (&mut out[p * PANEL..], width), results);
                }
            }
            let columns = column + panels.start * PANEL..column + (panels.end * PANEL).min(n);
            let results = Results {
                values: &mut *space.values,
                second: (matrices > 1).then_some(&mut *space.second),
                width,
            };
            unsafe { self.places().store(store, results, rows, columns) };
        }
    }

    /// Unpacks the weights and decodes the scales of a panel, if several rows are multiplied.
    ///
    /// # Safety
    /// The processor has the instruction set.
    unsafe fn prepare(&self, panel: &[u32], scales: &[u32], unpacked: &mut [u32], decoded: &mut [f32]) {
        let (kernel, k) = (self.kernel, self.args.k);
        if !unpacked.is_empty() {
            let unpack = Unpack {
                bits: kernel.form.bits(),
                per4: self.layout.words == Words::Int16,
                panel,
                out: unpacked,
            };
            unsafe { unpack.run_on(kernel.isa) };
        }
        if !decoded.is_empty() {
            let decode = DecodeScales {
                format: kernel.form.format,
                scales,
                k,
                meaning: kernel.form.meaning(kernel.isa),
                out: decoded,
            };
            unsafe { words::run(kernel.isa, decode) };
        }
    }

    /// Words of the stored weights of a panel.
    fn code_words(&self) -> usize {
        unpack::rows(self.kernel.form.bits(), self.args.k) * PANEL
    }

    /// Multiplies a tile and a panel.
    fn tile(
        &self,
        tile: usize,
        codes: &[u32],
        scales: &[u32],
        (out, stride): (&mut [f32], usize),
        results: Ahead,
    ) {
        let (kernel, layout, k) = (self.kernel, self.layout, self.args.k);
        let factors = layout.factors(k, kernel.block);
        let out = &mut out[..(layout.height - 1) * stride + PANEL];
        let call = Call {
            codes: codes.as_ptr(),
            scales: scales.as_ptr(),
            x: self.x[tile * layout.tile(k)..][..layout.tile(k)].as_ptr(),
            factors: self.factors[tile * factors..][..factors].as_ptr(),
            k,
            group: kernel.form.format.group,
            block: kernel.block,
            meaning: kernel.form.meaning(kernel.isa),
            out: out.as_mut_ptr(),
            stride,
            results,
        };
        // SAFETY: the slices are those of the panel and the tile.
        unsafe { (self.function)(&call) }
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
    /// Bytes of weights, for each panel of a block and each matrix, or empty.
    unpacked: &'a mut [u32],
}
