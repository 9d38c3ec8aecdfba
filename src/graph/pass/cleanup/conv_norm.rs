//! Folds a `BatchNormalization` into the weights and bias of the convolution before it, if it is
//! the only reader.

use crate::error::{Error, Result, Stage};
use crate::graph::op::batch_norm::BatchNorm;
use crate::graph::op::conv::Conv;
use crate::graph::pass::Pass;
use crate::graph::pass::pattern::{all, input, only_reader, producer};
use crate::graph::{Edit, Graph, NodeId, ValueId};
use crate::tensor::{HostTensor, TensorError};
use std::sync::Arc;

pub const CONV_NORM: Pass = Pass {
    name: "conv_norm",
    does: "folds batch normalization into the convolution before it",
    refuses: "weights or statistics that are data",
    run,
};

struct ConvNormMatch {
    norm: NodeId,
    conv: NodeId,
    x: ValueId,
    w: Arc<HostTensor>,
    bias: Option<Arc<HostTensor>>,
    /// Scale, bias, mean and variance.
    statistics: [Arc<HostTensor>; 4],
    epsilon: f32,
}

fn run(edit: &mut Edit<'_>) -> Result<()> {
    let consumers = edit.consumers();
    for f in all(edit, |g, id| find(g, &consumers, id)) {
        let (Some(norm), Some(conv)) = (edit.node(f.norm), edit.node(f.conv)) else {
            continue;
        };
        let (name, op) = (conv.name.clone(), conv.op.clone());
        let mut origin = conv.origin.clone();
        origin.extend(norm.origin.iter().cloned());
        if !edit.begin(&format!("normalisation \"{}\" joins \"{name}\"", norm.name)) {
            continue;
        }
        let [w, bias] =
            joined(&f, &name).map_err(|e| Error::other(Stage::Pass, format!("\"{name}\": {e}")))?;
        let w = edit.add_const(&format!("{name}/weights"), Arc::new(w));
        let bias = edit.add_const(&format!("{name}/bias"), Arc::new(bias));
        edit.replace_node(f.norm, op, vec![Some(f.x), Some(w), Some(bias)], origin);
    }
    Ok(())
}

fn find(g: &Graph, consumers: &[Vec<NodeId>], id: NodeId) -> Option<ConvNormMatch> {
    let node = g.node(id)?;
    let BatchNorm { epsilon } = *node.op.downcast::<BatchNorm>()?;
    let y = input(node, 0)?;
    let (conv, made, _) = producer::<Conv>(g, y)?;
    let constant = |v: ValueId| g.value(v).fact.as_ref()?.as_const().cloned();
    let refuse = |why: &str| {
        log::debug!("\"{}\" cannot be folded into \"{}\": {why}", node.name, made.name);
        None
    };
    if only_reader(g, consumers, y) != Some(id) {
        return refuse("the convolution has another reader");
    }
    let statistics: Option<Vec<_>> = (1..5).map(|i| constant(input(node, i)?)).collect();
    let (Some(w), Some(Ok(statistics))) = (
        input(made, 1).and_then(constant),
        statistics.map(<[Arc<HostTensor>; 4]>::try_from),
    ) else {
        return refuse("weights or statistics are not constant");
    };
    let bias = match input(made, 2) {
        None => None,
        Some(v) => match constant(v) {
            Some(bias) => Some(bias),
            None => return refuse("the bias is not constant"),
        },
    };
    Some(ConvNormMatch {
        norm: id,
        conv,
        x: input(made, 0)?,
        w,
        bias,
        statistics,
        epsilon,
    })
}

/// Weights and bias of the convolution with the normalization: `w * s` and
/// `(bias - mean) * s + beta` with `s = scale / sqrt(variance + epsilon)`, for each output channel.
fn joined(f: &ConvNormMatch, name: &str) -> Result<[HostTensor; 2], TensorError> {
    let (w, bias) = (&f.w, &f.bias);
    let channels = w.shape().first().copied().unwrap_or(0);
    let mut given = std::iter::once(w).chain(bias).chain(&f.statistics);
    if given.any(|t| t.is_absent()) {
        let absent = |what: &str, shape: &[usize]| {
            HostTensor::absent(w.dtype(), shape, &format!("the normalized {what} of \"{name}\""))
        };
        return Ok([absent("weights", w.shape())?, absent("bias", &[channels])?]);
    }
    let list = |t: &HostTensor| -> Result<Vec<f64>, TensorError> {
        Ok(t.to_f32()?.iter().map(|v| f64::from(*v)).collect())
    };
    let [scale, beta, mean, variance] = &f.statistics;
    let (scale, beta, mean, variance) = (list(scale)?, list(beta)?, list(mean)?, list(variance)?);
    let bias = bias
        .as_ref()
        .map_or_else(|| Ok(vec![0.0; channels]), |b| list(b))?;
    let factors: Vec<f64> = scale
        .iter()
        .zip(&variance)
        .map(|(s, v)| s / (v + f64::from(f.epsilon)).sqrt())
        .collect();
    let data = w.to_f32()?;
    let each = data.len().checked_div(channels).unwrap_or(0).max(1);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "rounding to the weights' type is intended"
    )]
    let weights: Vec<f32> = data
        .chunks(each)
        .zip(&factors)
        .flat_map(|(part, s)| part.iter().map(move |v| (f64::from(*v) * s) as f32))
        .collect();
    #[expect(
        clippy::cast_possible_truncation,
        reason = "rounding to the weights' type is intended"
    )]
    let moved: Vec<f32> = (bias.iter().zip(&mean))
        .zip(factors.iter().zip(&beta))
        .map(|((bias, mean), (s, beta))| ((bias - mean) * s + beta) as f32)
        .collect();
    Ok([
        HostTensor::from_floats(w.dtype(), w.shape(), &weights)?,
        HostTensor::from_floats(w.dtype(), &[channels], &moved)?,
    ])
}
