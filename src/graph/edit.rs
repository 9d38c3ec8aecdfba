//! [`Edit`], the only way to change a [`Graph`].

use super::{Graph, Node, NodeId, Op, State, Value, ValueId};
use crate::error::{Error, Result, Stage};
use crate::shape::{Fact, Known};
use crate::tensor::HostTensor;
use std::collections::HashMap;
use std::sync::Arc;

/// A session of changes to one graph. Rewrites are numbered so that a wrong result can be bisected
/// to one of them: `limit` rejects all rewrites after that number.
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
    /// Starts editing without a limit.
    pub fn new(graph: &'a mut Graph) -> Self {
        Self {
            graph,
            count: 0,
            limit: usize::MAX,
        }
    }

    /// Starts editing; at most `limit` rewrites are allowed.
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

    /// Requests permission for one rewrite, named `what` in the log. A pass may rewrite only if
    /// this returns true.
    pub fn begin(&mut self, what: &str) -> bool {
        if self.count >= self.limit {
            return false;
        }
        self.count += 1;
        log::debug!("edit {}: {what}", self.count);
        true
    }

    /// Adds a value. If the name is taken, a number is appended.
    pub fn add_value(&mut self, name: &str, fact: Option<Fact>) -> ValueId {
        let mut unique = name.to_owned();
        let mut n = 1;
        while self.graph.values.iter().any(|v| v.name == unique) {
            unique = format!("{name}.{n}");
            n += 1;
        }
        self.push_value(unique, fact)
    }

    /// Adds a value whose name must be unused.
    pub(crate) fn push_value(&mut self, name: String, fact: Option<Fact>) -> ValueId {
        let id = ValueId(self.graph.values.len());
        self.graph.values.push(Value {
            name,
            fact,
            producer: None,
        });
        id
    }

    pub fn add_const(&mut self, name: &str, tensor: Arc<HostTensor>) -> ValueId {
        self.add_value(name, Some(Fact::of(tensor)))
    }

    /// Adds a constant of shape `[1]`, the form of starts, ends and axes.
    pub fn add_int(&mut self, name: &str, v: i64) -> Result<ValueId> {
        let tensor = HostTensor::from_i64(&[1], &[v]);
        let tensor = tensor.map_err(|e| Error::other(Stage::Pass, e.to_string()))?;
        Ok(self.add_const(name, Arc::new(tensor)))
    }

    /// Adds a node over existing values; `outputs` must have no producer.
    pub fn add_node(
        &mut self,
        name: &str,
        origin: Vec<String>,
        op: Box<dyn Op>,
        inputs: Vec<Option<ValueId>>,
        outputs: Vec<ValueId>,
    ) -> NodeId {
        let id = NodeId(self.graph.nodes.len());
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

    /// Replaces the node that computes `outputs[0]` of `old` by `op` over `inputs`, keeping the
    /// output values.
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

    /// Redirects every reader of `old` to `new`.
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

    /// Replaces symbols of inputs and states, all at once. Shapes must be derived again.
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

    /// Makes `id` a constant. Its producer is removed if all its other results are constants.
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

    /// Removes `id` from the graph's inputs.
    pub fn remove_input(&mut self, id: ValueId) {
        self.graph.inputs.retain(|v| *v != id);
    }

    /// Declares an output of the graph.
    pub fn add_output(&mut self, id: ValueId) {
        self.graph.outputs.push(id);
    }

    /// Removes `id` from the graph's outputs.
    pub fn remove_output(&mut self, id: ValueId) {
        self.graph.outputs.retain(|v| *v != id);
    }

    /// Turns an input and an output into a state, removing them from the lists of inputs and
    /// outputs.
    pub fn add_state(&mut self, state: State) {
        self.graph.inputs.retain(|v| *v != state.input);
        self.graph.outputs.retain(|v| *v != state.output);
        self.graph.states.push(state);
    }

    /// Sets the window of the state that ends in `output`; see [`State::window`].
    pub fn set_window(&mut self, output: ValueId, window: i64) {
        let mut states = self.graph.states.iter_mut();
        if let Some(state) = states.find(|s| s.output == output) {
            state.window = Some(window);
        }
    }

    /// Sets the operator set versions that the model file declares.
    pub fn set_opsets(&mut self, opsets: Vec<(String, i64)>) {
        self.graph.opsets = opsets;
    }

    /// Sets the constraints on the symbols of inputs and states. Shapes must be derived again.
    pub fn set_constraints(&mut self, constraints: crate::shape::Constraints) {
        self.graph.constraints = constraints;
    }

    /// Sets the name of the graph.
    pub fn set_name(&mut self, name: String) {
        self.graph.name = name;
    }

    /// Copies the nodes of another graph, with `inputs` as its inputs and `name` as a prefix of all
    /// names. Returns the values of that graph's outputs, and the new nodes.
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

    /// Keeps the outputs for which `keep` is true. Removes nodes that are no longer needed and
    /// inputs that are no longer read.
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

    /// Removes nodes that no output or state needs; returns their number.
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
