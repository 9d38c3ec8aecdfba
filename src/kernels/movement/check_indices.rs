//! Checks indices that come from data.

#[cfg(feature = "cpu")]
pub mod cpu;

crate::kernel! {
    pub static KERNEL: TypedKernel<Args> = "movement/check_indices" {
        count, columns: U32; n0, n1, n2, n3, code: I32
    } [x: In, fault: PartialOut Single]
    .linear()
}
