//! Sequences in threads of their own.

use super::{CONFIG, FakeRows, VOCAB, steps};
use crate::error::{Error, ErrorKind, Result, Stage};
use crate::graph::op::paged_attention::PAGE;
use crate::llm::Candidates;
use crate::llm::batch::steps::{BatchSequence, StepRunner};
use crate::llm::engine::{BatchConfig, Reproducible, RowModel, Span};
use crate::llm::sampler::SplitMix64;
use crate::llm::{Cancel, LanguageModel};
use crate::quota::{self, Quota};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::Duration;

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
    // With few pages, few sequences run at the same time.
    for (pages, most) in [(6, usize::MAX), (48, 12 * 46 / 4)] {
        let model = FakeRows {
            // Long enough for all others to queue their next job.
            time: Duration::from_millis(5),
            ..FakeRows::new(BatchConfig { pages, ..CONFIG }, true)
        };
        let count = model.steps.clone();
        let together = StepRunner::start(model).unwrap();
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
        // 12 sequences with 46 jobs each.
        let count = count.load(Ordering::Relaxed);
        assert!(count <= most, "{count} steps");
        for (seed, found) in (0..).zip(all) {
            assert_eq!(found, text(&mut steps(None).sequence(), seed).unwrap());
        }
    }
}

#[test]
fn pages_are_those_that_tokens_need() {
    let config = BatchConfig {
        pages: 300,
        context: 1024,
        ..CONFIG
    };
    let steps = StepRunner::start(FakeRows::new(config, true)).unwrap();
    let mut random = SplitMix64::new(5);
    let mut below = |n: u64| u32::try_from(random.next_u64() % n).unwrap();
    let mut sequences = Vec::new();
    for _ in 0..32 {
        let length = 1 + below(700);
        let prompt: Vec<u32> = (0..length).map(|_| below(u64::from(VOCAB))).collect();
        let mut sequence = steps.sequence();
        let token = sequence.most_likely(&prompt).unwrap();
        sequences.push((sequence, token));
    }
    for round in 0..100 {
        for (sequence, token) in &mut sequences {
            *token = sequence.most_likely(&[*token]).unwrap();
        }
        let needed: usize = sequences.iter().map(|(s, _)| s.len().div_ceil(PAGE)).sum();
        let used = steps.used_pages()[0];
        assert!(20 * used <= 21 * needed, "{used} of {needed} in round {round}");
    }
}

#[test]
fn a_failed_step_ends_the_jobs_in_it_and_no_others() {
    let steps = steps(Some(1));
    let (mut first, mut second) = (steps.sequence(), steps.sequence());
    first.most_likely(&[1; 100]).unwrap();
    let e = first.most_likely(&[2]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::OutOfMemory);
    assert_eq!(first.len(), 100, "known tokens are fed again");
    let found = first.most_likely(&[2]).unwrap();
    second.most_likely(&[1; 100]).unwrap();
    assert_eq!(second.most_likely(&[2]).unwrap(), found);
}

#[test]
fn a_cancelled_call_ends_and_the_sequence_goes_on() {
    let model = FakeRows {
        time: Duration::from_millis(50),
        ..FakeRows::new(CONFIG, false)
    };
    let together = StepRunner::start(model).unwrap();
    let mut sequence = together.sequence();
    let cancel = Cancel::default();
    cancel.cancel();
    let cancellable = quota::cancellable(&cancel);
    let e = sequence.most_likely(&[1; 150]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Interrupted);
    assert!(sequence.len() < 150, "a prompt of two steps");
    drop(cancellable);
    sequence.truncate(0);
    let found = sequence.most_likely(&[2; 150]).unwrap();
    assert_eq!(found, steps(None).sequence().most_likely(&[2; 150]).unwrap());
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
    let mut fork = first.forked();
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

/// Calls functions before each step and before its most likely tokens are read; these fail with
/// them.
struct Hooked {
    model: FakeRows,
    step: Hook,
    read: Hook,
}

type Hook = Box<dyn FnMut() -> Result<()> + Send>;

impl RowModel for Hooked {
    fn config(&self) -> BatchConfig {
        self.model.config()
    }

    fn vocab(&self) -> usize {
        self.model.vocab()
    }

    fn step(&mut self, spans: &mut dyn Iterator<Item = Span<'_>>) -> Result<()> {
        (self.step)()?;
        self.model.step(spans)
    }

    fn logits(&mut self, first: usize, rows: usize, out: &mut Vec<f32>) -> Result<()> {
        self.model.logits(first, rows, out)
    }

    fn most_likely(&mut self, first: usize, rows: usize, out: &mut Vec<u32>) -> Result<()> {
        (self.read)()?;
        self.model.most_likely(first, rows, out)
    }

    fn finds_candidates(&self) -> bool {
        self.model.finds_candidates()
    }

    fn time(&self) -> Option<Duration> {
        self.model.time()
    }

    fn candidates(&mut self, first: usize, rows: usize, out: &mut Candidates) -> Result<()> {
        self.model.candidates(first, rows, out)
    }

    fn copy_pages(&mut self, pages: &[[u32; 2]]) -> Result<()> {
        self.model.copy_pages(pages)
    }
}

pub(super) fn hooked(hook: impl FnMut() -> Result<()> + Send + 'static) -> StepRunner {
    limited(None, hook)
}

/// Steps whose calls may take so long.
fn limited(limit: Option<Duration>, hook: impl FnMut() -> Result<()> + Send + 'static) -> StepRunner {
    with_hooks(limit, Box::new(hook), Box::new(|| Ok(())))
}

fn with_hooks(limit: Option<Duration>, step: Hook, read: Hook) -> StepRunner {
    let config = BatchConfig {
        pages: 4,
        context: 100,
        rows: 128,
        logits: 64,
        reproducible: Reproducible::No,
    };
    let model = FakeRows {
        limit,
        ..FakeRows::new(config, true)
    };
    StepRunner::start(Hooked { model, step, read }).unwrap()
}

/// Devices that work asynchronously report a failed step when its results are read.
#[test]
fn a_step_whose_results_cannot_be_read_leaves_no_pages() {
    for kind in [ErrorKind::Other, ErrorKind::DeviceLost, ErrorKind::NotFinite] {
        let mut fails = true;
        let read = move || match std::mem::take(&mut fails) {
            true => Err(Error::other(Stage::Run, "a failed read").of_kind(kind)),
            false => Ok(()),
        };
        let steps = with_hooks(None, Box::new(|| Ok(())), Box::new(read));
        let mut sequence = steps.sequence();
        let e = sequence.most_likely(&[1; PAGE + 1]).unwrap_err();
        assert_eq!(e.kind(), kind);
        // Logits that are not finite are results of the model: its cache is right.
        let left = usize::from(kind == ErrorKind::NotFinite);
        assert_eq!(steps.used_pages()[0], 2 * left);
        let again = steps.sequence().most_likely(&[1; PAGE + 1]);
        match kind {
            ErrorKind::DeviceLost => assert_eq!(again.unwrap_err().kind(), kind),
            _ => assert!(again.unwrap() < VOCAB),
        }
    }
}

#[test]
fn no_one_waits_for_a_step_that_panicked() {
    for together in [false, true] {
        let steps = hooked(|| panic!("a bug"));
        let mut sequences = [steps.sequence(), steps.sequence()];
        if together {
            let found = BatchSequence::forward_each(&mut sequences, &[1, 2]);
            assert_eq!(found.unwrap_err().kind(), ErrorKind::Internal);
        }
        for sequence in &mut sequences {
            let found = sequence.most_likely(&[1]);
            assert_eq!(found.unwrap_err().kind(), ErrorKind::Internal);
        }
        assert_eq!(steps.check().unwrap_err().kind(), ErrorKind::Internal);
    }
}

#[test]
fn nothing_runs_after_the_device_is_lost() {
    let mut count = 0;
    let steps = hooked(move || {
        count += 1;
        match count {
            1 => Ok(()),
            2 => Err(Error::other(Stage::Run, "gone").of_kind(ErrorKind::DeviceLost)),
            _ => panic!("a step on a lost device"),
        }
    });
    let (mut first, mut second) = (steps.sequence(), steps.sequence());
    first.most_likely(&[1]).unwrap();
    steps.check().unwrap();
    for sequence in [&mut first, &mut second, &mut steps.sequence()] {
        let e = sequence.most_likely(&[2]).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::DeviceLost);
    }
    assert_eq!(steps.check().unwrap_err().kind(), ErrorKind::DeviceLost);
}

#[test]
fn a_call_without_time_fails_no_other() {
    let slow = Arc::new(AtomicBool::new(false));
    let is_slow = slow.clone();
    let limit = Duration::from_secs(1);
    let steps = limited(Some(limit), move || {
        if is_slow.load(Ordering::Relaxed) {
            std::thread::sleep(limit * 3 / 2);
        }
        // The quota of a program, which executors enter.
        let _call = Quota::new(0, Some(Duration::ZERO), 0).enter();
        quota::check().map_err(|e| Error::exceeded(Stage::Run, e))
    });
    let (mut slow_one, mut other) = (steps.sequence(), steps.sequence());
    other.most_likely(&[1; PAGE]).unwrap();
    slow.store(true, Ordering::Relaxed);
    let e = slow_one.most_likely(&[2]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::LimitExceeded, "{e}");
    slow.store(false, Ordering::Relaxed);
    // No page was evicted.
    assert_eq!(steps.used_pages(), [2, 0]);
    other.most_likely(&[2]).unwrap();
    slow_one.most_likely(&[2]).unwrap();
}

#[test]
fn a_sequence_without_company_runs_its_steps_itself() {
    let threads = Arc::new(Mutex::new(Vec::new()));
    let used = threads.clone();
    let steps = hooked(move || {
        used.lock().unwrap().push(std::thread::current().id());
        Ok(())
    });
    let own = |ran: &[ThreadId]| ran.iter().all(|id| *id == std::thread::current().id());
    let ran = || std::mem::take(&mut *threads.lock().unwrap());
    let mut sequences = [steps.sequence(), steps.sequence()];
    for token in [1, 2] {
        sequences[0].most_likely(&[token]).unwrap();
    }
    let alone = ran();
    assert!(alone.len() == 2 && own(&alone), "{alone:?}");
    BatchSequence::forward_each(&mut sequences, &[3, 4]).unwrap();
    let together = ran();
    assert!(!together.is_empty() && !own(&together), "{together:?}");
    // The other one is still expected, so the thread waits for it; then it is forgotten.
    for token in [5, 6, 7] {
        sequences[1].most_likely(&[token]).unwrap();
    }
    let last = ran();
    assert!(last.len() == 3 && own(&last[1..]), "{last:?}");
}

#[test]
fn a_call_that_is_cancelled_in_its_step_fails_no_step() {
    let cancel = Cancel::default();
    let inner = cancel.clone();
    let steps = hooked(move || {
        inner.cancel();
        quota::check().map_err(|e| Error::exceeded(Stage::Run, e))
    });
    let mut sequences = [steps.sequence(), steps.sequence()];
    sequences[0].most_likely(&[1; PAGE]).unwrap();
    let [used, _] = steps.used_pages();
    assert_eq!(used, 1);
    cancel.reset();
    let _cancellable = quota::cancellable(&cancel);
    sequences[1].most_likely(&[2]).unwrap();
    assert!(cancel.is_cancelled());
    // The other one was not evicted.
    assert_eq!(steps.used_pages()[0], used + 1);
}
