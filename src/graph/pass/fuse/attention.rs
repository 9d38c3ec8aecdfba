//! Fuses scores, mask, softmax and weighted sum into one attention operator that reads keys and
//! values sequence first.
//!
//! The pattern is `Transpose(softmax(scale * q k^T + mask) v)` with `q`, `k`, `v` transposed from
//! `[b, s, heads, d]`. Variants:
//!
//! * Grouped heads: either q is reshaped to `[b, kv_heads, group, s, d]` and k, v get an axis of
//!   size 1, or k and v are repeated for each query head of their group.
//! * q, k and v are reshaped to `[b * heads, s, d]`; the scores are reshaped back to
//!   `[b, heads, s, t]` where the mask is added.
//! * A single sequence may be laid out as `[s, 1, heads, d]`.
//! * Scores may be soft-capped by `c tanh(scores / c)` before the mask.
//! * The scale may be applied to q and k. There may be two masks; one is then a position bias.

use crate::error::Result;
use crate::graph::op::attention::{Attention, mask_fits, supports_head_size};
use crate::graph::op::expand::Expand;
use crate::graph::op::matmul::MatMul;
use crate::graph::op::pointwise::{Binary, Pointwise, Unary};
use crate::graph::op::softmax::Softmax;
use crate::graph::op::transpose::Transpose;
use crate::graph::pass::Pass;
use crate::graph::pass::pattern::{
    binary, input, only_reader, origin, producer, reshaped, scalar, shape, transposed, unary, with_scalar,
};
use crate::graph::{Edit, Graph, NodeId, ValueId};
use crate::num;
use crate::shape::Dim;

pub const ATTENTION: Pass = Pass {
    name: "attention",
    does: "fuses scores, soft cap, mask, softmax and weighted sum into `Attention`",
    refuses: "softmax not over keys; heads not from `[b, s, heads, d]`; odd head sizes",
    run,
};

const SWAP: [usize; 4] = [0, 2, 1, 3];

fn run(edit: &mut Edit<'_>) -> Result<()> {
    let consumers = edit.consumers();
    let ids: Vec<_> = edit.nodes().map(|(id, _)| id).collect();
    for id in ids {
        let Some(found) = find(edit, &consumers, id) else {
            continue;
        };
        let name = edit.value(found.out).name.clone();
        if !edit.begin(&format!("attention at \"{name}\"")) {
            continue;
        }
        let op = Box::new(found.op);
        let mask = match found.masks.as_slice() {
            [first, second] => {
                let mask = edit.add_value(&format!("{name}/mask"), None);
                edit.add_node(
                    &format!("{name}/mask"),
                    found.origin.clone(),
                    Box::new(Pointwise::binary("Add", Binary::Add)),
                    vec![Some(*first), Some(*second)],
                    vec![mask],
                );
                Some(mask)
            }
            list => list.first().copied(),
        };
        let mut inputs: Vec<Option<ValueId>> = found.rows.into_iter().chain(mask).map(Some).collect();
        if !found.sequence_first {
            edit.replace_node(found.node, op, inputs, found.origin);
            continue;
        }
        // With a batch of 1, swapping batch and sequence moves no data.
        for (input, part) in inputs.iter_mut().zip(["queries", "keys", "values"]) {
            let part = format!("{name}/{part}");
            let v = edit.add_value(&part, None);
            let operand = vec![*input];
            edit.add_node(
                &part,
                found.origin.clone(),
                Box::new(exchange()),
                operand,
                vec![v],
            );
            *input = Some(v);
        }
        let y = edit.add_value(&format!("{name}/attention"), None);
        edit.add_node(
            &format!("{name}/attention"),
            found.origin.clone(),
            op,
            inputs,
            vec![y],
        );
        edit.replace_node(found.node, Box::new(exchange()), vec![Some(y)], found.origin);
    }
    Ok(())
}

fn exchange() -> Transpose {
    Transpose {
        perm: Some(vec![1, 0, 2, 3]),
    }
}

struct AttentionMatch {
    node: NodeId,
    out: ValueId,
    /// Queries, keys and values.
    rows: [ValueId; 3],
    /// What is added to the scores: zero, one or two values.
    masks: Vec<ValueId>,
    /// Rows and result are `[s, 1, heads, d]`.
    sequence_first: bool,
    op: Attention,
    origin: Vec<String>,
}

/// Maximum number of scales in a row that [`scaled`] multiplies.
const MAX_SCALES: usize = 16;

/// `v` without multiplications by constant scalars, and the product of those scalars.
fn scaled(g: &Graph, mut v: ValueId) -> (ValueId, f32) {
    let mut factors = Vec::new();
    while factors.len() < MAX_SCALES {
        let multiplied = binary(g, v, Binary::Mul).and_then(|pair| with_scalar(g, pair));
        let divided = || {
            let [x, divisor] = binary(g, v, Binary::Div)?;
            Some((x, 1.0 / scalar(g, divisor).filter(|d| *d != 0.0)?))
        };
        let Some((x, factor)) = multiplied.or_else(divided) else {
            break;
        };
        v = x;
        factors.push(factor);
    }
    (v, factors.iter().rev().product())
}

/// For a soft-capped `v`, `c tanh(..)`: the operand of `tanh` and the cap `c`.
fn bent(g: &Graph, v: ValueId) -> Option<(ValueId, f32)> {
    let (bent, cap) = with_scalar(g, binary(g, v, Binary::Mul)?)?;
    (cap > 0.0).then_some((unary(g, bent, Unary::Tanh)?, cap))
}

/// Keys or values whose heads `v` repeats on axis `at` for the query heads of each group, and the
/// scale applied on the way. The pattern is an axis of size 1 after the heads, its expansion, and a
/// reshape that merges the two.
fn single(g: &Graph, v: ValueId, at: usize) -> Option<(ValueId, f32)> {
    let (wide, factor) = scaled(g, reshaped(g, v)?);
    let (_, expand, _) = producer::<Expand>(g, wide)?;
    let one = input(expand, 0)?;
    let x = reshaped(g, one)?;
    let (sizes, expanded) = (shape(g, x)?, shape(g, wide)?);
    if sizes.len() != 4 || expanded.len() != 5 {
        return None;
    }
    let mut separate = sizes.to_vec();
    separate.insert(at + 1, 1.into());
    let mut joined = sizes.to_vec();
    joined[at] = sizes[at].mul(&expanded[at + 1]).ok()?;
    let mut rest = expanded.to_vec();
    rest[at + 1] = 1.into();
    (shape(g, one)? == separate && rest == separate && shape(g, v)? == joined).then_some((x, factor))
}

/// Rows found before a transpose that moves heads first.
#[derive(Clone, Copy)]
struct HeadRows {
    value: ValueId,
    /// The rows are `[s, b, heads, d]`, with a batch of 1, instead of `[b, s, heads, d]`.
    sequence_first: bool,
}

/// The rows whose transpose to `[b, heads, s, d]` is `v`. For grouped heads, `v` is then reshaped
/// to `[b, kv_heads, group, s, d]` (heads of one group adjacent, a group of 1 for keys and values),
/// or to `[b * heads, s, d]`.
fn rows(g: &Graph, v: ValueId) -> Option<HeadRows> {
    let grouped = shape(g, v)?;
    let mut plain = v;
    if let [b, kv, group, s, d] = grouped {
        plain = reshaped(g, v)?;
        let [b4, h, s4, d4] = shape(g, plain)? else {
            return None;
        };
        let fits = b == b4 && s == s4 && d == d4 && kv.mul(group).is_ok_and(|all| all == *h);
        fits.then_some(())?;
    } else if let [all, s, d] = grouped {
        // Batch and heads may be merged before the transpose.
        if let Some(value) = transposed(g, v, &[1, 0, 2]).and_then(|joined| reshaped(g, joined)) {
            let [s4, b, h, d4] = shape(g, value)? else {
                return None;
            };
            return (b.is(1) && s == s4 && d == d4 && h == all).then_some(HeadRows {
                value,
                sequence_first: true,
            });
        }
        plain = reshaped(g, v)?;
        let [b, h, s4, d4] = shape(g, plain)? else {
            return None;
        };
        let fits = s == s4 && d == d4 && b.mul(h).is_ok_and(|n| n == *all);
        fits.then_some(())?;
    }
    let batch_first = transposed(g, plain, &SWAP).map(|value| HeadRows {
        value,
        sequence_first: false,
    });
    let sequence_first = || {
        let value = transposed(g, plain, &[1, 2, 0, 3])?;
        shape(g, plain)?.first()?.is(1).then_some(HeadRows {
            value,
            sequence_first: true,
        })
    };
    batch_first.or_else(sequence_first)
}

/// The rows of keys or values of which `v` may repeat heads, and the scale applied on the way.
fn cached(g: &Graph, v: ValueId) -> Option<(HeadRows, f32)> {
    let (heads, first) = single(g, v, 1).unwrap_or((v, 1.0));
    let found = rows(g, heads)?;
    let (value, second) = single(g, found.value, 2).unwrap_or((found.value, 1.0));
    Some((HeadRows { value, ..found }, first * second))
}

impl HeadRows {
    /// Sizes as `[b, s, heads, d]`.
    fn sizes(self, g: &Graph) -> Option<[Dim; 4]> {
        let mut sizes: [Dim; 4] = shape(g, self.value)?.to_vec().try_into().ok()?;
        if self.sequence_first {
            sizes.swap(0, 1);
        }
        Some(sizes)
    }
}

/// A matmul of softmax results and values.
struct WeightedSum {
    product: ValueId,
    weights: ValueId,
    values: ValueId,
    /// The operand of the softmax.
    scores: ValueId,
    /// The softmax, if it sees scores with an axis for the heads that is merged with the batch
    /// afterwards.
    wide: Option<ValueId>,
    rank: usize,
}

fn refuse<T>(g: &Graph, product: ValueId, why: &str) -> Option<T> {
    log::debug!("no attention at \"{}\": {why}", g.value(product).name);
    None
}

fn weighted_sum(g: &Graph, id: NodeId) -> Option<WeightedSum> {
    let node = g.node(id)?;
    let MatMul { trans_b: false } = node.op.downcast::<MatMul>()? else {
        return None;
    };
    let [product] = *node.outputs.as_slice() else {
        return None;
    };
    let weights = input(node, 0)?;
    let rank = shape(g, weights)?.len();
    let last = |v: ValueId| shape(g, v).and_then(<[_]>::last);
    let wide = reshaped(g, weights)
        .filter(|v| rank == 3 && producer::<Softmax>(g, *v).is_some() && last(*v) == last(weights));
    let (_, softmax_node, softmax) = producer::<Softmax>(g, wide.unwrap_or(weights))?;
    g.value(weights).fact.as_ref()?.dtype.on_devices().then_some(())?;
    let scores = input(softmax_node, 0)?;
    if softmax.axis != -1 && softmax.axis + 1 != num::signed(shape(g, scores)?.len()) {
        return refuse(g, product, "its softmax is not over the keys");
    }
    Some(WeightedSum {
        product,
        weights,
        values: input(node, 1)?,
        scores,
        wide,
        rank,
    })
}

/// A matmul of queries and keys, with a scale and a soft cap.
struct Scores {
    queries: ValueId,
    keys: ValueId,
    op: Attention,
}

/// The matmul whose result, scaled and soft-capped, is `v`.
fn scores(g: &Graph, v: ValueId) -> Option<Scores> {
    let (inner, cap) = bent(g, v).map_or((v, None), |(inner, cap)| (inner, Some(cap)));
    let (product, factor) = scaled(g, inner);
    let (_, n, MatMul { trans_b: true }) = producer::<MatMul>(g, product)? else {
        return None;
    };
    let ((queries, by_q), (keys, by_k)) = (scaled(g, input(n, 0)?), scaled(g, input(n, 1)?));
    let scale = factor * cap.unwrap_or(1.0) * by_q * by_k;
    let op = Attention {
        softcap: cap.unwrap_or(0.0),
        ..Attention::scaled(scale)
    };
    Some(Scores { queries, keys, op })
}

/// Scores with the masks added to them, and the result of the addition.
fn masked_scores(g: &Graph, sum: &WeightedSum) -> Option<(Scores, Vec<ValueId>, ValueId)> {
    // The mask is added where the scores have an axis for the heads.
    let flat = sum.rank == 3;
    let inside = reshaped(g, sum.scores).filter(|_| flat);
    let through = |v: ValueId| scores(g, v).or_else(|| scores(g, reshaped(g, v).filter(|_| flat)?));
    // A position bias such as ALiBi may be added before the mask.
    let added = |v: ValueId| {
        let [a, b] = binary(g, v, Binary::Add)?;
        [(a, b), (b, a)].into_iter().find_map(|(sum, last)| {
            let once = through(sum).map(|found| (found, vec![last], v));
            let twice = || {
                let [c, d] = binary(g, sum, Binary::Add)?;
                let mut ways = [(c, d), (d, c)].into_iter();
                ways.find_map(|(inner, first)| Some((through(inner)?, vec![first, last], v)))
            };
            once.or_else(twice)
        })
    };
    let plain = through(sum.scores).map(|found| (found, Vec::new(), sum.scores));
    plain.or_else(|| added(sum.scores)).or_else(|| added(inside?))
}

/// The node that transposes the sum back to rows, its operand, and its result.
fn rows_again(
    g: &Graph,
    consumers: &[Vec<NodeId>],
    sum: &WeightedSum,
    sequence_first: bool,
) -> Option<(NodeId, ValueId, ValueId)> {
    let mut out = sum.product;
    if sum.rank != 4 {
        out = *g.node(only_reader(g, consumers, out)?)?.outputs.first()?;
        reshaped(g, out)?;
    }
    let back = only_reader(g, consumers, out)?;
    let last = *g.node(back)?.outputs.first()?;
    let order: &[usize] = if sequence_first { &[2, 0, 1, 3] } else { &SWAP };
    transposed(g, last, order)?;
    Some((back, out, last))
}

/// Whether the heads of q are grouped like those of k, and k and v do not repeat: `[b, kv_heads, 1,
/// t, d]`.
fn are_grouped(g: &Graph, [q, k, v]: [ValueId; 3], kv_heads: &Dim) -> bool {
    let grouped = |v: ValueId| shape(g, v).is_some_and(|s| s.len() == 5 && s[1] == *kv_heads);
    let single = |v: ValueId| shape(g, v).is_some_and(|s| s[2].is(1));
    [q, k, v].into_iter().all(grouped) && single(k) && single(v)
}

/// Whether the masks fit the scores of these queries and keys. A mask over queries and keys applies
/// to all heads, whatever their grouping.
fn masks_fit(g: &Graph, masks: &[ValueId], masked: ValueId, [q, k]: [&[Dim; 4]; 2]) -> Option<bool> {
    let scores = [k[0].clone(), q[2].clone(), q[1].clone(), k[1].clone()];
    let whole = shape(g, masked)? == scores;
    let masked = if whole { &scores[..] } else { &scores[2..] };
    let fits = |m: &ValueId| shape(g, *m).is_some_and(|m| mask_fits(m, masked));
    Some(masks.iter().all(fits))
}

fn find(g: &Graph, consumers: &[Vec<NodeId>], id: NodeId) -> Option<AttentionMatch> {
    let sum = weighted_sum(g, id)?;
    let refuse = |why: &str| refuse(g, sum.product, why);
    let Some((
        Scores {
            queries,
            keys,
            mut op,
        },
        masks,
        masked,
    )) = masked_scores(g, &sum)
    else {
        return refuse("its scores are not a scaled matmul, or the value added to them is not a mask");
    };
    let operands = [queries, keys, sum.values];
    let (Some(q), Some((k, by_k)), Some((v, by_v))) =
        (rows(g, queries), cached(g, keys), cached(g, sum.values))
    else {
        return refuse("its operands are not transposed from [b, s, heads, d]");
    };
    op.scale *= by_k;
    if by_v != 1.0 {
        return refuse("its values are scaled after the cache");
    }
    let sequence_first = q.sequence_first;
    if [k, v].iter().any(|r| r.sequence_first != sequence_first) {
        return refuse("some of its operands are [s, b, heads, d]");
    }
    let (back, out, last) = rows_again(g, consumers, &sum, sequence_first)?;
    let result = HeadRows {
        value: last,
        sequence_first,
    };
    let (q_sizes, k_sizes, v_sizes) = (q.sizes(g)?, k.sizes(g)?, v.sizes(g)?);
    let ([b, _, heads, d], [kb, _, kv_heads, kd]) = (&q_sizes, &k_sizes);
    if sum.rank == 5 && !are_grouped(g, operands, kv_heads) {
        return refuse("its heads are not grouped as [b, kv_heads, group, s, d]");
    }
    let masks_fit = masks_fit(g, &masks, masked, [&q_sizes, &k_sizes])?;
    if v_sizes[3].as_const().is_none_or(|d| !supports_head_size(d)) {
        return refuse("its head size is odd or too large for the kernel");
    }
    let fits = (kb, kd) == (b, d) && k_sizes == v_sizes && result.sizes(g)? == q_sizes;
    if !fits || heads.exact_div(kv_heads).is_none() || !masks_fit {
        return refuse("its shapes of heads or mask do not match");
    }
    let mut steps = vec![sum.product, sum.weights, sum.scores];
    steps.extend(sum.wide);
    steps.extend([masked, out, last]);
    Some(AttentionMatch {
        node: back,
        out: last,
        rows: [q.value, k.value, v.value],
        masks,
        sequence_first,
        op,
        origin: origin(g, &steps),
    })
}
