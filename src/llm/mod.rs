//! Text generation: everything between a prompt and a stream of text.
#![warn(missing_docs)]

pub mod batch;
pub mod candidates;
pub mod codec;
pub mod constraint;
pub mod conversation;
pub mod draft;
pub mod engine;
pub mod folder;
pub mod generator;
pub mod grammar;
pub mod load;
pub mod log_probs;
mod mask;
pub mod metrics;
pub mod model;
pub mod multiple_choice;
pub mod perplexity;
pub mod progress;
pub mod prompt_cache;
mod roles;
pub mod sampler;
pub mod schema;
pub mod session;
pub mod stop;
pub mod template;
#[cfg(test)]
pub(crate) mod testing;
pub mod tokenizer;

pub use crate::cancel::Cancel;
pub use batch::{BatchSequence, Batcher, Beam, BeamOptions, Request, StepRunner, Ticket};
pub use candidates::{CandidateRow, Candidates};
pub use codec::{Codec, Prompt};
pub use conversation::{Conversation, Reply};
pub use draft::{Draft, ModelDraft, NgramDraft, Speculation};
pub use folder::ModelFolder;
pub use generator::{DecodeOptions, Finish, Generator, Token};
pub use grammar::Grammar;
pub use load::{Activations, BatchOptions, KvType, LoadOptions};
pub use log_probs::{LogProbs, TopToken};
pub use metrics::Metrics;
pub use model::Model;
pub use progress::Progress;
pub use prompt_cache::States;
pub use sampler::{Sampler, SamplerConfig, SamplerNeeds};
pub use schema::{DefaultBound, SchemaOptions, WhiteSpace};
pub use session::{Answer, GenerateOptions, Piece, Session};
pub use stop::StopStrings;
pub use template::{ChatTemplate, Message, Raised};
pub use tokenizer::Tokenizer;

use crate::error::Result;

/// A causal language model with its KV cache, as used by generation.
pub trait LanguageModel {
    /// Vocabulary size: entries per row of logits.
    fn vocab(&self) -> usize;

    /// Context length: maximum number of cached tokens.
    fn context(&self) -> usize;

    /// Maximum number of tokens per run; longer inputs are split.
    fn run_length(&self) -> usize {
        engine::CHUNK
    }

    /// Number of tokens in the cache.
    fn len(&self) -> usize;

    /// True if the cache is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends `tokens` (at least one) to the cache and writes the logits that follow the last one
    /// to `logits`, which is resized to [`LanguageModel::vocab`]. After an error the cache length
    /// is unspecified, but at most the old length plus `tokens.len()`.
    fn forward(&mut self, tokens: &[u32], logits: &mut Vec<f32>) -> Result<()>;

    /// Appends `tokens` (at least one) to the cache and returns the logits that follow each of
    /// them, in rows of [`LanguageModel::vocab`]. An error for more than
    /// [`LanguageModel::most_rows`] tokens; the cache is then in the state described at
    /// [`LanguageModel::forward`]. The default runs tokens one by one.
    fn forward_all(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let (mut rows, mut row) = (Vec::new(), Vec::new());
        for token in tokens {
            self.forward(std::slice::from_ref(token), &mut row)?;
            rows.extend_from_slice(&row);
        }
        Ok(rows)
    }

    /// Maximum number of tokens for [`LanguageModel::forward_all`] and
    /// [`LanguageModel::most_likely_all`].
    fn most_rows(&self) -> usize {
        usize::MAX
    }

    /// Like [`LanguageModel::forward`], but returns only the ID of the largest logit, the first one
    /// on ties. Returns the errors of [`sampler::arg_max`] if the host searches.
    fn most_likely(&mut self, tokens: &[u32]) -> Result<u32> {
        let mut logits = Vec::new();
        self.forward(tokens, &mut logits)?;
        sampler::arg_max(&logits)
    }

    /// Like [`LanguageModel::forward_all`], but returns only the ID of the largest logit per row.
    fn most_likely_all(&mut self, tokens: &[u32]) -> Result<Vec<u32>> {
        let vocab = self.vocab().max(1);
        let rows = self.forward_all(tokens)?;
        rows.chunks(vocab).map(sampler::arg_max).collect()
    }

    /// True if [`LanguageModel::candidates`] costs less than a row of logits, because the device
    /// finds them.
    fn finds_candidates(&self) -> bool {
        false
    }

    /// How many tokens of the last call were not computed, since a cache that the model shares with
    /// others held them.
    fn reused(&self) -> usize {
        0
    }

    /// Like [`LanguageModel::forward`], but writes only the likeliest tokens to `found`, which has
    /// one row afterwards: that of [`Candidates::push`], whose errors it returns.
    fn candidates(&mut self, tokens: &[u32], found: &mut Candidates) -> Result<()> {
        let mut logits = Vec::new();
        self.forward(tokens, &mut logits)?;
        found.clear();
        found.push(&logits)
    }

    /// Like [`LanguageModel::forward_all`], but writes only the likeliest tokens of each row to
    /// `found`.
    fn candidates_all(&mut self, tokens: &[u32], found: &mut Candidates) -> Result<()> {
        let vocab = self.vocab().max(1);
        let rows = self.forward_all(tokens)?;
        found.clear();
        rows.chunks(vocab).try_for_each(|row| found.push(row))
    }

    /// Access to the contents of the cache as bytes; `None` if not supported.
    fn states(&mut self) -> Option<&mut dyn States> {
        None
    }

    /// An independent copy with the same tokens in its cache; `None` if not supported.
    fn fork(&self) -> Option<Box<dyn LanguageModel + Send>> {
        None
    }

    /// Truncates the cache to its first `len` tokens and returns the length that remains: at most
    /// `len`. It is 0 if a sliding-window cache no longer holds what the next token would read. The
    /// remaining cache is valid to continue from.
    fn truncate(&mut self, len: usize) -> usize;
}
