//! The host interpreter: runs [`Op::eval`](super::op::Op::eval) over a graph. It is the reference
//! of all tests and implements `--backend host`.

use super::op::{OpError, fit_with_contents, nothing};
use super::{Graph, Node, NodeId, ValueId};
use crate::error::{Error, ErrorKind, Result, Stage};
use crate::limits;
use crate::quota::Quota;
use crate::shape::{Fact, Known};
use crate::tensor::HostTensor;
use std::collections::HashMap;
use std::sync::Arc;

/// A node to compute.
#[derive(Clone, Debug)]
pub struct Step {
    pub node: NodeId,
    /// Values that no later node reads and that are no result of the graph.
    pub done: Vec<ValueId>,
}

/// The nodes whose results are not constants, in an order of computation.
pub fn steps(graph: &Graph) -> Result<Vec<Step>> {
    let computed = |id: &NodeId| graph.node(*id).is_some_and(|n| !is_known(graph, &n.outputs));
    let order = graph.order()?.into_iter().filter(computed);
    let step = |node| Step {
        node,
        done: Vec::new(),
    };
    let mut steps: Vec<Step> = order.map(step).collect();
    let mut last: HashMap<ValueId, usize> = HashMap::new();
    for (i, step) in steps.iter().enumerate() {
        let nodes = graph.node(step.node).into_iter();
        let values = nodes.flat_map(|n| n.inputs.iter().flatten().chain(&n.outputs));
        last.extend(values.map(|v| (*v, i)));
    }
    let states = graph.states().iter().map(|s| &s.output);
    for v in graph.outputs().iter().chain(states) {
        last.remove(v);
    }
    for (v, i) in last {
        if let Some(step) = steps.get_mut(i) {
            step.done.push(v);
        }
    }
    Ok(steps)
}

/// The results of a node.
pub fn compute(node: &Node, inputs: &[Option<&HostTensor>], stage: Stage) -> Result<Vec<HostTensor>> {
    node.op.run(inputs).map_err(|e| failed(node, inputs, stage, e))
}

fn failed(node: &Node, inputs: &[Option<&HostTensor>], stage: Stage, e: OpError) -> Error {
    let text = |t: &Option<&HostTensor>| t.map_or_else(|| "-".to_owned(), |t| format!("{t:?}"));
    Error::Node {
        stage,
        op: node.op.name().to_owned(),
        node: node.name.clone(),
        inputs: inputs.iter().map(text).collect::<Vec<_>>().join(", "),
        source: e.into(),
    }
}

/// A graph prepared for repeated evaluation on the host.
#[derive(Debug)]
pub struct Interpreter {
    graph: Arc<Graph>,
    steps: Vec<Step>,
    /// Applies to each run. `None` for bodies, which run within the quota of their node.
    quota: Option<Quota>,
    /// Shapes were not derived, so operators have not seen their operands.
    underived: bool,
}

impl Interpreter {
    /// Prepares `graph`.
    pub fn new(graph: Arc<Graph>) -> Result<Self> {
        let steps = steps(&graph)?;
        Ok(Self {
            graph,
            steps,
            quota: None,
            underived: false,
        })
    }

    /// Applies the quota of this thread to each run.
    #[must_use]
    pub fn within_quota(mut self) -> Self {
        self.quota = Quota::current();
        self
    }

    /// Lets each operator check the types and shapes of its operands before it runs, for a graph
    /// whose shapes are not derived.
    #[must_use]
    pub fn underived(mut self) -> Self {
        self.underived = true;
        self
    }

    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Evaluates the graph. `given` holds every input and state by value. Returns all outputs, and
    /// the states after the run, by value.
    pub fn run(&self, given: HashMap<ValueId, HostTensor>) -> Result<HashMap<ValueId, HostTensor>> {
        let _call = self.quota.as_ref().map(Quota::enter);
        let graph = &self.graph;
        let mut values = given;
        for v in graph
            .inputs()
            .iter()
            .copied()
            .chain(graph.states().iter().map(|s| s.input))
        {
            if !values.contains_key(&v) {
                let what = format!("input \"{}\" is missing", graph.value(v).name);
                return Err(Error::other(Stage::Run, what).of_kind(ErrorKind::MissingInput));
            }
        }
        for step in &self.steps {
            let Some(node) = graph.node(step.node) else {
                continue;
            };
            limits::check(Stage::Run)?;
            let mut inputs = Vec::with_capacity(node.inputs.len());
            for v in &node.inputs {
                inputs.push(match v {
                    None => None,
                    Some(v) => match values.get(v) {
                        Some(t) => Some(t),
                        None => Some(constant(graph, *v)?),
                    },
                });
            }
            if self.underived {
                let checked = fit_with_contents(node.op.as_ref(), &inputs);
                checked.map_err(|e| failed(node, &inputs, Stage::Run, e))?;
            }
            let facts: Option<Vec<&Fact>> = node
                .outputs
                .iter()
                .map(|v| graph.value(*v).fact.as_ref())
                .collect();
            let results = facts
                .and_then(nothing)
                .map_or_else(|| compute(node, &inputs, Stage::Run), Ok)?;
            for (v, t) in node.outputs.iter().zip(results) {
                values.insert(*v, t);
            }
            for v in &step.done {
                values.remove(v);
            }
        }
        let mut out = HashMap::new();
        for v in graph
            .outputs()
            .iter()
            .copied()
            .chain(graph.states().iter().map(|s| s.output))
        {
            // The body of a loop may return one value twice.
            if out.contains_key(&v) {
                continue;
            }
            let tensor = match values.remove(&v) {
                Some(t) => t,
                None => constant(graph, v)?.clone(),
            };
            out.insert(v, tensor);
        }
        Ok(out)
    }
}

fn is_known(graph: &Graph, outputs: &[ValueId]) -> bool {
    outputs.iter().all(|v| {
        graph
            .value(*v)
            .fact
            .as_ref()
            .is_some_and(|f| matches!(f.known, Known::Const(_)))
    })
}

fn constant(graph: &Graph, v: ValueId) -> Result<&HostTensor> {
    let value = graph.value(v);
    value
        .fact
        .as_ref()
        .and_then(|f| f.as_const())
        .map(Arc::as_ref)
        .ok_or_else(|| {
            Error::other(
                Stage::Run,
                format!("value \"{}\" is read before it is computed", value.name),
            )
        })
}
