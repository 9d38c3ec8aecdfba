//! Index of the largest or smallest element.

#[cfg(feature = "cpu")]
pub mod cpu;

crate::kernel! {
    pub static KERNEL: TypedKernel<Args> = "reduce/arg_max" { count, cols, inner: U32 } [x: In, y: Out]
    .linear()
}
