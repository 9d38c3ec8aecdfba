//! One of two graphs, by a condition. ONNX `If` from opset 1.
//!
//! Both branches give results of the same types and ranks. Where their sizes differ, only the run tells.

use super::case::Case;
use super::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, onnx, operand};
use crate::graph::body::Body;
use crate::shape::{Fact, Known};
use crate::tensor::{DType, HostTensor};

/// See the module documentation.
#[derive(Clone, Debug, PartialEq)]
pub struct If {
    /// Runs where the condition holds.
    pub then: Body,
    /// Runs elsewhere.
    pub otherwise: Body,
}

impl If {
    /// The branch of a condition with one element.
    pub fn branch(&self, condition: bool) -> &Body {
        if condition { &self.then } else { &self.otherwise }
    }
}

/// What a condition says, when that is known.
pub fn decided(fact: &Fact) -> Option<bool> {
    match fact.as_dims()?.as_slice() {
        [one] => one.as_const().map(|v| v != 0),
        _ => None,
    }
}

/// The only truth value of an operand.
pub(super) fn truth(x: &HostTensor) -> OpResult<bool> {
    match x.to_i64()?.as_slice() {
        [one] => Ok(*one != 0),
        _ => Err(OpError::expected("condition", "one truth value", format!("{x:?}"))),
    }
}

impl Op for If {
    fn name(&self) -> &str {
        "If"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let condition = cx.fact(0)?;
        if condition.dtype != DType::Bool {
            return Err(OpError::expected("condition", DType::Bool, condition));
        }
        if let Some(holds) = decided(condition) {
            let branch = self.branch(holds).infer(cx, &[])?;
            return (0..branch.facts.len()).map(|i| branch.fact(cx, i)).collect();
        }
        let (a, b) = (self.then.infer(cx, &[])?, self.otherwise.infer(cx, &[])?);
        let mut facts = Vec::new();
        for (i, (x, y)) in a.facts.iter().zip(&b.facts).enumerate() {
            if x.dtype != y.dtype || x.shape.rank() != y.shape.rank() {
                return Err(OpError::mismatch("results of the branches", x, y));
            }
            let mut fact = Fact::new(x.dtype, x.shape.clone());
            for (axis, (p, q)) in fact.shape.0.iter_mut().zip(&y.shape.0).enumerate() {
                if p != q || !a.is_outer(p) || !b.is_outer(q) {
                    *p = cx.unknown(i, axis, None);
                }
            }
            if let (Some(p), Some(q)) = (x.as_dims(), y.as_dims())
                && p == q
                && p.iter().all(|d| a.is_outer(d) && b.is_outer(d))
            {
                fact.known = Known::Dims(p);
            }
            facts.push(fact);
        }
        Ok(facts)
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        self.branch(truth(operand(inputs, 0)?)?).eval(Vec::new(), inputs)
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let branch = |name: &str| -> OpResult<Body> {
        let body = a.graph(name, 1)?.ok_or_else(|| OpError::expected(format!("attribute `{name}`"), "a graph", "nothing"))?;
        body.check(&format!("attribute `{name}`"), 0, a.output_count())?;
        Ok(body)
    };
    Ok(Box::new(If { then: branch("then_branch")?, otherwise: branch("else_branch")? }))
}

/// The registry's entry.
pub static DEF: OpDef = OpDef { onnx: &[onnx("If", 1)], import, kernels: &[], cases };

fn cases() -> Vec<Case> {
    // Graphs come from models: `tests/onnx_nodes.rs`.
    Vec::new()
}
