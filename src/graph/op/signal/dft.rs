//! Discrete Fourier transforms. ONNX `DFT` from opset 17 (from 20 the axis is an operand) and
//! `STFT` from 17.
//!
//! The last axis of a signal has one element (the real part) or two (real and imaginary part). A
//! one-sided spectrum has the first half of the frequencies; the others are their conjugates.

use crate::graph::op::case::{Case, input};
use crate::graph::op::types::Types;
use crate::graph::op::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, around, axis, filled, one_int, onnx, operand,
    room,
};
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::HostTensor;
use crate::{num, quota};
use std::f64::consts::TAU;

/// Operands: a signal `[.., 1 or 2]`, the length of the transform, the axis; the last two are
/// optional.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dft {
    /// Inverse transform, from spectrum to signal.
    pub inverse: bool,
    /// The spectrum is one-sided.
    pub onesided: bool,
    /// The axis if operand 2 is not given.
    pub axis: i64,
}

/// Short-time Fourier transform. Operands: `[batch, length, 1 or 2]`, or real signals `[batch,
/// length]` as torch exports them; the hop size; a window function; the frame length; one of the
/// last two may be omitted. The result is `[batch, frames, frequencies, 2]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stft {
    /// The spectra are one-sided.
    pub onesided: bool,
}

type Complex = (f64, f64);

/// The sums `y[k] = sum(x[n] e^(-+ i tau k n / length))` for the first `count` values of `k`.
fn transform(x: &[Complex], length: usize, inverse: bool, count: usize) -> OpResult<Vec<Complex>> {
    #[expect(clippy::cast_precision_loss, reason = "numbers of elements")]
    let turn = |i: usize| {
        let angle = TAU * i as f64 / length as f64;
        (angle.cos(), if inverse { angle.sin() } else { -angle.sin() })
    };
    let turns: Vec<Complex> = (0..length).map(turn).collect();
    let sum = |k: usize| {
        quota::check()?;
        let mut at = 0;
        let sums = x.iter().take(length).fold((0.0, 0.0), |(re, im), (a, b)| {
            let (c, s) = turns.get(at).copied().unwrap_or((1.0, 0.0));
            at = (at + k) % length;
            (re + a * c - b * s, im + a * s + b * c)
        });
        Ok(sums)
    };
    (0..count).map(sum).collect()
}

/// The single element of an integer operand.
fn scalar(cx: &InferCx<'_>, i: usize) -> OpResult<Dim> {
    match cx.sizes(i)?.as_slice() {
        [one] => Ok(one.clone()),
        _ => Err(OpError::expected(
            format!("input {i}"),
            "one integer",
            cx.fact(i)?,
        )),
    }
}

/// A positive integer operand of an evaluation.
fn positive(x: &HostTensor, what: &str) -> OpResult<usize> {
    let v = one_int(x, what)?;
    let found = usize::try_from(v).ok().filter(|v| *v > 0);
    found.ok_or_else(|| OpError::expected(what, "above 0", v))
}

/// Elements of a signal as complex numbers; the last axis holds their parts.
fn pairs(x: &HostTensor) -> OpResult<Vec<Complex>> {
    let data = x.to_f64()?;
    Ok(match x.shape().last() {
        Some(1) => data.iter().map(|v| (*v, 0.0)).collect(),
        Some(2) => data.chunks_exact(2).map(|v| (v[0], v[1])).collect(),
        _ => {
            return Err(OpError::expected(
                "last axis",
                "1 or 2 elements",
                format!("{x:?}"),
            ));
        }
    })
}

fn check_parts(cx: &InferCx<'_>, x: &Fact) -> OpResult<()> {
    if !x.dtype.is_float() {
        return Err(OpError::expected("element type", "a float", x.dtype));
    }
    let last = x.shape.0.last();
    let last = last.ok_or_else(|| OpError::expected("last axis", "1 or 2 elements", x))?;
    cx.require(last.sub(&1.into())?, "size of the last axis minus 1")?;
    cx.require(Dim::from(2).sub(last)?, "2 minus the size of the last axis")
}

impl Dft {
    /// The axis below `rank`, which must not be the last one.
    fn at(&self, given: Option<i64>, rank: usize) -> OpResult<usize> {
        let a = axis(given.unwrap_or(self.axis), rank)?;
        if a + 1 < rank {
            return Ok(a);
        }
        Err(OpError::expected("axis", "an axis before the last one", a))
    }
}

impl Op for Dft {
    fn name(&self) -> &str {
        "DFT"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.fact(0)?;
        check_parts(cx, x)?;
        let rank = x.shape.rank();
        let real = self.inverse && self.onesided;
        let parts = Dim::from(if real { 1 } else { 2 });
        let given = match cx.opt(2) {
            None => None,
            Some(a) => match a.as_dims().as_deref() {
                Some([a]) => a.as_const(),
                Some(more) => return Err(OpError::expected("axis", "one integer", more.len())),
                None => {
                    // Any axis may change to the length of the transform.
                    let mut shape: Vec<Dim> = (1..rank).map(|i| cx.unknown(0, i - 1, None)).collect();
                    shape.push(parts);
                    return Ok(vec![Fact::new(x.dtype, Shape(shape))]);
                }
            },
        };
        let a = self.at(given, rank)?;
        let mut shape = x.shape.0.clone();
        let own = num::at(&shape, a)?.clone();
        let length = match cx.opt(1) {
            Some(_) => scalar(cx, 1)?,
            None if real => own.sub(&1.into())?.mul(&2.into())?,
            None => own,
        };
        cx.require(length.sub(&1.into())?, "length of the transform minus 1")?;
        let frequencies = if self.onesided && !self.inverse {
            length.floor_div(2)?.add(&1.into())?
        } else {
            length
        };
        for (i, size) in [(a, frequencies), (rank - 1, parts)] {
            if let Some(slot) = shape.get_mut(i) {
                *slot = size;
            }
        }
        Ok(vec![Fact::new(x.dtype, Shape(shape))])
    }

    #[expect(clippy::cast_precision_loss, reason = "a number of elements")]
    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let opt = |i: usize| inputs.get(i).copied().flatten();
        let given = opt(2).map(|t| one_int(t, "axis")).transpose()?;
        let rank = x.shape().len();
        let a = self.at(given, rank)?;
        let (signal, real) = (pairs(x)?, self.inverse && self.onesided);
        let signal_shape = num::part(x.shape(), ..rank - 1)?;
        let (outer, own, inner) = around(signal_shape, a)?;
        let length = match opt(1) {
            Some(t) => positive(t, "length")?,
            None if real => own.saturating_sub(1).saturating_mul(2),
            None => own,
        };
        if length == 0 {
            return Err(OpError::expected("length", "above 0", length));
        }
        let count = if self.onesided && !self.inverse {
            length / 2 + 1
        } else {
            length
        };
        let parts = if real { 1 } else { 2 };
        let mut y = filled(&[outer, count, inner, parts], 0.0)?;
        for (o, i) in (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))) {
            let at = |n: usize| {
                signal
                    .get((o * own + n) * inner + i)
                    .copied()
                    .unwrap_or((0.0, 0.0))
            };
            let mut row: Vec<Complex> = room(&[length])?;
            if real {
                let half = length / 2;
                row.extend((0..length).map(|n| match n {
                    n if n >= own && n <= half || n > half && length - n >= own => (0.0, 0.0),
                    n if n <= half => at(n),
                    n => (at(length - n).0, -at(length - n).1),
                }));
            } else {
                row.extend((0..own.min(length)).map(at));
            }
            let scale = if self.inverse { 1.0 / length as f64 } else { 1.0 };
            for (k, (re, im)) in transform(&row, length, self.inverse, count)?
                .into_iter()
                .enumerate()
            {
                let to = ((o * count + k) * inner + i) * parts;
                for (slot, v) in y.iter_mut().skip(to).take(parts).zip([re, im]) {
                    *slot = v * scale;
                }
            }
        }
        let mut shape = x.shape().to_vec();
        for (i, size) in [(a, count), (rank - 1, parts)] {
            if let Some(slot) = shape.get_mut(i) {
                *slot = size;
            }
        }
        Ok(vec![HostTensor::from_f64s(x.dtype(), &shape, &y)?])
    }
}

impl Op for Stft {
    fn name(&self) -> &str {
        "STFT"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.typed(0, Types::FLOAT)?;
        let (batch, length) = match x.shape.0.as_slice() {
            [batch, length] => (batch, length),
            [batch, length, _] => {
                check_parts(cx, x)?;
                (batch, length)
            }
            _ => return Err(OpError::expected("rank", "2 or 3", x)),
        };
        let step = scalar(cx, 1)?;
        let window = cx.opt(2).map(|w| w.shape.count()).transpose()?;
        let part = match (cx.opt(3), window) {
            (Some(_), _) => scalar(cx, 3)?,
            (None, Some(n)) => n,
            (None, None) => length.clone(),
        };
        cx.require(part.sub(&1.into())?, "frame length minus 1")?;
        let room = length.sub(&part)?;
        cx.require(room.clone(), "signal length minus frame length")?;
        cx.require(step.sub(&1.into())?, "hop size minus 1")?;
        let count = match step.as_const() {
            Some(step) => room.floor_div(step)?,
            None => room.div_floor(&step)?,
        };
        let frequencies = if self.onesided {
            part.floor_div(2)?.add(&1.into())?
        } else {
            part
        };
        let shape = vec![batch.clone(), count.add(&1.into())?, frequencies, 2.into()];
        Ok(vec![Fact::new(x.dtype, Shape(shape))])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let opt = |i: usize| inputs.get(i).copied().flatten();
        let (batch, length, signal) = match x.shape() {
            [batch, length] => (batch, length, x.to_f64()?.iter().map(|v| (*v, 0.0)).collect()),
            [batch, length, _] => (batch, length, pairs(x)?),
            _ => return Err(OpError::expected("rank", "2 or 3", format!("{x:?}"))),
        };
        let step = positive(operand(inputs, 1)?, "hop size")?;
        let window = opt(2).map(HostTensor::to_f64).transpose()?;
        let part = match (opt(3), &window) {
            (Some(t), _) => positive(t, "frame length")?,
            (None, Some(w)) => w.len(),
            (None, None) => *length,
        };
        let rest = length.checked_sub(part).filter(|_| part > 0);
        let rest = rest.ok_or_else(|| OpError::expected("frame length", format!("1 to {length}"), part))?;
        let (parts, count) = (rest / step + 1, if self.onesided { part / 2 + 1 } else { part });
        let factor = |i: usize| window.as_ref().map_or(1.0, |w| w.get(i).copied().unwrap_or(0.0));
        let shape = [*batch, parts, count, 2];
        let mut y: Vec<f64> = room(&shape)?;
        for start in (0..*batch).flat_map(|b| (0..parts).map(move |p| b * length + p * step)) {
            let row: Vec<Complex> = signal
                .iter()
                .skip(start)
                .take(part)
                .enumerate()
                .map(|(i, (re, im))| (re * factor(i), im * factor(i)))
                .collect();
            y.extend(
                transform(&row, part, false, count)?
                    .into_iter()
                    .flat_map(|(re, im)| [re, im]),
            );
        }
        Ok(vec![HostTensor::from_f64s(x.dtype(), &shape, &y)?])
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    if a.op_type() == "STFT" {
        let onesided = a.int("onesided")?.unwrap_or(1) != 0;
        return Ok(Box::new(Stft { onesided }));
    }
    Ok(Box::new(Dft {
        inverse: a.int("inverse")?.unwrap_or(0) != 0,
        onesided: a.int("onesided")?.unwrap_or(0) != 0,
        axis: if a.opset() < 20 {
            a.int("axis")?.unwrap_or(1)
        } else {
            -2
        },
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("DFT", 17, 3), onnx("STFT", 17, 4)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let dft = |inverse, onesided, axis, x: &[usize]| {
        Case::new(
            Dft {
                inverse,
                onesided,
                axis,
            },
            vec![input(x)],
        )
        .host_only("no kernel")
    };
    let number = |v: i64| input(&[]).values(&[v]).constant();
    vec![
        dft(false, false, 1, &[2, 7, 1]),
        dft(false, true, -2, &[2, 3, 6, 1]),
        dft(true, false, 1, &[1, 5, 2, 2]),
        dft(true, true, 1, &[1, 4, 2]),
        Case::new(
            Stft { onesided: true },
            vec![input(&[2, 33, 1]), number(5), input(&[8])],
        )
        .host_only("no kernel"),
        Case::new(
            Stft { onesided: true },
            vec![input(&[2, 33]), number(5), input(&[8])],
        )
        .host_only("no kernel"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A transform and its inverse give the signal back, whole and one-sided, of even and odd
    /// length.
    #[test]
    fn there_and_back() {
        for (n, onesided) in [(8, false), (7, false), (8, true), (7, true)] {
            let x: Vec<f32> = (0u8..n).map(|i| f32::from(i * i % 5) - 1.5).collect();
            let x = HostTensor::from_f32(&[1, n.into(), 1], &x).unwrap();
            let length = HostTensor::from_i64(&[], &[n.into()]).unwrap();
            let op = |inverse| Dft {
                inverse,
                onesided,
                axis: 1,
            };
            let spectrum = op(false).eval(&[Some(&x)]).unwrap().remove(0);
            let back = op(true)
                .eval(&[Some(&spectrum), Some(&length)])
                .unwrap()
                .remove(0);
            let parts = if onesided { 1 } else { 2 };
            assert_eq!(back.shape(), [1, usize::from(n), parts]);
            let (x, back) = (x.to_f32().unwrap(), back.to_f32().unwrap());
            for (a, b) in x.iter().zip(back.iter().step_by(parts)) {
                assert!((a - b).abs() < 1e-6, "{a} became {b}");
            }
        }
    }
}
