//! Caches of 8 bits: a state that is appended to and read by attention alone becomes one of rows of 8-bit words, see
//! [`crate::graph::op::kv_append_q8`]. Runs after the passes `kv_cache` and `attention`; what it refuses keeps its floats.

use super::pattern::input;
use crate::error::Result;
use crate::graph::op::attention::Attention;
use crate::graph::op::attention_q8::AttentionQ8;
use crate::graph::op::kv_append::KvAppend;
use crate::graph::op::kv_append_q8::{KvAppendQ8, words};
use crate::graph::{Edit, Graph, NodeId, State, ValueId};
use crate::shape::{Fact, Shape};
use crate::tensor::DType;
use std::collections::{BTreeMap, BTreeSet};

/// A state that can be stored in 8 bits.
struct Found {
    append: NodeId,
    past: ValueId,
    fact: Fact,
    present: ValueId,
    /// The attentions that read it.
    readers: Vec<NodeId>,
}

pub(super) fn run(edit: &mut Edit<'_>) -> Result<()> {
    let consumers = edit.consumers();
    let mut found: BTreeMap<ValueId, Found> = BTreeMap::new();
    for state in edit.states() {
        match fits(edit, &consumers, state) {
            Ok(f) => {
                found.insert(f.present, f);
            }
            Err(why) => log::warn!(
                "cache \"{}\" keeps its floats: {why}",
                edit.value(state.input).name
            ),
        }
    }
    // Both caches of an attention change, or none.
    loop {
        let kept: BTreeSet<ValueId> = found
            .values()
            .filter(|f| {
                let other = |id: &NodeId| {
                    let operand = |i| edit.node(*id).and_then(|n| input(n, i));
                    [1, 2]
                        .iter()
                        .all(|i| operand(*i).is_some_and(|v| found.contains_key(&v)))
                };
                !f.readers.iter().all(other)
            })
            .map(|f| f.present)
            .collect();
        if kept.is_empty() {
            break;
        }
        for v in &kept {
            let name = &edit.value(*v).name;
            log::warn!("cache \"{name}\" keeps its floats: what is read beside it does");
        }
        found.retain(|v, _| !kept.contains(v));
    }
    let mut attentions = BTreeSet::new();
    let name = |v: ValueId| edit.value(v).name.clone();
    let names: Vec<String> = found.values().map(|f| name(f.past)).collect();
    // One rewrite of all: a part of them would leave an attention between two forms.
    if found.is_empty() || !edit.begin(&format!("caches of 8 bits: {}", names.join(", "))) {
        return Ok(());
    }
    for f in found.into_values() {
        edit.set_fact(f.past, f.fact);
        let Some(node) = edit.node(f.append) else { continue };
        let (inputs, origin) = (node.inputs.clone(), node.origin.clone());
        edit.replace_node(f.append, Box::new(KvAppendQ8), inputs, origin);
        attentions.extend(f.readers);
    }
    for id in attentions {
        let Some(node) = edit.node(id) else { continue };
        let Some(attention) = node.op.downcast::<Attention>().cloned() else {
            continue;
        };
        let (inputs, origin) = (node.inputs.clone(), node.origin.clone());
        edit.replace_node(id, Box::new(AttentionQ8 { attention }), inputs, origin);
    }
    Ok(())
}

fn fits(g: &Graph, consumers: &[Vec<NodeId>], state: &State) -> Result<Found, String> {
    let producer = g
        .producer(state.output)
        .filter(|(_, n)| n.op.downcast::<KvAppend>().is_some());
    let Some((append, _)) = producer else {
        return Err("it is not appended to".to_owned());
    };
    if state.axis != 1 {
        return Err(format!("it grows along axis {}, expected 1", state.axis));
    }
    let fact = g.fact(state.input).map_err(|e| e.to_string())?;
    let last = fact.shape.0.split_last().filter(|_| fact.shape.rank() == 4);
    let (d, before) = last.ok_or_else(|| format!("expected [1, past, heads, d], found {fact}"))?;
    let words = words(d).ok_or_else(|| format!("its rows of {d} are no fours"))?;
    if consumers[state.input.index()] != [append] {
        return Err("something else reads what is in it before a run".to_owned());
    }
    let readers = consumers[state.output.index()].clone();
    let reads = |id: &NodeId| {
        let node = g.node(*id)?;
        let rows = node
            .inputs
            .iter()
            .enumerate()
            .filter(|(_, v)| **v == Some(state.output));
        (node.op.downcast::<Attention>().is_some() && rows.into_iter().all(|(i, _)| i == 1 || i == 2))
            .then_some(())
    };
    if readers.is_empty() || !readers.iter().all(|id| reads(id).is_some()) {
        return Err("something that is no attention reads it".to_owned());
    }
    Ok(Found {
        append,
        past: state.input,
        fact: Fact::new(DType::I32, Shape([before, &[words]].concat())),
        present: state.output,
        readers,
    })
}
