//! Forms of decoders: caches of which new rows come out, bent scores, scales on operands, joined
//! heads.

use super::*;

/// Which values of a cache come out.
#[derive(Clone, Copy, Debug)]
enum Out {
    New,
    NewTurned,
    Copy,
    Nothing,
}

/// A cache of heads before rows, of which the new rows `[1, s, 3, 4]` are turned, with a reader of
/// the whole.
fn cache_with(out: Out) -> Build {
    let mut b = Build::default();
    let (past, rows) = (b.input("past", "1,3,t,4"), b.input("rows", "1,s,3,4"));
    let rows = b.unary(Unary::Abs, rows);
    let new = b.swap(rows, &[0, 2, 1, 3]);
    let present = b.node(Concat { axis: 2 }, &[past, new]);
    let y = b.unary(Unary::Neg, present);
    b.output(y);
    match out {
        Out::New => b.output(new),
        Out::NewTurned => b.output(rows),
        Out::Copy => {
            let copy = b.node(Reshape::Identity, &[present]);
            b.output(copy);
        }
        Out::Nothing => {}
    }
    b
}

#[test]
fn new_rows_alone_make_a_state() {
    for out in [Out::New, Out::NewTurned, Out::Copy, Out::Nothing] {
        let mut b = cache_with(out);
        let pipeline = Pipeline {
            passes: vec![KV_CACHE],
            edit_limit: usize::MAX,
        };
        pipeline.run(&mut b.0).unwrap();
        let states = usize::from(!matches!(out, Out::Nothing));
        assert_eq!(b.0.states().len(), states, "{out:?}");
        // The reader's result stays, and what the state makes needless is no output any more.
        assert_eq!(
            (b.0.outputs().len(), b.has("KvAppend")),
            (1, states == 1),
            "{out:?}"
        );
        assert_eq!(b.0.inputs().len(), 2 - states, "{out:?}");
    }
}

/// Attention with scores as `make` makes them of q and k `[1, 3, s or t, 4]`.
fn scores_by(make: impl Fn(&mut Build, ValueId, ValueId) -> ValueId) -> Build {
    let mut b = Build::default();
    let [q, k, v] = [("q", "1,s,3,4"), ("k", "1,t,3,4"), ("v", "1,t,3,4")].map(|(name, sizes)| {
        let x = b.input(name, sizes);
        b.swap(x, &[0, 2, 1, 3])
    });
    let mask = b.input("mask", "1,1,s,t");
    let scores = make(&mut b, q, k);
    let scores = b.binary(Binary::Add, scores, mask);
    let softmax = Softmax {
        axis: -1,
        flatten: false,
    };
    let weights = b.node(softmax, &[scores]);
    let sum = b.node(MatMul { trans_b: false }, &[weights, v]);
    let y = b.swap(sum, &[0, 2, 1, 3]);
    b.output(y);
    b
}

const SIZES: [(&str, i64); 2] = [("s", 3), ("t", 5)];

#[test]
fn bent_scores_are_a_cap() {
    let bent = |by: f32, f: Unary| {
        scores_by(move |b, q, k| {
            let scores = b.node(MatMul { trans_b: true }, &[q, k]);
            let (half, first, second) = (b.floats(&[], &[0.5]), b.floats(&[], &[2.0]), b.floats(&[], &[by]));
            let scores = b.binary(Binary::Mul, scores, half);
            let inner = b.binary(Binary::Div, scores, first);
            let bent = b.unary(f, inner);
            b.binary(Binary::Mul, bent, second)
        })
    };
    // Whatever the two factors are: the one before counts as a scale. The pass is checked to change
    // no result.
    for by in [2.0, 3.0] {
        let mut b = bent(by, Unary::Tanh);
        assert_eq!((b.pass(ATTENTION, &SIZES), b.nodes()), (1, 1), "{by}");
    }
    for (by, f) in [(-2.0, Unary::Tanh), (2.0, Unary::Sigmoid)] {
        assert_eq!(bent(by, f).pass(ATTENTION, &SIZES), 0, "{by} {f:?}");
    }
}

#[test]
fn scales_of_operands_are_one() {
    let mut b = scores_by(|b, q, k| {
        let (c, d) = (b.floats(&[], &[0.7]), b.floats(&[], &[2.0]));
        let turned = b.swap(k, &[0, 1, 3, 2]);
        let (q, k) = (b.binary(Binary::Mul, q, c), b.binary(Binary::Div, turned, d));
        b.node(MatMul { trans_b: false }, &[q, k])
    });
    assert!(b.pass(SINK_TRANSPOSES, &SIZES) > 0);
    assert_eq!(b.pass(TRANS_B, &SIZES), 1);
    assert_eq!(b.pass(ATTENTION, &SIZES), 1);
    // A factor for each element is no scale.
    let mut b = scores_by(|b, q, k| {
        let row = b.floats(&[4], &[0.7, 1.0, 2.0, 3.0]);
        let q = b.binary(Binary::Mul, q, row);
        b.node(MatMul { trans_b: true }, &[q, k])
    });
    assert_eq!(b.pass(ATTENTION, &SIZES), 0);
}

#[test]
fn a_bias_of_heads_before_the_mask() {
    let biased = |sizes: &'static str| {
        scores_by(move |b, q, k| {
            let scores = b.node(MatMul { trans_b: true }, &[q, k]);
            let bias = b.input("bias", sizes);
            b.binary(Binary::Add, scores, bias)
        })
    };
    for sizes in ["1,3,1,t", "3,s,t"] {
        let mut b = biased(sizes);
        assert_eq!((b.pass(ATTENTION, &SIZES), b.nodes()), (1, 2), "{sizes}");
    }
    assert_eq!(
        biased("2,1,1,t").pass(ATTENTION, &SIZES),
        0,
        "a bias that repeats the scores"
    );
}

/// A rotary embedding of the first 4 elements of heads of 6, which lie before the rows; the others
/// stay.
fn part_turned(from: i64) -> Build {
    let mut b = Build::default();
    let x = b.input("x", "1,s,3,6");
    let (cos, sin) = (b.input("cos", "1,1,s,4"), b.input("sin", "1,1,s,4"));
    let x = b.swap(x, &[0, 2, 1, 3]);
    let (turns, stays) = (b.part(x, from, from + 4), b.part(x, 4, i64::MAX));
    let (low, high) = (b.part(turns, 0, 2), b.part(turns, 2, i64::MAX));
    let high = b.unary(Unary::Neg, high);
    let half = b.node(Concat { axis: -1 }, &[high, low]);
    let (plain, turned) = (
        b.binary(Binary::Mul, turns, cos),
        b.binary(Binary::Mul, half, sin),
    );
    let turned = b.binary(Binary::Add, plain, turned);
    let y = b.node(Concat { axis: -1 }, &[turned, stays]);
    b.output(y);
    b
}

#[test]
fn parts_of_heads_turn() {
    for from in [0, 2] {
        let mut b = part_turned(from);
        assert_eq!(b.pass(ROTARY, &[("s", 3)]), 1);
        assert!(b.pass(SINK_TRANSPOSES, &[("s", 3)]) > 0);
        // One transpose is left, the last node; and one of each table of angles.
        let transposes = b.0.nodes().filter(|(_, n)| n.op.name() == "Transpose").count();
        assert_eq!(transposes, 3);
        let last =
            b.0.producer(b.0.outputs()[0])
                .map(|(_, n)| n.op.name().to_owned());
        assert_eq!(last.as_deref(), Some("Transpose"));
    }
}

/// Attention over rows `[s, 1, 4, 6]`, heads joined before the products; the softmax has an axis
/// for the heads.
fn joined_heads(softmax: i64) -> Build {
    let mut b = Build::default();
    let reshape = |b: &mut Build, x: ValueId, sizes: &[i64]| {
        let sizes = b.list(sizes);
        b.node(Reshape::Reshape { allow_zero: false }, &[x, sizes])
    };
    let [q, k, v] = ["s", "t", "t"].map(|rows| {
        let x = b.input(rows, &format!("{rows},1,4,6"));
        let flat = reshape(&mut b, x, &[0, -1, 6]);
        b.swap(flat, &[1, 0, 2])
    });
    let scores = b.node(MatMul { trans_b: true }, &[q, k]);
    let half = b.floats(&[], &[0.5]);
    let scores = b.binary(Binary::Mul, scores, half);
    let apart = b.list(&[0]);
    let scores = b.node(Reshape::Unsqueeze, &[scores, apart]);
    let mask = b.input("mask", "s,t");
    let scores = b.binary(Binary::Add, scores, mask);
    let softmax = Softmax {
        axis: softmax,
        flatten: false,
    };
    let weights = b.node(softmax, &[scores]);
    let weights = b.node(Reshape::Squeeze, &[weights, apart]);
    let sum = b.node(MatMul { trans_b: false }, &[weights, v]);
    let sum = reshape(&mut b, sum, &[1, 4, -1, 6]);
    let y = b.swap(sum, &[2, 0, 1, 3]);
    b.output(y);
    b
}

#[test]
fn heads_joined_before_products() {
    let mut b = joined_heads(-1);
    assert_eq!(b.pass(ATTENTION, &SIZES), 1);
    assert!(b.has("Attention") && !b.has("Softmax"));
    assert_eq!(
        joined_heads(-2).pass(ATTENTION, &SIZES),
        0,
        "softmax over queries"
    );
}

#[test]
fn slices_of_everything_go_away() {
    let slice = |step: i64, end: i64| {
        let mut b = Build::default();
        let x = b.input("x", "s,4");
        let lists = [0, end, 1, step].map(|v| b.list(&[v]));
        let [start, end, axis, step] = lists;
        let part = b.node(Slice, &[x, start, end, axis, step]);
        let y = b.unary(Unary::Neg, part);
        b.output(y);
        b
    };
    assert_eq!(slice(1, 4).pass(REMOVE_NOOPS, &[("s", 3)]), 1);
    assert_eq!(slice(1, i64::MAX).pass(REMOVE_NOOPS, &[("s", 3)]), 1);
    assert_eq!(slice(1, 3).pass(REMOVE_NOOPS, &[("s", 3)]), 0, "a part");
}
