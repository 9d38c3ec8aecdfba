//! Sessions with a fake model, which has the two methods that a model needs.

use super::*;
use crate::error::ErrorKind;
use crate::llm::testing::{FakeModel, Lent, byte_codec};
use crate::llm::{Message, NgramDraft, Speculation};
use crate::testing::{assert_carries, assert_usage};

/// A session with the model, whose tokens are bytes, 256 `<start>` and 257 `<end>`.
struct Fake {
    session: Session,
    lent: Lent,
    _dir: tempfile::TempDir,
}

fn fake_with(mut model: FakeModel, config: &str) -> Fake {
    let lent = Lent::of(&mut model);
    let (dir, codec) = byte_codec(config);
    Fake {
        session: Session::new(Box::new(lent.clone()), Arc::new(codec)),
        lent,
        _dir: dir,
    }
}

fn fake(model: FakeModel) -> Fake {
    fake_with(model, "{}")
}

impl Fake {
    /// The model, back from the session.
    fn model(self) -> FakeModel {
        let mut model = FakeModel::new(1, 1, |_| 0);
        self.lent.give_back(&mut model);
        model
    }
}

/// Says `text` and the end token after a prompt of `start` tokens.
fn saying(text: &'static str, start: usize) -> FakeModel {
    FakeModel::new(258, 64, move |cache| {
        text.as_bytes()
            .get(cache.len() - start)
            .map_or(257, |b| u32::from(*b))
    })
}

fn options(max_tokens: usize, stop: &[&str]) -> GenerateOptions {
    GenerateOptions {
        max_tokens,
        stop: StopStrings::new(stop.iter().map(|s| (*s).to_owned()).collect()).unwrap(),
        ..GenerateOptions::default()
    }
}

/// The texts of all pieces, how many of them have a token, and why they end.
fn pieces(mut answer: Answer<'_>) -> (Vec<String>, usize, Option<Finish>) {
    let all: Vec<Piece> = answer.by_ref().map(Result::unwrap).collect();
    let tokens = all.iter().filter(|p| p.token.is_some()).count();
    let texts = all.into_iter().map(|p| p.text).filter(|t| !t.is_empty());
    (texts.collect(), tokens, answer.finish())
}

#[test]
fn models_and_sessions_go_between_threads() {
    fn sendable<T: Send>() {}
    fn shared<T: Send + Sync>() {}
    shared::<super::super::Model>();
    shared::<Cancel>();
    sendable::<Session>();
}

#[test]
fn text_comes_in_whole_characters() {
    let mut f = fake(saying("aé!", 2));
    let answer = f.session.generate([1, 2].as_slice(), &options(9, &[])).unwrap();
    let (texts, tokens, finish) = pieces(answer);
    assert_eq!(texts, ["a", "é", "!"]);
    assert_eq!((tokens, finish), (4, Some(Finish::Eos(257))));

    f.session.clear();
    let answer = f.session.generate([1, 2].as_slice(), &options(2, &[])).unwrap();
    let (texts, tokens, finish) = pieces(answer);
    assert_eq!(texts, ["a", "\u{fffd}"]);
    assert_eq!((tokens, finish), (2, Some(Finish::MaxTokens)));
}

#[test]
fn stop_strings_end_an_answer_wherever_tokens_are_cut() {
    let mut f = fake(saying("one</b></s>two", 1));
    let answer = f
        .session
        .generate([1].as_slice(), &options(20, &["</s>", "zzz"]))
        .unwrap();
    let (texts, tokens, finish) = pieces(answer);
    assert_eq!(texts, ["o", "n", "e", "</b", ">"]);
    assert_eq!(finish, Some(Finish::Stop));
    assert_eq!(tokens, 11, "the tokens of the stop string came, too");
    // The token that made it complete was not fed.
    assert_eq!(f.session.cached().len(), 11);
    assert_eq!(f.model().cache.len(), 11);

    let mut f = fake(saying("a<", 1));
    let answer = f
        .session
        .generate([1].as_slice(), &options(20, &["</s>"]))
        .unwrap();
    let (texts, _, finish) = pieces(answer);
    assert_eq!((texts.concat().as_str(), finish), ("a<", Some(Finish::Eos(257))));
}

#[test]
fn stop_strings_may_contain_special_tokens() {
    // `ab<start>`, half a character, `<start>c<end>`.
    let says = || {
        FakeModel::new(258, 64, |cache| {
            let says = [97, 98, 256, 0xc3, 256, 99];
            says.get(cache.len() - 1).copied().unwrap_or(257)
        })
    };
    for (stop, wanted, tokens, finish) in [
        ("<start>", "ab", 3, Finish::Stop),
        ("b<start>", "a", 3, Finish::Stop),
        ("\u{fffd}<start>", "ab", 5, Finish::Stop),
        ("<start><start>", "ab\u{fffd}c", 6, Finish::Eos(257)),
        ("c<end>", "ab\u{fffd}", 6, Finish::Stop),
        ("<end>", "ab\u{fffd}c", 6, Finish::Stop),
        ("bc", "ab\u{fffd}c", 6, Finish::Eos(257)),
    ] {
        let mut f = fake(says());
        let answer = f.session.generate([1].as_slice(), &options(20, &[stop])).unwrap();
        let (texts, count, found) = pieces(answer);
        assert_eq!(
            (texts.concat().as_str(), count, found),
            (wanted, tokens, Some(finish)),
            "{stop}"
        );
    }
}

#[test]
fn what_was_drafted_beyond_the_end_is_no_harm() {
    let mut f = fake(saying("abc abc abc abc.", 3));
    let draft = Speculation::fixed(Box::new(NgramDraft::default()), 4);
    f.session.speculate(Some(draft));
    let mut texts = Vec::new();
    for reused in [0, 2] {
        let mut answer = f
            .session
            .generate([1, 2, 3].as_slice(), &options(40, &["c abc."]))
            .unwrap();
        texts.push(answer.text().unwrap());
        assert!(answer.metrics().accepted > 3, "{:?}", answer.metrics());
        assert_eq!(answer.reused(), reused);
        drop(answer);
        assert_eq!(f.session.cached().len(), f.session.model.len());
    }
    assert_eq!(texts, ["abc abc ab"; 2]);
}

#[test]
fn an_answer_that_is_dropped_leaves_what_was_fed() {
    let mut f = fake(saying("abcdef", 1));
    let mut answer = f.session.generate([1].as_slice(), &options(20, &[])).unwrap();
    assert_eq!(answer.next().unwrap().unwrap().to_string(), "a");
    assert_eq!(answer.next().unwrap().unwrap().to_string(), "b");
    assert_eq!(answer.finish(), None);
    drop(answer);
    assert_eq!(f.session.cached(), [1, u32::from(b'a')]);
    let mut answer = f
        .session
        .generate(
            [1, u32::from(b'a'), u32::from(b'b')].as_slice(),
            &options(20, &[]),
        )
        .unwrap();
    assert_eq!((answer.reused(), answer.text().unwrap().as_str()), (2, "cdef"));
}

#[test]
fn prompts_are_texts_conversations_and_tokens() {
    let config =
        r#"{"chat_template": "{% for m in messages %}<start>{{ m.role[0] }}:{{ m.content }}{% endfor %}"}"#;
    let end = || FakeModel::new(258, 64, |_| 257);
    let mut f = fake_with(end(), config);
    for prompt in [
        Prompt::from("hi"),
        Prompt::from(&[Message::user("hi")]),
        Prompt::from([256u32, 7].as_slice()),
    ] {
        f.session.clear();
        let mut answer = f.session.generate(prompt, &GenerateOptions::default()).unwrap();
        assert_eq!(answer.text().unwrap(), "");
        assert_eq!(answer.finish(), Some(Finish::Eos(257)));
    }
    let bytes = |text: &str| -> Vec<u32> { text.bytes().map(u32::from).collect() };
    let fed = [bytes("hi"), bytes("u:hi"), vec![7]].map(|b| [vec![256], b].concat());
    assert_eq!(f.model().calls, fed);

    let mut f = fake(end());
    let e = f
        .session
        .generate(&[Message::user("hi")], &GenerateOptions::default());
    let e = e.err().unwrap();
    assert_eq!(e.kind(), ErrorKind::NoTemplate);
}

#[test]
fn bad_input_is_refused_and_the_session_stays_usable() {
    let mut f = fake(saying("ok", 1));
    let mut refused = |prompt: &[u32]| f.session.generate(prompt, &options(5, &[])).err().unwrap();
    let e = refused(&[]);
    assert_usage(&e, "prompt", &[]);
    assert_eq!(e.kind(), ErrorKind::Usage);
    let e = refused(&[1; 65]);
    assert_usage(&e, "prompt", &["65", "64"]);
    assert_eq!(e.kind(), ErrorKind::ContextExceeded);
    for id in [258, u32::MAX] {
        let e = refused(&[1, id]);
        assert_carries(&e, &[&id.to_string()]);
        assert_eq!(e.kind(), ErrorKind::TokenOutOfRange);
    }
    let e = StopStrings::new(vec![String::new()]).unwrap_err();
    assert!(e.is_usage(), "{e}");

    let mut answer = f.session.generate([1].as_slice(), &options(0, &[])).unwrap();
    assert_eq!(answer.text().unwrap(), "");
    assert_eq!(answer.finish(), Some(Finish::MaxTokens));
    drop(answer);
    let mut answer = f.session.generate([1].as_slice(), &options(5, &[])).unwrap();
    assert_eq!(answer.text().unwrap(), "ok");
    drop(answer);
    assert_eq!(f.model().calls[0], [1], "nothing was fed for no tokens");
}

#[test]
fn failures_come_once() {
    let mut model = saying("abc", 1);
    model.fail_at = Some(1);
    let mut f = fake(model);
    let mut answer = f.session.generate([1].as_slice(), &options(5, &[])).unwrap();
    assert!(answer.next().unwrap().is_ok());
    assert!(answer.next().unwrap().is_err());
    assert!(answer.next().is_none() && answer.finish().is_none());
}

#[test]
fn another_thread_cancels_within_one_step() {
    // Never ends, and a step waits until it was seen.
    let (seen, step) = std::sync::mpsc::sync_channel::<()>(0);
    let seen = std::sync::Mutex::new(seen);
    let mut f = fake(FakeModel::new(258, 1_000_000, move |_| {
        // Nobody waits once the test is over.
        let _over = seen.lock().unwrap().send(());
        u32::from(b'x')
    }));
    let options = GenerateOptions {
        max_tokens: usize::MAX,
        ..GenerateOptions::default()
    };
    let cancel = options.cancel.clone();
    let canceller = std::thread::spawn(move || {
        for _ in 0..5 {
            step.recv().unwrap();
        }
        assert!(cancel.cancel() && !cancel.cancel() && cancel.is_cancelled());
    });
    let mut answer = f.session.generate([1].as_slice(), &options).unwrap();
    let text = answer.text().unwrap();
    canceller.join().unwrap();
    assert_eq!(answer.finish(), Some(Finish::Cancelled));
    // Five steps were seen; one more may have been under way.
    assert!((4..=6).contains(&text.len()), "{} tokens", text.len());
    drop(answer);

    // The flag stays until it is cleared.
    let mut answer = f.session.generate([1].as_slice(), &options).unwrap();
    assert!(answer.next().is_none());
    assert_eq!(answer.finish(), Some(Finish::Cancelled));
}

#[test]
fn a_template_is_given_values() {
    let config = r#"{"chat_template": "{{ tools | length }}{{ enable_thinking }}{{ messages[0].name }}"}"#;
    let mut f = fake_with(saying("ok", 9), config);
    let mut options = options(5, &[]);
    for (name, value) in [
        ("tools", serde_json::json!(["f", "g"])),
        ("enable_thinking", false.into()),
    ] {
        options.template_values.insert(name.to_owned(), value);
    }
    let messages = [Message::tool("add", "7")];
    drop(f.session.generate(&messages, &options).unwrap().text().unwrap());
    let prompt: Vec<u32> = "2Falseadd".bytes().map(u32::from).collect();
    assert_eq!(f.model().calls[0], prompt);
}

#[test]
fn defaults_agree() {
    let (decoding, options) = (DecodeOptions::default(), GenerateOptions::default());
    assert_eq!(
        (decoding.max_tokens, decoding.slide),
        (options.max_tokens, options.slide)
    );
    assert!(options.max_tokens > 0);
}
