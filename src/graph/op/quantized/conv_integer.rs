//! Convolution of 8-bit integers with zero points.
//!
//! ONNX `ConvInteger` from opset 10 with 32-bit results, and `QLinearConv` from opset 10 with
//! results scaled back to 8 bits. Zero points and scales of the weights are scalars or one per
//! output channel.

use crate::graph::ValueId;
use crate::graph::op::case::Case;
use crate::graph::op::conv::Conv;
use crate::graph::op::parts::Parts;
use crate::graph::op::pointwise::Binary;
use crate::graph::op::pointwise::import::{binary, cast, input as arg};
use crate::graph::op::quantize_linear::{quantize, quantized};
use crate::graph::op::sizes::Sizes;
use crate::graph::op::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, around, one_int, onnx, operand,
};
use crate::lower::LowerCx;
use crate::num;
use crate::shape::Fact;
use crate::tensor::{DType, HostTensor};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvInteger {
    pub conv: Conv,
    /// `QLinearConv`: operands are x with scale and zero point, w likewise, scale and zero point of
    /// the result, bias. Otherwise x, w and their zero points.
    pub scaled: bool,
}

/// Sums of this many 8-bit multiplications are exact in a float.
const EXACT_TERMS: usize = 256;

/// The elements minus their zero points: one for all, or one per index of the first axis.
fn centred(x: &HostTensor, zero: Option<&HostTensor>) -> OpResult<Vec<i64>> {
    let mut data = x.to_i64()?;
    let zeros = zero.map_or_else(|| Ok(vec![0]), HostTensor::to_i64)?;
    let lines = if zeros.len() == 1 {
        1
    } else {
        x.shape().first().copied().unwrap_or(0)
    };
    if zeros.len() != lines {
        return Err(OpError::expected(
            "zero points",
            format!("1 or {lines}"),
            zeros.len(),
        ));
    }
    let each = data.len().checked_div(lines).unwrap_or(0).max(1);
    for (line, zero) in data.chunks_mut(each).zip(&zeros) {
        line.iter_mut().for_each(|v| *v -= zero);
    }
    Ok(data)
}

/// Splits values into multiples of 16 and remainders.
fn halves(data: &[i64]) -> [(i64, Vec<i64>); 2] {
    let part = |f: fn(&i64) -> i64| data.iter().map(f).collect();
    [(16, part(|v| v.div_euclid(16))), (1, part(|v| v.rem_euclid(16)))]
}

impl ConvInteger {
    fn operands(&self) -> (usize, usize, usize, usize) {
        if self.scaled { (0, 3, 2, 5) } else { (0, 1, 2, 3) }
    }

    /// Whether operands are what integers of 8 bits exceed their zero points by, in `i32`: the form
    /// that [`Op::parts`] makes.
    fn is_centred(&self, x: DType, no_zeros: bool) -> bool {
        !self.scaled && x == DType::I32 && no_zeros
    }

    /// Exact integer convolution.
    fn sums(&self, x: (&[i64], &[usize]), w: (&[i64], &[usize])) -> OpResult<(Vec<usize>, Vec<i64>)> {
        #[expect(clippy::cast_precision_loss, reason = "integers of at most 9 bits")]
        let tensor = |data: &[i64], shape| {
            HostTensor::from_f32(shape, &data.iter().map(|v| *v as f32).collect::<Vec<_>>())
        };
        let (_, _, taps) = around(w.1, 0)?;
        let whole = |data: &[i64]| vec![(1, data.to_vec())];
        let few = taps <= EXACT_TERMS;
        let (xs, ws) = if few {
            (whole(x.0), whole(w.0))
        } else {
            (halves(x.0).to_vec(), halves(w.0).to_vec())
        };
        let (mut shape, mut total): (_, Vec<i64>) = (Vec::new(), Vec::new());
        for (fx, px) in &xs {
            for (fw, pw) in &ws {
                let (x, w) = (tensor(px, x.1)?, tensor(pw, w.1)?);
                let y = self.conv.eval(&[Some(&x), Some(&w)])?.pop();
                let y = y.ok_or_else(|| OpError::expected("result", 1, 0))?;
                shape = y.shape().to_vec();
                total.resize(y.len(), 0);
                #[expect(clippy::cast_possible_truncation, reason = "the sums are whole")]
                total
                    .iter_mut()
                    .zip(y.to_f32()?.iter())
                    .for_each(|(t, v)| *t += fx * fw * v.round() as i64);
            }
        }
        Ok((shape, total))
    }
}

impl Op for ConvInteger {
    fn name(&self) -> &str {
        if self.scaled { "QLinearConv" } else { "ConvInteger" }
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let (x, w, _, _) = self.operands();
        let centred = self.is_centred(cx.fact(x)?.dtype, cx.opt(2).is_none() && cx.opt(3).is_none());
        for i in [x, w] {
            let dtype = cx.fact(i)?.dtype;
            if !(matches!(dtype, DType::U8 | DType::I8) || centred && dtype == DType::I32) {
                return Err(OpError::expected(
                    format!("input {i}"),
                    "integers of 8 bits",
                    cx.fact(i)?,
                ));
            }
        }
        let float = |i| Ok::<_, OpError>(Fact::new(DType::F32, cx.fact(i)?.shape.clone()));
        let (x, w) = (float(x)?, float(w)?);
        let operands = [Some(&x), Some(&w)];
        let mut facts = cx.of(&self.conv, &operands)?;
        let dtype = if self.scaled {
            cx.fact(7)?.dtype
        } else {
            DType::I32
        };
        facts.iter_mut().for_each(|f| f.dtype = dtype);
        Ok(facts)
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let (x, w, zx, zw) = self.operands();
        let optional = |i: usize| inputs.get(i).copied().flatten();
        let (x, w) = (operand(inputs, x)?, operand(inputs, w)?);
        let zero = optional(zx);
        if let Some(zero) = zero {
            one_int(zero, "zero point of the input")?;
        }
        let (dx, dw) = (centred(x, zero)?, centred(w, optional(zw))?);
        let (shape, mut sums) = self.sums((&dx, x.shape()), (&dw, w.shape()))?;
        if !self.scaled {
            return Ok(vec![HostTensor::from_ints(DType::I32, &shape, &sums)?]);
        }
        let one = |i: usize| -> OpResult<f32> {
            let list = operand(inputs, i)?.to_f32()?;
            list.first()
                .copied()
                .ok_or_else(|| OpError::expected(format!("input {i}"), "a number", "nothing"))
        };
        let (x_scale, y_scale, zero) = (one(1)?, one(6)?, operand(inputs, 7)?);
        let scales = operand(inputs, 4)?.to_f32()?;
        let (_, channels, area) = around(&shape, 1)?;
        if scales.len() != 1 && scales.len() != channels {
            return Err(OpError::expected(
                "scales of the weights",
                format!("1 or {channels}"),
                scales.len(),
            ));
        }
        let bias = optional(8)
            .map(HostTensor::to_i64)
            .transpose()?
            .unwrap_or_else(|| vec![0; channels]);
        let limits = if zero.dtype() == DType::I8 {
            (-128, 127)
        } else {
            (0, 255)
        };
        let zero_point = zero.to_i64()?.first().copied().unwrap_or(0);
        for (plane, list) in sums.chunks_mut(area.max(1)).enumerate() {
            let channel = plane % channels.max(1);
            let scale = num::at(&scales, if scales.len() == 1 { 0 } else { channel })?;
            let add = bias.get(channel);
            let add = add.ok_or_else(|| OpError::expected("biases", channels, bias.len()))?;
            #[expect(
                clippy::cast_precision_loss,
                reason = "a sum of 8-bit multiplications is scaled as a float"
            )]
            list.iter_mut().for_each(|v| {
                *v = quantize((*v + add) as f32 * (x_scale * scale), y_scale, zero_point, limits);
            });
        }
        Ok(vec![HostTensor::from_ints(zero.dtype(), &shape, &sums)?])
    }

    fn parts(&self, cx: &mut Parts<'_, '_>) -> OpResult<Option<Vec<ValueId>>> {
        let (x, w, zx, zw) = self.operands();
        let (x, w) = (cx.input(x)?, cx.input(w)?);
        if cx.fact(x)?.dtype == DType::I32 {
            return Ok(None);
        }
        let rank = cx.fact(w)?.shape.rank();
        let zw = cx
            .opt(zw)
            .map(|z| per_channel(cx, "weights_zero", z, rank))
            .transpose()?;
        let zx = cx.opt(zx);
        let mut operands = Vec::new();
        for (what, v, zero) in [("x", x, zx), ("w", w, zw)] {
            let int = |i| cast(DType::I32, arg(i));
            let zero: Vec<ValueId> = zero.into_iter().collect();
            let centred = match zero.len() {
                0 => int(0),
                _ => binary(Binary::Sub, int(0), int(1)),
            };
            let list: Vec<ValueId> = [v].into_iter().chain(zero).collect();
            operands.push(Some(cx.pointwise(&format!("centred_{what}"), centred, &list)?));
        }
        let sums = Self {
            conv: self.conv.clone(),
            scaled: false,
        };
        let sums = cx.node("sums", sums, &operands)?;
        if !self.scaled {
            return Ok(Some(vec![sums]));
        }
        self.rescaled(cx, sums, rank).map(|y| Some(vec![y]))
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        if !self.is_centred(cx.fact(0)?.dtype, !cx.has(2) && !cx.has(3)) {
            return Err(OpError::NoKernel(format!("{} is always decomposed", self.name())));
        }
        self.conv.lower_plain(cx)
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        sizes.convolution()
    }
}

/// A scalar, or a list per output channel in the shape that broadcasts to tensors of `rank` axes
/// with the channels first.
fn per_channel(cx: &mut Parts<'_, '_>, what: &str, v: ValueId, rank: usize) -> OpResult<ValueId> {
    if cx.fact(v)?.shape.0.as_slice().iter().all(|d| d.is(1)) {
        return Ok(v);
    }
    let mut shape = vec![-1];
    shape.resize(rank, 1);
    cx.reshape(what, v, &shape)
}

impl ConvInteger {
    /// The result of `QLinearConv` for these sums.
    fn rescaled(&self, cx: &mut Parts<'_, '_>, sums: ValueId, rank: usize) -> OpResult<ValueId> {
        // Channels are the second axis of the result.
        let weights_scale = per_channel(cx, "weights_scale", cx.input(4)?, rank - 1)?;
        let (x_scale, y_scale, zero) = (cx.input(1)?, cx.input(6)?, cx.input(7)?);
        let mut list = vec![sums, x_scale, weights_scale];
        let mut sum = arg(0);
        if let Some(bias) = cx.opt(8) {
            list.push(per_channel(cx, "bias", bias, rank - 1)?);
            sum = binary(Binary::Add, sum, arg(3));
        }
        let float = |e| cast(DType::F32, e);
        let scales = binary(Binary::Mul, float(arg(1)), float(arg(2)));
        let y = cx.pointwise("scaled", binary(Binary::Mul, float(sum), scales), &list)?;
        let dtype = cx.fact(zero)?.dtype;
        let expr = quantized(arg(0), arg(1), Some(arg(2)), dtype)?;
        cx.pointwise("quantized", expr, &[y, y_scale, zero])
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let conv = Conv {
        window: crate::graph::op::window::Window::import(a)?,
        group: crate::graph::op::conv::group(a)?,
    };
    Ok(Box::new(ConvInteger {
        conv,
        scaled: a.op_type() == "QLinearConv",
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("ConvInteger", 10, 4), onnx("QLinearConv", 10, 9)],
    import,
    kernels: &[&crate::kernels::conv::KERNEL.kernel],
    cases,
};

fn cases() -> Vec<Case> {
    let ints = |dtype, shape: &[usize]| {
        let data: Vec<i64> = (0i64..)
            .take(shape.iter().product())
            .map(|v| v * 37 % 101)
            .collect();
        HostTensor::from_ints(dtype, shape, &data)
            .ok()
            .map(crate::graph::op::case::given)
    };
    let conv = Conv {
        window: crate::graph::op::window::Window::new(&[]),
        group: 1,
    };
    let inputs: Option<Vec<_>> = [
        ints(DType::U8, &[1, 2, 5, 4]),
        ints(DType::I8, &[3, 2, 2, 2]),
        ints(DType::U8, &[]),
    ]
    .into_iter()
    .collect();
    inputs
        .map(|i| Case::new(ConvInteger { conv, scaled: false }, i))
        .into_iter()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_input_has_one_zero_point() {
        let tensor = |shape: &[usize]| HostTensor::zeros(DType::U8, shape).unwrap();
        let conv = Conv {
            window: crate::graph::op::window::Window::new(&[]),
            group: 1,
        };
        let op = ConvInteger { conv, scaled: false };
        let run = |zero: &[usize]| {
            op.eval(&[
                Some(&tensor(&[2, 2, 3, 3])),
                Some(&tensor(&[3, 2, 1, 1])),
                Some(&tensor(zero)),
            ])
        };
        assert!(run(&[]).is_ok() && run(&[1]).is_ok());
        assert!(run(&[2]).is_err());
    }

    #[test]
    fn large_sums_are_exact() {
        let shape = [1, 600, 1, 1];
        let x = HostTensor::from_ints(DType::U8, &shape, &[255; 600]).unwrap();
        let mut weights = vec![127; 600];
        weights[7] = -126;
        let w = HostTensor::from_ints(DType::I8, &shape, &weights).unwrap();
        let conv = Conv {
            window: crate::graph::op::window::Window::new(&[]),
            group: 1,
        };
        let y = ConvInteger { conv, scaled: false }
            .eval(&[Some(&x), Some(&w)])
            .unwrap();
        assert_eq!(y[0].to_i64().unwrap(), [255 * (599 * 127 - 126)]);
    }
}
