//! Convolution in the integer domain.

#[cfg(feature = "cpu")]
pub mod cpu;
#[cfg(feature = "cpu")]
pub mod cpu_depthwise;

use crate::backend::kernel::{Feature, Features};
use crate::kernels::dots;

crate::kernel! {
    pub static KERNEL: TypedKernel<Args> = "quantized/int8_conv" {
        in_h, in_w, out_h, out_w, depth, words, group, outputs, rows: U32;
        pad_h, pad_w, x_zero, zero, low, high: I32
    } [x: In Uint, w: In Uint, bias: In Uint, factors: In Uint, y: Out Uint]
    .with_features(Features::all(&[Feature::PackedDot]))
    .with_forms(dots::FORMS)
}

crate::kernel! {
    pub static DEPTHWISE: TypedKernel<DepthwiseArgs> = "quantized/int8_depthwise" {
        in_h, in_w, out_h, out_w, words, rows: U32;
        pad_h, pad_w, x_zero, zero, low, high: I32
    } [x: In Uint, w: In Uint, bias: In Uint, factors: In Uint, y: Out Uint]
    .linear()
}
