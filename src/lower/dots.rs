//! Instructions for dot products of 8-bit values, as OpenCL C kernels select them (`common/dot`).

use super::{Call, DeviceProfile};
use crate::backend::kernel::Kernel;

/// Selects the dot products of the device for a kernel with the forms
/// [`dots`](crate::kernels::dots).
pub fn select<A>(device: &DeviceProfile, kernel: &'static Kernel, call: Call<A>) -> Call<A> {
    let define = device.packed_dot.define();
    match define.filter(|d| device.supports_form(kernel, d)) {
        Some(define) => call.define(define, 1),
        None => call,
    }
}
