//! Scaled dot-product attention with grouped heads (own domain, made by the pass `attention`):
//! `softmax(scale * q k^T + mask) v` for each query head. With a soft cap c, the scores are
//! `c tanh(scale * q k^T / c)`.
//!
//! Operands: q `[b, s, heads, d]`, k and v `[b, t, kv_heads, d]`, and an optional mask that is
//! added to the scores. The mask broadcasts to `[b, heads, s, t]` and may have additional leading
//! axes of size 1. The result is `[b, s, heads, d]`. With a window w, query i attends to no key
//! before `t - s + i - (w - 1)`, whatever the mask says. Softmax is computed in `f32`; the score
//! matrix is never stored. Kernels require an even d and do not read keys outside the window; a
//! cache may keep only those keys ([`LowerCx::ring`]).

use super::case::{Case, given, input};
use super::sizes::Sizes;
use super::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, operand, own};
use crate::backend::kernel::{Feature, Features, Form, Language, MASK_MIN};
use crate::lower::{Call, DeviceProfile, LowerCx, Operand, TensorCores};
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::{DType, HostTensor};

crate::kernel! {
    static KERNEL: TypedKernel<Args> = "attention" {
        heads, kv_heads, rows, keys, live_keys, mask_b, mask_h, mask_s, mask_t: U32;
        scale, softcap: F32;
        parts: U32
    } [q: In, k: In, v: In, mask: OptionalIn, live: Weight, y: Out]
    .with_forms(&[Form {
        // Each lane of a subgroup has one query vector and loads different keys and values for all
        // lanes.
        define: "BROADCAST",
        needs: DeviceProfile::lane_broadcast,
        features: Features {
            wgsl: &[Feature::Subgroups],
            ..Features::NONE
        },
    }])
}

crate::kernel! {
    /// Many rows, on tensor cores.
    static UNITS: TypedKernel<UnitsArgs> = "variants/attention_mma" {
        heads, kv_heads, rows, keys, live_keys, mask_b, mask_h, mask_s, mask_t: U32;
        scale, softcap: F32
    } [q: In Half4, k: In Half4, v: In Half4, mask: OptionalIn, live: Weight, y: Out]
    .reads_grid_axes(&[1])
    .with_features(Features {
        opencl_c: &[Feature::TensorCores],
        wgsl: &[Feature::TensorCores, Feature::F16],
    })
    .variant_of(&KERNEL.kernel, |device| {
        device.tensor_cores.is_some() && device.max_workgroup >= UNITS_TAKE.0 && device.local_bytes >= UNITS_TAKE.1
    })
}

crate::kernel! {
    /// One row, on large GPUs: one work-group per head.
    static ROW: TypedKernel<RowArgs> = "variants/attention_row" {
        heads, kv_heads, rows, keys, live_keys, mask_b, mask_h, mask_s, mask_t: U32;
        scale, softcap: F32;
        splits: U32
    } [
        q: In Uint4, k: In Uint4, v: In Uint4, mask: OptionalIn, live: Weight, y: Out,
        found: OptionalInOut Uint, counts: OptionalInOut Uint
    ]
    .with_features(Features {
        opencl_c: &[Feature::TensorCores],
        ..Features::NONE
    })
    .variant_of(&KERNEL.kernel, |device| {
        // In OpenCL C with PTX; in WGSL wherever local memory is fast.
        let able = device.tensor_cores.is_some() || device.language == Language::Wgsl && device.fast_local;
        able && device.max_workgroup >= ROW_ITEMS && device.local_bytes >= 19 << 10
    })
}

crate::kernel! {
    static MERGE: TypedKernel<MergeArgs> = "attention_merge" {
        vectors, splits: U32
    } [x: In, y: Out]
}

/// Maximum query rows per work-group; keys and values are read once for all of them.
const ROWS: i64 = 4;
/// Maximum heads with shared keys that a work-group processes at once.
const HEADS: i64 = 8;
/// Maximum query vectors per work-group, and maximum local memory for them and their weights, in
/// floats.
const VECTORS: (i64, i64) = (16, 3072);
/// A single query is split over its keys if there can be more than this.
pub const UNSPLIT: i64 = 256;
/// Work-items that merge the partial results of a query vector, unless the head itself has more
/// pieces.
const MERGING: i64 = 64;
/// Largest head size that kernels support.
const MOST_HEAD: i64 = 512;

/// True if kernels support heads of this size.
pub fn takes_head(size: i64) -> bool {
    size % 2 == 0 && size <= MOST_HEAD
}

/// Work-items per work-group on tensor cores (32 of them process 16 rows) and the local memory they
/// use.
const UNITS_TAKE: (u32, u32) = (128, 46 << 10);

/// Head sizes that the kernels for large GPUs support.
const SIZES: [i64; 3] = [64, 128, 256];

/// Specializes a kernel for large GPUs to a head size.
fn with_size<A>(call: Call<A>, dim: i64) -> Call<A> {
    let from = |call: Call<A>, least, name| if dim >= least { call.define(name, 1) } else { call };
    from(from(call.define("DIM", dim), 128, "FROM128"), 256, "FROM256")
}

/// True if the tensor core kernel supports these operands. It rounds weights to `f16`, which is
/// invisible in `f16` results.
fn on_units(device: &DeviceProfile, dim: i64, operands: &[Operand]) -> bool {
    let halves = operands.iter().all(|o| o.dtype == DType::F16);
    device.takes(&UNITS) && halves && SIZES.contains(&dim)
}

/// Work-items per work-group of the kernel for one row.
const ROW_ITEMS: u32 = 256;

/// True if the kernel for one row supports these operands.
fn by_rows(device: &DeviceProfile, dim: i64, operands: &[Operand]) -> bool {
    let halves = operands.iter().all(|o| o.dtype == DType::F16);
    device.takes(&ROW) && halves && SIZES.contains(&dim)
}

/// True if the last work-group of a head can detect that it is last and merge what the others
/// wrote; needs PTX.
fn meets(device: &DeviceProfile) -> bool {
    device.tensor_cores == Some(TensorCores::Ptx)
}

/// Work-items per work-group of the generic kernel on a CPU.
const CPU_ITEMS: i64 = 16;

/// Query vectors per work-item on OpenCL CPUs.
const ITEM: i64 = 16;

/// Maximum heads per work-item on OpenCL CPUs with one row: their sums are vectors in registers.
const LINE: i64 = 4;

/// Keys per tile.
const KEYS: i64 = 64;

/// See the module documentation.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Scale of the scores.
    pub scale: f32,
    /// Soft cap of the scores, applied before the mask; 0 for none.
    pub softcap: f32,
    /// Number of keys visible to a query, counting the key at its own position. At least 1.
    pub window: Option<i64>,
}

impl Attention {
    /// Attention without soft cap and window.
    pub fn scaled(scale: f32) -> Self {
        Self {
            scale,
            softcap: 0.0,
            window: None,
        }
    }

    /// Number of keys that a run reads: those inside the window, whatever the mask says.
    fn keys_read(&self, sizes: &Sizes) -> u64 {
        let axis = |i: usize| sizes.input(i).get(1).copied().unwrap_or(0);
        let (queries, keys) = (axis(0), axis(1));
        let window = self.window.and_then(|w| u64::try_from(w).ok());
        window.map_or(keys, |w| keys.min(w.saturating_add(queries.saturating_sub(1))))
    }

    /// A scaled and capped score, before the mask.
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

/// Checks that the shapes of queries, keys, values and mask match.
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

/// True if a mask of these sizes broadcasts to the scores, apart from leading axes of size 1.
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
                        reason = "rounding to the result type is intended"
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
        self.emit(cx, KvStorage::Floats)
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        let [b, s, heads, d] = sizes.input(0) else {
            return sizes.results();
        };
        let keys = self.keys_read(sizes);
        // Two multiply-adds per key and element: for the score and for the weighted sum.
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

/// Storage of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KvStorage {
    /// One float per element.
    Floats,
    /// 8-bit rows of [`super::kv_append_q8`].
    Words,
}

/// A node's sizes and operands, as its kernels need them.
struct Node {
    batch: Dim,
    queries: Dim,
    heads: Dim,
    keys: Dim,
    kv_heads: Dim,
    /// Size of a head.
    dim: i64,
    /// Query heads per key head, if constant.
    group: Option<i64>,
    /// Maximum number of queries, if known.
    most: Option<i64>,
    /// Window, and number of rows kept by the cache, if there can be more keys.
    window: Option<i64>,
    ring: Option<i64>,
    /// Keys read by a single query, and whether there can be more than [`UNSPLIT`].
    read: Dim,
    many: bool,
    stored: KvStorage,
    /// The mask, with the strides of [`mask_strides`].
    mask: Option<Operand>,
    strides: [Dim; 4],
    /// Queries, keys and values.
    operands: [Operand; 3],
}

/// Kernel selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// One row: [`ROW`].
    Row,
    /// Lanes of a subgroup share loaded keys and values. Holds the number of heads that share keys.
    Lanes(i64),
    /// Many rows: [`UNITS`].
    Units,
    /// Many rows on an OpenCL CPU: each query vector is a lane of a work-item.
    Item,
    /// One row on an OpenCL CPU: vectors run along the head.
    Line,
    /// Generic: keys are shared by a work-group.
    Groups,
}

/// Work-group shape: heads that share keys, query rows, work-items, and how many of these (`lanes`)
/// compute the score of one key.
struct GroupShape {
    together: i64,
    rows: i64,
    items: i64,
    lanes: i64,
}

impl Node {
    /// Collects the operands of a node of `op` with keys and values stored as `stored`.
    fn of(op: &Attention, cx: &mut LowerCx<'_>, stored: KvStorage) -> OpResult<Self> {
        let (q, k) = (cx.shape(0)?, cx.shape(1)?);
        let ([batch, queries, heads, dim], [_, keys, kv_heads, _]) = (q.0.as_slice(), k.0.as_slice()) else {
            return Err(OpError::mismatch("ranks (4 each)", q, k));
        };
        let Some(dim) = dim.as_const().filter(|d| takes_head(*d)) else {
            return Err(OpError::NoKernel(format!(
                "attention of {q}; kernels require an even head size up to {MOST_HEAD}"
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
                "numbers of rows kept by the key and value caches",
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

    /// True for one query per sequence.
    fn one(&self) -> bool {
        self.queries.is(1)
    }

    /// True for one query of one sequence.
    fn single(&self) -> bool {
        self.one() && self.batch.is(1)
    }

    /// Selects the kernel for results stored as `result`.
    fn way(&self, device: &DeviceProfile, result: DType) -> Way {
        let (dim, operands) = (self.dim, &self.operands);
        // Some kernels read unquantized keys from the first one on.
        let plain = self.stored == KvStorage::Floats && self.window.is_none() && self.ring.is_none();
        let lanes = || dim % 32 == 0 && dim <= 128 && device.takes_form(&KERNEL, "BROADCAST");
        // CPU compilers map explicit vectors of a kernel to SIMD.
        let by_vectors = device.explicit_vectors() && dim % ITEM == 0 && self.stored == KvStorage::Floats;
        if plain && self.single() && by_rows(device, dim, operands) {
            return Way::Row;
        }
        if let Some(shared) = self.group
            && plain
            && lanes()
        {
            return Way::Lanes(shared);
        }
        if plain && !self.one() && result == DType::F16 && on_units(device, dim, operands) {
            Way::Units
        } else if by_vectors && !self.one() {
            Way::Item
        } else if by_vectors && self.single() {
            Way::Line
        } else {
            Way::Groups
        }
    }

    /// Vector width of the generic kernel.
    fn vector(&self) -> i64 {
        if self.dim % 4 == 0 { 4 } else { 2 }
    }

    /// Specializes `call` to the vector width.
    fn wide<A>(&self, call: Call<A>) -> Call<A> {
        if self.vector() == 4 {
            call.define("WIDE", 1)
        } else {
            call
        }
    }

    /// The largest divisor of `group` up to `most`.
    fn dividing(group: i64, most: i64) -> i64 {
        (1..=most).rev().find(|n| group % n == 0).unwrap_or(1)
    }

    /// Call of the generic kernel with work-groups of `items` and `parts` partial results per query
    /// vector.
    fn cut(&self, cut: &GroupShape, items: u32, parts: Dim) -> OpResult<Call<Args>> {
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
        let with = |call: Call<Args>, name, number: Option<i64>| match number {
            Some(n) => call.define(name, n),
            None => call,
        };
        Ok(with(with(call, "WINDOW", self.window), "RING", self.ring))
    }

    /// Work-items that share a part of a result.
    fn slices(&self, cut: &GroupShape) -> i64 {
        (cut.items / (cut.rows * cut.together * (self.dim / self.vector()))).max(1)
    }

    /// Work-groups per query vector: one per key split, else one per sequence.
    fn parts(&self, splits: Option<&Dim>) -> Dim {
        splits.unwrap_or(&self.batch).clone()
    }

    fn by_row(&self, split: Option<i64>, splits: Option<&Dim>) -> Call<RowArgs> {
        let call = with_size(Call::new(&ROW, ROW_ITEMS), self.dim)
            // As many keys at once as a split work-group processes or registers hold.
            .define("STEPS", (128 * (self.dim / 8) / i64::from(ROW_ITEMS)).min(8))
            .grid(self.heads.clone(), 1, self.parts(splits));
        match split {
            Some(keys) => call.define("SPLIT", keys),
            None => call,
        }
    }

    fn by_lanes(&self, shared: i64) -> OpResult<Call<Args>> {
        let vectors = self.queries.mul(&shared.into())?;
        let call = Call::new(&KERNEL, 8)
            .define("BROADCAST", 1)
            .define("DIM", self.dim)
            .reads_vec4(Args::q)
            .reads_vec4(Args::k)
            .reads_vec4(Args::v);
        Ok(call.grid(self.kv_heads.clone(), vectors.ceil_div(8)?, self.batch.clone()))
    }

    fn on_units(&self) -> OpResult<Call<UnitsArgs>> {
        // Local memory holds fewer keys of large heads.
        let keys = if self.dim == 256 { KEYS / 2 } else { KEYS };
        let rows = self.queries.ceil_div(i64::from(UNITS_TAKE.0 / 2))?;
        let call = with_size(Call::new(&UNITS, UNITS_TAKE.0), self.dim).define("KEYS", keys);
        Ok(call.grid(self.heads.clone(), rows, self.batch.clone()))
    }

    fn by_item(&self) -> OpResult<Call<Args>> {
        let most = self.most.unwrap_or(ITEM).clamp(1, ITEM);
        let together = Self::dividing(self.group.unwrap_or(1), ITEM / most);
        let cut = GroupShape {
            together,
            rows: ITEM / together,
            items: CPU_ITEMS,
            lanes: 1,
        };
        // Only the WGSL source uses keys, lanes and slices.
        Ok(self.cut(&cut, 1, self.batch.clone())?.define("ITEM", 1))
    }

    fn by_line(&self, split: Option<i64>, splits: Option<&Dim>) -> OpResult<Call<Args>> {
        // Heads share keys if the keys are split; otherwise there are too few heads to share the
        // cores.
        let most = if self.many { LINE } else { 1 };
        let cut = GroupShape {
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

    fn by_groups(
        &self,
        device: &DeviceProfile,
        split: Option<i64>,
        splits: Option<&Dim>,
    ) -> OpResult<Call<Args>> {
        let (one, cpu) = (self.one(), device.is_cpu());
        // On CPUs a work-item is a loop iteration: use just enough to own a result row. Elsewhere a
        // single query needs as many loads in flight as possible.
        let items = match (cpu, one) {
            (true, _) => CPU_ITEMS,
            (false, false) => KEYS,
            (false, true) => i64::from(device.max_workgroup).clamp(KEYS, 4 * KEYS) / KEYS * KEYS,
        };
        let lanes = (items / KEYS).max(1);
        // Heads share keys if there are many keys or several rows.
        let group = match self.group {
            Some(group) if cpu || !one || self.many => group,
            _ => 1,
        };
        // A work-item keeps the partial score of each vector in registers.
        let most = match (device.few_registers, one) {
            (false, _) => VECTORS.0,
            (true, false) => 3,
            (true, true) => 1,
        };
        let room = most.min(VECTORS.1 / (self.dim + lanes * KEYS));
        let together = Self::dividing(group, HEADS.min(group).min(room));
        let cut = GroupShape {
            together,
            rows: if one { 1 } else { (room / together).clamp(1, ROWS) },
            items,
            lanes,
        };
        let workgroup = u32::try_from(items).unwrap_or(u32::MAX);
        let call = self.wide(self.cut(&cut, workgroup, self.parts(splits))?);
        let flags = [
            ("SHARED", self.slices(&cut) > 1),
            ("Q8", self.stored == KvStorage::Words),
        ];
        let set = flags.into_iter().filter(|(_, set)| *set);
        let call = set.fold(call, |call, (name, _)| call.define(name, 1));
        Ok(match split {
            Some(keys) => call.define("SPLIT", keys),
            None => call,
        })
    }

    /// Merges the partial results of one query.
    fn merge(&self, way: Way, cpu: bool) -> Call<MergeArgs> {
        let pieces = self.dim / self.vector();
        let slices = if cpu { 1 } else { (MERGING / pieces).max(1) };
        let call = if way == Way::Line {
            Call::new(&MERGE, 1).define("LINE", 1)
        } else {
            Call::new(&MERGE, u32::try_from(pieces * slices).unwrap_or(u32::MAX))
        };
        let call = call
            .define("DIM", self.dim)
            .grid(self.heads.clone(), 1, 1)
            .may_be_padded();
        self.wide(call)
    }
}

impl Attention {
    /// Emits the dispatches of a node with keys and values stored as `stored`.
    pub(super) fn emit(&self, cx: &mut LowerCx<'_>, stored: KvStorage) -> OpResult<()> {
        let node = Node::of(self, cx, stored)?;
        let cpu = cx.device().is_cpu();
        let stored = cx.output(0)?.dtype;
        let way = node.way(cx.device(), stored);
        // One query has too few heads to fill a device, so many keys are split over work-groups.
        let splits_keys = node.single() && node.many && !matches!(way, Way::Lanes(_));
        let split = splits_keys.then_some(if cpu { 512 } else { 128 });
        let splits = split.map(|s| node.read.ceil_div(s)).transpose()?;
        // Keys beyond the current length exist only as padding and are not read.
        let (live, live_keys) = cx.live(&node.keys);
        // If work-groups can see each other's writes, the last one of a head merges the partial
        // results.
        let meet = way == Way::Row && meets(cx.device()) && node.heads.as_const().is_some();
        let row = Dim::from(node.dim + node.vector());
        let found = match &splits {
            None => None,
            Some(splits) => Some(cx.temp(DType::F32, splits.mul(&node.heads)?.mul(&row)?)),
        };
        let result = match found {
            Some(found) if !meet => found,
            _ => cx.output(0)?,
        };
        let [q, k, v] = node.operands;
        let [mask_b, mask_h, mask_s, mask_t] = node.strides.clone();
        /// The arguments of a kernel: those that all kernels have, and its own.
        macro_rules! args {
            ($Args:ident { $($own:tt)* }) => {
                $Args {
                    q,
                    k,
                    v,
                    mask: node.mask,
                    live,
                    y: result,
                    heads: node.heads.clone(),
                    kv_heads: node.kv_heads.clone(),
                    rows: node.queries.clone(),
                    keys: node.keys.clone(),
                    live_keys,
                    mask_b,
                    mask_h,
                    mask_s,
                    mask_t,
                    scale: self.scale,
                    softcap: self.softcap,
                    $($own)*
                }
            };
        }
        match way {
            Way::Row => {
                let counters = node.heads.as_const().and_then(|n| u64::try_from(n).ok());
                let counted = found.zip(counters).filter(|_| meet);
                let args = args!(RowArgs {
                    found: counted.map(|(found, _)| found),
                    counts: counted.map(|(_, n)| cx.counters(n)),
                    splits: node.parts(splits.as_ref()),
                });
                cx.emit(self.finish(&node, node.by_row(split, splits.as_ref())), args)?;
            }
            Way::Units => cx.emit(self.finish(&node, node.on_units()?), args!(UnitsArgs {}))?,
            Way::Lanes(_) | Way::Item | Way::Line | Way::Groups => {
                let call = match way {
                    Way::Lanes(shared) => node.by_lanes(shared)?,
                    Way::Item => node.by_item()?,
                    Way::Line => node.by_line(split, splits.as_ref())?,
                    _ => node.by_groups(cx.device(), split, splits.as_ref())?,
                };
                let call = if cpu || cx.device().fast_local {
                    call
                } else {
                    call.define("ROLLED", 1)
                };
                let args = args!(Args {
                    parts: Dim::from(node.dim / node.vector()),
                });
                cx.emit(self.finish(&node, call), args)?;
            }
        }
        match splits {
            Some(splits) if !meet => {
                let args = MergeArgs {
                    x: result,
                    y: cx.output(0)?,
                    vectors: node.heads.clone(),
                    splits,
                };
                cx.emit(node.merge(way, cpu), args)
            }
            _ => Ok(()),
        }
    }

    /// Adds to a call what depends on the attributes and the batch.
    fn finish<A>(&self, node: &Node, call: Call<A>) -> Call<A> {
        let call = if self.softcap == 0.0 {
            call
        } else {
            call.define("CAPPED", 1)
        };
        // Rows of a second sequence would be at other offsets.
        if node.batch.is(1) {
            call.may_be_padded()
        } else {
            call
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
    kernels: &[&KERNEL.kernel, &UNITS.kernel, &ROW.kernel, &MERGE.kernel],
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
    // Sequences with all keys masked, or with masked keys at the start and in between. Scores are
    // sixteenths, since sums with the minimum `f16` preserve them.
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
