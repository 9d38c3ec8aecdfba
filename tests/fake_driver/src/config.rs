//! What the fake driver is to play.

use crate::Code;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The environment variable with the path of a [`Config`] in JSON.
pub const CONFIG: &str = "TLITE_FAKE_DRIVER";

/// The device whose library it plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// An Adreno of Qualcomm: hints are properties of the context, dispatches are recorded by
    /// queues made for it.
    Adreno,
    /// A Mali of Arm: the priority is a property of the queue.
    Mali,
    /// A graphics card of AMD, with memory of its own and local memory beside its cores, for which
    /// there are variants of kernels.
    Radeon,
}

/// What is played, and what goes wrong.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The library to pass calls on to; the loader of this machine by default.
    pub library: Option<PathBuf>,
    /// The phone; without one the device is what it is.
    pub profile: Option<Profile>,
    /// What the phone's version says behind the number, in place of the usual.
    pub version: Option<String>,
    /// File to append the log to.
    pub log: Option<PathBuf>,
    /// The properties of the extensions for hints are refused though they are listed, as some
    /// drivers do.
    pub refuse_hints: bool,
    /// Platforms have no device, and say so by this code: `CL_DEVICE_NOT_FOUND`, or `CL_SUCCESS`
    /// with a number of 0.
    pub no_device: Option<Code>,
    /// The phone's platform has its device twice.
    pub twice: bool,
    pub faults: Vec<Fault>,
    /// Calls that take longer.
    pub delays: Vec<Delay>,
    /// Kernels that take longer by the device's clock alone.
    pub clock: Vec<Slow>,
    /// Bytes of all buffers together beyond which none is given.
    pub memory_limit: Option<u64>,
    /// A kernel with wrong results: after each of its dispatches, those of Qualcomm's recordings
    /// included, the first 16 bytes of its last buffer are overwritten. Not in command buffers,
    /// which are the driver's.
    pub corrupt: Option<String>,
    /// Of that kernel only programs with this text.
    pub corrupt_text: Option<String>,
    /// Macros by which forms of a kernel are told apart: lines about arguments name those that the
    /// kernel's program defines.
    pub forms: Vec<String>,
}

/// A call that fails.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// Name of the function, as `clEnqueueNDRangeKernel`.
    pub call: String,
    /// Only calls about this kernel: dispatches of it, or builds of programs that define it.
    pub kernel: Option<String>,
    /// Which of those calls, counted from 1.
    pub nth: u64,
    /// What it returns. A failed build has a log too.
    pub code: i32,
    /// From then on the device is gone: every call that makes, queues or waits returns the same.
    /// Queries and releases fail only where they are named.
    pub lost: bool,
}

/// Calls that take longer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delay {
    /// Name of the function.
    pub call: String,
    /// How much longer each takes.
    pub ms: u64,
}

/// A kernel that takes longer by the device's clock.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slow {
    pub kernel: String,
    /// Nanoseconds that each work-group takes longer.
    pub ns: u64,
    /// Only by programs without this text.
    #[serde(default)]
    pub without: Option<String>,
}
