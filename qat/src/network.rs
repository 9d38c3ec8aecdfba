//! A walker from the engine's graph to `burn` tensors: an ONNX network that can be trained.

use crate::error::{Error, Result};
use crate::fake::{Bits, Grid, fake_weights, least_scales, weight_scales};
use crate::op::Function;
use crate::value::{RANK, Value, padded};
use burn::tensor::{Device, Tensor, TensorData};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use transformer_lite::unstable::graph::op::batch_norm::BatchNorm;
use transformer_lite::unstable::graph::op::gemm::Gemm;
use transformer_lite::unstable::graph::op::softmax::Softmax;
use transformer_lite::unstable::graph::quantization::{Layer, LayerKind, Product, Weights};
use transformer_lite::unstable::graph::{Graph, Node, NodeId, ValueId};
use transformer_lite::unstable::shape::{Bindings, Shape, Symbol};
use transformer_lite::unstable::tensor::DType;
use transformer_lite_convert::int8::{FloatModel, TrainedProduct};

/// What a trained tensor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Weights of a product; they decay.
    Weights,
    /// A bias, or scale or bias of a normalization.
    Bias,
    /// A moving average of batch statistics; it has no gradient.
    Statistic,
}

/// A tensor of the model that training changes.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// Its name in the model.
    pub name: String,
    pub role: Role,
    /// With leading sizes of 1.
    pub shape: [usize; RANK],
}

/// Indices of the parameters of a normalization.
#[derive(Clone, Copy, Debug)]
struct Norm {
    scale: usize,
    bias: usize,
    mean: usize,
    variance: usize,
    epsilon: f32,
}

/// A convolution or matmul with constant weights, and what is quantized with it.
#[derive(Clone, Debug)]
struct ProductStep {
    /// Index of the layer in the placement.
    layer: usize,
    /// Without bias and factors.
    function: Function,
    x: ValueId,
    weights: usize,
    /// Factors of weights and bias.
    factors: [f32; 2],
    /// The axis of output channels of the weights, with leading sizes of 1.
    axis: usize,
    /// The axis of channels of the result.
    channels: usize,
    /// Biases; at most one and one that is added after.
    biases: Vec<usize>,
    norm: Option<Norm>,
    clamps: Vec<Function>,
    /// The result of the product, and of the whole.
    raw: ValueId,
    out: ValueId,
}

#[derive(Clone, Debug)]
enum Step {
    Product(Box<ProductStep>),
    Norm {
        norm: Norm,
        x: ValueId,
        out: ValueId,
    },
    /// `quantized`: it reads quantized operands.
    Function {
        function: Function,
        inputs: Vec<ValueId>,
        out: ValueId,
        quantized: bool,
    },
}

/// Which statistics normalization uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statistics {
    /// Those of the batch; they are returned.
    Batch,
    /// Moving averages; those of the batch are returned.
    Averages,
    /// Moving averages.
    Frozen,
}

/// How a forward pass quantizes.
#[derive(Clone, Copy, Debug)]
pub struct Quantization<'a> {
    pub weights: Bits,
    /// One scale for each weight tensor.
    pub per_tensor: bool,
    /// For each range, its grid; `None` where activations stay floats.
    pub grids: &'a [Option<Grid>],
}

/// A forward pass.
#[derive(Clone, Copy, Debug)]
pub struct Pass<'a> {
    /// One for each [`Network::parameters`].
    pub parameters: &'a [Tensor<4>],
    pub statistics: Statistics,
    /// `None` for floats.
    pub quantization: Option<Quantization<'a>>,
    /// Returns the extremes of activations.
    pub observe: bool,
}

/// Results of a forward pass.
#[derive(Debug)]
pub struct Forward {
    /// `[pictures, classes]`, before a final softmax.
    pub logits: Tensor<2>,
    /// Indices of statistics, and their values for the batch.
    pub statistics: Vec<(usize, Tensor<4>)>,
    /// Indices of ranges with the smallest and largest values in the batch.
    pub extremes: Vec<(usize, [Tensor<1>; 2])>,
}

/// An ONNX network as functions of `burn` tensors.
#[derive(Debug)]
pub struct Network {
    pub model: FloatModel,
    pub parameters: Vec<Parameter>,
    /// Channels, height and width of pictures.
    pub picture: [usize; 3],
    pub classes: usize,
    /// Name of the input.
    pub input_name: String,
    steps: Vec<Step>,
    input: ValueId,
    logits: ValueId,
    /// The symbol of the batch size; `None` if the batch size is fixed.
    batch: Option<Symbol>,
    /// Values that nothing reads from a step on, by step.
    done: Vec<Vec<ValueId>>,
}

/// Collects the parameters of a graph.
struct Builder<'a> {
    model: &'a FloatModel,
    parameters: Vec<Parameter>,
    index: HashMap<ValueId, usize>,
}

impl Builder<'_> {
    fn graph(&self) -> &Graph {
        &self.model.graph
    }

    fn refused(&self, node: &Node, reason: impl Into<String>) -> Error {
        Error::Untrainable {
            path: self.model.path.clone(),
            op: node.op.name().to_owned(),
            node: node.name.clone(),
            reason: reason.into(),
        }
    }

    fn parameter(&mut self, node: &Node, v: ValueId, role: Role) -> Result<usize> {
        if let Some(i) = self.index.get(&v) {
            return Ok(*i);
        }
        let value = self.graph().value(v);
        let tensor = value.fact.as_ref().and_then(|f| f.as_const());
        let shape = tensor
            .filter(|t| t.dtype() == DType::F32)
            .and_then(|t| padded(t.shape()));
        let Some(shape) = shape else {
            let what = format!(
                "\"{}\" is not a constant of f32 with up to {RANK} axes",
                value.name
            );
            return Err(self.refused(node, what));
        };
        let name = value.name.clone();
        let index = self.parameters.len();
        self.parameters.push(Parameter { name, role, shape });
        self.index.insert(v, index);
        Ok(index)
    }

    fn norm(&mut self, node: &Node) -> Result<Norm> {
        let roles = [Role::Bias, Role::Bias, Role::Statistic, Role::Statistic];
        let mut all = [0; 4];
        for (i, role) in roles.into_iter().enumerate() {
            let v = node.inputs.get(i + 1).copied().flatten();
            let v = v.ok_or_else(|| self.refused(node, "an operand is missing"))?;
            if let Some(to) = all.get_mut(i) {
                *to = self.parameter(node, v, role)?;
            }
        }
        let Some(BatchNorm { epsilon }) = node.op.downcast::<BatchNorm>() else {
            return Err(self.refused(node, "it is not a batch normalization"));
        };
        let [scale, bias, mean, variance] = all;
        Ok(Norm {
            scale,
            bias,
            mean,
            variance,
            epsilon: *epsilon,
        })
    }

    fn product(&mut self, index: usize, layer: &Layer, parts: &Product, w: Weights) -> Result<ProductStep> {
        let all: Vec<&Node> = layer
            .nodes
            .iter()
            .filter_map(|id| self.model.graph.node(*id))
            .collect();
        let missing = || Error::model(&self.model.path, "a layer without nodes");
        let first = *all.first().ok_or_else(missing)?;
        let x = first.inputs.first().copied().flatten().ok_or_else(missing)?;
        let function = Function::of(self.graph(), first).map_err(|r| self.refused(first, r))?;
        let (function, factors) = match function {
            Function::Gemm(g) => (
                Function::Gemm(Gemm {
                    alpha: 1.0,
                    beta: 1.0,
                    ..g
                }),
                [g.alpha, g.beta],
            ),
            other => (other, [1.0; 2]),
        };
        let shape = |v: ValueId| self.model.graph.value(v).fact.as_ref().map(|f| f.shape.rank());
        let raw = *first.outputs.first().ok_or_else(missing)?;
        let out = *layer.outputs.first().ok_or_else(missing)?;
        let lead = |rank: Option<usize>| RANK.saturating_sub(rank.unwrap_or(RANK));
        let convolves = matches!(function, Function::Conv(_) | Function::ConvTranspose(_));
        let channels = if convolves { 1 + lead(shape(raw)) } else { RANK - 1 };
        let axis = w.axis + lead(shape(w.value));
        let weights = self.parameter(first, w.value, Role::Weights)?;
        let mut biases = Vec::new();
        for v in parts.bias.into_iter().chain(parts.add.map(|a| a.1)) {
            biases.push(self.parameter(first, v, Role::Bias)?);
        }
        let norm = match parts.norm.and_then(|id| self.model.graph.node(id)) {
            Some(node) => Some(self.norm(node)?),
            None => None,
        };
        if let (Function::ConvTranspose(c), Some(_)) = (&function, norm)
            && c.group > 1
        {
            return Err(self.refused(first, "normalization after grouped transposed convolutions"));
        }
        let joined: HashSet<NodeId> = parts.add.map(|a| a.0).into_iter().chain(parts.norm).collect();
        let rest = layer.nodes.iter().skip(1).filter(|id| !joined.contains(*id));
        let mut clamps = Vec::new();
        for node in rest.filter_map(|id| self.model.graph.node(*id)) {
            clamps.push(Function::of(self.graph(), node).map_err(|r| self.refused(node, r))?);
        }
        Ok(ProductStep {
            layer: index,
            function,
            x,
            weights,
            factors,
            axis,
            channels,
            biases,
            norm,
            clamps,
            raw,
            out,
        })
    }
}

impl Network {
    /// Reads a model, a folder with `model.onnx` or an ONNX file.
    ///
    /// Errors: [`Error::Untrainable`] with the first node that cannot be trained; a model that does
    /// not map pictures to a number for each class.
    pub fn open(path: &Path) -> Result<Self> {
        let model = FloatModel::open(path, &HashSet::new())?;
        let mut builder = Builder {
            model: &model,
            parameters: Vec::new(),
            index: HashMap::new(),
        };
        let steps = steps(&mut builder)?;
        let parameters = builder.parameters;
        let graph = &model.graph;
        let [input] = graph.inputs() else {
            let what = format!(
                "has {} inputs; only models with one can be trained",
                graph.inputs().len()
            );
            return Err(Error::model(&model.path, what));
        };
        let (batch, picture) = picture(&model, *input)?;
        let (logits, classes) = scores(&model)?;
        let mut done = vec![Vec::new(); steps.len()];
        let mut seen = HashSet::from([logits]);
        for (step, done) in steps.iter().zip(&mut done).rev() {
            done.extend(step.inputs().iter().copied().filter(|v| seen.insert(*v)));
        }
        Ok(Self {
            input_name: graph.value(*input).name.clone(),
            input: *input,
            steps,
            parameters,
            picture,
            classes,
            logits,
            batch,
            done,
            model,
        })
    }

    /// The parameters of the model file.
    pub fn initial(&self, device: &Device) -> Result<Vec<Tensor<4>>> {
        let graph = &self.model.graph;
        let mut all = Vec::with_capacity(self.parameters.len());
        for p in &self.parameters {
            let fact = graph.find(&p.name).and_then(|v| graph.value(v).fact.as_ref());
            let values = fact.and_then(|f| f.as_const()).and_then(|t| t.to_f32().ok());
            let Some(values) = values else {
                return Err(Error::model(
                    &self.model.path,
                    format!("\"{}\" is not constant", p.name),
                ));
            };
            all.push(Tensor::from_data(
                TensorData::new(values.into_owned(), p.shape),
                device,
            ));
        }
        Ok(all)
    }

    /// The output, before a final softmax.
    pub fn logits(&self) -> ValueId {
        self.logits
    }

    /// Checks that batches of this size can be run.
    pub fn check_batch(&self, size: usize) -> Result<()> {
        let fact = self.model.graph.fact(self.input)?;
        match fact.shape.0.first().and_then(|d| d.as_const()) {
            Some(n) if usize::try_from(n) != Ok(size) => Err(Error::option(
                "--batch",
                format!(
                    "the model has a fixed batch size of {n}, found {size}; export it with a dynamic batch axis"
                ),
            )),
            _ => Ok(()),
        }
    }

    fn shape(&self, v: ValueId, pictures: usize) -> Result<([usize; RANK], usize)> {
        let shape: &Shape = &self.model.graph.fact(v)?.shape;
        let mut bindings = Bindings::new();
        if let Some(symbol) = &self.batch {
            bindings.set(symbol, i64::try_from(pictures).unwrap_or(i64::MAX));
        }
        let sizes = shape.eval(&bindings).ok().and_then(|s| padded(&s));
        let name = &self.model.graph.value(v).name;
        let what = || format!("the shape of \"{name}\", {shape}, depends on more than the batch size");
        let sizes = sizes.ok_or_else(|| Error::model(&self.model.path, what()))?;
        Ok((sizes, shape.rank()))
    }

    /// Runs the network on `[pictures, channels, height, width]`.
    pub fn forward(&self, x: Tensor<4>, pass: &Pass<'_>) -> Result<Forward> {
        let [pictures, ..] = x.dims();
        let mut run = Run {
            network: self,
            pass,
            pictures,
            values: HashMap::new(),
            quantized: HashMap::new(),
            forward: (Vec::new(), Vec::new()),
        };
        run.store(
            self.input,
            Value {
                tensor: x,
                rank: RANK,
            },
        );
        for (step, done) in self.steps.iter().zip(&self.done) {
            run.step(step)?;
            for v in done {
                run.values.remove(v);
                run.quantized.remove(v);
            }
        }
        let logits = run.value(self.logits)?.tensor.reshape([pictures, self.classes]);
        let (statistics, extremes) = run.forward;
        Ok(Forward {
            logits,
            statistics,
            extremes,
        })
    }

    /// For each layer of the placement, its product with everything folded in, as quantized by a
    /// forward pass with these parameters.
    pub fn products(&self, pass: &Pass<'_>) -> Result<Vec<Option<TrainedProduct>>> {
        let mut all: Vec<Option<TrainedProduct>> = vec![None; self.model.placement.layers.len()];
        let Some(quantization) = &pass.quantization else {
            return Ok(all);
        };
        for step in &self.steps {
            let Step::Product(p) = step else { continue };
            let folded = p.folded(pass.parameters);
            let scales = self.scales(p, &folded, quantization);
            let product = TrainedProduct {
                scales: numbers(scales),
                weights: numbers(folded.weights),
                bias: folded.bias.map(numbers),
            };
            if let Some(to) = all.get_mut(p.layer) {
                *to = Some(product);
            }
        }
        Ok(all)
    }

    /// For each layer, its weights as a forward pass with these parameters uses them.
    pub fn fake_weights(&self, pass: &Pass<'_>) -> Vec<Option<Vec<f32>>> {
        let mut all = vec![None; self.model.placement.layers.len()];
        for step in &self.steps {
            if let (Step::Product(p), Some(q)) = (step, &pass.quantization)
                && let Some(to) = all.get_mut(p.layer)
            {
                let folded = p.folded(pass.parameters);
                let scales = self.scales(p, &folded, q);
                *to = Some(numbers(fake_weights(folded.weights, scales, q.weights)));
            }
        }
        all
    }

    /// The scales of a product's weights.
    fn scales(&self, p: &ProductStep, folded: &Folded, q: &Quantization<'_>) -> Tensor<4> {
        let range = self.model.placement.range_of(p.x);
        let input = range.and_then(|r| q.grids.get(r).copied().flatten());
        let dims = folded.weights.dims();
        let per_channel = |b: &Tensor<4>| dims.get(p.axis) == Some(&b.dims().iter().product());
        let least = folded.bias.clone().filter(per_channel).zip(input);
        let least = least.map(|(b, grid)| least_scales(along(b, p.axis), grid.scale));
        let axis = (!q.per_tensor).then_some(p.axis);
        weight_scales(&folded.weights, axis, q.weights, least)
    }
}

/// The elements of a tensor.
pub fn numbers<const D: usize>(x: Tensor<D>) -> Vec<f32> {
    // All tensors here hold `f32`.
    x.into_data().try_into_vec::<f32>().unwrap_or_default()
}

/// A vector of any layout along one axis.
fn along(x: Tensor<4>, axis: usize) -> Tensor<4> {
    let mut shape = [1; RANK];
    if let Some(size) = shape.get_mut(axis) {
        *size = x.dims().iter().product();
    }
    x.reshape(shape)
}

/// Weights and bias of a product with factors and normalization folded in.
struct Folded {
    weights: Tensor<4>,
    /// Along the last axis.
    bias: Option<Tensor<4>>,
}

impl ProductStep {
    fn weights(&self, parameters: &[Tensor<4>]) -> Tensor<4> {
        let w = parameters[self.weights].clone();
        let [factor, _] = self.factors;
        if factor == 1.0 { w } else { w.mul_scalar(factor) }
    }

    /// The bias before normalization, along the last axis.
    fn bias(&self, parameters: &[Tensor<4>]) -> Option<Tensor<4>> {
        let mut sum: Option<Tensor<4>> = None;
        for (i, at) in self.biases.iter().enumerate() {
            let b = along(parameters[*at].clone(), RANK - 1);
            let [_, factor] = self.factors;
            let b = if i == 0 && factor != 1.0 {
                b.mul_scalar(factor)
            } else {
                b
            };
            sum = Some(match sum {
                Some(sum) => sum + b,
                None => b,
            });
        }
        sum
    }

    /// Folds normalization by moving averages into the weights (equation 14 of the paper).
    fn folded(&self, parameters: &[Tensor<4>]) -> Folded {
        let weights = self.weights(parameters);
        let bias = self.bias(parameters);
        let Some(norm) = self.norm.map(|n| n.get(parameters)) else {
            let channels = weights.dims().get(self.axis).copied().unwrap_or(1);
            // One number for all channels.
            let whole = |b: Tensor<4>| match b.dims() {
                [1, 1, 1, 1] => b.repeat_dim(RANK - 1, channels),
                _ => b,
            };
            return Folded {
                bias: bias.map(whole),
                weights,
            };
        };
        let factor = norm.factor();
        let centered = match bias {
            Some(b) => b - norm.mean,
            None => norm.mean.neg(),
        };
        Folded {
            weights: weights * along(factor.clone(), self.axis),
            bias: Some(norm.bias + centered * factor),
        }
    }
}

/// The tensors of a normalization, along the last axis.
struct NormTensors {
    scale: Tensor<4>,
    bias: Tensor<4>,
    mean: Tensor<4>,
    variance: Tensor<4>,
    epsilon: f32,
}

impl Norm {
    fn get(self, parameters: &[Tensor<4>]) -> NormTensors {
        let get = |i: usize| along(parameters[i].clone(), RANK - 1);
        NormTensors {
            scale: get(self.scale),
            bias: get(self.bias),
            mean: get(self.mean).inner(),
            variance: get(self.variance).inner(),
            epsilon: self.epsilon,
        }
    }
}

impl NormTensors {
    fn deviation(&self) -> Tensor<4> {
        self.variance.clone().add_scalar(self.epsilon).sqrt()
    }

    fn factor(&self) -> Tensor<4> {
        self.scale.clone() / self.deviation()
    }
}

/// Mean and variance of all elements of each channel, along `axis`.
fn statistics(x: &Tensor<4>, axis: usize) -> [Tensor<4>; 2] {
    let others: Vec<usize> = (0..RANK).rev().filter(|a| *a != axis).collect();
    let mean = |x: Tensor<4>| others.iter().fold(x, |x, a| x.mean_dim(*a));
    let center = mean(x.clone());
    let deviation = x.clone() - center.clone();
    [center, mean(deviation.clone() * deviation)]
}

/// A forward pass in progress.
struct Run<'a> {
    network: &'a Network,
    pass: &'a Pass<'a>,
    pictures: usize,
    values: HashMap<ValueId, Value>,
    /// Quantized copies of values that other readers get as floats.
    quantized: HashMap<ValueId, Value>,
    /// Statistics and extremes so far.
    forward: (Vec<(usize, Tensor<4>)>, Vec<(usize, [Tensor<1>; 2])>),
}

impl Run<'_> {
    fn value(&self, v: ValueId) -> Result<Value> {
        let found = self.values.get(&v).cloned();
        found.map_or_else(|| self.constant(v), Ok)
    }

    fn constant(&self, v: ValueId) -> Result<Value> {
        let network = self.network;
        let value = network.model.graph.value(v);
        let missing = || {
            Error::model(
                &network.model.path,
                format!("value \"{}\" is missing", value.name),
            )
        };
        let tensor = value
            .fact
            .as_ref()
            .and_then(|f| f.as_const())
            .ok_or_else(missing)?;
        let numbers = tensor.to_f32().map_err(|_| missing())?.into_owned();
        let shape = padded(tensor.shape()).ok_or_else(missing)?;
        let device = self
            .pass
            .parameters
            .first()
            .map(Tensor::device)
            .unwrap_or_default();
        let tensor4 = Tensor::from_data(TensorData::new(numbers, shape), &device);
        Ok(Value {
            tensor: tensor4,
            rank: tensor.shape().len(),
        })
    }

    /// The operand of a node, quantized if the node's layer reads it so.
    fn operand(&self, v: ValueId, in_layer: bool) -> Result<Value> {
        match self.quantized.get(&v) {
            Some(q) if in_layer => Ok(q.clone()),
            _ => {
                let mut value = self.value(v)?;
                // Computed values are quantized already.
                let is_constant = !self.values.contains_key(&v);
                if let Some(grid) = self.grid(v).filter(|_| in_layer && is_constant) {
                    value.tensor = grid.fake(value.tensor);
                }
                Ok(value)
            }
        }
    }

    /// How the range of a value is quantized.
    fn grid(&self, v: ValueId) -> Option<Grid> {
        let range = self.network.model.placement.range_of(v)?;
        self.pass
            .quantization
            .and_then(|q| q.grids.get(range).copied().flatten())
    }

    /// Observes and quantizes a value that was computed, and keeps it.
    fn store(&mut self, v: ValueId, mut value: Value) {
        let placement = &self.network.model.placement;
        let range = placement
            .range_of(v)
            .and_then(|r| Some((r, placement.ranges.get(r)?)));
        let Some((r, _)) = range.filter(|(_, range)| range.sources.contains(&v)) else {
            self.values.insert(v, value);
            return;
        };
        if self.pass.observe {
            let plain = value.tensor.clone().inner();
            self.forward.1.push((r, [plain.clone().min(), plain.max()]));
        }
        if let Some(grid) = self.grid(v) {
            let tensor = grid.fake(value.tensor.clone());
            let quantized = Value {
                tensor,
                rank: value.rank,
            };
            if placement.is_computed(v) {
                value = quantized;
            } else {
                self.quantized.insert(v, quantized);
            }
        }
        self.values.insert(v, value);
    }

    fn step(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::Product(product) => self.product(product),
            Step::Norm { norm, x, out } => {
                let x = self.value(*x)?;
                let axis = x.axis(1);
                let tensor = self.normalized(*norm, x.tensor.clone(), axis);
                self.store(*out, Value { tensor, rank: x.rank });
                Ok(())
            }
            Step::Function {
                function,
                inputs,
                out,
                quantized,
            } => {
                let inputs = inputs.iter().map(|v| self.operand(*v, *quantized));
                let inputs: Vec<Value> = inputs.collect::<Result<_>>()?;
                let (shape, rank) = self.network.shape(*out, self.pictures)?;
                let value = function.apply(&inputs, shape, rank);
                let value = value.map_err(|r| Error::model(&self.network.model.path, r))?;
                self.store(*out, value);
                Ok(())
            }
        }
    }

    /// Normalizes, and returns the batch's statistics if they are asked for.
    fn normalized(&mut self, norm: Norm, x: Tensor<4>, axis: usize) -> Tensor<4> {
        let mut n = norm.get(self.pass.parameters);
        if self.pass.statistics == Statistics::Batch {
            let [mean, variance] = statistics(&x, axis).map(|s| along(s, RANK - 1));
            self.keep(norm, &mean, &variance);
            (n.mean, n.variance) = (mean, variance);
        } else if self.pass.statistics == Statistics::Averages {
            let [mean, variance] = statistics(&x.clone().inner(), axis).map(|s| along(s, RANK - 1));
            self.keep(norm, &mean, &variance);
        }
        let factor = n.factor();
        let shift = n.bias - n.mean * factor.clone();
        x * along(factor, axis) + along(shift, axis)
    }

    fn keep(&mut self, norm: Norm, mean: &Tensor<4>, variance: &Tensor<4>) {
        let kept = [(norm.mean, mean), (norm.variance, variance)];
        self.forward.0.extend(kept.map(|(i, t)| (i, t.clone().inner())));
    }

    /// The product without bias.
    fn multiplied(&self, p: &ProductStep, x: Tensor<4>, w: Tensor<4>) -> Result<Tensor<4>> {
        let (shape, rank) = self.network.shape(p.raw, self.pictures)?;
        let operands = [x, w].map(|tensor| Value { tensor, rank: RANK });
        let made = p.function.apply(&operands, shape, rank);
        made.map(|v| v.tensor)
            .map_err(|r| Error::model(&self.network.model.path, r))
    }

    /// The product with bias, before normalization, in floats.
    fn raw(&self, p: &ProductStep, x: Tensor<4>, w: Tensor<4>) -> Result<Tensor<4>> {
        let y = self.multiplied(p, x, w)?;
        Ok(match p.bias(self.pass.parameters) {
            Some(b) => y + along(b, p.channels),
            None => y,
        })
    }

    fn float_product(&mut self, p: &ProductStep, x: Tensor<4>) -> Result<Tensor<4>> {
        let y = self.raw(p, x, p.weights(self.pass.parameters))?;
        Ok(match p.norm {
            Some(norm) => self.normalized(norm, y, p.channels),
            None => y,
        })
    }

    fn quantized_product(
        &mut self,
        p: &ProductStep,
        x: Tensor<4>,
        q: &Quantization<'_>,
    ) -> Result<Tensor<4>> {
        let parameters = self.pass.parameters;
        let folded = p.folded(parameters);
        let scales = self.network.scales(p, &folded, q);
        let y = self.multiplied(p, x.clone(), fake_weights(folded.weights, scales, q.weights))?;
        let Some(norm) = p.norm.filter(|_| self.pass.statistics == Statistics::Batch) else {
            if let Some(norm) = p.norm.filter(|_| self.pass.statistics == Statistics::Averages) {
                let y = self.raw(p, x.inner(), p.weights(parameters).inner())?;
                let [mean, variance] = statistics(&y, p.channels).map(|s| along(s, RANK - 1));
                self.keep(norm, &mean, &variance);
            }
            return Ok(match folded.bias {
                Some(b) => y + along(b, p.channels),
                None => y,
            });
        };
        // The weights are folded with the averages; what remains scales to the batch.
        let exact = self.raw(p, x, p.weights(parameters))?;
        let [mean, variance] = statistics(&exact, p.channels).map(|s| along(s, RANK - 1));
        self.keep(norm, &mean, &variance);
        let averages = norm.get(parameters);
        let centered = match p.bias(parameters) {
            Some(b) => b - mean.clone(),
            None => mean.clone().neg(),
        };
        let batch = NormTensors {
            mean,
            variance,
            ..norm.get(parameters)
        };
        let ratio = averages.deviation() / batch.deviation();
        let shift = batch.bias.clone() + centered * batch.factor();
        Ok(y * along(ratio, p.channels) + along(shift, p.channels))
    }

    fn product(&mut self, p: &ProductStep) -> Result<()> {
        let x = self.operand(p.x, true)?.tensor;
        let tensor = match &self.pass.quantization {
            None => self.float_product(p, x)?,
            Some(q) => self.quantized_product(p, x, q)?,
        };
        let (shape, rank) = self.network.shape(p.out, self.pictures)?;
        let mut value = Value { tensor, rank };
        for clamp in &p.clamps {
            let made = clamp.apply(&[value], shape, rank);
            value = made.map_err(|r| Error::model(&self.network.model.path, r))?;
        }
        self.store(p.out, value);
        Ok(())
    }
}

impl Step {
    fn inputs(&self) -> &[ValueId] {
        match self {
            Self::Product(p) => std::slice::from_ref(&p.x),
            Self::Norm { x, .. } => std::slice::from_ref(x),
            Self::Function { inputs, .. } => inputs,
        }
    }
}

/// The steps of a model, in order.
fn steps(builder: &mut Builder<'_>) -> Result<Vec<Step>> {
    let model = builder.model;
    let graph = &model.graph;
    let layers = || model.placement.layers.iter().enumerate();
    // The layer that begins with a node, and all nodes in layers.
    let first: HashMap<NodeId, (usize, &Layer)> = layers()
        .filter_map(|(i, l)| Some((*l.nodes.first()?, (i, l))))
        .collect();
    let inside: HashSet<NodeId> = layers().flat_map(|(_, l)| l.nodes.iter().copied()).collect();
    let mut joined: HashSet<NodeId> = HashSet::new();
    let mut steps = Vec::new();
    for id in graph.order()? {
        let Some(node) = graph.node(id).filter(|n| is_computed(graph, n)) else {
            continue;
        };
        if joined.contains(&id) {
            continue;
        }
        if let Some((index, layer)) = first.get(&id)
            && let LayerKind::Product(
                parts @ Product {
                    weights: Some(weights),
                    ..
                },
            ) = &layer.kind
        {
            joined.extend(&layer.nodes);
            steps.push(Step::Product(Box::new(
                builder.product(*index, layer, parts, *weights)?,
            )));
            continue;
        }
        let out = node.outputs.first().copied();
        let out = out.ok_or_else(|| builder.refused(node, "it has no result"))?;
        if node.op.downcast::<BatchNorm>().is_some() {
            let x = node.inputs.first().copied().flatten();
            let x = x.ok_or_else(|| builder.refused(node, "it has no operand"))?;
            let norm = builder.norm(node)?;
            steps.push(Step::Norm { norm, x, out });
            continue;
        }
        let function = Function::of(graph, node).map_err(|r| builder.refused(node, r))?;
        let inputs = node.inputs.iter().flatten().copied().collect();
        let quantized = inside.contains(&id);
        steps.push(Step::Function {
            function,
            inputs,
            out,
            quantized,
        });
    }
    Ok(steps)
}

/// True for a node that computes floats which are not known beforehand.
fn is_computed(graph: &Graph, node: &Node) -> bool {
    let fact = node.outputs.first().and_then(|v| graph.value(*v).fact.as_ref());
    fact.is_some_and(|f| f.dtype == DType::F32 && f.as_const().is_none())
}

/// The symbol of the batch size, and channels, height and width of the pictures.
fn picture(model: &FloatModel, input: ValueId) -> Result<(Option<Symbol>, [usize; 3])> {
    let fact = model.graph.fact(input)?;
    let size = |i: usize| {
        fact.shape
            .0
            .get(i)?
            .as_const()
            .and_then(|n| usize::try_from(n).ok())
    };
    let sizes = (fact.shape.rank() == RANK && fact.dtype == DType::F32).then(|| [size(1), size(2), size(3)]);
    let Some([Some(channels), Some(height), Some(width)]) = sizes else {
        let what = format!(
            "input \"{}\": expected f32[batch, channels, height, width] with fixed channels, height and width, found {fact}",
            model.graph.value(input).name
        );
        return Err(Error::model(&model.path, what));
    };
    let batch = fact.shape.0.first().and_then(|d| d.as_symbol()).cloned();
    Ok((batch, [channels, height, width]))
}

/// The output, before a final softmax, and its number of classes.
fn scores(model: &FloatModel) -> Result<(ValueId, usize)> {
    let graph = &model.graph;
    let [output] = graph.outputs() else {
        let what = format!(
            "has {} outputs; only models with one can be trained",
            graph.outputs().len()
        );
        return Err(Error::model(&model.path, what));
    };
    let softmax = graph
        .producer(*output)
        .filter(|(_, n)| n.op.downcast::<Softmax>().is_some());
    let logits = softmax
        .and_then(|(_, n)| n.inputs.first().copied().flatten())
        .unwrap_or(*output);
    let fact = graph.fact(logits)?;
    let sizes = fact.shape.0.get(1..).unwrap_or_default().iter();
    let sizes: Option<Vec<usize>> = sizes.map(|d| usize::try_from(d.as_const()?).ok()).collect();
    match sizes {
        Some(sizes) if !sizes.is_empty() => Ok((logits, sizes.iter().product())),
        _ => {
            let name = &graph.value(*output).name;
            let what = format!("output \"{name}\": expected f32[batch, classes], found {fact}");
            Err(Error::model(&model.path, what))
        }
    }
}
