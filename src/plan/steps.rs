//! Converts ordered items of work to the steps of a plan.

use super::arena::Arena;
use super::bind::Formulas;
use super::compile::{Compiler, Item};
use super::host::{HostRead, HostReason, HostStep, HostWork, HostWrite};
use super::{FieldValue, Port, Sample, Segment, Step, Storage, dim_error};
use crate::backend::kernel::{KernelSpec, Role};
use crate::error::{Error, Result, Stage};
use crate::graph::op::device_dtype;
use crate::graph::op::sizes::Sizes;
use crate::graph::{NodeId, TensorScalar, ValueId};
use crate::lower::{Field, LiveTable, Location, Operand};
use crate::num;
use crate::shape::{Bindings, Dim, Quotient, Symbol};
use std::collections::{BTreeSet, HashMap, HashSet};

/// Builds steps from ordered items.
pub(super) struct StepBuilder<'a, 'b> {
    c: &'b Compiler<'a>,
    arena: &'b Arena,
    pub formulas: Formulas,
    pub live: LiveTable,
    /// Index of each value that the host keeps.
    pub host_index: HashMap<ValueId, usize>,
    pub kernels: Vec<KernelSpec>,
    kernel_index: HashMap<KernelSpec, usize>,
    pub params_bytes: u32,
}

impl<'a, 'b> StepBuilder<'a, 'b> {
    pub fn new(c: &'b Compiler<'a>, arena: &'b Arena, formulas: Formulas, items: &[Item]) -> Self {
        let mut out = Self {
            c,
            arena,
            formulas,
            live: c.collected.live_table(c.caps.profile.view_align),
            host_index: HashMap::new(),
            kernels: Vec::new(),
            kernel_index: HashMap::new(),
            params_bytes: 0,
        };
        out.number_host_values(items);
        out
    }

    fn storage(&self, location: Location) -> Option<Storage> {
        match location {
            Location::Weight(i) => Some(Storage::Weight(i)),
            Location::State(i) => Some(Storage::State(i)),
            Location::Live => Some(Storage::Live),
            Location::Counters => Some(Storage::Counters),
            Location::Fault => Some(Storage::Fault),
            Location::Known(i) => {
                let (offset, len) = *self.live.known.get(i)?;
                Some(Storage::Known { offset, len })
            }
            Location::Value(_) | Location::Temp(_) => self.arena.storage_of(location),
        }
    }

    /// Numbers the values that host steps make, or read as the caller passed them.
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
                .filter(|v| self.c.graph.is_input(**v))
            {
                add(*v, &mut self.host_index);
            }
            for v in &node.outputs {
                add(*v, &mut self.host_index);
            }
        }
        for m in self.c.made.iter().filter(|m| self.c.graph.is_input(m.value)) {
            add(m.value, &mut self.host_index);
        }
    }

    pub fn port(&self, v: ValueId) -> Result<Port> {
        let graph = self.c.graph;
        let fact = graph.fact(v)?;
        let root = self.c.collected.root(v);
        let state = graph.state_of(root);
        Ok(Port {
            name: graph.value(v).name.clone(),
            dtype: fact.dtype,
            device: match state {
                Some(_) => device_dtype(fact.dtype, self.c.options.state_float(), None),
                // The name of a value may see its bytes as elements of another type.
                None => match self.c.collected.storage_types.get(&v) {
                    Some(own) => *own,
                    None => self.c.storage_type(root)?,
                },
            },
            shape: self.c.fact(v).map(|f| f.shape.clone()).unwrap_or_default(),
            storage: state.map_or_else(
                || self.arena.storage_of(Location::Value(root)),
                |i| Some(Storage::State(i)),
            ),
            host: self.host_index.get(&v).copied(),
            constant: fact.as_const().cloned(),
            accepts: self.c.accepts(v),
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

    pub fn ports(&self, values: &[ValueId]) -> Result<Vec<Port>> {
        values.iter().map(|v| self.port(*v)).collect()
    }

    /// Converts all items, and divides them into segments. The items after the first `main` ones,
    /// which are dispatches, have a segment of their own.
    pub fn schedule(
        &mut self,
        items: &[Item],
        main: usize,
    ) -> Result<(Vec<Step>, Vec<HostStep>, Vec<Segment>)> {
        let (mut steps, mut host, mut segments) = (Vec::new(), Vec::new(), Vec::new());
        for (time, item) in items.iter().enumerate() {
            match item {
                Item::Call(i) => {
                    let n = steps.len();
                    steps.push(self.step(*i, self.arena.in_place(time), n)?);
                    match segments.last_mut() {
                        Some(Segment::Device(range)) if time != main => range.end = n + 1,
                        _ => segments.push(Segment::Device(n..n + 1)),
                    }
                    continue;
                }
                Item::Host(id) => host.push(self.host_step(*id)?),
                Item::Observe(v) | Item::Known(v) => host.push(self.valued(*v)?),
            }
            segments.push(Segment::Host(host.len() - 1));
        }
        Ok((steps, host, segments))
    }

    fn step(&mut self, call: usize, in_place: Option<usize>, index: usize) -> Result<Step> {
        let emitted = &self.c.collected.calls[call];
        let call = &emitted.call;
        let spec = call.spec(in_place);
        let operands = spec.args().zip(&call.operands);
        let bound = operands
            .filter(|(a, _)| !(in_place.is_some() && a.role == Role::Out))
            .filter_map(|(_, o)| *o);
        let args = bound
            .map(|o: Operand| {
                let what = || {
                    format!(
                        "an operand of kernel {} has no location in memory",
                        call.kernel.name
                    )
                };
                self.storage(o.location)
                    .ok_or_else(|| Error::other(Stage::Plan, what()))
            })
            .collect::<Result<_>>()?;
        let start = self.params_bytes;
        let align = num::exact(self.c.caps.params_align.max(4), "the alignment of parameters");
        let align: u32 = align.map_err(|e| Error::internal(Stage::Plan, e))?;
        self.params_bytes = (start + spec.params_bytes()).next_multiple_of(align);
        let mut fields = Vec::with_capacity(call.fields.len());
        for ((at, (_, ty)), field) in (start..).step_by(4).zip(spec.fields()).zip(&call.fields) {
            let value = match field {
                Field::Dim(d) => {
                    FieldValue::Expr(self.formulas.param(d, at, ty, index).map_err(|e| dim_error(&e))?)
                }
                Field::F32(v) => FieldValue::F32(*v),
            };
            fields.push((ty, value));
        }
        let mut grid = [0; 3];
        for (axis, (slot, d)) in (0u8..).zip(grid.iter_mut().zip(&call.grid)) {
            *slot = self.formulas.grid(d, index, axis).map_err(|e| dim_error(&e))?;
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
            tuning: call.tuning.clone(),
            grid,
            fields,
        })
    }

    fn read(&self, v: ValueId) -> Result<HostRead> {
        let fact = self.c.graph.fact(v)?;
        if let Some(t) = fact.as_const() {
            return Ok(HostRead::Const(t.clone()));
        }
        if let Some(i) = self.host_index.get(&v) {
            return Ok(HostRead::Host(*i));
        }
        match self.dims(v) {
            Some(read) => Ok(read),
            None => Ok(HostRead::Device(self.port(v)?)),
        }
    }

    /// Reads a value that shape inference knows as expressions.
    fn dims(&self, v: ValueId) -> Option<HostRead> {
        let fact = self.c.fact(v)?;
        let whole = |dims: Vec<Dim>| dims.into_iter().map(Quotient::whole).collect();
        Some(HostRead::Dims {
            dtype: fact.dtype,
            shape: fact.shape.clone(),
            elements: fact.as_dims().map(whole).or_else(|| fact.as_quotients())?,
        })
    }

    fn defines(&self, v: ValueId) -> Vec<(Symbol, TensorScalar)> {
        let made = self.c.made.of(v);
        made.map(|m| (m.symbol.clone(), m.scalar)).collect()
    }

    fn host_step(&self, id: NodeId) -> Result<HostStep> {
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
            work: HostWork::Op(node.op.clone()),
            name: node.name.clone(),
            nodes: self.nodes(id),
            why: self.c.host.get(&id).cloned().unwrap_or_default(),
            reads,
            writes,
        })
    }

    /// See [`super::Plan::samples`].
    pub fn samples(&self, steps: &[Step]) -> Result<Vec<Sample>> {
        let (mut nodes, mut at): (Vec<(NodeId, Vec<usize>)>, _) = (Vec::new(), HashMap::new());
        for (i, step) in steps.iter().enumerate() {
            let index = *at.entry(step.node).or_insert(nodes.len());
            match nodes.get_mut(index) {
                Some((_, own)) => own.push(i),
                None => nodes.push((step.node, vec![i])),
            }
        }
        let work: HashMap<NodeId, u64> = nodes.iter().map(|(node, _)| (*node, self.work(*node))).collect();
        nodes.sort_by_key(|(node, _)| work.get(node).copied().unwrap_or(u64::MAX));
        let mut known = HashSet::new();
        nodes.retain(|(_, own)| {
            let kernels: Vec<usize> = own.iter().filter_map(|i| Some(steps.get(*i)?.kernel)).collect();
            let any = kernels.iter().any(|k| !known.contains(k));
            known.extend(kernels);
            any
        });
        nodes.sort_by_key(|(_, own)| own.first().copied());
        let sample = |(node, steps)| {
            Ok(Sample {
                node: self.host_step(node)?,
                steps,
            })
        };
        nodes.into_iter().map(sample).collect()
    }

    /// Operations of a node, for comparing nodes: at the bounds of symbols, with one common value
    /// for symbols without a bound.
    fn work(&self, id: NodeId) -> u64 {
        const UNBOUNDED: i64 = 64;
        let graph = self.c.graph;
        let Some(node) = graph.node(id) else {
            return u64::MAX;
        };
        let size = |dim: &Dim| {
            let (mut symbols, mut values) = (BTreeSet::new(), Bindings::new());
            dim.symbols(&mut symbols);
            for symbol in &symbols {
                values.set(symbol, self.c.limits.get(symbol).unwrap_or(UNBOUNDED));
            }
            let size = dim.eval(&values).ok().and_then(|n| u64::try_from(n).ok());
            size.unwrap_or(u64::MAX)
        };
        let shape = |v: &ValueId| -> Vec<u64> {
            let fact = graph.fact(*v);
            fact.map_or_else(|_| Vec::new(), |f| f.shape.0.iter().map(size).collect())
        };
        node.op.flops(&Sizes {
            inputs: node.inputs.iter().map(|v| v.as_ref().map(shape)).collect(),
            outputs: node.outputs.iter().map(shape).collect(),
        })
    }

    /// A step without an operator: reads a value back for its symbols, or computes a known one.
    fn valued(&self, v: ValueId) -> Result<HostStep> {
        let port = self.port(v)?;
        let nodes = self
            .c
            .graph
            .producer(v)
            .map(|(id, _)| self.nodes(id))
            .unwrap_or_default();
        let (work, read, why) = if self.c.known.contains(&v) {
            (HostWork::Known, self.dims(v), HostReason::Known)
        } else {
            (
                HostWork::Observe,
                Some(HostRead::Device(port.clone())),
                HostReason::Observed,
            )
        };
        Ok(HostStep {
            work,
            name: port.name.clone(),
            nodes,
            why,
            reads: vec![read],
            writes: vec![HostWrite {
                port,
                defines: self.defines(v),
            }],
        })
    }
}
