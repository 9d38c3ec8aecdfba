//! The server.

mod answer;
mod chat;
mod completions;
mod engine;
mod guard;
mod health;
mod listen;
mod messages;
mod metrics;
mod models;
mod page;
#[cfg(test)]
mod tests;
mod tokens;

pub use engine::{Engine, ModelSource};
pub use listen::{Address, Bound, Stop, bind, serve};

use crate::wire::{ApiError, ErrorResponse, Limits};
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, FromRequest, Request, State};
use axum::response::{IntoResponse, Response};
use engine::Models;
use guard::Guard;
use http::{HeaderValue, StatusCode, header};
use metrics::Figures;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Settings of a server.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Keys that clients must send, any of them; none if the list is empty.
    pub keys: Vec<String>,
    /// Pages of these origins may send requests.
    pub origins: Vec<String>,
    /// Largest body of a request in bytes.
    pub body: usize,
    /// The most that a request may ask for.
    pub limits: Limits,
    /// A client that reads nothing for this long while its answer waits is disconnected.
    pub stall: Duration,
    /// Time for running answers after a stop.
    pub grace: Duration,
    /// Models without a request for this long are unloaded; `None` keeps them.
    pub idle: Option<Duration>,
    /// Longest time that compiling a grammar may take.
    pub compile: Duration,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            keys: Vec::new(),
            origins: Vec::new(),
            body: 8 << 20,
            limits: Limits::default(),
            stall: Duration::from_secs(30),
            grace: Duration::from_secs(30),
            idle: None,
            compile: Duration::from_secs(1),
        }
    }
}

/// What all handlers share.
struct Server {
    options: ServeOptions,
    models: Models,
    figures: Figures,
    guard: Guard,
    /// Limits how many grammars are compiled at a time.
    compiling: Arc<Semaphore>,
}

type Shared = State<Arc<Server>>;

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        refusal(self.status, &ErrorResponse { error: self.body })
    }
}

/// A response with the error `body`.
fn refusal(status: u16, body: &impl serde::Serialize) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = json(body);
    *response.status_mut() = status;
    if status == StatusCode::SERVICE_UNAVAILABLE {
        let headers = response.headers_mut();
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// A response with a JSON body.
fn json(value: &impl serde::Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(e) => {
            let text = format!("cannot write the response: {e}");
            (StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
        }
    }
}

/// Time for the body of a request.
const BODY: Duration = Duration::from_secs(60);

/// The body of a request, which must be JSON.
struct JsonBody(Bytes);

impl FromRequest<Arc<Server>> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, server: &Arc<Server>) -> Result<Self, ApiError> {
        let kind = request.headers().get(header::CONTENT_TYPE);
        let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        // Pages of other origins cannot send this type without asking.
        if !kind
            .split(';')
            .next()
            .is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
        {
            let what = "expected the header Content-Type: application/json";
            return Err(ApiError::new(415, what));
        }
        let Ok(body) = tokio::time::timeout(BODY, Bytes::from_request(request, server)).await else {
            return Err(ApiError::new(408, format!("the body took more than {BODY:?}")));
        };
        match body {
            Ok(body) => Ok(Self(body)),
            Err(BytesRejection::FailedToBufferBody(e)) if e.status() == StatusCode::PAYLOAD_TOO_LARGE => {
                let what = format!(
                    "the body is too large; expected at most {} bytes",
                    server.options.body
                );
                Err(ApiError::new(413, what))
            }
            Err(e) => Err(ApiError::new(400, format!("cannot read the body: {e}"))),
        }
    }
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Transformer-Lite",
        description = "Answers of language models on this machine, in the forms of the OpenAI API.",
    ),
    security((), ("key" = [])),
    modifiers(&Key),
)]
struct Document;

/// Describes how clients send a key.
struct Key;

impl utoipa::Modify for Key {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("key", SecurityScheme::Http(bearer));
    }
}

/// All routes, and their description.
fn routes() -> (axum::Router<Arc<Server>>, utoipa::openapi::OpenApi) {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(chat::complete))
        .routes(routes!(completions::complete))
        .routes(routes!(messages::answer))
        .routes(routes!(messages::count_tokens))
        .routes(routes!(models::list))
        .routes(routes!(models::one))
        .routes(routes!(models::card))
        .routes(routes!(models::report))
        .routes(routes!(tokens::tokenize))
        .routes(routes!(tokens::detokenize))
        .routes(routes!(tokens::apply_template))
        .routes(routes!(health::health))
        .routes(routes!(metrics::metrics))
        .split_for_parts()
}

/// The service of a server.
fn app(server: Arc<Server>) -> axum::Router {
    let (router, document) = routes();
    let document = document.to_json().unwrap_or_default();
    let describe = move || async move { ([(header::CONTENT_TYPE, "application/json")], document) };
    router
        .merge(page::routes())
        .route("/openapi.json", axum::routing::get(describe))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(server.options.body))
        .layer(axum::middleware::from_fn_with_state(server.clone(), guard::check))
        .layer(axum::middleware::from_fn_with_state(
            server.clone(),
            metrics::count,
        ))
        .with_state(server)
}

async fn unknown(request: Request) -> ApiError {
    ApiError::new(
        404,
        format!(
            "there is no {}; /openapi.json lists all routes",
            request.uri().path()
        ),
    )
}

async fn wrong_method(request: Request) -> ApiError {
    let what = format!("{} does not take {}", request.uri().path(), request.method());
    ApiError::new(405, what)
}

/// Runs `work`, which may take long, without holding up other requests.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(e) => Err(ApiError::new(500, format!("a bug in this server: {e}"))),
    }
}

/// Seconds since 1970.
fn now() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |time| time.as_secs())
}

/// Names the version in responses.
const FINGERPRINT: &str = concat!("tlite-", env!("CARGO_PKG_VERSION"));
