//! Window functions of signal processing: sums of cosines over one period. ONNX `HannWindow`,
//! `HammingWindow`, `BlackmanWindow` from opset 17.

use crate::graph::onnx::dtype_of;
use crate::graph::op::case::{Case, input};
use crate::graph::op::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, one_int, onnx, operand, room,
};
use crate::shape::{Fact, Shape};
use crate::tensor::{DType, HostTensor};
use std::f64::consts::TAU;

/// Kind of window function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are self-explanatory")]
pub enum Kind {
    Hann,
    Hamming,
    Blackman,
}

/// A window with as many elements as operand 0 states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowFunction {
    /// Kind of window function.
    pub kind: Kind,
    /// Omit the first element of the next period; otherwise the last element mirrors the first.
    pub periodic: bool,
    /// Element type of the result; must be a float.
    pub dtype: DType,
}

impl Kind {
    /// Coefficients of the cosines of 0, 1 and 2 times the angle.
    fn factors(self) -> [f64; 3] {
        match self {
            Self::Hann => [0.5, -0.5, 0.0],
            Self::Hamming => [25.0 / 46.0, -21.0 / 46.0, 0.0],
            Self::Blackman => [0.42, -0.5, 0.08],
        }
    }
}

impl Op for WindowFunction {
    fn name(&self) -> &str {
        match self.kind {
            Kind::Hann => "HannWindow",
            Kind::Hamming => "HammingWindow",
            Kind::Blackman => "BlackmanWindow",
        }
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let sizes = cx.sizes(0)?;
        if sizes.len() != 1 {
            return Err(OpError::expected("size", "one integer", cx.fact(0)?));
        }
        Ok(vec![Fact::new(self.dtype, Shape(sizes))])
    }

    #[expect(clippy::cast_precision_loss, reason = "a number of elements")]
    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let size = one_int(operand(inputs, 0)?, "size")?;
        let n = usize::try_from(size).map_err(|_| OpError::expected("size", "0 or more", size))?;
        // A window of one element is 1.
        let period = if self.periodic { n } else { n.saturating_sub(1) };
        let mut y = room(&[n])?;
        y.extend((0..n).map(|i| {
            let angle = if period == 0 {
                TAU / 2.0
            } else {
                TAU * i as f64 / period as f64
            };
            let terms = self.kind.factors().into_iter().zip([0.0, 1.0, 2.0]);
            terms.map(|(f, times)| f * (times * angle).cos()).sum::<f64>()
        }));
        Ok(vec![HostTensor::from_f64s(self.dtype, &[n], &y)?])
    }
}

/// The float type that an attribute names, `f32` by default.
pub(crate) fn float_type(a: &dyn Attributes, name: &str) -> OpResult<DType> {
    let dtype = dtype_of(a.int(name)?.unwrap_or(1))?;
    if dtype.is_float() {
        return Ok(dtype);
    }
    Err(OpError::Unsupported(format!(
        "{} with element type {dtype}",
        a.op_type()
    )))
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    Ok(Box::new(WindowFunction {
        kind: match a.op_type() {
            "HannWindow" => Kind::Hann,
            "HammingWindow" => Kind::Hamming,
            _ => Kind::Blackman,
        },
        periodic: a.int("periodic")?.unwrap_or(1) != 0,
        dtype: float_type(a, "output_datatype")?,
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[
        onnx("HannWindow", 17, 1),
        onnx("HammingWindow", 17, 1),
        onnx("BlackmanWindow", 17, 1),
    ],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let case = |kind, periodic, n: i64| {
        let op = WindowFunction {
            kind,
            periodic,
            dtype: DType::F32,
        };
        Case::new(op, vec![input(&[]).values(&[n])]).host_only("no kernel")
    };
    vec![
        case(Kind::Hann, true, 10),
        case(Kind::Hamming, false, 1),
        case(Kind::Blackman, false, 7),
    ]
}
