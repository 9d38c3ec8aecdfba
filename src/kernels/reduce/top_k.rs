//! The largest or smallest elements.

#[cfg(feature = "cpu")]
pub mod cpu;

/// Takes the largest elements instead of the smallest.
pub const LARGEST: &str = "LARGEST";
/// Elements are floats.
pub const FLOATS: &str = "FLOATS";

crate::kernel! {
    pub static KERNEL: TypedKernel<Args> = "reduce/top_k" {
        count, n, inner, kept: U32
    } [x: In, y: Out Single, at: Out Single]
    .linear()
}
