//! What a decoder takes of a device's memory, known before any of it is taken, and how many tokens fit.

use super::{Decoder, DevicePlans, Lengths};
use crate::backend::Caps;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::weight_bytes;
use crate::units::size_text;
use std::fmt;

/// Memory of a decoder with one sequence, in bytes. What drivers take for themselves is not in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecoderMemory {
    /// Weights as they are stored on the device, and constants that the host keeps.
    pub weights: u64,
    /// The KV cache.
    pub cache: u64,
    /// The arena that all plans share.
    pub activations: u64,
    /// Tokens that the cache has room for, or without one the longest run.
    pub context: usize,
    /// Memory of the device; 0 where its driver does not say.
    pub device: u64,
}

impl DecoderMemory {
    /// All that is taken.
    pub fn total(&self) -> u64 {
        self.weights
            .saturating_add(self.cache)
            .saturating_add(self.activations)
    }

    /// False where the device is known to have less.
    pub fn fits(&self) -> bool {
        self.device == 0 || self.total() <= self.device
    }

    /// Some context below this one that may fit, if what grows with it shrinks in proportion; 0 where none can.
    fn shorter(&self) -> usize {
        let room = u128::from(self.device.saturating_sub(self.weights));
        let grows = u128::from(self.cache.saturating_add(self.activations)).max(1);
        let most = self.context as u128 * room / grows;
        let most = usize::try_from(most).unwrap_or(self.context);
        let most = most.min(self.context.saturating_sub(1));
        if most < STEP { most } else { most / STEP * STEP }
    }
}

/// Contexts that are looked for are multiples of this.
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
                "; device memory reported by the driver {}",
                size_text(self.device)
            )?;
        }
        Ok(())
    }
}

/// A decoder's plans for a device on which they fit.
#[derive(Debug)]
pub struct Planned {
    pub(super) plans: DevicePlans,
    pub(super) lengths: Lengths,
    memory: DecoderMemory,
}

impl Planned {
    /// What they are made for.
    pub fn lengths(&self) -> Lengths {
        self.lengths
    }

    /// What the plans take.
    pub fn memory(&self) -> DecoderMemory {
        self.memory
    }
}

impl Decoder {
    fn planned(&self, caps: &Caps, lengths: &Lengths) -> Result<Planned> {
        let mut lengths = *lengths;
        if !self.keeps_cache {
            lengths.chunk = lengths.context;
        }
        let plans = self.device_plans(caps, &lengths)?;
        let sizes = |of: fn(&crate::plan::MemoryReport) -> u64| {
            plans.plans.iter().map(|p| of(&p.memory)).max().unwrap_or(0)
        };
        let memory = DecoderMemory {
            weights: weight_bytes(&self.graph, &plans.plans)?,
            cache: sizes(|m| m.states),
            activations: sizes(|m| m.arena),
            context: lengths.context,
            device: caps.memory_bytes,
        };
        Ok(Planned {
            lengths,
            plans,
            memory,
        })
    }

    /// Plans for `caps` and `lengths`; without a cache one run takes the whole context. Where that takes more memory than the device has, with as long a context as fits if it
    /// `may_be_shorter`; else a usage error, which says how much is needed, what there is, and which context would fit.
    pub fn plan_for(&self, caps: &Caps, lengths: &Lengths, may_be_shorter: bool) -> Result<Planned> {
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
                &Lengths {
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
                    "{} tokens take {}; at most some {} tokens fit",
                    lengths.context, wanted.memory, found.lengths.context
                );
                Err(Error::usage("context", what).of_kind(ErrorKind::OutOfMemory))
            }
            None => {
                let what = format!("the model takes {}", wanted.memory);
                Err(Error::usage("device", what).of_kind(ErrorKind::OutOfMemory))
            }
        }
    }
}
