//! Softmax in the integer domain.

#[cfg(feature = "cpu")]
pub mod cpu;

crate::kernel! {
    pub static KERNEL: TypedKernel<Args> = "quantized/int8_softmax" { rows, channels, words: U32 }
        [x: In Uint, table: In Uint, y: Out Uint]
    .linear()
}
