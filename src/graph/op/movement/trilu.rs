//! Keeps the upper or lower triangle of matrices, with zeros elsewhere. ONNX `Trilu` from opset 14;
//! the diagonal is operand 1.

use crate::graph::op::case::{Case, input};
use crate::graph::op::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, one_int, onnx, operand};
use crate::kernels::trilu::{Args, KERNEL, UPPER};
use crate::lower::{Call, LowerCx};
use crate::num;
use crate::shape::{Dim, Fact};
use crate::tensor::HostTensor;

/// A diagonal outside every matrix.
const FAR: i64 = 1 << 30;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trilu {
    /// Keep elements on and above the diagonal instead of on and below it.
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
        let mut bytes = x.bytes()?.to_vec();
        for (i, element) in bytes.chunks_exact_mut(x.dtype().size()).enumerate() {
            let (row, col) = (num::signed(i / cols % rows), num::signed(i % cols));
            let above = (col - row).saturating_sub(diagonal);
            if if self.upper { above < 0 } else { above > 0 } {
                element.fill(0);
            }
        }
        Ok(vec![HostTensor::from_bytes(x.dtype(), x.shape(), &bytes)?])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let shape = cx.shape(0)?;
        let [.., rows, cols] = shape.0.as_slice() else {
            return Err(OpError::expected("rank", "2 or more", shape.rank()));
        };
        let mut diagonal = Dim::from(0);
        if cx.has(1) {
            let [one] = <[Dim; 1]>::try_from(cx.dims(1)?)
                .map_err(|list| OpError::expected("diagonal", "one integer", list.len()))?;
            // Clamp: diagonals outside every matrix are equivalent.
            diagonal = one.as_const().map_or(one.clone(), |k| k.clamp(-FAR, FAR).into());
        }
        let count = shape.count()?;
        let mut call = Call::new(&KERNEL, 64)
            .grid(count.ceil_div(2 * 64)?, 1, 1)
            .may_work_in_place();
        call = call.define_if(UPPER, self.upper);
        let args = Args {
            x: cx.input(0)?,
            y: cx.output(0)?,
            count,
            rows: rows.clone(),
            cols: cols.clone(),
            diagonal,
        };
        cx.emit(call, args)
    }

    fn reads(&self, input: usize) -> bool {
        input == 0
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

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("Trilu", 14, 2)],
    import,
    kernels: &[&KERNEL.kernel],
    cases,
};

fn cases() -> Vec<Case> {
    let case = |x: &[usize], upper, diagonal: i64| {
        Case::new(
            Trilu { upper },
            vec![input(x), input(&[]).values(&[diagonal]).constant()],
        )
    };
    vec![
        case(&[5, 5], true, 0),
        case(&[2, 3, 7], false, -1),
        case(&[1, 65], true, 3),
        Case::new(Trilu { upper: false }, vec![input(&[4, 33]).ints(-9, 9)]),
    ]
}
