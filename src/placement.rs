//! Where a model runs: which backend, which device.

use crate::backend::{
    self, Backend, BackendError, BackendKind, Caps, DeviceKind, ImageUse, OpenOptions, Priority, RecordingWay,
};
use crate::error::{Error, ErrorKind, Result, Stage};
use std::fmt;
use std::str::FromStr;

/// What runs a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendChoice {
    /// OpenCL or wgpu, whichever has a GPU; else whichever has a device; else the host.
    #[default]
    Auto,
    /// OpenCL.
    Opencl,
    /// WGSL through wgpu.
    Wgpu,
    /// The interpreter on the CPU: slow, for comparison.
    Host,
}

impl BackendChoice {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Auto, Self::Opencl, Self::Wgpu, Self::Host];

    /// The name by which options call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Opencl => "opencl",
            Self::Wgpu => "wgpu",
            Self::Host => "host",
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

    fn from_str(text: &str) -> Result<Self> {
        named("backend", Self::ALL, Self::name, text)
    }
}

/// The one of `all` that is called `text`; a usage error of option `what` where there is none.
fn named<T: Copy, const N: usize>(
    what: &str,
    all: [T; N],
    name: fn(T) -> &'static str,
    text: &str,
) -> Result<T> {
    let found = all.into_iter().find(|one| name(*one) == text);
    found.ok_or_else(|| {
        let known = all.map(name).join(", ");
        Error::usage(what, format!("\"{text}\" is none of {known}"))
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

impl FromStr for RecordingWay {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        named("recording", Self::ALL, Self::name, text)
    }
}

/// A backend and a device of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// The backend.
    pub backend: BackendChoice,
    /// Which of its devices, and how it is opened.
    pub options: OpenOptions,
}

/// A place that was found.
pub enum Opened {
    /// A device, open for work.
    Device(Box<dyn Backend>),
    /// The interpreter.
    Host {
        /// Why no backend has a device, where it was not asked for.
        for_want: Option<String>,
    },
}

impl Placement {
    /// Opens the device. [`BackendChoice::Auto`] takes the first backend with a GPU, else the first with any device, and the host only
    /// when there is none. Usage errors: no such device, no driver, a device of the host, what the device
    /// or its backend does not offer.
    pub fn open(&self) -> Result<Opened> {
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
            backend::open(kind, &self.options)
                .map(Opened::Device)
                .map_err(failed)
        };
        match self.backend {
            BackendChoice::Host if device.is_some() => {
                Err(Error::usage("device", "the host has no devices to choose from"))
            }
            BackendChoice::Host => match self.options.for_opencl() {
                Some(refusal) => Err(failed(refusal)),
                None => Ok(Opened::Host { for_want: None }),
            },
            BackendChoice::Opencl => open(BackendKind::OpenCl),
            BackendChoice::Wgpu => open(BackendKind::Wgpu),
            // No other has these.
            BackendChoice::Auto if self.options.for_opencl().is_some() => open(BackendKind::OpenCl),
            BackendChoice::Auto => {
                let mut reasons = Vec::new();
                let mut faults = Vec::new();
                let mut taken = None;
                for kind in backend::COMPILED {
                    match backend::open(*kind, &self.options) {
                        Ok(b) if b.caps().kind != DeviceKind::Cpu => {
                            taken = Some(b);
                            break;
                        }
                        Ok(b) => taken = taken.or(Some(b)),
                        Err(e @ BackendError::ManyDevices { .. }) => return Err(failed(e)),
                        Err(e) => {
                            if !e.is_absence() {
                                faults.push(reason(*kind, &e));
                            }
                            reasons.push(reason(*kind, &e));
                        }
                    }
                }
                if let (Some(on), false) = (&taken, faults.is_empty()) {
                    let (backend, device) = (on.caps().backend, &on.caps().device);
                    log::warn!(
                        "using {backend} on {device}; another device cannot be opened: {}",
                        faults.join("; ")
                    );
                }
                match (taken, device) {
                    (Some(b), _) => Ok(Opened::Device(b)),
                    (None, Some(_)) => Err(no_device("device", reasons.join("; "))),
                    (None, None) => Ok(Opened::Host {
                        for_want: Some(reasons.join("; ")),
                    }),
                }
            }
        }
    }

    /// As [`Placement::open`] for what only a device can do: on the host a usage error, which says `what` it lacks where it was asked for, else why
    /// there is no device.
    pub fn open_device(&self, what: &str) -> Result<Box<dyn Backend>> {
        match self.open()? {
            Opened::Device(backend) => Ok(backend),
            Opened::Host { for_want: None } => Err(Error::usage("backend", what)),
            Opened::Host { for_want: Some(why) } => {
                Err(no_device("backend", format!("there is no device: {why}")))
            }
        }
    }

    /// A note for people where a priority is asked for that what was opened, a device with `caps` or the host, cannot have.
    pub fn priority_note(&self, caps: Option<&Caps>) -> Option<String> {
        let priority = self.options.priority?;
        let unused = |place: &str| Some(format!("--priority {priority} has no effect on {place}"));
        match caps {
            None => unused("the host"),
            Some(caps) if self.options.priority_is_unused(caps) => unused(&format!(
                "{}, whose {} driver takes none",
                caps.device, caps.backend
            )),
            Some(_) => None,
        }
    }

    /// Capabilities of the device, without opening it for work; `None` where none is named.
    pub fn caps(&self) -> Result<Option<Caps>> {
        let kinds: &[BackendKind] = match self.backend {
            BackendChoice::Auto if self.options.device.is_none() => return Ok(None),
            BackendChoice::Auto => backend::COMPILED,
            BackendChoice::Opencl => &[BackendKind::OpenCl],
            BackendChoice::Wgpu => &[BackendKind::Wgpu],
            BackendChoice::Host => {
                return Err(Error::usage(
                    "backend",
                    "the host has no plan; give opencl or wgpu, or nothing for a device that does not exist",
                ));
            }
        };
        let mut reasons = Vec::new();
        for kind in kinds {
            let found =
                backend::list(*kind).and_then(|all| backend::pick(all, self.options.device.as_deref()));
            match found {
                Ok(caps) => return Ok(Some(caps)),
                Err(e) => reasons.push(reason(*kind, &e)),
            }
        }
        let name = match self.options.device {
            Some(_) => "device",
            None => "backend",
        };
        Err(no_device(name, reasons.join("; ")))
    }
}

fn no_device(name: &str, what: String) -> Error {
    Error::usage(name, what).of_kind(ErrorKind::NoDevice)
}

/// The error of one of several backends.
fn reason(kind: BackendKind, e: &BackendError) -> String {
    match e {
        // It names its backend.
        BackendError::NoDriver { .. } => e.to_string(),
        _ => format!("{kind}: {e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for way in RecordingWay::ALL {
            assert_eq!(way.to_string().parse::<RecordingWay>().unwrap(), way);
        }
        assert!("urgent".parse::<Priority>().is_err_and(|e| e.is_usage()));
        let e = "cuda".parse::<BackendChoice>().unwrap_err();
        assert!(
            e.is_usage() && e.to_string().contains("auto, opencl, wgpu, host"),
            "{e}"
        );
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
        let without = Caps::neutral();
        let with = Caps {
            priorities: true,
            ..Caps::neutral()
        };
        for priority in [None, Some(Priority::Normal)] {
            assert_eq!(asked(priority, Some(&without)), None);
        }
        for priority in [Priority::Low, Priority::High] {
            assert_eq!(asked(Some(priority), Some(&with)), None);
            for caps in [Some(&without), None] {
                let note = asked(Some(priority), caps).unwrap();
                assert!(
                    note.contains(&format!("--priority {priority} has no effect")),
                    "{note}"
                );
            }
        }
    }

    #[test]
    fn the_host_has_no_devices() {
        let host = |device: Option<&str>| Placement {
            backend: BackendChoice::Host,
            options: OpenOptions::of(device),
        };
        assert!(matches!(
            host(None).open().unwrap(),
            Opened::Host { for_want: None }
        ));
        assert!(host(Some("x")).open().is_err_and(|e| e.is_usage()));
        assert!(host(None).caps().is_err_and(|e| e.is_usage()));
        assert_eq!(no_device("device", "x".to_owned()).kind(), ErrorKind::NoDevice);
    }
}
