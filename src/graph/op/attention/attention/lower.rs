//! The choice of a kernel for attention, and its dispatches.

use super::{
    Args, Attention, FEW_PAGED, KERNEL, MAX_HEAD, MERGE, MergeArgs, ROW, RowArgs, TENSOR_CORES,
    TensorCoresArgs, UNSPLIT, mask_strides, supports_head_size,
};
use crate::graph::op::paged_attention::TILE_ROWS;
use crate::graph::op::{OpError, OpResult};
use crate::kernels::attention::{CAPPED, CAUSAL, DIM, Q8, ROW_ITEMS, TENSOR_CORE_NEEDS, WINDOW};
use crate::kernels::kv_append::RING;
use crate::lower::{Call, DeviceProfile, LowerCx, Operand, TensorCores};
use crate::num;
use crate::shape::Dim;
use crate::tensor::DType;

/// Maximum query rows per work-group; keys and values are read once for all of them.
const ROWS: i64 = 4;

/// Maximum heads with shared keys that a work-group processes at once.
const HEADS: i64 = 8;

/// Maximum query vectors per work-group, and maximum local memory for them and their weights, in
/// floats.
const VECTORS: (i64, i64) = (16, 3072);

/// Work-items that merge the partial results of a query vector, unless the head itself has more
/// pieces.
const MERGING: i64 = 64;

/// Head sizes that the kernels for large GPUs support.
const SIZES: [i64; 3] = [64, 128, 256];

/// Sets a numeric constant of a kernel, if there is one.
fn with<A>(call: Call<A>, name: &'static str, number: Option<i64>) -> Call<A> {
    match number {
        Some(n) => call.define(name, n),
        None => call,
    }
}

/// Specializes a kernel for large GPUs to a head size.
fn with_size<A>(call: Call<A>, dim: i64) -> Call<A> {
    let from = |call: Call<A>, least, name| if dim >= least { call.define(name, 1) } else { call };
    let call = from(call.define(DIM, dim), 128, "DIM_FROM_128");
    from(call, 256, "DIM_FROM_256")
}

/// True if the tensor core kernel supports these operands. It rounds weights to `f16`, which is
/// invisible in `f16` results.
fn fits_tensor_cores(device: &DeviceProfile, dim: i64, operands: &[Operand]) -> bool {
    let halves = operands.iter().all(|o| o.dtype == DType::F16);
    device.supports(&TENSOR_CORES) && halves && SIZES.contains(&dim)
}

/// True if the kernel for one row supports these operands.
fn by_rows(device: &DeviceProfile, dim: i64, operands: &[Operand]) -> bool {
    let halves = operands.iter().all(|o| o.dtype == DType::F16);
    device.supports(&ROW) && halves && SIZES.contains(&dim)
}

/// True if the last work-group of a head can detect that it is last and merge what the others
/// wrote; needs PTX.
fn merges_itself(device: &DeviceProfile) -> bool {
    device.tensor_cores == Some(TensorCores::Ptx)
}

const KEYS: i64 = 64;

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
    /// There may be rows that do not see all keys. A single row stands at the last position.
    causal: bool,
    /// Window, and number of rows kept by the cache, if there can be more keys.
    window: Option<i64>,
    ring: Option<i64>,
    /// Keys read by a single query, and whether there can be more than [`UNSPLIT`].
    read: Dim,
    many: bool,
    /// Maximum number of queries, if known.
    most: Option<i64>,
    /// Keys and values have the form of [`super::super::kv_append_q8`].
    q8: bool,
    /// Tiles and pages, and the number of tiles, of [`PagedAttention`].
    paged: Option<Paged>,
    /// The mask, with the strides of [`mask_strides`].
    mask: Option<Operand>,
    strides: [Dim; 4],
    /// Queries, keys and values.
    operands: [Operand; 3],
}

/// Operands of [`PagedAttention`].
struct Paged {
    tiles: Operand,
    pages: Operand,
    count: Dim,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Strategy {
    Row,
    TensorCores,
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
    /// Collects the operands of a node of `op`.
    fn of(op: &Attention, cx: &mut LowerCx<'_>, in_pages: bool) -> OpResult<Self> {
        let (q, k) = (cx.shape(0)?, cx.shape(1)?);
        let ([batch, queries, heads, dim], [_, keys, kv_heads, _]) = (q.0.as_slice(), k.0.as_slice()) else {
            return Err(OpError::mismatch("ranks (4 each)", q, k));
        };
        let Some(dim) = dim.as_const().filter(|d| supports_head_size(*d)) else {
            return Err(OpError::NoKernel(format!(
                "attention of {q}; kernels require an even head size up to {MAX_HEAD}"
            )));
        };
        let paged = match in_pages {
            true => Some(Paged {
                count: num::at(&cx.shape(3)?.0, 0)?.clone(),
                tiles: cx.input(3)?,
                pages: cx.input(4)?,
            }),
            false => None,
        };
        let (mask, strides) = if cx.has(3) && !in_pages {
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
        // A sequence may have more keys than its pages have rows, since pages may repeat.
        let upper = cx.upper_bound(keys).filter(|_| !in_pages);
        let exceeds = |n: &i64| upper.is_none_or(|keys| keys > *n);
        let window = op.window.filter(exceeds);
        Ok(Self {
            dim,
            group: heads.exact_div(kv_heads).and_then(|g| g.as_const()),
            causal: op.causal && (in_pages || !queries.is(1)),
            window,
            ring: ring.filter(exceeds),
            read: match window {
                Some(w) => keys.minimum(&w.into())?,
                None => keys.clone(),
            },
            most: cx.upper_bound(queries),
            many: window.or(upper).is_none_or(|n| n > UNSPLIT),
            q8: cx.fact(1)?.dtype == DType::I32,
            paged,
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
        self.queries.is(1) && self.paged.is_none()
    }

    /// True for one query of one sequence.
    fn single(&self) -> bool {
        self.one() && self.batch.is(1)
    }

    /// Keys per work-group, if keys are split: one query has too few heads to fill a device.
    fn split(&self, device: &DeviceProfile) -> Option<i64> {
        (self.single() && self.many && !device.divides_work()).then_some(128)
    }

    /// Selects the kernel for results stored as `result`.
    fn strategy(&self, device: &DeviceProfile, result: DType) -> Strategy {
        let (dim, operands) = (self.dim, &self.operands);
        // Some kernels read unquantized keys from the first one on; that for rows knows windows in
        // pages.
        let floats = !self.q8 && self.ring.is_none();
        let plain = floats && self.window.is_none();
        let few = match self.paged {
            Some(_) => floats && self.most.is_some_and(|most| most <= FEW_PAGED),
            None => plain && self.single(),
        };
        if few && by_rows(device, dim, operands) {
            Strategy::Row
        } else if plain && !self.one() && result == DType::F16 && fits_tensor_cores(device, dim, operands) {
            Strategy::TensorCores
        } else {
            Strategy::Groups
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

    /// Call of the generic kernel with work-groups of `items`, `depth` of them along the last axis
    /// of the grid.
    fn cut(&self, cut: &GroupShape, items: u32, depth: Dim) -> OpResult<Call<Args>> {
        let vectors = cut.rows * cut.together;
        let together = Dim::from(cut.together);
        let heads = self.heads.exact_div(&together);
        // Work-groups of a tile.
        let most = num::signed(TILE_ROWS);
        let of_tile = self.most.map_or(most, |rows| rows.min(most));
        let groups = self.paged.as_ref().map(|_| (of_tile + cut.rows - 1) / cut.rows);
        let rows = match (&self.paged, groups) {
            (Some(paged), Some(groups)) => paged.count.mul(&groups.into())?,
            _ => self.queries.ceil_div(cut.rows)?,
        };
        let call = Call::new(&KERNEL, items)
            .define(DIM, self.dim)
            .define("HEADS", cut.together)
            .define("VECTORS", vectors)
            .define("KEYS", KEYS)
            .define("LANES", cut.lanes)
            .define("SLICES", self.slices(cut))
            .grid(heads.unwrap_or_else(|| self.heads.clone()), rows, depth);
        let call = with(with(call, WINDOW, self.window), RING, self.ring);
        Ok(with(call, "TILE_GROUPS", groups))
    }

    /// Work-items that share a part of a result.
    fn slices(&self, cut: &GroupShape) -> i64 {
        (cut.items / (cut.rows * cut.together * (self.dim / self.vector()))).max(1)
    }

    /// Work-groups along the last axis of the grid: one per key split, else one per sequence.
    fn depth(&self, splits: Option<&Dim>) -> Dim {
        splits.unwrap_or(&self.batch).clone()
    }

    /// The number of keys, which changes in every run. Pages have a table of their own.
    fn live_keys(&self) -> Dim {
        match self.paged {
            Some(_) => 0.into(),
            None => self.keys.clone(),
        }
    }

    /// The parameter `pieces` of the generic kernel: sequences or tiles for native kernels, vectors
    /// of a head for others.
    fn pieces(&self, device: &DeviceProfile) -> Dim {
        match (device.divides_work(), &self.paged) {
            (true, None) => self.batch.clone(),
            (true, Some(paged)) => paged.count.clone(),
            (false, _) => Dim::from(self.dim / self.vector()),
        }
    }

    fn by_row(&self, split: Option<i64>, splits: Option<&Dim>) -> Call<RowArgs> {
        let call = with_size(Call::new(&ROW, ROW_ITEMS), self.dim)
            // As many keys at once as a split work-group processes or registers hold.
            .define("STEPS", (128 * (self.dim / 8) / i64::from(ROW_ITEMS)).min(8))
            .grid(self.heads.clone(), self.queries.clone(), self.depth(splits));
        with(with(call, "SPLIT", split), WINDOW, self.window)
    }

    fn by_tensor_cores(&self) -> OpResult<Call<TensorCoresArgs>> {
        // Local memory holds fewer keys of large heads.
        let keys = if self.dim == 256 { KEYS / 2 } else { KEYS };
        let groups = match &self.paged {
            Some(paged) => paged.count.clone(),
            None => self.queries.ceil_div(i64::from(TENSOR_CORE_NEEDS.0 / 2))?,
        };
        let call = with_size(Call::new(&TENSOR_CORES, TENSOR_CORE_NEEDS.0), self.dim).define("KEYS", keys);
        Ok(call.grid(self.heads.clone(), groups, self.batch.clone()))
    }

    fn by_groups(
        &self,
        device: &DeviceProfile,
        split: Option<i64>,
        splits: Option<&Dim>,
    ) -> OpResult<Call<Args>> {
        let one = self.one();
        // A single query needs as many loads in flight as possible.
        let items = match one {
            true => i64::from(device.max_workgroup).clamp(KEYS, 4 * KEYS) / KEYS * KEYS,
            false => KEYS,
        };
        let lanes = (items / KEYS).max(1);
        // Heads share keys if there are many keys or several rows.
        let group = match self.group {
            Some(group) if !one || self.many => group,
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
        let workgroup = num::exact(items, "work-items")?;
        let call = self.wide(self.cut(&cut, workgroup, self.depth(splits))?);
        let flags = [
            ("SHARED", self.slices(&cut) > 1),
            (Q8, self.q8),
            ("ROLLED", !device.fast_local),
        ];
        let set = flags.into_iter().filter(|(_, set)| *set);
        let call = set.fold(call, |call, (name, _)| call.define(name, 1));
        Ok(with(call, "SPLIT", split))
    }

    /// Emits the dispatch that merges the partial results `x`.
    fn emit_merge(&self, cx: &mut LowerCx<'_>, x: Operand, splits: Dim) -> OpResult<()> {
        let args = MergeArgs {
            x,
            y: cx.output(0)?,
            vectors: self.heads.clone(),
            splits,
        };
        cx.emit(self.merge()?, args)
    }

    /// Merges the partial results of one query.
    fn merge(&self) -> OpResult<Call<MergeArgs>> {
        let pieces = self.dim / self.vector();
        let slices = (MERGING / pieces).max(1);
        let call = Call::new(&MERGE, num::exact(pieces * slices, "work-items")?)
            .define(DIM, self.dim)
            .grid(self.heads.clone(), 1, 1)
            .may_be_padded();
        Ok(self.wide(call))
    }
}

impl Attention {
    /// Emits the dispatches of a node.
    pub(super) fn emit(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let node = Node::of(self, cx, false)?;
        self.emit_node(cx, &node)
    }

    /// Emits the dispatch of a node of [`PagedAttention`].
    pub(crate) fn emit_paged(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        if !self.causal {
            let what = "attention in pages to later keys";
            return Err(OpError::NoKernel(what.to_owned()));
        }
        let node = Node::of(self, cx, true)?;
        self.emit_node(cx, &node)
    }

    fn emit_node(&self, cx: &mut LowerCx<'_>, node: &Node) -> OpResult<()> {
        let stored = cx.output(0)?.dtype;
        let strategy = node.strategy(cx.device(), stored);
        let split = node.split(cx.device());
        let splits = split.map(|s| node.read.ceil_div(s)).transpose()?;
        // Keys beyond the current length exist only as padding and are not read.
        let (live, live_keys) = cx.live(&node.live_keys());
        // If work-groups can see each other's writes, the last one of a head merges the partial
        // results.
        let merged =
            strategy == Strategy::Row && merges_itself(cx.device()) && node.heads.as_const().is_some();
        let row = Dim::from(node.dim + node.vector());
        let found = match &splits {
            None => None,
            Some(splits) => Some(cx.temp(DType::F32, splits.mul(&node.heads)?.mul(&row)?)),
        };
        let result = match found {
            Some(found) if !merged => found,
            _ => cx.output(0)?,
        };
        let [q, k, v] = node.operands;
        let paged = node.paged.as_ref();
        let [mask_b, mask_h, mask_s, mask_t] = node.strides.clone();
        /// The arguments of a kernel: those that all kernels have, and its own.
        macro_rules! args {
            ($Args:ident { $($own:tt)* }) => {
                $Args {
                    q,
                    k,
                    v,
                    mask: node.mask,
                    tiles: paged.map(|p| p.tiles),
                    pages: paged.map(|p| p.pages),
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
        match strategy {
            Strategy::Row => {
                let counters = node.heads.as_const().and_then(|n| u64::try_from(n).ok());
                let counted = found.zip(counters).filter(|_| merged);
                let args = args!(RowArgs {
                    found: counted.map(|(found, _)| found),
                    counts: counted.map(|(_, n)| cx.counters(n)),
                    splits: node.depth(splits.as_ref()),
                    tile_count: paged.map_or(0.into(), |p| p.count.clone()),
                });
                cx.emit(self.finish(node, node.by_row(split, splits.as_ref())), args)?;
            }
            Strategy::TensorCores => cx.emit(
                self.finish(node, node.by_tensor_cores()?),
                args!(TensorCoresArgs {}),
            )?,
            Strategy::Groups => {
                let call = node.by_groups(cx.device(), split, splits.as_ref())?;
                let pieces = node.pieces(cx.device());
                cx.emit(self.finish(node, call), args!(Args { pieces }))?;
            }
        }
        match splits {
            Some(splits) if !merged => node.emit_merge(cx, result, splits),
            _ => Ok(()),
        }
    }

    /// Adds to a call what depends on the attributes and the batch.
    fn finish<A>(&self, node: &Node, call: Call<A>) -> Call<A> {
        let call = if self.softcap == 0.0 {
            call
        } else {
            call.define(CAPPED, 1)
        };
        let call = call.define_if(CAUSAL, node.causal);
        // Rows of a second sequence would be at other offsets.
        if node.batch.is(1) && node.paged.is_none() {
            call.may_be_padded()
        } else {
            call
        }
    }
}
