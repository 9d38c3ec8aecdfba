//! Which passes a graph goes through, and in which order. [`steps`] is the only place that says so;
//! `docs/passes.md` is generated from it.

use super::cleanup::{
    CACHES, CONV_NORM, DECOMPOSE, DECOMPOSE_GEMM, DUPLICATES, FOLD, GATHER_TO_SLICE, INLINE_IF,
    OUTER_PRODUCT, REMOVE_NOOPS, SINK_TRANSPOSES, SPLIT, TRANS_B,
};
use super::decoder::{
    CANDIDATES, CAUSAL, CHOSEN_ROWS, GREEDY, INT8_ACTIVATIONS, INT16_ACTIVATIONS, KV_CACHE, KV_Q8, LAST_ROW,
    LAST_ROWS, RINGS, ROW_POOL, ROW_POSITIONS, WINDOW,
};
use super::fuse::{
    ATTENTION, EPILOGUE, FUSE, GATE_UP, JOINT_MATMUL, NORM, NORM_MATMUL, ROTARY, ROTARY_APPEND,
    ROTARY_INTERLEAVED,
};
use super::integer::{INTEGER_FIXED, INTEGER_FLOAT};
use super::{Pass, PassReport};
use crate::backend::{Caps, TensorCores};
use crate::error::Result;
use crate::graph::op::matmul_e0m::ActivationType;
use crate::graph::{Edit, Graph, derive};
use crate::quant::fixed::Arithmetic;
use std::fmt;

/// Which rows of the output `logits` a graph computes or a run needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logits {
    /// The last row of each run, for generation.
    Last,
    /// The last rows, as many as a run requests, for speculative decoding.
    Tail,
    /// All rows, for evaluation.
    All,
    /// The rows that a run lists. The runs are of rows of several sequences.
    Chosen,
}

/// What a graph is prepared for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// A device; otherwise the host interpreter, which gains nothing from fused operators.
    pub device: bool,
    /// KV caches become state.
    pub caches: bool,
    /// States that only attention reads are stored in 8 bits.
    pub kv_q8: bool,
    /// How quantized matmuls take their activations.
    pub activations: ActivationType,
    /// How quantized operators are computed with integers; `None` computes them as floats.
    pub integer: Option<Arithmetic>,
    /// Which logits are computed.
    pub logits: Logits,
    /// The device finds the largest logit.
    pub greedy: bool,
    /// The device finds the candidates for the next token.
    pub candidates: bool,
    /// Fewer dispatches per layer are worth kernels that do several things.
    pub rotary_append: bool,
    /// Kernels for any number of rows do what others do for one row only.
    pub native: bool,
    /// Runs of one row get a graph of their own, [`Pipeline::decode_step`].
    pub one_row: bool,
    /// One kernel multiplies several rows by both weights of a gate-up pair.
    pub gates_rows: bool,
}

impl Target {
    pub const HOST: Self = Self {
        device: false,
        caches: true,
        kv_q8: false,
        activations: ActivationType::Float,
        integer: Some(Arithmetic::Float),
        logits: Logits::All,
        greedy: false,
        candidates: false,
        rotary_append: false,
        native: false,
        one_row: false,
        gates_rows: false,
    };

    pub const DEVICE: Self = Self {
        device: true,
        ..Self::HOST
    };

    /// The same with these logits.
    #[must_use]
    pub fn with(self, logits: Logits) -> Self {
        Self { logits, ..self }
    }

    /// Adds what this device gains from.
    #[must_use]
    pub fn on(self, caps: &Caps) -> Self {
        Self {
            rotary_append: true,
            native: caps.profile.multiplies_int16(),
            // Each work-group normalizes the row itself and uses registers for two weights; GPUs of
            // phones have too few cores and registers (docs/benchmarks/phone-kernels.md).
            one_row: caps.profile.fast_local,
            gates_rows: caps.profile.tensor_cores == Some(TensorCores::Ptx),
            ..self
        }
    }
}

/// A part of the order with a common purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Fewer kinds of operators, and no superfluous ones.
    CleanUp,
    /// Operators that exporters decompose, and KV caches.
    Structure,
    /// Types of caches and activations.
    Precision,
    Fuse,
    Output,
    /// Runs of one row, on a copy of the graph.
    DecodeStep,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CleanUp => "Clean-up",
            Self::Structure => "Structure",
            Self::Precision => "Precision",
            Self::Fuse => "Fuse",
            Self::Output => "Output",
            Self::DecodeStep => "Decode step",
        })
    }
}

/// Whether a target needs a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct When {
    /// The targets that need it.
    pub targets: &'static str,
    /// True for the given target.
    pub holds: bool,
}

/// A pass at its place in the order.
#[derive(Clone, Copy, Debug)]
pub struct ScheduledPass {
    /// Its part of the order.
    pub phase: Phase,
    pub pass: Pass,
    pub when: When,
}

/// All passes in order, with those that `t` needs.
#[rustfmt::skip]
pub fn steps(t: &Target) -> Vec<ScheduledPass> {
    let when = |targets, holds| When { targets, holds };
    let always = when("all targets", true);
    let host = when("host", !t.device);
    let device = when("devices", t.device);
    let caches = when("all but `tlite run`", t.caches);
    let kv_q8 = when("`--kv q8`", t.kv_q8);
    let int8 = when("`--act int8`", t.activations == ActivationType::Int8);
    let int16 = when("`--act int16`, the default on `cpu`", t.activations == ActivationType::Int16);
    let fixed = when("`--integer fixed`", t.integer == Some(Arithmetic::Fixed));
    let float = when("`--integer float`, the default", t.integer == Some(Arithmetic::Float));
    let last = when("generation", t.logits == Logits::Last);
    let tail = when("speculative decoding", t.logits == Logits::Tail);
    let one = when("one sequence on devices", t.device && t.logits != Logits::Chosen);
    let rows = when("several sequences", t.logits == Logits::Chosen);
    let greedy = when("greedy decoding on devices", t.greedy);
    let candidates = when("sampling on GPUs", t.candidates);
    let rotary_append = when("language models on devices", t.rotary_append);
    let native = when("language models on `cpu`", t.native);
    let gated = when("language models on `cpu` and tensor cores", t.native || t.gates_rows);
    let one_row = when("GPUs with fast local memory", t.one_row);
    let phases: [(Phase, &[(Pass, When)]); 6] = [
        (Phase::CleanUp, &[
            (INLINE_IF, always),
            // Before constants that are dequantized become floats.
            (INTEGER_FIXED, fixed),
            (INTEGER_FLOAT, float),
            (FOLD, always),
            (DECOMPOSE, device),
            (CACHES, host),
            (REMOVE_NOOPS, device),
            (DUPLICATES, device),
            (DECOMPOSE_GEMM, device),
            (OUTER_PRODUCT, device),
            (GATHER_TO_SLICE, device),
            (SPLIT, device),
            (CONV_NORM, device),
        ]),
        // Before elementwise operators are fused, which would hide the parts.
        (Phase::Structure, &[
            (NORM, device),
            (ROTARY, device),
            (ROTARY_INTERLEAVED, device),
            (SINK_TRANSPOSES, device),
            (TRANS_B, always),
            (KV_CACHE, caches),
            (ATTENTION, device),
            (CAUSAL, device),
            (WINDOW, device),
            (RINGS, one),
            // Exact masks are gone, and positions are not yet fused with what reads them.
            (ROW_POSITIONS, rows),
        ]),
        (Phase::Precision, &[
            (KV_Q8, kv_q8),
            (INT8_ACTIVATIONS, int8),
            (INT16_ACTIVATIONS, int16),
        ]),
        (Phase::Fuse, &[
            (FUSE, device),
            // Before the matmul of the logits has an epilogue.
            (LAST_ROW, last),
            (LAST_ROWS, tail),
            (CHOSEN_ROWS, rows),
            (EPILOGUE, device),
            (JOINT_MATMUL, device),
            (ROTARY_APPEND, rotary_append),
            (GATE_UP, gated),
            (NORM_MATMUL, native),
        ]),
        (Phase::Output, &[
            (GREEDY, greedy),
            (CANDIDATES, candidates),
            // Every append and attention is in its final form.
            (ROW_POOL, rows),
        ]),
        (Phase::DecodeStep, &[
            (GATE_UP, one_row),
            (NORM_MATMUL, one_row),
        ]),
    ];
    let step = |phase| move |&(pass, when): &(Pass, When)| ScheduledPass { phase, pass, when };
    phases.iter().flat_map(|(phase, passes)| passes.iter().map(step(*phase))).collect()
}

#[derive(Clone, Debug)]
pub struct Pipeline {
    pub passes: Vec<Pass>,
    /// Limit on rewrites over all passes, for bisecting a wrong result to one rewrite.
    pub edit_limit: usize,
}

impl Pipeline {
    /// The passes of `target` for all runs.
    pub fn of(target: &Target) -> Self {
        Self::filtered(target, |phase| phase != Phase::DecodeStep)
    }

    /// The further passes of `target` for runs of one row.
    pub fn decode_step(target: &Target) -> Self {
        Self::filtered(target, |phase| phase == Phase::DecodeStep)
    }

    fn filtered(target: &Target, in_phase: impl Fn(Phase) -> bool) -> Self {
        let steps = steps(target).into_iter();
        Self {
            passes: steps
                .filter(|s| s.when.holds && in_phase(s.phase))
                .map(|s| s.pass)
                .collect(),
            edit_limit: usize::MAX,
        }
    }

    /// The same passes without the named ones.
    #[must_use]
    pub fn without(mut self, names: &[&str]) -> Self {
        self.passes.retain(|p| !names.contains(&p.name));
        self
    }

    /// Runs the passes. Before the first pass and after each, shapes are derived; after each, the
    /// graph is checked.
    pub fn run(&self, graph: &mut Graph) -> Result<Vec<PassReport>> {
        derive::derive(graph)?;
        let mut reports = Vec::new();
        let mut left = self.edit_limit;
        for pass in &self.passes {
            let nodes_before = graph.nodes().count();
            let mut edit = Edit::with_limit(graph, left);
            (pass.run)(&mut edit)?;
            let edits = edit.count();
            left -= edits;
            // An unchanged graph keeps its derived shapes.
            if edit.remove_dead() > 0 || edits > 0 {
                derive::derive(graph)?;
                graph.check()?;
            }
            reports.push(PassReport {
                pass: pass.name,
                edits,
                nodes_before,
                nodes_after: graph.nodes().count(),
            });
        }
        Ok(reports)
    }
}
