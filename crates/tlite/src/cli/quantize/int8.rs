//! `tlite quantize --format int8`.

mod items;
mod page;

use super::shape_text;
use crate::cli::calibration::CalibrationOptions;
use crate::cli::load;
use crate::cli::options::{ADVANCED, Verbosity, from_one, from_zero};
use crate::cli::output::{bar, count, put_json, put_report, table, text_output};
use crate::cli::run::PictureArgs;
use crate::inspect::model_file;
use clap::ValueEnum;
use items::Items;
use serde::Serialize;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use transformer_lite::unstable::error::{Error, Result};
use transformer_lite::unstable::files::write_whole;
use transformer_lite::unstable::fmt::{count_text, size_text};
use transformer_lite::unstable::graph::{derive, onnx};
use transformer_lite_convert::int8::{
    CalibrationSet, Channel, LayerReport, LeftNode, Options, OutputNoise, RangeMethod, Step, Summary,
    quantize,
};

/// [`RangeMethod`] on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Ranges {
    /// The smallest and largest value
    MinMax,
    /// Moving averages of the smallest and largest value of each item
    MovingAverage,
    /// The range that holds most values; see --percentile
    Percentile,
    /// The range with the smallest mean squared error
    Mse,
    /// The range that changes the distribution of values least
    Entropy,
}

/// Options of `--format int8`.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Options of --format int8")]
pub struct Int8Args {
    /// How ranges of activations are chosen [default: moving-average]
    #[arg(long, value_enum, value_name = "NAME", hide_short_help = true)]
    ranges: Option<Ranges>,
    /// Percentage of the values that --ranges percentile keeps [default: 99.99]
    #[arg(long, value_name = "P", value_parser = percentage, hide_short_help = true, help_heading = ADVANCED)]
    percentile: Option<f64>,
    /// Use one scale for each weight tensor, instead of one for each output channel
    #[arg(long, hide_short_help = true)]
    per_tensor: bool,
    /// Use activations without a zero point
    #[arg(long, hide_short_help = true)]
    symmetric: bool,
    /// Do not rescale channels between convolutions first
    #[arg(long, hide_short_help = true)]
    no_equalization: bool,
    /// Round weights to nearest, without compensating errors
    #[arg(long, hide_short_help = true)]
    no_compensation: bool,
    /// Do not correct biases for the mean errors of rounding
    #[arg(long, hide_short_help = true)]
    no_bias_correction: bool,
    /// Node that stays in floats; may be repeated
    #[arg(long, value_name = "NODE", hide_short_help = true)]
    keep_float: Vec<String>,
    /// Use at most N items of the calibration set, spread evenly [default: 128]
    #[arg(long, value_name = "N", value_parser = from_one, hide_short_help = true)]
    calibration_items: Option<NonZeroUsize>,
    /// Compare the result with the source on N items; 0 for no comparison [default: 32]
    #[arg(long, value_name = "N", value_parser = from_zero::<usize>, hide_short_help = true, help_heading = ADVANCED)]
    compare_items: Option<usize>,
}

fn percentage(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(v) if v > 50.0 && v <= 100.0 => Ok(v),
        _ => Err("must be a number above 50, up to 100".to_owned()),
    }
}

impl Int8Args {
    /// The first of these options that is given.
    pub fn given(&self) -> Option<&'static str> {
        let all = [
            ("--ranges", self.ranges.is_some()),
            ("--percentile", self.percentile.is_some()),
            ("--per-tensor", self.per_tensor),
            ("--symmetric", self.symmetric),
            ("--no-equalization", self.no_equalization),
            ("--no-compensation", self.no_compensation),
            ("--no-bias-correction", self.no_bias_correction),
            ("--keep-float", !self.keep_float.is_empty()),
            ("--calibration-items", self.calibration_items.is_some()),
            ("--compare-items", self.compare_items.is_some()),
        ];
        all.into_iter()
            .find(|(_, given)| *given)
            .map(|(option, _)| option)
    }

    fn options(&self) -> Result<Options> {
        if self.percentile.is_some() && self.ranges != Some(Ranges::Percentile) {
            return Err(Error::usage("--percentile", "needs --ranges percentile"));
        }
        Ok(Options {
            ranges: match self.ranges.unwrap_or(Ranges::MovingAverage) {
                Ranges::MinMax => RangeMethod::MinMax,
                Ranges::MovingAverage => RangeMethod::MovingAverage,
                Ranges::Percentile => RangeMethod::Percentile(self.percentile.unwrap_or(99.99)),
                Ranges::Mse => RangeMethod::Mse,
                Ranges::Entropy => RangeMethod::Entropy,
            },
            per_tensor: self.per_tensor,
            symmetric: self.symmetric,
            equalize: !self.no_equalization,
            compensate: !self.no_compensation,
            correct_bias: !self.no_bias_correction,
            keep_float: self.keep_float.iter().cloned().collect(),
            compared: self.compare_items.unwrap_or(32),
        })
    }
}

/// What the command is asked for.
pub struct Task<'a> {
    pub model: &'a Path,
    pub output: &'a Path,
    pub report: Option<&'a PathBuf>,
    pub report_json: Option<&'a PathBuf>,
    pub json: bool,
    pub verbosity: Verbosity,
    pub calibration: &'a CalibrationOptions,
    pub pictures: &'a PictureArgs,
}

pub fn run(args: &Int8Args, task: &Task<'_>) -> Result<()> {
    let options = args.options()?;
    let file = model_file(task.model)?;
    let mut graph = onnx::import(&file)?;
    derive::derive(&mut graph)?;
    let at_most = args.calibration_items.map_or(128, NonZeroUsize::get);
    let items = Items::find(&graph, task, at_most)?;
    let read = |i: usize| items.read(i);
    let set = CalibrationSet {
        names: items.names(),
        read: &read,
    };
    let line = bar(set.names.len());
    let tell = |step: Step, done: usize, all: usize| {
        line.set_length(all as u64);
        let what = match step {
            Step::Equalize => "items for equalization",
            Step::Calibrate => "calibration items",
            Step::Round => "nodes rounded",
            Step::Compare => "items compared",
        };
        count(&line, done, all, what);
    };
    let open = || load::open(task.calibration.device());
    let made = quantize((task.model, task.output), &options, &set, &open, &tell);
    line.finish_and_clear();
    let summary = made?;
    let mut out = text_output();
    if task.json {
        put_json(&mut out, &Int8Report::new(&summary, &options))?;
    } else {
        put_report(&mut out, &text(&summary, &options, task))?;
    }
    if let Some(file) = task.report {
        let page = page::page(task, &options, &summary);
        write_whole(file, |out| out.write_all(page.as_bytes()))?;
    }
    if let Some(file) = task.report_json {
        let report = Int8Report::new(&summary, &options);
        write_whole(file, |out| Ok(serde_json::to_writer_pretty(out, &report)?))?;
    }
    Ok(())
}

/// A ratio of one channel.
#[derive(Debug, Serialize, schemars::JsonSchema)]
struct ChannelRow {
    /// Index of the channel.
    channel: usize,
    /// Its signal-to-noise ratio in dB.
    snr: f64,
}

impl ChannelRow {
    fn of(c: Option<Channel>) -> Option<Self> {
        c.map(|c| Self {
            channel: c.index,
            snr: c.snr,
        })
    }
}

/// A quantized layer.
#[derive(Debug, Serialize, schemars::JsonSchema)]
struct LayerRow<'a> {
    /// Name of its first node.
    name: &'a str,
    /// Operator of that node, and those that joined it.
    ops: &'a [String],
    /// `product`, `binary`, `mean`, `softmax`, `resample`, `table` or `move`.
    kind: &'a str,
    /// Shape of the weights; empty for a layer without.
    shape: &'a [usize],
    /// Scale of the result.
    scale: f32,
    /// Zero point of the result.
    zero_point: i32,
    /// Smallest and largest result that is not clipped, before 0 is moved onto an integer.
    range: [f32; 2],
    /// Signal-to-noise ratio of the weights in dB.
    weights_snr: Option<f64>,
    /// The output channel whose weights have the lowest ratio.
    worst_weights: Option<ChannelRow>,
    /// Signal-to-noise ratio of the result in dB, with the noise of earlier layers.
    snr: Option<f64>,
    /// The channel of the result with the lowest ratio.
    worst: Option<ChannelRow>,
}

/// A node that stays in floats.
#[derive(Debug, Serialize, schemars::JsonSchema)]
struct LeftNodeRow<'a> {
    /// Name of the node.
    name: &'a str,
    /// Its operator.
    op: &'a str,
    /// Why it was not quantized.
    reason: &'a str,
}

/// Noise of an output.
#[derive(Debug, Serialize, schemars::JsonSchema)]
struct OutputRow<'a> {
    /// Name of the output.
    name: &'a str,
    /// Median of the signal-to-noise ratios of the compared items in dB.
    median_snr: f64,
    /// Lowest ratio of an item.
    lowest_snr: f64,
    /// Items whose largest element is at the same place as in the float model.
    same_largest: usize,
}

/// The object of `--json` and `--report-json` with `--format int8`.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(in crate::cli) struct Int8Report<'a> {
    /// How ranges of activations were chosen.
    ranges: &'a str,
    /// Weights have one scale per tensor, else one per output channel.
    per_tensor: bool,
    /// Activations have the zero point 0.
    symmetric: bool,
    /// Pairs of convolutions that were equalized.
    equalized: usize,
    /// Items of the calibration set that were used.
    items: usize,
    /// Items on which the result was compared with the source.
    compared: usize,
    /// Quantized layers.
    layers: Vec<LayerRow<'a>>,
    /// Nodes that stay in floats.
    left: Vec<LeftNodeRow<'a>>,
    /// Noise of the outputs.
    outputs: Vec<OutputRow<'a>>,
    /// Bytes of the model before.
    bytes_before: u64,
    /// Bytes of the model after.
    bytes_after: u64,
}

impl<'a> Int8Report<'a> {
    fn new(s: &'a Summary, options: &'a Options) -> Self {
        let layer = |l: &'a LayerReport| LayerRow {
            name: &l.name,
            ops: &l.ops,
            kind: l.kind,
            shape: &l.shape,
            scale: l.scale,
            zero_point: l.zero,
            range: [l.range.0, l.range.1],
            weights_snr: l.weights_snr,
            worst_weights: ChannelRow::of(l.worst_weights),
            snr: l.snr,
            worst: ChannelRow::of(l.worst),
        };
        let left = |l: &'a LeftNode| LeftNodeRow {
            name: &l.name,
            op: &l.op,
            reason: l.reason,
        };
        let output = |o: &'a OutputNoise| OutputRow {
            name: &o.name,
            median_snr: o.median_snr,
            lowest_snr: o.lowest_snr,
            same_largest: o.same_largest,
        };
        Self {
            ranges: options.ranges.name(),
            per_tensor: options.per_tensor,
            symmetric: options.symmetric,
            equalized: s.equalized,
            items: s.items,
            compared: s.compared,
            layers: s.layers.iter().map(layer).collect(),
            left: s.left.iter().map(left).collect(),
            outputs: s.outputs.iter().map(output).collect(),
            bytes_before: s.bytes_before,
            bytes_after: s.bytes_after,
        }
    }
}

/// Layers, and nodes in floats, in a table without `--verbose`.
const SHOWN: usize = 5;

fn decibels(v: Option<f64>) -> String {
    v.map_or_else(|| "-".to_owned(), |v| format!("{v:.1} dB"))
}

fn channel(c: Option<Channel>) -> String {
    c.map_or_else(|| "-".to_owned(), |c| format!("{:.1} dB ({})", c.snr, c.index))
}

/// The scheme in words.
fn scheme(options: &Options) -> String {
    format!(
        "{} weights, {} activations, {} ranges{}{}{}",
        if options.per_tensor {
            "per-tensor"
        } else {
            "per-channel"
        },
        if options.symmetric {
            "symmetric"
        } else {
            "asymmetric"
        },
        options.ranges.name(),
        if options.equalize { ", equalized" } else { "" },
        if options.compensate {
            ", compensated weights"
        } else {
            ""
        },
        if options.correct_bias {
            ", corrected biases"
        } else {
            ""
        },
    )
}

fn layer_table(layers: &[&LayerReport]) -> String {
    let head = [
        "layer",
        "operators",
        "weights",
        "weights SNR",
        "worst channel",
        "SNR",
        "worst channel",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for l in layers {
        rows.push(vec![
            l.name.clone(),
            l.ops.join(" "),
            if l.shape.is_empty() {
                "-".to_owned()
            } else {
                shape_text(&l.shape)
            },
            decibels(l.weights_snr),
            channel(l.worst_weights),
            decibels(l.snr),
            channel(l.worst),
        ]);
    }
    table(&rows, 2)
}

/// The report for people: the table of layers, nodes in floats, then the totals.
fn text(s: &Summary, options: &Options, task: &Task<'_>) -> String {
    let mut out = String::new();
    if !task.verbosity.quiet {
        let mut shown: Vec<&LayerReport> = s.layers.iter().filter(|l| l.kind != "move").collect();
        let all = shown.len();
        if !task.verbosity.verbose {
            let ratio = |l: &LayerReport| l.snr.or(l.weights_snr).unwrap_or(f64::INFINITY);
            shown.sort_by(|a, b| ratio(a).total_cmp(&ratio(b)));
            shown.truncate(SHOWN);
            if all > shown.len() {
                out = format!(
                    "the {} layers with the lowest signal-to-noise ratio (SNR), of {all} (--verbose shows all)\n",
                    shown.len()
                );
            }
        }
        out.push_str(&layer_table(&shown));
        let most = if task.verbosity.verbose {
            s.left.len()
        } else {
            SHOWN
        };
        for l in s.left.iter().take(most) {
            out.push_str(&format!("in floats: {} {}: {}\n", l.op, l.name, l.reason));
        }
        if s.left.len() > most {
            out.push_str(&format!("in floats: {} more\n", s.left.len() - most));
        }
    }
    for o in &s.outputs {
        out.push_str(&format!(
            "output {}: median SNR {:.1} dB, lowest {:.1} dB; same largest element for {} of {}\n",
            o.name,
            o.median_snr,
            o.lowest_snr,
            o.same_largest,
            count_text(s.compared, "item")
        ));
    }
    out.push_str(&format!(
        "{} quantized over {}: {}\n{} -> {}, written to {}\n",
        count_text(s.layers.len(), "layer"),
        count_text(s.items, "calibration item"),
        scheme(options),
        size_text(s.bytes_before),
        size_text(s.bytes_after),
        task.output.display()
    ));
    out
}
