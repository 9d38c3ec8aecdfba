//! Random numbers on the host. ONNX `RandomNormal`, `RandomUniform`, their `Like` forms from opset
//! 1, `Multinomial` from 7, `Bernoulli` from 15.
//!
//! Element i is a function of i and the node's seed: its attribute `seed`, or else a value derived
//! from [`ImportOptions::seed`](crate::graph::onnx::ImportOptions::seed) and the node's position
//! in the model. All backends and all runs draw the same numbers.

use crate::graph::onnx::dtype_of;
use crate::graph::op::case::{Case, input};
use crate::graph::op::types::Types;
use crate::graph::op::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, count, fit, onnx, room, to_sizes,
};
use crate::num;
use crate::quota;
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::{DType, HostTensor};
use std::f64::consts::TAU;

/// What is drawn.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// A normal distribution.
    Normal { mean: f32, deviation: f32 },
    /// Numbers from `low` to below `high`.
    Uniform { low: f32, high: f32 },
    /// 1 with the probability that the operand holds, else 0.
    Bernoulli,
    /// `samples` class indices for each row of the logits `[batch, classes]`.
    Multinomial { samples: usize },
}

#[derive(Clone, Debug, PartialEq)]
pub struct Random {
    pub kind: Kind,
    pub seed: u64,
    /// Type of the result; `None` for that of the operand.
    pub dtype: Option<DType>,
    /// The shape; `None` for that of the operand.
    pub shape: Option<Vec<usize>>,
}

/// Number `i`, uniform in [0, 1), with no more bits than the type holds; more could round up to 1.
fn uniform(seed: u64, i: usize, dtype: DType) -> f64 {
    let bits = match dtype {
        DType::F64 => 53,
        DType::F16 => 11,
        DType::BF16 => 8,
        _ => 24,
    };
    num::random_uniform(seed, i as u64, bits)
}

/// Number `i` of the standard normal distribution (Box and Muller).
fn normal(seed: u64, i: usize) -> f64 {
    let radius = (-2.0 * (1.0 - uniform(seed, 2 * i, DType::F64)).ln()).sqrt();
    radius * (TAU * uniform(seed, 2 * i + 1, DType::F64)).cos()
}

/// Cumulative sums of the unnormalized class probabilities.
fn sums(logits: &[f64]) -> Vec<f64> {
    let top = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights = logits.iter().map(|x| (x - top).exp());
    let add = |sum: &mut f64, w: f64| {
        *sum += w;
        Some(*sum)
    };
    weights.scan(0.0, add).collect()
}

/// The class that `at` in [0, 1) selects, given the cumulative sums.
fn class(sums: &[f64], at: f64) -> usize {
    let at = at * sums.last().copied().unwrap_or(0.0);
    sums.partition_point(|sum| *sum <= at)
        .min(sums.len().saturating_sub(1))
}

impl Random {
    fn dtype(&self, operand: Option<DType>) -> DType {
        self.dtype.or(operand).unwrap_or(DType::F32)
    }

    /// The numbers for a result of this shape; `x` is the operand of those that read it.
    fn draw(&self, shape: &[usize], x: Option<&HostTensor>, dtype: DType) -> OpResult<Vec<f64>> {
        let values = match self.kind {
            Kind::Bernoulli | Kind::Multinomial { .. } => x.map(HostTensor::to_f64).transpose()?,
            Kind::Normal { .. } | Kind::Uniform { .. } => None,
        };
        let values = values.as_deref().unwrap_or_default();
        let classes = x.and_then(|x| x.shape().last().copied()).unwrap_or(0);
        let mut row = Vec::new();
        let mut out = room(shape)?;
        for i in 0..count(shape)? {
            if i.is_multiple_of(1 << 12) {
                quota::check()?;
            }
            let next = |dtype| uniform(self.seed, i, dtype);
            out.push(match &self.kind {
                Kind::Normal { mean, deviation } => {
                    f64::from(*mean) + f64::from(*deviation) * normal(self.seed, i)
                }
                Kind::Uniform { low, high } => {
                    f64::from(*low) + (f64::from(*high) - f64::from(*low)) * next(dtype)
                }
                Kind::Bernoulli => f64::from(u8::from(next(DType::F64) < *num::at(values, i)?)),
                Kind::Multinomial { samples } => {
                    if i.is_multiple_of(*samples) {
                        quota::check()?;
                        let from = i / samples * classes;
                        row = sums(num::part(values, from..from + classes)?);
                    }
                    #[expect(clippy::cast_precision_loss, reason = "a number of classes")]
                    let found = class(&row, next(DType::F64)) as f64;
                    found
                }
            });
        }
        Ok(out)
    }
}

impl Op for Random {
    fn name(&self) -> &str {
        match self.kind {
            Kind::Normal { .. } => "RandomNormal",
            Kind::Uniform { .. } => "RandomUniform",
            Kind::Bernoulli => "Bernoulli",
            Kind::Multinomial { .. } => "Multinomial",
        }
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        if let Some(shape) = &self.shape {
            return Ok(vec![Fact::new(self.dtype(None), Shape::fixed(shape))]);
        }
        let x = cx.fact(0)?;
        let dtype = self.dtype(Some(x.dtype));
        let shape = match self.kind {
            Kind::Multinomial { samples } => match cx.typed(0, Types::FLOAT)?.shape.0.as_slice() {
                [batch, _] => Shape(vec![batch.clone(), Dim::from_usize(samples)]),
                _ => return Err(OpError::expected("operand", "[batch, classes]", x)),
            },
            _ => x.shape.clone(),
        };
        Ok(vec![Fact::new(dtype, shape)])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let fact = fit(self, inputs)?.remove(0);
        let (dtype, shape) = (fact.dtype, fact.shape.sizes()?);
        let data = self.draw(&shape, inputs.first().copied().flatten(), dtype)?;
        if dtype.is_float() {
            return Ok(vec![HostTensor::from_f64s(dtype, &shape, &data)?]);
        }
        #[expect(clippy::cast_possible_truncation, reason = "truth values and classes")]
        let data: Vec<i64> = data.into_iter().map(|v| v as i64).collect();
        Ok(vec![HostTensor::from_ints(dtype, &shape, &data)?])
    }

    fn reads(&self, _: usize) -> bool {
        matches!(self.kind, Kind::Bernoulli | Kind::Multinomial { .. })
    }

    fn decides(&self, _: usize) -> bool {
        false
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let float = |name: &str, default: f32| Ok::<_, OpError>(a.float(name)?.unwrap_or(default));
    let name = a.op_type();
    let kind = match name {
        "RandomNormal" | "RandomNormalLike" => Kind::Normal {
            mean: float("mean", 0.0)?,
            deviation: float("scale", 1.0)?,
        },
        "RandomUniform" | "RandomUniformLike" => Kind::Uniform {
            low: float("low", 0.0)?,
            high: float("high", 1.0)?,
        },
        "Bernoulli" => Kind::Bernoulli,
        _ => {
            let samples = a.int("sample_size")?.unwrap_or(1);
            let valid = usize::try_from(samples).ok().filter(|n| *n > 0);
            let samples =
                valid.ok_or_else(|| OpError::expected("attribute `sample_size`", "1 or more", samples))?;
            Kind::Multinomial { samples }
        }
    };
    let default = match name {
        "Multinomial" => Some(DType::I32),
        "RandomNormal" | "RandomUniform" => Some(DType::F32),
        _ => None,
    };
    let shape = match name {
        "RandomNormal" | "RandomUniform" => {
            let given = a.ints("shape")?;
            let given = given.ok_or_else(|| OpError::expected("attribute `shape`", "sizes", "nothing"))?;
            Some(to_sizes(&HostTensor::from_i64(&[given.len()], &given)?)?)
        }
        _ => None,
    };
    let own = a.seed()?;
    Ok(Box::new(Random {
        kind,
        seed: a.float("seed")?.map_or(own, |seed| seed.to_bits().into()),
        dtype: a.int("dtype")?.map(dtype_of).transpose()?.or(default),
        shape,
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[
        onnx("RandomNormal", ANY_OPSET, 0),
        onnx("RandomUniform", ANY_OPSET, 0),
        onnx("RandomNormalLike", ANY_OPSET, 1),
        onnx("RandomUniformLike", ANY_OPSET, 1),
        onnx("Multinomial", 7, 1),
        onnx("Bernoulli", 15, 1),
    ],
    import,
    kernels: &[],
    cases,
};

/// The first opset with these operators.
const ANY_OPSET: i64 = 1;

fn cases() -> Vec<Case> {
    let op = |kind| Random {
        kind,
        seed: 7,
        dtype: None,
        shape: None,
    };
    let normal = Kind::Normal {
        mean: 1.0,
        deviation: 2.0,
    };
    let uniform = Kind::Uniform { low: -1.0, high: 1.0 };
    let samples = Random {
        dtype: Some(DType::I32),
        ..op(Kind::Multinomial { samples: 5 })
    };
    [op(normal), op(uniform), op(Kind::Bernoulli), samples]
        .into_iter()
        .map(|op| Case::new(op, vec![input(&[3, 4])]).host_only("random numbers are drawn on the host"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(kind: Kind, x: &HostTensor, seed: u64) -> Vec<f64> {
        let op = Random {
            kind,
            seed,
            dtype: None,
            shape: None,
        };
        op.eval(&[Some(x)]).unwrap()[0].to_f64().unwrap().into_owned()
    }

    #[test]
    #[expect(clippy::cast_precision_loss, reason = "small counts")]
    fn distributions() {
        let n = 40_000;
        let x = HostTensor::from_f32(&[n], &vec![0.3; n]).unwrap();
        let mean = |v: &[f64]| v.iter().sum::<f64>() / n as f64;
        let normal = drawn(
            Kind::Normal {
                mean: 2.0,
                deviation: 3.0,
            },
            &x,
            1,
        );
        let m = mean(&normal);
        let deviation = mean(&normal.iter().map(|v| (v - m).powi(2)).collect::<Vec<_>>()).sqrt();
        assert!(
            (m - 2.0).abs() < 0.1 && (deviation - 3.0).abs() < 0.1,
            "{m} {deviation}"
        );
        let uniform = drawn(Kind::Uniform { low: 1.0, high: 5.0 }, &x, 2);
        assert!(uniform.iter().all(|v| (1.0..5.0).contains(v)) && (mean(&uniform) - 3.0).abs() < 0.05);
        assert!((mean(&drawn(Kind::Bernoulli, &x, 3)) - 0.3).abs() < 0.02);
        let logits: Vec<f32> = [0.2f32, 0.0, 0.8].iter().map(|p| p.ln()).collect();
        let logits = HostTensor::from_f32(&[1, 3], &logits).unwrap();
        let classes = drawn(Kind::Multinomial { samples: n }, &logits, 4);
        let share = |class: f64| classes.iter().filter(|c| **c == class).count() as f64 / n as f64;
        assert!(
            (share(0.0) - 0.2).abs() < 0.02 && share(1.0) == 0.0,
            "{} {}",
            share(0.0),
            share(1.0)
        );
    }

    #[test]
    fn seeds_decide_the_numbers() {
        let x = HostTensor::from_f32(&[8], &[0.0; 8]).unwrap();
        let uniform = |seed| drawn(Kind::Uniform { low: 0.0, high: 1.0 }, &x, seed);
        assert_eq!(uniform(5), uniform(5));
        assert_ne!(uniform(5), uniform(6));
    }
}
