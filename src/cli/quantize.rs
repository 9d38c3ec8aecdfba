//! `tlite quantize`.

use super::interrupt::Interrupt;
use super::output::{byte_bar, put, put_json, size_text, table};
use crate::error::Result;
use crate::graph::onnx::quantize::{self, GROUP_SIZES, GROUP_STEP, Options, Summary, quantize_into};
use crate::new_folder::NewFolder;
use crate::quant::{Bits, Method};
use clap::ValueEnum;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Formats of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// 4 bits a weight and two halves a group.
    E0m4,
}

/// Make the weights of a model smaller
///
/// Reads a folder with model.onnx and writes a folder with the same model and packed weights. Prints the error of
/// each weight.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder with model.onnx and the files beside it
    model: PathBuf,
    /// Folder to write; must not exist yet or be empty
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Format of the weights
    #[arg(long, value_enum, value_name = "NAME")]
    format: Format,
    /// Weights that share a scale; lowered to 64 or 32 where it does not divide a weight's rows
    #[arg(long, value_name = "N", default_value = "128", allow_negative_numbers = true, value_parser = group_size)]
    group_size: usize,
    /// Bits of the output head and the embedding: 4 or 8
    #[arg(long, value_name = "N", default_value = "8", allow_negative_numbers = true, value_parser = head_bits)]
    head_bits: u32,
    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
}

fn group_size(text: &str) -> Result<usize, String> {
    let value = text
        .parse()
        .ok()
        .filter(|v: &usize| GROUP_SIZES.contains(v) && v.is_multiple_of(GROUP_STEP));
    let (first, last) = (GROUP_SIZES.start(), GROUP_SIZES.end());
    value.ok_or_else(|| format!("must be a multiple of {GROUP_STEP} from {first} to {last}"))
}

fn head_bits(text: &str) -> Result<u32, String> {
    let bits = text.parse().ok().and_then(Bits::new);
    bits.filter(|b| matches!(b, Bits::Four | Bits::Eight))
        .map(Bits::count)
        .ok_or_else(|| "must be 4 or 8".to_owned())
}

/// A row of the object of `--json`.
#[derive(Debug, Serialize)]
struct Row<'a> {
    name: &'a str,
    shape: &'a [usize],
    bits: u32,
    group_size: usize,
    max_error: f32,
    relative_error: f64,
    bytes_before: u64,
    bytes_after: u64,
}

/// A weight that was left as it was.
#[derive(Debug, Serialize)]
struct LeftRow<'a> {
    name: &'a str,
    shape: &'a [usize],
    reason: &'a str,
}

/// The object of `--json`.
#[derive(Debug, Serialize)]
struct Report<'a> {
    weights: Vec<Row<'a>>,
    left: Vec<LeftRow<'a>>,
    relative_error: f64,
    bytes_before: u64,
    bytes_after: u64,
}

impl<'a> Report<'a> {
    fn new(s: &'a Summary) -> Self {
        let weights = s.weights.iter().map(|w| Row {
            name: &w.name,
            shape: &w.shape,
            bits: w.bits.count(),
            group_size: w.group,
            max_error: w.max_error,
            relative_error: w.relative_error,
            bytes_before: w.bytes_before,
            bytes_after: w.bytes_after,
        });
        let left = s.left.iter().map(|l| LeftRow {
            name: &l.name,
            shape: &l.shape,
            reason: &l.reason,
        });
        Self {
            weights: weights.collect(),
            left: left.collect(),
            relative_error: s.relative_error,
            bytes_before: s.bytes_before,
            bytes_after: s.bytes_after,
        }
    }
}

fn shape_text(shape: &[usize]) -> String {
    shape.iter().map(usize::to_string).collect::<Vec<_>>().join(" x ")
}

/// The table for people: a line a weight, then those left as they are, then the totals.
fn report(s: &Summary, output: &Path) -> String {
    let head = [
        "weight",
        "shape",
        "bits",
        "group",
        "max error",
        "rel. error",
        "before",
        "after",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for w in &s.weights {
        rows.push(vec![
            w.name.clone(),
            shape_text(&w.shape),
            w.bits.count().to_string(),
            w.group.to_string(),
            format!("{:.3e}", w.max_error),
            format!("{:.4} %", w.relative_error * 100.0),
            size_text(w.bytes_before),
            size_text(w.bytes_after),
        ]);
    }
    let mut out = table(&rows, 1);
    for l in &s.left {
        out.push_str(&format!(
            "left as it is: {} ({}): {}\n",
            l.name,
            shape_text(&l.shape),
            l.reason
        ));
    }
    out.push_str(&format!(
        "total: {} of {} weights quantized, relative error {:.4} %, {} -> {}, written to {}\n",
        s.weights.len(),
        s.weights.len() + s.left.len(),
        s.relative_error * 100.0,
        size_text(s.bytes_before),
        size_text(s.bytes_after),
        output.display()
    ));
    out
}

/// Runs the command.
pub fn run(args: &Args, interrupt: &Interrupt) -> Result<()> {
    let Format::E0m4 = args.format;
    let options = Options {
        group_size: args.group_size,
        head_bits: if args.head_bits == 4 {
            Bits::Four
        } else {
            Bits::Eight
        },
        bits: Bits::Four,
        method: Method::default(),
    };
    let new = NewFolder::create(&args.output, quantize::TEMPORARY)?;
    let _unfinished = interrupt.scratch(new.path());
    let bar = byte_bar();
    let result = quantize_into(&args.model, new.path(), &options, &mut |p| {
        bar.set_length(p.total);
        bar.set_position(p.done);
        bar.set_message(p.tensor.to_owned());
    });
    bar.finish_and_clear();
    let summary = result?;
    new.commit()?;
    let mut out = std::io::stdout().lock();
    if args.json {
        put_json(&mut out, &Report::new(&summary))
    } else {
        put(&mut out, &report(&summary, &args.output))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::onnx::quantize::{Left, Quantized};

    #[test]
    fn values_out_of_range_are_refused() {
        for good in ["16", "24", "128", "256"] {
            assert_eq!(group_size(good).unwrap().to_string(), good);
        }
        for bad in ["0", "8", "20", "264", "-32", "x", ""] {
            assert!(group_size(bad).is_err(), "{bad}");
        }
        assert_eq!((head_bits("4"), head_bits("8")), (Ok(4), Ok(8)));
        assert!(
            ["0", "5", "16", "-4", "four"]
                .iter()
                .all(|b| head_bits(b).is_err())
        );
    }

    #[test]
    fn each_weight_has_its_line() {
        let weight = |name: &str, bits| Quantized {
            name: name.to_owned(),
            shape: vec![576, 192],
            bits,
            group: 32,
            max_error: 0.01234,
            relative_error: 0.05,
            bytes_before: 442_368,
            bytes_after: 62_208,
        };
        let left = Left {
            name: "odd".to_owned(),
            shape: vec![3, 5],
            reason: "why".to_owned(),
        };
        let summary = Summary {
            weights: vec![weight("a", Bits::Four), weight("layers.0.b", Bits::Eight)],
            left: vec![left],
            bytes_before: 2_000_000,
            bytes_after: 900,
            relative_error: 0.125,
        };
        let text = report(&summary, Path::new("out"));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5);
        assert_eq!(
            lines[1],
            "a           576 x 192     4     32   1.234e-2    5.0000 %  442.4 kB  62.2 kB"
        );
        assert_eq!(lines[1].len(), lines[2].len());
        assert_eq!(lines[3], "left as it is: odd (3 x 5): why");
        assert_eq!(
            lines[4],
            "total: 2 of 3 weights quantized, relative error 12.5000 %, 2.0 MB -> 900 B, written to out"
        );
        let json = serde_json::to_value(Report::new(&summary)).unwrap();
        assert_eq!(
            (
                json["weights"][1]["bits"].as_u64(),
                json["left"][0]["reason"].as_str()
            ),
            (Some(8), Some("why"))
        );
    }
}
