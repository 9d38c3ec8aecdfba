//! Moves blocks of pixels from channels to space, and back.
//!
//! ONNX `DepthToSpace` (opset 1; 11: mode `CRD`) and `SpaceToDepth` (1; 28: mode `CRD`): `[n, c, h,
//! w]` with a block size.

use crate::graph::op::case::{Case, input};
use crate::graph::op::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, fixed_size, gather_strided, onnx, operand,
    transpose,
};
use crate::graph::rules::{self, Same};
use crate::lower::LowerCx;
use crate::num;
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::HostTensor;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DepthToSpace {
    /// Height and width of a block.
    pub block: i64,
    /// Space to depth instead of depth to space.
    pub back: bool,
    /// The pixels of a channel are adjacent in the channels (`CRD`), instead of the channels of a
    /// pixel (`DCR`).
    pub channel_first: bool,
}

impl DepthToSpace {
    /// The shape of the result. A size that is not known to be divisible must be so in every run.
    fn shape(&self, x: &[Dim], same: Same<'_>) -> OpResult<Vec<Dim>> {
        let [n, c, h, w] = x else {
            return Err(OpError::expected("rank", 4, x.len()));
        };
        let b = Dim::from(self.block);
        let area = b.mul(&b)?;
        let part = |what: &'static str, d: &Dim, by: &Dim| match d.exact_div(by) {
            Some(size) => Ok(size),
            None => {
                let size = d.div_floor(by)?;
                same(what, d, &size.mul(by)?)?;
                Ok::<_, OpError>(size)
            }
        };
        Ok(if self.back {
            vec![
                n.clone(),
                c.mul(&area)?,
                part("image height and height of whole blocks", h, &b)?,
                part("image width and width of whole blocks", w, &b)?,
            ]
        } else {
            vec![
                n.clone(),
                part("channels and channels of whole blocks", c, &area)?,
                h.mul(&b)?,
                w.mul(&b)?,
            ]
        })
    }
}

impl DepthToSpace {
    /// Splits each axis of the result into parts, with the stride of each part in the operand.
    fn walk(&self, x: &[Dim], out: &[Dim]) -> OpResult<(Vec<Dim>, Vec<Dim>)> {
        let ([n, c, h, w], [_, c_out, h_out, w_out]) = (x, out) else {
            return Err(OpError::expected("rank", 4, x.len()));
        };
        let b = Dim::from(self.block);
        let (plane, row) = (h.mul(w)?, b.mul(w)?);
        let image = c.mul(&plane)?;
        let one = Dim::from(1);
        if self.back {
            let (sizes, steps) = if self.channel_first {
                ([n, c, &b, &b, h_out, w_out], [&image, &plane, w, &one, &row, &b])
            } else {
                ([n, &b, &b, c, h_out, w_out], [&image, w, &one, &plane, &row, &b])
            };
            return Ok((sizes.map(Clone::clone).to_vec(), steps.map(Clone::clone).to_vec()));
        }
        let (pixel_row, pixel, channel) = if self.channel_first {
            (b.mul(&plane)?, plane.clone(), b.mul(&b)?.mul(&plane)?)
        } else {
            let all = c_out.mul(&plane)?;
            (b.mul(&all)?, all, plane)
        };
        let sizes = [n, c_out, h, &b, w, &b].map(Clone::clone).to_vec();
        Ok((sizes, vec![image, channel, w.clone(), pixel_row, one, pixel]))
    }
}

impl Op for DepthToSpace {
    fn name(&self) -> &str {
        if self.back { "SpaceToDepth" } else { "DepthToSpace" }
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.fact(0)?;
        Ok(vec![Fact::new(
            x.dtype,
            Shape(self.shape(&x.shape.0, &|what, a, b| cx.same(what, a, b))?),
        )])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let shape = Shape(self.shape(&Shape::fixed(x.shape()).0, &rules::equal)?);
        let shape = shape
            .as_fixed()
            .ok_or_else(|| OpError::expected("shape", "sizes of 0 or more", &shape))?;
        let (sizes, steps) = self.walk(&Shape::fixed(x.shape()).0, &Shape::fixed(&shape).0)?;
        let sizes: Vec<usize> = sizes.iter().map(fixed_size).collect::<OpResult<_>>()?;
        let step = |d: &Dim| fixed_size(d).map(num::signed);
        let steps: Vec<i64> = steps.iter().map(step).collect::<OpResult<_>>()?;
        Ok(vec![gather_strided(x, &sizes, 0, &steps)?.reshape(&shape)?])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let (x, out) = (cx.shape(0)?, cx.out_fact(0)?.shape.clone());
        let (sizes, steps) = self.walk(&x.0, &out.0)?;
        transpose::emit_strided(cx, &sizes, &transpose::Start::first(), &steps)
    }

    fn keeps_precision(&self) -> bool {
        true
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let block = a.int("blocksize")?.unwrap_or(0);
    if !(1..=1 << 15).contains(&block) {
        return Err(OpError::expected("attribute `blocksize`", "1 to 32768", block));
    }
    let back = a.op_type() == "SpaceToDepth";
    let channel_first = match a.string("mode")?.as_deref() {
        None | Some("DCR") => false,
        Some("CRD") => true,
        Some(other) => return Err(OpError::expected("attribute `mode`", "DCR or CRD", other)),
    };
    Ok(Box::new(DepthToSpace {
        block,
        back,
        channel_first,
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("DepthToSpace", 1, 1), onnx("SpaceToDepth", 1, 1)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let case = |back, channel_first, block, x: &[usize]| {
        Case::new(
            DepthToSpace {
                block,
                back,
                channel_first,
            },
            vec![input(x)],
        )
    };
    vec![
        case(false, false, 2, &[2, 12, 3, 5]),
        case(false, true, 2, &[1, 8, 3, 2]),
        case(false, true, 3, &[1, 9, 2, 2]),
        case(true, false, 2, &[2, 3, 6, 4]),
        case(true, true, 2, &[2, 3, 6, 4]),
        case(true, true, 3, &[1, 2, 3, 9]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::DType;

    #[test]
    fn there_and_back() {
        let x = input(&[2, 3, 6, 4]).make(1).unwrap();
        for channel_first in [false, true] {
            let there = DepthToSpace {
                block: 2,
                back: true,
                channel_first,
            };
            let back = DepthToSpace { back: false, ..there };
            let y = there.eval(&[Some(&x)]).unwrap().remove(0);
            assert_eq!(y.shape(), [2, 12, 3, 2]);
            assert_eq!(back.eval(&[Some(&y)]).unwrap()[0], x);
        }
    }

    #[test]
    fn modes_order_the_channels() {
        let x = HostTensor::from_ints(DType::I64, &[1, 2, 2, 2], &[0, 1, 2, 3, 10, 11, 12, 13]).unwrap();
        let channels = |channel_first| {
            let op = DepthToSpace {
                block: 2,
                back: true,
                channel_first,
            };
            op.eval(&[Some(&x)]).unwrap()[0].to_i64().unwrap()
        };
        assert_eq!(channels(false), [0, 10, 1, 11, 2, 12, 3, 13]);
        assert_eq!(channels(true), [0, 1, 2, 3, 10, 11, 12, 13]);
    }
}
