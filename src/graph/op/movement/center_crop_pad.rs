//! Crops or zero-pads a tensor around its center to given sizes. ONNX `CenterCropPad` from opset
//! 18.
//!
//! Operand 1: the sizes, of all axes or of those listed by an attribute.

use crate::graph::op::case::{Case, input};
use crate::graph::op::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, count, onnx, operand, room, strides, to_sizes,
};
use crate::shape::{Fact, Shape};
use crate::tensor::HostTensor;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CenterCropPad {
    /// The axes whose sizes operand 1 gives; `None` for all.
    pub axes: Option<Vec<i64>>,
}

impl CenterCropPad {
    /// The shape with the new sizes.
    fn resized<T: Clone>(&self, shape: &[T], sizes: Vec<T>) -> OpResult<Vec<T>> {
        let rank = shape.len();
        let axes = crate::graph::op::axes(self.axes.as_deref(), rank)?;
        if axes.len() != sizes.len() {
            return Err(OpError::mismatch(
                "numbers of axes and of sizes",
                axes.len(),
                sizes.len(),
            ));
        }
        let mut out = shape.to_vec();
        for (a, size) in axes.into_iter().zip(sizes) {
            if let Some(slot) = out.get_mut(a) {
                *slot = size;
            }
        }
        Ok(out)
    }
}

impl Op for CenterCropPad {
    fn name(&self) -> &str {
        "CenterCropPad"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.fact(0)?;
        let shape = self.resized(&x.shape.0, cx.sizes(1)?)?;
        Ok(vec![Fact::new(x.dtype, Shape(shape))])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let shape = self.resized(x.shape(), to_sizes(operand(inputs, 1)?)?)?;
        let size = x.dtype().size();
        let (from, mut out): (_, Vec<u8>) = (x.bytes()?, room(&[count(&shape)?, size])?);
        let steps = strides(&shape);
        let axes: Vec<_> = steps
            .iter()
            .zip(&shape)
            .zip(x.shape().iter().zip(strides(x.shape())))
            .collect();
        // The offset of a result element in the operand, if any.
        let place = |i: usize| {
            let mut at = 0;
            for ((step, new), (old, old_step)) in &axes {
                // An odd element is cut or added at the end.
                let j = i / *step % **new + old.saturating_sub(**new) / 2;
                let j = j
                    .checked_sub(new.saturating_sub(**old) / 2)
                    .filter(|j| j < *old)?;
                at += j * old_step;
            }
            from.get(at * size..(at + 1) * size)
        };
        for i in 0..count(&shape)? {
            match place(i) {
                Some(element) => out.extend_from_slice(element),
                None => out.extend(std::iter::repeat_n(0, size)),
            }
        }
        Ok(vec![HostTensor::from_bytes(x.dtype(), &shape, &out)?])
    }

    fn reads(&self, input: usize) -> bool {
        input == 0
    }

    fn moves(&self, input: usize) -> bool {
        input == 0
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    Ok(Box::new(CenterCropPad {
        axes: a.ints("axes")?,
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("CenterCropPad", 18, 2)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let case = |axes: Option<&[i64]>, x: &[usize], sizes: &[i64]| {
        let op = CenterCropPad {
            axes: axes.map(<[i64]>::to_vec),
        };
        let sizes = input(&[sizes.len()]).values(sizes).constant();
        Case::new(op, vec![input(x), sizes]).host_only("no kernel")
    };
    vec![
        case(None, &[5, 4], &[2, 7]),
        case(Some(&[-1, 0]), &[3, 5, 8], &[3, 4]),
    ]
}
