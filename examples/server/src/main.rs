//! Streams answers: `curl -d "Why is the sky blue?" localhost:3000/chat`

use axum::{Router, body::Body, extract::State, http::StatusCode, routing::post};
use futures_util::{TryStreamExt, stream::poll_fn};
use std::sync::Arc;
use tokio::net::TcpListener;
use transformer_lite::{BatchOptions, Batcher, Error, LoadOptions, Message, Request};

type Refusal = (StatusCode, String);

fn refusal(e: Error) -> Refusal {
    let fault = (!e.is_usage()).then_some(StatusCode::SERVICE_UNAVAILABLE); // a lost device, ...
    (fault.unwrap_or(StatusCode::BAD_REQUEST), e.to_string())
}

async fn chat(State(batcher): State<Arc<Batcher>>, question: String) -> Result<Body, Refusal> {
    let mut ticket = batcher
        .submit(&[Message::user(question)], Request::default())
        .map_err(refusal)?;
    // If the client closes the connection, the ticket is dropped, which ends the request.
    let pieces = poll_fn(move |cx| ticket.poll_next(cx));
    Ok(Body::from_stream(pieces.map_ok(|piece| piece.text)))
}

fn app(batcher: Batcher) -> Router {
    Router::new()
        .route("/chat", post(chat))
        .with_state(Arc::new(batcher))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = std::env::args().nth(1).ok_or("usage: server MODEL")?;
    let model = transformer_lite_convert::load(model, &LoadOptions::default())?;
    let batcher = Batcher::from_model(model, &BatchOptions::default())?;
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    axum::serve(listener, app(batcher)).await?;
    Ok(())
}

#[cfg(test)]
mod tests;
