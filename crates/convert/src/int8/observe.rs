//! Runs a graph over the calibration set and observes its values.

use super::equalize::{ChannelStats, Stream};
use super::products::{FloatProduct, tensor_of};
use super::ranges::{Observer, RangeMethod};
use super::refused::Refused;
use super::{CalibrationSet, Open, Step, Tell};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use transformer_lite::unstable::cancel::Cancel;
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::graph::op::Op;
use transformer_lite::unstable::graph::op::gemm::Gemm;
use transformer_lite::unstable::graph::op::pointwise::{Binary, Pointwise};
use transformer_lite::unstable::graph::quantization::{LayerKind, Placement};
use transformer_lite::unstable::graph::{Edit, Graph, Node, ValueId, derive};
use transformer_lite::unstable::runner::{Named, Runner, RunnerOptions};
use transformer_lite::unstable::tensor::HostTensor;

/// The graph with these weights and biases. Values keep their ids.
pub(super) fn with_products(
    graph: &Graph,
    placement: &Placement,
    products: &[Option<FloatProduct>],
) -> Result<Graph> {
    let mut out = graph.clone();
    let mut edit = Edit::new(&mut out);
    for (layer, product) in placement.layers.iter().zip(products) {
        let (LayerKind::Product(parts), Some(product)) = (&layer.kind, product) else {
            continue;
        };
        let Some(id) = layer.nodes.first().copied() else {
            continue;
        };
        let Some(node) = graph.node(id).cloned() else {
            continue;
        };
        let Some(x) = node.inputs.first().copied().flatten() else {
            continue;
        };
        let name = |part: &str| format!("{}/{part}", node.name);
        let w = edit.add_const(&name("weights"), Arc::new(product.tensor()?));
        let bias = match &product.bias {
            None => None,
            Some(b) => Some(edit.add_const(&name("bias"), Arc::new(tensor_of(&[b.len()], b)?))),
        };
        // The last node replaces all of them; the others are no longer read.
        let last = parts.norm.or(parts.add.map(|a| a.0)).unwrap_or(id);
        let (op, mut inputs) = (plain(&node), vec![Some(x), Some(w)]);
        if node.op.name() != "MatMul" {
            inputs.extend(bias.map(Some));
            edit.replace_node(last, op, inputs, node.origin.clone());
        } else if last == id {
            edit.replace_node(id, op, inputs, node.origin.clone());
        } else {
            let sum = edit.add_value(&name("sum"), None);
            edit.add_node(&name("product"), node.origin.clone(), op, inputs, vec![sum]);
            let add = Box::new(Pointwise::binary("Add", Binary::Add));
            edit.replace_node(last, add, vec![Some(sum), bias], node.origin.clone());
        }
    }
    edit.remove_dead();
    derive::derive(&mut out)?;
    Ok(out)
}

/// The operator of a product without what is folded into its weights.
fn plain(node: &Node) -> Box<dyn Op> {
    match node.op.downcast::<Gemm>() {
        Some(gemm) => Box::new(Gemm {
            alpha: 1.0,
            beta: 1.0,
            ..*gemm
        }),
        None => node.op.clone(),
    }
}

/// A model that also returns intermediate values.
pub(super) struct Watched {
    runner: Runner,
    /// Names of the graph inputs that are watched.
    inputs: Vec<String>,
}

/// Watched values of a run, by name.
pub(super) type Seen = HashMap<String, HostTensor>;

impl Watched {
    /// Loads `graph` to watch the values with these names.
    pub fn new(mut graph: Graph, names: &[String], open: &Open<'_>) -> Result<Self> {
        let mut inputs = Vec::new();
        let mut edit = Edit::new(&mut graph);
        for name in names {
            let Some(v) = edit.find(name) else {
                let what = format!("value \"{name}\" is missing");
                return Err(Error::internal(Stage::Quantize, what));
            };
            if edit.is_input(v) {
                inputs.push(name.clone());
            } else if !edit.is_output(v) {
                edit.add_output(v);
            }
        }
        let options = RunnerOptions {
            limits: open.limits.clone(),
            ..RunnerOptions::default()
        };
        Ok(Self {
            runner: Runner::of(graph, (open.backend)()?, &options)?,
            inputs,
        })
    }

    /// Runs item `i`.
    pub fn run(&mut self, set: &CalibrationSet<'_>, i: usize) -> Result<Seen> {
        let item = (set.read)(i)?;
        let failed = |e: Error| {
            let kind = e.kind();
            let what = format!("calibration item {}", set.name(i));
            Error::caused(Stage::Quantize, what, e).of_kind(kind)
        };
        self.runner.check(&item).map_err(failed)?;
        let found = self.runner.run(&item, &Cancel::default()).map_err(failed)?;
        let mut seen: Seen = found.into_iter().collect();
        seen.extend(item.into_iter().filter(|(name, _)| self.inputs.contains(name)));
        Ok(seen)
    }
}

/// Runs the whole set and observes each range that is not fixed.
pub(super) fn observe(
    graph: &Graph,
    placement: &Placement,
    method: RangeMethod,
    set: &CalibrationSet<'_>,
    open: &Open<'_>,
    tell: Tell<'_>,
) -> Result<Vec<Option<Observer>>> {
    let constant = |v: &ValueId| {
        graph
            .value(*v)
            .fact
            .as_ref()
            .is_some_and(|f| f.as_const().is_some())
    };
    let wanted = || {
        placement
            .ranges
            .iter()
            .enumerate()
            .filter(|(_, r)| r.fixed.is_none())
    };
    let sources = wanted().flat_map(|(_, r)| &r.sources).filter(|v| !constant(v));
    let mut names: Vec<String> = sources.map(|v| graph.value(*v).name.clone()).collect();
    names.sort();
    names.dedup();
    let mut watched = Watched::new(graph.clone(), &names, open)?;
    let mut ranges: Vec<Option<Observer>> = vec![None; placement.ranges.len()];
    for i in 0..set.names.len() {
        tell(Step::Calibrate, i, set.names.len());
        let seen = watched.run(set, i)?;
        for (index, range) in wanted() {
            if let Some(observer) = ranges.get_mut(index) {
                let observer = observer.get_or_insert_with(|| Observer::new(method));
                add(graph, &range.sources, observer, &seen, &|| set.name(i))?;
            }
        }
    }
    Ok(ranges)
}

/// Statistics of the channels (axis 1) of each value of each stream.
pub(super) fn channel_stats(
    graph: &Graph,
    streams: &[Stream],
    set: &CalibrationSet<'_>,
    open: &Open<'_>,
    tell: Tell<'_>,
) -> Result<Vec<Vec<ChannelStats>>> {
    let name = |v: &ValueId| graph.value(*v).name.clone();
    let names: Vec<String> = streams.iter().flat_map(|s| s.values.iter().map(name)).collect();
    let mut watched = Watched::new(graph.clone(), &names, open)?;
    let new = |s: &Stream| vec![ChannelStats::new(s.channels); s.values.len()];
    let mut stats: Vec<Vec<ChannelStats>> = streams.iter().map(new).collect();
    for i in 0..set.names.len() {
        tell(Step::Equalize, i, set.names.len());
        let seen = watched.run(set, i)?;
        for (stream, all) in streams.iter().zip(&mut stats) {
            for (v, stats) in stream.values.iter().zip(all) {
                if let Some(tensor) = seen.get(&name(v)) {
                    let inner = tensor.shape().iter().skip(2).product::<usize>().max(1);
                    stats.add(&floats(tensor, &name(v))?, inner);
                }
            }
        }
    }
    Ok(stats)
}

/// Adds the values of a run to the observer of a range.
fn add(
    graph: &Graph,
    sources: &[ValueId],
    observer: &mut Observer,
    seen: &Seen,
    item: &dyn Fn() -> String,
) -> Result<()> {
    let mut tensors = Vec::new();
    for v in sources {
        let value = graph.value(*v);
        let constant = value.fact.as_ref().and_then(|f| f.as_const()).map(Arc::as_ref);
        if let Some(tensor) = constant.or_else(|| seen.get(&value.name)) {
            tensors.push((*v, floats(tensor, &value.name)?));
        }
    }
    let slices: Vec<&[f32]> = tensors.iter().map(|(_, t)| t.as_ref()).collect();
    observer.add(&slices).map_err(|found| {
        let holds = |t: &[f32]| t.iter().any(|x| !x.is_finite());
        let value = tensors.iter().find(|(_, t)| holds(t)).map(|(v, _)| *v);
        let Some(value) = value.or(sources.first().copied()) else {
            return Error::internal(Stage::Quantize, "a range without values");
        };
        Refused::NotFinite {
            value: graph.value(value).name.clone(),
            found,
            place: format!("calibration item {}", item()),
        }
        .of(graph, value)
    })
}

/// The elements of a value.
pub(super) fn floats<'t>(tensor: &'t HostTensor, name: &str) -> Result<std::borrow::Cow<'t, [f32]>> {
    let read = tensor.to_f32();
    read.map_err(|e| Error::caused(Stage::Quantize, format!("value \"{name}\""), e))
}

/// Fails if the set is empty, or if each float input has the same value throughout. Items that are
/// read for this must have the element types of their inputs.
pub(super) fn check_set(graph: &Graph, set: &CalibrationSet<'_>) -> Result<()> {
    if set.names.is_empty() {
        return Err(Error::usage("--calibration", "the calibration set is empty"));
    }
    let mut extremes: BTreeMap<String, (f32, f32)> = BTreeMap::new();
    for i in 0..set.names.len() {
        for (name, tensor) in (set.read)(i)? {
            let expected = graph.input(&name).and_then(|v| graph.fact(v).ok());
            if let Some(fact) = expected.filter(|f| f.dtype != tensor.dtype()) {
                let what = format!(
                    "{}: input \"{name}\": expected elements of type {}, found {}",
                    set.name(i),
                    fact.dtype,
                    tensor.dtype()
                );
                return Err(Error::usage("--calibration", what));
            }
            if !tensor.dtype().is_float() {
                continue;
            }
            let range = extremes
                .entry(name.clone())
                .or_insert((f32::INFINITY, f32::NEG_INFINITY));
            for v in floats(&tensor, &name)?.iter() {
                *range = (range.0.min(*v), range.1.max(*v));
            }
        }
        extremes.retain(|name, _| graph.input(name).is_some());
        // Usually the first item shows that values differ.
        if extremes.is_empty() || extremes.values().any(|(low, high)| low < high) {
            return Ok(());
        }
    }
    // An input of NaN alone is refused with its range.
    let Some((name, (value, _))) = extremes.iter().find(|(_, (low, _))| low.is_finite()) else {
        return Ok(());
    };
    let what = format!(
        "input \"{name}\" is {value} throughout the calibration set; give items that resemble real inputs"
    );
    Err(Error::usage("--calibration", what))
}

/// [`Named`] tensors of an item.
pub type Item = Vec<Named>;
