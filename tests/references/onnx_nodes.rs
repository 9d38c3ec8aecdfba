//! The cases of the ONNX project on the host interpreter and on every device. The set `node` has
//! models of one operator, with operands and results; `simple`, `pytorch-operator` and
//! `pytorch-converted` small models; `light` well known topologies whose weights are all the same.
//!
//! `TLITE_ONNX_DATA` names the folder that `tools/fetch_onnx_nodes.py` makes with the Python
//! package `onnx`. A trial is named as its folder, with that of its set and `/`
//! before unless that is `node`, and on a device with `@` and the backend behind. A model that the
//! importer refuses because an operator or a type is not there counts as unsupported. What is
//! unsupported and what fails is listed in `tests/references/onnx_nodes_expected.txt`, with
//! reasons; all that is listed must be so. On a device a case counts as passed where the device
//! runs something of it and the host nothing. With `TLITE_ONNX_NODES_REPORT` set to a file, that
//! gets a line for each case.

use std::collections::HashMap;
use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tlite_testing::Device;
use tlite_testing::suite::Suite;
use transformer_lite::unstable::backend::BackendKind;
use transformer_lite::unstable::cancel::Cancel;
use transformer_lite::unstable::error::Error;
use transformer_lite::unstable::graph::interp::Interpreter;
use transformer_lite::unstable::graph::{Graph, OpError, derive, onnx};
use transformer_lite::unstable::runner::{Named, Runner, RunnerOptions};
use transformer_lite::unstable::shape::{Dim, Fact};
use transformer_lite::unstable::tensor::{DType, HostTensor};

/// A set of cases, with the numbers that hold since the test was last changed.
struct SetOfCases {
    name: &'static str,
    /// Cases of the package that `tools/fetch_onnx_nodes.py` names.
    cases: usize,
    /// Cases that pass on the host.
    passed: usize,
    /// Cases of which a device runs all, of each backend.
    on_device: [(BackendKind, usize); 3],
}

const SETS: &[SetOfCases] = &[
    SetOfCases {
        name: NODE,
        cases: 1884,
        passed: 1689,
        on_device: [
            (BackendKind::OpenCl, 1234),
            (BackendKind::Wgpu, 1234),
            (BackendKind::Cpu, 1234),
        ],
    },
    SetOfCases {
        name: "simple",
        cases: 23,
        passed: 14,
        on_device: [
            (BackendKind::OpenCl, 8),
            (BackendKind::Wgpu, 8),
            (BackendKind::Cpu, 8),
        ],
    },
    SetOfCases {
        name: "pytorch-operator",
        cases: 35,
        passed: 35,
        on_device: [
            (BackendKind::OpenCl, 26),
            (BackendKind::Wgpu, 26),
            (BackendKind::Cpu, 26),
        ],
    },
    SetOfCases {
        name: "pytorch-converted",
        cases: 82,
        passed: 82,
        on_device: [
            (BackendKind::OpenCl, 63),
            (BackendKind::Wgpu, 63),
            (BackendKind::Cpu, 63),
        ],
    },
    SetOfCases {
        name: LIGHT,
        cases: 9,
        passed: 9,
        on_device: [
            (BackendKind::OpenCl, 9),
            (BackendKind::Wgpu, 6),
            (BackendKind::Cpu, 9),
        ],
    },
];
const NODE: &str = "node";
/// Its models are files beside their outputs; the inputs are counted up.
const LIGHT: &str = "light";

/// Error bounds of ONNX's own runner: two units in the last place of a bf16, and of other types.
const RELATIVE_BF16: f64 = 1.0 / 64.0;
const RELATIVE: f64 = 1e-3;
const ABSOLUTE: f64 = 1e-7;
/// On devices besides, in units of the largest element: exp and log of WGSL may be some last places
/// off.
const OF_LARGEST: f64 = 1e-5;

const NO_FOLDER: &str = "TLITE_ONNX_DATA does not name the folder onnx/backend/test/data of the \
    Python package onnx 1.23.0, which tools/fetch_onnx_nodes.py FOLDER makes (tools/test.sh does it by itself)";

/// What became of a case.
enum Outcome {
    Passed,
    /// With random numbers, of the right type and shape.
    Drawn,
    /// On a device, with nodes on the host: the reasons.
    PartlyOnHost(String),
    /// On a device, with nothing left to run: planning computed the results of the values of
    /// inputs.
    Planned,
    Unsupported(String),
    Failed(String),
}

/// Place, set, name, outcome and reason of each case.
type Tally = Vec<(String, &'static str, String, &'static str, String)>;

pub fn trials(suite: &mut Suite) {
    let Some(folder) = std::env::var_os("TLITE_ONNX_DATA").map(PathBuf::from) else {
        suite.not_set(NO_FOLDER);
        return;
    };
    let expected = Arc::new(Expected::parse(include_str!("onnx_nodes_expected.txt")));
    let files: Vec<CaseFiles> = SETS.iter().flat_map(|set| cases(&folder, set)).collect();
    let tally: Arc<Mutex<Tally>> = Arc::default();
    let devices = suite.devices();
    let places: Vec<(String, Option<Device>)> = std::iter::once(("reference".to_owned(), None))
        .chain(devices.iter().map(|d| (d.label(&devices), Some(d.clone()))))
        .collect();
    for (place, device) in &places {
        for case in &files {
            let name = match device {
                None => case.name.clone(),
                Some(_) => format!("{}@{place}", case.name),
            };
            let (case, place, device) = (case.clone(), place.clone(), device.clone());
            let (expected, tally, label) = (expected.clone(), tally.clone(), name.clone());
            suite.add(name, move || {
                let (kind, why, result) = expected.compare(&label, run(&case, device.as_ref()));
                let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
                tally.push((place, case.set, label, kind, why));
                result
            });
        }
    }
    let list = expected.clone();
    let all = suite.names();
    suite.add("every_entry_of_the_list_names_a_case", move || list.check(&all));
    suite.add("the_folder_is_whole", move || {
        for set in SETS {
            let count = files.iter().filter(|c| c.set == set.name).count();
            if count != set.cases {
                let (name, wanted) = (set.name, set.cases);
                return Err(format!(
                    "{name}: {count} cases, expected {wanted}: is this the folder of onnx 1.23.0?"
                ));
            }
        }
        Ok(())
    });
    suite.after(move |whole| {
        let mut tally = std::mem::take(&mut *tally.lock().unwrap_or_else(PoisonError::into_inner));
        tally.sort();
        if let Some(file) = std::env::var_os("TLITE_ONNX_NODES_REPORT") {
            let lines: Vec<String> = tally
                .iter()
                .map(|(_, _, name, kind, why)| format!("{kind}\t{name}\t{}\n", why.replace('\n', " ")))
                .collect();
            std::fs::write(file, lines.concat()).map_err(|e| format!("TLITE_ONNX_NODES_REPORT: {e}"))?;
        }
        if whole {
            sums(&tally, &places, &expected)
        } else {
            Ok(())
        }
    });
}

/// Prints how many cases of each set had which outcome. As many must pass as when the test was last
/// changed, and each reason of the list must still be one.
fn sums(tally: &Tally, places: &[(String, Option<Device>)], expected: &Expected) -> Result<(), String> {
    let mut wrong = Vec::new();
    for (place, device) in places {
        for set in SETS {
            let of = |kind| {
                let here = tally
                    .iter()
                    .filter(|(p, s, _, k, _)| p == place && *s == set.name && *k == kind);
                here.count()
            };
            let passed = of("passed");
            println!(
                "{place}: {}: of {} cases {passed} passed, {} drawn at random, {} by planning alone, {} partly on the host, {} unsupported, {} expected failures, {} failed",
                set.name,
                set.cases,
                of("drawn"),
                of("planned"),
                of("partly on the host"),
                of("unsupported"),
                of("expected failure"),
                of("failed")
            );
            let on = |d: &Device| {
                let mut backends = set.on_device.iter();
                backends.find(|(kind, _)| *kind == d.kind).map_or(0, |(_, n)| *n)
            };
            let wanted = device.as_ref().map_or(set.passed, on);
            if passed != wanted {
                wrong.push(format!(
                    "{place}: {}: {wanted} cases passed when the test was last changed",
                    set.name
                ));
            }
        }
    }
    let unsupported = tally.iter().filter(|(_, _, _, kind, _)| *kind == "unsupported");
    let reasons: Vec<&str> = unsupported.map(|(_, _, _, _, why)| why.as_str()).collect();
    if let Some(glob) = expected.unused(&reasons) {
        wrong.push(format!(
            "onnx_nodes_expected.txt: no case is \"unsupported: {glob}\""
        ));
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(wrong.join("\n"))
    }
}

/// Where a case is.
#[derive(Clone)]
struct CaseFiles {
    set: &'static str,
    name: String,
    model: PathBuf,
}

/// All cases of a set, sorted.
fn cases(folder: &Path, set: &SetOfCases) -> Vec<CaseFiles> {
    let folder = folder.join(set.name);
    let entries = std::fs::read_dir(&folder)
        .unwrap_or_else(|e| panic!("TLITE_ONNX_DATA: cannot read {}: {e}", folder.display()));
    let mut out = Vec::new();
    for path in entries.filter_map(Result::ok).map(|e| e.path()) {
        let model = match set.name {
            LIGHT if path.extension().is_some_and(|e| e == "onnx") => path.clone(),
            LIGHT => continue,
            _ => path.join("model.onnx"),
        };
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let name = match set.name {
            NODE => stem.into_owned(),
            set => format!("{set}/{stem}"),
        };
        if model.is_file() {
            out.push(CaseFiles {
                set: set.name,
                name,
                model,
            });
        }
    }
    out.sort_by(|a, b| a.name.cmp(&b.name));
    out
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

fn run(case: &CaseFiles, device: Option<&Device>) -> Outcome {
    let graph = match onnx::import(&case.model) {
        Ok(graph) => graph,
        Err(e) if is_unsupported(&e) => {
            let chain = e.chain();
            // Without the path, which is that of the machine.
            let why = chain.split_once(".onnx: ").map_or(chain.as_str(), |(_, why)| why);
            return Outcome::Unsupported(why.to_owned());
        }
        Err(e) => return Outcome::Failed(e.chain()),
    };
    let is_random = is_random(&graph);
    let result = match device {
        None => on_host(graph, case).map(|()| Outcome::Passed),
        Some(device) => on_device(graph, case, device),
    };
    match result {
        Ok(_) if is_random => Outcome::Drawn,
        result => result.unwrap_or_else(Outcome::Failed),
    }
}

/// True if results are random numbers: unit tests check their distributions.
fn is_random(graph: &Graph) -> bool {
    let names = ["Bernoulli", "Multinomial", "RandomNormal", "RandomUniform"];
    graph.nodes().any(|(_, n)| names.contains(&n.op.name()))
}

/// The data of a case: inputs and outputs in the order of the model.
struct Set {
    inputs: Vec<HostTensor>,
    outputs: Vec<HostTensor>,
}

/// All sets of data of a case.
fn sets(graph: &Graph, case: &CaseFiles) -> Result<Vec<Set>, String> {
    if case.set == LIGHT {
        return Ok(vec![light(graph, case)?]);
    }
    let mut out = Vec::new();
    for i in 0.. {
        let set = case.model.with_file_name(format!("test_data_set_{i}"));
        if !set.is_dir() {
            break;
        }
        let read = |kind: &str, count: usize| -> Result<Vec<HostTensor>, String> {
            let files = (0..count).map(|i| set.join(format!("{kind}_{i}.pb")));
            files
                .map(|f| onnx::read_tensor(&f).map_err(|e| e.chain()))
                .collect()
        };
        out.push(Set {
            inputs: read("input", graph.inputs().len())?,
            outputs: read("output", graph.outputs().len())?,
        });
    }
    if out.is_empty() {
        return Err("no test data".to_owned());
    }
    Ok(out)
}

/// The data of a model of the set `light`: as ONNX's own runner, inputs counted from 0 up to, but
/// without, 1.
fn light(graph: &Graph, case: &CaseFiles) -> Result<Set, String> {
    let mut inputs = Vec::new();
    for v in graph.inputs() {
        let shape = graph.fact(*v).map_err(|e| e.chain())?.shape.as_fixed();
        let shape = shape.ok_or("an input of unknown size")?;
        let count: usize = shape.iter().product();
        #[expect(clippy::cast_precision_loss, reason = "what the reference counts in")]
        let data: Vec<f32> = (0..count).map(|i| (i as f64 / count as f64) as f32).collect();
        inputs.push(HostTensor::from_floats(DType::F32, &shape, &data).map_err(|e| e.to_string())?);
    }
    let stem = case.model.file_stem().unwrap_or_default().to_string_lossy();
    let mut outputs = Vec::new();
    for i in 0..graph.outputs().len() {
        let file = case.model.with_file_name(format!("{stem}_output_{i}.pb"));
        outputs.push(onnx::read_tensor(&file).map_err(|e| e.chain())?);
    }
    Ok(Set { inputs, outputs })
}

fn on_device(graph: Graph, case: &CaseFiles, device: &Device) -> Result<Outcome, String> {
    let sets = sets(&graph, case)?;
    let bound = if is_random(&graph) {
        f64::INFINITY
    } else {
        OF_LARGEST
    };
    let backend = Box::new(device.share());
    let mut runner = Runner::of(graph, Some(backend), &RunnerOptions::default()).map_err(|e| e.chain())?;
    let names: Vec<String> = runner.inputs().map(|(n, _)| n.to_owned()).collect();
    for set in sets {
        let given: Vec<Named> = names.iter().cloned().zip(set.inputs).collect();
        let results = runner.run(&given, &Cancel::default()).map_err(|e| e.chain())?;
        for ((name, found), expected) in results.iter().zip(&set.outputs) {
            compare(found, expected, bound).map_err(|e| format!("output \"{name}\": {e}"))?;
        }
    }
    let host = runner.plan().map(|p| p.host.as_slice()).unwrap_or_default();
    let why: Vec<String> = host
        .iter()
        .map(|h| format!("{}: {}", h.work.name(), h.why))
        .collect();
    if why.is_empty() && runner.plan().is_some_and(|p| p.steps.is_empty()) {
        Ok(Outcome::Planned)
    } else if why.is_empty() {
        Ok(Outcome::Passed)
    } else {
        Ok(Outcome::PartlyOnHost(why.join("; ")))
    }
}

fn on_host(mut graph: Graph, case: &CaseFiles) -> Result<(), String> {
    derive::derive(&mut graph).map_err(|e| e.chain())?;
    let sets = sets(&graph, case)?;
    let bound = if is_random(&graph) { f64::INFINITY } else { 0.0 };
    let interpreter = Interpreter::new(Arc::new(graph)).map_err(|e| e.chain())?;
    let graph = interpreter.graph();
    for set in sets {
        let given: HashMap<_, _> = graph.inputs().iter().copied().zip(set.inputs).collect();
        let results = interpreter.run(given).map_err(|e| e.chain())?;
        for (v, expected) in graph.outputs().iter().zip(&set.outputs) {
            let found = results.get(v).ok_or("an output is missing")?;
            let name = &graph.value(*v).name;
            compare(found, expected, bound).map_err(|e| format!("output \"{name}\": {e}"))?;
            check_fact(graph.fact(*v).map_err(|e| e.chain())?, expected)
                .map_err(|e| format!("output \"{name}\": {e}"))?;
        }
    }
    Ok(())
}

/// What derivation says must hold in the run.
fn check_fact(fact: &Fact, expected: &HostTensor) -> Result<(), String> {
    let wrong = || Err(format!("derived {fact}, expected {expected:?}"));
    if fact.dtype != expected.dtype() || fact.shape.rank() != expected.shape().len() {
        return wrong();
    }
    for (dim, n) in fact.shape.0.iter().zip(expected.shape()) {
        if dim
            .as_const()
            .is_some_and(|d| usize::try_from(d).ok() != Some(*n))
        {
            return wrong();
        }
    }
    if let Some(known) = fact.as_dims() {
        let values = expected.to_i64().map_err(|e| e.to_string())?;
        let wrong = |(d, v): (&Dim, &i64)| d.as_const().is_some_and(|d| d != *v);
        if known.len() != values.len() || known.iter().zip(&values).any(wrong) {
            return Err(format!("derived the elements {known:?}, expected {values:?}"));
        }
    }
    Ok(())
}

fn compare(found: &HostTensor, expected: &HostTensor, of_largest: f64) -> Result<(), String> {
    if found.dtype() != expected.dtype() || found.shape() != expected.shape() {
        return Err(format!("expected {expected:?}, found {found:?}"));
    }
    // For random numbers, type and shape are all there is to compare.
    if of_largest.is_infinite() {
        return Ok(());
    }
    if !expected.dtype().is_float() {
        let numbers = |t: &HostTensor| t.to_bits().map_err(|e| e.to_string());
        let (found, expected) = (numbers(found)?, numbers(expected)?);
        return match found.iter().zip(&expected).position(|(a, b)| a != b) {
            Some(i) => Err(format!(
                "element {i}: expected {}, found {}",
                expected[i], found[i]
            )),
            None => Ok(()),
        };
    }
    let relative = match expected.dtype() {
        DType::BF16 => RELATIVE_BF16,
        _ => RELATIVE,
    };
    let numbers = |t: &HostTensor| {
        t.to_f64()
            .map(std::borrow::Cow::into_owned)
            .map_err(|e| e.to_string())
    };
    let (found, expected) = (numbers(found)?, numbers(expected)?);
    let finite = expected.iter().filter(|v| v.is_finite());
    let largest = finite.fold(0.0, |m: f64, v| m.max(v.abs()));
    let absolute = ABSOLUTE + of_largest * largest;
    let close = |x: f64, y: f64| {
        x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= absolute + relative * y.abs()
    };
    match found.iter().zip(&expected).position(|(a, b)| !close(*a, *b)) {
        Some(i) => Err(format!(
            "element {i}: expected {}, found {}",
            expected[i], found[i]
        )),
        None => Ok(()),
    }
}

/// The list of what is known to fail: lines `name | reason` of cases (`name@place` of one place
/// alone), and `unsupported: message | reason` of what the importer says; `*` stands for any text.
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

    /// Whether an outcome is as it should be: its kind, the reason, and what the trial says.
    fn compare(&self, name: &str, outcome: Outcome) -> (&'static str, String, Result<(), String>) {
        let wrong = |why: String| ("failed", why.clone(), Err(why));
        match (outcome, self.find(name)) {
            (Outcome::Passed, None) => ("passed", String::new(), Ok(())),
            (Outcome::Drawn, None) => ("drawn", String::new(), Ok(())),
            (Outcome::Planned, None) => ("planned", String::new(), Ok(())),
            (Outcome::PartlyOnHost(why), None) => ("partly on the host", why, Ok(())),
            (
                Outcome::Passed | Outcome::Drawn | Outcome::Planned | Outcome::PartlyOnHost(_),
                Some(reason),
            ) => wrong(format!(
                "passes, but tests/references/onnx_nodes_expected.txt has it: {reason}"
            )),
            (Outcome::Unsupported(why), _) if self.is_unsupported(&why) => ("unsupported", why, Ok(())),
            (Outcome::Unsupported(why), _) => wrong(format!(
                "unsupported, and tests/references/onnx_nodes_expected.txt does not have it: {why}"
            )),
            (Outcome::Failed(why), Some(_)) => ("expected failure", why, Ok(())),
            (Outcome::Failed(why), None) => wrong(why),
        }
    }

    fn find(&self, name: &str) -> Option<&str> {
        // What fails on the host fails on devices.
        let case = name.split('@').next().unwrap_or(name);
        let place = with_place(name);
        let mut failures = self.failures.iter();
        let found = failures.find(|(glob, _)| matches(glob, &place) || matches(glob, case));
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
        match self.failures.iter().find(|(glob, _)| {
            let named = |n: &String| matches(glob, n) || matches(glob, &with_place(n));
            !names.iter().any(named)
        }) {
            Some((glob, _)) => Err(format!("onnx_nodes_expected.txt: no case matches \"{glob}\"")),
            None => Ok(()),
        }
    }
}

/// The name of a trial with its place, which those of the interpreter have not.
fn with_place(name: &str) -> String {
    if name.contains('@') {
        name.to_owned()
    } else {
        format!("{name}@reference")
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
