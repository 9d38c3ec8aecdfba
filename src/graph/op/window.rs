//! Sliding windows over spatial axes: sizes and traversal shared by convolution and pooling.

use super::{Attributes, InferCx, OpError, OpResult, count, fixed_size};
use crate::kernels::windows;
use crate::lower::Call;
use crate::num;
use crate::shape::Dim;
use std::ops::Range;

/// Source of the padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AutoPad {
    Explicit,
    Valid,
    /// Padding for `ceil(size / stride)` windows; an odd element goes to the end.
    SameUpper,
    /// Padding for `ceil(size / stride)` windows; an odd element goes to the start.
    SameLower,
}

/// Attributes of a sliding window. An empty list means the default on every axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Sizes; empty if the weights define them.
    pub kernel: Vec<i64>,
    /// Distances between windows; 1 by default.
    pub strides: Vec<i64>,
    /// Distances between taps; 1 by default.
    pub dilations: Vec<i64>,
    /// Padding before all axes, then after all axes; 0 by default.
    pub pads: Vec<i64>,
    /// Source of the padding.
    pub auto_pad: AutoPad,
    /// Count a last partial window if it starts before the padding at the end.
    pub ceil: bool,
}

/// A window along one axis with constant sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Size of the operand.
    pub size: usize,
    pub out: usize,
    pub kernel: usize,
    /// Distance between windows.
    pub stride: usize,
    /// Distance between taps.
    pub dilation: usize,
    /// Padding before the first element.
    pub before: usize,
    /// Padding after the last element.
    pub after: usize,
}

/// A window along one axis for a kernel; sizes may be symbolic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Elements of the operand.
    pub size: Dim,
    pub out: Dim,
    pub kernel: i64,
    /// Distance between windows.
    pub stride: i64,
    /// Distance between taps.
    pub dilation: i64,
    /// Padding before the first element.
    pub before: Dim,
    /// Padding after the last element.
    pub after: Dim,
}

impl Line {
    /// An axis of one element and one window.
    pub fn one() -> Self {
        Self {
            size: 1.into(),
            out: 1.into(),
            kernel: 1,
            stride: 1,
            dilation: 1,
            before: 0.into(),
            after: 0.into(),
        }
    }

    /// True if the windows are the single elements in order.
    pub fn is_identity(&self) -> bool {
        self.kernel == 1 && self.stride == 1 && self.before.is(0) && self.size == self.out
    }
}

/// Sets the constants shared by window kernels: sizes, strides and dilations of rows and columns.
pub(super) fn define<A>(call: Call<A>, [h, w]: &[Line; 2]) -> Call<A> {
    let values = |line: &Line| [line.kernel, line.stride, line.dilation];
    let rows = windows::ROWS.into_iter().zip(values(h));
    let columns = windows::COLUMNS.into_iter().zip(values(w));
    rows.chain(columns)
        .fold(call, |call, (name, value)| call.define(name, value))
}

/// A list attribute with values in `low..=i32::MAX`; empty if omitted.
pub(super) fn list(a: &dyn Attributes, name: &str, low: i64) -> OpResult<Vec<i64>> {
    let list = a.ints(name)?.unwrap_or_default();
    match list.iter().find(|v| **v < low || **v > i64::from(i32::MAX)) {
        Some(v) => Err(OpError::expected(
            format!("attribute `{name}`"),
            format!("numbers of {low} or more"),
            v,
        )),
        None => Ok(list),
    }
}

impl Window {
    /// Number of elements of the kernel.
    pub fn taps(&self) -> i64 {
        self.kernel.iter().copied().fold(1, i64::saturating_mul)
    }

    /// A window of these sizes with stride 1 and no padding.
    pub fn new(kernel: &[i64]) -> Self {
        Self {
            kernel: kernel.to_vec(),
            strides: Vec::new(),
            dilations: Vec::new(),
            pads: Vec::new(),
            auto_pad: AutoPad::Explicit,
            ceil: false,
        }
    }

    /// Reads `kernel_shape`, `strides`, `dilations`, `pads`, `auto_pad` and `ceil_mode`.
    pub fn import(a: &dyn Attributes) -> OpResult<Self> {
        let auto_pad = match a.string("auto_pad")?.as_deref() {
            None | Some("NOTSET" | "") => AutoPad::Explicit,
            Some("VALID") => AutoPad::Valid,
            Some("SAME_UPPER") => AutoPad::SameUpper,
            Some("SAME_LOWER") => AutoPad::SameLower,
            Some(other) => {
                return Err(OpError::expected(
                    "attribute `auto_pad`",
                    "NOTSET, VALID, SAME_UPPER or SAME_LOWER",
                    other,
                ));
            }
        };
        Ok(Self {
            kernel: list(a, "kernel_shape", 1)?,
            strides: list(a, "strides", 1)?,
            dilations: list(a, "dilations", 1)?,
            pads: list(a, "pads", 0)?,
            auto_pad,
            ceil: a.int("ceil_mode")?.unwrap_or(0) != 0,
        })
    }

    /// Checks the number of axes: `rank` must be at least 1, each list must be empty or have one
    /// entry per axis (two for pads), and `kernel` must have one entry per axis.
    pub fn check(&self, kernel: &[i64], rank: usize) -> OpResult<()> {
        if rank == 0 {
            return Err(OpError::expected("spatial axes", "1 or more", 0));
        }
        if kernel.len() != rank {
            return Err(OpError::mismatch(
                "numbers of window sizes and spatial axes",
                kernel.len(),
                rank,
            ));
        }
        for (what, list, want) in [
            ("numbers of strides and spatial axes", &self.strides, rank),
            ("numbers of dilations and spatial axes", &self.dilations, rank),
            ("numbers of pads and ends of spatial axes", &self.pads, 2 * rank),
        ] {
            if !list.is_empty() && list.len() != want {
                return Err(OpError::mismatch(what, list.len(), want));
            }
        }
        if let Some(k) = kernel.iter().find(|k| !(1..=i64::from(i32::MAX)).contains(*k)) {
            return Err(OpError::expected("window size", "1 or more", k));
        }
        Ok(())
    }

    /// Stride along axis `i`.
    pub fn stride(&self, i: usize) -> i64 {
        self.strides.get(i).copied().unwrap_or(1)
    }

    /// Dilation along axis `i`.
    pub fn dilation(&self, i: usize) -> i64 {
        self.dilations.get(i).copied().unwrap_or(1)
    }

    /// Distance from the first to the last tap along axis `i`, inclusive, for `kernel` taps.
    pub fn extent(&self, i: usize, kernel: i64) -> i64 {
        (kernel - 1) * self.dilation(i) + 1
    }

    /// The attribute's padding before and after axis `i` of `rank`.
    pub fn explicit(&self, i: usize, rank: usize) -> (i64, i64) {
        if self.auto_pad == AutoPad::Valid {
            return (0, 0);
        }
        let at = |j: usize| self.pads.get(j).copied().unwrap_or(0);
        (at(i), at(i + rank))
    }

    /// Number of windows along axis `i`, and a size that must not be negative for any window to
    /// fit.
    fn count(&self, i: usize, kernel: &[i64], size: &Dim) -> OpResult<(Dim, Dim)> {
        let stride = self.stride(i);
        if matches!(self.auto_pad, AutoPad::SameUpper | AutoPad::SameLower) {
            return Ok((size.ceil_div(stride)?, 0.into()));
        }
        let extent = self.extent(i, kernel.get(i).copied().unwrap_or(1));
        let (before, after) = self.explicit(i, kernel.len());
        let room = size.add(&(before + after - extent).into())?;
        let out = if !self.ceil {
            room.floor_div(stride)?.add(&1.into())?
        } else if after + stride >= extent {
            // A window must fit and start before the padding at the end. The latter is the stronger
            // condition for any size, since the padding is smaller than a window.
            size.add(&before.into())?.ceil_div(stride)?
        } else {
            room.ceil_div(stride)?.add(&1.into())?
        };
        Ok((out, room))
    }

    /// Numbers of windows over axes of these sizes.
    pub fn derive(&self, cx: &InferCx<'_>, kernel: &[i64], sizes: &[Dim]) -> OpResult<Vec<Dim>> {
        self.check(kernel, sizes.len())?;
        let mut out = Vec::with_capacity(sizes.len());
        for (i, size) in sizes.iter().enumerate() {
            let (count, room) = self.count(i, kernel, size)?;
            cx.require(room, "padded size minus window size")?;
            out.push(count);
        }
        Ok(out)
    }

    /// Padding before and after axis `i` of this size, with `out` windows.
    fn padding(&self, i: usize, kernel: &[i64], size: &Dim, out: &Dim) -> OpResult<(Dim, Dim)> {
        if !matches!(self.auto_pad, AutoPad::SameUpper | AutoPad::SameLower) {
            let (before, after) = self.explicit(i, kernel.len());
            return Ok((before.into(), after.into()));
        }
        let extent = self.extent(i, kernel.get(i).copied().unwrap_or(1));
        let last = out.sub(&1.into())?.mul(&self.stride(i).into())?;
        let total = last.add(&extent.into())?.sub(size)?.maximum(&0.into())?;
        let (small, large) = (total.floor_div(2)?, total.ceil_div(2)?);
        Ok(if self.auto_pad == AutoPad::SameUpper {
            (small, large)
        } else {
            (large, small)
        })
    }

    /// The axes as rows and columns, for kernels with two spatial axes. `sizes` are those of the
    /// operand, `out` the numbers of windows.
    pub fn plane(&self, kernel: &[i64], sizes: &[Dim], out: &[Dim]) -> OpResult<[Line; 2]> {
        let mut lines = Vec::new();
        for (i, ((size, out), kernel_size)) in sizes.iter().zip(out).zip(kernel).enumerate() {
            let (before, after) = self.padding(i, kernel, size, out)?;
            lines.push(Line {
                size: size.clone(),
                out: out.clone(),
                kernel: *kernel_size,
                stride: self.stride(i),
                dilation: self.dilation(i),
                before,
                after,
            });
        }
        if lines.len() == 1 {
            lines.insert(0, Line::one());
        }
        lines.try_into().map_err(|_| {
            OpError::NoKernel(format!(
                "windows over {} axes; kernels support 1 or 2",
                sizes.len()
            ))
        })
    }

    /// The axes, for constant sizes.
    pub fn axes(&self, kernel: &[i64], sizes: &[usize]) -> OpResult<Vec<Axis>> {
        self.check(kernel, sizes.len())?;
        let to = |v: i64| num::exact(v, "a size of a window");
        let mut axes = Vec::with_capacity(sizes.len());
        for (i, (size, k)) in sizes.iter().zip(kernel).enumerate() {
            let (out, room) = self.count(i, kernel, &Dim::from_usize(*size))?;
            fixed_size(&room).map_err(|_| {
                OpError::expected(
                    "padded size",
                    format!("at least the window's {}", self.extent(i, *k)),
                    format!("{size} ({} too few)", Dim::from(0).sub(&room).unwrap_or_default()),
                )
            })?;
            let out = fixed_size(&out)?;
            let (mut before, mut after) = self.explicit(i, sizes.len());
            if matches!(self.auto_pad, AutoPad::SameUpper | AutoPad::SameLower) {
                let last = num::signed(out)
                    .saturating_sub(1)
                    .max(0)
                    .saturating_mul(self.stride(i));
                let total = last
                    .saturating_add(self.extent(i, *k))
                    .saturating_sub(num::signed(*size))
                    .max(0);
                let (small, large) = (total / 2, total - total / 2);
                (before, after) = if self.auto_pad == AutoPad::SameUpper {
                    (small, large)
                } else {
                    (large, small)
                };
            }
            axes.push(Axis {
                size: *size,
                out,
                kernel: to(*k)?,
                stride: to(self.stride(i))?,
                dilation: to(self.dilation(i))?,
                before: to(before)?,
                after: to(after)?,
            });
        }
        Ok(axes)
    }
}

impl Axis {
    /// The windows whose tap `tap` is inside the operand.
    fn inside(&self, tap: usize) -> Range<usize> {
        let shift = tap * self.dilation;
        let first = self.before.saturating_sub(shift).div_ceil(self.stride);
        let last = (self.size + self.before)
            .saturating_sub(shift)
            .div_ceil(self.stride)
            .min(self.out);
        first.min(last)..last
    }

    /// The operand's index at tap `tap` of window `at`, which must be inside.
    fn index(&self, at: usize, tap: usize) -> usize {
        (at * self.stride + tap * self.dilation).saturating_sub(self.before)
    }

    /// The operand's index at tap `tap` of window `at`; `None` in the padding.
    pub fn element(&self, at: usize, tap: usize) -> Option<usize> {
        let index = (at * self.stride + tap * self.dilation).checked_sub(self.before)?;
        (index < self.size).then_some(index)
    }

    /// The taps that are inside the operand for some window, ascending.
    fn meeting(&self) -> Vec<usize> {
        let mut out = Vec::new();
        // Later windows reach the operand with earlier taps.
        for at in (0..self.out).rev() {
            let start = at * self.stride;
            let first = self.before.saturating_sub(start).div_ceil(self.dilation);
            let end = (self.before + self.size)
                .saturating_sub(start)
                .div_ceil(self.dilation);
            let known = out.last().map_or(0, |t| t + 1);
            out.extend(first.max(known)..end.min(self.kernel));
        }
        out
    }

    /// Number of taps of window `at` inside the operand; with `padding`, padding counts as inside.
    pub fn taps(&self, at: usize, padding: bool) -> usize {
        let (low, high) = if padding {
            (0, self.before + self.size + self.after)
        } else {
            (self.before, self.before + self.size)
        };
        let start = at * self.stride;
        let below = |limit: usize| {
            limit
                .saturating_sub(start)
                .div_ceil(self.dilation)
                .min(self.kernel)
        };
        below(high).saturating_sub(below(low))
    }
}

/// The products of two sizes over all axes.
pub fn products(axes: &[Axis], sizes: [fn(&Axis) -> usize; 2]) -> OpResult<[usize; 2]> {
    let product = |size: fn(&Axis) -> usize| count(&axes.iter().map(size).collect::<Vec<_>>());
    Ok([product(sizes[0])?, product(sizes[1])?])
}

/// Every combination of indices below `sizes`; the last one varies fastest.
pub fn indices(sizes: &[usize]) -> impl Iterator<Item = Vec<usize>> + use<> {
    let sizes = sizes.to_vec();
    let mut next = if sizes.contains(&0) {
        None
    } else {
        Some(vec![0; sizes.len()])
    };
    std::iter::from_fn(move || {
        let now = next.take()?;
        let mut after = now.clone();
        for (i, n) in sizes.iter().enumerate().rev() {
            if let Some(v) = after.get_mut(i) {
                *v += 1;
                if v != n {
                    next = Some(after);
                    break;
                }
                *v = 0;
            }
        }
        Some(now)
    })
}

/// The index list of every tap of a window.
pub fn taps(axes: &[Axis]) -> impl Iterator<Item = Vec<usize>> + use<> {
    indices(&axes.iter().map(|a| a.kernel).collect::<Vec<_>>())
}

/// Like [`taps`], without taps that are outside the operand for every window.
pub fn meeting(axes: &[Axis]) -> impl Iterator<Item = Vec<usize>> + use<> {
    let lists: Vec<Vec<usize>> = axes.iter().map(Axis::meeting).collect();
    let counts: Vec<usize> = lists.iter().map(Vec::len).collect();
    let tap = move |at: Vec<usize>| {
        lists
            .iter()
            .zip(at)
            .filter_map(|(l, i)| l.get(i).copied())
            .collect()
    };
    indices(&counts).map(tap)
}

/// Visits the runs of windows whose tap `tap` is inside the operand, among the windows `part` in
/// row-major order. Calls `each(window, element, count)`: `count` windows from `window` on read the
/// elements `element`, `element + stride`, ... with the stride of the last axis.
pub fn walk(axes: &[Axis], tap: &[usize], part: Range<usize>, mut each: impl FnMut(usize, usize, usize)) {
    let Some((last, outer)) = axes.split_last() else {
        return;
    };
    let Some((tap_last, tap_outer)) = tap.split_last() else {
        return;
    };
    let inside = last.inside(*tap_last);
    if inside.is_empty() || last.out == 0 || part.is_empty() {
        return;
    }
    let ranges: Vec<Range<usize>> = outer.iter().zip(tap_outer).map(|(a, t)| a.inside(*t)).collect();
    for row in part.start / last.out..part.end.div_ceil(last.out) {
        let (mut rest, mut element, mut step, mut hit) = (row, 0, last.size, true);
        for ((a, t), r) in outer.iter().zip(tap_outer).zip(&ranges).rev() {
            let at = rest % a.out;
            rest /= a.out;
            hit &= r.contains(&at);
            element += a.index(at, *t) * step;
            step *= a.size;
        }
        if !hit {
            continue;
        }
        let first = row * last.out;
        let from = (first + inside.start).max(part.start);
        let to = (first + inside.end).min(part.end);
        if from < to {
            each(from, element + last.index(from - first, *tap_last), to - from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The formulas count what enumeration counts, in floor and ceil mode.
        #[test]
        fn windows_are_counted(size in 1i64..40, kernel in 1i64..6, stride in 1i64..5, dilation in 1i64..4,
                               before in 0i64..6, after in 0i64..6, ceil: bool) {
            let w = Window { strides: vec![stride], dilations: vec![dilation], pads: vec![before, after], ceil, ..Window::new(&[kernel]) };
            let extent = w.extent(0, kernel);
            // Pooling asks for less padding than a window.
            prop_assume!(size + before + after >= extent && before.max(after) < extent);
            let mut want = 0;
            while want * stride + extent <= size + before + after { want += 1; }
            // One more window that is not whole, if the last one left something over.
            if ceil && (want - 1) * stride + extent < size + before + after { want += 1; }
            if ceil && (want - 1) * stride >= size + before { want -= 1; }
            let sizes = [usize::try_from(size).unwrap()];
            let axes = w.axes(&[kernel], &sizes).unwrap();
            prop_assert_eq!(axes[0].out, usize::try_from(want).unwrap());
            // The same from a symbol.
            let (out, _) = w.count(0, &[kernel], &Dim::symbol("h")).unwrap();
            let b = crate::shape::Bindings::from([("h", size)]);
            prop_assert_eq!(out.eval(&b).unwrap(), want);
            // Walks meet each tap inside the operand once.
            for tap in taps(&axes) {
                let mut met = Vec::new();
                walk(&axes, &tap, 0..axes[0].out, |o, i, n| met.extend((0..n).map(|j| (o + j, i + j * axes[0].stride))));
                let t = i64::try_from(tap[0]).unwrap();
                let direct: Vec<(usize, usize)> = (0..want).filter_map(|o| {
                    let i = o * stride + t * dilation - before;
                    (0..size).contains(&i).then(|| (usize::try_from(o).unwrap(), usize::try_from(i).unwrap()))
                }).collect();
                prop_assert_eq!(met, direct);
            }
        }
    }

    proptest! {
        #[test]
        fn taps_that_meet_the_operand(size in 0usize..6, kernel in 1usize..9, stride in 1usize..5, dilation in 1usize..4,
                                      before in 0usize..9, out in 0usize..6) {
            let axis = Axis { size, out, kernel, stride, dilation, before, after: 0 };
            let all: Vec<usize> = (0..kernel).filter(|t| !axis.inside(*t).is_empty()).collect();
            prop_assert_eq!(axis.meeting(), all);
        }
    }

    #[test]
    fn same_padding_keeps_the_ratio() {
        let w = |auto_pad| Window {
            auto_pad,
            strides: vec![2],
            ..Window::new(&[3])
        };
        let upper = w(AutoPad::SameUpper).axes(&[3], &[6]).unwrap();
        assert_eq!((upper[0].out, upper[0].before, upper[0].after), (3, 0, 1));
        let lower = w(AutoPad::SameLower).axes(&[3], &[6]).unwrap();
        assert_eq!((lower[0].out, lower[0].before, lower[0].after), (3, 1, 0));
        assert!(
            Window::new(&[3]).axes(&[3], &[2]).is_err(),
            "a window larger than its operand"
        );
        assert!(Window::new(&[3]).axes(&[3, 3], &[2]).is_err());
    }
}
