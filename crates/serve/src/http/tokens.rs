//! Texts as tokens, and back.

use super::models::Failures;
use super::{ApiError, Engine, JsonBody, Server, Shared, blocking, json};
use crate::wire::{Chat, ChatBody, Common, parse};
use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use transformer_lite::{Cancel, Tokenizer};
use utoipa::ToSchema;

/// A text.
#[derive(Deserialize, ToSchema)]
pub(super) struct Tokenize {
    /// The text.
    content: String,
    /// Whether the tokenizer adds its special tokens.
    #[serde(default)]
    add_special: Option<bool>,
    /// A listed model; the first one if it is not given.
    #[serde(default)]
    model: Option<String>,
}

/// Tokens.
#[derive(Serialize, ToSchema)]
pub(super) struct Tokens {
    /// Their IDs.
    tokens: Vec<u32>,
}

/// Tokens.
#[derive(Deserialize, ToSchema)]
pub(super) struct Detokenize {
    /// Their IDs.
    tokens: Vec<u32>,
    /// A listed model; the first one if it is not given.
    #[serde(default)]
    model: Option<String>,
}

/// A text.
#[derive(Serialize, ToSchema)]
pub(super) struct Text {
    /// The text.
    content: String,
}

/// The prompt of a conversation.
#[derive(Serialize, ToSchema)]
pub(super) struct Templated {
    /// The text, special tokens included.
    prompt: String,
}

/// Turns a text into tokens
#[utoipa::path(post, path = "/tokenize", tag = "Tokens", request_body = Tokenize, responses((status = 200, body = Tokens), Failures))]
pub(super) async fn tokenize(State(server): Shared, JsonBody(body): JsonBody) -> Result<Response, ApiError> {
    let request: Tokenize = parse(&body)?;
    let engine = engine(&server, request.model.as_deref()).await?;
    let tokens = blocking(move || {
        let special = request.add_special.unwrap_or(false);
        Ok(engine
            .batcher
            .codec()
            .tokenizer()
            .encode(&request.content, special)?)
    });
    Ok(json(&Tokens {
        tokens: tokens.await?,
    }))
}

/// Turns tokens into a text
#[utoipa::path(post, path = "/detokenize", tag = "Tokens", request_body = Detokenize, responses((status = 200, body = Text), Failures))]
pub(super) async fn detokenize(
    State(server): Shared,
    JsonBody(body): JsonBody,
) -> Result<Response, ApiError> {
    let request: Detokenize = parse(&body)?;
    let engine = engine(&server, request.model.as_deref()).await?;
    let content = blocking(move || {
        let tokenizer = engine.batcher.codec().tokenizer();
        if let Some(id) = request.tokens.iter().find(|id| tokenizer.token(**id).is_none()) {
            return Err(ApiError::field(
                "tokens",
                format!("{id} is not a token of the model"),
            ));
        }
        Ok(tokenizer.decode(&request.tokens)?)
    });
    Ok(json(&Text {
        content: content.await?,
    }))
}

/// Turns a conversation into a prompt by the model's chat template
#[utoipa::path(post, path = "/apply-template", tag = "Tokens", request_body = ChatBody, responses((status = 200, body = Templated), Failures))]
pub(super) async fn apply_template(
    State(server): Shared,
    JsonBody(body): JsonBody,
) -> Result<Response, ApiError> {
    let (common, chat): (Common, Chat) = (parse(&body)?, parse(&body)?);
    let engine = engine(&server, common.model.as_deref()).await?;
    let tokens = prompt(&server, engine.clone(), common, chat).await?;
    Ok(json(&Templated {
        prompt: written(&tokens, engine.batcher.codec().tokenizer()),
    }))
}

/// The tokens of a conversation's prompt.
pub(super) async fn prompt(
    server: &Server,
    engine: Arc<Engine>,
    common: Common,
    chat: Chat,
) -> Result<Vec<u32>, ApiError> {
    let limits = server.options.limits;
    blocking(move || {
        let job = chat.job(&common, engine.model(), &limits)?;
        Ok(job.prompts(engine.batcher.codec(), &Cancel::default())?.concat())
    })
    .await
}

/// The text of tokens, with the names of special ones.
pub(super) fn written(tokens: &[u32], tokenizer: &Tokenizer) -> String {
    let bytes = tokens
        .iter()
        .flat_map(|id| tokenizer.token(*id).unwrap_or_default().bytes);
    String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
}

async fn engine(server: &Server, name: Option<&str>) -> Result<Arc<Engine>, ApiError> {
    Ok(server.models.get(name).await?.1)
}
