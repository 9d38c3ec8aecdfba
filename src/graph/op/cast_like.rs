//! Conversion to the element type of another value. ONNX `CastLike` from opset 15.

use super::case::{Case, input};
use super::parts::Parts;
use super::pointwise::{Expr, Pointwise};
use super::{Attributes, InferCx, Inputs, Op, OpDef, OpResult, onnx, operand};
use crate::graph::ValueId;
use crate::shape::Fact;
use crate::tensor::{DType, HostTensor};

/// Operand 0 as elements of the type of operand 1, of which nothing else is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CastLike;

/// The conversion once the type is known.
fn cast(to: DType) -> Pointwise {
    Pointwise {
        name: "Cast".to_owned(),
        expr: Expr::Cast(to, Box::new(Expr::Input(0))),
    }
}

impl Op for CastLike {
    fn name(&self) -> &str {
        "CastLike"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let first = [Some(cx.fact(0)?)];
        cx.of(&cast(cx.fact(1)?.dtype), &first)
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        cast(operand(inputs, 1)?.dtype()).eval(&[Some(operand(inputs, 0)?)])
    }

    fn parts(&self, cx: &mut Parts<'_, '_>) -> OpResult<Option<Vec<ValueId>>> {
        let (x, to) = (cx.input(0)?, cx.fact(cx.input(1)?)?.dtype);
        Ok(Some(vec![cx.node("Cast", cast(to), &[Some(x)])?]))
    }

    fn reads(&self, input: usize) -> bool {
        input == 0
    }

    fn decides(&self, _: usize) -> bool {
        false
    }

    fn keeps_precision(&self) -> bool {
        true
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    // Both concern only conversion to 8-bit floats, which are refused.
    a.int("saturate")?;
    a.string("round_mode")?;
    Ok(Box::new(CastLike))
}

/// The registry's entry.
pub static DEF: OpDef = OpDef {
    onnx: &[onnx("CastLike", 15)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    vec![Case::new(
        CastLike,
        vec![input(&[3, 5]).range(-5.0, 5.0), input(&[1]).ints(0, 1)],
    )]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::{Constraints, Dim, Shape};

    #[test]
    fn what_an_operator_inside_assumes_is_assumed() {
        use super::super::pointwise::Binary;
        let fact = |size| Fact::new(DType::F32, Shape(vec![Dim::symbol(size)]));
        let (a, b) = (fact("n"), fact("m"));
        let (inputs, known) = ([Some(&a), Some(&b)], Constraints::default());
        let cx = InferCx::new(&inputs, &known);
        cx.of(&Pointwise::binary("Add", Binary::Add), &inputs).unwrap();
        assert_eq!(cx.finish().1.len(), 1);
    }
}
