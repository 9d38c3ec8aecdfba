//! `Inverse` of the domain `com.microsoft`: the inverse of each matrix `[..., n, n]`, on the host.

use crate::graph::op::case::{Case, given};
use crate::graph::op::types::Types;
use crate::graph::op::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, fit, microsoft, operand};
use crate::quota;
use crate::shape::Fact;
use crate::tensor::HostTensor;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inverse;

/// Inverts the matrix `m` of `n` rows by elimination with the largest pivot of each column. The
/// inverse of a singular matrix has elements that are infinite or NaN.
fn invert(mut m: Vec<Vec<f64>>, n: usize) -> OpResult<Vec<f64>> {
    for (i, row) in m.iter_mut().enumerate() {
        row.extend((0..n).map(|j| if i == j { 1.0 } else { 0.0 }));
    }
    for column in 0..n {
        quota::check()?;
        let size = |row: &Vec<f64>| row.get(column).map_or(0.0, |v| v.abs());
        let pivot = (column..n).max_by(|a, b| size(&m[*a]).total_cmp(&size(&m[*b])));
        m.swap(column, pivot.unwrap_or(column));
        let factor = m[column][column];
        m[column].iter_mut().for_each(|v| *v /= factor);
        let line = m[column].clone();
        for (_, row) in m.iter_mut().enumerate().filter(|(i, _)| *i != column) {
            let factor = row[column];
            row.iter_mut().zip(&line).for_each(|(v, l)| *v -= factor * l);
        }
    }
    Ok(m.into_iter().flat_map(|row| row.into_iter().skip(n)).collect())
}

impl Op for Inverse {
    fn name(&self) -> &str {
        "Inverse"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.typed(0, Types::FLOAT)?;
        let [.., rows, columns] = x.shape.0.as_slice() else {
            return Err(OpError::expected("operand", "rank 2 or more", x));
        };
        cx.same("numbers of rows and columns", rows, columns)?;
        Ok(vec![Fact::new(x.dtype, x.shape.clone())])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        fit(self, inputs)?;
        let x = operand(inputs, 0)?;
        let n = x.shape().last().copied().unwrap_or(0);
        let data = x.to_f64()?;
        let mut out = Vec::with_capacity(data.len());
        for matrix in data.chunks_exact(n.saturating_mul(n).max(1)) {
            let rows = matrix.chunks_exact(n).map(<[f64]>::to_vec).collect();
            out.extend(invert(rows, n)?);
        }
        Ok(vec![HostTensor::from_f64s(x.dtype(), x.shape(), &out)?])
    }
}

fn import(_: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    Ok(Box::new(Inverse))
}

pub static DEF: OpDef = OpDef {
    onnx: &[microsoft("Inverse", 1)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let matrices = [
        2.0, 0.0, 1.0, 0.0, 3.0, -1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 4.0,
    ];
    let matrices = HostTensor::from_f32(&[2, 3, 3], &matrices);
    matrices
        .map(|m| Case::new(Inverse, vec![given(m)]).host_only("no kernel"))
        .into_iter()
        .collect()
}
