//! The rotary embedding of queries and keys of an attention, and the appends of its keys and values, become one node, [`RotaryAppend`]: one
//! dispatch in place of four. Runs after the passes `kv_cache` and `attention`, for devices that want few dispatches.

use super::pattern::input;
use crate::error::Result;
use crate::graph::op::Op;
use crate::graph::op::attention::Attention;
use crate::graph::op::kv_append::KvAppend;
use crate::graph::op::rotary::{Pairs, Rotary};
use crate::graph::op::rotary_append::RotaryAppend;
use crate::graph::{Edit, Graph, Node, NodeId, State, ValueId};

pub(super) fn run(edit: &mut Edit<'_>) -> Result<()> {
    let attentions: Vec<NodeId> = edit
        .nodes()
        .filter(|(_, n)| n.op.downcast::<Attention>().is_some())
        .map(|(id, _)| id)
        .collect();
    let consumers = edit.consumers();
    for id in attentions {
        let name = edit.node(id).map_or("", |n| &n.name).to_owned();
        let found = match find(edit, &consumers, id) {
            Ok(found) => found,
            Err(why) => {
                log::debug!("what comes before attention \"{name}\" stays apart: {why}");
                continue;
            }
        };
        if !edit.begin(&format!("rotary embedding and caches of \"{name}\" are one node")) {
            return Ok(());
        }
        let origin = found.nodes.iter().filter_map(|id| edit.node(*id));
        let origin: Vec<String> = origin.flat_map(|n| n.origin.iter().cloned()).collect();
        for id in found.nodes {
            edit.remove_node(id);
        }
        let name = format!("{name}/rotary_append");
        edit.add_node(
            &name,
            origin,
            Box::new(RotaryAppend),
            found.inputs,
            found.outputs.to_vec(),
        );
    }
    Ok(())
}

struct Found {
    nodes: [NodeId; 4],
    inputs: Vec<Option<ValueId>>,
    outputs: [ValueId; 3],
}

/// What makes `v`, where that is an `O`.
fn made_by<'g, O: Op + 'static>(
    g: &'g Graph,
    v: Option<ValueId>,
    what: &str,
) -> Result<(ValueId, NodeId, &'g Node), String> {
    let made = v.and_then(|v| g.producer(v).map(|(id, node)| (v, id, node)));
    let made = made.filter(|(_, _, n)| n.op.downcast::<O>().is_some());
    made.ok_or_else(|| format!("its {what}"))
}

fn find(g: &Graph, consumers: &[Vec<NodeId>], id: NodeId) -> Result<Found, String> {
    let attention = g.node(id).ok_or("it is gone")?;
    // A value that one node reads, and nobody else.
    let alone = |v: ValueId| !g.is_kept(v) && consumers.get(v.index()).is_some_and(|c| c.len() == 1);
    let (query, turn_q, q) = made_by::<Rotary>(g, input(attention, 0), "queries have no rotary embedding")?;
    let (keys, append_k, k) = made_by::<KvAppend>(g, input(attention, 1), "keys are not appended")?;
    let (values, append_v, v) = made_by::<KvAppend>(g, input(attention, 2), "values are not appended")?;
    let (turned, turn_k, new) = made_by::<Rotary>(g, input(k, 1), "keys have no rotary embedding")?;
    let plain = |n: &Node| n.op.downcast::<KvAppend>() == Some(&KvAppend { axis: 1 });
    if !plain(k) || !plain(v) {
        return Err("its caches do not grow along axis 1".to_owned());
    }
    let caches = [input(k, 0), input(v, 0)];
    let windowed = |s: &State| s.window.is_some() && caches.contains(&Some(s.input));
    if g.states().iter().any(windowed) {
        return Err("its caches keep a window".to_owned());
    }
    if [q, new]
        .iter()
        .any(|n| n.op.downcast() != Some(&Rotary { pairs: Pairs::Halves }))
    {
        return Err("pairs of its rotary embedding are neighbours".to_owned());
    }
    if [1, 2].iter().any(|i| input(q, *i) != input(new, *i)) {
        return Err("queries and keys have other angles".to_owned());
    }
    if !alone(query) || !alone(turned) {
        return Err("turned queries or keys are read elsewhere".to_owned());
    }
    Ok(Found {
        nodes: [turn_q, turn_k, append_k, append_v],
        inputs: vec![
            input(q, 0),
            input(new, 0),
            input(v, 1),
            input(q, 1),
            input(q, 2),
            input(k, 0),
            input(v, 0),
        ],
        outputs: [query, keys, values],
    })
}
