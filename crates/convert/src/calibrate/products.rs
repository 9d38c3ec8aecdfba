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
pub(super) struct Product {
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
pub(super) enum Producer {
    /// It ends in a multiplication with a vector, or in a normalization with scale and bias. These
    /// are its constants.
    Vectors(Vec<String>),
    /// Its elements come one by one from the results of a matmul: directly, as a factor of an
    /// elementwise multiplication, or as values of an attention in which each head has its own.
    /// Holds the matmul's weight and the bias, if any.
    Columns {
        /// The weight whose columns are divided.
        weight: String,
        vectors: Vec<String>,
    },
}

/// Matmuls that read one value, and the producer of that value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fold {
    pub input: String,
    /// Length of its rows.
    pub k: usize,
    /// Weights of all readers.
    pub weights: Vec<String>,
    pub producer: Producer,
}

/// A step on the path of values through an attention.
#[derive(Clone, Copy)]
enum PathStep {
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

    pub(super) fn all(&self) -> &[Product] {
        &self.all
    }

    /// The matmuls with this weight.
    pub(super) fn of_weight(&self, weight: &str) -> impl Iterator<Item = &Product> {
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
    pub(super) fn folds(&self) -> Vec<Fold> {
        let mut out: Vec<Fold> = Vec::new();
        for p in &self.all {
            if out.iter().any(|f| f.input == p.input) {
                continue;
            }
            let readers: Vec<&Product> = self.all.iter().filter(|o| o.x == p.x).collect();
            let only_products =
                self.consumers[p.x.index()].len() == readers.len() && !self.graph.is_kept(p.x);
            let alone = readers.iter().all(|r| self.of_weight(&r.weight).count() == 1);
            if let Some(producer) = self.producer(p.x, p.k).filter(|_| only_products && alone) {
                out.push(Fold {
                    input: p.input.clone(),
                    k: p.k,
                    weights: readers.iter().map(|r| r.weight.clone()).collect(),
                    producer,
                });
            }
        }
        out
    }

    fn producer(&self, x: ValueId, k: usize) -> Option<Producer> {
        if let Some(producer) = self.attended(x, k) {
            return Some(producer);
        }
        let (_, node) = self.graph.producer(x)?;
        if matches!(node.op.name(), "RMSNormalization" | "LayerNormalization") {
            let given = node.inputs.iter().skip(1).flatten();
            let vectors: Option<Vec<String>> = given.map(|v| self.vector(*v, k)).collect();
            return vectors.filter(|v| !v.is_empty()).map(Producer::Vectors);
        }
        let [a, b] = self.factors(node, Binary::Mul)?;
        if let Some(name) = self.vector(a, k).or_else(|| self.vector(b, k)) {
            return Some(Producer::Vectors(vec![name]));
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
    fn attended(&self, x: ValueId, k: usize) -> Option<Producer> {
        // Against the data flow: moves, the matmul of probabilities and values, moves and the
        // cache.
        let (mut path, mut at, mut mixed) = (Vec::new(), x, false);
        while let Some((id, node)) = self.graph.producer(at) {
            let op = &node.op;
            let moves = op.downcast::<Reshape>().is_some() || op.downcast::<Transpose>().is_some();
            let from_input = || operand(node, 0).is_some_and(|v| self.graph.inputs().contains(&v));
            let step = if moves {
                PathStep::Move
            } else if !mixed && op.downcast::<MatMul>().is_some_and(|m| !m.trans_b) {
                mixed = true;
                PathStep::Mix
            } else if let Some(c) = op.downcast::<Concat>()
                && mixed
                && node.inputs.len() == 2
                && from_input()
            {
                PathStep::Append(c.axis)
            } else {
                break;
            };
            // Only the path reads the values; the next step's past is the exception.
            let read_once = at == x || self.readers_of_elements(at) == 1;
            let kept = self.graph.is_kept(at) && !matches!(step, PathStep::Append(_));
            if !read_once || kept {
                return None;
            }
            let which = usize::from(!matches!(step, PathStep::Move));
            at = operand(node, which)?;
            path.push((id, step));
        }
        let producer = if mixed { self.columns(at, k) } else { None }?;
        path.reverse();
        self.keeps_channels(&path, k).then_some(producer)
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
    fn keeps_channels(&self, path: &[(NodeId, PathStep)], k: usize) -> bool {
        // Differs from usual head counts, so that tokens are not mistaken for heads.
        const TOKENS: usize = 7;
        #[expect(clippy::cast_precision_loss, reason = "numbers that single precision holds")]
        let labels: Vec<f32> = (0..TOKENS * k).map(|i| i as f32).collect();
        let run = || -> Option<HostTensor> {
            let mut t = HostTensor::from_f32(&[1, TOKENS, k], &labels).ok()?;
            for (id, step) in path {
                let node = self.graph.node(*id)?;
                match step {
                    PathStep::Move => {
                        let constants = node.inputs.iter().skip(1).map(|v| constant(self.graph, (*v)?));
                        let constants: Option<Vec<_>> = constants.collect();
                        let mut inputs = vec![Some(&t)];
                        inputs.extend(constants?.into_iter().map(|c| Some(&**c)));
                        t = node.op.run(&inputs).ok()?.into_iter().next()?;
                    }
                    PathStep::Mix => {
                        let rows = t.shape().len().checked_sub(2)?;
                        (t.shape().get(rows) == Some(&TOKENS)).then_some(())?;
                    }
                    PathStep::Append(axis) => {
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
    fn columns(&self, v: ValueId, k: usize) -> Option<Producer> {
        self.reader(v)?;
        let (id, node) = self.graph.producer(v)?;
        let product = |id: NodeId| {
            let p = self.all.iter().find(|p| p.node == id && p.n == k)?;
            (self.of_weight(&p.weight).count() == 1).then(|| p.weight.clone())
        };
        if let Some(weight) = product(id) {
            return Some(Producer::Columns {
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
        Some(Producer::Columns {
            weight: product(id)?,
            vectors: vec![bias],
        })
    }
}

#[cfg(test)]
mod tests;
