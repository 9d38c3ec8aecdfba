//! What evaluations on the host share: operands, sizes, strides and lists.

use super::{InferCx, Op, OpError, OpResult};
use crate::num;
use crate::shape::{Constraints, Dim, Fact, MAX_KNOWN, Shape};
use crate::tensor::{self, HostTensor, TensorError};

/// Operands of [`Op::eval`]; `None` for an omitted optional operand.
pub type Inputs<'a> = [Option<&'a HostTensor>];

/// Operand `i` of an evaluation; an error if it is omitted.
pub fn operand<'a>(inputs: &Inputs<'a>, i: usize) -> OpResult<&'a HostTensor> {
    inputs
        .get(i)
        .copied()
        .flatten()
        .ok_or_else(|| OpError::expected(format!("input {i}"), "a value", "none"))
}

/// Runs [`Op::infer`] on the types and shapes of operands and fails if they do not match, so that
/// an evaluation needs no checks of its own.
pub(crate) fn fit(op: &dyn Op, inputs: &Inputs<'_>) -> OpResult<Vec<Fact>> {
    infer(op, inputs, |_, _| false)
}

/// Like [`fit`], with the contents of small operands and of those that decide shapes.
pub(crate) fn fit_with_contents(op: &dyn Op, inputs: &Inputs<'_>) -> OpResult<Vec<Fact>> {
    infer(op, inputs, |i, x| x.len() <= MAX_KNOWN || op.decides(i))
}

/// Infers the results, with the contents of the operands that `is_known` names.
pub(super) fn infer(
    op: &dyn Op,
    inputs: &Inputs<'_>,
    is_known: impl Fn(usize, &HostTensor) -> bool,
) -> OpResult<Vec<Fact>> {
    let fact = |(i, x): (usize, &Option<&HostTensor>)| {
        let x = (*x)?;
        Some(match is_known(i, x) {
            true => Fact::of(x.clone().into()),
            false => Fact::new(x.dtype(), Shape::fixed(x.shape())),
        })
    };
    let facts: Vec<Option<Fact>> = inputs.iter().enumerate().map(fact).collect();
    let facts: Vec<Option<&Fact>> = facts.iter().map(Option::as_ref).collect();
    op.infer(&InferCx::new(&facts, &Constraints::default()))
}

/// Tensors with these facts, if all sizes are known and no tensor has an element.
pub(crate) fn nothing<'a>(facts: impl IntoIterator<Item = &'a Fact>) -> Option<Vec<HostTensor>> {
    let empty = |fact: &Fact| {
        let shape = fact.shape.as_fixed().filter(|s| s.contains(&0))?;
        HostTensor::zeros(fact.dtype, &shape).ok()
    };
    facts.into_iter().map(empty).collect()
}

/// Converts an ONNX axis, which may be negative, to an index below `rank`.
pub fn axis(axis: i64, rank: usize) -> OpResult<usize> {
    let r = num::signed(rank);
    let a = if axis < 0 { axis + r } else { axis };
    usize::try_from(a)
        .ok()
        .filter(|a| *a < rank)
        .ok_or_else(|| OpError::expected("axis", format!("-{rank} to {}", rank.saturating_sub(1)), axis))
}

/// Indices of different axes, or of all axes without a list. Where one is named twice, operators of
/// ONNX are undefined.
pub fn axes(list: Option<&[i64]>, rank: usize) -> OpResult<Vec<usize>> {
    let Some(list) = list else {
        return Ok((0..rank).collect());
    };
    let mut axes = Vec::new();
    for a in list {
        let at = axis(*a, rank)?;
        if axes.contains(&at) {
            return Err(OpError::expected("axes", "each axis once", a));
        }
        axes.push(at);
    }
    Ok(axes)
}

/// Number of elements of a shape; an error if it overflows.
pub fn count(shape: &[usize]) -> OpResult<usize> {
    if shape.contains(&0) {
        return Ok(0);
    }
    let count = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    Ok(count.ok_or_else(|| TensorError::TooLarge(shape.to_vec()))?)
}

/// An empty list with room for the elements of a shape; an error if there is not enough memory.
pub(crate) fn room<T>(shape: &[usize]) -> OpResult<Vec<T>> {
    Ok(tensor::room(count(shape)?)?)
}

/// A list with one `value` per element of a shape; see [`room`].
pub(crate) fn filled<T: Clone>(shape: &[usize], value: T) -> OpResult<Vec<T>> {
    let mut out = room(shape)?;
    out.resize(count(shape)?, value);
    Ok(out)
}

/// Offsets of the elements of a shape, as two lists whose pairwise sums are all offsets: along the
/// axes that are not in `axes`, and along those that are.
pub(crate) fn offset_lists(shape: &[usize], axes: &[usize]) -> OpResult<[Vec<usize>; 2]> {
    let mut lists = [vec![0usize], vec![0usize]];
    for (i, (n, step)) in shape.iter().zip(strides(shape)).enumerate() {
        let list = &mut lists[usize::from(axes.contains(&i))];
        let mut longer = room(&[list.len(), *n])?;
        longer.extend(list.iter().flat_map(|base| (0..*n).map(move |j| base + j * step)));
        *list = longer;
    }
    Ok(lists)
}

/// The size as a number, if it is constant.
pub fn as_usize(d: &Dim) -> Option<usize> {
    d.as_const().and_then(|v| usize::try_from(v).ok())
}

/// The value of a constant size.
pub(crate) fn fixed_size(d: &Dim) -> OpResult<usize> {
    as_usize(d).ok_or_else(|| match d.as_const() {
        Some(_) => OpError::expected("size", "0 or more", d),
        None => OpError::Unsupported(format!("size {d}: it must be known before the run")),
    })
}

/// The elements of an integer tensor as sizes; an error if one is negative.
pub fn to_sizes(list: &HostTensor) -> OpResult<Vec<usize>> {
    let size = |d| usize::try_from(d).map_err(|_| OpError::expected("size", "0 or more", d));
    list.to_i64()?.into_iter().map(size).collect()
}

/// The only element of an integer tensor; `what` names the operand in the error.
pub fn one_int(tensor: &HostTensor, what: &str) -> OpResult<i64> {
    match tensor.to_i64()?.as_slice() {
        [one] => Ok(*one),
        _ => Err(OpError::expected(what, "one integer", format!("{tensor:?}"))),
    }
}

/// Splits `shape` at `axis`: the product of the sizes before, the size at, and the product of the
/// sizes after it.
pub fn around(shape: &[usize], axis: usize) -> OpResult<(usize, usize, usize)> {
    match shape.split_at_checked(axis) {
        Some((before, [at, after @ ..])) => Ok((count(before)?, *at, count(after)?)),
        _ => Err(OpError::expected("axis", "within the shape", axis)),
    }
}

/// Row-major strides of a shape, in elements.
pub fn strides(shape: &[usize]) -> Vec<usize> {
    let mut out = vec![1usize; shape.len()];
    for i in (1..shape.len()).rev() {
        // Without elements, strides may overflow, but are not used.
        out[i - 1] = out[i].saturating_mul(shape[i]);
    }
    out
}

/// Gathers `x` element by element: result element at multi-index `m` of `shape` is
/// `x[start + sum(m * stride)]`.
pub fn gather_strided(x: &HostTensor, shape: &[usize], start: usize, step: &[i64]) -> OpResult<HostTensor> {
    let size = x.dtype().size();
    let count = count(shape)?;
    if count == 0 {
        return Ok(HostTensor::zeros(x.dtype(), shape)?);
    }
    let mut out: Vec<u8> = room(&[count, size])?;
    let bytes = x.bytes()?;
    // Merge neighbouring axes that can be walked as one.
    let mut axes: Vec<(usize, i64)> = Vec::new();
    for (n, step) in shape.iter().zip(step).filter(|(n, _)| **n != 1) {
        match axes.last_mut() {
            Some(outer) if outer.1 == step.saturating_mul(num::signed(*n)) => *outer = (outer.0 * n, *step),
            _ => axes.push((*n, *step)),
        }
    }
    let (inner, inner_step) = axes.pop().unwrap_or((1, 1));
    let mut index = vec![0usize; axes.len()];
    let mut at = num::signed(start);
    for _ in 0..count / inner {
        let last = at.saturating_add(inner_step.saturating_mul(num::signed(inner - 1)));
        let (low, high) = (at.min(last), at.max(last));
        let range = usize::try_from(low)
            .ok()
            .zip(usize::try_from(high).ok())
            .and_then(|(low, high)| {
                bytes.get(low.checked_mul(size)?..high.checked_add(1)?.checked_mul(size)?)
            });
        let row = range.ok_or_else(|| OpError::expected("element", format!("below {}", x.len()), last))?;
        match inner_step {
            1 => out.extend_from_slice(row),
            0 => (0..inner).for_each(|_| out.extend_from_slice(row)),
            s => {
                let apart = num::exact::<usize, _>(s.unsigned_abs(), "a stride")? * size;
                let from = |i: usize| &row[i..i + size];
                if s > 0 {
                    (0..inner).for_each(|i| out.extend_from_slice(from(i * apart)));
                } else {
                    (0..inner)
                        .rev()
                        .for_each(|i| out.extend_from_slice(from(i * apart)));
                }
            }
        }
        for (i, (n, step)) in index.iter_mut().zip(&axes).rev() {
            *i += 1;
            at += step;
            if *i < *n {
                break;
            }
            at -= step * num::signed(*n);
            *i = 0;
        }
    }
    Ok(HostTensor::from_bytes(x.dtype(), shape, &out)?)
}
