//! Sums, differences and products in the integer domain.

#[cfg(feature = "cpu")]
pub mod cpu;

crate::forms! {
    /// The function of both operands.
    pub enum Function { Add, Sub = "SUB", Mul = "MUL" }
}

crate::kernel! {
    pub static KERNEL: TypedKernel<Args> = "quantized/int8_binary" {
        count, words, a_words, b_words, a_rows, b_rows, inner: U32;
        a_scale, b_scale, scale, inverse: F32;
        a_zero, b_zero, a_mantissa, a_shift, b_mantissa, b_shift, mantissa, shift, zero, low, high: I32
    } [a: In Uint, b: In Uint, tables: In Uint, y: Out Uint]
    .linear()
}
