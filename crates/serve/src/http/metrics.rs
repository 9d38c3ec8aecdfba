//! Figures for Prometheus.

use super::models::Failures;
use super::{ApiError, Server, Shared};
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::time::Instant;
use transformer_lite::Metrics;

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(super) enum Ended {
    Complete,
    Failed,
    ClientLeft,
    ClientStalled,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Asked {
    route: String,
    code: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Origin {
    source: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Why {
    why: Ended,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Page {
    model: String,
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Of {
    model: String,
}

/// What the server has counted.
pub(super) struct Figures {
    registry: Registry,
    requests: Family<Asked, Counter>,
    answers: Family<Why, Counter>,
    prompt: Family<Origin, Counter>,
    generated: Counter,
    first: Histogram,
    between: Histogram,
    whole: Histogram,
    waiting: Family<Of, Gauge>,
    running: Family<Of, Gauge>,
    pages: Family<Page, Gauge>,
}

/// Upper ends of the buckets of times, in seconds.
const SECONDS: [f64; 12] = [
    0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 2.5, 10.0, 30.0, 120.0,
];

impl Figures {
    pub fn new() -> Self {
        let times = || Histogram::new(SECONDS);
        let mut figures = Self {
            registry: Registry::with_prefix("tlite"),
            requests: Family::default(),
            answers: Family::default(),
            prompt: Family::default(),
            generated: Counter::default(),
            first: times(),
            between: times(),
            whole: times(),
            waiting: Family::default(),
            running: Family::default(),
            pages: Family::default(),
        };
        let all = &mut figures.registry;
        all.register("requests", "Requests", figures.requests.clone());
        all.register("answers", "Answers, by how they ended", figures.answers.clone());
        all.register(
            "prompt_tokens",
            "Prompt tokens, by whether they were cached",
            figures.prompt.clone(),
        );
        all.register("generated_tokens", "Generated tokens", figures.generated.clone());
        all.register(
            "first_token_seconds",
            "Time to the first token",
            figures.first.clone(),
        );
        all.register(
            "token_gap_seconds",
            "Time between tokens",
            figures.between.clone(),
        );
        all.register("answer_seconds", "Time of whole answers", figures.whole.clone());
        all.register("queue_length", "Answers that wait", figures.waiting.clone());
        all.register(
            "sequences_running",
            "Answers that are generated",
            figures.running.clone(),
        );
        all.register("cache_pages", "Pages of the KV cache", figures.pages.clone());
        figures
    }

    /// Counts a token of an answer that was asked for at `start`. `last` is the time of the one
    /// before.
    pub fn token(&self, start: Instant, last: &mut Option<Instant>) {
        let now = Instant::now();
        match last.replace(now) {
            Some(last) => self.between.observe((now - last).as_secs_f64()),
            None => self.first.observe((now - start).as_secs_f64()),
        }
    }

    /// Counts an answer that was asked for at `start`.
    pub fn end(&self, why: Ended, start: Instant, metrics: &Metrics) {
        self.answers.get_or_create(&Why { why }).inc();
        self.whole.observe(start.elapsed().as_secs_f64());
        let tokens = |source, count: usize| {
            self.prompt.get_or_create(&Origin { source }).inc_by(count as u64);
        };
        tokens("cache", metrics.reused_tokens);
        tokens("fed", metrics.prompt_tokens);
        self.generated.inc_by(metrics.tokens as u64);
    }

    /// Reads the gauges of the loaded models.
    fn read(&self, server: &Server) {
        self.waiting.clear();
        self.running.clear();
        self.pages.clear();
        let set = |gauge: &Gauge, value: usize| {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        };
        for (model, engine) in server.models.loaded() {
            let state = engine.batcher.state();
            let of = Of { model: model.clone() };
            set(&self.waiting.get_or_create(&of), state.waiting);
            set(&self.running.get_or_create(&of), state.running);
            for (name, pages) in [("used", state.pages[0]), ("cached", state.pages[1])] {
                let page = Page {
                    model: model.clone(),
                    state: name,
                };
                set(&self.pages.get_or_create(&page), pages);
            }
        }
    }
}

/// Counts a request.
pub(super) async fn count(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>();
    // Addresses that are not routes would make a figure for each.
    let route = route.map_or_else(|| "other".to_owned(), |path| path.as_str().to_owned());
    let response = next.run(request).await;
    let code = response.status().as_u16();
    server
        .figures
        .requests
        .get_or_create(&Asked { route, code })
        .inc();
    response
}

/// Figures for Prometheus
#[utoipa::path(get, path = "/metrics", tag = "Server", responses((status = 200, body = String, content_type = "application/openmetrics-text"), Failures))]
pub(super) async fn metrics(State(server): Shared) -> Result<Response, ApiError> {
    server.figures.read(&server);
    let mut text = String::new();
    encode(&mut text, &server.figures.registry)
        .map_err(|e| ApiError::new(500, format!("cannot write the figures: {e}")))?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}
