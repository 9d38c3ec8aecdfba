//! `tlite profile`: device time by operator, with bytes, operations and the peaks of the device.

use super::interrupt::Interrupt;
use super::load;
use super::measuring::{check_no_bind, check_no_decoder};
use super::options::{ExecOptions, IntegerOption, Verbosity, check_writable, from_one};
use super::output::{fitted_table, note, print_report, titled};
use super::page::{self, About};
use super::random::{RandomOptions, Source};
use super::roofline::{REFERENCE_LACKS, device, flops_text, work_table};
use super::run::made_up_inputs;
use crate::inspect::{self, model_file};
use crate::roofline::measured::{EXCEEDED_HELP, KernelTime, Measured, Profile, limit_text, trace};
use schemars::JsonSchema;
use serde::Serialize;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use transformer_lite::unstable::backend::Caps;
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::executor::Timing;
use transformer_lite::unstable::files::write_whole;
use transformer_lite::unstable::fmt::{quantity, size_text};
use transformer_lite::unstable::llm::engine::DeviceModel;
use transformer_lite::unstable::llm::load::{LoadOptions, Loaded, Purpose};
use transformer_lite::unstable::llm::{LanguageModel, ModelFolder};
use transformer_lite::unstable::plan::NodeCost;
use transformer_lite::unstable::probe::Peaks;
use transformer_lite::unstable::runner::{Runner, RunnerOptions};
use transformer_lite::unstable::tensor::DType;

const EXAMPLES: &str = "\
Examples:
  tlite profile MODEL
  tlite profile MODEL --prefill 512 --past 1024 --kernels
  tlite profile model.onnx --bind batch=1 --html profile.html";

const COLUMNS_HELP: &str = "\
Columns:
  time, share  device time, and its share of the run
  bytes, FLOP  bytes moved, and arithmetic operations
  memory       bytes per second, as a share of the peak
  arithmetic   operations per second, as a share of the peak
  bound        what limits the operator: memory, arithmetic or launches
  of limit     speed, as a share of what the device allows

";

/// Show device time per operator, compared with the device's limits
///
/// Times come from the device's clock and are those of the fastest of several runs. Bytes and
/// operations follow from the plan, as in `tlite roofline`; peaks come from
/// `tlite devices --probe`. A language model runs a prefill and a decoding step, any other model
/// one run with random inputs. All commands of a timed run are queued at once, regardless of
/// --slice-ms.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "tlite profile [OPTIONS] MODEL\n       tlite profile [OPTIONS] --random NAME",
    after_help = EXAMPLES,
    after_long_help = format!("{COLUMNS_HELP}{EXAMPLES}")
)]
pub struct Args {
    #[command(flatten)]
    model: RandomOptions,
    /// Prefill length of a language model [default: 128]
    #[arg(long, value_name = "N", value_parser = from_one)]
    prefill: Option<NonZeroUsize>,
    /// Tokens in the cache before the decoding step [default: 128]
    #[arg(long, value_name = "N", value_parser = from_one)]
    past: Option<NonZeroUsize>,
    /// Input sizes of other models, such as batch=1,sequence=16
    #[arg(long, value_name = "NAME=N,...")]
    bind: Vec<String>,
    /// List kernels instead of operators
    #[arg(long, conflicts_with = "nodes")]
    kernels: bool,
    /// List nodes instead of operators
    #[arg(long)]
    nodes: bool,
    /// Print one JSON object, with operators, kernels, nodes and commands
    #[arg(long)]
    json: bool,
    /// Write trace events for Perfetto
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write a page with a roofline picture
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    integer: IntegerOption,
    #[command(flatten)]
    verbosity: Verbosity,
    #[command(flatten)]
    exec: ExecOptions,
}

/// Number of runs; the fastest counts, and the first ones warm up the device.
const RUNS: usize = 5;

/// The object of `tlite profile --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Report<'a> {
    /// Name of the model.
    model: String,
    /// Backend: `opencl`, `wgpu` or `cpu`.
    backend: &'a str,
    /// Name of the device.
    device: &'a str,
    /// Name and version of its driver.
    driver: &'a str,
    /// Peaks of the device.
    peaks: Peaks,
    /// The runs.
    runs: Vec<Profile>,
}

fn total(timings: &[Timing]) -> u64 {
    timings.iter().map(|t| t.nanoseconds).sum()
}

fn fastest(mut run: impl FnMut() -> Result<Vec<Timing>>) -> Result<Vec<Timing>> {
    let mut best: Option<Vec<Timing>> = None;
    for _ in 0..RUNS {
        let timings = run()?;
        if best.as_ref().is_none_or(|b| total(&timings) < total(b)) {
            best = Some(timings);
        }
    }
    best.ok_or_else(|| Error::other(Stage::Run, "nothing ran"))
}

/// Times one run of a decoder over `tokens` after `past` others.
fn measure(model: &mut DeviceModel, past: usize, tokens: usize) -> Result<Vec<Timing>> {
    let mut logits = Vec::new();
    fastest(|| {
        model.truncate(0);
        if past > 0 {
            model.forward(&vec![1; past], &mut logits)?;
        }
        model.profile(&vec![1; tokens])
    })
}

/// The costs of a run.
fn costs(loaded: &Loaded, tokens: usize, past: usize) -> Result<Vec<NodeCost>> {
    let runs = loaded.costs(tokens, past)?.unwrap_or_default();
    Ok(runs.into_iter().flatten().collect())
}

fn decoder(args: &Args, source: &Source, peaks: &Peaks) -> Result<Vec<Profile>> {
    check_no_bind(&args.bind, "--prefill and --past")?;
    let folder = ModelFolder::holding("MODEL", &source.path, &[])?;
    let loaded = load::load(
        &folder,
        &LoadOptions {
            weights: source.weights,
            ..args.exec.load_options()
        },
        Purpose::Generation,
        &mut |_| (),
    )?;
    let Some(mut model) = loaded.device_model()? else {
        return Err(Error::usage("--backend", REFERENCE_LACKS));
    };
    if let (false, Some(_)) = (loaded.keeps_cache(), args.past) {
        return Err(Error::usage("--past", "the model has no KV cache"));
    }
    let (most, context) = (model.run_length(), model.context());
    let usual = |most: usize| most.min(128);
    let prefill = args.prefill.map_or_else(|| usual(most), NonZeroUsize::get);
    let past = args
        .past
        .map_or_else(|| usual(context.saturating_sub(1)), NonZeroUsize::get);
    if prefill > most {
        let what = format!("{prefill} tokens: a run takes at most {most}");
        return Err(Error::usage("--prefill", what));
    }
    if past >= context {
        let what = format!("{past} tokens leave no room in the context of {context}");
        return Err(Error::usage("--past", what));
    }
    let mut profile = |name: String, tokens: usize, past: usize| -> Result<Profile> {
        let timings = measure(&mut model, past, tokens)?;
        Ok(Profile::new(
            name,
            &timings,
            &costs(&loaded, tokens, past)?,
            peaks,
        ))
    };
    let mut runs = vec![profile(format!("prefill {prefill}"), prefill, 0)?];
    if loaded.keeps_cache() {
        runs.push(profile(format!("decode at {past}"), 1, past)?);
    }
    Ok(runs)
}

fn other(args: &Args, model: &Path, peaks: &Peaks) -> Result<Vec<Profile>> {
    let options = [
        ("--prefill", args.prefill.is_some()),
        ("--past", args.past.is_some()),
        ("--context", args.exec.context.is_some()),
    ];
    check_no_decoder(model, &options)?;
    let float = args.exec.on.storage_type(args.exec.precision.float)?;
    let options = RunnerOptions {
        float: float.unwrap_or(DType::F32),
        limits: args.exec.on.limits.limits.clone(),
        integer: args.integer.arithmetic(),
        ..RunnerOptions::default()
    };
    let backend = load::open(&args.exec.on)?;
    let mut runner = Runner::load(&model_file(model)?, backend, &options)?;
    let given = made_up_inputs(&runner, &args.bind)?;
    let bindings = runner.check(&given)?;
    let timings = fastest(|| runner.profile(&given))?;
    let costs = runner.plan().map(|p| p.costs(&bindings)).transpose()?;
    Ok(vec![Profile::new(
        "run".to_owned(),
        &timings,
        &costs.unwrap_or_default(),
        peaks,
    )])
}

/// An error if the device cannot time commands.
fn check_times(caps: &Caps) -> Result<()> {
    if caps.profiling {
        return Ok(());
    }
    let what = format!(
        "{} ({}) cannot measure the times of commands",
        caps.device, caps.backend
    );
    Err(Error::usage("--device", what))
}

/// The cells of a row for some work.
fn cells(m: &Measured) -> Vec<String> {
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let t = &m.work.total;
    if t.launches == 0 {
        let mut cells = vec![quantity(m.seconds, "s"), percent(m.share)];
        cells.resize(COLUMNS.len(), "-".to_owned());
        return cells;
    }
    vec![
        quantity(m.seconds, "s"),
        percent(m.share),
        size_text(t.bytes()),
        flops_text(t.flops),
        limit_text(m.share_of_memory),
        limit_text(m.share_of_arithmetic),
        m.work.bound.name().to_owned(),
        limit_text(m.share_of_least),
    ]
}

const COLUMNS: [&str; 8] = [
    "time",
    "share",
    "bytes",
    "FLOP",
    "memory",
    "arithmetic",
    "bound",
    "of limit",
];

fn text(report: &Report<'_>, args: &Args) -> String {
    let mut out = format!(
        "{} on {} ({})\npeaks: {}\n",
        report.model, report.device, report.backend, report.peaks
    );
    for run in &report.runs {
        out.push_str(&format!("\n{}: {}\n", run.name, quantity(run.seconds(), "s")));
        if args.kernels {
            let share = |k: &KernelTime| 100.0 * k.seconds / run.seconds().max(1e-9);
            let rows = titled(
                &run.kernels,
                &[
                    ("kernel", &|k| k.kernel.clone()),
                    ("dispatches", &|k| k.dispatches.to_string()),
                    ("time", &|k| quantity(k.seconds, "s")),
                    ("share", &|k| format!("{:.1} %", share(k))),
                ],
            );
            out.push_str(&fitted_table(&rows, 1, 0));
            continue;
        }
        let all = (run.lines.len(), cells(&run.whole));
        let by_node = run
            .lines
            .iter()
            .map(|l| ([l.node.clone(), l.op.clone()], cells(&l.measured)));
        let by_operator = run
            .kinds
            .iter()
            .map(|k| ([k.op.clone(), k.nodes.to_string()], cells(&k.measured)));
        out.push_str(&work_table(args.nodes, &COLUMNS, by_node, by_operator, all));
    }
    if !args.kernels && report.runs.iter().any(Profile::exceeds_probe) {
        out.push_str(&format!("\n{EXCEEDED_HELP}\n"));
    }
    out
}

pub fn run(args: &Args, interrupt: &Interrupt) -> Result<()> {
    args.verbosity.apply(args.json);
    for (option, file) in [("--trace", &args.trace), ("--html", &args.html)] {
        if let Some(file) = file {
            check_writable(option, file)?;
        }
    }
    let source = args.model.source(interrupt)?;
    let decodes = inspect::is_decoder(&source.path)?;
    let (caps, probe) = device(&args.exec)?;
    check_times(&caps)?;
    let peaks = probe.peaks();
    let runs = if decodes {
        decoder(args, &source, &peaks)?
    } else {
        other(args, &source.path, &peaks)?
    };
    let report = Report {
        model: inspect::model_name(&source.path)?,
        backend: caps.backend,
        device: &caps.device,
        driver: &caps.driver,
        peaks,
        runs,
    };
    if let Some(file) = &args.trace {
        let trace = trace(&caps.device, &report.runs).to_string();
        write_whole(file, |out| out.write_all(trace.as_bytes()))?;
        note(&format!("wrote {}", file.display()));
    }
    if let Some(file) = &args.html {
        let about = About {
            kind: "profile",
            ..About::default()
        };
        page::write(file, &report, &about)?;
    }
    print_report(args.json, &report, || text(&report, args))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_times_is_named() {
        let caps = Caps::generic_gpu();
        let e = check_times(&caps).unwrap_err();
        assert!(e.is_usage() && e.to_string().starts_with("--device: "), "{e}");
        assert!(
            check_times(&Caps {
                profiling: true,
                ..caps
            })
            .is_ok()
        );
    }
}
