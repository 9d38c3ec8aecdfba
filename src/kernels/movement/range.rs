//! Numbers at equal distances.

#[cfg(feature = "cpu")]
pub mod cpu;

crate::kernel! {
    pub static KERNEL: TypedKernel<Args> = "movement/range" {
        count, start: U32; delta: I32
    } [live: Weight, y: Out]
    .linear()
}
