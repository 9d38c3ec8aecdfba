//! Shape derivation: the one loop that calls [`Op::infer`](super::Op::infer) and adds node names to its errors.

use super::op::{Assumed, InferCx, Made, OpError, Source};
use super::{Assumption, Graph, MadeSymbol, NodeId, Part, ValueId};
use crate::error::{Error, Result, Stage};
use crate::shape::{Fact, Known};
use crate::tensor::{HostTensor, TensorError};
use std::sync::Arc;

/// Constants whose results are at most this many bytes are computed during derivation. Shape arithmetic and
/// small tables pass, decoded weights do not.
pub const FOLD_BYTES: usize = 1 << 20;

/// Derives the facts of all values from those of inputs, states and constants, and follows integer values
/// through shape computations. A node whose inputs are all constant and whose results are small is
/// evaluated; what it computes of absent constants is absent.
pub fn derive(graph: &mut Graph) -> Result<()> {
    graph.made.clear();
    graph.assumed.clear();
    for id in graph.order()? {
        let derived = infer(graph, id)?;
        let node = graph.node(id);
        let inputs = node.map(|n| n.inputs.clone()).unwrap_or_default();
        let outputs = node.map(|n| n.outputs.clone()).unwrap_or_default();
        for made in derived.made {
            let (value, part) = match made.source {
                Source::Element { input, index } => {
                    (inputs.get(input).copied().flatten(), Part::Element(index))
                }
                Source::Size { output, axis } => (outputs.get(output).copied(), Part::Size(axis)),
            };
            let Some(value) = value else { continue };
            match graph.made.iter().find(|m| m.symbol == made.symbol) {
                None => graph.made.push(MadeSymbol {
                    symbol: made.symbol,
                    value,
                    part,
                    at_most: made.at_most,
                }),
                Some(m) if m.value == value && m.part == part => {}
                Some(m) => {
                    return Err(Error::other(
                        Stage::Shape,
                        format!(
                            "the values \"{}\" and \"{}\" would both define a symbol `{}`",
                            graph.value(m.value).name,
                            graph.value(value).name,
                            made.symbol
                        ),
                    ));
                }
            }
        }
        let assumed = derived.assumed.into_iter();
        graph
            .assumed
            .extend(assumed.map(|assumed| Assumption { node: id, assumed }));
        for (out, fact) in outputs.into_iter().zip(derived.facts) {
            graph.values[out.index()].fact = Some(fact);
        }
    }
    Ok(())
}

/// A constant of this fact whose elements are not known.
fn absent(graph: &Graph, value: ValueId, fact: &Fact) -> Result<HostTensor> {
    let what = format!("value \"{}\"", graph.value(value).name);
    let shape = fact.shape.as_fixed().unwrap_or_default();
    HostTensor::absent(fact.dtype, &shape, &what)
        .map_err(|e| Error::other(Stage::Shape, format!("{what}: {e}")))
}

struct Derived {
    facts: Vec<Fact>,
    made: Vec<Made>,
    assumed: Vec<Assumed>,
}

fn infer(graph: &Graph, id: NodeId) -> Result<Derived> {
    let Some(node) = graph.node(id) else {
        return Ok(Derived {
            facts: Vec::new(),
            made: Vec::new(),
            assumed: Vec::new(),
        });
    };
    let mut inputs = Vec::with_capacity(node.inputs.len());
    for v in &node.inputs {
        inputs.push(match v {
            Some(v) => Some(graph.fact(*v)?),
            None => None,
        });
    }
    let name = |v: &ValueId| graph.value(*v).name.as_str();
    let input_names: Vec<&str> = node.inputs.iter().map(|v| v.as_ref().map_or("", name)).collect();
    let output_names: Vec<&str> = node.outputs.iter().map(name).collect();
    let cx = InferCx::new(&inputs, &graph.constraints).named(&input_names, &output_names);
    let mut facts = node
        .op
        .infer(&cx)
        .map_err(|e| graph.node_error(Stage::Shape, node, e))?;
    let (made, assumed) = cx.finish();
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
        match node.op.eval(&tensors) {
            Ok(results) => {
                for (fact, tensor) in facts.iter_mut().zip(results) {
                    fact.known = Known::Const(Arc::new(tensor));
                }
            }
            // What is computed of weights that are not loaded is a constant too, so that the graph is that of the whole model.
            Err(OpError::Tensor(TensorError::Absent(_))) => {
                for (fact, out) in facts.iter_mut().zip(&node.outputs) {
                    fact.known = Known::Const(Arc::new(absent(graph, *out, fact)?));
                }
            }
            Err(e) => return Err(graph.node_error(Stage::Shape, node, e)),
        }
    }
    Ok(Derived { facts, made, assumed })
}
