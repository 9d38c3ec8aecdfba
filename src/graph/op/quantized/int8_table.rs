//! Functions of one 8-bit integer as tables of 256 entries: activation functions and rescaling.
//! *Integer-Arithmetic-Only Inference* (appendix A.1) computes activation functions in fixed point;
//! a table holds their rounded results.

use crate::graph::op::case::{Case, constant};
use crate::graph::op::int8::{self, byte_operand, fact, tensor, word_operand};
use crate::graph::op::{InferCx, Inputs, Op, OpDef, OpError, OpResult, never_in_files};
use crate::kernels::int8_table::{Args, KERNEL};
use crate::lower::{Call, LowerCx, Planned};
use crate::shape::Fact;
use crate::tensor::HostTensor;

/// `y = table[x + 128]`; operand 1 is the table, `i8[256]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Int8Table;

impl Op for Int8Table {
    fn name(&self) -> &str {
        "Int8Table"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let (x, table) = (fact(cx, 0)?, fact(cx, 1)?);
        if !int8::only(&table.shape.0)?.is(256) {
            return Err(OpError::expected("table", "256 entries", table));
        }
        Ok(vec![Fact::new(x.dtype, x.shape.clone())])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let ((x, data), (_, table)) = (byte_operand(inputs, 0)?, byte_operand(inputs, 1)?);
        let of = |x: &i8| table.get(usize::from(x.cast_unsigned() ^ 0x80)).copied();
        let y: Option<Vec<i8>> = data.iter().map(of).collect();
        let y = y.ok_or_else(|| OpError::expected("table", "256 entries", table.len()))?;
        Ok(vec![tensor(x.shape(), &y)?])
    }

    fn stores_bytes(&self) -> bool {
        true
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let args = Args::<Planned> {
            count: int8::words(&cx.shape(0)?)?,
            x: word_operand(cx, 0)?,
            table: word_operand(cx, 1)?,
            y: cx.output(0)?,
        };
        cx.emit(Call::new(&KERNEL, 64).grid(args.count.ceil_div(64)?, 1, 1), args)
    }
}

pub static DEF: OpDef = OpDef {
    onnx: &[],
    import: never_in_files,
    kernels: &[&KERNEL.kernel],
    cases,
};

fn cases() -> Vec<Case> {
    let table: Vec<i8> = (0..=u8::MAX).map(|i| i.wrapping_mul(167).cast_signed()).collect();
    let table = tensor(&[256], &table).ok();
    let case = |table| Case::new(Int8Table, vec![int8::case_input(&[3, 5, 8]), constant(table)]);
    table.into_iter().map(case).collect()
}
