//! `/v1/chat/completions`.

use super::answer::{Form, submit};
use super::models::Failures;
use super::{FINGERPRINT, JsonBody, Shared, json, now};
use crate::wire::{
    ApiError, Chat, ChatBody, ChatChoice, ChatChunk, ChatDelta, ChatMessage, ChatResponse, ChunkChoice,
    Common, FinishReason, LogProbContent, Part, Usage, parse, unique,
};
use axum::extract::State;
use axum::response::Response;

/// Answers a conversation
#[utoipa::path(
    post, path = "/v1/chat/completions", tag = "OpenAI", request_body = ChatBody,
    responses((status = 200, description = "The answers, or with `stream` events with them", content(
        (ChatResponse = "application/json"), (ChatChunk = "text/event-stream"))), Failures),
)]
pub(super) async fn complete(State(server): Shared, JsonBody(body): JsonBody) -> Result<Response, ApiError> {
    let (common, chat): (Common, Chat) = (parse(&body)?, parse(&body)?);
    let (model, engine) = server.models.get(common.model.as_deref()).await?;
    let job = chat.job(&common, engine.model(), &server.options.limits)?;
    let head = Head {
        id: format!("chatcmpl-{:016x}", unique()),
        created: now(),
        model,
        log_probs: job.wants_log_probs(),
    };
    let answers = submit(&server, engine, job).await?;
    if common.stream.unwrap_or(false) {
        return Ok(answers.stream(common.wants_usage(), head));
    }
    let (answers, usage) = answers.whole().await?;
    let choice = |(index, answer): (usize, super::answer::Whole)| ChatChoice {
        index,
        message: ChatMessage {
            role: "assistant",
            content: answer.text,
            refusal: None,
        },
        logprobs: head.log_probs.then_some(LogProbContent {
            content: answer.log_probs,
        }),
        finish_reason: answer.finish,
    };
    let choices = answers.into_iter().enumerate().map(choice).collect();
    Ok(json(&ChatResponse {
        id: head.id,
        object: "chat.completion",
        created: head.created,
        model: head.model,
        choices,
        usage,
        system_fingerprint: FINGERPRINT,
    }))
}

/// What all events of a stream name.
struct Head {
    id: String,
    created: u64,
    model: String,
    log_probs: bool,
}

impl Head {
    fn chunk(&self, choices: Vec<ChunkChoice>, usage: Option<Usage>) -> ChatChunk {
        ChatChunk {
            id: self.id.clone(),
            object: "chat.completion.chunk",
            created: self.created,
            model: self.model.clone(),
            choices,
            usage,
            system_fingerprint: FINGERPRINT,
        }
    }

    fn with(
        &self,
        index: usize,
        delta: ChatDelta,
        logprobs: Option<LogProbContent>,
        finish: Option<FinishReason>,
    ) -> ChatChunk {
        let choice = ChunkChoice {
            index,
            delta,
            logprobs,
            finish_reason: finish,
        };
        self.chunk(vec![choice], None)
    }
}

impl Form for Head {
    type Chunk = ChatChunk;

    fn first(&mut self, index: usize) -> Option<ChatChunk> {
        let delta = ChatDelta {
            role: Some("assistant"),
            content: Some(String::new()),
        };
        Some(self.with(index, delta, None, None))
    }

    fn part(&mut self, index: usize, part: Part) -> ChatChunk {
        let delta = ChatDelta {
            role: None,
            content: Some(part.text),
        };
        let logprobs = self.log_probs.then(|| LogProbContent {
            content: part.log_prob.into_iter().collect(),
        });
        self.with(index, delta, logprobs, None)
    }

    fn end(&mut self, index: usize, finish: FinishReason) -> ChatChunk {
        self.with(index, ChatDelta::default(), None, Some(finish))
    }

    fn usage(&mut self, usage: Usage) -> ChatChunk {
        self.chunk(Vec::new(), Some(usage))
    }
}
