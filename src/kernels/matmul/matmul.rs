//! Matmul of floats.

#[cfg(feature = "cpu")]
pub mod cpu;
#[cfg(feature = "cpu")]
pub mod cpu_panels;

/// The right operand is transposed.
pub const TRANS_B: &str = "TRANS_B";

crate::kernel! {
    pub static KERNEL: TypedKernel<Args> = "matmul/matmul" {
        m, n, k, b_stride, y_stride, column, n1, n2, a0, a1, a2, b0, b1, b2, batches: U32
    } [a: In, b: In, y: PartialOut]
    .finite_halves()
}

crate::kernel! {
    /// The variant tiled in local memory.
    pub static TILED: TypedKernel<Args> = "matmul/matmul_tiled" with [y: PartialOut Single]
    .variant_of(&KERNEL.kernel, |device| device.fast_local)
    .finite_halves()
}

crate::kernel! {
    /// A constant right operand in panels of columns.
    pub static PANELS: TypedKernel<PanelArgs> = native "matmul/matmul_panels" { m, n, k: U32 } [x: In, w: In, y: Out]
}
