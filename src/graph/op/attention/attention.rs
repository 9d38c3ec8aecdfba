//! Scaled dot-product attention with grouped heads (own domain, made by the pass `attention`):
//! `softmax(scale * q k^T + mask) v` for each query head. With a soft cap c, the scores are
//! `c tanh(scale * q k^T / c)`.
//!
//! Operands: q `[b, s, heads, d]`, k and v `[b, t, kv_heads, d]` or in the form of
//! [`super::kv_append_q8`], and an optional mask that is added to the scores. The mask broadcasts
//! to `[b, heads, s, t]` and may have additional leading axes of size 1. The result is
//! `[b, s, heads, d]`.
//!
//! Query i stands at position `t - s + i`. Causal attention attends to no key after that position
//! and requires s <= t. With a window w, a query attends to no key before `t - s + i - (w - 1)`.
//! Both hold whatever the mask says. Softmax is computed in `f32`; the score matrix is never
//! stored. Kernels require an even d. They skip tiles of keys after the last position of their
//! rows, and do not read keys outside the window; a cache may keep only those keys
//! ([`LowerCx::ring`]).

mod lower;

use crate::backend::kernel::MASK_MIN;
use crate::graph::op::case::{Case, given, input};
use crate::graph::op::kv_append_q8::{decoded, decoded_shape, encoded};
use crate::graph::op::paged_attention::PagedAttention;
use crate::graph::op::sizes::Sizes;
use crate::graph::op::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, fixed_size, operand, own};
use crate::graph::rules;
use crate::kernels::attention::{
    Args, KERNEL, MERGE, MergeArgs, ROW, RowArgs, TENSOR_CORES, TensorCoresArgs,
};
use crate::lower::LowerCx;
use crate::num;
use crate::quota;
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::HostTensor;

/// A single query is split over its keys if there can be more than this.
pub const UNSPLIT: i64 = 256;

/// Maximum rows of several sequences for the one-row kernel. More are likely to be those of a
/// prompt, which share keys.
pub const FEW_PAGED: i64 = 32;

/// Largest head size that kernels support.
const MAX_HEAD: i64 = 512;

/// True if kernels support heads of this size.
pub fn supports_head_size(size: i64) -> bool {
    size % 2 == 0 && size <= MAX_HEAD
}

#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Scale of the scores.
    pub scale: f32,
    /// Soft cap of the scores, applied before the mask; 0 for none.
    pub softcap: f32,
    /// A query attends to no key after its own position.
    pub causal: bool,
    /// Number of keys visible to a query, counting the key at its own position. At least 1.
    pub window: Option<i64>,
}

impl Attention {
    /// Attention to all keys, without soft cap.
    pub fn scaled(scale: f32) -> Self {
        Self {
            scale,
            softcap: 0.0,
            causal: false,
            window: None,
        }
    }

    /// The attributes of an attention, whatever the form of its cache.
    pub fn of<'a>(op: &'a (dyn Op + 'static)) -> Option<&'a Self> {
        let paged = op.downcast::<PagedAttention>().map(|op| &op.attention);
        op.downcast::<Self>().or(paged)
    }

    /// Number of keys that a run reads: those inside the window, whatever the mask says.
    fn keys_read(&self, sizes: &Sizes) -> u64 {
        let [queries, keys] = lengths(sizes);
        let window = self.window.and_then(|w| u64::try_from(w).ok());
        window.map_or(keys, |w| keys.min(w.saturating_add(queries.saturating_sub(1))))
    }

    /// Number of pairs of a query and a key whose score a run needs, whatever the mask says.
    fn pairs(&self, sizes: &Sizes) -> u64 {
        let [queries, keys] = lengths(sizes);
        let all = queries.saturating_mul(self.keys_read(sizes));
        if !self.causal {
            return all;
        }
        // The first query misses one key less than there are queries, the last one none.
        let missed = queries.saturating_mul(queries.saturating_sub(1)) / 2;
        let seen = queries.saturating_mul(keys).saturating_sub(missed);
        let window = self.window.and_then(|w| u64::try_from(w).ok());
        seen.min(window.map_or(u64::MAX, |w| queries.saturating_mul(w)))
    }

    /// Requires that every query of causal attention has a position.
    pub(crate) fn require(&self, cx: &InferCx<'_>) -> OpResult<()> {
        let length = |i: usize| Ok::<_, OpError>(num::at(&cx.fact(i)?.shape.0, 1)?.clone());
        if !self.causal {
            return Ok(());
        }
        let meaning = "number of keys minus number of queries of causal attention";
        cx.require(length(1)?.sub(&length(0)?)?, meaning)
    }

    /// A scaled and capped score, before the mask.
    fn bent(&self, dot: f32) -> f64 {
        let score = f64::from(dot) * f64::from(self.scale);
        let cap = f64::from(self.softcap);
        if cap == 0.0 {
            score
        } else {
            cap * (score / cap).tanh()
        }
    }
}

/// Numbers of queries and keys.
fn lengths(sizes: &Sizes) -> [u64; 2] {
    [0, 1].map(|i| sizes.input(i).get(1).copied().unwrap_or(0))
}

/// Checks that queries, keys, values and mask match.
pub(super) fn check_facts(q: &Fact, k: &Fact, v: &Fact, mask: Option<&Fact>) -> OpResult<()> {
    let (k, v) = (decoded_shape(k, q)?, decoded_shape(v, q)?);
    check(&q.shape, &k, &v, mask.map(|f| &f.shape))
}

/// Checks that the shapes of queries, keys, values and mask match.
fn check(q: &Shape, k: &Shape, v: &Shape, mask: Option<&Shape>) -> OpResult<()> {
    let ([b, s, h, d], [kb, t, kvh, kd]) = (q.0.as_slice(), k.0.as_slice()) else {
        return Err(OpError::mismatch("ranks (4 each)", q, k));
    };
    if b != kb || d != kd || k != v || h != kvh && h.exact_div(kvh).is_none() {
        return Err(OpError::mismatch(
            "q [b, s, h, d] and k, v [b, t, h / groups, d]",
            q,
            format!("{k}, {v}"),
        ));
    }
    let Some(mask) = mask else { return Ok(()) };
    let scores = [b, h, s, t].map(Dim::clone);
    if mask_fits(&mask.0, &scores) {
        return Ok(());
    }
    Err(OpError::mismatch("scores and mask", Shape(scores.to_vec()), mask))
}

/// True if a mask of these sizes broadcasts to the scores, apart from leading axes of size 1.
pub fn mask_fits(mask: &[Dim], scores: &[Dim]) -> bool {
    let own = rules::without_leading_ones(mask);
    let same = |(m, score): (&Dim, &Dim)| m.is(1) || m == score;
    own.len() <= scores.len() && own.iter().rev().zip(scores.iter().rev()).all(same)
}

/// Strides of a mask along batch, heads, queries and keys.
fn mask_strides(mask: &Shape) -> OpResult<[Dim; 4]> {
    let mut strides = [0, 0, 0, 0].map(Dim::from);
    let mut step = Dim::from(1);
    let sizes = rules::without_leading_ones(&mask.0);
    for (size, stride) in sizes.iter().rev().zip(strides.iter_mut().rev()) {
        if !size.is(1) {
            *stride = step.clone();
            step = step.mul(size)?;
        }
    }
    Ok(strides)
}

impl Op for Attention {
    fn name(&self) -> &str {
        "Attention"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let q = cx.fact(0)?;
        check_facts(q, cx.fact(1)?, cx.fact(2)?, cx.opt(3))?;
        self.require(cx)?;
        Ok(vec![Fact::new(q.dtype, q.shape.clone())])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let q = operand(inputs, 0)?;
        let d = q.shape().last().copied().unwrap_or(1);
        let (k, v) = (decoded(operand(inputs, 1)?, d)?, decoded(operand(inputs, 2)?, d)?);
        let mask = inputs.get(3).copied().flatten();
        let fixed = |t: &HostTensor| Shape::fixed(t.shape());
        check(&fixed(q), &fixed(&k), &fixed(&v), mask.map(fixed).as_ref())?;
        let &[batch, s, heads, d] = q.shape() else {
            return Err(OpError::expected("rank of q", 4, q.shape().len()));
        };
        let (t, kv_heads) = (k.shape()[1], k.shape()[2]);
        if self.causal && t < s {
            return Err(OpError::expected(
                "keys of causal attention",
                format!("{s} or more"),
                t,
            ));
        }
        let (qd, kd, vd) = (q.to_f32()?, k.to_f32()?, v.to_f32()?);
        let bias = match mask {
            Some(m) => {
                let strides = mask_strides(&fixed(m))?;
                let [a, b, c, d] = strides;
                Some((
                    m.to_f32()?,
                    [fixed_size(&a)?, fixed_size(&b)?, fixed_size(&c)?, fixed_size(&d)?],
                ))
            }
            None => None,
        };
        let group = heads.checked_div(kv_heads).unwrap_or(1);
        let mut y = vec![0f32; qd.len()];
        let mut scores = vec![0f64; t];
        let window = self.window.and_then(|w| usize::try_from(w).ok());
        for b in 0..batch {
            for (i, h) in (0..s).flat_map(|i| (0..heads).map(move |h| (i, h))) {
                quota::check()?;
                let at = ((b * s + i) * heads + h) * d;
                let first = window.map_or(0, |w| (t + i + 1).saturating_sub(s + w));
                let end = if self.causal { t - s + i + 1 } else { t };
                let row = |j: usize| ((b * t + j) * kv_heads + h / group) * d;
                for (j, score) in scores.iter_mut().enumerate() {
                    if !(first..end).contains(&j) {
                        *score = f64::NEG_INFINITY;
                        continue;
                    }
                    let dot: f32 = qd[at..at + d]
                        .iter()
                        .zip(&kd[row(j)..row(j) + d])
                        .map(|(x, y)| x * y)
                        .sum();
                    let extra = bias
                        .as_ref()
                        .map_or(0.0, |(m, [mb, mh, ms, mt])| m[b * mb + h * mh + i * ms + j * mt]);
                    *score = self.bent(dot) + f64::from(extra);
                }
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = scores.iter().map(|x| (x - max).exp()).sum();
                for (j, score) in scores.iter().enumerate() {
                    #[expect(
                        clippy::cast_possible_truncation,
                        reason = "rounding to the result type is intended"
                    )]
                    let weight = ((score - max).exp() / sum) as f32;
                    for (y, v) in y[at..at + d].iter_mut().zip(&vd[row(j)..row(j) + d]) {
                        *y += weight * v;
                    }
                }
            }
        }
        Ok(vec![HostTensor::from_floats(q.dtype(), q.shape(), &y)?])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        self.emit(cx)
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        let [b, _, heads, d] = sizes.input(0) else {
            return sizes.results();
        };
        // Two multiply-adds per key and element: for the score and for the weighted sum.
        [*b, *heads, *d, self.pairs(sizes), 4]
            .into_iter()
            .fold(1, u64::saturating_mul)
    }

    fn elements_read(&self, input: usize, sizes: &Sizes) -> u64 {
        let all = sizes.input_elements(input);
        let [_, rows, ..] = sizes.input(1) else { return all };
        match input {
            1 | 2 => all / (*rows).max(1) * self.keys_read(sizes),
            _ => all,
        }
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let window = a.int("window")?;
    if let Some(w) = window.filter(|w| *w < 1) {
        return Err(OpError::expected("attribute `window`", "1 or more", w));
    }
    Ok(Box::new(Attention {
        scale: a.float("scale")?.unwrap_or(1.0),
        softcap: a.float("softcap")?.unwrap_or(0.0),
        causal: a.int("causal")?.unwrap_or(0) != 0,
        window,
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[own("Attention", 4)],
    import,
    kernels: &[&KERNEL.kernel, &TENSOR_CORES.kernel, &ROW.kernel, &MERGE.kernel],
    cases,
};

/// Sequences with all keys masked, or with masked keys at the start and in between. Scores are
/// sixteenths, since sums with the minimum `f16` preserve them.
fn padded(s: usize, t: usize, hidden: impl Fn(usize, usize) -> bool) -> Option<Case> {
    let whole = |sizes: &[usize]| {
        let steps = (0..sizes.iter().product()).map(|i: usize| i * 7 + i / 5);
        let data: Vec<f32> = steps.map(|i| [-2.0, -1.0, 0.0, 1.0, 2.0][i % 5]).collect();
        HostTensor::from_f32(sizes, &data).ok().map(given)
    };
    let (batch, size) = (2, 64);
    let keys = (0..batch).flat_map(|b| (0..t).map(move |key| (b, key)));
    let mask: Vec<f32> = keys
        .map(|(b, key)| if hidden(b, key) { MASK_MIN } else { 0.0 })
        .collect();
    let mask = HostTensor::from_f32(&[batch, 1, 1, t], &mask).ok().map(given)?;
    let (q, k) = (whole(&[batch, s, 4, size])?, whole(&[batch, t, 2, size])?);
    let v = input(&[batch, t, 2, size]);
    Some(Case::new(Attention::scaled(0.0625), vec![q, k, v, mask]))
}

fn cases() -> Vec<Case> {
    let case = |s, t, h, kv, d, mask: bool| {
        let mut inputs = vec![
            input(&[1, s, h, d]).range(-2.0, 2.0),
            input(&[1, t, kv, d]),
            input(&[1, t, kv, d]),
        ];
        if mask {
            inputs.push(input(&[1, 1, 1, s, t]).range(-4.0, 0.0));
        }
        Case::new(Attention::scaled(0.25), inputs)
    };
    let of = |op, range: f32, [b, s, t, h, kv, d]: [usize; 6], mask: &[usize]| {
        let rows = |n, heads| input(&[b, n, heads, d]).range(-range, range);
        let mut inputs = vec![rows(s, h), rows(t, kv), rows(t, kv)];
        if !mask.is_empty() {
            inputs.push(input(mask).range(-4.0, 0.0));
        }
        Case::new(op, inputs)
    };
    let masked = |b, s, t, mask| of(Attention::scaled(0.25), 2.0, [b, s, t, 4, 2, 12], mask);
    let capped = |s, mask| {
        let op = Attention {
            softcap: 2.0,
            ..Attention::scaled(0.5)
        };
        of(op, 4.0, [1, s, 70, 4, 2, 12], mask)
    };
    let windowed = |s, t, heads, kv, window, mask: bool| {
        let op = Attention {
            window: Some(window),
            ..Attention::scaled(0.25)
        };
        let mask = if mask { &[s, t][..] } else { &[] };
        of(op, 2.0, [1, s, t, heads, kv, 16], mask)
    };
    let causal = |[b, s, t, heads, kv, d]: [usize; 6], window, mask: &[usize]| {
        let op = Attention {
            causal: true,
            window,
            ..Attention::scaled(0.25)
        };
        of(op, 2.0, [b, s, t, heads, kv, d], mask)
    };
    let hidden = [
        padded(5, 64, |b, _| b == 1),
        padded(5, 70, |b, _| b == 1),
        padded(1, 40, |b, _| b == 1),
        padded(70, 133, |_, _| true),
        padded(9, 150, |b, key| b == 1 && (key < 70 || key / 16 == 6)),
    ];
    let mut all = vec![
        causal([1, 1, 70, 4, 2, 16], None, &[]),
        causal([1, 5, 5, 4, 2, 64], None, &[]),
        causal([1, 64, 64, 3, 3, 64], None, &[]),
        causal([1, 70, 150, 4, 2, 128], None, &[]),
        causal([1, 130, 130, 9, 3, 64], None, &[]),
        causal([1, 66, 130, 2, 1, 256], None, &[]),
        causal([1, 5, 70, 4, 2, 10], None, &[]),
        causal([2, 9, 23, 4, 2, 12], None, &[]),
        causal([2, 64, 66, 4, 4, 64], None, &[2, 4, 64, 66]),
        causal([1, 70, 133, 4, 2, 16], None, &[70, 133]),
        causal([1, 70, 70, 6, 2, 16], Some(3), &[]),
        causal([1, 130, 260, 4, 1, 16], Some(100), &[]),
        causal([1, 1, 900, 4, 1, 16], Some(600), &[]),
        windowed(1, 200, 4, 2, 70, true),
        windowed(1, 900, 3, 3, 600, false),
        windowed(1, 900, 4, 1, 7, true),
        windowed(1, 9, 4, 1, 9, false),
        windowed(11, 150, 4, 2, 5, true),
        windowed(70, 70, 2, 2, 3, false),
        windowed(5, 300, 6, 2, 130, true),
        capped(1, &[1, 70]),
        capped(5, &[5, 70]),
        case(1, 1, 2, 1, 64, false),
        case(1, 130, 9, 3, 64, true),
        case(1, 513, 14, 2, 64, true),
        case(1, 700, 2, 2, 10, false),
        case(1, 1100, 3, 1, 256, true),
        case(6, 70, 14, 2, 64, true),
        case(9, 40, 16, 1, 128, false),
        case(5, 65, 4, 2, 64, true),
        case(3, 7, 2, 2, 6, true),
        case(2, 64, 3, 1, 130, false),
        case(1, 200, 2, 2, 256, true),
        case(1, 150, 4, 2, 128, true),
        case(1, 290, 3, 3, 128, false),
        case(70, 150, 4, 2, 128, true),
        case(130, 130, 2, 1, 64, false),
        case(70, 150, 4, 2, 256, true),
        case(1, 290, 8, 1, 256, true),
        masked(2, 5, 70, &[2, 1, 1, 70]),
        masked(3, 1, 9, &[4, 1, 9]),
        masked(2, 6, 6, &[2, 4, 6, 6]),
        masked(1, 6, 6, &[6, 1]),
        Case::new(
            Attention::scaled(0.25),
            vec![input(&[3, 5, 4, 8]), input(&[3, 7, 2, 8]), input(&[3, 7, 2, 8])],
        ),
    ];
    all.extend(hidden.into_iter().flatten());
    all.extend(q8_cases().into_iter().flatten());
    all
}

/// Keys and values in 8 bits.
fn q8_cases() -> [OpResult<Case>; 11] {
    let case = |(causal, window, [s, t, h, kv, d], mask): (_, _, [usize; 5], _)| {
        let rows = given(encoded(&input(&[1, t, kv, d]).make(7)?)?);
        let mut inputs = vec![input(&[1, s, h, d]).range(-2.0, 2.0), rows.clone(), rows];
        if mask {
            inputs.push(input(&[1, 1, s, t]).range(-4.0, 0.0));
        }
        let op = Attention {
            causal,
            window,
            ..Attention::scaled(0.25)
        };
        Ok(Case::new(op, inputs))
    };
    [
        (false, Some(300), [1, 700, 4, 2, 32], true),
        (false, Some(20), [7, 165, 4, 2, 32], false),
        (true, None, [1, 70, 4, 2, 32], false),
        (true, None, [5, 70, 9, 3, 64], false),
        (true, None, [70, 130, 4, 2, 32], false),
        (true, None, [64, 64, 4, 1, 32], true),
        (true, Some(20), [130, 150, 4, 2, 32], false),
        (false, None, [1, 130, 9, 3, 64], true),
        (false, None, [1, 700, 14, 2, 64], false),
        (false, None, [7, 65, 4, 2, 32], true),
        (false, None, [1, 3, 2, 2, 8], false),
    ]
    .map(case)
}
