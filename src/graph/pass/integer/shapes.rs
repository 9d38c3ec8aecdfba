//! Shapes that integer kernels support.

use super::{Refusal, refuse};
use crate::graph::op;
use crate::graph::op::int8_binary;
use crate::graph::op::softmax::Softmax;
use crate::graph::op::window::Window;
use crate::shape::Dim;

/// The size of axis `axis`, which must be constant.
pub(crate) fn channels(shape: &[Dim], axis: usize) -> Result<i64, Refusal> {
    let size = shape
        .get(axis)
        .ok_or_else(|| refuse("an operand with too few axes"))?;
    size.as_const()
        .ok_or_else(|| refuse("a channel or feature axis whose size is not constant"))
}

/// The axes that a tensor of this shape can store last. The usual one comes first: the channels
/// of images, or the features of rows.
pub(crate) fn axes_to_store(shape: &[Dim]) -> impl Iterator<Item = usize> {
    let rank = shape.len();
    let usual = if rank >= 4 { 1 } else { rank.saturating_sub(1) };
    let all = std::iter::once(usual).chain((0..rank).rev().filter(move |a| *a != usual));
    all.filter(|a| channels(shape, *a).is_ok())
}

/// The axis that is stored last by default.
pub(crate) fn usual_axis(shape: &[Dim]) -> Result<usize, Refusal> {
    let axis = axes_to_store(shape).next();
    axis.ok_or_else(|| refuse("a tensor without an axis of constant size"))
}

/// The sizes of the spatial axes, which must be constant.
pub(crate) fn spatial(shape: &[Dim]) -> Result<Vec<i64>, Refusal> {
    let sizes = shape.iter().skip(2).map(Dim::as_const).collect::<Option<_>>();
    sizes.ok_or_else(|| refuse("spatial sizes that are not constant"))
}

/// The sizes of the spatial axes, if a reduction is over exactly these.
pub(crate) fn reduced(shape: &[Dim], axes: Option<&[i64]>) -> Result<Vec<i64>, Refusal> {
    let mut axes = op::axes(axes, shape.len()).map_err(|e| refuse(&e.to_string()))?;
    axes.sort_unstable();
    if shape.len() < 3 || !axes.into_iter().eq(2..shape.len()) {
        return Err(refuse("a reduction that is not over exactly the spatial axes"));
    }
    spatial(shape)
}

/// The number of products in each sum of a matmul of two activations; `b` is `[.., n, k]` if
/// `transposed`.
pub(crate) fn summed(a: &[Dim], b: &[Dim], transposed: bool) -> Result<i64, Refusal> {
    let ([la @ .., _, _], [lb @ .., before, last]) = (a, b) else {
        return Err(refuse("an operand with fewer than two axes"));
    };
    let k = channels(a, a.len() - 1)?;
    channels(std::slice::from_ref(if transposed { before } else { last }), 0)?;
    let ones = |list: &[Dim]| list.iter().all(|d| d.is(1));
    if la != lb && !ones(la) && !ones(lb) {
        return Err(refuse("batch dimensions that differ"));
    }
    if k > i64::from(i32::MAX) / (255 * 255) {
        return Err(refuse("sums that may exceed 32 bits"));
    }
    Ok(k)
}

/// A shape, padded to this rank with leading axes of size 1.
pub(crate) fn with_rank(shape: &[Dim], rank: usize) -> Vec<Dim> {
    let missing = rank.saturating_sub(shape.len());
    let ones = std::iter::repeat_n(Dim::from(1), missing);
    ones.chain(shape.iter().cloned()).collect()
}

/// The axes that a function of two operands can store last in its operands and its result, which
/// have the same rank. Each operand is a shape and whether it is constant.
pub(crate) fn binary_axes(operands: [(&[Dim], bool); 2], to: &[Dim]) -> Vec<usize> {
    let has_kernel = |(shape, constant): (&[Dim], bool), axis: usize| {
        let (mut own, mut out) = (shape.to_vec(), to.to_vec());
        let (size, wanted) = (own.remove(axis), out.remove(axis));
        // The pass repeats a constant along this axis.
        (size == wanted || size.is(1) && constant) && int8_binary::can_repeat(&own, &out)
    };
    let fits = |axis: &usize| {
        operands
            .iter()
            .all(|q| q.0.len() == to.len() && has_kernel(*q, *axis))
    };
    axes_to_store(to).filter(fits).collect()
}

/// The number of elements of a window, for a mean.
pub(crate) fn taps(sizes: &[i64]) -> Result<u32, Refusal> {
    let taps = sizes.iter().try_fold(1i64, |n, k| n.checked_mul(*k));
    let taps = taps.and_then(|n| u32::try_from(n).ok()).filter(|n| *n <= 1 << 16);
    taps.ok_or_else(|| refuse("a window of more than 65536 elements"))
}

/// The axis of a softmax over operands of this shape, and its size.
pub(crate) fn softmax_axis(softmax: &Softmax, shape: &[Dim]) -> Result<(usize, i64), Refusal> {
    let axis = op::axis(softmax.axis, shape.len()).map_err(|e| refuse(&e.to_string()))?;
    if softmax.flatten && axis + 1 != shape.len() {
        return Err(refuse("a softmax over several axes"));
    }
    let size = channels(shape, axis)?;
    if size > i64::from(u16::MAX) {
        return Err(refuse("a softmax over more than 65535 elements"));
    }
    Ok((axis, size))
}

/// Refuses windows whose padding or dilation exceeds any realistic image, so that positions cannot
/// overflow.
pub(crate) fn check_window(window: &Window) -> Result<(), Refusal> {
    let near = |list: &[i64]| list.iter().all(|n| n.abs() <= 1 << 12);
    if near(&window.pads) && near(&window.dilations) {
        return Ok(());
    }
    Err(refuse("padding or dilation above 4096"))
}
