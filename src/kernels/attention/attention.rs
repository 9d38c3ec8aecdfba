//! Attention over a KV cache.

#[cfg(feature = "cpu")]
pub mod cpu;

use crate::backend::kernel::{Feature, Features, Language};

/// Work-items per work-group on tensor cores (32 of them process 16 rows, all of them a tile of
/// [`crate::graph::op::paged_attention`]) and the local memory they use.
pub const TENSOR_CORE_NEEDS: (u32, u32) = (128, 46 << 10);

/// Work-items per work-group of the kernel for one row.
pub const ROW_ITEMS: u32 = 256;

/// Elements of a head.
pub const DIM: &str = "DIM";
/// Keys and values have 8 bits.
pub const Q8: &str = "Q8";
/// Each query sees the keys up to its own position.
pub const CAUSAL: &str = "CAUSAL";
/// Scores are limited by `softcap`.
pub const CAPPED: &str = "CAPPED";
/// Number of last keys that a query sees.
pub const WINDOW: &str = "WINDOW";

crate::kernel! {
    pub static KERNEL: TypedKernel<Args> = "attention/attention" {
        heads, kv_heads, rows, keys, live_keys, mask_b, mask_h, mask_s, mask_t: U32;
        scale, softcap: F32;
        pieces: U32
    } [
        q: In, k: In, v: In, mask: OptionalIn, tiles: OptionalIn, pages: OptionalIn, live: Weight,
        y: Out
    ]
    .finite_halves()
}

crate::kernel! {
    /// Many rows, on tensor cores.
    pub static TENSOR_CORES: TypedKernel<TensorCoresArgs> = "attention/attention_mma" {
        heads, kv_heads, rows, keys, live_keys, mask_b, mask_h, mask_s, mask_t: U32;
        scale, softcap: F32
    } [
        q: In Half4, k: In Half4, v: In Half4, mask: OptionalIn, tiles: OptionalIn,
        pages: OptionalIn, live: Weight, y: Out
    ]
    .with_features(Features {
        opencl_c: &[Feature::TensorCores],
        wgsl: &[Feature::TensorCores, Feature::F16],
    })
    .variant_of(&KERNEL.kernel, |device| {
        device.tensor_cores.is_some() && device.max_workgroup >= TENSOR_CORE_NEEDS.0 && device.local_bytes >= TENSOR_CORE_NEEDS.1
    })
}

crate::kernel! {
    /// One row, or rows of several sequences, on large GPUs: one work-group per row and head.
    pub static ROW: TypedKernel<RowArgs> = "attention/attention_row" {
        heads, kv_heads, rows, keys, live_keys, mask_b, mask_h, mask_s, mask_t: U32;
        scale, softcap: F32;
        splits, tile_count: U32
    } [
        q: In Uint4, k: In Uint4, v: In Uint4, mask: OptionalIn, tiles: OptionalIn,
        pages: OptionalIn, live: Weight, y: Out,
        found: OptionalInOut Uint, counts: OptionalInOut Uint
    ]
    .with_features(Features {
        opencl_c: &[Feature::TensorCores],
        ..Features::NONE
    })
    .variant_of(&KERNEL.kernel, |device| {
        // In OpenCL C with PTX; in WGSL wherever local memory is fast.
        let able = device.tensor_cores.is_some() || device.language() == Some(Language::Wgsl) && device.fast_local;
        able && device.max_workgroup >= ROW_ITEMS && device.local_bytes >= 19 << 10
    })
    .finite_halves()
}

crate::kernel! {
    pub static MERGE: TypedKernel<MergeArgs> = "attention/attention_merge" {
        vectors, splits: U32
    } [x: In, y: Out]
    .finite_halves()
}
