//! Determinants of square matrices. ONNX `Det` from opset 11.

use crate::graph::op::case::{Case, input};
use crate::graph::op::types::Types;
use crate::graph::op::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, onnx, operand, room};
use crate::quota;
use crate::shape::{Fact, Shape};
use crate::tensor::HostTensor;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Det;

/// Gaussian elimination with partial pivoting.
fn determinant(mut m: Vec<Vec<f64>>) -> OpResult<f64> {
    let mut det = 1.0;
    for i in 0..m.len() {
        let size = |row: &usize| m[*row][i].abs();
        let Some(pivot) = (i..m.len()).max_by(|a, b| size(a).total_cmp(&size(b))) else {
            return Ok(det);
        };
        quota::check()?;
        if pivot != i {
            m.swap(pivot, i);
            det = -det;
        }
        let top = m[i].clone();
        if top[i] == 0.0 {
            return Ok(0.0);
        }
        det *= top[i];
        for row in m.iter_mut().skip(i + 1) {
            let factor = row[i] / top[i];
            for (v, t) in row.iter_mut().zip(&top) {
                *v -= factor * t;
            }
        }
    }
    Ok(det)
}

impl Op for Det {
    fn name(&self) -> &str {
        "Det"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.typed(0, Types::FLOAT)?;
        let [lead @ .., rows, cols] = x.shape.0.as_slice() else {
            return Err(OpError::expected("rank", "2 or more", x));
        };
        cx.same("rows and columns", rows, cols)?;
        Ok(vec![Fact::new(x.dtype, Shape(lead.to_vec()))])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let ([lead @ .., n, cols], data) = (x.shape(), x.to_f32()?) else {
            return Err(OpError::expected("rank", "2 or more", format!("{x:?}")));
        };
        if n != cols {
            return Err(OpError::mismatch("rows and columns", n, cols));
        }
        let matrices = crate::graph::op::count(lead)?;
        let matrix = |i: usize| -> Vec<Vec<f64>> {
            let rows = data.chunks(*n).skip(i * n).take(*n);
            rows.map(|r| r.iter().map(|v| f64::from(*v)).collect()).collect()
        };
        let mut y = room(lead)?;
        for i in 0..matrices {
            let det = if *n == 0 { 1.0 } else { determinant(matrix(i))? };
            #[expect(
                clippy::cast_possible_truncation,
                reason = "rounding to the result type is intended"
            )]
            y.push(det as f32);
        }
        Ok(vec![HostTensor::from_floats(x.dtype(), lead, &y)?])
    }
}

fn import(_: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    Ok(Box::new(Det))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("Det", 11, 1)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    vec![Case::new(Det, vec![input(&[2, 3, 3])]).host_only("no kernel")]
}
