//! `tlite selftest`.

use super::options::DeviceOptions;
use super::output::{bar, note, put, put_json};
use crate::backend::{self, Backend, Caps, DeviceKind, OpenOptions, Quarantined, SharedBackend};
use crate::error::{Error, Result, Stage};
use crate::placement::{BackendChoice, Opened};
use crate::selftest::suite::{self, Failure, Outcome};
use serde::Serialize;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// How often a line says how far a check is, where no bar does.
const TELL: Duration = Duration::from_secs(15);

/// Check that devices compute right, for a bug report
///
/// Runs the cases of all operators and compares them with the reference on the host. Without --backend and --device every device is checked. Exit code 1 where
/// one fails.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// One small case for each kernel, in place of all cases
    #[arg(long)]
    quick: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    on: DeviceOptions,
}

#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    system: &'static str,
    architecture: &'static str,
    quick: bool,
    passed: usize,
    failed: usize,
    devices: Vec<Row>,
    /// Backends without a device, and why.
    absent: Vec<String>,
}

/// What was found out about a device.
#[derive(Debug, Serialize)]
struct Row {
    backend: &'static str,
    device: String,
    driver: String,
    kind: DeviceKind,
    extensions: Vec<String>,
    passed: usize,
    failed: Vec<Failure>,
    quarantined: Vec<Quarantined>,
    seconds: f64,
}

/// Devices, each open, and why a backend has none.
type Devices = (Vec<Box<dyn Backend>>, Vec<String>);

/// The devices that are asked for.
fn devices(on: &DeviceOptions) -> Result<Devices> {
    let place = on.placement();
    if on.backend == BackendChoice::Host {
        let what = "the host is what devices are compared with; give opencl or wgpu";
        return Err(Error::usage("--backend", what));
    }
    if on.backend != BackendChoice::Auto || on.device.is_some() {
        return match place.open()? {
            Opened::Device(backend) => Ok((vec![backend], Vec::new())),
            Opened::Host { .. } => Err(Error::usage("--backend", "there is no device")),
        };
    }
    let (mut found, mut absent) = (Vec::new(), Vec::new());
    for kind in backend::COMPILED {
        let all = match backend::list(*kind) {
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
            match backend::open(*kind, &options) {
                Ok(backend) => found.push(backend),
                Err(e) => absent.push(format!("{kind}: {}: {e}", caps.device)),
            }
        }
    }
    if found.is_empty() {
        return Err(Error::usage(
            "--backend",
            format!("there is no device: {}", absent.join("; ")),
        ));
    }
    Ok((found, absent))
}

fn check(backend: Box<dyn Backend>, args: &Args) -> Row {
    let (caps, extensions) = (backend.caps().clone(), backend.extensions());
    let store = args.on.cache.store();
    let line = bar(0);
    line.set_message(caps.device.clone());
    let device = SharedBackend::new(backend);
    let mut told = Instant::now();
    let outcome = suite::run(device, store.as_deref(), args.quick, &mut |done, all| {
        line.set_length(u64::try_from(all).unwrap_or(u64::MAX));
        line.set_position(u64::try_from(done).unwrap_or(u64::MAX));
        // Without a terminal there is no bar.
        if line.is_hidden() && told.elapsed() >= TELL {
            told = Instant::now();
            let what = format!("{}: {done} of {all} cases", caps.device);
            note(&mut std::io::stderr(), &what);
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
        passed: outcome.passed,
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
        let _infallible = writeln!(out, "  extensions: {}", row.extensions.join(" "));
    }
    for why in &report.absent {
        let _infallible = writeln!(out, "\nnot checked: {why}");
    }
    let _infallible = writeln!(out, "\n{} passed, {} failed", report.passed, report.failed);
    out
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let (found, absent) = devices(&args.on)?;
    let devices: Vec<Row> = found.into_iter().map(|backend| check(backend, args)).collect();
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
    let mut stdout = std::io::stdout().lock();
    if args.json {
        put_json(&mut stdout, &report)?;
    } else {
        put(&mut stdout, &text(&report))?;
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

    #[test]
    fn a_report_names_what_failed_and_what_is_not_used() {
        let caps = Caps::neutral();
        let outcome = Outcome {
            passed: 3,
            failed: vec![Failure {
                case: "Softmax/3x5/f16".to_owned(),
                why: "NMSE 2\nat [1]".to_owned(),
            }],
            quarantined: caps
                .clone()
                .without(crate::probe::KERNELS[0], "probe_copy", "fails X")
                .quarantined,
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
        for part in [
            "tlite 1, linux x, quick\n",
            "opencl: none (none)\n  3 passed, 1 failed, in 1.5 s\n",
            "  quarantined: probe_copy: fails X\n",
            "  FAILED Softmax/3x5/f16: NMSE 2\n    at [1]\n",
            "  extensions: cl_a cl_b\n",
            "not checked: wgpu: no adapter\n",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(text.ends_with("\n3 passed, 1 failed\n"), "{text}");
    }
}
