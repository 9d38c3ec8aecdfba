//! Nodes that compute the same: equal operators with equal attributes over the same operands become one. Small constants are the
//! same when they are equal.

use crate::error::Result;
use crate::graph::{Edit, Graph, NodeId, ValueId};
use crate::tensor::DType;
use std::collections::HashMap;

/// Constants of up to this many bytes are compared.
const SMALL: usize = 64;

/// For each small constant the first one that equals it.
fn constants(g: &Graph) -> HashMap<ValueId, ValueId> {
    let mut first: HashMap<(DType, Vec<usize>, Vec<u8>), ValueId> = HashMap::new();
    let mut out = HashMap::new();
    for v in g.nodes().flat_map(|(_, n)| n.inputs.iter().flatten()) {
        let constant = g.value(*v).fact.as_ref().and_then(|f| f.as_const());
        let Some(t) = constant.filter(|t| t.byte_len() <= SMALL) else {
            continue;
        };
        if let Ok(bytes) = t.bytes() {
            let key = (t.dtype(), t.shape().to_vec(), bytes.to_vec());
            out.insert(*v, *first.entry(key).or_insert(*v));
        }
    }
    out
}

pub(super) fn run(edit: &mut Edit<'_>) -> Result<()> {
    // Operands change as readers are redirected, so nodes are looked at in the order of their data.
    let order = edit.order()?;
    let same_constant = constants(edit);
    let mut seen: HashMap<(String, Vec<Option<ValueId>>), Vec<NodeId>> = HashMap::new();
    for id in order {
        let Some(node) = edit.node(id) else { continue };
        let operand = |v: &Option<ValueId>| v.map(|v| same_constant.get(&v).copied().unwrap_or(v));
        let key = (
            node.op.name().to_owned(),
            node.inputs.iter().map(operand).collect(),
        );
        let same = |other: &&NodeId| {
            let other = edit.node(**other);
            other.is_some_and(|o| o.op.dyn_eq(node.op.as_ref()) && o.outputs.len() == node.outputs.len())
        };
        let first = seen.get(&key).and_then(|all| all.iter().find(same)).copied();
        let Some(first) = first else {
            seen.entry(key).or_default().push(id);
            continue;
        };
        if node.outputs.iter().any(|v| edit.is_kept(*v)) {
            log::debug!("\"{}\" stays: an output of the model has its name", node.name);
            continue;
        }
        let (name, outputs) = (node.name.clone(), node.outputs.clone());
        let Some((with, new)) = edit.node(first).map(|n| (n.name.clone(), n.outputs.clone())) else {
            continue;
        };
        if edit.begin(&format!("\"{name}\" computes what \"{with}\" does")) {
            for (old, new) in outputs.iter().zip(&new) {
                edit.replace_readers(*old, *new);
            }
        }
    }
    Ok(())
}
