//! Pooling over windows.

#[cfg(feature = "cpu")]
pub mod cpu;

crate::kernel! {
    pub static KERNEL: TypedKernel<Args> = "conv/pool" {
        count, in_h, in_w, out_h, out_w: U32; pad_h, pad_w, end_h, end_w: I32
    } [x: In, y: Out]
    .linear()
}
