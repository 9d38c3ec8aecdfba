//! ONNX decoders as [`LanguageModel`]s: on a device through a [`Executor`], and on the host through the interpreter.
//!
//! The graph is one that takes `input_ids [batch, sequence]`, perhaps `position_ids` and `attention_mask`, and returns `logits`;
//! every other input must have become state (pass `kv_cache`), or the model runs without a cache. One sequence is run (`batch = 1`).

mod check;
mod cost;
mod host;
mod loaded;
mod memory;
mod ring;
mod states;
mod tune;
mod uncached;

pub use host::HostModel;
pub use loaded::DeviceDecoder;
pub use memory::{DecoderMemory, Planned};
pub use tune::{Tuner, TuningRow};
pub(super) use uncached::Uncached;

use super::prompt_cache::States;
use super::sampler::arg_max;
use super::{LanguageModel, roles};
use crate::backend::{Backend, Caps, Stats};
use crate::error::{Error, ErrorKind, Result, Stage};
use crate::executor::{Executor, Timing, WeightSource};
use crate::graph::derive::derive;
use crate::graph::onnx::{self, ImportOptions};
use crate::graph::op::attention::{Attention, UNSPLIT};
use crate::graph::op::concat::Concat;
use crate::graph::op::matmul_e0m::FEW_ROWS;
use crate::graph::pass::{EPILOGUE, LAST_ROW, LAST_ROWS, PassReport, Pipeline, ROWS, TOKEN, keeps_cache};
use crate::graph::{Edit, Graph, Node, ValueId};
use crate::plan::{MemoryReport, Options, Padding, Plan};
use crate::shape::{Bindings, Dim, Symbol};
use crate::tensor::{DType, HostTensor};
use ring::Rings;
use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;

/// Most tokens of one prefill run, unless the device wants more ([`Lengths::on`]).
pub const CHUNK: usize = 128;

/// The same where products run on matrix units, which fewer rows leave idle.
const LONG_CHUNK: usize = 1024;

/// Lengths of decoding are padded to multiples of this.
pub const PADDING: usize = 64;

/// What a decoder is planned for, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Tokens that the cache holds.
    pub context: usize,
    /// Most tokens of one prefill run. A cache of which a window is read has room for that and for so many.
    pub chunk: usize,
    /// Prefill runs of no more tokens than this have a plan of their own, whose kernels are for few rows. 0: there is none.
    pub short: usize,
    /// In decoding, grids and parameters are those of the next multiple of this many tokens, so that they change only when
    /// a multiple is crossed.
    pub padding: usize,
    /// Most tokens of a run that tells the logits of all of them, for a decoder with [`Logits::Tail`]: a token and its draft. Below 2
    /// there is no plan for such runs.
    pub rows: usize,
}

impl Lengths {
    /// A cache of `context` tokens, else what is usual.
    pub fn of(context: usize) -> Self {
        Self {
            context,
            chunk: CHUNK.min(context),
            short: 0,
            padding: PADDING,
            rows: 0,
        }
    }

    /// The same, with prefill runs as long as the device wants them.
    #[must_use]
    pub fn on(mut self, caps: &Caps) -> Self {
        if caps.matrix_units {
            self.chunk = LONG_CHUNK.min(self.context);
            let few = usize::try_from(FEW_ROWS).unwrap_or(0);
            self.short = if self.chunk > few { few } else { 0 };
        }
        self
    }
}

/// Which rows of the logits are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logits {
    /// The last of each run: generation.
    Last,
    /// As many of the last as a run asks for: generation with drafts.
    Tail,
    /// All of them: evaluation.
    All,
}

/// A decoder's graph with its roles found.
#[derive(Debug)]
pub struct Decoder {
    graph: Arc<Graph>,
    /// The graph for runs of one token, where it is another.
    step: Option<Graph>,
    /// By which passes it became so.
    one_row: Pipeline,
    /// It has no mask.
    unmasked: bool,
    sequence: Symbol,
    past: Symbol,
    /// What runs before left is there for the next.
    keeps_cache: bool,
    /// Counts the rows of logits that a run computes, where it may choose.
    rows: Option<Symbol>,
    /// All rows of logits are computed in every run.
    all_rows: bool,
    vocab: usize,
    /// Tells one model from another.
    fingerprint: String,
    /// Storage of activations on a device.
    float: DType,
    /// Where its weights come from on a device.
    weights: WeightSource,
    /// Keys that a mask which is made for a run shows to a query.
    window: Option<usize>,
    /// Values in its middle that a run tells, by name.
    watched: Vec<String>,
    /// What the passes did.
    pub passes: Vec<PassReport>,
}

const NO_IDS: &str = "there is no input \"input_ids\"";

fn bad(what: impl Into<String>) -> Error {
    Error::other(Stage::Import, what)
}

/// Columns of the logits.
fn vocabulary(graph: &Graph) -> Result<usize> {
    let out = graph
        .output("logits")
        .ok_or_else(|| bad("no output \"logits\""))?;
    let fact = graph.fact(out)?;
    let last = match fact.shape.0.as_slice() {
        [_, _, last] => last.as_const().and_then(|v| usize::try_from(v).ok()),
        _ => None,
    };
    last.ok_or_else(|| {
        bad(format!(
            "logits: expected [batch, sequence, vocabulary], found {fact}"
        ))
    })
}

/// `without`, else `graph`, with what joins by `pipeline` where runs have one row; `None` where that is `graph`.
fn for_one_row(without: Option<Graph>, graph: &Graph, pipeline: &Pipeline) -> Result<Option<Graph>> {
    let other = without.is_some();
    let mut step = without.unwrap_or_else(|| graph.clone());
    let joined = pipeline.run(&mut step)?.iter().any(|r| r.edits > 0);
    Ok((other || joined).then_some(step))
}

/// Leaves of a decoder what the values `watched`, which are outputs, need: of the caches those that are appended to for them, or the first where that is none, since a
/// decoder has one.
fn end_with(graph: &mut Graph, watched: &[String]) {
    let name = |v: ValueId| graph.value(v).name.as_str();
    let mut needed = HashSet::new();
    let wanted = |v: &ValueId| watched.iter().any(|w| w == name(*v));
    let mut work: Vec<ValueId> = graph.outputs().iter().copied().filter(wanted).collect();
    let is_cache = |v: ValueId| {
        let node = graph.producer(v).map(|(_, n)| n);
        let past = node
            .filter(|n| n.op.downcast::<Concat>().is_some())
            .and_then(|n| n.inputs.first().copied().flatten());
        past.is_some_and(|p| graph.inputs().contains(&p))
    };
    while let Some(v) = work.pop() {
        if needed.insert(v)
            && let Some((_, node)) = graph.producer(v)
        {
            work.extend(node.inputs.iter().flatten());
        }
    }
    let caches: Vec<ValueId> = graph.outputs().iter().copied().filter(|v| is_cache(*v)).collect();
    if !caches.iter().any(|v| needed.contains(v)) {
        needed.extend(caches.first());
    }
    Edit::new(graph).keep_outputs(|v| needed.contains(&v));
}

impl Decoder {
    /// Reads a model and prepares its graph by `pipeline`.
    pub fn load(path: &Path, pipeline: &Pipeline, logits: Logits) -> Result<Self> {
        Self::load_with(path, ImportOptions::default(), pipeline, logits)
    }

    /// As [`Decoder::load`], with options for reading the model. Without its weights a decoder can be planned, not run.
    pub fn load_with(
        path: &Path,
        options: ImportOptions,
        pipeline: &Pipeline,
        logits: Logits,
    ) -> Result<Self> {
        let graph = onnx::import_with(path, options)?;
        if graph.input("input_ids").is_none() {
            return Err(bad(format!("{}: {NO_IDS}", path.display())));
        }
        Self::of(graph, pipeline, logits)
    }

    /// Prepares an imported graph by `pipeline`.
    pub fn of(graph: Graph, pipeline: &Pipeline, logits: Logits) -> Result<Self> {
        Self::watching(graph, &[], pipeline, logits)
    }

    /// As [`Decoder::of`]; the values `watched`, by name, are computed as they are and told by [`Watch`]. Where there are any, nothing is computed that
    /// they do not need: logits can be asked for only if they are among them. An error for a name that no node's result has.
    pub fn watching(
        mut graph: Graph,
        watched: &[String],
        pipeline: &Pipeline,
        logits: Logits,
    ) -> Result<Self> {
        for name in watched {
            let value = graph
                .find(name)
                .filter(|v| graph.value(*v).producer.is_some())
                .ok_or_else(|| bad(format!("no node makes a value \"{name}\"")))?;
            if !graph.outputs().contains(&value) {
                Edit::new(&mut graph).add_output(value);
            }
        }
        let mut vocab = None;
        if !watched.is_empty() {
            derive(&mut graph)?;
            vocab = Some(vocabulary(&graph)?);
            end_with(&mut graph, watched);
        }
        roles::name_lengths(&mut graph).map_err(|e| bad(e.to_string()))?;
        let ids = graph.input(roles::IDS).ok_or_else(|| bad(NO_IDS))?;
        let [batch, sequence] = graph.fact(ids)?.shape.0.as_slice() else {
            return Err(bad(format!(
                "input_ids: expected [batch, sequence], found {}",
                graph.fact(ids)?
            )));
        };
        let sequence = sequence
            .as_symbol()
            .cloned()
            .ok_or_else(|| bad(format!("input_ids: sequence length {sequence} is not a symbol")))?;
        if let Some(batch) = batch.as_symbol().cloned() {
            let one = BTreeMap::from([(batch, Dim::from(1))]);
            Edit::new(&mut graph)
                .replace_symbols(&one)
                .map_err(|e| bad(e.to_string()))?;
        }
        roles::check(&graph)?;
        // Every run has a token, so that there is a last one.
        let mut known = graph.constraints().clone();
        known
            .bound(&sequence, Some(1), None)
            .map_err(|e| bad(e.to_string()))?;
        Edit::new(&mut graph).set_constraints(known);
        let fingerprint = states::fingerprint(&graph);
        let mut pipeline = pipeline.clone();
        let one_row = pipeline.take_one_row();
        match logits {
            Logits::All => {}
            _ if graph.output("logits").is_none() => {}
            Logits::Last => pipeline.insert_before(EPILOGUE.name, LAST_ROW),
            Logits::Tail => pipeline.insert_before(EPILOGUE.name, LAST_ROWS),
        }
        let imported = graph.clone();
        let mut passes = pipeline.run(&mut graph)?;
        if graph.states().is_empty() {
            let mut without = imported;
            if roles::empty_caches(&mut without)? {
                graph = without;
                passes = pipeline.run(&mut graph)?;
            }
        }
        let chosen = graph.input(ROWS).filter(|_| logits == Logits::Tail);
        let chosen = chosen.map(|v| graph.fact(v)).transpose()?;
        let rows = chosen.and_then(|f| f.shape.0.first()?.as_symbol().cloned());
        if let Some(v) = graph.inputs().iter().find(|v| {
            let name = graph.value(**v).name.as_str();
            name != ROWS && !roles::KNOWN.contains(&name)
        }) {
            let name = &graph.value(*v).name;
            return Err(bad(format!(
                "input \"{name}\" is neither {} nor a cache that could become state",
                roles::KNOWN.join(", ")
            )));
        }
        let past = match graph.states().first() {
            Some(s) if graph.states().iter().all(|o| o.past == s.past) => s.past.clone(),
            Some(_) => return Err(bad("the caches grow from different lengths")),
            None => roles::unused(&graph, "past"),
        };
        if past == sequence {
            return Err(bad(format!(
                "the new tokens and the cache have one length, {past}; they must be two symbols"
            )));
        }
        let vocab = vocab.map_or_else(|| vocabulary(&graph), Ok)?;
        // What quantizes its operands at run time doubles a rounding to halves by whole steps.
        let quantizes = |n: &Node| n.op.name() == "DynamicQuantizeLinear";
        let float = if graph.nodes().any(|(_, n)| quantizes(n)) {
            DType::F32
        } else {
            DType::F16
        };
        let without = roles::unmasked(&graph);
        let unmasked = without.is_some();
        Ok(Self {
            keeps_cache: !graph.states().is_empty(),
            step: for_one_row(without, &graph, &one_row)?,
            one_row,
            unmasked,
            graph: Arc::new(graph),
            sequence,
            past,
            // Where the pass refuses the model, every run has all rows, too.
            all_rows: logits == Logits::All || logits == Logits::Tail && rows.is_none(),
            rows,
            vocab,
            fingerprint,
            float,
            weights: WeightSource::default(),
            window: None,
            watched: watched.to_vec(),
            passes,
        })
    }

    /// True for a graph that has the form of a decoder before any pass: tokens go in, logits come out, and an input is
    /// concatenated with something, of which the whole or what is new comes out again, or kept by an operator as a cache.
    pub fn is_form_of(graph: &Graph) -> bool {
        let is_output = |v: Option<&ValueId>| v.is_some_and(|v| graph.outputs().contains(v));
        let grows = |node: &Node| {
            let operand = |i: usize| node.inputs.get(i).copied().flatten();
            let joins = node.op.downcast::<Concat>().is_some()
                && operand(0).is_some_and(|v| graph.inputs().contains(&v))
                && (is_output(node.outputs.first()) || is_output(operand(1).as_ref()));
            joins || keeps_cache(graph, node)
        };
        let ids = graph.input(roles::IDS).and_then(|v| graph.fact(v).ok());
        ids.is_some_and(|f| f.shape.rank() == 2)
            && graph.output("logits").is_some()
            && graph.nodes().any(|(_, n)| grows(n))
    }

    /// Expresses the sizes of a decoder's inputs by the tokens of a run and those in the cache, where their roles tell; loading does so
    /// too.
    pub fn name_lengths(graph: &mut Graph) -> Result<()> {
        roles::name_lengths(graph).map_err(|e| bad(e.to_string()))
    }

    /// The same with activations and cache stored in `float` on a device, `f16` or `f32`. Without this it is `f16`, and `f32` where the
    /// model quantizes its operands at run time.
    pub fn stored_in(mut self, float: DType) -> Self {
        self.float = float;
        self
    }

    /// The same with weights from `source` on a device.
    pub fn with_weights(mut self, source: WeightSource) -> Self {
        self.weights = source;
        self
    }

    /// True where the mask is an input that is added to scores: then a window that the graph does not have can be given by
    /// [`Decoder::with_window`].
    pub fn adds_mask(&self) -> bool {
        roles::adds_mask(&self.graph)
    }

    /// The same with queries that see `window` keys, their own included, as far as the mask is one that is added to scores.
    pub fn with_window(mut self, window: usize) -> Result<Self> {
        self.window = Some(window);
        self.step = for_one_row(None, &self.graph, &self.one_row)?;
        self.unmasked = false;
        self.fingerprint.push_str(&format!(" window {window}"));
        Ok(self)
    }

    /// True where attention that the passes found sees a window of keys. Those of [`Pipeline::host`] look for none.
    pub fn has_windows(&self) -> bool {
        let windowed = |n: &Node| n.op.downcast::<Attention>().is_some_and(|a| a.window.is_some());
        self.graph.nodes().any(|(_, n)| windowed(n))
    }

    /// The prepared graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The symbol that counts the tokens of a run.
    pub fn sequence(&self) -> &Symbol {
        &self.sequence
    }

    /// The symbol that counts the tokens in the cache before a run; without a cache one that no size has.
    pub fn past(&self) -> &Symbol {
        &self.past
    }

    /// False where no input and output became a cache: then every run starts from no tokens.
    pub fn keeps_cache(&self) -> bool {
        self.keeps_cache
    }

    fn bindings(&self, sequence: usize, past: usize) -> Bindings {
        let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let mut b = Bindings::new();
        b.set(&self.sequence, number(sequence))
            .set(&self.past, number(past));
        b
    }

    /// The plan of a run over `tokens` behind `past` others, where no logits but the last are wanted, and the values of its symbols.
    fn run_of(&self, short: ShortRuns, tokens: usize, past: usize) -> (usize, Bindings) {
        let mut bindings = self.bindings(tokens, past);
        if tokens != 1 || !self.keeps_cache {
            let few = short.prefill.filter(|(_, most)| tokens <= *most);
            return (few.map_or(PREFILL, |(plan, _)| plan), bindings);
        }
        bindings.remove(&self.sequence);
        let past = i64::try_from(past).unwrap_or(i64::MAX);
        let short = short.decode.filter(|(_, most)| past <= *most);
        (short.map_or(DECODE, |(plan, _)| plan), bindings)
    }

    /// What the plans of prefill and decode (one token a run) are made for.
    pub fn options(&self, lengths: &Lengths) -> [Options; 2] {
        let Lengths {
            context,
            chunk,
            padding,
            ..
        } = *lengths;
        let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let mut base = self.base_options(lengths);
        if let Some(rows) = &self.rows {
            base.fixed.set(rows, 1);
        }
        let mut prefill = base.clone();
        prefill.bounds = self.bindings(chunk, context);
        let mut decode = base;
        decode.fixed.set(&self.sequence, 1);
        decode.padding = Some(Padding {
            symbol: self.past.clone(),
            beyond: 1,
            multiple: number(padding),
        });
        // The token of the run needs a row too; and padded lengths must not reach behind the state.
        decode.bounds.set(&self.past, number(context.saturating_sub(1)));
        [prefill, decode]
    }

    /// As the second of [`Decoder::options`], while the cache is so short that attention over it is not worth splitting; `None`
    /// where it is never longer.
    fn short_decode(&self, lengths: &Lengths) -> Option<Options> {
        let [_, mut options] = self.options(lengths);
        let most = UNSPLIT.min(options.bounds.get(&self.past)?);
        let shorter = usize::try_from(most).is_ok_and(|n| n < lengths.context);
        options.bounds.set(&self.past, most - 1);
        shorter.then_some(options)
    }

    fn base_options(&self, lengths: &Lengths) -> Options {
        Options {
            float: self.float,
            state_rows: i64::try_from(lengths.context).unwrap_or(i64::MAX),
            run_rows: i64::try_from(lengths.chunk.max(lengths.rows)).ok(),
            ..Options::default()
        }
    }

    /// What the plan of short runs with all their logits is made for, where there is one; see [`Lengths::rows`].
    fn rows_options(&self, lengths: &Lengths) -> Option<Options> {
        let rows = self.rows.as_ref().filter(|_| lengths.rows > 1)?;
        let mut options = self.base_options(lengths);
        let most = lengths.rows.min(lengths.context);
        options.bounds = self.bindings(most, lengths.context);
        options.bounds.set(rows, i64::try_from(most).unwrap_or(i64::MAX));
        Some(options)
    }

    /// Plans for prefill and decode; see [`Decoder::options`].
    pub fn plans(&self, caps: &Caps, lengths: &Lengths) -> Result<[Plan; 2]> {
        let [prefill, decode] = self.options(lengths);
        Ok([
            Plan::compile(&self.graph, caps, &prefill)?,
            Plan::compile(self.step_graph(), caps, &decode)?,
        ])
    }

    /// All plans that a [`DeviceModel`] loads: those of prefill and decode, and as far as there are such those of short runs with all their
    /// logits, of decoding behind few tokens and of prefill runs of few. Without a cache prefill is all.
    pub fn every_plan(&self, caps: &Caps, lengths: &Lengths) -> Result<Vec<Plan>> {
        Ok(self.device_plans(caps, lengths)?.plans)
    }

    fn device_plans(&self, caps: &Caps, lengths: &Lengths) -> Result<DevicePlans> {
        if !self.keeps_cache {
            let [whole, _] = self.options(lengths);
            return Ok(DevicePlans {
                plans: vec![Plan::compile(&self.graph, caps, &whole)?],
                verify: None,
                short: ShortRuns::default(),
            });
        }
        let mut plans = Vec::from(self.plans(caps, lengths)?);
        let mut add = |graph: &Graph, options: Option<Options>| -> Result<Option<usize>> {
            let Some(options) = options else { return Ok(None) };
            plans.push(Plan::compile(graph, caps, &options)?);
            Ok(Some(plans.len() - 1))
        };
        let verify = add(&self.graph, self.rows_options(lengths))?;
        let short = self.short_decode(lengths);
        let most = short.as_ref().and_then(|o| o.bounds.get(&self.past));
        let decode = add(self.step_graph(), short)?.zip(most);
        let few = (1..lengths.chunk).contains(&lengths.short).then(|| {
            let [mut prefill, _] = self.options(lengths);
            prefill.bounds = self.bindings(lengths.short, lengths.context);
            prefill
        });
        let prefill = add(&self.graph, few)?.map(|plan| (plan, lengths.short));
        Ok(DevicePlans {
            plans,
            verify,
            short: ShortRuns { decode, prefill },
        })
    }

    /// The graph that decode plans are made of: values, weights and states are those of [`Decoder::graph`].
    fn step_graph(&self) -> &Graph {
        self.step.as_ref().unwrap_or(&self.graph)
    }

    /// The inputs that the graph has, for `tokens` after `past` others; without a mask that the plan of the run does not read.
    fn inputs_of(&self, plan: usize, tokens: &[u32], past: usize) -> Result<Vec<(&'static str, HostTensor)>> {
        let steps = plan != PREFILL && tokens.len() == 1 && self.unmasked;
        self.inputs(tokens, past, !steps)
    }

    fn inputs(&self, tokens: &[u32], past: usize, masked: bool) -> Result<Vec<(&'static str, HostTensor)>> {
        if past > 0 && !self.keeps_cache {
            let what = format!(
                "the model has no KV cache, so that nothing can follow the {past} tokens that were run"
            );
            return Err(Error::other(Stage::Run, what));
        }
        if let Some(t) = tokens
            .iter()
            .find(|t| usize::try_from(**t).map_or(true, |t| t >= self.vocab))
        {
            let what = format!("token {t} is outside the vocabulary of {}", self.vocab);
            return Err(Error::other(Stage::Run, what).of_kind(ErrorKind::TokenOutOfRange));
        }
        roles::inputs(&self.graph, tokens, past, self.window, masked)
    }
}

fn check_room(have: usize, more: usize, context: usize) -> Result<()> {
    if have + more > context {
        let what = format!("{have} tokens in the cache and {more} more exceed the context of {context}");
        return Err(Error::other(Stage::Run, what).of_kind(ErrorKind::ContextExceeded));
    }
    if more == 0 {
        return Err(Error::other(Stage::Run, "no tokens to run"));
    }
    Ok(())
}

/// A decoder that tells values in its middle, those of [`Decoder::watching`].
pub trait Watch: LanguageModel {
    /// Appends `tokens` (at least one) to the cache and hands the elements of each watched value to `take`, with its place in the list, in pieces
    /// that follow one another along the tokens. Errors of `take` are passed on. As with [`LanguageModel::forward`] an error leaves the cache at an
    /// unspecified length.
    fn watch(&mut self, tokens: &[u32], take: &mut dyn FnMut(usize, &[f32]) -> Result<()>) -> Result<()>;
}

fn check_rows(tokens: usize, rows: usize) -> Result<()> {
    if tokens == rows {
        return Ok(());
    }
    let what =
        format!("{rows} rows of logits for {tokens} tokens: the decoder was loaded for the last row only");
    Err(Error::other(Stage::Run, what))
}

/// The plans of a [`DeviceModel`]; two of its fields say which is which.
#[derive(Debug)]
struct DevicePlans {
    plans: Vec<Plan>,
    verify: Option<usize>,
    short: ShortRuns,
}

/// Plans of runs that are short in one way or another.
#[derive(Clone, Copy, Debug, Default)]
struct ShortRuns {
    /// That of decoding behind few tokens, and how many these are at most.
    decode: Option<(usize, i64)>,
    /// That of prefill runs of few tokens, and how many these are at most.
    prefill: Option<(usize, usize)>,
}

/// A decoder on a device.
#[derive(Debug)]
pub struct DeviceModel {
    decoder: Arc<Decoder>,
    executor: Executor,
    lengths: Lengths,
    /// The plan of short runs with the logits of all tokens.
    verify: Option<usize>,
    short: ShortRuns,
    rings: Rings,
    len: usize,
}

const PREFILL: usize = 0;
const DECODE: usize = 1;

/// Which logits a run is to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rows {
    /// The last at least.
    Last,
    /// All of them.
    All,
}

impl DeviceModel {
    /// Plans `decoder` for `backend`, which nothing else uses, and `lengths`, and uploads its weights.
    pub fn new(decoder: Decoder, backend: Box<dyn Backend>, lengths: &Lengths) -> Result<Self> {
        DeviceDecoder::new(decoder, backend, lengths)?.model()
    }

    /// What the device offers.
    pub fn caps(&self) -> &Caps {
        self.executor.caps()
    }

    /// Running totals of the backend.
    pub fn stats(&self) -> Stats {
        self.executor.stats()
    }

    /// Sizes of the prefill and of the decode plan, and their numbers of dispatches.
    pub fn memory(&self) -> [(MemoryReport, usize); 2] {
        [PREFILL, DECODE].map(|p| {
            self.executor
                .plan(p)
                .map_or_else(Default::default, |p| (p.memory.clone(), p.steps.len()))
        })
    }

    /// Queues one run over `tokens`, at most a chunk. Returns the plan that ran.
    fn advance(&mut self, tokens: &[u32], wanted: Rows) -> Result<(usize, Bindings)> {
        let (plan, bindings) = self.prepare(tokens, wanted)?;
        self.rings.grow(self.len + tokens.len());
        self.executor.run(plan, &bindings)?;
        self.len += tokens.len();
        Ok((plan, bindings))
    }

    /// As [`DeviceModel::advance`]; returns the plan and the number of rows of its logits: 1 where only the last is computed.
    fn step(&mut self, tokens: &[u32], wanted: Rows) -> Result<(usize, usize)> {
        let (plan, bindings) = self.advance(tokens, wanted)?;
        let port = self.executor.plan(plan).and_then(|p| p.output("logits"));
        let shape = port.map(|p| p.shape.eval(&bindings)).transpose();
        let shape = shape
            .map_err(|e| Error::other(Stage::Run, e.to_string()))?
            .unwrap_or_default();
        let rows = shape.iter().product::<usize>() / self.decoder.vocab.max(1);
        if rows == 0 {
            return Err(Error::other(
                Stage::Run,
                format!("logits of shape {shape:?} hold no row"),
            ));
        }
        Ok((plan, rows))
    }

    fn prepare(&mut self, tokens: &[u32], wanted: Rows) -> Result<(usize, Bindings)> {
        let verify = self
            .verify
            .filter(|_| wanted == Rows::All && (2..=self.lengths.rows).contains(&tokens.len()));
        let (mut plan, mut bindings) = self.decoder.run_of(self.short, tokens.len(), self.len);
        if let (Some(verify), Some(rows)) = (verify, &self.decoder.rows) {
            plan = verify;
            bindings.set(rows, i64::try_from(tokens.len()).unwrap_or(i64::MAX));
        }
        for (name, tensor) in self.decoder.inputs_of(plan, tokens, self.len)? {
            self.executor.write(plan, name, &tensor)?;
        }
        Ok((plan, bindings))
    }

    /// Runs `tokens` in chunks and hands each chunk's plan and number of rows to `take`.
    fn chunks(
        &mut self,
        tokens: &[u32],
        wanted: Rows,
        take: &mut dyn FnMut(&mut Self, usize, usize) -> Result<()>,
    ) -> Result<()> {
        check_room(self.len, tokens.len(), self.lengths.context)?;
        for part in tokens.chunks(self.lengths.chunk) {
            let (plan, rows) = self.step(part, wanted)?;
            if wanted == Rows::All {
                check_rows(part.len(), rows)?;
            }
            take(self, plan, rows)?;
        }
        Ok(())
    }

    /// True where the device finds the largest logits itself.
    fn tells_tokens(&self) -> bool {
        self.decoder.graph.output(TOKEN).is_some()
    }

    /// The ids of the largest logits of the last run of `plan`, which has `rows` rows.
    fn chosen(&mut self, plan: usize, rows: usize) -> Result<Vec<u32>> {
        let wrong = |what: String| Error::other(Stage::Run, format!("output \"{TOKEN}\": {what}"));
        let ids = self.executor.read(plan, TOKEN)?.to_i64();
        let ids = ids.map_err(|e| wrong(e.to_string()))?;
        if ids.len() != rows {
            return Err(wrong(format!("{} tokens for {rows} rows of logits", ids.len())));
        }
        let id = |i: &i64| u32::try_from(*i).map_err(|_| wrong(format!("{i} is no token")));
        ids.iter().map(id).collect()
    }

    /// Runs one chunk of `tokens` and returns what each step took.
    pub fn profile(&mut self, tokens: &[u32]) -> Result<Vec<Timing>> {
        check_room(self.len, tokens.len(), self.lengths.context)?;
        let (plan, bindings) = self.prepare(tokens, Rows::Last)?;
        self.rings.grow(self.len + tokens.len());
        let times = self.executor.profile(plan, &bindings)?;
        self.len += tokens.len();
        Ok(times)
    }
}

impl LanguageModel for DeviceModel {
    fn vocab(&self) -> usize {
        self.decoder.vocab
    }

    fn context(&self) -> usize {
        self.lengths.context
    }

    fn run_length(&self) -> usize {
        self.lengths.chunk
    }

    fn len(&self) -> usize {
        self.len
    }

    fn forward(&mut self, tokens: &[u32], logits: &mut Vec<f32>) -> Result<()> {
        let (mut plan, mut rows) = (DECODE, 1);
        self.chunks(tokens, Rows::Last, &mut |_, p, r| {
            (plan, rows) = (p, r);
            Ok(())
        })?;
        logits.resize(self.decoder.vocab, 0.0);
        self.executor
            .read_f32(plan, "logits", (rows - 1) * self.decoder.vocab, logits)
    }

    fn forward_all(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let vocab = self.decoder.vocab;
        let mut all = vec![0f32; tokens.len() * vocab];
        let mut done = 0;
        self.chunks(tokens, Rows::All, &mut |model, plan, rows| {
            let end = done + rows * vocab;
            let data = all.get_mut(done..end).unwrap_or_default();
            done = end;
            model.executor.read_f32(plan, "logits", 0, data)
        })?;
        Ok(all)
    }

    fn most_rows(&self) -> usize {
        match self.verify {
            Some(_) => self.lengths.rows,
            None if self.decoder.all_rows => usize::MAX,
            None => 1,
        }
    }

    fn most_likely(&mut self, tokens: &[u32]) -> Result<u32> {
        if !self.tells_tokens() {
            let mut logits = Vec::new();
            self.forward(tokens, &mut logits)?;
            return arg_max(&logits);
        }
        let (mut plan, mut rows) = (DECODE, 1);
        self.chunks(tokens, Rows::Last, &mut |_, p, r| {
            (plan, rows) = (p, r);
            Ok(())
        })?;
        let ids = self.chosen(plan, rows)?;
        let last = ids.last().copied();
        last.ok_or_else(|| Error::other(Stage::Run, "no token was chosen"))
    }

    fn most_likely_all(&mut self, tokens: &[u32]) -> Result<Vec<u32>> {
        if !self.tells_tokens() {
            let rows = self.forward_all(tokens)?;
            return rows.chunks(self.decoder.vocab.max(1)).map(arg_max).collect();
        }
        let mut all = Vec::with_capacity(tokens.len());
        self.chunks(tokens, Rows::All, &mut |model, plan, rows| {
            all.extend(model.chosen(plan, rows)?);
            Ok(())
        })?;
        Ok(all)
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

impl Watch for DeviceModel {
    fn watch(&mut self, tokens: &[u32], take: &mut dyn FnMut(usize, &[f32]) -> Result<()>) -> Result<()> {
        check_room(self.len, tokens.len(), self.lengths.context)?;
        let mut data = Vec::new();
        for part in tokens.chunks(self.lengths.chunk) {
            let past = self.len;
            let (plan, _) = self.advance(part, Rows::Last)?;
            let bindings = self.decoder.bindings(part.len(), past);
            for (i, name) in self.decoder.watched.iter().enumerate() {
                let port = self.executor.plan(plan).and_then(|p| p.output(name));
                let shape = port.map(|p| p.shape.eval(&bindings)).transpose();
                let shape = shape.map_err(|e| Error::other(Stage::Run, e.to_string()))?;
                data.resize(shape.unwrap_or_default().iter().product(), 0.0);
                self.executor.read_f32(plan, name, 0, &mut data)?;
                take(i, &data)?;
            }
        }
        Ok(())
    }
}
