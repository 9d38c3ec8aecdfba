//! Matmuls and convolutions with constant weights.

use super::domain::{Domain, New};
use super::pack::{Packed, Product, ProductKind, pack};
use super::shapes::{channels, check_window, spatial};
use super::values::{Bias, Quantized, Result8, Weights};
use super::view::View;
use super::{Built, Found, Matched, Site, moves, refuse};
use crate::graph::Edit;
use crate::graph::op::conv::Conv;
use crate::graph::op::conv_transpose::ConvTranspose;
use crate::graph::op::gemm::Gemm;
use crate::graph::op::int8;
use crate::graph::op::int8_conv::Int8Conv;
use crate::graph::op::matmul::MatMul;
use crate::graph::op::window::Window;
use crate::num;
use crate::quant::fixed::{Arithmetic, Output};
use crate::tensor::{DType, HostTensor};

/// A product with packed weights.
#[derive(Debug)]
struct Constant {
    x: Quantized,
    /// The axis that the operand and the result store last.
    axis: usize,
    /// For a transposed convolution: the distance of the elements of x along each spatial axis
    /// after zero points were inserted between them.
    steps: Option<Vec<i64>>,
    packed: Packed,
    to: Quantized,
    output: Output,
}

impl Site for Constant {
    fn build(&self, domain: &mut Domain, edit: &mut Edit<'_>, new: &New<'_>) -> Built<()> {
        let mut x = domain.request(edit, &self.x, self.axis)?;
        if let Some(steps) = &self.steps {
            x = moves::spread(edit, new, x, &self.x, steps)?;
        }
        let packed = &self.packed;
        let w = int8::tensor(&packed.shape, &packed.data)?;
        let bias = HostTensor::from_ints(DType::I32, &[packed.bias.len()], &packed.bias)?;
        let factors = int8::factors(&packed.factors)?;
        let mut inputs = vec![x];
        for (what, t) in [("weights", w), ("bias", bias), ("factors", factors)] {
            inputs.push(Domain::constant(edit, &format!("{}/{what}", new.name), t));
        }
        let op = Int8Conv {
            kind: packed.kind.clone(),
            x_zero: self.x.map.zero,
            output: self.output,
        };
        let y = Domain::add(edit, new, op, &inputs);
        domain.set(&self.to, self.axis, y);
        Ok(())
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

pub(super) fn convolution(view: &View<'_, '_>, conv: &Conv, arithmetic: Arithmetic) -> Found {
    let (x, weights) = (view.operand(0)?, view.weights(1, 0)?);
    let m = *(weights.shape.first()).ok_or_else(|| refuse("weights with too few axes"))?;
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
pub(super) fn transposed(view: &View<'_, '_>, conv: &ConvTranspose, arithmetic: Arithmetic) -> Found {
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
fn finished(product: Product, steps: Option<Vec<i64>>, to: Result8, arithmetic: Arithmetic) -> Found {
    let axis = match product.form {
        ProductKind::Matmul { .. } => product.x.shape.len().saturating_sub(1),
        ProductKind::Conv { .. } => 1,
    };
    Ok(Box::new(Constant {
        packed: pack(&product, &to, arithmetic)?,
        x: product.x,
        axis,
        steps,
        output: to.output(arithmetic),
        to: to.to,
    }))
}

pub(super) fn general_matmul(view: &View<'_, '_>, gemm: &Gemm, arithmetic: Arithmetic) -> Found {
    #[expect(clippy::float_cmp, reason = "the attribute's default")]
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

/// The product of rows with constant weights.
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

/// A matmul with constant weights.
pub(super) fn matmul(view: &View<'_, '_>, matmul: &MatMul, arithmetic: Arithmetic) -> Found {
    let axis = if matmul.trans_b { 0 } else { 1 };
    let (a, weights) = (view.operand(0)?, view.weights(1, axis)?);
    let n = columns(&weights, matmul.trans_b)?;
    let (bias, to) = view.biased_result(n)?;
    finished(by_rows(a, weights, matmul.trans_b, bias)?, None, to, arithmetic)
}
