//! The host interpreter: runs [`Op::eval`](super::op::Op::eval) over a graph. It is the reference
//! of all tests and implements `--backend host`.

use super::op::nothing;
use super::{Graph, NodeId, ValueId};
use crate::error::{Error, ErrorKind, Result, Stage};
use crate::limits;
use crate::quota::Quota;
use crate::shape::{Fact, Known};
use crate::tensor::HostTensor;
use std::collections::HashMap;
use std::sync::Arc;

/// A graph prepared for repeated evaluation on the host.
#[derive(Debug)]
pub struct Interpreter {
    graph: Arc<Graph>,
    order: Vec<NodeId>,
    /// For each step, the values whose last reader it is.
    last_use: Vec<Vec<ValueId>>,
    /// Applies to each run. `None` for bodies, which run within the quota of their node.
    quota: Option<Quota>,
}

impl Interpreter {
    /// Prepares `graph`.
    pub fn new(graph: Arc<Graph>) -> Result<Self> {
        let order: Vec<NodeId> = graph
            .order()?
            .into_iter()
            .filter(|id| {
                graph
                    .node(*id)
                    .is_some_and(|n| !is_known(&graph, n.outputs.as_slice()))
            })
            .collect();
        let mut last: HashMap<ValueId, usize> = HashMap::new();
        for (step, id) in order.iter().enumerate() {
            for v in graph
                .node(*id)
                .iter()
                .flat_map(|n| n.inputs.iter().flatten().chain(&n.outputs))
            {
                last.insert(*v, step);
            }
        }
        for v in graph
            .outputs()
            .iter()
            .chain(graph.states().iter().map(|s| &s.output))
        {
            last.insert(*v, usize::MAX);
        }
        let mut last_use = vec![Vec::new(); order.len()];
        for (v, step) in last {
            if let Some(list) = last_use.get_mut(step) {
                list.push(v);
            }
        }
        Ok(Self {
            graph,
            order,
            last_use,
            quota: None,
        })
    }

    /// Applies the quota of this thread to each run.
    #[must_use]
    pub fn within_quota(mut self) -> Self {
        self.quota = Quota::current();
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
        for (id, done) in self.order.iter().zip(&self.last_use) {
            let Some(node) = graph.node(*id) else { continue };
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
            let facts: Option<Vec<&Fact>> = node
                .outputs
                .iter()
                .map(|v| graph.value(*v).fact.as_ref())
                .collect();
            let results = facts.and_then(nothing).map_or_else(|| node.op.run(&inputs), Ok);
            let results = results.map_err(|e| {
                let facts: Vec<String> = inputs
                    .iter()
                    .map(|t| t.map_or_else(|| "-".to_owned(), |t| format!("{t:?}")))
                    .collect();
                Error::Node {
                    stage: Stage::Run,
                    op: node.op.name().to_owned(),
                    node: node.name.clone(),
                    inputs: facts.join(", "),
                    source: e.into(),
                }
            })?;
            for (v, t) in node.outputs.iter().zip(results) {
                values.insert(*v, t);
            }
            for v in done {
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
