//! The model file that is being rewritten; unchanged parts are copied byte by byte.

use super::nodes::Change;
use super::weight::Elements;
use super::{DATA, MODEL, wire};
use crate::memory::room;
use prost::Message;
use std::collections::HashSet;
use std::path::{Component, Path, PathBuf};
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::graph::onnx::decode;
use transformer_lite::unstable::graph::onnx::proto::{
    GraphProto, NodeProto, OperatorSetIdProto, TensorProto,
};
use transformer_lite::unstable::graph::onnx::weights::map;
use transformer_lite::unstable::graph::op::OWN_DOMAIN;
use transformer_lite::unstable::tensor::{Bytes, HostTensor};

/// Maximum length of a Protocol Buffers message, in bytes.
const MESSAGE_LIMIT: usize = i32::MAX as usize;

// Field numbers of ONNX files.
const MODEL_GRAPH: u64 = 7;
const MODEL_OPSET: u64 = 8;
const GRAPH_NODE: u64 = 1;
const GRAPH_INITIALIZER: u64 = 5;
const GRAPH_VALUE_INFO: u64 = 13;

/// Bytes of a tensor's elements; 0 for a damaged tensor, which fails when it is read.
pub(super) fn bytes_of(t: &TensorProto) -> u64 {
    let size = transformer_lite::unstable::graph::onnx::dtype_of(i64::from(t.data_type))
        .map_or(0, |d| d.size() as u64);
    t.dims
        .iter()
        .try_fold(size, |n, d| n.checked_mul(u64::try_from(*d).ok()?))
        .unwrap_or(0)
}

/// Origin of an initializer of the new file.
pub(super) enum Origin {
    /// The initializer with this index in the old file.
    Old(usize),
    /// The tensor with this index in the new data file.
    New(usize),
}

/// The model as read.
pub(super) struct Source {
    pub path: PathBuf,
    /// The stage that errors name.
    pub stage: Stage,
    bytes: Vec<u8>,
    pub file_bytes: u64,
    pub graph: GraphProto,
    opsets: Vec<OperatorSetIdProto>,
}

impl Source {
    pub fn open(stage: Stage, path: PathBuf) -> Result<Self> {
        let file = map(&path)?;
        let mut bytes = room(file.bytes().len(), MODEL)?;
        bytes.extend_from_slice(file.bytes());
        let model = decode::model(stage, &path, &bytes)?;
        let no_graph = || Error::file(stage, &path, "not an ONNX model: there is no graph in it");
        let graph = model.graph.ok_or_else(no_graph)?;
        Ok(Self {
            file_bytes: bytes.len() as u64,
            bytes,
            graph,
            opsets: model.opset_import,
            path,
            stage,
        })
    }

    pub fn bad(&self, what: impl Into<String>) -> Error {
        Error::file(self.stage, &self.path, what)
    }

    /// The elements of this weight. Fails if they are absent or their type cannot be quantized.
    pub fn elements<'t>(&self, name: &str, tensor: &'t HostTensor) -> Result<Elements<'t>> {
        let bad = |what: String| self.bad(format!("weight \"{name}\": {what}"));
        let bytes = tensor.bytes().map_err(|e| bad(e.to_string()))?;
        Elements::of(tensor.dtype(), bytes)
            .ok_or_else(|| bad(format!("its element type {} cannot be quantized", tensor.dtype())))
    }

    /// CRC-32 of the model file and its data files.
    pub fn checksum(&self) -> Result<u32> {
        let mut crc = crc32fast::Hasher::new();
        crc.update(&self.bytes);
        let mut files: Vec<PathBuf> = self.external_files().into_iter().collect();
        files.sort();
        for file in files {
            crc.update(map(&file)?.bytes());
        }
        Ok(crc.finalize())
    }

    /// Files with data of initializers. Their paths were checked when they were read.
    pub fn external_files(&self) -> HashSet<PathBuf> {
        external_files(&self.path, &self.graph)
    }

    /// Builds the new file; unchanged fields are copied.
    pub fn assemble(
        &self,
        changes: &[Change],
        origins: &[Origin],
        tensors: &[TensorProto],
    ) -> Result<Vec<u8>> {
        let mut fields = Vec::new();
        let mut out = Vec::new();
        // Nodes of this engine's own domain: those that stay and those that are added.
        let own = |n: &NodeProto| n.domain == OWN_DOMAIN;
        let kept = self.graph.node.iter().zip(changes).any(|(n, c)| match c {
            Change::Keep => own(n),
            Change::Drop => false,
            Change::Replace(all) => all.iter().any(own),
        });
        let unused = |content: &[u8]| {
            OperatorSetIdProto::decode(content).is_ok_and(|o| o.domain == OWN_DOMAIN && !kept)
        };
        for field in wire::fields(&self.bytes).ok_or_else(|| self.damaged())? {
            if field.tag == MODEL_OPSET && unused(field.content) {
                continue;
            }
            if field.tag == MODEL_GRAPH {
                fields.extend(wire::fields(field.content).ok_or_else(|| self.damaged())?);
            } else {
                out.extend_from_slice(field.whole);
            }
        }
        if kept && !self.opsets.iter().any(|o| o.domain == OWN_DOMAIN) {
            let opset = OperatorSetIdProto {
                domain: OWN_DOMAIN.to_owned(),
                version: 1,
            };
            wire::put(&mut out, MODEL_OPSET, &opset.encode_to_vec());
        }
        let graph = self.new_graph(&fields, changes, origins, tensors)?;
        wire::put(&mut out, MODEL_GRAPH, &graph);
        if out.len() > MESSAGE_LIMIT {
            return Err(self.bad(format!(
                "the new graph has {} bytes; the format allows {MESSAGE_LIMIT}",
                out.len()
            )));
        }
        Ok(out)
    }

    fn damaged(&self) -> Error {
        self.bad("the model's fields cannot be parsed; the file may be damaged")
    }

    /// The graph of the new file, from the fields of the old one.
    fn new_graph(
        &self,
        fields: &[wire::Field<'_>],
        changes: &[Change],
        origins: &[Origin],
        tensors: &[TensorProto],
    ) -> Result<Vec<u8>> {
        let damaged = || self.damaged();
        let dropped = self
            .graph
            .node
            .iter()
            .zip(changes)
            .filter(|(_, c)| **c == Change::Drop);
        let gone: HashSet<&str> = dropped
            .flat_map(|(n, _)| n.output.iter().map(String::as_str))
            .collect();
        let mut graph = Vec::new();
        let mut nodes = changes.iter();
        let mut infos = self
            .graph
            .value_info
            .iter()
            .map(|v| gone.contains(v.name.as_str()));
        let mut old = Vec::new();
        for field in fields {
            match field.tag {
                GRAPH_NODE => match nodes.next().ok_or_else(damaged)? {
                    Change::Keep => graph.extend_from_slice(field.whole),
                    Change::Drop => {}
                    Change::Replace(all) => {
                        for n in all {
                            wire::put(&mut graph, GRAPH_NODE, &n.encode_to_vec());
                        }
                    }
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
        Ok(graph)
    }
}

/// Files with data of the initializers of the model in `path`.
pub(crate) fn external_files(path: &Path, graph: &GraphProto) -> HashSet<PathBuf> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let tensors = graph.initializer.iter().filter(|t| t.data_location == 1);
    let locations = tensors.flat_map(|t| t.external_data.iter().filter(|e| e.key == "location"));
    let parts = |location: &str| -> PathBuf {
        let parts = Path::new(location).components();
        parts.filter(|c| matches!(c, Component::Normal(_))).collect()
    };
    let mut found: HashSet<PathBuf> = locations.map(|e| folder.join(parts(&e.value))).collect();
    let nested = graph
        .node
        .iter()
        .flat_map(|n| &n.attribute)
        .filter_map(|a| a.g.as_ref());
    nested.for_each(|graph| found.extend(external_files(path, graph)));
    found
}

/// Copies the files beside the model, except its data, and syncs them to disk. The new model file
/// in `folder` is written elsewhere.
pub(crate) fn copy_others(input: &Path, folder: &Path, external: &HashSet<PathBuf>) -> Result<()> {
    let refused = |e| Error::io("cannot read", input, e);
    for entry in std::fs::read_dir(input).map_err(refused)? {
        let from = entry.map_err(refused)?.path();
        let Some(name) = from.file_name() else { continue };
        let to = folder.join(name);
        if !from.is_file() || external.contains(&from) || name == MODEL || name == DATA {
            continue;
        }
        let mut reader = std::fs::File::open(&from).map_err(|e| Error::io("cannot read", &from, e))?;
        let mut writer = std::fs::File::create(&to).map_err(|e| Error::io("cannot write", &to, e))?;
        std::io::copy(&mut reader, &mut writer)
            .and_then(|_| writer.sync_all())
            .map_err(|e| Error::io("cannot copy to", &to, e))?;
    }
    Ok(())
}
