//! `tlite generate`.

use super::interrupt::Interrupt;
use super::load::{load, open_folder};
use super::options::ExecOptions;
use super::output::{note, put, put_json, spinner};
use super::sampling::SamplingOptions;
use crate::error::{Error, Result};
use crate::llm::engine::Logits;
use crate::llm::{
    ChatTemplate, Finish, Generator, Limits, Message, Metrics, Model, ModelFolder, Sampler, Tokenizer,
};
use serde::Serialize;
use std::io::{Read, Write};
use std::path::PathBuf;

/// Continue a prompt
///
/// The prompt is sent as a user's message through the model's chat template, unless --raw is given.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder with model.onnx, tokenizer.json and the config files
    model: PathBuf,
    /// The prompt; `-` reads it from standard input
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: String,
    /// Feed the prompt as it is, without the chat template
    #[arg(long)]
    raw: bool,
    /// Instructions that stand before the prompt
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    system: Option<String>,
    /// Print one JSON object instead of the text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    sampling: SamplingOptions,
    #[command(flatten)]
    exec: ExecOptions,
}

/// What a generation gave.
#[derive(Debug, PartialEq)]
pub struct Outcome {
    /// Generated ids, without an end token.
    pub tokens: Vec<u32>,
    /// Their text.
    pub text: String,
    /// Why it ended.
    pub finish: Option<Finish>,
    /// Counts and times.
    pub metrics: Metrics,
}

impl Outcome {
    /// One line for people.
    pub fn speed_line(&self) -> String {
        let why = self.finish.map_or_else(String::new, |f| format!(" ({f})"));
        format!("[{}, {} tokens generated{why}]", self.metrics, self.tokens.len())
    }
}

/// The name of an end in JSON.
fn stop(finish: Finish) -> &'static str {
    match finish {
        Finish::Eos(_) => "end_of_text",
        Finish::MaxTokens => "max_tokens",
        Finish::ContextFull => "context_full",
        Finish::Cancelled => "interrupted",
    }
}

/// The object of `--json`.
#[derive(Debug, Serialize)]
struct Report<'a> {
    backend: &'a str,
    device: &'a str,
    driver: &'a str,
    prompt_tokens: usize,
    tokens: &'a [u32],
    text: &'a str,
    /// Why it ended.
    stop: Option<&'static str>,
    load_ms: f64,
    prefill_tokens_per_s: Option<f64>,
    decode_tokens_per_s: Option<f64>,
}

/// Feeds `prompt` and writes the text that follows to `out` as it comes.
pub fn stream(
    model: &mut dyn Model,
    tokenizer: &Tokenizer,
    sampler: &mut Sampler,
    prompt: &[u32],
    limits: Limits,
    out: &mut dyn Write,
) -> Result<Outcome> {
    let mut generator = Generator::new(model, sampler, prompt, limits)?;
    let mut decoder = tokenizer.stream();
    let mut tokens = Vec::new();
    let mut text = String::new();
    let mut show = |piece: String| {
        text.push_str(&piece);
        if piece.is_empty() {
            Ok(())
        } else {
            put(out, &piece)
        }
    };
    for token in generator.by_ref() {
        let token = token?;
        tokens.push(token.id);
        show(decoder.push(token.id)?)?;
    }
    show(decoder.finish()?)?;
    Ok(Outcome {
        tokens,
        text,
        finish: generator.finish(),
        metrics: generator.metrics(),
    })
}

/// The tokens to feed for `prompt`. Where the model has no chat template the prompt is fed as it is, and
/// `notes` says so; with a system text that is a usage error.
fn prompt_tokens(
    folder: &ModelFolder,
    tokenizer: &Tokenizer,
    prompt: &str,
    system: Option<&str>,
    raw: bool,
    notes: &mut dyn Write,
) -> Result<Vec<u32>> {
    let template = if raw { None } else { ChatTemplate::find(folder)? };
    let Some(template) = template else {
        if system.is_some() {
            return Err(Error::usage(
                "--system",
                "the model has no chat template that could place it",
            ));
        }
        if !raw {
            note(
                notes,
                "note: the model has no chat template; the prompt is fed as it is",
            );
        }
        return tokenizer.encode(prompt, true);
    };
    let mut messages: Vec<Message> = system.map(Message::system).into_iter().collect();
    messages.push(Message::user(prompt));
    tokenizer.encode(&template.render(&messages, true)?, false)
}

fn read_prompt(prompt: &str, input: &mut dyn Read) -> Result<String> {
    if prompt != "-" {
        return Ok(prompt.to_owned());
    }
    let mut bytes = Vec::new();
    input
        .read_to_end(&mut bytes)
        .map_err(|e| Error::io("cannot read", std::path::Path::new("standard input"), e))?;
    String::from_utf8(bytes).map_err(|e| {
        Error::usage(
            "--prompt -",
            format!(
                "standard input is not UTF-8 at byte {}",
                e.utf8_error().valid_up_to()
            ),
        )
    })
}

/// Runs the command.
pub fn run(args: &Args, interrupt: &Interrupt) -> Result<()> {
    let mut notes = std::io::stderr();
    let folder = open_folder(&args.model, &["tokenizer.json"])?;
    let tokenizer = Tokenizer::load(folder.dir())?;
    let mut sampler = args.sampling.sampler(&tokenizer)?;
    let prompt = read_prompt(&args.prompt, &mut std::io::stdin())?;
    let prompt = prompt_tokens(
        &folder,
        &tokenizer,
        &prompt,
        args.system.as_deref(),
        args.raw,
        &mut notes,
    )?;

    let progress = spinner(format!("loading {}", folder.name()));
    let loaded = load(folder.dir(), &args.exec, Logits::Last);
    progress.finish_and_clear();
    let mut loaded = loaded?;

    let generating = interrupt.generating();
    let limits = Limits {
        max_tokens: args.sampling.max_tokens.get(),
        eos: folder.eos_ids(&tokenizer),
        cancel: generating.flag(),
    };
    let mut stdout = std::io::stdout().lock();
    let mut nowhere = std::io::sink();
    let live: &mut dyn Write = if args.json { &mut nowhere } else { &mut stdout };
    let outcome = stream(
        loaded.model.as_mut(),
        &tokenizer,
        &mut sampler,
        &prompt,
        limits,
        live,
    )?;
    drop(generating);
    if args.json {
        let report = Report {
            backend: &loaded.backend,
            device: &loaded.device,
            driver: &loaded.driver,
            prompt_tokens: prompt.len(),
            tokens: &outcome.tokens,
            text: &outcome.text,
            stop: outcome.finish.map(stop),
            load_ms: loaded.load_ms,
            prefill_tokens_per_s: outcome.metrics.prefill_tokens_per_s(),
            decode_tokens_per_s: outcome.metrics.decode_tokens_per_s(),
        };
        put_json(&mut stdout, &report)?;
    } else {
        put(&mut stdout, "\n")?;
    }
    note(
        &mut notes,
        &format!(
            "{} on {}, loaded in {:.0} ms",
            loaded.backend, loaded.device, loaded.load_ms
        ),
    );
    note(&mut notes, &outcome.speed_line());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::SamplerConfig;
    use crate::llm::testing::{FakeModel, write_byte_level_tokenizer};

    fn folder(config: &str) -> (tempfile::TempDir, ModelFolder, Tokenizer) {
        let dir = tempfile::tempdir().unwrap();
        write_byte_level_tokenizer(dir.path());
        std::fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
        let folder = ModelFolder::open(dir.path()).unwrap();
        let tokenizer = Tokenizer::load(dir.path()).unwrap();
        (dir, folder, tokenizer)
    }

    /// Says `text` and the end token after a prompt of `start` tokens.
    fn saying(text: &'static str, start: usize) -> FakeModel {
        FakeModel::new(258, 64, move |cache| {
            text.as_bytes()
                .get(cache.len() - start)
                .map_or(257, |b| u32::from(*b))
        })
    }

    #[derive(Default)]
    struct Pieces(Vec<String>);

    impl Write for Pieces {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.push(String::from_utf8(bytes.to_vec()).unwrap());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn text_is_streamed_in_whole_characters() {
        let (_dir, _folder, tokenizer) = folder("{}");
        let mut sampler = Sampler::new(SamplerConfig::default()).unwrap();
        let limits = |max_tokens| Limits {
            max_tokens,
            eos: vec![257],
            ..Limits::default()
        };
        let mut out = Pieces::default();
        let mut model = saying("aé!", 2);
        let outcome = stream(&mut model, &tokenizer, &mut sampler, &[1, 2], limits(9), &mut out).unwrap();
        assert_eq!(out.0, ["a", "é", "!"]);
        assert_eq!((outcome.text.as_str(), outcome.tokens.len()), ("aé!", 4));
        assert_eq!(outcome.finish, Some(Finish::Eos(257)));
        assert!(
            outcome
                .speed_line()
                .ends_with("4 tokens generated (end of text)]"),
            "{}",
            outcome.speed_line()
        );

        let mut out = Pieces::default();
        model.truncate(0);
        let outcome = stream(&mut model, &tokenizer, &mut sampler, &[1, 2], limits(2), &mut out).unwrap();
        assert_eq!(
            (out.0, outcome.text.as_str()),
            (vec!["a".to_owned(), "\u{fffd}".to_owned()], "a\u{fffd}")
        );
    }

    #[test]
    fn a_closed_output_stops_generation() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
                Err(std::io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let (_dir, _folder, tokenizer) = folder("{}");
        let mut sampler = Sampler::new(SamplerConfig::default()).unwrap();
        let mut model = saying("abc", 1);
        let limits = Limits {
            max_tokens: 9,
            ..Limits::default()
        };
        let e = stream(&mut model, &tokenizer, &mut sampler, &[1], limits, &mut Closed).unwrap_err();
        assert!(super::super::is_broken_pipe(&e), "{e}");
        assert_eq!(model.calls.len(), 1);
    }

    #[test]
    fn prompts_go_through_the_template() {
        let config = r#"{"chat_template": "{% for m in messages %}<start>{{ m.role[0] }}:{{ m.content }}{% endfor %}"}"#;
        let (_dir, chat, tokenizer) = folder(config);
        let mut notes = Vec::new();
        let tokens = |folder: &ModelFolder, system: Option<&str>, raw, notes: &mut Vec<u8>| {
            prompt_tokens(folder, &tokenizer, "hi", system, raw, notes)
        };
        let ids = |parts: &[&str]| -> Vec<u32> {
            parts
                .iter()
                .flat_map(|p| std::iter::once(256).chain(p.bytes().map(u32::from)))
                .collect()
        };
        // Byte-level tokens of ASCII text are the bytes themselves.
        assert_eq!(tokens(&chat, None, false, &mut notes).unwrap(), ids(&["u:hi"]));
        assert_eq!(
            tokens(&chat, Some("s"), false, &mut notes).unwrap(),
            ids(&["s:s", "u:hi"])
        );
        assert_eq!(tokens(&chat, None, true, &mut notes).unwrap(), ids(&["hi"]));
        assert!(notes.is_empty());
        let (_dir, plain, _) = folder("{}");
        assert_eq!(tokens(&plain, None, false, &mut notes).unwrap(), ids(&["hi"]));
        assert!(
            String::from_utf8(std::mem::take(&mut notes))
                .unwrap()
                .contains("no chat template")
        );
        assert!(
            tokens(&plain, Some("s"), false, &mut notes)
                .unwrap_err()
                .is_usage()
        );
    }

    #[test]
    fn prompts_from_standard_input() {
        assert_eq!(read_prompt("text", &mut "unread".as_bytes()).unwrap(), "text");
        assert_eq!(read_prompt("-", &mut "é\n".as_bytes()).unwrap(), "é\n");
        assert!(
            read_prompt("-", &mut [b'a', 0xff].as_slice())
                .unwrap_err()
                .to_string()
                .contains("byte 1")
        );
    }
}
