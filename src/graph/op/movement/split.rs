//! Splits a tensor along one axis.
//!
//! ONNX `Split` from opset 1: sizes as an attribute (before 13) or operand 1. Without sizes, equal
//! parts: as many as there are results or, from opset 18, as `num_outputs` states; from 18 the last
//! part may be smaller.

use crate::graph::op::case::{Case, input};
use crate::graph::op::{
    ANY, Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, around, as_usize, axis, onnx, operand,
    room, split_at, transpose,
};
use crate::lower::LowerCx;
use crate::num;
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::HostTensor;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// The axis; negative values count from the end.
    pub axis: i64,
    /// Sizes of the parts; `None` reads operand 1 or splits equally.
    pub sizes: Option<Vec<i64>>,
    pub parts: usize,
    /// Equal parts need not divide the size evenly.
    pub uneven: bool,
}

impl Split {
    /// Sizes of equal parts of `n`, and the remainder, which must be 0.
    fn equal(&self, n: &Dim) -> OpResult<(Vec<Dim>, Dim)> {
        let parts = i64::try_from(self.parts).ok().filter(|p| *p > 0);
        let parts = parts.ok_or_else(|| OpError::expected("number of parts", "1 or more", self.parts))?;
        if !self.uneven {
            let size = n.floor_div(parts)?;
            return Ok((vec![size.clone(); self.parts], n.sub(&size.mul(&parts.into())?)?));
        }
        let size = n.ceil_div(parts)?;
        let mut sizes = vec![size.clone(); self.parts];
        if let Some(last) = sizes.last_mut() {
            *last = n.sub(&size.mul(&(parts - 1).into())?)?;
        }
        Ok((sizes, 0.into()))
    }

    fn check(&self, given: &[Dim]) -> OpResult<()> {
        if given.len() == self.parts {
            return Ok(());
        }
        Err(OpError::mismatch(
            "numbers of sizes and results",
            given.len(),
            self.parts,
        ))
    }
}

impl Op for Split {
    fn name(&self) -> &str {
        "Split"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.fact(0)?;
        let a = axis(self.axis, x.shape.rank())?;
        let n = num::at(&x.shape.0, a)?.clone();
        let given = match (&self.sizes, cx.opt(1)) {
            (Some(list), _) => Some(list.iter().map(|s| Dim::from(*s)).collect()),
            (None, Some(_)) => Some(cx.sizes(1)?),
            (None, None) => None,
        };
        let sizes = match given {
            Some(sizes) => {
                self.check(&sizes)?;
                let sum = Dim::sum(&sizes)?;
                cx.same("sum of the parts and size of the axis", &sum, &n)?;
                sizes
            }
            None => {
                let (sizes, rest) = self.equal(&n)?;
                cx.same("remainder of equal parts and 0", &rest, &0.into())?;
                sizes
            }
        };
        let mut facts = Vec::with_capacity(sizes.len());
        for size in sizes {
            cx.require(size.clone(), "size of a part")?;
            let mut shape = x.shape.0.clone();
            if let Some(slot) = shape.get_mut(a) {
                *slot = size;
            }
            facts.push(Fact::new(x.dtype, Shape(shape)));
        }
        Ok(facts)
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let a = axis(self.axis, x.shape().len())?;
        let (outer, n, inner) = around(x.shape(), a)?;
        let size = Dim::from_usize(n);
        let given = match (&self.sizes, inputs.get(1).copied().flatten()) {
            (Some(list), _) => Some(list.clone()),
            (None, Some(t)) => Some(t.to_i64()?),
            (None, None) => None,
        };
        let (sizes, rest) = match given {
            Some(list) => {
                let list: Vec<Dim> = list.into_iter().map(Dim::from).collect();
                let sum = Dim::sum(&list)?;
                self.check(&list)?;
                (list, sum.sub(&size)?)
            }
            None => self.equal(&size)?,
        };
        let numbers: Option<Vec<usize>> = sizes.iter().map(as_usize).collect();
        let numbers = numbers.filter(|_| rest.is(0)).ok_or_else(|| {
            OpError::expected(
                "parts",
                format!("non-negative sizes that sum to {n}"),
                Shape(sizes),
            )
        })?;
        let row = inner * x.dtype().size();
        let (mut first, mut out) = (0, Vec::with_capacity(numbers.len()));
        for part in numbers {
            let mut bytes: Vec<u8> = room(&[outer, part, row])?;
            for o in (0..outer).filter(|_| part * row > 0) {
                let from = (o * n + first) * row;
                bytes.extend_from_slice(num::part(x.bytes()?, from..from + part * row)?);
            }
            let mut shape = x.shape().to_vec();
            if let Some(slot) = shape.get_mut(a) {
                *slot = part;
            }
            out.push(HostTensor::from_bytes(x.dtype(), &shape, &bytes)?);
            first += part;
        }
        Ok(out)
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let x = cx.shape(0)?;
        let a = axis(self.axis, x.rank())?;
        let (outer, _, inner) = split_at(&x, a)?;
        let step = transpose::dim_strides(&x.0)?;
        let mut start = Dim::from(0);
        for o in 0..cx.output_count() {
            let shape = cx.out_fact(o)?.shape.clone();
            if !(outer.is(1) && cx.view(o, 0, &start)?) {
                let (from, to) = (cx.input(0)?, cx.output(o)?);
                transpose::emit_copy(
                    cx,
                    from,
                    to,
                    &shape.0,
                    &transpose::Start {
                        at: start.clone(),
                        padded: false,
                    },
                    &step,
                )?;
            }
            start = start.add(&shape.0[a].mul(&inner)?)?;
        }
        Ok(())
    }

    fn reads(&self, input: usize) -> bool {
        input == 0
    }

    fn moves(&self, input: usize) -> bool {
        input == 0
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let parts = a.result_count();
    if let Some(n) = a.int("num_outputs")?.filter(|n| usize::try_from(*n) != Ok(parts)) {
        return Err(OpError::mismatch(
            "numbers of results and attribute `num_outputs`",
            parts,
            n,
        ));
    }
    Ok(Box::new(Split {
        axis: a.int("axis")?.unwrap_or(0),
        sizes: a.ints("split")?,
        parts,
        uneven: a.opset() >= 18,
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("Split", 1, 2).outputs(ANY)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let op = |axis, sizes: Option<&[i64]>, parts, uneven| Split {
        axis,
        sizes: sizes.map(<[i64]>::to_vec),
        parts,
        uneven,
    };
    let case = |op, x: &[usize]| Case::new(op, vec![input(x)]);
    vec![
        case(op(-1, None, 2, false), &[3, 5, 8]),
        case(op(1, None, 3, true), &[2, 7]),
        case(op(1, Some(&[3, 2]), 2, false), &[3, 5, 3]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbolic_sizes() {
        let op = |uneven| Split {
            axis: 0,
            sizes: None,
            parts: 4,
            uneven,
        };
        let text = |op: Split, n: &str| {
            let (sizes, rest) = op.equal(&Dim::parse(n).unwrap()).unwrap();
            (Shape(sizes).to_string(), rest.to_string())
        };
        assert_eq!(
            text(op(false), "8*s"),
            ("[2*s, 2*s, 2*s, 2*s]".into(), "0".into())
        );
        assert_eq!(text(op(true), "10"), ("[3, 3, 3, 1]".into(), "0".into()));
        assert_eq!(text(op(false), "10").1, "2", "opsets before 18 refuse a rest");
    }
}
