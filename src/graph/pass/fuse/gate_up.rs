//! Fuses a gate-up pair (SwiGLU) into one node: two matmuls of one operand with quantized weights
//! of the same format and size, where the epilogue of one is an elementwise function of both
//! results. Most GPUs use it for graphs whose runs have one row: their kernels for more rows
//! compute the two matmuls in turn anyway.

use crate::error::Result;
use crate::graph::op::fused::Fused;
use crate::graph::op::matmul_e0m::QuantizedMatMul;
use crate::graph::pass::Pass;
use crate::graph::pass::pattern::{all, input, producer};
use crate::graph::{Edit, Graph, NodeId, ValueId};

pub const GATE_UP: Pass = Pass {
    name: "gate_up",
    does: "fuses a gate-up pair of matmuls (SwiGLU)",
    refuses: "other sizes or formats; a function of more than the two",
    run,
};

fn run(edit: &mut Edit<'_>) -> Result<()> {
    let consumers = edit.consumers();
    for found in all(edit, |g, id| find(g, &consumers, id)) {
        let names = [found.id, found.other].map(|id| edit.node(id).map_or("", |n| &n.name).to_owned());
        if !edit.begin(&format!("\"{}\" and \"{}\" become one node", names[0], names[1])) {
            return Ok(());
        }
        edit.replace_node(found.id, Box::new(found.op), found.inputs, found.origin);
        edit.remove_node(found.other);
    }
    Ok(())
}

struct GateUpMatch {
    id: NodeId,
    other: NodeId,
    op: QuantizedMatMul,
    inputs: Vec<Option<ValueId>>,
    origin: Vec<String>,
}

fn find(g: &Graph, consumers: &[Vec<NodeId>], id: NodeId) -> Option<GateUpMatch> {
    let node = g.node(id)?;
    let fused = node.op.downcast::<Fused>()?;
    let product = fused
        .base()
        .downcast::<QuantizedMatMul>()
        .filter(|p| p.norm.is_none())?;
    let (own, further) = node.inputs.split_at_checked(fused.inputs())?;
    let [Some(gate)] = *further else { return None };
    let refuse = |why: &str| {
        log::debug!("matmul \"{}\" is not fused: {why}", node.name);
        None
    };
    let (other_id, other, second) = producer::<QuantizedMatMul>(g, gate)?;
    if second != product || input(other, 0) != own.first().copied().flatten() {
        return refuse("the other matmul has a different operand or form");
    }
    let fact = |v: Option<ValueId>| g.value(v?).fact.as_ref();
    if (1..3).any(|i| fact(input(other, i)).map(|f| &f.shape) != fact(input(node, i)).map(|f| &f.shape)) {
        return refuse("the other matmul has a different size");
    }
    if g.is_kept(gate) || consumers.get(gate.index()).map(Vec::as_slice) != Some(&[id]) {
        return refuse("the result of the other matmul has other readers");
    }
    let mut inputs = own.to_vec();
    inputs.extend(other.inputs.iter().skip(1));
    let mut origin = node.origin.clone();
    origin.extend(other.origin.iter().cloned());
    Some(GateUpMatch {
        id,
        other: other_id,
        op: product.clone().gated(fused.expr().clone()),
        inputs,
        origin,
    })
}
