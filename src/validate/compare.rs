//! Error bounds for results, and their comparison with the reference.

use crate::tensor::{DType, HostTensor};

/// Bound on the normalized mean square error of a result that is stored as `stored` and computed
/// from sums of at most `terms` terms.
///
/// Storage as `f16`: rounding has a relative error of at most 2^-11, whose square is 2^-22 =
/// 2.4e-7. A bound of 1e-6 leaves room for one store and intermediate roundings.
///
/// Storage as `f32`: functions such as `exp`, `pow` and division are accurate to 16 units of 2^-24
/// in OpenCL, and to about 2^-19 in WGSL for the arguments of these cases. The bound on the squared
/// relative error is 1e-11.
///
/// Sums: each of n additions has an error of 2^-24 of a partial sum, and the reference adds in a
/// different order. For terms of random sign, the squared relative error of the result is about
/// n 2^-48. A factor of 16 covers sums that happen to be small.
pub fn bound(stored: DType, terms: usize) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "sizes of test tensors")]
    let sums = 16.0 * terms as f64 * (-48f64).exp2();
    sums + if stored == DType::F16 { 1e-6 } else { 1e-11 }
}

/// Added to the bound for a kernel that multiplies pairs of E0M weights in half precision (`PAIRS`,
/// `_pairs`; numeric contract, rule 8).
///
/// Rounding to half precision has a relative error of at most 2^-11. For terms of random sign, its
/// mean square is 2^-22 / 3. A chain of eight terms without fused multiply-add has partial sums of
/// 1 to 8 terms and 8 products: 44 squares of a term, or 11 / 2 per weight. If the bias is
/// subtracted from weights first, the squares of the terms add up to that of the result. If the
/// middle of the range is subtracted instead, they add up to about as much at most, for `w1`
/// uniform in [2, 4). In total, 11 / 2 / 3 = 2 times 2^-22 of the square of the result. A factor of
/// 4 covers sums that happen to be small.
pub const PAIRS: f64 = 4.0 * 2.0 / (1u64 << 22) as f64;

/// Added to the bound for a kernel that normalizes a row and rounds it to half precision for tensor
/// cores (numeric contract, rule 1).
///
/// Each element is rounded once, by at most 2^-11 of its value. The mean square of the relative
/// error is 2^-22 / 3. A factor of 4 covers functions of two results computed from one row, whose
/// errors are correlated.
pub const NORMED: f64 = 4.0 / 3.0 / (1u64 << 22) as f64;

/// Added to the bound for a kernel that multiplies 8-bit integers (numeric contract, rule 9).
///
/// Division is accurate to one unit in the last place, so an activation that close to a tie may
/// round to the neighboring integer, with an error of 1 / 127 of the largest magnitude. The square
/// of the largest magnitude is at most three times the mean square of uniformly distributed
/// activations. If one activation in a thousand is affected, the error is 3 / 127^2 / 1000 of the
/// square of the result, about a hundredth of the quantization error itself.
pub const TIES: f64 = 3.0 / (127.0 * 127.0 * 1000.0);

/// The coordinates of element `i`.
fn coordinates(shape: &[usize], mut i: usize) -> Vec<usize> {
    let mut out = vec![0; shape.len()];
    for (o, d) in out.iter_mut().zip(shape).rev() {
        *o = i % d;
        i /= d;
    }
    out
}

/// Compares `found` with `wanted`, whose shapes may differ by axes of size 1. Returns the
/// normalized mean square error; fails if it exceeds `bound`.
pub fn compare(wanted: &HostTensor, found: &HostTensor, bound: f64) -> Result<f64, String> {
    if wanted.len() != found.len() || wanted.dtype() != found.dtype() {
        return Err(format!("expected {wanted:?}, found {found:?}"));
    }
    let shape = wanted.shape();
    if !wanted.dtype().is_float() {
        let (w, f) = (
            wanted.to_bits().map_err(|e| e.to_string())?,
            found.to_bits().map_err(|e| e.to_string())?,
        );
        let wrong: Vec<usize> = (0..w.len()).filter(|i| w[*i] != f[*i]).collect();
        return match wrong.first() {
            None => Ok(0.0),
            Some(i) => Err(format!(
                "{} of {} integers differ; first at {:?}: expected {}, found {}",
                wrong.len(),
                w.len(),
                coordinates(shape, *i),
                w[*i],
                f[*i]
            )),
        };
    }
    let (w, f) = (
        wanted.to_f32().map_err(|e| e.to_string())?,
        found.to_f32().map_err(|e| e.to_string())?,
    );
    let odd: Vec<usize> = (0..w.len())
        .filter(|i| !(w[*i].is_finite() && f[*i].is_finite()))
        .filter(|i| w[*i] != f[*i] && !(w[*i].is_nan() && f[*i].is_nan()))
        .collect();
    if let Some(i) = odd.first() {
        return Err(format!(
            "{} of {} elements are not finite on one side only; first at {:?}: expected {}, found {}",
            odd.len(),
            w.len(),
            coordinates(shape, *i),
            w[*i],
            f[*i]
        ));
    }
    let error = |i: usize| (f64::from(w[i]) - f64::from(f[i])).powi(2);
    let finite = || (0..w.len()).filter(|i| w[*i].is_finite());
    let sum: f64 = finite().map(error).sum();
    let norm: f64 = finite().map(|i| f64::from(w[i]).powi(2)).sum();
    let nmse = if norm > 0.0 { sum / norm } else { sum };
    if nmse <= bound {
        return Ok(nmse);
    }
    let worst = finite()
        .max_by(|a, b| error(*a).total_cmp(&error(*b)))
        .unwrap_or(0);
    Err(format!(
        "NMSE {nmse:.3e} is above {bound:.3e}; worst of {} elements at {:?}: expected {}, found {}",
        w.len(),
        coordinates(shape, worst),
        w[worst],
        f[worst]
    ))
}
