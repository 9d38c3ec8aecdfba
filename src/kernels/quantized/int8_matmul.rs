//! Matmul in the integer domain.

#[cfg(feature = "cpu")]
pub mod cpu;

use crate::backend::kernel::{Feature, Features};
use crate::kernels::dots;

crate::kernel! {
    pub static KERNEL: TypedKernel<Args> = "quantized/int8_matmul" {
        m, n, k, words, tail, outputs, a_step, b_step, batch: U32;
        a_zero, b_zero, mantissa, shift, zero, low, high: I32; factor: F32
    } [a: In Uint, b: In Uint, y: Out Uint]
    .with_features(Features::all(&[Feature::PackedDot]))
    .with_forms(dots::FORMS)
}
