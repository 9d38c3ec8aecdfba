use super::scheduler::{Found, Scheduler, SequenceId, Step};
use super::sequence::Wanted;
use super::steps::Steps;
use crate::error::{Error, ErrorKind, Result, Stage};
use crate::graph::op::paged_attention::{CUT, PAGE};
use crate::llm::engine::{BatchConfig, RowModel, Span};
use crate::llm::sampler::SplitMix64;
use crate::llm::{Cancel, LanguageModel};
use crate::quota;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

const VOCAB: u32 = 11;

/// What the cache holds for a token: the token, and whether it was computed with few others of its
/// page.
type Cell = (u32, bool);

/// The token that follows a text.
fn next(cells: &[Cell]) -> u32 {
    let mut hasher = DefaultHasher::new();
    cells.hash(&mut hasher);
    u32::try_from(hasher.finish() % u64::from(VOCAB)).unwrap()
}

/// A model whose results depend on all that its cache holds for a sequence.
struct FakeRows {
    config: BatchConfig,
    cache: Vec<Option<Cell>>,
    /// Results depend on how tokens were computed.
    exact: bool,
    results: Vec<u32>,
    /// Steps until one fails.
    fails_in: Option<usize>,
    steps: usize,
}

impl FakeRows {
    fn new(config: BatchConfig, exact: bool) -> Self {
        Self {
            config,
            cache: vec![None; config.pages * PAGE],
            exact,
            results: Vec::new(),
            fails_in: None,
            steps: 0,
        }
    }

    fn place(pages: &[u32], position: usize) -> usize {
        pages[position / PAGE] as usize * PAGE + position % PAGE
    }
}

impl RowModel for FakeRows {
    fn config(&self) -> BatchConfig {
        self.config
    }

    fn vocab(&self) -> usize {
        VOCAB as usize
    }

    fn step(&mut self, spans: &[Span<'_>]) -> Result<()> {
        self.steps += 1;
        if self.fails_in == Some(0) {
            self.fails_in = None;
            self.cache.fill(None);
            return Err(Error::other(Stage::Run, "lost").of_kind(ErrorKind::DeviceLost));
        }
        self.fails_in = self.fails_in.map(|n| n - 1);
        self.results.clear();
        let rows: usize = spans.iter().map(|s| s.tokens.len()).sum();
        assert!(rows > 0 && rows <= self.config.rows, "{rows} rows");
        let mut written = Vec::new();
        for span in spans {
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
        for span in spans {
            let end = span.start + span.tokens.len();
            for seen in end - span.logits + 1..=end {
                let cells = (0..seen).map(|p| self.cache[Self::place(span.pages, p)].unwrap());
                self.results.push(next(&cells.collect::<Vec<_>>()));
            }
        }
        Ok(())
    }

    fn logits(&mut self, first: usize, rows: usize, logits: &mut Vec<f32>) -> Result<()> {
        for id in &self.results[first..first + rows] {
            logits.extend((0..VOCAB).map(|i| if i == *id { 1.0 } else { 0.0 }));
        }
        Ok(())
    }

    fn most_likely(&mut self) -> Result<Vec<u32>> {
        Ok(self.results.clone())
    }

    fn copy_pages(&mut self, pages: &[[u32; 2]]) -> Result<()> {
        for [from, to] in pages.iter().map(|pair| pair.map(|p| p as usize * PAGE)) {
            self.cache.copy_within(from..from + PAGE, to);
        }
        Ok(())
    }
}

/// What a sequence should have been given.
#[derive(Clone, Default)]
struct Expected {
    /// Tokens that were queued together, and whether each is computed alone.
    runs: Vec<(Vec<u32>, bool)>,
    /// How many of the last tokens are to return something.
    queued: Option<usize>,
}

impl Expected {
    fn len(&self) -> usize {
        self.runs.iter().map(|r| r.0.len()).sum()
    }

    fn truncate(&mut self, len: usize) {
        let mut left = len;
        for (tokens, _) in &mut self.runs {
            tokens.truncate(left);
            left -= tokens.len();
        }
        self.runs.retain(|(tokens, _)| !tokens.is_empty());
    }

    fn cells(&self, exact: bool) -> Vec<Cell> {
        let mut cells = Vec::new();
        for (tokens, alone) in &self.runs {
            let (start, end) = (cells.len(), cells.len() + tokens.len());
            for (i, token) in tokens.iter().enumerate() {
                let page = (start + i) / PAGE * PAGE;
                let together = end.min(page + PAGE) - start.max(page);
                cells.push((*token, exact && (*alone || together < CUT)));
            }
        }
        cells
    }
}

/// A random schedule.
struct Run {
    scheduler: Scheduler,
    model: FakeRows,
    step: Step,
    random: SplitMix64,
    sequences: HashMap<SequenceId, Expected>,
    fails: bool,
    /// Numbers of answers, of pages copied, and of rows and tokens.
    answers: usize,
    copies: usize,
    rows: usize,
    tokens: usize,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut random = SplitMix64::new(seed);
        let mut below = |n: u64| usize::try_from(random.next_u64() % n).unwrap();
        let context = 70 + below(300);
        let config = BatchConfig {
            pages: context.div_ceil(PAGE) + below(8),
            context,
            rows: 128,
            logits: 64,
        };
        let exact = below(2) == 0;
        Self {
            scheduler: Scheduler::new(config, exact),
            model: FakeRows::new(config, exact),
            step: Step::default(),
            fails: below(4) == 0,
            random,
            sequences: HashMap::new(),
            answers: 0,
            copies: 0,
            rows: 0,
            tokens: 0,
        }
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.random.next_u64() % n.max(1) as u64).unwrap()
    }

    /// A sequence that waits for nothing.
    fn idle(&mut self) -> Option<SequenceId> {
        let mut idle: Vec<SequenceId> = (self.sequences.iter())
            .filter(|(_, e)| e.queued.is_none())
            .map(|(id, _)| *id)
            .collect();
        idle.sort_unstable();
        let at = self.below(idle.len());
        idle.get(at).copied()
    }

    fn queue(&mut self, id: SequenceId, tokens: &[u32], rows: usize) {
        let expected = self.sequences.get_mut(&id).unwrap();
        expected
            .runs
            .push((tokens.to_vec(), tokens.len() == 1 || rows > 1));
        expected.queued = Some(rows);
        self.tokens += tokens.len();
        let wanted = [Wanted::MostLikely, Wanted::Logits][self.below(2)];
        self.scheduler.queue(id, tokens, rows, wanted);
    }

    fn act(&mut self) {
        let context = self.model.config.context;
        match self.below(12) {
            0 | 1 if self.sequences.len() < 9 => {
                let id = self.scheduler.open();
                let priority = i32::from(self.below(4) == 0);
                self.scheduler.set_priority(id, priority);
                self.sequences.insert(id, Expected::default());
                // Some prompts begin alike.
                let (kind, count) = (self.below(3), 1 + self.below(context.min(200)));
                let mut tokens: Vec<u32> = (0..count).map(|i| (i / 7 + kind) as u32 % VOCAB).collect();
                if let Some(last) = tokens.last_mut() {
                    *last = self.below(VOCAB as usize) as u32;
                }
                self.queue(id, &tokens, 1);
            }
            2 => {
                if let Some(id) = self.idle() {
                    let len = self.below(self.sequences[&id].len() + 1);
                    self.scheduler.truncate(id, len);
                    self.sequences.get_mut(&id).unwrap().truncate(len);
                }
            }
            3 if self.sequences.len() < 9 => {
                if let Some(id) = self.idle() {
                    let fork = self.scheduler.fork(id);
                    let expected = self.sequences[&id].clone();
                    self.sequences.insert(fork, expected);
                }
            }
            4 if self.below(3) == 0 => {
                if let Some(id) = self.idle() {
                    self.scheduler.close(id);
                    self.sequences.remove(&id);
                }
            }
            5 if self.below(4) == 0 => {
                let waiting = self.sequences.iter().filter(|(_, e)| e.queued.is_some());
                let Some(id) = waiting.map(|(id, _)| *id).min() else {
                    return;
                };
                assert!(self.scheduler.cancel(id), "no step is running");
                self.dropped(id);
            }
            6 if self.fails && self.below(8) == 0 => self.model.fails_in = Some(0),
            // A draft, or a token.
            n @ 7..9 => {
                if let Some(id) = self.idle() {
                    let rows = if n == 7 { 1 } else { 1 + self.below(5) };
                    if self.sequences[&id].len() + rows <= context {
                        let tokens: Vec<u32> = (0..rows).map(|_| self.below(VOCAB as usize) as u32).collect();
                        self.queue(id, &tokens, rows);
                    }
                }
            }
            _ => self.run_step(),
        }
    }

    /// The job of a sequence ended without an answer.
    fn dropped(&mut self, id: SequenceId) {
        let expected = self.sequences.get_mut(&id).unwrap();
        expected.queued = None;
        expected.truncate(self.scheduler.len(id));
    }

    fn run_step(&mut self) {
        if !self.scheduler.has_jobs() {
            return;
        }
        self.scheduler.expect_none();
        self.scheduler.plan(&mut self.step);
        assert!(!self.step.parts.is_empty(), "jobs wait for nothing");
        let spans: Vec<Span<'_>> = (self.step.parts.iter())
            .map(|part| Span {
                tokens: &self.step.tokens[part.tokens.clone()],
                start: part.start,
                pages: &self.step.pages[part.pages.clone()],
                logits: part.rows,
                alone: part.alone,
            })
            .collect();
        self.model.copy_pages(&self.step.copies).unwrap();
        self.copies += self.step.copies.len();
        self.rows += self.step.tokens.len();
        let result = self.model.step(&spans);
        let mut answered = Vec::new();
        let mut found = Found {
            ids: self.model.results.clone(),
            ..Found::default()
        };
        match result {
            Ok(()) => {
                let mut first = 0;
                for part in &self.step.parts {
                    if part.wanted == Wanted::Logits {
                        self.model.logits(first, part.rows, &mut found.logits).unwrap();
                    }
                    first += part.rows;
                }
                let (vocab, time) = (VOCAB as usize, Duration::from_millis(1));
                let mut done = |id| answered.push(id);
                self.scheduler.finish(&self.step, &found, vocab, time, &mut done);
            }
            Err(e) => self.scheduler.fail(&self.step, &e, &mut |id| answered.push(id)),
        }
        for id in answered {
            let answer = self.scheduler.answer(id).unwrap();
            if let Some(e) = answer.error.take() {
                assert_eq!(e.kind(), ErrorKind::DeviceLost);
                self.dropped(id);
                continue;
            }
            let mut ids = answer.ids.clone();
            let rows = answer.logits.chunks(VOCAB as usize);
            ids.extend(rows.map(|row| row.iter().position(|v| *v > 0.0).unwrap() as u32));
            let expected = self.sequences.get_mut(&id).unwrap();
            let rows = expected.queued.take().unwrap();
            let cells = expected.cells(self.model.exact);
            let seen = cells.len() - rows + 1..=cells.len();
            let want: Vec<u32> = seen.map(|n| next(&cells[..n])).collect();
            assert_eq!(ids, want, "sequence {id}");
            self.answers += 1;
        }
    }
}

#[test]
fn every_sequence_gets_what_it_gets_alone() {
    let [mut answers, mut copies, mut again, mut shared] = [0; 4];
    for seed in 0..10_000 {
        let mut run = Run::new(seed);
        for _ in 0..60 {
            run.act();
        }
        while run.scheduler.has_jobs() {
            run.run_step();
        }
        answers += run.answers;
        copies += run.copies;
        again += usize::from(run.rows > run.tokens);
        shared += usize::from(run.rows < run.tokens);
        for id in run.sequences.keys() {
            run.scheduler.close(*id);
        }
        assert_eq!(run.scheduler.used_pages()[0], 0, "seed {seed}: pages leak");
    }
    // What is to be tested happened.
    let happened = [answers > 50_000, copies > 1000, again > 1000, shared > 1000];
    assert_eq!(happened, [true; 4], "{answers} {copies} {again} {shared}");
}

/// Steps over a model that fails in step `fails_in`, if any.
fn steps(fails_in: Option<usize>) -> Steps {
    let config = BatchConfig {
        pages: 6,
        context: 256,
        rows: 128,
        logits: 64,
    };
    let model = FakeRows {
        fails_in,
        ..FakeRows::new(config, true)
    };
    Steps::start(model, true, None).unwrap()
}

/// Prompt, tokens one by one, a draft, and the same again after truncation.
fn text(sequence: &mut impl LanguageModel, seed: u32) -> Result<Vec<u32>> {
    let prompt: Vec<u32> = (0..70 + seed * 9).map(|i| (i + seed / 3) % VOCAB).collect();
    let mut all = Vec::new();
    for _ in 0..2 {
        all.push(sequence.most_likely(&prompt)?);
        for _ in 0..20 {
            let last = *all.last().unwrap();
            let mut logits = Vec::new();
            sequence.forward(&[last], &mut logits)?;
            assert_eq!(logits.len(), sequence.vocab());
            all.push(logits.iter().position(|v| *v > 0.0).unwrap() as u32);
        }
        all.extend(sequence.most_likely_all(&[1, 2, 3])?);
        assert_eq!(sequence.forward_all(&[4, 5])?.len(), 2 * sequence.vocab());
        sequence.truncate(17);
    }
    Ok(all)
}

#[test]
fn threads_share_steps() {
    let together = steps(None);
    let all: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..12)
            .map(|seed| {
                let mut sequence = together.sequence();
                scope.spawn(move || text(&mut sequence, seed).unwrap())
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(together.used_pages()[0], 0);
    for (seed, found) in (0..).zip(all) {
        assert_eq!(found, text(&mut steps(None).sequence(), seed).unwrap());
    }
}

#[test]
fn a_failed_step_ends_the_jobs_in_it_and_no_others() {
    let steps = steps(Some(1));
    let (mut first, mut second) = (steps.sequence(), steps.sequence());
    first.most_likely(&[1; 100]).unwrap();
    let e = first.most_likely(&[2]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::DeviceLost);
    assert_eq!(first.len(), 100, "known tokens are fed again");
    let found = first.most_likely(&[2]).unwrap();
    second.most_likely(&[1; 100]).unwrap();
    assert_eq!(second.most_likely(&[2]).unwrap(), found);
}

#[test]
fn a_cancelled_call_ends_and_the_sequence_goes_on() {
    let steps = steps(None);
    let mut sequence = steps.sequence();
    let cancel = Cancel::default();
    cancel.cancel();
    let cancellable = quota::cancellable(&cancel);
    match sequence.most_likely(&[1; 150]) {
        // A step may be faster.
        Ok(_) => sequence.truncate(0),
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::Interrupted);
            assert!(sequence.len() < 150);
            sequence.truncate(0)
        }
    };
    drop(cancellable);
    text(&mut sequence, 1).unwrap();
}

#[test]
fn wrong_calls_are_errors() {
    let steps = steps(None);
    let mut sequence = steps.sequence();
    let kind = |result: Result<u32>| result.unwrap_err().kind();
    assert_eq!(kind(sequence.most_likely(&[1; 257])), ErrorKind::ContextExceeded);
    assert_eq!(kind(sequence.most_likely(&[VOCAB])), ErrorKind::TokenOutOfRange);
    assert_eq!(kind(sequence.most_likely(&[])), ErrorKind::Other);
    sequence.most_likely(&[1; 256]).unwrap();
    assert_eq!(kind(sequence.most_likely(&[1])), ErrorKind::ContextExceeded);
    assert_eq!(sequence.len(), 256);
}

#[test]
fn a_fork_goes_on_from_the_same_text() {
    let steps = steps(None);
    let mut first = steps.sequence();
    first.most_likely(&[1; 100]).unwrap();
    let mut fork = first.fork();
    assert_eq!(steps.used_pages(), [2, 0]);
    let [a, b] = [first.most_likely(&[2]).unwrap(), fork.most_likely(&[2]).unwrap()];
    assert_eq!((a, steps.used_pages()), (b, [3, 0]));
    // It outlives the first.
    drop(first);
    fork.truncate(70);
    let mut other = steps.sequence();
    let mut alone = Vec::new();
    for sequence in [&mut fork, &mut other] {
        if sequence.is_empty() {
            sequence.most_likely(&[1; 70]).unwrap();
        }
        alone.push(sequence.most_likely(&[3]).unwrap());
    }
    assert_eq!(alone[0], alone[1]);
}

/// A model with a bug.
struct Panics(FakeRows);

impl RowModel for Panics {
    fn config(&self) -> BatchConfig {
        self.0.config()
    }

    fn vocab(&self) -> usize {
        self.0.vocab()
    }

    fn step(&mut self, _: &[Span<'_>]) -> Result<()> {
        panic!("a bug")
    }

    fn logits(&mut self, _: usize, _: usize, _: &mut Vec<f32>) -> Result<()> {
        Ok(())
    }

    fn most_likely(&mut self) -> Result<Vec<u32>> {
        Ok(Vec::new())
    }

    fn copy_pages(&mut self, _: &[[u32; 2]]) -> Result<()> {
        Ok(())
    }
}

#[test]
fn no_one_waits_for_a_thread_that_panicked() {
    let config = BatchConfig {
        pages: 2,
        context: 100,
        rows: 128,
        logits: 64,
    };
    let steps = Steps::start(Panics(FakeRows::new(config, true)), true, None).unwrap();
    let mut sequences = [steps.sequence(), steps.sequence()];
    for sequence in &mut sequences {
        assert_eq!(
            sequence.most_likely(&[1]).unwrap_err().kind(),
            ErrorKind::Internal
        );
    }
}
