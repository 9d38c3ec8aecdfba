//! Chooses the formats of weights under a budget of bits.
//!
//! Each weight is measured in each format that fits it; output head and embeddings only in wide
//! enough ones. The measure is the relative squared error of the matmul's results, `e^T H e` over
//! `w^T H w` with the Hessian H of its inputs, if a calibration computed H. Otherwise it is the
//! relative squared error of the weight, which is the same for independent inputs of equal
//! variance. Relative errors of consecutive matmuls add up. Starting from the smallest formats, the
//! budget is spent step by step on the weight where a byte saves most error. Formats worse than a
//! mixture of a smaller and a larger one are skipped.

use super::Options;
use super::weight::{Elements, Weight, sample};
use transformer_lite::unstable::error::{Error, Result};
use transformer_lite::unstable::parallel;
use transformer_lite::unstable::quant::{
    Bits, ByGroup, Hessian, Loss, Method, Packed, QuantError, group_size,
};

/// Number of columns of a weight that are measured.
const SAMPLE: usize = 32;
/// Group sizes to try, up to the requested one.
const GROUPS: [usize; 2] = [32, 64];

/// A format for a weight, with size and error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Choice {
    pub bits: Bits,
    pub group: usize,
    /// Bytes of quantized values and scales.
    pub bytes: u64,
    /// Squared error of the results relative to their squares, or of the weights relative to
    /// theirs.
    pub error: f64,
}

/// Measures a weight, with the Hessian of its inputs if known, in each format that fits it, from
/// the smallest to the largest. Drops formats that are not smaller and not better than another one,
/// or that a mixture of two others beats.
pub(super) fn measure(
    elements: Elements<'_>,
    w: &Weight,
    options: &Options,
    hessian: Option<&Hessian>,
) -> std::result::Result<Vec<Choice>, QuantError> {
    // The layout requires an even number.
    let columns = sample(elements, w, SAMPLE.min(w.n));
    let mut groups: Vec<usize> = GROUPS
        .into_iter()
        .filter(|g| *g < options.group_size)
        .chain([options.group_size])
        .map(|g| group_size(g, w.k))
        .collect();
    groups.dedup();
    let formats: Vec<(Bits, usize)> = Bits::ALL
        .into_iter()
        .filter(|b| w.k.is_multiple_of(b.k_step()) && (!w.head || *b >= options.head_bits))
        .flat_map(|b| groups.iter().map(move |g| (b, *g)))
        .collect();
    let importance = hessian.map(Hessian::mean_squares);
    let all = hessian.map_or(0.0, |h| h.output_error(&columns));
    let error = |(): &mut (), i: usize| {
        let (bits, group) = formats[i];
        let method = ByGroup {
            method: Method::Mse,
            importance: importance.as_deref(),
        };
        let (packed, loss) = Packed::from_columns(bits, group, w.k, &columns, &method)?;
        let Some(hessian) = hessian.filter(|_| all > 0.0) else {
            return Ok(Loss::relative_rms(&loss).powi(2));
        };
        let errors = columns.iter().enumerate();
        let errors: Vec<f32> = errors.map(|(at, v)| v - packed.get(at % w.k, at / w.k)).collect();
        Ok(hessian.output_error(&errors) / all)
    };
    let mut errors = vec![0.0; formats.len()];
    parallel::for_each(
        parallel::cores(),
        formats.len(),
        || (),
        error,
        |i, e| errors[i] = e,
    )?;
    let choices = formats.iter().zip(errors).map(|((bits, group), error)| {
        let bytes = (bits.rows(w.k) + w.k.div_ceil(*group)) * w.n * 4;
        Choice {
            bits: *bits,
            group: *group,
            bytes: bytes as u64,
            error,
        }
    });
    Ok(hull(choices.collect()))
}

/// The lower convex hull of error over bytes.
fn hull(mut choices: Vec<Choice>) -> Vec<Choice> {
    choices.sort_by(|a, b| a.bytes.cmp(&b.bytes).then(a.error.total_cmp(&b.error)));
    let mut out: Vec<Choice> = Vec::new();
    for c in choices {
        if out
            .last()
            .is_some_and(|l| c.bytes == l.bytes || c.error >= l.error)
        {
            continue;
        }
        while let [.., a, b] = out[..] {
            if saving(&a, &b) > saving(&b, &c) {
                break;
            }
            out.pop();
        }
        out.push(c);
    }
    out
}

/// Error saved per additional byte by the larger of two.
#[expect(clippy::cast_precision_loss, reason = "sizes of files")]
fn saving(small: &Choice, large: &Choice) -> f64 {
    (small.error - large.error) / (large.bytes - small.bytes) as f64
}

/// The choice for each weight. `sizes` are their numbers of elements, `budget` is the average
/// number of bits per element. Fails if even the smallest formats need more.
#[expect(clippy::cast_precision_loss, reason = "sizes of files")]
pub(super) fn spend(ladders: &[Vec<Choice>], sizes: &[usize], budget: f64) -> Result<Vec<Choice>> {
    let weights: usize = sizes.iter().sum();
    let mut at = vec![0usize; ladders.len()];
    let mut spent: u64 = ladders.iter().filter_map(|l| l.first()).map(|c| c.bytes).sum();
    let most = budget * weights as f64 / 8.0;
    if spent as f64 > most {
        let least = spent as f64 * 8.0 / weights.max(1) as f64;
        let what = format!(
            "{budget} bits per weight are too few: the smallest formats need {:.3} with output head \
             and embeddings at --head-bits; raise --bits or lower --head-bits",
            (least * 1000.0).ceil() / 1000.0
        );
        return Err(Error::usage("bits", what));
    }
    loop {
        let steps = ladders
            .iter()
            .zip(&at)
            .enumerate()
            .filter_map(|(i, (ladder, at))| {
                let (now, next) = (ladder.get(*at)?, ladder.get(at + 1)?);
                let fits = (spent + next.bytes - now.bytes) as f64 <= most;
                fits.then(|| (i, saving(now, next), next.bytes - now.bytes))
            });
        let Some((i, _, bytes)) = steps.reduce(|a, b| if b.1 > a.1 { b } else { a }) else {
            break;
        };
        at[i] += 1;
        spent += bytes;
    }
    Ok(ladders
        .iter()
        .zip(at)
        .filter_map(|(ladder, at)| ladder.get(at).copied())
        .collect())
}

#[cfg(test)]
mod tests;
