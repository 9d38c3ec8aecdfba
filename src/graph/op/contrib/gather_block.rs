//! `GatherBlockQuantized` of the domain `com.microsoft`: rows of a table of integers with a scale
//! for each block of `block` elements of one axis.
//!
//! Operands: the table, indices, scales, and optionally zero points. Two elements of 4 bits may
//! share a byte of the last axis, the first in the low half.

use crate::graph::ValueId;
use crate::graph::op::case::{Case, constant, input};
use crate::graph::op::composite::{Composed, Composite};
use crate::graph::op::gather::Gather;
use crate::graph::op::parts::Parts;
use crate::graph::op::pointwise::Binary;
use crate::graph::op::pointwise::import::{binary, cast, input as arg, number};
use crate::graph::op::{Attributes, Op, OpDef, OpError, OpResult, axis, concat::Concat, microsoft};
use crate::num;
use crate::shape::Dim;
use crate::tensor::{DType, HostTensor};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatherBlockQuantized {
    /// The axis that indices select from.
    pub axis: i64,
    /// The axis of the blocks.
    pub quantized: i64,
    /// Elements of a block.
    pub block: i64,
    /// Bits of an element in a byte.
    pub bits: i64,
}

impl GatherBlockQuantized {
    /// The elements as floats, two for each byte if they are packed.
    fn floats(&self, cx: &mut Parts<'_, '_>, name: &str, x: ValueId) -> OpResult<ValueId> {
        let fact = cx.fact(x)?;
        if fact.dtype != DType::U8 || self.bits == 8 {
            return cx.pointwise(name, cast(DType::F32, arg(0)), &[x]);
        }
        let byte = cast(DType::I32, arg(0));
        let sixteen = || cast(DType::I32, number(16.0));
        let high = binary(Binary::Div, byte.clone(), sixteen());
        let low = binary(Binary::Sub, byte, binary(Binary::Mul, high.clone(), sixteen()));
        let mut halves = Vec::with_capacity(2);
        for (what, half) in [("low", low), ("high", high)] {
            let half = cx.pointwise(&format!("{name}/{what}"), cast(DType::F32, half), &[x])?;
            halves.push(Some(cx.unsqueeze(
                &format!("{name}/{what}/apart"),
                half,
                &[-1],
            )?));
        }
        let pairs = cx.node(&format!("{name}/pairs"), Concat { axis: -1 }, &halves)?;
        let kept = vec![0; fact.shape.rank().saturating_sub(1)];
        cx.reshape(name, pairs, &[kept, vec![-1]].concat())
    }
}

impl Composed for GatherBlockQuantized {
    fn name(&self) -> &str {
        "GatherBlockQuantized"
    }

    fn build(&self, cx: &mut Parts<'_, '_>) -> OpResult<Vec<ValueId>> {
        let (table, indices) = (cx.input(0)?, cx.input(1)?);
        let fact = cx.fact(table)?;
        let rank = fact.shape.rank();
        let (from, blocks) = (axis(self.axis, rank)?, axis(self.quantized, rank)?);
        if from >= blocks || blocks + 1 != rank {
            return Err(OpError::Unsupported(format!(
                "`quantize_axis` {blocks} and `gather_axis` {from} at rank {rank}; only the last axis may be \
                 quantized, and only an earlier one gathered"
            )));
        }
        let gathered = |cx: &mut Parts<'_, '_>, name: &str, x: ValueId| {
            let op = Gather {
                axis: num::signed(from),
            };
            cx.node(name, op, &[Some(x), Some(indices)])
        };
        let rows = gathered(cx, "rows", table)?;
        let rows = self.floats(cx, "floats", rows)?;
        let scales = cx.input(2)?;
        let mut operands = vec![rows, gathered(cx, "scales", scales)?];
        let packed = fact.dtype == DType::U8;
        let zero = match cx.opt(3) {
            Some(zeros) => {
                let zeros = gathered(cx, "zeros", zeros)?;
                operands.push(self.floats(cx, "zeros/floats", zeros)?);
                arg(2)
            }
            None if packed && self.bits == 4 => number(8.0),
            None if packed => number(128.0),
            None => number(0.0),
        };
        // The blocks get an axis of their own, along which scales and zero points repeat.
        let shape = cx.fact(rows)?.shape;
        let at = shape.rank().saturating_sub(1);
        let size = shape.0.last().and_then(Dim::as_const);
        let size = size.filter(|n| n % self.block == 0);
        let size = size.ok_or_else(|| {
            OpError::Unsupported(format!(
                "last axis of {shape}; it must be constant and a multiple of `block_size`"
            ))
        })?;
        let kept = vec![0; at];
        let count = size / self.block;
        operands[0] = cx.reshape("blocks", rows, &[kept.clone(), vec![count, self.block]].concat())?;
        if let Some(zeros) = operands.get_mut(2) {
            // The last byte of packed zero points may be half used.
            *zeros = cx.slice("zeros/used", *zeros, -1, 0..count)?;
        }
        for (x, name) in operands.iter_mut().skip(1).zip(["scales/blocks", "zeros/blocks"]) {
            *x = cx.unsqueeze(name, *x, &[num::signed(at + 1)])?;
        }
        let scale = cast(DType::F32, arg(1));
        let y = binary(Binary::Mul, binary(Binary::Sub, arg(0), zero), scale);
        let y = cx.pointwise("scaled", cast(cx.fact(scales)?.dtype, y), &operands)?;
        Ok(vec![cx.reshape("whole", y, &[kept, vec![size]].concat())?])
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let op = GatherBlockQuantized {
        axis: a.int("gather_axis")?.unwrap_or(0),
        quantized: a.int("quantize_axis")?.unwrap_or(1),
        block: a.int("block_size")?.unwrap_or(128),
        bits: a.int("bits")?.unwrap_or(4),
    };
    if op.block < 16 {
        return Err(OpError::expected(
            "attribute `block_size`",
            "16 or more",
            op.block,
        ));
    }
    match op.bits {
        4 | 8 => Ok(Box::new(Composite(op))),
        bits => Err(OpError::expected("attribute `bits`", "4 or 8", bits)),
    }
}

pub static DEF: OpDef = OpDef {
    onnx: &[microsoft("GatherBlockQuantized", 4)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let bytes: Vec<i64> = (0..96).map(|i| i * 37 % 256).collect();
    let scales: Vec<f32> = (1u8..=12).map(|i| f32::from(i) * 0.25).collect();
    let (Ok(table), Ok(scales)) = (
        HostTensor::from_ints(DType::U8, &[6, 16], &bytes),
        HostTensor::from_f32(&[6, 2], &scales),
    ) else {
        return Vec::new();
    };
    let op = GatherBlockQuantized {
        axis: 0,
        quantized: 1,
        block: 16,
        bits: 4,
    };
    let indices = input(&[2, 3]).ints(0, 5);
    vec![Case::new(
        Composite(op),
        vec![constant(table), indices, constant(scales)],
    )]
}
