//! Writes rows into a cache at an index per batch entry. ONNX `TensorScatter` from opset 24.
//!
//! Operands: the cache, the rows, and the indices of the first rows (0 if omitted). Cache and rows
//! may differ in size only along one axis.

use crate::graph::op::case::{Case, input};
use crate::graph::op::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, around, axis, fit, onnx, operand,
};
use crate::num;
use crate::shape::{Dim, Fact};
use crate::tensor::HostTensor;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorScatter {
    /// The axis of the rows; not the first axis.
    pub axis: i64,
    /// Writes wrap around after the last row.
    pub circular: bool,
}

impl Op for TensorScatter {
    fn name(&self) -> &str {
        "TensorScatter"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let (cache, rows) = (cx.fact(0)?, cx.fact(1)?);
        if cache.dtype != rows.dtype {
            return Err(OpError::mismatch("element types", cache.dtype, rows.dtype));
        }
        if cache.shape.rank() != rows.shape.rank() {
            return Err(OpError::mismatch("ranks", &cache.shape, &rows.shape));
        }
        let a = axis(self.axis, cache.shape.rank())?;
        if a == 0 {
            return Err(OpError::expected("axis", "an axis other than the batch axis", 0));
        }
        for (i, (n, m)) in cache.shape.0.iter().zip(&rows.shape.0).enumerate() {
            if i == a {
                cx.require(n.sub(m)?, "rows of the cache minus rows to write")?;
            } else {
                cx.same("sizes of cache and rows", n, m)?;
            }
        }
        if let Some(index) = cx.opt(2) {
            let batch = cache.shape.0.first().cloned().unwrap_or_else(|| Dim::from(1));
            cx.same("batch sizes of cache and indices", &batch, &index.shape.count()?)?;
        }
        Ok(vec![Fact::new(cache.dtype, cache.shape.clone())])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        fit(self, inputs)?;
        let (cache, rows) = (operand(inputs, 0)?, operand(inputs, 1)?);
        let a = axis(self.axis, cache.shape().len())?;
        let (outer, length, inner) = around(cache.shape(), a)?;
        let (_, count, _) = around(rows.shape(), a)?;
        let batch = cache.shape().first().copied().unwrap_or(1).max(1);
        let starts = match inputs.get(2).copied().flatten() {
            Some(t) => t.to_i64()?,
            None => vec![0; batch],
        };
        let row = inner * cache.dtype().size();
        let mut bytes = cache.bytes()?.to_vec();
        let mut source = rows.bytes()?.chunks_exact(row.max(1));
        for o in 0..outer {
            let start = *num::at(&starts, o / (outer / batch).max(1))?;
            for i in 0..count {
                let at = start.saturating_add(num::signed(i));
                let at = if self.circular {
                    at.rem_euclid(num::signed(length).max(1))
                } else {
                    at
                };
                let to = usize::try_from(at).ok().filter(|at| *at < length);
                let to = to.ok_or_else(|| {
                    OpError::expected("row to write", format!("0 to {}", length.saturating_sub(1)), at)
                })?;
                let slot = bytes.get_mut((o * length + to) * row..(o * length + to + 1) * row);
                if let (Some(slot), Some(new)) = (slot, source.next()) {
                    slot.copy_from_slice(new);
                }
            }
        }
        Ok(vec![HostTensor::from_bytes(
            cache.dtype(),
            cache.shape(),
            &bytes,
        )?])
    }

    fn keeps_precision(&self) -> bool {
        true
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let circular = match a.string("mode")?.as_deref() {
        None | Some("linear") => false,
        Some("circular") => true,
        Some(other) => {
            return Err(OpError::expected("attribute `mode`", "linear or circular", other));
        }
    };
    Ok(Box::new(TensorScatter {
        axis: a.int("axis")?.unwrap_or(-2),
        circular,
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("TensorScatter", 24, 3)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let case = |axis, circular, cache: &[usize], rows: &[usize], starts: &[i64]| {
        let starts = input(&[starts.len()]).values(starts);
        let op = TensorScatter { axis, circular };
        Case::new(op, vec![input(cache), input(rows), starts]).host_only("no kernel")
    };
    vec![
        case(-2, false, &[2, 3, 5, 4], &[2, 3, 2, 4], &[3, 0]),
        case(1, true, &[3, 4, 3], &[3, 3, 3], &[2, 7, -1]),
    ]
}
