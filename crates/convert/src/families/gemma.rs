//! Gemma: scaled embeddings, GELU, norm weights stored minus 1.

use super::{Family, Windows};

pub const FAMILY: Family = Family {
    name: "gemma",
    model_type: "gemma",
    class: "GemmaForCausalLM",
    config: &[("head_dim", "256"), ("tie_word_embeddings", "true")],
    gelu: true,
    scales_embedding: true,
    norm_offset: 1.0,
    windows: Windows::Never,
    ..Family::DENSE
};
