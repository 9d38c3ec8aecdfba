//! Rows of several sequences in one run: the cache becomes a pool of pages, appends become
//! scatters, and attention follows the page table of each sequence.
//!
//! A *row* is a token of a sequence. The new inputs tell where each row is stored ([`PLACES`]),
//! which keys the rows of each sequence see ([`TILES`], [`PAGES`]) and which rows need logits
//! ([`CHOSEN`]). Positions must already be an input (pass `positions`). No other value may depend
//! on the length of the cache, since sequences differ in length. Attention may have a window, but
//! the pool keeps whole sequences.

use crate::error::{Error, Result, Stage};
use crate::graph::op::attention::Attention;
use crate::graph::op::kv_append::KvAppend;
use crate::graph::op::paged_attention::{PagedAttention, TILE};
use crate::graph::op::rotary_append::RotaryAppend;
use crate::graph::pass::Pass;
use crate::graph::pass::pattern::input;
use crate::graph::{Edit, Graph, Node, NodeId, ValueId};
use crate::num;
use crate::shape::{Dim, Fact, Shape, Symbol};
use crate::tensor::DType;
use std::collections::{BTreeSet, HashSet};

pub const ROW_POOL: Pass = Pass {
    name: "rows",
    does: "makes a decoder of one sequence run rows of several, with a paged cache",
    refuses: "masks; values other than caches that depend on the length of the cache",
    run,
};

/// For each row of a run, the row of the pool that stores its keys and values, `i32 [rows]`. A row
/// with a negative number is not stored.
pub const PLACES: &str = "row_places";
/// Rows of one sequence each, `i32 [tiles, 4]`; see [`crate::graph::op::paged_attention`].
pub const TILES: &str = "row_tiles";
/// The page tables of all sequences in turn, `i32 [pages]`; see the same module.
pub const PAGES: &str = "row_pages";
/// The rows whose logits are computed, `i32 [chosen]`.
pub const CHOSEN: &str = "chosen_rows";
/// All inputs that passes for rows add.
pub const ROW_INPUTS: [&str; 4] = [PLACES, TILES, PAGES, CHOSEN];

fn run(edit: &mut Edit<'_>) -> Result<()> {
    if let Some(why) = refusal(edit) {
        log::debug!("no rows of several sequences: {why}");
        return Ok(());
    }
    if !edit.begin("the cache becomes a pool of pages") {
        return Ok(());
    }
    let rows = rows(edit).ok_or_else(|| Error::internal(Stage::Pass, "a decoder without rows"))?;
    let symbol = |name: &str| Dim::from(&Symbol::new(name));
    let places = added(edit, PLACES, DType::I32, vec![rows])?;
    let tiles = added(
        edit,
        TILES,
        DType::I32,
        vec![symbol(TILES), num::signed(TILE).into()],
    )?;
    let pages = added(edit, PAGES, DType::I32, vec![symbol(PAGES)])?;
    let ids: Vec<NodeId> = edit.nodes().map(|(id, _)| id).collect();
    for id in ids {
        let Some(node) = edit.node(id) else { continue };
        let (op, mut inputs, origin) = (node.op.clone(), node.inputs.clone(), node.origin.clone());
        if let Some(at) = places_operand(node) {
            inputs.truncate(at);
            inputs.push(Some(places));
            edit.replace_node(id, op, inputs, origin);
        } else if let Some(attention) = Attention::of(node.op.as_ref()).cloned() {
            inputs.truncate(3);
            inputs.extend([Some(tiles), Some(pages)]);
            edit.replace_node(id, Box::new(PagedAttention { attention }), inputs, origin);
        }
    }
    Ok(())
}

/// The number of rows of a run.
pub(super) fn rows(g: &Graph) -> Option<Dim> {
    let ids = g.value(g.input("input_ids")?).fact.as_ref()?;
    ids.shape.0.last().cloned()
}

/// Adds an input.
pub(super) fn added(edit: &mut Edit<'_>, name: &str, dtype: DType, sizes: Vec<Dim>) -> Result<ValueId> {
    if edit.find(name).is_some() {
        let what = format!("\"{name}\": the model already has a value with this name");
        return Err(Error::other(Stage::Pass, what));
    }
    let v = edit.add_value(name, Some(Fact::new(dtype, Shape(sizes))));
    edit.add_input(v);
    Ok(v)
}

/// The position of the operand with places, if a node appends to caches.
fn places_operand(node: &Node) -> Option<usize> {
    let append = node.op.downcast::<KvAppend>().map(|_| 2);
    append.or(node.op.downcast::<RotaryAppend>().map(|_| 7))
}

/// The axis along which a node appends.
fn append_axis(node: &Node) -> Option<usize> {
    let append = node.op.downcast::<KvAppend>().map(|op| op.axis);
    append.or(node.op.downcast::<RotaryAppend>().map(|op| op.axis))
}

/// Why a decoder cannot run rows of several sequences; `None` if it can.
pub fn refusal(g: &Graph) -> Option<String> {
    let Some(first) = g.states().first() else {
        return Some("it has no cache".to_owned());
    };
    let past = &first.past;
    if let Some(s) = g.states().iter().find(|s| s.past != *past) {
        let name = &g.value(s.input).name;
        return Some(format!("the cache \"{name}\" has a different length"));
    }
    let inputs: HashSet<ValueId> = g.states().iter().map(|s| s.input).collect();
    let outputs: HashSet<ValueId> = g.states().iter().map(|s| s.output).collect();
    for (_, node) in g.nodes() {
        let what = |why: &str| Some(format!("node \"{}\" ({}): {why}", node.name, node.op.name()));
        let appends = append_axis(node);
        let attends = Attention::of(node.op.as_ref());
        for (i, v) in node
            .inputs
            .iter()
            .enumerate()
            .filter_map(|(i, v)| Some((i, (*v)?)))
        {
            if inputs.contains(&v) && appends.is_none() {
                return what("it reads a cache before new rows are appended");
            }
            if outputs.contains(&v) && !(attends.is_some() && (i == 1 || i == 2)) {
                return what("only attention may read a cache");
            }
        }
        if appends.is_some_and(|axis| axis != 1) {
            return what("expected a cache that grows along axis 1");
        }
        let Some(op) = attends else { continue };
        let cached = [1, 2]
            .iter()
            .all(|i| input(node, *i).is_some_and(|v| outputs.contains(&v)));
        if !cached || !op.causal || input(node, 3).is_some() {
            return what("expected causal attention over a cache, without a mask");
        }
    }
    let results = g.nodes().flat_map(|(_, n)| &n.outputs);
    let depending = |v: &&ValueId| g.fact(**v).is_ok_and(|fact| depends(fact, past));
    let mut others = results.filter(|v| !outputs.contains(v)).filter(depending);
    let name = &g.value(*others.next()?).name;
    Some(format!("value \"{name}\" depends on the length of the cache"))
}

/// Whether the shape or known elements depend on a symbol.
fn depends(fact: &Fact, symbol: &Symbol) -> bool {
    let mut symbols = BTreeSet::new();
    fact.shape.0.iter().for_each(|d| d.symbols(&mut symbols));
    fact.as_dims()
        .into_iter()
        .flatten()
        .for_each(|d| d.symbols(&mut symbols));
    symbols.contains(symbol)
}
