//! Which part of the code may use which other part, which dependency, and which names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The parts of the library: a folder of `src`, or a file beside them. Each uses only those above
/// it. Cargo keeps the order of crates.
const ORDER: &[&str] = &[
    "num",
    "tensor",
    "shape",
    "fmt",
    "parallel",
    "mapped",
    "error",
    "cache",
    "backend",
    "quant",
    "lower",
    "graph",
    "files",
    "plan",
    "note",
    "executor",
    "validate",
    "placement",
    "runner",
    "llm",
    "probe",
    "capi",
    "lib",
];

/// What parts use besides, and why.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("error", "backend", "an error keeps the driver's error"),
    ("error", "graph", "an error keeps the operator's error"),
    (
        "lower",
        "graph",
        "a graph holds operators, which lower themselves",
    ),
    (
        "graph",
        "files",
        "an error names the kind of a file that is no model",
    ),
];

/// Names of GPUs, drivers and their makers.
const DEVICES: &[&str] = &[
    "adreno", "amd", "apple", "intel", "lavapipe", "llvmpipe", "mali", "mesa", "nvidia", "pocl", "qualcomm",
];

/// A line of code: no comment, and no test.
struct Line {
    /// The file, relative to the workspace.
    file: String,
    number: usize,
    code: String,
}

impl Line {
    /// The part of the library that it belongs to, if any.
    fn part(&self) -> Option<&str> {
        let first = self.file.strip_prefix("src/")?.split('/').next()?;
        Some(first.strip_suffix(".rs").unwrap_or(first))
    }

    /// Whether it is in one of these files or folders.
    fn is_in(&self, paths: &str) -> bool {
        paths.split('|').any(|p| Path::new(&self.file).starts_with(p))
    }

    fn error(&self, what: &str) -> String {
        format!("{}:{}: {what}", self.file, self.number)
    }
}

/// Whether `code` has this text with no letter, digit or underscore on either side.
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
    for folder in ["src", "crates/convert/src", "crates/tlite/src"] {
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
            // Everything else is an item of `lib.rs`, such as a macro.
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
        // A stored measurement names its device.
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
    // The words, and the only folders that may have them.
    let rules: &[(&[&str], &str)] = &[
        (&["prost", "proto::"], "src/graph/onnx|crates/convert"),
        (&["opencl3", "cl3"], "src/backend/opencl"),
        (&["::wgpu", "pollster"], "src/backend/wgpu"),
        (&["minijinja", "llguidance"], "src/llm"),
        (&["tokenizers"], "src/llm|crates/convert/src/gguf"),
        (&["no_mangle", "c_char"], "src/capi.rs|src/capi"),
        (&["ureq"], "crates/convert/src/models/hub"),
        (&["sha2"], "crates/convert/src/models"),
        (
            &["clap", "indicatif", "ctrlc", "terminal_size"],
            "crates/tlite/src/cli|crates/tlite/src/main.rs",
        ),
        (&["reedline", "anstream", "anstyle"], "crates/tlite/src/cli/chat"),
        (&["env_logger"], "crates/tlite/src/main.rs"),
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
            // Our own module of the same name is `crate::backend::wgpu`.
            if !line.is_in(folders) && !line.code.contains("backend::wgpu") {
                wrong.push(line.error(&format!("{word} outside of {folders}")));
            }
        }
        assert!(used, "nothing has {words:?}: the rule is out of date");
    }
    assert_none(&wrong);
}

/// How often a number that does not fit still becomes a default, by folder.
const DEFAULTS: &[(&str, usize)] = &[
    ("crates/convert", 6),
    ("crates/tlite", 15),
    ("src/backend", 16),
    ("src/executor", 5),
    ("src/graph/op", 98),
    ("src/llm", 14),
    ("src/lower", 4),
    ("src/probe.rs", 3),
    ("src/selftest", 4),
];

/// The rest of an expression, without what its brackets hold.
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
    let mut found: BTreeMap<&str, Vec<String>> = DEFAULTS.iter().map(|(f, _)| (*f, Vec::new())).collect();
    for (file, code) in &files {
        let conversions = ["try_from(", "try_into("].map(|name| code.match_indices(name));
        for (at, name) in conversions.into_iter().flatten() {
            let calls = chain(&code[at + name.len() - 1..]);
            let default = |call: &str| call.starts_with("unwrap_or") && !call.starts_with("unwrap_or_else");
            if calls.split('.').any(default) {
                let place = DEFAULTS.iter().find(|(f, _)| file.starts_with(f));
                let number = code[..at].lines().count();
                let what = format!("{file}:{number}: a conversion with a default");
                found
                    .entry(place.map_or("other", |p| p.0))
                    .or_default()
                    .push(what);
            }
        }
    }
    let known = |folder: &str| DEFAULTS.iter().find(|(f, _)| *f == folder).map_or(0, |d| d.1);
    let wrong = found.iter().filter(|(folder, all)| all.len() != known(folder));
    let wrong = wrong.map(|(folder, all)| format!("{}\n{folder} has {}", all.join("\n"), all.len()));
    assert_none(&wrong.collect::<Vec<_>>());
}
