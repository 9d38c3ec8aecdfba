//! Quantization of ONNX models: a folder with a float model becomes one with E0M weights; [`dequantize_into`] goes back.
//!
//! The work is on the messages of the file. Nodes that read a packed weight are replaced by operators of this
//! engine's own domain; everything else is copied byte by byte.

mod dequantize;
mod grid;
mod job;
mod methods;
mod mixed;
mod panels;
mod parts;
mod plan;
mod source;
#[cfg(test)]
mod tests;
mod transcode;
#[cfg(test)]
mod transcode_tests;
mod wire;

use super::import;
use super::proto::{GraphProto, NodeProto, TensorProto};
use super::weights::Weights;
use super::write::{ModelWriter, write_file};
use crate::error::{Error, Result, Stage};
use crate::graph::op::OWN_DOMAIN;
use crate::new_folder::NewFolder;
use crate::quant::{Bits, GROUP_STEP, Loss, Method, PER_CHANNEL};
use job::Job;
use parts::Parts;
use plan::{Plan, plan};
use source::{Source, copy_others};
use std::path::{Path, PathBuf};

pub(crate) use dequantize::TEMPORARY as DEQUANTIZE_TEMPORARY;
pub use dequantize::{Dequantized, dequantize_into};
pub use grid::grid_group;
pub use methods::{Methods, Planned, Scaling};

/// How the name of the temporary folder starts.
pub(crate) const TEMPORARY: &str = ".quantize-";
/// Where a run that writes `output` keeps what it has finished, for a later one to go on with.
pub fn unfinished(output: &Path) -> Option<PathBuf> {
    NewFolder::resumed(output, TEMPORARY)
}

/// The folder in the temporary one that becomes the output.
const RESULT: &str = "model";
/// The graph's file in a model folder.
const MODEL: &str = "model.onnx";
/// The file of its data.
const DATA: &str = "model.onnx.data";
/// Group sizes that can be asked for: multiples of [`GROUP_STEP`] in this range, and [`PER_CHANNEL`].
pub const GROUP_SIZES: std::ops::RangeInclusive<usize> = 16..=256;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Weights of a group; see [`GROUP_SIZES`] and [`crate::quant::group_size`].
    pub group_size: usize,
    /// Format of the output head and of embeddings.
    pub head_bits: Bits,
    /// Format of the other weights.
    pub bits: Bits,
    /// How scales and biases are chosen.
    pub method: Method,
    /// Mean bits of a quantized weight, those of scales and biases included, which are spent where they save most error: formats and
    /// group sizes, no larger than `group_size`, are chosen for each weight. `bits` is not looked at; output head and embeddings get `head_bits` or more.
    pub budget: Option<f64>,
    /// Measures what each method would make of each weight, on some of its columns.
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

/// How far a quantization is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress<'a> {
    /// The weight being read, by its name in the graph.
    pub tensor: &'a str,
    /// Bytes of weights read.
    pub done: u64,
    /// Bytes of weights in all.
    pub total: u64,
}

/// A weight that was quantized.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantized {
    /// Name of the initialiser.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Format.
    pub bits: Bits,
    /// Weights of a group.
    pub group: usize,
    /// Largest absolute difference.
    pub max_error: f32,
    /// Norm of the difference divided by the norm of the weight.
    pub relative_error: f64,
    /// Mean absolute difference.
    pub mae: f64,
    /// That of min-max asymmetric INT4 with the same groups ([`crate::quant::int4_error`]); `None` for a weight that kept its codes.
    pub mae_int4: Option<f64>,
    /// Mean squared difference.
    pub mse: f64,
    /// Bytes of the initialiser.
    pub bytes_before: u64,
    /// Bytes of codes and scales.
    pub bytes_after: u64,
    /// With [`Options::compare`]: for each method that looks at weights alone, its name, and its mean absolute difference divided by that of INT4 on some columns.
    pub compared: Vec<(&'static str, f64)>,
}

impl Quantized {
    /// A weight with this loss, which is not compared with others.
    pub fn new(
        name: &str,
        shape: &[usize],
        (bits, group): (Bits, usize),
        loss: &Loss,
        bytes_before: u64,
        bytes_after: u64,
    ) -> Self {
        Self {
            name: name.to_owned(),
            shape: shape.to_vec(),
            bits,
            group,
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

/// A weight of a matrix product or embedding that stays as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// Name of the initialiser.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Why.
    pub reason: String,
}

/// What a quantization did.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Name of the method.
    pub method: &'static str,
    /// Quantized weights in the order of the file.
    pub weights: Vec<Quantized>,
    /// Weights that could not be quantized.
    pub left: Vec<Left>,
    /// Bytes of `model.onnx` and its external data before.
    pub bytes_before: u64,
    /// Bytes of `model.onnx` and its external data after.
    pub bytes_after: u64,
    /// Relative error over all quantized weights.
    pub relative_error: f64,
    /// Bits of codes, scales and biases, divided by the number of quantized weights.
    pub bits_per_weight: f64,
    /// Weights that an interrupted run had finished.
    pub resumed: usize,
}

/// Quantizes the model in the folder `input` into the folder `output`.
///
/// Each `MatMul` whose second operand is a constant matrix, or the transpose of one, becomes a `MatMulE0M`, and
/// each `Gather` of rows of a constant matrix by token a `GatherE0M`; a matrix that both read is packed once. Matrices that are codes on uniform
/// grids already, those of `MatMulNBits` and of `DequantizeLinear`, keep their codes, whatever the options say. The
/// `MatMul` that makes the output `logits`, and embeddings, take `head_bits`. Weights that cannot be quantized stay
/// as they are and are listed. The files beside the model are copied; folders in `input` are not. The result does not depend on the
/// number of cores.
///
/// `output` must not exist or be an empty folder, and the folder that is to hold it must exist. The files are
/// made in a folder `.quantize-<name of the output>` beside it, from which they move to their place at the end, written through to the disk. That folder stays where the
/// program is ended, where the system refuses a file once a weight was finished, and where `output` was made by somebody else meanwhile: the same call goes on
/// from there. A finished weight is taken where it was made from the same bytes with the same options, and, by a method that learns from a text, from the same text
/// by the same model on the same device; others are made anew. After any other error nothing is left.
///
/// Memory: the source is mapped; the codes and scales of one weight are held at a time, and the floats of a panel of columns for each core.
///
/// Errors: no such model, an output in the way, an option out of range ([`Error::is_usage`]); a model that
/// [`import`] refuses; a weight with NaN or infinity, or out of the range of halves; a model without a weight that
/// can be quantized, or quantized before; a failure to write.
pub fn quantize(
    input: &Path,
    output: &Path,
    options: &Options,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Summary> {
    let mut method = options.method;
    quantize_with(input, output, options, &mut method, progress)
}

/// As [`quantize`], with a method for each weight in place of [`Options::method`].
pub fn quantize_with(
    input: &Path,
    output: &Path,
    options: &Options,
    methods: &mut dyn Methods,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Summary> {
    let new = NewFolder::resume(output, TEMPORARY)?;
    // Nothing of the folder is touched while another run has it.
    let parts = Parts::open(new.path())?;
    let made = new
        .empty_part(RESULT)
        .and_then(|folder| quantize_into(input, &folder, &parts, options, methods, progress));
    match made {
        Ok(summary) => {
            // The parts go with the rest of the temporary folder, once the result has its name.
            new.commit_part(RESULT)?;
            Ok(summary)
        }
        // What was finished is of use once there is room again.
        Err(e @ Error::Io { .. }) if parts.any() => Err(e),
        Err(e) => {
            new.discard()?;
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
            "{} is no multiple of {GROUP_STEP} from {first} to {last}",
            options.group_size
        );
        return Err(Error::usage("group_size", what));
    }
    let path = input.join(MODEL);
    if !path.is_file() {
        return Err(Error::usage(
            "folder",
            format!("there is no file {}", path.display()),
        ));
    }
    // A model that cannot run, for whatever reason, is told from one that can before anything is written.
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
    let mut changes = plan.changes(&source.graph);
    for (kept, ordered) in plan.kept.iter().zip(&job.ordered) {
        kept.change(&source.graph, *ordered, &mut changes);
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
    // Last, as a folder without it is no model.
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

/// Refuses what cannot be quantized at all.
fn check(source: &Source, plan: &Plan) -> Result<()> {
    // Nodes are copied as they are, their tensors with them.
    let outside = |t: &TensorProto| t.data_location == 1;
    let inner = |g: &GraphProto| g.initializer.iter().any(outside);
    let carries = |n: &NodeProto| {
        n.attribute
            .iter()
            .any(|a| a.t.as_ref().is_some_and(outside) || a.g.as_ref().is_some_and(inner))
    };
    if let Some(n) = source.graph.node.iter().find(|n| carries(n)) {
        return Err(source.bad(format!(
            "{} \"{}\": an attribute has external data, which only initialisers may have here",
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
            "{} \"{}\": the model is quantized already",
            n.op_type, n.name
        )));
    }
    if plan.weights.is_empty() && plan.kept.is_empty() {
        let why = plan.left.first().map_or_else(
            || "no matrix product or embedding reads a constant matrix".to_owned(),
            |l| format!("\"{}\": {}", l.name, l.reason),
        );
        return Err(source.bad(format!("no weight can be quantized; {why}")));
    }
    Ok(())
}
