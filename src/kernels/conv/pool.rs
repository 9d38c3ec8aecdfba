//! Pooling over windows.

#[cfg(feature = "cpu")]
pub mod cpu;

/// Computes means instead of maxima.
pub const MEAN: &str = "MEAN";
/// Padding counts as elements.
pub const PADDED: &str = "PADDED";
/// Computes norms of this order.
pub const NORM: &str = "NORM";

crate::kernel! {
    pub static KERNEL: TypedKernel<Args> = "conv/pool" {
        count, in_h, in_w, out_h, out_w: U32; pad_h, pad_w, end_h, end_w: I32
    } [x: In, y: Out]
    .linear()
}
