//! Decoders without a KV cache: every new token runs all previous tokens again.

use super::{Observe, check_room};
use crate::error::Result;
use crate::llm::{Candidates, LanguageModel};
use crate::num;

/// Makes a decoder without a KV cache look like one with a cache, by keeping the tokens.
#[derive(Debug)]
pub(crate) struct Uncached<M> {
    model: M,
    tokens: Vec<u32>,
}

impl<M: Observe> Uncached<M> {
    /// Wraps `model`, whose decoder has no KV cache ([`super::Decoder::keeps_cache`]).
    pub fn new(model: M) -> Self {
        Self {
            model,
            tokens: Vec::new(),
        }
    }

    /// Appends `tokens` and empties the model, so that all tokens run.
    fn append(&mut self, tokens: &[u32]) -> Result<()> {
        check_room(self.tokens.len(), tokens.len(), self.model.context())?;
        self.tokens.extend_from_slice(tokens);
        self.model.truncate(0);
        Ok(())
    }

    /// The values of the last `count` tokens in `all`.
    fn last<T>(&self, mut all: Vec<T>, count: usize) -> Vec<T> {
        let each = all.len() / self.tokens.len().max(1);
        all.split_off(all.len().saturating_sub(each * count))
    }
}

impl<M: Observe> LanguageModel for Uncached<M> {
    fn vocab(&self) -> usize {
        self.model.vocab()
    }

    fn context(&self) -> usize {
        self.model.context()
    }

    fn run_length(&self) -> usize {
        // Splitting a prompt would run earlier parts again.
        self.model.context()
    }

    fn len(&self) -> usize {
        self.tokens.len()
    }

    fn forward(&mut self, tokens: &[u32], logits: &mut Vec<f32>) -> Result<()> {
        self.append(tokens)?;
        self.model.forward(&self.tokens, logits)
    }

    fn forward_all(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        self.append(tokens)?;
        let all = self.model.forward_all(&self.tokens)?;
        Ok(self.last(all, tokens.len()))
    }

    fn most_rows(&self) -> usize {
        self.model.most_rows()
    }

    fn most_likely(&mut self, tokens: &[u32]) -> Result<u32> {
        self.append(tokens)?;
        self.model.most_likely(&self.tokens)
    }

    fn most_likely_all(&mut self, tokens: &[u32]) -> Result<Vec<u32>> {
        self.append(tokens)?;
        let all = self.model.most_likely_all(&self.tokens)?;
        Ok(self.last(all, tokens.len()))
    }

    fn finds_candidates(&self) -> bool {
        self.model.finds_candidates()
    }

    fn candidates(&mut self, tokens: &[u32], found: &mut Candidates) -> Result<()> {
        self.append(tokens)?;
        self.model.candidates(&self.tokens, found)
    }

    fn candidates_all(&mut self, tokens: &[u32], found: &mut Candidates) -> Result<()> {
        self.append(tokens)?;
        let mut all = Candidates::default();
        self.model.candidates_all(&self.tokens, &mut all)?;
        found.clear();
        found.extend(&all, all.rows().saturating_sub(tokens.len())..all.rows());
        Ok(())
    }

    fn truncate(&mut self, len: usize) -> usize {
        self.tokens.truncate(len);
        self.tokens.len()
    }
}

impl<M: Observe> Observe for Uncached<M> {
    fn observe(&mut self, tokens: &[u32], take: &mut dyn FnMut(usize, &[f32]) -> Result<()>) -> Result<()> {
        let past = self.tokens.len();
        self.append(tokens)?;
        let all = self.tokens.len();
        // A run covers all tokens, so observed values are complete.
        self.model.observe(&self.tokens, &mut |i, elements| {
            take(i, num::part(elements, elements.len() / all * past..)?)
        })
    }
}
