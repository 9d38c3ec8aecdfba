//! Repeats a tensor along its axes. ONNX `Tile` from opset 6; the repeats are operand 1.

use crate::graph::op::case::{Case, input};
use crate::graph::op::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, count, onnx, operand, room, strides, to_sizes,
    transpose,
};
use crate::lower::LowerCx;
use crate::num;
use crate::shape::{Fact, Shape};
use crate::tensor::{HostTensor, TensorError};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tile;

impl Op for Tile {
    fn name(&self) -> &str {
        "Tile"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.fact(0)?;
        let repeats = cx.sizes(1)?;
        if repeats.len() != x.shape.rank() {
            return Err(OpError::mismatch(
                "numbers of axes and repeats",
                x.shape.rank(),
                repeats.len(),
            ));
        }
        let shape = x
            .shape
            .0
            .iter()
            .zip(&repeats)
            .map(|(n, r)| n.mul(r))
            .collect::<Result<_, _>>()?;
        Ok(vec![Fact::new(x.dtype, Shape(shape))])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let repeats = to_sizes(operand(inputs, 1)?)?;
        if repeats.len() != x.shape().len() {
            return Err(OpError::mismatch(
                "numbers of axes and repeats",
                x.shape().len(),
                repeats.len(),
            ));
        }
        let size = |(n, r): (&usize, &usize)| {
            n.checked_mul(*r)
                .ok_or_else(|| TensorError::TooLarge(repeats.clone()))
        };
        let shape: Vec<usize> = x
            .shape()
            .iter()
            .zip(&repeats)
            .map(size)
            .collect::<Result<_, _>>()?;
        let total = count(&shape)?;
        let (own, from, to) = (x.shape(), strides(x.shape()), strides(&shape));
        let element = x.dtype().size();
        let mut out: Vec<u8> = room(&[total, element])?;
        for i in 0..total {
            let at: usize = (0..own.len())
                .map(|a| i / to[a] % shape[a] % own[a] * from[a])
                .sum();
            out.extend_from_slice(num::part(x.bytes()?, at * element..(at + 1) * element)?);
        }
        Ok(vec![HostTensor::from_bytes(x.dtype(), &shape, &out)?])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let x = cx.shape(0)?;
        let (mut sizes, mut steps) = (Vec::new(), Vec::new());
        for ((n, step), repeats) in x.0.iter().zip(transpose::dim_strides(&x.0)?).zip(cx.dims(1)?) {
            sizes.extend([repeats, n.clone()]);
            steps.extend([0.into(), step]);
        }
        transpose::emit_strided(cx, &sizes, &transpose::Start::first(), &steps)
    }

    fn reads(&self, input: usize) -> bool {
        input == 0
    }

    fn moves(&self, input: usize) -> bool {
        input == 0
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    if a.opset() < 6 {
        return Err(OpError::Unsupported("Tile before opset 6".to_owned()));
    }
    Ok(Box::new(Tile))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("Tile", 6, 2)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let case =
        |x: &[usize], by: &[i64]| Case::new(Tile, vec![input(x), input(&[by.len()]).values(by).constant()]);
    vec![
        case(&[2, 3], &[2, 1]),
        case(&[3, 1, 2], &[1, 5, 3]),
        case(&[2, 3, 5], &[2, 2, 3]),
        case(&[5], &[1]),
    ]
}
