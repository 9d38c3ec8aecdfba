//! Replaces a `Gather` of one known index along an inner axis by a slice: `x[.., i]` in exporters'
//! code.
//!
//! A gather kernel is made for rows of tables; a slice is a strided copy or costs nothing.

use crate::error::Result;
use crate::graph::op::gather::Gather;
use crate::graph::op::reshape::Reshape;
use crate::graph::op::slice::Slice;
use crate::graph::pass::Pass;
use crate::graph::pass::pattern::{all, input};
use crate::graph::{Edit, Graph, NodeId, Op, ValueId};
use crate::num;

pub const GATHER_TO_SLICE: Pass = Pass {
    name: "gather_to_slice",
    does: "replaces a `Gather` of one known index on an inner axis by a slice",
    refuses: "",
    run,
};

struct GatherMatch {
    node: NodeId,
    x: ValueId,
    axis: i64,
    index: i64,
    /// The index is a scalar, so the axis is dropped.
    drops_axis: bool,
    /// The index is known to be in range. If not, the size of the part is assumed to be 1, since a
    /// slice out of range is empty and not an error.
    exists: bool,
}

fn run(edit: &mut Edit<'_>) -> Result<()> {
    for f in all(edit, find) {
        let Some(node) = edit.node(f.node) else { continue };
        let (name, origin) = (node.name.clone(), node.origin.clone());
        if edit.begin(&format!("\"{name}\" picks one index of an axis")) {
            rewrite(edit, &f, &name, origin)?;
        }
    }
    Ok(())
}

fn find(g: &Graph, id: NodeId) -> Option<GatherMatch> {
    let node = g.node(id)?;
    let Gather { axis } = node.op.downcast::<Gather>()?;
    let (x, index) = (input(node, 0)?, input(node, 1)?);
    let data = g.value(x).fact.as_ref()?;
    let at = crate::graph::op::axis(*axis, data.shape.rank()).ok()?;
    let indices = g.value(index).fact.as_ref()?;
    let picks_one = matches!(indices.shape.as_fixed()?.as_slice(), [] | [1]);
    // Gathers of table rows stay, and known values need no rewrite.
    if at == 0 || !picks_one || data.as_const().is_some() || data.as_dims().is_some() {
        return None;
    }
    let index = indices.as_dims()?.first()?.as_const()?;
    let least = if index < 0 {
        index.checked_neg()?
    } else {
        index.checked_add(1)?
    };
    Some(GatherMatch {
        node: id,
        x,
        axis: num::signed(at),
        index,
        exists: g.constraints().at_least(data.shape.0.get(at)?, least) == Some(true),
        drops_axis: indices.shape.rank() == 0,
    })
}

fn rewrite(edit: &mut Edit<'_>, f: &GatherMatch, name: &str, origin: Vec<String>) -> Result<()> {
    let mut list = |what: &str, v: i64| edit.add_int(&format!("{name}/{what}"), v).map(Some);
    // Counted from the end, the end after the last element has no number.
    let end = if f.index == -1 {
        i64::MAX
    } else {
        f.index.saturating_add(1)
    };
    let (start, end, axes) = (list("start", f.index)?, list("end", end)?, list("axes", f.axis)?);
    let operands = vec![Some(f.x), start, end, axes];
    if f.exists && !f.drops_axis {
        edit.replace_node(f.node, Box::new(Slice), operands, origin);
        return Ok(());
    }
    let mut add = |what: &str, op: Box<dyn Op>, operands| {
        let name = format!("{name}/{what}");
        let v = edit.add_value(&name, None);
        edit.add_node(&name, origin.clone(), op, operands, vec![v]);
        Some(v)
    };
    let part = add("part", Box::new(Slice), operands);
    let (last, operands) = if f.drops_axis {
        (Reshape::Squeeze, vec![part, axes])
    } else {
        let one = add("one", Box::new(Reshape::Squeeze), vec![part, axes]);
        (Reshape::Unsqueeze, vec![one, axes])
    };
    edit.replace_node(f.node, Box::new(last), operands, origin);
    Ok(())
}
