//! Windows over the rows and columns of planes.

use crate::backend::cpu::args::{dtype, product};
use crate::backend::kernel::KernelSpec;
use crate::kernels::windows;
use crate::tensor::DType;
use std::ops::Range;

/// Sizes of a window, from the defines of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub rows: Line,
    pub columns: Line,
}

/// A window along one axis.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    /// Number of taps.
    pub kernel: usize,
    /// Distance between neighbouring windows.
    pub stride: usize,
    /// Distance between neighbouring taps.
    pub dilation: usize,
}

impl Window {
    /// The window that `KH`, `SH`, `DH`, `KW`, `SW` and `DW` state.
    pub fn of(spec: &KernelSpec) -> Option<Self> {
        let line = |names: [&str; 3]| {
            let [kernel, stride, dilation] = names.map(|n| usize::try_from(*spec.defines.get(n)?).ok());
            Some(Line {
                kernel: kernel?.max(1),
                stride: stride?.max(1),
                dilation: dilation?.max(1),
            })
        };
        Some(Self {
            rows: line(windows::ROWS)?,
            columns: line(windows::COLUMNS)?,
        })
    }

    /// The window of a convolution, whose operands must be `f32`.
    pub fn of_floats(spec: &KernelSpec) -> Option<Self> {
        let floats = [0, 1].iter().all(|i| dtype(spec, *i) == Some(DType::F32));
        let bias = dtype(spec, 2).is_none_or(|d| d == DType::F32);
        Self::of(spec).filter(|_| floats && bias)
    }

    pub const fn taps(self) -> usize {
        self.rows.kernel * self.columns.kernel
    }

    /// Whether the windows of a plane of `size` are its elements, in order.
    pub fn is_plain(self, size: [usize; 2], out: [usize; 2], pads: [i32; 2]) -> bool {
        let strides = [self.rows.stride, self.columns.stride];
        pads == [0, 0] && size == out && self.taps() == 1 && strides == [1, 1]
    }
}

impl Line {
    /// The element at tap `tap` of window `i`; in the padding it is negative or beyond the axis.
    pub const fn element(self, i: usize, tap: usize, pad: i32) -> isize {
        (i * self.stride + tap * self.dilation).cast_signed() - pad as isize
    }

    /// The element at tap `tap` of window `i`, if it is inside an axis of `size` elements.
    pub fn get(self, i: usize, tap: usize, pad: i32, size: usize) -> Option<usize> {
        let at = usize::try_from(self.element(i, tap, pad)).ok()?;
        (at < size).then_some(at)
    }

    /// Elements from the first tap of a window to its last one.
    pub fn reach(self) -> usize {
        product(&[self.kernel - 1, self.dilation])
    }

    /// The windows of `out` whose tap `tap` is inside an axis of `size` elements.
    pub fn inside(self, tap: usize, pad: i32, size: usize, out: usize) -> Range<usize> {
        steps_inside(self.element(0, tap, pad), self.stride, size, out)
    }

    /// The taps of window `i` that are inside an axis of `size` elements.
    pub fn taps(self, i: usize, pad: i32, size: usize) -> Range<usize> {
        steps_inside(self.element(i, 0, pad), self.dilation, size, self.kernel)
    }

    /// The taps that are inside in any of `out` windows.
    pub fn used(self, pad: i32, size: usize, out: usize) -> Vec<usize> {
        let (mut used, mut end) = (Vec::new(), 0);
        // Later windows begin with earlier taps.
        for i in (0..out).rev() {
            let taps = self.taps(i, pad, size);
            used.extend(taps.start.max(end)..taps.end);
            end = end.max(taps.end);
        }
        used
    }

    /// How many taps of window `i` are before element `end`, padding included.
    pub fn counted(self, i: usize, pad: i32, end: i32) -> usize {
        let room = end as isize - self.element(i, 0, pad);
        room.max(0)
            .unsigned_abs()
            .div_ceil(self.dilation)
            .min(self.kernel)
    }

    /// Applies `to[i] = each(to[i], from[element])` for the windows whose tap `tap` is inside.
    #[inline(always)]
    pub fn along<T: Copy>(self, tap: usize, pad: i32, from: &[T], to: &mut [T], each: impl Fn(T, T) -> T) {
        let inside = self.inside(tap, pad, from.len(), to.len());
        let first = self.element(inside.start, tap, pad).max(0).cast_unsigned();
        let (Some(from), Some(to)) = (from.get(first..), to.get_mut(inside)) else {
            return;
        };
        let each = |(t, f): (&mut T, &T)| *t = each(*t, *f);
        match self.stride {
            1 => to.iter_mut().zip(from).for_each(each),
            2 => to.iter_mut().zip(from.iter().step_by(2)).for_each(each),
            n => to.iter_mut().zip(from.iter().step_by(n)).for_each(each),
        }
    }
}

/// Which of `count` steps from `first` on, `step` apart, are in `0..size`.
pub(crate) fn steps_inside(first: isize, step: usize, size: usize, count: usize) -> Range<usize> {
    let low = first.min(0).unsigned_abs().div_ceil(step).min(count);
    let last = size.cast_signed() - 1 - first;
    let high = if last < 0 {
        0
    } else {
        last.cast_unsigned() / step + 1
    };
    low..high.min(count).max(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taps_of_padding_cost_nothing() {
        let line = Line {
            kernel: 1 << 31,
            stride: 1,
            dilation: 1,
        };
        let end = (1usize << 31) - 4;
        assert_eq!(
            line.used(i32::MAX - 3, 4, 3),
            [end - 2, end - 1, end, end + 1, end + 2, end + 3]
        );
    }

    #[test]
    fn windows_and_taps_inside_are_those_whose_element_is() {
        for (kernel, stride, dilation) in [(3, 1, 1), (3, 2, 1), (2, 3, 4), (5, 1, 2)] {
            let line = Line {
                kernel,
                stride,
                dilation,
            };
            for (pad, size) in [(0, 7), (2, 7), (9, 3), (-1, 6), (4, 1)] {
                for tap in 0..kernel {
                    let is_inside = |i: &usize| (0..size).contains(&line.element(*i, tap, pad));
                    let want: Vec<usize> = (0..9).filter(is_inside).collect();
                    let got: Vec<usize> = line.inside(tap, pad, size.cast_unsigned(), 9).collect();
                    assert_eq!(got, want, "{line:?} {pad} {size} {tap}");
                }
                let is_inside = |i: usize, tap: usize| (0..size).contains(&line.element(i, tap, pad));
                for i in 0..9 {
                    let want: Vec<usize> = (0..kernel).filter(|tap| is_inside(i, *tap)).collect();
                    let got: Vec<usize> = line.taps(i, pad, size.cast_unsigned()).collect();
                    assert_eq!(got, want, "{line:?} {pad} {size} {i}");
                }
                let any = |tap: &usize| (0..9).any(|i| is_inside(i, *tap));
                let want: Vec<usize> = (0..kernel).filter(any).collect();
                let got = line.used(pad, size.cast_unsigned(), 9);
                assert_eq!(got, want, "{line:?} {pad} {size}");
            }
        }
    }
}
