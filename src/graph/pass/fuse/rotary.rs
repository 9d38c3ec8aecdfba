//! Fuses the rotary embedding as exporters write it: `x * cos + concat(-x[h..], x[..h]) * sin` over
//! `[b, s, heads, d]` with angles `[b, s, 1, d]`, operands in either order. The heads, or a part of
//! each, may also be transposed to `[b, heads, s, d]` with angles `[b, 1, s, d]`; the transpose
//! then moves after the embedding.

use crate::error::Result;
use crate::graph::op::pointwise::{Binary, Unary};
use crate::graph::op::rotary::{Pairs, Rotary};
use crate::graph::op::slice::Slice;
use crate::graph::op::transpose::Transpose;
use crate::graph::pass::Pass;
use crate::graph::pass::pattern::{
    along_last, binary, input, last_slice, origin, producer, shape, transposed, unary,
};
use crate::graph::{Edit, Graph, ValueId};
use std::collections::HashMap;

pub const ROTARY: Pass = Pass {
    name: "rotary",
    does: "recognizes `x * cos + rotate_half(x) * sin`, on whole heads or their first part",
    refuses: "angles not `[b, s, 1, d]` or `[b, 1, s, d]`",
    run,
};

fn run(edit: &mut Edit<'_>) -> Result<()> {
    let ids: Vec<_> = edit.nodes().map(|(id, n)| (id, n.outputs.clone())).collect();
    // All layers share the same angles.
    let mut turned: HashMap<ValueId, ValueId> = HashMap::new();
    for (id, outputs) in ids {
        let [y] = outputs.as_slice() else { continue };
        let Some((inputs, order, names)) = find(edit, *y) else {
            continue;
        };
        let name = edit.value(*y).name.clone();
        if !edit.begin(&format!("rotary embedding at \"{name}\"")) {
            continue;
        }
        let [mut x, mut cos, mut sin] = inputs;
        match order {
            HeadLayout::HeadRows => {
                let inputs = [x, cos, sin].map(Some).to_vec();
                edit.replace_node(id, Box::new(Rotary { pairs: Pairs::Halves }), inputs, names);
                continue;
            }
            HeadLayout::Heads => {}
            HeadLayout::PartOfHeads(lists) => {
                let part = format!("{name}/part");
                let v = edit.add_value(&part, None);
                let inputs = std::iter::once(Some(x)).chain(lists).collect();
                edit.add_node(&part, names.clone(), Box::new(Slice), inputs, vec![v]);
                x = v;
            }
        }
        for angle in [&mut cos, &mut sin] {
            *angle = *turned
                .entry(*angle)
                .or_insert_with(|| swap(edit, *angle, "rows", &names));
        }
        let rows = edit.add_value(&format!("{name}/rows"), None);
        let inputs = [x, cos, sin].map(Some).to_vec();
        let node = format!("{name}/rotary");
        edit.add_node(
            &node,
            names.clone(),
            Box::new(Rotary { pairs: Pairs::Halves }),
            inputs,
            vec![rows],
        );
        edit.replace_node(id, Box::new(transpose()), vec![Some(rows)], names);
    }
    Ok(())
}

fn transpose() -> Transpose {
    Transpose {
        perm: Some(vec![0, 2, 1, 3]),
    }
}

/// `v` with its two middle axes swapped.
fn swap(edit: &mut Edit<'_>, v: ValueId, suffix: &str, origin: &[String]) -> ValueId {
    let name = format!("{}/{suffix}", edit.value(v).name);
    let out = edit.add_value(&name, None);
    edit.add_node(
        &name,
        origin.to_vec(),
        Box::new(transpose()),
        vec![Some(v)],
        vec![out],
    );
    out
}

/// Layout of the operand of an embedding.
enum HeadLayout {
    /// `[b, s, heads, d]`.
    HeadRows,
    /// `[b, heads, s, d]`, transposed from `Rows`.
    Heads,
    /// A slice along the last axis of the transposed rows, with these operands.
    PartOfHeads(Vec<Option<ValueId>>),
}

/// Operands of the rotary embedding that makes `y` (the first one always `[b, s, heads, d]`), their
/// layout, and the origin of the nodes.
fn find(g: &Graph, y: ValueId) -> Option<([ValueId; 3], HeadLayout, Vec<String>)> {
    let [a, b] = binary(g, y, Binary::Add)?;
    g.value(y).fact.as_ref()?.dtype.on_devices().then_some(())?;
    let (p, q) = (binary(g, a, Binary::Mul)?, binary(g, b, Binary::Mul)?);
    for (plain, turned) in [(p, q), (q, p)] {
        for (half, sin) in [(turned[0], turned[1]), (turned[1], turned[0])] {
            let Some((x, mut steps)) = rotate_half(g, half) else {
                continue;
            };
            let cos = match plain {
                [v, c] | [c, v] if v == x => c,
                _ => continue,
            };
            let refuse = |why: &str| {
                log::debug!("no rotary embedding at \"{}\": {why}", g.value(y).name);
                None
            };
            let ([b0, s0, s1, d], [cb, c0, c1, cd]) = (shape(g, x)?, shape(g, cos)?) else {
                return refuse("heads or angles do not have four axes");
            };
            if b0 != cb || d != cd || shape(g, sin)? != shape(g, cos)? {
                return refuse("shapes of angles and heads do not match");
            }
            steps.extend([y, a, b]);
            if s0 == c0 && c1.is(1) {
                return Some(([x, cos, sin], HeadLayout::HeadRows, origin(g, &steps)));
            }
            if !(s1 == c1 && c0.is(1)) {
                return refuse("angles are neither [b, s, 1, d] nor [b, 1, s, d]");
            }
            if let Some(rows) = transposed(g, x, &[0, 2, 1, 3]) {
                return Some(([rows, cos, sin], HeadLayout::Heads, origin(g, &steps)));
            }
            let Some((rows, lists)) = part_of_rows(g, x) else {
                return refuse("heads are not transposed from [b, s, heads, d]");
            };
            return Some((
                [rows, cos, sin],
                HeadLayout::PartOfHeads(lists),
                origin(g, &steps),
            ));
        }
    }
    None
}

/// If `v` is a slice along the last axis of transposed rows: the rows `[b, s, heads, d]` and the
/// operands of the slice.
fn part_of_rows(g: &Graph, v: ValueId) -> Option<(ValueId, Vec<Option<ValueId>>)> {
    let (_, node, _) = producer::<Slice>(g, v)?;
    let axes = g
        .value(input(node, 3)?)
        .fact
        .as_ref()?
        .as_const()?
        .to_i64()
        .ok()?;
    let rows = transposed(g, input(node, 0)?, &[0, 2, 1, 3])?;
    let rest = node.inputs.iter().skip(1).copied();
    (axes == [-1] || axes == [3]).then(|| (rows, rest.collect()))
}

/// If `v` is `concat(-x[h..], x[..h])` along the last axis: `x` and the intermediate values.
fn rotate_half(g: &Graph, v: ValueId) -> Option<(ValueId, Vec<ValueId>)> {
    let [negated, low] = along_last(g, v)?;
    let high = unary(g, negated, Unary::Neg)?;
    let ((x, first, half), (x2, from, rest)) = (last_slice(g, low)?, last_slice(g, high)?);
    let whole = shape(g, x)?.last()?.is(2 * half);
    (x == x2 && first == 0 && from == half && rest == half && whole).then(|| (x, vec![v, negated, high, low]))
}
