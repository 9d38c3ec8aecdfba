//! Gemma 3 (text model): Gemma 2 without soft-capping, with normalized queries and keys, and with
//! sliding windows in five of six layers, which have their own rotary base.

use super::{Family, Windows, gemma2};

pub const FAMILY: Family = Family {
    name: "gemma3",
    model_type: "gemma3_text",
    class: "Gemma3ForCausalLM",
    with_images: Some("gemma3"),
    config: &[
        ("head_dim", "256"),
        ("max_position_embeddings", "131072"),
        ("num_attention_heads", "8"),
        ("num_key_value_heads", "4"),
        ("query_pre_attn_scalar", "256"),
        ("rms_norm_eps", "1e-6"),
        ("rope_local_base_freq", "1e4"),
        ("rope_theta", "1e6"),
        ("sliding_window", "4096"),
        ("tie_word_embeddings", "true"),
        ("vocab_size", "262208"),
    ],
    config_unless_null: &[],
    gguf: &[("rope.freq_base", 1e6), ("rope.freq_base_swa", 1e4)],
    normalizes_heads: true,
    local_rope: true,
    windows: Windows::ExceptStated(6),
    scaled_by_width: Some(62),
    ..gemma2::FAMILY
};
