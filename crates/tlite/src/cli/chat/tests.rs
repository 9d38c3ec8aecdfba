use super::console::Width;
use super::*;
use std::collections::VecDeque;
use std::sync::Arc;
use tlite_testing::llm::testing::{FakeModel, Lent, byte_codec};
use transformer_lite::unstable::llm::Session;

const TEMPLATE: &str = "{% for m in messages %}\
                        {% if m.content == 'refuse' %}{{ raise_exception('no') }}{% endif %}\
                        {{ m.role[0] }}:{{ m.content }}<end>{% endfor %}\
                        {% if add_generation_prompt %}a:{% endif %}";

/// What a chat left.
struct Run {
    out: String,
    notes: String,
    messages: Vec<Message>,
    unsent: usize,
    ended: Ended,
}

impl Run {
    fn contents(&self) -> Vec<&str> {
        self.messages.iter().map(|m| m.content.as_str()).collect()
    }
}

/// How a chat is held.
#[derive(Default)]
struct Setting<'a> {
    system: Option<&'a str>,
    slides: bool,
    looks: Looks,
}

/// Talks from `source` with `model`, whose tokens are bytes, 256 `<start>` and 257 `<end>`.
fn held(model: &mut FakeModel, source: &mut dyn Source, setting: &Setting<'_>) -> Result<Run> {
    let lent = Lent::of(model);
    let (dir, codec) = byte_codec("{}");
    std::fs::write(dir.path().join("chat_template.jinja"), TEMPLATE).unwrap();
    let session = Session::new(Box::new(lent.clone()), Arc::new(codec));
    let system = setting.system.map(Message::system);
    let mut conversation = Conversation::new(session, system.into_iter().collect());
    conversation.set_slides(setting.slides);
    let mut talk = Talk {
        conversation,
        stop: StopStrings::default(),
        max_tokens: 8,
        facts: Facts::default(),
        template_values: Values::new(),
        interrupt: &Interrupt::without_handler(),
        may_grow: true,
        about: About {
            model: "fake".to_owned(),
            place: "nowhere".to_owned(),
            memory: Some("1 kB".to_owned()),
        },
        last: None,
        unsent: 0,
        sampling: SamplingOptions::default(),
        resample: Box::new(|sampling| {
            let folder = ModelFolder::open(dir.path())?;
            let tokenizer = transformer_lite::unstable::llm::Tokenizer::load(dir.path())?;
            let Chosen { sampler, words, .. } = sampling.sampler(&folder, &tokenizer)?;
            Ok((sampler, words))
        }),
    };
    let (mut out, mut notes) = (Vec::new(), Vec::new());
    let mut console = Console {
        out: &mut out,
        notes: &mut notes,
        looks: setting.looks,
    };
    let ended = talk.run(source, &mut console);
    lent.give_back(model);
    Ok(Run {
        ended: ended?,
        unsent: talk.unsent,
        messages: talk.conversation.messages().to_vec(),
        out: String::from_utf8(out).unwrap(),
        notes: String::from_utf8(notes).unwrap(),
    })
}

/// Feeds the lines of `input`.
fn piped(model: &mut FakeModel, mut input: &[u8], system: Option<&str>) -> Result<Run> {
    let setting = Setting {
        system,
        ..Setting::default()
    };
    held(model, &mut Lines::new(&mut input), &setting)
}

/// A person.
struct Script(VecDeque<Input>);

impl Script {
    /// Types these texts; `^C` is the key.
    fn new(entries: &[&str]) -> Self {
        let entry = |text: &&str| match *text {
            "^C" => Input::Interrupt,
            text => Input::Text {
                text: text.to_owned(),
                quoted: false,
            },
        };
        Self(entries.iter().map(entry).collect())
    }
}

impl Source for Script {
    fn read(&mut self) -> Result<Input> {
        Ok(self.0.pop_front().unwrap_or(Input::End))
    }
}

fn typed(model: &mut FakeModel, entries: &[&str]) -> Run {
    held(model, &mut Script::new(entries), &Setting::default()).unwrap()
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

#[test]
fn shared_tokens_are_fed_once() {
    let mut model = polite(100);
    let run = piped(&mut model, b"hi\n\n  you  \r\n", None).unwrap();
    assert_eq!(run.out, "ok\nok\n");
    assert_eq!(
        run.notes.lines().count(),
        2,
        "a line after each answer: {}",
        run.notes
    );
    let expected = ["u:hi<end>a:", "o", "k", "<end>u:you<end>a:", "o", "k"].map(bytes);
    assert_eq!(model.calls, expected);
    assert_eq!(model.cache, bytes("u:hi<end>a:ok<end>u:you<end>a:ok"));
    assert_eq!((run.unsent, run.ended), (0, Ended::Done));
}

#[test]
fn reset_keeps_the_system_prompt_only() {
    let mut model = polite(100);
    let lines = b"hi\n/reset\nhi\n/nothing\n/etc/hosts is a file\n";
    let run = piped(&mut model, lines, Some("s")).unwrap();
    assert_eq!(model.calls[3], bytes("s:s<end>u:hi<end>a:"));
    assert_eq!(run.out, "ok\nok\nok\n");
    assert_eq!(run.unsent, 1);
    assert_eq!(run.contents(), ["s", "hi", "ok", "/etc/hosts is a file", "ok"]);
}

#[test]
fn message_beyond_the_context_is_not_sent() {
    let mut model = polite(14);
    let run = piped(&mut model, b"hi\nabcdefghij\n/reset\nyo\n", None).unwrap();
    assert_eq!((run.out.as_str(), run.unsent), ("ok\nok\n", 1));
    assert_eq!(model.cache, bytes("u:yo<end>a:ok"));
    // A message that is too long alone would be so with a context that shifts, too.
    assert!(!run.notes.contains("context-shift"), "{}", run.notes);

    let mut longer = polite(20);
    let run = piped(&mut longer, b"hi\nabcdefghij\n", None).unwrap();
    assert!(
        run.notes.contains("context-shift") && run.unsent == 1,
        "{}",
        run.notes
    );
    assert_eq!(run.contents(), ["hi", "ok"]);

    let mut model = FakeModel::new(258, 10, |_| 65);
    let run = piped(&mut model, b"hi\n", None).unwrap();
    assert_eq!((run.out.as_str(), run.unsent), ("AAAA\n", 0));
    assert!(run.notes.contains("context-shift"), "{}", run.notes);
}

#[test]
fn full_context_shifts_on_request() {
    let sliding = Setting {
        system: Some("s"),
        slides: true,
        ..Setting::default()
    };
    let mut model = polite(40);
    let run = held(
        &mut model,
        &mut Script::new(&["one", "two", "six", "ten"]),
        &sliding,
    )
    .unwrap();
    assert_eq!(run.out, "ok\nok\nok\nok\n");
    assert_eq!(run.contents(), ["s", "six", "ok", "ten", "ok"]);
    let mut model = FakeModel::new(258, 20, |cache| (cache.last().unwrap() % 26) + 65);
    let run = held(&mut model, &mut Script::new(&["hi there"]), &sliding).unwrap();
    assert_eq!((run.out.len(), run.unsent), (9, 0));
    let long = "x".repeat(30);
    let run = held(&mut model, &mut Script::new(&[&long]), &sliding).unwrap();
    assert_eq!((run.out.as_str(), run.unsent), ("", 1));
    assert!(!run.notes.contains("context-shift"), "{}", run.notes);
}

#[test]
fn results_of_tools_are_fed() {
    let mut model = polite(100);
    let run = piped(&mut model, b"hi\n/tool add {\"sum\": 2}\n/tool add\n", None).unwrap();
    assert_eq!((run.out.as_str(), run.unsent), ("ok\nok\n", 1));
    assert_eq!(model.calls[3], bytes("<end>t:{\"sum\": 2}<end>a:"));
    // There is no call to answer.
    let run = piped(&mut polite(100), b"/tool add 2\nhi\n", None).unwrap();
    assert_eq!((run.out.as_str(), run.unsent), ("ok\n", 1));
}

#[test]
fn bad_lines_are_counted_and_failures_end_the_chat() {
    let mut model = polite(100);
    let run = piped(&mut model, b"\xff\xfe\nrefuse\nhi", None).unwrap();
    assert_eq!(run.out, "ok\n", "a last line without its end counts");
    assert_eq!((run.unsent, run.contents()), (2, vec!["hi", "ok"]));
    let mut model = polite(100);
    model.fail_at = Some(1);
    assert!(piped(&mut model, b"hi\n", None).is_err());
}

#[test]
fn second_ctrl_c_in_a_row_ends_the_chat() {
    let mut model = polite(100);
    let run = typed(&mut model, &["^C", "^C", "hi"]);
    assert_eq!((run.ended, run.out.as_str()), (Ended::Interrupted, ""));
    assert!(run.notes.contains(HINT), "{}", run.notes);
    let run = typed(&mut model, &["^C", "hi", "^C", "/exit", "^C", "^C"]);
    assert_eq!((run.ended, run.out.as_str()), (Ended::Done, "ok\n"));
    let run = typed(&mut model, &["^C"]);
    assert_eq!(run.ended, Ended::Done, "the end of the input is no Ctrl-C");
}

#[test]
fn system_prompt_is_shown_and_replaced() {
    let mut model = polite(100);
    let run = typed(&mut model, &["/system", "hi", "/system be kind", "/system", "yo"]);
    assert_eq!(run.contents(), ["be kind", "yo", "ok"]);
    assert_eq!(run.messages[0].role, "system");
    assert_eq!(run.notes.matches("be kind").count(), 1, "{}", run.notes);
    assert!(model.calls.contains(&bytes("s:be kind<end>u:yo<end>a:")));
    assert_eq!(run.unsent, 0);
}

#[test]
fn settings_change_and_wrong_ones_are_named() {
    let mut model = polite(100);
    let entries = [
        "/set temperature 0.5",
        "/seed 7",
        "/set top-p 9",
        "/set max_tokens 1",
        "hi",
        "/set",
    ];
    let run = typed(&mut model, &entries);
    assert_eq!((run.out.as_str(), run.unsent), ("o\n", 1), "{}", run.notes);
    for part in ["temperature 0.5", "seed 7", "/set top-p", "\"9\"", "max-tokens"] {
        assert!(run.notes.contains(part), "{part}: {}", run.notes);
    }
    let mut model = polite(20);
    let run = typed(&mut model, &["hi", "/set context-shift on", "abcdefg"]);
    assert_eq!((run.out.as_str(), run.unsent), ("ok\nok\n", 0), "{}", run.notes);
    assert_eq!(run.contents(), ["abcdefg", "ok"]);
}

#[test]
fn retry_answers_the_last_message_again() {
    let mut model = polite(100);
    let run = typed(&mut model, &["/retry", "hi", "/retry"]);
    assert_eq!((run.out.as_str(), run.unsent), ("ok\nok\n", 1));
    assert_eq!(run.contents(), ["hi", "ok"]);
}

#[test]
fn conversations_are_saved_and_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a chat.json");
    let path = file.display();
    let mut model = polite(100);
    let setting = Setting {
        system: Some("s"),
        ..Setting::default()
    };
    let save = format!("/save \"{path}\"");
    let load = format!("/load {path}");
    let run = held(&mut model, &mut Script::new(&["hi", &save]), &setting).unwrap();
    assert_eq!(run.unsent, 0, "{}", run.notes);
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(json["model"], "fake");
    assert_eq!(
        json["messages"][1],
        serde_json::json!({"role": "user", "content": "hi"})
    );

    let mut fresh = polite(100);
    let run = typed(&mut fresh, &["other", &load, "yo"]);
    assert!(run.notes.contains("> hi\nok\n"), "{}", run.notes);
    assert_eq!(run.contents(), ["s", "hi", "ok", "yo", "ok"]);
    let last = bytes("s:s<end>u:hi<end>a:ok<end>u:yo<end>a:ok");
    assert_eq!(fresh.cache, last);

    // A file is replaced only by someone who says so.
    let before = std::fs::read(&file).unwrap();
    let interactive = Setting {
        looks: Looks {
            interactive: true,
            ..Looks::default()
        },
        ..Setting::default()
    };
    for (answer, replaced) in [("", false), ("no", false), ("yes", true)] {
        let mut script = Script::new(&["new", &save, answer, "/stats"]);
        let run = held(&mut fresh, &mut script, &interactive).unwrap();
        assert_eq!(run.contents(), ["new", "ok"], "the answer is no message");
        assert_eq!(std::fs::read(&file).unwrap() != before, replaced, "{answer}");
    }
    std::fs::write(&file, before).unwrap();
    let run = held(&mut fresh, &mut Script::new(&["new", &save]), &Setting::default()).unwrap();
    assert_eq!(run.unsent, 1);

    // What cannot be loaded changes nothing.
    let mut small = polite(14);
    let run = typed(&mut small, &["hi", &load, "/load absent", "/save /"]);
    assert_eq!((run.unsent, run.contents()), (3, vec!["hi", "ok"]));
    std::fs::write(&file, r#"[{"role": "user", "content": "refuse"}]"#).unwrap();
    let run = typed(&mut model, &["hi", &load]);
    assert_eq!((run.unsent, run.contents()), (1, vec!["hi", "ok"]));
}

#[test]
fn stats_and_help_are_shown_on_request() {
    let mut model = polite(100);
    let run = typed(&mut model, &["/stats"]);
    assert!(run.notes.contains("0 of 100 tokens"), "{}", run.notes);
    let quiet = Setting {
        looks: Looks {
            quiet: true,
            ..Looks::default()
        },
        ..Setting::default()
    };
    let run = held(&mut model, &mut Script::new(&["hi"]), &quiet).unwrap();
    assert_eq!((run.out.as_str(), run.notes.as_str()), ("ok\n", ""));
    let run = held(&mut model, &mut Script::new(&["hi", "/stats", "/help"]), &quiet).unwrap();
    for word in ["fake", "nowhere", "1 kB", "9 of 100 tokens"] {
        assert!(run.notes.contains(word), "{word}: {}", run.notes);
    }
    for (name, _) in COMMANDS {
        assert!(run.notes.contains(name), "{name}: {}", run.notes);
    }
    assert_eq!(run.unsent, 0);
}

#[test]
fn help_fits_a_narrow_terminal() {
    let narrow = Setting {
        looks: Looks {
            width: Width::Columns(40),
            ..Looks::default()
        },
        ..Setting::default()
    };
    let mut model = polite(100);
    let entries = ["hi", "/help", "/stats", "/nothing", "/save /", "^C"];
    let run = held(&mut model, &mut Script::new(&entries), &narrow).unwrap();
    let widest = run.notes.lines().map(|line| line.chars().count()).max();
    assert!(widest.is_some_and(|w| w <= 40), "{}", run.notes);
}
