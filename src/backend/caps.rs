//! What a device offers, as far as planning and the choice of kernels ask for it.

use super::image::{ImageKind, Images};
use super::kernel::{self, Kernel};
use super::tunable::Tuned;
use super::wave::Wave;

/// Kind of processor behind a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// A GPU with memory of its own.
    Discrete,
    /// A GPU that shares the host's memory.
    Integrated,
    /// A driver that runs kernels on the CPU (PoCL, lavapipe, Intel's CPU runtime).
    Cpu,
    /// Not said by the driver.
    Other,
}

/// What a device offers, as far as planning and kernel choice need it.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Caps {
    /// `opencl` or `wgpu`.
    pub backend: &'static str,
    /// Device name as the driver prints it.
    pub device: String,
    /// Names and versions of the driver, and the device's version where it has one: that may be all that names the model.
    pub driver: String,
    /// Kind of processor.
    pub kind: DeviceKind,
    /// Required alignment of a view's offset, in bytes; a power of two, 16 or more, so that vectors of four words can be read.
    pub view_align: u64,
    /// Required alignment of each dispatch's parameters within [`super::Launch::params`], in bytes; a power of two.
    pub params_align: u64,
    /// Largest view that a kernel may bind, in bytes.
    pub max_view_bytes: u64,
    /// Largest buffer, in bytes.
    pub max_buffer_bytes: u64,
    /// Device memory in bytes; 0 when the driver does not say.
    pub memory_bytes: u64,
    /// Work-group (local, shared) memory in bytes.
    pub local_bytes: u32,
    /// Local memory is faster than the caches of global memory, so that it pays to bring there what several work-items read.
    pub fast_local: bool,
    /// Compute units, each of which runs work-groups of its own; 0 when the driver does not say.
    pub units: u32,
    /// Largest number of work-items in a work-group.
    pub max_workgroup: u32,
    /// Largest grid on each axis, in work-groups.
    pub max_grid: u32,
    /// Sub-group size where the driver has sub-groups; the smallest where it varies.
    pub subgroup: Option<u32>,
    /// Waves that kernels may ask for; none where compilers choose alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waves: Vec<Wave>,
    /// Half-precision arithmetic is offered.
    pub f16_math: bool,
    /// Products of 16 x 16 halves, summed in single precision by 32 work-items together, run on units of their own, which kernels reach
    /// by inline PTX in OpenCL C and by cooperative matrices in WGSL.
    pub matrix_units: bool,
    /// How kernels write dot products of bytes.
    pub packed_dot: PackedDot,
    /// Times of single dispatches can be measured.
    pub profiling: bool,
    /// The driver takes a [`super::Priority`].
    pub priorities: bool,
    /// Kernels that are not used on it, since they were wrong there or could not be built.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub quarantined: Vec<Quarantined>,
    /// What measuring on it chose for kernels.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tuned: Vec<Tuned>,
    /// Images in buffers, and whether plans use them.
    pub images: Images,
    /// What the driver lists and then refuses, each with its words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
}

/// A variant of a kernel ([`kernel::KernelSpec::variants`]) that is not used on a device.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Quarantined {
    /// Its name.
    pub variant: String,
    /// [`Kernel::checksum`]; other texts are tried anew.
    pub checksum: u32,
    /// What was wrong with it.
    pub why: String,
}

impl Caps {
    /// True for a kernel that any device takes, and for a variant where the device has what it needs and it is not quarantined there. This and
    /// [`Caps::takes_form`] alone decide that.
    pub fn takes(&self, kernel: &'static Kernel) -> bool {
        let able = |v: kernel::Variant| (v.needs)(self) && !self.is_quarantined(kernel, kernel.name);
        kernel.variant.is_none_or(able)
    }

    /// True for a form of a kernel where the device has what it needs and it is not quarantined there.
    pub fn takes_form(&self, kernel: &'static Kernel, define: &str) -> bool {
        let form = kernel.forms.iter().find(|f| f.define == define);
        let able = |f: &kernel::Form| {
            (f.needs)(self) && !self.is_quarantined(kernel, &kernel::form_name(kernel, define))
        };
        form.is_some_and(able)
    }

    /// The images that a kernel reads operands through where they fit, unless that form of it is quarantined.
    pub fn images_of(&self, kernel: &'static Kernel) -> Option<ImageKind> {
        let used = |_: &ImageKind| !self.is_quarantined(kernel, &kernel::image_form(kernel));
        self.images.reads.filter(used)
    }

    /// A variant of this name, the kernel's or that of one of its forms, is not used.
    pub fn is_quarantined(&self, kernel: &'static Kernel, variant: &str) -> bool {
        let same = |q: &Quarantined| q.variant == variant && q.checksum == kernel.checksum();
        self.quarantined.iter().any(same)
    }

    /// The same device, on which a variant of this name is not used.
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

    /// Compute units, or how many a device of this kind that does not say probably has.
    pub fn assumed_units(&self) -> u32 {
        match (self.units, self.kind) {
            // Desktop GPUs with matrix units have 24 to 170, and fewer work-groups than units cost more than smaller ones.
            (0, DeviceKind::Discrete) if self.matrix_units => 128,
            (0, DeviceKind::Discrete) => 64,
            (0, _) => 16,
            (units, _) => units,
        }
    }

    /// A work-item is an iteration of a loop on a core, whose vectors are those that the kernel writes out: OpenCL on CPUs, where
    /// drivers besides pay for barriers. Such a device wants rows by one work-item each, in runs of 16 elements.
    pub fn explicit_vectors(&self) -> bool {
        self.kind == DeviceKind::Cpu && self.backend == "opencl"
    }

    /// A work-item is a lane of a vector on a core: WGSL on CPUs, by llvmpipe. Loads are made lane by lane, wherever they lie, so that a vector of
    /// four elements takes little longer than one; barriers and local memory take longer than what they save.
    pub fn lane_vectors(&self) -> bool {
        self.kind == DeviceKind::Cpu && self.backend == "wgpu"
    }

    /// Besides, what one of eight lanes has loaded reaches the others by an instruction: each loads another row, and all take all rows.
    pub fn lane_broadcast(&self) -> bool {
        self.lane_vectors() && self.subgroup.is_some_and(|lanes| lanes >= 8)
    }

    /// A work-item has so few registers that large tiles of results do not fit: Mali, with 64 of 32 bits, of which threads that take more than
    /// half leave half of a core idle. Arm's drivers and Mesa's name the GPU so.
    pub fn few_registers(&self) -> bool {
        self.device.contains("Mali")
    }

    /// Arithmetic in halves takes less time than in single precision: GPUs of phones, where it is offered. Drivers for CPUs emulate it.
    pub fn fast_half(&self) -> bool {
        self.f16_math && (self.is_called("adreno") || self.few_registers())
    }

    /// Its name or that of its driver contains this text, ASCII case ignored.
    pub fn is_called(&self, text: &str) -> bool {
        super::is_called([&self.device, &self.driver], text)
    }

    /// A device that does not exist, for planning where there is no driver: a GPU that shares the host's memory, with
    /// limits that phones keep to, reached through OpenCL.
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

/// How kernels write the dot product of four bytes with four others, which devices compute by one instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PackedDot {
    /// By single products.
    #[default]
    None,
    /// As the language has it: WGSL.
    Wgsl,
    /// By inline PTX.
    Ptx,
    /// `cl_khr_integer_dot_product`.
    Khr,
    /// `cl_arm_integer_dot_product_accumulate_int8`.
    Arm,
    /// By instructions of an x86 CPU with AVX-512, sixteen words at a time.
    X86,
}

impl PackedDot {
    /// The define that asks for it in OpenCL C (cl/common/dot.cl).
    pub fn define(self) -> Option<&'static str> {
        match self {
            Self::None | Self::Wgsl => None,
            Self::Ptx => Some("PTX"),
            Self::Khr => Some("KHR"),
            Self::Arm => Some("ARM"),
            Self::X86 => Some("X86_BYTES"),
        }
    }

    /// What a CPU or its OpenCL driver lacks for [`PackedDot::X86`]: the compiler must have functions for the instructions of this CPU's 512-bit
    /// vectors, as PoCL's has, which compiles for the CPU that it runs on. `None` where nothing is missing, or where no CPU is asked.
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

    /// By the extensions that an OpenCL driver lists.
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

/// Which of these instruction sets a CPU lacks, or that its driver's compiler has no functions for them.
fn lacks(caps: &Caps, sets: &[(&str, bool)]) -> Option<String> {
    let missing: Vec<&str> = sets.iter().filter(|(_, has)| !has).map(|(set, _)| *set).collect();
    if !missing.is_empty() {
        return Some(format!("the CPU lacks {}", missing.join(" and ")));
    }
    let names: Vec<&str> = sets.iter().map(|(set, _)| *set).collect();
    (!caps.driver.contains("PoCL")).then(|| {
        format!(
            "the driver's compiler is not known to have functions for {}, as PoCL's has",
            names.join(" and ")
        )
    })
}

/// Who names the maker of a GPU.
#[cfg(any(feature = "opencl", feature = "wgpu"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Maker {
    /// The driver, by a PCI number.
    Pci(u32),
    /// The driver is Apple's own (Metal, Apple's OpenCL), which gives no such number.
    ApplesDriver,
}

/// [`Caps::fast_local`]: GPUs of NVIDIA, AMD, Intel and Apple keep local memory beside their cores, and Apple's drivers drive no others. Mali
/// has none, and Adreno's does not beat its caches.
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

    #[test]
    fn what_a_cpu_lacks_for_bytes_is_named() {
        let caps = |driver: &str| Caps {
            driver: driver.to_owned(),
            ..Caps::neutral()
        };
        let at = |driver: &str, wide, bytes| lacks(&caps(driver), &[("AVX512F", wide), ("AVX512BW", bytes)]);
        assert_eq!(at("PoCL 5", true, true), None);
        assert_eq!(at("PoCL 5", true, false).unwrap(), "the CPU lacks AVX512BW");
        assert_eq!(
            at("PoCL 5", false, false).unwrap(),
            "the CPU lacks AVX512F and AVX512BW"
        );
        let other = at("Intel", true, true).unwrap();
        assert!(other.contains("AVX512F and AVX512BW"), "{other}");
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
        // Mali, Adreno, PowerVR, Microsoft's and Mesa's renderers, Intel's OpenCL on a CPU; nothing known.
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
