//! Decides which rows a step runs, and which sequences keep their pages.
//!
//! Sequences that decode (with few tokens left to feed) go first. Prompts share the remaining rows,
//! by priority and then by arrival (chunked prefill). If pages run out, the scheduler evicts cached
//! prefixes that no sequence uses, then idle sequences, then those with the lowest priority, the
//! latest first. The tokens of an evicted sequence are fed again once there is room.

use super::pages::{Pages, Prefixes};
use super::sequence::{JobResult, Sequence, Wanted};
use super::step::{Part, Step, StepOutput};
use crate::error::{Error, ErrorKind, Stage};
use crate::graph::op::paged_attention::{CUT, PAGE};
use crate::llm::engine::{BatchConfig, Reproducible};
use crate::num;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

/// Index of a sequence.
pub(super) type SequenceId = usize;

/// With this many rows, [`Sequence::chunk`] finds a chunk in every prompt.
const LEAST_PROMPT_ROWS: usize = 3 * CUT;
/// A sequence is idle after this many steps without a job. Idle sequences lose their pages first.
const IDLE_STEPS: u64 = 8;

/// Limits the prompt rows of steps that also decode. The time of a step jumps at the numbers of
/// rows where the kernels change, so it is measured for several sizes.
#[derive(Debug, Default)]
struct Pace {
    /// Seconds of a step without prompts.
    decode: Option<f64>,
    /// Steps with prompts since `decode` was measured.
    mixed: usize,
    /// Seconds of a step with prompts, by its size.
    times: [Option<f64>; Self::SIZES.len()],
}

impl Pace {
    /// Maximum time of a step with prompts, relative to one without.
    const LONGER: f64 = 1.9;
    /// Number of steps with prompts after which one runs without them, to measure `decode` again.
    const CHECK: usize = 16;
    /// Each step with prompts multiplies the times of larger sizes by this, so that they are
    /// retried.
    const KEPT: f64 = 0.998;
    /// Rows of steps, ascending.
    const SIZES: [usize; 13] = [16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024];

    /// Whether a step that decodes may have rows of prompts.
    fn takes_prompts(&self) -> bool {
        self.decode.is_some() && self.mixed < Self::CHECK
    }

    /// Rows of prompts, at least [`CUT`] and up to `most`, in a step that decodes `decoding`.
    fn prompt_rows(&self, decoding: usize, most: usize) -> usize {
        let limit = Self::LONGER * self.decode.unwrap_or(0.0);
        let (mut fits, mut known) = (0, None);
        for (size, time) in Self::SIZES.into_iter().zip(self.times) {
            let guess = || known.map(|(rows, time): (usize, f64)| time * size as f64 / rows as f64);
            match time.or_else(guess) {
                Some(time) if time > limit && fits > 0 => break,
                Some(time) => known = Some((size, time)),
                None => {}
            }
            if size >= decoding + CUT {
                fits = size;
                if known.is_none() {
                    break;
                }
            }
        }
        fits.saturating_sub(decoding).max(CUT).min(most)
    }

    fn learn(&mut self, step: &Step, time: Duration) {
        let (time, rows) = (time.as_secs_f64(), step.tokens.len());
        if step.prompt == 0 {
            // The number of sequences may have changed meanwhile.
            let old = self.decode.filter(|_| self.mixed == 0);
            self.decode = Some(old.map_or(time, |old| 0.8 * old + 0.2 * time));
            self.mixed = 0;
            return;
        }
        if step.prompt == rows {
            return;
        }
        self.mixed += 1;
        let size = Self::SIZES.partition_point(|size| *size < rows);
        for (i, kept) in self.times.iter_mut().enumerate().skip(size) {
            *kept = match *kept {
                old if i == size => Some(old.map_or(time, |old| 0.7 * old + 0.3 * time)),
                old => old.map(|old| Self::KEPT * old),
            };
        }
    }
}

#[derive(Debug)]
pub(super) struct Scheduler {
    config: BatchConfig,
    /// Each sequence must get the results that it would get alone, on a model whose results depend
    /// on how tokens are grouped. Tokens are grouped as they would be alone, and sequences share
    /// only pages that they would compute to the same bits.
    exact: bool,
    sequences: Vec<Sequence>,
    closed: Vec<SequenceId>,
    pages: Pages,
    known: Prefixes,
    pace: Pace,
    clock: u64,
    /// Number of steps planned so far.
    plans: u64,
    /// Sequences with jobs, in order.
    order: Vec<SequenceId>,
}

impl Scheduler {
    pub fn new(config: BatchConfig) -> Self {
        Self {
            config,
            exact: config.reproducible == Reproducible::ByChunks,
            sequences: Vec::new(),
            closed: Vec::new(),
            pages: Pages::new(config.pages),
            known: Prefixes::new(config.pages),
            pace: Pace::default(),
            clock: 0,
            plans: 0,
            order: Vec::new(),
        }
    }

    fn now(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn add(&mut self, sequence: Sequence) -> SequenceId {
        match self.closed.pop() {
            Some(id) => {
                self.sequences[id] = sequence;
                id
            }
            None => {
                self.sequences.push(sequence);
                self.sequences.len() - 1
            }
        }
    }

    /// A new sequence without tokens.
    pub fn open(&mut self) -> SequenceId {
        self.add(Sequence::opened())
    }

    /// Copies a sequence that is not in a step.
    pub fn fork(&mut self, id: SequenceId) -> SequenceId {
        let fork = self.sequences[id].fork(&mut self.pages);
        self.add(fork)
    }

    /// Ends one that is not in a step.
    pub fn close(&mut self, id: SequenceId) {
        let mut sequence = std::mem::take(&mut self.sequences[id]);
        if sequence.open {
            sequence.evict(&mut self.pages);
            self.closed.push(id);
        }
    }

    /// Number of open sequences.
    pub fn opened(&self) -> usize {
        self.sequences.len() - self.closed.len()
    }

    /// Sequences with larger priorities go first.
    pub fn set_priority(&mut self, id: SequenceId, priority: i32) {
        self.sequences[id].priority = priority;
    }

    /// Number of tokens of a sequence.
    pub fn len(&self, id: SequenceId) -> usize {
        self.sequences[id].tokens.len()
    }

    /// Truncates a sequence without a job.
    pub fn truncate(&mut self, id: SequenceId, len: usize) {
        let sequence = &mut self.sequences[id];
        sequence.expected &= len > 0;
        sequence.truncate(len, self.exact, &mut self.pages);
    }

    /// Queues tokens of a sequence without a job; the last `outputs` have results.
    pub fn queue(&mut self, id: SequenceId, tokens: &[u32], outputs: usize, wanted: Wanted) {
        let now = self.now();
        let exact = self.exact;
        let sequence = &mut self.sequences[id];
        let first = sequence.tokens.len();
        if first == 0 {
            sequence.since = now;
        }
        // Draft tokens with results are computed like decoded tokens.
        let alone = exact && (tokens.len() == 1 || outputs > 1);
        sequence.extend(tokens, alone, exact);
        sequence.start(first, outputs, wanted);
    }

    /// Ends the job of a sequence. Returns false if it is in a step; the job ends with it then.
    pub fn cancel(&mut self, id: SequenceId) -> bool {
        let sequence = &mut self.sequences[id];
        if sequence.in_step {
            sequence.cancelled = true;
            return false;
        }
        sequence.drop_job(self.exact, &mut self.pages);
        true
    }

    /// The answer to the last job, if it is complete.
    pub fn answer(&mut self, id: SequenceId) -> Option<&mut JobResult> {
        let sequence = &mut self.sequences[id];
        std::mem::take(&mut sequence.answered).then_some(&mut sequence.answer)
    }

    /// True if any sequence has a job.
    pub fn has_jobs(&self) -> bool {
        self.sequences.iter().any(|s| s.job.is_some())
    }

    /// True if a sequence has a job, and no other has one or is expected to.
    pub fn has_only_job(&self, id: SequenceId) -> bool {
        let mut all = self.sequences.iter().enumerate();
        all.all(|(other, s)| s.job.is_some() == (other == id) && !s.expected)
    }

    /// True if the next job of a sequence is expected.
    pub fn expects(&self, id: SequenceId) -> bool {
        self.sequences[id].expected
    }

    /// True if a sequence that was just answered has not queued its next job yet.
    pub fn expects_more(&self) -> bool {
        self.sequences.iter().any(|s| s.expected)
    }

    /// Stops expecting jobs.
    pub fn expect_none(&mut self) {
        self.sequences.iter_mut().for_each(|s| s.expected = false);
    }

    /// Pages in use, and pages that hold only texts that no sequence uses.
    pub fn used_pages(&self) -> [usize; 2] {
        let used = self.pages.all() - self.pages.free();
        let unused = self.pages.unused();
        [used - unused, unused]
    }

    /// The order of sequences: those that come first keep their pages.
    fn rank(&self, id: SequenceId) -> (Reverse<i32>, u64, SequenceId) {
        let sequence = &self.sequences[id];
        (Reverse(sequence.priority), sequence.since, id)
    }

    /// Plans the next step. It is empty only if there are no jobs.
    pub fn plan(&mut self, step: &mut Step) {
        step.clear();
        self.plans += 1;
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        order.extend((0..self.sequences.len()).filter(|id| self.sequences[*id].job.is_some()));
        order.sort_unstable_by_key(|id| self.rank(*id));
        let mut full = false;
        for &id in &order {
            let ready = self.reserve(id, &mut full, step);
            self.sequences[id].ready = ready;
        }
        // A later reservation may have taken the pages of a sequence.
        order.retain(|id| self.sequences[*id].ready);
        let decodes = |s: &Sequence| s.left() <= CUT.max(s.job.map_or(0, |job| job.outputs));
        let any_prompt = order.iter().any(|id| !decodes(&self.sequences[*id]));
        // What decoding leaves for prompts, so that these go on.
        let [kept, kept_outputs] = match any_prompt && self.pace.takes_prompts() {
            true => [
                PAGE.min(self.config.rows / 2),
                usize::from(self.config.logits > 1),
            ],
            false => [0, 0],
        };
        let mut room = self.config.rows.saturating_sub(kept);
        step.most_outputs = self.config.logits - kept_outputs;
        order.sort_unstable_by_key(|id| {
            let s = &self.sequences[*id];
            let served = if decodes(s) { s.served } else { 0 };
            (!decodes(s), Reverse(s.priority), served, self.rank(*id))
        });
        let decoding = order.partition_point(|id| decodes(&self.sequences[*id]));
        let (decoding, prompts) = order.split_at(decoding);
        for &id in decoding {
            room = room.saturating_sub(self.take_rows(id, room, step));
        }
        room += kept;
        step.most_outputs = self.config.logits;
        if !step.parts.is_empty() {
            room = match self.pace.takes_prompts() {
                true => self.pace.prompt_rows(step.tokens.len(), room),
                false => 0,
            };
        }
        for &id in prompts {
            if !self.is_computed(id, step) {
                let rows = self.take_rows(id, room, step);
                (room, step.prompt) = (room.saturating_sub(rows), step.prompt + rows);
            }
        }
        self.order = order;
    }

    /// True if `step` computes this next page for another sequence.
    fn is_computed(&self, id: SequenceId, step: &Step) -> bool {
        let Some((before, text)) = self.sequences[id].next_text() else {
            return false;
        };
        step.parts.iter().any(|part| {
            let other = self.sequences[part.sequence].next_text();
            !part.alone && part.tokens.len() >= PAGE && other == Some((before, text))
        })
    }

    /// Adds the next rows of a sequence to a step: at most `room`, or [`LEAST_PROMPT_ROWS`] if
    /// `room` is at least [`CUT`] but no chunk fits. Returns their number.
    fn take_rows(&mut self, id: SequenceId, room: usize, step: &mut Step) -> usize {
        let (sequence, exact) = (&mut self.sequences[id], self.exact);
        let most = self.config.rows - step.tokens.len();
        let mut chunk = sequence.chunk(room.min(most), exact);
        if chunk.count == 0 && room >= CUT && most >= LEAST_PROMPT_ROWS {
            chunk = sequence.chunk(LEAST_PROMPT_ROWS, exact);
        }
        let start = sequence.cached;
        let outputs = sequence.outputs_of(start, start + chunk.count);
        let excess = (step.outputs + outputs).saturating_sub(step.most_outputs);
        if excess > 0 && excess >= outputs {
            return 0;
        }
        let (outputs, end) = (outputs - excess, start + chunk.count - excess);
        let Some(tokens) = sequence.tokens.get(start..end).filter(|t| !t.is_empty()) else {
            return 0;
        };
        step.outputs += outputs;
        let first = [step.tokens.len(), step.pages.len()];
        step.tokens.extend_from_slice(tokens);
        // The model fails the step if pages are missing.
        let pages = sequence.pages.iter().take(end.div_ceil(PAGE));
        step.pages.extend(pages);
        step.parts.push(Part {
            sequence: id,
            start,
            tokens: first[0]..step.tokens.len(),
            pages: first[1]..step.pages.len(),
            outputs,
            wanted: sequence.job.map_or(Wanted::MostLikely, |j| j.wanted),
            alone: chunk.alone,
        });
        (sequence.in_step, sequence.served) = (true, self.plans);
        end - start
    }

    /// Reserves pages for the next rows of a sequence. Returns false if it must wait. `full` is
    /// true if an earlier sequence waits to start, and is set if this one does.
    fn reserve(&mut self, id: SequenceId, full: &mut bool, step: &mut Step) -> bool {
        let starts = self.sequences[id].pages.is_empty();
        if starts && *full {
            return false;
        }
        let (plain, rows) = (self.exact, self.config.rows);
        self.sequences[id].adopt(&mut self.pages, &mut self.known, plain);
        if starts && !self.has_room(id) {
            // Texts that it uses stay known.
            self.sequences[id].evict(&mut self.pages);
            *full = true;
            return false;
        }
        self.adopt_part(id, step);
        let sequence = &self.sequences[id];
        let cached = sequence.cached;
        let needed = sequence.tokens.len().min(cached + rows).div_ceil(PAGE);
        // A page that others use too is copied before it is written.
        if let Some(shared) = self.open_page(id) {
            if let Some(own) = self.page_for(id) {
                step.copies.push([shared, own]);
                self.pages.release(shared);
                let at = cached / PAGE;
                self.sequences[id].pages.splice(at..=at, [own]);
            } else {
                self.sequences[id].reopen(&mut self.pages);
            }
        }
        for _ in self.sequences[id].pages.len()..needed {
            let Some(page) = self.page_for(id) else {
                return false;
            };
            self.sequences[id].pages.push(page);
        }
        true
    }

    /// Copies a page whose text begins like the next page of a sequence.
    fn adopt_part(&mut self, id: SequenceId, step: &mut Step) {
        let (sequence, plain) = (&self.sequences[id], self.exact);
        if sequence.adoptable(PAGE, plain) < CUT {
            return;
        }
        let found = sequence
            .next_part()
            .and_then(|(before, text)| self.known.find_part(before, text));
        let Some((count, page)) = found else { return };
        let count = sequence.adoptable(count, plain);
        if count < CUT {
            return;
        }
        // Keeps it while a page is freed.
        self.pages.share(page);
        if self.pages.free() > 0 || self.known.forget_one(&mut self.pages) {
            let own = self.pages.take();
            step.copies.extend(own.map(|own| [page, own]));
            let sequence = &mut self.sequences[id];
            sequence.reuse(if own.is_some() { count } else { 0 });
            sequence.pages.extend(own);
        }
        self.pages.release(page);
    }

    /// The page that the next row of a sequence would write, if others use it too.
    fn open_page(&self, id: SequenceId) -> Option<u32> {
        let sequence = &self.sequences[id];
        let page = sequence.pages.get(sequence.cached / PAGE).copied();
        page.filter(|page| self.pages.uses(*page) > 1)
    }

    /// True if a sequence can start: there are pages for all its tokens, and one for each sequence
    /// that goes on and may need more. Takes pages of idle sequences, and of those with lower
    /// priority, if that is enough.
    fn has_room(&mut self, id: SequenceId) -> bool {
        let own = &self.sequences[id];
        let (priority, tokens) = (own.priority, own.tokens.len());
        let needed = tokens.div_ceil(PAGE).saturating_sub(own.pages.len());
        let mut free = self.pages.free() + self.pages.unused();
        let (mut victims, mut others) = (Vec::new(), self.others(id, &[]));
        // Users of pages among the victims.
        let mut taken: HashMap<u32, u32> = HashMap::new();
        let most = self.config.context.div_ceil(PAGE);
        let growing = |all: &[SequenceId]| {
            let grows = |other: &&SequenceId| self.sequences[**other].pages.len() < most;
            all.iter().filter(grows).count()
        };
        while !others.is_empty() && free < needed + growing(&others) {
            let lower = || {
                let last = self.last_after(id, &victims)?;
                (self.sequences[last].priority < priority).then_some(last)
            };
            // Without a job to wait for, this one is the next to run.
            let runs = others.iter().any(|other| self.sequences[*other].job.is_some());
            let recent = || self.without_job(id, &victims, 0).filter(|_| !runs);
            let victim = self
                .without_job(id, &victims, IDLE_STEPS)
                .or_else(lower)
                .or_else(recent);
            let Some(victim) = victim else {
                return false;
            };
            let Sequence { pages, known, .. } = &self.sequences[victim];
            for (at, page) in pages.iter().enumerate() {
                let users = taken.entry(*page).or_insert(0);
                *users += 1;
                // A known text uses it as well.
                free += usize::from(self.pages.uses(*page) == *users + u32::from(at < known.len()));
            }
            victims.push(victim);
            others = self.others(id, &victims);
        }
        victims.into_iter().for_each(|victim| self.preempt(victim));
        true
    }

    /// The sequences with pages, other than `id` and `victims`, that have a job or had one lately.
    fn others(&self, id: SequenceId, victims: &[SequenceId]) -> Vec<SequenceId> {
        let all = self.sequences.iter().enumerate();
        let lately = |s: &Sequence| s.job.is_some() || s.served + IDLE_STEPS > self.plans;
        let goes_on = all.filter(|(other, s)| *other != id && !s.pages.is_empty() && lately(s));
        goes_on
            .map(|(other, _)| other)
            .filter(|other| !victims.contains(other))
            .collect()
    }

    /// A page for a sequence. In this order: a free page, that of an unused prefix, or one of a
    /// preempted sequence (idle, else after `id` in the order, else any without a job).
    fn page_for(&mut self, id: SequenceId) -> Option<u32> {
        loop {
            if let Some(page) = self.pages.take() {
                return Some(page);
            }
            if self.known.forget_one(&mut self.pages) {
                continue;
            }
            let victim = (self.without_job(id, &[], IDLE_STEPS))
                .or_else(|| self.last_after(id, &[]))
                .or_else(|| self.without_job(id, &[], 0))?;
            self.preempt(victim);
        }
    }

    /// The sequence with pages, other than `id` and `victims`, that has had no job for the longest
    /// time, and for at least `plans` steps.
    fn without_job(&self, id: SequenceId, victims: &[SequenceId], plans: u64) -> Option<SequenceId> {
        let idle = |s: &Sequence| s.job.is_none() && s.served + plans <= self.plans && !s.pages.is_empty();
        let all = self.sequences.iter().enumerate();
        let all = all.filter(|(other, s)| *other != id && idle(s) && !victims.contains(other));
        all.min_by_key(|(_, s)| s.served).map(|(other, _)| other)
    }

    /// The last sequence with pages, other than `victims`, that comes after `id`.
    fn last_after(&self, id: SequenceId, victims: &[SequenceId]) -> Option<SequenceId> {
        let own = self.rank(id);
        let all = (0..self.sequences.len()).filter(|other| !self.sequences[*other].pages.is_empty());
        all.filter(|other| self.rank(*other) > own && !victims.contains(other))
            .max_by_key(|other| self.rank(*other))
    }

    fn preempt(&mut self, id: SequenceId) {
        let sequence = &mut self.sequences[id];
        sequence.evict(&mut self.pages);
        sequence.ready = false;
    }

    /// Takes the results of a step, and calls `answered` for each sequence whose job has ended.
    pub fn finish(
        &mut self,
        step: &Step,
        found: &mut StepOutput,
        vocab: usize,
        time: Duration,
        answered: &mut dyn FnMut(SequenceId),
    ) {
        self.pace.learn(step, time);
        let mut read = [0; 3];
        let mut failed = found.failed.drain(..).peekable();
        for (i, part) in step.parts.iter().enumerate() {
            let sequence = &mut self.sequences[part.sequence];
            sequence.in_step = false;
            sequence.cached = part.start + part.tokens.len();
            sequence.publish(&mut self.pages, &mut self.known, self.exact);
            let mut error = failed.next_if(|(part, _)| *part == i).map(|(_, e)| e);
            if error.is_none() {
                let end = part.end_of_results(read, vocab);
                let [ids, candidates, logits] = std::array::from_fn(|i| read[i]..end[i]);
                let answer = &mut sequence.answer;
                answer.candidates.extend(&found.candidates, candidates);
                match (num::part(&found.ids, ids), num::part(&found.logits, logits)) {
                    (Ok(ids), Ok(logits)) => {
                        answer.ids.extend(ids);
                        answer.logits.extend(logits);
                    }
                    (Err(e), _) | (_, Err(e)) => error = Some(e.into()),
                }
                read = end;
            }
            let error = error.or_else(|| sequence.cancelled.then_some(Error::Interrupted));
            if error.is_some() {
                sequence.drop_job(self.exact, &mut self.pages);
            } else if sequence.left() > 0 {
                continue;
            }
            sequence.answer.error = error;
            sequence.job = None;
            (sequence.answered, sequence.expected) = (true, !sequence.cancelled);
            answered(part.sequence);
        }
    }

    /// Ends the jobs of a failed step, each with an error. The contents of the cache are then
    /// unknown, so all sequences are fed again.
    pub fn fail(&mut self, step: &Step, error: &Error, answered: &mut dyn FnMut(SequenceId)) {
        // An empty step is an internal error; nobody must wait for another.
        let all = step.parts.is_empty();
        for (id, sequence) in self.sequences.iter_mut().enumerate() {
            if !(sequence.in_step || all && sequence.job.is_some()) {
                continue;
            }
            sequence.in_step = false;
            sequence.drop_job(self.exact, &mut self.pages);
            sequence.answer.error = Some(copy_of(error));
            sequence.answered = true;
            answered(id);
        }
        self.known.clear(&mut self.pages);
        for sequence in &mut self.sequences {
            sequence.evict(&mut self.pages);
        }
    }
}

/// An error for one of several jobs that failed together.
fn copy_of(error: &Error) -> Error {
    let kind = match error.kind() {
        ErrorKind::Interrupted => return Error::Interrupted,
        // The caller gave no wrong argument.
        ErrorKind::Usage => ErrorKind::Other,
        kind => kind,
    };
    Error::other(Stage::Run, error.chain()).of_kind(kind)
}
