//! Llama 1 to 3, `SmolLM`, and other models of this type.

use super::{Family, mistral};

pub const FAMILY: Family = Family {
    name: "llama",
    model_type: "llama",
    class: "LlamaForCausalLM",
    windowed: Some(&mistral::FAMILY),
    bias_keys: &["attention_bias", "mlp_bias"],
    interleaved: true,
    ..Family::DENSE
};
