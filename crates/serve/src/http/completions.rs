//! `/v1/completions`.

use super::answer::{Form, submit};
use super::models::Failures;
use super::{FINGERPRINT, JsonBody, Shared, json, now};
use crate::wire::{
    ApiError, Common, Completion, CompletionBody, CompletionChoice, CompletionLogProbs, CompletionResponse,
    FinishReason, LogProb, Output, Part, Usage, parse, unique,
};
use axum::extract::State;
use axum::response::Response;
use std::collections::BTreeMap;

/// Continues texts
#[utoipa::path(
    post, path = "/v1/completions", tag = "OpenAI", request_body = CompletionBody,
    responses((status = 200, description = "The texts, or with `stream` events with them", content(
        (CompletionResponse = "application/json"), (CompletionResponse = "text/event-stream"))), Failures),
)]
pub(super) async fn complete(State(server): Shared, JsonBody(body): JsonBody) -> Result<Response, ApiError> {
    let (common, completion): (Common, Completion) = (parse(&body)?, parse(&body)?);
    let (model, engine) = server.models.get(common.model.as_deref()).await?;
    let job = completion.job(&common, engine.model(), &server.options.limits)?;
    let mut head = Head {
        id: format!("cmpl-{:016x}", unique()),
        created: now(),
        model,
        log_probs: job.wants_log_probs(),
        offsets: BTreeMap::new(),
    };
    let answers = submit(&server, engine, job).await?;
    if common.stream.unwrap_or(false) {
        return Ok(answers.stream(common.wants_usage(), head));
    }
    let (answers, usage) = answers.whole().await?;
    let mut choices = Vec::with_capacity(answers.len());
    for (index, answer) in answers.into_iter().enumerate() {
        choices.push(head.choice(index, answer.text, &answer.log_probs, answer.finish));
    }
    Ok(json(&head.response(choices, Some(usage))))
}

/// What all events of a stream name.
struct Head {
    id: String,
    created: u64,
    model: String,
    log_probs: bool,
    /// Characters of each answer so far.
    offsets: BTreeMap<usize, usize>,
}

impl Head {
    fn response(&self, choices: Vec<CompletionChoice>, usage: Option<Usage>) -> CompletionResponse {
        CompletionResponse {
            id: self.id.clone(),
            object: "text_completion",
            created: self.created,
            model: self.model.clone(),
            choices,
            usage,
            system_fingerprint: FINGERPRINT,
        }
    }

    fn choice(
        &mut self,
        index: usize,
        text: String,
        log_probs: &[LogProb],
        finish_reason: Option<FinishReason>,
    ) -> CompletionChoice {
        let offset = self.offsets.entry(index).or_default();
        let logprobs = self.log_probs.then(|| CompletionLogProbs::of(log_probs, *offset));
        *offset += text.chars().count();
        CompletionChoice {
            text,
            index,
            logprobs,
            finish_reason,
        }
    }
}

impl Form for Head {
    type Chunk = CompletionResponse;

    fn first(&mut self, _: usize) -> Option<CompletionResponse> {
        None
    }

    fn part(&mut self, index: usize, part: Part) -> CompletionResponse {
        let text = part.outputs.into_iter().map(|output| match output {
            Output::Text(text) | Output::Thought(text) => text,
            Output::Call(call) => call.function.arguments,
        });
        let choice = self.choice(index, text.collect(), part.log_prob.as_slice(), None);
        self.response(vec![choice], None)
    }

    fn end(&mut self, index: usize, finish: FinishReason) -> CompletionResponse {
        let choice = CompletionChoice {
            text: String::new(),
            index,
            logprobs: None,
            finish_reason: Some(finish),
        };
        self.response(vec![choice], None)
    }

    fn usage(&mut self, usage: Usage) -> CompletionResponse {
        self.response(Vec::new(), Some(usage))
    }
}
