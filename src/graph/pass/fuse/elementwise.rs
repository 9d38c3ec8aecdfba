//! Fuses elementwise operators with their elementwise readers: one kernel for a chain or a small
//! tree (paper, section 2.2: "we automatically fuse the elementary-wise operator with other
//! operators").

use crate::error::Result;
use crate::graph::op::pointwise::{Expr, MAX_INPUTS, Pointwise};
use crate::graph::pass::Pass;
use crate::graph::pass::pattern::producer;
use crate::graph::{Edit, Graph, NodeId, ValueId};
use crate::shape::Dim;

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
    // Each round fuses every pair it can; a chain of n needs at most n rounds.
    loop {
        let before = edit.count();
        for id in edit.order()? {
            while let Some((producer, fused, inputs, origin)) = find(edit, id) {
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
            // A constant beyond a device's 32-bit integers stays an operand; the error then names
            // it.
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
fn find(g: &Graph, id: NodeId) -> Option<Fusion> {
    let node = g.node(id)?;
    let op = node.op.downcast::<Pointwise>()?;
    let out = *node.outputs.first()?;
    for v in node.inputs.iter().flatten() {
        let Some((from, source, inner)) = producer::<Pointwise>(g, *v) else {
            continue;
        };
        let read_elsewhere = g
            .nodes()
            .any(|(n, node)| n != id && node.inputs.contains(&Some(*v)));
        if read_elsewhere || g.outputs().contains(v) {
            continue;
        }
        // Types that stay on the host must not keep the other operator from a device.
        let on_devices = |v: &ValueId| g.value(*v).fact.as_ref().is_some_and(|f| f.dtype.on_devices());
        let all = node.inputs.iter().flatten().chain(&node.outputs);
        if !all.chain(source.inputs.iter().flatten()).all(on_devices) {
            continue;
        }
        // A broadcast result would be recomputed for each repetition.
        if trimmed(g, *v)? != trimmed(g, out)? || op.expr.size() + inner.expr.size() > MAX_SIZE {
            continue;
        }
        // Operators without a kernel run on the host, so they must not be fused with operators that
        // have one.
        let has_kernel = |node: &crate::graph::Node, expr: &Expr| {
            let types = node
                .inputs
                .iter()
                .flatten()
                .map(|v| Some(g.value(*v).fact.as_ref()?.dtype));
            types
                .collect::<Option<Vec<_>>>()
                .is_some_and(|types| expr.has_kernel(&types))
        };
        if !has_kernel(node, &op.expr) || !has_kernel(source, &inner.expr) {
            log::debug!(
                "\"{}\" and \"{}\" are not fused: one of them has no kernel",
                source.name,
                node.name
            );
            continue;
        }
        let mut inputs: Vec<ValueId> = Vec::new();
        let mut place = |v: ValueId| {
            inputs.iter().position(|i| *i == v).unwrap_or_else(|| {
                inputs.push(v);
                inputs.len() - 1
            })
        };
        let inner_places: Vec<usize> = source.inputs.iter().flatten().map(|i| place(*i)).collect();
        let inner_expr = inner
            .expr
            .map_inputs(&mut |i| Expr::Input(inner_places.get(i).copied().unwrap_or(i)));
        let outer: Vec<ValueId> = node.inputs.iter().flatten().copied().collect();
        let outer_places: Vec<Expr> = outer
            .iter()
            .map(|i| {
                if i == v {
                    inner_expr.clone()
                } else {
                    Expr::Input(place(*i))
                }
            })
            .collect();
        let expr = op
            .expr
            .map_inputs(&mut |i| outer_places.get(i).cloned().unwrap_or(Expr::Input(i)));
        let (expr, inputs) = tidy(g, &expr, &inputs);
        if inputs.len() > MAX_INPUTS || expr.size() > MAX_SIZE {
            continue;
        }
        let mut origin = source.origin.clone();
        origin.extend(node.origin.iter().cloned());
        return Some((
            from,
            Pointwise {
                name: "Fused".to_owned(),
                expr,
            },
            inputs,
            origin,
        ));
    }
    None
}
