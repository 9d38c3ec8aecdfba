//! Many vectors: tiles of vectors and keys, over blocks of keys that are packed for all tiles.

use super::soften::{Keys, Running, soften};
use super::{BLOCK, Problem, Unit};
use crate::backend::cpu::args::{Scratch, Store};
use crate::backend::cpu::simd::{Job, Simd};

/// Elements of a head in scratch memory are a multiple of this, which is one of the columns that
/// tiles have for any instruction set.
const COLUMNS: usize = 32;

/// Rows whose vectors and sums fit the cache.
pub fn most_rows(dim: usize, group: usize) -> usize {
    let vectors = (24576 / dim.max(1)).clamp(96, 512);
    let rows = vectors / group.max(1);
    if rows < 4 { rows.max(1) } else { rows / 4 * 4 }
}

/// The vectors of a unit over all keys that they see.
pub struct Tiles<'a, 'b> {
    pub p: &'a Problem,
    pub unit: Unit,
    pub store: &'a Store<'b>,
    pub scratch: &'a mut Scratch,
}

/// Scratch memory.
#[derive(Clone, Copy)]
struct Room {
    /// Elements of a head, as a multiple of [`COLUMNS`].
    width: usize,
    /// Scaled queries: for each tile, its vectors side by side along the head.
    query: *mut f32,
    /// Sums of values, a row for each vector.
    sums: *mut f32,
    running: Running,
    /// A block of keys, side by side along the head; a block of values in rows; scores of a tile.
    keys: *mut f32,
    values: *mut f32,
    scores: *mut f32,
    /// Decoded rows.
    rows: *mut f32,
}

/// Keys that are decoded before they are transposed.
const TURNED: usize = 8;

impl Job for Tiles<'_, '_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self {
            p,
            mut unit,
            store,
            scratch,
        } = self;
        let end = unit.row + unit.rows;
        let most = most_rows(p.dim, p.group);
        while unit.row < end {
            unit.rows = most.min(end - unit.row);
            unsafe {
                match S::LANES {
                    16 => rows::<S, 12, 2>(p, &unit, store, scratch),
                    8 => rows::<S, 6, 2>(p, &unit, store, scratch),
                    _ => rows::<S, 6, 4>(p, &unit, store, scratch),
                }
            }
            unit.row += unit.rows;
        }
    }
}

/// Some rows in tiles of M vectors and N lanes.
#[inline(always)]
unsafe fn rows<S: Simd, const M: usize, const N: usize>(
    p: &Problem,
    unit: &Unit,
    store: &Store<'_>,
    scratch: &mut Scratch,
) {
    let vectors = unit.rows * p.group;
    let (tiles, width) = (vectors.div_ceil(M), p.dim.next_multiple_of(COLUMNS));
    let padded = (tiles * M).next_multiple_of(16);
    let sizes = [
        padded * p.dim,
        padded * width,
        padded,
        padded,
        BLOCK * p.dim,
        BLOCK * width,
        16 * BLOCK,
        (TURNED * width).max(p.group * p.dim),
    ];
    let mut at = scratch.floats(sizes.iter().sum()).as_mut_ptr();
    let mut next = |size: usize| {
        let here = at;
        at = at.wrapping_add(size);
        here
    };
    let [query, sums, top, total, keys, values, scores, line] = sizes.map(&mut next);
    let running = Running { top, total };
    let room = Room {
        width,
        query,
        sums,
        running,
        keys,
        values,
        scores,
        rows: line,
    };
    // SAFETY: parts of the scratch memory; the operands fit.
    unsafe {
        start::<M>(p, unit, tiles, &room);
        let seen = p.seen_by(unit);
        let mut first = seen.start;
        while first < seen.end {
            let count = pack::<S>(p, unit, first, seen.end, &room);
            for tile in 0..tiles {
                let of_tile = Unit {
                    row: unit.row + tile * M / p.group,
                    rows: (((tile + 1) * M).min(vectors) - 1) / p.group - tile * M / p.group + 1,
                    ..*unit
                };
                let own = p.seen_by(&of_tile);
                if own.start < first + count && first < own.end {
                    let count = count.min(own.end - first);
                    add::<S, M, N>(p, unit, tile, first, count, &room);
                }
            }
            first += count;
        }
        finish(p, unit, store, &room);
    }
}

/// Packs the scaled queries of a unit, and clears sums.
#[inline(always)]
unsafe fn start<const M: usize>(p: &Problem, unit: &Unit, tiles: usize, room: &Room) {
    let last = unit.rows * p.group - 1;
    unsafe {
        for tile in 0..tiles {
            let mut from = [p.q; M];
            for (m, from) in from.iter_mut().enumerate() {
                // Vectors that are not there repeat the last one.
                *from = p.query(unit, (tile * M + m).min(last));
                *room.running.top.add(tile * M + m) = f32::MIN;
                *room.running.total.add(tile * M + m) = 0.0;
            }
            let to = room.query.add(tile * M * p.dim);
            for i in 0..p.dim {
                for (m, from) in from.iter().enumerate() {
                    *to.add(i * M + m) = *from.add(i) * p.scale;
                }
            }
        }
        for i in 0..tiles * M * room.width {
            *room.sums.add(i) = 0.0;
        }
    }
}

/// Packs a block of keys and values from key `first` on; the result is their number.
#[inline(always)]
unsafe fn pack<S: Simd>(p: &Problem, unit: &Unit, first: usize, end: usize, room: &Room) -> usize {
    // SAFETY: there is a key `first`.
    unsafe {
        let k = p.k.run(unit.batch, unit.kv, first, end);
        let v = p.v.run(unit.batch, unit.kv, first, first + k.count);
        for t in (0..k.count).step_by(TURNED) {
            for i in 0..TURNED {
                // Rows that are not there repeat the last one.
                let row = k.at.add((t + i).min(k.count - 1) * k.step);
                p.k.decode::<S>(row, room.rows.add(i * room.width), p.dim);
            }
            for c in 0..p.dim {
                let mut column = [0.0; TURNED];
                for (i, v) in column.iter_mut().enumerate() {
                    *v = *room.rows.add(i * room.width + c);
                }
                // A block is a multiple of the rows.
                *room.keys.add(c * BLOCK + t).cast::<[f32; TURNED]>() = column;
            }
        }
        for t in 0..v.count {
            p.v.decode::<S>(v.at.add(t * v.step), room.values.add(t * room.width), room.width);
        }
        k.count
    }
}

/// Adds `count` keys of the block to a tile.
#[inline(always)]
unsafe fn add<S: Simd, const M: usize, const N: usize>(
    p: &Problem,
    unit: &Unit,
    tile: usize,
    first: usize,
    count: usize,
    room: &Room,
) {
    let keys = Keys {
        first,
        count,
        width: count.next_multiple_of(N * S::LANES),
    };
    unsafe {
        scores::<S, M, N>(p.dim, room.query.add(tile * M * p.dim), keys.width, room);
        let Running { top, total } = room.running;
        let running = Running {
            top: top.add(tile * M),
            total: total.add(tile * M),
        };
        let keep = soften::<S>(p, unit, &keys, room.scores, [tile * M, M], running);
        let sums = room.sums.add(tile * M * room.width);
        for c in (0..room.width).step_by(N * S::LANES) {
            weighted::<S, M, N>(count, &keep, sums.add(c), room.values.add(c), room);
        }
    }
}

/// Scores of a tile for `width` keys of the block.
#[inline(always)]
unsafe fn scores<S: Simd, const M: usize, const N: usize>(
    dim: usize,
    query: *const f32,
    width: usize,
    room: &Room,
) {
    unsafe {
        for t in (0..width).step_by(N * S::LANES) {
            let mut sums = [[S::splat(0.0); N]; M];
            for c in 0..dim {
                let mut keys = [S::splat(0.0); N];
                for (n, key) in keys.iter_mut().enumerate() {
                    *key = S::load(room.keys.add(c * BLOCK + t + n * S::LANES));
                }
                for (m, sums) in sums.iter_mut().enumerate() {
                    let q = S::splat(*query.add(c * M + m));
                    for n in 0..N {
                        sums[n] = S::fma(q, keys[n], sums[n]);
                    }
                }
            }
            for (m, sums) in sums.iter().enumerate() {
                for (n, sum) in sums.iter().enumerate() {
                    S::store(room.scores.add(m * BLOCK + t + n * S::LANES), *sum);
                }
            }
        }
    }
}

/// Adds weighted values to N lanes of the sums of a tile.
#[inline(always)]
unsafe fn weighted<S: Simd, const M: usize, const N: usize>(
    count: usize,
    keep: &[f32],
    to: *mut f32,
    values: *const f32,
    room: &Room,
) {
    unsafe {
        let mut sums = [[S::splat(0.0); N]; M];
        for (m, sums) in sums.iter_mut().enumerate() {
            let keep = S::splat(keep[m]);
            for (n, sum) in sums.iter_mut().enumerate() {
                *sum = S::mul(keep, S::load(to.add(m * room.width + n * S::LANES)));
            }
        }
        for t in 0..count {
            let mut row = [S::splat(0.0); N];
            for (n, v) in row.iter_mut().enumerate() {
                *v = S::load(values.add(t * room.width + n * S::LANES));
            }
            for (m, sums) in sums.iter_mut().enumerate() {
                let weight = S::splat(*room.scores.add(m * BLOCK + t));
                for n in 0..N {
                    sums[n] = S::fma(weight, row[n], sums[n]);
                }
            }
        }
        for (m, sums) in sums.iter().enumerate() {
            for (n, sum) in sums.iter().enumerate() {
                S::store(to.add(m * room.width + n * S::LANES), *sum);
            }
        }
    }
}

/// Divides by the totals, and stores results.
#[inline(always)]
unsafe fn finish(p: &Problem, unit: &Unit, store: &Store<'_>, room: &Room) {
    let run = p.group * p.dim;
    for row in 0..unit.rows {
        let first = p.result(unit, row);
        unsafe {
            let to = store.address(first).unwrap_or(room.rows);
            for head in 0..p.group {
                let v = row * p.group + head;
                let total = *room.running.total.add(v);
                let inverse = if total == 0.0 { 0.0 } else { 1.0 / total };
                let from = room.sums.add(v * room.width);
                for i in 0..p.dim {
                    *to.add(head * p.dim + i) = *from.add(i) * inverse;
                }
            }
            if store.epilogue.is_some() {
                store.put(first, std::slice::from_raw_parts_mut(to, run), None);
            }
        }
    }
}
