//! `tlite inspect`.

use super::choices;
use super::interrupt::Interrupt;
use super::model::model_path;
use super::options::{ADVANCED, Float, ModelArg, Verbosity, check_writable, from_one, padding};
use super::output::{note, put, put_json, table, terminal_columns, text_output};
use crate::inspect::{
    BoundFrom, FileReport, GgufReport, How, Operator, PlanReport, Report, Request, StepReport, ValueReport,
    inspect, inspect_gguf, operator_counts, page, parameters_text, parse_bind, parse_bounds,
};
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use transformer_lite::unstable::backend::{Caps, OpenOptions};
use transformer_lite::unstable::error::{Error, Result};
use transformer_lite::unstable::files::kind::is_gguf;
use transformer_lite::unstable::files::write_whole;
use transformer_lite::unstable::fmt::{count_text, dispatches_text, size_text};
use transformer_lite::unstable::graph::class::Class;
use transformer_lite::unstable::llm::KvType;
use transformer_lite::unstable::llm::engine::{CHUNK, PADDING};
use transformer_lite::unstable::placement::{BackendChoice, Placement};

/// Show what a model contains and what it needs to run
///
/// Reads only the model's files: it loads no weights, and looks at devices only with --backend or
/// --device. Memory is given for the longest inputs within the bounds. A symbol without a bound
/// gets a default bound, which is reported. `--verbose` adds symbols, all operators and passes, and
/// memory by placement rule. For a GGUF file, only the header is shown, unless an option needs a
/// plan.
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
    #[arg(short, long, value_name = "N", value_parser = from_one, allow_negative_numbers = true)]
    context: Option<NonZeroUsize>,
    /// Plan for a device of this backend instead of a generic one
    #[arg(long, value_parser = choices::backend(), value_name = "NAME")]
    backend: Option<BackendChoice>,
    /// Plan for the device with this text in its name or driver
    #[arg(long, value_name = "SUBSTRING")]
    device: Option<String>,
    /// Fix symbols, as in N=512,past=1024
    #[arg(long, value_name = "NAME=N,...")]
    bind: Vec<String>,
    /// Bound symbols, as in "1 <= N <= 2048, total == past + N"
    #[arg(long, value_name = "RELATION,...")]
    bounds: Option<String>,
    /// Maximum number of prompt tokens per prefill run [default: 128]
    #[arg(
        long,
        value_name = "N",
        value_parser = from_one,
        allow_negative_numbers = true,
        hide_short_help = true,
        help_heading = ADVANCED
    )]
    chunk: Option<NonZeroUsize>,
    /// Round the attended length of each decoding step up to a multiple of N (32 to 256) [default:
    /// 64]
    #[arg(
        long,
        value_name = "N",
        value_parser = padding,
        allow_negative_numbers = true,
        hide_short_help = true,
        help_heading = ADVANCED
    )]
    padding: Option<usize>,
    /// Type of a language model's KV cache [default: float]
    #[arg(long, value_parser = choices::kv(), value_name = "TYPE", hide_short_help = true, help_heading = ADVANCED)]
    kv: Option<KvType>,
    /// Type of activations [default: f16 for a language model, unless it quantizes at run time;
    /// else f32]
    #[arg(long, value_enum, value_name = "TYPE", hide_short_help = true, help_heading = ADVANCED)]
    float: Option<Float>,
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
            // Other models may have caches too.
            ("--context", self.context.is_some() && report.states.is_empty()),
        ];
        match unused.into_iter().find(|(_, given)| *given) {
            Some((option, _)) => {
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
            || self.float.is_some()
    }
}

/// Runs the command.
pub fn run(args: &Args, interrupt: &Interrupt) -> Result<()> {
    args.verbosity.apply(args.json);
    let given = args.model.given()?;
    if given.is_file() && is_gguf(given) && !args.asks_for_plan() {
        return header_of(given, args.json);
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
    let caps = place.caps()?;
    let request = Request {
        caps: caps.unwrap_or_else(Caps::generic_gpu),
        bind,
        bounds: bounds.unwrap_or_default(),
        context: args.context.map(usize::from),
        chunk: args.chunk.map_or(CHUNK, usize::from),
        padding: args.padding.unwrap_or(PADDING),
        kv: args.kv.unwrap_or_default(),
        float: args.float.map(Float::dtype),
    };
    let report = inspect(&model_path(given, interrupt)?, &request)?;
    args.check_used(&report)?;
    if let Some(file) = &args.html {
        let page = page::render(&report);
        write_whole(file, |out| out.write_all(page.as_bytes()))?;
        note(&mut std::io::stderr(), &format!("wrote {}", file.display()));
    }
    let mut out = text_output();
    if args.json {
        return put_json(&mut out, &report);
    }
    put(&mut out, &text(&report, args.verbosity.verbose))?;
    if args.nodes {
        put(&mut out, &list(&report))?;
    }
    Ok(())
}

/// Prints what the header of a GGUF file says.
fn header_of(file: &Path, json: bool) -> Result<()> {
    let report = inspect_gguf(file)?;
    let mut out = text_output();
    if json {
        put_json(&mut out, &report)
    } else {
        put(&mut out, &header_text(&report))
    }
}

/// Spaces before each line of [`indented`] and between two columns.
const GAP: usize = 2;

/// Names and values as a table at most `width` columns wide, long values in several lines. Without
/// a width, and on wide terminals, values have a fixed one.
fn fact_table(facts: Vec<(&str, String)>, width: Option<usize>) -> String {
    const LEAST: usize = 20;
    const MOST: usize = 84;
    let names = facts.iter().map(|(name, _)| name.chars().count()).max();
    let start = GAP + names.unwrap_or(0) + GAP;
    let room = width.map_or(MOST, |w| w.saturating_sub(start).clamp(LEAST, MOST));
    let mut rows = Vec::new();
    for (name, value) in facts {
        let mut name = name.to_owned();
        for line in wrapped(&value, room) {
            rows.push(vec![std::mem::take(&mut name), line]);
        }
    }
    indented(&rows, 2)
}

/// Lines of words of `text`, of at most `width` characters where its words allow that.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let Some(line) = lines.last_mut() else { break };
        let fits = line.chars().count() + 1 + word.chars().count() <= width;
        if line.is_empty() {
            line.push_str(word);
        } else if fits {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

fn header_text(report: &GgufReport) -> String {
    let file = report.path.file_name().unwrap_or(report.path.as_os_str());
    let mut facts = Vec::new();
    let mut add = |name, value: Option<String>| facts.extend(value.map(|v| (name, v)));
    let number = |n: Option<usize>| n.map(|n| n.to_string());
    add("name", report.name.clone());
    add("architecture", report.architecture.clone());
    add("parameters", Some(parameters_text(report.parameters)));
    let types = report.types.iter().map(|t| format!("{} {}", t.tensors, t.name));
    let types: Vec<String> = types.collect();
    let bits = report
        .bits_per_weight
        .map(|b| format!("{b:.2} bits on average; "));
    add(
        "weights",
        Some(format!(
            "{}tensors: {}",
            bits.unwrap_or_default(),
            types.join(", ")
        )),
    );
    add("layers", number(report.layers));
    add("hidden size", number(report.hidden_size));
    let heads = match (report.heads, report.kv_heads) {
        (Some(q), Some(kv)) if q != kv => Some(format!("{q} ({kv} for keys and values)")),
        (q, _) => number(q),
    };
    add("heads", heads);
    add("vocabulary", report.vocabulary.map(|n| format!("{n} tokens")));
    add("context", report.max_context.map(|n| format!("{n} tokens")));
    let template = if report.chat_template { "yes" } else { "no" };
    add("chat template", Some(template.to_owned()));
    add("tokenizer", report.tokenizer.clone());
    add("file", Some(size_text(report.bytes)));
    add(
        "supported",
        Some(match &report.unsupported {
            Some(why) => format!("no: {why}"),
            None => "yes".to_owned(),
        }),
    );
    format!(
        "{}: GGUF file, version {}\n{}",
        file.display(),
        report.version,
        fact_table(facts, terminal_columns())
    )
}

/// The lengths for which memory is told.
fn lengths(report: &Report) -> String {
    if let Some(d) = &report.model.decoder {
        return format!(" at context {}", d.context);
    }
    let known = report.symbols.iter().filter(|s| s.bound_from != BoundFrom::Data);
    let all: Vec<String> = known
        .clone()
        .filter_map(|s| Some(format!("{}={}", s.name, s.upper?)))
        .collect();
    let assumed = match known.clone().any(|s| s.bound_from == BoundFrom::Assumed) {
        true => " (assumed; see --bounds)",
        false => "",
    };
    match all.is_empty() {
        true => String::new(),
        false => format!(" at {}{assumed}", all.join(", ")),
    }
}

/// What the model needs on a device.
fn memory_text(report: &Report) -> String {
    let cache = if report.states.is_empty() {
        String::new()
    } else {
        format!("KV cache {}, ", size_text(report.states_bytes))
    };
    format!(
        "{}{}: weights {}, {cache}activations {}",
        size_text(report.total_bytes),
        lengths(report),
        size_text(report.weights_bytes),
        size_text(report.arena_bytes)
    )
}

/// The largest files, and how many there are besides.
fn files_text(files: &[FileReport]) -> Option<String> {
    const SHOWN: usize = 3;
    let shown: Vec<String> = files
        .iter()
        .take(SHOWN)
        .map(|f| format!("{} {}", f.name, size_text(f.bytes)))
        .collect();
    let more = match files.len().saturating_sub(SHOWN) {
        0 => String::new(),
        n => format!(", {n} more"),
    };
    (!shown.is_empty()).then(|| format!("{}{more}", shown.join(", ")))
}

/// Counts of the most frequent operators.
fn operators_text(report: &Report) -> String {
    const SHOWN: usize = 6;
    let counts = operator_counts(report.operators.iter().map(|o| o.op.as_str()));
    let shown = counts.iter().take(SHOWN).map(|(name, n)| format!("{n} {name}"));
    let shown: Vec<String> = shown.collect();
    let more = match counts.len().saturating_sub(SHOWN) {
        0 => String::new(),
        n => format!(", {n} other types"),
    };
    format!("{} ({}{more})", report.operators.len(), shown.join(", "))
}

/// Rewrites by pass, of the passes that made any.
fn passes_text(report: &Report) -> Option<String> {
    let used = report.passes.iter().filter(|p| p.edits > 0);
    let used: Vec<String> = used.map(|p| format!("{} {}", p.pass, p.edits)).collect();
    let (first, last) = (report.passes.first()?, report.passes.last()?);
    Some(match used.is_empty() {
        true => format!("{} nodes, nothing to rewrite", first.nodes_before),
        false => format!(
            "{} nodes become {}: {}",
            first.nodes_before,
            last.nodes_after,
            used.join(", ")
        ),
    })
}

/// Where the model runs, in one line.
fn execution_text(report: &Report) -> String {
    let device = match report.device.name.as_str() {
        "none" => "planned for a generic device".to_owned(),
        name => format!("planned for {name} ({})", report.device.backend),
    };
    let plans: Vec<String> = report
        .plans
        .iter()
        .map(|p| match p.name {
            "run" => dispatches_text(p.dispatches),
            name => format!("{} to {name}", dispatches_text(p.dispatches)),
        })
        .collect();
    let host = on_host(report).len();
    let host = match host {
        0 => "nothing on the host".to_owned(),
        n => format!("{} on the host", count_text(n, "node")),
    };
    format!("{}; {host}; {device}", plans.join(", "))
}

/// Nodes that run on the host, in any plan.
fn on_host(report: &Report) -> Vec<&StepReport> {
    let mut seen = HashSet::new();
    let steps = report.plans.iter().flat_map(|p| &p.steps);
    steps
        .filter(|s| s.place == "host" && seen.insert(s.node.as_str()))
        .collect()
}

fn bound_text(from: BoundFrom) -> &'static str {
    match from {
        BoundFrom::Bind => "from --bind",
        BoundFrom::Bounds => "from --bounds",
        BoundFrom::Context => "the context",
        BoundFrom::Chunk => "one prefill run",
        BoundFrom::OneSequence => "one sequence at a time",
        BoundFrom::Assumed => "assumed; see --bounds",
        BoundFrom::Data => "from its operator",
    }
}

fn fact(v: &ValueReport) -> String {
    format!("{}[{}]", v.dtype, v.shape.join(", "))
}

fn indented(rows: &[Vec<String>], left: usize) -> String {
    table(rows, left).lines().map(|l| format!("  {l}\n")).collect()
}

/// The report for people.
fn text(report: &Report, verbose: bool) -> String {
    let summary = &report.model.summary;
    let decodes = report.model.decoder.is_some();
    let kind = match decodes {
        true => "text-generation model",
        false => "ONNX model",
    };
    let mut facts = summary.facts();
    facts.push(("operators", operators_text(report)));
    facts.extend(files_text(&summary.files).map(|files| ("files", files)));
    facts.push(("memory", memory_text(report)));
    facts.extend(passes_text(report).map(|passes| ("passes", passes)));
    facts.push(("execution", execution_text(report)));
    let table = fact_table(facts, terminal_columns());
    let mut out = format!("{}: {kind}\n{table}", report.model.name);
    if !decodes || verbose {
        out.push_str(&values(report));
    }
    if !verbose {
        out.push_str(&host_nodes(report));
        return out;
    }
    out.push_str(&symbols(report));
    out.push_str(&operators(report));
    out.push_str(&passes(report));
    out.push_str(&memory(report));
    out.push_str(&running(report));
    out
}

/// The first nodes that run on the host, with the reason.
fn host_nodes(report: &Report) -> String {
    const SHOWN: usize = 5;
    let all = on_host(report);
    if all.is_empty() {
        return String::new();
    }
    let mut out = String::from("\non the host\n");
    for s in all.iter().take(SHOWN) {
        let why = s.why.as_deref().unwrap_or_default();
        let _ok = writeln!(out, "  {} \"{}\": {why}", s.name, s.node);
    }
    if all.len() > SHOWN {
        let _ok = writeln!(out, "  {} more; see --verbose", all.len() - SHOWN);
    }
    out
}

fn values(report: &Report) -> String {
    const SHOWN: usize = 6;
    let mut out = String::new();
    let caches: HashSet<&str> = report
        .states
        .iter()
        .flat_map(|s| [s.name.as_str(), s.output.as_str()])
        .collect();
    for (title, all) in [("inputs", &report.inputs), ("outputs", &report.outputs)] {
        let _ok = writeln!(out, "\n{title}");
        let plain: Vec<&ValueReport> = all.iter().filter(|v| !caches.contains(v.name.as_str())).collect();
        let rows: Vec<_> = plain
            .iter()
            .take(SHOWN)
            .map(|v| vec![v.name.clone(), fact(v)])
            .collect();
        out.push_str(&indented(&rows, 2));
        if plain.len() > SHOWN {
            let _ok = writeln!(out, "  and {} more", plain.len() - SHOWN);
        }
    }
    if let (Some(first), n) = (report.states.first(), report.states.len()) {
        let _ok = writeln!(
            out,
            "\ncache\n  {n} tensors in {}, {}: \"{}\" [{}]{}",
            first.dtype,
            size_text(report.states_bytes),
            first.name,
            first.shape.join(", "),
            if n > 1 { " and so on" } else { "" }
        );
        let mut windows: BTreeMap<(i64, i64), usize> = BTreeMap::new();
        for (window, rows) in report.states.iter().filter_map(|s| Some((s.window?, s.rows))) {
            *windows.entry((window, rows)).or_default() += 1;
        }
        for ((window, rows), n) in windows {
            let _ok = writeln!(out, "  {n} of them keep {rows} rows and read the last {window}");
        }
    }
    out
}

fn symbols(report: &Report) -> String {
    let mut out = String::new();
    if !report.symbols.is_empty() {
        out.push_str("\nsymbols\n");
        let rows: Vec<_> = report
            .symbols
            .iter()
            .map(|s| {
                let range = match s.upper {
                    Some(u) if u == s.lower => u.to_string(),
                    Some(u) => format!("{}..{u}", s.lower),
                    None => format!("{}..", s.lower),
                };
                vec![
                    s.name.clone(),
                    range,
                    bound_text(s.bound_from).to_owned(),
                    s.source.clone(),
                ]
            })
            .collect();
        out.push_str(&indented(&rows, 4));
    }
    if !report.constraints.is_empty() {
        let _ok = writeln!(out, "\nconstraints\n  {}", report.constraints.join("\n  "));
    }
    if !report.assumptions.is_empty() {
        out.push_str("\nassumptions, checked at each run\n");
        let rows: Vec<_> = report
            .assumptions
            .iter()
            .map(|a| vec![a.condition.clone(), format!("node \"{}\"", a.node)])
            .collect();
        out.push_str(&indented(&rows, 2));
    }
    out
}

fn operators(report: &Report) -> String {
    let mut counts: BTreeMap<(&str, Class), (usize, usize)> = BTreeMap::new();
    for o in &report.operators {
        let (all, kept) = counts.entry((&o.op, o.class)).or_default();
        *all += 1;
        *kept += usize::from(matches!(o.becomes.how, How::Kept | How::Rewritten | How::Fused));
    }
    let mut rows: Vec<_> = counts.into_iter().collect();
    rows.sort_by_key(|((name, class), (all, _))| (*class == Class::Shape, std::cmp::Reverse(*all), *name));
    let mut lines = vec![
        ["operator", "class", "count", "in the plan"]
            .map(str::to_owned)
            .to_vec(),
    ];
    lines.extend(rows.iter().map(|((name, class), (all, kept))| {
        let class = match class {
            Class::Shape => "shape",
            Class::Tensor => "tensor",
        };
        vec![
            (*name).to_owned(),
            class.to_owned(),
            all.to_string(),
            kept.to_string(),
        ]
    }));
    format!(
        "\noperators (shape computations at run time: {} of {})\n{}",
        report.shape_ops_at_runtime,
        report.shape_ops_total,
        indented(&lines, 2)
    )
}

fn passes(report: &Report) -> String {
    let mut lines = vec![
        ["pass", "rewrites", "nodes before", "after"]
            .map(str::to_owned)
            .to_vec(),
    ];
    lines.extend(report.passes.iter().map(|p| {
        vec![
            p.pass.to_owned(),
            p.edits.to_string(),
            p.nodes_before.to_string(),
            p.nodes_after.to_string(),
        ]
    }));
    format!("\npasses\n{}", indented(&lines, 1))
}

fn memory(report: &Report) -> String {
    let mut lines = vec![vec!["bytes".to_owned()]];
    let row = |name: &str, sign: &str, value: &dyn Fn(&PlanReport) -> u64| {
        let mut cells = vec![name.to_owned()];
        cells.extend(report.plans.iter().map(|p| match value(p) {
            0 if !sign.is_empty() => "0".to_owned(),
            n => format!("{sign}{n}"),
        }));
        cells
    };
    let rows = [
        row("each value on its own", "", &|p| p.arena_no_reuse_bytes),
        row("views", "-", &|p| p.gained.views),
        row("results in place", "-", &|p| p.gained.in_place),
        row("packing by lifetime", "-", &|p| p.gained.packing),
        row("arena", "", &|p| p.arena_bytes),
        row("largest live set", "", &|p| p.arena_lower_bound_bytes),
    ];
    if let Some(head) = lines.first_mut() {
        head.extend(report.plans.iter().map(|p| p.name.to_owned()));
    }
    lines.extend(rows);
    let mut out = format!("\nactivations at the bounds\n{}", indented(&lines, 1));
    for p in &report.plans {
        let _ok = writeln!(out, "  {} arena = {}", p.name, shortened(&p.arena_formula));
    }
    out
}

/// A formula of readable length.
fn shortened(text: &str) -> String {
    const SHOWN: usize = 400;
    match text.char_indices().nth(SHOWN) {
        Some((at, _)) => format!("{}... (whole with --json)", text.get(..at).unwrap_or_default()),
        None => text.to_owned(),
    }
}

fn running(report: &Report) -> String {
    let mut out = format!(
        "\nruns on {}\n",
        match report.device.name.as_str() {
            "none" => "a generic device; --backend selects a real one".to_owned(),
            name => format!("{name} ({})", report.device.backend),
        }
    );
    for p in &report.plans {
        let host: Vec<&StepReport> = p.steps.iter().filter(|s| s.place == "host").collect();
        let waits = if host.is_empty() {
            "no synchronization in between".to_owned()
        } else {
            format!(
                "{}, {}, {} between",
                count_text(p.segments.len(), "segment"),
                count_text(p.read_backs, "read-back"),
                count_text(p.uploads, "upload")
            )
        };
        let _ok = writeln!(
            out,
            "  {}: {} of {} in {}, {waits}",
            p.name,
            dispatches_text(p.dispatches),
            count_text(p.kernels, "kernel"),
            p.float
        );
        match (&p.padding, &p.padding_refused) {
            (Some(pad), _) => {
                let _ok = writeln!(
                    out,
                    "    sizes change when {} + {} passes a multiple of {}",
                    pad.symbol, pad.beyond, pad.multiple
                );
            }
            (None, Some(why)) => {
                let _ok = writeln!(out, "    lengths are not padded: {why}");
            }
            _ => {}
        }
        for s in host {
            let _ok = writeln!(
                out,
                "    host: {} \"{}\": {}",
                s.name,
                s.node,
                s.why.as_deref().unwrap_or_default()
            );
        }
    }
    out
}

/// Every operator, three lines each at most.
fn list(report: &Report) -> String {
    let mut out = String::from("\nevery operator, as exported\n");
    for o in &report.operators {
        let class = match o.class {
            Class::Shape => "shape ",
            Class::Tensor => "tensor",
        };
        let shapes = |all: &mut dyn Iterator<Item = Option<&ValueReport>>| {
            let all: Vec<String> = all.map(|v| v.map_or_else(|| "-".to_owned(), fact)).collect();
            all.join(", ")
        };
        let _ok = writeln!(
            out,
            "  {class} {} \"{}\": {} -> {}",
            o.op,
            o.name,
            shapes(&mut o.inputs.iter().map(Option::as_ref)),
            shapes(&mut o.outputs.iter().map(Some))
        );
        for line in became(report, o) {
            let _ok = writeln!(out, "           {line}");
        }
    }
    out
}

fn became(report: &Report, o: &Operator) -> Vec<String> {
    let mut lines = Vec::new();
    let nodes = || o.becomes.nodes.iter().filter_map(|i| report.nodes.get(*i));
    match o.becomes.how {
        How::Folded => lines.push("folded: known from shapes and constants".to_owned()),
        How::Removed => lines.push("removed: nothing needs it".to_owned()),
        How::Kept => {}
        How::Rewritten | How::Fused => {
            for n in nodes() {
                let word = if o.becomes.how == How::Fused {
                    "part of"
                } else {
                    "becomes"
                };
                let many = if n.origin.len() > 1 {
                    format!(", which stands for {} operators", n.origin.len())
                } else {
                    String::new()
                };
                lines.push(format!("{word} {} \"{}\"{many}", n.op, n.name));
            }
        }
    }
    if o.becomes.how == How::Folded {
        return lines;
    }
    for n in nodes() {
        if let Some(why) = n.nothing {
            lines.push(format!("nothing runs: {why}"));
        }
        for run in &n.runs {
            let plan = report.plans.iter().find(|p| p.name == run.plan);
            for s in run.steps.iter().filter_map(|i| plan?.steps.get(*i)) {
                let what = match (&s.kernel, &s.grid, &s.why) {
                    (Some(k), Some(g), _) => format!("{k} over {} work-groups", g.join(" x ")),
                    (_, _, Some(why)) => format!("on the host: {why}"),
                    _ => s.name.clone(),
                };
                lines.push(format!("{}: {what}", run.plan));
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_values_are_wrapped_at_words() {
        assert_eq!(wrapped("aa bb cc", 5), ["aa bb", "cc"]);
        assert_eq!(wrapped("aaaaaaa bb", 5), ["aaaaaaa", "bb"]);
        assert_eq!(wrapped("", 5), [""]);
        let table = |width| fact_table(vec![("name", "word ".repeat(30))], width);
        for (width, lines, longest) in [
            (None, 2, 96),
            (Some(200), 2, 96),
            (Some(40), 5, 40),
            (Some(1), 8, 40),
        ] {
            let table = table(width);
            assert_eq!(table.lines().count(), lines, "{width:?}");
            assert!(table.lines().all(|l| l.len() <= longest), "{table}");
        }
    }
}
