//! Written model files, as tests look at them. The parent module gives this file the messages.

use super::{IR_VERSION, proto};
use prost::Message;
use std::path::Path;

/// A model file with its data, as tests look at it.
pub struct Model {
    /// Names and sizes, as `name[a,b]`.
    pub inputs: Vec<String>,
    /// Names and sizes, as `name[a,b]`.
    pub outputs: Vec<String>,
    graph: proto::GraphProto,
    data: Vec<u8>,
}

fn shown(v: &proto::ValueInfoProto) -> String {
    let shape = v
        .r#type
        .as_ref()
        .unwrap()
        .tensor_type
        .as_ref()
        .unwrap()
        .shape
        .as_ref()
        .unwrap();
    let size = |d: &proto::DimensionProto| match d.value.as_ref().unwrap() {
        proto::DimensionValue::Value(v) => v.to_string(),
        proto::DimensionValue::Param(s) => s.clone(),
    };
    format!(
        "{}[{}]",
        v.name,
        shape.dim.iter().map(size).collect::<Vec<_>>().join(",")
    )
}

/// Reads `path` and the data file beside it.
pub fn open(path: &Path) -> Model {
    let model = proto::ModelProto::decode(std::fs::read(path).unwrap().as_slice()).unwrap();
    assert_eq!(model.ir_version, IR_VERSION, "the version of the format");
    let graph = model.graph.unwrap();
    let data = std::fs::read(path.with_extension("onnx.data")).unwrap();
    let inputs = graph.input.iter().map(shown).collect();
    let outputs = graph.output.iter().map(shown).collect();
    Model {
        inputs,
        outputs,
        graph,
        data,
    }
}

/// Makes an initialiser of the model file `path`, of floats in single precision, an input of
/// the graph as well.
pub fn make_input(path: &Path, name: &str) {
    let mut model = proto::ModelProto::decode(std::fs::read(path).unwrap().as_slice()).unwrap();
    let graph = model.graph.as_mut().unwrap();
    let t = graph.initializer.iter().find(|t| t.name == name).unwrap();
    let dim = |d: &i64| proto::DimensionProto {
        value: Some(proto::DimensionValue::Value(*d)),
    };
    let shape = proto::TensorShapeProto {
        dim: t.dims.iter().map(dim).collect(),
    };
    let tensor_type = proto::TensorTypeProto {
        elem_type: t.data_type,
        shape: Some(shape),
    };
    graph.input.push(proto::ValueInfoProto {
        name: name.to_owned(),
        r#type: Some(proto::TypeProto {
            tensor_type: Some(tensor_type),
        }),
    });
    std::fs::write(path, model.encode_to_vec()).unwrap();
}

impl Model {
    /// Number of nodes of an operator type.
    pub fn count(&self, op: &str) -> usize {
        self.graph.node.iter().filter(|n| n.op_type == op).count()
    }

    /// Inputs of a node.
    pub fn node_inputs(&self, name: &str) -> &[String] {
        &self.graph.node.iter().find(|n| n.name == name).unwrap().input
    }

    /// Offset in the data file, shape and bytes of an initialiser; no offset when it is inline.
    pub fn tensor(&self, name: &str) -> (Option<usize>, Vec<usize>, &[u8]) {
        let t = self.graph.initializer.iter().find(|t| t.name == name).unwrap();
        let shape = t.dims.iter().map(|d| *d as usize).collect();
        if t.data_location == 0 {
            return (None, shape, &t.raw_data);
        }
        let entry = |key: &str| &t.external_data.iter().find(|e| e.key == key).unwrap().value;
        assert_eq!(entry("location"), "model.onnx.data", "one data file");
        let (offset, length): (usize, usize) =
            (entry("offset").parse().unwrap(), entry("length").parse().unwrap());
        (Some(offset), shape, &self.data[offset..offset + length])
    }

    /// Shape and row-major bytes of an initialiser that may be stored in panels of 16 columns.
    pub fn matrix(&self, name: &str) -> (Vec<usize>, Vec<u8>) {
        let (_, shape, bytes) = self.tensor(name);
        let t = self.graph.initializer.iter().find(|t| t.name == name).unwrap();
        let Some(layout) = t.metadata_props.iter().find(|e| e.key == "layout") else {
            return (shape, bytes.to_vec());
        };
        assert_eq!((layout.value.as_str(), shape[2]), ("panels16", 16), "{name}");
        let (panels, rows) = (shape[0], shape[1]);
        let pieces = (0..rows * panels).flat_map(|i| {
            let (row, panel) = (i / panels, i % panels);
            &bytes[(panel * rows + row) * 64..][..64]
        });
        let row_major = pieces.copied().collect();
        ([&[rows, panels * 16], &shape[3..]].concat(), row_major)
    }

    /// Shape and elements of an `f32` initialiser.
    pub fn f32s(&self, name: &str) -> (Vec<usize>, Vec<f32>) {
        let (_, shape, bytes) = self.tensor(name);
        (
            shape,
            bytes
                .as_chunks::<4>()
                .0
                .iter()
                .map(|b| f32::from_le_bytes(*b))
                .collect(),
        )
    }
}
