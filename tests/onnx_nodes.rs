//! The node cases of the ONNX project on the host interpreter: one model of one operator each, with operands and results.
//!
//! `TLITE_ONNX_NODES` names the folder `onnx/backend/test/data/node` of the Python package `onnx`; `tools/setup.sh` fetches
//! it. A trial is named as its folder. A model that the importer refuses because an operator or a type is not there counts
//! as unsupported. What is unsupported and what fails is listed in `tests/onnx_nodes_expected.txt`, with reasons; all that is
//! listed must be so.
//! With `TLITE_ONNX_NODES_REPORT` set to a file, that gets a line for each case.

#![allow(clippy::result_large_err, reason = "the library's error, on no hot path")]

use libtest_mimic::{Arguments, Failed, Trial};
use std::collections::HashMap;
use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use transformer_lite::error::Error;
use transformer_lite::graph::interp::Interpreter;
use transformer_lite::graph::{OpError, derive, onnx};
use transformer_lite::tensor::HostTensor;

/// Cases of the package that `tools/fetch_onnx_nodes.py` names.
const CASES: usize = 1765;
/// Cases that pass.
const PASSED: usize = 1200;

/// Error bounds of ONNX's own runner.
const RELATIVE: f64 = 1e-3;
const ABSOLUTE: f64 = 1e-7;

const NO_FOLDER: &str = "TLITE_ONNX_NODES is not set: it must name the folder onnx/backend/test/data/node of the \
    Python package onnx 1.22.0, which tools/fetch_onnx_nodes.py FOLDER fetches (tools/test.sh does it by itself)";

/// What became of a case.
enum Outcome {
    Passed,
    /// The importer's reason.
    Unsupported(String),
    /// What is wrong.
    Failed(String),
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let Some(folder) = std::env::var_os("TLITE_ONNX_NODES").map(PathBuf::from) else {
        let trial = Trial::test("onnx_nodes", || Err(Failed::from(NO_FOLDER)));
        return libtest_mimic::run(&arguments, vec![trial]).exit_code();
    };
    let expected = Arc::new(Expected::parse(include_str!("onnx_nodes_expected.txt")));
    let names = cases(&folder);
    /// Name, outcome and reason of each case.
    type Tally = Mutex<Vec<(String, &'static str, String)>>;
    let tally: Arc<Tally> = Arc::default();
    let mut trials = Vec::new();
    for name in &names {
        let (path, name) = (folder.join(name), name.clone());
        let (expected, tally) = (expected.clone(), tally.clone());
        trials.push(Trial::test(name.clone(), move || {
            let (kind, why, result) = match (run(&path), expected.find(&name)) {
                (Outcome::Passed, None) => ("passed", String::new(), Ok(())),
                (Outcome::Passed, Some(reason)) => {
                    let why = format!("passes, but tests/onnx_nodes_expected.txt has it: {reason}");
                    ("passed", why.clone(), Err(Failed::from(why)))
                }
                (Outcome::Unsupported(why), _) if expected.is_unsupported(&why) => {
                    ("unsupported", why, Ok(()))
                }
                (Outcome::Unsupported(why), _) => {
                    let why =
                        format!("unsupported, and tests/onnx_nodes_expected.txt does not have it: {why}");
                    ("failed", why.clone(), Err(Failed::from(why)))
                }
                (Outcome::Failed(why), Some(_)) => ("expected failure", why, Ok(())),
                (Outcome::Failed(why), None) => ("failed", why.clone(), Err(Failed::from(why))),
            };
            let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
            tally.push((name, kind, why));
            result
        }));
    }
    let (list, all) = (expected.clone(), names.clone());
    trials.push(Trial::test("every_entry_of_the_list_names_a_case", move || {
        Ok(list.check(&all)?)
    }));
    let count = names.len();
    trials.push(Trial::test("the_folder_is_whole", move || {
        if count == CASES {
            return Ok(());
        }
        Err(format!("{count} cases, expected {CASES}: is this the folder of onnx 1.22.0?").into())
    }));
    let whole = arguments.filter.is_none() && arguments.skip.is_empty() && !arguments.list;
    let conclusion = libtest_mimic::run(&arguments, trials);
    let mut tally = std::mem::take(&mut *tally.lock().unwrap_or_else(PoisonError::into_inner));
    tally.sort();
    if let Some(file) = std::env::var_os("TLITE_ONNX_NODES_REPORT") {
        let lines: Vec<String> = tally
            .iter()
            .map(|(name, kind, why)| format!("{kind}\t{name}\t{}\n", why.replace('\n', " ")))
            .collect();
        std::fs::write(file, lines.concat()).unwrap_or_else(|e| panic!("TLITE_ONNX_NODES_REPORT: {e}"));
    }
    if !whole {
        return conclusion.exit_code();
    }
    let of = |kind| tally.iter().filter(|(_, k, _)| *k == kind).count();
    let passed = of("passed");
    println!(
        "{} cases: {passed} passed, {} unsupported, {} expected failures, {} failed",
        names.len(),
        of("unsupported"),
        of("expected failure"),
        of("failed")
    );
    if passed != PASSED {
        println!("FAILED: {PASSED} cases passed when the test was last changed");
        return ExitCode::FAILURE;
    }
    let unsupported = tally.iter().filter(|(_, kind, _)| *kind == "unsupported");
    let reasons: Vec<&str> = unsupported.map(|(_, _, why)| why.as_str()).collect();
    if let Some(glob) = expected.unused(&reasons) {
        println!("FAILED: onnx_nodes_expected.txt: no case is \"unsupported: {glob}\"");
        return ExitCode::FAILURE;
    }
    conclusion.exit_code()
}

/// Names of all cases, sorted.
fn cases(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder)
        .unwrap_or_else(|e| panic!("TLITE_ONNX_NODES: cannot read {}: {e}", folder.display()));
    let mut names: Vec<String> = entries
        .filter_map(Result::ok)
        .filter(|e| e.path().join("model.onnx").is_file())
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// True when an operator or type is missing here.
fn is_unsupported(error: &Error) -> bool {
    let mut cause = error.source();
    while let Some(e) = cause {
        if matches!(e.downcast_ref::<OpError>(), Some(OpError::Unsupported(_))) {
            return true;
        }
        cause = e.source();
    }
    false
}

fn run(folder: &Path) -> Outcome {
    let mut graph = match onnx::import(&folder.join("model.onnx")) {
        Ok(graph) => graph,
        Err(e) if is_unsupported(&e) => {
            let chain = e.chain();
            // Without the path, which is that of the machine.
            let why = chain
                .split_once("model.onnx: ")
                .map_or(chain.as_str(), |(_, why)| why);
            return Outcome::Unsupported(why.to_owned());
        }
        Err(e) => return Outcome::Failed(e.chain()),
    };
    let result = derive::derive(&mut graph)
        .and_then(|()| Interpreter::new(Arc::new(graph)))
        .map_err(|e| e.chain())
        .and_then(|interpreter| {
            let mut sets = 0;
            for i in 0.. {
                let set = folder.join(format!("test_data_set_{i}"));
                if !set.is_dir() {
                    break;
                }
                sets += 1;
                run_set(&interpreter, &set)?;
            }
            if sets == 0 {
                Err("no test data".to_owned())
            } else {
                Ok(())
            }
        });
    match result {
        Ok(()) => Outcome::Passed,
        Err(e) => Outcome::Failed(e),
    }
}

fn run_set(interpreter: &Interpreter, set: &Path) -> Result<(), String> {
    let graph = interpreter.graph();
    let read = |file: String| onnx::read_tensor(&set.join(file)).map_err(|e| e.chain());
    let mut given = HashMap::new();
    for (i, v) in graph.inputs().iter().enumerate() {
        given.insert(*v, read(format!("input_{i}.pb"))?);
    }
    let results = interpreter.run(given).map_err(|e| e.chain())?;
    for (i, v) in graph.outputs().iter().enumerate() {
        let expected = read(format!("output_{i}.pb"))?;
        let found = results.get(v).ok_or("an output is missing")?;
        let name = &graph.value(*v).name;
        compare(found, &expected).map_err(|e| format!("output \"{name}\": {e}"))?;
        let fact = graph.fact(*v).map_err(|e| e.chain())?;
        // What derivation says must hold in the run.
        if fact.dtype != expected.dtype() || fact.shape.rank() != expected.shape().len() {
            return Err(format!(
                "output \"{name}\": derived {fact}, expected {expected:?}"
            ));
        }
        for (dim, n) in fact.shape.0.iter().zip(expected.shape()) {
            if dim
                .as_const()
                .is_some_and(|d| usize::try_from(d).ok() != Some(*n))
            {
                return Err(format!(
                    "output \"{name}\": derived {fact}, expected {expected:?}"
                ));
            }
        }
        if let Some(known) = fact.as_dims() {
            let values = expected.to_i64().map_err(|e| e.to_string())?;
            let wrong = |(d, v): (&transformer_lite::shape::Dim, &i64)| d.as_const().is_some_and(|d| d != *v);
            if known.len() != values.len() || known.iter().zip(&values).any(wrong) {
                return Err(format!(
                    "output \"{name}\": derived the elements {known:?}, expected {values:?}"
                ));
            }
        }
    }
    Ok(())
}

fn compare(found: &HostTensor, expected: &HostTensor) -> Result<(), String> {
    if found.dtype() != expected.dtype() || found.shape() != expected.shape() {
        return Err(format!("expected {expected:?}, found {found:?}"));
    }
    if !expected.dtype().is_float() {
        let numbers = |t: &HostTensor| t.to_i64().map_err(|e| e.to_string());
        let (found, expected) = (numbers(found)?, numbers(expected)?);
        return match found.iter().zip(&expected).position(|(a, b)| a != b) {
            Some(i) => Err(format!(
                "element {i}: expected {}, found {}",
                expected[i], found[i]
            )),
            None => Ok(()),
        };
    }
    let numbers = |t: &HostTensor| {
        t.to_f32()
            .map(std::borrow::Cow::into_owned)
            .map_err(|e| e.to_string())
    };
    let (found, expected) = (numbers(found)?, numbers(expected)?);
    let close = |a: f32, b: f32| {
        let (x, y) = (f64::from(a), f64::from(b));
        a == b || (a.is_nan() && b.is_nan()) || (x - y).abs() <= ABSOLUTE + RELATIVE * y.abs()
    };
    match found.iter().zip(&expected).position(|(a, b)| !close(*a, *b)) {
        Some(i) => Err(format!(
            "element {i}: expected {}, found {}",
            expected[i], found[i]
        )),
        None => Ok(()),
    }
}

/// The list of what is known to fail: lines `name | reason` of cases, and `unsupported: message | reason` of what the importer
/// says; `*` stands for any text.
struct Expected {
    failures: Vec<(String, String)>,
    unsupported: Vec<String>,
}

impl Expected {
    fn parse(text: &str) -> Self {
        let lines = text
            .lines()
            .filter(|l| !l.trim().is_empty() && !l.starts_with('#'));
        let (mut failures, mut unsupported) = (Vec::new(), Vec::new());
        for line in lines {
            match line.split_once('|') {
                Some((glob, reason)) if !reason.trim().is_empty() => {
                    match glob.strip_prefix("unsupported:") {
                        Some(glob) => unsupported.push(glob.trim().to_owned()),
                        None => failures.push((glob.trim().to_owned(), reason.trim().to_owned())),
                    }
                }
                _ => panic!("onnx_nodes_expected.txt: no reason in \"{line}\""),
            }
        }
        Self {
            failures,
            unsupported,
        }
    }

    fn find(&self, name: &str) -> Option<&str> {
        let found = self.failures.iter().find(|(glob, _)| matches(glob, name));
        found.map(|(_, reason)| reason.as_str())
    }

    fn is_unsupported(&self, why: &str) -> bool {
        self.unsupported.iter().any(|glob| matches(glob, why))
    }

    /// A line for what is unsupported that none of these reasons needs.
    fn unused(&self, reasons: &[&str]) -> Option<&str> {
        let unused = |glob: &&String| !reasons.iter().any(|why| matches(glob, why));
        self.unsupported.iter().find(unused).map(String::as_str)
    }

    fn check(&self, names: &[String]) -> Result<(), String> {
        match self
            .failures
            .iter()
            .find(|(glob, _)| !names.iter().any(|n| matches(glob, n)))
        {
            Some((glob, _)) => Err(format!("onnx_nodes_expected.txt: no case matches \"{glob}\"")),
            None => Ok(()),
        }
    }
}

/// True when `text` is `glob`, in which `*` stands for any text.
fn matches(glob: &str, text: &str) -> bool {
    let Some((head, tail)) = glob.split_once('*') else {
        return glob == text;
    };
    let Some(rest) = text.strip_prefix(head) else {
        return false;
    };
    (0..=rest.len()).any(|i| rest.get(i..).is_some_and(|r| matches(tail, r)))
}
