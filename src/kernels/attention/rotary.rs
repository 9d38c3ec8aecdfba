//! Rotary position embedding.

#[cfg(feature = "cpu")]
pub mod cpu;

/// Neighbouring elements form a pair, instead of those of the two halves.
pub const NEIGHBOURS: &str = "NEIGHBOURS";

crate::kernel! {
    pub static KERNEL: TypedKernel<Args> = "attention/rotary" {
        count, heads, dim, angles: U32
    } [x: In, cosine: In, sine: In, y: Out]
    .linear()
    .finite_halves()
}
