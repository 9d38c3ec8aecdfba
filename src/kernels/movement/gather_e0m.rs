//! Rows of a quantized table.

#[cfg(feature = "cpu")]
pub mod cpu;

crate::kernel! {
    pub static KERNEL: TypedKernel<Args> = "movement/gather_e0m" {
        count, k, panel: U32; table_rows, first, part_rows: I32
    } [codes: Weight Uint4, scales: Weight Uint4, index: In, y: PartialOut]
    .linear()
    .finite_halves()
}
