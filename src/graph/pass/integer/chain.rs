//! Functions of one activation that several elementwise nodes compute, such as `x * sigmoid(x)`.

use super::values::{dequantized, is_known, known, quantized_by};
use super::{Found, Matched, Site, refuse, table};
use crate::graph::op::OpResult;
use crate::graph::op::pointwise::Pointwise;
use crate::graph::op::quantize_linear::{DequantizeLinear, QuantizeLinear};
use crate::graph::pass::pattern::{input, producer};
use crate::graph::{Edit, Node, NodeId, ValueId};
use crate::quant::fixed::{Affine, Arithmetic, Output};
use crate::tensor::{DType, HostTensor};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Maximum number of nodes in a function.
const LONGEST: usize = 32;

/// The nodes between dequantizations of one activation and a quantization.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    /// The dequantized activation; the same from every equal `DequantizeLinear`.
    xs: Vec<ValueId>,
    /// In topological order.
    pub nodes: Vec<NodeId>,
}

/// The functions of a graph and their tables, by the quantization of their result.
pub(super) struct Chains {
    pub ends: HashMap<NodeId, (Chain, Box<dyn Site>)>,
    /// Nodes whose results only these functions need.
    pub covered: HashSet<NodeId>,
}

impl Chains {
    /// Those of the graph that have tables. `order` is a topological order of the nodes.
    pub fn find(edit: &Edit<'_>, order: &[NodeId], arithmetic: Arithmetic) -> Self {
        let places: HashMap<NodeId, usize> = order.iter().copied().zip(0..).collect();
        let found = order.iter().filter_map(|end| {
            edit.node(*end)?.op.downcast::<QuantizeLinear>()?;
            let chain = Chain::before(edit, *end, &places)?;
            let site = chain.site(edit, *end, arithmetic).ok()?;
            Some((*end, (chain, site)))
        });
        let ends: HashMap<NodeId, (Chain, Box<dyn Site>)> = found.collect();
        let inside: HashSet<NodeId> = ends.values().flat_map(|(c, _)| &c.nodes).copied().collect();
        let mut covered = HashSet::new();
        for id in order.iter().rev().filter(|id| inside.contains(*id)) {
            let outputs = edit.node(*id).map(|n| n.outputs.as_slice()).unwrap_or_default();
            let needed = |r: NodeId| !ends.contains_key(&r) && !covered.contains(&r);
            if !outputs
                .iter()
                .any(|v| edit.is_kept(*v) || edit.readers(*v).any(needed))
            {
                covered.insert(*id);
            }
        }
        Self { ends, covered }
    }
}

impl Chain {
    /// `None` if the quantization `end` reads anything but a function of one activation, or if that
    /// function is a single node, possibly followed by clamps.
    fn before(edit: &Edit<'_>, end: NodeId, places: &HashMap<NodeId, usize>) -> Option<Self> {
        let mut xs: Vec<ValueId> = Vec::new();
        let mut found = HashSet::new();
        let mut values = vec![input(edit.node(end)?, 0)?];
        while let Some(v) = values.pop() {
            if is_known(edit, v) {
                let shape = edit.fact(v).ok()?.shape.as_fixed()?;
                if shape.iter().any(|n| *n != 1) {
                    return None;
                }
            } else if let Some((_, node, op)) = producer::<DequantizeLinear>(edit, v) {
                let first = xs.first().and_then(|x| producer::<DequantizeLinear>(edit, *x));
                if first.is_some_and(|(_, n, o)| n.inputs != node.inputs || o != op) {
                    return None;
                }
                xs.push(v);
            } else {
                let (id, node, _) = producer::<Pointwise>(edit, v)?;
                if found.insert(id) {
                    values.extend(node.inputs.iter().flatten());
                }
                if found.len() > LONGEST {
                    return None;
                }
            }
        }
        let mut nodes: Vec<NodeId> = found.into_iter().collect();
        nodes.sort_unstable_by_key(|id| places.get(id));
        let chain = Self { xs, nodes };
        (!chain.xs.is_empty() && !chain.only_clamps(edit)).then_some(chain)
    }

    /// Whether all nodes after the first clamp the result of the one before.
    fn only_clamps(&self, edit: &Edit<'_>) -> bool {
        let clamps = |pair: &[NodeId]| {
            let [before, after] = pair else { return false };
            let y = edit.node(*before).and_then(|n| n.outputs.first());
            let clamp = y.zip(edit.node(*after));
            clamp.is_some_and(|(y, n)| super::values::clamp(edit, n, *y).is_some())
        };
        self.nodes.windows(2).all(clamps)
    }

    fn site(&self, edit: &Edit<'_>, end: NodeId, arithmetic: Arithmetic) -> Found {
        let x = self.xs.first().ok_or_else(|| refuse("a missing operand"))?;
        let (x, to) = (dequantized(edit, *x)?, quantized_by(edit, end)?);
        let nodes: Vec<&Node> = self.nodes.iter().filter_map(|id| edit.node(*id)).collect();
        let reals = results(edit, &self.xs, &nodes, x.map)?;
        let table = table::of_results(&reals, x.map, to.map, Output::new(to.map.zero), arithmetic);
        table::tabulated(x, table, to)
    }
}

/// The results of nodes that compute a function of `xs`, all the same activation, for its integers
/// -128 to 127 with this map.
pub(super) fn results(edit: &Edit<'_>, xs: &[ValueId], nodes: &[&Node], map: Affine) -> Matched<Vec<f32>> {
    let fact = xs.first().and_then(|x| edit.fact(*x).ok());
    table::sampled(fact.map_or(DType::F32, |f| f.dtype), map, |x| {
        let mut y = Arc::new(x);
        let mut values: HashMap<ValueId, Arc<HostTensor>> = xs.iter().map(|x| (*x, y.clone())).collect();
        for node in nodes {
            let operand = |v: ValueId| values.get(&v).cloned().or_else(|| known(edit, v));
            let operands: Vec<_> = node.inputs.iter().map(|v| v.and_then(operand)).collect();
            let operands: Vec<Option<&HostTensor>> = operands.iter().map(Option::as_deref).collect();
            y = Arc::new(first_result(node.op.eval(&operands))?);
            values.extend(node.outputs.first().map(|v| (*v, y.clone())));
        }
        Ok(y.as_ref().clone())
    })
}

/// The first result of an evaluated operator.
pub(super) fn first_result(made: OpResult<Vec<HostTensor>>) -> Matched<HostTensor> {
    let made = made.map_err(|e| refuse(&e.to_string()))?;
    made.into_iter().next().ok_or_else(|| refuse("a missing output"))
}
