//! From logits to the next token.

use crate::error::{Error, Result, Stage};
use std::cmp::Ordering;

/// How tokens are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplerConfig {
    /// Divides the logits; 0 takes the most likely token always.
    pub temperature: f32,
    /// Keeps the `top_k` most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps the smallest set of most likely tokens whose probabilities sum to at least this; in (0, 1].
    pub top_p: f32,
    /// Start of the random sequence.
    pub seed: u64,
}

impl Default for SamplerConfig {
    /// Greedy.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            seed: 0,
        }
    }
}

/// SplitMix64 (Steele, Lea and Flood, 2014): a counter with a fixed step whose bits are mixed. Small, fast,
/// equal on all machines; not for secrets.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in [0, 1), a multiple of 2^-53.
    pub fn next_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Chooses tokens. Equal configurations and equal logits give equal tokens.
#[derive(Clone, Debug)]
pub struct Sampler {
    config: SamplerConfig,
    random: SplitMix64,
    /// Logit and id, then weight and id, of the tokens in question; kept to save allocations.
    candidates: Vec<(f64, u32)>,
}

impl Sampler {
    /// A sampler at the start of its random sequence. A usage error when a value is out of range.
    pub fn new(config: SamplerConfig) -> Result<Self> {
        if !(config.temperature.is_finite() && config.temperature >= 0.0) {
            let what = format!("{} is not a finite number of at least 0", config.temperature);
            return Err(Error::usage("--temperature", what));
        }
        if !(config.top_p > 0.0 && config.top_p <= 1.0) {
            return Err(Error::usage(
                "--top-p",
                format!("{} is not above 0 and at most 1", config.top_p),
            ));
        }
        Ok(Self {
            config,
            random: SplitMix64::new(config.seed),
            candidates: Vec::new(),
        })
    }

    /// The next token for a row of logits. Ties go to the smaller id. An error when a logit is NaN or
    /// plus infinity, or when none is above minus infinity.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32> {
        let (best, max) = arg_max(logits)?;
        let SamplerConfig {
            temperature,
            top_k,
            top_p,
            ..
        } = self.config;
        if temperature == 0.0 || top_k == 1 {
            return Ok(best);
        }
        let all = &mut self.candidates;
        all.clear();
        all.extend((0u32..).zip(logits).map(|(id, logit)| (f64::from(*logit), id)));
        if top_k > 0 && top_k < all.len() {
            all.select_nth_unstable_by(top_k - 1, likelier);
            all.truncate(top_k);
            all.sort_unstable_by(likelier);
        }
        let mut total = 0.0;
        for (value, _) in all.iter_mut() {
            *value = ((*value - f64::from(max)) / f64::from(temperature)).exp();
            total += *value;
        }
        if top_p < 1.0 {
            let wanted = f64::from(top_p) * total;
            // Weights below this sum to less than what the set may leave out, so none of them is in it,
            // and only few remain to be sorted.
            let floor = (total - wanted) / all.len() as f64;
            all.retain(|(weight, _)| *weight >= floor);
            all.sort_unstable_by(likelier);
            total = 0.0;
            let mut kept = 0;
            for (weight, _) in all.iter() {
                total += weight;
                kept += 1;
                if total >= wanted {
                    break;
                }
            }
            all.truncate(kept);
        }
        let mut rest = self.random.next_f64() * total;
        let mut chosen = best;
        for (weight, id) in all.iter().filter(|(weight, _)| *weight > 0.0) {
            chosen = *id;
            rest -= weight;
            if rest < 0.0 {
                break;
            }
        }
        Ok(chosen)
    }
}

fn likelier(a: &(f64, u32), b: &(f64, u32)) -> Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

/// Index and value of the first largest logit.
fn arg_max(logits: &[f32]) -> Result<(u32, f32)> {
    let mut best = None;
    let mut max = f32::NEG_INFINITY;
    for (id, &logit) in (0u32..).zip(logits) {
        if logit.is_nan() || logit == f32::INFINITY {
            return Err(Error::other(
                Stage::Text,
                format!("logit {id} of {} is {logit}", logits.len()),
            ));
        }
        if logit > max {
            max = logit;
            best = Some(id);
        }
    }
    best.map(|id| (id, max)).ok_or_else(|| {
        Error::other(
            Stage::Text,
            format!("none of {} logits is above minus infinity", logits.len()),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(config: SamplerConfig, logits: &[f32], draws: usize) -> Vec<usize> {
        let mut sampler = Sampler::new(config).unwrap();
        let mut counts = vec![0; logits.len()];
        for _ in 0..draws {
            counts[sampler.sample(logits).unwrap() as usize] += 1;
        }
        counts
    }

    fn hot() -> SamplerConfig {
        SamplerConfig {
            temperature: 1.0,
            seed: 7,
            ..SamplerConfig::default()
        }
    }

    #[test]
    fn splitmix_matches_its_reference() {
        let mut random = SplitMix64::new(1234567);
        assert_eq!(random.next_u64(), 6457827717110365317);
        assert_eq!(random.next_u64(), 3203168211198807973);
    }

    #[test]
    fn greedy_takes_the_first_of_equals() {
        let mut sampler = Sampler::new(SamplerConfig::default()).unwrap();
        assert_eq!(sampler.sample(&[0.0, 2.0, 2.0, -1.0]).unwrap(), 1);
        assert_eq!(sampler.sample(&[f32::NEG_INFINITY, -3e38]).unwrap(), 1);
        let config = SamplerConfig { top_k: 1, ..hot() };
        assert_eq!(counts(config, &[1.0, 1.0, 1.0], 100), [100, 0, 0]);
    }

    #[test]
    fn frequencies_follow_the_softmax() {
        let logits: Vec<f32> = [0.1f32, 0.2, 0.3, 0.4].iter().map(|p| p.ln() + 3.0).collect();
        let draws = 40_000;
        for (count, p) in counts(hot(), &logits, draws).iter().zip([0.1, 0.2, 0.3, 0.4]) {
            let error = (*count as f64 / draws as f64 - p).abs();
            assert!(error < 0.01, "{count} of {draws} for {p}");
        }
        let config = SamplerConfig {
            temperature: 0.5,
            ..hot()
        };
        let squares = [1.0 / 30.0, 4.0 / 30.0, 9.0 / 30.0, 16.0 / 30.0];
        for (count, p) in counts(config, &logits, draws).iter().zip(squares) {
            assert!(
                (*count as f64 / draws as f64 - p).abs() < 0.01,
                "{count} of {draws} for {p}"
            );
        }
    }

    #[test]
    fn top_k_keeps_the_likeliest_and_zero_keeps_all() {
        let logits = [1.0, 3.0, 2.0, 3.0, 0.5];
        let c = counts(SamplerConfig { top_k: 2, ..hot() }, &logits, 2000);
        assert!(c[1] > 800 && c[3] > 800 && c[0] + c[2] + c[4] == 0, "{c:?}");
        let c = counts(SamplerConfig { top_k: 3, ..hot() }, &[1.0; 6], 3000);
        assert!(
            c[..3].iter().all(|n| *n > 850) && c[3..].iter().all(|n| *n == 0),
            "ties by id: {c:?}"
        );
        for k in [0, 5, 99] {
            let c = counts(SamplerConfig { top_k: k, ..hot() }, &logits, 5000);
            assert!(c.iter().all(|n| *n > 0), "top_k {k}: {c:?}");
        }
    }

    #[test]
    fn top_p_keeps_the_smallest_sufficient_set() {
        let logits: Vec<f32> = [0.1f32, 0.5, 0.15, 0.25].iter().map(|p| p.ln()).collect();
        for (top_p, kept) in [(1e-6, 1), (0.49, 1), (0.6, 2), (0.8, 3), (0.95, 4), (1.0, 4)] {
            let c = counts(SamplerConfig { top_p, ..hot() }, &logits, 5000);
            assert_eq!(c.iter().filter(|n| **n > 0).count(), kept, "top_p {top_p}: {c:?}");
            assert!(c[1] > 0);
        }
        let c = counts(SamplerConfig { top_p: 0.5, ..hot() }, &[0.0; 8], 4000);
        assert!(
            c[..4].iter().all(|n| *n > 850) && c[4..].iter().all(|n| *n == 0),
            "ties by id: {c:?}"
        );
    }

    #[test]
    fn seeds_repeat_and_differ() {
        let logits: Vec<f32> = (0..100).map(|i| (i as f32 * 0.37).sin()).collect();
        let run = |seed| {
            let mut s = Sampler::new(SamplerConfig {
                seed,
                top_p: 0.9,
                top_k: 50,
                ..hot()
            })
            .unwrap();
            (0..50).map(|_| s.sample(&logits).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn masked_tokens_are_never_drawn() {
        let c = counts(hot(), &[f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY, 0.0], 500);
        assert_eq!((c[0], c[2]), (0, 0));
        let tiny = SamplerConfig {
            temperature: 1e-38,
            ..hot()
        };
        assert_eq!(counts(tiny, &[-3e38, 3e38, 0.0], 100), [0, 100, 0]);
    }

    #[test]
    fn bad_logits_and_values_are_errors() {
        for config in [SamplerConfig::default(), hot()] {
            let mut sampler = Sampler::new(config).unwrap();
            let e = sampler.sample(&[0.0, f32::NAN]).unwrap_err();
            assert_eq!(e.to_string(), "text: logit 1 of 2 is NaN");
            assert!(sampler.sample(&[0.0, f32::INFINITY]).is_err());
            assert!(sampler.sample(&[f32::NEG_INFINITY]).is_err());
            assert!(sampler.sample(&[]).is_err());
        }
        for (temperature, top_p, option) in [
            (-1.0, 1.0, "--temperature"),
            (f32::NAN, 1.0, "--temperature"),
            (f32::INFINITY, 1.0, "--temperature"),
            (1.0, 0.0, "--top-p"),
            (1.0, 1.5, "--top-p"),
            (1.0, f32::NAN, "--top-p"),
        ] {
            let e = Sampler::new(SamplerConfig {
                temperature,
                top_p,
                ..hot()
            })
            .unwrap_err();
            assert!(e.is_usage() && e.to_string().starts_with(option), "{e}");
        }
    }
}
