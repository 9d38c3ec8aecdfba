//! Merges nodes that compute the same: equal operators with equal attributes over the same
//! operands. Small operands count as the same if their known contents are equal: constants, and
//! sizes as expressions.

use crate::error::Result;
use crate::graph::pass::Pass;
use crate::graph::{Edit, Graph, NodeId, ValueId};
use crate::shape::{Dim, Fact};
use crate::tensor::DType;
use std::collections::HashMap;

pub const DUPLICATES: Pass = Pass {
    name: "duplicates",
    does: "merges nodes that compute the same",
    refuses: "",
    run,
};

/// Only constants of up to this many bytes are compared.
const SMALL: usize = 64;

/// All elements of a small tensor.
#[derive(PartialEq, Eq, Hash)]
enum Elements {
    Bytes(Vec<u8>),
    Dims(Vec<Dim>),
}

/// The known elements of a tensor, if it is small.
fn elements(fact: &Fact) -> Option<Elements> {
    match fact.as_const() {
        Some(t) if t.byte_len() <= SMALL => Some(Elements::Bytes(t.bytes().ok()?.to_vec())),
        Some(_) => None,
        None => fact.as_dims().map(Elements::Dims),
    }
}

/// For each small operand with known elements, the first operand that equals it.
fn known(g: &Graph) -> HashMap<ValueId, ValueId> {
    let mut first: HashMap<(DType, &[Dim], Elements), ValueId> = HashMap::new();
    let mut out = HashMap::new();
    for v in g.nodes().flat_map(|(_, n)| n.inputs.iter().flatten()) {
        let Some(fact) = &g.value(*v).fact else { continue };
        if let Some(elements) = elements(fact) {
            let key = (fact.dtype, fact.shape.0.as_slice(), elements);
            out.insert(*v, *first.entry(key).or_insert(*v));
        }
    }
    out
}

fn run(edit: &mut Edit<'_>) -> Result<()> {
    // Merging changes operands, so nodes are visited in topological order.
    let order = edit.order()?;
    let same = known(edit);
    let mut merged: HashMap<ValueId, ValueId> = HashMap::new();
    // Equal operators have equal texts; operators with equal texts are compared.
    let mut seen: HashMap<(String, Vec<Option<ValueId>>), Vec<NodeId>> = HashMap::new();
    for id in order {
        let Some(node) = edit.node(id) else { continue };
        let operand = |v: &Option<ValueId>| {
            let v = v.map(|v| merged.get(&v).copied().unwrap_or(v));
            v.map(|v| same.get(&v).copied().unwrap_or(v))
        };
        let key = (
            format!("{} {:?}", node.op.name(), node.op),
            node.inputs.iter().map(operand).collect(),
        );
        let alike = |other: &&NodeId| {
            let other = edit.node(**other);
            other.is_some_and(|o| o.op.dyn_eq(node.op.as_ref()) && o.outputs.len() == node.outputs.len())
        };
        let first = seen.get(&key).and_then(|all| all.iter().find(alike)).copied();
        let Some(first) = first else {
            seen.entry(key).or_default().push(id);
            continue;
        };
        if node.outputs.iter().any(|v| edit.is_kept(*v)) {
            log::debug!(
                "\"{}\" is not merged: it defines an output of the model",
                node.name
            );
            continue;
        }
        let (name, outputs) = (node.name.clone(), node.outputs.clone());
        let Some((with, new)) = edit.node(first).map(|n| (n.name.clone(), n.outputs.clone())) else {
            continue;
        };
        if edit.begin(&format!("\"{name}\" computes the same as \"{with}\"")) {
            merged.extend(outputs.into_iter().zip(new));
        }
    }
    edit.replace_all_readers(&merged);
    Ok(())
}
