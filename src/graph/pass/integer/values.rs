//! Quantized values of a graph: activations with one scale, constants, and the clamp and
//! quantization that follow a result.

use super::{Refusal, refuse};
use crate::graph::op::int8;
use crate::graph::op::pointwise::{Binary, Expr, Pointwise, Unary};
use crate::graph::op::quantize_linear::{DequantizeLinear, QuantizeLinear};
use crate::graph::op::transpose::Transpose;
use crate::graph::pass::pattern::{input, producer, scalar};
use crate::graph::{Edit, Graph, Node, NodeId, Op, OpError, ValueId};
use crate::num::{self, OutOfRange};
use crate::quant::fixed::{Affine, Arithmetic, Output};
use crate::shape::{Dim, Fact};
use crate::tensor::{DType, HostTensor};
use std::sync::Arc;

/// An 8-bit activation with one scale and zero point.
#[derive(Clone, Debug)]
pub(super) struct Quantized {
    /// The integers.
    pub value: ValueId,
    /// `i8` or `u8`.
    pub dtype: DType,
    /// Scale and zero point. For `u8`, 128 is subtracted from the integers and the zero point.
    pub map: Affine,
    pub shape: Vec<Dim>,
    /// The node that quantizes or dequantizes the integers.
    pub node: NodeId,
}

/// Constant weights: signed integers that stand for `scale * integer`.
#[derive(Clone, Debug)]
pub(super) struct Weights {
    pub shape: Vec<usize>,
    pub data: Vec<i8>,
    /// One scale, or one per index of `axis`.
    pub scales: Vec<f32>,
    /// The axis along which scales vary.
    pub axis: usize,
}

impl Weights {
    /// The scale of index `i` along the axis.
    pub fn scale(&self, i: usize) -> Result<f32, OutOfRange> {
        let at = if self.scales.len() == 1 { 0 } else { i };
        num::at(&self.scales, at).copied()
    }
}

/// Longest chain of nodes that [`known`] and [`weights`] follow.
const DEEPEST: usize = 8;

/// The contents of a constant, or of a value that is computed from constants by conversions and
/// moves only.
pub(super) fn known(g: &Graph, v: ValueId) -> Option<Arc<HostTensor>> {
    known_within(g, v, DEEPEST)
}

/// Whether [`known`] may find contents; nothing is evaluated.
pub(super) fn is_known(g: &Graph, v: ValueId) -> bool {
    is_known_within(g, v, DEEPEST)
}

fn is_known_within(g: &Graph, v: ValueId, deep: usize) -> bool {
    if let Some(t) = g.value(v).fact.as_ref().and_then(Fact::as_const) {
        return !t.is_absent();
    }
    let Some(deep) = deep.checked_sub(1) else {
        return false;
    };
    let node = g
        .producer(v)
        .map(|(_, node)| node)
        .filter(|n| converts_or_moves(n));
    node.is_some_and(|n| n.inputs.iter().flatten().all(|v| is_known_within(g, *v, deep)))
}

fn converts_or_moves(node: &Node) -> bool {
    node.op.downcast::<DequantizeLinear>().is_some()
        || node.op.downcast::<QuantizeLinear>().is_some()
        || node.op.moves(0)
}

fn known_within(g: &Graph, v: ValueId, deep: usize) -> Option<Arc<HostTensor>> {
    if let Some(t) = g.value(v).fact.as_ref()?.as_const() {
        return Some(t.clone()).filter(|t| !t.is_absent());
    }
    let deep = deep.checked_sub(1)?;
    let (_, node) = g.producer(v)?;
    if !converts_or_moves(node) {
        return None;
    }
    let mut operands = Vec::new();
    for v in &node.inputs {
        operands.push(match v {
            Some(v) => Some(known_within(g, *v, deep)?),
            None => None,
        });
    }
    let at = node.outputs.iter().position(|o| *o == v)?;
    let operands: Vec<Option<&HostTensor>> = operands.iter().map(Option::as_deref).collect();
    node.op.run(&operands).ok()?.into_iter().nth(at).map(Arc::new)
}

/// The map of `dtype` integers with one constant scale and zero point.
fn map(g: &Graph, scale: Option<ValueId>, zero: Option<ValueId>, dtype: DType) -> Result<Affine, Refusal> {
    let scale = scale.and_then(|v| known(g, v));
    let scale = scale.ok_or_else(|| refuse("a scale that is not constant"))?;
    let [scale] = *scale.to_f32().map_err(|e| refuse(&e.to_string()))? else {
        return Err(refuse("activations with more than one scale"));
    };
    // Kernels multiply by the reciprocal.
    if !(scale.is_normal() && (1.0 / scale).is_normal() && scale > 0.0) {
        return Err(refuse(&format!(
            "a scale of {scale}; expected a positive normal number"
        )));
    }
    let zero = match zero {
        None => 0,
        Some(v) => {
            let zero = known(g, v).and_then(|t| t.to_i64().ok());
            match zero.as_deref() {
                Some([zero]) => *zero,
                _ => return Err(refuse("a zero point that is not a constant scalar")),
            }
        }
    };
    let shift = if dtype == DType::U8 { 128 } else { 0 };
    let zero = i32::try_from(zero - shift)
        .ok()
        .filter(|z| (-128..=127).contains(z));
    let zero = zero.ok_or_else(|| refuse("a zero point out of range"))?;
    Ok(Affine { scale, zero })
}

/// The integers `value` with their scale and zero point.
pub(super) fn quantized(
    g: &Graph,
    value: ValueId,
    scale: Option<ValueId>,
    zero: Option<ValueId>,
    node: NodeId,
) -> Result<Quantized, Refusal> {
    let dtype = g.value(value).fact.as_ref().map(|f| f.dtype);
    let Some(dtype @ (DType::I8 | DType::U8)) = dtype else {
        return Err(refuse("quantized values that are not 8-bit"));
    };
    Ok(Quantized {
        value,
        dtype,
        map: map(g, scale, zero, dtype)?,
        shape: shape(g, value)?,
        node,
    })
}

/// The shape of a value.
pub(super) fn shape(g: &Graph, v: ValueId) -> Result<Vec<Dim>, Refusal> {
    let fact = g.value(v).fact.as_ref();
    Ok(fact.ok_or_else(|| refuse("an unknown shape"))?.shape.0.clone())
}

/// The integers from which a float value is dequantized.
pub(super) fn dequantized(g: &Graph, v: ValueId) -> Result<Quantized, Refusal> {
    let found = producer::<DequantizeLinear>(g, v);
    let (id, node, _) = found.ok_or_else(|| refuse("an operand that is not quantized"))?;
    let value = input(node, 0).ok_or_else(|| refuse("an operand that is not quantized"))?;
    quantized(g, value, input(node, 1), input(node, 2), id)
}

/// The result of the quantization node `id`.
pub(super) fn quantized_by(g: &Graph, id: NodeId) -> Result<Quantized, Refusal> {
    let node = g.node(id).ok_or_else(|| refuse("a missing node"))?;
    let value = node.outputs.first().copied();
    let value = value.ok_or_else(|| refuse("a missing output"))?;
    quantized(g, value, input(node, 1), input(node, 2), id)
}

/// The result of node `id` if it is a `QuantizeLinear`; `None` for other nodes.
pub(super) fn quantizer(g: &Graph, id: NodeId) -> Option<Result<Quantized, Refusal>> {
    g.node(id)?.op.downcast::<QuantizeLinear>()?;
    Some(quantized_by(g, id))
}

/// The quantized result of a node.
#[derive(Clone, Debug)]
pub(super) struct Result8 {
    pub to: Quantized,
    /// Real bounds of a fused clamp.
    pub bounds: [f32; 2],
}

impl Result8 {
    /// The zero point and the bounds as 8-bit integers, rounded as the arithmetic rounds them.
    pub fn output(&self, arithmetic: Arithmetic) -> Output {
        let Affine { scale, zero } = self.to.map;
        let of = |bound: f32| {
            let steps = bound / scale;
            let rounded = match arithmetic {
                Arithmetic::Fixed => steps.round(),
                Arithmetic::Float => steps.round_ties_even(),
            };
            #[expect(clippy::cast_possible_truncation, reason = "saturates")]
            let rounded = rounded as i32;
            rounded.saturating_add(zero).clamp(-128, 127)
        };
        Output {
            zero,
            low: of(self.bounds[0]),
            high: of(self.bounds[1]),
        }
    }
}

/// The only reader of `v`. Refuses an output of the graph.
fn reader(edit: &Edit<'_>, v: ValueId) -> Result<NodeId, Refusal> {
    edit.only_reader(v)
        .ok_or_else(|| refuse("a float output with other uses"))
}

/// The quantization that reads `v`, directly or after clamps.
pub(super) fn result(edit: &Edit<'_>, v: ValueId) -> Result<Result8, Refusal> {
    let (mut v, mut bounds) = (v, [f32::NEG_INFINITY, f32::INFINITY]);
    loop {
        let id = reader(edit, v)?;
        if let Some(to) = quantizer(edit, id) {
            return Ok(Result8 { to: to?, bounds });
        }
        let node = edit.node(id);
        let clamp = node.and_then(|n| Some((n, clamp(edit, n, v)?)));
        let Some((node, [low, high])) = clamp else {
            return Err(refuse("an output that is not quantized"));
        };
        bounds = [bounds[0].clamp(low, high), bounds[1].clamp(low, high)];
        v = *node.outputs.first().ok_or_else(|| refuse("a missing output"))?;
    }
}

/// The bounds to which a node clamps `v`, if that is all it does.
pub(super) fn clamp(g: &Graph, node: &Node, v: ValueId) -> Option<[f32; 2]> {
    let op = node.op.downcast::<Pointwise>()?;
    let number = |e: &Expr| match e {
        Expr::Const(c, t) if t.is_float() => {
            #[expect(clippy::cast_possible_truncation, reason = "rounded to f32")]
            let c = *c as f32;
            Some(c)
        }
        Expr::Input(i) => scalar(g, input(node, *i)?),
        _ => None,
    };
    let mut bounds = [f32::NEG_INFINITY, f32::INFINITY];
    let mut e = &op.expr;
    let mut outer = Vec::new();
    loop {
        match e {
            Expr::Input(i) if input(node, *i) == Some(v) => break,
            Expr::Unary(Unary::Relu, x) => {
                outer.push([0.0, f32::INFINITY]);
                e = x;
            }
            Expr::Binary(f @ (Binary::Max | Binary::Min), a, b) => {
                let (x, bound) = match (number(a), number(b)) {
                    (_, Some(bound)) => (a, bound),
                    (Some(bound), _) => (b, bound),
                    _ => return None,
                };
                outer.push(match f {
                    Binary::Max => [bound, f32::INFINITY],
                    _ => [f32::NEG_INFINITY, bound],
                });
                e = x;
            }
            _ => return None,
        }
    }
    for [low, high] in outer.into_iter().rev() {
        // Refuses NaN bounds as well.
        if low.is_nan() || high.is_nan() || low > high {
            return None;
        }
        bounds = [bounds[0].clamp(low, high), bounds[1].clamp(low, high)];
    }
    Some(bounds)
}

/// The constant weights that a float value is dequantized from, without their zero point.
/// Transpositions after `DequantizeLinear` are applied.
pub(super) fn weights(g: &Graph, v: ValueId) -> Result<Weights, Refusal> {
    weights_within(g, v, DEEPEST)
}

fn weights_within(g: &Graph, v: ValueId, deep: usize) -> Result<Weights, Refusal> {
    if let (Some((_, node, transpose)), Some(deep)) = (producer::<Transpose>(g, v), deep.checked_sub(1)) {
        let before = input(node, 0).ok_or_else(|| refuse("a missing operand"))?;
        let given = weights_within(g, before, deep)?;
        return transposed(given, transpose).map_err(|e| refuse(&e.to_string()));
    }
    let found = producer::<DequantizeLinear>(g, v);
    let (_, node, op) = found.ok_or_else(|| refuse("weights that are not quantized"))?;
    if op.grid.block != 0 {
        return Err(refuse("block-quantized weights"));
    }
    weights_of(g, [0, 1, 2].map(|i| input(node, i)), op.grid.axis)
}

fn transposed(given: Weights, transpose: &Transpose) -> Result<Weights, OpError> {
    let perm = transpose.axes(given.shape.len())?;
    let x = int8::tensor(&given.shape, &given.data)?;
    let y = transpose.eval(&[Some(&x)])?.pop();
    let y = y.ok_or_else(|| OpError::expected("results", 1, 0))?;
    let axis = perm.iter().position(|a| *a == given.axis).unwrap_or(given.axis);
    Ok(Weights {
        shape: y.shape().to_vec(),
        data: int8::bytes(&y)?.to_vec(),
        scales: given.scales,
        axis,
    })
}

/// Weights from constant integers, scales and zero points; several scales are along `axis`.
pub(super) fn weights_of(g: &Graph, given: [Option<ValueId>; 3], axis: i64) -> Result<Weights, Refusal> {
    let constant = |i: usize| given.get(i).copied().flatten().and_then(|v| known(g, v));
    let data = constant(0).ok_or_else(|| refuse("weights that are not constant"))?;
    if !matches!(data.dtype(), DType::I8 | DType::U8) {
        return Err(refuse("weights that are not 8-bit"));
    }
    let scales = constant(1).ok_or_else(|| refuse("weight scales that are not constant"))?;
    let failed = |e: crate::tensor::TensorError| refuse(&e.to_string());
    let scales = scales.to_f32().map_err(failed)?.into_owned();
    if let Some(bad) = scales.iter().find(|s| !(s.is_finite() && **s > 0.0)) {
        return Err(refuse(&format!("a scale of {bad}; expected a positive number")));
    }
    let zeros = match (given.get(2).copied().flatten(), constant(2)) {
        (_, Some(zeros)) => zeros.to_i64().map_err(failed)?,
        (None, None) => vec![0],
        (Some(_), None) => return Err(refuse("weight zero points that are not constant")),
    };
    let rank = data.shape().len();
    let axis = crate::graph::op::axis(axis, rank.max(1)).map_err(|e| refuse(&e.to_string()))?;
    let of_axis = |i: usize| {
        let inner: usize = data.shape().iter().skip(axis + 1).product();
        i / inner.max(1) % data.shape().get(axis).copied().unwrap_or(1).max(1)
    };
    let centred = |(i, v): (usize, i64)| {
        let at = if zeros.len() == 1 { 0 } else { of_axis(i) };
        let centred = i8::try_from(v - num::at(&zeros, at)?);
        centred.map_err(|_| refuse("weights that exceed 8 bits once their zero point is subtracted"))
    };
    let all = data.to_i64().map_err(failed)?;
    Ok(Weights {
        shape: data.shape().to_vec(),
        data: all
            .into_iter()
            .enumerate()
            .map(centred)
            .collect::<Result<_, _>>()?,
        scales,
        axis,
    })
}

/// A bias: floats, or integers with scales.
#[derive(Clone, Debug)]
pub(super) struct Bias {
    floats: Vec<f32>,
    /// Integers and their scales; an empty list means the scale of the sums.
    integers: Option<(Vec<i64>, Vec<f32>)>,
}

impl Bias {
    /// The constant bias of `n` channels that an optional float value holds.
    pub fn new(g: &Graph, v: Option<ValueId>, n: usize) -> Result<Self, Refusal> {
        let Some(v) = v else {
            return Ok(Self {
                floats: vec![0.0; n],
                integers: None,
            });
        };
        let floats = known(g, v).ok_or_else(|| refuse("a bias that is not constant"))?;
        check_row(&floats, n)?;
        let floats = floats.to_f32().map_err(|e| refuse(&e.to_string()))?.into_owned();
        let floats = if floats.len() == 1 {
            vec![floats[0]; n]
        } else {
            floats
        };
        let list = producer::<DequantizeLinear>(g, v).and_then(|(_, node, op)| {
            let constant = |i: usize| input(node, i).and_then(|v| known(g, v));
            let (data, scales) = (constant(0)?, constant(1)?);
            let zeros = constant(2).map_or(Some(vec![0]), |z| z.to_i64().ok())?;
            let plain = data.dtype() == DType::I32
                && data.len() == n
                && op.grid.block == 0
                && (scales.len() == 1 || scales.len() == n)
                && zeros.iter().all(|z| *z == 0);
            plain.then_some((data.to_i64().ok()?, scales.to_f32().ok()?.into_owned()))
        });
        Ok(Self {
            floats,
            integers: list,
        })
    }

    /// A bias of 32-bit integers with the scale of the sums.
    pub fn of_integers(g: &Graph, v: Option<ValueId>, n: usize) -> Result<Self, Refusal> {
        let list = match v {
            None => vec![0; n],
            Some(v) => {
                let list = known(g, v).ok_or_else(|| refuse("a bias that is not constant"))?;
                check_row(&list, n)?;
                let list = list.to_i64().map_err(|e| refuse(&e.to_string()))?;
                if list.len() == 1 { vec![list[0]; n] } else { list }
            }
        };
        Ok(Self {
            floats: Vec::new(),
            integers: Some((list, Vec::new())),
        })
    }

    /// The integer for channel `i` at `scale`, the scale of the sums: the given one if it has that
    /// scale, otherwise the float rounded to nearest.
    pub fn integer(&self, i: usize, scale: f64) -> i64 {
        let given = self.integers.as_ref().and_then(|(list, scales)| {
            let own = scales.get(if scales.len() == 1 { 0 } else { i });
            let same = |own: &f32| (f64::from(*own) - scale).abs() <= 1e-6 * scale;
            list.get(i).copied().filter(|_| own.is_none_or(same))
        });
        let float = || crate::quant::fixed::quantized_bias(self.floats.get(i).copied().unwrap_or(0.0), scale);
        given.unwrap_or_else(float)
    }

    /// The real bias of channel `i` for sums of scale `scale`.
    pub fn real(&self, i: usize, scale: f64) -> f64 {
        match self.floats.get(i) {
            Some(v) => (*v).into(),
            #[expect(clippy::cast_precision_loss, reason = "integers of 32 bits")]
            None => self.integer(i, scale) as f64 * scale,
        }
    }
}

/// Checks that a bias is one value, or one per channel along its last axis for `n` channels.
fn check_row(bias: &HostTensor, n: usize) -> Result<(), Refusal> {
    if bias.len() == 1 || bias.len() == n && bias.shape().last() == Some(&n) {
        return Ok(());
    }
    Err(refuse(
        "a bias that is neither a scalar nor one value per channel",
    ))
}
