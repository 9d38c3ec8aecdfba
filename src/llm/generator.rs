//! The generation loop: feed, sample, stop.

use super::draft::Speculation;
use super::schema::DefaultBound;
use super::{Cancel, Candidates, LanguageModel, LogProbs, Metrics, Progress, Sampler, SamplerNeeds};
use crate::error::{Error, ErrorKind, Result, Stage};
use crate::{num, quota};
use std::collections::VecDeque;
use std::fmt;
use std::time::Instant;

/// When generation stops.
#[derive(Clone, Debug)]
pub struct DecodeOptions {
    /// Maximum number of tokens to generate.
    pub max_tokens: usize,
    /// IDs that end the text.
    pub eos: Vec<u32>,
    /// Stops generation before the next token.
    pub cancel: Cancel,
    /// If set, a full context slides: this many leading tokens stay, the older half of the rest is
    /// dropped, and the remainder is fed again. If `None`, generation stops when the context is
    /// full.
    pub slide: Option<usize>,
    /// Receives progress while a prompt takes several runs.
    pub progress: Progress,
    /// If set, each token has its log-probability and those of this many most likely tokens
    /// ([`Generator::log_probs`]).
    pub log_probs: Option<usize>,
}

impl Default for DecodeOptions {
    /// 256 tokens, like [`GenerateOptions`](super::GenerateOptions).
    fn default() -> Self {
        Self {
            max_tokens: 256,
            eos: Vec::new(),
            cancel: Cancel::default(),
            slide: None,
            progress: Progress::default(),
            log_probs: None,
        }
    }
}

/// Why generation stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model chose this end token.
    Eos(u32),
    /// A stop string was generated.
    Stop,
    /// The sampler's constraint is complete.
    Complete,
    /// [`DecodeOptions::max_tokens`] tokens were generated.
    MaxTokens,
    /// The cache has no room for another token.
    ContextFull,
    /// [`DecodeOptions::cancel`] was set.
    Cancelled,
}

impl fmt::Display for Finish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Eos(_) => "end of text",
            Self::Stop => "stop string",
            Self::Complete => "grammar complete",
            Self::MaxTokens => "token limit reached",
            Self::ContextFull => "context full",
            Self::Cancelled => "stopped",
        })
    }
}

/// A generated token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// Token ID.
    pub id: u32,
    /// Position in the context, from 0.
    pub position: usize,
}

/// What the model returned for rows of the last run: as much as the choice needs.
#[derive(Debug, Default)]
struct RowResults {
    ids: Vec<u32>,
    candidates: Candidates,
    logits: Vec<f32>,
}

/// Yields the tokens that follow a prompt, without end tokens. The first call of `next` feeds the
/// prompt. A token is fed when the next one is requested, so the last one yielded is not in the
/// cache unless an end token followed it or a draft contained it. After an error it yields nothing
/// more.
pub struct Generator<'a, M: LanguageModel + ?Sized> {
    model: &'a mut M,
    sampler: &'a mut Sampler,
    options: DecodeOptions,
    speculation: Option<&'a mut Speculation>,
    /// What is read of each row.
    needs: SamplerNeeds,
    /// Number of cached tokens whose IDs are unknown.
    unknown: usize,
    /// The tokens after them: the rest of the cache, then those still to be fed.
    context: Vec<u32>,
    /// Sampled but not yet yielded.
    ready: VecDeque<(Token, Option<LogProbs>)>,
    /// Those of the last token yielded.
    log_probs: Option<LogProbs>,
    found: RowResults,
    sampled: usize,
    /// Why generation ends once `ready` is empty.
    coming: Option<Finish>,
    finish: Option<Finish>,
    failed: bool,
    metrics: Metrics,
}

/// The errors of [`Generator::new`] for a prompt.
pub(super) fn check_prompt(model: &(impl LanguageModel + ?Sized), prompt: &[u32]) -> Result<()> {
    if prompt.is_empty() {
        return Err(Error::usage("prompt", "has no tokens; expected at least one"));
    }
    let total = model.len().saturating_add(prompt.len());
    if total > model.context() {
        let what = format!("has {total} tokens, but the context holds {}", model.context());
        return Err(Error::usage("prompt", what).of_kind(ErrorKind::ContextExceeded));
    }
    if let Some(id) = prompt
        .iter()
        .find(|id| usize::try_from(**id).map_or(true, |id| id >= model.vocab()))
    {
        let vocab = model.vocab();
        let what = format!(
            "token ID {id} of the prompt is out of range; the vocabulary has {vocab} tokens: \
             does the tokenizer belong to this model?"
        );
        return Err(Error::other(Stage::Text, what).of_kind(ErrorKind::TokenOutOfRange));
    }
    Ok(())
}

/// What is read of each row.
fn needs(model: &(impl LanguageModel + ?Sized), sampler: &Sampler, options: &DecodeOptions) -> SamplerNeeds {
    // A call, since otherwise the compiler compares the number before it looks whether there is
    // one, which Valgrind takes for a fault.
    #[inline(never)]
    fn of_log_probs(top: usize) -> SamplerNeeds {
        if top <= Candidates::COUNT {
            SamplerNeeds::Candidates
        } else {
            SamplerNeeds::Row
        }
    }
    let log_probs = options.log_probs.map_or(SamplerNeeds::MostLikely, of_log_probs);
    match sampler.needs().max(log_probs) {
        SamplerNeeds::Candidates if !model.finds_candidates() => SamplerNeeds::Row,
        needs => needs,
    }
}

impl<'a, M: LanguageModel + ?Sized> Generator<'a, M> {
    /// Generates after the tokens in the cache of `model` and `prompt`. Usage errors: an empty
    /// prompt, or one that does not fit the context. An error for a token ID outside the
    /// vocabulary.
    pub fn new(
        model: &'a mut M,
        sampler: &'a mut Sampler,
        prompt: &[u32],
        options: DecodeOptions,
    ) -> Result<Self> {
        check_prompt(model, prompt)?;
        sampler.start(prompt)?;
        let needs = needs(model, sampler, &options);
        Ok(Self {
            metrics: Metrics {
                prompt_tokens: prompt.len(),
                reused_tokens: model.len(),
                ..Metrics::default()
            },
            unknown: model.len(),
            context: prompt.to_vec(),
            ready: VecDeque::new(),
            log_probs: None,
            model,
            sampler,
            options,
            speculation: None,
            needs,
            found: RowResults::default(),
            sampled: 0,
            coming: None,
            finish: None,
            failed: false,
        })
    }

    /// Sets the tokens in the cache, so that penalties, drafts and a sliding context see them. An
    /// error if their number differs from the cache length.
    pub fn after(mut self, cached: &[u32]) -> Result<Self> {
        if cached.len() != self.model.len() {
            let what = format!(
                "the cache holds {} tokens, but {} were given",
                self.model.len(),
                cached.len()
            );
            return Err(Error::other(Stage::Run, what));
        }
        self.context.splice(..0, cached.iter().copied());
        self.unknown = 0;
        self.sampler.start(&self.context)?;
        Ok(self)
    }

    /// Adds speculative decoding. [`Session::set_draft`](super::Session::set_draft) describes how
    /// this may change the output.
    #[must_use]
    pub fn speculating(mut self, speculation: &'a mut Speculation) -> Self {
        speculation.start();
        self.speculation = Some(speculation);
        self
    }

    /// Why generation ended; `None` before the end and after an error.
    pub fn finish(&self) -> Option<Finish> {
        self.finish
    }

    /// The default bounds at which values of the text ended, if a schema constrains it.
    pub fn reached(&self) -> Vec<DefaultBound> {
        self.sampler.reached()
    }

    /// Counts and times so far.
    pub fn metrics(&self) -> Metrics {
        self.metrics
    }

    /// Log-probabilities at the last token yielded, if [`DecodeOptions::log_probs`] is set.
    pub fn log_probs(&self) -> Option<&LogProbs> {
        self.log_probs.as_ref()
    }

    /// Runs tokens and keeps what is needed of the row after the last one, or after each.
    fn run(&mut self, tokens: &[u32], each: bool) -> Result<()> {
        let needs = self.needs;
        let (model, found) = (&mut *self.model, &mut self.found);
        match needs {
            SamplerNeeds::MostLikely if each => found.ids = model.most_likely_all(tokens)?,
            SamplerNeeds::MostLikely => {
                found.ids.clear();
                found.ids.push(model.most_likely(tokens)?);
            }
            SamplerNeeds::Candidates if each => model.candidates_all(tokens, &mut found.candidates)?,
            SamplerNeeds::Candidates => model.candidates(tokens, &mut found.candidates)?,
            SamplerNeeds::Row if each => found.logits = model.forward_all(tokens)?,
            SamplerNeeds::Row => model.forward(tokens, &mut found.logits)?,
        }
        let rows = if each { tokens.len() } else { 1 };
        let (what, count, wanted) = match needs {
            SamplerNeeds::MostLikely => ("tokens", found.ids.len(), rows),
            SamplerNeeds::Candidates => ("rows of candidates", found.candidates.rows(), rows),
            SamplerNeeds::Row => ("logits", found.logits.len(), rows * model.vocab()),
        };
        if count == wanted {
            return Ok(());
        }
        let what = format!("the model returned {count} {what}, expected {wanted}");
        Err(Error::other(Stage::Run, what))
    }

    /// The token for a row of the last run, with its log-probabilities if they are wanted.
    fn choose(&mut self, row: usize) -> Result<(u32, Option<LogProbs>)> {
        let (found, log_probs) = (&self.found, self.options.log_probs);
        let missing = || Error::internal(Stage::Run, format!("no row {row} of a run"));
        match self.needs {
            SamplerNeeds::MostLikely => Ok((*found.ids.get(row).ok_or_else(missing)?, None)),
            SamplerNeeds::Candidates => {
                let row = found.candidates.row(row).ok_or_else(missing)?;
                let id = self.sampler.sample_candidates(row)?;
                Ok((id, log_probs.map(|top| LogProbs::of_candidates(row, id, top))))
            }
            SamplerNeeds::Row => {
                let vocab = self.model.vocab();
                let logits = found.logits.get(row * vocab..(row + 1) * vocab);
                let logits = logits.ok_or_else(missing)?;
                let id = self.sampler.sample(logits)?;
                Ok((id, log_probs.map(|top| LogProbs::of(logits, id, top))))
            }
        }
    }

    /// The tokens in the cache whose IDs are known.
    pub fn cached(&self) -> &[u32] {
        self.context.get(..self.fed()).unwrap_or(&self.context)
    }

    /// How many tokens of `context` are in the cache.
    fn fed(&self) -> usize {
        self.model.len().saturating_sub(self.unknown)
    }

    /// Makes at least one token ready, or returns why there are none.
    fn step(&mut self) -> Result<Option<Finish>> {
        if self.options.cancel.is_cancelled() {
            return Ok(Some(Finish::Cancelled));
        }
        if self.sampled >= self.options.max_tokens {
            return Ok(Some(Finish::MaxTokens));
        }
        if self.unknown + self.context.len() > self.model.context() && !self.slide()? {
            return Ok(Some(Finish::ContextFull));
        }
        let start = Instant::now();
        let before = self.sampled;
        let waiting = self.context.len() - self.fed();
        let guess = self.guess(waiting)?;
        let run = Instant::now();
        let finish = if guess.is_empty() {
            self.feed()?
        } else {
            self.verify(&guess)?
        };
        if finish == Some(Finish::Cancelled) {
            return Ok(finish);
        }
        if let Some(speculation) = self.speculation.as_mut().filter(|_| waiting == 1) {
            speculation.ran(1 + guess.len(), run.elapsed());
        }
        // An end token counts as well.
        let count = self.sampled - before + usize::from(matches!(finish, Some(Finish::Eos(_))));
        self.metrics.tokens = self.sampled;
        if self.metrics.first_token.is_zero() {
            let reused = self.model.reused().min(self.metrics.prompt_tokens);
            self.metrics.prompt_tokens -= reused;
            self.metrics.reused_tokens += reused;
            self.metrics.first_token = start.elapsed();
        } else {
            self.metrics.decode += start.elapsed();
            self.metrics.decode_tokens += count;
        }
        Ok(finish)
    }

    /// Drops the older half of the tokens that need not stay, and the cache from there on. Returns
    /// false if sliding is off or nothing can be dropped.
    fn slide(&mut self) -> Result<bool> {
        let Some(keep) = self.options.slide else {
            return Ok(false);
        };
        let keep = keep.saturating_sub(self.unknown).min(self.context.len());
        let dropped = (self.context.len() - keep) / 2;
        if dropped == 0 {
            return Ok(false);
        }
        self.context.drain(keep..keep + dropped);
        self.cut(self.unknown + keep)?;
        self.metrics.forgotten += dropped;
        self.metrics.fed_again += self.context.len() - self.fed();
        Ok(true)
    }

    /// Truncates the cache to `len` tokens. If the model truncates further, known tokens are fed
    /// again.
    fn cut(&mut self, len: usize) -> Result<()> {
        let kept = self.model.truncate(len);
        if kept >= self.unknown.min(len) {
            return Ok(());
        }
        let what = format!(
            "the cache keeps only a window of the latest tokens and cannot be truncated to {len} tokens: \
             the first {} would have to be fed again, but their IDs are unknown",
            self.unknown
        );
        Err(Error::other(Stage::Run, what))
    }

    /// A draft of what follows the tokens still to be fed, if it is one.
    fn guess(&mut self, waiting: usize) -> Result<Vec<u32>> {
        let (left, room) = (
            self.options.max_tokens - self.sampled - 1,
            self.model
                .context()
                .saturating_sub(self.unknown + self.context.len()),
        );
        let (rows, vocab) = (self.model.most_rows(), self.model.vocab());
        let Some(speculation) = self.speculation.as_mut().filter(|_| waiting == 1) else {
            return Ok(Vec::new());
        };
        let most = left.min(room).min(rows.saturating_sub(1));
        let mut guess = speculation.propose(&self.context, most, &self.options.cancel)?;
        let known = |id: &u32| usize::try_from(*id).is_ok_and(|id| id < vocab);
        let usable = guess.iter().take_while(|id| known(id)).count();
        guess.truncate(usable.min(most));
        Ok(guess)
    }

    /// Feeds the waiting tokens and takes one token.
    fn feed(&mut self) -> Result<Option<Finish>> {
        let waiting = num::part(&self.context, self.fed()..)?.to_vec();
        // One run at a time, so that a cancelled prompt ends soon.
        let run = self.model.run_length().max(1);
        let progress = self.options.progress.clone();
        let report = |done| {
            if waiting.len() > run {
                progress.report(done, waiting.len());
            }
        };
        let mut done = 0;
        for part in waiting.chunks(run) {
            if self.options.cancel.is_cancelled() {
                return Ok(Some(Finish::Cancelled));
            }
            report(done);
            done += part.len();
            if done < waiting.len() {
                self.model.forward(part, &mut self.found.logits)?;
            } else {
                self.run(part, false)?;
            }
        }
        report(done);
        let (id, log_probs) = self.choose(0)?;
        self.took(id, log_probs)
    }

    /// Appends the only token of a run.
    fn took(&mut self, id: u32, log_probs: Option<LogProbs>) -> Result<Option<Finish>> {
        if let Some(speculation) = &mut self.speculation {
            speculation.chose(id);
        }
        self.take(id, log_probs)
    }

    /// Feeds the waiting token and a draft. Takes tokens while the draft is right, plus one more.
    fn verify(&mut self, guess: &[u32]) -> Result<Option<Finish>> {
        let before = self.model.len();
        let mut run = num::part(&self.context, self.fed()..)?.to_vec();
        run.extend_from_slice(guess);
        self.run(&run, true)?;
        self.metrics.drafted += guess.len();
        let mut finish = None;
        for i in 0..run.len() {
            let (id, log_probs) = self.choose(i)?;
            // The cache is correct up to here.
            let right = before + i + 1;
            finish = self.take(id, log_probs)?;
            let is_right = guess.get(i) == Some(&id);
            if let Some(speculation) = self.speculation.as_mut().filter(|_| i < guess.len()) {
                speculation.verified(is_right);
            }
            if finish.is_some() || !is_right {
                self.cut(right)?;
                break;
            }
            self.metrics.accepted += 1;
        }
        Ok(finish)
    }

    /// Appends a chosen token.
    fn take(&mut self, id: u32, log_probs: Option<LogProbs>) -> Result<Option<Finish>> {
        if self.options.eos.contains(&id) {
            return Ok(Some(Finish::Eos(id)));
        }
        let vocab = self.model.vocab();
        if usize::try_from(id).map_or(true, |id| id >= vocab) {
            let what = format!("the chosen token ID {id} is out of range; the vocabulary has {vocab} tokens");
            return Err(Error::other(Stage::Run, what));
        }
        self.sampler.accept(id)?;
        let token = Token {
            id,
            position: self.unknown + self.context.len(),
        };
        self.ready.push_back((token, log_probs));
        self.context.push(id);
        self.sampled += 1;
        Ok(self.sampler.is_complete().then_some(Finish::Complete))
    }
}

impl<M: LanguageModel + ?Sized> Iterator for Generator<'_, M> {
    type Item = Result<Token>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.finish.is_some() {
            return None;
        }
        if self.ready.is_empty() && self.coming.is_none() {
            let cancellable = quota::cancellable(&self.options.cancel);
            let step = self.step();
            drop(cancellable);
            match step {
                Ok(end) => self.coming = end,
                Err(e) if e.kind() == ErrorKind::Interrupted && self.options.cancel.is_cancelled() => {}
                Err(e) => {
                    self.failed = true;
                    return Some(Err(e));
                }
            }
        }
        if self.options.cancel.is_cancelled() {
            // Drafted tokens are not part of the text.
            self.finish = Some(Finish::Cancelled);
            return None;
        }
        let Some((token, log_probs)) = self.ready.pop_front() else {
            self.finish = self.coming;
            return None;
        };
        self.log_probs = log_probs;
        Some(Ok(token))
    }
}

#[cfg(test)]
mod tests;
