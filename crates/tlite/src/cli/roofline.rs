//! `tlite roofline`.

use super::interrupt::Interrupt;
use super::measuring::{check_no_bind, check_no_decoder};
use super::options::{ExecOptions, Verbosity, check_fits, from_one, from_zero};
use super::output::{fitted_table, note, print_report};
use super::random::RandomOptions;
use crate::inspect::{self, Request, parse_bind};
use crate::roofline::{Peaks, Summary, Work};
use schemars::JsonSchema;
use serde::Serialize;
use std::num::NonZeroUsize;
use std::path::Path;
use transformer_lite::unstable::backend::Caps;
use transformer_lite::unstable::error::{Error, Result};
use transformer_lite::unstable::fmt::{quantity, size_text};
use transformer_lite::unstable::llm::ModelFolder;
use transformer_lite::unstable::llm::engine::PADDING;
use transformer_lite::unstable::llm::load::PlannedDecoder;
use transformer_lite::unstable::probe::{Probe, store};

const EXAMPLES: &str = "\
Examples:
  tlite roofline MODEL
  tlite roofline MODEL --prefill 512 --depth 4000
  tlite roofline model.onnx --bind batch=1 --nodes";

const COLUMNS_HELP: &str = "\
Columns:
  launches       kernel launches
  read, written  bytes moved
  FLOP           arithmetic operations
  FLOP/B         arithmetic operations per byte
  minimum        time at the device's limits, and its share of the run
  bound          what limits the operator: memory, arithmetic or launches

";

/// Estimate the minimum run time of a model (roofline)
///
/// Nothing is run: bytes and operations follow from the model's plan, and the peaks of memory,
/// arithmetic and launches from `tlite devices --probe`, which runs once per device. A language
/// model is estimated for prefill and decoding, any other model for one run with the sizes of
/// --bind.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "tlite roofline [OPTIONS] MODEL\n       tlite roofline [OPTIONS] --random NAME",
    after_help = EXAMPLES,
    after_long_help = format!("{COLUMNS_HELP}{EXAMPLES}")
)]
pub struct Args {
    #[command(flatten)]
    model: RandomOptions,
    /// Prompt lengths of a language model [default: 128,1024]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = from_one)]
    prefill: Vec<NonZeroUsize>,
    /// Tokens in the cache before a decoding step [default: 128,1024]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = from_zero::<usize>)]
    depth: Vec<usize>,
    /// Input sizes of other models, such as batch=1,sequence=16
    #[arg(long, value_name = "NAME=N,...")]
    bind: Vec<String>,
    /// List nodes instead of operators
    #[arg(long)]
    nodes: bool,
    /// Print one JSON object, with all nodes
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    verbosity: Verbosity,
    #[command(flatten)]
    exec: ExecOptions,
}

/// The object of `tlite roofline --json`.
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
    /// Measurements that the peaks come from.
    probe: &'a Probe,
    /// The runs.
    work: Vec<Work>,
}

/// Why the interpreter is refused.
pub(super) const REFERENCE_LACKS: &str =
    "roofline and profile need a device; the reference interpreter cannot be measured";

/// Capabilities and measurements of the device that `options` name. A usage error for the
/// interpreter.
pub fn device(options: &ExecOptions) -> Result<(Caps, Probe)> {
    let place = options.on.placement();
    let mut backend = place.open_device(REFERENCE_LACKS)?;
    let kept = options.on.cache.probes();
    let probe = store::of_device(backend.as_mut(), kept.as_ref(), &mut note)?;
    Ok((backend.caps().clone(), probe))
}

/// The lengths `asked` for, else the default ones that fit the context.
fn usual(asked: &[usize], context: usize) -> Vec<usize> {
    if asked.is_empty() {
        return [128, 1024].into_iter().filter(|n| *n < context).collect();
    }
    asked.to_vec()
}

fn decoder(args: &Args, model: &Path, caps: &Caps, peaks: &Peaks) -> Result<Vec<Work>> {
    check_no_bind(&args.bind, "--prefill and --depth")?;
    let folder = ModelFolder::holding("MODEL", model, &[])?;
    let planned = PlannedDecoder::new(&folder, &args.exec.load_options(), caps)?;
    let context = planned.context();
    let of = |name: String, tokens: usize, past: usize| -> Result<Work> {
        let costs = planned.costs(tokens, past)?;
        Ok(Work::new(name, Some(tokens), &costs, peaks))
    };
    let mut work = Vec::new();
    let prompts: Vec<usize> = args.prefill.iter().map(|n| n.get()).collect();
    for tokens in usual(&prompts, context) {
        check_fits("--prefill", tokens, context)?;
        work.push(of(format!("prefill {tokens}"), tokens, 0)?);
    }
    for depth in usual(&args.depth, context) {
        check_fits("--depth", depth.saturating_add(1), context)?;
        work.push(of(format!("decode at {depth}"), 1, depth)?);
    }
    Ok(work)
}

fn other(args: &Args, model: &Path, caps: &Caps, peaks: &Peaks) -> Result<Vec<Work>> {
    let usual = ExecOptions::default();
    let options = [
        ("--prefill", !args.prefill.is_empty()),
        ("--depth", !args.depth.is_empty()),
        ("--context", args.exec.context.is_some()),
        ("--kv", args.exec.precision.kv != usual.precision.kv),
        ("--act", args.exec.precision.act != usual.precision.act),
        ("--padding", args.exec.padding != PADDING),
    ];
    check_no_decoder(model, &options)?;
    let request = Request {
        caps: caps.clone(),
        bind: parse_bind(&args.bind)?,
        float: args.exec.on.storage_type(args.exec.precision.float)?,
        limits: args.exec.on.limits.limits.clone(),
        ..Request::default()
    };
    let mut work = Vec::new();
    for plan in inspect::plans(model, &request)? {
        let open: Vec<String> = plan.bounds().iter().map(|(s, n)| format!("{s}={n}")).collect();
        if !open.is_empty() {
            let what = format!(
                "some input sizes are not fixed; set them, for example --bind {}",
                open.join(",")
            );
            return Err(Error::usage("--bind", what));
        }
        let costs = plan.costs(&request.bind)?;
        work.push(Work::new("run".to_owned(), None, &[costs], peaks));
        if !plan.host.is_empty() {
            let what = format!("{} nodes run on the host and are not counted", plan.host.len());
            note(&what);
        }
    }
    Ok(work)
}

const COLUMNS: [&str; 8] = [
    "launches", "read", "written", "FLOP", "FLOP/B", "minimum", "share", "bound",
];

/// Operations as a cell of a table.
pub(super) fn flops_text(flops: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let operations = flops as f64;
    match flops {
        0 => "0".to_owned(),
        _ => quantity(operations, ""),
    }
}

/// A line of a table of work: its two names, then its cells.
type WorkLine = ([String; 2], Vec<String>);

/// A table of work by node or by operator, then the total.
pub(super) fn work_table(
    nodes: bool,
    columns: &[&str],
    by_node: impl Iterator<Item = WorkLine>,
    by_operator: impl Iterator<Item = WorkLine>,
    all: (usize, Vec<String>),
) -> String {
    let (first, left, lines): (_, _, Vec<WorkLine>) = match nodes {
        true => (["node", "operator"], 2, by_node.collect()),
        false => (["operator", "nodes"], 1, by_operator.collect()),
    };
    let head = first.iter().chain(columns).map(|c| (*c).to_owned()).collect();
    let all = (["all".to_owned(), all.0.to_string()], all.1);
    let rows = lines
        .into_iter()
        .chain([all])
        .map(|(names, cells)| names.into_iter().chain(cells).collect());
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
    fitted_table(&rows, left, 0)
}

/// The cells of a row for some work; everything takes `whole` seconds.
fn cells(work: &Summary, whole: f64) -> Vec<String> {
    let t = &work.total;
    vec![
        t.launches.to_string(),
        size_text(t.read_bytes),
        size_text(t.written_bytes),
        flops_text(t.flops),
        format!("{:.1}", t.intensity()),
        quantity(work.least_s, "s"),
        format!("{:.1} %", 100.0 * work.least_s / whole.max(1e-12)),
        work.bound.name().to_owned(),
    ]
}

fn text(report: &Report<'_>, nodes: bool) -> String {
    let mut out = format!(
        "{} on {} ({})\npeaks: {}\n",
        report.model, report.device, report.backend, report.peaks
    );
    for work in &report.work {
        let most = work
            .most_tokens_per_s
            .map_or(String::new(), |n| format!(", at most {n:.1} tokens/s"));
        out.push_str(&format!(
            "\n{}: at least {}{most}\n",
            work.name,
            quantity(work.whole.least_s, "s")
        ));
        let whole = work.whole.least_s;
        let all = (work.lines.len(), cells(&work.whole, whole));
        let by_node = work
            .lines
            .iter()
            .map(|l| ([l.node.clone(), l.op.clone()], cells(&l.work, whole)));
        let by_operator = work
            .kinds
            .iter()
            .map(|k| ([k.op.clone(), k.nodes.to_string()], cells(&k.work, whole)));
        out.push_str(&work_table(nodes, &COLUMNS, by_node, by_operator, all));
    }
    out
}

pub fn run(args: &Args, interrupt: &Interrupt) -> Result<()> {
    args.verbosity.apply(args.json);
    let source = args.model.source(interrupt)?;
    let model = &source.path;
    let decodes = inspect::is_decoder(model)?;
    let (caps, probe) = device(&args.exec)?;
    let peaks = probe.peaks();
    let work = if decodes {
        decoder(args, model, &caps, &peaks)?
    } else {
        other(args, model, &caps, &peaks)?
    };
    let report = Report {
        model: inspect::model_name(model)?,
        backend: caps.backend,
        device: &caps.device,
        driver: &caps.driver,
        peaks,
        probe: &probe,
        work,
    };
    print_report(args.json, &report, || text(&report, args.nodes))
}
