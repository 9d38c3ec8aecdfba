//! Positions of rows become an input.
//!
//! A graph may compute positions from the length of its cache or from a mask of ones. That is wrong
//! for rows of several sequences, each of which has its own position. So the input [`POSITIONS`]
//! replaces every integer value that provably holds `past`, `past + 1`, ..., one for each row. The
//! pass runs after those that derive causality and windows from positions.

use super::masks::Masks;
use super::parts::Nodes;
use super::rows::{added, rows};
use crate::error::Result;
use crate::graph::op::pointwise::{Expr, Pointwise};
use crate::graph::pass::Pass;
use crate::graph::{Edit, Graph, ValueId};
use crate::shape::Dim;
use crate::tensor::DType;

pub const ROW_POSITIONS: Pass = Pass {
    name: "positions",
    does: "replaces positions that the graph computes by an input",
    refuses: "values that cannot be proved to be positions",
    run,
};

/// The position of each row, integers `[1, rows]` or `[rows]`.
pub const POSITIONS: &str = "position_ids";

fn run(edit: &mut Edit<'_>) -> Result<()> {
    let Some(rows) = rows(edit) else { return Ok(()) };
    let found = found(edit, &rows);
    if found.is_empty() || !edit.begin("positions become an input") {
        return Ok(());
    }
    let given = match edit.input(POSITIONS) {
        Some(v) => v,
        None => added(edit, POSITIONS, DType::I64, vec![1.into(), rows.clone()])?,
    };
    for v in found {
        let new = like(edit, given, v, &rows)?;
        edit.replace_readers(v, new);
    }
    Ok(())
}

/// The values that hold the positions of all rows.
fn found(g: &Graph, rows: &Dim) -> Vec<ValueId> {
    let Some(past) = g.states().first().map(|s| Dim::from(&s.past)) else {
        return Vec::new();
    };
    let mut masks = Masks::default();
    let results = g.nodes().flat_map(|(_, n)| &n.outputs).copied();
    let integers = results.filter(|v| g.fact(*v).is_ok_and(|fact| fact.dtype.is_int()));
    integers.filter(|v| masks.counts(g, *v, &past, rows)).collect()
}

/// Positions `given` in the type and shape of `v`.
fn like(edit: &mut Edit<'_>, given: ValueId, v: ValueId, rows: &Dim) -> Result<ValueId> {
    let (fact, of_given) = (edit.fact(v)?, edit.fact(given)?.dtype);
    let dtype = fact.dtype;
    let sizes = fact.shape.0.iter().map(|d| if d == rows { -1 } else { 1 });
    let sizes: Vec<i64> = sizes.collect();
    let name = edit.value(v).name.clone();
    let origin = edit
        .producer(v)
        .map(|(_, n)| n.origin.clone())
        .unwrap_or_default();
    let mut nodes = Nodes {
        edit,
        prefix: name,
        origin,
    };
    let mut new = given;
    if of_given != dtype {
        let cast = Pointwise {
            name: "Cast".to_owned(),
            expr: Expr::Cast(dtype, Box::new(Expr::Input(0))),
        };
        new = nodes.one("typed", Box::new(cast), &[new]);
    }
    nodes.reshaped("given", new, &sizes)
}

#[cfg(test)]
mod tests;
