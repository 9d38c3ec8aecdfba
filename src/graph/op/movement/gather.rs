//! Selects slices along an axis. ONNX `Gather` from opset 1; negative indices count from the end.
//!
//! An index out of range is an error. On a device, a constant table that exceeds a kernel's binding
//! limit is split by rows if these are along axis 0.

use crate::graph::bounds::{Bounds, BoundsCx};
use crate::graph::op::case::{Case, input};
use crate::graph::op::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, around, as_usize, axis, indices, onnx,
    operand, room, split_at, transpose,
};
use crate::kernels::gather::{Args, KERNEL};
use crate::lower::{Call, LowerCx, Pack};
use crate::num;
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::HostTensor;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gather {
    /// The axis to select from; negative values count from the end.
    pub axis: i64,
}

impl Op for Gather {
    fn name(&self) -> &str {
        "Gather"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let (x, index) = (cx.fact(0)?, cx.fact(1)?);
        if !index.dtype.is_int() {
            return Err(OpError::expected("indices", "integers", index.dtype));
        }
        let a = axis(self.axis, x.shape.rank())?;
        let mut shape = x.shape.0[..a].to_vec();
        shape.extend(index.shape.0.iter().cloned());
        shape.extend(x.shape.0[a + 1..].iter().cloned());
        Ok(vec![Fact::new(x.dtype, Shape(shape))])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let (x, index) = (operand(inputs, 0)?, operand(inputs, 1)?);
        let a = axis(self.axis, x.shape().len())?;
        let n = x.shape()[a];
        let (outer, _, inner) = around(x.shape(), a)?;
        let row = inner * x.dtype().size();
        let at: Vec<usize> = index
            .to_i64()?
            .into_iter()
            .map(|i| {
                let signed = num::signed(n);
                usize::try_from(if i < 0 { i + signed } else { i })
                    .ok()
                    .filter(|i| *i < n)
                    .ok_or_else(|| OpError::expected("index", format!("-{n} to {}", n.saturating_sub(1)), i))
            })
            .collect::<OpResult<_>>()?;
        let mut out: Vec<u8> = room(&[outer, at.len(), row])?;
        for o in 0..outer {
            for i in &at {
                let from = (o * n + i) * row;
                out.extend_from_slice(num::part(x.bytes()?, from..from + row)?);
            }
        }
        let mut shape = x.shape()[..a].to_vec();
        shape.extend(index.shape());
        shape.extend(&x.shape()[a + 1..]);
        Ok(vec![HostTensor::from_bytes(x.dtype(), &shape, &out)?])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let table = cx.fact(0)?.clone();
        let out = cx.out_fact(0)?.shape.clone();
        let a = axis(self.axis, table.shape.rank())?;
        let (_, rows, row) = split_at(&table.shape, a)?;
        let mut parts = Vec::new();
        if let (Some(_), Some(rows), Some(row), 0) = (table.as_const(), as_usize(&rows), as_usize(&row), a) {
            let dtype = if table.dtype.is_float() {
                cx.float()
            } else {
                cx.output(0)?.dtype
            };
            let size = dtype.device_bytes();
            for (first, count) in cx.split(rows, (row, size), 1)? {
                let pack = Pack::Rows { dtype, first, count };
                parts.push((
                    cx.weight(0, pack)?.words().0,
                    Dim::from_usize(first),
                    Dim::from_usize(count),
                ));
            }
        } else {
            cx.countable("table", &table.shape.count()?)?;
            let (table, words) = cx.input(0)?.words();
            if words != cx.output(0)?.words().1 {
                return Err(OpError::NoKernel(transpose::differ()));
            }
            parts.push((table, 0.into(), rows.clone()));
        }
        let (y, words) = cx.output(0)?.words();
        let (count, row) = (out.count()?.mul(&words.into())?, row.mul(&words.into())?);
        let indices = cx.shape(1)?.count()?;
        let index = indices::checked(cx, 1, std::slice::from_ref(&rows))?;
        for (part, first, part_rows) in parts {
            let call = Call::new(&KERNEL, 64).grid(count.ceil_div(2 * 64)?, 1, 1);
            let args = Args {
                table: part,
                index,
                y,
                count: count.clone(),
                row: row.clone(),
                indices: indices.clone(),
                table_rows: rows.clone(),
                first,
                part_rows,
            };
            cx.emit(call, args)?;
        }
        Ok(())
    }

    fn moves(&self, input: usize) -> bool {
        input == 0
    }

    fn accepts(&self, input: usize, cx: &BoundsCx<'_>) -> Option<Bounds> {
        (input == 1).then(|| Bounds::indices(cx.axis(0, self.axis)))
    }

    // Rows of a table are the first activations of a model.
    fn keeps_precision(&self) -> bool {
        false
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    Ok(Box::new(Gather {
        axis: a.int("axis")?.unwrap_or(0),
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("Gather", 1, 2)],
    import,
    kernels: &[&KERNEL.kernel, &crate::kernels::check_indices::KERNEL.kernel],
    cases,
};

fn cases() -> Vec<Case> {
    let case = |table: &[usize], index: &[usize]| {
        let n = num::signed(table[0]);
        Case::new(
            Gather { axis: 0 },
            vec![input(table).constant(), input(index).ints(-n, n - 1)],
        )
    };
    vec![
        case(&[50, 64], &[1, 7]),
        case(&[9, 33], &[2, 5]),
        case(&[5, 2, 3], &[1]),
        case(&[5, 2, 3], &[7]),
        case(&[41], &[3]),
        Case::new(Gather { axis: 0 }, vec![input(&[6, 10]), input(&[4]).ints(0, 5)]),
        Case::new(Gather { axis: 1 }, vec![input(&[3, 5]), input(&[2]).ints(0, 4)]),
        Case::new(
            Gather { axis: -2 },
            vec![input(&[3, 5, 7]).constant(), input(&[2, 3]).ints(-5, 4)],
        ),
        Case::new(
            Gather { axis: 0 },
            vec![input(&[9, 5]).ints(-99, 99), input(&[3]).ints(-9, 8)],
        ),
        Case::new(
            Gather { axis: 0 },
            vec![input(&[9]).ints(-99, 99).constant(), input(&[]).ints(-9, 8)],
        ),
    ]
}
