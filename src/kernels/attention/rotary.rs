//! Rotary position embedding.

#[cfg(feature = "cpu")]
pub mod cpu;

crate::kernel! {
    pub static KERNEL: TypedKernel<Args> = "attention/rotary" {
        count, heads, dim, angles: U32
    } [x: In, cosine: In, sine: In, y: Out]
    .linear()
    .finite_halves()
}
