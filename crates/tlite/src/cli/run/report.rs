//! What a run gave, for people and as JSON.

use crate::cli::output::{grouped, shortened, table, titled};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::PathBuf;
use transformer_lite::unstable::executor::Timing;
use transformer_lite::unstable::fmt::{count_text, dispatches_text};
use transformer_lite::unstable::graph::pass::PassReport;
use transformer_lite::unstable::plan::{HostStep, Segment};
use transformer_lite::unstable::runner::Difference;
use transformer_lite::unstable::tensor::HostTensor;
use transformer_lite::unstable::vision::answer::Reading;
use transformer_lite::unstable::vision::scores::Top;

/// What a run gave.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct Report {
    /// The model file.
    pub model: PathBuf,
    /// Backend: `opencl`, `wgpu`, `cpu` or `reference`.
    pub backend: String,
    /// Name of the device.
    pub device: String,
    /// Name and version of its driver.
    pub driver: String,
    /// Milliseconds until the model was ready.
    pub load_ms: f64,
    /// The first run, which allocates memory and checks new kernels.
    pub first_ms: f64,
    /// Milliseconds of each further run.
    pub runs_ms: Vec<f64>,
    /// Inputs.
    pub inputs: Vec<Value>,
    /// Outputs.
    pub outputs: Vec<Value>,
    /// Outputs compared with references.
    pub compare: Vec<Compared>,
    /// Kernels checked against the reference in the first run.
    pub kernels_checked: usize,
    /// The results of these checks are saved for later runs.
    pub checks_kept: bool,
    /// Kernel launches of a run.
    pub dispatches: usize,
    /// Parts of a run between transfers to or from the host.
    pub segments: usize,
    /// Steps that ran on the host.
    pub host: Vec<OnHost>,
    /// Graph passes.
    pub passes: Vec<PassReport>,
    /// Ctrl-C ended the runs early.
    pub interrupted: bool,
    /// Times by kernel, longest first; empty without `--profile`.
    pub profile: Vec<Share>,
}

/// Time of all steps of one kernel, or of one operator on the host.
#[derive(Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Share {
    /// Name of the kernel.
    kernel: String,
    /// Number of steps.
    steps: usize,
    /// Milliseconds of these steps.
    ms: f64,
    /// Share of the time of all steps, from 0 to 1.
    share: f64,
    /// The step that took the most, with its specialization and nodes.
    slowest: String,
    /// Milliseconds of the slowest step.
    slowest_ms: f64,
}

/// Times by kernel, the largest first.
pub fn shares(times: &[Timing]) -> Vec<Share> {
    let all: u64 = times.iter().map(|t| t.nanoseconds).sum();
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let ms = |ns: u64| ns as f64 / 1e6;
    let name = |t: &Timing| match &t.kernel {
        Some(k) => k.split('<').next().unwrap_or(k).to_owned(),
        None => "on the host".to_owned(),
    };
    let mut out: Vec<Share> = grouped(times, name)
        .into_iter()
        .filter_map(|(kernel, list)| {
            let sum = list.iter().map(|t| t.nanoseconds).sum();
            let slowest = list.iter().max_by_key(|t| t.nanoseconds)?;
            let spec = slowest.kernel.as_deref().unwrap_or("host");
            Some(Share {
                kernel,
                steps: list.len(),
                ms: ms(sum),
                share: ms(sum) / ms(all.max(1)),
                slowest: format!("{spec} of {}", slowest.nodes.join(", ")),
                slowest_ms: ms(slowest.nanoseconds),
            })
        })
        .collect();
    out.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    out
}

/// An input or output.
#[derive(Debug, Default, Serialize, schemars::JsonSchema)]
pub struct Value {
    /// Name.
    name: String,
    /// Element type.
    dtype: String,
    /// Shape.
    shape: Vec<usize>,
    /// Smallest finite element.
    min: Option<Number>,
    /// Largest finite element.
    max: Option<Number>,
    /// Mean of the finite elements.
    mean: Option<f64>,
    /// Number of elements that are not a number.
    nan: usize,
    /// Number of infinite elements.
    infinite: usize,
    /// Largest elements; only of a row that may be scores of classes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub top: Vec<Top>,
    /// File that an input was read from, or an output written to.
    file: Option<PathBuf>,
}

/// An output and its reference.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct Compared {
    /// Name of the output.
    pub name: String,
    /// Difference from the reference.
    #[serde(flatten)]
    pub difference: Option<Difference>,
    /// Largest `relative` that passes.
    pub tolerance: f32,
    /// The difference is within the tolerance.
    pub passed: bool,
    /// Why the two could not be compared.
    pub error: Option<String>,
}

/// A step that ran on the host.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct OnHost {
    /// Operator, or the kind of work.
    work: String,
    /// Name of the node.
    node: String,
    /// Why it ran on the host.
    why: String,
    /// Tensors read back from the device before it.
    read_backs: usize,
    /// Tensors uploaded to the device after it.
    uploads: usize,
}

impl OnHost {
    /// Of a step of a plan.
    pub fn of(step: &HostStep) -> Self {
        Self {
            work: step.work.name().to_owned(),
            node: step.name.clone(),
            why: step.why.to_string(),
            read_backs: step.read_backs(),
            uploads: step.uploads(),
        }
    }
}

/// A number of the type that it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, schemars::JsonSchema)]
#[serde(untagged)]
pub enum Number {
    /// Of an integer tensor.
    Int(i128),
    /// Of floats, and every mean.
    Float(f64),
}

impl Value {
    /// An output, with its largest elements where it may be scores of classes.
    pub fn output(name: &str, t: &HostTensor, file: Option<PathBuf>, reading: &Reading) -> Self {
        Self {
            top: reading.top(name, t),
            ..Self::of(name, t, file)
        }
    }

    /// Its name with type and shape.
    pub fn title(&self) -> String {
        format!("{} {}{:?}", self.name, self.dtype, self.shape)
    }

    /// The smallest and the largest element.
    pub fn range(&self) -> String {
        format!("{}..{}", number(self.min), number(self.max))
    }

    /// True for what may be scores of classes.
    pub fn has_scores(&self) -> bool {
        !self.top.is_empty()
    }

    /// Number of elements of a row.
    pub fn columns(&self) -> usize {
        self.shape.last().copied().unwrap_or(0)
    }

    /// An input or output.
    pub fn of(name: &str, t: &HostTensor, file: Option<PathBuf>) -> Self {
        let mut value = Self {
            name: name.to_owned(),
            dtype: t.dtype().to_string(),
            shape: t.shape().to_vec(),
            file,
            ..Self::default()
        };
        #[expect(clippy::cast_precision_loss, reason = "for people")]
        let mean = |sum: f64, n: usize| (n > 0).then(|| sum / n as f64);
        if !t.dtype().is_float() {
            let all = t.to_i128().unwrap_or_default();
            value.min = all.iter().copied().min().map(Number::Int);
            value.max = all.iter().copied().max().map(Number::Int);
            #[expect(clippy::cast_precision_loss, reason = "for people")]
            let sum = all.iter().map(|v| *v as f64).sum();
            value.mean = mean(sum, all.len());
            return value;
        }
        let all = t.to_f64().map(std::borrow::Cow::into_owned).unwrap_or_default();
        let finite = || all.iter().copied().filter(|v| v.is_finite());
        value.nan = all.iter().filter(|v| v.is_nan()).count();
        value.infinite = all.iter().filter(|v| v.is_infinite()).count();
        value.min = finite().reduce(f64::min).map(Number::Float);
        value.max = finite().reduce(f64::max).map(Number::Float);
        value.mean = mean(finite().sum(), finite().count());
        value
    }

    /// The mean, and how many elements have no part in it.
    fn rest(&self) -> String {
        let mut out = format!("mean {}", number(self.mean.map(Number::Float)));
        for (n, what) in [(self.nan, "NaN"), (self.infinite, "infinite")] {
            if n > 0 {
                let _ok = write!(out, ", {n} {what}");
            }
        }
        out
    }
}

/// Columns of the table of `--profile`.
const COLUMNS: usize = 110;

fn number(v: Option<Number>) -> String {
    match v {
        Some(Number::Int(v)) => v.to_string(),
        Some(Number::Float(v)) if v.abs() < 1e15 => format!("{v:.5}"),
        Some(Number::Float(v)) => format!("{v:.5e}"),
        None => "-".to_owned(),
    }
}

/// The probability of a class, or else its score.
pub fn score(top: &Top) -> String {
    match top.probability {
        Some(p) => format!("{:.2} %", 100.0 * p),
        None => format!("{:.5}", top.value),
    }
}

fn values(all: &[Value], nowhere: &str) -> String {
    let rows = all.iter().map(|v| {
        vec![
            format!("  {}", v.name),
            format!("{}{:?}", v.dtype, v.shape),
            v.range(),
            v.rest(),
            v.file
                .as_ref()
                .map_or_else(|| nowhere.to_owned(), |f| f.display().to_string()),
        ]
    });
    let mut out = table(&rows.collect::<Vec<_>>(), 5);
    for v in all.iter().filter(|v| !v.top.is_empty()) {
        if v.top.iter().all(|t| t.label.is_none()) {
            let top = v.top.iter().map(|t| format!("{} ({})", t.index, score(t)));
            let top: Vec<String> = top.collect();
            let _ok = writeln!(out, "  largest of {}: {}", v.name, top.join(", "));
            continue;
        }
        let _ok = writeln!(out, "  largest of {}", v.name);
        for t in &v.top {
            let label = t.label.as_deref().unwrap_or("(no name)");
            let _ok = writeln!(out, "  {:>6}  {:>11}  {label}", t.index, score(t));
        }
    }
    out
}

/// The report for people; `segments` are those of the plan, if a device ran. If `quiet`, it has
/// outputs, comparisons and the profile only.
pub fn text(report: &Report, segments: Option<&[Segment]>, quiet: bool) -> String {
    if quiet {
        return results(report) + &profile(report);
    }
    let mut out = head(report);
    let _ok = write!(out, "\ninputs\n{}", values(&report.inputs, "random"));
    let _ok = write!(out, "\n{}", results(report));
    if let Some(segments) = segments {
        out += &placement(report, segments);
    }
    out + &profile(report)
}

/// The model, where it ran, and times.
fn head(report: &Report) -> String {
    let mut out = String::new();
    let _ok = writeln!(
        out,
        "{} on {}\nloaded in {:.0} ms, first run {:.1} ms{}",
        report.model.display(),
        match report.backend.as_str() {
            "reference" => "the reference interpreter".to_owned(),
            b => format!("{} ({b})", report.device),
        },
        report.load_ms,
        report.first_ms,
        match (report.kernels_checked, report.checks_kept) {
            (0, _) => String::new(),
            (n, true) => format!(", including a one-time check of {}", count_text(n, "kernel")),
            (n, false) => format!(", including a check of {}", count_text(n, "kernel")),
        }
    );
    let mut runs = report.runs_ms.clone();
    runs.sort_by(f64::total_cmp);
    if let (Some(low), Some(mid), Some(high)) = (runs.first(), runs.get(runs.len() / 2), runs.last()) {
        let _ok = writeln!(
            out,
            "then {}: median {mid:.2} ms ({low:.2} to {high:.2})",
            count_text(runs.len(), "run")
        );
    }
    out
}

fn results(report: &Report) -> String {
    let mut out = format!("outputs\n{}", values(&report.outputs, ""));
    if !report.compare.is_empty() {
        let rows = report.compare.iter().map(|c| {
            vec![
                format!("  {}", c.name),
                match (&c.difference, &c.error) {
                    (Some(d), _) if d.unequal > 0 => format!("{} elements differ", d.unequal),
                    (Some(d), _) => format!("{:.2e}", d.relative),
                    (None, e) => e.clone().unwrap_or_default(),
                },
                if c.passed { "ok" } else { "DIFFERS" }.to_owned(),
            ]
        });
        let bound = report.compare.first().map_or(0.0, |c| c.tolerance);
        let rows = table(&rows.collect::<Vec<_>>(), 3);
        let _ok = write!(
            out,
            "\nlargest difference relative to the reference's range (limit {bound})\n{rows}"
        );
    }
    out
}

/// Dispatches and steps on the host.
fn placement(report: &Report, segments: &[Segment]) -> String {
    let mut out = String::new();
    let on_device = segments
        .iter()
        .filter(|s| matches!(s, Segment::Device(_)))
        .count();
    let _ok = writeln!(
        out,
        "\n{} in {} on the device, {} on the host",
        dispatches_text(report.dispatches),
        count_text(on_device, "segment"),
        count_text(report.host.len(), "step")
    );
    // One line for all that have one reason; --json has each.
    for (why, all) in grouped(&report.host, |h| format!("{}: {}", h.work, h.why)) {
        let sum = |f: fn(&OnHost) -> usize| all.iter().map(|h| f(h)).sum::<usize>();
        let names: Vec<String> = all.iter().take(3).map(|h| format!("\"{}\"", h.node)).collect();
        let more = if all.len() > 3 { ", ..." } else { "" };
        let _ok = writeln!(
            out,
            "  host: {} times {why} ({} read back, {} uploaded): {}{more}",
            all.len(),
            sum(|h| h.read_backs),
            sum(|h| h.uploads),
            names.join(", ")
        );
    }
    out
}

/// The table of `--profile`; empty without it.
fn profile(report: &Report) -> String {
    if report.profile.is_empty() {
        return String::new();
    }
    let mut out = "\n".to_owned();
    let rows = titled(
        &report.profile,
        &[
            ("  kernel", &|s| format!("  {}", s.kernel)),
            ("steps", &|s| s.steps.to_string()),
            ("ms", &|s| format!("{:.3}", s.ms)),
            ("share", &|s| format!("{:.1} %", 100.0 * s.share)),
            ("slowest ms", &|s| format!("{:.3}", s.slowest_ms)),
        ],
    );
    let slowest = std::iter::once("slowest").chain(report.profile.iter().map(|s| s.slowest.as_str()));
    let table = table(&rows, 1);
    let width = table.lines().map(|l| l.chars().count()).max().unwrap_or(0);
    for (line, slowest) in table.lines().zip(slowest) {
        let _ok = writeln!(
            out,
            "{line}  {}",
            shortened(slowest, COLUMNS.saturating_sub(width + 2).max(24))
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use transformer_lite::unstable::tensor::DType;
    use transformer_lite::unstable::vision::labels::Labels;

    #[test]
    fn what_is_not_finite_is_counted_and_left_out() {
        let data = [1.0, f32::NAN, f32::INFINITY, 3.0, f32::NEG_INFINITY];
        let v = Value::of("y", &HostTensor::from_f32(&[5], &data).unwrap(), None);
        assert_eq!((v.nan, v.infinite), (1, 2));
        assert_eq!(
            (v.min, v.max),
            (Some(Number::Float(1.0)), Some(Number::Float(3.0)))
        );
        assert_eq!(v.rest(), "mean 2.00000, 1 NaN, 2 infinite");
        let none = Value::of("y", &HostTensor::from_f32(&[1], &[f32::NAN]).unwrap(), None);
        assert_eq!(
            (none.min, none.mean, none.rest().as_str()),
            (None, None, "mean -, 1 NaN")
        );
    }

    #[test]
    fn integers_stay_integers() {
        let v = Value::of("y", &HostTensor::from_i64(&[2], &[3, 4]).unwrap(), None);
        let line = values(&[v], "");
        assert!(line.contains("3..4") && line.contains("mean 3.50000"), "{line}");
        let most = HostTensor::from_i128s(DType::U64, &[1], &[u64::MAX.into()]).unwrap();
        assert_eq!(
            Value::of("y", &most, None).max,
            Some(Number::Int(u64::MAX.into()))
        );
        let v = Value::of("y", &HostTensor::from_i64(&[2], &[3, 4]).unwrap(), None);
        let json = serde_json::to_value(v).unwrap();
        assert_eq!(
            (&json["min"], &json["mean"]),
            (&serde_json::json!(3), &serde_json::json!(3.5))
        );
        assert!(json.get("top").is_none());
    }

    #[test]
    fn scores_have_names_and_probabilities() {
        let scores: Vec<f32> = (0..12u8).map(|i| f32::from(i % 7)).collect();
        let mut reading = Reading {
            labels: Labels::parse(r#"{"6": "cat"}"#),
            top: 2,
            ..Reading::default()
        };
        let tensor = HostTensor::from_f32(&[1, 12], &scores).unwrap();
        let text = |reading: &Reading| values(&[Value::output("y", &tensor, None, reading)], "");
        assert!(
            text(&reading).contains("6      6.00000  cat\n"),
            "{}",
            text(&reading)
        );
        reading.softmax = vec!["y".to_owned()];
        assert!(text(&reading).contains(" %  cat\n"), "{}", text(&reading));
        assert!(text(&reading).contains(" %  (no name)\n"), "{}", text(&reading));
        reading.labels = None;
        assert!(text(&reading).contains("largest of y: 6 ("), "{}", text(&reading));
    }
}
