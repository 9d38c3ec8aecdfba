//! Instruction sets of processors.

use std::fmt;

/// An instruction set that kernels have a form for. Those of one architecture are in
/// order: each includes the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Plain Rust.
    Portable,
    /// x86: AVX2, FMA and F16C.
    Avx2,
    /// AVX2 with AVX-VNNI (256 bits).
    AvxVnni,
    /// AVX-512 F, BW, VL and VNNI.
    Avx512Vnni,
    /// Arm: NEON without dot products.
    Neon,
    /// NEON with `sdot` and half conversions.
    NeonDot,
    /// NEON with `smmla`.
    NeonI8mm,
}

impl Isa {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Portable,
        Self::Avx2,
        Self::AvxVnni,
        Self::Avx512Vnni,
        Self::Neon,
        Self::NeonDot,
        Self::NeonI8mm,
    ];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::AvxVnni => "avx-vnni",
            Self::Avx512Vnni => "avx512-vnni",
            Self::Neon => "neon",
            Self::NeonDot => "neon-dot",
            Self::NeonI8mm => "neon-i8mm",
        }
    }

    /// What it is, as text for users.
    pub const fn about(self) -> &'static str {
        match self {
            Self::Portable => "No vector instructions of a particular processor",
            Self::Avx2 => "x86 with AVX2, FMA and F16C",
            Self::AvxVnni => "AVX2 with AVX-VNNI",
            Self::Avx512Vnni => "x86 with AVX-512 and its int8 dot products (VNNI)",
            Self::Neon => "Arm without dot products",
            Self::NeonDot => "Arm with int8 dot products",
            Self::NeonI8mm => "Arm with int8 matrix multiply (I8MM)",
        }
    }

    /// Whether this processor has it.
    pub fn is_supported(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => Self::Avx2.is_supported() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => {
                Self::Avx2.is_supported()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "aarch64")]
            Self::Neon => true,
            #[cfg(target_arch = "aarch64")]
            Self::NeonDot => {
                std::arch::is_aarch64_feature_detected!("dotprod")
                    && std::arch::is_aarch64_feature_detected!("fp16")
            }
            #[cfg(target_arch = "aarch64")]
            Self::NeonI8mm => Self::NeonDot.is_supported() && std::arch::is_aarch64_feature_detected!("i8mm"),
            _ => false,
        }
    }

    /// Those of this processor, from the slowest to the best.
    pub fn supported() -> impl DoubleEndedIterator<Item = Self> {
        Self::ALL.into_iter().filter(|isa| isa.is_supported())
    }

    /// The best one of this processor.
    pub fn best() -> Self {
        Self::supported().next_back().unwrap_or(Self::Portable)
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The name of the processor, or of its architecture if the system does not tell.
pub fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        let named = matches!(key.trim(), "model name" | "Hardware");
        (named && !value.trim().is_empty()).then(|| value.trim().to_owned())
    });
    name.unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}
