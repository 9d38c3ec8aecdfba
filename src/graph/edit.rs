//! The only way to change a [`Graph`].

use super::{Graph, Node, NodeId, Op, State, Value, ValueId};
use crate::error::{Error, Result, Stage};
use crate::shape::{Fact, Known};
use crate::tensor::HostTensor;
use std::collections::HashMap;
use std::sync::Arc;

/// A session of changes to one graph. Every change of structure has a number, so that a wrong result can be
/// bisected to one change: with `limit` set, changes after that number are refused and the pass sees `false`.
#[derive(Debug)]
pub struct Edit<'a> {
    graph: &'a mut Graph,
    count: usize,
    limit: usize,
}

impl std::ops::Deref for Edit<'_> {
    type Target = Graph;
    fn deref(&self) -> &Graph {
        self.graph
    }
}

impl<'a> Edit<'a> {
    /// Begins to edit without a limit.
    pub fn new(graph: &'a mut Graph) -> Self {
        Self {
            graph,
            count: 0,
            limit: usize::MAX,
        }
    }

    /// Begins to edit; at most `limit` rewrites are allowed.
    pub fn with_limit(graph: &'a mut Graph, limit: usize) -> Self {
        Self {
            graph,
            count: 0,
            limit,
        }
    }

    /// Number of rewrites made.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Asks to make one rewrite, called `what` in the log. A pass makes it only when this is true.
    pub fn begin(&mut self, what: &str) -> bool {
        if self.count >= self.limit {
            return false;
        }
        self.count += 1;
        log::debug!("edit {}: {what}", self.count);
        true
    }

    /// A new value. A taken name gets a number.
    pub fn add_value(&mut self, name: &str, fact: Option<Fact>) -> ValueId {
        let mut unique = name.to_owned();
        let mut n = 1;
        while self.graph.values.iter().any(|v| v.name == unique) {
            unique = format!("{name}.{n}");
            n += 1;
        }
        self.push_value(unique, fact)
    }

    /// A new value whose name the caller knows to be free.
    pub(crate) fn push_value(&mut self, name: String, fact: Option<Fact>) -> ValueId {
        let id = ValueId(u32::try_from(self.graph.values.len()).unwrap_or(u32::MAX));
        self.graph.values.push(Value {
            name,
            fact,
            producer: None,
        });
        id
    }

    /// A new constant.
    pub fn add_const(&mut self, name: &str, tensor: Arc<HostTensor>) -> ValueId {
        self.add_value(name, Some(Fact::of(tensor)))
    }

    /// A new constant `[1]`, as operators take starts, ends and axes.
    pub fn add_int(&mut self, name: &str, v: i64) -> Result<ValueId> {
        let tensor = HostTensor::from_i64(&[1], &[v]);
        let tensor = tensor.map_err(|e| Error::other(Stage::Pass, e.to_string()))?;
        Ok(self.add_const(name, Arc::new(tensor)))
    }

    /// A new node over existing values; `outputs` must have no producer.
    pub fn add_node(
        &mut self,
        name: &str,
        origin: Vec<String>,
        op: Box<dyn Op>,
        inputs: Vec<Option<ValueId>>,
        outputs: Vec<ValueId>,
    ) -> NodeId {
        let id = NodeId(u32::try_from(self.graph.nodes.len()).unwrap_or(u32::MAX));
        for out in &outputs {
            self.graph.values[out.index()].producer = Some(id);
        }
        self.graph.nodes.push(Some(Node {
            name: name.to_owned(),
            origin,
            op,
            inputs,
            outputs,
        }));
        id
    }

    /// Removes a node; its outputs then have no producer.
    pub fn remove_node(&mut self, id: NodeId) {
        if let Some(node) = self.graph.nodes.get_mut(id.index()).and_then(Option::take) {
            for out in node.outputs {
                self.graph.values[out.index()].producer = None;
            }
        }
    }

    /// Replaces the node that computes `outputs[0]` of `old` by `op` over `inputs`, keeping the output values.
    pub fn replace_node(
        &mut self,
        old: NodeId,
        op: Box<dyn Op>,
        inputs: Vec<Option<ValueId>>,
        origin: Vec<String>,
    ) {
        if let Some(node) = self.graph.nodes.get_mut(old.index()).and_then(Option::as_mut) {
            node.op = op;
            node.inputs = inputs;
            node.origin = origin;
        }
    }

    /// Every node that reads `old` reads `new` instead.
    pub fn replace_readers(&mut self, old: ValueId, new: ValueId) {
        for v in self
            .graph
            .nodes
            .iter_mut()
            .flatten()
            .flat_map(|n| n.inputs.iter_mut().flatten())
        {
            if *v == old {
                *v = new;
            }
        }
    }

    /// Expresses symbols of inputs and states by others, all at once; shapes must be derived again.
    pub fn replace_symbols(
        &mut self,
        with: &std::collections::BTreeMap<crate::shape::Symbol, crate::shape::Dim>,
    ) -> Result<(), crate::shape::DimError> {
        let given = self
            .graph
            .inputs
            .iter()
            .chain(self.graph.states.iter().map(|s| &s.input));
        for v in given.copied().collect::<Vec<_>>() {
            if let Some(fact) = &mut self.graph.values[v.index()].fact {
                let sizes = fact.shape.0.iter().map(|d| d.replace(with));
                fact.shape = crate::shape::Shape(sizes.collect::<Result<_, _>>()?);
            }
        }
        Ok(())
    }

    /// Sets what is known of a value.
    pub fn set_fact(&mut self, id: ValueId, fact: Fact) {
        self.graph.values[id.index()].fact = Some(fact);
    }

    /// Makes `id` a constant: its producer is removed when nothing else of it is alive.
    pub fn make_const(&mut self, id: ValueId) {
        if let Some(p) = self.graph.values[id.index()].producer.take() {
            let alone = self.graph.node(p).is_none_or(|n| {
                n.outputs.iter().all(|o| {
                    *o == id
                        || self
                            .graph
                            .value(*o)
                            .fact
                            .as_ref()
                            .is_some_and(|f| matches!(f.known, Known::Const(_)))
                })
            });
            if alone {
                self.remove_node(p);
            }
        }
    }

    /// Declares an input of the graph.
    pub fn add_input(&mut self, id: ValueId) {
        self.graph.inputs.push(id);
    }

    /// Makes `id` no input of the graph, if it is one.
    pub fn remove_input(&mut self, id: ValueId) {
        self.graph.inputs.retain(|v| *v != id);
    }

    /// Declares an output of the graph.
    pub fn add_output(&mut self, id: ValueId) {
        self.graph.outputs.push(id);
    }

    /// Makes `id` no output of the graph, if it is one.
    pub fn remove_output(&mut self, id: ValueId) {
        self.graph.outputs.retain(|v| *v != id);
    }

    /// Turns an input and an output into a state: the two leave the lists of inputs and outputs.
    pub fn add_state(&mut self, state: State) {
        self.graph.inputs.retain(|v| *v != state.input);
        self.graph.outputs.retain(|v| *v != state.output);
        self.graph.states.push(state);
    }

    /// Sets how many rows of the state that ends as `output` are read; see [`State::window`].
    pub fn set_window(&mut self, output: ValueId, window: i64) {
        let mut states = self.graph.states.iter_mut();
        if let Some(state) = states.find(|s| s.output == output) {
            state.window = Some(window);
        }
    }

    /// Sets the versions of operator sets that the model's file declares.
    pub fn set_opsets(&mut self, opsets: Vec<(String, i64)>) {
        self.graph.opsets = opsets;
    }

    /// Sets what is known of the symbols of inputs and states; shapes must be derived again.
    pub fn set_constraints(&mut self, constraints: crate::shape::Constraints) {
        self.graph.constraints = constraints;
    }

    /// Sets the name of the graph.
    pub fn set_name(&mut self, name: String) {
        self.graph.name = name;
    }

    /// Copies the nodes of another graph, whose inputs are these values; names get `name` before them. Returned are the values of that
    /// graph's outputs, and the new nodes.
    pub fn copy(
        &mut self,
        name: &str,
        graph: &Graph,
        inputs: &[ValueId],
    ) -> Result<(Vec<ValueId>, Vec<NodeId>)> {
        let given = graph.inputs().iter().copied().zip(inputs.iter().copied());
        let mut values: HashMap<ValueId, ValueId> = given.collect();
        let mut new = Vec::new();
        let mut copy = |edit: &mut Self, v: ValueId| {
            *values.entry(v).or_insert_with(|| {
                let value = graph.value(v);
                edit.add_value(&format!("{name}/{}", value.name), value.fact.clone())
            })
        };
        for inner in graph.order()?.into_iter().filter_map(|id| graph.node(id)) {
            let inputs = inner.inputs.iter().map(|v| v.map(|v| copy(self, v))).collect();
            let outputs = inner.outputs.iter().map(|v| copy(self, *v)).collect();
            let name = format!("{name}/{}", inner.name);
            new.push(self.add_node(&name, inner.origin.clone(), inner.op.clone(), inputs, outputs));
        }
        Ok((graph.outputs().iter().map(|v| copy(self, *v)).collect(), new))
    }

    /// Leaves those outputs of which `keep` is true; nodes that nothing needs then go, and inputs that nothing reads.
    pub fn keep_outputs(&mut self, keep: impl Fn(ValueId) -> bool) {
        self.graph.outputs.retain(|v| keep(*v));
        self.remove_dead();
        let read: std::collections::HashSet<ValueId> = self
            .graph
            .nodes()
            .flat_map(|(_, n)| n.inputs.iter().flatten().copied())
            .collect();
        let outputs = &self.graph.outputs;
        self.graph
            .inputs
            .retain(|v| read.contains(v) || outputs.contains(v));
    }

    /// Removes nodes that no output and no state needs.
    pub fn remove_dead(&mut self) -> usize {
        let mut live = vec![false; self.graph.nodes.len()];
        let mut work: Vec<ValueId> = self
            .graph
            .outputs
            .iter()
            .copied()
            .chain(self.graph.states.iter().map(|s| s.output))
            .collect();
        while let Some(v) = work.pop() {
            let Some((id, node)) = self.graph.producer(v) else {
                continue;
            };
            if !std::mem::replace(&mut live[id.index()], true) {
                work.extend(node.inputs.iter().flatten());
            }
        }
        let dead: Vec<NodeId> = self
            .graph
            .nodes()
            .map(|(id, _)| id)
            .filter(|id| !live[id.index()])
            .collect();
        for id in &dead {
            self.remove_node(*id);
        }
        dead.len()
    }
}
