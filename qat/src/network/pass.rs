//! Forward passes.

use super::{Network, Norm, Pass, ProductStep, Quantization, Statistics, Step, along};
use crate::error::{Error, Result};
use crate::fake::{Grid, fake_weights};
use crate::value::{RANK, Value, padded};
use burn::tensor::{Tensor, TensorData};
use std::collections::HashMap;
use transformer_lite::unstable::graph::ValueId;

/// Weights and bias of a product with factors and normalization folded in.
pub(super) struct Folded {
    pub weights: Tensor<4>,
    /// Along the last axis.
    pub bias: Option<Tensor<4>>,
}

impl ProductStep {
    fn weights(&self, parameters: &[Tensor<4>]) -> Tensor<4> {
        let w = parameters[self.weights].clone();
        let [factor, _] = self.factors;
        if factor == 1.0 { w } else { w.mul_scalar(factor) }
    }

    /// The bias before normalization, along the last axis.
    fn bias(&self, parameters: &[Tensor<4>]) -> Option<Tensor<4>> {
        let mut sum: Option<Tensor<4>> = None;
        for (i, at) in self.biases.iter().enumerate() {
            let b = along(parameters[*at].clone(), RANK - 1);
            let [_, factor] = self.factors;
            let b = if i == 0 && factor != 1.0 {
                b.mul_scalar(factor)
            } else {
                b
            };
            sum = Some(match sum {
                Some(sum) => sum + b,
                None => b,
            });
        }
        sum
    }

    /// Folds normalization by moving averages into the weights (equation 14 of the paper).
    pub(super) fn folded(&self, parameters: &[Tensor<4>]) -> Folded {
        let weights = self.weights(parameters);
        let bias = self.bias(parameters);
        let Some(norm) = self.norm.map(|n| n.get(parameters)) else {
            let channels = weights.dims().get(self.axis).copied().unwrap_or(1);
            // One number for all channels.
            let whole = |b: Tensor<4>| match b.dims() {
                [1, 1, 1, 1] => b.repeat_dim(RANK - 1, channels),
                _ => b,
            };
            return Folded {
                bias: bias.map(whole),
                weights,
            };
        };
        let factor = norm.factor();
        let centered = match bias {
            Some(b) => b - norm.mean,
            None => norm.mean.neg(),
        };
        Folded {
            weights: weights * along(factor.clone(), self.axis),
            bias: Some(norm.bias + centered * factor),
        }
    }
}

/// The tensors of a normalization, along the last axis.
struct NormTensors {
    scale: Tensor<4>,
    bias: Tensor<4>,
    mean: Tensor<4>,
    variance: Tensor<4>,
    epsilon: f32,
}

impl Norm {
    fn get(self, parameters: &[Tensor<4>]) -> NormTensors {
        let get = |i: usize| along(parameters[i].clone(), RANK - 1);
        NormTensors {
            scale: get(self.scale),
            bias: get(self.bias),
            mean: get(self.mean).inner(),
            variance: get(self.variance).inner(),
            epsilon: self.epsilon,
        }
    }
}

impl NormTensors {
    fn deviation(&self) -> Tensor<4> {
        self.variance.clone().add_scalar(self.epsilon).sqrt()
    }

    fn factor(&self) -> Tensor<4> {
        self.scale.clone() / self.deviation()
    }
}

/// Mean and variance of all elements of each channel, along `axis`.
fn statistics(x: &Tensor<4>, axis: usize) -> [Tensor<4>; 2] {
    let others: Vec<usize> = (0..RANK).rev().filter(|a| *a != axis).collect();
    let mean = |x: Tensor<4>| others.iter().fold(x, |x, a| x.mean_dim(*a));
    let center = mean(x.clone());
    let deviation = x.clone() - center.clone();
    [center, mean(deviation.clone() * deviation)]
}

/// A forward pass in progress.
pub(super) struct Run<'a> {
    pub network: &'a Network,
    pub pass: &'a Pass<'a>,
    pub pictures: usize,
    pub values: HashMap<ValueId, Value>,
    /// Quantized copies of values that other readers get as floats.
    pub quantized: HashMap<ValueId, Value>,
    /// As in [`Forward`](super::Forward), so far.
    pub statistics: Vec<(usize, Tensor<4>)>,
    pub extremes: Vec<(usize, [Tensor<1>; 2])>,
}

impl Run<'_> {
    pub fn value(&self, v: ValueId) -> Result<Value> {
        let found = self.values.get(&v).cloned();
        found.map_or_else(|| self.constant(v), Ok)
    }

    fn constant(&self, v: ValueId) -> Result<Value> {
        let network = self.network;
        let value = network.model.graph.value(v);
        let missing = || {
            Error::model(
                &network.model.path,
                format!("value \"{}\" is missing", value.name),
            )
        };
        let tensor = value
            .fact
            .as_ref()
            .and_then(|f| f.as_const())
            .ok_or_else(missing)?;
        let numbers = tensor.to_f32().map_err(|_| missing())?.into_owned();
        let shape = padded(tensor.shape()).ok_or_else(missing)?;
        let device = self
            .pass
            .parameters
            .first()
            .map(Tensor::device)
            .unwrap_or_default();
        let tensor4 = Tensor::from_data(TensorData::new(numbers, shape), &device);
        Ok(Value {
            tensor: tensor4,
            rank: tensor.shape().len(),
        })
    }

    /// The operand of a node, quantized if the node's layer reads it so.
    fn operand(&self, v: ValueId, in_layer: bool) -> Result<Value> {
        match self.quantized.get(&v) {
            Some(q) if in_layer => Ok(q.clone()),
            _ => {
                let mut value = self.value(v)?;
                // Computed values are quantized already.
                let is_constant = !self.values.contains_key(&v);
                if let Some(grid) = self.grid(v).filter(|_| in_layer && is_constant) {
                    value.tensor = grid.fake(value.tensor);
                }
                Ok(value)
            }
        }
    }

    /// How the range of a value is quantized.
    fn grid(&self, v: ValueId) -> Option<Grid> {
        let range = self.network.model.placement.range_of(v)?;
        self.pass
            .quantization
            .and_then(|q| q.grids.get(range).copied().flatten())
    }

    /// Observes and quantizes a value that was computed, and keeps it.
    pub fn store(&mut self, v: ValueId, mut value: Value) {
        let placement = &self.network.model.placement;
        let range = placement
            .range_of(v)
            .and_then(|r| Some((r, placement.ranges.get(r)?)));
        let Some((r, _)) = range.filter(|(_, range)| range.sources.contains(&v)) else {
            self.values.insert(v, value);
            return;
        };
        if self.pass.observe {
            let plain = value.tensor.clone().inner();
            self.extremes.push((r, [plain.clone().min(), plain.max()]));
        }
        if let Some(grid) = self.grid(v) {
            let tensor = grid.fake(value.tensor.clone());
            let quantized = Value {
                tensor,
                rank: value.rank,
            };
            if placement.is_computed(v) {
                value = quantized;
            } else {
                self.quantized.insert(v, quantized);
            }
        }
        self.values.insert(v, value);
    }

    pub fn step(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::Product(product) => self.product(product),
            Step::Norm { norm, x, out } => {
                let x = self.value(*x)?;
                let axis = x.axis(1);
                let tensor = self.normalized(*norm, x.tensor.clone(), axis);
                self.store(*out, Value { tensor, rank: x.rank });
                Ok(())
            }
            Step::Function {
                function,
                inputs,
                out,
                quantized,
            } => {
                let inputs = inputs.iter().map(|v| self.operand(*v, *quantized));
                let inputs: Vec<Value> = inputs.collect::<Result<_>>()?;
                let (shape, rank) = self.network.shape(*out, self.pictures)?;
                let value = function.apply(&inputs, shape, rank);
                let value = value.map_err(|r| Error::model(&self.network.model.path, r))?;
                self.store(*out, value);
                Ok(())
            }
        }
    }

    /// Normalizes, and returns the batch's statistics if they are asked for.
    fn normalized(&mut self, norm: Norm, x: Tensor<4>, axis: usize) -> Tensor<4> {
        let mut n = norm.get(self.pass.parameters);
        if self.pass.statistics == Statistics::Batch {
            let [mean, variance] = statistics(&x, axis).map(|s| along(s, RANK - 1));
            self.keep(norm, &mean, &variance);
            (n.mean, n.variance) = (mean, variance);
        } else if self.pass.statistics == Statistics::Averages {
            let [mean, variance] = statistics(&x.clone().inner(), axis).map(|s| along(s, RANK - 1));
            self.keep(norm, &mean, &variance);
        }
        let factor = n.factor();
        let shift = n.bias - n.mean * factor.clone();
        x * along(factor, axis) + along(shift, axis)
    }

    fn keep(&mut self, norm: Norm, mean: &Tensor<4>, variance: &Tensor<4>) {
        let kept = [(norm.mean, mean), (norm.variance, variance)];
        self.statistics.extend(kept.map(|(i, t)| (i, t.clone().inner())));
    }

    /// The product without bias.
    fn multiplied(&self, p: &ProductStep, x: Tensor<4>, w: Tensor<4>) -> Result<Tensor<4>> {
        let (shape, rank) = self.network.shape(p.raw, self.pictures)?;
        let operands = [x, w].map(|tensor| Value { tensor, rank: RANK });
        let made = p.function.apply(&operands, shape, rank);
        made.map(|v| v.tensor)
            .map_err(|r| Error::model(&self.network.model.path, r))
    }

    /// The product with bias, before normalization, in floats.
    fn raw(&self, p: &ProductStep, x: Tensor<4>, w: Tensor<4>) -> Result<Tensor<4>> {
        let y = self.multiplied(p, x, w)?;
        Ok(match p.bias(self.pass.parameters) {
            Some(b) => y + along(b, p.channels),
            None => y,
        })
    }

    fn float_product(&mut self, p: &ProductStep, x: Tensor<4>) -> Result<Tensor<4>> {
        let y = self.raw(p, x, p.weights(self.pass.parameters))?;
        Ok(match p.norm {
            Some(norm) => self.normalized(norm, y, p.channels),
            None => y,
        })
    }

    fn quantized_product(
        &mut self,
        p: &ProductStep,
        x: Tensor<4>,
        q: &Quantization<'_>,
    ) -> Result<Tensor<4>> {
        let parameters = self.pass.parameters;
        let folded = p.folded(parameters);
        let scales = self.network.scales(p, &folded, q);
        let y = self.multiplied(p, x.clone(), fake_weights(folded.weights, scales, q.weights))?;
        let Some(norm) = p.norm.filter(|_| self.pass.statistics == Statistics::Batch) else {
            if let Some(norm) = p.norm.filter(|_| self.pass.statistics == Statistics::Averages) {
                let y = self.raw(p, x.inner(), p.weights(parameters).inner())?;
                let [mean, variance] = statistics(&y, p.channels).map(|s| along(s, RANK - 1));
                self.keep(norm, &mean, &variance);
            }
            return Ok(match folded.bias {
                Some(b) => y + along(b, p.channels),
                None => y,
            });
        };
        // The weights are folded with the averages; what remains scales to the batch.
        let exact = self.raw(p, x, p.weights(parameters))?;
        let [mean, variance] = statistics(&exact, p.channels).map(|s| along(s, RANK - 1));
        self.keep(norm, &mean, &variance);
        let averages = norm.get(parameters);
        let centered = match p.bias(parameters) {
            Some(b) => b - mean.clone(),
            None => mean.clone().neg(),
        };
        let batch = NormTensors {
            mean,
            variance,
            ..norm.get(parameters)
        };
        let ratio = averages.deviation() / batch.deviation();
        let shift = batch.bias.clone() + centered * batch.factor();
        Ok(y * along(ratio, p.channels) + along(shift, p.channels))
    }

    fn product(&mut self, p: &ProductStep) -> Result<()> {
        let x = self.operand(p.x, true)?.tensor;
        let tensor = match &self.pass.quantization {
            None => self.float_product(p, x)?,
            Some(q) => self.quantized_product(p, x, q)?,
        };
        let (shape, rank) = self.network.shape(p.out, self.pictures)?;
        let mut value = Value { tensor, rank };
        for clamp in &p.clamps {
            let made = clamp.apply(&[value], shape, rank);
            value = made.map_err(|r| Error::model(&self.network.model.path, r))?;
        }
        self.store(p.out, value);
        Ok(())
    }
}
