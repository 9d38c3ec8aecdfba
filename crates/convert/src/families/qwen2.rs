//! Qwen1.5, Qwen2 and Qwen2.5: biases in queries, keys and values.

use super::{Family, Windows};

pub const FAMILY: Family = Family {
    name: "qwen2",
    model_type: "qwen2",
    class: "Qwen2ForCausalLM",
    config: &[("max_window_layers", "28")],
    qkv_bias: true,
    windows: Windows::Switched,
    ..Family::DENSE
};
