//! Beam search: texts that follow a prompt with a high probability.

use super::batcher::Batcher;
use super::steps::BatchSequence;
use crate::error::{Error, Result, Stage};
use crate::graph::op::paged_attention::PAGE;
use crate::llm::codec::{Codec, Prompt};
use crate::llm::generator::check_prompt;
use crate::llm::sampler::arg_max;
use crate::llm::template::Values;
use crate::llm::{Cancel, Finish, LanguageModel, LogProbs};
use crate::quota;

/// Settings of a beam search.
#[derive(Clone, Debug)]
pub struct BeamOptions {
    /// Number of texts that each step continues, and maximum number of texts returned. At least 1.
    /// At most 64 or `BatchOptions::sequences * (LoadOptions::drafts + 1)`, whichever is larger,
    /// and no more than the rows of a step. Each beam takes one row per step, and cache for its own
    /// tokens.
    pub beams: usize,
    /// Maximum number of tokens of a text, its end token included. At least 1.
    pub max_tokens: usize,
    /// The exponent of the length in [`Beam::score`], a finite number. With 0, texts are compared
    /// by probability; larger values favour longer texts.
    pub length_penalty: f64,
    /// Stops the search from another thread.
    pub cancel: Cancel,
}

impl Default for BeamOptions {
    /// 4 beams of at most 256 tokens, compared by the mean of their log-probabilities.
    fn default() -> Self {
        Self {
            beams: 4,
            max_tokens: 256,
            length_penalty: 1.0,
            cancel: Cancel::default(),
        }
    }
}

/// A text that a beam search found.
#[derive(Clone, Debug, PartialEq)]
pub struct Beam {
    /// The text of `tokens`, without special tokens.
    pub text: String,
    /// The tokens that follow the prompt, without the end token.
    pub tokens: Vec<u32>,
    /// Why the text ends: [`Finish::Eos`], [`Finish::MaxTokens`] or [`Finish::ContextFull`].
    pub finish: Finish,
    /// Sum of the natural log-probabilities of all tokens, the end token included.
    pub log_prob: f64,
    /// `log_prob / length^length_penalty`. The length is the number of tokens, the end token
    /// included.
    pub score: f64,
}

impl Batcher {
    /// Searches for the texts with the highest scores ([`Beam::score`]) that follow `prompt`, and
    /// returns at least one and at most [`BeamOptions::beams`] of them, best first. Blocks the
    /// calling thread. Beams share steps with each other and with requests, and they share pages of
    /// the cache as long as their tokens agree. The prompt is fed once.
    ///
    /// A step extends every beam by every token and ranks these continuations by log-probability.
    /// Continuations among the first `beams` that end (with an end token, at the maximum length or
    /// with a full context) are finished; the `beams` finished texts with the highest scores are
    /// kept. The first `beams` continuations that do not end become the beams of the next step.
    /// Ties between log-probabilities go to the earlier beam, then to the smaller token ID; ties
    /// between scores go to the text that finished first. So equal logits give equal results.
    ///
    /// The search ends when no beam is left, or when `beams` texts are finished and no beam can
    /// exceed the lowest score `S` among them. More tokens only lower the log-probability `p` of a
    /// beam, so its score is at most `p / m^length_penalty`, where `m` is the maximum length for a
    /// positive penalty and the next length otherwise. The search compares `S` with this bound for
    /// the most likely beam.
    ///
    /// Usage errors: options outside their range, more beams than a step has rows of logits or than
    /// the cache holds at their maximum length, and the errors of
    /// [`Session::generate`](crate::llm::Session::generate) for a prompt. An error of kind
    /// [`Unsupported`](crate::error::ErrorKind::Unsupported) if requests run one after another, and
    /// of kind [`Interrupted`](crate::error::ErrorKind::Interrupted) after
    /// [`BeamOptions::cancel`].
    pub fn beam_search<'p>(&self, prompt: impl Into<Prompt<'p>>, options: &BeamOptions) -> Result<Vec<Beam>> {
        let sequence = self.sequence()?;
        let prompt = self.codec().encode(prompt, &Values::new(), &options.cancel)?;
        beam_search(sequence, self.codec(), &prompt, options)
    }
}

/// Like [`Batcher::beam_search`], for texts that follow the tokens of `sequence` and then `prompt`.
pub fn beam_search(
    mut sequence: BatchSequence,
    codec: &Codec,
    prompt: &[u32],
    options: &BeamOptions,
) -> Result<Vec<Beam>> {
    options.check()?;
    check_prompt(&sequence, prompt)?;
    let start = sequence.len() + prompt.len();
    // The last token of a text is not fed.
    let room = sequence.context() - start + 1;
    let mut search = Search::new(options, codec.eos(), room);
    check_fit(&sequence, start, &search)?;
    let _cancellable = quota::cancellable(&options.cancel);
    let mut row = Vec::new();
    sequence.forward(prompt, &mut row)?;
    let (mut sequences, mut rows) = (vec![sequence], vec![row]);
    loop {
        let (parents, tokens) = search.advance(&rows)?;
        if tokens.is_empty() {
            break;
        }
        sequences = branch(sequences, &parents)?;
        quota::check().map_err(|e| Error::exceeded(Stage::Run, e))?;
        rows = BatchSequence::forward_each(&mut sequences, &tokens)?;
    }
    for beam in &mut search.found {
        beam.text = codec.tokenizer().decode(&beam.tokens)?;
    }
    Ok(search.found)
}

impl BeamOptions {
    fn check(&self) -> Result<()> {
        for (name, value) in [("beams", self.beams), ("max_tokens", self.max_tokens)] {
            if value == 0 {
                return Err(Error::usage(name, "0 is too small; expected at least 1"));
            }
        }
        if !self.length_penalty.is_finite() {
            let what = format!("{} is not a finite number", self.length_penalty);
            return Err(Error::usage("length_penalty", what));
        }
        Ok(())
    }
}

/// A usage error for more beams, after `start` tokens, than one step and the cache can hold.
fn check_fit(sequence: &BatchSequence, start: usize, search: &Search<'_>) -> Result<()> {
    let (config, beams) = (sequence.config(), search.options.beams);
    if beams > config.logits {
        let what = format!("{beams} is too large; expected at most {}", config.logits);
        return Err(Error::usage("beams", what));
    }
    // All beams share the full pages before their own tokens.
    let shared = start / PAGE;
    let all = (start + search.limit - 1).div_ceil(PAGE);
    let users = if search.limit > 1 { beams } else { 1 };
    let needed = shared + users * (all - shared);
    if needed > config.pages {
        let what = format!(
            "{beams} beams of {} tokens after {start} need a cache of {} tokens; it holds {}",
            search.limit,
            needed * PAGE,
            config.pages * PAGE
        );
        return Err(Error::usage("beams", what));
    }
    Ok(())
}

/// The sequences that the next step continues: for each index in `parents`, a sequence with the
/// tokens of that parent. The last user of a parent takes it; others get forks.
fn branch(parents: Vec<BatchSequence>, chosen: &[usize]) -> Result<Vec<BatchSequence>> {
    let mut parents: Vec<Option<BatchSequence>> = parents.into_iter().map(Some).collect();
    let next = |(i, parent): (usize, &usize)| {
        let again = chosen.iter().skip(i + 1).any(|other| other == parent);
        let place = parents.get_mut(*parent);
        let sequence = place.and_then(|place| match again {
            true => place.as_ref().map(BatchSequence::forked),
            false => place.take(),
        });
        sequence.ok_or_else(|| Error::internal(Stage::Run, format!("there is no beam {parent}")))
    };
    chosen.iter().enumerate().map(next).collect()
}

/// A text that goes on.
struct Running {
    tokens: Vec<u32>,
    log_prob: f64,
}

/// A beam, and a token that follows it.
struct Continuation {
    beam: usize,
    token: u32,
    /// Of the tokens of the beam and this one.
    log_prob: f64,
}

/// The beams of a search.
struct Search<'a> {
    options: &'a BeamOptions,
    eos: &'a [u32],
    /// Maximum number of tokens of a text, its end token included.
    limit: usize,
    /// Why a text of `limit` tokens ends.
    full: Finish,
    /// The most likely first. All have `length` tokens.
    running: Vec<Running>,
    length: usize,
    /// Best first, still without their text.
    found: Vec<Beam>,
}

impl<'a> Search<'a> {
    /// The context has room for `room` tokens of a text.
    fn new(options: &'a BeamOptions, eos: &'a [u32], room: usize) -> Self {
        let full = match room < options.max_tokens {
            true => Finish::ContextFull,
            false => Finish::MaxTokens,
        };
        let empty = Running {
            tokens: Vec::new(),
            log_prob: 0.0,
        };
        Self {
            options,
            eos,
            limit: options.max_tokens.min(room),
            full,
            running: vec![empty],
            length: 0,
            found: Vec::new(),
        }
    }

    /// Takes the logits after each beam. Returns the beams of the next step, each with the beam
    /// that it continues and the token to feed; none at the end of the search.
    fn advance(&mut self, rows: &[Vec<f32>]) -> Result<(Vec<usize>, Vec<u32>)> {
        let beams = self.options.beams;
        let all = self.continuations(rows)?;
        self.length += 1;
        let mut next: Vec<Continuation> = Vec::with_capacity(beams);
        for (place, one) in all.into_iter().enumerate() {
            let finish = match self.eos.contains(&one.token) {
                true => Some(Finish::Eos(one.token)),
                false => (self.length == self.limit).then_some(self.full),
            };
            match finish {
                Some(finish) if place < beams => self.add(&one, finish),
                None if next.len() < beams => next.push(one),
                _ => {}
            }
        }
        if next.first().is_none_or(|best| self.is_final(best.log_prob)) {
            next.clear();
        }
        self.running = next.iter().map(|one| self.extended(one)).collect();
        Ok(next.iter().map(|one| (one.beam, one.token)).unzip())
    }

    /// The most likely continuations, in order: enough for `beams` that do not end.
    fn continuations(&self, rows: &[Vec<f32>]) -> Result<Vec<Continuation>> {
        if rows.len() != self.running.len() {
            let what = format!("{} rows of logits for {} beams", rows.len(), self.running.len());
            return Err(Error::internal(Stage::Run, what));
        }
        // A beam has a continuation for each end token.
        let count = self.options.beams.saturating_mul(1 + self.eos.len().max(1));
        let mut all = Vec::new();
        for (beam, (running, row)) in self.running.iter().zip(rows).enumerate() {
            let best = LogProbs::of(row, arg_max(row)?, count).top;
            let possible = best.into_iter().filter(|t| t.log_prob > f32::NEG_INFINITY);
            all.extend(possible.map(|t| Continuation {
                beam,
                token: t.id,
                log_prob: running.log_prob + f64::from(t.log_prob),
            }));
        }
        // Stable: equal ones stay in the order of beams, and in that of logits and tokens.
        all.sort_by(|a, b| b.log_prob.total_cmp(&a.log_prob));
        all.truncate(count);
        Ok(all)
    }

    /// The text of a continuation.
    fn extended(&self, one: &Continuation) -> Running {
        let before = self.running.get(one.beam).map(|beam| &beam.tokens[..]);
        Running {
            tokens: [before.unwrap_or_default(), &[one.token]].concat(),
            log_prob: one.log_prob,
        }
    }

    /// Adds a text to those found, if it is one of the best.
    fn add(&mut self, one: &Continuation, finish: Finish) {
        let score = self.score(one.log_prob, self.length);
        let place = self.found.partition_point(|beam| beam.score >= score);
        if place == self.options.beams {
            return;
        }
        let mut tokens = self.extended(one).tokens;
        if matches!(finish, Finish::Eos(_)) {
            tokens.pop();
        }
        let beam = Beam {
            text: String::new(),
            tokens,
            finish,
            log_prob: one.log_prob,
            score,
        };
        self.found.insert(place, beam);
        self.found.truncate(self.options.beams);
    }

    fn score(&self, log_prob: f64, length: usize) -> f64 {
        // 0 over a power that underflows is 0.
        match log_prob == 0.0 {
            true => 0.0,
            false => log_prob / (length as f64).powf(self.options.length_penalty),
        }
    }

    /// True if no text that goes on can be among the best. The largest log-probability is
    /// `log_prob`.
    fn is_final(&self, log_prob: f64) -> bool {
        let length = match self.options.length_penalty > 0.0 {
            true => self.limit,
            false => self.length + 1,
        };
        let most = self.score(log_prob, length);
        self.found.len() == self.options.beams && self.found.last().is_some_and(|worst| most <= worst.score)
    }
}
