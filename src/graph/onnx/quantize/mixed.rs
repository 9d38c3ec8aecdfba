//! Formats for the weights of a model under a budget of bits.
//!
//! Each weight is measured in each format that fits it. What counts is its relative squared error: a product's relative error is about
//! that of its weight, and products follow one another. From the smallest formats on, the budget goes step by step to the weight where
//! a byte saves most error; a format that is worse than a mixture of a smaller and a larger one is skipped.

use super::Options;
use super::panels::{Elements, sample};
use super::plan::Weight;
use crate::error::{Error, Result};
use crate::quant::{Bits, ByGroup, Method, Packed, QuantError, group_size};

/// Columns of a weight that are measured.
const SAMPLE: usize = 32;
/// Group sizes that are tried, up to the one asked for.
const GROUPS: [usize; 2] = [32, 64];

/// A format for a weight, and what it costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Choice {
    pub bits: Bits,
    pub group: usize,
    /// Bytes of codes and scales.
    pub bytes: u64,
    /// Squared errors by squared weights, both by importance.
    pub error: f64,
}

/// Measures a weight in each format that fits it, from the smallest to the largest, without those that another is no larger
/// than and no worse, or that a mixture of two others beats.
pub(super) fn measure(
    elements: Elements<'_>,
    w: &Weight,
    options: &Options,
    importance: Option<&[f32]>,
) -> std::result::Result<Vec<Choice>, QuantError> {
    // An even number, as the layout asks for.
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
        .filter(|b| w.k.is_multiple_of(b.k_step()))
        .flat_map(|b| groups.iter().map(move |g| (b, *g)))
        .collect();
    let error = |(bits, group): (Bits, usize)| {
        let method = ByGroup {
            method: Method::Mse,
            importance,
        };
        let (packed, _) = Packed::from_columns(bits, group, w.k, &columns, &method)?;
        let (mut off, mut all) = (0f64, 0f64);
        for (j, column) in columns.chunks_exact(w.k).enumerate() {
            for (i, v) in column.iter().enumerate() {
                let h = f64::from(importance.and_then(|h| h.get(i)).map_or(1.0, |h| *h));
                off += h * f64::from(v - packed.get(i, j)).powi(2);
                all += h * f64::from(*v).powi(2);
            }
        }
        Ok(if all > 0.0 { off / all } else { 0.0 })
    };
    // A thread a format; the result is in their order.
    let errors: Vec<std::result::Result<f64, QuantError>> = std::thread::scope(|scope| {
        let threads: Vec<_> = formats.iter().map(|f| scope.spawn(move || error(*f))).collect();
        threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    let mut choices = Vec::with_capacity(formats.len());
    for ((bits, group), error) in formats.into_iter().zip(errors) {
        let bytes = (bits.rows(w.k) + w.k.div_ceil(group)) * w.n * 4;
        choices.push(Choice {
            bits,
            group,
            bytes: bytes as u64,
            error: error?,
        });
    }
    Ok(hull(choices))
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

/// Error saved a byte by the larger of two.
#[expect(clippy::cast_precision_loss, reason = "sizes of files")]
fn saving(small: &Choice, large: &Choice) -> f64 {
    (small.error - large.error) / (large.bytes - small.bytes) as f64
}

/// The choice for each weight; `sizes` are the numbers of their elements, `budget` the mean bits of one. An error where even the smallest
/// formats take more.
#[expect(clippy::cast_precision_loss, reason = "sizes of files")]
pub(super) fn spend(ladders: &[Vec<Choice>], sizes: &[usize], budget: f64) -> Result<Vec<Choice>> {
    let weights: usize = sizes.iter().sum();
    let mut at = vec![0usize; ladders.len()];
    let mut spent: u64 = ladders.iter().filter_map(|l| l.first()).map(|c| c.bytes).sum();
    let most = budget * weights as f64 / 8.0;
    if spent as f64 > most {
        let least = spent as f64 * 8.0 / weights.max(1) as f64;
        let what = format!("{budget} bits a weight are too few; the smallest formats take {least:.3}");
        return Err(Error::usage("--bits", what));
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
mod tests {
    use super::*;

    fn choice(bits: Bits, bytes: u64, error: f64) -> Choice {
        Choice {
            bits,
            group: 32,
            bytes,
            error,
        }
    }

    #[test]
    fn the_budget_goes_where_it_saves_most() {
        use Bits::{Eight, Four, Six, Two};
        let sensitive = hull(vec![
            choice(Two, 20, 9.0),
            choice(Four, 40, 1.0),
            choice(Eight, 80, 0.1),
        ]);
        // Six bits are worse than the mean of four and eight: never chosen.
        let robust = hull(vec![
            choice(Two, 20, 1.0),
            choice(Eight, 80, 0.01),
            choice(Six, 60, 0.29),
            choice(Four, 40, 0.3),
        ]);
        assert_eq!(
            robust.iter().map(|c| c.bits).collect::<Vec<_>>(),
            [Two, Four, Eight]
        );
        let ladders = [sensitive, robust];
        let chosen = |budget| {
            let all = spend(&ladders, &[80, 80], budget).unwrap();
            let bytes: u64 = all.iter().map(|c| c.bytes).sum();
            assert!(bytes as f64 * 8.0 <= budget * 160.0);
            [all[0].bits, all[1].bits]
        };
        assert_eq!(chosen(2.0), [Two, Two]);
        assert_eq!(chosen(3.0), [Four, Two]);
        assert_eq!(chosen(4.0), [Four, Four]);
        assert_eq!(chosen(6.0), [Eight, Four]);
        assert_eq!(chosen(100.0), [Eight, Eight]);
        let e = spend(&ladders, &[80, 80], 1.9).unwrap_err();
        assert!(e.is_usage() && e.to_string().contains("2.000"), "{e}");
    }
}
