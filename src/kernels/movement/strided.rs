//! A copy with strides, such as a transposition.

#[cfg(feature = "cpu")]
pub mod cpu;

/// Number of axes.
pub const RANK: &str = "RANK";

crate::kernel! {
    pub static KERNEL: TypedKernel<Args> = "movement/strided" {
        count: U32; start: I32; n1, n2, n3, n4, n5: U32; s0, s1, s2, s3, s4, s5: I32
    } [x: In, live: OptionalIn, y: Out]
    .linear()
}
