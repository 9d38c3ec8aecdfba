//! Equalization of channels between products, which does not change the function of the model.
//!
//! If each channel of a product's result is divided by a positive number, and the weights of all
//! readers of that channel are multiplied by it, nothing changes: `Relu`, sums and pools commute
//! with the division. Values that must have the same divisors form a [`Stream`]: a tensor
//! between two convolutions, or all tensors along residual connections.
//!
//! * Weights with one scale per output channel: each channel is divided by the square root of the
//!   range of its activations, so that all channels make better use of the 8 bits of their common
//!   scale.
//! * Weights with one scale: the divisors make the weights of all channels similar, as in Nagel et
//!   al., *Data-Free Quantization Through Weight Equalization and Bias Correction* (2019).

use super::products::FloatProduct;
use std::collections::{BTreeMap, HashMap, HashSet};
use transformer_lite::unstable::graph::op::gemm::Gemm;
use transformer_lite::unstable::graph::quantization::{Layer, LayerKind, Placement};
use transformer_lite::unstable::graph::{Graph, NodeId, ValueId};

/// Divisors of a channel are at least this, relative to the largest one.
const LEAST: f64 = 1e-3;
/// Number of rounds in which the divisors of weights settle.
const ROUNDS: usize = 20;

/// Values with common divisors of their channels, at axis 1.
#[derive(Clone, Debug, Default)]
pub(super) struct Stream {
    pub values: Vec<ValueId>,
    /// Layers whose products compute and read the values.
    producers: Vec<usize>,
    readers: Vec<usize>,
    pub channels: usize,
}

/// What a layer does to the channels of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Part {
    /// It reads or computes channels as a product.
    Product,
    /// Channels of operands and results belong together.
    Link,
    Other,
}

fn part(graph: &Graph, layer: &Layer, product: Option<&FloatProduct>) -> Part {
    let ops = || layer.nodes.iter().filter_map(|id| graph.node(*id));
    let first = ops().next();
    match &layer.kind {
        LayerKind::Product(_) if product.is_some_and(|p| p.form.convolves) => Part::Product,
        LayerKind::Product(_) if product.is_some() => {
            let gemm = first.and_then(|n| n.op.downcast::<Gemm>());
            if gemm.is_some_and(|g| !g.trans_a) {
                Part::Product
            } else {
                Part::Other
            }
        }
        LayerKind::Binary => {
            let linear = ops().all(|n| matches!(n.op.name(), "Add" | "Sub" | "Sum" | "Relu"));
            if linear { Part::Link } else { Part::Other }
        }
        LayerKind::Mean | LayerKind::Move => match first.map(|n| n.op.name()) {
            Some("AveragePool" | "GlobalAveragePool" | "MaxPool" | "GlobalMaxPool") => Part::Link,
            Some("Flatten" | "Reshape" | "Squeeze") if keeps_channels(graph, layer) => Part::Link,
            _ => Part::Other,
        },
        _ => Part::Other,
    }
}

/// True if a layer that reshapes does not move elements to other channels: if the first two axes
/// keep their sizes.
fn keeps_channels(graph: &Graph, layer: &Layer) -> bool {
    let first_two = |values: &[ValueId]| {
        let fact = graph.value(*values.first()?).fact.as_ref()?;
        fact.shape.0.get(..2).map(<[_]>::to_vec)
    };
    let (from, to) = (first_two(&layer.inputs), first_two(&layer.outputs));
    from.is_some() && from == to
}

/// The streams of a graph whose channels can be rescaled.
pub(super) fn streams(
    graph: &Graph,
    placement: &Placement,
    products: &[Option<FloatProduct>],
) -> Vec<Stream> {
    let layer_of: HashMap<NodeId, usize> = (placement.layers.iter().enumerate())
        .flat_map(|(i, l)| l.nodes.iter().map(move |n| (*n, i)))
        .collect();
    let parts: Vec<Part> = (placement.layers.iter().zip(products))
        .map(|(l, p)| part(graph, l, p.as_ref()))
        .collect();
    // Joined values point to the first one.
    let mut joined: HashMap<ValueId, ValueId> = HashMap::new();
    let first = |joined: &HashMap<ValueId, ValueId>, mut v: ValueId| {
        while let Some(next) = joined.get(&v).filter(|n| **n != v) {
            v = *next;
        }
        v
    };
    for (layer, _) in placement
        .layers
        .iter()
        .zip(&parts)
        .filter(|(_, p)| **p == Part::Link)
    {
        let all: Vec<ValueId> = layer.inputs.iter().chain(&layer.outputs).copied().collect();
        let roots: Vec<ValueId> = all.iter().map(|v| first(&joined, *v)).collect();
        let Some(root) = roots.iter().min().copied() else {
            continue;
        };
        joined.extend(roots.into_iter().map(|r| (r, root)));
    }
    let consumers = graph.consumers();
    let mut found: BTreeMap<ValueId, Stream> = BTreeMap::new();
    let mut closed: HashSet<ValueId> = HashSet::new();
    for (i, layer) in placement.layers.iter().enumerate() {
        for v in layer.inputs.iter().chain(&layer.outputs) {
            let root = first(&joined, *v);
            let stream = found.entry(root).or_default();
            if !stream.values.contains(v) {
                stream.values.push(*v);
            }
            if !open(graph, placement, *v, &consumers, &layer_of, &parts) {
                closed.insert(root);
            }
        }
        // Bounds hold for channels as they are.
        let clips = |id: &NodeId| graph.node(*id).is_some_and(|n| n.op.name() == "Clip");
        if layer.nodes.iter().any(clips) {
            closed.extend(layer.outputs.iter().map(|v| first(&joined, *v)));
        }
        if parts.get(i) != Some(&Part::Product) {
            continue;
        }
        for v in &layer.outputs {
            let root = first(&joined, *v);
            found.entry(root).or_default().producers.push(i);
        }
        if let Some(x) = layer.inputs.first() {
            found.entry(first(&joined, *x)).or_default().readers.push(i);
        }
    }
    let streams = found.into_iter().filter(|(root, _)| !closed.contains(root));
    streams.filter_map(|(_, s)| sized(graph, s)).collect()
}

/// Whether only layers whose channels can be rescaled compute and read a value.
fn open(
    graph: &Graph,
    placement: &Placement,
    v: ValueId,
    consumers: &[Vec<NodeId>],
    layer_of: &HashMap<NodeId, usize>,
    parts: &[Part],
) -> bool {
    let keeps = |id: &NodeId| {
        let part = layer_of.get(id).and_then(|i| parts.get(*i));
        part.is_some_and(|p| *p != Part::Other)
    };
    let made = graph.producer(v).is_some_and(|(id, _)| keeps(&id));
    let read = consumers.get(v.index()).is_some_and(|all| all.iter().all(keeps));
    placement.is_computed(v) && made && read && !graph.is_kept(v)
}

/// The stream with its number of channels, if all its values have the same.
fn sized(graph: &Graph, mut stream: Stream) -> Option<Stream> {
    let channels = |v: &ValueId| {
        let shape = &graph.value(*v).fact.as_ref()?.shape;
        usize::try_from(shape.0.get(1)?.as_const()?).ok()
    };
    let mut sizes = stream.values.iter().map(channels);
    let size = sizes.next()??;
    stream.channels = size;
    (sizes.all(|s| s == Some(size)) && size > 0 && !stream.producers.is_empty() && !stream.readers.is_empty())
        .then_some(stream)
}

/// Statistics of the channels of a value over a calibration set: for each channel, the sums of the
/// smallest and largest element of each item, where 0 counts as an element.
#[derive(Clone, Debug, Default)]
pub(super) struct ChannelStats {
    low: Vec<f64>,
    high: Vec<f64>,
}

impl ChannelStats {
    pub fn new(channels: usize) -> Self {
        Self {
            low: vec![0.0; channels],
            high: vec![0.0; channels],
        }
    }

    /// Adds a tensor of one item with `inner` contiguous elements per channel of a batch entry.
    pub fn add(&mut self, values: &[f32], inner: usize) {
        for entry in values.chunks(inner.saturating_mul(self.low.len()).max(1)) {
            let channels = entry.chunks(inner.max(1));
            for (part, (low, high)) in channels.zip(self.low.iter_mut().zip(&mut self.high)) {
                *low += f64::from(part.iter().copied().fold(0.0, f32::min));
                *high += f64::from(part.iter().copied().fold(0.0, f32::max));
            }
        }
    }
}

/// Divides each channel of the streams by the square root of its range. The quantization steps of
/// the channel then become finer while its weights become larger, and both add about the same
/// error. With the range itself as divisor, the weights of readers would spread too much. `stats`
/// holds the channels of each value of a stream.
pub(super) fn by_activations(
    streams: &[Stream],
    stats: &[Vec<ChannelStats>],
    products: &mut [Option<FloatProduct>],
) {
    for (stream, stats) in streams.iter().zip(stats) {
        let mut ranges = vec![0f64; stream.channels];
        for s in stats {
            for (r, (low, high)) in ranges.iter_mut().zip(s.low.iter().zip(&s.high)) {
                *r = r.max(high - low);
            }
        }
        let most = ranges.iter().copied().fold(0.0, f64::max);
        if most > 0.0 {
            let divisors: Vec<f64> = ranges.iter().map(|r| (r / most).max(LEAST).sqrt()).collect();
            divide(stream, &divisors, products);
        }
    }
}

/// Divides each channel so that the weights that compute it and those that read it have the same
/// largest magnitude.
pub(super) fn by_weights(streams: &[Stream], products: &mut [Option<FloatProduct>]) {
    for _ in 0..ROUNDS {
        for stream in streams {
            let (mut made, mut read) = (vec![0f64; stream.channels], vec![0f64; stream.channels]);
            for p in stream.producers.iter().filter_map(|i| products.get(*i)?.as_ref()) {
                largest(&mut made, &p.weights, |e| p.form.output(e));
            }
            for p in stream.readers.iter().filter_map(|i| products.get(*i)?.as_ref()) {
                largest(&mut read, &p.weights, |e| p.form.input(e));
            }
            let divisor = |(m, r): (&f64, &f64)| match m * r > 0.0 {
                true => (m / r).sqrt().clamp(LEAST, 1.0 / LEAST),
                false => 1.0,
            };
            let divisors: Vec<f64> = made.iter().zip(&read).map(divisor).collect();
            divide(stream, &divisors, products);
        }
    }
}

/// The largest magnitude of each channel.
fn largest(of: &mut [f64], weights: &[f32], channel: impl Fn(usize) -> usize) {
    for (i, w) in weights.iter().enumerate() {
        if let Some(m) = of.get_mut(channel(i)) {
            *m = m.max(f64::from(w.abs()));
        }
    }
}

fn divide(stream: &Stream, divisors: &[f64], products: &mut [Option<FloatProduct>]) {
    let inverse: Vec<f64> = divisors.iter().map(|d| 1.0 / d).collect();
    for i in &stream.producers {
        if let Some(Some(p)) = products.get_mut(*i) {
            p.scale_outputs(&inverse);
        }
    }
    for i in &stream.readers {
        if let Some(Some(p)) = products.get_mut(*i) {
            p.scale_inputs(divisors);
        }
    }
}
