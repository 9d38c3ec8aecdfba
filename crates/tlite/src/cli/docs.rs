//! Chapters of the documentation that are generated from the code. `crates/tlite/tests/cli/docs.rs`
//! keeps them up to date.

use super::{
    GROUPS, bench, cache, command, convert, devices, eval, generate, list, output, perplexity, profile,
    quantize, roofline, run, selftest, tune,
};
use crate::inspect::{GgufReport, Report as Inspected};
use clap::{Arg, Command};
use schemars::Schema;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use transformer_lite::unstable::backend::Caps;
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::graph::op::case::Case;
use transformer_lite::unstable::graph::op::{self, InferCx, OWN_DOMAIN, OpDef};
use transformer_lite::unstable::graph::{Edit, Graph};
use transformer_lite::unstable::plan::{self, Plan};
use transformer_lite::unstable::runner::{Runner, RunnerOptions};
use transformer_lite::unstable::shape::{Constraints, Fact, Shape};
use transformer_lite_convert::quantize::Summary;

/// Columns of a line of prose.
const WIDTH: usize = 100;

/// `text` in lines of at most [`WIDTH`] columns; the first begins with `first`, the others with as
/// many spaces.
fn wrapped(first: &str, text: &str) -> String {
    let indent = first.chars().count();
    let lines = output::wrapped(text, WIDTH - indent);
    let rest = format!("\n{}", " ".repeat(indent));
    format!("{first}{}\n", lines.join(&rest))
}

/// Text of a help message for Markdown: angle brackets would be tags.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    let mut code = false;
    for c in text.chars() {
        match c {
            '`' => {
                code = !code;
                out.push(c);
            }
            '<' | '>' | '*' | '_' if !code => {
                out.push('\\');
                out.push(c);
            }
            _ => out.push(c),
        }
    }
    out
}

/// What an option is compared by: name, heading and help.
fn identity(arg: &Arg) -> Option<[String; 3]> {
    let heading = arg.get_help_heading()?;
    let help = arg.get_long_help().or(arg.get_help())?;
    let values: Vec<String> = arg
        .get_default_values()
        .iter()
        .map(|v| v.to_string_lossy().into_owned())
        .collect();
    Some([
        heading.to_owned(),
        arg.get_long().unwrap_or_default().to_owned(),
        format!("{help}{}", values.join(",")),
    ])
}

/// The options and arguments that are documented.
fn shown(command: &Command) -> impl Iterator<Item = &Arg> {
    let hidden = ["help", "version"];
    let args = command.get_arguments();
    args.filter(move |a| !a.is_hide_set() && !hidden.contains(&a.get_id().as_str()))
}

/// The name of an argument as it is typed.
fn typed(arg: &Arg) -> String {
    let value = arg
        .get_value_names()
        .and_then(|n| n.first())
        .map(ToString::to_string);
    let takes = arg.get_action().takes_values();
    let value = value.filter(|_| takes).unwrap_or_default();
    if arg.is_positional() {
        return format!("`{value}`");
    }
    let mut names: Vec<String> = arg.get_short().iter().map(|s| format!("-{s}")).collect();
    names.extend(arg.get_long().map(|l| format!("--{l}")));
    names.extend(
        arg.get_visible_aliases()
            .into_iter()
            .flatten()
            .map(|l| format!("--{l}")),
    );
    format!("`{}`", format!("{} {value}", names.join(", ")).trim_end())
}

/// An item of a list: the argument with its help, default and values. `only` are the commands that
/// take it, where others with the same heading do not.
fn item(arg: &Arg, only: &[String]) -> String {
    let help = arg.get_long_help().or(arg.get_help());
    let help = help.map(ToString::to_string).unwrap_or_default();
    let mut paragraphs = help
        .split("\n\n")
        .map(|p| p.split_whitespace().collect::<Vec<_>>().join(" "));
    let mut text = escaped(&paragraphs.next().unwrap_or_default());
    let end = |text: &mut String| {
        if !text.ends_with('.') {
            text.push('.');
        }
    };
    end(&mut text);
    for paragraph in paragraphs {
        text += &format!(" {}", escaped(&paragraph));
        end(&mut text);
    }
    let defaults: Vec<String> = arg
        .get_default_values()
        .iter()
        .map(|v| format!("`{}`", v.to_string_lossy()))
        .collect();
    let takes = arg.get_action().takes_values();
    if !defaults.is_empty() && takes && !arg.is_hide_default_value_set() {
        text += &format!(" Default: {}.", defaults.join(", "));
    }
    if !only.is_empty() {
        text += &format!(" Only for {}.", only.join(", "));
    }
    let mut out = wrapped("* ", &format!("{}: {text}", typed(arg)));
    let values = arg.get_possible_values();
    if takes && values.iter().any(|v| v.get_help().is_some()) {
        for value in values.iter().filter(|v| !v.is_hide_set()) {
            let help = value.get_help().map(ToString::to_string).unwrap_or_default();
            out += &wrapped("  * ", &format!("`{}`: {}", value.get_name(), escaped(&help)));
        }
    } else if takes && !values.is_empty() {
        let names: Vec<String> = values.iter().map(|v| format!("`{}`", v.get_name())).collect();
        out += &wrapped("  * ", &format!("one of {}", names.join(", ")));
    }
    out
}

/// The text after the options: examples and, before them, what else there is.
fn after(command: &Command) -> String {
    let text = command.get_after_long_help().or(command.get_after_help());
    let text = text.map(ToString::to_string).unwrap_or_default();
    match text.is_empty() {
        true => text,
        false => format!("\n```text\n{}\n```\n", text.trim_end()),
    }
}

fn anchor(heading: &str) -> String {
    format!("{}-options", heading.to_lowercase().replace(' ', "-"))
}

/// Options with the commands that take them.
type Options<'a> = Vec<(&'a Arg, Vec<String>)>;

/// Commands by the identity of an option under a heading.
type Shared = BTreeMap<[String; 3], Vec<String>>;

/// Describes a command and, below it, its subcommands.
fn section(out: &mut String, command: &Command, name: &str, level: usize, shared: &Shared) {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    *out += &format!("\n{} tlite {name}\n\n{}.\n", "#".repeat(level), escaped(&about));
    let long = command
        .get_long_about()
        .map(ToString::to_string)
        .unwrap_or_default();
    for paragraph in long.split("\n\n").skip(1) {
        *out += &format!("\n{}", wrapped("", &escaped(paragraph)));
    }
    let usage = command.clone().render_usage().to_string();
    *out += &format!("\n```text\n{}\n```\n", usage.trim_end());
    let (mut own, mut headings) = (Vec::new(), Vec::<&str>::new());
    for arg in shown(command) {
        let many = identity(arg)
            .and_then(|id| shared.get(&id))
            .is_some_and(|c| c.len() > 1);
        match arg.get_help_heading().filter(|_| many) {
            Some(heading) if headings.contains(&heading) => {}
            Some(heading) => headings.push(heading),
            None => own.push(arg),
        }
    }
    own.sort_by_key(|a| !a.is_positional());
    if !own.is_empty() {
        out.push('\n');
    }
    for arg in own {
        *out += &item(arg, &[]);
    }
    if !headings.is_empty() {
        let links: Vec<String> = headings
            .iter()
            .map(|h| format!("[{h}](#{})", anchor(h)))
            .collect();
        *out += &format!(
            "\n{}",
            wrapped("", &format!("Shared options: {}.", links.join(", ")))
        );
    }
    *out += &after(command);
    for sub in command.get_subcommands().filter(|s| s.get_name() != "help") {
        section(out, sub, &format!("{name} {}", sub.get_name()), level + 1, shared);
    }
}

/// The chapter on the command line, `docs/cli.md`.
pub fn markdown() -> String {
    let mut command = command();
    command.build();
    let mut shared = Shared::new();
    for sub in command.get_subcommands() {
        for id in shown(sub).filter_map(identity) {
            shared.entry(id).or_default().push(sub.get_name().to_owned());
        }
    }
    let mut out = "# Command line\n\n".to_owned();
    out += "<!-- Generated from the code; UPDATE_DOCS=1 cargo test --test cli docs rewrites it. -->\n\n";
    out += &wrapped(
        "",
        "`tlite COMMAND -h` shows the common options of a command, `tlite COMMAND --help` all of them. Results go to \
         standard output; notes, progress and figures go to standard error. `tlite completions SHELL` prints a \
         completion script, and `tlite man DIR` writes man pages.",
    );
    out += "\n| exit code | meaning |\n|---|---|\n| 0 | done |\n| 1 | failed |\n| 2 | wrong usage |\n| 129, 143 | ended by SIGHUP or SIGTERM |\n| 130 | interrupted by Ctrl-C |\n";
    out += "\n| variable | meaning |\n|---|---|\n";
    for (name, meaning) in VARIABLES {
        out += &format!("| `{name}` | {meaning} |\n");
    }
    for (title, names) in GROUPS {
        out += &format!("\n## {title}\n");
        for name in names.iter().filter(|n| **n != "help") {
            if let Some(sub) = command.find_subcommand(name) {
                section(&mut out, sub, name, 3, &shared);
            }
        }
    }
    out += "\n## Shared options\n";
    let mut headings: Vec<(String, Options<'_>)> = Vec::new();
    let mut seen = BTreeSet::new();
    for sub in command.get_subcommands() {
        for arg in shown(sub) {
            let Some(id) = identity(arg) else { continue };
            let Some(commands) = shared.get(&id).filter(|c| c.len() > 1) else {
                continue;
            };
            let heading = id[0].clone();
            if seen.insert(id) {
                match headings.iter_mut().find(|(h, _)| *h == heading) {
                    Some((_, args)) => args.push((arg, commands.clone())),
                    None => headings.push((heading, vec![(arg, commands.clone())])),
                }
            }
        }
    }
    for (heading, args) in headings {
        let all: BTreeSet<&String> = args.iter().flat_map(|(_, commands)| commands).collect();
        let names: Vec<String> = all.iter().map(|c| format!("`{c}`")).collect();
        out += &format!("\n### {heading} options\n\n");
        out += &wrapped("", &format!("Commands: {}.", names.join(", ")));
        out.push('\n');
        for (arg, commands) in &args {
            let some = commands.len() < all.len();
            let only: Vec<String> = commands
                .iter()
                .filter(|_| some)
                .map(|c| format!("`{c}`"))
                .collect();
            out += &item(arg, &only);
        }
    }
    out
}

const VARIABLES: [(&str, &str); 9] = [
    (
        "TLITE_MODELS",
        "folder of converted models; default: `transformer-lite/models` in the user's cache folder",
    ),
    (
        "TLITE_CACHE_DIR",
        "folder of compiled kernels and measurements; `--cache-dir` overrides it",
    ),
    ("TLITE_CACHE", "folder of downloads of the scripts in `tools/`"),
    ("HF_HOME", "cache folder of the Hugging Face Hub"),
    (
        "HF_ENDPOINT",
        "address of the hub; default: `https://huggingface.co`",
    ),
    ("HF_TOKEN", "access token for private models"),
    ("HTTPS_PROXY", "proxy for downloads"),
    (
        "RUST_LOG",
        "log level, such as `debug`; log lines then have a time and a source",
    ),
    ("NO_COLOR", "no colors"),
];

/// The JSON outputs: command and schema.
fn schemas() -> Vec<(&'static str, Schema)> {
    vec![
        ("generate", schemars::schema_for!(generate::Report<'static>)),
        ("run", schemars::schema_for!(run::Report)),
        ("run PICTURE...", schemars::schema_for!(run::Line)),
        ("convert", schemars::schema_for!(convert::Report<'static>)),
        ("quantize", schemars::schema_for!(Summary)),
        (
            "quantize --format int8",
            schemars::schema_for!(quantize::Int8Report<'static>),
        ),
        ("bench", schemars::schema_for!(bench::Report<'static>)),
        ("perplexity", schemars::schema_for!(perplexity::Object<'static>)),
        ("eval", schemars::schema_for!(eval::Object<'static>)),
        ("eval --output", schemars::schema_for!(eval::Answered)),
        ("profile", schemars::schema_for!(profile::Report<'static>)),
        ("roofline", schemars::schema_for!(roofline::Report<'static>)),
        ("tune", schemars::schema_for!(tune::Report)),
        ("inspect", schemars::schema_for!(Inspected)),
        ("inspect FILE.gguf", schemars::schema_for!(GgufReport)),
        ("devices", schemars::schema_for!(devices::Report)),
        ("selftest", schemars::schema_for!(selftest::Report)),
        ("pull", schemars::schema_for!(list::Row<'static>)),
        ("list", schemars::schema_for!(list::Report<'static>)),
        ("cache list", schemars::schema_for!(cache::Report<'static>)),
    ]
}

/// A key of a JSON object, with its type and meaning.
struct Key {
    path: String,
    kind: String,
    meaning: String,
}

/// Follows the references of a schema to its definitions.
struct Reader<'a> {
    definitions: Option<&'a Map<String, Value>>,
    keys: Vec<Key>,
}

impl<'a> Reader<'a> {
    /// The schema that `value` refers to, or `value` itself.
    fn resolved(&self, value: &'a Value) -> &'a Value {
        let name = value.get("$ref").and_then(Value::as_str);
        let name = name.and_then(|r| r.strip_prefix("#/$defs/"));
        name.and_then(|n| self.definitions?.get(n)).unwrap_or(value)
    }

    /// The type of a value in words, and the schema whose keys follow, if it has any.
    fn kind(&self, value: &'a Value) -> (String, Option<&'a Value>) {
        let value = self.resolved(value);
        if let Some(options) = value.get("anyOf").and_then(Value::as_array) {
            let null = |v: &&Value| v.get("type").and_then(Value::as_str) == Some("null");
            let kinds: Vec<_> = options
                .iter()
                .filter(|v| !null(v))
                .map(|v| self.kind(v))
                .collect();
            let names: Vec<&str> = kinds.iter().map(|(kind, _)| kind.as_str()).collect();
            let or_null = if options.iter().any(|v| null(&v)) {
                " or null"
            } else {
                ""
            };
            let inner = kinds.iter().find_map(|(_, inner)| *inner);
            return (format!("{}{or_null}", names.join(" or ")), inner);
        }
        let variants = value.get("oneOf").and_then(Value::as_array);
        let constants = variants.into_iter().flatten().flat_map(|v| {
            let many = v.get("enum").and_then(Value::as_array).into_iter().flatten();
            many.chain(v.get("const"))
        });
        let plain = value.get("enum").and_then(Value::as_array).into_iter().flatten();
        let values: Vec<String> = plain.chain(constants).map(|v| format!("`{v}`")).collect();
        if !values.is_empty() {
            return (values.join(", "), None);
        }
        let types: Vec<&str> = match value.get("type") {
            Some(Value::String(one)) => vec![one],
            Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).collect(),
            _ => vec!["any"],
        };
        let or_null = if types.contains(&"null") { " or null" } else { "" };
        match types.iter().find(|t| **t != "null").copied().unwrap_or("null") {
            "array" => match value.get("items") {
                Some(items) => {
                    let (kind, inner) = self.kind(items);
                    (format!("list of {kind}{or_null}"), inner)
                }
                None => (format!("list{or_null}"), None),
            },
            "object" => (format!("object{or_null}"), Some(value)),
            "integer" => (format!("integer{or_null}"), None),
            other => (format!("{other}{or_null}"), None),
        }
    }

    /// Collects the keys of the object `value`, whose own path is `path`.
    fn keys(&mut self, path: &str, value: &'a Value) {
        let value = self.resolved(value);
        let properties = value.get("properties").and_then(Value::as_object);
        for (name, property) in properties.into_iter().flatten() {
            let text = |v: &Value| v.get("description").and_then(Value::as_str).map(str::to_owned);
            let meaning = text(property)
                .or_else(|| text(self.resolved(property)))
                .unwrap_or_default()
                .replace("`None`", "null");
            let (kind, inner) = self.kind(property);
            let path = format!("{path}{name}");
            self.keys.push(Key {
                path: path.clone(),
                meaning: meaning.split_whitespace().collect::<Vec<_>>().join(" "),
                kind: kind.clone(),
            });
            let list = if kind.starts_with("list") { "[]" } else { "" };
            let open = |i: &&Value| i.get("additionalProperties").is_some_and(Value::is_object);
            if let Some(inner) = inner.filter(|i| !open(i)) {
                self.keys(&format!("{path}{list}."), inner);
            }
        }
        for part in ["allOf", "anyOf"] {
            for part in value.get(part).and_then(Value::as_array).into_iter().flatten() {
                self.keys(path, part);
            }
        }
    }
}

fn keys(schema: &Schema) -> Vec<Key> {
    let value = schema.as_value();
    let mut reader = Reader {
        definitions: value.get("$defs").and_then(Value::as_object),
        keys: Vec::new(),
    };
    reader.keys("", value);
    reader.keys
}

/// The chapter on JSON output, `docs/json.md`.
pub fn json_markdown() -> String {
    let mut out = "# JSON output\n\n".to_owned();
    out += "<!-- Generated from the code; UPDATE_DOCS=1 cargo test --test cli docs rewrites it. -->\n\n";
    out += &wrapped(
        "",
        "With `--json`, a command prints one JSON object on one line of standard output, and no figures on standard \
         error. `results[].test` is the key `test` of each object in the list `results`. A key whose meaning ends \
         with a condition is left out when the condition does not hold. New keys may be added at any time.",
    );
    for (command, schema) in schemas() {
        out += &format!("\n## tlite {command}\n\n| key | type | meaning |\n|---|---|---|\n");
        for Key { path, kind, meaning } in keys(&schema) {
            let meaning = meaning.trim_end_matches('.').replace('|', "\\|");
            out += &format!("| `{path}` | {kind} | {meaning} |\n");
        }
    }
    out
}

/// Where a case of an operator runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Runs {
    /// It costs nothing at run time.
    Planning,
    Device,
    Host,
}

impl Runs {
    /// Plans a model of this one node for a GPU.
    fn of(case: &Case) -> Result<Self> {
        let failed = |e: &dyn std::fmt::Display| Error::other(Stage::Plan, format!("{}: {e}", case.name()));
        let mut graph = Graph::default();
        let mut edit = Edit::new(&mut graph);
        let (mut operands, mut facts) = (Vec::new(), Vec::new());
        // A node with constant data would be folded.
        let folds = case.inputs.iter().all(|i| i.is_const);
        for (seed, input) in (1..).zip(&case.inputs) {
            let tensor = input.make(seed).map_err(|e| failed(&e))?;
            let plain = Fact::new(tensor.dtype(), Shape::fixed(tensor.shape()));
            let data = tensor.dtype().is_float() || tensor.shape().len() > 1;
            let constant = input.is_const && !(folds && data);
            let name = format!("x{seed}");
            operands.push(Some(if constant {
                facts.push(Fact::of(Arc::new(tensor.clone())));
                edit.add_const(&name, Arc::new(tensor))
            } else {
                facts.push(plain.clone());
                let value = edit.add_value(&name, Some(plain));
                edit.add_input(value);
                value
            }));
        }
        let given: Vec<Option<&Fact>> = facts.iter().map(Some).collect();
        let constraints = Constraints::default();
        let results = case
            .op
            .infer(&InferCx::new(&given, &constraints))
            .map_err(|e| failed(&e))?;
        let results: Vec<_> = (0..results.len())
            .map(|i| edit.add_value(&format!("y{i}"), None))
            .collect();
        edit.add_node("node", Vec::new(), case.op.clone(), operands, results.clone());
        results.into_iter().for_each(|y| edit.add_output(y));
        let caps = Caps::generic_gpu();
        Runner::pipeline(true, RunnerOptions::default().integer).run(&mut graph)?;
        let plan = Plan::compile(&graph, &caps, &plan::Options::default())?;
        Ok(match (plan.host.is_empty(), plan.steps.is_empty()) {
            (false, _) => Self::Host,
            (true, false) => Self::Device,
            (true, true) => Self::Planning,
        })
    }

    fn name(self) -> &'static str {
        match self {
            Self::Planning => "planning",
            Self::Device => "device",
            Self::Host => "host",
        }
    }
}

/// Where an operator runs in most of its cases, and what the host runs in others.
fn place(def: &OpDef, name: &str) -> (Runs, String) {
    let cases = (def.cases)();
    let named: Vec<&Case> = cases.iter().filter(|c| c.op.name() == name).collect();
    let cases = if named.is_empty() {
        cases.iter().collect()
    } else {
        named
    };
    let runs: Vec<(Runs, &Case)> = cases
        .iter()
        .filter_map(|c| Some((Runs::of(c).ok()?, *c)))
        .collect();
    let all: BTreeSet<Runs> = runs.iter().map(|(r, _)| *r).collect();
    // Graphs inside of operators come from models, so that those have no cases.
    let place = match all.contains(&Runs::Device) {
        true => Runs::Device,
        false => all.into_iter().next().unwrap_or(Runs::Host),
    };
    // Cases of other operators in the same file say nothing about restrictions of this one.
    let own = cases.iter().any(|c| c.op.name() == name);
    let hosted = runs
        .iter()
        .filter(|(r, _)| *r == Runs::Host && place == Runs::Device && own);
    let notes: BTreeSet<&str> = hosted.filter_map(|(_, c)| c.host_only).collect();
    let notes: Vec<&str> = notes
        .into_iter()
        .filter(|n| !n.starts_with("no kernel"))
        .collect();
    (place, notes.join("; "))
}

/// The chapter on operators, `docs/operators.md`.
pub fn operators_markdown() -> String {
    let mut rows: BTreeMap<(&str, &str), (i64, &OpDef)> = BTreeMap::new();
    for def in op::all() {
        for name in def.onnx.iter().filter(|n| n.domain != OWN_DOMAIN) {
            let row = rows.entry((name.domain, name.name)).or_insert((name.since, def));
            row.0 = row.0.min(name.since);
        }
    }
    let mut out = "# ONNX operators\n\n".to_owned();
    out += "<!-- Generated from the code; UPDATE_DOCS=1 cargo test --test cli docs rewrites it. -->\n\n";
    out += &wrapped(
        "",
        "Every operator in these tables can be imported. *Runs on* says where: on the *device*, by a kernel; on the \
         *host*, which costs transfers between device and host; or not at all, because it is evaluated when the \
         model is planned (*planning*). An operator with a kernel still runs on the host for some element types and \
         attributes; the last column names restrictions of kernels. `tlite inspect --nodes` shows where each node of \
         a model runs.",
    );
    let mut domain = None;
    for ((of, name), (since, def)) in rows {
        if domain != Some(of) {
            domain = Some(of);
            let title = if of.is_empty() {
                "Standard operators (`ai.onnx`)".to_owned()
            } else {
                format!("Domain `{of}`")
            };
            out += &format!(
                "\n## {title}\n\n| operator | since opset | runs on | restrictions |\n|---|---|---|---|\n"
            );
        }
        let (place, notes) = place(def, name);
        out += &format!("| {name} | {since} | {} | {notes} |\n", place.name());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_json_key_has_a_meaning() {
        for (command, schema) in schemas() {
            let keys = keys(&schema);
            assert!(!keys.is_empty(), "{command}");
            for key in keys {
                assert!(
                    !key.meaning.is_empty() && key.kind != "any",
                    "{command}: {}",
                    key.path
                );
            }
        }
    }

    #[test]
    fn prose_has_at_most_100_columns() {
        for text in [markdown(), json_markdown(), operators_markdown()] {
            let long = |l: &&str| l.chars().count() > WIDTH && !l.starts_with('|');
            assert_eq!(text.lines().find(long), None);
        }
    }
}
