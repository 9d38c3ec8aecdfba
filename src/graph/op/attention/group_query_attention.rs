//! Grouped-query attention with a cache as defined by ONNX Runtime: `GroupQueryAttention` of the
//! domain `com.microsoft`, version 1.
//!
//! Operands: queries, keys and values `[batch, sequence, heads * size]`, or all three side by side
//! as operand 0; past keys and values `[batch, kv_heads, past, size]`; the number of keys of each
//! batch minus one; the total number of keys; and optionally tables of cosines and sines
//! `[positions, pairs]` for rotary embedding, positions, and an additive bias for the scores.
//! Results: the attention with the shape of the queries, and the keys and values appended to the
//! past. A query attends to its own position and earlier ones, at most `window` keys.
//!
//! The cache grows by `sequence` rows. Sequences of a batch may differ in length: each one's new
//! rows follow its own past, and the remaining rows are zero. First prompts are right-padded. A
//! preallocated cache is not supported. `smooth_softmax` adds `exp(0)` to the softmax denominator.

use crate::graph::ValueId;
use crate::graph::op::case::{Case, input};
use crate::graph::op::parts::Parts;
use crate::graph::op::pointwise::import::{binary, input as arg, number};
use crate::graph::op::pointwise::{Binary, Pointwise};
use crate::graph::op::rotary::Pairs;
use crate::graph::op::rotary_embedding::RotaryEmbedding;
use crate::graph::op::sdpa::{Sdpa, UNLIMITED, both_masks, causal_mask, heads_first, new_positions};
use crate::graph::op::types::Types;
use crate::graph::op::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, as_usize, concat::Concat, filled, fixed_size,
    microsoft, operand,
};
use crate::num;
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::HostTensor;

#[derive(Clone, Debug, PartialEq)]
pub struct GroupQueryAttention {
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Scale of the scores; `None` for one over the square root of the head size.
    pub scale: Option<f32>,
    /// Soft cap of the scores; 0 for none.
    pub softcap: f32,
    /// Number of keys visible to a query, counting its own.
    pub window: Option<usize>,
    /// `smooth_softmax`: `exp(0)` is added to the softmax denominator.
    pub smooth: bool,
    /// Rotary embedding of queries and keys, with interleaved pairs or halves of a head.
    pub rotary: Option<Pairs>,
}

const PAST: usize = 3;
const LIVE: usize = 5;
const COSINES: usize = 7;
const POSITIONS: usize = 9;
const BIAS: usize = 10;

impl GroupQueryAttention {
    /// Head size, from the shapes of operands 0 and 1.
    fn size(&self, q: &Fact, apart: bool) -> OpResult<Dim> {
        let heads = Dim::from_usize(if apart {
            self.heads
        } else {
            self.heads + 2 * self.kv_heads
        });
        let [_, _, joined] = q.shape.0.as_slice() else {
            return Err(OpError::expected("queries", "[batch, sequence, heads * size]", q));
        };
        joined.exact_div(&heads).ok_or_else(|| {
            OpError::expected("last axis of operand 0", format!("a multiple of {heads}"), joined)
        })
    }

    fn number(n: usize) -> i64 {
        num::signed(n)
    }

    /// The additive mask `[batch, 1, sequence, keys]`: causal and window mask, plus an optional
    /// bias. `first` are the positions of the first queries.
    fn mask(
        &self,
        first: &[usize],
        [sequence, all]: [usize; 2],
        bias: Option<&HostTensor>,
    ) -> OpResult<HostTensor> {
        let shape = [first.len(), 1, sequence, all];
        let mut seen = filled(&shape, f32::NEG_INFINITY)?;
        for (i, line) in seen.chunks_exact_mut(all.max(1)).enumerate() {
            let row = *num::at(first, i / sequence)? + i % sequence;
            let from = self.window.map_or(0, |w| (row + 1).saturating_sub(w));
            num::part_mut(line, from..=row)?.fill(0.0);
        }
        let seen = HostTensor::from_f32(&shape, &seen)?;
        let Some(bias) = bias else { return Ok(seen) };
        let bias = HostTensor::from_f32(bias.shape(), &bias.to_f32()?)?;
        let sum = Pointwise::binary("Add", Binary::Add).eval(&[Some(&bias), Some(&seen)])?;
        one(sum)
    }

    /// Keys or values `[batch, heads, past + sequence, size]`: in each batch entry `first` rows of
    /// the past, then the new ones.
    fn present(
        &self,
        past: Option<&HostTensor>,
        new: &HostTensor,
        first: &[usize],
        size: usize,
    ) -> OpResult<HostTensor> {
        let old = past.and_then(|x| x.shape().get(2).copied()).unwrap_or(0);
        let sequence = *num::at(new.shape(), 1)?;
        let (data, before) = (new.to_f32()?, past.map(HostTensor::to_f32).transpose()?);
        let shape = [first.len(), self.kv_heads, old + sequence, size];
        let mut out = filled(&shape, 0f32)?;
        let blocks = out.chunks_exact_mut(((old + sequence) * size).max(1)).enumerate();
        for (i, block) in blocks {
            let (batch, head) = (i / self.kv_heads, i % self.kv_heads);
            let used = *num::at(first, batch)? * size;
            if let Some(before) = &before {
                let from = i * old * size;
                num::part_mut(block, 0..used)?.copy_from_slice(num::part(before, from..from + used)?);
            }
            for (row, target) in num::part_mut(block, used..used + sequence * size)?
                .chunks_exact_mut(size.max(1))
                .enumerate()
            {
                let from = ((batch * sequence + row) * self.kv_heads + head) * size;
                target.copy_from_slice(num::part(&data, from..from + size)?);
            }
        }
        Ok(HostTensor::from_floats(new.dtype(), &shape, &out)?)
    }

    /// Splits operand 0 into queries, keys and values with three axes.
    fn split(&self, cx: &mut Parts<'_, '_>, size: i64) -> OpResult<[ValueId; 3]> {
        let all = cx.input(0)?;
        if let (Some(k), Some(v)) = (cx.opt(1), cx.opt(2)) {
            return Ok([all, k, v]);
        }
        let mut at = 0;
        let mut out = [all; 3];
        for (slot, (name, heads)) in
            out.iter_mut()
                .zip([("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads)])
        {
            let end = at + Self::number(heads) * size;
            *slot = cx.slice(name, all, 2, at..end)?;
            at = end;
        }
        Ok(out)
    }
}

impl Op for GroupQueryAttention {
    fn name(&self) -> &str {
        "GroupQueryAttention"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let q = cx.typed(0, Types::FLOAT)?;
        let apart = cx.opt(1).is_some();
        let size = self.size(q, apart)?;
        let [batch, sequence, _] = q.shape.0.as_slice() else {
            return Err(OpError::expected("queries", "[batch, sequence, heads * size]", q));
        };
        let kv = Dim::from_usize(self.kv_heads);
        for i in [1, 2] {
            let Some(x) = cx.opt(i) else { continue };
            cx.typed(i, Types::FLOAT)?;
            let [b, s, joined] = x.shape.0.as_slice() else {
                return Err(OpError::expected(
                    format!("operand {i}"),
                    "[batch, sequence, heads * size]",
                    x,
                ));
            };
            cx.same("batch sizes of queries, keys and values", batch, b)?;
            cx.same("sequence lengths of queries, keys and values", sequence, s)?;
            cx.same(
                "key or value width and heads times head size",
                &kv.mul(&size)?,
                joined,
            )?;
        }
        let mut all = sequence.clone();
        for (i, x) in [(PAST, cx.opt(PAST)), (PAST + 1, cx.opt(PAST + 1))] {
            let Some(x) = x else { continue };
            let [b, h, past, n] = x.shape.0.as_slice() else {
                return Err(OpError::expected(
                    format!("operand {i}"),
                    "[batch, heads, past, size]",
                    x,
                ));
            };
            cx.same("batch sizes of queries and past", batch, b)?;
            cx.same("heads of keys and past", &kv, h)?;
            cx.same("head sizes of keys and past", &size, n)?;
            all = past.add(sequence)?;
        }
        if let Some([total]) = cx.opt(LIVE + 1).and_then(Fact::as_dims).as_deref() {
            cx.same("total number of keys and of past and new keys", total, &all)?;
        }
        let y = vec![
            batch.clone(),
            sequence.clone(),
            Dim::from_usize(self.heads).mul(&size)?,
        ];
        let present = Fact::new(q.dtype, Shape(vec![batch.clone(), kv, all, size]));
        Ok(vec![Fact::new(q.dtype, Shape(y)), present.clone(), present])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let optional = |i: usize| inputs.get(i).copied().flatten();
        let q = operand(inputs, 0)?;
        let &[batch, sequence, joined] = q.shape() else {
            return Err(OpError::expected("rank of queries", 3, q.shape().len()));
        };
        let apart = optional(1).is_some();
        let size = fixed_size(&self.size(&Fact::new(q.dtype(), Shape::fixed(q.shape())), apart)?)?;
        let cut = |from: usize, heads: usize| -> OpResult<HostTensor> {
            let data = q.to_f32()?;
            let rows = data.chunks_exact(joined.max(1));
            let part: Vec<f32> = rows
                .flat_map(|r| r.iter().skip(from * size).take(heads * size))
                .copied()
                .collect();
            Ok(HostTensor::from_floats(
                q.dtype(),
                &[batch, sequence, heads * size],
                &part,
            )?)
        };
        let [mut q, mut k, v] = match (optional(1), optional(2)) {
            (Some(k), Some(v)) => [q.clone(), k.clone(), v.clone()],
            _ => [
                cut(0, self.heads)?,
                cut(self.heads, self.kv_heads)?,
                cut(self.heads + self.kv_heads, self.kv_heads)?,
            ],
        };
        let past = optional(PAST)
            .and_then(|x| x.shape().get(2).copied())
            .unwrap_or(0);
        let all = past + sequence;
        let first = self.first(inputs, batch, [past, sequence])?;
        if let Some(pairs) = self.rotary {
            let positions = match optional(POSITIONS) {
                Some(p) => p.clone(),
                None => {
                    let places = first
                        .iter()
                        .flat_map(|first| (0..sequence).map(move |i| first + i));
                    let places: Vec<i64> = places.map(Self::number).collect();
                    HostTensor::from_i64(&[batch, sequence], &places)?
                }
            };
            let (cos, sin) = (operand(inputs, COSINES)?, operand(inputs, COSINES + 1)?);
            for (x, heads) in [(&mut q, self.heads), (&mut k, self.kv_heads)] {
                let turn = turning(pairs, heads, cos.shape().get(1).copied().unwrap_or(0), size);
                *x = one(turn.eval(&[Some(x), Some(cos), Some(sin), Some(&positions)])?)?;
            }
        }
        let keys = self.present(optional(PAST), &k, &first, size)?;
        let values = self.present(optional(PAST + 1), &v, &first, size)?;
        let mut operands = [
            keys.clone(),
            values.clone(),
            self.mask(&first, [sequence, all], optional(BIAS))?,
        ];
        if self.smooth {
            for (x, axis) in operands.iter_mut().zip([2, 2, -1]) {
                let mut shape = x.shape().to_vec();
                let at = if axis == 2 {
                    2
                } else {
                    shape.len().saturating_sub(1)
                };
                if let Some(n) = shape.get_mut(at) {
                    *n = 1;
                }
                let zero = HostTensor::zeros(x.dtype(), &shape)?;
                *x = one(Concat { axis }.eval(&[Some(x), Some(&zero)])?)?;
            }
        }
        let [k, v, mask] = &operands;
        let y = self.attention().eval(&[Some(&q), Some(k), Some(v), Some(mask)])?;
        Ok(vec![one(y)?, keys, values])
    }

    fn parts(&self, cx: &mut Parts<'_, '_>) -> OpResult<Option<Vec<ValueId>>> {
        let first = cx.input(0)?;
        let fact = cx.fact(first)?;
        let apart = cx.opt(1).is_some();
        let (Some(size), Some(past)) = (self.size(&fact, apart)?.as_const(), cx.opt(PAST)) else {
            return Ok(None);
        };
        // Sequences of one batch may differ in length, which depends on data.
        if fact.shape.0.first().is_none_or(|b| !b.is(1)) {
            return Ok(None);
        }
        let [mut q, mut k, v] = self.split(cx, size)?;
        let appended = |cx: &mut Parts<'_, '_>, name: &str, x: ValueId, old: Option<ValueId>| {
            let new = heads_first(cx, name, x, Self::number(self.kv_heads), size)?;
            cx.node(name, Concat { axis: 2 }, &[old, Some(new)])
        };
        let values = appended(cx, "values", v, cx.opt(PAST + 1))?;
        if let Some(pairs) = self.rotary {
            let (cos, sin) = (cx.input(COSINES)?, cx.input(COSINES + 1)?);
            let table = cx.fact(cos)?.shape.0.get(1).and_then(as_usize).unwrap_or(0);
            let positions = match cx.opt(POSITIONS) {
                Some(p) => p,
                None => {
                    let places = new_positions(cx, "places", past, values)?;
                    cx.unsqueeze("positions", places, &[0])?
                }
            };
            for (name, x, heads) in [("q", &mut q, self.heads), ("k", &mut k, self.kv_heads)] {
                let turn = turning(pairs, heads, table, num::exact(size, "a size")?);
                let operands = [Some(*x), Some(cos), Some(sin), Some(positions)];
                *x = cx.node(&format!("{name}/embedded"), turn, &operands)?;
            }
        }
        let keys = appended(cx, "keys", k, Some(past))?;
        let mut mask = causal_mask(cx, keys, past, self.window.map(Self::number))?;
        if let Some(bias) = cx.opt(BIAS) {
            mask = both_masks(cx, mask, bias)?;
        }
        let mut operands = [keys, values, mask];
        if self.smooth {
            let zero = HostTensor::zeros(fact.dtype, &[1, self.kv_heads, 1, num::exact(size, "a size")?])?;
            let zero = cx.constant("sink", zero);
            let column = cx.slice("sink/column", mask, -1, 0..1)?;
            let column = cx.pointwise("sink/seen", binary(Binary::Mul, arg(0), number(0.0)), &[column])?;
            for (x, (axis, added)) in operands.iter_mut().zip([(2, zero), (2, zero), (-1, column)]) {
                *x = cx.node("sink/behind", Concat { axis }, &[Some(*x), Some(added)])?;
            }
        }
        let [k, v, mask] = operands.map(Some);
        let y = cx.node("attention", self.attention(), &[Some(q), k, v, mask])?;
        Ok(Some(vec![y, keys, values]))
    }

    fn reads(&self, input: usize) -> bool {
        input != LIVE + 1
    }
}

impl GroupQueryAttention {
    /// The position of the first new key in each batch entry.
    fn first(&self, inputs: &Inputs<'_>, batch: usize, [past, sequence]: [usize; 2]) -> OpResult<Vec<usize>> {
        let all = Self::number(past + sequence);
        if let Some(total) = inputs.get(LIVE + 1).copied().flatten()
            && let Some(n) = total.to_i64()?.first().filter(|n| **n != all)
        {
            return Err(OpError::Unsupported(format!(
                "a preallocated cache ({n} of {all} keys used)"
            )));
        }
        let live = operand(inputs, LIVE)?.to_i64()?;
        let first = |b: usize| match live.get(b).map(|n| n.saturating_add(1)) {
            _ if past == 0 => Ok(0),
            Some(n) if n >= Self::number(sequence) && n <= all => {
                Ok(num::exact(n - Self::number(sequence), "a row")?)
            }
            n => Err(OpError::expected(
                format!("number of keys of batch entry {b}"),
                format!("{sequence} to {all}"),
                n.map_or_else(|| "none".to_owned(), |n| n.to_string()),
            )),
        };
        (0..batch).map(first).collect()
    }

    /// The attention itself; causality and window are in the mask.
    fn attention(&self) -> Sdpa {
        Sdpa {
            causal: false,
            window: [None; 2],
            may_see_none: false,
            heads: Some((self.heads, self.kv_heads)),
            scale: self.scale,
            softcap: self.softcap,
            scores: 0,
        }
    }
}

/// The first of some results.
fn one(results: Vec<HostTensor>) -> OpResult<HostTensor> {
    let missing = || OpError::expected("result", 1, 0);
    results.into_iter().next().ok_or_else(missing)
}

/// The rotary embedding of `heads` heads by tables with `pairs` cosines per position.
fn turning(kind: Pairs, heads: usize, pairs: usize, size: usize) -> RotaryEmbedding {
    RotaryEmbedding {
        interleaved: kind == Pairs::Neighbours,
        rotated: if 2 * pairs == size { 0 } else { 2 * pairs },
        heads,
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let count = |name: &str| {
        let n = a.int(name)?.unwrap_or(0);
        let valid = usize::try_from(n).ok().filter(|n| *n > 0);
        valid.ok_or_else(|| OpError::expected(format!("attribute `{name}`"), "1 or more", n))
    };
    for (name, i) in [("head_sink", 11), ("k_scale", 12), ("v_scale", 13)] {
        if a.has_input(i) {
            return Err(OpError::Unsupported(format!("operand {i} (`{name}`)")));
        }
    }
    for name in ["qk_output", "kv_cache_bit_width"] {
        if let Some(n) = a.int(name)?.filter(|n| *n > 0) {
            return Err(OpError::Unsupported(format!("attribute `{name}` of {n}")));
        }
    }
    for name in ["k_quant_type", "v_quant_type"] {
        if let Some(kind) = a.string(name)?.filter(|k| k != "NONE") {
            return Err(OpError::Unsupported(format!("attribute `{name}` of {kind}")));
        }
    }
    let pairs = if a.int("rotary_interleaved")?.unwrap_or(0) != 0 {
        Pairs::Neighbours
    } else {
        Pairs::Halves
    };
    let window = a.int("local_window_size")?.filter(|w| (1..UNLIMITED).contains(w));
    Ok(Box::new(GroupQueryAttention {
        heads: count("num_heads")?,
        kv_heads: count("kv_num_heads")?,
        scale: a.float("scale")?.filter(|s| *s != 0.0),
        softcap: a.float("softcap")?.unwrap_or(0.0),
        window: window.and_then(|w| usize::try_from(w).ok()),
        smooth: a.int("smooth_softmax")?.is_some_and(|v| v > 0),
        rotary: (a.int("do_rotary")?.unwrap_or(0) != 0).then_some(pairs),
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[microsoft("GroupQueryAttention", 14).outputs(4)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let op = GroupQueryAttention {
        heads: 4,
        kv_heads: 2,
        scale: None,
        softcap: 0.0,
        window: None,
        smooth: false,
        rotary: None,
    };
    let case = |op: &GroupQueryAttention, s: usize, past: usize| {
        let rows = |heads: usize| input(&[1, s, heads * 8]);
        let cache = || input(&[1, 2, past, 8]);
        let number = |n: usize| input(&[1]).values(&[num::signed(n)]);
        let mut inputs = vec![rows(4), rows(2), rows(2), cache(), cache()];
        inputs.extend([number(past + s - 1), number(past + s)]);
        if op.rotary.is_some() {
            inputs.extend([input(&[32, 4]).constant(), input(&[32, 4]).constant()]);
        }
        Case::new(op.clone(), inputs).slack(4.0)
    };
    let rotated = GroupQueryAttention {
        rotary: Some(Pairs::Halves),
        ..op.clone()
    };
    let windowed = GroupQueryAttention {
        window: Some(3),
        softcap: 2.0,
        rotary: Some(Pairs::Neighbours),
        ..op.clone()
    };
    let smooth = GroupQueryAttention {
        smooth: true,
        ..op.clone()
    };
    vec![
        case(&op, 3, 5),
        case(&smooth, 3, 5),
        case(&rotated, 1, 7),
        case(&rotated, 4, 2),
        case(&windowed, 6, 5),
    ]
}
