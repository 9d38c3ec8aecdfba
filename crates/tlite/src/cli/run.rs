//! `tlite run`.

mod inputs;
mod labels;
mod picture;
mod report;

use super::choices;
use super::interrupt::Interrupt;
use super::load;
use super::options::{
    ADVANCED, DeviceOptions, IntegerOption, PassOptions, Verbosity, from_one, from_zero, note_unused,
};
use super::output::{self, note, print_report};
use crate::files::{self, npy};
use crate::inspect::model_file;
pub use inputs::made_up_inputs;
use inputs::{InputFile, explained, inputs};
use labels::Labels;
pub use picture::PictureArgs;
pub use report::Report;
use report::{Compared, OnHost, Value, shares, text};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Instant;
use transformer_lite::unstable::backend::Backend;
use transformer_lite::unstable::cancel::Cancel;
use transformer_lite::unstable::error::{Error, ErrorKind, Result, Stage};
use transformer_lite::unstable::files::kind::check_file;
use transformer_lite::unstable::fmt::{count_text, is_control};
use transformer_lite::unstable::graph::onnx;
use transformer_lite::unstable::placement::BackendChoice;
use transformer_lite::unstable::runner::{Checks, Named, Runner, RunnerOptions, compare};
use transformer_lite::unstable::tensor::{DType, HostTensor};

/// Run any model on tensors or pictures
///
/// Inputs come from files or are random. Outputs are summarized, written as .npy files, or compared
/// with references. This command treats a decoder's KV cache as ordinary inputs and outputs; use
/// `tlite generate` to generate text.
#[derive(Debug, clap::Args)]
#[command(override_usage = "tlite run [OPTIONS] MODEL [FILE]...", after_help = EXAMPLES)]
pub struct Args {
    /// Folder with model.onnx, or an ONNX file
    model: PathBuf,
    /// Input file; the same as --input FILE
    #[arg(value_name = "FILE", value_parser = InputFile::parse)]
    files: Vec<InputFile>,
    /// Input file: .npy, .pb, .png or .jpg
    ///
    /// NAME may be omitted if the model has one input. Pictures are converted to the input's size
    /// and layout; see the picture options.
    #[arg(short, long, value_name = "[NAME=]FILE", value_parser = InputFile::parse)]
    input: Vec<InputFile>,
    /// Print class names next to the largest scores
    ///
    /// FILE is a JSON array, a JSON object whose keys are class numbers, a `config.json` with such
    /// an object under `id2label`, or a text file with one name per line.
    #[arg(long, value_name = "FILE")]
    labels: Option<PathBuf>,
    /// Fill inputs without a file with random numbers
    ///
    /// Floats are between -1 and 1; integers are 0 or 1.
    #[arg(long)]
    random: bool,
    /// Seed of random inputs and of operators that draw random numbers
    #[arg(
        long,
        value_name = "N",
        default_value = "0",
        value_parser = from_zero::<u64>,
        hide_short_help = true,
        help_heading = ADVANCED
    )]
    seed: u64,
    /// Set the symbolic sizes of random inputs, for example batch=1,sequence=16
    #[arg(long, value_name = "NAME=N,...", requires = "random")]
    bind: Vec<String>,
    /// Write each output as DIR/NAME.npy
    #[arg(short, long, value_name = "DIR")]
    output_dir: Option<PathBuf>,
    /// Compare outputs with the files in DIR
    ///
    /// DIR holds NAME.npy for each output, or `output_0.pb` and so on, in order. The exit code
    /// is 1 if an output differs.
    #[arg(long, value_name = "DIR")]
    compare: Option<PathBuf>,
    /// Largest allowed difference, relative to the range of the reference [default: 0.001, with f16
    /// 0.02]
    #[arg(
        long,
        value_name = "F",
        value_parser = tolerance,
        requires = "compare",
        hide_short_help = true,
        help_heading = ADVANCED
    )]
    tolerance: Option<f32>,
    /// Number of timed runs
    #[arg(long, value_name = "N", default_value = "1", value_parser = from_one)]
    repeat: NonZeroUsize,
    /// Type of activations on a device [default: f32]
    #[arg(long, value_parser = choices::float(), value_name = "TYPE", hide_short_help = true)]
    float: Option<DType>,
    /// Time each step and list the slowest kernels
    #[arg(long)]
    profile: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    verbosity: Verbosity,
    #[command(flatten)]
    integer: IntegerOption,
    #[command(flatten)]
    passes: PassOptions,
    #[command(flatten)]
    picture: PictureArgs,
    #[command(flatten)]
    on: DeviceOptions,
}

const EXAMPLES: &str = "\
Examples:
  tlite run mobilenetv2 cat.png --image-mean imagenet --labels names.json
  tlite run minilm --random --bind batch_size=1,sequence_length=32 -o out
  tlite run encoder -i ids=ids.npy -i mask=mask.npy --compare expected";

impl Args {
    /// Input files, as arguments and as options.
    fn inputs(&self) -> impl Iterator<Item = &InputFile> {
        self.files.iter().chain(&self.input)
    }

    /// A usage error, before anything is loaded, for an option without effect and for a file that
    /// does not exist.
    fn check(&self) -> Result<()> {
        for InputFile { name, file } in self.inputs() {
            let option = match name {
                Some(name) => format!("--input {name}"),
                None => "--input".to_owned(),
            };
            check_file(&option, file)?;
        }
        if let Some(dir) = self.compare.as_ref().filter(|dir| !dir.is_dir()) {
            return Err(Error::usage(
                "--compare",
                format!("there is no folder {}", dir.display()),
            ));
        }
        let pictures = self.inputs().any(|i| files::is_picture(&i.file));
        if let Some(option) = self.picture.given().filter(|_| !pictures) {
            return Err(Error::usage(option, "no input is a picture (.png or .jpg)"));
        }
        if self.profile && self.on.backend == BackendChoice::Reference {
            let what = "needs a device; the reference interpreter has no kernels to time";
            return Err(Error::usage("--profile", what));
        }
        Ok(())
    }
}

fn tolerance(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(v) if v.is_finite() && v >= 0.0 => Ok(v),
        _ => Err("must be a finite number of at least 0".to_owned()),
    }
}

/// The name of the file for a value of this name. It has no control characters and is not hidden.
fn file_name(name: &str) -> String {
    let is_special = |c: char| matches!(c, '/' | '\\' | ':') || is_control(c);
    let plain = name.replace(is_special, "_");
    let hidden = plain.strip_prefix('.').map(|rest| format!("_{rest}"));
    format!("{}.npy", hidden.unwrap_or(plain))
}

/// The reference for output `i` of this name.
fn reference(dir: &Path, name: &str, i: usize) -> Result<HostTensor> {
    let named = dir.join(file_name(name));
    if named.is_file() {
        return npy::read(&named);
    }
    let numbered = dir.join(format!("output_{i}.pb"));
    if numbered.is_file() {
        return onnx::read_tensor(&numbered);
    }
    Err(Error::usage(
        "--compare",
        format!(
            "{} has neither {} nor output_{i}.pb",
            dir.display(),
            file_name(name)
        ),
    ))
}

fn compared(dir: &Path, outputs: &[Named], tolerance: f32) -> Result<Vec<Compared>> {
    let mut all = Vec::new();
    for (i, (name, found)) in outputs.iter().enumerate() {
        let (difference, error) = match compare(found, &reference(dir, name, i)?) {
            Ok(d) => (Some(d), None),
            Err(e) => (None, Some(e)),
        };
        all.push(Compared {
            name: name.clone(),
            passed: difference.is_some_and(|d| d.relative <= tolerance),
            difference,
            tolerance,
            error,
        });
    }
    Ok(all)
}

/// Names the classes of all scores, with a note if there are none or their number differs.
fn name_classes(labels: &Labels, outputs: &mut [Value]) {
    let mut scores = outputs.iter_mut().filter(|v| v.has_scores()).peekable();
    if scores.peek().is_none() {
        let what = "--labels has no effect: no output is a row of class scores";
        note(what);
    }
    for value in scores {
        value.label(labels);
        let (names, classes) = (labels.classes(), value.columns());
        if names != classes {
            let what = format!(
                "--labels: {} for {classes} class{}; names may be assigned to the wrong classes",
                count_text(names, "name"),
                if classes == 1 { "" } else { "es" }
            );
            note(&what);
        }
    }
}

/// Prints a note on options for pictures if the model looks like a classifier that needs them.
fn suggest(args: &Args, runner: &Runner, given: &[(Named, Option<PathBuf>)], outputs: &[Named]) {
    let picture = |file: &Option<PathBuf>| file.as_deref().is_some_and(files::is_picture);
    let Some(((name, _), _)) = given.iter().find(|(_, file)| picture(file)) else {
        return;
    };
    let fact = runner.inputs().find(|(n, _)| n == name).map(|(_, f)| f);
    let shapes: Vec<Vec<usize>> = outputs.iter().map(|(_, t)| t.shape().to_vec()).collect();
    if let Some(what) = fact.and_then(|f| args.picture.suggestion(f, &shapes)) {
        note(&what);
    }
}

/// Loads the model on the chosen device, with activations in `float`.
fn loaded(args: &Args, file: &Path, float: Option<DType>, checks: Checks) -> Result<Runner> {
    let backend = load::open(&args.on)?;
    let integer = args.integer.arithmetic();
    let pipeline = args.passes.apply(Runner::pipeline(backend.is_some(), integer))?;
    if backend.is_none() {
        note_unused(float);
    }
    let caps = backend.as_deref().map(Backend::caps);
    load::print_notes(&args.on.placement().notes(caps));
    let progress = output::spinner(format!("loading {}", file.display()));
    let options = RunnerOptions {
        float: float.unwrap_or(DType::F32),
        checks,
        limits: args.on.limits.limits.clone(),
        integer,
        seed: args.seed,
    };
    let import = || {
        let graph = options.import(file)?;
        args.integer.note_unused(&graph);
        Ok(graph)
    };
    let runner = Runner::after(&pipeline, import, backend, &options);
    progress.finish_and_clear();
    runner
}

/// The first run, which checks new kernels.
fn first_run(runner: &mut Runner, inputs: &[Named]) -> Result<Vec<Named>> {
    let progress = output::spinner("first run (checks new kernels)".to_owned());
    let line = progress.clone();
    runner.on_kernel_validated(Box::new(move |done, all| {
        output::count(&line, done, all, "kernels checked");
    }));
    let first = runner.run(inputs, &Cancel::default());
    progress.finish_and_clear();
    first
}

/// Milliseconds of each run after the first, up to Ctrl-C, and true if there was one.
fn repeated(
    runner: &mut Runner,
    inputs: &[Named],
    repeat: NonZeroUsize,
    interrupt: &Interrupt,
    outputs: &mut Vec<Named>,
) -> Result<(Vec<f64>, bool)> {
    let mut runs_ms = Vec::new();
    let repeating = interrupt.generating();
    let stop = repeating.flag();
    for _ in 1..repeat.get() {
        if stop.is_cancelled() {
            break;
        }
        let start = Instant::now();
        match runner.run(inputs, &stop) {
            Err(e) if e.kind() == ErrorKind::Interrupted => break,
            found => *outputs = found?,
        }
        runs_ms.push(milliseconds(start));
    }
    drop(repeating);
    Ok((runs_ms, stop.is_cancelled()))
}

/// Writes the outputs if asked, and summarizes them.
fn summarized(args: &Args, labels: Option<&Labels>, outputs: &[Named]) -> Result<Vec<Value>> {
    let mut all = Vec::new();
    for (name, tensor) in outputs {
        let file = args.output_dir.as_ref().map(|dir| dir.join(file_name(name)));
        if let Some(file) = &file {
            npy::write(file, tensor)?;
        }
        all.push(Value::output(name, tensor, file));
    }
    if let Some(labels) = labels {
        name_classes(labels, &mut all);
    }
    Ok(all)
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// An error if the run was interrupted or outputs differ from their references.
fn verdict(report: &Report, repeat: NonZeroUsize) -> Result<()> {
    if report.interrupted {
        let runs = count_text(1 + report.runs_ms.len(), "run");
        let what = format!("interrupted after {runs} of {repeat}");
        note(&what);
        return Err(Error::Interrupted);
    }
    match report.compare.iter().filter(|c| !c.passed).count() {
        0 => Ok(()),
        apart => {
            let all = report.compare.len();
            let what = format!("{apart} of {all} outputs differ from their references");
            Err(Error::other(Stage::Run, what))
        }
    }
}

pub fn run(args: &Args, interrupt: &Interrupt) -> Result<()> {
    args.verbosity.apply(args.json);
    let file = model_file(&args.model)?;
    let float = args.on.storage_type(args.float)?;
    args.check()?;
    let labels = args.labels.as_deref().map(Labels::read).transpose()?;
    let start = Instant::now();
    let store = args.on.cache.store();
    let mut runner = loaded(args, &file, float, Checks::On(store.clone()))?;
    let load_ms = milliseconds(start);
    let given = inputs(args, &runner)?;
    let tensors: Vec<Named> = given.iter().map(|(t, _)| t.clone()).collect();
    runner
        .check(&tensors)
        .map_err(|e| Error::usage("--input", format!("{e}; give files with --input, or --random")))?;
    if let Some(dir) = &args.output_dir {
        std::fs::create_dir_all(dir).map_err(|e| Error::io("cannot make a folder", dir, e))?;
    }
    let start = Instant::now();
    let first = first_run(&mut runner, &tensors);
    let first_ms = milliseconds(start);
    load::print_notes(&runner.notes().collect::<Vec<_>>());
    let mut outputs = first.map_err(|e| explained(args, &runner, &given, e))?;
    let (runs_ms, interrupted) = repeated(&mut runner, &tensors, args.repeat, interrupt, &mut outputs)?;
    let profile = if args.profile && !interrupted {
        shares(&runner.profile(&tensors)?)
    } else {
        Vec::new()
    };
    let summaries = summarized(args, labels.as_ref(), &outputs)?;
    suggest(args, &runner, &given, &outputs);
    // The interpreter keeps activations in f32.
    let half = float == Some(DType::F16) && runner.caps().is_some();
    let tolerance = args.tolerance.unwrap_or(if half { 2e-2 } else { 1e-3 });
    let compare = match &args.compare {
        Some(dir) => compared(dir, &outputs, tolerance)?,
        None => Vec::new(),
    };
    let caps = runner.caps();
    let plan = runner.plan();
    let report = Report {
        model: file,
        backend: caps
            .map_or(BackendChoice::Reference.name(), |c| c.backend)
            .to_owned(),
        device: caps.map_or_else(|| "host".to_owned(), |c| c.device.clone()),
        driver: caps.map_or_else(|| "interpreter".to_owned(), |c| c.driver.clone()),
        load_ms,
        first_ms,
        runs_ms,
        inputs: given
            .iter()
            .map(|((name, t), file)| Value::of(name, t, file.clone()))
            .collect(),
        outputs: summaries,
        kernels_checked: runner.validated_kernels(),
        checks_kept: store.is_some_and(|s| !s.is_refused()),
        dispatches: plan.map_or(0, |p| p.steps.len()),
        segments: plan.map_or(0, |p| p.segments.len()),
        host: plan.map_or_else(Vec::new, |p| p.host.iter().map(OnHost::of).collect()),
        passes: runner.passes().to_vec(),
        interrupted,
        profile,
        compare,
    };
    let segments = plan.map(|p| p.segments.as_slice());
    let quiet = args.verbosity.quiet;
    print_report(args.json, &report, || text(&report, segments, quiet))?;
    verdict(&report, args.repeat)
}

#[cfg(test)]
mod tests {
    use super::file_name;

    #[test]
    fn files_of_outputs_have_plain_visible_names() {
        assert_eq!(file_name("a/b:0"), "a_b_0.npy");
        assert_eq!(file_name("../y\u{1b}[0m"), "_._y_[0m.npy");
    }
}
