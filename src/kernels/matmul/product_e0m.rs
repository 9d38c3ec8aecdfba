//! Matmul with quantized weights, native kernels only.

#[cfg(feature = "cpu")]
pub mod cpu;
#[cfg(feature = "cpu")]
pub mod cpu_float;
#[cfg(feature = "cpu")]
pub mod cpu_quantize;

use crate::backend::kernel::{Feature, Features};

/// Activations with a common scale.
pub const BLOCK: &str = "BLOCK";
/// Bytes per activation.
pub const PLANES: &str = "PLANES";
/// Normalizes rows first.
pub const NORM: &str = "NORM";

crate::kernel! {
    /// Quantizes rows, after normalizing them with NORM.
    pub static QUANTIZE: TypedKernel<QuantizeArgs> = native "matmul/quantize_activations" {
        rows, k: U32; epsilon: F32
    } [x: In, gain: OptionalIn, y: Out Uint, factors: Out Uint]
}

crate::kernel! {
    /// Kernel for any number of quantized rows.
    pub static PRODUCT: TypedKernel<ProductArgs> = native "matmul/product_e0m" {
        m, n, k, y_stride, column, end0, end1, start1, start2: U32
    } [
        x: In Uint, factors: In Uint, codes: Weight Uint4, scales: Weight Uint4,
        codes2: OptionalWeight Uint4, scales2: OptionalWeight Uint4, y: PartialOut
    ]
    .with_features(Features::all(&[Feature::PackedDot]))
}

crate::kernel! {
    /// Kernel for any number of rows of floats.
    pub static FLOAT_PRODUCT: TypedKernel<FloatArgs> = native "matmul/product_e0m_float" {
        m, n, k, y_stride, column, end0, end1, start1, start2: U32
    } [
        x: In, codes: Weight Uint4, scales: Weight Uint4,
        codes2: OptionalWeight Uint4, scales2: OptionalWeight Uint4, y: PartialOut
    ]
}
