//! From a graph to a plan: what runs where, in which order, and in which place.

use super::arena::{Arena, Life};
use super::bind::Formulas;
use super::host::{HostRead, HostStep, HostWrite};
use super::lower::{Collected, Field, Home, LowerCx, Operand};
use super::{Condition, Options, Place, Plan, Port, Segment, StateSlot, Step, Value, dim_error};
use crate::backend::Caps;
use crate::backend::kernel::{KernelSpec, Role};
use crate::error::{Error, Result, Stage};
use crate::graph::op::device_dtype;
use crate::graph::{Graph, MadeSymbol, Node, NodeId, OpError, Part, ValueId};
use crate::shape::{Bindings, Dim, Fact, Known, Symbol};
use crate::tensor::DType;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

impl Plan {
    /// Plans `graph`, whose facts are derived, for a device. Every symbol must be fixed or bounded, except those that data
    /// defines. An error names the node.
    pub fn compile(graph: &Graph, caps: &Caps, options: &Options) -> Result<Self> {
        Compiler::new(graph, caps, options)?.compile()
    }
}

/// A piece of work in the order of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Item {
    /// A dispatch, by index into the collected calls.
    Call(usize),
    /// A node on the host.
    Host(NodeId),
    /// A value read back for the symbols that it defines.
    Observe(ValueId),
    /// A value that derivation knows as expressions and something reads as data.
    Known(ValueId),
}

pub(super) struct Compiler<'a> {
    pub graph: &'a Graph,
    pub caps: &'a Caps,
    pub options: &'a Options,
    /// Facts with the fixed symbols replaced, by value.
    pub facts: Vec<Option<Fact>>,
    /// The largest values of symbols: the bounds, and what operators say of symbols that data defines.
    pub limits: Bindings,
    /// Symbols that have no bound and no data defines.
    pub open: BTreeSet<Symbol>,
    /// Nodes that run on the host, with the reason.
    pub host: BTreeMap<NodeId, String>,
    /// Nodes and values that the outputs, states and shapes need as data.
    needed_nodes: Vec<bool>,
    pub needed_values: Vec<bool>,
    /// Symbols of needed shapes that data defines.
    made: Vec<MadeSymbol>,
    /// Values that derivation knows as expressions and something reads as data.
    known: BTreeSet<ValueId>,
    pub collected: Collected,
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
            open: BTreeSet::new(),
            host: BTreeMap::new(),
            needed_nodes: Vec::new(),
            needed_values: Vec::new(),
            made: Vec::new(),
            known: BTreeSet::new(),
            collected: Collected::default(),
        })
    }

    pub fn fact(&self, v: ValueId) -> Option<&Fact> {
        self.facts.get(v.index()).and_then(Option::as_ref)
    }

    /// Symbols of a value's shape and known contents.
    fn symbols(&self, v: ValueId, out: &mut BTreeSet<Symbol>) {
        if let Some(f) = self.fact(v) {
            f.shape.0.iter().for_each(|d| d.symbols(out));
            match &f.known {
                Known::Dims(dims) => dims.iter().for_each(|d| d.symbols(out)),
                Known::Quotients(all) => all.iter().for_each(|q| q.num.symbols(out)),
                _ => {}
            }
        }
    }

    fn is_const(&self, v: ValueId) -> bool {
        self.fact(v).is_some_and(|f| f.as_const().is_some())
    }

    /// The value is a constant or a state: nothing of it lies in the arena.
    pub fn is_kept_elsewhere(&self, v: ValueId) -> bool {
        self.is_const(v) || self.is_state(v)
    }

    fn is_state(&self, v: ValueId) -> bool {
        self.graph.states().iter().any(|s| s.input == v || s.output == v)
    }

    /// The arena can have room for a value: no symbol of its size is defined by data without a bound.
    pub fn is_bounded(&self, v: ValueId) -> bool {
        let mut symbols = BTreeSet::new();
        if let Some(f) = self.fact(v) {
            f.shape.0.iter().for_each(|d| d.symbols(&mut symbols));
        }
        let made = |s: &Symbol| self.graph.made().iter().any(|m| m.symbol == *s);
        symbols.iter().all(|s| self.limits.get(s).is_some() || !made(s))
    }

    /// Finds what is needed as data. A node on the host needs every operand that derivation does not know; a symbol that data
    /// defines needs that data.
    fn find_needed(&mut self) {
        let graph = self.graph;
        self.needed_nodes = vec![false; graph.nodes.len()];
        self.needed_values = vec![false; graph.values.len()];
        self.made.clear();
        self.known.clear();
        let mut symbols = BTreeSet::new();
        let mut work: Vec<ValueId> = graph.outputs().to_vec();
        work.extend(graph.states().iter().map(|s| s.output));
        loop {
            while let Some(v) = work.pop() {
                if std::mem::replace(&mut self.needed_values[v.index()], true) || self.is_const(v) {
                    continue;
                }
                self.symbols(v, &mut symbols);
                let Some((id, node)) = graph.producer(v) else {
                    continue;
                };
                if self.fact(v).is_some_and(|f| f.as_dims().is_some()) {
                    self.known.insert(v);
                    continue;
                }
                if std::mem::replace(&mut self.needed_nodes[id.index()], true) {
                    continue;
                }
                let on_host = self.host.contains_key(&id);
                for (i, read) in node.inputs.iter().enumerate() {
                    let Some(read) = *read else { continue };
                    self.symbols(read, &mut symbols);
                    let known = self.fact(read).is_some_and(|f| f.as_dims().is_some());
                    if if on_host { !known } else { node.op.reads(i) } {
                        work.push(read);
                    }
                }
            }
            for made in graph.made() {
                if symbols.contains(&made.symbol) && self.made.iter().all(|m| m.symbol != made.symbol) {
                    self.made.push(made.clone());
                    work.push(made.value);
                }
            }
            if work.is_empty() {
                return;
            }
        }
    }

    /// Nodes that must run on the host whatever kernels there are.
    fn must_run_on_host(&self) -> BTreeMap<NodeId, String> {
        let mut host = BTreeMap::new();
        for m in self.graph.made() {
            if let (Part::Size(_), Some((id, _))) = (m.part, self.graph.producer(m.value)) {
                host.insert(id, "the size of its result depends on data".to_owned());
            }
        }
        host
    }

    /// Chooses kernels for every needed node, and puts those without one on the host, until nothing changes.
    fn lower(&mut self, order: &[NodeId]) -> Result<()> {
        self.host = self.must_run_on_host();
        loop {
            self.find_needed();
            self.collected = Collected::default();
            for id in self.graph.inputs() {
                let dtype = self.graph.fact(*id)?.dtype;
                self.collected
                    .storage
                    .insert(*id, device_dtype(dtype, self.options.float));
            }
            for v in &self.known {
                let dtype = self.graph.fact(*v)?.dtype;
                self.collected
                    .storage
                    .insert(*v, device_dtype(dtype, self.options.float));
            }
            let before = self.host.len();
            for id in order {
                let Some(node) = self.graph.node(*id).filter(|_| self.needed_nodes[id.index()]) else {
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
                    // The arena has no room for what has no bound.
                    let size = self.fact(*v).map(|f| f.shape.to_string()).unwrap_or_default();
                    let value = &self.graph.value(*v).name;
                    self.host
                        .insert(*id, format!("\"{value}\" of shape {size} has no bound"));
                    continue;
                }
                match self.lower_node(node, *id) {
                    Ok(()) => {}
                    Err(OpError::NoKernel(why)) => {
                        self.host.insert(*id, why);
                    }
                    Err(e) => return Err(self.graph.node_error(Stage::Plan, node, e)),
                }
            }
            if self.host.len() == before {
                return Ok(());
            }
        }
    }

    /// Symbols of what is needed that are neither bounded nor defined by data.
    fn find_open(&self) -> BTreeSet<Symbol> {
        let mut symbols = BTreeSet::new();
        let mut all = |v: ValueId| self.symbols(v, &mut symbols);
        self.graph.inputs().iter().copied().for_each(&mut all);
        for (_, node) in self.graph.nodes().filter(|(id, _)| self.needed_nodes[id.index()]) {
            node.inputs
                .iter()
                .flatten()
                .chain(&node.outputs)
                .copied()
                .for_each(&mut all);
        }
        let made = |s: &Symbol| self.graph.made().iter().any(|m| m.symbol == *s);
        symbols.retain(|s| self.options.bounds.get(s).is_none() && !made(s));
        symbols
    }

    /// Sets the device element types of a node's results.
    fn set_storage(&mut self, node: &Node) {
        let precise = node.op.keeps_precision() && {
            let data = node.inputs.iter().flatten().filter(|v| !self.is_const(**v));
            let floats: Vec<_> = data
                .filter(|v| self.fact(**v).is_some_and(|f| f.dtype.is_float()))
                .collect();
            // An integer made a float keeps its 24 bits: positions exceed what f16 counts.
            floats.is_empty()
                || floats
                    .iter()
                    .any(|v| self.collected.storage.get(&self.collected.root(**v)) == Some(&DType::F32))
        };
        for out in &node.outputs {
            let Some(fact) = self.facts.get(out.index()).and_then(Option::as_ref) else {
                continue;
            };
            let wide = precise || self.graph.outputs().contains(out);
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
        let mut cx = LowerCx {
            graph: self.graph,
            node,
            id,
            facts: &self.facts,
            caps: self.caps,
            float: self.options.float,
            out: &mut self.collected,
        };
        let result = node.op.lower(&mut cx);
        if result.is_err() {
            // What a refused lowering left behind; packed weights and live values that nobody uses are dropped with the round.
            self.collected.calls.truncate(mark.0);
            self.collected.temps.truncate(mark.1);
            self.collected.conditions.truncate(mark.2);
        }
        result
    }

    /// What must be done before a node: data and symbols.
    fn order_items(&self, order: &[NodeId]) -> Result<Vec<Item>> {
        let mut calls: HashMap<NodeId, Vec<usize>> = HashMap::new();
        for (i, e) in self.collected.calls.iter().enumerate() {
            calls.entry(e.node).or_default().push(i);
        }
        let nodes: Vec<NodeId> = order
            .iter()
            .copied()
            .filter(|id| self.needed_nodes[id.index()])
            .collect();
        if self.host.is_empty() && self.made.is_empty() && self.known.is_empty() {
            return Ok(nodes
                .iter()
                .flat_map(|n| calls.get(n).into_iter().flatten())
                .map(|c| Item::Call(*c))
                .collect());
        }
        // Values that a kernel makes and whose elements define symbols.
        let observed: BTreeSet<ValueId> = self
            .made
            .iter()
            .filter(|m| matches!(m.part, Part::Element(_)))
            .map(|m| m.value)
            .filter(|v| !self.known.contains(v))
            .filter(|v| {
                self.graph
                    .producer(*v)
                    .is_some_and(|(id, _)| !self.host.contains_key(&id))
            })
            .collect();
        let mut done_values: HashSet<ValueId> = HashSet::new();
        let mut done_nodes: HashSet<NodeId> = HashSet::new();
        let mut seen: HashSet<ValueId> = HashSet::new();
        let mut items = Vec::new();
        let mut left: Vec<NodeId> = nodes;
        let mut unseen: Vec<ValueId> = observed.iter().copied().collect();
        let mut unknown: Vec<ValueId> = self.known.iter().copied().collect();
        let value_ready = |v: ValueId, done: &HashSet<ValueId>| {
            self.graph.producer(v).is_none() || self.is_const(v) || done.contains(&v)
        };
        let symbol_ready = |s: &Symbol, done: &HashSet<ValueId>, seen: &HashSet<ValueId>| match self
            .made
            .iter()
            .find(|m| m.symbol == *s)
        {
            None => true,
            Some(m) if observed.contains(&m.value) => seen.contains(&m.value),
            Some(m) => value_ready(m.value, done),
        };
        let mut idle = 0;
        let mut on_host = true;
        while !left.is_empty() || !unseen.is_empty() || !unknown.is_empty() {
            let mut progress = false;
            if on_host {
                unknown.retain(|v| {
                    let mut symbols = BTreeSet::new();
                    self.symbols(*v, &mut symbols);
                    let ready = symbols.iter().all(|s| symbol_ready(s, &done_values, &seen));
                    if ready {
                        items.push(Item::Known(*v));
                        done_values.insert(*v);
                        progress = true;
                    }
                    !ready
                });
                unseen.retain(|v| {
                    let ready = value_ready(*v, &done_values);
                    if ready {
                        items.push(Item::Observe(*v));
                        seen.insert(*v);
                        progress = true;
                    }
                    !ready
                });
            }
            left.retain(|id| {
                let Some(node) = self.graph.node(*id) else {
                    return false;
                };
                if self.host.contains_key(id) != on_host {
                    return true;
                }
                let mut symbols = BTreeSet::new();
                for v in node.inputs.iter().flatten() {
                    self.symbols(*v, &mut symbols);
                }
                for v in &node.outputs {
                    self.symbols(*v, &mut symbols);
                }
                let own = |s: &Symbol| {
                    self.made
                        .iter()
                        .any(|m| m.symbol == *s && node.outputs.contains(&m.value))
                };
                let data = node
                    .inputs
                    .iter()
                    .enumerate()
                    .filter(|(i, _)| on_host || node.op.reads(*i));
                let known = |v: ValueId| on_host && self.fact(v).is_some_and(|f| f.as_dims().is_some());
                // What reads a state as it was runs before the state is appended to.
                let state = self
                    .graph
                    .states()
                    .iter()
                    .find(|s| node.outputs.contains(&s.output));
                let behind = state.is_none_or(|s| {
                    let readers = self.graph.nodes().filter(|(r, n)| {
                        r != id && self.needed_nodes[r.index()] && n.inputs.contains(&Some(s.input))
                    });
                    readers.into_iter().all(|(r, _)| done_nodes.contains(&r))
                });
                let ready = behind
                    && data
                        .filter_map(|(_, v)| *v)
                        .all(|v| known(v) || value_ready(v, &done_values))
                    && symbols
                        .iter()
                        .all(|s| own(s) || symbol_ready(s, &done_values, &seen));
                if ready {
                    progress = true;
                    done_nodes.insert(*id);
                    done_values.extend(&node.outputs);
                    if on_host {
                        items.push(Item::Host(*id));
                    } else {
                        items.extend(calls.get(id).into_iter().flatten().map(|c| Item::Call(*c)));
                    }
                }
                !ready
            });
            if progress {
                idle = 0;
                continue;
            }
            idle += 1;
            if idle > 2 {
                let stuck = left
                    .first()
                    .and_then(|id| self.graph.node(*id))
                    .map_or("", |n| n.name.as_str());
                return Err(Error::other(
                    Stage::Plan,
                    format!("node \"{stuck}\" waits for a size that follows from it"),
                ));
            }
            on_host = !on_host;
        }
        Ok(items)
    }

    fn compile(mut self) -> Result<Plan> {
        let order = self.graph.order()?;
        self.lower(&order)?;
        self.open = self.find_open();
        let items = self.order_items(&order)?;
        let arena = Arena::new(&self, &items)?;
        let made: Vec<Symbol> = self.made.iter().map(|m| m.symbol.clone()).collect();
        let open: Vec<Symbol> = self.open.iter().cloned().collect();
        let padding = self.padding();
        let mut build = Build {
            formulas: Formulas::new(&self.options.bounds, &open, &made, padding.as_ref().ok()),
            arena: &arena,
            c: &self,
            host_index: HashMap::new(),
            kernels: Vec::new(),
            kernel_index: HashMap::new(),
            params_bytes: 0,
        };
        build.number_host_values(&items);
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
        let mut outputs = Vec::new();
        for v in self.graph.outputs() {
            if self.is_const(*v) {
                let name = &self.graph.value(*v).name;
                let what =
                    format!("output \"{name}\" is a constant of the model; there is nothing to run for it");
                return Err(match self.graph.producer(*v) {
                    Some((_, node)) => self
                        .graph
                        .node_error(Stage::Plan, node, OpError::Unsupported(what)),
                    None => Error::other(Stage::Plan, what),
                });
            }
            outputs.push(build.port(*v)?);
        }
        let mut defined_by_inputs = Vec::new();
        for (i, port) in inputs.iter().enumerate() {
            let made = self
                .made
                .iter()
                .filter(|m| self.graph.value(m.value).name == port.name);
            defined_by_inputs.extend(made.map(|m| (i, m.symbol.clone(), m.part)));
        }
        let conditions = self.conditions()?;
        let live = self.collected.live.clone();
        let (mut formulas, kernels, params_bytes) = (build.formulas, build.kernels, build.params_bytes);
        let host_values = build.host_index.len();
        formulas
            .finish(live, &conditions, params_bytes, steps.len())
            .map_err(|e| dim_error(&e))?;
        let mut memory = arena.report.clone();
        let states = self.states()?;
        memory.states = states.iter().map(|s| s.bytes).sum();
        Ok(Plan {
            steps,
            host,
            segments,
            kernels,
            weights: self.collected.weights.clone(),
            states,
            inputs,
            unread,
            outputs,
            tensors: arena.tensors.clone(),
            memory,
            made,
            padding,
            defined_by_inputs,
            bounds: self.options.bounds.clone(),
            open: arena.open.clone(),
            conditions,
            host_values,
            formulas,
        })
    }

    /// The padding that was asked for, if every dispatch that depends on the length can bear it.
    fn padding(&self) -> Result<super::Padding, String> {
        let Some(p) = &self.options.padding else {
            return Err("not asked for".to_owned());
        };
        if p.multiple < 1 || self.options.bounds.get(&p.symbol).is_none() {
            return Err(format!(
                "{} has no bound, or {} is no multiple",
                p.symbol, p.multiple
            ));
        }
        let depends = |d: &Dim| {
            let mut all = BTreeSet::new();
            d.symbols(&mut all);
            all.contains(&p.symbol)
        };
        for e in self.collected.calls.iter().filter(|e| !e.call.padded) {
            let fields = e.call.fields.iter().filter_map(|f| match f {
                Field::Dim(d) => Some(d),
                Field::F32(_) => None,
            });
            if let Some(d) = fields.chain(&e.call.grid).find(|d| depends(d)) {
                let node = self.graph.node(e.node).map_or("", |n| n.name.as_str());
                return Err(format!(
                    "kernel {} of node \"{node}\" computes over {d} itself",
                    e.call.kernel.name
                ));
            }
        }
        if let Some((id, _)) = self.host.iter().next() {
            let node = self.graph.node(*id).map_or("", |n| n.name.as_str());
            return Err(format!("node \"{node}\" runs on the host"));
        }
        // A caller writes and reads live elements, which lie in front only where the length is the outermost size.
        for v in self
            .graph
            .inputs()
            .iter()
            .chain(self.graph.outputs())
            .filter(|v| self.needed_values[v.index()])
        {
            let dims = self.fact(*v).map(|f| f.shape.0.as_slice()).unwrap_or_default();
            if let Some(at) = dims.iter().position(depends)
                && !dims.iter().take(at).all(|d| d.is(1))
            {
                let shape = self.fact(*v).map(|f| f.shape.to_string()).unwrap_or_default();
                return Err(format!(
                    "\"{}\" of shape {shape} does not grow at its end",
                    self.graph.value(*v).name
                ));
            }
        }
        Ok(p.clone())
    }

    /// What derivation and the operators assumed, and that every state has room for its rows.
    fn conditions(&self) -> Result<Vec<Condition>> {
        let mut all: Vec<Condition> = Vec::new();
        let mut add = |c: Condition| {
            let holds = c.dim.as_const().is_some_and(|v| v == 0 || v > 0 && !c.equal);
            if !holds && all.iter().all(|o| o.dim != c.dim || o.equal != c.equal) {
                all.push(c);
            }
        };
        for a in self.graph.assumptions() {
            let name = self.graph.node(a.node).map_or("", |n| n.name.as_str());
            add(Condition {
                dim: a
                    .assumed
                    .dim
                    .substitute(&self.options.fixed)
                    .map_err(|e| dim_error(&e))?,
                equal: a.assumed.equal,
                meaning: format!("node \"{name}\": {}", a.assumed.meaning),
            });
        }
        self.collected.conditions.iter().cloned().for_each(&mut add);
        for s in self.graph.states() {
            let rows = self.fact(s.output).and_then(|f| f.shape.0.get(s.axis).cloned());
            if let Some(rows) = rows {
                let dim = Dim::from(self.options.state_rows)
                    .sub(&rows)
                    .map_err(|e| dim_error(&e))?;
                add(Condition {
                    dim,
                    equal: false,
                    meaning: "the rows exceed the room of the states".to_owned(),
                });
            }
        }
        // A condition on a symbol that no needed shape has cannot be checked, and need not be.
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

    fn states(&self) -> Result<Vec<StateSlot>> {
        let mut out = Vec::new();
        for s in self.graph.states() {
            let shape = self.fact(s.input).map(|f| f.shape.0.clone()).unwrap_or_default();
            let mut row = Dim::from(self.options.state_rows);
            for (_, d) in shape.iter().enumerate().filter(|(i, _)| *i != s.axis) {
                row = row.mul(d).map_err(|e| dim_error(&e))?;
            }
            out.push(StateSlot {
                name: self.graph.value(s.input).name.clone(),
                dtype: self.options.float,
                bytes: Arena::bytes(self, self.options.float, &row)?.next_multiple_of(4),
            });
        }
        Ok(out)
    }
}

/// Turns ordered items into steps.
struct Build<'a, 'b> {
    c: &'b Compiler<'a>,
    arena: &'b Arena,
    formulas: Formulas,
    /// Values that the host keeps.
    host_index: HashMap<ValueId, usize>,
    kernels: Vec<KernelSpec>,
    kernel_index: HashMap<KernelSpec, usize>,
    params_bytes: u32,
}

impl Build<'_, '_> {
    fn place(&self, home: Home) -> Option<Place> {
        match home {
            Home::Weight(i) => Some(Place::Weight(i)),
            Home::State(i) => Some(Place::State(i)),
            Home::Live => Some(Place::Live),
            Home::Value(_) | Home::Temp(_) => self.arena.place_of(home),
        }
    }

    /// Values that a step on the host makes, or reads as the caller gave them, get a number each.
    fn number_host_values(&mut self, items: &[Item]) {
        let add = |v: ValueId, index: &mut HashMap<ValueId, usize>| {
            let next = index.len();
            index.entry(v).or_insert(next);
        };
        for item in items {
            if let Item::Known(v) = item {
                add(*v, &mut self.host_index);
            }
            let Item::Host(id) = item else { continue };
            let Some(node) = self.c.graph.node(*id) else {
                continue;
            };
            for v in node
                .inputs
                .iter()
                .flatten()
                .filter(|v| self.c.graph.inputs().contains(v))
            {
                add(*v, &mut self.host_index);
            }
            for v in &node.outputs {
                add(*v, &mut self.host_index);
            }
        }
        for m in self
            .c
            .made
            .iter()
            .filter(|m| self.c.graph.inputs().contains(&m.value))
        {
            add(m.value, &mut self.host_index);
        }
    }

    fn port(&self, v: ValueId) -> Result<Port> {
        let graph = self.c.graph;
        let fact = graph.fact(v)?;
        let root = self.c.collected.root(v);
        let state = graph
            .states()
            .iter()
            .position(|s| s.input == root || s.output == root);
        Ok(Port {
            name: graph.value(v).name.clone(),
            dtype: fact.dtype,
            device: match state {
                Some(_) => self.c.options.float,
                None => self.c.collected.storage.get(&root).copied().unwrap_or(DType::F32),
            },
            shape: self.c.fact(v).map(|f| f.shape.clone()).unwrap_or_default(),
            place: state.map_or_else(
                || self.arena.place_of(Home::Value(root)),
                |i| Some(Place::State(i)),
            ),
            host: self.host_index.get(&v).copied(),
        })
    }

    fn nodes(&self, id: NodeId) -> Vec<String> {
        let node = self.c.graph.node(id);
        node.map(|n| {
            if n.origin.is_empty() {
                vec![n.name.clone()]
            } else {
                n.origin.clone()
            }
        })
        .unwrap_or_default()
    }

    fn step(&mut self, call: usize, in_place: Option<usize>, index: usize) -> Result<Step> {
        let emitted = &self.c.collected.calls[call];
        let call = &emitted.call;
        let spec = KernelSpec {
            kernel: call.kernel,
            workgroup: call.workgroup,
            defines: call.defines.clone(),
            operands: call.operands.iter().map(|o| o.map(|o| o.dtype)).collect(),
            in_place,
            snippet: call.snippet.clone(),
        };
        let operands = spec.kernel.args.iter().zip(&call.operands);
        let bound = operands
            .filter(|(a, _)| !(in_place.is_some() && a.role == Role::Out))
            .filter_map(|(_, o)| *o);
        let args = bound
            .map(|o: Operand| {
                let what = || format!("an operand of kernel {} has no place", call.kernel.name);
                self.place(o.home)
                    .ok_or_else(|| Error::other(Stage::Plan, what()))
            })
            .collect::<Result<_>>()?;
        let start = self.params_bytes;
        let align = u32::try_from(self.c.caps.params_align).unwrap_or(4).max(4);
        self.params_bytes = (start + spec.params_bytes()).next_multiple_of(align);
        let step = u32::try_from(index).unwrap_or(u32::MAX);
        let mut fields = Vec::with_capacity(call.fields.len());
        for ((at, (_, ty)), field) in (start..)
            .step_by(4)
            .zip(call.kernel.params.fields)
            .zip(&call.fields)
        {
            let value = match field {
                Field::Dim(d) => {
                    Value::Expr(self.formulas.param(d, at, *ty, step).map_err(|e| dim_error(&e))?)
                }
                Field::F32(v) => Value::F32(*v),
            };
            fields.push((*ty, value));
        }
        let mut grid = [0; 3];
        for (axis, (slot, d)) in (0u8..).zip(grid.iter_mut().zip(&call.grid)) {
            *slot = self.formulas.grid(d, step, axis).map_err(|e| dim_error(&e))?;
        }
        let params = start..start + spec.params_bytes();
        let next = self.kernels.len();
        let kernel = *self.kernel_index.entry(spec.clone()).or_insert(next);
        if kernel == next {
            self.kernels.push(spec);
        }
        Ok(Step {
            kernel,
            args,
            params,
            nodes: self.nodes(emitted.node),
            node: emitted.node,
            grid,
            fields,
        })
    }

    fn read(&mut self, v: ValueId) -> Result<HostRead> {
        let fact = self.c.graph.fact(v)?;
        if let Some(t) = fact.as_const() {
            return Ok(HostRead::Const(t.clone()));
        }
        if let Some(i) = self.host_index.get(&v) {
            return Ok(HostRead::Host(*i));
        }
        match self.dims(v)? {
            Some(read) => Ok(read),
            None => Ok(HostRead::Device(self.port(v)?)),
        }
    }

    /// A value that derivation knows as expressions.
    fn dims(&mut self, v: ValueId) -> Result<Option<HostRead>> {
        let Some(fact) = self.c.fact(v) else {
            return Ok(None);
        };
        let Some(dims) = fact.as_dims() else {
            return Ok(None);
        };
        let elements = dims
            .iter()
            .map(|d| self.formulas.expr(d).map_err(|e| dim_error(&e)))
            .collect::<Result<_>>()?;
        Ok(Some(HostRead::Dims {
            dtype: fact.dtype,
            shape: fact.shape.clone(),
            elements,
        }))
    }

    fn defines(&self, v: ValueId) -> Vec<(Symbol, Part)> {
        let made = self.c.made.iter().filter(|m| m.value == v);
        made.map(|m| (m.symbol.clone(), m.part)).collect()
    }

    fn host_step(&mut self, id: NodeId) -> Result<HostStep> {
        let graph = self.c.graph;
        let node = graph
            .node(id)
            .ok_or_else(|| Error::other(Stage::Plan, "a node that was removed"))?;
        let mut reads = Vec::with_capacity(node.inputs.len());
        for v in &node.inputs {
            reads.push(match v {
                Some(v) => Some(self.read(*v)?),
                None => None,
            });
        }
        let mut writes = Vec::with_capacity(node.outputs.len());
        for v in &node.outputs {
            writes.push(HostWrite {
                port: self.port(*v)?,
                defines: self.defines(*v),
            });
        }
        Ok(HostStep {
            op: Some(node.op.clone()),
            name: node.name.clone(),
            nodes: self.nodes(id),
            why: self.c.host.get(&id).cloned().unwrap_or_default(),
            reads,
            writes,
        })
    }

    /// A step without an operator: reads a value of the device for its symbols, or computes a known one.
    fn valued(&mut self, v: ValueId) -> Result<HostStep> {
        let port = self.port(v)?;
        let nodes = self
            .c
            .graph
            .producer(v)
            .map(|(id, _)| self.nodes(id))
            .unwrap_or_default();
        let (read, why) = if self.c.known.contains(&v) {
            (self.dims(v)?, "its elements follow from the shapes")
        } else {
            (
                Some(HostRead::Device(port.clone())),
                "sizes depend on its elements",
            )
        };
        Ok(HostStep {
            op: None,
            name: port.name.clone(),
            nodes,
            why: why.to_owned(),
            reads: vec![read],
            writes: vec![HostWrite {
                port,
                defines: self.defines(v),
            }],
        })
    }
}

/// Positions of the values of a graph at which something on the host reads or writes them; for lifetimes.
pub(super) fn host_lives(c: &Compiler<'_>, items: &[Item]) -> Vec<(ValueId, Life)> {
    let mut out = Vec::new();
    let made_on_host = |v: ValueId| {
        c.graph
            .producer(v)
            .is_some_and(|(id, _)| c.host.contains_key(&id))
    };
    for (time, item) in items.iter().enumerate() {
        let at = Life {
            first: time,
            last: time,
        };
        match item {
            Item::Call(_) | Item::Known(_) => {}
            Item::Observe(v) => out.push((*v, at)),
            Item::Host(id) => {
                let Some(node) = c.graph.node(*id) else { continue };
                for v in node.inputs.iter().flatten() {
                    let known = c.is_const(*v) || c.fact(*v).is_some_and(|f| f.as_dims().is_some());
                    if !known && !made_on_host(*v) && !c.graph.inputs().contains(v) && !c.is_state(*v) {
                        out.push((*v, at));
                    }
                }
            }
        }
    }
    out
}

/// Values that a step on the host makes, with its position.
pub(super) fn host_results(c: &Compiler<'_>, items: &[Item]) -> Vec<(ValueId, usize)> {
    let mut out = Vec::new();
    for (time, item) in items.iter().enumerate() {
        match item {
            Item::Host(id) => out.extend(
                c.graph
                    .node(*id)
                    .iter()
                    .flat_map(|n| &n.outputs)
                    .map(|v| (*v, time)),
            ),
            Item::Known(v) => out.push((*v, time)),
            Item::Call(_) | Item::Observe(_) => {}
        }
    }
    out
}
