//! A model without weights whose results depend on all that its cache holds.

mod batcher;
mod beam;
mod schedules;
mod threads;

use super::steps::StepRunner;
use crate::error::{Error, ErrorKind, Result, Stage};
use crate::graph::op::paged_attention::{CUT, PAGE};
use crate::llm::Candidates;
use crate::llm::engine::{BatchConfig, Reproducible, RowModel, Span};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const VOCAB: u32 = 11;

/// What the cache holds for a token: the token, and whether it was computed with few others of its
/// page.
type Cell = (u32, bool);

fn hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// The token that follows a text with this hash.
fn likely(hash: u64) -> u32 {
    u32::try_from(hash % u64::from(VOCAB)).unwrap()
}

/// The token that follows a text.
fn next(cells: &[Cell]) -> u32 {
    likely(hash(cells))
}

/// A model whose results depend on all that its cache holds for a sequence.
struct FakeRows {
    config: BatchConfig,
    cache: Vec<Option<Cell>>,
    /// Results depend on how tokens were computed.
    exact: bool,
    /// Hashes of the texts whose logits were asked for.
    results: Vec<u64>,
    /// Steps until one fails, and results until some cannot be read.
    fails_in: Option<usize>,
    unread_in: Option<usize>,
    steps: Arc<AtomicUsize>,
    /// Time of a step, and the limit of each call.
    time: Duration,
    limit: Option<Duration>,
}

impl FakeRows {
    fn new(config: BatchConfig, exact: bool) -> Self {
        let reproducible = match exact {
            true => Reproducible::ByChunks,
            false => config.reproducible,
        };
        Self {
            config: BatchConfig {
                reproducible,
                ..config
            },
            cache: vec![None; config.pages * PAGE],
            exact,
            results: Vec::new(),
            fails_in: None,
            unread_in: None,
            steps: Arc::default(),
            time: Duration::ZERO,
            limit: None,
        }
    }

    fn place(pages: &[u32], position: usize) -> usize {
        pages[position / PAGE] as usize * PAGE + position % PAGE
    }

    fn check_read(&mut self) -> Result<()> {
        let fails = self.unread_in == Some(0);
        self.unread_in = self.unread_in.and_then(|n| n.checked_sub(1));
        match fails {
            true => Err(Error::other(Stage::Run, "a logit is NaN").of_kind(ErrorKind::NotFinite)),
            false => Ok(()),
        }
    }
}

impl RowModel for FakeRows {
    fn config(&self) -> BatchConfig {
        self.config
    }

    fn vocab(&self) -> usize {
        VOCAB as usize
    }

    fn step(&mut self, spans: &mut dyn Iterator<Item = Span<'_>>) -> Result<()> {
        let spans: Vec<Span<'_>> = spans.collect();
        self.steps.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(self.time);
        if self.fails_in == Some(0) {
            self.fails_in = None;
            self.cache.fill(None);
            return Err(Error::other(Stage::Run, "full").of_kind(ErrorKind::OutOfMemory));
        }
        self.fails_in = self.fails_in.map(|n| n - 1);
        self.results.clear();
        let rows: usize = spans.iter().map(|s| s.tokens.len()).sum();
        assert!(rows > 0 && rows <= self.config.rows, "{rows} rows");
        let mut written = Vec::new();
        for span in &spans {
            let end = span.start + span.tokens.len();
            assert!(end <= self.config.context, "{end} tokens");
            for (i, token) in span.tokens.iter().enumerate() {
                let position = span.start + i;
                let page = position / PAGE * PAGE;
                let together = end.min(page + PAGE) - span.start.max(page);
                let place = Self::place(span.pages, position);
                self.cache[place] = Some((*token, self.exact && (span.alone || together < CUT)));
                written.push(place);
            }
        }
        let all = written.len();
        written.sort_unstable();
        written.dedup();
        assert_eq!(written.len(), all, "two rows at one place");
        for span in &spans {
            let end = span.start + span.tokens.len();
            for seen in end - span.logits + 1..=end {
                let cells = (0..seen).map(|p| self.cache[Self::place(span.pages, p)].unwrap());
                self.results.push(hash(&cells.collect::<Vec<_>>()[..]));
            }
        }
        Ok(())
    }

    fn logits(&mut self, first: usize, rows: usize, logits: &mut Vec<f32>) -> Result<()> {
        self.check_read()?;
        // Only the largest is positive. Some texts leave little choice, others much.
        for text in &self.results[first..first + rows] {
            let sharpness = [1.0, 4.0, 9.0][(text / u64::from(VOCAB) % 3) as usize];
            let below = |i| -((hash((text, i)) % 1009) as f32) / 1009.0;
            let logit = |i| if i == likely(*text) { 1.0 } else { below(i) };
            logits.extend((0..VOCAB).map(|i| sharpness * logit(i)));
        }
        Ok(())
    }

    fn most_likely(&mut self, first: usize, rows: usize, ids: &mut Vec<u32>) -> Result<()> {
        self.check_read()?;
        let results = &self.results[first..first + rows];
        ids.extend(results.iter().map(|text| likely(*text)));
        Ok(())
    }

    fn finds_candidates(&self) -> bool {
        true
    }

    fn time(&self) -> Option<Duration> {
        self.limit
    }

    fn candidates(&mut self, first: usize, rows: usize, found: &mut Candidates) -> Result<()> {
        let mut logits = Vec::new();
        self.logits(first, rows, &mut logits)?;
        logits.chunks(self.vocab()).try_for_each(|row| found.push(row))
    }

    fn copy_pages(&mut self, pages: &[[u32; 2]]) -> Result<()> {
        for [from, to] in pages.iter().map(|pair| pair.map(|p| p as usize * PAGE)) {
            self.cache.copy_within(from..from + PAGE, to);
        }
        Ok(())
    }
}

const CONFIG: BatchConfig = BatchConfig {
    pages: 6,
    context: 256,
    rows: 128,
    logits: 64,
    reproducible: Reproducible::No,
};

/// Steps over a model that fails in step `fails_in`, if any.
fn steps(fails_in: Option<usize>) -> StepRunner {
    let model = FakeRows {
        fails_in,
        ..FakeRows::new(CONFIG, true)
    };
    StepRunner::start(model).unwrap()
}
