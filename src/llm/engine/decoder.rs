//! A decoder's graph, and the inputs of its runs.

use super::{DecoderBuilder, check_tokens};
use crate::backend::{Caps, DeviceKind};
use crate::error::{Error, Result, Stage};
use crate::executor::WeightSource;
use crate::graph::onnx::ImportOptions;
use crate::graph::op::attention::Attention;
use crate::graph::pass::{PassReport, Target};
use crate::graph::{Graph, Node};
use crate::llm::roles;
use crate::num;
use crate::plan::Breakpoints;
use crate::shape::Symbol;
use crate::tensor::{DType, HostTensor};
use std::path::Path;
use std::sync::Arc;

/// A decoder's graph with identified inputs and outputs.
#[derive(Debug)]
pub struct Decoder {
    pub(super) graph: Arc<Graph>,
    /// The graph for runs of one token, if it differs.
    pub(super) step: Option<Graph>,
    pub(super) sequence: Symbol,
    pub(super) past: Symbol,
    /// True if the model has a KV cache.
    pub(super) keeps_cache: bool,
    /// The number of logits rows that a run computes, if it is variable.
    pub(super) rows: Option<Symbol>,
    /// True if every run computes all rows of logits.
    pub(super) all_rows: bool,
    pub(super) vocab: usize,
    /// Identifies the model.
    pub(super) fingerprint: String,
    /// Activation type on a device; `None` for the device's default.
    pub(super) float: Option<DType>,
    /// Source of the weights on a device.
    pub(super) weights: WeightSource,
    /// The sliding window that the graph got from [`DecoderBuilder::with_window`], if any.
    pub(super) window: Option<usize>,
    /// Names of the observed intermediate values.
    pub(super) observed: Vec<String>,
    /// Reports of the passes.
    pub passes: Vec<PassReport>,
}

impl Decoder {
    /// Reads a model and runs the passes of `target`.
    pub fn load(path: &Path, target: &Target) -> Result<Self> {
        DecoderBuilder::new(target).load(path, ImportOptions::default())
    }

    /// Runs the passes of `target` on an imported graph.
    pub fn of(graph: Graph, target: &Target) -> Result<Self> {
        DecoderBuilder::new(target).build(graph)
    }

    /// True if [`DecoderBuilder::with_window`] gave the graph a sliding window.
    pub fn has_given_window(&self) -> bool {
        self.window.is_some()
    }

    /// True if the passes found sliding-window attention. [`Target::HOST`] does not look for it.
    pub fn has_windows(&self) -> bool {
        let windowed = |n: &Node| Attention::of(n.op.as_ref()).is_some_and(|a| a.window.is_some());
        self.graph.nodes().any(|(_, n)| windowed(n))
    }

    /// The graph after the passes.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The graph of plans for at most `rows` rows. Its values, weights and states are those of
    /// [`Decoder::graph`].
    pub(super) fn graph_for(&self, rows: usize, caps: &Caps) -> &Graph {
        match num::signed(rows) <= Breakpoints::on(caps).norm_rows {
            true => self.step.as_ref().unwrap_or(&self.graph),
            false => &self.graph,
        }
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

    /// The element type of the cache on a device: with native kernels, which compute in `f32`,
    /// halves unless single precision is requested.
    pub(super) fn state_float_on(&self, caps: &Caps) -> DType {
        match caps.profile.storage_types() {
            [_] => self.float.unwrap_or(DType::F16),
            _ => self.float_on(caps),
        }
    }

    /// The element type of activations on a device, and of the cache unless
    /// [`Decoder::state_float_on`] says otherwise. CPUs compute in `f32`: `f16` would
    /// cost them conversions as well as accuracy.
    pub(super) fn float_on(&self, caps: &Caps) -> DType {
        let usual = match caps.kind {
            DeviceKind::Cpu => DType::F32,
            DeviceKind::Discrete | DeviceKind::Integrated | DeviceKind::Other => DType::F16,
        };
        match caps.profile.storage_types() {
            [only] => *only,
            _ => self.float.unwrap_or(usual),
        }
    }

    /// An error if `tokens` cannot follow `past` cached tokens.
    pub(super) fn check_run(&self, tokens: &[u32], past: usize) -> Result<()> {
        if past > 0 && !self.keeps_cache {
            let what = format!("the model has no KV cache: a run cannot continue after {past} tokens");
            return Err(Error::other(Stage::Run, what));
        }
        check_tokens(tokens, self.vocab)
    }

    /// The graph's inputs for `tokens` after `past` cached tokens.
    pub(super) fn inputs(&self, tokens: &[u32], past: usize) -> Result<Vec<(&'static str, HostTensor)>> {
        self.check_run(tokens, past)?;
        roles::inputs(&self.graph, tokens, past)
    }

    /// Token `i` of a run whose results do not matter.
    pub(super) fn sample_token(&self, i: usize) -> Result<u32> {
        Ok(num::exact((i * 37 + 5) % self.vocab.max(1), "a token ID")?)
    }
}
