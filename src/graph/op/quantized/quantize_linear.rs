//! Conversion between floats and quantized integers.
//!
//! ONNX `QuantizeLinear` and `DequantizeLinear` from opset 10 (one scale; from 13 one per index of
//! an axis; from 21 one per block of an axis), `DynamicQuantizeLinear` from 11. Integers have up to
//! 16 bits, for `DequantizeLinear` also 32. 8-bit and 4-bit floats are supported with zero points
//! of 0.

use crate::graph::ValueId;
use crate::graph::onnx::dtype_of;
use crate::graph::op::case::{Case, constant, input};
use crate::graph::op::parts::Parts;
use crate::graph::op::pointwise::import::{binary, cast, input as arg, number, unary};
use crate::graph::op::pointwise::{Binary, Expr, Unary};
use crate::graph::op::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, around, axis, microsoft, onnx, operand,
};
use crate::kernels::dynamic_quantize::{Args, KERNEL};
use crate::lower::{Call, LowerCx};
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::mini::Rounding;
use crate::tensor::{DType, HostTensor};

/// Work-items of the single work-group that finds a range.
const WORK_GROUP: u32 = 64;

/// Assignment of scales to elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// The axis with several scales; negative values count from the end.
    pub axis: i64,
    /// Elements along the axis that share a scale; 0 for one scale per index.
    pub block: i64,
}

impl Grid {
    /// Checks that the shapes of operand and scale match.
    fn check(self, cx: &InferCx<'_>, x: &Shape, scale: &Shape) -> OpResult<()> {
        if self.block == 0 && (scale.rank() == 0 || scale.0.as_slice() == [1.into()]) {
            return Ok(());
        }
        let a = axis(self.axis, x.rank())?;
        if self.block == 0 {
            let ([n], Some(size)) = (scale.0.as_slice(), x.0.get(a)) else {
                return Err(OpError::expected("scale", "at most one axis", scale));
            };
            cx.same("numbers of scales and sizes of the axis", n, size)?;
            return Ok(());
        }
        if scale.rank() != x.rank() {
            return Err(OpError::mismatch("ranks", x, scale));
        }
        for (i, (size, n)) in x.0.iter().zip(&scale.0).enumerate() {
            let wanted = if i == a {
                size.ceil_div(self.block)?
            } else {
                size.clone()
            };
            cx.same("numbers of scales and blocks of the axis", n, &wanted)?;
        }
        Ok(())
    }

    /// For each element of `x`, the position of its scale.
    fn positions(self, x: &[usize], scale: &HostTensor) -> OpResult<Vec<usize>> {
        let count = crate::graph::op::count(x)?;
        if scale.len() == 1 && self.block == 0 {
            return Ok(vec![0; count]);
        }
        let (_, n, inner) = around(x, axis(self.axis, x.len())?)?;
        let block = usize::try_from(self.block)
            .map_err(|_| OpError::expected("block size", "0 or more", self.block))?;
        let (blocks, wanted) = match block {
            0 => (n, n),
            block => (
                n.div_ceil(block),
                count.checked_div(n).unwrap_or(0) * n.div_ceil(block),
            ),
        };
        if scale.len() != wanted {
            return Err(OpError::expected(
                "scale",
                format!("{wanted} elements"),
                format!("{scale:?}"),
            ));
        }
        let inner = inner.max(1);
        Ok((0..count)
            .map(|i| {
                let (outer, at, inside) = (i / (n * inner), i / inner % n, i % inner);
                at.checked_div(block)
                    .map_or(at, |part| (outer * blocks + part) * inner + inside)
            })
            .collect())
    }
}

/// The range of a type of at most 16 bits to quantize to. It does not apply to floats, which give
/// (0, 0).
fn limits(dtype: DType) -> OpResult<(i64, i64)> {
    let range = dtype.int_range().and_then(|(low, high)| {
        let (low, high) = (i64::try_from(low).ok()?, i64::try_from(high).ok()?);
        Some((low, high)).filter(|_| dtype.size() <= 2)
    });
    match range {
        Some(range) => Ok(range),
        None if is_code(dtype) => Ok((0, 0)),
        None => Err(OpError::Unsupported(format!("quantization to {dtype}"))),
    }
}

/// True for floats to quantize to; a power-of-two format can only be a scale.
fn is_code(dtype: DType) -> bool {
    dtype.is_mini() && dtype != DType::F8E8M0
}

/// `round(x / scale) + zero`, saturated to the type; ties round to even.
pub(crate) fn quantize(x: f32, scale: f32, zero: i64, (low, high): (i64, i64)) -> i64 {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "saturation is intended; NaN becomes 0"
    )]
    let rounded = (x / scale).round_ties_even() as i64;
    rounded.saturating_add(zero).clamp(low, high)
}

/// The zero points in operand `i`; zeros if it is omitted.
fn zeros(inputs: &Inputs<'_>, i: usize, count: usize) -> OpResult<Vec<i64>> {
    let zeros = match inputs.get(i).copied().flatten() {
        Some(t) if t.dtype().is_float() => match t.to_f32()?.iter().find(|v| **v != 0.0) {
            Some(v) => return Err(OpError::expected("zero point of floats", 0, v)),
            None => vec![0; t.len()],
        },
        Some(t) => t.to_i64()?,
        None => vec![0; count],
    };
    if zeros.len() != count {
        return Err(OpError::mismatch(
            "numbers of scales and zero points",
            count,
            zeros.len(),
        ));
    }
    Ok(zeros)
}

/// Checks that zero points have the shape of the scales; a single one may be a list.
fn check_zero(cx: &InferCx<'_>, scale: &Fact) -> OpResult<()> {
    let Some(zero) = cx.opt(2) else { return Ok(()) };
    let is_one = |fact: &Fact| fact.shape.rank() <= 1 && fact.shape.0.iter().all(|d| d.is(1));
    if is_one(scale) && is_one(zero) {
        return Ok(());
    }
    if zero.shape.rank() != scale.shape.rank() {
        return Err(OpError::mismatch(
            "shapes of scale and zero point",
            &scale.shape,
            &zero.shape,
        ));
    }
    for (a, b) in scale.shape.0.iter().zip(&zero.shape.0) {
        cx.same("shapes of scale and zero point", a, b)?;
    }
    Ok(())
}

/// Quantizes floats or 32-bit integers to integers of at most 16 bits, or to small floats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuantizeLinear {
    /// Assignment of scales and zero points.
    pub grid: Grid,
    /// Type of the result; `None` for the type of the zero point, or `u8`.
    pub dtype: Option<DType>,
    /// Values that are too large for 8-bit floats become the largest one.
    pub saturate: bool,
}

/// Converts quantized values to floats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DequantizeLinear {
    /// Assignment of scales and zero points.
    pub grid: Grid,
    /// Type of the result; `None` for the type of the scale.
    pub dtype: Option<DType>,
}

/// Quantizes floats to `u8` with a scale and zero point computed from their range; these are
/// results 1 and 2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DynamicQuantizeLinear;

/// The scale and zero point of a node in `f32`, in shapes that broadcast to `x`.
struct Spread {
    x: ValueId,
    /// The shape of the result, if `x` was reshaped so that blocks have their own axes.
    shape: Option<Vec<i64>>,
    /// `x`, scale, and zero point if given.
    operands: Vec<ValueId>,
}

impl Spread {
    /// `None` if the axis has a fixed size that is not a multiple of the block.
    fn new(cx: &mut Parts<'_, '_>, grid: Grid) -> OpResult<Option<Self>> {
        let (x, scale) = (cx.input(0)?, cx.input(1)?);
        let (fact, scales) = (cx.fact(x)?.shape, cx.fact(scale)?.shape);
        let mut list = vec![scale];
        list.extend(cx.opt(2));
        let plain = |list: Vec<ValueId>, x| Self {
            x,
            shape: None,
            operands: list,
        };
        if grid.block == 0 {
            if scales.rank() == 0 || scales.0.as_slice() == [1.into()] {
                return Ok(Some(plain(list, x)));
            }
            let behind = fact.rank() - 1 - axis(grid.axis, fact.rank())?;
            let mut shape = vec![-1];
            shape.resize(1 + behind, 1);
            let spread = list.iter().enumerate();
            let spread = spread.map(|(i, v)| cx.reshape(&format!("spread{i}"), *v, &shape));
            return Ok(Some(plain(spread.collect::<OpResult<_>>()?, x)));
        }
        let at = axis(grid.axis, fact.rank())?;
        let fixed = |shape: &Shape| -> Option<Vec<i64>> { shape.0.iter().map(Dim::as_const).collect() };
        let (Some(full), Some(mut one)) = (fixed(&fact), fixed(&scales)) else {
            return Ok(None);
        };
        let (Some(n), Some(blocks)) = (full.get(at).copied(), one.get(at).copied()) else {
            return Ok(None);
        };
        if blocks.checked_mul(grid.block) != Some(n) {
            return Ok(None);
        }
        let mut split = full.clone();
        split.splice(at..=at, [blocks, grid.block]);
        one.insert(at + 1, 1);
        let spread = list.iter().enumerate();
        let spread = spread.map(|(i, v)| cx.reshape(&format!("spread{i}"), *v, &one));
        let list = spread.collect::<OpResult<_>>()?;
        let x = cx.reshape("blocks", x, &split)?;
        Ok(Some(Self {
            shape: Some(full),
            ..plain(list, x)
        }))
    }

    /// Applies an expression to x, scale and zero point.
    fn apply(
        mut self,
        cx: &mut Parts<'_, '_>,
        expr: impl FnOnce(Option<Expr>) -> OpResult<Expr>,
    ) -> OpResult<Vec<ValueId>> {
        let zero = (self.operands.len() > 1).then(|| arg(2));
        self.operands.insert(0, self.x);
        let y = cx.pointwise("scaled", expr(zero)?, &self.operands)?;
        Ok(vec![match &self.shape {
            Some(shape) => cx.reshape("joined", y, shape)?,
            None => y,
        }])
    }
}

/// `round(x / scale) + zero`, saturated to an integer type.
pub(crate) fn quantized(x: Expr, scale: Expr, zero: Option<Expr>, dtype: DType) -> OpResult<Expr> {
    let (low, high) = limits(dtype)?;
    #[expect(clippy::cast_precision_loss, reason = "limits of 8 bits")]
    let [low, high] = [low, high].map(|v| number(v as f32));
    let float = |e| cast(DType::F32, e);
    let rounded = unary(Unary::Round, binary(Binary::Div, float(x), float(scale)));
    let moved = zero
        .into_iter()
        .fold(rounded, |y, z| binary(Binary::Add, y, float(z)));
    let kept = binary(Binary::Min, binary(Binary::Max, moved, low), high);
    Ok(cast(dtype, kept))
}

impl Op for QuantizeLinear {
    fn name(&self) -> &str {
        "QuantizeLinear"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let (x, scale) = (cx.fact(0)?, cx.fact(1)?);
        let dtype = self
            .dtype
            .or_else(|| cx.opt(2).map(|z| z.dtype))
            .unwrap_or(DType::U8);
        limits(dtype)?;
        if let Some(zero) = cx.opt(2).filter(|z| z.dtype != dtype) {
            return Err(OpError::mismatch(
                "types of result and zero point",
                dtype,
                zero.dtype,
            ));
        }
        self.grid.check(cx, &x.shape, &scale.shape)?;
        check_zero(cx, scale)?;
        Ok(vec![Fact::new(dtype, x.shape.clone())])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let (x, scale) = (operand(inputs, 0)?, operand(inputs, 1)?);
        let zero = inputs.get(2).copied().flatten();
        let dtype = self
            .dtype
            .or_else(|| zero.map(HostTensor::dtype))
            .unwrap_or(DType::U8);
        let (bounds, zeros) = (limits(dtype)?, zeros(inputs, 2, scale.len())?);
        let (scales, at) = (scale.to_f32()?, self.grid.positions(x.shape(), scale)?);
        #[expect(clippy::cast_precision_loss, reason = "integers are quantized as floats")]
        let data = if x.dtype().is_float() {
            x.to_f32()?.into_owned()
        } else {
            x.to_i64()?.into_iter().map(|v| v as f32).collect()
        };
        if dtype.is_float() {
            let y: Vec<f64> = data
                .iter()
                .zip(at)
                .map(|(v, g)| f64::from(*v / scales[g]))
                .collect();
            let rounding = Rounding {
                saturate: self.saturate,
                ..Rounding::default()
            };
            return Ok(vec![HostTensor::from_rounded(dtype, x.shape(), &y, rounding)?]);
        }
        let y: Vec<i64> = data
            .iter()
            .zip(at)
            .map(|(v, g)| quantize(*v, scales[g], zeros[g], bounds))
            .collect();
        Ok(vec![HostTensor::from_ints(dtype, x.shape(), &y)?])
    }

    fn parts(&self, cx: &mut Parts<'_, '_>) -> OpResult<Option<Vec<ValueId>>> {
        let zero = cx.opt(2).map(|z| cx.fact(z)).transpose()?;
        let dtype = self.dtype.or(zero.map(|z| z.dtype)).unwrap_or(DType::U8);
        let Some(spread) = Spread::new(cx, self.grid)? else {
            return Ok(None);
        };
        Ok(Some(
            spread.apply(cx, |zero| quantized(arg(0), arg(1), zero, dtype))?,
        ))
    }
}

impl Op for DequantizeLinear {
    fn name(&self) -> &str {
        "DequantizeLinear"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let (x, scale) = (cx.fact(0)?, cx.fact(1)?);
        let dtype = self.dtype.unwrap_or(scale.dtype);
        if !(x.dtype.is_int() || is_code(x.dtype)) || !dtype.is_float() {
            return Err(OpError::expected(
                "types",
                "a conversion of integers, or of 8-bit or 4-bit floats, to floats",
                format!("{} to {dtype}", x.dtype),
            ));
        }
        self.grid.check(cx, &x.shape, &scale.shape)?;
        check_zero(cx, scale)?;
        Ok(vec![Fact::new(dtype, x.shape.clone())])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let (x, scale) = (operand(inputs, 0)?, operand(inputs, 1)?);
        let (zeros, at) = (
            zeros(inputs, 2, scale.len())?,
            self.grid.positions(x.shape(), scale)?,
        );
        let scales = scale.to_f32()?;
        #[expect(
            clippy::cast_precision_loss,
            reason = "rounding to the result type is intended"
        )]
        let y: Vec<f32> = if x.dtype().is_float() {
            let pairs = x.to_f32()?.into_owned().into_iter().zip(at);
            pairs.map(|(v, g)| v * scales[g]).collect()
        } else {
            let pairs = x.to_i64()?.into_iter().zip(at);
            pairs
                .map(|(v, g)| v.saturating_sub(zeros[g]) as f32 * scales[g])
                .collect()
        };
        Ok(vec![HostTensor::from_floats(
            self.dtype.unwrap_or(scale.dtype()),
            x.shape(),
            &y,
        )?])
    }

    fn parts(&self, cx: &mut Parts<'_, '_>) -> OpResult<Option<Vec<ValueId>>> {
        let dtype = self.dtype.unwrap_or(cx.fact(cx.input(1)?)?.dtype);
        let Some(spread) = Spread::new(cx, self.grid)? else {
            return Ok(None);
        };
        let wide = |e| cast(DType::I32, e);
        let y = spread.apply(cx, |zero| {
            let from = zero
                .into_iter()
                .fold(wide(arg(0)), |x, z| binary(Binary::Sub, x, wide(z)));
            let scaled = binary(Binary::Mul, cast(DType::F32, from), cast(DType::F32, arg(1)));
            Ok(cast(dtype, scaled))
        })?;
        Ok(Some(y))
    }
}

/// Dynamic uint8 quantization: the integers, their scale and zero point.
pub(crate) fn bytes_of(data: &[f32]) -> (Vec<i64>, f32, i64) {
    // The range includes 0, so that 0 is exact.
    let (low, high) = data
        .iter()
        .fold((0.0f32, 0.0f32), |(l, h), v| (l.min(*v), h.max(*v)));
    let scale = (high - low) / 255.0;
    // For all zeros, any scale works.
    let zero = if scale == 0.0 {
        0
    } else {
        quantize(-low, scale, 0, (0, 255))
    };
    let scale_or_1 = if scale == 0.0 { 1.0 } else { scale };
    let bytes = data.iter().map(|v| quantize(*v, scale_or_1, zero, (0, 255)));
    (bytes.collect(), scale, zero)
}

impl Op for DynamicQuantizeLinear {
    fn name(&self) -> &str {
        "DynamicQuantizeLinear"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.fact(0)?;
        let scalar = |dtype| Fact::new(dtype, Shape::default());
        Ok(vec![
            Fact::new(DType::U8, x.shape.clone()),
            scalar(DType::F32),
            scalar(DType::U8),
        ])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let (y, scale, zero) = bytes_of(&x.to_f32()?);
        Ok(vec![
            HostTensor::from_ints(DType::U8, x.shape(), &y)?,
            HostTensor::from_f32(&[], &[scale])?,
            HostTensor::from_ints(DType::U8, &[], &[zero])?,
        ])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let count = cx.shape(0)?.count()?;
        // A single work-group reads all elements twice.
        cx.loops(
            "the range",
            &count.ceil_div(i64::from(WORK_GROUP))?.mul(&2.into())?,
        )?;
        let args = Args {
            x: cx.input(0)?,
            y: cx.result(0, DType::I32, &count)?,
            scale: cx.result(1, DType::F32, &count)?,
            zero: cx.result(2, DType::I32, &count)?,
            count,
        };
        cx.emit(Call::new(&KERNEL, WORK_GROUP), args)
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    if a.op_type() == "DynamicQuantizeLinear" {
        return Ok(Box::new(DynamicQuantizeLinear));
    }
    let grid = Grid {
        axis: a.int("axis")?.unwrap_or(1),
        block: a.int("block_size")?.unwrap_or(0),
    };
    if grid.block < 0 {
        return Err(OpError::expected(
            "attribute `block_size`",
            "0 or more",
            grid.block,
        ));
    }
    let dtype = a
        .int("output_dtype")?
        .filter(|code| *code != 0)
        .map(dtype_of)
        .transpose()?;
    let saturate = a.int("saturate")?.unwrap_or(1) != 0;
    // Precision of the division: always `f32` here.
    if let Some(code) = a.int("precision")?.filter(|code| *code != 0) {
        dtype_of(code)?;
    }
    if a.op_type() == "DequantizeLinear" {
        return Ok(Box::new(DequantizeLinear { grid, dtype }));
    }
    if let Some(dtype) = dtype {
        limits(dtype)?;
    }
    Ok(Box::new(QuantizeLinear {
        grid,
        dtype,
        saturate,
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[
        onnx("QuantizeLinear", 10, 3),
        onnx("DequantizeLinear", 10, 3),
        onnx("DynamicQuantizeLinear", 11, 1).outputs(3),
        microsoft("QuantizeLinear", 3),
        microsoft("DequantizeLinear", 3),
    ],
    import,
    kernels: &[&KERNEL.kernel],
    cases,
};

fn cases() -> Vec<Case> {
    let scale = |shape: &[usize]| input(shape).range(0.01, 0.1);
    let whole = Grid { axis: 1, block: 0 };
    let ints = |dtype, shape: &[usize]| {
        let data: Vec<i64> = (0i64..)
            .take(shape.iter().product())
            .map(|v| v * 37 % 101)
            .collect();
        HostTensor::from_ints(dtype, shape, &data).ok().map(constant)
    };
    let mut all = vec![
        Case::new(
            QuantizeLinear {
                grid: whole,
                dtype: None,
                saturate: true,
            },
            vec![input(&[3, 5]), scale(&[])],
        ),
        Case::new(
            QuantizeLinear {
                grid: whole,
                dtype: Some(DType::I8),
                saturate: true,
            },
            vec![input(&[3, 5, 2]), scale(&[5])],
        ),
        Case::new(DynamicQuantizeLinear, vec![input(&[7, 3])]),
        Case::new(DynamicQuantizeLinear, vec![input(&[3, 131]).range(0.5, 9.0)]),
        Case::new(DynamicQuantizeLinear, vec![input(&[5]).range(0.0, 0.0)]),
    ];
    for (n, uneven) in [(6, false), (7, true)] {
        let (Some(x), Some(zero)) = (ints(DType::U8, &[2, n]), ints(DType::U8, &[2, n.div_ceil(3)])) else {
            continue;
        };
        let op = DequantizeLinear {
            grid: Grid { axis: 1, block: 3 },
            dtype: None,
        };
        let case = Case::new(op, vec![x, scale(&[2, n.div_ceil(3)]), zero]);
        all.push(if uneven {
            case.host_only("blocks that do not divide the axis")
        } else {
            case
        });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_and_limits() {
        let q = |x| quantize(x, 2.0, 10, (0, 255));
        assert_eq!(
            [1.0, 3.0, 5.0, -1.0].map(q),
            [10, 12, 12, 10],
            "halves go to the even side"
        );
        assert_eq!([1e9, -1e9, f32::INFINITY, f32::NAN].map(q), [255, 0, 255, 10]);
    }

    #[test]
    fn scales_of_blocks() {
        let scale = HostTensor::from_f32(&[2, 2, 1], &[1.0; 4]).unwrap();
        let grid = Grid { axis: 1, block: 2 };
        assert_eq!(grid.positions(&[2, 3, 1], &scale).unwrap(), [0, 0, 1, 2, 2, 3]);
        assert!(grid.positions(&[2, 5, 1], &scale).is_err(), "three blocks a row");
    }
}
