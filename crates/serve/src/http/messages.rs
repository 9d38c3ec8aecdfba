//! `/v1/messages`, Anthropic's form of chats.

use super::answer::{End, Form, Out, Whole, submit};
use super::tokens::prompt;
use super::{ApiError, JsonBody, Shared, json, refusal};
use crate::wire::{
    AnswerBlock, Messages, MessagesError, MessagesResponse, MessagesUsage, Output, Part, StopReason, Usage,
    parse, unique,
};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json as value};
use utoipa::{IntoResponses, ToSchema};

/// The errors of these routes, for their documentation.
#[derive(IntoResponses)]
#[allow(dead_code, reason = "describes responses and is never made")]
pub(super) enum MessagesFailures {
    /// The request is wrong
    #[response(status = 400)]
    Wrong(#[to_schema] MessagesError),
    /// A key is missing or wrong
    #[response(status = 401)]
    Key(#[to_schema] crate::wire::ErrorResponse),
    /// The page or the name of the server is not allowed
    #[response(status = 403)]
    Origin(#[to_schema] crate::wire::ErrorResponse),
    /// There is no such model
    #[response(status = 404)]
    Model(#[to_schema] MessagesError),
    /// The method is wrong
    #[response(status = 405)]
    Method(#[to_schema] crate::wire::ErrorResponse),
    /// The body took too long
    #[response(status = 408)]
    Slow(#[to_schema] MessagesError),
    /// The body is too large
    #[response(status = 413)]
    Size(#[to_schema] MessagesError),
    /// The body is not JSON
    #[response(status = 415)]
    Type(#[to_schema] MessagesError),
    /// The server failed
    #[response(status = 500)]
    Server(#[to_schema] MessagesError),
    /// Too many requests wait, or the model cannot answer; try again later
    #[response(status = 503)]
    Busy(#[to_schema] MessagesError),
}

/// An error in this form.
pub(super) struct Failed(ApiError);

impl From<ApiError> for Failed {
    fn from(e: ApiError) -> Self {
        Self(e)
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        refusal(self.0.status, &MessagesError::from(self.0))
    }
}

type Body = Result<JsonBody, ApiError>;

/// Answers a conversation
#[utoipa::path(
    post, path = "/v1/messages", tag = "Anthropic", request_body = Messages,
    responses((status = 200, description = "The answer, or with `stream` events with it", content(
        (MessagesResponse = "application/json"), (Value = "text/event-stream"))), MessagesFailures),
)]
pub(super) async fn answer(State(server): Shared, body: Body) -> Result<Response, Failed> {
    let JsonBody(body) = body?;
    let request: Messages = parse(&body)?;
    if request.max_tokens.is_none() {
        return Err(ApiError::field("max_tokens", "is missing; expected a number of tokens").into());
    }
    let (common, chat) = request.chat()?;
    let (model, engine) = server.models.get(common.model.as_deref()).await?;
    let job = chat.job(&common, engine.model(), &server.options.limits)?;
    let answers = submit(&server, engine, job).await?;
    let id = format!("msg_{:016x}", unique());
    if common.stream.unwrap_or(false) {
        let prompt = answers.prompt_tokens();
        return Ok(answers.stream(Blocks {
            id,
            model,
            prompt,
            open: None,
            count: 0,
            ended: None,
        }));
    }
    let (answers, usage) = answers.whole().await?;
    let answer = answers.into_iter().next().unwrap_or_default();
    let stop = answer.end.as_ref().and_then(|end| end.stop.clone());
    let reason = answer
        .finish()
        .map(|finish| StopReason::of(finish, stop.as_deref()));
    Ok(json(&MessagesResponse {
        id,
        kind: "message",
        role: "assistant",
        model,
        content: blocks(answer),
        stop_reason: reason,
        stop_sequence: stop,
        usage: usage.into(),
    }))
}

/// The number of a prompt's tokens.
#[derive(Serialize, ToSchema)]
pub(super) struct Count {
    /// Tokens of the prompt.
    input_tokens: usize,
}

/// Counts the tokens of a prompt
#[utoipa::path(
    post, path = "/v1/messages/count_tokens", tag = "Anthropic", request_body = Messages,
    responses((status = 200, body = Count), MessagesFailures),
)]
pub(super) async fn count_tokens(State(server): Shared, body: Body) -> Result<Response, Failed> {
    let JsonBody(body) = body?;
    let request: Messages = parse(&body)?;
    let (common, chat) = request.chat()?;
    let (_, engine) = server.models.get(common.model.as_deref()).await?;
    Ok(json(&Count {
        input_tokens: prompt(&server, engine, common, chat).await?.len(),
    }))
}

/// Arguments as JSON; a text that is none stays a text.
fn input(arguments: &str) -> Value {
    serde_json::from_str(arguments).unwrap_or_else(|_| Value::String(arguments.to_owned()))
}

/// The blocks of an answer.
fn blocks(answer: Whole) -> Vec<AnswerBlock> {
    let mut all = Vec::new();
    if !answer.thought.is_empty() {
        all.push(AnswerBlock::Thinking {
            thinking: answer.thought,
            signature: String::new(),
        });
    }
    if !answer.text.is_empty() {
        all.push(AnswerBlock::Text { text: answer.text });
    }
    all.extend(answer.calls.into_iter().map(|call| AnswerBlock::ToolUse {
        id: call.id,
        input: input(&call.function.arguments),
        name: call.function.name,
    }));
    all
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Thinking,
}

/// The events of an answer: blocks with a beginning, parts and an end.
struct Blocks {
    id: String,
    model: String,
    prompt: usize,
    /// The block that has begun.
    open: Option<Kind>,
    /// Blocks that have ended.
    count: usize,
    ended: Option<(StopReason, Option<String>)>,
}

impl Blocks {
    fn begin(&mut self, block: &AnswerBlock, out: &mut Out) {
        self.finish(out);
        let index = self.count;
        let event = value!({"type": "content_block_start", "index": index, "content_block": block});
        out.named("content_block_start", &event);
    }

    fn delta(&self, delta: &Value, out: &mut Out) {
        let event = value!({"type": "content_block_delta", "index": self.count, "delta": delta});
        out.named("content_block_delta", &event);
    }

    fn stop(&mut self, out: &mut Out) {
        let event = value!({"type": "content_block_stop", "index": self.count});
        out.named("content_block_stop", &event);
        self.count += 1;
    }

    /// Ends the block that has begun.
    fn finish(&mut self, out: &mut Out) {
        if self.open.take().is_some() {
            self.stop(out);
        }
    }

    fn say(&mut self, kind: Kind, text: String, out: &mut Out) {
        if self.open != Some(kind) {
            let block = match kind {
                Kind::Text => AnswerBlock::Text { text: String::new() },
                Kind::Thinking => AnswerBlock::Thinking {
                    thinking: String::new(),
                    signature: String::new(),
                },
            };
            self.begin(&block, out);
            self.open = Some(kind);
        }
        let delta = match kind {
            Kind::Text => value!({"type": "text_delta", "text": text}),
            Kind::Thinking => value!({"type": "thinking_delta", "thinking": text}),
        };
        self.delta(&delta, out);
    }
}

impl Form for Blocks {
    fn first(&mut self, _: usize, out: &mut Out) {
        let message = MessagesResponse {
            id: self.id.clone(),
            kind: "message",
            role: "assistant",
            model: self.model.clone(),
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            usage: MessagesUsage {
                input_tokens: self.prompt,
                ..MessagesUsage::default()
            },
        };
        out.named(
            "message_start",
            &value!({"type": "message_start", "message": message}),
        );
    }

    fn part(&mut self, _: usize, part: Part, out: &mut Out) {
        for output in part.outputs {
            match output {
                Output::Text(text) => self.say(Kind::Text, text, out),
                Output::Thought(thought) => self.say(Kind::Thinking, thought, out),
                Output::Call(call) => {
                    let block = AnswerBlock::ToolUse {
                        id: call.id,
                        name: call.function.name,
                        input: value!({}),
                    };
                    self.begin(&block, out);
                    let delta = value!({"type": "input_json_delta", "partial_json": call.function.arguments});
                    self.delta(&delta, out);
                    self.stop(out);
                }
            }
        }
    }

    fn end(&mut self, _: usize, end: &End, out: &mut Out) {
        self.finish(out);
        self.ended = Some((StopReason::of(end.finish, end.stop.as_deref()), end.stop.clone()));
    }

    fn close(&mut self, usage: Usage, out: &mut Out) {
        let (reason, stop) = self.ended.take().unzip();
        let event = value!({
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": stop.flatten()},
            "usage": MessagesUsage::from(usage),
        });
        out.named("message_delta", &event);
        out.named("message_stop", &value!({"type": "message_stop"}));
    }

    fn fail(&mut self, e: ApiError, out: &mut Out) {
        out.named("error", &MessagesError::from(e));
    }
}
