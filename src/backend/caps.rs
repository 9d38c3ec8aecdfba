//! What a device is, and what it can do.

use super::profile::DeviceProfile;

/// Kind of processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// A GPU with its own memory.
    Discrete,
    /// A GPU that shares the host's memory.
    Integrated,
    /// A driver that runs kernels on the CPU (PoCL, lavapipe, Intel's CPU runtime).
    Cpu,
    /// The driver does not say.
    #[default]
    Other,
}

/// A device: its identity, its profile, and what the executor needs to know.
#[derive(Clone, Debug, PartialEq)]
pub struct Caps {
    /// `opencl`, `wgpu` or `cpu`.
    pub backend: &'static str,
    /// Device name as the driver reports it.
    pub device: String,
    /// Names and versions of the driver, and the device's version if it has one. For some devices
    /// only this text names the model.
    pub driver: String,
    pub kind: DeviceKind,
    /// What kernel selection depends on.
    pub profile: DeviceProfile,
    /// Required alignment of each dispatch's parameters within [`super::Launch::params`], in bytes:
    /// a power of two.
    pub params_align: u64,
    /// Largest buffer, in bytes.
    pub max_buffer_bytes: u64,
    /// Device memory in bytes; 0 if the driver does not say.
    pub memory_bytes: u64,
    /// Single dispatches can be timed.
    pub profiling: bool,
    /// The driver accepts a [`super::Priority`].
    pub priorities: bool,
    /// Features that the driver lists and then refuses, each with the driver's message.
    pub refused: Vec<String>,
}

impl Caps {
    /// Whether the device's name contains this text; ASCII case is ignored.
    pub fn is_called(&self, text: &str) -> bool {
        super::is_called(&[&self.device], text)
    }

    /// This device with a changed profile.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut DeviceProfile)) -> Self {
        change(&mut self.profile);
        self
    }

    /// A generic device for planning without a driver, with [`DeviceProfile::generic_gpu`].
    pub fn generic_gpu() -> Self {
        Self {
            backend: "opencl",
            device: "none".to_owned(),
            driver: "none".to_owned(),
            kind: DeviceKind::Integrated,
            profile: DeviceProfile::generic_gpu(),
            params_align: 4,
            max_buffer_bytes: 1 << 31,
            memory_bytes: 0,
            profiling: false,
            priorities: false,
            refused: Vec::new(),
        }
    }
}
