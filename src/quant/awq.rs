//! Activation-aware scaling: inputs that are large during calibration get finer weights.
//!
//! The rows of the weights that read an input are multiplied by `s`, and the producer of that input
//! divides by it, so the model is unchanged before rounding (AWQ, arXiv 2306.00978). A multiplied
//! row loses less when its group is rounded; the others lose slightly more. `s_k = rms_k^alpha`,
//! where `rms_k` is the root mean square of input k, divided by the geometric mean of the largest
//! and the smallest value. A grid search picks the alpha with the least error in the matmul
//! results, each relative to its mean square.

use super::format::{Bits, QuantError, decode};
use super::hessian::Hessian;
use super::method::{ByGroup, ColumnMethod, Method, Scratch};
use super::packed::Column;
use crate::parallel;

/// Number of steps for alpha, from 0 to 1.
const STEPS: usize = 20;
/// Scales stay between this and its inverse.
const LIMIT: f32 = 1e-2;

/// Sampled columns of a weight that reads the inputs.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// Format of the weight.
    pub bits: Bits,
    pub group: usize,
    /// Columns, one after the other.
    pub columns: &'a [f32],
}

/// Result of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct Scaling {
    /// Scales of the rows of the weights.
    pub factors: Vec<f32>,
    /// The exponent; 0 if scaling does not help.
    pub alpha: f32,
    /// Sum of the relative mean squared errors of the matmuls, with scaling and without.
    pub loss: (f64, f64),
}

/// The scales for each input of the matmuls of `samples`, with the given Hessian and groups fitted
/// by `method`. Returns errors of the method. Without calibration rows all scales are 1.
pub fn search(hessian: &Hessian, samples: &[Sample<'_>], method: Method) -> Result<Scaling, QuantError> {
    let squares = hessian.mean_squares();
    let energies: Vec<f64> = samples.iter().map(|s| hessian.output_error(s.columns)).collect();
    let alpha = |step: usize| step as f32 / STEPS as f32;
    let loss = |(): &mut (), step: usize| {
        let factors = factors(&squares, alpha(step));
        let importance = importance(&squares, &factors);
        let mut loss = 0.0;
        for (sample, energy) in samples.iter().zip(&energies) {
            let errors = errors(sample, &factors, &importance, method)?;
            if *energy > 0.0 {
                loss += hessian.output_error(&errors) / energy;
            }
        }
        Ok(loss)
    };
    let mut losses = [0.0; STEPS + 1];
    parallel::for_each(
        parallel::cores(),
        losses.len(),
        || (),
        loss,
        |step, loss| losses[step] = loss,
    )?;
    let plain = losses[0];
    // On ties, the smallest exponent.
    let best = (0..losses.len()).fold(
        0,
        |best, step| if losses[step] < losses[best] { step } else { best },
    );
    Ok(Scaling {
        factors: factors(&squares, alpha(best)),
        alpha: alpha(best),
        loss: (losses[best], plain),
    })
}

/// Powers of the roots, normalized so that the geometric mean of the largest and the smallest is 1.
fn factors(squares: &[f32], alpha: f32) -> Vec<f32> {
    let most = squares.iter().copied().fold(0.0, f32::max);
    if most == 0.0 || alpha == 0.0 {
        return vec![1.0; squares.len()];
    }
    let powers: Vec<f32> = squares
        .iter()
        .map(|s| {
            (s / most)
                .max(f32::MIN_POSITIVE)
                .sqrt()
                .powf(alpha)
                .max(LIMIT * LIMIT)
        })
        .collect();
    let least = powers.iter().copied().fold(1.0, f32::min);
    let middle = least.sqrt();
    powers.iter().map(|p| p / middle).collect()
}

/// The mean squares of the inputs after division by the scales.
pub fn importance(squares: &[f32], factors: &[f32]) -> Vec<f32> {
    squares.iter().zip(factors).map(|(s, f)| s / (f * f)).collect()
}

/// Differences between the given columns and the scaled and rounded ones, after undoing the
/// scaling.
fn errors(
    sample: &Sample<'_>,
    factors: &[f32],
    importance: &[f32],
    method: Method,
) -> Result<Vec<f32>, QuantError> {
    let method = ByGroup {
        method,
        importance: Some(importance),
    };
    let (mut scratch, mut made) = (Scratch::default(), Column::default());
    let mut out = Vec::with_capacity(sample.columns.len());
    let mut scaled = Vec::with_capacity(factors.len());
    for column in sample.columns.chunks_exact(factors.len().max(1)) {
        scaled.clear();
        scaled.extend(column.iter().zip(factors).map(|(w, f)| w * f));
        made.scales.clear();
        made.codes.clear();
        method.column(sample.bits, sample.group, &scaled, &mut scratch, &mut made)?;
        for (i, ((w, f), code)) in column.iter().zip(factors).zip(&made.codes).enumerate() {
            let [scale, bias] = made.scales[i / sample.group];
            out.push(w - decode(sample.bits, scale, bias, *code) / f);
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: usize = 64;

    fn wave(count: usize, by: f32) -> Vec<f32> {
        (0..count).map(|i| (i as f32 * by).sin()).collect()
    }

    /// Inputs of which two are much larger than the others.
    fn uneven() -> Hessian {
        let mut m = Hessian::new(K);
        let mut rows = wave(K * 50, 1.7);
        for row in rows.chunks_mut(K) {
            row[5] *= 60.0;
            row[40] *= 30.0;
        }
        m.add(&rows).unwrap();
        m
    }

    #[test]
    fn large_inputs_get_finer_weights() {
        let weights = wave(K * 16, 0.77);
        let sample = Sample {
            bits: Bits::Four,
            group: 32,
            columns: &weights,
        };
        for method in [Method::Rtn, Method::Mse] {
            let found = search(&uneven(), &[sample], method).unwrap();
            let (ours, plain) = found.loss;
            assert!(
                found.alpha > 0.0 && ours < 0.8 * plain,
                "{method:?}: {ours} {plain}"
            );
            let others = found
                .factors
                .iter()
                .enumerate()
                .filter(|(i, _)| ![5, 40].contains(i));
            let most = others.map(|(_, f)| *f).fold(0.0, f32::max);
            assert!(found.factors[5] > found.factors[40] && found.factors[40] > most);
            // The loss is that of the scaled weights on the scaled inputs.
            let m = uneven();
            let importance = importance(&m.mean_squares(), &found.factors);
            let errors = errors(&sample, &found.factors, &importance, method).unwrap();
            assert_eq!(m.output_error(&errors) / m.output_error(&weights), ours);
        }
    }

    #[test]
    fn inputs_of_one_size_need_no_scaling() {
        let mut m = Hessian::new(K);
        for i in 0..K {
            let mut row = vec![0.0; K];
            row[i] = 3.0;
            m.add(&row).unwrap();
        }
        let weights = wave(K * 4, 0.77);
        let sample = Sample {
            bits: Bits::Four,
            group: 64,
            columns: &weights,
        };
        for m in [m, Hessian::new(K)] {
            let found = search(&m, &[sample], Method::Mse).unwrap();
            assert_eq!((found.alpha, found.factors), (0.0, vec![1.0; K]));
        }
    }

    #[test]
    fn factors_stay_in_their_range() {
        for alpha in [0.0, 0.3, 1.0] {
            let f = factors(&[0.0, 1e-30, 1.0, 1e12], alpha);
            assert!(
                f.iter().all(|f| (LIMIT / 1.01..=1.01 / LIMIT).contains(f)),
                "{f:?}"
            );
            assert!((f[0] * f[3] - 1.0).abs() < 1e-3);
        }
    }
}
