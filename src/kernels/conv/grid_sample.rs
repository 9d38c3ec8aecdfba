//! Samples of an image at given places.

#[cfg(feature = "cpu")]
pub mod cpu;

crate::kernel! {
    pub static KERNEL: TypedKernel<Args> = "conv/grid_sample" {
        count, places, channels, in_h, in_w: U32
    } [x: In, grid: In, y: Out]
    .linear()
}
