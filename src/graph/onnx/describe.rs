//! What an ONNX file says about a model for people: names, metadata, attributes of nodes.

use super::proto::{AttributeProto, ModelProto, TensorProto};
use super::{decode, dtype_of, weights};
use crate::error::{Result, Stage};
use crate::tensor::{Bytes, HostTensor};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::path::Path;

/// Elements up to which a tensor is shown with its values.
pub const SHOWN: usize = 16;

/// Names that exporters give to every graph.
const GENERIC: [&str; 9] = [
    "g",
    "graph",
    "main",
    "main_graph",
    "model",
    "onnx",
    "tf2onnx",
    "torch-jit-export",
    "torch_jit",
];

/// What a file says about its model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Description {
    /// Key and value, for example of class names or the license.
    pub metadata: Vec<(String, String)>,
    graph: String,
    /// By the name of a node's first result.
    attributes: HashMap<String, Map<String, Value>>,
}

impl Description {
    /// Reads the file. Errors: it cannot be read, or is not an ONNX model.
    pub fn read(path: &Path) -> Result<Self> {
        let file = weights::map(path)?;
        Ok(Self::of(path, decode::model(Stage::Import, path, file.bytes())?))
    }

    fn of(path: &Path, model: ModelProto) -> Self {
        let metadata = model.metadata_props.into_iter();
        let mut out = Self {
            metadata: metadata.map(|p| (p.key, p.value)).collect(),
            ..Self::default()
        };
        let Some(graph) = model.graph else { return out };
        out.graph = graph.name;
        for node in graph.node {
            let Some(output) = node.output.into_iter().find(|o| !o.is_empty()) else {
                continue;
            };
            let all = node.attribute.iter();
            out.attributes
                .insert(output, all.map(|a| (a.name.clone(), value(path, a))).collect());
        }
        out
    }

    /// The value of a key of the metadata.
    pub fn get(&self, key: &str) -> Option<&str> {
        let found = self.metadata.iter().find(|(k, _)| k == key);
        found.map(|(_, v)| v.as_str())
    }

    /// The model's own name: from the metadata, else that of the graph unless exporters give it to
    /// every graph.
    pub fn name(&self) -> Option<&str> {
        let keys = ["name", "model_name", "general.name"];
        let named = keys.iter().find_map(|key| self.get(key));
        let graph = Some(self.graph.as_str()).filter(|name| !GENERIC.contains(name));
        named.or(graph).map(str::trim).filter(|name| !name.is_empty())
    }

    /// The attributes of the node whose first result has this name, as the file states them.
    pub fn attributes(&self, output: &str) -> Map<String, Value> {
        self.attributes.get(output).cloned().unwrap_or_default()
    }
}

/// The elements of a small tensor; a number for a scalar. `None` for a large one, and if the
/// elements are not there.
pub fn elements(tensor: &HostTensor) -> Option<Value> {
    let count: usize = tensor.shape().iter().try_fold(1usize, |n, d| n.checked_mul(*d))?;
    if count > SHOWN {
        return None;
    }
    let all: Vec<Value> = match tensor.dtype().is_float() {
        true => tensor.to_f32().ok()?.iter().map(|v| float(*v)).collect(),
        false => tensor.to_i64().ok()?.iter().map(|v| Value::from(*v)).collect(),
    };
    match (tensor.shape(), all.as_slice()) {
        ([], [one]) => Some(one.clone()),
        _ => Some(Value::Array(all)),
    }
}

/// With the digits that tell it from other floats; text if it is not finite.
fn float(v: f32) -> Value {
    let text = v.to_string();
    let number = text.parse().ok().and_then(serde_json::Number::from_f64);
    number.map_or(Value::String(text), Value::Number)
}

fn text(bytes: &[u8]) -> Value {
    Value::String(String::from_utf8_lossy(bytes).into_owned())
}

fn tensor(path: &Path, t: &TensorProto) -> Value {
    let count = t.dims.iter().try_fold(1i64, |n, d| n.checked_mul(*d));
    let is_small = count.is_some_and(|n| usize::try_from(n).is_ok_and(|n| n <= SHOWN));
    let read = || weights::Weights::new(path).tensor(t).ok();
    let small = is_small.then(read).flatten().and_then(|t| elements(&t));
    small.unwrap_or_else(|| {
        let dtype = dtype_of(i64::from(t.data_type)).map_or_else(|_| "?".to_owned(), |d| d.to_string());
        Value::String(format!("{dtype}{:?}", t.dims))
    })
}

fn value(path: &Path, a: &AttributeProto) -> Value {
    // Some exporters omit the type.
    let kind = match a.r#type {
        0 if a.t.is_some() => 4,
        0 if a.g.is_some() => 5,
        0 if !a.floats.is_empty() => 6,
        0 if !a.ints.is_empty() => 7,
        0 if !a.strings.is_empty() => 8,
        0 if !a.s.is_empty() => 3,
        0 if a.f != 0.0 => 1,
        0 => 2,
        kind => kind,
    };
    match kind {
        1 => float(a.f),
        2 => Value::from(a.i),
        3 => text(&a.s),
        4 => a.t.as_ref().map_or(Value::Null, |t| tensor(path, t)),
        5 => {
            let nodes = a.g.as_ref().map_or(0, |g| g.node.len());
            Value::String(format!("graph of {nodes} nodes"))
        }
        6 => a.floats.iter().map(|v| float(*v)).collect(),
        7 => a.ints.iter().copied().collect(),
        8 => a.strings.iter().map(|s| text(s)).collect(),
        kind => Value::String(format!("attribute type {kind}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::proto::{GraphProto, NodeProto, StringStringEntryProto};
    use super::*;
    use serde_json::json;

    fn model(graph: &str, metadata: &[(&str, &str)], attribute: Vec<AttributeProto>) -> Description {
        let node = NodeProto {
            output: vec!["y".to_owned()],
            attribute,
            ..NodeProto::default()
        };
        let graph = GraphProto {
            name: graph.to_owned(),
            node: vec![node],
            ..GraphProto::default()
        };
        let entry = |(key, value): &(&str, &str)| StringStringEntryProto {
            key: (*key).to_owned(),
            value: (*value).to_owned(),
        };
        let model = ModelProto {
            graph: Some(graph),
            metadata_props: metadata.iter().map(entry).collect(),
            ..ModelProto::default()
        };
        Description::of(Path::new("model.onnx"), model)
    }

    #[test]
    fn names_of_exporters_are_not_names_of_models() {
        let name = |graph: &str, metadata: &[(&str, &str)]| {
            model(graph, metadata, Vec::new()).name().map(str::to_owned)
        };
        assert_eq!(name("main_graph", &[]), None);
        assert_eq!(name("", &[("license", "none")]), None);
        assert_eq!(name("mobilenetv2-7", &[]).as_deref(), Some("mobilenetv2-7"));
        assert_eq!(
            name("resnet", &[("name", "ResNet 50")]).as_deref(),
            Some("ResNet 50")
        );
    }

    #[test]
    fn attributes_keep_their_types() {
        let attribute = |name: &str| AttributeProto {
            name: name.to_owned(),
            ..AttributeProto::default()
        };
        let found = model(
            "g",
            &[],
            vec![
                AttributeProto {
                    ints: vec![2, 2],
                    r#type: 7,
                    ..attribute("strides")
                },
                AttributeProto {
                    i: -1,
                    ..attribute("axis")
                },
                AttributeProto {
                    f: 0.1,
                    r#type: 1,
                    ..attribute("alpha")
                },
                AttributeProto {
                    s: b"SAME_UPPER".to_vec(),
                    r#type: 3,
                    ..attribute("auto_pad")
                },
                AttributeProto {
                    t: Some(TensorProto {
                        dims: vec![1000],
                        data_type: 1,
                        ..TensorProto::default()
                    }),
                    r#type: 4,
                    ..attribute("value")
                },
                AttributeProto {
                    f: f32::INFINITY,
                    r#type: 1,
                    ..attribute("most")
                },
            ],
        );
        let wanted = json!({
            "strides": [2, 2], "axis": -1, "alpha": 0.1, "auto_pad": "SAME_UPPER", "value": "f32[1000]", "most": "inf",
        });
        assert_eq!(Value::Object(found.attributes("y")), wanted);
        assert!(found.attributes("x").is_empty());
    }

    #[test]
    fn elements_of_small_tensors_are_shown() {
        let of = |shape: &[usize], data: &[i64]| elements(&HostTensor::from_i64(shape, data).unwrap());
        assert_eq!(of(&[], &[3]), Some(json!(3)));
        assert_eq!(of(&[2], &[1, -1]), Some(json!([1, -1])));
        assert_eq!(of(&[17], &[0; 17]), None);
        let half = HostTensor::from_f32(&[1], &[0.5]).unwrap();
        assert_eq!(elements(&half), Some(json!([0.5])));
    }
}
