//! Removes operators that change nothing: casts to the same type, reshapes and broadcasts to the
//! same shape, transposes that keep the order of axes, concatenations of one part, and slices that
//! keep everything.

use crate::error::Result;
use crate::graph::op::concat::Concat;
use crate::graph::op::expand::Expand;
use crate::graph::op::pointwise::{Expr, Pointwise};
use crate::graph::op::reshape::Reshape;
use crate::graph::op::slice::Slice;
use crate::graph::op::transpose::Transpose;
use crate::graph::pass::Pass;
use crate::graph::pass::pattern::input;
use crate::graph::{Edit, Graph, NodeAssumption, NodeId, ValueId};
use crate::shape::Symbol;
use std::collections::{BTreeSet, HashMap, HashSet};

pub const REMOVE_NOOPS: Pass = Pass {
    name: "remove_noops",
    does: "removes casts, reshapes, transposes and others that change nothing",
    refuses: "",
    run,
};

fn run(edit: &mut Edit<'_>) -> Result<()> {
    let mut removed: HashMap<ValueId, ValueId> = HashMap::new();
    let checks = checks_of_data(edit);
    for id in edit.order()?.into_iter().filter(|id| !checks.contains(id)) {
        let Some((x, y)) = find(edit, id) else { continue };
        let name = edit.node(id).map(|n| n.name.clone()).unwrap_or_default();
        if edit.begin(&format!("\"{name}\" changes nothing")) {
            removed.insert(y, removed.get(&x).copied().unwrap_or(x));
        }
    }
    edit.replace_all_readers(&removed);
    Ok(())
}

/// Nodes with an assumption about sizes that data defines. Without the node, no run could check it.
fn checks_of_data(g: &Graph) -> HashSet<NodeId> {
    let data: HashSet<&Symbol> = g.made().iter().map(|m| &m.symbol).collect();
    let is_of_data = |a: &&NodeAssumption| {
        let mut symbols = BTreeSet::new();
        a.assumed.dim.symbols(&mut symbols);
        symbols.iter().any(|s| data.contains(s))
    };
    g.assumptions()
        .iter()
        .filter(is_of_data)
        .map(|a| a.node)
        .collect()
}

/// Operand and result of a node that changes nothing.
fn find(g: &Graph, id: NodeId) -> Option<(ValueId, ValueId)> {
    let node = g.node(id)?;
    let ([y], x) = (node.outputs.as_slice(), input(node, 0)?) else {
        return None;
    };
    let (from, to) = (g.value(x).fact.as_ref()?, g.value(*y).fact.as_ref()?);
    let only = node.inputs.len() == 1;
    let same = if let Some(p) = node.op.downcast::<Pointwise>() {
        only && match &p.expr {
            Expr::Input(0) => true,
            Expr::Cast(_, of) => **of == Expr::Input(0),
            _ => false,
        }
    } else if let Some(t) = node.op.downcast::<Transpose>() {
        t.axes(from.shape.rank()).ok()?.is_sorted()
    } else if node.op.downcast::<Concat>().is_some() {
        only
    } else if node.op.downcast::<Slice>().is_some() {
        match input(node, 4) {
            None => true,
            Some(steps) => {
                let steps = g.value(steps).fact.as_ref()?.as_const()?.to_i64().ok()?;
                steps.iter().all(|s| *s == 1)
            }
        }
    } else {
        node.op.downcast::<Reshape>().is_some() || node.op.downcast::<Expand>().is_some()
    };
    let kept = g.is_kept(*y);
    (same && !kept && from.dtype == to.dtype && from.shape == to.shape).then_some((x, *y))
}
