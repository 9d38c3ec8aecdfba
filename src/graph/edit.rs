//! [`Edit`], the only way to change a [`Graph`].

use super::bounds::Bounds;
use super::{Graph, Node, NodeId, Op, State, Value, ValueId};
use crate::error::{Error, Result, Stage};
use crate::shape::{Fact, Known};
use crate::tensor::{DType, HostTensor};
use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// A session of changes to one graph. Rewrites are numbered so that a wrong result can be bisected
/// to one of them: `limit` rejects all rewrites after that number.
#[derive(Debug)]
pub struct Edit<'a> {
    graph: &'a mut Graph,
    count: usize,
    limit: usize,
    /// Names of all values; for each, the number to try next if the name is wanted again.
    names: OnceCell<HashMap<String, usize>>,
    /// Every value with each node that reads it.
    readers: OnceCell<BTreeSet<(ValueId, NodeId)>>,
}

/// The operands of a node.
fn reads(node: &Node) -> impl Iterator<Item = ValueId> {
    node.inputs.iter().flatten().copied()
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
        Self::with_limit(graph, usize::MAX)
    }

    /// Starts editing; at most `limit` rewrites are allowed.
    pub fn with_limit(graph: &'a mut Graph, limit: usize) -> Self {
        Self {
            graph,
            count: 0,
            limit,
            names: OnceCell::new(),
            readers: OnceCell::new(),
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

    /// The nodes that read `v`, in order of their ids.
    pub fn readers(&self, v: ValueId) -> impl Iterator<Item = NodeId> {
        let all = self.readers.get_or_init(|| {
            let nodes = self.graph.nodes();
            nodes.flat_map(|(id, n)| reads(n).map(move |v| (v, id))).collect()
        });
        let range = (v, NodeId(0))..=(v, NodeId(usize::MAX));
        all.range(range).map(|(_, id)| *id)
    }

    /// The only reader of `v`, which reads it as one operand; `None` if `v` is an output or the end
    /// of a state.
    pub fn only_reader(&self, v: ValueId) -> Option<NodeId> {
        let mut all = self.readers(v);
        let (Some(id), None) = (all.next(), all.next()) else {
            return None;
        };
        let once = reads(self.node(id)?).filter(|o| *o == v).count() == 1;
        (once && !self.is_kept(v)).then_some(id)
    }

    /// Adds the node's operands to the index of readers, or removes them.
    fn index(&mut self, id: NodeId, add: bool) {
        let (Some(all), Some(node)) = (self.readers.get_mut(), self.graph.node(id)) else {
            return;
        };
        for v in reads(node) {
            if add {
                all.insert((v, id));
            } else {
                all.remove(&(v, id));
            }
        }
    }

    /// Adds a value. If the name is taken, a number is appended.
    pub fn add_value(&mut self, name: &str, fact: Option<Fact>) -> ValueId {
        let values = &self.graph.values;
        self.names
            .get_or_init(|| values.iter().map(|v| (v.name.clone(), 1)).collect());
        let names = self.names.get_mut();
        let mut unique = name.to_owned();
        if let Some(names) = names
            && let Some(next) = names.get(name).copied()
        {
            let mut free = (next..).skip_while(|n| names.contains_key(&format!("{name}.{n}")));
            let n = free.next().unwrap_or(next);
            unique = format!("{name}.{n}");
            names.insert(name.to_owned(), n + 1);
        }
        self.push_value(unique, fact)
    }

    /// Adds a value whose name must be unused.
    pub(crate) fn push_value(&mut self, name: String, fact: Option<Fact>) -> ValueId {
        let id = ValueId(self.graph.values.len());
        if let Some(names) = self.names.get_mut() {
            names.insert(name.clone(), 1);
        }
        self.graph.values.push(Value {
            name,
            fact,
            producer: None,
            bounds: None,
            is_input: false,
            is_output: false,
            state: None,
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
        self.index(id, true);
        id
    }

    /// Removes a node; its outputs then have no producer.
    pub fn remove_node(&mut self, id: NodeId) {
        self.index(id, false);
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
        self.index(old, false);
        if let Some(node) = self.graph.nodes.get_mut(old.index()).and_then(Option::as_mut) {
            node.op = op;
            node.inputs = inputs;
            node.origin = origin;
        }
        self.index(old, true);
    }

    /// Redirects every reader of `old` to `new`.
    pub fn replace_readers(&mut self, old: ValueId, new: ValueId) {
        let readers: Vec<NodeId> = self.readers(old).collect();
        for id in readers {
            self.index(id, false);
            let node = self.graph.nodes.get_mut(id.index()).and_then(Option::as_mut);
            let inputs = node.into_iter().flat_map(|n| n.inputs.iter_mut().flatten());
            inputs.filter(|v| **v == old).for_each(|v| *v = new);
            self.index(id, true);
        }
    }

    /// Redirects the readers of each key to its value, all at once. No value may be a key.
    pub fn replace_all_readers(&mut self, with: &HashMap<ValueId, ValueId>) {
        self.readers.take();
        let nodes = self.graph.nodes.iter_mut().flatten();
        for v in nodes.flat_map(|n| n.inputs.iter_mut().flatten()) {
            if let Some(new) = with.get(v) {
                *v = *new;
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
        self.graph.values[id.index()].is_input = true;
        self.graph.inputs.push(id);
    }

    /// Declares that only the element type of an input is known.
    pub fn forget_shape(&mut self, id: ValueId, dtype: DType) {
        self.graph.values[id.index()].fact = None;
        self.graph.unranked.push((id, dtype));
    }

    /// Declares a constant that a caller may replace.
    pub fn add_default(&mut self, id: ValueId) {
        self.graph.defaults.push(id);
    }

    /// Constants among `ids` cannot be replaced by a caller any more.
    pub fn remove_defaults(&mut self, ids: &[ValueId]) {
        self.graph.defaults.retain(|v| !ids.contains(v));
    }

    /// Promises that the elements of the integer input `id` are within `bounds`, so that a plan may
    /// store fewer bits. Writing others is an error.
    pub fn bound_input(&mut self, id: ValueId, bounds: Bounds) {
        self.graph.values[id.index()].bounds = Some(bounds);
    }

    /// Removes `id` from the graph's inputs.
    pub fn remove_input(&mut self, id: ValueId) {
        self.graph.values[id.index()].is_input = false;
        self.graph.inputs.retain(|v| *v != id);
    }

    /// Declares an output of the graph.
    pub fn add_output(&mut self, id: ValueId) {
        self.graph.values[id.index()].is_output = true;
        self.graph.outputs.push(id);
    }

    /// Removes `id` from the graph's outputs.
    pub fn remove_output(&mut self, id: ValueId) {
        self.graph.values[id.index()].is_output = false;
        self.graph.outputs.retain(|v| *v != id);
    }

    /// Turns an input and an output into a state, removing them from the lists of inputs and
    /// outputs.
    pub fn add_state(&mut self, state: State) {
        self.remove_input(state.input);
        self.remove_output(state.output);
        let index = self.graph.states.len();
        for v in [state.input, state.output] {
            self.graph.values[v.index()].state.get_or_insert(index);
        }
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
        let (values, outputs) = (&mut self.graph.values, &mut self.graph.outputs);
        outputs.retain(|v| {
            values[v.index()].is_output = keep(*v);
            values[v.index()].is_output
        });
        self.remove_dead();
        let read: HashSet<ValueId> = self.graph.nodes().flat_map(|(_, n)| reads(n)).collect();
        let values = &mut self.graph.values;
        self.graph.inputs.retain(|v| {
            let value = &mut values[v.index()];
            value.is_input = read.contains(v) || value.is_output;
            value.is_input
        });
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::op::pointwise::{Binary, Pointwise};

    fn add(edit: &mut Edit<'_>, inputs: [ValueId; 2]) -> (NodeId, ValueId) {
        let y = edit.add_value("y", None);
        let op = Box::new(Pointwise::binary("Add", Binary::Add));
        let inputs = inputs.map(Some).to_vec();
        (edit.add_node("add", Vec::new(), op, inputs, vec![y]), y)
    }

    #[test]
    fn the_index_of_readers_follows_every_change() {
        let mut graph = Graph::default();
        let mut edit = Edit::new(&mut graph);
        let (a, b) = (edit.add_value("a", None), edit.add_value("b", None));
        let (first, x) = add(&mut edit, [a, b]);
        let same = |edit: &Edit<'_>| {
            for (v, consumers) in edit.consumers().into_iter().enumerate() {
                let mut distinct = consumers.clone();
                distinct.dedup();
                let v = ValueId(v);
                assert_eq!(edit.readers(v).collect::<Vec<_>>(), distinct);
                let only = <[NodeId; 1]>::try_from(consumers).ok().map(|[id]| id);
                assert_eq!(edit.only_reader(v), only);
            }
        };
        same(&edit);
        let (second, y) = add(&mut edit, [x, a]);
        same(&edit);
        edit.replace_readers(a, x);
        same(&edit);
        let op = Box::new(Pointwise::binary("Mul", Binary::Mul));
        edit.replace_node(second, op, vec![Some(b), None, Some(b)], Vec::new());
        same(&edit);
        edit.remove_node(first);
        same(&edit);
        assert_eq!(edit.only_reader(b), None, "it is read twice");
        let (third, _) = add(&mut edit, [y, a]);
        assert_eq!(edit.only_reader(y), Some(third));
        edit.add_output(y);
        assert_eq!(edit.only_reader(y), None, "it is an output");
    }

    #[test]
    fn taken_names_get_the_next_free_number() {
        let mut graph = Graph::default();
        let mut edit = Edit::new(&mut graph);
        let wanted = ["a", "a.2", "a", "a", "a.2", "a", "a.1"];
        for name in wanted {
            edit.add_value(name, None);
        }
        let names: Vec<&str> = edit.values().map(|v| v.name.as_str()).collect();
        assert_eq!(names, ["a", "a.2", "a.1", "a.3", "a.2.1", "a.4", "a.1.1"]);
    }
}
