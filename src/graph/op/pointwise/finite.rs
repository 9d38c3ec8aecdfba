//! Questions about a softmax that devices must answer without numbers that are none: there masks are finite, and so is every weight.

use super::import::{binary, input, number, select};
use super::{Binary, Expr, Pointwise, Test};
use crate::graph::ValueId;
use crate::graph::op::OpResult;
use crate::graph::op::parts::Parts;
use crate::graph::op::reduce::{Kind, Reduce};
use crate::graph::op::softmax::Softmax;

/// Scores below this are hidden by a mask: minus infinity as devices write it, with what is added to it.
const HIDDEN: f32 = -6e4;

/// Asks whether its operand is no number.
fn asks(op: &Pointwise) -> bool {
    matches!(&op.expr, Expr::Test(Test::Nan, x) if **x == input(0))
}

/// The largest score of each row of the softmax that makes `x`.
fn largest(cx: &mut Parts<'_, '_>, x: ValueId) -> OpResult<Option<ValueId>> {
    let found = cx.producer::<Softmax>(x).filter(|(softmax, _)| !softmax.flatten);
    let Some((axis, Some(scores))) = found.map(|(s, inputs)| (s.axis, inputs.first().copied().flatten()))
    else {
        return Ok(None);
    };
    let reduce = Reduce {
        kind: Kind::Max,
        axes: Some(vec![axis]),
        keep: true,
        noop_without_axes: false,
    };
    Ok(Some(cx.node("largest", reduce, &[Some(scores)])?))
}

/// A weight of a softmax is no number where a mask hides the whole row: `IsNaN` of it asks for that, and what is taken in its place is
/// taken there.
pub(super) fn parts(op: &Pointwise, cx: &mut Parts<'_, '_>) -> OpResult<Option<Vec<ValueId>>> {
    let hidden = |largest| binary(Binary::LessOrEqual, largest, number(HIDDEN));
    if asks(op) {
        let x = cx.input(0)?;
        let Some(largest) = largest(cx, x)? else {
            return Ok(None);
        };
        // Weights are finite: nothing is added, but the shape is theirs.
        let nothing = binary(Binary::Mul, input(1), number(0.0));
        let expr = hidden(binary(Binary::Add, input(0), nothing));
        return Ok(Some(vec![cx.pointwise("hidden", expr, &[largest, x])?]));
    }
    let Expr::Select(condition, _, kept) = &op.expr else {
        return Ok(None);
    };
    if **condition != input(0) || **kept != input(2) {
        return Ok(None);
    }
    let (condition, other, x) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let asked = cx.producer::<Pointwise>(condition);
    let same = asked.is_some_and(|(op, inputs)| asks(op) && inputs.first() == Some(&Some(x)));
    if !same {
        return Ok(None);
    }
    let Some(largest) = largest(cx, x)? else {
        return Ok(None);
    };
    let expr = select(hidden(input(0)), input(1), input(2));
    Ok(Some(vec![cx.pointwise(
        "unhidden",
        expr,
        &[largest, other, x],
    )?]))
}
