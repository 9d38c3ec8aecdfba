//! Runs ONNX decoders as [`LanguageModel`]s: on a device through an [`Executor`], on the host
//! through the interpreter.
//!
//! The graph takes `input_ids [batch, sequence]`, optionally `position_ids` and `attention_mask`,
//! and returns `logits`. Every other input must have become state (pass `kv_cache`); without caches
//! the model runs uncached. One sequence is run (`batch = 1`).

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
use crate::backend::{Backend, Caps, DeviceKind, Stats};
use crate::error::{Error, ErrorKind, Result, Stage};
use crate::executor::{Executor, Timing, WeightSource};
use crate::graph::derive::derive;
use crate::graph::onnx::{self, ImportOptions};
use crate::graph::op::attention::Attention;
use crate::graph::op::concat::Concat;
pub use crate::graph::pass::Logits;
use crate::graph::pass::{PassReport, Pipeline, ROWS, TOKEN, Target, keeps_cache};
use crate::graph::{Edit, Graph, Node, ValueId};
use crate::plan::{Breakpoints, MemoryReport, Options, Padding, Plan};
use crate::shape::{Bindings, Dim, Symbol};
use crate::tensor::{DType, HostTensor};
use ring::Rings;
use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;

/// Maximum tokens per prefill run, unless the device prefers more ([`Lengths::on`]).
pub const CHUNK: usize = 128;

/// Maximum for devices with a breakpoint in rows, which need more of them to be fully used.
const LONG_CHUNK: usize = 1024;

/// Decode lengths are padded to multiples of this.
pub const PADDING: usize = 64;

/// Sizes for which a decoder is planned, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Context length: tokens that the cache holds.
    pub context: usize,
    /// Maximum tokens per prefill run. A sliding-window cache has this much room in addition to its
    /// window.
    pub chunk: usize,
    /// Prefill runs of at most this many tokens use their own plan, with kernels for few rows. 0
    /// means none.
    pub short: usize,
    /// Decode grids and parameters are computed for the next multiple of this many tokens, so they
    /// change only at multiples.
    pub padding: usize,
    /// Maximum tokens of a run that returns the logits of all of them, for a decoder with
    /// [`Logits::Tail`]: one token plus its draft. Below 2 there is no plan for such runs.
    pub rows: usize,
}

impl Lengths {
    /// A context of `context` tokens, with the defaults for the rest.
    pub fn of(context: usize) -> Self {
        Self {
            context,
            chunk: CHUNK.min(context),
            short: 0,
            padding: PADDING,
            rows: 0,
        }
    }

    /// Sets the prefill run length that the device prefers.
    #[must_use]
    pub fn on(mut self, caps: &Caps) -> Self {
        if let Some(few) = Breakpoints::on(caps).rows {
            self.chunk = LONG_CHUNK.min(self.context);
            self.short = if self.chunk > few { few } else { 0 };
        }
        self
    }
}

/// A decoder's graph with identified inputs and outputs.
#[derive(Debug)]
pub struct Decoder {
    graph: Arc<Graph>,
    /// The graph for runs of one token, if it differs.
    step: Option<Graph>,
    /// Selected the passes that made the graphs.
    target: Target,
    /// True if `step` has no mask input.
    unmasked: bool,
    sequence: Symbol,
    past: Symbol,
    /// True if the model has a KV cache.
    keeps_cache: bool,
    /// The number of logits rows that a run computes, if it is variable.
    rows: Option<Symbol>,
    /// True if every run computes all rows of logits.
    all_rows: bool,
    vocab: usize,
    /// Identifies the model.
    fingerprint: String,
    /// Activation type on a device; `None` for the device's default.
    float: Option<DType>,
    /// Source of the weights on a device.
    weights: WeightSource,
    /// Sliding-window size of masks that are made per run, if any.
    window: Option<usize>,
    /// Names of the watched intermediate values.
    watched: Vec<String>,
    /// Reports of the passes.
    pub passes: Vec<PassReport>,
}

const NO_IDS: &str = "the model has no input \"input_ids\"";

fn bad(what: impl Into<String>) -> Error {
    Error::other(Stage::Import, what)
}

/// Columns of the logits.
fn vocabulary(graph: &Graph) -> Result<usize> {
    let out = graph
        .output("logits")
        .ok_or_else(|| bad("the model has no output \"logits\""))?;
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

/// The graph for runs of one row: `without`, or else `graph`, after the passes of `target` for
/// them. `None` if that equals `graph`.
fn for_one_row(without: Option<Graph>, graph: &Graph, target: &Target) -> Result<Option<Graph>> {
    let other = without.is_some();
    let mut step = without.unwrap_or_else(|| graph.clone());
    let reports = Pipeline::decode_step(target).run(&mut step)?;
    let joined = reports.iter().any(|r| r.edits > 0);
    Ok((other || joined).then_some(step))
}

/// Removes outputs that the values `watched`, themselves outputs, do not need. Keeps the caches
/// that they depend on, or the first cache if there are none, since a decoder has one.
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
    /// Reads a model and runs the passes of `target`.
    pub fn load(path: &Path, target: &Target) -> Result<Self> {
        Self::load_with(path, ImportOptions::default(), target)
    }

    /// Like [`Decoder::load`], with import options. A decoder without weights can be planned but
    /// not run.
    pub fn load_with(path: &Path, options: ImportOptions, target: &Target) -> Result<Self> {
        let graph = onnx::import_with(path, options)?;
        if graph.input("input_ids").is_none() {
            return Err(bad(format!("{}: {NO_IDS}", path.display())));
        }
        Self::of(graph, target)
    }

    /// Runs the passes of `target` on an imported graph.
    pub fn of(graph: Graph, target: &Target) -> Result<Self> {
        Self::watching(graph, &[], target)
    }

    /// Like [`Decoder::of`]; the values `watched`, by name, are kept unchanged and returned by
    /// [`Watch`]. If there are any, only what they need is computed: logits are available only if
    /// they are watched. An error for a name that no node outputs.
    pub fn watching(mut graph: Graph, watched: &[String], target: &Target) -> Result<Self> {
        let ids = graph.input(roles::IDS).ok_or_else(|| bad(NO_IDS))?;
        for name in watched {
            let value = graph
                .find(name)
                .filter(|v| graph.value(*v).producer.is_some())
                .ok_or_else(|| bad(format!("no node outputs a value \"{name}\"")))?;
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
        let [batch, sequence] = graph.fact(ids)?.shape.0.as_slice() else {
            return Err(bad(format!(
                "input_ids: expected [batch, sequence], found {}",
                graph.fact(ids)?
            )));
        };
        let sequence = sequence.as_symbol().cloned().ok_or_else(|| {
            bad(format!(
                "input_ids: the sequence length {sequence} is fixed; expected a symbol"
            ))
        })?;
        if let Some(batch) = batch.as_symbol().cloned() {
            let one = BTreeMap::from([(batch, Dim::from(1))]);
            Edit::new(&mut graph)
                .replace_symbols(&one)
                .map_err(|e| bad(e.to_string()))?;
        }
        roles::check(&graph)?;
        // Every run has at least one token, so there is a last one.
        let mut known = graph.constraints().clone();
        known
            .bound(&sequence, Some(1), None)
            .map_err(|e| bad(e.to_string()))?;
        Edit::new(&mut graph).set_constraints(known);
        let fingerprint = states::fingerprint(&graph);
        let logits = target.logits;
        let mut target = *target;
        if graph.output("logits").is_none() {
            target.logits = Logits::All;
        }
        let pipeline = Pipeline::of(&target);
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
                "unexpected input \"{name}\": it is neither {} nor a KV cache",
                roles::KNOWN.join(", ")
            )));
        }
        let past = match graph.states().first() {
            Some(s) if graph.states().iter().all(|o| o.past == s.past) => s.past.clone(),
            Some(_) => return Err(bad("the KV caches have different lengths")),
            None => roles::unused(&graph, "past"),
        };
        if past == sequence {
            return Err(bad(format!(
                "the new tokens and the KV cache have the same length, {past}; expected two different symbols"
            )));
        }
        let vocab = vocab.map_or_else(|| vocabulary(&graph), Ok)?;
        // Quantizing operands at run time turns a rounding to f16 into whole quantization steps.
        let quantizes = |n: &Node| n.op.name() == "DynamicQuantizeLinear";
        let float = graph.nodes().any(|(_, n)| quantizes(n)).then_some(DType::F32);
        let without = roles::unmasked(&graph);
        let unmasked = without.is_some();
        Ok(Self {
            keeps_cache: !graph.states().is_empty(),
            step: for_one_row(without, &graph, &target)?,
            target,
            unmasked,
            graph: Arc::new(graph),
            sequence,
            past,
            // If the pass cannot handle the model, every run computes all rows too.
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

    /// True if an unprocessed graph looks like a decoder: it takes tokens and returns logits, and
    /// an input is concatenated with new values or used as a cache by an operator, and the whole or
    /// the new part is returned.
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

    /// Expresses the sizes of a decoder's inputs by the tokens of a run and the tokens in the
    /// cache, where their roles allow it. Loading does this too.
    pub fn name_lengths(graph: &mut Graph) -> Result<()> {
        roles::name_lengths(graph).map_err(|e| bad(e.to_string()))
    }

    /// Sets the element type of activations and cache on a device, `f16` or `f32`. The default is
    /// `f16` on GPUs, and `f32` on CPUs or if the model quantizes operands at run time.
    pub fn stored_in(mut self, float: DType) -> Self {
        self.float = Some(float);
        self
    }

    /// Sets the source of the weights on a device.
    pub fn with_weights(mut self, source: WeightSource) -> Self {
        self.weights = source;
        self
    }

    /// True if the mask is an input that is added to scores. [`Decoder::with_window`] can then
    /// apply a window that the graph does not have.
    pub fn adds_mask(&self) -> bool {
        roles::adds_mask(&self.graph)
    }

    /// Limits queries to the latest `window` keys, their own included, if the mask is added to
    /// scores.
    pub fn with_window(mut self, window: usize) -> Result<Self> {
        self.window = Some(window);
        self.step = for_one_row(None, &self.graph, &self.target)?;
        self.unmasked = false;
        self.fingerprint.push_str(&format!(" window {window}"));
        Ok(self)
    }

    /// True if the passes found sliding-window attention. [`Target::HOST`] does not look for it.
    pub fn has_windows(&self) -> bool {
        let windowed = |n: &Node| n.op.downcast::<Attention>().is_some_and(|a| a.window.is_some());
        self.graph.nodes().any(|(_, n)| windowed(n))
    }

    /// The graph after the passes.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The symbol for the tokens of a run.
    pub fn sequence(&self) -> &Symbol {
        &self.sequence
    }

    /// The symbol for the tokens in the cache before a run. Without a cache, no size contains it.
    pub fn past(&self) -> &Symbol {
        &self.past
    }

    /// False if the model has no KV cache: every run then starts at position 0.
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

    /// The plan for `tokens` tokens after `past` cached ones, if only the last logits are needed,
    /// and the values of its symbols.
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

    /// Plan options for prefill and for decode (one token per run).
    pub fn options(&self, caps: &Caps, lengths: &Lengths) -> [Options; 2] {
        let Lengths {
            context,
            chunk,
            padding,
            ..
        } = *lengths;
        let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let mut base = self.base_options(caps, lengths);
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
        // The new token needs a row too, and padded lengths must not exceed the state.
        decode.bounds.set(&self.past, number(context.saturating_sub(1)));
        [prefill, decode]
    }

    /// The decode options of [`Decoder::options`] for caches too short to split attention; `None`
    /// if every cache is.
    fn short_decode(&self, caps: &Caps, lengths: &Lengths) -> Option<Options> {
        let [_, mut options] = self.options(caps, lengths);
        let most = Breakpoints::on(caps).keys.min(options.bounds.get(&self.past)?);
        let shorter = usize::try_from(most).is_ok_and(|n| n < lengths.context);
        options.bounds.set(&self.past, most - 1);
        shorter.then_some(options)
    }

    /// The element type of activations and cache on a device. CPUs compute in `f32`: `f16` would
    /// cost them conversions as well as accuracy.
    fn float_on(&self, caps: &Caps) -> DType {
        let usual = match caps.kind {
            DeviceKind::Cpu => DType::F32,
            DeviceKind::Discrete | DeviceKind::Integrated | DeviceKind::Other => DType::F16,
        };
        self.float.unwrap_or(usual)
    }

    fn base_options(&self, caps: &Caps, lengths: &Lengths) -> Options {
        Options {
            float: self.float_on(caps),
            state_rows: i64::try_from(lengths.context).unwrap_or(i64::MAX),
            run_rows: i64::try_from(lengths.chunk.max(lengths.rows)).ok(),
            ..Options::default()
        }
    }

    /// Plan options for short runs with all their logits, if any; see [`Lengths::rows`].
    fn rows_options(&self, caps: &Caps, lengths: &Lengths) -> Option<Options> {
        let rows = self.rows.as_ref().filter(|_| lengths.rows > 1)?;
        let mut options = self.base_options(caps, lengths);
        let most = lengths.rows.min(lengths.context);
        options.bounds = self.bindings(most, lengths.context);
        options.bounds.set(rows, i64::try_from(most).unwrap_or(i64::MAX));
        Some(options)
    }

    /// Plans for prefill and decode; see [`Decoder::options`].
    pub fn plans(&self, caps: &Caps, lengths: &Lengths) -> Result<[Plan; 2]> {
        let [prefill, decode] = self.options(caps, lengths);
        Ok([
            Plan::compile(&self.graph, caps, &prefill)?,
            Plan::compile(self.step_graph(), caps, &decode)?,
        ])
    }

    /// All plans that a [`DeviceModel`] loads: prefill and decode, and optionally short runs with
    /// all their logits, decode with a short cache, and short prefill. A model without a cache has
    /// only prefill.
    pub fn every_plan(&self, caps: &Caps, lengths: &Lengths) -> Result<Vec<Plan>> {
        Ok(self.device_plans(caps, lengths)?.plans)
    }

    fn device_plans(&self, caps: &Caps, lengths: &Lengths) -> Result<DevicePlans> {
        if !self.keeps_cache {
            let [whole, _] = self.options(caps, lengths);
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
        let verify = add(&self.graph, self.rows_options(caps, lengths))?;
        let short = self.short_decode(caps, lengths);
        let most = short.as_ref().and_then(|o| o.bounds.get(&self.past));
        let decode = add(self.step_graph(), short)?.zip(most);
        let few = (1..lengths.chunk).contains(&lengths.short).then(|| {
            let [mut prefill, _] = self.options(caps, lengths);
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

    /// The graph of decode plans. Its values, weights and states are those of [`Decoder::graph`].
    fn step_graph(&self) -> &Graph {
        self.step.as_ref().unwrap_or(&self.graph)
    }

    /// The graph's inputs for `tokens` after `past` cached tokens, without a mask that the plan
    /// does not read.
    fn inputs_of(&self, plan: usize, tokens: &[u32], past: usize) -> Result<Vec<(&'static str, HostTensor)>> {
        let steps = plan != PREFILL && tokens.len() == 1 && self.unmasked;
        self.inputs(tokens, past, !steps)
    }

    fn inputs(&self, tokens: &[u32], past: usize, masked: bool) -> Result<Vec<(&'static str, HostTensor)>> {
        if past > 0 && !self.keeps_cache {
            let what = format!("the model has no KV cache: a run cannot continue after {past} tokens");
            return Err(Error::other(Stage::Run, what));
        }
        if let Some(t) = tokens
            .iter()
            .find(|t| usize::try_from(**t).map_or(true, |t| t >= self.vocab))
        {
            let what = format!(
                "token ID {t} is out of range; the vocabulary has {} tokens",
                self.vocab
            );
            return Err(Error::other(Stage::Run, what).of_kind(ErrorKind::TokenOutOfRange));
        }
        roles::inputs(&self.graph, tokens, past, self.window, masked)
    }
}

fn check_room(have: usize, more: usize, context: usize) -> Result<()> {
    if have + more > context {
        let what = format!("the cache holds {have} tokens; {more} more exceed the context of {context}");
        return Err(Error::other(Stage::Run, what).of_kind(ErrorKind::ContextExceeded));
    }
    if more == 0 {
        return Err(Error::other(Stage::Run, "a run needs at least one token"));
    }
    Ok(())
}

/// A decoder that returns intermediate values, those of [`Decoder::watching`].
pub trait Watch: LanguageModel {
    /// Appends `tokens` (at least one) to the cache and passes the elements of each watched value
    /// to `take`, with its index in the list, in consecutive pieces along the tokens. Errors of
    /// `take` are returned. As with [`LanguageModel::forward`], an error leaves the cache at an
    /// unspecified length.
    fn watch(&mut self, tokens: &[u32], take: &mut dyn FnMut(usize, &[f32]) -> Result<()>) -> Result<()>;
}

fn check_rows(tokens: usize, rows: usize) -> Result<()> {
    if tokens == rows {
        return Ok(());
    }
    let what = format!(
        "found {rows} rows of logits for {tokens} tokens: the decoder was loaded for the last row only"
    );
    Err(Error::other(Stage::Run, what))
}

/// The plans of a [`DeviceModel`], with the indices of the optional ones.
#[derive(Debug)]
struct DevicePlans {
    plans: Vec<Plan>,
    verify: Option<usize>,
    short: ShortRuns,
}

/// Plans for runs that are short in some respect.
#[derive(Clone, Copy, Debug, Default)]
struct ShortRuns {
    /// The plan for decode with a short cache, and the largest cache length for it.
    decode: Option<(usize, i64)>,
    /// The plan for short prefill runs, and the largest number of tokens for it.
    prefill: Option<(usize, usize)>,
}

/// A decoder on a device.
#[derive(Debug)]
pub struct DeviceModel {
    decoder: Arc<Decoder>,
    executor: Executor,
    lengths: Lengths,
    /// Index of the plan for short runs with the logits of all tokens.
    verify: Option<usize>,
    short: ShortRuns,
    rings: Rings,
    len: usize,
}

const PREFILL: usize = 0;
const DECODE: usize = 1;

/// Which logits a run must compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rows {
    /// At least the last row.
    Last,
    /// All rows.
    All,
}

impl DeviceModel {
    /// Plans `decoder` for `backend`, which must be unused, and for `lengths`, and uploads the
    /// weights.
    pub fn new(decoder: Decoder, backend: Box<dyn Backend>, lengths: &Lengths) -> Result<Self> {
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

    /// Memory and number of dispatches of the prefill plan and of the decode plan.
    pub fn memory(&self) -> [(MemoryReport, usize); 2] {
        [PREFILL, DECODE].map(|p| {
            self.executor
                .plan(p)
                .map_or_else(Default::default, |p| (p.memory.clone(), p.steps.len()))
        })
    }

    /// Queues one run over `tokens`, at most a chunk. Returns the plan and its symbol values.
    fn advance(&mut self, tokens: &[u32], wanted: Rows) -> Result<(usize, Bindings)> {
        let (plan, bindings) = self.prepare(tokens, wanted)?;
        self.rings.grow(self.len + tokens.len());
        self.executor.run(plan, &bindings)?;
        self.len += tokens.len();
        Ok((plan, bindings))
    }

    /// Like [`DeviceModel::advance`], but returns the plan and its number of logits rows (1 if only
    /// the last is computed).
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
                format!("logits of shape {shape:?} have no rows"),
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

    /// Runs `tokens` in chunks and passes each chunk's plan and number of rows to `take`.
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

    /// True if the device finds the largest logit itself.
    fn tells_tokens(&self) -> bool {
        self.decoder.graph.output(TOKEN).is_some()
    }

    /// IDs of the largest logits of the last run of `plan`, which has `rows` rows.
    fn chosen(&mut self, plan: usize, rows: usize) -> Result<Vec<u32>> {
        let wrong = |what: String| Error::other(Stage::Run, format!("output \"{TOKEN}\": {what}"));
        let ids = self.executor.read(plan, TOKEN)?.to_i64();
        let ids = ids.map_err(|e| wrong(e.to_string()))?;
        if ids.len() != rows {
            return Err(wrong(format!("found {} tokens, expected {rows}", ids.len())));
        }
        let id = |i: &i64| u32::try_from(*i).map_err(|_| wrong(format!("invalid token ID {i}")));
        ids.iter().map(id).collect()
    }

    /// Runs one chunk of `tokens` and returns the time of each step.
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
        last.ok_or_else(|| Error::other(Stage::Run, "the device returned no token"))
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
