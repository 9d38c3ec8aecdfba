//! From tokens to tokens: everything between a prompt and a stream of text.

pub mod calibrate;
pub mod engine;
pub mod folder;
pub mod generator;
pub mod metrics;
pub mod perplexity;
mod roles;
pub mod sampler;
pub mod template;
#[cfg(test)]
pub(crate) mod testing;
pub mod tokenizer;

pub use folder::ModelFolder;
pub use generator::{Finish, Generator, Limits, Token};
pub use metrics::Metrics;
pub use sampler::{Sampler, SamplerConfig};
pub use template::{ChatTemplate, Message};
pub use tokenizer::Tokenizer;

use crate::error::Result;

/// A causal language model with its KV cache, as generation sees it.
pub trait Model {
    /// Number of entries of a logits row.
    fn vocab(&self) -> usize;

    /// Largest number of tokens that the cache holds.
    fn context(&self) -> usize;

    /// Number of tokens in the cache.
    fn len(&self) -> usize;

    /// True when the cache is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends `tokens` (at least one) to the cache and writes the logits that follow the last one into
    /// `logits`, which is resized to [`Model::vocab`]. An error leaves the cache at an unspecified length
    /// not above the old one plus `tokens.len()`.
    fn forward(&mut self, tokens: &[u32], logits: &mut Vec<f32>) -> Result<()>;

    /// Appends `tokens` (at least one) to the cache and returns the logits that follow each of them, row after
    /// row of [`Model::vocab`]. An error for a model that was prepared for generation and computes the last row
    /// only; as with [`Model::forward`] the cache is then at an unspecified length.
    fn forward_all(&mut self, tokens: &[u32]) -> Result<Vec<f32>>;

    /// Forgets all but the first `len` tokens.
    fn truncate(&mut self, len: usize);
}
