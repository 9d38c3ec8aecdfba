//! The arena of a case: a slot for each tensor, guard zones between them, and its contents.

use super::CaseError;
use crate::backend::View;
use crate::executor::Executor;
use crate::num;
use crate::plan::{Plan, Shared, Storage};
use crate::tensor::DType;
use std::collections::{BTreeMap, HashMap};

/// Offset and length of a tensor in the arena.
pub type Slot = (u64, u64);

/// Moves every location in the arena to its own slot, with a guard zone before the first slot and
/// after each. Returns the slots.
pub fn spread(plan: &mut Plan, align: u64) -> Vec<Slot> {
    let guard = align.max(64);
    let mut next = guard;
    let mut moved: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    // A view moves with the tensor that contains it.
    let tensors = plan.tensors.clone();
    let whole = |offset: u64, len: u64| {
        let mut t = tensors.iter().find(|t| (t.offset, t.bytes) == (offset, len))?;
        while let Some(Shared::View(of)) = &t.shared {
            t = tensors.iter().find(|t| t.name == *of)?;
        }
        Some((t.offset, t.bytes))
    };
    let args = plan.steps.iter_mut().flat_map(|s| &mut s.args);
    let ports = plan.inputs.iter_mut().chain(&mut plan.outputs);
    for storage in args.chain(ports.filter_map(|p| p.storage.as_mut())) {
        if let Storage::Arena { offset, len, .. } = storage {
            let (from, size) = whole(*offset, *len).unwrap_or((*offset, *len));
            let at = *moved.entry((from, size)).or_insert_with(|| {
                let at = next;
                next = (at + size + guard).next_multiple_of(align);
                at
            });
            *offset = at + (*offset - from);
        }
    }
    plan.memory.arena = next;
    moved.into_iter().map(|((_, len), at)| (at, len)).collect()
}

/// Bytes of `count` elements.
pub fn unpadded(dtype: DType, count: usize) -> usize {
    count * dtype.device_bytes()
}

/// Bytes of `count` elements including padding.
pub fn padded(dtype: DType, count: usize) -> usize {
    let unit = dtype.device_padding();
    unpadded(dtype, count).next_multiple_of(unit).max(unit)
}

/// Contents of the arena.
pub struct Arena {
    view: View,
    pub bytes: Vec<u8>,
}

impl Arena {
    /// An arena whose bytes are all `byte`.
    pub fn filled(executor: &Executor, byte: u8) -> Result<Self, CaseError> {
        let view = executor.arena();
        let bytes = vec![byte; num::exact(view.len, "the length of the arena")?];
        Ok(Self { view, bytes })
    }

    pub fn read(executor: &mut Executor) -> Result<Self, CaseError> {
        let mut arena = Self::filled(executor, 0)?;
        executor.backend().read(arena.view, &mut arena.bytes)?;
        Ok(arena)
    }

    pub fn write(&self, executor: &mut Executor) -> Result<(), CaseError> {
        Ok(executor.backend().write(self.view, &self.bytes)?)
    }
}

/// Fails if a byte outside of `written` (offset and length) has changed.
pub fn untouched(
    before: &[u8],
    after: &[u8],
    written: &HashMap<u64, u64>,
    slots: &[Slot],
) -> Result<(), String> {
    let changed = before.iter().zip(after).enumerate().filter(|(_, (b, a))| b != a);
    for (i, _) in changed {
        let i = num::wide(i);
        if written.iter().any(|(at, len)| (*at..at + len).contains(&i)) {
            continue;
        }
        let before = slots.iter().copied().filter(|(offset, _)| *offset <= i);
        let (at, len) = before.max().unwrap_or((0, 0));
        let kind = if written.contains_key(&at) {
            "a result"
        } else {
            "an operand"
        };
        return Err(format!(
            "byte {} of the slot of {kind} of {len} bytes was written",
            i - at
        ));
    }
    Ok(())
}
