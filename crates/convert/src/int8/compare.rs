//! Compares the quantized model with the float one: signal-to-noise ratios of layers and outputs.

use super::observe::{Seen, Watched, floats};
use super::rounding::Layout;
use super::{CalibrationSet, Open, Step, Tell};
use serde::Serialize;
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
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Channel {
    /// Index of the channel.
    #[serde(rename = "channel")]
    pub index: usize,
    /// Its signal-to-noise ratio in dB.
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

/// Noise of an output over the compared items.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OutputNoise {
    /// Name of the output.
    pub name: String,
    /// Median SNR of the compared items in dB.
    pub median_snr: f64,
    /// Lowest SNR of a compared item in dB.
    pub lowest_snr: f64,
    /// Number of compared items whose largest element is at the same position as in the float
    /// model; null if the output has several rows.
    pub same_largest: Option<usize>,
    /// Layer with the lowest SNR among the last quantized layers before the output (no other
    /// quantized layer in between).
    pub last_layer: Option<LastLayer>,
}

/// One of the last quantized layers before an output.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LastLayer {
    /// Its name in `layers`.
    pub name: String,
    /// Signal-to-noise ratio of its result in dB.
    pub snr: f64,
}

/// Ratios of an output.
#[derive(Clone, Debug, Default)]
struct Ratios {
    /// One for each item.
    all: Vec<f64>,
    /// Items with the same largest element, and items with a single row.
    same_largest: usize,
    single_rows: usize,
}

impl Ratios {
    fn add(&mut self, (float, quantized, shape): &Pair) {
        let mut one = Noise::default();
        one.add(float, quantized, |_| 0);
        self.all.push(one.snr());
        let single = shape.iter().all(|n| *n == 1 || *n == float.len());
        self.single_rows += usize::from(single);
        self.same_largest += usize::from(single && largest(float) == largest(quantized));
    }

    fn noise(mut self, name: String) -> OutputNoise {
        self.all.sort_by(f64::total_cmp);
        OutputNoise {
            name,
            median_snr: self.all.get(self.all.len() / 2).copied().unwrap_or_default(),
            lowest_snr: self.all.first().copied().unwrap_or_default(),
            same_largest: (self.single_rows == self.all.len()).then_some(self.same_largest),
            last_layer: None,
        }
    }
}

/// Result of [`compare`].
pub(super) struct Compared {
    /// By name of a value.
    pub values: BTreeMap<String, Noise>,
    pub outputs: Vec<OutputNoise>,
}

/// A value that is watched, and whether its channels are at axis 1; else they are at the last one.
pub(super) type Layered = (String, bool);

/// Runs the models over the first `items` of the set. `values` are compared between `folded` and
/// `quantized`, by name; outputs between the source and `quantized`.
pub(super) fn compare(
    (source, folded, quantized): (&Graph, &Graph, Graph),
    values: &[Layered],
    (set, items): (&CalibrationSet<'_>, usize),
    open: &Open<'_>,
    tell: Tell<'_>,
) -> Result<Compared> {
    let outputs: Vec<String> = source
        .outputs()
        .iter()
        .map(|v| source.value(*v).name.clone())
        .collect();
    let names: Vec<String> = values.iter().map(|(name, _)| name.clone()).collect();
    let mut noise: BTreeMap<String, Noise> = BTreeMap::new();
    let mut ratios = vec![Ratios::default(); outputs.len()];
    let items = items.min(set.names.len());
    let mut original = Watched::new(source.clone(), &[], open)?;
    let mut left = Watched::new(folded.clone(), &names, open)?;
    let mut right = Watched::new(quantized, &names, open)?;
    for i in 0..items {
        tell(Step::Compare, i, items);
        let (float, quantized) = (left.run(set, i)?, right.run(set, i)?);
        for (name, second) in values {
            if let Some((f, q, shape)) = pair(&float, &quantized, name)? {
                let layout = Layout::of(&shape, *second);
                let of = |i: usize| layout.place(i).0;
                noise.entry(name.clone()).or_default().add(&f, &q, of);
            }
        }
        let exact = original.run(set, i)?;
        for (name, found) in outputs.iter().zip(&mut ratios) {
            if let Some(pair) = pair(&exact, &quantized, name)? {
                found.add(&pair);
            }
        }
    }
    let outputs = outputs.into_iter().zip(ratios);
    let outputs = outputs.filter(|(_, found)| !found.all.is_empty());
    Ok(Compared {
        values: noise,
        outputs: outputs.map(|(name, found)| found.noise(name)).collect(),
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

    #[test]
    fn the_largest_element_counts_in_single_rows() {
        let row = |shape: &[usize]| (vec![1.0, 3.0], vec![1.0, 2.0], shape.to_vec());
        let noise = |shapes: &[&[usize]]| {
            let mut ratios = Ratios::default();
            shapes.iter().for_each(|shape| ratios.add(&row(shape)));
            ratios.noise("scores".to_owned())
        };
        assert_eq!(noise(&[&[1, 2], &[1, 2, 1]]).same_largest, Some(2));
        assert_eq!(noise(&[&[1, 2], &[2, 1, 1]]).same_largest, Some(2));
        assert_eq!(noise(&[&[1, 2], &[1, 1, 2]]).median_snr, decibels(10.0, 1.0));
        let two = (vec![1.0; 4], vec![1.0; 4], vec![2, 2]);
        let mut ratios = Ratios::default();
        ratios.add(&two);
        assert_eq!(ratios.noise("boxes".to_owned()).same_largest, None);
    }
}
