//! Causal attention without a mask: if a mask hides exactly the future, and maybe what lies before
//! a sliding window, attributes of the attention replace it.
//!
//! A mask may be the sum of such a mask and another one, which then stays alone.

use super::masks::{Masks, Visible};
use crate::error::Result;
use crate::graph::op::attention::{Attention, mask_fits};
use crate::graph::op::pointwise::Binary;
use crate::graph::pass::Pass;
use crate::graph::pass::pattern::{binary, input, shape};
use crate::graph::{Edit, Graph, NodeId, ValueId};
use crate::shape::Dim;

pub const CAUSAL: Pass = Pass {
    name: "causal",
    does: "replaces a mask that hides exactly the future by an attribute of attention",
    refuses: "a mask that may hide more or less",
    run,
};

fn run(edit: &mut Edit<'_>) -> Result<()> {
    let mut masks = Masks::default();
    let ids: Vec<NodeId> = edit.nodes().map(|(id, _)| id).collect();
    for id in ids {
        let Some((op, mask)) = find(edit, &mut masks, id) else {
            continue;
        };
        let Some(node) = edit.node(id) else { continue };
        let (name, mut inputs, origin) = (node.name.clone(), node.inputs.clone(), node.origin.clone());
        if edit.begin(&format!("\"{name}\" is causal")) {
            inputs.truncate(3);
            inputs.extend(mask.map(Some));
            edit.replace_node(id, Box::new(op), inputs, origin);
        }
    }
    Ok(())
}

/// The attention that a node becomes, and the rest of its mask.
fn find(g: &Graph, masks: &mut Masks, id: NodeId) -> Option<(Attention, Option<ValueId>)> {
    let node = g.node(id)?;
    let op = node.op.downcast::<Attention>()?;
    let mask = input(node, 3)?;
    let operand = |i| shape(g, input(node, i)?);
    let ([batch, rows, heads, _], [_, keys, ..]) = (operand(0)?, operand(1)?) else {
        return None;
    };
    let past = keys.sub(rows).ok()?;
    // Windows need a batch axis of size 1, as ring caches do. Rows of several sequences have it.
    let mut replaced = |mask: ValueId| -> Option<Visible> {
        let visible = masks.visible(g, mask, &past);
        (visible.exact && (visible.window.is_none() || batch.is(1))).then_some(visible)
    };
    let scores = [batch, heads, rows, keys].map(Dim::clone);
    let fits = |mask: &ValueId| shape(g, *mask).is_some_and(|sizes| mask_fits(sizes, &scores));
    let found = replaced(mask).map(|visible| (visible, None));
    let found = found.or_else(|| {
        let [a, b] = binary(g, mask, Binary::Add)?;
        let mut ways = [(a, b), (b, a)].into_iter().filter(|(_, rest)| fits(rest));
        ways.find_map(|(mask, rest)| Some((replaced(mask)?, Some(rest))))
    });
    let Some((visible, rest)) = found else {
        log::debug!("the mask of \"{}\" stays: it is not exactly causal", node.name);
        return None;
    };
    let window = [op.window, visible.window].into_iter().flatten().min();
    let op = Attention {
        causal: op.causal || visible.causal,
        window,
        ..op.clone()
    };
    Some((op, rest))
}

#[cfg(test)]
mod tests;
