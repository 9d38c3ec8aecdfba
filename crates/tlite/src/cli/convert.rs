//! `tlite convert`.

use super::interrupt::Interrupt;
use super::options::{Verbosity, check_report};
use super::output::{advance, byte_bar, print_report};
use super::quantize::weight_table;
use crate::inspect::parameters_text;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use transformer_lite::unstable::error::Result;
use transformer_lite::unstable::files::write_whole;
use transformer_lite::unstable::fmt::size_text;
use transformer_lite_convert::checkpoint::Summary;
use transformer_lite_convert::gguf;
use transformer_lite_convert::quantize::{Left, Quantized};
use transformer_lite_convert::source;

/// Convert a GGUF file or Hugging Face checkpoint to a model folder
///
/// Writes an ONNX model with its tokenizer and config files. Quantized weights keep their bits
/// (formats E0M2 to E0M8). K-quants also keep their scales; other types get a 16-bit scale and bias
/// per group. Weights that are not quantized become f32. Prints the five weights with the largest
/// conversion errors; `--verbose` prints all.
#[derive(Debug, clap::Args)]
#[command(override_usage = "tlite convert [OPTIONS] --output DIR FILE", after_help = EXAMPLES)]
pub struct Args {
    /// GGUF file, or folder with config.json and .safetensors files
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Output folder; must be empty or not exist yet
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Convert the quantized weights of a GGUF file to f32
    #[arg(long)]
    float: bool,
    /// Write a summary as JSON, with the error of each weight
    #[arg(long, value_name = "FILE")]
    report_json: Option<PathBuf>,
    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    verbosity: Verbosity,
}

const EXAMPLES: &str = "\
Examples:
  tlite convert SmolLM2-135M-Instruct.Q4_1.gguf -o models/smollm2
  tlite convert Qwen2.5-0.5B-Instruct/ -o models/qwen
  tlite convert model.Q8_0.gguf -o models/float --float";

/// The object of `--json` and `--report-json`.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(super) struct Report<'a> {
    /// Name of the model, if the source has one.
    name: Option<&'a str>,
    /// Architecture, such as `llama`.
    architecture: &'a str,
    /// Transformer layers.
    layers: usize,
    /// Number of weights.
    parameters: u64,
    /// Number of tensors by type in the source.
    source_types: &'a BTreeMap<String, usize>,
    /// Bytes of the source.
    bytes_before: u64,
    /// Bytes of the result.
    bytes_after: u64,
    /// Weights that kept their bits.
    weights: &'a [Quantized],
    /// Quantized weights that became floats although bits are kept.
    left: &'a [Left],
}

impl<'a> Report<'a> {
    fn new(s: &'a Summary, bytes_before: u64, bytes_after: u64) -> Self {
        Self {
            name: s.name.as_deref(),
            architecture: &s.architecture,
            layers: s.layers,
            parameters: s.parameters,
            source_types: &s.source_types,
            bytes_before,
            bytes_after,
            weights: &s.kept,
            left: &s.left,
        }
    }
}

/// The model and its sizes in two lines.
fn closing(s: &Summary, input_bytes: u64, output_bytes: u64, output: &Path) -> String {
    let types: Vec<String> = s.source_types.iter().map(|(t, n)| format!("{n} {t}")).collect();
    format!(
        "{}, {} layers, {} parameters (tensors: {})\n{} -> {}, written to {}\n",
        s.architecture,
        s.layers,
        parameters_text(s.parameters),
        types.join(", "),
        size_text(input_bytes),
        size_text(output_bytes),
        output.display()
    )
}

/// Bytes of the files of a folder.
fn folder_bytes(folder: &Path) -> u64 {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    files.filter_map(|e| e.metadata().ok()).map(|m| m.len()).sum()
}

pub fn run(args: &Args, interrupt: &Interrupt) -> Result<()> {
    args.verbosity.apply(args.json);
    if let Some(file) = &args.report_json {
        let others = [(args.file.as_path(), "the model"), (&args.output, "the output")];
        check_report("--report-json", file, &others)?;
    }
    let bar = byte_bar();
    let mut unfinished = None;
    let summary = source::convert(
        "FILE",
        &args.file,
        &args.output,
        args.float,
        &mut |temporary| unfinished = Some(interrupt.scratch(temporary)),
        &mut |p| advance(&bar, p.done, p.total, p.tensor),
    );
    drop(unfinished);
    bar.finish_and_clear();
    let summary = summary?;
    let before = if args.file.is_dir() {
        folder_bytes(&args.file)
    } else {
        let parts = gguf::files(&args.file);
        let bytes = |path: &PathBuf| std::fs::metadata(path).map_or(0, |m| m.len());
        parts.iter().map(bytes).sum()
    };
    let after = folder_bytes(&args.output);
    let report = Report::new(&summary, before, after);
    if let Some(file) = &args.report_json {
        write_whole(file, |out| Ok(serde_json::to_writer_pretty(out, &report)?))?;
    }
    print_report(args.json, &report, || {
        let table = weight_table(&summary.kept, &summary.left, args.verbosity);
        table + &closing(&summary, before, after, &args.output)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_lines_hold_sizes_and_types() {
        let summary = Summary {
            architecture: "llama".to_owned(),
            name: Some("Ti\u{1b}ny".to_owned()),
            layers: 2,
            parameters: 1_250_000,
            source_types: [("F32".to_owned(), 3), ("Q4_1".to_owned(), 5)].into(),
            vocab: 10,
            context: 20,
            data_bytes: 5_000_000,
            kept: Vec::new(),
            left: Vec::new(),
        };
        let text = closing(&summary, 98_400_000, 5_020_000, Path::new("out"));
        for part in ["llama", "2 layers", "3 F32, 5 Q4_1", "98.4 MB -> 5.0 MB", "out"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
