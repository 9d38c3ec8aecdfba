//! One conversation with a model: its cache, how tokens are chosen, and the text as it comes.

use super::codec::{Codec, Prompt};
use super::draft::{Draft, reuse};
use super::sampler::Sampler;
use super::stop::{StopStrings, StopWatch};
use super::template::Values;
use super::tokenizer::TextStream;
use super::{Cancel, Finish, Generator, LanguageModel, Limits, Metrics, Progress, Token, prompt_cache};
use crate::error::Result;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// When an answer ends.
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    /// Largest number of tokens to generate. 0 generates none and feeds nothing.
    pub max_tokens: usize,
    /// Texts that end the answer and are not part of it.
    pub stop: StopStrings,
    /// Stops the answer from another thread.
    pub cancel: Cancel,
    /// As [`Limits::slide`].
    pub slide: Option<usize>,
    /// As [`Limits::progress`].
    pub progress: Progress,
    /// What the chat template is given beside the messages of a conversation, such as `tools` or `enable_thinking`.
    pub template_values: Values,
}

impl Default for GenerateOptions {
    /// 256 tokens, as with [`Limits`].
    fn default() -> Self {
        let Limits {
            max_tokens,
            cancel,
            slide,
            progress,
            ..
        } = Limits::default();
        Self {
            max_tokens,
            stop: StopStrings::default(),
            cancel,
            slide,
            progress,
            template_values: Values::new(),
        }
    }
}

/// A piece of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Text that is now certain to stay, in whole characters; empty where a token completes none, or may begin a stop string.
    pub text: String,
    /// The token that brought it; `None` for what had been held back until the end.
    pub token: Option<Token>,
}

impl fmt::Display for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A sequence of tokens in a KV cache of its own, and how it goes on: greedily unless told otherwise. It may go to another thread. What a
/// prompt shares with the cache from its start on is not fed again, so a turn of a conversation feeds only what is new.
pub struct Session {
    model: Box<dyn LanguageModel + Send>,
    codec: Arc<Codec>,
    sampler: Sampler,
    /// Guesses, and the most tokens of one.
    draft: Option<(Box<dyn Draft>, usize)>,
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
    /// A session with `model`, whose cache is emptied. [`Model::session`](super::Model::session) makes one of a loaded model.
    pub fn new(mut model: Box<dyn LanguageModel + Send>, codec: Arc<Codec>) -> Self {
        model.truncate(0);
        Self {
            model,
            codec,
            sampler: Sampler::default(),
            draft: None,
            cached: Vec::new(),
        }
    }

    /// Has the next tokens chosen by `sampler`. Its random sequence goes on from answer to answer.
    pub fn set_sampler(&mut self, sampler: Sampler) {
        self.sampler = sampler;
    }

    /// Has at most `most` tokens guessed ahead by `draft`. The model verifies them in one run and keeps those that it would choose itself. Such
    /// a run may sum in another order than a step of one token does: where two logits differ by no more than rounding, another of these
    /// tokens may be taken than without a draft. The model must have been loaded with
    /// [`LoadOptions::drafts`](super::LoadOptions::drafts); else nothing is guessed.
    pub fn set_draft(&mut self, draft: Box<dyn Draft>, most: usize) {
        self.draft = Some((draft, most));
    }

    /// Tokenizer, chat template and end tokens.
    pub fn codec(&self) -> &Arc<Codec> {
        &self.codec
    }

    /// Most tokens that the cache holds.
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

    /// Takes the cache of the file `path`, where there is one. Errors of [`prompt_cache::load`].
    pub fn load_cache(&mut self, path: &Path) -> Result<()> {
        self.cached = prompt_cache::load(path, self.model.as_mut())?;
        Ok(())
    }

    /// Writes the cache to the file `path`. Errors of [`prompt_cache::save`].
    pub fn save_cache(&mut self, path: &Path) -> Result<()> {
        prompt_cache::save(path, self.model.as_mut(), &self.cached)
    }

    /// What follows `prompt`, which is the whole of the text or conversation: pieces come as they are asked for, and nothing runs in
    /// between. A [`Conversation`](super::Conversation) keeps the messages of several turns, and feeds less. Usage errors: a prompt without tokens or with more than the context holds, a conversation without a chat template.
    /// An error for a token that the model does not have.
    pub fn generate<'a, 'p>(
        &'a mut self,
        prompt: impl Into<Prompt<'p>>,
        options: &GenerateOptions,
    ) -> Result<Answer<'a>> {
        let prompt = self.codec.encode(prompt, &options.template_values)?;
        let limits = Limits {
            max_tokens: options.max_tokens,
            eos: self.codec.eos().to_vec(),
            cancel: options.cancel.clone(),
            slide: options.slide,
            progress: options.progress.clone(),
        };
        let reused = reuse(self.model.as_mut(), &self.cached, &prompt);
        self.cached.truncate(reused);
        let new = prompt.get(reused..).unwrap_or_default();
        let generator = Generator::new(self.model.as_mut(), &mut self.sampler, new, limits)?;
        let mut generator = generator.after(&self.cached)?;
        if let Some((draft, most)) = &mut self.draft {
            generator = generator.drafting(draft.as_mut(), *most);
        }
        Ok(Answer {
            generator,
            text: Some(self.codec.tokenizer().stream()),
            stop: options.stop.watch(),
            cached: &mut self.cached,
            reused,
            finish: None,
        })
    }
}

/// An answer as it comes: an iterator of its pieces. When it is dropped before its end, what has been fed stays in the cache.
pub struct Answer<'a> {
    generator: Generator<'a, dyn LanguageModel + Send>,
    /// `None` after the end or an error.
    text: Option<TextStream<'a>>,
    stop: StopWatch,
    cached: &'a mut Vec<u32>,
    reused: usize,
    finish: Option<Finish>,
}

impl Answer<'_> {
    /// The text of all pieces that are left.
    pub fn text(&mut self) -> Result<String> {
        self.map(|piece| Ok(piece?.text)).collect()
    }

    /// Why there are no more pieces; `None` before the end and after an error.
    pub fn finish(&self) -> Option<Finish> {
        self.finish
    }

    /// Tokens of the prompt that the cache held.
    pub fn reused(&self) -> usize {
        self.reused
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
            let text = self.stop.push(&text.push(token.id)?);
            if self.stop.found() {
                self.text = None;
                self.finish = Some(Finish::Stop);
            }
            let token = Some(token);
            return Ok(Some(Piece { text, token }));
        }
        let rest = self.text.take().map(TextStream::finish).transpose()?;
        let mut text = self.stop.push(&rest.unwrap_or_default());
        if self.stop.found() {
            self.finish = Some(Finish::Stop);
        } else {
            text.push_str(&self.stop.finish());
            self.finish = self.generator.finish();
        }
        Ok((!text.is_empty()).then_some(Piece { text, token: None }))
    }
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
