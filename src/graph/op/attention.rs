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

/// Work-items of a work-group of the generic kernel on a CPU.
const CPU_ITEMS: i64 = 16;

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

/// What a node computes, as its kernels are told of it.
struct Node {
    batch: Dim,
    queries: Dim,
    heads: Dim,
    keys: Dim,
    kv_heads: Dim,
    /// Size of a head.
    dim: i64,
    /// Heads that share keys, where that is one number.
    group: Option<i64>,
    /// Most queries, where that is known.
    most: Option<i64>,
    /// Keys that a query sees and that a cache keeps, where there can be more.
    window: Option<i64>,
    ring: Option<i64>,
    /// Keys of which a single query reads, and that these can be more than [`UNSPLIT`].
    read: Dim,
    many: bool,
    stored: Rows,
    /// With the strides of [`mask_strides`].
    mask: Option<Operand>,
    strides: [Dim; 4],
    /// Queries, keys and values.
    operands: [Operand; 3],
}

/// How it is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// One row, by [`ROW`].
    Row,
    /// Lanes of a sub-group share what they load; so many heads share keys.
    Lanes(i64),
    /// Many rows, by [`UNITS`].
    Units,
    /// Many rows where a CPU runs OpenCL: a query vector is a lane of a work-item.
    Item,
    /// One row there: vectors lie along the heads.
    Line,
    /// Work-groups share keys.
    Groups,
}

/// How query vectors are cut: heads that share keys, of so many rows, and the work-items that look after them, of which `lanes` compute the score of
/// a key.
struct Cut {
    together: i64,
    rows: i64,
    items: i64,
    lanes: i64,
}

impl Node {
    /// The operands of a node of `op` whose keys and values are stored as `stored` says.
    fn of(op: &Attention, cx: &mut LowerCx<'_>, stored: Rows) -> OpResult<Self> {
        let (q, k) = (cx.shape(0)?, cx.shape(1)?);
        let ([batch, queries, heads, dim], [_, keys, kv_heads, _]) = (q.0.as_slice(), k.0.as_slice()) else {
            return Err(OpError::mismatch("ranks (4 each)", q, k));
        };
        let Some(dim) = dim.as_const().filter(|d| takes_head(*d)) else {
            return Err(OpError::NoKernel(format!(
                "attention of {q}; kernels take an even head size up to {MOST_HEAD}"
            )));
        };
        let (mask, strides) = if cx.has(3) {
            (Some(cx.input(3)?), mask_strides(&cx.shape(3)?)?)
        } else {
            (None, [0, 0, 0, 0].map(Dim::from))
        };
        let (ring, other) = (cx.ring(1)?, cx.ring(2)?);
        if ring != other {
            return Err(OpError::mismatch(
                "rows that the caches of keys and values keep",
                format!("{ring:?}"),
                format!("{other:?}"),
            ));
        }
        let upper = cx.upper_bound(keys);
        let exceeds = |n: &i64| upper.is_none_or(|keys| keys > *n);
        let window = op.window.filter(exceeds);
        Ok(Self {
            dim,
            group: heads.exact_div(kv_heads).and_then(|g| g.as_const()),
            most: cx.upper_bound(queries),
            window,
            ring: ring.filter(exceeds),
            read: match window {
                Some(w) => keys.minimum(&w.into())?,
                None => keys.clone(),
            },
            many: window.or(upper).is_none_or(|n| n > UNSPLIT),
            stored,
            mask,
            strides,
            operands: [cx.input(0)?, cx.input(1)?, cx.input(2)?],
            batch: batch.clone(),
            queries: queries.clone(),
            heads: heads.clone(),
            keys: keys.clone(),
            kv_heads: kv_heads.clone(),
        })
    }

    /// There is one query.
    fn one(&self) -> bool {
        self.queries.is(1)
    }

    /// There is one, of one sequence.
    fn single(&self) -> bool {
        self.one() && self.batch.is(1)
    }

    /// How a device computes results that are stored as `result`.
    fn way(&self, caps: &Caps, result: DType) -> Way {
        let (dim, operands) = (self.dim, &self.operands);
        // The kernels for some devices read keys from the first on, stored as they are.
        let plain = self.stored == Rows::Floats && self.window.is_none() && self.ring.is_none();
        let lanes = || dim % 32 == 0 && dim <= 128 && caps.takes_form(&KERNEL, "BROADCAST");
        // Compilers for CPUs make vectors of a kernel's own.
        let by_vectors = caps.explicit_vectors() && dim % ITEM == 0 && self.stored == Rows::Floats;
        if plain && self.single() && by_rows(caps, dim, operands) {
            return Way::Row;
        }
        if let Some(shared) = self.group
            && plain
            && lanes()
        {
            return Way::Lanes(shared);
        }
        if plain && !self.one() && result == DType::F16 && on_units(caps, dim, operands) {
            Way::Units
        } else if by_vectors && !self.one() {
            Way::Item
        } else if by_vectors && self.single() {
            Way::Line
        } else {
            Way::Groups
        }
    }

    /// Elements of a vector of the generic kernel.
    fn vector(&self) -> i64 {
        if self.dim % 4 == 0 { 4 } else { 2 }
    }

    /// `call` of a kernel that tells this size of vectors apart.
    fn wide(&self, call: Call) -> Call {
        if self.vector() == 4 {
            call.define("WIDE", 1)
        } else {
            call
        }
    }

    /// The most heads up to `most` that share keys, of which there are `group`.
    fn dividing(group: i64, most: i64) -> i64 {
        (1..=most).rev().find(|n| group % n == 0).unwrap_or(1)
    }

    /// The generic text in work-groups of `items`, with results of `parts` work-groups for each query vector.
    fn cut(&self, cut: &Cut, items: u32, parts: Dim) -> OpResult<Call> {
        let vectors = cut.rows * cut.together;
        let together = Dim::from(cut.together);
        let heads = self.heads.exact_div(&together);
        let call = Call::new(&KERNEL, items)
            .define("DIM", self.dim)
            .define("HEADS", cut.together)
            .define("VECTORS", vectors)
            .define("KEYS", KEYS)
            .define("LANES", cut.lanes)
            .define("SLICES", self.slices(cut))
            .grid(
                heads.unwrap_or_else(|| self.heads.clone()),
                self.queries.ceil_div(cut.rows)?,
                parts,
            );
        let with = |call: Call, name, number: Option<i64>| match number {
            Some(n) => call.define(name, n),
            None => call,
        };
        Ok(with(with(call, "WINDOW", self.window), "RING", self.ring))
    }

    /// Work-items that share a part of a result.
    fn slices(&self, cut: &Cut) -> i64 {
        (cut.items / (cut.rows * cut.together * (self.dim / self.vector()))).max(1)
    }

    /// Work-groups for each query vector: those that its keys are split over, else one for each sequence.
    fn parts(&self, splits: Option<&Dim>) -> Dim {
        splits.unwrap_or(&self.batch).clone()
    }

    fn by_row(&self, split: Option<i64>, splits: Option<&Dim>) -> Call {
        let call = with_size(Call::new(&ROW, ROW_ITEMS), self.dim)
            // As many keys at once as a work-group takes where they are split, or registers hold.
            .define("STEPS", (128 * (self.dim / 8) / i64::from(ROW_ITEMS)).min(8))
            .grid(self.heads.clone(), 1, self.parts(splits));
        match split {
            Some(keys) => call.define("SPLIT", keys),
            None => call,
        }
    }

    fn by_lanes(&self, shared: i64) -> OpResult<Call> {
        let vectors = self.queries.mul(&shared.into())?;
        let call = Call::new(&KERNEL, 8)
            .define("BROADCAST", 1)
            .define("DIM", self.dim);
        let call = (0..3).fold(call, Call::reads_by_fours);
        Ok(call.grid(self.kv_heads.clone(), vectors.ceil_div(8)?, self.batch.clone()))
    }

    fn on_units(&self) -> OpResult<Call> {
        // Local memory holds fewer keys of large heads.
        let keys = if self.dim == 256 { KEYS / 2 } else { KEYS };
        let rows = self.queries.ceil_div(i64::from(UNITS_TAKE.0 / 2))?;
        let call = with_size(Call::new(&UNITS, UNITS_TAKE.0), self.dim).define("KEYS", keys);
        Ok(call.grid(self.heads.clone(), rows, self.batch.clone()))
    }

    fn by_item(&self) -> OpResult<Call> {
        let most = self.most.unwrap_or(ITEM).clamp(1, ITEM);
        let together = Self::dividing(self.group.unwrap_or(1), ITEM / most);
        let cut = Cut {
            together,
            rows: ITEM / together,
            items: CPU_ITEMS,
            lanes: 1,
        };
        // The text in WGSL alone asks for keys, lanes and slices.
        Ok(self.cut(&cut, 1, self.batch.clone())?.define("ITEM", 1))
    }

    fn by_line(&self, split: Option<i64>, splits: Option<&Dim>) -> OpResult<Call> {
        // Heads share keys where these are split, else they are too few to share the cores.
        let most = if self.many { LINE } else { 1 };
        let cut = Cut {
            together: Self::dividing(self.group.unwrap_or(1), most),
            rows: 1,
            items: CPU_ITEMS,
            lanes: 1,
        };
        let call = self
            .wide(self.cut(&cut, 1, self.parts(splits))?)
            .define("LINE", 1);
        Ok(match split {
            Some(keys) => call.define("SPLIT", keys),
            None => call,
        })
    }

    fn by_groups(&self, caps: &Caps, split: Option<i64>, splits: Option<&Dim>) -> OpResult<Call> {
        let (one, cpu) = (self.one(), caps.kind == DeviceKind::Cpu);
        // On a CPU driver a work-item is a loop iteration: just enough of them to own a result row. On others a single query wants as many
        // loads in flight as can be.
        let items = match (cpu, one) {
            (true, _) => CPU_ITEMS,
            (false, false) => KEYS,
            (false, true) => i64::from(caps.max_workgroup).clamp(KEYS, 4 * KEYS) / KEYS * KEYS,
        };
        let lanes = (items / KEYS).max(1);
        // Heads share their keys where these are many, or rows are.
        let group = match self.group {
            Some(group) if cpu || !one || self.many => group,
            _ => 1,
        };
        // A work-item keeps the sums of a score of each vector.
        let most = match (caps.few_registers(), one) {
            (false, _) => VECTORS.0,
            (true, false) => 3,
            (true, true) => 1,
        };
        let room = most.min(VECTORS.1 / (self.dim + lanes * KEYS));
        let together = Self::dividing(group, HEADS.min(group).min(room));
        let cut = Cut {
            together,
            rows: if one { 1 } else { (room / together).clamp(1, ROWS) },
            items,
            lanes,
        };
        let workgroup = u32::try_from(items).unwrap_or(u32::MAX);
        let call = self.wide(self.cut(&cut, workgroup, self.parts(splits))?);
        let flags = [
            ("SHARED", self.slices(&cut) > 1),
            ("Q8", self.stored == Rows::Words),
        ];
        let set = flags.into_iter().filter(|(_, set)| *set);
        let call = set.fold(call, |call, (name, _)| call.define(name, 1));
        Ok(match split {
            Some(keys) => call.define("SPLIT", keys),
            None => call,
        })
    }

    /// Puts the parts of the results of one query together.
    fn merge(&self, way: Way, cpu: bool, splits: &Dim, parts: Operand, result: Operand) -> Call {
        let pieces = self.dim / self.vector();
        let slices = if cpu { 1 } else { (MERGING / pieces).max(1) };
        let call = if way == Way::Line {
            Call::new(&MERGE, 1).define("LINE", 1)
        } else {
            Call::new(&MERGE, u32::try_from(pieces * slices).unwrap_or(u32::MAX))
        };
        let call = call
            .define("DIM", self.dim)
            .operand(parts)
            .operand(result)
            .grid(self.heads.clone(), 1, 1)
            .field(&self.heads)
            .field(splits)
            .may_be_padded();
        self.wide(call)
    }
}

impl Attention {
    /// Emits the dispatches of a node whose keys and values are stored as `stored` says.
    pub(super) fn emit(&self, cx: &mut LowerCx<'_>, stored: Rows) -> OpResult<()> {
        let node = Node::of(self, cx, stored)?;
        let cpu = cx.caps().kind == DeviceKind::Cpu;
        let stored = cx.output(0)?.dtype;
        let way = node.way(cx.caps(), stored);
        // One query has too few heads to fill a device; of many keys each part is a work-group.
        let splits_keys = node.single() && node.many && !matches!(way, Way::Lanes(_));
        let split = splits_keys.then_some(if cpu { 512 } else { 128 });
        let splits = split.map(|s| node.read.ceil_div(s)).transpose()?;
        // Keys behind the live ones, there because lengths are padded, are not read.
        let (live, live_keys) = cx.live(&node.keys);
        // Where work-groups see what others wrote, the last one of a head puts the parts together.
        let meet = way == Way::Row && meets(cx.caps()) && node.heads.as_const().is_some();
        let row = Dim::from(node.dim + node.vector());
        let found = match &splits {
            None => None,
            Some(splits) => Some(cx.temp(DType::F32, splits.mul(&node.heads)?.mul(&row)?)),
        };
        let result = match found {
            Some(found) if !meet => found,
            _ => cx.output(0)?,
        };
        let call = match way {
            Way::Row => node.by_row(split, splits.as_ref()),
            Way::Lanes(shared) => node.by_lanes(shared)?,
            Way::Units => node.on_units()?,
            Way::Item => node.by_item()?,
            Way::Line => node.by_line(split, splits.as_ref())?,
            Way::Groups => node.by_groups(cx.caps(), split, splits.as_ref())?,
        };
        let call = node.operands.into_iter().fold(call, Call::operand);
        let call = call.optional(node.mask).operand(live).operand(result);
        let call = if way == Way::Row {
            let counters = node.heads.as_const().and_then(|n| u64::try_from(n).ok());
            let counted = found.zip(counters).filter(|_| meet);
            call.optional(counted.map(|(found, _)| found))
                .optional(counted.map(|(_, n)| cx.counters(n)))
        } else {
            call
        };
        let call = call
            .field(&node.heads)
            .field(&node.kv_heads)
            .field(&node.queries)
            .field(&node.keys)
            .field(live_keys);
        let call = node.strides.iter().fold(call, Call::field).field(self.scale);
        let call = call.field(self.softcap);
        let call = match way {
            Way::Row => call.field(node.parts(splits.as_ref())),
            Way::Units => call,
            Way::Lanes(_) | Way::Item | Way::Line | Way::Groups => {
                let call = call.field(Dim::from(node.dim / node.vector()));
                if cpu || cx.caps().fast_local {
                    call
                } else {
                    call.define("ROLLED", 1)
                }
            }
        };
        let call = if self.softcap == 0.0 {
            call
        } else {
            call.define("CAPPED", 1)
        };
        // Rows of a second sequence would lie elsewhere.
        cx.emit(if node.batch.is(1) {
            call.may_be_padded()
        } else {
            call
        })?;
        match splits {
            Some(splits) if !meet => {
                let y = cx.output(0)?;
                cx.emit(node.merge(way, cpu, &splits, result, y))
            }
            _ => Ok(()),
        }
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
