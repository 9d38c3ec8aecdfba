//! Quantization of ONNX models: a folder with a float model becomes one with E0M weights.
//!
//! The work is on the messages of the file. Nodes that read a packed weight are replaced by operators of this
//! engine's own domain; everything else is copied byte by byte.

mod plan;
#[cfg(test)]
mod tests;
mod wire;

use super::import;
use super::proto::{GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto};
use super::weights::{Weights, map};
use super::write::ModelWriter;
use crate::error::{Error, Result, Stage};
use crate::graph::op::OWN_DOMAIN;
use crate::new_folder::NewFolder;
use crate::quant::{Bits, ByGroup, ColumnMethod, Loss, Method, Packed, QuantError};
use crate::tensor::{Bytes, DType, HostTensor, TensorError};
use half::f16;
use plan::{Change, Plan, Weight, plan};
use prost::Message;
use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

/// How the name of the temporary folder starts.
pub(crate) const TEMPORARY: &str = ".quantize-";
/// The graph's file in a model folder.
const MODEL: &str = "model.onnx";
/// Protocol buffers cannot be longer than this.
const MESSAGE_LIMIT: usize = i32::MAX as usize;
/// Group sizes that can be asked for: multiples of [`GROUP_STEP`] in this range.
pub const GROUP_SIZES: std::ops::RangeInclusive<usize> = 16..=256;
/// See [`GROUP_SIZES`].
pub const GROUP_STEP: usize = 8;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Weights of a group; see [`GROUP_SIZES`] and [`crate::quant::group_size`].
    pub group_size: usize,
    /// Format of the output head and of embeddings.
    pub head_bits: Bits,
    /// Format of the other weights.
    pub bits: Bits,
    /// How scales and biases are chosen.
    pub method: Method,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            group_size: 128,
            head_bits: Bits::Eight,
            bits: Bits::Four,
            method: Method::default(),
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
    /// Bytes of the initialiser.
    pub bytes_before: u64,
    /// Bytes of codes and scales.
    pub bytes_after: u64,
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
}

/// Quantizes the model in the folder `input` into the folder `output`.
///
/// Each `MatMul` whose second operand is a constant matrix, or the transpose of one, becomes a `MatMulE0M`, and
/// each `Gather` of rows of a constant matrix by token a `GatherE0M`; a matrix that both read is packed once. The
/// `MatMul` that makes the output `logits`, and embeddings, take `head_bits`. Weights that cannot be quantized stay
/// as they are and are listed. The files beside the model are copied; folders in `input` are not.
///
/// `output` must not exist or be an empty folder, and the folder that is to hold it must exist. The files are
/// made in a temporary folder beside it, which takes its place at the end; after an error nothing is left.
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
    let new = NewFolder::create(output, TEMPORARY)?;
    let summary = quantize_into(input, new.path(), options, progress)?;
    new.commit()?;
    Ok(summary)
}

/// As [`quantize`], but writes into the existing folder `folder`, and leaves there what it wrote before an error.
pub fn quantize_into(
    input: &Path,
    folder: &Path,
    options: &Options,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Summary> {
    if !GROUP_SIZES.contains(&options.group_size) || !options.group_size.is_multiple_of(GROUP_STEP) {
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
    let plan = plan(&source.graph, options);
    source.check(&plan)?;
    let mut job = Job {
        source: &source,
        weights: Weights::new(&source.path),
        writer: ModelWriter::create(Stage::Quantize, folder, MODEL, "")?,
        method: options.method,
        done: 0,
        total: source.graph.initializer.iter().map(bytes_of).sum(),
        progress,
        quantized: Vec::new(),
        loss: Loss::default(),
    };
    let origins = job.weights(&plan)?;
    let (quantized, loss) = (std::mem::take(&mut job.quantized), job.loss);
    let (tensors, data_bytes) = job.writer.into_initializers()?;
    let external = source.external_files();
    let mut bytes_before = source.file_bytes;
    for file in &external {
        bytes_before += std::fs::metadata(file).map_or(0, |m| m.len());
    }
    let model = source.assemble(&plan, &origins, &tensors)?;
    let target = folder.join(MODEL);
    if model.len() > MESSAGE_LIMIT {
        let what = format!(
            "a graph of {} bytes; the format allows {MESSAGE_LIMIT}",
            model.len()
        );
        return Err(Error::file(Stage::Quantize, &target, what));
    }
    std::fs::write(&target, &model).map_err(|e| Error::io("cannot write", &target, e))?;
    copy_others(input, folder, &external)?;
    Ok(Summary {
        weights: quantized,
        left: plan.left,
        bytes_before,
        bytes_after: model.len() as u64 + data_bytes,
        relative_error: loss.relative_rms(),
    })
}

/// The files beside the model, apart from its data.
fn copy_others(input: &Path, folder: &Path, external: &HashSet<PathBuf>) -> Result<()> {
    let refused = |e| Error::io("cannot read", input, e);
    for entry in std::fs::read_dir(input).map_err(refused)? {
        let from = entry.map_err(refused)?.path();
        let Some(name) = from.file_name() else { continue };
        let to = folder.join(name);
        // What this quantization wrote itself stands for the model's own files.
        if !from.is_file() || external.contains(&from) || to.exists() {
            continue;
        }
        let mut reader = std::fs::File::open(&from).map_err(|e| Error::io("cannot read", &from, e))?;
        let mut writer = std::fs::File::create(&to).map_err(|e| Error::io("cannot write", &to, e))?;
        std::io::copy(&mut reader, &mut writer).map_err(|e| Error::io("cannot copy to", &to, e))?;
    }
    Ok(())
}

/// Bytes that the elements of a tensor take; 0 for one that is damaged, which is refused when it is read.
fn bytes_of(t: &TensorProto) -> u64 {
    let size = super::dtype_of(i64::from(t.data_type)).map_or(0, |d| d.size() as u64);
    t.dims
        .iter()
        .try_fold(size, |n, d| n.checked_mul(u64::try_from(*d).ok()?))
        .unwrap_or(0)
}

/// Where an initialiser of the new file comes from.
enum Origin {
    /// The field with this number among the initialisers of the old file.
    Old(usize),
    /// The tensor with this number among those in the new data file.
    New(usize),
}

/// The model as read.
struct Source {
    path: PathBuf,
    bytes: Vec<u8>,
    file_bytes: u64,
    graph: GraphProto,
    opsets: Vec<OperatorSetIdProto>,
}

impl Source {
    fn open(path: PathBuf) -> Result<Self> {
        let file = map(&path)?;
        let bytes = file.bytes().to_vec();
        let damaged = "not an ONNX model, or damaged";
        let model = ModelProto::decode(bytes.as_slice())
            .map_err(|e| Error::parse(Stage::Quantize, &path, damaged, e))?;
        let graph = model.graph.ok_or_else(|| {
            Error::file(
                Stage::Quantize,
                &path,
                "no graph in the model; not an ONNX model?",
            )
        })?;
        Ok(Self {
            file_bytes: bytes.len() as u64,
            bytes,
            graph,
            opsets: model.opset_import,
            path,
        })
    }

    fn bad(&self, what: impl Into<String>) -> Error {
        Error::file(Stage::Quantize, &self.path, what)
    }

    fn check(&self, plan: &Plan) -> Result<()> {
        // Nodes are copied as they are, their tensors with them.
        let outside = |t: &TensorProto| t.data_location == 1;
        let inner = |g: &GraphProto| g.initializer.iter().any(outside);
        let carries = |n: &NodeProto| {
            n.attribute
                .iter()
                .any(|a| a.t.as_ref().is_some_and(outside) || a.g.as_ref().is_some_and(inner))
        };
        if let Some(n) = self.graph.node.iter().find(|n| carries(n)) {
            return Err(self.bad(format!(
                "{} \"{}\": an attribute has external data, which only initialisers may have here",
                n.op_type, n.name
            )));
        }
        if let Some(n) = self
            .graph
            .node
            .iter()
            .find(|n| n.domain == OWN_DOMAIN && n.op_type.ends_with("E0M"))
        {
            return Err(self.bad(format!(
                "{} \"{}\": the model is quantized already",
                n.op_type, n.name
            )));
        }
        if plan.weights.is_empty() {
            let why = plan.left.first().map_or_else(
                || "no matrix product or embedding reads a constant matrix".to_owned(),
                |l| format!("\"{}\": {}", l.name, l.reason),
            );
            return Err(self.bad(format!("no weight can be quantized; {why}")));
        }
        Ok(())
    }

    /// Files with data of initialisers. Their places were checked when they were read.
    fn external_files(&self) -> HashSet<PathBuf> {
        let folder = self.path.parent().unwrap_or(Path::new(""));
        let tensors = self.graph.initializer.iter().filter(|t| t.data_location == 1);
        let locations = tensors.flat_map(|t| t.external_data.iter().filter(|e| e.key == "location"));
        locations
            .map(|e| {
                let parts = Path::new(&e.value).components();
                folder.join(
                    parts
                        .filter(|c| matches!(c, Component::Normal(_)))
                        .collect::<PathBuf>(),
                )
            })
            .collect()
    }

    /// The new file: what is not changed is copied.
    fn assemble(&self, plan: &Plan, origins: &[Origin], tensors: &[TensorProto]) -> Result<Vec<u8>> {
        const MODEL_GRAPH: u64 = 7;
        const MODEL_OPSET: u64 = 8;
        const GRAPH_NODE: u64 = 1;
        const GRAPH_INITIALIZER: u64 = 5;
        const GRAPH_VALUE_INFO: u64 = 13;
        let damaged = || self.bad("the model's fields cannot be told apart; damaged?");
        let mut fields = Vec::new();
        let mut out = Vec::new();
        for field in wire::fields(&self.bytes).ok_or_else(damaged)? {
            if field.tag == MODEL_GRAPH {
                fields.extend(wire::fields(field.content).ok_or_else(damaged)?);
            } else {
                out.extend_from_slice(field.whole);
            }
        }
        if !self.opsets.iter().any(|o| o.domain == OWN_DOMAIN) {
            let opset = OperatorSetIdProto {
                domain: OWN_DOMAIN.to_owned(),
                version: 1,
            };
            wire::put(&mut out, MODEL_OPSET, &opset.encode_to_vec());
        }
        let gone: HashSet<&str> = self
            .graph
            .node
            .iter()
            .zip(&plan.nodes)
            .filter(|(_, change)| **change == Change::Drop)
            .flat_map(|(n, _)| n.output.iter().map(String::as_str))
            .collect();
        let mut graph = Vec::new();
        let (mut nodes, mut infos) = (
            plan.nodes.iter(),
            self.graph
                .value_info
                .iter()
                .map(|v| gone.contains(v.name.as_str())),
        );
        let mut old = Vec::new();
        for field in &fields {
            match field.tag {
                GRAPH_NODE => match nodes.next().ok_or_else(damaged)? {
                    Change::Keep => graph.extend_from_slice(field.whole),
                    Change::Drop => {}
                    Change::Replace(n) => wire::put(&mut graph, GRAPH_NODE, &n.encode_to_vec()),
                },
                GRAPH_INITIALIZER => old.push(field.whole),
                GRAPH_VALUE_INFO => {
                    if !infos.next().ok_or_else(damaged)? {
                        graph.extend_from_slice(field.whole);
                    }
                }
                _ => graph.extend_from_slice(field.whole),
            }
        }
        for origin in origins {
            match origin {
                Origin::Old(i) => graph.extend_from_slice(old.get(*i).ok_or_else(damaged)?),
                Origin::New(i) => {
                    let tensor = tensors.get(*i).ok_or_else(damaged)?;
                    wire::put(&mut graph, GRAPH_INITIALIZER, &tensor.encode_to_vec());
                }
            }
        }
        wire::put(&mut out, MODEL_GRAPH, &graph);
        Ok(out)
    }
}

/// The weights under way from the old files to the new one.
struct Job<'a> {
    source: &'a Source,
    weights: Weights,
    writer: ModelWriter,
    method: Method,
    done: u64,
    total: u64,
    progress: &'a mut dyn FnMut(Progress<'_>),
    quantized: Vec<Quantized>,
    loss: Loss,
}

impl Job<'_> {
    /// Writes all weights; tells where the initialisers of the new file are.
    fn weights(&mut self, plan: &Plan) -> Result<Vec<Origin>> {
        let source = self.source;
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
            if t.data_location == 1 {
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

    fn pack(&mut self, name: &str, tensor: &HostTensor, w: &Weight) -> Result<()> {
        let (mut codes, mut scales) = (
            vec![0u32; w.bits.rows(w.k) * w.n],
            vec![[f16::ZERO; 2]; w.k.div_ceil(w.group) * w.n],
        );
        let element = tensor.dtype().size();
        let start = self.done;
        let unread = |e: TensorError| self.source.bad(format!("weight \"{name}\": {e}"));
        let elements = Elements {
            dtype: tensor.dtype(),
            bytes: tensor.bytes().map_err(unread)?,
        };
        let method = ByGroup::from(self.method);
        let loss = panels(elements, w, &method, &mut |at: Panel| {
            let width = at.packed.n;
            place(&mut codes, &at.packed.codes, w.n, at.first, width);
            place(&mut scales, &at.packed.scales, w.n, at.first, width);
            self.advance(name, (width * w.k * element) as u64);
        })
        .map_err(|(first, width, e)| {
            self.source
                .bad(format!("weight \"{name}\": {}", explain(w, first, width, e)))
        })?;
        debug_assert_eq!(
            self.done - start,
            tensor.byte_len() as u64,
            "every byte counts once"
        );
        let (codes, scales): (&[u8], &[u8]) = (bytemuck::cast_slice(&codes), bytemuck::cast_slice(&scales));
        let shape = [w.bits.rows(w.k), w.n];
        self.writer
            .add_initializer_external(&w.codes, DType::U32, &shape, |out| out.write(codes))?;
        let shape = [w.k.div_ceil(w.group), w.n, 2];
        self.writer
            .add_initializer_external(&w.scales, DType::F16, &shape, |out| out.write(scales))?;
        self.quantized.push(Quantized {
            name: name.to_owned(),
            shape: tensor.shape().to_vec(),
            bits: w.bits,
            group: w.group,
            max_error: loss.max,
            relative_error: loss.relative_rms(),
            bytes_before: tensor.byte_len() as u64,
            bytes_after: (codes.len() + scales.len()) as u64,
        });
        self.loss.add(&loss);
        Ok(())
    }
}

/// An error of a panel, with the element's place in the weight as it is stored.
fn explain(w: &Weight, first: usize, width: usize, e: QuantError) -> String {
    match e {
        QuantError::NotFinite { index, value } => {
            let (row, column) = (index / width.max(1), first + index % width.max(1));
            let at = if w.transposed {
                [column, row]
            } else {
                [row, column]
            };
            format!("element {at:?} is {value}")
        }
        other => other.to_string(),
    }
}

/// Copies rows of `width` to columns `first..` of rows of `n`.
fn place<T: Copy>(to: &mut [T], from: &[T], n: usize, first: usize, width: usize) {
    for (to, from) in to.chunks_exact_mut(n).zip(from.chunks_exact(width)) {
        to[first..first + width].copy_from_slice(from);
    }
}

/// A block of quantized columns.
struct Panel {
    first: usize,
    packed: Packed,
}

/// First column and width of a panel that failed, and why.
type PanelError = (usize, usize, QuantError);

/// A weight as it is stored.
#[derive(Clone, Copy)]
struct Elements<'a> {
    dtype: DType,
    bytes: &'a [u8],
}

/// Quantizes a weight in panels of columns on all cores, and hands them over as they get done. The result does not
/// depend on the number of cores; of several errors the one of the first panel is told.
fn panels(
    tensor: Elements<'_>,
    w: &Weight,
    method: &dyn ColumnMethod,
    take: &mut dyn FnMut(Panel),
) -> Result<Loss, PanelError> {
    /// Floats in a panel: enough to keep a core busy, few enough to stay in its cache.
    const PANEL: usize = 1 << 16;
    let width = (PANEL / w.k).clamp(1, 64).next_multiple_of(2).min(w.n);
    let count = w.n.div_ceil(width);
    let threads = std::thread::available_parallelism()
        .map_or(1, NonZeroUsize::get)
        .min(count);
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let mut losses = vec![Loss::default(); count];
    let mut error: Option<PanelError> = None;
    std::thread::scope(|scope| {
        let (send, receive) = mpsc::sync_channel(2 * threads);
        for _ in 0..threads {
            let send = send.clone();
            let (next, failed) = (&next, &failed);
            scope.spawn(move || {
                let mut columns = Vec::new();
                while !failed.load(Ordering::Relaxed) {
                    let panel = next.fetch_add(1, Ordering::Relaxed);
                    if panel >= count {
                        break;
                    }
                    let first = panel * width;
                    let wide = width.min(w.n - first);
                    read_columns(tensor, w, first, wide, &mut columns);
                    let result = Packed::from_columns(w.bits, w.group, w.k, &columns, method);
                    if result.is_err() {
                        failed.store(true, Ordering::Relaxed);
                    }
                    if send.send((panel, first, wide, result)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(send);
        for (panel, first, wide, result) in receive {
            match result {
                Ok((packed, loss)) => {
                    losses[panel] = loss;
                    take(Panel { first, packed });
                }
                Err(e) if error.as_ref().is_none_or(|(at, ..)| first < *at) => error = Some((first, wide, e)),
                Err(_) => {}
            }
        }
    });
    match error {
        Some(e) => Err(e),
        None => {
            let mut sum = Loss::default();
            losses.iter().for_each(|l| sum.add(l));
            Ok(sum)
        }
    }
}

/// Columns `first .. first + wide` of the matrix to pack, one after the other.
fn read_columns(tensor: Elements<'_>, w: &Weight, first: usize, wide: usize, columns: &mut Vec<f32>) {
    columns.clear();
    columns.resize(wide * w.k, 0.0);
    let chunks = tensor.bytes;
    if tensor.dtype == DType::F16 {
        spread(chunks.as_chunks().0, w, first, wide, columns, |b| {
            f16::from_le_bytes(b).to_f32()
        });
    } else {
        spread(chunks.as_chunks().0, w, first, wide, columns, f32::from_le_bytes);
    }
}

fn spread<const SIZE: usize>(
    elements: &[[u8; SIZE]],
    w: &Weight,
    first: usize,
    wide: usize,
    columns: &mut [f32],
    value: impl Fn([u8; SIZE]) -> f32,
) {
    if w.transposed {
        for (to, from) in columns.iter_mut().zip(&elements[first * w.k..]) {
            *to = value(*from);
        }
    } else {
        for (i, row) in elements.chunks_exact(w.n).enumerate() {
            for (column, from) in columns.chunks_exact_mut(w.k).zip(&row[first..first + wide]) {
                column[i] = value(*from);
            }
        }
    }
}
