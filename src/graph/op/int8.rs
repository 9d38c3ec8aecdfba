//! Shared parts of operators of the integer domain.
//!
//! Values of the integer domain are `i8` tensors whose last axis is padded to a multiple of 4, so
//! that a word holds four neighbouring elements. The contents of the padding are unspecified. For
//! convolutions that axis holds the channels (NHWC). Only the pass `integer` creates these
//! operators. Zero points of operands and results are attributes; packed weights, biases and
//! factors are constant operands.

use super::window::{self, Axis, Line};
use super::{InferCx, Inputs, OpError, OpResult, operand};
use crate::lower::{Call, LowerCx, Operand, Pack};
use crate::quant::fixed::{Arithmetic, Factor};
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::{DType, HostTensor};

/// Elements in a word.
pub const WORD: usize = 4;

/// The elements of an `i8` tensor.
pub fn bytes(t: &HostTensor) -> OpResult<&[i8]> {
    if t.dtype() != DType::I8 {
        return Err(OpError::expected("element type", "i8", t.dtype()));
    }
    Ok(bytemuck::cast_slice(t.bytes()?))
}

/// Operand `i` and its elements.
pub(super) fn byte_operand<'a>(inputs: &Inputs<'a>, i: usize) -> OpResult<(&'a HostTensor, &'a [i8])> {
    let x = operand(inputs, i)?;
    Ok((x, bytes(x)?))
}

/// An `i8` tensor of these elements.
pub fn tensor(shape: &[usize], data: &[i8]) -> OpResult<HostTensor> {
    Ok(HostTensor::from_bytes(
        DType::I8,
        shape,
        bytemuck::cast_slice(data),
    )?)
}

/// The fact of operand `i`, which must be an `i8` tensor with whole words in its last axis.
pub(super) fn fact<'a>(cx: &'a InferCx<'_>, i: usize) -> OpResult<&'a Fact> {
    let fact = cx.fact(i)?;
    let whole = fact
        .shape
        .0
        .last()
        .is_some_and(|d| d.exact_div(&Dim::from_usize(WORD)).is_some());
    if fact.dtype != DType::I8 || !whole {
        return Err(OpError::expected(
            format!("input {i}"),
            "i8 with whole words in the last axis",
            fact,
        ));
    }
    Ok(fact)
}

/// Number of words of an `i8` tensor.
pub(super) fn words(shape: &Shape) -> OpResult<Dim> {
    let count = shape.count()?;
    count
        .exact_div(&Dim::from_usize(WORD))
        .ok_or_else(|| OpError::expected("elements", "whole words", count))
}

/// `n` rounded up to whole words.
pub fn padded(n: &Dim) -> OpResult<Dim> {
    Ok(n.ceil_div(4)?.mul(&4.into())?)
}

/// Operand `i` as words. Constants are uploaded as bytes.
pub(super) fn word_operand(cx: &mut LowerCx<'_>, i: usize) -> OpResult<Operand> {
    if cx.fact(i)?.as_const().is_some() {
        return cx.weight(i, Pack::Bytes);
    }
    let operand = cx.input(i)?;
    if operand.dtype == DType::I8 {
        return Ok(operand);
    }
    Err(OpError::NoKernel(format!(
        "input {i} is stored as {}; kernels need bytes",
        operand.dtype
    )))
}

/// Requantization factors as a constant for kernels: `f32[n]`, or `i32[2, n]` with the mantissas,
/// then the shifts.
pub fn factors(list: &[Factor]) -> OpResult<HostTensor> {
    let floats: Vec<f32> = list
        .iter()
        .filter_map(|f| match f {
            Factor::Float(v) => Some(*v),
            Factor::Fixed(_) => None,
        })
        .collect();
    if floats.len() == list.len() {
        return Ok(HostTensor::from_f32(&[list.len()], &floats)?);
    }
    let fixed = |part: fn(crate::quant::fixed::Multiplier) -> i32| {
        list.iter().map(move |f| match f {
            Factor::Fixed(m) => Ok(i64::from(part(*m))),
            Factor::Float(_) => Err(OpError::expected("factors", "one arithmetic", "two")),
        })
    };
    let all: Vec<i64> = fixed(|m| m.mantissa())
        .chain(fixed(|m| m.shift()))
        .collect::<OpResult<_>>()?;
    Ok(HostTensor::from_ints(DType::I32, &[2, list.len()], &all)?)
}

/// The factors in a constant made by [`factors`].
pub(super) fn read_factors(t: &HostTensor) -> OpResult<Vec<Factor>> {
    if t.dtype() == DType::F32 {
        return Ok(t.to_f32()?.iter().map(|v| Factor::Float(*v)).collect());
    }
    let all = t.to_i64()?;
    let (mantissas, shifts) = all.split_at(all.len() / 2);
    let pairs = mantissas.iter().zip(shifts);
    let of = |(m, s): (&i64, &i64)| {
        let (m, s) = (i32::try_from(*m).ok()?, i32::try_from(*s).ok()?);
        crate::quant::fixed::Multiplier::of_parts(m, s).map(Factor::Fixed)
    };
    pairs
        .map(of)
        .collect::<Option<_>>()
        .ok_or_else(|| OpError::expected("factors", "mantissas and shifts", format!("{t:?}")))
}

/// The arithmetic of a constant made by [`factors`].
pub(super) fn arithmetic(factors: &Fact) -> Arithmetic {
    if factors.dtype.is_float() {
        Arithmetic::Float
    } else {
        Arithmetic::Fixed
    }
}

/// Checks that operand `i` holds the factors of `n` channels.
pub(super) fn check_factors(cx: &InferCx<'_>, i: usize, n: &Dim) -> OpResult<()> {
    let fact = cx.fact(i)?;
    let last = match (arithmetic(fact), fact.shape.0.as_slice()) {
        (Arithmetic::Float, [last]) => last,
        (Arithmetic::Fixed, [two, last]) if two.is(2) && fact.dtype == DType::I32 => last,
        _ => {
            return Err(OpError::expected(
                format!("input {i}"),
                "f32[channels] or i32[2, channels]",
                fact,
            ));
        }
    };
    cx.same("numbers of factors and channels", last, n)?;
    Ok(())
}

/// Splits off the last axis.
pub fn last<T>(shape: &[T]) -> OpResult<(&[T], &T)> {
    let (last, lead) = shape
        .split_last()
        .ok_or_else(|| OpError::expected("rank", "1 or more", 0))?;
    Ok((lead, last))
}

/// The size of the only axis.
pub(super) fn only(shape: &[Dim]) -> OpResult<&Dim> {
    match shape {
        [only] => Ok(only),
        _ => Err(OpError::expected("rank", 1, shape.len())),
    }
}

/// Rows and columns of a 1 x 1 window over all elements of these axes, as one row.
pub(super) fn flat(lead: &[Dim]) -> OpResult<[Line; 2]> {
    let count = crate::shape::product(lead)?;
    let line = Line {
        size: count.clone(),
        out: count,
        ..Line::one()
    };
    Ok([Line::one(), line])
}

/// The elements of an image `[spatial.., channels]` that a window reads.
pub(super) struct Footprint<'a> {
    axes: &'a [Axis],
    taps: Vec<Vec<usize>>,
    channels: usize,
    pad: i8,
}

impl<'a> Footprint<'a> {
    /// `pad` is the value of padding elements.
    pub fn new(axes: &'a [Axis], channels: usize, pad: i8) -> Self {
        let taps = window::taps(axes).collect();
        Self {
            axes,
            taps,
            channels,
            pad,
        }
    }

    /// Number of elements, `taps * channels`.
    pub fn len(&self) -> usize {
        self.taps.len() * self.channels
    }

    /// Position of the first channel of each tap of the window at `at`; `None` for padding.
    pub fn positions<'s>(&'s self, at: &'s [usize]) -> impl Iterator<Item = Option<usize>> + 's {
        self.taps.iter().map(move |tap| {
            let mut position = 0;
            for ((axis, at), tap) in self.axes.iter().zip(at).zip(tap) {
                position = position * axis.size + axis.element(*at, *tap)?;
            }
            Some(position * self.channels)
        })
    }

    /// Gathers the elements that the window at `at` of image `x` reads into `patch`.
    pub fn gather(&self, x: &[i8], at: &[usize], patch: &mut Vec<i8>) {
        patch.clear();
        for position in self.positions(at) {
            match position.and_then(|p| x.get(p..p + self.channels)) {
                Some(row) => patch.extend_from_slice(row),
                None => patch.resize(patch.len() + self.channels, self.pad),
            }
        }
    }
}

/// The dot product of two lists; wraps.
pub(super) fn dot(a: &[i8], b: &[i8]) -> i32 {
    let products = a.iter().zip(b).map(|(a, b)| i32::from(*a) * i32::from(*b));
    products.fold(0, i32::wrapping_add)
}

/// Defines `FIXED` if these factors are in fixed point.
pub(super) fn define_arithmetic<A>(call: Call<A>, factors: &Fact) -> Call<A> {
    match arithmetic(factors) {
        Arithmetic::Fixed => call.define(crate::kernels::FIXED, 1),
        Arithmetic::Float => call,
    }
}

/// An operand of a conformance case: all 8-bit integers, in an order with a long period.
pub(super) fn case_of(dtype: DType, shape: &[usize]) -> super::case::Input {
    let count: usize = shape.iter().product();
    #[expect(clippy::cast_possible_truncation, reason = "the low byte")]
    let data: Vec<u8> = (0..count).map(|i| (i * 167 + i / 256 * 31 + 5) as u8).collect();
    HostTensor::from_bytes(dtype, shape, &data).map_or_else(|_| super::case::input(shape), super::case::given)
}

/// An `i8` operand of a conformance case.
pub(super) fn case_input(shape: &[usize]) -> super::case::Input {
    case_of(DType::I8, shape)
}
