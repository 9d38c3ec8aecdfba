//! Fuses the rotary embedding of interleaved pairs as exporters write it: elements `2 i` and
//! `2 i + 1` of each head in `[.., heads, d]` are split, rotated by angles `[.., 1, r / 2]` and
//! interleaved again. If `r` is less than `d`, only a slice of each head is rotated and the rest is
//! appended.

use crate::error::Result;
use crate::graph::op::pointwise::Binary;
use crate::graph::op::rotary::{Pairs, Rotary};
use crate::graph::pass::Pass;
use crate::graph::pass::pattern::{along_last, binary, last_slice, origin, reshaped, shape};
use crate::graph::{Edit, Graph, NodeId, ValueId};
use std::collections::HashSet;

pub const ROTARY_INTERLEAVED: Pass = Pass {
    name: "rotary_interleaved",
    does: "recognizes rotary embedding of interleaved pairs",
    refuses: "heads without four axes; another order of terms",
    run,
};

fn run(edit: &mut Edit<'_>) -> Result<()> {
    let ids: Vec<NodeId> = edit.nodes().map(|(id, _)| id).collect();
    let (mut all, mut parts) = (Vec::new(), HashSet::new());
    // A concatenation of rotated parts comes after them; visiting in reverse matches it first.
    for id in ids.into_iter().rev() {
        let found = edit.node(id).and_then(|node| match node.outputs.as_slice() {
            [y] if !parts.contains(y) => find(edit, *y),
            _ => None,
        });
        if let Some(found) = found {
            parts.extend(found.rotary_part);
            all.push((id, found));
        }
    }
    for (id, InterleavedMatch { inputs, names, .. }) in all.into_iter().rev() {
        let name = edit.node(id).map_or("", |n| &n.name).to_owned();
        if !edit.begin(&format!("interleaved rotary embedding at \"{name}\"")) {
            return Ok(());
        }
        let op = Rotary {
            pairs: Pairs::Neighbours,
        };
        edit.replace_node(id, Box::new(op), inputs.map(Some).to_vec(), names);
    }
    Ok(())
}

struct InterleavedMatch {
    inputs: [ValueId; 3],
    /// The rotated part of each head, if it is not the whole head.
    rotary_part: Option<ValueId>,
    names: Vec<String>,
}

fn find(g: &Graph, y: ValueId) -> Option<InterleavedMatch> {
    g.value(y).fact.as_ref()?.dtype.on_devices().then_some(())?;
    let of_part = along_last(g, y).and_then(|[part, rest]| {
        let (turned, steps) = turned(g, part)?;
        let (x, first, r) = last_slice(g, turned[0])?;
        let (x2, from, _) = last_slice(g, rest)?;
        let whole = shape(g, y)? == shape(g, x)?;
        (x == x2 && first == 0 && from == r && whole).then(|| InterleavedMatch {
            inputs: [x, turned[1], turned[2]],
            rotary_part: Some(part),
            names: origin(g, &[&steps[..], &[y, rest, turned[0]]].concat()),
        })
    });
    of_part.or_else(|| {
        let (inputs, steps) = turned(g, y)?;
        Some(InterleavedMatch {
            inputs,
            rotary_part: None,
            names: origin(g, &steps),
        })
    })
}

/// If `v` is a rotation of interleaved pairs: heads `[.., r]`, cosines and sines `[.., 1, r / 2]`,
/// and the intermediate values.
fn turned(g: &Graph, v: ValueId) -> Option<([ValueId; 3], Vec<ValueId>)> {
    let pairs = reshaped(g, v)?;
    let [first, second] = along_last(g, pairs)?;
    let (left, right) = (reshaped(g, first)?, reshaped(g, second)?);
    let (minus, plus) = (binary(g, left, Binary::Sub)?, binary(g, right, Binary::Add)?);
    let products = |[a, b]: [ValueId; 2]| Some([binary(g, a, Binary::Mul)?, binary(g, b, Binary::Mul)?]);
    let ([even_cos, odd_sin], [p, q]) = (products(minus)?, products(plus)?);
    let (x, even, cos) = element(g, even_cos, 0)?;
    let (x2, odd, sin) = element(g, odd_sin, 1)?;
    let is = |[a, b]: [ValueId; 2], c, d| (a, b) == (c, d) || (a, b) == (d, c);
    let crossed = is(p, odd, cos) && is(q, even, sin) || is(q, odd, cos) && is(p, even, sin);
    let ([heads @ .., d], [a, b, one, n]) = (shape(g, x)?, shape(g, cos)?) else {
        return None;
    };
    let fits = heads.len() == 3
        && heads[..2] == [a.clone(), b.clone()]
        && one.is(1)
        && d.as_const() == n.as_const()?.checked_mul(2)
        && shape(g, sin)? == shape(g, cos)?
        && shape(g, v)? == shape(g, x)?
        && shape(g, even)?.last()? == n
        && shape(g, even)?.get(..3)? == heads
        && shape(g, pairs)?.last()?.is(2);
    (x == x2 && crossed && fits).then(|| {
        let steps = vec![
            v, pairs, first, second, left, right, minus[0], minus[1], plus[0], plus[1], even, odd,
        ];
        ([x, cos, sin], steps)
    })
}

/// Of the factors of a multiplication, in either order: the heads `[.., d]`, the value with their
/// elements `2 i + place`, and the other factor.
fn element(g: &Graph, factors: [ValueId; 2], place: i64) -> Option<(ValueId, ValueId, ValueId)> {
    let [a, b] = factors;
    [(a, b), (b, a)].into_iter().find_map(|(of, other)| {
        let (pairs, first, size) = last_slice(g, reshaped(g, of)?)?;
        let x = reshaped(g, pairs)?;
        let in_pairs = shape(g, pairs)?.last()?.is(2) && shape(g, pairs)?.len() == 5;
        // Cosines and sines are taken from pairs, too; they are not heads.
        let whole = shape(g, x)?.len() == 4 && shape(g, x)?[2] == shape(g, of)?[2];
        (first == place && size == 1 && in_pairs && whole && shape(g, other)?.get(2)?.is(1))
            .then_some((x, of, other))
    })
}
