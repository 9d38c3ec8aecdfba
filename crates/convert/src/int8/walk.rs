//! Runs a graph on the host node by node, so that values can be read and changed in between.

use super::CalibrationSet;
use std::collections::HashMap;
use std::sync::Arc;
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::graph::derive::derive;
use transformer_lite::unstable::graph::interp::{Step, compute, steps};
use transformer_lite::unstable::graph::{Edit, Graph, Node, NodeId, ValueId};
use transformer_lite::unstable::shape::Fact;
use transformer_lite::unstable::tensor::HostTensor;

/// Maximum bytes of the values that are kept for all items. Items that do not fit are left out.
const ROOM: usize = 2 << 30;

/// Values that later nodes read.
pub(super) type Live = HashMap<ValueId, HostTensor>;

/// A node to compute.
pub(super) struct Stop<'a> {
    pub id: NodeId,
    pub node: &'a Node,
    /// Values that no later node reads and that are not results of the graph.
    pub done: Vec<ValueId>,
}

/// The nodes of a graph in execution order.
pub(super) struct Walk<'a> {
    pub graph: &'a Graph,
    pub stops: Vec<Stop<'a>>,
}

impl<'a> Walk<'a> {
    pub fn new(graph: &'a Graph) -> Result<Self> {
        let stop = |step: Step| {
            Some(Stop {
                id: step.node,
                node: graph.node(step.node)?,
                done: step.done,
            })
        };
        let stops = steps(graph)?.into_iter().filter_map(stop).collect();
        Ok(Self { graph, stops })
    }

    /// Inputs of the graph for the items of a set. If the values of both models would not fit for
    /// all items, for as many as fit, spread evenly over the set.
    pub fn items(&self, set: &CalibrationSet<'_>) -> Result<Vec<Live>> {
        let all = set.names.len();
        let mut largest = (0, 0);
        for i in 0..all {
            let elements: usize = self.given(set, i)?.values().map(HostTensor::len).sum();
            largest = largest.max((elements, i));
        }
        let each = 2 * self.bytes(self.given(set, largest.1)?)?;
        let count = (ROOM / each.max(1)).clamp(1, all.max(1));
        (0..count).map(|i| self.given(set, i * all / count)).collect()
    }

    fn given(&self, set: &CalibrationSet<'_>, item: usize) -> Result<Live> {
        let item = (set.read)(item)?.into_iter();
        Ok(item
            .filter_map(|(name, t)| Some((self.graph.input(&name)?, t)))
            .collect())
    }

    /// The most bytes that the values of an item take at a time.
    fn bytes(&self, mut live: Live) -> Result<usize> {
        let mut most = 0;
        for stop in &self.stops {
            let found = self.results(stop.node, &live)?;
            live.extend(stop.node.outputs.iter().copied().zip(found));
            let bytes = live.values().map(|t| t.bytes().map_or(0, <[u8]>::len));
            most = most.max(bytes.sum());
            live.retain(|v, _| !stop.done.contains(v));
        }
        Ok(most)
    }

    /// A value: one of `live`, or a constant.
    pub fn value<'t>(&'t self, live: &'t Live, v: ValueId) -> Result<&'t HostTensor> {
        let found = live.get(&v).or_else(|| constant(self.graph, v));
        found.ok_or_else(|| {
            let what = format!("value \"{}\" is missing", self.graph.value(v).name);
            Error::internal(Stage::Quantize, what)
        })
    }

    /// The results of a node.
    pub fn results(&self, node: &Node, live: &Live) -> Result<Vec<HostTensor>> {
        let operand = |v: &Option<ValueId>| v.map(|v| self.value(live, v)).transpose();
        let operands: Vec<_> = node.inputs.iter().map(operand).collect::<Result<_>>()?;
        compute(node, &operands, Stage::Quantize)
    }
}

/// Computes what depends on constants only, of any size, such as transposed weights.
pub(super) fn fold_constants(graph: &mut Graph) -> Result<()> {
    let order = steps(graph)?;
    let mut folded = false;
    for step in order {
        let Some(node) = graph.node(step.node) else {
            continue;
        };
        let operands: Option<Vec<_>> = node
            .inputs
            .iter()
            .map(|v| v.map_or(Some(None), |v| constant(graph, v).map(Some)))
            .collect();
        let outputs = node.outputs.clone();
        let known = outputs.iter().all(|v| constant(graph, *v).is_some());
        let Some(operands) = operands.filter(|o| !o.is_empty() && !known && !node.op.runs_graphs()) else {
            continue;
        };
        let results = compute(node, &operands, Stage::Quantize)?;
        let mut edit = Edit::new(graph);
        for (v, tensor) in outputs.into_iter().zip(results) {
            edit.set_fact(v, Fact::of(Arc::new(tensor)));
            edit.make_const(v);
        }
        folded = true;
    }
    if folded { derive(graph) } else { Ok(()) }
}

pub(super) fn constant(graph: &Graph, v: ValueId) -> Option<&HostTensor> {
    let fact = graph.value(v).fact.as_ref()?;
    fact.as_const().map(std::convert::AsRef::as_ref)
}
