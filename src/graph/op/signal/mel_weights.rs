//! Mel filter bank: triangles over the bins of a spectrum, evenly spaced on the mel scale. ONNX
//! `MelWeightMatrix` from opset 17.
//!
//! Operands: the number of triangles, the length of the transform, the sample rate, the lowest and
//! the highest frequency. The result is `[length / 2 + 1, triangles]`.

use crate::graph::op::case::{Case, constant, input};
use crate::graph::op::window_function::float_type;
use crate::graph::op::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, filled, one_int, onnx, operand,
};
use crate::shape::{Fact, Shape};
use crate::tensor::{DType, HostTensor};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MelWeights {
    /// Element type of the result; must be a float.
    pub dtype: DType,
}

/// The single element of a float operand.
fn frequency(inputs: &Inputs<'_>, i: usize) -> OpResult<f64> {
    let x = operand(inputs, i)?;
    match x.to_f64()?.as_ref() {
        [one] => Ok(*one),
        _ => Err(OpError::expected(
            format!("input {i}"),
            "one number",
            format!("{x:?}"),
        )),
    }
}

/// The single element of operand `i`, which must be positive.
fn above_zero(inputs: &Inputs<'_>, i: usize) -> OpResult<usize> {
    let v = one_int(operand(inputs, i)?, &format!("input {i}"))?;
    let found = usize::try_from(v).ok().filter(|v| *v > 0);
    found.ok_or_else(|| OpError::expected(format!("input {i}"), "above 0", v))
}

impl Op for MelWeights {
    fn name(&self) -> &str {
        "MelWeightMatrix"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let (triangles, length) = (cx.sizes(0)?, cx.sizes(1)?);
        let ([n], [length]) = (triangles.as_slice(), length.as_slice()) else {
            return Err(OpError::expected("sizes", "one integer each", cx.fact(1)?));
        };
        let bins = length.floor_div(2)?.add(&1.into())?;
        Ok(vec![Fact::new(self.dtype, Shape(vec![bins, n.clone()]))])
    }

    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "bin numbers, whose range is checked"
    )]
    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let (n, length, rate) = (
            above_zero(inputs, 0)?,
            above_zero(inputs, 1)?,
            above_zero(inputs, 2)?,
        );
        let mel = |f: f64| 2595.0 * (1.0 + f / 700.0).log10();
        let (low, high) = (mel(frequency(inputs, 3)?), mel(frequency(inputs, 4)?));
        let bins = length / 2 + 1;
        // Corners of the triangles, in bins. Adjacent triangles overlap by half.
        let step = (high - low) / (n as f64 + 2.0);
        let corner = |i: usize| {
            let hertz = 700.0 * (10f64.powf((low + i as f64 * step) / 2595.0) - 1.0);
            let bin = ((length as f64 + 1.0) * hertz / rate as f64).floor();
            if bin >= 0.0 && bin < bins as f64 {
                Ok(bin as usize)
            } else {
                Err(OpError::expected(
                    "bin of a frequency",
                    format!("0 to {}", bins - 1),
                    bin,
                ))
            }
        };
        let mut y = filled(&[bins, n], 0.0)?;
        let mut put = |bin: usize, i: usize, v: f64| {
            if let Some(slot) = y.get_mut(bin * n + i) {
                *slot = v;
            }
        };
        for i in 0..n {
            let (left, top, right) = (corner(i)?, corner(i + 1)?, corner(i + 2)?);
            for bin in left..top {
                put(bin, i, (bin - left) as f64 / (top - left) as f64);
            }
            put(top, i, 1.0);
            for bin in top..right {
                put(bin, i, (right - bin) as f64 / (right - top) as f64);
            }
        }
        Ok(vec![HostTensor::from_f64s(self.dtype, &[bins, n], &y)?])
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    Ok(Box::new(MelWeights {
        dtype: float_type(a, "output_datatype")?,
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("MelWeightMatrix", 17, 5)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let mut inputs: Vec<_> = [8i64, 16, 8192].map(|v| input(&[]).values(&[v])).into();
    inputs.extend(
        [0.0f32, 4096.0]
            .iter()
            .filter_map(|v| HostTensor::from_f32(&[], &[*v]).ok().map(constant)),
    );
    vec![Case::new(MelWeights { dtype: DType::F32 }, inputs).host_only("no kernel")]
}
