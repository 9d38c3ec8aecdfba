//! Concatenation of two operands.

#[cfg(feature = "cpu")]
pub mod cpu;

crate::kernel! {
    pub static KERNEL: TypedKernel<Args> = "movement/concat" { count, a_len, b_len: U32 } [a: In, b: In, y: Out]
    .linear()
}
