//! A training run on disk: a folder that appears when the run is complete, and until then a
//! temporary one with checkpoints, from which the next run continues.

use crate::checkpoint::State;
use crate::data::Data;
use crate::error::{Error, Result};
use crate::export::{Integers, encode_floats};
use crate::network::Network;
use crate::page::page;
use crate::train::{Configuration, Measured, Trainer};
use burn::tensor::Device;
use serde_json::{Value, json};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use transformer_lite::unstable::files::write_whole;
use transformer_lite_convert::new_folder::NewFolder;

/// Prefix of the name of the temporary folder.
const PREFIX: &str = ".train-";
/// Names of files in the output folder.
pub const CHECKPOINT: &str = "checkpoint.safetensors";
pub const FLOAT: &str = "float.onnx";
pub const MODEL: &str = "model.onnx";
pub(crate) const METRICS: &str = "metrics.jsonl";
const CURVES: &str = "curves.html";

/// What is reported while a run goes on.
pub trait Progress {
    /// The run begins at `step` of `steps`.
    fn begin(&mut self, step: u64, steps: u64);
    /// A step is done.
    fn step(&mut self, step: u64, measured: &Measured);
    /// A line of metrics was written.
    fn line(&mut self, line: &Value);
}

/// Where and how a run is kept.
#[derive(Clone, Debug)]
pub struct Files {
    pub output: PathBuf,
    /// Deletes what an unfinished run left.
    pub restart: bool,
    /// Time between checkpoints.
    pub every: Duration,
    /// Number of steps between lines of metrics.
    pub log: u64,
    /// Ends the process's part of the run after this number of steps, for tests.
    pub stop_after: Option<u64>,
}

/// Lines of metrics so far; those after the checkpoint are dropped.
pub(crate) fn kept_lines(path: &Path, step: u64) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines = text.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok());
    lines
        .filter(|l| l.get("step").and_then(Value::as_u64).is_some_and(|s| s <= step))
        .collect()
}

pub(crate) fn joined(lines: &[Value]) -> String {
    lines.iter().map(|l| format!("{l}\n")).collect()
}

/// Mean loss and accuracy since the last line.
#[derive(Default)]
struct Means {
    loss: f64,
    right: usize,
    of: usize,
    steps: u32,
}

impl Means {
    fn add(&mut self, m: &Measured) {
        self.loss += f64::from(m.loss);
        self.right += m.right;
        self.of += m.of;
        self.steps += 1;
    }

    #[expect(clippy::cast_precision_loss, reason = "numbers of predictions")]
    fn take(&mut self, step: u64, epoch: u64, rate: f64, began: Instant) -> Value {
        let m = std::mem::take(self);
        json!({
            "step": step,
            "epoch": epoch,
            "loss": m.loss / f64::from(m.steps.max(1)),
            "accuracy": m.right as f64 / m.of.max(1) as f64,
            "learning_rate": rate,
            "seconds": began.elapsed().as_secs_f64(),
        })
    }
}

/// Trains, and writes the result to the output folder. Returns the main number of the score on the test
/// pictures.
///
/// If an earlier run to the same output was interrupted, it continues from its checkpoint, which
/// must be of the same configuration. `None` if [`Files::stop_after`] ended it early.
pub fn run(
    network: &Network,
    data: &Data,
    configuration: Configuration,
    device: &Device,
    files: &Files,
    progress: &mut dyn Progress,
) -> Result<Option<f64>> {
    if files.restart
        && let Some(old) = NewFolder::unfinished(&files.output, PREFIX).filter(|p| p.exists())
    {
        std::fs::remove_dir_all(&old).map_err(|e| Error::io("remove", &old, e))?;
    }
    let folder = NewFolder::resume(&files.output, PREFIX)?;
    let checkpoint = folder.temporary().join(CHECKPOINT);
    let metrics = folder.temporary().join(METRICS);
    let state = match checkpoint.exists() {
        true => Some(State::load(&checkpoint, network, Some(&configuration), device)?.0),
        false => None,
    };
    let mut trainer = Trainer::new(network, data, configuration, state, device.clone())?;
    let mut lines = kept_lines(&metrics, trainer.state.step);
    write_whole(&metrics, |f| f.write_all(joined(&lines).as_bytes()))?;
    let mut log = OpenOptions::new()
        .append(true)
        .open(&metrics)
        .map_err(|e| Error::io("write", &metrics, e))?;
    let (began, mut saved, mut means) = (Instant::now(), Instant::now(), Means::default());
    let (steps, each) = (trainer.steps(), trainer.steps_of_epoch());
    progress.begin(trainer.state.step, steps);
    let mut accuracy = None;
    let last = files.stop_after.map_or(steps, |n| n.min(steps));
    while trainer.state.step < last {
        let rate = trainer.learning_rate();
        let measured = trainer.step()?;
        let step = trainer.state.step;
        means.add(&measured);
        progress.step(step, &measured);
        let epoch_ends = step.is_multiple_of(each);
        if epoch_ends || step.is_multiple_of(files.log.max(1)) {
            let mut line = means.take(step, step.div_ceil(each), rate, began);
            if epoch_ends {
                accuracy = Some(trainer.score()?.main());
                line["test_accuracy"] = json!(accuracy);
            }
            writeln!(log, "{line}").map_err(|e| Error::io("write", &metrics, e))?;
            progress.line(&line);
            lines.push(line);
        }
        if epoch_ends || saved.elapsed() >= files.every {
            trainer.state.save(&checkpoint, network, &trainer.configuration)?;
            saved = Instant::now();
        }
    }
    trainer.state.save(&checkpoint, network, &trainer.configuration)?;
    if last < steps {
        return Ok(None);
    }
    trainer.check_parameters()?;
    let accuracy = match accuracy {
        Some(accuracy) => accuracy,
        None => trainer.score()?.main(),
    };
    let put = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).map_err(|e| Error::io("write", &path, e))
    };
    let floats = encode_floats(network, &trainer.state)?;
    match &trainer.configuration.quantizing {
        None => put(MODEL, &floats)?,
        Some(q) => {
            put(FLOAT, &floats)?;
            put(
                MODEL,
                &Integers::of(network, &trainer.state, q)?.encode(network, steps)?,
            )?;
        }
    }
    put(METRICS, joined(&lines).as_bytes())?;
    put(CURVES, page(&lines).as_bytes())?;
    trainer
        .state
        .save(&folder.path().join(CHECKPOINT), network, &trainer.configuration)?;
    folder.commit()?;
    Ok(Some(accuracy))
}
