//! One static plan of a graph for a device: work in order, places, and formulas for what changes from run to run.
//!
//! A plan is made for all lengths within its bounds. What a run changes is the values of symbols; from them
//! [`Plan::bind`] computes parameters and grids, and nothing else.

mod arena;
pub mod bind;
mod compile;
mod cost;
pub mod host;
pub mod lower;
pub mod memory;
mod order;
mod steps;
pub mod text;
mod views;

pub use bind::Bound;
pub use cost::{Arithmetic, CommandCost, NodeCost};
pub use host::{HostRead, HostReason, HostStep, HostWork};

use crate::backend::kernel::{FieldTy, KernelSpec};
use crate::backend::tunable::Tuning;
use crate::error::{Error, Result, Stage};
use crate::graph::{Graph, NodeId, State};
use crate::shape::{Bindings, Dim, Shape, Symbol};
use crate::tensor::{DType, HostTensor};
use lower::WeightKey;
use std::collections::{BTreeSet, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// A pool has this many bytes at least: a multiple of the alignment of every device.
const LEAST_POOL: u64 = 4096;

/// What a plan is made for.
#[derive(Clone, Debug)]
pub struct Options {
    /// Storage type of float activations and states: `f16` or `f32`.
    pub float: DType,
    /// Symbols replaced by numbers before lowering (`batch = 1`, `sequence = 1` for decode).
    pub fixed: Bindings,
    /// Largest values of the other symbols. Memory is placed for them; binding more is an error. A symbol that has none leaves
    /// the plan open: values share memory only where their sizes are proved to fit, and [`Plan::reserve`] takes it for the
    /// values that come.
    pub bounds: Bindings,
    /// Rows that each state has room for; but see [`Options::rows`].
    pub state_rows: i64,
    /// Most rows that a run appends to a state, in any plan of the session. With it a state of which but a window is read has room for no
    /// more than that and these.
    pub run_rows: Option<i64>,
    /// Memory is planned as if every node had a kernel: for reports about a device that does not exist. Such a plan is not run.
    pub every_on_device: bool,
    /// A length whose every change would change sizes, and how it is padded so that it does not.
    pub padding: Option<Padding>,
}

impl Default for Options {
    /// Floats in `f32`, no symbol fixed, bounded or padded, no room in states.
    fn default() -> Self {
        Self {
            float: DType::F32,
            fixed: Bindings::new(),
            bounds: Bindings::new(),
            state_rows: 0,
            run_rows: None,
            every_on_device: false,
            padding: None,
        }
    }
}

impl Options {
    /// Rows that a state has room for: [`Options::state_rows`], or its window and those of a run, where these are fewer. Row `n` lies at `n`
    /// modulo them.
    pub fn rows(&self, state: &State) -> i64 {
        let ring = state.window.zip(self.run_rows);
        ring.map_or(self.state_rows, |(w, new)| {
            w.saturating_add(new).min(self.state_rows)
        })
    }
}

/// Sizes are computed as if `symbol + beyond` were the next multiple (paper, section 2.1, "Reduce shape updating time
/// consumption"); the exact value is what kernels read from the table of [`lower::LowerCx::live`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Padding {
    /// The symbol, a number of tokens.
    pub symbol: Symbol,
    /// What is added to it before rounding up: the tokens of this run.
    pub beyond: i64,
    /// The multiple, above 0.
    pub multiple: i64,
}

impl Padding {
    /// The value that sizes are computed with for `value`, at most `bound`.
    pub fn apply(&self, value: i64, bound: i64) -> i64 {
        let up = |v: i64| {
            Some(
                v.checked_add(self.beyond + self.multiple - 1)?
                    .div_euclid(self.multiple)
                    * self.multiple,
            )
        };
        up(value).map_or(value, |v| v - self.beyond).min(bound).max(value)
    }
}

/// Where an operand of a step lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Bytes of the arena.
    Arena {
        /// The tensor, by index into [`Plan::tensors`].
        tensor: usize,
        /// First byte, aligned to [`crate::backend::Caps::view_align`].
        offset: u64,
        /// Length.
        len: u64,
    },
    /// A packed constant, whole.
    Weight(usize),
    /// A state, whole.
    State(usize),
    /// The table of values that change at every step, whole.
    Live,
    /// Words that are zero between dispatches, whole.
    Counters,
    /// Bytes of that table: a tensor whose elements are expressions.
    Known {
        /// First byte, aligned to [`crate::backend::Caps::view_align`].
        offset: u64,
        /// Length.
        len: u64,
    },
}

/// The value of one parameter field.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Value {
    Expr(usize),
    F32(f32),
}

/// One dispatch.
#[derive(Clone, Debug)]
pub struct Step {
    /// Index into [`Plan::kernels`].
    pub kernel: usize,
    /// Places of the bound operands, in binding order.
    pub args: Vec<Place>,
    /// Byte range of this step's parameters in [`crate::backend::Launch::params`].
    pub params: Range<u32>,
    /// Names of the model's nodes that this step computes.
    pub nodes: Vec<String>,
    /// The graph's node that it belongs to.
    pub node: NodeId,
    /// What measuring may change of it.
    pub tuning: Option<Tuning>,
    grid: [usize; 3],
    fields: Vec<(FieldTy, Value)>,
}

/// A part of a plan that runs in one go.
#[derive(Clone, Debug)]
pub enum Segment {
    /// Dispatches, by index into [`Plan::steps`], with no synchronisation between them.
    Device(Range<usize>),
    /// A node on the host, by index into [`Plan::host`].
    Host(usize),
}

/// A value that the caller, or a step on the host, writes or reads.
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
    /// Place on the device, if a kernel reads or writes it.
    pub place: Option<Place>,
    /// Place among the values on the host, if a step on the host reads or writes it.
    pub host: Option<usize>,
    /// The value itself, of an output that is a constant of the model.
    pub constant: Option<Arc<HostTensor>>,
}

/// A state's device form.
#[derive(Clone, Debug)]
pub struct StateSlot {
    /// Name of the input that it replaces.
    pub name: String,
    /// Element type on the device.
    pub dtype: DType,
    /// Bytes for all rows.
    pub bytes: u64,
    /// Rows that there is room for.
    pub rows: i64,
    /// How many of the last rows are read, where these need not be all; see [`State::window`].
    pub window: Option<i64>,
}

/// Why a value needs no memory of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shared {
    /// It is a part, or all, of this value's bytes.
    View(String),
    /// It overwrites this value, which is read for the last time there.
    InPlace(String),
}

/// A value in the arena over time.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Name in the model, or `scratch` and a number.
    pub name: String,
    /// First position in the plan's order at which it holds data.
    pub first: usize,
    /// Last position at which it is read or written.
    pub last: usize,
    /// Bytes as an expression of the symbols, rounded up to whole pairs.
    pub size: Dim,
    /// Bytes at the plan's bounds.
    pub bytes: u64,
    /// First byte in the arena.
    pub offset: u64,
    /// Memory that it shares.
    pub shared: Option<Shared>,
}

/// A node on the device by which kernels can be checked.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The node with its operands and results, as a step on the host would have them.
    pub node: HostStep,
    /// Its dispatches, by index into [`Plan::steps`].
    pub steps: Vec<usize>,
}

/// Sizes that `inspect` and tests look at, in bytes, at the plan's bounds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryReport {
    /// Sum of all activations, each with memory of its own.
    pub without_reuse: u64,
    /// Saved because a value is a part of another one's bytes.
    pub gained_by_views: u64,
    /// Saved because a result overwrites an operand.
    pub gained_in_place: u64,
    /// Saved because values that do not live at one time share bytes.
    pub gained_by_packing: u64,
    /// The arena.
    pub arena: u64,
    /// Largest live set: no plan of these steps in this order needs less.
    pub lower_bound: u64,
    /// The arena as an expression of the symbols.
    pub formula: String,
    /// All states.
    pub states: u64,
}

/// Why no length of a plan is padded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPadding {
    /// [`Options::padding`] is not set.
    #[error("not asked for")]
    NotAsked,
    /// What was asked for cannot be, or a node runs on the host.
    #[error("{0}")]
    Exact(String),
    /// A kernel has a size that depends on the length as a parameter.
    #[error("kernel {kernel} of node \"{node}\" computes over {size} itself")]
    Kernel {
        /// The kernel.
        kernel: &'static str,
        /// The node that it computes.
        node: String,
        /// The size.
        size: Dim,
    },
    /// The length is not the outermost size of an input or output.
    #[error("\"{value}\" of shape {shape} does not grow at its end")]
    Inner {
        /// The input or output.
        value: String,
        /// Its shape.
        shape: Shape,
    },
    /// A view has the elements of its source in other places once they are padded.
    #[error("\"{value}\" of shape {shape} has the elements of {source_shape} in other places")]
    Moved {
        /// The view.
        value: String,
        /// Its shape.
        shape: Shape,
        /// That of its source.
        source_shape: Shape,
    },
}

/// Something that must hold in every run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// 0 or more; 0 where `equal`.
    pub dim: Dim,
    /// The same before symbols were fixed.
    pub given: Dim,
    /// The expression must be 0.
    pub equal: bool,
    /// What it means when it is not.
    pub meaning: String,
}

/// How an open plan is placed.
#[derive(Clone, Debug)]
struct Open {
    /// Symbols without a bound.
    symbols: Vec<Symbol>,
    /// What memory was taken for.
    reserved: Bindings,
    /// Sizes of the pools that values share, in their order.
    pools: Vec<Dim>,
    /// For each tensor its pool, and its first byte there.
    tensors: Vec<(usize, u64)>,
}

/// A compiled graph; see the module documentation.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Dispatches in order.
    pub steps: Vec<Step>,
    /// Nodes that the host runs.
    pub host: Vec<HostStep>,
    /// What runs, in order.
    pub segments: Vec<Segment>,
    /// Specialised kernels.
    pub kernels: Vec<KernelSpec>,
    /// Nodes whose dispatches have each kernel at least once: of those with a kernel one with the least work, which the host has to repeat.
    pub samples: Vec<Sample>,
    /// Packed constants.
    pub weights: Vec<WeightKey>,
    /// States, in the graph's order.
    pub states: Vec<StateSlot>,
    /// Words that are zero between dispatches: as many as a kernel counts in.
    pub counters: u64,
    /// Graph inputs that something reads.
    pub inputs: Vec<Port>,
    /// Graph inputs that nothing reads; only their shapes matter.
    pub unread: Vec<Port>,
    /// Graph outputs.
    pub outputs: Vec<Port>,
    /// Everything that lies in the arena.
    pub tensors: Vec<Tensor>,
    /// Sizes.
    pub memory: MemoryReport,
    /// Symbols whose values come from the data of a run, in the order in which they become known.
    pub made: Vec<Symbol>,
    /// The length that is padded, or why none is.
    pub padding: Result<Padding, NoPadding>,
    /// Symbols that elements or sizes of inputs define, with the position of the input in `inputs`.
    pub defined_by_inputs: Vec<(usize, Symbol, crate::graph::Part)>,
    bounds: Bindings,
    fixed: Bindings,
    /// Symbols without a bound, and where the slots lie for them.
    open: Option<Open>,
    conditions: Vec<Condition>,
    /// Number of values on the host.
    host_values: usize,
    formulas: bind::Formulas,
    work: cost::Work,
}

impl Plan {
    /// The input port of this name, if anything reads it.
    pub fn input(&self, name: &str) -> Option<&Port> {
        self.inputs.iter().find(|p| p.name == name)
    }

    /// The output port of this name.
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

    /// True when memory must be taken anew before a run with these values: a symbol without a bound exceeds what
    /// [`Plan::reserve`] was asked for.
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

    /// True when symbols have no bound and nothing is reserved for them yet.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Places an open plan for values up to `bindings`, and up to what was reserved before.
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
            Ok(u64::try_from(v).unwrap_or(0))
        };
        let (mut starts, mut total) = (Vec::with_capacity(open.pools.len()), 0u64);
        for p in &open.pools {
            // Values without elements keep places of their own.
            let bytes = at(p)?.max(LEAST_POOL);
            starts.push((total, bytes));
            total = total.checked_add(bytes).ok_or_else(|| {
                Error::other(Stage::Run, "the activations need more bytes than can be counted")
            })?;
        }
        for (t, (pool, within)) in self.tensors.iter_mut().zip(&open.tensors) {
            let (start, bytes) = starts.get(*pool).copied().unwrap_or_default();
            t.offset = start + within;
            // A pool is proved to cover what lies in it; its own upper bound may still be the sharper one.
            t.bytes = at(&t.size)?.min(bytes.saturating_sub(*within)).max(8);
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
        for place in steps.chain(ports.filter_map(|p| p.place.as_mut())) {
            if let Place::Arena { tensor, offset, len } = place
                && let Some(t) = tensors.get(*tensor)
            {
                (*offset, *len) = (t.offset, t.bytes);
            }
        }
        Ok(())
    }

    /// What every run is checked for.
    pub fn conditions(&self) -> &[Condition] {
        &self.conditions
    }

    /// Number of values that the host keeps during a run.
    pub fn host_values(&self) -> usize {
        self.host_values
    }

    /// Bytes of the table of values that change at every step; a multiple of 16, above 0.
    pub fn live_bytes(&self) -> u64 {
        (self.formulas.live_count() as u64 * 4)
            .next_multiple_of(16)
            .max(16)
    }
}

fn dim_error(e: &crate::shape::DimError) -> Error {
    Error::other(Stage::Plan, e.to_string())
}

/// Bytes of the constants of `plans` of one graph, packed on the device or kept by the host; what several of them read is there once.
pub fn weight_bytes(graph: &Graph, plans: &[Plan]) -> Result<u64> {
    let keys: HashSet<&WeightKey> = plans.iter().flat_map(|p| &p.weights).collect();
    // What only the host reads stays in its memory, in the model's own type.
    let mut kept: Vec<&Arc<HostTensor>> = Vec::new();
    for read in plans
        .iter()
        .flat_map(|p| &p.host)
        .flat_map(|h| h.reads.iter().flatten())
    {
        if let HostRead::Const(t) = read
            && !kept.iter().any(|k| Arc::ptr_eq(k, t))
        {
            kept.push(t);
        }
    }
    let host: u64 = kept.iter().map(|t| (t.len() * t.dtype().size()) as u64).sum();
    keys.into_iter().try_fold(host, |sum, key| {
        key.bytes(graph).and_then(|n| sum.checked_add(n)).ok_or_else(|| {
            Error::other(
                Stage::Plan,
                format!(
                    "the bytes of weight \"{}\" cannot be counted",
                    key.names(graph).join("\", \"")
                ),
            )
        })
    })
}

/// The symbols of a graph's inputs and states.
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
