//! A sequence as the scheduler sees it: its tokens, its pages, and what it waits for.

use super::pages::{Pages, PrefixId, Prefixes};
use crate::error::Error;
use crate::graph::op::paged_attention::{CUT, PAGE};
use crate::llm::Candidates;

/// What a job returns for each of its last tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Logits,
    Candidates,
    /// The ID of the largest logit.
    MostLikely,
}

/// Tokens to feed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    /// Number of tokens before them.
    pub first: usize,
    /// How many of the last tokens have results.
    pub outputs: usize,
    pub wanted: Wanted,
}

/// What a job returned.
#[derive(Debug, Default)]
pub(super) struct JobResult {
    pub ids: Vec<u32>,
    pub candidates: Candidates,
    pub logits: Vec<f32>,
    /// How many of its tokens were found in the cache.
    pub reused: usize,
    pub error: Option<Error>,
}

impl JobResult {
    fn clear(&mut self) {
        self.ids.clear();
        self.candidates.clear();
        self.logits.clear();
        self.reused = 0;
        self.error = None;
    }
}

/// The tokens from the previous segment up to `end`, which are computed either each alone or
/// together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    end: usize,
    alone: bool,
}

/// The next tokens of a sequence that a step may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub count: usize,
    pub alone: bool,
}

#[derive(Debug, Default)]
pub(super) struct Sequence {
    pub open: bool,
    /// Larger values go first.
    pub priority: i32,
    /// When its first token arrived.
    pub since: u64,
    /// When a step last ran it.
    pub served: u64,
    /// All tokens. Tokens that are not in the cache belong to the job, or lost their pages and are
    /// fed again.
    pub tokens: Vec<u32>,
    /// Number of tokens in the cache.
    pub cached: usize,
    /// Page table: pages of the cached tokens, and possibly pages reserved for the next ones.
    pub pages: Vec<u32>,
    /// Its known prefixes of whole pages.
    pub known: Vec<PrefixId>,
    pub job: Option<Job>,
    /// Ready for the step being planned.
    pub ready: bool,
    pub in_step: bool,
    /// The job is to end with the step that it is in.
    pub cancelled: bool,
    /// The answer to the last job is ready.
    pub answered: bool,
    /// Its next job is expected soon.
    pub expected: bool,
    pub answer: JobResult,
    segments: Vec<Segment>,
}

impl Sequence {
    /// A sequence without tokens.
    pub fn opened() -> Self {
        Self {
            open: true,
            ..Self::default()
        }
    }

    /// Adds tokens, each computed alone if `alone`. With `exact`, tokens that were fed together are
    /// fed together again, and no others with them.
    pub fn extend(&mut self, tokens: &[u32], alone: bool, exact: bool) {
        self.tokens.extend_from_slice(tokens);
        let end = self.tokens.len();
        match self.segments.last_mut() {
            Some(last) if last.alone == alone && (alone || !exact) => last.end = end,
            _ => self.segments.push(Segment { end, alone }),
        }
    }

    /// Keeps the first `len` tokens. With `exact`, removes those from the cache that would be
    /// computed differently if fed again.
    pub fn truncate(&mut self, len: usize, exact: bool, pages: &mut Pages) {
        if len >= self.tokens.len() {
            return;
        }
        self.tokens.truncate(len);
        self.cached = self.cached.min(len);
        let whole = self.segments.partition_point(|s| s.end <= len);
        let start = whole.checked_sub(1).and_then(|i| self.segments.get(i));
        let start = start.map_or(0, |s| s.end);
        self.segments.truncate(whole + usize::from(start < len));
        if let Some(cut) = self.segments.get_mut(whole) {
            cut.end = len;
            let part = start.max(len / PAGE * PAGE);
            if exact && !cut.alone && len - part < CUT {
                self.cached = self.cached.min(part);
            }
        }
        self.keep_pages(self.cached.div_ceil(PAGE), pages);
    }

    /// Keeps the first pages.
    fn keep_pages(&mut self, count: usize, pages: &mut Pages) {
        let kept = count.min(self.pages.len());
        self.pages.drain(kept..).for_each(|page| pages.release(page));
        self.known.truncate(self.cached / PAGE);
    }

    /// Releases the page that the next row would write. Its tokens are fed again.
    pub fn reopen(&mut self, pages: &mut Pages) {
        let whole = self.cached / PAGE;
        self.cached = whole * PAGE;
        self.keep_pages(whole, pages);
    }

    /// Releases all pages. All tokens are fed again.
    pub fn evict(&mut self, pages: &mut Pages) {
        self.cached = 0;
        self.keep_pages(0, pages);
        if self.job.is_some() {
            self.answer.clear();
        }
    }

    /// Starts a job over the tokens after the first `first`.
    pub fn start(&mut self, first: usize, outputs: usize, wanted: Wanted) {
        self.job = Some(Job {
            first,
            outputs,
            wanted,
        });
        (self.answered, self.expected, self.cancelled) = (false, false, false);
        self.answer.clear();
    }

    /// Ends the job without an answer and drops its tokens that are not cached.
    pub fn drop_job(&mut self, exact: bool, pages: &mut Pages) {
        if let Some(job) = self.job.take() {
            let known = self.cached.max(job.first);
            self.truncate(known, exact, pages);
        }
    }

    /// Number of tokens that are still to be fed.
    pub fn left(&self) -> usize {
        self.tokens.len() - self.cached
    }

    /// How many of the tokens `start..end` have results.
    pub fn outputs_of(&self, start: usize, end: usize) -> usize {
        let outputs = self.job.map_or(0, |j| j.outputs);
        let first = self.tokens.len().saturating_sub(outputs);
        end.saturating_sub(first.max(start))
    }

    fn segment(&self) -> Segment {
        let next = self.segments.iter().find(|s| s.end > self.cached);
        next.copied().unwrap_or(Segment {
            end: self.tokens.len(),
            alone: false,
        })
    }

    /// Up to `most` of the next tokens. With `exact`, chunks of tokens computed together end where
    /// this does not change results: after a page, or at a multiple of [`CUT`] with at least that
    /// many rows of the page on either side. The count is 0 if there is no such chunk.
    pub fn chunk(&self, most: usize, exact: bool) -> Chunk {
        let Segment { end, alone } = self.segment();
        let left = end - self.cached;
        if left <= most || alone || !exact {
            let count = left.min(most);
            return Chunk { count, alone };
        }
        let mut cut = (self.cached + most) / CUT * CUT;
        let fits = |cut: usize| {
            let page = cut / PAGE * PAGE;
            let (before, after) = (page.max(self.cached), end.min(page + PAGE));
            cut == page || (cut - before >= CUT && after - cut >= CUT)
        };
        while cut > self.cached && !fits(cut) {
            cut -= CUT;
        }
        let count = cut.saturating_sub(self.cached);
        Chunk { count, alone }
    }

    /// True if page `page` lies in the first segment and its tokens were computed together, as in
    /// every other sequence that starts with the same tokens.
    fn is_plain(&self, page: usize) -> bool {
        let first = self.segments.first();
        first.is_some_and(|s| !s.alone && (page + 1) * PAGE <= s.end)
    }

    /// The tokens of a page, if it is full.
    fn text(&self, page: usize) -> Option<&[u32]> {
        self.tokens.get(page * PAGE..(page + 1) * PAGE)
    }

    /// The known text before the next token and the tokens of the next page, if that token starts
    /// the page.
    pub fn next_text(&self) -> Option<(PrefixId, &[u32])> {
        let at_page = self.cached == self.known.len() * PAGE;
        let text = self.text(self.known.len())?;
        at_page.then(|| (self.last_known(), text))
    }

    fn last_known(&self) -> PrefixId {
        self.known.last().copied().unwrap_or(PrefixId::EMPTY)
    }

    /// Uses pages of known texts instead of computing the next ones. With `plain`, only those that
    /// it would compute to the same bits.
    pub fn adopt(&mut self, pages: &mut Pages, known: &mut Prefixes, plain: bool) {
        let rows = self.job.map_or(1, |j| j.outputs.max(1));
        while self.cached + PAGE + rows <= self.tokens.len() && self.cached == self.known.len() * PAGE {
            let next = self.known.len();
            if plain && !self.is_plain(next) {
                return;
            }
            let found = self
                .text(next)
                .and_then(|text| known.find(self.last_known(), text));
            let Some((id, page)) = found else { return };
            pages.share(page);
            self.keep_pages(next, pages);
            self.pages.push(page);
            self.known.push(id);
            self.reuse(PAGE);
        }
    }

    /// Counts `count` more tokens as cached, without computing them.
    pub fn reuse(&mut self, count: usize) {
        self.cached += count;
        // Tokens before those of the job were counted, or fed, for earlier ones.
        let first = self.job.map_or(self.cached, |job| job.first);
        self.answer.reused = self.answer.reused.max(self.cached.saturating_sub(first));
    }

    /// How many of the next `count` tokens, which start a page, may come from a page of another
    /// text; with `plain`, only as many as form a valid chunk.
    pub fn adoptable(&self, count: usize, plain: bool) -> usize {
        let rows = self.job.map_or(1, |j| j.outputs.max(1));
        let most = count.min(self.left().saturating_sub(rows));
        if !plain {
            return most;
        }
        let Segment { end, alone } = self.segment();
        let part = (end - self.cached).min(PAGE);
        let most = most.min(part.saturating_sub(CUT)) / CUT * CUT;
        let first = self.segments.first().is_some_and(|s| self.cached < s.end);
        if first && !alone { most } else { 0 }
    }

    /// The text before the next page and the tokens of that page so far, if all earlier pages are
    /// full and known, and none is reserved.
    pub fn next_part(&self) -> Option<(PrefixId, &[u32])> {
        let full = self.cached == self.known.len() * PAGE && self.pages.len() == self.known.len();
        let end = (self.cached + PAGE).min(self.tokens.len());
        let text = self.tokens.get(self.cached..end)?;
        full.then(|| (self.last_known(), text))
    }

    /// Makes its full pages known. With `plain`, only those that every sequence with this text
    /// would compute to the same bits.
    pub fn publish(&mut self, pages: &mut Pages, known: &mut Prefixes, plain: bool) {
        while (self.known.len() + 1) * PAGE <= self.cached {
            let next = self.known.len();
            if plain && !self.is_plain(next) {
                return;
            }
            let (Some(own), Some(text)) = (self.pages.get(next).copied(), self.text(next)) else {
                return;
            };
            let Some((id, page)) = known.add(pages, self.last_known(), text, own) else {
                return;
            };
            if page != own {
                pages.share(page);
                pages.release(own);
                self.pages.splice(next..=next, [page]);
            }
            self.known.push(id);
        }
    }

    /// A copy with the same tokens and pages.
    pub fn fork(&self, pages: &mut Pages) -> Self {
        let used = self.pages.iter().take(self.cached.div_ceil(PAGE));
        let used: Vec<u32> = used.copied().collect();
        used.iter().for_each(|page| pages.share(*page));
        Self {
            open: true,
            priority: self.priority,
            since: self.since,
            served: self.served,
            tokens: self.tokens.clone(),
            cached: self.cached,
            pages: used,
            known: self.known.clone(),
            segments: self.segments.clone(),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fed(lengths: &[(usize, bool)]) -> Sequence {
        let mut sequence = Sequence::default();
        for (count, alone) in lengths {
            sequence.extend(&vec![1; *count], *alone, true);
        }
        sequence
    }

    #[test]
    fn chunks_leave_whole_parts_of_pages() {
        let cases = [
            // Tokens, tokens in the cache, most; expected.
            (60, 0, 60, 60),
            (60, 0, 48, 32),
            (200, 0, 128, 128),
            (200, 0, 100, 96),
            (200, 37, 50, 80 - 37),
            (200, 37, 20, 0),
            (66, 0, 65, 64),
            (60, 17, 48, 43),
        ];
        for (tokens, cached, most, want) in cases {
            let mut sequence = fed(&[(tokens, false)]);
            sequence.cached = cached;
            let chunk = sequence.chunk(most, true);
            assert_eq!(
                (chunk.count, chunk.alone),
                (want, false),
                "{tokens} {cached} {most}"
            );
        }
        // With 48 rows, every prompt goes on.
        for tokens in 1..200 {
            for cached in 0..tokens {
                let mut sequence = fed(&[(tokens, false)]);
                sequence.cached = cached;
                assert!(sequence.chunk(48, true).count > 0, "{tokens} {cached}");
            }
        }
    }

    #[test]
    fn segments_are_fed_again_as_they_were() {
        let mut pages = Pages::new(9);
        let mut sequence = fed(&[(10, false), (1, true), (1, true), (5, false)]);
        assert_eq!(sequence.chunk(7, true).count, 0, "10 tokens are not cut");
        sequence.cached = 10;
        assert_eq!(
            sequence.chunk(7, true),
            Chunk {
                count: 2,
                alone: true
            }
        );
        sequence.truncate(11, true, &mut pages);
        sequence.extend(&[1], true, true);
        sequence.cached = 0;
        assert_eq!(
            sequence.chunk(64, true),
            Chunk {
                count: 10,
                alone: false
            }
        );
        sequence.cached = 10;
        assert_eq!(
            sequence.chunk(64, true),
            Chunk {
                count: 2,
                alone: true
            }
        );
        sequence.truncate(0, true, &mut pages);
        sequence.extend(&[1, 2], false, true);
        assert_eq!(
            sequence.chunk(64, true),
            Chunk {
                count: 2,
                alone: false
            }
        );
    }
}
