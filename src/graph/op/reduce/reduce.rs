//! Reductions: `ReduceMean`, `ReduceSum`, `ReduceMax`, `ReduceMin`, `ReduceProd`, `ReduceL1`,
//! `ReduceL2`, `ReduceLogSum`, `ReduceLogSumExp`, `ReduceSumSquare`.
//!
//! ONNX opset 1 on; axes are an attribute until opset 12 (`ReduceSum`) or 17 (others), then an
//! operand. Kernels reduce up to three ranges of axes, and integers only in short rows.

use crate::graph::bounds::{Bounds, BoundsCx};
use crate::graph::op::case::{Case, EDGES, input};
use crate::graph::op::sizes::Sizes;
use crate::graph::op::types::Types;
use crate::graph::op::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, as_usize, axis, max_nan, min_nan,
    offset_lists, onnx, operand, pointwise, transpose,
};
use crate::kernels::reduce::{self, Args, KERNEL};
use crate::lower::{Call, LowerCx};
use crate::num;
use crate::shape::{Dim, Fact, Known, Shape, product};
use crate::tensor::{DType, HostTensor};

mod dims;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are self-explanatory")]
pub enum Kind {
    Mean,
    Sum,
    Max,
    Min,
    Prod,
    L1,
    L2,
    LogSum,
    LogSumExp,
    SumSquare,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reduce {
    pub kind: Kind,
    /// Axes from the attribute; `None` reads operand 1.
    pub axes: Option<Vec<i64>>,
    /// Keep reduced axes with size 1.
    pub keep: bool,
    /// Without axes, reduce nothing instead of everything.
    pub noop_without_axes: bool,
}

impl Reduce {
    fn axes(&self, rank: usize, operand: Option<Vec<i64>>) -> OpResult<Vec<usize>> {
        let list = self.axes.clone().or(operand).unwrap_or_default();
        if list.is_empty() {
            return Ok(if self.noop_without_axes {
                Vec::new()
            } else {
                (0..rank).collect()
            });
        }
        let mut axes: Vec<usize> = list.iter().map(|a| axis(*a, rank)).collect::<OpResult<_>>()?;
        axes.sort_unstable();
        axes.dedup();
        Ok(axes)
    }

    fn shape(&self, x: &[Dim], axes: &[usize]) -> Vec<Dim> {
        let kept = |i: usize| !axes.contains(&i);
        if self.keep {
            (0..x.len())
                .map(|i| if kept(i) { x[i].clone() } else { 1.into() })
                .collect()
        } else {
            (0..x.len()).filter(|i| kept(*i)).map(|i| x[i].clone()).collect()
        }
    }
}

impl Reduce {
    /// The fact of a result whose axes are known only in the run; their number is known.
    fn undecided(&self, cx: &InferCx<'_>, x: &Fact, axes: &Fact) -> OpResult<Fact> {
        let count = axes.shape.count()?;
        let count = as_usize(&count);
        let rank = x.shape.rank();
        let shape = match count {
            Some(0) => self.shape(&x.shape.0, &self.axes(rank, None)?),
            _ if self.keep => (0..rank)
                .map(|i| cx.unknown(0, i, x.shape.0.get(i).filter(|d| !d.is(0)).cloned()))
                .collect(),
            Some(n) if n <= rank => (0..rank - n).map(|i| cx.unknown(0, i, None)).collect(),
            _ => {
                return Err(OpError::expected(
                    "number of axes",
                    format!("at most {rank}, the same in every run"),
                    axes,
                ));
            }
        };
        Ok(Fact::new(x.dtype, Shape(shape)))
    }
}

impl Op for Reduce {
    fn name(&self) -> &str {
        match self.kind {
            Kind::Mean => "ReduceMean",
            Kind::Sum => "ReduceSum",
            Kind::Max => "ReduceMax",
            Kind::Min => "ReduceMin",
            Kind::Prod => "ReduceProd",
            Kind::L1 => "ReduceL1",
            Kind::L2 => "ReduceL2",
            Kind::LogSum => "ReduceLogSum",
            Kind::LogSumExp => "ReduceLogSumExp",
            Kind::SumSquare => "ReduceSumSquare",
        }
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let types = match self.kind {
            Kind::Max | Kind::Min => Types::EXTREME,
            _ => Types::SUM,
        };
        let x = cx.typed(0, types)?;
        cx.typed_if_given(1, Types::INTEGER)?;
        let list = match cx.opt(1) {
            Some(f) if f.as_dims().is_none() && self.axes.is_none() => {
                return Ok(vec![self.undecided(cx, x, f)?]);
            }
            Some(_) => Some(cx.ints(1)?),
            None => None,
        };
        let axes = self.axes(x.shape.rank(), list)?;
        let mut fact = Fact::new(x.dtype, Shape(self.shape(&x.shape.0, &axes)));
        if let Some(elements) = dims::known(self.kind, cx, x, &axes) {
            fact.known = Known::Dims(elements);
        }
        Ok(vec![fact])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let list = match inputs.get(1).copied().flatten() {
            Some(t) => Some(t.to_i64()?),
            None => None,
        };
        let axes = self.axes(x.shape().len(), list)?;
        let [outer, inner] = offset_lists(x.shape(), &axes)?;
        let shape = self.shape(&Shape::fixed(x.shape()).0, &axes);
        let shape = Shape(shape).sizes()?;
        if !x.dtype().is_float() {
            let data = x.to_i128()?;
            let count = i128::from(num::signed(inner.len())).max(1);
            let (least, most) = ends(x.dtype());
            let of = |base: &usize| {
                let all = inner.iter().map(|i| data[base + i]);
                match self.kind {
                    Kind::Sum => all.fold(0, i128::wrapping_add),
                    Kind::Mean => all.fold(0, i128::wrapping_add) / count,
                    Kind::Prod => all.fold(1, i128::wrapping_mul),
                    Kind::L1 => all.fold(0, |s: i128, v| s.wrapping_add(v.wrapping_abs())),
                    Kind::SumSquare => all.fold(0, |s: i128, v| s.wrapping_add(v.wrapping_mul(v))),
                    #[expect(
                        clippy::cast_precision_loss,
                        clippy::cast_possible_truncation,
                        reason = "ONNX returns the operand's type"
                    )]
                    Kind::L2 => all.map(|v| (v as f64).powi(2)).sum::<f64>().sqrt() as i128,
                    #[expect(
                        clippy::cast_precision_loss,
                        clippy::cast_possible_truncation,
                        reason = "ONNX returns the operand's type"
                    )]
                    Kind::LogSum => all.map(|v| v as f64).sum::<f64>().ln() as i128,
                    #[expect(
                        clippy::cast_precision_loss,
                        clippy::cast_possible_truncation,
                        reason = "ONNX returns the operand's type"
                    )]
                    Kind::LogSumExp => all.map(|v| (v as f64).exp()).sum::<f64>().ln() as i128,
                    Kind::Max => all.max().unwrap_or(least),
                    Kind::Min => all.min().unwrap_or(most),
                }
            };
            let y: Vec<i128> = outer.iter().map(of).collect();
            return Ok(vec![HostTensor::from_i128s(x.dtype(), &shape, &y)?]);
        }
        let data = x.to_f64()?;
        let of = |base: &usize| -> f64 {
            let all = inner.iter().map(|i| data[base + i]);
            #[expect(clippy::cast_precision_loss, reason = "a number of elements")]
            match self.kind {
                Kind::Sum => all.sum(),
                Kind::Mean => all.sum::<f64>() / inner.len() as f64,
                Kind::Max => all.fold(f64::NEG_INFINITY, max_nan),
                Kind::Min => all.fold(f64::INFINITY, min_nan),
                Kind::Prod => all.product(),
                Kind::L1 => all.map(f64::abs).sum(),
                Kind::L2 => all.map(|v| v.powi(2)).sum::<f64>().sqrt(),
                Kind::LogSum => all.sum::<f64>().ln(),
                Kind::LogSumExp => {
                    // Relative to the largest, so that the exponentials stay finite.
                    let most = all.clone().fold(f64::NEG_INFINITY, f64::max);
                    let most = if most.is_finite() { most } else { 0.0 };
                    all.map(|v| (v - most).exp()).sum::<f64>().ln() + most
                }
                Kind::SumSquare => all.map(|v| v.powi(2)).sum(),
            }
        };
        let y: Vec<f64> = outer.iter().map(of).collect();
        Ok(vec![HostTensor::from_f64s(x.dtype(), &shape, &y)?])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let x = cx.fact(0)?.clone();
        let list = if cx.has(1) {
            Some(cx.dims(1)?.iter().filter_map(Dim::as_const).collect())
        } else {
            None
        };
        let axes = self.axes(x.shape.rank(), list)?;
        if axes.is_empty()
            && matches!(
                self.kind,
                Kind::Mean | Kind::Sum | Kind::Max | Kind::Min | Kind::Prod
            )
        {
            return cx.alias(0, 0);
        }
        let of_ints = matches!(
            self.kind,
            Kind::Sum | Kind::Max | Kind::Min | Kind::Prod | Kind::L1 | Kind::SumSquare
        );
        if !(x.dtype.is_float() || of_ints) {
            return Err(OpError::NoKernel(format!("{} of {x}", self.name())));
        }
        let is_empty = axes.iter().any(|a| x.shape.0.get(*a).is_some_and(|d| d.is(0)));
        if is_empty && !x.dtype.is_float() && matches!(self.kind, Kind::Max | Kind::Min) {
            let (least, most) = ends(x.dtype);
            let value = if self.kind == Kind::Max { least } else { most };
            let value = i32::try_from(value)
                .map_err(|_| OpError::NoKernel(format!("{} of no elements: {value}", self.name())))?;
            return pointwise::fill(cx, f64::from(value));
        }
        // Kernels start from the limits of `i32`, which would be the result for an empty axis.
        let is_open = axes
            .iter()
            .any(|a| x.shape.0.get(*a).is_none_or(|d| d.as_const().is_none()));
        let is_narrow = !x.dtype.is_float() && ends(x.dtype).1 < i128::from(i32::MAX);
        if is_open && is_narrow && matches!(self.kind, Kind::Max | Kind::Min) {
            let why = format!("{} of {} over an axis that may be empty", self.name(), x.dtype);
            return Err(OpError::NoKernel(why));
        }
        emit(cx, self.kind, &x, &axes)
    }

    fn reads(&self, input: usize) -> bool {
        input == 0
    }

    fn keeps_precision(&self) -> bool {
        true
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        sizes.input_elements(0)
    }

    fn bounds(&self, cx: &BoundsCx<'_>) -> Vec<Option<Bounds>> {
        let some = |x: Bounds| {
            let count = Bounds::new(0, cx.count(0));
            let most = x.low.abs().max(x.high.abs());
            let sum = |x: Bounds| x.corners(count, |x, n| x.saturating_mul(n));
            // Without axes, it is the operand.
            let is_same = self.noop_without_axes && self.axes.is_none() && cx.fact(1).is_none();
            Some(match self.kind {
                Kind::Sum if is_same => x,
                Kind::Sum => sum(x),
                Kind::L1 => sum(Bounds::new(0, most)),
                Kind::SumSquare => sum(Bounds::new(0, most.saturating_mul(most))),
                // Of no elements, they are the ends of the type.
                Kind::Max | Kind::Min if cx.is_never_empty(0) => x,
                _ => return None,
            })
        };
        vec![cx.input(0).and_then(some)]
    }
}

/// An error if the result is an unsigned integer of 32 or 64 bits that is stored in 64: kernels
/// compute with signed ones, and keep all bits.
pub(crate) fn wraps(cx: &LowerCx<'_>) -> OpResult<()> {
    let dtype = cx.out_fact(0)?.dtype;
    let wide = cx.out_bounds(0)?.is_some_and(|b| !b.fits_32());
    if wide && matches!(dtype, DType::U32 | DType::U64) {
        return Err(OpError::NoKernel(format!(
            "results of {dtype} that may exceed 31 bits"
        )));
    }
    Ok(())
}

/// The least and the largest value of an integer type or `bool`.
fn ends(dtype: DType) -> (i128, i128) {
    dtype.int_range().unwrap_or((0, 1))
}

/// Rows of up to this many elements are reduced by one work-item.
const FEW: i64 = 256;

/// Emits the reduction of operand 0, with fact `x`, over `axes` to result 0.
pub(crate) fn emit(cx: &mut LowerCx<'_>, kind: Kind, x: &Fact, axes: &[usize]) -> OpResult<()> {
    wraps(cx)?;
    let step = transpose::dim_strides(&x.shape.0)?;
    let walk = |reduced: bool| {
        let axes = (0..x.shape.rank()).filter(|i| axes.contains(i) == reduced);
        let (shape, step): (Vec<Dim>, Vec<Dim>) =
            axes.map(|i| (x.shape.0[i].clone(), step[i].clone())).unzip();
        transpose::joined(&shape, &step)
    };
    let (kept, reduced) = (walk(false)?, walk(true)?);
    if kept.len() > 3 || reduced.len() > 3 {
        let what =
            format!("{kind:?} over axes {axes:?} of {x}: more than three ranges of kept or reduced axes");
        return Err(OpError::NoKernel(what));
    }
    let sizes = |list: &[(Dim, Dim)]| product(&list.iter().map(|(n, _)| n.clone()).collect::<Vec<_>>());
    let (rows, cols) = (sizes(&kept)?, sizes(&reduced)?);
    // Contiguous rows.
    let flat = reduced.len() <= 1
        && kept.len() <= 1
        && reduced.iter().all(|(_, s)| s.is(1))
        && kept.iter().all(|(_, s)| *s == cols);
    let few = cols.as_const().is_some_and(|n| n <= FEW);
    // One work-group per pair of rows may be more than the device runs.
    let crowded = cx
        .upper_bound(&rows)
        .is_some_and(|n| n / 2 >= i64::from(cx.device().max_grid));
    let item = !x.dtype.is_float() || kind == Kind::Prod || few && (!flat || crowded);
    // A work-item computes two results. LogSumExp reads each element twice.
    let each = if item { cols.clone() } else { cols.ceil_div(64)? };
    let passes = if kind == Kind::LogSumExp { 4 } else { 2 };
    cx.loops("a reduction", &each.mul(&passes.into())?)?;
    use reduce::{Finish, Join, Map};
    let (map, join, finish) = match kind {
        Kind::Sum => (Map::Same, Join::Sum, Finish::Same),
        Kind::Mean => (Map::Same, Join::Sum, Finish::Mean),
        Kind::Max => (Map::Same, Join::Largest, Finish::Same),
        Kind::Min => (Map::Same, Join::Smallest, Finish::Same),
        Kind::Prod => (Map::Same, Join::Product, Finish::Same),
        Kind::L1 => (Map::Absolute, Join::Sum, Finish::Same),
        Kind::L2 => (Map::Squared, Join::Sum, Finish::Root),
        Kind::LogSum => (Map::Same, Join::Sum, Finish::Logarithm),
        Kind::LogSumExp => (Map::Exponential, Join::Sum, Finish::Logarithm),
        Kind::SumSquare => (Map::Squared, Join::Sum, Finish::Same),
    };
    let mut call = Call::new(&KERNEL, 64)
        .define(reduce::MAP, map as i64)
        .define(reduce::JOIN, join as i64)
        .define(reduce::FINISH, finish as i64);
    call = call.define_if("FLAT", flat);
    call = if reduced.len() <= 1 {
        call.define("ONE_AXIS", 1)
    } else {
        call
    };
    call = if item {
        call.define("ITEM", 1).grid(rows.ceil_div(2 * 64)?, 1, 1)
    } else {
        call.grid(rows.ceil_div(2)?, 1, 1)
    };
    let size = |list: &[(Dim, Dim)], i: usize| list.get(i).map_or(Dim::from(1), |(n, _)| n.clone());
    let step = |list: &[(Dim, Dim)], i: usize| list.get(i).map_or(Dim::from(0), |(_, s)| s.clone());
    let [n1, n2] = std::array::from_fn(|i| size(&kept, i));
    let [k0, k1, k2] = std::array::from_fn(|i| step(&kept, i));
    let [m1, m2] = std::array::from_fn(|i| size(&reduced, i));
    let [r0, r1, r2] = std::array::from_fn(|i| step(&reduced, i));
    let (x, y) = (cx.input(0)?, cx.output(0)?);
    #[rustfmt::skip]
    let args = Args { x, y, rows, cols, n1, n2, k0, k1, k2, m1, m2, r0, r1, r2 };
    cx.emit(call, args)
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let kind = match a.op_type() {
        "ReduceMean" => Kind::Mean,
        "ReduceSum" => Kind::Sum,
        "ReduceMax" => Kind::Max,
        "ReduceMin" => Kind::Min,
        "ReduceProd" => Kind::Prod,
        "ReduceL1" => Kind::L1,
        "ReduceL2" => Kind::L2,
        "ReduceLogSum" => Kind::LogSum,
        "ReduceLogSumExp" => Kind::LogSumExp,
        _ => Kind::SumSquare,
    };
    Ok(Box::new(Reduce {
        kind,
        axes: a.ints("axes")?,
        keep: a.int("keepdims")?.unwrap_or(1) != 0,
        noop_without_axes: a.int("noop_with_empty_axes")?.unwrap_or(0) != 0,
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[
        onnx("ReduceMean", 1, 2),
        onnx("ReduceSum", 1, 2),
        onnx("ReduceMax", 1, 2),
        onnx("ReduceMin", 1, 2),
        onnx("ReduceProd", 1, 2),
        onnx("ReduceL1", 1, 2),
        onnx("ReduceL2", 1, 2),
        onnx("ReduceLogSum", 1, 2),
        onnx("ReduceLogSumExp", 1, 2),
        onnx("ReduceSumSquare", 1, 2),
    ],
    import,
    kernels: &[&KERNEL.kernel, &crate::kernels::pointwise::KERNEL.kernel],
    cases,
};

fn cases() -> Vec<Case> {
    let op = |kind, axes: &[i64], keep| Reduce {
        kind,
        axes: Some(axes.to_vec()),
        keep,
        noop_without_axes: false,
    };
    let positive =
        |kind, axes: &[i64], x: &[usize]| Case::new(op(kind, axes, true), vec![input(x).range(0.25, 2.0)]);
    let plain = |kind, axes: &[i64], x: &[usize]| Case::new(op(kind, axes, false), vec![input(x)]);
    let ints = |kind, axes: &[i64], x: &[usize]| Case::new(op(kind, axes, true), vec![input(x).ints(-9, 9)]);
    let empty = |kind| Case::new(op(kind, &[1], true), vec![input(&[2, 0, 4]).bools()]);
    let mut all = vec![
        positive(Kind::Prod, &[1], &[3, 5, 2]),
        plain(Kind::L1, &[0, 2], &[3, 5, 2]),
        plain(Kind::L2, &[-1], &[3, 7]),
        plain(Kind::L2, &[0, 2, 3], &[3, 5, 9, 41]),
        positive(Kind::LogSum, &[-1], &[3, 7]),
        positive(Kind::LogSumExp, &[0], &[4, 3]),
        positive(Kind::LogSumExp, &[1, 2], &[3, 4, 99]),
        plain(Kind::SumSquare, &[1, 2], &[2, 3, 4]),
        plain(Kind::Mean, &[-1], &[3, 130]),
        plain(Kind::Sum, &[-1], &[5, 33]),
        plain(Kind::Max, &[1, 2], &[7, 5, 9]),
        plain(Kind::Max, &[0, 2], &[7, 5, 99]),
        plain(Kind::Min, &[-1], &[1, 1025]),
        plain(Kind::Min, &[1], &[3, 300, 5]),
        plain(Kind::Mean, &[0], &[3, 5]),
        plain(Kind::Mean, &[0, 2, 4], &[2, 3, 4, 5, 6]),
        plain(Kind::Sum, &[1, 3], &[2, 3, 1, 5, 2]),
        plain(Kind::Sum, &[0, 1], &[5, 7]),
        ints(Kind::Sum, &[1], &[3, 5, 2]),
        ints(Kind::Max, &[0], &[5, 7]),
        ints(Kind::Min, &[-1], &[5, 7]),
        ints(Kind::L1, &[0, 1], &[3, 7]),
        ints(Kind::Mean, &[-1], &[3, 7]).host_only("a mean of integers"),
        empty(Kind::Max),
        empty(Kind::Min),
    ];
    // Rows with and without special numbers, by work-groups and by work-items, and no elements.
    let kinds = [
        Kind::Mean,
        Kind::Sum,
        Kind::Max,
        Kind::Min,
        Kind::Prod,
        Kind::L1,
        Kind::L2,
        Kind::LogSum,
        Kind::LogSumExp,
        Kind::SumSquare,
    ];
    let floats = |kind, axes: &[i64], x: &[usize]| {
        let x = input(x).floats(ROWS);
        Case::new(op(kind, axes, false), vec![x])
    };
    all.extend(kinds.iter().flat_map(|kind| {
        [
            floats(*kind, &[-1], &[6, 3]),
            floats(*kind, &[0], &[2, 9]),
            floats(*kind, &[0], &[0, 4]),
        ]
    }));
    let edges = input(&[3, 110]).floats(EDGES);
    all.push(Case::new(op(Kind::Max, &[1], false), vec![edges.clone()]));
    all.push(Case::new(op(Kind::Min, &[0], false), vec![edges]));
    all
}

/// Rows of three elements.
const ROWS: &[f32] = &[
    1.0,
    f32::INFINITY,
    2.0,
    f32::NEG_INFINITY,
    f32::NEG_INFINITY,
    f32::NEG_INFINITY,
    f32::INFINITY,
    f32::NEG_INFINITY,
    0.0,
    1.0,
    f32::NAN,
    2.0,
    0.5,
    -0.0,
    3.0,
    200.0,
    150.0,
    0.0,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extremes_of_no_elements_are_the_ends_of_the_type() {
        let of = |kind, dtype| {
            let op = Reduce {
                kind,
                axes: Some(vec![0]),
                keep: false,
                noop_without_axes: false,
            };
            let x = HostTensor::from_bytes(dtype, &[0, 1], &[]).unwrap();
            op.eval(&[Some(&x)]).unwrap()[0].to_bits().unwrap()
        };
        for (dtype, least, most) in [
            (DType::Bool, 0, 1),
            (DType::I8, -128, 127),
            (DType::U8, 0, 255),
            (DType::I32, i64::from(i32::MIN), i64::from(i32::MAX)),
            (DType::I64, i64::MIN, i64::MAX),
            (DType::U64, 0, -1),
        ] {
            assert_eq!(of(Kind::Max, dtype), [least], "{dtype}");
            assert_eq!(of(Kind::Min, dtype), [most], "{dtype}");
        }
    }

    #[test]
    fn unsigned_integers_are_reduced_as_such() {
        let bits = [-1, 1, i64::MIN, -1];
        let x = HostTensor::from_ints(DType::U64, &[4], &bits).unwrap();
        let of = |kind| {
            let op = Reduce {
                kind,
                axes: None,
                keep: false,
                noop_without_axes: false,
            };
            op.eval(&[Some(&x)]).unwrap()[0].to_i128().unwrap()[0]
        };
        let (most, half) = (i128::from(u64::MAX), 1i128 << 63);
        assert_eq!((of(Kind::Min), of(Kind::Max)), (1, most));
        assert_eq!(of(Kind::Mean), (2 * most + half + 1) / 4);
        // Sums wrap around.
        assert_eq!(of(Kind::Sum), (2 * most + half + 1) % (most + 1));
        assert_eq!(of(Kind::L1), of(Kind::Sum));
    }
}
