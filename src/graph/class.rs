//! Operators that compute shapes and operators that compute tensors (paper, section 2.1 and figure 1).
//!
//! `Shape` and `Size` compute shapes. So does every operator whose operands all follow from their results and from constants,
//! if its own results go nowhere but to such operators and to operands that are looked at as sizes only, such as the target
//! of a `Reshape`. All others compute tensors: also a `Range` over a length whose numbers are then used as positions.

use super::{Graph, NodeId};
use crate::error::Result;
use std::collections::HashMap;

/// What an operator computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Sizes, axes and the like, known from the symbols alone.
    Shape,
    /// Activations.
    Tensor,
}

/// The class of every node of `graph`, whose facts are derived.
pub fn classes(graph: &Graph) -> Result<HashMap<NodeId, Class>> {
    let order = graph.order()?;
    let is_const = |v| {
        let fact = graph.value(v).fact.as_ref();
        fact.is_some_and(|f| f.as_const().is_some())
    };
    // Forwards: what follows from shapes and constants.
    let mut follows = vec![false; graph.values.len()];
    let mut candidate = vec![false; graph.nodes.len()];
    let asks = |name: &str| matches!(name, "Shape" | "Size");
    for id in &order {
        let Some(node) = graph.node(*id) else { continue };
        let mut operands = node.inputs.iter().flatten();
        if asks(node.op.name()) || operands.all(|v| is_const(*v) || follows[v.index()]) {
            candidate[id.index()] = true;
            for out in &node.outputs {
                follows[out.index()] = true;
            }
        }
    }
    // Backwards: what is used for nothing but shapes.
    let mut data = vec![false; graph.values.len()];
    for v in graph
        .outputs()
        .iter()
        .chain(graph.states().iter().map(|s| &s.output))
    {
        data[v.index()] = true;
    }
    let mut classes = HashMap::with_capacity(order.len());
    for id in order.iter().rev() {
        let Some(node) = graph.node(*id) else { continue };
        let unused = node.outputs.iter().all(|v| !data[v.index()]);
        let shape = asks(node.op.name()) || candidate[id.index()] && unused;
        classes.insert(*id, if shape { Class::Shape } else { Class::Tensor });
        if !shape {
            for (i, v) in node.inputs.iter().enumerate() {
                if let Some(v) = v.filter(|_| node.op.reads(i)) {
                    data[v.index()] = true;
                }
            }
        }
    }
    Ok(classes)
}
