//! Converts prompts to tokens, with the tokenizer, chat template and end tokens of a model folder.

use super::folder::ModelFolder;
use super::template::{ChatTemplate, Message, Values};
use super::tokenizer::{Tokenizer, marked};
use crate::cancel::Cancel;
use crate::error::{Error, ErrorKind, Result, Stage};
use std::sync::OnceLock;

/// The input of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prompt<'a> {
    /// A text to continue. It is fed as it is, after the tokenizer's start token if there is one.
    Text(&'a str),
    /// A conversation to answer, formatted with the model's chat template.
    Chat(&'a [Message]),
    /// A conversation whose last message is continued.
    Continued(&'a [Message]),
    /// Tokens, fed unchanged.
    Tokens(&'a [u32]),
}

impl<'a> From<&'a str> for Prompt<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a String> for Prompt<'a> {
    fn from(text: &'a String) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a [Message]> for Prompt<'a> {
    fn from(messages: &'a [Message]) -> Self {
        Self::Chat(messages)
    }
}

impl<'a> From<&'a Vec<Message>> for Prompt<'a> {
    fn from(messages: &'a Vec<Message>) -> Self {
        Self::Chat(messages)
    }
}

impl<'a, const N: usize> From<&'a [Message; N]> for Prompt<'a> {
    fn from(messages: &'a [Message; N]) -> Self {
        Self::Chat(messages)
    }
}

impl<'a> From<&'a [u32]> for Prompt<'a> {
    fn from(tokens: &'a [u32]) -> Self {
        Self::Tokens(tokens)
    }
}

/// A model's tokenizer, its chat template and its end tokens.
pub struct Codec {
    folder: ModelFolder,
    tokenizer: Tokenizer,
    eos: Vec<u32>,
    plain_messages: bool,
    /// Read for the first conversation: a model without a usable template can still continue texts.
    template: OnceLock<Option<ChatTemplate>>,
}

impl std::fmt::Debug for Codec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Codec of {}", self.folder.name())
    }
}

impl Codec {
    /// Reads the tokenizer of `folder`, whose limits apply.
    pub fn load(folder: ModelFolder) -> Result<Self> {
        let tokenizer = Tokenizer::within(folder.dir(), folder.limits.tokenizer)?;
        Ok(Self {
            eos: folder.eos_ids(&tokenizer),
            folder,
            tokenizer,
            plain_messages: false,
            template: OnceLock::new(),
        })
    }

    /// Sets whether special tokens that messages contain are text. By default they act as control
    /// tokens, as in transformers, so a message can forge a turn of another role. A server that
    /// passes on messages of others should set this. Roles and the values for the template are not
    /// affected.
    pub fn set_plain_messages(&mut self, plain: bool) {
        self.plain_messages = plain;
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// IDs that end a text, ascending.
    pub fn eos(&self) -> &[u32] {
        &self.eos
    }

    /// The chat template, if there is one. Returns the errors of [`ChatTemplate::find`].
    pub fn template(&self) -> Result<Option<&ChatTemplate>> {
        if let Some(template) = self.template.get() {
            return Ok(template.as_ref());
        }
        let mut template = ChatTemplate::find(&self.folder)?;
        if let Some(template) = &mut template {
            template.set_limits(self.folder.limits.clone());
        }
        Ok(self.template.get_or_init(|| template).as_ref())
    }

    /// The chat template; an error if there is none.
    pub fn chat(&self) -> Result<&ChatTemplate> {
        self.template()?
            .ok_or_else(|| ChatTemplate::missing(&self.folder))
    }

    /// The text of a conversation up to the start of an answer, for [`Tokenizer::encode_marked`].
    pub(super) fn chat_text(&self, messages: &[Message], values: &Values, cancel: &Cancel) -> Result<String> {
        self.chat()?.render(&self.marked(messages)?, values, true, cancel)
    }

    /// The text of a conversation up to the end of its last message.
    fn continued_text(&self, messages: &[Message], values: &Values, cancel: &Cancel) -> Result<String> {
        let messages = self.marked(messages)?;
        let mut text = self.chat()?.render(&messages, values, false, cancel)?;
        let last = messages.last().and_then(|last| last.get("content"));
        let last = last.and_then(serde_json::Value::as_str).unwrap_or_default();
        // Templates may trim messages.
        let end = [last, last.trim_end(), last.trim()]
            .into_iter()
            .filter(|last| !last.is_empty())
            .find_map(|last| Some(text.rfind(last)? + last.len()));
        let Some(end) = end else {
            let what = "the chat template does not show the last message, so it cannot be continued";
            return Err(Error::other(Stage::Text, what).of_kind(ErrorKind::TemplateRefused));
        };
        text.truncate(end);
        Ok(text)
    }

    /// Messages as templates read them.
    fn marked(&self, messages: &[Message]) -> Result<Vec<serde_json::Value>> {
        let messages = messages
            .iter()
            .map(serde_json::to_value)
            .collect::<serde_json::Result<Vec<_>>>();
        let mut messages = messages.map_err(marked::not_json)?;
        if self.plain_messages {
            for message in &mut messages {
                marked::mark(&self.tokenizer, message);
            }
        }
        Ok(messages)
    }

    /// The tokens of `prompt`. `values` are extra variables for the chat template. An error for a
    /// conversation if there is no chat template, or if the template rejects it or does not show a
    /// message that is to be continued. `cancel` ends the
    /// rendering of a conversation; see [`ChatTemplate::render`].
    pub fn encode<'a>(
        &self,
        prompt: impl Into<Prompt<'a>>,
        values: &Values,
        cancel: &Cancel,
    ) -> Result<Vec<u32>> {
        match prompt.into() {
            Prompt::Text(text) => self.tokenizer.encode(text, true),
            Prompt::Tokens(tokens) => Ok(tokens.to_vec()),
            Prompt::Chat([]) | Prompt::Continued([]) => Err(Error::usage(
                "messages",
                "are empty; expected at least one message",
            )),
            Prompt::Chat(messages) => {
                let text = self.chat_text(messages, values, cancel)?;
                self.tokenizer.encode_marked(&text)
            }
            Prompt::Continued(messages) => {
                let text = self.continued_text(messages, values, cancel)?;
                self.tokenizer.encode_marked(&text)
            }
        }
    }
}
