//! Mistral: Llama with a sliding window in all layers.

use super::Family;

pub const FAMILY: Family = Family {
    name: "llama",
    model_type: "mistral",
    class: "MistralForCausalLM",
    config_unless_null: &[("sliding_window", "4096")],
    bias_keys: &["attention_bias", "mlp_bias"],
    states_kv_heads: true,
    interleaved: true,
    ..Family::DENSE
};
