//! Errors of drivers and devices.
#![warn(missing_docs)]

use crate::num::OutOfRange;
use crate::quota::Exceeded;

/// An error below the executor.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// No driver, or the driver's library cannot be loaded.
    #[error("{backend}: {why}")]
    NoDriver {
        /// Backend name.
        backend: &'static str,
        /// What was looked for, what was found, and what to do.
        why: String,
    },
    /// No device matches the name asked for.
    #[error("no device matches \"{asked}\"; found: {found}")]
    NoDevice {
        /// The name asked for.
        asked: String,
        /// The available devices.
        found: String,
    },
    /// Several devices match the name asked for.
    #[error(
        "\"{asked}\" matches several devices: {found}; give a longer part of the name, or add #1 for the first"
    )]
    ManyDevices {
        /// The name asked for.
        asked: String,
        /// The devices that match.
        found: String,
    },
    /// Fewer devices match than the number after `#` asks for.
    #[error("only {} \"{asked}\"; there is no #{number}", matches_of(*count))]
    FewDevices {
        /// The name asked for, without the number.
        asked: String,
        /// How many match.
        count: usize,
        /// The number.
        number: usize,
    },
    /// An option of [`super::OpenOptions`] that the device or backend does not support.
    #[error("{field}: {why}")]
    NotOffered {
        /// The field.
        field: &'static str,
        /// Its value, and why it is not supported.
        why: String,
    },
    /// A kernel did not compile.
    #[error(
        "kernel {kernel} does not compile on {device}:{}{}",
        indented(log),
        indented(source_excerpt)
    )]
    Build {
        /// Kernel and defines.
        kernel: String,
        /// Device and driver.
        device: String,
        /// The compiler's output.
        log: String,
        /// The expanded source around the error, with line numbers.
        source_excerpt: String,
    },
    /// A kernel needs more than the device has: work-items in a work-group, local memory.
    #[error("kernel {kernel} does not run on {device}: {why}")]
    Unsuited {
        /// Kernel and defines.
        kernel: String,
        /// Device and driver.
        device: String,
        /// What it needs, and what the device has.
        why: String,
    },
    /// The driver refuses to launch a kernel that it has compiled, for example because its
    /// work-items need more registers than there are.
    #[error("kernel {kernel} was refused by the driver at launch: {why}")]
    Launch {
        /// Kernel and defines.
        kernel: String,
        /// What was launched, and the driver's error code.
        why: String,
    },
    /// An allocation failed.
    #[error("out of device memory: {label} needs {bytes} bytes ({why})")]
    OutOfMemory {
        /// Buffer label.
        label: String,
        /// Size asked for.
        bytes: u64,
        /// The limit, or the driver's error code.
        why: String,
    },
    /// The memory of the device is that of the host, and the limit of the model is reached.
    #[error(transparent)]
    Exceeded(#[from] Exceeded),
    /// A kernel without a fallback gives results that differ from the operator's reference.
    #[error("kernel {kernel} gives wrong results on {device}: {why}; try another driver or another backend")]
    Wrong {
        /// Kernel and defines.
        kernel: String,
        /// Device and driver.
        device: String,
        /// What differs.
        why: String,
    },
    /// A kernel of the backend `cpu` did not run to its end, which is a bug in this library.
    #[error("kernel {kernel} {why} (a bug in this library; please report it with the model's name)")]
    Fault {
        /// The step of the plan.
        step: usize,
        /// Kernel and defines.
        kernel: String,
        /// What happened.
        why: String,
    },
    /// The device is lost; nothing on it can be used any more.
    #[error("device lost: {0}")]
    Lost(String),
    /// Any other error of the driver.
    #[error("{call}: {why}")]
    Driver {
        /// The call, and the buffer or kernel that it concerned.
        call: String,
        /// The driver's error code or message.
        why: String,
    },
    /// A number that does not fit its type, which is a bug in this library.
    #[error(transparent)]
    Internal(#[from] OutOfRange),
}

impl BackendError {
    /// Whether the error means that there is no such driver or device, which is not a fault.
    pub fn is_absence(&self) -> bool {
        matches!(self, Self::NoDriver { .. } | Self::NoDevice { .. })
    }
}

/// Each line of `text` on a line of its own, indented.
fn indented(text: &str) -> String {
    text.lines().map(|line| format!("\n  {line}")).collect()
}

fn matches_of(count: usize) -> String {
    match count {
        1 => "1 device matches".to_owned(),
        _ => format!("{count} devices match"),
    }
}
