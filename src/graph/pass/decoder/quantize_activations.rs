//! Makes matmuls with quantized weights quantize their activations
//! ([`QuantizedMatMul::activations`]). Runs before the passes that fuse matmuls.

use crate::error::Result;
use crate::graph::op::matmul_e0m::{ActivationType, QuantizedMatMul};
use crate::graph::pass::Pass;
use crate::graph::{Edit, NodeId};

pub const INT8_ACTIVATIONS: Pass = Pass {
    name: "int8_activations",
    does: "makes matmuls with quantized weights use int8 activations",
    refuses: "weights not of 4 or 8 bits",
    run: |edit| run(edit, ActivationType::Int8),
};

pub const INT16_ACTIVATIONS: Pass = Pass {
    name: "int16_activations",
    does: "makes matmuls with quantized weights use int16 activations",
    refuses: "nothing",
    run: |edit| run(edit, ActivationType::Int16),
};

fn run(edit: &mut Edit<'_>, activations: ActivationType) -> Result<()> {
    let found: Vec<(NodeId, QuantizedMatMul)> = edit
        .nodes()
        .filter_map(|(id, node)| {
            let op = node.op.downcast::<QuantizedMatMul>()?;
            let able = op.supports(activations) && op.activations == ActivationType::Float;
            able.then(|| (id, op.clone()))
        })
        .collect();
    for (id, op) in found {
        let Some(node) = edit.node(id) else { continue };
        let (name, inputs, origin) = (node.name.clone(), node.inputs.clone(), node.origin.clone());
        if !edit.begin(&format!("\"{name}\" takes {activations} activations")) {
            return Ok(());
        }
        edit.replace_node(
            id,
            Box::new(QuantizedMatMul { activations, ..op }),
            inputs,
            origin,
        );
    }
    Ok(())
}
