//! Whether a device computes a decoder right, found out before its first token: its plans run over a few tokens, and
//! [`selftest::first_use`](crate::selftest::first_use) compares what kernels that are new there made of them.

use super::{DECODE, Decoder, DeviceDecoder, DeviceModel, PREFILL, Planned};
use crate::backend::{Backend, Caps, SharedBackend};
use crate::cache::Store;
use crate::error::Result;
use crate::note::Note;
use crate::selftest::first_use::{self, FirstUse, Watch};
use crate::shape::Bindings;
use std::sync::Arc;

/// Tokens of the prefill by which kernels are checked: more than one tile of rows of most kernels.
const TOKENS: usize = 12;

impl Planned {
    /// Kernels of which `store` knows nothing on a device with `caps`: they are compiled and checked when it is loaded.
    pub fn new_kernels(&self, caps: &Caps, store: Option<&Store>) -> usize {
        first_use::new_kernels(&self.plans.plans, caps, store)
    }
}

impl DeviceDecoder {
    /// As [`DeviceDecoder::load`], with kernels that are checked, as far as `store` does not know them. Returns what there is to note, too. Errors
    /// beside those: a kernel that has no twin gives wrong results.
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
            let lengths = planned.lengths;
            if !first.leaves_unbuilt(&mut backend, &planned.plans.plans) {
                let mut loaded = Self::load(decoder.clone(), backend.clone(), planned, hear)?;
                if first.is_right(&mut backend, &loaded.program, &mut |watch| loaded.observe(watch))? {
                    loaded.checked = first.checked();
                    return Ok((loaded, first.notes().to_vec()));
                }
            }
            planned = decoder.plan_for(backend.caps(), &lengths, may_be_shorter)?;
        }
    }

    /// Compares the kernels that `store` does not know with the reference; an error for the first that is wrong. False where the driver refuses
    /// images, so that other kernels ran.
    pub(super) fn check_all(&self, store: Option<&Store>) -> Result<bool> {
        first_use::all_right(&self.program, store, &mut |watch| self.observe(watch))
    }

    /// Kernels that were compared with the reference while it was loaded.
    pub fn checked_kernels(&self) -> usize {
        self.checked
    }

    fn observe(&self, watch: &mut Watch<'_>) -> Result<()> {
        // Images are made with it.
        let mut model = self.model()?;
        if watch.is_empty() {
            return Ok(());
        }
        model.observe(watch)
    }
}

impl DeviceModel {
    /// Runs each plan over a few tokens, as far as `watch` wants them. The cache is empty afterwards.
    fn observe(&mut self, watch: &mut Watch<'_>) -> Result<()> {
        let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let (context, rows) = (self.lengths.context, self.lengths.rows.max(1));
        let first = TOKENS
            .min(self.lengths.chunk)
            .min(context.saturating_sub(rows))
            .max(1);
        // Runs behind these tokens have room for theirs.
        let past = first.min(context.saturating_sub(rows));
        let mut runs: Vec<(usize, usize, usize, Bindings)> =
            vec![(PREFILL, first, 0, self.decoder.bindings(first, 0))];
        if self.decoder.keeps_cache {
            let one = |plan: usize, model: &Self| {
                let mut bindings = model.decoder.bindings(1, past);
                bindings.remove(&model.decoder.sequence);
                (plan, 1, past, bindings)
            };
            runs.push(one(DECODE, self));
            runs.extend(self.short.decode.map(|(plan, _)| one(plan, self)));
            let few = |(plan, most): (usize, usize)| {
                let count = first.min(most);
                (plan, count, 0, self.decoder.bindings(count, 0))
            };
            runs.extend(self.short.prefill.map(few));
            if let (Some(plan), Some(symbol)) = (self.verify, &self.decoder.rows) {
                let mut bindings = self.decoder.bindings(rows, past);
                bindings.set(symbol, number(rows));
                runs.push((plan, rows, past, bindings));
            }
        }
        for (plan, count, past, bindings) in runs {
            let wanted = self.executor.plan(plan).map(|p| watch.wants(p));
            // What follows reads the cache that the first run writes.
            if wanted.is_none_or(|any| !any && plan != PREFILL) {
                continue;
            }
            let vocab = self.decoder.vocab.max(1);
            let tokens = (0..count).map(|i| u32::try_from((i * 37 + 5) % vocab).unwrap_or(0));
            let tokens: Vec<u32> = tokens.collect();
            let inputs = self.decoder.inputs_of(plan, &tokens, past)?;
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
