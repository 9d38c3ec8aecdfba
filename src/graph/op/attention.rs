//! Scaled dot-product attention with grouped heads (own domain, made by the `attention` pass):
//! `softmax(c tanh(scale * q k^T / c) + mask) v` for each query head, without a cap c `softmax(scale * q k^T + mask) v`.
//!
//! Operands: q `[b, s, heads, d]`, k and v `[b, t, kv_heads, d]`, and an optional mask that is added to the scores: it has the sizes
//! `[b, heads, s, t]` or 1 in their place, and may have leading axes of size 1 more, or fewer axes. The result is
//! `[b, s, heads, d]`. With a window w query i sees no key before `t - s + i - (w - 1)`, whatever the mask says. Softmax is in `f32`; no
//! matrix of scores exists. Kernels take an even d, and read no key that no query sees for the window; a cache may keep no more than these
//! ([`LowerCx::ring`]).

use super::case::{Case, given, input};
use super::sizes::Sizes;
use super::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, operand, own};
use crate::backend::kernel::{Form, Kernel, MASK_MIN};
use crate::backend::{Caps, DeviceKind};
use crate::plan::lower::{Call, LowerCx, Operand};
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::{DType, HostTensor};

static KERNEL: Kernel = crate::kernel!(attention {
    heads: U32, kv_heads: U32, rows: U32, keys: U32, live_keys: U32,
    mask_b: U32, mask_h: U32, mask_s: U32, mask_t: U32, scale: F32,
    softcap: F32, parts: U32,
} [q: In Elem, k: In Elem, v: In Elem, mask: OptionalIn Elem, live: Weight Elem, y: Out Elem])
.with_forms(&[Form {
    // Each lane of a sub-group has a query vector, and loads other keys and parts of values for all.
    define: "BROADCAST",
    needs: Caps::lane_broadcast,
}]);

/// Many rows, on matrix units.
static UNITS: Kernel = crate::kernel!(attention_mma {
    heads: U32, kv_heads: U32, rows: U32, keys: U32, live_keys: U32,
    mask_b: U32, mask_h: U32, mask_s: U32, mask_t: U32, scale: F32,
    softcap: F32,
} [q: In Halves4, k: In Halves4, v: In Halves4, mask: OptionalIn Elem, live: Weight Elem, y: Out Elem])
.variant_of(&KERNEL, |caps| {
    caps.matrix_units && caps.max_workgroup >= UNITS_TAKE.0 && caps.local_bytes >= UNITS_TAKE.1
});

/// One row, where work-groups of a large GPU take a head each.
static ROW: Kernel = crate::kernel!(attention_row {
    heads: U32, kv_heads: U32, rows: U32, keys: U32, live_keys: U32,
    mask_b: U32, mask_h: U32, mask_s: U32, mask_t: U32, scale: F32,
    softcap: F32, splits: U32,
} [
    q: In Words4, k: In Words4, v: In Words4, mask: OptionalIn Elem, live: Weight Elem, y: Out Elem,
    found: OptionalInOut Words, counts: OptionalInOut Words
])
.variant_of(&KERNEL, |caps| {
    // In OpenCL C with PTX, in WGSL wherever local memory is fast.
    let able = caps.matrix_units || caps.backend == "wgpu" && caps.fast_local;
    able && caps.max_workgroup >= ROW_ITEMS && caps.local_bytes >= 19 << 10
});

static MERGE: Kernel = crate::kernel!(attention_merge {
    vectors: U32, splits: U32,
} [x: In Elem, y: Out Elem]);

/// Most query rows of a work-group: keys and values are read once for all of them.
const ROWS: i64 = 4;
/// Most heads of a group of those that share keys that a work-group takes at once.
const HEADS: i64 = 8;
/// Most query vectors of a work-group, and most local memory for them and their weights, in floats.
const VECTORS: (i64, i64) = (16, 3072);
/// One query is split over its keys, where there can be more than this.
pub const UNSPLIT: i64 = 256;
/// Work-items that merge the parts of a query vector's result, if it has no more pieces itself.
const MERGING: i64 = 64;
/// Largest size of a head that kernels take.
const MOST_HEAD: i64 = 512;

/// Kernels take heads of this size.
pub fn takes_head(size: i64) -> bool {
    size % 2 == 0 && size <= MOST_HEAD
}

/// Work-items of a work-group on matrix units, of which 32 take 16 rows, and the local memory that they take.
const UNITS_TAKE: (u32, u32) = (128, 46 << 10);

/// Sizes of heads that kernels for large GPUs take.
const SIZES: [i64; 3] = [64, 128, 256];

/// Those kernels tell sizes of heads apart by what they are at least.
fn with_size(call: Call, dim: i64) -> Call {
    let from = |call: Call, least, name| if dim >= least { call.define(name, 1) } else { call };
    from(from(call.define("DIM", dim), 128, "FROM128"), 256, "FROM256")
}

/// Matrix units take queries, keys and values in heads of this size. They round weights to halves, which a result in halves does not show.
fn on_units(caps: &Caps, dim: i64, operands: &[Operand]) -> bool {
    let halves = operands.iter().all(|o| o.dtype == DType::F16);
    caps.takes(&UNITS) && halves && SIZES.contains(&dim)
}

/// Work-items of a work-group for one row.
const ROW_ITEMS: u32 = 256;

/// The kernel for one row takes queries, keys and values in heads of this size.
fn by_rows(caps: &Caps, dim: i64, operands: &[Operand]) -> bool {
    let halves = operands.iter().all(|o| o.dtype == DType::F16);
    caps.takes(&ROW) && halves && SIZES.contains(&dim)
}

/// A kernel of [`by_rows`] can tell that it is the last work-group of a head, and read what the others wrote: by PTX.
fn meets(caps: &Caps) -> bool {
    caps.matrix_units && caps.backend == "opencl"
}

/// Query vectors of a work-item where a CPU runs OpenCL.
const ITEM: i64 = 16;

/// Most heads of a work-item there, of one row: their sums are vectors in registers.
const LINE: i64 = 4;

/// Keys of a tile.
const KEYS: i64 = 64;

/// See the module documentation.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Factor on the scores.
    pub scale: f32,
    /// Scores are bent to below this before the mask is added; 0 leaves them.
    pub softcap: f32,
    /// Most keys that a query sees, the last of which is that at its own place among the last ones. Above 0.
    pub window: Option<i64>,
}

impl Attention {
    /// Attention without a cap and without a window.
    pub fn scaled(scale: f32) -> Self {
        Self {
            scale,
            softcap: 0.0,
            window: None,
        }
    }

    /// Keys that a run reads: those that a query of it sees, whatever the mask says.
    fn keys_read(&self, sizes: &Sizes) -> u64 {
        let axis = |i: usize| sizes.input(i).get(1).copied().unwrap_or(0);
        let (queries, keys) = (axis(0), axis(1));
        let window = self.window.and_then(|w| u64::try_from(w).ok());
        window.map_or(keys, |w| keys.min(w.saturating_add(queries.saturating_sub(1))))
    }

    /// A score as the softmax takes it, but for the mask.
    fn bent(&self, dot: f32) -> f64 {
        let score = f64::from(dot) * f64::from(self.scale);
        let cap = f64::from(self.softcap);
        if cap == 0.0 {
            score
        } else {
            cap * (score / cap).tanh()
        }
    }
}

/// Checks the shapes of queries, keys, values and mask against each other.
pub(super) fn check(q: &Shape, k: &Shape, v: &Shape, mask: Option<&Shape>) -> OpResult<()> {
    let ([b, s, h, d], [kb, t, kvh, kd]) = (q.0.as_slice(), k.0.as_slice()) else {
        return Err(OpError::mismatch("ranks (4 each)", q, k));
    };
    if b != kb || d != kd || k != v || h != kvh && h.exact_div(kvh).is_none() {
        return Err(OpError::mismatch(
            "q [b, s, h, d] and k, v [b, t, h / groups, d]",
            q,
            format!("{k}, {v}"),
        ));
    }
    let Some(mask) = mask else { return Ok(()) };
    let scores = [b, h, s, t].map(Dim::clone);
    if mask_fits(&mask.0, &scores) {
        return Ok(());
    }
    Err(OpError::mismatch("scores and mask", Shape(scores.to_vec()), mask))
}

/// A mask of these sizes can be added to scores of those: apart from leading ones it has no more axes, each as large or 1.
pub fn mask_fits(mask: &[Dim], scores: &[Dim]) -> bool {
    let own = mask_sizes(mask);
    let same = |(m, score): (&Dim, &Dim)| m.is(1) || m == score;
    own.len() <= scores.len() && own.iter().rev().zip(scores.iter().rev()).all(same)
}

/// Sizes of a mask without leading ones.
fn mask_sizes(mask: &[Dim]) -> &[Dim] {
    let ones = mask.iter().take_while(|d| d.is(1)).count();
    mask.get(ones..).unwrap_or_default()
}

/// Strides of a mask along batch, heads, queries and keys.
fn mask_strides(mask: &Shape) -> OpResult<[Dim; 4]> {
    let mut strides = [0, 0, 0, 0].map(Dim::from);
    let mut step = Dim::from(1);
    for (size, stride) in mask_sizes(&mask.0).iter().rev().zip(strides.iter_mut().rev()) {
        if !size.is(1) {
            *stride = step.clone();
            step = step.mul(size)?;
        }
    }
    Ok(strides)
}

impl Op for Attention {
    fn name(&self) -> &str {
        "Attention"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let q = cx.fact(0)?;
        check(
            &q.shape,
            &cx.fact(1)?.shape,
            &cx.fact(2)?.shape,
            cx.opt(3).map(|f| &f.shape),
        )?;
        Ok(vec![Fact::new(q.dtype, q.shape.clone())])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let (q, k, v) = (operand(inputs, 0)?, operand(inputs, 1)?, operand(inputs, 2)?);
        let mask = inputs.get(3).copied().flatten();
        let fixed = |t: &HostTensor| Shape::fixed(t.shape());
        check(&fixed(q), &fixed(k), &fixed(v), mask.map(fixed).as_ref())?;
        let &[batch, s, heads, d] = q.shape() else {
            return Err(OpError::expected("rank of q", 4, q.shape().len()));
        };
        let (t, kv_heads) = (k.shape()[1], k.shape()[2]);
        let (qd, kd, vd) = (q.to_f32()?, k.to_f32()?, v.to_f32()?);
        let bias = match mask {
            Some(m) => {
                let strides = mask_strides(&fixed(m))?;
                let strides =
                    strides.map(|d| d.as_const().and_then(|v| usize::try_from(v).ok()).unwrap_or(0));
                Some((m.to_f32()?, strides))
            }
            None => None,
        };
        let group = heads.checked_div(kv_heads).unwrap_or(1);
        let mut y = vec![0f32; qd.len()];
        let mut scores = vec![0f64; t];
        let window = self.window.and_then(|w| usize::try_from(w).ok());
        for b in 0..batch {
            for (i, h) in (0..s).flat_map(|i| (0..heads).map(move |h| (i, h))) {
                let at = ((b * s + i) * heads + h) * d;
                let first = window.map_or(0, |w| (t + i + 1).saturating_sub(s + w));
                let row = |j: usize| ((b * t + j) * kv_heads + h / group) * d;
                for (j, score) in scores.iter_mut().enumerate() {
                    if j < first {
                        *score = f64::NEG_INFINITY;
                        continue;
                    }
                    let dot: f32 = qd[at..at + d]
                        .iter()
                        .zip(&kd[row(j)..row(j) + d])
                        .map(|(x, y)| x * y)
                        .sum();
                    let extra = bias
                        .as_ref()
                        .map_or(0.0, |(m, [mb, mh, ms, mt])| m[b * mb + h * mh + i * ms + j * mt]);
                    *score = self.bent(dot) + f64::from(extra);
                }
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = scores.iter().map(|x| (x - max).exp()).sum();
                for (j, score) in scores.iter().enumerate() {
                    #[expect(
                        clippy::cast_possible_truncation,
                        reason = "rounding to the result type is meant"
                    )]
                    let weight = ((score - max).exp() / sum) as f32;
                    for (y, v) in y[at..at + d].iter_mut().zip(&vd[row(j)..row(j) + d]) {
                        *y += weight * v;
                    }
                }
            }
        }
        Ok(vec![HostTensor::from_floats(q.dtype(), q.shape(), &y)?])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        self.emit(cx, Rows::Floats)
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        let [b, s, heads, d] = sizes.input(0) else {
            return sizes.results();
        };
        let keys = self.keys_read(sizes);
        // A product for the score of each key, one for its part of the result.
        [*b, *s, *heads, *d, keys, 4]
            .into_iter()
            .fold(1, u64::saturating_mul)
    }

    fn elements_read(&self, input: usize, sizes: &Sizes) -> u64 {
        let all = sizes.input_elements(input);
        let [_, rows, ..] = sizes.input(1) else { return all };
        match input {
            1 | 2 => all / (*rows).max(1) * self.keys_read(sizes),
            _ => all,
        }
    }
}

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rows {
    /// Elements.
    Floats,
    /// Rows of [`super::kv_append_q8`].
    Words,
}

impl Attention {
    /// Emits the dispatches of a node whose keys and values are stored as `stored` says.
    pub(super) fn emit(&self, cx: &mut LowerCx<'_>, stored: Rows) -> OpResult<()> {
        let (q, k) = (cx.shape(0)?, cx.shape(1)?);
        let dim = q.0[3].as_const().filter(|d| takes_head(*d));
        let Some(dim) = dim else {
            return Err(OpError::NoKernel(format!(
                "attention of {q}; kernels take an even head size up to {MOST_HEAD}"
            )));
        };
        let (mask, strides) = if cx.has(3) {
            (Some(cx.input(3)?), mask_strides(&cx.shape(3)?)?)
        } else {
            (None, [0, 0, 0, 0].map(Dim::from))
        };
        let cpu = cx.caps().kind == DeviceKind::Cpu;
        let [batch, queries, heads, _] = q.0.as_slice() else {
            return Err(OpError::expected("rank of q", 4, q.rank()));
        };
        let keys = &k.0[1];
        let (ring, other) = (cx.ring(1)?, cx.ring(2)?);
        if ring != other {
            return Err(OpError::mismatch(
                "rows that the caches of keys and values keep",
                format!("{ring:?}"),
                format!("{other:?}"),
            ));
        }
        let wide = dim % 4 == 0;
        let vector = if wide { 4 } else { 2 };
        let one = queries.is(1);
        let upper = cx.upper_bound(keys);
        let exceeds = |n: &i64| upper.is_none_or(|keys| keys > *n);
        let window = self.window.filter(exceeds);
        let ring = ring.filter(exceeds);
        let read = match window {
            Some(w) => keys.minimum(&w.into())?,
            None => keys.clone(),
        };
        let many = window.or(upper).is_none_or(|n| n > UNSPLIT);
        // Heads share their keys where these are many, or rows are.
        let group = heads.exact_div(&k.0[2]).and_then(|g| g.as_const()).unwrap_or(1);
        let group = if one && !many && !cpu { 1 } else { group };
        // On a CPU driver a work-item is a loop iteration: just enough of them to own a result row. On others a single query wants as many
        // loads in flight as can be.
        let items = match (cpu, one) {
            (true, _) => 16,
            (false, false) => KEYS,
            (false, true) => i64::from(cx.caps().max_workgroup).clamp(KEYS, 4 * KEYS) / KEYS * KEYS,
        };
        let lanes = (items / KEYS).max(1);
        // Compilers for CPUs make vectors of a kernel's own: a work-item takes a query vector in each lane, of one row a head along the lanes.
        let by_vectors = cx.caps().explicit_vectors() && dim % ITEM == 0 && stored == Rows::Floats;
        let by_line = by_vectors && one && batch.is(1);
        let by_item = by_vectors && !one;
        // A work-item keeps the sums of a score of each vector.
        let most = match (cx.caps().few_registers(), one) {
            (false, _) => VECTORS.0,
            (true, false) => 3,
            (true, true) => 1,
        };
        let room = most.min(VECTORS.1 / (dim + lanes * KEYS));
        let mut together = (1..=HEADS.min(group).min(room)).rev();
        let together = together.find(|n| group % n == 0).unwrap_or(1);
        let rows = if one { 1 } else { (room / together).clamp(1, ROWS) };
        let (together, rows) = if by_item {
            let most = cx.upper_bound(queries).unwrap_or(ITEM).clamp(1, ITEM);
            let together = (1..=ITEM / most).rev().find(|n| group % n == 0).unwrap_or(1);
            (together, ITEM / together)
        } else if by_line {
            // Heads share keys where these are split, else they are too few to share the cores.
            let most = if many { LINE } else { 1 };
            ((1..=most).rev().find(|n| group % n == 0).unwrap_or(1), 1)
        } else {
            (together, rows)
        };
        let vectors = rows * together;
        let slices = (items / (vectors * (dim / vector))).max(1);
        // The kernels for some devices read keys from the first on, stored as they are.
        let plain = stored == Rows::Floats && window.is_none() && ring.is_none();
        let operands = [cx.input(0)?, cx.input(1)?, cx.input(2)?];
        let by_row = one && batch.is(1) && plain && by_rows(cx.caps(), dim, &operands);
        let shared = heads.exact_div(&k.0[2]).and_then(|g| g.as_const());
        let by_lanes = shared.filter(|_| {
            plain && !by_row && dim % 32 == 0 && dim <= 128 && cx.caps().takes_form(&KERNEL, "BROADCAST")
        });
        // One query has too few heads to fill a device; of many keys each part is a work-group.
        let split = (batch.is(1) && one && many && by_lanes.is_none()).then_some(if cpu { 512 } else { 128 });
        let splits = split.map(|s| read.ceil_div(s)).transpose()?;
        // Keys behind the live ones, there because lengths are padded, are not read.
        let (live, live_keys) = cx.live(keys);
        let wide_as = |call: Call| if wide { call.define("WIDE", 1) } else { call };
        // Where work-groups see what others wrote, the last one of a head puts the parts together.
        let meet = by_row && meets(cx.caps()) && heads.as_const().is_some();
        let found = match &splits {
            None => None,
            Some(splits) => Some(cx.temp(DType::F32, splits.mul(heads)?.mul(&Dim::from(dim + vector))?)),
        };
        let result = match found {
            Some(found) if !meet => found,
            _ => cx.output(0)?,
        };
        let on_units = !one && plain && result.dtype == DType::F16 && on_units(cx.caps(), dim, &operands);
        let call = if let Some(shared) = by_lanes {
            let vectors = queries.mul(&shared.into())?;
            let call = Call::new(&KERNEL, 8).define("BROADCAST", 1).define("DIM", dim);
            let call = (0..3).fold(call, Call::reads_by_fours);
            call.grid(k.0[2].clone(), vectors.ceil_div(8)?, batch.clone())
        } else if by_row {
            let call = with_size(Call::new(&ROW, ROW_ITEMS), dim)
                // As many keys at once as a work-group takes where they are split, or registers hold.
                .define("STEPS", (128 * (dim / 8) / i64::from(ROW_ITEMS)).min(8))
                .grid(heads.clone(), 1, splits.clone().unwrap_or_else(|| Dim::from(1)));
            match split {
                Some(keys) => call.define("SPLIT", keys),
                None => call,
            }
        } else if on_units {
            // Local memory holds fewer keys of large heads.
            let keys = if dim == 256 { KEYS / 2 } else { KEYS };
            with_size(Call::new(&UNITS, UNITS_TAKE.0), dim)
                .define("KEYS", keys)
                .grid(
                    heads.clone(),
                    queries.ceil_div(i64::from(UNITS_TAKE.0 / 2))?,
                    batch.clone(),
                )
        } else if by_item {
            let call = Call::new(&KERNEL, 1)
                .define("ITEM", 1)
                .define("DIM", dim)
                .define("HEADS", together)
                .define("VECTORS", vectors)
                // These the text in WGSL alone asks for.
                .define("KEYS", KEYS)
                .define("LANES", 1)
                .define("SLICES", 1)
                .grid(
                    heads.exact_div(&together.into()).unwrap_or_else(|| heads.clone()),
                    queries.ceil_div(rows)?,
                    batch.clone(),
                );
            let call = match window {
                Some(keys) => call.define("WINDOW", keys),
                None => call,
            };
            match ring {
                Some(rows) => call.define("RING", rows),
                None => call,
            }
        } else {
            let call = Call::new(&KERNEL, u32::try_from(items).unwrap_or(u32::MAX))
                .define("DIM", dim)
                .define("HEADS", together)
                .define("VECTORS", vectors)
                .define("KEYS", KEYS)
                .define("LANES", lanes)
                .define("SLICES", slices)
                .grid(
                    heads.exact_div(&together.into()).unwrap_or_else(|| heads.clone()),
                    queries.ceil_div(rows)?,
                    splits.clone().unwrap_or_else(|| batch.clone()),
                );
            let call = wide_as(call);
            let call = if slices > 1 && !by_line {
                call.define("SHARED", 1)
            } else {
                call
            };
            let call = if by_line {
                call.workgroup(1).define("LINE", 1)
            } else {
                call
            };
            let call = match split {
                Some(keys) => call.define("SPLIT", keys),
                None => call,
            };
            let call = match window {
                Some(keys) => call.define("WINDOW", keys),
                None => call,
            };
            let call = match ring {
                Some(rows) => call.define("RING", rows),
                None => call,
            };
            match stored {
                Rows::Words => call.define("Q8", 1),
                Rows::Floats => call,
            }
        };
        let call = operands.into_iter().fold(call, Call::operand);
        let call = call.optional(mask).operand(live).operand(result);
        let call = if by_row {
            let counters = heads.as_const().and_then(|n| u64::try_from(n).ok());
            let counted = found.zip(counters).filter(|_| meet);
            call.optional(counted.map(|(found, _)| found))
                .optional(counted.map(|(_, n)| cx.counters(n)))
        } else {
            call
        };
        let call = call
            .field(heads)
            .field(&k.0[2])
            .field(queries)
            .field(keys)
            .field(live_keys);
        let call = strides.iter().fold(call, Call::field).field(self.scale);
        let call = call.field(self.softcap);
        let call = if by_row {
            call.field(splits.clone().unwrap_or_else(|| Dim::from(1)))
        } else if on_units {
            call
        } else {
            let call = call.field(Dim::from(dim / vector));
            if cpu || cx.caps().fast_local {
                call
            } else {
                call.define("ROLLED", 1)
            }
        };
        let call = if self.softcap == 0.0 {
            call
        } else {
            call.define("CAPPED", 1)
        };
        // Rows of a second sequence would lie elsewhere.
        cx.emit(if batch.is(1) { call.may_be_padded() } else { call })?;
        let (Some(splits), false) = (splits, meet) else {
            return Ok(());
        };
        let parts = dim / vector;
        let slices = if cpu { 1 } else { (MERGING / parts).max(1) };
        let merge = if by_line {
            Call::new(&MERGE, 1).define("LINE", 1)
        } else {
            Call::new(&MERGE, u32::try_from(parts * slices).unwrap_or(u32::MAX))
        };
        let merge = merge
            .define("DIM", dim)
            .operand(result)
            .operand(cx.output(0)?)
            .grid(heads.clone(), 1, 1)
            .field(heads)
            .field(&splits)
            .may_be_padded();
        cx.emit(wide_as(merge))
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let window = a.int("window")?;
    if let Some(w) = window.filter(|w| *w < 1) {
        return Err(OpError::expected("attribute `window`", "1 or more", w));
    }
    Ok(Box::new(Attention {
        scale: a.float("scale")?.unwrap_or(1.0),
        softcap: a.float("softcap")?.unwrap_or(0.0),
        window,
    }))
}

/// The registry's entry.
pub static DEF: OpDef = OpDef {
    onnx: &[own("Attention")],
    import,
    kernels: &[&KERNEL, &UNITS, &ROW, &MERGE],
    cases,
};

fn cases() -> Vec<Case> {
    let case = |s, t, h, kv, d, mask: bool| {
        let mut inputs = vec![
            input(&[1, s, h, d]).range(-2.0, 2.0),
            input(&[1, t, kv, d]),
            input(&[1, t, kv, d]),
        ];
        if mask {
            inputs.push(input(&[1, 1, 1, s, t]).range(-4.0, 0.0));
        }
        Case::new(Attention::scaled(0.25), inputs)
    };
    let masked = |b, s, t, mask: &[usize]| {
        let rows = |n, heads| input(&[b, n, heads, 12]).range(-2.0, 2.0);
        let inputs = vec![rows(s, 4), rows(t, 2), rows(t, 2), input(mask).range(-4.0, 0.0)];
        Case::new(Attention::scaled(0.25), inputs)
    };
    let capped = |s, mask: &[usize]| {
        let rows = |n, heads| input(&[1, n, heads, 12]).range(-4.0, 4.0);
        let inputs = vec![rows(s, 4), rows(70, 2), rows(70, 2), input(mask).range(-4.0, 0.0)];
        let op = Attention {
            softcap: 2.0,
            ..Attention::scaled(0.5)
        };
        Case::new(op, inputs)
    };
    let windowed = |s, t, heads, kv, window, mask: bool| {
        let rows = |n, heads| input(&[1, n, heads, 16]).range(-2.0, 2.0);
        let mut inputs = vec![rows(s, heads), rows(t, kv), rows(t, kv)];
        if mask {
            inputs.push(input(&[s, t]).range(-4.0, 0.0));
        }
        let op = Attention {
            window: Some(window),
            ..Attention::scaled(0.25)
        };
        Case::new(op, inputs)
    };
    // Sequences of which a mask hides all keys, or leading ones and others between. Scores are sixteenths, as sums with the least half keep them.
    let padded = |s: usize, t: usize, hidden: &dyn Fn(usize, usize) -> bool| {
        let whole = |sizes: &[usize]| {
            let steps = (0..sizes.iter().product()).map(|i: usize| i * 7 + i / 5);
            let data: Vec<f32> = steps.map(|i| [-2.0, -1.0, 0.0, 1.0, 2.0][i % 5]).collect();
            HostTensor::from_f32(sizes, &data).ok().map(given)
        };
        let (batch, size) = (2, 64);
        let places = (0..batch).flat_map(|b| (0..t).map(move |key| (b, key)));
        let mask: Vec<f32> = places
            .map(|(b, key)| if hidden(b, key) { MASK_MIN } else { 0.0 })
            .collect();
        let mask = HostTensor::from_f32(&[batch, 1, 1, t], &mask).ok().map(given)?;
        let (q, k) = (whole(&[batch, s, 4, size])?, whole(&[batch, t, 2, size])?);
        let v = input(&[batch, t, 2, size]);
        Some(Case::new(Attention::scaled(0.0625), vec![q, k, v, mask]))
    };
    let hidden = [
        padded(5, 64, &|b, _| b == 1),
        padded(5, 70, &|b, _| b == 1),
        padded(1, 40, &|b, _| b == 1),
        padded(70, 133, &|_, _| true),
        padded(9, 150, &|b, key| b == 1 && (key < 70 || key / 16 == 6)),
    ];
    let mut all = vec![
        windowed(1, 200, 4, 2, 70, true),
        windowed(1, 900, 3, 3, 600, false),
        windowed(1, 900, 4, 1, 7, true),
        windowed(1, 9, 4, 1, 9, false),
        windowed(11, 150, 4, 2, 5, true),
        windowed(70, 70, 2, 2, 3, false),
        windowed(5, 300, 6, 2, 130, true),
        capped(1, &[1, 70]),
        capped(5, &[5, 70]),
        case(1, 1, 2, 1, 64, false),
        case(1, 130, 9, 3, 64, true),
        case(1, 513, 14, 2, 64, true),
        case(1, 700, 2, 2, 10, false),
        case(1, 1100, 3, 1, 256, true),
        case(6, 70, 14, 2, 64, true),
        case(9, 40, 16, 1, 128, false),
        case(5, 65, 4, 2, 64, true),
        case(3, 7, 2, 2, 6, true),
        case(2, 64, 3, 1, 130, false),
        case(1, 200, 2, 2, 256, true),
        case(1, 150, 4, 2, 128, true),
        case(1, 290, 3, 3, 128, false),
        case(70, 150, 4, 2, 128, true),
        case(130, 130, 2, 1, 64, false),
        case(70, 150, 4, 2, 256, true),
        case(1, 290, 8, 1, 256, true),
        masked(2, 5, 70, &[2, 1, 1, 70]),
        masked(3, 1, 9, &[4, 1, 9]),
        masked(2, 6, 6, &[2, 4, 6, 6]),
        masked(1, 6, 6, &[6, 1]),
        Case::new(
            Attention::scaled(0.25),
            vec![input(&[3, 5, 4, 8]), input(&[3, 7, 2, 8]), input(&[3, 7, 2, 8])],
        ),
    ];
    all.extend(hidden.into_iter().flatten());
    all
}
