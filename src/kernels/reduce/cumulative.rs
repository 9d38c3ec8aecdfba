//! Running sums and products.

#[cfg(feature = "cpu")]
pub mod cpu;

/// Multiplies instead of adding.
pub const PRODUCT: &str = "PRODUCT";
/// Leaves out the element itself.
pub const EXCLUSIVE: &str = "EXCLUSIVE";
/// Begins at the end.
pub const REVERSE: &str = "REVERSE";

crate::kernel! {
    pub static KERNEL: TypedKernel<Args> = "reduce/cumulative" {
        lines, cols, inner: U32
    } [x: In, y: Out Single]
    .linear()
    .wide()
}
