//! Graphs of known decoder architectures, as Python exporters write them, with random weights or
//! none.
//!
//! Shapes and plans need no weights. Without weights the data file is declared but not written, and
//! the model is read with `ImportOptions::PLANNING`; a device can generate random weights
//! ([`transformer_lite::unstable::executor::WeightSource`]). The graphs follow the models' Python
//! code: sizes come from chains of `Shape`, `Gather` and `Concat`; normalization, rotary embedding,
//! mask and attention are decomposed; the cache is an input (past) and an output (present).
//! [`crate::checkpoint`] converts real checkpoints.

mod builder;
mod chat_glm;
mod llama;

use crate::builder::Builder;
use builder::{Exporter, Random};
use std::collections::HashMap;
use std::path::Path;
use transformer_lite::unstable::error::{Result, Stage};
use transformer_lite::unstable::graph::onnx::write::{ModelWriter, Written};
use transformer_lite::unstable::graph::op::OWN_DOMAIN;
use transformer_lite::unstable::tensor::DType;

/// Model family whose code the graph follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Llama; the rotary embedding pairs the two halves of a head.
    Llama,
    /// Like Llama, with biases in the query, key and value projections.
    Qwen,
    /// Like Llama, with a scaled embedding, normalization by `1 + w`, and tanh-GELU in the MLP.
    Gemma,
    /// Sequence-first; fused projections; the rotary embedding pairs adjacent elements in the first
    /// half of a head.
    ChatGlm,
}

/// Sizes of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    pub name: &'static str,
    pub family: Family,
    pub layers: usize,
    pub hidden: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key and value heads.
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Intermediate size of the MLP.
    pub inner: usize,
    pub vocab: usize,
    /// Base of the rotary frequencies.
    pub theta: f32,
    /// Epsilon of the normalization.
    pub eps: f32,
    /// True if the embedding is also the output matrix.
    pub tied: bool,
    /// Context length in tokens (prompt and answer) in the paper's deployments.
    pub context: usize,
}

/// The models of section 3 of the paper.
pub const SPECS: [Spec; 5] = [
    Spec::new(
        "gemma-2b",
        Family::Gemma,
        [18, 2048, 8, 1, 256, 16_384, 256_000],
        (1e4, 1e-6),
        true,
        2304,
    ),
    Spec::new(
        "qwen1.5-4b",
        Family::Qwen,
        [40, 2560, 20, 20, 128, 6912, 151_936],
        (5e6, 1e-6),
        false,
        2304,
    ),
    Spec::new(
        "chatglm2-6b",
        Family::ChatGlm,
        [28, 4096, 32, 2, 128, 13_696, 65_024],
        (1e4, 1e-5),
        false,
        2304,
    ),
    Spec::new(
        "llama2-7b",
        Family::Llama,
        [32, 4096, 32, 32, 128, 11_008, 32_000],
        (1e4, 1e-5),
        false,
        900,
    ),
    Spec::new(
        "qwen1.5-14b",
        Family::Qwen,
        [40, 5120, 40, 40, 128, 13_696, 152_064],
        (1e6, 1e-6),
        false,
        2304,
    ),
];

/// The small model of the demo.
pub const SMOLLM2: Spec = Spec::new(
    "smollm2-135m",
    Family::Llama,
    [30, 576, 9, 3, 64, 1536, 49_152],
    (1e5, 1e-5),
    true,
    2048,
);

/// Few key and value heads for many query heads: used to measure decode with long contexts.
pub const QWEN25: Spec = Spec::new(
    "qwen2.5-0.5b",
    Family::Qwen,
    [24, 896, 14, 2, 64, 4864, 151_936],
    (1e6, 1e-6),
    true,
    4096,
);

/// A larger model of the same family, between the small models and those of the paper.
pub const QWEN25_LARGER: Spec = Spec::new(
    "qwen2.5-1.5b",
    Family::Qwen,
    [28, 1536, 12, 2, 128, 8960, 151_936],
    (1e6, 1e-6),
    true,
    4096,
);

impl Spec {
    const fn new(
        name: &'static str,
        family: Family,
        [layers, hidden, heads, kv_heads, head_dim, inner, vocab]: [usize; 7],
        (theta, eps): (f32, f32),
        tied: bool,
        context: usize,
    ) -> Self {
        Self {
            name,
            family,
            layers,
            hidden,
            heads,
            kv_heads,
            head_dim,
            inner,
            vocab,
            theta,
            eps,
            tied,
            context,
        }
    }

    /// All models: the paper's and the small ones.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        SPECS.iter().chain([&QWEN25_LARGER, &QWEN25, &SMOLLM2])
    }

    /// The model of this name.
    pub fn find(name: &str) -> Option<Self> {
        Self::all().find(|s| s.name == name).cloned()
    }

    /// A small version: two layers, four heads of 16, the same kind of grouping.
    pub fn small(mut self) -> Self {
        self.kv_heads = match self.heads / self.kv_heads {
            1 => 4,
            g if g == self.heads => 1,
            _ => 2,
        };
        (self.layers, self.heads, self.head_dim) = (2, 4, 16);
        (self.hidden, self.inner, self.vocab, self.context) = (64, 96, 128, 64);
        self
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// 4 bits, and 8 bits for embedding and output head, in groups of this size, like
    /// `tlite quantize`.
    E0m4(usize),
    /// This float type, also for activations.
    Float(DType),
}

/// Seed of random weights, or `None` for no weights.
pub type Weights = Option<u64>;

/// Writes `model.onnx` into `folder`, and its data file if there are weights. An error if a file
/// cannot be written.
pub fn write(spec: &Spec, form: Form, weights: Weights, folder: &Path) -> Result<Written> {
    let out = match weights {
        Some(_) => ModelWriter::create(Stage::Convert, folder, "model.onnx", spec.name)?,
        None => ModelWriter::without_data(Stage::Convert, folder, "model.onnx", spec.name),
    };
    let float = match form {
        Form::E0m4(_) => DType::F32,
        Form::Float(dtype) => dtype,
    };
    let source = Exporter {
        spec,
        form,
        float,
        random: Random(weights.unwrap_or(0)),
        numbers: HashMap::new(),
    };
    let mut b = Builder::new(out, source);
    b.out.opset("", 17);
    if matches!(form, Form::E0m4(_)) {
        b.out.opset(OWN_DOMAIN, 1);
    }
    match spec.family {
        Family::ChatGlm => b.chat_glm()?,
        _ => b.llama()?,
    }
    b.out.finish()
}
