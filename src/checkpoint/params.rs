//! Sizes and traits of a decoder, whichever file they are read from.

use super::rope::Rope;

/// Architectures that [`super::Builder`] knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Llama 1 to 3, `SmolLM`, and what else calls itself so.
    Llama,
    /// Qwen1.5, Qwen2 and Qwen2.5: queries, keys and values have biases.
    Qwen2,
    /// Qwen3: normalised queries and keys.
    Qwen3,
    /// Gemma: scaled embeddings, GELU, norms whose weights are 1 and something.
    Gemma,
    /// Gemma 2: also soft-capping, norms behind attention and MLP, a window in every other layer.
    Gemma2,
    /// Gemma 3, its text model: also normalised queries and keys, windows in five layers of six, which have a rotary base of their own.
    Gemma3,
    /// Phi-3, Phi-3.5 and Phi-4-mini: joint projections, frequencies that depend on the length.
    Phi3,
}

impl Architecture {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Llama,
        Self::Qwen2,
        Self::Qwen3,
        Self::Gemma,
        Self::Gemma2,
        Self::Gemma3,
        Self::Phi3,
    ];

    /// Name in GGUF files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Gemma => "gemma",
            Self::Gemma2 => "gemma2",
            Self::Gemma3 => "gemma3",
            Self::Phi3 => "phi3",
        }
    }

    /// `model_type` in `config.json`.
    pub const fn model_type(self) -> &'static str {
        match self {
            Self::Gemma3 => "gemma3_text",
            other => other.name(),
        }
    }

    /// Class of Hugging Face's library.
    pub const fn class(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
            Self::Gemma => "GemmaForCausalLM",
            Self::Gemma2 => "Gemma2ForCausalLM",
            Self::Gemma3 => "Gemma3ForCausalLM",
            Self::Phi3 => "Phi3ForCausalLM",
        }
    }

    /// One of those of Gemma.
    pub const fn is_gemma(self) -> bool {
        matches!(self, Self::Gemma | Self::Gemma2 | Self::Gemma3)
    }

    /// Queries and keys of each head are normalised before their rotation.
    pub const fn normalizes_heads(self) -> bool {
        matches!(self, Self::Qwen3 | Self::Gemma3)
    }

    /// What attention and MLP make is normalised before it is added to the residual stream.
    pub const fn normalizes_results(self) -> bool {
        matches!(self, Self::Gemma2 | Self::Gemma3)
    }

    /// Queries, keys and values are one matrix, gate and up another.
    pub const fn joins_projections(self) -> bool {
        matches!(self, Self::Phi3)
    }

    /// Function of the gate.
    pub const fn activation(self) -> Activation {
        if self.is_gemma() {
            Activation::GeluTanh
        } else {
            Activation::Silu
        }
    }

    /// What rows of an embedding of this width are multiplied by.
    pub fn embedding_scale(self, hidden: usize) -> f32 {
        if self.is_gemma() {
            (hidden as f32).sqrt()
        } else {
            1.0
        }
    }

    /// The layers that see a window of the latest keys, where the checkpoint does not list them. `None`: all.
    pub const fn window_period(self) -> Option<usize> {
        match self {
            // The last of each so many layers sees all keys.
            Self::Gemma2 => Some(2),
            Self::Gemma3 => Some(6),
            _ => None,
        }
    }
}

/// Function between the matrices of the MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU by its tanh formula.
    GeluTanh,
}

/// Attention over the latest keys.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// Keys that a query sees, its own included.
    pub length: usize,
    /// Whether a layer has the window, for each.
    pub layers: Vec<bool>,
    /// Rotary embedding of those layers, where it is another one.
    pub rope: Option<Rope>,
}

impl Window {
    /// A window of `length` keys in those of `layers`. `None` where it shortens nothing in a `context` of so many tokens, and these layers are
    /// like the others in all else.
    pub fn new(length: usize, layers: Vec<bool>, rope: Option<Rope>, context: usize) -> Option<Self> {
        let matters = layers.contains(&true) && (length < context || rope.is_some());
        matters.then_some(Self { length, layers, rope })
    }

    /// Which of `layers` layers of `architecture` have the window.
    pub fn of(architecture: Architecture, layers: usize) -> Vec<bool> {
        let period = architecture.window_period();
        (1..=layers)
            .map(|i| period.is_none_or(|p| !i.is_multiple_of(p)))
            .collect()
    }
}

/// Sizes and numbers of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    /// Architecture.
    pub architecture: Architecture,
    /// Number of layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width between the matrices of the MLP.
    pub intermediate: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head; even.
    pub head_dim: usize,
    /// Rotary embedding.
    pub rope: Rope,
    /// Layers whose queries do not see all keys before them.
    pub window: Option<Window>,
    /// Scores of attention are multiplied by this.
    pub scale: f32,
    /// Scores `s` become `cap * tanh(s / cap)`.
    pub score_cap: Option<f32>,
    /// Logits likewise.
    pub logit_cap: Option<f32>,
    /// Rows of the embedding are multiplied by this.
    pub embedding_scale: f32,
    /// Added to the stored weights of norms.
    pub norm_offset: f32,
    /// Added to the mean square in normalisations.
    pub eps: f32,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Longest sequence that the model was made for.
    pub context: usize,
    /// The embedding is the output matrix too.
    pub tied: bool,
    /// The query, key and value projections have biases.
    pub qkv_bias: bool,
    /// The output projection of attention has a bias.
    pub output_bias: bool,
    /// The matrices of the MLP have biases.
    pub mlp_bias: bool,
}

impl Params {
    /// Width of all queries.
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of all keys, and of all values.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Number of weights; `None` where that, in `f32`, is more than memory can be.
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
