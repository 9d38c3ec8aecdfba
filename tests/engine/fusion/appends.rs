//! Rotary embedding and appends before an attention.

use super::*;
use transformer_lite::unstable::graph::State;
use transformer_lite::unstable::graph::op::attention::Attention;
use transformer_lite::unstable::graph::op::kv_append::KvAppend;
use transformer_lite::unstable::graph::op::rotary::{Pairs, Rotary};
use transformer_lite::unstable::graph::pass::ROTARY_APPEND;
use transformer_lite::unstable::shape::Symbol;

/// How rows lie, and which elements turn with each other.
#[derive(Clone, Copy, Debug)]
struct Form {
    pairs: Pairs,
    axis: usize,
}

const FORMS: [Form; 3] = [
    Form {
        pairs: Pairs::Halves,
        axis: 1,
    },
    Form {
        pairs: Pairs::Neighbours,
        axis: 1,
    },
    Form {
        pairs: Pairs::Neighbours,
        axis: 0,
    },
];

/// What keeps the nodes apart.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Apart {
    angles: bool,
    keys_as_they_are: bool,
    keys_read: bool,
    queries_are_output: bool,
}

fn before_attention(Form { pairs, axis }: Form, apart: Apart) -> Build {
    let mut b = Build::default();
    let sizes = |rows: &str, rest: &str| match axis {
        0 => format!("{rows},1,{rest}"),
        _ => format!("1,{rows},{rest}"),
    };
    let angles = if pairs == Pairs::Halves { "1,8" } else { "1,2" };
    let (q, k, v) = (
        b.input("q", &sizes("s", "4,8")),
        b.input("k", &sizes("s", "2,8")),
        b.input("v", &sizes("s", "2,8")),
    );
    let (cos, sin) = (
        b.input("cos", &sizes("s", angles)),
        b.input("sin", &sizes("s", angles)),
    );
    let (past_k, past_v) = (
        b.input("past_k", &sizes("t", "2,8")),
        b.input("past_v", &sizes("t", "2,8")),
    );
    let query = b.node(Rotary { pairs }, &[q, cos, sin]);
    let angles = if apart.angles { [sin, cos] } else { [cos, sin] };
    let new = if apart.keys_as_they_are {
        k
    } else {
        b.node(Rotary { pairs }, &[k, angles[0], angles[1]])
    };
    let keys = b.node(KvAppend { axis }, &[past_k, new]);
    let values = b.node(KvAppend { axis }, &[past_v, v]);
    let mut rows = [query, keys, values];
    if axis == 0 {
        rows = rows.map(|v| {
            let perm = Some(vec![1, 0, 2, 3]);
            b.node(Transpose { perm }, &[v])
        });
    }
    let y = b.node(Attention::scaled(0.25), &rows);
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
            axis,
            past,
            window: None,
        });
    }
    b
}

#[test]
fn rotary_embedding_and_appends_are_one_node() {
    let sizes = [("s", 3), ("t", 5)];
    for form in FORMS {
        let mut b = before_attention(form, Apart::default());
        assert_eq!(b.pass(ROTARY_APPEND, &sizes), 1, "{form:?}");
        let exchanges = if form.axis == 0 { 3 } else { 0 };
        assert!(b.has("RotaryAppend") && b.nodes() == 2 + exchanges, "{form:?}");
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
                before_attention(form, apart).pass(ROTARY_APPEND, &sizes),
                0,
                "{form:?}, {apart:?}"
            );
        }
    }
}
