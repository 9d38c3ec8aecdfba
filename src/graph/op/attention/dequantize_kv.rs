//! Decodes 8-bit cache rows to floats (own domain, made by the pass `kv_q8`): operand `i32 [.., d /
//! 4 + 1]`, see [`crate::graph::op::kv_append_q8`]; the result is `[.., d]`. It serves nodes that
//! read only the shape of a cache, so nothing is computed on devices; the host can compute the
//! data.

use crate::graph::op::case::{Case, given};
use crate::graph::op::kv_append_q8::decoded;
use crate::graph::op::{InferCx, Inputs, Op, OpDef, OpError, OpResult, never_in_files, operand};
use crate::shape::{Fact, Shape};
use crate::tensor::{DType, HostTensor};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DequantizeKv;

impl Op for DequantizeKv {
    fn name(&self) -> &str {
        "DequantizeKv"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let rows = cx.fact(0)?;
        let Some((words, before)) = rows.shape.0.split_last().filter(|_| rows.dtype == DType::I32) else {
            return Err(OpError::expected("rows", "i32 [.., d / 4 + 1]", rows));
        };
        let d = words.sub(&1.into())?.mul(&4.into())?;
        Ok(vec![Fact::new(DType::F32, Shape([before, &[d]].concat()))])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let rows = operand(inputs, 0)?;
        let Some(words) = rows.shape().last().and_then(|w| w.checked_sub(1)) else {
            return Err(OpError::expected(
                "rows",
                "i32 [.., d / 4 + 1]",
                format!("{rows:?}"),
            ));
        };
        Ok(vec![decoded(rows, 4 * words)?.into_owned()])
    }
}

pub static DEF: OpDef = OpDef {
    onnx: &[],
    import: never_in_files,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let rows = HostTensor::zeros(DType::I32, &[1, 2, 3, 17]).map(given);
    let case = rows.map(|rows| Case::new(DequantizeKv, vec![rows]));
    case.map(|c| c.host_only("only its shape is read"))
        .into_iter()
        .collect()
}
