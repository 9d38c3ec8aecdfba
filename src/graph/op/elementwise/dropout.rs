//! Dropout for inference: the identity.
//!
//! ONNX `Dropout` from opset 6 (`is_test`), 7 (ratio as attribute), 12 (ratio and training mode as
//! operands) to 22. The optional mask is true everywhere: of the operand's type until opset 9,
//! `bool` from 10 on.

use crate::graph::ValueId;
use crate::graph::op::case::{Case, input};
use crate::graph::op::parts::Parts;
use crate::graph::op::pointwise::Expr;
use crate::graph::op::reshape::Reshape;
use crate::graph::op::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, onnx, operand};
use crate::lower::LowerCx;
use crate::shape::{Fact, Known};
use crate::tensor::{DType, HostTensor};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropout {
    /// The mask has the operand's type.
    pub float_mask: bool,
    /// Result 1, the mask, is requested.
    pub mask: bool,
}

impl Op for Dropout {
    fn name(&self) -> &str {
        "Dropout"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.fact(0)?;
        if let Some(training) = cx.opt(2) {
            match training.as_dims().as_deref() {
                Some([v]) if v.is(0) => {}
                _ => return Err(OpError::Unsupported("dropout in training mode".to_owned())),
            }
        }
        let mut facts = vec![Fact {
            known: Known::No,
            ..x.clone()
        }];
        if self.mask {
            facts.push(Fact::new(
                if self.float_mask { x.dtype } else { DType::Bool },
                x.shape.clone(),
            ));
        }
        Ok(facts)
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let mut out = vec![x.clone()];
        if self.mask && self.float_mask {
            out.push(HostTensor::from_floats(
                x.dtype(),
                x.shape(),
                &vec![1.0; x.len()],
            )?);
        } else if self.mask {
            out.push(HostTensor::from_bool(x.shape(), &vec![true; x.len()])?);
        }
        Ok(out)
    }

    fn parts(&self, cx: &mut Parts<'_, '_>) -> OpResult<Option<Vec<ValueId>>> {
        if !self.mask {
            return Ok(None);
        }
        let x = cx.input(0)?;
        let dtype = if self.float_mask {
            cx.fact(x)?.dtype
        } else {
            DType::Bool
        };
        let mask = cx.pointwise("mask", Expr::Const(1.0, dtype), &[x])?;
        let y = cx.node("result", Reshape::Identity, &[Some(x)])?;
        Ok(Some(vec![y, mask]))
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        if self.mask {
            return Err(OpError::NoKernel("the mask of Dropout has no kernel".to_owned()));
        }
        cx.alias(0, 0)
    }

    fn reads(&self, input: usize) -> bool {
        input == 0
    }

    fn keeps_precision(&self) -> bool {
        true
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    // Only used in training.
    a.float("ratio")?;
    a.int("is_test")?;
    a.int("seed")?;
    Ok(Box::new(Dropout {
        float_mask: a.opset() < 10,
        mask: a.output_count() > 1,
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("Dropout", 6, 3).outputs(2)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    vec![
        Case::new(
            Dropout {
                float_mask: false,
                mask: false,
            },
            vec![input(&[3, 5])],
        )
        .host_only("runs nothing on a device"),
    ]
}
