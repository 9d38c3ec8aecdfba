//! Training: gradient descent, in floats or with fake quantization.

use crate::checkpoint::State;
use crate::data::{Augmentation, Data, Label, Normalization, Pictures, shuffled};
use crate::error::{Error, Result};
use crate::fake::{Bits, Grid, Range};
use crate::network::{Network, Pass, Quantization, Role, Statistics, numbers};
use crate::optimizer::Optimizer;
use crate::task::{Score, Task};
use burn::tensor::{Device, Gradients, Tensor, TensorData};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use transformer_lite::unstable::graph::ValueId;
use transformer_lite::unstable::graph::quantization::SharedRange;
use transformer_lite::unstable::llm::sampler::SplitMix64;

/// How the learning rate falls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, clap::ValueEnum)]
pub enum Schedule {
    /// To a tenth after half of the run, and to a hundredth after three quarters.
    #[default]
    Staircase,
    /// To 0 along half a cosine wave.
    Cosine,
}

/// How batch normalization is folded into weights that are quantized.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, clap::ValueEnum)]
pub enum Folding {
    /// With moving averages, as in the paper.
    #[default]
    Ema,
    /// With the batch's statistics in the first half of the run, then with frozen averages.
    BatchThenFreeze,
}

/// Options of quantization-aware training.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Quantizing {
    pub weights: Bits,
    pub activations: Bits,
    pub per_tensor: bool,
    pub folding: Folding,
    /// Share of the run after which activations are quantized.
    pub delay: f64,
    /// What moving averages of ranges keep at each step.
    pub decay: f32,
}

/// What the result of a run depends on.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Configuration {
    /// Checksums of the model and of the data.
    pub model: String,
    pub data: String,
    /// Checkpoints without one are of classifiers.
    #[serde(default)]
    pub task: Task,
    pub epochs: u64,
    pub batch: usize,
    pub learning_rate: f64,
    pub schedule: Schedule,
    /// Checkpoints without one are of stochastic gradient descent.
    #[serde(default)]
    pub optimizer: Optimizer,
    pub momentum: f64,
    pub weight_decay: f64,
    pub seed: u64,
    pub augmentation: Augmentation,
    pub normalization: Normalization,
    /// `None` for training in floats.
    pub quantizing: Option<Quantizing>,
}

impl Configuration {
    /// Says which option differs from those of another run.
    pub fn check(&self, wanted: &Self) -> std::result::Result<(), String> {
        check_options(self, wanted)
    }
}

/// Says which option differs from those of another run.
pub fn check_options<T: Serialize>(had: &T, wanted: &T) -> std::result::Result<(), String> {
    let values = [had, wanted].map(|c| serde_json::to_value(c).unwrap_or_default());
    let [had, wanted] = values.each_ref().map(|v| v.as_object());
    let (Some(had), Some(wanted)) = (had, wanted) else {
        return Err("has no options".to_owned());
    };
    match wanted.iter().find(|(name, v)| had.get(*name) != Some(v)) {
        None => Ok(()),
        Some((name, v)) => {
            let had = had.get(name).unwrap_or(&serde_json::Value::Null);
            Err(format!(
                "is of a run with other options: {name} was {had} and is now {v}; \
                 --restart begins anew"
            ))
        }
    }
}

/// What a step found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Mean loss of the batch.
    pub loss: f32,
    /// Number of predictions of the batch that are right, as the task counts them.
    pub right: usize,
    /// Number of all predictions.
    pub of: usize,
}

/// A run in progress.
#[derive(Debug)]
pub struct Trainer<'a> {
    pub network: &'a Network,
    pub configuration: Configuration,
    pub state: State,
    data: &'a Data,
    device: Device,
    /// The order of pictures in an epoch.
    order: (u64, Vec<usize>),
}

/// What moving averages of statistics of normalization keep at each step.
const NORM_DECAY: f64 = 0.9;

/// The first 16 hexadecimal digits of a checksum.
pub fn checksum(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    parts.iter().for_each(|p| hash.update(p));
    hash.finalize()
        .iter()
        .take(8)
        .map(|b| format!("{b:02x}"))
        .collect()
}

/// A seed for one of several random sequences.
pub fn seed(of: u64, sequence: u64, i: u64) -> u64 {
    let mut random = SplitMix64::new(of ^ sequence.rotate_left(32) ^ i.rotate_left(40));
    random.next_u64()
}

impl<'a> Trainer<'a> {
    /// Begins a run, or continues one from `state`.
    ///
    /// Errors: options that do not fit the model or the data.
    pub fn new(
        network: &'a Network,
        data: &'a Data,
        configuration: Configuration,
        state: Option<State>,
        device: Device,
    ) -> Result<Self> {
        network.check_batch(configuration.batch)?;
        if configuration.batch > data.train.len() || configuration.batch == 0 {
            let what = format!(
                "expected 1 to the {} training pictures, found {}",
                data.train.len(),
                configuration.batch
            );
            return Err(Error::option("--batch", what));
        }
        let state = match state {
            Some(state) => state,
            None => {
                let parameters = network.initial(&device)?;
                State {
                    step: 0,
                    kept: configuration.optimizer.first(&parameters, &device),
                    parameters,
                    ranges: vec![None; network.model.placement.ranges.len()],
                }
            }
        };
        Ok(Self {
            network,
            configuration,
            state,
            data,
            device,
            order: (u64::MAX, Vec::new()),
        })
    }

    /// Steps of an epoch. The last pictures that do not fill a batch are left out.
    pub fn steps_of_epoch(&self) -> u64 {
        u64::try_from(self.data.train.len() / self.configuration.batch)
            .unwrap_or(1)
            .max(1)
    }

    /// Steps of the whole run.
    pub fn steps(&self) -> u64 {
        self.configuration.epochs.saturating_mul(self.steps_of_epoch())
    }

    /// The share of the run that is done.
    #[expect(clippy::cast_precision_loss, reason = "numbers of steps")]
    fn share(&self) -> f64 {
        self.state.step as f64 / self.steps().max(1) as f64
    }

    /// The learning rate of the next step.
    pub fn learning_rate(&self) -> f64 {
        let c = &self.configuration;
        let share = self.share();
        c.learning_rate
            * match c.schedule {
                Schedule::Staircase if share < 0.5 => 1.0,
                Schedule::Staircase if share < 0.75 => 0.1,
                Schedule::Staircase => 0.01,
                Schedule::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * share).cos()),
            }
    }

    /// The pictures of the next step.
    fn batch(&mut self) -> (Vec<f32>, Vec<Label>) {
        let (c, each) = (&self.configuration, self.steps_of_epoch());
        let (epoch, within) = (self.state.step / each, self.state.step % each);
        if self.order.0 != epoch {
            self.order = (epoch, shuffled(self.data.train.len(), seed(c.seed, 1, epoch)));
        }
        let start = usize::try_from(within).unwrap_or(0) * c.batch;
        let indices = self.order.1.get(start..start + c.batch).unwrap_or_default();
        let mut random = SplitMix64::new(seed(c.seed, 2, self.state.step));
        let (rules, size) = (c.task.rules(), self.network.picture);
        let mut draw = |i: &usize| rules.draw(&self.data.train, *i, c.augmentation, size, &mut random);
        let (pictures, labels): (Vec<Vec<u8>>, _) = indices.iter().map(&mut draw).unzip();
        let pictures = pictures.iter().map(Vec::as_slice);
        (c.normalization.numbers(pictures, size), labels)
    }

    /// The grid of each range: all, or only those whose activations are quantized by now.
    fn grids(&self, all: bool) -> Result<Vec<Option<Grid>>> {
        let ranges = self.network.model.placement.ranges.len();
        match &self.configuration.quantizing {
            Some(q) if all || self.share() >= q.delay => {
                grids(self.network, &self.state.ranges, q.activations)
            }
            _ => Ok(vec![None; ranges]),
        }
    }

    fn statistics(&self) -> Statistics {
        match &self.configuration.quantizing {
            None => Statistics::Batch,
            Some(q) => match q.folding {
                Folding::Ema => Statistics::Averages,
                Folding::BatchThenFreeze if self.share() < 0.5 => Statistics::Batch,
                Folding::BatchThenFreeze => Statistics::Frozen,
            },
        }
    }

    /// Makes a step. An error names the step if a number is not finite.
    pub fn step(&mut self) -> Result<Measured> {
        let (numbers_in, labels) = self.batch();
        let grids = self.grids(false)?;
        let network = self.network;
        let [c, h, w] = network.picture;
        let size = [labels.len(), c, h, w];
        let x = Tensor::<4>::from_data(TensorData::new(numbers_in, size), &self.device);
        let leaves = self.leaves();
        let quantizing = self.configuration.quantizing.as_ref();
        let pass = Pass {
            parameters: &leaves,
            statistics: self.statistics(),
            quantization: quantizing.map(|q| Quantization {
                weights: q.weights,
                per_tensor: q.per_tensor,
                grids: &grids,
            }),
            observe: quantizing.is_some(),
        };
        let forward = network.forward(x, &pass)?;
        let rules = self.configuration.task.rules();
        let found = rules.loss(forward.logits, &labels, network.picture)?;
        let mut gradients = found.loss.backward();
        self.descend(&leaves, &mut gradients);
        for (i, new) in forward.statistics {
            if let Some(old) = self.state.parameters.get_mut(i) {
                *old = old.clone().mul_scalar(NORM_DECAY) + new.inner().mul_scalar(1.0 - NORM_DECAY);
            }
        }
        // One transfer from the device for all numbers of the step.
        let mut read: Vec<Tensor<1>> = vec![found.loss.inner(), found.right.inner()];
        let ranges: Vec<usize> = forward.extremes.iter().map(|(r, _)| *r).collect();
        read.extend(
            forward
                .extremes
                .into_iter()
                .flat_map(|(_, ends)| ends.map(Tensor::inner)),
        );
        let read = numbers(Tensor::cat(read, 0))?;
        self.state.step += 1;
        let [loss, right, ends @ ..] = read.as_slice() else {
            return Err(self.not_finite("the loss", f32::NAN));
        };
        self.observe(&ranges, ends)?;
        if !loss.is_finite() {
            return Err(self.not_finite("the loss", *loss));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at most the number of predictions"
        )]
        let right = *right as usize;
        Ok(Measured {
            loss: *loss,
            right,
            of: found.of,
        })
    }

    /// The parameters, with those that are trained as leaves of a graph of gradients.
    fn leaves(&self) -> Vec<Tensor<4>> {
        let all = self.network.parameters.iter().zip(&self.state.parameters);
        all.map(|(p, t)| match p.role {
            Role::Statistic => t.clone(),
            _ => t.clone().autodiff().require_grad(),
        })
        .collect()
    }

    /// Changes all parameters by their gradients.
    fn descend(&mut self, leaves: &[Tensor<4>], gradients: &mut Gradients) {
        let rate = self.learning_rate();
        let c = &self.configuration;
        let State { parameters, kept, .. } = &mut self.state;
        let all = self.network.parameters.iter().zip(parameters).zip(leaves);
        for (i, ((p, value), leaf)) in all.enumerate() {
            let Some(gradient) = leaf.grad_remove(gradients) else {
                continue;
            };
            let gradient = match p.role {
                Role::Weights if c.weight_decay > 0.0 => gradient + value.clone().mul_scalar(c.weight_decay),
                _ => gradient,
            };
            let mut kept: Vec<_> = kept.iter_mut().filter_map(|k| k.get_mut(i)).collect();
            c.optimizer.step(value, &mut kept, gradient, rate, c.momentum);
        }
    }

    fn not_finite(&self, what: &str, found: f32) -> Error {
        Error::NotFinite {
            step: self.state.step,
            what: what.to_owned(),
            found,
        }
    }

    /// Averages ranges with the extremes of a batch; a range can have several sources.
    fn observe(&mut self, ranges: &[usize], ends: &[f32]) -> Result<()> {
        let Some(q) = &self.configuration.quantizing else {
            return Ok(());
        };
        let decay = q.decay;
        let mut batch: Vec<Option<(f32, f32)>> = vec![None; self.state.ranges.len()];
        for (r, pair) in ranges.iter().zip(ends.chunks_exact(2)) {
            let &[low, high] = pair else { continue };
            if !(low.is_finite() && high.is_finite()) {
                let name = range_name(self.network, *r);
                let found = if low.is_finite() { high } else { low };
                return Err(self.not_finite(&format!("an element of \"{name}\""), found));
            }
            if let Some(all) = batch.get_mut(*r) {
                *all = Some(all.map_or((low, high), |(l, h)| (l.min(low), h.max(high))));
            }
        }
        for (range, found) in self.state.ranges.iter_mut().zip(batch) {
            if let Some((low, high)) = found {
                *range = Some(Range::after(*range, low, high, decay));
            }
        }
        Ok(())
    }

    /// How the trained network computes, with quantized activations if it is trained so.
    fn evaluated<'b>(&'b self, grids: &'b [Option<Grid>]) -> Pass<'b> {
        let q = self.configuration.quantizing.as_ref();
        Pass {
            parameters: &self.state.parameters,
            statistics: Statistics::Frozen,
            quantization: q.map(|q| Quantization {
                weights: q.weights,
                per_tensor: q.per_tensor,
                grids,
            }),
            observe: false,
        }
    }

    /// What the network scores on the test pictures.
    pub fn score(&self) -> Result<Score> {
        let grids = self.grids(true)?;
        let pass = self.evaluated(&grids);
        let logits = logits(
            self.network,
            &pass,
            &self.data.test,
            &self.configuration,
            &self.device,
        )?;
        let rules = self.configuration.task.rules();
        Ok(rules.score(&logits, &self.data.test.labels, self.network.picture))
    }

    /// Fails if a parameter is not finite.
    pub fn check_parameters(&self) -> Result<()> {
        for (p, t) in self.network.parameters.iter().zip(&self.state.parameters) {
            if let Some(v) = numbers(t.clone())?.iter().find(|v| !v.is_finite()) {
                return Err(self.not_finite(&format!("an element of \"{}\"", p.name), *v));
            }
        }
        Ok(())
    }
}

/// The name of a value of a range.
fn range_name(network: &Network, range: usize) -> String {
    let value = network
        .model
        .placement
        .ranges
        .get(range)
        .and_then(|r| r.values.first());
    value
        .map(|v| network.model.graph.value(*v).name.clone())
        .unwrap_or_default()
}

/// The grids of all ranges. Pictures, and results whose function fixes their range, have 8 bits.
pub fn grids(network: &Network, ranges: &[Option<Range>], bits: Bits) -> Result<Vec<Option<Grid>>> {
    let placed = network.model.placement.ranges.iter().zip(ranges).enumerate();
    let grid = |(i, (placed, range)): (usize, (_, &Option<Range>))| {
        let placed: &SharedRange = placed;
        if let Some(fixed) = placed.fixed {
            return Ok(Some(Grid::with(fixed, Bits::EIGHT)));
        }
        let Some(range) = with_constants(network, &placed.sources, *range) else {
            return Ok(None);
        };
        let input = placed.sources.iter().any(|v| network.model.graph.is_input(*v));
        let bits = if input { Bits::EIGHT } else { bits };
        Grid::of(range.low, range.high, bits).map(Some).ok_or_else(|| {
            let what = format!(
                "\"{}\" has no usable scale: {} to {}",
                range_name(network, i),
                range.low,
                range.high
            );
            Error::model(&network.model.path, what)
        })
    };
    placed.map(grid).collect()
}

/// A range and the elements of the constants among its sources.
fn with_constants(network: &Network, sources: &[ValueId], range: Option<Range>) -> Option<Range> {
    let graph = &network.model.graph;
    let constants = sources
        .iter()
        .filter_map(|v| graph.value(*v).fact.as_ref()?.as_const());
    constants
        .filter_map(|t| t.to_f32().ok())
        .fold(range, |all, elements| {
            elements.iter().fold(all, |all, v| match all {
                None => Some(Range { low: *v, high: *v }),
                Some(r) => Some(Range {
                    low: r.low.min(*v),
                    high: r.high.max(*v),
                }),
            })
        })
}

/// Pictures that are evaluated at a time, unless the model has a fixed batch size.
const EVALUATED: usize = 100;

/// The logits of all pictures.
pub fn logits(
    network: &Network,
    pass: &Pass<'_>,
    pictures: &Pictures,
    configuration: &Configuration,
    device: &Device,
) -> Result<Vec<f32>> {
    let batch = network
        .check_batch(EVALUATED)
        .map_or(configuration.batch, |()| EVALUATED);
    let mut all = Vec::with_capacity(pictures.len() * network.outputs());
    let indices: Vec<usize> = (0..pictures.len()).collect();
    for part in indices.chunks(batch) {
        // A model with a fixed batch size gets the last picture several times.
        let mut filled = part.to_vec();
        if network.check_batch(part.len()).is_err() {
            filled.resize(batch, *part.last().unwrap_or(&0));
        }
        let data = pictures.batch(&filled, &configuration.normalization);
        let [c, h, w] = network.picture;
        let x = Tensor::from_data(TensorData::new(data, [filled.len(), c, h, w]), device);
        let found = numbers(network.forward(x, pass)?.logits)?;
        all.extend(found.into_iter().take(part.len() * network.outputs()));
    }
    Ok(all)
}
