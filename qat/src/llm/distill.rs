//! A run on disk: a folder that appears when the run is complete, and until then a temporary one
//! with checkpoints, from which the next run continues.

use super::decoder::{Decoder, Values, tensors, tokens};
use super::grid::{Layout, Pairs, Start};
use super::student::{Configuration, Measured, State, Student};
use crate::error::{Error, Result};
use crate::network::numbers;
use crate::run::{CHECKPOINT, Files, METRICS, MODEL, joined, kept_lines};
use crate::train::checksum;
use burn::tensor::Device;
use serde_json::{Value, json};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::time::Instant;
use transformer_lite::unstable::error::{Error as EngineError, Stage};
use transformer_lite::unstable::files::write_whole;
use transformer_lite::unstable::llm::load::{Loaded, Purpose};
use transformer_lite::unstable::quant::{Bits, ColumnMethod, Packed};
use transformer_lite::unstable::tensor::DType;
use transformer_lite::{LoadOptions, ModelFolder};
use transformer_lite_convert::new_folder::NewFolder;
use transformer_lite_convert::quantize::{Methods, Options, quantize_with, replace_into};

/// Prefix of the name of the temporary folder.
const PREFIX: &str = ".distill-";
/// The folder of trained floats in the temporary folder.
const FLOAT: &str = "float";

/// What is reported while a run goes on.
pub trait Progress {
    /// The run begins at `step` of `steps`.
    fn begin(&mut self, step: u64, steps: u64);
    /// A step is done.
    fn step(&mut self, step: u64, measured: &Measured);
    /// A line of metrics was written.
    fn line(&mut self, line: &Value);
}

/// What a run reads.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// Folder of the float model.
    pub model: &'a Path,
    pub decoder: &'a Decoder,
    /// Weights of the float model.
    pub values: &'a Values,
    pub start: &'a Start,
    pub sequences: &'a [Vec<u32>],
    /// Sequences of a forward pass.
    pub at_once: usize,
}

/// Checksum of a model's files.
pub fn model_checksum(folder: &Path, values: &Values) -> Result<String> {
    let path = folder.join(MODEL);
    let graph = std::fs::read(&path).map_err(|e| Error::io("read", &path, e))?;
    let sums: String = values.iter().map(|v| checksum_of(v)).collect();
    Ok(checksum(&[&graph, sums.as_bytes()]))
}

fn checksum_of(values: &[f32]) -> String {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    checksum(&[&bytes])
}

/// Checksum of sequences.
pub fn text_checksum(sequences: &[Vec<u32>]) -> String {
    let bytes: Vec<u8> = sequences.iter().flatten().flat_map(|t| t.to_le_bytes()).collect();
    checksum(&[&bytes])
}

/// Fails unless the engine computes the same logits from a folder as the decoder from `values`.
pub fn check(folder: &Path, decoder: &Decoder, values: &Values, device: &Device) -> Result<()> {
    /// Largest difference, as a share of the largest logit.
    const TOLERANCE: f32 = 0.01;
    let ids: Vec<u32> = (0u32..8)
        .map(|i| i * 13 % u32::try_from(decoder.vocab).unwrap_or(1).max(1))
        .collect();
    let options = LoadOptions {
        context: Some(16),
        float: Some(DType::F32),
        ..LoadOptions::default()
    };
    let loaded = Loaded::new(
        &ModelFolder::holding("MODEL", folder, &[])?,
        &options,
        Purpose::Evaluation,
        &mut |_| {},
    )?;
    let expected = loaded.model()?.forward_all(&ids)?;
    let weights = tensors(&decoder.parameters, values, device);
    let positions = decoder.positions(ids.len(), device);
    let found = numbers(decoder.forward(&weights, tokens(&[&ids], device), &positions))?;
    let largest = expected.iter().fold(1.0f32, |m, v| m.max(v.abs()));
    let apart = expected
        .iter()
        .zip(&found)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    if expected.len() != found.len() || apart.is_nan() || apart > TOLERANCE * largest {
        let what = format!(
            "the model computes something else than a decoder of the families llama, mistral, qwen2 or qwen3: \
             logits differ by {apart}"
        );
        return Err(Error::model(&decoder.path, what));
    }
    Ok(())
}

/// Trains, and writes the result to the output folder. Returns the last line of metrics.
///
/// If an earlier run to the same output was interrupted, it continues from its checkpoint, which
/// must be of the same configuration. `None` if [`Files::stop_after`] ended it early.
pub fn run(
    job: &Job<'_>,
    configuration: Configuration,
    device: &Device,
    files: &Files,
    progress: &mut dyn Progress,
) -> Result<Option<Value>> {
    if files.restart
        && let Some(old) = NewFolder::unfinished(&files.output, PREFIX).filter(|p| p.exists())
    {
        std::fs::remove_dir_all(&old).map_err(|e| Error::io("remove", &old, e))?;
    }
    if job.sequences.len() <= configuration.held_out {
        let what = format!(
            "expected less than the {} sequences, found {}",
            job.sequences.len(),
            configuration.held_out
        );
        return Err(Error::option("--held-out", what));
    }
    let folder = NewFolder::resume(&files.output, PREFIX)?;
    let checkpoint = folder.temporary().join(CHECKPOINT);
    let metrics = folder.temporary().join(METRICS);
    let resumed = checkpoint.exists();
    let state = match resumed {
        true => Some(State::load(&checkpoint, job.decoder, &configuration, device)?),
        false => None,
    };
    let teacher = configuration.distilled.then_some(job.values.as_slice());
    let steps = configuration.steps;
    let mut student = Student::new(
        job.decoder,
        job.start,
        teacher,
        job.sequences,
        configuration,
        state,
        (job.at_once, device),
    )?;
    let mut lines = if resumed {
        kept_lines(&metrics, student.state.step)
    } else {
        Vec::new()
    };
    write_whole(&metrics, |f| f.write_all(joined(&lines).as_bytes()))?;
    let mut log = OpenOptions::new()
        .append(true)
        .open(&metrics)
        .map_err(|e| Error::io("write", &metrics, e))?;
    let mut put = |line: Value, progress: &mut dyn Progress| {
        writeln!(log, "{line}").map_err(|e| Error::io("write", &metrics, e))?;
        progress.line(&line);
        lines.push(line);
        Ok::<(), Error>(())
    };
    let (began, mut saved) = (Instant::now(), Instant::now());
    progress.begin(student.state.step, steps);
    let with_held_out = |student: &Student<'_>, mut line: Value| -> Result<Value> {
        if let Some(held) = student.evaluate()? {
            line["held_out_loss"] = json!(held.loss);
            line["held_out_kl"] = json!(held.divergence);
        }
        Ok(line)
    };
    if student.state.step == 0 {
        let line = json!({ "step": 0, "confidence": student.state.confidence });
        put(with_held_out(&student, line)?, progress)?;
    }
    let last = files.stop_after.map_or(steps, |n| n.min(steps));
    let mut since: Vec<Measured> = Vec::new();
    while student.state.step < last {
        let rate = student.learning_rate();
        let measured = student.step()?;
        let step = student.state.step;
        since.push(measured);
        progress.step(step, &measured);
        if step == steps || step.is_multiple_of(files.log.max(1)) {
            #[expect(clippy::cast_precision_loss, reason = "a number of steps")]
            let mean = |f: fn(&Measured) -> f64| since.iter().map(f).sum::<f64>() / since.len().max(1) as f64;
            let line = json!({
                "step": step,
                "loss": mean(|m| m.loss),
                "kl": mean(|m| m.divergence),
                "learning_rate": rate,
                "seconds": began.elapsed().as_secs_f64(),
            });
            since.clear();
            put(with_held_out(&student, line)?, progress)?;
        }
        if saved.elapsed() >= files.every {
            student
                .state
                .save(&checkpoint, job.decoder, &student.configuration)?;
            saved = Instant::now();
        }
    }
    student
        .state
        .save(&checkpoint, job.decoder, &student.configuration)?;
    if last < steps {
        return Ok(None);
    }
    let values = student.values()?;
    export(job, &values, &student.configuration, &folder)?;
    let path = folder.path().join(METRICS);
    std::fs::write(&path, joined(&lines)).map_err(|e| Error::io("write", &path, e))?;
    folder.commit()?;
    Ok(lines.pop())
}

/// Writes the trained model, in floats or quantized, with the other files of its source.
fn export(job: &Job<'_>, values: &Values, configuration: &Configuration, folder: &NewFolder) -> Result<()> {
    let named = |name: &str| {
        let at = job.decoder.parameters.iter().position(|p| p.name == name)?;
        values.get(at).map(Vec::as_slice)
    };
    let Some(q) = &configuration.quantizing else {
        return Ok(replace_into(job.model, folder.path(), &named)?);
    };
    let float = folder.temporary().join(FLOAT);
    if float.exists() {
        std::fs::remove_dir_all(&float).map_err(|e| Error::io("remove", &float, e))?;
    }
    std::fs::create_dir(&float).map_err(|e| Error::io("create", &float, e))?;
    replace_into(job.model, &float, &named)?;
    let bits = Bits::new(i64::from(q.bits)).unwrap_or(Bits::Four);
    let options = Options {
        group_size: q.group_size,
        bits,
        ..Options::default()
    };
    let mut finished = Finished {
        decoder: job.decoder,
        start: job.start,
        values,
    };
    quantize_with(&float, folder.path(), &options, &mut finished, &mut |_| {})?;
    Ok(())
}

/// Weights with the grids that they were trained on.
struct Finished<'a> {
    decoder: &'a Decoder,
    start: &'a Start,
    values: &'a Values,
}

impl Finished<'_> {
    /// The values of a weight, and how they are quantized.
    fn of(&self, name: &str) -> Option<(&[f32], &(Layout, Pairs))> {
        let at = self.decoder.parameters.iter().position(|p| p.name == name)?;
        Some((self.values.get(at)?, self.start.grids.get(at)?.as_ref()?))
    }
}

impl Methods for Finished<'_> {
    fn name(&self) -> &'static str {
        "distill"
    }

    fn of<'a>(
        &'a self,
        weight: &str,
        k: usize,
    ) -> std::result::Result<Box<dyn ColumnMethod + 'a>, EngineError> {
        let what = format!("weight \"{weight}\" with {k} rows was not trained with fake quantization");
        Err(EngineError::other(Stage::Quantize, what))
    }

    fn packed(&self, weight: &str) -> std::result::Result<Option<Packed>, EngineError> {
        let Some((values, (layout, pairs))) = Self::of(self, weight) else {
            return Ok(None);
        };
        let failed = |e| EngineError::other(Stage::Quantize, format!("weight \"{weight}\": {e}"));
        layout.pack(values, pairs).map(Some).map_err(failed)
    }

    fn key(&self, weight: &str) -> String {
        let Some((values, (_, pairs))) = Self::of(self, weight) else {
            return String::new();
        };
        let pairs: Vec<f32> = pairs.iter().flatten().map(|v| v.to_f32()).collect();
        format!("distill {} {}", checksum_of(values), checksum_of(&pairs))
    }
}
