//! Runs the float model and the quantized one side by side over the calibration set, node by node,
//! and rounds the weights of each product when it is reached. Weights and biases can then make up
//! for the errors of all layers before them.

use super::observe::floats;
use super::products::{FloatProduct, IntProduct, tensor_of};
use super::ranges::{LEAST, MOST};
use super::rounding::{Layout, Moments};
use super::walk::{Live, Stop, Walk};
use super::{CalibrationSet, Options, Step, Tell};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use transformer_lite::unstable::error::{Result, Stage};
use transformer_lite::unstable::graph::interp::compute;
use transformer_lite::unstable::graph::quantization::{LayerKind, Placement};
use transformer_lite::unstable::graph::{Graph, Node, NodeId, ValueId};
use transformer_lite::unstable::quant::fixed::Affine;
use transformer_lite::unstable::tensor::HostTensor;

/// What is quantized, and how.
pub(super) struct Plan<'a> {
    /// The source, and the same with normalization folded in.
    pub graph: &'a Graph,
    pub folded: &'a Graph,
    pub placement: &'a Placement,
    pub floats: &'a [Option<FloatProduct>],
    /// The parameters of each range.
    pub ranges: &'a [Affine],
    pub options: &'a Options,
}

impl Plan<'_> {
    /// The integers of all products.
    pub fn products(&self, set: &CalibrationSet<'_>, tell: Tell<'_>) -> Result<Vec<Option<IntProduct>>> {
        let options = self.options;
        if options.compensate || options.correct_bias {
            return Sequence::new(self, set)?.run(tell);
        }
        (0..self.floats.len()).map(|i| self.nearest(i)).collect()
    }

    /// The product of a layer with its weights rounded to nearest.
    fn nearest(&self, layer: usize) -> Result<Option<IntProduct>> {
        let Some((node, float, input)) = self.parts(layer) else {
            return Ok(None);
        };
        IntProduct::of(node, float, input, self.options.per_tensor).map(Some)
    }

    /// The first node of a product's layer, the product, and the parameters of its input.
    fn parts(&self, layer: usize) -> Option<(&Node, &FloatProduct, Affine)> {
        let float = self.floats.get(layer)?.as_ref()?;
        let layer = self.placement.layers.get(layer)?;
        let node = self.graph.node(*layer.nodes.first()?)?;
        Some((node, float, self.affine(*layer.inputs.first()?)?))
    }

    fn affine(&self, v: ValueId) -> Option<Affine> {
        self.ranges.get(self.placement.range_of(v)?).copied()
    }

    /// For each product, the node of the folded graph that computes it without a bias that is added
    /// afterwards.
    fn product_nodes(&self) -> HashMap<NodeId, usize> {
        let mut found = HashMap::new();
        for (i, layer) in self.placement.layers.iter().enumerate() {
            let (LayerKind::Product(parts), Some(Some(_))) = (&layer.kind, self.floats.get(i)) else {
                continue;
            };
            let first = layer.nodes.first().copied();
            let Some(last) = parts.norm.or(parts.add.map(|a| a.0)).or(first) else {
                continue;
            };
            let sum = self.folded.node(last).filter(|n| n.op.name() == "Add");
            let product = sum.and_then(|n| self.folded.producer(n.inputs.first().copied().flatten()?));
            found.insert(product.map_or(last, |(id, _)| id), i);
        }
        found
    }
}

/// The state between two nodes.
struct Sequence<'a> {
    plan: &'a Plan<'a>,
    walk: Walk<'a>,
    /// Values of each item in the float model, and in the quantized one.
    items: Vec<(Live, Live)>,
    products: HashMap<NodeId, usize>,
    /// Nodes whose operands are quantized.
    layers: HashSet<NodeId>,
    made: Vec<Option<IntProduct>>,
}

impl<'a> Sequence<'a> {
    fn new(plan: &'a Plan<'a>, set: &CalibrationSet<'_>) -> Result<Self> {
        let walk = Walk::new(plan.folded)?;
        let items = walk.items(set)?;
        let products = plan.product_nodes();
        let nodes = plan.placement.layers.iter().flat_map(|l| &l.nodes);
        Ok(Self {
            plan,
            walk,
            items: items.into_iter().map(|live| (live.clone(), live)).collect(),
            layers: nodes.chain(products.keys()).copied().collect(),
            made: vec![None; plan.floats.len()],
            products,
        })
    }

    fn run(mut self, tell: Tell<'_>) -> Result<Vec<Option<IntProduct>>> {
        let stops = std::mem::take(&mut self.walk.stops);
        for (i, stop) in stops.iter().enumerate() {
            tell(Step::Round, i, stops.len());
            for (live, _) in &mut self.items {
                let found = self.walk.results(stop.node, live)?;
                live.extend(stop.node.outputs.iter().copied().zip(found));
            }
            let layer = self.products.get(&stop.id).copied();
            let weights = match layer {
                Some(layer) => self.rounded(stop, layer)?,
                None => None,
            };
            self.compute(stop, weights.as_ref())?;
            if let (Some(layer), Some(_)) = (layer, &weights) {
                self.correct(stop, layer)?;
            }
            self.quantize_results(stop)?;
            for (float, quantized) in &mut self.items {
                float.retain(|v, _| !stop.done.contains(v));
                quantized.retain(|v, _| !stop.done.contains(v));
            }
        }
        Ok(self.made)
    }

    /// An operand in the quantized model. Operands of layers that no layer computes, such as inputs
    /// of the graph, are quantized here.
    fn operand<'t>(&'t self, stop: &Stop<'_>, live: &'t Live, v: ValueId) -> Result<Cow<'t, HostTensor>> {
        let found = self.walk.value(live, v)?;
        match self.plan.affine(v) {
            Some(affine) if self.layers.contains(&stop.id) && !self.plan.placement.is_computed(v) => {
                Ok(Cow::Owned(requantized(found, affine)?))
            }
            _ => Ok(Cow::Borrowed(found)),
        }
    }

    /// Computes the results of a node in the quantized model. `weights` replaces the second
    /// operand.
    fn compute(&mut self, stop: &Stop<'_>, weights: Option<&HostTensor>) -> Result<()> {
        let mut found = Vec::with_capacity(self.items.len());
        for (_, live) in &self.items {
            let operand = |v: &Option<ValueId>| v.map(|v| self.operand(stop, live, v)).transpose();
            let operands = stop.node.inputs.iter().map(operand).collect::<Result<Vec<_>>>()?;
            let mut operands: Vec<Option<&HostTensor>> = operands.iter().map(Option::as_deref).collect();
            if let (Some(w), Some(place)) = (weights, operands.get_mut(1)) {
                *place = Some(w);
            }
            found.push(compute(stop.node, &operands, Stage::Quantize)?);
        }
        for ((_, live), found) in self.items.iter_mut().zip(found) {
            live.extend(stop.node.outputs.iter().copied().zip(found));
        }
        Ok(())
    }

    /// Quantizes the results of a layer.
    fn quantize_results(&mut self, stop: &Stop<'_>) -> Result<()> {
        for v in &stop.node.outputs {
            let (Some(affine), true) = (self.plan.affine(*v), self.plan.placement.is_computed(*v)) else {
                continue;
            };
            for tensor in self.items.iter_mut().filter_map(|(_, live)| live.get_mut(v)) {
                *tensor = requantized(tensor, affine)?;
            }
        }
        Ok(())
    }

    /// Rounds the weights of a product; returns the rounded ones.
    fn rounded(&mut self, stop: &Stop<'_>, layer: usize) -> Result<Option<HostTensor>> {
        let Some((node, float, input)) = self.plan.parts(layer) else {
            return Ok(None);
        };
        let mut int = IntProduct::of(node, float, input, self.plan.options.per_tensor)?;
        if self.plan.options.compensate {
            let op = stop.node;
            let (Some(x), Some(y)) = (op.inputs.first().copied().flatten(), op.outputs.first()) else {
                return Ok(None);
            };
            let mut moments = Moments::of(op, float, self.plan.options.correct_bias);
            for (i, (exact, quantized)) in self.items.iter().enumerate() {
                if let Some(m) = &mut moments {
                    let (float, x) = (self.walk.value(exact, x)?, self.operand(stop, quantized, x)?);
                    m.add((i, self.items.len()), [float, &x], self.walk.value(exact, *y)?)?;
                }
            }
            if let Some(moments) = &mut moments {
                moments.finish();
                let refitted = moments.refitted(float);
                let float = refitted.as_ref().unwrap_or(float);
                int = IntProduct::of(node, float, input, self.plan.options.per_tensor)?;
                if let Some(codes) = moments.integers(float, &int) {
                    int.codes = codes;
                    int.compensated = true;
                }
            }
        }
        let weights = tensor_of(&float.form.shape, &int.dequantized(&float.form))?;
        if let Some(place) = self.made.get_mut(layer) {
            *place = Some(int);
        }
        Ok(Some(weights))
    }

    /// Subtracts the mean error of each channel of a product from its bias.
    fn correct(&mut self, stop: &Stop<'_>, layer: usize) -> Result<()> {
        let Some((node, float, input)) = self.plan.parts(layer) else {
            return Ok(());
        };
        let Some(y) = stop.node.outputs.first().copied() else {
            return Ok(());
        };
        let convolves = float.form.convolves;
        let mut sums = vec![0f64; float.form.channels];
        let mut total = 0.0;
        let pairs = self
            .items
            .iter()
            .filter_map(|(f, q)| Some((f.get(&y)?, q.get(&y)?)));
        for (exact, quantized) in pairs.filter(|_| self.plan.options.correct_bias) {
            let layout = Layout::of(exact.shape(), convolves);
            let (exact, quantized) = (floats(exact, &node.name)?, floats(quantized, &node.name)?);
            let weights = layout.weights(&exact);
            total += weights.iter().sum::<f64>();
            for (at, (e, q)) in exact.iter().zip(quantized.iter()).enumerate() {
                let (channel, position) = layout.place(at);
                if let (Some(s), Some(w)) = (sums.get_mut(channel), weights.get(position)) {
                    *s += w * (f64::from(*q) - f64::from(*e));
                }
            }
        }
        let mut corrected = float.clone();
        if total > 0.0 {
            #[expect(clippy::cast_possible_truncation, reason = "rounding is meant")]
            let shift: Vec<f32> = sums.iter().map(|s| (s / total) as f32).collect();
            let bias = corrected.bias.get_or_insert_with(|| vec![0.0; shift.len()]);
            bias.iter_mut().zip(&shift).for_each(|(b, s)| *b -= s);
            for quantized in self.items.iter_mut().filter_map(|(_, q)| q.get_mut(&y)) {
                let layout = Layout::of(quantized.shape(), convolves);
                let mut values = floats(quantized, &node.name)?.into_owned();
                for (at, v) in values.iter_mut().enumerate() {
                    *v -= shift.get(layout.place(at).0).copied().unwrap_or_default();
                }
                *quantized = tensor_of(quantized.shape(), &values)?;
            }
        }
        if let Some(Some(int)) = self.made.get_mut(layer) {
            int.set_bias(node, &corrected, input)?;
        }
        Ok(())
    }
}

/// The quantized tensor as its readers see it, dequantized.
pub(super) fn requantized(tensor: &HostTensor, affine: Affine) -> Result<HostTensor> {
    #[expect(clippy::cast_precision_loss, reason = "of 9 bits")]
    let (least, most) = ((LEAST - affine.zero) as f32, (MOST - affine.zero) as f32);
    let scale = affine.scale;
    let values = floats(tensor, "")?;
    let round = |v: &f32| (v / scale).round_ties_even().clamp(least, most) * scale;
    tensor_of(tensor.shape(), &values.iter().map(round).collect::<Vec<_>>())
}
