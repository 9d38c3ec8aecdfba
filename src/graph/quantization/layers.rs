//! Finds the layers of a graph.

mod products;

use super::{Layer, LayerKind, Left, Placement, Product, Reason};
use crate::error::Result;
use crate::graph::op::conv_transpose::ConvTranspose;
use crate::graph::op::gemm::Gemm;
use crate::graph::op::matmul::MatMul;
use crate::graph::op::pad::{Mode as Padding, Pad};
use crate::graph::op::pointwise::{AxisBroadcast, Pointwise};
use crate::graph::op::reduce::Reduce;
use crate::graph::op::resize::{Mode as Interpolation, Resize};
use crate::graph::op::softmax::Softmax;
use crate::graph::pass::NORM;
use crate::graph::pass::integer::{Refusal, shapes};
use crate::graph::pass::pattern::{input, only_reader};
use crate::graph::{Edit, Graph, Node, NodeId, ValueId};
use crate::shape::Dim;
use crate::tensor::DType;
use std::collections::{HashMap, HashSet};

const ASKED: &str = "kept in floats on request";
const NORMALIZES: &str = "normalization has no 8-bit form";
const NO_FORM: &str = "the operator has no 8-bit form";
const NO_DATA: &str = "an operand is computed from integers or shapes";
const UNQUANTIZED: &str = "no operand is quantized";
const VARIABLE: &str = "weights or bias are not constant";
const BIAS: &str = "its bias is not one row";
const JOINS_RANGES: &str = "nothing computes with the result, which would join ranges";
const UNSUPPORTED: &str = "integer kernels do not support its shapes or attributes";
const PADS: &str = "it pads with another value than 0";

/// Operators whose first operand's elements are moved; nothing else is a float.
const MOVES: [&str; 17] = [
    "DepthToSpace",
    "Dropout",
    "Expand",
    "Flatten",
    "Gather",
    "GlobalMaxPool",
    "Identity",
    "MaxPool",
    "Pad",
    "Reshape",
    "Slice",
    "SpaceToDepth",
    "Split",
    "Squeeze",
    "Tile",
    "Transpose",
    "Unsqueeze",
];

/// What becomes of a node.
#[derive(Clone, Debug)]
enum Role {
    /// It begins a layer, with the nodes that join it and the layer's result.
    First(LayerKind, Vec<NodeId>, ValueId),
    /// Part of the layer before it.
    Joined,
    /// Elementwise in this value.
    Table(ValueId),
    Move,
    Float(Reason),
    /// It computes no floats.
    Other,
}

/// A graph under inspection.
struct Finder<'a> {
    graph: &'a Graph,
    order: Vec<NodeId>,
    consumers: Vec<Vec<NodeId>>,
    /// By value: computed from float inputs of the graph or from embeddings.
    data: Vec<bool>,
    /// By node.
    asked: HashSet<NodeId>,
    norms: HashSet<NodeId>,
}

/// The placement without its ranges.
pub(super) fn find(graph: &Graph, keep_float: &HashSet<String>) -> Result<Placement> {
    let finder = Finder::new(graph, keep_float)?;
    // A result of an elementwise operator that anything else reads is quantized, and begins another
    // table. That can only add readers of the same kind.
    let mut cuts = HashSet::new();
    let mut roles = finder.roles(&cuts);
    loop {
        let found = finder.cuts(&roles);
        if found.is_subset(&cuts) {
            break;
        }
        cuts.extend(found);
        roles = finder.roles(&cuts);
    }
    Ok(finder.placement(&roles.0, &cuts))
}

/// The role of each node and the root of each value: the value that it is elementwise in.
type Roles = (Vec<Role>, Vec<ValueId>);

impl<'a> Finder<'a> {
    fn new(graph: &'a Graph, keep_float: &HashSet<String>) -> Result<Self> {
        let order = graph.order()?;
        let mut data = vec![false; graph.values.len()];
        for v in graph.inputs() {
            data[v.index()] = is_float(graph, *v);
        }
        for node in order.iter().filter_map(|id| graph.node(*id)) {
            let embeds = node.op.name() == "Gather" && input(node, 0).is_some_and(|v| is_const(graph, v));
            let reads = node.inputs.iter().flatten().any(|v| data[v.index()]);
            for out in node.outputs.iter().filter(|v| is_float(graph, **v)) {
                data[out.index()] = (reads || embeds) && !is_const(graph, *out);
            }
        }
        let named = |names: &HashSet<String>| {
            let nodes = graph.nodes().filter(|(_, n)| names.contains(&n.name));
            nodes.map(|(id, _)| id).collect()
        };
        Ok(Self {
            order,
            consumers: graph.consumers(),
            data,
            asked: named(keep_float),
            norms: named(&decomposed_norms(graph)?),
            graph,
        })
    }

    fn is_data(&self, v: ValueId) -> bool {
        self.data.get(v.index()).copied().unwrap_or(false)
    }

    /// Float operands that are not constant.
    fn activations(&self, node: &'a Node) -> impl Iterator<Item = ValueId> {
        let graph = self.graph;
        let all = node.inputs.iter().flatten().copied();
        all.filter(move |v| is_float(graph, *v) && !is_const(graph, *v))
    }

    fn roles(&self, cuts: &HashSet<ValueId>) -> Roles {
        let mut roles = vec![Role::Other; self.graph.nodes.len()];
        let mut roots: Vec<ValueId> = (0..self.graph.values.len()).map(ValueId).collect();
        for id in &self.order {
            let Some(node) = self.graph.node(*id) else {
                continue;
            };
            if matches!(roles[id.index()], Role::Joined) {
                continue;
            }
            let mut role = self.role(*id, node, &roots);
            if let Role::First(kind, ..) = &role
                && let Some(reason) = self.unsupported(node, kind)
            {
                role = Role::Float(reason);
            }
            match &role {
                Role::First(_, joined, _) => joined.iter().for_each(|n| roles[n.index()] = Role::Joined),
                Role::Table(root) => {
                    for out in node.outputs.iter().filter(|v| !cuts.contains(*v)) {
                        roots[out.index()] = *root;
                    }
                }
                _ => {}
            }
            roles[id.index()] = role;
        }
        (roles, roots)
    }

    /// Results of tables that are read by anything but the same table.
    fn cuts(&self, (roles, roots): &Roles) -> HashSet<ValueId> {
        let mut cuts = HashSet::new();
        for (id, node) in self.graph.nodes() {
            let Role::Table(root) = &roles[id.index()] else {
                continue;
            };
            for out in &node.outputs {
                let same = |n: &NodeId| matches!(&roles[n.index()], Role::Table(r) if r == root);
                let inside = !self.consumers[out.index()].is_empty()
                    && self.consumers[out.index()].iter().all(same)
                    && roots[out.index()] == *root;
                if !inside || self.graph.is_kept(*out) {
                    cuts.insert(*out);
                }
            }
        }
        cuts
    }

    fn role(&self, id: NodeId, node: &'a Node, roots: &[ValueId]) -> Role {
        let Some(out) = node.outputs.first().copied() else {
            return Role::Other;
        };
        if !is_float(self.graph, out) || is_const(self.graph, out) {
            return Role::Other;
        }
        if self.activations(node).next().is_none() {
            return Role::Other;
        }
        if self.asked.contains(&id) {
            return Role::Float(ASKED.into());
        }
        if self.norms.contains(&id) {
            return Role::Float(NORMALIZES.into());
        }
        if !self.activations(node).all(|v| self.is_data(v)) {
            return Role::Float(NO_DATA.into());
        }
        let layer = |kind| self.layer(id, node, kind);
        match node.op.name() {
            "Conv" | "ConvTranspose" | "Gemm" | "MatMul" => match self.product(node) {
                Some(product) if self.bias_is_row(node, &product) => layer(LayerKind::Product(product)),
                Some(_) => Role::Float(BIAS.into()),
                None => Role::Float(VARIABLE.into()),
            },
            "AveragePool" | "GlobalAveragePool" | "ReduceMean" => layer(LayerKind::Mean),
            "Softmax" => Role::First(LayerKind::Softmax, Vec::new(), out),
            "Resize" | "Upsample" => match node.op.downcast::<Resize>().map(|r| r.mode) {
                Some(Interpolation::Nearest(_)) => Role::Move,
                _ => Role::Float(UNSUPPORTED.into()),
            },
            "Concat" => Role::Move,
            "Pad" if !self.pads_with_zero(node) => Role::Float(PADS.into()),
            name if MOVES.contains(&name) => self.moves(node),
            "BatchNormalization" => Role::Float(NORMALIZES.into()),
            _ if is_pointwise(node) => self.pointwise(id, node, roots),
            _ => Role::Float(NO_FORM.into()),
        }
    }

    fn shape(&self, v: ValueId) -> Option<&[Dim]> {
        Some(&self.graph.value(v).fact.as_ref()?.shape.0)
    }

    /// Why integer kernels cannot compute a node.
    fn unsupported(&self, node: &Node, kind: &LayerKind) -> Option<Reason> {
        let refusal = |found: Result<(), Refusal>| found.err().map(|why| Reason::from(why.0));
        let shape = |i| input(node, i).and_then(|v| self.shape(v));
        let Some(x) = shape(0) else {
            return Some(UNSUPPORTED.into());
        };
        match kind {
            LayerKind::Product(Product { weights: None, .. }) => {
                let transposed = node.op.downcast::<MatMul>().is_some_and(|m| m.trans_b);
                shape(1).and_then(|b| refusal(shapes::summed(x, b, transposed).map(drop)))
            }
            LayerKind::Product(_) => {
                let gemm = node.op.downcast::<Gemm>();
                let matmul = gemm.is_some() || node.op.downcast::<MatMul>().is_some();
                if gemm.is_some_and(|g| g.trans_a) || matmul && shape(1).is_none_or(|w| w.len() != 2) {
                    return Some(UNSUPPORTED.into());
                }
                let conv = node.op.downcast::<ConvTranspose>()?;
                let several = |w: &[Dim]| w.get(1).is_some_and(|n| !n.is(1));
                if conv.group > 1 && shape(1).is_none_or(several) {
                    return Some(UNSUPPORTED.into());
                }
                refusal(shapes::spatial(x).map(drop))
            }
            LayerKind::Mean => match node.op.downcast::<Reduce>() {
                Some(reduce) => {
                    let axes = reduce.axes.clone().or_else(|| self.integers(input(node, 1)?));
                    let Some(axes) = axes else {
                        return Some(UNSUPPORTED.into());
                    };
                    refusal(shapes::reduced(x, Some(&axes)).and_then(|sizes| shapes::taps(&sizes).map(drop)))
                }
                None if node.op.name() == "AveragePool" => None,
                None => refusal(shapes::spatial(x).and_then(|sizes| shapes::taps(&sizes).map(drop))),
            },
            LayerKind::Softmax => {
                let softmax = node.op.downcast::<Softmax>()?;
                refusal(shapes::softmax_axis(softmax, x).map(drop))
            }
            LayerKind::Binary => {
                let out = node.outputs.first().and_then(|v| self.shape(*v));
                let rank = out.map_or(0, <[Dim]>::len);
                let operands = node.inputs.iter().flatten();
                let operands = operands.map(|v| {
                    let constant = is_const(self.graph, *v);
                    let shape = self.shape(*v).filter(|s| constant || s.len() == rank);
                    let full = shape.map(|s| shapes::with_rank(s, rank));
                    (full.unwrap_or_default(), constant)
                });
                let operands: Vec<_> = operands.collect();
                let [(a, fixed), (b, also)] = operands.as_slice() else {
                    return Some(UNSUPPORTED.into());
                };
                let both = [(&a[..], *fixed), (&b[..], *also)];
                let axes = out.map(|out| shapes::binary_axes(both, out)).unwrap_or_default();
                axes.is_empty().then(|| UNSUPPORTED.into())
            }
            LayerKind::Table | LayerKind::Move => None,
        }
    }

    fn moves(&self, node: &Node) -> Role {
        let others = node.outputs.iter().skip(1);
        let unread = |v: &ValueId| self.consumers[v.index()].is_empty() && !self.graph.is_kept(*v);
        let only = others.into_iter().all(|v| unread(v) || is_float(self.graph, *v));
        match input(node, 0) {
            Some(x) if only && !is_const(self.graph, x) => Role::Move,
            _ => Role::Float(NO_FORM.into()),
        }
    }

    fn pads_with_zero(&self, node: &Node) -> bool {
        let Some(pad) = node.op.downcast::<Pad>() else {
            return false;
        };
        let value = match input(node, 2) {
            Some(v) => self.constant(v).and_then(|t| t.first().copied()),
            None => Some(pad.value),
        };
        pad.mode != Padding::Constant || value == Some(0.0)
    }

    fn pointwise(&self, id: NodeId, node: &'a Node, roots: &[ValueId]) -> Role {
        let operands: Vec<ValueId> = node.inputs.iter().flatten().copied().collect();
        let scalars = operands
            .iter()
            .filter(|v| is_const(self.graph, **v))
            .all(|v| self.elements(*v) == Some(1));
        let found: HashSet<ValueId> = self.activations(node).map(|v| roots[v.index()]).collect();
        let floats = operands.iter().all(|v| is_float(self.graph, *v));
        match found.iter().next() {
            Some(root) if found.len() == 1 && scalars && floats => Role::Table(*root),
            Some(_) if floats && operands.len() == 2 => match node.op.name() {
                "Add" | "Sub" | "Mul" | "Sum" => self.layer(id, node, LayerKind::Binary),
                _ => Role::Float(NO_FORM.into()),
            },
            _ => Role::Float(NO_FORM.into()),
        }
    }

    /// The layer that begins with a node, and the nodes that join it.
    fn layer(&self, id: NodeId, node: &Node, mut kind: LayerKind) -> Role {
        let mut joined = Vec::new();
        let mut last = id;
        if let LayerKind::Product(product) = &mut kind {
            while let Some(next) = self.joins_product(node, product, last) {
                joined.push(next);
                last = next;
            }
        }
        if let Some((next, _)) = self.reader(last).filter(|(_, n)| self.is_clamp(n)) {
            joined.push(next);
            last = next;
        }
        let out = self.graph.node(last).and_then(|n| n.outputs.first());
        match out {
            Some(out) => Role::First(kind, joined, *out),
            None => Role::Other,
        }
    }

    /// The only reader of a node's result, unless it stays in floats.
    fn reader(&self, id: NodeId) -> Option<(NodeId, &'a Node)> {
        let out = *self.graph.node(id)?.outputs.first()?;
        let reader = only_reader(self.graph, &self.consumers, out)?;
        let kept = self.asked.contains(&reader) || self.norms.contains(&reader);
        self.graph.node(reader).filter(|_| !kept).map(|n| (reader, n))
    }

    fn is_clamp(&self, node: &Node) -> bool {
        let constant = |i| input(node, i).is_none_or(|v| self.constant(v).is_some());
        match node.op.name() {
            "Relu" => true,
            "Clip" => constant(1) && constant(2),
            _ => false,
        }
    }

    /// The elements of a constant; `None` if it is not one.
    fn constant(&self, v: ValueId) -> Option<Vec<f32>> {
        let t = self.graph.value(v).fact.as_ref()?.as_const()?;
        t.to_f32().ok().map(std::borrow::Cow::into_owned)
    }

    /// The elements of a constant of integers.
    fn integers(&self, v: ValueId) -> Option<Vec<i64>> {
        self.graph.value(v).fact.as_ref()?.as_const()?.to_i64().ok()
    }

    /// The number of elements of a constant.
    fn elements(&self, v: ValueId) -> Option<usize> {
        Some(self.graph.value(v).fact.as_ref()?.as_const()?.len())
    }
}

/// How values are reached from layers that compute, or reach such.
struct Reach {
    /// Quantized results, and inputs of the graph.
    quantized: HashSet<ValueId>,
    /// Computed by a layer, or moved from there.
    computed: HashSet<ValueId>,
}

impl Finder<'_> {
    fn placement(&self, roles: &[Role], cuts: &HashSet<ValueId>) -> Placement {
        let useful = self.useful(roles);
        let mut reach = Reach {
            quantized: self
                .graph
                .inputs()
                .iter()
                .copied()
                .filter(|v| self.is_data(*v))
                .collect(),
            computed: HashSet::new(),
        };
        let mut out = Placement::default();
        // The elementwise nodes so far, by the value that they are functions of.
        let mut tables: HashMap<ValueId, Vec<NodeId>> = HashMap::new();
        for id in &self.order {
            let Some(node) = self.graph.node(*id) else {
                continue;
            };
            let reason = match &roles[id.index()] {
                Role::Other | Role::Joined => None,
                Role::Float(reason) => Some(reason.clone()),
                Role::First(kind, joined, result) => {
                    self.first((*id, node), (kind, joined, *result), &mut reach, &mut out)
                }
                Role::Table(root) => {
                    let nodes = tables.entry(*root).or_default();
                    nodes.push(*id);
                    self.table((*root, nodes), node, cuts, &mut reach, &mut out)
                }
                Role::Move => self.moved((*id, node), &useful, &mut reach, &mut out),
            };
            if let Some(reason) = reason.filter(|_| self.activations(node).any(|v| self.is_data(v))) {
                out.left.push(Left { node: *id, reason });
            }
        }
        out
    }

    /// Adds the layer that a node begins; or says why it stays in floats.
    fn first(
        &self,
        (id, node): (NodeId, &Node),
        (kind, joined, result): (&LayerKind, &[NodeId], ValueId),
        reach: &mut Reach,
        out: &mut Placement,
    ) -> Option<Reason> {
        let weights = match kind {
            LayerKind::Product(p) => p.weights.map(|w| w.value),
            _ => None,
        };
        let is_product = matches!(kind, LayerKind::Product(_));
        let mut inputs = Vec::new();
        for (i, v) in node.inputs.iter().enumerate() {
            let Some(v) = v.filter(|v| is_float(self.graph, *v)) else {
                continue;
            };
            let operand = match kind {
                LayerKind::Product(_) => Some(v) != weights && i < 2,
                LayerKind::Binary => true,
                _ => i == 0,
            };
            if operand && !inputs.contains(&v) {
                inputs.push(v);
            }
        }
        if !is_product && !inputs.iter().any(|v| reach.quantized.contains(v)) {
            return Some(UNQUANTIZED.into());
        }
        reach.quantized.insert(result);
        reach.computed.insert(result);
        out.layers.push(Layer {
            kind: kind.clone(),
            nodes: std::iter::once(id).chain(joined.iter().copied()).collect(),
            inputs,
            outputs: vec![result],
        });
        None
    }

    /// Adds the table that ends with `node`, if one does.
    fn table(
        &self,
        (root, nodes): (ValueId, &[NodeId]),
        node: &Node,
        cuts: &HashSet<ValueId>,
        reach: &mut Reach,
        out: &mut Placement,
    ) -> Option<Reason> {
        if !reach.quantized.contains(&root) {
            return Some(UNQUANTIZED.into());
        }
        let result = node.outputs.first().copied().filter(|v| cuts.contains(v))?;
        reach.quantized.insert(result);
        reach.computed.insert(result);
        out.layers.push(Layer {
            kind: LayerKind::Table,
            nodes: self.needed(nodes, root, result),
            inputs: vec![root],
            outputs: vec![result],
        });
        None
    }

    /// Those of `nodes` that `result` depends on, without those before `root`.
    fn needed(&self, nodes: &[NodeId], root: ValueId, result: ValueId) -> Vec<NodeId> {
        let mut wanted = HashSet::from([result]);
        let mut found = Vec::new();
        for id in nodes.iter().rev() {
            let Some(node) = self.graph.node(*id) else {
                continue;
            };
            if node.outputs.iter().any(|v| wanted.contains(v)) {
                wanted.extend(node.inputs.iter().flatten().filter(|v| **v != root));
                found.push(*id);
            }
        }
        found.reverse();
        found
    }

    /// Adds a node that moves elements; or says why it stays in floats.
    fn moved(
        &self,
        (id, node): (NodeId, &Node),
        useful: &HashSet<ValueId>,
        reach: &mut Reach,
        out: &mut Placement,
    ) -> Option<Reason> {
        let joins = node.op.name() == "Concat";
        let all = node.inputs.iter().flatten().copied().enumerate();
        let mut inputs: Vec<ValueId> = Vec::new();
        for (_, v) in all.filter(|(i, v)| (joins || *i == 0) && is_float(self.graph, *v)) {
            if !inputs.contains(&v) {
                inputs.push(v);
            }
        }
        if !inputs.iter().any(|v| reach.quantized.contains(v)) {
            return Some(UNQUANTIZED.into());
        }
        let used = node.outputs.iter().any(|v| useful.contains(v));
        if joins && !used {
            return Some(JOINS_RANGES.into());
        }
        if !used && !inputs.iter().any(|v| reach.computed.contains(v)) {
            return Some(UNQUANTIZED.into());
        }
        let outputs = node.outputs.iter().copied();
        let outputs: Vec<ValueId> = outputs.filter(|v| is_float(self.graph, *v)).collect();
        reach.quantized.extend(&outputs);
        reach.computed.extend(&outputs);
        out.layers.push(Layer {
            kind: LayerKind::Move,
            nodes: vec![id],
            inputs,
            outputs,
        });
        None
    }

    /// Values that layers compute with, at once or after moves.
    fn useful(&self, roles: &[Role]) -> HashSet<ValueId> {
        let mut useful = HashSet::new();
        for id in self.order.iter().rev() {
            let Some(node) = self.graph.node(*id) else {
                continue;
            };
            let computes = match &roles[id.index()] {
                Role::First(..) | Role::Table(_) => true,
                Role::Move => node.outputs.iter().any(|v| useful.contains(v)),
                _ => false,
            };
            if computes {
                useful.extend(self.activations(node));
            }
        }
        useful
    }
}

fn is_float(graph: &Graph, v: ValueId) -> bool {
    graph
        .value(v)
        .fact
        .as_ref()
        .is_some_and(|f| f.dtype == DType::F32)
}

fn is_const(graph: &Graph, v: ValueId) -> bool {
    graph
        .value(v)
        .fact
        .as_ref()
        .is_some_and(|f| f.as_const().is_some())
}

fn is_pointwise(node: &Node) -> bool {
    node.op.downcast::<Pointwise>().is_some() || node.op.downcast::<AxisBroadcast>().is_some()
}

/// Names of the nodes that make up decomposed normalizations.
fn decomposed_norms(graph: &Graph) -> Result<HashSet<String>> {
    let mut copy = graph.clone();
    let mut edit = Edit::new(&mut copy);
    (NORM.run)(&mut edit)?;
    let fused = copy.nodes().filter(|(id, n)| {
        let before = graph.node(*id);
        before.is_some_and(|b| b.op.name() != n.op.name())
    });
    Ok(fused.flat_map(|(_, n)| n.origin.iter().cloned()).collect())
}
