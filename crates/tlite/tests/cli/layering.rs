//! Rules about which parts of the code may use which other parts, dependencies and names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The parts of the library: each is a folder or a file in `src`. A part uses only the parts before
/// it in this list. Cargo enforces the order of the crates.
const ORDER: &[&str] = &[
    "num",
    "cancel",
    "quota",
    "tensor",
    "shape",
    "fmt",
    "parallel",
    "mapped",
    "error",
    "files",
    "limits",
    "cache",
    "backend",
    "quant",
    "kernels",
    "devices",
    "lower",
    "graph",
    "plan",
    "note",
    "executor",
    "validate",
    "placement",
    "runner",
    "vision",
    "llm",
    "probe",
    "lib",
];

/// Exceptions: a part, the later part that it uses, and the reason.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("error", "backend", "an error keeps the driver's error"),
    ("error", "graph", "an error keeps the operator's error"),
    (
        "lower",
        "graph",
        "a graph holds operators, which lower themselves",
    ),
];

/// Names of GPUs, of drivers and of their vendors.
const DEVICES: &[&str] = &[
    "adreno", "amd", "apple", "intel", "lavapipe", "llvmpipe", "mali", "mesa", "nvidia", "pocl", "qualcomm",
];

/// A line of code, without its comment. Tests are excluded.
struct Line {
    /// The file, relative to the workspace.
    file: String,
    number: usize,
    code: String,
}

impl Line {
    /// The part of the library that the line belongs to, if any.
    fn part(&self) -> Option<&str> {
        let first = self.file.strip_prefix("src/")?.split('/').next()?;
        Some(first.strip_suffix(".rs").unwrap_or(first))
    }

    /// Whether the line is in one of these files or folders, separated by `|`.
    fn is_in(&self, paths: &str) -> bool {
        paths.split('|').any(|p| Path::new(&self.file).starts_with(p))
    }

    fn error(&self, what: &str) -> String {
        format!("{}:{}: {what}", self.file, self.number)
    }
}

/// Whether `code` contains `word` as a whole word: no letter, digit or underscore on either side.
fn has(code: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word)
        .any(|(at, _)| !code[..at].ends_with(part) && !code[at + word.len()..].starts_with(part))
}

fn is_test(path: &Path) -> bool {
    let mut names = path.iter().map(|n| n.to_str().unwrap().trim_end_matches(".rs"));
    names.any(|n| n == "tests" || n == "testing" || n.ends_with("_tests"))
}

fn add_lines(root: &Path, folder: &Path, out: &mut Vec<Line>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let file = path.strip_prefix(root).unwrap();
        if is_test(file) {
            continue;
        }
        if path.is_dir() {
            add_lines(root, &path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.split("\nmod tests {").next().unwrap();
            out.extend(code.lines().enumerate().map(|(i, line)| Line {
                file: file.to_str().unwrap().replace('\\', "/"),
                number: i + 1,
                code: line.split("//").next().unwrap().to_owned(),
            }));
        }
    }
}

fn lines() -> Vec<Line> {
    let root = Path::new(tlite_testing::ROOT);
    let mut lines = Vec::new();
    for folder in [
        "src",
        "crates/capi/src",
        "crates/convert/src",
        "crates/serve/src",
        "crates/tlite/src",
    ] {
        add_lines(root, &root.join(folder), &mut lines);
    }
    assert!(lines.len() > 10_000, "only {} lines found", lines.len());
    lines
}

fn assert_none(wrong: &[String]) {
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn parts_use_only_those_above_them() {
    let place = |part: &str| ORDER.iter().position(|p| *p == part);
    let mut wrong = Vec::new();
    let mut used = BTreeSet::new();
    for line in lines() {
        let Some(part) = line.part() else { continue };
        let Some(own) = place(part) else {
            wrong.push(line.error("this part is not in ORDER"));
            continue;
        };
        for (at, prefix) in line.code.match_indices("crate::") {
            let rest = &line.code[at + prefix.len()..];
            let other = rest
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .next()
                .unwrap();
            // Any other name is an item of `lib.rs`, such as a macro.
            let Some(place) = place(other) else { continue };
            if place > own {
                match EXCEPTIONS.iter().find(|e| (e.0, e.1) == (part, other)) {
                    Some(exception) => {
                        used.insert(exception);
                    }
                    None => wrong.push(line.error(&format!("uses {other}, which is not above it"))),
                }
            }
        }
    }
    assert_none(&wrong);
    assert_eq!(used.len(), EXCEPTIONS.len(), "some exceptions are out of date");
}

#[test]
fn only_backends_know_names_of_devices() {
    let mut wrong = Vec::new();
    for line in lines().iter().filter(|l| !l.is_in("src/backend|crates/tlite")) {
        let code = line.code.to_ascii_lowercase();
        if let Some(name) = DEVICES.iter().find(|name| has(&code, name)) {
            wrong.push(line.error(&format!("the device name `{name}` outside of backend")));
        }
        let asks = ["caps.backend", "caps().backend", "caps.device", "caps.driver"];
        let compares = ["==", "!=", "match ", ".contains("]
            .iter()
            .any(|c| code.contains(c));
        // Stored measurements contain the name of their device.
        if compares && asks.iter().any(|a| has(&code, a)) && !line.is_in("src/probe.rs") {
            wrong.push(line.error("asks for the name of a backend, device or driver"));
        }
        if has(&code, "is_called") {
            wrong.push(line.error("asks for the name of a device"));
        }
    }
    assert_none(&wrong);
}

#[test]
fn dependencies_stay_in_their_folders() {
    // Words, and the only folders or files whose code may contain them.
    let rules: &[(&[&str], &str)] = &[
        (&["prost", "proto::"], "src/graph/onnx|crates/convert"),
        (&["opencl3", "cl3"], "src/backend/opencl"),
        (&["::wgpu", "pollster"], "src/backend/wgpu"),
        (&["minijinja", "llguidance"], "src/llm"),
        (&["regex_syntax"], "src/llm/schema"),
        (
            &["tokenizers"],
            "src/llm|crates/convert/src/gguf|crates/convert/src/checkpoint/tokenizer",
        ),
        (&["no_mangle", "c_char"], "crates/capi"),
        (&["ureq"], "crates/convert/src/models/hub"),
        (&["axum", "hyper", "tokio"], "crates/serve/src/http"),
        (&["sha2"], "crates/convert/src/models"),
        (
            &["clap", "indicatif", "ctrlc", "signal_hook", "terminal_size"],
            "crates/tlite/src/cli|crates/tlite/src/main.rs",
        ),
        (&["reedline", "anstream", "anstyle"], "crates/tlite/src/cli/chat"),
        (&["env_logger"], "crates/tlite/src/main.rs"),
        (
            &["unsafe {", "unsafe fn", "unsafe impl"],
            "src/backend/cpu|src/backend/opencl|src/backend/wgpu|src/kernels|crates/capi|src/mapped.rs\
             |src/tensor/product.rs|crates/tlite/src/cli/interrupt.rs|crates/tlite/src/main.rs",
        ),
    ];
    let lines = lines();
    let mut wrong = Vec::new();
    for (words, folders) in rules {
        let mut used = false;
        for line in &lines {
            let Some(word) = words.iter().find(|w| has(&line.code, w)) else {
                continue;
            };
            used = true;
            // `crate::backend::wgpu` is this project's module, not the crate.
            if !line.is_in(folders) && !line.code.contains("backend::wgpu") {
                wrong.push(line.error(&format!("{word} outside of {folders}")));
            }
        }
        assert!(used, "nothing has {words:?}: the rule is out of date");
    }
    assert_none(&wrong);
}

/// Files in which a conversion may fall back to a default: file, number of conversions and reason.
#[rustfmt::skip]
const DEFAULTS: &[(&str, usize, &str)] = &[
    ("crates/convert/src/gguf/read.rs", 1, "an offset outside the file, which reading refuses"),
    ("crates/convert/src/quantize/source.rs", 1, "the size of a damaged tensor, which reading refuses"),
    ("crates/convert/src/quantize/transcode.rs", 1, "the size of a damaged tensor, which reading refuses"),
    ("crates/tlite/src/cli/interrupt.rs", 1, "an exit code, for signals below 128"),
    ("crates/serve/src/wire/common.rs", 1, "a negative `top_k` means none"),
    ("crates/serve/src/http/metrics.rs", 1, "a count beyond the integers of gauges"),
    ("src/vision/picture.rs", 3, "saturating arithmetic of pixels"),
    ("crates/tlite/src/inspect/summary.rs", 1, "bits of a type, at most 64"),
    ("src/kernels/attention/kv_append/cpu.rs", 1, "a negative place is none"),
    ("src/kernels/movement/trilu/cpu.rs", 1, "a bound below the first column keeps none"),
    ("src/backend/cpu/mod.rs", 1, "saturating number of cores"),
    ("src/backend/mod.rs", 1, "saturating nanoseconds"),
    ("src/backend/opencl/device.rs", 1, "a limit of a driver that exceeds ours"),
    ("crates/capi/src/quarantine.rs", 1, "a count beyond the integers of C"),
    ("src/executor/program.rs", 1, "an alignment, at most a page"),
    ("src/graph/op/matmul/matmul_nbits.rs", 2, "numbers of test cases"),
    ("src/graph/op/movement/one_hot.rs", 1, "a list of two, made above"),
    ("src/graph/op/attention/rotary_embedding.rs", 1, "0 means the whole head"),
    ("src/llm/engine/memory.rs", 1, "a context that exceeds the one asked for"),
    ("src/llm/folder.rs", 1, "a negative `top_k` means none"),
    ("src/llm/sampler/penalties.rs", 1, "saturating exponent"),
    ("src/llm/schema/number.rs", 5, "numbers of digits, none where they are negative"),
    ("src/llm/schema/scalar.rs", 1, "a length that no answer reaches"),
    ("src/llm/template/filters.rs", 4, "a negative width is none"),
    ("src/llm/template/objects.rs", 1, "a negative distance is empty"),
    ("src/llm/template/printf.rs", 2, "a negative width is none"),
    ("src/llm/template/python.rs", 1, "a negative width is none"),
    ("src/llm/template/source.rs", 1, "an offset outside the text, which reading refuses"),
    ("src/llm/template/text.rs", 7, "negative widths and counts are none"),
    ("src/lower/collected.rs", 1, "saturating alignment"),
    ("src/lower/views.rs", 1, "a limit of a device that exceeds the host's"),
];

/// The rest of an expression, without the contents of its brackets.
fn chain(code: &str) -> String {
    let (mut depth, mut out) = (0i32, String::new());
    for c in code.chars() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '{' if depth > 0 => depth += 1,
            '}' if depth > 0 => depth -= 1,
            _ if depth > 0 || c.is_whitespace() => {}
            ',' | ';' | '{' | '}' => break,
            _ => out.push(c),
        }
    }
    out
}

#[test]
fn conversions_of_integers_have_no_default() {
    let mut files: BTreeMap<String, String> = BTreeMap::new();
    for line in lines().iter().filter(|l| l.file != "src/num.rs") {
        let code = files.entry(line.file.clone()).or_default();
        code.push_str(&line.code);
        code.push('\n');
    }
    let mut wrong = Vec::new();
    for (file, code) in &files {
        let conversions = ["try_from(", "try_into("].map(|name| code.match_indices(name));
        let with_default = conversions.into_iter().flatten().filter(|(at, name)| {
            let calls = chain(&code[at + name.len() - 1..]);
            let default = |call: &str| call.starts_with("unwrap_or") && !call.starts_with("unwrap_or_else");
            calls.split('.').any(default)
        });
        let found = with_default.count();
        let known = DEFAULTS.iter().find(|d| d.0 == file).map_or(0, |d| d.1);
        if found != known {
            wrong.push(format!(
                "{file}: {found} conversions with a default, {known} listed"
            ));
        }
    }
    let gone = DEFAULTS.iter().filter(|d| !files.contains_key(d.0));
    wrong.extend(gone.map(|d| format!("{}: no such file", d.0)));
    assert_none(&wrong);
}
