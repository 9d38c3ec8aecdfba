//! `tlite quantize --format int8`.

mod items;
mod page;

use super::shape_text;
use crate::cli::calibration::CalibrationOptions;
use crate::cli::interrupt::Interrupt;
use crate::cli::load;
use crate::cli::options::{ADVANCED, Verbosity, from_one, from_zero};
use crate::cli::output::{bar, count, note, put_json, put_report, table, text_output, warning};
use crate::cli::run::PictureArgs;
use crate::inspect::model_file;
use clap::ValueEnum;
use items::Items;
use serde::Serialize;
use std::collections::{BTreeMap, HashSet};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use transformer_lite::unstable::error::{Error, Result};
use transformer_lite::unstable::files::write_whole;
use transformer_lite::unstable::fmt::{count_text, size_text};
use transformer_lite::unstable::graph::{Graph, derive, onnx};
use transformer_lite_convert::int8::{
    CalibrationSet, Channel, LayerReport, LeftNode, Options, Output, OutputNoise, RangeMethod, Step, Summary,
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
    /// Do not rescale channels between layers first
    #[arg(long, hide_short_help = true)]
    no_equalization: bool,
    /// Round weights to nearest, without compensating for errors
    #[arg(long, hide_short_help = true)]
    no_compensation: bool,
    /// Do not correct biases for the mean errors of rounding
    #[arg(long, hide_short_help = true)]
    no_bias_correction: bool,
    /// Node that stays in floats; may be repeated
    ///
    /// `*` stands for any characters. `tlite inspect --nodes` lists the names.
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

    /// The options, without [`Options::keep_float`].
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
            keep_float: HashSet::new(),
            compared: self.compare_items.unwrap_or(32),
        })
    }
}

/// The names of the nodes that patterns with `*` match. A pattern without a match is a usage error.
fn named(graph: &Graph, patterns: &[String]) -> Result<HashSet<String>> {
    let mut found = HashSet::new();
    for pattern in patterns {
        let names = graph.nodes().map(|(_, n)| &n.name);
        let new: Vec<&String> = names.filter(|n| matches(pattern, n)).collect();
        if new.is_empty() {
            let what =
                format!("the model has no node \"{pattern}\"; `tlite inspect --nodes` lists its nodes");
            return Err(Error::usage("--keep-float", what));
        }
        found.extend(new.into_iter().cloned());
    }
    Ok(found)
}

/// Whether a name matches a pattern, in which `*` stands for any characters.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(mut name) = name.strip_prefix(first) else {
        return false;
    };
    let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    for part in middle.split('*') {
        match name.split_once(part) {
            Some((_, after)) => name = after,
            None => return false,
        }
    }
    name.ends_with(last)
}

/// The arguments of the command that do not depend on the format.
pub struct Task<'a> {
    pub model: &'a Path,
    pub output: &'a Path,
    pub report: Option<&'a PathBuf>,
    pub report_json: Option<&'a PathBuf>,
    pub json: bool,
    pub verbosity: Verbosity,
    pub calibration: &'a CalibrationOptions,
    pub pictures: &'a PictureArgs,
    pub interrupt: &'a Interrupt,
}

pub fn run(args: &Int8Args, task: &Task<'_>) -> Result<()> {
    let mut options = args.options()?;
    let file = model_file(task.model)?;
    let output = Output::create(task.output)?;
    let _unfinished = task.interrupt.scratch(output.temporary());
    let mut graph = onnx::import(&file)?;
    derive::derive(&mut graph)?;
    options.keep_float = named(&graph, &args.keep_float)?;
    let at_most = args.calibration_items.map_or(128, NonZeroUsize::get);
    let items = Items::find(&graph, task, at_most)?;
    for what in items.suggestions(&graph)? {
        note(&mut std::io::stderr(), &what);
    }
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
    let made = quantize(task.model, output, &options, &set, &open, &tell);
    line.finish_and_clear();
    let summary = made?;
    let mut out = text_output();
    if task.json {
        put_json(&mut out, &Int8Report::new(&summary, &options))?;
    } else {
        put_report(&mut out, &text(&summary, &options, task))?;
    }
    for what in summary.outputs.iter().filter_map(poor) {
        warning(&mut std::io::stderr(), &format!("{what}; {ADVICE}"));
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
    /// Operator of that node, and those of the nodes fused with it.
    ops: &'a [String],
    /// `product`, `binary`, `mean`, `softmax`, `table` or `move`.
    kind: &'a str,
    /// Shape of the weights; empty for a layer without weights.
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

/// A layer before an output.
#[derive(Debug, Serialize, schemars::JsonSchema)]
struct LastLayerRow<'a> {
    /// Its name in `layers`.
    name: &'a str,
    /// Signal-to-noise ratio of its result in dB.
    snr: f64,
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
    /// Items whose largest element is at the same position as in the float model; null if the
    /// output has several rows.
    same_largest: Option<usize>,
    /// Of the quantized layers from which the output is computed without another one in between,
    /// the one with the lowest ratio.
    last_layer: Option<LastLayerRow<'a>>,
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
    /// Tensors, or groups of tensors with residual connections, that were equalized.
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
            reason: &l.reason,
        };
        let output = |o: &'a OutputNoise| OutputRow {
            name: &o.name,
            median_snr: o.median_snr,
            lowest_snr: o.lowest_snr,
            same_largest: o.same_largest,
            last_layer: o.last_layer.as_ref().map(|l| LastLayerRow {
                name: &l.name,
                snr: l.snr,
            }),
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

/// Number of layers shown without `--verbose`.
const SHOWN: usize = 5;
/// The ratio in dB below which a warning is printed. The noise of the outputs is then a third of
/// their size.
const POOR: f64 = 10.0;
const ADVICE: &str = "use more calibration data that resembles real inputs, or use --keep-float for nodes \
                      where the ratio drops (--verbose lists all layers)";

/// What is wrong with an output, or a part of it, with too much noise.
fn poor(o: &OutputNoise) -> Option<String> {
    let name = &o.name;
    if o.median_snr < POOR {
        let snr = o.median_snr;
        return Some(format!(
            "output {name}: a signal-to-noise ratio of {snr:.1} dB is low"
        ));
    }
    let layer = o.last_layer.as_ref().filter(|l| l.snr < POOR)?;
    Some(format!(
        "output {name}: a part of it comes from {}, whose signal-to-noise ratio of {:.1} dB is low",
        layer.name, layer.snr
    ))
}

/// The ratios of an output in words.
fn ratios(o: &OutputNoise, compared: usize) -> String {
    let mut out = format!("median SNR {:.1} dB, lowest {:.1} dB", o.median_snr, o.lowest_snr);
    if let Some(same) = o.same_largest {
        let items = count_text(compared, "item");
        out.push_str(&format!("; same largest element for {same} of {items}"));
    }
    out
}

/// Maximum number of operators named in a line about several nodes.
const NAMED: usize = 4;

fn decibels(v: Option<f64>) -> String {
    v.map_or_else(|| "-".to_owned(), |v| format!("{v:.1} dB"))
}

fn channel(c: Option<Channel>) -> String {
    c.map_or_else(|| "-".to_owned(), |c| format!("{:.1} dB ({})", c.snr, c.index))
}

/// The shape of a layer's weights.
fn weights(l: &LayerReport) -> String {
    if l.shape.is_empty() {
        "-".to_owned()
    } else {
        shape_text(&l.shape)
    }
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

/// A line for each layer, without the ratios of results if no items were compared.
fn layer_table(layers: &[&LayerReport], compared: bool) -> String {
    let head = [
        "layer",
        "operators",
        "weights",
        "weights SNR",
        "worst channel",
        "SNR",
        "worst channel",
    ];
    let columns = if compared { head.len() } else { head.len() - 2 };
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for l in layers {
        rows.push(vec![
            l.name.clone(),
            l.ops.join(" "),
            weights(l),
            decibels(l.weights_snr),
            channel(l.worst_weights),
            decibels(l.snr),
            channel(l.worst),
        ]);
    }
    rows.iter_mut().for_each(|row| row.truncate(columns));
    table(&rows, 2)
}

/// Layers that compute; the others move elements.
fn computing(s: &Summary) -> Vec<&LayerReport> {
    s.layers.iter().filter(|l| l.kind != "move").collect()
}

/// The nodes in floats: a line for each node if verbose, else for each reason.
fn left_text(left: &[LeftNode], verbose: bool) -> String {
    if verbose {
        let lines = left
            .iter()
            .map(|l| format!("in floats: {} {}: {}\n", l.op, l.name, l.reason));
        return lines.collect();
    }
    let mut reasons: Vec<(&str, Vec<&LeftNode>)> = Vec::new();
    for l in left {
        match reasons.iter_mut().find(|(reason, _)| *reason == l.reason) {
            Some((_, nodes)) => nodes.push(l),
            None => reasons.push((&l.reason, vec![l])),
        }
    }
    let line = |(reason, nodes): &(&str, Vec<&LeftNode>)| {
        if let [only] = nodes.as_slice() {
            return format!("in floats: {} {}: {reason}\n", only.op, only.name);
        }
        let mut ops: BTreeMap<&str, usize> = BTreeMap::new();
        nodes.iter().for_each(|n| *ops.entry(&n.op).or_default() += 1);
        let mut ops: Vec<(&str, usize)> = ops.into_iter().collect();
        ops.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
        let more = if ops.len() > NAMED { ", ..." } else { "" };
        let ops: Vec<&str> = ops.iter().take(NAMED).map(|(op, _)| *op).collect();
        format!(
            "in floats: {} nodes ({}{more}): {reason}\n",
            nodes.len(),
            ops.join(", ")
        )
    };
    reasons.iter().map(line).collect()
}

/// The report for people: the table of layers, nodes in floats, then the totals.
fn text(s: &Summary, options: &Options, task: &Task<'_>) -> String {
    let mut out = String::new();
    let Verbosity { quiet, verbose } = task.verbosity;
    let all = s.layers.len();
    if !quiet {
        let mut shown: Vec<&LayerReport> = s.layers.iter().collect();
        if !verbose {
            shown = computing(s);
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
        out.push_str(&layer_table(&shown, s.compared > 0));
        out.push_str(&left_text(&s.left, verbose));
    }
    for o in &s.outputs {
        out.push_str(&format!("output {}: {}\n", o.name, ratios(o, s.compared)));
    }
    out.push_str(&format!(
        "{} quantized over {}: {}\n{} -> {}, written to {}\n",
        count_text(all, "layer"),
        count_text(s.items, "calibration item"),
        scheme(options),
        size_text(s.bytes_before),
        size_text(s.bytes_after),
        task.output.display()
    ));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_any_characters() {
        for (pattern, name) in [
            ("a", "a"),
            ("*", ""),
            ("*", "abc"),
            ("a*", "a"),
            ("*/out/*", "layer.0/out/Add"),
            ("l*0*Add", "layer.0/out/Add"),
            ("*ab*ab", "abab"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("a", "ab"),
            ("a*b", "a"),
            ("*ab*ab", "ab"),
            ("a*a", "a"),
            ("x*", "ax"),
        ] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn nodes_in_floats_are_counted_by_reason() {
        let node = |name: &str, op: &str, reason: &'static str| LeftNode {
            name: name.to_owned(),
            op: op.to_owned(),
            reason: reason.into(),
        };
        let left = [
            node("a", "Sqrt", "one"),
            node("b", "Add", "two"),
            node("c", "Add", "two"),
        ];
        assert_eq!(
            left_text(&left, false),
            "in floats: Sqrt a: one\nin floats: 2 nodes (Add): two\n"
        );
        assert_eq!(left_text(&left, true).lines().count(), 3);
    }
}
