//! Instructions for dot products of 8-bit values, as OpenCL C kernels select them (`common/dot`).

use super::{Call, DeviceProfile};
use crate::backend::PackedDot;
use crate::backend::kernel::{Features, Form, Kernel};

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

/// Selects the dot products of the device for a kernel with these [`FORMS`].
pub fn select<A>(device: &DeviceProfile, kernel: &'static Kernel, call: Call<A>) -> Call<A> {
    let define = device.packed_dot.define();
    match define.filter(|d| device.supports_form(kernel, d)) {
        Some(define) => call.define(define, 1),
        None => call,
    }
}
