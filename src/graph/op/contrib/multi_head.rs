//! `MultiHeadAttention` and `Attention` of the domain `com.microsoft`.
//!
//! Operands of `MultiHeadAttention`: queries, keys and values `[batch, sequence, heads * size]`,
//! keys and values also `[batch, heads, sequence, size]`; or keys and values side by side as
//! operand 1 `[batch, sequence, heads, 2, size]`; or all three as operand 0 `[batch, sequence,
//! heads, 3, size]`. Then optionally their bias, a padding mask, an additive bias of the scores,
//! and past keys and values `[batch, heads, past, size]`. `Attention` first projects operand 0 to
//! all three with one matrix and bias (fused QKV); its past and present are `[2, batch, heads,
//! rows, size]`.
//!
//! A padding mask is `[batch, keys]` or `[batch, queries, keys]`, with 0 for masked keys, or
//! `[batch]` with each entry's number of keys. Keys include the past. With `unidirectional`, a
//! query attends only to its own position and earlier ones.

use crate::graph::ValueId;
use crate::graph::op::case::{Case, input};
use crate::graph::op::composite::{Composed, Composite};
use crate::graph::op::concat::Concat;
use crate::graph::op::matmul::MatMul;
use crate::graph::op::parts::Parts;
use crate::graph::op::pointwise::import::{binary, cast, input as arg, number, select};
use crate::graph::op::pointwise::{Binary, Pointwise};
use crate::graph::op::sdpa::{Sdpa, heads_first};
use crate::graph::op::{Attributes, Op, OpDef, OpError, OpResult, microsoft};
use crate::num;
use crate::shape::{Dim, Shape};
use crate::tensor::DType;

/// What both operators share.
#[derive(Clone, Debug, PartialEq)]
pub struct Heads {
    /// Heads of queries, keys and values.
    pub count: usize,
    /// Scale of the scores; `None` for one over the square root of the head size.
    pub scale: Option<f32>,
    /// A query attends to no key after its own position.
    pub causal: bool,
    /// What is added to the scores of hidden keys.
    pub hidden: f32,
}

#[derive(Clone, Debug, PartialEq)]
pub struct MultiHeadAttention(pub Heads);

#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    pub heads: Heads,
    /// Widths of queries, keys and values; `None`: each is a third of the projection.
    pub widths: Option<[i64; 3]>,
}

fn add(cx: &mut Parts<'_, '_>, what: &str, a: ValueId, b: ValueId) -> OpResult<ValueId> {
    cx.node(what, Pointwise::binary("Add", Binary::Add), &[Some(a), Some(b)])
}

fn width(cx: &Parts<'_, '_>, x: ValueId) -> OpResult<i64> {
    let shape = cx.fact(x)?.shape;
    let width = shape.0.last().and_then(Dim::as_const);
    width.ok_or_else(|| OpError::expected("last axis of queries, keys and values", "a constant", &shape))
}

impl Heads {
    /// The additive attention mask for a padding mask over past and new keys.
    fn padding(
        &self,
        cx: &mut Parts<'_, '_>,
        mask: ValueId,
        keys: ValueId,
        past: Option<ValueId>,
    ) -> OpResult<ValueId> {
        self.check_mask(cx, mask, keys, past)?;
        let dtype = cx.fact(keys)?.dtype;
        let hidden = number(self.hidden);
        let axes: &[i64] = match cx.fact(mask)?.shape.rank() {
            1 => {
                let axis = num::signed(cx.fact(keys)?.shape.rank()) - 2;
                let mut count = cx.size("mask/new", keys, axis)?;
                if let Some(past) = past {
                    let past = cx.size("mask/past", past, 2)?;
                    count = add(cx, "mask/all", past, count)?;
                }
                let places = cx.count_to("mask/places", count)?;
                let lengths = cx.unsqueeze("mask/lengths", mask, &[1, 2, 3])?;
                let seen = binary(Binary::Less, arg(0), cast(DType::I64, arg(1)));
                let added = cast(dtype, select(seen, number(0.0), hidden));
                return cx.pointwise("mask", added, &[places, lengths]);
            }
            2 => &[1, 2],
            3 => &[1],
            rank => return Err(OpError::Unsupported(format!("a padding mask of rank {rank}"))),
        };
        let apart = cx.unsqueeze("mask/apart", mask, axes)?;
        let seen = binary(
            Binary::Greater,
            cast(DType::I32, arg(0)),
            cast(DType::I32, number(0.0)),
        );
        cx.pointwise("mask", cast(dtype, select(seen, number(0.0), hidden)), &[apart])
    }

    /// An error for a mask that surely does not fit the keys.
    fn check_mask(
        &self,
        cx: &Parts<'_, '_>,
        mask: ValueId,
        keys: ValueId,
        past: Option<ValueId>,
    ) -> OpResult<()> {
        let (mask, keys) = (cx.fact(mask)?.shape, cx.fact(keys)?.shape);
        let size = |shape: &Shape, back: usize| shape.0.iter().rev().nth(back).cloned();
        let mut all = size(&keys, 1).unwrap_or_else(|| 0.into());
        if let Some(past) = past {
            all = all.add(&size(&cx.fact(past)?.shape, 1).unwrap_or_else(|| 0.into()))?;
        }
        let (found, wanted) = match mask.0.as_slice() {
            [lengths] => (
                lengths.clone(),
                keys.0.first().cloned().unwrap_or_else(|| 0.into()),
            ),
            [.., last] => (last.clone(), all),
            [] => return Err(OpError::expected("padding mask", "rank 1 to 3", &mask)),
        };
        match (found.as_const(), wanted.as_const()) {
            (Some(a), Some(b)) if a != b && mask.rank() == 1 => Err(OpError::Unsupported(format!(
                "a padding mask of {a} numbers for a batch of {b}"
            ))),
            (Some(a), Some(b)) if a != b => Err(OpError::mismatch("sizes of padding mask and keys", a, b)),
            _ => Ok(()),
        }
    }

    /// The attention, all keys, and all values.
    fn attend(
        &self,
        cx: &mut Parts<'_, '_>,
        [q, k, v]: [ValueId; 3],
        [mask, bias]: [Option<ValueId>; 2],
        past: Option<[ValueId; 2]>,
    ) -> OpResult<[ValueId; 3]> {
        let mask = mask
            .map(|m| self.padding(cx, m, k, past.map(|p| p[0])))
            .transpose()?;
        let bias = match (mask, bias) {
            (Some(mask), Some(bias)) => Some(add(cx, "bias", mask, bias)?),
            (mask, bias) => mask.or(bias),
        };
        let op = Sdpa {
            causal: self.causal,
            window: [None; 2],
            may_see_none: false,
            heads: Some((self.count, self.count)),
            scale: self.scale,
            softcap: 0.0,
            scores: 0,
        };
        if let Some(past) = past {
            let found = op.behind(cx, [q, k, v], bias, past)?;
            return match found.as_deref() {
                Some([y, keys, values, ..]) => Ok([*y, *keys, *values]),
                _ => Err(OpError::Unsupported(
                    "an attention mask whose last axis is not past + new keys, or heads of unknown size"
                        .to_owned(),
                )),
            };
        }
        let mut separate = [k, v];
        for (x, name) in separate.iter_mut().zip(["keys", "values"]) {
            if cx.fact(*x)?.shape.rank() == 3 {
                let heads = num::signed(self.count);
                let size = width(cx, *x)? / heads;
                *x = heads_first(cx, name, *x, heads, size)?;
            }
        }
        let [keys, values] = separate;
        let y = cx.node("attention", op, &[Some(q), Some(keys), Some(values), bias])?;
        Ok([y, keys, values])
    }
}

impl MultiHeadAttention {
    /// Queries, keys and values of three axes, keys and values possibly of four.
    fn operands(&self, cx: &mut Parts<'_, '_>) -> OpResult<[ValueId; 3]> {
        let joined = |cx: &mut Parts<'_, '_>, name: &str, x: ValueId, i: usize| {
            let part = cx.entry(&format!("{name}/part"), x, 3, i)?;
            let size = width(cx, part)?;
            let joined = num::signed(self.0.count).checked_mul(size);
            let joined = joined.ok_or_else(|| {
                let found = format!("{} * {size}", self.0.count);
                OpError::expected("heads * head size", "a product that fits in 64 bits", found)
            })?;
            cx.reshape(name, part, &[0, 0, joined])
        };
        let (q, k, v) = (cx.input(0)?, cx.opt(1), cx.opt(2));
        Ok(match (k, v) {
            (Some(k), Some(v)) => [q, k, v],
            (Some(both), None) => [q, joined(cx, "k", both, 0)?, joined(cx, "v", both, 1)?],
            _ => [
                joined(cx, "q", q, 0)?,
                joined(cx, "k", q, 1)?,
                joined(cx, "v", q, 2)?,
            ],
        })
    }
}

impl Composed for MultiHeadAttention {
    fn name(&self) -> &str {
        "MultiHeadAttention"
    }

    fn build(&self, cx: &mut Parts<'_, '_>) -> OpResult<Vec<ValueId>> {
        let mut operands = self.operands(cx)?;
        if cx.fact(operands[0])?.shape.rank() != 3 {
            let found = cx.fact(operands[0])?;
            return Err(OpError::expected(
                "queries",
                "[batch, sequence, heads * size]",
                found,
            ));
        }
        if let Some(bias) = cx.opt(3) {
            let mut from = 0;
            for (x, name) in operands.iter_mut().zip(["q", "k", "v"]) {
                // Keys and values of rank 4 already include their bias.
                if cx.fact(*x)?.shape.rank() == 3 {
                    let to = from + width(cx, *x)?;
                    let part = cx.slice(&format!("{name}/bias"), bias, -1, from..to)?;
                    *x = add(cx, &format!("{name}/biased"), *x, part)?;
                    from = to;
                }
            }
        }
        let past = cx.opt(6).zip(cx.opt(7)).map(<[ValueId; 2]>::from);
        let masks = [cx.opt(4), cx.opt(5)];
        Ok(self.0.attend(cx, operands, masks, past)?.to_vec())
    }
}

impl Composed for Attention {
    fn name(&self) -> &str {
        "Attention"
    }

    fn build(&self, cx: &mut Parts<'_, '_>) -> OpResult<Vec<ValueId>> {
        let (x, weights) = (cx.input(0)?, cx.input(1)?);
        let mut all = cx.node("qkv", MatMul { trans_b: false }, &[Some(x), Some(weights)])?;
        if let Some(bias) = cx.opt(2) {
            all = add(cx, "qkv/biased", all, bias)?;
        }
        let whole = width(cx, all)?;
        let widths = self.widths.unwrap_or([whole / 3; 3]);
        let heads = num::signed(self.heads.count);
        let sum = widths.iter().try_fold(0i64, |sum, w| sum.checked_add(*w));
        if sum != Some(whole) || widths.iter().any(|w| *w <= 0 || w % heads != 0) {
            return Err(OpError::expected(
                "widths of queries, keys and values",
                format!("multiples of {heads} heads whose sum is {whole}"),
                format!("{widths:?}"),
            ));
        }
        let mut from = 0;
        let mut operands = [all; 3];
        for (slot, (name, width)) in operands.iter_mut().zip(["q", "k", "v"].into_iter().zip(widths)) {
            *slot = cx.slice(name, all, -1, from..from + width)?;
            from += width;
        }
        let past = match cx.opt(4) {
            Some(both) => Some([
                cx.entry("past/keys", both, 0, 0)?,
                cx.entry("past/values", both, 0, 1)?,
            ]),
            None => None,
        };
        // A mask `[batch, 1]` means no mask.
        let is_mask = |cx: &Parts<'_, '_>, v: ValueId| {
            let shape = cx.fact(v)?.shape;
            Ok::<_, OpError>(shape.rank() != 2 || !shape.0.last().is_some_and(|n| n.is(1)))
        };
        let mask = match cx.opt(3) {
            Some(v) if is_mask(cx, v)? => Some(v),
            _ => None,
        };
        let masks = [mask, cx.opt(5)];
        let [y, keys, values] = self.heads.attend(cx, operands, masks, past)?;
        if cx.output_count() < 2 {
            return Ok(vec![y]);
        }
        let both = [
            Some(cx.unsqueeze("present/keys", keys, &[0])?),
            Some(cx.unsqueeze("present/values", values, &[0])?),
        ];
        Ok(vec![y, cx.node("present", Concat { axis: 0 }, &both)?])
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let heads = a.int("num_heads")?.unwrap_or(0);
    let valid = usize::try_from(heads).ok().filter(|n| *n > 0);
    let heads = Heads {
        count: valid.ok_or_else(|| OpError::expected("attribute `num_heads`", "1 or more", heads))?,
        scale: a.float("scale")?.filter(|s| *s != 0.0),
        causal: a.int("unidirectional")?.unwrap_or(0) != 0,
        hidden: a.float("mask_filter_value")?.unwrap_or(-10_000.0),
    };
    if a.op_type() == "MultiHeadAttention" {
        if a.has_input(2) && !a.has_input(1) {
            return Err(OpError::expected(
                "operand 1 (`key`)",
                "a tensor, because operand 2 (`value`) is given",
                "nothing",
            ));
        }
        return Ok(Box::new(Composite(MultiHeadAttention(heads))));
    }
    for name in ["do_rotary", "past_present_share_buffer"] {
        if a.int(name)?.is_some_and(|v| v != 0) {
            return Err(OpError::Unsupported(format!("attribute `{name}`")));
        }
    }
    let widths = match a.ints("qkv_hidden_sizes")? {
        None => None,
        Some(widths) => Some(<[i64; 3]>::try_from(widths).map_err(|found| {
            OpError::expected(
                "attribute `qkv_hidden_sizes`",
                "three sizes",
                format!("{found:?}"),
            )
        })?),
    };
    Ok(Box::new(Composite(Attention { heads, widths })))
}

pub static DEF: OpDef = OpDef {
    onnx: &[
        microsoft("MultiHeadAttention", 8).outputs(3),
        microsoft("Attention", 6).outputs(2),
    ],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let heads = Heads {
        count: 2,
        scale: None,
        causal: false,
        hidden: -10_000.0,
    };
    let rows = |n: usize| input(&[2, n, 16]);
    let multi = |inputs| Case::new(Composite(MultiHeadAttention(heads.clone())), inputs).slack(4.0);
    let attention = Attention {
        heads: Heads {
            causal: true,
            ..heads.clone()
        },
        widths: None,
    };
    vec![
        multi(vec![rows(3), rows(5), rows(5)]),
        multi(vec![
            rows(3),
            rows(5),
            rows(5),
            input(&[48]),
            input(&[2]).ints(1, 5),
        ]),
        multi(vec![input(&[2, 3, 2, 3, 8])]),
        Case::new(
            Composite(attention),
            vec![rows(4), input(&[16, 48]), input(&[48])],
        )
        .slack(4.0),
    ]
}
