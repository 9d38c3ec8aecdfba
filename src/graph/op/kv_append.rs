//! Appends rows to a state in place (own domain, made by the pass `kv_cache`; paper, section 2.3
//! "KV cache copy optimization": the in-place operator that replaces the concatenation).
//!
//! Operands: the state `[1, past, ..]` and new rows `[1, n, ..]`. The result is the state with
//! `past + n` rows, in the same memory. The write offset is read from the per-step state buffer, so
//! nothing else changes from token to token. In a state with a window ([`LowerCx::ring`]) a new row
//! may overwrite one that is no longer read.

use super::case::{Case, input};
use super::sizes::Sizes;
use super::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, concat::Concat, own};
use crate::lower::{Call, Location, LowerCx};
use crate::num;
use crate::shape::{Dim, Fact, product};
use crate::tensor::HostTensor;

crate::kernel! {
    static KERNEL: TypedKernel<Args> = "kv_append" {
        count, start: U32
    } [x: In, live: Weight, state: PartialOut]
    .linear()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvAppend {
    /// The axis that grows; all axes before it have size 1.
    pub axis: usize,
}

impl KvAppend {
    fn as_concat(&self) -> Concat {
        Concat {
            axis: num::signed(self.axis),
        }
    }
}

impl Op for KvAppend {
    fn name(&self) -> &str {
        "KvAppend"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        self.as_concat().infer(cx)
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        self.as_concat().eval(inputs)
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let (state, new) = (cx.shape(0)?, cx.shape(1)?);
        let target = cx.output(0)?;
        if !matches!(target.location, Location::State(_)) {
            return Err(OpError::expected("result", "a state", "an activation"));
        }
        let row = product(&state.0[self.axis + 1..])?;
        if !product(&state.0[..self.axis])?.is(1) || row.exact_div(&2.into()).is_none() {
            return Err(OpError::Unsupported(format!(
                "appending to {state} along axis {} (rows must be contiguous and of even length)",
                self.axis
            )));
        }
        let count = new.count()?;
        let (live, start) = cx.live(&state.0[self.axis].mul(&row)?);
        let call = Call::new(&KERNEL, 64);
        let call = match ring(cx, &state.0[self.axis], &new.0[self.axis], &row)? {
            Some(elements) => call.define("RING", elements),
            None => call,
        };
        let call = call.grid(count.ceil_div(2 * 64)?, 1, 1).may_be_padded();
        let args = Args {
            x: cx.input(1)?,
            live,
            state: target,
            count,
            start,
        };
        cx.emit(call, args)
    }

    fn flops(&self, _sizes: &Sizes) -> u64 {
        0
    }

    fn elements_read(&self, input: usize, sizes: &Sizes) -> u64 {
        if input == 0 {
            0
        } else {
            sizes.input_elements(input)
        }
    }
}

/// Ring capacity of the state in operand 0, in elements (with `row` elements per token) or rows of
/// heads, if a run may append beyond it. Rows beyond the capacity wrap to the start.
pub(super) fn ring(cx: &LowerCx<'_>, past: &Dim, new: &Dim, row: &Dim) -> OpResult<Option<i64>> {
    let most = cx.upper_bound(&past.add(new)?);
    let Some(rows) = cx.ring(0)?.filter(|n| most.is_none_or(|most| most > *n)) else {
        return Ok(None);
    };
    let elements = row.as_const().and_then(|row| rows.checked_mul(row));
    let unknown = || {
        OpError::Unsupported(format!(
            "a window of a cache whose row size {row} is not constant"
        ))
    };
    elements.map(Some).ok_or_else(unknown)
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let axis = a.int("axis")?.and_then(|v| usize::try_from(v).ok());
    Ok(Box::new(KvAppend {
        axis: axis.ok_or_else(|| OpError::expected("attribute `axis`", "0 or more", "nothing"))?,
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[own("KvAppend", 2)],
    import,
    kernels: &[&KERNEL.kernel],
    cases,
};

fn cases() -> Vec<Case> {
    let case = Case::new(
        KvAppend { axis: 1 },
        vec![input(&[1, 5, 3, 64]), input(&[1, 2, 3, 64])],
    );
    vec![case.host_only("needs a state; the model tests append on every device")]
}
