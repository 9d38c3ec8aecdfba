//! Decides which nodes a plan needs and which run on the host, and chooses kernels for the others.

use super::compile::{Compiler, MadeSymbols};
use super::host::HostReason;
use crate::error::{Result, Stage};
use crate::graph::{Node, NodeId, OpError, TensorScalar, ValueId};
use crate::lower::{Collected, LowerCx, Scope};
use crate::shape::Symbol;
use crate::tensor::DType;
use std::collections::{BTreeMap, BTreeSet, HashSet};

impl Compiler<'_> {
    /// Finds what is needed as data. A node on the host needs every operand that shape inference
    /// does not know; a symbol that data defines needs that data, also if only an assumption holds
    /// it.
    fn find_needed(&mut self) {
        let graph = self.graph;
        self.needed_nodes = vec![false; graph.nodes.len()];
        self.needed_values = vec![false; graph.values.len()];
        self.made = MadeSymbols::default();
        let mut symbols = BTreeSet::new();
        // Symbols found since the last round that data defines.
        let mut found: BTreeSet<usize> = BTreeSet::new();
        // A run checks all assumptions, including those about sizes that nothing else reads.
        let mut checked = BTreeSet::new();
        for a in graph.assumptions() {
            a.assumed.dim.symbols(&mut checked);
        }
        found.extend(checked.iter().filter_map(|s| self.data_symbols.get(s)));
        symbols.append(&mut checked);
        let mut work: Vec<ValueId> = graph.outputs().to_vec();
        work.extend(graph.states().iter().map(|s| s.output));
        let tensors = work.iter().copied().filter(|v| self.is_computed_dims(*v));
        let mut known: BTreeSet<ValueId> = tensors.collect();
        loop {
            while let Some(v) = work.pop() {
                if std::mem::replace(&mut self.needed_values[v.index()], true) || self.is_const(v) {
                    continue;
                }
                self.note_symbols(v, &mut symbols, &mut found);
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
                    self.note_symbols(read, &mut symbols, &mut found);
                    if if on_host {
                        !self.is_dims(read)
                    } else {
                        node.op.reads(i)
                    } {
                        work.push(read);
                    }
                }
            }
            for i in std::mem::take(&mut found) {
                let Some(made) = graph.made().get(i) else { continue };
                self.made.push(made.clone());
                work.push(made.value);
                if self.is_computed_dims(made.value) {
                    known.insert(made.value);
                }
            }
            if work.is_empty() {
                self.known = known;
                return;
            }
        }
    }

    /// Adds the symbols of a value to `symbols`, and new ones that data defines to `found`.
    fn note_symbols(&self, v: ValueId, symbols: &mut BTreeSet<Symbol>, found: &mut BTreeSet<usize>) {
        for s in self.symbols_of([v]) {
            let index = self.data_symbols.get(&s).copied();
            if symbols.insert(s) {
                found.extend(index);
            }
        }
    }

    /// Nodes that must run on the host, whatever kernels exist.
    fn must_run_on_host(&self) -> BTreeMap<NodeId, HostReason> {
        let mut host = BTreeMap::new();
        for m in self.graph.made() {
            if let (TensorScalar::Size(_), Some((id, _))) = (m.scalar, self.graph.producer(m.value)) {
                host.insert(id, HostReason::Data);
            }
        }
        host
    }

    /// Chooses kernels for every needed node, moves those without one to the host, and stores
    /// outputs in full precision, until nothing changes.
    pub fn lower(&mut self, order: &[NodeId]) -> Result<()> {
        self.host = self.must_run_on_host();
        self.wide.extend(self.read_wide());
        loop {
            self.find_needed();
            self.collected = Collected::default();
            let as_bytes = self.inputs_of_bytes();
            for v in self.graph.inputs().iter().chain(&self.known) {
                let dtype = self.graph.fact(*v)?.dtype;
                let float = if self.wide.contains(v) {
                    DType::F32
                } else {
                    self.options.float
                };
                let stored = if as_bytes.contains(v) {
                    dtype
                } else {
                    self.device_type(*v, float)?
                };
                self.collected.storage_types.insert(*v, stored);
            }
            let before = self.host.len();
            for id in order {
                let Some(node) = self.graph.node(*id).filter(|_| self.is_needed(*id)) else {
                    continue;
                };
                self.set_storage_types(node)?;
                if !self.host.contains_key(id)
                    && let Some(why) = self.lower_or_refuse(node, *id)?
                {
                    self.host.insert(*id, why);
                }
            }
            if self.host.len() == before && !self.widen_outputs() {
                return self.keep_bytes_of_others();
            }
        }
    }

    /// Values that an operator reads in full precision.
    fn read_wide(&self) -> HashSet<ValueId> {
        let nodes = self.graph.nodes().map(|(_, n)| n);
        let wide = nodes.flat_map(|n| n.inputs.iter().enumerate().filter(|(i, _)| n.op.reads_wide(*i)));
        wide.filter_map(|(_, v)| *v).collect()
    }

    /// 8-bit inputs of the graph that only kernels of the integer domain read.
    fn inputs_of_bytes(&self) -> HashSet<ValueId> {
        let is_byte = |v: &&ValueId| {
            let fact = self.graph.fact(**v);
            fact.is_ok_and(|f| matches!(f.dtype, DType::I8 | DType::U8)) && !self.graph.is_output(**v)
        };
        let mut found: HashSet<ValueId> = self.graph.inputs().iter().filter(is_byte).copied().collect();
        for (_, node) in self.graph.nodes().filter(|(_, n)| !n.op.reads_bytes()) {
            for v in node.inputs.iter().flatten() {
                found.remove(v);
            }
        }
        found
    }

    /// Chooses kernels for a node, or returns why it must run on the host.
    fn lower_or_refuse(&mut self, node: &Node, id: NodeId) -> Result<Option<HostReason>> {
        let inputs = node.inputs.iter().enumerate();
        let reads = inputs
            .filter(|(i, _)| node.op.reads(*i))
            .filter_map(|(_, v)| v.as_ref());
        // A value without a bound cannot be placed in the arena.
        if let Some(v) = reads.chain(&node.outputs).find(|v| !self.is_bounded(**v)) {
            return Ok(Some(HostReason::Unbounded {
                value: self.graph.value(*v).name.clone(),
                shape: self.fact(*v).map(|f| f.shape.clone()).unwrap_or_default(),
            }));
        }
        if let Some(v) = self.off_devices(node) {
            return Ok(Some(HostReason::Type(self.graph.fact(v)?.dtype)));
        }
        match self.lower_node(node, id) {
            Ok(()) => Ok(None),
            Err(OpError::NoKernel(why)) => Ok(Some(HostReason::Kernel(why))),
            Err(e) => Err(self.graph.node_error(Stage::Plan, node, e)),
        }
    }

    /// Marks values that are stored as halves and have a graph output as another name, for example
    /// through a reshape. Returns whether one is new. The caller gets the computed precision,
    /// without conversion from halves.
    fn widen_outputs(&mut self) -> bool {
        let mut found = false;
        for v in self.graph.outputs() {
            let root = self.collected.root(*v);
            let halves = root != *v && self.collected.storage_types.get(&root) == Some(&DType::F16);
            let given = self.graph.is_input(root) || self.is_kept_elsewhere(root);
            if halves && !given {
                found |= self.wide.insert(root);
            }
        }
        found
    }

    /// Marks values, known as expressions, whose bytes the caller or a node on the host reads under
    /// another name.
    fn keep_bytes_of_others(&mut self) -> Result<()> {
        let host = self.host.keys().filter_map(|id| self.graph.node(*id));
        let read: HashSet<ValueId> = host.flat_map(|n| n.inputs.iter().flatten().copied()).collect();
        let names = self.collected.alias.iter();
        let read = names.filter(|(v, _)| read.contains(v) || self.graph.is_output(**v));
        let kept: Vec<ValueId> = read
            .map(|(_, root)| *root)
            .filter(|r| self.is_computed_dims(*r))
            .collect();
        for v in kept {
            let dtype = self.device_type(v, DType::F32)?;
            self.collected.storage_types.insert(v, dtype);
            self.known.insert(v);
        }
        Ok(())
    }

    /// A value that the node reads or makes whose type is not supported on devices.
    fn off_devices(&self, node: &Node) -> Option<ValueId> {
        let inputs = node.inputs.iter().enumerate().filter(|(i, _)| node.op.reads(*i));
        let all = inputs.filter_map(|(_, v)| *v).chain(node.outputs.iter().copied());
        all.into_iter()
            .find(|v| self.fact(*v).is_some_and(|f| !f.dtype.on_devices()))
    }

    /// Needed symbols that are neither bounded nor defined by data.
    pub fn find_open(&self) -> BTreeSet<Symbol> {
        let nodes = self.graph.nodes().filter(|(id, _)| self.is_needed(*id));
        let values = nodes.flat_map(|(_, n)| n.inputs.iter().flatten().chain(&n.outputs));
        let mut symbols = self.symbols_of(self.graph.inputs().iter().chain(values).copied());
        symbols.retain(|s| self.options.bounds.get(s).is_none() && !self.is_made(s));
        symbols
    }

    /// Sets the element types of a node's results on the device.
    fn set_storage_types(&mut self, node: &Node) -> Result<()> {
        let precise = node.op.keeps_precision() && {
            let data = node.inputs.iter().flatten().filter(|v| !self.is_const(**v));
            let floats: Vec<_> = data
                .filter(|v| self.fact(**v).is_some_and(|f| f.dtype.is_float()))
                .collect();
            // An integer converted to float keeps 24 bits, since positions exceed the range of f16.
            floats.is_empty()
                || floats
                    .iter()
                    .any(|v| self.collected.storage_types.get(&self.collected.root(**v)) == Some(&DType::F32))
        };
        for out in &node.outputs {
            let Some(fact) = self.facts.get(out.index()).and_then(Option::as_ref) else {
                continue;
            };
            let wide = precise || self.graph.is_output(*out) || self.wide.contains(out);
            let float = if wide { DType::F32 } else { self.options.float };
            let byte = matches!(fact.dtype, DType::I8 | DType::U8) && node.op.stores_bytes();
            let stored = if byte {
                fact.dtype
            } else {
                self.device_type(*out, float)?
            };
            self.collected.storage_types.insert(*out, stored);
        }
        Ok(())
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
            integers: &self.integers,
            limits: &self.limits,
            device: &self.caps.profile,
            float: self.options.float,
            state_float: self.options.state_float(),
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
}
