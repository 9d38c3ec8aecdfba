//! Error compensation: each weight compensates the rounding errors of the weights before it.
//!
//! For a column `w` with errors `e = w - q`, the mean squared error of the results is `e^T H e`,
//! where the Hessian H holds the second moments of the inputs. With `H = L^T L`, L lower
//! triangular, this is the sum over rows of `(l_ii e_i + sum_(j<i) l_ij e_j)^2`. Once the weights
//! before it are rounded, the best value for weight i is `w_i + sum_(j<i) l_ij / l_ii e_j`, and it
//! is rounded from there. (GPTQ, arXiv 2210.17323, obtains the same values by updating all later
//! weights with the Cholesky factor of the inverse.) H is damped by a share of its mean diagonal,
//! so inputs that are always zero or fully correlated cause no problem.
//!
//! Weights are processed in the order of K. The scale and bias of a group are chosen when it is
//! reached, for the values its weights would have if none of the group were rounded; an error in
//! row i is weighted by `l_ii^2`. A group of equal weights keeps its value, within f16 precision,
//! and compensates nothing.

use super::format::{Bits, QuantError, decode, encode};
use super::hessian::{Hessian, HessianError};
use super::method::{ColumnMethod, Method, Scratch};
use super::packed::Column;
use crate::tensor::product::{Before, Matrix, multiply};
use std::sync::Arc;

/// Default damping: added to the diagonal of the Hessian, as a share of its mean.
pub const DAMPING: f64 = 0.01;
pub const MAX_DAMPING: f64 = 1.0;
/// Rows factored at once.
const BLOCK: usize = 64;

/// The Cholesky factor of a Hessian, trailing rows first.
#[derive(Clone, Debug, PartialEq)]
pub struct CholeskyFactor {
    k: usize,
    /// `l_ij / l_ii` for `j < i`, row-major `[K][K]`; 1 on the diagonal, 0 above.
    unit: Vec<f32>,
    /// `l_ii^2`.
    weight: Vec<f32>,
}

impl CholeskyFactor {
    /// Factors a Hessian with damping `damping` times its mean diagonal. If rounding makes it
    /// indefinite, the damping is doubled up to [`MAX_DAMPING`]. A zero Hessian weights all inputs
    /// equally. Errors: elements that are not finite; no damping that helps.
    pub fn new(hessian: &Hessian, damping: f64) -> Result<Self, HessianError> {
        let k = hessian.k();
        let mean = (0..k).map(|i| f64::from(hessian.get(i, i))).sum::<f64>() / k.max(1) as f64;
        if !mean.is_finite() || hessian.sum().iter().any(|x| !x.is_finite()) {
            return Err(HessianError::NotFinite);
        }
        let (unit, mut damping) = if mean > 0.0 {
            (1.0 / mean, damping)
        } else {
            (0.0, 1.0)
        };
        let mut a = vec![0f64; k * k];
        loop {
            // Reversed, so that the usual factor (leading rows first) is that of the trailing rows.
            for (i, row) in a.chunks_exact_mut(k.max(1)).enumerate() {
                for (j, x) in row.iter_mut().enumerate() {
                    *x = f64::from(hessian.get(k - 1 - i, k - 1 - j)) * unit;
                }
                row[i] += damping;
            }
            if cholesky(&mut a, k) {
                break;
            }
            let more = damping * 2.0;
            if more.is_nan() || more <= 0.0 || more > MAX_DAMPING {
                return Err(HessianError::NotPositive { damping });
            }
            log::debug!(
                "the Hessian of {k} inputs is not positive definite with damping {damping}; trying {more}"
            );
            damping = more;
        }
        let mut unit = vec![0f32; k * k];
        let mut weight = vec![0f32; k];
        for i in 0..k {
            let (row, diagonal) = (k - 1 - i, a[(k - 1 - i) * (k + 1)]);
            #[expect(
                clippy::cast_possible_truncation,
                reason = "single precision is enough from here on"
            )]
            {
                for j in 0..i {
                    unit[i * k + j] = (a[(k - 1 - j) * k + row] / diagonal) as f32;
                }
                weight[i] = (diagonal * diagonal) as f32;
            }
            unit[i * k + i] = 1.0;
        }
        Ok(Self { k, unit, weight })
    }

    /// Solves `(H + damping) x = b` for consecutive columns `b` of K elements, where H has been
    /// divided by its mean diagonal. An error if the columns are not whole.
    pub fn solve(&self, columns: &[f32]) -> Result<Vec<f32>, QuantError> {
        let k = self.k;
        let n = columns.len() / k.max(1);
        if n * k != columns.len() {
            return Err(QuantError::Size { k, n, step: k });
        }
        let mut rows = Panel::new(self, columns, k, n).weights;
        // With U the unit factor and D the weights: U^T D U x = b.
        for i in (0..k).rev() {
            let (before, row) = rows.split_at_mut(i * n);
            let row = &mut row[..n];
            for (j, to) in before.chunks_exact_mut(n.max(1)).enumerate() {
                add_scaled(to, -self.at(i, j), row);
            }
            row.iter_mut().for_each(|x| *x /= self.weight[i]);
        }
        for i in 0..k {
            let (before, row) = rows.split_at_mut(i * n);
            let row = &mut row[..n];
            for (j, from) in before.chunks_exact(n.max(1)).enumerate() {
                add_scaled(row, -self.at(i, j), from);
            }
        }
        Ok((0..n * k).map(|at| rows[at % k * n + at / k]).collect())
    }

    /// Rounds consecutive columns of K weights to integers from `-limit` to `limit`, in units of
    /// the step of each column. Each weight compensates the errors of those before it. An error
    /// if there is not one step for each column.
    pub fn integers(&self, columns: &[f32], steps: &[f32], limit: i8) -> Result<Vec<i8>, QuantError> {
        let (k, n) = (self.k, steps.len());
        if k.checked_mul(n) != Some(columns.len()) {
            return Err(QuantError::Size { k, n, step: k });
        }
        let mut panel = Panel::new(self, columns, k, n);
        let mut codes = vec![0; columns.len()];
        for first in (0..k).step_by(BLOCK) {
            panel.block(first..(first + BLOCK).min(k), steps, limit, &mut codes);
        }
        Ok(codes)
    }

    /// Adds to the values of row `i` what compensates the errors of the rows from `first` on.
    fn compensate(&self, i: usize, first: usize, errors: &[f32], values: &mut [f32]) {
        for (j, errors) in errors.chunks_exact(values.len().max(1)).enumerate() {
            add_scaled(values, self.at(i, first + j), errors);
        }
    }

    /// `l_ij / l_ii`.
    fn at(&self, i: usize, j: usize) -> f32 {
        self.unit[i * self.k + j]
    }
}

/// Computes the lower triangular factor `a = l l^T` of a symmetric matrix in its lower triangle.
/// Returns false if the matrix is not positive definite.
fn cholesky(a: &mut [f64], k: usize) -> bool {
    for first in (0..k).step_by(BLOCK) {
        let last = (first + BLOCK).min(k);
        for i in first..k {
            // Rows of the block, then the rows below it against the finished block.
            for j in first..last.min(i + 1) {
                let (row, other) = (&a[i * k + first..i * k + j], &a[j * k + first..j * k + j]);
                let sum: f64 = row.iter().zip(other).map(|(x, y)| x * y).sum();
                let left = a[i * k + j] - sum;
                a[i * k + j] = if i == j {
                    if left.is_nan() || left <= 0.0 {
                        return false;
                    }
                    left.sqrt()
                } else {
                    left / a[j * k + j]
                };
            }
        }
        let rest = k - last;
        if rest == 0 {
            break;
        }
        let panel: Vec<f64> = (last..k)
            .flat_map(|i| a[i * k + first..i * k + last].iter().copied())
            .collect();
        let negative: Vec<f64> = panel.iter().map(|x| -x).collect();
        let width = last - first;
        let (left, right) = (
            Matrix {
                data: &negative,
                row: width,
                column: 1,
            },
            Matrix {
                data: &panel,
                row: 1,
                column: width,
            },
        );
        let corner = &mut a[last * k + last..];
        multiply((rest, rest, width), left, right, (corner, k), Before::Kept, true);
    }
    true
}

/// GPTQ for the columns of one matrix.
#[derive(Clone, Debug)]
pub struct Gptq {
    /// Cholesky factor of the inputs' Hessian.
    pub factor: Arc<CholeskyFactor>,
    /// How the scale and bias of a group are chosen.
    pub method: Method,
}

impl ColumnMethod for Gptq {
    fn column(
        &self,
        bits: Bits,
        group: usize,
        weights: &[f32],
        scratch: &mut Scratch,
        out: &mut Column,
    ) -> Result<(), QuantError> {
        self.columns(bits, group, weights.len(), weights, scratch, &mut |made| {
            out.clone_from(made);
            Ok(())
        })
    }

    fn columns(
        &self,
        bits: Bits,
        group: usize,
        k: usize,
        columns: &[f32],
        scratch: &mut Scratch,
        take: &mut dyn FnMut(&Column) -> Result<(), QuantError>,
    ) -> Result<(), QuantError> {
        if self.factor.k != k {
            let (n, step) = (columns.len() / k.max(1), self.factor.k);
            return Err(QuantError::Size { k, n, step });
        }
        let width = columns.len() / k.max(1);
        let mut panel = Panel::new(&self.factor, columns, k, width);
        let mut made = vec![Column::default(); width];
        for first in (0..k).step_by(group) {
            let rows = first..(first + group).min(k);
            panel.group((bits, self.method), rows, scratch, &mut made)?;
        }
        made.iter().try_for_each(take)
    }
}

/// Columns side by side, so that each row is contiguous.
struct Panel<'a> {
    factor: &'a CholeskyFactor,
    width: usize,
    weights: Vec<f32>,
    /// Weight minus its rounded value; zero for rows not yet processed.
    errors: Vec<f32>,
}

impl<'a> Panel<'a> {
    fn new(factor: &'a CholeskyFactor, columns: &[f32], k: usize, width: usize) -> Self {
        let mut weights = vec![0.0; columns.len()];
        for (j, column) in columns.chunks_exact(k).enumerate() {
            for (i, w) in column.iter().enumerate() {
                weights[i * width + j] = *w;
            }
        }
        Self {
            factor,
            width,
            errors: vec![0.0; weights.len()],
            weights,
        }
    }

    /// Target values of the weights of `rows`, after the rows before these.
    fn targets(&self, rows: &std::ops::Range<usize>) -> Vec<f32> {
        let (width, first, factor) = (self.width, rows.start, self.factor);
        let mut targets = self.weights[first * width..rows.end * width].to_vec();
        if first > 0 {
            let left = Matrix {
                data: &factor.unit[first * factor.k..],
                row: factor.k,
                column: 1,
            };
            let right = Matrix {
                data: &self.errors,
                row: width,
                column: 1,
            };
            let size = (rows.len(), width, first);
            multiply(size, left, right, (&mut targets, width), Before::Kept, false);
        }
        targets
    }

    /// Rounds `rows` to `codes`, which holds columns of K integers.
    fn block(&mut self, rows: std::ops::Range<usize>, steps: &[f32], limit: i8, codes: &mut [i8]) {
        let (width, first, factor) = (self.width, rows.start, self.factor);
        let mut targets = self.targets(&rows);
        let most = f32::from(limit);
        for (i, row) in rows.enumerate() {
            let (before, from) = self.errors.split_at_mut(row * width);
            let target = &mut targets[i * width..(i + 1) * width];
            factor.compensate(row, first, &before[first * width..], target);
            let weights = &self.weights[row * width..(row + 1) * width];
            let columns = codes.iter_mut().skip(row).step_by(factor.k);
            let targets = target.iter().zip(steps);
            for (((e, w), (t, step)), code) in from.iter_mut().zip(weights).zip(targets).zip(columns) {
                let rounded = (t / step).round().clamp(-most, most);
                *e = w - rounded * step;
                #[expect(clippy::cast_possible_truncation, reason = "clamped to the type")]
                let integer = rounded as i8;
                *code = integer;
            }
        }
    }

    /// Quantizes the rows of a group.
    fn group(
        &mut self,
        (bits, method): (Bits, Method),
        rows: std::ops::Range<usize>,
        scratch: &mut Scratch,
        made: &mut [Column],
    ) -> Result<(), QuantError> {
        let (width, first, factor) = (self.width, rows.start, self.factor);
        let mut places = self.targets(&rows);
        // Target values if the earlier rows of the group were not rounded.
        let mut free = places.clone();
        let mut moved = vec![0f32; free.len()];
        for (i, row) in rows.clone().enumerate() {
            let (before, at) = moved.split_at_mut(i * width);
            let target = &mut free[i * width..(i + 1) * width];
            factor.compensate(row, first, before, target);
            let weights = &self.weights[row * width..(row + 1) * width];
            for ((m, w), t) in at.iter_mut().zip(weights).zip(&*target) {
                *m = w - t;
            }
        }
        let mut column = vec![0.0; rows.len()];
        let importance = &factor.weight[rows.clone()];
        let mut equal = vec![false; width];
        for ((j, out), equal) in made.iter_mut().enumerate().zip(&mut equal) {
            let given = self.weights[first * width..rows.end * width]
                .iter()
                .skip(j)
                .step_by(width);
            let value = self.weights[first * width + j];
            *equal = method != Method::Rtn && given.clone().all(|w| *w == value);
            let from: &[f32] = if *equal {
                &self.weights[first * width..]
            } else {
                &free
            };
            for (to, from) in column.iter_mut().zip(from.iter().skip(j).step_by(width)) {
                *to = *from;
            }
            let (scale, bias) = method.fit(bits, &column, Some(importance), scratch)?;
            out.scales.push([scale, bias]);
        }
        for (i, row) in rows.enumerate() {
            let (before, from) = self.errors.split_at_mut(row * width);
            let target = &mut places[i * width..(i + 1) * width];
            factor.compensate(row, first, &before[first * width..], target);
            let weights = &self.weights[row * width..(row + 1) * width];
            let places = target.iter().zip(&equal);
            for (((e, w), (t, equal)), out) in from.iter_mut().zip(weights).zip(places).zip(&mut *made) {
                let [scale, bias] = out.scales.last().copied().unwrap_or_default();
                let code = encode(bits, scale, bias, if *equal { *w } else { *t });
                *e = w - decode(bits, scale, bias, code);
                out.codes.push(code);
            }
        }
        Ok(())
    }
}

fn add_scaled(to: &mut [f32], factor: f32, from: &[f32]) {
    for (t, f) in to.iter_mut().zip(from) {
        *t += factor * f;
    }
}

#[cfg(test)]
mod tests;
