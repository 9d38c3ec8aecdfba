//! Requests over HTTP, with the model in `TLITE_TEST_MODEL_DIR/e0m4`.

use super::*;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Instant;
use transformer_lite::{ErrorKind, Stage};

/// Asks over a new connection, and reads at most `most` bytes of the response.
fn ask(server: SocketAddr, question: &str, most: u64) -> String {
    let mut stream = TcpStream::connect(server).unwrap();
    let length = question.len();
    write!(
        stream,
        "POST /chat HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{question}"
    )
    .unwrap();
    let mut response = String::new();
    stream.take(most).read_to_string(&mut response).unwrap();
    response
}

/// The address of a server with the test model.
async fn server(options: &BatchOptions) -> SocketAddr {
    let models = std::env::var("TLITE_TEST_MODEL_DIR").expect("names the folder of test models");
    let model = Path::new(&models).join("e0m4");
    let model = transformer_lite_convert::load(model, &LoadOptions::default()).unwrap();
    let batcher = Batcher::from_model(model, options).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app(batcher)).await });
    server
}

#[test]
fn errors_that_a_client_cannot_fix_are_503() {
    let lost = Error::other(Stage::Run, "the device is lost").of_kind(ErrorKind::DeviceLost);
    assert_eq!(refusal(lost).0, StatusCode::SERVICE_UNAVAILABLE);
    let long = Error::usage("prompt", "too long").of_kind(ErrorKind::ContextExceeded);
    assert_eq!(refusal(long).0, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_request_ends_when_its_client_leaves() {
    // One request at a time: the next one waits for the end of the last.
    let options = BatchOptions {
        sequences: 1,
        ..BatchOptions::default()
    };
    let server = server(&options).await;
    let timed = |most| {
        tokio::task::spawn_blocking(move || {
            let start = Instant::now();
            let response = ask(server, "Write a long story about the sea.", most);
            assert!(response.starts_with("HTTP/1.1 200"), "{response}");
            start.elapsed()
        })
    };
    let whole = timed(u64::MAX).await.unwrap();
    let begun = timed(200).await.unwrap();
    let next = timed(200).await.unwrap();
    assert!(begun + next < whole * 3 / 4, "{begun:?}, {next:?}, {whole:?}");
}

#[tokio::test]
async fn clients_get_their_answers_at_the_same_time() {
    let server = server(&BatchOptions::default()).await;
    let question = "What is the capital of France?";
    // The first one leaves early.
    let clients =
        [20, u64::MAX, u64::MAX].map(|most| tokio::task::spawn_blocking(move || ask(server, question, most)));
    let mut responses = Vec::new();
    for client in clients {
        responses.push(client.await.unwrap());
    }
    assert!(responses[0].starts_with("HTTP/1.1 200"), "{}", responses[0]);
    for response in &responses[1..] {
        assert!(
            response.starts_with("HTTP/1.1 200") && response.contains("Paris"),
            "{response}"
        );
    }
    let long = "word ".repeat(20_000);
    let refused = tokio::task::spawn_blocking(move || ask(server, &long, u64::MAX))
        .await
        .unwrap();
    assert!(refused.starts_with("HTTP/1.1 400"), "{refused}");
}
