//! Conversations of several turns, of which each feeds what is new.

use super::codec::Codec;
use super::session::{Answer, GenerateOptions, Piece, Session};
use super::template::{Message, Values};
use super::{Finish, Metrics};
use crate::error::{Error, ErrorKind, Result};
use std::sync::Arc;

/// What errors call a message, with the instructions before it, for which the context has no room though all else were forgotten.
pub const MESSAGE: &str = "message";

/// A conversation and the session that answers it.
///
/// An answer keeps the tokens that the model chose, though its text might be encoded to others: so they are in the cache, and a turn feeds
/// what came since the last one. A conversation that outgrows the context ends with an error, or forgets its oldest turns
/// ([`Conversation::set_slides`]).
#[derive(Debug)]
pub struct Conversation {
    session: Session,
    messages: Vec<Message>,
    slides: bool,
    /// Up to the last answer.
    said: Option<Said>,
}

/// A text as the chat template gives it, and the tokens that are fed for it.
#[derive(Debug)]
struct Said {
    text: String,
    tokens: Vec<u32>,
}

/// Instructions, which stay when turns are forgotten.
fn is_system(message: &Message) -> bool {
    matches!(message.role.as_ref(), "system" | "developer")
}

impl Conversation {
    /// A conversation with `session` that begins with `messages`: instructions, or nothing.
    pub fn new(session: Session, messages: Vec<Message>) -> Self {
        Self {
            session,
            messages,
            slides: false,
            said: None,
        }
    }

    /// Whether a full context slides: the oldest turns are forgotten, where they would leave too little room for an answer, and an answer that
    /// fills the context goes on without the older half of what was said. Instructions before the first turn stay.
    pub fn set_slides(&mut self, slides: bool) {
        self.slides = slides;
    }

    /// Whether a full context slides.
    pub fn slides(&self) -> bool {
        self.slides
    }

    /// Replaces all messages. The cache keeps what they share with it.
    pub fn restore(&mut self, messages: Vec<Message>) {
        self.messages = messages;
        self.said = None;
    }

    /// The messages that are not forgotten, answers included.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// What answers.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Forgets all but the instructions at the start.
    pub fn clear(&mut self) {
        let instructions = self.messages.iter().take_while(|m| is_system(m)).count();
        self.messages.truncate(instructions);
        self.said = None;
        self.session.clear();
    }

    /// Answers `message` of the user or of a tool. Errors of [`Conversation::answer`], after which it was not said.
    pub fn say(&mut self, message: Message, options: &GenerateOptions) -> Result<Reply<'_>> {
        let mut messages = self.messages.clone();
        messages.push(message);
        self.answer(messages, options)
    }

    /// Answers `messages`, which take the place of those that there are: for callers that keep them. What they share with the
    /// conversation so far is not fed again. Errors of [`Session::generate`], and one of the kind [`ErrorKind::ContextExceeded`] where the
    /// conversation does not fit the context, or its last turn where it slides; the conversation is then what it was. That one is a usage error of
    /// [`MESSAGE`] where the last turn alone does not fit.
    pub fn answer(&mut self, messages: Vec<Message>, options: &GenerateOptions) -> Result<Reply<'_>> {
        let count = messages.len();
        let (messages, prompt) = self.fitting(messages, options)?;
        let context = self.session.context();
        if prompt.tokens.len() > context {
            let alone = self.last_turn(&messages, &options.template_values)?;
            let (name, what) = match alone > context {
                true => (
                    MESSAGE,
                    format!("alone needs {alone} tokens, the context holds {context}"),
                ),
                false => {
                    let all = prompt.tokens.len();
                    (
                        "conversation",
                        format!("needs {all} tokens, the context holds {context}"),
                    )
                }
            };
            return Err(Error::usage(name, what).of_kind(ErrorKind::ContextExceeded));
        }
        let slide = if self.slides {
            Some(self.header(&messages, &prompt.tokens, &options.template_values))
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
            said: &mut self.said,
            prompt,
            text: String::new(),
            tokens: Vec::new(),
            forgotten,
            failed: false,
        })
    }

    /// Text and tokens of `messages` with the beginning of an answer. What was said before keeps the tokens that it had.
    fn encoded(&self, messages: &[Message], values: &Values) -> Result<Said> {
        let codec = self.session.codec();
        let (text, tokenizer) = (codec.chat()?.render(messages, values, true)?, codec.tokenizer());
        if let Some(said) = &self.said
            && let Some(rest) = text.strip_prefix(said.text.as_str())
        {
            let rest = tokenizer.encode(rest, false)?;
            // Any other token might have joined with what stands before it.
            if rest.first().is_some_and(|id| tokenizer.is_special(*id)) {
                let tokens = [said.tokens.as_slice(), &rest].concat();
                return Ok(Said { text, tokens });
            }
        }
        let tokens = tokenizer.encode(&text, false)?;
        Ok(Said { text, tokens })
    }

    /// What of `messages` is fed: all, unless the conversation slides and they would leave too little room for an answer.
    fn fitting(&self, mut messages: Vec<Message>, options: &GenerateOptions) -> Result<(Vec<Message>, Said)> {
        let context = self.session.context();
        let room = options.max_tokens.min(context / 4);
        let head = messages.iter().take_while(|m| is_system(m)).count();
        loop {
            let said = self.encoded(&messages, &options.template_values)?;
            // A question goes with its answer and with what tools said, and the last question stays.
            let turns = messages.iter().enumerate().skip(head + 1);
            let next = turns.filter(|(_, m)| m.role == "user").map(|(at, _)| at).next();
            match next {
                Some(next) if self.slides && said.tokens.len() + room > context => {
                    messages.drain(head..next);
                }
                _ => return Ok((messages, said)),
            }
        }
    }

    /// Tokens of `messages` without the turns before the last one.
    fn last_turn(&self, messages: &[Message], values: &Values) -> Result<usize> {
        let head = messages.iter().take_while(|m| is_system(m)).count();
        let last = messages
            .iter()
            .rposition(|m| m.role == "user")
            .unwrap_or(head)
            .max(head);
        let turn = [messages.get(..head), messages.get(last..)].map(Option::unwrap_or_default);
        Ok(self.encoded(&turn.concat(), values)?.tokens.len())
    }

    /// How many of the first of `tokens`, those of `messages`, come before anything that was said.
    fn header(&self, messages: &[Message], tokens: &[u32], values: &Values) -> usize {
        let mut silent: Vec<Message> = messages.iter().take_while(|m| is_system(m)).cloned().collect();
        silent.push(Message::user(""));
        let silent = self.encoded(&silent, values).map_or_else(
            |e| {
                log::debug!("nothing is kept when the context slides: {}", e.chain());
                Vec::new()
            },
            |said| said.tokens,
        );
        let pairs = silent.iter().zip(tokens);
        pairs.take_while(|(a, b)| a == b).count()
    }
}

/// An answer in a conversation as it comes: an iterator of its pieces. When it is dropped, what came of it is a message of the conversation;
/// after an error the question is none either.
pub struct Reply<'a> {
    answer: Answer<'a>,
    codec: Arc<Codec>,
    messages: &'a mut Vec<Message>,
    said: &'a mut Option<Said>,
    prompt: Said,
    /// What came so far.
    text: String,
    tokens: Vec<u32>,
    forgotten: usize,
    failed: bool,
}

impl Reply<'_> {
    /// The text of all pieces that are left.
    pub fn text(&mut self) -> Result<String> {
        self.map(|piece| Ok(piece?.text)).collect()
    }

    /// As [`Answer::finish`].
    pub fn finish(&self) -> Option<Finish> {
        self.answer.finish()
    }

    /// As [`Answer::reused`].
    pub fn reused(&self) -> usize {
        self.answer.reused()
    }

    /// As [`Answer::metrics`].
    pub fn metrics(&self) -> Metrics {
        self.answer.metrics()
    }

    /// How many of the oldest messages were forgotten before it.
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
        *self.said = None;
        if self.failed {
            self.messages.pop();
            return;
        }
        // The tokens of a stop string, and of a piece that is held back, have more text than was given out.
        let text = self.codec.tokenizer().decode(&self.tokens);
        if text.is_ok_and(|text| text == self.text) {
            *self.said = Some(Said {
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
