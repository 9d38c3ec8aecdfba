//! Compares the quantized model with the float one: signal-to-noise ratios of layers and outputs.

use super::observe::{Seen, Watched, floats};
use super::{CalibrationSet, Open, Step, Tell};
use std::collections::BTreeMap;
use transformer_lite::unstable::error::Result;
use transformer_lite::unstable::graph::Graph;

/// Upper bound of signal-to-noise ratios in dB, also used where there is no noise.
pub const MOST_DECIBELS: f64 = 200.0;

/// Ten times the logarithm of the ratio of two sums of squares.
pub(super) fn decibels(signal: f64, noise: f64) -> f64 {
    if noise == 0.0 {
        return MOST_DECIBELS;
    }
    (10.0 * (signal / noise).log10()).clamp(-MOST_DECIBELS, MOST_DECIBELS)
}

/// A channel and its signal-to-noise ratio in dB.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Channel {
    pub index: usize,
    pub snr: f64,
}

/// Sums of squares of a value and of its errors, by channel.
#[derive(Clone, Debug, Default)]
pub(super) struct Noise {
    channels: Vec<(f64, f64)>,
}

impl Noise {
    /// Adds elements; `channel` returns the channel of an element.
    pub fn add(&mut self, float: &[f32], quantized: &[f32], channel: impl Fn(usize) -> usize) {
        for (i, (f, q)) in float.iter().zip(quantized).enumerate() {
            let c = channel(i);
            if self.channels.len() <= c {
                self.channels.resize(c + 1, (0.0, 0.0));
            }
            if let Some(sums) = self.channels.get_mut(c) {
                let (f, q) = (f64::from(*f), f64::from(*q));
                *sums = (sums.0 + f * f, sums.1 + (f - q) * (f - q));
            }
        }
    }

    /// The ratio over all channels.
    pub fn snr(&self) -> f64 {
        let sums = self
            .channels
            .iter()
            .fold((0.0, 0.0), |a, c| (a.0 + c.0, a.1 + c.1));
        decibels(sums.0, sums.1)
    }

    /// The channel with the lowest ratio, not counting those that are always 0.
    pub fn worst(&self) -> Option<Channel> {
        let live = self.channels.iter().enumerate().filter(|(_, c)| c.0 > 0.0);
        let all = live.map(|(index, c)| Channel {
            index,
            snr: decibels(c.0, c.1),
        });
        all.min_by(|a, b| a.snr.total_cmp(&b.snr))
    }
}

/// Signal-to-noise ratios of an output over the compared items, in dB.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputNoise {
    pub name: String,
    /// The median over items.
    pub median_snr: f64,
    /// The lowest ratio of an item.
    pub lowest_snr: f64,
    /// Number of items whose largest element is at the same position in both models.
    pub same_largest: usize,
}

/// Result of [`compare`].
pub(super) struct Compared {
    /// By name of a value.
    pub values: BTreeMap<String, Noise>,
    pub outputs: Vec<OutputNoise>,
}

/// Runs both models over the first `items` of the set. `values` are watched in both, by name.
pub(super) fn compare(
    (float, quantized): (&Graph, Graph),
    values: &[String],
    (set, items): (&CalibrationSet<'_>, usize),
    open: &Open<'_>,
    tell: Tell<'_>,
) -> Result<Compared> {
    let outputs: Vec<String> = float
        .outputs()
        .iter()
        .map(|v| float.value(*v).name.clone())
        .collect();
    let mut noise: BTreeMap<String, Noise> = BTreeMap::new();
    let mut ratios: Vec<(Vec<f64>, usize)> = vec![(Vec::new(), 0); outputs.len()];
    let items = items.min(set.names.len());
    let mut left = Watched::new(float.clone(), values, open)?;
    let mut right = Watched::new(quantized, values, open)?;
    for i in 0..items {
        tell(Step::Compare, i, items);
        let (float, quantized) = (left.run(set, i)?, right.run(set, i)?);
        for name in values {
            if let Some((f, q, shape)) = pair(&float, &quantized, name)? {
                let axis = if shape.len() > 2 && shape.len() != 3 {
                    1
                } else {
                    shape.len().saturating_sub(1)
                };
                let inner = shape.iter().skip(axis + 1).product::<usize>().max(1);
                let channels = shape.get(axis).copied().unwrap_or(1).max(1);
                let of = |i: usize| i / inner % channels;
                noise.entry(name.clone()).or_default().add(&f, &q, of);
            }
        }
        for (name, found) in outputs.iter().zip(&mut ratios) {
            if let Some((f, q, _)) = pair(&float, &quantized, name)? {
                let mut one = Noise::default();
                one.add(&f, &q, |_| 0);
                found.0.push(one.snr());
                found.1 += usize::from(largest(&f) == largest(&q));
            }
        }
    }
    let outputs = outputs
        .into_iter()
        .zip(ratios)
        .filter(|(_, (r, _))| !r.is_empty());
    Ok(Compared {
        values: noise,
        outputs: outputs
            .map(|(name, (mut ratios, same_largest))| {
                ratios.sort_by(f64::total_cmp);
                OutputNoise {
                    name,
                    median_snr: ratios.get(ratios.len() / 2).copied().unwrap_or_default(),
                    lowest_snr: ratios.first().copied().unwrap_or_default(),
                    same_largest,
                }
            })
            .collect(),
    })
}

type Pair = (Vec<f32>, Vec<f32>, Vec<usize>);

/// A float value of both runs, with its shape.
fn pair(float: &Seen, quantized: &Seen, name: &str) -> Result<Option<Pair>> {
    let (Some(f), Some(q)) = (float.get(name), quantized.get(name)) else {
        return Ok(None);
    };
    if !f.dtype().is_float() || !q.dtype().is_float() {
        return Ok(None);
    }
    let shape = f.shape().to_vec();
    Ok(Some((
        floats(f, name)?.into_owned(),
        floats(q, name)?.into_owned(),
        shape,
    )))
}

/// The index of the largest element.
fn largest(values: &[f32]) -> Option<usize> {
    let all = values.iter().enumerate();
    all.max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)))
        .map(|(i, _)| i)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_and_the_worst_channel() {
        let mut n = Noise::default();
        n.add(&[1.0, 10.0, 0.0, 1.0], &[1.1, 10.0, 0.0, 1.0], |i| i);
        let worst = n.worst().unwrap();
        assert_eq!(worst.index, 0);
        assert!((worst.snr - 20.0).abs() < 0.01, "{}", worst.snr);
        assert!((n.snr() - 40.086).abs() < 0.01, "{}", n.snr());
        assert_eq!(decibels(0.0, 0.0), MOST_DECIBELS);
        assert_eq!(largest(&[1.0, 3.0, 3.0]), Some(1));
    }
}
