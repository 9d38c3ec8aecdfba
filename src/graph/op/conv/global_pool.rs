//! Pooling over all spatial axes: `GlobalAveragePool`, `GlobalMaxPool` (ONNX opset 1 on),
//! `GlobalLpPool` (2 on). Spatial axes are kept with size 1.

use crate::graph::op::case::{Case, input};
use crate::graph::op::pool::{power, root};
use crate::graph::op::reduce::{self, Kind};
use crate::graph::op::sizes::Sizes;
use crate::graph::op::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, onnx, operand};
use crate::lower::LowerCx;
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::HostTensor;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GlobalPool {
    Average,
    Max,
    /// The p-th root of the sum of p-th powers of magnitudes.
    Lp {
        p: i64,
    },
}

impl Op for GlobalPool {
    fn name(&self) -> &str {
        match self {
            Self::Average => "GlobalAveragePool",
            Self::Max => "GlobalMaxPool",
            Self::Lp { .. } => "GlobalLpPool",
        }
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.float(0)?;
        if x.shape.rank() < 2 {
            return Err(OpError::expected("rank", "2 or more", x.shape.rank()));
        }
        for size in x.shape.0.iter().skip(2) {
            cx.require(size.sub(&1.into())?, "a spatial size minus 1")?;
        }
        let shape = x
            .shape
            .0
            .iter()
            .enumerate()
            .map(|(i, d)| if i < 2 { d.clone() } else { Dim::from(1) });
        Ok(vec![Fact::new(x.dtype, Shape(shape.collect()))])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let [n, c, spatial @ ..] = x.shape() else {
            return Err(OpError::expected("rank", "2 or more", x.shape().len()));
        };
        let plane = crate::graph::op::count(spatial)?;
        let shape: Vec<usize> = [*n, *c].into_iter().chain(spatial.iter().map(|_| 1)).collect();
        if plane == 0 {
            return Err(OpError::expected(
                "spatial sizes",
                "1 or more",
                format!("{spatial:?}"),
            ));
        }
        let data = x.to_f32()?;
        let of = |x: &[f32]| -> f32 {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_precision_loss,
                reason = "rounding to the result type is intended"
            )]
            match self {
                Self::Average => (x.iter().map(|v| f64::from(*v)).sum::<f64>() / plane as f64) as f32,
                Self::Max => x
                    .iter()
                    .copied()
                    .fold(f32::NEG_INFINITY, crate::graph::op::max_nan),
                Self::Lp { p } => root(
                    x.iter().map(|v| f64::from(v.abs()).powf(*p as f64)).sum::<f64>() as f32,
                    *p,
                ),
            }
        };
        let y: Vec<f32> = data.chunks_exact(plane).map(of).collect();
        Ok(vec![HostTensor::from_floats(x.dtype(), &shape, &y)?])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let x = cx.fact(0)?.clone();
        let kind = match self {
            Self::Average => Kind::Mean,
            Self::Max => Kind::Max,
            Self::Lp { p: 1 } => Kind::L1,
            Self::Lp { p: 2 } => Kind::L2,
            Self::Lp { p } => return Err(OpError::NoKernel(format!("the {p}-norm over all spatial axes"))),
        };
        reduce::emit(cx, kind, &x, &(2..x.shape.rank()).collect::<Vec<_>>())
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        sizes.input_elements(0)
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    Ok(Box::new(match a.op_type() {
        "GlobalAveragePool" => GlobalPool::Average,
        "GlobalMaxPool" => GlobalPool::Max,
        _ => GlobalPool::Lp { p: power(a)? },
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[
        onnx("GlobalAveragePool", 1, 1),
        onnx("GlobalMaxPool", 1, 1),
        onnx("GlobalLpPool", 2, 1),
    ],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let case = |op, x: &[usize]| Case::new(op, vec![input(x)]);
    vec![
        case(GlobalPool::Average, &[2, 3, 7, 5]),
        case(GlobalPool::Average, &[1, 4, 9]),
        case(GlobalPool::Max, &[2, 3, 4, 3, 2]),
        case(GlobalPool::Lp { p: 1 }, &[1, 5, 3, 3]),
        case(GlobalPool::Lp { p: 2 }, &[1, 3, 1, 1]),
        case(GlobalPool::Lp { p: 3 }, &[1, 2, 3, 3]).host_only("a norm of another power"),
    ]
}
