//! Patterns on small graphs: each fires on its own form, computing the same, and on nothing that
//! only looks like it.

mod appends;
mod attention;
mod decoders;
mod epilogues;
mod exporters;
mod integers;
mod joins;
mod products;

use std::collections::HashMap;
use std::sync::Arc;
use transformer_lite::unstable::graph::interp::Interpreter;
use transformer_lite::unstable::graph::op::case::input as filled;
use transformer_lite::unstable::graph::op::concat::Concat;
use transformer_lite::unstable::graph::op::expand::Expand;
use transformer_lite::unstable::graph::op::gather::Gather;
use transformer_lite::unstable::graph::op::matmul::MatMul;
use transformer_lite::unstable::graph::op::pointwise::{Binary, Expr, Pointwise, Unary};
use transformer_lite::unstable::graph::op::reduce::{Kind, Reduce};
use transformer_lite::unstable::graph::op::reshape::Reshape;
use transformer_lite::unstable::graph::op::shape_of::ShapeOf;
use transformer_lite::unstable::graph::op::slice::Slice;
use transformer_lite::unstable::graph::op::softmax::Softmax;
use transformer_lite::unstable::graph::op::split::Split;
use transformer_lite::unstable::graph::op::transpose::Transpose;
use transformer_lite::unstable::graph::pass::{
    ATTENTION, FOLD, FUSE, GATHER_TO_SLICE, KV_CACHE, LAST_ROW, LAST_ROWS, NORM, OUTER_PRODUCT, Pass,
    Pipeline, REMOVE_NOOPS, ROTARY, ROTARY_INTERLEAVED, ROWS, SINK_TRANSPOSES, SPLIT, TRANS_B,
};
use transformer_lite::unstable::graph::{Edit, Graph, Op, ValueId};
use transformer_lite::unstable::shape::{Bindings, Constraints, Dim, Fact, Shape};
use transformer_lite::unstable::tensor::{DType, HostTensor};

/// A graph under construction.
#[derive(Default)]
struct Build(Graph);

impl Build {
    /// An input of floats with these sizes.
    fn input(&mut self, name: &str, sizes: &str) -> ValueId {
        let dims = sizes.split(',').map(|d| Dim::parse(d.trim()).unwrap()).collect();
        let mut edit = Edit::new(&mut self.0);
        let v = edit.add_value(name, Some(Fact::new(DType::F32, Shape(dims))));
        edit.add_input(v);
        v
    }

    fn floats(&mut self, shape: &[usize], data: &[f32]) -> ValueId {
        Edit::new(&mut self.0).add_const("number", Arc::new(HostTensor::from_f32(shape, data).unwrap()))
    }

    fn list(&mut self, data: &[i64]) -> ValueId {
        Edit::new(&mut self.0).add_const(
            "list",
            Arc::new(HostTensor::from_i64(&[data.len()], data).unwrap()),
        )
    }

    fn node(&mut self, op: impl Op + 'static, inputs: &[ValueId]) -> ValueId {
        self.results(op, inputs, 1)[0]
    }

    /// The `count` results of a node.
    fn results(&mut self, op: impl Op + 'static, inputs: &[ValueId], count: usize) -> Vec<ValueId> {
        let mut edit = Edit::new(&mut self.0);
        let made: Vec<ValueId> = (0..count).map(|_| edit.add_value("v", None)).collect();
        let name = edit.value(made[0]).name.clone();
        let inputs = inputs.iter().map(|v| Some(*v)).collect();
        edit.add_node(&name, vec![name.clone()], Box::new(op), inputs, made.clone());
        made
    }

    fn unary(&mut self, f: Unary, x: ValueId) -> ValueId {
        let op = Pointwise {
            name: format!("{f:?}"),
            expr: Expr::Unary(f, Box::new(Expr::Input(0))),
        };
        self.node(op, &[x])
    }

    fn binary(&mut self, f: Binary, a: ValueId, b: ValueId) -> ValueId {
        self.node(Pointwise::binary(&format!("{f:?}"), f), &[a, b])
    }

    fn swap(&mut self, x: ValueId, perm: &[i64]) -> ValueId {
        self.node(
            Transpose {
                perm: Some(perm.to_vec()),
            },
            &[x],
        )
    }

    fn reshape(&mut self, x: ValueId, sizes: &[i64]) -> ValueId {
        let sizes = self.list(sizes);
        self.node(Reshape::Reshape { allow_zero: false }, &[x, sizes])
    }

    /// Elements `from .. to` of the last axis.
    fn part(&mut self, x: ValueId, from: i64, to: i64) -> ValueId {
        let (from, to, axes) = (self.list(&[from]), self.list(&[to]), self.list(&[-1]));
        self.node(Slice, &[x, from, to, axes])
    }

    fn output(&mut self, v: ValueId) {
        Edit::new(&mut self.0).add_output(v);
    }

    /// Values of all outputs and states under these sizes; inputs are filled by their place.
    fn run(&self, bindings: &Bindings) -> Vec<HostTensor> {
        let graph = &self.0;
        let mut given = HashMap::new();
        let states = graph.states().iter().map(|s| s.input);
        let mut all: Vec<ValueId> = graph.inputs().iter().copied().chain(states).collect();
        all.sort();
        for (v, seed) in all.iter().zip(1..) {
            let shape = graph.fact(*v).unwrap().shape.eval(bindings).unwrap();
            given.insert(*v, filled(&shape).make(seed).unwrap());
        }
        let results = Interpreter::new(Arc::new(graph.clone()))
            .unwrap()
            .run(given)
            .unwrap();
        graph.outputs().iter().map(|v| results[v].clone()).collect()
    }

    /// Runs one pass; the graph computes the same before and after. Returns the number of rewrites.
    fn pass(&mut self, pass: Pass, bindings: &[(&str, i64)]) -> usize {
        let none = Pipeline {
            passes: Vec::new(),
            edit_limit: usize::MAX,
        };
        none.run(&mut self.0).unwrap();
        let mut sizes = Bindings::new();
        for (name, v) in bindings {
            sizes.set(&transformer_lite::unstable::shape::Symbol::new(name), *v);
        }
        let before = self.run(&sizes);
        let reports = Pipeline {
            passes: vec![pass],
            edit_limit: usize::MAX,
        }
        .run(&mut self.0)
        .unwrap();
        let after = self.run(&sizes);
        assert_eq!(before.len(), after.len(), "the same results");
        for (b, a) in before.iter().zip(&after) {
            assert_eq!(b.shape(), a.shape(), "{} changed a shape", pass.name);
            for (x, y) in b.to_f32().unwrap().iter().zip(a.to_f32().unwrap().iter()) {
                assert!(
                    (x - y).abs() <= 1e-5 * x.abs().max(1.0),
                    "{} changed {x} to {y}",
                    pass.name
                );
            }
        }
        reports[0].edits
    }

    fn has(&self, name: &str) -> bool {
        self.0.nodes().any(|(_, n)| n.op.name() == name)
    }

    fn nodes(&self) -> usize {
        self.0.nodes().count()
    }
}

/// `x / sqrt(mean(square^2) + e) * w` with the mean over `axes`.
fn normalisation(axes: &[i64], kind: Kind, own_square: bool, inverse: bool) -> Build {
    let mut b = Build::default();
    let (x, other) = (b.input("x", "2,s,8"), b.input("other", "2,s,8"));
    let of = if own_square { x } else { other };
    let square = b.binary(Binary::Mul, of, of);
    let reduce = Reduce {
        kind,
        axes: Some(axes.to_vec()),
        keep: true,
        noop_without_axes: false,
    };
    let mean = b.node(reduce, &[square]);
    let epsilon = b.floats(&[1], &[0.01]);
    let sum = b.binary(Binary::Add, epsilon, mean);
    let root = b.unary(Unary::Sqrt, sum);
    let normed = if inverse {
        let r = b.unary(Unary::Reciprocal, root);
        b.binary(Binary::Mul, r, x)
    } else {
        b.binary(Binary::Div, x, root)
    };
    let scale = b.floats(&[8], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    let y = b.binary(Binary::Mul, normed, scale);
    b.output(y);
    b
}

#[test]
fn normalisations() {
    for inverse in [false, true] {
        let mut b = normalisation(&[-1], Kind::Mean, true, inverse);
        assert_eq!(b.pass(NORM, &[("s", 3)]), 1);
        assert!(b.has("RMSNormalization") && b.nodes() == 1);
        let other_forms: [(&str, &[i64], Kind, bool); 4] = [
            ("another axis", &[1], Kind::Mean, true),
            ("two axes", &[1, 2], Kind::Mean, true),
            ("a sum", &[-1], Kind::Sum, true),
            ("the mean of another value", &[-1], Kind::Mean, false),
        ];
        for (what, axes, kind, own) in other_forms {
            let mut b = normalisation(axes, kind, own, inverse);
            assert_eq!(b.pass(NORM, &[("s", 3)]), 0, "{what}");
        }
    }
}

/// What a rotary embedding may have wrong.
#[derive(Clone, Copy, Default)]
struct Turn {
    half: Option<i64>,
    negate_low: bool,
    low_first: bool,
    other: bool,
    swapped_angles: bool,
    per_head: bool,
}

/// `x * cos + concat(-x[h..], x[..h]) * sin`, or something like it.
fn rotary(t: Turn) -> Build {
    let mut b = Build::default();
    let (x, z) = (b.input("x", "1,s,3,8"), b.input("z", "1,s,3,8"));
    let angles = if t.per_head { "1,s,3,8" } else { "1,s,1,8" };
    let (cos, sin) = (b.input("cos", angles), b.input("sin", angles));
    let half = t.half.unwrap_or(4);
    let from = if t.other { z } else { x };
    let (low, high) = (b.part(from, 0, half), b.part(from, half, 8));
    let (low, high) = if t.negate_low {
        (b.unary(Unary::Neg, low), high)
    } else {
        (low, b.unary(Unary::Neg, high))
    };
    let halves = if t.low_first { [low, high] } else { [high, low] };
    let turned = b.node(Concat { axis: -1 }, &halves);
    let plain = b.binary(Binary::Mul, x, cos);
    let turned = if t.swapped_angles {
        b.binary(Binary::Mul, turned, cos)
    } else {
        b.binary(Binary::Mul, sin, turned)
    };
    let y = b.binary(Binary::Add, turned, plain);
    b.output(y);
    b
}

#[test]
fn rotary_embeddings() {
    let mut b = rotary(Turn::default());
    assert_eq!(b.pass(ROTARY, &[("s", 3)]), 1);
    assert!(b.has("Rotary") && b.nodes() == 1);
    let wrong = [
        (
            "a split off the middle",
            Turn {
                half: Some(3),
                ..Turn::default()
            },
        ),
        (
            "the other half negated",
            Turn {
                negate_low: true,
                ..Turn::default()
            },
        ),
        (
            "halves not exchanged",
            Turn {
                low_first: true,
                ..Turn::default()
            },
        ),
        (
            "halves of another value",
            Turn {
                other: true,
                ..Turn::default()
            },
        ),
        (
            "angles of each head",
            Turn {
                per_head: true,
                ..Turn::default()
            },
        ),
    ];
    for (what, turn) in wrong {
        assert_eq!(rotary(turn).pass(ROTARY, &[("s", 3)]), 0, "{what}");
    }
    // One angle for both is odd, and still the same sum of products.
    let mut b = rotary(Turn {
        swapped_angles: true,
        ..Turn::default()
    });
    assert_eq!(b.pass(ROTARY, &[("s", 3)]), 1);
}

#[test]
fn elementwise_chains() {
    let chain = |b: &mut Build| {
        let (x, w) = (b.input("x", "2,s"), b.input("w", "2,s"));
        let inner = b.unary(Unary::Sigmoid, x);
        let y = b.binary(Binary::Mul, inner, w);
        b.output(y);
        (inner, y)
    };
    let mut b = Build::default();
    chain(&mut b);
    assert_eq!((b.pass(FUSE, &[("s", 5)]), b.nodes()), (1, 1));

    let mut b = Build::default();
    let (inner, _) = chain(&mut b);
    let other = b.unary(Unary::Exp, inner);
    b.output(other);
    assert_eq!(
        (b.pass(FUSE, &[("s", 5)]), b.nodes()),
        (0, 3),
        "a value read twice is computed once"
    );

    let mut b = Build::default();
    let (inner, _) = chain(&mut b);
    b.output(inner);
    assert_eq!(
        (b.pass(FUSE, &[("s", 5)]), b.nodes()),
        (0, 2),
        "an output of the graph stays one"
    );

    for sizes in ["s", "2,1", "1,s"] {
        let mut b = Build::default();
        let (x, w) = (b.input("x", sizes), b.input("w", "2,s"));
        let inner = b.unary(Unary::Exp, x);
        let y = b.binary(Binary::Mul, inner, w);
        b.output(y);
        assert_eq!(
            (b.pass(FUSE, &[("s", 5)]), b.nodes()),
            (0, 2),
            "{sizes} is broadcast and computed once"
        );
    }

    // Leading axes of size 1 are no broadcast.
    let mut b = Build::default();
    let (x, w) = (b.input("x", "2,s"), b.input("w", "1,2,s"));
    let inner = b.unary(Unary::Exp, x);
    let y = b.binary(Binary::Mul, inner, w);
    b.output(y);
    assert_eq!((b.pass(FUSE, &[("s", 5)]), b.nodes()), (1, 1));

    // Five operands do not fit one kernel.
    let mut b = Build::default();
    let mut sum = b.input("x", "s");
    for i in 0..4 {
        let x = b.input(&format!("x{i}"), "s");
        sum = b.binary(Binary::Add, sum, x);
    }
    b.output(sum);
    assert_eq!((b.pass(FUSE, &[("s", 5)]), b.nodes()), (2, 2));
}

#[test]
fn transposed_products() {
    for (perm, fires) in [(&[0, 2, 1][..], 1), (&[1, 0, 2], 0), (&[2, 1, 0], 0)] {
        let mut b = Build::default();
        let x = b.input("x", "4,4,4");
        let w = b.input("w", "4,4,4");
        let turned = b.swap(w, perm);
        let y = b.node(MatMul { trans_b: false }, &[x, turned]);
        b.output(y);
        assert_eq!(b.pass(TRANS_B, &[]), fires, "{perm:?}");
    }
    // Rows that stay whole are moved alone.
    let mut b = Build::default();
    let (x, w) = (b.input("x", "2,3,5,4"), b.input("w", "2,s,3,4"));
    let turned = b.swap(w, &[0, 2, 3, 1]);
    let y = b.node(MatMul { trans_b: false }, &[x, turned]);
    b.output(y);
    assert_eq!(b.pass(TRANS_B, &[("s", 6)]), 1);
    assert!(b.has("Transpose") && b.nodes() == 2);
    // Transposed twice.
    let mut b = Build::default();
    let (x, w) = (b.input("x", "4,4"), b.input("w", "4,4"));
    let turned = b.swap(w, &[1, 0]);
    let y = b.node(MatMul { trans_b: true }, &[x, turned]);
    b.output(y);
    assert_eq!(b.pass(TRANS_B, &[]), 0);
}

#[test]
fn a_mean_that_loses_its_axis_is_no_normalisation_of_rows() {
    let mut b = Build::default();
    let x = b.input("x", "8,8");
    let square = b.binary(Binary::Mul, x, x);
    let reduce = Reduce {
        kind: Kind::Mean,
        axes: Some(vec![-1]),
        keep: false,
        noop_without_axes: false,
    };
    let mean = b.node(reduce, &[square]);
    let epsilon = b.floats(&[1], &[0.01]);
    let sum = b.binary(Binary::Add, mean, epsilon);
    let root = b.unary(Unary::Sqrt, sum);
    let normed = b.binary(Binary::Div, x, root);
    let scale = b.floats(&[8], &[1.0; 8]);
    let y = b.binary(Binary::Mul, normed, scale);
    b.output(y);
    assert_eq!(b.pass(NORM, &[]), 0, "the mean of row j divides column j");
}

#[test]
fn constants_with_the_most_axes_keep_the_shape() {
    let mut b = Build::default();
    let x = b.input("x", "4");
    let (p, q) = (b.floats(&[1, 1], &[2.0]), b.floats(&[1, 1], &[3.0]));
    let product = b.binary(Binary::Mul, x, p);
    let y = b.binary(Binary::Add, product, q);
    b.output(y);
    // `pass` compares the shapes of the results.
    b.pass(FUSE, &[]);
}

#[test]
fn integers_beyond_32_bits_stay_operands() {
    let mut b = Build::default();
    let x = b.input("x", "4");
    let whole = b.node(
        Pointwise {
            name: "Cast".to_owned(),
            expr: Expr::Cast(DType::I64, Box::new(Expr::Input(0))),
        },
        &[x],
    );
    let far = b.list(&[i64::MAX]);
    let low = b.binary(Binary::Min, whole, far);
    let y = b.node(
        Pointwise {
            name: "Cast".to_owned(),
            expr: Expr::Cast(DType::F32, Box::new(Expr::Input(0))),
        },
        &[low],
    );
    b.output(y);
    b.pass(FUSE, &[]);
    let reads_far = b.0.nodes().any(|(_, n)| n.inputs.contains(&Some(far)));
    assert!(reads_far, "a device would cut the number to 32 bits");
}
