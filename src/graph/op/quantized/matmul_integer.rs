//! Matmul of 8-bit integers with zero points.
//!
//! ONNX `MatMulInteger` from opset 10 with 32-bit results, and `QLinearMatMul` from opset 10 with
//! results scaled back to 8 bits. Zero points and scales are scalars, one per row of the left
//! operand, or one per column of the right operand.

use crate::graph::op::case::{Case, constant};
use crate::graph::op::matmul::BatchWalk;
use crate::graph::op::parts::Parts;
use crate::graph::op::pointwise::Binary;
use crate::graph::op::pointwise::import::{binary, cast, input as arg};
use crate::graph::op::quantize_linear::{quantize, quantized};
use crate::graph::op::sizes::Sizes;
use crate::graph::op::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, as_usize, count, onnx, operand, room,
};
use crate::graph::{ValueId, rules};
use crate::kernels::matmul_integer::{Args, KERNEL, SIGNED};
use crate::lower::{Call, LowerCx, Pack, Planned};
use crate::num;
use crate::quota;
use crate::shape::{Dim, Fact, Shape, product};
use crate::tensor::{DType, HostTensor};

/// Rows per work-item if there are many rows.
const ROWS: i64 = 4;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MatMulInteger {
    /// `MatMulInteger`: operands a, b, and their optional zero points.
    Wide,
    /// `QLinearMatMul`: operands a with scale and zero point, b likewise, and scale and zero point
    /// of the result.
    Scaled,
}

/// Index of the operand matrix, with leading axes `own`, for matrix `i` of a matmul with leading
/// axes `all`.
fn batch_index(all: &[usize], own: &[usize], i: usize) -> usize {
    let (mut rest, mut at, mut step) = (i, 0, 1);
    for (full, n) in all.iter().rev().zip(own.iter().rev()) {
        at += if *n == 1 { 0 } else { rest % full * step };
        rest /= full;
        step *= n;
    }
    at
}

/// One of the two operands.
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

/// The entry for a line in a list with one entry in total, one per line (`n`), or one per line of
/// each matrix.
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

/// Multiplies all pairs of matrices: the sums, and the scale of each.
fn products(a: &Side<'_>, b: &Side<'_>) -> OpResult<(Vec<usize>, Vec<i64>, Vec<f32>)> {
    let out = rules::matmul(
        &Shape::fixed(a.shape),
        &Shape::fixed(b.shape),
        false,
        &rules::equal,
    )?;
    let out = out.sizes()?;
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
    let batch = |s: &[usize]| {
        s.split_last_chunk::<2>()
            .map_or(vec![], |(lead, _)| lead.to_vec())
    };
    let (ba, bb) = (batch(a.shape), batch(b.shape));
    let both = rules::broadcast(&Shape::fixed(&ba).0, &Shape::fixed(&bb).0, &rules::equal)?;
    let both = both.sizes()?;
    let (mut sums, mut scales) = (room(&out)?, Vec::new());
    for i in 0..count(&both)? {
        let (ma, mb) = (batch_index(&both, &ba, i), batch_index(&both, &bb, i));
        for row in 0..m {
            quota::check()?;
            let za = pick(&a.zeros, ma, row, m)?;
            let left = num::part(&a.data, (ma * m + row) * k..(ma * m + row + 1) * k)?;
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

/// Distance between the zero points of operand `i`: 0 for a single one, 1 for one per line.
fn zero_point_step(cx: &LowerCx<'_>, i: usize, lines: &Dim, alone: bool) -> OpResult<i64> {
    if !cx.has(i) {
        return Ok(0);
    }
    let shape = cx.shape(i)?;
    match shape.0.as_slice() {
        _ if shape.count()?.is(1) => Ok(0),
        [one] if alone && one == lines => Ok(1),
        _ => Err(OpError::NoKernel(format!("zero points of shape {shape}"))),
    }
}

/// The form for a constant matrix of bytes.
fn by_bytes(rows: &Dim, n: &Dim, signed: bool) -> OpResult<Call<Args>> {
    let tile = if rows.is(1) { 1 } else { ROWS };
    let mut call = Call::new(&KERNEL, 64).define("ROWS", tile);
    call = call.define_if(SIGNED, signed);
    Ok(call.grid(n.ceil_div(4 * 64)?, rows.ceil_div(tile)?, 1))
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
            let (shape, sums, _) = products(&a, &b)?;
            return Ok(vec![HostTensor::from_ints(DType::I32, &shape, &sums)?]);
        }
        let a = Side::new(operand(inputs, 0)?, optional(2), optional(1))?;
        let b = Side::new(operand(inputs, 3)?, optional(5), optional(4))?;
        let (shape, sums, scales) = products(&a, &b)?;
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
                reason = "a sum of 8-bit multiplications is scaled as a float"
            )]
            y.push(quantize(sum as f32 * factor, to, zero, limits));
        }
        Ok(vec![HostTensor::from_ints(zero.dtype(), &shape, &y)?])
    }

    fn parts(&self, cx: &mut Parts<'_, '_>) -> OpResult<Option<Vec<ValueId>>> {
        if *self == Self::Wide {
            return Ok(None);
        }
        let (a, b) = (cx.input(0)?, cx.input(3)?);
        let sums = cx.node("sums", Self::Wide, &[Some(a), Some(b), cx.opt(2), cx.opt(5)])?;
        let rank = cx.fact(sums)?.shape.rank();
        // Scales per row must form a column; a single scale stays a scalar.
        let column = |cx: &mut Parts<'_, '_>, i: usize| -> OpResult<ValueId> {
            let scale = cx.input(i)?;
            match cx.fact(scale)?.shape.0.as_slice() {
                [n] if !n.is(1) && rank > 1 => cx.reshape(&format!("column{i}"), scale, &[-1, 1]),
                _ => Ok(scale),
            }
        };
        let (left, right) = (column(cx, 1)?, cx.input(4)?);
        let (to, zero) = (column(cx, 6)?, column(cx, 7)?);
        let float = |i| cast(DType::F32, arg(i));
        let scales = binary(Binary::Mul, float(1), float(2));
        let y = cx.pointwise(
            "scaled",
            binary(Binary::Mul, float(0), scales),
            &[sums, left, right],
        )?;
        let dtype = cx.fact(zero)?.dtype;
        let y = cx.pointwise(
            "quantized",
            quantized(arg(0), arg(1), Some(arg(2)), dtype)?,
            &[y, to, zero],
        )?;
        Ok(Some(vec![y]))
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        if *self == Self::Scaled {
            return Err(OpError::NoKernel("QLinearMatMul is always decomposed".to_owned()));
        }
        let (out, a, b) = (cx.out_fact(0)?.shape.clone(), cx.shape(0)?, cx.fact(1)?.clone());
        let ([batch @ .., m, n], [batch_a @ .., _, k]) = (out.0.as_slice(), a.0.as_slice()) else {
            return Err(OpError::NoKernel(format!(
                "a matmul of {a} and {} with a 1-D operand",
                b.shape
            )));
        };
        let Some((batch_b, tail_b)) = b.shape.rank().checked_sub(2).map(|r| b.shape.0.split_at(r)) else {
            return Err(OpError::NoKernel(format!(
                "a matmul of {a} and {} with a 1-D operand",
                b.shape
            )));
        };
        cx.loops("sums", &k.mul(&2.into())?)?;
        // A single matrix on the right makes all rows part of one matmul.
        let za = zero_point_step(cx, 2, m, product(batch)?.is(1))?;
        let zb = zero_point_step(cx, 3, n, true)?;
        let one_matrix = batch_b.is_empty() && za == 0;
        let (rows, walk) = if one_matrix {
            (product(batch)?.mul(m)?, BatchWalk::default())
        } else {
            let walk = BatchWalk::new(batch, batch_a, &m.mul(k)?, batch_b, &product(tail_b)?)?;
            (m.clone(), walk)
        };
        let whole = one_matrix && b.as_const().is_some() && n.exact_div(&4.into()).is_some();
        if b.as_const().is_some() {
            let size = product(&b.shape.0)?.mul(&if whole { 1 } else { 4 }.into())?;
            let most = cx.device().max_view_bytes;
            if as_usize(&size).is_none_or(|n| num::wide(n) > most) {
                return Err(OpError::NoKernel(format!(
                    "a weight of {size} bytes, which exceeds the binding limit of {most}"
                )));
            }
        }
        let bytes = if whole {
            Some(cx.weight(1, Pack::Bytes)?)
        } else {
            None
        };
        let matrix = if whole { None } else { Some(cx.input(1)?) };
        let ([n1, n2], [a0, a1, a2], [b0, b1, b2]) = (walk.sizes, walk.a, walk.b);
        let args = Args::<Planned> {
            a: cx.input(0)?,
            b: matrix,
            w: bytes,
            za: if cx.has(2) { Some(cx.input(2)?) } else { None },
            zb: if cx.has(3) { Some(cx.input(3)?) } else { None },
            y: cx.output(0)?,
            m: rows.clone(),
            n: n.clone(),
            k: k.clone(),
            za_step: za.into(),
            zb_step: zb.into(),
            batches: walk.count,
            n1,
            n2,
            a0,
            a1,
            a2,
            b0,
            b1,
            b2,
        };
        if !whole {
            let pairs = args.batches.mul(&rows)?.mul(n)?.ceil_div(2 * 64)?;
            return cx.emit(Call::new(&KERNEL, 64).grid(pairs, 1, 1), args);
        }
        let call = by_bytes(&rows, n, b.dtype == DType::I8)?;
        cx.emit(call.may_be_padded(), args)
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        sizes.row_products()
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    Ok(Box::new(if a.op_type() == "MatMulInteger" {
        MatMulInteger::Wide
    } else {
        MatMulInteger::Scaled
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("MatMulInteger", 10, 4), onnx("QLinearMatMul", 10, 8)],
    import,
    kernels: &[&KERNEL.kernel],
    cases,
};

fn cases() -> Vec<Case> {
    let ints = |dtype, shape: &[usize]| {
        let data: Vec<i64> = (0i64..)
            .take(shape.iter().product())
            .map(|v| v * 37 % 251 - if dtype == DType::I8 { 125 } else { 0 })
            .collect();
        HostTensor::from_ints(dtype, shape, &data).ok().map(constant)
    };
    let case = |a: (DType, &[usize]), b: (DType, &[usize]), zeros: &[(DType, &[usize])], given: bool| {
        let operands = [a, b].into_iter().chain(zeros.iter().copied());
        let inputs: Option<Vec<_>> = operands.map(|(dtype, shape)| ints(dtype, shape)).collect();
        let mut inputs = inputs?;
        inputs.iter_mut().take(2).for_each(|x| x.is_const = false);
        if let Some(b) = inputs.get_mut(1) {
            b.is_const = given;
        }
        Some(Case::new(MatMulInteger::Wide, inputs))
    };
    let (u, i) = (DType::U8, DType::I8);
    [
        case((u, &[2, 3, 5]), (i, &[5, 4]), &[(u, &[]), (i, &[4])], false),
        case((u, &[2, 3, 5]), (i, &[5, 4]), &[(u, &[]), (i, &[4])], true),
        case((u, &[1, 33]), (i, &[33, 128]), &[(u, &[]), (i, &[])], true),
        case((i, &[1, 33]), (u, &[33, 96]), &[], true),
        case((u, &[7, 65]), (u, &[65, 48]), &[(u, &[7]), (u, &[48])], true),
        case((u, &[5, 17]), (i, &[17, 20]), &[(u, &[1])], true),
        case((i, &[2, 3, 5]), (i, &[2, 5, 7]), &[(i, &[]), (i, &[7])], false),
    ]
    .into_iter()
    .flatten()
    .collect()
}
