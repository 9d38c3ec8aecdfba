//! The rotary embedding of exporters: `x * cos + concat(-x[h..], x[..h]) * sin` over `[b, s, heads, d]` with angles
//! `[b, s, 1, d]`, operands in either order.

use super::pattern::{binary, input, origin, producer, shape, unary};
use crate::error::Result;
use crate::graph::op::concat::Concat;
use crate::graph::op::pointwise::{Binary, Unary};
use crate::graph::op::rotary::Rotary;
use crate::graph::op::slice::Slice;
use crate::graph::{Edit, Graph, ValueId};

pub(super) fn run(edit: &mut Edit<'_>) -> Result<()> {
    let ids: Vec<_> = edit.nodes().map(|(id, n)| (id, n.outputs.clone())).collect();
    for (id, outputs) in ids {
        let [y] = outputs.as_slice() else { continue };
        let Some((inputs, names)) = find(edit, *y) else {
            continue;
        };
        let name = edit.value(*y).name.clone();
        if edit.begin(&format!("rotary embedding at \"{name}\"")) {
            edit.replace_node(
                id,
                Box::new(Rotary),
                inputs.into_iter().map(Some).collect(),
                names,
            );
        }
    }
    Ok(())
}

fn find(g: &Graph, y: ValueId) -> Option<([ValueId; 3], Vec<String>)> {
    let [a, b] = binary(g, y, Binary::Add)?;
    let (p, q) = (binary(g, a, Binary::Mul)?, binary(g, b, Binary::Mul)?);
    for (plain, turned) in [(p, q), (q, p)] {
        for (half, sin) in [(turned[0], turned[1]), (turned[1], turned[0])] {
            let Some((x, mut steps)) = rotate_half(g, half) else {
                continue;
            };
            let cos = match plain {
                [v, c] | [c, v] if v == x => c,
                _ => continue,
            };
            let fits = match (shape(g, x)?, shape(g, cos)?, shape(g, sin)?) {
                ([b, s, _, d], [cb, cs, one, cd], angles) => {
                    b == cb && s == cs && one.is(1) && d == cd && angles == shape(g, cos)?
                }
                _ => false,
            };
            if !fits {
                log::debug!(
                    "no rotary embedding at \"{}\": angles are not [b, s, 1, d]",
                    g.value(y).name
                );
                return None;
            }
            steps.extend([y, a, b]);
            return Some(([x, cos, sin], origin(g, &steps)));
        }
    }
    None
}

/// `x` and the values computed on the way, where `v` is `concat(-x[h..], x[..h])` along the last axis.
fn rotate_half(g: &Graph, v: ValueId) -> Option<(ValueId, Vec<ValueId>)> {
    let (_, node, concat) = producer::<Concat>(g, v)?;
    let rank = shape(g, v)?.len();
    let last = i64::try_from(rank).ok()? - 1;
    if node.inputs.len() != 2 || !(concat.axis == -1 || concat.axis == last) {
        return None;
    }
    let (negated, low) = (input(node, 0)?, input(node, 1)?);
    let high = unary(g, negated, Unary::Neg)?;
    let half = shape(g, low)?.last()?.as_const()?;
    let part = |v: ValueId| -> Option<(ValueId, i64)> {
        let (_, node, _) = producer::<Slice>(g, v)?;
        let list = |i| g.value(input(node, i)?).fact.as_ref()?.as_const()?.to_i64().ok();
        let axes = list(3)?;
        let unit = match input(node, 4) {
            Some(_) => list(4)? == [1],
            None => true,
        };
        (unit && (axes == [-1] || axes == [last])).then_some(())?;
        Some((input(node, 0)?, *list(1)?.first()?))
    };
    let ((x, from_low), (x2, from_high)) = (part(low)?, part(high)?);
    let size = shape(g, x)?.last()?.as_const()?;
    (x == x2 && from_low == 0 && from_high == half && size == 2 * half && shape(g, high)?.last()?.is(half))
        .then(|| (x, vec![v, negated, high, low]))
}
