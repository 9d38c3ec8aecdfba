//! Decoders on a device.

use super::candidates::{self, RunCandidates};
use super::plans::{PlanSet, Run, RunKind};
use super::ring::Rings;
use super::{Decoder, DeviceDecoder, Logits, Observe, SequenceConfig, check_room, check_rows};
use crate::backend::{Backend, Caps, Stats};
use crate::error::{Error, Result, Stage};
use crate::executor::{Executor, Timing};
use crate::graph::pass::TOKEN;
use crate::llm::prompt_cache::States;
use crate::llm::roles::{self, RunInputs};
use crate::llm::sampler::arg_max;
use crate::llm::{Candidates, LanguageModel};
use crate::num;
use crate::plan::{MemoryReport, Plan};
use crate::shape::Bindings;
use std::ops::Range;
use std::sync::Arc;

/// A decoder on a device.
#[derive(Debug)]
pub struct DeviceModel {
    pub(super) decoder: Arc<Decoder>,
    pub(super) executor: Executor,
    pub(super) set: PlanSet,
    pub(super) rings: Rings,
    pub(super) candidates: RunCandidates,
    pub(super) len: usize,
    /// Those of the last run.
    pub(super) rows: RunInputs,
}

/// The plan of a finished run, and its number of logits rows (1 if only the last is computed).
#[derive(Clone, Copy)]
struct Ran {
    plan: usize,
    rows: usize,
}

impl DeviceModel {
    /// Plans `decoder` for `backend`, which must be unused, and for `lengths`, and uploads the
    /// weights.
    pub fn new(decoder: Decoder, backend: Box<dyn Backend>, lengths: &SequenceConfig) -> Result<Self> {
        DeviceDecoder::new(decoder, backend, lengths)?.model()
    }

    /// Capabilities of the device.
    pub fn caps(&self) -> &Caps {
        self.executor.caps()
    }

    /// Running totals of the backend.
    pub fn stats(&self) -> Stats {
        self.executor.stats()
    }

    /// The plan for a kind of runs.
    pub(super) fn plan(&self, kind: RunKind) -> Option<&Plan> {
        self.executor.plan(self.set.plan(kind)?)
    }

    /// Memory and number of dispatches of the prefill plan and of the decode plan.
    pub fn memory(&self) -> [(MemoryReport, usize); 2] {
        [RunKind::Prefill, RunKind::Decode].map(|kind| {
            self.plan(kind)
                .map_or_else(Default::default, |p| (p.memory.clone(), p.steps.len()))
        })
    }

    /// The next run, over `tokens`.
    pub(super) fn next_run(&self, tokens: &[u32], wanted: Logits) -> Run {
        self.decoder.run_of(&self.set, tokens.len(), self.len, wanted)
    }

    /// Uploads the inputs of the next run, over `tokens`.
    fn prepare(&mut self, tokens: &[u32], wanted: Logits) -> Result<Run> {
        let run = self.next_run(tokens, wanted);
        self.decoder.check_run(tokens, self.len)?;
        self.rows.clear();
        self.rows.extend(tokens, self.len)?;
        let (decoder, keys) = (&self.decoder, self.len + tokens.len());
        self.rows.write(&decoder.graph, &mut self.executor, run.plan)?;
        if let Some(mask) = roles::mask_of(&decoder.graph, keys)? {
            self.executor.write(run.plan, roles::MASK, &mask)?;
        }
        Ok(run)
    }

    /// Queues one run over `tokens`, at most a chunk.
    pub(super) fn advance(&mut self, tokens: &[u32], wanted: Logits) -> Result<Run> {
        let run = self.prepare(tokens, wanted)?;
        self.rings.grow(self.len + tokens.len());
        self.executor.run(run.plan, &run.bindings)?;
        self.len += tokens.len();
        Ok(run)
    }

    /// Shape of an output of a plan; none if the plan lacks it.
    fn shape(&self, plan: usize, output: &str, bindings: &Bindings) -> Result<Vec<usize>> {
        let port = self.executor.plan(plan).and_then(|p| p.output(output));
        let shape = port.map(|p| p.shape.eval(bindings)).transpose();
        let shape = shape.map_err(|e| Error::other(Stage::Run, e.to_string()))?;
        Ok(shape.unwrap_or_default())
    }

    /// Like [`DeviceModel::advance`], for runs with logits.
    fn step(&mut self, tokens: &[u32], wanted: Logits) -> Result<Ran> {
        let Run { plan, bindings, .. } = self.advance(tokens, wanted)?;
        let shape = self.shape(plan, "logits", &bindings)?;
        let rows = shape.iter().product::<usize>() / self.decoder.vocab.max(1);
        if rows == 0 {
            return Err(Error::other(
                Stage::Run,
                format!("logits of shape {shape:?} have no rows"),
            ));
        }
        if wanted != Logits::Last {
            check_rows(tokens.len(), rows)?;
        }
        Ok(Ran { plan, rows })
    }

    /// Runs `tokens` in chunks; returns the last run.
    fn run_last(&mut self, tokens: &[u32]) -> Result<Ran> {
        check_room(self.len, tokens.len(), self.set.lengths.context)?;
        let mut last = None;
        for part in tokens.chunks(self.set.lengths.chunk) {
            last = Some(self.step(part, Logits::Last)?);
        }
        last.ok_or_else(|| Error::other(Stage::Run, "a run needs at least one token"))
    }

    /// Runs `tokens` in chunks with all their logits, and passes each run to `take`.
    fn run_all(&mut self, tokens: &[u32], take: &mut dyn FnMut(&mut Self, Ran) -> Result<()>) -> Result<()> {
        check_room(self.len, tokens.len(), self.set.lengths.context)?;
        for part in tokens.chunks(self.set.lengths.chunk) {
            let ran = self.step(part, Logits::All)?;
            take(self, ran)?;
        }
        Ok(())
    }

    /// True if the device finds the largest logit itself.
    fn tells_tokens(&self) -> bool {
        self.decoder.graph.output(TOKEN).is_some()
    }

    /// Appends the IDs of the largest logits of `rows` of the last run.
    fn chosen(&mut self, plan: usize, rows: Range<usize>, ids: &mut Vec<u32>) -> Result<()> {
        let (executor, vocab, before) = (&mut self.executor, self.decoder.vocab, ids.len());
        chosen(executor, plan, rows.clone(), ids)?;
        let mut row = Vec::new();
        for (id, at) in ids.iter_mut().skip(before).zip(rows) {
            *id = checked(executor, plan, vocab, at, *id, &mut row)?;
        }
        Ok(())
    }

    fn read_candidates(&mut self, plan: usize, rows: Range<usize>, found: &mut Candidates) -> Result<()> {
        let (executor, read) = (&mut self.executor, &mut self.candidates);
        let Decoder { graph, vocab, .. } = &*self.decoder;
        read.read(executor, plan, graph, rows.clone())?;
        rows.into_iter()
            .try_for_each(|at| read.push(executor, plan, *vocab, at, found))
    }

    /// Runs one chunk of `tokens` and returns the time of each step.
    pub fn profile(&mut self, tokens: &[u32]) -> Result<Vec<Timing>> {
        check_room(self.len, tokens.len(), self.set.lengths.context)?;
        let run = self.prepare(tokens, Logits::Last)?;
        self.rings.grow(self.len + tokens.len());
        let times = self.executor.profile(run.plan, &run.bindings)?;
        self.len += tokens.len();
        Ok(times)
    }
}

/// Appends what the output [`TOKEN`] of a plan holds for `rows` of the last run.
pub(super) fn chosen(
    executor: &mut Executor,
    plan: usize,
    rows: Range<usize>,
    ids: &mut Vec<u32>,
) -> Result<()> {
    let before = ids.len();
    ids.resize(before + rows.len(), 0);
    let new = num::part_mut(ids, before..)?;
    executor.read_indices(plan, TOKEN, rows.start, new)
}

/// The ID of the largest logit of row `at` of the last run, for which [`TOKEN`] holds `id`. If the
/// device found none, the row is read to `row` and searched.
pub(super) fn checked(
    executor: &mut Executor,
    plan: usize,
    vocab: usize,
    at: usize,
    id: u32,
    row: &mut Vec<f32>,
) -> Result<u32> {
    if usize::try_from(id).is_ok_and(|id| id < vocab) {
        return Ok(id);
    }
    row.resize(vocab, 0.0);
    executor.read_f32(plan, "logits", at * vocab, row)?;
    arg_max(row)
}

impl LanguageModel for DeviceModel {
    fn vocab(&self) -> usize {
        self.decoder.vocab
    }

    fn context(&self) -> usize {
        self.set.lengths.context
    }

    fn run_length(&self) -> usize {
        self.set.lengths.chunk
    }

    fn len(&self) -> usize {
        self.len
    }

    fn forward(&mut self, tokens: &[u32], logits: &mut Vec<f32>) -> Result<()> {
        let Ran { plan, rows } = self.run_last(tokens)?;
        let vocab = self.decoder.vocab;
        logits.resize(vocab, 0.0);
        self.executor.read_f32(plan, "logits", (rows - 1) * vocab, logits)
    }

    fn forward_all(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let vocab = self.decoder.vocab;
        let mut all = vec![0f32; tokens.len() * vocab];
        let mut done = 0;
        self.run_all(tokens, &mut |model, Ran { plan, rows }| {
            let end = done + rows * vocab;
            let data = num::part_mut(&mut all, done..end)?;
            done = end;
            model.executor.read_f32(plan, "logits", 0, data)
        })?;
        Ok(all)
    }

    fn most_rows(&self) -> usize {
        if self.set.verifies() {
            self.set.lengths.verify_tokens
        } else if self.decoder.all_rows {
            usize::MAX
        } else {
            1
        }
    }

    fn most_likely(&mut self, tokens: &[u32]) -> Result<u32> {
        if !self.tells_tokens() {
            let mut logits = Vec::new();
            self.forward(tokens, &mut logits)?;
            return arg_max(&logits);
        }
        let Ran { plan, rows } = self.run_last(tokens)?;
        let mut ids = Vec::with_capacity(1);
        self.chosen(plan, rows - 1..rows, &mut ids)?;
        ids.pop()
            .ok_or_else(|| Error::internal(Stage::Run, "a run without a token"))
    }

    fn most_likely_all(&mut self, tokens: &[u32]) -> Result<Vec<u32>> {
        if !self.tells_tokens() {
            let rows = self.forward_all(tokens)?;
            return rows.chunks(self.decoder.vocab.max(1)).map(arg_max).collect();
        }
        let mut all = Vec::with_capacity(tokens.len());
        self.run_all(tokens, &mut |model, Ran { plan, rows }| {
            model.chosen(plan, 0..rows, &mut all)
        })?;
        Ok(all)
    }

    fn finds_candidates(&self) -> bool {
        candidates::are_found(&self.decoder.graph)
    }

    fn candidates(&mut self, tokens: &[u32], found: &mut Candidates) -> Result<()> {
        let Ran { plan, rows } = self.run_last(tokens)?;
        found.clear();
        self.read_candidates(plan, rows - 1..rows, found)
    }

    fn candidates_all(&mut self, tokens: &[u32], found: &mut Candidates) -> Result<()> {
        found.clear();
        self.run_all(tokens, &mut |model, Ran { plan, rows }| {
            model.read_candidates(plan, 0..rows, found)
        })
    }

    fn states(&mut self) -> Option<&mut dyn States> {
        Some(self)
    }

    fn truncate(&mut self, len: usize) -> usize {
        if len < self.len {
            self.len = self.rings.cut(len);
        }
        self.len
    }
}

impl Observe for DeviceModel {
    fn observe(&mut self, tokens: &[u32], take: &mut dyn FnMut(usize, &[f32]) -> Result<()>) -> Result<()> {
        check_room(self.len, tokens.len(), self.set.lengths.context)?;
        let mut data = Vec::new();
        for part in tokens.chunks(self.set.lengths.chunk) {
            let sizes = self.decoder.sizes(part.len(), self.len);
            let plan = self.advance(part, Logits::Last)?.plan;
            for (i, name) in self.decoder.observed.iter().enumerate() {
                let shape = self.shape(plan, name, &sizes)?;
                data.resize(shape.iter().product(), 0.0);
                self.executor.read_f32(plan, name, 0, &mut data)?;
                take(i, &data)?;
            }
        }
        Ok(())
    }
}
