//! Instructions for dot products of 8-bit values, as OpenCL C kernels select them (`common/dot`).

use crate::backend::PackedDot;
use crate::backend::kernel::{Features, Form};

macro_rules! dots {
    ($define:literal, $dot:ident) => {
        Form {
            define: $define,
            needs: |device| device.packed_dot == PackedDot::$dot,
            features: Features::NONE,
        }
    };
}

/// The forms of a kernel that includes `common/dot`.
pub const FORMS: &[Form] = &[dots!("PTX", Ptx), dots!("KHR", Khr), dots!("ARM", Arm)];
