//! The graph: values, nodes that hold operators, and states that persist between runs.

pub mod body;
pub mod bounds;
pub mod class;
pub mod derive;
pub mod edit;
pub mod interp;
pub mod onnx;
pub mod op;
pub mod pass;
pub mod quantization;
pub mod rules;
pub mod sizes;
pub mod text;

pub use edit::Edit;
pub use op::{Op, OpError};

use self::bounds::Bounds;
use crate::error::{Error, ErrorKind, Result, Stage};
use crate::shape::{Constraints, Dim, Fact, Known, Symbol};
use crate::tensor::DType;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};

/// A value of one graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub(crate) usize);

/// A node of one graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub usize);

impl ValueId {
    pub fn index(self) -> usize {
        self.0
    }
}

impl NodeId {
    pub(crate) fn index(self) -> usize {
        self.0
    }
}

/// A tensor that flows through the graph.
#[derive(Clone, Debug)]
pub struct Value {
    /// Unique name, from the model file or made by a pass.
    pub name: String,
    /// Type, shape and known contents; `None` before derivation.
    pub fact: Option<Fact>,
    /// The node that computes it; `None` for inputs, states and constants.
    pub producer: Option<NodeId>,
    /// What the caller promises of the elements of an integer input; `None` for nothing.
    pub(crate) bounds: Option<Bounds>,
    /// Whether it is listed in the graph's inputs, and in its outputs.
    is_input: bool,
    is_output: bool,
    /// The state that begins or ends with it, by index.
    state: Option<usize>,
}

/// Why values and nodes do not form a valid graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Disorder {
    /// Nodes depend on each other in a cycle.
    #[error("the nodes form a cycle: {}, then the first one again", path(nodes))]
    Cycle {
        /// Names of the nodes; each reads a result of the previous one.
        nodes: Vec<String>,
    },
    /// A value is read but not defined.
    #[error("{reader} reads \"{value}\", which is not defined")]
    Undefined {
        value: String,
        /// The reading node's name, or the list of outputs.
        reader: String,
    },
    /// Two values have the same name.
    #[error("value \"{value}\" is defined twice")]
    Twice { value: String },
}

/// The first nodes of a path, and how many follow.
fn path(nodes: &[String]) -> String {
    const SHOWN: usize = 16;
    let quoted = nodes.iter().take(SHOWN).map(|n| format!("\"{n}\""));
    let more = nodes.len().saturating_sub(SHOWN);
    let more = (more > 0).then(|| format!("{more} others"));
    quoted.chain(more).collect::<Vec<_>>().join(", then ")
}

/// An operator with its operands.
#[derive(Clone, Debug)]
pub struct Node {
    /// Name from the model file.
    pub name: String,
    /// Names of the model file's nodes that this node replaces.
    pub origin: Vec<String>,
    pub op: Box<dyn Op>,
    /// Operands; `None` for an omitted optional operand.
    pub inputs: Vec<Option<ValueId>>,
    pub outputs: Vec<ValueId>,
}

/// A tensor that persists between runs and grows along one axis: a KV cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Contents before the run: `past` rows.
    pub input: ValueId,
    /// Contents after the run.
    pub output: ValueId,
    /// The axis that grows; all axes before it have size 1.
    pub axis: usize,
    /// The number of rows before the run.
    pub past: Symbol,
    /// Only this many rows are read for each new row, counting the new one. Older rows need not be
    /// kept. `None` if all rows may be read.
    pub window: Option<i64>,
}

/// A model as a graph of operators. Changed only through [`Edit`].
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// Name from the model file.
    pub name: String,
    pub(crate) values: Vec<Value>,
    pub(crate) nodes: Vec<Option<Node>>,
    pub(crate) inputs: Vec<ValueId>,
    /// Inputs whose number of axes the model file does not state; they have no fact.
    pub(crate) unranked: Vec<(ValueId, DType)>,
    /// Constants that a caller may replace: initializers that the model file lists as inputs.
    pub(crate) defaults: Vec<ValueId>,
    pub(crate) outputs: Vec<ValueId>,
    pub(crate) states: Vec<State>,
    /// Versions of the operator sets that the model file declares, by domain.
    pub(crate) opsets: Vec<(String, i64)>,
    /// Constraints on the symbols of inputs and states.
    pub(crate) constraints: Constraints,
    /// Symbols whose values depend on data of the run. Set by derivation.
    pub(crate) made: Vec<MadeSymbol>,
    /// Conditions of the derived shapes beyond the constraints. Set by derivation.
    pub(crate) assumed: Vec<NodeAssumption>,
}

/// A symbol whose value is read from data of the run; see [`op::DimSource`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MadeSymbol {
    pub symbol: Symbol,
    /// The tensor that holds it.
    pub value: ValueId,
    /// The integer of that tensor that the symbol stands for.
    pub scalar: TensorScalar,
    /// An upper bound, if known.
    pub at_most: Option<Dim>,
}

/// An integer that a tensor provides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorScalar {
    /// The element at this position, row-major.
    Element(usize),
    /// The size along this axis.
    Size(usize),
}

/// A condition on the symbols that a derived shape depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAssumption {
    /// The node whose shape rule requires it.
    pub node: NodeId,
    pub assumed: op::Assumption,
}

impl Graph {
    /// The value with this id.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.index()]
    }

    /// All values, in the order of their IDs.
    pub fn values(&self) -> impl Iterator<Item = &Value> {
        self.values.iter()
    }

    /// The fact of a value. Before derivation, an error that names the value.
    pub fn fact(&self, id: ValueId) -> Result<&Fact> {
        let v = self.value(id);
        let missing = || match self.unranked.iter().any(|(u, _)| *u == id) {
            true => format!(
                "the model states no rank for input \"{}\"; its shape is known only at run time",
                v.name
            ),
            false => format!("value \"{}\" has no shape yet", v.name),
        };
        v.fact
            .as_ref()
            .ok_or_else(|| Error::other(Stage::Shape, missing()).of_kind(ErrorKind::Unsupported))
    }

    /// The node with this id, unless it was removed.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(id.index()).and_then(Option::as_ref)
    }

    /// All nodes, ordered by id.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        let all = self.nodes.iter().enumerate();
        all.filter_map(|(i, n)| n.as_ref().map(|n| (NodeId(i), n)))
    }

    /// Values that the caller supplies for each run.
    pub fn inputs(&self) -> &[ValueId] {
        &self.inputs
    }

    /// Inputs whose number of axes the model file does not state, with their element types.
    pub fn unranked(&self) -> &[(ValueId, DType)] {
        &self.unranked
    }

    /// Constants that a caller may replace: initializers that the model file lists as inputs.
    pub fn defaults(&self) -> &[ValueId] {
        &self.defaults
    }

    /// Values that a run returns.
    pub fn outputs(&self) -> &[ValueId] {
        &self.outputs
    }

    /// Tensors that persist between runs.
    pub fn states(&self) -> &[State] {
        &self.states
    }

    /// Operator set versions that the model file declares, by domain. The standard domain is "".
    pub fn opsets(&self) -> &[(String, i64)] {
        &self.opsets
    }

    /// Constraints on the symbols of inputs and states.
    pub fn constraints(&self) -> &Constraints {
        &self.constraints
    }

    /// Symbols whose values depend on data of the run.
    pub fn made(&self) -> &[MadeSymbol] {
        &self.made
    }

    /// Conditions of the derived shapes beyond the constraints.
    pub fn assumptions(&self) -> &[NodeAssumption] {
        &self.assumed
    }

    /// The input with this name.
    pub fn input(&self, name: &str) -> Option<ValueId> {
        self.inputs.iter().copied().find(|v| self.value(*v).name == name)
    }

    /// The output with this name.
    pub fn output(&self, name: &str) -> Option<ValueId> {
        self.outputs.iter().copied().find(|v| self.value(*v).name == name)
    }

    /// The value with this name.
    pub fn find(&self, name: &str) -> Option<ValueId> {
        self.values.iter().position(|v| v.name == name).map(ValueId)
    }

    /// The node that computes `value`, with its id.
    pub fn producer(&self, value: ValueId) -> Option<(NodeId, &Node)> {
        let id = self.value(value).producer?;
        self.node(id).map(|n| (id, n))
    }

    /// True for a value that the caller supplies for each run.
    pub fn is_input(&self, v: ValueId) -> bool {
        self.value(v).is_input
    }

    /// True for a value that a run returns.
    pub fn is_output(&self, v: ValueId) -> bool {
        self.value(v).is_output
    }

    /// The state that begins or ends with `v`, by index into [`Graph::states`].
    pub fn state_of(&self, v: ValueId) -> Option<usize> {
        self.value(v).state
    }

    /// True for an output or the end of a state: its name and contents must be kept, even if
    /// nothing else reads it.
    pub fn is_kept(&self, v: ValueId) -> bool {
        self.is_output(v) || self.is_state_end(v)
    }

    /// True for the contents of a state after a run.
    pub fn is_state_end(&self, v: ValueId) -> bool {
        let state = self.state_of(v).and_then(|i| self.states.get(i));
        state.is_some_and(|s| s.output == v)
    }

    /// For each value, the nodes that read it, once per reading operand.
    pub fn consumers(&self) -> Vec<Vec<NodeId>> {
        let mut all = vec![Vec::new(); self.values.len()];
        for (id, node) in self.nodes() {
            for v in node.inputs.iter().flatten() {
                all[v.index()].push(id);
            }
        }
        all
    }

    /// Node ids in topological order; ties are broken by id.
    pub fn order(&self) -> Result<Vec<NodeId>> {
        self.ordered()
            .map_err(|e| Error::caused(Stage::Import, "the graph's nodes cannot be ordered", e))
    }

    /// Like [`Graph::order`], with an error that does not name a stage.
    pub(crate) fn ordered(&self) -> Result<Vec<NodeId>, Disorder> {
        if self.is_ordered_by_id() {
            return Ok(self.nodes().map(|(id, _)| id).collect());
        }
        let consumers = self.consumers();
        let mut missing: Vec<usize> = vec![0; self.nodes.len()];
        let mut ready = BinaryHeap::new();
        for (id, node) in self.nodes() {
            let n = node
                .inputs
                .iter()
                .flatten()
                .filter(|v| self.value(**v).producer.is_some())
                .count();
            missing[id.index()] = n;
            if n == 0 {
                ready.push(Reverse(id));
            }
        }
        let mut order = Vec::with_capacity(self.nodes.len());
        while let Some(Reverse(id)) = ready.pop() {
            order.push(id);
            for out in self.node(id).map(|n| n.outputs.as_slice()).unwrap_or_default() {
                for c in &consumers[out.index()] {
                    missing[c.index()] -= 1;
                    if missing[c.index()] == 0 {
                        ready.push(Reverse(*c));
                    }
                }
            }
        }
        if order.len() != self.nodes().count() {
            return Err(self.cycle(&order.into_iter().collect()));
        }
        Ok(order)
    }

    /// Whether every node comes after the nodes whose results it reads.
    fn is_ordered_by_id(&self) -> bool {
        self.nodes().all(|(id, node)| {
            let producers = node
                .inputs
                .iter()
                .flatten()
                .filter_map(|v| self.value(*v).producer);
            producers.into_iter().all(|p| p < id && self.node(p).is_some())
        })
    }

    /// A cycle among the nodes that are not `done`. Each of them reads a result of another.
    fn cycle(&self, done: &HashSet<NodeId>) -> Disorder {
        let before = |id: NodeId| {
            let inputs = self.node(id).into_iter().flat_map(|n| n.inputs.iter().flatten());
            let mut producers = inputs.filter_map(|v| self.value(*v).producer);
            producers.find(|p| !done.contains(p))
        };
        let mut path: Vec<NodeId> = Vec::new();
        let mut seen = HashSet::new();
        let mut at = self.nodes().map(|(id, _)| id).find(|id| !done.contains(id));
        while let Some(id) = at.filter(|id| seen.insert(*id)) {
            path.push(id);
            at = before(id);
        }
        let start = path.iter().position(|id| Some(*id) == at).unwrap_or(0);
        let name = |id: &NodeId| self.node(*id).map(|n| n.name.clone()).unwrap_or_default();
        Disorder::Cycle {
            // The walk went against the data flow.
            nodes: path.iter().skip(start).rev().map(name).collect(),
        }
    }

    /// Checks the invariants that every pass must keep: producers and outputs agree, every value is
    /// defined before it is read, and names of values are unique.
    pub fn check(&self) -> Result<()> {
        let bad = |what: String| Err(Error::other(Stage::Pass, what));
        let mut names = HashSet::with_capacity(self.values.len());
        for v in &self.values {
            if !names.insert(v.name.as_str()) {
                return bad(format!("two values are named \"{}\"", v.name));
            }
            if let Some(p) = v.producer
                && self.node(p).is_none()
            {
                return bad(format!("value \"{}\" comes from a removed node", v.name));
            }
        }
        for (id, node) in self.nodes() {
            for out in &node.outputs {
                if self.value(*out).producer != Some(id) {
                    return bad(format!(
                        "node \"{}\" does not own its output \"{}\"",
                        node.name,
                        self.value(*out).name
                    ));
                }
            }
            for v in node.inputs.iter().flatten() {
                self.check_available(*v, &node.name)?;
            }
        }
        for v in &self.outputs {
            self.check_available(*v, "the list of outputs")?;
        }
        self.order().map(|_| ())
    }

    fn check_available(&self, id: ValueId, reader: &str) -> Result<()> {
        let v = self.value(id);
        let constant = v
            .fact
            .as_ref()
            .is_some_and(|f| matches!(f.known, Known::Const(_)));
        let state = v.state.and_then(|i| self.states.get(i));
        let state = state.is_some_and(|s| s.input == id);
        if v.producer.is_some() || constant || state || v.is_input {
            return Ok(());
        }
        Err(Error::other(
            Stage::Pass,
            format!("\"{reader}\" reads \"{}\", which no node computes", v.name),
        ))
    }

    /// Facts of a node's inputs as text, for error messages.
    pub fn input_facts(&self, node: &Node) -> String {
        let all: Vec<String> = node
            .inputs
            .iter()
            .map(|v| match v {
                Some(v) => self
                    .value(*v)
                    .fact
                    .as_ref()
                    .map_or_else(|| "?".to_owned(), ToString::to_string),
                None => "-".to_owned(),
            })
            .collect();
        all.join(", ")
    }

    /// An operator's error with the node's name and inputs.
    pub fn node_error(&self, stage: Stage, node: &Node, source: OpError) -> Error {
        Error::Node {
            stage,
            op: node.op.name().to_owned(),
            node: node.name.clone(),
            inputs: self.input_facts(node),
            source: source.into(),
        }
    }
}
