//! Converts a quantized model back to floats.

use super::nodes::{Change, int};
use super::source::{Origin, Source, bytes_of, copy_others};
use super::{MODEL, Progress};
use crate::memory::room;
use half::f16;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::files::kind::check_file;
use transformer_lite::unstable::graph::derive::derive;
use transformer_lite::unstable::graph::onnx::proto::{AttributeProto, NodeProto};
use transformer_lite::unstable::graph::onnx::weights::Weights;
use transformer_lite::unstable::graph::onnx::write::ModelWriter;
use transformer_lite::unstable::graph::onnx::{import, type_code};
use transformer_lite::unstable::graph::op::OWN_DOMAIN;
use transformer_lite::unstable::quant::{Bits, Format, PackedView, scale_words};
use transformer_lite::unstable::tensor::{DType, HostTensor};

/// Number of weights decoded at a time.
const BAND: usize = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dequantized {
    /// Number of matrices converted to floats.
    pub weights: usize,
    /// Bytes of `model.onnx` and its external data before.
    pub bytes_before: u64,
    /// Bytes of `model.onnx` and its external data after.
    pub bytes_after: u64,
}

/// Converts the model in the folder `input`, made by [`super::quantize`], to standard ONNX
/// operators. Each packed matrix becomes `f16`: its value `scale * (w1 - bias)`, rounded once, with
/// a cast to the type that its matmul needs. A matrix shared by embedding and output head stays
/// shared. Other files of the folder are copied.
///
/// `folder` must exist and be empty. Errors: the model does not exist ([`Error::is_usage`]) or is
/// not quantized; a weight is out of the `f16` range; writing fails. After an error, files already
/// written remain.
pub fn dequantize_into(
    input: &Path,
    folder: &Path,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Dequantized> {
    let path = input.join(MODEL);
    check_file("folder", &path)?;
    let mut graph = import(&path)?;
    derive(&mut graph)?;
    let dtypes: HashMap<String, DType> = graph
        .nodes()
        .flat_map(|(_, n)| &n.outputs)
        .filter_map(|v| {
            let value = graph.value(*v);
            Some((value.name.clone(), value.fact.as_ref()?.dtype))
        })
        .collect();
    let source = Source::open(Stage::Dequantize, path)?;
    let matrices = Matrices::find(&source)?;
    let mut weights = Weights::new(&source.path);
    let mut writer = ModelWriter::create(Stage::Dequantize, folder, MODEL, "")?;
    let (mut origins, mut written) = (Vec::new(), 0);
    let total = source.graph.initializer.iter().map(bytes_of).sum();
    let mut done = 0;
    for (i, t) in source.graph.initializer.iter().enumerate() {
        if let Some(m) = matrices.all.iter().find(|m| m.codes == i) {
            let scales = weights.tensor(&source.graph.initializer[m.scales])?;
            m.write(&source, &weights.tensor(t)?, &scales, &mut writer)?;
            origins.push(Origin::New(written));
            written += 1;
        } else if matrices.all.iter().all(|m| m.scales != i) {
            if t.data_location == 1 {
                writer.add_external(&t.name, &weights.tensor(t)?)?;
                origins.push(Origin::New(written));
                written += 1;
            } else {
                origins.push(Origin::Old(i));
            }
        }
        done += bytes_of(t);
        let tensor = &t.name;
        progress(Progress { tensor, done, total });
    }
    let (tensors, data_bytes) = writer.into_initializers()?;
    let external = source.external_files();
    let sizes = external
        .iter()
        .map(|f| std::fs::metadata(f).map_or(0, |m| m.len()));
    let bytes_before = source.file_bytes + sizes.sum::<u64>();
    let count = matrices.all.len();
    let model = source.assemble(&matrices.changes(&source, &dtypes), &origins, &tensors)?;
    copy_others(input, folder, &external)?;
    let target = folder.join(MODEL);
    std::fs::write(&target, &model).map_err(|e| Error::io("cannot write", &target, e))?;
    Ok(Dequantized {
        weights: count,
        bytes_before,
        bytes_after: model.len() as u64 + data_bytes,
    })
}

/// A packed matrix and its readers.
struct Matrix {
    /// Indices among the initializers.
    codes: usize,
    scales: usize,
    format: Format,
    /// It is stored as the table of an embedding, which is its transpose.
    table: bool,
    /// Name of the float matrix.
    name: String,
}

struct Matrices {
    all: Vec<Matrix>,
    /// Matrix by the node that reads it.
    of: HashMap<usize, usize>,
    names: HashSet<String>,
}

impl Matrices {
    fn find(source: &Source) -> Result<Self> {
        let graph = &source.graph;
        let places: HashMap<&str, usize> = graph
            .initializer
            .iter()
            .enumerate()
            .map(|(i, t)| (t.name.as_str(), i))
            .collect();
        let made = graph.node.iter().flat_map(|n| n.output.iter().chain(&n.input));
        let mut out = Self {
            all: Vec::new(),
            of: HashMap::new(),
            names: made.chain(graph.input.iter().map(|v| &v.name)).cloned().collect(),
        };
        for (at, node) in graph.node.iter().enumerate() {
            if node.domain != OWN_DOMAIN || !node.op_type.ends_with("E0M") {
                continue;
            }
            let bad = |what: &str| source.bad(format!("{} \"{}\": {what}", node.op_type, node.name));
            let operand = |i: usize| {
                let place = node.input.get(i).and_then(|n| places.get(n.as_str()));
                place
                    .copied()
                    .ok_or_else(|| bad("quantized values or scales are not constant"))
            };
            let int = |name: &str| node.attribute.iter().find(|a| a.name == name).map(|a| a.i);
            let (codes, scales) = (operand(1)?, operand(2)?);
            let bits = int("bits").and_then(Bits::new);
            let group = int("group_size").and_then(|g| usize::try_from(g).ok());
            let (Some(bits), Some(group)) = (bits, group) else {
                return Err(bad("missing or invalid attributes `bits` and `group_size`"));
            };
            // Import has checked that the group is that of the format.
            let format = match int("scale_block") {
                None => Some(Format::new(bits, group)),
                Some(_) => Format::nested(bits),
            };
            let format = format.ok_or_else(|| bad("invalid attribute `scale_block`"))?;
            let known = out
                .all
                .iter()
                .position(|m| (m.codes, m.scales) == (codes, scales));
            let index = known.unwrap_or(out.all.len());
            if known.is_none() {
                let base = &graph.initializer[codes].name;
                let name = out.fresh(base.strip_suffix(".codes").unwrap_or(base));
                out.all.push(Matrix {
                    codes,
                    scales,
                    format,
                    table: false,
                    name,
                });
            }
            out.all[index].table |= node.op_type == "GatherE0M";
            out.of.insert(at, index);
        }
        if out.all.is_empty() {
            return Err(source.bad("the model has no quantized weights"));
        }
        Ok(out)
    }

    fn fresh(&mut self, name: &str) -> String {
        let mut name = name.to_owned();
        while !self.names.insert(name.clone()) {
            name.push('_');
        }
        name
    }

    /// The change of each node; `dtypes` are the types of results.
    fn changes(mut self, source: &Source, dtypes: &HashMap<String, DType>) -> Vec<Change> {
        let mut changes = Vec::with_capacity(source.graph.node.len());
        // The operands of matmuls made so far, by matrix and type.
        let mut operands: HashMap<(usize, DType), String> = HashMap::new();
        for (at, node) in source.graph.node.iter().enumerate() {
            let Some(&index) = self.of.get(&at) else {
                changes.push(Change::Keep);
                continue;
            };
            let output = node.output.first().cloned().unwrap_or_default();
            let dtype = dtypes.get(&output).copied().unwrap_or(DType::F32);
            let operand = node.input.first().cloned().unwrap_or_default();
            let (table, stored) = (self.all[index].table, self.all[index].name.clone());
            let mut nodes = Vec::new();
            if node.op_type == "GatherE0M" {
                let rows = if dtype == DType::F16 {
                    output.clone()
                } else {
                    self.fresh(&format!("{output}_f16"))
                };
                nodes.push(plain(
                    "Gather",
                    &node.name,
                    vec![stored, operand],
                    &rows,
                    vec![int("axis", 0)],
                ));
                if rows != output {
                    nodes.push(cast(&format!("{}_cast", node.name), rows, &output, dtype));
                }
            } else {
                let weight = match operands.get(&(index, dtype)) {
                    Some(name) => name.clone(),
                    None => {
                        let mut name = stored;
                        if table {
                            let turned = self.fresh(&format!("{name}_transposed"));
                            let mut perm = int("perm", 0);
                            (perm.r#type, perm.ints) = (7, vec![1, 0]);
                            nodes.push(plain("Transpose", &turned, vec![name], &turned, vec![perm]));
                            name = turned;
                        }
                        if dtype != DType::F16 {
                            let wide = self.fresh(&format!("{name}_{dtype}"));
                            nodes.push(cast(&wide, name, &wide, dtype));
                            name = wide;
                        }
                        operands.insert((index, dtype), name.clone());
                        name
                    }
                };
                nodes.push(plain(
                    "MatMul",
                    &node.name,
                    vec![operand, weight],
                    &output,
                    Vec::new(),
                ));
            }
            changes.push(Change::Replace(nodes));
        }
        changes
    }
}

fn plain(
    op: &str,
    name: &str,
    input: Vec<String>,
    output: &str,
    attribute: Vec<AttributeProto>,
) -> NodeProto {
    NodeProto {
        input,
        output: vec![output.to_owned()],
        name: name.to_owned(),
        op_type: op.to_owned(),
        attribute,
        domain: String::new(),
        ..NodeProto::default()
    }
}

fn cast(name: &str, from: String, to: &str, dtype: DType) -> NodeProto {
    plain(
        "Cast",
        name,
        vec![from],
        to,
        vec![int("to", i64::from(type_code(dtype)))],
    )
}

impl Matrix {
    /// Writes the float matrix to the new file.
    fn write(
        &self,
        source: &Source,
        codes: &HostTensor,
        scales: &HostTensor,
        writer: &mut ModelWriter,
    ) -> Result<()> {
        let bad = |what: String| source.bad(format!("weight \"{}\": {what}", self.name));
        // Import has checked that the shapes match.
        let bits = self.format.bits;
        let &[rows, n] = codes.shape() else {
            return Err(bad(format!(
                "quantized values of unsupported shape {:?}",
                codes.shape()
            )));
        };
        let k = bits
            .weights(rows)
            .ok_or_else(|| bad(format!("{rows} rows of {bits} values are not supported")))?;
        let words = codes.u32s().map_err(|e| bad(e.to_string()))?;
        let scales = scale_words(scales).map_err(|e| bad(e.to_string()))?;
        let matrix = PackedView {
            format: self.format,
            k,
            n,
            codes: &words,
            scales: &scales,
        };
        let narrow = |band: &[f32]| -> Result<Vec<f16>> {
            let out: Vec<f16> = band.iter().map(|v| f16::from_f32(*v)).collect();
            match out.iter().position(|h| !h.is_finite()) {
                Some(i) => Err(bad(format!("{:e} is out of the f16 range", band[i]))),
                None => Ok(out),
            }
        };
        let shape = if self.table { [n, k] } else { [k, n] };
        writer.add_initializer_external(&self.name, DType::F16, &shape, |out| {
            let at_once = (BAND / shape[1]).max(1);
            let mut band = room(at_once.min(shape[0]).saturating_mul(shape[1]), &self.name)?;
            for first in (0..shape[0]).step_by(at_once) {
                let count = at_once.min(shape[0] - first);
                band.resize(count * shape[1], 0.0);
                if self.table {
                    for (j, row) in (first..).zip(band.chunks_exact_mut(k)) {
                        matrix.decode_column(j, row);
                    }
                } else {
                    matrix.decode_rows(first, &mut band);
                }
                out.write(bytemuck::cast_slice(&narrow(&band)?))?;
            }
            Ok(())
        })
    }
}
