//! Finds the nodes that can be computed with integers.

use super::chain::Chains;
use super::view::View;
use super::{Found, binary, matmul, moves, pool, product, refuse, softmax, table};
use crate::error::Result;
use crate::graph::op::conv::Conv;
use crate::graph::op::conv_transpose::ConvTranspose;
use crate::graph::op::gemm::Gemm;
use crate::graph::op::global_pool::GlobalPool;
use crate::graph::op::matmul::MatMul;
use crate::graph::op::pointwise::Pointwise;
use crate::graph::op::pool::Pool;
use crate::graph::op::quantize_linear::QuantizeLinear;
use crate::graph::op::reduce::Reduce;
use crate::graph::op::softmax::Softmax;
use crate::graph::{Edit, NodeId};
use crate::quant::fixed::Arithmetic;
use std::collections::HashSet;

/// Nodes whose result is replaced; the last one computes it.
pub(super) type Nodes = Vec<NodeId>;

/// The nodes that read quantized activations.
pub(super) struct Sites {
    /// In topological order, each with its replacement or the reason why it has none.
    pub found: Vec<(Nodes, Found)>,
    /// Nodes of several that are replaced together, and that nothing else needs.
    pub covered: HashSet<NodeId>,
}

/// The sites of a graph.
pub(super) fn sites(edit: &Edit<'_>, arithmetic: Arithmetic) -> Result<Sites> {
    let order = edit.order()?;
    let Chains { mut ends, covered } = Chains::find(edit, &order, arithmetic);
    let mut found = Vec::new();
    for id in order {
        if let Some((chain, site)) = ends.remove(&id) {
            found.push((chain.nodes, Ok(site)));
        } else if let Some(view) = View::new(edit, id).filter(|_| !covered.contains(&id)) {
            found.push((vec![id], site(&view, arithmetic)));
        }
    }
    Ok(Sites { found, covered })
}

/// The site of a node; each kind has a module.
fn site(view: &View<'_, '_>, arithmetic: Arithmetic) -> Found {
    let op = view.op;
    if let Some(conv) = op.downcast::<Conv>() {
        product::convolution(view, conv, arithmetic)
    } else if let Some(conv) = op.downcast::<ConvTranspose>() {
        product::transposed(view, conv, arithmetic)
    } else if let Some(gemm) = op.downcast::<Gemm>() {
        product::general_matmul(view, gemm, arithmetic)
    } else if let Some(matmul) = op.downcast::<MatMul>() {
        matmul::find(view, matmul, arithmetic)
    } else if op.downcast::<QuantizeLinear>().is_some() {
        table::requantized(view, arithmetic)
    } else if let Some(pointwise) = op.downcast::<Pointwise>() {
        match view.only_operand() {
            Some(x) => table::of_one(view, x, arithmetic),
            None => binary::find(view, pointwise, arithmetic),
        }
    } else if let Some(pool) = op.downcast::<Pool>() {
        pool::windows(view, pool, arithmetic)
    } else if op.downcast::<GlobalPool>().is_some() || op.downcast::<Reduce>().is_some() {
        pool::whole(view, arithmetic)
    } else if let Some(softmax) = op.downcast::<Softmax>() {
        softmax::find(view, softmax)
    } else if moves::is_move(op) {
        moves::find(view, arithmetic)
    } else {
        Err(refuse("an operator without an integer form"))
    }
}
