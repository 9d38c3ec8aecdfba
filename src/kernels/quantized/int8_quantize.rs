//! Changes between floats and the integer domain.

#[cfg(feature = "cpu")]
pub mod cpu;

crate::kernel! {
    pub static QUANTIZE: TypedKernel<QuantizeArgs> = "quantized/int8_quantize" {
        count, channels, words, inner: U32; scale, inverse: F32; zero, low, high: I32
    } [x: In, thresholds: In Uint, y: Out Uint]
    .linear()
}

crate::kernel! {
    pub static DEQUANTIZE: TypedKernel<DequantizeArgs> = "quantized/int8_dequantize" {
        count, channels, stride, inner: U32; scale: F32; zero: I32
    } [x: In Uint, y: Out]
    .linear()
}
