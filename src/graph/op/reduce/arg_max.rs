//! Index of the largest or smallest element along an axis.
//!
//! ONNX `ArgMax` and `ArgMin` from opset 1; `select_last_index` from 12. Ties select the first or
//! the last element.

use crate::graph::bounds::{Bounds, BoundsCx};
use crate::graph::op::case::{Case, EDGES, input};
use crate::graph::op::types::Types;
use crate::graph::op::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, around, axis, no_number, onnx, operand,
    split_at,
};
use crate::kernels::arg_max::{Args, FLOATS, KERNEL, SMALLEST};
use crate::lower::{Call, LowerCx};
use crate::num;
use crate::shape::{Fact, Shape};
use crate::tensor::{DType, HostTensor};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArgMax {
    /// Search for the smallest element instead of the largest.
    pub min: bool,
    /// The axis searched; negative counts from the end.
    pub axis: i64,
    /// Keep the axis with size 1.
    pub keep: bool,
    /// Ties select the last element.
    pub last: bool,
}

impl ArgMax {
    fn find<T: PartialOrd>(&self, data: &[T], (outer, n, inner): (usize, usize, usize)) -> Vec<i64> {
        let mut out = Vec::with_capacity(outer * inner);
        for (o, i) in (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))) {
            let mut best: Option<(usize, &T)> = None;
            for (j, v) in (0..n).filter_map(|j| data.get((o * n + j) * inner + i).map(|v| (j, v))) {
                // NaN counts as the largest and as the smallest.
                let better = best.is_none_or(|(_, b)| match (no_number(v), no_number(b)) {
                    (false, false) => (if self.min { v < b } else { v > b }) || (self.last && v == b),
                    (new, old) => new && (self.last || !old),
                });
                if better {
                    best = Some((j, v));
                }
            }
            out.push(best.map_or(0, |(j, _)| num::signed(j)));
        }
        out
    }
}

impl Op for ArgMax {
    fn name(&self) -> &str {
        if self.min { "ArgMin" } else { "ArgMax" }
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.typed(0, Types::NUMBER)?;
        let a = axis(self.axis, x.shape.rank())?;
        let mut shape = x.shape.0.clone();
        cx.require(shape[a].sub(&1.into())?, "size of the axis minus 1")?;
        if self.keep {
            shape.splice(a..=a, [1.into()]);
        } else {
            shape.remove(a);
        }
        Ok(vec![Fact::new(DType::I64, Shape(shape))])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let a = axis(self.axis, x.shape().len())?;
        let extents = around(x.shape(), a)?;
        if extents.1 == 0 {
            return Err(OpError::expected("size of the axis", "1 or more", 0));
        }
        let y = if x.dtype().is_float() {
            self.find(&x.to_f64()?, extents)
        } else {
            self.find(&x.to_i128()?, extents)
        };
        let mut shape = x.shape().to_vec();
        if self.keep {
            shape.splice(a..=a, [1]);
        } else {
            shape.remove(a);
        }
        Ok(vec![HostTensor::from_i64(&shape, &y)?])
    }

    fn bounds(&self, cx: &BoundsCx<'_>) -> Vec<Option<Bounds>> {
        vec![Some(Bounds::new(0, (cx.axis(0, self.axis) - 1).max(0)))]
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let x = cx.shape(0)?;
        let (outer, cols, inner) = split_at(&x, axis(self.axis, x.rank())?)?;
        cx.loops("two searches", &cols.mul(&2.into())?)?;
        let count = outer.mul(&inner)?;
        let call = Call::new(&KERNEL, 64)
            .define_if(SMALLEST, self.min)
            .define_if(crate::kernels::arg_max::LAST, self.last)
            .define_if(FLOATS, cx.fact(0)?.dtype.is_float())
            .grid(count.ceil_div(2 * 64)?, 1, 1);
        let (x, y) = (cx.input(0)?, cx.output(0)?);
        cx.emit(
            call,
            Args {
                x,
                y,
                count,
                cols,
                inner,
            },
        )
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    Ok(Box::new(ArgMax {
        min: a.op_type() == "ArgMin",
        axis: a.int("axis")?.unwrap_or(0),
        keep: a.int("keepdims")?.unwrap_or(1) != 0,
        last: a.int("select_last_index")?.unwrap_or(0) != 0,
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("ArgMax", 1, 1), onnx("ArgMin", 1, 1)],
    import,
    kernels: &[&KERNEL.kernel],
    cases,
};

fn cases() -> Vec<Case> {
    let case = |min, axis, keep, last, x: &[usize]| {
        Case::new(
            ArgMax {
                min,
                axis,
                keep,
                last,
            },
            vec![input(x)],
        )
    };
    let ints = |op| Case::new(op, vec![input(&[3, 9, 5]).ints32(-3, 3)]);
    let flags = [false, true].into_iter().flat_map(|a| [(a, false), (a, true)]);
    let edges = flags.flat_map(|(min, last)| {
        let op = |axis| ArgMax {
            min,
            axis,
            keep: false,
            last,
        };
        // Rows with NaN and without, and zeros of both signs.
        [
            Case::new(op(1), vec![input(&[3, 22]).floats(EDGES)]),
            Case::new(op(0), vec![input(&[3, 11]).floats(EDGES)]),
            Case::new(op(1), vec![input(&[2, 3]).floats(&[-0.0, 0.0, -0.0])]),
        ]
    });
    let mut all: Vec<Case> = edges.collect();
    all.extend([
        case(false, -1, true, false, &[3, 33]),
        case(true, 0, false, true, &[5, 2, 3]),
        case(false, 1, false, true, &[1, 1, 1]),
        ints(ArgMax {
            min: false,
            axis: 1,
            keep: false,
            last: true,
        }),
        ints(ArgMax {
            min: true,
            axis: 1,
            keep: true,
            last: false,
        }),
    ]);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_is_found() {
        let x = HostTensor::from_f32(&[4], &[1.0, f32::NAN, 3.0, f32::NAN]).unwrap();
        for min in [false, true] {
            let find = |last| {
                ArgMax {
                    min,
                    axis: 0,
                    keep: false,
                    last,
                }
                .eval(&[Some(&x)])
                .unwrap()[0]
                    .to_i64()
                    .unwrap()
            };
            assert_eq!((find(false), find(true)), (vec![1], vec![3]));
        }
    }

    #[test]
    fn unsigned_integers_are_compared_as_such() {
        let x = HostTensor::from_ints(DType::U64, &[3], &[1, -1, 2]).unwrap();
        let op = ArgMax {
            min: false,
            axis: 0,
            keep: false,
            last: false,
        };
        assert_eq!(op.eval(&[Some(&x)]).unwrap()[0].to_i64().unwrap(), [1]);
    }
}
