//! Prepares new queries, keys and values for attention in one dispatch: rotary embedding of queries
//! and keys, and appending of keys and values to the cache (made by the pass of this name from
//! [`Rotary`] and [`KvAppend`]).
//!
//! Operands: q `[1, n, heads, dim]`, k and v `[1, n, kv_heads, dim]`, cos and sin `[1, n, 1, dim]`
//! (for interleaved pairs `[1, n, 1, pairs]`), and the states of keys and values
//! `[1, past, kv_heads, dim]`. If rows are appended along axis 0, the first two axes of all
//! operands are swapped. Results: the rotated queries, and both states with `past + n` rows, in the
//! same memory. With an eighth operand, places `[n]`, rows are scattered as in [`KvAppend`].

use crate::graph::op::case::{Case, input};
use crate::graph::op::kv_append::{KvAppend, destination};
use crate::graph::op::rotary::{Pairs, Rotary};
use crate::graph::op::sizes::Sizes;
use crate::graph::op::{InferCx, Inputs, Op, OpDef, OpError, OpResult, never_in_files};
use crate::kernels::rotary::NEIGHBOURS;
use crate::kernels::rotary_append::{Args, KERNEL};
use crate::lower::{Call, Location, LowerCx};
use crate::num;
use crate::shape::{Dim, Fact, product};
use crate::tensor::HostTensor;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RotaryAppend {
    /// Which elements of a head form a pair.
    pub pairs: Pairs,
    /// Axis along which rows are appended, 0 or 1; the other of the two has size 1.
    pub axis: usize,
}

impl RotaryAppend {
    fn turn(&self) -> Rotary {
        Rotary { pairs: self.pairs }
    }

    fn append(&self) -> KvAppend {
        KvAppend { axis: self.axis }
    }
}

impl Op for RotaryAppend {
    fn name(&self) -> &str {
        "RotaryAppend"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let fact = |i: usize| cx.fact(i).map(Some);
        let angles = [fact(3)?, fact(4)?];
        let mut facts = cx.of(&self.turn(), &[fact(0)?, angles[0], angles[1]])?;
        let keys = cx.of(&self.turn(), &[fact(1)?, angles[0], angles[1]])?;
        facts.extend(cx.of(&self.append(), &[fact(5)?, keys.first(), cx.opt(7)])?);
        facts.extend(cx.of(&self.append(), &[fact(6)?, fact(2)?, cx.opt(7)])?);
        Ok(facts)
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let of = |i: usize| inputs.get(i).copied().flatten();
        let mut results = self.turn().eval(&[of(0), of(3), of(4)])?;
        let keys = self.turn().eval(&[of(1), of(3), of(4)])?;
        results.extend(self.append().eval(&[of(5), keys.first(), of(7)])?);
        results.extend(self.append().eval(&[of(6), of(2), of(7)])?);
        Ok(results)
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let (q, k, cosine, past) = (cx.shape(0)?, cx.shape(1)?, cx.shape(3)?, cx.shape(5)?);
        let ([_, _, heads, dim], [_, _, kv_heads, _], [.., angles]) =
            (q.0.as_slice(), k.0.as_slice(), cosine.0.as_slice())
        else {
            return Err(OpError::mismatch("ranks (4 each)", q, k));
        };
        let (Some(rows), Some(batch)) = (past.0.get(self.axis), past.0.get(1 - self.axis.min(1))) else {
            return Err(OpError::expected("rank of caches", 4, past.rank()));
        };
        if !batch.is(1) || cx.shape(6)? != past {
            return Err(OpError::expected(
                "caches",
                format!("one sequence along axis {}, both of shape {past}", self.axis),
                cx.shape(6)?,
            ));
        }
        let states = [cx.output(1)?, cx.output(2)?];
        if states.iter().any(|s| !matches!(s.location, Location::State(_))) {
            return Err(OpError::expected("results 1 and 2", "states", "an activation"));
        }
        let row = product(num::part(&past.0, 2..)?)?;
        let (queries, count) = (q.count()?, k.count()?);
        let all = queries.add(&count.mul(&Dim::from(2))?)?;
        let (places, live, start) = destination(cx, 7, &rows.mul(&row)?)?;
        let mut call = Call::new(&KERNEL, 64);
        call = call.define_if(NEIGHBOURS, self.pairs == Pairs::Neighbours);
        let args = Args {
            q: cx.input(0)?,
            k: cx.input(1)?,
            v: cx.input(2)?,
            cosine: cx.input(3)?,
            sine: cx.input(4)?,
            places,
            live,
            y: cx.output(0)?,
            keys: states[0],
            values: states[1],
            queries,
            count,
            heads: heads.clone(),
            kv_heads: kv_heads.clone(),
            dim: dim.clone(),
            angles: angles.clone(),
            start,
        };
        cx.emit(call.grid(all.ceil_div(2 * 64)?, 1, 1).may_be_padded(), args)
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        let rotated = sizes.input_elements(0).saturating_add(sizes.input_elements(1));
        rotated.saturating_mul(3)
    }

    fn elements_read(&self, input: usize, sizes: &Sizes) -> u64 {
        if input < 5 { sizes.input_elements(input) } else { 0 }
    }
}

pub static DEF: OpDef = OpDef {
    onnx: &[],
    import: never_in_files,
    kernels: &[&KERNEL.kernel],
    cases,
};

fn cases() -> Vec<Case> {
    let case = |pairs, axis, angles| {
        let of = |n, heads, dim| {
            let rows = if axis == 1 { [1, n] } else { [n, 1] };
            input(&[rows[0], rows[1], heads, dim])
        };
        let rows = |n, heads| of(n, heads, 8);
        let angles = || of(2, 1, angles);
        let inputs = vec![
            rows(2, 4),
            rows(2, 2),
            rows(2, 2),
            angles(),
            angles(),
            rows(5, 2),
            rows(5, 2),
        ];
        let case = Case::new(RotaryAppend { pairs, axis }, inputs);
        case.host_only("needs states; the model tests append on every device")
    };
    vec![
        case(Pairs::Halves, 1, 8),
        case(Pairs::Halves, 0, 8),
        case(Pairs::Neighbours, 1, 4),
        case(Pairs::Neighbours, 0, 2),
    ]
}
