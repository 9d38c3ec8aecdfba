//! What a decoder does with new queries, keys and values before attention: rotary embedding of queries and keys, and keys and values
//! behind those in the cache (made by the pass of this name, of [`Rotary`] of halves and [`KvAppend`]). One dispatch.
//!
//! Operands: q `[1, n, heads, dim]`, k and v `[1, n, kv_heads, dim]`, cos and sin `[1, n, 1, dim]`, the states of keys and values `[1, past,
//! kv_heads, dim]`. Results: the turned queries, and both states with `past + n` rows, in the same memory.

use super::case::{Case, input};
use super::kv_append::KvAppend;
use super::rotary::{Pairs, Rotary};
use super::sizes::Sizes;
use super::{InferCx, Inputs, Op, OpDef, OpError, OpResult, never_in_files};
use crate::backend::kernel::Kernel;
use crate::plan::lower::{Call, Home, LowerCx};
use crate::shape::{Dim, Fact, product};
use crate::tensor::HostTensor;

static KERNEL: Kernel = crate::kernel!(rotary_append {
    queries: U32, count: U32, heads: U32, kv_heads: U32, dim: U32, start: U32,
} [
    q: In Elem, k: In Elem, v: In Elem, cosine: In Elem, sine: In Elem, live: Weight Elem,
    y: Out Elem, keys: InOut Elem, values: InOut Elem
]);

/// See the module documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RotaryAppend;

const HALVES: Rotary = Rotary { pairs: Pairs::Halves };

/// Rows are appended along this axis.
const APPEND: KvAppend = KvAppend { axis: 1 };

impl Op for RotaryAppend {
    fn name(&self) -> &str {
        "RotaryAppend"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let fact = |i: usize| cx.fact(i).map(Some);
        let angles = [fact(3)?, fact(4)?];
        let mut facts = cx.of(&HALVES, &[fact(0)?, angles[0], angles[1]])?;
        let keys = cx.of(&HALVES, &[fact(1)?, angles[0], angles[1]])?;
        facts.extend(cx.of(&APPEND, &[fact(5)?, keys.first()])?);
        facts.extend(cx.of(&APPEND, &[fact(6)?, fact(2)?])?);
        Ok(facts)
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let of = |i: usize| inputs.get(i).copied().flatten();
        let mut results = HALVES.eval(&[of(0), of(3), of(4)])?;
        let keys = HALVES.eval(&[of(1), of(3), of(4)])?;
        results.extend(APPEND.eval(&[of(5), keys.first()])?);
        results.extend(APPEND.eval(&[of(6), of(2)])?);
        Ok(results)
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let (q, k, past) = (cx.shape(0)?, cx.shape(1)?, cx.shape(5)?);
        let ([batch, _, heads, dim], [_, _, kv_heads, _]) = (q.0.as_slice(), k.0.as_slice()) else {
            return Err(OpError::mismatch("ranks (4 each)", q, k));
        };
        if !batch.is(1) || cx.shape(6)? != past {
            return Err(OpError::expected(
                "caches",
                format!("[1, past, ..], twice {past}"),
                cx.shape(6)?,
            ));
        }
        let states = [cx.output(1)?, cx.output(2)?];
        if states.iter().any(|s| !matches!(s.home, Home::State(_))) {
            return Err(OpError::expected("results 1 and 2", "states", "an activation"));
        }
        let row = product(past.0.get(2..).unwrap_or_default())?;
        let (queries, count) = (q.count()?, k.count()?);
        let all = queries.add(&count.mul(&Dim::from(2))?)?;
        let (live, start) = cx.live(&past.0[1].mul(&row)?);
        // Where vectors are written out, halves of a head's row are whole ones.
        let runs = dim
            .as_const()
            .filter(|d| cx.caps().explicit_vectors() && *d > 0 && d % 32 == 0);
        let (mut call, each) = match runs {
            Some(dim) => (Call::new(&KERNEL, 8).define("RUNS", 1), 8 * dim),
            None => (Call::new(&KERNEL, 64), 2 * 64),
        };
        for i in 0..5 {
            call = call.operand(cx.input(i)?);
        }
        let call = call
            .operand(live)
            .operand(cx.output(0)?)
            .operand(states[0])
            .operand(states[1])
            .grid(all.ceil_div(each)?, 1, 1)
            .field(&queries)
            .field(&count)
            .field(heads)
            .field(kv_heads)
            .field(dim)
            .field(start)
            .may_be_padded();
        cx.emit(call)
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        let turned = sizes.input_elements(0).saturating_add(sizes.input_elements(1));
        turned.saturating_mul(3)
    }

    fn elements_read(&self, input: usize, sizes: &Sizes) -> u64 {
        if input < 5 { sizes.input_elements(input) } else { 0 }
    }
}

/// The registry's entry.
pub static DEF: OpDef = OpDef {
    onnx: &[],
    import: never_in_files,
    kernels: &[&KERNEL],
    cases,
};

fn cases() -> Vec<Case> {
    let rows = |n: usize, heads: usize| input(&[1, n, heads, 8]);
    let inputs = vec![
        rows(2, 4),
        rows(2, 2),
        rows(2, 2),
        rows(2, 1),
        rows(2, 1),
        rows(5, 2),
        rows(5, 2),
    ];
    vec![Case::new(RotaryAppend, inputs).host_only("needs states; the model tests append on every device")]
}
