use super::*;
use crate::calibrate::tests::node;
use transformer_lite::unstable::error::Stage;
use transformer_lite::unstable::graph::onnx::import;
use transformer_lite::unstable::graph::onnx::write::{Attr, ModelWriter};
use transformer_lite::unstable::tensor::DType;

struct Model {
    dir: tempfile::TempDir,
    out: ModelWriter,
}

impl Model {
    /// With an input `x` of rows of 8 and an output `y`.
    fn new(width: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut out = ModelWriter::create(Stage::Convert, dir.path(), "m.onnx", "g").unwrap();
        out.opset("", 23);
        out.add_input("x", DType::F32, &["n".into(), 8.into()]).unwrap();
        out.add_output("y", DType::F32, &["n".into(), width.into()])
            .unwrap();
        Self { dir, out }
    }

    fn constant(&mut self, name: &str, shape: &[usize]) -> &mut Self {
        let data: Vec<f32> = (0..shape.iter().product()).map(|i| 1.0 + i as f32).collect();
        let tensor = HostTensor::from_f32(shape, &data).unwrap();
        self.out.add_initializer(name, &tensor).unwrap();
        self
    }

    fn node(&mut self, op: &str, inputs: &[&str], output: &str) -> &mut Self {
        let perm = [("perm", Attr::Ints(vec![1, 0]))];
        let attributes = if op == "Transpose" { &perm[..] } else { &[] };
        self.with(op, inputs, output, attributes)
    }

    fn with(&mut self, op: &str, inputs: &[&str], output: &str, attributes: &[(&str, Attr)]) -> &mut Self {
        node(&mut self.out, op, inputs, output, attributes);
        self
    }

    fn graph(self) -> Graph {
        self.out.finish().unwrap();
        import(&self.dir.path().join("m.onnx")).unwrap()
    }
}

fn fold(graph: &Graph) -> Vec<Fold> {
    Products::of(graph).folds()
}

#[test]
fn weights_are_found_as_they_lie_and_transposed() {
    let mut m = Model::new(4);
    m.constant("a", &[8, 6]).constant("b", &[4, 6]);
    m.node("MatMul", &["x", "a"], "h")
        .node("Transpose", &["b"], "bt")
        .node("MatMul", &["h", "bt"], "y");
    let graph = m.graph();
    let products = Products::of(&graph);
    let found: Vec<_> = products
        .all()
        .iter()
        .map(|p| {
            (
                p.weight.as_str(),
                p.input.as_str(),
                p.output.as_str(),
                p.k,
                p.n,
                p.transposed,
            )
        })
        .collect();
    assert_eq!(found, [("a", "x", "h", 8, 6, false), ("b", "h", "y", 6, 4, true)]);
}

#[test]
fn weights_that_something_else_reads_are_left_out() {
    for op in ["Gather", "Add"] {
        let mut m = Model::new(8);
        m.constant("a", &[8, 8]);
        m.node("MatMul", &["x", "a"], "h");
        if op == "Add" {
            m.node("Add", &["h", "a"], "y");
        } else {
            let index = HostTensor::from_i64(&[1], &[2]).unwrap();
            m.out.add_constant("i", &index).unwrap();
            m.node("Gather", &["a", "i"], "row")
                .node("Add", &["h", "row"], "y");
        }
        assert!(Products::of(&m.graph()).all().is_empty(), "{op}");
    }
    // Its result times itself is a product of what is no constant.
    let mut m = Model::new(8);
    m.constant("a", &[8, 8]);
    m.node("MatMul", &["x", "a"], "h")
        .node("Transpose", &["h"], "t")
        .node("MatMul", &["h", "t"], "y");
    assert_eq!(Products::of(&m.graph()).all().len(), 1);
}

#[test]
fn a_norm_can_divide_what_it_makes() {
    for op in ["Mul", "RMSNormalization", "LayerNormalization"] {
        let mut m = Model::new(4);
        m.constant("g", &[8])
            .constant("bias", &[8])
            .constant("a", &[8, 4])
            .constant("b", &[8, 4]);
        match op {
            "Mul" => m.node("Mul", &["g", "x"], "h"),
            "RMSNormalization" => m.node(op, &["x", "g"], "h"),
            _ => m.node(op, &["x", "g", "bias"], "h"),
        };
        m.node("MatMul", &["h", "a"], "p")
            .node("MatMul", &["h", "b"], "q")
            .node("Add", &["p", "q"], "y");
        let vectors = if op == "LayerNormalization" {
            vec!["g", "bias"]
        } else {
            vec!["g"]
        };
        let wanted = Fold {
            input: "h".to_owned(),
            k: 8,
            weights: vec!["a".to_owned(), "b".to_owned()],
            producer: Producer::Vectors(vectors.into_iter().map(str::to_owned).collect()),
        };
        assert_eq!(fold(&m.graph()), [wanted], "{op}");
    }
}

#[test]
fn columns_of_the_weight_before_can_be_divided() {
    for bias in [false, true] {
        let mut m = Model::new(4);
        m.constant("gate", &[8, 6])
            .constant("up", &[8, 6])
            .constant("c", &[6])
            .constant("down", &[6, 4]);
        m.node("MatMul", &["x", "gate"], "g").node("Sigmoid", &["g"], "s");
        m.node("MatMul", &["x", "up"], "u");
        if bias {
            m.node("Add", &["u", "c"], "v").node("Mul", &["s", "v"], "h");
        } else {
            m.node("Mul", &["s", "u"], "h");
        }
        m.node("MatMul", &["h", "down"], "y");
        let found = fold(&m.graph());
        let vectors = if bias { vec!["c".to_owned()] } else { vec![] };
        assert_eq!(found.len(), 1);
        let weight = "up".to_owned();
        assert_eq!(found[0].producer, Producer::Columns { weight, vectors });
        assert_eq!(
            (found[0].input.as_str(), found[0].weights[0].as_str()),
            ("h", "down")
        );
    }
}

#[test]
fn what_something_else_reads_is_not_divided() {
    // The input of the product is added again; the vector, or the factor, has a second reader.
    for (op, second) in [("h", "h"), ("g", "g"), ("u", "u")] {
        let mut m = Model::new(8);
        m.constant("g", &[8])
            .constant("up", &[8, 8])
            .constant("a", &[8, 8]);
        if op == "u" {
            m.node("Sigmoid", &["x"], "s")
                .node("MatMul", &["x", "up"], "u")
                .node("Mul", &["s", "u"], "h");
        } else {
            m.node("Mul", &["x", "g"], "h");
        }
        m.node("MatMul", &["h", "a"], "p")
            .node("Add", &["p", second], "y");
        assert!(fold(&m.graph()).is_empty(), "{op}");
    }
}

/// Values `v` of `kv` heads of `dim` from `x`, mixed by probabilities of `heads` heads, and a
/// product with `o`. `perm` is that behind the mixing.
fn attention(heads: usize, kv: usize, dim: usize, perm: [i64; 4]) -> Graph {
    let dir = tempfile::tempdir().unwrap();
    let mut out = ModelWriter::create(Stage::Convert, dir.path(), "m.onnx", "g").unwrap();
    out.opset("", 18);
    let cache = |length: &str| [1.into(), kv.into(), length.into(), dim.into()];
    out.add_input("x", DType::F32, &[1.into(), "s".into(), 8.into()])
        .unwrap();
    out.add_input("past", DType::F32, &cache("p")).unwrap();
    let shape = [1.into(), heads.into(), "s".into(), "p + s".into()];
    out.add_input("probabilities", DType::F32, &shape).unwrap();
    out.add_output("present", DType::F32, &cache("p + s")).unwrap();
    out.add_output("y", DType::F32, &[1.into(), "s".into(), 6.into()])
        .unwrap();
    let mut m = Model { dir, out };
    m.constant("v", &[8, kv * dim])
        .constant("c", &[kv * dim])
        .constant("o", &[heads * dim, 6]);
    let int = |i: usize| i64::try_from(i).unwrap();
    let repeat = heads / kv;
    for (name, list) in [
        ("split", vec![0, 0, int(kv), int(dim)]),
        ("third", vec![2]),
        ("repeat", vec![1, 1, int(repeat), 1, 1]),
        ("heads", vec![0, int(heads), -1, int(dim)]),
        ("merged", vec![0, 0, int(heads * dim)]),
    ] {
        let t = HostTensor::from_i64(&[list.len()], &list).unwrap();
        m.out.add_constant(name, &t).unwrap();
    }
    m.node("MatMul", &["x", "v"], "a").node("Add", &["a", "c"], "b");
    m.node("Reshape", &["b", "split"], "d");
    let swap = |perm: [i64; 4]| [("perm", Attr::Ints(perm.to_vec()))];
    m.with("Transpose", &["d"], "e", &swap([0, 2, 1, 3]));
    m.with("Concat", &["past", "e"], "present", &[("axis", Attr::Int(2))]);
    let mut values = "present";
    if repeat > 1 {
        m.node("Unsqueeze", &["present", "third"], "wide")
            .node("Tile", &["wide", "repeat"], "all");
        m.node("Reshape", &["all", "heads"], "values");
        values = "values";
    }
    m.node("MatMul", &["probabilities", values], "mixed");
    m.with("Transpose", &["mixed"], "turned", &swap(perm));
    m.node("Reshape", &["turned", "merged"], "joined")
        .node("MatMul", &["joined", "o"], "y");
    m.graph()
}

#[test]
fn values_of_heads_of_their_own_can_be_divided() {
    let found = fold(&attention(2, 2, 4, [0, 2, 1, 3]));
    assert_eq!(found.len(), 1);
    assert_eq!(
        (found[0].input.as_str(), found[0].weights.as_slice()),
        ("joined", &["o".to_owned()][..])
    );
    let wanted = Producer::Columns {
        weight: "v".to_owned(),
        vectors: vec!["c".to_owned()],
    };
    assert_eq!(found[0].producer, wanted);
    // Heads that share values; results in which heads and channels, or tokens, change places.
    for (heads, kv, dim, perm) in [
        (4, 2, 4, [0, 2, 1, 3]),
        (2, 2, 4, [0, 2, 3, 1]),
        (2, 2, 4, [0, 1, 2, 3]),
        (7, 7, 7, [0, 3, 1, 2]),
    ] {
        assert!(
            fold(&attention(heads, kv, dim, perm)).is_empty(),
            "{heads} {kv} {perm:?}"
        );
    }
}
