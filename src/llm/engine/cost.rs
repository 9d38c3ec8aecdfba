//! Cost of running a decoder, from its plans; see [`crate::plan::NodeCost`].

use super::plans::PlanSet;
use super::{Decoder, Planned};
use crate::error::{Error, Result, Stage};
use crate::plan::{NodeCost, Plan};

fn found<'p>(plan: &dyn Fn(usize) -> Option<&'p Plan>, at: usize) -> Result<&'p Plan> {
    plan(at).ok_or_else(|| Error::other(Stage::Plan, format!("plan {at} does not exist")))
}

impl Decoder {
    pub(super) fn costs<'p>(
        &self,
        set: &PlanSet,
        plan: &dyn Fn(usize) -> Option<&'p Plan>,
        tokens: usize,
        past: usize,
    ) -> Result<Vec<Vec<NodeCost>>> {
        let runs = self.runs(set, tokens, past)?;
        runs.iter()
            .map(|run| found(plan, run.plan)?.costs(&run.bindings))
            .collect()
    }
}

impl Planned {
    /// Cost of feeding `tokens` (at least one) to `decoder` after `past` cached tokens: a list per
    /// run. These must be the decoder's plans. An error if the tokens exceed the context.
    pub fn costs(&self, decoder: &Decoder, tokens: usize, past: usize) -> Result<Vec<Vec<NodeCost>>> {
        decoder.costs(&self.set, &|i| self.plans.get(i), tokens, past)
    }
}
