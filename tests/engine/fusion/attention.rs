//! Attention that exporters decompose, its caches, and groups of heads.

use super::*;

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
            mask: Some("1,3,s,t"),
            ..PLAIN
        },
        Heads {
            mask: Some("1,1,1,t"),
            ..PLAIN
        },
        Heads {
            mask: Some("s,1"),
            ..PLAIN
        },
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
            "a mask with an axis that repeats the scores",
            Heads {
                mask: Some("2,1,1,t"),
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

/// A cache `past` of `sizes` that grows along `axis` by `new`; its readers are the concatenation
/// and a product.
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
