//! Qwen3: normalized queries and keys.

use super::{Family, Windows};

pub const FAMILY: Family = Family {
    name: "qwen3",
    model_type: "qwen3",
    class: "Qwen3ForCausalLM",
    config: &[("head_dim", "128"), ("max_window_layers", "28")],
    bias_keys: &["attention_bias"],
    normalizes_heads: true,
    windows: Windows::Switched,
    ..Family::DENSE
};
