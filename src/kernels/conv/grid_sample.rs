//! Samples of an image at given places.

#[cfg(feature = "cpu")]
pub mod cpu;

/// Elements along each axis that a result is computed from.
pub const TAPS: &str = "TAPS";
/// Positions outside are moved to the border.
pub const BORDER: &str = "BORDER";
/// Positions outside are reflected at the border.
pub const REFLECTION: &str = "REFLECTION";
/// -1 and 1 are the centers of the corner elements.
pub const CORNERS: &str = "CORNERS";

crate::kernel! {
    pub static KERNEL: TypedKernel<Args> = "conv/grid_sample" {
        count, places, channels, in_h, in_w: U32
    } [x: In, grid: In, y: Out]
    .linear()
}
