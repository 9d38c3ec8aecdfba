//! Families of dense decoders: one file for each.
//!
//! A family is data. The readers of `config.json` and GGUF ask it for names and defaults, and the
//! builder of graphs for the parts of a layer, whether weights are stored or random. A new family
//! is a file with a [`Family`] and an entry of [`ALL`].

pub mod chat_glm;
pub mod gemma;
mod gemma2;
mod gemma3;
pub mod llama;
mod mistral;
mod phi3;
pub mod qwen2;
mod qwen3;

/// Families of checkpoints and GGUF files. Llama and Mistral have the same name in GGUF files, so
/// the first one is read, and [`Family::windowed`] names the other.
pub const ALL: [&Family; 8] = [
    &llama::FAMILY,
    &qwen2::FAMILY,
    &qwen3::FAMILY,
    &gemma::FAMILY,
    &gemma2::FAMILY,
    &gemma3::FAMILY,
    &phi3::FAMILY,
    &mistral::FAMILY,
];

/// What distinguishes the decoders of a family from others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Family {
    /// Name in GGUF files.
    pub name: &'static str,
    /// `model_type` in `config.json`.
    pub model_type: &'static str,
    /// Class name in Hugging Face's library.
    pub class: &'static str,
    /// `model_type` of a model that also reads images and contains one of this family.
    pub with_images: Option<&'static str>,
    /// The family of models with a sliding window, if `config.json` has another name for them.
    pub windowed: Option<&'static Self>,
    /// Names in GGUF files of a layer's tensors that differ from the usual ones: those of
    /// checkpoints, and those of GGUF files.
    pub gguf_tensors: &'static [(&'static str, &'static str)],
    /// Values of `config.json` that are assumed if they are missing or null.
    pub config: &'static [(&'static str, &'static str)],
    /// Values of `config.json` that are assumed if they are missing. Null means off.
    pub config_unless_null: &'static [(&'static str, &'static str)],
    /// Values of GGUF metadata that are assumed if they are missing.
    pub gguf: &'static [(&'static str, f32)],
    /// Keys of `config.json` that tell which projections have biases.
    pub bias_keys: &'static [&'static str],
    /// True if `config.json` must state the number of key heads.
    pub states_kv_heads: bool,
    /// True if queries, keys and values have biases in a model with random weights.
    pub qkv_bias: bool,
    /// True if the queries and keys of each head are normalized before rotation.
    pub normalizes_heads: bool,
    /// True if the results of attention and MLP are normalized before they are added to the
    /// residual stream.
    pub normalizes_results: bool,
    /// True if queries, keys and values are one matrix, and gate and up another.
    pub joins_projections: bool,
    /// True if a part of each head may be left without rotation.
    pub rotates_part: bool,
    /// True if the sequence is the first axis, and adjacent elements in the first half of each head
    /// are rotated as a pair.
    pub sequence_first: bool,
    /// True if sliding-window layers have their own rotary embedding.
    pub local_rope: bool,
    /// True if GGUF files have the two halves of each head of queries and keys interleaved.
    pub interleaved: bool,
    /// True if the activation function of the gate is the tanh approximation of GELU, not `SiLU`.
    pub gelu: bool,
    /// True if embedding rows are multiplied by the square root of their width.
    pub scales_embedding: bool,
    /// Added to the norm weights of checkpoints. Those of GGUF files contain it.
    pub norm_offset: f32,
    pub windows: Windows,
    /// Number of layers of the model whose scores are scaled by the width of the residual stream
    /// over the number of heads, which GGUF files do not tell.
    pub scaled_by_width: Option<usize>,
}

/// The layers that have a sliding window, unless a file lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Windows {
    Never,
    /// All layers, if the file states a length.
    Stated,
    /// If `use_sliding_window` is true, those from `max_window_layers` on.
    Switched,
    /// All but each n-th layer.
    Except(usize),
    /// All but each n-th layer; `sliding_window_pattern` states another n.
    ExceptStated(usize),
}

impl Family {
    /// A decoder like the first Llama, without names.
    const DENSE: Self = Self {
        name: "",
        model_type: "",
        class: "",
        with_images: None,
        windowed: None,
        gguf_tensors: &[],
        config: &[],
        config_unless_null: &[],
        gguf: &[],
        bias_keys: &[],
        states_kv_heads: false,
        qkv_bias: false,
        normalizes_heads: false,
        normalizes_results: false,
        joins_projections: false,
        rotates_part: false,
        sequence_first: false,
        local_rope: false,
        interleaved: false,
        gelu: false,
        scales_embedding: false,
        norm_offset: 0.0,
        windows: Windows::Stated,
        scaled_by_width: None,
    };

    /// For each of `layers` layers, whether it has a window where only a length is stated.
    pub fn windows(&self, layers: usize) -> Vec<bool> {
        let whole = |i: usize| match self.windows {
            Windows::Except(n) | Windows::ExceptStated(n) => i.is_multiple_of(n),
            _ => false,
        };
        (1..=layers).map(|i| !whole(i)).collect()
    }
}
