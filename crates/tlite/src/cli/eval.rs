//! `tlite eval`.

use super::interrupt::Interrupt;
use super::load::{load_model, model_folder};
use super::measuring::{ended, ended_before, int8_text, interruptible};
use super::options::{
    ExecOptions, MODEL, MODEL_LONG, MODEL_OPTION, Verbosity, check_report, from_one, read_text,
};
use super::output::{figures, print_report};
use schemars::JsonSchema;
use serde::Serialize;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Instant;
use transformer_lite::unstable::error::{Error, Result};
use transformer_lite::unstable::files::write_whole;
use transformer_lite::unstable::llm::load::Purpose;
use transformer_lite::unstable::llm::metrics::rate;
use transformer_lite::unstable::llm::multiple_choice::{Accuracy, Encoded, Question, best, best_normalized};
use transformer_lite::unstable::llm::{ModelFolder, Tokenizer};

const EXAMPLES: &str = "\
Examples:
  tlite eval MODEL questions.jsonl
  tlite eval MODEL questions.jsonl --limit 100 --json
  tlite eval QUANTIZED questions.jsonl --output answers.jsonl";

const FORMAT: &str = "\
Each line of FILE is an object, such as:
  {\"question\": \"The capital of France is\", \"choices\": [\"Rome\", \"Paris\"], \"answer\": 1}
`answer` is the index of the right choice, from 0. A field `id` is copied to --output; other fields
are ignored. Each choice continues the question after one space.

";

/// Measure the accuracy on multiple-choice questions
///
/// The model chooses the most likely choice. As in lm-evaluation-harness, `acc` compares the
/// log-likelihoods of the choices and `acc_norm` those per character. Each question is processed
/// once for all its choices. Ctrl-C stops: the results so far are shown, and the exit code is 130.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "tlite eval [OPTIONS] MODEL FILE",
    after_help = EXAMPLES,
    after_long_help = format!("{FORMAT}{EXAMPLES}")
)]
pub struct Args {
    #[arg(help = MODEL, long_help = MODEL_LONG, required_unless_present = "model_option")]
    model: Option<PathBuf>,
    /// Questions, one JSON object per line
    file: Option<PathBuf>,
    #[arg(help = MODEL_OPTION, id = "model_option", short = 'm', long = "model", value_name = "MODEL")]
    option: Option<PathBuf>,
    /// Answer only the first N questions
    #[arg(long, value_name = "N", value_parser = from_one)]
    limit: Option<NonZeroUsize>,
    /// Write the scores of each question to FILE, as JSON lines
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print one JSON object instead of the lines
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    verbosity: Verbosity,
    #[command(flatten)]
    exec: ExecOptions,
}

impl Args {
    /// Model and file. With `-m`, the first argument is the file.
    fn given(&self) -> Result<(&Path, &Path)> {
        match (&self.option, &self.model, &self.file) {
            (Some(model), Some(file), None) | (None, Some(model), Some(file)) => Ok((model, file)),
            (Some(_), Some(_), Some(_)) => {
                let what = "expected one argument besides --model, the questions; found two";
                Err(Error::usage("FILE", what))
            }
            _ => Err(Error::usage(
                "FILE",
                "no questions are given; add a file after MODEL",
            )),
        }
    }
}

/// The object of `tlite eval --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Object<'a> {
    /// Backend: `opencl`, `wgpu`, `cpu` or `reference`.
    backend: &'a str,
    /// Name of the device.
    device: &'a str,
    /// Name and version of its driver.
    driver: &'a str,
    /// Questions answered.
    questions: usize,
    /// Share answered right by the log-likelihoods of the choices, from 0 to 1.
    acc: f64,
    /// Standard error of `acc`.
    acc_stderr: f64,
    /// Share answered right by the log-likelihoods per character.
    acc_norm: f64,
    /// Standard error of `acc_norm`.
    acc_norm_stderr: f64,
    /// Tokens processed: each question once, and its choices.
    tokens: usize,
    /// Ctrl-C ended the run early.
    interrupted: bool,
    /// Processed tokens per second.
    tokens_per_s: Option<f64>,
}

impl Object<'_> {
    fn lines(&self) -> String {
        format!(
            "{} questions answered{}\nacc       {:.4} ± {:.4}\nacc_norm  {:.4} ± {:.4}\n",
            self.questions,
            if self.interrupted { ", interrupted" } else { "" },
            self.acc,
            self.acc_stderr,
            self.acc_norm,
            self.acc_norm_stderr
        )
    }
}

/// A line of `--output`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Answered {
    /// Line of the question in FILE, from 1.
    line: usize,
    /// `id` of the question, if it has one; of any type.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    id: Option<serde_json::Value>,
    /// Index of the right choice.
    answer: usize,
    /// Index of the choice with the largest log-likelihood.
    choice: usize,
    /// Index of the choice with the largest log-likelihood per character.
    choice_norm: usize,
    /// Log-likelihood of each choice in nats.
    log_likelihoods: Vec<f64>,
}

/// A question of the file.
struct Asked {
    line: usize,
    question: Question,
    encoded: Encoded,
}

/// The first `limit` questions of the file at `path`. Usage errors name the line.
fn questions(path: &Path, limit: usize, folder: &ModelFolder, room: usize) -> Result<Vec<Asked>> {
    let tokenizer = Tokenizer::load(folder.dir())?;
    let start = tokenizer.start()?;
    let text = read_text("FILE", path)?;
    let lines = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty());
    let asked = lines.take(limit).map(|(text, line)| {
        let read = || {
            let question = Question::parse(text)?;
            let encoded = question.encode(&tokenizer, &start)?;
            encoded.check(room)?;
            Ok(Asked {
                line,
                question,
                encoded,
            })
        };
        read().map_err(|e| match e {
            Error::Usage { name, what, kind } => {
                let what = format!("{}: line {line}: {name}: {what}", path.display());
                Error::usage("FILE", what).of_kind(kind)
            }
            e => e,
        })
    });
    let asked = asked.collect::<Result<Vec<_>>>()?;
    match asked.is_empty() {
        true => {
            let what = format!("{}: expected at least 1 question, found 0", path.display());
            Err(Error::usage("FILE", what))
        }
        false => Ok(asked),
    }
}

pub fn run(args: &Args, interrupt: &Interrupt) -> Result<()> {
    args.verbosity.apply(args.json);
    let (model, file) = args.given()?;
    if let Some(output) = &args.output {
        check_report("--output", output, &[(file, "the questions")])?;
    }
    let folder = model_folder("MODEL", model, &["tokenizer.json"], interrupt)?;
    let room = folder.context(args.exec.context.map(NonZeroUsize::get))?;
    let asked = questions(
        file,
        args.limit.map_or(usize::MAX, NonZeroUsize::get),
        &folder,
        room,
    )?;
    let needed = asked.iter().map(|a| a.encoded.needed()).max().unwrap_or(0);
    let exec = ExecOptions {
        context: NonZeroUsize::new(needed.max(2)),
        ..args.exec.clone()
    };
    let mut model = load_model(&folder, &exec.load_options(), Purpose::Evaluation)?;

    let start = Instant::now();
    let [mut plain, mut normalized] = [Accuracy::default(); 2];
    let (mut tokens, mut answers) = (0, Vec::new());
    let ((), _) = interruptible(asked.len(), interrupt, |cancel, bar| {
        for a in &asked {
            let Some(scores) = a.encoded.score(model.model.as_mut(), cancel)? else {
                break;
            };
            let Question {
                choices, answer, id, ..
            } = &a.question;
            let answered = Answered {
                line: a.line,
                id: id.clone(),
                answer: *answer,
                choice: best(&scores),
                choice_norm: best_normalized(&scores, choices),
                log_likelihoods: scores,
            };
            plain.add(answered.choice == *answer);
            normalized.add(answered.choice_norm == *answer);
            tokens += a.encoded.tokens();
            answers.push(answered);
            bar.set_message(format!(
                "acc {:.3}, acc_norm {:.3}",
                plain.value(),
                normalized.value()
            ));
            bar.inc(1);
        }
        Ok(())
    })?;
    if plain.questions == 0 {
        return ended_before("a question was answered");
    }
    let object = Object {
        backend: model.place.backend,
        device: &model.place.device,
        driver: &model.place.driver,
        questions: plain.questions,
        acc: plain.value(),
        acc_stderr: plain.standard_error(),
        acc_norm: normalized.value(),
        acc_norm_stderr: normalized.standard_error(),
        tokens,
        interrupted: plain.questions < asked.len(),
        tokens_per_s: rate(tokens, start.elapsed()),
    };
    if let Some(output) = &args.output {
        write_whole(output, |out| {
            answers.iter().try_for_each(|a| {
                serde_json::to_writer(&mut *out, a)?;
                out.write_all(b"\n")
            })
        })?;
    }
    print_report(args.json, &object, || object.lines())?;
    let (backend, device) = (object.backend, object.device);
    let (speed, int8) = (object.tokens_per_s.unwrap_or(0.0), int8_text(&model.all.used()?));
    figures(&format!("[{speed:.0} tokens/s on {device} ({backend}){int8}]"));
    ended(object.interrupted)
}
