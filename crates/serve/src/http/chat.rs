//! `/v1/chat/completions`.

use super::answer::{End, Form, Head, Out, Whole, submit};
use super::models::Failures;
use super::{FINGERPRINT, JsonBody, Shared, json};
use crate::wire::{
    ApiError, Chat, ChatBody, ChatChoice, ChatChunk, ChatDelta, ChatMessage, ChatResponse, ChunkChoice,
    Common, FinishReason, LogProbContent, Output, Part, Usage, parse,
};
use axum::extract::State;
use axum::response::Response;
use std::collections::BTreeMap;

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
    let head = Head::new("chatcmpl", model, &common, &job);
    let answers = submit(&server, engine, job).await?;
    if common.stream.unwrap_or(false) {
        return Ok(answers.stream(Chunks {
            head,
            calls: BTreeMap::new(),
        }));
    }
    let (answers, usage) = answers.whole().await?;
    let choice = |(index, answer): (usize, Whole)| ChatChoice {
        index,
        finish_reason: answer.finish(),
        message: ChatMessage {
            role: "assistant",
            content: (answer.calls.is_empty() || !answer.text.is_empty()).then_some(answer.text),
            refusal: None,
            reasoning_content: (!answer.thought.is_empty()).then_some(answer.thought),
            tool_calls: answer.calls,
        },
        logprobs: head.log_probs.then_some(LogProbContent {
            content: answer.log_probs,
        }),
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

/// The events of a stream.
struct Chunks {
    head: Head,
    /// Calls of each answer so far.
    calls: BTreeMap<usize, usize>,
}

impl Chunks {
    fn chunk(&self, choices: Vec<ChunkChoice>, usage: Option<Usage>) -> ChatChunk {
        ChatChunk {
            id: self.head.id.clone(),
            object: "chat.completion.chunk",
            created: self.head.created,
            model: self.head.model.clone(),
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

impl Form for Chunks {
    fn first(&mut self, index: usize, out: &mut Out) {
        let delta = ChatDelta {
            role: Some("assistant"),
            content: Some(String::new()),
            ..ChatDelta::default()
        };
        out.data(&self.with(index, delta, None, None));
    }

    fn part(&mut self, index: usize, part: Part, out: &mut Out) {
        let mut delta = ChatDelta::default();
        for output in part.outputs {
            match output {
                Output::Text(text) => *delta.content.get_or_insert_default() += &text,
                Output::Thought(thought) => *delta.reasoning_content.get_or_insert_default() += &thought,
                Output::Call(mut call) => {
                    let count = self.calls.entry(index).or_default();
                    call.index = Some(*count);
                    *count += 1;
                    delta.tool_calls.push(call);
                }
            }
        }
        let logprobs = self.head.log_probs.then(|| LogProbContent {
            content: part.log_prob.into_iter().collect(),
        });
        out.data(&self.with(index, delta, logprobs, None));
    }

    fn end(&mut self, index: usize, end: &End, out: &mut Out) {
        out.data(&self.with(index, ChatDelta::default(), None, Some(end.finish)));
    }

    fn close(&mut self, usage: Usage, out: &mut Out) {
        if self.head.wants_usage {
            out.data(&self.chunk(Vec::new(), Some(usage)));
        }
        out.text("[DONE]");
    }
}
