//! Requests to the routes of a tiny model that says letters.

use super::listen::{Address, server};
use super::{Engine, ModelSource, ServeOptions, app};
use crate::wire::Limits;
use axum::Router;
use axum::body::Body;
use http::{Request, StatusCode, header};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tlite_testing::speaking_model;
use tower::ServiceExt;
use transformer_lite::{
    BackendChoice, BackendKind, BatchOptions, Batcher, Codec, LoadOptions, ModelFolder, Placement,
};

/// A server of the models `names`, which are all the same.
struct Service {
    app: Router,
    _dir: tempfile::TempDir,
}

fn engine(folder: &Path, batch: &BatchOptions) -> transformer_lite::Result<Engine> {
    let folder = ModelFolder::open(folder)?;
    let mut codec = Codec::load(folder.clone())?;
    codec.set_plain_messages(true);
    let options = LoadOptions {
        place: Placement {
            backend: BackendChoice::On(BackendKind::Cpu),
            ..Placement::default()
        },
        ..LoadOptions::default()
    };
    let batcher = Batcher::with_codec(&folder, Arc::new(codec), &options, batch)?;
    Ok(Engine { batcher, folder })
}

impl Service {
    fn of(names: &[&str], options: ServeOptions, batch: BatchOptions) -> Self {
        let (dir, folder) = speaking_model();
        let source = |name: &&str| {
            let (folder, batch): (PathBuf, BatchOptions) = (folder.clone(), batch.clone());
            ModelSource {
                id: (*name).to_owned(),
                load: Box::new(move || engine(&folder, &batch)),
                report: None,
            }
        };
        let address = Address::Tcp(([127, 0, 0, 1], 8080).into());
        let server = server(&address, names.iter().map(source).collect(), options);
        Self {
            app: app(Arc::new(server)),
            _dir: dir,
        }
    }

    fn new() -> Self {
        Self::of(
            &["tiny", "other"],
            ServeOptions::default(),
            BatchOptions::default(),
        )
    }

    /// The status and the body of a response.
    async fn send(&self, request: Request<Body>) -> (StatusCode, String) {
        let response = self.app.clone().oneshot(request).await.unwrap();
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), usize::MAX)
            .await
            .unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    async fn get(&self, path: &str) -> (StatusCode, Value) {
        let request = Request::get(path).header("host", "localhost:8080");
        let (status, body) = self.send(request.body(Body::empty()).unwrap()).await;
        (status, serde_json::from_str(&body).unwrap_or(Value::String(body)))
    }

    async fn post(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        let (status, text) = self.send(post(path, body.to_string())).await;
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    async fn events(&self, path: &str, body: &Value) -> Vec<Value> {
        let (status, text) = self.send(post(path, body.to_string())).await;
        assert_eq!(status, StatusCode::OK, "{text}");
        let mut events: Vec<&str> = text.split("\n\n").filter(|e| !e.is_empty()).collect();
        assert_eq!(events.pop(), Some("data: [DONE]"));
        let data = |event: &str| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
        events.into_iter().map(data).collect()
    }
}

fn post(path: &str, body: impl Into<Body>) -> Request<Body> {
    Request::post(path)
        .header("host", "localhost:8080")
        .header(header::CONTENT_TYPE, "application/json")
        .body(body.into())
        .unwrap()
}

const CHAT: &str = "/v1/chat/completions";

fn chat(more: &Value) -> Value {
    let mut body =
        json!({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "temperature": 0});
    let fields = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(fields);
    body
}

#[tokio::test]
async fn a_chat_is_answered_whole_and_in_events() {
    let service = Service::new();
    let (status, whole) = service.post(CHAT, &chat(&json!({"model": "tiny"}))).await;
    assert_eq!(status, StatusCode::OK, "{whole}");
    assert_eq!(
        (
            &whole["object"],
            &whole["model"],
            &whole["choices"][0]["finish_reason"]
        ),
        (&json!("chat.completion"), &json!("tiny"), &json!("length"))
    );
    let text = whole["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(text.len(), 8, "{text}");
    assert_eq!(whole["usage"]["completion_tokens"], 8);
    let sum = whole["usage"]["prompt_tokens"].as_u64().unwrap() + 8;
    assert_eq!(whole["usage"]["total_tokens"], sum);

    let stream = chat(&json!({"stream": true, "stream_options": {"include_usage": true}}));
    let events = service.events(CHAT, &stream).await;
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    let pieces = events
        .iter()
        .filter_map(|e| e["choices"][0]["delta"]["content"].as_str());
    assert_eq!(pieces.collect::<String>(), text);
    let reasons: Vec<&Value> = events
        .iter()
        .map(|e| &e["choices"][0]["finish_reason"])
        .filter(|r| !r.is_null())
        .collect();
    assert_eq!(reasons, ["length"]);
    let last = events.last().unwrap();
    assert_eq!(last["choices"], json!([]));
    // The second time, the prompt comes from the cache.
    assert_eq!(last["usage"]["total_tokens"], sum);
    assert!(events.iter().all(|e| e["id"] == events[0]["id"]));
}

#[tokio::test]
async fn several_answers_differ_by_their_seeds_and_repeat_with_them() {
    let service = Service::new();
    let body = chat(&json!({"n": 3, "temperature": 1.5, "seed": 7, "top_k": 0, "max_tokens": 24}));
    let texts = |answer: &Value| -> Vec<String> {
        let choices = answer["choices"].as_array().unwrap();
        let text = |c: &Value| c["message"]["content"].as_str().unwrap().to_owned();
        choices.iter().map(text).collect()
    };
    let (_, first) = service.post(CHAT, &body).await;
    let (_, second) = service.post(CHAT, &body).await;
    let all = texts(&first);
    assert_eq!(all, texts(&second));
    assert!(all[0] != all[1] && all[1] != all[2], "{all:?}");
    assert_eq!(first["usage"]["completion_tokens"], 72);
}

#[tokio::test]
async fn stop_strings_log_probabilities_and_biases_count() {
    let service = Service::new();
    let (_, plain) = service
        .post(CHAT, &chat(&json!({"logprobs": true, "top_logprobs": 3})))
        .await;
    let tokens = plain["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(tokens.len(), 8);
    let first = &tokens[0];
    assert_eq!(first["top_logprobs"].as_array().unwrap().len(), 3);
    assert_eq!(first["token"], first["top_logprobs"][0]["token"]);
    assert_eq!(first["logprob"], first["top_logprobs"][0]["logprob"]);
    let letter = first["token"].as_str().unwrap();
    assert_eq!(first["bytes"], json!(letter.as_bytes()));
    let text = plain["choices"][0]["message"]["content"].as_str().unwrap();

    let (_, stopped) = service.post(CHAT, &chat(&json!({"stop": [&text[2..4]]}))).await;
    let choice = &stopped["choices"][0];
    let at = text.find(&text[2..4]).unwrap();
    assert_eq!(
        (&choice["message"]["content"], &choice["finish_reason"]),
        (&json!(text[..at]), &json!("stop"))
    );

    let (_, tokens) = service.post("/tokenize", &json!({"content": letter})).await;
    let id = tokens["tokens"].as_array().unwrap().last().unwrap().to_string();
    let mut bias = serde_json::Map::new();
    bias.insert(id, json!(-100));
    let (_, biased) = service.post(CHAT, &chat(&json!({"logit_bias": bias}))).await;
    let other = biased["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(!other.contains(letter), "{letter}: {other}");
}

#[tokio::test]
async fn schemas_and_grammars_hold() {
    let service = Service::new();
    let id = "7f9c2ba4-e88f-827d-6160-5507605853ed";
    let format = json!({"type": "json_schema", "json_schema": {"name": "id", "schema": {"const": id}}});
    let (_, made) = service
        .post(
            CHAT,
            &chat(&json!({"response_format": format, "max_tokens": 200})),
        )
        .await;
    let choice = &made["choices"][0];
    assert_eq!(
        (&choice["message"]["content"], &choice["finish_reason"]),
        (&json!(format!("\"{id}\"")), &json!("stop"))
    );
    let (_, made) = service
        .post(CHAT, &chat(&json!({"grammar": "root ::= \"x\" [0-9] \"y\"\n"})))
        .await;
    let text = made["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(
        text.starts_with('x') && text.ends_with('y') && text.len() == 3,
        "{text}"
    );
    for wrong in [
        json!({"grammar": "root ::= ("}),
        json!({"response_format": {"type": "json_schema"}}),
        json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}}),
        json!({"response_format": {"type": "xml"}}),
    ] {
        let (status, error) = service.post(CHAT, &chat(&wrong)).await;
        let field = wrong.as_object().unwrap().keys().next().unwrap();
        let param = error["error"]["param"].as_str().unwrap();
        assert_eq!(
            (status, param.split('.').next().unwrap()),
            (StatusCode::BAD_REQUEST, field.as_str())
        );
    }
}

#[tokio::test]
async fn a_last_message_can_be_continued() {
    let service = Service::new();
    let (_, whole) = service.post(CHAT, &chat(&json!({}))).await;
    let text = whole["choices"][0]["message"]["content"].as_str().unwrap();
    let body = chat(&json!({
        "messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": &text[..3]}],
        "continue_final_message": true, "add_generation_prompt": false, "max_tokens": 5,
    }));
    let (_, rest) = service.post(CHAT, &body).await;
    assert_eq!(rest["choices"][0]["message"]["content"], text[3..]);
}

#[tokio::test]
async fn completions_take_texts_and_tokens() {
    let service = Service::new();
    let path = "/v1/completions";
    let body = json!({"prompt": ["ab", "cd"], "max_tokens": 4, "temperature": 0, "logprobs": 2});
    let (status, made) = service.post(path, &body).await;
    assert_eq!(status, StatusCode::OK, "{made}");
    let choices = made["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 2);
    assert_eq!(choices[1]["logprobs"]["text_offset"], json!([0, 1, 2, 3]));
    assert_eq!(choices[1]["logprobs"]["tokens"].as_array().unwrap().len(), 4);
    let (_, tokens) = service
        .post("/tokenize", &json!({"content": "cd", "add_special": true}))
        .await;
    let body = json!({"prompt": tokens["tokens"], "max_tokens": 4, "temperature": 0, "stream": true});
    let events = service.events(path, &body).await;
    let text: String = events
        .iter()
        .filter_map(|e| e["choices"][0]["text"].as_str())
        .collect();
    assert_eq!(text, choices[1]["text"].as_str().unwrap());
    let (_, text) = service
        .post("/detokenize", &json!({"tokens": tokens["tokens"]}))
        .await;
    assert_eq!(text["content"], "cd");
}

#[tokio::test]
async fn what_is_wrong_is_named_by_its_field() {
    let service = Service::new();
    let limits = Limits::default();
    for (more, param, status) in [
        (json!({"model": "none"}), "model", 404),
        (json!({"model": "/etc/passwd"}), "model", 404),
        (json!({"messages": []}), "messages", 400),
        (
            json!({"messages": [{"role": "user"}]}),
            "messages[0].content",
            400,
        ),
        (
            json!({"messages": [{"role": "king", "content": "x"}]}),
            "messages[0].role",
            400,
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
            "messages[0].content[0].type",
            400,
        ),
        (json!({"temperature": -1}), "temperature", 400),
        (json!({"temperature": "hot"}), "temperature", 400),
        (json!({"top_p": 7}), "top_p", 400),
        (json!({"n": 0}), "n", 400),
        (json!({"n": limits.n + 1}), "n", 400),
        (json!({"stop": vec!["x"; limits.stops + 1]}), "stop", 400),
        (json!({"stop": [""]}), "stop", 400),
        (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs", 400),
        (json!({"top_logprobs": 2}), "top_logprobs", 400),
        (json!({"logit_bias": {"x": 1}}), "logit_bias.x", 400),
        (json!({"logit_bias": {"5": 101}}), "logit_bias.5", 400),
        (json!({"audio": {"voice": "x"}}), "audio", 400),
    ] {
        let (found, error) = service.post(CHAT, &chat(&more)).await;
        assert_eq!(
            (found.as_u16(), &error["error"]["param"]),
            (status, &json!(param)),
            "{more}: {error}"
        );
    }
    let (status, error) = service
        .post(
            CHAT,
            &chat(&json!({"messages": [{"role": "user", "content": "x ".repeat(5000)}]})),
        )
        .await;
    assert_eq!(
        (status.as_u16(), &error["error"]["code"]),
        (400, &json!("context_length_exceeded"))
    );
    let (status, _) = service
        .post(
            CHAT,
            &chat(&json!({"messages": [{"role": "user", "content": "refuse"}]})),
        )
        .await;
    assert_eq!(status.as_u16(), 400);
}

#[tokio::test]
async fn bodies_that_are_no_requests_are_refused() {
    let service = Service::new();
    let deep = "[".repeat(100_000);
    for body in [
        "",
        "{",
        "[]",
        "nonsense",
        "{\"messages\": 1}",
        "{} {}",
        deep.as_str(),
    ] {
        let (status, text) = service.send(post(CHAT, body.to_owned())).await;
        assert_eq!(status.as_u16(), 400, "{text}");
    }
    let (status, _) = service.send(post(CHAT, vec![0xff, 0xfe])).await;
    assert_eq!(status.as_u16(), 400);
    let (status, _) = service.send(post(CHAT, vec![b' '; (8 << 20) + 1])).await;
    assert_eq!(status.as_u16(), 413);
    let mut form = post(CHAT, "{}");
    form.headers_mut().remove(header::CONTENT_TYPE);
    assert_eq!(service.send(form).await.0.as_u16(), 415);
    let (status, error) = service.get(CHAT).await;
    assert_eq!((status.as_u16(), error["error"].is_object()), (405, true));
    let (status, error) = service.get("/nothing").await;
    assert_eq!((status.as_u16(), error["error"].is_object()), (404, true));
}

#[tokio::test]
async fn models_are_listed_and_loaded_when_they_are_named() {
    let service = Service::new();
    let (_, list) = service.get("/v1/models").await;
    let names: Vec<&Value> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| &m["id"])
        .collect();
    assert_eq!(names, ["tiny", "other"]);
    assert_eq!(service.get("/v1/models/other").await.0.as_u16(), 200);
    assert_eq!(service.get("/v1/models/none").await.0.as_u16(), 404);
    let (_, made) = service.post(CHAT, &chat(&json!({"model": "other"}))).await;
    assert_eq!(made["model"], "other");
    let (_, card) = service.get("/tlite/model?model=other").await;
    assert_eq!((&card["id"], &card["backend"]), (&json!("other"), &json!("cpu")));
    assert_eq!(service.get("/health").await.0.as_u16(), 200);
    let (status, figures) = service.get("/metrics").await;
    let figures = figures.as_str().unwrap();
    assert_eq!(status.as_u16(), 200);
    for line in [
        "tlite_generated_tokens_total 8",
        "tlite_requests_total{route=\"/v1/chat/completions\",code=\"200\"} 1",
        "tlite_answers_total{why=\"Complete\"} 1",
        "tlite_queue_length{model=\"other\"} 0",
    ] {
        assert!(figures.contains(line), "{line} is not in\n{figures}");
    }
    let (_, prompt) = service.post("/apply-template", &chat(&json!({}))).await;
    assert!(prompt["prompt"].as_str().unwrap().ends_with("hello"), "{prompt}");
}

#[tokio::test]
async fn keys_hosts_and_origins_are_checked() {
    let keys = vec!["first".to_owned(), "second".to_owned()];
    let options = ServeOptions {
        keys,
        ..ServeOptions::default()
    };
    let service = Service::of(&["tiny"], options, BatchOptions::default());
    let models = |name: &'static str, value: &'static str| {
        let request = Request::get("/v1/models").header("host", "example.org");
        request.header(name, value).body(Body::empty()).unwrap()
    };
    for (name, value, status) in [
        ("authorization", "Bearer second", 200),
        ("x-api-key", "first", 200),
        ("authorization", "Bearer third", 401),
        ("authorization", "Bearer ", 401),
        ("authorization", "first", 401),
        ("accept", "*/*", 401),
    ] {
        let (found, text) = service.send(models(name, value)).await;
        assert_eq!(found.as_u16(), status, "{name}: {value}: {text}");
    }
    assert_eq!(service.get("/health").await.0.as_u16(), 200);
    assert_eq!(service.get("/").await.0.as_u16(), 200);
    assert_eq!(service.get("/nothing").await.0.as_u16(), 401);

    let options = ServeOptions {
        origins: vec!["http://app.test".to_owned()],
        ..ServeOptions::default()
    };
    let service = Service::of(&["tiny"], options, BatchOptions::default());
    for (host, origin, status) in [
        ("localhost:8080", None, 200),
        ("127.0.0.1:8080", Some("http://127.0.0.1:8080"), 200),
        ("[::1]:8080", None, 200),
        ("attacker.test:8080", None, 403),
        ("localhost:8080", Some("http://attacker.test"), 403),
        ("localhost:8080", Some("null"), 403),
        ("localhost:8080", Some("http://app.test"), 200),
    ] {
        let mut request = Request::get("/v1/models").header("host", host);
        if let Some(origin) = origin {
            request = request.header("origin", origin);
        }
        let (found, text) = service.send(request.body(Body::empty()).unwrap()).await;
        assert_eq!(found.as_u16(), status, "{host} {origin:?}: {text}");
    }
    let asks = Request::options(CHAT)
        .header("host", "localhost")
        .header("origin", "http://app.test");
    let response = service
        .app
        .clone()
        .oneshot(asks.body(Body::empty()).unwrap())
        .await
        .unwrap();
    assert_eq!(
        response.headers()[header::ACCESS_CONTROL_ALLOW_ORIGIN],
        "http://app.test"
    );
}

#[tokio::test]
async fn requests_beyond_the_queue_are_refused() {
    let batch = BatchOptions {
        sequences: 1,
        queue: 1,
        ..BatchOptions::default()
    };
    let service = Service::of(&["tiny"], ServeOptions::default(), batch);
    let (status, error) = service
        .post(CHAT, &chat(&json!({"n": 8, "max_tokens": 400})))
        .await;
    assert_eq!(
        (status.as_u16(), &error["error"]["code"]),
        (503, &json!("queue_full")),
        "{error}"
    );
    // Those that were accepted are cancelled.
    let (status, answer) = service.post(CHAT, &chat(&json!({}))).await;
    assert_eq!(status.as_u16(), 200, "{answer}");
}

#[tokio::test]
async fn all_routes_are_described() {
    let service = Service::new();
    let (_, document) = service.get("/openapi.json").await;
    let paths = document["paths"].as_object().unwrap();
    for (path, item) in paths {
        for (method, operation) in item.as_object().unwrap() {
            let responses = operation["responses"].as_object().unwrap();
            assert!(
                responses.contains_key("200") && responses.contains_key("503"),
                "{method} {path}"
            );
        }
    }
    assert!(paths.contains_key(CHAT) && paths.len() >= 10, "{paths:?}");
}

#[tokio::test]
async fn anthropics_form_has_blocks() {
    let service = Service::new();
    let path = "/v1/messages";
    let body = json!({
        "model": "tiny", "max_tokens": 8, "temperature": 0, "system": [{"type": "text", "text": "hi"}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
    });
    let (status, whole) = service.post(path, &body).await;
    assert_eq!(status, StatusCode::OK, "{whole}");
    let text = whole["content"][0]["text"].as_str().unwrap();
    assert_eq!((text.len(), &whole["stop_reason"]), (8, &json!("max_tokens")));
    assert_eq!(whole["usage"]["output_tokens"], 8);
    let with = |name: &str, value: Value| {
        let mut body = body.clone();
        body[name] = value;
        body
    };
    let (_, stopped) = service
        .post(path, &with("stop_sequences", json!([&text[3..5]])))
        .await;
    assert_eq!(
        (&stopped["stop_reason"], &stopped["stop_sequence"]),
        (&json!("stop_sequence"), &json!(&text[3..5]))
    );
    let (_, count) = service.post("/v1/messages/count_tokens", &body).await;
    assert!(count["input_tokens"].as_u64().unwrap() > 2, "{count}");

    let (status, events) = service
        .send(post(path, with("stream", json!(true)).to_string()))
        .await;
    assert_eq!(status, StatusCode::OK);
    let data = |line: &str| -> Value { serde_json::from_str(line.strip_prefix("data: ").unwrap()).unwrap() };
    let events: Vec<Value> = events
        .lines()
        .filter(|l| l.starts_with("data: "))
        .map(data)
        .collect();
    let kinds: Vec<&str> = events.iter().map(|e| e["type"].as_str().unwrap()).collect();
    let ends = ["message_start", "content_block_start"];
    assert_eq!(kinds[..2], ends);
    assert_eq!(
        kinds[kinds.len() - 3..],
        ["content_block_stop", "message_delta", "message_stop"]
    );
    let pieces = events.iter().filter_map(|e| e["delta"]["text"].as_str());
    assert_eq!(pieces.collect::<String>(), text);

    for (name, value) in [
        ("max_tokens", Value::Null),
        ("messages", json!([{"role": "king", "content": "x"}])),
        (
            "messages",
            json!([{"role": "user", "content": [{"type": "image"}]}]),
        ),
    ] {
        let (status, error) = service.post(path, &with(name, value)).await;
        assert_eq!(
            (status.as_u16(), &error["type"]),
            (400, &json!("error")),
            "{name}: {error}"
        );
    }
}

#[tokio::test]
async fn the_page_is_served_whole_and_once() {
    let service = Service::new();
    let request = |path: &str, tag: &str| {
        let request = Request::get(path)
            .header("host", "localhost")
            .header("if-none-match", tag);
        service.app.clone().oneshot(request.body(Body::empty()).unwrap())
    };
    for path in ["/", "/app.js", "/app.css", "/report.js", "/NOTICES"] {
        let response = request(path, "").await.unwrap();
        let headers = response.headers().clone();
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        let policy = headers[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(
            policy.contains("default-src 'self'") && !policy.contains("unsafe"),
            "{policy}"
        );
        let again = request(path, headers[header::ETAG].to_str().unwrap())
            .await
            .unwrap();
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED, "{path}");
    }
}
