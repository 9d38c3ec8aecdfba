//! `/v1/completions`.

use super::common::{Common, Job, Limits, Model, Source, at_most, refuse};
use super::error::ApiError;
use super::part::{FinishReason, LogProb, Usage};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// Fields of a request for completions beside [`Common`].
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct Completion {
    /// The text or tokens to continue, or several of them.
    pub prompt: CompletionPrompt,
    /// Log-probabilities of the tokens and of this many of the most likely ones.
    #[serde(default)]
    #[schema(maximum = 20)]
    pub logprobs: Option<usize>,
    /// Not supported.
    #[serde(default)]
    pub echo: Option<Value>,
    /// Not supported.
    #[serde(default)]
    pub suffix: Option<Value>,
}

/// What is continued.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum CompletionPrompt {
    /// A text.
    Text(String),
    /// Several texts.
    Texts(Vec<String>),
    /// Tokens.
    Tokens(Vec<u32>),
    /// Several lists of tokens.
    TokenLists(Vec<Vec<u32>>),
}

/// The body of a request, for its documentation.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct CompletionBody {
    /// What all routes share.
    #[serde(flatten)]
    pub common: Common,
    /// What only completions have.
    #[serde(flatten)]
    pub completion: Completion,
}

impl Completion {
    /// The job that the request describes.
    pub fn job(&self, common: &Common, model: Model<'_>, limits: &Limits) -> Result<Job, ApiError> {
        refuse(
            "echo",
            self.echo.as_ref(),
            "put the prompt before the answer yourself",
        )?;
        refuse(
            "suffix",
            self.suffix.as_ref(),
            "only the end of a text is generated",
        )?;
        let sources: Vec<Source> = match &self.prompt {
            CompletionPrompt::Text(text) => vec![Source::Text(text.clone())],
            CompletionPrompt::Texts(texts) => texts.iter().cloned().map(Source::Text).collect(),
            CompletionPrompt::Tokens(tokens) => vec![Source::Tokens(tokens.clone())],
            CompletionPrompt::TokenLists(lists) => lists.iter().cloned().map(Source::Tokens).collect(),
        };
        let is_empty = |source: &Source| match source {
            Source::Text(text) => text.is_empty(),
            Source::Tokens(tokens) => tokens.is_empty(),
            Source::Chat { .. } => false,
        };
        if sources.is_empty() || sources.iter().any(is_empty) {
            return Err(ApiError::field("prompt", "is empty; expected a text or tokens"));
        }
        at_most("prompt", sources.len(), limits.prompts)?;
        let mut job = common.job(model, limits, sources)?;
        job.log_probs = self
            .logprobs
            .map(|top| at_most("logprobs", top, limits.top_log_probs))
            .transpose()?;
        Ok(job)
    }
}

/// Log-probabilities in the form of this route.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct CompletionLogProbs {
    /// Texts of the tokens.
    pub tokens: Vec<String>,
    /// Their log-probabilities.
    pub token_logprobs: Vec<f32>,
    /// The most likely tokens at each place.
    pub top_logprobs: Vec<Map<String, Value>>,
    /// Where the text of each token begins, in characters.
    pub text_offset: Vec<usize>,
}

impl CompletionLogProbs {
    /// Of tokens whose text begins at the character `offset`.
    pub fn of(found: &[LogProb], mut offset: usize) -> Self {
        let mut all = Self::default();
        for token in found {
            all.text_offset.push(offset);
            offset += token.token.chars().count();
            all.tokens.push(token.token.clone());
            all.token_logprobs.push(token.logprob);
            let top = token.top_logprobs.iter();
            all.top_logprobs
                .push(top.map(|t| (t.token.clone(), t.logprob.into())).collect());
        }
        all
    }
}

/// A continuation, or what an event adds to one.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct CompletionChoice {
    /// The text.
    pub text: String,
    /// Its number: all answers to the first prompt come first.
    pub index: usize,
    /// Log-probabilities, if they were asked for.
    pub logprobs: Option<CompletionLogProbs>,
    /// Why it ended.
    pub finish_reason: Option<FinishReason>,
}

/// The response, or an event of a stream.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct CompletionResponse {
    /// Its name.
    pub id: String,
    /// `text_completion`.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    /// The model.
    pub model: String,
    /// The texts.
    pub choices: Vec<CompletionChoice>,
    /// Counts of tokens; in a stream in the last event, if `include_usage` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// The server's version.
    pub system_fingerprint: &'static str,
}
