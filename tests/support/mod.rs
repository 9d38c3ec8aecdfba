//! What the integration tests share: the devices of this machine, which of them must be there, and
//! a backend that several executors use one after another.

pub mod browser;
pub mod faulty;
pub mod gguf;
pub mod hugging_face;
pub mod llm;
mod not_tested;
pub mod onnx;
mod shared;
pub mod suite;
pub mod tiny;
pub mod values;

pub use not_tested::{not_tested, required};
pub use shared::{Guards, Shared, Traffic};
pub use values::*;

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use transformer_lite::unstable::backend::KernelCode;
use transformer_lite::unstable::backend::isa::Isa;
use transformer_lite::unstable::backend::kernel::Language;
use transformer_lite::unstable::backend::{self, Backend, BackendError, BackendKind, Caps, DeviceKind};
use transformer_lite::unstable::devices;

use transformer_lite::unstable::cache::FOLDER_VARIABLE;
use transformer_lite_convert::models;

// For `gguf`, which the library's own tests include too.
use transformer_lite::unstable::error::{self, Error, ErrorKind, Result};
use transformer_lite_convert::gguf::{Array, GgmlType, Gguf, Value};

/// Result of a trial.
pub type Outcome = Result<(), String>;

/// Any displayable error as a trial's.
pub trait Text<T> {
    /// The error as text.
    fn text(self) -> Result<T, String>;
}

impl<T, E: std::fmt::Display> Text<T> for std::result::Result<T, E> {
    fn text(self) -> std::result::Result<T, String> {
        self.map_err(|e| e.to_string())
    }
}

/// An error unless `e` is of this kind and carries each of `values`.
pub fn refusal(e: &Error, kind: ErrorKind, values: &[&str]) -> Outcome {
    let said = e.chain();
    match values.iter().find(|v| !carries(&said, v)) {
        _ if e.kind() != kind => Err(format!("{kind:?} expected, found {:?}: {said}", e.kind())),
        Some(value) => Err(format!("expected {value:?} in: {said}")),
        None => Ok(()),
    }
}

/// An error, with the place of the call, unless both are equal.
#[track_caller]
pub fn equal<T: PartialEq + std::fmt::Debug>(found: &T, wanted: &T) -> Outcome {
    if found == wanted {
        return Ok(());
    }
    let place = std::panic::Location::caller();
    Err(format!("{place}: found {found:?}, wanted {wanted:?}"))
}

/// How much is tested, in rising order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Plain `cargo test`.
    Quick,
    /// `tools/test.sh`, before a change lands.
    Ci,
    /// `tools/nightly.sh`.
    Nightly,
}

impl Tier {
    /// What `TLITE_TESTS` names.
    pub fn of_environment() -> Self {
        match std::env::var("TLITE_TESTS").as_deref() {
            Err(_) => Self::Quick,
            Ok("ci") => Self::Ci,
            Ok("nightly") => Self::Nightly,
            Ok(other) => panic!("TLITE_TESTS is {other:?}; expected ci or nightly"),
        }
    }

    /// Step through a list of things to test: 1 in this tier and above, `sparse` below.
    pub fn step(self, sparse: usize) -> usize {
        if Self::of_environment() < self { sparse } else { 1 }
    }
}

/// Shows errors of the command as the library has them, on a line of their own, see [`Failure`].
pub const LOG: &str = "error,transformer_lite=warn,transformer_lite::error=debug";

/// What a command that failed wrote to standard error.
pub struct Failure {
    /// For people.
    pub message: String,
    /// The error in Rust's notation, with its variants and fields; empty where the command line
    /// could not be read.
    pub error: String,
}

impl Failure {
    fn of(output: &Output) -> Self {
        let text = String::from_utf8(output.stderr.clone()).unwrap();
        let shown = |line: &&str| carries(line, "DEBUG") && carries(line, "transformer_lite::error");
        let (error, message): (Vec<&str>, Vec<&str>) = text.lines().partition(shown);
        Self {
            message: message.join("\n"),
            error: error.join("\n"),
        }
    }
}

/// Fails unless the command has ended with `code`, nothing on standard output, and an error whose
/// message carries each of `values`.
#[track_caller]
pub fn assert_failed(args: &[&str], output: &Output, code: i32, values: &[&str]) -> Failure {
    let failure = Failure::of(output);
    let text = &failure.message;
    assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
    assert!(output.stdout.is_empty(), "{args:?} wrote to standard output");
    let errors = text.lines().filter(|l| l.starts_with("error: "));
    assert_eq!(errors.count(), 1, "{args:?}: {text}");
    for value in values {
        assert!(carries(text, value), "{args:?}: expected {value:?} in: {text}");
    }
    failure
}

/// Fails unless the command ended with `code` and one line beside notes, which carries each of
/// `values`, and with an error of this variant.
#[track_caller]
pub fn failed_in_a_line(output: &Output, code: i32, variant: &str, values: &[&str]) {
    let failure = assert_failed(&[], output, code, values);
    let lines = failure.message.lines().filter(|l| !l.starts_with("note: "));
    assert_eq!(lines.count(), 1, "{}", failure.message);
    assert!(failure.error.contains(variant), "{variant}: {}", failure.error);
}

/// Options with which `tlite generate` adds two tokens to a model of made-up weights.
pub const TWO_TOKENS: [&str; 9] = [
    "--backend",
    "reference",
    "--raw",
    "--prompt",
    "hello",
    "--max-tokens",
    "2",
    "--temperature",
    "0",
];

/// Runs a command that must fail as [`assert_failed`] says.
#[track_caller]
pub fn assert_fails(args: &[&str], code: i32, values: &[&str]) -> Failure {
    let output = command()
        .args(args)
        .env("RUST_LOG", LOG)
        .stdin(Stdio::null())
        .output();
    assert_failed(args, &output.unwrap(), code, values)
}

/// The root of the repository, for files of tests.
pub const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The folder of the build that this test belongs to, such as `target/release`.
fn build_folder() -> PathBuf {
    let test = std::env::current_exe().expect("the path of the test");
    let folder = test
        .parent()
        .and_then(Path::parent)
        .expect("a test lies in `deps`");
    folder.to_owned()
}

/// A folder for what tests write, the same for all of them.
pub fn temporary_folder() -> PathBuf {
    let folder = build_folder()
        .parent()
        .expect("a build lies in `target`")
        .join("tmp");
    std::fs::create_dir_all(&folder).expect("a folder for what tests write");
    folder
}

/// The built command, with a cache and a models folder of its own in place of the user's. Only for
/// tests of the package `tlite`: for others, nothing builds the command.
pub fn command() -> std::process::Command {
    let name = format!("tlite{}", std::env::consts::EXE_SUFFIX);
    let mut command = std::process::Command::new(build_folder().join(name));
    command.env(FOLDER_VARIABLE, temporary_folder().join("cache"));
    command.env(models::FOLDER_VARIABLE, temporary_folder().join("models"));
    command
}

/// Runs the built command to its end, without standard input.
pub fn tlite(args: &[&str]) -> Output {
    command().args(args).stdin(Stdio::null()).output().unwrap()
}

/// Runs the built command with at most `kilobytes` of address space. After two minutes it is ended,
/// with status 124.
#[cfg(target_os = "linux")]
pub fn bounded(kilobytes: u32, args: &[&str]) -> Output {
    let built = command();
    let script = format!("ulimit -v {kilobytes} && exec timeout -k 5 120 \"$0\" \"$@\"");
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &script]).arg(built.get_program()).args(args);
    let variables = built.get_envs().filter_map(|(name, value)| Some((name, value?)));
    shell.envs(variables).env("RUST_LOG", LOG).stdin(Stdio::null());
    shell.output().expect("a shell")
}

pub use transformer_lite::unstable::validate::case::POISON;
use transformer_lite::unstable::validate::case::{Bench, Guards as Guard};

/// A backend that has no device here.
pub struct Missing {
    /// `opencl` or `wgpu`, or an unknown name in `REQUIRE_BACKENDS`.
    pub backend: String,
    /// The driver's or our words.
    pub why: String,
}

impl Missing {
    /// True when `REQUIRE_BACKENDS` names it.
    pub fn is_required(&self) -> bool {
        required().contains(&self.backend)
    }
}

/// All devices of all backends, and the backends that have none, those that `REQUIRE_BACKENDS` asks
/// for included.
pub fn devices() -> (Vec<Device>, Vec<Missing>) {
    let (mut found, mut missing): (Vec<Device>, Vec<Missing>) = (Vec::new(), Vec::new());
    for kind in BackendKind::compiled() {
        let before = found.len();
        let mut why = "the driver lists no device".to_owned();
        match devices::list(kind) {
            Err(e) => why = e.to_string(),
            Ok(all) => {
                for caps in all {
                    if found[before..].iter().any(|d| d.caps.device == caps.device) {
                        continue;
                    }
                    // The first of its name.
                    let name = format!("{}#1", caps.device);
                    match Device::open(kind, backend::OpenOptions::of(Some(&name))) {
                        Ok(device) => found.push(device),
                        Err(e) => missing.push(Missing {
                            backend: kind.to_string(),
                            why: format!("{}: {e}", caps.device),
                        }),
                    }
                }
            }
        }
        if found.len() == before && !missing.iter().any(|m| m.backend == kind.to_string()) {
            missing.push(Missing {
                backend: kind.to_string(),
                why,
            });
        }
    }
    for name in required() {
        let known = BackendKind::compiled().any(|k| k.to_string() == name);
        if !known {
            missing.push(Missing {
                backend: name,
                why: "not in this build".to_owned(),
            });
        }
    }
    (found, missing)
}

/// The processor with each instruction set below its best one.
pub fn lower_instruction_sets() -> Vec<Device> {
    let lower = Isa::supported().filter(|isa| *isa != Isa::best());
    let opened = lower.filter_map(|isa| {
        let options = backend::OpenOptions {
            isa: Some(isa),
            ..backend::OpenOptions::default()
        };
        Device::open(BackendKind::Cpu, options).ok()
    });
    opened.collect()
}

/// As [`devices`], for tests without a trial for each device: what is missing is written to
/// standard error, or fails the test where `REQUIRE_BACKENDS` names it.
pub fn present() -> Vec<Device> {
    let (found, missing) = devices();
    for m in missing {
        assert!(
            !m.is_required(),
            "REQUIRE_BACKENDS names {}: {}",
            m.backend,
            m.why
        );
        not_tested(&format!("no device for backend {}: {}", m.backend, m.why));
    }
    found
}

/// A device opened for all tests of a program.
#[derive(Clone)]
pub struct Device {
    pub kind: BackendKind,
    pub caps: Caps,
    options: backend::OpenOptions,
    seats: Arc<[Seat; 2]>,
}

/// A backend of a device. Drivers compile on one core, so tests on two threads have a backend each.
#[derive(Default)]
struct Seat {
    /// Opened when it is first used.
    backend: OnceLock<Arc<Mutex<Box<dyn Backend>>>>,
    turn: Mutex<()>,
}

thread_local! {
    /// Counts the threads that use devices.
    static THREAD: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed)
    };
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    // A failed test leaves nothing half done that the next one would see: each has buffers of its
    // own.
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Device {
    fn open(kind: BackendKind, options: backend::OpenOptions) -> Result<Self, BackendError> {
        let backend = devices::open(kind, &options)?;
        let caps = backend.caps().clone();
        let [first, second]: [Seat; 2] = Default::default();
        first.backend.get_or_init(|| Arc::new(Mutex::new(backend)));
        Ok(Self {
            kind,
            caps,
            options,
            seats: Arc::new([first, second]),
        })
    }

    /// The backend of this thread.
    fn seat(&self) -> &Seat {
        &self.seats[THREAD.with(|n| n % self.seats.len())]
    }

    /// Tier of long trials that run on another backend too: drivers for wgpu are the slowest.
    pub fn tier_of_long_trials(&self) -> Tier {
        match self.kind {
            BackendKind::Wgpu => Tier::Nightly,
            BackendKind::OpenCl | BackendKind::Cpu => Tier::Quick,
        }
    }

    /// Its driver runs the kernels of GPUs on the processor. Below the nightly tier, tests that run
    /// whole models take shorter texts there.
    pub fn is_slow(&self) -> bool {
        let emulates = self.caps.kind == DeviceKind::Cpu && self.caps.profile.language().is_some();
        emulates && Tier::of_environment() < Tier::Nightly
    }

    /// Backend name, and the device's where the backend has several.
    pub fn label(&self, all: &[Self]) -> String {
        if all.iter().filter(|d| d.kind == self.kind).count() == 1 {
            self.kind.to_string()
        } else {
            // Processors differ by their instruction set.
            let name = match self.kind {
                BackendKind::Cpu => &self.caps.driver,
                BackendKind::OpenCl | BackendKind::Wgpu => &self.caps.device,
            };
            format!("{}:{}", self.kind, name.replace(' ', "_"))
        }
    }

    /// Waits for other tests on this thread's backend of the device, so that counters stand still.
    pub fn turn(&self) -> MutexGuard<'_, ()> {
        lock(&self.seat().turn)
    }

    /// A backend for one executor. Its buffers and recordings are freed with it.
    pub fn share(&self) -> Shared {
        let open = || {
            let opened = devices::open(self.kind, &self.options);
            Arc::new(Mutex::new(opened.expect("the device was opened before")))
        };
        Shared::new(self.seat().backend.get_or_init(open).clone(), self.caps.clone())
    }
}

impl Bench for Device {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn share(&self, align: u64) -> (Box<dyn Backend>, Guard) {
        let shared = Device::share(self).with_caps(|caps| caps.profile.view_align = align);
        let (shared, guards) = shared.guarded();
        (Box::new(shared), Box::new(move || guards.check()))
    }
}

/// Capabilities of a device that does not exist, for planning without a driver.
pub fn fake_caps() -> Caps {
    Caps::generic_gpu()
}

/// The same for a device of this kind, with kernels in this language.
pub fn fake_caps_of(language: Language, kind: DeviceKind) -> Caps {
    let backend = match language {
        Language::OpenClC => "opencl",
        Language::Wgsl => "wgpu",
    };
    let caps = Caps {
        backend,
        kind,
        ..fake_caps()
    };
    caps.with(|device| {
        device.code = KernelCode::Source(language);
        device.dedicated_memory = kind == DeviceKind::Discrete;
    })
}

/// The converted folder of a tiny random model; it lives as long as the returned value.
pub fn tiny_model(architecture: &str, traits: gguf::Traits) -> (tempfile::TempDir, PathBuf) {
    converted(&gguf::tiny(architecture, traits))
}

/// A tiny random model that says letters: the rows of all other tokens in its output matrix are
/// zero.
pub fn speaking_model() -> (tempfile::TempDir, PathBuf) {
    let traits = gguf::Traits {
        untied: true,
        ..gguf::Traits::default()
    };
    let mut file = gguf::tiny("llama", traits);
    let template = "{% if tools %}{{ tools[0] }}{% endif %}{% for m in messages %}\
        {% if m.content == 'refuse' %}{{ raise_exception('no') }}{% endif %}{{ m.name or '' }}{{ m.content }}{% endfor %}";
    file.set("tokenizer.chat_template", Value::String(template.to_owned()));
    let rows = &mut file.tensor("output.weight").data;
    for (token, row) in rows.chunks_exact_mut(4 * gguf::HIDDEN).enumerate() {
        // Behind three control tokens there is one for each byte.
        let byte = token.checked_sub(3).and_then(|b| u8::try_from(b).ok());
        if token < gguf::VOCAB && !byte.is_some_and(|b| b.is_ascii_lowercase()) {
            row.fill(0);
        }
    }
    converted(&file)
}

/// The model of a GGUF file, converted.
pub fn converted(model: &gguf::File) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a folder for temporary files");
    let file = dir.path().join("tiny.gguf");
    std::fs::write(&file, model.bytes()).expect("room for a tiny model");
    let out = dir.path().join("onnx");
    transformer_lite_convert::gguf::convert(&file, &out, false, &mut |_| {})
        .expect("the tiny model converts");
    (dir, out)
}
