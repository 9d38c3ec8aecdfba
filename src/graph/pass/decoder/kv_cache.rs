//! Turns pairs of past and present into state that is appended to in place (paper, section 2.3).
//!
//! A pair is a graph input that only a concatenation reads, and a graph output that is its result.
//! The output may also hold the new rows alone, as in the paper's export. The state holds one
//! sequence, sequence first: rows `[heads, dim]` one after another, so an append is one contiguous
//! write. A cache with the layout `[batch, heads, sequence, dim]` is transposed; its other readers
//! get a transpose, which the attention pass removes.

use crate::error::Result;
use crate::graph::op::concat::Concat;
use crate::graph::op::kv_append::KvAppend;
use crate::graph::op::reshape::Reshape;
use crate::graph::op::transpose::Transpose;
use crate::graph::pass::Pass;
use crate::graph::pass::pattern::{input, producer, shape, transposed};
use crate::graph::{Edit, Node, NodeId, State, ValueId};
use crate::shape::{Fact, Shape, Symbol};

pub const KV_CACHE: Pass = Pass {
    name: "kv_cache",
    does: "turns pairs of past and present into state that is appended to in place",
    refuses: "several sequences; unknown layouts; sizes that are not symbols",
    run,
};

struct CachePair {
    node: NodeId,
    past: ValueId,
    new: ValueId,
    present: ValueId,
    /// An output that the state makes redundant: the new rows alone or a copy of the whole.
    needless: Option<ValueId>,
    /// The pair is `[b, heads, s, d]`, so its new rows are transposed to `[b, s, heads, d]`.
    turned: bool,
    axis: usize,
    symbol: Symbol,
}

const SWAP: [usize; 4] = [0, 2, 1, 3];

fn run(edit: &mut Edit<'_>) -> Result<()> {
    let consumers = edit.consumers();
    let mut pairs = Vec::new();
    for past in edit.inputs().iter().copied() {
        // Readers of only the shape are allowed.
        let reads = |id: &NodeId| {
            edit.node(*id).is_some_and(|n| {
                n.inputs
                    .iter()
                    .enumerate()
                    .any(|(i, v)| *v == Some(past) && n.op.reads(i))
            })
        };
        let readers: Vec<NodeId> = consumers[past.index()].iter().copied().filter(reads).collect();
        let [reader] = readers.as_slice() else { continue };
        match find(edit, *reader, past) {
            Ok(Some(p)) => pairs.push(p),
            Ok(None) => {}
            Err(why) => log::debug!("\"{}\" does not become state: {why}", edit.value(past).name),
        }
    }
    for p in pairs {
        let name = edit.value(p.past).name.clone();
        if edit.begin(&format!("\"{name}\" becomes state")) {
            rewrite(edit, p)?;
        }
    }
    Ok(())
}

fn find(g: &Edit<'_>, reader: NodeId, past: ValueId) -> Result<Option<CachePair>, String> {
    let Some(node) = g.node(reader) else {
        return Ok(None);
    };
    let Some(concat) = node.op.downcast::<Concat>() else {
        return Ok(None);
    };
    let [present] = node.outputs.as_slice() else {
        return Ok(None);
    };
    if node.inputs.len() != 2 || input(node, 0) != Some(past) {
        return Ok(None);
    }
    let (Some(new), Some(dims)) = (input(node, 1), shape(g, past)) else {
        return Ok(None);
    };
    let is_output = |v: &ValueId| g.is_output(*v);
    // The whole may be an output under a second name, the new rows with their axes in another
    // order.
    let copies = results_of(g, *present, |n| {
        n.op.downcast::<Reshape>() == Some(&Reshape::Identity)
    });
    let turned = results_of(g, new, |n| n.op.downcast::<Transpose>().is_some());
    let source = producer::<Transpose>(g, new).and_then(|(_, n, _)| input(n, 0));
    let needless = if is_output(present) {
        None
    } else {
        let all = copies.into_iter().chain([new]).chain(source).chain(turned);
        let found = all.into_iter().find(is_output);
        Some(found.ok_or("neither the appended rows nor the whole are an output")?)
    };
    let axis = crate::graph::op::axis(concat.axis, dims.len()).map_err(|e| e.to_string())?;
    let mut symbols = std::collections::BTreeSet::new();
    dims[axis].symbols(&mut symbols);
    let symbol = symbols.pop_first().filter(|s| dims[axis] == s.into());
    let symbol =
        symbol.ok_or_else(|| format!("its size along axis {axis} is {}, not a symbol", dims[axis]))?;
    let one = |d: &[crate::shape::Dim]| d.iter().all(|d| d.is(1));
    // Also with one head: the attention pass expects rows before heads.
    let turned = dims.len() == 4 && axis == 2 && one(&dims[..1]);
    if turned || one(&dims[..axis]) {
        return Ok(Some(CachePair {
            node: reader,
            past,
            new,
            present: *present,
            needless,
            turned,
            axis,
            symbol,
        }));
    }
    Err(format!(
        "it grows along axis {axis} of {}, but it has several sequences or an unknown layout",
        Shape(dims.to_vec())
    ))
}

/// First results of the matching nodes that read `v`.
fn results_of(g: &Edit<'_>, v: ValueId, kind: impl Fn(&Node) -> bool) -> Vec<ValueId> {
    let nodes = g.readers(v).filter_map(|id| g.node(id));
    let nodes = nodes.filter(|n| input(n, 0) == Some(v) && kind(n));
    nodes.filter_map(|n| n.outputs.first().copied()).collect()
}

fn rewrite(edit: &mut Edit<'_>, p: CachePair) -> Result<()> {
    if let Some(output) = p.needless {
        edit.remove_output(output);
    }
    let Some(node) = edit.node(p.node) else {
        return Ok(());
    };
    let (name, origin) = (node.name.clone(), node.origin.clone());
    let (new, axis) = if p.turned {
        (rows_first(edit, &p, &name, &origin)?, 1)
    } else {
        (p.new, p.axis)
    };
    let inputs = vec![Some(p.past), Some(new)];
    edit.replace_node(p.node, Box::new(KvAppend { axis }), inputs, origin.clone());
    if p.turned {
        let whole = edit.add_value(&format!("{}/heads_first", edit.value(p.present).name), None);
        edit.replace_readers(p.present, whole);
        swap(edit, &format!("{name}/heads_first"), &origin, p.present, whole);
    }
    edit.add_state(State {
        input: p.past,
        output: p.present,
        axis,
        past: p.symbol,
        window: None,
    });
    Ok(())
}

/// Makes the state of a pair `[b, s, heads, d]`: earlier readers get a transpose of it. Returns the
/// new rows in that order.
fn rows_first(edit: &mut Edit<'_>, p: &CachePair, name: &str, origin: &[String]) -> Result<ValueId> {
    let new = transposed(edit, p.new, &SWAP).unwrap_or_else(|| {
        let rows = edit.add_value(&format!("{name}/rows"), None);
        swap(edit, &format!("{name}/rows"), origin, p.new, rows);
        rows
    });
    let fact = edit.fact(p.past)?.clone();
    let sizes = SWAP.iter().map(|a| fact.shape.0[*a].clone()).collect();
    let swapped = Fact::new(fact.dtype, Shape(sizes));
    let before = edit.add_value(&format!("{}/heads_first", edit.value(p.past).name), Some(fact));
    edit.replace_readers(p.past, before);
    edit.set_fact(p.past, swapped);
    swap(edit, &format!("{name}/past_heads_first"), origin, p.past, before);
    Ok(new)
}

/// Adds a transpose that exchanges heads and rows.
fn swap(edit: &mut Edit<'_>, name: &str, origin: &[String], from: ValueId, to: ValueId) {
    let op = Box::new(Transpose {
        perm: Some(vec![0, 2, 1, 3]),
    });
    edit.add_node(name, origin.to_vec(), op, vec![Some(from)], vec![to]);
}
