//! Appends keys or values to a KV cache.

#[cfg(feature = "cpu")]
pub mod cpu;

/// Capacity of a cache that wraps.
pub const RING: &str = "RING";

crate::kernel! {
    pub static KERNEL: TypedKernel<Args> = "attention/kv_append" {
        count, start, row: U32
    } [x: In, places: OptionalIn, live: Weight, state: PartialOut]
    .linear()
    .finite_halves()
}
