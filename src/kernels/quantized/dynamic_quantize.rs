//! Quantization with a scale from the data.

#[cfg(feature = "cpu")]
pub mod cpu;

crate::kernel! {
    pub static KERNEL: TypedKernel<Args> = "quantized/dynamic_quantize" {
        count: U32
    } [x: In, y: Out, scale: Out, zero: Out]
}
