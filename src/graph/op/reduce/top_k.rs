//! The k largest or smallest elements along an axis, and their indices.
//!
//! ONNX `TopK` from opset 1: k as an attribute (before 10) or operand 1; `largest` and `sorted`
//! from 11. Ties are ordered by index; results are always sorted. Both zeros are equal, and NaN
//! counts as larger than any number.

use crate::graph::bounds::{Bounds, BoundsCx};
use crate::graph::op::case::{Case, EDGES, input};
use crate::graph::op::types::Types;
use crate::graph::op::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, around, axis, one_int, onnx, operand, split_at,
};
use crate::kernels::top_k::{Args, FLOATS, KERNEL, LARGEST};
use crate::lower::{Call, LowerCx};
use crate::num;
use crate::shape::Fact;
use crate::tensor::{DType, HostTensor};
use std::cmp::Ordering;

/// Maximum number of elements for kernels: each one is compared with all others.
const MAX_LENGTH: i64 = 8192;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopK {
    /// The axis to search; negative values count from the end.
    pub axis: i64,
    /// Number of elements; `None` reads operand 1.
    pub k: Option<i64>,
    /// Select the largest elements instead of the smallest.
    pub largest: bool,
}

/// Elements of every row along the axis, best first, as (position in the tensor, position in the
/// row).
fn ranked<T>(
    data: &[T],
    shape: &[usize],
    a: usize,
    better: impl Fn(&T, &T) -> Ordering,
) -> OpResult<Vec<Vec<usize>>> {
    let (outer, n, inner) = around(shape, a)?;
    let mut rows = Vec::with_capacity(outer * inner);
    for (o, i) in (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))) {
        let mut row: Vec<usize> = (0..n).collect();
        let at = |j: &usize| data.get((o * n + j) * inner + i);
        row.sort_by(|x, y| match (at(x), at(y)) {
            (Some(x), Some(y)) => better(x, y),
            _ => Ordering::Equal,
        });
        rows.push(row);
    }
    Ok(rows)
}

impl Op for TopK {
    fn name(&self) -> &str {
        "TopK"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.typed(0, Types::NUMBER)?;
        let a = axis(self.axis, x.shape.rank())?;
        let k = match self.k {
            Some(k) => k.into(),
            None => match cx.sizes(1)?.as_slice() {
                [k] => k.clone(),
                list => {
                    return Err(OpError::expected(
                        "k",
                        "one integer",
                        format!("{} integers", list.len()),
                    ));
                }
            },
        };
        let mut shape = x.shape.clone();
        if let Some(n) = shape.0.get_mut(a) {
            cx.require(k.clone(), "number of requested elements")?;
            cx.require(n.sub(&k)?, "size minus the number of requested elements")?;
            *n = k;
        }
        Ok(vec![
            Fact::new(x.dtype, shape.clone()),
            Fact::new(DType::I64, shape),
        ])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let a = axis(self.axis, x.shape().len())?;
        let k = self.k.map_or_else(|| one_int(operand(inputs, 1)?, "k"), Ok)?;
        let (_, n, inner) = around(x.shape(), a)?;
        let few = usize::try_from(k).ok().filter(|k| *k <= n);
        let k = few.ok_or_else(|| OpError::expected("k", format!("0 to {n}"), k))?;
        let turn = |o: Ordering| if self.largest { o.reverse() } else { o };
        let rows = if x.dtype().is_float() {
            ranked(&x.to_f64()?, x.shape(), a, |p, q| turn(num::ascending(p, q)))?
        } else {
            ranked(&x.to_i128()?, x.shape(), a, |p, q| turn(p.cmp(q)))?
        };
        let mut shape = x.shape().to_vec();
        if let Some(slot) = shape.get_mut(a) {
            *slot = k;
        }
        let size = x.dtype().size();
        let (mut values, mut indices) = (Vec::new(), Vec::new());
        // Rows are numbered with the outer axes first; the axis of results lies between outer and
        // inner axes.
        for group in rows.chunks(inner.max(1)) {
            for rank in 0..k {
                indices.extend(group.iter().filter_map(|row| row.get(rank)).copied());
            }
        }
        for (i, j) in indices.iter().enumerate() {
            let (o, inside) = (i / (k * inner).max(1), i % inner.max(1));
            let at = (o * n + j) * inner + inside;
            values.extend_from_slice(num::part(x.bytes()?, at * size..(at + 1) * size)?);
        }
        let indices: Vec<i64> = indices.into_iter().map(num::signed).collect();
        Ok(vec![
            HostTensor::from_bytes(x.dtype(), &shape, &values)?,
            HostTensor::from_i64(&shape, &indices)?,
        ])
    }

    fn bounds(&self, cx: &BoundsCx<'_>) -> Vec<Option<Bounds>> {
        let places = Bounds::new(0, (cx.axis(0, self.axis) - 1).max(0));
        vec![cx.input(0), Some(places)]
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let x = cx.fact(0)?.shape.clone();
        let a = axis(self.axis, x.rank())?;
        let (outer, n, inner) = split_at(&x, a)?;
        let kept = num::at(&cx.out_fact(0)?.shape.0, a)?.clone();
        if n.as_const().is_none_or(|n| n > MAX_LENGTH) {
            return Err(OpError::NoKernel(format!("the largest of {n} elements")));
        }
        let count = outer.mul(&n)?.mul(&inner)?;
        let at = cx.result(1, DType::I32, &outer.mul(&kept)?.mul(&inner)?)?;
        let call = Call::new(&KERNEL, 64)
            .define_if(LARGEST, self.largest)
            .define_if(FLOATS, cx.fact(0)?.dtype.is_float())
            .grid(count.ceil_div(64)?, 1, 1);
        let args = Args {
            x: cx.input(0)?,
            y: cx.output(0)?,
            at,
            count,
            n,
            inner,
            kept,
        };
        cx.emit(call, args)
    }

    fn reads(&self, input: usize) -> bool {
        input == 0
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    // Sorted results are valid for `sorted = 0`, too.
    a.int("sorted")?;
    let k = a.int("k")?;
    if a.opset() < 10 && k.is_none() {
        return Err(OpError::expected("attribute `k`", "an integer", "nothing"));
    }
    Ok(Box::new(TopK {
        axis: a.int("axis")?.unwrap_or(-1),
        k,
        largest: a.int("largest")?.unwrap_or(1) != 0,
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("TopK", 1, 2).outputs(2)],
    import,
    kernels: &[&KERNEL.kernel],
    cases,
};

fn cases() -> Vec<Case> {
    let case = |x: &[usize], axis, largest, k| {
        let inputs = vec![input(x), input(&[1]).values(&[k]).constant()];
        Case::new(
            TopK {
                axis,
                k: None,
                largest,
            },
            inputs,
        )
    };
    let edges = |largest| {
        let op = TopK {
            axis: 1,
            k: Some(7),
            largest,
        };
        Case::new(op, vec![input(&[2, 14]).floats(EDGES)])
    };
    vec![
        edges(false),
        edges(true),
        case(&[3, 9], -1, true, 4),
        case(&[5, 2, 3], 0, false, 5),
        case(&[3, 130], 1, true, 130),
        Case::new(
            TopK {
                axis: 1,
                k: Some(3),
                largest: false,
            },
            vec![input(&[4, 9]).ints32(-3, 3)],
        ),
    ]
}
