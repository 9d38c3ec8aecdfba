//! The graph: values, nodes that hold operators, and the state that outlives a run.

pub mod body;
pub mod class;
pub mod derive;
pub mod edit;
pub mod interp;
pub mod onnx;
pub mod op;
pub mod pass;
pub mod products;
pub mod rules;
pub mod sizes;
pub mod text;

pub use edit::Edit;
pub use op::{Op, OpError};

use crate::error::{Error, Result, Stage};
use crate::shape::{Constraints, Dim, Fact, Known, Symbol};
use std::collections::BTreeSet;

/// A value of one graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub(crate) u32);

/// A node of one graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub(crate) u32);

impl ValueId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

impl NodeId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// A tensor that flows through the graph.
#[derive(Clone, Debug)]
pub struct Value {
    /// Name from the model file, or one made by a pass; unique.
    pub name: String,
    /// Type, shape and known contents. `None` until derivation.
    pub fact: Option<Fact>,
    /// The node that computes it; `None` for inputs, states and constants.
    pub producer: Option<NodeId>,
}

/// Why values and nodes make no graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Disorder {
    /// Nodes read each other's results in a circle.
    #[error("a cycle: \"{}\", then the first again", nodes.join("\", then \""))]
    Cycle {
        /// Names of the nodes, each of which reads what the one before it makes.
        nodes: Vec<String>,
    },
    /// Something is read that nothing makes.
    #[error("{reader} reads \"{value}\", which nothing defines")]
    Undefined {
        /// The value.
        value: String,
        /// The node's name, or the list of outputs.
        reader: String,
    },
    /// Two things make values of one name.
    #[error("value \"{value}\" is defined twice")]
    Twice {
        /// The name.
        value: String,
    },
}

/// An operator with its operands.
#[derive(Clone, Debug)]
pub struct Node {
    /// Name from the model file.
    pub name: String,
    /// Names of the nodes of the model file that this node stands for.
    pub origin: Vec<String>,
    /// The operator.
    pub op: Box<dyn Op>,
    /// Operands; `None` where an optional one is left out.
    pub inputs: Vec<Option<ValueId>>,
    /// Results.
    pub outputs: Vec<ValueId>,
}

/// A tensor that persists from run to run and grows along one axis: a KV cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Contents before the run, of `past` rows.
    pub input: ValueId,
    /// Contents after the run.
    pub output: ValueId,
    /// The axis that grows; all axes before it have size 1.
    pub axis: usize,
    /// The symbol that is the number of rows before the run.
    pub past: Symbol,
    /// Nothing reads more of its rows than so many before each new one, that one included: of the others none need be kept. `None` where
    /// all may be read.
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
    pub(crate) outputs: Vec<ValueId>,
    pub(crate) states: Vec<State>,
    /// Versions of the operator sets that the model file declares, by domain.
    pub(crate) opsets: Vec<(String, i64)>,
    /// What is known of the symbols of inputs and states.
    pub(crate) constraints: Constraints,
    /// Symbols whose values are data of the run; from derivation.
    pub(crate) made: Vec<MadeSymbol>,
    /// What the derived shapes rest on beside the constraints; from derivation.
    pub(crate) assumed: Vec<Assumption>,
}

/// A symbol whose value is read from the data of the run; see [`op::Source`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MadeSymbol {
    /// The symbol.
    pub symbol: Symbol,
    /// The tensor that tells it.
    pub value: ValueId,
    /// Whether it is an element of that tensor or one of its sizes, and which.
    pub part: Part,
    /// The largest value that it can take, when known.
    pub at_most: Option<Dim>,
}

/// What of a tensor a [`MadeSymbol`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The element at this position, row-major.
    Element(usize),
    /// The size along this axis.
    Size(usize),
}

/// A condition on the symbols that a shape rests on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assumption {
    /// The node whose shape rule asks for it.
    pub node: NodeId,
    /// The condition.
    pub assumed: op::Assumed,
}

impl Graph {
    /// The value behind an id of this graph.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.index()]
    }

    /// The fact of a value; an error that names it before derivation.
    pub fn fact(&self, id: ValueId) -> Result<&Fact> {
        let v = self.value(id);
        v.fact
            .as_ref()
            .ok_or_else(|| Error::other(Stage::Shape, format!("value \"{}\" has no shape yet", v.name)))
    }

    /// The node behind an id, unless it was removed.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(id.index()).and_then(Option::as_ref)
    }

    /// All nodes, in the order of their ids.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        (0u32..)
            .zip(&self.nodes)
            .filter_map(|(i, n)| n.as_ref().map(|n| (NodeId(i), n)))
    }

    /// Values that the caller supplies at each run.
    pub fn inputs(&self) -> &[ValueId] {
        &self.inputs
    }

    /// Values that a run returns.
    pub fn outputs(&self) -> &[ValueId] {
        &self.outputs
    }

    /// Tensors that persist from run to run.
    pub fn states(&self) -> &[State] {
        &self.states
    }

    /// Versions of the operator sets that the model file declares, by domain; that of standard operators is "".
    pub fn opsets(&self) -> &[(String, i64)] {
        &self.opsets
    }

    /// What is known of the symbols of inputs and states.
    pub fn constraints(&self) -> &Constraints {
        &self.constraints
    }

    /// Symbols whose values are data of the run.
    pub fn made(&self) -> &[MadeSymbol] {
        &self.made
    }

    /// What the derived shapes rest on beside the constraints.
    pub fn assumptions(&self) -> &[Assumption] {
        &self.assumed
    }

    /// The input of this name.
    pub fn input(&self, name: &str) -> Option<ValueId> {
        self.inputs.iter().copied().find(|v| self.value(*v).name == name)
    }

    /// The output of this name.
    pub fn output(&self, name: &str) -> Option<ValueId> {
        self.outputs.iter().copied().find(|v| self.value(*v).name == name)
    }

    /// The value of this name.
    pub fn find(&self, name: &str) -> Option<ValueId> {
        let all = (0u32..).zip(&self.values);
        all.filter(|(_, v)| v.name == name)
            .map(|(i, _)| ValueId(i))
            .next()
    }

    /// The node that computes `value`, with its id.
    pub fn producer(&self, value: ValueId) -> Option<(NodeId, &Node)> {
        let id = self.value(value).producer?;
        self.node(id).map(|n| (id, n))
    }

    /// `v` is an output or the end of a state: its name and contents must stay, whoever else reads it.
    pub fn is_kept(&self, v: ValueId) -> bool {
        self.outputs.contains(&v) || self.states.iter().any(|s| s.output == v)
    }

    /// For each value, the nodes that read it, once for each reading operand.
    pub fn consumers(&self) -> Vec<Vec<NodeId>> {
        let mut all = vec![Vec::new(); self.values.len()];
        for (id, node) in self.nodes() {
            for v in node.inputs.iter().flatten() {
                all[v.index()].push(id);
            }
        }
        all
    }

    /// Node ids so that every node comes after the producers of its inputs; ties in order of id.
    pub fn order(&self) -> Result<Vec<NodeId>> {
        self.ordered()
            .map_err(|e| Error::caused(Stage::Import, "the graph is not in order", e))
    }

    /// As [`Graph::order`], with a cause that a file can be named for.
    pub(crate) fn ordered(&self) -> Result<Vec<NodeId>, Disorder> {
        let consumers = self.consumers();
        let mut missing: Vec<usize> = vec![0; self.nodes.len()];
        let mut ready = BTreeSet::new();
        for (id, node) in self.nodes() {
            let n = node
                .inputs
                .iter()
                .flatten()
                .filter(|v| self.value(**v).producer.is_some())
                .count();
            missing[id.index()] = n;
            if n == 0 {
                ready.insert(id);
            }
        }
        let mut order = Vec::with_capacity(self.nodes.len());
        while let Some(id) = ready.pop_first() {
            order.push(id);
            for out in self.node(id).map(|n| n.outputs.as_slice()).unwrap_or_default() {
                for c in &consumers[out.index()] {
                    missing[c.index()] -= 1;
                    if missing[c.index()] == 0 {
                        ready.insert(*c);
                    }
                }
            }
        }
        if order.len() != self.nodes().count() {
            return Err(self.cycle(&order.into_iter().collect()));
        }
        Ok(order)
    }

    /// A cycle among the nodes that are not `done`, each of which reads what another of them makes.
    fn cycle(&self, done: &BTreeSet<NodeId>) -> Disorder {
        let before = |id: NodeId| {
            let inputs = self.node(id).into_iter().flat_map(|n| n.inputs.iter().flatten());
            let mut producers = inputs.filter_map(|v| self.value(*v).producer);
            producers.find(|p| !done.contains(p))
        };
        let mut path: Vec<NodeId> = Vec::new();
        let mut at = self.nodes().map(|(id, _)| id).find(|id| !done.contains(id));
        while let Some(id) = at.filter(|id| !path.contains(id)) {
            path.push(id);
            at = before(id);
        }
        let start = path.iter().position(|id| Some(*id) == at).unwrap_or(0);
        let name = |id: &NodeId| self.node(*id).map(|n| n.name.clone()).unwrap_or_default();
        Disorder::Cycle {
            // The walk was against the data.
            nodes: path.iter().skip(start).rev().map(name).collect(),
        }
    }

    /// Checks what every pass must keep: producers and outputs agree, every read value exists before it is read,
    /// names of values are unique.
    pub fn check(&self) -> Result<()> {
        let bad = |what: String| Err(Error::other(Stage::Pass, what));
        let mut names = BTreeSet::new();
        for v in &self.values {
            if !names.insert(&v.name) {
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
            self.check_available(*v, "the graph's output")?;
        }
        self.order().map(|_| ())
    }

    fn check_available(&self, id: ValueId, reader: &str) -> Result<()> {
        let v = self.value(id);
        let constant = v
            .fact
            .as_ref()
            .is_some_and(|f| matches!(f.known, Known::Const(_)));
        let state = self.states.iter().any(|s| s.input == id);
        if v.producer.is_some() || constant || state || self.inputs.contains(&id) {
            return Ok(());
        }
        Err(Error::other(
            Stage::Pass,
            format!("\"{reader}\" reads \"{}\", which nothing computes", v.name),
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

    /// An operator's error with its place.
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
