//! The plans of a decoder, and the runs that they serve.

use super::candidates;
use super::{Decoder, Logits, SequenceConfig, check_room};
use crate::backend::Caps;
use crate::error::Result;
use crate::num::signed;
use crate::plan::{Breakpoints, Options, Padding, Plan};
use crate::shape::Bindings;
use std::cmp::Reverse;

/// Runs with a plan of their own. Of the kinds that serve a run, the last in this order is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RunKind {
    /// Any run with its last logits.
    Prefill,
    /// One token.
    Decode,
    /// One token after at most this many.
    ShortDecode { past: i64 },
    /// Two to this many tokens; of several, the shortest serves.
    ShortPrefill { tokens: Reverse<usize> },
    /// Two to this many tokens with all their logits: one and its draft. Of several, the shortest
    /// serves.
    Verify { tokens: Reverse<usize> },
}

impl RunKind {
    fn serves(self, tokens: usize, past: usize, wanted: Logits) -> bool {
        match self {
            Self::Prefill => true,
            Self::Decode => tokens == 1,
            Self::ShortDecode { past: most } => tokens == 1 && signed(past) <= most,
            Self::ShortPrefill {
                tokens: Reverse(most),
            } => (2..=most).contains(&tokens),
            Self::Verify {
                tokens: Reverse(most),
            } => wanted != Logits::Last && (2..=most).contains(&tokens),
        }
    }

    /// True for plans of the decode graph.
    pub fn decodes(self) -> bool {
        matches!(self, Self::Decode | Self::ShortDecode { .. })
    }
}

/// A run: its plan and the values of the plan's symbols.
#[derive(Debug)]
pub(super) struct Run {
    pub plan: usize,
    pub bindings: Bindings,
}

/// Which plans a decoder has: plan `i` serves runs of kind `kinds[i]`.
#[derive(Clone, Debug)]
pub(super) struct PlanSet {
    pub lengths: SequenceConfig,
    kinds: Vec<RunKind>,
}

impl PlanSet {
    /// The kinds with their plans.
    pub fn kinds(&self) -> impl Iterator<Item = (usize, RunKind)> {
        self.kinds.iter().copied().enumerate()
    }

    /// The plan of a kind.
    pub fn plan(&self, kind: RunKind) -> Option<usize> {
        self.kinds.iter().position(|k| *k == kind)
    }

    /// True if there is a plan for short runs with the logits of all tokens.
    pub fn verifies(&self) -> bool {
        self.kinds.iter().any(|k| matches!(k, RunKind::Verify { .. }))
    }
}

impl Decoder {
    /// The plans for a device. A model without a cache has only prefill.
    pub(super) fn plan_set(&self, caps: &Caps, lengths: &SequenceConfig) -> PlanSet {
        let mut kinds = vec![RunKind::Prefill];
        if self.keeps_cache {
            kinds.push(RunKind::Decode);
            if self.rows.is_some() && lengths.verify_tokens > 1 {
                let most = lengths.verify_tokens.min(lengths.context);
                let short = lengths.short_prefill.into_iter();
                let short = short.filter(|n| (2..most).contains(n)).chain([most]);
                kinds.extend(short.map(|n| RunKind::Verify { tokens: Reverse(n) }));
            }
            let keys = Breakpoints::on(caps).keys.min(last_past(lengths));
            kinds.push(RunKind::ShortDecode { past: keys - 1 });
            let short = lengths.short_prefill.into_iter();
            kinds.extend(short.filter(|n| (1..lengths.chunk).contains(n)).map(|n| {
                let tokens = Reverse(n);
                RunKind::ShortPrefill { tokens }
            }));
        }
        PlanSet {
            lengths: *lengths,
            kinds,
        }
    }

    /// Compiles the plans of `set`.
    pub(super) fn compile(&self, caps: &Caps, set: &PlanSet) -> Result<Vec<Plan>> {
        let plan = |kind: &RunKind| self.compile_for(*kind, caps, &set.lengths);
        set.kinds.iter().map(plan).collect()
    }

    fn compile_for(&self, kind: RunKind, caps: &Caps, lengths: &SequenceConfig) -> Result<Plan> {
        let rows = match kind {
            RunKind::Prefill => lengths.chunk.max(lengths.context),
            RunKind::Decode | RunKind::ShortDecode { .. } => 1,
            RunKind::ShortPrefill { tokens } | RunKind::Verify { tokens } => tokens.0,
        };
        let graph = self.graph_for(rows, caps);
        Plan::compile(graph, caps, &self.options_for(kind, caps, lengths))
    }

    /// Plans for prefill and decode; see [`Decoder::options`].
    pub fn plans(&self, caps: &Caps, lengths: &SequenceConfig) -> Result<[Plan; 2]> {
        Ok([
            self.compile_for(RunKind::Prefill, caps, lengths)?,
            self.compile_for(RunKind::Decode, caps, lengths)?,
        ])
    }

    /// All plans that a [`DeviceModel`](super::DeviceModel) loads: prefill and decode, and
    /// optionally short runs with all their logits, decode with a short cache, and short prefill. A
    /// model without a cache has only prefill.
    pub fn every_plan(&self, caps: &Caps, lengths: &SequenceConfig) -> Result<Vec<Plan>> {
        self.compile(caps, &self.plan_set(caps, lengths))
    }

    /// Plan options for prefill and for decode (one token per run).
    pub fn options(&self, caps: &Caps, lengths: &SequenceConfig) -> [Options; 2] {
        [RunKind::Prefill, RunKind::Decode].map(|kind| self.options_for(kind, caps, lengths))
    }

    fn options_for(&self, kind: RunKind, caps: &Caps, lengths: &SequenceConfig) -> Options {
        let context = lengths.context;
        let mut options = Options {
            float: self.float_on(caps),
            state_float: Some(self.state_float_on(caps)),
            state_rows: signed(context),
            run_rows: Some(signed(lengths.chunk.max(lengths.verify_tokens))),
            on_request: candidates::OUTPUTS,
            ..Options::default()
        };
        if let Some(rows) = &self.rows
            && !matches!(kind, RunKind::Verify { .. })
        {
            options.fixed.set(rows, 1);
        }
        match kind {
            RunKind::Prefill => options.bounds = self.sizes(lengths.chunk, context),
            RunKind::ShortPrefill { tokens } => options.bounds = self.sizes(tokens.0, context),
            RunKind::Verify { tokens } => options.bounds = self.bindings(kind, tokens.0, context),
            RunKind::Decode | RunKind::ShortDecode { .. } => {
                options.fixed.set(&self.sequence, 1);
                options.padding = Some(Padding {
                    symbol: self.past.clone(),
                    beyond: 1,
                    multiple: signed(lengths.padding),
                });
                let past = match kind {
                    RunKind::ShortDecode { past } => past,
                    _ => last_past(lengths),
                };
                options.bounds.set(&self.past, past);
            }
        }
        options
    }

    /// The values of both lengths.
    pub(super) fn sizes(&self, sequence: usize, past: usize) -> Bindings {
        let mut b = Bindings::new();
        b.set(&self.sequence, signed(sequence))
            .set(&self.past, signed(past));
        b
    }

    /// The values of the symbols of a plan for runs of `kind`.
    pub(super) fn bindings(&self, kind: RunKind, tokens: usize, past: usize) -> Bindings {
        let mut bindings = self.sizes(tokens, past);
        if kind.decodes() {
            bindings.remove(&self.sequence);
        }
        if let (RunKind::Verify { .. }, Some(rows)) = (kind, &self.rows) {
            bindings.set(rows, signed(tokens));
        }
        bindings
    }

    /// The run of `tokens` tokens after `past` cached ones that computes the logits `wanted`.
    pub(super) fn run_of(&self, set: &PlanSet, tokens: usize, past: usize, wanted: Logits) -> Run {
        let serving = set.kinds().filter(|(_, kind)| kind.serves(tokens, past, wanted));
        // Prefill is the first plan and serves every run.
        let (plan, kind) = serving
            .max_by_key(|(_, kind)| *kind)
            .unwrap_or((0, RunKind::Prefill));
        Run {
            plan,
            bindings: self.bindings(kind, tokens, past),
        }
    }

    /// The runs that feed `tokens` tokens after `past` cached ones, for their last logits.
    pub(super) fn runs(&self, set: &PlanSet, tokens: usize, past: usize) -> Result<Vec<Run>> {
        let SequenceConfig { chunk, context, .. } = set.lengths;
        check_room(past, tokens, context)?;
        let (tokens, past) = if self.keeps_cache {
            (tokens, past)
        } else {
            (past + tokens, 0)
        };
        let starts = (0..tokens).step_by(chunk.max(1));
        let run = |first| self.run_of(set, chunk.min(tokens - first), past + first, Logits::Last);
        Ok(starts.map(run).collect())
    }
}

/// The longest cache of a decode run: the new token needs a row too, and padded lengths must not
/// exceed the state.
fn last_past(lengths: &SequenceConfig) -> i64 {
    signed(lengths.context.saturating_sub(1))
}
