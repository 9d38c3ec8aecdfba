//! `tlite devices`.

use super::output::{put, put_json};
use crate::backend::{self, BackendError, BackendKind, Caps, DeviceKind};
use crate::error::Result;
use serde::Serialize;
use std::fmt::Write as _;

/// List the devices that models can run on
///
/// A backend without a driver is listed with the reason.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A device; what is unknown or has no meaning for it is `None`.
#[derive(Debug, PartialEq, Serialize)]
struct Row {
    backend: &'static str,
    device: String,
    driver: String,
    kind: DeviceKind,
    memory_bytes: Option<u64>,
    max_buffer_bytes: Option<u64>,
    max_view_bytes: Option<u64>,
    view_align: Option<u64>,
    max_workgroup: Option<u32>,
    local_bytes: Option<u32>,
    fast_local: bool,
    units: Option<u32>,
    subgroup: Option<u32>,
    f16_math: bool,
    matrix_units: bool,
    profiling: bool,
    priorities: bool,
}

impl From<Caps> for Row {
    fn from(caps: Caps) -> Self {
        Self {
            backend: caps.backend,
            device: caps.device,
            driver: caps.driver,
            kind: caps.kind,
            memory_bytes: (caps.memory_bytes > 0).then_some(caps.memory_bytes),
            max_buffer_bytes: Some(caps.max_buffer_bytes),
            max_view_bytes: Some(caps.max_view_bytes),
            view_align: Some(caps.view_align),
            max_workgroup: Some(caps.max_workgroup),
            local_bytes: Some(caps.local_bytes),
            fast_local: caps.fast_local,
            units: (caps.units > 0).then_some(caps.units),
            subgroup: caps.subgroup,
            f16_math: caps.f16_math,
            matrix_units: caps.matrix_units,
            profiling: caps.profiling,
            priorities: caps.priorities,
        }
    }
}

/// The interpreter, which has no driver and no limits of its own.
fn host() -> Row {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Row {
        backend: "host",
        device: format!("{} CPU, {threads} threads", std::env::consts::ARCH),
        driver: concat!("tlite ", env!("CARGO_PKG_VERSION")).to_owned(),
        kind: DeviceKind::Cpu,
        memory_bytes: None,
        max_buffer_bytes: None,
        max_view_bytes: None,
        view_align: None,
        max_workgroup: None,
        local_bytes: None,
        fast_local: false,
        units: None,
        subgroup: None,
        f16_math: false,
        matrix_units: false,
        profiling: false,
        priorities: false,
    }
}

#[derive(Debug, PartialEq, Serialize)]
struct Absent {
    backend: String,
    why: String,
}

#[derive(Debug, PartialEq, Serialize)]
struct Report {
    devices: Vec<Row>,
    absent: Vec<Absent>,
}

fn report(list: impl Fn(BackendKind) -> Result<Vec<Caps>, BackendError>) -> Report {
    let mut report = Report {
        devices: Vec::new(),
        absent: Vec::new(),
    };
    for kind in [BackendKind::OpenCl, BackendKind::Wgpu] {
        let why = match list(kind) {
            Ok(all) if all.is_empty() => "the driver has no device".to_owned(),
            Ok(all) => {
                report.devices.extend(all.into_iter().map(Row::from));
                continue;
            }
            Err(BackendError::NoDriver { why, .. }) => why,
            Err(e) => e.to_string(),
        };
        report.absent.push(Absent {
            backend: kind.to_string(),
            why,
        });
    }
    report.devices.push(host());
    report
}

/// A number of bytes in the largest binary unit that keeps it exact enough to read.
fn bytes(n: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.iter().find(|(shift, _)| n >> shift >= 1) {
        Some((shift, unit)) if n.is_multiple_of(1 << shift) => format!("{} {unit}", n >> shift),
        Some((shift, unit)) => format!("{:.1} {unit}", n as f64 / (1u64 << shift) as f64),
        None => format!("{n} B"),
    }
}

impl Report {
    fn text(&self) -> String {
        let mut out = String::new();
        for row in &self.devices {
            let kind = match row.kind {
                DeviceKind::Discrete => "discrete GPU",
                DeviceKind::Integrated => "integrated GPU",
                DeviceKind::Cpu => "CPU",
                DeviceKind::Other => "other",
            };
            // Writing to a string cannot fail.
            let _ok = writeln!(
                out,
                "{}: {}\n  driver: {}\n  kind: {kind}",
                row.backend, row.device, row.driver
            );
            let lines = [
                ("memory", row.memory_bytes.map(bytes)),
                ("largest buffer", row.max_buffer_bytes.map(bytes)),
                ("largest view", row.max_view_bytes.map(bytes)),
                ("view alignment", row.view_align.map(bytes)),
                ("work-group", row.max_workgroup.map(|n| n.to_string())),
                ("local memory", row.local_bytes.map(|n| bytes(n.into()))),
                ("compute units", row.units.map(|n| n.to_string())),
                ("sub-group", row.subgroup.map(|n| n.to_string())),
            ];
            for (name, value) in lines {
                if let Some(value) = value {
                    let _ok = writeln!(out, "  {name}: {value}");
                }
            }
            if row.backend != "host" {
                let _ok = writeln!(
                    out,
                    "  f16 arithmetic: {}",
                    if row.f16_math { "yes" } else { "no" }
                );
            }
        }
        for absent in &self.absent {
            let _ok = writeln!(out, "{}: none: {}", absent.backend, absent.why);
        }
        out
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let report = report(backend::list);
    let mut out = std::io::stdout().lock();
    if args.json {
        put_json(&mut out, &report)
    } else {
        put(&mut out, &report.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caps() -> Caps {
        Caps {
            backend: "wgpu",
            device: "Card".to_owned(),
            driver: "drv 1".to_owned(),
            kind: DeviceKind::Discrete,
            view_align: 32,
            params_align: 256,
            max_view_bytes: (2 << 30) - 4,
            max_buffer_bytes: 4 << 30,
            memory_bytes: 0,
            local_bytes: 48 << 10,
            fast_local: true,
            units: 0,
            max_workgroup: 1024,
            max_grid: 65535,
            subgroup: Some(32),
            f16_math: true,
            matrix_units: false,
            profiling: true,
            priorities: false,
        }
    }

    fn lists(kind: BackendKind) -> Result<Vec<Caps>, BackendError> {
        match kind {
            BackendKind::OpenCl => Err(BackendError::NoDriver {
                backend: "opencl",
                why: "no library".to_owned(),
            }),
            BackendKind::Wgpu => Ok(vec![caps()]),
        }
    }

    #[test]
    fn text_has_a_line_for_what_is_known() {
        let text = report(lists).text();
        let start = "wgpu: Card\n  driver: drv 1\n  kind: discrete GPU\n  largest buffer: 4 GiB\n  largest view: 2.0 GiB\n  \
            view alignment: 32 B\n  work-group: 1024\n  local memory: 48 KiB\n  sub-group: 32\n  f16 arithmetic: yes\nhost: ";
        assert!(text.starts_with(start), "{text}");
        assert!(text.ends_with("opencl: none: no library\n"), "{text}");
    }

    #[test]
    fn json_has_null_for_what_is_unknown() {
        let json = serde_json::to_value(report(lists)).unwrap();
        assert_eq!(json["devices"][0]["backend"], "wgpu");
        assert_eq!(json["devices"][0]["kind"], "discrete");
        assert!(json["devices"][0]["memory_bytes"].is_null());
        assert_eq!(json["devices"][1]["backend"], "host");
        assert_eq!(
            json["absent"][0],
            serde_json::json!({"backend": "opencl", "why": "no library"})
        );
    }

    #[test]
    fn a_driver_without_devices_is_absent() {
        let report = report(|_| Ok(Vec::new()));
        assert_eq!((report.devices.len(), report.absent.len()), (1, 2));
    }
}
