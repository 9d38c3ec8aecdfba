//! `tlite quantize --format int8`.

mod items;

use super::{Args, shape_text};
use crate::cli::interrupt::Interrupt;
use crate::cli::load;
use crate::cli::options::{ADVANCED, Verbosity, first_given, from_one, from_zero};
use crate::cli::output::{bar, count, grouped, print_report, table, titled, warning};
use crate::cli::page::{self, About};
use crate::inspect::model_file;
use clap::ValueEnum;
use items::Items;
use serde::Serialize;
use std::collections::{BTreeMap, HashSet};
use std::num::NonZeroUsize;
use transformer_lite::unstable::error::{Error, Result};
use transformer_lite::unstable::files::write_whole;
use transformer_lite::unstable::fmt::{count_text, size_text};
use transformer_lite::unstable::graph::{Graph, derive, onnx};
use transformer_lite_convert::int8::{
    CalibrationSet, Channel, LayerReport, LeftNode, Open, Options, Output, OutputNoise, RangeMethod, Step,
    Summary, quantize,
};

/// [`RangeMethod`] on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Ranges {
    /// Smallest and largest value
    MinMax,
    /// Moving average of each item's smallest and largest value
    MovingAverage,
    /// Range that holds a percentage of the values; see --percentile
    Percentile,
    /// Range with the smallest mean squared error
    Mse,
    /// Range that changes the distribution least (Kullback-Leibler divergence)
    Entropy,
}

/// Options of `--format int8`.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Options of --format int8")]
pub struct Int8Args {
    /// How activation ranges are chosen [default: moving-average]
    #[arg(long, value_enum, value_name = "NAME", hide_short_help = true)]
    ranges: Option<Ranges>,
    /// Percentage of the values that --ranges percentile keeps [default: 99.99]
    #[arg(long, value_name = "P", value_parser = percentage, hide_short_help = true, help_heading = ADVANCED)]
    percentile: Option<f64>,
    /// Use one scale per weight tensor instead of one per output channel
    #[arg(long, hide_short_help = true)]
    per_tensor: bool,
    /// Quantize activations symmetrically (zero point 0)
    #[arg(long, hide_short_help = true)]
    symmetric: bool,
    /// Do not equalize channels between layers
    #[arg(long, hide_short_help = true)]
    no_equalization: bool,
    /// Round weights to nearest, without error compensation
    #[arg(long, hide_short_help = true)]
    no_compensation: bool,
    /// Do not correct biases for mean quantization errors
    #[arg(long, hide_short_help = true)]
    no_bias_correction: bool,
    /// Keep this node in float; may be repeated
    ///
    /// `*` matches any characters. `tlite inspect --nodes` lists the names.
    #[arg(long, value_name = "NODE", hide_short_help = true)]
    keep_float: Vec<String>,
    /// Use at most N calibration items, spread evenly over the set [default: 128]
    #[arg(long, value_name = "N", value_parser = from_one, hide_short_help = true)]
    calibration_items: Option<NonZeroUsize>,
    /// Compare the result with the float model on N items; 0 to skip [default: 32]
    #[arg(long, value_name = "N", value_parser = from_zero::<usize>, hide_short_help = true, help_heading = ADVANCED)]
    compare_items: Option<usize>,
    /// Replace the output file if it exists
    #[arg(long, hide_short_help = true)]
    force: bool,
}

fn percentage(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(v) if v > 50.0 && v <= 100.0 => Ok(v),
        _ => Err("must be a number above 50 and at most 100".to_owned()),
    }
}

impl Int8Args {
    /// The first of these options that is given.
    pub fn given(&self) -> Option<&'static str> {
        first_given(&[
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
            ("--force", self.force),
        ])
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

pub fn run(args: &Args, interrupt: &Interrupt) -> Result<()> {
    let mut options = args.int8.options()?;
    let file = model_file(&args.model)?;
    let output = Output::create(&args.output, args.int8.force)?;
    let _unfinished = interrupt.scratch(output.temporary());
    let mut graph = onnx::import(&file)?;
    derive::derive(&mut graph)?;
    options.keep_float = named(&graph, &args.int8.keep_float)?;
    let at_most = args.int8.calibration_items.map_or(128, NonZeroUsize::get);
    let items = Items::find(&graph, args, at_most)?;
    let suggestions = items.suggestions(&graph)?;
    let read = |i: usize| items.read(i);
    let set = CalibrationSet {
        names: items.names(),
        read: &read,
        metadata: items.preparation()?,
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
    let device = &args.calibration.on;
    let open = Open {
        backend: &|| load::open(device),
        limits: &device.limits.limits,
    };
    let made = quantize(&args.model, output, &options, &set, &open, &tell);
    line.finish_and_clear();
    let summary = made?;
    let report = Int8Report::new(&summary, &options);
    print_report(args.json, &report, || text(&summary, &options, args))?;
    let poor = summary.outputs.iter().filter_map(poor);
    let mut warnings: Vec<String> = poor.map(|what| format!("{what}; {ADVICE}")).collect();
    warnings.extend(suggestions);
    warnings.iter().for_each(|what| warning(what));
    if let Some(file) = &args.report {
        let about = About {
            kind: "int8",
            headline: Some(format!("int8, {}", scheme(&options, &summary))),
            warnings,
            ..args.names()
        };
        page::write(file, &report, &about)?;
    }
    if let Some(file) = &args.report_json {
        write_whole(file, |out| Ok(serde_json::to_writer_pretty(out, &report)?))?;
    }
    Ok(())
}

/// The object of `--json` and `--report-json` with `--format int8`.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(in crate::cli) struct Int8Report<'a> {
    /// Method that chose the activation ranges.
    ranges: &'a str,
    /// True if weights have one scale per tensor, false if one per output channel.
    per_tensor: bool,
    /// True if the zero point of all activations is 0.
    symmetric: bool,
    /// Number of equalized tensors; tensors joined by residual connections count as one.
    equalized: usize,
    /// Number of calibration items used.
    items: usize,
    /// Number of items on which the result was compared with the float model.
    compared: usize,
    /// Quantized layers.
    layers: &'a [LayerReport],
    /// Nodes kept in float.
    left: &'a [LeftNode],
    /// Noise of each output.
    outputs: &'a [OutputNoise],
    /// Bytes of the float model.
    bytes_before: u64,
    /// Bytes of the int8 model.
    bytes_after: u64,
}

impl<'a> Int8Report<'a> {
    fn new(s: &'a Summary, options: &'a Options) -> Self {
        Self {
            ranges: options.ranges.name(),
            per_tensor: options.per_tensor,
            symmetric: options.symmetric,
            equalized: s.equalized,
            items: s.items,
            compared: s.compared,
            layers: &s.layers,
            left: &s.left,
            outputs: &s.outputs,
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
const ADVICE: &str = "use more calibration data that resembles real inputs, or keep the nodes where \
                      the ratio drops in float with --keep-float (--verbose shows all layers)";

/// What is wrong with an output, or a part of it, with too much noise.
fn poor(o: &OutputNoise) -> Option<String> {
    let name = &o.name;
    if o.median_snr < POOR {
        let snr = o.median_snr;
        return Some(format!(
            "output {name}: the median signal-to-noise ratio of {snr:.1} dB is low"
        ));
    }
    let layer = o.last_layer.as_ref().filter(|l| l.snr < POOR)?;
    Some(format!(
        "output {name}: the signal-to-noise ratio of one of its last layers is low: {:.1} dB in {}",
        layer.snr, layer.name
    ))
}

/// The ratios of an output in words.
fn ratios(o: &OutputNoise, compared: usize) -> String {
    let mut out = format!("median SNR {:.1} dB, lowest {:.1} dB", o.median_snr, o.lowest_snr);
    if let Some(same) = o.same_largest {
        let items = count_text(compared, "item");
        out.push_str(&format!("; same largest element in {same} of {items}"));
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
fn scheme(options: &Options, s: &Summary) -> String {
    let weights: Vec<bool> = s.layers.iter().filter_map(|l| l.compensated).collect();
    let compensated = weights.iter().filter(|c| **c).count();
    let rounded = match compensated {
        0 => String::new(),
        n if n == weights.len() => ", compensated weights".to_owned(),
        n => format!(
            ", compensated weights in {n} of {}",
            count_text(weights.len(), "layer")
        ),
    };
    let pick = |is: bool, yes: &'static str, no: &'static str| if is { yes } else { no };
    let scales = pick(options.per_tensor, "per-tensor", "per-channel");
    let zero = pick(options.symmetric, "symmetric", "asymmetric");
    let equalized = pick(s.equalized > 0, ", equalized", "");
    let corrected = pick(options.correct_bias, ", corrected biases", "");
    let ranges = options.ranges.name();
    format!("{scales} weights, {zero} activations, {ranges} ranges{equalized}{rounded}{corrected}")
}

/// A line for each layer, without the ratios of results if no items were compared.
fn layer_table(layers: &[&LayerReport], compared: bool) -> String {
    let mut rows = titled(
        layers,
        &[
            ("layer", &|l| l.name.clone()),
            ("operators", &|l| l.ops.join(" ")),
            ("weights", &|l| weights(l)),
            ("weights SNR", &|l| decibels(l.weights_snr)),
            ("worst channel", &|l| channel(l.worst_weights)),
            ("SNR", &|l| decibels(l.snr)),
            ("worst channel", &|l| channel(l.worst)),
        ],
    );
    let columns = if compared { 7 } else { 5 };
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
            .map(|l| format!("kept in float: {} {}: {}\n", l.op, l.name, l.reason));
        return lines.collect();
    }
    let line = |(reason, nodes): (&str, Vec<&LeftNode>)| {
        if let [only] = nodes.as_slice() {
            return format!("kept in float: {} {}: {reason}\n", only.op, only.name);
        }
        let mut ops: BTreeMap<&str, usize> = BTreeMap::new();
        nodes.iter().for_each(|n| *ops.entry(&n.op).or_default() += 1);
        let mut ops: Vec<(&str, usize)> = ops.into_iter().collect();
        ops.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
        let more = if ops.len() > NAMED { ", ..." } else { "" };
        let ops: Vec<&str> = ops.iter().take(NAMED).map(|(op, _)| *op).collect();
        format!(
            "kept in float: {} nodes ({}{more}): {reason}\n",
            nodes.len(),
            ops.join(", ")
        )
    };
    let reasons = grouped(left, |l| &*l.reason);
    reasons.into_iter().map(line).collect()
}

/// The report for people: the table of layers, nodes in floats, then the totals.
fn text(s: &Summary, options: &Options, args: &Args) -> String {
    let mut out = String::new();
    let Verbosity { quiet, verbose } = args.verbosity;
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
        "{} quantized with {}: {}\n{} -> {}, written to {}\n",
        count_text(all, "layer"),
        count_text(s.items, "calibration item"),
        scheme(options, s),
        size_text(s.bytes_before),
        size_text(s.bytes_after),
        args.output.display()
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
            "kept in float: Sqrt a: one\nkept in float: 2 nodes (Add): two\n"
        );
        assert_eq!(left_text(&left, true).lines().count(), 3);
    }
}
