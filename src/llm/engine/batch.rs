//! Runs rows of several sequences in one step, over a cache in pages.

use super::candidates::{self, RunCandidates};
use super::device::{checked, chosen};
use super::{Decoder, DecoderMemory, SequenceConfig, check_tokens};
use crate::backend::{Backend, Caps, SharedBackend};
use crate::cache::Store;
use crate::error::{Error, ErrorKind, Result, Stage};
use crate::executor::{Executor, Program};
use crate::graph::op::paged_attention::{PAGE, TILE, TILE_ROWS};
use crate::graph::pass::{CHOSEN, PAGES, PLACES, TILES, TOKEN};
use crate::llm::Candidates;
use crate::llm::roles::{RunInputs, int};
use crate::note::Note;
use crate::num::{self, signed};
use crate::plan::{Options, Plan};
use crate::quota::Quota;
use crate::shape::{Bindings, Symbol};
use crate::validate::first_run::{FirstRun, Observer};
use std::sync::Arc;
use std::time::Duration;

/// Tokens of a step that validates kernels: more than one row tile of most kernels.
const SAMPLE: usize = 12;

/// Rows of the only plan with [`Reproducible::ByPlan`]: the most for which matmuls use the kernel
/// for few rows. A larger plan would make steps of few sequences slower.
pub const UNIFORM_ROWS: usize = 64;

/// Sizes for which rows of several sequences are planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchConfig {
    /// Pages of the cache, of [`PAGE`] tokens each.
    pub pages: usize,
    /// Maximum number of tokens of a sequence.
    pub context: usize,
    /// Maximum number of rows of a step.
    pub rows: usize,
    /// Maximum number of rows of a step with logits.
    pub logits: usize,
    /// Whether each sequence gets the results that it would get alone, and how.
    pub reproducible: Reproducible,
}

/// How the results of a row become independent of the other rows of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reproducible {
    /// They may depend on them.
    #[default]
    No,
    /// A sequence's tokens are fed in chunks that give the results that it would get alone. For
    /// native devices, where results depend only on how the tokens of one sequence are grouped.
    ByChunks,
    /// Steps of all sizes use one plan, and so the same kernels. For devices that compute rows
    /// independently, with kernels that depend on the number of rows.
    ByPlan,
}

impl Reproducible {
    /// The way of a device, if results are to be reproducible.
    pub fn on(caps: &Caps, wanted: bool) -> Self {
        match (wanted, caps.profile.has_independent_rows()) {
            (false, _) => Self::No,
            (true, true) => Self::ByChunks,
            (true, false) => Self::ByPlan,
        }
    }
}

impl BatchConfig {
    /// Minimum of `rows` with which all sequences make progress.
    pub fn least_rows(&self) -> usize {
        match self.reproducible {
            Reproducible::ByPlan => UNIFORM_ROWS,
            _ => 2 * PAGE,
        }
    }
}

/// Consecutive tokens of a sequence.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    /// At least one.
    pub tokens: &'a [u32],
    /// Position of the first token. The cache holds all tokens before it.
    pub start: usize,
    /// The pages of the sequence, for all positions up to that of the last token.
    pub pages: &'a [u32],
    /// How many of the last tokens need logits.
    pub logits: usize,
    /// Computes each token as if it were the only one of its sequence in the step. So generated
    /// tokens that are fed again, several at once, get the same keys and values as before.
    pub alone: bool,
}

/// A model that runs rows of several sequences in one step, over a cache in pages.
pub trait RowModel: Send {
    /// The sizes of its steps and of its cache.
    fn config(&self) -> BatchConfig;

    /// Vocabulary size: entries per row of logits.
    fn vocab(&self) -> usize;

    /// Runs one step of 1 to [`BatchConfig::rows`] tokens. No two spans may write the same row of
    /// the cache. Afterwards there is one row of logits for each token for which a span asks
    /// ([`Span::logits`]), in order, or a single row if none does. After an error, the contents of
    /// the cache are unspecified.
    fn step(&mut self, spans: &mut dyn Iterator<Item = Span<'_>>) -> Result<()>;

    /// Appends `rows` rows of logits of the last step to `logits`, starting with row `first`. Each
    /// has [`RowModel::vocab`] elements.
    fn logits(&mut self, first: usize, rows: usize, logits: &mut Vec<f32>) -> Result<()>;

    /// Appends the IDs of the largest logits of rows of the last step.
    fn most_likely(&mut self, first: usize, rows: usize, ids: &mut Vec<u32>) -> Result<()>;

    /// See [`LanguageModel::finds_candidates`](crate::llm::LanguageModel::finds_candidates).
    fn finds_candidates(&self) -> bool;

    /// Maximum time of a call of one sequence, its wait for steps included. Steps are not limited.
    fn time(&self) -> Option<Duration>;

    /// Appends the candidates of rows of the last step.
    fn candidates(&mut self, first: usize, rows: usize, found: &mut Candidates) -> Result<()>;

    /// Copies pages of the cache in order, each from the first to the second.
    fn copy_pages(&mut self, pages: &[[u32; 2]]) -> Result<()>;
}

/// Tables of a step. They are kept, so that a step allocates nothing.
#[derive(Debug)]
struct Tables {
    rows: RunInputs,
    places: Vec<i32>,
    tiles: Vec<i32>,
    pages: Vec<i32>,
    chosen: Vec<i32>,
    /// The places in order, to find equal ones.
    sorted: Vec<i32>,
    /// The values of the symbols of plans.
    bindings: Bindings,
    /// [`TILES`], [`PAGES`] and [`CHOSEN`].
    symbols: [Symbol; 3],
}

impl Default for Tables {
    fn default() -> Self {
        Self {
            rows: RunInputs::default(),
            places: Vec::new(),
            tiles: Vec::new(),
            pages: Vec::new(),
            chosen: Vec::new(),
            sorted: Vec::new(),
            bindings: Bindings::new(),
            symbols: [TILES, PAGES, CHOSEN].map(Symbol::new),
        }
    }
}

impl Tables {
    /// Describes the rows of a step.
    fn fill(&mut self, spans: &mut dyn Iterator<Item = Span<'_>>, decoder: &Decoder) -> Result<()> {
        self.rows.clear();
        for table in [
            &mut self.places,
            &mut self.tiles,
            &mut self.pages,
            &mut self.chosen,
        ] {
            table.clear();
        }
        for span in spans {
            check_tokens(span.tokens, decoder.vocab)?;
            self.add(&span)?;
        }
        if self.chosen.is_empty() {
            self.chosen.push(0);
        }
        let [tiles, pages, chosen] = &self.symbols;
        (self.bindings)
            .set(&decoder.sequence, signed(self.rows.len()))
            .set(tiles, signed(self.tiles.len() / TILE))
            .set(pages, signed(self.pages.len()))
            .set(chosen, signed(self.chosen.len()));
        Ok(())
    }

    fn add(&mut self, span: &Span<'_>) -> Result<()> {
        let index = |n: usize| int(n, "an index of a row");
        let (table, first) = (self.pages.len(), self.rows.len());
        let needed = (span.start + span.tokens.len()).div_ceil(PAGE);
        let pages = span.pages.get(..needed).ok_or_else(|| {
            let what = format!("a span needs {needed} pages, but has {}", span.pages.len());
            Error::internal(Stage::Run, what)
        })?;
        for page in pages {
            self.pages.push(int(*page, "a page")?);
        }
        self.rows.extend(span.tokens, span.start)?;
        for position in (span.start..).take(span.tokens.len()) {
            let page = *num::at(pages, position / PAGE)?;
            let place = u64::from(page) * num::wide(PAGE) + num::wide(position % PAGE);
            self.places.push(int(place, "a row of the cache")?);
        }
        let mut done = 0;
        while done < span.tokens.len() {
            let position = span.start + done;
            // Tiles end at multiples of TILE_ROWS positions, however a prompt is split into steps.
            let most = if span.alone {
                1
            } else {
                TILE_ROWS - position % TILE_ROWS
            };
            let count = most.min(span.tokens.len() - done);
            for n in [first + done, count, table, position + 1] {
                self.tiles.push(index(n)?);
            }
            done += count;
        }
        let skipped = span.tokens.len().saturating_sub(span.logits);
        for row in first + skipped..self.rows.len() {
            self.chosen.push(index(row)?);
        }
        Ok(())
    }

    /// Checks the tables against `config`, and that no two rows share a place in the cache.
    fn check(&mut self, config: &BatchConfig) -> Result<()> {
        let wrong = |what: String| Err(Error::internal(Stage::Run, what));
        let rows = self.rows.len();
        if rows == 0 || rows > config.rows {
            return wrong(format!("a step of {rows} rows, expected 1 to {}", config.rows));
        }
        if self.chosen.len() > config.logits {
            let (found, most) = (self.chosen.len(), config.logits);
            return wrong(format!("{found} rows with logits; at most {most} fit"));
        }
        let (pages, context) = (signed(config.pages), signed(config.context));
        if let Some(page) = self.pages.iter().find(|p| i64::from(**p) >= pages) {
            return wrong(format!("page {page} of a cache of {pages}"));
        }
        let mut positions = self.rows.positions().iter();
        if let Some(p) = positions.find(|p| i64::from(**p) >= context) {
            return wrong(format!("position {p} in a context of {context}"));
        }
        self.sorted.clear();
        self.sorted.extend_from_slice(&self.places);
        self.sorted.sort_unstable();
        let mut neighbours = self.sorted.iter().zip(self.sorted.iter().skip(1));
        match neighbours.find(|(a, b)| a == b) {
            Some((place, _)) => wrong(format!("two rows at place {place}")),
            None => Ok(()),
        }
    }

    /// Uploads the tables as inputs of a plan.
    fn write(&self, decoder: &Decoder, executor: &mut Executor, plan: usize) -> Result<()> {
        self.rows.write(&decoder.graph, executor, plan)?;
        let tiles = self.tiles.len() / TILE;
        for (name, shape, data) in [
            (PLACES, &[self.places.len()][..], &self.places),
            (TILES, &[tiles, TILE], &self.tiles),
            (PAGES, &[self.pages.len()], &self.pages),
            (CHOSEN, &[self.chosen.len()], &self.chosen),
        ] {
            executor.write_i32(plan, name, shape, data)?;
        }
        Ok(())
    }
}

impl Decoder {
    /// Numbers of rows with plans of their own, ascending.
    fn row_plans(caps: &Caps, config: &BatchConfig) -> Vec<usize> {
        if config.reproducible == Reproducible::ByPlan {
            return vec![config.rows];
        }
        let lengths = SequenceConfig {
            chunk: config.rows,
            ..SequenceConfig::of(config.context).on(caps)
        };
        let mut all = vec![1, config.rows];
        all.extend(
            lengths
                .short_prefill
                .into_iter()
                .filter(|n| (2..config.rows).contains(n)),
        );
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Memory of a [`BatchModel`].
    pub fn batch_memory(&self, caps: &Caps, config: &BatchConfig) -> Result<DecoderMemory> {
        let all = Self::row_plans(caps, config);
        let plans = all.iter().map(|most| self.row_plan(caps, config, *most));
        self.memory_of(&plans.collect::<Result<Vec<_>>>()?, config.context, caps)
    }

    fn row_plan(&self, caps: &Caps, config: &BatchConfig, most: usize) -> Result<Plan> {
        let pool = signed(config.pages * PAGE);
        let mut options = Options {
            float: self.float_on(caps),
            state_float: Some(self.state_float_on(caps)),
            state_rows: pool,
            on_request: candidates::OUTPUTS,
            ..Options::default()
        };
        options.fixed.set(&self.past, pool);
        match most {
            1 => options.fixed.set(&self.sequence, 1).set(&Symbol::new(CHOSEN), 1),
            _ => (options.bounds)
                .set(&self.sequence, signed(most))
                .set(&Symbol::new(CHOSEN), signed(most.min(config.logits))),
        };
        let pages = most.saturating_mul(config.context.div_ceil(PAGE));
        options
            .bounds
            .set(&Symbol::new(TILES), signed(most))
            .set(&Symbol::new(PAGES), signed(pages));
        Plan::compile(self.graph_for(most, caps), caps, &options)
    }
}

/// The last step.
#[derive(Clone, Copy, Debug)]
struct Ran {
    plan: usize,
    /// Rows with logits.
    rows: usize,
    /// Whether their most likely tokens and their candidates were read.
    ids: bool,
    candidates: bool,
}

/// A decoder on a device that runs rows of several sequences.
#[derive(Debug)]
pub struct BatchModel {
    decoder: Arc<Decoder>,
    executor: Executor,
    config: BatchConfig,
    /// Maximum rows of each plan, ascending.
    most: Vec<usize>,
    tables: Tables,
    ran: Option<Ran>,
    /// The most likely tokens and the candidates of the last step, if they were read.
    ids: Vec<u32>,
    candidates: RunCandidates,
    /// A row of logits.
    row: Vec<f32>,
    time: Option<Duration>,
}

impl BatchModel {
    /// Plans `decoder`, which must have [`Logits::Chosen`](super::Logits::Chosen), for a device,
    /// uploads its weights, and validates kernels that `store` does not know. Returns an error if
    /// memory is short, or if a kernel without an alternative fails validation.
    pub fn load(
        decoder: Decoder,
        mut backend: SharedBackend,
        config: &BatchConfig,
        store: Option<Arc<Store>>,
    ) -> Result<(Self, Vec<Note>)> {
        let decoder = Arc::new(decoder);
        let most = Decoder::row_plans(backend.caps(), config);
        let mut first = FirstRun::new(backend.caps(), store);
        loop {
            let caps = backend.caps().clone();
            let plans = most.iter().map(|most| decoder.row_plan(&caps, config, *most));
            let plans = plans.collect::<Result<Vec<_>>>()?;
            if first.quarantine_unbuilt(&mut backend, &plans)? {
                continue;
            }
            let program = Arc::new(Program::load(
                backend.clone(),
                decoder.graph(),
                plans,
                decoder.weights,
                &mut |_, _| {},
            )?);
            let mut model = Self {
                decoder: decoder.clone(),
                executor: Executor::of(&program)?,
                config: *config,
                most: most.clone(),
                tables: Tables::default(),
                ran: None,
                ids: Vec::new(),
                candidates: RunCandidates::default(),
                row: Vec::new(),
                time: Quota::current().and_then(|quota| quota.time()),
            };
            if first.validate(&mut backend, &program, &mut |observer| model.observe(observer))? {
                return Ok((model, first.notes().to_vec()));
            }
        }
    }

    /// Runs each plan that `observer` needs over a few tokens.
    fn observe(&mut self, observer: &mut Observer<'_>) -> Result<()> {
        if observer.is_empty() {
            return Ok(());
        }
        for (plan, most) in self.most.clone().into_iter().enumerate() {
            if !self.executor.plan(plan).is_some_and(|p| observer.wants(p)) {
                continue;
            }
            let count = SAMPLE.min(most).min(self.config.context);
            let logits = count.min(self.config.logits);
            let tokens: Vec<u32> = (0..count)
                .map(|i| self.decoder.sample_token(i))
                .collect::<Result<_>>()?;
            let span = Span {
                tokens: &tokens,
                start: 0,
                pages: &[0],
                logits,
                alone: false,
            };
            self.tables.fill(&mut std::iter::once(span), &self.decoder)?;
            loop {
                self.tables.write(&self.decoder, &mut self.executor, plan)?;
                if !observer.run(&mut self.executor, plan, &self.tables.bindings)? {
                    break;
                }
            }
        }
        Ok(())
    }

    /// The last step, which has these rows of logits.
    fn ran(&self, first: usize, rows: usize) -> Result<Ran> {
        let wrong = |all| {
            let what = format!("rows {first} to {} of {all} rows of logits", first + rows);
            Error::internal(Stage::Run, what)
        };
        let ran = self.ran.ok_or_else(|| wrong(0))?;
        if first + rows > ran.rows {
            return Err(wrong(ran.rows));
        }
        Ok(ran)
    }
}

impl RowModel for BatchModel {
    fn config(&self) -> BatchConfig {
        self.config
    }

    fn vocab(&self) -> usize {
        self.decoder.vocab
    }

    fn step(&mut self, spans: &mut dyn Iterator<Item = Span<'_>>) -> Result<()> {
        self.ran = None;
        let tables = &mut self.tables;
        tables.fill(spans, &self.decoder)?;
        tables.check(&self.config)?;
        let rows = tables.rows.len();
        let plan = self.most.iter().position(|most| rows <= *most);
        let plan = plan.ok_or_else(|| Error::internal(Stage::Run, "a step without a plan"))?;
        tables.write(&self.decoder, &mut self.executor, plan)?;
        self.executor.run(plan, &tables.bindings)?;
        self.ran = Some(Ran {
            plan,
            rows: tables.chosen.len(),
            ids: false,
            candidates: false,
        });
        Ok(())
    }

    fn logits(&mut self, first: usize, rows: usize, logits: &mut Vec<f32>) -> Result<()> {
        let plan = self.ran(first, rows)?.plan;
        let (vocab, before) = (self.decoder.vocab, logits.len());
        logits.resize(before + rows * vocab, 0.0);
        let new = num::part_mut(logits, before..)?;
        self.executor.read_f32(plan, "logits", first * vocab, new)
    }

    fn most_likely(&mut self, first: usize, rows: usize, ids: &mut Vec<u32>) -> Result<()> {
        let ran = self.ran(first, rows)?;
        if !ran.ids {
            self.ids.clear();
            match self.decoder.graph.output(TOKEN) {
                Some(_) => chosen(&mut self.executor, ran.plan, 0..ran.rows, &mut self.ids)?,
                // Rows are searched here.
                None => self.ids.resize(ran.rows, u32::MAX),
            }
            self.ran = Some(Ran { ids: true, ..ran });
        }
        for (at, id) in self.ids.iter().enumerate().skip(first).take(rows) {
            let (executor, vocab) = (&mut self.executor, self.decoder.vocab);
            ids.push(checked(executor, ran.plan, vocab, at, *id, &mut self.row)?);
        }
        Ok(())
    }

    fn finds_candidates(&self) -> bool {
        candidates::are_found(&self.decoder.graph)
    }

    fn time(&self) -> Option<Duration> {
        self.time
    }

    fn candidates(&mut self, first: usize, rows: usize, found: &mut Candidates) -> Result<()> {
        let ran = self.ran(first, rows)?;
        let (executor, read) = (&mut self.executor, &mut self.candidates);
        let Decoder { graph, vocab, .. } = &*self.decoder;
        if !ran.candidates {
            read.read(executor, ran.plan, graph, 0..ran.rows)?;
            let candidates = true;
            self.ran = Some(Ran { candidates, ..ran });
        }
        let mut each = first..first + rows;
        each.try_for_each(|at| read.push(executor, ran.plan, *vocab, at, found))
    }

    fn copy_pages(&mut self, pages: &[[u32; 2]]) -> Result<()> {
        self.executor.copy_parts(pages, signed(PAGE))
    }
}

/// The error for a decoder whose rows cannot be those of several sequences.
pub(super) fn refused(why: &str) -> Error {
    let what = format!("this model cannot run several sequences at once: {why}");
    Error::other(Stage::Pass, what).of_kind(ErrorKind::Unsupported)
}
