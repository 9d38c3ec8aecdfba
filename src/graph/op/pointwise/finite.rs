//! Replaces NaN tests on a softmax for devices, where masks and all weights are finite.

use super::import::{binary, input, number, select};
use super::{Binary, Expr, Pointwise, Test};
use crate::graph::ValueId;
use crate::graph::op::OpResult;
use crate::graph::op::parts::Parts;
use crate::graph::op::reduce::{Kind, Reduce};
use crate::graph::op::softmax::Softmax;

/// Scores below this are masked: minus infinity as devices represent it, with some margin for
/// addends.
const HIDDEN: f32 = -6e4;

/// True for a NaN test of the operand.
fn asks(op: &Pointwise) -> bool {
    matches!(&op.expr, Expr::Test(Test::Nan, x) if **x == input(0))
}

/// The largest score of each row of the softmax that computes `x`.
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

/// The weights of a softmax are NaN if a mask hides the whole row. `IsNaN` of them is replaced by a
/// test for that, and so is the selection of a replacement value.
pub(super) fn parts(op: &Pointwise, cx: &mut Parts<'_, '_>) -> OpResult<Option<Vec<ValueId>>> {
    let hidden = |largest| binary(Binary::LessOrEqual, largest, number(HIDDEN));
    if asks(op) {
        let x = cx.input(0)?;
        let Some(largest) = largest(cx, x)? else {
            return Ok(None);
        };
        // Weights are finite: this adds zero, but gives the result their shape.
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
