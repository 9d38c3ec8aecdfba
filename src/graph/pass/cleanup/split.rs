//! Replaces a `Split` by a slice for each of its parts; slices without readers are removed.

use crate::error::Result;
use crate::graph::op::slice::Slice;
use crate::graph::op::split::Split;
use crate::graph::pass::Pass;
use crate::graph::pass::pattern::{all, input};
use crate::graph::{Edit, Graph, NodeId, ValueId};
use crate::num;

pub const SPLIT: Pass = Pass {
    name: "split",
    does: "replaces a `Split` by slices",
    refuses: "symbolic parts; parts that may not add up",
    run,
};

struct SplitMatch {
    node: NodeId,
    x: ValueId,
    axis: i64,
    /// Each part with its start and its exclusive end.
    parts: Vec<(ValueId, [i64; 2])>,
}

fn run(edit: &mut Edit<'_>) -> Result<()> {
    for f in all(edit, find) {
        let Some(node) = edit.node(f.node) else { continue };
        let (name, origin) = (node.name.clone(), node.origin.clone());
        if !edit.begin(&format!("\"{name}\" becomes slices")) {
            continue;
        }
        edit.remove_node(f.node);
        for (i, (part, bounds)) in f.parts.iter().enumerate() {
            let name = format!("{name}/{i}");
            let mut operands = vec![Some(f.x)];
            for (what, v) in [("start", bounds[0]), ("end", bounds[1]), ("axes", f.axis)] {
                operands.push(Some(edit.add_int(&format!("{name}/{what}"), v)?));
            }
            edit.add_node(&name, origin.clone(), Box::new(Slice), operands, vec![*part]);
        }
    }
    Ok(())
}

fn find(g: &Graph, id: NodeId) -> Option<SplitMatch> {
    let node = g.node(id)?;
    let split = node.op.downcast::<Split>()?;
    let x = input(node, 0)?;
    let fact = g.value(x).fact.as_ref()?;
    if fact.as_const().is_some() || fact.as_dims().is_some() {
        return None;
    }
    let axis = crate::graph::op::axis(split.axis, fact.shape.rank()).ok()?;
    let mut parts = Vec::with_capacity(node.outputs.len());
    let mut at = 0i64;
    for part in &node.outputs {
        let size = g.value(*part).fact.as_ref()?.shape.0.get(axis)?;
        let Some(size) = size.as_const() else {
            log::debug!(
                "\"{}\" stays a split: the size {size} of a part is not constant",
                node.name
            );
            return None;
        };
        let end = at.checked_add(size)?;
        parts.push((*part, [at, end]));
        at = end;
    }
    // If the parts are only assumed to add up, slices would assume something else.
    if !fact.shape.0.get(axis)?.is(at) {
        log::debug!("\"{}\" stays a split: its parts may not add up", node.name);
        return None;
    }
    Some(SplitMatch {
        node: id,
        x,
        axis: num::signed(axis),
        parts,
    })
}
