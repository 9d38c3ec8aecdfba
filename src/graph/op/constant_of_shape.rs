//! A tensor of one repeated value. ONNX `ConstantOfShape` from opset 9. On the host; a constant shape is folded.

use super::case::{Case, input};
use super::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, onnx, operand, range};
use crate::plan::lower::LowerCx;
use crate::shape::{Dim, Fact, Known, MAX_KNOWN, Shape};
use crate::tensor::HostTensor;

/// See the module documentation.
#[derive(Clone, Debug, PartialEq)]
pub struct ConstantOfShape {
    /// One element: the value.
    pub value: HostTensor,
}

impl Op for ConstantOfShape {
    fn name(&self) -> &str {
        "ConstantOfShape"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let mut fact = Fact::new(self.value.dtype(), Shape(cx.sizes(0)?));
        if !self.value.dtype().is_float()
            && let Some(shape) = fact.shape.as_fixed()
            && let Some(n) = super::count(&shape).ok().filter(|n| *n <= MAX_KNOWN)
        {
            let value = self.value.to_i64()?.first().copied().unwrap_or(0);
            fact.known = Known::Dims(vec![Dim::from(value); n]);
        }
        Ok(vec![fact])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let shape = super::to_sizes(operand(inputs, 0)?)?;
        Ok(vec![super::gather_strided(
            &self.value,
            &shape,
            0,
            &vec![0; shape.len()],
        )?])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a float that is a small integer is one"
        )]
        let whole = if self.value.dtype().is_float() {
            let list = self.value.to_f32()?;
            list.first()
                .copied()
                .filter(|v| v.fract() == 0.0 && v.abs() < 16_777_216.0)
                .map(|v| v as i64)
        } else {
            self.value.to_i64()?.first().copied()
        };
        let whole = whole.ok_or_else(|| {
            OpError::NoKernel(format!("a tensor filled with {:?}, no small integer", self.value))
        })?;
        range::emit(cx, &whole.into(), 0)
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

/// The registry's entry.
pub static DEF: OpDef = OpDef {
    onnx: &[onnx("ConstantOfShape", 9)],
    import,
    kernels: &[&range::KERNEL],
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
