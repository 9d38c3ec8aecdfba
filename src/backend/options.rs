//! Options for opening a device.
#![warn(missing_docs)]

use super::isa::Isa;
use super::kernel::image::ImageKind;
use super::{BackendError, BackendKind, Caps, DeviceKind};
use crate::cache::Store;
use std::fmt;
use std::sync::Arc;

/// Which device to open, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// The device with this name; if there is none, the device whose name contains this text. ASCII
    /// case is ignored. A suffix `#N` selects the Nth of several matches. `None` selects the best
    /// device (discrete GPU before integrated GPU before CPU).
    pub device: Option<String>,
    /// Scheduling priority; `None` means [`Priority::default_on`].
    pub priority: Option<Priority>,
    /// Where compiled kernels are cached; `None` disables the cache.
    pub cache: Option<Arc<Store>>,
    /// How repeated commands reach an OpenCL device. Opening fails if the device lacks the
    /// requested mechanism.
    pub recording: ReplayMode,
    /// Whether kernels read operands through images (OpenCL only).
    pub images: ImageUse,
    /// Threads that the CPU backend uses; by default all cores that the process may use. Other
    /// backends ignore it.
    pub threads: Option<usize>,
    /// The instruction set that the CPU backend uses; by default the best one of the processor.
    pub isa: Option<Isa>,
    /// Milliseconds that queued work may occupy an OpenCL device before other work gets its turn; 0
    /// for no limit. A single command may take longer. Default: 8 on GPUs that share the host's
    /// memory, since they probably also draw the screen; no limit on other devices.
    pub slice_ms: Option<u32>,
}

/// GPU scheduling priority relative to other programs, such as the one that draws the screen.
/// Drivers treat it as a hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// After other programs' work, so that the screen stays responsive.
    Low,
    /// The driver's default.
    Normal,
    /// Before other programs' work, at the highest clocks.
    High,
}

impl Priority {
    /// All values.
    pub const ALL: [Self; 3] = [Self::Low, Self::Normal, Self::High];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Normal => "normal",
            Self::High => "high",
        }
    }

    /// The default priority: low on integrated GPUs, which probably also draw the screen; otherwise
    /// the driver's default (`None`).
    pub fn default_on(kind: DeviceKind) -> Option<Self> {
        (kind == DeviceKind::Integrated).then_some(Self::Low)
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl OpenOptions {
    /// Options that select a device by name.
    pub fn of(device: Option<&str>) -> Self {
        Self {
            device: device.map(str::to_owned),
            ..Self::default()
        }
    }

    /// If an option is set that only one backend supports: this backend, and the error for any
    /// other.
    pub fn only_on(&self) -> Option<(BackendKind, BackendError)> {
        let refusal = |kind: BackendKind, field, value: String| {
            let why = format!("{value} requires the {kind} backend");
            Some((kind, BackendError::NotOffered { field, why }))
        };
        let (opencl, cpu) = (BackendKind::OpenCl, BackendKind::Cpu);
        if let Some(isa) = self.isa {
            return refusal(cpu, "cpu_isa", isa.to_string());
        }
        match (self.recording, self.images, self.slice_ms) {
            (way @ (ReplayMode::CommandBuffer | ReplayMode::Qcom), ..) => {
                refusal(opencl, "recording", way.to_string())
            }
            (_, ImageUse::Of(_), _) => refusal(opencl, "images", self.images.to_string()),
            (.., Some(ms)) if ms > 0 => refusal(opencl, "slice_ms", ms.to_string()),
            _ => None,
        }
    }

    /// Whether a priority is requested but the device's driver does not support priorities.
    pub fn priority_is_unused(&self, caps: &Caps) -> bool {
        !caps.priorities && matches!(self.priority, Some(Priority::Low | Priority::High))
    }

    /// The time budget of a slice on a device; `None` for no limit.
    #[cfg(feature = "opencl")]
    pub(crate) fn slice_nanoseconds(&self, caps: &Caps) -> Option<u64> {
        let default = if caps.kind == DeviceKind::Integrated { 8 } else { 0 };
        let ms = self.slice_ms.unwrap_or(default);
        (ms > 0).then(|| u64::from(ms) * 1_000_000)
    }
}

/// How repeatedly submitted commands reach the device (replay).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplayMode {
    /// Uses driver recordings on a GPU that supports them; otherwise queues commands one by one.
    #[default]
    Auto,
    /// Uses `cl_khr_command_buffer`, and updates command buffers in place if the driver also
    /// supports `cl_khr_command_buffer_mutable_dispatch`.
    CommandBuffer,
    /// Uses `cl_qcom_recordable_queues`.
    Qcom,
    /// Queues commands one by one.
    Off,
}

impl ReplayMode {
    /// All values.
    pub const ALL: [Self; 4] = [Self::Auto, Self::CommandBuffer, Self::Qcom, Self::Off];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::CommandBuffer => "command-buffer",
            Self::Qcom => "qcom",
            Self::Off => "off",
        }
    }
}

impl fmt::Display for ReplayMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether kernels read operands through images created from their buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ImageUse {
    /// On devices where images are known to be faster (Adreno).
    #[default]
    Auto,
    /// Through images of this kind; opening a device without them fails.
    Of(ImageKind),
    /// Never.
    Off,
}

impl ImageUse {
    /// All values.
    pub const ALL: [Self; 4] = [
        Self::Auto,
        Self::Of(ImageKind::Image1dBuffer),
        Self::Of(ImageKind::Image2d),
        Self::Off,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Of(ImageKind::Image1dBuffer) => "1d",
            Self::Of(ImageKind::Image2d) => "2d",
            Self::Off => "off",
        }
    }
}

impl fmt::Display for ImageUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
