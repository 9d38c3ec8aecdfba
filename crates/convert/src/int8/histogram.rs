//! A histogram whose range grows with its values.

/// Number of bins of a histogram; a multiple of 4. The value with the largest magnitude is in the
/// lowest or highest quarter, so each of the 256 steps of a quantized range has at least 16 bins.
const BINS: usize = 16384;

/// Counts of values, in bins of equal width around 0. The width is a power of two, so that the
/// result does not depend on the order of the values.
#[derive(Clone, Debug, Default)]
pub(super) struct Histogram {
    /// Bins cover `-reach` to `reach`.
    reach: f64,
    counts: Vec<u64>,
    /// Number of zeros, which every quantized range represents exactly.
    zeros: u64,
}

/// The center of a bin and the number of its values.
pub(super) type Bin = (f64, f64);

impl Histogram {
    /// Counts finite values.
    pub fn add(&mut self, values: &[f32]) {
        let most = values.iter().fold(0f32, |m, v| m.max(v.abs()));
        self.grow(f64::from(most));
        if self.counts.is_empty() {
            self.zeros += values.len() as u64;
            return;
        }
        #[expect(clippy::cast_precision_loss, reason = "a power of two")]
        let scale = BINS as f64 / (2.0 * self.reach);
        for v in values {
            if *v == 0.0 {
                self.zeros += 1;
                continue;
            }
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "from 0 to BINS"
            )]
            let bin = ((f64::from(*v) + self.reach) * scale) as usize;
            if let Some(count) = self.counts.get_mut(bin.min(BINS - 1)) {
                *count += 1;
            }
        }
    }

    /// Doubles the reach until it covers `most`.
    fn grow(&mut self, most: f64) {
        if most == 0.0 {
            return;
        }
        if self.counts.is_empty() {
            self.reach = most.log2().ceil().exp2();
            self.counts = vec![0; BINS];
        }
        while self.reach < most {
            self.reach *= 2.0;
            let old = std::mem::replace(&mut self.counts, vec![0; BINS]);
            for (i, pair) in old.chunks_exact(2).enumerate() {
                if let Some(count) = self.counts.get_mut(BINS / 4 + i) {
                    *count = pair.iter().sum();
                }
            }
        }
    }

    /// Bins with values, in ascending order, and the number of zeros.
    #[expect(clippy::cast_precision_loss, reason = "counts of values")]
    pub fn bins(&self) -> (Vec<Bin>, f64) {
        let width = 2.0 * self.reach / BINS as f64;
        let center = |i: usize| (i as f64 + 0.5) * width - self.reach;
        let filled = self.counts.iter().enumerate().filter(|(_, n)| **n > 0);
        (
            filled.map(|(i, n)| (center(i), *n as f64)).collect(),
            self.zeros as f64,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_do_not_depend_on_the_order_of_values() {
        let values: Vec<f32> = (1..2000)
            .map(|i| (i as f32 * 0.37).sin() * i as f32 / 100.0)
            .collect();
        let count = |values: &[f32], chunk| {
            let mut h = Histogram::default();
            values.chunks(chunk).for_each(|c| h.add(c));
            h.bins()
        };
        let forward = count(&values, 7);
        let backward: Vec<f32> = values.iter().rev().copied().collect();
        assert_eq!(forward, count(&backward, 100));
        let total: f64 = forward.0.iter().map(|b| b.1).sum();
        assert_eq!(total + forward.1, 1999.0);
    }

    #[test]
    fn zeros_are_counted_apart() {
        let mut h = Histogram::default();
        h.add(&[0.0, 0.0]);
        assert_eq!(h.bins(), (Vec::new(), 2.0));
        h.add(&[1.0, 0.0, -0.25]);
        let (bins, zeros) = h.bins();
        assert_eq!((bins.len(), zeros), (2, 3.0));
        assert!((bins[0].0 + 0.25).abs() < 1e-3 && (bins[1].0 - 1.0).abs() < 1e-3);
    }
}
