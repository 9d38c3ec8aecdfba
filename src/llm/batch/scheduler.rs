//! Decides which rows a step runs, and which sequences keep their pages.
//!
//! Sequences that wait for few tokens go first: they decode. Prompts share the rest of the rows, in
//! the order of their arrival. If pages run out, texts that no sequence uses are forgotten, then
//! idle sequences give their pages back, then the latest ones; their tokens are known, and are fed
//! again once there is room.

use super::pages::{Pages, Prefixes};
use super::sequence::{Answer, Sequence, Wanted};
use crate::error::{Error, ErrorKind, Stage};
use crate::graph::op::paged_attention::{CUT, PAGE};
use crate::llm::engine::BatchConfig;
use std::cmp::Reverse;
use std::ops::Range;
use std::time::Duration;

/// Index of a sequence.
pub(super) type SequenceId = usize;

/// Rows with which every prompt makes progress: see [`Sequence::chunk`].
const ENOUGH: usize = 3 * CUT;

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
    /// How many of the last tokens return something.
    pub rows: usize,
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
    /// Rows that return something.
    rows: usize,
}

impl Step {
    fn clear(&mut self) {
        self.parts.clear();
        self.tokens.clear();
        self.pages.clear();
        self.copies.clear();
        (self.prompt, self.rows) = (0, 0);
    }
}

/// What a model returned for the rows of a step: IDs for all rows that return something, logits for
/// those that want them.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub ids: Vec<u32>,
    pub logits: Vec<f32>,
}

/// How many rows of prompts a step may have.
#[derive(Debug)]
struct Pace {
    /// Seconds of a step without prompts.
    decode: Option<f64>,
    /// Rows of prompts that make a step about twice as long.
    rows: f64,
}

impl Pace {
    /// How much longer a step with prompts may be than one without.
    const LONGER: f64 = 1.8;

    /// Rows of prompts for a step with others.
    fn prompt_rows(&self, most: usize) -> usize {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "within 0 and `most`"
        )]
        let rows = self.rows.clamp(0.0, most as f64) as usize;
        rows.max(CUT).min(most)
    }

    fn learn(&mut self, step: &Step, time: Duration) {
        let time = time.as_secs_f64();
        match self.decode {
            _ if step.prompt == 0 => {
                self.decode = Some(self.decode.map_or(time, |old| 0.8 * old + 0.2 * time));
            }
            Some(decode) if step.tokens.len() > step.prompt && time > decode => {
                // The rows of others cost about half as much beside prompts.
                let share = (Self::LONGER - 0.5) * decode / (time - 0.5 * decode);
                let fit = step.prompt as f64 * share.clamp(0.25, 2.0);
                self.rows = 0.7 * self.rows + 0.3 * fit;
            }
            _ => {}
        }
    }
}

#[derive(Debug)]
pub(super) struct Scheduler {
    config: BatchConfig,
    /// Share only pages with the bits that each sequence would compute itself.
    reproducible: bool,
    sequences: Vec<Sequence>,
    closed: Vec<SequenceId>,
    pages: Pages,
    known: Prefixes,
    pace: Pace,
    clock: u64,
    /// Sequences with jobs, in order.
    order: Vec<SequenceId>,
}

impl Scheduler {
    pub fn new(config: BatchConfig, reproducible: bool) -> Self {
        Self {
            config,
            reproducible,
            sequences: Vec::new(),
            closed: Vec::new(),
            pages: Pages::new(config.pages),
            known: Prefixes::new(config.pages),
            pace: Pace {
                decode: None,
                rows: PAGE as f64,
            },
            clock: 0,
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

    /// A new sequence with the tokens of another, which is in no step.
    pub fn fork(&mut self, id: SequenceId) -> SequenceId {
        let fork = self.sequences[id].fork(&mut self.pages);
        self.add(fork)
    }

    /// Ends a sequence that is in no step.
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

    /// Truncates a sequence that waits for nothing.
    pub fn truncate(&mut self, id: SequenceId, len: usize) {
        let sequence = &mut self.sequences[id];
        sequence.expected &= len > 0;
        sequence.truncate(len, self.reproducible, &mut self.pages);
    }

    /// Queues tokens of a sequence that waits for nothing; the last `rows` return something.
    pub fn queue(&mut self, id: SequenceId, tokens: &[u32], rows: usize, wanted: Wanted) {
        let now = self.now();
        let reproducible = self.reproducible;
        let sequence = &mut self.sequences[id];
        let first = sequence.tokens.len();
        if first == 0 {
            sequence.since = now;
        }
        // Tokens of a draft that return something as well are computed like those of decoding.
        let alone = tokens.len() == 1 || (reproducible && rows > 1);
        sequence.extend(tokens, alone);
        sequence.start(first, rows, wanted);
    }

    /// Ends the job of a sequence. Returns false if it is in a step; the job ends with it then.
    pub fn cancel(&mut self, id: SequenceId) -> bool {
        let sequence = &mut self.sequences[id];
        if sequence.in_step {
            sequence.cancelled = true;
            return false;
        }
        sequence.drop_job(self.reproducible, &mut self.pages);
        true
    }

    /// The answer to the last job, if it is complete.
    pub fn answer(&mut self, id: SequenceId) -> Option<&mut Answer> {
        let sequence = &mut self.sequences[id];
        std::mem::take(&mut sequence.answered).then_some(&mut sequence.answer)
    }

    /// True if a sequence waits for rows.
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

    /// Waits for no sequence any more.
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
        let now = self.now();
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
        let decodes = |s: &Sequence| s.left() <= CUT;
        let any_prompt = order.iter().any(|id| !decodes(&self.sequences[*id]));
        let kept = if any_prompt { PAGE } else { 0 };
        let mut room = self.config.rows.saturating_sub(kept);
        order.sort_unstable_by_key(|id| {
            let s = &self.sequences[*id];
            let served = if decodes(s) { s.served } else { 0 };
            (!decodes(s), Reverse(s.priority), served, self.rank(*id))
        });
        let decoding = order.partition_point(|id| decodes(&self.sequences[*id]));
        let (decoding, prompts) = order.split_at(decoding);
        for &id in decoding {
            room -= self.take_rows(id, room, now, step);
        }
        room += kept;
        if !step.parts.is_empty() {
            room = self.pace.prompt_rows(room);
        }
        for &id in prompts {
            if !self.is_computed(id, step) {
                let rows = self.take_rows(id, room, now, step);
                (room, step.prompt) = (room.saturating_sub(rows), step.prompt + rows);
            }
        }
        self.order = order;
    }

    /// True if a step computes the next page of a sequence for another one.
    fn is_computed(&self, id: SequenceId, step: &Step) -> bool {
        let Some((before, text)) = self.sequences[id].next_text() else {
            return false;
        };
        step.parts.iter().any(|part| {
            let other = self.sequences[part.sequence].next_text();
            !part.alone && part.tokens.len() >= PAGE && other == Some((before, text))
        })
    }

    /// Adds the next at most `room` rows of a sequence to a step; returns their number.
    fn take_rows(&mut self, id: SequenceId, room: usize, now: u64, step: &mut Step) -> usize {
        let sequence = &mut self.sequences[id];
        let most = self.config.rows - step.tokens.len();
        let mut chunk = sequence.chunk(room.min(most));
        if chunk.count == 0 && room >= CUT && most >= ENOUGH {
            chunk = sequence.chunk(ENOUGH);
        }
        let (start, end) = (sequence.cached, sequence.cached + chunk.count);
        let tokens = sequence.tokens.get(start..end).unwrap_or_default();
        let pages = sequence.pages.get(..end.div_ceil(PAGE)).unwrap_or_default();
        let rows = sequence.rows_of(start, end);
        let fits = step.rows + rows <= self.config.logits;
        if tokens.is_empty() || pages.is_empty() || !fits {
            return 0;
        }
        step.rows += rows;
        let first = [step.tokens.len(), step.pages.len()];
        step.tokens.extend_from_slice(tokens);
        step.pages.extend_from_slice(pages);
        step.parts.push(Part {
            sequence: id,
            start,
            tokens: first[0]..step.tokens.len(),
            pages: first[1]..step.pages.len(),
            rows,
            wanted: sequence.job.map_or(Wanted::MostLikely, |j| j.wanted),
            alone: chunk.alone,
        });
        (sequence.in_step, sequence.served) = (true, now);
        chunk.count
    }

    /// Gives a sequence pages for its next rows. Returns false if it must wait for some. `full`
    /// says that an earlier sequence waits to start, and becomes true if this one does.
    fn reserve(&mut self, id: SequenceId, full: &mut bool, step: &mut Step) -> bool {
        let starts = self.sequences[id].pages.is_empty();
        if starts && *full {
            return false;
        }
        let (plain, rows) = (self.reproducible, self.config.rows);
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
        let (sequence, plain) = (&self.sequences[id], self.reproducible);
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
        // It must not be forgotten for the copy.
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
    /// that goes on. Takes pages of idle sequences, and of those with lower priority.
    fn has_room(&mut self, id: SequenceId) -> bool {
        loop {
            let own = &self.sequences[id];
            let needed = own.tokens.len().div_ceil(PAGE).saturating_sub(own.pages.len());
            let goes_on =
                |(other, s): (SequenceId, &Sequence)| other != id && s.job.is_some() && !s.pages.is_empty();
            let others = self.sequences.iter().enumerate().filter(|o| goes_on(*o)).count();
            let free = self.pages.free() + self.known.unused(&self.pages);
            let priority = own.priority;
            if others == 0 || free >= needed + others {
                return true;
            }
            let victim = self.idle().or_else(|| {
                let last = self.last_after(id)?;
                (self.sequences[last].priority < priority).then_some(last)
            });
            let Some(victim) = victim else {
                return false;
            };
            self.preempt(victim);
        }
    }

    /// A page for a sequence: a free one, or one of a text that no sequence uses, or of an idle
    /// sequence, or of a later one.
    fn page_for(&mut self, id: SequenceId) -> Option<u32> {
        loop {
            if let Some(page) = self.pages.take() {
                return Some(page);
            }
            if self.known.forget_one(&mut self.pages) {
                continue;
            }
            let victim = self.idle().or_else(|| self.last_after(id))?;
            self.preempt(victim);
        }
    }

    /// The sequence with pages that was idle for the longest time.
    fn idle(&self) -> Option<SequenceId> {
        let idle = |s: &Sequence| s.job.is_none() && !s.expected && !s.pages.is_empty();
        let all = self.sequences.iter().enumerate().filter(|(_, s)| idle(s));
        all.min_by_key(|(_, s)| s.served).map(|(id, _)| id)
    }

    /// The last sequence with pages that comes after `id`.
    fn last_after(&self, id: SequenceId) -> Option<SequenceId> {
        let own = self.rank(id);
        let all = (0..self.sequences.len()).filter(|other| !self.sequences[*other].pages.is_empty());
        all.filter(|other| self.rank(*other) > own)
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
        found: &Found,
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
            sequence.publish(&mut self.pages, &mut self.known, self.reproducible);
            let rows = id_row..id_row + part.rows;
            id_row = rows.end;
            match part.wanted {
                Wanted::MostLikely => {
                    let ids = found.ids.get(rows).unwrap_or_default();
                    sequence.answer.ids.extend_from_slice(ids);
                }
                Wanted::Logits => {
                    let end = logits_row + part.rows * vocab;
                    let logits = found.logits.get(logits_row..end).unwrap_or_default();
                    logits_row = end;
                    sequence.answer.logits.extend_from_slice(logits);
                }
            }
            if sequence.cancelled {
                sequence.answer.error = Some(Error::Interrupted);
                sequence.drop_job(self.reproducible, &mut self.pages);
            } else if sequence.left() > 0 {
                continue;
            }
            sequence.job = None;
            (sequence.answered, sequence.expected) = (true, !sequence.cancelled);
            answered(part.sequence);
        }
    }

    /// Ends the jobs of a step that failed, each with an error. What the cache holds is unknown
    /// then, so all sequences will be fed again.
    pub fn fail(&mut self, step: &Step, error: &Error, answered: &mut dyn FnMut(SequenceId)) {
        for part in &step.parts {
            let sequence = &mut self.sequences[part.sequence];
            sequence.in_step = false;
            sequence.drop_job(self.reproducible, &mut self.pages);
            sequence.answer.error = Some(copy_of(error));
            sequence.answered = true;
            answered(part.sequence);
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
