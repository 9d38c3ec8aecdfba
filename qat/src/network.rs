//! A walker from the engine's graph to `burn` tensors: an ONNX network that can be trained.

mod build;
mod pass;

use crate::error::{Error, Result};
use crate::fake::{Bits, Grid, fake_weights, least_scales, weight_scales};
use crate::op::Function;
use crate::value::{RANK, Value, padded};
use build::{Builder, picture, scores, steps};
use burn::tensor::{Device, Tensor, TensorData};
use pass::{Folded, Run};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use transformer_lite::unstable::graph::ValueId;
use transformer_lite::unstable::shape::{Bindings, Shape, Symbol};
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
    /// `[pictures, outputs]`, before a final softmax.
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
    /// Sizes of the output without the batch.
    pub output: Vec<usize>,
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

impl Network {
    /// Reads a model, a folder with `model.onnx` or an ONNX file.
    ///
    /// Errors: [`Error::Untrainable`] with the first node that cannot be trained; a model that does
    /// not map pictures to numbers.
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
        let (logits, output) = scores(&model)?;
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
            output,
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

    /// Number of elements of the output for a picture.
    pub fn outputs(&self) -> usize {
        self.output.iter().product()
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
            statistics: Vec::new(),
            extremes: Vec::new(),
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
        let logits = run.value(self.logits)?.tensor.reshape([pictures, self.outputs()]);
        Ok(Forward {
            logits,
            statistics: run.statistics,
            extremes: run.extremes,
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
                scales: numbers(scales)?,
                weights: numbers(folded.weights)?,
                bias: folded.bias.map(numbers).transpose()?,
            };
            if let Some(to) = all.get_mut(p.layer) {
                *to = Some(product);
            }
        }
        Ok(all)
    }

    /// For each layer, its weights as a forward pass with these parameters uses them.
    pub fn fake_weights(&self, pass: &Pass<'_>) -> Result<Vec<Option<Vec<f32>>>> {
        let mut all = vec![None; self.model.placement.layers.len()];
        for step in &self.steps {
            if let (Step::Product(p), Some(q)) = (step, &pass.quantization)
                && let Some(to) = all.get_mut(p.layer)
            {
                let folded = p.folded(pass.parameters);
                let scales = self.scales(p, &folded, q);
                *to = Some(numbers(fake_weights(folded.weights, scales, q.weights))?);
            }
        }
        Ok(all)
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

/// The elements of a tensor of `f32`.
pub fn numbers<const D: usize>(x: Tensor<D>) -> Result<Vec<f32>> {
    let elements = x.into_data().try_into_vec::<f32>();
    elements.map_err(|e| Error::Internal(format!("a tensor without f32 elements: {e:?}")))
}

/// A vector of any layout along one axis.
fn along(x: Tensor<4>, axis: usize) -> Tensor<4> {
    let mut shape = [1; RANK];
    if let Some(size) = shape.get_mut(axis) {
        *size = x.dims().iter().product();
    }
    x.reshape(shape)
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
