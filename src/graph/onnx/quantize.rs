//! Quantization of ONNX models: a folder with a float model becomes one with E0M weights; [`dequantize_into`] goes back.
//!
//! The work is on the messages of the file. Nodes that read a packed weight are replaced by operators of this
//! engine's own domain; everything else is copied byte by byte.

mod dequantize;
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
use super::write::ModelWriter;
use crate::error::{Error, Result, Stage};
use crate::graph::op::OWN_DOMAIN;
use crate::new_folder::NewFolder;
use crate::quant::{
    Bits, ByGroup, ColumnMethod, GROUP_STEP, Integers, Loss, Method, PER_CHANNEL, Packed, place,
};
use crate::tensor::{DType, HostTensor, TensorError};
use half::f16;
use panels::{Elements, Losses, Panel, explain, panels, sample};
use parts::{Part, Parts, Record};
use plan::{Plan, Weight, plan};
use source::{Origin, Source, bytes_of, copy_others};
use std::path::Path;
use transcode::Kept;

pub(crate) use dequantize::TEMPORARY as DEQUANTIZE_TEMPORARY;
pub use dequantize::{Dequantized, dequantize_into};

/// How the name of the temporary folder starts.
pub(crate) const TEMPORARY: &str = ".quantize-";
/// The graph's file in a model folder.
const MODEL: &str = "model.onnx";
/// Group sizes that can be asked for: multiples of [`GROUP_STEP`] in this range, and [`PER_CHANNEL`].
pub const GROUP_SIZES: std::ops::RangeInclusive<usize> = 16..=256;
/// Columns of a weight on which formats and methods are compared.
const SAMPLE: usize = 64;

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
    /// group sizes, no larger than `group_size`, are chosen for each weight, `bits` and `head_bits` not looked at.
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

/// What a weight is multiplied by before it is quantized. The model stays the same where what makes its inputs and what reads its results
/// is changed accordingly.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scaling<'a> {
    /// Factors of the K rows.
    pub rows: Option<&'a [f32]>,
    /// Divisors of the N columns.
    pub columns: Option<&'a [f32]>,
}

/// Chooses a method for each weight. A [`Method`] is that of all weights; what knows of the inputs of a weight knows better.
pub trait Methods: Sync {
    /// The method for the weight of this name with K rows. An error where what it needs is not there.
    fn of<'a>(&'a self, weight: &str, k: usize) -> Result<Box<dyn ColumnMethod + 'a>>;

    /// Mean square of each of the K inputs of the weight of this name, where it is known: its errors count in proportion when formats are
    /// compared.
    fn importance(&self, weight: &str) -> Option<&[f32]> {
        let _ = weight;
        None
    }

    /// How the weight of this name is scaled before its method sees it.
    fn scaling(&self, weight: &str) -> Scaling<'_> {
        let _ = weight;
        Scaling::default()
    }

    /// What the elements of the initialiser of this name, which is not quantized, are divided by, one each.
    fn divisor(&self, initializer: &str) -> Option<&[f32]> {
        let _ = initializer;
        None
    }

    /// Names the method and all that its results depend on, as a run that goes on must use the same.
    fn key(&self, weight: &str) -> String;
}

impl Methods for Method {
    fn of<'a>(&'a self, _weight: &str, _k: usize) -> Result<Box<dyn ColumnMethod + 'a>> {
        Ok(Box::new(ByGroup::from(*self)))
    }

    fn key(&self, _weight: &str) -> String {
        self.name().to_owned()
    }
}

impl Methods for Integers {
    fn of<'a>(&'a self, _weight: &str, _k: usize) -> Result<Box<dyn ColumnMethod + 'a>> {
        Ok(Box::new(*self))
    }

    fn key(&self, _weight: &str) -> String {
        "integers".to_owned()
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
    /// That of min-max asymmetric INT4 with the same groups ([`crate::quant::int4_error`]).
    pub mae_int4: f64,
    /// Mean squared difference.
    pub mse: f64,
    /// Bytes of the initialiser.
    pub bytes_before: u64,
    /// Bytes of codes and scales.
    pub bytes_after: u64,
    /// With [`Options::compare`]: for each method, its mean absolute difference divided by that of INT4 on some columns.
    pub compared: Vec<(Method, f64)>,
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
/// made in a folder `.quantize-<name of the output>` beside it, which takes its place at the end and before that holds no model that
/// loads. It stays where the program is ended or the system refuses a file, if a weight was finished by then: the same call goes on from there.
/// What was finished from another source or with other options is made anew. After any other error nothing is left.
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
    quantize_with(input, output, options, &options.method, progress)
}

/// As [`quantize`], with a method for each weight in place of [`Options::method`].
pub fn quantize_with(
    input: &Path,
    output: &Path,
    options: &Options,
    methods: &dyn Methods,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Summary> {
    let new = NewFolder::resume(output, TEMPORARY)?;
    // Nothing of the folder is touched while another run has it.
    let parts = Parts::open(new.path())?;
    match quantize_into(input, new.path(), parts, options, methods, progress) {
        Ok(summary) => {
            new.commit()?;
            Ok(summary)
        }
        // What was finished is of use once there is room again.
        Err(e @ Error::Io { .. }) if Parts::any(new.path()) => Err(e),
        Err(e) => {
            new.discard()?;
            Err(e)
        }
    }
}

fn quantize_into(
    input: &Path,
    folder: &Path,
    parts: Parts,
    options: &Options,
    methods: &dyn Methods,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Summary> {
    let known = GROUP_SIZES.contains(&options.group_size) && options.group_size.is_multiple_of(GROUP_STEP);
    if !known && options.group_size != PER_CHANNEL {
        let (first, last) = GROUP_SIZES.into_inner();
        let what = format!(
            "{} is no multiple of {GROUP_STEP} from {first} to {last}",
            options.group_size
        );
        return Err(Error::usage("--group-size", what));
    }
    let path = input.join(MODEL);
    if !path.is_file() {
        return Err(Error::usage(
            "MODEL",
            format!("there is no file {}", path.display()),
        ));
    }
    // A model that cannot run, for whatever reason, is told from one that can before anything is written.
    import(&path)?;
    let source = Source::open(path)?;
    let mut plan = plan(&source.graph, options);
    check(&source, &plan)?;
    let mut job = Job {
        weights: Weights::new(&source.path),
        source: &source,
        writer: ModelWriter::create(Stage::Quantize, folder, MODEL, "")?.with_checksums(),
        parts: &parts,
        options,
        methods,
        done: 0,
        total: source.graph.initializer.iter().map(bytes_of).sum(),
        progress,
        quantized: Vec::new(),
        loss: Loss::default(),
        resumed: 0,
        ordered: Vec::new(),
    };
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
    parts.remove()?;
    // Last, as a folder without it is no model.
    let target = folder.join(MODEL);
    std::fs::write(&target, &model).map_err(|e| Error::io("cannot write", &target, e))?;
    let stored: u64 = quantized.iter().map(|q| q.bytes_after).sum();
    #[expect(clippy::cast_precision_loss, reason = "sizes of files")]
    let bits_per_weight = stored as f64 * 8.0 / loss.count.max(1) as f64;
    Ok(Summary {
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

/// The weights under way from the old files to the new one.
struct Job<'a> {
    source: &'a Source,
    weights: Weights,
    writer: ModelWriter,
    parts: &'a Parts,
    options: &'a Options,
    methods: &'a dyn Methods,
    done: u64,
    total: u64,
    progress: &'a mut dyn FnMut(Progress<'_>),
    quantized: Vec<Quantized>,
    loss: Loss,
    resumed: usize,
    /// For each weight that keeps its codes, in the order of the plan: its rows have another order.
    ordered: Vec<bool>,
}

impl<'a> Job<'a> {
    /// Chooses format and group size of each weight.
    fn spend(&mut self, plan: &mut Plan, budget: f64) -> Result<()> {
        let mut ladders = Vec::with_capacity(plan.weights.len());
        for w in &plan.weights {
            let t = &self.source.graph.initializer[w.initializer];
            let tensor = self.weights.tensor(t)?;
            let elements = self.elements(&t.name, &tensor)?;
            let importance = self.methods.importance(&t.name);
            let measured = mixed::measure(elements, w, self.options, importance);
            ladders.push(measured.map_err(|e| self.source.bad(format!("weight \"{}\": {e}", t.name)))?);
            let (done, total) = (self.done, self.total);
            (self.progress)(Progress {
                tensor: &t.name,
                done,
                total,
            });
        }
        let sizes: Vec<usize> = plan.weights.iter().map(|w| w.k * w.n).collect();
        for (w, choice) in plan
            .weights
            .iter_mut()
            .zip(mixed::spend(&ladders, &sizes, budget)?)
        {
            (w.bits, w.group) = (choice.bits, choice.group);
        }
        Ok(())
    }

    /// Writes all weights; tells where the initialisers of the new file are.
    fn weights(&mut self, plan: &Plan) -> Result<Vec<Origin>> {
        let source = self.source;
        self.ordered = vec![false; plan.kept.len()];
        let mut origins = Vec::new();
        let mut written = 0;
        let mut new = |origins: &mut Vec<Origin>| {
            origins.push(Origin::New(written));
            written += 1;
        };
        for (i, t) in source.graph.initializer.iter().enumerate() {
            if let Some(w) = plan.weights.iter().find(|w| w.initializer == i) {
                let tensor = self.weights.tensor(t)?;
                self.pack(&t.name, &tensor, w)?;
                new(&mut origins);
                new(&mut origins);
                continue;
            }
            if let Some(by) = self.methods.divisor(&t.name) {
                let tensor = self.weights.tensor(t)?;
                let divided =
                    divided(&tensor, by).map_err(|e| self.source.bad(format!("\"{}\": {e}", t.name)))?;
                self.writer.add_external(&t.name, &divided)?;
                new(&mut origins);
            } else if let Some(at) = plan.kept.iter().position(|k| k.initializer == i) {
                for _ in 0..self.keep(&t.name, at, &plan.kept[at])? {
                    new(&mut origins);
                }
            } else if plan.kept.iter().any(|k| k.replaces(i)) {
                // Its weight has it.
            } else if t.data_location == 1 {
                self.writer.add_external(&t.name, &self.weights.tensor(t)?)?;
                new(&mut origins);
            } else {
                origins.push(Origin::Old(i));
            }
            self.advance(&t.name, bytes_of(t));
        }
        Ok(origins)
    }

    fn advance(&mut self, tensor: &str, bytes: u64) {
        self.done += bytes;
        let (done, total) = (self.done, self.total);
        (self.progress)(Progress { tensor, done, total });
    }

    fn elements<'t>(&self, name: &str, tensor: &'t HostTensor) -> Result<Elements<'t>>
    where
        'a: 't,
    {
        let bytes = tensor
            .bytes()
            .map_err(|e| self.source.bad(format!("weight \"{name}\": {e}")))?;
        Ok(Elements {
            dtype: tensor.dtype(),
            bytes,
            scaling: self.methods.scaling(name),
        })
    }

    /// Writes a weight, from a finished part or by making one.
    fn pack(&mut self, name: &str, tensor: &HostTensor, w: &Weight) -> Result<()> {
        let elements = self.elements(name, tensor)?;
        let key = self.key(name, elements, w);
        let part = match self.parts.finished(w.initializer, &key) {
            Some(part) => {
                self.resumed += 1;
                self.advance(name, tensor.byte_len() as u64);
                part
            }
            None => self.make(name, elements, w, key)?,
        };
        let shape = [w.bits.rows(w.k), w.n];
        self.writer
            .add_initializer_external(&w.codes, DType::U32, &shape, |out| out.write(part.codes()))?;
        let shape = [w.k.div_ceil(w.group), w.n, 2];
        self.writer
            .add_initializer_external(&w.scales, DType::F16, &shape, |out| out.write(part.scales()))?;
        let loss = part.record.loss();
        let compared = if self.options.compare {
            self.compare(name, elements, w)?
        } else {
            Vec::new()
        };
        #[expect(clippy::cast_precision_loss, reason = "a number of weights in memory")]
        let mae_int4 = part.record.int4 / loss.count.max(1) as f64;
        self.quantized.push(Quantized {
            name: name.to_owned(),
            shape: tensor.shape().to_vec(),
            bits: w.bits,
            group: w.group,
            max_error: loss.max,
            relative_error: loss.relative_rms(),
            mae: loss.mean_absolute(),
            mae_int4,
            mse: loss.mean_squared(),
            bytes_before: tensor.byte_len() as u64,
            bytes_after: part.record.length as u64,
            compared,
        });
        self.loss.add(&loss);
        Ok(())
    }

    /// Writes a weight that keeps its codes, in a few tensors, whose number is returned.
    fn keep(&mut self, name: &str, at: usize, kept: &Kept) -> Result<usize> {
        let made = kept.transcode(self.source, &mut self.weights)?;
        let tensors = kept.tensors(&made);
        let mut bytes_after = 0;
        for (name, dtype, shape, bytes) in &tensors {
            bytes_after += bytes.len() as u64;
            self.writer
                .add_initializer_external(name, *dtype, shape, |out| out.write(bytes))?;
        }
        self.ordered[at] = made.order.is_some();
        self.quantized.push(kept.summary(name, &made, bytes_after));
        self.loss.add(&made.loss);
        Ok(tensors.len())
    }

    /// What a finished weight depends on.
    fn key(&self, name: &str, elements: Elements<'_>, w: &Weight) -> String {
        format!(
            "{} {}, {name}: {} {}x{} {} crc32 {:08x}, {} group {} by {}",
            env!("CARGO_PKG_NAME"),
            env!("CARGO_PKG_VERSION"),
            elements.dtype,
            w.k,
            w.n,
            if w.transposed { "transposed" } else { "as it is" },
            crc32fast::hash(elements.bytes),
            w.bits,
            w.group,
            self.methods.key(name)
        )
    }

    /// Quantizes a weight and keeps it.
    fn make(&mut self, name: &str, elements: Elements<'_>, w: &Weight, key: String) -> Result<Part> {
        let (mut codes, mut scales) = (
            vec![0u32; w.bits.rows(w.k) * w.n],
            vec![[f16::ZERO; 2]; w.k.div_ceil(w.group) * w.n],
        );
        let element = elements.dtype.size();
        let method = self.methods.of(name, w.k)?;
        let Losses { loss, int4 } = panels(elements, w, &*method, &mut |at: Panel| {
            let width = at.packed.n;
            place(&mut codes, &at.packed.codes, w.n, at.first, width);
            place(&mut scales, &at.packed.scales, w.n, at.first, width);
            self.advance(name, (width * w.k * element) as u64);
        })
        .map_err(|(first, width, e)| {
            self.source
                .bad(format!("weight \"{name}\": {}", explain(w, first, width, e)))
        })?;
        let (codes, scales): (&[u8], &[u8]) = (bytemuck::cast_slice(&codes), bytemuck::cast_slice(&scales));
        let mut crc = crc32fast::Hasher::new();
        crc.update(codes);
        crc.update(scales);
        let record = Record {
            key,
            codes: codes.len(),
            length: codes.len() + scales.len(),
            crc32: crc.finalize(),
            count: loss.count,
            max: loss.max,
            absolute: loss.absolute,
            squared: loss.squared,
            weights_squared: loss.weights_squared,
            int4,
        };
        self.parts.keep(w.initializer, &record, codes, scales)?;
        let found = self.parts.finished(w.initializer, &record.key);
        found.ok_or_else(|| {
            self.source.bad(format!(
                "weight \"{name}\": what was written is not what is read back"
            ))
        })
    }

    /// Mean absolute errors of all methods by that of INT4, on some columns.
    fn compare(&self, name: &str, elements: Elements<'_>, w: &Weight) -> Result<Vec<(Method, f64)>> {
        let columns = sample(elements, w, SAMPLE);
        let groups = columns.chunks(w.k).flat_map(|c| c.chunks(w.group));
        let int4: f64 = groups.map(crate::quant::int4_error).sum();
        let ratio = |(_, method): (&str, Method)| {
            let (_, loss) = Packed::from_columns(w.bits, w.group, w.k, &columns, &ByGroup::from(method))
                .map_err(|e| self.source.bad(format!("weight \"{name}\": {e}")))?;
            // Both are 0 for a weight of zeros.
            Ok((method, if int4 == 0.0 { 1.0 } else { loss.absolute / int4 }))
        };
        Method::NAMES.into_iter().map(ratio).collect()
    }
}

/// A tensor with each element divided by its own number.
fn divided(tensor: &HostTensor, by: &[f32]) -> Result<HostTensor, TensorError> {
    let values: Vec<f32> = tensor.to_f32()?.iter().zip(by).map(|(x, d)| x / d).collect();
    if tensor.dtype() == DType::F16 {
        let halves: Vec<f16> = values.iter().map(|v| f16::from_f32(*v)).collect();
        return HostTensor::from_bytes(DType::F16, tensor.shape(), bytemuck::cast_slice(&halves));
    }
    HostTensor::from_f32(tensor.shape(), &values)
}
