//! Sizes of sub-groups, waves, that kernels in OpenCL C ask for by an attribute, where the driver takes such a request. Without one the compiler
//! chooses.

use super::Caps;
use super::kernel::Form;
use std::fmt;

/// The define by which a kernel asks for a wave: its [`Wave::number`]. It is a [form](FORM) of the kernels that may have it, and changes nothing
/// but how they are compiled.
pub const WAVE: &str = "WAVE";

/// The form of kernels that ask for a wave.
pub const FORM: Form = Form {
    define: WAVE,
    needs: |caps: &Caps| !caps.waves.is_empty(),
};

/// Most work-items of a sub-group of which the number is asked for.
pub const MOST: u32 = 32;

/// What a kernel asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Wave {
    /// Half as many work-items as the GPU has at most, and with them twice the registers: `cl_qcom_reqd_sub_group_size`.
    Half,
    /// As many as the GPU has.
    Full,
    /// So many: `cl_intel_required_subgroup_size`.
    Lanes(u32),
}

impl Wave {
    /// It as a define, and among the numbers that measuring chooses from, where 0 is no request.
    pub fn number(self) -> u32 {
        match self {
            Self::Half => 1,
            Self::Full => 2,
            Self::Lanes(lanes) => lanes,
        }
    }

    /// The wave of a number; `None` for 0. Sub-groups of one or two work-items are none to ask for.
    pub fn of(number: u32) -> Option<Self> {
        match number {
            0 => None,
            1 => Some(Self::Half),
            2 => Some(Self::Full),
            lanes => Some(Self::Lanes(lanes)),
        }
    }

    /// Work-groups of so many items can be cut in such waves.
    pub fn divides(self, items: u32) -> bool {
        match self {
            Self::Half | Self::Full => true,
            Self::Lanes(lanes) => items.is_multiple_of(lanes),
        }
    }

    /// The line that lets a text use the attribute; empty where none is needed.
    pub(super) fn pragma(self) -> &'static str {
        match self {
            Self::Half | Self::Full => "#pragma OPENCL EXTENSION cl_qcom_reqd_sub_group_size : enable\n",
            Self::Lanes(_) => "",
        }
    }

    /// The attribute, which stands before `void`.
    pub(super) fn attribute(self) -> String {
        match self {
            Self::Half => "__attribute__((qcom_reqd_sub_group_size(\"half\"))) ".to_owned(),
            Self::Full => "__attribute__((qcom_reqd_sub_group_size(\"full\"))) ".to_owned(),
            Self::Lanes(lanes) => format!("__attribute__((intel_reqd_sub_group_size({lanes}))) "),
        }
    }
}

impl fmt::Display for Wave {
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
    fn waves_are_their_numbers() {
        for wave in [Wave::Half, Wave::Full, Wave::Lanes(8), Wave::Lanes(16)] {
            assert_eq!(Wave::of(wave.number()), Some(wave));
        }
        assert_eq!(Wave::of(0), None);
        assert!(Wave::Half.divides(24) && Wave::Lanes(8).divides(24) && !Wave::Lanes(16).divides(24));
    }
}
