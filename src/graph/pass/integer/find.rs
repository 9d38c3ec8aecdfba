//! Finds the nodes that can be computed with integers.

use super::chain::Chains;
use super::pack::{Packed, Product, ProductKind, pack};
use super::shapes::{
    binary_axes, channels, reduced, softmax_axis, spatial, summed, taps, usual_axis, with_rank,
};
use super::values::{Bias, Quantized, Result8, Weights};
use super::view::View;
use super::{Refusal, moves, refuse, table};
use crate::error::Result;
use crate::graph::op::conv::Conv;
use crate::graph::op::conv_transpose::ConvTranspose;
use crate::graph::op::gemm::Gemm;
use crate::graph::op::global_pool::GlobalPool;
use crate::graph::op::int8_binary::{Function, Int8Binary};
use crate::graph::op::int8_matmul::Int8MatMul;
use crate::graph::op::int8_pool::{self, mean_factors};
use crate::graph::op::int8_softmax;
use crate::graph::op::matmul::MatMul;
use crate::graph::op::pointwise::{Binary, Expr, Pointwise};
use crate::graph::op::pool::{self, Pool};
use crate::graph::op::quantize_linear::QuantizeLinear;
use crate::graph::op::reduce::{self, Reduce};
use crate::graph::op::softmax::Softmax;
use crate::graph::op::window::Window;
use crate::graph::{Edit, NodeId, Op, ValueId};
use crate::num;
use crate::quant::fixed::{Affine, Arithmetic, Factor, Output};
use crate::tensor::HostTensor;
use std::collections::HashSet;

pub(super) type Matched<T> = std::result::Result<T, Refusal>;

/// A node that operators of the integer domain replace, with what they need.
#[derive(Clone, Debug)]
pub(super) enum Site {
    /// A matmul or convolution with constant weights.
    Product(Box<Constant>),
    /// A matmul of two activations; the second one is `[.., n, k]` if `transposed`.
    MatMul {
        operands: [Quantized; 2],
        transposed: bool,
        op: Int8MatMul,
        to: Quantized,
    },
    /// A function of two operands. Their shapes are padded to the rank of the result.
    Binary {
        operands: [Quantized; 2],
        /// The axes that all of them can store last.
        axes: Vec<usize>,
        op: Int8Binary,
        to: Quantized,
    },
    /// A function of one activation, as a table.
    Table {
        x: Quantized,
        table: Vec<i8>,
        to: Quantized,
    },
    Pool(Pooling),
    Softmax {
        x: Quantized,
        axis: usize,
        channels: i64,
        table: HostTensor,
        to: Quantized,
    },
    Move(Move),
}

/// A matmul or convolution with constant weights.
#[derive(Clone, Debug)]
pub(super) struct Constant {
    pub x: Quantized,
    /// The axis that the operand and the result store last.
    pub axis: usize,
    /// For a transposed convolution: the distance of the elements of x along each spatial axis
    /// after zero points were inserted between them.
    pub steps: Option<Vec<i64>>,
    pub packed: Packed,
    pub to: Quantized,
    pub output: Output,
}

/// A maximum or mean over windows.
#[derive(Clone, Debug)]
pub(super) struct Pooling {
    pub x: Quantized,
    pub kind: int8_pool::Kind,
    pub factors: Vec<Factor>,
    pub window: Window,
    pub output: Output,
    /// Rescales maxima to the map of the result, if it differs from that of x.
    pub table: Option<Vec<i8>>,
    pub to: Quantized,
}

/// An operator that moves elements.
#[derive(Clone, Debug)]
pub(super) struct Move {
    pub op: Box<dyn Op>,
    /// Operands, each with a table that rescales it to the map of the results, if its own differs.
    pub operands: Vec<(Quantized, Option<Vec<i8>>)>,
    /// The remaining operands, which are not quantized.
    pub others: Vec<Option<ValueId>>,
    /// The integer that constant padding holds.
    pub padding: Option<i8>,
    pub results: Vec<Quantized>,
}

/// Nodes whose result is replaced; the last one computes it.
pub(super) type Nodes = Vec<NodeId>;

/// The nodes that read quantized activations.
pub(super) struct Sites {
    /// In topological order, each with its replacement or the reason why it has none.
    pub found: Vec<(Nodes, Matched<Site>)>,
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
            found.push((vec![id], view.site(arithmetic)));
        }
    }
    Ok(Sites { found, covered })
}

impl View<'_, '_> {
    fn site(&self, arithmetic: Arithmetic) -> Matched<Site> {
        if let Some(conv) = self.op.downcast::<Conv>() {
            return convolution(self, conv, arithmetic);
        }
        if let Some(conv) = self.op.downcast::<ConvTranspose>() {
            return transposed(self, conv, arithmetic);
        }
        if let Some(gemm) = self.op.downcast::<Gemm>() {
            return general_matmul(self, gemm, arithmetic);
        }
        if let Some(matmul) = self.op.downcast::<MatMul>() {
            return product_of(self, matmul, arithmetic);
        }
        if self.op.downcast::<QuantizeLinear>().is_some() {
            let to = self.rescaled()?;
            let (x, output) = (self.operand(0)?, Output::new(to.map.zero));
            let table = table::rescaling(x.map, to.map, output, arithmetic);
            return tabulated(x, table, to);
        }
        if let Some(pointwise) = self.op.downcast::<Pointwise>() {
            return elementwise(self, pointwise, arithmetic);
        }
        if let Some(pool) = self.op.downcast::<Pool>() {
            let kind = match pool.kind {
                pool::Kind::Max { indices: false, .. } => None,
                pool::Kind::Average { include_pad } => Some(include_pad),
                _ => return Err(refuse("a pooling other than maximum or average, or with indices")),
            };
            return pooled(self, kind, pool.window.clone(), arithmetic);
        }
        if self.op.downcast::<GlobalPool>().is_some() || self.op.downcast::<Reduce>().is_some() {
            let (is_max, window) = over_all(self)?;
            return pooled(self, (!is_max).then_some(false), window, arithmetic);
        }
        if let Some(softmax) = self.op.downcast::<Softmax>() {
            return softmax_of(self, softmax);
        }
        if moves::is_move(self.op) {
            return moves::find(self, arithmetic);
        }
        Err(refuse("an operator without an integer form"))
    }
}

/// Refuses weights with several scales along an axis other than that of the output channels.
fn check_scales(weights: &Weights, axis: usize) -> Matched<()> {
    if weights.scales.len() > 1 && weights.axis != axis {
        return Err(refuse(
            "weights with scales along an axis other than the output channels",
        ));
    }
    Ok(())
}

/// Refuses windows whose padding or dilation exceeds any realistic image, so that positions cannot
/// overflow.
fn check_window(window: &Window) -> Matched<()> {
    let near = |list: &[i64]| list.iter().all(|n| n.abs() <= 1 << 12);
    if near(&window.pads) && near(&window.dilations) {
        return Ok(());
    }
    Err(refuse("padding or dilation above 4096"))
}

fn convolution(view: &View<'_, '_>, conv: &Conv, arithmetic: Arithmetic) -> Matched<Site> {
    let (x, weights) = (view.operand(0)?, view.weights(1, 0)?);
    let m = weights.shape.first().copied().unwrap_or(0);
    check_scales(&weights, 0)?;
    check_window(&conv.window)?;
    channels(&x.shape, 1)?;
    let group = num::exact(conv.group, "a number of groups")?;
    let product = Product {
        bias: view.bias(2, m)?,
        x,
        weights,
        form: ProductKind::Conv {
            window: conv.window.clone(),
            group,
        },
    };
    finished(product, None, view.result()?, arithmetic)
}

/// A transposed convolution, as a convolution of the input with zero points between its elements.
fn transposed(view: &View<'_, '_>, conv: &ConvTranspose, arithmetic: Arithmetic) -> Matched<Site> {
    let (x, given) = (view.operand(0)?, view.weights(1, 1)?);
    let group = num::exact::<usize, _>(conv.group, "a number of groups")?;
    let [c, per_group, kernel @ ..] = given.shape.as_slice() else {
        return Err(refuse("weights with too few axes"));
    };
    // Scales along axis 1 belong to the output channels of one group.
    check_scales(&given, if group == 1 { 1 } else { usize::MAX })?;
    check_window(&conv.window)?;
    channels(&x.shape, 1)?;
    let sizes = spatial(&x.shape)?;
    let kernel: Vec<i64> = kernel.iter().map(|k| num::signed(*k)).collect();
    let (steps, pads) = conv
        .as_convolution(&kernel, &sizes)
        .ok_or_else(|| refuse("padding that exceeds the window"))?;
    let (taps, depth, m) = (
        given.data.len() / (c * per_group).max(1),
        c / group.max(1),
        per_group * group,
    );
    let mut data = Vec::with_capacity(given.data.len());
    for o in 0..m {
        for i in 0..depth {
            let from = ((o / per_group * depth + i) * per_group + o % per_group) * taps;
            data.extend(num::part(&given.data, from..from + taps)?.iter().rev());
        }
    }
    let mut shape = vec![m, depth];
    shape.extend(given.shape.iter().skip(2));
    let weights = Weights {
        shape,
        data,
        axis: 0,
        scales: given.scales.clone(),
    };
    let window = Window {
        dilations: conv.window.dilations.clone(),
        pads,
        ..Window::new(&[])
    };
    let product = Product {
        bias: view.bias(2, m)?,
        x,
        weights,
        form: ProductKind::Conv { window, group },
    };
    finished(product, Some(steps), view.result()?, arithmetic)
}

/// The site of a product and its result.
fn finished(product: Product, steps: Option<Vec<i64>>, to: Result8, arithmetic: Arithmetic) -> Matched<Site> {
    let axis = match product.form {
        ProductKind::Matmul { .. } => product.x.shape.len().saturating_sub(1),
        ProductKind::Conv { .. } => 1,
    };
    Ok(Site::Product(Box::new(Constant {
        packed: pack(&product, &to, arithmetic)?,
        x: product.x,
        axis,
        steps,
        output: to.output(arithmetic),
        to: to.to,
    })))
}

fn general_matmul(view: &View<'_, '_>, gemm: &Gemm, arithmetic: Arithmetic) -> Matched<Site> {
    #[allow(clippy::float_cmp, reason = "the attribute's default")]
    let plain = gemm.alpha == 1.0 && !gemm.trans_a && (gemm.beta == 1.0 || !view.has_bias(2));
    if !plain {
        return Err(refuse("a Gemm with transA, or with alpha or beta other than 1"));
    }
    let axis = if gemm.trans_b { 0 } else { 1 };
    let (x, weights) = (view.operand(0)?, view.weights(1, axis)?);
    let n = columns(&weights, gemm.trans_b)?;
    let bias = view.bias(2, n)?;
    let product = by_rows(x, weights, gemm.trans_b, bias)?;
    finished(product, None, view.result()?, arithmetic)
}

/// Number of output columns of a weight matrix.
fn columns(weights: &Weights, transposed: bool) -> Matched<usize> {
    match weights.shape[..] {
        [n, _] if transposed => Ok(n),
        [_, n] => Ok(n),
        _ => Err(refuse("weights that are not a matrix")),
    }
}

/// A matmul with constant weights.
fn by_rows(x: Quantized, weights: Weights, transposed: bool, bias: Bias) -> Matched<Product> {
    check_scales(&weights, if transposed { 0 } else { 1 })?;
    channels(&x.shape, x.shape.len().saturating_sub(1))?;
    Ok(Product {
        bias,
        x,
        weights,
        form: ProductKind::Matmul { transposed },
    })
}

fn product_of(view: &View<'_, '_>, matmul: &MatMul, arithmetic: Arithmetic) -> Matched<Site> {
    let a = view.operand(0)?;
    if view.is_constant(1) {
        let axis = if matmul.trans_b { 0 } else { 1 };
        let weights = view.weights(1, axis)?;
        let n = columns(&weights, matmul.trans_b)?;
        let (bias, to) = view.biased_result(n)?;
        return finished(by_rows(a, weights, matmul.trans_b, bias)?, None, to, arithmetic);
    }
    let b = view.operand(1)?;
    let k = summed(&a.shape, &b.shape, matmul.trans_b)?;
    let to = view.result()?;
    let factor = Factor::of_scales(arithmetic, a.map.scale, b.map.scale, to.to.map.scale);
    let op = Int8MatMul {
        k,
        a_zero: a.map.zero,
        b_zero: b.map.zero,
        factor: factor.ok_or_else(|| refuse("an output scale far below the product of the input scales"))?,
        output: to.output(arithmetic),
    };
    Ok(Site::MatMul {
        operands: [a, b],
        transposed: matmul.trans_b,
        op,
        to: to.to,
    })
}

/// The site of a function of one activation that is given as a table.
pub(super) fn tabulated(x: Quantized, table: Vec<i8>, to: Quantized) -> Matched<Site> {
    if x.shape != to.shape {
        return Err(refuse("constants that add axes"));
    }
    usual_axis(&x.shape)?;
    Ok(Site::Table { x, table, to })
}

fn elementwise(view: &View<'_, '_>, op: &Pointwise, arithmetic: Arithmetic) -> Matched<Site> {
    if let Some(x) = view.only_operand() {
        let (x, to) = (view.operand(x)?, view.result()?);
        if let Some(bounds) = view.clamp() {
            let both = Result8 {
                bounds: [0, 1].map(|i| bounds[i].clamp(to.bounds[0], to.bounds[1])),
                ..to.clone()
            };
            let table = table::rescaling(x.map, to.to.map, both.output(arithmetic), arithmetic);
            return tabulated(x, table, to.to);
        }
        let (reals, output) = (view.function(x.map)?, to.output(arithmetic));
        let table = table::of_results(&reals, x.map, to.to.map, output, arithmetic);
        return tabulated(x, table, to.to);
    }
    let function = match &op.expr {
        Expr::Binary(f, a, b) => match (f, &**a, &**b) {
            (Binary::Add, Expr::Input(0), Expr::Input(1)) => Function::Add,
            (Binary::Sub, Expr::Input(0), Expr::Input(1)) => Function::Sub,
            (Binary::Mul, Expr::Input(0), Expr::Input(1)) => Function::Mul,
            _ => return Err(refuse("a binary operator other than Add, Sub or Mul")),
        },
        _ => return Err(refuse("a function of several operands without an integer form")),
    };
    binary(view, function, view.result()?, arithmetic)
}

fn binary(view: &View<'_, '_>, function: Function, to: Result8, arithmetic: Arithmetic) -> Matched<Site> {
    let mut operands = [view.operand(0)?, view.operand(1)?];
    for q in &mut operands {
        let rank = to.to.shape.len();
        if q.shape.len() < rank && !view.is_known(q.value) {
            return Err(refuse("operands of different ranks"));
        }
        q.shape = with_rank(&q.shape, rank);
    }
    let both = operands
        .each_ref()
        .map(|q| (&q.shape[..], view.is_known(q.value)));
    let axes = binary_axes(both, &to.to.shape);
    if axes.is_empty() {
        return Err(refuse("a broadcast that integer kernels do not support"));
    }
    let maps = operands.each_ref().map(|q| q.map);
    let op = Int8Binary::new(function, arithmetic, maps, to.to.map.scale, to.output(arithmetic));
    Ok(Site::Binary {
        operands,
        axes,
        op: op.ok_or_else(|| refuse("scales that are too far apart"))?,
        to: to.to,
    })
}

/// A maximum (`None`), or a mean that includes padding or not.
fn pooled(view: &View<'_, '_>, mean: Option<bool>, window: Window, arithmetic: Arithmetic) -> Matched<Site> {
    let (x, to) = (view.operand(0)?, view.result()?);
    if x.shape.len() < 3 {
        return Err(refuse("an operand without spatial axes"));
    }
    check_window(&window)?;
    channels(&x.shape, 1)?;
    let same = x.map == to.to.map;
    let windows = view.op.downcast::<Pool>().is_some();
    let output = to.output(arithmetic);
    let taps = taps(&window.kernel)?;
    let (kind, factors) = match mean {
        None => (int8_pool::Kind::Max, Vec::new()),
        // In TensorFlow Lite, windowed means divide; means over all elements multiply.
        Some(include_pad) if same && windows && arithmetic == Arithmetic::Fixed => {
            (int8_pool::Kind::Mean { include_pad }, Vec::new())
        }
        Some(include_pad) => {
            let factors = mean_factors(arithmetic, x.map.scale, to.to.map.scale, taps);
            let factors = factors.ok_or_else(|| refuse("scales that are too far apart"))?;
            (int8_pool::Kind::Scaled { include_pad }, factors)
        }
    };
    let (output, table) = if mean.is_none() && !same {
        let table = table::rescaling(x.map, to.to.map, output, arithmetic);
        (Output::new(x.map.zero), Some(table))
    } else {
        (output, None)
    };
    Ok(Site::Pool(Pooling {
        x,
        kind,
        factors,
        window,
        output,
        table,
        to: to.to,
    }))
}

/// For a pool over all spatial axes: whether it takes the maximum, and its window.
fn over_all(view: &View<'_, '_>) -> Matched<(bool, Window)> {
    let shape = view.operand(0)?.shape;
    if let Some(pool) = view.op.downcast::<GlobalPool>() {
        let sizes = spatial(&shape)?;
        return match pool {
            GlobalPool::Average => Ok((false, Window::new(&sizes))),
            GlobalPool::Max => Ok((true, Window::new(&sizes))),
            GlobalPool::Lp { .. } => Err(refuse("a pooling other than maximum or average")),
        };
    }
    let reduce = view
        .op
        .downcast::<Reduce>()
        .ok_or_else(|| refuse("an operator that is not a reduction"))?;
    let is_max = match reduce.kind {
        reduce::Kind::Mean => false,
        reduce::Kind::Max => true,
        _ => return Err(refuse("a reduction other than maximum or mean")),
    };
    let list = match &reduce.axes {
        Some(axes) => axes.clone(),
        None => view.integers(1)?,
    };
    Ok((is_max, Window::new(&reduced(&shape, Some(&list))?)))
}

fn softmax_of(view: &View<'_, '_>, softmax: &Softmax) -> Matched<Site> {
    let (x, to) = (view.operand(0)?, view.result()?);
    let (axis, channels) = softmax_axis(softmax, &x.shape)?;
    let steps = Affine {
        scale: 1.0 / 256.0,
        zero: -128,
    };
    if to.to.map != steps || to.bounds != [f32::NEG_INFINITY, f32::INFINITY] {
        return Err(refuse(
            "a softmax output not quantized with scale 1/256 and the lowest zero point",
        ));
    }
    let table = int8_softmax::table(x.map.scale, channels);
    Ok(Site::Softmax {
        x,
        axis,
        channels,
        table: table.ok_or_else(|| refuse("a softmax over more than 65535 elements"))?,
        to: to.to,
    })
}
