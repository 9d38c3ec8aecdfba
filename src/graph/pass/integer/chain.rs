//! Functions of one activation that several elementwise nodes compute, such as `x * sigmoid(x)`.

use super::find::{Found, Site, tabulated};
use super::values::{dequantized, known, quantized_by};
use super::{Refusal, refuse, table};
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

/// The nodes between a dequantization and a quantization.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    /// The dequantized activation.
    x: ValueId,
    /// In topological order.
    pub nodes: Vec<NodeId>,
    /// The quantization of the result.
    end: NodeId,
}

/// The functions of a graph, by their last node. `order` is a topological order of the nodes.
pub(super) fn chains(edit: &Edit<'_>, order: &[NodeId]) -> HashMap<NodeId, Chain> {
    let places: HashMap<NodeId, usize> = order.iter().copied().zip(0..).collect();
    let ends = order.iter().filter(|id| {
        let node = edit.node(**id);
        node.is_some_and(|n| n.op.downcast::<QuantizeLinear>().is_some())
    });
    let chains = ends.filter_map(|end| Chain::before(edit, *end, &places));
    chains.filter_map(|c| Some((*c.nodes.last()?, c))).collect()
}

impl Chain {
    /// `None` if the quantization `end` reads anything but a function of one activation, or if that
    /// function is a single node, possibly followed by clamps.
    fn before(edit: &Edit<'_>, end: NodeId, places: &HashMap<NodeId, usize>) -> Option<Self> {
        let mut x = None;
        let mut found = HashSet::new();
        let mut values = vec![input(edit.node(end)?, 0)?];
        while let Some(v) = values.pop() {
            if let Some(t) = known(edit, v) {
                if t.len() != 1 {
                    return None;
                }
            } else if producer::<DequantizeLinear>(edit, v).is_some() {
                if *x.get_or_insert(v) != v {
                    return None;
                }
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
        let chain = Self { x: x?, nodes, end };
        (!chain.only_clamps(edit)).then_some(chain)
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

    /// The nodes before the last one whose results nothing outside the function reads.
    pub fn inner(&self, edit: &Edit<'_>) -> Vec<NodeId> {
        let alone = |id: &NodeId| {
            let outputs = edit.node(*id).map(|n| n.outputs.as_slice()).unwrap_or_default();
            outputs
                .iter()
                .all(|v| !edit.is_kept(*v) && edit.readers(*v).all(|r| self.nodes.contains(&r)))
        };
        let before = self.nodes.split_last().map_or(&[][..], |(_, before)| before);
        before.iter().copied().filter(|id| alone(id)).collect()
    }

    pub fn site(&self, edit: &Edit<'_>, arithmetic: Arithmetic) -> Found<Site> {
        let (x, to) = (dequantized(edit, self.x)?, quantized_by(edit, self.end)?);
        let reals = self.results(edit, x.map)?;
        let table = table::of_results(&reals, x.map, to.map, Output::new(to.map.zero), arithmetic);
        tabulated(x, table, to)
    }

    /// The results for the integers -128 to 127 with this map.
    fn results(&self, edit: &Edit<'_>, map: Affine) -> Found<Vec<f32>> {
        let reals: Vec<f32> = (-128..=127).map(|q| map.real(q)).collect();
        let dtype = edit.fact(self.x).map_or(DType::F32, |f| f.dtype);
        let failed = |e: &dyn std::fmt::Display| refuse(&e.to_string());
        let x = HostTensor::from_floats(dtype, &[reals.len()], &reals).map_err(|e| failed(&e))?;
        let mut values = HashMap::from([(self.x, Arc::new(x))]);
        let mut last = None;
        for node in self.nodes.iter().filter_map(|id| edit.node(*id)) {
            let y = Arc::new(computed(edit, node, &values)?);
            last = Some(y.clone());
            values.extend(node.outputs.first().map(|v| (*v, y)));
        }
        let y = last.ok_or_else(|| refuse("a missing output"))?;
        if y.len() != reals.len() || !y.dtype().is_float() {
            return Err(refuse("a function whose result is not one float per element"));
        }
        Ok(y.to_f32().map_err(|e| failed(&e))?.into_owned())
    }
}

/// The first result of a node whose operands are constants or among `values`.
fn computed(
    edit: &Edit<'_>,
    node: &Node,
    values: &HashMap<ValueId, Arc<HostTensor>>,
) -> Result<HostTensor, Refusal> {
    let operand = |v: &Option<ValueId>| v.and_then(|v| values.get(&v).cloned().or_else(|| known(edit, v)));
    let operands: Vec<Option<Arc<HostTensor>>> = node.inputs.iter().map(operand).collect();
    let operands: Vec<Option<&HostTensor>> = operands.iter().map(Option::as_deref).collect();
    let made = node.op.eval(&operands).map_err(|e| refuse(&e.to_string()))?;
    made.into_iter().next().ok_or_else(|| refuse("a missing output"))
}
