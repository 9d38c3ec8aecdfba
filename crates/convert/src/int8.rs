//! Post-training quantization to 8-bit integers: runs a float model over a calibration set,
//! chooses ranges for its activations, and writes an ONNX model with `QuantizeLinear` and
//! `DequantizeLinear` (QDQ), which other runtimes read, too.
//!
//! The parameters are those of *Integer-Arithmetic-Only Inference* (Jacob et al., 2018) as used
//! today: activations have 8 bits with a zero point, per tensor; weights are integers from -127 to
//! 127 without one, per output channel or per tensor; biases have 32 bits, and their scale is the
//! product of both scales. [`transformer_lite::unstable::graph::quantization`] defines which values
//! are quantized.

mod compare;
mod equalize;
mod histogram;
mod job;
mod observe;
mod output;
mod products;
mod ranges;
mod refused;
mod rounding;
mod sequence;
mod source;
#[cfg(test)]
mod tests;
mod trained;
mod upgrade;
mod walk;
mod write;

use crate::quantize::copy_others;
use job::Job;
use observe::check_set;
use serde::Serialize;
use std::collections::HashSet;
use std::path::Path;
use transformer_lite::unstable::backend::Backend;
use transformer_lite::unstable::error::Result;
use transformer_lite::unstable::graph::onnx::write::write_file;
use transformer_lite::unstable::graph::quantization::Reason;
use transformer_lite::unstable::limits::Limits;

pub use compare::{Channel, LastLayer, MOST_DECIBELS, OutputNoise};
pub use observe::Item;
pub use output::Output;
pub use ranges::RangeMethod;
pub use refused::Refused;
pub use source::FloatModel;
pub use trained::{Trained, TrainedProduct, TrainedRange};

/// File name of the graph in a model folder.
const MODEL: &str = "model.onnx";

/// How a model is quantized.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    pub ranges: RangeMethod,
    /// One scale for each weight tensor, instead of one for each output channel.
    pub per_tensor: bool,
    /// Activations have the zero point 0.
    pub symmetric: bool,
    /// Rescales channels between convolutions and matmuls first, so that one scale suits all.
    pub equalize: bool,
    /// Chooses weight integers that make up for the errors of activations and of each other over
    /// the calibration set, instead of the nearest ones.
    pub compensate: bool,
    /// Corrects biases for the mean errors that rounding causes.
    pub correct_bias: bool,
    /// Names of nodes that stay in floats.
    pub keep_float: HashSet<String>,
    /// Number of items on which the result is compared with the source; 0 for no comparison.
    pub compared: usize,
}

/// Inputs that resemble those of the intended use.
pub struct CalibrationSet<'a> {
    /// A name for each item, for messages.
    pub names: Vec<String>,
    /// Reads an item: a tensor for each input of the model.
    pub read: &'a dyn Fn(usize) -> Result<Item>,
    /// Keys and values for the metadata of the quantized model, such as how items were prepared.
    pub metadata: Vec<(String, String)>,
}

impl CalibrationSet<'_> {
    /// The name of an item.
    fn name(&self, i: usize) -> String {
        self.names.get(i).cloned().unwrap_or_default()
    }
}

/// Where the model runs.
#[derive(Clone, Copy)]
pub struct Open<'a> {
    /// Opens the device; `None` for the host.
    pub backend: &'a dyn Fn() -> Result<Option<Box<dyn Backend>>>,
    /// What the model may consume: in each run, and outside of runs.
    pub limits: &'a Limits,
}

/// The step in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Running the float model to find the ranges of channels.
    Equalize,
    /// Running the float model.
    Calibrate,
    /// Rounding weights, node by node; counts nodes instead of items.
    Round,
    /// Running both models.
    Compare,
}

/// Progress callback: the step, the number of items done and their total.
pub type Tell<'a> = &'a dyn Fn(Step, usize, usize);

/// A quantized layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LayerReport {
    /// Name of its first node.
    pub name: String,
    /// Operators of the layer: that of its first node, then those of the fused nodes.
    pub ops: Vec<String>,
    /// `product`, `binary`, `mean`, `softmax`, `table` or `move`.
    pub kind: &'static str,
    /// Shape of the weights; empty for a layer without weights.
    pub shape: Vec<usize>,
    /// Scale of the layer's result.
    pub scale: f32,
    /// Zero point of the layer's result.
    #[serde(rename = "zero_point")]
    pub zero: i32,
    /// Smallest and largest result that is not clipped, before the zero point is
    /// rounded to an integer.
    #[cfg_attr(feature = "schema", schemars(with = "[f32; 2]"))]
    pub range: (f32, f32),
    /// True if the weights compensate for errors, false if they are rounded to nearest; null for a
    /// layer without weights.
    pub compensated: Option<bool>,
    /// Signal-to-noise ratio (SNR) of the weights in dB; null for a layer without weights.
    pub weights_snr: Option<f64>,
    /// Output channel whose weights have the lowest SNR.
    pub worst_weights: Option<Channel>,
    /// SNR of the result in dB, including the noise of earlier layers; null if not compared.
    pub snr: Option<f64>,
    /// Channel of the result with the lowest SNR.
    pub worst: Option<Channel>,
}

/// A node kept in float.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LeftNode {
    /// Name of the node.
    pub name: String,
    /// Its operator.
    pub op: String,
    /// Why it was not quantized.
    pub reason: Reason,
}

/// Result of [`quantize`].
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    pub layers: Vec<LayerReport>,
    pub left: Vec<LeftNode>,
    /// Number of items in the calibration set, and of those compared.
    pub items: usize,
    pub compared: usize,
    /// Noise of the outputs over the compared items.
    pub outputs: Vec<OutputNoise>,
    /// Number of tensors, or groups of tensors with residual connections, that were equalized.
    pub equalized: usize,
    /// Bytes of the model and its external data.
    pub bytes_before: u64,
    pub bytes_after: u64,
}

/// Quantizes the model `input`, a folder with `model.onnx` or an ONNX file, to `output`, which
/// appears once it is complete. If both are folders, the other files in `input` are copied, too.
///
/// Errors: an unsuitable calibration set
/// ([`Error::is_usage`](transformer_lite::unstable::error::Error::is_usage)); a model that cannot
/// be imported, that is already quantized or that has nothing to quantize; values that are not
/// finite, ranges without a usable scale and sums that can overflow 32 bits ([`Refused`], with the
/// node).
pub fn quantize(
    input: &Path,
    output: Output,
    options: &Options,
    set: &CalibrationSet<'_>,
    open: &Open<'_>,
    tell: Tell<'_>,
) -> Result<Summary> {
    let quota = open.limits.quota();
    let _call = quota.enter();
    let FloatModel {
        path,
        proto,
        graph,
        placement,
        external,
    } = FloatModel::open(input, &options.keep_float)?;
    check_set(&graph, set)?;
    let mut job = Job::new(&graph, &placement, options)?;
    job.equalize(set, open, tell)?;
    job.calibrate(set, open, tell)?;
    let bytes = job.bytes(proto, &path, set)?;
    if let Some(folder) = output.folder().filter(|_| input.is_dir()) {
        copy_others(input, folder, &external)?;
    }
    write_file(&output.model(), &bytes)?;
    let mut summary = job.summary(&output.model(), set, open, tell)?;
    let files = std::iter::once(&path).chain(&external);
    summary.bytes_before = files.map(|f| std::fs::metadata(f).map_or(0, |m| m.len())).sum();
    summary.bytes_after = bytes.len() as u64;
    output.commit()?;
    Ok(summary)
}
