//! Weights and biases of products (convolutions and matmuls): as floats, with normalization folded
//! in, and as integers.

use super::refused::Refused;
use std::sync::Arc;
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::graph::op::batch_norm::BatchNorm;
use transformer_lite::unstable::graph::op::conv::Conv;
use transformer_lite::unstable::graph::op::conv_transpose::ConvTranspose;
use transformer_lite::unstable::graph::op::gemm::Gemm;
use transformer_lite::unstable::graph::quantization::{Layer, LayerKind, Product, Weights};
use transformer_lite::unstable::graph::{Graph, Node, NodeId, ValueId};
use transformer_lite::unstable::quant::fixed::{Affine, quantized_bias};
use transformer_lite::unstable::tensor::HostTensor;

/// Weight integers are from `-LARGEST` to `LARGEST`, so that the sum of two products fits 16 bits.
pub(super) const LARGEST: i8 = 127;
/// The smallest scale of weights. Smaller weights become 0.
const LEAST_SCALE: f32 = 1.0 / 16_777_216.0;
/// The largest magnitude of bias integers. It leaves room for the sum of products.
const LARGEST_BIAS: f64 = 1_073_741_824.0;

/// How the elements of weights map to channels.
#[derive(Clone, Debug)]
pub(super) struct ChannelMap {
    pub shape: Vec<usize>,
    /// The axis that has one scale per index.
    axis: usize,
    /// Contiguous elements for each index of the axis.
    inner: usize,
    /// Output channels, of all groups.
    pub channels: usize,
    /// Groups of a convolution.
    pub groups: usize,
    /// The operator is a convolution: inputs have channels at axis 1.
    pub convolves: bool,
    transposed: bool,
    /// The axis that a matmul sums over.
    sums: usize,
}

impl ChannelMap {
    fn of(op: &Node, weights: Weights, shape: &[usize]) -> Self {
        let (conv, transposed) = (op.op.downcast::<Conv>(), op.op.downcast::<ConvTranspose>());
        let groups = conv.map(|c| c.group).or(transposed.map(|c| c.group)).unwrap_or(1);
        // Shape inference has rejected numbers below 1.
        let groups = usize::try_from(groups.max(1)).map_or(1, |n| n);
        let axis = weights.axis;
        let at_axis = shape.get(axis).copied().unwrap_or(1);
        let last = shape.len().saturating_sub(1);
        Self {
            axis,
            inner: shape.iter().skip(axis + 1).product::<usize>().max(1),
            channels: if transposed.is_some() {
                at_axis * groups
            } else {
                at_axis
            },
            groups,
            convolves: conv.is_some() || transposed.is_some(),
            transposed: transposed.is_some(),
            sums: if axis == last {
                last.saturating_sub(1)
            } else {
                last
            },
            shape: shape.to_vec(),
        }
    }

    /// The number of scales, if each index of the axis has one.
    pub fn scales(&self) -> usize {
        self.shape.get(self.axis).copied().unwrap_or(1)
    }

    /// The index of an element along the axis.
    fn index(&self, element: usize) -> usize {
        element / self.inner % self.scales().max(1)
    }

    /// The index of an element along an axis.
    fn along(&self, axis: usize, element: usize) -> usize {
        let inner = self.shape.iter().skip(axis + 1).product::<usize>().max(1);
        element / inner % self.shape.get(axis).copied().unwrap_or(1).max(1)
    }

    /// The output channel of an element.
    pub fn output(&self, element: usize) -> usize {
        if !self.transposed {
            return self.index(element);
        }
        let inputs = self.shape.first().copied().unwrap_or(1).max(1);
        let group = self.along(0, element) / (inputs / self.groups).max(1);
        group * self.scales() + self.index(element)
    }

    /// The input channel of an element.
    pub fn input(&self, element: usize) -> usize {
        if self.transposed {
            return self.along(0, element);
        }
        if !self.convolves {
            return self.along(self.sums, element);
        }
        let each = self.shape.get(1).copied().unwrap_or(1);
        let group = self.index(element) / (self.channels / self.groups).max(1);
        group * each + self.along(1, element)
    }

    /// The index of an output channel's scale.
    fn scale_of(&self, channel: usize) -> usize {
        channel % self.scales().max(1)
    }
}

/// A product with constant weights, as floats.
#[derive(Clone, Debug)]
pub(super) struct FloatProduct {
    pub form: ChannelMap,
    pub weights: Vec<f32>,
    pub bias: Option<Vec<f32>>,
}

impl FloatProduct {
    /// The product of a layer with everything folded in; `None` for other layers.
    pub fn of(graph: &Graph, layer: &Layer) -> Result<Option<Self>> {
        let LayerKind::Product(
            product @ Product {
                weights: Some(weights),
                ..
            },
        ) = &layer.kind
        else {
            return Ok(None);
        };
        let Some(node) = layer.nodes.first().and_then(|id| graph.node(*id)) else {
            return Ok(None);
        };
        let tensor = constant(graph, node, weights.value)?;
        let form = ChannelMap::of(node, *weights, tensor.shape());
        let mut out = Self {
            weights: finite(graph, node, weights.value, &tensor)?,
            bias: None,
            form,
        };
        if let Some(v) = product.bias {
            out.bias = Some(out.broadcast(graph, node, v)?);
        }
        if let Some(gemm) = node.op.downcast::<Gemm>() {
            out.weights.iter_mut().for_each(|w| *w *= gemm.alpha);
            out.bias.iter_mut().flatten().for_each(|b| *b *= gemm.beta);
        }
        if let Some((_, v)) = product.add {
            let more = out.broadcast(graph, node, v)?;
            let bias = out.bias.get_or_insert_with(|| vec![0.0; more.len()]);
            bias.iter_mut().zip(more).for_each(|(b, m)| *b += m);
        }
        if let Some(norm) = product.norm {
            out.fold(graph, norm)?;
        }
        Ok(Some(out))
    }

    /// A constant with an element for each output channel, or one for all.
    fn broadcast(&self, graph: &Graph, node: &Node, v: ValueId) -> Result<Vec<f32>> {
        let values = finite(graph, node, v, constant(graph, node, v)?.as_ref())?;
        match values.as_slice() {
            [one] => Ok(vec![*one; self.form.channels]),
            all if all.len() == self.form.channels => Ok(values),
            all => {
                let what = format!(
                    "node \"{}\": bias \"{}\" has {} elements; expected one for each of {} channels",
                    node.name,
                    graph.value(v).name,
                    all.len(),
                    self.form.channels
                );
                Err(Error::internal(Stage::Quantize, what))
            }
        }
    }

    /// Multiplies the weights by `scale / sqrt(variance + epsilon)` and adjusts the bias.
    fn fold(&mut self, graph: &Graph, norm: NodeId) -> Result<()> {
        let Some(node) = graph.node(norm) else {
            return Ok(());
        };
        let Some(BatchNorm { epsilon }) = node.op.downcast::<BatchNorm>() else {
            return Ok(());
        };
        let mut lists = Vec::new();
        for v in node.inputs.iter().skip(1).flatten() {
            lists.push(finite(graph, node, *v, constant(graph, node, *v)?.as_ref())?);
        }
        let [scale, beta, mean, variance] = lists.as_slice() else {
            return Ok(());
        };
        let factor = |(s, v): (&f32, &f32)| f64::from(*s) / (f64::from(*v) + f64::from(*epsilon)).sqrt();
        let factors: Vec<f64> = scale.iter().zip(variance).map(factor).collect();
        let old = self.bias.take().unwrap_or_else(|| vec![0.0; factors.len()]);
        let moved = old.iter().zip(mean).zip(factors.iter().zip(beta));
        let moved = moved.map(|((b, m), (f, beta))| (f64::from(*b) - f64::from(*m)) * f + f64::from(*beta));
        self.bias = Some(moved.map(rounded).collect());
        self.scale_weights(&factors);
        let value = || {
            node.outputs
                .first()
                .map(|v| graph.value(*v).name.clone())
                .unwrap_or_default()
        };
        match self
            .weights
            .iter()
            .chain(self.bias.iter().flatten())
            .find(|w| !w.is_finite())
        {
            None => Ok(()),
            Some(found) => Err(Refused::NotFinite {
                value: value(),
                found: *found,
                place: "weights with the normalization folded in".to_owned(),
            }
            .at(node)),
        }
    }

    /// Multiplies weights and bias of each output channel.
    pub fn scale_outputs(&mut self, factors: &[f64]) {
        self.scale_weights(factors);
        for (b, f) in self.bias.iter_mut().flatten().zip(factors) {
            *b = rounded(f64::from(*b) * f);
        }
    }

    fn scale_weights(&mut self, factors: &[f64]) {
        for (i, w) in self.weights.iter_mut().enumerate() {
            *w = rounded(f64::from(*w) * factors.get(self.form.output(i)).copied().unwrap_or(1.0));
        }
    }

    /// Multiplies the weights of each input channel.
    pub fn scale_inputs(&mut self, factors: &[f64]) {
        for (i, w) in self.weights.iter_mut().enumerate() {
            *w = rounded(f64::from(*w) * factors.get(self.form.input(i)).copied().unwrap_or(1.0));
        }
    }

    /// The weights as a tensor.
    pub fn tensor(&self) -> Result<HostTensor> {
        tensor_of(&self.form.shape, &self.weights)
    }
}

/// A tensor of floats.
pub(super) fn tensor_of(shape: &[usize], data: &[f32]) -> Result<HostTensor> {
    HostTensor::from_f32(shape, data).map_err(|e| Error::caused(Stage::Quantize, "weights", e))
}

#[expect(clippy::cast_possible_truncation, reason = "rounding is meant")]
fn rounded(v: f64) -> f32 {
    v as f32
}

fn constant(graph: &Graph, node: &Node, v: ValueId) -> Result<Arc<HostTensor>> {
    let fact = graph.value(v).fact.as_ref();
    let tensor = fact.and_then(|f| f.as_const()).cloned();
    tensor.ok_or_else(|| {
        let what = format!(
            "node \"{}\": \"{}\" is not constant",
            node.name,
            graph.value(v).name
        );
        Error::internal(Stage::Quantize, what)
    })
}

/// The elements of a constant of `node`, which must be finite.
pub(super) fn finite(graph: &Graph, node: &Node, v: ValueId, tensor: &HostTensor) -> Result<Vec<f32>> {
    let name = || graph.value(v).name.clone();
    let values = tensor.to_f32().map_err(|e| {
        let what = format!("{} \"{}\": constant \"{}\"", node.op.name(), node.name, name());
        Error::caused(Stage::Quantize, what, e)
    })?;
    match values.iter().find(|x| !x.is_finite()) {
        None => Ok(values.into_owned()),
        Some(found) => Err(Refused::NotFinite {
            value: name(),
            found: *found,
            place: "a constant".to_owned(),
        }
        .at(node)),
    }
}

/// A product as integers.
#[derive(Clone, Debug)]
pub(super) struct IntProduct {
    pub codes: Vec<i8>,
    /// The integers make up for errors; else they are the nearest ones.
    pub compensated: bool,
    /// One scale, or one for each index of `axis`.
    pub scales: Vec<f32>,
    /// `None` for a single scale.
    pub axis: Option<usize>,
    pub bias: Option<IntBias>,
}

/// A bias with the scale of the sums that it is added to.
#[derive(Clone, Debug)]
pub(super) struct IntBias {
    pub codes: Vec<i32>,
    /// One scale, or one for each output channel.
    pub scales: Vec<f32>,
}

impl IntProduct {
    /// Quantizes a product that reads an activation with the parameters `input`, per output channel
    /// or per tensor.
    pub fn of(node: &Node, float: &FloatProduct, input: Affine, per_tensor: bool) -> Result<Self> {
        let form = &float.form;
        let count = if per_tensor { 1 } else { form.scales() };
        let mut largest = vec![0f32; count];
        for (i, w) in float.weights.iter().enumerate() {
            if let Some(m) = largest.get_mut(form.index(i) % count.max(1)) {
                *m = m.max(w.abs());
            }
        }
        let mut scales: Vec<f32> = largest
            .iter()
            .map(|m| (m / f32::from(LARGEST)).max(LEAST_SCALE))
            .collect();
        // A channel with a large bias and small weights: its bias must fit.
        for (c, b) in float.bias.iter().flatten().enumerate() {
            if let Some(s) = scales.get_mut(form.scale_of(c) % count.max(1)) {
                *s = s.max(rounded(
                    f64::from(b.abs()) / (f64::from(input.scale) * LARGEST_BIAS),
                ));
            }
        }
        Self::with_scales(node, float, input, (scales, !per_tensor), LARGEST)
    }

    /// Rounds weights to multiples of `scales`, of which there is one for each index of the axis if
    /// `per_channel`. Integers are at most `largest`.
    pub fn with_scales(
        node: &Node,
        float: &FloatProduct,
        input: Affine,
        (scales, per_channel): (Vec<f32>, bool),
        largest: i8,
    ) -> Result<Self> {
        let mut out = Self {
            codes: Vec::new(),
            compensated: false,
            axis: per_channel.then_some(float.form.axis),
            scales,
            bias: None,
        };
        let limit = f32::from(largest);
        let code = |(i, w): (usize, &f32)| {
            let code = (w / out.scale(&float.form, i)).round_ties_even();
            #[expect(clippy::cast_possible_truncation, reason = "clamped to the type")]
            let code = code.clamp(-limit, limit) as i8;
            code
        };
        out.codes = float.weights.iter().enumerate().map(code).collect();
        out.set_bias(node, float, input)?;
        Ok(out)
    }

    /// Quantizes the bias of `float`.
    pub fn set_bias(&mut self, node: &Node, float: &FloatProduct, input: Affine) -> Result<()> {
        let bias = float.bias.as_ref();
        self.bias = bias.map(|b| self.int_bias(&float.form, b, input));
        self.check(node, &float.form, input)
    }

    /// The scale of an element of the weights.
    pub fn scale(&self, form: &ChannelMap, element: usize) -> f32 {
        let scale = self.scales.get(form.index(element) % self.scales.len().max(1));
        scale.copied().unwrap_or(1.0)
    }

    #[expect(clippy::cast_possible_truncation, reason = "clamped to the type")]
    fn int_bias(&self, form: &ChannelMap, bias: &[f32], input: Affine) -> IntBias {
        let scale = |c: usize| {
            let i = form.scale_of(c) % self.scales.len().max(1);
            f64::from(self.scales.get(i).copied().unwrap_or(1.0)) * f64::from(input.scale)
        };
        let scales = if self.axis.is_none() { 1 } else { bias.len() };
        IntBias {
            codes: bias
                .iter()
                .enumerate()
                .map(|(c, b)| quantized_bias(*b, scale(c)).clamp(i32::MIN.into(), i32::MAX.into()) as i32)
                .collect(),
            scales: (0..scales).map(|c| rounded(scale(c))).collect(),
        }
    }

    /// Fails if a scale is not a normal number or a sum of products can overflow 32 bits.
    fn check(&self, node: &Node, form: &ChannelMap, input: Affine) -> Result<()> {
        let name = || node.name.clone();
        let bias_scales = self.bias.iter().flat_map(|b| &b.scales);
        if let Some(s) = self.scales.iter().chain(bias_scales).find(|s| !s.is_normal()) {
            return Err(Refused::Scale {
                value: name(),
                low: -s * f32::from(LARGEST),
                high: s * f32::from(LARGEST),
            }
            .at(node));
        }
        let most = f64::from((super::ranges::MOST - input.zero).max(input.zero - super::ranges::LEAST));
        let mut reach = vec![0f64; form.channels];
        for (i, code) in self.codes.iter().enumerate() {
            if let Some(r) = reach.get_mut(form.output(i)) {
                *r += f64::from(code.unsigned_abs()) * most;
            }
        }
        for (r, b) in reach.iter_mut().zip(self.bias.iter().flat_map(|b| &b.codes)) {
            *r += f64::from(b.unsigned_abs());
        }
        let over = |(_, r): &(usize, &f64)| **r > f64::from(i32::MAX);
        match reach.iter().enumerate().find(over) {
            None => Ok(()),
            Some((channel, reach)) => Err(Refused::Overflow {
                channel,
                reach: *reach,
            }
            .at(node)),
        }
    }

    /// The weights that the integers stand for.
    pub fn dequantized(&self, form: &ChannelMap) -> Vec<f32> {
        let codes = self.codes.iter().enumerate();
        codes.map(|(i, c)| f32::from(*c) * self.scale(form, i)).collect()
    }
}
