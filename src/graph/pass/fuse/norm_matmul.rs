//! Fuses an RMS normalization into the matmuls that read it. On GPUs each work-group of a matmul
//! reads the whole row anyway, but would do so for each of many rows: there it is used for graphs
//! whose runs have one row. Native kernels normalize rows where they quantize them.

use crate::error::Result;
use crate::graph::op::Op;
use crate::graph::op::fused::Fused;
use crate::graph::op::matmul_e0m::QuantizedMatMul;
use crate::graph::op::rms_norm::RmsNorm;
use crate::graph::pass::Pass;
use crate::graph::pass::pattern::input;
use crate::graph::{Edit, Graph, Node, NodeId, ValueId};

pub const NORM_MATMUL: Pass = Pass {
    name: "norm_matmul",
    does: "fuses RMSNorm into the matmuls that read it",
    refuses: "",
    run,
};

fn run(edit: &mut Edit<'_>) -> Result<()> {
    let norms: Vec<(NodeId, f32)> = edit
        .nodes()
        .filter_map(|(id, n)| Some((id, n.op.downcast::<RmsNorm>()?.epsilon)))
        .collect();
    let consumers = edit.consumers();
    for (id, epsilon) in norms {
        let Some(node) = edit.node(id) else { continue };
        let (Some(x), Some(gain), Some(y)) = (input(node, 0), input(node, 1), node.outputs.first().copied())
        else {
            continue;
        };
        let name = node.name.clone();
        let readers = consumers.get(y.index()).cloned().unwrap_or_default();
        let joined: Option<Vec<_>> = readers.iter().map(|r| joined(edit, *r, y, epsilon)).collect();
        let kept = edit.is_output(y);
        let Some(joined) = joined.filter(|all| !all.is_empty() && !kept) else {
            log::debug!("\"{name}\" is not fused: a reader cannot normalize its operand");
            continue;
        };
        if !edit.begin(&format!("\"{name}\" is fused into the matmuls that read it")) {
            return Ok(());
        }
        for (reader, (op, gain_at)) in readers.into_iter().zip(joined) {
            let Some(node) = edit.node(reader) else { continue };
            let (mut inputs, mut origin) = (node.inputs.clone(), node.origin.clone());
            if let Some(first) = inputs.first_mut() {
                *first = Some(x);
            }
            inputs.insert(gain_at.min(inputs.len()), Some(gain));
            origin.push(name.clone());
            edit.replace_node(reader, op, inputs, origin);
        }
        edit.remove_node(id);
    }
    Ok(())
}

/// The operator of the node `reader` with operand 0 normalized, and the operand index of the norm's
/// scale. `y` must be operand 0 and no other operand.
fn joined(g: &Graph, reader: NodeId, y: ValueId, epsilon: f32) -> Option<(Box<dyn Op>, usize)> {
    let node = g.node(reader)?;
    let reads = node.inputs.iter().filter(|v| **v == Some(y)).count();
    if input(node, 0) != Some(y) || reads != 1 {
        return None;
    }
    with_norm(node, epsilon)
}

fn with_norm(node: &Node, epsilon: f32) -> Option<(Box<dyn Op>, usize)> {
    let normed = |op: &QuantizedMatMul| {
        op.norm.is_none().then(|| QuantizedMatMul {
            norm: Some(epsilon),
            ..op.clone()
        })
    };
    if let Some(op) = node.op.downcast::<QuantizedMatMul>() {
        return Some((Box::new(normed(op)?), node.inputs.len()));
    }
    let fused = node.op.downcast::<Fused>()?;
    let op = normed(fused.base().downcast::<QuantizedMatMul>()?)?;
    let inputs = fused.inputs();
    Some((
        Box::new(Fused::new(Box::new(op), inputs + 1, fused.expr().clone())),
        inputs,
    ))
}
