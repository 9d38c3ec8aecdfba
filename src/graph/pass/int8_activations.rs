//! Products with E0M weights of 4 and 8 bits take their activations in bytes ([`MatMulE0m::int8`]). Runs before passes that join products with others.

use crate::error::Result;
use crate::graph::op::matmul_e0m::MatMulE0m;
use crate::graph::{Edit, NodeId};

pub(super) fn run(edit: &mut Edit<'_>) -> Result<()> {
    let found: Vec<(NodeId, MatMulE0m)> = edit
        .nodes()
        .filter_map(|(id, node)| {
            let op = node.op.downcast::<MatMulE0m>()?;
            (op.takes_bytes() && !op.int8).then(|| (id, op.clone()))
        })
        .collect();
    for (id, op) in found {
        let Some(node) = edit.node(id) else { continue };
        let (name, inputs, origin) = (node.name.clone(), node.inputs.clone(), node.origin.clone());
        if !edit.begin(&format!("\"{name}\" takes bytes")) {
            return Ok(());
        }
        edit.replace_node(id, Box::new(MatMulE0m { int8: true, ..op }), inputs, origin);
    }
    Ok(())
}
