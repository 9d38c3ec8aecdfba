//! Writes ONNX models: the graph in one file, the weights in a second file beside it.
//!
//! A [`ModelWriter`] collects nodes, inputs, outputs and small constants, and streams large tensors
//! to the data file. Models of any size can be written with little memory.

use super::weights::CHECKSUM;
use super::{proto, type_code};
use crate::error::{Error, Result, Stage};
use crate::tensor::{DType, HostTensor};
use prost::Message;
use std::borrow::Cow;
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

/// Version of the ONNX file format that [`ModelWriter`] writes.
pub const IR_VERSION: i64 = 9;

/// Largest tensor, in bytes, that [`ModelWriter::add_initializer`] stores inside the model file.
pub const INLINE_LIMIT: usize = 1024;

/// Alignment of external tensors in the data file, in bytes.
pub(super) const ALIGN: u64 = 64;
/// Alignment of external tensors of at least [`LARGE`] bytes, so that each can be mapped alone.
const PAGE: u64 = 4096;
const LARGE: u64 = 64 * 1024;
/// Bytes of the data file that are synced to disk at a time, while more are written.
const SYNC: u64 = 64 << 20;
/// Maximum length of a Protocol Buffers message, in bytes.
const MESSAGE_LIMIT: usize = i32::MAX as usize;

/// A size in the declared shape of a graph input or output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Size {
    Fixed(usize),
    /// A symbol or an expression of symbols.
    Symbol(String),
}

impl From<usize> for Size {
    fn from(v: usize) -> Self {
        Self::Fixed(v)
    }
}

impl From<&str> for Size {
    fn from(v: &str) -> Self {
        Self::Symbol(v.to_owned())
    }
}

/// Value of a node attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Attr {
    Int(i64),
    Float(f32),
    Str(String),
    Ints(Vec<i64>),
    Floats(Vec<f32>),
    Strs(Vec<String>),
    /// A tensor, stored inside the model file.
    Tensor(HostTensor),
}

/// A node to add with [`ModelWriter::add_node`].
#[derive(Clone, Copy, Debug)]
pub struct NodeSpec<'a> {
    /// Domain of the operator set; empty for standard ONNX. Must be declared with
    /// [`ModelWriter::opset`].
    pub domain: &'a str,
    pub op: &'a str,
    /// Name of the node, unique in the graph.
    pub name: &'a str,
    /// Input values; an empty name omits an optional input.
    pub inputs: &'a [&'a str],
    pub outputs: &'a [&'a str],
    pub attributes: &'a [(&'a str, Attr)],
}

/// Sizes reported by [`ModelWriter::finish`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Bytes of the model file.
    pub model_bytes: u64,
    /// Bytes of the data file that the model refers to, whether or not it was created.
    pub data_bytes: u64,
    /// Nodes of the graph.
    pub nodes: usize,
    /// Initializers of the graph.
    pub initializers: usize,
}

/// Writes one model: `<folder>/<name>` and `<folder>/<name>.data`, or only the former.
///
/// By convention, weight matrices of `MatMul` are stored as `[in, out]` (the second operand as
/// used), under the names of Hugging Face checkpoints, whose own matrices are `[out, in]`.
pub struct ModelWriter {
    stage: Stage,
    model_path: PathBuf,
    data_path: PathBuf,
    data_name: String,
    /// `None` if no data file is created.
    data: Option<BufWriter<File>>,
    /// Adds checksums to tensors in the data file.
    checksums: bool,
    position: u64,
    /// Syncs the data file to disk up to `synced`.
    syncing: Option<JoinHandle<io::Result<()>>>,
    synced: u64,
    model: proto::ModelProto,
    graph: proto::GraphProto,
}

/// Sink for the little-endian, row-major bytes of one external tensor.
pub struct ExternalData<'a> {
    data: &'a mut BufWriter<File>,
    path: &'a Path,
    stage: Stage,
    name: &'a str,
    left: u64,
    crc: Option<crc32fast::Hasher>,
}

impl ExternalData<'_> {
    /// Appends `bytes`. Fails if the tensor would become longer than declared.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.left = self.left.checked_sub(bytes.len() as u64).ok_or_else(|| {
            Error::file(
                self.stage,
                self.path,
                format!(
                    "tensor \"{}\": got {} bytes more than its shape needs",
                    self.name,
                    bytes.len() as u64 - self.left
                ),
            )
        })?;
        if let Some(crc) = &mut self.crc {
            crc.update(bytes);
        }
        self.data
            .write_all(bytes)
            .map_err(|e| Error::io("cannot write", self.path, e))
    }
}

/// Writes a whole file and syncs it to disk.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    File::create(path)
        .and_then(|mut f| f.write_all(bytes).and_then(|()| f.sync_all()))
        .map_err(|e| Error::io("cannot write", path, e))
}

fn entry(key: &str, value: impl Into<String>) -> proto::StringStringEntryProto {
    proto::StringStringEntryProto {
        key: key.to_owned(),
        value: value.into(),
    }
}

impl ModelWriter {
    /// Starts the model file `name` in the existing folder `folder`; errors name `stage`. The data
    /// file is created at once, the model file by [`ModelWriter::finish`]. Both replace existing
    /// files.
    pub fn create(stage: Stage, folder: &Path, name: &str, graph_name: &str) -> Result<Self> {
        let mut writer = Self::without_data(stage, folder, name, graph_name);
        let file =
            File::create(&writer.data_path).map_err(|e| Error::io("cannot write", &writer.data_path, e))?;
        writer.data = Some(BufWriter::with_capacity(1 << 20, file));
        Ok(writer)
    }

    /// Like [`ModelWriter::create`], but without a data file: external constants are declared with
    /// type, shape and offset, and their bytes are not requested. Such a model can be inspected and
    /// planned, but not run.
    pub fn without_data(stage: Stage, folder: &Path, name: &str, graph_name: &str) -> Self {
        let data_name = format!("{name}.data");
        Self {
            stage,
            model_path: folder.join(name),
            data_path: folder.join(&data_name),
            data_name,
            data: None,
            checksums: false,
            position: 0,
            syncing: None,
            synced: 0,
            model: proto::ModelProto {
                ir_version: IR_VERSION,
                producer_name: env!("CARGO_PKG_NAME").to_owned(),
                producer_version: env!("CARGO_PKG_VERSION").to_owned(),
                ..Default::default()
            },
            graph: proto::GraphProto {
                name: graph_name.to_owned(),
                ..Default::default()
            },
        }
    }

    /// Adds a checksum to each tensor added to the data file from now on; it is verified when the
    /// tensor is read.
    pub fn with_checksums(mut self) -> Self {
        self.checksums = true;
        self
    }

    fn bad(&self, what: impl Into<String>) -> Error {
        Error::file(self.stage, &self.model_path, what)
    }

    /// Declares the version of an operator set; the empty domain is standard ONNX.
    pub fn opset(&mut self, domain: &str, version: i64) {
        self.model.opset_import.push(proto::OperatorSetIdProto {
            domain: domain.to_owned(),
            version,
        });
    }

    /// Adds an entry to the model's metadata.
    pub fn metadata(&mut self, key: &str, value: &str) {
        self.model.metadata_props.push(entry(key, value));
    }

    fn value_info(&self, name: &str, dtype: DType, shape: &[Size]) -> Result<proto::ValueInfoProto> {
        let dim = shape
            .iter()
            .map(|size| {
                let value = match size {
                    Size::Fixed(v) => proto::DimensionValue::Value(
                        i64::try_from(*v)
                            .map_err(|_| self.bad(format!("size {v} of \"{name}\" is too large")))?,
                    ),
                    Size::Symbol(s) => proto::DimensionValue::Param(s.clone()),
                };
                Ok(proto::DimensionProto { value: Some(value) })
            })
            .collect::<Result<_>>()?;
        let tensor_type = proto::TensorTypeProto {
            elem_type: type_code(dtype),
            shape: Some(proto::TensorShapeProto { dim }),
        };
        Ok(proto::ValueInfoProto {
            name: name.to_owned(),
            r#type: Some(proto::TypeProto {
                tensor_type: Some(tensor_type),
            }),
        })
    }

    /// Adds a graph input.
    pub fn add_input(&mut self, name: &str, dtype: DType, shape: &[Size]) -> Result<()> {
        let info = self.value_info(name, dtype, shape)?;
        self.graph.input.push(info);
        Ok(())
    }

    /// Adds a graph output.
    pub fn add_output(&mut self, name: &str, dtype: DType, shape: &[Size]) -> Result<()> {
        let info = self.value_info(name, dtype, shape)?;
        self.graph.output.push(info);
        Ok(())
    }

    fn inline(&self, name: &str, tensor: &HostTensor) -> Result<proto::TensorProto> {
        let dims = self.dims(name, tensor.shape())?;
        Ok(proto::TensorProto {
            dims,
            data_type: type_code(tensor.dtype()),
            name: name.to_owned(),
            raw_data: self.bytes_of(name, tensor)?.into_owned(),
            ..Default::default()
        })
    }

    fn dims(&self, name: &str, shape: &[usize]) -> Result<Vec<i64>> {
        shape
            .iter()
            .map(|d| i64::try_from(*d).map_err(|_| self.bad(format!("size {d} of \"{name}\" is too large"))))
            .collect()
    }

    /// Adds a constant that is stored inside the model file.
    pub fn add_constant(&mut self, name: &str, tensor: &HostTensor) -> Result<()> {
        let tensor = self.inline(name, tensor)?;
        self.graph.initializer.push(tensor);
        Ok(())
    }

    /// Adds a constant: up to [`INLINE_LIMIT`] bytes inside the model file, else in the data file.
    pub fn add_initializer(&mut self, name: &str, tensor: &HostTensor) -> Result<()> {
        if tensor.byte_len() <= INLINE_LIMIT {
            return self.add_constant(name, tensor);
        }
        self.add_external(name, tensor)
    }

    /// Adds a constant in the data file.
    pub fn add_external(&mut self, name: &str, tensor: &HostTensor) -> Result<()> {
        let bytes = match self.data {
            Some(_) => self.bytes_of(name, tensor)?,
            None => Cow::Borrowed(&[][..]),
        };
        self.add_initializer_external(name, tensor.dtype(), tensor.shape(), |out| out.write(&bytes))
    }

    fn bytes_of<'a>(&self, name: &str, tensor: &'a HostTensor) -> Result<Cow<'a, [u8]>> {
        tensor
            .to_packed()
            .map_err(|e| self.bad(format!("tensor \"{name}\": {e}")))
    }

    /// Adds an entry to the metadata of the last initializer.
    pub(super) fn describe_last(&mut self, key: &str, value: &str) {
        if let Some(tensor) = self.graph.initializer.last_mut() {
            tensor.metadata_props.push(entry(key, value));
        }
    }

    /// Adds a constant in the data file. `fill` must write exactly as many bytes as `dtype` and
    /// `shape` need, with types narrower than 8 bits packed. It is not called by a writer without a
    /// data file. After an error the writer must not be used any more.
    pub fn add_initializer_external(
        &mut self,
        name: &str,
        dtype: DType,
        shape: &[usize],
        fill: impl FnOnce(&mut ExternalData<'_>) -> Result<()>,
    ) -> Result<()> {
        let dims = self.dims(name, shape)?;
        let length = shape
            .iter()
            .try_fold(dtype.bits() as u64, |n, d| n.checked_mul(*d as u64))
            .map(|bits| bits.div_ceil(8))
            .filter(|n| i64::try_from(*n).is_ok())
            .ok_or_else(|| self.bad(format!("tensor \"{name}\" of shape {shape:?} is too large")))?;
        let align = if length >= LARGE { PAGE } else { ALIGN };
        let offset = self.position.next_multiple_of(align);
        let mut metadata_props = Vec::new();
        if let Some(data) = &mut self.data {
            io::copy(&mut io::repeat(0).take(offset - self.position), data)
                .map_err(|e| Error::io("cannot write", &self.data_path, e))?;
            let mut sink = ExternalData {
                data,
                path: &self.data_path,
                stage: self.stage,
                name,
                left: length,
                crc: self.checksums.then(crc32fast::Hasher::new),
            };
            fill(&mut sink)?;
            if sink.left != 0 {
                let what = format!(
                    "tensor \"{name}\" needs {length} bytes, got {}",
                    length - sink.left
                );
                return Err(Error::file(self.stage, &self.data_path, what));
            }
            if let Some(crc) = sink.crc {
                metadata_props.push(entry(CHECKSUM, format!("{:08x}", crc.finalize())));
            }
        }
        self.position = offset + length;
        self.sync_ahead()?;
        self.graph.initializer.push(proto::TensorProto {
            dims,
            data_type: type_code(dtype),
            name: name.to_owned(),
            external_data: vec![
                entry("location", self.data_name.as_str()),
                entry("offset", offset.to_string()),
                entry("length", length.to_string()),
            ],
            data_location: 1,
            metadata_props,
            ..Default::default()
        });
        Ok(())
    }

    /// Adds a node. Nodes must be added in topological order.
    pub fn add_node(&mut self, node: NodeSpec<'_>) -> Result<()> {
        let owned = |names: &[&str]| names.iter().map(|s| (*s).to_owned()).collect();
        let attribute = node
            .attributes
            .iter()
            .map(|(name, value)| {
                let mut a = proto::AttributeProto {
                    name: (*name).to_owned(),
                    ..Default::default()
                };
                a.r#type = match value {
                    Attr::Float(v) => {
                        a.f = *v;
                        1
                    }
                    Attr::Int(v) => {
                        a.i = *v;
                        2
                    }
                    Attr::Str(v) => {
                        a.s = v.as_bytes().to_vec();
                        3
                    }
                    Attr::Tensor(v) => {
                        a.t = Some(self.inline(name, v)?);
                        4
                    }
                    Attr::Floats(v) => {
                        a.floats = v.clone();
                        6
                    }
                    Attr::Ints(v) => {
                        a.ints = v.clone();
                        7
                    }
                    Attr::Strs(v) => {
                        a.strings = v.iter().map(|s| s.as_bytes().to_vec()).collect();
                        8
                    }
                };
                Ok(a)
            })
            .collect::<Result<_>>()?;
        self.graph.node.push(proto::NodeProto {
            overload: String::new(),
            input: owned(node.inputs),
            output: owned(node.outputs),
            name: node.name.to_owned(),
            op_type: node.op.to_owned(),
            attribute,
            domain: node.domain.to_owned(),
        });
        Ok(())
    }

    /// Checks that each value is defined once and before it is read, that node names are unique,
    /// and that operator sets are declared.
    fn check(&self) -> Result<()> {
        let mut known: HashSet<&str> = HashSet::new();
        let sources = self
            .graph
            .input
            .iter()
            .map(|v| &v.name)
            .chain(self.graph.initializer.iter().map(|t| &t.name));
        for name in sources {
            if !known.insert(name) {
                return Err(self.bad(format!("value \"{name}\" is defined twice")));
            }
        }
        let mut node_names: HashSet<&str> = HashSet::new();
        for node in &self.graph.node {
            if !node_names.insert(&node.name) {
                return Err(self.bad(format!("two nodes are named \"{}\"", node.name)));
            }
            if !self.model.opset_import.iter().any(|o| o.domain == node.domain) {
                let what = format!(
                    "node \"{}\": the operator set of domain \"{}\" is not declared",
                    node.name, node.domain
                );
                return Err(self.bad(what));
            }
            if let Some(name) = node
                .input
                .iter()
                .find(|n| !n.is_empty() && !known.contains(n.as_str()))
            {
                return Err(self.bad(format!(
                    "node \"{}\" reads \"{name}\", which no earlier node defines",
                    node.name
                )));
            }
            for name in node.output.iter().filter(|n| !n.is_empty()) {
                if !known.insert(name) {
                    return Err(self.bad(format!("value \"{name}\" is defined twice")));
                }
            }
        }
        match self
            .graph
            .output
            .iter()
            .find(|v| !known.contains(v.name.as_str()))
        {
            Some(v) => Err(self.bad(format!("the graph output \"{}\" is not defined", v.name))),
            None => Ok(()),
        }
    }

    /// Starts to sync the data file to disk, so that less is left to do at the end.
    fn sync_ahead(&mut self) -> Result<()> {
        let busy = self.syncing.as_ref().is_some_and(|thread| !thread.is_finished());
        if busy || self.position - self.synced < SYNC {
            return Ok(());
        }
        self.wait_for_sync()?;
        if let Some(file) = self
            .data
            .as_ref()
            .and_then(|data| data.get_ref().try_clone().ok())
        {
            self.synced = self.position;
            // Without a thread, everything is synced at the end.
            self.syncing = std::thread::Builder::new().spawn(move || file.sync_data()).ok();
        }
        Ok(())
    }

    /// Reports what a sync that was started has found: the next one need not find it again.
    fn wait_for_sync(&mut self) -> Result<()> {
        let synced = self.syncing.take().map(JoinHandle::join);
        match synced {
            Some(Ok(Err(e))) => Err(Error::io("cannot write", &self.data_path, e)),
            _ => Ok(()),
        }
    }

    /// Syncs the data file to disk.
    fn flush(&mut self) -> Result<()> {
        self.wait_for_sync()?;
        match &mut self.data {
            Some(data) => data
                .flush()
                .and_then(|()| data.get_ref().sync_all())
                .map_err(|e| Error::io("cannot write", &self.data_path, e)),
            None => Ok(()),
        }
    }

    /// Completes the data file. Returns the added constants, for a model file that is assembled
    /// elsewhere, and the length of the data file.
    pub fn into_initializers(mut self) -> Result<(Vec<proto::TensorProto>, u64)> {
        self.flush()?;
        Ok((std::mem::take(&mut self.graph.initializer), self.position))
    }

    /// Checks the graph and writes the model file.
    pub fn finish(mut self) -> Result<Written> {
        self.check()?;
        self.flush()?;
        let (nodes, initializers) = (self.graph.node.len(), self.graph.initializer.len());
        self.model.graph = Some(std::mem::take(&mut self.graph));
        let length = self.model.encoded_len();
        if length > MESSAGE_LIMIT {
            return Err(self.bad(format!(
                "the graph has {length} bytes; the format allows {MESSAGE_LIMIT}"
            )));
        }
        write_file(&self.model_path, &self.model.encode_to_vec())?;
        Ok(Written {
            model_bytes: length as u64,
            data_bytes: self.position,
            nodes,
            initializers,
        })
    }
}

#[cfg(test)]
#[path = "../../../tests/support/onnx/read_back.rs"]
#[expect(dead_code, reason = "what other crates' tests use too")]
mod read_back;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::testing::assert_error;

    fn writer(folder: &Path) -> ModelWriter {
        let mut w = ModelWriter::create(Stage::Quantize, folder, "model.onnx", "g").unwrap();
        w.opset("", 18);
        w.opset("custom", 1);
        w.add_input("x", DType::F16, &["n".into(), 4.into()]).unwrap();
        w.add_output("y", DType::F16, &["n".into(), 4.into()]).unwrap();
        w
    }

    fn node<'a>(inputs: &'a [&'a str], outputs: &'a [&'a str]) -> NodeSpec<'a> {
        NodeSpec {
            domain: "custom",
            op: "Op",
            name: outputs[0],
            inputs,
            outputs,
            attributes: &[],
        }
    }

    #[test]
    fn tensors_of_any_type_are_aligned_and_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut w = writer(folder.path());
        let small = HostTensor::from_f16(&[3], &[half::f16::ONE; 3]).unwrap();
        let medium = HostTensor::from_u32(&[300], &[0xdead_beef; 300]).unwrap();
        let large = HostTensor::from_f32(&[1 << 14, 1], &vec![1.5; 1 << 14]).unwrap();
        for (name, tensor) in [
            ("small", &small),
            ("a", &medium),
            ("b", &medium),
            ("large", &large),
        ] {
            w.add_initializer(name, tensor).unwrap();
        }
        let attributes = [("bits", Attr::Int(4)), ("t", Attr::Tensor(small.clone()))];
        let inputs = ["x", "small", "a", "", "large"];
        w.add_node(NodeSpec {
            attributes: &attributes,
            ..node(&inputs, &["y"])
        })
        .unwrap();
        let done = w.finish().unwrap();
        assert_eq!((done.nodes, done.initializers), (1, 4));
        let model = read_back::open(&folder.path().join("model.onnx"));
        assert_eq!(model.inputs, ["x[n,4]"]);
        assert_eq!(model.tensor("small"), (None, vec![3], small.bytes().unwrap()));
        let (offset, shape, bytes) = model.tensor("b");
        assert_eq!(
            (offset, shape, bytes),
            (Some(1216), vec![300], medium.bytes().unwrap())
        );
        let (offset, shape, bytes) = model.tensor("large");
        assert_eq!(
            (offset, shape, bytes),
            (Some(4096), vec![1 << 14, 1], large.bytes().unwrap())
        );
        assert_eq!(done.data_bytes, 4096 + (4 << 14));
    }

    #[test]
    fn wrong_lengths_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut w = writer(folder.path());
        let error = w
            .add_initializer_external("t", DType::U32, &[2], |out| out.write(&[0; 7]))
            .unwrap_err();
        assert_error(&error, ErrorKind::InvalidFile, &["\"t\"", "8", "7"]);
        let error = w
            .add_initializer_external("t", DType::U32, &[2], |out| out.write(&[0; 9]))
            .unwrap_err();
        assert_error(&error, ErrorKind::InvalidFile, &["\"t\"", "1"]);
        let error = w
            .add_initializer_external("t", DType::U32, &[usize::MAX, 2], |_| Ok(()))
            .unwrap_err();
        assert_error(&error, ErrorKind::InvalidFile, &["\"t\""]);
    }

    #[test]
    fn graphs_that_do_not_hold_together_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let finish = |build: &dyn Fn(&mut ModelWriter)| {
            let mut w = writer(folder.path());
            build(&mut w);
            w.finish().unwrap_err()
        };
        let refused = |e: &Error, values: &[&str]| assert_error(e, ErrorKind::InvalidFile, values);
        let e = finish(&|w| w.add_node(node(&["z"], &["y"])).unwrap());
        refused(&e, &["\"y\"", "\"z\""]);
        let e = finish(&|_| ());
        refused(&e, &["\"y\""]);
        let e = finish(&|w| {
            w.add_node(node(&["x"], &["x"])).unwrap();
        });
        refused(&e, &["\"x\""]);
        let e = finish(&|w| {
            w.add_node(NodeSpec {
                domain: "other",
                ..node(&["x"], &["y"])
            })
            .unwrap();
        });
        refused(&e, &["\"other\""]);
        let e = finish(&|w| {
            w.add_node(NodeSpec {
                name: "n",
                ..node(&["x"], &["y"])
            })
            .unwrap();
            w.add_node(NodeSpec {
                name: "n",
                ..node(&["x"], &["z"])
            })
            .unwrap();
        });
        refused(&e, &["\"n\""]);
        assert!(
            !folder.path().join("model.onnx").exists(),
            "a refused graph is not written"
        );
    }
}
