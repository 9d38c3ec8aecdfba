//! Where a float graph is quantized to 8 bits. Post-training quantization, quantization-aware
//! training and integer execution agree on this placement (section 2.4 of *Integer-Arithmetic-Only
//! Inference*: what runs as one layer is quantized once).
//!
//! A [`Layer`] is what an integer kernel computes from quantized values:
//!
//! | kind | operators | range of the result |
//! |---|---|---|
//! | product | `Conv`, `ConvTranspose`, `Gemm`, `MatMul`, with bias, `BatchNormalization` and clamp | own |
//! | binary | `Add`, `Sub`, `Mul` of two tensors, with clamp | own |
//! | mean | `AveragePool`, `GlobalAveragePool`, `ReduceMean`, with clamp | own |
//! | softmax | `Softmax` | 0 to 255/256 |
//! | table | elementwise operators that depend on one element of one tensor | own; of `Sigmoid` and `Tanh` fixed |
//! | move | `Concat`, `MaxPool`, `Reshape`, `Transpose` and others that move elements | that of the operands |
//!
//! A clamp is a `Relu` or `Clip` that is the only reader. All other operators stay in floats.
//!
//! A layer is quantized if it is a product, or if it reads a quantized value: a result of another
//! layer or an input of the graph. A `Concat` that no computation reads stays in floats, since a
//! common range would cost accuracy for nothing. So does everything that reads a value computed
//! from integers alone, such as an attention mask, and decomposed normalization.

mod layers;
mod ranges;
#[cfg(test)]
mod tests;

use super::{Graph, Node, NodeId, ValueId};
use crate::error::Result;
use crate::quant::fixed::Affine;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

/// What a layer computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// A matrix product or convolution.
    Product(Product),
    /// A function of two tensors, elementwise.
    Binary,
    /// A mean of elements.
    Mean,
    Softmax,
    /// An elementwise function of one tensor: a table of 256 results.
    Table,
    /// Elements are moved, repeated, dropped, or compared for the largest.
    Move,
}

impl LayerKind {
    /// The name in reports.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Product(_) => "product",
            Self::Binary => "binary",
            Self::Mean => "mean",
            Self::Softmax => "softmax",
            Self::Table => "table",
            Self::Move => "move",
        }
    }
}

/// The parts of a product. Nodes after the first read only the one before, and constants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Product {
    /// The constant operand; `None` for a product of two activations.
    pub weights: Option<Weights>,
    /// The constant bias that the product itself reads.
    pub bias: Option<ValueId>,
    /// An `Add` of a constant for each output channel.
    pub add: Option<(NodeId, ValueId)>,
    /// A `BatchNormalization` with constant statistics.
    pub norm: Option<NodeId>,
}

/// The weights of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weights {
    pub value: ValueId,
    /// The operand that they are.
    pub operand: usize,
    /// The axis of output channels; for a transposed convolution, of those of a group.
    pub axis: usize,
}

/// Nodes that are quantized as one operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    pub kind: LayerKind,
    /// In order; the first one names the layer.
    pub nodes: Vec<NodeId>,
    /// Quantized operands, constants among them, without weights and biases. Each is listed once.
    pub inputs: Vec<ValueId>,
    /// Quantized results.
    pub outputs: Vec<ValueId>,
}

/// Quantized values with a common scale and zero point.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedRange {
    /// In the order in which they are computed.
    pub values: Vec<ValueId>,
    /// Those that are not made of others of this range; their elements decide the range.
    pub sources: Vec<ValueId>,
    /// Set if the function that computes the values fixes the range.
    pub fixed: Option<Affine>,
}

/// Why a node stays in floats, for users.
pub type Reason = Cow<'static, str>;

/// A node that computes floats from floats and stays so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    pub node: NodeId,
    pub reason: Reason,
}

/// The first node that converts to or from integers or computes with them; `None` for a float
/// model.
pub fn quantized_node(graph: &Graph) -> Option<&Node> {
    let quantizes = |n: &&Node| {
        let name = n.op.name();
        let converts = name.ends_with("QuantizeLinear") || name == "DequantizeLinear";
        converts || name.ends_with("Integer") || name.starts_with("QLinear") || name == "QGemm"
    };
    graph.nodes().map(|(_, n)| n).find(quantizes)
}

/// The quantized parts of a graph.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placement {
    /// In topological order.
    pub layers: Vec<Layer>,
    pub ranges: Vec<SharedRange>,
    /// Nodes that stay in floats.
    pub left: Vec<Left>,
    /// Indices into `ranges`.
    range_of: HashMap<ValueId, usize>,
    /// Results of layers.
    computed: HashSet<ValueId>,
}

impl Placement {
    /// The placement for `graph`, whose facts must be derived. Nodes whose names are in
    /// `keep_float` stay in floats.
    pub fn of(graph: &Graph, keep_float: &HashSet<String>) -> Result<Self> {
        let mut placement = layers::find(graph, keep_float)?;
        placement.computed = placement
            .layers
            .iter()
            .flat_map(|l| l.outputs.iter().copied())
            .collect();
        placement.ranges = ranges::shared(graph, &placement.layers);
        let indices = placement.ranges.iter().enumerate();
        placement.range_of = indices
            .flat_map(|(i, r)| r.values.iter().map(move |v| (*v, i)))
            .collect();
        Ok(placement)
    }

    /// The index of the range of a quantized value; `None` for other values.
    pub fn range_of(&self, value: ValueId) -> Option<usize> {
        self.range_of.get(&value).copied()
    }

    /// True if a layer computes the value, so that every reader gets it quantized. Other quantized
    /// values are inputs of the graph, constants and results of nodes in floats; only layers read
    /// those quantized.
    pub fn is_computed(&self, value: ValueId) -> bool {
        self.computed.contains(&value)
    }
}
