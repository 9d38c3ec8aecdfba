//! A session with a model: its KV cache, its sampler, and its answers.

use super::codec::{Codec, Prompt};
use super::draft::{Draft, Speculation, reuse};
use super::sampler::Sampler;
use super::schema::DefaultBound;
use super::stop::{StopMatcher, StopStrings};
use super::template::Values;
use super::tokenizer::{TextStream, Tokenizer};
use super::{
    Cancel, DecodeOptions, Finish, Generator, LanguageModel, LogProbs, Metrics, Progress, Token, prompt_cache,
};
use crate::error::{Error, ErrorKind, Result, Stage};
use crate::num;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// When an answer ends.
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    /// Maximum number of tokens to generate. 0 generates none and feeds nothing.
    pub max_tokens: usize,
    /// Strings that end the answer and are not part of it; they may contain special tokens.
    pub stop: StopStrings,
    /// Stops the answer from another thread.
    pub cancel: Cancel,
    /// See [`DecodeOptions::slide`].
    pub slide: Option<usize>,
    /// See [`DecodeOptions::progress`].
    pub progress: Progress,
    /// If set, pieces have log-probabilities ([`Piece::log_probs`]) of their token and of this many
    /// of the most likely tokens. This slows greedy generation: a GPU then finds
    /// [`Candidates::COUNT`](super::Candidates::COUNT) candidates for each token; for more
    /// log-probabilities, and on other devices, the host reads all logits.
    pub log_probs: Option<usize>,
    /// Extra variables for the chat template, such as `tools` or `enable_thinking`.
    pub template_values: Values,
}

impl Default for GenerateOptions {
    /// 256 tokens, like [`DecodeOptions`].
    fn default() -> Self {
        let DecodeOptions {
            max_tokens,
            cancel,
            slide,
            progress,
            ..
        } = DecodeOptions::default();
        Self {
            max_tokens,
            stop: StopStrings::default(),
            cancel,
            slide,
            progress,
            log_probs: None,
            template_values: Values::new(),
        }
    }
}

/// A piece of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Piece {
    /// Text that is certain to stay, in whole characters. Empty if the token completes no
    /// character, or may begin a stop string.
    pub text: String,
    /// The token that produced the text; `None` for text held back until the end.
    pub token: Option<Token>,
    /// Log-probabilities at the token, if [`GenerateOptions::log_probs`] is set.
    pub log_probs: Option<LogProbs>,
}

impl fmt::Display for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A token sequence with its own KV cache and sampler, which is greedy by default. It may be sent
/// to another thread. A prefix that a prompt shares with the cache is not fed again, so a turn of a
/// conversation feeds only new tokens.
pub struct Session {
    model: Box<dyn LanguageModel + Send>,
    codec: Arc<Codec>,
    sampler: Sampler,
    speculation: Option<Speculation>,
    /// Tokens in the cache.
    cached: Vec<u32>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (cached, context) = (self.cached.len(), self.context());
        write!(f, "Session with {cached} of {context} tokens")
    }
}

impl Session {
    /// A session with `model`, whose cache is emptied. [`Model::session`](super::Model::session)
    /// makes one for a loaded model.
    pub fn new(mut model: Box<dyn LanguageModel + Send>, codec: Arc<Codec>) -> Self {
        model.truncate(0);
        Self {
            model,
            codec,
            sampler: Sampler::default(),
            speculation: None,
            cached: Vec::new(),
        }
    }

    /// Sets the sampler. Its random sequence continues from answer to answer.
    pub fn set_sampler(&mut self, sampler: Sampler) {
        self.sampler = sampler;
    }

    /// Enables speculative decoding with at most `most` draft tokens ([`Speculation`]). The model
    /// verifies them in one run and keeps those that it would choose itself. Such a run may sum in
    /// another order than single-token steps, so near-ties may be resolved differently, also from
    /// call to call. The model must be loaded with
    /// [`LoadOptions::drafts`](super::LoadOptions::drafts), except in a batch; otherwise drafts
    /// have no effect.
    pub fn set_draft(&mut self, draft: Box<dyn Draft>, most: usize) {
        self.speculate(Some(Speculation::adaptive(draft, most)));
    }

    /// Sets the draft with its length, or none.
    pub(super) fn speculate(&mut self, speculation: Option<Speculation>) {
        self.speculation = speculation;
    }

    /// Tokenizer, chat template and end tokens.
    pub fn codec(&self) -> &Arc<Codec> {
        &self.codec
    }

    /// Context length in tokens.
    pub fn context(&self) -> usize {
        self.model.context()
    }

    /// The tokens in the cache.
    pub fn cached(&self) -> &[u32] {
        &self.cached
    }

    /// Empties the cache.
    pub fn clear(&mut self) {
        self.cached.clear();
        self.model.truncate(0);
    }

    /// A session with the same tokens in its cache, a greedy sampler and no draft. Only sessions of
    /// a [`Batcher`](super::Batcher) that runs sequences together can be forked; others return an
    /// error of kind [`ErrorKind::Unsupported`].
    pub fn fork(&self) -> Result<Self> {
        let model = self.model.fork().ok_or_else(|| {
            let what = "cannot fork this session; use a session of a `Batcher`";
            Error::other(Stage::Run, what).of_kind(ErrorKind::Unsupported)
        })?;
        Ok(Self {
            model,
            codec: self.codec.clone(),
            sampler: Sampler::default(),
            speculation: None,
            cached: self.cached.clone(),
        })
    }

    /// Loads the cache from the file `path`, if it exists. Returns the errors of
    /// [`prompt_cache::load`].
    pub fn load_cache(&mut self, path: &Path) -> Result<()> {
        let loaded = prompt_cache::load(path, self.model.as_mut());
        // After some errors the cache of the model is empty.
        self.cached.truncate(self.model.len());
        self.cached = loaded?;
        Ok(())
    }

    /// Writes the cache to the file `path`. Returns the errors of [`prompt_cache::save`].
    pub fn save_cache(&mut self, path: &Path) -> Result<()> {
        prompt_cache::save(path, self.model.as_mut(), &self.cached)
    }

    /// Generates what follows `prompt`, which is the whole text or conversation. Pieces are
    /// computed as they are requested. A [`Conversation`](super::Conversation) keeps the messages
    /// of several turns and feeds less. Usage errors: a prompt without tokens or too long for the
    /// context, a conversation without a chat template. An error for a token ID outside the
    /// vocabulary. [`Error::Interrupted`](crate::Error::Interrupted) if the answer is cancelled
    /// while the chat template is rendered.
    pub fn generate<'a, 'p>(
        &'a mut self,
        prompt: impl Into<Prompt<'p>>,
        options: &GenerateOptions,
    ) -> Result<Answer<'a>> {
        let prompt = self
            .codec
            .encode(prompt, &options.template_values, &options.cancel)?;
        let decoding = DecodeOptions {
            max_tokens: options.max_tokens,
            eos: self.codec.eos().to_vec(),
            cancel: options.cancel.clone(),
            slide: options.slide,
            progress: options.progress.clone(),
            log_probs: options.log_probs,
        };
        let reused = reuse(self.model.as_mut(), &self.cached, &prompt);
        self.cached.truncate(reused);
        let new = num::part(&prompt, reused..)?;
        let generator = Generator::new(self.model.as_mut(), &mut self.sampler, new, decoding)?;
        let mut generator = generator.after(&self.cached)?;
        if let Some(speculation) = &mut self.speculation {
            generator = generator.speculating(speculation);
        }
        Ok(Answer {
            generator,
            text: Some(self.codec.tokenizer().stream()),
            tokenizer: self.codec.tokenizer(),
            stop: options.stop.matcher(),
            specials: options.stop.specials(self.codec.tokenizer()),
            cached: &mut self.cached,
            reused,
            finish: None,
        })
    }
}

/// An answer in progress: an iterator over its pieces. If it is dropped early, fed tokens stay in
/// the cache.
pub struct Answer<'a> {
    generator: Generator<'a, dyn LanguageModel + Send>,
    /// `None` after the end or an error.
    text: Option<TextStream<'a>>,
    tokenizer: &'a Tokenizer,
    stop: StopMatcher,
    /// Special tokens that occur in stop strings.
    specials: BTreeMap<u32, String>,
    cached: &'a mut Vec<u32>,
    reused: usize,
    finish: Option<Finish>,
}

impl Answer<'_> {
    /// The text of all remaining pieces.
    pub fn text(&mut self) -> Result<String> {
        self.map(|piece| Ok(piece?.text)).collect()
    }

    /// Why the answer ended; `None` before the end and after an error.
    pub fn finish(&self) -> Option<Finish> {
        self.finish
    }

    /// The stop string that ended the answer.
    pub fn stop(&self) -> Option<&str> {
        self.stop.found()
    }

    /// Number of prompt tokens found in the cache.
    pub fn reused(&self) -> usize {
        self.reused
    }

    /// The default bounds at which values of the text ended, if a schema constrains it.
    pub fn reached(&self) -> Vec<DefaultBound> {
        self.generator.reached()
    }

    /// Counts and times so far.
    pub fn metrics(&self) -> Metrics {
        self.generator.metrics()
    }

    /// The next piece; `None` after the last.
    fn advance(&mut self) -> Result<Option<Piece>> {
        let Some(text) = &mut self.text else {
            return Ok(None);
        };
        if let Some(token) = self.generator.next().transpose()? {
            let mut piece = self.stop.push(&text.push(token.id)?);
            if let Some(name) = self.specials.get(&token.id) {
                piece += &special(&mut self.stop, text, name)?;
            }
            if self.stop.found().is_some() {
                self.text = None;
                self.finish = Some(Finish::Stop);
            }
            return Ok(Some(Piece {
                text: piece,
                token: Some(token),
                log_probs: self
                    .generator
                    .log_probs()
                    .map(|found| found.clone().with_texts(self.tokenizer, token.id)),
            }));
        }
        let rest = self.text.take().map(TextStream::finish).transpose()?;
        let mut text = self.stop.push(&rest.unwrap_or_default());
        if let Some(Finish::Eos(id)) = self.generator.finish()
            && let Some(name) = self.specials.get(&id)
        {
            text += &self.stop.push_special(name);
        }
        if self.stop.found().is_some() {
            self.finish = Some(Finish::Stop);
        } else {
            text.push_str(&self.stop.finish());
            self.finish = self.generator.finish();
        }
        Ok((!text.is_empty()).then(|| Piece {
            text,
            ..Piece::default()
        }))
    }
}

/// Matches the special token `name`. If it completes a stop string, the text that `text` holds is
/// certain: it precedes the token.
fn special(stop: &mut StopMatcher, text: &TextStream<'_>, name: &str) -> Result<String> {
    let held = text.held()?;
    let mut next = stop.clone();
    let piece = next.push(&held) + &next.push_special(name);
    if !held.is_empty() && next.found().is_none() {
        return Ok(String::new());
    }
    *stop = next;
    Ok(piece)
}

impl Iterator for Answer<'_> {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Self::Item> {
        let piece = self.advance();
        if piece.is_err() {
            self.text = None;
        }
        piece.transpose()
    }
}

impl Drop for Answer<'_> {
    fn drop(&mut self) {
        *self.cached = self.generator.cached().to_vec();
    }
}

#[cfg(test)]
mod tests;
