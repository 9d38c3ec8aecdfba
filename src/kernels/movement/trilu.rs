//! The upper or lower triangle of matrices.

#[cfg(feature = "cpu")]
pub mod cpu;

crate::kernel! {
    pub static KERNEL: TypedKernel<Args> = "movement/trilu" {
        count, rows, cols: U32; diagonal: I32
    } [x: In, y: Out]
    .linear()
    .wide()
}
