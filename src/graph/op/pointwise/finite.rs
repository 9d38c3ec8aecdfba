//! Questions about a softmax that have one answer on devices: there masks are finite, and so is every weight.

use super::import::input;
use super::{Expr, Pointwise, Test};
use crate::graph::ValueId;
use crate::graph::op::OpResult;
use crate::graph::op::parts::Parts;
use crate::graph::op::reshape::Reshape;
use crate::graph::op::softmax::Softmax;
use crate::tensor::DType;

/// Asks whether its operand is no number.
fn asks(op: &Pointwise) -> bool {
    matches!(&op.expr, Expr::Test(Test::Nan, x) if **x == input(0))
}

/// `IsNaN` of a softmax is false everywhere, and what is taken in the place of a weight that is no number is the weight.
pub(super) fn parts(op: &Pointwise, cx: &mut Parts<'_, '_>) -> OpResult<Option<Vec<ValueId>>> {
    if asks(op) {
        let x = cx.input(0)?;
        if cx.producer::<Softmax>(x).is_none() {
            return Ok(None);
        }
        return Ok(Some(vec![cx.pointwise(
            "finite",
            Expr::Const(0.0, DType::Bool),
            &[x],
        )?]));
    }
    let Expr::Select(condition, _, kept) = &op.expr else {
        return Ok(None);
    };
    if **condition != input(0) || **kept != input(2) {
        return Ok(None);
    }
    let (condition, x) = (cx.input(0)?, cx.input(2)?);
    let asked = cx.producer::<Pointwise>(condition);
    let same = asked.is_some_and(|(op, inputs)| asks(op) && inputs.first() == Some(&Some(x)));
    let other = cx.fact(cx.input(1)?)?;
    if !same || cx.producer::<Softmax>(x).is_none() || other.shape.rank() > cx.fact(x)?.shape.rank() {
        return Ok(None);
    }
    if !other.shape.count()?.is(1) {
        return Ok(None);
    }
    Ok(Some(vec![cx.node("finite", Reshape::Identity, &[Some(x)])?]))
}
