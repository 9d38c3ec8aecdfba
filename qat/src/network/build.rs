//! Finds the parameters and steps of a model.

use super::{Norm, Parameter, ProductStep, Role, Step};
use crate::error::{Error, Result};
use crate::op::Function;
use crate::value::{RANK, padded};
use std::collections::{HashMap, HashSet};
use transformer_lite::unstable::graph::op::batch_norm::BatchNorm;
use transformer_lite::unstable::graph::op::gemm::Gemm;
use transformer_lite::unstable::graph::op::softmax::Softmax;
use transformer_lite::unstable::graph::quantization::{Layer, LayerKind, Product, Weights};
use transformer_lite::unstable::graph::{Graph, Node, NodeId, ValueId};
use transformer_lite::unstable::shape::Symbol;
use transformer_lite::unstable::tensor::DType;
use transformer_lite_convert::int8::FloatModel;

/// Collects the parameters of a graph.
pub(super) struct Builder<'a> {
    pub model: &'a FloatModel,
    pub parameters: Vec<Parameter>,
    pub index: HashMap<ValueId, usize>,
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

/// The steps of a model, in order.
pub(super) fn steps(builder: &mut Builder<'_>) -> Result<Vec<Step>> {
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
        // Further operands of these are sizes and axes.
        let single = matches!(
            function,
            Function::Reshape | Function::Mean(_) | Function::Identity
        );
        let operands = if single { 1 } else { usize::MAX };
        let inputs = node.inputs.iter().flatten().copied().take(operands).collect();
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
pub(super) fn picture(model: &FloatModel, input: ValueId) -> Result<(Option<Symbol>, [usize; 3])> {
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

/// The output, before a final softmax, and its sizes without the batch.
pub(super) fn scores(model: &FloatModel) -> Result<(ValueId, Vec<usize>)> {
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
        Some(sizes) if !sizes.is_empty() => Ok((logits, sizes)),
        _ => {
            let name = &graph.value(*output).name;
            let what = format!("output \"{name}\": expected f32[batch, classes], found {fact}");
            Err(Error::model(&model.path, what))
        }
    }
}
