//! `tlite quantize`.

mod int8;

use super::calibration::{CalibrationOptions, with_methods};
use super::interrupt::Interrupt;
use super::options::{Verbosity, check_report, first_given, is_same};
use super::output::{advance, byte_bar, note, print_report, table, titled};
use super::page::{self, About};
use super::run::PictureArgs;
use crate::inspect::model_name;
use clap::ValueEnum;
use int8::Int8Args;
pub(super) use int8::Int8Report;
use std::path::{Path, PathBuf};
use transformer_lite::unstable::error::{Error, Result};
use transformer_lite::unstable::files::write_whole;
use transformer_lite::unstable::fmt::size_text;
use transformer_lite::unstable::llm::folder::check_form;
use transformer_lite::unstable::quant::{Bits, GROUP_STEP, Method, PER_CHANNEL};
use transformer_lite_convert::quantize::{
    GROUP_SIZES, Left, Options, Progress, Quantized, Summary, grid_group, quantize_with, unfinished,
};

/// How scales, biases and formats are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum By {
    /// Round to nearest
    Rtn,
    /// Minimize the squared error of each group
    Mse,
    /// Minimize the absolute error of each group; clips outliers, which can hurt answer quality
    Mae,
    /// Like mse, but chooses a format for each weight so that the average is --bits
    Mixed,
    /// Like mse, but later weights compensate for the rounding errors of earlier ones; needs
    /// --calibration
    Gptq,
    /// Like mse, but scales up weights with large inputs before rounding; needs --calibration
    Awq,
    /// Scale as awq does, then round as gptq does; needs --calibration
    AwqGptq,
    /// Min-max integers, for comparison
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
}

/// Formats of weights, in place of `--bits`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    E0m2,
    E0m3,
    E0m4,
    E0m5,
    E0m6,
    E0m8,
    /// 8-bit integer weights and activations; needs --calibration
    Int8,
}

impl Format {
    /// Bits of a weight format; `None` for integers.
    fn bits(self) -> Option<Bits> {
        Some(match self {
            Self::E0m2 => Bits::Two,
            Self::E0m3 => Bits::Three,
            Self::E0m4 => Bits::Four,
            Self::E0m5 => Bits::Five,
            Self::E0m6 => Bits::Six,
            Self::E0m8 => Bits::Eight,
            Self::Int8 => return None,
        })
    }
}

/// Quantize a model to 2 to 8 bits
///
/// Reads a folder with model.onnx and writes a folder with the same model and packed weights. Each
/// group of weights shares a 16-bit scale and bias (formats E0M2 to E0M8). Prints the five weights
/// with the largest errors; `--verbose` prints all. Run an interrupted command again to resume it.
///
/// `--format int8` quantizes weights and activations of convolutional networks and encoders to
/// 8-bit integers. The result is an ONNX model in QDQ format, which other runtimes also read.
/// `--help` lists its options under "Options of --format int8".
#[derive(Debug, clap::Args)]
#[command(override_usage = "tlite quantize [OPTIONS] --output OUT MODEL", after_help = EXAMPLES)]
pub struct Args {
    /// Model folder, or an .onnx file for int8
    model: PathBuf,
    /// Output folder (empty or new); for int8, also an .onnx file
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// How scales and biases are chosen [default: mse]
    #[arg(long, value_enum, value_name = "NAME")]
    method: Option<By>,
    /// Bits per weight: 2, 3, 4, 5, 6 or 8 [default: 4]
    ///
    /// With --method mixed, N is the average including scales [default: 4.5].
    #[arg(short, long, value_name = "N")]
    bits: Option<f64>,
    /// Weight format, instead of --bits; or `int8`
    #[arg(long, value_enum, value_name = "NAME", conflicts_with = "bits")]
    format: Option<Format>,
    /// Weights that share a scale [default: detected, else 128]
    ///
    /// `channel` is one scale per column. The last group of a column may be shorter. By default,
    /// the group size of an existing quantization grid is detected (for example in a GGUF file
    /// converted with --float); otherwise it is 128.
    #[arg(short, long, value_name = "N", value_parser = group_size)]
    group_size: Option<usize>,
    /// Bits per weight of the output head and embedding [default: 8]
    ///
    /// 2, 3, 4, 5, 6 or 8. With --method mixed, this is their minimum.
    #[arg(long, value_name = "N", value_parser = width)]
    head_bits: Option<u32>,
    /// Write an HTML report of the errors
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write the report as JSON
    #[arg(long, value_name = "FILE")]
    report_json: Option<PathBuf>,
    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    verbosity: Verbosity,
    #[command(flatten)]
    int8: Int8Args,
    #[command(flatten)]
    pictures: PictureArgs,
    #[command(flatten)]
    calibration: CalibrationOptions,
}

const EXAMPLES: &str = "\
Examples:
  tlite quantize MODEL -o out --report page.html
  tlite quantize MODEL -o out --method gptq --calibration text.txt
  tlite quantize net.onnx -o int8.onnx --format int8 --calibration pictures";

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
    fn by(&self) -> By {
        self.method.unwrap_or(By::Mse)
    }

    /// True for `--format int8`. A usage error for options that the format does not use.
    fn is_int8(&self) -> Result<bool> {
        let int8 = self.format == Some(Format::Int8);
        let weights = [
            ("--method", self.method.is_some()),
            ("--group-size", self.group_size.is_some()),
            ("--head-bits", self.head_bits.is_some()),
        ];
        let unused = match int8 {
            true => first_given(&weights).or(self.calibration.of_weights()),
            false => self.int8.given().or(self.pictures.given()),
        };
        match unused {
            None => Ok(int8),
            Some(option) if int8 => Err(Error::usage(option, "has no effect with --format int8")),
            Some(option) => Err(Error::usage(option, "needs --format int8")),
        }
    }

    fn options(&self) -> Result<Options> {
        let mut options = Options {
            group_size: self.group_size.unwrap_or(Options::default().group_size),
            compare: self.report.is_some(),
            ..Options::default()
        };
        let whole = |b: f64| Bits::ALL.into_iter().find(|w| f64::from(w.count()) == b);
        match (self.by(), self.bits) {
            (By::Mixed, bits) => {
                if self.format.is_some() {
                    let what = "mixed chooses a format per weight; set the average with --bits";
                    return Err(Error::usage("--method", what));
                }
                let bits = bits.unwrap_or(4.5);
                if !bits.is_finite() || bits <= 0.0 {
                    return Err(Error::usage(
                        "--bits",
                        format!("expected a positive number, found {bits}"),
                    ));
                }
                options.budget = Some(bits);
            }
            (_, Some(bits)) => {
                options.bits = whole(bits).ok_or_else(|| {
                    Error::usage(
                        "--bits",
                        format!(
                            "must be 2, 3, 4, 5, 6 or 8, found {bits} (--method mixed also takes averages such as 4.5)"
                        ),
                    )
                })?;
            }
            (_, None) => options.bits = self.format.and_then(Format::bits).unwrap_or(options.bits),
        }
        options.method = self.by().method();
        if let Some(bits) = self.head_bits.and_then(|b| Bits::new(b.into())) {
            options.head_bits = bits;
        }
        Ok(options)
    }
}

fn shape_text(shape: &[usize]) -> String {
    shape.iter().map(usize::to_string).collect::<Vec<_>>().join(" x ")
}

/// Weights, and reasons for weights that were left, in a table without `--verbose`.
const SHOWN: usize = 5;

/// A line per weight, then those that were left as they are: all of them if verbose, else the
/// weights with the largest errors. Nothing if quiet, or if all weights are exact.
pub(super) fn weight_table(weights: &[Quantized], left: &[Left], level: Verbosity) -> String {
    let Verbosity { quiet, verbose } = level;
    if quiet {
        return String::new();
    }
    let mut shown: Vec<&Quantized> = weights.iter().collect();
    let mut out = String::new();
    if !verbose {
        shown.sort_by(|a, b| b.relative_error.total_cmp(&a.relative_error));
        shown.truncate(SHOWN);
        shown.retain(|w| w.relative_error > 0.0);
        if weights.len() > SHOWN && !shown.is_empty() {
            out = format!(
                "the {} weights with the largest error, of {} (--verbose shows all)\n",
                shown.len(),
                weights.len()
            );
        }
    }
    if !shown.is_empty() {
        out.push_str(&error_table(&shown));
    }
    let most = if verbose { left.len() } else { SHOWN };
    for l in left.iter().take(most) {
        out.push_str(&format!(
            "not quantized: {} ({}): {}\n",
            l.name,
            shape_text(&l.shape),
            l.reason
        ));
    }
    if left.len() > most {
        out.push_str(&format!("not quantized: {} more\n", left.len() - most));
    }
    out
}

/// Mean absolute error of a weight divided by that of INT4.
fn versus_int4(w: &Quantized) -> String {
    let ratio = w.mae_int4.filter(|e| *e > 0.0).map(|e| w.mae / e);
    ratio.map_or_else(|| "-".to_owned(), |r| format!("{r:.2}x"))
}

fn error_table(weights: &[&Quantized]) -> String {
    let rows = titled(
        weights,
        &[
            ("weight", &|w| w.name.clone()),
            ("shape", &|w| shape_text(&w.shape)),
            ("bits", &|w| w.bits.count().to_string()),
            ("group", &|w| w.group.to_string()),
            ("max error", &|w| format!("{:.4}", w.max_error)),
            ("rel. error", &|w| format!("{:.3} %", w.relative_error * 100.0)),
            ("vs. INT4", &|w| versus_int4(w)),
            ("before", &|w| size_text(w.bytes_before)),
            ("after", &|w| size_text(w.bytes_after)),
        ],
    );
    table(&rows, 1)
}

/// The formats of weights in words: `4-bit weights, 8-bit head`.
fn formats_text(options: &Options, weights: &[Quantized]) -> String {
    let mut found: Vec<u32> = weights.iter().map(|w| w.bits.count()).collect();
    found.sort_unstable();
    found.dedup();
    let (body, head) = (options.bits.count(), options.head_bits.count());
    match found.as_slice() {
        [one] => format!("{one}-bit weights"),
        all if options.budget.is_none() && all.iter().all(|b| [body, head].contains(b)) => {
            format!("{body}-bit weights, {head}-bit head and embedding")
        }
        [first, .., last] => format!("{first}- to {last}-bit weights"),
        [] => "no weights".to_owned(),
    }
}

/// The report for people: the table of weights, then the totals.
fn report(s: &Summary, options: &Options, output: &Path, level: Verbosity) -> String {
    let mut out = weight_table(&s.weights, &s.left, level);
    let resumed = match s.resumed {
        0 => String::new(),
        n => format!(" ({n} by an earlier run)"),
    };
    out.push_str(&format!(
        "{} of {} weights quantized{resumed}: {}; {:.2} bits per weight with scales\n\
         relative error {:.3} %, {} -> {}, written to {}\n",
        s.weights.len(),
        s.weights.len() + s.left.len(),
        formats_text(options, &s.weights),
        s.bits_per_weight,
        s.relative_error * 100.0,
        size_text(s.bytes_before),
        size_text(s.bytes_after),
        output.display()
    ));
    out
}

/// Says where unfinished work is kept.
fn kept_note(output: &Path) {
    if let Some(kept) = unfinished(output).filter(|kept| kept.is_dir()) {
        let what = format!(
            "finished weights are kept in {}; run the same command again to resume, or delete that folder",
            kept.display()
        );
        note(&what);
    }
}

impl Args {
    /// What the page of a report shows about a model that was quantized with these options.
    fn about(&self, options: &Options, s: &Summary) -> About {
        let how = match options.budget {
            Some(bits) => format!("mixed formats at {bits} bits per weight"),
            None => format!("{}, method {}", options.bits, s.method),
        };
        let group = match options.group_size {
            PER_CHANNEL => "one scale per column".to_owned(),
            n => format!("groups of {n}"),
        };
        About {
            kind: "quantize",
            headline: Some(format!("{how}, {group}")),
            formats: Some(formats_text(options, &s.weights)),
            ..self.names()
        }
    }

    /// The names of the models that were read and written.
    fn names(&self) -> About {
        let name = |path: &Path| model_name(path).unwrap_or_else(|_| path.display().to_string());
        let target = self.output.file_name().map(|n| n.to_string_lossy().into_owned());
        About {
            source: Some(name(&self.model)),
            target: target.or_else(|| Some(self.output.display().to_string())),
            ..About::default()
        }
    }

    /// Sets the group size to that of a grid in the weights, if none is asked for, and says so.
    fn find_group(&self, options: &mut Options) -> Result<()> {
        // A budget chooses a group size per weight.
        if self.group_size.is_some() || options.budget.is_some() {
            return Ok(());
        }
        if let Some(size) = grid_group(&self.model, options)? {
            options.group_size = size;
            let kept = match self.by().method() {
                Method::Rtn => "; --method mse keeps the grid",
                Method::Mse | Method::Mae => ", which keeps it",
            };
            let what =
                format!("the weights lie on a grid with groups of {size}; using --group-size {size}{kept}");
            note(&what);
        }
        Ok(())
    }
}

pub fn run(args: &Args, interrupt: &Interrupt) -> Result<()> {
    args.verbosity.apply(args.json);
    check_form("MODEL", &args.model)?;
    let int8 = args.is_int8()?;
    let mut others = vec![(args.model.as_path(), "the model"), (&args.output, "the output")];
    others.extend(
        args.calibration
            .calibration
            .iter()
            .map(|set| (set.as_path(), "the calibration data")),
    );
    for (option, file) in [("--report", &args.report), ("--report-json", &args.report_json)] {
        file.as_ref()
            .map_or(Ok(()), |file| check_report(option, file, &others))?;
    }
    let both = args.report.as_ref().zip(args.report_json.as_ref());
    if both.is_some_and(|(page, json)| is_same(page, json)) {
        return Err(Error::usage("--report-json", "is the same file as --report"));
    }
    if int8 {
        return int8::run(args, interrupt);
    }
    let mut options = args.options()?;
    args.find_group(&mut options)?;
    let bar = byte_bar();
    let _parting = interrupt.parting({
        let (bar, output) = (bar.clone(), args.output.clone());
        move || {
            bar.finish_and_clear();
            kept_note(&output);
        }
    });
    let mut progress = |p: Progress<'_>| advance(&bar, p.done, p.total, p.tensor);
    let result = with_methods(
        args.by(),
        &args.calibration,
        &args.model,
        &options,
        &bar,
        &mut |methods| quantize_with(&args.model, &args.output, &options, methods, &mut progress),
    );
    bar.finish_and_clear();
    // After other errors nothing is kept; the folder may be that of another run.
    let summary = result.inspect_err(|e| {
        if matches!(e, Error::Io { .. }) {
            kept_note(&args.output);
        }
    })?;
    print_report(args.json, &summary, || {
        report(&summary, &options, &args.output, args.verbosity)
    })?;
    // Last: the model is written by now, and a report that cannot be is no reason to keep its
    // errors back.
    if let Some(file) = &args.report {
        page::write(file, &summary, &args.about(&options, &summary))?;
    }
    if let Some(file) = &args.report_json {
        write_whole(file, |out| Ok(serde_json::to_writer_pretty(out, &summary)?))?;
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
        let options = Options::default();
        let shown =
            |verbose, quiet| report(&summary, &options, Path::new("out"), Verbosity { quiet, verbose });
        assert_eq!(shown(false, true).lines().count(), 2);
        let text = shown(true, false);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 6, "{text}");
        let cells: Vec<&str> = lines[1].split_whitespace().collect();
        assert_eq!(cells[..6], ["a", "576", "x", "192", "4", "32"]);
        assert_eq!(
            cells[6..],
            ["0.0123", "5.000", "%", "0.90x", "442.4", "kB", "62.2", "kB"]
        );
        assert_eq!(lines[1].len(), lines[2].len());
        assert!(lines[3].contains("odd (3 x 5): why"), "{text}");
        assert!(
            lines[4].contains("2 of 3") && lines[4].contains("4-bit weights, 8-bit head"),
            "{text}"
        );
        assert!(
            lines[5].contains("12.500 %") && lines[5].contains("2.0 MB -> 900 B"),
            "{text}"
        );
        let json = serde_json::to_value(&summary).unwrap();
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

    #[test]
    fn the_largest_errors_are_shown_unless_all_are_asked_for() {
        let weights: Vec<Quantized> = (0..9)
            .map(|i| Quantized {
                name: format!("w{i}"),
                shape: vec![64, 64],
                bits: Bits::Four,
                group: 32,
                max_error: 0.1,
                relative_error: f64::from(i) / 100.0,
                mae: 0.1,
                mae_int4: None,
                mse: 0.1,
                compared: Vec::new(),
                bytes_before: 1,
                bytes_after: 1,
            })
            .collect();
        let level = |verbose| Verbosity {
            quiet: false,
            verbose,
        };
        let shown = |all: &[Quantized], verbose| {
            let text = weight_table(all, &[], level(verbose));
            let names = text.lines().filter_map(|l| l.split_whitespace().next());
            let names: Vec<String> = names
                .filter(|n| n.starts_with('w') && n.len() == 2)
                .map(str::to_owned)
                .collect();
            names
        };
        assert_eq!(shown(&weights, false), ["w8", "w7", "w6", "w5", "w4"]);
        assert_eq!(shown(&weights, true).len(), 9);
        // What is exact needs no line.
        assert_eq!(shown(&weights[..2], false), ["w1"]);
        assert_eq!(weight_table(&weights[..1], &[], level(false)), "");
    }
}
