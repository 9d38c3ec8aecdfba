//! A matrix with ones on a diagonal, shaped like another one. ONNX `EyeLike` from opset 9.

use crate::graph::derive::FOLD_BYTES;
use crate::graph::onnx::dtype_of;
use crate::graph::op::case::{Case, input};
use crate::graph::op::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, count, onnx, operand};
use crate::num;
use crate::shape::{Fact, Known};
use crate::tensor::{DType, HostTensor};
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EyeLike {
    /// Type of the result; `None` for the operand's type.
    pub dtype: Option<DType>,
    /// Offset of the diagonal in columns; positive is to the right.
    pub diagonal: i64,
}

impl EyeLike {
    fn matrix(&self, dtype: DType, rows: usize, cols: usize) -> OpResult<HostTensor> {
        let shape = [rows, cols];
        let one = |i: usize| num::signed(i % cols) == num::signed(i / cols).saturating_add(self.diagonal);
        let all = 0..count(&shape)?;
        Ok(if dtype.is_float() {
            let data: Vec<f32> = all.map(|i| f32::from(u8::from(one(i)))).collect();
            HostTensor::from_floats(dtype, &shape, &data)?
        } else {
            let data: Vec<i64> = all.map(|i| i64::from(one(i))).collect();
            HostTensor::from_ints(dtype, &shape, &data)?
        })
    }
}

impl Op for EyeLike {
    fn name(&self) -> &str {
        "EyeLike"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.fact(0)?;
        if x.shape.rank() != 2 {
            return Err(OpError::expected("rank", 2, x));
        }
        let mut fact = Fact::new(self.dtype.unwrap_or(x.dtype), x.shape.clone());
        if let Some([rows, cols]) = x.shape.as_fixed().as_deref()
            && rows.saturating_mul(*cols) <= FOLD_BYTES / 4
        {
            fact.known = Known::Const(Arc::new(self.matrix(fact.dtype, *rows, *cols)?));
        }
        Ok(vec![fact])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let [rows, cols] = x.shape() else {
            return Err(OpError::expected("rank", 2, format!("{x:?}")));
        };
        Ok(vec![self.matrix(
            self.dtype.unwrap_or(x.dtype()),
            *rows,
            *cols,
        )?])
    }

    fn reads(&self, _: usize) -> bool {
        false
    }

    fn decides(&self, _: usize) -> bool {
        false
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let dtype = a.int("dtype")?.map(dtype_of).transpose()?;
    Ok(Box::new(EyeLike {
        dtype,
        diagonal: a.int("k")?.unwrap_or(0),
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("EyeLike", 9, 1)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    vec![
        Case::new(
            EyeLike {
                dtype: Some(DType::I32),
                diagonal: -1,
            },
            vec![input(&[3, 4])],
        )
        .host_only("a constant, once its shape is known"),
    ]
}
