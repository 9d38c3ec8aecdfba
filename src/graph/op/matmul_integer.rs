//! Matrix products of 8-bit integers less their zero points.
//!
//! ONNX `MatMulInteger` from opset 10, with 32-bit results, and `QLinearMatMul` from opset 10, with results scaled back to 8
//! bits. Zero points and scales are scalars, one for each row of the left or one for each column of the right operand.

use super::case::{Case, constant};
use super::quantize_linear::quantize;
use super::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, count, onnx, operand, room};
use crate::graph::rules;
use crate::shape::{Fact, Shape};
use crate::tensor::{DType, HostTensor};

/// See the module documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MatMulInteger {
    /// Operands a, b, and their zero points, which may be left out.
    Wide,
    /// Operands a, scale, zero point, the same of b, and scale and zero point of the result.
    Scaled,
}

/// The matrix of an operand with leading axes `own` that belongs to matrix `i` of a product with leading axes `all`.
fn batch_index(all: &[usize], own: &[usize], i: usize) -> usize {
    let (mut rest, mut at, mut step) = (i, 0, 1);
    for (full, n) in all.iter().rev().zip(own.iter().rev()) {
        at += if *n == 1 { 0 } else { rest % full * step };
        rest /= full;
        step *= n;
    }
    at
}

/// What one of the two operands contributes.
struct Side<'a> {
    data: Vec<i64>,
    shape: &'a [usize],
    zeros: Vec<i64>,
    scales: Vec<f32>,
}

impl<'a> Side<'a> {
    fn new(x: &'a HostTensor, zero: Option<&HostTensor>, scale: Option<&HostTensor>) -> OpResult<Self> {
        Ok(Self {
            data: x.to_i64()?,
            shape: x.shape(),
            zeros: zero.map_or_else(|| Ok(vec![0]), HostTensor::to_i64)?,
            scales: scale.map_or_else(|| Ok(vec![1.0]), |s| s.to_f32().map(std::borrow::Cow::into_owned))?,
        })
    }
}

/// The entry of a list that has one for all, one for each of `n` lines, or one for each line of each matrix.
fn pick<T: Copy>(list: &[T], matrix: usize, line: usize, n: usize) -> OpResult<T> {
    let at = match list.len() {
        1 => 0,
        len if len == n => line,
        _ => matrix * n + line,
    };
    list.get(at)
        .copied()
        .ok_or_else(|| OpError::expected("zero points or scales", format!("1 or {n}"), list.len()))
}

/// Products of all pairs of matrices: sums, and the scale of each.
fn product(a: &Side<'_>, b: &Side<'_>) -> OpResult<(Vec<usize>, Vec<i64>, Vec<f32>)> {
    let out = rules::matmul(
        &Shape::fixed(a.shape),
        &Shape::fixed(b.shape),
        false,
        &rules::equal,
    )?;
    let out = out.as_fixed().unwrap_or_default();
    let (m, k) = match a.shape {
        [.., m, k] => (*m, *k),
        [k] => (1, *k),
        [] => (1, 1),
    };
    let n = if b.shape.len() < 2 {
        1
    } else {
        b.shape.last().copied().unwrap_or(1)
    };
    let batch = |s: &[usize]| s.get(..s.len().saturating_sub(2)).unwrap_or_default().to_vec();
    let (ba, bb) = (batch(a.shape), batch(b.shape));
    let both = rules::broadcast(&Shape::fixed(&ba).0, &Shape::fixed(&bb).0, &rules::equal)?;
    let both = both.as_fixed().unwrap_or_default();
    let (mut sums, mut scales) = (room(&out)?, Vec::new());
    for i in 0..count(&both)? {
        let (ma, mb) = (batch_index(&both, &ba, i), batch_index(&both, &bb, i));
        for row in 0..m {
            let za = pick(&a.zeros, ma, row, m)?;
            let left = a
                .data
                .get((ma * m + row) * k..(ma * m + row + 1) * k)
                .unwrap_or_default();
            for column in 0..n {
                let zb = pick(&b.zeros, mb, column, n)?;
                let right = b.data.iter().skip(mb * k * n + column).step_by(n.max(1));
                sums.push(
                    left.iter()
                        .zip(right)
                        .map(|(x, y)| (x - za).wrapping_mul(y - zb))
                        .fold(0, i64::wrapping_add),
                );
                scales.push(pick(&a.scales, ma, row, m)? * pick(&b.scales, mb, column, n)?);
            }
        }
    }
    Ok((out, sums, scales))
}

impl Op for MatMulInteger {
    fn name(&self) -> &str {
        match self {
            Self::Wide => "MatMulInteger",
            Self::Scaled => "QLinearMatMul",
        }
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let (b, dtype) = match self {
            Self::Wide => (1, DType::I32),
            Self::Scaled => (3, cx.fact(7)?.dtype),
        };
        let (a, b) = (cx.fact(0)?, cx.fact(b)?);
        for x in [a, b] {
            if !matches!(x.dtype, DType::U8 | DType::I8) {
                return Err(OpError::expected("operands", "integers of 8 bits", x));
            }
        }
        let shape = rules::matmul(&a.shape, &b.shape, false, &|what, a, b| cx.same(what, a, b))?;
        Ok(vec![Fact::new(dtype, shape)])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let optional = |i: usize| inputs.get(i).copied().flatten();
        if *self == Self::Wide {
            let a = Side::new(operand(inputs, 0)?, optional(2), None)?;
            let b = Side::new(operand(inputs, 1)?, optional(3), None)?;
            let (shape, sums, _) = product(&a, &b)?;
            return Ok(vec![HostTensor::from_ints(DType::I32, &shape, &sums)?]);
        }
        let a = Side::new(operand(inputs, 0)?, optional(2), optional(1))?;
        let b = Side::new(operand(inputs, 3)?, optional(5), optional(4))?;
        let (shape, sums, scales) = product(&a, &b)?;
        let (scale, zero) = (operand(inputs, 6)?.to_f32()?, operand(inputs, 7)?);
        let limits = if zero.dtype() == DType::I8 {
            (-128, 127)
        } else {
            (0, 255)
        };
        let (lines, zeros) = (shape.iter().rev().nth(1).copied().unwrap_or(1), zero.to_i64()?);
        let columns = shape.last().copied().unwrap_or(1).max(1);
        let mut y = Vec::with_capacity(sums.len());
        for (i, (sum, factor)) in sums.into_iter().zip(scales).enumerate() {
            let (matrix, line) = (i / (lines * columns).max(1), i / columns % lines.max(1));
            let (to, zero) = (
                pick(&scale, matrix, line, lines)?,
                pick(&zeros, matrix, line, lines)?,
            );
            #[expect(
                clippy::cast_precision_loss,
                reason = "a sum of products of 8 bits is scaled as a float"
            )]
            y.push(quantize(sum as f32 * factor, to, zero, limits));
        }
        Ok(vec![HostTensor::from_ints(zero.dtype(), &shape, &y)?])
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    Ok(Box::new(if a.op_type() == "MatMulInteger" {
        MatMulInteger::Wide
    } else {
        MatMulInteger::Scaled
    }))
}

/// The registry's entry.
pub static DEF: OpDef = OpDef {
    onnx: &[onnx("MatMulInteger", 10), onnx("QLinearMatMul", 10)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let ints = |dtype, shape: &[usize]| {
        let data: Vec<i64> = (0i64..)
            .take(shape.iter().product())
            .map(|v| v * 37 % 101)
            .collect();
        HostTensor::from_ints(dtype, shape, &data).ok().map(constant)
    };
    let inputs: Option<Vec<_>> = [
        ints(DType::U8, &[2, 3, 5]),
        ints(DType::I8, &[5, 4]),
        ints(DType::U8, &[]),
        ints(DType::I8, &[4]),
    ]
    .into_iter()
    .collect();
    inputs
        .map(|i| Case::new(MatMulInteger::Wide, i).host_only("no kernel"))
        .into_iter()
        .collect()
}
