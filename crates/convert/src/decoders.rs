//! Graphs of known decoders with random weights or none.
//!
//! Shapes and plans need no weights. Without weights the data file is declared but not written, and
//! the model is read with `ImportOptions::PLANNING`; a device can generate random weights
//! ([`transformer_lite::unstable::executor::WeightSource`]). The graph is the one that
//! [`crate::checkpoint`] writes for a checkpoint of the same [family](crate::families).

use crate::builder::Builder;
use crate::checkpoint::rope::Rope;
use crate::checkpoint::weights::Checkpoint;
use crate::checkpoint::{Params, Stored, Tensors};
use crate::families::{Family, chat_glm, gemma, llama, qwen2};
use half::f16;
use std::collections::BTreeMap;
use std::path::Path;
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::graph::onnx::write::{ModelWriter, Written};
use transformer_lite::unstable::quant::{Bits, Format, Grid, GridColumn, Grids, Scales, group_size, nested};
use transformer_lite::unstable::tensor::DType;

/// Sizes of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    pub name: &'static str,
    pub family: &'static Family,
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
        &gemma::FAMILY,
        [18, 2048, 8, 1, 256, 16_384, 256_000, 2304],
        (1e4, 1e-6, true),
    ),
    Spec::new(
        "qwen1.5-4b",
        &qwen2::FAMILY,
        [40, 2560, 20, 20, 128, 6912, 151_936, 2304],
        (5e6, 1e-6, false),
    ),
    Spec::new(
        "chatglm2-6b",
        &chat_glm::FAMILY,
        [28, 4096, 32, 2, 128, 13_696, 65_024, 2304],
        (1e4, 1e-5, false),
    ),
    Spec::new(
        "llama2-7b",
        &llama::FAMILY,
        [32, 4096, 32, 32, 128, 11_008, 32_000, 900],
        (1e4, 1e-5, false),
    ),
    Spec::new(
        "qwen1.5-14b",
        &qwen2::FAMILY,
        [40, 5120, 40, 40, 128, 13_696, 152_064, 2304],
        (1e6, 1e-6, false),
    ),
];

/// The small model of the demo.
pub const SMOLLM2: Spec = Spec::new(
    "smollm2-135m",
    &llama::FAMILY,
    [30, 576, 9, 3, 64, 1536, 49_152, 2048],
    (1e5, 1e-5, true),
);

/// Few key and value heads for many query heads: used to measure decode with long contexts.
pub const QWEN25: Spec = Spec::new(
    "qwen2.5-0.5b",
    &qwen2::FAMILY,
    [24, 896, 14, 2, 64, 4864, 151_936, 4096],
    (1e6, 1e-6, true),
);

/// A larger model of the same family, between the small models and those of the paper.
pub const QWEN25_LARGER: Spec = Spec::new(
    "qwen2.5-1.5b",
    &qwen2::FAMILY,
    [28, 1536, 12, 2, 128, 8960, 151_936, 4096],
    (1e6, 1e-6, true),
);

impl Spec {
    const fn new(
        name: &'static str,
        family: &'static Family,
        [layers, hidden, heads, kv_heads, head_dim, inner, vocab, context]: [usize; 8],
        (theta, eps, tied): (f32, f32, bool),
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

    fn params(&self) -> Params {
        let rotated = if self.family.sequence_first {
            self.head_dim / 2
        } else {
            self.head_dim
        };
        Params {
            family: self.family,
            layers: self.layers,
            hidden: self.hidden,
            intermediate: self.inner,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            rope: Rope::plain(self.theta, rotated),
            window: None,
            scale: 1.0 / (self.head_dim as f32).sqrt(),
            score_cap: None,
            logit_cap: None,
            norm_offset: self.family.norm_offset,
            eps: self.eps,
            vocab: self.vocab,
            context: self.context,
            tied: self.tied,
            qkv_bias: self.family.qkv_bias,
            output_bias: false,
            mlp_bias: false,
        }
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

/// How weights are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// 4 bits, and 8 bits for embedding and output head, in groups of this size, like
    /// `tlite quantize`.
    E0m4(usize),
    /// Nested scales with this number of bits, at most 6, and 6 bits for embedding, output head,
    /// and half of the value and down projections: with 4 bits, much like GGUF's `Q4_K_M`.
    KQuants(Bits),
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
    let params = spec.params();
    let random = Random {
        seed: weights.unwrap_or(0),
        form,
        family: spec.family,
    };
    let keeps_bits = !matches!(form, Form::Float(_));
    let mut ignored = |_: &str, _: u64| ();
    let mut source = Checkpoint::new(&random, &params, keeps_bits, &mut ignored);
    source.written = weights.is_some();
    if let Form::Float(float) = form {
        source.float = float;
    }
    Builder::new(out, source).build()?.0.finish()
}

/// Random weights in place of those of a checkpoint.
struct Random {
    seed: u64,
    form: Form,
    family: &'static Family,
}

impl Random {
    /// Format of a matrix whose columns have `k` weights; `None` for floats.
    fn format(&self, name: &str, k: usize) -> Option<Format> {
        let outer = name.contains("embed_tokens") || name == "lm_head.weight";
        match self.form {
            Form::E0m4(group) => {
                let bits = if outer { Bits::Eight } else { Bits::Four };
                Some(Format::new(bits, group_size(group, k)))
            }
            Form::KQuants(bits) => {
                // Every other layer: GGML chooses layers by their position.
                let layer = name.split('.').find_map(|part| part.parse::<usize>().ok());
                let more = ["v_proj", "down_proj"].iter().any(|part| name.contains(part))
                    && layer.is_some_and(|layer| layer % 2 == 0);
                let bits = if outer || more { Bits::Six } else { bits };
                // Blocks are whole, so shorter columns are floats.
                Format::nested(bits).filter(|format| k.is_multiple_of(format.k_step()))
            }
            Form::Float(_) => None,
        }
    }
}

/// Columns of `k` random codes, with weights up to about `spread`.
fn random_column(format: Format, k: usize, seed: u64, spread: f64) -> impl Fn(usize, &mut GridColumn) + Sync {
    /// Integer scale and minimum of all groups with nested scales.
    const INTEGER: i8 = 24;
    let top = f64::from(format.bits.top());
    let (step, middle) = (2.0 * spread / top, top / 2.0);
    let grid = Grid::around(step, middle);
    let mut block = nested::Block::default();
    if let Scales::Nested(nested) = format.scales {
        let unit = step / f64::from(INTEGER);
        block.halves = [unit, if nested.minima { unit * middle } else { 0.0 }].map(f16::from_f64);
        let groups = block.scales.iter_mut().zip(&mut block.minima).zip(0..);
        for ((scale, minimum), g) in groups.take(nested.groups()) {
            *scale = INTEGER + g % 5 - 2;
            if nested.minima {
                *minimum = scale.unsigned_abs();
            }
        }
    }
    move |j: usize, out: &mut GridColumn| {
        match format.scales {
            Scales::Pairs => out.grids.resize(k.div_ceil(format.group), grid),
            Scales::Nested(_) => out.blocks.resize(k / nested::BLOCK, block),
        }
        let codes = (j * k..(j + 1) * k).map(|i| word(seed, i).to_le_bytes()[0]);
        out.codes.extend(codes.map(|code| code & format.bits.top()));
    }
}

/// Number `i` of the sequence that begins with `seed` (`SplitMix64`).
fn word(seed: u64, i: usize) -> u64 {
    let mut z = seed.wrapping_add((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Tensors for Random {
    fn stored(&self, name: &str, shape: &[usize]) -> Result<Stored<'_>> {
        let mixed = |seed: u64, byte: u8| (seed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let seed = name.bytes().fold(self.seed, mixed);
        let table = name.contains("embed_tokens");
        let (center, spread) = match shape {
            [_, inputs] if !table => (0.0, 1.0 / (*inputs as f32).sqrt()),
            [_, _] => (0.0, 1.0),
            _ if name.ends_with("norm.weight") => (1.0 - self.family.norm_offset, 0.1),
            _ => (0.0, 0.1),
        };
        let grids = match *shape {
            [n, k] => self.format(name, k).map(|format| {
                let column = random_column(format, k, seed, f64::from(spread));
                Grids {
                    format,
                    k,
                    n,
                    column: Box::new(column),
                }
            }),
            _ => None,
        };
        let width = if let [_, width] = shape { *width } else { 1 };
        let rows = move |first: usize, out: &mut [f32]| {
            for (i, v) in (first * width..).zip(out) {
                let number = (word(seed, i) >> 40) as f32 / (1u32 << 23) as f32 - 1.0;
                *v = center + spread * number;
            }
            Ok(())
        };
        Ok(Stored {
            rows: Box::new(rows),
            grids,
            order: None,
            kind: "random numbers".to_owned(),
            bytes: 0,
        })
    }

    fn name(&self, name: &str) -> String {
        name.to_owned()
    }

    fn bad_file(&self, what: &str) -> Error {
        Error::other(Stage::Convert, what)
    }

    fn types(&self) -> BTreeMap<String, usize> {
        BTreeMap::new()
    }

    fn all_used(&self) -> Result<()> {
        Ok(())
    }
}
