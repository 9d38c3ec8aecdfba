//! Normalisation of groups of elements by their mean and variance, with a scale and a bias.
//!
//! ONNX `InstanceNormalization` from opset 6 (each channel of each image; scale and bias `[c]`), `LayerNormalization` from 17 (all
//! axes from `axis` on; scale and bias broadcast to them; results 1 and 2 are the mean and the inverse deviation),
//! `GroupNormalization` from 18 (each group of channels of each image; scale and bias `[groups]` until 20, `[c]` from 21 on).
//! Computation is in `f32` whatever `stash_type` says.

use super::case::{Case, input};
use super::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, axis, onnx, operand, pointwise};
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::{DType, HostTensor};

/// Which elements are normalised together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// Those of a channel of an image.
    Instance,
    /// Those of all axes from this one on; negative counts from the end.
    Layer {
        /// The axis.
        axis: i64,
    },
    /// Those of a group of channels of an image.
    Group {
        /// Number of groups.
        groups: i64,
        /// Scale and bias are those of a group, not of a channel.
        by_group: bool,
    },
}

/// Operands: the tensor, scale, bias (which layer normalisation may leave out).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// What is normalised together.
    pub over: Over,
    /// Added to the variance.
    pub epsilon: f32,
    /// Number of results: 1, or up to 3 with mean and inverse deviation.
    pub results: usize,
}

impl Op for Norm {
    fn name(&self) -> &str {
        match self.over {
            Over::Instance => "InstanceNormalization",
            Over::Layer { .. } => "LayerNormalization",
            Over::Group { .. } => "GroupNormalization",
        }
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.float(0)?;
        let mut facts = vec![Fact::new(x.dtype, x.shape.clone())];
        let given = (1..3).filter_map(|i| cx.opt(i));
        if let Over::Layer { axis: a } = self.over {
            let a = axis(a, x.shape.rank())?;
            for f in given {
                if f.shape.rank() > x.shape.rank() {
                    return Err(OpError::mismatch("ranks (the second at most the first)", x.shape.rank(), f.shape.rank()));
                }
                for (size, have) in x.shape.0.iter().rev().zip(f.shape.0.iter().rev()).filter(|(_, have)| !have.is(1)) {
                    cx.same("sizes of input and scale or bias", size, have)?;
                }
            }
            let kept = x.shape.0.iter().enumerate().map(|(i, d)| if i < a { d.clone() } else { Dim::from(1) });
            let statistics = Fact::new(DType::F32, Shape(kept.collect()));
            facts.extend(std::iter::repeat_n(statistics, self.results.saturating_sub(1)));
            return Ok(facts);
        }
        let c = x.shape.0.get(1).ok_or_else(|| OpError::expected("rank", "2 or more", x.shape.rank()))?;
        let want = match self.over {
            Over::Group { groups, by_group } => {
                if c.exact_div(&groups.into()).is_none() {
                    return Err(OpError::expected("channels", format!("a multiple of {groups} groups"), c));
                }
                if by_group { Dim::from(groups) } else { c.clone() }
            }
            _ => c.clone(),
        };
        for i in 1..3 {
            let f = cx.fact(i)?;
            let [size] = f.shape.0.as_slice() else {
                return Err(OpError::expected(format!("rank of input {i}"), 1, f.shape.rank()));
            };
            cx.same("sizes of input and scale or bias", &want, size)?;
        }
        Ok(facts)
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let shape = x.shape();
        let channels = shape.get(1).copied().unwrap_or(1);
        // Elements that are normalised together, and for how many neighbours one scale holds.
        let (count, run) = match self.over {
            Over::Instance | Over::Group { .. } if shape.len() < 2 => return Err(OpError::expected("rank", "2 or more", shape.len())),
            Over::Instance => {
                let plane = shape.iter().skip(2).product::<usize>();
                (plane, plane)
            }
            Over::Group { groups, by_group } => {
                let groups = usize::try_from(groups).unwrap_or(1).max(1);
                if !channels.is_multiple_of(groups) {
                    return Err(OpError::expected("channels", format!("a multiple of {groups} groups"), channels));
                }
                let plane = shape.iter().skip(2).product::<usize>();
                let count = channels / groups * plane;
                (count, if by_group { count } else { plane })
            }
            Over::Layer { axis: a } => (shape.iter().skip(axis(a, shape.len())?).product::<usize>(), 1),
        };
        let mut y = x.to_f32()?.into_owned();
        let (mut means, mut inverses) = (Vec::new(), Vec::new());
        for part in y.chunks_exact_mut(count.max(1)) {
            let (mean, inverse) = statistics(part, self.epsilon);
            for v in part.iter_mut() {
                #[expect(clippy::cast_possible_truncation, reason = "rounding to the result type is meant")]
                let normal = ((f64::from(*v) - mean) * inverse) as f32;
                *v = normal;
            }
            #[expect(clippy::cast_possible_truncation, reason = "rounding to the result type is meant")]
            {
                means.push(mean as f32);
                inverses.push(inverse as f32);
            }
        }
        for (i, f) in [(1, (|a, b| a * b) as fn(f32, f32) -> f32), (2, |a, b| a + b)] {
            let Some(list) = inputs.get(i).copied().flatten() else { continue };
            let list = if matches!(self.over, Over::Layer { .. }) { pointwise::broadcast_to(list, shape)? } else { list.clone() };
            let list = list.to_f32()?;
            if list.is_empty() {
                continue;
            }
            for (part, v) in y.chunks_exact_mut(run.max(1)).zip(list.iter().cycle()) {
                part.iter_mut().for_each(|y| *y = f(*y, *v));
            }
        }
        let mut out = vec![HostTensor::from_floats(x.dtype(), shape, &y)?];
        if let Over::Layer { axis: a } = self.over {
            let a = axis(a, shape.len())?;
            let kept: Vec<usize> = shape.iter().enumerate().map(|(i, n)| if i < a { *n } else { 1 }).collect();
            for list in [&means, &inverses].into_iter().take(self.results.saturating_sub(1)) {
                out.push(HostTensor::from_f32(&kept, list)?);
            }
        }
        Ok(out)
    }
}

/// Mean and inverse deviation.
pub(super) fn statistics(x: &[f32], epsilon: f32) -> (f64, f64) {
    #[expect(clippy::cast_precision_loss, reason = "a number of elements")]
    let n = x.len().max(1) as f64;
    let mean = x.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
    let variance = x.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / n;
    (mean, 1.0 / (variance + f64::from(epsilon)).sqrt())
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let over = match a.op_type() {
        "InstanceNormalization" => Over::Instance,
        "LayerNormalization" => {
            a.int("stash_type")?;
            Over::Layer { axis: a.int("axis")?.unwrap_or(-1) }
        }
        _ => {
            a.int("stash_type")?;
            let groups = a.int("num_groups")?.unwrap_or(0);
            if !(1..=i64::from(i32::MAX)).contains(&groups) {
                return Err(OpError::expected("attribute `num_groups`", "1 or more", groups));
            }
            Over::Group { groups, by_group: a.opset() < 21 }
        }
    };
    Ok(Box::new(Norm { over, epsilon: a.float("epsilon")?.unwrap_or(1e-5), results: a.output_count() }))
}

/// The registry's entry.
pub static DEF: OpDef = OpDef {
    onnx: &[onnx("InstanceNormalization", 6), onnx("LayerNormalization", 17), onnx("GroupNormalization", 18)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let case = |over, shapes: &[&[usize]]| {
        let op = Norm { over, epsilon: 1e-3, results: 1 };
        Case::new(op, shapes.iter().map(|s| input(s)).collect()).host_only("no kernel yet")
    };
    let group = |by_group| Over::Group { groups: 3, by_group };
    vec![
        case(Over::Instance, &[&[2, 3, 5, 7], &[3], &[3]]),
        case(Over::Layer { axis: -1 }, &[&[2, 5, 7], &[7], &[7]]),
        case(Over::Layer { axis: 1 }, &[&[2, 5, 7], &[5, 7]]),
        case(group(true), &[&[2, 6, 5], &[3], &[3]]),
        case(group(false), &[&[2, 6, 5, 3], &[6], &[6]]),
    ]
}
