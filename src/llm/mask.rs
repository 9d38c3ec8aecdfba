//! The mask of a decoder as part of its graph.
//!
//! A run of generation has one sequence without padding. So the mask follows from the lengths of
//! the run, and nodes can compute it. Passes that know what a mask hides then remove it.

use super::roles::{self, IDS, MASK};
use crate::error::{Error, Result, Stage};
use crate::graph::op::concat::Concat;
use crate::graph::op::expand::Expand;
use crate::graph::op::pointwise::{Binary, Expr, Pointwise};
use crate::graph::op::range::Range;
use crate::graph::op::reshape::Reshape;
use crate::graph::op::shape_of::ShapeOf;
use crate::graph::{Edit, Graph, Op, ValueId};
use crate::num::signed;
use crate::shape::{Dim, Fact};
use crate::tensor::{DType, HostTensor, TensorError};
use std::sync::Arc;

/// Added to the scores of hidden keys: the lowest finite f16.
const HIDDEN: f64 = -65504.0;

/// Adds nodes whose names start with that of the mask.
struct Builder<'a> {
    edit: Edit<'a>,
}

impl Builder<'_> {
    fn node(&mut self, name: &str, op: impl Op + 'static, inputs: &[ValueId]) -> ValueId {
        let name = format!("{MASK}/{name}");
        let v = self.edit.add_value(&name, None);
        let inputs = inputs.iter().copied().map(Some).collect();
        self.edit
            .add_node(&name, Vec::new(), Box::new(op), inputs, vec![v]);
        v
    }

    fn constant(&mut self, name: &str, tensor: Result<HostTensor, TensorError>) -> Result<ValueId> {
        let tensor = tensor.map_err(|e| Error::other(Stage::Import, format!("{MASK}: {e}")))?;
        Ok(self.edit.add_const(&format!("{MASK}/{name}"), Arc::new(tensor)))
    }

    fn ints(&mut self, name: &str, list: &[i64]) -> Result<ValueId> {
        self.constant(name, HostTensor::from_i64(&[list.len()], list))
    }

    /// The size of an axis, as a list.
    fn size(&mut self, name: &str, of: ValueId, axis: usize) -> ValueId {
        let start = signed(axis);
        let end = Some(start + 1);
        self.node(name, ShapeOf { start, end }, &[of])
    }
}

/// Lengths of a run, as lists with one element.
struct Lengths {
    past: ValueId,
    total: ValueId,
}

/// Where a graph holds the length of its cache: an input and its axis.
fn past_axis(graph: &Graph, past: &Dim) -> Option<(ValueId, usize)> {
    roles::caches(graph).into_iter().find_map(|v| {
        let sizes = &graph.value(v).fact.as_ref()?.shape.0;
        Some((v, sizes.iter().position(|d| d == past)?))
    })
}

/// True if the mask is an input that is added to scores.
pub(super) fn is_added(graph: &Graph) -> bool {
    let fact = graph.input(MASK).and_then(|v| graph.value(v).fact.as_ref());
    fact.is_some_and(|f| f.shape.rank() == 4)
}

/// Replaces the mask input by nodes that compute what generation needs: ones for `[1, keys]`; for
/// floats `[1, 1, sequence, keys]`, which are added to scores, what hides later keys and those
/// before the sliding window `window`. A mask `[batch, keys]` of other sizes stays an input; other
/// masks that are added are an error. Sizes must have been named by [`roles::name_lengths`].
pub(super) fn compute(graph: &mut Graph, window: Option<usize>) -> Result<()> {
    let added = is_added(graph);
    if replaced(graph, added, window)? || !added {
        return Ok(());
    }
    let fact = graph.input(MASK).map(|v| graph.fact(v)).transpose()?;
    let found = fact.map(Fact::to_string).unwrap_or_default();
    let what = format!("{MASK}: expected floats [1, 1, sequence, keys], found {found}");
    Err(Error::other(Stage::Import, what))
}

/// [`compute`]; false if the sizes of the mask are other ones.
fn replaced(graph: &mut Graph, added: bool, window: Option<usize>) -> Result<bool> {
    let fact = |name: &str| {
        graph
            .input(name)
            .and_then(|v| Some((v, graph.value(v).fact.clone()?)))
    };
    let (Some((ids, of_ids)), Some((mask, of_mask))) = (fact(IDS), fact(MASK)) else {
        return Ok(false);
    };
    let (Some(sequence), Some(total)) = (of_ids.shape.0.last(), of_mask.shape.0.last()) else {
        return Ok(false);
    };
    let fits = match of_mask.shape.0.as_slice() {
        [batch, _] => batch.is(1),
        [batch, heads, rows, _] => batch.is(1) && heads.is(1) && rows == sequence,
        _ => false,
    };
    let Some(past) = total.sub(sequence).ok().filter(|_| fits) else {
        return Ok(false);
    };
    let cache = past_axis(graph, &past);
    if cache.is_none() && !past.is(0) {
        return Ok(false);
    }
    let mut b = Builder {
        edit: Edit::new(graph),
    };
    let rows = b.size("rows", ids, 1);
    let lengths = match cache {
        Some((cache, axis)) if !past.is(0) => {
            let past = b.size("past", cache, axis);
            let sum = Pointwise::binary("Add", Binary::Add);
            let total = b.node("keys", sum, &[past, rows]);
            Lengths { past, total }
        }
        _ => Lengths {
            past: b.ints("past", &[0])?,
            total: rows,
        },
    };
    let computed = if added {
        causal(&mut b, &lengths, of_mask.dtype, window)?
    } else {
        ones(&mut b, &lengths, of_mask.dtype)?
    };
    b.edit.replace_readers(mask, computed);
    b.edit.remove_input(mask);
    Ok(true)
}

/// Ones `[1, keys]`.
fn ones(b: &mut Builder<'_>, lengths: &Lengths, dtype: DType) -> Result<ValueId> {
    let one = match dtype {
        DType::Bool => HostTensor::from_bool(&[1, 1], &[true]),
        t if t.is_float() => HostTensor::from_floats(t, &[1, 1], &[1.0]),
        t => HostTensor::from_ints(t, &[1, 1], &[1]),
    };
    let (one, batch) = (b.constant("one", one)?, b.ints("batch", &[1])?);
    let sizes = b.node("sizes", Concat { axis: 0 }, &[batch, lengths.total]);
    Ok(b.node("ones", Expand, &[one, sizes]))
}

/// Floats `[1, 1, sequence, keys]`: 0 for a key that a query sees, else [`HIDDEN`].
fn causal(b: &mut Builder<'_>, lengths: &Lengths, dtype: DType, window: Option<usize>) -> Result<ValueId> {
    let (zero, step, column) = (
        b.ints("zero", &[0])?,
        b.ints("step", &[1])?,
        b.ints("column", &[1])?,
    );
    let keys = b.node("positions", Range, &[zero, lengths.total, step]);
    let own = b.node("own", Range, &[lengths.past, lengths.total, step]);
    let own = b.node("queries", Reshape::Unsqueeze, &[own, column]);
    let of = |f, a, b| Expr::Binary(f, Box::new(a), Box::new(b));
    let (key, query) = (Expr::Input(0), Expr::Input(1));
    let mut seen = of(Binary::LessOrEqual, key.clone(), query.clone());
    let mut operands = vec![keys, own];
    if let Some(window) = window {
        operands.push(b.ints("window", &[signed(window)])?);
        let before = of(Binary::Sub, query, Expr::Input(2));
        seen = of(Binary::And, seen, of(Binary::Greater, key, before));
    }
    let number = |v| Box::new(Expr::Const(v, dtype));
    let mask = Pointwise {
        name: "Where".to_owned(),
        expr: Expr::Select(Box::new(seen), number(0.0), number(HIDDEN)),
    };
    let mask = b.node("seen", mask, &operands);
    let outer = b.ints("outer", &[0, 1])?;
    Ok(b.node("causal", Reshape::Unsqueeze, &[mask, outer]))
}
