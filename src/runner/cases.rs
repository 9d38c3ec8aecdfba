//! Specialization of plans to the sizes of a run.
//!
//! One plan serves all sizes if shapes can be derived symbolically. Otherwise, derivation assumes
//! the likely case or fails: two symbols meet on a broadcast axis; a size decides an `If`; the
//! weights of a convolution are an input. A run that breaks the assumptions gets a plan for the
//! most general [`Case`] that holds.

use super::{Named, device, named};
use crate::error::{Error, ErrorKind, Result, Stage};
use crate::graph::op::OpError;
use crate::graph::{Edit, Graph, ValueId};
use crate::num;
use crate::plan::bind;
use crate::shape::{Bindings, Dim, Fact, Shape};
use crate::tensor::HostTensor;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Inputs with at most this many elements can get a plan for their values.
pub(super) const MAX_ELEMENTS: usize = 64;

/// What a plan takes for granted, from the most general on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Case {
    /// The assumptions of its shapes.
    Any,
    /// Also which sizes are 0, which are 1 and which are larger. This decides broadcasts.
    Ones,
    /// All sizes.
    Sizes,
    /// All sizes, and the values of small inputs: integers, truth values and scalars.
    Values,
    /// Shapes are known only while the model runs: the interpreter runs it without a plan.
    Run,
}

impl Case {
    pub const ALL: [Self; 5] = [Self::Any, Self::Ones, Self::Sizes, Self::Values, Self::Run];
}

/// A case with the sizes and values that a plan takes for granted.
#[derive(Clone, Debug)]
pub(super) struct Granted {
    pub case: Case,
    sizes: Vec<Vec<usize>>,
    values: Vec<Named>,
}

impl Granted {
    /// What `case` takes for granted of a run with these inputs of `model`. `values` are inputs
    /// whose values belong to the case [`Case::Values`].
    pub fn of(case: Case, model: &Graph, given: &[Named], values: &[String]) -> Self {
        let size = |n: &usize| if case == Case::Ones { *n.min(&2) } else { *n };
        let sizes = |v: &ValueId| {
            let tensor = named(given, &model.value(*v).name);
            tensor
                .map(|t| t.shape().iter().map(size).collect())
                .unwrap_or_default()
        };
        let sizes = match case {
            Case::Any => Vec::new(),
            _ => model.inputs().iter().map(sizes).collect(),
        };
        let values = given.iter().filter(|(name, _)| {
            let replaced = |v: &ValueId| model.value(*v).name == *name;
            case == Case::Values && values.contains(name) || model.defaults().iter().any(replaced)
        });
        Self {
            case,
            sizes,
            values: values.cloned().collect(),
        }
    }

    /// Names of the inputs whose values it has.
    pub fn names(&self) -> Vec<String> {
        self.values.iter().map(|(name, _)| name.clone()).collect()
    }

    /// True if a plan for this serves runs for which `other` holds.
    pub fn is(&self, other: &Self) -> bool {
        self.case == other.case
            && self.sizes == other.sizes
            && self.values.len() == other.values.len()
            && self
                .values
                .iter()
                .zip(&other.values)
                .all(|((a, x), (b, y))| a == b && same(x, y))
    }

    /// `model`, before any pass, with what is taken for granted.
    pub fn applied(&self, model: &Graph, given: &[Named]) -> Result<Graph> {
        let mut graph = model.clone();
        if self.case == Case::Ones {
            ones(&mut graph, &solved(model, given)?)?;
        }
        let inputs = match self.case {
            Case::Any | Case::Ones => &[],
            Case::Sizes | Case::Values | Case::Run => model.inputs(),
        };
        let mut edit = Edit::new(&mut graph);
        for v in inputs {
            if let Some(t) = named(given, &model.value(*v).name) {
                edit.set_fact(*v, Fact::new(t.dtype(), Shape::fixed(t.shape())));
            }
        }
        for (name, tensor) in &self.values {
            if let Some(v) = model.find(name) {
                edit.set_fact(v, Fact::of(Arc::new(tensor.clone())));
            }
        }
        Ok(graph)
    }
}

pub(super) fn same(a: &HostTensor, b: &HostTensor) -> bool {
    a.dtype() == b.dtype() && a.shape() == b.shape() && a.bytes().ok() == b.bytes().ok()
}

/// Names of the small inputs whose values decide shapes; `model` has the sizes of the run. If
/// derivation finds none, all small integer and boolean inputs and scalars.
pub(super) fn deciding(model: &Graph, given: &[Named]) -> Vec<String> {
    let found = device::deciding(&device::derived(model));
    if !found.is_empty() {
        return found.iter().map(|v| model.value(*v).name.clone()).collect();
    }
    let is_small = |t: &HostTensor| t.len() <= if t.dtype().is_float() { 1 } else { MAX_ELEMENTS };
    let small = given.iter().filter(|(_, t)| is_small(t));
    small.map(|(name, _)| name.clone()).collect()
}

/// Fixes the symbols that are 0 or 1; all others are 2 or more.
fn ones(graph: &mut Graph, bindings: &Bindings) -> Result<()> {
    let bad = |e: &dyn std::fmt::Display| Error::other(Stage::Shape, e.to_string());
    let mut constraints = graph.constraints().clone();
    let mut fixed = BTreeMap::new();
    for (symbol, value) in bindings.iter() {
        if value < 2 {
            fixed.insert(symbol.clone(), Dim::from(value));
        } else {
            constraints.bound(symbol, Some(2), None).map_err(|e| bad(&e))?;
        }
    }
    let mut edit = Edit::new(graph);
    edit.replace_symbols(&fixed).map_err(|e| bad(&e))?;
    edit.set_constraints(constraints);
    Ok(())
}

/// The shapes of inputs with the tensors for them.
fn shapes<'a>(
    graph: &'a Graph,
    given: &'a [Named],
) -> impl Iterator<Item = (&'a str, &'a Shape, &'a [usize])> {
    graph.inputs().iter().filter_map(|v| {
        let value = graph.value(*v);
        let fact = value.fact.as_ref()?;
        Some((
            value.name.as_str(),
            &fact.shape,
            named(given, &value.name)?.shape(),
        ))
    })
}

/// The values of the symbols of `graph` in a run; an error if inputs contradict each other.
pub(super) fn solved(graph: &Graph, given: &[Named]) -> Result<Bindings> {
    bind::solve(shapes(graph, given))
}

/// True if the constraints of the symbols and the assumptions of the derived shapes hold.
pub(super) fn holds(graph: &Graph, bindings: &Bindings) -> bool {
    graph.constraints().check(bindings).is_ok()
        && graph.assumptions().iter().all(|a| {
            let value = a.assumed.dim.substitute(bindings).ok().and_then(|d| d.as_const());
            value.is_none_or(|v| v == 0 || v > 0 && !a.assumed.equal)
        })
}

/// An axis of an input whose name does not determine its size.
pub(super) struct Misnamed {
    input: ValueId,
    axis: usize,
    /// Whether its size contradicts another axis, rather than only being open.
    contradicts: bool,
}

/// Input axes whose sizes contradict the dimension names, or that the names do not determine.
pub(super) fn misnamed(model: &Graph, given: &[Named]) -> Vec<Misnamed> {
    let values = bind::values(&shapes(model, given).collect::<Vec<_>>());
    let sizes = |name: &Dim| {
        let all = shapes(model, given).flat_map(|(_, shape, sizes)| shape.0.iter().zip(sizes));
        all.filter(|(dim, _)| *dim == name)
            .map(|(_, n)| *n)
            .collect::<BTreeSet<_>>()
    };
    let mut found = Vec::new();
    for v in model.inputs() {
        let value = model.value(*v);
        let (Some(fact), Some(tensor)) = (&value.fact, named(given, &value.name)) else {
            continue;
        };
        for (axis, (dim, n)) in fact.shape.0.iter().zip(tensor.shape()).enumerate() {
            let size = dim.eval(&values).ok();
            if size != Some(num::signed(*n)) && dim.as_const().is_none() {
                found.push(Misnamed {
                    input: *v,
                    axis,
                    contradicts: size.is_some() || sizes(dim).len() > 1,
                });
            }
        }
    }
    found
}

/// The model with a symbol of its own for each of these axes, and the names of those that
/// contradict others.
pub(super) fn renamed(model: &Graph, axes: &[Misnamed]) -> (Graph, Vec<String>) {
    let mut graph = model.clone();
    let mut names = BTreeSet::new();
    for Misnamed {
        input: v,
        axis,
        contradicts,
    } in axes
    {
        let value = model.value(*v);
        let fact = graph.values[v.index()].fact.as_mut();
        if let Some(dim) = fact.and_then(|f| f.shape.0.get_mut(*axis)) {
            if *contradicts {
                names.insert(format!("`{dim}`"));
            }
            *dim = Dim::symbol(&format!("{}_{axis}", value.name));
        }
    }
    (graph, names.into_iter().collect())
}

/// True if a run can add shape information: an input without a rank or fixed sizes, or a small
/// one.
pub(super) fn is_open(model: &Graph) -> bool {
    let small = |f: &Fact| {
        let sizes = f.shape.as_fixed();
        let count = sizes.and_then(|s| s.iter().try_fold(1usize, |n, d| n.checked_mul(*d)));
        count.is_none_or(|n| n <= if f.dtype.is_float() { 1 } else { MAX_ELEMENTS })
    };
    let facts = model
        .inputs()
        .iter()
        .filter_map(|v| model.value(*v).fact.as_ref());
    !model.unranked().is_empty() || facts.into_iter().any(small)
}

/// True for a size mismatch that no run can resolve.
pub(super) fn is_mismatch(e: &Error) -> bool {
    let Error::Node { source, .. } = e else {
        return false;
    };
    matches!(source.downcast_ref::<OpError>(), Some(OpError::Mismatch { .. }))
}

/// True for an error of shapes or kernels that may vanish once more sizes or values are known.
pub(super) fn may_pass(e: &Error) -> bool {
    let (Error::Node { stage, .. } | Error::Other { stage, .. }) = e else {
        return false;
    };
    let limits = [
        ErrorKind::LimitExceeded,
        ErrorKind::Interrupted,
        ErrorKind::Internal,
    ];
    matches!(stage, Stage::Shape | Stage::Plan) && !limits.contains(&e.kind()) && !is_mismatch(e)
}
