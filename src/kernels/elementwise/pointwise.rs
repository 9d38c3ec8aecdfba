//! Elementwise functions. The function is the epilogue of a kernel without operands.

#[cfg(feature = "cpu")]
pub mod cpu;

crate::kernel! {
    pub static KERNEL: TypedKernel<Args> = "elementwise/pointwise" { count: U32 } [y: Out]
    .linear()
    .wide()
}
