//! Cost of running a decoder, from its plans; see [`crate::plan::NodeCost`].

use super::{Decoder, Planned, ShortRuns, check_room};
use crate::backend::kernel::KernelSpec;
use crate::error::{Error, Result, Stage};
use crate::plan::{NodeCost, Plan};
use crate::shape::Bindings;

impl Decoder {
    /// The runs that feed `tokens` tokens after `past` cached ones: plans and bindings.
    pub(super) fn runs<'p>(
        &self,
        plan: &dyn Fn(usize) -> Option<&'p Plan>,
        (chunk, context): (usize, usize),
        short: ShortRuns,
        tokens: usize,
        past: usize,
    ) -> Result<Vec<(&'p Plan, Bindings)>> {
        check_room(past, tokens, context)?;
        let (tokens, past) = if self.keeps_cache {
            (tokens, past)
        } else {
            (past + tokens, 0)
        };
        let mut runs = Vec::new();
        for first in (0..tokens).step_by(chunk.max(1)) {
            let (at, bindings) = self.run_of(short, chunk.min(tokens - first), past + first);
            let plan =
                plan(at).ok_or_else(|| Error::other(Stage::Plan, format!("plan {at} does not exist")))?;
            runs.push((plan, bindings));
        }
        Ok(runs)
    }
}

impl Planned {
    /// Cost of feeding `tokens` (at least one) to `decoder` after `past` cached tokens: a list per
    /// run. These must be the decoder's plans. An error if the tokens exceed the context.
    pub fn costs(&self, decoder: &Decoder, tokens: usize, past: usize) -> Result<Vec<Vec<NodeCost>>> {
        let runs = self.runs(decoder, tokens, past)?;
        runs.iter().map(|(plan, bindings)| plan.costs(bindings)).collect()
    }

    /// Number of launches of these runs, by [`Plan::launches`].
    pub fn launches(
        &self,
        decoder: &Decoder,
        of: &mut dyn FnMut(&[&KernelSpec]) -> usize,
        tokens: usize,
        past: usize,
    ) -> Result<usize> {
        let runs = self.runs(decoder, tokens, past)?;
        Ok(runs.iter().map(|(plan, _)| plan.launches(of)).sum())
    }

    fn runs(&self, decoder: &Decoder, tokens: usize, past: usize) -> Result<Vec<(&Plan, Bindings)>> {
        let lengths = (self.lengths.chunk, self.lengths.context);
        let plans = &self.plans;
        decoder.runs(&|i| plans.plans.get(i), lengths, plans.short, tokens, past)
    }
}
