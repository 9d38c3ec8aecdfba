//! Which keys a mask leaves visible.
//!
//! A mask is not compared with those of known exporters. Each value that it depends on is described
//! by how its elements follow from their positions: an integer that is linear in the positions, a
//! truth value with the sets of positions where it is true and false, or a number that is low
//! outside a set. A set is described by necessary conditions, and it is known whether they are also
//! sufficient. Unknown operators give no conditions.

mod region;
mod value;

use crate::graph::op::concat::Concat;
use crate::graph::op::constant_of_shape::ConstantOfShape;
use crate::graph::op::cumulative::Cumulative;
use crate::graph::op::expand::Expand;
use crate::graph::op::gather::Gather;
use crate::graph::op::gather_elements::GatherElements;
use crate::graph::op::gather_nd::GatherNd;
use crate::graph::op::pointwise::Pointwise;
use crate::graph::op::range::Range;
use crate::graph::op::reshape::Reshape;
use crate::graph::op::scatter::{Reduction, Scatter};
use crate::graph::op::slice::Slice;
use crate::graph::op::split::Split;
use crate::graph::op::tile::Tile;
use crate::graph::op::transpose::Transpose;
use crate::graph::op::trilu::Trilu;
use crate::graph::pass::pattern::{input, producer};
use crate::graph::{Graph, Node, Op, ValueId};
use crate::num;
use crate::shape::{Constraints, Dim};
use crate::tensor::{DType, HostTensor};
use region::{AffineForm, Region};
use std::collections::HashMap;
use value::{AbstractValue, LOW, Rules};

/// How many values in a row are followed.
const DEEPEST: usize = 64;

/// Elements of the largest constant that is examined.
const LARGEST: usize = 1 << 24;

/// What a mask leaves visible to a query. Masks that are low wherever a key is hidden have one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Visible {
    /// No key after the query's own position is visible.
    pub causal: bool,
    /// Upper bound on the number of visible keys up to its own position, its own key included.
    pub window: Option<i64>,
    /// The mask is 0 for all other keys.
    pub exact: bool,
}

/// Memoizes what is known of values.
#[derive(Default)]
pub(super) struct Masks {
    known: HashMap<ValueId, AbstractValue>,
}

impl Masks {
    /// What `mask`, which is added to scores, leaves visible. Its last axes are queries and keys;
    /// `past` keys come before the first query. Nothing is known if a hidden key keeps a weight.
    pub fn visible(&mut self, g: &Graph, mask: ValueId, past: &Dim) -> Visible {
        let number = self.of(g, mask, 0).number();
        let mut found = Visible {
            exact: number.rest == Some(0.0),
            ..Visible::default()
        };
        if number.low > LOW {
            return Visible::default();
        }
        let sizes: Vec<Dim> = sizes(g, mask).unwrap_or_default().iter().rev().cloned().collect();
        for condition in &number.seen {
            let own = |axis| condition.factor(axis);
            let others = condition.factors.iter().skip(2).all(|f| *f == 0);
            // Position of the query - position of the key + distance >= 0, or the reverse.
            let distance = match (own(1), own(0)) {
                (1, -1) if others => condition.constant.sub(past).ok(),
                (-1, 1) if others => condition.constant.add(past).ok(),
                _ => None,
            };
            match (distance.and_then(|d| d.as_const()), own(0)) {
                (Some(0), -1) => found.causal = true,
                (Some(before @ 0..), 1) => {
                    let window = before.saturating_add(1);
                    found.window = Some(found.window.map_or(window, |w| w.min(window)));
                }
                _ => found.exact &= condition.holds_everywhere(&sizes, g.constraints()),
            }
        }
        found
    }

    /// True if the elements of `v` are proved to be `start`, `start + 1`, ... along an axis of
    /// `count` elements; all other axes have size 1.
    pub fn counts(&mut self, g: &Graph, v: ValueId, start: &Dim, count: &Dim) -> bool {
        let axes = sizes(g, v).unwrap_or_default().iter().rev().enumerate();
        let mut axes = axes.filter(|(_, size)| !size.is(1));
        let (Some((axis, size)), None) = (axes.next(), axes.next()) else {
            return false;
        };
        let AbstractValue::Integer(form) = self.of(g, v, 0) else {
            return false;
        };
        let mut wanted = AffineForm::constant(start.clone());
        wanted.factors = vec![0; axis];
        wanted.factors.push(1);
        size == count && form.minus(&wanted, 0).is_some_and(|d| d.as_const() == Some(0))
    }

    fn of(&mut self, g: &Graph, v: ValueId, deep: usize) -> AbstractValue {
        if let Some(known) = self.known.get(&v) {
            return known.clone();
        }
        let fact = g.value(v).fact.as_ref();
        let Some(fact) = fact.filter(|_| deep < DEEPEST) else {
            return AbstractValue::Any;
        };
        let one = match (fact.as_dims().as_deref(), fact.as_const()) {
            (Some([d]), _) if fact.dtype.is_int() => {
                Some(AbstractValue::Integer(AffineForm::constant(d.clone())))
            }
            (_, Some(t)) => constant(t),
            _ => None,
        };
        let found = one.or_else(|| {
            let (_, node) = g.producer(v)?;
            self.result(g, node, v, deep + 1)
        });
        // An axis of size 1 may be broadcast, so its position is 0.
        let sizes = &fact.shape.0;
        let real = |axis: usize| sizes.iter().rev().nth(axis).filter(|d| !d.is(1)).map(|_| axis);
        let known = found.and_then(|found| found.moved(&|form| Some(form.moved(&real))));
        let known = known.unwrap_or(AbstractValue::Any);
        self.known.insert(v, known.clone());
        known
    }

    /// What is known of a node's result `v`.
    fn result(&mut self, g: &Graph, node: &Node, v: ValueId, deep: usize) -> Option<AbstractValue> {
        let op = node.op.as_ref();
        let rules = Rules {
            known: g.constraints(),
        };
        if let Some(op) = op.downcast::<Pointwise>() {
            let operand = |v: &Option<ValueId>| v.map_or(AbstractValue::Any, |v| self.of(g, v, deep));
            let operands: Vec<AbstractValue> = node.inputs.iter().map(operand).collect();
            return Some(rules.expression(&op.expr, &operands));
        }
        if op.downcast::<Range>().is_some() {
            let dims = |i: usize| dims(g, input(node, i)?);
            let (start, step) = (dims(0)?, dims(2)?);
            let ([start], [step]) = (start.as_slice(), step.as_slice()) else {
                return None;
            };
            return Some(AbstractValue::Integer(AffineForm {
                constant: start.clone(),
                factors: vec![step.as_const()?],
            }));
        }
        if let Some(op) = op.downcast::<ConstantOfShape>() {
            return constant(&op.value);
        }
        if let Some(op) = op.downcast::<Scatter>() {
            let replaced = *op
                == Scatter {
                    axis: None,
                    reduction: Reduction::Replace,
                };
            let updates = input(node, 2).filter(|_| replaced && self.replaces_all(g, node, deep))?;
            return Some(self.of(g, updates, deep));
        }
        let known = self.of(g, input(node, 0)?, deep);
        if let Some(op) = op.downcast::<Cumulative>() {
            return summed(g, node, op, &known);
        }
        if copies(op) && known.is_uniform() {
            let joins = op.downcast::<Concat>().is_some();
            let mut others = node.inputs.iter().skip(1).flatten().filter(|_| joins);
            let same = others.all(|v| self.of(g, *v, deep).is_same(&known));
            return same.then_some(known);
        }
        moved(g, node, v, known)
    }

    /// True if a `ScatterND` replaces each element of operand 0 by the update at its own position.
    /// Exporters write an assignment to a slice so, even if the slice is all.
    fn replaces_all(&mut self, g: &Graph, node: &Node, deep: usize) -> bool {
        let sizes = |i: usize| sizes(g, input(node, i)?);
        let (Some(all), Some(indices), Some(updates)) = (sizes(0), sizes(1), sizes(2)) else {
            return false;
        };
        let whole = indices.split_last().is_some_and(|(_, places)| places == all);
        if !whole || updates != all {
            return false;
        }
        // The list of indices joins the position along each axis.
        let joined = input(node, 1).and_then(|v| producer::<Concat>(g, v));
        let Some((_, join, op)) = joined.filter(|(_, join, _)| join.inputs.len() == all.len()) else {
            return false;
        };
        if op.axis != -1 && op.axis != num::signed(all.len()) {
            return false;
        }
        let mut parts = join.inputs.iter().zip(all).enumerate();
        parts.all(|(axis, (part, size))| {
            let mut own = AffineForm::constant(0.into());
            if !size.is(1) {
                // Counted from the last axis of the indices.
                own.factors = vec![0; all.len() - axis];
                own.factors.push(1);
            }
            let known = part.map(|v| self.of(g, v, deep));
            matches!(known, Some(AbstractValue::Integer(form)) if form.minus(&own, 0).is_some_and(|d| d.as_const() == Some(0)))
        })
    }
}

/// True for operators whose elements are all copies of elements of operand 0 (for `Concat`, of all
/// operands).
fn copies(op: &(dyn Op + 'static)) -> bool {
    op.downcast::<Concat>().is_some()
        || op.downcast::<Expand>().is_some()
        || op.downcast::<Gather>().is_some()
        || op.downcast::<GatherElements>().is_some()
        || op.downcast::<GatherNd>().is_some()
        || op.downcast::<Reshape>().is_some()
        || op.downcast::<Slice>().is_some()
        || op.downcast::<Split>().is_some()
        || op.downcast::<Tile>().is_some()
        || op.downcast::<Transpose>().is_some()
}

/// What is known of a node's result `v` that has elements of operand 0, `known`, at other
/// positions, or a triangle of it.
fn moved(g: &Graph, node: &Node, v: ValueId, known: AbstractValue) -> Option<AbstractValue> {
    let op = node.op.as_ref();
    let x = input(node, 0)?;
    if op.downcast::<Reshape>().is_some() {
        return reshaped(known, sizes(g, x)?, sizes(g, v)?);
    }
    if op.downcast::<Expand>().is_some() {
        return Some(known);
    }
    if let Some(op) = op.downcast::<Transpose>() {
        let rank = sizes(g, x)?.len();
        let axes = op.axes(rank).ok()?;
        let place = |axis: usize| {
            let from = rank.checked_sub(axis + 1)?;
            let to = axes.iter().position(|a| *a == from)?;
            Some(rank - 1 - to)
        };
        return known.moved(&|form| Some(form.moved(&place)));
    }
    if op.downcast::<Slice>().is_some() {
        let starts = starts(g, node)?;
        return known.moved(&|form| form.shifted(&starts));
    }
    let op = op.downcast::<Trilu>()?;
    let diagonal = match input(node, 1) {
        Some(v) => dims(g, v)?.first()?.clone(),
        None => 0.into(),
    };
    let kept = triangle(op.upper, &diagonal)?;
    let rules = Rules {
        known: g.constraints(),
    };
    Some(match known {
        AbstractValue::Truth { .. } => rules.and(&kept, &known),
        _ => rules.select(&kept, &known, &AbstractValue::constant(0.0, DType::F32)),
    })
}

/// What is known of sums of equal integers along an axis.
fn summed(g: &Graph, node: &Node, op: &Cumulative, known: &AbstractValue) -> Option<AbstractValue> {
    let AbstractValue::Integer(form) = known else {
        return None;
    };
    let step = form.as_const().filter(|_| !op.product && !op.reverse)?;
    let axis = dims(g, input(node, 1)?)?.first()?.as_const()?;
    let rank = sizes(g, input(node, 0)?)?.len();
    let mut sum = AffineForm::constant(if op.exclusive { 0 } else { step }.into());
    sum.factors = vec![0; from_last(axis, rank)?];
    sum.factors.push(step);
    Some(AbstractValue::Integer(sum))
}

/// Axis `axis`, which counts from the last one if it is negative, as a position from the last one.
fn from_last(axis: i64, rank: usize) -> Option<usize> {
    let axis = if axis < 0 { axis + num::signed(rank) } else { axis };
    rank.checked_sub(usize::try_from(axis).ok()? + 1)
}

/// First positions of a slice with steps of 1, the last axis first.
fn starts(g: &Graph, node: &Node) -> Option<Vec<Dim>> {
    let sizes = sizes(g, input(node, 0)?)?;
    let list = |i: usize| input(node, i).map(|v| dims(g, v));
    if list(4).is_some_and(|steps| steps.is_none_or(|s| s.iter().any(|d| !d.is(1)))) {
        return None;
    }
    let first = list(1)??;
    let axes = match list(3) {
        Some(axes) => axes?.iter().map(Dim::as_const).collect::<Option<Vec<i64>>>()?,
        None => (0..num::signed(first.len())).collect(),
    };
    let known = |d: &Dim| g.constraints().at_least(d, 0) == Some(true);
    let mut starts = vec![Dim::from(0); sizes.len()];
    for (mut start, axis) in first.into_iter().zip(axes) {
        let axis = from_last(axis, sizes.len())?;
        // A negative start counts from the end.
        if known(&Dim::from(-1).sub(&start).ok()?) {
            start = sizes.iter().rev().nth(axis)?.add(&start).ok()?;
        }
        if !known(&start) {
            return None;
        }
        *starts.get_mut(axis)? = start;
    }
    Some(starts)
}

/// The elements of a constant, if they are exact.
fn numbers(t: &HostTensor) -> Option<Vec<f64>> {
    if t.dtype().is_int() {
        let exact = |v: &i64| i32::try_from(*v).ok().map(f64::from);
        return t.to_i64().ok()?.iter().map(exact).collect();
    }
    Some(t.to_f32().ok()?.iter().map(|v| f64::from(*v)).collect())
}

/// What is known of the elements of a constant: all are the same, or a triangle of a matrix shows.
fn constant(t: &HostTensor) -> Option<AbstractValue> {
    if t.is_empty() || t.len() > LARGEST {
        return None;
    }
    let values = numbers(t)?;
    let first = *values.first()?;
    if values.iter().all(|v| *v == first) {
        return Some(AbstractValue::constant(first, t.dtype()));
    }
    let (rows, keys) = match *t.shape() {
        [.., rows, keys] if rows.checked_mul(keys) == Some(values.len()) => (rows, keys),
        _ => return None,
    };
    // The first row shows keys up to the diagonal.
    let shown = values.iter().take(keys).take_while(|v| **v == first).count();
    let hidden = values.get(shown).copied().filter(|_| shown < keys)?;
    let expected = |row: usize, key: usize| if key < shown + row { first } else { hidden };
    let mut elements = values.iter().enumerate();
    if !elements.all(|(i, v)| *v == expected(i / keys, i % keys)) || rows < 2 {
        return None;
    }
    let below = triangle(false, &Dim::from(num::signed(shown) - 1))?;
    let is_truth = [first, hidden].iter().all(|v| *v == 0.0 || *v == 1.0);
    let dtype = if is_truth { DType::Bool } else { t.dtype() };
    let [first, hidden] = [first, hidden].map(|v| AbstractValue::constant(v, dtype));
    let rules = Rules {
        known: &Constraints::default(),
    };
    Some(rules.choose(&below, &first, &hidden))
}

fn dims(g: &Graph, v: ValueId) -> Option<Vec<Dim>> {
    g.value(v).fact.as_ref()?.as_dims()
}

fn sizes(g: &Graph, v: ValueId) -> Option<&[Dim]> {
    Some(g.value(v).fact.as_ref()?.shape.0.as_slice())
}

/// What is known after a reshape that only adds or removes axes of size 1.
fn reshaped(known: AbstractValue, from: &[Dim], to: &[Dim]) -> Option<AbstractValue> {
    let axes = |sizes: &[Dim]| -> Vec<(usize, Dim)> {
        let all = sizes.iter().rev().cloned().enumerate();
        all.filter(|(_, d)| !d.is(1)).collect()
    };
    let (from, to) = (axes(from), axes(to));
    let same = from.iter().map(|a| &a.1).eq(to.iter().map(|a| &a.1));
    let place = |axis: usize| {
        let at = from.iter().position(|(a, _)| *a == axis)?;
        to.get(at).map(|(a, _)| *a)
    };
    known.moved(&|form| Some(form.moved(&place))).filter(|_| same)
}

/// Whether an element is on or above the diagonal of a matrix, or on or below it.
fn triangle(upper: bool, diagonal: &Dim) -> Option<AbstractValue> {
    // Below and on the diagonal: key <= row + diagonal.
    let below = AffineForm {
        constant: diagonal.clone(),
        factors: vec![-1, 1],
    };
    let one = AffineForm::constant(1.into());
    let kept = if upper {
        below.plus(&one, -1)?.negated()?
    } else {
        below
    };
    Some(AbstractValue::holds(Region::of(kept)))
}

#[cfg(test)]
mod tests;
