//! `tlite run`.

use super::load;
use super::options::{DeviceOptions, PassOptions};
use super::output::{put, put_json, table};
use crate::error::{Error, Result};
use crate::files::picture::{Fit, IMAGENET, PictureOptions};
use crate::files::{self, npy};
use crate::graph::onnx;
use crate::graph::pass::PassReport;
use crate::inspect::{model_file, parse_bind};
use crate::llm::sampler::SplitMix64;
use crate::plan::{HostStep, Segment};
use crate::runner::{Difference, Named, Runner, compare, shape_at};
use crate::session::Timing;
use crate::shape::{Bindings, Fact, Symbol};
use crate::tensor::{DType, HostTensor};
use clap::ValueEnum;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Run any model on tensors or pictures
///
/// Inputs come from files or are made up; outputs are summed up, written as .npy files, or compared with references. A decoder's cache is
/// inputs and outputs like others here; to generate text see `tlite generate`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder with model.onnx, or an ONNX file
    model: PathBuf,
    /// An input and the file that it is read from: .npy, .pb, .png, .jpg
    #[arg(long, value_name = "NAME=FILE", value_parser = named_file)]
    input: Vec<(String, PathBuf)>,
    /// Make up the inputs that no file gives: floats from -1 to 1, integers 0 and 1
    #[arg(long)]
    random: bool,
    /// Start of the random sequence; equal seeds give equal inputs
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Sizes of made up inputs, as in batch=1,sequence=16
    #[arg(long, value_name = "NAME=N,...")]
    bind: Option<String>,
    /// Write each output as DIR/NAME.npy
    #[arg(long, value_name = "DIR")]
    output_dir: Option<PathBuf>,
    /// Compare each output with DIR/NAME.npy, or `output_0.pb`, ...; exit code 1 where one differs
    #[arg(long, value_name = "DIR")]
    compare: Option<PathBuf>,
    /// Largest difference over the reference's range [default: 0.001, with f16 0.02]
    #[arg(long, value_name = "F", allow_negative_numbers = true, value_parser = tolerance)]
    tolerance: Option<f32>,
    /// Number of measured runs
    #[arg(long, value_name = "N", default_value = "1", allow_negative_numbers = true)]
    repeat: NonZeroUsize,
    /// Storage of activations on a device
    #[arg(long, value_enum, default_value_t, value_name = "TYPE")]
    float: Float,
    /// Measure each step once more, by the device's clock, and print what takes the time
    #[arg(long)]
    profile: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    passes: PassOptions,
    #[command(flatten)]
    picture: PictureArgs,
    #[command(flatten)]
    on: DeviceOptions,
}

/// Storage types of activations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Float {
    #[default]
    F32,
    F16,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Pictures")]
struct PictureArgs {
    /// Pixels that pictures are scaled to [default: those of the input, or of the picture]
    #[arg(long, value_name = "WxH", value_parser = size)]
    image_size: Option<(u32, u32)>,
    /// Round sizes that the picture gives up to a multiple of N
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    image_multiple: u32,
    /// What is done where proportions differ
    #[arg(long, value_enum, default_value_t, value_name = "HOW")]
    image_fit: FitArg,
    /// Subtracted from red, green, blue, which are 0 to 1; `imagenet` sets mean and deviation
    #[arg(long, value_name = "F,F,F|imagenet", value_parser = mean, allow_hyphen_values = true)]
    image_mean: Option<[f32; 3]>,
    /// Divides red, green, blue after that
    #[arg(long, value_name = "F,F,F", value_parser = triple, allow_hyphen_values = true)]
    image_std: Option<[f32; 3]>,
    /// Blue comes first
    #[arg(long)]
    image_bgr: bool,
}

/// [`Fit`] on the command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum FitArg {
    /// Stretch the picture
    #[default]
    Stretch,
    /// Cover the input and cut the rest off
    Crop,
    /// Fit into the input, at its upper left
    Pad,
}

impl PictureArgs {
    fn options(&self) -> PictureOptions {
        let imagenet = self.image_mean == Some(IMAGENET[0]);
        let usual = if imagenet { IMAGENET[1] } else { [1.0; 3] };
        PictureOptions {
            size: self.image_size,
            multiple: self.image_multiple,
            fit: match self.image_fit {
                FitArg::Stretch => Fit::Stretch,
                FitArg::Crop => Fit::Crop,
                FitArg::Pad => Fit::Pad,
            },
            mean: self.image_mean.unwrap_or_default(),
            deviation: self.image_std.unwrap_or(usual),
            bgr: self.image_bgr,
        }
    }
}

fn named_file(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, file)) if !name.is_empty() && !file.is_empty() => Ok((name.to_owned(), file.into())),
        _ => Err("expected NAME=FILE".to_owned()),
    }
}

fn tolerance(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(v) if v.is_finite() && v >= 0.0 => Ok(v),
        _ => Err("not a number of 0 or more".to_owned()),
    }
}

fn size(text: &str) -> Result<(u32, u32), String> {
    let pair = text
        .split_once('x')
        .and_then(|(w, h)| Some((w.parse().ok()?, h.parse().ok()?)));
    pair.filter(|(w, h)| *w > 0 && *h > 0)
        .ok_or_else(|| "expected WIDTHxHEIGHT, as in 640x480".to_owned())
}

fn triple(text: &str) -> Result<[f32; 3], String> {
    let values: Option<Vec<f32>> = text.split(',').map(|v| v.trim().parse().ok()).collect();
    match values.as_deref() {
        Some([a, b, c]) if [a, b, c].iter().all(|v| v.is_finite()) => Ok([*a, *b, *c]),
        Some([a]) if a.is_finite() => Ok([*a; 3]),
        _ => Err("expected three numbers, as in 0.5,0.5,0.5, or one".to_owned()),
    }
}

fn mean(text: &str) -> Result<[f32; 3], String> {
    if text == "imagenet" {
        Ok(IMAGENET[0])
    } else {
        triple(text)
    }
}

#[derive(Debug, Serialize)]
struct Report {
    model: PathBuf,
    backend: String,
    device: String,
    driver: String,
    load_ms: f64,
    /// The first run, which takes memory.
    first_ms: f64,
    runs_ms: Vec<f64>,
    inputs: Vec<Value>,
    outputs: Vec<Value>,
    compare: Vec<Compared>,
    dispatches: usize,
    segments: usize,
    host: Vec<OnHost>,
    passes: Vec<PassReport>,
    profile: Vec<Share>,
}

/// What steps of one kernel, or of one operator on the host, took.
#[derive(Debug, PartialEq, Serialize)]
struct Share {
    kernel: String,
    steps: usize,
    ms: f64,
    /// Of the sum of all steps.
    share: f64,
    /// The step that took the most, with its specialisation and nodes.
    slowest: String,
    slowest_ms: f64,
}

/// Times by kernel, the largest first.
fn shares(times: &[Timing]) -> Vec<Share> {
    let all: u64 = times.iter().map(|t| t.nanoseconds).sum();
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let ms = |ns: u64| ns as f64 / 1e6;
    let name = |t: &Timing| match &t.kernel {
        Some(k) => k.split('<').next().unwrap_or(k).to_owned(),
        None => "on the host".to_owned(),
    };
    let mut groups: Vec<(String, Vec<&Timing>)> = Vec::new();
    for t in times {
        let name = name(t);
        match groups.iter_mut().find(|(n, _)| *n == name) {
            Some((_, list)) => list.push(t),
            None => groups.push((name, vec![t])),
        }
    }
    let mut out: Vec<Share> = groups
        .into_iter()
        .filter_map(|(kernel, list)| {
            let sum = list.iter().map(|t| t.nanoseconds).sum();
            let slowest = list.iter().max_by_key(|t| t.nanoseconds)?;
            let spec = slowest.kernel.as_deref().unwrap_or("host");
            Some(Share {
                kernel,
                steps: list.len(),
                ms: ms(sum),
                share: ms(sum) / ms(all.max(1)),
                slowest: format!("{spec} of {}", slowest.nodes.join(", ")),
                slowest_ms: ms(slowest.nanoseconds),
            })
        })
        .collect();
    out.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    out
}

#[derive(Debug, Serialize)]
struct Value {
    name: String,
    dtype: String,
    shape: Vec<usize>,
    min: Option<f64>,
    max: Option<f64>,
    mean: Option<f64>,
    /// Where an input came from, or an output went.
    file: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Compared {
    name: String,
    #[serde(flatten)]
    difference: Option<Difference>,
    tolerance: f32,
    passed: bool,
    error: Option<String>,
}

#[derive(Debug, Serialize)]
struct OnHost {
    work: String,
    node: String,
    why: String,
    read_backs: usize,
    uploads: usize,
}

impl OnHost {
    fn of(step: &HostStep) -> Self {
        Self {
            work: step.work.name().to_owned(),
            node: step.name.clone(),
            why: step.why.clone(),
            read_backs: step.read_backs(),
            uploads: step.uploads(),
        }
    }
}

impl Value {
    fn of(name: &str, t: &HostTensor, file: Option<PathBuf>) -> Self {
        let numbers: Vec<f64> = if t.dtype().is_float() {
            t.to_f64().map(std::borrow::Cow::into_owned)
        } else {
            #[expect(clippy::cast_precision_loss, reason = "for people")]
            t.to_i64().map(|d| d.into_iter().map(|v| v as f64).collect())
        }
        .unwrap_or_default();
        let some = |v: f64| (!numbers.is_empty() && v.is_finite()).then_some(v);
        Self {
            name: name.to_owned(),
            dtype: t.dtype().to_string(),
            shape: t.shape().to_vec(),
            min: some(numbers.iter().copied().fold(f64::INFINITY, f64::min)),
            max: some(numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
            #[expect(clippy::cast_precision_loss, reason = "for people")]
            mean: some(numbers.iter().sum::<f64>() / numbers.len() as f64),
            file,
        }
    }
}

/// The name of the file for a value of this name.
fn file_name(name: &str) -> String {
    format!("{}.npy", name.replace(['/', ':'], "_"))
}

/// Inputs from files, then made up ones.
fn inputs(args: &Args, runner: &Runner) -> Result<Vec<(Named, Option<PathBuf>)>> {
    let options = args.picture.options();
    let mut out: Vec<(Named, Option<PathBuf>)> = Vec::new();
    let known: Vec<&str> = runner.inputs().map(|(n, _)| n).collect();
    for (name, file) in &args.input {
        let fact = runner.inputs().find(|(n, _)| n == name).map(|(_, f)| f);
        let fact = fact.ok_or_else(|| {
            let what = format!("the model has no input \"{name}\"; it has {}", known.join(", "));
            Error::usage("--input", what)
        })?;
        out.push((
            (name.clone(), files::read(file, fact, &options)?),
            Some(file.clone()),
        ));
    }
    if !args.random {
        return Ok(out);
    }
    let mut bindings = args
        .bind
        .as_deref()
        .map_or_else(|| Ok(Bindings::new()), parse_bind)?;
    let mut known_symbols = BTreeSet::new();
    let dims = runner.inputs().flat_map(|(_, f)| &f.shape.0);
    dims.for_each(|d| d.symbols(&mut known_symbols));
    if let Some((s, _)) = bindings.iter().find(|(s, _)| !known_symbols.contains(*s)) {
        let list: Vec<&str> = known_symbols.iter().map(Symbol::name).collect();
        let what = format!("no input has the size {s}; there are {}", list.join(", "));
        return Err(Error::usage("--bind", what));
    }
    for ((name, tensor), _) in &out {
        let fact = runner.inputs().find(|(n, _)| n == name);
        for (dim, n) in fact.iter().flat_map(|(_, f)| &f.shape.0).zip(tensor.shape()) {
            if let (Some(s), Ok(n)) = (dim.as_symbol(), i64::try_from(*n)) {
                bindings.set(s, n);
            }
        }
    }
    let missing: Vec<(&str, &Fact)> = runner
        .inputs()
        .filter(|(n, _)| out.iter().all(|((o, _), _)| o != n))
        .collect();
    let mut symbols: BTreeSet<Symbol> = BTreeSet::new();
    missing
        .iter()
        .flat_map(|(_, f)| &f.shape.0)
        .for_each(|d| d.symbols(&mut symbols));
    symbols.retain(|s| bindings.get(s).is_none());
    if !symbols.is_empty() {
        let list: Vec<String> = symbols.iter().map(|s| format!("{s}=1")).collect();
        let what = format!(
            "the inputs have sizes that nothing gives; try --bind {}",
            list.join(",")
        );
        return Err(Error::usage("--random", what));
    }
    let mut random = SplitMix64::new(args.seed);
    for (name, fact) in missing {
        let shape = shape_at(name, &fact.shape, &bindings)?;
        out.push(((name.to_owned(), made_up(name, fact, &shape, &mut random)?), None));
    }
    Ok(out)
}

fn made_up(name: &str, fact: &Fact, shape: &[usize], random: &mut SplitMix64) -> Result<HostTensor> {
    let count = shape.iter().try_fold(1usize, |p, n| p.checked_mul(*n));
    let count = count.filter(|n| *n < 1 << 32).ok_or_else(|| {
        let what = format!("input \"{name}\" of shape {shape:?} has too many elements");
        Error::usage("--bind", what)
    })?;
    let made = if fact.dtype.is_float() {
        #[expect(clippy::cast_possible_truncation, reason = "rounding is meant")]
        let data: Vec<f32> = (0..count)
            .map(|_| (2.0 * random.next_f64() - 1.0) as f32)
            .collect();
        HostTensor::from_floats(fact.dtype, shape, &data)
    } else {
        let data: Vec<i64> = (0..count)
            .map(|_| i64::from(random.next_u64() & 1 == 1))
            .collect();
        HostTensor::from_ints(fact.dtype, shape, &data)
    };
    made.map_err(|e| Error::usage("--random", format!("input \"{name}\": {e}")))
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

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let file = model_file(&args.model)?;
    let float = match args.float {
        Float::F32 => DType::F32,
        Float::F16 => DType::F16,
    };
    let start = Instant::now();
    let ms = |start: Instant| start.elapsed().as_secs_f64() * 1e3;
    let backend = load::open(&args.on)?;
    let pipeline = args.passes.apply(Runner::pipeline(backend.is_some()))?;
    let mut runner = Runner::after(&pipeline, onnx::import(&file)?, backend, float)?;
    let load_ms = ms(start);
    let given = inputs(args, &runner)?;
    let tensors: Vec<Named> = given.iter().map(|(t, _)| t.clone()).collect();
    runner
        .check(&tensors)
        .map_err(|e| Error::usage("--input", format!("{e}; give files with --input, or --random")))?;
    if let Some(dir) = &args.output_dir {
        std::fs::create_dir_all(dir).map_err(|e| Error::io("cannot make a folder", dir, e))?;
    }
    let start = Instant::now();
    let mut outputs = runner.run(&tensors)?;
    let first_ms = ms(start);
    let mut runs_ms = Vec::new();
    for _ in 1..args.repeat.get() {
        let start = Instant::now();
        outputs = runner.run(&tensors)?;
        runs_ms.push(ms(start));
    }
    let profile = if args.profile {
        shares(&runner.profile(&tensors)?)
    } else {
        Vec::new()
    };
    let mut written = Vec::new();
    for (name, tensor) in &outputs {
        let file = args.output_dir.as_ref().map(|dir| dir.join(file_name(name)));
        if let Some(file) = &file {
            npy::write(file, tensor)?;
        }
        written.push(Value::of(name, tensor, file));
    }
    // On the host activations are in f32.
    let half = args.float == Float::F16 && runner.caps().is_some();
    let tolerance = args.tolerance.unwrap_or(if half { 2e-2 } else { 1e-3 });
    let compare = match &args.compare {
        Some(dir) => compared(dir, &outputs, tolerance)?,
        None => Vec::new(),
    };
    let caps = runner.caps();
    let plan = runner.plan();
    let host = || "host".to_owned();
    let report = Report {
        model: file,
        backend: caps.map_or_else(host, |c| c.backend.to_owned()),
        device: caps.map_or_else(host, |c| c.device.clone()),
        driver: caps.map_or_else(|| "interpreter".to_owned(), |c| c.driver.clone()),
        load_ms,
        first_ms,
        runs_ms,
        inputs: given
            .iter()
            .map(|((name, t), file)| Value::of(name, t, file.clone()))
            .collect(),
        outputs: written,
        dispatches: plan.map_or(0, |p| p.steps.len()),
        segments: plan.map_or(0, |p| p.segments.len()),
        host: plan.map_or_else(Vec::new, |p| p.host.iter().map(OnHost::of).collect()),
        passes: runner.passes().to_vec(),
        profile,
        compare,
    };
    let mut out = std::io::stdout().lock();
    if args.json {
        put_json(&mut out, &report)?;
    } else {
        put(&mut out, &text(&report, plan.map(|p| p.segments.as_slice())))?;
    }
    let apart = report.compare.iter().filter(|c| !c.passed).count();
    if apart > 0 {
        return Err(Error::other(
            crate::error::Stage::Run,
            format!(
                "{apart} of {} outputs differ from their references",
                report.compare.len()
            ),
        ));
    }
    Ok(())
}

fn number(v: Option<f64>) -> String {
    v.map_or_else(|| "-".to_owned(), |v| format!("{v:.5}"))
}

fn values(all: &[Value], nowhere: &str) -> String {
    let rows = all.iter().map(|v| {
        vec![
            format!("  {}", v.name),
            format!("{}{:?}", v.dtype, v.shape),
            format!("{}..{}", number(v.min), number(v.max)),
            format!("mean {}", number(v.mean)),
            v.file
                .as_ref()
                .map_or_else(|| nowhere.to_owned(), |f| f.display().to_string()),
        ]
    });
    table(&rows.collect::<Vec<_>>(), 5)
}

fn text(report: &Report, segments: Option<&[Segment]>) -> String {
    let mut out = String::new();
    let _ok = writeln!(
        out,
        "{} on {}\nloaded in {:.0} ms, first run {:.1} ms",
        report.model.display(),
        match report.backend.as_str() {
            "host" => "the host".to_owned(),
            b => format!("{b}: {} ({})", report.device, report.driver),
        },
        report.load_ms,
        report.first_ms
    );
    let mut runs = report.runs_ms.clone();
    runs.sort_by(f64::total_cmp);
    if let (Some(low), Some(mid), Some(high)) = (runs.first(), runs.get(runs.len() / 2), runs.last()) {
        let _ok = writeln!(
            out,
            "then {} runs: median {mid:.2} ms ({low:.2} to {high:.2})",
            runs.len()
        );
    }
    let _ok = write!(out, "\ninputs\n{}", values(&report.inputs, "made up"));
    let _ok = write!(out, "\noutputs\n{}", values(&report.outputs, ""));
    if !report.compare.is_empty() {
        let rows = report.compare.iter().map(|c| {
            vec![
                format!("  {}", c.name),
                match (&c.difference, &c.error) {
                    (Some(d), _) if d.unequal > 0 => format!("{} elements differ", d.unequal),
                    (Some(d), _) => format!("{:.2e}", d.relative),
                    (None, e) => e.clone().unwrap_or_default(),
                },
                if c.passed { "ok" } else { "DIFFERS" }.to_owned(),
            ]
        });
        let bound = report.compare.first().map_or(0.0, |c| c.tolerance);
        let rows = table(&rows.collect::<Vec<_>>(), 3);
        let _ok = write!(
            out,
            "\nlargest difference over the reference's range, at most {bound}\n{rows}"
        );
    }
    if let Some(segments) = segments {
        let on_device = segments
            .iter()
            .filter(|s| matches!(s, Segment::Device(_)))
            .count();
        let _ok = writeln!(
            out,
            "\n{} dispatches in {on_device} segments on the device, {} steps on the host",
            report.dispatches,
            report.host.len()
        );
        // One line for all that have one reason; --json has each.
        let mut groups: Vec<(String, Vec<&OnHost>)> = Vec::new();
        for h in &report.host {
            let why = format!("{}: {}", h.work, h.why);
            match groups.iter_mut().find(|(w, _)| *w == why) {
                Some((_, all)) => all.push(h),
                None => groups.push((why, vec![h])),
            }
        }
        for (why, all) in groups {
            let sum = |f: fn(&OnHost) -> usize| all.iter().map(|h| f(h)).sum::<usize>();
            let names: Vec<String> = all.iter().take(3).map(|h| format!("\"{}\"", h.node)).collect();
            let more = if all.len() > 3 { ", ..." } else { "" };
            let _ok = writeln!(
                out,
                "  host: {} times {why} ({} read back, {} uploaded): {}{more}",
                all.len(),
                sum(|h| h.read_backs),
                sum(|h| h.uploads),
                names.join(", ")
            );
        }
    }
    if !report.profile.is_empty() {
        let head = ["  kernel", "steps", "ms", "share", "slowest ms"].map(str::to_owned);
        let mut rows = vec![head.to_vec()];
        rows.extend(report.profile.iter().map(|s| {
            vec![
                format!("  {}", s.kernel),
                s.steps.to_string(),
                format!("{:.3}", s.ms),
                format!("{:.1} %", 100.0 * s.share),
                format!("{:.3}", s.slowest_ms),
            ]
        }));
        let slowest = std::iter::once("slowest").chain(report.profile.iter().map(|s| s.slowest.as_str()));
        out.push('\n');
        for (line, slowest) in table(&rows, 1).lines().zip(slowest) {
            let _ok = writeln!(out, "{line}  {slowest}");
        }
    }
    out
}
