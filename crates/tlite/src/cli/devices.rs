//! `tlite devices`.

use super::cache::{CacheOptions, age_text, store_in};
use super::output::{note, print_report};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::SystemTime;
use transformer_lite::unstable::backend::kernel::image::{ImageKind, Images, ROW_PIXELS};
use transformer_lite::unstable::backend::validation::DeviceQuarantine;
use transformer_lite::unstable::backend::{
    self, BackendError, BackendKind, Caps, DeviceKind, OpenOptions, Quarantined, special,
};
use transformer_lite::unstable::cache::{DEFAULT_LIMIT, Store};
use transformer_lite::unstable::devices;
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::fmt::{quantity, size_text};
use transformer_lite::unstable::placement::{BackendChoice, names_cpu};
use transformer_lite::unstable::probe::{self, Probe, store};

const EXAMPLES: &str = "\
Examples:
  tlite devices
  tlite devices --probe
  tlite devices --device nvidia --json";

/// List the devices that models can run on
///
/// A backend without a device is listed with the reason. Kernels that failed on a device and are
/// not used there are listed with it; `tlite cache clear --kind quarantine` lets the next start try
/// them again.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Measure memory, arithmetic and launches, and list extensions
    ///
    /// This takes some seconds per device, which should be idle. The measurements are saved for
    /// `tlite roofline`, `profile` and `bench`.
    #[arg(long)]
    probe: bool,
    /// List only devices whose name contains TEXT; `cpu` is the `cpu` backend
    #[arg(long, value_name = "TEXT")]
    device: Option<String>,
    /// Folder of the kernel cache, which holds measurements and the list of failed kernels
    /// [default: `$TLITE_CACHE_DIR`, else in the user's cache folder]
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    cache_dir: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A device. Unknown values are null.
#[derive(Debug, Default, PartialEq, Serialize, JsonSchema)]
pub(super) struct Row {
    /// Backend: `opencl`, `wgpu`, `cpu` or `reference`.
    backend: &'static str,
    /// Name of the device.
    device: String,
    /// Name and version of its driver.
    driver: String,
    /// Kind of processor.
    kind: DeviceKind,
    /// Device memory in bytes, as the driver reports it.
    memory_bytes: Option<u64>,
    /// Largest buffer in bytes.
    max_buffer_bytes: Option<u64>,
    /// Largest range of a buffer that a kernel can use, in bytes.
    max_view_bytes: Option<u64>,
    /// Alignment of such ranges in bytes.
    view_align: Option<u64>,
    /// Largest number of work-items in a work-group.
    max_workgroup: Option<u32>,
    /// Local memory of a work-group in bytes.
    local_bytes: Option<u32>,
    /// Local memory is faster than cached global memory.
    fast_local: bool,
    /// Number of compute units.
    units: Option<u32>,
    /// Subgroup size; the smallest if it varies.
    subgroup: Option<u32>,
    /// NaN and infinities stay what they are in kernels.
    keeps_special: Option<bool>,
    /// Half-precision arithmetic is available.
    f16_math: bool,
    /// Tensor cores or cooperative matrices are available to kernels.
    matrix_units: bool,
    /// Device times of single commands can be measured.
    profiling: bool,
    /// The driver supports `--priority`.
    priorities: bool,
    /// Images made from buffers.
    images: Images,
    /// Features that the driver lists but refuses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    refused: Vec<String>,
    /// Kernels that are not used because they failed on this device.
    quarantined: Vec<Quarantined>,
    /// Extensions of the driver; with `--probe`.
    #[serde(skip_serializing_if = "Option::is_none")]
    extensions: Option<Vec<String>>,
    /// Measurements; with `--probe`.
    #[serde(skip_serializing_if = "Option::is_none")]
    probe: Option<Probe>,
    /// Why measuring failed; with `--probe`.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_probed: Option<String>,
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
            max_view_bytes: Some(caps.profile.max_view_bytes),
            view_align: Some(caps.profile.view_align),
            max_workgroup: Some(caps.profile.max_workgroup),
            local_bytes: Some(caps.profile.local_bytes),
            fast_local: caps.profile.fast_local,
            units: (caps.profile.compute_units > 0).then_some(caps.profile.compute_units),
            subgroup: caps.profile.subgroup,
            keeps_special: caps.profile.keeps_special,
            f16_math: caps.profile.f16_math,
            matrix_units: caps.profile.tensor_cores.is_some(),
            profiling: caps.profiling,
            priorities: caps.priorities,
            images: caps.profile.images,
            refused: caps.refused,
            ..Self::default()
        }
    }
}

/// The reference interpreter, which has no driver and no limits.
fn reference() -> Row {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Row {
        backend: BackendChoice::Reference.name(),
        device: format!("{} CPU, {threads} threads", std::env::consts::ARCH),
        driver: concat!("tlite ", env!("CARGO_PKG_VERSION")).to_owned(),
        kind: DeviceKind::Cpu,
        keeps_special: Some(true),
        ..Row::default()
    }
}

/// A backend without a device.
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
pub(super) struct Absent {
    /// Backend: `opencl`, `wgpu` or `cpu`.
    backend: String,
    /// The reason.
    why: String,
}

/// The object of `tlite devices --json`.
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
pub(super) struct Report {
    /// Devices that models can run on.
    devices: Vec<Row>,
    /// Backends without a device.
    absent: Vec<Absent>,
}

/// The devices that `list` returns whose name contains `asked`. `row` makes a row of a
/// backend, a unique name and the capabilities. A usage error if there is none.
fn report(
    list: impl Fn(BackendKind) -> Result<Vec<Caps>, BackendError>,
    asked: Option<&str>,
    row: &dyn Fn(BackendKind, &str, Caps) -> Row,
) -> Result<Report> {
    let mut report = Report {
        devices: Vec::new(),
        absent: Vec::new(),
    };
    let mut known = Vec::new();
    for kind in BackendKind::ALL {
        let why = match list(kind) {
            Ok(all) if all.is_empty() => "no device found".to_owned(),
            Ok(all) => {
                for (name, caps) in backend::numbered(&all) {
                    if asked.is_none_or(|a| is_asked(a, kind, caps)) {
                        report.devices.push(row(kind, &name, caps.clone()));
                    }
                }
                known.extend(all);
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
    let reference = reference();
    if asked.is_none_or(|a| !names_cpu(a) && backend::is_called(&[&reference.device], a)) {
        report.devices.push(reference);
    }
    match asked {
        Some(asked) if report.devices.is_empty() => {
            let found = backend::names(&known.iter().collect::<Vec<_>>());
            let error = BackendError::NoDevice {
                asked: asked.to_owned(),
                found,
            };
            Err(Error::usage("--device", error.to_string()))
        }
        _ => Ok(report),
    }
}

/// Whether `--device` with the text `asked` names this device. `cpu` is the backend of this name.
fn is_asked(asked: &str, kind: BackendKind, caps: &Caps) -> bool {
    match names_cpu(asked) {
        true => kind == BackendKind::Cpu,
        false => caps.is_called(asked),
    }
}

/// A device as its driver lists it, except what is tried on the device: images, which some drivers
/// list but cannot make, and NaN and infinities. `name` is unique.
fn listed(kind: BackendKind, name: &str, caps: Caps, store: Option<&Store>) -> Row {
    let mut row = Row::from(caps);
    match devices::open(kind, &OpenOptions::of(Some(name))) {
        Ok(mut opened) => {
            row.images = opened.caps().profile.images;
            row.keeps_special = special::keeps(opened.as_mut(), store);
        }
        Err(e) => {
            row.images = Images::default();
            let why = format!("{} cannot be opened: {e}", row.device);
            note(&why);
        }
    }
    row
}

/// A device with its measurements. `name` is unique.
fn probed(kind: BackendKind, name: &str, caps: Caps, store: Option<&Store>) -> Row {
    let mut row = Row::from(caps.clone());
    match measured(kind, name, &caps, store) {
        Ok((opened, extensions, probe)) => {
            row.images = opened.profile.images;
            row.keeps_special = opened.profile.keeps_special;
            row.extensions = Some(extensions);
            row.probe = Some(probe);
        }
        Err(e) => row.not_probed = Some(e.chain()),
    }
    row
}

/// The opened device, its extensions, and its measurements, which are saved.
fn measured(
    kind: BackendKind,
    name: &str,
    caps: &Caps,
    store: Option<&Store>,
) -> Result<(Caps, Vec<String>, Probe)> {
    let failed = |e| Error::device(Stage::Run, format!("opening {}", caps.device), e);
    let mut backend = devices::open(kind, &OpenOptions::of(Some(name))).map_err(failed)?;
    note(&format!("measuring {}", caps.device));
    let keeps_special = special::keeps(backend.as_mut(), store);
    let probe = probe::measure(backend.as_mut());
    let probe = probe.map_err(|e| Error::device(Stage::Run, format!("measuring {}", caps.device), e))?;
    let kept = store::save(store, backend.caps(), &probe);
    note(&kept);
    let caps = backend.caps().clone();
    let caps = caps.with(|device| device.keeps_special = keeps_special);
    Ok((caps, backend.extensions(), probe))
}

/// A name and a text for each measurement.
fn probe_lines(probe: &Probe) -> Vec<(&'static str, String)> {
    let rate = |value: Option<f64>, field: &str, unit: &str| match (value, probe.not_measured.get(field)) {
        (Some(v), _) => quantity(v, unit),
        (None, Some(why)) => why.clone(),
        (None, None) => "not measured".to_owned(),
    };
    vec![
        ("copy", quantity(probe.copy_bytes_per_s, "B/s")),
        ("read, buffers", quantity(probe.read_bytes_per_s, "B/s")),
        (
            "read, images",
            rate(probe.image_bytes_per_s, "image_bytes_per_s", "B/s"),
        ),
        ("f32", quantity(probe.f32_flops_per_s, "FLOP/s")),
        ("f16", rate(probe.f16_flops_per_s, "f16_flops_per_s", "FLOP/s")),
        (
            "int8 dot products",
            rate(probe.int8_ops_per_s, "int8_ops_per_s", "OP/s"),
        ),
        (
            "int16 dot products",
            rate(probe.int16_ops_per_s, "int16_ops_per_s", "OP/s"),
        ),
        (
            "tensor cores",
            rate(probe.matrix_flops_per_s, "matrix_flops_per_s", "FLOP/s"),
        ),
        (
            "launch",
            format!(
                "{}, by the {}'s clock",
                quantity(probe.launch_s, "s"),
                probe.clock
            ),
        ),
    ]
}

/// The kinds of images made from buffers, with their limits.
fn kinds(images: &Images) -> Option<String> {
    let kinds = ImageKind::ALL.into_iter().filter(|kind| images.offers(*kind));
    let each = kinds.map(|kind| match kind {
        ImageKind::Image1dBuffer => format!("{kind} up to {} pixels", images.max_pixels),
        ImageKind::Image2d => format!("{kind} up to {ROW_PIXELS} x {} pixels", images.max_rows),
    });
    let mut all = each.collect::<Vec<_>>().join(", ");
    if let Some(kind) = images.reads {
        all += &format!("; matmuls read {kind}");
    }
    (!all.is_empty()).then_some(all)
}

/// What is wrong with a quarantined kernel, and since when.
fn quarantined_text(q: &Quarantined, now: SystemTime) -> String {
    let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let age = age_text(now.as_secs().saturating_sub(q.since));
    format!("{} {} (found {age} ago)", q.variant, q.why)
}

impl Report {
    fn add_quarantined(&mut self, lists: &[DeviceQuarantine]) {
        for row in &mut self.devices {
            let own = lists
                .iter()
                .find(|l| l.backend == row.backend && l.device == row.device && l.driver == row.driver);
            row.quarantined = own.map(|l| l.kernels.clone()).unwrap_or_default();
        }
    }

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
                ("memory", row.memory_bytes.map(size_text)),
                ("largest buffer", row.max_buffer_bytes.map(size_text)),
                ("largest view", row.max_view_bytes.map(size_text)),
                ("view alignment", row.view_align.map(size_text)),
                ("largest work-group", row.max_workgroup.map(|n| n.to_string())),
                ("local memory", row.local_bytes.map(|n| size_text(n.into()))),
                ("compute units", row.units.map(|n| n.to_string())),
                ("subgroup size", row.subgroup.map(|n| n.to_string())),
                ("images from buffers", kinds(&row.images)),
            ];
            for (name, value) in lines {
                if let Some(value) = value {
                    let _ok = writeln!(out, "  {name}: {value}");
                }
            }
            if let Some(keeps) = row.keeps_special {
                let kept = if keeps { "kept" } else { "not kept by the driver" };
                let _ok = writeln!(out, "  NaN and infinities: {kept}");
            }
            if row.backend != BackendChoice::Reference.name() {
                let _ok = writeln!(
                    out,
                    "  f16 arithmetic: {}",
                    if row.f16_math { "yes" } else { "no" }
                );
            }
            for refused in &row.refused {
                let _ok = writeln!(out, "  listed by the driver but refused: {refused}");
            }
            for q in &row.quarantined {
                let _ok = writeln!(out, "  quarantined: {}", quarantined_text(q, SystemTime::now()));
            }
            if let Some(extensions) = &row.extensions {
                let _ok = writeln!(out, "  extensions: {} (--json lists them)", extensions.len());
            }
            for (name, value) in row.probe.iter().flat_map(probe_lines) {
                let _ok = writeln!(out, "  measured {name}: {value}");
            }
            if let Some(warning) = row.probe.as_ref().and_then(Probe::warning) {
                let _ok = writeln!(out, "  warning: {warning}");
            }
            if let Some(why) = &row.not_probed {
                let _ok = writeln!(out, "  not measured: {why}");
            }
        }
        for absent in &self.absent {
            let _ok = writeln!(out, "{}: no device: {}", absent.backend, absent.why);
        }
        out
    }
}

pub fn run(args: &Args) -> Result<()> {
    let options = CacheOptions {
        cache_dir: args.cache_dir.clone(),
        ..CacheOptions::default()
    };
    let store = match args.probe {
        true => options.probes(),
        false => store_in(args.cache_dir.as_ref(), DEFAULT_LIMIT),
    };
    let row: &dyn Fn(BackendKind, &str, Caps) -> Row = if args.probe {
        &|kind, name, caps| probed(kind, name, caps, store.as_ref())
    } else {
        &|kind, name, caps| listed(kind, name, caps, store.as_ref())
    };
    let mut report = report(devices::list, args.device.as_deref(), row)?;
    match store.as_ref().map_or_else(|| Ok(Vec::new()), Store::quarantined) {
        Ok(lists) => report.add_quarantined(&lists),
        Err(e) => note(&e.chain()),
    }
    print_report(args.json, &report, || report.text())
}

#[cfg(test)]
mod tests {
    use super::*;
    use transformer_lite::unstable::backend::{DeviceProfile, QuarantineCause, validation};

    fn caps() -> Caps {
        Caps {
            backend: "wgpu",
            device: "Card".to_owned(),
            driver: "drv 1".to_owned(),
            kind: DeviceKind::Discrete,
            profile: DeviceProfile {
                view_align: 32,
                max_view_bytes: (2 << 30) - 4,
                local_bytes: 48 << 10,
                fast_local: true,
                subgroup: Some(32),
                f16_math: true,
                ..DeviceProfile::generic_gpu()
            },
            max_buffer_bytes: 4 << 30,
            profiling: true,
            ..Caps::generic_gpu()
        }
    }

    fn lists(kind: BackendKind) -> Result<Vec<Caps>, BackendError> {
        match kind {
            BackendKind::OpenCl => Err(BackendError::NoDriver {
                backend: "opencl",
                why: "no library".to_owned(),
            }),
            BackendKind::Wgpu => Ok(vec![caps()]),
            BackendKind::Cpu => Ok(Vec::new()),
        }
    }

    /// The values of the indented lines of a text by name, for its first device.
    fn values(text: &str) -> Vec<(&str, &str)> {
        let lines = text.lines().skip(1).take_while(|l| l.starts_with("  "));
        lines.map(|l| l.trim().split_once(": ").unwrap()).collect()
    }

    #[test]
    fn text_has_a_line_for_each_known_value() {
        let text = report(lists, None, &|_, _, caps| caps.into()).unwrap().text();
        assert!(text.starts_with("wgpu: Card\n"), "{text}");
        let found: Vec<&str> = values(&text).into_iter().map(|(_, value)| value).collect();
        let known = [
            "drv 1",
            "discrete GPU",
            "4.3 GB",
            "2.1 GB",
            "32 B",
            "1024",
            "49.2 kB",
            "32",
            "yes",
        ];
        assert_eq!(found, known);
        let starts: Vec<&str> = text.lines().filter(|l| !l.starts_with(' ')).collect();
        let names: Vec<&str> = starts.iter().filter_map(|l| l.split(": ").next()).collect();
        assert_eq!(names, ["wgpu", "reference", "opencl", "cpu"]);
    }

    #[test]
    fn kinds_of_images_have_their_limits() {
        let mut images = Images {
            max_pixels: 4096,
            max_rows: 16,
            ..Images::default()
        };
        let both = kinds(&images).unwrap();
        for part in ["image1d_buffer_t", "4096", "image2d_t", "256 x 16"] {
            assert!(both.contains(part), "{both}");
        }
        images.reads = Some(ImageKind::Image1dBuffer);
        let used = kinds(&images).unwrap();
        assert!(
            used.starts_with(&both) && used.ends_with("image1d_buffer_t"),
            "{used}"
        );
        images.reads = None;
        images = images.without(ImageKind::Image2d);
        assert!(!kinds(&images).unwrap().contains("image2d_t"));
        assert_eq!(kinds(&Images::default()), None);
    }

    #[test]
    fn json_has_null_for_what_is_unknown() {
        let json = serde_json::to_value(report(lists, None, &|_, _, caps| caps.into()).unwrap()).unwrap();
        assert_eq!(json["devices"][0]["backend"], "wgpu");
        assert_eq!(json["devices"][0]["kind"], "discrete");
        assert!(json["devices"][0]["memory_bytes"].is_null());
        assert_eq!(json["devices"][1]["backend"], "reference");
        assert_eq!(
            json["absent"][0],
            serde_json::json!({"backend": "opencl", "why": "no library"})
        );
    }

    #[test]
    fn a_probe_has_a_line_for_each_rate_or_the_reason() {
        let probe = Probe {
            version: probe::VERSION,
            backend: "opencl".to_owned(),
            device: "Card".to_owned(),
            driver: "drv 1".to_owned(),
            copy_bytes_per_s: 4.3e12,
            read_bytes_per_s: 4.4e12,
            image_bytes_per_s: None,
            f32_flops_per_s: 60e12,
            f16_flops_per_s: Some(1e12),
            int8_ops_per_s: None,
            int16_ops_per_s: None,
            matrix_flops_per_s: None,
            launch_s: 4.1e-6,
            clock: "device".to_owned(),
            not_measured: [("int8_ops_per_s".to_owned(), "not offered: none".to_owned())].into(),
            unsteady: [("f32_flops_per_s".to_owned(), 0.25)].into(),
        };
        let row = |_, _: &str, caps: Caps| Row {
            probe: Some(probe.clone()),
            extensions: Some(vec!["cl_a".to_owned(), "cl_b".to_owned()]),
            ..Row::from(caps)
        };
        let text = report(lists, None, &row).unwrap().text();
        let values = values(&text);
        for value in ["2 (--json lists them)", "4.30 TB/s", "not offered: none"] {
            assert!(
                values.iter().any(|(_, found)| *found == value),
                "{value} in {text}"
            );
        }
        assert!(text.contains("4.10 µs") && text.contains("25 %"), "{text}");
        let json = serde_json::to_value(report(lists, None, &row).unwrap()).unwrap();
        assert_eq!(json["devices"][0]["probe"]["read_bytes_per_s"], 4.4e12);
        assert!(json["devices"][1].get("probe").is_none());
    }

    #[test]
    fn quarantined_kernels_are_listed_with_their_device() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().to_owned(), DEFAULT_LIMIT);
        let kernel = transformer_lite::unstable::probe::KERNELS[0];
        let mut found = Quarantined::new(kernel, "probe_copy", QuarantineCause::DoesNotBuild, "fails");
        found.since -= 3 * 86_400;
        validation::store_quarantined(&store, &caps(), std::slice::from_ref(&found));
        let other = Caps {
            driver: "drv 2".to_owned(),
            ..caps()
        };
        let lists = |kind| match kind {
            BackendKind::OpenCl => Ok(Vec::new()),
            BackendKind::Wgpu => Ok(vec![caps(), other.clone()]),
            BackendKind::Cpu => Ok(Vec::new()),
        };
        let mut report = report(lists, None, &|_, _, caps| caps.into()).unwrap();
        report.add_quarantined(&store.quarantined().unwrap());
        let all: Vec<usize> = report.devices.iter().map(|d| d.quarantined.len()).collect();
        assert_eq!(all, [1, 0, 0]);
        let text = report.text();
        let line = values(&text).into_iter().find(|(name, _)| *name == "quarantined");
        let line = line.unwrap().1;
        assert!(line.starts_with("probe_copy") && line.contains("3 d"), "{line}");
        let json = serde_json::to_value(&report).unwrap();
        let row = &json["devices"][0]["quarantined"][0];
        assert_eq!(
            (&row["cause"], &row["since"]),
            (&"does-not-build".into(), &found.since.into())
        );
    }

    #[test]
    fn a_driver_without_devices_is_absent() {
        let report = report(|_| Ok(Vec::new()), None, &|_, _, caps| caps.into()).unwrap();
        assert_eq!((report.devices.len(), report.absent.len()), (1, 3));
    }

    #[test]
    fn a_filter_leaves_out_what_is_called_otherwise() {
        let two = |kind| match kind {
            BackendKind::OpenCl => Ok(vec![Caps {
                device: "Other".to_owned(),
                ..caps()
            }]),
            BackendKind::Wgpu => Ok(vec![caps(), caps()]),
            BackendKind::Cpu => Ok(vec![Caps {
                device: "Processor".to_owned(),
                ..caps()
            }]),
        };
        let names = std::cell::RefCell::new(Vec::new());
        let row = |_, name: &str, caps: Caps| {
            names.borrow_mut().push(name.to_owned());
            Row::from(caps)
        };
        let found = report(two, Some("card"), &row).unwrap();
        assert_eq!((found.devices.len(), found.absent.len()), (2, 0), "{found:?}");
        assert!(found.devices.iter().all(|d| d.device == "Card"), "{found:?}");
        assert_eq!(names.into_inner(), ["Card#1", "Card#2"]);
        let interpreter = report(lists, Some("threads"), &|_, _, caps| caps.into()).unwrap();
        assert_eq!((interpreter.devices.len(), interpreter.absent.len()), (1, 2));
        let e = report(two, Some("none such"), &|_, _, caps| caps.into()).unwrap_err();
        assert!(e.is_usage());
        assert!(
            ["none such", "Other", "Card"]
                .iter()
                .all(|n| e.to_string().contains(n)),
            "{e}"
        );
    }
}
