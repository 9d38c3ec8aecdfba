//! What goes wrong in drivers and devices.

/// What went wrong below the executor.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// No driver, or the driver's library cannot be loaded.
    #[error("{backend}: {why}")]
    NoDriver {
        /// Backend name.
        backend: &'static str,
        /// What was looked for and what was found, with the remedy.
        why: String,
    },
    /// No device matches.
    #[error("no device matches \"{asked}\"; found: {found}")]
    NoDevice {
        /// What was asked for.
        asked: String,
        /// The devices there are.
        found: String,
    },
    /// Several devices match.
    #[error(
        "\"{asked}\" is several devices: {found}; give more of a name or driver, or add #1 for the first of them"
    )]
    ManyDevices {
        /// What was asked for.
        asked: String,
        /// Those that match.
        found: String,
    },
    /// Fewer devices match than the number behind `#` asks for.
    #[error("only {} \"{asked}\"; there is no #{number}", matches_of(*count))]
    FewDevices {
        /// What was asked for, without the number.
        asked: String,
        /// How many match.
        count: usize,
        /// The number.
        number: usize,
    },
    /// What a field of [`super::OpenOptions`] asks for is not there.
    #[error("{field}: {why}")]
    NotOffered {
        /// The field.
        field: &'static str,
        /// Its value, and why it is not there.
        why: String,
    },
    /// A kernel did not compile.
    #[error("kernel {kernel} does not compile on {device}:\n{log}\n{source_excerpt}")]
    Build {
        /// Kernel and defines.
        kernel: String,
        /// Device and driver.
        device: String,
        /// The compiler's words.
        log: String,
        /// Expanded source around the place, with line numbers.
        source_excerpt: String,
    },
    /// A kernel asks for more than the device has: work-items in a work-group, local memory.
    #[error("kernel {kernel} does not run on {device}: {why}")]
    Unsuited {
        /// Kernel and defines.
        kernel: String,
        /// Device and driver.
        device: String,
        /// What it asks for, and what there is.
        why: String,
    },
    /// The driver refuses to launch a kernel that it has compiled: work-items take more registers than there are, say.
    #[error("kernel {kernel} is refused at its launch: {why}")]
    Launch {
        /// Kernel and defines.
        kernel: String,
        /// What was asked for, and the driver's code.
        why: String,
    },
    /// An allocation failed.
    #[error("out of device memory: {label} needs {bytes} bytes ({why})")]
    OutOfMemory {
        /// Buffer label.
        label: String,
        /// Size asked for.
        bytes: u64,
        /// Limit or driver code.
        why: String,
    },
    /// A kernel that has no twin computes something else than its operator asks for.
    #[error(
        "kernel {kernel} gives wrong results on {device}: {why}; another driver may help, or another backend"
    )]
    Wrong {
        /// Kernel and defines.
        kernel: String,
        /// Device and driver.
        device: String,
        /// What differs.
        why: String,
    },
    /// The device is gone; nothing on it can be used again.
    #[error("device lost: {0}")]
    Lost(String),
    /// Any other refusal of the driver.
    #[error("{call}: {why}")]
    Driver {
        /// The call, and the buffer or kernel that it was about.
        call: String,
        /// The driver's code or words.
        why: String,
    },
}

impl BackendError {
    /// There is no such driver or device, of which nothing is at fault.
    pub fn is_absence(&self) -> bool {
        matches!(self, Self::NoDriver { .. } | Self::NoDevice { .. })
    }
}

fn matches_of(count: usize) -> String {
    match count {
        1 => "1 device matches".to_owned(),
        _ => format!("{count} devices match"),
    }
}
