//! Device memory of a decoder, computed before allocation, and the context length that fits.

use super::plans::PlanSet;
use super::{Decoder, SequenceConfig};
use crate::backend::Caps;
use crate::error::{Error, ErrorKind, Result};
use crate::executor::copied_bytes;
use crate::fmt::size_text;
use crate::plan::{MemoryReport, Plan, weight_bytes};
use crate::quota::Quota;
use std::fmt;

/// Memory of a decoder with one sequence, in bytes, without what drivers use themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecoderMemory {
    /// Weights as stored on the device, and constants kept on the host.
    pub weights: u64,
    /// The KV cache.
    pub cache: u64,
    /// The arena shared by all plans.
    pub activations: u64,
    /// Context length in tokens; without a cache, the longest run.
    pub context: usize,
    /// Memory of the device, or less if the model may not use so much; 0 if unknown.
    pub device: u64,
}

impl DecoderMemory {
    /// Sum of all parts.
    pub fn total(&self) -> u64 {
        self.weights
            .saturating_add(self.cache)
            .saturating_add(self.activations)
    }

    /// False if the device is known to have less memory.
    pub fn fits(&self) -> bool {
        self.device == 0 || self.total() <= self.device
    }

    /// A shorter context that may fit, if memory that grows with it shrinks in proportion; 0 if
    /// none can.
    fn shorter(&self) -> usize {
        let room = u128::from(self.device.saturating_sub(self.weights));
        let grows = u128::from(self.cache.saturating_add(self.activations)).max(1);
        let most = self.context as u128 * room / grows;
        let most = usize::try_from(most).unwrap_or(self.context);
        let most = most.min(self.context.saturating_sub(1));
        if most < STEP { most } else { most / STEP * STEP }
    }
}

/// Context lengths tried are multiples of this.
const STEP: usize = 64;

impl fmt::Display for DecoderMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [weights, cache, activations, total] =
            [self.weights, self.cache, self.activations, self.total()].map(size_text);
        write!(f, "{total}: weights {weights}, ")?;
        if self.cache > 0 {
            write!(
                f,
                "KV cache of {} tokens {cache}, activations {activations}",
                self.context
            )?;
        } else {
            write!(
                f,
                "no KV cache, activations of up to {} tokens {activations}",
                self.context
            )?;
        }
        if self.device > 0 {
            write!(
                f,
                "; the device, or the limit `memory`, allows {}",
                size_text(self.device)
            )?;
        }
        Ok(())
    }
}

/// A decoder's plans for a device on which they fit.
#[derive(Debug)]
pub struct Planned {
    pub(super) plans: Vec<Plan>,
    pub(super) set: PlanSet,
    pub(super) memory: DecoderMemory,
}

impl Planned {
    /// The lengths of the plans.
    pub fn lengths(&self) -> SequenceConfig {
        self.set.lengths
    }

    /// Memory of the plans.
    pub fn memory(&self) -> DecoderMemory {
        self.memory
    }
}

impl Decoder {
    /// Memory of plans for a context.
    pub(super) fn memory_of(&self, plans: &[Plan], context: usize, caps: &Caps) -> Result<DecoderMemory> {
        let sizes = |of: fn(&MemoryReport) -> u64| plans.iter().map(|p| of(&p.memory)).max().unwrap_or(0);
        let weights = weight_bytes(&self.graph, plans)?;
        // Memory of the CPU counts under the limit of the model, except weights that are read in
        // place.
        let allowed = Quota::current().filter(|_| caps.profile.uses_host_memory());
        let allowed = allowed.map_or(u64::MAX, |quota| {
            let copied = copied_bytes(&self.graph, plans, caps);
            let small = plans.iter().map(|p| p.live_bytes() + p.counters * 4).sum();
            let left = quota.left().saturating_sub(small);
            left.saturating_add(weights.saturating_sub(copied))
        });
        Ok(DecoderMemory {
            weights,
            cache: sizes(|m| m.states),
            activations: sizes(|m| m.arena),
            context,
            device: caps.memory_bytes.min(allowed),
        })
    }

    fn planned(&self, caps: &Caps, lengths: &SequenceConfig) -> Result<Planned> {
        let mut lengths = *lengths;
        if !self.keeps_cache {
            lengths.chunk = lengths.context;
        }
        let set = self.plan_set(caps, &lengths);
        let plans = self.compile(caps, &set)?;
        let memory = self.memory_of(&plans, lengths.context, caps)?;
        Ok(Planned { plans, set, memory })
    }

    /// Plans for `caps` and `lengths`; without a cache one run covers the whole context. If this
    /// exceeds the device's memory, plans the longest context that fits if `may_be_shorter`.
    /// Otherwise returns a usage error with the required and available memory and the context that
    /// would fit.
    pub fn plan_for(&self, caps: &Caps, lengths: &SequenceConfig, may_be_shorter: bool) -> Result<Planned> {
        let wanted = self.planned(caps, lengths)?;
        if wanted.memory.fits() {
            return Ok(wanted);
        }
        let mut shorter = wanted.memory.shorter();
        let mut found = None;
        while shorter > 0 {
            let context = shorter;
            let chunk = lengths.chunk.min(context);
            let less = self.planned(
                caps,
                &SequenceConfig {
                    context,
                    chunk,
                    ..*lengths
                },
            )?;
            if less.memory.fits() {
                found = Some(less);
                break;
            }
            shorter = less.memory.shorter();
        }
        match found {
            Some(found) if may_be_shorter => Ok(found),
            Some(found) => {
                let what = format!(
                    "{} tokens need {}; at most about {} tokens fit",
                    lengths.context,
                    wanted.memory,
                    found.lengths().context
                );
                Err(Error::usage("context", what).of_kind(ErrorKind::OutOfMemory))
            }
            None => {
                let what = format!("the model does not fit: it needs {}", wanted.memory);
                Err(Error::usage("device", what).of_kind(ErrorKind::OutOfMemory))
            }
        }
    }
}
