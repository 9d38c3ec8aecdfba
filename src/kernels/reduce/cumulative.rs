//! Running sums and products.

#[cfg(feature = "cpu")]
pub mod cpu;

crate::kernel! {
    pub static KERNEL: TypedKernel<Args> = "reduce/cumulative" {
        lines, cols, inner: U32
    } [x: In, y: Out Single]
    .linear()
    .wide()
}
