//! Device capabilities that planning and kernel selection depend on.

use super::kernel::image::{ImageKind, Images};
use super::kernel::wave::Wave;
use super::kernel::{self, Kernel};
use super::tunable::Tuned;

/// Kind of processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// A GPU with its own memory.
    Discrete,
    /// A GPU that shares the host's memory.
    Integrated,
    /// A driver that runs kernels on the CPU (PoCL, lavapipe, Intel's CPU runtime).
    Cpu,
    /// The driver does not say.
    Other,
}

/// Device capabilities that planning and kernel selection depend on.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Caps {
    /// `opencl` or `wgpu`.
    pub backend: &'static str,
    /// Device name as the driver reports it.
    pub device: String,
    /// Names and versions of the driver, and the device's version if it has one. For some devices
    /// only this text names the model.
    pub driver: String,
    /// Kind of processor.
    pub kind: DeviceKind,
    /// Required alignment of a view's offset, in bytes: a power of two, at least 16, so that
    /// kernels can load vectors of four words.
    pub view_align: u64,
    /// Required alignment of each dispatch's parameters within [`super::Launch::params`], in bytes:
    /// a power of two.
    pub params_align: u64,
    /// Largest view that a kernel may bind, in bytes.
    pub max_view_bytes: u64,
    /// Largest buffer, in bytes.
    pub max_buffer_bytes: u64,
    /// Device memory in bytes; 0 if the driver does not say.
    pub memory_bytes: u64,
    /// Work-group (local, shared) memory in bytes.
    pub local_bytes: u32,
    /// Local memory is faster than the caches of global memory, so staging data that several
    /// work-items read pays off.
    pub fast_local: bool,
    /// Compute units; 0 if the driver does not say.
    pub units: u32,
    /// Largest number of work-items in a work-group.
    pub max_workgroup: u32,
    /// Largest grid on each axis, in work-groups.
    pub max_grid: u32,
    /// Subgroup size if the driver has subgroups; the smallest one if it varies.
    pub subgroup: Option<u32>,
    /// Subgroup widths that kernels may request; empty if the compiler alone decides.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waves: Vec<Wave>,
    /// Half-precision arithmetic is available.
    pub f16_math: bool,
    /// Tensor cores (NVIDIA) or cooperative matrices are available: 16 x 16 tiles of halves,
    /// accumulated in single precision by 32 work-items together. Kernels use inline PTX in OpenCL
    /// C and cooperative matrices in WGSL.
    pub matrix_units: bool,
    /// How kernels write dot products of 8-bit values.
    pub packed_dot: PackedDot,
    /// Single dispatches can be timed.
    pub profiling: bool,
    /// The driver accepts a [`super::Priority`].
    pub priorities: bool,
    /// Kernels quarantined on this device because they gave wrong results or could not be built.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub quarantined: Vec<Quarantined>,
    /// Kernel settings chosen by measurement on this device.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tuned: Vec<Tuned>,
    /// Images created from buffers, and whether plans use them.
    pub images: Images,
    /// Features that the driver lists and then refuses, each with the driver's message.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
}

/// A quarantined kernel: a variant ([`kernel::KernelSpec::variants`]) that is not used on a device.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Quarantined {
    /// Name of the variant.
    pub variant: String,
    /// [`Kernel::checksum`]; a kernel whose source has changed is tried again.
    pub checksum: u32,
    /// What was wrong.
    pub why: String,
}

impl Caps {
    /// Whether the device can run a kernel: always for a generic one; for a variant, if the device
    /// has what it needs and the variant is not quarantined. Only this method and
    /// [`Caps::takes_form`] decide that.
    pub fn takes(&self, kernel: &'static Kernel) -> bool {
        let able = |v: kernel::Variant| (v.needs)(self) && !self.is_quarantined(kernel, kernel.name);
        kernel.variant.is_none_or(able)
    }

    /// Whether the device has what a form of a kernel needs and the form is not quarantined.
    pub fn takes_form(&self, kernel: &'static Kernel, define: &str) -> bool {
        let form = kernel.forms.iter().find(|f| f.define == define);
        let able = |f: &kernel::Form| {
            (f.needs)(self) && !self.is_quarantined(kernel, &kernel::form_name(kernel, define))
        };
        form.is_some_and(able)
    }

    /// The kind of image through which a kernel reads operands that fit, unless that form of the
    /// kernel is quarantined.
    pub fn images_of(&self, kernel: &'static Kernel) -> Option<ImageKind> {
        let used = |_: &ImageKind| !self.is_quarantined(kernel, &kernel::image_form(kernel));
        self.images.reads.filter(used)
    }

    /// Whether this variant, the kernel itself or one of its forms, is quarantined.
    pub fn is_quarantined(&self, kernel: &'static Kernel, variant: &str) -> bool {
        let same = |q: &Quarantined| q.variant == variant && q.checksum == kernel.checksum();
        self.quarantined.iter().any(same)
    }

    /// This device with the given variant quarantined.
    #[must_use]
    pub fn without(mut self, kernel: &'static Kernel, variant: &str, why: &str) -> Self {
        self.quarantined.retain(|q| q.variant != variant);
        self.quarantined.push(Quarantined {
            variant: variant.to_owned(),
            checksum: kernel.checksum(),
            why: why.to_owned(),
        });
        self
    }

    /// Compute units, or an estimate for a device of this kind if the driver does not say.
    pub fn assumed_units(&self) -> u32 {
        match (self.units, self.kind) {
            // Desktop GPUs with tensor cores have 24 to 170, and too few work-groups cost more than
            // small ones.
            (0, DeviceKind::Discrete) if self.matrix_units => 128,
            (0, DeviceKind::Discrete) => 64,
            (0, _) => 16,
            (units, _) => units,
        }
    }

    /// OpenCL on a CPU: a work-item is a loop iteration on a core, and the kernel's own vector
    /// types decide vectorization. Barriers are expensive. Such a device wants one row per
    /// work-item, in runs of 16 elements.
    pub fn explicit_vectors(&self) -> bool {
        self.kind == DeviceKind::Cpu && self.backend == "opencl"
    }

    /// WGSL on a CPU (llvmpipe): a work-item is a lane of a core's vector. Loads are made lane by
    /// lane, wherever they lie, so a vector of four elements takes little longer than one. Barriers
    /// and local memory cost more than they save.
    pub fn lane_vectors(&self) -> bool {
        self.kind == DeviceKind::Cpu && self.backend == "wgpu"
    }

    /// Like [`Caps::lane_vectors`], with subgroups of at least 8 lanes: broadcasting a value to the
    /// subgroup is cheaper than loading it again, so each lane loads a different row and all lanes
    /// share them.
    pub fn lane_broadcast(&self) -> bool {
        self.lane_vectors() && self.subgroup.is_some_and(|lanes| lanes >= 8)
    }

    /// Work-items have so few registers that large result tiles do not fit. True on Mali: 64
    /// registers of 32 bits, and threads that use more than half of them leave half of a core idle.
    /// Arm's drivers and Mesa both report "Mali" in the device name.
    pub fn few_registers(&self) -> bool {
        self.device.contains("Mali")
    }

    /// Half-precision arithmetic is faster than single precision: on phone GPUs that offer it. CPU
    /// drivers only emulate it.
    pub fn fast_half(&self) -> bool {
        self.f16_math && (self.is_called("adreno") || self.few_registers())
    }

    /// Whether the device's or driver's name contains this text; ASCII case is ignored.
    pub fn is_called(&self, text: &str) -> bool {
        super::is_called([&self.device, &self.driver], text)
    }

    /// A generic device for planning without a driver: an OpenCL GPU that shares the host's memory,
    /// with limits that phones meet.
    pub fn neutral() -> Self {
        Self {
            backend: "opencl",
            device: "none".to_owned(),
            driver: "none".to_owned(),
            kind: DeviceKind::Integrated,
            view_align: 128,
            params_align: 4,
            max_view_bytes: 1 << 27,
            max_buffer_bytes: 1 << 31,
            memory_bytes: 0,
            local_bytes: 1 << 15,
            fast_local: false,
            units: 0,
            max_workgroup: 1024,
            max_grid: 65_535,
            subgroup: None,
            waves: Vec::new(),
            f16_math: false,
            matrix_units: false,
            packed_dot: PackedDot::None,
            profiling: false,
            priorities: false,
            quarantined: Vec::new(),
            tuned: Vec::new(),
            images: Images::default(),
            refused: Vec::new(),
        }
    }
}

/// How kernels write the dot product of four 8-bit values with four others, which some devices
/// compute in one instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PackedDot {
    /// Single multiplications.
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
    /// AVX-512 instructions of an x86 CPU, sixteen words at a time.
    X86,
}

impl PackedDot {
    /// The define that selects it in OpenCL C (cl/common/dot.cl).
    pub fn define(self) -> Option<&'static str> {
        match self {
            Self::None | Self::Wgsl => None,
            Self::Ptx => Some("PTX"),
            Self::Khr => Some("KHR"),
            Self::Arm => Some("ARM"),
            Self::X86 => Some("X86_BYTES"),
        }
    }

    /// Why [`PackedDot::X86`] is not available on a CPU: the CPU lacks an instruction set, or its
    /// OpenCL compiler is not known to support the intrinsics for it. PoCL's compiler does, because
    /// it compiles for the CPU it runs on. `None` if nothing is missing or the device is not a CPU.
    pub(crate) fn x86_refusal(caps: &Caps) -> Option<String> {
        #[cfg(target_arch = "x86_64")]
        let sets = [
            ("AVX512F", std::arch::is_x86_feature_detected!("avx512f")),
            ("AVX512BW", std::arch::is_x86_feature_detected!("avx512bw")),
        ];
        #[cfg(not(target_arch = "x86_64"))]
        let sets = [("an x86 processor", false)];
        (caps.backend == "opencl" && caps.kind == DeviceKind::Cpu)
            .then(|| lacks(caps, &sets))
            .flatten()
    }

    /// Chooses by the extensions that an OpenCL driver lists.
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

/// The instruction sets that a CPU lacks, or that its driver's compiler does not support.
fn lacks(caps: &Caps, sets: &[(&str, bool)]) -> Option<String> {
    let missing: Vec<&str> = sets.iter().filter(|(_, has)| !has).map(|(set, _)| *set).collect();
    if !missing.is_empty() {
        return Some(format!("the CPU lacks {}", missing.join(" and ")));
    }
    let names: Vec<&str> = sets.iter().map(|(set, _)| *set).collect();
    (!caps.driver.contains("PoCL")).then(|| {
        format!(
            "the driver's compiler is not known to support {}; PoCL's does",
            names.join(" and ")
        )
    })
}

/// How the maker of a GPU is known.
#[cfg(any(feature = "opencl", feature = "wgpu"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Maker {
    /// PCI vendor ID, reported by the driver.
    Pci(u32),
    /// The driver is Apple's own (Metal or OpenCL), which reports no vendor ID.
    ApplesDriver,
}

/// [`Caps::fast_local`]: NVIDIA, AMD, Intel and Apple GPUs have dedicated local memory, and Apple's
/// drivers drive only these. Mali has none, and Adreno's is not faster than its caches.
#[cfg(any(feature = "opencl", feature = "wgpu"))]
pub(crate) fn fast_local(kind: DeviceKind, maker: Maker) -> bool {
    let known = match maker {
        Maker::Pci(number) => [0x10de, 0x1002, 0x8086, 0x106b].contains(&number),
        Maker::ApplesDriver => true,
    };
    known && kind != DeviceKind::Cpu
}

#[cfg(all(test, any(feature = "opencl", feature = "wgpu")))]
mod tests {
    use super::*;
    use crate::testing::{assert_carries, carries};

    #[test]
    fn what_a_cpu_lacks_for_bytes_is_named() {
        let caps = |driver: &str| Caps {
            driver: driver.to_owned(),
            ..Caps::neutral()
        };
        let at = |driver: &str, wide, bytes| lacks(&caps(driver), &[("AVX512F", wide), ("AVX512BW", bytes)]);
        assert_eq!(at("PoCL 5", true, true), None);
        let one = at("PoCL 5", true, false).unwrap();
        assert!(carries(&one, "AVX512BW") && !carries(&one, "AVX512F"), "{one}");
        let both = at("PoCL 5", false, false).unwrap();
        assert_carries(&both, &["AVX512F", "AVX512BW"]);
        let other = at("Intel", true, true).unwrap();
        assert_carries(&other, &["AVX512F", "AVX512BW"]);
        assert_ne!(both, other);
        assert_eq!(PackedDot::x86_refusal(&caps("PoCL")), None, "no CPU");
    }

    #[test]
    fn local_memory_is_fast_on_gpus_that_have_some() {
        use DeviceKind::{Cpu, Discrete, Integrated, Other};
        // As NVIDIA's, AMD's and Intel's drivers say, and MoltenVK of an Apple GPU.
        for (kind, number) in [
            (Discrete, 0x10de),
            (Discrete, 0x1002),
            (Integrated, 0x8086),
            (Integrated, 0x106b),
        ] {
            assert!(fast_local(kind, Maker::Pci(number)), "{number:#x}");
        }
        // Mali, Adreno, PowerVR, Microsoft's and Mesa's renderers, Intel's OpenCL on a CPU; nothing
        // known.
        for (kind, number) in [
            (Integrated, 0x13b5),
            (Integrated, 0x5143),
            (Integrated, 0x1010),
            (Cpu, 0x1414),
            (Cpu, 0x10005),
            (Cpu, 0x8086),
            (Other, 0),
        ] {
            assert!(!fast_local(kind, Maker::Pci(number)), "{number:#x}");
        }
        // Metal, whatever kind it says; Apple's OpenCL has the CPU as a device too.
        assert!(fast_local(Integrated, Maker::ApplesDriver) && fast_local(Discrete, Maker::ApplesDriver));
        assert!(!fast_local(Cpu, Maker::ApplesDriver));
    }
}
