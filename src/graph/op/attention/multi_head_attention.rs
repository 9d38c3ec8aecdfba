//! Multi-head attention with a cache as defined by ONNX Runtime: `MultiHeadAttention` of the domain
//! `com.microsoft`, version 1.
//!
//! Operands: queries, keys and values `[batch, sequence, heads * size]`; three that must be
//! omitted, among them a bias and padding masks; optionally an additive bias for the scores, and
//! past keys and values `[batch, heads, past, size]`. Results: the attention with the shape of the
//! queries, and the keys and values appended to the past. With `unidirectional`, a query attends
//! only to its own position and earlier ones.

use crate::graph::ValueId;
use crate::graph::op::case::{Case, input};
use crate::graph::op::parts::Parts;
use crate::graph::op::sdpa::{Sdpa, heads_first};
use crate::graph::op::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, microsoft, operand};
use crate::num;
use crate::shape::{Dim, Fact};
use crate::tensor::HostTensor;

#[derive(Clone, Debug, PartialEq)]
pub struct MultiHeadAttention {
    /// Heads of queries, keys and values.
    pub heads: usize,
    /// Scale of the scores; `None` for one over the square root of the head size.
    pub scale: Option<f32>,
    /// A query attends to no key after its own position.
    pub causal: bool,
}

/// Operand indices of the additive bias and of the past.
const BIAS: usize = 5;
const PAST: usize = 6;

/// Operand indices for the standard operator: queries, keys, values, mask, past keys, past values.
const STANDARD: [usize; 6] = [0, 1, 2, BIAS, PAST, PAST + 1];

impl MultiHeadAttention {
    /// The equivalent standard operator.
    fn standard(&self) -> Sdpa {
        Sdpa {
            causal: self.causal,
            window: [None; 2],
            may_see_none: false,
            heads: Some((self.heads, self.heads)),
            scale: self.scale,
            softcap: 0.0,
            scores: 0,
        }
    }
}

impl Op for MultiHeadAttention {
    fn name(&self) -> &str {
        "MultiHeadAttention"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let facts = STANDARD.map(|i| cx.opt(i));
        if let Some(q) = facts[0].filter(|q| q.shape.rank() != 3) {
            return Err(OpError::expected("queries", "[batch, sequence, heads * size]", q));
        }
        let mut out = cx.of(&self.standard(), &facts)?;
        out.truncate(3);
        Ok(out)
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        operand(inputs, 2)?;
        let operands = STANDARD.map(|i| inputs.get(i).copied().flatten());
        let mut out = self.standard().eval(&operands)?;
        out.truncate(3);
        Ok(out)
    }

    fn parts(&self, cx: &mut Parts<'_, '_>) -> OpResult<Option<Vec<ValueId>>> {
        let new = [cx.input(0)?, cx.input(1)?, cx.input(2)?];
        let bias = cx.opt(BIAS);
        if let (Some(keys), Some(values)) = (cx.opt(PAST), cx.opt(PAST + 1)) {
            return self.standard().behind(cx, new, bias, [keys, values]);
        }
        let mut separate = Vec::with_capacity(2);
        for (name, x) in [("keys", new[1]), ("values", new[2])] {
            let joined = cx.fact(x)?.shape.0.last().and_then(Dim::as_const);
            let heads = num::signed(self.heads);
            let Some(joined) = joined else { return Ok(None) };
            separate.push(heads_first(cx, name, x, heads, joined / heads)?);
        }
        let [keys, values] = separate.as_slice() else {
            return Ok(None);
        };
        let operands = [Some(new[0]), Some(*keys), Some(*values), bias];
        let y = cx.node("attention", self.standard(), &operands)?;
        Ok(Some(vec![y, *keys, *values]))
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let heads = a.int("num_heads")?.unwrap_or(0);
    let valid = usize::try_from(heads).ok().filter(|n| *n > 0);
    let heads = valid.ok_or_else(|| OpError::expected("attribute `num_heads`", "1 or more", heads))?;
    for (what, i) in [("a bias of queries, keys and values", 3), ("a padding mask", 4)] {
        if a.has_input(i) {
            return Err(OpError::Unsupported(format!("operand {i} ({what})")));
        }
    }
    for i in [1, 2] {
        if !a.has_input(i) {
            return Err(OpError::Unsupported(
                "queries, keys and values in one operand".to_owned(),
            ));
        }
    }
    // Replaces minus infinity in padding masks, which are not supported.
    a.float("mask_filter_value")?;
    Ok(Box::new(MultiHeadAttention {
        heads,
        scale: a.float("scale")?.filter(|s| *s != 0.0),
        causal: a.int("unidirectional")?.unwrap_or(0) != 0,
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[microsoft("MultiHeadAttention", 10).outputs(4)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let op = MultiHeadAttention {
        heads: 2,
        scale: None,
        causal: false,
    };
    let rows = |n: usize| input(&[2, n, 16]);
    vec![Case::new(op, vec![rows(3), rows(5), rows(5)]).slack(4.0)]
}
