//! Pooling in the integer domain.

#[cfg(feature = "cpu")]
pub mod cpu;

/// Computes means that keep scale and zero point, instead of maxima.
pub const MEAN: &str = "MEAN";
/// Computes sums times a factor.
pub const SUM: &str = "SUM";
/// Padding counts as elements.
pub const PADDED: &str = "PADDED";

crate::kernel! {
    pub static KERNEL: TypedKernel<Args> = "quantized/int8_pool" {
        count, in_h, in_w, out_h, out_w, words: U32;
        pad_h, pad_w, end_h, end_w, x_zero, zero, low, high: I32
    } [x: In Uint, factors: OptionalIn Uint, y: Out Uint]
    .linear()
}
