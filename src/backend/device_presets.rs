//! Phone GPUs as data, for planning without a phone.
//!
//! Limits and features are those of Mesa's drivers: rusticl for OpenCL, Turnip and `PanVK` for
//! Vulkan, with which the kernels are compiled without a phone (`tools/phone_compile`). The
//! vendors' drivers offer at least as much, except OpenCL subgroups, which they have and rusticl
//! lacks.

use super::kernel::Language;
use super::kernel::image::{ImageKind, Images};
use super::{BackendKind, Caps, DeviceKind, DeviceProfile, KernelCode, PackedDot, is_called};

/// A family of GPUs with common properties that drivers do not report
/// ([`DeviceProfile::set_family`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Qualcomm's GPUs.
    Adreno,
    /// Arm's GPUs. A work-item has 64 registers of 32 bits, and threads that use more than half of
    /// them leave half of a core idle.
    Mali,
}

impl Family {
    pub const ALL: [Self; 2] = [Self::Adreno, Self::Mali];

    /// The family of a GPU, by the names that its driver reports. Arm's drivers and Mesa both
    /// report "Mali" as the device.
    pub fn named(device: &str, driver: &str) -> Option<Self> {
        if is_called(&[device, driver], "adreno") {
            return Some(Self::Adreno);
        }
        device.contains("Mali").then_some(Self::Mali)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phone {
    /// Short name, such as `adreno-750`.
    pub name: &'static str,
    /// Device name that drivers report.
    pub device: &'static str,
    /// A system on chip with this GPU.
    pub chip: &'static str,
    /// Compute units in that chip.
    pub units: u32,
    family: Family,
}

const fn phone(
    name: &'static str,
    device: &'static str,
    chip: &'static str,
    units: u32,
    family: Family,
) -> Phone {
    Phone {
        name,
        device,
        chip,
        units,
        family,
    }
}

/// The GPUs that kernels are compiled for offline.
pub const PHONES: &[Phone] = &[
    phone(
        "adreno-740",
        "Adreno (TM) 740",
        "Snapdragon 8 Gen 2",
        6,
        Family::Adreno,
    ),
    phone(
        "adreno-750",
        "Adreno (TM) 750",
        "Snapdragon 8 Gen 3",
        6,
        Family::Adreno,
    ),
    phone(
        "adreno-830",
        "Adreno (TM) 830",
        "Snapdragon 8 Elite",
        6,
        Family::Adreno,
    ),
    phone("mali-g610", "Mali-G610", "Dimensity 8200", 6, Family::Mali),
    phone("mali-g720", "Mali-G720", "Dimensity 9300", 12, Family::Mali),
];

/// Reported by Qualcomm's and Mesa's drivers alike.
const ADRENO_IMAGES: Images = Images {
    max_pixels: 1 << 27,
    max_rows: 1 << 14,
    pitch_align: 64,
    base_align: 64,
    reads: Some(ImageKind::Image1dBuffer),
};

impl Phone {
    /// The GPU with this short name.
    pub fn find(name: &str) -> Option<&'static Self> {
        PHONES.iter().find(|p| p.name == name)
    }

    /// Its capabilities through the backend with kernels in `language`. Local memory is not faster
    /// than the caches on any of these GPUs.
    pub fn caps(&self, language: Language) -> Caps {
        let adreno = self.family == Family::Adreno;
        let profile = DeviceProfile {
            dedicated_memory: false,
            local_bytes: 1 << 15,
            fast_local: false,
            compute_units: self.units,
            max_workgroup: 1024,
            max_grid: 65_535,
            code: KernelCode::Source(language),
            ..DeviceProfile::generic_gpu()
        };
        let mut profile = match language {
            Language::OpenClC => DeviceProfile {
                view_align: 128,
                max_view_bytes: (1 << 31) - 4,
                max_workgroup: if adreno { 1024 } else { 256 },
                subgroup: None,
                f16_math: true,
                images: if adreno { ADRENO_IMAGES } else { Images::default() },
                packed_dot: PackedDot::Khr,
                ..profile
            },
            Language::Wgsl => DeviceProfile {
                view_align: if adreno { 32 } else { 64 },
                max_view_bytes: if adreno { 1 << 27 } else { (1 << 31) - 4 },
                subgroup: Some(if adreno { 64 } else { 16 }),
                // Turnip has the arithmetic, but not the 16-bit uniforms that wgpu requests with
                // it.
                f16_math: !adreno,
                packed_dot: PackedDot::Wgsl,
                ..profile
            },
        };
        profile.set_family(Some(self.family));
        let (backend, params_align) = match language {
            Language::OpenClC => (BackendKind::OpenCl, 4),
            Language::Wgsl => (BackendKind::Wgpu, 64),
        };
        Caps {
            backend: backend.name(),
            device: self.device.to_owned(),
            driver: "none".to_owned(),
            kind: DeviceKind::Integrated,
            profile,
            params_align,
            max_buffer_bytes: (1 << 31) - 4,
            profiling: true,
            ..Caps::generic_gpu()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phones_have_names_of_their_own_and_keep_what_caps_promise() {
        for (i, phone) in PHONES.iter().enumerate() {
            assert_eq!(Phone::find(phone.name), Some(phone));
            assert!(PHONES.iter().skip(i + 1).all(|p| p.device != phone.device));
            for language in Language::ALL {
                let caps = phone.caps(language);
                assert_eq!(caps.profile.language(), Some(language));
                assert!(caps.params_align.is_power_of_two());
                let device = &caps.profile;
                assert!(device.view_align.is_power_of_two() && device.view_align >= 16);
                assert!(device.max_view_bytes % 4 == 0 && device.max_view_bytes <= caps.max_buffer_bytes);
                assert_eq!(device.few_registers, phone.name.starts_with("mali"));
                assert_eq!(device.fast_f16, device.f16_math);
                assert!(!device.fast_local);
                assert_eq!(Family::named(&caps.device, &caps.driver), Some(phone.family));
            }
        }
        assert_eq!(Phone::find("adreno"), None);
    }
}
