//! What answers consist of, the same for all routes.

use super::tools::{Marks, Output, Splitter};
use serde::Serialize;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use transformer_lite::{Finish, LogProbs, Metrics, Piece, Tokenizer};
use utoipa::ToSchema;

/// A random number, for names and seeds.
pub fn unique() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model ended it, or a stop string did.
    Stop,
    /// At its maximum number of tokens, or because the context is full.
    Length,
    /// The model calls tools.
    ToolCalls,
}

impl FinishReason {
    /// `None` for an answer that was cancelled.
    fn of(finish: Finish) -> Option<Self> {
        match finish {
            Finish::Eos(_) | Finish::Stop | Finish::Complete => Some(Self::Stop),
            Finish::MaxTokens | Finish::ContextFull => Some(Self::Length),
            Finish::Cancelled => None,
        }
    }
}

/// Counts of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Generated tokens.
    pub completion_tokens: usize,
    /// Their sum.
    pub total_tokens: usize,
    /// About the prompt's tokens.
    pub prompt_tokens_details: PromptDetails,
}

/// About the tokens of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct PromptDetails {
    /// Those that were in the cache.
    pub cached_tokens: usize,
}

impl Usage {
    /// Of a prompt with `prompt` tokens that was answered once or more often.
    pub fn of<'a>(prompt: usize, answers: impl IntoIterator<Item = &'a Metrics>) -> Self {
        let mut usage = Self {
            prompt_tokens: prompt,
            ..Self::default()
        };
        for (at, metrics) in answers.into_iter().enumerate() {
            usage.completion_tokens += metrics.tokens;
            if at == 0 {
                usage.prompt_tokens_details.cached_tokens = metrics.reused_tokens;
            }
        }
        usage.total_tokens = usage.prompt_tokens + usage.completion_tokens;
        usage
    }

    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            prompt_tokens: self.prompt_tokens + other.prompt_tokens,
            completion_tokens: self.completion_tokens + other.completion_tokens,
            total_tokens: self.total_tokens + other.total_tokens,
            prompt_tokens_details: PromptDetails {
                cached_tokens: self.prompt_tokens_details.cached_tokens
                    + other.prompt_tokens_details.cached_tokens,
            },
        }
    }
}

/// A token with its log-probability.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct LogProb {
    /// Its text; bytes that are not whole characters are replaced by U+FFFD.
    pub token: String,
    /// Its natural log-probability, at least -9999.
    pub logprob: f32,
    /// The bytes of its text.
    pub bytes: Vec<u8>,
    /// The most likely tokens there.
    pub top_logprobs: Vec<TopLogProb>,
}

/// One of the most likely tokens.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct TopLogProb {
    /// As [`LogProb::token`].
    pub token: String,
    /// As [`LogProb::logprob`].
    pub logprob: f32,
    /// As [`LogProb::bytes`].
    pub bytes: Vec<u8>,
}

/// The object `logprobs` of a chat.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct LogProbContent {
    /// The tokens of the answer.
    pub content: Vec<LogProb>,
}

/// JSON has no minus infinity.
fn finite(log_prob: f32) -> f32 {
    log_prob.max(-9999.0)
}

impl LogProb {
    fn of(chosen: u32, found: &LogProbs, tokenizer: &Tokenizer) -> Self {
        let bytes = |id| tokenizer.token(id).unwrap_or_default().bytes;
        Self {
            token: found.text.clone(),
            logprob: finite(found.chosen),
            bytes: bytes(chosen),
            top_logprobs: found
                .top
                .iter()
                .map(|top| TopLogProb {
                    token: top.text.clone(),
                    logprob: finite(top.log_prob),
                    bytes: bytes(top.id),
                })
                .collect(),
        }
    }
}

/// What a token adds to an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Part {
    /// Text, thoughts and calls; may be empty.
    pub outputs: Vec<Output>,
    /// The token, if log-probabilities are wanted.
    pub log_prob: Option<LogProb>,
}

/// Makes the parts of an answer of what the engine generates.
#[derive(Debug)]
pub struct Parts {
    splitter: Splitter,
    /// Special tokens that are marks, by their IDs.
    marks: BTreeMap<u32, &'static str>,
    /// The answer calls a tool.
    calls: bool,
}

impl Part {
    /// True if clients need not see it.
    pub fn is_empty(&self) -> bool {
        self.outputs.is_empty() && self.log_prob.is_none()
    }
}

impl Parts {
    /// For an answer with these marks to a prompt that ends with `end`.
    pub fn new(marks: Marks, end: &str, tokenizer: &Tokenizer) -> Self {
        let special = |name: &'static str| {
            let id = tokenizer.token_id(name)?;
            tokenizer.is_special(id).then_some((id, name))
        };
        Self {
            splitter: Splitter::new(marks, end),
            marks: marks.names().into_iter().filter_map(special).collect(),
            calls: false,
        }
    }

    /// The part of a piece of the engine.
    pub fn part(&mut self, piece: Piece, tokenizer: &Tokenizer) -> Part {
        let log_prob = match (piece.token, &piece.log_probs) {
            (Some(token), Some(found)) => Some(LogProb::of(token.id, found, tokenizer)),
            _ => None,
        };
        let mark = piece.token.and_then(|token| self.marks.get(&token.id));
        let outputs = match mark {
            Some(mark) => self.splitter.push(&(piece.text + mark)),
            None => self.splitter.push(&piece.text),
        };
        self.note(&outputs);
        Part { outputs, log_prob }
    }

    /// What is left at the end.
    pub fn rest(&mut self) -> Part {
        let outputs = self.splitter.finish();
        self.note(&outputs);
        Part {
            outputs,
            log_prob: None,
        }
    }

    fn note(&mut self, outputs: &[Output]) {
        self.calls |= outputs.iter().any(|output| matches!(output, Output::Call(_)));
    }

    /// Why the answer ended; `None` if it was cancelled.
    pub fn finish(&self, finish: Finish) -> Option<FinishReason> {
        match FinishReason::of(finish)? {
            FinishReason::Stop if self.calls => Some(FinishReason::ToolCalls),
            other => Some(other),
        }
    }
}
