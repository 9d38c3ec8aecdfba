//! The upper or lower triangle of matrices, zeros elsewhere. ONNX `Trilu` from opset 14; the diagonal is operand 1.

use super::case::{Case, input};
use super::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, one_int, onnx, operand};
use crate::shape::Fact;
use crate::tensor::HostTensor;

/// See the module documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trilu {
    /// Keeps what is on and above the diagonal, else what is on and below it.
    pub upper: bool,
}

impl Op for Trilu {
    fn name(&self) -> &str {
        "Trilu"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.fact(0)?;
        if x.shape.rank() < 2 {
            return Err(OpError::expected("rank", "2 or more", x.shape.rank()));
        }
        Ok(vec![Fact::new(x.dtype, x.shape.clone())])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let diagonal = inputs
            .get(1)
            .copied()
            .flatten()
            .map_or(Ok(0), |k| one_int(k, "diagonal"))?;
        let [.., rows, cols] = x.shape() else {
            return Err(OpError::expected("rank", "2 or more", x.shape().len()));
        };
        let number = |v: usize| i64::try_from(v).unwrap_or(i64::MAX);
        let mut bytes = x.bytes()?.to_vec();
        for (i, element) in bytes.chunks_exact_mut(x.dtype().size()).enumerate() {
            let (row, col) = (number(i / cols % rows), number(i % cols));
            let above = (col - row).saturating_sub(diagonal);
            if if self.upper { above < 0 } else { above > 0 } {
                element.fill(0);
            }
        }
        Ok(vec![HostTensor::from_bytes(x.dtype(), x.shape(), &bytes)?])
    }

    fn moves(&self, input: usize) -> bool {
        input == 0
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    Ok(Box::new(Trilu {
        upper: a.int("upper")?.unwrap_or(1) != 0,
    }))
}

/// The registry's entry.
pub static DEF: OpDef = OpDef {
    onnx: &[onnx("Trilu", 14)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let case = |x: &[usize], upper, diagonal: i64| {
        Case::new(
            Trilu { upper },
            vec![input(x), input(&[]).values(&[diagonal]).constant()],
        )
        .host_only("no kernel")
    };
    vec![
        case(&[5, 5], true, 0),
        case(&[2, 3, 7], false, -1),
        case(&[1, 65], true, 3),
    ]
}
