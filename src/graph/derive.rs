//! Shape derivation: the one loop that calls [`Op::infer`](super::Op::infer) and adds node names to its errors.

use super::op::InferCx;
use super::{Graph, NodeId};
use crate::error::{Result, Stage};
use crate::shape::{Fact, Known};
use std::sync::Arc;

/// Constants whose results are at most this many bytes are computed during derivation. Shape arithmetic and
/// small tables pass, decoded weights do not.
pub const FOLD_BYTES: usize = 1 << 20;

/// Derives the facts of all values from those of inputs, states and constants, and follows integer values
/// through shape computations. A node whose inputs are all constant and whose results are small is
/// evaluated.
pub fn derive(graph: &mut Graph) -> Result<()> {
    for id in graph.order()? {
        let facts = infer(graph, id)?;
        let outputs = graph.node(id).map(|n| n.outputs.clone()).unwrap_or_default();
        for (out, fact) in outputs.into_iter().zip(facts) {
            graph.values[out.index()].fact = Some(fact);
        }
    }
    Ok(())
}

fn infer(graph: &Graph, id: NodeId) -> Result<Vec<Fact>> {
    let Some(node) = graph.node(id) else {
        return Ok(Vec::new());
    };
    let mut inputs = Vec::with_capacity(node.inputs.len());
    for v in &node.inputs {
        inputs.push(match v {
            Some(v) => Some(graph.fact(*v)?),
            None => None,
        });
    }
    let cx = InferCx { inputs: &inputs };
    let mut facts = node
        .op
        .infer(&cx)
        .map_err(|e| graph.node_error(Stage::Shape, node, e))?;
    let constant = inputs.iter().flatten().all(|f| f.as_const().is_some()) && !node.inputs.is_empty();
    let small = facts.iter().all(|f| {
        f.shape.as_fixed().is_some_and(|s| {
            s.iter()
                .try_fold(f.dtype.size(), |n, d| n.checked_mul(*d))
                .is_some_and(|n| n <= FOLD_BYTES)
        })
    });
    if constant && small {
        let tensors: Vec<_> = inputs
            .iter()
            .map(|f| f.and_then(|f| f.as_const()).map(Arc::as_ref))
            .collect();
        let results = node
            .op
            .eval(&tensors)
            .map_err(|e| graph.node_error(Stage::Shape, node, e))?;
        for (fact, tensor) in facts.iter_mut().zip(results) {
            fact.known = Known::Const(Arc::new(tensor));
        }
    }
    Ok(facts)
}
