//! Reductions over axes.

#[cfg(feature = "cpu")]
pub mod cpu;

crate::kernel! {
    pub static KERNEL: TypedKernel<Args> = "reduce/reduce" {
        rows, cols, n1, n2, k0, k1, k2, m1, m2, r0, r1, r2: U32
    } [x: In, y: Out]
    .wide()
}
