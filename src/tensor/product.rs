//! Matrix multiplication on the host (GEMM), optimized for the CPU.

use crate::quota::{self, Exceeded};

/// Element types of [`gemm()`]: `f32` and `f64`.
pub trait Factor: Copy + From<u8> + 'static {}
impl Factor for f32 {}
impl Factor for f64 {}

/// A matrix in a slice: element `(i, j)` is at `i * row + j * column`.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a, T> {
    /// The elements of all rows.
    pub data: &'a [T],
    /// Distance between rows, in elements.
    pub row: usize,
    /// Distance between columns, in elements.
    pub column: usize,
}

/// What happens to the values that the result holds before the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// They are ignored and overwritten.
    Dropped,
    /// The product is added to them.
    Kept,
}

/// Multiplications between two checks of the time: tenths of a second.
const UNCHECKED: usize = 1 << 30;
/// Rows that are multiplied at a time at least.
const ROWS: usize = 64;

/// `y = a * b` for row-major `a` (`m x k`) and `b` (`k x n`, or `n x k` if `trans_b`). Fails if the
/// call was cancelled or has no time left.
pub fn gemm<T: Factor>(
    m: usize,
    n: usize,
    k: usize,
    a: &[T],
    b: &[T],
    trans_b: bool,
    y: &mut [T],
) -> Result<(), Exceeded> {
    let (row, column) = if trans_b { (1, k) } else { (n, 1) };
    let b = Matrix { data: b, row, column };
    let rows = (UNCHECKED / n.saturating_mul(k).max(1)).max(ROWS);
    for first in (0..m).step_by(rows) {
        quota::check()?;
        let a = Matrix {
            data: &a[first * k..],
            row: k,
            column: 1,
        };
        let y = &mut y[first * n..];
        let rows = rows.min(m - first);
        multiply((rows, n, k), a, b, (y, n), Before::Dropped, true);
    }
    Ok(())
}

/// `y = a * b`, or `y += a * b` with [`Before::Kept`], for `a` (`m x k`) and `b` (`k x n`). Rows of
/// `y` are `y.1` elements apart. Runs on all cores if `parallel`; the result does not depend on
/// their number.
pub fn multiply<T: Factor>(
    (m, n, k): (usize, usize, usize),
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    y: (&mut [T], usize),
    before: Before,
    parallel: bool,
) {
    let last = |rows: usize, columns: usize, row: usize, column: usize| {
        rows.saturating_sub(1) * row + columns.saturating_sub(1) * column
    };
    let covers = |length: usize, rows: usize, columns: usize, row: usize, column: usize| {
        rows == 0 || columns == 0 || last(rows, columns, row, column) < length
    };
    assert!(
        covers(a.data.len(), m, k, a.row, a.column)
            && covers(b.data.len(), k, n, b.row, b.column)
            && covers(y.0.len(), m, n, y.1, 1)
            && y.1 >= n,
        "operands cover the product"
    );
    // Strides that address more than one element are below the lengths of the slices.
    let threads = if parallel {
        gemm::Parallelism::Rayon(0)
    } else {
        gemm::Parallelism::None
    };
    // SAFETY: the asserts above show that the three slices cover every addressed element. Rows of
    // `y` do not overlap, and `y` does not alias the operands.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            y.0.as_mut_ptr(),
            1,
            y.1.cast_signed(),
            before == Before::Kept,
            a.data.as_ptr(),
            a.column.cast_signed(),
            a.row.cast_signed(),
            b.data.as_ptr(),
            b.column.cast_signed(),
            b.row.cast_signed(),
            T::from(1),
            T::from(1),
            false,
            false,
            false,
            threads,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(count: usize) -> Vec<f64> {
        (0..count).map(|i| ((i * 37 + 11) % 19) as f64 - 9.0).collect()
    }

    #[test]
    fn strides_and_what_was_there() {
        let (m, n, k) = (5, 7, 3);
        let (a, b) = (values(m * k), values(k * n));
        let exact = |i: usize, j: usize| (0..k).map(|l| a[l * m + i] * b[l * n + j]).sum::<f64>();
        // `a` lies transposed, the rows of `y` are farther apart than they are long.
        let left = Matrix {
            data: &a,
            row: 1,
            column: m,
        };
        let right = Matrix {
            data: &b,
            row: n,
            column: 1,
        };
        for (before, kept) in [(Before::Dropped, 0.0), (Before::Kept, 100.0)] {
            let mut y = vec![100.0; m * 9 - 2];
            multiply((m, n, k), left, right, (&mut y, 9), before, false);
            for (at, found) in y.iter().enumerate() {
                let (i, j) = (at / 9, at % 9);
                let wanted = if j < n { kept + exact(i, j) } else { 100.0 };
                assert_eq!(*found, wanted, "{i}, {j}");
            }
        }
    }

    #[test]
    fn a_transposed_factor() {
        let (a, b) = (values(6), values(8));
        let mut y = vec![0.0; 12];
        gemm(3, 4, 2, &a, &b, true, &mut y).unwrap();
        assert_eq!(y[4 * 2 + 1], a[4] * b[2] + a[5] * b[3]);
    }
}
