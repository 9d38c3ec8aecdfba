//! `MatMul(a, Transpose(b))` with the last two axes swapped becomes a product that reads `b` as it lies.

use super::pattern::{input, shape, transposed};
use crate::error::Result;
use crate::graph::Edit;
use crate::graph::op::matmul::MatMul;

pub(super) fn run(edit: &mut Edit<'_>) -> Result<()> {
    let mut found = Vec::new();
    for (id, node) in edit.nodes() {
        let Some(MatMul { trans_b: false }) = node.op.downcast::<MatMul>() else {
            continue;
        };
        let (Some(a), Some(b)) = (input(node, 0), input(node, 1)) else {
            continue;
        };
        let rank = shape(edit, b).map_or(0, <[_]>::len);
        let mut perm: Vec<usize> = (0..rank).collect();
        if rank < 2 {
            continue;
        }
        perm.swap(rank - 1, rank - 2);
        if let Some(source) = transposed(edit, b, &perm) {
            found.push((id, a, source, node.name.clone(), node.origin.clone()));
        }
    }
    for (id, a, b, name, origin) in found {
        if edit.begin(&format!("product \"{name}\" reads its operand transposed")) {
            edit.replace_node(
                id,
                Box::new(MatMul { trans_b: true }),
                vec![Some(a), Some(b)],
                origin,
            );
        }
    }
    Ok(())
}
