//! Quantization of ONNX models: turns a folder with a float model into one with E0M weights
//! (group-wise scale and bias in fp16). [`dequantize_into`] is the reverse.
//!
//! It works on the messages of the file: nodes that read a packed weight are replaced by operators
//! of this engine's own domain, everything else is copied byte by byte.

mod dequantize;
mod grid;
mod job;
mod methods;
mod mixed;
mod nodes;
mod panels;
mod parts;
mod plan;
mod replace;
mod source;
#[cfg(test)]
mod tests;
mod transcode;
mod weight;
mod wire;

use crate::new_folder::{NewFolder, QUANTIZE};
use job::Job;
use parts::Parts;
use plan::{Plan, plan};
use serde::{Serialize, Serializer};
use source::Source;
pub(crate) use source::{copy_others, external_files};
use std::path::{Path, PathBuf};
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::files::kind::check_file;
use transformer_lite::unstable::graph::onnx::import;
use transformer_lite::unstable::graph::onnx::proto::{GraphProto, NodeProto, TensorProto};
use transformer_lite::unstable::graph::onnx::weights::Weights;
use transformer_lite::unstable::graph::onnx::write::{ModelWriter, write_file};
use transformer_lite::unstable::graph::op::OWN_DOMAIN;
use transformer_lite::unstable::quant::{Bits, Format, GROUP_STEP, Loss, Method, PER_CHANNEL};

pub use dequantize::{Dequantized, dequantize_into};
pub use grid::grid_group;
pub use methods::{Methods, Planned};
pub use replace::replace_into;
pub use weight::Scaling;

/// The folder in which an interrupted run that writes `output` keeps its progress for the next one.
pub fn unfinished(output: &Path) -> Option<PathBuf> {
    NewFolder::unfinished(output, QUANTIZE)
}

/// File name of the graph in a model folder.
const MODEL: &str = "model.onnx";
/// File name of the weights in a model folder.
const DATA: &str = "model.onnx.data";
/// Allowed group sizes: multiples of [`GROUP_STEP`] in this range, and [`PER_CHANNEL`].
pub const GROUP_SIZES: std::ops::RangeInclusive<usize> = 16..=256;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Number of weights per group; see [`GROUP_SIZES`] and
    /// [`transformer_lite::unstable::quant::group_size`].
    pub group_size: usize,
    /// Format of the output head and of embedding tables.
    pub head_bits: Bits,
    /// Format of the other weights.
    pub bits: Bits,
    /// How scales and biases are chosen.
    pub method: Method,
    /// Average bits per quantized weight, scales and biases included, spent where they reduce the
    /// error most. Formats and group sizes (up to `group_size`) are then chosen per weight: `bits`
    /// is ignored, and output head and embedding tables get `head_bits` or more.
    pub budget: Option<f64>,
    /// Measures the result of each method for each weight, on some of its columns.
    pub compare: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            group_size: 128,
            head_bits: Bits::Eight,
            bits: Bits::Four,
            method: Method::default(),
            budget: None,
            compare: false,
        }
    }
}

/// Progress of a quantization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress<'a> {
    /// Name of the weight being read.
    pub tensor: &'a str,
    /// Bytes of weights read.
    pub done: u64,
    /// Total bytes of weights.
    pub total: u64,
}

/// A quantized weight.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Quantized {
    /// Name of the weight.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Bits per weight, without scales.
    #[serde(serialize_with = "count")]
    #[cfg_attr(feature = "schema", schemars(with = "u32"))]
    pub bits: Bits,
    /// Weights that share a scale.
    #[serde(rename = "group_size")]
    pub group: usize,
    /// Mean absolute error.
    pub mae: f64,
    /// Mean absolute error of asymmetric INT4 with the same groups; null for a weight that kept its
    /// bits.
    pub mae_int4: Option<f64>,
    /// Mean squared error.
    pub mse: f64,
    /// Largest absolute error.
    pub max_error: f32,
    /// Root mean squared error, relative to the weights'.
    pub relative_error: f64,
    /// Bytes in the source.
    pub bytes_before: u64,
    /// Bytes in the result, with scales.
    pub bytes_after: u64,
    /// Methods that need only weights, each with its mean absolute error relative to INT4 on a
    /// sample of the columns, if they were compared.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub compared: Vec<(&'static str, f64)>,
}

fn count<S: Serializer>(bits: &Bits, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u32(bits.count())
}

impl Quantized {
    /// A weight with this loss and no comparison.
    pub fn new(
        name: &str,
        shape: &[usize],
        format: Format,
        loss: &Loss,
        bytes_before: u64,
        bytes_after: u64,
    ) -> Self {
        Self {
            name: name.to_owned(),
            shape: shape.to_vec(),
            bits: format.bits,
            group: format.group,
            max_error: loss.max,
            relative_error: loss.relative_rms(),
            mae: loss.mean_absolute(),
            mae_int4: None,
            mse: loss.mean_squared(),
            bytes_before,
            bytes_after,
            compared: Vec::new(),
        }
    }
}

/// A weight of a matmul or embedding that was not quantized.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Left {
    /// Name of the weight.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Why it was not quantized.
    pub reason: String,
}

/// Summary of a quantization.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Summary {
    /// Method that chose scales and biases.
    pub method: &'static str,
    /// Quantized weights.
    pub weights: Vec<Quantized>,
    /// Weights that were not quantized.
    pub left: Vec<Left>,
    /// Root mean squared error of all quantized weights, relative to them.
    pub relative_error: f64,
    /// Mean bits per quantized weight, scales included.
    pub bits_per_weight: f64,
    /// Bytes of the weights in the source.
    pub bytes_before: u64,
    /// Bytes of the weights in the result.
    pub bytes_after: u64,
    /// Number of weights taken over from an interrupted run.
    #[serde(skip)]
    pub resumed: usize,
}

/// Quantizes the model in the folder `input` and writes it to the folder `output`.
///
/// Each `MatMul` whose second operand is a constant matrix, or its transpose, becomes a
/// `MatMulE0M`. Each `Gather` of rows of a constant matrix by token becomes a `GatherE0M`. A matrix
/// that both read is packed once. Weights that are already quantized on uniform grids
/// (`MatMulNBits`, `DequantizeLinear`) keep their quantized values, whatever the options say. The
/// `MatMul` that makes the output `logits`, and embedding tables, use `head_bits`. Weights that
/// cannot be quantized are left unchanged and listed. Files beside the model are copied; subfolders
/// of `input` are not. The result does not depend on the number of cores.
///
/// `output` must not exist or must be an empty folder; its parent folder must exist. The files are
/// built in a folder `.quantize-<name of the output>` beside it, synced to disk and moved into
/// place at the end. The temporary folder remains if the program is stopped, if writing a file
/// fails after a weight was finished, or if someone else creates `output` in the meantime; the same
/// call then resumes from it. A finished weight is reused if it was made from the same bytes with
/// the same options and, for calibrated methods, from the same text by the same model on the same
/// device. Other weights are quantized again. After any other error the temporary folder is
/// removed.
///
/// Memory: the source is mapped. The quantized values and scales of one weight are held at a time,
/// plus the floats of one panel of columns per core.
///
/// Errors: the model does not exist, the output exists, or an option is out of range
/// ([`Error::is_usage`]); [`import`] rejects the model; a weight is NaN, infinite or out of the
/// `f16` range; no weight can be quantized, or the model is quantized already; writing fails.
pub fn quantize(
    input: &Path,
    output: &Path,
    options: &Options,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Summary> {
    let mut method = options.method;
    quantize_with(input, output, options, &mut method, progress)
}

/// Like [`quantize`], with a method per weight instead of [`Options::method`].
pub fn quantize_with(
    input: &Path,
    output: &Path,
    options: &Options,
    methods: &mut dyn Methods,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Summary> {
    let new = NewFolder::resume(output, QUANTIZE)?;
    let parts = Parts::open(new.temporary())?;
    match quantize_into(input, new.path(), &parts, options, methods, progress) {
        Ok(summary) => {
            // Once the result has its name, the parts are removed with the temporary folder.
            new.commit()?;
            Ok(summary)
        }
        // Keep what was finished: it is useful once there is disk space again.
        Err(e @ Error::Io { .. }) if parts.any() => Err(e),
        Err(e) => {
            new.discard();
            Err(e)
        }
    }
}

fn quantize_into(
    input: &Path,
    folder: &Path,
    parts: &Parts,
    options: &Options,
    methods: &mut dyn Methods,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Summary> {
    let known = GROUP_SIZES.contains(&options.group_size) && options.group_size.is_multiple_of(GROUP_STEP);
    if !known && options.group_size != PER_CHANNEL {
        let (first, last) = GROUP_SIZES.into_inner();
        let what = format!(
            "{} is not a multiple of {GROUP_STEP} from {first} to {last}",
            options.group_size
        );
        return Err(Error::usage("group_size", what));
    }
    let path = input.join(MODEL);
    check_file("folder", &path)?;
    // Reject a model that cannot run before anything is written.
    import(&path)?;
    let source = Source::open(Stage::Quantize, path)?;
    let mut plan = plan(&source.graph, &mut Weights::new(&source.path), options)?;
    check(&source, &plan)?;
    let planned = Planned::new(&source, &plan, parts);
    methods.prepare(&planned)?;
    planned.check(methods)?;
    let writer = ModelWriter::create(Stage::Quantize, folder, MODEL, "")?.with_checksums();
    let mut job = Job::new(&source, writer, parts, options, methods, progress);
    if let Some(budget) = options.budget {
        job.spend(&mut plan, budget)?;
    }
    let origins = job.weights(&plan)?;
    let mut changes = plan.changes(&source.graph)?;
    for (kept, ordered) in plan.kept.iter().zip(&job.ordered) {
        kept.change(&source.graph, *ordered, &mut changes)?;
    }
    let (quantized, loss, resumed) = (std::mem::take(&mut job.quantized), job.loss, job.resumed);
    let (tensors, data_bytes) = job.writer.into_initializers()?;
    let external = source.external_files();
    let mut bytes_before = source.file_bytes;
    for file in &external {
        bytes_before += std::fs::metadata(file).map_or(0, |m| m.len());
    }
    let model = source.assemble(&changes, &origins, &tensors)?;
    copy_others(input, folder, &external)?;
    // Written last: a folder without this file is not a model.
    write_file(&folder.join(MODEL), &model)?;
    let stored: u64 = quantized.iter().map(|q| q.bytes_after).sum();
    #[expect(clippy::cast_precision_loss, reason = "sizes of files")]
    let bits_per_weight = stored as f64 * 8.0 / loss.count.max(1) as f64;
    Ok(Summary {
        method: methods.name(),
        weights: quantized,
        left: plan.left,
        bytes_before,
        bytes_after: model.len() as u64 + data_bytes,
        relative_error: loss.relative_rms(),
        bits_per_weight,
        resumed,
    })
}

/// Rejects models that cannot be quantized at all.
fn check(source: &Source, plan: &Plan) -> Result<()> {
    // Nodes are copied unchanged, their tensors included.
    let outside = |t: &TensorProto| t.data_location == 1;
    let inner = |g: &GraphProto| g.initializer.iter().any(outside);
    let carries = |n: &NodeProto| {
        n.attribute
            .iter()
            .any(|a| a.t.as_ref().is_some_and(outside) || a.g.as_ref().is_some_and(inner))
    };
    if let Some(n) = source.graph.node.iter().find(|n| carries(n)) {
        return Err(source.bad(format!(
            "{} \"{}\": an attribute has external data; only initializers may have it here",
            n.op_type, n.name
        )));
    }
    if let Some(n) = source
        .graph
        .node
        .iter()
        .find(|n| n.domain == OWN_DOMAIN && n.op_type.ends_with("E0M"))
    {
        return Err(source.bad(format!(
            "{} \"{}\": the model is quantized already; for another format, convert its source with `tlite \
             convert --float`",
            n.op_type, n.name
        )));
    }
    if plan.weights.is_empty() && plan.kept.is_empty() {
        let why = plan.left.first().map_or_else(
            || "no matmul or embedding reads a constant matrix".to_owned(),
            |l| format!("\"{}\": {}", l.name, l.reason),
        );
        return Err(source.bad(format!("no weight can be quantized: {why}")));
    }
    Ok(())
}
