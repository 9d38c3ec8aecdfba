//! `tlite chat`.

use super::generate::{Outcome, stream};
use super::interrupt::Interrupt;
use super::load::{load, open_folder};
use super::options::ExecOptions;
use super::output::{note, put, spinner};
use super::sampling::SamplingOptions;
use crate::error::{Error, Result};
use crate::llm::engine::Logits;
use crate::llm::{ChatTemplate, Finish, Limits, Message, Model, Sampler, Tokenizer};
use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

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
    exec: ExecOptions,
}

/// A conversation and the part of it that the model's cache holds.
struct Session<'a> {
    model: &'a mut dyn Model,
    tokenizer: &'a Tokenizer,
    template: &'a ChatTemplate,
    sampler: Sampler,
    eos: Vec<u32>,
    max_tokens: usize,
    system: Option<Message>,
    /// Messages after the system's.
    messages: Vec<Message>,
    /// Tokens in the cache.
    cached: Vec<u32>,
}

/// What became of a message.
enum Reply {
    /// It was answered.
    Answer(Outcome),
    /// The conversation with it has this many tokens, more than the context; it was dropped.
    Full(usize),
}

impl Session<'_> {
    /// Answers `text` to `out`. Tokens that the conversation shares with the cache are not fed again.
    fn answer(&mut self, text: &str, interrupt: &Interrupt, out: &mut dyn Write) -> Result<Reply> {
        self.messages.push(Message::user(text));
        let all: Vec<Message> = self.system.iter().chain(&self.messages).cloned().collect();
        let tokens = self.tokenizer.encode(&self.template.render(&all, true)?, false)?;
        if tokens.len() > self.model.context() {
            self.messages.pop();
            return Ok(Reply::Full(tokens.len()));
        }
        // The last token is fed in any case: the answer starts from its logits.
        let common = tokens
            .iter()
            .zip(&self.cached)
            .take_while(|(a, b)| a == b)
            .count();
        let kept = common.min(tokens.len().saturating_sub(1));
        self.model.truncate(kept);
        let generating = interrupt.generating();
        let limits = Limits {
            max_tokens: self.max_tokens,
            eos: self.eos.clone(),
            cancel: generating.flag(),
        };
        let new = tokens.get(kept..).unwrap_or(&[]);
        let outcome = stream(self.model, self.tokenizer, &mut self.sampler, new, limits, out)?;
        self.cached = tokens;
        self.cached.extend(&outcome.tokens);
        self.cached.truncate(self.model.len());
        self.messages.push(Message::assistant(outcome.text.clone()));
        Ok(Reply::Answer(outcome))
    }

    fn reset(&mut self) {
        self.messages.clear();
        self.cached.clear();
        self.model.truncate(0);
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
fn talk(session: &mut Session<'_>, console: &mut Console<'_>, interrupt: &Interrupt) -> Result<()> {
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
                session.reset();
                note(console.notes, "[conversation forgotten]");
            }
            command if command.starts_with('/') && !command.contains(char::is_whitespace) => {
                note(
                    console.notes,
                    &format!("note: {command} is no command; there are /reset and /exit"),
                );
            }
            text => match session.answer(text, interrupt, console.out)? {
                Reply::Answer(outcome) => {
                    put(console.out, "\n")?;
                    note(console.notes, &outcome.speed_line());
                    if outcome.finish == Some(Finish::ContextFull) {
                        let held = session.model.context();
                        note(
                            console.notes,
                            &format!("note: the context of {held} tokens is full; /reset starts anew"),
                        );
                    }
                }
                Reply::Full(needed) => {
                    let held = session.model.context();
                    let what = format!(
                        "note: the conversation needs {needed} tokens, the context holds {held}; the message was \
                         not sent; /reset starts anew, a larger --context may help"
                    );
                    note(console.notes, &what);
                }
            },
        }
    }
}

/// Runs the command.
pub fn run(args: &Args, interrupt: &Interrupt) -> Result<()> {
    let folder = open_folder(&args.model, &["tokenizer.json"])?;
    let tokenizer = Tokenizer::load(folder.dir())?;
    let sampler = args.sampling.sampler(&tokenizer)?;
    let template = ChatTemplate::load(&folder)?;
    let progress = spinner(format!("loading {}", folder.name()));
    let loaded = load(folder.dir(), &args.exec, Logits::Last);
    progress.finish_and_clear();
    let mut loaded = loaded?;

    let mut notes = std::io::stderr();
    note(
        &mut notes,
        &format!(
            "{} on {}, loaded in {:.0} ms",
            loaded.backend, loaded.device, loaded.load_ms
        ),
    );
    let stdin = std::io::stdin();
    let prompt = stdin.is_terminal() && notes.is_terminal();
    if prompt {
        note(
            &mut notes,
            "/reset forgets the conversation, /exit ends, Ctrl-C stops an answer",
        );
    }
    let mut session = Session {
        model: loaded.model.as_mut(),
        tokenizer: &tokenizer,
        template: &template,
        sampler,
        eos: folder.eos_ids(&tokenizer),
        max_tokens: args.sampling.max_tokens.get(),
        system: args.system.as_deref().map(Message::system),
        messages: Vec::new(),
        cached: Vec::new(),
    };
    let (mut input, mut out) = (stdin.lock(), std::io::stdout().lock());
    let mut console = Console {
        input: &mut input,
        out: &mut out,
        notes: &mut notes,
        prompt,
    };
    talk(&mut session, &mut console, interrupt)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::testing::{FakeModel, write_byte_level_tokenizer};
    use crate::llm::{ModelFolder, SamplerConfig};

    const TEMPLATE: &str = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}<end>{% endfor %}\
                            {% if add_generation_prompt %}a:{% endif %}";

    struct Run {
        out: String,
        notes: String,
    }

    /// Feeds `input` to a chat with `model`, whose tokens are bytes, 256 `<start>` and 257 `<end>`.
    fn chat(model: &mut FakeModel, input: &[u8], system: Option<&str>, prompt: bool) -> Result<Run> {
        let dir = tempfile::tempdir().unwrap();
        write_byte_level_tokenizer(dir.path());
        std::fs::write(dir.path().join("chat_template.jinja"), TEMPLATE).unwrap();
        let folder = ModelFolder::open(dir.path()).unwrap();
        let tokenizer = Tokenizer::load(dir.path()).unwrap();
        let template = ChatTemplate::load(&folder).unwrap();
        let mut session = Session {
            model,
            tokenizer: &tokenizer,
            template: &template,
            sampler: Sampler::new(SamplerConfig::default()).unwrap(),
            eos: vec![257],
            max_tokens: 8,
            system: system.map(Message::system),
            messages: Vec::new(),
            cached: Vec::new(),
        };
        let (mut input, mut out, mut notes) = (input, Vec::new(), Vec::new());
        let mut console = Console {
            input: &mut input,
            out: &mut out,
            notes: &mut notes,
            prompt,
        };
        talk(&mut session, &mut console, &Interrupt::without_handler())?;
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
    fn what_differs_from_the_cache_is_fed_again() {
        // The answer is half a character, which comes back from the history as another text.
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
        assert_eq!(second, &bytes("\u{fffd}<end>u:b<end>a:"));
        assert_eq!(
            model.cache,
            [bytes("s:s<end>u:a<end>a:\u{fffd}<end>u:b<end>a:"), vec![0xc3]].concat()
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
