//! Parameters of a decoder, independent of the file format.

use super::rope::Rope;
use crate::families::Family;

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
}

/// Upper bound on the head size.
const MAX_HEAD: usize = 1 << 16;

/// The size of a head: the stated one, or the width `hidden` over the number of query heads. An
/// error is a message, and the key of `config.json` that it is about.
pub fn head_size(
    hidden: usize,
    [heads, kv_heads]: [usize; 2],
    stated: Option<usize>,
) -> Result<usize, (&'static str, String)> {
    if heads % kv_heads != 0 {
        let what = format!("{heads} query heads are not a multiple of {kv_heads} key heads");
        return Err(("num_key_value_heads", what));
    }
    let equal = hidden.is_multiple_of(heads).then(|| hidden / heads);
    match stated.or(equal) {
        Some(size) if size % 2 == 0 && size <= MAX_HEAD => Ok(size),
        Some(size) => {
            let what = format!("expected an even head size up to {MAX_HEAD}, found {size}");
            Err(("head_dim", what))
        }
        None => {
            let what = format!("width {hidden} is not a multiple of {heads} heads");
            Err(("num_attention_heads", what))
        }
    }
}

/// Parameters of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    pub family: &'static Family,
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

    /// Number of weights; `None` if their size in bytes overflows.
    pub fn elements(&self) -> Option<usize> {
        /// Floats hold all integers up to this one.
        const MAX: f64 = 9e15;
        let (q, kv) = (
            self.head_dim as f64 * self.heads as f64,
            self.head_dim as f64 * self.kv_heads as f64,
        );
        let (hidden, inner) = (self.hidden as f64, self.intermediate as f64);
        let on = |on: bool, n: f64| if on { n } else { 0.0 };
        let norms = 2.0 + on(self.family.normalizes_results, 2.0);
        let layer = hidden * (2.0 * (q + kv) + 3.0 * inner + norms)
            + on(self.family.normalizes_heads, 2.0 * self.head_dim as f64)
            + on(self.qkv_bias, q + 2.0 * kv)
            + on(self.output_bias, hidden)
            + on(self.mlp_bias, 2.0 * inner + hidden);
        let tables = 2.0 - on(self.tied, 1.0);
        let all = self.layers as f64 * layer + hidden * (self.vocab as f64 * tables + 1.0);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a whole number"
        )]
        let all = (all < MAX).then_some(all as u64)?;
        let bytes = all.checked_mul(size_of::<f32>() as u64)?;
        isize::try_from(bytes)
            .ok()
            .and_then(|_| usize::try_from(all).ok())
    }
}
