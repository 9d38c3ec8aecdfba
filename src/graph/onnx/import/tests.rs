use super::*;
use crate::graph::onnx::proto::{AttributeProto, ModelProto, OperatorSetIdProto, ValueInfoProto};
use crate::tensor::HostTensor;
use crate::testing::{assert_carries, carries};
use prost::Message;

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
        ..Default::default()
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
    derived(&model)
}

/// The graph of a model, derived.
fn derived(model: &ModelProto) -> Result<Graph> {
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
    model(MAX_LOOPS).unwrap();
    let error = model(MAX_LOOPS + 1).unwrap_err();
    assert!(matches!(missing(&error).first(), Some(m) if matches!(m.source, OpError::Unsupported(_))));
}

/// The parts that an import misses.
fn missing(error: &Error) -> &[Missing] {
    let source = std::error::Error::source(error).and_then(|e| e.downcast_ref::<MissingParts>());
    source.map_or(&[], |parts| parts.0.as_slice())
}

fn disorder(error: &Error) -> Option<&Disorder> {
    std::error::Error::source(error)?.downcast_ref()
}

/// A node with a name of its own.
fn named(
    name: &str,
    op: &str,
    inputs: &[&str],
    outputs: &[&str],
    attribute: Vec<AttributeProto>,
) -> NodeProto {
    NodeProto {
        name: name.to_owned(),
        ..node(op, inputs, outputs, attribute)
    }
}

#[test]
fn everything_that_is_missing_is_listed() {
    let inner = GraphProto {
        node: vec![named("deep", "Absent", &["x"], &["inner"], vec![])],
        output: vec![value("inner", &[2])],
        ..Default::default()
    };
    let branch = |name: &str| AttributeProto {
        name: name.to_owned(),
        g: Some(inner.clone()),
        r#type: 5,
        ..Default::default()
    };
    let nodes = vec![
        named("first", "Absent", &["x"], &["a"], vec![]),
        named(
            "relu",
            "Relu",
            &["x"],
            &["b"],
            vec![int("bend", 1), int("fold", 2)],
        ),
        named("later", "Mish", &["b"], &["c"], vec![]),
        named("cast", "Cast", &["c"], &["d"], vec![int("to", 8)]),
        named(
            "if",
            "If",
            &["x"],
            &["e"],
            vec![branch("then_branch"), branch("else_branch")],
        ),
        named("good", "Abs", &["x"], &["f"], vec![]),
    ];
    let error = read(13, &[2], nodes, &["a", "e", "f"]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let expected = [
        ("Absent", "first", &[][..], ""),
        ("Relu", "relu", &["`bend`", "`fold`"], ""),
        ("Mish", "later", &["18", "13"], ""),
        ("Cast", "cast", &["8"], ""),
        ("Absent", "deep", &[], "then_branch"),
        ("Absent", "deep", &[], "else_branch"),
    ];
    assert_eq!(missing(&error).len(), expected.len(), "{}", error.chain());
    for (part, (op, name, values, inside)) in missing(&error).iter().zip(expected) {
        assert_eq!((part.op.as_str(), part.name.as_str()), (op, name));
        assert!(matches!(part.source, OpError::Unsupported(_)), "{}", part.source);
        assert_carries(&part.source, values);
        assert_eq!(part.inside.is_empty(), inside.is_empty());
        assert!(part.inside.contains(inside), "{}", part.inside);
    }
    // All places of a reason are in one line.
    let text = error.chain();
    let line = text.lines().find(|l| carries(l, "\"first\"")).unwrap();
    assert_carries(line, &["Absent", "`then_branch`", "`else_branch`"]);
    assert_eq!(line.matches("\"deep\"").count(), 2, "{line}");
    assert_carries(text, &["model.onnx"]);
}

#[test]
fn many_places_of_one_kind_are_a_line() {
    let nodes = (0..40).map(|i| named(&format!("n{i}"), "Absent", &["x"], &[&format!("y{i}")], vec![]));
    let error = read(13, &[2], nodes.collect(), &["y0"]).unwrap_err();
    assert_eq!(missing(&error).len(), 40);
    let text = error.chain();
    assert_carries(&text, &["Absent", "\"n0\"", "\"n1\"", "\"n2\"", "37"]);
    assert!(!carries(&text, "\"n3\""), "{text}");
}

#[test]
fn an_opset_is_one_of_the_reasons() {
    let nodes = vec![named("n", "Absent", &["x"], &["y"], vec![])];
    let error = read(99, &[2], nodes, &["y"]).unwrap_err();
    let names: Vec<&str> = missing(&error).iter().map(|m| m.name.as_str()).collect();
    assert_eq!(names, ["ai.onnx", "n"], "{}", error.chain());
}

#[test]
fn graphs_in_disorder_are_refused() {
    let cycle = vec![
        named("before", "Abs", &["x"], &["w"], vec![]),
        named("one", "Add", &["w", "c"], &["a"], vec![]),
        named("two", "Neg", &["a"], &["b"], vec![]),
        named("three", "Neg", &["b"], &["c"], vec![]),
        named("behind", "Neg", &["c"], &["y"], vec![]),
    ];
    let error = read(13, &[2], cycle, &["y"]).unwrap_err();
    let Some(Disorder::Cycle { nodes }) = disorder(&error) else {
        panic!("{}", error.chain())
    };
    let mut sorted = nodes.clone();
    sorted.sort();
    assert_eq!(sorted, ["one", "three", "two"]);
    let at = |name: &str| nodes.iter().position(|n| n == name).unwrap();
    assert_eq!(
        (at("one") + 1) % 3,
        at("two") % 3,
        "each reads the one before: {nodes:?}"
    );

    let dangling = vec![named("n", "Add", &["x", "nowhere"], &["y"], vec![])];
    let error = read(13, &[2], dangling, &["y"]).unwrap_err();
    let expected = Disorder::Undefined {
        value: "nowhere".to_owned(),
        reader: "n".to_owned(),
    };
    assert_eq!(disorder(&error), Some(&expected));

    let twice = ["p", "q"].map(|n| named(n, "Abs", &["x"], &["y"], vec![]));
    let error = read(13, &[2], twice.into(), &["y"]).unwrap_err();
    let expected = Disorder::Twice {
        value: "y".to_owned(),
    };
    assert_eq!(disorder(&error), Some(&expected), "{}", error.chain());

    let output = read(13, &[2], vec![], &["z"]).unwrap_err();
    assert!(matches!(disorder(&output), Some(Disorder::Undefined { value, .. }) if value == "z"));
}

#[test]
fn nodes_have_no_more_operands_and_results_than_their_operator() {
    let perm = AttributeProto {
        name: "perm".to_owned(),
        ints: vec![0, 2, 3, 1],
        r#type: 7,
        ..Default::default()
    };
    let number = AttributeProto {
        name: "value_int".to_owned(),
        i: 1,
        r#type: 2,
        ..Default::default()
    };
    let wrong = [
        (node("Transpose", &["x"], &["y", "z"], vec![perm]), "2"),
        (node("Dropout", &["x"], &["y", "m", "z"], vec![]), "3"),
        (node("Constant", &[], &["y", "z"], vec![number]), "2"),
        (node("Relu", &["x", "x"], &["y"], vec![]), "2"),
        (node("Add", &["x", "x", "x"], &["y"], vec![]), "3"),
    ];
    for (wrong, found) in wrong {
        let op = wrong.op_type.clone();
        let error = read(17, &[1, 2, 4, 4], vec![wrong], &["y"]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidFile, "{op}");
        let [part] = missing(&error) else {
            panic!("{error}")
        };
        assert_eq!(part.name, op);
        assert!(matches!(&part.source, OpError::Expected { found: f, .. } if f == found));
    }
}

#[test]
fn omitted_results_need_no_names() {
    let shape = AttributeProto {
        name: "kernel_shape".to_owned(),
        ints: vec![2, 2],
        r#type: 7,
        ..Default::default()
    };
    let right = [
        node("Transpose", &["x", ""], &["y", "", ""], vec![]),
        node("Dropout", &["x"], &["y", ""], vec![]),
        node("Dropout", &["x"], &["y", "m"], vec![]),
        node("MaxPool", &["x"], &["y", ""], vec![shape.clone()]),
        node("MaxPool", &["x"], &["y", "i"], vec![shape]),
        node("TopK", &["x", "one"], &["", "y"], vec![]),
        node(
            "LayerNormalization",
            &["x", "x"],
            &["y", "", "d"],
            vec![int("axis", 0)],
        ),
        node("Split", &["x"], &["", "y"], vec![int("axis", 1)]),
    ];
    for node in right {
        let op = node.op_type.clone();
        let one = AttributeProto {
            name: "value_ints".to_owned(),
            ints: vec![1],
            r#type: 7,
            ..Default::default()
        };
        let nodes = vec![self::node("Constant", &[], &["one"], vec![one]), node];
        let read = read(17, &[1, 2, 4, 4], nodes, &["y"]);
        assert!(read.is_ok(), "{op}: {}", read.unwrap_err().chain());
    }
}

mod replaced;

#[test]
fn nested_scales_are_of_a_k_quant() {
    let with = |bits, group, block| {
        let mut e0m = node("MatMulE0M", &["x", "x", "x"], &["y"], vec![]);
        e0m.domain = crate::graph::op::OWN_DOMAIN.to_owned();
        e0m.attribute = vec![
            int("bits", bits),
            int("group_size", group),
            int("scale_block", block),
        ];
        let graph = GraphProto {
            node: vec![e0m],
            input: vec![value("x", &[1, 256])],
            ..Default::default()
        };
        let opset_import = vec![OperatorSetIdProto {
            domain: crate::graph::op::OWN_DOMAIN.to_owned(),
            version: 1,
        }];
        let model = ModelProto {
            graph: Some(graph),
            opset_import,
            ..Default::default()
        };
        derived(&model).unwrap_err().chain().to_string()
    };
    // Other block sizes, a width that no K-quant has, and the group of another K-quant.
    for (bits, group, block) in [
        (4, 32, 128),
        (4, 32, -256),
        (8, 32, 256),
        (4, 16, 256),
        (6, 32, 256),
    ] {
        let e = with(bits, group, block);
        assert_carries(&e, &["MatMulE0M", "`scale_block`", &block.to_string()]);
    }
    assert!(!with(4, 32, 256).contains("scale_block"));
}
