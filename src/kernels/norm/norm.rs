//! Normalization of rows.

#[cfg(feature = "cpu")]
pub mod cpu;

/// Work-items per work-group of [`ROW`].
pub const ROW_ITEMS: u32 = 256;

/// Subtracts the mean.
pub const CENTER: &str = "CENTER";
/// Each column has a scale.
pub const BY_COLUMN: &str = "BY_COLUMN";

crate::kernel! {
    /// Kernel for all normalizations of rows.
    pub static KERNEL: TypedKernel<Args> = "norm/norm" {
        rows, cols, sets, per, run: U32; epsilon: F32
    } [x: In, scale: OptionalIn, bias: OptionalIn, mean: OptionalIn, variance: OptionalIn, y: Out]
    .finite_halves()
}

crate::kernel! {
    /// Kernel for rows without mean and bias, with work-groups of [`ROW_ITEMS`].
    pub static ROW: TypedKernel<RowArgs> = "norm/norm_row" {
        cols: U32; epsilon: F32
    } [x: In, scale: In, y: Out]
    .variant_of(&KERNEL.kernel, |device| device.fast_local && device.max_workgroup >= ROW_ITEMS)
    .finite_halves()
}
