//! Log-probabilities of tokens.

/// Natural log-probabilities of a token and of the most likely tokens at its position, before the
/// sampler changes them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogProbs {
    /// Of the chosen token.
    pub chosen: f32,
    /// The most likely tokens and theirs, largest first.
    pub top: Vec<(u32, f32)>,
}

impl LogProbs {
    /// From a row of logits, for the token `chosen` and the `top` most likely ones.
    pub fn of(logits: &[f32], chosen: u32, top: usize) -> Self {
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|v| f64::from(v - most).exp()).sum();
        let total = sum.ln();
        #[expect(clippy::cast_possible_truncation, reason = "rounds to single precision")]
        let of = |logit: f32| (f64::from(logit - most) - total) as f32;
        let order = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        let mut best: Vec<(u32, f32)> = match top {
            0 => Vec::new(),
            _ => (0u32..).zip(logits.iter().copied()).collect(),
        };
        if (1..best.len()).contains(&top) {
            best.select_nth_unstable_by(top - 1, order);
        }
        best.truncate(top);
        best.sort_unstable_by(order);
        let logit = usize::try_from(chosen).ok().and_then(|id| logits.get(id));
        Self {
            chosen: of(logit.copied().unwrap_or(f32::NEG_INFINITY)),
            top: best.iter().map(|(id, logit)| (*id, of(*logit))).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_sum_to_one() {
        let logits = [1.0, 3.0, -2.0, 3.0, f32::NEG_INFINITY];
        let all = LogProbs::of(&logits, 0, 9);
        let ids: Vec<u32> = all.top.iter().map(|t| t.0).collect();
        assert_eq!(ids, [1, 3, 0, 2, 4]);
        let sum: f32 = all.top.iter().map(|t| t.1.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
        assert_eq!(all.chosen, all.top[2].1);
        assert!((all.top[0].1 - all.top[2].1 - 2.0).abs() < 1e-6);
        let two = LogProbs::of(&logits, 4, 2);
        assert_eq!((two.chosen, &two.top[..]), (f32::NEG_INFINITY, &all.top[..2]));
        assert_eq!(LogProbs::of(&logits, 1, 0).top, []);
        // Large logits do not overflow.
        let even = LogProbs::of(&[1e30, 1e30], 0, 0).chosen;
        assert!((even - 0.5f32.ln()).abs() < 1e-6, "{even}");
    }
}
