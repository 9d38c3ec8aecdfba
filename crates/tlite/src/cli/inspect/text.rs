//! The report of `tlite inspect` for people.

use crate::cli::output::{table, terminal_columns, titled, wrapped};
use crate::inspect::{
    BoundFrom, FileReport, GgufReport, How, Operator, PlanReport, Report, StepReport, ValueReport,
    operator_counts, parameters_text,
};
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use transformer_lite::unstable::fmt::{count_text, dispatches_text, shown, size_text};
use transformer_lite::unstable::graph::class::Class;

/// Spaces before each line of [`indented`] and between two columns.
const GAP: usize = 2;

/// Names and values as a table at most `width` columns wide, long values in several lines. Without
/// a width, and on wide terminals, values have a fixed one.
fn fact_table(facts: Vec<(&str, String)>, width: Option<usize>) -> String {
    const MIN_WIDTH: usize = 20;
    const MAX_WIDTH: usize = 84;
    let names = facts.iter().map(|(name, _)| name.chars().count()).max();
    let start = GAP + names.unwrap_or(0) + GAP;
    let room = width.map_or(MAX_WIDTH, |w| w.saturating_sub(start).clamp(MIN_WIDTH, MAX_WIDTH));
    let mut rows = Vec::new();
    for (name, value) in facts {
        let mut name = name.to_owned();
        for line in wrapped(&value, room) {
            rows.push(vec![std::mem::take(&mut name), line]);
        }
    }
    indented(&rows, 2)
}

/// What the header of a GGUF file says.
pub(super) fn header_text(report: &GgufReport) -> String {
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

/// How the model runs, in one line.
fn execution_text(report: &Report) -> String {
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
    format!("{}; {host}", plans.join(", "))
}

/// The device of the plan.
fn planned_for(report: &Report) -> String {
    match report.device.name.as_str() {
        "none" => "a generic GPU".to_owned(),
        name => format!("{} ({name})", report.device.backend),
    }
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
    const SHOWN: usize = 40;
    let shape = v.shape.join(", ");
    let elements = v.constant.as_ref().map(ToString::to_string);
    match elements.filter(|e| e.len() <= SHOWN) {
        Some(elements) => format!("{}[{shape}] = {elements}", v.dtype),
        None => format!("{}[{shape}]", v.dtype),
    }
}

fn indented(rows: &[Vec<String>], left: usize) -> String {
    table(rows, left).lines().map(|l| format!("  {l}\n")).collect()
}

/// The summary of a model, with `verbose` also symbols, operators, passes and memory.
pub(super) fn text(report: &Report, verbose: bool) -> String {
    let summary = &report.model.summary;
    let decodes = report.model.decoder.is_some();
    let kind = match decodes {
        true => "text-generation model",
        false => "ONNX model",
    };
    let own = report
        .model
        .own_name
        .iter()
        .map(|name| ("name", shown(name).into_owned()));
    let mut facts: Vec<(&str, String)> = own.chain(summary.facts()).collect();
    facts.push(("operators", operators_text(report)));
    facts.extend(files_text(&summary.files).map(|files| ("files", files)));
    facts.push(("memory", memory_text(report)));
    facts.extend(passes_text(report).map(|passes| ("passes", passes)));
    facts.push(("execution", execution_text(report)));
    let table = fact_table(facts, terminal_columns());
    let mut out = format!(
        "{}: {kind}, planned for {}\n{table}",
        report.model.name,
        planned_for(report)
    );
    if !decodes || verbose {
        out.push_str(&values(report));
    }
    out.push_str(&float_nodes(report, verbose));
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

/// The nodes between quantized values that are computed with floats, with the reason: all of them
/// or the first ones.
fn float_nodes(report: &Report, all: bool) -> String {
    const SHOWN: usize = 5;
    let Some(integer) = &report.integer else {
        return String::new();
    };
    let nodes = &integer.float_nodes;
    let mut out = format!("\nquantized\n  {} nodes computed with integers\n", integer.nodes);
    if nodes.is_empty() {
        return out;
    }
    let _ok = writeln!(out, "  {} nodes computed with floats", nodes.len());
    let shown = if all { nodes.len() } else { SHOWN };
    for n in nodes.iter().take(shown) {
        let _ok = writeln!(out, "    {} \"{}\": {}", n.op, n.node, n.reason);
    }
    if let Some(more) = nodes.len().checked_sub(shown).filter(|n| *n > 0) {
        let _ok = writeln!(out, "    and {more} more");
    }
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
            shown(&first.name),
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
        let constraints: Vec<_> = report.constraints.iter().map(|c| shown(c)).collect();
        let _ok = writeln!(out, "\nconstraints\n  {}", constraints.join("\n  "));
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

fn class_name(class: Class) -> &'static str {
    match class {
        Class::Shape => "shape",
        Class::Tensor => "tensor",
    }
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
    let lines = titled(
        &rows,
        &[
            ("operator", &|((name, _), _)| (*name).to_owned()),
            ("class", &|((_, class), _)| class_name(*class).to_owned()),
            ("count", &|(_, (all, _))| all.to_string()),
            ("in the plan", &|(_, (_, kept))| kept.to_string()),
        ],
    );
    format!(
        "\noperators (shape computations at run time: {} of {})\n{}",
        report.shape_ops_at_runtime,
        report.shape_ops_total,
        indented(&lines, 2)
    )
}

fn passes(report: &Report) -> String {
    let lines = titled(
        &report.passes,
        &[
            ("pass", &|p| p.pass.to_owned()),
            ("rewrites", &|p| p.edits.to_string()),
            ("nodes before", &|p| p.nodes_before.to_string()),
            ("after", &|p| p.nodes_after.to_string()),
        ],
    );
    format!("\npasses\n{}", indented(&lines, 1))
}

fn memory(report: &Report) -> String {
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
    let names = report.plans.iter().map(|p| p.name);
    let head = std::iter::once("bytes").chain(names).map(str::to_owned);
    let lines: Vec<_> = std::iter::once(head.collect()).chain(rows).collect();
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
    let mut out = format!("\nruns on {}\n", planned_for(report));
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

/// Every operator: its shapes, its attributes, and how it runs.
pub(super) fn list(report: &Report) -> String {
    let mut out = String::from("\nevery operator, as exported\n");
    for o in &report.operators {
        let class = class_name(o.class);
        let shapes = |all: &mut dyn Iterator<Item = Option<&ValueReport>>| {
            let all: Vec<String> = all.map(|v| v.map_or_else(|| "-".to_owned(), fact)).collect();
            all.join(", ")
        };
        let _ok = writeln!(
            out,
            "  {class:<6} {} \"{}\": {} -> {}",
            o.op,
            o.name,
            shapes(&mut o.inputs.iter().map(Option::as_ref)),
            shapes(&mut o.outputs.iter().map(Some))
        );
        if !o.attributes.is_empty() {
            let all = o.attributes.iter().map(|(name, value)| format!("{name}={value}"));
            let all: Vec<String> = all.collect();
            let _ok = writeln!(out, "           {}", shortened(&all.join(" ")));
        }
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
