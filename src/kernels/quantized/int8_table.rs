//! Functions of one 8-bit value, by table.

#[cfg(feature = "cpu")]
pub mod cpu;

crate::kernel! {
    pub static KERNEL: TypedKernel<Args> = "quantized/int8_table" { count: U32 } [x: In Uint, table: In Uint, y: Out Uint]
    .linear()
}
