//! Rows of a table.

#[cfg(feature = "cpu")]
pub mod cpu;

crate::kernel! {
    pub static KERNEL: TypedKernel<Args> = "movement/gather" {
        count, row, indices: U32; table_rows, first, part_rows: I32
    } [table: In, index: In, y: InOut]
    .linear()
}
