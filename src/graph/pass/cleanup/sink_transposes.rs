//! Cancels or merges operators that only move elements, or sinks them below elementwise operators
//! where they may cancel with others (*LLM inference on ARM*, section III; paper, section 2.2).
//!
//! * two transposes in a row become one, or none;
//! * slices along different axes become one;
//! * a slice that is one part of a concatenation becomes that part, and the concatenation of all
//!   parts of a value becomes the value;
//! * a transpose or reshape of every operand of an elementwise operator (single elements excepted)
//!   moves below it;
//! * a swap of heads and rows `[b, s, heads, d]` moves below slices of heads and their
//!   concatenations.

use crate::error::{Error, Result, Stage};
use crate::graph::op::Op;
use crate::graph::op::concat::Concat;
use crate::graph::op::pointwise::Pointwise;
use crate::graph::op::reshape::Reshape;
use crate::graph::op::slice::Slice;
use crate::graph::op::transpose::Transpose;
use crate::graph::pass::Pass;
use crate::graph::pass::pattern::{input, producer, shape};
use crate::graph::{Edit, Graph, NodeId, ValueId};
use crate::num;
use crate::shape::Fact;
use crate::tensor::HostTensor;
use std::sync::Arc;

pub const SINK_TRANSPOSES: Pass = Pass {
    name: "sink_transposes",
    does: "cancels and merges transposes, reshapes, slices and concatenations; moves them past elementwise operators",
    refuses: "operands moved differently; two slices of one axis",
    run,
};

/// A rewrite of one node.
enum Rewrite {
    /// Its result is replaced by this value.
    Is(ValueId),
    /// It becomes a transpose of this value with this order of axes.
    Transpose(ValueId, Vec<i64>),
    /// It becomes a slice of this value with these starts, ends, axes and steps.
    Slice(ValueId, [Vec<i64>; 4]),
    /// It becomes this operator on these values along their last axis, followed by a transpose.
    Last {
        op: Box<dyn Op>,
        inputs: Vec<Option<ValueId>>,
        perm: Vec<i64>,
    },
    /// It reads these values, and the node that moved its operands comes after it.
    Sink {
        inputs: Vec<Option<ValueId>>,
        mover: NodeId,
        /// Fact of its result.
        fact: Fact,
    },
}

fn run(edit: &mut Edit<'_>) -> Result<()> {
    loop {
        let before = edit.count();
        for id in edit.order()? {
            let Some((change, what)) = find(edit, id) else {
                continue;
            };
            let name = edit.node(id).map(|n| n.name.clone()).unwrap_or_default();
            if !edit.begin(&format!("\"{name}\" {what}")) {
                return Ok(());
            }
            apply(edit, id, change)?;
        }
        if edit.count() == before {
            return Ok(());
        }
    }
}

fn apply(edit: &mut Edit<'_>, id: NodeId, change: Rewrite) -> Result<()> {
    let Some(node) = edit.node(id).cloned() else {
        return Ok(());
    };
    let (name, origin) = (node.name, node.origin);
    let Some(y) = node.outputs.first().copied() else {
        return Ok(());
    };
    match change {
        Rewrite::Is(x) => {
            edit.replace_readers(y, x);
            edit.remove_node(id);
        }
        Rewrite::Transpose(x, perm) => {
            let op = Box::new(Transpose { perm: Some(perm) });
            edit.replace_node(id, op, vec![Some(x)], origin);
        }
        Rewrite::Slice(x, lists) => {
            let mut inputs = vec![Some(x)];
            for (list, part) in lists.iter().zip(["starts", "ends", "axes", "steps"]) {
                let tensor = HostTensor::from_i64(&[list.len()], list);
                let tensor = tensor.map_err(|e| Error::other(Stage::Pass, e.to_string()))?;
                inputs.push(Some(edit.add_const(&format!("{name}/{part}"), Arc::new(tensor))));
            }
            edit.replace_node(id, node.op, inputs, origin);
        }
        Rewrite::Last { op, inputs, perm } => {
            let unmoved = format!("{name}/unmoved");
            let still = edit.add_value(&unmoved, last_axis_fact(edit, y, &perm));
            edit.add_node(&unmoved, origin.clone(), op, inputs, vec![still]);
            let transpose = Box::new(Transpose { perm: Some(perm) });
            edit.replace_node(id, transpose, vec![Some(still)], origin);
        }
        Rewrite::Sink { inputs, mover, fact } => {
            let Some(mut mover) = edit.node(mover).cloned() else {
                return Ok(());
            };
            let still = edit.add_value(&format!("{name}/unmoved"), Some(fact));
            edit.remove_node(id);
            edit.add_node(&name, origin, node.op, inputs, vec![still]);
            if let Some(first) = mover.inputs.first_mut() {
                *first = Some(still);
            }
            let moved = format!("{}/behind", mover.name);
            edit.add_node(&moved, mover.origin, mover.op, mover.inputs, node.outputs);
        }
    }
    Ok(())
}

fn find(g: &Edit<'_>, id: NodeId) -> Option<(Rewrite, &'static str)> {
    // Nodes without readers are removed after the pass.
    let y = *g.node(id)?.outputs.first()?;
    if g.readers(y).next().is_none() && !g.is_kept(y) {
        return None;
    }
    transposes(g, id)
        .map(|c| (c, "is merged with the transpose before it"))
        .or_else(|| slices(g, id).map(|c| (c, "is merged with the slice before it")))
        .or_else(|| part(g, id).map(|c| (c, "is a part of a concatenation")))
        .or_else(|| whole(g, id).map(|c| (c, "concatenates all parts of one value")))
        .or_else(|| sink(g, id).map(|c| (c, "moves above the node that moves its operands")))
        .or_else(|| along_last(g, id).map(|c| (c, "moves above the transpose of its operands")))
}

/// The fact of the operand of the transpose by `perm` that makes `y`.
fn last_axis_fact(g: &Graph, y: ValueId, perm: &[i64]) -> Option<Fact> {
    let fact = g.value(y).fact.as_ref()?;
    let mut sizes = fact.shape.0.clone();
    for (size, p) in fact.shape.0.iter().zip(perm) {
        *sizes.get_mut(usize::try_from(*p).ok()?)? = size.clone();
    }
    Some(Fact::new(fact.dtype, crate::shape::Shape(sizes)))
}

/// A slice or a concatenation along the last axis, after the two axes before it are swapped.
fn along_last(g: &Graph, id: NodeId) -> Option<Rewrite> {
    let node = g.node(id)?;
    let y = *node.outputs.first()?;
    let rank = shape(g, y)?.len();
    let last = rank.checked_sub(1)?;
    let before = |v: ValueId| {
        let (_, n, t) = producer::<Transpose>(g, v)?;
        let axes = t.axes(rank).ok()?;
        (axes == [0, 2, 1, 3]).then_some((input(n, 0)?, axes))
    };
    let (op, inputs, axes): (Box<dyn Op>, Vec<Option<ValueId>>, _) = if node.op.downcast::<Slice>().is_some()
    {
        let (v, [_, _, axes, _]) = lists(g, id)?;
        let (x, order) = before(v)?;
        let along = axes.iter().all(|a| usize::try_from(*a) == Ok(last));
        // Without a list of axes, the slice applies to the first axes.
        (along && node.inputs.len() > 3).then_some(())?;
        let rest = node.inputs.iter().skip(1).copied();
        (
            Box::new(Slice),
            std::iter::once(Some(x)).chain(rest).collect(),
            order,
        )
    } else {
        let concat = node.op.downcast::<Concat>()?;
        (crate::graph::op::axis(concat.axis, rank).ok()? == last).then_some(())?;
        let mut inputs = Vec::with_capacity(node.inputs.len());
        let mut order: Option<Vec<usize>> = None;
        for v in &node.inputs {
            let (x, axes) = before((*v)?)?;
            if order.as_ref().is_some_and(|o| *o != axes) {
                return None;
            }
            order = Some(axes);
            inputs.push(Some(x));
        }
        (Box::new(concat.clone()), inputs, order?)
    };
    let perm = axes.into_iter().map(num::signed).collect();
    Some(Rewrite::Last { op, inputs, perm })
}

fn transposes(g: &Graph, id: NodeId) -> Option<Rewrite> {
    let node = g.node(id)?;
    let outer = node.op.downcast::<Transpose>()?;
    let v = input(node, 0)?;
    let (_, before, inner) = producer::<Transpose>(g, v)?;
    let x = input(before, 0)?;
    let rank = shape(g, v)?.len();
    let (p, q) = (inner.axes(rank).ok()?, outer.axes(rank).ok()?);
    let joint: Option<Vec<usize>> = q.iter().map(|i| p.get(*i).copied()).collect();
    let joint = joint?;
    let y = *node.outputs.first()?;
    if joint.is_sorted() && !g.is_kept(y) {
        return Some(Rewrite::Is(x));
    }
    Some(Rewrite::Transpose(
        x,
        joint.into_iter().map(num::signed).collect(),
    ))
}

/// Starts, ends, axes and steps of a slice; `None` if they are not constant.
fn lists(g: &Graph, id: NodeId) -> Option<(ValueId, [Vec<i64>; 4])> {
    let node = g.node(id)?;
    node.op.downcast::<Slice>()?;
    let x = input(node, 0)?;
    let rank = shape(g, x)?.len();
    let list = |i: usize| -> Option<Vec<i64>> {
        let v = input(node, i)?;
        g.value(v).fact.as_ref()?.as_const()?.to_i64().ok()
    };
    let (starts, ends) = (list(1)?, list(2)?);
    let axes: Vec<i64> = match input(node, 3) {
        Some(_) => list(3)?,
        None => (0..num::signed(starts.len())).collect(),
    };
    let steps = match input(node, 4) {
        Some(_) => list(4)?,
        None => vec![1; starts.len()],
    };
    let axes: Option<Vec<i64>> = axes
        .iter()
        .map(|a| Some(num::signed(crate::graph::op::axis(*a, rank).ok()?)))
        .collect();
    Some((x, [starts, ends, axes?, steps]))
}

fn slices(g: &Edit<'_>, id: NodeId) -> Option<Rewrite> {
    let (v, mut outer) = lists(g, id)?;
    let (before, _, _) = producer::<Slice>(g, v)?;
    let (x, inner) = lists(g, before)?;
    if g.only_reader(v) != Some(id) {
        return None;
    }
    if outer[2].iter().any(|a| inner[2].contains(a)) {
        log::debug!(
            "slices at \"{}\" are not merged: both cut the same axis",
            g.value(v).name
        );
        return None;
    }
    for (all, more) in outer.iter_mut().zip(inner) {
        all.extend(more);
    }
    Some(Rewrite::Slice(x, outer))
}

/// The axis and range of a slice with step 1 that cuts one axis of known size.
fn range(g: &Graph, id: NodeId) -> Option<(ValueId, usize, [i64; 2])> {
    let (x, [starts, ends, axes, steps]) = lists(g, id)?;
    let ([start], [end], [axis], [1]) = (
        starts.as_slice(),
        ends.as_slice(),
        axes.as_slice(),
        steps.as_slice(),
    ) else {
        return None;
    };
    let axis = usize::try_from(*axis).ok()?;
    let size = shape(g, x)?.get(axis)?.as_const()?;
    let place = |v: i64| (if v < 0 { v.saturating_add(size) } else { v }).clamp(0, size);
    let start = place(*start);
    Some((x, axis, [start, place(*end).max(start)]))
}

fn part(g: &Graph, id: NodeId) -> Option<Rewrite> {
    let (v, axis, [start, end]) = range(g, id)?;
    let y = *g.node(id)?.outputs.first()?;
    let (_, join, concat) = producer::<Concat>(g, v)?;
    if crate::graph::op::axis(concat.axis, shape(g, v)?.len()).ok()? != axis || g.is_kept(y) {
        return None;
    }
    let mut at = 0i64;
    for part in join.inputs.iter().flatten() {
        let next = at.checked_add(shape(g, *part)?.get(axis)?.as_const()?)?;
        if at == start && next == end {
            return Some(Rewrite::Is(*part));
        }
        at = next;
    }
    None
}

fn whole(g: &Graph, id: NodeId) -> Option<Rewrite> {
    let node = g.node(id)?;
    let concat = node.op.downcast::<Concat>()?;
    let y = *node.outputs.first()?;
    let mut of = None;
    let mut at = 0i64;
    for v in node.inputs.iter().flatten() {
        let (x, axis, [start, end]) = range(g, g.producer(*v)?.0)?;
        let joins = crate::graph::op::axis(concat.axis, shape(g, x)?.len()).ok()? == axis;
        if !joins || start != at || of.is_some_and(|o| o != x) {
            return None;
        }
        (of, at) = (Some(x), end);
    }
    (shape(g, of?)? == shape(g, y)? && !g.is_kept(y)).then_some(Rewrite::Is(of?))
}

fn sink(g: &Edit<'_>, id: NodeId) -> Option<Rewrite> {
    let node = g.node(id)?;
    node.op.downcast::<Pointwise>()?;
    let y = *node.outputs.first()?;
    // Shape arithmetic does not run, so moving it gains nothing.
    if g.value(y).fact.as_ref()?.as_dims().is_some() {
        return None;
    }
    let moved = |v: ValueId| {
        let (from, n) = g.producer(v)?;
        let moves = n.op.downcast::<Transpose>().is_some() || n.op.downcast::<Reshape>().is_some();
        let alone = g.only_reader(v) == Some(id) && shape(g, v)? == shape(g, y)?;
        (moves && alone).then_some((from, n))
    };
    let inputs: Vec<ValueId> = node.inputs.iter().flatten().copied().collect();
    let (mover, first) = inputs.iter().find_map(|v| moved(*v))?;
    let x = input(first, 0)?;
    let (sizes, mut reshaped) = (shape(g, x)?, 0);
    let mut sources = Vec::with_capacity(inputs.len());
    for v in &inputs {
        let fact = g.value(*v).fact.as_ref()?;
        let single = fact.shape.0.iter().all(|d| d.is(1)) && fact.shape.rank() <= sizes.len();
        let source = match moved(*v) {
            Some((_, n)) if n.op.dyn_eq(first.op.as_ref()) => {
                let source = input(n, 0)?;
                reshaped += usize::from(n.op.downcast::<Reshape>().is_some());
                (shape(g, source)? == sizes).then_some(source)?
            }
            _ if single => *v,
            _ => return None,
        };
        sources.push(Some(source));
    }
    // Two reshapes to one shape may come from different shapes.
    if reshaped > 1 {
        return None;
    }
    let mut fact = Fact::new(g.value(y).fact.as_ref()?.dtype, crate::shape::Shape::default());
    fact.shape.0 = sizes.to_vec();
    Some(Rewrite::Sink {
        inputs: sources,
        mover,
        fact,
    })
}
