//! `tlite selftest`.

mod junit;

use super::interrupt::Interrupt;
use super::options::{DeviceOptions, Verbosity, check_writable};
use super::output::{bar, is_verbose, note, print_report};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use transformer_lite::unstable::backend::{
    self, Backend, BackendKind, Caps, DeviceKind, OpenOptions, Quarantined, SharedBackend,
};
use transformer_lite::unstable::devices;
use transformer_lite::unstable::error::{Error, ErrorKind, Result, Stage};
use transformer_lite::unstable::files::write_whole;
use transformer_lite::unstable::llm::Cancel;
use transformer_lite::unstable::num;
use transformer_lite::unstable::placement::{BackendChoice, Opened};
use transformer_lite::unstable::validate::selftest::{self, Failure, Outcome};

/// How often a line reports the progress where there is no bar.
const REPORT_INTERVAL: Duration = Duration::from_secs(15);

const EXAMPLES: &str = "\
Examples:
  tlite selftest --quick
  tlite selftest --backend cpu --junit selftest.xml
  tlite selftest --backend wgpu --json";

/// Check that devices compute correctly, for bug reports
///
/// Runs test cases of all operators and compares the results with the reference on the host.
/// Without --backend and --device, every device is checked. The exit code is 1 if a case fails or
/// there is no device. After Ctrl-C or SIGTERM, the results so far are reported.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Run only one small case per kernel
    #[arg(long)]
    quick: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Also write the results as JUnit XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    #[command(flatten)]
    verbosity: Verbosity,
    #[command(flatten)]
    on: DeviceOptions,
}

/// The object of `tlite selftest --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Report {
    /// Version of tlite.
    version: &'static str,
    /// Operating system.
    system: &'static str,
    /// Processor architecture.
    architecture: &'static str,
    /// `--quick` was given.
    quick: bool,
    /// Cases that passed on all devices.
    passed: usize,
    /// Cases that failed on all devices.
    failed: usize,
    /// The devices.
    devices: Vec<Row>,
    /// Backends without a device, with the reason.
    absent: Vec<String>,
}

/// Results of a device.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Row {
    /// Backend: `opencl`, `wgpu` or `cpu`.
    backend: &'static str,
    /// Name of the device.
    device: String,
    /// Name and version of its driver.
    driver: String,
    /// Kind of processor.
    kind: DeviceKind,
    /// Extensions of the driver.
    extensions: Vec<String>,
    /// Cases that passed.
    passed: usize,
    /// Their names, which only JUnit shows.
    #[serde(skip)]
    passed_cases: Vec<String>,
    /// Cases that failed.
    failed: Vec<Failure>,
    /// Kernels that are not used because they were wrong or could not be built.
    quarantined: Vec<Quarantined>,
    /// Time that the cases took.
    seconds: f64,
}

/// Devices, each open, and why a backend has none.
type Devices = (Vec<Box<dyn Backend>>, Vec<String>);

/// The devices to check.
fn devices(on: &DeviceOptions) -> Result<Devices> {
    let place = on.placement();
    if on.backend == BackendChoice::Reference {
        let what = "the reference cannot be compared with itself; choose another backend";
        return Err(Error::usage("--backend", what));
    }
    if on.backend != BackendChoice::Auto || on.device.is_some() {
        return match place.open() {
            Err(e) => Err(e),
            Ok(Opened::Device(backend)) => Ok((vec![backend], Vec::new())),
            Ok(Opened::Reference { .. }) => Err(Error::usage("--backend", "no device found")),
        }
        .or_else(|e| match e.kind() {
            // To be reported like a backend that is not named.
            ErrorKind::NoDevice if on.device.is_none() => {
                Ok((Vec::new(), vec![format!("{}: {}", on.backend, e.chain())]))
            }
            _ => Err(e),
        });
    }
    let (mut found, mut absent) = (Vec::new(), Vec::new());
    for kind in BackendKind::compiled() {
        let all = match devices::list(kind) {
            Ok(all) => all,
            Err(e) => {
                absent.push(e.to_string());
                continue;
            }
        };
        for (name, caps) in backend::numbered(&all) {
            let options = OpenOptions {
                device: Some(name),
                ..place.options.clone()
            };
            match devices::open(kind, &options) {
                Ok(backend) => found.push(backend),
                Err(e) => absent.push(format!("{kind}: {}: {e}", caps.device)),
            }
        }
    }
    Ok((found, absent))
}

fn check(backend: Box<dyn Backend>, args: &Args, cancel: &Cancel) -> Row {
    let (caps, extensions) = (backend.caps().clone(), backend.extensions());
    let store = args.on.cache.store();
    let line = bar(0);
    line.set_message(caps.device.clone());
    let device = SharedBackend::new(backend).tried(store.as_deref());
    let mut reported = Instant::now();
    let outcome = selftest::run(device, store.as_deref(), args.quick, cancel, &mut |done, all| {
        line.set_length(num::wide(all));
        line.set_position(num::wide(done));
        // Without a terminal, there is no bar.
        if line.is_hidden() && reported.elapsed() >= REPORT_INTERVAL {
            reported = Instant::now();
            let what = format!("{}: {done} of {all} cases", caps.device);
            note(&what);
        }
    });
    line.finish_and_clear();
    row(caps, extensions, outcome)
}

fn row(caps: Caps, extensions: Vec<String>, outcome: Outcome) -> Row {
    Row {
        backend: caps.backend,
        device: caps.device,
        driver: caps.driver,
        kind: caps.kind,
        extensions,
        passed: outcome.passed.len(),
        passed_cases: outcome.passed,
        failed: outcome.failed,
        quarantined: outcome.quarantined,
        seconds: outcome.took.as_secs_f64(),
    }
}

fn text(report: &Report) -> String {
    let mut out = format!(
        "tlite {}, {} {}{}\n",
        report.version,
        report.system,
        report.architecture,
        if report.quick { ", quick" } else { "" }
    );
    for row in &report.devices {
        let _infallible = writeln!(out, "\n{}: {} ({})", row.backend, row.device, row.driver);
        let _infallible = writeln!(
            out,
            "  {} passed, {} failed, in {:.1} s",
            row.passed,
            row.failed.len(),
            row.seconds
        );
        for q in &row.quarantined {
            let _infallible = writeln!(out, "  quarantined: {}: {}", q.variant, q.why);
        }
        for f in &row.failed {
            let _infallible = writeln!(out, "  FAILED {}: {}", f.case, f.why.replace('\n', "\n    "));
        }
        if is_verbose() {
            let _infallible = writeln!(out, "  extensions: {}", row.extensions.join(" "));
        }
    }
    for why in &report.absent {
        let _infallible = writeln!(out, "\nnot checked: {why}");
    }
    let _infallible = writeln!(out, "\n{} passed, {} failed", report.passed, report.failed);
    out
}

pub fn run(args: &Args, interrupt: &Interrupt) -> Result<()> {
    args.verbosity.apply(args.json);
    if let Some(file) = &args.junit {
        check_writable("--junit", file)?;
    }
    let (found, absent) = devices(&args.on)?;
    // A signal ends the cases, and what is known is reported.
    let generating = interrupt.generating();
    let (cancel, stop) = (generating.flag(), generating.flag());
    let (_reported, end) = mpsc::channel::<()>();
    let _parting = interrupt.parting(move || {
        stop.cancel();
        let _late = end.recv_timeout(REPORT_INTERVAL);
    });
    let mut devices = Vec::new();
    for backend in found {
        if !cancel.is_cancelled() {
            devices.push(check(backend, args, &cancel));
        }
    }
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        system: std::env::consts::OS,
        architecture: std::env::consts::ARCH,
        quick: args.quick,
        passed: devices.iter().map(|d| d.passed).sum(),
        failed: devices.iter().map(|d| d.failed.len()).sum(),
        devices,
        absent,
    };
    if let Some(file) = &args.junit {
        write_whole(file, |out| out.write_all(junit::xml(&report).as_bytes()))?;
    }
    print_report(args.json, &report, || text(&report))?;
    if cancel.is_cancelled() {
        return Err(Error::Interrupted);
    }
    if report.devices.is_empty() {
        let what = format!("no device found: {}", report.absent.join("; "));
        return Err(Error::other(Stage::Run, what).of_kind(ErrorKind::NoDevice));
    }
    if report.failed == 0 {
        return Ok(());
    }
    let all = report.passed + report.failed;
    Err(Error::other(
        Stage::Run,
        format!("{} of {all} cases failed", report.failed),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use transformer_lite::unstable::backend::QuarantineCause;

    #[test]
    fn a_report_names_what_failed_and_what_is_not_used() {
        let kernel = transformer_lite::unstable::probe::KERNELS[0];
        let wrong = QuarantineCause::WrongResults;
        let wrong = Quarantined::new(kernel, "probe_copy", wrong, "fails X");
        let caps = Caps::generic_gpu().with(|device| device.quarantine(wrong));
        let outcome = Outcome {
            passed: ["Add", "Mul", "Sub"].map(str::to_owned).to_vec(),
            failed: vec![Failure {
                case: "Softmax/3x5/f16".to_owned(),
                why: "NMSE 2\nat [1]".to_owned(),
            }],
            quarantined: caps.profile.quarantined.clone(),
            took: Duration::from_millis(1500),
        };
        let report = Report {
            version: "1",
            system: "linux",
            architecture: "x",
            quick: true,
            passed: 3,
            failed: 1,
            devices: vec![row(caps, vec!["cl_a".to_owned(), "cl_b".to_owned()], outcome)],
            absent: vec!["wgpu: no adapter".to_owned()],
        };
        let text = text(&report);
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let line = |parts: &[&str]| lines.iter().any(|l| parts.iter().all(|p| l.contains(p)));
        for parts in [
            &["tlite 1", "linux", "quick"][..],
            &["opencl", "none"],
            &["3 passed", "1 failed", "1.5 s"],
            &["probe_copy", "fails X"],
            &["FAILED", "Softmax/3x5/f16", "NMSE 2"],
            &["at [1]"],
            &["no adapter"],
        ] {
            assert!(line(parts), "{parts:?} in {text}");
        }
        assert_eq!(lines.last(), Some(&"3 passed, 1 failed"));
        assert!(!text.contains("cl_a"), "{text}");
    }
}
