//! Helpers to match patterns of nodes.

use crate::graph::op::concat::Concat;
use crate::graph::op::pointwise::{Binary, Expr, Pointwise, Unary};
use crate::graph::op::reshape::Reshape;
use crate::graph::op::slice::Slice;
use crate::graph::op::transpose::Transpose;
use crate::graph::{Graph, Node, NodeId, ValueId};
use crate::num;
use crate::shape::Dim;

/// The node that computes `v` and its operator, if it is a `T`.
pub fn producer<T: 'static>(g: &Graph, v: ValueId) -> Option<(NodeId, &Node, &T)> {
    let (id, node) = g.producer(v)?;
    node.op.downcast::<T>().map(|op| (id, node, op))
}

/// All matches of `find` in the unchanged graph.
pub fn all<T>(g: &Graph, find: impl Fn(&Graph, NodeId) -> Option<T>) -> Vec<T> {
    g.nodes().filter_map(|(id, _)| find(g, id)).collect()
}

/// Operand `i` of a node.
pub fn input(node: &Node, i: usize) -> Option<ValueId> {
    node.inputs.get(i).copied().flatten()
}

/// Operands of the plain binary function `f` that computes `v`.
pub fn binary(g: &Graph, v: ValueId, f: Binary) -> Option<[ValueId; 2]> {
    let (_, node, op) = producer::<Pointwise>(g, v)?;
    match &op.expr {
        Expr::Binary(h, a, b) if *h == f && **a == Expr::Input(0) && **b == Expr::Input(1) => {
            Some([input(node, 0)?, input(node, 1)?])
        }
        _ => None,
    }
}

/// Operand of the plain unary function `f` that computes `v`.
pub fn unary(g: &Graph, v: ValueId, f: Unary) -> Option<ValueId> {
    let (_, node, op) = producer::<Pointwise>(g, v)?;
    match &op.expr {
        Expr::Unary(h, x) if *h == f && **x == Expr::Input(0) => input(node, 0),
        _ => None,
    }
}

/// The value of a constant with one float that adds no axes to a result.
pub fn scalar(g: &Graph, v: ValueId) -> Option<f32> {
    let t = g.value(v).fact.as_ref()?.as_const()?;
    if t.len() == 1 && t.shape().len() <= 1 {
        t.to_f32().ok()?.first().copied()
    } else {
        None
    }
}

/// Splits a commutative pair into the other operand and the value of its constant scalar.
pub fn with_scalar(g: &Graph, [a, b]: [ValueId; 2]) -> Option<(ValueId, f32)> {
    scalar(g, b)
        .map(|s| (a, s))
        .or_else(|| scalar(g, a).map(|s| (b, s)))
}

/// The sizes of `v`.
pub fn shape(g: &Graph, v: ValueId) -> Option<&[Dim]> {
    g.value(v).fact.as_ref().map(|f| f.shape.0.as_slice())
}

/// Operand of the transpose by `perm` that computes `v`.
pub fn transposed(g: &Graph, v: ValueId, perm: &[usize]) -> Option<ValueId> {
    let (_, node, op) = producer::<Transpose>(g, v)?;
    (op.axes(perm.len()).ok()? == perm && shape(g, v)?.len() == perm.len()).then(|| input(node, 0))?
}

/// Operand of the reshape (of any kind) that computes `v`.
pub fn reshaped(g: &Graph, v: ValueId) -> Option<ValueId> {
    producer::<Reshape>(g, v).and_then(|(_, node, _)| input(node, 0))
}

/// The two operands of the concatenation along the last axis that computes `v`.
pub fn along_last(g: &Graph, v: ValueId) -> Option<[ValueId; 2]> {
    let (_, node, concat) = producer::<Concat>(g, v)?;
    let last = num::signed(shape(g, v)?.len()) - 1;
    let operands = [input(node, 0)?, input(node, 1)?];
    (node.inputs.len() == 2 && (concat.axis == -1 || concat.axis == last)).then_some(operands)
}

/// Operand, start and size of the slice along the last axis that computes `v`, with step 1.
pub fn last_slice(g: &Graph, v: ValueId) -> Option<(ValueId, i64, i64)> {
    let (_, node, _) = producer::<Slice>(g, v)?;
    let last = num::signed(shape(g, v)?.len()) - 1;
    let one = |i| match g
        .value(input(node, i)?)
        .fact
        .as_ref()?
        .as_const()?
        .to_i64()
        .ok()?
        .as_slice()
    {
        [v] => Some(*v),
        _ => None,
    };
    let axis = one(3)?;
    let unit = match input(node, 4) {
        Some(_) => one(4)? == 1,
        None => true,
    };
    let size = shape(g, v)?.last()?.as_const()?;
    (unit && (axis == -1 || axis == last) && one(1)? >= 0).then_some((input(node, 0)?, one(1)?, size))
}

/// The only reader of `v`; `None` if `v` is an output or the end of a state.
pub fn only_reader(g: &Graph, consumers: &[Vec<NodeId>], v: ValueId) -> Option<NodeId> {
    let kept = g.is_kept(v);
    match consumers.get(v.index()).map(Vec::as_slice) {
        Some([one]) if !kept => Some(*one),
        _ => None,
    }
}

/// Names of the model's nodes that the producers of these values replace.
pub fn origin(g: &Graph, values: &[ValueId]) -> Vec<String> {
    let mut names = Vec::new();
    for v in values {
        for n in g
            .producer(*v)
            .map(|(_, n)| n.origin.as_slice())
            .unwrap_or_default()
        {
            if !names.contains(n) {
                names.push(n.clone());
            }
        }
    }
    names
}

/// How many nodes in a row [`shape_alone`] follows.
const DEEPEST: usize = 4;

/// Node `id` reads only the shape of `v`, or moves it for nodes that read only its shape.
pub fn shape_alone(g: &Graph, consumers: &[Vec<NodeId>], v: ValueId, id: NodeId) -> bool {
    no_deeper(g, consumers, v, id, DEEPEST)
}

fn no_deeper(g: &Graph, consumers: &[Vec<NodeId>], v: ValueId, id: NodeId, deep: usize) -> bool {
    let Some(node) = g.node(id) else { return false };
    let mut places = node.inputs.iter().enumerate().filter(|(_, o)| **o == Some(v));
    if places.all(|(i, _)| !node.op.reads(i)) {
        return true;
    }
    let passed_on = |r: &ValueId| {
        let readers = &consumers[r.index()];
        !g.is_kept(*r) && readers.iter().all(|n| no_deeper(g, consumers, *r, *n, deep - 1))
    };
    deep > 0 && node.outputs.iter().all(passed_on)
}
