//! `tlite quantize`.

mod page;

use super::calibration::{CalibratedBy, CalibrationOptions, with_methods};
use super::options::check_report;
use super::output::{byte_bar, note, put, put_json, table};
use crate::error::{Error, Result};
use crate::files::write_whole;
use crate::graph::onnx::quantize::{
    GROUP_SIZES, Left, Options, Progress, Quantized, Summary, quantize_with, unfinished,
};
use crate::llm::folder::check_form;
use crate::quant::{Bits, GROUP_STEP, Method, PER_CHANNEL};
use crate::units::size_text;
use clap::ValueEnum;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// How scales and biases are chosen, or formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum By {
    /// The paper's rounding
    Rtn,
    /// Least squared error of each group
    Mse,
    /// Least absolute error of each group: cuts outliers, which may cost answers
    Mae,
    /// As mse, the bits of each weight chosen so that they are --bits on average
    Mixed,
    /// As mse, and each weight makes up for the rounding of those before it; learns from --calibration
    Gptq,
    /// As mse, and weights of large inputs are scaled up before rounding; learns from --calibration
    Awq,
    /// Scaled as by awq, then rounded as by gptq; learns from --calibration
    AwqGptq,
    /// Integers from the smallest to the largest weight, for comparison
    Int,
}

impl By {
    fn method(self) -> Method {
        match self {
            Self::Rtn | Self::Int => Method::Rtn,
            Self::Mse | Self::Mixed | Self::Gptq | Self::Awq | Self::AwqGptq => Method::Mse,
            Self::Mae => Method::Mae,
        }
    }

    fn calibrated_by(self) -> CalibratedBy {
        match self {
            Self::Rtn => CalibratedBy::Nothing,
            Self::Int => CalibratedBy::Integers,
            Self::Mse | Self::Mae | Self::Mixed => CalibratedBy::Squares,
            Self::Gptq => CalibratedBy::Gptq,
            Self::Awq => CalibratedBy::Awq,
            Self::AwqGptq => CalibratedBy::AwqGptq,
        }
    }
}

/// Formats of weights; another way to say --bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    E0m2,
    E0m3,
    E0m4,
    E0m5,
    E0m6,
    E0m8,
}

impl Format {
    fn bits(self) -> Bits {
        match self {
            Self::E0m2 => Bits::Two,
            Self::E0m3 => Bits::Three,
            Self::E0m4 => Bits::Four,
            Self::E0m5 => Bits::Five,
            Self::E0m6 => Bits::Six,
            Self::E0m8 => Bits::Eight,
        }
    }
}

/// Make the weights of a model smaller
///
/// Reads a folder with model.onnx and writes a folder with the same model and packed weights. Prints the error of
/// each weight. A run that was interrupted goes on when it is started again.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder with model.onnx and the files beside it
    model: PathBuf,
    /// Folder to write; must not exist yet or be empty
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// How scales and biases are chosen
    #[arg(long, value_enum, value_name = "NAME", default_value = "mse")]
    method: By,
    /// Bits of a weight: 2, 3, 4, 5, 6 or 8, by default 4; for mixed any mean, scales included, by default 4.5
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    bits: Option<f64>,
    /// Format of the weights, in place of --bits
    #[arg(long, value_enum, value_name = "NAME", conflicts_with = "bits")]
    format: Option<Format>,
    /// Weights that share a scale, or `channel` for a whole column; the last group of a column may be shorter
    #[arg(long, value_name = "N", default_value = "128", allow_negative_numbers = true, value_parser = group_size)]
    group_size: usize,
    /// Bits of the output head and the embedding: 2, 3, 4, 5, 6 or 8, by default 8; for mixed the fewest
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = width)]
    head_bits: Option<u32>,
    /// Write a page with the errors of weights and methods as a picture
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Write the errors of weights as JSON
    #[arg(long, value_name = "FILE")]
    report_json: Option<PathBuf>,
    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    calibration: CalibrationOptions,
}

/// The value of an option `--group-size`.
pub(super) fn group_size(text: &str) -> Result<usize, String> {
    if text == "channel" {
        return Ok(PER_CHANNEL);
    }
    let value = text
        .parse()
        .ok()
        .filter(|v: &usize| GROUP_SIZES.contains(v) && v.is_multiple_of(GROUP_STEP));
    let (first, last) = (GROUP_SIZES.start(), GROUP_SIZES.end());
    value.ok_or_else(|| format!("must be a multiple of {GROUP_STEP} from {first} to {last}, or `channel`"))
}

fn width(text: &str) -> Result<u32, String> {
    let bits = text.parse().ok().and_then(Bits::new);
    bits.map(Bits::count)
        .ok_or_else(|| "must be 2, 3, 4, 5, 6 or 8".to_owned())
}

impl Args {
    fn options(&self) -> Result<Options> {
        let mut options = Options {
            group_size: self.group_size,
            compare: self.report.is_some(),
            ..Options::default()
        };
        let whole = |b: f64| Bits::ALL.into_iter().find(|w| f64::from(w.count()) == b);
        match (self.method, self.bits) {
            (By::Mixed, bits) => {
                if self.format.is_some() {
                    let what = "mixed chooses the format of each weight; give the mean with --bits";
                    return Err(Error::usage("--method", what));
                }
                let bits = bits.unwrap_or(4.5);
                if !bits.is_finite() || bits <= 0.0 {
                    return Err(Error::usage("--bits", format!("{bits} is no number of bits")));
                }
                options.budget = Some(bits);
            }
            (_, Some(bits)) => {
                options.bits = whole(bits).ok_or_else(|| {
                    Error::usage(
                        "--bits",
                        format!("{bits} is none of 2, 3, 4, 5, 6, 8; mixed takes others"),
                    )
                })?;
            }
            (_, None) => options.bits = self.format.map_or(options.bits, Format::bits),
        }
        options.method = self.method.method();
        if let Some(bits) = self.head_bits.and_then(|b| Bits::new(b.into())) {
            options.head_bits = bits;
        }
        Ok(options)
    }
}

/// A weight in the object of `--json`, of this command and of `convert`.
#[derive(Debug, Serialize)]
pub(super) struct Row<'a> {
    name: &'a str,
    shape: &'a [usize],
    bits: u32,
    group_size: usize,
    mae: f64,
    /// None for a weight that kept its codes.
    mae_int4: Option<f64>,
    mse: f64,
    max_error: f32,
    relative_error: f64,
    bytes_before: u64,
    bytes_after: u64,
}

/// A weight that was left as it was, likewise.
#[derive(Debug, Serialize)]
pub(super) struct LeftRow<'a> {
    name: &'a str,
    shape: &'a [usize],
    reason: &'a str,
}

/// The object of `--json` and `--report-json`.
#[derive(Debug, Serialize)]
struct Report<'a> {
    method: &'a str,
    weights: Vec<Row<'a>>,
    left: Vec<LeftRow<'a>>,
    relative_error: f64,
    bits_per_weight: f64,
    bytes_before: u64,
    bytes_after: u64,
}

/// The entries for weights.
pub(super) fn rows(weights: &[Quantized]) -> Vec<Row<'_>> {
    let weights = weights.iter().map(|w| Row {
        name: &w.name,
        shape: &w.shape,
        bits: w.bits.count(),
        group_size: w.group,
        mae: w.mae,
        mae_int4: w.mae_int4,
        mse: w.mse,
        max_error: w.max_error,
        relative_error: w.relative_error,
        bytes_before: w.bytes_before,
        bytes_after: w.bytes_after,
    });
    weights.collect()
}

/// The entries for weights that were left.
pub(super) fn left_rows(left: &[Left]) -> Vec<LeftRow<'_>> {
    let left = left.iter().map(|l| LeftRow {
        name: &l.name,
        shape: &l.shape,
        reason: &l.reason,
    });
    left.collect()
}

impl<'a> Report<'a> {
    fn new(s: &'a Summary) -> Self {
        Self {
            method: s.method,
            weights: rows(&s.weights),
            left: left_rows(&s.left),
            relative_error: s.relative_error,
            bits_per_weight: s.bits_per_weight,
            bytes_before: s.bytes_before,
            bytes_after: s.bytes_after,
        }
    }
}

fn shape_text(shape: &[usize]) -> String {
    shape.iter().map(usize::to_string).collect::<Vec<_>>().join(" x ")
}

/// A line a weight, then those left as they are.
pub(super) fn weight_table(weights: &[Quantized], left: &[Left]) -> String {
    let head = [
        "weight",
        "shape",
        "bits",
        "group",
        "max error",
        "rel. error",
        "mae/int4",
        "before",
        "after",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for w in weights {
        rows.push(vec![
            w.name.clone(),
            shape_text(&w.shape),
            w.bits.count().to_string(),
            w.group.to_string(),
            format!("{:.3e}", w.max_error),
            format!("{:.4} %", w.relative_error * 100.0),
            match w.mae_int4 {
                Some(int4) if int4 > 0.0 => format!("{:.3}", w.mae / int4),
                _ => "-".to_owned(),
            },
            size_text(w.bytes_before),
            size_text(w.bytes_after),
        ]);
    }
    let mut out = table(&rows, 1);
    for l in left {
        out.push_str(&format!(
            "left as it is: {} ({}): {}\n",
            l.name,
            shape_text(&l.shape),
            l.reason
        ));
    }
    out
}

/// The table for people: that of the weights, then the totals.
fn report(s: &Summary, output: &Path) -> String {
    let mut out = weight_table(&s.weights, &s.left);
    let resumed = match s.resumed {
        0 => String::new(),
        n => format!(", {n} of them by an earlier run"),
    };
    out.push_str(&format!(
        "total: {} of {} weights quantized{resumed}, {:.3} bits a weight, relative error {:.4} %, {} -> {}, written to {}\n",
        s.weights.len(),
        s.weights.len() + s.left.len(),
        s.bits_per_weight,
        s.relative_error * 100.0,
        size_text(s.bytes_before),
        size_text(s.bytes_after),
        output.display()
    ));
    out
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    check_form("MODEL", &args.model)?;
    let options = args.options()?;
    for (option, file) in [("--report", &args.report), ("--report-json", &args.report_json)] {
        file.as_ref()
            .map_or(Ok(()), |file| check_report(option, file, &args.model))?;
    }
    if args.report.is_some() && args.report == args.report_json {
        return Err(Error::usage("--report-json", "is the file of --report"));
    }
    let bar = byte_bar();
    let mut progress = |p: Progress<'_>| {
        bar.set_length(p.total);
        bar.set_position(p.done);
        bar.set_message(p.tensor.to_owned());
    };
    let result = with_methods(
        args.method.calibrated_by(),
        &args.calibration,
        &args.model,
        &options,
        &bar,
        &mut |methods| quantize_with(&args.model, &args.output, &options, methods, &mut progress),
    );
    bar.finish_and_clear();
    let summary = result.inspect_err(|_| {
        if let Some(kept) = unfinished(&args.output).filter(|kept| kept.is_dir()) {
            let what = format!(
                "note: what is finished is kept in {}; the same command goes on with it, or delete it",
                kept.display()
            );
            note(&mut std::io::stderr(), &what);
        }
    })?;
    let mut out = std::io::stdout().lock();
    if args.json {
        put_json(&mut out, &Report::new(&summary))?;
    } else {
        put(&mut out, &report(&summary, &args.output))?;
    }
    // Last: the model is written by now, and a report that cannot be is no reason to keep its errors back.
    if let Some(file) = &args.report {
        let page = page::page(&args.model, &options, &summary);
        write_whole(file, |out| out.write_all(page.as_bytes()))?;
    }
    if let Some(file) = &args.report_json {
        write_whole(file, |out| {
            Ok(serde_json::to_writer_pretty(out, &Report::new(&summary))?)
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_out_of_range_are_refused() {
        for good in ["16", "24", "128", "256"] {
            assert_eq!(group_size(good).unwrap().to_string(), good);
        }
        for bad in ["0", "8", "20", "264", "-32", "x", ""] {
            assert!(group_size(bad).is_err(), "{bad}");
        }
        assert_eq!(group_size("channel"), Ok(PER_CHANNEL));
        assert_eq!((width("4"), width("8")), (Ok(4), Ok(8)));
        assert!(["0", "7", "16", "-4", "four"].iter().all(|b| width(b).is_err()));
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
            mae: 0.009,
            mae_int4: (bits == Bits::Four).then_some(0.01),
            mse: 1e-4,
            compared: Vec::new(),
            bytes_before: 442_368,
            bytes_after: 62_208,
        };
        let left = Left {
            name: "odd".to_owned(),
            shape: vec![3, 5],
            reason: "why".to_owned(),
        };
        let summary = Summary {
            method: "mse",
            weights: vec![weight("a", Bits::Four), weight("layers.0.b", Bits::Eight)],
            left: vec![left],
            bytes_before: 2_000_000,
            bytes_after: 900,
            relative_error: 0.125,
            bits_per_weight: 4.5,
            resumed: 1,
        };
        let text = report(&summary, Path::new("out"));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5);
        assert_eq!(
            lines[1],
            "a           576 x 192     4     32   1.234e-2    5.0000 %     0.900  442.4 kB  62.2 kB"
        );
        assert_eq!(lines[1].len(), lines[2].len());
        assert_eq!(lines[3], "left as it is: odd (3 x 5): why");
        assert_eq!(
            lines[4],
            "total: 2 of 3 weights quantized, 1 of them by an earlier run, 4.500 bits a weight, relative error 12.5000 %, 2.0 MB -> 900 B, written to out"
        );
        let json = serde_json::to_value(Report::new(&summary)).unwrap();
        assert_eq!(
            (
                json["weights"][1]["bits"].as_u64(),
                json["left"][0]["reason"].as_str()
            ),
            (Some(8), Some("why"))
        );
        // Codes that were kept are compared with nothing.
        assert!(json["weights"][0]["mae_int4"].is_f64() && json["weights"][1]["mae_int4"].is_null());
        assert!(lines[2].contains(" - "), "{}", lines[2]);
        assert_eq!(json["method"], "mse");
    }
}
