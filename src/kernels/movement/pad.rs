//! Padding.

#[cfg(feature = "cpu")]
pub mod cpu;

crate::forms! {
    /// What the elements outside the operand are.
    pub enum Mode { Constant, Edge = "EDGE", Reflect = "REFLECT", Wrap = "WRAP" }
}

crate::kernel! {
    pub static KERNEL: TypedKernel<Args> = "movement/pad" {
        count, n0, n1, n2, n3: U32; m0, m1, m2, m3, m4, b0, b1, b2, b3, b4: I32; fill: F32
    } [x: In, value: OptionalIn, y: Out]
    .linear()
}
