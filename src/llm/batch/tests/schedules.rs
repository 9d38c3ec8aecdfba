//! Random schedules, step by step.

use super::{CONFIG, Cell, FakeRows, VOCAB, next};
use crate::error::ErrorKind;
use crate::graph::op::paged_attention::{CUT, PAGE};
use crate::llm::batch::scheduler::{Scheduler, SequenceId};
use crate::llm::batch::sequence::Wanted;
use crate::llm::batch::step::{Step, StepOutput};
use crate::llm::engine::{BatchConfig, Reproducible, RowModel};
use crate::llm::sampler::SplitMix64;
use std::collections::HashMap;
use std::time::Duration;

/// What a sequence should have been given.
#[derive(Clone, Default)]
struct Expected {
    /// Tokens that were queued together, and whether each is computed alone.
    runs: Vec<(Vec<u32>, bool)>,
    /// How many of the last tokens have results.
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
    /// Numbers of answers, of pages copied, of jobs cancelled in a step, of jobs whose results
    /// could not be read, and of rows and tokens.
    answers: usize,
    copies: usize,
    cancels: usize,
    unread: usize,
    rows: usize,
    tokens: usize,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut random = SplitMix64::new(seed);
        let mut below = |n: u64| usize::try_from(random.next_u64() % n).unwrap();
        let context = 70 + below(300);
        let ways = [Reproducible::No, Reproducible::ByChunks, Reproducible::ByPlan];
        let reproducible = ways[below(3)];
        let exact = reproducible == Reproducible::ByChunks;
        let mut config = BatchConfig {
            pages: context.div_ceil(PAGE) + below(8),
            context,
            rows: 128,
            // Drafts have up to 5 rows.
            logits: [64, 6][below(2)],
            reproducible,
        };
        if reproducible == Reproducible::ByPlan {
            config.rows = config.least_rows();
        }
        Self {
            scheduler: Scheduler::new(config),
            model: FakeRows::new(config, exact),
            step: Step::default(),
            fails: below(4) == 0,
            random,
            sequences: HashMap::new(),
            answers: 0,
            copies: 0,
            cancels: 0,
            unread: 0,
            rows: 0,
            tokens: 0,
        }
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.random.next_u64() % n.max(1) as u64).unwrap()
    }

    /// A sequence without a job.
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
        let wanted = [Wanted::MostLikely, Wanted::Candidates, Wanted::Logits][self.below(3)];
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
            6 if self.fails && self.below(4) == 0 => match self.below(2) {
                0 => self.model.fails_in = Some(0),
                _ => self.model.unread_in = Some(self.below(3)),
            },
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
        // One of the jobs may be cancelled while the step runs.
        let cancelled = self.step.parts.first().map(|part| part.sequence);
        let cancelled = cancelled.filter(|_| self.random.next_u64().is_multiple_of(16));
        if let Some(id) = cancelled {
            assert!(!self.scheduler.cancel(id), "it is in the step");
        }
        self.model.copy_pages(&self.step.copies).unwrap();
        self.copies += self.step.copies.len();
        self.rows += self.step.tokens.len();
        let result = self.model.step(&mut self.step.spans());
        let mut answered = Vec::new();
        let (mut found, mut unread) = (StepOutput::default(), 0);
        match result {
            Ok(()) => {
                found.read(&mut self.model, &self.step).unwrap();
                self.unread += found.failed.len();
                unread = found.failed.len();
                let (vocab, time) = (VOCAB as usize, Duration::from_millis(1));
                let mut done = |id| answered.push(id);
                self.scheduler
                    .finish(&self.step, &mut found, vocab, time, &mut done);
            }
            Err(e) => self.scheduler.fail(&self.step, &e, &mut |id| answered.push(id)),
        }
        for id in answered {
            let answer = self.scheduler.answer(id).unwrap();
            if let Some(e) = answer.error.take() {
                let interrupted = e.kind() == ErrorKind::Interrupted && cancelled == Some(id);
                let is_unread = e.kind() == ErrorKind::NotFinite;
                assert!(
                    interrupted || is_unread || e.kind() == ErrorKind::OutOfMemory,
                    "{e}"
                );
                self.cancels += usize::from(interrupted);
                unread -= usize::from(is_unread);
                self.dropped(id);
                continue;
            }
            let mut ids = answer.ids.clone();
            let candidates = (0..answer.candidates.rows()).filter_map(|i| answer.candidates.row(i));
            ids.extend(candidates.map(|row| row.ids[0]));
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
        assert_eq!(unread, 0, "each of these jobs ends, and no other");
    }
}

#[test]
fn every_sequence_gets_what_it_gets_alone() {
    let [
        mut answers,
        mut copies,
        mut cancels,
        mut unread,
        mut again,
        mut shared,
    ] = [0; 6];
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
        cancels += run.cancels;
        unread += run.unread;
        again += usize::from(run.rows > run.tokens);
        shared += usize::from(run.rows < run.tokens);
        for id in run.sequences.keys() {
            run.scheduler.close(*id);
        }
        assert_eq!(run.scheduler.used_pages()[0], 0, "seed {seed}: pages leak");
    }
    // What is to be tested happened.
    let happened = [
        answers > 50_000,
        copies > 1000,
        cancels > 1000,
        unread > 1000,
        again > 1000,
        shared > 1000,
    ];
    let found = format!("{answers} {copies} {cancels} {unread} {again} {shared}");
    assert_eq!(happened, [true; 6], "{found}");
}

/// Sequences need no more pages than their contexts.
#[test]
fn as_many_sequences_start_as_whole_contexts_fit() {
    let config = BatchConfig {
        pages: 4,
        context: PAGE,
        ..CONFIG
    };
    let mut scheduler = Scheduler::new(config);
    let mut step = Step::default();
    for _ in 0..4 {
        let id = scheduler.open();
        scheduler.queue(id, &[1; 16], 1, Wanted::MostLikely);
    }
    scheduler.plan(&mut step);
    assert_eq!(step.parts.len(), 4);
}

/// Decoding that asks for all rows with results leaves one for prompts.
#[test]
fn prompts_end_beside_decoding_that_fills_a_step() {
    let config = BatchConfig {
        pages: 32,
        logits: 4,
        ..CONFIG
    };
    let mut scheduler = Scheduler::new(config);
    let (mut step, mut found) = (Step::default(), StepOutput::default());
    let mut model = FakeRows::new(config, false);
    let decoding: Vec<SequenceId> = (0..4).map(|_| scheduler.open()).collect();
    let prompt = scheduler.open();
    scheduler.queue(prompt, &[1; 150], 1, Wanted::Candidates);
    for steps in 0.. {
        assert!(steps < 20, "the prompt waits for ever");
        for id in &decoding {
            if scheduler.answer(*id).is_some() || steps == 0 {
                scheduler.queue(*id, &[2], 1, Wanted::MostLikely);
            }
        }
        scheduler.plan(&mut step);
        model.step(&mut step.spans()).unwrap();
        found.read(&mut model, &step).unwrap();
        let time = Duration::from_millis(1);
        scheduler.finish(&step, &mut found, VOCAB as usize, time, &mut |_| {});
        if scheduler.answer(prompt).is_some() {
            break;
        }
    }
}

/// Within a page, and after the first tokens.
#[test]
fn planning_a_step_allocates_nothing() {
    let config = BatchConfig { pages: 32, ..CONFIG };
    for reproducible in [Reproducible::No, Reproducible::ByChunks] {
        let config = BatchConfig {
            reproducible,
            ..config
        };
        let mut scheduler = Scheduler::new(config);
        let ids: Vec<SequenceId> = (0..8).map(|_| scheduler.open()).collect();
        let (mut step, mut found) = (Step::default(), StepOutput::default());
        let mut decode = |tokens: &[u32]| {
            for id in &ids {
                scheduler.queue(*id, tokens, 1, Wanted::MostLikely);
            }
            while scheduler.has_jobs() {
                scheduler.plan(&mut step);
                found.ids.resize(step.outputs, 1);
                let (vocab, time) = (VOCAB as usize, Duration::from_millis(1));
                scheduler.finish(&step, &mut found, vocab, time, &mut |_| {});
            }
            for id in &ids {
                assert_eq!(scheduler.answer(*id).unwrap().ids, [1]);
            }
        };
        decode(&[2; 20]);
        (0..3).for_each(|_| decode(&[3]));
        let counted = allocation_counter::measure(|| (0..10).for_each(|_| decode(&[4])));
        assert_eq!(counted.count_total, 0, "{counted:?}");
    }
}
