//! Compiles a graph to a plan.

use super::arena::Arena;
use super::bind::Formulas;
use super::cost::PlanWork;
use super::host::HostReason;
use super::steps::StepBuilder;
use super::{Options, Plan, StateSlot, dim_error, order};
use crate::backend::Caps;
use crate::error::{Error, Result, Stage};
use crate::graph::bounds::{self, Bounds};
use crate::graph::op::device_dtype;
use crate::graph::{Graph, MadeSymbol, Node, NodeId, State, TensorScalar, ValueId};
use crate::lower::Collected;
use crate::shape::{Bindings, Dim, Fact, Known, Symbol};
use crate::tensor::DType;
use std::collections::{BTreeMap, BTreeSet, HashMap};

impl Plan {
    /// Plans `graph`, whose facts must be derived, for a device. Every symbol must be fixed or
    /// bounded, except those that data defines. Errors name the node.
    pub fn compile(graph: &Graph, caps: &Caps, options: &Options) -> Result<Self> {
        Compiler::new(graph, caps, options)?.compile()
    }
}

/// An item in the order of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Item {
    /// A dispatch, by index into the collected calls.
    Call(usize),
    /// A node on the host.
    Host(NodeId),
    /// Reads a value back from the device for the symbols that it defines.
    Observe(ValueId),
    /// Computes a value that shape inference knows as expressions, as a tensor. Kernels read such
    /// values from the live table.
    Known(ValueId),
}

pub(super) struct Compiler<'a> {
    pub graph: &'a Graph,
    pub caps: &'a Caps,
    pub options: &'a Options,
    /// Facts with the fixed symbols replaced, by value.
    pub facts: Vec<Option<Fact>>,
    /// The largest values of symbols: the bounds, and the operators' limits for symbols that data
    /// defines.
    pub limits: Bindings,
    /// Bounds of integer values, by value.
    pub integers: Vec<Option<Bounds>>,
    /// [`Options::ring`] of each state.
    pub rings: Vec<Option<i64>>,
    /// Symbols without a bound that are not defined by data.
    pub open: BTreeSet<Symbol>,
    /// Nodes that run on the host, with the reason.
    pub host: BTreeMap<NodeId, HostReason>,
    /// Nodes and values needed as data for the outputs, states and shapes.
    pub needed_nodes: Vec<bool>,
    pub needed_values: Vec<bool>,
    /// Symbols that data defines, by position in [`Graph::made`].
    pub data_symbols: HashMap<&'a Symbol, usize>,
    /// Those in needed shapes.
    pub made: MadeSymbols,
    /// Values that shape inference knows as expressions and that must exist as tensors: for the
    /// caller, or as the bytes of another value.
    pub known: BTreeSet<ValueId>,
    /// Values stored in full precision because a graph output is another name for them.
    pub wide: BTreeSet<ValueId>,
    pub collected: Collected,
}

/// Symbols that data defines, in the order in which a plan needs them.
#[derive(Debug, Default)]
pub(super) struct MadeSymbols {
    all: Vec<MadeSymbol>,
    by_symbol: HashMap<Symbol, usize>,
    by_value: HashMap<ValueId, Vec<usize>>,
}

impl MadeSymbols {
    pub fn push(&mut self, made: MadeSymbol) {
        self.by_symbol.insert(made.symbol.clone(), self.all.len());
        self.by_value.entry(made.value).or_default().push(self.all.len());
        self.all.push(made);
    }

    pub fn iter(&self) -> impl Iterator<Item = &MadeSymbol> {
        self.all.iter()
    }

    pub fn find(&self, symbol: &Symbol) -> Option<&MadeSymbol> {
        self.all.get(*self.by_symbol.get(symbol)?)
    }

    /// The symbols that this value defines.
    pub fn of(&self, value: ValueId) -> impl Iterator<Item = &MadeSymbol> {
        let all = self.by_value.get(&value).into_iter().flatten();
        all.filter_map(|i| self.all.get(*i))
    }

    /// Values whose elements define symbols.
    pub fn elements(&self) -> impl Iterator<Item = ValueId> {
        let all = self.all.iter();
        all.filter(|m| matches!(m.scalar, TensorScalar::Element(_)))
            .map(|m| m.value)
    }
}

impl<'a> Compiler<'a> {
    fn new(graph: &'a Graph, caps: &'a Caps, options: &'a Options) -> Result<Self> {
        let mut facts = Vec::with_capacity(graph.values.len());
        for v in &graph.values {
            let mut fact = v.fact.clone();
            if let Some(f) = &mut fact {
                f.shape = f.shape.substitute(&options.fixed).map_err(|e| dim_error(&e))?;
                let known: Vec<&mut Dim> = match &mut f.known {
                    Known::Dims(dims) => dims.iter_mut().collect(),
                    Known::Quotients(all) => all.iter_mut().map(|q| &mut q.num).collect(),
                    _ => Vec::new(),
                };
                for d in known {
                    *d = d.substitute(&options.fixed).map_err(|e| dim_error(&e))?;
                }
            }
            facts.push(fact);
        }
        let mut limits = options.bounds.clone();
        for m in graph.made() {
            let most = m.at_most.as_ref().map(|d| d.substitute(&options.fixed));
            if let Some(most) = most.transpose().map_err(|e| dim_error(&e))?
                && let Ok(v) = most.upper_bound(&limits)
            {
                limits.set(&m.symbol, v);
            }
        }
        let integers = bounds::derive(graph, &graph.order()?, &facts, &limits);
        Ok(Self {
            graph,
            caps,
            options,
            facts,
            limits,
            integers,
            rings: graph.states().iter().map(|s| options.ring(s)).collect(),
            open: BTreeSet::new(),
            host: BTreeMap::new(),
            needed_nodes: Vec::new(),
            needed_values: Vec::new(),
            data_symbols: graph
                .made()
                .iter()
                .enumerate()
                .map(|(i, m)| (&m.symbol, i))
                .collect(),
            made: MadeSymbols::default(),
            known: BTreeSet::new(),
            wide: BTreeSet::new(),
            collected: Collected::default(),
        })
    }

    pub fn fact(&self, v: ValueId) -> Option<&Fact> {
        self.facts.get(v.index()).and_then(Option::as_ref)
    }

    /// Element type of a value on the device if floats are stored as `float`.
    pub fn device_type(&self, v: ValueId, float: DType) -> Result<DType> {
        let bounds = self.integers.get(v.index()).copied().flatten();
        Ok(device_dtype(self.graph.fact(v)?.dtype, float, bounds))
    }

    /// The values that the plan accepts of an input, unless those are all of its type.
    pub fn accepts(&self, v: ValueId) -> Option<Bounds> {
        let bounds = self.integers.get(v.index()).copied().flatten();
        let all = self.fact(v).and_then(|f| Bounds::of(f.dtype));
        bounds.filter(|b| self.graph.is_input(v) && Some(*b) != all)
    }

    /// Element type of a value on the device.
    pub fn storage_type(&self, v: ValueId) -> Result<DType> {
        if let Some(dtype) = self.collected.storage_types.get(&v) {
            return Ok(*dtype);
        }
        // Lowering stores no type for constants and for known values that are not tensors.
        if self.is_const(v) || self.is_dims(v) {
            return self.device_type(v, DType::F32);
        }
        let name = &self.graph.value(v).name;
        let what = format!("value \"{name}\" has no element type on the device");
        Err(Error::internal(Stage::Plan, what))
    }

    /// Symbols in the shapes and known contents of `values`.
    pub fn symbols_of(&self, values: impl IntoIterator<Item = ValueId>) -> BTreeSet<Symbol> {
        let mut out = BTreeSet::new();
        for f in values.into_iter().filter_map(|v| self.fact(v)) {
            f.shape.0.iter().for_each(|d| d.symbols(&mut out));
            match &f.known {
                Known::Dims(dims) => dims.iter().for_each(|d| d.symbols(&mut out)),
                Known::Quotients(all) => all.iter().for_each(|q| q.num.symbols(&mut out)),
                _ => {}
            }
        }
        out
    }

    /// Whether something that a run computes depends on the node.
    pub fn is_needed(&self, id: NodeId) -> bool {
        self.needed_nodes.get(id.index()).copied().unwrap_or(false)
    }

    /// Whether data defines the symbol.
    pub fn is_made(&self, s: &Symbol) -> bool {
        self.data_symbols.contains_key(s)
    }

    /// Whether shape inference knows the elements of the value as expressions.
    pub fn is_dims(&self, v: ValueId) -> bool {
        self.fact(v).is_some_and(|f| f.as_dims().is_some())
    }

    /// The same for a value made by a node, which a run then need not compute.
    pub fn is_computed_dims(&self, v: ValueId) -> bool {
        self.is_dims(v) && !self.is_const(v) && self.graph.producer(v).is_some()
    }

    /// Whether a node on the host makes the value, or the host computes it from known expressions.
    pub fn is_made_on_host(&self, v: ValueId) -> bool {
        let producer = self.graph.producer(v);
        self.known.contains(&v) || producer.is_some_and(|(id, _)| self.host.contains_key(&id))
    }

    pub fn is_const(&self, v: ValueId) -> bool {
        self.fact(v).is_some_and(|f| f.as_const().is_some())
    }

    /// Whether the value is a constant or a state, which are not in the arena.
    pub fn is_kept_elsewhere(&self, v: ValueId) -> bool {
        self.is_const(v) || self.is_state(v)
    }

    pub fn is_state(&self, v: ValueId) -> bool {
        self.graph.state_of(v).is_some()
    }

    /// Whether the value can be placed in the arena: no symbol of its size is defined by data
    /// without a bound.
    pub fn is_bounded(&self, v: ValueId) -> bool {
        let mut symbols = BTreeSet::new();
        if let Some(f) = self.fact(v) {
            f.shape.0.iter().for_each(|d| d.symbols(&mut symbols));
        }
        symbols
            .iter()
            .all(|s| self.limits.get(s).is_some() || !self.is_made(s))
    }

    fn compile(mut self) -> Result<Plan> {
        let order = self.graph.order()?;
        self.lower(&order)?;
        self.open = self.find_open();
        let (items, main) = order::rest_last(&self, &order, order::order(&self, &order)?);
        let arena = Arena::new(&self, &items)?;
        let made: Vec<Symbol> = self.made.iter().map(|m| m.symbol.clone()).collect();
        let open: Vec<Symbol> = self.open.iter().cloned().collect();
        let padding = self.padding();
        let formulas = Formulas::new(&self.options.bounds, &open, &made, padding.as_ref().ok());
        let mut build = StepBuilder::new(&self, &arena, formulas, &items);
        let (steps, host, segments) = build.schedule(&items, main)?;
        let main_segments = segments.len() - usize::from(main < items.len());
        let samples = build.samples(&steps)?;
        let given = self.graph.inputs().iter().copied();
        let (read, unread): (Vec<_>, Vec<_>) = given.partition(|v| self.needed_values[v.index()]);
        let inputs = build.ports(&read)?;
        let unread = build.ports(&unread)?;
        let outputs = build.ports(self.graph.outputs())?;
        let defined_by_inputs = self.defined_by(&read);
        let conditions = self.conditions()?;
        let live = build.live.values.clone();
        let host_values = build.host_index.len();
        let (mut formulas, kernels, params_bytes) = (build.formulas, build.kernels, build.params_bytes);
        formulas
            .finish(live, &conditions, params_bytes, steps.len())
            .map_err(|e| dim_error(&e))?;
        let work = PlanWork::new(&self, &arena, &steps, &kernels);
        let states = self.states()?;
        let mut memory = arena.report.clone();
        memory.states = states.iter().map(|s| s.bytes).sum();
        Ok(Plan {
            steps,
            host,
            segments,
            main_segments,
            kernels,
            samples,
            weights: self.collected.weights.to_vec(),
            states,
            counters: self.collected.counters,
            faults: self.collected.faults.to_vec(),
            inputs,
            unread,
            outputs,
            tensors: arena.tensors.clone(),
            memory,
            made,
            padding,
            defined_by_inputs,
            bounds: self.options.bounds.clone(),
            fixed: self.options.fixed.clone(),
            open: arena.open.clone(),
            conditions,
            host_values,
            formulas,
            work,
        })
    }

    /// The symbols that these inputs define, with the position of the input.
    fn defined_by(&self, inputs: &[ValueId]) -> Vec<(usize, Symbol, TensorScalar)> {
        let of = |(i, v): (usize, &ValueId)| {
            let made = self.made.of(*v);
            made.map(move |m| (i, m.symbol.clone(), m.scalar))
        };
        inputs.iter().enumerate().flat_map(of).collect()
    }

    /// Fails if the host reads a state that is kept as a ring buffer, which it does not support.
    fn check_ring(&self, s: &State) -> Result<()> {
        let on_host = self.host.keys().filter_map(|id| self.graph.node(*id));
        let reads = |n: &&Node| {
            let mut operands = n.inputs.iter().enumerate();
            operands.any(|(i, v)| (*v == Some(s.input) || *v == Some(s.output)) && n.op.reads(i))
        };
        let reader = on_host.into_iter().find(reads);
        reader.map_or(Ok(()), |n| {
            let name = &self.graph.value(s.input).name;
            let what = format!(
                "node \"{}\" runs on the host and cannot read state \"{name}\": the device keeps only a window of its rows",
                n.name
            );
            Err(Error::other(Stage::Plan, what))
        })
    }

    fn states(&self) -> Result<Vec<StateSlot>> {
        let mut out = Vec::new();
        for s in self.graph.states() {
            let fact = self.graph.fact(s.input)?;
            let rows = self.options.rows(s);
            if self.options.ring(s).is_some() {
                self.check_ring(s)?;
            }
            let dtype = device_dtype(fact.dtype, self.options.state_float(), None);
            let shape = self.fact(s.input).map(|f| f.shape.0.clone()).unwrap_or_default();
            let mut row = Dim::from(rows);
            for (_, d) in shape.iter().enumerate().filter(|(i, _)| *i != s.axis) {
                row = row.mul(d).map_err(|e| dim_error(&e))?;
            }
            out.push(StateSlot {
                name: self.graph.value(s.input).name.clone(),
                dtype,
                bytes: Arena::bytes(self, dtype, &row)?.next_multiple_of(4),
                rows,
                window: s.window,
            });
        }
        Ok(out)
    }
}
