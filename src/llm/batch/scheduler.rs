//! Decides which rows a step runs, and which sequences keep their pages.
//!
//! Sequences with few tokens left to feed go first: they decode. Prompts share the other rows, by
//! priority and then by arrival. If pages run out, the scheduler evicts texts that are not in use,
//! then idle sequences, then the latest ones. Evicted tokens are fed again once there is room.

use super::pages::{Pages, Prefixes};
use super::sequence::{JobResult, Sequence, Wanted};
use crate::error::{Error, ErrorKind, Stage};
use crate::graph::op::paged_attention::{CUT, PAGE};
use crate::llm::Candidates;
use crate::llm::engine::{BatchConfig, Span};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

/// Index of a sequence.
pub(super) type SequenceId = usize;

/// Rows with which every prompt makes progress: see [`Sequence::chunk`].
const ENOUGH: usize = 3 * CUT;
/// Number of plans without a job after which a sequence is idle. Idle sequences lose their pages
/// first.
const LATE: u64 = 8;

/// The rows of a sequence in a step.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub sequence: SequenceId,
    /// Position of the first token.
    pub start: usize,
    /// In [`Step::tokens`].
    pub tokens: Range<usize>,
    /// In [`Step::pages`].
    pub pages: Range<usize>,
    /// How many of the last tokens have results.
    pub outputs: usize,
    pub wanted: Wanted,
    pub alone: bool,
}

/// What a model runs at once.
#[derive(Debug, Default)]
pub(super) struct Step {
    pub parts: Vec<Part>,
    pub tokens: Vec<u32>,
    pub pages: Vec<u32>,
    /// Pages to copy before, from and to.
    pub copies: Vec<[u32; 2]>,
    /// Rows of prompts.
    prompt: usize,
    /// Rows with results.
    pub outputs: usize,
}

impl Step {
    fn clear(&mut self) {
        self.parts.clear();
        self.tokens.clear();
        self.pages.clear();
        self.copies.clear();
        (self.prompt, self.outputs) = (0, 0);
    }

    /// The parts as spans.
    pub fn spans(&self) -> impl Iterator<Item = Span<'_>> {
        self.parts.iter().map(|part| Span {
            tokens: self.tokens.get(part.tokens.clone()).unwrap_or_default(),
            start: part.start,
            pages: self.pages.get(part.pages.clone()).unwrap_or_default(),
            logits: part.outputs,
            alone: part.alone,
        })
    }
}

/// Results of a step: IDs and candidates for all rows with results if any wants them, logits for
/// those that want them.
#[derive(Debug, Default)]
pub(super) struct StepOutput {
    pub ids: Vec<u32>,
    pub candidates: Candidates,
    pub logits: Vec<f32>,
}

/// How many rows of prompts a step may have. The time of a step grows with its rows by jumps, where
/// other kernels begin, so it is learned for each of several sizes.
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
    /// Time of a step with prompts, over one without.
    const LONGER: f64 = 1.9;
    /// Number of steps with prompts after which one runs without them, to measure `decode` again.
    const CHECK: usize = 16;
    /// Share of its time that a larger size keeps with each step, so that it is tried again.
    const KEPT: f64 = 0.98;
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
    /// Results depend on how tokens are fed, and are to be those that each sequence gets alone:
    /// tokens are fed as they would be then, and only pages with the same bits are shared.
    exact: bool,
    sequences: Vec<Sequence>,
    closed: Vec<SequenceId>,
    pages: Pages,
    known: Prefixes,
    pace: Pace,
    clock: u64,
    /// Number of plans.
    plans: u64,
    /// Sequences with jobs, in order.
    order: Vec<SequenceId>,
}

impl Scheduler {
    pub fn new(config: BatchConfig, exact: bool) -> Self {
        Self {
            config,
            exact,
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
        let unused = self.known.unused(&self.pages);
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
        let kept = if any_prompt {
            PAGE.min(self.config.rows / 2)
        } else {
            0
        };
        let mut room = self.config.rows.saturating_sub(kept);
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

    /// Adds the next rows of a sequence to a step: at most `room`, or [`ENOUGH`] if `room` is at
    /// least [`CUT`] but no chunk fits. Returns their number.
    fn take_rows(&mut self, id: SequenceId, room: usize, step: &mut Step) -> usize {
        let (sequence, exact) = (&mut self.sequences[id], self.exact);
        let most = self.config.rows - step.tokens.len();
        let mut chunk = sequence.chunk(room.min(most), exact);
        if chunk.count == 0 && room >= CUT && most >= ENOUGH {
            chunk = sequence.chunk(ENOUGH, exact);
        }
        let start = sequence.cached;
        let outputs = sequence.outputs_of(start, start + chunk.count);
        let excess = (step.outputs + outputs).saturating_sub(self.config.logits);
        if excess > 0 && excess >= outputs {
            return 0;
        }
        let (outputs, end) = (outputs - excess, start + chunk.count - excess);
        let tokens = sequence.tokens.get(start..end).unwrap_or_default();
        let pages = sequence.pages.get(..end.div_ceil(PAGE)).unwrap_or_default();
        if tokens.is_empty() || pages.is_empty() {
            return 0;
        }
        step.outputs += outputs;
        let first = [step.tokens.len(), step.pages.len()];
        step.tokens.extend_from_slice(tokens);
        step.pages.extend_from_slice(pages);
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
            sequence.cached += if own.is_some() { count } else { 0 };
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
    /// that goes on. Takes pages of idle sequences, and of those with lower priority, if that is
    /// enough.
    fn has_room(&mut self, id: SequenceId) -> bool {
        let own = &self.sequences[id];
        let (priority, tokens) = (own.priority, own.tokens.len());
        let needed = tokens.div_ceil(PAGE).saturating_sub(own.pages.len());
        let mut free = self.pages.free() + self.known.unused(&self.pages);
        let (mut victims, mut others) = (Vec::new(), self.others(id, &[]));
        // Users of pages among the victims.
        let mut taken: HashMap<u32, u32> = HashMap::new();
        while !others.is_empty() && free < needed + others.len() {
            let lower = || {
                let last = self.last_after(id, &victims)?;
                (self.sequences[last].priority < priority).then_some(last)
            };
            // Without a job to wait for, this one is the next to run.
            let runs = others.iter().any(|other| self.sequences[*other].job.is_some());
            let recent = || self.without_job(id, &victims, 0).filter(|_| !runs);
            let victim = self
                .without_job(id, &victims, LATE)
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
        let lately = |s: &Sequence| s.job.is_some() || s.served + LATE > self.plans;
        let goes_on = all.filter(|(other, s)| *other != id && !s.pages.is_empty() && lately(s));
        goes_on
            .map(|(other, _)| other)
            .filter(|other| !victims.contains(other))
            .collect()
    }

    /// A page for a sequence: a free one, or one of a text that no sequence uses, or of an idle
    /// sequence, or of a later one, or of one whose next job is expected.
    fn page_for(&mut self, id: SequenceId) -> Option<u32> {
        loop {
            if let Some(page) = self.pages.take() {
                return Some(page);
            }
            if self.known.forget_one(&mut self.pages) {
                continue;
            }
            let victim = (self.without_job(id, &[], LATE))
                .or_else(|| self.last_after(id, &[]))
                .or_else(|| self.without_job(id, &[], 0))?;
            self.preempt(victim);
        }
    }

    /// The sequence with pages, other than `id` and `victims`, that has had no job for the longest
    /// time, and for at least `plans` plans.
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

    /// Takes the results of a step, and calls `answered` for each sequence whose job is complete.
    pub fn finish(
        &mut self,
        step: &Step,
        found: &StepOutput,
        vocab: usize,
        time: Duration,
        answered: &mut dyn FnMut(SequenceId),
    ) {
        self.pace.learn(step, time);
        let (mut id_row, mut logits_row) = (0, 0);
        for part in &step.parts {
            let sequence = &mut self.sequences[part.sequence];
            sequence.in_step = false;
            sequence.cached = part.start + part.tokens.len();
            sequence.publish(&mut self.pages, &mut self.known, self.exact);
            let rows = id_row..id_row + part.outputs;
            id_row = rows.end;
            match part.wanted {
                Wanted::MostLikely => {
                    let ids = found.ids.get(rows).unwrap_or_default();
                    sequence.answer.ids.extend_from_slice(ids);
                }
                Wanted::Candidates => sequence.answer.candidates.extend(&found.candidates, rows),
                Wanted::Logits => {
                    let end = logits_row + part.outputs * vocab;
                    let logits = found.logits.get(logits_row..end).unwrap_or_default();
                    logits_row = end;
                    sequence.answer.logits.extend_from_slice(logits);
                }
            }
            if sequence.cancelled {
                sequence.answer.error = Some(Error::Interrupted);
                sequence.drop_job(self.exact, &mut self.pages);
            } else if sequence.left() > 0 {
                continue;
            }
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
        // The caller gave no wrong argument.
        ErrorKind::Usage => ErrorKind::Other,
        kind => kind,
    };
    Error::other(Stage::Run, error.chain()).of_kind(kind)
}
