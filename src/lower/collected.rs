//! What lowering collects for the planner.

use super::{Dispatch, Location, WeightKey};
use crate::graph::{NodeId, ValueId};
use crate::shape::Dim;
use crate::tensor::DType;
use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Deref;

/// A condition that must hold in every run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Must not be negative; must be 0 if `equal`.
    pub dim: Dim,
    /// `dim` before the plan's symbols were fixed.
    pub given: Dim,
    /// Whether `dim` must be 0.
    pub equal: bool,
    /// The error message if the condition does not hold.
    pub meaning: String,
}

/// The position of a value inside another value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Nested {
    /// The container, which may itself be inside another value.
    pub of: Location,
    /// Byte offset from the start of the container.
    pub offset: u64,
}

/// An emitted dispatch with the node that it belongs to.
#[derive(Debug)]
pub(crate) struct Emitted {
    pub call: Dispatch,
    pub node: NodeId,
}

/// Distinct items in the order of their insertion.
#[derive(Debug)]
pub(crate) struct Distinct<T> {
    all: Vec<T>,
    index: HashMap<T, usize>,
}

impl<T> Default for Distinct<T> {
    fn default() -> Self {
        Self {
            all: Vec::new(),
            index: HashMap::new(),
        }
    }
}

impl<T> Deref for Distinct<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.all
    }
}

impl<T: Clone + Eq + Hash> Distinct<T> {
    /// The position of the item, which is added if it is new.
    pub fn insert(&mut self, item: T) -> usize {
        let next = self.all.len();
        let at = *self.index.entry(item.clone()).or_insert(next);
        if at == next {
            self.all.push(item);
        }
        at
    }
}

/// What lowering collects over all nodes.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    /// Element type of each value on the device, set when its producer is lowered.
    pub storage_types: HashMap<ValueId, DType>,
    /// Values that are aliases: other names for the bytes of earlier values.
    pub alias: HashMap<ValueId, ValueId>,
    /// Values that are stored inside others.
    pub parts: HashMap<Location, Nested>,
    pub calls: Vec<Emitted>,
    pub weights: Distinct<WeightKey>,
    pub temps: Vec<(DType, Dim)>,
    /// Conditions on the symbols that operators require.
    pub conditions: Vec<Condition>,
    /// The integers requested with [`LowerCx::live`](super::LowerCx::live), by position.
    pub live: Distinct<Dim>,
    /// Tensors that kernels read and whose elements are known as expressions.
    pub known: Distinct<(ValueId, Vec<Dim>)>,
    /// Maximum number of counters that a dispatch uses.
    pub counters: u64,
    /// What may be wrong with the data of a run.
    pub faults: Distinct<String>,
}

/// Memory layout of the table of live values: first integers that kernels read by position, then
/// whole tensors.
#[derive(Debug, Default)]
pub(crate) struct LiveTable {
    /// The 32-bit integers: position and expression.
    pub values: Vec<(usize, Dim)>,
    /// First byte and length of each tensor of [`Collected::known`].
    pub known: Vec<(u64, u64)>,
}

impl Collected {
    pub fn root(&self, mut id: ValueId) -> ValueId {
        while let Some(next) = self.alias.get(&id) {
            id = *next;
        }
        id
    }

    /// Lays out the table. Tensors begin at multiples of `align`, so that they can be bound as
    /// views.
    pub fn live_table(&self, align: u64) -> LiveTable {
        let align = usize::try_from(align.div_ceil(4)).unwrap_or(usize::MAX).max(2);
        let mut table = LiveTable {
            values: self.live.iter().cloned().enumerate().collect(),
            known: Vec::with_capacity(self.known.len()),
        };
        let mut end = self.live.len();
        for (_, elements) in self.known.iter() {
            let first = end.next_multiple_of(align);
            end = first + elements.len().next_multiple_of(2).max(2);
            table.values.extend((first..).zip(elements.iter().cloned()));
            table.known.push((first as u64 * 4, (end - first) as u64 * 4));
        }
        table
    }
}
