//! Fuses matmuls of one operand with quantized weights of the same format into one node, which
//! devices mostly compute in one dispatch. Examples are query, key and value of an attention
//! (paper, section 2.2, counts launches among the costs of a decode step).

use crate::error::Result;
use crate::graph::op::fused::Fused;
use crate::graph::op::matmul_e0m::QuantizedMatMul;
use crate::graph::pass::Pass;
use crate::graph::pass::pattern::input;
use crate::graph::{Edit, Graph, Node, NodeId, ValueId};
use std::collections::BTreeMap;

pub const JOINT_MATMUL: Pass = Pass {
    name: "joint_matmul_e0m",
    does: "fuses quantized matmuls of one operand (QKV)",
    refuses: "other formats; an epilogue; float weights",
    run,
};

fn run(edit: &mut Edit<'_>) -> Result<()> {
    for group in find(edit) {
        let nodes = || group.iter().filter_map(|id| edit.node(*id));
        let Some(first) = nodes().next() else { continue };
        let Some(product) = first.op.downcast::<QuantizedMatMul>().cloned() else {
            continue;
        };
        let (name, weights) = (first.name.clone(), group.len());
        let op = QuantizedMatMul { weights, ..product };
        let mut inputs = vec![input(first, 0)];
        inputs.extend(nodes().flat_map(|n| n.inputs.iter().skip(1).copied()));
        let outputs: Vec<ValueId> = nodes().flat_map(|n| n.outputs.iter().copied()).collect();
        let origin: Vec<String> = nodes().flat_map(|n| n.origin.iter().cloned()).collect();
        let names: Vec<String> = nodes().map(|n| format!("\"{}\"", n.name)).collect();
        if !edit.begin(&format!("{} become one node", names.join(", "))) {
            return Ok(());
        }
        for id in group {
            edit.remove_node(id);
        }
        edit.add_node(&name, origin, Box::new(op), inputs, outputs);
    }
    Ok(())
}

/// Groups of matmuls of one operand, in the order of the operands in the graph.
fn find(g: &Graph) -> Vec<Vec<NodeId>> {
    let mut by_operand: BTreeMap<ValueId, Vec<NodeId>> = BTreeMap::new();
    for (id, node) in g.nodes().filter(|(_, node)| is_product(node)) {
        // Weights may be shared too; only the activation operand matters.
        if let Some(x) = input(node, 0) {
            by_operand.entry(x).or_default().push(id);
        }
    }
    let mut groups: Vec<Vec<NodeId>> = Vec::new();
    for products in by_operand.into_values() {
        if products.len() < 2 {
            continue;
        }
        let mut alike: Vec<(&QuantizedMatMul, Vec<NodeId>)> = Vec::new();
        for id in products.into_iter().filter(|id| can_join(g, *id)) {
            let Some(op) = g.node(id).and_then(|n| n.op.downcast::<QuantizedMatMul>()) else {
                continue;
            };
            match alike.iter_mut().find(|(o, _)| *o == op) {
                Some((_, all)) => all.push(id),
                None => alike.push((op, vec![id])),
            }
        }
        for (op, all) in alike {
            for group in all.chunks(QuantizedMatMul::MAX_WEIGHTS) {
                if let [id] = group {
                    let name = g.node(*id).map_or("", |n| &n.name);
                    log::debug!(
                        "matmul \"{name}\" is not fused: no other matmul of its operand has weights of the form {op:?}"
                    );
                } else {
                    groups.push(group.to_vec());
                }
            }
        }
    }
    groups
}

/// A matmul of operand 0 with one quantized weight, with or without an epilogue.
fn is_product(node: &Node) -> bool {
    let fused = node.op.downcast::<Fused>();
    let op = fused.map_or(node.op.as_ref(), Fused::base);
    op.downcast().is_some_and(QuantizedMatMul::is_single)
}

fn can_join(g: &Graph, id: NodeId) -> bool {
    let Some(node) = g.node(id) else { return false };
    let constant = |v: &Option<ValueId>| {
        v.is_some_and(|v| g.value(v).fact.as_ref().is_some_and(|f| f.as_const().is_some()))
    };
    let why = if node.op.downcast::<Fused>().is_some() {
        "it has an epilogue"
    } else if !node.inputs.iter().skip(1).all(constant) {
        "its weight is not constant"
    } else if node.outputs.iter().any(|v| g.is_kept(*v)) {
        "its result is an output or state"
    } else {
        return true;
    };
    log::debug!(
        "matmul \"{}\" is not fused with others of its operand: {why}",
        node.name
    );
    false
}
