//! `tlite chat`.

use super::answer::{AnswerOptions, Outcome, answer};
use super::interrupt::Interrupt;
use super::load::{print_notes, waiting};
use super::options::ExecOptions;
use super::output::{note, put};
use super::sampling::SamplingOptions;
use super::template::TemplateOptions;
use crate::error::{Error, Result};
use crate::llm::{Codec, Finish, GenerateOptions, Message, Model, ModelFolder, Session, StopStrings};
use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Talk to a chat model
///
/// Each line of standard input is a message. `/reset` forgets the conversation, `/exit` or the end of the
/// input ends the program. Ctrl-C stops an answer.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder with model.onnx, tokenizer.json and the config files
    model: PathBuf,
    /// Instructions that stand before the conversation
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    #[command(flatten)]
    sampling: SamplingOptions,
    #[command(flatten)]
    template: TemplateOptions,
    #[command(flatten)]
    answers: AnswerOptions,
    #[command(flatten)]
    exec: ExecOptions,
}

/// A conversation and the session that holds a part of it.
struct Conversation {
    session: Session,
    stop: StopStrings,
    max_tokens: usize,
    /// A full context slides.
    slides: bool,
    system: Option<Message>,
    /// Messages after the system's.
    messages: Vec<Message>,
    /// The text up to the last answer, and the tokens that were fed and generated.
    said: Option<(String, Vec<u32>)>,
}

/// What became of a message.
enum Reply {
    /// It was answered, after so many of the oldest messages were forgotten.
    Answer(Outcome, usize),
    /// The conversation with it has this many tokens, more than the context; it was dropped.
    Full(usize),
}

impl Conversation {
    /// The text of the system and `messages`, and its tokens. What was said before keeps the tokens that it had, as a model does not
    /// always choose those that its text is encoded to.
    fn encoded(&self, messages: &[Message]) -> Result<(String, Vec<u32>)> {
        let all: Vec<Message> = self.system.iter().chain(messages).cloned().collect();
        let codec = self.session.codec();
        let (text, tokenizer) = (codec.chat()?.render(&all, true)?, codec.tokenizer());
        if let Some((said, tokens)) = &self.said
            && let Some(rest) = text.strip_prefix(said.as_str())
        {
            let rest = tokenizer.encode(rest, false)?;
            // Any other token might have joined with what stands before it.
            if rest.first().is_some_and(|id| tokenizer.is_special(*id)) {
                return Ok((text, [tokens.as_slice(), &rest].concat()));
            }
        }
        let tokens = tokenizer.encode(&text, false)?;
        Ok((text, tokens))
    }

    /// Text and tokens of the conversation, without its oldest messages where it slides and would leave too little room for an answer,
    /// and how many messages were left out.
    fn fitting(&self) -> Result<(String, Vec<u32>, usize)> {
        let context = self.session.context();
        let room = self.max_tokens.min(context / 4);
        let mut dropped = 0;
        loop {
            let messages = self.messages.get(dropped..).unwrap_or_default();
            let (text, tokens) = self.encoded(messages)?;
            // A question goes with its answer, and the last question stays.
            if !self.slides || tokens.len() + room <= context || messages.len() <= 2 {
                return Ok((text, tokens, dropped));
            }
            dropped += 2;
        }
    }

    /// How many of the first of `tokens` come before anything that was said.
    fn header(&self, tokens: &[u32]) -> usize {
        let (_, silent) = self.encoded(&[Message::user("")]).unwrap_or_else(|e| {
            log::debug!("nothing is kept when the context slides: {}", e.chain());
            (String::new(), Vec::new())
        });
        let pairs = silent.iter().zip(tokens);
        pairs.take_while(|(a, b)| a == b).count()
    }

    /// Answers `text` to `out`. Tokens that the conversation shares with the cache are not fed again.
    fn answer(&mut self, message: &str, interrupt: &Interrupt, out: &mut dyn Write) -> Result<Reply> {
        self.messages.push(Message::user(message));
        let (text, tokens, dropped) = self.fitting()?;
        if tokens.len() > self.session.context() {
            self.messages.pop();
            return Ok(Reply::Full(tokens.len()));
        }
        self.messages.drain(..dropped);
        let slide = self.slides.then(|| self.header(&tokens));
        let generating = interrupt.generating();
        let options = GenerateOptions {
            max_tokens: self.max_tokens,
            stop: self.stop.clone(),
            cancel: generating.flag(),
            slide,
        };
        let outcome = answer(&mut self.session, tokens.as_slice(), &options, out)?;
        // The tokens of a stop string have more text than was shown.
        let whole = self.session.codec().tokenizer().decode(&outcome.tokens)? == outcome.text;
        self.said = whole.then(|| {
            (
                text + &outcome.text,
                [tokens.as_slice(), &outcome.tokens].concat(),
            )
        });
        self.messages.push(Message::assistant(outcome.text.clone()));
        Ok(Reply::Answer(outcome, dropped))
    }

    fn reset(&mut self) {
        self.messages.clear();
        self.said = None;
        self.session.clear();
    }
}

/// Where a conversation comes from and goes to.
struct Console<'a> {
    input: &'a mut dyn BufRead,
    /// Answers.
    out: &'a mut dyn Write,
    /// Everything else.
    notes: &'a mut dyn Write,
    /// Somebody sits in front of it.
    prompt: bool,
}

/// Talks until `/exit` or the end of the input.
fn talk(conversation: &mut Conversation, console: &mut Console<'_>, interrupt: &Interrupt) -> Result<()> {
    loop {
        if console.prompt {
            let _closed = console
                .notes
                .write_all(b"> ")
                .and_then(|()| console.notes.flush());
        }
        let mut line = Vec::new();
        let read = console.input.read_until(b'\n', &mut line);
        if read.map_err(|e| Error::io("cannot read", Path::new("standard input"), e))? == 0 {
            return Ok(());
        }
        let Ok(line) = std::str::from_utf8(&line) else {
            note(console.notes, "note: that line is not UTF-8; it was not sent");
            continue;
        };
        match line.trim() {
            "" => {}
            "/exit" => return Ok(()),
            "/reset" => {
                conversation.reset();
                note(console.notes, "[conversation forgotten]");
            }
            command if command.starts_with('/') && !command.contains(char::is_whitespace) => {
                note(
                    console.notes,
                    &format!("note: {command} is no command; there are /reset and /exit"),
                );
            }
            text => match conversation.answer(text, interrupt, console.out)? {
                Reply::Answer(outcome, dropped) => {
                    put(console.out, "\n")?;
                    note(console.notes, &outcome.speed_line());
                    if dropped > 0 {
                        let fed = outcome.metrics.prompt_tokens;
                        let what = format!(
                            "note: the context slid: the {dropped} oldest messages are forgotten, {fed} tokens were fed"
                        );
                        note(console.notes, &what);
                    }
                    if outcome.finish == Some(Finish::ContextFull) {
                        let held = conversation.session.context();
                        note(
                            console.notes,
                            &format!(
                                "note: the context of {held} tokens is full; /reset starts anew, --context-shift slides"
                            ),
                        );
                    }
                }
                Reply::Full(needed) => {
                    let held = conversation.session.context();
                    let what = format!(
                        "note: the conversation needs {needed} tokens, the context holds {held}; the message was \
                         not sent; /reset starts anew, a larger --context or --context-shift may help"
                    );
                    note(console.notes, &what);
                }
            },
        }
    }
}

/// Runs the command.
pub fn run(args: &Args, interrupt: &Interrupt) -> Result<()> {
    let folder = ModelFolder::holding("MODEL", &args.model, &["tokenizer.json"])?;
    args.answers.check()?;
    let codec = Codec::load(folder.clone())?.with_template_values(args.template.values()?);
    let codec = Arc::new(codec);
    let sampler = args.sampling.sampler(codec.tokenizer())?;
    let sampler = args.answers.constrain(sampler, &codec)?;
    codec.chat()?;
    let stop = args.answers.stop_strings()?;
    let options = args.answers.load_options(&args.exec, &sampler);
    let ((model, session), load_ms) = waiting(&folder, |hear| {
        let model = Model::with_codec(&folder, codec.clone(), &options, hear)?;
        let session = args.answers.session(&model, sampler, &args.exec)?;
        Ok((model, session))
    })?;
    print_notes(model.notes());
    let place = model.place();

    let mut notes = std::io::stderr();
    note(
        &mut notes,
        &format!("{} on {}, loaded in {load_ms:.0} ms", place.backend, place.device),
    );
    let stdin = std::io::stdin();
    let prompt = stdin.is_terminal() && notes.is_terminal();
    if prompt {
        note(
            &mut notes,
            "/reset forgets the conversation, /exit ends, Ctrl-C stops an answer",
        );
    }
    let mut conversation = Conversation {
        session,
        stop,
        max_tokens: args.sampling.max_tokens.get(),
        slides: args.answers.context_shift,
        system: args.system.as_deref().map(Message::system),
        messages: Vec::new(),
        said: None,
    };
    let (mut input, mut out) = (stdin.lock(), std::io::stdout().lock());
    let mut console = Console {
        input: &mut input,
        out: &mut out,
        notes: &mut notes,
        prompt,
    };
    talk(&mut conversation, &mut console, interrupt)?;
    args.answers.save(&mut conversation.session)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::testing::{FakeModel, Lent, byte_codec};

    const TEMPLATE: &str = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}<end>{% endfor %}\
                            {% if add_generation_prompt %}a:{% endif %}";

    struct Run {
        out: String,
        notes: String,
    }

    /// Feeds `input` to a chat with `model`, whose tokens are bytes, 256 `<start>` and 257 `<end>`.
    fn chat(model: &mut FakeModel, input: &[u8], system: Option<&str>, prompt: bool) -> Result<Run> {
        chat_sliding(model, input, system, prompt, false)
    }

    fn chat_sliding(
        model: &mut FakeModel,
        input: &[u8],
        system: Option<&str>,
        prompt: bool,
        slides: bool,
    ) -> Result<Run> {
        let lent = Lent::of(model);
        let (dir, codec) = byte_codec("{}");
        std::fs::write(dir.path().join("chat_template.jinja"), TEMPLATE).unwrap();
        let mut conversation = Conversation {
            session: Session::new(Box::new(lent.clone()), Arc::new(codec)),
            stop: StopStrings::default(),
            max_tokens: 8,
            slides,
            system: system.map(Message::system),
            messages: Vec::new(),
            said: None,
        };
        let (mut input, mut out, mut notes) = (input, Vec::new(), Vec::new());
        let mut console = Console {
            input: &mut input,
            out: &mut out,
            notes: &mut notes,
            prompt,
        };
        let talked = talk(&mut conversation, &mut console, &Interrupt::without_handler());
        lent.give_back(model);
        talked?;
        Ok(Run {
            out: String::from_utf8(out).unwrap(),
            notes: String::from_utf8(notes).unwrap(),
        })
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

    /// The answers have a token that their text would not be encoded to.
    #[test]
    fn twenty_turns_feed_what_is_new() {
        let mut model = FakeModel::new(258, 1000, |cache| match cache {
            [.., 0x3a] => u32::from(b'o'),
            [.., 0x6f] => 256,
            [.., 256] => u32::from(b'k'),
            _ => 257,
        });
        let input: String = (0..20).map(|i| format!("message {i}\n")).collect();
        let run = chat(&mut model, input.as_bytes(), Some("be kind"), false).unwrap();
        assert_eq!(run.out, "ok\n".repeat(20));
        let fed: Vec<&Vec<u32>> = model.calls.iter().filter(|c| c.len() > 1).collect();
        assert_eq!(fed.len(), 20);
        for (i, fed) in fed.iter().enumerate() {
            let before = if i == 0 { "s:be kind<end>" } else { "<end>" };
            assert_eq!(**fed, bytes(&format!("{before}u:message {i}<end>a:")), "turn {i}");
        }
        assert!(
            run.notes.contains("fed, ") && run.notes.contains("reused)"),
            "{}",
            run.notes
        );
    }

    #[test]
    fn shared_tokens_are_fed_once() {
        let mut model = polite(100);
        let run = chat(&mut model, b"hi\n\n  you  \r\n", None, false).unwrap();
        assert_eq!(run.out, "ok\nok\n");
        assert!(
            !run.notes.contains("> ") && run.notes.matches("tokens/s").count() > 0,
            "{}",
            run.notes
        );
        let expected = ["u:hi<end>a:", "o", "k", "<end>u:you<end>a:", "o", "k"].map(bytes);
        assert_eq!(model.calls, expected);
        assert_eq!(model.cache, bytes("u:hi<end>a:ok<end>u:you<end>a:ok"));
    }

    #[test]
    fn an_answer_keeps_its_tokens() {
        // It is half a character, which its text would not be encoded to.
        let mut model = FakeModel::new(
            258,
            100,
            |cache| if cache.last() == Some(&0xc3) { 257 } else { 0xc3 },
        );
        let run = chat(&mut model, b"a\nb\n/exit\nc\n", Some("s"), true).unwrap();
        assert_eq!(run.out, "\u{fffd}\n\u{fffd}\n");
        assert_eq!(run.notes.matches("> ").count(), 3);
        let [first, half, second, _] = model.calls.as_slice() else {
            panic!("{:?}", model.calls)
        };
        assert_eq!((first, half), (&bytes("s:s<end>u:a<end>a:"), &vec![0xc3]));
        assert_eq!(second, &bytes("<end>u:b<end>a:"));
        assert_eq!(
            model.cache,
            [
                bytes("s:s<end>u:a<end>a:"),
                vec![0xc3],
                bytes("<end>u:b<end>a:"),
                vec![0xc3]
            ]
            .concat()
        );
    }

    #[test]
    fn reset_keeps_the_system_text_only() {
        let mut model = polite(100);
        let run = chat(
            &mut model,
            b"hi\n/reset\nhi\n/nothing\n/etc is a folder\n",
            Some("s"),
            false,
        )
        .unwrap();
        assert_eq!(model.calls[3], bytes("s:s<end>u:hi<end>a:"));
        assert!(
            run.notes.contains("forgotten") && run.notes.contains("/nothing is no command"),
            "{}",
            run.notes
        );
        assert_eq!(run.out, "ok\nok\nok\n");
    }

    #[test]
    fn a_full_context_is_said_and_the_message_dropped() {
        let mut model = polite(14);
        let run = chat(&mut model, b"hi\nabcdefghij\n/reset\nyo\n", None, false).unwrap();
        assert!(
            run.notes.contains("needs 25 tokens, the context holds 14"),
            "{}",
            run.notes
        );
        assert_eq!(run.out, "ok\nok\n");
        assert_eq!(model.cache, bytes("u:yo<end>a:ok"));

        let mut model = FakeModel::new(258, 10, |_| 65);
        let run = chat(&mut model, b"hi\n", None, false).unwrap();
        assert_eq!(run.out, "AAAA\n");
        assert!(
            run.notes.contains("the context of 10 tokens is full"),
            "{}",
            run.notes
        );
    }

    #[test]
    fn twenty_turns_feed_each_token_once() {
        let mut model = polite(1000);
        let messages: Vec<String> = (0..20).map(|i| "hello ".repeat(i % 3) + "turn").collect();
        let run = chat(
            &mut model,
            messages.join("\n").as_bytes(),
            Some("be brief"),
            false,
        )
        .unwrap();
        assert_eq!(run.out, "ok\n".repeat(20));
        // An answer is its prompt, then `o` and `k` one by one; the end token is the start of the next prompt.
        assert_eq!(model.calls.len(), 60);
        for (turn, calls) in model.calls.chunks(3).enumerate() {
            let said = format!("u:{}<end>a:", messages[turn]);
            let wanted = match turn {
                0 => format!("s:be brief<end>{said}"),
                _ => format!("<end>{said}"),
            };
            assert_eq!(calls[0], bytes(&wanted), "turn {turn}");
            assert_eq!([calls[1].len(), calls[2].len()], [1, 1]);
        }
        let fed: usize = model.calls.iter().map(Vec::len).sum();
        assert_eq!(fed, model.cache.len(), "nothing was fed twice");
    }

    #[test]
    fn a_full_context_slides_on_request() {
        // Room for two turns and an answer.
        let mut model = polite(40);
        let input = b"one\ntwo\nsix\nten\n";
        let run = chat_sliding(&mut model, input, Some("s"), false, true).unwrap();
        assert_eq!(run.out, "ok\nok\nok\nok\n");
        assert!(
            run.notes.contains("the 2 oldest messages are forgotten"),
            "{}",
            run.notes
        );
        let turn = |q: &str| format!("u:{q}<end>a:ok<end>");
        let last = bytes(&format!("s:s<end>{}u:ten<end>a:ok", turn("six")));
        assert_eq!(model.cache, last, "the system's text stays");

        // An answer that does not end slides in its middle: the system's text stays.
        let mut model = FakeModel::new(258, 20, |cache| (cache.last().unwrap() % 26) + 65);
        let run = chat_sliding(&mut model, b"hi there\n", Some("s"), false, true).unwrap();
        assert_eq!(run.out.len(), 9);
        assert!(run.notes.contains("context slid: "), "{}", run.notes);
        assert!(model.cache.starts_with(&bytes("s:s<end>u:")));
        let run = chat_sliding(&mut model, &b"x".repeat(30), Some("s"), false, true).unwrap();
        assert!(run.notes.contains("the context holds 20"), "{}", run.notes);
    }

    #[test]
    fn bad_lines_and_failures() {
        let mut model = polite(100);
        let run = chat(&mut model, b"\xff\xfe\nhi", None, false).unwrap();
        assert!(run.notes.contains("not UTF-8"));
        assert_eq!(run.out, "ok\n", "a last line without its end counts");
        let mut model = polite(100);
        model.fail_at = Some(1);
        assert!(chat(&mut model, b"hi\n", None, false).is_err());
    }
}
