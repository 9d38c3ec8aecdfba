//! Writes networks that were trained with quantization in the loop.

use super::job::KEY;
use super::products::{FloatProduct, IntProduct};
use super::source::FloatModel;
use super::write::{Quantized, embed, encoded, float_tensor, quantized};
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::quant::fixed::Affine;
use transformer_lite::unstable::tensor::DType;

/// Weights and bias of a product after training, with normalization and factors folded in.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainedProduct {
    /// In the shape of the operand.
    pub weights: Vec<f32>,
    /// A number for each output channel.
    pub bias: Option<Vec<f32>>,
    /// One scale, or one for each index of the axis of output channels.
    pub scales: Vec<f32>,
}

/// The integers of an activation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainedRange {
    pub affine: Affine,
    /// The largest integer. The smallest is -128.
    pub most: i32,
}

/// What training chose for all layers and ranges of a placement.
#[derive(Clone, Debug, PartialEq)]
pub struct Trained<'a> {
    /// For each layer, its product; `None` for layers without weights.
    pub products: &'a [Option<TrainedProduct>],
    /// For each range.
    pub ranges: &'a [TrainedRange],
    /// Products have a scale for each output channel.
    pub per_channel: bool,
    /// The largest weight; the smallest is its negative.
    pub largest: i8,
    /// How the model was made, for its metadata.
    pub method: &'a str,
}

impl FloatModel {
    /// The integers of the products, in the order of the layers.
    pub(super) fn integers(&self, t: &Trained<'_>) -> Result<Vec<Option<(FloatProduct, IntProduct)>>> {
        let layers = self.placement.layers.iter();
        let mut all = Vec::with_capacity(layers.len());
        for (i, layer) in layers.enumerate() {
            let trained = t.products.get(i).and_then(Option::as_ref);
            let float = FloatProduct::of(&self.graph, layer)?;
            let first = layer.nodes.first().and_then(|id| self.graph.node(*id));
            let input = layer.inputs.first().and_then(|v| self.placement.range_of(*v));
            let input = input.and_then(|r| t.ranges.get(r));
            let (Some(mut float), Some(node)) = (float, first) else {
                all.push(None);
                continue;
            };
            let wrong = |what: &str| {
                let what = format!("{} \"{}\": {what}", node.op.name(), node.name);
                Error::internal(Stage::Quantize, what)
            };
            let (Some(trained), Some(input)) = (trained, input) else {
                return Err(wrong("no trained weights or range"));
            };
            let bias = trained.bias.as_ref().map_or(float.form.channels, Vec::len);
            let scales = if t.per_channel { float.form.scales() } else { 1 };
            if trained.weights.len() != float.weights.len()
                || bias != float.form.channels
                || trained.scales.len() != scales
            {
                return Err(wrong("the sizes of trained weights and of the model differ"));
            }
            float.weights.clone_from(&trained.weights);
            float.bias.clone_from(&trained.bias);
            let scales = (trained.scales.clone(), t.per_channel);
            let int = IntProduct::with_scales(node, &float, input.affine, scales, t.largest)?;
            all.push(Some((float, int)));
        }
        Ok(all)
    }

    /// For each layer, the weights that the exported integers stand for.
    pub fn dequantized(&self, trained: &Trained<'_>) -> Result<Vec<Option<Vec<f32>>>> {
        let all = self.integers(trained)?.into_iter();
        Ok(all
            .map(|p| p.map(|(float, int)| int.dequantized(&float.form)))
            .collect())
    }

    /// The bytes of an ONNX file with the model as integers, in QDQ form.
    ///
    /// Errors: scales that are not normal numbers and sums that can overflow 32 bits
    /// ([`Refused`](super::Refused), with the node).
    pub fn encode_trained(&self, trained: &Trained<'_>) -> Result<Vec<u8>> {
        let (floats, products): (Vec<_>, Vec<_>) =
            self.integers(trained)?.into_iter().map(Option::unzip).unzip();
        let ranges: Vec<Affine> = trained.ranges.iter().map(|r| r.affine).collect();
        let limit = |r: &TrainedRange| (r.most < super::ranges::MOST).then(|| r.affine.real(r.most));
        let limits: Vec<Option<f32>> = trained.ranges.iter().map(limit).collect();
        let parts = Quantized {
            graph: &self.graph,
            placement: &self.placement,
            floats: &floats,
            products: &products,
            ranges: &ranges,
            limits: &limits,
            metadata: vec![(KEY.to_owned(), trained.method.to_owned())],
        };
        quantized(self.proto.clone(), &self.path, &parts)
    }

    /// The bytes of the float model with other elements in the constants of these names.
    ///
    /// Errors: a name that is not a constant with as many elements of type f32.
    pub fn encode_with(&self, constants: &[(&str, Vec<f32>)]) -> Result<Vec<u8>> {
        let mut proto = self.proto.clone();
        let mut graph = proto.graph.take().unwrap_or_default();
        for (name, elements) in constants {
            let value = self.graph.find(name).map(|v| self.graph.value(v));
            let old = value.and_then(|v| v.fact.as_ref()?.as_const());
            let Some(old) = old.filter(|t| t.len() == elements.len() && t.dtype() == DType::F32) else {
                let what = format!("\"{name}\" is not a constant of {} f32", elements.len());
                return Err(Error::file(Stage::Quantize, &self.path, what));
            };
            graph.initializer.retain(|t| t.name != *name);
            graph.initializer.push(float_tensor(name, old.shape(), elements));
            // Nodes that computed it; other results of theirs are constants as well.
            for n in &mut graph.node {
                n.output.iter_mut().filter(|o| *o == name).for_each(String::clear);
            }
        }
        graph.node.retain(|n| n.output.iter().any(|o| !o.is_empty()));
        embed(&mut graph, &self.path)?;
        proto.graph = Some(graph);
        encoded(&proto, &self.path)
    }
}
