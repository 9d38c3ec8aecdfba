//! Scores, mask, softmax and weighted sum become one operator that reads keys and values sequence first.
//!
//! The form: `Transpose(softmax(scale * q k^T + mask) v)` with `q`, `k`, `v` transposed from `[b, s, heads, d]`; with grouped
//! heads q is reshaped to `[b, kv_heads, group, s, d]` and k, v have a size-1 axis put in.

use super::pattern::{
    binary, input, only_reader, origin, producer, reshaped, shape, transposed, with_scalar,
};
use crate::error::Result;
use crate::graph::op::attention::Attention;
use crate::graph::op::matmul::MatMul;
use crate::graph::op::pointwise::Binary;
use crate::graph::op::softmax::Softmax;
use crate::graph::{Edit, Graph, NodeId, ValueId};

const SWAP: [usize; 4] = [0, 2, 1, 3];

pub(super) fn run(edit: &mut Edit<'_>) -> Result<()> {
    let consumers = edit.consumers();
    let ids: Vec<_> = edit.nodes().map(|(id, _)| id).collect();
    for id in ids {
        let Some(found) = find(edit, &consumers, id) else {
            continue;
        };
        let name = edit.value(found.out).name.clone();
        if edit.begin(&format!("attention at \"{name}\"")) {
            edit.replace_node(
                found.node,
                Box::new(Attention { scale: found.scale }),
                found.inputs,
                found.origin,
            );
        }
    }
    Ok(())
}

struct Found {
    node: NodeId,
    out: ValueId,
    inputs: Vec<Option<ValueId>>,
    scale: f32,
    origin: Vec<String>,
}

/// `[b, s, heads, d]` behind `v`, which is that transposed to `[b, heads, s, d]`, and for grouped heads reshaped to
/// `[b, kv_heads, group, s, d]`: heads of one group next to each other, a group of 1 for keys and values.
fn rows(g: &Graph, v: ValueId) -> Option<ValueId> {
    let grouped = shape(g, v)?;
    if grouped.len() != 5 {
        return transposed(g, v, &SWAP);
    }
    let plain = reshaped(g, v)?;
    let ([b, kv, group, s, d], [b4, h, s4, d4]) = (grouped, shape(g, plain)?) else {
        return None;
    };
    let fits = b == b4 && s == s4 && d == d4 && kv.mul(group).is_ok_and(|all| all == *h);
    fits.then(|| transposed(g, plain, &SWAP))?
}

fn find(g: &Graph, consumers: &[Vec<NodeId>], id: NodeId) -> Option<Found> {
    // From the second product backwards.
    let node = g.node(id)?;
    let MatMul { trans_b: false } = node.op.downcast::<MatMul>()? else {
        return None;
    };
    let [product] = node.outputs.as_slice() else {
        return None;
    };
    let weights = input(node, 0)?;
    let (_, softmax_node, softmax) = producer::<Softmax>(g, weights)?;
    let rank = shape(g, weights)?.len();
    let refuse = |why: &str| {
        log::debug!("no attention at \"{}\": {why}", g.value(*product).name);
        None
    };
    if softmax.axis != -1 && softmax.axis + 1 != i64::try_from(rank).ok()? {
        return refuse("its softmax is not over the keys");
    }
    let scores = input(softmax_node, 0)?;
    let mut steps = vec![*product, weights, scores];
    let is_scores = |v: ValueId| match producer::<MatMul>(g, v) {
        Some((_, n, MatMul { trans_b: true })) => Some((input(n, 0)?, input(n, 1)?, 1.0)),
        _ => {
            let (inner, scale) = with_scalar(g, binary(g, v, Binary::Mul)?)?;
            let (_, n, MatMul { trans_b: true }) = producer::<MatMul>(g, inner)? else {
                return None;
            };
            Some((input(n, 0)?, input(n, 1)?, scale))
        }
    };
    let ((q, k, scale), mask) = match is_scores(scores) {
        Some(found) => (found, None),
        None => {
            let [a, b] = binary(g, scores, Binary::Add)?;
            steps.extend([a, b]);
            match (is_scores(a), is_scores(b)) {
                (Some(found), _) => (found, Some(b)),
                (_, Some(found)) => (found, Some(a)),
                _ => return refuse("its scores are not a scaled product"),
            }
        }
    };
    let (q5, k5, v5) = (q, k, input(node, 1)?);
    let (Some(q), Some(k), Some(v)) = (rows(g, q5), rows(g, k5), rows(g, v5)) else {
        return refuse("its operands are not transposed from [b, s, heads, d]");
    };
    // Forwards to the transpose back to rows.
    let mut out = *product;
    if rank == 5 {
        out = *g.node(only_reader(g, consumers, out)?)?.outputs.first()?;
        reshaped(g, out)?;
    }
    let back = only_reader(g, consumers, out)?;
    let last = *g.node(back)?.outputs.first()?;
    transposed(g, last, &SWAP)?;
    let ([b, s, h, d], [_, t, kvh, _]) = (shape(g, q)?, shape(g, k)?) else {
        return None;
    };
    // Heads of q must be grouped as k's are, and k and v must not repeat: [b, kv_heads, 1, t, d].
    if rank == 5 {
        let grouped = |v: ValueId| shape(g, v).is_some_and(|s| s.len() == 5 && s[1] == *kvh);
        let single = |v: ValueId| shape(g, v).is_some_and(|s| s[2].is(1));
        if ![q5, k5, v5].into_iter().all(grouped) || !single(k5) || !single(v5) {
            return refuse("its heads are not grouped as [b, kv_heads, group, s, d]");
        }
    }
    let fits = shape(g, last)? == [b.clone(), s.clone(), h.clone(), d.clone()]
        && shape(g, k)? == shape(g, v)?
        && h.exact_div(kvh).is_some();
    let mask_fits = mask.is_none_or(|m| {
        shape(g, m).is_some_and(|m| {
            m.len() >= 2 && m.ends_with(&[s.clone(), t.clone()]) && m[..m.len() - 2].iter().all(|d| d.is(1))
        })
    });
    if !fits || !mask_fits {
        return refuse("shapes of heads or mask do not fit");
    }
    steps.extend([out, last]);
    let mut inputs = vec![Some(q), Some(k), Some(v)];
    inputs.extend(mask.map(Some));
    Some(Found {
        node: back,
        out: last,
        inputs,
        scale,
        origin: origin(g, &steps),
    })
}
