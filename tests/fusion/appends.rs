//! Rotary embedding and appends before an attention.

use super::*;
use transformer_lite::graph::State;
use transformer_lite::graph::op::attention::Attention;
use transformer_lite::graph::op::kv_append::KvAppend;
use transformer_lite::graph::op::rotary::{Pairs, Rotary};
use transformer_lite::graph::pass::ROTARY_APPEND;
use transformer_lite::shape::Symbol;

/// What keeps the nodes apart.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Apart {
    angles: bool,
    keys_as_they_are: bool,
    keys_read: bool,
    queries_are_output: bool,
}

fn before_attention(apart: Apart) -> Build {
    let mut b = Build::default();
    let (q, k, v) = (
        b.input("q", "1,s,4,8"),
        b.input("k", "1,s,2,8"),
        b.input("v", "1,s,2,8"),
    );
    let (cos, sin) = (b.input("cos", "1,s,1,8"), b.input("sin", "1,s,1,8"));
    let (past_k, past_v) = (b.input("past_k", "1,t,2,8"), b.input("past_v", "1,t,2,8"));
    let query = b.node(Rotary { pairs: Pairs::Halves }, &[q, cos, sin]);
    let angles = if apart.angles { [sin, cos] } else { [cos, sin] };
    let new = if apart.keys_as_they_are {
        k
    } else {
        b.node(Rotary { pairs: Pairs::Halves }, &[k, angles[0], angles[1]])
    };
    let keys = b.node(KvAppend { axis: 1 }, &[past_k, new]);
    let values = b.node(KvAppend { axis: 1 }, &[past_v, v]);
    let y = b.node(Attention::scaled(0.25), &[query, keys, values]);
    b.output(y);
    if apart.keys_read {
        let other = b.unary(Unary::Neg, new);
        b.output(other);
    }
    if apart.queries_are_output {
        b.output(query);
    }
    for (input, output) in [(past_k, keys), (past_v, values)] {
        let past = Symbol::new("t");
        Edit::new(&mut b.0).add_state(State {
            input,
            output,
            axis: 1,
            past,
            window: None,
        });
    }
    b
}

#[test]
fn rotary_embedding_and_appends_are_one_node() {
    let sizes = [("s", 3), ("t", 5)];
    let mut b = before_attention(Apart::default());
    assert_eq!(b.pass(ROTARY_APPEND, &sizes), 1);
    assert!(b.has("RotaryAppend") && b.nodes() == 2);
    let apart = Apart::default();
    for apart in [
        Apart {
            angles: true,
            ..apart
        },
        Apart {
            keys_as_they_are: true,
            ..apart
        },
        Apart {
            keys_read: true,
            ..apart
        },
        Apart {
            queries_are_output: true,
            ..apart
        },
    ] {
        assert_eq!(
            before_attention(apart).pass(ROTARY_APPEND, &sizes),
            0,
            "{apart:?}"
        );
    }
}
