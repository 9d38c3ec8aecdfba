//! Matmul of 8-bit integers.

#[cfg(feature = "cpu")]
pub mod cpu;

/// The left operand is signed.
pub const SIGNED: &str = "SIGNED";

crate::kernel! {
    pub static KERNEL: TypedKernel<Args> = "quantized/matmul_integer" {
        m, n, k, za_step, zb_step, batches, n1, n2, a0, a1, a2, b0, b1, b2: U32
    } [a: In, b: OptionalIn, w: OptionalIn Uint, za: OptionalIn, zb: OptionalIn, y: Out]
}
