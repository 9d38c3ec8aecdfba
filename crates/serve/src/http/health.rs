//! Whether the server can answer.

use super::models::Failures;
use super::{ApiError, Shared, json};
use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use std::time::Duration;
use utoipa::ToSchema;

/// A step of a model that takes longer has failed, as far as clients are concerned.
const LONGEST_STEP: Duration = Duration::from_secs(120);

/// The server can answer.
#[derive(Serialize, ToSchema)]
pub(super) struct Health {
    /// `ok`.
    status: &'static str,
}

/// Tells whether all loaded models can answer
#[utoipa::path(get, path = "/health", tag = "Server", responses((status = 200, body = Health), Failures))]
pub(super) async fn health(State(server): Shared) -> Result<Response, ApiError> {
    for (id, engine) in server.models.loaded() {
        let state = engine.batcher.state();
        let failed = |why: String| ApiError::new(503, format!("{id}: {why}"));
        engine.batcher.check().map_err(|e| failed(e.chain()))?;
        if state.step.is_some_and(|step| step > LONGEST_STEP) {
            return Err(failed(format!(
                "a step has been running for more than {LONGEST_STEP:?}"
            )));
        }
    }
    Ok(json(&Health { status: "ok" }))
}
