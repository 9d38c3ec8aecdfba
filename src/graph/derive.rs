//! Shape derivation: calls [`Op::infer`](super::Op::infer) for each node and adds node names to its
//! errors.

use super::op::{Assumption, DataDependentDim, DimSource, InferCx, OpError, OpResult, count, nothing};
use super::{Graph, MadeSymbol, NodeAssumption, NodeId, Op, TensorScalar, ValueId};
use crate::error::{Error, Result, Stage};
use crate::limits;
use crate::num;
use crate::shape::{Dim, Fact, Known, MAX_KNOWN, Quotient, Symbol};
use crate::tensor::{DType, HostTensor, TensorError};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// Constant results of at most this many bytes are computed during derivation. The limit admits
/// shape arithmetic and small tables, but not decoded weights.
pub const FOLD_BYTES: usize = 1 << 20;

/// Derives the facts of all values from those of inputs, states and constants, and tracks integer
/// values through shape computations. A node with constant inputs and small results is evaluated;
/// results computed from absent constants are absent.
pub fn derive(graph: &mut Graph) -> Result<()> {
    graph.made.clear();
    graph.assumed.clear();
    let mut known: HashMap<Symbol, usize> = HashMap::new();
    for id in graph.order()? {
        limits::check(Stage::Shape)?;
        let derived = infer(graph, id)?;
        let node = graph.node(id);
        let inputs = node.map(|n| n.inputs.clone()).unwrap_or_default();
        let outputs = node.map(|n| n.outputs.clone()).unwrap_or_default();
        for made in derived.made {
            let (value, scalar) = match made.source {
                DimSource::Element { input, index } => {
                    (inputs.get(input).copied().flatten(), TensorScalar::Element(index))
                }
                DimSource::Size { output, axis } => (outputs.get(output).copied(), TensorScalar::Size(axis)),
            };
            let Some(value) = value else { continue };
            let at = *known.entry(made.symbol.clone()).or_insert(graph.made.len());
            match graph.made.get(at) {
                None => graph.made.push(MadeSymbol {
                    symbol: made.symbol,
                    value,
                    scalar,
                    at_most: made.at_most,
                }),
                Some(m) if m.value == value && m.scalar == scalar => {}
                Some(m) => {
                    return Err(Error::other(
                        Stage::Shape,
                        format!(
                            "the values \"{}\" and \"{}\" both define the symbol `{}`",
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
            .extend(assumed.map(|assumed| NodeAssumption { node: id, assumed }));
        for (out, fact) in outputs.into_iter().zip(derived.facts) {
            graph.values[out.index()].fact = Some(fact);
        }
    }
    prune(graph);
    Ok(())
}

/// Removes assumptions that follow from others. Many assumptions about sizes of later layers reduce
/// to a few about symbols.
fn prune(graph: &mut Graph) {
    let mut known = graph.constraints.clone();
    let mut all = std::mem::take(&mut graph.assumed);
    let least = |a: &NodeAssumption| {
        let mut symbols = BTreeSet::new();
        a.assumed.dim.symbols(&mut symbols);
        let symbol = symbols
            .pop_first()
            .filter(|_| symbols.is_empty() && !a.assumed.equal)?;
        let beyond = a.assumed.dim.sub(&(&symbol).into()).ok()?.as_const()?;
        Some((symbol, beyond.checked_neg()?))
    };
    // Bounds of a single symbol first, since the others follow from them.
    all.sort_by_key(|a| least(a).is_none());
    let mut kept: HashSet<(Dim, bool)> = HashSet::new();
    let zero = Dim::from(0);
    for a in all {
        let c = &a.assumed;
        let condition = (c.dim.clone(), c.equal);
        if kept.contains(&condition) {
            continue;
        }
        let follows = if c.equal {
            known.equal(&c.dim, &zero)
        } else {
            known.at_least(&c.dim, 0)
        };
        if follows == Some(true) {
            continue;
        }
        kept.insert(condition);
        if let Some((symbol, lo)) = least(&a)
            && let Err(e) = known.bound(&symbol, Some(lo), None)
        {
            log::debug!("{e}");
        }
        graph.assumed.push(a);
    }
}

/// A constant with this fact whose elements are absent.
fn absent(graph: &Graph, value: ValueId, fact: &Fact) -> Result<HostTensor> {
    let what = format!("value \"{}\"", graph.value(value).name);
    let shape = fact.shape.as_fixed().unwrap_or_default();
    HostTensor::absent(fact.dtype, &shape, &what)
        .map_err(|e| Error::other(Stage::Shape, format!("{what}: {e}")))
}

/// Tracks small integers and quotients through an operator that moves them, by evaluating it over
/// positions instead of elements. Results whose elements are all numbers become constants.
pub(super) fn follow(op: &dyn Op, inputs: &[Option<&Fact>], facts: &mut [Fact]) -> OpResult<()> {
    let quotients = inputs
        .iter()
        .flatten()
        .any(|f| matches!(f.known, Known::Quotients(_)));
    let open = |fact: &Fact| {
        let small = || {
            fact.shape
                .as_fixed()
                .is_some_and(|s| count(&s).is_ok_and(|n| n <= MAX_KNOWN))
        };
        fact.known == Known::No
            && (!fact.dtype.is_float() || quotients && fact.dtype == DType::F32)
            && small()
    };
    if facts.iter().any(open)
        && let Some((operands, elements)) = positions(op, inputs)?
    {
        let operands: Vec<_> = operands.iter().map(Option::as_ref).collect();
        for (fact, moved) in facts.iter_mut().zip(op.run(&operands)?) {
            let pick = |i: i64| usize::try_from(i).ok().and_then(|i| elements.get(i).cloned());
            if open(fact)
                && moved.len() <= MAX_KNOWN
                && let Some(known) = moved.to_i64()?.into_iter().map(pick).collect::<Option<Vec<_>>>()
            {
                fact.known = if fact.dtype.is_float() {
                    Known::Quotients(known)
                } else {
                    Known::Dims(known.into_iter().map(|q| q.num).collect())
                };
            }
        }
    }
    for fact in facts {
        if let Known::Dims(elements) = &fact.known
            && let Some(numbers) = elements.iter().map(Dim::as_const).collect::<Option<Vec<_>>>()
            && let Some(shape) = fact.shape.as_fixed()
        {
            fact.known = Known::Const(Arc::new(HostTensor::from_ints(fact.dtype, &shape, &numbers)?));
        }
    }
    Ok(())
}

/// The operands with their moved elements replaced by positions in the returned list;
/// position 0 is the number 0. `None` if an element is unknown.
#[expect(clippy::type_complexity, reason = "two lists, used in one place")]
fn positions(
    op: &dyn Op,
    inputs: &[Option<&Fact>],
) -> OpResult<Option<(Vec<Option<HostTensor>>, Vec<Quotient>)>> {
    let mut elements = vec![Quotient::whole(0.into())];
    let mut operands = Vec::with_capacity(inputs.len());
    for (i, fact) in inputs.iter().enumerate() {
        let Some(fact) = fact else {
            operands.push(None);
            continue;
        };
        let moves = op.moves(i);
        if let (false, Some(tensor)) = (moves, fact.as_const()) {
            operands.push(Some(tensor.as_ref().clone()));
            continue;
        }
        let known = if fact.dtype.is_float() {
            fact.as_quotients()
        } else {
            fact.as_dims()
                .map(|d| d.into_iter().map(Quotient::whole).collect())
        };
        let (Some(known), Some(shape)) = (known, fact.shape.as_fixed()) else {
            return Ok(None);
        };
        operands.push(Some(if moves {
            let first = num::signed(elements.len());
            let at: Vec<i64> = (first..).take(known.len()).collect();
            elements.extend(known);
            HostTensor::from_i64(&shape, &at)?
        } else {
            let numbers = known.iter().map(|q| q.num.as_const().filter(|_| q.den == 1));
            let Some(numbers) = numbers
                .collect::<Option<Vec<_>>>()
                .filter(|_| !fact.dtype.is_float())
            else {
                return Ok(None);
            };
            HostTensor::from_ints(fact.dtype, &shape, &numbers)?
        }));
    }
    Ok(if elements.len() > 1 {
        Some((operands, elements))
    } else {
        None
    })
}

struct DerivedNode {
    facts: Vec<Fact>,
    made: Vec<DataDependentDim>,
    assumed: Vec<Assumption>,
}

fn infer(graph: &Graph, id: NodeId) -> Result<DerivedNode> {
    let Some(node) = graph.node(id) else {
        return Ok(DerivedNode {
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
        f.shape
            .as_fixed()
            .is_some_and(|s| count(&s).is_ok_and(|n| n.saturating_mul(f.dtype.size()) <= FOLD_BYTES))
    });
    if constant && let Some(nothing) = nothing(&facts) {
        for (fact, tensor) in facts.iter_mut().zip(nothing) {
            fact.known = Known::Const(Arc::new(tensor));
        }
    } else if constant && small && !node.op.runs_graphs() {
        let tensors: Vec<_> = inputs
            .iter()
            .map(|f| f.and_then(|f| f.as_const()).map(Arc::as_ref))
            .collect();
        match node.op.run(&tensors) {
            Ok(results) => {
                for (fact, tensor) in facts.iter_mut().zip(results) {
                    fact.known = Known::Const(Arc::new(tensor));
                }
            }
            // Results of weights that are not loaded are constants too, so the graph is that of the
            // whole model.
            Err(OpError::Tensor(TensorError::Absent(_))) => {
                for (fact, out) in facts.iter_mut().zip(&node.outputs) {
                    fact.known = Known::Const(Arc::new(absent(graph, *out, fact)?));
                }
            }
            Err(e) => return Err(graph.node_error(Stage::Shape, node, e)),
        }
    } else {
        follow(node.op.as_ref(), &inputs, &mut facts).map_err(|e| graph.node_error(Stage::Shape, node, e))?;
    }
    Ok(DerivedNode { facts, made, assumed })
}
