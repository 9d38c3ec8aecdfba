//! Reinterprets the bits of elements as another type of the same width. ONNX `BitCast` from opset
//! 26.

use crate::graph::onnx::dtype_of;
use crate::graph::op::case::{Case, input};
use crate::graph::op::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, onnx, operand};
use crate::shape::Fact;
use crate::tensor::{DType, HostTensor};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BitCast {
    /// The type of the result.
    pub to: DType,
}

impl Op for BitCast {
    fn name(&self) -> &str {
        "BitCast"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.fact(0)?;
        if x.dtype.bits() != self.to.bits() {
            return Err(OpError::mismatch("bits of the element types", x.dtype, self.to));
        }
        Ok(vec![Fact::new(self.to, x.shape.clone())])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        if x.dtype().bits() != self.to.bits() {
            return Err(OpError::mismatch("bits of the element types", x.dtype(), self.to));
        }
        // A host byte holds a narrow type in its lowest bits, sign-extended.
        let bytes = x.bytes()?;
        Ok(vec![match self.to.bits() {
            bits @ ..8 if self.to.is_int() || bits < 4 => {
                let codes: Vec<i64> = bytes.iter().map(|v| i64::from(*v)).collect();
                HostTensor::from_ints(self.to, x.shape(), &codes)?
            }
            bits @ ..8 => {
                let codes: Vec<u8> = bytes.iter().map(|v| v & !(u8::MAX << bits)).collect();
                HostTensor::from_bytes(self.to, x.shape(), &codes)?
            }
            _ if self.to == DType::Bool => {
                let truths: Vec<bool> = bytes.iter().map(|v| *v != 0).collect();
                HostTensor::from_bool(x.shape(), &truths)?
            }
            _ => HostTensor::from_bytes(self.to, x.shape(), bytes)?,
        }])
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let code = a.int("to")?;
    let code = code.ok_or_else(|| OpError::expected("attribute `to`", "an element type", "nothing"))?;
    Ok(Box::new(BitCast { to: dtype_of(code)? }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("BitCast", 26, 1)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    vec![Case::new(BitCast { to: DType::I32 }, vec![input(&[3, 5])]).host_only("no kernel")]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_stay() {
        let x = HostTensor::from_ints(DType::I4, &[3], &[-1, 7, -8]).unwrap();
        let cast = |x: &HostTensor, to| BitCast { to }.eval(&[Some(x)]).unwrap().remove(0);
        let y = cast(&x, DType::U4);
        assert_eq!(y.to_i64().unwrap(), [15, 7, 8]);
        assert_eq!(cast(&y, DType::I4), x);
        assert_eq!(
            cast(&x, DType::F4E2M1).to_f32().unwrap().as_ref(),
            [-6.0, 6.0, -0.0]
        );
        let x = HostTensor::from_f64(&[1], &[-2.0]).unwrap();
        assert_eq!(
            cast(&x, DType::U64).u64s().unwrap().as_ref(),
            [0xc000_0000_0000_0000]
        );
        assert!(BitCast { to: DType::F32 }.eval(&[Some(&x)]).is_err());
    }
}
