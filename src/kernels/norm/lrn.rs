//! Local response normalization.

#[cfg(feature = "cpu")]
pub mod cpu;

crate::kernel! {
    pub static KERNEL: TypedKernel<Args> = "norm/lrn" {
        count, channels, plane, before, after: U32; factor, bias, beta: F32
    } [x: In, y: Out]
    .linear()
}
