//! Models on a device of which one call fails, as a program that goes on sees it: the same session
//! or runner once more, and a new one.

use super::spread;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tlite_testing::faulty::{Failure, Faulty};
use tlite_testing::suite::Suite;
use tlite_testing::{Outcome, Text, Tier, equal, speaking_model};
use transformer_lite::unstable::backend::{Backend, BackendError, BackendKind, OpenOptions};
use transformer_lite::unstable::cache::{DEFAULT_LIMIT, Store};
use transformer_lite::unstable::cancel::Cancel;
use transformer_lite::unstable::devices;
use transformer_lite::unstable::error::{Error, ErrorKind, Result, Stage};
use transformer_lite::unstable::graph::onnx::write::{ModelWriter, NodeSpec, Size};
use transformer_lite::unstable::graph::pass::Target;
use transformer_lite::unstable::llm::engine::{Decoder, DeviceDecoder, Logits, SequenceConfig};
use transformer_lite::unstable::llm::{Codec, GenerateOptions, ModelFolder, Session};
use transformer_lite::unstable::note::Note;
use transformer_lite::unstable::runner::{Checks, Runner, RunnerOptions};
use transformer_lite::unstable::tensor::{DType, HostTensor};

/// Calls that fail, each in a program of its own.
const IN_CI: u64 = 16;
const NIGHTLY: u64 = 1000;

/// No failure may take longer to end a run, or a run to end after it.
const AFTER_FAILURE: Duration = Duration::from_secs(10);

/// What a program does with a device.
type Program = fn(&Path, Box<dyn Backend>, Arc<Store>) -> std::result::Result<Done, Failed>;

/// What a program read of the device, and the notes of loading.
struct Done {
    values: Vec<f64>,
    notes: Vec<String>,
}

/// The first error, and what doing the same again gave, if anything was loaded.
struct Failed {
    error: Error,
    again: Option<Result<Vec<f64>>>,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self { error, again: None }
    }
}

pub fn trials(suite: &mut Suite) {
    for device in suite.devices() {
        let kind = device.kind;
        suite.add_in(Tier::Ci, format!("backend/decoder@{kind}"), move || {
            let (_kept, folder) = speaking_model();
            Trial::new(kind, folder.clone(), decoder)?.every_call_fails()
        });
        suite.add_in(Tier::Ci, format!("backend/runner@{kind}"), move || {
            let dir = tempfile::tempdir().text()?;
            write_model(dir.path())?;
            Trial::new(kind, dir.path().to_owned(), runner)?.every_call_fails()
        });
    }
}

struct Trial {
    kind: BackendKind,
    model: std::path::PathBuf,
    program: Program,
    cache: tempfile::TempDir,
    wanted: Vec<f64>,
    calls: u64,
}

impl Trial {
    fn new(
        kind: BackendKind,
        model: std::path::PathBuf,
        program: Program,
    ) -> std::result::Result<Self, String> {
        let mut trial = Self {
            kind,
            model,
            program,
            cache: tempfile::tempdir().text()?,
            wanted: Vec::new(),
            calls: 0,
        };
        let calls = Arc::new(AtomicU64::new(0));
        trial.wanted = trial.run(None, &calls).map_err(|f| f.error.chain())?.values;
        trial.calls = calls.load(Ordering::Relaxed);
        Ok(trial)
    }

    fn store(&self) -> Arc<Store> {
        Arc::new(Store::new(self.cache.path().to_owned(), DEFAULT_LIMIT))
    }

    fn run(
        &self,
        fault: Option<(u64, Failure)>,
        calls: &Arc<AtomicU64>,
    ) -> std::result::Result<Done, Failed> {
        let store = self.store();
        let options = OpenOptions {
            cache: Some(Arc::clone(&store)),
            ..OpenOptions::default()
        };
        let opened = devices::open(self.kind, &options);
        let opened = opened.map_err(|e| Error::device(Stage::Plan, "opening a device", e))?;
        let faulty = Faulty::new(opened, fault, Arc::clone(calls));
        (self.program)(&self.model, Box::new(faulty), store)
    }

    /// The first run has filled the cache, so that calls are those of a later start; every second
    /// fault meets an empty one, whose calls begin with those that compile and validate.
    fn every_call_fails(mut self) -> Outcome {
        let most = match Tier::of_environment() {
            Tier::Nightly => NIGHTLY,
            _ => IN_CI,
        };
        for (i, nth) in spread(self.calls, most).into_iter().enumerate() {
            if i % 4 == 3 {
                self.cache = tempfile::tempdir().text()?;
            }
            let failure = Failure::ALL[i % Failure::ALL.len()];
            self.fails(nth, failure)
                .map_err(|e| format!("{failure:?} at call {nth} of {}: {e}", self.calls))?;
        }
        Ok(())
    }

    fn fails(&self, nth: u64, failure: Failure) -> Outcome {
        let calls = Arc::new(AtomicU64::new(0));
        let start = Instant::now();
        let run = self.run(Some((nth, failure)), &calls);
        let took = start.elapsed();
        match run {
            Ok(found) => equal(&found.values, &self.wanted)?,
            Err(failed) => self.is_sound(failure, failed)?,
        }
        if took > AFTER_FAILURE {
            return Err(format!("took {took:?}"));
        }
        let after = self.run(None, &calls);
        let after = after.map_err(|f| format!("after it: {}", f.error.chain()))?;
        equal(&after.values, &self.wanted).map_err(|e| format!("after it: {e}"))?;
        equal(&after.notes, &Vec::new()).map_err(|e| format!("after it: {e}"))
    }

    /// The error is that of the device, by its kind, and the same work done again is right or fails
    /// for the same reason.
    fn is_sound(&self, failure: Failure, failed: Failed) -> Outcome {
        let expected = match failure {
            Failure::OutOfMemory => ErrorKind::OutOfMemory,
            Failure::Lost => ErrorKind::DeviceLost,
            Failure::Kernel | Failure::Driver => ErrorKind::Other,
        };
        let typed = |e: &Error| {
            let lost = matches!(e.backend(), Some(BackendError::Lost(_)));
            let known = e.backend().is_some() && e.kind() == expected;
            if known && lost == (failure == Failure::Lost) {
                return Ok(());
            }
            Err(format!(
                "{expected:?} wanted, found {:?}: {}",
                e.kind(),
                e.chain()
            ))
        };
        typed(&failed.error)?;
        match failed.again {
            None => Ok(()),
            Some(Ok(found)) => equal(&found, &self.wanted).map_err(|e| format!("again: {e}")),
            Some(Err(e)) if failure == Failure::Lost => typed(&e),
            Some(Err(e)) => Err(format!("again: {}", e.chain())),
        }
    }
}

/// Does the work, and once more if it fails.
fn twice(mut work: impl FnMut() -> Result<Vec<f64>>) -> std::result::Result<Vec<f64>, Failed> {
    work().map_err(|error| Failed {
        error,
        again: Some(work()),
    })
}

fn words(notes: &[Note]) -> Vec<String> {
    notes.iter().map(ToString::to_string).collect()
}

/// Loads a decoder and generates some tokens.
fn decoder(folder: &Path, backend: Box<dyn Backend>, store: Arc<Store>) -> std::result::Result<Done, Failed> {
    let codec = Arc::new(Codec::load(ModelFolder::open(folder)?)?);
    let target = Target {
        greedy: true,
        ..Target::DEVICE.with(Logits::Last)
    };
    let decoder = Decoder::load(&folder.join("model.onnx"), &target)?;
    let planned = decoder.plan_for(backend.caps(), &SequenceConfig::of(48), false)?;
    let (loaded, notes) =
        DeviceDecoder::load_validated(decoder, backend, planned, false, Some(store), &mut |_, _| {})?;
    let mut session = Session::new(Box::new(loaded.model()?), codec);
    let options = GenerateOptions {
        max_tokens: 6,
        ..GenerateOptions::default()
    };
    let values = twice(|| {
        let text = session.generate("hello", &options)?.text()?;
        Ok(text.bytes().map(f64::from).collect())
    })?;
    let notes = words(&notes);
    Ok(Done { values, notes })
}

/// A norm, a product and a softmax over any number of rows.
fn write_model(dir: &Path) -> Outcome {
    let mut model = ModelWriter::create(Stage::Convert, dir, "model.onnx", "g").text()?;
    model.opset("", 23);
    let size = |columns: usize| [Size::from("rows"), Size::Fixed(columns)];
    model.add_input("x", DType::F32, &size(64)).text()?;
    model.add_output("y", DType::F32, &size(32)).text()?;
    model.add_initializer("scale", &numbers(&[64])?).text()?;
    model.add_initializer("weight", &numbers(&[64, 32])?).text()?;
    for (op, inputs, output) in [
        ("RMSNormalization", &["x", "scale"][..], "normed"),
        ("MatMul", &["normed", "weight"], "product"),
        ("Softmax", &["product"], "y"),
    ] {
        let node = NodeSpec {
            domain: "",
            op,
            name: output,
            inputs,
            outputs: &[output],
            attributes: &[],
        };
        model.add_node(node).text()?;
    }
    model.finish().text().map(|_| ())
}

fn numbers(shape: &[usize]) -> std::result::Result<HostTensor, String> {
    let count: usize = shape.iter().product();
    let data: Vec<f32> = (0..count).map(|i| ((i * 37 + 11) % 64) as f32 / 64.0).collect();
    HostTensor::from_f32(shape, &data).text()
}

/// Runs any model, first over few rows and then over more than its memory holds.
fn runner(folder: &Path, backend: Box<dyn Backend>, store: Arc<Store>) -> std::result::Result<Done, Failed> {
    let options = RunnerOptions {
        checks: Checks::On(Some(store)),
        ..RunnerOptions::default()
    };
    let mut runner = Runner::load(&folder.join("model.onnx"), Some(backend), &options)?;
    let inputs = [4, 9].map(|rows| numbers(&[rows, 64]));
    let values = twice(|| {
        let mut all = Vec::new();
        for input in &inputs {
            let input = input.as_ref().map_err(|e| Error::other(Stage::Run, e.clone()))?;
            let outputs = runner.run(&[("x".to_owned(), input.clone())], &Cancel::default())?;
            for (_, tensor) in outputs {
                let values = tensor
                    .to_f64()
                    .map_err(|e| Error::other(Stage::Run, e.to_string()))?;
                all.extend(values.iter().copied());
            }
        }
        Ok(all)
    })?;
    let notes = words(&runner.notes().cloned().collect::<Vec<_>>());
    Ok(Done { values, notes })
}
