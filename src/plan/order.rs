//! Orders the work of a plan, on host and device, so that data and symbols are available when
//! needed.

use super::compile::{Compiler, Item};
use crate::error::{Error, Result, Stage};
use crate::graph::{Node, NodeId, TensorScalar, ValueId};
use crate::shape::Symbol;
use std::collections::{BTreeSet, HashMap, HashSet};

/// The needed work of a plan in an executable order; `nodes` are topologically sorted. Host and
/// device take turns, each doing everything it can, so that there are few segments.
pub(super) fn order(c: &Compiler<'_>, nodes: &[NodeId]) -> Result<Vec<Item>> {
    let mut calls: HashMap<NodeId, Vec<Item>> = HashMap::new();
    for (i, e) in c.collected.calls.iter().enumerate() {
        calls.entry(e.node).or_default().push(Item::Call(i));
    }
    // Values made by kernels whose elements define symbols.
    let observed: BTreeSet<ValueId> = c
        .made
        .iter()
        .filter(|m| matches!(m.scalar, TensorScalar::Element(_)))
        .map(|m| m.value)
        .filter(|v| !c.known.contains(v) && c.graph.producer(*v).is_some() && !c.is_made_on_host(*v))
        .collect();
    let mut left: Vec<NodeId> = nodes.iter().copied().filter(|id| c.is_needed(*id)).collect();
    let mut unseen: Vec<ValueId> = observed.iter().copied().collect();
    let mut unknown: Vec<ValueId> = c.known.iter().copied().collect();
    let mut order = Scheduler {
        c,
        observed,
        done_values: HashSet::new(),
        done_nodes: HashSet::new(),
        seen: HashSet::new(),
    };
    let mut items = Vec::new();
    let (mut idle, mut on_host) = (0, true);
    while !left.is_empty() || !unseen.is_empty() || !unknown.is_empty() {
        let before = items.len();
        let nodes_before = left.len();
        if on_host {
            unknown.retain(|v| {
                let ready = c.symbols_of([*v]).iter().all(|s| order.has_symbol(s));
                if ready {
                    items.push(Item::Known(*v));
                    order.done_values.insert(*v);
                }
                !ready
            });
            unseen.retain(|v| {
                let ready = order.has_value(*v);
                if ready {
                    items.push(Item::Observe(*v));
                    order.seen.insert(*v);
                }
                !ready
            });
        }
        left.retain(|id| {
            let Some(node) = c.graph.node(*id) else {
                return false;
            };
            let ready = c.host.contains_key(id) == on_host && order.is_ready(*id, node);
            if ready {
                order.done_nodes.insert(*id);
                order.done_values.extend(&node.outputs);
                if on_host {
                    items.push(Item::Host(*id));
                } else {
                    items.extend(calls.remove(id).unwrap_or_default());
                }
            }
            !ready
        });
        if items.len() > before || left.len() < nodes_before {
            idle = 0;
            continue;
        }
        idle += 1;
        if idle > 2 {
            let stuck = left.first().and_then(|id| c.graph.node(*id));
            let stuck = stuck.map_or("", |n| n.name.as_str());
            return Err(Error::other(
                Stage::Plan,
                format!("node \"{stuck}\" depends on a size that is computed from its own result"),
            ));
        }
        on_host = !on_host;
    }
    Ok(items)
}

struct Scheduler<'a, 'b> {
    c: &'b Compiler<'a>,
    observed: BTreeSet<ValueId>,
    done_values: HashSet<ValueId>,
    done_nodes: HashSet<NodeId>,
    /// Observed values that have been read back.
    seen: HashSet<ValueId>,
}

impl Scheduler<'_, '_> {
    fn has_value(&self, v: ValueId) -> bool {
        self.c.graph.producer(v).is_none() || self.c.is_const(v) || self.done_values.contains(&v)
    }

    fn has_symbol(&self, s: &Symbol) -> bool {
        match self.c.made.iter().find(|m| m.symbol == *s) {
            None => true,
            Some(m) if self.observed.contains(&m.value) => self.seen.contains(&m.value),
            Some(m) => self.has_value(m.value),
        }
    }

    /// Whether the data and symbols that a node needs are available, and nothing still reads what
    /// it overwrites.
    fn is_ready(&self, id: NodeId, node: &Node) -> bool {
        let c = self.c;
        let on_host = c.host.contains_key(&id);
        let data = node.inputs.iter().enumerate().all(|(i, v)| match v {
            Some(v) => !on_host && !node.op.reads(i) || c.is_dims(*v) || self.has_value(*v),
            None => true,
        });
        let own = |s: &Symbol| {
            let mut made = c.made.iter();
            made.any(|m| m.symbol == *s && node.outputs.contains(&m.value))
        };
        let symbols = c.symbols_of(node.inputs.iter().flatten().chain(&node.outputs).copied());
        // Readers of a state's old value run before the state is appended to.
        let mut states = c.graph.states().iter();
        let behind = states.find(|s| node.outputs.contains(&s.output)).is_none_or(|s| {
            c.graph
                .nodes()
                .filter(|(r, n)| *r != id && c.is_needed(*r) && n.inputs.contains(&Some(s.input)))
                .all(|(r, _)| self.done_nodes.contains(&r))
        });
        data && behind && symbols.iter().all(|s| own(s) || self.has_symbol(s))
    }
}
