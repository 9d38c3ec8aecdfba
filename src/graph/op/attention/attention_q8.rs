//! [`crate::graph::op::attention`] over 8-bit keys and values (own domain, made by the pass `kv_q8`). They are
//! rows made by [`crate::graph::op::kv_append_q8`], `i32 [b, t, kv_heads, d / 4 + 1]`; everything else is the
//! same.

use crate::graph::op::attention::{Attention, KvStorage, check};
use crate::graph::op::case::{Case, given, input};
use crate::graph::op::kv_append_q8::{KvAppendQ8, decode, words};
use crate::graph::op::sizes::Sizes;
use crate::graph::op::{InferCx, Inputs, Op, OpDef, OpError, OpResult, never_in_files, operand};
use crate::lower::LowerCx;
use crate::shape::{Fact, Shape};
use crate::tensor::{DType, HostTensor};

#[derive(Clone, Debug, PartialEq)]
pub struct AttentionQ8 {
    pub attention: Attention,
}

/// The fact of keys or values as floats.
pub(crate) fn floats(rows: &Fact, q: &Fact) -> OpResult<Fact> {
    let (Some(d), Some((w, before))) = (q.shape.0.last(), rows.shape.0.split_last()) else {
        return Err(OpError::mismatch("queries and rows", q, rows));
    };
    if rows.dtype != DType::I32 || words(d).as_ref() != Some(w) {
        return Err(OpError::mismatch(
            "queries [.., d] and rows i32 [.., d / 4 + 1]",
            q,
            rows,
        ));
    }
    Ok(Fact::new(
        q.dtype,
        Shape([before, std::slice::from_ref(d)].concat()),
    ))
}

/// Rows of 8-bit keys or values as floats, `d` for each head.
pub(crate) fn decoded(rows: &HostTensor, d: usize) -> OpResult<HostTensor> {
    let mut shape = rows.shape().to_vec();
    let last = shape.last_mut();
    let last = last.ok_or_else(|| OpError::expected("rows", "rank 4", rows.shape().len()))?;
    let words = std::mem::replace(last, d);
    Ok(HostTensor::from_f32(&shape, &decode(rows.bytes()?, words))?)
}

impl Op for AttentionQ8 {
    fn name(&self) -> &str {
        "AttentionQ8"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let q = cx.fact(0)?;
        let (k, v) = (floats(cx.fact(1)?, q)?, floats(cx.fact(2)?, q)?);
        check(&q.shape, &k.shape, &v.shape, cx.opt(3).map(|f| &f.shape))?;
        self.attention.require(cx)?;
        Ok(vec![q.clone()])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let q = operand(inputs, 0)?;
        let d = q.shape().last().copied().unwrap_or(1);
        let (k, v) = (decoded(operand(inputs, 1)?, d)?, decoded(operand(inputs, 2)?, d)?);
        self.attention
            .eval(&[Some(q), Some(&k), Some(&v), inputs.get(3).copied().flatten()])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        self.attention.emit(cx, KvStorage::Words)
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        self.attention.flops(sizes)
    }

    fn elements_read(&self, input: usize, sizes: &Sizes) -> u64 {
        self.attention.elements_read(input, sizes)
    }
}

pub static DEF: OpDef = OpDef {
    onnx: &[],
    import: never_in_files,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let rows = |t: usize, heads: usize, d: usize| -> OpResult<HostTensor> {
        let rows = input(&[1, t, heads, d]).make(7)?;
        let past = HostTensor::zeros(DType::I32, &[1, 0, heads, d / 4 + 1])?;
        let mut all = KvAppendQ8.eval(&[Some(&past), Some(&rows)])?;
        all.pop().ok_or_else(|| OpError::expected("results", 1, 0))
    };
    let case = |s: usize, t: usize, h: usize, kv: usize, d: usize, mask: bool| -> OpResult<Case> {
        let q = input(&[1, s, h, d]).range(-2.0, 2.0);
        let rows = given(rows(t, kv, d)?);
        let mut inputs = vec![q, rows.clone(), rows];
        if mask {
            inputs.push(input(&[1, 1, s, t]).range(-4.0, 0.0));
        }
        let attention = Attention::scaled(0.25);
        Ok(Case::new(AttentionQ8 { attention }, inputs))
    };
    let with = |case: OpResult<Case>, causal, window| -> OpResult<Case> {
        let case = case?;
        let attention = Attention {
            causal,
            window,
            ..Attention::scaled(0.25)
        };
        Ok(Case::new(AttentionQ8 { attention }, case.inputs))
    };
    let all = [
        with(case(1, 700, 4, 2, 32, true), false, Some(300)),
        with(case(7, 165, 4, 2, 32, false), false, Some(20)),
        with(case(1, 70, 4, 2, 32, false), true, None),
        with(case(5, 70, 9, 3, 64, false), true, None),
        with(case(70, 130, 4, 2, 32, false), true, None),
        with(case(64, 64, 4, 1, 32, true), true, None),
        with(case(130, 150, 4, 2, 32, false), true, Some(20)),
        case(1, 130, 9, 3, 64, true),
        case(1, 700, 14, 2, 64, false),
        case(7, 65, 4, 2, 32, true),
        case(1, 3, 2, 2, 8, false),
    ];
    all.into_iter().flatten().collect()
}
