//! Compiles a graph to a plan: what is needed, what runs where, and what must hold in a run.

use super::arena::Arena;
use super::bind::Formulas;
use super::cost::Work;
use super::host::HostReason;
use super::steps::Build;
use super::{Condition, NoPadding, Options, Padding, Plan, Port, Segment, StateSlot, dim_error, order};
use crate::backend::Caps;
use crate::error::{Error, Result, Stage};
use crate::graph::op::device_dtype;
use crate::graph::{Graph, MadeSymbol, Node, NodeId, OpError, State, SymbolSource, ValueId};
use crate::lower::{Collected, Field, LowerCx, Scope};
use crate::shape::{Bindings, Constraints, Dim, Fact, Known, Shape, Symbol, product};
use crate::tensor::DType;
use std::collections::{BTreeMap, BTreeSet, HashSet};

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
    /// [`Options::ring`] of each state.
    rings: Vec<Option<i64>>,
    /// Symbols without a bound that are not defined by data.
    pub open: BTreeSet<Symbol>,
    /// Nodes that run on the host, with the reason.
    pub host: BTreeMap<NodeId, HostReason>,
    /// Nodes and values needed as data for the outputs, states and shapes.
    needed_nodes: Vec<bool>,
    needed_values: Vec<bool>,
    /// Symbols in needed shapes that data defines.
    pub made: Vec<MadeSymbol>,
    /// Values that shape inference knows as expressions and that must exist as tensors: for the
    /// caller, or as the bytes of another value.
    pub known: BTreeSet<ValueId>,
    /// Values stored in full precision because a graph output is another name for them.
    wide: BTreeSet<ValueId>,
    pub collected: Collected,
}

/// Layout of a tensor's elements with respect to one symbol: `outer` blocks of `length * inner`
/// elements.
#[derive(PartialEq, Eq)]
struct Layout {
    /// There is more than one block.
    blocks: bool,
    /// The size with the symbol and the number of elements after it, if there is exactly one such
    /// size.
    length: Option<(Dim, Dim)>,
}

impl Layout {
    /// `None` if no size contains the symbol.
    fn of(shape: &Shape, symbol: &Symbol) -> Option<Self> {
        let at = shape.0.iter().position(|d| d.depends_on(symbol))?;
        let (outer, inner) = (shape.0.get(..at)?, shape.0.get(at + 1..)?);
        let once = inner.iter().all(|d| !d.depends_on(symbol));
        let inner = product(inner).ok().filter(|_| once);
        Some(Self {
            blocks: !outer.iter().all(|d| d.is(1)),
            length: shape.0.get(at).cloned().zip(inner),
        })
    }

    /// Whether the elements of a smaller length are the first ones of a larger length.
    fn in_front(&self) -> bool {
        !self.blocks && self.length.is_some()
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
        Ok(Self {
            graph,
            caps,
            options,
            facts,
            limits,
            rings: graph.states().iter().map(|s| options.ring(s)).collect(),
            open: BTreeSet::new(),
            host: BTreeMap::new(),
            needed_nodes: Vec::new(),
            needed_values: Vec::new(),
            made: Vec::new(),
            known: BTreeSet::new(),
            wide: BTreeSet::new(),
            collected: Collected::default(),
        })
    }

    pub fn fact(&self, v: ValueId) -> Option<&Fact> {
        self.facts.get(v.index()).and_then(Option::as_ref)
    }

    /// Element type of a value on the device.
    pub fn storage(&self, v: ValueId) -> DType {
        self.collected.storage.get(&v).copied().unwrap_or(DType::F32)
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
    fn is_made(&self, s: &Symbol) -> bool {
        self.graph.made().iter().any(|m| m.symbol == *s)
    }

    /// Whether shape inference knows the elements of the value as expressions.
    pub fn is_dims(&self, v: ValueId) -> bool {
        self.fact(v).is_some_and(|f| f.as_dims().is_some())
    }

    /// The same for a value made by a node, which a run then need not compute.
    fn is_computed_dims(&self, v: ValueId) -> bool {
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
        self.graph.states().iter().any(|s| s.input == v || s.output == v)
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

    /// Finds what is needed as data. A node on the host needs every operand that shape inference
    /// does not know; a symbol that data defines needs that data.
    fn find_needed(&mut self) {
        let graph = self.graph;
        self.needed_nodes = vec![false; graph.nodes.len()];
        self.needed_values = vec![false; graph.values.len()];
        self.made.clear();
        let mut symbols = BTreeSet::new();
        let mut work: Vec<ValueId> = graph.outputs().to_vec();
        work.extend(graph.states().iter().map(|s| s.output));
        let tensors = work.iter().copied().filter(|v| self.is_computed_dims(*v));
        let mut known: BTreeSet<ValueId> = tensors.collect();
        loop {
            while let Some(v) = work.pop() {
                if std::mem::replace(&mut self.needed_values[v.index()], true) || self.is_const(v) {
                    continue;
                }
                symbols.extend(self.symbols_of([v]));
                let Some((id, node)) = graph.producer(v) else {
                    continue;
                };
                if self.is_dims(v) {
                    continue;
                }
                if std::mem::replace(&mut self.needed_nodes[id.index()], true) {
                    continue;
                }
                let on_host = self.host.contains_key(&id);
                for (i, read) in node.inputs.iter().enumerate() {
                    let Some(read) = *read else { continue };
                    symbols.extend(self.symbols_of([read]));
                    if if on_host {
                        !self.is_dims(read)
                    } else {
                        node.op.reads(i)
                    } {
                        work.push(read);
                    }
                }
            }
            for made in graph.made() {
                if symbols.contains(&made.symbol) && self.made.iter().all(|m| m.symbol != made.symbol) {
                    self.made.push(made.clone());
                    work.push(made.value);
                    if self.is_computed_dims(made.value) {
                        known.insert(made.value);
                    }
                }
            }
            if work.is_empty() {
                self.known = known;
                return;
            }
        }
    }

    /// Nodes that must run on the host, whatever kernels exist.
    fn must_run_on_host(&self) -> BTreeMap<NodeId, HostReason> {
        let mut host = BTreeMap::new();
        for m in self.graph.made() {
            if let (SymbolSource::Size(_), Some((id, _))) = (m.part, self.graph.producer(m.value)) {
                host.insert(id, HostReason::Data);
            }
        }
        host
    }

    /// Chooses kernels for every needed node, moves those without one to the host, and stores
    /// outputs in full precision, until nothing changes.
    fn lower(&mut self, order: &[NodeId]) -> Result<()> {
        self.host = self.must_run_on_host();
        loop {
            self.find_needed();
            self.collected = Collected::default();
            for v in self.graph.inputs().iter().chain(&self.known) {
                let dtype = self.graph.fact(*v)?.dtype;
                self.collected
                    .storage
                    .insert(*v, device_dtype(dtype, self.options.float));
            }
            let before = self.host.len();
            for id in order {
                let Some(node) = self.graph.node(*id).filter(|_| self.is_needed(*id)) else {
                    continue;
                };
                self.set_storage(node);
                if self.host.contains_key(id) {
                    continue;
                }
                let unbounded = |v: &&ValueId| !self.is_bounded(**v);
                let reads = node
                    .inputs
                    .iter()
                    .enumerate()
                    .filter(|(i, _)| node.op.reads(*i))
                    .filter_map(|(_, v)| v.as_ref());
                if let Some(v) = reads.chain(&node.outputs).find(unbounded) {
                    // A value without a bound cannot be placed in the arena.
                    let unbounded = HostReason::Unbounded {
                        value: self.graph.value(*v).name.clone(),
                        shape: self.fact(*v).map(|f| f.shape.clone()).unwrap_or_default(),
                    };
                    self.host.insert(*id, unbounded);
                    continue;
                }
                if let Some(v) = self.off_devices(node) {
                    let dtype = self.graph.fact(v)?.dtype;
                    self.host.insert(*id, HostReason::Type(dtype));
                    continue;
                }
                match self.lower_node(node, *id) {
                    Ok(()) => {}
                    Err(OpError::NoKernel(why)) => {
                        self.host.insert(*id, HostReason::Kernel(why));
                    }
                    Err(e) => return Err(self.graph.node_error(Stage::Plan, node, e)),
                }
            }
            if self.host.len() == before && !self.widen_outputs() {
                self.keep_bytes_of_others();
                return Ok(());
            }
        }
    }

    /// Marks values that are stored as halves and have a graph output as another name, for example
    /// through a reshape. Returns whether one is new. The caller gets the computed precision,
    /// without conversion from halves.
    fn widen_outputs(&mut self) -> bool {
        let mut found = false;
        for v in self.graph.outputs() {
            let root = self.collected.root(*v);
            let halves = root != *v && self.collected.storage.get(&root) == Some(&DType::F16);
            let given = self.graph.inputs().contains(&root) || self.is_kept_elsewhere(root);
            if halves && !given {
                found |= self.wide.insert(root);
            }
        }
        found
    }

    /// Marks values, known as expressions, whose bytes the caller or a node on the host reads under
    /// another name.
    fn keep_bytes_of_others(&mut self) {
        let host = self.host.keys().filter_map(|id| self.graph.node(*id));
        let read: HashSet<ValueId> = host.flat_map(|n| n.inputs.iter().flatten().copied()).collect();
        let names = self.collected.alias.iter();
        let read = names.filter(|(v, _)| read.contains(v) || self.graph.outputs().contains(v));
        let kept: Vec<ValueId> = read
            .map(|(_, root)| *root)
            .filter(|r| self.is_computed_dims(*r))
            .collect();
        for v in kept {
            self.collected.storage.insert(v, DType::I32);
            self.known.insert(v);
        }
    }

    /// A value that the node reads or makes whose type is not supported on devices.
    fn off_devices(&self, node: &Node) -> Option<ValueId> {
        let inputs = node.inputs.iter().enumerate().filter(|(i, _)| node.op.reads(*i));
        let all = inputs.filter_map(|(_, v)| *v).chain(node.outputs.iter().copied());
        all.into_iter().find(|v| {
            // Words of packed weights are constants. Other unsigned 32-bit values exceed the
            // integers of devices.
            let number = |f: &Fact| f.dtype == DType::U32 && f.as_const().is_none();
            self.fact(*v).is_some_and(|f| !f.dtype.on_devices() || number(f))
        })
    }

    /// Needed symbols that are neither bounded nor defined by data.
    fn find_open(&self) -> BTreeSet<Symbol> {
        let nodes = self.graph.nodes().filter(|(id, _)| self.is_needed(*id));
        let values = nodes.flat_map(|(_, n)| n.inputs.iter().flatten().chain(&n.outputs));
        let mut symbols = self.symbols_of(self.graph.inputs().iter().chain(values).copied());
        symbols.retain(|s| self.options.bounds.get(s).is_none() && !self.is_made(s));
        symbols
    }

    /// Sets the element types of a node's results on the device.
    fn set_storage(&mut self, node: &Node) {
        let precise = node.op.keeps_precision() && {
            let data = node.inputs.iter().flatten().filter(|v| !self.is_const(**v));
            let floats: Vec<_> = data
                .filter(|v| self.fact(**v).is_some_and(|f| f.dtype.is_float()))
                .collect();
            // An integer converted to float keeps 24 bits, since positions exceed the range of f16.
            floats.is_empty()
                || floats
                    .iter()
                    .any(|v| self.collected.storage.get(&self.collected.root(**v)) == Some(&DType::F32))
        };
        for out in &node.outputs {
            let Some(fact) = self.facts.get(out.index()).and_then(Option::as_ref) else {
                continue;
            };
            let wide = precise || self.graph.outputs().contains(out) || self.wide.contains(out);
            let float = if wide { DType::F32 } else { self.options.float };
            self.collected
                .storage
                .insert(*out, device_dtype(fact.dtype, float));
        }
    }

    fn lower_node(&mut self, node: &Node, id: NodeId) -> Result<(), OpError> {
        let mark = (
            self.collected.calls.len(),
            self.collected.temps.len(),
            self.collected.conditions.len(),
        );
        let scope = Scope {
            graph: self.graph,
            facts: &self.facts,
            limits: &self.limits,
            device: &self.caps.profile,
            float: self.options.float,
            rings: &self.rings,
        };
        let mut cx = LowerCx::new(scope, id, node, &mut self.collected);
        let result = node.op.lower(&mut cx);
        if result.is_err() {
            // Undo what a failed lowering left behind. Packed weights and live values without users
            // are dropped with the round.
            self.collected.calls.truncate(mark.0);
            self.collected.temps.truncate(mark.1);
            self.collected.conditions.truncate(mark.2);
        }
        result
    }

    fn compile(mut self) -> Result<Plan> {
        let order = self.graph.order()?;
        self.lower(&order)?;
        self.open = self.find_open();
        let items = order::order(&self, &order)?;
        let arena = Arena::new(&self, &items)?;
        let made: Vec<Symbol> = self.made.iter().map(|m| m.symbol.clone()).collect();
        let open: Vec<Symbol> = self.open.iter().cloned().collect();
        let padding = self.padding();
        let formulas = Formulas::new(&self.options.bounds, &open, &made, padding.as_ref().ok());
        let mut build = Build::new(&self, &arena, formulas, &items);
        let (mut steps, mut host, mut segments) = (Vec::new(), Vec::new(), Vec::new());
        for (time, item) in items.iter().enumerate() {
            match item {
                Item::Call(i) => {
                    let n = steps.len();
                    steps.push(build.step(*i, arena.in_place(time), n)?);
                    match segments.last_mut() {
                        Some(Segment::Device(range)) => range.end = n + 1,
                        _ => segments.push(Segment::Device(n..n + 1)),
                    }
                }
                Item::Host(id) => {
                    segments.push(Segment::Host(host.len()));
                    host.push(build.host_step(*id)?);
                }
                Item::Observe(v) | Item::Known(v) => {
                    segments.push(Segment::Host(host.len()));
                    host.push(build.valued(*v)?);
                }
            }
        }
        let samples = build.samples(&steps)?;
        let ports = |build: &Build<'_, '_>, list: &mut dyn Iterator<Item = ValueId>| -> Result<Vec<Port>> {
            list.map(|v| build.port(v)).collect()
        };
        let given = self.graph.inputs();
        let inputs = ports(
            &build,
            &mut given.iter().copied().filter(|v| self.needed_values[v.index()]),
        )?;
        let unread = ports(
            &build,
            &mut given.iter().copied().filter(|v| !self.needed_values[v.index()]),
        )?;
        let outputs = ports(&build, &mut self.graph.outputs().iter().copied())?;
        let mut defined_by_inputs = Vec::new();
        for (i, port) in inputs.iter().enumerate() {
            let made = self
                .made
                .iter()
                .filter(|m| self.graph.value(m.value).name == port.name);
            defined_by_inputs.extend(made.map(|m| (i, m.symbol.clone(), m.part)));
        }
        let conditions = self.conditions()?;
        let live = build.live.values.clone();
        let (mut formulas, kernels, params_bytes) = (build.formulas, build.kernels, build.params_bytes);
        let host_values = build.host_index.len();
        formulas
            .finish(live, &conditions, params_bytes, steps.len())
            .map_err(|e| dim_error(&e))?;
        let mut memory = arena.report.clone();
        let work = Work::new(&self, &arena, &steps, &kernels);
        let states = self.states()?;
        memory.states = states.iter().map(|s| s.bytes).sum();
        Ok(Plan {
            steps,
            host,
            segments,
            kernels,
            samples,
            weights: self.collected.weights.clone(),
            states,
            counters: self.collected.counters,
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

    /// The padding asked for, if everything that depends on the length supports it: dispatches may
    /// compute extra elements, and live elements keep their positions.
    fn padding(&self) -> Result<Padding, NoPadding> {
        let Some(p) = &self.options.padding else {
            return Err(NoPadding::NotAsked);
        };
        let refuse = |why: String| Err(NoPadding::Exact(why));
        if self.options.fixed.get(&p.symbol).is_some() {
            return refuse(format!("{} is fixed", p.symbol));
        }
        if self.options.bounds.get(&p.symbol).is_none() {
            return refuse(format!("{} has no bound", p.symbol));
        }
        if p.multiple < 1 {
            return refuse(format!("{} is not a valid multiple", p.multiple));
        }
        let name = |id: NodeId| self.graph.node(id).map_or("", |n| n.name.as_str());
        for e in self.collected.calls.iter().filter(|e| !e.call.padded) {
            let fields = e.call.fields.iter().filter_map(|f| match f {
                Field::Dim(d) => Some(d),
                Field::F32(_) => None,
            });
            if let Some(d) = fields.chain(&e.call.grid).find(|d| d.depends_on(&p.symbol)) {
                return Err(NoPadding::Kernel {
                    kernel: e.call.kernel.name,
                    node: name(e.node).to_owned(),
                    size: d.clone(),
                });
            }
        }
        if let Some((id, _)) = self.host.iter().next() {
            return refuse(format!("node \"{}\" runs on the host", name(*id)));
        }
        let shape = |v: ValueId| self.fact(v).map(|f| &f.shape);
        // A caller reads and writes live elements, which are contiguous at the front only if the
        // length is the outermost size.
        let ports = self.graph.inputs().iter().chain(self.graph.outputs());
        for v in ports.filter(|v| self.needed_values[v.index()]) {
            let Some(shape) = shape(*v) else { continue };
            if Layout::of(shape, &p.symbol).is_some_and(|l| !l.in_front()) {
                return Err(NoPadding::Inner {
                    value: self.graph.value(*v).name.clone(),
                    shape: shape.clone(),
                });
            }
        }
        for v in self.collected.alias.keys() {
            let source = self.graph.producer(*v).and_then(|(_, n)| *n.inputs.first()?);
            let (Some(new), Some(old)) = (shape(*v), source.and_then(shape)) else {
                continue;
            };
            let layouts = (Layout::of(new, &p.symbol), Layout::of(old, &p.symbol));
            if layouts.0 != layouts.1
                && !matches!(&layouts, (Some(a), Some(b)) if a.in_front() && b.in_front())
            {
                return Err(NoPadding::Moved {
                    value: self.graph.value(*v).name.clone(),
                    shape: new.clone(),
                    source_shape: old.clone(),
                });
            }
        }
        Ok(p.clone())
    }

    /// Assumptions of shape inference and operators, and the capacity of every state.
    fn conditions(&self) -> Result<Vec<Condition>> {
        let relation = |given: &Dim, equal: bool, meaning: String| -> Result<Condition> {
            let dim = given.substitute(&self.options.fixed).map_err(|e| dim_error(&e))?;
            Ok(Condition {
                dim,
                given: given.clone(),
                equal,
                meaning,
            })
        };
        let mut all = Vec::new();
        for a in self.graph.assumptions() {
            let name = self.graph.node(a.node).map_or("", |n| n.name.as_str());
            let meaning = format!("node \"{name}\": {}", a.assumed.meaning);
            all.push(relation(&a.assumed.dim, a.assumed.equal, meaning)?);
        }
        all.extend(self.collected.conditions.iter().cloned());
        for s in self.graph.states() {
            let size = |v| self.fact(v).and_then(|f| f.shape.0.get(s.axis).cloned());
            let kept = self.options.rows(s);
            if let (Some(rows), Some(past)) = (size(s.output), size(s.input)) {
                if let Some(window) = s.window.filter(|_| kept < self.options.state_rows) {
                    // The window of the first new row must not be overwritten by the last new row.
                    let new = rows.sub(&past).map_err(|e| dim_error(&e))?;
                    let room = Dim::from(kept - window + 1)
                        .sub(&new)
                        .map_err(|e| dim_error(&e))?;
                    let meaning =
                        "the new rows exceed the capacity of a state that keeps a window".to_owned();
                    all.push(relation(&room, false, meaning)?);
                }
                let room = Dim::from(self.options.state_rows).sub(&rows);
                let meaning = "the rows exceed the capacity of the states".to_owned();
                all.push(relation(&room.map_err(|e| dim_error(&e))?, false, meaning)?);
            }
        }
        // Every run is within the bounds, and meets the constraints, since they are conditions too.
        let within = self.bounded(Constraints::new(), &self.options.bounds)?;
        let with = self.bounded(self.graph.constraints().clone(), &self.options.bounds)?;
        let holds = |c: &Condition, known: &Constraints| {
            let always = if c.equal {
                known.equal(&c.dim, &0.into())
            } else {
                known.at_least(&c.dim, 0)
            };
            always == Some(true)
        };
        all.retain(|c| !holds(c, &with));
        for (left, right, equal, text) in self.graph.constraints().relations() {
            let dim = right.sub(&left).map_err(|e| dim_error(&e))?;
            let c = relation(&dim, equal, format!("the constraint {text} is violated"))?;
            if !holds(&c, &within) {
                all.push(c);
            }
        }
        let mut seen = HashSet::new();
        all.retain(|c| seen.insert((c.dim.clone(), c.equal)));
        // A condition on a symbol that no needed shape contains cannot be checked, and need not be.
        let known = |s: &Symbol| {
            self.options.bounds.get(s).is_some()
                || self.open.contains(s)
                || self.made.iter().any(|m| m.symbol == *s)
        };
        all.retain(|c| {
            let mut symbols = BTreeSet::new();
            c.dim.symbols(&mut symbols);
            symbols.iter().all(known)
        });
        Ok(all)
    }

    /// `known`, extended by the largest values of symbols.
    pub fn bounded(&self, mut known: Constraints, most: &Bindings) -> Result<Constraints> {
        for (s, v) in most.iter() {
            let added = known.bound(s, None, Some(v));
            added.map_err(|e| Error::other(Stage::Plan, e.to_string()))?;
        }
        Ok(known)
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
                "node \"{}\" runs on the host and cannot read state \"{name}\": the device keeps only a window of it",
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
            let dtype = device_dtype(fact.dtype, self.options.float);
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
