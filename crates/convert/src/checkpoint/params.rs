//! Parameters of a decoder, independent of the file format.

use super::rope::Rope;

/// Supported architectures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Llama 1 to 3, `SmolLM`, and other models of this type.
    Llama,
    /// Qwen1.5, Qwen2 and Qwen2.5: biases in queries, keys and values.
    Qwen2,
    /// Qwen3: normalized queries and keys.
    Qwen3,
    /// Gemma: scaled embeddings, GELU, norm weights stored minus 1.
    Gemma,
    /// Gemma 2: also soft-capping, norms after attention and MLP, a sliding window in every other
    /// layer.
    Gemma2,
    /// Gemma 3 (text model): also normalized queries and keys, and sliding windows in five of six
    /// layers, with their own rotary base.
    Gemma3,
    /// Phi-3, Phi-3.5 and Phi-4-mini: fused projections, length-dependent frequencies.
    Phi3,
}

impl Architecture {
    pub const ALL: [Self; 7] = [
        Self::Llama,
        Self::Qwen2,
        Self::Qwen3,
        Self::Gemma,
        Self::Gemma2,
        Self::Gemma3,
        Self::Phi3,
    ];

    /// Name in GGUF files, and class name in Hugging Face's library.
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Llama => ("llama", "LlamaForCausalLM"),
            Self::Qwen2 => ("qwen2", "Qwen2ForCausalLM"),
            Self::Qwen3 => ("qwen3", "Qwen3ForCausalLM"),
            Self::Gemma => ("gemma", "GemmaForCausalLM"),
            Self::Gemma2 => ("gemma2", "Gemma2ForCausalLM"),
            Self::Gemma3 => ("gemma3", "Gemma3ForCausalLM"),
            Self::Phi3 => ("phi3", "Phi3ForCausalLM"),
        }
    }

    /// Name in GGUF files.
    pub const fn name(self) -> &'static str {
        self.names().0
    }

    /// `model_type` in `config.json`.
    pub const fn model_type(self) -> &'static str {
        match self {
            Self::Gemma3 => "gemma3_text",
            other => other.name(),
        }
    }

    /// Class name in Hugging Face's library.
    pub const fn class(self) -> &'static str {
        self.names().1
    }

    /// True for the Gemma architectures.
    pub const fn is_gemma(self) -> bool {
        matches!(self, Self::Gemma | Self::Gemma2 | Self::Gemma3)
    }

    /// True if the queries and keys of each head are normalized before rotation.
    pub const fn normalizes_heads(self) -> bool {
        matches!(self, Self::Qwen3 | Self::Gemma3)
    }

    /// True if the results of attention and MLP are normalized before they are added to the
    /// residual stream.
    pub const fn normalizes_results(self) -> bool {
        matches!(self, Self::Gemma2 | Self::Gemma3)
    }

    /// True if queries, keys and values are one matrix, and gate and up another.
    pub const fn joins_projections(self) -> bool {
        matches!(self, Self::Phi3)
    }

    /// Activation function of the gate.
    pub const fn activation(self) -> Activation {
        if self.is_gemma() {
            Activation::GeluTanh
        } else {
            Activation::Silu
        }
    }

    /// Factor for embedding rows of this width.
    pub fn embedding_scale(self, hidden: usize) -> f32 {
        if self.is_gemma() {
            (hidden as f32).sqrt()
        } else {
            1.0
        }
    }

    /// Default layer pattern if the checkpoint does not list one: every n-th layer has full
    /// attention, the others a sliding window. `None`: all layers have the window.
    pub const fn window_period(self) -> Option<usize> {
        match self {
            // The last layer of each period has full attention.
            Self::Gemma2 => Some(2),
            Self::Gemma3 => Some(6),
            _ => None,
        }
    }
}

/// Activation function of the MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU, tanh form.
    GeluTanh,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// Keys that a query sees, including its own.
    pub length: usize,
    /// For each layer, whether it has the window.
    pub layers: Vec<bool>,
    /// Rotary embedding of those layers, if different.
    pub rope: Option<Rope>,
}

impl Window {
    /// A window of `length` keys in the given `layers`. `None` if the window is not shorter than
    /// `context` tokens and these layers are otherwise like the others.
    pub fn new(length: usize, layers: Vec<bool>, rope: Option<Rope>, context: usize) -> Option<Self> {
        let matters = layers.contains(&true) && (length < context || rope.is_some());
        matters.then_some(Self { length, layers, rope })
    }

    /// For each of `layers` layers of `architecture`, whether it has the window.
    pub fn of(architecture: Architecture, layers: usize) -> Vec<bool> {
        let period = architecture.window_period();
        (1..=layers)
            .map(|i| period.is_none_or(|p| !i.is_multiple_of(p)))
            .collect()
    }
}

/// Parameters of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    pub architecture: Architecture,
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Intermediate size of the MLP.
    pub intermediate: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Head size; even.
    pub head_dim: usize,
    pub rope: Rope,
    /// Sliding-window attention, if any layer has it.
    pub window: Option<Window>,
    /// Factor for attention scores.
    pub scale: f32,
    /// Soft-capping: scores `s` become `cap * tanh(s / cap)`.
    pub score_cap: Option<f32>,
    pub logit_cap: Option<f32>,
    /// Factor for embedding rows.
    pub embedding_scale: f32,
    /// Added to the stored weights of norms.
    pub norm_offset: f32,
    /// Epsilon of the normalizations.
    pub eps: f32,
    /// Vocabulary size: rows of the embedding.
    pub vocab: usize,
    /// Longest sequence that the model supports.
    pub context: usize,
    /// True if the embedding is also the output matrix.
    pub tied: bool,
    /// True if the query, key and value projections have biases.
    pub qkv_bias: bool,
    /// True if the output projection of attention has a bias.
    pub output_bias: bool,
    /// True if the matrices of the MLP have biases.
    pub mlp_bias: bool,
}

impl Params {
    /// Total width of the queries.
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Total width of the keys, and of the values.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Number of weights; `None` if their `f32` size overflows.
    pub fn elements(&self) -> Option<usize> {
        let on = |on: bool, n: usize| if on { n } else { 0 };
        let q = self.heads.checked_mul(self.head_dim)?;
        let kv = self.kv_heads.checked_mul(self.head_dim)?;
        let (h, inner) = (self.hidden, self.intermediate);
        let outputs = q
            .checked_add(kv)?
            .checked_mul(2)?
            .checked_add(inner.checked_mul(3)?)?;
        let norms = if self.architecture.normalizes_results() {
            4
        } else {
            2
        };
        let vectors = [
            h.checked_mul(norms)?,
            on(
                self.architecture.normalizes_heads(),
                self.head_dim.checked_mul(2)?,
            ),
            on(self.qkv_bias, q.checked_add(kv.checked_mul(2)?)?),
            on(self.output_bias, h),
            on(self.mlp_bias, inner.checked_mul(2)?.checked_add(h)?),
        ];
        let layer = vectors
            .into_iter()
            .try_fold(h.checked_mul(outputs)?, usize::checked_add)?;
        let table = self.vocab.checked_mul(h)?;
        let tables = if self.tied { table } else { table.checked_mul(2)? };
        let all = self
            .layers
            .checked_mul(layer)?
            .checked_add(tables)?
            .checked_add(h)?;
        let bytes = all.checked_mul(size_of::<f32>())?;
        isize::try_from(bytes).ok().map(|_| all)
    }
}
