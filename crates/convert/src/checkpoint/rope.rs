//! Rotary embeddings: frequencies, and their scaling for long sequences.

use serde_json::{Value, json};
use std::f64::consts::TAU;

/// A rotary embedding: elements `i` and `i + width / 2` of a head rotate by
/// `position * frequency(i)`.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base: frequency i before scaling is `theta^(-2 i / width)`.
    pub theta: f32,
    /// Number of rotated elements, at the start of a head; even.
    pub width: usize,
    /// Scaling of the frequencies.
    pub scaling: Scaling,
    /// Additional divisors, one per frequency (`width / 2`).
    pub divisors: Option<Vec<f32>>,
    /// Factor for cosines and sines.
    pub magnitude: f32,
}

/// Scaling of frequencies, with the names and formulas of Hugging Face's library.
#[derive(Clone, Debug, PartialEq)]
pub enum Scaling {
    Default,
    /// All frequencies are divided by a factor.
    Linear {
        factor: f32,
    },
    /// Low frequencies are divided by a factor, high ones are unchanged, those between are blended.
    Llama3 {
        factor: f32,
        /// Frequencies with fewer turns in `original` tokens are low.
        low: f32,
        /// Frequencies with more turns are high.
        high: f32,
        /// Original context length of the model.
        original: f32,
    },
    /// `YaRN`: like `Llama3`, but blended by index instead of by turns.
    Yarn {
        factor: f32,
        /// Frequencies with at least this many turns are high.
        fast: f32,
        /// Frequencies with at most this many turns are low.
        slow: f32,
        /// Original context length of the model.
        original: f32,
        /// True if the bounds of the blend are rounded to whole indices.
        truncate: bool,
    },
    /// `LongRoPE`: each frequency has a divisor, which depends on the length of the sequence.
    Long {
        /// Divisors for sequences of up to `original` tokens (`width / 2`).
        short: Vec<f32>,
        /// Divisors for longer sequences.
        long: Vec<f32>,
        /// Original context length of the model.
        original: usize,
    },
}

/// Factor for cosines and sines that `YaRN` uses when frequencies are divided by `factor`.
pub fn yarn_magnitude(factor: f32) -> f32 {
    if factor > 1.0 {
        0.1 * factor.ln() + 1.0
    } else {
        1.0
    }
}

/// Factor for cosines and sines that `LongRoPE` uses for a context of `factor` times `original`
/// tokens.
pub fn long_magnitude(factor: f64, original: usize) -> f32 {
    #[expect(clippy::cast_possible_truncation, reason = "rounding is intended")]
    if factor > 1.0 {
        (1.0 + factor.ln() / (original as f64).ln()).sqrt() as f32
    } else {
        1.0
    }
}

/// The shortest decimal that reads back as the same `f32`.
pub fn decimal(v: f32) -> Value {
    v.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

impl Rope {
    pub fn plain(theta: f32, width: usize) -> Self {
        Self {
            theta,
            width,
            scaling: Scaling::Default,
            divisors: None,
            magnitude: 1.0,
        }
    }

    /// Returns a message if a frequency is not a positive number.
    pub fn check(&self) -> Result<(), String> {
        let (short, long) = self.frequencies();
        let mut all = short.iter().chain(long.iter().flat_map(|(_, long)| long));
        match all.find(|f| !(f.is_finite() && **f > 0.0)) {
            Some(f) => Err(format!(
                "with the scaling it gives a rotary frequency of {f}; expected a positive number"
            )),
            None => Ok(()),
        }
    }

    /// Frequencies of short sequences and, if different, the longest short length and the
    /// frequencies of long sequences.
    pub fn frequencies(&self) -> (Vec<f32>, Option<(usize, Vec<f32>)>) {
        match &self.scaling {
            Scaling::Long {
                short,
                long,
                original,
            } => (
                self.divided(|i, _| short.get(i).map_or(1.0, |v| f64::from(*v))),
                Some((
                    *original,
                    self.divided(|i, _| long.get(i).map_or(1.0, |v| f64::from(*v))),
                )),
            ),
            scaling => (self.divided(|i, f| scaling.divisor(self, i, f)), None),
        }
    }

    /// Each frequency divided by `divisor(i, frequency)`.
    fn divided(&self, divisor: impl Fn(usize, f64) -> f64) -> Vec<f32> {
        let own = |i: usize| {
            let own = self.divisors.as_ref().and_then(|d| d.get(i));
            own.map_or(1.0, |v| f64::from(*v))
        };
        (0..self.width / 2)
            .map(|i| {
                let frequency = f64::from(self.theta).powf(-2.0 * i as f64 / self.width as f64);
                #[expect(clippy::cast_possible_truncation, reason = "frequencies are f32 in the graph")]
                let found = (frequency / divisor(i, frequency) / own(i)) as f32;
                found
            })
            .collect()
    }

    /// The scaling entry for `config.json`; null if there is no scaling.
    pub fn scaling_json(&self) -> Value {
        match &self.scaling {
            Scaling::Default => Value::Null,
            Scaling::Linear { factor } => json!({"rope_type": "linear", "factor": decimal(*factor)}),
            Scaling::Llama3 {
                factor,
                low,
                high,
                original,
            } => json!({
                "rope_type": "llama3", "factor": decimal(*factor), "low_freq_factor": decimal(*low),
                "high_freq_factor": decimal(*high), "original_max_position_embeddings": decimal(*original),
            }),
            Scaling::Yarn {
                factor,
                fast,
                slow,
                original,
                truncate,
            } => json!({
                "rope_type": "yarn", "factor": decimal(*factor), "beta_fast": decimal(*fast), "beta_slow": decimal(*slow),
                "original_max_position_embeddings": decimal(*original), "truncate": truncate,
                "attention_factor": decimal(self.magnitude),
            }),
            Scaling::Long { short, long, .. } => {
                let list = |v: &[f32]| v.iter().map(|v| decimal(*v)).collect::<Value>();
                json!({
                    "rope_type": "longrope", "short_factor": list(short), "long_factor": list(long),
                    "attention_factor": decimal(self.magnitude),
                })
            }
        }
    }
}

impl Scaling {
    /// Divisor of frequency `i`, whose value is `frequency`.
    fn divisor(&self, rope: &Rope, i: usize, frequency: f64) -> f64 {
        // The share `kept` of a frequency stays, and the rest is divided by the factor.
        let mixed = |kept: f64, factor: f32| 1.0 / (kept + (1.0 - kept) / f64::from(factor));
        match *self {
            Self::Default | Self::Long { .. } => 1.0,
            Self::Linear { factor } => f64::from(factor),
            Self::Llama3 {
                factor,
                low,
                high,
                original,
            } => {
                let turns = f64::from(original) * frequency / TAU;
                let (low, high) = (f64::from(low), f64::from(high));
                mixed(((turns - low) / (high - low)).clamp(0.0, 1.0), factor)
            }
            Self::Yarn {
                factor,
                fast,
                slow,
                original,
                truncate,
            } => {
                let width = rope.width as f64;
                // The fractional index of the frequency with this many turns.
                let number = |turns: f32| {
                    let turns = f64::from(turns) * TAU;
                    width * (f64::from(original) / turns).ln() / (2.0 * f64::from(rope.theta).ln())
                };
                let (mut low, mut high) = (number(fast), number(slow));
                if truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                let (low, mut high) = (low.max(0.0), high.min(width - 1.0));
                if low == high {
                    high += 0.001;
                }
                let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                mixed(1.0 - ramp, factor)
            }
        }
    }
}
