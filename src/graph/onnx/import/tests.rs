use super::*;
use crate::graph::onnx::proto::{OperatorSetIdProto, ValueInfoProto};

fn value(name: &str, sizes: &[i64]) -> ValueInfoProto {
    use crate::graph::onnx::proto::{DimensionProto, TensorShapeProto, TensorTypeProto};
    let dim = |n: &i64| DimensionProto {
        value: Some(DimensionValue::Value(*n)),
    };
    let tensor_type = Some(TensorTypeProto {
        elem_type: 1,
        shape: Some(TensorShapeProto {
            dim: sizes.iter().map(dim).collect(),
        }),
    });
    ValueInfoProto {
        name: name.to_owned(),
        r#type: Some(TypeProto { tensor_type }),
    }
}

fn node(op: &str, inputs: &[&str], outputs: &[&str], attribute: Vec<AttributeProto>) -> NodeProto {
    let names = |list: &[&str]| list.iter().map(|n| (*n).to_owned()).collect();
    NodeProto {
        input: names(inputs),
        output: names(outputs),
        name: op.to_owned(),
        op_type: op.to_owned(),
        attribute,
        domain: String::new(),
    }
}

fn int(name: &str, i: i64) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        i,
        r#type: 2,
        ..Default::default()
    }
}

/// A model of one input `x`, read and derived.
fn read(opset: i64, sizes: &[i64], node: Vec<NodeProto>, outputs: &[&str]) -> Result<Graph> {
    let output = |n: &&str| ValueInfoProto {
        name: (*n).to_owned(),
        r#type: None,
    };
    let graph = GraphProto {
        node,
        input: vec![value("x", sizes)],
        output: outputs.iter().map(output).collect(),
        ..Default::default()
    };
    let model = ModelProto {
        graph: Some(graph),
        opset_import: vec![OperatorSetIdProto {
            domain: String::new(),
            version: opset,
        }],
        ..Default::default()
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.onnx");
    std::fs::write(&path, model.encode_to_vec()).unwrap();
    let mut graph = import(&path)?;
    crate::graph::derive::derive(&mut graph)?;
    Ok(graph)
}

#[test]
fn nodes_of_one_name_make_values_of_their_own() {
    let axes = |axis| AttributeProto {
        name: "axes".to_owned(),
        ints: vec![axis],
        r#type: 7,
        ..Default::default()
    };
    let nodes = vec![
        node("Squeeze", &["x"], &["y"], vec![axes(0)]),
        node("Squeeze", &["y"], &["z"], vec![axes(1)]),
    ];
    let graph = read(11, &[1, 3, 1], nodes, &["z"]).unwrap();
    let z = graph.output("z").unwrap();
    assert_eq!(graph.fact(z).unwrap().shape.to_string(), "[3]");
}

#[test]
fn a_split_has_as_many_parts_as_results() {
    let split = |n: i64, outputs: &[&str]| {
        let nodes = vec![node("Split", &["x"], outputs, vec![int("num_outputs", n)])];
        read(18, &[8, 2], nodes, &["a"])
    };
    for n in [1, 3, 1 << 62, -1] {
        assert!(split(n, &["a", "b"]).is_err(), "{n}");
    }
    let graph = split(4, &["a", "", "", ""]).unwrap();
    let a = graph.output("a").unwrap();
    assert_eq!(graph.fact(a).unwrap().shape.to_string(), "[2, 2]");
}

/// A loop that gives what it takes, around `depth - 1` others.
fn nested(depth: usize) -> NodeProto {
    let inner = if depth > 1 {
        nested(depth - 1)
    } else {
        node("Identity", &["v"], &["w"], vec![])
    };
    let name = |n: &str| ValueInfoProto {
        name: n.to_owned(),
        r#type: None,
    };
    let body = GraphProto {
        node: vec![node("Identity", &["go"], &["next"], vec![]), inner],
        input: ["run", "go", "v"].map(name).to_vec(),
        output: ["next", "w"].map(name).to_vec(),
        ..Default::default()
    };
    let body = AttributeProto {
        name: "body".to_owned(),
        g: Some(body),
        r#type: 5,
        ..Default::default()
    };
    node("Loop", &["", "", "v"], &["w"], vec![body])
}

#[test]
fn bodies_in_bodies_are_few() {
    let model = |depth| {
        let nodes = vec![node("Identity", &["x"], &["v"], vec![]), nested(depth)];
        read(16, &[2], nodes, &["w"])
    };
    model(MAX_DEPTH).unwrap();
    let error = model(MAX_DEPTH + 1).unwrap_err();
    assert!(is_unsupported(&error), "{}", error.chain());
}
