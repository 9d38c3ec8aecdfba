//! Subgroup sizes ("waves" on AMD and Qualcomm GPUs) that OpenCL C kernels request by an
//! attribute, if the driver supports one. Without a request the compiler chooses.

use super::{Features, Form};
use crate::backend::DeviceProfile;
use std::fmt;

/// The define by which a kernel requests a subgroup size: its [`SubgroupSize::number`]. It is a
/// [form](FORM) of the kernels that allow it, and changes only how they are compiled.
pub const DEFINE: &str = "WAVE";

/// The form of kernels that request a subgroup size.
pub const FORM: Form = Form {
    define: DEFINE,
    needs: |device: &DeviceProfile| !device.subgroup_sizes.is_empty(),
    features: Features::NONE,
};

/// Largest subgroup size, in work-items, that is requested by number.
pub const MAX_LANES: u32 = 32;

/// A requested subgroup size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SubgroupSize {
    /// Half of the GPU's maximum size, which doubles the registers per work-item:
    /// `cl_qcom_reqd_sub_group_size`.
    Half,
    /// The GPU's maximum size: `cl_qcom_reqd_sub_group_size`.
    Full,
    /// This many work-items: `cl_intel_required_subgroup_size`.
    Lanes(u32),
}

impl SubgroupSize {
    /// The size as a define, and as a tunable setting, where 0 means no request.
    pub fn number(self) -> u32 {
        match self {
            Self::Half => 1,
            Self::Full => 2,
            Self::Lanes(lanes) => lanes,
        }
    }

    /// The size for a number; `None` for 0. Subgroups of one or two work-items are never
    /// requested.
    pub fn of(number: u32) -> Option<Self> {
        match number {
            0 => None,
            1 => Some(Self::Half),
            2 => Some(Self::Full),
            lanes => Some(Self::Lanes(lanes)),
        }
    }

    /// Whether work-groups of this many work-items split evenly into such subgroups.
    pub fn divides(self, items: u32) -> bool {
        match self {
            Self::Half | Self::Full => true,
            Self::Lanes(lanes) => items.is_multiple_of(lanes),
        }
    }

    /// The pragma that enables the attribute; empty if none is needed.
    pub(super) fn pragma(self) -> &'static str {
        match self {
            Self::Half | Self::Full => "#pragma OPENCL EXTENSION cl_qcom_reqd_sub_group_size : enable\n",
            Self::Lanes(_) => "",
        }
    }

    /// The attribute, placed before `void`.
    pub(super) fn attribute(self) -> String {
        match self {
            Self::Half => "__attribute__((qcom_reqd_sub_group_size(\"half\"))) ".to_owned(),
            Self::Full => "__attribute__((qcom_reqd_sub_group_size(\"full\"))) ".to_owned(),
            Self::Lanes(lanes) => format!("__attribute__((intel_reqd_sub_group_size({lanes}))) "),
        }
    }
}

impl fmt::Display for SubgroupSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Half => f.write_str("half wave"),
            Self::Full => f.write_str("full wave"),
            Self::Lanes(lanes) => write!(f, "waves of {lanes}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_sizes_agree() {
        for subgroup in [
            SubgroupSize::Half,
            SubgroupSize::Full,
            SubgroupSize::Lanes(8),
            SubgroupSize::Lanes(16),
        ] {
            assert_eq!(SubgroupSize::of(subgroup.number()), Some(subgroup));
        }
        assert_eq!(SubgroupSize::of(0), None);
        assert!(
            SubgroupSize::Half.divides(24)
                && SubgroupSize::Lanes(8).divides(24)
                && !SubgroupSize::Lanes(16).divides(24)
        );
    }
}
