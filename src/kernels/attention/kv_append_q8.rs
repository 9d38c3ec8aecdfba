//! Appends keys or values to an 8-bit KV cache.

#[cfg(feature = "cpu")]
pub mod cpu;

/// Elements of a head.
pub const DIM: &str = "DIM";

crate::kernel! {
    pub static KERNEL: TypedKernel<Args> = "attention/kv_append_q8" {
        rows, start, heads: U32
    } [x: In, places: OptionalIn, live: Weight, state: PartialOut Uint]
    .finite_halves()
}
