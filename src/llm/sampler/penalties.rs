//! Penalties that lower the logits of tokens already in the context.

use std::collections::{HashMap, HashSet};

/// Penalties for tokens that occur among the last ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Penalties {
    /// Number of last tokens considered; 0 disables the penalties.
    pub last_n: usize,
    /// From 0.01 to 100: divides positive logits and multiplies others; 1 is off (Keskar et al.,
    /// 2019, "CTRL").
    pub repetition: f32,
    /// Subtracted per occurrence; 0 is off.
    pub frequency: f32,
    /// Subtracted once per token; 0 is off.
    pub presence: f32,
}

impl Default for Penalties {
    /// Off, with a window of 64 tokens.
    fn default() -> Self {
        Self {
            last_n: 64,
            repetition: 1.0,
            frequency: 0.0,
            presence: 0.0,
        }
    }
}

impl Penalties {
    /// True if no logit changes.
    pub fn is_off(&self) -> bool {
        self.last_n == 0 || (self.repetition == 1.0 && self.frequency == 0.0 && self.presence == 0.0)
    }

    /// Lowers `logits` of tokens at the end of `history`. Token IDs without a logit are ignored.
    pub(super) fn apply(&self, history: &[u32], logits: &mut [f32]) {
        if self.is_off() {
            return;
        }
        let mut counts: HashMap<u32, u32> = HashMap::new();
        for token in tail(history, self.last_n) {
            *counts.entry(*token).or_default() += 1;
        }
        for (token, count) in counts {
            let Some(logit) = logit_of(logits, token) else {
                continue;
            };
            if *logit > 0.0 {
                *logit /= self.repetition;
            } else {
                *logit *= self.repetition;
            }
            *logit -= count as f32 * self.frequency + self.presence;
        }
    }
}

/// "Don't repeat yourself" (p-e-w, 2024): penalizes tokens that would continue a repeated sequence
/// of the context, more for longer sequences.
#[derive(Clone, Debug, PartialEq)]
pub struct Dry {
    /// Penalty of a repetition of [`Dry::allowed_length`] tokens; 0 is off.
    pub multiplier: f32,
    /// Multiplier per further token, at least 1.
    pub base: f32,
    /// Shorter repetitions have no penalty.
    pub allowed_length: usize,
    /// Number of last tokens considered.
    pub last_n: usize,
    /// Tokens that end a repetition.
    pub breakers: HashSet<u32>,
}

impl Default for Dry {
    /// Off, with a base of 1.75 from two tokens on, over the whole context.
    fn default() -> Self {
        Self {
            multiplier: 0.0,
            base: 1.75,
            allowed_length: 2,
            last_n: usize::MAX,
            breakers: HashSet::new(),
        }
    }
}

impl Dry {
    /// True if no logit changes.
    pub fn is_off(&self) -> bool {
        self.multiplier == 0.0 || self.last_n == 0
    }

    /// Lowers `logits` of tokens that would continue a repetition in `history`.
    pub(super) fn apply(&self, history: &[u32], logits: &mut [f32]) {
        if self.is_off() {
            return;
        }
        let reversed: Vec<u32> = tail(history, self.last_n).iter().rev().copied().collect();
        // A repetition starts after the last breaker.
        let most = reversed.iter().position(|t| self.breakers.contains(t));
        let most = most.unwrap_or(reversed.len());
        let mut longest: HashMap<u32, usize> = HashMap::new();
        let lengths = prefix_lengths(&reversed);
        // In reverse order, the token after a repetition comes before it.
        for (length, followed_by) in lengths.iter().skip(1).zip(&reversed) {
            let length = (*length).min(most);
            if length >= self.allowed_length.max(1) {
                let best = longest.entry(*followed_by).or_default();
                *best = length.max(*best);
            }
        }
        for (token, length) in longest {
            if let Some(logit) = logit_of(logits, token) {
                let beyond = i32::try_from(length - self.allowed_length.min(length)).unwrap_or(i32::MAX);
                // Finite, so that the only allowed token can still be chosen.
                let penalty = (self.multiplier * self.base.powi(beyond)).min(f32::MAX / 4.0);
                *logit = (*logit - penalty).max(f32::MIN / 2.0).min(*logit);
            }
        }
    }
}

/// The last `count` elements.
fn tail(history: &[u32], count: usize) -> &[u32] {
    history.split_at(history.len().saturating_sub(count)).1
}

fn logit_of(logits: &mut [f32], token: u32) -> Option<&mut f32> {
    logits.get_mut(usize::try_from(token).ok()?)
}

/// For each position, how many elements from there equal the first ones (Gusfield's Z values), in
/// linear time.
fn prefix_lengths(s: &[u32]) -> Vec<usize> {
    let mut z = vec![0; s.len()];
    if let Some(first) = z.first_mut() {
        *first = s.len();
    }
    let (mut left, mut right) = (0, 0);
    for i in 1..s.len() {
        let mut n = if i < right { z[i - left].min(right - i) } else { 0 };
        while i + n < s.len() && s[n] == s[i + n] {
            n += 1;
        }
        if i + n > right {
            (left, right) = (i, i + n);
        }
        z[i] = n;
    }
    z
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn close(a: f32, b: f32) -> bool {
        (a - b).abs() <= 1e-5 * (1.0 + a.abs())
    }

    proptest! {
        /// Counts by a loop over the vocabulary.
        #[test]
        fn penalties_follow_their_formula(
            history in proptest::collection::vec(0u32..8, 0..40), logits in proptest::collection::vec(-9.0f32..9.0, 6),
            last_n in 0usize..50, repetition in 0.5f32..2.0, frequency in -2.0f32..2.0, presence in -2.0f32..2.0,
        ) {
            let penalties = Penalties { last_n, repetition, frequency, presence };
            let mut found = logits.clone();
            penalties.apply(&history, &mut found);
            for (t, (before, after)) in (0u32..).zip(logits.iter().zip(&found)) {
                let count = history.iter().rev().take(last_n).filter(|h| **h == t).count();
                let mut wanted = *before;
                if count > 0 {
                    wanted = if wanted > 0.0 { wanted / repetition } else { wanted * repetition };
                    wanted -= count as f32 * frequency + presence;
                }
                prop_assert!(close(wanted, *after), "token {t}, {count} times: {before} became {after}, not {wanted}");
            }
        }

        /// Stretches by comparing the end of the context with every place, token by token.
        #[test]
        fn dry_follows_its_formula(
            history in proptest::collection::vec(0u32..4, 0..40), logits in proptest::collection::vec(-9.0f32..9.0, 4),
            last_n in 0usize..50, multiplier in 0.1f32..2.0, base in 1.0f32..2.0, allowed_length in 1usize..4,
            breaker in proptest::option::of(0u32..4),
        ) {
            let dry = Dry { multiplier, base, allowed_length, last_n, breakers: breaker.into_iter().collect() };
            let mut found = logits.clone();
            dry.apply(&history, &mut found);
            let window = &history[history.len().saturating_sub(last_n)..];
            let n = window.len();
            for (t, (before, after)) in (0u32..).zip(logits.iter().zip(&found)) {
                let mut longest = 0;
                for at in (0..n).filter(|at| window[*at] == t) {
                    let same = (0..at).take_while(|k| {
                        let (a, b) = (window[at - 1 - k], window[n - 1 - k]);
                        a == b && Some(b) != breaker
                    });
                    longest = longest.max(same.count());
                }
                let mut wanted = *before;
                if longest >= allowed_length {
                    wanted -= multiplier * base.powi((longest - allowed_length) as i32);
                }
                prop_assert!(close(wanted, *after), "token {t} after {longest}: {before} became {after}, not {wanted}");
            }
        }
    }

    #[test]
    fn what_is_off_changes_nothing() {
        let logits = [1.0f32, -2.0, f32::NEG_INFINITY];
        for (penalties, dry) in [
            (Penalties::default(), Dry::default()),
            (
                Penalties {
                    last_n: 0,
                    repetition: 2.0,
                    ..Penalties::default()
                },
                Dry {
                    multiplier: 1.0,
                    last_n: 0,
                    ..Dry::default()
                },
            ),
        ] {
            let mut found = logits;
            penalties.apply(&[0, 1, 2, 0, 1, 2], &mut found);
            dry.apply(&[0, 1, 2, 0, 1, 2], &mut found);
            assert_eq!(found, logits);
            assert!(penalties.is_off() && dry.is_off());
        }
    }

    #[test]
    fn what_is_masked_stays_masked_and_finite_stays_finite() {
        let mut logits = [f32::NEG_INFINITY, 3.0];
        let history: Vec<u32> = (0..2000).map(|i| i % 2).collect();
        Penalties {
            repetition: 1.5,
            frequency: 1.0,
            presence: 1.0,
            ..Penalties::default()
        }
        .apply(&history, &mut logits);
        let dry = Dry {
            multiplier: 1.0,
            ..Dry::default()
        };
        dry.apply(&history, &mut logits);
        dry.apply(&history[1..], &mut logits);
        assert_eq!(logits[0], f32::NEG_INFINITY);
        assert!(logits[1].is_finite(), "{logits:?}");
    }
}
