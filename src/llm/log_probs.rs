//! Log-probabilities of tokens.

use super::candidates::{CandidateRow, likeliest, log_total};
use super::tokenizer::Tokenizer;

/// Natural log-probabilities of a token and of the most likely tokens at its position, before the
/// sampler changes them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogProbs {
    /// Of the chosen token.
    pub chosen: f32,
    /// Text of the chosen token, as in [`TopToken::text`].
    pub text: String,
    /// The most likely tokens, the likeliest first.
    pub top: Vec<TopToken>,
}

/// One of the most likely tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TopToken {
    /// Its ID.
    pub id: u32,
    /// Its natural log-probability.
    pub log_prob: f32,
    /// The text that it adds, or its name if it is special. Incomplete UTF-8 becomes U+FFFD. Empty
    /// except in pieces of answers.
    pub text: String,
}

impl LogProbs {
    /// From a row of logits, for the token `chosen` and the `top` most likely ones.
    pub fn of(logits: &[f32], chosen: u32, top: usize) -> Self {
        let logit = usize::try_from(chosen).ok().and_then(|id| logits.get(id));
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let best = likeliest(logits, top).into_iter();
        Self::normalized(logit.copied(), best, most, log_total(logits))
    }

    /// Like [`LogProbs::of`], for a chosen token and most likely ones that are candidates.
    pub fn of_candidates(row: CandidateRow<'_>, chosen: u32, top: usize) -> Self {
        let logit = row.iter().find(|(id, _)| *id == chosen).map(|(_, logit)| logit);
        let most = row.logits.first().copied().unwrap_or(f32::NEG_INFINITY);
        Self::normalized(logit, row.iter().take(top), most, row.log_total)
    }

    /// For the logit of the chosen token, `top` tokens with theirs, and what normalizes them:
    /// [`CandidateRow::log_total`], relative to the logit `most`.
    fn normalized(
        chosen: Option<f32>,
        top: impl Iterator<Item = (u32, f32)>,
        most: f32,
        log_total: f64,
    ) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "rounds to single precision")]
        let of = |logit: f32| (f64::from(logit - most) - log_total) as f32;
        Self {
            chosen: of(chosen.unwrap_or(f32::NEG_INFINITY)),
            text: String::new(),
            top: top
                .map(|(id, logit)| TopToken {
                    id,
                    log_prob: of(logit),
                    text: String::new(),
                })
                .collect(),
        }
    }

    /// With the texts of its tokens, of which `chosen` is the chosen one.
    pub(super) fn with_texts(mut self, tokenizer: &Tokenizer, chosen: u32) -> Self {
        self.text = tokenizer.text_of(chosen);
        for token in &mut self.top {
            token.text = tokenizer.text_of(token.id);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::Candidates;
    use crate::llm::testing::write_byte_fallback_tokenizer;

    #[test]
    fn texts_keep_leading_blanks_and_name_special_tokens() {
        let dir = tempfile::tempdir().unwrap();
        write_byte_fallback_tokenizer(dir.path());
        let tokenizer = Tokenizer::load(dir.path()).unwrap();
        let texts = [1, 3, 4, 5 + 0x41, 5 + 0xc3, 9999].map(|id| tokenizer.text_of(id));
        assert_eq!(texts, ["</s>", "a", " a", "A", "\u{fffd}", ""]);
        let found = LogProbs::of(&[0.0, 0.0, 0.0, 1.0, 2.0], 4, 2).with_texts(&tokenizer, 4);
        assert_eq!((found.text.as_str(), found.top[1].text.as_str()), (" a", "a"));
    }

    #[test]
    fn probabilities_sum_to_one() {
        let logits = [1.0, 3.0, -2.0, 3.0, f32::NEG_INFINITY];
        let all = LogProbs::of(&logits, 0, 9);
        let ids: Vec<u32> = all.top.iter().map(|t| t.id).collect();
        assert_eq!(ids, [1, 3, 0, 2, 4]);
        let sum: f32 = all.top.iter().map(|t| t.log_prob.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
        assert_eq!(all.chosen, all.top[2].log_prob);
        assert!((all.top[0].log_prob - all.top[2].log_prob - 2.0).abs() < 1e-6);
        let two = LogProbs::of(&logits, 4, 2);
        assert_eq!((two.chosen, &two.top[..]), (f32::NEG_INFINITY, &all.top[..2]));
        assert_eq!(LogProbs::of(&logits, 1, 0).top, []);
        // Those of candidates are the same.
        let row: Vec<f32> = (0..200).map(|i| ((i * 37) % 101) as f32 / 8.0).collect();
        let mut found = Candidates::default();
        found.push(&row).unwrap();
        let first = found.row(0).unwrap();
        for (id, top) in [(first.ids[0], 0), (first.ids[63], 64), (first.ids[5], 7)] {
            assert_eq!(
                LogProbs::of_candidates(first, id, top),
                LogProbs::of(&row, id, top)
            );
        }
        // Large logits do not overflow.
        let even = LogProbs::of(&[1e30, 1e30], 0, 0).chosen;
        assert!((even - 0.5f32.ln()).abs() < 1e-6, "{even}");
    }
}
