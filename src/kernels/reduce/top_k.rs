//! The largest or smallest elements.

#[cfg(feature = "cpu")]
pub mod cpu;

crate::kernel! {
    pub static KERNEL: TypedKernel<Args> = "reduce/top_k" {
        count, n, inner, kept: U32
    } [x: In, y: Out Single, at: Out Single]
    .linear()
}
