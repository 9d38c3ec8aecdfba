//! The interface that a device implements: buffers, views of buffers, kernels, recordings.
//!
//! The contract of all backends:
//!
//! * **[`crate::executor::Executor`] validates, backends trust.** The executor checks bounds,
//!   alignment, argument counts, access conflicts and grid limits once. A backend reports only what
//!   could not be foreseen: a failed build, out of memory, a lost device, or an error code of the
//!   driver.
//! * **Order.** Each command sees all writes of earlier commands in its recording and in earlier
//!   submissions. There is no barrier command.
//! * **Views** are ranges of buffers, never of other views. `offset` is a multiple of
//!   [`DeviceProfile::view_align`]; `len` is a multiple of 4 and at most
//!   [`DeviceProfile::max_view_bytes`].
//! * **Access.** Within one dispatch, a buffer is bound either only to [`kernel::Role::Weight`]
//!   operands, which are read-only, or only to other operands. Two operands of one dispatch never
//!   overlap: a kernel that works in place has a single binding for both.
//! * **Images.** An operand that a kernel [reads through an image](kernel::KernelSpec::images) is
//!   an ordinary view. The backend creates the image from it when it records the commands
//!   ([`kernel::image`]). If the driver refuses the image, the backend uses the kernel without
//!   images.
//! * **Parameters** are passed by value: each command names its range of bytes in
//!   [`Launch::params`].
#![warn(missing_docs)]

#[expect(missing_docs, reason = "internal")]
mod caps;
#[cfg(any(feature = "cpu", feature = "opencl", feature = "wgpu"))]
mod compiled;
#[cfg(feature = "cpu")]
#[expect(missing_docs, reason = "internal")]
pub mod cpu;
#[expect(missing_docs, reason = "internal")]
pub mod device_presets;
mod error;
pub mod isa;
#[expect(missing_docs, reason = "internal")]
pub mod kernel;
#[cfg(feature = "opencl")]
pub mod opencl;
mod options;
mod profile;
mod shared;
pub mod special;
#[cfg(test)]
#[cfg(any(feature = "opencl", feature = "wgpu"))]
mod suite_tests;
#[expect(missing_docs, reason = "internal")]
pub mod tunable;
pub mod validation;
#[cfg(feature = "wgpu")]
pub mod wgpu;

pub use caps::{Caps, DeviceKind};
pub use error::BackendError;
pub use options::{ImageUse, OpenOptions, Priority, ReplayMode};
pub use profile::{
    DeviceProfile, KernelCode, NativeKernels, PackedDot, QuarantineCause, Quarantined, TensorCores,
};
pub use shared::SharedBackend;

#[cfg(any(feature = "opencl", feature = "wgpu"))]
pub(crate) use profile::{Vendor, fast_local};

use crate::tensor::Bytes;
use kernel::KernelSpec;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// Handle of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferId(pub u32);

/// Handle of a compiled kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KernelId(pub u32);

/// Handle of a list of commands prepared for repeated submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecordingId(pub u32);

/// A range of a buffer, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct View {
    /// The buffer.
    pub buffer: BufferId,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

/// One step of a recording.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Runs a kernel over `launch.grids[step]` work-groups.
    Dispatch {
        /// The kernel.
        kernel: KernelId,
        /// One view for each operand that the kernel's spec binds, in descriptor order.
        args: Vec<View>,
        /// Index into [`Launch::grids`]. A grid with a zero on any axis runs nothing.
        step: u32,
        /// The bytes of [`Launch::params`] that hold this dispatch's parameter struct.
        params: Range<u32>,
    },
    /// Copies `src` to `dst`: equal lengths; different buffers or disjoint ranges.
    Copy {
        /// Source.
        src: View,
        /// Target.
        dst: View,
    },
    /// Sets every byte of `dst`.
    Fill {
        /// Target.
        dst: View,
        /// Value.
        byte: u8,
    },
}

/// The values that change from one submission to the next.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Launch {
    /// Parameter structs of all dispatches.
    pub params: Vec<u8>,
    /// Number of work-groups of each dispatch.
    pub grids: Vec<[u32; 3]>,
}

/// Totals since the backend was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Stats {
    /// Device buffers and sub-buffers created, staging buffers included.
    pub allocations: u64,
    /// Images created from buffers.
    pub images: u64,
    /// Bytes of all existing device buffers, staging buffers included.
    pub bytes: u64,
    /// Kernels compiled from source.
    pub compiles: u64,
    /// Kernels whose compiled form came from the [`Store`](crate::cache::Store).
    pub cached: u64,
    /// Recordings created.
    pub recordings: u64,
    /// Recordings submitted.
    pub submits: u64,
    /// Submitted recordings for which the driver replayed every dispatch ([`ReplayMode`]).
    #[serde(rename = "recorded_submits")]
    pub replayed_submits: u64,
    /// Launches in submitted recordings. Every command counts once, even if its grid is empty.
    pub launches: u64,
    /// Nanoseconds spent in driver calls that submit, write, read or wait; 0 if not measured.
    pub driver_ns: u64,
    /// Device time in nanoseconds of the longest slice ([`OpenOptions::slice_ms`]); 0 if work is
    /// not sliced.
    pub longest_slice_ns: u64,
}

/// Log target of informational messages. `tlite` prints them as notes.
pub const NOTE: &str = "transformer_lite::note";

/// The time since `start` in nanoseconds; saturates.
pub fn nanoseconds_since(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// A device opened for work. See the module documentation for the contract.
pub trait Backend: Send {
    /// What the device offers.
    fn caps(&self) -> &Caps;

    /// Creates a buffer of `bytes` (a multiple of 4, above 0) with undefined contents. `label`
    /// names it in errors.
    fn create_buffer(&mut self, label: &str, bytes: u64) -> Result<BufferId, BackendError>;

    /// Wraps a range of host bytes as a weight buffer, without a copy; `None` if the device cannot
    /// read host memory.
    fn share_buffer(&mut self, source: &Arc<dyn Bytes>, range: Range<usize>) -> Option<BufferId> {
        let _most_cannot = (source, range);
        None
    }

    /// Frees a buffer. Recordings that use it must already be released.
    fn destroy_buffer(&mut self, buffer: BufferId);

    /// Writes `bytes` to the start of `dst` after all work submitted before. `bytes.len()` is a
    /// multiple of 4.
    fn write(&mut self, dst: View, bytes: &[u8]) -> Result<(), BackendError>;

    /// Reads the start of `src` into `out` after all work submitted before. `out.len()` is a
    /// multiple of 4.
    fn read(&mut self, src: View, out: &mut [u8]) -> Result<(), BackendError>;

    /// Compiles the kernel for `spec` or loads it from the cache.
    fn compile(&mut self, spec: &KernelSpec) -> Result<KernelId, BackendError>;

    /// Compiles kernels ahead of [`Backend::compile`], several at once if that is faster. Calls
    /// `done` after each kernel with the number of kernels that are ready. Skips kernels that fail;
    /// `compile` reports their errors.
    fn compile_ahead(&mut self, specs: &[&KernelSpec], done: &mut dyn FnMut(usize)) {
        let _one_by_one = (specs, done);
    }

    /// Prepares commands for submission.
    fn record(&mut self, commands: &[Command]) -> Result<RecordingId, BackendError>;

    /// Queues a recording with these launch values. Returns before the device has finished.
    fn submit(&mut self, recording: RecordingId, launch: &Launch) -> Result<(), BackendError>;

    /// Runs a recording and returns the device time of each command in nanoseconds; 0 for a command
    /// that did not run. Fails if [`Caps::profiling`] is false.
    fn profile(&mut self, recording: RecordingId, launch: &Launch) -> Result<Vec<u64>, BackendError>;

    /// Waits until all submitted work is done.
    fn wait(&mut self) -> Result<(), BackendError>;

    /// Frees a recording.
    fn release(&mut self, recording: RecordingId);

    /// Running totals.
    fn stats(&self) -> Stats;

    /// Whether the driver has refused images that it lists. Kernels whose specs read operands
    /// through images then run as if compiled for [`KernelSpec::without_images`].
    fn refuses_images(&self) -> bool {
        false
    }

    /// How recordings currently reach the device, which may differ from the requested mode; never
    /// [`ReplayMode::Auto`].
    fn replay_mode(&self) -> ReplayMode {
        ReplayMode::Off
    }

    /// Names of the driver's optional extensions and features, for display and for what [`Caps`]
    /// does not cover.
    fn extensions(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Declares the backends. Each line gives the variant of [`BackendKind`], the name, which is also
/// the name of the Cargo feature, and a description for users.
macro_rules! backends {
    ($($(#[$doc:meta])* $kind:ident = $name:tt $about:literal;)*) => {
        /// A backend.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum BackendKind {
            $($(#[$doc])* $kind,)*
        }

        impl BackendKind {
            /// All backends, in order of preference.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$kind),*];

            /// The name on the command line.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }

            /// The graphics or compute interfaces that the backend uses, as text for users.
            pub const fn about(self) -> &'static str {
                match self {
                    $(Self::$kind => $about,)*
                }
            }

            /// Whether the backend is part of this build.
            pub const fn is_compiled(self) -> bool {
                match self {
                    $(Self::$kind => cfg!(feature = $name),)*
                }
            }
        }
    };
}

backends! {
    /// OpenCL 1.2 or later, loaded at run time.
    OpenCl = "opencl" "OpenCL";
    /// WGSL (WebGPU) through wgpu.
    Wgpu = "wgpu" "Vulkan, Metal or Direct3D 12 through wgpu";
    /// Kernels of this library on the processor.
    Cpu = "cpu" "Native kernels on the CPU, which need no driver";
}

impl BackendKind {
    /// Other names on the command line: the interfaces that the backend uses.
    pub const fn aliases(self) -> &'static [&'static str] {
        match self {
            Self::Wgpu => &["vulkan", "metal", "dx12"],
            Self::OpenCl | Self::Cpu => &[],
        }
    }

    /// Backends of this build, in order of preference.
    pub fn compiled() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|kind| kind.is_compiled())
    }
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The devices, each with a unique name `NAME#N` that [`OpenOptions::device`] accepts.
pub fn numbered(all: &[Caps]) -> impl Iterator<Item = (String, &Caps)> {
    all.iter().enumerate().map(|(i, caps)| {
        let same = all.iter().take(i + 1).filter(|c| c.device == caps.device);
        (format!("{}#{}", caps.device, same.count()), caps)
    })
}

/// The device in `all` that [`open`](crate::devices::open) would choose.
pub fn pick(mut all: Vec<Caps>, device: Option<&str>) -> Result<Caps, BackendError> {
    let i = choose(&all, device)?;
    Ok(all.swap_remove(i))
}

/// Index in `all` of the device to open: the device that `asked` names (see
/// [`OpenOptions::device`]); without `asked`, the first device of the best kind.
pub(crate) fn choose(all: &[Caps], asked: Option<&str>) -> Result<usize, BackendError> {
    let rank = |kind| match kind {
        DeviceKind::Discrete => 0,
        DeviceKind::Integrated => 1,
        DeviceKind::Other => 2,
        DeviceKind::Cpu => 3,
    };
    let list = |of: &[usize]| names(&of.iter().filter_map(|i| all.get(*i)).collect::<Vec<_>>());
    let everything: Vec<usize> = (0..all.len()).collect();
    let none = || BackendError::NoDevice {
        asked: asked.unwrap_or("any").to_owned(),
        found: list(&everything),
    };
    let Some(text) = asked else {
        let best = all.iter().enumerate().min_by_key(|(i, c)| (rank(c.kind), *i));
        return best.map(|(i, _)| i).ok_or_else(none);
    };
    let found = named(all, text);
    match (found.as_slice(), text.rsplit_once('#')) {
        ([one], _) => Ok(*one),
        ([], Some((name, number))) => {
            let number: usize = number.parse().map_err(|_| none())?;
            let found = named(all, name);
            let index = number.checked_sub(1).and_then(|i| found.get(i));
            index.copied().ok_or_else(|| match found.len() {
                0 => none(),
                count => BackendError::FewDevices {
                    asked: name.to_owned(),
                    count,
                    number,
                },
            })
        }
        ([], None) => Err(none()),
        (many, _) => Err(BackendError::ManyDevices {
            asked: text.to_owned(),
            found: list(many),
        }),
    }
}

/// Whether one of these names contains `text`; ASCII case is ignored.
pub fn is_called(names: &[&str], text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    names.iter().any(|n| n.to_ascii_lowercase().contains(&text))
}

/// The names of devices as a list, with the driver where several devices share a name.
pub fn names(devices: &[&Caps]) -> String {
    let same = |c: &Caps| devices.iter().filter(|d| d.device == c.device).count() > 1;
    let named = devices.iter().map(|c| match same(c) {
        true => format!("{} ({})", c.device, c.driver),
        false => c.device.clone(),
    });
    let named: Vec<String> = named.collect();
    if named.is_empty() {
        "none".to_owned()
    } else {
        named.join(", ")
    }
}

/// Indices of the devices with this name; if there are none, indices of the devices whose name
/// contains this text.
fn named(all: &[Caps], text: &str) -> Vec<usize> {
    let of = |holds: &dyn Fn(&Caps) -> bool| -> Vec<usize> {
        let found = all.iter().enumerate().filter(|(_, c)| holds(c));
        found.map(|(i, _)| i).collect()
    };
    let same = of(&|c| c.device.eq_ignore_ascii_case(text));
    if !same.is_empty() {
        return same;
    }
    of(&|c| c.is_called(text))
}

#[cfg(all(test, any(feature = "opencl", feature = "wgpu")))]
mod tests {
    use super::*;

    #[test]
    fn devices_are_chosen_by_name() {
        let all: Vec<Caps> = [
            ("Big GPU", "1"),
            ("Big GPU 2", "1"),
            ("CPU", "A 1.0"),
            ("CPU", "B"),
        ]
        .map(|(device, driver)| Caps {
            device: device.to_owned(),
            driver: driver.to_owned(),
            ..Caps::generic_gpu()
        })
        .into();
        let at = |asked| choose(&all, Some(asked));
        let is = |asked, place| assert_eq!(at(asked).unwrap(), place, "{asked}");
        is("big gpu", 0);
        is("gpu 2", 1);
        let several = |name, devices: &str| match at(name).unwrap_err() {
            BackendError::ManyDevices { asked, found } => {
                assert_eq!((asked.as_str(), found.as_str()), (name, devices));
            }
            e => panic!("{e}"),
        };
        several("b", "Big GPU, Big GPU 2");
        several("cpu", "CPU (A 1.0), CPU (B)");
        is("cpu#2", 3);
        is("big#1", 0);
        // The second is a driver.
        for wrong in ["cpu#x", "A 1.0", "no such", "no such#1"] {
            match at(wrong).unwrap_err() {
                BackendError::NoDevice { asked, found } => {
                    assert_eq!(asked, wrong);
                    assert_eq!(found, "Big GPU, Big GPU 2, CPU (A 1.0), CPU (B)");
                }
                e => panic!("{e}"),
            }
        }
        for (name, wanted) in [
            ("cpu#3", ("cpu", 2, 3)),
            ("cpu#0", ("cpu", 2, 0)),
            ("gpu 2#2", ("gpu 2", 1, 2)),
        ] {
            match at(name).unwrap_err() {
                BackendError::FewDevices { asked, count, number } => {
                    assert_eq!((asked.as_str(), count, number), wanted);
                }
                e => panic!("{e}"),
            }
        }
        assert_eq!(choose(&all, None).ok(), Some(0));
        let none = choose(&[], None);
        assert!(matches!(none, Err(BackendError::NoDevice { asked, .. }) if asked == "any"));
    }
}
