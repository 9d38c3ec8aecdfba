//! Runs a model, float or quantized, in the engine over test pictures.

use crate::checkpoint::State;
use crate::data::{Normalization, Pictures};
use crate::error::{Error, Result};
use crate::export::Integers;
use crate::network::Network;
use crate::run::{CHECKPOINT, FLOAT};
use crate::train::{checksum, largest, logits, top1};
use burn::tensor::Device;
use serde::Serialize;
use std::path::Path;
use transformer_lite::unstable::cancel::Cancel;
use transformer_lite::unstable::graph::derive::derive;
use transformer_lite::unstable::graph::onnx::import;
use transformer_lite::unstable::quant::fixed::Arithmetic;
use transformer_lite::unstable::runner::{Runner, RunnerOptions};
use transformer_lite::unstable::tensor::HostTensor;
use transformer_lite::unstable::{backend, devices};

/// Where the engine runs a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Place {
    /// Native kernels.
    #[default]
    Cpu,
    /// The interpreter.
    Reference,
}

/// How the engine computes quantized operators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Integer {
    /// With integers, rescaled in float as ONNX specifies.
    #[default]
    Float,
    /// With integers only.
    Fixed,
    /// In floats.
    Off,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    pub pictures: usize,
    /// Share of pictures whose largest logit is that of their label.
    pub top1: f64,
    /// Mean over the classes of the average precision of each class against the others.
    pub mean_ap: f64,
    /// The beginning of the SHA-256 sum of all logits.
    pub checksum: String,
    /// `None` if no trained network is compared.
    pub trained: Option<Agreement>,
}

/// How an exported file agrees with the network that was trained.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Agreement {
    /// Share of pictures with the same largest logit.
    pub same_top1: f64,
    /// The largest difference of two logits, in steps of the exported output; null if the output is
    /// not quantized.
    pub most_steps: Option<f32>,
    pub trained_top1: f64,
}

/// Channels, height and width of a model's pictures, and its number of classes.
pub fn sizes(path: &Path) -> Result<([usize; 3], usize)> {
    let mut graph = import(path)?;
    derive(&mut graph)?;
    let fixed = |v: Option<&transformer_lite::unstable::graph::ValueId>| -> Option<Vec<usize>> {
        let sizes = graph.value(*v?).fact.as_ref()?.shape.0.get(1..)?;
        sizes
            .iter()
            .map(|d| usize::try_from(d.as_const()?).ok())
            .collect()
    };
    let (input, output) = (fixed(graph.inputs().first()), fixed(graph.outputs().first()));
    match (input.as_deref(), output) {
        (Some([c, h, w]), Some(classes)) => Ok(([*c, *h, *w], classes.iter().product())),
        _ => Err(Error::model(
            path,
            "does not map pictures of a fixed size to scores of classes",
        )),
    }
}

/// Pictures that the engine runs at a time.
const BATCH: usize = 50;

/// The outputs of a model for all pictures.
pub fn outputs(
    path: &Path,
    pictures: &Pictures,
    normalization: &Normalization,
    (place, integer): (Place, Integer),
) -> Result<Vec<f32>> {
    let options = RunnerOptions {
        integer: match integer {
            Integer::Float => Some(Arithmetic::Float),
            Integer::Fixed => Some(Arithmetic::Fixed),
            Integer::Off => None,
        },
        ..RunnerOptions::default()
    };
    let opened = match place {
        Place::Cpu => {
            let open = devices::open(backend::BackendKind::Cpu, &backend::OpenOptions::default());
            let what = "opening the backend cpu";
            Some(open.map_err(|e| transformer_lite::Error::device(transformer_lite::Stage::Run, what, e))?)
        }
        Place::Reference => None,
    };
    let mut runner = Runner::load(path, opened, &options)?;
    let input = runner
        .inputs()
        .next()
        .map(|(name, fact)| (name.to_owned(), fact.clone()));
    let (name, fact) = input.ok_or_else(|| Error::model(path, "has no input"))?;
    let fixed = fact
        .shape
        .0
        .first()
        .and_then(|d| usize::try_from(d.as_const()?).ok());
    let batch = fixed.unwrap_or(BATCH).max(1);
    let indices: Vec<usize> = (0..pictures.len()).collect();
    let mut all = Vec::new();
    for part in indices.chunks(batch) {
        let mut filled = part.to_vec();
        if let Some(last) = part.last().filter(|_| fixed.is_some()) {
            filled.resize(batch, *last);
        }
        let (numbers, _) = pictures.batch(&filled, normalization, None);
        let [c, h, w] = pictures.size;
        let x = HostTensor::from_f32(&[filled.len(), c, h, w], &numbers)?;
        let found = runner.run(&[(name.clone(), x)], &Cancel::default())?;
        let (_, y) = found.first().ok_or_else(|| Error::model(path, "has no output"))?;
        let y = y.to_f32()?;
        let each = y.len() / filled.len().max(1);
        all.extend(y.iter().take(part.len() * each));
    }
    Ok(all)
}

/// Evaluates a model, and compares it with the trained network of the folder `trained`.
pub fn evaluate(
    path: &Path,
    pictures: &Pictures,
    normalization: &Normalization,
    how: (Place, Integer),
    trained: Option<&Path>,
) -> Result<Report> {
    let found = outputs(path, pictures, normalization, how)?;
    let classes = found.len() / pictures.len().max(1);
    let bytes: Vec<u8> = found.iter().flat_map(|v| v.to_le_bytes()).collect();
    Ok(Report {
        pictures: pictures.len(),
        top1: top1(&found, classes, &pictures.labels),
        mean_ap: mean_average_precision(&found, classes, &pictures.labels),
        checksum: checksum(&[&bytes]),
        trained: trained.map(|t| agreement(t, pictures, &found)).transpose()?,
    })
}

/// The mean over the classes of their average precision: that of the pictures with the label, in the
/// order of their probabilities. Classes without pictures do not count.
#[expect(clippy::cast_precision_loss, reason = "numbers of pictures")]
fn mean_average_precision(logits: &[f32], classes: usize, labels: &[usize]) -> f64 {
    let rows = logits.chunks_exact(classes.max(1));
    let probabilities: Vec<Vec<f64>> = rows
        .map(|row| {
            let most = row.iter().fold(f32::NEG_INFINITY, |a, b| a.max(*b));
            let all: Vec<f64> = row.iter().map(|v| f64::from(v - most).exp()).collect();
            let sum: f64 = all.iter().sum();
            all.into_iter().map(|v| v / sum).collect()
        })
        .collect();
    let precisions = (0..classes).filter_map(|class| {
        let mut order: Vec<(f64, bool)> = probabilities
            .iter()
            .zip(labels)
            .map(|(row, label)| (row.get(class).copied().unwrap_or(f64::NAN), *label == class))
            .collect();
        order.sort_by(|a, b| b.0.total_cmp(&a.0));
        let ranks = order.iter().enumerate().filter(|(_, (_, hit))| *hit);
        let precisions = ranks
            .enumerate()
            .map(|(n, (rank, _))| (n + 1) as f64 / (rank + 1) as f64);
        let all: Vec<f64> = precisions.collect();
        (!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64)
    });
    let all: Vec<f64> = precisions.collect();
    all.iter().sum::<f64>() / all.len().max(1) as f64
}

/// Compares outputs of an exported file with the network of the same folder.
#[expect(clippy::cast_precision_loss, reason = "numbers of pictures")]
fn agreement(folder: &Path, pictures: &Pictures, found: &[f32]) -> Result<Agreement> {
    let network = Network::open(&folder.join(FLOAT))?;
    let device = Device::flex();
    let (state, configuration) = State::load(&folder.join(CHECKPOINT), &network, None, &device)?;
    let quantizing = configuration.quantizing.as_ref();
    let quantizing =
        quantizing.ok_or_else(|| Error::option("--trained", "the run was not quantization-aware"))?;
    let integers = Integers::of(&network, &state, quantizing)?;
    let expected = logits(&network, &integers.pass(), pictures, &configuration, &device)?;
    if expected.len() != found.len() {
        let what = format!("expected {} outputs, found {}", expected.len(), found.len());
        return Err(Error::option("--trained", what));
    }
    let rows = || {
        expected
            .chunks_exact(network.classes)
            .zip(found.chunks_exact(network.classes))
    };
    let same = rows().filter(|(a, b)| largest(a) == largest(b)).count();
    let most = expected
        .iter()
        .zip(found)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    Ok(Agreement {
        same_top1: same as f64 / pictures.len().max(1) as f64,
        most_steps: integers.step_of_logits(&network).map(|s| most / s),
        trained_top1: top1(&expected, network.classes, &pictures.labels),
    })
}
