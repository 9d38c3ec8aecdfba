//! Fuses decomposed normalizations as exporters write them.
//!
//! RMS normalization is `x * (1 / sqrt(mean(x^2, -1) + e)) * w`, also with a division, with
//! `x * x`, and with operands in either order. Layer normalization is the same on
//! `x - mean(x, -1)`, with or without a bias.

use crate::error::Result;
use crate::graph::op::Op;
use crate::graph::op::norm::{Norm, Over};
use crate::graph::op::pointwise::{Binary, Unary};
use crate::graph::op::reduce::{Kind, Reduce};
use crate::graph::op::rms_norm::RmsNorm;
use crate::graph::pass::Pass;
use crate::graph::pass::pattern::{
    binary, input, only_reader, origin, producer, scalar, shape, unary, with_scalar,
};
use crate::graph::{Edit, Graph, NodeId, ValueId};
use crate::num;

pub const NORM: Pass = Pass {
    name: "norm",
    does: "recognizes decomposed RMSNorm and LayerNorm",
    refuses: "another axis than the last; another value's mean",
    run,
};

fn run(edit: &mut Edit<'_>) -> Result<()> {
    let consumers = edit.consumers();
    let ids: Vec<_> = edit.nodes().map(|(id, n)| (id, n.outputs.clone())).collect();
    for (_, outputs) in ids {
        let [y] = outputs.as_slice() else { continue };
        let Some(found) = find(edit, *y) else { continue };
        let form = with_mean(edit, &consumers, *y, &found);
        let last = form.as_ref().map_or(*y, |l| l.y);
        let name = edit.value(last).name.clone();
        let Some((node, _)) = edit.producer(last) else {
            continue;
        };
        let (op, inputs, mut origin): (Box<dyn Op>, _, _) = match form {
            None => (
                Box::new(RmsNorm {
                    epsilon: found.epsilon,
                }),
                vec![Some(found.x), Some(found.scale)],
                Vec::new(),
            ),
            Some(layer) => (
                Box::new(Norm {
                    over: Over::Layer { axis: -1 },
                    epsilon: found.epsilon,
                    results: 1,
                }),
                vec![Some(layer.x), Some(found.scale), layer.bias],
                layer.origin,
            ),
        };
        if edit.begin(&format!("{} at \"{name}\"", op.name())) {
            origin.extend(found.origin);
            edit.replace_node(node, op, inputs, origin);
        }
    }
    Ok(())
}

struct NormMatch {
    x: ValueId,
    scale: ValueId,
    epsilon: f32,
    origin: Vec<String>,
}

/// The additional parts that turn an RMS normalization into a layer normalization.
struct Layer {
    x: ValueId,
    bias: Option<ValueId>,
    y: ValueId,
    origin: Vec<String>,
}

/// A constant with one element per position of the last axis.
fn is_row(g: &Graph, v: ValueId) -> bool {
    let fact = g.value(v).fact.as_ref();
    fact.is_some_and(|f| f.as_const().is_some() && f.shape.rank() == 1)
}

fn with_mean(g: &Graph, consumers: &[Vec<NodeId>], y: ValueId, found: &NormMatch) -> Option<Layer> {
    let [x, mean] = binary(g, found.x, Binary::Sub)?;
    if row_mean(g, mean)? != x {
        log::debug!(
            "no layer normalization at \"{}\": the mean of another value is subtracted",
            g.value(y).name
        );
        return None;
    }
    let mut layer = Layer {
        x,
        bias: None,
        y,
        origin: origin(g, &[found.x, mean]),
    };
    let sum = only_reader(g, consumers, y).and_then(|id| g.node(id)?.outputs.first().copied());
    if let Some(sum) = sum
        && let Some([a, b]) = binary(g, sum, Binary::Add)
        && let Some(bias) = [a, b].into_iter().find(|v| *v != y && is_row(g, *v))
        && shape(g, bias) == shape(g, found.scale)
    {
        layer.bias = Some(bias);
        layer.y = sum;
        layer.origin.extend(origin(g, &[sum]));
    }
    Some(layer)
}

/// The operand of the mean that computes `v`, over the last axis and with `keepdims`.
fn row_mean(g: &Graph, v: ValueId) -> Option<ValueId> {
    let (_, node, reduce) = producer::<Reduce>(g, v)?;
    let x = input(node, 0)?;
    let last = num::signed(shape(g, x)?.len()) - 1;
    let axes = reduce
        .axes
        .clone()
        .or_else(|| input(node, 1).and_then(|v| g.value(v).fact.as_ref()?.as_const()?.to_i64().ok()))?;
    if reduce.kind == Kind::Mean && reduce.keep && (axes == [-1] || axes == [last]) {
        return Some(x);
    }
    log::debug!(
        "\"{}\" is not a mean of rows: it reduces axes {axes:?}",
        node.name
    );
    None
}

fn find(g: &Graph, y: ValueId) -> Option<NormMatch> {
    let [a, b] = binary(g, y, Binary::Mul)?;
    let (normed, scale) = if is_row(g, b) { (a, b) } else { (b, a) };
    if !is_row(g, scale) {
        return None;
    }
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
    let square = row_mean(g, mean)?;
    let squared = match binary(g, square, Binary::Mul) {
        Some([p, q]) if p == q => p,
        _ => binary(g, square, Binary::Pow)
            .filter(|[_, e]| scalar(g, *e) == Some(2.0))
            .map(|[p, _]| p)?,
    };
    if squared != x || shape(g, x)?.last() != shape(g, scale)?.first() {
        log::debug!(
            "no RMS normalization at \"{}\": a value is normalized by the mean of another one",
            g.value(y).name
        );
        return None;
    }
    steps.extend([root, sum, mean, square]);
    Some(NormMatch {
        x,
        scale,
        epsilon,
        origin: origin(g, &steps),
    })
}
