//! Broadcasts a tensor to a shape. ONNX `Expand` from opset 8; the shape may hold symbolic
//! expressions.

use crate::graph::bounds::BoundsCx;
use crate::graph::op::case::{Case, input};
use crate::graph::op::{
    Assumption, Attributes, InferCx, Inputs, Op, OpDef, OpResult, onnx, operand, pointwise, to_sizes,
    transpose,
};
use crate::graph::rules;
use crate::lower::LowerCx;
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::HostTensor;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expand;

impl Op for Expand {
    fn name(&self) -> &str {
        "Expand"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.fact(0)?;
        let to = cx.sizes(1)?;
        to.iter()
            .try_for_each(|size| cx.require(size.clone(), "target size"))?;
        let from_data = cx.fact(1)?.as_dims().is_none();
        let same = |what, a: &Dim, b: &Dim| {
            if from_data {
                one_or_same(cx, a, b)
            } else {
                cx.same(what, a, b)
            }
        };
        Ok(vec![Fact::new(
            x.dtype,
            rules::broadcast(&x.shape.0, &to, &same)?,
        )])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let to: Vec<Dim> = to_sizes(operand(inputs, 1)?)?
            .into_iter()
            .map(Dim::from_usize)
            .collect();
        let shape = rules::broadcast(&Shape::fixed(x.shape()).0, &to, &rules::equal)?;
        Ok(vec![pointwise::broadcast_to(x, &shape.sizes()?)?])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let (x, out) = (cx.shape(0)?, cx.out_fact(0)?.shape.clone());
        let lead = out.rank().saturating_sub(x.rank());
        let (new, old) = out.0.split_at(lead);
        if old == x.0 && new.iter().all(|d| d.is(1)) {
            return cx.alias(0, 0);
        }
        let from = transpose::dim_strides(&x.0)?;
        let step: Vec<Dim> = (0..out.rank())
            .map(|i| match i.checked_sub(lead) {
                Some(j) if !x.0[j].is(1) => from[j].clone(),
                _ => 0.into(),
            })
            .collect();
        transpose::emit_strided(cx, &out.0, &transpose::Start::first(), &step)
    }

    fn reads(&self, input: usize) -> bool {
        input == 0
    }

    fn moves(&self, input: usize) -> bool {
        input == 0
    }

    // A size of 0 removes all elements.
    fn keeps_all(&self, input: usize, cx: &BoundsCx<'_>) -> bool {
        let sizes = cx.fact(1).and_then(Fact::as_dims);
        let is_zero = |n: &Dim| n.as_const().is_none_or(|n| n == 0);
        input == 0 && sizes.is_some_and(|sizes| !sizes.iter().any(is_zero))
    }
}

/// The size of an axis of size `size`, broadcast to a size `to` that only the run knows. It is
/// `size`, which is right if `to` is 1 or the same; a run with another `to` fails.
fn one_or_same(cx: &InferCx<'_>, size: &Dim, to: &Dim) -> OpResult<Dim> {
    let beyond_one = to.sub(&1.into())?;
    cx.assume([Assumption {
        dim: beyond_one.mul(&to.sub(size)?)?,
        equal: true,
        meaning: format!("the target size is neither 1 nor that of the operand: {to} and {size}"),
    }]);
    Ok(size.clone())
}

fn import(_: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    Ok(Box::new(Expand))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("Expand", 8, 2)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let case =
        |x: &[usize], to: &[i64]| Case::new(Expand, vec![input(x), input(&[to.len()]).values(to).constant()]);
    vec![
        case(&[2, 3], &[1, 2, 1]).host_only("runs nothing on a device"),
        case(&[3, 1], &[2, 3, 5]),
        case(&[1, 3, 1, 5, 7], &[1, 3, 3, 5, 7]),
        case(&[1], &[129]),
    ]
}
