//! Makes `MatMul(a, Transpose(b))` read `b` without transposing its last two axes. A transpose that
//! only swaps them is removed; one that moves the last axis up by one only moves the other axes, so
//! rows stay contiguous.

use crate::error::Result;
use crate::graph::op::matmul::MatMul;
use crate::graph::op::transpose::Transpose;
use crate::graph::pass::Pass;
use crate::graph::pass::pattern::{all, input, producer, shape};
use crate::graph::{Edit, Graph, NodeId, ValueId};
use crate::num;

pub const TRANS_B: Pass = Pass {
    name: "trans_b",
    does: "makes a matmul read its transposed operand as stored",
    refuses: "",
    run,
};

fn run(edit: &mut Edit<'_>) -> Result<()> {
    for found in all(edit, find) {
        let Some(node) = edit.node(found.node) else {
            continue;
        };
        let (name, origin) = (node.name.clone(), node.origin.clone());
        if !edit.begin(&format!("matmul \"{name}\" reads its operand transposed")) {
            return Ok(());
        }
        let mut b = found.source;
        if !found.perm.iter().enumerate().all(|(i, p)| i == *p) {
            let rows = format!("{name}/rows");
            b = edit.add_value(&rows, None);
            let transpose = Transpose {
                perm: Some(found.perm.iter().copied().map(num::signed).collect()),
            };
            edit.add_node(
                &rows,
                origin.clone(),
                Box::new(transpose),
                vec![Some(found.source)],
                vec![b],
            );
        }
        let op = Box::new(MatMul { trans_b: true });
        edit.replace_node(found.node, op, vec![Some(found.a), Some(b)], origin);
    }
    Ok(())
}

struct TransposeMatch {
    node: NodeId,
    a: ValueId,
    source: ValueId,
    /// Permutation of the source; the last axis stays.
    perm: Vec<usize>,
}

fn find(g: &Graph, id: NodeId) -> Option<TransposeMatch> {
    let node = g.node(id)?;
    let MatMul { trans_b: false } = node.op.downcast::<MatMul>()? else {
        return None;
    };
    let b = input(node, 1)?;
    let rank = shape(g, b)?.len();
    let (_, transpose, op) = producer::<Transpose>(g, b)?;
    let mut perm = op.axes(rank).ok()?;
    let last = rank.checked_sub(1)?;
    perm.swap(last, last.checked_sub(1)?);
    (perm.last() == Some(&last)).then_some(TransposeMatch {
        node: id,
        a: input(node, 0)?,
        source: input(transpose, 0)?,
        perm,
    })
}
