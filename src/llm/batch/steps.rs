//! Runs the steps of many sequences, and is the [`LanguageModel`] of each.
//!
//! A sequence that has the only job runs its steps itself, since waking another thread would take
//! longer than queueing. A thread runs the steps that sequences share.

use super::scheduler::{Scheduler, SequenceId};
use super::sequence::{JobResult, Wanted};
use super::step::{Step, StepOutput};
use crate::error::{Error, ErrorKind, Result, Stage};
use crate::graph::op::paged_attention::PAGE;
use crate::llm::engine::{BatchConfig, RowModel, check_room, check_tokens};
use crate::llm::{Candidates, LanguageModel};
use crate::quota::{self, Exceeded};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often a waiting sequence checks for cancellation.
const POLL: Duration = Duration::from_millis(20);

/// What the thread and the sequences share.
#[derive(Debug)]
struct State {
    scheduler: Scheduler,
    /// Taken by whoever runs a step.
    runner: Option<Box<Runner>>,
    /// When the last answers were given.
    answered: Instant,
    /// Time of the last step.
    last: Duration,
    /// When the step began that is being run.
    started: Option<Instant>,
    /// How long sequences usually take to queue their next job, up to a step.
    pause: Duration,
    /// Wakes each sequence, by ID.
    turns: Vec<Arc<Condvar>>,
    /// [`StepRunner`] was dropped: the thread ends with the last sequence.
    closing: bool,
    /// Why there will be no other step.
    ended: Option<Ended>,
}

/// Why steps end for good.
#[derive(Clone, Copy, Debug)]
enum Ended {
    Panicked,
    DeviceLost,
}

impl Ended {
    fn error(self) -> Error {
        match self {
            Self::Panicked => Error::internal(Stage::Run, "a step has panicked (see standard error)"),
            Self::DeviceLost => device_lost(),
        }
    }
}

/// The error of calls after the device was lost.
pub(super) fn device_lost() -> Error {
    let what = "the device was lost in an earlier run; load the model again";
    Error::other(Stage::Run, what).of_kind(ErrorKind::DeviceLost)
}

impl State {
    /// Queues tokens that fit; the last `outputs` have results.
    fn queue(&mut self, id: SequenceId, tokens: &[u32], outputs: usize, wanted: Wanted) {
        if self.scheduler.expects(id) {
            // Whoever takes longer than a step is not waited for.
            let pause = self.answered.elapsed().min(self.last);
            self.pause = (self.pause * 7 + pause) / 8;
        }
        self.scheduler.queue(id, tokens, outputs, wanted);
    }

    /// True if the sequence may run a step itself: no other has a job or will soon have one.
    fn is_alone(&self, id: SequenceId) -> bool {
        self.runner.is_some() && self.scheduler.has_only_job(id)
    }
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Wakes the thread.
    work: Condvar,
}

impl Shared {
    /// Ignores poisoning: the panic that caused it has been reported.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Plans and runs a step, unless another thread runs one. The state is unlocked meanwhile.
    fn run_step<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let Some(mut runner) = state.runner.take() else {
            return state;
        };
        // The panic has been reported.
        let ran = catch_unwind(AssertUnwindSafe(|| {
            // Under the lock that found the jobs: none may be cancelled before it is in the step.
            state.started = Some(Instant::now());
            state.scheduler.expect_none();
            state.scheduler.plan(&mut runner.step);
            drop(state);
            self.run_with(runner)
        }));
        ran.unwrap_or_else(|_| {
            let mut state = self.lock();
            self.end(&mut state, Ended::Panicked);
            state
        })
    }

    /// Lets nobody wait for another step.
    fn end(&self, state: &mut State, why: Ended) {
        state.ended = Some(why);
        state.turns.iter().for_each(|turn| turn.notify_all());
        self.work.notify_all();
    }

    fn run_with(&self, mut runner: Box<Runner>) -> MutexGuard<'_, State> {
        // No call may end a step, which may have rows of other sequences.
        let _common = quota::common();
        let start = Instant::now();
        let result = runner.run();
        let time = start.elapsed();
        let is_lost = result.as_ref().is_err_and(|e| e.kind() == ErrorKind::DeviceLost);
        let mut state = self.lock();
        (state.answered, state.last, state.started) = (Instant::now(), time, None);
        let State { scheduler, turns, .. } = &mut *state;
        let mut answered = |id: SequenceId| {
            if let Some(turn) = turns.get(id) {
                turn.notify_all();
            }
        };
        let Runner { model, step, found } = &mut *runner;
        match result {
            Ok(()) => scheduler.finish(step, found, model.vocab(), time, &mut answered),
            Err(e) => scheduler.fail(step, &e, &mut answered),
        }
        if is_lost {
            self.end(&mut state, Ended::DeviceLost);
        }
        // Under the lock that answered, so that a sequence that is alone can run its next step.
        state.runner = Some(runner);
        state
    }

    /// Runs steps until the last sequence is closed.
    fn serve(&self) {
        while let Some(state) = self.wait_for_jobs() {
            drop(self.run_step(state));
        }
    }

    /// Waits until a step should run; returns `None` at the end. Sequences that were just answered
    /// get some time to queue their next job: one that misses the step would wait for a whole step.
    fn wait_for_jobs(&self) -> Option<MutexGuard<'_, State>> {
        let mut state = self.lock();
        loop {
            if state.ended.is_some() || state.closing && state.scheduler.opened() == 0 {
                return None;
            }
            if state.runner.is_none() || !state.scheduler.has_jobs() {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let patience = (4 * state.pause).clamp(state.last / 8, state.last / 2);
            let left = (state.answered + patience).saturating_duration_since(Instant::now());
            if !state.scheduler.expects_more() || left.is_zero() {
                return Some(state);
            }
            let waited = self.work.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Runs steps of many sequences on a thread of its own, and those of a sequence without company on
/// the thread of its caller. The thread ends once this value and all its sequences are dropped.
#[derive(Debug)]
pub struct StepRunner {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    facts: Facts,
}

/// What sequences know of the model.
#[derive(Clone, Copy, Debug)]
struct Facts {
    vocab: usize,
    config: BatchConfig,
    finds_candidates: bool,
    /// Maximum time of a call.
    time: Option<Duration>,
}

impl StepRunner {
    /// Starts the thread. An internal error if the sizes of `model` are too small for a sequence.
    pub fn start(model: impl RowModel + 'static) -> Result<Self> {
        let config = model.config();
        let facts = Facts {
            vocab: model.vocab(),
            config,
            finds_candidates: model.finds_candidates(),
            time: model.time(),
        };
        let (pages, rows) = (config.context.div_ceil(PAGE), config.least_rows());
        if config.rows < rows || config.pages < pages || config.logits == 0 {
            let what = format!("steps need {rows} rows, {pages} pages and logits, found {config:?}");
            return Err(Error::internal(Stage::Run, what));
        }
        let runner = Runner {
            model: Box::new(model),
            step: Step::default(),
            found: StepOutput::default(),
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                scheduler: Scheduler::new(config),
                runner: Some(Box::new(runner)),
                answered: Instant::now(),
                last: Duration::ZERO,
                started: None,
                pause: Duration::from_millis(1),
                turns: Vec::new(),
                closing: false,
                ended: None,
            }),
            work: Condvar::new(),
        });
        let serving = shared.clone();
        let thread = std::thread::Builder::new()
            .name("tlite-steps".to_owned())
            .spawn(move || serving.serve())
            .map_err(|e| Error::caused(Stage::Run, "cannot start a thread", e))?;
        Ok(Self {
            shared,
            thread: Some(thread),
            facts,
        })
    }

    /// A new sequence.
    pub fn sequence(&self) -> BatchSequence {
        let id = self.shared.lock().scheduler.open();
        BatchSequence::new(&self.shared, id, 0, self.facts)
    }

    /// An error if there will be no other step: one has panicked, or the device is lost.
    pub fn check(&self) -> Result<()> {
        self.shared
            .lock()
            .ended
            .map_or(Ok(()), |ended| Err(ended.error()))
    }

    /// Number of pages that sequences use, and of pages that only hold cached prefixes.
    pub fn used_pages(&self) -> [usize; 2] {
        self.shared.lock().scheduler.used_pages()
    }

    /// How long the present step has been running.
    pub fn running(&self) -> Option<Duration> {
        self.shared.lock().started.map(|start| start.elapsed())
    }
}

impl Drop for StepRunner {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closing = true;
        let wait = state.scheduler.opened() == 0;
        drop(state);
        self.shared.work.notify_all();
        // With open sequences, the thread ends after the last of them.
        if let Some(thread) = self.thread.take().filter(|_| wait) {
            // It catches panics.
            let _ = thread.join();
        }
    }
}

/// The model, with the step that it runs.
struct Runner {
    model: Box<dyn RowModel>,
    step: Step,
    found: StepOutput,
}

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runner").finish_non_exhaustive()
    }
}

impl Runner {
    /// Runs the step and reads its results.
    fn run(&mut self) -> Result<()> {
        let Self { model, step, found } = self;
        if step.parts.is_empty() {
            return Err(Error::internal(Stage::Run, "jobs wait, but the plan has no rows"));
        }
        model.copy_pages(&step.copies)?;
        model.step(&mut step.spans())?;
        found.read(model.as_mut(), step)
    }
}

/// A sequence of a batch. Its calls block until steps, which it shares with other sequences, have
/// run its tokens. If a call is cancelled
/// ([`DecodeOptions::cancel`](crate::llm::DecodeOptions::cancel)), it ends after the current step.
#[derive(Debug)]
pub struct BatchSequence {
    shared: Arc<Shared>,
    id: SequenceId,
    turn: Arc<Condvar>,
    len: usize,
    /// How many tokens of the last call were found in the cache.
    reused: usize,
    facts: Facts,
}

impl BatchSequence {
    fn new(shared: &Arc<Shared>, id: SequenceId, len: usize, facts: Facts) -> Self {
        let mut state = shared.lock();
        while state.turns.len() <= id {
            state.turns.push(Arc::default());
        }
        let turn = state.turns.get(id).cloned().unwrap_or_default();
        drop(state);
        Self {
            shared: shared.clone(),
            id,
            turn,
            len,
            reused: 0,
            facts,
        }
    }

    /// A new sequence with the same tokens. Pages of the cache are shared until they change.
    pub fn forked(&self) -> Self {
        let id = self.shared.lock().scheduler.fork(self.id);
        Self::new(&self.shared, id, self.len, self.facts)
    }

    /// Sequences with larger priorities run first; 0 at first.
    pub fn set_priority(&mut self, priority: i32) {
        self.shared.lock().scheduler.set_priority(self.id, priority);
    }

    /// The sizes of its steps and of the cache.
    pub(super) fn config(&self) -> &BatchConfig {
        &self.facts.config
    }

    /// Appends one token to each sequence in common steps, and returns the logits that follow, by
    /// sequence. The sequences belong to the same [`StepRunner`]. After an error no sequence has a
    /// job, and the length of each is as described at [`LanguageModel::forward`].
    pub(super) fn forward_each(sequences: &mut [Self], tokens: &[u32]) -> Result<Vec<Vec<f32>>> {
        let Some(shared) = sequences.first().map(|first| first.shared.clone()) else {
            return Ok(Vec::new());
        };
        let others = sequences.iter().any(|s| !Arc::ptr_eq(&s.shared, &shared));
        if others || tokens.len() != sequences.len() {
            let what = format!(
                "{} tokens for {} sequences, not all of the same steps: {others}",
                tokens.len(),
                sequences.len()
            );
            return Err(Error::internal(Stage::Run, what));
        }
        for (sequence, token) in sequences.iter().zip(tokens) {
            sequence.check(std::slice::from_ref(token))?;
        }
        // Under one lock, so that no step starts with a part of them.
        let mut state = shared.lock();
        for (sequence, token) in sequences.iter().zip(tokens) {
            state.queue(sequence.id, std::slice::from_ref(token), 1, Wanted::Logits);
        }
        drop(state);
        shared.work.notify_all();
        let take = |s: &mut Self| {
            s.wait(&shared, shared.lock(), |answer| {
                std::mem::take(&mut answer.logits)
            })
        };
        // All are waited for, even after an error.
        let rows: Vec<Result<Vec<f32>>> = sequences.iter_mut().map(take).collect();
        rows.into_iter().collect()
    }

    /// An error for tokens that cannot be queued.
    fn check(&self, tokens: &[u32]) -> Result<()> {
        check_room(self.len, tokens.len(), self.facts.config.context)?;
        check_tokens(tokens, self.facts.vocab)
    }

    /// Queues tokens, waits for the answer and passes it to `take`. The last `outputs` tokens have
    /// results.
    fn ask<T>(
        &mut self,
        tokens: &[u32],
        outputs: usize,
        wanted: Wanted,
        take: impl FnOnce(&mut JobResult) -> T,
    ) -> Result<T> {
        self.check(tokens)?;
        let shared = self.shared.clone();
        let mut state = shared.lock();
        state.queue(self.id, tokens, outputs, wanted);
        if !state.is_alone(self.id) {
            shared.work.notify_all();
        }
        self.wait(&shared, state, take)
    }

    /// Fails if a call that began at `start` has no time left.
    fn check_time(&self, start: Instant) -> Result<(), Exceeded> {
        let late = self.facts.time.filter(|limit| start.elapsed() > *limit);
        late.map_or(Ok(()), |limit| Err(Exceeded::Time(limit)))
    }

    /// Waits for the answer to the queued tokens and passes it to `take`. Only this call fails if
    /// it takes too long.
    fn wait<'a, T>(
        &mut self,
        shared: &'a Shared,
        mut state: MutexGuard<'a, State>,
        take: impl FnOnce(&mut JobResult) -> T,
    ) -> Result<T> {
        let (start, mut limit) = (Instant::now(), None);
        let result = loop {
            if let Some(answer) = state.scheduler.answer(self.id) {
                let late = self.check_time(start).err();
                let late = late.map(|e| Error::exceeded(Stage::Run, e));
                break match answer.error.take().map(|e| limit.unwrap_or(e)).or(late) {
                    Some(e) => Err(e),
                    None => {
                        self.reused = answer.reused;
                        Ok(take(answer))
                    }
                };
            }
            if let Some(ended) = state.ended {
                break Err(ended.error());
            }
            if limit.is_none()
                && let Err(e) = quota::check().and_then(|()| self.check_time(start))
            {
                let e = Error::exceeded(Stage::Run, e);
                if state.scheduler.cancel(self.id) {
                    break Err(e);
                }
                limit = Some(e);
            }
            if state.is_alone(self.id) {
                state = shared.run_step(state);
                if state.scheduler.has_jobs() && !state.is_alone(self.id) {
                    shared.work.notify_all();
                }
                continue;
            }
            let waited = self.turn.wait_timeout(state, POLL);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        };
        self.len = state.scheduler.len(self.id);
        result
    }

    fn check_rows(&self, tokens: &[u32]) -> Result<()> {
        if tokens.len() > self.most_rows() {
            let what = format!(
                "{} rows of logits; at most {} fit",
                tokens.len(),
                self.most_rows()
            );
            return Err(Error::internal(Stage::Run, what));
        }
        Ok(())
    }
}

impl Drop for BatchSequence {
    fn drop(&mut self) {
        self.shared.lock().scheduler.close(self.id);
        // The thread may wait for this.
        self.shared.work.notify_all();
    }
}

impl LanguageModel for BatchSequence {
    fn vocab(&self) -> usize {
        self.facts.vocab
    }

    fn context(&self) -> usize {
        self.facts.config.context
    }

    /// The scheduler splits long inputs.
    fn run_length(&self) -> usize {
        self.facts.config.context
    }

    fn len(&self) -> usize {
        self.len
    }

    fn reused(&self) -> usize {
        self.reused
    }

    fn forward(&mut self, tokens: &[u32], logits: &mut Vec<f32>) -> Result<()> {
        self.ask(tokens, 1, Wanted::Logits, |answer| {
            std::mem::swap(logits, &mut answer.logits);
        })
    }

    fn forward_all(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        self.check_rows(tokens)?;
        self.ask(tokens, tokens.len(), Wanted::Logits, |answer| {
            std::mem::take(&mut answer.logits)
        })
    }

    fn most_rows(&self) -> usize {
        self.facts.config.logits
    }

    fn most_likely(&mut self, tokens: &[u32]) -> Result<u32> {
        let id = self.ask(tokens, 1, Wanted::MostLikely, |answer| answer.ids.last().copied())?;
        id.ok_or_else(|| Error::internal(Stage::Run, "a step without a token"))
    }

    fn most_likely_all(&mut self, tokens: &[u32]) -> Result<Vec<u32>> {
        self.check_rows(tokens)?;
        self.ask(tokens, tokens.len(), Wanted::MostLikely, |answer| {
            std::mem::take(&mut answer.ids)
        })
    }

    fn finds_candidates(&self) -> bool {
        self.facts.finds_candidates
    }

    fn candidates(&mut self, tokens: &[u32], found: &mut Candidates) -> Result<()> {
        self.ask(tokens, 1, Wanted::Candidates, |answer| {
            std::mem::swap(found, &mut answer.candidates);
        })
    }

    fn candidates_all(&mut self, tokens: &[u32], found: &mut Candidates) -> Result<()> {
        self.check_rows(tokens)?;
        self.ask(tokens, tokens.len(), Wanted::Candidates, |answer| {
            std::mem::swap(found, &mut answer.candidates);
        })
    }

    fn fork(&self) -> Option<Box<dyn LanguageModel + Send>> {
        Some(Box::new(self.forked()))
    }

    fn truncate(&mut self, len: usize) -> usize {
        if len < self.len {
            self.shared.lock().scheduler.truncate(self.id, len);
            self.len = len;
        }
        self.len
    }
}
