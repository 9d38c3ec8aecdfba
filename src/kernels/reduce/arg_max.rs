//! Index of the largest or smallest element.

#[cfg(feature = "cpu")]
pub mod cpu;

/// Finds the smallest element.
pub const SMALLEST: &str = "SMALLEST";
/// The last of equal elements counts.
pub const LAST: &str = "LAST";
/// Elements are floats.
pub const FLOATS: &str = "FLOATS";

crate::kernel! {
    pub static KERNEL: TypedKernel<Args> = "reduce/arg_max" { count, cols, inner: U32 } [x: In, y: Out]
    .linear()
}
