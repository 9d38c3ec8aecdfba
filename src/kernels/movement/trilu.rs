//! The upper or lower triangle of matrices.

#[cfg(feature = "cpu")]
pub mod cpu;

/// Keeps the upper triangle instead of the lower one.
pub const UPPER: &str = "UPPER";

crate::kernel! {
    pub static KERNEL: TypedKernel<Args> = "movement/trilu" {
        count, rows, cols: U32; diagonal: I32
    } [x: In, y: Out]
    .linear()
    .wide()
}
