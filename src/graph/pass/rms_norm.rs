//! The decomposed root-mean-square normalisation of exporters: `x * (1 / sqrt(mean(x^2, -1) + e)) * w` and its variants with a
//! division, with `x * x`, and with operands in either order.

use super::pattern::{binary, input, origin, producer, scalar, shape, unary, with_scalar};
use crate::error::Result;
use crate::graph::op::pointwise::{Binary, Unary};
use crate::graph::op::reduce::{Kind, Reduce};
use crate::graph::op::rms_norm::RmsNorm;
use crate::graph::{Edit, Graph, ValueId};

pub(super) fn run(edit: &mut Edit<'_>) -> Result<()> {
    let ids: Vec<_> = edit.nodes().map(|(id, n)| (id, n.outputs.clone())).collect();
    for (id, outputs) in ids {
        let [y] = outputs.as_slice() else { continue };
        let Some(found) = find(edit, *y) else { continue };
        let name = edit.value(*y).name.clone();
        if edit.begin(&format!("root-mean-square normalisation at \"{name}\"")) {
            edit.replace_node(
                id,
                Box::new(RmsNorm {
                    epsilon: found.epsilon,
                }),
                vec![Some(found.x), Some(found.scale)],
                found.origin,
            );
        }
    }
    Ok(())
}

struct Found {
    x: ValueId,
    scale: ValueId,
    epsilon: f32,
    origin: Vec<String>,
}

fn find(g: &Graph, y: ValueId) -> Option<Found> {
    let [a, b] = binary(g, y, Binary::Mul)?;
    let is_scale = |v: ValueId| {
        let fact = g.value(v).fact.as_ref()?;
        (fact.as_const().is_some() && fact.shape.rank() == 1).then_some(())
    };
    let (normed, scale) = if is_scale(b).is_some() { (a, b) } else { (b, a) };
    is_scale(scale)?;
    let (x, root, mut steps) = if let Some([x, root]) = binary(g, normed, Binary::Div) {
        (x, root, vec![y, normed])
    } else {
        let [p, q] = binary(g, normed, Binary::Mul)?;
        let inverse = |v: ValueId| {
            unary(g, v, Unary::Reciprocal).or_else(|| {
                binary(g, v, Binary::Div)
                    .filter(|[one, _]| scalar(g, *one) == Some(1.0))
                    .map(|[_, r]| r)
            })
        };
        match (inverse(p), inverse(q)) {
            (_, Some(root)) => (p, root, vec![y, normed, q]),
            (Some(root), None) => (q, root, vec![y, normed, p]),
            _ => return None,
        }
    };
    let sum = unary(g, root, Unary::Sqrt)?;
    let (mean, epsilon) = with_scalar(g, binary(g, sum, Binary::Add)?)?;
    let (_, node, reduce) = producer::<Reduce>(g, mean)?;
    let square = input(node, 0)?;
    let rank = shape(g, square)?.len();
    let axes = reduce
        .axes
        .clone()
        .or_else(|| input(node, 1).and_then(|v| g.value(v).fact.as_ref()?.as_const()?.to_i64().ok()))?;
    let last = i64::try_from(rank).ok()? - 1;
    if reduce.kind != Kind::Mean || !reduce.keep || !(axes == [-1] || axes == [last]) {
        log::debug!(
            "no root-mean-square normalisation at \"{}\": it reduces axes {axes:?}",
            g.value(y).name
        );
        return None;
    }
    let squared = match binary(g, square, Binary::Mul) {
        Some([p, q]) if p == q => p,
        _ => binary(g, square, Binary::Pow)
            .filter(|[_, e]| scalar(g, *e) == Some(2.0))
            .map(|[p, _]| p)?,
    };
    if squared != x || shape(g, x)?.last() != shape(g, scale)?.first() {
        log::debug!(
            "no root-mean-square normalisation at \"{}\": it normalises one value by another's mean",
            g.value(y).name
        );
        return None;
    }
    steps.extend([root, sum, mean, square]);
    Some(Found {
        x,
        scale,
        epsilon,
        origin: origin(g, &steps),
    })
}
