//! From observed values to the range that 8 bits cover.

use super::histogram::{Bin, Histogram};
use transformer_lite::unstable::quant::fixed::Affine;

/// How the range of an activation is derived from the values in the calibration set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RangeMethod {
    /// The smallest and largest of all values.
    MinMax,
    /// The exponential moving average of the smallest and largest value of each item.
    MovingAverage,
    /// The range that holds this share of the values, in percent; both tails lose the same share.
    Percentile(f64),
    /// The range with the smallest mean squared error.
    Mse,
    /// The range whose quantized distribution differs least from the original one (Kullback-Leibler
    /// divergence).
    Entropy,
}

impl RangeMethod {
    /// The name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::MinMax => "min-max",
            Self::MovingAverage => "moving-average",
            Self::Percentile(_) => "percentile",
            Self::Mse => "mse",
            Self::Entropy => "entropy",
        }
    }

    /// Whether it needs a histogram, not only the extremes.
    fn counts(self) -> bool {
        matches!(self, Self::Percentile(_) | Self::Mse | Self::Entropy)
    }
}

/// Weight of the old average when an item is added. Calibration sets have about a hundred items.
const DECAY: f64 = 0.95;
/// Candidates for an end of a range are multiples of 1/64 of the extreme value, from 8/64 on.
const STEPS: u8 = 64;
const FIRST_STEP: u8 = 8;

/// The smallest and largest integer of activations.
pub(super) const LEAST: i32 = -128;
pub(super) const MOST: i32 = 127;

/// Statistics of the values of one range.
#[derive(Clone, Debug)]
pub(super) struct Observer {
    low: f32,
    high: f32,
    averages: Option<(f64, f64)>,
    histogram: Option<Histogram>,
}

impl Observer {
    pub fn new(method: RangeMethod) -> Self {
        Self {
            low: f32::INFINITY,
            high: f32::NEG_INFINITY,
            averages: None,
            histogram: method.counts().then(Histogram::default),
        }
    }

    /// Adds the tensors of an item. Fails with the first value that is not finite.
    pub fn add(&mut self, tensors: &[&[f32]]) -> Result<(), f32> {
        let values = || tensors.iter().flat_map(|t| t.iter());
        let (mut low, mut high) = (f32::INFINITY, f32::NEG_INFINITY);
        for v in values() {
            if !v.is_finite() {
                return Err(*v);
            }
            low = low.min(*v);
            high = high.max(*v);
        }
        if low > high {
            return Ok(());
        }
        self.low = self.low.min(low);
        self.high = self.high.max(high);
        let (low, high) = (f64::from(low), f64::from(high));
        self.averages = Some(match self.averages {
            None => (low, high),
            Some((l, h)) => (DECAY * l + (1.0 - DECAY) * low, DECAY * h + (1.0 - DECAY) * high),
        });
        if let Some(histogram) = &mut self.histogram {
            tensors.iter().for_each(|t| histogram.add(t));
        }
        Ok(())
    }

    /// The extremes; `None` if there were no values.
    pub fn extremes(&self) -> Option<(f32, f32)> {
        (self.low <= self.high).then_some((self.low, self.high))
    }

    /// The range to quantize; `None` if there were no values.
    pub fn range(&self, method: RangeMethod, symmetric: bool) -> Option<(f32, f32)> {
        let (low, high) = self.extremes()?;
        // Ranges contain 0.
        let ends = (f64::from(low.min(0.0)), f64::from(high.max(0.0)));
        let bins = || self.histogram.as_ref().map(Histogram::bins).unwrap_or_default();
        let (low, high) = match method {
            RangeMethod::MinMax => ends,
            RangeMethod::MovingAverage => {
                let (low, high) = self.averages.unwrap_or(ends);
                (low.min(0.0), high.max(0.0))
            }
            RangeMethod::Percentile(share) => percentile(&bins(), ends, share),
            RangeMethod::Mse => {
                let (bins, _) = bins();
                search(ends, symmetric, &|low, high| {
                    squared_error(&bins, low, high, symmetric)
                })
            }
            RangeMethod::Entropy => {
                let all = bins();
                best_shrink(ends, &|low, high| divergence(&all, low, high, symmetric))
            }
        };
        #[expect(clippy::cast_possible_truncation, reason = "rounding is meant")]
        let range = (low as f32, high as f32);
        Some(range)
    }
}

/// The scale and zero point of a range; `None` if the scale is not a normal number.
pub(super) fn affine((low, high): (f32, f32), symmetric: bool) -> Option<Affine> {
    if symmetric {
        let most = high.max(-low);
        if most == 0.0 {
            return Some(Affine { scale: 1.0, zero: 0 });
        }
        return Affine::nudged(-most, most, -MOST, MOST);
    }
    Affine::nudged(low, high, LEAST, MOST)
}

/// [`affine`] in `f64`, for candidate ranges: scale and zero point.
fn candidate(low: f64, high: f64, symmetric: bool) -> Option<(f64, f64)> {
    let (least, most) = (f64::from(LEAST), f64::from(MOST));
    if symmetric {
        let scale = high.max(-low) / most;
        return (scale > 0.0).then_some((scale, 0.0));
    }
    let scale = (high - low) / (most - least);
    (scale > 0.0).then(|| (scale, (least - low / scale).round().clamp(least, most)))
}

/// The ends of the range that holds `share` percent of the values; both tails lose the same share.
fn percentile((bins, zeros): &(Vec<Bin>, f64), ends: (f64, f64), share: f64) -> (f64, f64) {
    let total: f64 = bins.iter().map(|b| b.1).sum::<f64>() + zeros;
    let tail = total * (100.0 - share) / 200.0;
    // The first value, walking inward, that is not in the tail. 0 ends the walk.
    let end = |sorted: &mut dyn Iterator<Item = &Bin>| {
        let mut passed = 0.0;
        for (center, count) in sorted {
            passed += count;
            if passed > tail {
                return *center;
            }
        }
        0.0
    };
    let low = end(&mut bins.iter().take_while(|b| b.0 < 0.0));
    let high = end(&mut bins.iter().rev().take_while(|b| b.0 > 0.0));
    (low.max(ends.0).min(0.0), high.min(ends.1).max(0.0))
}

/// The sum of squared errors of the binned values.
fn squared_error(bins: &[Bin], low: f64, high: f64, symmetric: bool) -> f64 {
    let Some((scale, zero)) = candidate(low, high, symmetric) else {
        return f64::INFINITY;
    };
    let (least, most) = (f64::from(LEAST), f64::from(MOST));
    let error = |(x, n): &Bin| {
        let code = ((x / scale).round() + zero).clamp(least, most);
        n * ((code - zero) * scale - x).powi(2)
    };
    bins.iter().map(error).sum()
}

/// The ends with the lowest cost: each is tried at multiples of 1/64 while the other stays fixed.
fn search(ends: (f64, f64), symmetric: bool, cost: &dyn Fn(f64, f64) -> f64) -> (f64, f64) {
    let fractions = || {
        (FIRST_STEP..=STEPS)
            .rev()
            .map(|k| f64::from(k) / f64::from(STEPS))
    };
    if symmetric {
        return best_shrink(ends, cost);
    }
    let mut best = (cost(ends.0, ends.1), ends);
    for _ in 0..2 {
        for f in fractions() {
            let (low, high) = (best.1.0, ends.1 * f);
            best = lower(best, (cost(low, high), (low, high)));
        }
        for f in fractions() {
            let (low, high) = (ends.0 * f, best.1.1);
            best = lower(best, (cost(low, high), (low, high)));
        }
    }
    best.1
}

type Costed = (f64, (f64, f64));

fn lower(a: Costed, b: Costed) -> Costed {
    if b.0 < a.0 { b } else { a }
}

/// Both ends multiplied by the fraction with the lowest cost.
fn best_shrink(ends: (f64, f64), cost: &dyn Fn(f64, f64) -> f64) -> (f64, f64) {
    let fractions = (FIRST_STEP..=STEPS)
        .rev()
        .map(|k| f64::from(k) / f64::from(STEPS));
    let costed = fractions.map(|f| (ends.0 * f, ends.1 * f));
    let costed = costed.map(|(low, high)| (cost(low, high), (low, high)));
    costed.fold((f64::INFINITY, ends), lower).1
}

/// The Kullback-Leibler divergence between the distribution of the values, clipped to a range, and
/// that distribution quantized to 256 steps.
fn divergence((bins, zeros): &(Vec<Bin>, f64), low: f64, high: f64, symmetric: bool) -> f64 {
    let Some((scale, zero)) = candidate(low, high, symmetric) else {
        return f64::INFINITY;
    };
    let (least, most) = (f64::from(LEAST), f64::from(MOST));
    let total: f64 = bins.iter().map(|b| b.1).sum::<f64>() + zeros;
    let inside: Vec<&Bin> = bins.iter().filter(|b| (low..=high).contains(&b.0)).collect();
    let (Some(first), Some(last)) = (inside.first(), inside.last()) else {
        return f64::INFINITY;
    };
    let mass = |kept: &dyn Fn(f64) -> bool| bins.iter().filter(|b| kept(b.0)).map(|b| b.1).sum::<f64>();
    let (below, above) = (mass(&|x| x < low), mass(&|x| x > high));
    // Each step spreads its values evenly over its bins.
    let mut steps = [(0.0, 0.0); 256];
    let step = |x: f64| {
        let code = ((x / scale).round() + zero).clamp(least, most);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 255")]
        let step = (code - least) as usize;
        step
    };
    for (x, n) in inside.iter().copied() {
        if let Some(s) = steps.get_mut(step(*x)) {
            *s = (s.0 + n, s.1 + 1.0);
        }
    }
    let kept = total - below - above;
    let mut sum = 0.0;
    for (x, n) in inside.iter().copied() {
        let outliers = if x == &first.0 { below } else { 0.0 } + if x == &last.0 { above } else { 0.0 };
        let (count, filled) = steps.get(step(*x)).copied().unwrap_or((0.0, 1.0));
        let (p, q) = ((n + outliers) / total, count / filled / kept);
        if p > 0.0 && q > 0.0 {
            sum += p * (p / q).ln();
        }
    }
    // Zeros are represented exactly.
    if *zeros > 0.0 {
        sum += zeros / total * (kept / total).ln();
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values like a normal distribution's, and an outlier.
    fn observed(method: RangeMethod) -> Observer {
        let mut o = Observer::new(method);
        let bell = |i: i32| {
            let u = (f64::from(i) + 0.5) / 4000.0;
            ((u / (1.0 - u)).ln() / 1.7) as f32
        };
        let values: Vec<f32> = (0..4000).map(bell).collect();
        o.add(&[&values]).unwrap();
        o.add(&[&[40.0, 0.0]]).unwrap();
        o
    }

    fn range(method: RangeMethod) -> (f32, f32) {
        observed(method).range(method, false).unwrap()
    }

    #[test]
    fn outliers_widen_extremes_but_not_the_other_ranges() {
        let (low, high) = range(RangeMethod::MinMax);
        assert!((low + 5.28).abs() < 0.1 && high == 40.0, "{low} {high}");
        let (_, high) = range(RangeMethod::MovingAverage);
        assert!(high < 10.0, "{high}");
        for method in [RangeMethod::Percentile(99.9), RangeMethod::Entropy] {
            let (low, high) = range(method);
            assert!((-6.0..-1.0).contains(&low), "{method:?} {low}");
            assert!((2.0..40.0).contains(&high), "{method:?} {high}");
        }
        // One large error outweighs many small ones.
        assert_eq!(range(RangeMethod::Mse).1, 40.0);
    }

    #[test]
    fn values_that_fit_keep_their_range() {
        for method in [
            RangeMethod::Mse,
            RangeMethod::Percentile(100.0),
            RangeMethod::Entropy,
        ] {
            let mut o = Observer::new(method);
            let even: Vec<f32> = (0..=2550).map(|i| i as f32 / 1000.0).collect();
            o.add(&[&even]).unwrap();
            let (low, high) = o.range(method, false).unwrap();
            assert_eq!(low, 0.0);
            assert!((high - 2.55).abs() < 0.08, "{method:?} {high}");
        }
    }

    #[test]
    fn values_that_are_not_finite_are_refused() {
        let mut o = Observer::new(RangeMethod::MinMax);
        assert!(o.add(&[&[1.0, f32::NAN]]).unwrap_err().is_nan());
        assert_eq!(o.add(&[&[f32::INFINITY]]), Err(f32::INFINITY));
        assert_eq!(o.range(RangeMethod::MinMax, false), None);
    }

    #[test]
    fn symmetric_ranges_have_zero_in_the_middle() {
        let a = affine((-1.0, 2.54), true).unwrap();
        assert_eq!((a.scale, a.zero), (0.02, 0));
        assert_eq!(affine((0.0, 0.0), true).map(|a| a.zero), Some(0));
        assert_eq!(affine((0.0, 2.55), false).map(|a| a.zero), Some(-128));
        assert_eq!(affine((0.0, 1e-44), false), None);
    }
}
