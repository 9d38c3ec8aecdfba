//! `tlite-qat distill`.

use super::{RunArgs, positive, print, size, whole};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use std::path::PathBuf;
use transformer_lite::unstable::quant::{Bits, Method};
use transformer_lite_qat::llm::decoder::Decoder;
use transformer_lite_qat::llm::distill::{self, Job, Progress};
use transformer_lite_qat::llm::grid::Start;
use transformer_lite_qat::llm::student::{Configuration, Measured, Quantizing};
use transformer_lite_qat::llm::text::{self, Settings};
use transformer_lite_qat::{Error, Result};

#[derive(Debug, Args)]
pub struct DistillArgs {
    /// Folder of the float model, as `tlite convert --float` writes it
    model: PathBuf,
    /// Folder to create
    #[arg(short, long, value_name = "FOLDER", required_unless_present = "text_only")]
    output: Option<PathBuf>,
    /// Bits of weights; embedding and output head have 8
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(2..=8))]
    bits: u64,
    /// Weights that share a scale: 16 to 256, a multiple of 8
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = whole(16, 256))]
    group_size: u64,
    /// How the ranges of groups are chosen
    #[arg(long, value_enum, default_value = "mse")]
    ranges: Ranges,
    /// Start from the weights and ranges of this folder, which `tlite quantize` made from MODEL
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["ranges", "no_quant"])]
    start: Option<PathBuf>,
    /// Train in floats on --text, and write a float model
    #[arg(long, requires = "text")]
    no_quant: bool,
    /// Train on this text instead of text that MODEL writes
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Text that MODEL writes: read if the file exists, else written [default: OUTPUT.text.jsonl]
    #[arg(long, value_name = "FILE", conflicts_with = "text")]
    teacher_text: Option<PathBuf>,
    /// Write the file of --teacher-text and stop
    #[arg(long, requires = "teacher_text")]
    text_only: bool,
    /// Sequences that MODEL writes
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = whole(1, 1 << 24))]
    sequences: u64,
    /// Sequences to measure the result with; they are not trained on
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = whole(0, 1 << 20))]
    held_out: u64,
    /// Tokens of a sequence
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = whole(2, 1 << 16))]
    length: u64,
    /// Steps of the run
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = whole(1, 1 << 40))]
    steps: u64,
    /// Sequences of a step
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = whole(1, 65536))]
    batch: u64,
    /// Sequences of a forward pass; fewer need less memory
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = whole(1, 65536))]
    at_once: u64,
    /// Learning rate after the first steps; it falls to 0 along half a cosine wave
    #[arg(long, visible_alias = "lr", value_name = "F", default_value_t = 1e-4, value_parser = positive)]
    learning_rate: f64,
    /// Seed of the order of sequences
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Seed of the text that MODEL writes
    #[arg(long, value_name = "N", default_value_t = 0)]
    text_seed: u64,
    #[command(flatten)]
    run: RunArgs,
}

/// Methods of `tlite quantize` that look only at weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Ranges {
    /// All weights are inside
    Rtn,
    /// Clipped for the least squared error
    Mse,
    /// Clipped for the least absolute error
    Mae,
}

impl From<Ranges> for Method {
    fn from(ranges: Ranges) -> Self {
        match ranges {
            Ranges::Rtn => Self::Rtn,
            Ranges::Mse => Self::Mse,
            Ranges::Mae => Self::Mae,
        }
    }
}

/// Trains a language model.
pub fn distill(args: &DistillArgs) -> Result<()> {
    let bits = Bits::new(i64::try_from(args.bits).unwrap_or(0));
    let bits = bits.ok_or_else(|| {
        Error::option(
            "--bits",
            format!("expected 2, 3, 4, 5, 6 or 8, found {}", args.bits),
        )
    })?;
    let group_size = size(args.group_size);
    if !group_size.is_multiple_of(8) {
        return Err(Error::option(
            "--group-size",
            format!("expected a multiple of 8, found {group_size}"),
        ));
    }
    let (decoder, values) = Decoder::open(&args.model)?;
    let device = args.run.device.open()?;
    let model = distill::model_checksum(&args.model, &values)?;
    let (start, from) = match &args.start {
        Some(folder) => {
            let start = Start::read(folder, &decoder, bits, group_size)?;
            let from = distill::model_checksum(folder, &start.values)?;
            (start, from)
        }
        None if args.no_quant || args.text_only => (
            Start {
                values: values.clone(),
                grids: Vec::new(),
            },
            String::new(),
        ),
        None => {
            let method = Method::from(args.ranges);
            (
                Start::fit(&decoder, values.clone(), bits, group_size, method)?,
                method.name().to_owned(),
            )
        }
    };
    let tokens = size(args.length);
    let hidden = args.run.json || args.text_only;
    let mut bar = Bar {
        bar: ProgressBar::hidden(),
        json: args.run.json,
    };
    let sequences = match &args.text {
        Some(file) => text::user(&args.model, file, tokens)?,
        None => {
            let settings = Settings {
                model: model.clone(),
                sequences: size(args.sequences),
                tokens,
                seed: args.text_seed,
            };
            let file = match (&args.teacher_text, &args.output) {
                (Some(file), _) => file.clone(),
                (None, output) => {
                    let mut name = output.clone().unwrap_or_default().into_os_string();
                    name.push(".text.jsonl");
                    PathBuf::from(name)
                }
            };
            if !hidden && !file.exists() {
                bar.show(args.sequences, "sequences");
            }
            text::teacher(&args.model, &file, &settings, &mut |n| {
                bar.bar.set_position(u64::try_from(n).unwrap_or(0));
            })?
        }
    };
    if let Some(bad) = sequences
        .iter()
        .flatten()
        .find(|t| usize::try_from(**t).is_ok_and(|t| t >= decoder.vocab))
    {
        let what = format!(
            "token {bad} is outside of the vocabulary of {} tokens",
            decoder.vocab
        );
        return Err(Error::model(&decoder.path, what));
    }
    let Some(output) = args.output.as_ref().filter(|_| !args.text_only) else {
        return Ok(());
    };
    distill::check(&args.model, &decoder, &values, &device)?;
    let configuration = Configuration {
        model,
        text: distill::text_checksum(&sequences),
        distilled: !args.no_quant,
        quantizing: (!args.no_quant).then(|| Quantizing {
            bits: bits.count(),
            group_size,
            start: from,
        }),
        steps: args.steps,
        batch: size(args.batch),
        length: tokens.saturating_sub(1),
        learning_rate: args.learning_rate,
        seed: args.seed,
        held_out: size(args.held_out),
    };
    let files = args.run.files(output);
    let job = Job {
        model: &args.model,
        decoder: &decoder,
        values: &values,
        start: &start,
        sequences: &sequences,
        at_once: size(args.at_once),
    };
    let last = distill::run(&job, configuration, &device, &files, &mut bar)?;
    bar.bar.finish_and_clear();
    if let Some(last) = last.filter(|_| !args.run.json) {
        let kl = last.get("held_out_kl").and_then(Value::as_f64);
        let kl = kl.map(|kl| format!(": mean KL {kl:.4} on {} sequences", args.held_out));
        print(&format!("{}{}", output.display(), kl.unwrap_or_default()));
    }
    Ok(())
}

/// A progress bar with the loss.
struct Bar {
    bar: ProgressBar,
    json: bool,
}

impl Bar {
    fn show(&mut self, count: u64, of: &str) {
        self.bar = ProgressBar::new(count);
        let template = format!("{{bar:30}} {{pos}}/{{len}} {of}, {{msg}}{{eta}} left");
        if let Ok(style) = ProgressStyle::with_template(&template) {
            self.bar.set_style(style);
        }
    }
}

impl Progress for Bar {
    fn begin(&mut self, step: u64, steps: u64) {
        self.bar.finish_and_clear();
        if !self.json {
            self.show(steps, "steps");
            self.bar.set_position(step);
            self.bar.reset_eta();
        }
    }

    fn step(&mut self, step: u64, measured: &Measured) {
        self.bar.set_message(format!("loss {:.4}, ", measured.loss));
        self.bar.set_position(step);
    }

    fn line(&mut self, line: &Value) {
        if self.json {
            print(&line.to_string());
        }
    }
}
