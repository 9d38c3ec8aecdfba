//! One quantization: from a placement to the bytes of the file and the report.

use super::compare::{Compared, LastLayer, Noise, compare};
use super::equalize::{by_activations, by_weights, streams};
use super::observe::{channel_stats, observe, with_products};
use super::products::{FloatProduct, IntProduct};
use super::ranges::{RangeMethod, affine};
use super::refused::Refused;
use super::sequence::Plan;
use super::write::{Quantized, quantized};
use super::{CalibrationSet, LayerReport, LeftNode, Open, Options, Summary, Tell};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::graph::onnx::import;
use transformer_lite::unstable::graph::onnx::proto::ModelProto;
use transformer_lite::unstable::graph::quantization::{Layer, LayerKind, Placement, SharedRange};
use transformer_lite::unstable::graph::{Graph, ValueId, derive};
use transformer_lite::unstable::quant::fixed::Affine;

/// Metadata key of quantized files.
pub(super) const KEY: &str = "transformer_lite.quantization";

pub(super) struct Job<'a> {
    graph: &'a Graph,
    placement: &'a Placement,
    options: &'a Options,
    /// For each layer, its product in floats and in integers.
    floats: Vec<Option<FloatProduct>>,
    products: Vec<Option<IntProduct>>,
    /// The float model with normalization folded in, equalized if asked for.
    folded: Graph,
    equalized: usize,
    /// Range and parameters of each [`SharedRange`].
    ranges: Vec<((f32, f32), Affine)>,
}

impl<'a> Job<'a> {
    /// Folds normalization into products.
    pub fn new(graph: &'a Graph, placement: &'a Placement, options: &'a Options) -> Result<Self> {
        let products = placement
            .layers
            .iter()
            .map(|layer| FloatProduct::of(graph, layer));
        let floats = products.collect::<Result<Vec<_>>>()?;
        Ok(Self {
            folded: with_products(graph, placement, &floats)?,
            graph,
            placement,
            options,
            products: vec![None; floats.len()],
            floats,
            equalized: 0,
            ranges: Vec::new(),
        })
    }

    /// Equalizes channels.
    pub fn equalize(&mut self, set: &CalibrationSet<'_>, open: &Open<'_>, tell: Tell<'_>) -> Result<()> {
        let streams = streams(self.graph, self.placement, &self.floats);
        if !self.options.equalize || streams.is_empty() {
            return Ok(());
        }
        if self.options.per_tensor {
            by_weights(&streams, &mut self.floats);
        } else {
            let stats = channel_stats(&self.folded, &streams, set, open, tell)?;
            by_activations(&streams, &stats, &mut self.floats);
        }
        self.equalized = streams.len();
        self.folded = with_products(self.graph, self.placement, &self.floats)?;
        Ok(())
    }

    /// Runs the set, chooses ranges and quantizes products.
    pub fn calibrate(&mut self, set: &CalibrationSet<'_>, open: &Open<'_>, tell: Tell<'_>) -> Result<()> {
        let options = self.options;
        let seen = observe(&self.folded, self.placement, options.ranges, set, open, tell)?;
        for (range, observer) in self.placement.ranges.iter().zip(&seen) {
            // Every item reaches the bounds of pixels and scores, so clipping would change all.
            let ends = |v: &ValueId| self.graph.is_input(*v) || self.graph.is_output(*v);
            let method = if range.values.iter().any(ends) {
                RangeMethod::MinMax
            } else {
                options.ranges
            };
            let observed = observer.as_ref().and_then(|o| o.range(method, options.symmetric));
            let chosen = self.range(range, observed)?;
            self.ranges.push(chosen);
        }
        let ranges: Vec<Affine> = self.ranges.iter().map(|r| r.1).collect();
        let plan = Plan {
            graph: self.graph,
            folded: &self.folded,
            placement: self.placement,
            floats: &self.floats,
            ranges: &ranges,
            options,
        };
        self.products = plan.products(set, tell)?;
        Ok(())
    }

    fn range(&self, range: &SharedRange, observed: Option<(f32, f32)>) -> Result<((f32, f32), Affine)> {
        let symmetric = self.options.symmetric;
        if let Some(fixed) = range.fixed {
            let fixed = if symmetric && fixed.zero != 0 {
                Affine {
                    scale: 1.0 / 127.0,
                    zero: 0,
                }
            } else {
                fixed
            };
            return Ok((
                (fixed.real(super::ranges::LEAST), fixed.real(super::ranges::MOST)),
                fixed,
            ));
        }
        let value = range.sources.first().or(range.values.first()).copied();
        let Some(value) = value else {
            return Err(Error::internal(Stage::Quantize, "a range without values"));
        };
        let name = || self.graph.value(value).name.clone();
        let Some((low, high)) = observed else {
            return Err(Refused::Unseen { value: name() }.of(self.graph, value));
        };
        let refused = || {
            Refused::Scale {
                value: name(),
                low,
                high,
            }
            .of(self.graph, value)
        };
        Ok(((low, high), affine((low, high), symmetric).ok_or_else(refused)?))
    }

    /// The quantized model.
    pub fn bytes(&self, model: ModelProto, path: &Path, set: &CalibrationSet<'_>) -> Result<Vec<u8>> {
        let o = self.options;
        let text = format!(
            "int8, {} weights, {} activations, ranges {} over {} items",
            if o.per_tensor { "per-tensor" } else { "per-channel" },
            if o.symmetric { "symmetric" } else { "asymmetric" },
            o.ranges.name(),
            set.names.len()
        );
        let ranges: Vec<Affine> = self.ranges.iter().map(|r| r.1).collect();
        let parts = Quantized {
            graph: self.graph,
            placement: self.placement,
            floats: &self.floats,
            products: &self.products,
            ranges: &ranges,
            limits: &[],
            metadata: std::iter::once((KEY.to_owned(), text))
                .chain(set.metadata.clone())
                .collect(),
        };
        quantized(model, path, &parts)
    }

    /// Compares the model in `path` with the source and returns the report.
    pub fn summary(
        &self,
        path: &Path,
        set: &CalibrationSet<'_>,
        open: &Open<'_>,
        tell: Tell<'_>,
    ) -> Result<Summary> {
        let mut made = import(path)?;
        derive::derive(&mut made)?;
        let layers = self.placement.layers.iter().zip(&self.floats);
        let values = layers.filter_map(|(layer, product)| {
            let value = self.graph.value(*layer.outputs.first()?);
            // Where no weights tell, tensors with four axes and more are pictures.
            let picture = value.fact.as_ref().is_some_and(|f| f.shape.rank() > 3);
            let second = product.as_ref().map_or(picture, |p| p.form.convolves);
            Some((value.name.clone(), second))
        });
        let values: Vec<_> = values.collect();
        let mut found = match self.options.compared {
            0 => Compared {
                values: BTreeMap::new(),
                outputs: Vec::new(),
            },
            items => {
                let models = (self.graph, &self.folded, made);
                compare(models, &values, (set, items), open, tell)?
            }
        };
        for noise in &mut found.outputs {
            noise.last_layer = self.last_layer(&noise.name, &found.values);
        }
        let layers = self.placement.layers.iter().enumerate();
        let left = self.placement.left.iter().filter_map(|l| {
            let node = self.graph.node(l.node)?;
            Some(LeftNode {
                name: node.name.clone(),
                op: node.op.name().to_owned(),
                reason: l.reason.clone(),
            })
        });
        Ok(Summary {
            layers: layers.filter_map(|(i, l)| self.report(i, l, &found)).collect(),
            left: left.collect(),
            items: set.names.len(),
            compared: self.options.compared.min(set.names.len()),
            outputs: found.outputs,
            equalized: self.equalized,
            bytes_before: 0,
            bytes_after: 0,
        })
    }

    /// [`OutputNoise::last_layer`](super::OutputNoise::last_layer) of the output `name`.
    fn last_layer(&self, name: &str, noise: &BTreeMap<String, Noise>) -> Option<LastLayer> {
        let mut by_output: HashMap<ValueId, &Layer> = HashMap::new();
        for layer in self.placement.layers.iter().filter(|l| l.kind != LayerKind::Move) {
            by_output.extend(layer.outputs.iter().map(|v| (*v, layer)));
        }
        let outputs = self.graph.outputs().iter().copied();
        let mut open: Vec<ValueId> = outputs.filter(|v| self.graph.value(*v).name == name).collect();
        let mut seen: HashSet<ValueId> = open.iter().copied().collect();
        let mut lowest: Option<LastLayer> = None;
        while let Some(value) = open.pop() {
            let Some(layer) = by_output.get(&value) else {
                let inputs = self.graph.producer(value).into_iter();
                let inputs = inputs.flat_map(|(_, n)| n.inputs.iter().flatten().copied());
                open.extend(inputs.filter(|v| seen.insert(*v)));
                continue;
            };
            let Some(snr) = noise.get(&self.graph.value(value).name).map(Noise::snr) else {
                continue;
            };
            let first = layer.nodes.first().and_then(|id| self.graph.node(*id));
            if let Some(node) = first.filter(|_| lowest.as_ref().is_none_or(|l| snr < l.snr)) {
                let name = node.name.clone();
                lowest = Some(LastLayer { name, snr });
            }
        }
        lowest
    }

    fn report(&self, i: usize, layer: &Layer, found: &Compared) -> Option<LayerReport> {
        let node = |id| self.graph.node(id);
        let out = *layer.outputs.first()?;
        let (range, affine) = *self.ranges.get(self.placement.range_of(out)?)?;
        let product = self.floats.get(i).and_then(Option::as_ref);
        let weights = product
            .zip(self.products.get(i).and_then(Option::as_ref))
            .map(|(float, int)| {
                let mut noise = Noise::default();
                noise.add(&float.weights, &int.dequantized(&float.form), |e| {
                    float.form.output(e)
                });
                noise
            });
        let noise = found.values.get(&self.graph.value(out).name);
        Some(LayerReport {
            name: node(*layer.nodes.first()?)?.name.clone(),
            ops: layer
                .nodes
                .iter()
                .filter_map(|id| Some(node(*id)?.op.name().to_owned()))
                .collect(),
            kind: layer.kind.name(),
            scale: affine.scale,
            zero: affine.zero,
            range,
            shape: product.map(|p| p.form.shape.clone()).unwrap_or_default(),
            compensated: self
                .products
                .get(i)
                .and_then(Option::as_ref)
                .map(|p| p.compensated),
            weights_snr: weights.as_ref().map(Noise::snr),
            worst_weights: weights.as_ref().and_then(Noise::worst),
            snr: noise.map(Noise::snr),
            worst: noise.and_then(Noise::worst),
        })
    }
}
