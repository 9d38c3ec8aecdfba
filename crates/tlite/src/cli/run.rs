//! `tlite run`.

mod inputs;
mod picture;
mod report;
mod several;

use super::choices;
use super::interrupt::Interrupt;
use super::load;
use super::options::{
    ADVANCED, DeviceOptions, IntegerOption, PassOptions, Verbosity, first_given, from_one, from_zero,
    note_unused, read_text,
};
use super::output::{self, note, print_report};
use crate::files::npy;
use crate::inspect::model_file;
pub use inputs::made_up_inputs;
use inputs::{InputFile, explained, inputs};
pub use picture::PictureArgs;
pub use report::Report;
use report::{Compared, OnHost, Value, shares, text};
pub use several::Line;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Instant;
use transformer_lite::unstable::backend::Backend;
use transformer_lite::unstable::cancel::Cancel;
use transformer_lite::unstable::error::{Error, ErrorKind, Result, Stage};
use transformer_lite::unstable::files::kind::check_file;
use transformer_lite::unstable::files::write_whole;
use transformer_lite::unstable::fmt::{count_text, is_control};
use transformer_lite::unstable::graph::onnx;
use transformer_lite::unstable::graph::onnx::describe::Description;
use transformer_lite::unstable::placement::BackendChoice;
use transformer_lite::unstable::runner::{Checks, Named, Runner, RunnerOptions, compare};
use transformer_lite::unstable::shape::Dim;
use transformer_lite::unstable::tensor::{DType, HostTensor};
use transformer_lite::unstable::vision::answer::Reading;
use transformer_lite::unstable::vision::labels::Labels;
use transformer_lite::unstable::vision::mask;
use transformer_lite::unstable::vision::picture::{METADATA, PictureOptions, is_picture};
use transformer_lite::unstable::vision::scores::Scores;

/// Run any model on tensors or pictures
///
/// Inputs come from files or are random. Outputs are summarized, written as .npy files, or compared
/// with references. Several pictures give one table, or one line of JSON per picture; a picture
/// that fails is reported, and the others are still processed. This command treats a decoder's KV
/// cache as ordinary inputs and outputs; use `tlite generate` to generate text.
#[derive(Debug, clap::Args)]
#[command(override_usage = "tlite run [OPTIONS] MODEL [FILE]...", after_help = EXAMPLES)]
pub struct Args {
    /// Folder with model.onnx, or an ONNX file
    model: PathBuf,
    /// Input file; the same as --input FILE. Also several pictures, or a folder of pictures
    #[arg(value_name = "FILE", value_parser = InputFile::parse)]
    files: Vec<InputFile>,
    /// Input file: .npy, .pb, or a picture (.png, .jpg, .webp, .bmp)
    ///
    /// NAME may be omitted if the model has one input. Pictures are converted to the input's size
    /// and layout; see the picture options.
    #[arg(short, long, value_name = "[NAME=]FILE", value_parser = InputFile::parse)]
    input: Vec<InputFile>,
    /// Print class names next to the largest scores
    ///
    /// FILE is a JSON array, a JSON object whose keys are class numbers, a `config.json` with such
    /// an object under `id2label`, or a text file with one name per line. Without this option, the
    /// names in the model's metadata are used, if there are any.
    #[arg(long, value_name = "FILE")]
    labels: Option<PathBuf>,
    /// Print probabilities: the softmax of class scores
    ///
    /// Default with --labels if the last node of the model computes logits.
    #[arg(long, hide_short_help = true)]
    softmax: bool,
    /// Number of classes to list [default: 5, or 1 per picture if there are several]
    #[arg(long, value_name = "N", value_parser = from_one, hide_short_help = true)]
    top_k: Option<NonZeroUsize>,
    /// List the objects that a detector finds in pictures (YOLO and SSD)
    ///
    /// If boxes of one class overlap by more than 45 % of their union, only the most likely one is
    /// listed. If the outputs have an unsupported form, the error shows their shapes.
    #[arg(long)]
    boxes: bool,
    /// Lowest score of an object [default: 0.25]
    #[arg(long, value_name = "F", value_parser = probability, requires = "boxes", hide_short_help = true)]
    min_score: Option<f32>,
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
    /// Write each output as DIR/NAME.npy, or DIR/PICTURE/NAME.npy for several pictures
    #[arg(short, long, value_name = "DIR")]
    output_dir: Option<PathBuf>,
    /// Also write each output that is a mask as a grayscale picture, NAME.png
    ///
    /// 0 is black and 1 is white; logits are mapped by a sigmoid, but whole numbers are classes.
    /// With several channels, each pixel is the index of the largest one.
    #[arg(long, requires = "output_dir", hide_short_help = true)]
    mask: bool,
    /// Replace files that exist in --output-dir
    #[arg(long, requires = "output_dir", hide_short_help = true)]
    force: bool,
    /// Compare outputs with the files in DIR
    ///
    /// DIR holds NAME.npy for each output, or `output_0.pb` and so on, in order. The exit code
    /// is 1 if an output differs.
    #[arg(long, value_name = "DIR", hide_short_help = true)]
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
    #[arg(long, value_name = "N", default_value = "1", value_parser = from_one, hide_short_help = true)]
    repeat: NonZeroUsize,
    /// Type of activations on a device [default: f32]
    #[arg(long, value_parser = choices::float(), value_name = "TYPE", hide_short_help = true)]
    float: Option<DType>,
    /// Time each step and list the slowest kernels
    #[arg(long, hide_short_help = true)]
    profile: bool,
    /// Print one JSON object, or one per line for several pictures
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
  tlite run yolo11n photos --boxes --image-size 640 --image-fit pad
  tlite run minilm --random --bind batch_size=1,sequence_length=32 -o out";

impl Args {
    /// Input files, as arguments and as options.
    fn inputs(&self) -> impl Iterator<Item = &InputFile> {
        self.files.iter().chain(&self.input)
    }

    /// Whether the inputs are pictures for the only input, each with an answer of its own.
    fn is_set(&self) -> bool {
        let files = || self.inputs().map(|i| &i.file);
        self.inputs().all(|i| i.name.is_none())
            && (self.boxes
                || files().any(|f| f.is_dir())
                || files().count() > 1 && files().all(|f| is_picture(f)))
    }

    /// A usage error, before anything is loaded, for an option without effect and for a file that
    /// does not exist.
    fn check(&self) -> Result<()> {
        for InputFile { name, file } in self.inputs() {
            let option = match name {
                Some(name) => format!("--input {name}"),
                None if file.is_dir() => continue,
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
        let one = [
            ("--compare", self.compare.is_some()),
            ("--profile", self.profile),
            ("--random", self.random),
            ("--repeat", self.repeat.get() > 1),
        ];
        if let Some(option) = first_given(&one).filter(|_| self.is_set()) {
            let what = "has no effect on several pictures or with --boxes; give one picture";
            return Err(Error::usage(option, what));
        }
        let mut files = self.inputs().map(|i| &i.file);
        if self.boxes && (!self.is_set() || !files.all(|f| is_picture(f) || f.is_dir())) {
            let what = "needs pictures as the inputs, without NAME=";
            return Err(Error::usage("--boxes", what));
        }
        if let Some(option) = self.picture.given().filter(|_| !self.has_pictures()) {
            return Err(Error::usage(
                option,
                "no input is a picture (.png, .jpg, .webp or .bmp)",
            ));
        }
        if self.profile && self.on.backend == BackendChoice::Reference {
            let what = "needs a device; the reference interpreter has no kernels to time";
            return Err(Error::usage("--profile", what));
        }
        Ok(())
    }

    fn has_pictures(&self) -> bool {
        self.inputs().any(|i| is_picture(&i.file) || i.file.is_dir())
    }
}

/// Default of `--min-score`.
const MIN_SCORE: f32 = 0.25;

fn probability(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(v) if (0.0..=1.0).contains(&v) => Ok(v),
        _ => Err("must be a number from 0 to 1".to_owned()),
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

/// A note if the number of names is not that of the classes.
fn check_labels(names: usize, classes: usize) {
    if names != classes {
        note(&format!(
            "--labels: {} for {}; names may be assigned to the wrong classes",
            count_text(names, "name"),
            match classes {
                1 => "1 class".to_owned(),
                n => format!("{n} classes"),
            }
        ));
    }
}

/// Notes on options for scores if no output has any, and on names if their number differs from that
/// of the outputs or, with `--boxes`, from `classes`.
fn check_scores(args: &Args, reading: &Reading, outputs: &[Value], classes: Option<usize>) {
    let mut scores = outputs.iter().filter(|v| v.has_scores()).peekable();
    let options = [
        ("--labels", args.labels.is_some() && !args.boxes),
        ("--softmax", args.softmax),
        ("--top-k", args.top_k.is_some()),
    ];
    if let Some(option) = first_given(&options).filter(|_| scores.peek().is_none()) {
        note(&format!(
            "{option} has no effect: no output is a row of class scores"
        ));
    }
    if let Some(labels) = &reading.labels {
        let columns = scores.filter(|_| !args.boxes).map(Value::columns);
        columns
            .chain(classes)
            .for_each(|n| check_labels(labels.classes(), n));
    }
}

/// How the outputs of a model are read, whose metadata are in `about`.
fn reading(args: &Args, about: &Description, scores: &[(String, Scores)]) -> Result<Reading> {
    let given = match &args.labels {
        None => None,
        Some(path) => {
            let expected =
                "expected a JSON array of names, a JSON object of numbers and names, or one name per line";
            let named = Labels::parse(&read_text("--labels", path)?);
            let bad = || Error::usage("--labels", format!("{}: {expected}", path.display()));
            Some(named.ok_or_else(bad)?)
        }
    };
    let of = |kind| {
        scores
            .iter()
            .filter(move |(_, s)| *s == kind)
            .map(|(name, _)| name)
    };
    if let Some(name) = of(Scores::Probabilities).next().filter(|_| args.softmax) {
        let what = format!("output \"{name}\" holds probabilities already");
        return Err(Error::usage("--softmax", what));
    }
    let softmax: Vec<String> = match (args.softmax, &given) {
        (true, _) => scores.iter().map(|(name, _)| name.clone()).collect(),
        (false, Some(_)) => of(Scores::Logits).cloned().collect(),
        (false, None) => Vec::new(),
    };
    let own = about.get("names").and_then(Labels::of_metadata);
    let are_known = given.is_some() || args.softmax || scores.iter().any(|(_, s)| *s != Scores::Unknown);
    let usual = match (args.is_set(), are_known) {
        (true, true) => 1,
        // A row may also be something else, such as an embedding.
        (true, false) => 0,
        (false, _) => 5,
    };
    Ok(Reading {
        classes: own.as_ref().map(Labels::classes),
        labels: given.or(own),
        top: args.top_k.map_or(usual, NonZeroUsize::get),
        softmax,
    })
}

/// How pictures are prepared: by the options, else as the model's metadata say.
fn picture_options(args: &Args, about: &Description) -> Result<PictureOptions> {
    let stored = about.get(METADATA).map(PictureOptions::of_entry).transpose()?;
    if let Some(stored) = &stored {
        let given = args.picture.over(stored);
        let origin = if given == *stored {
            ""
        } else {
            ", changed by options"
        };
        note(&format!(
            "pictures are prepared as for calibration{origin}: {given}"
        ));
    }
    Ok(args.picture.over(&stored.unwrap_or_default()))
}

/// Prints a note on options for pictures if the model looks like a classifier that needs them.
fn suggest(args: &Args, runner: &Runner) {
    let is_picture = |i: &InputFile| is_picture(&i.file) || i.file.is_dir();
    let Some(given) = args.inputs().find(|i| is_picture(i)) else {
        return;
    };
    let named = |name: &str| given.name.as_ref().is_none_or(|given| given == name);
    let fact = runner
        .inputs()
        .find(|(name, _)| named(name))
        .map(|(_, fact)| fact);
    // A symbolic size, such as that of a batch, is 1 for a single picture.
    let size = |d: &Dim| match d.as_const() {
        Some(n) => usize::try_from(n).ok(),
        None => Some(1),
    };
    let shapes = runner
        .outputs()
        .filter_map(|(_, f)| f.shape.0.iter().map(size).collect());
    let shapes: Vec<Vec<usize>> = shapes.collect();
    if let Some(what) = fact.and_then(|f| args.picture.suggestion(f, &shapes)) {
        note(&what);
    }
}

/// Loads the model on the chosen device, with activations in `float`. Also what its outputs are.
fn loaded(
    args: &Args,
    file: &Path,
    float: Option<DType>,
    checks: Checks,
) -> Result<(Runner, Vec<(String, Scores)>)> {
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
    let mut scores = Vec::new();
    let import = || {
        let graph = options.import(file)?;
        args.integer.note_unused(&graph);
        let outputs = graph.outputs().iter();
        scores.extend(outputs.map(|v| (graph.value(*v).name.clone(), Scores::of(&graph, *v))));
        Ok(graph)
    };
    let runner = Runner::after(&pipeline, import, backend, &options);
    progress.finish_and_clear();
    Ok((runner?, scores))
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

/// Writes the outputs to the folder `dir`, and masks if asked. Returns the files of tensors.
fn write_outputs(args: &Args, dir: &Path, outputs: &[Named]) -> Result<Vec<PathBuf>> {
    let files: Vec<PathBuf> = outputs
        .iter()
        .map(|(name, _)| dir.join(file_name(name)))
        .collect();
    let mut masks = Vec::new();
    if args.mask {
        let made: Vec<_> = outputs
            .iter()
            .map(|(name, tensor)| mask::png(name, tensor))
            .collect();
        if let (false, Some(Err(e))) = (made.iter().any(Result::is_ok), made.first()) {
            return Err(Error::usage("--mask", e.to_string()).of_kind(e.kind()));
        }
        let named = files.iter().map(|f| f.with_extension("png"));
        masks.extend(
            named
                .zip(made)
                .filter_map(|(file, made)| Some((file, made.ok()?))),
        );
    }
    let all = || files.iter().chain(masks.iter().map(|(file, _)| file));
    if let Some(file) = all().find(|f| !args.force && f.exists()) {
        let what = format!("{} exists; --force replaces it", file.display());
        return Err(Error::usage("--output-dir", what));
    }
    std::fs::create_dir_all(dir).map_err(|e| Error::io("cannot make a folder", dir, e))?;
    for (file, (_, tensor)) in files.iter().zip(outputs) {
        npy::write(file, tensor)?;
    }
    for (file, bytes) in &masks {
        write_whole(file, |out| out.write_all(bytes))?;
    }
    Ok(files)
}

/// Writes the outputs to the folder `dir`, if there is one, and summarizes them.
fn summarized(args: &Args, reading: &Reading, dir: Option<&Path>, outputs: &[Named]) -> Result<Vec<Value>> {
    let files = dir.map(|dir| write_outputs(args, dir, outputs)).transpose()?;
    let value = |(i, (name, tensor)): (usize, &Named)| {
        let file = files.as_ref().and_then(|f| f.get(i).cloned());
        Value::output(name, tensor, file, reading)
    };
    Ok(outputs.iter().enumerate().map(value).collect())
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
    let about = match args.has_pictures() || args.labels.is_some() {
        true => Description::read(&file)?,
        false => Description::default(),
    };
    let options = picture_options(args, &about)?;
    let start = Instant::now();
    let store = args.on.cache.store();
    let (mut runner, scores) = loaded(args, &file, float, Checks::On(store.clone()))?;
    let load_ms = milliseconds(start);
    let reading = reading(args, &about, &scores)?;
    if about.get(METADATA).is_none() {
        suggest(args, &runner);
    }
    if args.is_set() {
        return several::run(args, &mut runner, (&options, &reading), interrupt);
    }
    let given = inputs(args, &options, &runner)?;
    let tensors: Vec<Named> = given.iter().map(|(t, _)| t.clone()).collect();
    runner
        .check(&tensors)
        .map_err(|e| Error::usage("--input", format!("{e}; give files with --input, or --random")))?;
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
    let summaries = summarized(args, &reading, args.output_dir.as_deref(), &outputs)?;
    check_scores(args, &reading, &summaries, None);
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
