//! Resizing of images.

#[cfg(feature = "cpu")]
pub mod cpu;

/// Index of the coordinate transformation.
pub const COORDINATES: &str = "COORDINATES";
/// Elements along each axis that a result is computed from.
pub const TAPS: &str = "TAPS";
/// Index of the rounding of mode `nearest`.
pub const ROUNDING: &str = "ROUNDING";
/// Rows are resized too, not only columns.
pub const HIGH: &str = "HIGH";
/// Elements outside the operand have no weight.
pub const INSIDE_ONLY: &str = "INSIDE_ONLY";

crate::kernel! {
    pub static KERNEL: TypedKernel<Args> = "conv/resize" {
        count, in_h, out_h, mid, in_w, out_w, inner, step_h, unit_h, step_w, unit_w: U32;
        first_h, first_w: I32;
        start_h, end_h, start_w, end_w, cubic, outside: F32
    } [x: In, y: Out]
    .linear()
}
