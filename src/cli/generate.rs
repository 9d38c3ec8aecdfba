//! `tlite generate`.

use super::answer::{AnswerOptions, Reading, answer};
use super::interrupt::Interrupt;
use super::load::{print_notes, waiting};
use super::options::ExecOptions;
use super::output::{note, put, put_json};
use super::sampling::SamplingOptions;
use super::template::TemplateOptions;
use crate::error::{Error, Result};
use crate::llm::load::Used;
use crate::llm::template::Values;
use crate::llm::{Codec, Finish, GenerateOptions, Message, Model, ModelFolder};
use serde::Serialize;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;

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
    template: TemplateOptions,
    #[command(flatten)]
    answers: AnswerOptions,
    #[command(flatten)]
    exec: ExecOptions,
}

/// The name of an end in JSON.
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

/// The object of `--json`.
#[derive(Debug, Serialize)]
struct Report<'a> {
    backend: &'a str,
    device: &'a str,
    driver: &'a str,
    #[serde(flatten)]
    used: Used,
    prompt_tokens: usize,
    reused_tokens: usize,
    tokens: &'a [u32],
    text: &'a str,
    /// Why it ended.
    stop: Option<&'static str>,
    load_ms: f64,
    prefill_tokens_per_s: Option<f64>,
    decode_tokens_per_s: Option<f64>,
    drafted_tokens: usize,
    accepted_tokens: usize,
    /// Of what the model runs on a device.
    kernels_compiled: Option<u64>,
    kernels_cached: Option<u64>,
    kernels_checked: usize,
}

/// The tokens to feed for `prompt`. Where the model has no chat template the prompt is fed as it is, and
/// `notes` says so; with a system text that is a usage error.
fn prompt_tokens(
    codec: &Codec,
    prompt: &str,
    system: Option<&str>,
    raw: bool,
    options: &TemplateOptions,
    values: &Values,
    notes: &mut dyn Write,
) -> Result<Vec<u32>> {
    if raw || codec.template()?.is_none() {
        if let Some(option) = options.given() {
            let what = if raw {
                "has no effect with --raw"
            } else {
                "the model has no chat template that could take it"
            };
            return Err(Error::usage(option, what));
        }
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
        return codec.encode(prompt, values);
    }
    let mut messages: Vec<Message> = system.map(Message::system).into_iter().collect();
    messages.push(Message::user(prompt));
    codec.encode(&messages, values)
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
    let folder = ModelFolder::holding(
        "MODEL",
        &super::model::resolve(&args.model, interrupt)?,
        &["tokenizer.json"],
    )?;
    args.answers.check()?;
    let values = args.template.values()?;
    let codec = Arc::new(Codec::load(folder.clone())?);
    let sampler = args.sampling.sampler(codec.tokenizer())?;
    let sampler = args.answers.constrain(sampler, &codec)?;
    let prompt = read_prompt(&args.prompt, &mut std::io::stdin())?;
    let system = args.system.as_deref();
    let prompt = prompt_tokens(
        &codec,
        &prompt,
        system,
        args.raw,
        &args.template,
        &values,
        &mut notes,
    )?;
    let ends = args.answers.stop_strings()?;

    let options = args.answers.load_options(&args.exec, &sampler);
    let ((model, mut session), load_ms) = waiting(&folder, |hear| {
        let model = Model::with_codec(&folder, codec.clone(), &options, hear)?;
        let session = args.answers.session(&model, sampler, &args.exec, hear)?;
        Ok((model, session))
    })?;
    print_notes(model.notes());
    let place = model.place();

    let generating = interrupt.generating();
    let reading = Reading::default();
    let options = GenerateOptions {
        max_tokens: args.sampling.max_tokens,
        stop: ends,
        cancel: generating.flag(),
        slide: args.answers.context_shift.then_some(prompt.len()),
        progress: reading.progress(),
        template_values: values,
    };
    let mut stdout = std::io::stdout().lock();
    let mut nowhere = std::io::sink();
    let live: &mut dyn Write = if args.json { &mut nowhere } else { &mut stdout };
    let outcome = answer(&mut session, prompt.as_slice(), &options, live)?;
    drop((generating, reading));
    if args.json {
        let stats = model.stats();
        let report = Report {
            backend: place.backend,
            device: &place.device,
            driver: &place.driver,
            used: model.used()?,
            prompt_tokens: prompt.len(),
            reused_tokens: outcome.reused,
            tokens: &outcome.tokens,
            text: &outcome.text,
            stop: outcome.finish.map(stop),
            load_ms,
            prefill_tokens_per_s: outcome.metrics.prefill_tokens_per_s(),
            decode_tokens_per_s: outcome.metrics.decode_tokens_per_s(),
            drafted_tokens: outcome.metrics.drafted,
            accepted_tokens: outcome.metrics.accepted,
            kernels_compiled: stats.map(|s| s.compiles),
            kernels_cached: stats.map(|s| s.cached),
            kernels_checked: model.checked_kernels(),
        };
        put_json(&mut stdout, &report)?;
    } else if options.max_tokens > 0 {
        put(&mut stdout, "\n")?;
    }
    note(
        &mut notes,
        &format!("{} on {}, loaded in {load_ms:.0} ms", place.backend, place.device),
    );
    note(&mut notes, &outcome.speed_line());
    args.answers.save(&mut session)?;
    if outcome.finish == Some(Finish::Cancelled) {
        return Err(Error::Interrupted);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::testing::byte_codec;

    #[test]
    fn prompts_go_through_the_template() {
        let config = r#"{"chat_template": "{% for m in messages %}<start>{{ m.role[0] }}:{{ m.content }}{% endfor %}"}"#;
        let (_dir, chat) = byte_codec(config);
        let mut notes = Vec::new();
        let tokens = |codec: &Codec, system: Option<&str>, raw, notes: &mut Vec<u8>| {
            let (options, values) = (TemplateOptions::default(), Values::new());
            prompt_tokens(codec, "hi", system, raw, &options, &values, notes)
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
        let (_dir, plain) = byte_codec("{}");
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
