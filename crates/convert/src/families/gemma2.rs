//! Gemma 2: Gemma with soft-capping, norms after attention and MLP, and a sliding window in every
//! other layer.

use super::{Family, Windows, gemma};

pub const FAMILY: Family = Family {
    name: "gemma2",
    model_type: "gemma2",
    class: "Gemma2ForCausalLM",
    gguf_tensors: &[("post_attention_layernorm", "post_attention_norm")],
    config: &[
        ("head_dim", "256"),
        ("query_pre_attn_scalar", "256"),
        ("sliding_window", "4096"),
        ("tie_word_embeddings", "true"),
    ],
    config_unless_null: &[
        ("attn_logit_softcapping", "50"),
        ("final_logit_softcapping", "30"),
    ],
    gguf: &[
        ("attention.sliding_window", 4096.0),
        ("attn_logit_softcapping", 50.0),
        ("final_logit_softcapping", 30.0),
    ],
    normalizes_results: true,
    windows: Windows::Except(2),
    scaled_by_width: Some(46),
    ..gemma::FAMILY
};
