//! Operators that say what others they are made of become those.

use crate::error::{Result, Stage};
use crate::graph::op::parts::Parts;
use crate::graph::{Edit, NodeId};

pub(super) fn run(edit: &mut Edit<'_>) -> Result<()> {
    let mut work: Vec<NodeId> = edit.nodes().map(|(id, _)| id).collect();
    while let Some(id) = work.pop() {
        let Some(node) = edit.node(id).cloned() else {
            continue;
        };
        let mut parts = Parts::new(edit, &node);
        match node.op.parts(&mut parts) {
            Err(e) => return Err(edit.node_error(Stage::Pass, &node, e)),
            Ok(None) => {}
            // The parts may have parts.
            Ok(Some(results)) => work.extend(parts.finish(id, &results)),
        }
    }
    Ok(())
}
