//! Normalization over given axes without parameters.
//!
//! ONNX `MeanVarianceNormalization` from opset 9 (subtract the mean, divide by the standard
//! deviation plus 1e-9; axes 0, 2, 3 by default) and `LpNormalization` from 1 (divide by the norm,
//! along the last axis by default; the result is 0 if the norm is 0).

use crate::graph::ValueId;
use crate::graph::op::case::{Case, input};
use crate::graph::op::norm::{self, RowNorm, ScaleIndex};
use crate::graph::op::parts::Parts;
use crate::graph::op::pointwise::import::{binary, input as arg, number, select, unary};
use crate::graph::op::pointwise::{Binary, Unary};
use crate::graph::op::reduce::{Kind, Reduce};
use crate::graph::op::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, axis, offset_lists, onnx, operand,
};
use crate::lower::LowerCx;
use crate::shape::{Fact, product};
use crate::tensor::HostTensor;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AxesNorm {
    /// Mean 0 and variance 1.
    MeanVariance {
        /// The axes to normalize together; negative values count from the end.
        axes: Vec<i64>,
    },
    /// Norm 1.
    Lp {
        axis: i64,
        /// 1: the sum of magnitudes; 2: the Euclidean norm.
        p: i64,
    },
}

impl AxesNorm {
    fn axes(&self, rank: usize) -> OpResult<Vec<usize>> {
        match self {
            Self::MeanVariance { axes } => crate::graph::op::axes(Some(axes), rank),
            Self::Lp { axis: a, .. } => Ok(vec![axis(*a, rank)?]),
        }
    }

    /// The first of the axes if they are the last axes, so that elements form rows, and a kernel
    /// supports them.
    fn rows(&self, rank: usize) -> OpResult<Option<usize>> {
        let mut axes = self.axes(rank)?;
        axes.sort_unstable();
        let from = rank - axes.len();
        let last = axes.iter().enumerate().all(|(i, a)| *a == from + i);
        Ok((last && matches!(self, Self::MeanVariance { .. })).then_some(from))
    }

    fn apply(&self, part: &mut [f32]) {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_precision_loss,
            reason = "rounding to the result type is intended"
        )]
        match self {
            Self::MeanVariance { .. } => {
                let n = part.len().max(1) as f64;
                let mean = part.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
                let variance = part.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / n;
                let deviation = variance.sqrt() + 1e-9;
                part.iter_mut()
                    .for_each(|v| *v = ((f64::from(*v) - mean) / deviation) as f32);
            }
            Self::Lp { p, .. } => {
                let norm = match p {
                    1 => part.iter().map(|v| f64::from(v.abs())).sum::<f64>(),
                    _ => part.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt(),
                };
                part.iter_mut().for_each(|v| {
                    *v = if norm == 0.0 {
                        0.0
                    } else {
                        (f64::from(*v) / norm) as f32
                    }
                });
            }
        }
    }
}

impl Op for AxesNorm {
    fn name(&self) -> &str {
        match self {
            Self::MeanVariance { .. } => "MeanVarianceNormalization",
            Self::Lp { .. } => "LpNormalization",
        }
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.float(0)?;
        self.axes(x.shape.rank())?;
        Ok(vec![Fact::new(x.dtype, x.shape.clone())])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let axes = self.axes(x.shape().len())?;
        let [outer, inner] = offset_lists(x.shape(), &axes)?;
        let mut y = x.to_f32()?.into_owned();
        for base in outer {
            let mut part: Vec<f32> = inner.iter().filter_map(|i| y.get(base + i).copied()).collect();
            self.apply(&mut part);
            for (i, v) in inner.iter().zip(part) {
                if let Some(y) = y.get_mut(base + i) {
                    *y = v;
                }
            }
        }
        Ok(vec![HostTensor::from_floats(x.dtype(), x.shape(), &y)?])
    }

    fn parts(&self, cx: &mut Parts<'_, '_>) -> OpResult<Option<Vec<ValueId>>> {
        let x = cx.input(0)?;
        let rank = cx.fact(x)?.shape.rank();
        if self.rows(rank)?.is_some() {
            return Ok(None);
        }
        let axes = match self {
            Self::MeanVariance { axes } => axes.clone(),
            Self::Lp { axis, .. } => vec![*axis],
        };
        let over = |kind| Reduce {
            kind,
            axes: Some(axes.clone()),
            keep: true,
            noop_without_axes: true,
        };
        if let Self::Lp { p, .. } = self {
            let kind = if *p == 1 { Kind::L1 } else { Kind::L2 };
            let norm = cx.node("norm", over(kind), &[Some(x)])?;
            let none = binary(Binary::Equal, arg(1), number(0.0));
            let divisor = select(none.clone(), number(1.0), arg(1));
            let y = select(none, number(0.0), binary(Binary::Div, arg(0), divisor));
            return Ok(Some(vec![cx.pointwise("normal", y, &[x, norm])?]));
        }
        let mean = cx.node("mean", over(Kind::Mean), &[Some(x)])?;
        let centred = cx.pointwise("centred", binary(Binary::Sub, arg(0), arg(1)), &[x, mean])?;
        let squares = cx.pointwise("squares", binary(Binary::Mul, arg(0), arg(0)), &[centred])?;
        let variance = cx.node("variance", over(Kind::Mean), &[Some(squares)])?;
        let deviation = binary(Binary::Add, unary(Unary::Sqrt, arg(1)), number(1e-9));
        let y = binary(Binary::Div, arg(0), deviation);
        Ok(Some(vec![cx.pointwise("normal", y, &[centred, variance])?]))
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let x = cx.shape(0)?;
        let axes = self.axes(x.rank())?;
        let Some(from) = self.rows(x.rank())? else {
            return Err(OpError::NoKernel(format!(
                "{} over axes {axes:?} of {x}",
                self.name()
            )));
        };
        let (before, part) = x.0.split_at(from);
        let (rows, cols) = (product(before)?, product(part)?);
        // The square of the addend of the deviation: just as negligible.
        let epsilon = 1e-18;
        norm::emit(
            cx,
            &RowNorm {
                rows,
                cols,
                place: ScaleIndex::Column,
                center: true,
                given: false,
                epsilon,
            },
        )
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    if a.op_type() == "MeanVarianceNormalization" {
        return Ok(Box::new(AxesNorm::MeanVariance {
            axes: a.ints("axes")?.unwrap_or_else(|| vec![0, 2, 3]),
        }));
    }
    match a.int("p")?.unwrap_or(2) {
        p @ 1..=2 => Ok(Box::new(AxesNorm::Lp {
            axis: a.int("axis")?.unwrap_or(-1),
            p,
        })),
        p => Err(OpError::expected("attribute `p`", "1 or 2", p)),
    }
}

pub static DEF: OpDef = OpDef {
    onnx: &[
        onnx("MeanVarianceNormalization", 9, 1),
        onnx("LpNormalization", 1, 1),
    ],
    import,
    kernels: &[&crate::kernels::norm::KERNEL.kernel],
    cases,
};

fn cases() -> Vec<Case> {
    let case = |op, x: &[usize]| Case::new(op, vec![input(x)]);
    vec![
        case(AxesNorm::MeanVariance { axes: vec![0, 2, 3] }, &[2, 3, 5, 4]),
        case(AxesNorm::MeanVariance { axes: vec![-1] }, &[3, 7]),
        case(AxesNorm::MeanVariance { axes: vec![2, 1] }, &[3, 7, 5]),
        case(AxesNorm::Lp { axis: 1, p: 2 }, &[2, 5, 3]),
        case(AxesNorm::Lp { axis: -1, p: 1 }, &[4, 9]),
    ]
}
