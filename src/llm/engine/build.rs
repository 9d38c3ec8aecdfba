//! Makes a [`Decoder`] of an ONNX graph: finds its inputs and sizes, runs the passes, and checks
//! that nothing is left that a run could not provide.

use super::{Decoder, Logits, batch, states};
use crate::error::{Error, Result, Stage};
use crate::executor::WeightSource;
use crate::graph::bounds::Bounds;
use crate::graph::derive::derive;
use crate::graph::onnx::{self, ImportOptions};
use crate::graph::op::concat::Concat;
use crate::graph::pass::{
    CHOSEN, PLACES, PassReport, Pipeline, ROW_INPUTS, ROWS, Target, keeps_cache, refusal,
};
use crate::graph::{Edit, Graph, Node, ValueId};
use crate::llm::{mask, roles};
use crate::shape::{Dim, Symbol};
use crate::tensor::DType;
use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;

const NO_IDS: &str = "the model has no input \"input_ids\"";

fn bad(what: impl Into<String>) -> Error {
    Error::other(Stage::Import, what)
}

/// Makes a [`Decoder`].
#[derive(Clone, Debug)]
pub struct DecoderBuilder {
    target: Target,
    observed: Vec<String>,
    float: Option<DType>,
    weights: WeightSource,
    window: Option<usize>,
}

impl DecoderBuilder {
    /// A decoder after the passes of `target`.
    pub fn new(target: &Target) -> Self {
        Self {
            target: *target,
            observed: Vec::new(),
            float: None,
            weights: WeightSource::default(),
            window: None,
        }
    }

    /// Keeps the values `names` unchanged, for [`Observe`](super::Observe). If there are any, only
    /// what they need is computed: logits are available only if they are observed. Building fails
    /// for a name that no node outputs.
    #[must_use]
    pub fn observing(mut self, names: &[String]) -> Self {
        self.observed = names.to_vec();
        self
    }

    /// Sets the element type of activations and cache on a device, `f16` or `f32`. The default is
    /// `f16` on GPUs, and `f32` on CPUs or if the model quantizes operands at run time.
    #[must_use]
    pub fn stored_in(mut self, float: DType) -> Self {
        self.float = Some(float);
        self
    }

    /// Sets the source of the weights on a device.
    #[must_use]
    pub fn with_weights(mut self, source: WeightSource) -> Self {
        self.weights = source;
        self
    }

    /// Limits queries to the latest `window` keys, their own included, if the mask is an input that
    /// is added to scores. Otherwise the graph determines what queries see.
    #[must_use]
    pub fn with_window(mut self, window: usize) -> Self {
        self.window = Some(window);
        self
    }

    /// Reads a model. A decoder without weights can be planned but not run.
    pub fn load(self, path: &Path, options: ImportOptions) -> Result<Decoder> {
        let graph = onnx::import_with(path, options)?;
        if graph.input(roles::IDS).is_none() {
            return Err(bad(format!("{}: {NO_IDS}", path.display())));
        }
        self.build(graph)
    }

    /// Makes a decoder of an imported graph.
    pub fn build(self, mut graph: Graph) -> Result<Decoder> {
        let ids = graph.input(roles::IDS).ok_or_else(|| bad(NO_IDS))?;
        let observed_vocab = observe(&mut graph, &self.observed)?;
        let sequence = name_sizes(&mut graph, ids)?;
        let mut fingerprint = states::fingerprint(&graph)?;
        let window = self.window.filter(|_| mask::is_added(&graph));
        if let Some(window) = window {
            fingerprint.push_str(&format!(" window {window}"));
        }
        mask::compute(&mut graph, window)?;
        let mut target = self.target;
        if graph.output("logits").is_none() {
            target.logits = Logits::All;
        }
        let passes = run_passes(&mut graph, &Pipeline::of(&target))?;
        let has = |name: &str| graph.input(name).is_some();
        if self.target.logits == Logits::Chosen && !(has(PLACES) && has(CHOSEN)) {
            let why = refusal(&graph);
            let why = why.as_deref();
            return Err(batch::refused(
                why.unwrap_or("it does not compute logits of each row"),
            ));
        }
        check_inputs(&graph)?;
        bound_inputs(&mut graph);
        let past = past(&graph, &sequence)?;
        let rows = logits_rows(&graph, self.target.logits)?;
        let vocab = observed_vocab.map_or_else(|| vocabulary(&graph), Ok)?;
        Ok(Decoder {
            keeps_cache: !graph.states().is_empty(),
            step: for_one_row(&graph, &target)?,
            float: self.float.or_else(|| float_of(&graph)),
            graph: Arc::new(graph),
            sequence,
            past,
            // If the pass cannot handle the model, every run computes all rows too.
            all_rows: match self.target.logits {
                Logits::All => true,
                Logits::Tail => rows.is_none(),
                Logits::Last | Logits::Chosen => false,
            },
            rows,
            vocab,
            fingerprint,
            weights: self.weights,
            window,
            observed: self.observed,
            passes,
        })
    }
}

/// Makes the values `observed` the only outputs, if there are any; returns the columns of the
/// logits then.
fn observe(graph: &mut Graph, observed: &[String]) -> Result<Option<usize>> {
    for name in observed {
        let value = graph
            .find(name)
            .filter(|v| graph.value(*v).producer.is_some())
            .ok_or_else(|| bad(format!("no node outputs a value \"{name}\"")))?;
        if !graph.outputs().contains(&value) {
            Edit::new(graph).add_output(value);
        }
    }
    if observed.is_empty() {
        return Ok(None);
    }
    derive(graph)?;
    let vocab = vocabulary(graph)?;
    end_with(graph, observed);
    Ok(Some(vocab))
}

/// Removes outputs that the values `observed`, themselves outputs, do not need. Keeps the caches
/// that they depend on, or the first cache if there are none, since a decoder has one.
fn end_with(graph: &mut Graph, observed: &[String]) {
    let name = |v: ValueId| graph.value(v).name.as_str();
    let mut needed = HashSet::new();
    let wanted = |v: &ValueId| observed.iter().any(|w| w == name(*v));
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

/// Expresses all sizes by the tokens of a run, whose symbol is returned, and those in the cache;
/// one sequence is run.
fn name_sizes(graph: &mut Graph, ids: ValueId) -> Result<Symbol> {
    Decoder::name_lengths(graph)?;
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
        Edit::new(graph)
            .replace_symbols(&one)
            .map_err(|e| bad(e.to_string()))?;
    }
    roles::check(graph)?;
    // Every run has at least one token, so there is a last one.
    let mut known = graph.constraints().clone();
    known
        .bound(&sequence, Some(1), None)
        .map_err(|e| bad(e.to_string()))?;
    Edit::new(graph).set_constraints(known);
    Ok(sequence)
}

/// Runs the passes. If no cache became state, the model runs without: its cache inputs become
/// empty.
fn run_passes(graph: &mut Graph, pipeline: &Pipeline) -> Result<Vec<PassReport>> {
    let imported = graph.clone();
    let reports = pipeline.run(graph)?;
    if graph.states().is_empty() {
        let mut without = imported;
        if roles::empty_caches(&mut without)? {
            *graph = without;
            return pipeline.run(graph);
        }
    }
    Ok(reports)
}

/// An error for an input that no run could provide.
fn check_inputs(graph: &Graph) -> Result<()> {
    let names = graph.inputs().iter().map(|v| graph.value(*v).name.as_str());
    let mut unknown = names.filter(|n| *n != ROWS && !ROW_INPUTS.contains(n) && !roles::KNOWN.contains(n));
    match unknown.next() {
        None => Ok(()),
        Some(name) => Err(bad(format!(
            "unexpected input \"{name}\": it is neither {} nor a KV cache",
            roles::KNOWN.join(", ")
        ))),
    }
}

/// Runs write integers in 32 bits ([`Executor::write_i32`](crate::executor::Executor::write_i32)).
fn bound_inputs(graph: &mut Graph) {
    let mut edit = Edit::new(graph);
    for v in edit.inputs().to_vec() {
        edit.bound_input(v, Bounds::WORD);
    }
}

/// The symbol for the tokens in the cache; an unused one without a cache.
fn past(graph: &Graph, sequence: &Symbol) -> Result<Symbol> {
    let past = match graph.states().first() {
        Some(s) if graph.states().iter().all(|o| o.past == s.past) => s.past.clone(),
        Some(_) => return Err(bad("the KV caches have different lengths")),
        None => roles::unused(graph, "past"),
    };
    if past == *sequence {
        return Err(bad(format!(
            "the new tokens and the KV cache have the same length, {past}; expected two different symbols"
        )));
    }
    Ok(past)
}

/// The symbol for the number of logits rows that a run requests, if there is one.
fn logits_rows(graph: &Graph, logits: Logits) -> Result<Option<Symbol>> {
    let chosen = graph.input(ROWS).filter(|_| logits == Logits::Tail);
    let fact = chosen.map(|v| graph.fact(v)).transpose()?;
    Ok(fact.and_then(|f| f.shape.0.first()?.as_symbol().cloned()))
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

/// The element type that the graph demands on every device. Quantizing operands at run time turns a
/// rounding to f16 into whole quantization steps.
fn float_of(graph: &Graph) -> Option<DType> {
    let quantizes = |n: &Node| n.op.name() == "DynamicQuantizeLinear";
    graph.nodes().any(|(_, n)| quantizes(n)).then_some(DType::F32)
}

/// The graph for runs of one row after the passes of `target` for them. `None` if that equals
/// `graph`.
fn for_one_row(graph: &Graph, target: &Target) -> Result<Option<Graph>> {
    let mut step = graph.clone();
    let reports = Pipeline::decode_step(target).run(&mut step)?;
    let fused = reports.iter().any(|r| r.edits > 0);
    Ok(fused.then_some(step))
}

impl Decoder {
    /// True if an unprocessed graph looks like a decoder: it takes any number of tokens, besides
    /// them only inputs that a decoder knows and caches, and returns logits, and an input is
    /// concatenated with new values or used as a cache by an operator, and the whole or the new
    /// part is returned.
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
        let is_known = |v: &ValueId| {
            let cache = graph.fact(*v).is_ok_and(|f| f.shape.rank() >= 4);
            cache || roles::KNOWN.contains(&graph.value(*v).name.as_str())
        };
        ids.is_some_and(|f| f.shape.rank() == 2 && f.shape.0[1].as_const().is_none())
            && graph.inputs().iter().all(is_known)
            && graph.output("logits").is_some()
            && graph.nodes().any(|(_, n)| grows(n))
    }

    /// Expresses the sizes of a decoder's inputs by the tokens of a run and the tokens in the
    /// cache, where their roles allow it. Loading does this too.
    pub fn name_lengths(graph: &mut Graph) -> Result<()> {
        roles::name_lengths(graph).map_err(|e| bad(e.to_string()))
    }
}
