//! Fuses elementwise operators with their elementwise readers: one kernel for a chain or a small
//! tree (paper, section 2.2: "we automatically fuse the elementary-wise operator with other
//! operators").

use crate::error::Result;
use crate::graph::op::pointwise::{Expr, MAX_INPUTS, Pointwise};
use crate::graph::pass::Pass;
use crate::graph::pass::pattern::producer;
use crate::graph::{Edit, Graph, Node, NodeId, ValueId};
use crate::shape::Dim;
use std::collections::HashSet;

pub const FUSE: Pass = Pass {
    name: "fuse",
    does: "merges elementwise operators",
    refuses: "broadcast results; more than 4 operands; large expressions",
    run,
};

/// Maximum size of a fused expression.
const MAX_SIZE: usize = 24;

fn run(edit: &mut Edit<'_>) -> Result<()> {
    for id in edit.order()? {
        simplify(edit, id);
    }
    // Nodes that are known to have kernels, because their parts have.
    let mut fused_nodes = HashSet::new();
    // Each round fuses every pair it can; a chain of n needs at most n rounds.
    loop {
        let before = edit.count();
        for id in edit.order()? {
            while let Some((producer, fused, inputs, origin)) = find(edit, id, &fused_nodes) {
                let name = edit.node(id).map(|n| n.name.clone()).unwrap_or_default();
                if !edit.begin(&format!(
                    "\"{}\" joins \"{name}\"",
                    edit.node(producer).map_or("", |n| &n.name)
                )) {
                    return Ok(());
                }
                edit.replace_node(
                    id,
                    Box::new(fused),
                    inputs.into_iter().map(Some).collect(),
                    origin,
                );
                edit.remove_node(producer);
                fused_nodes.insert(id);
            }
        }
        if edit.count() == before {
            return Ok(());
        }
    }
}

/// Merges equal operands and turns constants of one element into numbers of the expression.
fn tidy(g: &Graph, expr: &Expr, inputs: &[ValueId]) -> (Expr, Vec<ValueId>) {
    let rank = |v: ValueId| g.value(v).fact.as_ref().map_or(usize::MAX, |f| f.shape.rank());
    let single = |v: ValueId| {
        g.value(v)
            .fact
            .as_ref()
            .and_then(|f| f.as_const())
            .filter(|t| t.len() == 1)
    };
    // The remaining operands decide the shape of the result, so a constant with more axes than any
    // of them stays an operand.
    let Some(axes) = inputs
        .iter()
        .filter(|v| single(**v).is_none())
        .map(|v| rank(*v))
        .max()
    else {
        return (expr.clone(), inputs.to_vec());
    };
    let number = |v: ValueId| -> Option<Expr> {
        let t = single(v).filter(|_| rank(v) <= axes)?;
        let value = if t.dtype().is_float() {
            f64::from(*t.to_f32().ok()?.first()?)
        } else {
            // Constants of expressions are floats, which do not represent all integers.
            f64::from(i32::try_from(*t.to_i64().ok()?.first()?).ok()?)
        };
        Some(Expr::Const(value, t.dtype()))
    };
    let mut kept: Vec<ValueId> = Vec::new();
    let places: Vec<Expr> = inputs
        .iter()
        .map(|v| {
            number(*v).unwrap_or_else(|| {
                let i = kept.iter().position(|k| k == v).unwrap_or_else(|| {
                    kept.push(*v);
                    kept.len() - 1
                });
                Expr::Input(i)
            })
        })
        .collect();
    (
        expr.map_inputs(&mut |i| places.get(i).cloned().unwrap_or(Expr::Input(i))),
        kept,
    )
}

fn simplify(edit: &mut Edit<'_>, id: NodeId) {
    let Some(node) = edit.node(id) else { return };
    let Some(op) = node.op.downcast::<Pointwise>() else {
        return;
    };
    let inputs: Vec<ValueId> = node.inputs.iter().flatten().copied().collect();
    let (expr, kept) = tidy(edit, &op.expr, &inputs);
    if kept.len() < inputs.len() {
        let (name, origin) = (op.name.clone(), node.origin.clone());
        let what = format!("constants into \"{}\"", node.name);
        if edit.begin(&what) {
            edit.replace_node(
                id,
                Box::new(Pointwise { name, expr }),
                kept.into_iter().map(Some).collect(),
                origin,
            );
        }
    }
}

/// Sizes without leading ones.
fn trimmed(g: &Graph, v: ValueId) -> Option<&[Dim]> {
    let s = g.value(v).fact.as_ref()?.shape.0.as_slice();
    let ones = s.iter().take_while(|d| d.is(1)).count();
    s.get(ones..)
}

type Fusion = (NodeId, Pointwise, Vec<ValueId>, Vec<String>);

/// A producer that can be fused into reader `id`, and the fused operator.
fn find(g: &Edit<'_>, id: NodeId, fused_nodes: &HashSet<NodeId>) -> Option<Fusion> {
    let node = g.node(id)?;
    let op = node.op.downcast::<Pointwise>()?;
    for v in node.inputs.iter().flatten() {
        let Some((from, source, inner)) = producer::<Pointwise>(g, *v) else {
            continue;
        };
        if !may_fuse(g, id, *v, source)? || op.expr.size() + inner.expr.size() > MAX_SIZE {
            continue;
        }
        // Operators without a kernel run on the host, so they must not be fused with operators that
        // have one.
        let runs = |id, node, expr| fused_nodes.contains(&id) || has_kernel(g, node, expr);
        if !runs(id, node, &op.expr) || !runs(from, source, &inner.expr) {
            log::debug!(
                "\"{}\" and \"{}\" are not fused: one of them has no kernel",
                source.name,
                node.name
            );
            continue;
        }
        let (expr, inputs) = joined(node, &op.expr, *v, source, &inner.expr);
        let (expr, inputs) = tidy(g, &expr, &inputs);
        if inputs.len() > MAX_INPUTS || expr.size() > MAX_SIZE {
            continue;
        }
        let origin = source.origin.iter().chain(&node.origin).cloned().collect();
        let name = "Fused".to_owned();
        return Some((from, Pointwise { name, expr }, inputs, origin));
    }
    None
}

/// Whether node `id` is the only reader of `v`, the result of `source`, and reads it elementwise on
/// a device.
fn may_fuse(g: &Edit<'_>, id: NodeId, v: ValueId, source: &Node) -> Option<bool> {
    let node = g.node(id)?;
    if g.readers(v).any(|reader| reader != id) || g.is_output(v) {
        return Some(false);
    }
    // Types that stay on the host must not keep the other operator from a device.
    let on_devices = |v: &ValueId| g.value(*v).fact.as_ref().is_some_and(|f| f.dtype.on_devices());
    let all = node.inputs.iter().flatten().chain(&node.outputs);
    if !all.chain(source.inputs.iter().flatten()).all(on_devices) {
        return Some(false);
    }
    // A broadcast result would be recomputed for each repetition.
    Some(trimmed(g, v)? == trimmed(g, *node.outputs.first()?)?)
}

fn has_kernel(g: &Graph, node: &Node, expr: &Expr) -> bool {
    let types = node.inputs.iter().flatten();
    let types = types.map(|v| Some(g.value(*v).fact.as_ref()?.dtype));
    let types: Option<Vec<_>> = types.collect();
    types.is_some_and(|types| expr.has_kernel(&types))
}

/// The expression of `node` with its operand `v` replaced by that of `source`, and the operands of
/// both.
fn joined(node: &Node, outer: &Expr, v: ValueId, source: &Node, inner: &Expr) -> (Expr, Vec<ValueId>) {
    let mut inputs: Vec<ValueId> = Vec::new();
    let mut place = |v: ValueId| {
        inputs.iter().position(|i| *i == v).unwrap_or_else(|| {
            inputs.push(v);
            inputs.len() - 1
        })
    };
    let places: Vec<usize> = source.inputs.iter().flatten().map(|i| place(*i)).collect();
    let inner = inner.map_inputs(&mut |i| Expr::Input(places.get(i).copied().unwrap_or(i)));
    let mut part = |i: &ValueId| {
        if *i == v {
            inner.clone()
        } else {
            Expr::Input(place(*i))
        }
    };
    let parts: Vec<Expr> = node.inputs.iter().flatten().map(&mut part).collect();
    let expr = outer.map_inputs(&mut |i| parts.get(i).cloned().unwrap_or(Expr::Input(i)));
    (expr, inputs)
}
