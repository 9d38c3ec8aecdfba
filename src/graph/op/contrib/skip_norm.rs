//! `SkipLayerNormalization` and `SkipSimplifiedLayerNormalization` of the domain `com.microsoft`:
//! the normalization of a sum of two tensors. `SimplifiedLayerNormalization` is
//! `RMSNormalization`; exporters also write it in the standard domain.
//!
//! Operands: x, skip, scale, and optionally beta (for layer normalization only) and a bias of the
//! sum. Results: the normalized sum; mean and inverse standard deviation, which are not supported;
//! and the sum.

use crate::graph::ValueId;
use crate::graph::op::case::{Case, input};
use crate::graph::op::composite::{Composed, Composite};
use crate::graph::op::norm::{Norm, Over};
use crate::graph::op::parts::Parts;
use crate::graph::op::pointwise::{Binary, Pointwise};
use crate::graph::op::rms_norm::RmsNormFrom;
use crate::graph::op::{Attributes, Op, OpDef, OpError, OpResult, microsoft, onnx};

#[derive(Clone, Debug, PartialEq)]
pub struct SkipNorm {
    /// Root mean square instead of mean and variance.
    pub simplified: bool,
    pub epsilon: f32,
}

impl Composed for SkipNorm {
    fn name(&self) -> &str {
        match self.simplified {
            true => "SkipSimplifiedLayerNormalization",
            false => "SkipLayerNormalization",
        }
    }

    fn build(&self, cx: &mut Parts<'_, '_>) -> OpResult<Vec<ValueId>> {
        let add = || Pointwise::binary("Add", Binary::Add);
        let mut sum = cx.node("sum", add(), &[cx.opt(0), cx.opt(1)])?;
        let bias = cx.opt(if self.simplified { 3 } else { 4 });
        if bias.is_some() {
            sum = cx.node("biased", add(), &[Some(sum), bias])?;
        }
        let (epsilon, axis) = (self.epsilon, -1);
        let y = if self.simplified {
            cx.node("norm", RmsNormFrom { axis, epsilon }, &[Some(sum), cx.opt(2)])?
        } else {
            let norm = Norm {
                over: Over::Layer { axis },
                epsilon,
                results: 1,
            };
            cx.node("norm", norm, &[Some(sum), cx.opt(2), cx.opt(3)])?
        };
        // Nobody reads the statistics; see `import`.
        Ok(vec![y, y, y, sum])
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let epsilon = a.float("epsilon")?;
    if a.op_type() == "SimplifiedLayerNormalization" {
        a.int("stash_type")?;
        return Ok(Box::new(RmsNormFrom {
            axis: a.int("axis")?.unwrap_or(-1),
            epsilon: epsilon.unwrap_or(1e-5),
        }));
    }
    if a.has_output(1) || a.has_output(2) {
        return Err(OpError::Unsupported(
            "the outputs `mean` and `inv_std_var`".to_owned(),
        ));
    }
    Ok(Box::new(Composite(SkipNorm {
        simplified: a.op_type() == "SkipSimplifiedLayerNormalization",
        epsilon: epsilon.unwrap_or(1e-12),
    })))
}

pub static DEF: OpDef = OpDef {
    onnx: &[
        microsoft("SkipLayerNormalization", 5).outputs(4),
        microsoft("SkipSimplifiedLayerNormalization", 4).outputs(4),
        microsoft("SimplifiedLayerNormalization", 2),
        onnx("SimplifiedLayerNormalization", 1, 2),
    ],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let case = |simplified, others: &[&[usize]]| {
        let op = Composite(SkipNorm {
            simplified,
            epsilon: 1e-5,
        });
        let shapes = [&[2, 3, 8][..], &[2, 3, 8]]
            .into_iter()
            .chain(others.iter().copied());
        Case::new(op, shapes.map(input).collect())
    };
    vec![
        case(false, &[&[8], &[8], &[8]]),
        case(false, &[&[8]]),
        case(true, &[&[8], &[8]]),
        case(true, &[&[8]]),
    ]
}
