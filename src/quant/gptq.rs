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
        let mut panel = Panel::new(self, columns, k, width);
        let mut made = vec![Column::default(); width];
        for first in (0..k).step_by(group) {
            panel.group(bits, first..(first + group).min(k), scratch, &mut made)?;
        }
        made.iter().try_for_each(take)
    }
}

/// Columns side by side, so that each row is contiguous.
struct Panel<'a> {
    gptq: &'a Gptq,
    width: usize,
    weights: Vec<f32>,
    /// Weight minus its rounded value; zero for rows not yet processed.
    errors: Vec<f32>,
}

impl<'a> Panel<'a> {
    fn new(gptq: &'a Gptq, columns: &[f32], k: usize, width: usize) -> Self {
        let mut weights = vec![0.0; columns.len()];
        for (j, column) in columns.chunks_exact(k).enumerate() {
            for (i, w) in column.iter().enumerate() {
                weights[i * width + j] = *w;
            }
        }
        Self {
            gptq,
            width,
            errors: vec![0.0; weights.len()],
            weights,
        }
    }

    /// Quantizes the rows of a group.
    fn group(
        &mut self,
        bits: Bits,
        rows: std::ops::Range<usize>,
        scratch: &mut Scratch,
        made: &mut [Column],
    ) -> Result<(), QuantError> {
        let (width, first) = (self.width, rows.start);
        let (factor, method) = (&self.gptq.factor, self.gptq.method);
        // Target values of the weights, after the rows before the group.
        let mut places = self.weights[first * width..rows.end * width].to_vec();
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
            multiply(size, left, right, (&mut places, width), Before::Kept, false);
        }
        // Target values if the earlier rows of the group were not rounded.
        let mut free = places.clone();
        let mut moved = vec![0f32; free.len()];
        for (i, row) in rows.clone().enumerate() {
            let (before, at) = moved.split_at_mut(i * width);
            let target = &mut free[i * width..(i + 1) * width];
            for (j, errors) in before.chunks_exact(width).enumerate() {
                add_scaled(target, factor.at(row, first + j), errors);
            }
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
            for (j, errors) in before[first * width..].chunks_exact(width).enumerate() {
                add_scaled(target, factor.at(row, first + j), errors);
            }
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
mod tests {
    use super::*;
    use crate::quant::{ByGroup, Packed};

    /// Numbers from -1 to 1.
    fn random(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
        let next = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..count).map(next).collect()
    }

    /// Rows of `k` inputs that are mixtures of few, with noise.
    fn inputs(k: usize, rows: usize) -> Vec<f32> {
        let (hidden, mix, noise) = (k / 4, random(k / 4 * k, 5), random(rows * k, 6));
        let source = random(rows * hidden, 7);
        (0..rows * k)
            .map(|at| {
                let (row, i) = (at / k, at % k);
                let sum: f32 = (0..hidden)
                    .map(|h| source[row * hidden + h] * mix[h * k + i])
                    .sum();
                sum * (1.0 + i as f32 / k as f32) + 0.1 * noise[at]
            })
            .collect()
    }

    fn hessian(k: usize, rows: usize) -> Hessian {
        let mut m = Hessian::new(k);
        m.add(&inputs(k, rows)).unwrap();
        m
    }

    fn errors(columns: &[f32], packed: &Packed) -> Vec<f32> {
        let at = |(i, w): (usize, &f32)| w - packed.get(i % packed.k, i / packed.k);
        columns.iter().enumerate().map(at).collect()
    }

    fn packed(bits: Bits, group: usize, k: usize, columns: &[f32], method: &dyn ColumnMethod) -> Packed {
        Packed::from_columns(bits, group, k, columns, method).unwrap().0
    }

    #[test]
    fn the_factor_is_that_of_the_damped_hessian() {
        // More than a block, and no multiple of one.
        for k in [1, 5, 64, 65, 150] {
            let m = hessian(k.max(4), 300);
            let k = m.k();
            let f = CholeskyFactor::new(&m, DAMPING).unwrap();
            let mean = (0..k).map(|i| f64::from(m.get(i, i))).sum::<f64>() / k as f64;
            for i in 0..k {
                for j in 0..=i {
                    // (L^T L)_ij, the sum over rows r >= i.
                    let product =
                        |r: usize| f64::from(f.weight[r]) * f64::from(f.at(r, i)) * f64::from(f.at(r, j));
                    let found: f64 = (i..k).map(product).sum();
                    let wanted = f64::from(m.get(i, j)) / mean + if i == j { DAMPING } else { 0.0 };
                    assert!((found - wanted).abs() < 1e-4, "{k}: {i} {j}: {found} {wanted}");
                }
            }
        }
    }

    #[test]
    fn correlated_inputs_lose_less_than_by_rounding() {
        let (k, n) = (96, 40);
        let (m, weights) = (hessian(k, 400), random(k * n, 3));
        let factor = Arc::new(CholeskyFactor::new(&m, DAMPING).unwrap());
        for (bits, group) in [
            (Bits::Four, 32),
            (Bits::Four, 96),
            (Bits::Three, 40),
            (Bits::Two, 16),
        ] {
            for method in [Method::Rtn, Method::Mse] {
                let gptq = Gptq {
                    factor: factor.clone(),
                    method,
                };
                let loss = |method: &dyn ColumnMethod| {
                    m.output_error(&errors(&weights, &packed(bits, group, k, &weights, method)))
                };
                let (plain, ours) = (loss(&ByGroup::from(method)), loss(&gptq));
                assert!(
                    ours < 0.6 * plain,
                    "{bits}, groups of {group}, {method:?}: {ours} of {plain}"
                );
            }
        }
    }

    #[test]
    fn independent_inputs_are_rounded_as_they_are() {
        let (k, n) = (64, 6);
        let mut m = Hessian::new(k);
        for i in 0..k {
            let mut row = vec![0.0; k];
            row[i] = 2.0;
            m.add(&row).unwrap();
        }
        let weights = random(k * n, 9);
        let none = CholeskyFactor::new(&Hessian::new(k), DAMPING).unwrap();
        for factor in [CholeskyFactor::new(&m, DAMPING).unwrap(), none].map(Arc::new) {
            for method in [Method::Rtn, Method::Mse, Method::Mae] {
                let gptq = Gptq {
                    factor: factor.clone(),
                    method,
                };
                let ours = packed(Bits::Four, 32, k, &weights, &gptq);
                let plain = packed(Bits::Four, 32, k, &weights, &ByGroup::from(method));
                assert_eq!(ours, plain, "{method:?}");
            }
        }
    }

    #[test]
    fn columns_do_not_depend_on_their_neighbours() {
        let (k, n) = (72, 8);
        let (m, weights) = (hessian(k, 200), random(k * n, 4));
        let factor = Arc::new(CholeskyFactor::new(&m, DAMPING).unwrap());
        let gptq = Gptq {
            factor: factor.clone(),
            method: Method::Mse,
        };
        let all = packed(Bits::Four, 32, k, &weights, &gptq);
        assert_eq!(all, packed(Bits::Four, 32, k, &weights, &gptq), "twice the same");
        let last = packed(Bits::Four, 32, k, &weights[k * (n - 2)..], &gptq);
        let column = |p: &Packed, j: usize| (0..k).map(|i| p.get(i, j)).collect::<Vec<_>>();
        assert_eq!(column(&all, n - 1), column(&last, 1));
        let mut one = Column::default();
        let mut scratch = Scratch::default();
        gptq.column(Bits::Four, 32, &weights[..k], &mut scratch, &mut one)
            .unwrap();
        let mut alone = Packed::empty(Bits::Four, 32, k, 2).unwrap();
        alone.set_column(0, &one).unwrap();
        assert_eq!(column(&all, 0), column(&alone, 0));
    }

    #[test]
    fn inputs_that_are_always_zero_or_the_same() {
        let k = 32;
        let mut m = Hessian::new(k);
        // Half of the inputs never come; the others are copies of one.
        for v in [1.0f32, -2.0, 0.5] {
            let row: Vec<f32> = (0..k).map(|i| if i % 2 == 0 { v } else { 0.0 }).collect();
            m.add(&row).unwrap();
        }
        let factor = Arc::new(CholeskyFactor::new(&m, DAMPING).unwrap());
        let gptq = Gptq {
            factor: factor.clone(),
            method: Method::Mse,
        };
        let weights = random(k * 2, 8);
        let ours = packed(Bits::Four, 16, k, &weights, &gptq);
        let plain = packed(Bits::Four, 16, k, &weights, &ByGroup::from(Method::Mse));
        let loss = |p: &Packed| m.output_error(&errors(&weights, p));
        assert!(loss(&ours) < loss(&plain));
        let wrong = Gptq {
            factor: Arc::new(CholeskyFactor::new(&Hessian::new(16), DAMPING).unwrap()),
            method: Method::Mse,
        };
        assert!(Packed::from_columns(Bits::Four, 16, k, &weights, &wrong).is_err());
    }

    #[test]
    fn groups_of_equal_weights_stay_what_they_are() {
        let (k, n, group) = (64, 6, 16);
        let mut weights = random(k * n, 12);
        // Of column 1 the second group, of column 4 all.
        weights[k + group..k + 2 * group].fill(-0.3125);
        weights[4 * k..5 * k].fill(0.0);
        for method in [Method::Mse, Method::Mae] {
            let factor = Arc::new(CholeskyFactor::new(&hessian(k, 200), DAMPING).unwrap());
            let ours = packed(Bits::Four, group, k, &weights, &Gptq { factor, method });
            let rounded = packed(Bits::Four, group, k, &weights, &ByGroup::from(method));
            let column = |p: &Packed, j: usize| (0..k).map(|i| p.get(i, j)).collect::<Vec<_>>();
            assert_eq!(column(&ours, 1)[group..2 * group], [-0.3125; 16]);
            assert_eq!(column(&ours, 4), [0.0; 64]);
            // The others do make up for what is before them.
            assert_ne!(column(&ours, 1)[2 * group..], column(&rounded, 1)[2 * group..]);
        }
    }

    #[test]
    fn a_hessian_that_is_not_positive_definite_is_damped_more() {
        // Rounding has made an eigenvalue -0.05 of the mean diagonal; and one that no damping
        // mends.
        let two = |off: f32| Hessian::from_sum(2, vec![1.0, off, off, 1.0], 1).unwrap();
        let f = CholeskyFactor::new(&two(1.05), DAMPING).unwrap();
        // 0.01, 0.02, 0.04, 0.08: l_11^2 = 1.08, and l_00^2 = 1.08 - 1.05^2 / 1.08.
        assert!((f.weight[1] - 1.08).abs() < 1e-6, "{:?}", f.weight);
        assert!(
            (f.weight[0] - (1.08 - 1.05 * 1.05 / 1.08)).abs() < 1e-6,
            "{:?}",
            f.weight
        );
        let e = CholeskyFactor::new(&two(2.5), DAMPING).unwrap_err();
        assert_eq!(e, HessianError::NotPositive { damping: 0.64 });
        let e = CholeskyFactor::new(&two(f32::NAN), DAMPING).unwrap_err();
        assert_eq!(e, HessianError::NotFinite);
    }
}
