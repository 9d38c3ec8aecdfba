//! 8-bit KV caches: a state that only attention reads becomes one of 8-bit rows, see
//! [`crate::graph::op::kv_append_q8`]; its type tells its appends and attentions. Runs after the
//! passes `kv_cache` and `attention`; states that do not qualify stay floats.

use crate::error::Result;
use crate::graph::op::attention::Attention;
use crate::graph::op::dequantize_kv::DequantizeKv;
use crate::graph::op::kv_append::KvAppend;
use crate::graph::op::kv_append_q8::words;
use crate::graph::pass::Pass;
use crate::graph::pass::pattern::{input, shape_alone};
use crate::graph::{Edit, Graph, NodeId, State, ValueId};
use crate::shape::{Fact, Shape};
use crate::tensor::DType;
use std::collections::{BTreeMap, BTreeSet};

pub const KV_Q8: Pass = Pass {
    name: "kv_q8",
    does: "stores caches that only attention reads in 8 bits",
    refuses: "states read by others; a head size that is not a multiple of 4",
    run,
};

/// A state that can be stored in 8 bits.
struct ByteState {
    past: ValueId,
    fact: Fact,
    present: ValueId,
    /// The attentions that read it.
    readers: Vec<NodeId>,
    /// Values of the state with the nodes that read their shape.
    shapes: Vec<(ValueId, NodeId)>,
}

fn run(edit: &mut Edit<'_>) -> Result<()> {
    let consumers = edit.consumers();
    let mut found: BTreeMap<ValueId, ByteState> = BTreeMap::new();
    for state in edit.states() {
        match fits(edit, &consumers, state) {
            Ok(f) => {
                found.insert(f.present, f);
            }
            Err(why) => log::debug!("cache \"{}\" stays float: {why}", edit.value(state.input).name),
        }
    }
    // Both caches of an attention change, or neither.
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
            log::debug!("cache \"{name}\" stays float: the other cache of its attention does");
        }
        found.retain(|v, _| !kept.contains(v));
    }
    let name = |v: ValueId| edit.value(v).name.clone();
    let names: Vec<String> = found.values().map(|f| name(f.past)).collect();
    // One rewrite for all caches: stopping in between would leave an attention with mixed types.
    if found.is_empty() || !edit.begin(&format!("8-bit caches: {}", names.join(", "))) {
        return Ok(());
    }
    for f in found.into_values() {
        edit.set_fact(f.past, f.fact);
        for (state, id) in f.shapes {
            let Some(node) = edit.node(id) else { continue };
            let (op, mut inputs, origin) = (node.op.clone(), node.inputs.clone(), node.origin.clone());
            let name = format!("{}/floats", edit.value(state).name);
            let floats = match edit.find(&name) {
                Some(v) => v,
                None => {
                    let v = edit.add_value(&name, None);
                    let operand = vec![Some(state)];
                    edit.add_node(&name, origin.clone(), Box::new(DequantizeKv), operand, vec![v]);
                    v
                }
            };
            for input in inputs.iter_mut().filter(|i| **i == Some(state)) {
                *input = Some(floats);
            }
            edit.replace_node(id, op, inputs, origin);
        }
    }
    Ok(())
}

fn fits(g: &Graph, consumers: &[Vec<NodeId>], state: &State) -> Result<ByteState, String> {
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
    let words = words(d).ok_or_else(|| format!("its row length {d} is not a multiple of 4"))?;
    // The positions of `v` among the operands of each reader.
    let places = |v: ValueId, id: NodeId| {
        let inputs = g.node(id).map_or(&[][..], |n| &n.inputs).iter().enumerate();
        inputs.filter(move |(_, o)| **o == Some(v)).map(|(i, _)| i)
    };
    let takes_shape = |v: ValueId, id: NodeId| shape_alone(g, consumers, v, id);
    let mut shapes = Vec::new();
    for id in &consumers[state.input.index()] {
        if takes_shape(state.input, *id) {
            shapes.push((state.input, *id));
        } else if *id != append {
            return Err("another node reads its contents before a run".to_owned());
        }
    }
    let mut readers = Vec::new();
    for id in &consumers[state.output.index()] {
        let attention = g
            .node(*id)
            .is_some_and(|n| n.op.downcast::<Attention>().is_some());
        if takes_shape(state.output, *id) {
            shapes.push((state.output, *id));
        } else if attention && places(state.output, *id).all(|i| i == 1 || i == 2) {
            readers.push(*id);
        } else {
            return Err("a node other than an attention reads it".to_owned());
        }
    }
    if readers.is_empty() {
        return Err("no attention reads it".to_owned());
    }
    Ok(ByteState {
        past: state.input,
        fact: Fact::new(DType::I32, Shape([before, &[words]].concat())),
        present: state.output,
        readers,
        shapes,
    })
}
