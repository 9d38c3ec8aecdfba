//! Speculative decoding: drafts of the next tokens that the model verifies in one run (Leviathan et
//! al., 2023).

mod speculation;

pub use speculation::Speculation;

use super::{Cancel, LanguageModel};
use crate::error::Result;
use crate::num;

/// Proposes the next tokens. A wrong draft costs time but does not change the result.
pub trait Draft: Send {
    /// At most `most` tokens that may follow `context`; empty if there is no basis for a draft.
    /// Returns early with what it has once `cancel` is set.
    fn propose(&mut self, context: &[u32], most: usize, cancel: &Cancel) -> Result<Vec<u32>>;

    /// The kind of the proposal for `context`, from 0 to 63; larger numbers count as 63. `None` if
    /// there will be no proposal. Each kind has its own acceptance rate, which starts with that of
    /// the next lower kind.
    fn kind(&self, context: &[u32]) -> Option<usize> {
        let _ = context;
        Some(0)
    }
}

/// Proposes the tokens that followed the same text earlier in the context (Saxena, 2023, "Prompt
/// Lookup Decoding").
#[derive(Clone, Copy, Debug)]
pub struct NgramDraft {
    /// Longest suffix of the context to search for, in tokens. The longer the match, the higher the
    /// acceptance rate usually is, so each power of two is a kind of its own ([`Draft::kind`]).
    pub longest: usize,
    /// Shortest suffix, at least 1.
    pub shortest: usize,
}

impl Default for NgramDraft {
    fn default() -> Self {
        Self {
            longest: 16,
            shortest: 2,
        }
    }
}

impl NgramDraft {
    /// Where the text went on after its longest suffix that occurs earlier, and the length of that
    /// suffix; of several places the last.
    fn find(self, context: &[u32]) -> Option<(usize, usize)> {
        if self.longest < self.shortest.max(1) {
            return None;
        }
        let (last, before) = context.split_last()?;
        let mut best = None;
        let mut longest = self.shortest.max(1) - 1;
        for (at, _) in before
            .iter()
            .enumerate()
            .rev()
            .filter(|(_, token)| *token == last)
        {
            let earlier = before.iter().take(at).rev();
            let same = earlier
                .zip(before.iter().rev())
                .take(self.longest.saturating_sub(1));
            let length = 1 + same.take_while(|(a, b)| a == b).count();
            if length > longest {
                (best, longest) = (Some((at + 1, length)), length);
            }
            if longest >= self.longest {
                break;
            }
        }
        best
    }
}

impl Draft for NgramDraft {
    fn propose(&mut self, context: &[u32], most: usize, _: &Cancel) -> Result<Vec<u32>> {
        let Some((at, _)) = self.find(context) else {
            return Ok(Vec::new());
        };
        // If the copied range reaches the end of the context, it continues into the copy.
        let mut proposed: Vec<u32> = Vec::with_capacity(most);
        for i in at..at + most {
            let copied = context.get(i).or_else(|| proposed.get(i - context.len()));
            let Some(token) = copied.copied() else { break };
            proposed.push(token);
        }
        Ok(proposed)
    }

    /// The length of the suffix, as a power of two.
    fn kind(&self, context: &[u32]) -> Option<usize> {
        let (_, length) = self.find(context)?;
        usize::try_from(length.ilog2()).ok()
    }
}

/// Draft tokens of a smaller model with the same tokenizer. Its table of tokens may have fewer
/// rows: after a token without a row there is no draft.
pub struct ModelDraft {
    model: Box<dyn LanguageModel + Send>,
    /// Tokens in its cache.
    cached: Vec<u32>,
}

impl ModelDraft {
    /// A draft by `model`. Its cache is emptied.
    pub fn new(mut model: Box<dyn LanguageModel + Send>) -> Self {
        model.truncate(0);
        Self {
            model,
            cached: Vec::new(),
        }
    }
}

impl Draft for ModelDraft {
    fn propose(&mut self, context: &[u32], most: usize, cancel: &Cancel) -> Result<Vec<u32>> {
        let most = most.min(self.model.context().saturating_sub(context.len()));
        let mut proposed = Vec::with_capacity(most);
        if most == 0 || context.is_empty() {
            return Ok(proposed);
        }
        let kept = reuse(self.model.as_mut(), &self.cached, context);
        self.cached.truncate(kept);
        let mut new = num::part(context, kept..)?.to_vec();
        let vocab = self.model.vocab();
        if new
            .iter()
            .any(|id| usize::try_from(*id).map_or(true, |id| id >= vocab))
        {
            return Ok(proposed);
        }
        while proposed.len() < most {
            let mut next = None;
            for part in new.chunks(self.model.run_length().max(1)) {
                if cancel.is_cancelled() {
                    return Ok(proposed);
                }
                next = Some(self.model.most_likely(part)?);
                self.cached.extend_from_slice(part);
            }
            let Some(next) = next else { break };
            proposed.push(next);
            new.clear();
            new.push(next);
        }
        Ok(proposed)
    }
}

/// Truncates the cache of `model`, which holds `cached`, to the prefix shared with `tokens`, and
/// returns the length that remains ([`LanguageModel::truncate`]). The last of `tokens` is never
/// kept, because its logits are needed.
pub fn reuse(model: &mut dyn LanguageModel, cached: &[u32], tokens: &[u32]) -> usize {
    let pairs = tokens.iter().zip(cached);
    let common = pairs.take_while(|(a, b)| a == b).count();
    let kept = common.min(tokens.len().saturating_sub(1)).min(model.len());
    model.truncate(kept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::testing::FakeModel;

    #[test]
    fn n_grams_go_on_as_before() {
        let mut draft = NgramDraft::default();
        let go = Cancel::default();
        let mut propose = |context: &[u32], most| draft.propose(context, most, &go).unwrap();
        assert_eq!(propose(&[1, 2, 3, 4, 5, 1, 2, 3], 2), [4, 5]);
        assert_eq!(propose(&[7, 8, 1, 9, 8, 2, 7, 8], 1), [1]);
        // Of several places the last.
        assert_eq!(propose(&[1, 2, 3, 1, 2, 4, 1, 2], 3), [4, 1, 2]);
        // The longest end counts, though a shorter one stands nearer.
        assert_eq!(propose(&[1, 2, 3, 9, 2, 3, 8, 1, 2, 3], 1), [9]);
        assert_eq!(propose(&[5, 6, 5, 6], 5), [5, 6, 5, 6, 5], "a loop goes on");
        for none in [&[][..], &[1], &[1, 1], &[1, 2, 3, 4], &[1, 2, 9, 2]] {
            assert!(propose(none, 4).is_empty(), "{none:?}");
        }
    }

    #[test]
    fn a_model_feeds_what_is_new() {
        let count = |cache: &[u32]| (cache.last().unwrap() + 1) % 32;
        let mut draft = ModelDraft::new(Box::new(FakeModel::new(32, 10, count)));
        let go = Cancel::default();
        assert_eq!(draft.propose(&[1, 2, 3], 3, &go).unwrap(), [4, 5, 6]);
        assert_eq!(draft.cached, [1, 2, 3, 4, 5]);
        // Two drafted tokens were accepted, then the model chose another one.
        assert_eq!(draft.propose(&[1, 2, 3, 4, 5, 9], 2, &go).unwrap(), [10, 11]);
        assert_eq!(draft.cached, [1, 2, 3, 4, 5, 9, 10]);
        assert_eq!(
            draft.propose(&[1, 2, 3, 4, 5, 9, 10, 11, 12], 4, &go).unwrap(),
            [13]
        );
        assert!(
            draft.propose(&[0; 10], 4, &go).unwrap().is_empty(),
            "its context is full"
        );
    }

    #[test]
    fn a_token_without_a_row_gives_no_draft() {
        let count = |cache: &[u32]| {
            assert!(cache.iter().all(|id| *id < 32), "{cache:?}");
            (cache.last().unwrap() + 1) % 32
        };
        let mut draft = ModelDraft::new(Box::new(FakeModel::new(32, 100, count)));
        let go = Cancel::default();
        assert_eq!(draft.propose(&[1, 2], 2, &go).unwrap(), [3, 4]);
        assert!(draft.propose(&[1, 2, 3, 32], 2, &go).unwrap().is_empty());
        assert!(draft.propose(&[1, 2, 3, 32, 5], 2, &go).unwrap().is_empty());
        assert_eq!(draft.propose(&[1, 2, 3, 4], 2, &go).unwrap(), [5, 6]);
    }

    #[test]
    fn a_cancelled_draft_feeds_no_more() {
        let mut draft = ModelDraft::new(Box::new(FakeModel::new(32, 400, |_| 1)));
        let cancelled = Cancel::default();
        cancelled.cancel();
        assert!(draft.propose(&[1; 300], 4, &cancelled).unwrap().is_empty());
        assert!(draft.cached.is_empty());
    }
}
