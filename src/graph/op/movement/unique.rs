//! The distinct elements of a tensor, or slices along an axis. ONNX `Unique` from opset 11.
//!
//! Results: the distinct elements or slices, the first position of each, the index of each
//! position's element among them, and the number of occurrences. They are in ascending order or in
//! order of first occurrence. Their number is known only in the run.

use crate::graph::op::case::{Case, input};
use crate::graph::op::{Attributes, InferCx, Inputs, Op, OpDef, OpResult, around, axis, onnx, operand};
use crate::num;
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::{DType, HostTensor};
use std::cmp::Ordering;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unique {
    /// The axis; `None` flattens the operand first.
    pub axis: Option<i64>,
    /// Sort in ascending order.
    pub sorted: bool,
}

/// The order of two slices, element by element.
fn compare<T: PartialOrd>(a: &[T], b: &[T]) -> Ordering {
    let mut pairs = a.iter().zip(b).map(|(a, b)| num::ascending(a, b));
    pairs.find(|o| o.is_ne()).unwrap_or(Ordering::Equal)
}

/// Groups equal slices, in ascending order, each with the first position first. NaNs are equal to
/// each other, but slices with NaN are equal only if `nan_is_equal`, as in ONNX's reference.
fn groups<T: PartialOrd>(data: &[Vec<T>], nan_is_equal: bool) -> Vec<Vec<usize>> {
    let at = |i: usize| data.get(i).map_or(&[][..], Vec::as_slice);
    let mut sorted: Vec<usize> = (0..data.len()).collect();
    sorted.sort_by(|a, b| compare(at(*a), at(*b)));
    let equal = |a: &[T], b: &[T]| {
        if nan_is_equal {
            compare(a, b).is_eq()
        } else {
            a == b
        }
    };
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for i in sorted {
        match groups.last_mut() {
            Some(group) if group.first().is_some_and(|first| equal(at(*first), at(i))) => group.push(i),
            _ => groups.push(vec![i]),
        }
    }
    groups
}

/// The slices along an axis, each as a list.
fn slices<T: Copy>(data: &[T], (outer, n, inner): (usize, usize, usize)) -> Vec<Vec<T>> {
    let slice = |j| {
        (0..outer)
            .flat_map(|o| {
                data.get((o * n + j) * inner..(o * n + j + 1) * inner)
                    .into_iter()
                    .flatten()
                    .copied()
            })
            .collect()
    };
    (0..n).map(slice).collect()
}

impl Op for Unique {
    fn name(&self) -> &str {
        "Unique"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.fact(0)?;
        let (mut shape, a) = match self.axis {
            Some(a) => (x.shape.0.clone(), axis(a, x.shape.rank())?),
            None => (vec![x.shape.count()?], 0),
        };
        let n = num::at(&shape, a)?.clone();
        let count = cx.unknown(0, a, Some(n.clone()));
        if let Some(slot) = shape.get_mut(a) {
            *slot = count.clone();
        }
        let list = |n: &Dim| Fact::new(DType::I64, Shape(vec![n.clone()]));
        Ok(vec![
            Fact::new(x.dtype, Shape(shape)),
            list(&count),
            list(&n),
            list(&count),
        ])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let (mut shape, a) = match self.axis {
            Some(a) => (x.shape().to_vec(), axis(a, x.shape().len())?),
            None => (vec![x.len()], 0),
        };
        let extents = around(&shape, a)?;
        let mut groups = if x.dtype().is_float() {
            groups(&slices(&x.to_f64()?, extents), self.axis.is_none())
        } else {
            groups(&slices(&x.to_i128()?, extents), true)
        };
        if !self.sorted {
            groups.sort_by_key(|group| group.first().copied());
        }
        let (outer, n, inner) = extents;
        let row = inner * x.dtype().size();
        let mut bytes = Vec::new();
        for o in 0..outer {
            for first in groups.iter().filter_map(|g| g.first()) {
                let from = (o * n + first) * row;
                bytes.extend_from_slice(num::part(x.bytes()?, from..from + row)?);
            }
        }
        if let Some(slot) = shape.get_mut(a) {
            *slot = groups.len();
        }
        let mut inverse = vec![0; n];
        for (i, group) in groups.iter().enumerate() {
            for at in group {
                if let Some(slot) = inverse.get_mut(*at) {
                    *slot = num::signed(i);
                }
            }
        }
        let firsts: Vec<i64> = groups
            .iter()
            .filter_map(|g| g.first())
            .map(|i| num::signed(*i))
            .collect();
        let counts: Vec<i64> = groups.iter().map(|g| num::signed(g.len())).collect();
        Ok(vec![
            HostTensor::from_bytes(x.dtype(), &shape, &bytes)?,
            HostTensor::from_i64(&[firsts.len()], &firsts)?,
            HostTensor::from_i64(&[n], &inverse)?,
            HostTensor::from_i64(&[counts.len()], &counts)?,
        ])
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    Ok(Box::new(Unique {
        axis: a.int("axis")?,
        sorted: a.int("sorted")?.unwrap_or(1) != 0,
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("Unique", 11, 1).outputs(4)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let case = |axis, sorted, x: &[usize]| {
        Case::new(Unique { axis, sorted }, vec![input(x).ints(0, 2)])
            .host_only("the size of the result depends on data")
    };
    vec![case(None, true, &[3, 5]), case(Some(0), false, &[9, 2])]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_and_nans_are_equal() {
        let nan = f32::NAN;
        let find = |axis, shape: &[usize], data: &[f32]| {
            let x = HostTensor::from_f32(shape, data).unwrap();
            let results = Unique { axis, sorted: true }.eval(&[Some(&x)]).unwrap();
            results[1..]
                .iter()
                .map(|t| t.to_i64().unwrap())
                .collect::<Vec<_>>()
        };
        let zeros = find(None, &[5], &[0.0, -0.0, nan, -1.0, nan]);
        assert_eq!(zeros, [vec![3, 0, 2], vec![1, 1, 2, 0, 2], vec![1, 2, 2]]);
        let rows = find(Some(0), &[4, 2], &[nan, 0.0, 1.0, 0.0, nan, 0.0, 1.0, -0.0]);
        assert_eq!(rows, [vec![1, 0, 2], vec![1, 0, 2, 0], vec![2, 1, 1]]);
    }

    #[test]
    fn elements_of_two_bytes() {
        let bf16 = |shape: &[usize], data| HostTensor::from_floats(DType::BF16, shape, data).unwrap();
        let x = bf16(&[5], &[2.0, -1.0, 2.0, 0.5, -1.0]);
        let op = Unique {
            axis: None,
            sorted: true,
        };
        let results = op.eval(&[Some(&x)]).unwrap();
        assert_eq!(results[0], bf16(&[3], &[-1.0, 0.5, 2.0]));
        let lists: Vec<Vec<i64>> = results[1..].iter().map(|t| t.to_i64().unwrap()).collect();
        assert_eq!(lists, [vec![1, 3, 0], vec![2, 0, 2, 1, 0], vec![2, 1, 2]]);
    }
}
