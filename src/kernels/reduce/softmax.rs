//! Softmax and its variants.

#[cfg(feature = "cpu")]
pub mod cpu;
#[cfg(feature = "cpu")]
pub mod cpu_axis;

crate::forms! {
    /// What is computed of each row.
    pub enum Form { Plain, Log = "LOG", Hard = "HARDMAX" }
}

crate::kernel! {
    /// Kernel for the last axes.
    pub static LAST: TypedKernel<Args> = "reduce/softmax" { rows, cols: U32 } [x: In, y: Out]
}

crate::kernel! {
    /// Kernel for an inner axis.
    pub static INNER: TypedKernel<InnerArgs> = "reduce/softmax_axis" {
        outer, cols, inner: U32
    } [x: In, y: Out Single]
    .linear()
}
