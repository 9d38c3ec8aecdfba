//! `/v1/completions`.

use super::answer::{End, Form, Head, Out, submit};
use super::models::Failures;
use super::{FINGERPRINT, JsonBody, Shared, json};
use crate::wire::{
    ApiError, Common, Completion, CompletionBody, CompletionChoice, CompletionLogProbs, CompletionResponse,
    FinishReason, LogProb, Output, Part, Usage, parse,
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
    let mut texts = Texts {
        head: Head::new("cmpl", model, &common, &job),
        offsets: BTreeMap::new(),
    };
    let answers = submit(&server, engine, job).await?;
    if common.stream.unwrap_or(false) {
        return Ok(answers.stream(texts));
    }
    let (answers, usage) = answers.whole().await?;
    let mut choices = Vec::with_capacity(answers.len());
    for (index, answer) in answers.into_iter().enumerate() {
        let finish = answer.finish();
        choices.push(texts.choice(index, answer.text, &answer.log_probs, finish));
    }
    Ok(json(&texts.response(choices, Some(usage))))
}

/// The texts of a response, whole or in events.
struct Texts {
    head: Head,
    /// Characters of each answer so far.
    offsets: BTreeMap<usize, usize>,
}

impl Texts {
    fn response(&self, choices: Vec<CompletionChoice>, usage: Option<Usage>) -> CompletionResponse {
        CompletionResponse {
            id: self.head.id.clone(),
            object: "text_completion",
            created: self.head.created,
            model: self.head.model.clone(),
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
        let logprobs = self
            .head
            .log_probs
            .then(|| CompletionLogProbs::of(log_probs, *offset));
        *offset += text.chars().count();
        CompletionChoice {
            text,
            index,
            logprobs,
            finish_reason,
        }
    }
}

impl Form for Texts {
    fn first(&mut self, _: usize, _: &mut Out) {}

    fn part(&mut self, index: usize, part: Part, out: &mut Out) {
        let text = part.outputs.into_iter().map(|output| match output {
            Output::Text(text) | Output::Thought(text) => text,
            Output::Call(call) => call.function.arguments,
        });
        let choice = self.choice(index, text.collect(), part.log_prob.as_slice(), None);
        out.data(&self.response(vec![choice], None));
    }

    fn end(&mut self, index: usize, end: &End, out: &mut Out) {
        let choice = CompletionChoice {
            text: String::new(),
            index,
            logprobs: None,
            finish_reason: Some(end.finish),
        };
        out.data(&self.response(vec![choice], None));
    }

    fn close(&mut self, usage: Usage, out: &mut Out) {
        if self.head.wants_usage {
            out.data(&self.response(Vec::new(), Some(usage)));
        }
        out.text("[DONE]");
    }
}
