//! A static plan of a graph for a device: ordered work, memory placement, and formulas for
//! everything that changes between runs.
//!
//! A plan covers all lengths within its bounds. A run changes only the values of symbols, from
//! which [`Plan::bind`] computes parameters and grids.

mod arena;
pub mod bind;
mod breakpoints;
mod compile;
mod conditions;
mod cost;
pub mod host;
mod lowering;
pub mod memory;
mod order;
mod padding;
mod steps;
pub mod text;

pub use crate::lower::Condition;
pub use bind::LaunchState;
pub use breakpoints::Breakpoints;
pub use cost::{Arithmetic, CommandCost, NodeCost};
pub use host::{HostRead, HostReason, HostStep, HostWork};
pub use padding::{NoPadding, Padding};

use crate::backend::kernel::{FieldTy, KernelSpec};
use crate::backend::tunable::Tuning;
use crate::error::{Error, Result, Stage};
use crate::graph::bounds::Bounds;
use crate::graph::{Graph, NodeId, State};
use crate::lower::WeightKey;
use crate::num;
use crate::shape::{Bindings, Dim, Shape, Symbol};
use crate::tensor::{DType, HostTensor};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// Minimum size of a pool in bytes: a multiple of every device's alignment.
const MIN_POOL: u64 = 4096;
/// Minimum number of bytes that a kernel binds.
const MIN_VIEW: u64 = 8;

/// Options for compiling a plan.
#[derive(Clone, Debug)]
pub struct Options {
    /// Storage type of float activations: `f16` or `f32`.
    pub float: DType,
    /// Storage type of float states; `None` means that of activations.
    pub state_float: Option<DType>,
    /// Symbols replaced by numbers before lowering (`batch = 1`, `sequence = 1` for decode).
    pub fixed: Bindings,
    /// Largest values of the other symbols. Memory is placed for these values, and binding larger
    /// ones is an error. A symbol without a bound makes the plan open: values share memory only if
    /// their sizes are proved to fit, and [`Plan::reserve`] allocates memory for actual values.
    pub bounds: Bindings,
    /// Capacity of each state in rows; see also [`Options::rows`].
    pub state_rows: i64,
    /// Maximum number of rows that a run appends to a state, in any plan of the session. If set, a
    /// state of which only a window is read has capacity for the window and these rows only.
    pub run_rows: Option<i64>,
    /// Plans memory as if every node had a kernel, for reports about a generic device. Such a plan
    /// cannot run.
    pub every_on_device: bool,
    /// A length that changes in every run, and how it is padded so that sizes change rarely.
    pub padding: Option<Padding>,
    /// Outputs that a run does not compute; [`Executor::run_rest`] computes them afterwards.
    ///
    /// [`Executor::run_rest`]: crate::executor::Executor::run_rest
    pub on_request: &'static [&'static str],
}

impl Default for Options {
    /// Floats in `f32`, no symbol fixed, bounded or padded, no capacity in states.
    fn default() -> Self {
        Self {
            float: DType::F32,
            state_float: None,
            fixed: Bindings::new(),
            bounds: Bindings::new(),
            state_rows: 0,
            run_rows: None,
            every_on_device: false,
            padding: None,
            on_request: &[],
        }
    }
}

impl Options {
    /// Storage type of float states.
    pub fn state_float(&self) -> DType {
        self.state_float.unwrap_or(self.float)
    }

    /// Capacity of a state in rows: [`Options::state_rows`], or its window plus the rows of a run
    /// if that is less. Row `n` is stored at `n` modulo the capacity.
    pub fn rows(&self, state: &State) -> i64 {
        let ring = state.window.zip(self.run_rows);
        ring.map_or(self.state_rows, |(w, new)| {
            w.saturating_add(new).min(self.state_rows)
        })
    }

    /// The capacity of a state that is a ring buffer, because it keeps fewer than
    /// [`Options::state_rows`] rows.
    pub fn ring(&self, state: &State) -> Option<i64> {
        Some(self.rows(state)).filter(|rows| *rows < self.state_rows)
    }
}

/// Where an operand of a step is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// A range of the arena.
    Arena {
        /// The tensor, by index into [`Plan::tensors`].
        tensor: usize,
        /// First byte, aligned to [`crate::backend::DeviceProfile::view_align`].
        offset: u64,
        len: u64,
    },
    Weight(usize),
    State(usize),
    /// The table of values that change at every step.
    Live,
    /// Words that are zero between dispatches.
    Counters,
    /// The word that says which data of a run is wrong.
    Fault,
    /// A range of that table: a tensor whose elements are expressions.
    Known {
        /// First byte, aligned to [`crate::backend::DeviceProfile::view_align`].
        offset: u64,
        len: u64,
    },
}

/// The value of one parameter field.
#[derive(Clone, Copy, Debug, PartialEq)]
enum FieldValue {
    Expr(usize),
    F32(f32),
}

#[derive(Clone, Debug)]
pub struct Step {
    /// Index into [`Plan::kernels`].
    pub kernel: usize,
    /// The bound operands, in binding order.
    pub args: Vec<Storage>,
    /// Byte range of this step's parameters in [`crate::backend::Launch::params`].
    pub params: Range<u32>,
    /// Names of the model's nodes that this step computes.
    pub nodes: Vec<String>,
    /// The graph node that it belongs to.
    pub node: NodeId,
    /// Its tunable settings, if any.
    pub tuning: Option<Tuning>,
    grid: [usize; 3],
    fields: Vec<(FieldTy, FieldValue)>,
}

/// A part of a plan that runs without interruption.
#[derive(Clone, Debug)]
pub enum Segment {
    /// Dispatches, by index into [`Plan::steps`], without synchronisation between them.
    Device(Range<usize>),
    /// A host step, by index into [`Plan::host`].
    Host(usize),
}

/// A value that the caller or a host step reads or writes.
#[derive(Clone, Debug, PartialEq)]
pub struct Port {
    /// Name in the model.
    pub name: String,
    /// Element type in the model.
    pub dtype: DType,
    /// Element type on the device.
    pub device: DType,
    /// Shape with the fixed symbols replaced.
    pub shape: Shape,
    /// Location on the device, if a kernel reads or writes it.
    pub storage: Option<Storage>,
    /// Index among the values on the host, if a host step reads or writes it.
    pub host: Option<usize>,
    /// The value itself, if an output is a constant of the model.
    pub constant: Option<Arc<HostTensor>>,
    /// The values of an integer input that its readers accept, if those are fewer than its type
    /// has.
    pub accepts: Option<Bounds>,
}

/// The device form of a state.
#[derive(Clone, Debug)]
pub struct StateSlot {
    /// Name of the model input that it replaces.
    pub name: String,
    /// Element type on the device.
    pub dtype: DType,
    /// Bytes for all rows.
    pub bytes: u64,
    pub rows: i64,
    /// How many of the last rows are read, if not all; see [`State::window`].
    pub window: Option<i64>,
}

/// Why a value needs no memory of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shared {
    /// It is part or all of this value's bytes.
    View(String),
    /// It overwrites this value at its last read.
    InPlace(String),
}

/// A value in the arena and its lifetime.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Name in the model, or `scratch` and a number.
    pub name: String,
    /// First position in the plan's order at which it holds data.
    pub first: usize,
    /// Last position at which it is read or written.
    pub last: usize,
    /// Size in bytes as an expression of the symbols, rounded up to whole pairs.
    pub size: Dim,
    /// Size in bytes at the plan's bounds.
    pub bytes: u64,
    /// First byte in the arena.
    pub offset: u64,
    /// The memory that it shares, if any.
    pub shared: Option<Shared>,
}

/// A node on the device that is used to validate kernels.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The node with its operands and results, in the form of a host step.
    pub node: HostStep,
    /// Its dispatches, by index into [`Plan::steps`].
    pub steps: Vec<usize>,
}

/// Memory sizes in bytes at the plan's bounds, for `inspect` and tests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryReport {
    /// Sum of all activations without sharing.
    pub without_reuse: u64,
    /// Saved because a value is part of another value's bytes.
    pub gained_by_views: u64,
    /// Saved because a result overwrites an operand.
    pub gained_in_place: u64,
    /// Saved because values with disjoint lifetimes share memory.
    pub gained_by_packing: u64,
    /// Size of the arena.
    pub arena: u64,
    /// Largest set of values alive at once: no placement for this order needs less.
    pub lower_bound: u64,
    /// Size of the arena as an expression of the symbols.
    pub formula: String,
    /// Size of all states.
    pub states: u64,
}

/// Placement of an open plan.
#[derive(Clone, Debug)]
struct Open {
    /// Symbols without a bound.
    symbols: Vec<Symbol>,
    /// The values for which memory was reserved.
    reserved: Bindings,
    /// Sizes of the pools that values share, in order.
    pools: Vec<Dim>,
    /// For each tensor its pool, and its first byte in it.
    tensors: Vec<(usize, u64)>,
}

/// A compiled graph; see the module documentation.
#[derive(Clone, Debug)]
pub struct Plan {
    pub steps: Vec<Step>,
    /// Nodes that the host runs.
    pub host: Vec<HostStep>,
    /// The segments in execution order.
    pub segments: Vec<Segment>,
    /// How many of them a run executes. The rest compute the outputs of [`Options::on_request`].
    pub main_segments: usize,
    pub kernels: Vec<KernelSpec>,
    /// Nodes with kernels, at least one per kernel, that together use all kernels: for each kernel
    /// the one with the least work, which the host has to repeat.
    pub samples: Vec<Sample>,
    pub weights: Vec<WeightKey>,
    /// States, in the graph's order.
    pub states: Vec<StateSlot>,
    /// Number of words that are zero between dispatches: the most that a kernel counts in.
    pub counters: u64,
    /// What may be wrong with the data of a run. Kernels write the number of what is, from 1 on.
    pub faults: Vec<String>,
    /// Graph inputs that are read.
    pub inputs: Vec<Port>,
    /// Graph inputs that are not read; only their shapes matter.
    pub unread: Vec<Port>,
    pub outputs: Vec<Port>,
    /// All values in the arena.
    pub tensors: Vec<Tensor>,
    pub memory: MemoryReport,
    /// Symbols defined by the data of a run, in the order in which they become known.
    pub made: Vec<Symbol>,
    /// The padded length, or why there is none.
    pub padding: Result<Padding, NoPadding>,
    /// Symbols that elements or sizes of inputs define, with the position of the input in `inputs`.
    pub defined_by_inputs: Vec<(usize, Symbol, crate::graph::TensorScalar)>,
    bounds: Bindings,
    fixed: Bindings,
    /// Symbols without a bound, and the placement of their slots.
    open: Option<Open>,
    conditions: Vec<Condition>,
    /// Number of values on the host.
    host_values: usize,
    formulas: bind::Formulas,
    work: cost::PlanWork,
}

impl Plan {
    /// The input port with this name, if the input is read.
    pub fn input(&self, name: &str) -> Option<&Port> {
        self.inputs.iter().find(|p| p.name == name)
    }

    /// The output port with this name.
    pub fn output(&self, name: &str) -> Option<&Port> {
        self.outputs.iter().find(|p| p.name == name)
    }

    /// Work-groups on each axis of the dispatch at `step` of [`Plan::steps`], as expressions.
    pub fn grid(&self, step: usize) -> Option<[&Dim; 3]> {
        Some(self.steps.get(step)?.grid.map(|e| self.formulas.at(e)))
    }

    /// Symbols that every run must bind, with their largest values.
    pub fn bounds(&self) -> &Bindings {
        &self.bounds
    }

    /// Whether memory must be reserved again before a run with these values: a symbol without a
    /// bound exceeds the reservation of [`Plan::reserve`].
    pub fn must_grow(&self, bindings: &Bindings) -> bool {
        let exceeds = |o: &Open, s: &Symbol| {
            bindings
                .get(s)
                .is_some_and(|v| o.reserved.get(s).is_none_or(|r| v > r))
        };
        self.open
            .as_ref()
            .is_some_and(|o| o.symbols.iter().any(|s| exceeds(o, s)))
    }

    /// Whether symbols have no bound and nothing is reserved for them yet.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Places an open plan for values up to `bindings`, and up to earlier reservations.
    pub fn reserve(&mut self, bindings: &Bindings) -> Result<()> {
        let Some(open) = &mut self.open else { return Ok(()) };
        for s in &open.symbols {
            let v = bindings.get(s).ok_or_else(|| bind::unbound(s))?;
            if v < 0 {
                let what = format!("{s} = {v}: a size cannot be negative");
                return Err(Error::other(Stage::Run, what));
            }
            let v = open.reserved.get(s).map_or(v, |r| r.max(v));
            open.reserved.set(s, v);
            self.formulas.set_limit(s, v);
        }
        let mut bounds = self.bounds.clone();
        for (s, v) in open.reserved.iter() {
            bounds.set(s, v);
        }
        let at = |d: &Dim| -> Result<u64> {
            let v = d.upper_bound(&bounds).map_err(|e| dim_error(&e))?;
            Ok(v.max(0).cast_unsigned())
        };
        // Values without elements are bound, too, possibly past the end of their pool.
        let sizes = open.pools.iter().map(|p| Ok(at(p)?.max(MIN_POOL)));
        let mut pools = sizes.collect::<Result<Vec<u64>>>()?;
        for (pool, within) in &open.tensors {
            if let Some(bytes) = pools.get_mut(*pool)
                && within.saturating_add(MIN_VIEW) > *bytes
            {
                *bytes = bytes.saturating_add(MIN_POOL);
            }
        }
        let (mut starts, mut total) = (Vec::with_capacity(pools.len()), 0u64);
        for bytes in pools {
            starts.push((total, bytes));
            total = total
                .checked_add(bytes)
                .ok_or_else(|| Error::other(Stage::Run, "the size of the activations overflows"))?;
        }
        for (t, (pool, within)) in self.tensors.iter_mut().zip(&open.tensors) {
            let (start, bytes) = *num::at(&starts, *pool)?;
            t.offset = start + within;
            // The pool is proved to cover its tensors, but its own upper bound may be tighter than
            // theirs.
            t.bytes = at(&t.size)?.min(bytes.saturating_sub(*within)).max(MIN_VIEW);
        }
        self.memory.arena = total.max(16);
        let tensors = &self.tensors;
        let steps = self.steps.iter_mut().flat_map(|s| &mut s.args);
        let samples = self.samples.iter_mut().map(|s| &mut s.node);
        let host = self.host.iter_mut().chain(samples).flat_map(HostStep::ports);
        let ports = self
            .inputs
            .iter_mut()
            .chain(&mut self.unread)
            .chain(&mut self.outputs)
            .chain(host);
        for storage in steps.chain(ports.filter_map(|p| p.storage.as_mut())) {
            if let Storage::Arena { tensor, offset, len } = storage
                && let Some(t) = tensors.get(*tensor)
            {
                (*offset, *len) = (t.offset, t.bytes);
            }
        }
        Ok(())
    }

    /// The conditions that every run must meet.
    pub fn conditions(&self) -> &[Condition] {
        &self.conditions
    }

    /// Number of values that the host keeps during a run.
    pub fn host_values(&self) -> usize {
        self.host_values
    }

    /// Size in bytes of the table of values that change at every step; a multiple of 16, above 0.
    pub fn live_bytes(&self) -> u64 {
        (self.formulas.live_count() as u64 * 4)
            .next_multiple_of(16)
            .max(16)
    }
}

fn dim_error(e: &crate::shape::DimError) -> Error {
    Error::other(Stage::Plan, e.to_string())
}

/// Size in bytes of the constants of `plans` of one graph, packed on the device or kept by the
/// host. Shared constants count once.
pub fn weight_bytes(graph: &Graph, plans: &[Plan]) -> Result<u64> {
    let keys: HashSet<&WeightKey> = plans.iter().flat_map(|p| &p.weights).collect();
    // Constants read only by the host stay in host memory, in the model's type.
    let mut kept: HashMap<*const HostTensor, &Arc<HostTensor>> = HashMap::new();
    for read in plans
        .iter()
        .flat_map(|p| &p.host)
        .flat_map(|h| h.reads.iter().flatten())
    {
        if let HostRead::Const(t) = read {
            kept.insert(Arc::as_ptr(t), t);
        }
    }
    let host: u64 = kept.values().map(|t| (t.len() * t.dtype().size()) as u64).sum();
    keys.into_iter().try_fold(host, |sum, key| {
        key.bytes(graph).and_then(|n| sum.checked_add(n)).ok_or_else(|| {
            Error::other(
                Stage::Plan,
                format!(
                    "the size of weight \"{}\" overflows",
                    key.names(graph).join("\", \"")
                ),
            )
        })
    })
}

/// The symbols in a graph's inputs and states.
pub fn symbols(graph: &Graph) -> Result<Vec<Symbol>> {
    let mut all = BTreeSet::new();
    for v in graph
        .inputs()
        .iter()
        .copied()
        .chain(graph.states().iter().map(|s| s.input))
    {
        for d in &graph.fact(v)?.shape.0 {
            d.symbols(&mut all);
        }
    }
    Ok(all.into_iter().collect())
}
