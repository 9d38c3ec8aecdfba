//! `DynamicQuantizeMatMul`, `MatMulIntegerToFloat` and `DynamicQuantizeLSTM` of the domain
//! `com.microsoft`: matmuls with 8-bit weights.
//!
//! `DynamicQuantizeMatMul`: a (float), b, scale of b, zero point of b, bias.
//! `MatMulIntegerToFloat`: a (integers), b, their scales, their zero points, bias. The LSTM
//! dequantizes its weights; its steps run on the host, where operand 0 and each state are rounded
//! to 8 bits.

use crate::graph::ValueId;
use crate::graph::op::case::{Case, constant, input};
use crate::graph::op::composite::{Composed, Composite, Inner};
use crate::graph::op::matmul_integer::MatMulInteger;
use crate::graph::op::parts::Parts;
use crate::graph::op::pointwise::Binary;
use crate::graph::op::pointwise::import::{binary, cast, input as arg};
use crate::graph::op::quantize_linear::DynamicQuantizeLinear;
use crate::graph::op::transpose::Transpose;
use crate::graph::op::{Attributes, Op, OpDef, OpResult, microsoft, recurrent};
use crate::tensor::{DType, HostTensor};

/// An 8-bit matmul with a float result.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantizedProduct {
    /// Operand a is a float, which is quantized first.
    pub dynamic: bool,
}

impl Composed for QuantizedProduct {
    fn name(&self) -> &str {
        match self.dynamic {
            true => "DynamicQuantizeMatMul",
            false => "MatMulIntegerToFloat",
        }
    }

    fn build(&self, cx: &mut Parts<'_, '_>) -> OpResult<Vec<ValueId>> {
        let (a, b) = (cx.input(0)?, cx.input(1)?);
        let (a, a_scale, a_zero, [b_scale, b_zero, bias]) = if self.dynamic {
            let op = Box::new(DynamicQuantizeLinear);
            let [a, scale, zero] = cx.results("quantized", op, &[Some(a)])?;
            (a, scale, Some(zero), [2, 3, 4])
        } else {
            (a, cx.input(2)?, cx.opt(4), [3, 5, 6])
        };
        let operands = [Some(a), Some(b), a_zero, cx.opt(b_zero)];
        let sums = cx.node("product", MatMulInteger::Wide, &operands)?;
        let scale = binary(Binary::Mul, arg(1), arg(2));
        let mut y = binary(Binary::Mul, cast(DType::F32, arg(0)), scale);
        let mut operands = vec![sums, a_scale, cx.input(b_scale)?];
        if let Some(bias) = cx.opt(bias) {
            y = binary(Binary::Add, y, arg(3));
            operands.push(bias);
        }
        Ok(vec![cx.pointwise("scaled", y, &operands)?])
    }
}

/// An LSTM with weights `[directions, input, 4 * hidden]` of 8 bits.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantizedLstm(pub Inner);

impl Composed for QuantizedLstm {
    fn name(&self) -> &str {
        "DynamicQuantizeLSTM"
    }

    fn build(&self, cx: &mut Parts<'_, '_>) -> OpResult<Vec<ValueId>> {
        let mut operands: Vec<_> = (0..8).map(|i| cx.opt(i)).collect();
        for (i, name) in [(1, "w"), (2, "r")] {
            // A scale for each direction, or for each of its columns.
            let apart = |cx: &mut Parts<'_, '_>, what: &str, i: usize| {
                let v = cx.input(i)?;
                let axes: &[i64] = if cx.fact(v)?.shape.rank() == 1 {
                    &[1, 2]
                } else {
                    &[1]
                };
                cx.unsqueeze(&format!("{name}/{what}"), v, axes)
            };
            let (scale, zero) = (apart(cx, "scale", 6 + 2 * i)?, apart(cx, "zero", 7 + 2 * i)?);
            let centered = binary(Binary::Sub, cast(DType::F32, arg(0)), cast(DType::F32, arg(2)));
            let floats = binary(Binary::Mul, centered, arg(1));
            let floats = cx.pointwise(&format!("{name}/floats"), floats, &[cx.input(i)?, scale, zero])?;
            let perm = Some(vec![0, 2, 1]);
            if let Some(slot) = operands.get_mut(i) {
                *slot = Some(cx.node(name, Transpose { perm }, &[Some(floats)])?);
            }
        }
        let [y, hidden, cell] = cx.results("lstm", self.0.0.clone(), &operands)?;
        Ok(vec![y, hidden, cell])
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    Ok(match a.op_type() {
        "DynamicQuantizeLSTM" => Box::new(Composite(QuantizedLstm(Inner((recurrent::DEF.import)(a)?)))),
        name => Box::new(Composite(QuantizedProduct {
            dynamic: name == "DynamicQuantizeMatMul",
        })),
    })
}

pub static DEF: OpDef = OpDef {
    onnx: &[
        microsoft("DynamicQuantizeMatMul", 5),
        microsoft("MatMulIntegerToFloat", 7),
        microsoft("DynamicQuantizeLSTM", 12).outputs(3),
    ],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let weights: Vec<i64> = (0..20).map(|i| i * 11 % 200 - 100).collect();
    let (Ok(weights), Ok(scale)) = (
        HostTensor::from_ints(DType::I8, &[5, 4], &weights),
        HostTensor::from_f32(&[4], &[0.01, 0.02, 0.03, 0.04]),
    ) else {
        return Vec::new();
    };
    let op = Composite(QuantizedProduct { dynamic: true });
    vec![Case::new(
        op,
        vec![input(&[3, 5]), constant(weights), constant(scale)],
    )]
}
