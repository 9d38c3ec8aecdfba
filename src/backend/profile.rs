//! The facts about a device by which operators choose kernels.

use super::device_presets::Family;
use super::kernel::image::{ImageKind, Images};
use super::kernel::subgroup_size::SubgroupSize;
use super::kernel::{self, Kernel, KernelSpec, Language};
use super::tunable::Tuned;
use crate::tensor::DType;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How kernels use tensor cores: 32 work-items together multiply 16 x 16 tiles in half precision
/// and accumulate in single precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorCores {
    /// Inline PTX in OpenCL C.
    Ptx,
    /// Cooperative matrices of WGSL.
    CooperativeMatrix,
}

/// What the kernels of a device are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelCode {
    /// Source for the driver's compiler.
    Source(Language),
    /// Functions of this library, which divide the work of a dispatch themselves: grids,
    /// work-groups and the defines for them have no effect.
    Native(NativeKernels),
}

/// The kernels of a backend without a compiler.
#[derive(Clone, Copy)]
pub struct NativeKernels {
    /// Whether there is a kernel for these types and defines.
    pub has: fn(&KernelSpec) -> bool,
    /// Whether there is a native form of a kernel, for some types and defines.
    pub runs: fn(&Kernel) -> bool,
}

impl PartialEq for NativeKernels {
    fn eq(&self, _: &Self) -> bool {
        // There is one backend of this kind.
        true
    }
}

impl Eq for NativeKernels {}

impl fmt::Debug for NativeKernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NativeKernels")
    }
}

/// What operators know about a device when they choose kernels: facts and limits, but no names of
/// devices or drivers. Each backend fills in the profiles of its devices.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceProfile {
    /// What the device's kernels are.
    pub code: KernelCode,
    /// The device has its own memory, as discrete GPUs do.
    pub dedicated_memory: bool,
    /// Required alignment of a view's offset, in bytes: a power of two, at least 16, so that
    /// kernels can load vectors of four words.
    pub view_align: u64,
    /// Largest view that a kernel may bind, in bytes.
    pub max_view_bytes: u64,
    /// Work-group (local, shared) memory in bytes.
    pub local_bytes: u32,
    /// Local memory is faster than the caches of global memory, so kernels stage data there that
    /// several work-items read.
    pub fast_local: bool,
    /// Compute units; 0 if the driver does not report them.
    pub compute_units: u32,
    /// Largest number of work-items in a work-group.
    pub max_workgroup: u32,
    /// Largest grid on each axis, in work-groups.
    pub max_grid: u32,
    /// Iterations of all its loops after which the device may silently end a work-item.
    pub max_loops: Option<i64>,
    /// Subgroup size if the driver supports subgroups; the smallest size if it varies.
    pub subgroup: Option<u32>,
    /// Subgroup sizes that kernels may request; empty if only the compiler decides.
    pub subgroup_sizes: Vec<SubgroupSize>,
    /// Kernels may compute with 64-bit integers.
    pub long_integers: bool,
    /// NaN and infinities stay what they are in memory, comparisons and arithmetic; `None` before
    /// [`special::keeps`](super::special::keeps) has tried.
    pub keeps_special: Option<bool>,
    /// Half-precision arithmetic is available.
    pub f16_math: bool,
    /// Half-precision arithmetic is faster than single precision.
    pub fast_f16: bool,
    /// Work-items have so few registers that large result tiles do not fit.
    pub few_registers: bool,
    /// The compiler moves all loads of an unrolled loop to its beginning, which needs more
    /// registers than the device has.
    pub hoists_loads: bool,
    /// Tensor cores, if kernels can use them.
    pub tensor_cores: Option<TensorCores>,
    /// How kernels write dot products of 8-bit values.
    pub packed_dot: PackedDot,
    /// Images created from buffers, and whether plans use them.
    pub images: Images,
    /// Kernel variants quarantined on this device.
    pub quarantined: Vec<Quarantined>,
    /// Kernel settings chosen by measurement on this device.
    pub tuned: Vec<Tuned>,
}

/// Why a kernel variant is quarantined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum QuarantineCause {
    /// It gives wrong results.
    WrongResults,
    /// It does not build, although the model's other kernels do.
    DoesNotBuild,
    /// The driver refuses to launch it.
    LaunchRefused,
}

/// A quarantined kernel: a variant that is not used on a device. Its fallback runs instead.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Quarantined {
    /// Name of the variant.
    pub variant: String,
    /// Checksum of the kernel's source; a kernel whose source has changed is tried again.
    pub checksum: u32,
    /// The kind of failure.
    pub cause: QuarantineCause,
    /// What was wrong.
    pub why: String,
    /// When it was found, in seconds since 1970.
    pub since: u64,
}

impl Quarantined {
    /// A variant of `kernel` ([`kernel::KernelSpec::variants`]) that was found to fail now.
    pub fn new(kernel: &'static Kernel, variant: &str, cause: QuarantineCause, why: &str) -> Self {
        Self {
            variant: variant.to_owned(),
            checksum: kernel.checksum(),
            cause,
            why: why.to_owned(),
            since: seconds(SystemTime::now()),
        }
    }

    /// Whether the quarantine has ended at the time `now`. Wrong results are a property of kernel
    /// and driver. Other failures may have been those of a passing fault, so the variant is tried
    /// again after 7 days, and also if the clock was set back.
    pub fn is_over(&self, now: SystemTime) -> bool {
        self.cause != QuarantineCause::WrongResults && !is_recent(self.since, now)
    }
}

/// Time after which a kernel that was not built or not launched is tried again.
pub const RETRY_AFTER: Duration = Duration::from_secs(7 * 24 * 3600);

/// Whether `since`, in seconds since 1970, is less than [`RETRY_AFTER`] before `now`.
pub(crate) fn is_recent(since: u64, now: SystemTime) -> bool {
    let age = seconds(now).checked_sub(since);
    age.is_some_and(|age| age < RETRY_AFTER.as_secs())
}

/// A time in seconds since 1970.
pub(crate) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl DeviceProfile {
    /// Whether the device can run a kernel. Always true for a generic kernel. For a variant, true
    /// if it has a source in the device's language, the device has what it needs, and the variant
    /// is not quarantined. Only this method and [`DeviceProfile::supports_form`] make this
    /// decision.
    pub fn supports(&self, kernel: &'static Kernel) -> bool {
        let written = self.language().is_none_or(|l| kernel.sources.of(l).is_some());
        let able =
            |v: kernel::Variant| written && (v.needs)(self) && !self.is_quarantined(kernel, kernel.name);
        kernel.variant.is_none_or(able)
    }

    /// Whether the device has what a form of a kernel needs and the form is not quarantined.
    pub fn supports_form(&self, kernel: &'static Kernel, define: &str) -> bool {
        let form = kernel.forms.iter().find(|f| f.define == define);
        let able = |f: &kernel::Form| {
            (f.needs)(self) && !self.is_quarantined(kernel, &kernel::form_name(kernel, define))
        };
        form.is_some_and(able)
    }

    /// The language of the kernels' source, if they have one.
    pub fn language(&self) -> Option<Language> {
        match self.code {
            KernelCode::Source(language) => Some(language),
            KernelCode::Native(_) => None,
        }
    }

    /// Whether the device has code for a kernel: a source in its language, or a native kernel.
    pub fn runs(&self, kernel: &Kernel) -> bool {
        match self.code {
            KernelCode::Source(language) => kernel.sources.of(language).is_some(),
            KernelCode::Native(native) => (native.runs)(kernel),
        }
    }

    /// Kernels divide the work of a dispatch among threads themselves, so lowering need not split
    /// it into many work-groups.
    pub fn divides_work(&self) -> bool {
        matches!(self.code, KernelCode::Native(_))
    }

    /// Kernels read packed weights in panels of [`PANEL`](crate::tensor::PANEL) columns. Others
    /// read neighbouring columns of whole rows.
    pub fn reads_panels(&self) -> bool {
        matches!(self.code, KernelCode::Native(_))
    }

    /// Kernels multiply quantized weights by activations of 16 bits, which are as good as floats.
    pub fn multiplies_int16(&self) -> bool {
        matches!(self.code, KernelCode::Native(_))
    }

    /// A row of a result does not depend on the number of rows: each size uses the same kernels.
    pub fn has_independent_rows(&self) -> bool {
        matches!(self.code, KernelCode::Native(_))
    }

    /// Buffers are memory of the host, under the limits of the process.
    pub fn uses_host_memory(&self) -> bool {
        matches!(self.code, KernelCode::Native(_))
    }

    /// The types in which activations can be stored. Native kernels compute in single precision.
    pub fn storage_types(&self) -> &'static [DType] {
        match self.code {
            KernelCode::Native(_) => &[DType::F32],
            KernelCode::Source(_) => &[DType::F16, DType::F32],
        }
    }

    /// The kind of image through which a kernel reads operands that fit; `None` if plans do not use
    /// images or that form of the kernel is quarantined.
    pub fn images_of(&self, kernel: &'static Kernel) -> Option<ImageKind> {
        let used = |_: &ImageKind| !self.is_quarantined(kernel, &kernel::image_form(kernel));
        self.images.reads.filter(used)
    }

    /// Whether this variant is quarantined: the kernel itself or one of its forms.
    pub fn is_quarantined(&self, kernel: &'static Kernel, variant: &str) -> bool {
        let same = |q: &Quarantined| q.variant == variant && q.checksum == kernel.checksum();
        self.quarantined.iter().any(same)
    }

    /// Quarantines a variant.
    pub fn quarantine(&mut self, new: Quarantined) {
        self.quarantined.retain(|q| q.variant != new.variant);
        self.quarantined.push(new);
    }

    /// Compute units, or an estimate for this kind of device if the driver does not report them.
    pub fn assumed_compute_units(&self) -> u32 {
        match (self.compute_units, self.dedicated_memory) {
            // Desktop GPUs with tensor cores have 24 to 170 compute units. Too few work-groups cost
            // more time than work-groups that are too small.
            (0, true) if self.tensor_cores.is_some() => 128,
            (0, true) => 64,
            (0, false) => 16,
            (units, _) => units,
        }
    }

    /// Sets the properties that follow from a GPU's family and that drivers do not report.
    pub fn set_family(&mut self, family: Option<Family>) {
        self.few_registers = family == Some(Family::Mali);
        self.fast_f16 = self.f16_math && family.is_some();
        self.hoists_loads = self.fast_f16 && self.language() == Some(Language::OpenClC);
    }

    /// A GPU that shares the host's memory, with OpenCL C kernels and limits that phones
    /// support.
    pub fn generic_gpu() -> Self {
        Self {
            code: KernelCode::Source(Language::OpenClC),
            dedicated_memory: false,
            view_align: 128,
            max_view_bytes: 1 << 27,
            local_bytes: 1 << 15,
            fast_local: false,
            compute_units: 0,
            max_workgroup: 1024,
            max_grid: 65_535,
            max_loops: None,
            subgroup: None,
            subgroup_sizes: Vec::new(),
            long_integers: true,
            keeps_special: None,
            f16_math: false,
            fast_f16: false,
            few_registers: false,
            hoists_loads: false,
            tensor_cores: None,
            packed_dot: PackedDot::None,
            images: Images::default(),
            quarantined: Vec::new(),
            tuned: Vec::new(),
        }
    }
}

/// How kernels write the dot product of four 8-bit values with four others, which some devices
/// compute in one instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PackedDot {
    /// Separate multiplications.
    #[default]
    None,
    /// The built-in function of WGSL.
    Wgsl,
    /// Inline PTX.
    Ptx,
    /// `cl_khr_integer_dot_product`.
    Khr,
    /// `cl_arm_integer_dot_product_accumulate_int8`.
    Arm,
    /// Instructions that native kernels use, sixteen words at a time.
    Native,
}

impl PackedDot {
    /// The define that selects it in OpenCL C (`cl/common/dot.cl`).
    pub fn define(self) -> Option<&'static str> {
        match self {
            Self::None | Self::Wgsl | Self::Native => None,
            Self::Ptx => Some("PTX"),
            Self::Khr => Some("KHR"),
            Self::Arm => Some("ARM"),
        }
    }

    /// Chooses by the extensions that an OpenCL driver lists; `has` tests for one of them.
    #[cfg(feature = "opencl")]
    pub(crate) fn listed(has: impl Fn(&str) -> bool) -> Self {
        [
            ("cl_khr_integer_dot_product", Self::Khr),
            ("cl_arm_integer_dot_product_accumulate_int8", Self::Arm),
        ]
        .into_iter()
        .find(|(name, _)| has(name))
        .map_or(Self::None, |(_, dot)| dot)
    }
}

/// The vendor of a GPU.
#[cfg(any(feature = "opencl", feature = "wgpu"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vendor {
    /// PCI vendor ID, reported by the driver.
    Pci(u32),
    /// The driver is Apple's own (Metal or OpenCL), which reports no vendor ID.
    Apple,
}

/// The value of [`DeviceProfile::fast_local`]. NVIDIA, AMD, Intel and Apple GPUs have dedicated
/// local memory, and Apple's drivers support no other GPUs. Mali has none, and Adreno's is not
/// faster than its caches.
#[cfg(any(feature = "opencl", feature = "wgpu"))]
pub(crate) fn fast_local(kind: super::DeviceKind, vendor: Vendor) -> bool {
    let known = match vendor {
        Vendor::Pci(number) => [0x10de, 0x1002, 0x8086, 0x106b].contains(&number),
        Vendor::Apple => true,
    };
    known && kind != super::DeviceKind::Cpu
}

#[cfg(all(test, any(feature = "opencl", feature = "wgpu")))]
mod tests {
    use super::*;

    #[test]
    fn local_memory_is_fast_on_gpus_that_have_some() {
        use super::super::DeviceKind::{Cpu, Discrete, Integrated, Other};
        // As reported by the drivers of NVIDIA, AMD and Intel, and by MoltenVK for an Apple GPU.
        for (kind, number) in [
            (Discrete, 0x10de),
            (Discrete, 0x1002),
            (Integrated, 0x8086),
            (Integrated, 0x106b),
        ] {
            assert!(fast_local(kind, Vendor::Pci(number)), "{number:#x}");
        }
        // Mali, Adreno, PowerVR, the software renderers of Microsoft and Mesa, Intel's OpenCL on a
        // CPU, and an unknown vendor.
        for (kind, number) in [
            (Integrated, 0x13b5),
            (Integrated, 0x5143),
            (Integrated, 0x1010),
            (Cpu, 0x1414),
            (Cpu, 0x10005),
            (Cpu, 0x8086),
            (Other, 0),
        ] {
            assert!(!fast_local(kind, Vendor::Pci(number)), "{number:#x}");
        }
        // Metal, for any reported kind. Apple's OpenCL also lists the CPU as a device.
        assert!(fast_local(Integrated, Vendor::Apple) && fast_local(Discrete, Vendor::Apple));
        assert!(!fast_local(Cpu, Vendor::Apple));
    }
}
