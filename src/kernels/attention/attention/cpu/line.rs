//! Few vectors: keys and values are read as they are stored, once for several vectors.

use super::partials::Partials;
use super::rows::{CacheRows, Run, Stored};
use super::soften::{Keys, Running, soften};
use super::{BLOCK, FEW, Problem, SPLITS, Unit};
use crate::backend::cpu::args::{Scratch, Store};
use crate::backend::cpu::simd::{Job, Simd, exp};
use half::f16;
use std::ops::Range;

/// All rows of some key heads, at most [`FEW`] vectors each, over some keys.
pub struct Line<'a, 'b> {
    pub p: &'a Problem,
    pub batch: usize,
    pub heads: Range<usize>,
    pub keys: Range<usize>,
    pub store: &'a Store<'b>,
    pub partials: &'a Partials,
    /// Which part of the keys of these heads this is.
    pub split: usize,
    pub splits: usize,
    pub scratch: &'a mut Scratch,
}

/// Scratch memory of a key head: for each vector the scaled query, weights of a block, and what a
/// part leaves: sums of values, then maxima and totals.
#[derive(Clone, Copy)]
struct Room {
    /// Elements of a head, as a multiple of the lanes.
    width: usize,
    query: *mut f32,
    weights: *mut f32,
    sums: *mut f32,
    running: Running,
    /// A block of decoded rows.
    decoded: *mut f32,
}

impl Job for Line<'_, '_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { p, heads, store, .. } = self;
        let (count, vectors) = (heads.len(), p.rows * p.group);
        let width = p.dim.next_multiple_of(16);
        // Sums of values, maxima and totals of a head.
        let own = vectors * width + 2 * FEW;
        let sizes = [
            count * vectors * width,
            count * own,
            vectors * BLOCK,
            BLOCK * width,
        ];
        let query = self.scratch.floats(sizes.iter().sum()).as_mut_ptr();
        let unit = |kv| Unit {
            batch: self.batch,
            kv,
            row: 0,
            rows: p.rows,
        };
        // SAFETY: parts of the scratch memory; the operands fit.
        unsafe {
            let sums = query.add(sizes[0]);
            let weights = sums.add(sizes[1]);
            let room = |kv: usize| {
                let i = kv - heads.start;
                let sums = sums.add(i * own);
                let top = sums.add(vectors * width);
                Room {
                    width,
                    query: query.add(i * vectors * width),
                    weights,
                    sums,
                    running: Running {
                        top,
                        total: top.add(FEW),
                    },
                    decoded: weights.add(sizes[2]),
                }
            };
            for kv in heads.clone() {
                start(p, &unit(kv), &room(kv));
            }
            let mut first = self.keys.start;
            while first < self.keys.end {
                // The rows of a key stand together.
                let mut count = 0;
                for kv in heads.clone() {
                    count = block::<S>(p, &unit(kv), first, self.keys.end, &room(kv));
                }
                first += count.max(1);
            }
            let mine = std::slice::from_raw_parts(sums.cast_const(), count * own);
            let (mut merged, mut parts, mut splits) = (None, mine, 1);
            if self.splits > 1 {
                // `y` is a multiple of the number of heads.
                let owner = (
                    store.y.as_ptr::<u8>() as usize,
                    p.y + self.batch * p.kv_heads + heads.start,
                );
                merged = self.partials.add(owner, self.split, self.splits, mine);
                let Some(all) = &merged else { return };
                (parts, splits) = (all, self.splits);
            }
            for kv in heads.clone() {
                let from = parts.as_ptr().add((kv - heads.start) * own);
                finish::<S>(
                    p,
                    &unit(kv),
                    Parts {
                        from,
                        step: count * own,
                        splits,
                    },
                    store,
                    query,
                );
            }
            if let Some(parts) = merged {
                self.partials.free(parts);
            }
        }
    }
}

/// What the parts of the keys left of a head, `step` elements from one part to the next.
#[derive(Clone, Copy)]
struct Parts {
    from: *const f32,
    step: usize,
    splits: usize,
}

/// Scales the queries, and clears sums.
#[inline(always)]
unsafe fn start(p: &Problem, unit: &Unit, room: &Room) {
    unsafe {
        for v in 0..unit.rows * p.group {
            let (from, to) = (p.query(unit, v), room.query.add(v * room.width));
            for i in 0..room.width {
                *to.add(i) = if i < p.dim { *from.add(i) * p.scale } else { 0.0 };
                *room.sums.add(v * room.width + i) = 0.0;
            }
        }
        for v in 0..FEW {
            *room.running.top.add(v) = f32::MIN;
            *room.running.total.add(v) = 0.0;
        }
    }
}

/// Adds a block of keys from `first` on; the result is their number.
#[inline(always)]
unsafe fn block<S: Simd>(p: &Problem, unit: &Unit, first: usize, end: usize, room: &Room) -> usize {
    // SAFETY: `first` is a key.
    let k = unsafe { p.k.run(unit.batch, unit.kv, first, end) };
    let count = k.count;
    let keys = Keys {
        first,
        count,
        width: count.next_multiple_of(S::LANES),
    };
    let vectors = unit.rows * p.group;
    unsafe {
        let (k, halves) = readable::<S>(&p.k, k, room);
        match halves {
            true => all_scores::<S, true>(&k, vectors, room),
            false => all_scores::<S, false>(&k, vectors, room),
        }
        let keep = soften::<S>(p, unit, &keys, room.weights, [0, vectors], room.running);
        let v = p.v.run(unit.batch, unit.kv, first, end);
        let (v, halves) = readable::<S>(&p.v, v, room);
        match halves {
            true => all_values::<S, true>(&v, vectors, &keep, room),
            false => all_values::<S, false>(&v, vectors, &keep, room),
        }
    }
    count
}

/// Rows that vectors can read, and whether they are halves: as they are stored, or decoded.
#[inline(always)]
unsafe fn readable<S: Simd>(rows: &CacheRows, run: Run, room: &Room) -> (Run, bool) {
    if rows.stored != Stored::Bytes && rows.is_whole(room.width) {
        return (run, rows.stored == Stored::Halves);
    }
    unsafe {
        for t in 0..run.count {
            rows.decode::<S>(
                run.at.add(t * run.step),
                room.decoded.add(t * room.width),
                room.width,
            );
        }
    }
    (
        Run {
            at: room.decoded.cast_const().cast(),
            step: 4 * room.width,
            bytes: 0,
            ..run
        },
        false,
    )
}

#[inline(always)]
unsafe fn load<S: Simd, const HALVES: bool>(at: *const u8, i: usize) -> S::F {
    unsafe {
        if HALVES {
            S::load_f16(at.cast::<f16>().add(i))
        } else {
            S::load(at.cast::<f32>().add(i))
        }
    }
}

/// Asks for the row that is expected in the next block at the place of the row at `at`.
#[inline(always)]
fn ahead<S: Simd>(at: *const u8, run: &Run) {
    for line in (0..run.bytes).step_by(64) {
        S::prefetch(at.wrapping_add(run.ahead).wrapping_add(line));
    }
}

/// Scores of all vectors.
#[inline(always)]
unsafe fn all_scores<S: Simd, const HALVES: bool>(k: &Run, vectors: usize, room: &Room) {
    let mut v = 0;
    while v < vectors {
        unsafe {
            v += match vectors - v {
                1 => scores::<S, HALVES, 1, 4, 8>(k, v, room),
                2 | 4 => scores::<S, HALVES, 2, 2, 4>(k, v, room),
                _ => scores::<S, HALVES, 3, 1, 4>(k, v, room),
            }
        }
    }
}

/// Scores of V vectors: T keys (4 or 8) in turns of P pairs, whose sums fit the registers. The
/// result is V.
#[inline(always)]
unsafe fn scores<S: Simd, const HALVES: bool, const V: usize, const P: usize, const T: usize>(
    k: &Run,
    first: usize,
    room: &Room,
) -> usize {
    unsafe {
        let (query, to) = (
            room.query.add(first * room.width),
            room.weights.add(first * BLOCK),
        );
        for t in (0..k.count).step_by(T) {
            let mut at = [k.at; T];
            for (i, at) in at.iter_mut().enumerate() {
                *at = k.at.add((t + i).min(k.count - 1) * k.step);
                if first == 0 {
                    ahead::<S>(*at, k);
                }
            }
            let mut folded = [[S::splat(0.0); 4]; V];
            for pair in (0..T / 2).step_by(P) {
                let mut sums = [[[S::splat(0.0); 2]; P]; V];
                for c in (0..room.width).step_by(S::LANES) {
                    let mut q = [S::splat(0.0); V];
                    for (v, q) in q.iter_mut().enumerate() {
                        *q = S::load(query.add(v * room.width + c));
                    }
                    for i in 0..P {
                        for h in 0..2 {
                            let key = load::<S, HALVES>(at[2 * (pair + i) + h], c);
                            for v in 0..V {
                                sums[v][i][h] = S::fma(q[v], key, sums[v][i][h]);
                            }
                        }
                    }
                }
                for v in 0..V {
                    for i in 0..P {
                        folded[v][pair + i] = S::fold(sums[v][i][0], sums[v][i][1]);
                    }
                }
            }
            for (v, folded) in folded.iter().enumerate() {
                for i in (0..T / 2).step_by(2) {
                    // A block is a multiple of T.
                    let to = to.add(v * BLOCK + t + 2 * i);
                    S::store_fours(to, S::fold(folded[i], folded[i + 1]));
                }
            }
        }
    }
    V
}

/// Adds weighted values to the sums of all vectors.
#[inline(always)]
unsafe fn all_values<S: Simd, const HALVES: bool>(v: &Run, vectors: usize, keep: &[f32; FEW], room: &Room) {
    let mut at = 0;
    while at < vectors {
        unsafe {
            at += match vectors - at {
                1 => values::<S, HALVES, 1, 8>(v, at, keep, room),
                2 | 4 => values::<S, HALVES, 2, 4>(v, at, keep, room),
                _ => values::<S, HALVES, 3, 3>(v, at, keep, room),
            }
        }
    }
}

/// Adds weighted values to the sums of V vectors, C lanes at once; the result is V.
#[inline(always)]
unsafe fn values<S: Simd, const HALVES: bool, const V: usize, const C: usize>(
    values: &Run,
    first: usize,
    keep: &[f32; FEW],
    room: &Room,
) -> usize {
    let mut c = 0;
    unsafe {
        while c + C * S::LANES <= room.width {
            columns::<S, HALVES, V, C>(values, first, keep, room, c);
            c += C * S::LANES;
        }
        while c < room.width {
            // With up to 8 lanes a head has an even number of vectors; one is left over only after
            // threes.
            if S::LANES < 16 && c + 2 * S::LANES <= room.width {
                columns::<S, HALVES, V, 2>(values, first, keep, room, c);
                c += 2 * S::LANES;
            } else if S::LANES == 16 || V == 3 {
                columns::<S, HALVES, V, 1>(values, first, keep, room, c);
                c += S::LANES;
            }
        }
    }
    V
}

#[inline(always)]
unsafe fn columns<S: Simd, const HALVES: bool, const V: usize, const C: usize>(
    values: &Run,
    first: usize,
    keep: &[f32; FEW],
    room: &Room,
    column: usize,
) {
    unsafe {
        let (weights, to) = (
            room.weights.add(first * BLOCK),
            room.sums.add(first * room.width + column),
        );
        let mut sums = [[S::splat(0.0); C]; V];
        for (v, sums) in sums.iter_mut().enumerate() {
            let keep = S::splat(keep[first + v]);
            for (c, sum) in sums.iter_mut().enumerate() {
                *sum = S::mul(keep, S::load(to.add(v * room.width + c * S::LANES)));
            }
        }
        for t in 0..values.count {
            let at = values.at.add(t * values.step);
            if first == 0 && column == 0 {
                ahead::<S>(at, values);
            }
            let mut row = [S::splat(0.0); C];
            for (c, row) in row.iter_mut().enumerate() {
                *row = load::<S, HALVES>(at, column + c * S::LANES);
            }
            for (v, sums) in sums.iter_mut().enumerate() {
                let weight = S::splat(*weights.add(v * BLOCK + t));
                for (sum, row) in sums.iter_mut().zip(row) {
                    *sum = S::fma(weight, row, *sum);
                }
            }
        }
        for (v, sums) in sums.iter().enumerate() {
            for (c, sum) in sums.iter().enumerate() {
                S::store(to.add(v * room.width + c * S::LANES), *sum);
            }
        }
    }
}

/// Merges parts, and stores results. `line` has room for the sums of all vectors.
#[inline(always)]
unsafe fn finish<S: Simd>(p: &Problem, unit: &Unit, parts: Parts, store: &Store<'_>, line: *mut f32) {
    let vectors = unit.rows * p.group;
    let width = p.dim.next_multiple_of(16);
    let splits = parts.splits;
    // SAFETY: a part has the sums of all vectors, maxima and totals.
    unsafe {
        for v in 0..vectors {
            let at = |part: usize| parts.from.add(part * parts.step);
            let mut top = f32::MIN;
            for part in 0..splits {
                top = top.max(*at(part).add(vectors * width + v));
            }
            let mut factors = [0.0; SPLITS];
            for (part, factor) in factors.iter_mut().enumerate().take(splits) {
                *factor = *at(part).add(vectors * width + v) - top;
            }
            for i in (0..SPLITS).step_by(S::LANES) {
                let at = factors.as_mut_ptr().add(i);
                S::store(at, exp::<S>(S::load(at)));
            }
            let factors = factors.iter().enumerate().take(splits);
            let mut total = 0.0;
            for (part, factor) in factors.clone() {
                total += factor * *at(part).add(vectors * width + FEW + v);
            }
            let inverse = if total == 0.0 { 0.0 } else { 1.0 / total };
            for i in 0..p.dim {
                let mut sum = 0.0;
                for (part, factor) in factors.clone() {
                    sum += factor * *at(part).add(v * width + i);
                }
                *line.add(v * p.dim + i) = sum * inverse;
            }
        }
        let run = p.group * p.dim;
        for row in 0..unit.rows {
            let values = std::slice::from_raw_parts_mut(line.add(row * run), run);
            store.put(p.result(unit, row), values, None);
        }
    }
}
