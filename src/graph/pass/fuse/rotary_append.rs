//! Fuses the rotary embeddings of queries and keys and the appends of keys and values before an
//! attention into one node, [`RotaryAppend`]: one dispatch instead of four. Runs after the passes
//! `kv_cache` and `attention`, for devices.

use crate::error::Result;
use crate::graph::op::Op;
use crate::graph::op::attention::Attention;
use crate::graph::op::kv_append::KvAppend;
use crate::graph::op::rotary::Rotary;
use crate::graph::op::rotary_append::RotaryAppend;
use crate::graph::pass::Pass;
use crate::graph::pass::pattern::{input, transposed};
use crate::graph::{Edit, Graph, Node, NodeId, State, ValueId};

pub const ROTARY_APPEND: Pass = Pass {
    name: "rotary_append",
    does: "fuses rotary embedding and cache appends before an attention",
    refuses: "different angles; caches with windows, in 8 bits or along different axes",
    run,
};

fn run(edit: &mut Edit<'_>) -> Result<()> {
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
                log::debug!("the nodes before attention \"{name}\" are not fused: {why}");
                continue;
            }
        };
        if !edit.begin(&format!(
            "rotary embedding and appends of \"{name}\" become one node"
        )) {
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
            Box::new(found.op),
            found.inputs,
            found.outputs.to_vec(),
        );
    }
    Ok(())
}

struct RotaryAppendMatch {
    op: RotaryAppend,
    nodes: [NodeId; 4],
    inputs: Vec<Option<ValueId>>,
    outputs: [ValueId; 3],
}

/// The producer of `v`, if it is an `O`.
fn made_by<'g, O: Op + 'static>(
    g: &'g Graph,
    v: Option<ValueId>,
    what: &str,
) -> Result<(ValueId, NodeId, &'g Node), String> {
    let made = v.and_then(|v| g.producer(v).map(|(id, node)| (v, id, node)));
    let made = made.filter(|(_, _, n)| n.op.downcast::<O>().is_some());
    made.ok_or_else(|| format!("its {what}"))
}

fn find(g: &Graph, consumers: &[Vec<NodeId>], id: NodeId) -> Result<RotaryAppendMatch, String> {
    let attention = g.node(id).ok_or("the node was removed")?;
    // A value with a single reader.
    let alone = |v: ValueId| !g.is_kept(v) && consumers.get(v.index()).is_some_and(|c| c.len() == 1);
    // Sequence-first rows are swapped with the batch, which is 1, before an attention.
    let rows = |i: usize| {
        let v = input(attention, i)?;
        Some(transposed(g, v, &[1, 0, 2, 3]).unwrap_or(v))
    };
    let (query, turn_q, q) = made_by::<Rotary>(g, rows(0), "queries have no rotary embedding")?;
    let (keys, append_k, k) = made_by::<KvAppend>(g, rows(1), "keys are not appended")?;
    let (values, append_v, v) = made_by::<KvAppend>(g, rows(2), "values are not appended")?;
    let (turned, turn_k, new) = made_by::<Rotary>(g, input(k, 1), "keys have no rotary embedding")?;
    let axis = |n: &Node| n.op.downcast::<KvAppend>().map(|append| append.axis);
    let axis = match [axis(k), axis(v)] {
        [Some(k), Some(v)] if k == v && k < 2 => k,
        other => return Err(format!("its caches grow along unsupported axes {other:?}")),
    };
    let caches = [input(k, 0), input(v, 0)];
    let floats = |v: &Option<ValueId>| v.is_some_and(|v| g.fact(v).is_ok_and(|f| f.dtype.is_float()));
    if !caches.iter().all(floats) {
        return Err("its caches do not hold floats".to_owned());
    }
    let windowed = |s: &State| s.window.is_some() && caches.contains(&Some(s.input));
    if g.states().iter().any(windowed) {
        return Err("its caches have a window".to_owned());
    }
    let pairs = |n: &Node| n.op.downcast::<Rotary>().map(|turn| turn.pairs);
    let pairs = match [pairs(q), pairs(new)] {
        [Some(q), Some(k)] if q == k => q,
        other => return Err(format!("its rotary embeddings have different pairs: {other:?}")),
    };
    if [1, 2].iter().any(|i| input(q, *i) != input(new, *i)) {
        return Err("its queries and keys have different angles".to_owned());
    }
    if !alone(query) || !alone(turned) {
        return Err("its rotated queries or keys have other readers".to_owned());
    }
    Ok(RotaryAppendMatch {
        op: RotaryAppend { pairs, axis },
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
