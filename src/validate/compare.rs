//! Error bounds for results, and their comparison with the reference.

use crate::tensor::{DType, HostTensor};

/// Bound on the normalised mean square error of a result that is stored as `stored` and computed
/// from sums of at most `terms` terms.
///
/// Storage: rounding to `f16` errs by at most 2^-11 of the value, so by 2^-22 = 2.4e-7 of the
/// square; a store and intermediate roundings leave room up to 1e-6. `f32`: functions such as
/// `exp`, `pow` and division are within 16 units of 2^-24 in OpenCL, and within about 2^-19 in WGSL
/// for the arguments of these cases, so 1e-11 of the square.
///
/// Sums: each of n additions errs by 2^-24 of a partial sum, and the reference adds in another
/// order. For terms of random sign the square of the error is about n 2^-48 of the square of the
/// result; a factor of 16 covers sums that happen to be small.
pub fn bound(stored: DType, terms: usize) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "sizes of test tensors")]
    let sums = 16.0 * terms as f64 * (-48f64).exp2();
    sums + if stored == DType::F16 { 1e-6 } else { 1e-11 }
}

/// Added to the bound for a kernel that multiplies pairs of E0M weights in halves (`PAIRS`,
/// `_pairs`; numeric contract, exception 8).
///
/// Rounding to a half errs by at most 2^-11 of the value, so for terms of random sign by 2^-22 / 3
/// of the square. A chain of four terms without fused multiply-add has partial sums of 1, 2, 3 and
/// 4 terms and 3 more products: 13 squares of a term, or 13 / 4 per weight. With `w1` uniform in
/// [2, 4), such a square is 28 / 3 of that of `x`; the result has 1 / 3 of the square of `x` for
/// the same weight. Together, 13 / 4 * 28 / 3 * 3 / 3 = 30 times 2^-22 of the square of the result.
/// If the bias is subtracted first, terms are smaller and chains twice as long. A factor of 4
/// covers sums that happen to be small.
pub const PAIRS: f64 = 4.0 * 30.0 / (1u64 << 22) as f64;

/// Added to the bound for a kernel that normalises a row to halves for tensor cores (numeric
/// contract, 1).
///
/// Each element is rounded once, by at most 2^-11 of its value, so by 2^-22 / 3 of the square. A
/// factor of 4 covers functions of two results computed from one row, whose errors are correlated.
pub const NORMED: f64 = 4.0 / 3.0 / (1u64 << 22) as f64;

/// Added to the bound for a kernel that multiplies 8-bit integers (numeric contract, 9).
///
/// Division is accurate to one unit in the last place, so an activation that close to a tie may
/// round to the neighbouring integer. For one in a thousand this is a step of 1 / 127 of the
/// largest magnitude, whose square is at most three times that of uniformly distributed
/// activations: 3 / 127^2 / 1000 of the square of the result, about a hundredth of the quantization
/// error itself.
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
/// normalised mean square error; fails if it exceeds `bound`.
pub fn compare(wanted: &HostTensor, found: &HostTensor, bound: f64) -> Result<f64, String> {
    if wanted.len() != found.len() || wanted.dtype() != found.dtype() {
        return Err(format!("expected {wanted:?}, found {found:?}"));
    }
    let shape = wanted.shape();
    if !wanted.dtype().is_float() {
        let (w, f) = (
            wanted.to_i64().map_err(|e| e.to_string())?,
            found.to_i64().map_err(|e| e.to_string())?,
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
        .filter(|i| !(w[*i].is_finite() && f[*i].is_finite()) && w[*i].to_bits() != f[*i].to_bits())
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
