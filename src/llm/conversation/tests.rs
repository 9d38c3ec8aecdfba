//! Conversations with a fake model, whose tokens are bytes, 256 `<start>` and 257 `<end>`.

use super::*;
use crate::llm::testing::{FakeModel, Lent, byte_codec};
use crate::llm::{Cancel, StopStrings};
use crate::testing::assert_error;
use serde_json::json;

const TEMPLATE: &str = "{% for t in tools or [] %}{{ t }}{% endfor %}\
                        {% for m in messages %}{{ m.role[0] }}:{{ m.content }}<end>{% endfor %}\
                        {% if add_generation_prompt %}a:{% endif %}";

struct Talk {
    conversation: Conversation,
    lent: Lent,
    _dir: tempfile::TempDir,
}

/// A conversation with `model` after the instructions `system`.
fn talk(mut model: FakeModel, system: Option<&str>) -> Talk {
    let lent = Lent::of(&mut model);
    let (dir, codec) = byte_codec("{}");
    std::fs::write(dir.path().join("chat_template.jinja"), TEMPLATE).unwrap();
    let session = Session::new(Box::new(lent.clone()), Arc::new(codec));
    let instructions = system.map(Message::system).into_iter().collect();
    Talk {
        conversation: Conversation::new(session, instructions),
        lent,
        _dir: dir,
    }
}

fn tokens(max_tokens: usize) -> GenerateOptions {
    GenerateOptions {
        max_tokens,
        ..GenerateOptions::default()
    }
}

impl Talk {
    /// The answer to `text`, and how many messages were forgotten.
    fn ask(&mut self, text: &str) -> Result<(String, usize)> {
        let mut reply = self.conversation.send(Message::user(text), &tokens(8))?;
        Ok((reply.text()?, reply.forgotten()))
    }

    /// What the model was called with, and what its cache holds.
    fn model(&self) -> FakeModel {
        let mut model = FakeModel::new(1, 1, |_| 0);
        self.lent.give_back(&mut model);
        model
    }
}

fn bytes(text: &str) -> Vec<u32> {
    text.replace("<end>", "\u{1}")
        .bytes()
        .map(|b| if b == 1 { 257 } else { u32::from(b) })
        .collect()
}

/// Says `ok` and ends the turn.
fn polite(context: usize) -> FakeModel {
    FakeModel::new(258, context, |cache| match cache {
        [.., 0x3a] => u32::from(b'o'),
        [.., 0x6f] => u32::from(b'k'),
        _ => 257,
    })
}

/// Says `o`, a token without text, and `k`: other tokens than those of `ok`.
fn odd() -> FakeModel {
    FakeModel::new(258, 1000, |cache| match cache {
        [.., 0x3a] => u32::from(b'o'),
        [.., 0x6f] => 256,
        [.., 256] => u32::from(b'k'),
        _ => 257,
    })
}

fn fed_in_twenty_turns(model: &FakeModel) {
    let fed: Vec<&Vec<u32>> = model.calls.iter().filter(|c| c.len() > 1).collect();
    assert_eq!(fed.len(), 20);
    for (i, fed) in fed.iter().enumerate() {
        let before = if i == 0 { "s:be kind<end>" } else { "<end>" };
        assert_eq!(**fed, bytes(&format!("{before}u:message {i}<end>a:")), "turn {i}");
    }
    let all: usize = model.calls.iter().map(Vec::len).sum();
    assert_eq!(all, model.cache.len(), "nothing was fed twice");
}

#[test]
fn twenty_turns_feed_what_is_new() {
    let mut t = talk(odd(), Some("be kind"));
    for i in 0..20 {
        assert_eq!(t.ask(&format!("message {i}")).unwrap(), ("ok".to_owned(), 0));
    }
    assert_eq!(t.conversation.messages().len(), 41);
    fed_in_twenty_turns(&t.model());
}

/// The same for callers that keep the messages themselves.
#[test]
fn messages_may_be_kept_elsewhere() {
    let mut t = talk(odd(), None);
    let mut messages = vec![Message::system("be kind")];
    for i in 0..20 {
        messages.push(Message::user(format!("message {i}")));
        let mut reply = t.conversation.answer(messages.clone(), &tokens(8)).unwrap();
        messages.push(Message::assistant(reply.text().unwrap()));
    }
    assert_eq!(t.conversation.messages(), messages);
    fed_in_twenty_turns(&t.model());
}

#[test]
fn an_answer_keeps_its_tokens() {
    // It is half a character, which its text would not be encoded to.
    let half = |cache: &[u32]| if cache.last() == Some(&0xc3) { 257 } else { 0xc3 };
    let mut t = talk(FakeModel::new(258, 100, half), Some("s"));
    for question in ["a", "b"] {
        assert_eq!(t.ask(question).unwrap().0, "\u{fffd}");
    }
    let model = t.model();
    let [first, one, second, _] = model.calls.as_slice() else {
        panic!("{:?}", model.calls)
    };
    assert_eq!((first, one), (&bytes("s:s<end>u:a<end>a:"), &vec![0xc3]));
    assert_eq!(second, &bytes("<end>u:b<end>a:"));
}

#[test]
fn a_cut_answer_is_encoded_anew() {
    let mut t = talk(polite(100), None);
    let stopping = GenerateOptions {
        stop: StopStrings::new(vec!["k".to_owned()]).unwrap(),
        ..tokens(8)
    };
    let mut reply = t.conversation.send(Message::user("hi"), &stopping).unwrap();
    assert_eq!(reply.text().unwrap(), "o");
    drop(reply);
    assert_eq!(t.ask("you").unwrap().0, "ok");
    let model = t.model();
    assert_eq!(model.cache, bytes("u:hi<end>a:o<end>u:you<end>a:ok"));
}

#[test]
fn an_answer_may_be_left() {
    let mut t = talk(polite(100), None);
    let mut reply = t.conversation.send(Message::user("hi"), &tokens(8)).unwrap();
    assert_eq!(reply.next().unwrap().unwrap().text, "o");
    drop(reply);
    assert_eq!(
        t.conversation.messages(),
        [Message::user("hi"), Message::assistant("o")]
    );
    let cancelled = GenerateOptions {
        cancel: Cancel::default(),
        ..tokens(8)
    };
    cancelled.cancel.cancel();
    let before = t.conversation.messages().to_vec();
    let error = t
        .conversation
        .send(Message::user("you"), &cancelled)
        .err()
        .unwrap();
    assert_eq!(error.kind(), ErrorKind::Interrupted);
    assert_eq!(t.conversation.messages(), before);
}

#[test]
fn a_message_cancelled_before_the_first_token_leaves() {
    let mut t = talk(polite(100), None);
    t.ask("hi").unwrap();
    let before = t.conversation.messages().to_vec();
    let cancel = Cancel::default();
    let mut reply = t
        .conversation
        .send(
            Message::user("you"),
            &GenerateOptions {
                cancel: cancel.clone(),
                ..tokens(8)
            },
        )
        .unwrap();
    cancel.cancel();
    assert_eq!(
        (reply.text().unwrap().as_str(), reply.finish()),
        ("", Some(Finish::Cancelled))
    );
    drop(reply);
    assert_eq!(t.conversation.messages(), before);
    assert_eq!(t.ask("you").unwrap().0, "ok");
}

#[test]
fn clear_keeps_the_instructions_only() {
    let mut t = talk(polite(100), Some("s"));
    t.ask("hi").unwrap();
    t.conversation.clear();
    assert_eq!(t.conversation.messages(), [Message::system("s")]);
    t.ask("hi").unwrap();
    assert_eq!(t.model().calls[3], bytes("s:s<end>u:hi<end>a:"));
}

#[test]
fn a_conversation_that_is_too_long_is_told_from_a_message() {
    let mut t = talk(polite(20), None);
    t.ask("hi").unwrap();
    let e = t.ask("abcdefghij").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::ContextExceeded);
    for value in ["conversation", "25", "20"] {
        assert!(e.to_string().contains(value), "{e}");
    }
}

#[test]
fn a_full_context_is_an_error_and_the_message_not_said() {
    let mut t = talk(polite(14), None);
    t.ask("hi").unwrap();
    let e = t.ask("abcdefghij").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::ContextExceeded);
    for value in ["message", "15", "14"] {
        assert!(e.to_string().contains(value), "{e}");
    }
    assert_eq!(t.conversation.messages().len(), 2);
    t.conversation.clear();
    t.ask("yo").unwrap();
    assert_eq!(t.model().cache, bytes("u:yo<end>a:ok"));
}

#[test]
fn a_failure_takes_the_question_back() {
    let mut model = polite(100);
    model.fail_at = Some(1);
    let mut t = talk(model, Some("s"));
    assert!(t.ask("hi").is_err());
    assert_eq!(t.conversation.messages(), [Message::system("s")]);
}

#[test]
fn a_full_context_slides_on_request() {
    // Room for two turns and an answer.
    let mut t = talk(polite(40), Some("s"));
    t.conversation.set_slides(true);
    let forgotten = ["one", "two", "six", "ten"].map(|q| t.ask(q).unwrap().1);
    assert_eq!(forgotten, [0, 0, 2, 2]);
    let turn = |q: &str| format!("u:{q}<end>a:ok<end>");
    let last = bytes(&format!("s:s<end>{}u:ten<end>a:ok", turn("six")));
    assert_eq!(t.model().cache, last, "the instructions stay");

    // A turn goes with what tools said in it, also where the caller keeps the messages.
    let mut t = talk(polite(40), None);
    t.conversation.set_slides(true);
    let mut messages = vec![
        Message::user("one and a half"),
        Message::assistant("f()"),
        Message::tool("f", "7"),
        Message::assistant("7"),
        Message::user("two"),
    ];
    for forgotten in [4, 6] {
        let mut reply = t.conversation.answer(messages.clone(), &tokens(8)).unwrap();
        assert_eq!(reply.forgotten(), forgotten);
        messages.push(Message::assistant(reply.text().unwrap()));
        messages.push(Message::user("the third question"));
    }

    // An answer that does not end slides in its middle: the instructions stay.
    let mut t = talk(
        FakeModel::new(258, 20, |cache| (cache.last().unwrap() % 26) + 65),
        Some("s"),
    );
    t.conversation.set_slides(true);
    let mut reply = t
        .conversation
        .send(Message::user("hi there"), &tokens(8))
        .unwrap();
    assert_eq!(reply.text().unwrap().len(), 8);
    assert!(reply.metrics().forgotten > 0);
    drop(reply);
    let e = t.ask(&"x".repeat(30)).unwrap_err();
    assert_error(&e, ErrorKind::ContextExceeded, &["20"]);
    assert!(t.model().cache.starts_with(&bytes("s:s<end>u:")));
}

#[test]
fn tools_are_asked_and_answer() {
    let mut t = talk(polite(100), None);
    let mut options = tokens(8);
    options.template_values.insert("tools".to_owned(), json!(["f"]));
    for message in [Message::user("hi"), Message::tool("f", "7")] {
        let mut reply = t.conversation.send(message, &options).unwrap();
        assert_eq!(reply.text().unwrap(), "ok");
    }
    let model = t.model();
    assert_eq!(model.cache, bytes("fu:hi<end>a:ok<end>t:7<end>a:ok"));
    assert_eq!(model.calls[3], bytes("<end>t:7<end>a:"));
}
