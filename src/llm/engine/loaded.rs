//! A decoder on a device, for any number of sequences.

use super::candidates::RunCandidates;
use super::memory::{DecoderMemory, Planned};
use super::plans::{PlanSet, RunKind};
use super::ring::Rings;
use super::{Decoder, DeviceModel, SequenceConfig};
use crate::backend::{Backend, Caps, ReplayMode, SharedBackend, Stats};
use crate::error::{Error, Result, Stage};
use crate::executor::{Executor, Program};
use crate::llm::roles::RunInputs;
use crate::plan::{HostStep, NodeCost, StateSlot};
use std::sync::Arc;

/// A decoder planned for a device, with uploaded weights and compiled kernels. Each of its
/// [`DeviceModel`]s has its own cache and arena and shares the weights.
#[derive(Debug)]
pub struct DeviceDecoder {
    pub(super) decoder: Arc<Decoder>,
    pub(super) program: Arc<Program>,
    /// Number of kernels validated while loading.
    pub(super) validated: usize,
    memory: DecoderMemory,
    set: PlanSet,
}

impl DeviceDecoder {
    /// Plans `decoder` for `backend` and `lengths` and uploads its weights. Returns the errors of
    /// [`Decoder::plan_for`] and [`DeviceDecoder::load`].
    pub fn new(decoder: Decoder, backend: Box<dyn Backend>, lengths: &SequenceConfig) -> Result<Self> {
        let planned = decoder.plan_for(backend.caps(), lengths, false)?;
        let (decoder, backend) = (Arc::new(decoder), SharedBackend::new(backend));
        Self::load(decoder, backend, planned, &mut |_, _| {})
    }

    /// Uploads the weights of `decoder`, which was planned for the device of `backend`, and
    /// compiles its kernels. `on_progress` receives progress as in [`Program::load`]. An error if
    /// the device rejects memory or kernels.
    pub fn load(
        decoder: Arc<Decoder>,
        backend: SharedBackend,
        planned: Planned,
        on_progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self> {
        Self::load_beside(decoder, backend, planned, None, on_progress)
    }

    /// Like [`DeviceDecoder::load`], sharing equal weights with `beside` on the same device.
    pub(super) fn load_beside(
        decoder: Arc<Decoder>,
        backend: SharedBackend,
        planned: Planned,
        beside: Option<&Self>,
        on_progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self> {
        let Planned { plans, set, memory } = planned;
        let beside = beside.map(|other| other.program.clone());
        let program = Program::load_beside(
            backend,
            decoder.graph(),
            plans,
            decoder.weights,
            beside,
            on_progress,
        )?;
        Ok(Self {
            decoder,
            validated: 0,
            program: Arc::new(program),
            memory,
            set,
        })
    }

    /// Memory with one model.
    pub fn memory(&self) -> DecoderMemory {
        self.memory
    }

    /// A model with an empty cache.
    pub fn model(&self) -> Result<DeviceModel> {
        Ok(DeviceModel {
            rows: RunInputs::default(),
            candidates: RunCandidates::default(),
            rings: Rings::new(self.states()).map_err(|e| Error::internal(Stage::Plan, e))?,
            decoder: self.decoder.clone(),
            executor: Executor::of(&self.program)?,
            set: self.set.clone(),
            len: 0,
        })
    }

    /// See [`Planned::costs`].
    pub fn costs(&self, tokens: usize, past: usize) -> Result<Vec<Vec<NodeCost>>> {
        self.decoder
            .costs(&self.set, &|i| self.program.plan(i), tokens, past)
    }

    /// Capabilities of the device.
    pub fn caps(&self) -> &Caps {
        self.program.caps()
    }

    /// See [`crate::backend::Backend::replay_mode`].
    pub fn replay_mode(&self) -> ReplayMode {
        self.program.replay_mode()
    }

    /// States of the cache.
    pub fn states(&self) -> &[StateSlot] {
        let plan = self.set.plan(RunKind::Prefill);
        let plan = plan.and_then(|i| self.program.plan(i));
        plan.map_or(&[][..], |p| p.states.as_slice())
    }

    /// Running totals of the backend over all models.
    pub fn stats(&self) -> Stats {
        self.program.stats()
    }

    /// False if every run starts at position 0; see [`Decoder::keeps_cache`].
    pub fn keeps_cache(&self) -> bool {
        self.decoder.keeps_cache
    }

    /// Steps that a decode step (or else the verification of a draft) runs on the host, between
    /// device segments.
    pub fn host_steps(&self) -> &[HostStep] {
        let kinds = self.set.kinds().filter(|(_, kind)| match kind {
            RunKind::Decode | RunKind::Verify { .. } => true,
            RunKind::Prefill => !self.decoder.keeps_cache,
            RunKind::ShortDecode { .. } | RunKind::ShortPrefill { .. } => false,
        });
        let mut steps = kinds.filter_map(|(i, _)| Some(self.program.plan(i)?.host.as_slice()));
        steps.find(|steps| !steps.is_empty()).unwrap_or(&[])
    }
}
