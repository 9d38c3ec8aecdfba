//! Patterns on small graphs: each fires on its own form, computing the same, and on nothing that only looks like it.

use std::collections::HashMap;
use std::sync::Arc;
use transformer_lite::graph::interp::Interpreter;
use transformer_lite::graph::op::case::input as filled;
use transformer_lite::graph::op::concat::Concat;
use transformer_lite::graph::op::expand::Expand;
use transformer_lite::graph::op::gather::Gather;
use transformer_lite::graph::op::matmul::MatMul;
use transformer_lite::graph::op::pointwise::{Binary, Expr, Pointwise, Unary};
use transformer_lite::graph::op::reduce::{Kind, Reduce};
use transformer_lite::graph::op::reshape::Reshape;
use transformer_lite::graph::op::shape_of::ShapeOf;
use transformer_lite::graph::op::slice::Slice;
use transformer_lite::graph::op::softmax::Softmax;
use transformer_lite::graph::op::split::Split;
use transformer_lite::graph::op::transpose::Transpose;
use transformer_lite::graph::pass::{
    ATTENTION, FOLD, FUSE, KV_CACHE, LAST_ROW, OUTER, PICK, Pass, Pipeline, RMS_NORM, ROTARY, SPLIT, TRANS_B,
};
use transformer_lite::graph::{Edit, Graph, Op, ValueId};
use transformer_lite::shape::{Bindings, Dim, Fact, Shape};
use transformer_lite::tensor::{DType, HostTensor};

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
        let mut edit = Edit::new(&mut self.0);
        let y = edit.add_value("v", None);
        let name = edit.value(y).name.clone();
        let inputs = inputs.iter().map(|v| Some(*v)).collect();
        edit.add_node(&name, vec![name.clone()], Box::new(op), inputs, vec![y]);
        y
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
            sizes.set(&transformer_lite::shape::Symbol::new(name), *v);
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
        assert_eq!(b.pass(RMS_NORM, &[("s", 3)]), 1);
        assert!(b.has("RMSNormalization") && b.nodes() == 1);
        let other_forms: [(&str, &[i64], Kind, bool); 4] = [
            ("another axis", &[1], Kind::Mean, true),
            ("two axes", &[1, 2], Kind::Mean, true),
            ("a sum", &[-1], Kind::Sum, true),
            ("the mean of another value", &[-1], Kind::Mean, false),
        ];
        for (what, axes, kind, own) in other_forms {
            let mut b = normalisation(axes, kind, own, inverse);
            assert_eq!(b.pass(RMS_NORM, &[("s", 3)]), 0, "{what}");
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

/// What an attention may have wrong.
#[derive(Clone, Copy)]
struct Heads {
    softmax: i64,
    mask: Option<&'static str>,
    swapped: bool,
    back: bool,
    scale: bool,
    masked_after: bool,
}

const PLAIN: Heads = Heads {
    softmax: -1,
    mask: Some("1,1,s,t"),
    swapped: true,
    back: true,
    scale: true,
    masked_after: false,
};

/// `softmax(scale * q k^T + mask) v` over transposed heads, or something like it.
fn attention(h: Heads) -> Build {
    let mut b = Build::default();
    let mut heads = |name, sizes: &str, heads_first: &str| {
        if h.swapped {
            let x = b.input(name, sizes);
            b.swap(x, &[0, 2, 1, 3])
        } else {
            b.input(name, heads_first)
        }
    };
    let q = heads("q", "1,s,3,4", "1,3,s,4");
    let (k, v) = (heads("k", "1,t,3,4", "1,3,t,4"), heads("v", "1,t,3,4", "1,3,t,4"));
    let mut scores = b.node(MatMul { trans_b: true }, &[q, k]);
    if h.scale {
        let s = b.floats(&[], &[0.5]);
        scores = b.binary(Binary::Mul, scores, s);
    }
    let mask = h.mask.map(|m| b.input("mask", m));
    if let (Some(m), false) = (mask, h.masked_after) {
        scores = b.binary(Binary::Add, scores, m);
    }
    let mut weights = b.node(
        Softmax {
            axis: h.softmax,
            flatten: false,
        },
        &[scores],
    );
    if let (Some(m), true) = (mask, h.masked_after) {
        weights = b.binary(Binary::Add, weights, m);
    }
    let mut y = b.node(MatMul { trans_b: false }, &[weights, v]);
    if h.back {
        y = b.swap(y, &[0, 2, 1, 3]);
    }
    b.output(y);
    b
}

#[test]
fn attentions() {
    let sizes = [("s", 3), ("t", 5)];
    for right in [
        PLAIN,
        Heads { mask: None, ..PLAIN },
        Heads {
            scale: false,
            softmax: 3,
            ..PLAIN
        },
    ] {
        let mut b = attention(right);
        assert_eq!(b.pass(ATTENTION, &sizes), 1);
        assert!(b.has("Attention") && b.nodes() == 1);
    }
    let wrong = [
        ("softmax over queries", Heads { softmax: -2, ..PLAIN }),
        ("softmax over heads", Heads { softmax: 1, ..PLAIN }),
        (
            "a mask of each head",
            Heads {
                mask: Some("1,3,s,t"),
                ..PLAIN
            },
        ),
        (
            "a mask of keys",
            Heads {
                mask: Some("1,1,1,t"),
                ..PLAIN
            },
        ),
        (
            "a mask after the softmax",
            Heads {
                masked_after: true,
                ..PLAIN
            },
        ),
        (
            "operands with heads first",
            Heads {
                swapped: false,
                ..PLAIN
            },
        ),
        ("a result with heads first", Heads { back: false, ..PLAIN }),
    ];
    for (what, heads) in wrong {
        assert_eq!(attention(heads).pass(ATTENTION, &sizes), 0, "{what}");
    }
}

#[test]
fn an_attention_whose_product_is_read_elsewhere_stays() {
    let mut b = attention(Heads { back: false, ..PLAIN });
    let product = b.0.outputs()[0];
    let y = b.swap(product, &[0, 2, 1, 3]);
    b.output(y);
    assert_eq!(b.pass(ATTENTION, &[("s", 3), ("t", 5)]), 0);
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

/// A cache `past` of `sizes` that grows along `axis` by `new`; its readers are the concatenation and a product.
fn cache(sizes: &str, more: &str, axis: i64, past_first: bool, is_output: bool) -> (Build, ValueId) {
    let mut b = Build::default();
    let (past, new) = (b.input("past", sizes), b.input("new", more));
    let new = b.unary(Unary::Abs, new);
    let operands = if past_first { [past, new] } else { [new, past] };
    let present = b.node(Concat { axis }, &operands);
    let y = b.unary(Unary::Neg, present);
    b.output(y);
    if is_output {
        b.output(present);
    }
    (b, past)
}

#[test]
fn caches() {
    let sizes = [("t", 4), ("s", 2)];
    let state = |b: &mut Build| {
        // Outputs that became states are none any more; what reads them stays.
        Pipeline {
            passes: vec![KV_CACHE],
            edit_limit: usize::MAX,
        }
        .run(&mut b.0)
        .unwrap();
        let values = b.run(&Bindings::from([("t", 4), ("s", 2)]));
        (b.0.states().len(), values)
    };
    for (past, new, axis) in [
        ("1,t,3,4", "1,s,3,4", 1),
        ("1,3,t,4", "1,3,s,4", 2),
        ("1,3,t,4", "1,3,s,4", -2),
    ] {
        let (mut b, _) = cache(past, new, axis, true, true);
        Pipeline {
            passes: Vec::new(),
            edit_limit: usize::MAX,
        }
        .run(&mut b.0)
        .unwrap();
        let before = b.run(&Bindings::from(sizes));
        let (states, after) = state(&mut b);
        assert_eq!((states, b.0.inputs().len()), (1, 1), "{past} along {axis}");
        assert_eq!(after.len(), 1);
        // The state may lie sequence first, so that the same numbers come in another order.
        let sum = |t: &HostTensor| t.to_f32().unwrap().iter().map(|v| f64::from(*v)).sum::<f64>();
        assert!((sum(&before[0]) - sum(&after[0])).abs() < 1e-4 && before[0].shape() == after[0].shape());
    }
    let wrong: [(&str, (Build, ValueId)); 5] = [
        (
            "new rows before the old",
            cache("1,t,3,4", "1,s,3,4", 1, false, true),
        ),
        (
            "a result that is no output",
            cache("1,t,3,4", "1,s,3,4", 1, true, false),
        ),
        ("several sequences", cache("2,t,3,4", "2,s,3,4", 1, true, true)),
        (
            "growth along the heads' size",
            cache("1,3,4,t", "1,3,4,s", 3, true, true),
        ),
        (
            "a length that is no symbol",
            cache("1,t+1,3,4", "1,s,3,4", 1, true, true),
        ),
    ];
    for (what, (mut b, past)) in wrong {
        assert_eq!(state(&mut b).0, 0, "{what}");
        assert!(b.0.inputs().contains(&past), "{what}");
    }
}

#[test]
fn a_cache_with_two_readers_of_data_stays_an_input() {
    let (mut b, past) = cache("1,t,3,4", "1,s,3,4", 1, true, true);
    let extra = b.unary(Unary::Exp, past);
    b.output(extra);
    assert_eq!(b.pass(KV_CACHE, &[("t", 4), ("s", 2)]), 0);
    assert!(b.0.states().is_empty() && b.0.inputs().contains(&past));
    // A reader of the shape alone does no harm.
    let (mut b, past) = cache("1,t,3,4", "1,s,3,4", 1, true, true);
    b.node(ShapeOf { start: 0, end: None }, &[past]);
    Pipeline {
        passes: vec![KV_CACHE],
        edit_limit: usize::MAX,
    }
    .run(&mut b.0)
    .unwrap();
    assert_eq!(b.0.states().len(), 1);
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
    assert_eq!(b.pass(RMS_NORM, &[]), 0, "the mean of row j divides column j");
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

/// Grouped heads as `[b, kv, group, s, d]`, or with the two axes of heads the wrong way round.
fn grouped(kv_first: bool) -> Build {
    let mut b = Build::default();
    let (q, k, v) = (
        b.input("q", "1,s,4,6"),
        b.input("k", "1,t,2,6"),
        b.input("v", "1,t,2,6"),
    );
    let q4 = b.swap(q, &[0, 2, 1, 3]);
    let sizes = b.list(&[0, 2, 2, -1, 6]);
    let q5 = b.node(Reshape::Reshape { allow_zero: false }, &[q4, sizes]);
    let at = b.list(&[if kv_first { 2 } else { 1 }]);
    let [k5, v5] = [k, v].map(|x| {
        let x = b.swap(x, &[0, 2, 1, 3]);
        b.node(Reshape::Unsqueeze, &[x, at])
    });
    let scores = b.node(MatMul { trans_b: true }, &[q5, k5]);
    let weights = b.node(
        Softmax {
            axis: -1,
            flatten: false,
        },
        &[scores],
    );
    let sum = b.node(MatMul { trans_b: false }, &[weights, v5]);
    let back = b.list(&[0, 4, -1, 6]);
    let heads = b.node(Reshape::Reshape { allow_zero: false }, &[sum, back]);
    let y = b.swap(heads, &[0, 2, 1, 3]);
    b.output(y);
    b
}

#[test]
fn grouped_heads_are_neighbours() {
    let sizes = [("s", 3), ("t", 5)];
    let mut right = grouped(true);
    assert_eq!(right.pass(ATTENTION, &sizes), 1);
    let mut wrong = grouped(false);
    assert_eq!(
        wrong.pass(ATTENTION, &sizes),
        0,
        "query head h uses key head h % 2 here"
    );
}

/// Keys and values repeated for the query heads of their group, after the heads' axis or before it; the heads lie before or
/// after the sequence when they are repeated.
fn repeated(after: bool, sequence_first: bool) -> Build {
    let mut b = Build::default();
    let orders = if sequence_first {
        ["s,1,4,6", "t,1,2,6"]
    } else {
        ["1,s,4,6", "1,t,2,6"]
    };
    let (q, k, v) = (
        b.input("q", orders[0]),
        b.input("k", orders[1]),
        b.input("v", orders[1]),
    );
    let (to_heads, back): (&[i64], &[i64]) = if sequence_first {
        (&[1, 2, 0, 3], &[2, 0, 1, 3])
    } else {
        (&[0, 2, 1, 3], &[0, 2, 1, 3])
    };
    let q = b.swap(q, to_heads);
    let [k, v] = [k, v].map(|x| {
        let x = if sequence_first { x } else { b.swap(x, to_heads) };
        let heads = if sequence_first { 2 } else { 1 };
        let at = b.list(&[heads + i64::from(after)]);
        let one = b.node(Reshape::Unsqueeze, &[x, at]);
        let mut wide = [1; 5];
        wide[usize::try_from(heads).unwrap() + usize::from(after)] = 2;
        let wide = b.list(&wide);
        let wide = b.node(Expand, &[one, wide]);
        let joined = b.list(if sequence_first {
            &[0, 0, 4, 6]
        } else {
            &[0, 4, -1, 6]
        });
        let all = b.node(Reshape::Reshape { allow_zero: false }, &[wide, joined]);
        if sequence_first {
            b.swap(all, to_heads)
        } else {
            all
        }
    });
    let scores = b.node(MatMul { trans_b: true }, &[q, k]);
    let two = b.floats(&[], &[2.0]);
    let scores = b.binary(Binary::Div, scores, two);
    let weights = b.node(
        Softmax {
            axis: -1,
            flatten: false,
        },
        &[scores],
    );
    let sum = b.node(MatMul { trans_b: false }, &[weights, v]);
    let y = b.swap(sum, back);
    b.output(y);
    b
}

#[test]
fn repeated_heads_are_read_once() {
    let sizes = [("s", 3), ("t", 5)];
    for sequence_first in [false, true] {
        let mut right = repeated(true, sequence_first);
        assert_eq!(right.pass(ATTENTION, &sizes), 1, "{sequence_first}");
        assert!(right.has("Attention") && !right.has("Expand"));
        // Query head h uses key head h % 2 here: at most the repeated heads are read as they are.
        let mut other = repeated(false, sequence_first);
        assert_eq!(other.pass(ATTENTION, &sizes), usize::from(sequence_first));
        assert!(other.has("Expand"));
    }
}

#[test]
fn a_number_divided_by_scores_is_no_scale() {
    let mut b = Build::default();
    let [q, k, v] = [("q", "1,s,3,4"), ("k", "1,t,3,4"), ("v", "1,t,3,4")].map(|(name, sizes)| {
        let x = b.input(name, sizes);
        b.swap(x, &[0, 2, 1, 3])
    });
    let scores = b.node(MatMul { trans_b: true }, &[q, k]);
    let two = b.floats(&[], &[2.0]);
    let scores = b.binary(Binary::Div, two, scores);
    let weights = b.node(
        Softmax {
            axis: -1,
            flatten: false,
        },
        &[scores],
    );
    let sum = b.node(MatMul { trans_b: false }, &[weights, v]);
    let y = b.swap(sum, &[0, 2, 1, 3]);
    b.output(y);
    assert_eq!(b.pass(ATTENTION, &[("s", 3), ("t", 5)]), 0);
}

/// Two rotary embeddings by the same angles, over heads that lie before the rows.
fn rotary_of_heads(transposed: bool, angles: &str) -> Build {
    let mut b = Build::default();
    let (cos, sin) = (b.input("cos", angles), b.input("sin", angles));
    for (name, rows, heads) in [("q", "1,s,3,8", "1,3,s,8"), ("k", "1,s,2,8", "1,2,s,8")] {
        let x = if transposed {
            let x = b.input(name, rows);
            b.swap(x, &[0, 2, 1, 3])
        } else {
            b.input(name, heads)
        };
        let (low, high) = (b.part(x, 0, 4), b.part(x, 4, i64::MAX));
        let high = b.unary(Unary::Neg, high);
        let turned = b.node(Concat { axis: -1 }, &[high, low]);
        let (plain, turned) = (b.binary(Binary::Mul, x, cos), b.binary(Binary::Mul, turned, sin));
        let y = b.binary(Binary::Add, plain, turned);
        b.output(y);
    }
    b
}

#[test]
fn rotary_embeddings_of_transposed_heads() {
    let mut b = rotary_of_heads(true, "1,1,s,8");
    assert_eq!(b.pass(ROTARY, &[("s", 3)]), 2);
    // Each embedding and its transpose back, and the angles of both once.
    assert_eq!((b.has("Rotary"), b.has("Concat"), b.nodes()), (true, false, 6));
    let mut b = rotary_of_heads(false, "1,1,s,8");
    assert_eq!(b.pass(ROTARY, &[("s", 3)]), 0, "heads that are not transposed");
    let mut b = rotary_of_heads(true, "1,1,1,8");
    assert_eq!(b.pass(ROTARY, &[("s", 3)]), 0, "one angle for all rows");
}

#[test]
fn products_over_one_element() {
    let product = |a: &str, c: &str, trans_b| {
        let mut b = Build::default();
        let (x, y) = (b.input("a", a), b.input("b", c));
        let y = b.node(MatMul { trans_b }, &[x, y]);
        b.output(y);
        b
    };
    let mut b = product("2,5,1", "2,1,s", false);
    assert_eq!((b.pass(OUTER, &[("s", 3)]), b.has("Mul")), (1, true));
    assert_eq!(product("2,5,2", "2,2,s", false).pass(OUTER, &[("s", 3)]), 0);
    assert_eq!(product("2,5,1", "2,s,1", true).pass(OUTER, &[("s", 3)]), 0);
}

/// A product that makes the output `logits`, through a transpose if there is one.
fn logits(rows: &str, perm: Option<&[i64]>) -> Build {
    let mut b = Build::default();
    let (x, w) = (b.input("x", rows), b.input("w", "8,8"));
    let mut edit = Edit::new(&mut b.0);
    let (y, out) = (edit.add_value("product", None), edit.add_value("logits", None));
    let product = if perm.is_some() { y } else { out };
    let op = MatMul { trans_b: false };
    edit.add_node(
        "product",
        Vec::new(),
        Box::new(op),
        vec![Some(x), Some(w)],
        vec![product],
    );
    if let Some(perm) = perm {
        let op = Transpose {
            perm: Some(perm.to_vec()),
        };
        edit.add_node("end", Vec::new(), Box::new(op), vec![Some(y)], vec![out]);
    }
    edit.add_output(out);
    b
}

#[test]
fn the_last_row_of_logits() {
    for (rows, perm, found) in [
        ("1,s,8", None, "[1, 1, 8]"),
        ("s,1,8", Some(&[1, 0, 2][..]), "[1, 1, 8]"),
        ("1,8,8", Some(&[0, 2, 1]), "[1, 8, 8]"),
    ] {
        let mut b = logits(rows, perm);
        let passes = vec![LAST_ROW];
        let edit_limit = usize::MAX;
        Pipeline { passes, edit_limit }.run(&mut b.0).unwrap();
        let out = b.0.output("logits").unwrap();
        assert_eq!(
            b.0.fact(out).unwrap().shape.to_string(),
            found,
            "{rows}, {perm:?}"
        );
    }
}

#[test]
fn sizes_that_are_numbers_become_constants() {
    let mut b = Build::default();
    let x = b.input("x", "s,6");
    let shape = b.node(ShapeOf { start: 1, end: None }, &[x]);
    let half = b.list(&[2]);
    let half = b.node(Pointwise::binary("Div", Binary::Div), &[shape, half]);
    let y = b.node(Reshape::Identity, &[half]);
    b.output(y);
    b.output(x);
    let passes = vec![FOLD];
    let edit_limit = usize::MAX;
    let reports = Pipeline { passes, edit_limit }.run(&mut b.0).unwrap();
    assert_eq!((reports[0].edits, b.nodes()), (3, 0));
    let known = b.0.fact(y).unwrap().as_const().unwrap().to_i64().unwrap();
    assert_eq!(known, [3]);
}

#[test]
fn one_place_of_an_inner_axis_is_sliced() {
    let gather = |axis: i64, rank: usize, index: &[i64]| {
        let mut b = Build::default();
        let x = b.input("x", "3,s,4");
        let index = HostTensor::from_i64(&vec![index.len(); rank], index).unwrap();
        let index = Edit::new(&mut b.0).add_const("index", Arc::new(index));
        let y = b.node(Gather { axis }, &[x, index]);
        b.output(y);
        b
    };
    let sizes = [("s", 3)];
    for (axis, rank, index) in [(-1, 0, 2), (2, 0, -1), (1, 0, 0), (-1, 1, -2), (1, 1, -1)] {
        let mut b = gather(axis, rank, &[index]);
        assert_eq!(
            (b.pass(PICK, &sizes), b.has("Gather")),
            (1, false),
            "{index} of {axis}"
        );
    }
    assert_eq!(gather(0, 0, &[1]).pass(PICK, &sizes), 0, "rows of a table");
    assert_eq!(gather(2, 1, &[1, 0]).pass(PICK, &sizes), 0, "two places");
}

#[test]
fn parts_of_a_split_are_sliced() {
    let split = |x: &str, axis: i64, sizes: &[i64]| {
        let mut b = Build::default();
        let (x, list) = (b.input("x", x), b.list(sizes));
        let op = Split {
            axis,
            sizes: None,
            parts: sizes.len(),
            uneven: false,
        };
        let mut edit = Edit::new(&mut b.0);
        let parts: Vec<ValueId> = sizes.iter().map(|_| edit.add_value("part", None)).collect();
        edit.add_node(
            "split",
            Vec::new(),
            Box::new(op),
            vec![Some(x), Some(list)],
            parts.clone(),
        );
        parts.into_iter().for_each(|p| edit.add_output(p));
        b
    };
    for (x, axis, sizes) in [
        ("s,6", -1, [1, 3, 2]),
        ("2,6,s", 1, [2, 2, 2]),
        ("6,s", 0, [5, 1, 0]),
    ] {
        let mut b = split(x, axis, &sizes);
        assert_eq!((b.pass(SPLIT, &[("s", 3)]), b.has("Split")), (1, false), "{x}");
    }
}
