//! The Hessian of a matmul: the second moments of its inputs, collected by calibration.

use crate::tensor::product::{Before, Matrix, multiply};

/// Why a Hessian cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum HessianError {
    /// The numbers do not form whole rows.
    #[error("{found} numbers do not form rows of {k} inputs")]
    Size { k: usize, found: usize },
    /// An input is NaN or infinite.
    #[error("the calibration inputs contain NaN or infinity")]
    NotFinite,
    /// It has no Cholesky factor.
    #[error(
        "the Hessian of the calibration inputs is not positive definite, even with damping \
         {damping}; use a longer calibration text"
    )]
    NotPositive {
        /// The last damping tried.
        damping: f64,
    },
}

/// Most inputs of a Hessian whose products run on one core.
const SMALL: usize = 32;

/// The sum of `x^T x` over rows `x` of K inputs: a symmetric K x K matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct Hessian {
    k: usize,
    rows: u64,
    sum: Vec<f32>,
}

impl Hessian {
    /// A Hessian of no rows.
    pub fn new(k: usize) -> Self {
        Self {
            k,
            rows: 0,
            sum: vec![0.0; k * k],
        }
    }

    /// A Hessian of `rows` rows with a known sum, row-major K x K. An error for a wrong number of
    /// elements.
    pub fn from_sum(k: usize, sum: Vec<f32>, rows: u64) -> Result<Self, HessianError> {
        if k.checked_mul(k) != Some(sum.len()) {
            return Err(HessianError::Size { k, found: sum.len() });
        }
        Ok(Self { k, rows, sum })
    }

    /// Size in bytes of a Hessian of `k` inputs.
    pub fn bytes(k: usize) -> usize {
        k.saturating_mul(k).saturating_mul(size_of::<f32>())
    }

    pub fn k(&self) -> usize {
        self.k
    }

    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Element `(i, j)` of the sum.
    pub fn get(&self, i: usize, j: usize) -> f32 {
        self.sum[i * self.k + j]
    }

    pub fn sum(&self) -> &[f32] {
        &self.sum
    }

    /// Whether products of K columns take less time on one core than on all.
    pub fn is_small(&self) -> bool {
        self.k <= SMALL
    }

    /// Adds consecutive rows, on all cores unless K is small.
    pub fn add(&mut self, rows: &[f32]) -> Result<(), HessianError> {
        let k = self.k;
        if k == 0 || !rows.len().is_multiple_of(k) {
            return Err(HessianError::Size { k, found: rows.len() });
        }
        if rows.iter().any(|x| !x.is_finite()) {
            return Err(HessianError::NotFinite);
        }
        let count = rows.len() / k;
        let (left, right) = (
            Matrix {
                data: rows,
                row: 1,
                column: k,
            },
            Matrix {
                data: rows,
                row: k,
                column: 1,
            },
        );
        let parallel = !self.is_small();
        multiply(
            (k, k, count),
            left,
            right,
            (&mut self.sum, k),
            Before::Kept,
            parallel,
        );
        self.rows += count as u64;
        Ok(())
    }

    /// The Hessian of the inputs divided by `factors`, one per input. An error for a wrong number
    /// of factors.
    pub fn divided(&self, factors: &[f32]) -> Result<Self, HessianError> {
        let (k, found) = (self.k, factors.len());
        if found != k {
            return Err(HessianError::Size { k, found });
        }
        let mut sum = self.sum.clone();
        for (row, by) in sum.chunks_exact_mut(k.max(1)).zip(factors) {
            row.iter_mut().zip(factors).for_each(|(x, f)| *x /= by * f);
        }
        Ok(Self {
            k,
            rows: self.rows,
            sum,
        })
    }

    /// Adds the sums of another Hessian: another calibration of the same inputs, or another matmul
    /// of the same weight.
    pub fn merge(&mut self, other: &Self) -> Result<(), HessianError> {
        if other.k != self.k {
            let (k, found) = (self.k, other.k);
            return Err(HessianError::Size { k, found });
        }
        self.rows += other.rows;
        for (sum, more) in self.sum.iter_mut().zip(&other.sum) {
            *sum += more;
        }
        Ok(())
    }

    /// The mean square of each input; zeros if there are no rows.
    pub fn mean_squares(&self) -> Vec<f32> {
        #[expect(clippy::cast_precision_loss, reason = "a number of tokens")]
        let rows = self.rows.max(1) as f32;
        (0..self.k).map(|i| self.get(i, i) / rows).collect()
    }

    /// The sum of `e^T H e` over consecutive columns `e` of K errors, where H is the mean of
    /// `x^T x`: the mean squared error of the matmul results, summed over their columns.
    pub fn output_error(&self, errors: &[f32]) -> f64 {
        let k = self.k;
        let count = errors.len() / k.max(1);
        let mut spread = vec![0.0; count * k];
        let left = Matrix {
            data: errors,
            row: k,
            column: 1,
        };
        let right = Matrix {
            data: &self.sum,
            row: k,
            column: 1,
        };
        multiply(
            (count, k, k),
            left,
            right,
            (&mut spread, k),
            Before::Dropped,
            true,
        );
        let total: f64 = errors
            .iter()
            .zip(&spread)
            .map(|(e, s)| f64::from(*e) * f64::from(*s))
            .sum();
        #[expect(clippy::cast_precision_loss, reason = "a number of tokens")]
        let rows = self.rows.max(1) as f64;
        // An undefined result counts as no improvement.
        if total.is_nan() {
            f64::INFINITY
        } else {
            total.max(0.0) / rows
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_products() {
        let rows = [1.0, 2.0, 3.0, -1.0, 0.5, 4.0, 2.0, 2.0, 2.0];
        let mut whole = Hessian::new(3);
        whole.add(&rows).unwrap();
        for (i, j) in [(0, 0), (0, 1), (2, 0), (2, 2)] {
            let exact: f32 = rows.chunks(3).map(|x| x[i] * x[j]).sum();
            assert_eq!(whole.get(i, j), exact);
        }
        assert_eq!(whole.mean_squares(), [2.0, 8.25 / 3.0, 29.0 / 3.0]);
        let (mut first, mut second) = (Hessian::new(3), Hessian::new(3));
        first.add(&rows[..3]).unwrap();
        second.add(&rows[3..]).unwrap();
        first.merge(&second).unwrap();
        assert_eq!((&first, first.rows()), (&whole, 3));
        // What a column of errors adds to the results of each row.
        let error = [0.5, -1.0, 0.25];
        let exact: f32 = rows
            .chunks(3)
            .map(|x| x.iter().zip(&error).map(|(x, e)| x * e).sum::<f32>().powi(2))
            .sum();
        assert!((whole.output_error(&error) - f64::from(exact / 3.0)).abs() < 1e-6);
    }

    #[test]
    fn divided_inputs() {
        let (rows, factors) = ([1.0, 2.0, 3.0, -1.0, 0.5, 4.0], [0.5, 2.0, 4.0]);
        let (mut m, mut divided) = (Hessian::new(3), Hessian::new(3));
        m.add(&rows).unwrap();
        let by = rows.iter().zip(factors.iter().cycle()).map(|(x, f)| x / f);
        divided.add(&by.collect::<Vec<f32>>()).unwrap();
        assert_eq!(m.divided(&factors).unwrap(), divided);
        assert_eq!(
            m.divided(&factors[..2]),
            Err(HessianError::Size { k: 3, found: 2 })
        );
    }

    #[test]
    fn rows_that_cannot_be_added() {
        let mut m = Hessian::new(3);
        assert_eq!(m.add(&[1.0; 4]), Err(HessianError::Size { k: 3, found: 4 }));
        assert_eq!(m.add(&[1.0, f32::NAN, 0.0]), Err(HessianError::NotFinite));
        assert!(m.merge(&Hessian::new(4)).is_err());
        assert_eq!((m.rows(), m.mean_squares()), (0, vec![0.0; 3]));
    }
}
