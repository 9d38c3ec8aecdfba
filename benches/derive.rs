//! Shape derivation of a decoder of the size of a 7B model, and decisions under constraints.
//!
//! `cargo bench --bench derive`. The graph has 32 layers as exporters write them: norms, rotary
//! embedding and attention in small operators, and the shape of every `Reshape` computed by
//! `Shape`, `Gather`, `Unsqueeze` and `Concat`. Weights are inputs of a fixed shape, so no bytes
//! are needed. Importing a file is not measured.

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use std::sync::Arc;
use transformer_lite::unstable::graph::op::Op;
use transformer_lite::unstable::graph::op::concat::Concat;
use transformer_lite::unstable::graph::op::gather::Gather;
use transformer_lite::unstable::graph::op::matmul::MatMul;
use transformer_lite::unstable::graph::op::pointwise::{Binary, Expr, Pointwise, Unary};
use transformer_lite::unstable::graph::op::reduce::{Kind, Reduce};
use transformer_lite::unstable::graph::op::reshape::Reshape;
use transformer_lite::unstable::graph::op::shape_of::ShapeOf;
use transformer_lite::unstable::graph::op::slice::Slice;
use transformer_lite::unstable::graph::op::softmax::Softmax;
use transformer_lite::unstable::graph::op::transpose::Transpose;
use transformer_lite::unstable::graph::{Edit, Graph, ValueId, derive};
use transformer_lite::unstable::shape::{Constraints, Dim, Fact, Shape};
use transformer_lite::unstable::tensor::{DType, HostTensor};

const LAYERS: usize = 32;
const HEADS: i64 = 32;
const HEAD: i64 = 128;
const HIDDEN: i64 = HEADS * HEAD;
const INNER: i64 = 11008;

fn dim(text: &str) -> Dim {
    Dim::parse(text).expect("an expression of this file")
}

/// Writes nodes one after another.
struct Writer<'a> {
    edit: Edit<'a>,
    count: usize,
}

impl Writer<'_> {
    fn input(&mut self, name: &str, shape: &str) -> ValueId {
        let dims = shape.split(',').map(dim).collect();
        let v = self
            .edit
            .add_value(name, Some(Fact::new(DType::F32, Shape(dims))));
        self.edit.add_input(v);
        v
    }

    fn ints(&mut self, values: &[i64]) -> ValueId {
        let shape: &[usize] = if values.len() == 1 { &[] } else { &[values.len()] };
        let tensor = HostTensor::from_ints(DType::I64, shape, values).expect("a small tensor");
        self.constant(tensor)
    }

    fn list(&mut self, values: &[i64]) -> ValueId {
        let tensor = HostTensor::from_ints(DType::I64, &[values.len()], values).expect("a small tensor");
        self.constant(tensor)
    }

    fn constant(&mut self, tensor: HostTensor) -> ValueId {
        self.count += 1;
        let name = format!("constant{}", self.count);
        self.edit.add_const(&name, Arc::new(tensor))
    }

    fn node(&mut self, op: impl Op + 'static, inputs: &[ValueId]) -> ValueId {
        self.count += 1;
        let name = format!("n{}", self.count);
        let y = self.edit.add_value(&name, None);
        let inputs = inputs.iter().copied().map(Some).collect();
        self.edit
            .add_node(&name, vec![name.clone()], Box::new(op), inputs, vec![y]);
        y
    }

    fn binary(&mut self, f: Binary, a: ValueId, b: ValueId) -> ValueId {
        self.node(Pointwise::binary("Binary", f), &[a, b])
    }

    fn unary(&mut self, f: Unary, x: ValueId) -> ValueId {
        let expr = Expr::Unary(f, Box::new(Expr::Input(0)));
        let name = "Unary".to_owned();
        self.node(Pointwise { name, expr }, &[x])
    }

    fn scalar(&mut self, v: f32) -> ValueId {
        let tensor = HostTensor::from_f32(&[], &[v]).expect("a scalar");
        self.constant(tensor)
    }

    /// One size of `x`, as a list of one element.
    fn size(&mut self, x: ValueId, axis: i64) -> ValueId {
        let all = self.node(ShapeOf { start: 0, end: None }, &[x]);
        let axis = self.ints(&[axis]);
        let one = self.node(Gather { axis: 0 }, &[all, axis]);
        let at = self.list(&[0]);
        self.node(Reshape::Unsqueeze, &[one, at])
    }

    /// `x` reshaped to its first two sizes and `rest`.
    fn reshape(&mut self, x: ValueId, rest: &[i64]) -> ValueId {
        let (b, s) = (self.size(x, 0), self.size(x, 1));
        let rest = self.list(rest);
        let shape = self.node(Concat { axis: 0 }, &[b, s, rest]);
        self.node(Reshape::Reshape { allow_zero: false }, &[x, shape])
    }

    fn transpose(&mut self, x: ValueId, perm: [i64; 4]) -> ValueId {
        let perm = Some(perm.to_vec());
        self.node(Transpose { perm }, &[x])
    }

    fn matmul(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.node(MatMul { trans_b: false }, &[a, b])
    }

    fn norm(&mut self, x: ValueId, name: &str) -> ValueId {
        let (two, epsilon) = (self.scalar(2.0), self.scalar(1e-5));
        let square = self.binary(Binary::Pow, x, two);
        let mean = Reduce {
            kind: Kind::Mean,
            axes: Some(vec![-1]),
            keep: true,
            noop_without_axes: false,
        };
        let mean = self.node(mean, &[square]);
        let sum = self.binary(Binary::Add, mean, epsilon);
        let root = self.unary(Unary::Sqrt, sum);
        let unit = self.binary(Binary::Div, x, root);
        let weight = self.input(name, &HIDDEN.to_string());
        self.binary(Binary::Mul, unit, weight)
    }

    fn rotary(&mut self, x: ValueId, cos: ValueId, sin: ValueId) -> ValueId {
        let width = self.size(x, 3);
        let two = self.list(&[2]);
        let half = self.binary(Binary::Div, width, two);
        let (zero, axis, far) = (self.list(&[0]), self.list(&[3]), self.list(&[i64::MAX]));
        let low = self.node(Slice, &[x, zero, half, axis]);
        let high = self.node(Slice, &[x, half, far, axis]);
        let minus = self.unary(Unary::Neg, high);
        let turned = self.node(Concat { axis: 3 }, &[minus, low]);
        let straight = self.binary(Binary::Mul, x, cos);
        let turned = self.binary(Binary::Mul, turned, sin);
        self.binary(Binary::Add, straight, turned)
    }

    fn layer(&mut self, i: usize, x: ValueId, cos: ValueId, sin: ValueId, mask: ValueId) -> ValueId {
        let square = format!("{HIDDEN},{HIDDEN}");
        let h = self.norm(x, &format!("norm{i}"));
        let [q, k, v] = ["q", "k", "v"].map(|part| {
            let w = self.input(&format!("{part}{i}"), &square);
            let y = self.matmul(h, w);
            let y = self.reshape(y, &[HEADS, HEAD]);
            self.transpose(y, [0, 2, 1, 3])
        });
        let (q, k) = (self.rotary(q, cos, sin), self.rotary(k, cos, sin));
        let [k, v] = [("key", k), ("value", v)].map(|(part, new)| {
            let past = self.input(
                &format!("past_{part}{i}"),
                &format!("batch,{HEADS},sumN-N,{HEAD}"),
            );
            let all = self.node(Concat { axis: 2 }, &[past, new]);
            self.edit.add_output(all);
            all
        });
        let keys = self.transpose(k, [0, 1, 3, 2]);
        let scores = self.matmul(q, keys);
        let scale = self.scalar(0.088);
        let scores = self.binary(Binary::Mul, scores, scale);
        let length = self.size(k, 2);
        let (zero, axis) = (self.list(&[0]), self.list(&[3]));
        let part = self.node(Slice, &[mask, zero, length, axis]);
        let scores = self.binary(Binary::Add, scores, part);
        let weights = self.node(
            Softmax {
                axis: -1,
                flatten: false,
            },
            &[scores],
        );
        let y = self.matmul(weights, v);
        let y = self.transpose(y, [0, 2, 1, 3]);
        let y = self.reshape(y, &[HIDDEN]);
        let o = self.input(&format!("o{i}"), &square);
        let y = self.matmul(y, o);
        let x = self.binary(Binary::Add, x, y);
        let h = self.norm(x, &format!("mlp_norm{i}"));
        let [gate, up] = ["gate", "up"].map(|part| {
            let w = self.input(&format!("{part}{i}"), &format!("{HIDDEN},{INNER}"));
            self.matmul(h, w)
        });
        let sigmoid = self.unary(Unary::Sigmoid, gate);
        let gate = self.binary(Binary::Mul, gate, sigmoid);
        let y = self.binary(Binary::Mul, gate, up);
        let down = self.input(&format!("down{i}"), &format!("{INNER},{HIDDEN}"));
        let y = self.matmul(y, down);
        self.binary(Binary::Add, x, y)
    }
}

fn decoder() -> Graph {
    let mut graph = Graph::default();
    let mut w = Writer {
        edit: Edit::new(&mut graph),
        count: 0,
    };
    let mut x = w.input("x", &format!("batch,N,{HIDDEN}"));
    let cos = w.input("cos", &format!("1,1,N,{HEAD}"));
    let sin = w.input("sin", &format!("1,1,N,{HEAD}"));
    let mask = w.input("mask", "batch,1,N,sumN");
    for i in 0..LAYERS {
        x = w.layer(i, x, cos, sin, mask);
    }
    w.edit.add_output(x);
    graph
}

fn benches(c: &mut Criterion) {
    let mut graph = decoder();
    derive::derive(&mut graph).expect("the decoder derives");
    let last = graph.outputs().last().copied().expect("an output");
    let shape = graph.fact(last).expect("derived").shape.to_string();
    assert_eq!(shape, format!("[batch, N, {HIDDEN}]"), "the last value");
    let caches = graph.outputs().iter().filter_map(|v| graph.fact(*v).ok());
    let whole = caches.filter(|f| f.shape.0.get(2) == Some(&dim("sumN"))).count();
    assert_eq!(whole, 2 * LAYERS, "every cache grows to sumN");

    let name = format!("derive/{LAYERS} layers, {} nodes", graph.nodes().count());
    c.bench_function(&name, |b| {
        b.iter_batched_ref(|| graph.clone(), derive::derive, BatchSize::LargeInput);
    });

    let known = Constraints::parse("1 <= N <= 2048, past <= 2048, sumN == past + N, N % 64 == 0")
        .expect("constraints");
    for (name, a, b) in [
        ("equal", "(N + 63)//64*4096", "N*64"),
        ("ordered", "N*N*32", "2048*N*32"),
        ("unknown", "N*4096", "sumN*256"),
    ] {
        let (a, b) = (dim(a), dim(b));
        c.bench_function(&format!("constraints/compare {name}"), |bench| {
            bench.iter(|| known.compare(black_box(&a), black_box(&b)));
        });
    }
}

criterion_group!(all, benches);
criterion_main!(all);
