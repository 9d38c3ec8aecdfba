//! From tokens to tokens: everything between a prompt and a stream of text.

pub mod calibrate;
pub mod cancel;
pub mod codec;
pub mod constraint;
pub mod conversation;
pub mod draft;
pub mod engine;
pub mod folder;
pub mod generator;
pub mod grammar;
pub mod load;
pub mod metrics;
pub mod model;
pub mod perplexity;
pub mod progress;
pub mod prompt_cache;
mod roles;
pub mod sampler;
pub mod session;
pub mod stop;
pub mod template;
#[cfg(test)]
pub(crate) mod testing;
pub mod tokenizer;

pub use cancel::Cancel;
pub use codec::{Codec, Prompt};
pub use conversation::{Conversation, Reply};
pub use draft::{Draft, ModelDraft, NgramDraft};
pub use folder::ModelFolder;
pub use generator::{Finish, Generator, Limits, Token};
pub use grammar::Grammar;
pub use load::{Activations, KvType, LoadOptions};
pub use metrics::Metrics;
pub use model::Model;
pub use progress::Progress;
pub use prompt_cache::States;
pub use sampler::{Sampler, SamplerConfig};
pub use session::{Answer, GenerateOptions, Piece, Session};
pub use stop::StopStrings;
pub use template::{ChatTemplate, Message, Raised};
pub use tokenizer::Tokenizer;

use crate::error::Result;

/// A causal language model with its KV cache, as generation sees it.
pub trait LanguageModel {
    /// Number of entries of a logits row.
    fn vocab(&self) -> usize;

    /// Largest number of tokens that the cache holds.
    fn context(&self) -> usize;

    /// Most tokens that the model runs at once; more are run one part after another.
    fn run_length(&self) -> usize {
        engine::CHUNK
    }

    /// Number of tokens in the cache.
    fn len(&self) -> usize;

    /// True when the cache is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends `tokens` (at least one) to the cache and writes the logits that follow the last one into
    /// `logits`, which is resized to [`LanguageModel::vocab`]. An error leaves the cache at an unspecified length
    /// not above the old one plus `tokens.len()`.
    fn forward(&mut self, tokens: &[u32], logits: &mut Vec<f32>) -> Result<()>;

    /// Appends `tokens` (at least one) to the cache and returns the logits that follow each of them, row after
    /// row of [`LanguageModel::vocab`]. An error for more than [`LanguageModel::most_rows`]; as with [`LanguageModel::forward`] the cache is then at an
    /// unspecified length. Unless a model does better it runs them one by one.
    fn forward_all(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let (mut rows, mut row) = (Vec::new(), Vec::new());
        for token in tokens {
            self.forward(std::slice::from_ref(token), &mut row)?;
            rows.extend_from_slice(&row);
        }
        Ok(rows)
    }

    /// Largest number of tokens of [`LanguageModel::forward_all`] and [`LanguageModel::most_likely_all`].
    fn most_rows(&self) -> usize {
        usize::MAX
    }

    /// As [`LanguageModel::forward`], of the logits only the id of the first largest. Errors of [`sampler::arg_max`], where the host looks
    /// for it.
    fn most_likely(&mut self, tokens: &[u32]) -> Result<u32> {
        let mut logits = Vec::new();
        self.forward(tokens, &mut logits)?;
        sampler::arg_max(&logits)
    }

    /// As [`LanguageModel::forward_all`], of each row only the id of the first largest.
    fn most_likely_all(&mut self, tokens: &[u32]) -> Result<Vec<u32>> {
        let vocab = self.vocab().max(1);
        let rows = self.forward_all(tokens)?;
        rows.chunks(vocab).map(sampler::arg_max).collect()
    }

    /// The contents of the cache as bytes; `None` where they cannot be had.
    fn states(&mut self) -> Option<&mut dyn States> {
        None
    }

    /// Forgets all but the first `len` tokens and returns how many are left: `len` or what the cache held, if that is less; or none, where the
    /// cache keeps a window of the latest tokens and has no longer what the next one would read. What is left is right to go on from.
    fn truncate(&mut self, len: usize) -> usize;
}
