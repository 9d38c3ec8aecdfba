//! Copies a tensor and writes elements or slices at given indices.
//!
//! ONNX `ScatterElements` and `ScatterND` from opset 11, `Scatter` from 9 (the older name of the
//! former); `reduction` `add` and `mul` from 16, `max` and `min` from 18. Negative indices count
//! from the end.

use crate::graph::bounds::{Bounds, BoundsCx};
use crate::graph::op::case::{Case, input};
use crate::graph::op::gather_elements::{Places, targets, within};
use crate::graph::op::gather_nd::starts;
use crate::graph::op::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, as_usize, axis, count, max_nan, min_nan, onnx,
    operand, transpose,
};
use crate::kernels::gather_places::SCATTER;
use crate::lower::LowerCx;
use crate::num;
use crate::shape::Fact;
use crate::tensor::HostTensor;

/// How an update is combined with the old element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are self-explanatory")]
pub enum Reduction {
    Replace,
    Add,
    Mul,
    Max,
    Min,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scatter {
    /// Writes elements along this axis (negative values count from the end); `None` writes slices
    /// by tuples of indices.
    pub axis: Option<i64>,
    /// How an update is combined with the old element.
    pub reduction: Reduction,
}

impl Scatter {
    /// For each element of the updates, the offset of its target.
    fn places(&self, x: &HostTensor, index: &HostTensor, updates: &HostTensor) -> OpResult<Vec<usize>> {
        let places = match self.axis {
            Some(a) => targets(x.shape(), index, axis(a, x.shape().len())?)?,
            None => {
                let starts = starts(x.shape(), index, 0)?;
                let tuple = index.shape().last().copied().unwrap_or(0);
                let row = count(num::part(x.shape(), tuple..)?)?;
                starts.into_iter().flat_map(|start| start..start + row).collect()
            }
        };
        if places.len() != updates.len() {
            return Err(OpError::mismatch(
                "numbers of targets and updates",
                places.len(),
                updates.len(),
            ));
        }
        Ok(places)
    }
}

impl Op for Scatter {
    fn name(&self) -> &str {
        if self.axis.is_some() {
            "ScatterElements"
        } else {
            "ScatterND"
        }
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let (x, index, updates) = (cx.fact(0)?, cx.fact(1)?, cx.fact(2)?);
        if x.dtype != updates.dtype {
            return Err(OpError::mismatch("element types", x.dtype, updates.dtype));
        }
        if !index.dtype.is_int() {
            return Err(OpError::expected("indices", "integers", index));
        }
        let wanted = match self.axis {
            Some(a) => {
                if index.shape.rank() != x.shape.rank() {
                    return Err(OpError::mismatch("ranks", &x.shape, &index.shape));
                }
                within(cx, &x.shape, &index.shape, axis(a, x.shape.rank())?)?;
                index.shape.0.clone()
            }
            None => {
                let bad = || OpError::mismatch("shapes of operand and indices", &x.shape, &index.shape);
                let (tuple, lead) = index.shape.0.split_last().ok_or_else(bad)?;
                let tuple = as_usize(tuple);
                let rest = tuple.and_then(|n| x.shape.0.get(n..)).ok_or_else(bad)?;
                [lead, rest].concat()
            }
        };
        if wanted.len() != updates.shape.rank() {
            return Err(OpError::mismatch(
                "shapes of indices and updates",
                &index.shape,
                &updates.shape,
            ));
        }
        for (a, b) in wanted.iter().zip(&updates.shape.0) {
            cx.same("shapes of indices and updates", a, b)?;
        }
        Ok(vec![Fact::new(x.dtype, x.shape.clone())])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let (x, updates) = (operand(inputs, 0)?, operand(inputs, 2)?);
        let places = self.places(x, operand(inputs, 1)?, updates)?;
        if self.reduction == Reduction::Replace {
            let size = x.dtype().size();
            let mut bytes = x.bytes()?.to_vec();
            for (at, new) in places.into_iter().zip(updates.bytes()?.chunks_exact(size)) {
                if let Some(slot) = bytes.get_mut(at * size..(at + 1) * size) {
                    slot.copy_from_slice(new);
                }
            }
            return Ok(vec![HostTensor::from_bytes(x.dtype(), x.shape(), &bytes)?]);
        }
        if x.dtype().is_float() {
            let (mut data, new) = (x.to_f64()?.into_owned(), updates.to_f64()?);
            for (at, new) in places.into_iter().zip(new.iter()) {
                if let Some(old) = data.get_mut(at) {
                    *old = match self.reduction {
                        Reduction::Replace => *new,
                        Reduction::Add => *old + new,
                        Reduction::Mul => *old * new,
                        Reduction::Max => max_nan(*old, *new),
                        Reduction::Min => min_nan(*old, *new),
                    };
                }
            }
            return Ok(vec![HostTensor::from_f64s(x.dtype(), x.shape(), &data)?]);
        }
        let (mut data, new) = (x.to_i128()?, updates.to_i128()?);
        for (at, new) in places.into_iter().zip(new) {
            if let Some(old) = data.get_mut(at) {
                *old = match self.reduction {
                    Reduction::Replace => new,
                    Reduction::Add => old.wrapping_add(new),
                    Reduction::Mul => old.wrapping_mul(new),
                    Reduction::Max => new.max(*old),
                    Reduction::Min => new.min(*old),
                };
            }
        }
        Ok(vec![HostTensor::from_i128s(x.dtype(), x.shape(), &data)?])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        if self.reduction != Reduction::Replace {
            return Err(OpError::NoKernel(format!(
                "scattering with reduction {:?}",
                self.reduction
            )));
        }
        let (x, index) = (cx.shape(0)?, cx.shape(1)?);
        let places = match self.axis {
            Some(a) => Places::along(&x, &index, axis(a, x.rank())?)?,
            None => Places::tuples(&x, &index)?,
        };
        let (from, to, count) = (cx.input(0)?, cx.output(0)?, x.count()?);
        transpose::emit_copy(cx, from, to, &[count], &transpose::Start::first(), &[1.into()])?;
        let updates = cx.input(2)?;
        places.emit(cx, &SCATTER, 1, [updates, to])
    }

    fn moves(&self, input: usize) -> bool {
        // Combined elements are arithmetic results, so derivation cannot track them.
        self.reduction == Reduction::Replace && input != 1
    }

    fn accepts(&self, input: usize, cx: &BoundsCx<'_>) -> Option<Bounds> {
        (input == 1).then(|| match self.axis {
            Some(axis) => Bounds::indices(cx.axis(0, axis)),
            None => cx.any_index(0),
        })
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let elements = a.op_type() != "ScatterND";
    let axis = if elements {
        Some(a.int("axis")?.unwrap_or(0))
    } else {
        None
    };
    let reduction = match a.string("reduction")?.as_deref() {
        None | Some("none") => Reduction::Replace,
        Some("add") => Reduction::Add,
        Some("mul") => Reduction::Mul,
        Some("max") => Reduction::Max,
        Some("min") => Reduction::Min,
        Some(other) => {
            return Err(OpError::expected(
                "attribute `reduction`",
                "none, add, mul, max or min",
                other,
            ));
        }
    };
    Ok(Box::new(Scatter { axis, reduction }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[
        onnx("ScatterElements", 11, 3),
        onnx("ScatterND", 11, 3),
        onnx("Scatter", 9, 3),
    ],
    import,
    kernels: &[&SCATTER.kernel, &crate::kernels::check_indices::KERNEL.kernel],
    cases,
};

fn cases() -> Vec<Case> {
    let case = |axis, reduction, x: &[usize], index: &[usize], updates: &[usize], n: i64| {
        let inputs = vec![input(x), input(index).ints(-n, n - 1), input(updates)];
        Case::new(Scatter { axis, reduction }, inputs)
    };
    // An element that is written twice may get either value, so indices are unique.
    let once = |axis, x: &[usize], index: &[usize], places: &[i64], updates: &[usize]| {
        let inputs = vec![input(x), input(index).values(places), input(updates)];
        Case::new(
            Scatter {
                axis,
                reduction: Reduction::Replace,
            },
            inputs,
        )
    };
    let ints = vec![
        input(&[7]).ints(-9, 9),
        input(&[3]).values(&[4, 0, -1]),
        input(&[3]).ints(20, 29),
    ];
    let host = |case: Case| case.host_only("a reduction");
    vec![
        once(Some(0), &[5, 3], &[2, 3], &[0, 1, 2, -1, 0, 3], &[2, 3]),
        once(Some(-1), &[2, 2, 7], &[2, 1, 3], &[0, -1, 3, 6, 2, 4], &[2, 1, 3]),
        once(None, &[4, 3, 3], &[2, 1], &[3, -3], &[2, 3, 3]),
        once(None, &[3, 5], &[3, 2], &[0, 0, 2, -1, 1, 3], &[3]),
        Case::new(
            Scatter {
                axis: Some(0),
                reduction: Reduction::Replace,
            },
            ints,
        ),
        host(case(Some(1), Reduction::Add, &[3, 5], &[3, 2], &[3, 2], 5)),
        host(case(None, Reduction::Max, &[3, 3], &[4, 2], &[4], 3)),
    ]
}
