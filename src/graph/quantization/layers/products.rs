//! The parts of products: weights, biases, and nodes that become part of them.

use super::{Finder, is_const};
use crate::graph::op::conv::Conv;
use crate::graph::op::conv_transpose::ConvTranspose;
use crate::graph::op::gemm::Gemm;
use crate::graph::op::matmul::MatMul;
use crate::graph::op::pointwise::Pointwise;
use crate::graph::pass::pattern::input;
use crate::graph::quantization::{Product, Weights};
use crate::graph::{Node, NodeId, ValueId};

impl Finder<'_> {
    /// The node after `last`, if it becomes part of the weights and bias of the product `first`.
    pub(super) fn joins_product(&self, first: &Node, product: &mut Product, last: NodeId) -> Option<NodeId> {
        product.weights?;
        let out = *self.graph.node(last)?.outputs.first()?;
        let rank = self.graph.value(out).fact.as_ref()?.shape.rank();
        let channels = if first.op.name() == "MatMul" {
            rank.checked_sub(1)?
        } else {
            1
        };
        let size = self
            .graph
            .value(out)
            .fact
            .as_ref()?
            .shape
            .0
            .get(channels)?
            .as_const()?;
        let size = usize::try_from(size).ok()?;
        let (id, node) = self.reader(last)?;
        match node.op.name() {
            "Add" if product.add.is_none() && product.norm.is_none() => {
                node.op.downcast::<Pointwise>()?;
                let constants = node.inputs.iter().flatten().filter(|v| is_const(self.graph, **v));
                let bias = *constants.into_iter().next()?;
                let shape = &self.graph.value(bias).fact.as_ref()?.as_const()?.shape().to_vec();
                // Aligned with the last axes.
                let along = channels.checked_sub(rank.checked_sub(shape.len())?);
                let alone = |(i, n): (usize, &usize)| *n == 1 || Some(i) == along && *n == size;
                let whole = shape.iter().enumerate().all(alone);
                (whole && shape.iter().product::<usize>() == size && self.constant(bias).is_some()).then(
                    || {
                        product.add = Some((id, bias));
                        id
                    },
                )
            }
            "BatchNormalization" if product.norm.is_none() && channels == 1 => {
                let constant = |i: usize| input(node, i).is_some_and(|v| self.constant(v).is_some());
                let alone = node.outputs.iter().skip(1);
                let alone = alone.into_iter().all(|v| self.consumers[v.index()].is_empty());
                ((1..5).all(constant) && alone).then(|| {
                    product.norm = Some(id);
                    id
                })
            }
            _ => None,
        }
    }

    /// `None` if an operand that should be constant is not.
    pub(super) fn product(&self, node: &Node) -> Option<Product> {
        let rank = |v: ValueId| self.graph.value(v).fact.as_ref().map(|f| f.shape.rank());
        let constant = |i| input(node, i).filter(|v| is_const(self.graph, *v));
        let bias = match input(node, 2) {
            Some(_) => Some(constant(2)?),
            None => None,
        };
        let op = &node.op;
        let weights = if op.downcast::<Conv>().is_some() {
            Some((constant(1)?, 1, 0))
        } else if op.downcast::<ConvTranspose>().is_some() {
            Some((constant(1)?, 1, 1))
        } else if let Some(gemm) = op.downcast::<Gemm>() {
            Some((constant(1)?, 1, usize::from(!gemm.trans_b)))
        } else {
            let product = op.downcast::<MatMul>()?;
            let from_end = if product.trans_b { 2 } else { 1 };
            match (constant(0), constant(1)) {
                (None, None) => None,
                (None, Some(w)) => Some((w, 1, rank(w)?.checked_sub(from_end)?)),
                _ => return None,
            }
        };
        let x = input(node, 0)?;
        (!is_const(self.graph, x)).then(|| Product {
            weights: weights.map(|(value, operand, axis)| Weights { value, operand, axis }),
            bias,
            add: None,
            norm: None,
        })
    }

    /// True if the bias of a product, if it has one, is a number for each output channel or for
    /// all. That of `Gemm` may also differ between rows.
    pub(super) fn bias_is_row(&self, node: &Node, product: &Product) -> bool {
        let sizes = |v: ValueId| self.graph.value(v).fact.as_ref()?.shape.as_fixed();
        let Some(bias) = product.bias.filter(|_| node.op.name() == "Gemm") else {
            return true;
        };
        let channels = product.weights.and_then(|w| sizes(w.value)?.get(w.axis).copied());
        let bias = sizes(bias).unwrap_or_default();
        let count: usize = bias.iter().product();
        count == 1 || bias.last().copied() == channels && Some(count) == channels
    }
}
