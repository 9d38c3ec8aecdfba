//! Training steps of a student, and its state on disk.

use super::decoder::{Decoder, Positions, tensors, tokens};
use super::grid::{Grid, Start};
use super::loss::{self, Loss};
use crate::checkpoint::{self, Named};
use crate::data::shuffled;
use crate::error::{Error, Result};
use crate::network::numbers;
use crate::train::check_options;
use burn::tensor::{Device, Int, Tensor};
use serde::{Deserialize, Serialize};
use std::path::Path;
use transformer_lite::unstable::num::random_bits;

/// How weights are quantized.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Quantizing {
    pub bits: u32,
    pub group_size: usize,
    /// The method that chose the grids, or a checksum of the model that had them.
    pub start: String,
}

/// What the result of a run depends on.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Configuration {
    /// Checksums of the model and of the sequences.
    pub model: String,
    pub text: String,
    /// Learns from the float model instead of from the next tokens.
    pub distilled: bool,
    /// `None` for training in floats.
    pub quantizing: Option<Quantizing>,
    pub steps: u64,
    pub batch: usize,
    /// Tokens of a sequence that predict their successors.
    pub length: usize,
    pub learning_rate: f64,
    pub seed: u64,
    /// Sequences that are not trained on, to measure the result.
    pub held_out: usize,
}

/// Everything that later steps depend on.
#[derive(Clone, Debug)]
pub struct State {
    /// Number of steps that are done.
    pub step: u64,
    /// Mean probability of the tokens of the text for the teacher.
    pub confidence: f64,
    pub parameters: Vec<Tensor<2>>,
    /// Moving averages of gradients and of their squares.
    pub moments: [Vec<Tensor<2>>; 2],
}

/// What a step found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Mean loss of a token.
    pub loss: f64,
    /// Mean divergence from the teacher, in nats; the loss without a teacher.
    pub divergence: f64,
}

/// A run in progress.
#[derive(Debug)]
pub struct Student<'a> {
    decoder: &'a Decoder,
    pub configuration: Configuration,
    pub state: State,
    grids: Vec<Option<Grid>>,
    teacher: Option<Vec<Tensor<2>>>,
    sequences: &'a [Vec<u32>],
    /// Sequences of a forward pass.
    at_once: usize,
    positions: Positions,
    device: Device,
    /// The order of sequences in an epoch.
    order: (u64, Vec<usize>),
}

/// AdamW, after Loshchilov and Hutter, 2019.
const DECAYS: [f64; 2] = [0.9, 0.95];
const EPSILON: f64 = 1e-8;
/// Gradients with a larger norm are scaled down to this.
const LARGEST_NORM: f64 = 1.0;
/// Share of the run in which the learning rate rises.
const WARM_UP: f64 = 0.05;
/// Sequences whose confidence is averaged.
const CONFIDENT: usize = 64;

impl<'a> Student<'a> {
    /// Begins a run, or continues one from `state`. `teacher` are the values of the float model if
    /// it is distilled. `sequences` are at least one more than those held out.
    pub fn new(
        decoder: &'a Decoder,
        start: &Start,
        teacher: Option<&[Vec<f32>]>,
        sequences: &'a [Vec<u32>],
        configuration: Configuration,
        state: Option<State>,
        (at_once, device): (usize, &Device),
    ) -> Result<Self> {
        let began = state.is_some();
        let zeros = || {
            decoder
                .parameters
                .iter()
                .map(|p| Tensor::zeros(p.shape, device))
                .collect()
        };
        let state = state.unwrap_or_else(|| State {
            step: 0,
            confidence: 0.0,
            parameters: tensors(&decoder.parameters, &start.values, device),
            moments: [zeros(), zeros()],
        });
        let grids = match configuration.quantizing {
            Some(_) => start.grids(device),
            None => vec![None; decoder.parameters.len()],
        };
        let mut student = Self {
            decoder,
            grids,
            teacher: teacher.map(|t| tensors(&decoder.parameters, t, device)),
            sequences,
            at_once: at_once.max(1),
            positions: decoder.positions(configuration.length, device),
            device: device.clone(),
            order: (u64::MAX, Vec::new()),
            configuration,
            state,
        };
        if !began {
            student.state.confidence = student.confidence()?;
        }
        Ok(student)
    }

    /// Fed tokens and their successors.
    fn feed(&self, sequences: &[&Vec<u32>]) -> [Tensor<1, Int>; 2] {
        let length = self.configuration.length;
        [0, 1].map(|from| {
            let parts = sequences
                .iter()
                .map(|s| s.get(from..from + length).unwrap_or_default());
            let parts: Vec<&[u32]> = parts.collect();
            tokens(&parts, &self.device)
        })
    }

    /// The sequences to train on and those held out.
    fn parts(&self) -> (&'a [Vec<u32>], &'a [Vec<u32>]) {
        let trained = self.sequences.len().saturating_sub(self.configuration.held_out);
        self.sequences.split_at(trained)
    }

    /// Mean probability of the next tokens for the teacher.
    #[expect(clippy::cast_precision_loss, reason = "numbers of tokens")]
    fn confidence(&self) -> Result<f64> {
        let Some(teacher) = &self.teacher else {
            return Ok(0.0);
        };
        let all: Vec<&Vec<u32>> = self.parts().0.iter().take(CONFIDENT).collect();
        let sums = all.chunks(self.at_once).map(|part| {
            let [fed, next] = self.feed(part);
            loss::confidence(self.decoder.forward(teacher, fed, &self.positions), next)
        });
        let sum: f64 = sums.sum::<Result<f64>>()?;
        Ok(sum / (all.len() * self.configuration.length).max(1) as f64)
    }

    /// The sequences of the next step.
    fn batch(&mut self) -> Vec<&'a Vec<u32>> {
        let trained = self.parts().0;
        let (batch, count) = (wide(self.configuration.batch), wide(trained.len()).max(1));
        let mut out = Vec::new();
        for at in self.state.step * batch..(self.state.step + 1) * batch {
            let epoch = at / count;
            if self.order.0 != epoch {
                self.order = (
                    epoch,
                    shuffled(trained.len(), random_bits(self.configuration.seed, epoch)),
                );
            }
            let at = usize::try_from(at % count).unwrap_or(0);
            out.extend(self.order.1.get(at).and_then(|i| trained.get(*i)));
        }
        out
    }

    /// The learning rate of the next step: it rises, then falls to 0 along half a cosine wave.
    #[expect(clippy::cast_precision_loss, reason = "numbers of steps")]
    pub fn learning_rate(&self) -> f64 {
        let c = &self.configuration;
        let (step, steps) = (self.state.step as f64, c.steps.max(1) as f64);
        let rise = ((step + 1.0) / (steps * WARM_UP).max(1.0)).min(1.0);
        c.learning_rate * rise * 0.5 * (1.0 + (std::f64::consts::PI * step / steps).cos())
    }

    /// The weights with which the student computes.
    fn effective(&self) -> Vec<Tensor<2>> {
        let fake = |(w, grid): (&Tensor<2>, &Option<Grid>)| match grid {
            Some(grid) => grid.fake(w.clone()),
            None => w.clone(),
        };
        self.state.parameters.iter().zip(&self.grids).map(fake).collect()
    }

    /// Loss of logits of the student.
    fn loss(&self, logits: Tensor<2>, fed: Tensor<1, Int>, next: Tensor<1, Int>) -> Loss {
        match &self.teacher {
            Some(teacher) => {
                let teacher = self.decoder.forward(teacher, fed, &self.positions);
                loss::divergence(logits, teacher, self.state.confidence)
            }
            None => loss::cross_entropy(logits, next),
        }
    }

    /// Means of sums over tokens.
    #[expect(clippy::cast_precision_loss, reason = "numbers of tokens")]
    fn measured(&self, sums: Option<Tensor<1>>, sequences: usize) -> Result<Measured> {
        let sums = sums.map(numbers).transpose()?.unwrap_or_default();
        let count = (sequences * self.configuration.length).max(1) as f64;
        let mean = |i: usize| sums.get(i).map_or(f64::NAN, |v| f64::from(*v) / count);
        Ok(Measured {
            loss: mean(0),
            divergence: mean(1),
        })
    }

    /// The loss over the sequences held out; `None` if there are none.
    pub fn evaluate(&self) -> Result<Option<Measured>> {
        let held: Vec<&Vec<u32>> = self.parts().1.iter().collect();
        let (weights, mut sums) = (self.effective(), None);
        for part in held.chunks(self.at_once) {
            let [fed, next] = self.feed(part);
            let logits = self.decoder.forward(&weights, fed.clone(), &self.positions);
            sums = sum(sums, self.loss(logits, fed, next).sums);
        }
        let any = !held.is_empty();
        any.then(|| self.measured(sums, held.len())).transpose()
    }

    /// Makes a step. An error names the step if the loss is not finite.
    #[expect(clippy::cast_precision_loss, reason = "numbers of tokens")]
    pub fn step(&mut self) -> Result<Measured> {
        let batch = self.batch();
        let leaves: Vec<Tensor<2>> = self
            .effective()
            .into_iter()
            .map(|w| w.autodiff().require_grad())
            .collect();
        let (mut sums, mut gradients) = (None, vec![None; leaves.len()]);
        let count = (batch.len() * self.configuration.length).max(1) as f64;
        for part in batch.chunks(self.at_once) {
            let [fed, next] = self.feed(part);
            let logits = self.decoder.forward(&leaves, fed.clone(), &self.positions);
            let loss = self.loss(logits.clone().inner(), fed, next);
            sums = sum(sums, loss.sums);
            // The derivative of this by the logits is the gradient of the loss.
            let linear = (logits * Tensor::from_inner(loss.gradient.div_scalar(count))).sum();
            let mut found = linear.backward();
            for (leaf, all) in leaves.iter().zip(&mut gradients) {
                if let Some(new) = leaf.grad_remove(&mut found) {
                    *all = sum(all.take(), new);
                }
            }
        }
        let measured = self.measured(sums, batch.len())?;
        if !measured.loss.is_finite() {
            #[expect(clippy::cast_possible_truncation, reason = "for a message")]
            let found = measured.loss as f32;
            return Err(Error::NotFinite {
                step: self.state.step + 1,
                what: "the loss".to_owned(),
                found,
            });
        }
        self.update(gradients);
        Ok(measured)
    }

    /// Changes the parameters (AdamW). Gradients by rounded weights are taken for those by the
    /// weights (straight-through estimator); weights stay in the range of their group.
    fn update(&mut self, gradients: Vec<Option<Tensor<2>>>) {
        let squares: Vec<Tensor<1>> = gradients
            .iter()
            .flatten()
            .map(|g| g.clone().square().sum())
            .collect();
        if squares.is_empty() {
            return;
        }
        let norm = Tensor::cat(squares, 0).sum().sqrt();
        let factor = norm
            .clamp_min(LARGEST_NORM)
            .recip()
            .mul_scalar(LARGEST_NORM)
            .reshape([1, 1]);
        let rate = self.learning_rate();
        self.state.step += 1;
        let t = i32::try_from(self.state.step).unwrap_or(i32::MAX);
        let [unbias_1, unbias_2] = DECAYS.map(|d| 1.0 - d.powi(t));
        let [means, squares] = &mut self.state.moments;
        let state = self.state.parameters.iter_mut().zip(means).zip(squares);
        for ((((w, mean), square), g), grid) in state.zip(gradients).zip(&self.grids) {
            let Some(g) = g else { continue };
            let g = g * factor.clone();
            *mean = mean.clone().mul_scalar(DECAYS[0]) + g.clone().mul_scalar(1.0 - DECAYS[0]);
            *square = square.clone().mul_scalar(DECAYS[1]) + g.square().mul_scalar(1.0 - DECAYS[1]);
            let root = square.clone().div_scalar(unbias_2).sqrt().add_scalar(EPSILON);
            let moved = w.clone() - mean.clone().div(root).mul_scalar(rate / unbias_1);
            *w = match grid {
                Some(grid) => grid.clip(moved),
                None => moved,
            };
        }
    }

    /// The parameters on the host. An error names one that is not finite.
    pub fn values(&self) -> Result<Vec<Vec<f32>>> {
        let value = |(p, t): (&super::decoder::Parameter, &Tensor<2>)| {
            let values = numbers(t.clone())?;
            match values.iter().find(|v| !v.is_finite()) {
                None => Ok(values),
                Some(v) => {
                    let what = format!("an element of \"{}\"", p.name);
                    Err(Error::NotFinite {
                        step: self.state.step,
                        what,
                        found: *v,
                    })
                }
            }
        };
        self.decoder
            .parameters
            .iter()
            .zip(&self.state.parameters)
            .map(value)
            .collect()
    }
}

fn wide(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

fn sum<const D: usize>(all: Option<Tensor<D>>, new: Tensor<D>) -> Option<Tensor<D>> {
    Some(match all {
        Some(all) => all + new,
        None => new,
    })
}

/// Name of the entry of the file's metadata.
const KEY: &str = "tlite_qat_distill";
/// Prefixes of the names of tensors.
const PREFIXES: [&str; 3] = ["parameter.", "mean.", "square."];

/// What is not a tensor.
#[derive(Debug, Deserialize, Serialize)]
struct Header {
    configuration: Configuration,
    step: u64,
    confidence: f64,
}

impl State {
    /// Writes the state; the file appears complete or not at all.
    pub fn save(&self, path: &Path, decoder: &Decoder, configuration: &Configuration) -> Result<()> {
        let header = Header {
            configuration: configuration.clone(),
            step: self.step,
            confidence: self.confidence,
        };
        let [parameters, means, squares] = PREFIXES;
        let groups = [
            (parameters, &self.parameters[..]),
            (means, &self.moments[0]),
            (squares, &self.moments[1]),
        ];
        checkpoint::write(path, KEY, &header, &named(decoder), &groups)
    }

    /// Reads a state of this decoder, which must be of a run with the same configuration.
    pub fn load(path: &Path, decoder: &Decoder, wanted: &Configuration, device: &Device) -> Result<Self> {
        let check = |header: &Header| check_options(&header.configuration, wanted).map(|()| Vec::new());
        let (header, [parameters, means, squares], _) =
            checkpoint::read(path, KEY, check, &named(decoder), PREFIXES, device)?;
        Ok(Self {
            step: header.step,
            confidence: header.confidence,
            parameters,
            moments: [means, squares],
        })
    }
}

fn named(decoder: &Decoder) -> Vec<Named<'_, 2>> {
    let parameters = decoder.parameters.iter();
    parameters.map(|p| (p.name.as_str(), p.shape)).collect()
}
