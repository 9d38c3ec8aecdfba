//! `tlite generate`.

use super::answer::{AnswerOptions, Facts, Outcome, Reading, answer};
use super::interrupt::Interrupt;
use super::load::{LoadTime, milliseconds, model_folder, print_loaded, waiting};
use super::options::{ExecOptions, MODEL, MODEL_LONG, MODEL_OPTION, Verbosity, read_text};
use super::output::{figures, note, put, put_json, text_output};
use super::sampling::{Chosen, SamplingOptions};
use super::template::TemplateOptions;
use serde::Serialize;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use transformer_lite::unstable::error::{Error, ErrorKind, Result, Stage};
use transformer_lite::unstable::files::read::{MAX_TEXT_FILE, read_all};
use transformer_lite::unstable::llm::load::{PlaceName, Used};
use transformer_lite::unstable::llm::template::Values;
use transformer_lite::unstable::llm::{Cancel, Codec, Finish, GenerateOptions, Message, Model};

const EXAMPLES: &str = "\
Examples:
  tlite generate MODEL \"What is the capital of France?\"
  tlite generate -m MODEL -n 100 --temp 0 -p \"Write a haiku about rain\"
  git diff | tlite generate MODEL --system \"Summarize this diff\" -p -";

/// Largest number of tokens of an answer by default.
const MAX_TOKENS: usize = 1024;

/// Answer a single prompt
///
/// The prompt goes through the model's chat template as a user message, unless --raw is given. The
/// answer goes to standard output, everything else to standard error.
#[derive(Debug, clap::Args)]
#[command(override_usage = "tlite generate [OPTIONS] MODEL [PROMPT]", after_help = EXAMPLES)]
pub struct Args {
    #[arg(help = MODEL, long_help = MODEL_LONG, required_unless_present = "model_option")]
    model: Option<PathBuf>,
    /// Prompt; `-` reads it from standard input
    #[arg(value_name = "PROMPT")]
    text: Option<String>,
    #[arg(help = MODEL_OPTION, id = "model_option", short = 'm', long = "model", value_name = "MODEL")]
    option: Option<PathBuf>,
    /// Same as the argument PROMPT
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// Read the prompt from FILE
    #[arg(
        short,
        long,
        value_name = "FILE",
        conflicts_with = "prompt",
        hide_short_help = true
    )]
    file: Option<PathBuf>,
    /// Read standard input and put it before the prompt
    #[arg(long, hide_short_help = true)]
    stdin: bool,
    /// System prompt
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    system: Option<String>,
    /// Do not use the chat template
    #[arg(long)]
    raw: bool,
    /// Print one JSON object instead of the text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    verbosity: Verbosity,
    #[command(flatten)]
    answers: AnswerOptions,
    #[command(flatten)]
    sampling: SamplingOptions,
    #[command(flatten)]
    template: TemplateOptions,
    #[command(flatten)]
    exec: ExecOptions,
}

impl Args {
    /// Model and prompt. With `-m` the first argument is the prompt. Usage errors: no prompt, or
    /// two.
    fn given(&self) -> Result<(&Path, Given<'_>)> {
        let wrong = |what: &str| Err(Error::usage("PROMPT", what));
        let (model, argument) = match (&self.option, &self.model, &self.text) {
            (Some(_), Some(_), Some(_)) => {
                return wrong("expected one argument besides --model, the prompt; found two");
            }
            (Some(model), Some(prompt), None) => match prompt.to_str() {
                Some(prompt) => (model, Some(prompt)),
                None => return wrong("is not UTF-8"),
            },
            (Some(model), None, text) | (None, Some(model), text) => (model, text.as_deref()),
            (None, None, _) => return Err(Error::usage("MODEL", "no model is given")),
        };
        match (argument, self.prompt.as_deref(), self.file.as_deref()) {
            (Some(_), Some(_), _) => wrong("is given twice: as an argument and with --prompt"),
            (Some(_), _, Some(_)) => wrong("is given twice: as an argument and with --file"),
            (None, None, None) => {
                wrong("no prompt is given; add it after MODEL or with --prompt (- reads standard input)")
            }
            (_, _, Some(file)) => Ok((model, Given::File(file))),
            (Some("-"), ..) | (_, Some("-"), _) => Ok((model, Given::Input)),
            (Some(prompt), ..) | (_, Some(prompt), _) => Ok((model, Given::Text(prompt))),
        }
    }
}

/// Where the prompt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Given<'a> {
    Text(&'a str),
    File(&'a Path),
    /// Standard input.
    Input,
}

/// The value of `stop` in JSON.
fn stop(finish: Finish) -> &'static str {
    match finish {
        Finish::Eos(_) => "end_of_text",
        Finish::Stop => "stop_string",
        Finish::Complete => "grammar_complete",
        Finish::MaxTokens => "max_tokens",
        Finish::ContextFull => "context_full",
        Finish::Cancelled => "interrupted",
    }
}

/// The object of `tlite generate --json`.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(super) struct Report<'a> {
    /// Backend: `opencl`, `wgpu`, `cpu` or `reference`.
    backend: &'a str,
    /// Name of the device.
    device: &'a str,
    /// Name and version of its driver.
    driver: &'a str,
    #[serde(flatten)]
    used: Used,
    /// Tokens of the prompt, template included.
    prompt_tokens: usize,
    /// Those of them that `--prompt-cache` had already.
    reused_tokens: usize,
    /// Generated token IDs, without an end token.
    tokens: &'a [u32],
    /// Generated text, up to a stop string.
    text: &'a str,
    /// Why the answer ended: `end_of_text`, `stop_string`, `grammar_complete`, `max_tokens`,
    /// `context_full` or `interrupted`.
    stop: Option<&'static str>,
    /// Default bounds at which values ended, with --json-schema: `digits`, `characters`, `items`.
    reached: Vec<&'static str>,
    /// Seed of the sampler; null for greedy decoding.
    seed: Option<u64>,
    /// Milliseconds until the model was ready, compiling included.
    load_ms: f64,
    /// Milliseconds of them in which new kernels were compiled.
    compile_ms: f64,
    /// Prompt tokens per second.
    prefill_tokens_per_s: Option<f64>,
    /// Tokens per second after the first one.
    decode_tokens_per_s: Option<f64>,
    /// Tokens that a draft proposed.
    drafted_tokens: usize,
    /// Those of them that the model accepted.
    accepted_tokens: usize,
    /// Kernels compiled in this run; null for the interpreter.
    kernels_compiled: Option<u64>,
    /// Kernels taken from the cache; null for the interpreter.
    kernels_cached: Option<u64>,
    /// Kernels checked against the reference in this run.
    kernels_checked: usize,
}

/// The tokens of `prompt`. Without a chat template the prompt is used as it is, which a note says;
/// a system prompt is then a usage error.
fn prompt_tokens(
    codec: &Codec,
    prompt: &str,
    system: Option<&str>,
    raw: bool,
    options: &TemplateOptions,
    values: &Values,
) -> Result<Vec<u32>> {
    if raw || codec.template()?.is_none() {
        if let Some(option) = options.given() {
            let what = if raw {
                "has no effect with --raw"
            } else {
                "has no effect: the model has no chat template"
            };
            return Err(Error::usage(option, what));
        }
        if system.is_some() {
            return Err(Error::usage(
                "--system",
                "the model has no chat template, so it cannot take a system prompt",
            ));
        }
        if !raw {
            note("the model has no chat template; the prompt is used as it is");
        }
        return codec.encode(prompt, values, &Cancel::default());
    }
    let mut messages: Vec<Message> = system.map(Message::system).into_iter().collect();
    messages.push(Message::user(prompt));
    codec.encode(&messages, values, &Cancel::default())
}

/// The prompt; from a file or `input`, without one line end at its end. Usage errors: bytes that
/// are not UTF-8; a prompt without text.
fn read_prompt(prompt: Given<'_>, input: &mut dyn Read) -> Result<String> {
    let (text, name, empty) = match prompt {
        Given::Text(text) => (text.to_owned(), "PROMPT", "is empty".to_owned()),
        Given::Input => (
            standard_input(input)?,
            "--prompt -",
            "standard input is empty".to_owned(),
        ),
        Given::File(file) => {
            let empty = format!("{} is empty", file.display());
            (read_text("--file", file)?, "--file", empty)
        }
    };
    if text.trim().is_empty() {
        let what = format!("{empty}; give a prompt as text, with --file FILE, or on standard input (-)");
        return Err(Error::usage(name, what));
    }
    let end = ["\r\n", "\n"].into_iter().find(|end| text.ends_with(end));
    let whole = match (prompt, end) {
        (Given::Text(_), _) | (_, None) => text.as_str(),
        (_, Some(end)) => text.strip_suffix(end).unwrap_or(&text),
    };
    Ok(whole.to_owned())
}

fn standard_input(input: &mut dyn Read) -> Result<String> {
    let most = MAX_TEXT_FILE;
    let bytes = read_all(input, Path::new("standard input"), most)?;
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        let what =
            format!("standard input is not UTF-8 at byte {at}; convert it first, for example with iconv");
        Error::usage("--prompt -", what)
    })
}

fn report<'a>(
    model: &Model,
    place: &'a PlaceName,
    prompt_tokens: usize,
    seed: Option<u64>,
    outcome: &'a Outcome,
    time: LoadTime,
) -> Result<Report<'a>> {
    let (stats, metrics) = (model.stats(), &outcome.metrics);
    Ok(Report {
        backend: place.backend,
        device: &place.device,
        driver: &place.driver,
        used: model.used()?,
        prompt_tokens,
        reused_tokens: outcome.reused,
        tokens: &outcome.tokens,
        text: &outcome.text,
        stop: outcome.finish.map(stop),
        reached: outcome.reached.iter().map(|bound| bound.name()).collect(),
        seed,
        load_ms: milliseconds(time.all),
        compile_ms: milliseconds(time.compiling),
        prefill_tokens_per_s: metrics.prefill_tokens_per_s(),
        decode_tokens_per_s: metrics.decode_tokens_per_s(),
        drafted_tokens: metrics.drafted,
        accepted_tokens: metrics.accepted,
        kernels_compiled: stats.map(|s| s.compiles),
        kernels_cached: stats.map(|s| s.cached),
        kernels_checked: model.validated_kernels(),
    })
}

pub fn run(args: &Args, interrupt: &Interrupt) -> Result<()> {
    args.verbosity.apply(args.json);
    let (model, prompt) = args.given()?;
    args.answers.check()?;
    let values = args.template.values()?;
    let ends = args.answers.stop_strings()?;
    let mut folder = model_folder("MODEL", model, &["tokenizer.json"], interrupt)?;
    folder.limits = args.exec.on.limits.limits.clone();
    let codec = args.template.codec(&folder)?;
    let Chosen { sampler, words, seed } = args.sampling.sampler(&folder, codec.tokenizer())?;
    let sampler = args.answers.constrain(sampler, &codec)?;
    let mut prompt = read_prompt(prompt, &mut std::io::stdin())?;
    if args.stdin {
        let before = standard_input(&mut std::io::stdin())?;
        if !before.trim().is_empty() {
            prompt = format!("{}\n\n{prompt}", before.trim_end());
        }
    }
    let system = args.system.as_deref();
    let prompt = prompt_tokens(&codec, &prompt, system, args.raw, &args.template, &values)?;

    let options = args.answers.load_options(&args.exec, &sampler);
    let ((model, mut session), time) = waiting(&folder, |on_progress| {
        let model = Model::with_codec(&folder, codec.clone(), &options, on_progress)?;
        let session = args.answers.session(&model, sampler, &args.exec, on_progress)?;
        Ok((model, session))
    })?;
    let place = model.place();
    print_loaded(model.notes(), &place, time);

    let generating = interrupt.generating();
    let reading = Reading::default();
    let options = GenerateOptions {
        max_tokens: args.answers.max_tokens().unwrap_or(MAX_TOKENS),
        stop: ends,
        cancel: generating.flag(),
        slide: args.answers.context_shift.then_some(prompt.len()),
        progress: reading.progress(),
        log_probs: None,
        template_values: values,
    };
    let mut stdout = text_output();
    let mut nowhere = std::io::sink();
    let live: &mut dyn Write = if args.json { &mut nowhere } else { &mut *stdout };
    let outcome = answer(&mut session, prompt.as_slice(), &options, live)?;
    drop((generating, reading));
    let facts = Facts::new(words, &model.used()?);
    if args.json {
        put_json(
            &mut *stdout,
            &report(&model, &place, prompt.len(), seed, &outcome, time)?,
        )?;
    } else if options.max_tokens > 0 {
        put(&mut *stdout, "\n")?;
    }
    figures(&outcome.status_line(&facts, false));
    outcome.notes().for_each(|text| note(&text));
    if outcome.finish == Some(Finish::MaxTokens) && args.answers.max_tokens().is_none() {
        note(&format!(
            "stopped after {MAX_TOKENS} tokens, the default; -n N sets the limit, -n -1 removes it"
        ));
    }
    args.answers.save(&mut session)?;
    let is_cut = matches!(outcome.finish, Some(Finish::MaxTokens | Finish::ContextFull));
    if is_cut && args.answers.is_constrained() && !args.json {
        let what = "the answer was cut off before it matched; -n N sets another limit of tokens";
        return Err(Error::other(Stage::Text, what).of_kind(ErrorKind::LimitExceeded));
    }
    if outcome.finish == Some(Finish::Cancelled) {
        return Err(Error::Interrupted);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tlite_testing::llm::testing::byte_codec;

    #[test]
    fn prompts_go_through_the_template() {
        let config = r#"{"chat_template": "{% for m in messages %}<start>{{ m.role[0] }}:{{ m.content }}{% endfor %}"}"#;
        let (_dir, chat) = byte_codec(config);
        let tokens = |codec: &Codec, system: Option<&str>, raw| {
            let (options, values) = (TemplateOptions::default(), Values::new());
            prompt_tokens(codec, "hi", system, raw, &options, &values)
        };
        let ids = |parts: &[&str]| -> Vec<u32> {
            parts
                .iter()
                .flat_map(|p| std::iter::once(256).chain(p.bytes().map(u32::from)))
                .collect()
        };
        // Byte-level tokens of ASCII text are the bytes themselves.
        assert_eq!(tokens(&chat, None, false).unwrap(), ids(&["u:hi"]));
        assert_eq!(tokens(&chat, Some("s"), false).unwrap(), ids(&["s:s", "u:hi"]));
        assert_eq!(tokens(&chat, None, true).unwrap(), ids(&["hi"]));
        let (_dir, plain) = byte_codec("{}");
        assert_eq!(tokens(&plain, None, false).unwrap(), ids(&["hi"]));
        assert!(tokens(&plain, Some("s"), false).unwrap_err().is_usage());
    }

    #[test]
    fn prompts_from_standard_input() {
        let read = |bytes: &[u8]| read_prompt(Given::Input, &mut { bytes });
        let text = |text| read_prompt(Given::Text(text), &mut "unread".as_bytes());
        assert_eq!(text("text\n").unwrap(), "text\n");
        for (given, taken) in [("é\n", "é"), ("a\r\n", "a"), ("a\n\n", "a\n"), ("a", "a")] {
            assert_eq!(read(given.as_bytes()).unwrap(), taken, "{given:?}");
        }
        for empty in ["", "\n", " \n\n"] {
            assert!(read(empty.as_bytes()).unwrap_err().is_usage(), "{empty:?}");
            assert!(text(empty).unwrap_err().is_usage());
        }
        let e = read(&[b'a', 0xff]).unwrap_err();
        assert!(e.is_usage() && e.to_string().contains("byte 1"), "{e}");
    }

    #[test]
    fn model_and_prompt_are_arguments_or_options() {
        use clap::{Args as _, FromArgMatches};
        let given = |args: &[&str]| -> Result<String> {
            let command = Args::augment_args(clap::Command::new("tlite"));
            let args = std::iter::once(&"tlite").chain(args);
            let args = Args::from_arg_matches(&command.get_matches_from(args)).unwrap();
            let (model, prompt) = args.given()?;
            Ok(format!("{} {prompt:?}", model.display()))
        };
        let expected = "m Text(\"hi\")";
        for args in [
            &["m", "hi"][..],
            &["m", "-p", "hi"],
            &["m", "--prompt", "hi"],
            &["-m", "m", "hi"],
            &["--model", "m", "-p", "hi"],
        ] {
            assert_eq!(given(args).unwrap(), expected, "{args:?}");
        }
        assert_eq!(given(&["m", "-"]).unwrap(), "m Input");
        assert_eq!(given(&["-f", "a.txt", "m"]).unwrap(), "m File(\"a.txt\")");
        for args in [
            &["m"][..],
            &["-m", "m"],
            &["m", "hi", "-p", "hi"],
            &["m", "hi", "-f", "a.txt"],
            &["-m", "m", "a", "b"],
        ] {
            assert!(given(args).unwrap_err().is_usage(), "{args:?}");
        }
    }
}
