//! `tlite chat`.

use super::answer::{AnswerOptions, Outcome, Reading, stream};
use super::interrupt::Interrupt;
use super::load::{print_notes, waiting};
use super::options::ExecOptions;
use super::output::{note, put};
use super::sampling::SamplingOptions;
use super::template::TemplateOptions;
use crate::error::{Error, ErrorKind, Result, Stage};
use crate::llm::conversation::MESSAGE;
use crate::llm::template::Values;
use crate::llm::{Codec, Conversation, Finish, GenerateOptions, Message, Model, ModelFolder, StopStrings};
use crate::units::count_text;
use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Talk to a chat model
///
/// Each line of standard input is a message. `/reset` forgets the conversation, `/tool NAME RESULT` gives back what
/// a tool that the model called returned, `/exit` or the end of the input ends the program. Ctrl-C stops an answer.
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

/// A conversation and how it is answered.
struct Talk<'a> {
    conversation: Conversation,
    stop: StopStrings,
    max_tokens: usize,
    template_values: Values,
    interrupt: &'a Interrupt,
    /// The model was made for a longer context.
    may_grow: bool,
    /// Lines of the input that were no messages, or for which there was no room.
    unsent: usize,
}

impl Talk<'_> {
    /// Answers `message` to the console. A message for which the context has no room is not sent, and a note says so.
    fn say(&mut self, message: Message, console: &mut Console<'_>) -> Result<()> {
        let generating = self.interrupt.generating();
        let reading = Reading::default();
        let options = GenerateOptions {
            max_tokens: self.max_tokens,
            stop: self.stop.clone(),
            cancel: generating.flag(),
            slide: None,
            progress: reading.progress(),
            template_values: self.template_values.clone(),
        };
        let mut reply = match self.conversation.say(message, &options) {
            Ok(reply) => reply,
            Err(Error::Usage {
                name,
                what,
                kind: ErrorKind::ContextExceeded,
            }) => {
                let mut help = Vec::new();
                if name != MESSAGE {
                    // Where it slides nothing but a message alone is too long.
                    help.extend(["/reset starts anew", "--context-shift slides"]);
                }
                if self.may_grow {
                    help.push("a larger --context may help");
                }
                let help: String = help.iter().map(|h| format!("; {h}")).collect();
                note(
                    console.notes,
                    &format!("note: the {name} {what}; the message was not sent{help}"),
                );
                self.unsent += 1;
                return Ok(());
            }
            Err(e) => return Err(e),
        };
        let (tokens, text) = stream(&mut reply, console.out)?;
        let forgotten = reply.forgotten();
        let outcome = Outcome {
            tokens,
            text,
            finish: reply.finish(),
            reused: reply.reused(),
            metrics: reply.metrics(),
        };
        drop((reply, reading));
        put(console.out, "\n")?;
        note(console.notes, &outcome.speed_line());
        if forgotten > 0 {
            let fed = outcome.metrics.prompt_tokens;
            let what = format!(
                "note: the context slid: the {forgotten} oldest messages are forgotten, {fed} tokens were fed"
            );
            note(console.notes, &what);
        }
        if outcome.finish == Some(Finish::ContextFull) {
            let held = self.conversation.session().context();
            let what = format!(
                "note: the context of {held} tokens is full; /reset starts anew, --context-shift slides"
            );
            note(console.notes, &what);
        }
        Ok(())
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

/// What a line of the input asks for.
#[derive(Debug, PartialEq)]
enum Line<'a> {
    Nothing,
    Exit,
    Reset,
    Unknown(&'a str),
    Message(Message),
}

impl<'a> Line<'a> {
    fn read(line: &'a str) -> Self {
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match (word, rest.trim_start()) {
            ("", _) => Self::Nothing,
            ("/exit", "") => Self::Exit,
            ("/reset", "") => Self::Reset,
            ("/tool", call) => match call.split_once(char::is_whitespace) {
                Some((name, result)) => Self::Message(Message::tool(name, result.trim_start())),
                None => Self::Unknown("/tool without NAME and RESULT"),
            },
            (word, "") if word.starts_with('/') => Self::Unknown(word),
            _ => Self::Message(Message::user(line)),
        }
    }
}

/// Talks until `/exit` or the end of the input.
fn talk(talk: &mut Talk<'_>, console: &mut Console<'_>) -> Result<()> {
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
            talk.unsent += 1;
            continue;
        };
        match Line::read(line.trim()) {
            Line::Nothing => {}
            Line::Exit => return Ok(()),
            Line::Reset => {
                talk.conversation.clear();
                note(console.notes, "[conversation forgotten]");
            }
            Line::Unknown(command) => {
                let what =
                    format!("note: {command} is no command; there are /reset, /exit and /tool NAME RESULT");
                note(console.notes, &what);
                talk.unsent += 1;
            }
            Line::Message(message) => talk.say(message, console)?,
        }
    }
}

/// Runs the command.
pub fn run(args: &Args, interrupt: &Interrupt) -> Result<()> {
    let folder = ModelFolder::holding(
        "MODEL",
        &super::model::resolve(&args.model, interrupt)?,
        &["tokenizer.json"],
    )?;
    args.answers.check()?;
    let template_values = args.template.values()?;
    let codec = Arc::new(Codec::load(folder.clone())?);
    let sampler = args.sampling.sampler(codec.tokenizer())?;
    let sampler = args.answers.constrain(sampler, &codec)?;
    if codec.template()?.is_none() {
        let what = format!(
            "{} has no chat template; `tlite generate --raw` goes on with texts",
            args.model.display()
        );
        return Err(Error::usage("MODEL", what).of_kind(ErrorKind::NoTemplate));
    }
    let stop = args.answers.stop_strings()?;
    let options = args.answers.load_options(&args.exec, &sampler);
    let ((model, session), load_ms) = waiting(&folder, |hear| {
        let model = Model::with_codec(&folder, codec.clone(), &options, hear)?;
        let session = args.answers.session(&model, sampler, &args.exec, hear)?;
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
    let instructions = args.system.as_deref().map(Message::system).into_iter().collect();
    let context = session.context();
    let mut conversation = Conversation::new(session, instructions);
    conversation.set_slides(args.answers.context_shift);
    let mut talking = Talk {
        conversation,
        stop,
        max_tokens: args.sampling.max_tokens,
        template_values,
        interrupt,
        may_grow: folder
            .config
            .max_position_embeddings
            .is_none_or(|most| context < most),
        unsent: 0,
    };
    let (mut input, mut out) = (stdin.lock(), std::io::stdout().lock());
    let mut console = Console {
        input: &mut input,
        out: &mut out,
        notes: &mut notes,
        prompt,
    };
    talk(&mut talking, &mut console)?;
    args.answers.save(talking.conversation.session())?;
    match talking.unsent {
        // Who sits in front of it has seen it.
        n if n > 0 && !prompt => {
            let verb = if n == 1 { "was" } else { "were" };
            let what = format!("{} of the input {verb} not sent", count_text(n, "line"));
            Err(Error::other(Stage::Text, what))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::Session;
    use crate::llm::testing::{FakeModel, Lent, byte_codec};

    const TEMPLATE: &str = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}<end>{% endfor %}\
                            {% if add_generation_prompt %}a:{% endif %}";

    struct Run {
        out: String,
        notes: String,
        unsent: usize,
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
        let session = Session::new(Box::new(lent.clone()), Arc::new(codec));
        let mut conversation = Conversation::new(session, system.map(Message::system).into_iter().collect());
        conversation.set_slides(slides);
        let mut talking = Talk {
            conversation,
            stop: StopStrings::default(),
            max_tokens: 8,
            template_values: Values::new(),
            interrupt: &Interrupt::without_handler(),
            may_grow: true,
            unsent: 0,
        };
        let (mut input, mut out, mut notes) = (input, Vec::new(), Vec::new());
        let mut console = Console {
            input: &mut input,
            out: &mut out,
            notes: &mut notes,
            prompt,
        };
        let talked = talk(&mut talking, &mut console);
        lent.give_back(model);
        talked?;
        Ok(Run {
            unsent: talking.unsent,
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
        let alone = "note: the message alone needs 15 tokens, the context holds 14; the message was not sent; a larger";
        assert!(run.notes.contains(alone), "{}", run.notes);
        assert!(
            !run.notes.contains("--context-shift") && run.unsent == 1,
            "{}",
            run.notes
        );
        assert_eq!(run.out, "ok\nok\n");
        assert_eq!(model.cache, bytes("u:yo<end>a:ok"));

        let mut longer = polite(20);
        let run = chat(&mut longer, b"hi\nabcdefghij\n", None, false).unwrap();
        let all = "note: the conversation needs 25 tokens, the context holds 20; the message was not sent; /reset starts anew; --context-shift";
        assert!(run.notes.contains(all) && run.unsent == 1, "{}", run.notes);

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
    fn a_full_context_slides_on_request() {
        let mut model = polite(40);
        let run = chat_sliding(&mut model, b"one\ntwo\nsix\nten\n", Some("s"), false, true).unwrap();
        assert_eq!(run.out, "ok\nok\nok\nok\n");
        assert!(
            run.notes.contains("the 2 oldest messages are forgotten"),
            "{}",
            run.notes
        );

        let mut model = FakeModel::new(258, 20, |cache| (cache.last().unwrap() % 26) + 65);
        let run = chat_sliding(&mut model, b"hi there\n", Some("s"), false, true).unwrap();
        assert_eq!(run.out.len(), 9);
        assert!(run.notes.contains("context slid: "), "{}", run.notes);
        let run = chat_sliding(&mut model, &b"x".repeat(30), Some("s"), false, true).unwrap();
        assert!(
            run.notes.contains("the message alone needs ") && run.unsent == 1,
            "{}",
            run.notes
        );
        assert!(!run.notes.contains("--context-shift"), "{}", run.notes);
    }

    #[test]
    fn results_of_tools_are_fed() {
        let mut model = polite(100);
        let run = chat(&mut model, b"hi\n/tool add {\"sum\": 2}\n/tool add\n", None, true).unwrap();
        assert_eq!(run.out, "ok\nok\n");
        assert_eq!(run.notes.matches("> ").count(), 4, "{}", run.notes);
        assert!(run.notes.contains("/tool NAME RESULT"), "{}", run.notes);
        assert_eq!(model.calls[3], bytes("<end>t:{\"sum\": 2}<end>a:"));
        assert_eq!(
            Line::read("/tool f  a b"),
            Line::Message(Message::tool("f", "a b"))
        );
        assert_eq!(
            Line::read("/reset all"),
            Line::Message(Message::user("/reset all"))
        );
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
