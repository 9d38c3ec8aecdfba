//! Passes for language models: KV caches, precision, and which logits are computed.

pub mod greedy;
pub mod int8_activations;
pub mod kv_cache;
pub mod kv_q8;
pub mod last_row;
pub mod window;
