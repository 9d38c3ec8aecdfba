//! `tlite inspect`.

use super::interrupt::Interrupt;
use super::options::{Float, check_writable, from_one, padding};
use super::output::{note, put, put_json, table};
use crate::backend::{Caps, OpenOptions};
use crate::error::{Error, Result};
use crate::files::write_whole;
use crate::graph::class::Class;
use crate::inspect::{
    BoundFrom, How, Operator, PlanReport, Report, Request, StepReport, ValueReport, inspect, page,
    parse_bind, parse_bounds,
};
use crate::llm::KvType;
use crate::llm::engine::{CHUNK, PADDING};
use crate::placement::{BackendChoice, Placement};
use crate::units::{count_text, dispatches_text, size_text};
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// Show what a model is and what running it takes, without loading its weights
///
/// Prints symbols, operators, passes, the memory plan, and what cannot run on a device. Sizes hold for all lengths within the
/// bounds; a symbol without a bound gets a usual one, which is then said. What a device wants besides, as kernels for one row that normalise too
/// and activations in bytes, is left out: `tlite profile` tells of the kernels that run there.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder with model.onnx, or an ONNX file; files with its weights need not be there
    model: PathBuf,
    /// Give symbols one value each, as in N=512,past=1024; may be given several times
    #[arg(long, value_name = "NAME=N,...")]
    bind: Vec<String>,
    /// Bounds of symbols and equations between them, as in "1 <= N <= 2048, total == past + N"
    #[arg(long, value_name = "RELATION,...")]
    bounds: Option<String>,
    /// Tokens of one prefill run of a language model [default: 128]
    #[arg(long, value_name = "N", value_parser = from_one, allow_negative_numbers = true)]
    chunk: Option<NonZeroUsize>,
    /// Pad the lengths of a language model's decoding to multiples of N, 32 to 256 [default: 64]
    #[arg(long, value_name = "N", value_parser = padding, allow_negative_numbers = true)]
    padding: Option<usize>,
    /// List every operator with its shapes and what became of it
    #[arg(long)]
    nodes: bool,
    /// Print one JSON object
    #[arg(long, conflicts_with = "nodes")]
    json: bool,
    /// Also write a page to explore in a browser
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Plan for a device of this backend instead of one that does not exist
    #[arg(long, value_enum, value_name = "NAME")]
    backend: Option<BackendChoice>,
    /// Plan for the device of this name, or with this text in its name or driver; see `tlite devices`
    #[arg(long, value_name = "SUBSTRING")]
    device: Option<String>,
    /// Tokens that the cache of a language model holds [default: what the model was made for, at most 4096]
    #[arg(long, value_name = "N", value_parser = from_one, allow_negative_numbers = true)]
    context: Option<NonZeroUsize>,
    /// Storage of a language model's cache [default: f16]
    #[arg(long, value_enum, value_name = "TYPE")]
    kv: Option<KvType>,
    /// Storage of activations [default: f16 for a language model, unless it quantizes at run time; else f32]
    #[arg(long, value_enum, value_name = "TYPE")]
    float: Option<Float>,
}

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
            // What no decoder is may have caches too.
            ("--context", self.context.is_some() && report.states.is_empty()),
        ];
        match unused.into_iter().find(|(_, given)| *given) {
            Some((option, _)) => {
                let what = format!(
                    "{} is no language model with a cache",
                    report.model.path.display()
                );
                Err(Error::usage(option, what))
            }
            None => Ok(()),
        }
    }
}

/// Runs the command.
pub fn run(args: &Args, interrupt: &Interrupt) -> Result<()> {
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
        caps: caps.unwrap_or_else(Caps::neutral),
        bind,
        bounds: bounds.unwrap_or_default(),
        context: args.context.map(usize::from),
        chunk: args.chunk.map_or(CHUNK, usize::from),
        padding: args.padding.unwrap_or(PADDING),
        kv: args.kv.unwrap_or_default(),
        float: args.float.map(Float::dtype),
    };
    let report = inspect(&super::model::model_path(&args.model, interrupt)?, &request)?;
    args.check_used(&report)?;
    if let Some(file) = &args.html {
        let page = page::render(&report);
        write_whole(file, |out| out.write_all(page.as_bytes()))?;
        note(&mut std::io::stderr(), &format!("wrote {}", file.display()));
    }
    let mut out = std::io::stdout().lock();
    if args.json {
        return put_json(&mut out, &report);
    }
    put(&mut out, &text(&report))?;
    if args.nodes {
        put(&mut out, &list(&report))?;
    }
    Ok(())
}

/// The line that answers whether a model fits.
fn headline(report: &Report) -> String {
    let at = match &report.model.decoder {
        Some(d) => format!(" at context {}", d.context),
        None => {
            let known = |s: &&crate::inspect::SymbolReport| s.bound_from != BoundFrom::Data;
            let all: Vec<String> = report
                .symbols
                .iter()
                .filter(known)
                .filter_map(|s| Some(format!("{}={}", s.name, s.upper?)))
                .collect();
            if all.is_empty() {
                String::new()
            } else {
                format!(" at {}", all.join(", "))
            }
        }
    };
    let cache = if report.states.is_empty() {
        String::new()
    } else {
        format!("cache {}, ", size_text(report.states_bytes))
    };
    format!(
        "This model{at} needs {} bytes (weights {}, {cache}activations {})\n",
        report.total_bytes,
        size_text(report.weights_bytes),
        size_text(report.arena_bytes)
    )
}

fn bound_text(from: BoundFrom) -> &'static str {
    match from {
        BoundFrom::Bind => "by --bind",
        BoundFrom::Bounds => "by --bounds",
        BoundFrom::Context => "the context",
        BoundFrom::Chunk => "a prefill run",
        BoundFrom::OneSequence => "one sequence is run",
        BoundFrom::Assumed => "assumed; see --bounds",
        BoundFrom::Data => "by its operator",
    }
}

fn fact(v: &ValueReport) -> String {
    format!("{}[{}]", v.dtype, v.shape.join(", "))
}

fn indented(rows: &[Vec<String>], left: usize) -> String {
    table(rows, left).lines().map(|l| format!("  {l}\n")).collect()
}

/// The report for people.
fn text(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let opsets: Vec<String> = report
        .model
        .opsets
        .iter()
        .map(|(domain, v)| {
            if domain.is_empty() {
                format!("opset {v}")
            } else {
                format!("{domain} {v}")
            }
        })
        .collect();
    let kind = if report.model.decoder.is_some() {
        "a language model with a cache"
    } else {
        "one run, no state"
    };
    let _ok = writeln!(
        out,
        "{}: {kind}, {} operators, {}",
        report.model.name,
        report.operators.len(),
        opsets.join(", ")
    );
    out.push_str(&headline(report));
    out.push_str(&values(report));
    out.push_str(&symbols(report));
    out.push_str(&operators(report));
    out.push_str(&passes(report));
    out.push_str(&memory(report));
    out.push_str(&running(report));
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
            let _ok = writeln!(
                out,
                "  {n} of them keep {rows} rows, of which the last {window} are read"
            );
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
        out.push_str("\nassumed, and checked at each run\n");
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
        "\noperators: {} of {} compute shapes, {} of these at run time\n{}",
        report.shape_ops_total,
        report.operators.len(),
        report.shape_ops_at_runtime,
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
            "none" => "a device that does not exist; see --backend".to_owned(),
            name => format!("{}: {name}", report.device.backend),
        }
    );
    for p in &report.plans {
        let host: Vec<&StepReport> = p.steps.iter().filter(|s| s.place == "host").collect();
        let waits = if host.is_empty() {
            "no synchronisation between".to_owned()
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
                    "    sizes change where {} + {} crosses a multiple of {}",
                    pad.symbol, pad.beyond, pad.multiple
                );
            }
            (None, Some(why)) => {
                let _ok = writeln!(out, "    no length is padded: {why}");
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
        How::Folded => lines.push("known from shapes and constants: nothing runs".to_owned()),
        How::Removed => lines.push("nothing needs it".to_owned()),
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
