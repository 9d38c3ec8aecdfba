//! Finds what can be computed with integers.

use super::values::{Bias, Quantized, Result8, Weights};
use super::view::View;
use super::{Refusal, moves, refuse};
use crate::graph::op::concat::Concat;
use crate::graph::op::conv::Conv;
use crate::graph::op::conv_transpose::ConvTranspose;
use crate::graph::op::gemm::Gemm;
use crate::graph::op::global_pool::GlobalPool;
use crate::graph::op::int8_binary::{Function, Int8Binary};
use crate::graph::op::int8_pool::{self, mean_factors};
use crate::graph::op::int8_softmax;
use crate::graph::op::matmul::MatMul;
use crate::graph::op::pointwise::{Binary, Expr, Pointwise};
use crate::graph::op::pool::{self, Pool};
use crate::graph::op::quantize_linear::QuantizeLinear;
use crate::graph::op::reduce::{self, Reduce};
use crate::graph::op::resize::Resize;
use crate::graph::op::softmax::Softmax;
use crate::graph::op::window::Window;
use crate::graph::{Edit, NodeId, Op, ValueId};
use crate::num;
use crate::quant::fixed::{Affine, Arithmetic, Factor, Multiplier, Output};
use crate::shape::Dim;
use crate::tensor::HostTensor;

pub(super) type Found<T> = Result<T, Refusal>;

/// A matmul or convolution by constant weights.
#[derive(Clone, Debug)]
pub(super) struct Product {
    pub x: Quantized,
    pub weights: Weights,
    pub bias: Bias,
    pub form: Form,
    /// Elements that stand for 0 are inserted, so that others are these steps apart along each
    /// spatial axis: a transposed convolution.
    pub steps: Option<Vec<i64>>,
}

/// How weights are stored, and what they are applied to.
#[derive(Clone, Debug)]
pub(super) enum Form {
    /// `[k, n]`, or `[n, k]` if transposed.
    Matmul { transposed: bool },
    /// `[m, c / group, kernel..]`.
    Conv { window: Window, group: usize },
}

/// Nodes that one operator of the integer domain replaces.
#[derive(Clone, Debug)]
pub(super) enum Site {
    Product(Box<Product>, Result8),
    /// A matmul of two activations; the last one is `[.., n, k]` if transposed.
    MatMul {
        operands: [Quantized; 2],
        transposed: bool,
        factor: Factor,
        to: Result8,
    },
    /// A function of two activations with axis `axis` stored last.
    Binary {
        operands: [Quantized; 2],
        axis: usize,
        op: Int8Binary,
        to: Quantized,
    },
    /// A function of one activation.
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

/// A maximum or mean over windows.
#[derive(Clone, Debug)]
pub(super) struct Pooling {
    pub x: Quantized,
    pub kind: int8_pool::Kind,
    pub factors: Vec<Factor>,
    pub window: Window,
    pub output: Output,
    /// What changes the map of a maximum.
    pub table: Option<Vec<i8>>,
    pub to: Quantized,
}

/// An operator that moves elements.
#[derive(Clone, Debug)]
pub(super) struct Move {
    pub op: Box<dyn Op>,
    /// Each with a table that gives it the map of the results, if it has another one.
    pub operands: Vec<(Quantized, Option<Vec<i8>>)>,
    /// What the operator reads besides.
    pub others: Vec<Option<ValueId>>,
    /// The integer of constant padding.
    pub padding: Option<i8>,
    pub results: Vec<Quantized>,
}

/// The nodes that read quantized activations, in order, each with what it becomes.
pub(super) fn sites(edit: &Edit<'_>, arithmetic: Arithmetic) -> Vec<(NodeId, Found<Site>)> {
    let order = edit.order().unwrap_or_default();
    let found = order.into_iter().filter_map(|id| {
        let view = View::new(edit, id)?;
        Some((id, view.site(arithmetic)))
    });
    found.collect()
}

impl View<'_, '_> {
    fn site(&self, arithmetic: Arithmetic) -> Found<Site> {
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
            let output = Output::new(to.map.zero);
            return Ok(table(self.operand(0)?, to, output, arithmetic, None));
        }
        if let Some(pointwise) = self.op.downcast::<Pointwise>() {
            return elementwise(self, pointwise, arithmetic);
        }
        if let Some(pool) = self.op.downcast::<Pool>() {
            let kind = match pool.kind {
                pool::Kind::Max { indices: false, .. } => None,
                pool::Kind::Average { include_pad } => Some(include_pad),
                _ => return Err(refuse("only maxima and means of windows have integer forms")),
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
        let resizes = self.op.downcast::<Resize>().is_some();
        if resizes || self.op.moves(0) || self.op.downcast::<Concat>().is_some() {
            return moves::find(self, arithmetic);
        }
        Err(refuse("the operator has no integer form"))
    }
}

/// The size of axis `axis`, which must be constant.
pub(super) fn channels(shape: &[Dim], axis: usize) -> Found<i64> {
    let size = shape
        .get(axis)
        .ok_or_else(|| refuse("an operand with too few axes"))?;
    size.as_const()
        .ok_or_else(|| refuse("the axis that is stored last has a size that is not constant"))
}

/// The axis that is stored last if nothing else decides: channels of images, features of rows.
pub(super) fn usual_axis(rank: usize) -> usize {
    if rank >= 4 { 1 } else { rank.saturating_sub(1) }
}

fn convolution(view: &View<'_, '_>, conv: &Conv, arithmetic: Arithmetic) -> Found<Site> {
    let (x, weights) = (view.operand(0)?, view.weights(1, 0)?);
    let m = weights.shape.first().copied().unwrap_or(0);
    if weights.scales.len() > 1 && weights.axis != 0 {
        return Err(refuse(
            "weights with scales along another axis than the output channels",
        ));
    }
    channels(&x.shape, 1)?;
    let group = num::exact(conv.group, "a number of groups").map_err(|e| refuse(&e.to_string()))?;
    let product = Product {
        bias: view.bias(2, m)?,
        x,
        weights,
        form: Form::Conv {
            window: conv.window.clone(),
            group,
        },
        steps: None,
    };
    finished(product, view.result()?, arithmetic)
}

/// A transposed convolution as a convolution of the input with zeros between its elements.
fn transposed(view: &View<'_, '_>, conv: &ConvTranspose, arithmetic: Arithmetic) -> Found<Site> {
    let (x, given) = (view.operand(0)?, view.weights(1, 1)?);
    let group =
        num::exact::<usize, _>(conv.group, "a number of groups").map_err(|e| refuse(&e.to_string()))?;
    let [c, per_group, kernel @ ..] = given.shape.as_slice() else {
        return Err(refuse("weights with too few axes"));
    };
    if given.scales.len() > 1 && (given.axis != 1 || group != 1) {
        return Err(refuse(
            "weights with scales along another axis than the output channels",
        ));
    }
    channels(&x.shape, 1)?;
    let sizes: Option<Vec<i64>> = x.shape.iter().skip(2).map(Dim::as_const).collect();
    let sizes = sizes.ok_or_else(|| refuse("spatial sizes that are not constant"))?;
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
            let tap = given.data.get(from..from + taps).unwrap_or_default();
            data.extend(tap.iter().rev());
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
        form: Form::Conv { window, group },
        steps: Some(steps),
    };
    finished(product, view.result()?, arithmetic)
}

/// A product with its result.
fn finished(product: Product, to: Result8, arithmetic: Arithmetic) -> Found<Site> {
    super::build::check_product(&product, &to, arithmetic)?;
    Ok(Site::Product(Box::new(product), to))
}

fn general_matmul(view: &View<'_, '_>, gemm: &Gemm, arithmetic: Arithmetic) -> Found<Site> {
    #[allow(clippy::float_cmp, reason = "the attribute's default")]
    let plain = gemm.alpha == 1.0 && !gemm.trans_a && (gemm.beta == 1.0 || !view.has_bias(2));
    if !plain {
        return Err(refuse("factors or a transposed left operand"));
    }
    let axis = if gemm.trans_b { 0 } else { 1 };
    let (x, weights) = (view.operand(0)?, view.weights(1, axis)?);
    let n = columns(&weights, gemm.trans_b)?;
    let bias = view.bias(2, n)?;
    finished(
        by_rows(x, weights, gemm.trans_b, bias)?,
        view.result()?,
        arithmetic,
    )
}

/// Number of columns of a matrix of weights.
fn columns(weights: &Weights, transposed: bool) -> Found<usize> {
    match weights.shape[..] {
        [n, _] if transposed => Ok(n),
        [_, n] => Ok(n),
        _ => Err(refuse("weights of other than two axes")),
    }
}

/// A matmul by constant weights.
fn by_rows(x: Quantized, weights: Weights, transposed: bool, bias: Bias) -> Found<Product> {
    let axis = if transposed { 0 } else { 1 };
    if weights.scales.len() > 1 && weights.axis != axis {
        return Err(refuse("weights with scales along another axis than the columns"));
    }
    channels(&x.shape, x.shape.len().saturating_sub(1))?;
    Ok(Product {
        bias,
        x,
        weights,
        form: Form::Matmul { transposed },
        steps: None,
    })
}

fn product_of(view: &View<'_, '_>, matmul: &MatMul, arithmetic: Arithmetic) -> Found<Site> {
    let a = view.operand(0)?;
    if view.is_constant(1) {
        let axis = if matmul.trans_b { 0 } else { 1 };
        let weights = view.weights(1, axis)?;
        let n = columns(&weights, matmul.trans_b)?;
        let (bias, to) = view.biased_result(n)?;
        return finished(by_rows(a, weights, matmul.trans_b, bias)?, to, arithmetic);
    }
    let b = view.operand(1)?;
    if a.shape.len() < 2 || b.shape.len() < 2 {
        return Err(refuse("an operand with one axis"));
    }
    let (last, before) = (b.shape.len() - 1, b.shape.len() - 2);
    let k = channels(&a.shape, a.shape.len() - 1)?;
    channels(&b.shape, if matmul.trans_b { before } else { last })?;
    let [la, lb] = [&a, &b].map(|q| q.shape.get(..q.shape.len() - 2).unwrap_or_default());
    let ones = |list: &[Dim]| list.iter().all(|d| d.is(1));
    if la != lb && !ones(la) && !ones(lb) {
        return Err(refuse("batches of different sizes"));
    }
    let to = view.result()?;
    let factor = Factor::of_scales(arithmetic, a.map.scale, b.map.scale, to.to.map.scale);
    if k > i64::from(i32::MAX) / (255 * 255) {
        return Err(refuse("sums that may exceed 32 bits"));
    }
    Ok(Site::MatMul {
        operands: [a, b],
        transposed: matmul.trans_b,
        factor: factor.ok_or_else(|| refuse("a scale that is too small for its product"))?,
        to,
    })
}

/// A table for `x`, which may be computed by `f` before it is quantized again.
fn table(x: Quantized, to: Quantized, output: Output, arithmetic: Arithmetic, f: Option<&[f32]>) -> Site {
    let table = match f.map(|f| (f, slopes(x.map, f))) {
        None => entries(x.map, to.map, output, arithmetic, [1.0, 1.0]),
        Some((_, Some(slopes))) if arithmetic == Arithmetic::Fixed => {
            entries(x.map, to.map, output, arithmetic, slopes)
        }
        Some((f, _)) => f.iter().map(|real| quantize(*real, to.map, output)).collect(),
    };
    Site::Table { table, x, to }
}

/// The table of the function that multiplies negative numbers by the first slope and others by the
/// second one.
pub(super) fn entries(
    x: Affine,
    to: Affine,
    output: Output,
    arithmetic: Arithmetic,
    slopes: [f32; 2],
) -> Vec<i8> {
    let ratio = f64::from(x.scale) / f64::from(to.scale);
    let [below, above] = slopes.map(|s| Multiplier::new(ratio * f64::from(s)));
    let of = |q: i32| {
        let is_above = q >= x.zero;
        match (arithmetic, if is_above { above } else { below }) {
            (Arithmetic::Fixed, Some(factor)) => output.of(factor.apply(q - x.zero)),
            _ => quantize(dequantize(x, q) * slopes[usize::from(is_above)], to, output),
        }
    };
    (-128..=127).map(of).collect()
}

/// The slopes below and above 0 of a function that is linear on both sides, through 0; as
/// `LeakyRelu`. `f` holds its results for all 8-bit integers.
fn slopes(x: Affine, f: &[f32]) -> Option<[f32; 2]> {
    let slope = |q: i32| {
        let at = usize::try_from(q + 128).ok()?;
        let (real, result) = (dequantize(x, q), *f.get(at)?);
        (real != 0.0).then(|| result / real)
    };
    let ends = [-128, 127].map(|q| slope(q).filter(|s| s.is_finite() && *s >= 0.0));
    let [below, above] = [ends[0].or(ends[1])?, ends[1].or(ends[0])?];
    let close = |q: i32| {
        let wanted = if q < x.zero { below } else { above };
        slope(q).is_none_or(|s| (s - wanted).abs() <= 1e-5 * wanted.abs())
    };
    (x.zero > -128 && x.zero < 127 && (-128..=127).all(close)).then_some([below, above])
}

/// A float as `QuantizeLinear` quantizes it.
pub(super) fn quantize(real: f32, to: Affine, output: Output) -> i8 {
    #[allow(clippy::cast_possible_truncation, reason = "saturates; NaN becomes 0")]
    let rounded = (real / to.scale).round_ties_even() as i32;
    output.of(rounded)
}

/// What an integer stands for, as `DequantizeLinear` computes it.
#[allow(clippy::cast_precision_loss, reason = "9 bits")]
pub(super) fn dequantize(map: Affine, q: i32) -> f32 {
    map.scale * (q - map.zero) as f32
}

fn elementwise(view: &View<'_, '_>, op: &Pointwise, arithmetic: Arithmetic) -> Found<Site> {
    if let Some(x) = view.only_operand() {
        let (x, to) = (view.operand(x)?, view.result()?);
        if let Some(bounds) = view.clamp() {
            let both = Result8 {
                bounds: [0, 1].map(|i| bounds[i].clamp(to.bounds[0], to.bounds[1])),
                ..to.clone()
            };
            let output = both.output(arithmetic);
            return Ok(table(x, to.to, output, arithmetic, None));
        }
        let (reals, output) = (view.function(x.map)?, to.output(arithmetic));
        return Ok(table(x, to.to, output, arithmetic, Some(&reals)));
    }
    let function = match &op.expr {
        Expr::Binary(f, a, b) => match (f, &**a, &**b) {
            (Binary::Add, Expr::Input(0), Expr::Input(1)) => Function::Add,
            (Binary::Sub, Expr::Input(0), Expr::Input(1)) => Function::Sub,
            (Binary::Mul, Expr::Input(0), Expr::Input(1)) => Function::Mul,
            _ => return Err(refuse("the function of two operands has no integer form")),
        },
        _ => return Err(refuse("the function of several operands has no integer form")),
    };
    binary(view, function, view.result()?, arithmetic)
}

fn binary(view: &View<'_, '_>, function: Function, to: Result8, arithmetic: Arithmetic) -> Found<Site> {
    let operands = [view.operand(0)?, view.operand(1)?];
    let rank = to.to.shape.len();
    let axis = usual_axis(rank);
    for q in &operands {
        let constant = view.is_known(q.value);
        if q.shape.len() != rank && !constant {
            return Err(refuse("operands with different numbers of axes"));
        }
        let at = (q.shape.len() + axis).checked_sub(rank);
        let own = at.and_then(|at| q.shape.get(at));
        if own != to.to.shape.get(axis) && !(constant && own.is_none_or(|d| d.is(1))) {
            return Err(refuse(
                "an operand that is repeated along the axis that is stored last",
            ));
        }
    }
    channels(&to.to.shape, axis)?;
    let op = Int8Binary::new(
        function,
        operands[0].map,
        operands[1].map,
        to.to.map,
        to.output(arithmetic),
    );
    Ok(Site::Binary {
        operands,
        axis,
        op: op.ok_or_else(|| refuse("scales that are too far apart"))?,
        to: to.to,
    })
}

/// A maximum, or a mean that counts padding or not.
fn pooled(view: &View<'_, '_>, mean: Option<bool>, window: Window, arithmetic: Arithmetic) -> Found<Site> {
    let (x, to) = (view.operand(0)?, view.result()?);
    if x.shape.len() < 3 {
        return Err(refuse("an operand without windows"));
    }
    channels(&x.shape, 1)?;
    let same = x.map == to.to.map;
    let windows = view.op.downcast::<Pool>().is_some();
    let output = to.output(arithmetic);
    let taps = window.kernel.iter().try_fold(1i64, |n, k| n.checked_mul(*k));
    let taps = taps.and_then(|n| u32::try_from(n).ok()).filter(|n| *n <= 1 << 16);
    let taps = taps.ok_or_else(|| refuse("a window of more than 65536 elements"))?;
    let (kind, factors) = match mean {
        None => (int8_pool::Kind::Max, Vec::new()),
        // Means over all elements have a factor in TensorFlow Lite, those of windows have none.
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
        let table = entries(x.map, to.to.map, output, arithmetic, [1.0; 2]);
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

/// The window of a pool over all spatial axes, and whether it takes the maximum.
fn over_all(view: &View<'_, '_>) -> Found<(bool, Window)> {
    let shape = view.operand(0)?.shape;
    let sizes: Option<Vec<i64>> = shape.iter().skip(2).map(Dim::as_const).collect();
    let sizes = sizes.filter(|s| !s.is_empty());
    let sizes = sizes.ok_or_else(|| refuse("spatial sizes that are not constant"))?;
    if let Some(pool) = view.op.downcast::<GlobalPool>() {
        return match pool {
            GlobalPool::Average => Ok((false, Window::new(&sizes))),
            GlobalPool::Max => Ok((true, Window::new(&sizes))),
            GlobalPool::Lp { .. } => Err(refuse("only maxima and means have integer forms")),
        };
    }
    let reduce = view
        .op
        .downcast::<Reduce>()
        .ok_or_else(|| refuse("not a reduction"))?;
    let is_max = match reduce.kind {
        reduce::Kind::Mean => false,
        reduce::Kind::Max => true,
        _ => return Err(refuse("only maxima and means have integer forms")),
    };
    let list = match &reduce.axes {
        Some(axes) => axes.clone(),
        None => view.integers(1)?,
    };
    let axes = crate::graph::op::axes(Some(&list), shape.len()).map_err(|e| refuse(&e.to_string()))?;
    let mut sorted = axes;
    sorted.sort_unstable();
    if !sorted.iter().copied().eq(2..shape.len()) {
        return Err(refuse("a reduction of other than all spatial axes"));
    }
    Ok((is_max, Window::new(&sizes)))
}

fn softmax_of(view: &View<'_, '_>, softmax: &Softmax) -> Found<Site> {
    let (x, to) = (view.operand(0)?, view.result()?);
    let axis = crate::graph::op::axis(softmax.axis, x.shape.len()).map_err(|e| refuse(&e.to_string()))?;
    if softmax.flatten && axis + 1 != x.shape.len() {
        return Err(refuse("a softmax over several axes"));
    }
    let channels = channels(&x.shape, axis)?;
    let steps = Affine {
        scale: 1.0 / 256.0,
        zero: -128,
    };
    if to.to.map != steps || to.bounds != [f32::NEG_INFINITY, f32::INFINITY] {
        return Err(refuse("a softmax in other steps than 1/256 from 0"));
    }
    let table = int8_softmax::table(x.map.scale, channels);
    Ok(Site::Softmax {
        x,
        axis,
        channels,
        table: table.ok_or_else(|| refuse("a softmax of too many elements"))?,
        to: to.to,
    })
}
