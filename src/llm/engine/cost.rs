//! What running a decoder costs, from its plans: see [`crate::plan::NodeCost`].

use super::{Decoder, Planned, ShortRuns, check_room};
use crate::error::{Error, Result, Stage};
use crate::plan::{NodeCost, Plan};

impl Decoder {
    /// The costs of feeding `tokens` behind `past` others, a list for each run that this takes.
    pub(super) fn costs<'p>(
        &self,
        plan: &dyn Fn(usize) -> Option<&'p Plan>,
        (chunk, context): (usize, usize),
        short: ShortRuns,
        tokens: usize,
        past: usize,
    ) -> Result<Vec<Vec<NodeCost>>> {
        check_room(past, tokens, context)?;
        let (tokens, past) = if self.keeps_cache {
            (tokens, past)
        } else {
            (past + tokens, 0)
        };
        let mut runs = Vec::new();
        for first in (0..tokens).step_by(chunk.max(1)) {
            let (at, bindings) = self.run_of(short, chunk.min(tokens - first), past + first);
            let plan = plan(at).ok_or_else(|| Error::other(Stage::Plan, format!("no plan {at}")))?;
            runs.push(plan.costs(&bindings)?);
        }
        Ok(runs)
    }
}

impl Planned {
    /// What feeding `tokens` (at least one) to `decoder`, of which these are the plans, behind `past` others costs: a list for each run that this
    /// takes. An error where they exceed the context.
    pub fn costs(&self, decoder: &Decoder, tokens: usize, past: usize) -> Result<Vec<Vec<NodeCost>>> {
        let lengths = (self.lengths.chunk, self.lengths.context);
        let plans = &self.plans;
        decoder.costs(&|i| plans.plans.get(i), lengths, plans.short, tokens, past)
    }
}
