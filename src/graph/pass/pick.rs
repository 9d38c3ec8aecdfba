//! A `Gather` of one place, known before the run, along an inner axis becomes a slice: `x[.., i]` of exporters.
//!
//! Kernels gather rows of tables; a slice is a strided copy, or nothing at all.

use super::pattern::{all, input};
use crate::error::Result;
use crate::graph::op::gather::Gather;
use crate::graph::op::reshape::Reshape;
use crate::graph::op::slice::Slice;
use crate::graph::{Edit, Graph, NodeId, ValueId};

struct Found {
    node: NodeId,
    x: ValueId,
    axis: i64,
    index: i64,
    /// The index is a scalar: the axis goes away.
    drops_axis: bool,
}

pub(super) fn run(edit: &mut Edit<'_>) -> Result<()> {
    for f in all(edit, find) {
        let Some(node) = edit.node(f.node) else { continue };
        let (name, origin) = (node.name.clone(), node.origin.clone());
        if edit.begin(&format!("\"{name}\" picks one place of an axis")) {
            rewrite(edit, &f, &name, origin)?;
        }
    }
    Ok(())
}

fn find(g: &Graph, id: NodeId) -> Option<Found> {
    let node = g.node(id)?;
    let Gather { axis } = node.op.downcast::<Gather>()?;
    let (x, index) = (input(node, 0)?, input(node, 1)?);
    let data = g.value(x).fact.as_ref()?;
    let at = crate::graph::op::axis(*axis, data.shape.rank()).ok()?;
    let indices = g.value(index).fact.as_ref()?;
    let picks_one = matches!(indices.shape.as_fixed()?.as_slice(), [] | [1]);
    // Rows of a table are gathered; and what is known needs no work.
    if at == 0 || !picks_one || data.as_const().is_some() || data.as_dims().is_some() {
        return None;
    }
    Some(Found {
        node: id,
        x,
        axis: i64::try_from(at).ok()?,
        index: indices.as_dims()?.first()?.as_const()?,
        drops_axis: indices.shape.rank() == 0,
    })
}

fn rewrite(edit: &mut Edit<'_>, f: &Found, name: &str, origin: Vec<String>) -> Result<()> {
    let mut list = |what: &str, v: i64| edit.add_int(&format!("{name}/{what}"), v).map(Some);
    // The end behind the last place, counted from the end, cannot be written as a number from there.
    let end = if f.index == -1 {
        i64::MAX
    } else {
        f.index.saturating_add(1)
    };
    let (start, end, axes) = (list("start", f.index)?, list("end", end)?, list("axes", f.axis)?);
    let operands = vec![Some(f.x), start, end, axes];
    if !f.drops_axis {
        edit.replace_node(f.node, Box::new(Slice), operands, origin);
        return Ok(());
    }
    let part = edit.add_value(&format!("{name}/part"), None);
    edit.add_node(
        &format!("{name}/part"),
        origin.clone(),
        Box::new(Slice),
        operands,
        vec![part],
    );
    edit.replace_node(f.node, Box::new(Reshape::Squeeze), vec![Some(part), axes], origin);
    Ok(())
}
