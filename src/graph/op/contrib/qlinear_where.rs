//! `QLinearWhere` of the domain `com.microsoft`: a selection between quantized tensors.
//!
//! Operands: the condition; for each of the two tensors its integers, scale and zero point; and
//! scale and zero point of the result.

use crate::graph::ValueId;
use crate::graph::op::case::{Case, constant, given};
use crate::graph::op::composite::{Composed, Composite};
use crate::graph::op::parts::Parts;
use crate::graph::op::pointwise::import::{input as arg, select};
use crate::graph::op::quantize_linear::{DequantizeLinear, Grid, QuantizeLinear};
use crate::graph::op::{Attributes, Op, OpDef, OpResult, microsoft};
use crate::tensor::{DType, HostTensor};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QLinearWhere;

impl Composed for QLinearWhere {
    fn name(&self) -> &str {
        "QLinearWhere"
    }

    fn build(&self, cx: &mut Parts<'_, '_>) -> OpResult<Vec<ValueId>> {
        let grid = Grid { axis: 1, block: 0 };
        let dtype = cx.input(1)?;
        let dtype = Some(cx.fact(dtype)?.dtype);
        let mut operands = vec![cx.input(0)?];
        for (name, first) in [("x", 1), ("y", 4)] {
            let op = DequantizeLinear {
                grid,
                dtype: Some(DType::F32),
            };
            let list = [first, first + 1, first + 2].map(|i| cx.opt(i));
            operands.push(cx.node(name, op, &list)?);
        }
        let y = cx.pointwise("selected", select(arg(0), arg(1), arg(2)), &operands)?;
        let op = QuantizeLinear {
            grid,
            dtype,
            saturate: true,
        };
        Ok(vec![cx.node(
            "quantized",
            op,
            &[Some(y), cx.opt(7), cx.opt(8)],
        )?])
    }
}

fn import(_: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    Ok(Box::new(Composite(QLinearWhere)))
}

pub static DEF: OpDef = OpDef {
    onnx: &[microsoft("QLinearWhere", 9)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let bytes = |list: &[i64]| HostTensor::from_ints(DType::U8, &[list.len()], list);
    let map = |scale: f32, zero: i64| {
        let zero = HostTensor::from_ints(DType::U8, &[], &[zero]).ok()?;
        Some([
            constant(HostTensor::from_f32(&[], &[scale]).ok()?),
            constant(zero),
        ])
    };
    let all = || {
        let mut inputs = vec![given(HostTensor::from_bool(&[3], &[true, false, true]).ok()?)];
        inputs.push(given(bytes(&[0, 128, 255]).ok()?));
        inputs.extend(map(0.02, 128)?);
        inputs.push(given(bytes(&[7, 100, 250]).ok()?));
        inputs.extend(map(0.03, 90)?);
        // No result is halfway between two integers.
        inputs.extend(map(0.043, 100)?);
        Some(Case::new(Composite(QLinearWhere), inputs))
    };
    all().into_iter().collect()
}
