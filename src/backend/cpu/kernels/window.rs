//! Windows over the rows and columns of planes.

use crate::backend::cpu::args::dtype;
use crate::backend::kernel::KernelSpec;
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
            rows: line(["KH", "SH", "DH"])?,
            columns: line(["KW", "SW", "DW"])?,
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
}

impl Line {
    /// The element at tap `tap` of window `i`; in the padding it is negative or beyond the axis.
    pub const fn element(self, i: usize, tap: usize, pad: i32) -> isize {
        (i * self.stride + tap * self.dilation).cast_signed() - pad as isize
    }

    /// The windows of `out` whose tap `tap` is inside an axis of `size` elements.
    pub fn inside(self, tap: usize, pad: i32, size: usize, out: usize) -> Range<usize> {
        let first = self.element(0, tap, pad);
        let low = first.min(0).unsigned_abs().div_ceil(self.stride).min(out);
        let last = size.cast_signed() - 1 - first;
        let high = if last < 0 {
            0
        } else {
            last.cast_unsigned() / self.stride + 1
        };
        low..high.min(out).max(low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_inside_are_those_whose_element_is() {
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
            }
        }
    }
}
