//! `/v1/models`, and what the page shows of a model.

use super::{ApiError, Shared, blocking, json};
use crate::wire::ErrorResponse;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use http::header;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, IntoResponses, ToSchema};

/// The errors of all routes, for their documentation.
#[derive(IntoResponses)]
#[allow(dead_code, reason = "describes responses and is never made")]
pub(super) enum Failures {
    /// The request is wrong; `param` names the field
    #[response(status = 400)]
    Wrong(#[to_schema] ErrorResponse),
    /// A key is missing or wrong
    #[response(status = 401)]
    Key(#[to_schema] ErrorResponse),
    /// The page or the name of the server is not allowed
    #[response(status = 403)]
    Origin(#[to_schema] ErrorResponse),
    /// There is no such model
    #[response(status = 404)]
    Model(#[to_schema] ErrorResponse),
    /// The method is wrong
    #[response(status = 405)]
    Method(#[to_schema] ErrorResponse),
    /// The body took too long
    #[response(status = 408)]
    Slow(#[to_schema] ErrorResponse),
    /// The body is too large
    #[response(status = 413)]
    Size(#[to_schema] ErrorResponse),
    /// The body is not JSON
    #[response(status = 415)]
    Type(#[to_schema] ErrorResponse),
    /// The server failed
    #[response(status = 500)]
    Server(#[to_schema] ErrorResponse),
    /// Too many requests wait, or the model cannot answer; try again later
    #[response(status = 503)]
    Busy(#[to_schema] ErrorResponse),
}

/// A model.
#[derive(Serialize, ToSchema)]
pub(super) struct ModelInfo {
    /// Its name in requests.
    id: String,
    /// `model`.
    object: &'static str,
    /// When the server was started, in seconds since 1970.
    created: u64,
    /// `transformer-lite`.
    owned_by: &'static str,
}

/// All models.
#[derive(Serialize, ToSchema)]
pub(super) struct ModelList {
    /// `list`.
    object: &'static str,
    /// The models; requests that name none use the first.
    data: Vec<ModelInfo>,
}

fn info(id: String, created: u64) -> ModelInfo {
    ModelInfo {
        id,
        object: "model",
        created,
        owned_by: "transformer-lite",
    }
}

/// Lists the models
#[utoipa::path(get, path = "/v1/models", tag = "OpenAI", responses((status = 200, body = ModelList), Failures))]
pub(super) async fn list(State(server): Shared) -> Response {
    let created = server.models.created;
    let data = server
        .models
        .names()
        .into_iter()
        .map(|id| info(id, created))
        .collect();
    json(&ModelList { object: "list", data })
}

/// Describes a model
#[utoipa::path(
    get, path = "/v1/models/{model}", tag = "OpenAI", params(("model" = String, Path, description = "Its name")),
    responses((status = 200, body = ModelInfo), Failures),
)]
pub(super) async fn one(State(server): Shared, Path(name): Path<String>) -> Result<Response, ApiError> {
    let names = server.models.names();
    match names.contains(&name) {
        true => Ok(json(&info(name, server.models.created))),
        false => Err(ApiError::no_model(&name, &names)),
    }
}

/// A name of a model in the address.
#[derive(Deserialize, IntoParams)]
pub(super) struct Named {
    /// A listed model; the first one if it is not given.
    model: Option<String>,
}

/// Settings of the sampler, null where one is off.
#[derive(Serialize, ToSchema)]
pub(super) struct Sampling {
    temperature: f32,
    top_p: Option<f32>,
    top_k: Option<usize>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
}

/// What the page shows of a model.
#[derive(Serialize, ToSchema)]
pub(super) struct Card {
    /// Its name in requests.
    id: String,
    /// Backend: `opencl`, `wgpu`, `cpu` or `reference`.
    backend: &'static str,
    /// The device.
    device: String,
    /// Its driver.
    driver: String,
    /// Context length of an answer, in tokens.
    context: usize,
    /// Settings of the sampler where a request has none.
    sampling: Sampling,
    /// What was noticed while the model was loaded.
    notes: Vec<String>,
    /// The server's version.
    version: &'static str,
}

/// Describes a model, its device and its defaults
#[utoipa::path(get, path = "/tlite/model", tag = "Page", params(Named), responses((status = 200, body = Card), Failures))]
pub(super) async fn card(State(server): Shared, Query(named): Query<Named>) -> Result<Response, ApiError> {
    let (id, engine) = server.models.get(named.model.as_deref()).await?;
    let (place, config) = (engine.batcher.place(), engine.folder.sampling());
    let given = |value: f32, off: f32| (value != off).then_some(value);
    Ok(json(&Card {
        id,
        backend: place.backend,
        device: place.device.clone(),
        driver: place.driver.clone(),
        context: engine.batcher.context(),
        sampling: Sampling {
            temperature: config.temperature,
            top_p: given(config.top_p, 1.0),
            top_k: (config.top_k > 0).then_some(config.top_k),
            min_p: given(config.min_p, 0.0),
            repetition_penalty: given(config.penalties.repetition, 1.0),
        },
        notes: engine.batcher.notes().iter().map(ToString::to_string).collect(),
        version: env!("CARGO_PKG_VERSION"),
    }))
}

/// Describes a model's graph, plans and memory
#[utoipa::path(
    get, path = "/tlite/report", tag = "Page", params(Named),
    responses((status = 200, body = serde_json::Value, description = "As `tlite inspect --json`"), Failures),
)]
pub(super) async fn report(State(server): Shared, Query(named): Query<Named>) -> Result<Response, ApiError> {
    let source = server.models.source(named.model.as_deref())?;
    let report = blocking(move || match &source.report {
        Some(report) => Ok(report()?),
        None => Err(ApiError::new(404, "this server makes no reports")),
    });
    Ok(([(header::CONTENT_TYPE, "application/json")], report.await?).into_response())
}
