//! Which quantized values share a range.

use super::{Layer, LayerKind, SharedRange};
use crate::graph::{Graph, ValueId};
use crate::quant::fixed::Affine;
use std::collections::{HashMap, HashSet};

/// Sets of values, joined step by step.
#[derive(Default)]
struct Sets {
    /// Towards the first value of a set.
    parent: HashMap<ValueId, ValueId>,
}

impl Sets {
    fn first(&mut self, v: ValueId) -> ValueId {
        let mut at = v;
        while let Some(next) = self.parent.get(&at).copied().filter(|p| *p != at) {
            at = next;
        }
        self.parent.insert(v, at);
        at
    }

    fn join(&mut self, a: ValueId, b: ValueId) {
        let (a, b) = (self.first(a), self.first(b));
        self.parent.insert(a.max(b), a.min(b));
    }
}

/// The ranges of the quantized values of `layers`, in the order of their first values.
pub(super) fn shared(graph: &Graph, layers: &[Layer]) -> Vec<SharedRange> {
    let mut sets = Sets::default();
    let mut order: Vec<ValueId> = Vec::new();
    let mut moved: HashSet<ValueId> = HashSet::new();
    for v in layers.iter().flat_map(|l| l.inputs.iter().chain(&l.outputs)) {
        if sets.parent.insert(*v, *v).is_none() {
            order.push(*v);
        }
    }
    for layer in layers.iter().filter(|l| l.kind == LayerKind::Move) {
        moved.extend(&layer.outputs);
        let mut all = layer.inputs.iter().chain(&layer.outputs);
        if let Some(first) = all.next() {
            all.for_each(|v| sets.join(*first, *v));
        }
    }
    let mut ranges: Vec<SharedRange> = Vec::new();
    let mut index: HashMap<ValueId, usize> = HashMap::new();
    for v in order {
        let i = *index.entry(sets.first(v)).or_insert_with(|| {
            ranges.push(SharedRange {
                values: Vec::new(),
                sources: Vec::new(),
                fixed: None,
            });
            ranges.len() - 1
        });
        let range = &mut ranges[i];
        range.values.push(v);
        if !moved.contains(&v) {
            range.sources.push(v);
        }
    }
    for range in &mut ranges {
        let mut all = range.sources.iter().map(|v| fixed(graph, *v));
        let first = all.next().flatten();
        range.fixed = first.filter(|_| all.all(|f| f == first));
    }
    ranges
}

/// The range of a function whose results have fixed bounds, as in TensorFlow Lite.
fn fixed(graph: &Graph, v: ValueId) -> Option<Affine> {
    let (_, node) = graph.producer(v)?;
    match node.op.name() {
        "Softmax" | "Sigmoid" => Some(Affine {
            scale: 1.0 / 256.0,
            zero: -128,
        }),
        "Tanh" => Some(Affine {
            scale: 1.0 / 128.0,
            zero: 0,
        }),
        _ => None,
    }
}
