//! Speed of a generation.

use crate::fmt::count_text;
use std::fmt;
use std::time::Duration;

/// Counts and times of one generation. Times cover the model and the sampler, but not the caller's
/// work between tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    /// Tokens fed before the first one was sampled. Tokens reused from the cache do not count.
    pub prompt_tokens: usize,
    /// Tokens reused from the cache.
    pub reused_tokens: usize,
    /// Time from the start of the prompt to the first sampled token; zero before that. For a
    /// request of a [`Batcher`](crate::Batcher), this includes waiting for room in the cache and
    /// for steps of others, but not for the start of the request.
    pub first_token: Duration,
    /// Sampled tokens, without an end token.
    pub tokens: usize,
    /// Tokens sampled after the first one, including an end token.
    pub decode_tokens: usize,
    /// Time for `decode_tokens`.
    pub decode: Duration,
    /// Drafted tokens.
    pub drafted: usize,
    /// Accepted draft tokens.
    pub accepted: usize,
    /// Tokens dropped because the context was full.
    pub forgotten: usize,
    /// Tokens fed again afterwards.
    pub fed_again: usize,
}

impl Metrics {
    /// Prompt tokens per second; `None` before the first token.
    pub fn prefill_tokens_per_s(&self) -> Option<f64> {
        rate(self.prompt_tokens, self.first_token)
    }

    /// Tokens per second after the first one; `None` if there are none.
    pub fn decode_tokens_per_s(&self) -> Option<f64> {
        rate(self.decode_tokens, self.decode)
    }
}

/// `count` per second of `time`; `None` if either is zero.
pub fn rate(count: usize, time: Duration) -> Option<f64> {
    (count > 0 && !time.is_zero()).then(|| count as f64 / time.as_secs_f64())
}

impl fmt::Display for Metrics {
    /// One line of text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.first_token.as_secs_f64() * 1e3;
        match (self.prompt_tokens, self.reused_tokens) {
            (fed, 0) => write!(f, "prompt {}", count_text(fed, "token"))?,
            (fed, reused) => {
                let all = count_text(fed + reused, "token");
                write!(f, "prompt {all} ({fed} fed, {reused} reused)")?;
            }
        }
        if let Some(r) = self.prefill_tokens_per_s() {
            let what = if self.tokens > 0 {
                "first token after"
            } else {
                "read in"
            };
            write!(f, ", {what} {first:.0} ms, prefill {r:.1} tokens/s")?;
        }
        if let Some(r) = self.decode_tokens_per_s() {
            write!(f, ", decode {r:.1} tokens/s")?;
        }
        if self.drafted > 0 {
            write!(
                f,
                ", {} of {} accepted",
                self.accepted,
                count_text(self.drafted, "drafted token")
            )?;
        }
        if self.forgotten > 0 {
            let (old, again) = (count_text(self.forgotten, "token"), self.fed_again);
            write!(f, ", context slid: {old} dropped, {again} fed again")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::assert_carries;

    #[test]
    fn rates_are_counts_over_times() {
        let m = Metrics {
            prompt_tokens: 50,
            tokens: 4,
            first_token: Duration::from_millis(200),
            decode_tokens: 3,
            decode: Duration::from_millis(1500),
            ..Metrics::default()
        };
        assert_eq!(m.prefill_tokens_per_s(), Some(250.0));
        assert_eq!(m.decode_tokens_per_s(), Some(2.0));
        assert_carries(m, &["50", "200 ms", "250.0 tokens/s", "2.0 tokens/s"]);
        let ended = Metrics {
            prompt_tokens: 1,
            first_token: Duration::from_millis(200),
            ..Metrics::default()
        };
        assert_carries(ended, &["1", "200 ms", "5.0 tokens/s"]);
        let m = Metrics {
            drafted: 9,
            accepted: 4,
            forgotten: 30,
            fed_again: 31,
            ..m
        };
        let reusing = Metrics {
            reused_tokens: 30,
            ..m
        };
        assert_carries(reusing, &["50", "30", "200 ms"]);
        assert_carries(m, &["4", "9", "30", "31"]);
    }

    #[test]
    fn nothing_measured_is_no_rate() {
        let m = Metrics::default();
        assert_eq!((m.prefill_tokens_per_s(), m.decode_tokens_per_s()), (None, None));
        assert!(!m.to_string().contains("/s"), "{m}");
    }
}
