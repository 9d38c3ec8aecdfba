//! Multi-turn conversations; each turn feeds only new tokens.

use super::codec::Codec;
use super::session::{Answer, GenerateOptions, Piece, Session};
use super::template::Message;
use super::{DefaultBound, Finish, Metrics};
use crate::error::{Error, ErrorKind, Result};
use std::sync::Arc;

/// Argument name in usage errors for a last turn that does not fit the context on its own.
pub const MESSAGE: &str = "message";

/// A conversation and the session that answers it.
///
/// Answers keep the tokens that the model chose, even if their text would be encoded differently.
/// They therefore stay in the cache, and a turn feeds only what came after the last answer. A
/// conversation that outgrows the context ends with an error or drops its oldest turns
/// ([`Conversation::set_slides`]).
#[derive(Debug)]
pub struct Conversation {
    session: Session,
    messages: Vec<Message>,
    slides: bool,
    /// Text and tokens up to the last answer.
    encoded: Option<Encoded>,
}

/// A text as formatted by the chat template, and its tokens.
#[derive(Clone, Debug)]
struct Encoded {
    text: String,
    tokens: Vec<u32>,
}

/// True for system messages, which stay when turns are dropped.
fn is_system(message: &Message) -> bool {
    matches!(message.role.as_ref(), "system" | "developer")
}

impl Conversation {
    /// A conversation with `session` that starts with `messages`: system messages, or none.
    pub fn new(session: Session, messages: Vec<Message>) -> Self {
        Self {
            session,
            messages,
            slides: false,
            encoded: None,
        }
    }

    /// An independent copy of the conversation. Returns the errors of
    /// [`Session::fork`].
    pub fn fork(&self) -> Result<Self> {
        Ok(Self {
            session: self.session.fork()?,
            messages: self.messages.clone(),
            slides: self.slides,
            encoded: self.encoded.clone(),
        })
    }

    /// Sets whether a full context slides. If it does, the oldest turns are dropped when they leave
    /// too little room for an answer, and an answer that fills the context continues without the
    /// older half of the conversation. System messages before the first turn stay.
    pub fn set_slides(&mut self, slides: bool) {
        self.slides = slides;
    }

    /// Whether a full context slides.
    pub fn slides(&self) -> bool {
        self.slides
    }

    /// Replaces all messages. Tokens that they share with the KV cache are not run again.
    pub fn restore(&mut self, messages: Vec<Message>) {
        self.messages = messages;
        self.encoded = None;
    }

    /// The messages that were not dropped, answers included.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The session that answers.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Drops all messages except the leading system messages.
    pub fn clear(&mut self) {
        let instructions = self.messages.iter().take_while(|m| is_system(m)).count();
        self.messages.truncate(instructions);
        self.encoded = None;
        self.session.clear();
    }

    /// Answers `message` from the user or a tool. Returns the errors of [`Conversation::answer`];
    /// the conversation is then unchanged.
    pub fn send(&mut self, message: Message, options: &GenerateOptions) -> Result<Reply<'_>> {
        let mut messages = self.messages.clone();
        messages.push(message);
        self.answer(messages, options)
    }

    /// Answers `messages`, which replace the current ones: for callers that keep the conversation.
    /// A shared prefix is not fed again. Returns the errors of [`Session::generate`], and
    /// [`ErrorKind::ContextExceeded`] if the conversation, or its last turn if it slides, does not
    /// fit the context. The conversation is then unchanged. If the last turn alone does not fit,
    /// this is a usage error for [`MESSAGE`].
    pub fn answer(&mut self, messages: Vec<Message>, options: &GenerateOptions) -> Result<Reply<'_>> {
        let count = messages.len();
        let (messages, prompt) = self.fitting(messages, options)?;
        let context = self.session.context();
        if prompt.tokens.len() > context {
            let alone = self.last_turn(&messages, options)?;
            let (name, what) = match alone > context {
                true => (
                    MESSAGE,
                    format!("needs {alone} tokens on its own, but the context holds {context}"),
                ),
                false => {
                    let all = prompt.tokens.len();
                    (
                        "conversation",
                        format!("needs {all} tokens, but the context holds {context}"),
                    )
                }
            };
            return Err(Error::usage(name, what).of_kind(ErrorKind::ContextExceeded));
        }
        let slide = if self.slides {
            Some(self.header(&messages, &prompt.tokens, options))
        } else {
            options.slide
        };
        let options = GenerateOptions {
            slide,
            ..options.clone()
        };
        let codec = self.session.codec().clone();
        let answer = self.session.generate(prompt.tokens.as_slice(), &options)?;
        let forgotten = count - messages.len();
        self.messages = messages;
        Ok(Reply {
            answer,
            codec,
            messages: &mut self.messages,
            encoded: &mut self.encoded,
            prompt,
            text: String::new(),
            tokens: Vec::new(),
            forgotten,
            failed: false,
        })
    }

    /// Text and tokens of `messages`, followed by the start of an answer. Earlier messages keep
    /// their tokens.
    fn encode(&self, messages: &[Message], options: &GenerateOptions) -> Result<Encoded> {
        let codec = self.session.codec();
        let (values, tokenizer) = (&options.template_values, codec.tokenizer());
        let text = codec.chat_text(messages, values, &options.cancel)?;
        if let Some(encoded) = &self.encoded
            && let Some(rest) = text.strip_prefix(encoded.text.as_str())
        {
            let rest = tokenizer.encode_marked(rest)?;
            // Any other token could have merged with the text before it.
            if rest.first().is_some_and(|id| tokenizer.is_special(*id)) {
                let tokens = [encoded.tokens.as_slice(), &rest].concat();
                return Ok(Encoded { text, tokens });
            }
        }
        let tokens = tokenizer.encode_marked(&text)?;
        Ok(Encoded { text, tokens })
    }

    /// The part of `messages` to feed: all, unless the conversation slides and too little room
    /// would remain for an answer.
    fn fitting(
        &self,
        mut messages: Vec<Message>,
        options: &GenerateOptions,
    ) -> Result<(Vec<Message>, Encoded)> {
        let context = self.session.context();
        let room = options.max_tokens.min(context / 4);
        let head = messages.iter().take_while(|m| is_system(m)).count();
        loop {
            let encoded = self.encode(&messages, options)?;
            // A question is dropped with its answer and tool results; the last question stays.
            let turns = messages.iter().enumerate().skip(head + 1);
            let next = turns.filter(|(_, m)| m.role == "user").map(|(at, _)| at).next();
            match next {
                Some(next) if self.slides && encoded.tokens.len() + room > context => {
                    messages.drain(head..next);
                }
                _ => return Ok((messages, encoded)),
            }
        }
    }

    /// Number of tokens of the system messages and the last turn.
    fn last_turn(&self, messages: &[Message], options: &GenerateOptions) -> Result<usize> {
        let head = messages.iter().take_while(|m| is_system(m)).count();
        let last = messages
            .iter()
            .rposition(|m| m.role == "user")
            .unwrap_or(head)
            .max(head);
        let turn = [messages.get(..head), messages.get(last..)].map(Option::unwrap_or_default);
        Ok(self.encode(&turn.concat(), options)?.tokens.len())
    }

    /// Number of leading `tokens` of `messages` that precede the first turn.
    fn header(&self, messages: &[Message], tokens: &[u32], options: &GenerateOptions) -> usize {
        let mut silent: Vec<Message> = messages.iter().take_while(|m| is_system(m)).cloned().collect();
        silent.push(Message::user(""));
        let silent = self.encode(&silent, options).map_or_else(
            |e| {
                log::debug!(
                    "cannot keep system messages when the context slides: {}",
                    e.chain()
                );
                Vec::new()
            },
            |encoded| encoded.tokens,
        );
        let pairs = silent.iter().zip(tokens);
        pairs.take_while(|(a, b)| a == b).count()
    }
}

/// An answer in progress: an iterator over its pieces. When it is dropped, the text so far becomes
/// a message of the conversation. After an error, or if it was cancelled before its first token,
/// the question is removed instead.
pub struct Reply<'a> {
    answer: Answer<'a>,
    codec: Arc<Codec>,
    messages: &'a mut Vec<Message>,
    encoded: &'a mut Option<Encoded>,
    prompt: Encoded,
    /// Text so far.
    text: String,
    tokens: Vec<u32>,
    forgotten: usize,
    failed: bool,
}

impl Reply<'_> {
    /// The text of all remaining pieces.
    pub fn text(&mut self) -> Result<String> {
        self.map(|piece| Ok(piece?.text)).collect()
    }

    /// See [`Answer::finish`].
    pub fn finish(&self) -> Option<Finish> {
        self.answer.finish()
    }

    /// See [`Answer::reused`].
    pub fn reused(&self) -> usize {
        self.answer.reused()
    }

    /// See [`Answer::reached`].
    pub fn reached(&self) -> Vec<DefaultBound> {
        self.answer.reached()
    }

    /// See [`Answer::metrics`].
    pub fn metrics(&self) -> Metrics {
        self.answer.metrics()
    }

    /// Number of oldest messages dropped to make room for this answer.
    pub fn forgotten(&self) -> usize {
        self.forgotten
    }
}

impl Iterator for Reply<'_> {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Self::Item> {
        let piece = self.answer.next()?;
        match &piece {
            Ok(piece) => {
                self.text.push_str(&piece.text);
                self.tokens.extend(piece.token.map(|t| t.id));
            }
            Err(_) => self.failed = true,
        }
        Some(piece)
    }
}

impl Drop for Reply<'_> {
    fn drop(&mut self) {
        *self.encoded = None;
        let unanswered = self.tokens.is_empty() && self.answer.finish() == Some(Finish::Cancelled);
        if self.failed || unanswered {
            self.messages.pop();
            return;
        }
        if self.answer.finish() == Some(Finish::Stop) {
            // A special token of a stop string has no text.
            let special = |id: &u32| self.codec.tokenizer().is_special(*id);
            while self.tokens.pop_if(|id| special(id)).is_some() {}
        }
        // Tokens of a stop string, or of held-back text, have more text than was delivered.
        let text = self.codec.tokenizer().decode(&self.tokens);
        if text.is_ok_and(|text| text == self.text) {
            *self.encoded = Some(Encoded {
                text: std::mem::take(&mut self.prompt.text) + &self.text,
                tokens: [self.prompt.tokens.as_slice(), &self.tokens].concat(),
            });
        }
        self.messages
            .push(Message::assistant(std::mem::take(&mut self.text)));
    }
}

#[cfg(test)]
mod tests;
