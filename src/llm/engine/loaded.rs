//! A decoder on a device, for any number of sequences.

use super::memory::{DecoderMemory, Planned};
use super::ring::Rings;
use super::{DECODE, Decoder, DeviceModel, DevicePlans, Lengths, PREFILL, ShortRuns};
use crate::backend::{Backend, Caps, RecordingWay, SharedBackend, Stats};
use crate::error::Result;
use crate::executor::{Executor, Program};
use crate::plan::{HostStep, NodeCost, StateSlot};
use std::sync::Arc;

/// A decoder planned for a device, with uploaded weights and compiled kernels. Each of its
/// [`DeviceModel`]s has its own cache and arena and shares the weights.
#[derive(Debug)]
pub struct DeviceDecoder {
    pub(super) decoder: Arc<Decoder>,
    pub(super) program: Arc<Program>,
    /// Number of kernels validated while loading.
    pub(super) checked: usize,
    memory: DecoderMemory,
    lengths: Lengths,
    /// See [`DeviceModel`].
    verify: Option<usize>,
    short: ShortRuns,
}

impl DeviceDecoder {
    /// Plans `decoder` for `backend` and `lengths` and uploads its weights. Returns the errors of
    /// [`Decoder::plan_for`] and [`DeviceDecoder::load`].
    pub fn new(decoder: Decoder, backend: Box<dyn Backend>, lengths: &Lengths) -> Result<Self> {
        let planned = decoder.plan_for(backend.caps(), lengths, false)?;
        let (decoder, backend) = (Arc::new(decoder), SharedBackend::new(backend));
        Self::load(decoder, backend, planned, &mut |_, _| {})
    }

    /// Uploads the weights of `decoder`, which was planned for the device of `backend`, and
    /// compiles its kernels. `hear` receives progress as in [`Program::load`]. An error if the
    /// device rejects memory or kernels.
    pub fn load(
        decoder: Arc<Decoder>,
        backend: SharedBackend,
        planned: Planned,
        hear: &mut dyn FnMut(usize, usize),
    ) -> Result<Self> {
        Self::load_beside(decoder, backend, planned, None, hear)
    }

    /// Like [`DeviceDecoder::load`], sharing equal weights with `beside` on the same device.
    pub(super) fn load_beside(
        decoder: Arc<Decoder>,
        backend: SharedBackend,
        planned: Planned,
        beside: Option<&Self>,
        hear: &mut dyn FnMut(usize, usize),
    ) -> Result<Self> {
        let memory = planned.memory();
        let Planned { plans, lengths, .. } = planned;
        let DevicePlans { plans, verify, short } = plans;
        let beside = beside.map(|other| other.program.clone());
        let program = Program::load_beside(backend, decoder.graph(), plans, decoder.weights, beside, hear)?;
        Ok(Self {
            decoder,
            checked: 0,
            program: Arc::new(program),
            memory,
            lengths,
            verify,
            short,
        })
    }

    /// Memory with one model.
    pub fn memory(&self) -> DecoderMemory {
        self.memory
    }

    /// A model with an empty cache.
    pub fn model(&self) -> Result<DeviceModel> {
        Ok(DeviceModel {
            rings: Rings::new(self.states()),
            decoder: self.decoder.clone(),
            executor: Executor::of(&self.program)?,
            lengths: self.lengths,
            verify: self.verify,
            short: self.short,
            len: 0,
        })
    }

    /// See [`Planned::costs`].
    pub fn costs(&self, tokens: usize, past: usize) -> Result<Vec<Vec<NodeCost>>> {
        let lengths = (self.lengths.chunk, self.lengths.context);
        let plan = |i| self.program.plan(i);
        let runs = self.decoder.runs(&plan, lengths, self.short, tokens, past)?;
        runs.iter().map(|(plan, bindings)| plan.costs(bindings)).collect()
    }

    /// Capabilities of the device.
    pub fn caps(&self) -> &Caps {
        self.program.caps()
    }

    /// See [`crate::backend::Backend::recording_way`].
    pub fn recording_way(&self) -> RecordingWay {
        self.program.recording_way()
    }

    /// States of the cache.
    pub fn states(&self) -> &[StateSlot] {
        self.program
            .plan(PREFILL)
            .map_or(&[][..], |p| p.states.as_slice())
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
        let steps = |plan| self.program.plan(plan).map_or(&[][..], |p| p.host.as_slice());
        if !self.decoder.keeps_cache {
            return steps(PREFILL);
        }
        match self.verify {
            Some(plan) if steps(DECODE).is_empty() => steps(plan),
            _ => steps(DECODE),
        }
    }
}
