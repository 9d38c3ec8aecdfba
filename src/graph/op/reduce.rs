//! Reductions: `ReduceMean`, `ReduceSum`, `ReduceMax`, `ReduceMin`.
//!
//! ONNX opsets 13 (axes as attribute, `ReduceSum` as operand) and 18 (axes as operand). Kernels reduce trailing axes of
//! floats; other axes are for the host.

use super::case::{Case, input};
use super::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, axis, onnx, operand, strides};
use crate::backend::kernel::Kernel;
use crate::plan::lower::{Call, LowerCx};
use crate::shape::{Dim, Fact, Shape, product};
use crate::tensor::HostTensor;

static KERNEL: Kernel = crate::kernel!(reduce { rows: U32, cols: U32, factor: F32 } [x: In Elem, y: Out Elem]);

/// What is computed over the reduced elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Kind {
    Mean,
    Sum,
    Max,
    Min,
}

/// See the module documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reduce {
    /// What is computed.
    pub kind: Kind,
    /// Axes from the attribute; `None` reads operand 1.
    pub axes: Option<Vec<i64>>,
    /// Reduced axes stay with size 1.
    pub keep: bool,
    /// Without axes nothing is reduced, instead of everything.
    pub noop_without_axes: bool,
}

impl Reduce {
    fn axes(&self, rank: usize, operand: Option<Vec<i64>>) -> OpResult<Vec<usize>> {
        let list = self.axes.clone().or(operand).unwrap_or_default();
        if list.is_empty() {
            return Ok(if self.noop_without_axes { Vec::new() } else { (0..rank).collect() });
        }
        let mut axes: Vec<usize> = list.iter().map(|a| axis(*a, rank)).collect::<OpResult<_>>()?;
        axes.sort_unstable();
        axes.dedup();
        Ok(axes)
    }

    fn shape(&self, x: &[Dim], axes: &[usize]) -> Vec<Dim> {
        let kept = |i: usize| !axes.contains(&i);
        if self.keep {
            (0..x.len()).map(|i| if kept(i) { x[i].clone() } else { 1.into() }).collect()
        } else {
            (0..x.len()).filter(|i| kept(*i)).map(|i| x[i].clone()).collect()
        }
    }
}

impl Op for Reduce {
    fn name(&self) -> &str {
        match self.kind {
            Kind::Mean => "ReduceMean",
            Kind::Sum => "ReduceSum",
            Kind::Max => "ReduceMax",
            Kind::Min => "ReduceMin",
        }
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.fact(0)?;
        let list = if cx.opt(1).is_some() { Some(cx.ints(1)?) } else { None };
        let axes = self.axes(x.shape.rank(), list)?;
        Ok(vec![Fact::new(x.dtype, Shape(self.shape(&x.shape.0, &axes)))])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let list = match inputs.get(1).copied().flatten() {
            Some(t) => Some(t.to_i64()?),
            None => None,
        };
        let axes = self.axes(x.shape().len(), list)?;
        let (mut outer, mut inner) = (vec![0usize], vec![0usize]);
        for (i, (n, step)) in x.shape().iter().zip(strides(x.shape())).enumerate() {
            let target = if axes.contains(&i) { &mut inner } else { &mut outer };
            *target = target.iter().flat_map(|base| (0..*n).map(move |j| base + j * step)).collect();
        }
        let shape = self.shape(&Shape::fixed(x.shape()).0, &axes);
        let shape = Shape(shape).as_fixed().unwrap_or_default();
        if !x.dtype().is_float() {
            let data = x.to_i64()?;
            let count = i64::try_from(inner.len()).unwrap_or(1).max(1);
            let of = |base: &usize| {
                let all = inner.iter().map(|i| data[base + i]);
                match self.kind {
                    Kind::Sum => all.sum(),
                    Kind::Mean => all.sum::<i64>() / count,
                    Kind::Max => all.max().unwrap_or(i64::MIN),
                    Kind::Min => all.min().unwrap_or(i64::MAX),
                }
            };
            let y: Vec<i64> = outer.iter().map(of).collect();
            return Ok(vec![HostTensor::from_ints(x.dtype(), &shape, &y)?]);
        }
        let data = x.to_f32()?;
        let of = |base: &usize| -> f32 {
            let all = inner.iter().map(|i| data[base + i]);
            #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "rounding to the result type is meant")]
            match self.kind {
                Kind::Sum => all.map(f64::from).sum::<f64>() as f32,
                Kind::Mean => (all.map(f64::from).sum::<f64>() / inner.len() as f64) as f32,
                Kind::Max => all.fold(f32::NEG_INFINITY, f32::max),
                Kind::Min => all.fold(f32::INFINITY, f32::min),
            }
        };
        let y: Vec<f32> = outer.iter().map(of).collect();
        Ok(vec![HostTensor::from_floats(x.dtype(), &shape, &y)?])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let x = cx.fact(0)?.clone();
        let list = if cx.has(1) { Some(cx.dims(1)?.iter().filter_map(Dim::as_const).collect()) } else { None };
        let axes = self.axes(x.shape.rank(), list)?;
        if axes.is_empty() {
            return cx.alias(0, 0);
        }
        let first = x.shape.rank() - axes.len();
        if axes.iter().enumerate().any(|(i, a)| *a != first + i) || !x.dtype.is_float() {
            return Err(OpError::NoKernel(format!("{} over axes {axes:?} of {x}; kernels take trailing axes of floats", self.name())));
        }
        let (rows, cols) = (product(&x.shape.0[..first])?, product(&x.shape.0[first..])?);
        #[expect(clippy::cast_precision_loss, reason = "a size far below 2^24 in practice")]
        let factor = match (self.kind, cols.as_const()) {
            (Kind::Mean, Some(n)) => 1.0 / n as f32,
            (Kind::Mean, None) => return Err(OpError::NoKernel(format!("a mean over {cols} elements, not a constant number"))),
            (Kind::Min, _) => -1.0,
            _ => 1.0,
        };
        let mut call = Call::new(&KERNEL, 64)
            .operand(cx.input(0)?)
            .operand(cx.output(0)?)
            .grid(rows.ceil_div(2)?, 1, 1)
            .field(&rows)
            .field(&cols)
            .field(factor);
        if matches!(self.kind, Kind::Max | Kind::Min) {
            call = call.define("MAXIMUM", 1);
        }
        cx.emit(call)
    }

    fn reads(&self, input: usize) -> bool {
        input == 0
    }

    fn keeps_precision(&self) -> bool {
        true
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let kind = match a.op_type() {
        "ReduceMean" => Kind::Mean,
        "ReduceSum" => Kind::Sum,
        "ReduceMax" => Kind::Max,
        _ => Kind::Min,
    };
    Ok(Box::new(Reduce {
        kind,
        axes: a.ints("axes")?,
        keep: a.int("keepdims")?.unwrap_or(1) != 0,
        noop_without_axes: a.int("noop_with_empty_axes")?.unwrap_or(0) != 0,
    }))
}

/// The registry's entry.
pub static DEF: OpDef = OpDef {
    onnx: &[onnx("ReduceMean", 13), onnx("ReduceSum", 13), onnx("ReduceMax", 13), onnx("ReduceMin", 13)],
    import,
    kernels: &[&KERNEL],
    cases,
};

fn cases() -> Vec<Case> {
    let op = |kind, axes: &[i64], keep| Reduce { kind, axes: Some(axes.to_vec()), keep, noop_without_axes: false };
    vec![
        Case::new(op(Kind::Mean, &[-1], true), vec![input(&[3, 130])]),
        Case::new(op(Kind::Sum, &[-1], false), vec![input(&[5, 33])]),
        Case::new(op(Kind::Max, &[1, 2], true), vec![input(&[7, 5, 9])]),
        Case::new(op(Kind::Min, &[-1], true), vec![input(&[1, 1025])]),
        Case::new(op(Kind::Mean, &[0], true), vec![input(&[3, 5])]).host_only("reducing a leading axis"),
    ]
}
