//! Matmuls with constant weights in an imported graph, and the nodes that produce their inputs.

use std::sync::Arc;
use transformer_lite::unstable::graph::op::concat::Concat;
use transformer_lite::unstable::graph::op::matmul::MatMul;
use transformer_lite::unstable::graph::op::pointwise::{Binary, Expr, Pointwise};
use transformer_lite::unstable::graph::op::reshape::Reshape;
use transformer_lite::unstable::graph::op::transpose::Transpose;
use transformer_lite::unstable::graph::{Graph, Node, NodeId, ValueId};
use transformer_lite::unstable::tensor::HostTensor;

/// A matmul `x * w` with a constant matrix `w`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Product {
    /// Name of the constant.
    pub weight: String,
    /// Name of `x`.
    pub input: String,
    /// Name of the result.
    pub output: String,
    /// Rows of `w`, the elements of one row of `x`.
    pub k: usize,
    /// Columns of `w`.
    pub n: usize,
    /// `w` is the transpose of the constant.
    pub transposed: bool,
    node: NodeId,
    constant: ValueId,
    x: ValueId,
}

/// The producer of matmul inputs that can be divided by a scale per element at no cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Maker {
    /// It ends in a multiplication with a vector, or in a normalization with scale and bias. These
    /// are its constants.
    Vectors(Vec<String>),
    /// Its elements come one by one from the results of a matmul: directly, as a factor of an
    /// elementwise multiplication, or as values of an attention in which each head has its own.
    /// Holds the matmul's weight and the bias, if any.
    Columns {
        /// The weight whose columns are divided.
        weight: String,
        /// The bias.
        vectors: Vec<String>,
    },
}

/// Matmuls that read one value, and the producer of that value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fold {
    /// The value.
    pub input: String,
    /// Length of its rows.
    pub k: usize,
    /// Weights of all readers.
    pub weights: Vec<String>,
    /// The producer.
    pub maker: Maker,
}

/// A step on the path of values through an attention.
#[derive(Clone, Copy)]
enum Step {
    /// Elements are moved.
    Move,
    /// Values are multiplied by rows of probabilities.
    Mix,
    /// Values of earlier tokens are prepended along this axis.
    Append(i64),
}

/// All matmuls of a graph whose weights have no other reader, in node order.
#[derive(Debug)]
pub struct Products<'a> {
    graph: &'a Graph,
    consumers: Vec<Vec<NodeId>>,
    all: Vec<Product>,
}

fn operand(node: &Node, i: usize) -> Option<ValueId> {
    node.inputs.get(i).copied().flatten()
}

fn constant(graph: &Graph, v: ValueId) -> Option<&Arc<HostTensor>> {
    graph.value(v).fact.as_ref().and_then(|f| f.as_const())
}

impl<'a> Products<'a> {
    /// Finds the matmuls of an imported graph.
    pub fn of(graph: &'a Graph) -> Self {
        let mut found = Self {
            graph,
            consumers: graph.consumers(),
            all: Vec::new(),
        };
        let candidates: Vec<Product> = graph.nodes().filter_map(|(id, n)| found.product(id, n)).collect();
        found.all = candidates
            .iter()
            .filter(|p| found.is_read_by(p.constant, &candidates))
            .cloned()
            .collect();
        found
    }

    /// The matmuls.
    pub fn all(&self) -> &[Product] {
        &self.all
    }

    /// The matmuls with this weight.
    pub fn of_weight(&self, weight: &str) -> impl Iterator<Item = &Product> {
        self.all.iter().filter(move |p| p.weight == weight)
    }

    fn product(&self, node: NodeId, n: &Node) -> Option<Product> {
        n.op.downcast::<MatMul>().filter(|op| !op.trans_b)?;
        let (x, w, node_outputs) = (operand(n, 0)?, operand(n, 1)?, &n.outputs);
        let (id, transposed) = match self.graph.producer(w) {
            Some((_, t)) => {
                let axes = t.op.downcast::<Transpose>()?.axes(2).ok()?;
                (operand(t, 0).filter(|_| axes == [1, 0])?, true)
            }
            None => (w, false),
        };
        let [rows, columns] = constant(self.graph, id)?.shape() else {
            return None;
        };
        let (k, n) = if transposed {
            (*columns, *rows)
        } else {
            (*rows, *columns)
        };
        let name = |v: ValueId| self.graph.value(v).name.clone();
        let output = name(*node_outputs.first()?);
        // A matmul of a constant does not depend on the model's inputs.
        constant(self.graph, x).is_none().then_some(Product {
            weight: name(id),
            input: name(x),
            output,
            k,
            n,
            transposed,
            node,
            constant: id,
            x,
        })
    }

    /// True if only these matmuls read `v`, directly or through transposes.
    fn is_read_by(&self, v: ValueId, products: &[Product]) -> bool {
        !self.graph.is_kept(v)
            && self.consumers[v.index()].iter().all(|id| {
                let is_product = products.iter().any(|p| p.node == *id && p.x != v);
                let transposed = self
                    .graph
                    .node(*id)
                    .filter(|n| n.op.downcast::<Transpose>().is_some());
                is_product
                    || transposed.is_some_and(|n| n.outputs.iter().all(|o| self.is_read_by(*o, products)))
            })
    }

    /// The only reader of `v`; `None` if `v` is an output.
    fn reader(&self, v: ValueId) -> Option<NodeId> {
        match self.consumers[v.index()].as_slice() {
            [one] if !self.graph.is_kept(v) => Some(*one),
            _ => None,
        }
    }

    /// The name of a constant of `k` elements along its last axis with a single reader.
    fn vector(&self, v: ValueId, k: usize) -> Option<String> {
        let t = constant(self.graph, v)?;
        let fits = t.len() == k && t.shape().last() == Some(&k) && t.dtype().is_float();
        (fits && self.reader(v).is_some()).then(|| self.graph.value(v).name.clone())
    }

    /// Inputs that their producer can divide, since only matmuls read them.
    pub fn folds(&self) -> Vec<Fold> {
        let mut out: Vec<Fold> = Vec::new();
        for p in &self.all {
            if out.iter().any(|f| f.input == p.input) {
                continue;
            }
            let readers: Vec<&Product> = self.all.iter().filter(|o| o.x == p.x).collect();
            let only_products =
                self.consumers[p.x.index()].len() == readers.len() && !self.graph.is_kept(p.x);
            let alone = readers.iter().all(|r| self.of_weight(&r.weight).count() == 1);
            if let Some(maker) = self.maker(p.x, p.k).filter(|_| only_products && alone) {
                out.push(Fold {
                    input: p.input.clone(),
                    k: p.k,
                    weights: readers.iter().map(|r| r.weight.clone()).collect(),
                    maker,
                });
            }
        }
        out
    }

    fn maker(&self, x: ValueId, k: usize) -> Option<Maker> {
        if let Some(maker) = self.attended(x, k) {
            return Some(maker);
        }
        let (_, node) = self.graph.producer(x)?;
        if matches!(node.op.name(), "RMSNormalization" | "LayerNormalization") {
            let given = node.inputs.iter().skip(1).flatten();
            let vectors: Option<Vec<String>> = given.map(|v| self.vector(*v, k)).collect();
            return vectors.filter(|v| !v.is_empty()).map(Maker::Vectors);
        }
        let [a, b] = self.factors(node, Binary::Mul)?;
        if let Some(name) = self.vector(a, k).or_else(|| self.vector(b, k)) {
            return Some(Maker::Vectors(vec![name]));
        }
        [a, b].into_iter().find_map(|v| self.columns(v, k))
    }

    /// Operands of a plain binary function.
    fn factors(&self, node: &Node, f: Binary) -> Option<[ValueId; 2]> {
        match &node.op.downcast::<Pointwise>()?.expr {
            Expr::Binary(h, a, b) if *h == f && **a == Expr::Input(0) && **b == Expr::Input(1) => {
                Some([operand(node, 0)?, operand(node, 1)?])
            }
            _ => None,
        }
    }

    /// The weight whose columns are the values of the attention that makes `x`, if each channel of
    /// `x` is a mean of that channel over several tokens. The cache then holds divided values, too.
    fn attended(&self, x: ValueId, k: usize) -> Option<Maker> {
        // Against the data flow: moves, the matmul of probabilities and values, moves and the
        // cache.
        let (mut path, mut at, mut mixed) = (Vec::new(), x, false);
        while let Some((id, node)) = self.graph.producer(at) {
            let op = &node.op;
            let moves = op.downcast::<Reshape>().is_some() || op.downcast::<Transpose>().is_some();
            let from_input = || operand(node, 0).is_some_and(|v| self.graph.inputs().contains(&v));
            let step = if moves {
                Step::Move
            } else if !mixed && op.downcast::<MatMul>().is_some_and(|m| !m.trans_b) {
                mixed = true;
                Step::Mix
            } else if let Some(c) = op.downcast::<Concat>()
                && mixed
                && node.inputs.len() == 2
                && from_input()
            {
                Step::Append(c.axis)
            } else {
                break;
            };
            // Only the path reads the values; the next step's past is the exception.
            let read_once = at == x || self.readers_of_elements(at) == 1;
            let kept = self.graph.is_kept(at) && !matches!(step, Step::Append(_));
            if !read_once || kept {
                return None;
            }
            let which = usize::from(!matches!(step, Step::Move));
            at = operand(node, which)?;
            path.push((id, step));
        }
        let maker = if mixed { self.columns(at, k) } else { None }?;
        path.reverse();
        self.keeps_channels(&path, k).then_some(maker)
    }

    /// Number of nodes that read the elements of `v`, not just its shape.
    fn readers_of_elements(&self, v: ValueId) -> usize {
        let reads = |id: &&NodeId| {
            let inputs = self
                .graph
                .node(**id)
                .map(|n| (&n.op, n.inputs.iter().enumerate()));
            inputs.is_some_and(|(op, mut all)| all.any(|(i, o)| *o == Some(v) && op.reads(i)))
        };
        self.consumers[v.index()].iter().filter(reads).count()
    }

    /// True if the steps return each channel of each token to its own place when each token attends
    /// only to itself.
    fn keeps_channels(&self, path: &[(NodeId, Step)], k: usize) -> bool {
        // Differs from usual head counts, so that tokens are not mistaken for heads.
        const TOKENS: usize = 7;
        #[expect(clippy::cast_precision_loss, reason = "numbers that single precision holds")]
        let labels: Vec<f32> = (0..TOKENS * k).map(|i| i as f32).collect();
        let run = || -> Option<HostTensor> {
            let mut t = HostTensor::from_f32(&[1, TOKENS, k], &labels).ok()?;
            for (id, step) in path {
                let node = self.graph.node(*id)?;
                match step {
                    Step::Move => {
                        let constants = node.inputs.iter().skip(1).map(|v| constant(self.graph, (*v)?));
                        let constants: Option<Vec<_>> = constants.collect();
                        let mut inputs = vec![Some(&t)];
                        inputs.extend(constants?.into_iter().map(|c| Some(&**c)));
                        t = node.op.run(&inputs).ok()?.into_iter().next()?;
                    }
                    Step::Mix => {
                        let rows = t.shape().len().checked_sub(2)?;
                        (t.shape().get(rows) == Some(&TOKENS)).then_some(())?;
                    }
                    Step::Append(axis) => {
                        let axis =
                            transformer_lite::unstable::graph::op::axis(*axis, t.shape().len()).ok()?;
                        (t.shape().get(axis) == Some(&TOKENS)).then_some(())?;
                    }
                }
            }
            Some(t)
        };
        run().is_some_and(|t| t.shape() == [1, TOKENS, k] && t.to_f32().is_ok_and(|found| *found == *labels))
    }

    /// The weight whose columns are the columns of `v`; `v` must have a single reader.
    fn columns(&self, v: ValueId, k: usize) -> Option<Maker> {
        self.reader(v)?;
        let (id, node) = self.graph.producer(v)?;
        let product = |id: NodeId| {
            let p = self.all.iter().find(|p| p.node == id && p.n == k)?;
            (self.of_weight(&p.weight).count() == 1).then(|| p.weight.clone())
        };
        if let Some(weight) = product(id) {
            return Some(Maker::Columns {
                weight,
                vectors: Vec::new(),
            });
        }
        let [a, b] = self.factors(node, Binary::Add)?;
        let (sum, bias) = match (self.vector(a, k), self.vector(b, k)) {
            (None, Some(bias)) => (a, bias),
            (Some(bias), None) => (b, bias),
            _ => return None,
        };
        self.reader(sum)?;
        let (id, _) = self.graph.producer(sum)?;
        Some(Maker::Columns {
            weight: product(id)?,
            vectors: vec![bias],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use transformer_lite::unstable::error::Stage;
    use transformer_lite::unstable::graph::onnx::import;
    use transformer_lite::unstable::graph::onnx::write::{Attr, ModelWriter, NodeSpec};
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

        fn with(
            &mut self,
            op: &str,
            inputs: &[&str],
            output: &str,
            attributes: &[(&str, Attr)],
        ) -> &mut Self {
            self.out
                .add_node(NodeSpec {
                    domain: "",
                    op,
                    name: output,
                    inputs,
                    outputs: &[output],
                    attributes,
                })
                .unwrap();
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
                maker: Maker::Vectors(vectors.into_iter().map(str::to_owned).collect()),
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
            assert_eq!(found[0].maker, Maker::Columns { weight, vectors });
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
        let wanted = Maker::Columns {
            weight: "v".to_owned(),
            vectors: vec!["c".to_owned()],
        };
        assert_eq!(found[0].maker, wanted);
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
}
