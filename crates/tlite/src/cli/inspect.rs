//! `tlite inspect`.

mod text;

use super::choices;
use super::interrupt::Interrupt;
use super::model::model_path;
use super::options::{
    ADVANCED, LimitOptions, ModelArg, Verbosity, check_writable, first_given, from_one, padding,
};
use super::output::print_report;
use super::page::{self, About};
use crate::inspect::{Report, Request, inspect, inspect_gguf, parse_bind, parse_bounds};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use text::{header_text, list, text};
use transformer_lite::unstable::backend::{BackendKind, Caps, OpenOptions};
use transformer_lite::unstable::error::{Error, Result};
use transformer_lite::unstable::files::kind::is_gguf;
use transformer_lite::unstable::llm::engine::{CHUNK, PADDING};
use transformer_lite::unstable::llm::{Activations, KvType};
use transformer_lite::unstable::placement::{BackendChoice, Placement};
use transformer_lite::unstable::tensor::DType;

/// Show what a model contains and what it needs to run
///
/// Reads only the model's files: it loads no weights and opens no device. The plan is that of the
/// `cpu` backend, unless --backend or --device names another. Memory is given for the longest
/// inputs within the bounds. A symbol without a bound gets a default bound, which is reported.
/// `--verbose` adds symbols, all operators and passes, and memory by placement rule. For a GGUF
/// file, only the header is shown, unless an option needs a plan.
#[derive(Debug, clap::Args)]
#[command(override_usage = "tlite inspect [OPTIONS] MODEL", after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    model: ModelArg,
    /// List every operator with its shapes and how it runs (kernel, fused, host or removed)
    #[arg(long)]
    nodes: bool,
    /// Print one JSON object
    #[arg(long, conflicts_with = "nodes")]
    json: bool,
    /// Write an interactive page of the graph and its memory
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Tokens in the KV cache [default: the model's limit, at most 4096]
    #[arg(short, long, value_name = "N", value_parser = from_one)]
    context: Option<NonZeroUsize>,
    /// Plan for a device of this backend [default: cpu]
    #[arg(long, value_parser = choices::backend(), value_name = "NAME")]
    backend: Option<BackendChoice>,
    /// Plan for the device with this text in its name
    #[arg(long, value_name = "TEXT")]
    device: Option<String>,
    /// Fix symbols, as in N=512,past=1024
    #[arg(long, value_name = "NAME=N,...")]
    bind: Vec<String>,
    /// Bound symbols, as in "1 <= N <= 2048, total == past + N"
    #[arg(long, value_name = "RELATION,...")]
    bounds: Option<String>,
    /// Maximum number of prompt tokens per prefill run [default: 128]
    #[arg(long, value_name = "N", value_parser = from_one, hide_short_help = true, help_heading = ADVANCED)]
    chunk: Option<NonZeroUsize>,
    /// Round the attended length of each decoding step up to a multiple of N (32 to 256) [default:
    /// 64]
    #[arg(long, value_name = "N", value_parser = padding, hide_short_help = true, help_heading = ADVANCED)]
    padding: Option<usize>,
    /// Type of a language model's KV cache [default: float]
    #[arg(long, value_parser = choices::kv(), value_name = "TYPE", hide_short_help = true, help_heading = ADVANCED)]
    kv: Option<KvType>,
    /// Precision of a decoder's activations in matmuls with 4-bit and 8-bit weights [default: auto]
    #[arg(long, value_parser = choices::activations(), value_name = "TYPE", hide_short_help = true, help_heading = ADVANCED)]
    act: Option<Activations>,
    /// Type of activations [default: f16 for a language model, unless it quantizes at run time;
    /// else f32]
    #[arg(long, value_parser = choices::float(), value_name = "TYPE", hide_short_help = true, help_heading = ADVANCED)]
    float: Option<DType>,
    #[command(flatten)]
    limits: LimitOptions,
    #[command(flatten)]
    verbosity: Verbosity,
}

const EXAMPLES: &str = "\
Examples:
  tlite inspect MODEL
  tlite inspect MODEL --context 8192 --html page.html
  tlite inspect yolo.onnx --bind batch=1,height=640,width=640 --nodes";

impl Args {
    /// A usage error for an option that has no effect on this model.
    fn check_used(&self, report: &Report) -> Result<()> {
        if report.model.decoder.is_some() {
            return Ok(());
        }
        let unused = [
            ("--chunk", self.chunk.is_some()),
            ("--padding", self.padding.is_some()),
            ("--kv", self.kv.is_some()),
            ("--act", self.act.is_some()),
            // Other models may have caches too.
            ("--context", self.context.is_some() && report.states.is_empty()),
        ];
        match first_given(&unused) {
            Some(option) => {
                let what = format!(
                    "{} is not a text-generation model with a KV cache",
                    report.model.path.display()
                );
                Err(Error::usage(option, what))
            }
            None => Ok(()),
        }
    }

    /// True if an option asks for more than the header of a GGUF file tells.
    fn asks_for_plan(&self) -> bool {
        self.nodes
            || self.html.is_some()
            || self.context.is_some()
            || self.backend.is_some()
            || self.device.is_some()
            || !self.bind.is_empty()
            || self.bounds.is_some()
            || self.chunk.is_some()
            || self.padding.is_some()
            || self.kv.is_some()
            || self.act.is_some()
            || self.float.is_some()
    }
}

/// What models are planned for if no device is named: the CPU backend, which needs no driver. A
/// generic GPU in builds without it.
fn planned_on() -> Caps {
    let cpu = Placement {
        backend: BackendChoice::On(BackendKind::Cpu),
        ..Placement::default()
    };
    cpu.caps().unwrap_or_else(|_| Caps::generic_gpu())
}

pub fn run(args: &Args, interrupt: &Interrupt) -> Result<()> {
    args.verbosity.apply(args.json);
    let given = args.model.given()?;
    if given.is_file() && is_gguf(given) && !args.asks_for_plan() {
        let report = inspect_gguf(given)?;
        return print_report(args.json, &report, || header_text(&report));
    }
    if let Some(file) = &args.html {
        check_writable("--html", file)?;
    }
    let bind = parse_bind(&args.bind)?;
    let bounds = args.bounds.as_deref().map(parse_bounds).transpose()?;
    let place = Placement {
        backend: args.backend.unwrap_or_default(),
        options: OpenOptions::of(args.device.as_deref()),
    };
    let is_named = args.backend.is_some() || args.device.is_some();
    let caps = match is_named {
        true => place.caps()?,
        false => planned_on(),
    };
    let request = Request {
        caps,
        bind,
        bounds: bounds.unwrap_or_default(),
        context: args.context.map(usize::from),
        chunk: args.chunk.map_or(CHUNK, usize::from),
        padding: args.padding.unwrap_or(PADDING),
        kv: args.kv.unwrap_or_default(),
        act: args.act.unwrap_or_default(),
        float: args.float,
        limits: args.limits.limits.clone(),
    };
    let report = inspect(&model_path(given, interrupt)?, &request)?;
    args.check_used(&report)?;
    if let Some(file) = &args.html {
        let about = About {
            kind: "inspect",
            ..About::default()
        };
        page::write(file, &report, &about)?;
    }
    print_report(args.json, &report, || {
        let nodes = if args.nodes { list(&report) } else { String::new() };
        text(&report, args.verbosity.verbose) + &nodes
    })
}
