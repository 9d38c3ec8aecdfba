//! Validates kernels of a decoder before its first token: the plans run over a few tokens, and
//! [`selftest::first_use`](crate::selftest::first_use) compares the results of new kernels with the
//! reference.

use super::plans::RunKind;
use super::{Decoder, DeviceDecoder, DeviceModel, Planned};
use crate::backend::{Backend, Caps, SharedBackend};
use crate::cache::Store;
use crate::error::Result;
use crate::note::Note;
use crate::selftest::first_use::{self, FirstUse, Watch};
use std::sync::Arc;

/// Prefill tokens for validation: more than one row tile of most kernels.
const TOKENS: usize = 12;

impl Planned {
    /// Number of kernels without results in `store` for this device; loading compiles and validates
    /// them.
    pub fn new_kernels(&self, caps: &Caps, store: Option<&Store>) -> usize {
        first_use::new_kernels(&self.plans, caps, store)
    }
}

impl DeviceDecoder {
    /// Like [`DeviceDecoder::load`], and validates kernels that are not in `store`. Also returns
    /// notes. Additional error: a kernel without an alternative gives wrong results.
    pub fn checked(
        decoder: Decoder,
        backend: Box<dyn Backend>,
        mut planned: Planned,
        may_be_shorter: bool,
        store: Option<Arc<Store>>,
        hear: &mut dyn FnMut(usize, usize),
    ) -> Result<(Self, Vec<Note>)> {
        let (decoder, mut backend) = (Arc::new(decoder), SharedBackend::new(backend));
        let mut first = FirstUse::new(backend.caps(), store);
        loop {
            let lengths = planned.lengths();
            if !first.leaves_unbuilt(&mut backend, &planned.plans) {
                let mut loaded = Self::load(decoder.clone(), backend.clone(), planned, hear)?;
                if first.is_right(&mut backend, &loaded.program, &mut |watch| loaded.observe(watch))? {
                    loaded.checked = first.checked();
                    return Ok((loaded, first.notes().to_vec()));
                }
            }
            planned = decoder.plan_for(backend.caps(), &lengths, may_be_shorter)?;
        }
    }

    /// Validates kernels that are not in `store`; an error for the first incorrect one. Returns
    /// false if the driver rejected images, so that other kernels ran.
    pub(super) fn check_all(&self, store: Option<&Store>) -> Result<bool> {
        first_use::all_right(&self.program, store, &mut |watch| self.observe(watch))
    }

    /// Number of kernels validated while loading.
    pub fn checked_kernels(&self) -> usize {
        self.checked
    }

    fn observe(&self, watch: &mut Watch<'_>) -> Result<()> {
        // This creates the images too.
        let mut model = self.model()?;
        if watch.is_empty() {
            return Ok(());
        }
        model.observe(watch)
    }
}

impl DeviceModel {
    /// Runs each plan that `watch` needs over a few tokens. The cache is empty afterwards.
    fn observe(&mut self, watch: &mut Watch<'_>) -> Result<()> {
        let lengths = self.set.lengths;
        let (context, rows) = (lengths.context, lengths.rows.max(1));
        let first = TOKENS.min(lengths.chunk).min(context.saturating_sub(rows)).max(1);
        // Runs after these tokens have room for their own.
        let past = first.min(context.saturating_sub(rows));
        let mut kinds: Vec<_> = self.set.kinds().collect();
        kinds.sort_by_key(|(_, kind)| *kind);
        for (plan, kind) in kinds {
            let (count, past) = match kind {
                RunKind::Prefill => (first, 0),
                RunKind::ShortPrefill { tokens } => (first.min(tokens), 0),
                RunKind::Decode | RunKind::ShortDecode { .. } => (1, past),
                RunKind::Verify { .. } => (rows, past),
            };
            let bindings = self.decoder.bindings(kind, count, past);
            let wanted = self.executor.plan(plan).map(|p| watch.wants(p));
            // Later runs read the cache that the first run writes.
            if wanted.is_none_or(|any| !any && kind != RunKind::Prefill) {
                continue;
            }
            let vocab = self.decoder.vocab.max(1);
            let tokens = (0..count).map(|i| u32::try_from((i * 37 + 5) % vocab).unwrap_or(0));
            let tokens: Vec<u32> = tokens.collect();
            let inputs = self.decoder.inputs(&tokens, past, kind.decodes())?;
            loop {
                for (name, tensor) in &inputs {
                    self.executor.write(plan, name, tensor)?;
                }
                if !watch.run(&mut self.executor, plan, &bindings)? {
                    break;
                }
            }
        }
        Ok(())
    }
}
