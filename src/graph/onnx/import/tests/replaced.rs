//! Parts of a model that become nodes at import: functions, sequences, sparse tensors.

use super::*;
use crate::graph::interp::Interpreter;
use crate::graph::onnx::proto::{FunctionProto, SparseTensorProto, TensorProto};

fn float(name: &str, f: f32) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        f,
        r#type: 1,
        ..Default::default()
    }
}

fn reference(name: &str, of: &str, r#type: i32) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        ref_attr_name: of.to_owned(),
        r#type,
        ..Default::default()
    }
}

fn graph_attribute(name: &str, g: GraphProto) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        g: Some(g),
        r#type: 5,
        ..Default::default()
    }
}

fn local(mut call: NodeProto) -> NodeProto {
    call.domain = "local".to_owned();
    call
}

fn named(name: &str) -> ValueInfoProto {
    ValueInfoProto {
        name: name.to_owned(),
        r#type: None,
    }
}

fn versions() -> Vec<OperatorSetIdProto> {
    let of = |(domain, version): (&str, i64)| OperatorSetIdProto {
        domain: domain.to_owned(),
        version,
    };
    [("", 17), ("local", 1)].map(of).to_vec()
}

fn function(name: &str, inputs: &[&str], outputs: &[&str], node: Vec<NodeProto>) -> FunctionProto {
    let names = |list: &[&str]| list.iter().map(|n| (*n).to_owned()).collect();
    FunctionProto {
        name: name.to_owned(),
        domain: "local".to_owned(),
        input: names(inputs),
        output: names(outputs),
        node,
        opset_import: versions(),
        ..Default::default()
    }
}

/// Reads a model and runs it with `x`, the numbers 0, 1, ... in `sizes`.
fn results(
    sizes: &[i64],
    graph: GraphProto,
    functions: Vec<FunctionProto>,
) -> Result<Vec<(Vec<usize>, Vec<f32>)>> {
    let model = ModelProto {
        graph: Some(GraphProto {
            input: vec![value("x", sizes)],
            ..graph
        }),
        opset_import: versions(),
        functions,
        ..Default::default()
    };
    let graph = derived(&model)?;
    let shape: Vec<usize> = sizes.iter().map(|n| usize::try_from(*n).unwrap()).collect();
    let data: Vec<f32> = (0u8..).map(f32::from).take(shape.iter().product()).collect();
    let x = HostTensor::from_f32(&shape, &data).unwrap();
    let (x_id, outputs) = (graph.input("x").unwrap(), graph.outputs().to_vec());
    let found = Interpreter::new(Arc::new(graph))?.run(HashMap::from([(x_id, x)]))?;
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let elements = |t: &HostTensor| match t.to_f32() {
        Ok(floats) => floats.into_owned(),
        Err(_) => t.to_i64().unwrap().into_iter().map(|v| v as f32).collect(),
    };
    let one = |v: &ValueId| (found[v].shape().to_vec(), elements(&found[v]));
    Ok(outputs.iter().map(one).collect())
}

fn of_nodes(sizes: &[i64], node: Vec<NodeProto>, outputs: &[&str]) -> Result<Vec<(Vec<usize>, Vec<f32>)>> {
    let graph = GraphProto {
        node,
        output: outputs.iter().map(|n| named(n)).collect(),
        ..Default::default()
    };
    results(sizes, graph, Vec::new())
}

fn constant(name: &str, list: &[i64]) -> NodeProto {
    let attribute = AttributeProto {
        name: "value_ints".to_owned(),
        ints: list.to_vec(),
        r#type: 7,
        ..Default::default()
    };
    node("Constant", &[], &[name], vec![attribute])
}

#[test]
fn functions_take_the_place_of_calls() {
    let add = vec![
        node("Constant", &[], &["c"], vec![reference("value_float", "by", 1)]),
        node("Add", &["a", "c"], &["b"], vec![]),
    ];
    let mut add = function("plus", &["a"], &["b"], add);
    add.attribute = vec!["by".to_owned()];
    let outer = vec![
        local(node("plus", &["x"], &["c"], vec![reference("by", "shift", 1)])),
        node("LeakyRelu", &["c"], &["y"], vec![reference("alpha", "slope", 1)]),
    ];
    let mut outer = function("outer", &["x", "none"], &["y", "c"], outer);
    outer.attribute = vec!["shift".to_owned()];
    outer.attribute_proto = vec![float("slope", 0.5)];
    let graph = GraphProto {
        node: vec![
            local(node("outer", &["x"], &["a"], vec![float("shift", -1.0)])),
            local(node(
                "outer",
                &["x"],
                &["", "b"],
                vec![float("shift", 2.0), float("slope", 0.25)],
            )),
        ],
        output: vec![named("a"), named("b")],
        ..Default::default()
    };
    let found = results(&[2], graph.clone(), vec![add.clone(), outer.clone()]).unwrap();
    assert_eq!(found, [(vec![2], vec![-0.5, 0.0]), (vec![2], vec![2.0, 3.0])]);

    let call = local(node("plus", &["a"], &["b"], vec![reference("by", "by", 1)]));
    let mut own = function("plus", &["a"], &["b"], vec![call]);
    own.attribute = vec!["by".to_owned()];
    let error = results(&[2], graph, vec![own, outer]).unwrap_err();
    assert_eq!(
        error.kind(),
        ErrorKind::Unsupported,
        "a function that calls itself"
    );
    assert_carries(error.chain(), &["plus", "recursive"]);
}

/// A name inside a branch of a function is not that of a value of the caller.
#[test]
fn names_in_graphs_of_functions_are_their_own() {
    let branch = |value: f32| GraphProto {
        node: vec![
            node("Constant", &[], &["tmp"], vec![float("value_float", value)]),
            node("Add", &["tmp", "a"], &["sum"], vec![]),
        ],
        output: vec![named("sum")],
        ..Default::default()
    };
    let branches = vec![
        graph_attribute("then_branch", branch(1.0)),
        graph_attribute("else_branch", branch(2.0)),
    ];
    let nodes = vec![
        node("ReduceSum", &["a"], &["all"], vec![int("keepdims", 0)]),
        node("Cast", &["all"], &["c"], vec![int("to", 9)]),
        node("If", &["c"], &["y"], branches),
    ];
    let graph = GraphProto {
        node: vec![
            node("Neg", &["x"], &["tmp"], vec![]),
            local(node("choose", &["tmp"], &["y"], vec![])),
        ],
        output: vec![named("y")],
        ..Default::default()
    };
    let choose = function("choose", &["a"], &["y"], nodes);
    let found = results(&[3], graph.clone(), vec![choose]).unwrap();
    assert_eq!(found, [(vec![3], vec![1.0, 0.0, -1.0])]);

    let outside = function(
        "choose",
        &["a"],
        &["y"],
        vec![node("Add", &["a", "x"], &["y"], vec![])],
    );
    let error = results(&[3], graph, vec![outside]).unwrap_err();
    assert_carries(error.chain(), &["choose#1/x"]);
}

#[test]
fn sequences_are_lists_of_values() {
    let axis = |name: &str| int(name, 1);
    let nodes = vec![
        constant("sizes", &[1, 3]),
        constant("last", &[-1]),
        node("SplitToSequence", &["x", "sizes"], &["s"], vec![axis("axis")]),
        node("SequenceInsert", &["s", "x"], &["t"], vec![]),
        node("SequenceErase", &["t", "last"], &["u"], vec![]),
        node("SequenceAt", &["u", "last"], &["y"], vec![]),
        node("ConcatFromSequence", &["t"], &["z"], vec![axis("axis")]),
        node("SequenceLength", &["t"], &["n"], vec![]),
        node("SplitToSequence", &["x"], &["rows"], vec![int("keepdims", 0)]),
        node("SequenceAt", &["rows", "n"], &["row"], vec![]),
    ];
    let found = of_nodes(&[4, 4], nodes, &["y", "z", "n", "row"]).unwrap();
    assert_eq!(found[0].0, [4, 3]);
    assert_eq!(found[0].1[..3], [1.0, 2.0, 3.0]);
    assert_eq!(found[1].0, [4, 8]);
    assert_eq!(found[2], (vec![], vec![3.0]));
    assert_eq!(found[3], (vec![4], vec![12.0, 13.0, 14.0, 15.0]));
}

#[test]
fn optionals_hold_a_tensor_or_nothing() {
    let nodes = vec![
        node("Optional", &["x"], &["o"], vec![]),
        node("OptionalHasElement", &["o"], &["has"], vec![]),
        node("OptionalGetElement", &["o"], &["y"], vec![]),
        node("Optional", &[], &["empty"], vec![]),
        node("OptionalHasElement", &["empty"], &["none"], vec![]),
    ];
    let found = of_nodes(&[2], nodes, &["has", "y", "none"]).unwrap();
    assert_eq!(
        found,
        [
            (vec![], vec![1.0]),
            (vec![2], vec![0.0, 1.0]),
            (vec![], vec![0.0])
        ]
    );
}

/// A loop over the rows of x that appends each to a sequence.
fn collecting(inner: Vec<NodeProto>) -> Vec<NodeProto> {
    let body = GraphProto {
        node: inner,
        input: ["i", "c", "s"].map(named).to_vec(),
        output: ["c2", "t"].map(named).to_vec(),
        ..Default::default()
    };
    vec![
        constant("n", &[3]),
        node("SequenceEmpty", &[], &["e"], vec![]),
        node(
            "Loop",
            &["n", "", "e"],
            &["q"],
            vec![graph_attribute("body", body)],
        ),
        node(
            "ConcatFromSequence",
            &["q"],
            &["y"],
            vec![int("axis", 0), int("new_axis", 1)],
        ),
        node("ConcatFromSequence", &["q"], &["z"], vec![int("axis", 0)]),
    ]
}

#[test]
fn loops_collect_sequences() {
    let condition = node("Identity", &["c"], &["c2"], vec![]);
    let row = node("Gather", &["x", "i"], &["g"], vec![]);
    let append = node("SequenceInsert", &["s", "g"], &["t"], vec![]);
    let found = of_nodes(
        &[3, 2],
        collecting(vec![condition.clone(), row.clone(), append]),
        &["y", "z"],
    )
    .unwrap();
    let rows: Vec<f32> = (0u8..6).map(f32::from).collect();
    assert_eq!(found, [(vec![3, 2], rows.clone()), (vec![6], rows)]);

    let first = constant("first", &[0]);
    let append = node("SequenceInsert", &["s", "g", "first"], &["t"], vec![]);
    let error = of_nodes(&[3, 2], collecting(vec![condition, row, first, append]), &["y"]).unwrap_err();
    assert_carries(error.chain(), &["Loop", "sequence"]);
}

#[test]
fn sparse_tensors_are_filled_with_zeros() {
    let sparse = |at: Vec<i64>, by: i64| SparseTensorProto {
        values: Some(TensorProto {
            dims: vec![2],
            data_type: 1,
            float_data: vec![5.0, 7.0],
            name: "w".to_owned(),
            ..Default::default()
        }),
        indices: Some(TensorProto {
            dims: if by == 1 { vec![2] } else { vec![2, by] },
            data_type: 7,
            int64_data: at,
            ..Default::default()
        }),
        dims: vec![2, 3],
    };
    let sum = |sparse| {
        let graph = GraphProto {
            node: vec![node("Add", &["x", "w"], &["y"], vec![])],
            output: vec![named("y")],
            sparse_initializer: vec![sparse],
            ..Default::default()
        };
        results(&[2, 3], graph, Vec::new())
    };
    let expected = [0.0, 6.0, 2.0, 3.0, 4.0, 12.0];
    for sparse in [sparse(vec![1, 5], 1), sparse(vec![0, 1, 1, 2], 2)] {
        assert_eq!(sum(sparse).unwrap()[0].1, expected);
    }
    for sparse in [
        sparse(vec![1, 6], 1),
        sparse(vec![0, 1, 2, 0], 2),
        sparse(vec![-1, 0], 1),
        sparse(vec![1], 1),
    ] {
        assert_carries(sum(sparse).unwrap_err().chain(), &["w", "sparse"]);
    }
}
