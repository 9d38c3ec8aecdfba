//! Validates kernels of a decoder before its first token: the plans run over a few tokens, and
//! [`validate::first_run`](crate::validate::first_run) compares the results of new kernels with the
//! reference.

use super::plans::RunKind;
use super::{Decoder, DeviceDecoder, DeviceModel, Planned};
use crate::backend::{Backend, Caps, SharedBackend};
use crate::cache::Store;
use crate::error::Result;
use crate::note::Note;
use crate::validate::first_run::{self, FirstRun, Observer};
use std::sync::Arc;

/// Prefill tokens for validation: more than one row tile of most kernels.
const TOKENS: usize = 12;

impl Planned {
    /// Number of kernels without results in `store` for this device; loading compiles and validates
    /// them.
    pub fn new_kernels(&self, caps: &Caps, store: Option<&Store>) -> usize {
        first_run::new_kernels(&self.plans, caps, store)
    }
}

impl DeviceDecoder {
    /// Like [`DeviceDecoder::load`], and validates kernels that are not in `store`. Also returns
    /// notes. Additional error: a kernel without an alternative gives wrong results.
    pub fn load_validated(
        decoder: Decoder,
        backend: Box<dyn Backend>,
        mut planned: Planned,
        may_be_shorter: bool,
        store: Option<Arc<Store>>,
        on_progress: &mut dyn FnMut(usize, usize),
    ) -> Result<(Self, Vec<Note>)> {
        let (decoder, mut backend) = (Arc::new(decoder), SharedBackend::new(backend));
        let mut first = FirstRun::new(backend.caps(), store);
        loop {
            let lengths = planned.lengths();
            if !first.quarantine_unbuilt(&mut backend, &planned.plans)? {
                let mut loaded = Self::load(decoder.clone(), backend.clone(), planned, on_progress)?;
                if first.validate(&mut backend, &loaded.program, &mut |observer| {
                    loaded.observe_kernels(observer)
                })? {
                    loaded.validated = first.validated();
                    return Ok((loaded, first.notes().to_vec()));
                }
            }
            planned = decoder.plan_for(backend.caps(), &lengths, may_be_shorter)?;
        }
    }

    /// Validates kernels that are not in `store`; an error for the first incorrect one. Returns
    /// false if the driver rejected images, so that other kernels ran.
    pub(super) fn validate_all(&self, store: Option<&Store>) -> Result<bool> {
        first_run::validate_all(&self.program, store, &mut |observer| {
            self.observe_kernels(observer)
        })
    }

    /// Number of kernels validated while loading.
    pub fn validated_kernels(&self) -> usize {
        self.validated
    }

    fn observe_kernels(&self, observer: &mut Observer<'_>) -> Result<()> {
        // This creates the images too.
        let mut model = self.model()?;
        if observer.is_empty() {
            return Ok(());
        }
        model.observe_kernels(observer)
    }
}

impl DeviceModel {
    /// Runs each plan that `observer` needs over a few tokens. The cache is empty afterwards.
    fn observe_kernels(&mut self, observer: &mut Observer<'_>) -> Result<()> {
        let lengths = self.set.lengths;
        let (context, rows) = (lengths.context, lengths.verify_tokens.max(1));
        let first = TOKENS.min(lengths.chunk).min(context.saturating_sub(rows)).max(1);
        // Runs after these tokens have room for their own.
        let past = first.min(context.saturating_sub(rows));
        let mut kinds: Vec<_> = self.set.kinds().collect();
        kinds.sort_by_key(|(_, kind)| *kind);
        for (plan, kind) in kinds {
            let (count, past) = match kind {
                RunKind::Prefill => (first, 0),
                RunKind::ShortPrefill { tokens } => (first.min(tokens.0), 0),
                RunKind::Decode | RunKind::ShortDecode { .. } => (1, past),
                RunKind::Verify { tokens } => (rows.min(tokens.0), past),
            };
            let bindings = self.decoder.bindings(kind, count, past);
            let wanted = self.executor.plan(plan).map(|p| observer.wants(p));
            // Later runs read the cache that the first run writes.
            if wanted.is_none_or(|any| !any && kind != RunKind::Prefill) {
                continue;
            }
            let tokens = (0..count).map(|i| self.decoder.sample_token(i));
            let tokens: Vec<u32> = tokens.collect::<Result<_>>()?;
            let inputs = self.decoder.inputs(&tokens, past)?;
            loop {
                for (name, tensor) in &inputs {
                    self.executor.write(plan, name, tensor)?;
                }
                if !observer.run(&mut self.executor, plan, &bindings)? {
                    break;
                }
            }
        }
        Ok(())
    }
}
