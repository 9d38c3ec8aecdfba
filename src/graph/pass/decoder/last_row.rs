//! Generation needs only the last logits: the matmul that makes the output `logits` computes the
//! last row, the last rows of a number given by the size of an input, or rows that an input lists.

use super::rows::{CHOSEN, added, rows};
use crate::error::{Error, Result, Stage};
use crate::graph::op::gather::Gather;
use crate::graph::op::matmul::MatMul;
use crate::graph::op::matmul_e0m::QuantizedMatMul;
use crate::graph::op::pointwise::{Expr, Pointwise, Unary};
use crate::graph::op::shape_of::ShapeOf;
use crate::graph::op::slice::Slice;
use crate::graph::pass::Pass;
use crate::graph::pass::pattern::{input, only_reader, producer, shape, transposed};
use crate::graph::{Edit, Graph, Op, ValueId};
use crate::shape::{Dim, Fact, Known, Shape, Symbol};
use crate::tensor::DType;

pub const LAST_ROW: Pass = Pass {
    name: "last_row",
    does: "computes only the last row of the output `logits`",
    refuses: "",
    run,
};

pub const LAST_ROWS: Pass = Pass {
    name: "last_rows",
    does: "computes only as many last rows of the output `logits` as a run requests",
    refuses: "",
    run: run_many,
};

pub const CHOSEN_ROWS: Pass = Pass {
    name: "chosen_rows",
    does: "computes only those rows of the output `logits` that a run lists",
    refuses: "",
    run: run_chosen,
};

/// Which rows are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    Last,
    Tail,
    Chosen,
}

/// The input whose size is the number of rows; its elements are not read.
pub const ROWS: &str = "logits_rows";

fn run(edit: &mut Edit<'_>) -> Result<()> {
    cut(edit, Kept::Last)
}

fn run_many(edit: &mut Edit<'_>) -> Result<()> {
    cut(edit, Kept::Tail)
}

fn run_chosen(edit: &mut Edit<'_>) -> Result<()> {
    cut(edit, Kept::Chosen)
}

fn cut(edit: &mut Edit<'_>, kept: Kept) -> Result<()> {
    let logits = edit.output("logits").map(|v| behind(edit, v));
    // A sequence-first model swaps batch and sequence at the end.
    let exchanged = logits.and_then(|v| transposed(edit, v, &[1, 0, 2]));
    let axis = if exchanged.is_some() { 0 } else { 1 };
    let found = exchanged
        .map(|v| behind(edit, v))
        .or(logits)
        .and_then(|v| edit.producer(v))
        .filter(|(_, n)| {
            (n.op.downcast::<MatMul>().is_some() || n.op.downcast::<QuantizedMatMul>().is_some())
                && input(n, 0)
                    .and_then(|x| shape(edit, x))
                    .is_some_and(|s| s.len() == 3)
        });
    let Some((id, node)) = found else {
        log::debug!(
            "all rows of the logits are computed: there is no output \"logits\" made by a matmul of rank 3"
        );
        return Ok(());
    };
    let (x, op, mut inputs) = (input(node, 0), node.op.clone(), node.inputs.clone());
    let (name, origin) = (node.name.clone(), node.origin.clone());
    let size = x.and_then(|x| Some(shape(edit, x)?.get(usize::try_from(axis).ok()?)?.clone()));
    if kept == Kept::Chosen && size != rows(edit) {
        log::debug!("no rows of the logits are chosen: \"{name}\" does not compute all");
        return Ok(());
    }
    if !edit.begin("only some rows of the logits are computed") {
        return Ok(());
    }
    let (what, op_of_rows, operands): (_, Box<dyn Op>, _) = if kept == Kept::Chosen {
        let chosen = added(edit, CHOSEN, DType::I32, vec![Dim::from(&Symbol::new(CHOSEN))])?;
        ("chosen_rows", Box::new(Gather { axis }), vec![x, Some(chosen)])
    } else {
        let start = match kept {
            Kept::Tail => minus_rows(edit, &name, &origin, x, axis)?,
            _ => edit.add_int(&format!("{name}/last_row/start"), -1)?,
        };
        let mut list = |what: &str, v: i64| edit.add_int(&format!("{name}/last_row/{what}"), v);
        let (end, axes) = (list("end", i64::MAX)?, list("axes", axis)?);
        (
            "last_row",
            Box::new(Slice),
            vec![x, Some(start), Some(end), Some(axes)],
        )
    };
    let name = format!("{name}/{what}");
    let row = edit.add_value(&name, None);
    edit.add_node(&name, origin.clone(), op_of_rows, operands, vec![row]);
    if let Some(first) = inputs.first_mut() {
        *first = Some(row);
    }
    edit.replace_node(id, op, inputs, origin);
    Ok(())
}

/// The operand from which elementwise operators with constants that are the same for all rows (a
/// bias, a cast, soft-capping) compute `v`.
fn behind(g: &Graph, mut v: ValueId) -> ValueId {
    let consumers = g.consumers();
    let same = |v: ValueId| {
        let fact = g.value(v).fact.as_ref();
        let constant = fact.filter(|fact| matches!(fact.known, Known::Const(_)));
        constant.is_some_and(|fact| fact.shape.0.iter().rev().skip(1).all(|d| d.is(1)))
    };
    while let Some((_, node, _)) = producer::<Pointwise>(g, v) {
        let mut data = node.inputs.iter().flatten().filter(|i| !same(**i));
        let (Some(x), None) = (data.next(), data.next()) else {
            break;
        };
        if shape(g, *x) != shape(g, v) || only_reader(g, &consumers, *x).is_none() {
            break;
        }
        v = *x;
    }
    v
}

/// The negated size of a new input, which is at least 1 and at most the number of rows of `x` along
/// `axis`.
fn minus_rows(
    edit: &mut Edit<'_>,
    name: &str,
    origin: &[String],
    x: Option<ValueId>,
    axis: i64,
) -> Result<ValueId> {
    let failed = |e: String| Error::other(Stage::Pass, format!("\"{ROWS}\": {e}"));
    if edit.find(ROWS).is_some() {
        return Err(failed("the model already has a value with this name".to_owned()));
    }
    let rows = Symbol::parse(ROWS).map_err(|e| failed(e.to_string()))?;
    let size = usize::try_from(axis).ok().zip(x);
    let size = size.and_then(|(a, x)| edit.value(x).fact.as_ref()?.shape.0.get(a).cloned());
    let mut known = edit.constraints().clone();
    known
        .bound(&rows, Some(1), None)
        .map_err(|e| failed(e.to_string()))?;
    if let Some(size) = size {
        let most = known.at_most(&Dim::from(&rows), &size);
        most.map_err(|e| failed(e.to_string()))?;
    }
    edit.set_constraints(known);
    let fact = Fact::new(DType::I64, Shape(vec![(&rows).into()]));
    let given = edit.add_value(ROWS, Some(fact));
    edit.add_input(given);
    let mut add = |what: &str, op: Box<dyn Op>, operand: ValueId| {
        let name = format!("{name}/last_row/{what}");
        let v = edit.add_value(&name, None);
        edit.add_node(&name, origin.to_vec(), op, vec![Some(operand)], vec![v]);
        v
    };
    let all = ShapeOf { start: 0, end: None };
    let count = add("rows", Box::new(all), given);
    let minus = Pointwise {
        name: "Neg".to_owned(),
        expr: Expr::Unary(Unary::Neg, Box::new(Expr::Input(0))),
    };
    Ok(add("start", Box::new(minus), count))
}
