//! Makes matmuls with 4-bit and 8-bit E0M weights quantize their activations to 8 bits
//! ([`MatMulE0m::int8`]). Runs before the passes that fuse matmuls.

use crate::error::Result;
use crate::graph::op::matmul_e0m::MatMulE0m;
use crate::graph::pass::Pass;
use crate::graph::{Edit, NodeId};

pub const INT8_ACTIVATIONS: Pass = Pass {
    name: "int8_activations",
    does: "makes matmuls with E0M weights use int8 activations",
    refuses: "weights not of 4 or 8 bits",
    run,
};

fn run(edit: &mut Edit<'_>) -> Result<()> {
    let found: Vec<(NodeId, MatMulE0m)> = edit
        .nodes()
        .filter_map(|(id, node)| {
            let op = node.op.downcast::<MatMulE0m>()?;
            (op.supports_int8() && !op.int8).then(|| (id, op.clone()))
        })
        .collect();
    for (id, op) in found {
        let Some(node) = edit.node(id) else { continue };
        let (name, inputs, origin) = (node.name.clone(), node.inputs.clone(), node.origin.clone());
        if !edit.begin(&format!("\"{name}\" takes int8 activations")) {
            return Ok(());
        }
        edit.replace_node(id, Box::new(MatMulE0m { int8: true, ..op }), inputs, origin);
    }
    Ok(())
}
