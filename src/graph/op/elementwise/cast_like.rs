//! Conversion to the element type of another value (ONNX `CastLike` from opset 15) and to 8-bit and
//! 4-bit floats (part of ONNX `Cast` from opset 19). Attribute `round_mode` from opset 24.

use crate::graph::ValueId;
use crate::graph::op::case::{Case, constant, input};
use crate::graph::op::parts::Parts;
use crate::graph::op::pointwise::{Expr, Pointwise};
use crate::graph::op::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, onnx, operand};
use crate::shape::Fact;
use crate::tensor::mini::{Powers, Rounding};
use crate::tensor::{DType, HostTensor};

/// Converts operand 0 to the element type of operand 1, whose contents are not read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CastLike {
    /// Rounding to 8-bit floats.
    pub rounding: Rounding,
}

/// Converts numbers and truth values to 8-bit and 4-bit floats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CastMini {
    /// The type of the result.
    pub to: DType,
    /// Rounding of the values.
    pub rounding: Rounding,
}

impl CastLike {
    /// The conversion for a known type.
    fn cast(&self, to: DType) -> Box<dyn Op> {
        if to.is_mini() {
            let rounding = self.rounding;
            return Box::new(CastMini { to, rounding });
        }
        Box::new(cast(to))
    }
}

/// The conversion to a type that elementwise operators support.
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
        cx.of(self.cast(cx.fact(1)?.dtype).as_ref(), &first)
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        self.cast(operand(inputs, 1)?.dtype())
            .eval(&[Some(operand(inputs, 0)?)])
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

impl Op for CastMini {
    fn name(&self) -> &str {
        "Cast"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        Ok(vec![Fact::new(self.to, cx.fact(0)?.shape.clone())])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        #[expect(
            clippy::cast_precision_loss,
            reason = "integers that f64 cannot represent are rounded twice"
        )]
        let data = if x.dtype().is_float() {
            x.to_f64()?.into_owned()
        } else {
            x.to_i128()?.into_iter().map(|v| v as f64).collect()
        };
        Ok(vec![HostTensor::from_rounded(
            self.to,
            x.shape(),
            &data,
            self.rounding,
        )?])
    }
}

/// The node's rounding to 8-bit floats.
pub(crate) fn rounding(a: &dyn Attributes) -> OpResult<Rounding> {
    let powers = match a.string("round_mode")?.as_deref() {
        None | Some("up") => Powers::Up,
        Some("down") => Powers::Down,
        Some("nearest") => Powers::Nearest,
        Some(other) => {
            return Err(OpError::expected(
                "attribute `round_mode`",
                "up, down or nearest",
                other,
            ));
        }
    };
    Ok(Rounding {
        saturate: a.int("saturate")?.unwrap_or(1) != 0,
        powers,
    })
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let rounding = rounding(a)?;
    Ok(Box::new(CastLike { rounding }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("CastLike", 15, 2)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let x = || input(&[3, 5]).range(-5.0, 5.0);
    let mut all = vec![Case::new(CastLike::default(), vec![x(), input(&[1]).ints(0, 1)])];
    if let Ok(like) = HostTensor::zeros(DType::F8E5M2, &[1]) {
        all.push(
            Case::new(CastLike::default(), vec![x(), constant(like)]).host_only("types that devices lack"),
        );
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::{Constraints, Dim, Shape};

    #[test]
    fn what_an_operator_inside_assumes_is_assumed() {
        use crate::graph::op::pointwise::Binary;
        let fact = |size| Fact::new(DType::F32, Shape(vec![Dim::symbol(size)]));
        let (a, b) = (fact("n"), fact("m"));
        let (inputs, known) = ([Some(&a), Some(&b)], Constraints::default());
        let cx = InferCx::new(&inputs, &known);
        cx.of(&Pointwise::binary("Add", Binary::Add), &inputs).unwrap();
        assert_eq!(cx.finish().1.len(), 1);
    }
}
