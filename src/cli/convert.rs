//! `tlite convert`.

use super::interrupt::Interrupt;
use super::options::check_report;
use super::output::{byte_bar, put, put_json};
use super::quantize::{LeftRow, Row, left_rows, rows, weight_table};
use crate::checkpoint::{self, Summary};
use crate::error::{Error, Result};
use crate::files::write_whole;
use crate::gguf;
use crate::new_folder::NewFolder;
use crate::units::size_text;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Make a model folder of a GGUF file or a Hugging Face checkpoint
///
/// Writes an ONNX model and the tokenizer and config files beside it. Weights become f32; those of a checkpoint that GPTQ or AWQ
/// quantized keep their bits as E0M, with the error that this adds printed for each.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The GGUF file, or the folder with config.json and safetensors files
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Folder to write; must not exist yet or be empty
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Keep the bits of a GGUF file's quantized weights, as E0M, in place of making them f32
    #[arg(long)]
    keep_bits: bool,
    /// Write what was made, with the error of each weight that kept its bits, as JSON
    #[arg(long, value_name = "FILE")]
    report_json: Option<PathBuf>,
    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
}

/// The object of `--json` and `--report-json`.
#[derive(Debug, Serialize)]
struct Report<'a> {
    name: Option<&'a str>,
    architecture: &'a str,
    layers: usize,
    parameters: u64,
    source_types: &'a BTreeMap<String, usize>,
    bytes_before: u64,
    bytes_after: u64,
    /// Weights that kept their bits.
    weights: Vec<Row<'a>>,
    /// Weights that did not, though bits were to be kept.
    left: Vec<LeftRow<'a>>,
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
            weights: rows(&s.kept),
            left: left_rows(&s.left),
        }
    }
}

/// One line on what was made.
fn closing(s: &Summary, input_bytes: u64, output_bytes: u64, output: &Path) -> String {
    let types: Vec<String> = s.source_types.iter().map(|(t, n)| format!("{n} {t}")).collect();
    format!(
        "{}: {}, {} layers, {:.1} M weights ({}), {} -> {}, written to {}\n",
        s.name.as_deref().unwrap_or("model"),
        s.architecture,
        s.layers,
        s.parameters as f64 / 1e6,
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

/// Runs the command.
pub fn run(args: &Args, interrupt: &Interrupt) -> Result<()> {
    if let Some(file) = &args.report_json {
        check_report("--report-json", file, &args.file)?;
    }
    let folder = args.file.is_dir();
    if !folder && !args.file.is_file() {
        let what = format!("there is no file or folder {}", args.file.display());
        return Err(Error::usage("FILE", what));
    }
    if folder && !args.file.join("config.json").is_file() {
        let what = format!(
            "{} has no config.json; expected a folder with config.json and safetensors files, or a GGUF file",
            args.file.display()
        );
        return Err(Error::usage("FILE", what));
    }
    if folder && args.keep_bits {
        let what = "is for GGUF files; the quantized weights of a folder always keep their bits";
        return Err(Error::usage("--keep-bits", what));
    }
    let new = NewFolder::create(&args.output, checkpoint::TEMPORARY)?;
    let _unfinished = interrupt.scratch(new.path());
    let bar = byte_bar();
    let mut progress = |p: checkpoint::Progress<'_>| {
        bar.set_length(p.total);
        bar.set_position(p.done);
        bar.set_message(p.tensor.to_owned());
    };
    let result = if folder {
        checkpoint::folder::convert_into(&args.file, new.path(), &mut progress)
    } else {
        gguf::convert_into(&args.file, new.path(), args.keep_bits, &mut progress)
    };
    bar.finish_and_clear();
    let summary = result?;
    new.commit()?;
    let before = if folder {
        folder_bytes(&args.file)
    } else {
        std::fs::metadata(&args.file).map_or(0, |m| m.len())
    };
    let after = folder_bytes(&args.output);
    let report = Report::new(&summary, before, after);
    if let Some(file) = &args.report_json {
        write_whole(file, |out| Ok(serde_json::to_writer_pretty(out, &report)?))?;
    }
    let mut out = std::io::stdout().lock();
    if args.json {
        return put_json(&mut out, &report);
    }
    let mut text = String::new();
    if !summary.kept.is_empty() || !summary.left.is_empty() {
        text = weight_table(&summary.kept, &summary.left);
    }
    text += &closing(&summary, before, after, &args.output);
    put(&mut out, &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_line_tells_sizes() {
        let summary = Summary {
            architecture: "llama".to_owned(),
            name: Some("Tiny".to_owned()),
            layers: 2,
            parameters: 1_250_000,
            source_types: [("F32".to_owned(), 3), ("Q4_1".to_owned(), 5)].into(),
            vocab: 10,
            context: 20,
            data_bytes: 5_000_000,
            kept: Vec::new(),
            left: Vec::new(),
        };
        assert_eq!(
            closing(&summary, 98_400_000, 5_020_000, Path::new("out")),
            "Tiny: llama, 2 layers, 1.2 M weights (3 F32, 5 Q4_1), 98.4 MB -> 5.0 MB, written to out\n"
        );
    }
}
