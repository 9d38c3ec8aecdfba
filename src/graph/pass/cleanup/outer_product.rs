//! Replaces a matmul with an inner size of 1 by a multiplication with broadcasting,
//! `[.., m, 1] * [.., 1, n]`.
//!
//! Exporters write the angles of rotary embeddings this way: frequencies times positions. An
//! elementwise multiplication keeps the precision of positions, while `f16` matmuls do not.

use crate::error::Result;
use crate::graph::Edit;
use crate::graph::op::matmul::MatMul;
use crate::graph::op::pointwise::{Binary, Pointwise};
use crate::graph::pass::Pass;
use crate::graph::pass::pattern::{input, shape};

pub const OUTER_PRODUCT: Pass = Pass {
    name: "outer_product",
    does: "replaces a matmul with an inner size of 1 by a multiplication",
    refuses: "",
    run,
};

fn run(edit: &mut Edit<'_>) -> Result<()> {
    let mut found = Vec::new();
    for (id, node) in edit.nodes() {
        let (Some(MatMul { trans_b: false }), Some(a), Some(b)) =
            (node.op.downcast::<MatMul>(), input(node, 0), input(node, 1))
        else {
            continue;
        };
        let inner = |v, from_last: usize| {
            let sizes = shape(edit, v)?;
            sizes.get(sizes.len().checked_sub(from_last)?)
        };
        if let (Some(k), Some(k2), Some(_)) = (inner(a, 1), inner(b, 2), inner(a, 2))
            && k.is(1)
            && k2.is(1)
        {
            found.push((id, a, b, node.name.clone(), node.origin.clone()));
        }
    }
    for (id, a, b, name, origin) in found {
        if edit.begin(&format!("matmul \"{name}\" has an inner size of 1")) {
            let op = Pointwise::binary("Mul", Binary::Mul);
            edit.replace_node(id, Box::new(op), vec![Some(a), Some(b)], origin);
        }
    }
    Ok(())
}
