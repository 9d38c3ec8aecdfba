//! Runs a model, float or quantized, in the engine over test pictures.

use crate::checkpoint::State;
use crate::data::{Normalization, Pictures};
use crate::error::{Error, Result};
use crate::export::Integers;
use crate::network::Network;
use crate::run::{CHECKPOINT, FLOAT};
use crate::task::{Score, Task};
use crate::train::{checksum, logits};
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
    #[serde(flatten)]
    pub score: Score,
    /// The beginning of the SHA-256 sum of all logits.
    pub checksum: String,
    /// `None` if no trained network is compared.
    pub trained: Option<Agreement>,
}

/// How an exported file agrees with the network that was trained.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Agreement {
    /// Share of pictures with the same largest logit; only for classifiers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub same_top1: Option<f64>,
    /// The largest difference of two outputs, in steps of the exported output; null if an output is
    /// not quantized.
    pub most_steps: Option<f32>,
    /// The main number of the score of the trained network.
    pub trained_score: f64,
}

/// Channels, height and width of a model's pictures, and the sizes of its output without the batch.
pub fn sizes(path: &Path) -> Result<([usize; 3], Vec<usize>)> {
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
        (Some([c, h, w]), Some(output)) => Ok(([*c, *h, *w], output)),
        _ => Err(Error::model(
            path,
            "does not map pictures of a fixed size to numbers of a fixed count",
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
        let numbers = pictures.batch(&filled, normalization);
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
    task: Task,
    pictures: &Pictures,
    normalization: &Normalization,
    how: (Place, Integer),
    trained: Option<&Path>,
) -> Result<Report> {
    let found = outputs(path, pictures, normalization, how)?;
    let bytes: Vec<u8> = found.iter().flat_map(|v| v.to_le_bytes()).collect();
    Ok(Report {
        pictures: pictures.len(),
        score: task.rules().score(&found, &pictures.labels, pictures.size),
        checksum: checksum(&[&bytes]),
        trained: trained
            .map(|t| agreement(t, task, pictures, &found))
            .transpose()?,
    })
}

/// Compares outputs of an exported file with the network of the same folder.
fn agreement(folder: &Path, task: Task, pictures: &Pictures, found: &[f32]) -> Result<Agreement> {
    let network = Network::open(&folder.join(FLOAT))?;
    let device = Device::flex();
    let (state, configuration) = State::load(&folder.join(CHECKPOINT), &network, None, &device)?;
    if configuration.task != task {
        let what = format!("expected a run of the task {task}, found {}", configuration.task);
        return Err(Error::option("--trained", what));
    }
    let quantizing = configuration.quantizing.as_ref();
    let quantizing =
        quantizing.ok_or_else(|| Error::option("--trained", "the run was not quantization-aware"))?;
    let integers = Integers::of(&network, &state, quantizing)?;
    let expected = logits(&network, &integers.pass(), pictures, &configuration, &device)?;
    if expected.len() != found.len() {
        let what = format!("expected {} outputs, found {}", expected.len(), found.len());
        return Err(Error::option("--trained", what));
    }
    let steps = integers.steps_of_logits(&network).map(|steps| {
        let all = expected.iter().zip(found).zip(steps.iter().cycle());
        all.map(|((a, b), step)| (a - b).abs() / step).fold(0.0, f32::max)
    });
    let score = task.rules().score(&expected, &pictures.labels, pictures.size);
    Ok(Agreement {
        same_top1: task.rules().same(&expected, found, pictures.len()),
        most_steps: steps,
        trained_score: score.main(),
    })
}
