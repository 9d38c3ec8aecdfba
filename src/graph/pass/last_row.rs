//! Generation needs the logits after the last token only: the product that makes the output `logits` gets the last row.

use super::pattern::{input, shape, transposed};
use crate::error::Result;
use crate::graph::Edit;
use crate::graph::op::matmul::MatMul;
use crate::graph::op::matmul_e0m::MatMulE0m;
use crate::graph::op::slice::Slice;

pub(super) fn run(edit: &mut Edit<'_>) -> Result<()> {
    let logits = edit.output("logits");
    // A model that works sequence first exchanges batch and sequence at the end.
    let exchanged = logits.and_then(|v| transposed(edit, v, &[1, 0, 2]));
    let axis = if exchanged.is_some() { 0 } else { 1 };
    let found = exchanged
        .or(logits)
        .and_then(|v| edit.producer(v))
        .filter(|(_, n)| {
            (n.op.downcast::<MatMul>().is_some() || n.op.downcast::<MatMulE0m>().is_some())
                && input(n, 0)
                    .and_then(|x| shape(edit, x))
                    .is_some_and(|s| s.len() == 3)
        });
    let Some((id, node)) = found else {
        log::debug!("all rows of the logits are computed: no product of rank 3 makes an output \"logits\"");
        return Ok(());
    };
    let (x, op, mut inputs) = (input(node, 0), node.op.clone(), node.inputs.clone());
    let (name, origin) = (node.name.clone(), node.origin.clone());
    if !edit.begin("only the last row of the logits") {
        return Ok(());
    }
    let mut list = |what: &str, v: i64| edit.add_int(&format!("{name}/last_row/{what}"), v).map(Some);
    let (start, end, axes) = (list("start", -1)?, list("end", i64::MAX)?, list("axes", axis)?);
    let row = edit.add_value(&format!("{name}/last_row"), None);
    edit.add_node(
        &format!("{name}/last_row"),
        origin.clone(),
        Box::new(Slice),
        vec![x, start, end, axes],
        vec![row],
    );
    if let Some(first) = inputs.first_mut() {
        *first = Some(row);
    }
    edit.replace_node(id, op, inputs, origin);
    Ok(())
}
