//! Bias correction: the mean error that rounding causes in the inputs and weights of a product is
//! subtracted from its bias. Errors are not random: a white background, for example, is rounded the
//! same way everywhere.

use super::observe::{Watched, floats};
use super::products::{FloatProduct, IntProduct};
use super::{CalibrationSet, Open, Step, Tell};
use std::collections::HashMap;
use transformer_lite::unstable::error::Result;
use transformer_lite::unstable::graph::quantization::{LayerKind, Placement};
use transformer_lite::unstable::graph::{Graph, ValueId};
use transformer_lite::unstable::quant::fixed::Affine;

/// Means of the channels of a value, as it is and when it is rounded.
#[derive(Clone, Debug, Default)]
pub(super) struct Means {
    exact: Vec<f64>,
    rounded: Vec<f64>,
    count: f64,
}

impl Means {
    /// Adds a tensor whose channels are at axis 1, or at the last axis.
    fn add(&mut self, values: &[f32], shape: &[usize], second: bool, affine: Affine) {
        let axis = if second { 1 } else { shape.len().saturating_sub(1) };
        let channels = shape.get(axis).copied().unwrap_or(1).max(1);
        let inner = shape.iter().skip(axis + 1).product::<usize>().max(1);
        self.exact.resize(channels, 0.0);
        self.rounded.resize(channels, 0.0);
        let (least, most) = (f64::from(-128 - affine.zero), f64::from(127 - affine.zero));
        let scale = f64::from(affine.scale);
        for (i, part) in values.chunks(inner).enumerate() {
            let c = i % channels;
            let (Some(exact), Some(rounded)) = (self.exact.get_mut(c), self.rounded.get_mut(c)) else {
                continue;
            };
            for v in part.iter().map(|v| f64::from(*v)) {
                *exact += v;
                // Errors of clipped values belong to few items, which the others must not pay for.
                let code = (v / scale).round_ties_even();
                *rounded += if (least..=most).contains(&code) {
                    code * scale
                } else {
                    v
                };
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "a number of elements")]
        let each = (values.len() / channels) as f64;
        self.count += each;
    }

    fn mean(&self, c: usize) -> f64 {
        self.exact.get(c).copied().unwrap_or_default() / self.count.max(1.0)
    }

    fn error(&self, c: usize) -> f64 {
        self.rounded.get(c).copied().unwrap_or_default() / self.count.max(1.0) - self.mean(c)
    }
}

/// Means of the inputs of products, and of sums and pools that these are made of, over the set.
pub(super) fn means(
    graph: &Graph,
    (placement, products): (&Placement, &[Option<FloatProduct>]),
    affine: &dyn Fn(ValueId) -> Option<Affine>,
    set: &CalibrationSet<'_>,
    open: &Open<'_>,
    tell: Tell<'_>,
) -> Result<HashMap<ValueId, Means>> {
    let constant = |v: ValueId| {
        graph
            .value(v)
            .fact
            .as_ref()
            .is_some_and(|f| f.as_const().is_some())
    };
    let name = |v: ValueId| graph.value(v).name.clone();
    // Channels are at axis 1 for convolutions.
    let mut wanted: HashMap<ValueId, bool> = HashMap::new();
    for (layer, product) in placement.layers.iter().zip(products).rev() {
        let second = match product {
            Some(p) => Some(p.form.convolves),
            None => layer.outputs.first().and_then(|v| wanted.get(v)).copied(),
        };
        for v in layer.inputs.iter().filter(|v| !constant(**v)) {
            if let Some(second) = second {
                wanted.entry(*v).or_insert(second);
            }
        }
    }
    let names: Vec<String> = wanted.keys().map(|v| name(*v)).collect();
    let mut watched = Watched::new(graph.clone(), &names, open)?;
    let mut found: HashMap<ValueId, Means> = HashMap::new();
    for i in 0..set.names.len() {
        tell(Step::Correct, i, set.names.len());
        let seen = watched.run(set, i)?;
        for (v, second) in &wanted {
            if let (Some(tensor), Some(affine)) = (seen.get(&name(*v)), affine(*v)) {
                let values = floats(tensor, &name(*v))?;
                found
                    .entry(*v)
                    .or_default()
                    .add(&values, tensor.shape(), *second, affine);
            }
        }
    }
    Ok(found)
}

/// The mean error of the channels of each value: its own, and for sums, pools and moves those of
/// their operands. The biases of products make up for those of their inputs.
pub(super) fn errors(placement: &Placement, means: &HashMap<ValueId, Means>) -> HashMap<ValueId, Vec<f64>> {
    let mut errors: HashMap<ValueId, Vec<f64>> = HashMap::new();
    let own = |v: ValueId| -> Vec<f64> {
        let Some(m) = means.get(&v) else { return Vec::new() };
        (0..m.exact.len()).map(|c| m.error(c)).collect()
    };
    for layer in &placement.layers {
        for v in &layer.inputs {
            errors.entry(*v).or_insert_with(|| own(*v));
        }
        for v in &layer.outputs {
            let mut sum = own(*v);
            let passes = matches!(layer.kind, LayerKind::Mean | LayerKind::Binary);
            for x in layer.inputs.iter().filter(|_| passes) {
                let operand = errors.get(x).filter(|e| e.len() == sum.len());
                operand
                    .into_iter()
                    .for_each(|e| sum.iter_mut().zip(e).for_each(|(s, e)| *s += e));
            }
            errors.insert(*v, sum);
        }
    }
    errors
}

/// The product with a bias that makes up for the mean errors of its input and of its weights.
pub(super) fn corrected(
    float: &FloatProduct,
    int: &IntProduct,
    means: &Means,
    errors: &[f64],
) -> FloatProduct {
    let mut sums = vec![0f64; float.form.channels];
    let rounded = int.dequantized(&float.form);
    for (i, (w, r)) in float.weights.iter().zip(&rounded).enumerate() {
        let c = float.form.input(i);
        let (mean, error) = (means.mean(c), errors.get(c).copied().unwrap_or_default());
        if let Some(s) = sums.get_mut(float.form.output(i)) {
            *s += f64::from(*r) * (mean + error) - f64::from(*w) * mean;
        }
    }
    let mut out = float.clone();
    let bias = out.bias.get_or_insert_with(|| vec![0.0; sums.len()]);
    for (b, s) in bias.iter_mut().zip(sums) {
        #[expect(clippy::cast_possible_truncation, reason = "rounding is meant")]
        let moved = (f64::from(*b) - s) as f32;
        *b = moved;
    }
    out
}
