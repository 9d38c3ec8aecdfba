//! Sliding windows: if a mask hides all but the latest keys, the attention gets the window as an
//! attribute. In sessions of one sequence, a cache that only such attentions read becomes a ring:
//! it needs room for the window and the new rows of one run.
//!
//! The mask stays, since it may hide more. A mask that is only a model input tells nothing about
//! its elements; if the graph combines it with a mask that it computes, the window of the latter is
//! found.

use super::masks::Masks;
use crate::error::Result;
use crate::graph::op::attention::Attention;
use crate::graph::op::kv_append::KvAppend;
use crate::graph::pass::Pass;
use crate::graph::pass::pattern::{input, shape, shape_alone};
use crate::graph::{Edit, Graph, NodeId, State, ValueId};
use std::collections::BTreeMap;

pub const WINDOW: Pass = Pass {
    name: "window",
    does: "finds the sliding window of attention in its mask",
    refuses: "a mask that may show more",
    run,
};

pub const RINGS: Pass = Pass {
    name: "rings",
    does: "limits caches to the sliding windows of attention",
    refuses: "caches that something else reads",
    run: run_rings,
};

fn run(edit: &mut Edit<'_>) -> Result<()> {
    let mut masks = Masks::default();
    let ids: Vec<NodeId> = edit.nodes().map(|(id, _)| id).collect();
    for id in ids {
        let Some((op, window)) = find(edit, &mut masks, id) else {
            continue;
        };
        let Some(node) = edit.node(id) else { continue };
        let (name, inputs, origin) = (node.name.clone(), node.inputs.clone(), node.origin.clone());
        if edit.begin(&format!("\"{name}\" sees {window} keys")) {
            let window = Some(window);
            edit.replace_node(id, Box::new(Attention { window, ..op }), inputs, origin);
        }
    }
    Ok(())
}

fn run_rings(edit: &mut Edit<'_>) -> Result<()> {
    for (output, window) in states(edit) {
        let name = edit.value(output).name.clone();
        if edit.begin(&format!("cache \"{name}\" keeps the last {window} rows")) {
            edit.set_window(output, window);
        }
    }
    Ok(())
}

/// An attention without a window whose mask implies one.
fn find(g: &Graph, masks: &mut Masks, id: NodeId) -> Option<(Attention, i64)> {
    let node = g.node(id)?;
    let op = node.op.downcast::<Attention>().filter(|op| op.window.is_none())?;
    let operand = |i| shape(g, input(node, i)?);
    let ([batch, rows, ..], [_, keys, ..]) = (operand(0)?, operand(1)?) else {
        return None;
    };
    if !batch.is(1) {
        return None;
    }
    let visible = masks.visible(g, input(node, 3)?, &keys.sub(rows).ok()?);
    Some((op.clone(), visible.window?))
}

/// States that are read only by attention with windows: their end values with the largest of these
/// windows.
fn states(g: &Graph) -> BTreeMap<ValueId, i64> {
    let consumers = g.consumers();
    let mut found = BTreeMap::new();
    for state in g.states() {
        match readers(g, &consumers, state) {
            Ok(readers) => {
                found.insert(state.output, readers);
            }
            Err(why) => log::debug!("cache \"{}\" is kept whole: {why}", g.value(state.input).name),
        }
    }
    // The key and value caches of an attention must have the same layout.
    loop {
        let operands = |id: &NodeId| {
            let node = g.node(*id);
            [1, 2].map(|i| node.and_then(|n| input(n, i)))
        };
        let alone: Vec<ValueId> = found
            .iter()
            .filter(|(_, readers)| {
                let mut all = readers.iter().flat_map(|(id, _)| operands(id));
                !all.all(|v| v.is_some_and(|v| found.contains_key(&v)))
            })
            .map(|(v, _)| *v)
            .collect();
        if alone.is_empty() {
            break;
        }
        found.retain(|v, _| !alone.contains(v));
    }
    let mut windows: BTreeMap<ValueId, i64> = BTreeMap::new();
    for (v, readers) in &found {
        windows.insert(*v, readers.iter().map(|(_, w)| *w).max().unwrap_or(0));
    }
    // All caches of one attention have one window. Each window can only grow, up to the largest of
    // all.
    loop {
        let mut grown = false;
        for id in found.values().flatten().map(|(id, _)| *id) {
            let Some(node) = g.node(id) else { continue };
            let pair = [1, 2].map(|i| input(node, i));
            let most = pair
                .iter()
                .flatten()
                .filter_map(|v| windows.get(v))
                .max()
                .copied();
            for v in pair.into_iter().flatten() {
                if let (Some(own), Some(most)) = (windows.get_mut(&v), most)
                    && *own < most
                {
                    *own = most;
                    grown = true;
                }
            }
        }
        if !grown {
            return windows;
        }
    }
}

/// The attentions that read a state, with their windows.
fn readers(g: &Graph, consumers: &[Vec<NodeId>], state: &State) -> Result<Vec<(NodeId, i64)>, String> {
    let append = g.producer(state.output);
    let append = append.filter(|(_, n)| n.op.downcast::<KvAppend>().is_some());
    let Some((append, _)) = append else {
        return Err("it is not appended to".to_owned());
    };
    if g.is_output(state.output) {
        return Err("it is an output".to_owned());
    }
    let before = &consumers[state.input.index()];
    let reads = |id: &&NodeId| **id != append && !shape_alone(g, consumers, state.input, **id);
    if before.iter().any(|id| reads(&id)) {
        return Err("another node reads its contents before a run".to_owned());
    }
    let mut readers = Vec::new();
    for id in &consumers[state.output.index()] {
        if shape_alone(g, consumers, state.output, *id) {
            continue;
        }
        let Some(node) = g.node(*id) else { continue };
        let window = node.op.downcast::<Attention>().and_then(|op| op.window);
        let mut places = node.inputs.iter().enumerate();
        let elsewhere = places.any(|(i, v)| *v == Some(state.output) && i != 1 && i != 2);
        match window.filter(|_| !elsewhere) {
            Some(window) => readers.push((*id, window)),
            None => return Err(format!("\"{}\" reads more than a window of it", node.name)),
        }
    }
    if readers.is_empty() {
        return Err("no attention reads it".to_owned());
    }
    Ok(readers)
}
