//! `tlite perplexity`.

use super::interrupt::Interrupt;
use super::load::{load_model, model_folder};
use super::measuring::{ended, ended_before, int8_text, interruptible};
use super::options::{
    DeviceOptions, EXECUTION, ExecOptions, ModelArg, Precision, Verbosity, from_one, read_text,
};
use super::output::{figures, print_report};
use schemars::JsonSchema;
use serde::Serialize;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use transformer_lite::unstable::error::{Error, Result};
use transformer_lite::unstable::llm::engine::PADDING;
use transformer_lite::unstable::llm::load::{PlaceName, Purpose};
use transformer_lite::unstable::llm::metrics::rate;
use transformer_lite::unstable::llm::perplexity::{Comparison, Options, Report, Text, evaluate};
use transformer_lite::unstable::llm::{LanguageModel, ModelFolder, Tokenizer};

pub(super) const WINDOW: usize = 512;
/// The quantile of the divergence that is reported beside the mean.
const SHARE: f64 = 0.99;

const EXAMPLES: &str = "\
Examples:
  tlite perplexity MODEL --text wiki.txt
  tlite perplexity QUANTIZED --text wiki.txt --reference ORIGINAL
  tlite perplexity MODEL --text wiki.txt --tokens 10000 --context 1024 --json";

/// Measure how well a model predicts a text
///
/// The text is scored in windows, each from an empty context. With --reference, the KL divergence
/// from another model with the same vocabulary is measured too, which shows what quantization
/// costs. Ctrl-C stops: the results so far are shown, and the exit code is 130.
#[derive(Debug, clap::Args)]
#[command(override_usage = "tlite perplexity [OPTIONS] --text FILE MODEL", after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    model: ModelArg,
    /// Text to score, a UTF-8 file
    #[arg(long, value_name = "FILE")]
    text: PathBuf,
    /// Model to compare with
    #[arg(long, value_name = "MODEL2")]
    reference: Option<PathBuf>,
    /// Score only the first N tokens
    #[arg(long, value_name = "N", value_parser = from_one)]
    tokens: Option<NonZeroUsize>,
    /// Print one JSON object instead of the lines
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    verbosity: Verbosity,
    #[command(flatten)]
    on: DeviceOptions,
    /// Tokens of a window [default: 512, limited by the models]
    #[arg(short, long, value_name = "N", value_parser = from_one, help_heading = EXECUTION)]
    context: Option<NonZeroUsize>,
    #[command(flatten)]
    precision: Precision,
}

/// The object of `tlite perplexity --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Object<'a> {
    /// Backend: `opencl`, `wgpu`, `cpu` or `reference`.
    backend: &'a str,
    /// Name of the device.
    device: &'a str,
    /// Name and version of its driver.
    driver: &'a str,
    /// Tokens of a window.
    window: usize,
    /// Number of windows.
    windows: usize,
    /// Tokens of the text.
    text_tokens: usize,
    /// Tokens that were scored.
    tokens: usize,
    /// Perplexity of the model.
    perplexity: f64,
    /// Standard error of the perplexity.
    standard_error: f64,
    #[serde(flatten)]
    comparison: Option<Compared>,
    /// Ctrl-C ended the run early.
    interrupted: bool,
    /// Scored tokens per second.
    tokens_per_s: Option<f64>,
}

/// Keys that `--reference` adds.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Compared {
    /// Perplexity of the reference; with `--reference`.
    reference_perplexity: f64,
    /// Mean KL divergence from the reference in nats; with `--reference`.
    kl_mean: f64,
    /// 99th percentile of the KL divergence in nats; with `--reference`.
    kl_p99: f64,
    /// Share of positions where both prefer the same token, from 0 to 1; with `--reference`.
    top1_agreement: f64,
}

impl Compared {
    fn new(c: &Comparison) -> Self {
        Self {
            reference_perplexity: c.reference.value(),
            kl_mean: c.mean_divergence(),
            kl_p99: c.divergence_at(SHARE),
            top1_agreement: c.agreement(),
        }
    }
}

impl<'a> Object<'a> {
    /// Of a text of `text_tokens` tokens in windows, scored in this time.
    fn new(r: &Report, on: &'a PlaceName, (window, text_tokens): (usize, usize), time: Duration) -> Self {
        Self {
            backend: on.backend,
            device: &on.device,
            driver: &on.driver,
            window,
            windows: r.windows,
            text_tokens,
            tokens: r.model.tokens(),
            perplexity: r.model.value(),
            standard_error: r.model.standard_error(),
            comparison: r.comparison.as_ref().map(Compared::new),
            interrupted: r.cancelled,
            tokens_per_s: rate(r.model.tokens(), time),
        }
    }

    fn lines(&self) -> String {
        let mut out = format!(
            "{} of {} tokens scored, windows of {}{}\nperplexity            {:.4} ± {:.4}\n",
            self.tokens,
            self.text_tokens,
            self.window,
            if self.interrupted { ", interrupted" } else { "" },
            self.perplexity,
            self.standard_error
        );
        if let Some(c) = &self.comparison {
            out.push_str(&format!(
                "reference perplexity  {:.4}\nKL divergence         mean {:.6}, 99th percentile {:.6} nats\n\
                 same top token        {:.3} %\n",
                c.reference_perplexity,
                c.kl_mean,
                c.kl_p99,
                c.top1_agreement * 100.0
            ));
        }
        out
    }
}

pub(super) fn encode(tokenizer: &Tokenizer, text: &str) -> Result<Text> {
    Ok(Text {
        tokens: tokenizer.encode(text, false)?,
        start: tokenizer.start()?,
    })
}

/// An error if the reference's tokenizer splits the text otherwise.
fn check_same(model: &Text, reference: &Text) -> Result<()> {
    let different = |what: String| Err(Error::usage("--reference", what));
    if model.start != reference.start {
        return different(format!(
            "its tokenizer starts texts with tokens {:?}, the model's with {:?}",
            reference.start, model.start
        ));
    }
    let pairs = model.tokens.iter().zip(&reference.tokens);
    let same = pairs.take_while(|(a, b)| a == b).count();
    match (model.tokens.get(same), reference.tokens.get(same)) {
        (None, None) => Ok(()),
        (a, b) => {
            let shown = |t: Option<&u32>| t.map_or_else(|| "the end".to_owned(), |t| format!("ID {t}"));
            different(format!(
                "its tokenizer differs from the model's: token {same} of the text is {}, not {}",
                shown(b),
                shown(a)
            ))
        }
    }
}

/// Tokens of a window: those `asked` for, else the default, limited by the models.
pub(super) fn window(folders: &[&ModelFolder], asked: Option<usize>) -> Result<usize> {
    folders.iter().try_fold(asked.unwrap_or(WINDOW), |least, folder| {
        Ok(folder.context(asked)?.min(least))
    })
}

pub fn run(args: &Args, interrupt: &Interrupt) -> Result<()> {
    args.verbosity.apply(args.json);
    let text = read_text("--text", &args.text)?;
    let folder = model_folder("MODEL", args.model.given()?, &["tokenizer.json"], interrupt)?;
    let other = args.reference.as_deref();
    let other = other
        .map(|path| model_folder("--reference", path, &["tokenizer.json", "model.onnx"], interrupt))
        .transpose()?;
    let encoded = |folder: &ModelFolder| encode(&Tokenizer::load(folder.dir())?, &text);
    let tokens = encoded(&folder)?;
    if let Some(other) = &other {
        check_same(&tokens, &encoded(other)?)?;
    }
    let folders: Vec<&ModelFolder> = std::iter::once(&folder).chain(&other).collect();
    let window = window(&folders, args.context.map(NonZeroUsize::get))?;

    let exec = ExecOptions {
        on: args.on.clone(),
        context: NonZeroUsize::new(window),
        precision: args.precision,
        padding: PADDING,
    };
    let loaded = |folder: &ModelFolder| load_model(folder, &exec.load_options(), Purpose::Evaluation);
    let mut model = loaded(&folder)?;
    let mut reference = other.as_ref().map(loaded).transpose()?;

    let start = Instant::now();
    let other = reference
        .as_mut()
        .map(|r| r.model.as_mut() as &mut dyn LanguageModel);
    let (report, _) = interruptible(0, interrupt, |cancel, bar| {
        let options = Options {
            window,
            limit: args.tokens.map(NonZeroUsize::get),
            cancel: cancel.clone(),
        };
        evaluate(model.model.as_mut(), other, &tokens, &options, &mut |p| {
            bar.set_length(p.total as u64);
            bar.set_position(p.done as u64);
            bar.set_message(format!("perplexity {:.3}", p.perplexity));
        })
    })?;
    if report.model.tokens() == 0 {
        return ended_before("a token was scored");
    }
    let (length, time) = (tokens.tokens.len(), start.elapsed());
    let object = Object::new(&report, &model.place, (window, length), time);
    print_report(args.json, &object, || object.lines())?;
    let (backend, device) = (object.backend, object.device);
    let (speed, int8) = (object.tokens_per_s.unwrap_or(0.0), int8_text(&model.all.used()?));
    figures(&format!("[{speed:.0} tokens/s on {device} ({backend}){int8}]"));
    ended(report.cancelled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use tlite_testing::llm::testing::{FakeModel, write_byte_fallback_tokenizer, write_byte_level_tokenizer};
    use transformer_lite::unstable::llm::Cancel;

    fn folder(config: &str, tokenizer: fn(&Path)) -> (tempfile::TempDir, ModelFolder) {
        let dir = tempfile::tempdir().unwrap();
        tokenizer(dir.path());
        std::fs::write(dir.path().join("config.json"), config).unwrap();
        let folder = ModelFolder::open(dir.path()).unwrap();
        (dir, folder)
    }

    #[test]
    fn windows_fit_both_models() {
        let [(_a, short), (_b, long), (_c, silent)] = [
            r#"{"max_position_embeddings": 256}"#,
            r#"{"max_position_embeddings": 8192}"#,
            "{}",
        ]
        .map(|config| folder(config, write_byte_level_tokenizer));
        assert_eq!(window(&[&long], None).unwrap(), 512);
        assert_eq!(window(&[&silent, &long], None).unwrap(), 512);
        assert_eq!(window(&[&long, &short], None).unwrap(), 256);
        assert_eq!(window(&[&long], Some(2048)).unwrap(), 2048);
        let e = window(&[&long, &short], Some(300)).unwrap_err();
        assert!(e.is_usage() && e.to_string().starts_with("context: "), "{e}");
    }

    #[test]
    fn tokenizers_are_compared_by_what_they_make_of_the_text() {
        let (a, _) = folder("{}", write_byte_level_tokenizer);
        let (b, _) = folder("{}", write_byte_fallback_tokenizer);
        let encoded = |dir: &tempfile::TempDir, text: &str| {
            encode(&Tokenizer::load(dir.path()).unwrap(), text).unwrap()
        };
        let text = encoded(&a, "abc");
        assert_eq!(
            (text.start.as_slice(), text.tokens.as_slice()),
            (&[256][..], &[97, 98, 99][..])
        );
        check_same(&text, &text).unwrap();
        let e = check_same(&text, &encoded(&b, "abc")).unwrap_err();
        assert!(e.is_usage(), "{e}");
        for (other, values) in [("abd", ["2", "100", "99"]), ("ab", ["2", "end", "99"])] {
            let e = check_same(&text, &encoded(&a, other)).unwrap_err().to_string();
            assert!(values.iter().all(|v| e.contains(v)), "{e}");
        }
    }

    #[test]
    fn lines_and_object() {
        let next = |cache: &[u32]| (cache.last().unwrap() + 1) % 8;
        let (mut model, mut reference) = (FakeModel::new(8, 8, next), FakeModel::new(8, 8, next));
        let text = Text {
            tokens: vec![0, 1, 2, 7],
            start: vec![],
        };
        let options = Options {
            window: 8,
            limit: None,
            cancel: Cancel::default(),
        };
        let report = evaluate(&mut model, Some(&mut reference), &text, &options, &mut |_| ()).unwrap();
        let on = PlaceName {
            backend: "reference",
            device: "d".to_owned(),
            driver: "v".to_owned(),
        };
        let object = |report: &Report| Object::new(report, &on, (8, 4), Duration::from_secs(2));
        let lines = object(&report).lines();
        assert_eq!(lines.lines().count(), 5, "{lines}");
        for value in ["3 of 4", " 8\n", " 5.5", "0.000000", "100.000 %"] {
            assert!(lines.contains(value), "{value} in {lines}");
        }
        let json = serde_json::to_value(object(&report)).unwrap();
        assert_eq!(
            (json["tokens"].as_u64(), json["tokens_per_s"].as_f64()),
            (Some(3), Some(1.5))
        );
        assert_eq!(json["perplexity"], json["reference_perplexity"]);
        assert_eq!(
            (json["kl_p99"].as_f64(), json["top1_agreement"].as_f64()),
            (Some(0.0), Some(1.0))
        );
        let alone = Report {
            comparison: None,
            ..report.clone()
        };
        let json = serde_json::to_value(object(&alone)).unwrap();
        assert!(json.get("kl_mean").is_none() && object(&alone).lines().lines().count() == 2);
    }
}
