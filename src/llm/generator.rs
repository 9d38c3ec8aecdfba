//! The loop of generation: feed, sample, stop.

use super::{Metrics, Model, Sampler};
use crate::error::{Error, Result, Stage};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Tokens of a prompt that are run between two looks at the cancel flag: one prefill run of a device.
const PROMPT_PART: usize = super::engine::CHUNK;

/// When generation stops.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    /// Largest number of tokens to generate.
    pub max_tokens: usize,
    /// Ids that end the text.
    pub eos: Vec<u32>,
    /// Set from elsewhere to stop before the next token.
    pub cancel: Arc<AtomicBool>,
}

/// Why generation stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model chose this end token.
    Eos(u32),
    /// [`Limits::max_tokens`] were generated.
    MaxTokens,
    /// The cache has no room for another token.
    ContextFull,
    /// [`Limits::cancel`] was set.
    Cancelled,
}

impl fmt::Display for Finish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Eos(_) => "end of text",
            Self::MaxTokens => "token limit reached",
            Self::ContextFull => "context full",
            Self::Cancelled => "stopped",
        })
    }
}

/// A generated token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Its place in the context, from 0.
    pub position: usize,
}

/// Yields the tokens that follow a prompt; end tokens are not yielded. The prompt is fed by the first call
/// of `next`. A token is fed when the next one is asked for, so the last one yielded is not in the cache
/// unless an end token followed it. After an error it yields nothing more.
pub struct Generator<'a, M: Model + ?Sized> {
    model: &'a mut M,
    sampler: &'a mut Sampler,
    limits: Limits,
    /// Tokens to feed before the next sample.
    pending: Vec<u32>,
    logits: Vec<f32>,
    generated: usize,
    finish: Option<Finish>,
    failed: bool,
    metrics: Metrics,
}

impl<'a, M: Model + ?Sized> Generator<'a, M> {
    /// Generation after the tokens in the cache of `model` and then `prompt`. Usage errors: an empty
    /// prompt, or one that does not fit the context. An error for an id that the model does not have.
    pub fn new(model: &'a mut M, sampler: &'a mut Sampler, prompt: &[u32], limits: Limits) -> Result<Self> {
        if prompt.is_empty() {
            return Err(Error::usage(
                "prompt",
                "has no tokens; the model needs at least one",
            ));
        }
        let total = model.len().saturating_add(prompt.len());
        if total > model.context() {
            let what = format!("has {total} tokens, but the context holds {}", model.context());
            return Err(Error::usage("prompt", what));
        }
        if let Some(id) = prompt
            .iter()
            .find(|id| usize::try_from(**id).map_or(true, |id| id >= model.vocab()))
        {
            let vocab = model.vocab();
            let what = format!(
                "token {id} of the prompt is not below the model's {vocab}: the tokenizer is another model's"
            );
            return Err(Error::other(Stage::Text, what));
        }
        sampler.start(prompt)?;
        Ok(Self {
            metrics: Metrics {
                prompt_tokens: prompt.len(),
                ..Metrics::default()
            },
            pending: prompt.to_vec(),
            model,
            sampler,
            limits,
            logits: Vec::new(),
            generated: 0,
            finish: None,
            failed: false,
        })
    }

    /// Why there are no more tokens; `None` before the end and after an error.
    pub fn finish(&self) -> Option<Finish> {
        self.finish
    }

    /// Counts and times so far.
    pub fn metrics(&self) -> Metrics {
        self.metrics
    }

    fn step(&mut self) -> Result<Result<Token, Finish>> {
        if self.limits.cancel.load(Ordering::Relaxed) {
            return Ok(Err(Finish::Cancelled));
        }
        if self.generated >= self.limits.max_tokens {
            return Ok(Err(Finish::MaxTokens));
        }
        if self.model.len().saturating_add(self.pending.len()) > self.model.context() {
            return Ok(Err(Finish::ContextFull));
        }
        let start = Instant::now();
        // In parts, so that a cancelled prompt ends soon.
        for part in self.pending.chunks(PROMPT_PART) {
            if self.limits.cancel.load(Ordering::Relaxed) {
                return Ok(Err(Finish::Cancelled));
            }
            self.model.forward(part, &mut self.logits)?;
        }
        if self.logits.len() != self.model.vocab() {
            let what = format!(
                "the model gave {} logits, expected {}",
                self.logits.len(),
                self.model.vocab()
            );
            return Err(Error::other(Stage::Run, what));
        }
        let id = self.sampler.sample(&self.logits)?;
        if self.metrics.first_token.is_zero() {
            self.metrics.first_token = start.elapsed();
        } else {
            self.metrics.decode += start.elapsed();
            self.metrics.decode_tokens += 1;
        }
        if self.limits.eos.contains(&id) {
            return Ok(Err(Finish::Eos(id)));
        }
        self.sampler.accept(id)?;
        self.pending.clear();
        self.pending.push(id);
        self.generated += 1;
        Ok(Ok(Token {
            id,
            position: self.model.len(),
        }))
    }
}

impl<M: Model + ?Sized> Iterator for Generator<'_, M> {
    type Item = Result<Token>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.finish.is_some() {
            return None;
        }
        match self.step() {
            Ok(Ok(token)) => Some(Ok(token)),
            Ok(Err(finish)) => {
                self.finish = Some(finish);
                None
            }
            Err(e) => {
                self.failed = true;
                Some(Err(e))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::SamplerConfig;
    use crate::llm::testing::FakeModel;

    fn greedy() -> Sampler {
        Sampler::new(SamplerConfig::default()).unwrap()
    }

    fn limits(max_tokens: usize, eos: &[u32]) -> Limits {
        Limits {
            max_tokens,
            eos: eos.to_vec(),
            ..Limits::default()
        }
    }

    /// Counts upward from the last token.
    fn counting(context: usize) -> FakeModel {
        FakeModel::new(32, context, |cache| (cache.last().unwrap() + 1) % 32)
    }

    fn run(model: &mut FakeModel, prompt: &[u32], limits: Limits) -> (Vec<u32>, Option<Finish>, Metrics) {
        let mut sampler = greedy();
        let mut generator = Generator::new(model, &mut sampler, prompt, limits).unwrap();
        let ids = generator.by_ref().map(|t| t.unwrap().id).collect();
        (ids, generator.finish(), generator.metrics())
    }

    #[test]
    fn stops_at_an_end_token() {
        let mut model = counting(100);
        let (ids, finish, metrics) = run(&mut model, &[1, 2, 3], limits(50, &[9, 7]));
        assert_eq!(ids, [4, 5, 6]);
        assert_eq!(finish, Some(Finish::Eos(7)));
        assert_eq!(model.calls, [vec![1, 2, 3], vec![4], vec![5], vec![6]]);
        assert_eq!((metrics.prompt_tokens, metrics.decode_tokens), (3, 3));
    }

    #[test]
    fn stops_at_the_token_limit_without_a_wasted_step() {
        let mut model = counting(100);
        let (ids, finish, _) = run(&mut model, &[1], limits(2, &[]));
        assert_eq!((ids, finish), (vec![2, 3], Some(Finish::MaxTokens)));
        assert_eq!(model.cache, [1, 2], "the last token is not fed");
        let (ids, finish, metrics) = run(&mut model, &[1], limits(0, &[]));
        assert_eq!((ids, finish), (vec![], Some(Finish::MaxTokens)));
        assert_eq!(metrics.prefill_tokens_per_s(), None);
    }

    #[test]
    fn stops_when_the_context_is_full() {
        let mut model = counting(4);
        let (ids, finish, _) = run(&mut model, &[1, 2, 3], limits(50, &[]));
        assert_eq!((ids, finish), (vec![4, 5], Some(Finish::ContextFull)));
        assert_eq!(model.cache, [1, 2, 3, 4]);
        model.truncate(0);
        let (ids, _, _) = run(&mut model, &[1, 2, 3, 4], limits(50, &[]));
        assert_eq!(ids, [5], "a prompt of the context's size has one answer");
    }

    #[test]
    fn continues_after_what_the_cache_holds() {
        let mut model = FakeModel::new(32, 100, |cache| u32::try_from(cache.len()).unwrap());
        model.cache = vec![3, 3, 3];
        let mut sampler = greedy();
        let tokens: Vec<Token> = Generator::new(&mut model, &mut sampler, &[4], limits(2, &[]))
            .unwrap()
            .map(|t| t.unwrap())
            .collect();
        assert_eq!(
            tokens,
            [Token { id: 4, position: 4 }, Token { id: 5, position: 5 }]
        );
    }

    #[test]
    fn stops_when_cancelled() {
        let mut model = counting(100);
        let limits = limits(50, &[]);
        let cancel = limits.cancel.clone();
        let mut sampler = greedy();
        let mut generator = Generator::new(&mut model as &mut dyn Model, &mut sampler, &[1], limits).unwrap();
        assert!(generator.next().is_some());
        cancel.store(true, Ordering::Relaxed);
        assert!(generator.next().is_none());
        assert_eq!(generator.finish(), Some(Finish::Cancelled));
        cancel.store(false, Ordering::Relaxed);
        assert!(generator.next().is_none(), "the end is final");
    }

    #[test]
    fn prompts_that_cannot_be_fed_are_refused() {
        let mut model = counting(4);
        model.cache = vec![1, 1];
        let mut sampler = greedy();
        let e = Generator::new(&mut model, &mut sampler, &[1, 2, 3], limits(1, &[]))
            .err()
            .unwrap();
        assert!(e.is_usage());
        assert_eq!(e.to_string(), "prompt: has 5 tokens, but the context holds 4");
        let e = Generator::new(&mut model, &mut sampler, &[], limits(1, &[]))
            .err()
            .unwrap();
        assert!(e.is_usage(), "{e}");
        let e = Generator::new(&mut model, &mut sampler, &[32], limits(1, &[]))
            .err()
            .unwrap();
        assert!(
            e.to_string().contains("token 32") && e.to_string().contains("model's 32"),
            "{e}"
        );
        assert!(model.calls.is_empty());
    }

    #[test]
    fn an_error_ends_it() {
        let mut model = counting(100);
        model.fail_at = Some(1);
        let mut sampler = greedy();
        let mut generator = Generator::new(&mut model, &mut sampler, &[1], limits(9, &[])).unwrap();
        assert!(generator.next().unwrap().is_ok());
        assert!(generator.next().unwrap().is_err());
        assert!(generator.next().is_none());
        assert_eq!(generator.finish(), None);
    }
}
