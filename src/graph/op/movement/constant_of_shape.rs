//! A tensor filled with one value. ONNX `ConstantOfShape` from opset 9. Runs on the host; a
//! constant shape is folded.

use crate::graph::op::case::{Case, input};
use crate::graph::op::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, onnx, operand, pointwise};
use crate::lower::LowerCx;
use crate::shape::{Dim, Fact, Known, MAX_KNOWN, Shape};
use crate::tensor::HostTensor;

#[derive(Clone, Debug, PartialEq)]
pub struct ConstantOfShape {
    /// The fill value, a tensor with one element.
    pub value: HostTensor,
}

impl ConstantOfShape {
    /// The fill value, if it is an integer that `i64` can represent.
    fn integer(&self) -> Option<i64> {
        let value = self.value.to_i64().ok()?;
        value.first().copied()
    }
}

impl Op for ConstantOfShape {
    fn name(&self) -> &str {
        "ConstantOfShape"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let mut fact = Fact::new(self.value.dtype(), Shape(cx.sizes(0)?));
        if !self.value.dtype().is_float()
            && let Some(shape) = fact.shape.as_fixed()
            && let Some(n) = crate::graph::op::count(&shape).ok().filter(|n| *n <= MAX_KNOWN)
            && let Some(value) = self.integer()
        {
            fact.known = Known::Dims(vec![Dim::from(value); n]);
        }
        Ok(vec![fact])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let shape = crate::graph::op::to_sizes(operand(inputs, 0)?)?;
        Ok(vec![crate::graph::op::gather_strided(
            &self.value,
            &shape,
            0,
            &vec![0; shape.len()],
        )?])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let value = if self.value.dtype().is_float() {
            self.value.to_f32()?.first().copied().map(f64::from)
        } else {
            let whole = self.integer().and_then(|v| i32::try_from(v).ok());
            whole.map(f64::from)
        };
        let value = value.filter(|v| v.is_finite()).ok_or_else(|| {
            let value = &self.value;
            OpError::NoKernel(format!(
                "a tensor filled with {value:?}; kernels support finite 32-bit numbers"
            ))
        })?;
        pointwise::fill(cx, value)
    }

    fn reads(&self, _: usize) -> bool {
        false
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let value = match a.tensor("value")? {
        Some(t) if t.len() == 1 => t.reshape(&[1])?,
        Some(t) => {
            return Err(OpError::expected(
                "attribute `value`",
                "one element",
                format!("{t:?}"),
            ));
        }
        None => HostTensor::from_f32(&[1], &[0.0])?,
    };
    Ok(Box::new(ConstantOfShape { value }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("ConstantOfShape", 9, 1)],
    import,
    kernels: &[&crate::kernels::pointwise::KERNEL.kernel],
    cases,
};

fn cases() -> Vec<Case> {
    let value = HostTensor::from_ints(crate::tensor::DType::I64, &[1], &[7]);
    value.map_or_else(
        |_| Vec::new(),
        |value| {
            let shape = input(&[2]).values(&[2, 3]).constant();
            vec![Case::new(ConstantOfShape { value }, vec![shape]).host_only("folded when planning")]
        },
    )
}
