//! Layer normalisation of exporters, normalisations behind convolutions, nodes that compute the
//! same.

use super::*;
use transformer_lite::unstable::graph::op::batch_norm::BatchNorm;
use transformer_lite::unstable::graph::op::conv::Conv;
use transformer_lite::unstable::graph::op::gemm::Gemm;
use transformer_lite::unstable::graph::op::window::Window;
use transformer_lite::unstable::graph::pass::{CONV_NORM, DECOMPOSE_GEMM, DUPLICATES, REMOVE_NOOPS};

fn mean_of(b: &mut Build, x: ValueId, axes: &[i64]) -> ValueId {
    let reduce = Reduce {
        kind: Kind::Mean,
        axes: Some(axes.to_vec()),
        keep: true,
        noop_without_axes: false,
    };
    b.node(reduce, &[x])
}

/// What a layer normalisation may have besides or wrong.
#[derive(Clone, Copy, Default)]
struct Layer {
    no_bias: bool,
    bias_of_rows: bool,
    other_mean: bool,
    other_axis: bool,
    read_before_bias: bool,
}

/// `(x - mean) / sqrt(mean((x - mean)^2) + e) * w + b`.
fn layer(l: Layer) -> Build {
    let mut b = Build::default();
    let (x, other) = (b.input("x", "2,s,8"), b.input("other", "2,s,8"));
    let of = if l.other_mean { other } else { x };
    let mean = mean_of(&mut b, of, if l.other_axis { &[1] } else { &[-1] });
    let centered = b.binary(Binary::Sub, x, mean);
    let two = b.floats(&[], &[2.0]);
    let square = b.binary(Binary::Pow, centered, two);
    let variance = mean_of(&mut b, square, &[2]);
    let epsilon = b.floats(&[], &[0.01]);
    let sum = b.binary(Binary::Add, variance, epsilon);
    let root = b.unary(Unary::Sqrt, sum);
    let normed = b.binary(Binary::Div, centered, root);
    let row: Vec<f32> = (1..9).map(|i| i as f32).collect();
    let scale = b.floats(&[8], &row);
    let scaled = b.binary(Binary::Mul, normed, scale);
    if l.no_bias || l.read_before_bias {
        b.output(scaled);
    }
    if !l.no_bias {
        let bias = if l.bias_of_rows {
            b.input("bias", "8")
        } else {
            b.floats(&[8], &row)
        };
        let y = b.binary(Binary::Add, bias, scaled);
        b.output(y);
    }
    b
}

#[test]
fn layer_normalisations() {
    let of = |l: Layer| {
        let mut b = layer(l);
        assert_eq!(b.pass(NORM, &[("s", 3)]), 1);
        (b.has("LayerNormalization"), b.nodes())
    };
    let plain = Layer::default();
    assert_eq!(of(plain), (true, 1), "with a bias");
    assert_eq!(
        of(Layer {
            no_bias: true,
            ..plain
        }),
        (true, 1),
        "without"
    );
    // A bias that is added to something read elsewhere, or that is data, stays an addition.
    let kept = Layer {
        read_before_bias: true,
        ..plain
    };
    assert_eq!(of(kept), (true, 2));
    let data = Layer {
        bias_of_rows: true,
        ..plain
    };
    assert_eq!(of(data), (true, 2));
    // What is no layer normalisation is still a root mean square.
    for l in [
        Layer {
            other_mean: true,
            ..plain
        },
        Layer {
            other_axis: true,
            ..plain
        },
    ] {
        let (layer, nodes) = of(l);
        assert!(!layer && nodes > 2);
    }
}

/// A convolution of 3 to 4 channels and a normalisation of its result.
fn convolution(bias: bool, read_elsewhere: bool, scale_is_data: bool) -> Build {
    let mut b = Build::default();
    let x = b.input("x", "1,3,h,6");
    let w: Vec<f32> = (0..4 * 3 * 9)
        .map(|i| ((i * 37 % 19) as f32 - 9.0) / 10.0)
        .collect();
    let w = b.floats(&[4, 3, 3, 3], &w);
    let mut operands = vec![x, w];
    if bias {
        operands.push(b.floats(&[4], &[0.5, -1.0, 0.0, 2.0]));
    }
    let conv = Conv {
        window: Window::new(&[3, 3]),
        group: 1,
    };
    let y = b.node(conv, &operands);
    let scale = if scale_is_data {
        b.input("scale", "4")
    } else {
        b.floats(&[4], &[1.0, 2.0, -0.5, 0.25])
    };
    let rest = [
        [0.1, 0.2, 0.3, 0.4],
        [0.5, -0.5, 1.0, -1.0],
        [1.0, 4.0, 0.25, 9.0],
    ];
    let rest = rest.map(|data| b.floats(&[4], &data));
    let normed = b.node(
        BatchNorm { epsilon: 0.01 },
        &[y, scale, rest[0], rest[1], rest[2]],
    );
    b.output(normed);
    if read_elsewhere {
        b.output(y);
    }
    b
}

#[test]
fn normalisations_join_convolutions() {
    for bias in [false, true] {
        let mut b = convolution(bias, false, false);
        assert_eq!(b.pass(CONV_NORM, &[("h", 5)]), 1);
        assert_eq!(b.nodes(), 1);
        let mut b = convolution(bias, true, false);
        assert_eq!(
            b.pass(CONV_NORM, &[("h", 5)]),
            0,
            "the convolution is read elsewhere"
        );
        let mut b = convolution(bias, false, true);
        assert_eq!(b.pass(CONV_NORM, &[("h", 5)]), 0, "the scale is data");
    }
}

#[test]
fn nodes_that_compute_the_same() {
    let twice = |second: Binary, factor: f32| {
        let mut b = Build::default();
        let x = b.input("x", "2,s");
        // Equal constants that are two values.
        let (f, g) = (b.floats(&[], &[3.0]), b.floats(&[], &[factor]));
        let (p, q) = (b.binary(Binary::Mul, x, f), b.binary(second, x, g));
        let (p, q) = (b.unary(Unary::Exp, p), b.unary(Unary::Exp, q));
        let sum = b.binary(Binary::Add, p, q);
        b.output(sum);
        b
    };
    let mut b = twice(Binary::Mul, 3.0);
    assert_eq!(
        b.pass(DUPLICATES, &[("s", 3)]),
        2,
        "the products, then their exponentials"
    );
    assert_eq!(b.nodes(), 3);
    assert_eq!(
        twice(Binary::Mul, 3.5).pass(DUPLICATES, &[("s", 3)]),
        0,
        "another constant"
    );
    assert_eq!(
        twice(Binary::Add, 3.0).pass(DUPLICATES, &[("s", 3)]),
        0,
        "another operator"
    );
    // Both are outputs: each keeps its name.
    let mut b = Build::default();
    let x = b.input("x", "2,s");
    for _ in 0..2 {
        let y = b.unary(Unary::Exp, x);
        b.output(y);
    }
    assert_eq!(b.pass(DUPLICATES, &[("s", 3)]), 0);
    assert_eq!(b.nodes(), 2);
}

#[test]
fn operators_that_change_nothing() {
    let cast = |t| Pointwise {
        name: "Cast".to_owned(),
        expr: Expr::Cast(t, Box::new(Expr::Input(0))),
    };
    let mut b = Build::default();
    let x = b.input("x", "2,s,8");
    let y = b.node(cast(DType::F32), &[x]);
    let y = b.swap(y, &[0, 1, 2]);
    let same = b.list(&[2, -1, 8]);
    let y = b.node(Reshape::Reshape { allow_zero: false }, &[y, same]);
    let ones = b.list(&[1, 1, 1]);
    let y = b.node(Expand, &[y, ones]);
    let y = b.node(Concat { axis: 1 }, &[y]);
    let y = b.unary(Unary::Exp, y);
    b.output(y);
    assert_eq!(b.pass(REMOVE_NOOPS, &[("s", 3)]), 5);
    assert_eq!(b.nodes(), 1);
    // Another type, order or shape; and what makes an output of the model.
    let mut b = Build::default();
    let x = b.input("x", "2,s,8");
    let y = b.node(cast(DType::I64), &[x]);
    let y = b.node(cast(DType::F32), &[y]);
    let y = b.swap(y, &[1, 0, 2]);
    let flat = b.list(&[-1]);
    let y = b.node(Reshape::Reshape { allow_zero: false }, &[y, flat]);
    let y = b.node(Concat { axis: 0 }, &[y, y]);
    let y = b.node(cast(DType::F32), &[y]);
    b.output(y);
    assert_eq!(b.pass(REMOVE_NOOPS, &[("s", 3)]), 0);
}

#[test]
fn products_with_factors_and_biases() {
    for (alpha, beta, trans_a, trans_b, bias) in [
        (1.0, 1.0, false, false, None),
        (1.0, 1.0, false, true, Some("4")),
        (0.5, 2.0, true, false, Some("s,1")),
        (0.25, 0.0, true, true, Some("s,4")),
        (2.0, 1.0, false, true, None),
    ] {
        let mut b = Build::default();
        let x = b.input("x", if trans_a { "3,s" } else { "s,3" });
        let y = b.input("y", if trans_b { "4,3" } else { "3,4" });
        let mut operands = vec![x, y];
        operands.extend(bias.map(|sizes| b.input("c", sizes)));
        let op = Gemm {
            alpha,
            beta,
            trans_a,
            trans_b,
        };
        let z = b.node(op, &operands);
        b.output(z);
        assert_eq!(b.pass(DECOMPOSE_GEMM, &[("s", 5)]), 1);
        assert!(b.has("MatMul") && !b.has("Gemm"), "{op:?}");
    }
}
