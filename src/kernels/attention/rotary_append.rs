//! Rotary position embedding of queries and keys; appends the keys to a KV cache.

#[cfg(feature = "cpu")]
pub mod cpu;

crate::kernel! {
    pub static KERNEL: TypedKernel<Args> = "attention/rotary_append" {
        queries, count, heads, kv_heads, dim, angles, start: U32
    } [
        q: In, k: In, v: In, cosine: In, sine: In, places: OptionalIn, live: Weight, y: Out,
        keys: PartialOut, values: PartialOut
    ]
    .linear()
    .finite_halves()
}
