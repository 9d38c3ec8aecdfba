//! Selects the backend and the device that run a model.
#![warn(missing_docs)]

use crate::backend::{
    self, Backend, BackendError, BackendKind, Caps, DeviceKind, ImageUse, OpenOptions, Priority, ReplayMode,
};
use crate::devices;
use crate::error::{Error, ErrorKind, Result, Stage};
use crate::note::{Note, Unused};
use std::fmt;
use std::str::FromStr;

/// Backend that runs a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendChoice {
    /// The first of [`BackendKind::ALL`] with a GPU, else the processor, else the interpreter.
    #[default]
    Auto,
    /// This backend.
    On(BackendKind),
    /// The interpreter on the CPU: a slow reference.
    Reference,
}

impl BackendChoice {
    /// All of them.
    pub const ALL: [Self; 2 + BackendKind::ALL.len()] = {
        let mut all = [Self::Auto; 2 + BackendKind::ALL.len()];
        let mut i = 0;
        while i < BackendKind::ALL.len() {
            all[1 + i] = Self::On(BackendKind::ALL[i]);
            i += 1;
        }
        all[1 + i] = Self::Reference;
        all
    };

    /// The name used by options.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::On(kind) => kind.name(),
            Self::Reference => "reference",
        }
    }

    /// Other names, which options accept too.
    pub fn aliases(self) -> &'static [&'static str] {
        match self {
            Self::Auto => &[],
            Self::On(kind) => kind.aliases(),
            Self::Reference => &["host"],
        }
    }
}

impl fmt::Display for BackendChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for BackendChoice {
    type Err = Error;

    /// The backend of this name, which may be one of [`BackendChoice::aliases`].
    fn from_str(text: &str) -> Result<Self> {
        let alias = Self::ALL.into_iter().find(|one| one.aliases().contains(&text));
        alias.map_or_else(|| named("backend", Self::ALL, Self::name, text), Ok)
    }
}

/// The value whose name is `text`; a usage error of option `what` if there is none.
fn named<T: Copy, const N: usize>(
    what: &str,
    all: [T; N],
    name: fn(T) -> &'static str,
    text: &str,
) -> Result<T> {
    let found = all.into_iter().find(|one| name(*one) == text);
    found.ok_or_else(|| {
        let known = all.map(name).join(", ");
        Error::usage(what, format!("\"{text}\" is not valid; expected one of {known}"))
    })
}

impl FromStr for Priority {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        named("priority", Self::ALL, Self::name, text)
    }
}

impl FromStr for ImageUse {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        named("images", Self::ALL, Self::name, text)
    }
}

impl FromStr for ReplayMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        named("recording", Self::ALL, Self::name, text)
    }
}

/// A backend and one of its devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// The backend.
    pub backend: BackendChoice,
    /// Which device, and how to open it.
    pub options: OpenOptions,
}

/// A value of an option that the backend `reference` does not support.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceOnly {
    option: &'static str,
    value: &'static str,
    /// What the interpreter does instead.
    instead: &'static str,
}

impl DeviceOnly {
    /// Halves as activations.
    pub const F16: Self = Self {
        option: "float",
        value: "f16",
        instead: "keeps the model's own types",
    };
    /// A KV cache of 8 bits.
    pub const Q8: Self = Self {
        option: "kv",
        value: "q8",
        instead: "keeps the model's own types",
    };
    /// Activations of 8 bits.
    pub const INT8: Self = Self {
        option: "act",
        value: "int8",
        instead: "multiplies floats",
    };

    /// Activations of 16 bits.
    pub const INT16: Self = Self {
        option: "act",
        value: "int16",
        instead: "multiplies floats",
    };

    /// The usage error if the backend `reference` was requested.
    pub fn refusal(&self) -> Error {
        let what = format!(
            "{} applies to devices only; the reference interpreter {}",
            self.value, self.instead
        );
        Error::usage(self.option, what)
    }

    /// The usage error for halves as activations of native kernels.
    pub(crate) fn halves_on_native() -> Error {
        let what =
            "f16: the cpu backend stores activations as f32, and a KV cache as f16; leave this option out";
        Error::usage("float", what)
    }

    /// The note if the interpreter is used because there is no device.
    pub fn note(&self) -> Note {
        Note::NoEffect {
            option: self.option,
            value: self.value.to_owned(),
            reason: Unused::Reference,
        }
    }
}

/// The result of [`Placement::open`].
pub enum Opened {
    /// A device, open for work.
    Device(Box<dyn Backend>),
    /// The interpreter.
    Reference {
        /// Why the interpreter runs the model although it was not requested: the reasons no backend
        /// has a device.
        for_want: Option<String>,
    },
}

/// Whether the device name `text` stands for the CPU backend.
pub fn names_cpu(text: &str) -> bool {
    text.eq_ignore_ascii_case(BackendKind::Cpu.name())
}

impl Placement {
    /// This placement with the device `cpu` resolved, which names the backend.
    fn resolved(&self) -> Self {
        let cpu = BackendChoice::On(BackendKind::Cpu);
        let asks = self.options.device.as_deref().is_some_and(names_cpu);
        if !asks || !BackendKind::Cpu.is_compiled() || ![BackendChoice::Auto, cpu].contains(&self.backend) {
            return self.clone();
        }
        let options = OpenOptions {
            device: None,
            ..self.options.clone()
        };
        Self {
            backend: cpu,
            options,
        }
    }

    /// Opens the device. [`BackendChoice::Auto`] takes the first backend with a GPU, else the CPU
    /// backend; a driver that runs kernels on the CPU only if there is no CPU backend; and the
    /// interpreter only if there is none at all. The device `cpu` is the CPU backend. Usage errors:
    /// no driver, no such device, a device name for the interpreter, or an option that the device
    /// or its backend does not support.
    pub fn open(&self) -> Result<Opened> {
        self.resolved().open_resolved()
    }

    fn open_resolved(&self) -> Result<Opened> {
        let device = self.options.device.as_deref();
        let failed = |e| match e {
            e @ (BackendError::NoDevice { .. } | BackendError::FewDevices { .. }) => {
                no_device("device", e.to_string())
            }
            BackendError::NotOffered { field, why } => Error::usage(field, why),
            e @ BackendError::ManyDevices { .. } => Error::usage("device", e.to_string()),
            e @ BackendError::NoDriver { .. } => no_device("backend", e.to_string()),
            e => Error::device(Stage::Plan, "opening a device", e),
        };
        let open = |kind| {
            devices::open(kind, &self.options)
                .map(Opened::Device)
                .map_err(failed)
        };
        match (self.backend, self.options.only_on()) {
            (BackendChoice::Reference, only) => match (device, only) {
                (Some(name), _) => {
                    let what = format!(
                        "\"{name}\": the reference interpreter has no devices; leave this option out"
                    );
                    Err(Error::usage("device", what))
                }
                (None, Some((_, refusal))) => Err(failed(refusal)),
                (None, None) => Ok(Opened::Reference { for_want: None }),
            },
            (BackendChoice::On(kind), _) | (BackendChoice::Auto, Some((kind, _))) => open(kind),
            (BackendChoice::Auto, None) => {
                let mut reasons = Vec::new();
                let mut faults = Vec::new();
                let mut taken = None;
                for kind in BackendKind::compiled() {
                    let opened = self
                        .options_on(kind)
                        .and_then(|options| devices::open(kind, &options));
                    match opened {
                        Ok(b) if b.caps().kind != DeviceKind::Cpu => {
                            taken = Some(b);
                            break;
                        }
                        Ok(b) => taken = taken.or(Some(b)),
                        Err(e @ (BackendError::ManyDevices { .. } | BackendError::NotOffered { .. })) => {
                            return Err(failed(e));
                        }
                        Err(e) => {
                            if !e.is_absence() {
                                faults.push(reason(kind, &e));
                            }
                            reasons.push(reason(kind, &e));
                        }
                    }
                }
                if let (Some(on), false) = (&taken, faults.is_empty()) {
                    let (backend, device) = (on.caps().backend, &on.caps().device);
                    log::warn!(
                        "using {backend} on {device} because another backend failed to open: {}",
                        faults.join("; ")
                    );
                }
                match (taken, device) {
                    (Some(b), _) => Ok(Opened::Device(b)),
                    (None, Some(_)) => Err(self.no_such_device(&reasons)),
                    (None, None) => Ok(Opened::Reference {
                        for_want: Some(reasons.join("; ")),
                    }),
                }
            }
        }
    }

    /// Like [`Placement::open`], for work that needs a device. Without one it returns a usage
    /// error: `what` if the interpreter was requested, else why there is no device.
    pub fn open_device(&self, what: &str) -> Result<Box<dyn Backend>> {
        match self.open()? {
            Opened::Device(backend) => Ok(backend),
            Opened::Reference { for_want: None } => Err(Error::usage("backend", what)),
            Opened::Reference { for_want: Some(why) } => {
                Err(no_device("backend", format!("no device found: {why}")))
            }
        }
    }

    /// Notes for the user about the device that was opened; `caps` is `None` for the
    /// interpreter.
    pub fn notes(&self, caps: Option<&Caps>) -> Vec<Note> {
        let emulated = caps.filter(|caps| {
            let compiles = caps.profile.language().is_some();
            caps.kind == DeviceKind::Cpu && compiles && BackendKind::compiled().any(|k| k == BackendKind::Cpu)
        });
        let emulated = emulated.map(|caps| Note::GpuKernelsOnCpu {
            device: caps.device.clone(),
            backend: caps.backend,
        });
        let notes = self.priority_note(caps).into_iter();
        notes.chain(self.threads_note(caps)).chain(emulated).collect()
    }

    /// A note if a number of threads was requested that has no effect.
    fn threads_note(&self, caps: Option<&Caps>) -> Option<Note> {
        let reason = match caps {
            None => Unused::Reference,
            // Its kernels run on threads.
            Some(caps) if caps.profile.language().is_none() => return None,
            Some(caps) => Unused::NotOnCpu {
                device: caps.device.clone(),
            },
        };
        Some(Note::NoEffect {
            option: "threads",
            value: self.options.threads?.to_string(),
            reason,
        })
    }

    /// A note if a priority was requested that has no effect.
    fn priority_note(&self, caps: Option<&Caps>) -> Option<Note> {
        let priority = self.options.priority?;
        let unused = |reason| {
            Some(Note::NoEffect {
                option: "priority",
                value: priority.to_string(),
                reason,
            })
        };
        match caps {
            None => unused(Unused::Reference),
            Some(caps) if self.options.priority_is_unused(caps) => unused(Unused::Driver {
                device: caps.device.clone(),
                backend: caps.backend,
            }),
            Some(_) => None,
        }
    }

    /// The options that open a device of `kind` if no backend is named. Emulated GPUs do not count
    /// if there is a CPU backend.
    fn options_on(&self, kind: BackendKind) -> std::result::Result<OpenOptions, BackendError> {
        if kind == BackendKind::Cpu || !BackendKind::Cpu.is_compiled() {
            return Ok(self.options.clone());
        }
        // Opening a driver takes longer than listing its devices.
        let all = devices::list(kind)?;
        let gpus = backend::numbered(&all).filter(|(_, caps)| caps.kind != DeviceKind::Cpu);
        let (mut names, gpus): (Vec<String>, Vec<Caps>) =
            gpus.map(|(name, caps)| (name, caps.clone())).unzip();
        let chosen = backend::choose(&gpus, self.options.device.as_deref()).map_err(|e| match e {
            BackendError::NoDevice { asked, .. } => BackendError::NoDevice {
                asked,
                found: backend::names(&all.iter().collect::<Vec<_>>()),
            },
            e => e,
        })?;
        Ok(OpenOptions {
            device: Some(names.swap_remove(chosen)),
            ..self.options.clone()
        })
    }

    /// The error if no backend has the device, for these `reasons`.
    fn no_such_device(&self, reasons: &[String]) -> Error {
        let name = self.options.device.as_deref();
        let emulated = BackendKind::compiled().find_map(|kind| {
            let caps = devices::list(kind).and_then(|all| backend::pick(all, name));
            caps.ok().map(|caps| (kind, caps.device))
        });
        let what = match emulated {
            Some((kind, device)) => {
                format!("{device} emulates a GPU on the CPU; `--backend {kind}` is needed to use it")
            }
            None => reasons.join("; "),
        };
        no_device("device", what)
    }

    /// Capabilities of the device that [`Placement::open`] chooses, without opening it for work.
    pub fn caps(&self) -> Result<Caps> {
        self.resolved().caps_resolved()
    }

    fn caps_resolved(&self) -> Result<Caps> {
        let is_named = self.backend != BackendChoice::Auto;
        let kinds: Vec<BackendKind> = match (self.backend, self.options.only_on()) {
            (BackendChoice::On(kind), _) | (BackendChoice::Auto, Some((kind, _))) => vec![kind],
            (BackendChoice::Auto, None) => BackendKind::compiled().collect(),
            (BackendChoice::Reference, _) => {
                return Err(Error::usage(
                    "backend",
                    "the reference interpreter has no plan; choose another backend",
                ));
            }
        };
        let mut reasons = Vec::new();
        let mut taken = None;
        for kind in kinds {
            let options = match is_named {
                true => Ok(self.options.clone()),
                false => self.options_on(kind),
            };
            let found = options.and_then(|options| {
                devices::list(kind).and_then(|all| backend::pick(all, options.device.as_deref()))
            });
            match found {
                Ok(caps) if caps.kind != DeviceKind::Cpu => return Ok(caps),
                Ok(caps) => taken = taken.or(Some(caps)),
                Err(e) => reasons.push(reason(kind, &e)),
            }
        }
        if let Some(caps) = taken {
            return Ok(caps);
        }
        Err(match (&self.options.device, is_named) {
            (Some(_), false) => self.no_such_device(&reasons),
            (Some(_), true) => no_device("device", reasons.join("; ")),
            (None, _) => no_device("backend", reasons.join("; ")),
        })
    }
}

fn no_device(name: &str, what: String) -> Error {
    Error::usage(name, what).of_kind(ErrorKind::NoDevice)
}

/// The error of one backend, prefixed with its name.
fn reason(kind: BackendKind, e: &BackendError) -> String {
    match e {
        // The message already names the backend.
        BackendError::NoDriver { .. } => e.to_string(),
        _ => format!("{kind}: {e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_carries, assert_usage};

    #[test]
    fn names_are_read_as_they_are_written() {
        for choice in BackendChoice::ALL {
            assert_eq!(choice.to_string().parse::<BackendChoice>().unwrap(), choice);
        }
        for priority in Priority::ALL {
            assert_eq!(priority.to_string().parse::<Priority>().unwrap(), priority);
        }
        for images in ImageUse::ALL {
            assert_eq!(images.to_string().parse::<ImageUse>().unwrap(), images);
        }
        for way in ReplayMode::ALL {
            assert_eq!(way.to_string().parse::<ReplayMode>().unwrap(), way);
        }
        assert!("urgent".parse::<Priority>().is_err_and(|e| e.is_usage()));
        let e = "cuda".parse::<BackendChoice>().unwrap_err();
        assert_usage(&e, "backend", &["cuda", "auto, opencl, wgpu, cpu, reference"]);
        assert_eq!("host".parse::<BackendChoice>().unwrap(), BackendChoice::Reference);
        for alias in ["vulkan", "metal", "dx12"] {
            assert_eq!(
                alias.parse::<BackendChoice>().unwrap(),
                BackendChoice::On(BackendKind::Wgpu)
            );
        }
    }

    #[test]
    #[cfg(feature = "cpu")]
    fn device_cpu_is_the_backend() {
        let place = |backend, device| Placement {
            backend,
            options: OpenOptions::of(Some(device)),
        };
        let cpu = BackendChoice::On(BackendKind::Cpu);
        for backend in [BackendChoice::Auto, cpu] {
            for name in ["cpu", "CPU"] {
                assert_eq!(place(backend, name).caps().unwrap().backend, "cpu", "{name}");
            }
        }
        let gpu = BackendChoice::On(BackendKind::OpenCl);
        assert_eq!(place(gpu, "cpu").resolved(), place(gpu, "cpu"));
        let e = place(BackendChoice::Auto, "absent").caps().unwrap_err();
        assert_usage(&e, "device", &["absent"]);
        // A driver's version is not a name of a device.
        let e = place(BackendChoice::Auto, "tlite").open().map(drop).unwrap_err();
        assert_usage(&e, "device", &["tlite"]);
    }

    #[test]
    fn a_priority_without_effect_is_told() {
        let asked = |priority, caps: Option<&Caps>| {
            let options = OpenOptions {
                priority,
                ..OpenOptions::default()
            };
            let place = Placement {
                options,
                ..Placement::default()
            };
            place.priority_note(caps)
        };
        let without = Caps::generic_gpu();
        let with = Caps {
            priorities: true,
            ..Caps::generic_gpu()
        };
        for priority in [None, Some(Priority::Normal)] {
            assert_eq!(asked(priority, Some(&without)), None);
        }
        for priority in [Priority::Low, Priority::High] {
            assert_eq!(asked(Some(priority), Some(&with)), None);
            for caps in [Some(&without), None] {
                let note = asked(Some(priority), caps).unwrap();
                assert!(
                    matches!(&note, Note::NoEffect { option: "priority", value, .. } if *value == priority.to_string()),
                    "{note}"
                );
                assert_carries(&note, &[&format!("--priority {priority}")]);
            }
        }
    }

    #[test]
    #[cfg(feature = "cpu")]
    fn threads_select_no_backend_and_their_lack_of_effect_is_told() {
        let place = Placement {
            options: OpenOptions {
                threads: Some(1),
                ..OpenOptions::default()
            },
            ..Placement::default()
        };
        assert_eq!(place.options.only_on().map(|(kind, _)| kind), None);
        let [cpu] = devices::list(BackendKind::Cpu).unwrap().try_into().unwrap();
        assert_eq!(place.notes(Some(&cpu)), []);
        for caps in [Some(&Caps::generic_gpu()), None] {
            let [note] = place.notes(caps).try_into().unwrap();
            assert_carries(&note, &["--threads 1"]);
        }
        // A number that the processor lacks is an error, not a reason to use the interpreter.
        let too_many = Placement {
            backend: BackendChoice::Auto,
            options: OpenOptions {
                threads: Some(usize::MAX),
                ..OpenOptions::default()
            },
        };
        match too_many.open() {
            Err(e) => assert_usage(&e, "threads", &[&usize::MAX.to_string()]),
            Ok(Opened::Device(on)) => assert_ne!(on.caps().kind, DeviceKind::Cpu),
            Ok(Opened::Reference { .. }) => panic!("the interpreter"),
        }
    }

    #[test]
    #[cfg(feature = "cpu")]
    fn slow_drivers_are_told_and_the_cpu_backend_is_named() {
        let notes = |caps: &Caps| Placement::default().notes(Some(caps));
        let driver = Caps {
            kind: DeviceKind::Cpu,
            ..Caps::generic_gpu()
        };
        let [note] = notes(&driver).try_into().unwrap();
        assert_carries(&note, &["opencl", "--backend cpu"]);
        assert_eq!(notes(&Caps::generic_gpu()), []);
        let native = devices::list(BackendKind::Cpu).unwrap();
        assert!(native.iter().all(|caps| notes(caps).is_empty()));
        assert_eq!(Placement::default().notes(None), []);
    }

    #[test]
    fn the_interpreter_has_no_devices() {
        let reference = |device: Option<&str>| Placement {
            backend: BackendChoice::Reference,
            options: OpenOptions::of(device),
        };
        assert!(matches!(
            reference(None).open().unwrap(),
            Opened::Reference { for_want: None }
        ));
        assert!(reference(Some("x")).open().is_err_and(|e| e.is_usage()));
        assert!(reference(None).caps().is_err_and(|e| e.is_usage()));
        assert_eq!(no_device("device", "x".to_owned()).kind(), ErrorKind::NoDevice);
    }
}
