//! Requests over HTTP, with the model in `TLITE_TEST_MODEL_DIR/e0m4`.

use super::*;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;

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

#[tokio::test]
async fn clients_get_their_answers_at_the_same_time() {
    let models = std::env::var("TLITE_TEST_MODEL_DIR").expect("names the folder of test models");
    let model = Path::new(&models).join("e0m4");
    let model = transformer_lite_convert::load(model, &LoadOptions::default()).unwrap();
    let batcher = Batcher::from_model(model, &BatchOptions::default()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app(batcher)).await });
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
