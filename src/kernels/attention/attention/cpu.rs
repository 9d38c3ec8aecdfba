//! Scaled dot-product attention with grouped heads: `softmax(scale * q k^T + mask) v`.
//!
//! A *unit* is some rows of a sequence with one key head. Its *vectors* are the query vectors that
//! share this key head: vector v is head `v % group` of row `v / group`. Few vectors read keys as
//! they are stored (`line`); many are computed in tiles over packed blocks of keys (`tiles`). Both
//! keep a running maximum, so that scores never leave the cache.

mod line;
mod partials;
mod rows;
mod soften;
#[cfg(test)]
mod tests;
mod tiles;

use crate::backend::cpu::args::{Bound, NativeKernel, Scratch, Store, dtype, part, product, reach};
use crate::backend::cpu::isa::Isa;
use crate::backend::cpu::simd;
use crate::backend::kernel::KernelSpec;
use crate::kernels::kv_append::cpu::live_value;
use crate::tensor::DType;
use partials::Partials;
use rows::{CacheRows, Stored};
use std::ops::Range;

pub(crate) type Args = super::Args<Bound>;

/// Keys of a block.
const BLOCK: usize = 64;
/// Largest number of vectors for which keys are not packed.
const FEW: usize = 16;
/// Largest number of parts into which the keys of a unit are cut.
const SPLITS: usize = 16;
/// Smallest number of keys in a part.
const PART_KEYS: usize = 128;
/// About how long a thread computes a part of a tile.
const PART_NANOS: usize = 16_000;
/// Work that takes less time than this is not shared by threads.
const SHARED_NANOS: usize = 20_000;

/// The kernel `attention`.
pub struct Attention {
    isa: Isa,
    /// Size of a head.
    dim: usize,
    causal: bool,
    capped: bool,
    window: Option<usize>,
    /// Number of keys that the cache keeps, if it is a ring.
    ring: Option<usize>,
    /// How keys and values are stored.
    stored: [Stored; 2],
    partials: Partials,
}

/// First row, number of rows, position of the first page, and keys that the first row sees.
type RowTile = [i32; 4];

/// Number of rows of a tile, and of keys that its first row sees.
fn tile_size([_, rows, _, seen]: &RowTile) -> [usize; 2] {
    [*rows, *seen].map(|n| n.max(0).unsigned_abs() as usize)
}

/// A mask, with its strides along sequences, heads, rows and keys.
#[derive(Clone, Copy)]
struct Mask {
    at: *const f32,
    strides: [usize; 4],
}

/// A dispatch.
#[derive(Clone, Copy)]
struct Problem {
    dim: usize,
    heads: usize,
    kv_heads: usize,
    /// Query heads of a key head.
    group: usize,
    rows: usize,
    batch: usize,
    /// Keys that exist.
    live: usize,
    causal: bool,
    window: Option<usize>,
    scale: f32,
    cap: Option<f32>,
    mask: Option<Mask>,
    q: *const f32,
    /// The first result.
    y: usize,
    k: CacheRows,
    v: CacheRows,
}

/// Vectors of some rows that share a key head.
#[derive(Clone, Copy)]
struct Unit {
    batch: usize,
    kv: usize,
    /// First row, and number of rows.
    row: usize,
    rows: usize,
}

impl Problem {
    /// Keys that row `row` sees: the last rows have the positions of the last keys.
    #[inline(always)]
    fn seen(&self, row: usize) -> Range<usize> {
        let place = self.live + row + 1;
        let first = self
            .window
            .map_or(0, |w| place.saturating_sub(self.rows.saturating_add(w)));
        let end = if self.causal {
            place.saturating_sub(self.rows).min(self.live)
        } else {
            self.live
        };
        first..end
    }

    /// Keys that any row of a unit sees, in pages from the start of a page on: blocks of keys, and
    /// so results, then do not depend on the first row.
    #[inline(always)]
    fn seen_by(&self, unit: &Unit) -> Range<usize> {
        let last = unit.row + unit.rows.max(1) - 1;
        self.k.block_start(self.seen(unit.row).start)..self.seen(last).end
    }

    /// Row and head of a vector of a unit.
    #[inline(always)]
    fn of_vector(&self, unit: &Unit, v: usize) -> (usize, usize) {
        (unit.row + v / self.group, unit.kv * self.group + v % self.group)
    }

    /// The elements of a query vector.
    #[inline(always)]
    fn query(&self, unit: &Unit, v: usize) -> *const f32 {
        let (row, head) = self.of_vector(unit, v);
        self.q
            .wrapping_add(((unit.batch * self.rows + row) * self.heads + head) * self.dim)
    }

    /// The first result of a row of a unit; those of its heads follow one another.
    #[inline(always)]
    fn result(&self, unit: &Unit, row: usize) -> usize {
        self.y + ((unit.batch * self.rows + unit.row + row) * self.heads + unit.kv * self.group) * self.dim
    }

    /// The sequence and key head `i`, with all rows.
    fn unit(&self, i: usize) -> Unit {
        Unit {
            batch: i / self.kv_heads,
            kv: i % self.kv_heads,
            row: 0,
            rows: self.rows,
        }
    }
}

impl Attention {
    /// Number of sequences, one after another; 1 with tiles, which name their sequences. (GPU
    /// kernels get a different number in this parameter: the pieces of a head.)
    fn batch(&self, args: &Args) -> usize {
        if args.tiles.is_some() { 1 } else { args.pieces }
    }

    /// Vectors of a row that share a key head.
    fn group(args: &Args) -> usize {
        args.heads / args.kv_heads.max(1)
    }

    /// The rows of keys and values, and the number of keys for which both have room.
    fn states(&self, args: &Args) -> ([CacheRows; 2], usize) {
        let rows = [(args.k, self.stored[0]), (args.v, self.stored[1])]
            .map(|(m, stored)| CacheRows::new(m, stored, self.dim, args.kv_heads, args.keys, self.ring));
        let batch = self.batch(args);
        let [k, v] = rows;
        (rows, k.room(args.k, batch).min(v.room(args.v, batch)))
    }

    /// Number of keys that exist.
    /// # Safety
    /// No one writes the table of live values.
    unsafe fn live(&self, args: &Args, room: usize) -> usize {
        let live = unsafe { live_value(args.live, args.live_keys) };
        match self.ring {
            Some(_) => live,
            // A padded length may reach beyond the state.
            None => live.min(room),
        }
    }

    /// The dispatch; `None` if it has no results.
    /// # Safety
    /// As for [`NativeKernel::run`].
    unsafe fn problem(&self, args: &Args) -> Option<Problem> {
        let ([k, v], room) = self.states(args);
        // SAFETY: the table is read only.
        let live = unsafe { self.live(args, room) };
        let (batch, group) = (self.batch(args), Self::group(args));
        (group > 0 && args.rows > 0 && batch > 0).then_some(Problem {
            dim: self.dim,
            heads: args.heads,
            kv_heads: args.kv_heads,
            group,
            rows: args.rows,
            batch,
            live,
            causal: self.causal,
            window: self.window,
            scale: args.scale,
            cap: self.capped.then_some(args.softcap),
            mask: args.mask.map(|m| Mask {
                at: m.as_ptr::<f32>(),
                strides: [args.mask_b, args.mask_h, args.mask_s, args.mask_t],
            }),
            q: args.q.as_ptr::<f32>(),
            y: 0,
            k,
            v,
        })
    }

    /// The tiles of a dispatch in pages, and its pages.
    /// # Safety
    /// As for [`NativeKernel::run`].
    unsafe fn tables(args: &Args) -> Option<(&[RowTile], &[i32])> {
        // SAFETY: the tables are read only.
        let (tiles, pages) = unsafe { (args.tiles?.slice::<i32>(), args.pages?.slice::<i32>()) };
        let (tiles, _) = tiles.as_chunks();
        Some((tiles.get(..args.pieces.min(tiles.len()))?, pages))
    }

    /// The part of a dispatch in pages that is one tile; `None` if it has no rows, or some that do
    /// not exist.
    fn of_tile(&self, whole: &Problem, args: &Args, tile: &RowTile, pages: &[i32]) -> Option<Problem> {
        let mut numbers = [0; 4];
        for (to, from) in numbers.iter_mut().zip(tile) {
            *to = usize::try_from(*from).ok()?;
        }
        let [first, rows, table, seen] = numbers;
        if rows == 0 || first.saturating_add(rows) > whole.rows {
            return None;
        }
        let (_, room) = self.states(args);
        let y = first * whole.heads * whole.dim;
        let live = seen.saturating_add(rows - 1);
        let table = pages.get(table..)?.get(..live.div_ceil(BLOCK))?;
        let holds = |page: &i32| usize::try_from(*page).is_ok_and(|p| p < room / BLOCK);
        table.iter().all(holds).then_some(Problem {
            rows,
            live,
            q: whole.q.wrapping_add(y),
            y,
            k: whole.k.in_pages(table),
            v: whole.v.in_pages(table),
            ..*whole
        })
    }

    /// The numbers of parts into which the key heads and the keys of a tile with few vectors are
    /// cut. They do not depend on other tiles, nor on the number of threads, except that nothing is
    /// cut for a single one (`alone`).
    fn tile_cuts(&self, args: &Args, tile: &RowTile, alone: bool) -> [usize; 2] {
        let keys = self.reach(tile_size(tile)[1]);
        let wanted = if alone {
            1
        } else {
            self.tile_nanos(args, tile) / PART_NANOS
        };
        Self::cuts(args, keys, wanted)
    }

    /// Number of units of a tile: key heads, or parts of heads and keys if vectors are few.
    fn units(&self, args: &Args, tile: &RowTile, alone: bool) -> usize {
        match tile_size(tile)[0].saturating_mul(Self::group(args)) {
            ..FEW => self.tile_cuts(args, tile, alone).iter().product(),
            _ => args.kv_heads,
        }
    }

    /// About how long a thread computes a tile.
    fn tile_nanos(&self, args: &Args, tile: &RowTile) -> usize {
        let [rows, keys] = tile_size(tile);
        self.nanos(rows.saturating_mul(args.heads), self.reach(keys))
    }

    /// About how long a thread computes `vectors` query vectors: 16 multiply-adds per nanosecond.
    fn nanos(&self, vectors: usize, keys: usize) -> usize {
        vectors.saturating_mul(self.dim).saturating_mul(keys) / 8
    }

    /// Runs a unit of a tile. Results do not depend on other tiles, nor on the number of rows if
    /// they have at least [`FEW`] vectors.
    unsafe fn tile(&self, p: &Problem, store: &Store<'_>, i: usize, cuts: [usize; 2], scratch: &mut Scratch) {
        unsafe {
            if p.rows * p.group < FEW {
                self.line(p, store, i, cuts, BLOCK, scratch);
            } else {
                let unit = p.unit(i);
                simd::run(
                    self.isa,
                    tiles::Tiles {
                        p,
                        unit,
                        store,
                        scratch,
                    },
                );
            }
        }
    }

    /// The numbers of parts into which the key heads and `keys` keys are cut if vectors are few.
    /// Their product is about `wanted`.
    fn cuts(args: &Args, keys: usize, wanted: usize) -> [usize; 2] {
        let splits = (keys / PART_KEYS).clamp(1, SPLITS).min(wanted.max(1));
        [wanted.div_ceil(splits).clamp(1, args.kv_heads.max(1)), splits]
    }

    /// Number of keys that a row sees, of `keys` that exist.
    fn reach(&self, keys: usize) -> usize {
        self.window.map_or(keys, |w| keys.min(w))
    }

    /// Runs one part of the heads and of the keys of a sequence; keys are cut at multiples of
    /// `step`.
    unsafe fn line(
        &self,
        p: &Problem,
        store: &Store<'_>,
        i: usize,
        [cuts, splits]: [usize; 2],
        step: usize,
        scratch: &mut Scratch,
    ) {
        let (i, split) = (i / splits, i % splits);
        let (batch, heads) = (i / cuts, part(p.kv_heads, 1, i % cuts, cuts));
        let seen = p.seen_by(&Unit {
            batch,
            kv: 0,
            row: 0,
            rows: p.rows,
        });
        let own = part(seen.len(), step, split, splits);
        let keys = seen.start + own.start..seen.start + own.end;
        let job = line::Line {
            p,
            batch,
            heads,
            keys,
            store,
            partials: &self.partials,
            split,
            splits,
            scratch,
        };
        // SAFETY: the processor supports `isa`; the operands fit.
        unsafe { simd::run(self.isa, job) }
    }
}

impl NativeKernel for Attention {
    type Signature = super::Args;
    const HALVES: &'static [&'static str] = &["k", "v"];

    fn abandon(&self) {
        self.partials.abandon();
    }

    fn new(spec: &KernelSpec, isa: Isa) -> Option<Self> {
        let number = |name| {
            spec.defines
                .get(name)
                .and_then(|n| usize::try_from(*n).ok())
                .filter(|n| *n > 0)
        };
        let has = |name| spec.defines.contains_key(name);
        let dim = number(super::DIM).filter(|d| d.is_multiple_of(2))?;
        let stored = |i| match dtype(spec, i) {
            _ if has(super::Q8) => dim.is_multiple_of(4).then_some(Stored::Bytes),
            Some(DType::F32) => Some(Stored::Floats),
            Some(DType::F16) => Some(Stored::Halves),
            Some(DType::I32 | DType::U32) => dim.is_multiple_of(4).then_some(Stored::Bytes),
            _ => None,
        };
        Some(Self {
            isa,
            dim,
            causal: has(super::CAUSAL),
            capped: has(super::CAPPED),
            window: number(super::WINDOW),
            ring: number(crate::kernels::kv_append::RING),
            stored: [stored(1)?, stored(2)?],
            partials: Partials::default(),
        })
    }

    fn fits(&self, args: &Args) -> bool {
        let Args { heads, rows, .. } = *args;
        let batch = self.batch(args);
        let count = product(&[batch, rows, heads, self.dim]);
        if count == 0 {
            return true;
        }
        if args.tiles.is_some() {
            // What tiles and pages say is checked when they are read.
            return heads.is_multiple_of(args.kv_heads)
                && args.pages.is_some()
                && args.q.holds::<f32>(count)
                && args.y.holds::<f32>(count);
        }
        let (_, room) = self.states(args);
        let in_table = args.live_keys < args.live.elements::<i32>();
        // SAFETY: the table is read only.
        let live = unsafe { self.live(args, room) };
        let axes = [
            [batch, args.mask_b],
            [heads, args.mask_h],
            [rows, args.mask_s],
            [live, args.mask_t],
        ];
        heads.is_multiple_of(args.kv_heads)
            && in_table
            && self.ring.is_none_or(|ring| ring <= room)
            && args.q.holds::<f32>(count)
            && args.y.holds::<f32>(count)
            && args.mask.is_none_or(|m| m.holds::<f32>(reach(&axes, 1)))
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        if threads < 2 {
            return 1;
        }
        // SAFETY: the tables are read only.
        if let Some((tiles, _)) = unsafe { Self::tables(args) } {
            let sum = |of: &dyn Fn(&RowTile) -> usize| tiles.iter().map(of).fold(0, usize::saturating_add);
            return match sum(&|tile| self.tile_nanos(args, tile)) {
                ..SHARED_NANOS => 1,
                _ => sum(&|tile| self.units(args, tile, false)).clamp(1, 16 * threads),
            };
        }
        // SAFETY: the table is read only.
        let Some(p) = (unsafe { self.problem(args) }) else {
            return 1;
        };
        let (units, keys) = (p.batch * p.kv_heads, self.reach(p.live));
        if self.nanos(p.batch * p.rows * p.heads, keys) < SHARED_NANOS {
            return 1;
        }
        if p.rows * p.group <= FEW {
            let [cuts, splits] = Self::cuts(args, keys, (2 * threads).div_ceil(p.batch));
            return p.batch * cuts * splits;
        }
        let least = p.rows.div_ceil(tiles::most_rows(p.dim, p.group));
        let wanted = (4 * threads).div_ceil(units).min(p.rows.div_ceil(16));
        units * least.max(wanted)
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, piece: usize, pieces: usize, scratch: &mut Scratch) {
        let Some(p) = (unsafe { self.problem(args) }) else {
            return;
        };
        if let Some((tiles, pages)) = unsafe { Self::tables(args) } {
            let mut before = 0;
            for tile in tiles {
                let units = self.units(args, tile, pieces == 1);
                // Neighboring units take about as long, so pieces take turns.
                let skipped = (piece + pieces - before % pieces) % pieces;
                before += units;
                if skipped >= units {
                    continue;
                }
                let Some(p) = self.of_tile(&p, args, tile, pages) else {
                    continue;
                };
                let cuts = self.tile_cuts(args, tile, pieces == 1);
                for i in (skipped..units).step_by(pieces) {
                    unsafe { self.tile(&p, store, i, cuts, scratch) };
                }
            }
            return;
        }
        if p.rows * p.group <= FEW {
            let cuts = Self::cuts(args, self.reach(p.live), pieces / p.batch);
            for i in part(p.batch * cuts[0] * cuts[1], 1, piece, pieces) {
                unsafe { self.line(&p, store, i, cuts, 16, scratch) };
            }
            return;
        }
        let units = p.batch * p.kv_heads;
        let cuts = if pieces.is_multiple_of(units) {
            pieces / units
        } else {
            1
        };
        for i in part(units * cuts, 1, piece, pieces) {
            // The last rows see the most keys, so they come first.
            let rows = part(p.rows, 4, cuts - 1 - i / units, cuts);
            let unit = Unit {
                row: rows.start,
                rows: rows.len(),
                ..p.unit(i % units)
            };
            // SAFETY: the processor supports `isa`; the operands fit.
            unsafe {
                simd::run(
                    self.isa,
                    tiles::Tiles {
                        p: &p,
                        unit,
                        store,
                        scratch,
                    },
                );
            }
        }
    }
}
