//! Resizing of images.

#[cfg(feature = "cpu")]
pub mod cpu;

crate::kernel! {
    pub static KERNEL: TypedKernel<Args> = "conv/resize" {
        count, in_h, out_h, mid, in_w, out_w, inner, step_h, unit_h, step_w, unit_w: U32;
        first_h, first_w: I32;
        start_h, end_h, start_w, end_w, cubic, outside: F32
    } [x: In, y: Out]
    .linear()
}
