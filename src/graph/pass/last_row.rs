//! Generation needs the logits after the last token only: the product that makes the output `logits`, by way of elementwise operators
//! perhaps, gets the last row.

use super::pattern::{input, only_reader, scalar, shape, transposed};
use crate::error::Result;
use crate::graph::op::matmul::MatMul;
use crate::graph::op::matmul_e0m::MatMulE0m;
use crate::graph::op::pointwise::Pointwise;
use crate::graph::op::slice::Slice;
use crate::graph::{Edit, Graph, Node, NodeId, ValueId};

pub(super) fn run(edit: &mut Edit<'_>) -> Result<()> {
    let logits = edit.output("logits");
    // A model that works sequence first exchanges batch and sequence at the end.
    let exchanged = logits.and_then(|v| transposed(edit, v, &[1, 0, 2]));
    let axis = if exchanged.is_some() { 0 } else { 1 };
    let consumers = edit.consumers();
    let found = exchanged
        .or(logits)
        .and_then(|v| product(edit, &consumers, v))
        .filter(|(_, n)| {
            input(n, 0)
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

/// The product from which `v` follows by elementwise operators of it and of constant numbers alone.
fn product<'g>(g: &'g Graph, consumers: &[Vec<NodeId>], mut v: ValueId) -> Option<(NodeId, &'g Node)> {
    loop {
        let (id, node) = g.producer(v)?;
        if node.op.downcast::<MatMul>().is_some() || node.op.downcast::<MatMulE0m>().is_some() {
            return Some((id, node));
        }
        node.op.downcast::<Pointwise>()?;
        let mut rows = node.inputs.iter().flatten().filter(|x| scalar(g, **x).is_none());
        let (Some(x), None) = (rows.next(), rows.next()) else {
            return None;
        };
        (only_reader(g, consumers, *x)? == id).then_some(())?;
        v = *x;
    }
}
