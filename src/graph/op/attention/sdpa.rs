//! Scaled dot-product attention of the ONNX standard: `Attention` from opset 23; `nonpad_kv_seqlen`
//! from 24, windows from 25.
//!
//! Operands: queries, keys and values of rank 4 `[batch, heads, sequence, size]`, or of rank 3 with
//! merged heads; then optionally a mask (truth values or addends of the scores), past keys, past
//! values, and the number of valid keys of each batch entry. Results: the attention with the shape
//! of the queries; the keys and values appended to the past; scores. Devices run it decomposed, as
//! matmuls around a softmax.
//!
//! Query i stands at position `i + offset`, and key j at position j. The offset is the number of
//! past keys; or the number of valid keys less that of queries, which may be negative; or 0. A
//! query that sees no key gets zeros.

mod bias;
mod products;

pub(crate) use products::{both_masks, causal_mask, heads_first, new_positions};

use crate::graph::ValueId;
use crate::graph::op::case::{Case, given, input};
use crate::graph::op::concat::Concat;
use crate::graph::op::parts::Parts;
use crate::graph::op::types::Types;
use crate::graph::op::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, filled, fit, fixed_size, onnx, operand, room,
    to_sizes,
};
use crate::num::{self, OutOfRange};
use crate::quota;
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::{DType, HostTensor};

#[derive(Clone, Debug, PartialEq)]
pub struct Sdpa {
    /// A query attends to no key after its own position.
    pub causal: bool,
    /// How many keys before and after its own position a query attends to; `None` for all.
    pub window: [Option<i64>; 2],
    /// A query may see no key: the mask may hide all by minus infinity.
    pub may_see_none: bool,
    /// Heads of queries, and of keys and values, for operands of rank 3.
    pub heads: Option<(usize, usize)>,
    /// Scale of the scores; `None` for one over the square root of the head size.
    pub scale: Option<f32>,
    /// Soft cap of the scores; 0 for none.
    pub softcap: f32,
    /// Which scores are result 3: 0 raw, 1 capped, 2 capped and masked, 3 after the softmax.
    pub scores: i64,
}

/// Splits the shape of an operand into batch, heads, sequence and head size.
fn split(shape: &[Dim], heads: Option<usize>) -> OpResult<[Dim; 4]> {
    match (shape, heads) {
        ([b, h, s, n], _) => Ok([b.clone(), h.clone(), s.clone(), n.clone()]),
        ([b, s, joined], Some(heads)) => {
            let heads = Dim::from_usize(heads);
            let size = joined.exact_div(&heads);
            let size =
                size.ok_or_else(|| OpError::expected("last axis", format!("a multiple of {heads}"), joined))?;
            Ok([b.clone(), heads, s.clone(), size])
        }
        _ => Err(OpError::expected(
            "operand",
            "rank 4, or rank 3 and the numbers of heads",
            Shape(shape.to_vec()),
        )),
    }
}

/// An operand on the host, with access by head and row.
struct HostOperand {
    data: Vec<f32>,
    heads: usize,
    sequence: usize,
    size: usize,
    joined: bool,
}

impl HostOperand {
    fn new(x: &HostTensor, heads: Option<usize>) -> OpResult<Self> {
        let sizes = split(&Shape::fixed(x.shape()).0, heads)?;
        let [_, heads, sequence, size] = &sizes;
        Ok(Self {
            data: x.to_f32()?.into_owned(),
            heads: fixed_size(heads)?,
            sequence: fixed_size(sequence)?,
            size: fixed_size(size)?,
            joined: x.shape().len() == 3,
        })
    }

    fn start(&self, batch: usize, head: usize, at: usize) -> usize {
        if self.joined {
            ((batch * self.sequence + at) * self.heads + head) * self.size
        } else {
            ((batch * self.heads + head) * self.sequence + at) * self.size
        }
    }

    fn row(&self, batch: usize, head: usize, at: usize) -> Result<&[f32], OutOfRange> {
        let start = self.start(batch, head, at);
        num::part(&self.data, start..start + self.size)
    }

    /// The operand as a tensor of rank 4.
    fn separate(&self, x: &HostTensor) -> OpResult<HostTensor> {
        if !self.joined {
            return Ok(x.clone());
        }
        let batches = *num::at(x.shape(), 0)?;
        let mut out = Vec::with_capacity(self.data.len());
        for (b, h) in (0..batches).flat_map(|b| (0..self.heads).map(move |h| (b, h))) {
            for s in 0..self.sequence {
                out.extend_from_slice(self.row(b, h, s)?);
            }
        }
        Ok(HostTensor::from_floats(
            x.dtype(),
            &[batches, self.heads, self.sequence, self.size],
            &out,
        )?)
    }
}

/// The scores of one query, after each step.
struct Scores {
    raw: Vec<f64>,
    capped: Vec<f64>,
    masked: Vec<f64>,
    weights: Vec<f64>,
}

impl Scores {
    fn of(raw: Vec<f64>, cap: f64, bias: impl Fn(usize) -> f64) -> Self {
        let bend = |x: &f64| if cap > 0.0 { cap * (x / cap).tanh() } else { *x };
        let capped: Vec<f64> = raw.iter().map(bend).collect();
        let added: Vec<f64> = (0..capped.len()).map(bias).collect();
        let masked: Vec<f64> = capped.iter().zip(&added).map(|(x, b)| x + b).collect();
        let top = masked.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let powers: Vec<f64> = masked.iter().map(|x| (x - top).exp()).collect();
        let sum: f64 = powers.iter().sum();
        let weights = match added.iter().all(|b| *b == f64::NEG_INFINITY) {
            true => powers.iter().map(|_| 0.0).collect(),
            false => powers.iter().map(|p| p / sum).collect(),
        };
        Self {
            raw,
            capped,
            masked,
            weights,
        }
    }
}

/// Addends of the scores; minus infinity masks a key.
struct Mask {
    data: Vec<f32>,
    shape: [usize; 4],
}

impl Mask {
    fn new(mask: &HostTensor) -> OpResult<Self> {
        let data = if mask.dtype() == DType::Bool {
            mask.to_i64()?
                .into_iter()
                .map(|v| if v != 0 { 0.0 } else { f32::NEG_INFINITY })
                .collect()
        } else {
            mask.to_f32()?.into_owned()
        };
        let mut shape = [1; 4];
        let lead = 4usize.checked_sub(mask.shape().len());
        let lead = lead.ok_or_else(|| OpError::expected("mask", "at most rank 4", format!("{mask:?}")))?;
        for (slot, n) in shape.iter_mut().skip(lead).zip(mask.shape()) {
            *slot = *n;
        }
        Ok(Self { data, shape })
    }

    fn at(&self, index: [usize; 4]) -> f32 {
        // A mask may be shorter than the keys; the remaining keys are masked. Its last axis never
        // broadcasts.
        if index[3] >= self.shape[3] {
            return f32::NEG_INFINITY;
        }
        let place = index
            .iter()
            .zip(self.shape)
            .fold(0, |p, (i, n)| p * n + if n == 1 { 0 } else { *i });
        self.data.get(place).copied().unwrap_or(f32::NEG_INFINITY)
    }
}

impl Sdpa {
    fn heads_of(&self, i: usize) -> Option<usize> {
        self.heads.map(|(q, kv)| if i == 0 { q } else { kv })
    }

    /// How many keys before and after its own position a query attends to, whatever the mask says.
    fn band(&self) -> [Option<i64>; 2] {
        let [left, right] = self.window;
        match self.causal {
            true => [left, Some(0)],
            false => [left, right],
        }
    }

    /// Operand `i` appended to the past keys or values, if any.
    fn present(&self, inputs: &Inputs<'_>, i: usize, past: usize) -> OpResult<HostTensor> {
        let x = operand(inputs, i)?;
        let new = HostOperand::new(x, self.heads_of(i))?.separate(x)?;
        match inputs.get(past).copied().flatten() {
            Some(old) => Ok(Concat { axis: 2 }.eval(&[Some(old), Some(&new)])?.remove(0)),
            None => Ok(new),
        }
    }
}

/// Checks the numbers of valid keys.
fn check_lengths(cx: &InferCx<'_>, batch: &Dim) -> OpResult<()> {
    let Some(lengths) = cx.opt(6) else { return Ok(()) };
    let ([n], true) = (lengths.shape.0.as_slice(), lengths.dtype.is_int()) else {
        return Err(OpError::expected(
            "numbers of valid keys",
            "one integer per batch entry",
            lengths,
        ));
    };
    match cx.opt(4) {
        None => cx
            .same("batch size of queries and count of valid keys", batch, n)
            .map(drop),
        Some(past) => Err(OpError::expected(
            "past keys",
            "none if there are numbers of valid keys",
            past,
        )),
    }
}

impl Op for Sdpa {
    fn name(&self) -> &str {
        "Attention"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let [q, k, v] = [0, 1, 2].map(|i| cx.typed(i, Types::FLOAT));
        let (q, k, v) = (q?, k?, v?);
        let [batch, heads, queries, size] = split(&q.shape.0, self.heads_of(0))?;
        let [k_batch, kv_heads, mut keys, k_size] = split(&k.shape.0, self.heads_of(1))?;
        let [v_batch, v_heads, values, v_size] = split(&v.shape.0, self.heads_of(2))?;
        cx.same("batch sizes of queries and keys", &batch, &k_batch)?;
        cx.same("batch sizes of queries and values", &batch, &v_batch)?;
        cx.same("heads of keys and values", &kv_heads, &v_heads)?;
        cx.same("head sizes of queries and keys", &size, &k_size)?;
        cx.same("numbers of keys and values", &keys, &values)?;
        let per = heads.exact_div(&kv_heads);
        per.ok_or_else(|| {
            OpError::mismatch(
                "heads of queries (a multiple of key heads) and of keys",
                &heads,
                &kv_heads,
            )
        })?;
        if let Some(past) = cx.opt(4) {
            let [b, h, past, n] = split(&past.shape.0, None)?;
            cx.same("batch sizes of queries and past keys", &batch, &b)?;
            cx.same("heads of keys and past keys", &kv_heads, &h)?;
            cx.same("head sizes of keys and past keys", &size, &n)?;
            let [b, h, values, n] = split(&cx.fact(5)?.shape.0, None)?;
            cx.same("batch sizes of queries and past values", &batch, &b)?;
            cx.same("heads of values and past values", &kv_heads, &h)?;
            cx.same("head sizes of values and past values", &v_size, &n)?;
            cx.same("numbers of past keys and values", &past, &values)?;
            keys = keys.add(&past)?;
        } else if let Some(past) = cx.opt(5) {
            return Err(OpError::expected(
                "past values",
                "none if there are no past keys",
                past,
            ));
        }
        if let Some(mask) = cx.opt(3) {
            let [lead @ .., last] = mask.shape.0.as_slice() else {
                return Err(OpError::expected("mask", "rank 1 or more", mask));
            };
            let scores = [&batch, &heads, &queries];
            let skip = scores.len().checked_sub(lead.len());
            let skip = skip.ok_or_else(|| OpError::expected("mask", "at most rank 4", mask))?;
            for (n, size) in lead
                .iter()
                .zip(scores.iter().skip(skip))
                .filter(|(n, _)| !n.is(1))
            {
                cx.same("sizes of mask and scores", n, size)?;
            }
            cx.require(keys.sub(last)?, "number of keys minus mask length")?;
        }
        check_lengths(cx, &batch)?;
        let joined = heads.mul(&v_size)?;
        let y = match q.shape.rank() {
            3 => vec![batch.clone(), queries.clone(), joined],
            _ => vec![batch.clone(), heads.clone(), queries.clone(), v_size.clone()],
        };
        let fact = |x: &Fact, shape| Fact::new(x.dtype, Shape(shape));
        Ok(vec![
            fact(q, y),
            fact(k, vec![batch.clone(), kv_heads.clone(), keys.clone(), size]),
            fact(v, vec![batch.clone(), kv_heads, keys.clone(), v_size]),
            fact(q, vec![batch, heads, queries, keys]),
        ])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        fit(self, inputs)?;
        let optional = |i: usize| inputs.get(i).copied().flatten();
        let xq = operand(inputs, 0)?;
        let q = HostOperand::new(xq, self.heads_of(0))?;
        let past = optional(4).and_then(|x| x.shape().get(2).copied()).unwrap_or(0);
        let (xk, xv) = (self.present(inputs, 1, 4)?, self.present(inputs, 2, 5)?);
        let (k, v) = (HostOperand::new(&xk, None)?, HostOperand::new(&xv, None)?);
        let mask = optional(3).map(Mask::new).transpose()?;
        let lengths = optional(6).map(to_sizes).transpose()?;
        if let Some(n) = lengths.iter().flatten().find(|n| **n > k.sequence) {
            return Err(OpError::expected(
                "number of valid keys",
                format!("at most {}", k.sequence),
                n,
            ));
        }
        let batches = *num::at(xq.shape(), 0)?;
        #[expect(clippy::cast_precision_loss, reason = "the size of a head is small")]
        let scale = self.scale.map_or_else(|| 1.0 / (q.size as f64).sqrt(), f64::from);
        let per = (q.heads / k.heads.max(1)).max(1);
        let mut y = filled(&[batches, q.heads, q.sequence, v.size], 0f32)?;
        let target = HostOperand {
            data: Vec::new(),
            size: v.size,
            ..HostOperand::new(xq, self.heads_of(0))?
        };
        let mut shown = room(&[batches, q.heads, q.sequence, k.sequence])?;
        for (b, h, i) in (0..batches)
            .flat_map(|b| (0..q.heads).map(move |h| (b, h)))
            .flat_map(|(b, h)| (0..q.sequence).map(move |i| (b, h, i)))
        {
            quota::check()?;
            let row = q.row(b, h, i)?;
            let dot = |j: usize| -> OpResult<f64> {
                let pairs = row.iter().zip(k.row(b, h / per, j)?);
                Ok(pairs.map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>() * scale)
            };
            let length = lengths.as_ref().and_then(|l| l.get(b)).copied();
            let own = match length {
                Some(n) => num::signed(i + n) - num::signed(q.sequence),
                None => num::signed(i + past),
            };
            let [left, right] = self.band();
            let hidden = |j: usize| {
                let before = own - num::signed(j);
                left.is_some_and(|n| before > n)
                    || right.is_some_and(|n| -before > n)
                    || length.is_some_and(|n| j >= n)
            };
            let bias = |j: usize| {
                let added = mask.as_ref().map_or(0.0, |m| f64::from(m.at([b, h, i, j])));
                if hidden(j) { f64::NEG_INFINITY } else { added }
            };
            let raw = (0..k.sequence).map(dot).collect::<OpResult<_>>()?;
            let scores = Scores::of(raw, f64::from(self.softcap), bias);
            let start = target.start(b, h, i);
            for (slot, n) in y.iter_mut().skip(start).zip(0..v.size) {
                let terms = scores.weights.iter().enumerate();
                let total = terms
                    .map(|(j, w)| Ok(w * f64::from(*num::at(v.row(b, h / per, j)?, n)?)))
                    .sum::<OpResult<f64>>()?;
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "rounding to the result type is intended"
                )]
                {
                    *slot = total as f32;
                }
            }
            let list = match self.scores {
                0 => scores.raw,
                1 => scores.capped,
                2 => scores.masked,
                _ => scores.weights,
            };
            #[expect(
                clippy::cast_possible_truncation,
                reason = "rounding to the result type is intended"
            )]
            shown.extend(list.into_iter().map(|x| x as f32));
        }
        let shape = match xq.shape() {
            [b, s, _] => vec![*b, *s, q.heads * v.size],
            _ => vec![batches, q.heads, q.sequence, v.size],
        };
        let scores =
            HostTensor::from_floats(xq.dtype(), &[batches, q.heads, q.sequence, k.sequence], &shown)?;
        Ok(vec![
            HostTensor::from_floats(xq.dtype(), &shape, &y)?,
            xk,
            xv,
            scores,
        ])
    }

    fn parts(&self, cx: &mut Parts<'_, '_>) -> OpResult<Option<Vec<ValueId>>> {
        self.as_products(cx)
    }
}

/// A window of so many keys hides none: no sequence is so long, and kernels compute positions in
/// 32 bits.
pub(crate) const UNLIMITED: i64 = 1 << 30;

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let heads = |name: &str| {
        let heads = a
            .int(name)?
            .map(|n| usize::try_from(n).ok().filter(|n| *n > 0).ok_or(n))
            .transpose();
        heads.map_err(|n| OpError::expected(format!("attribute `{name}`"), "1 or more", n))
    };
    let side = |name: &str| match a.int(name)?.unwrap_or(-1) {
        -1 | UNLIMITED.. => Ok(None),
        n if n >= 0 => Ok(Some(n)),
        n => Err(OpError::expected(format!("attribute `{name}`"), "-1 or more", n)),
    };
    // The softmax is computed in `f64` here, whatever is requested.
    a.int("softmax_precision")?;
    let scores = a.int("qk_matmul_output_mode")?.unwrap_or(0);
    if !(0..=3).contains(&scores) {
        return Err(OpError::expected(
            "attribute `qk_matmul_output_mode`",
            "0 to 3",
            scores,
        ));
    }
    Ok(Box::new(Sdpa {
        causal: a.int("is_causal")?.unwrap_or(0) != 0,
        window: [side("left_window_size")?, side("right_window_size")?],
        may_see_none: true,
        heads: heads("q_num_heads")?.zip(heads("kv_num_heads")?),
        scale: a.float("scale")?,
        softcap: a.float("softcap")?.unwrap_or(0.0),
        scores,
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("Attention", 23, 7).outputs(4)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let plain = Sdpa {
        causal: true,
        window: [None; 2],
        may_see_none: true,
        heads: None,
        scale: None,
        softcap: 0.0,
        scores: 0,
    };
    let joined = Sdpa {
        heads: Some((4, 2)),
        causal: false,
        ..plain.clone()
    };
    let windowed = Sdpa {
        window: [Some(1), Some(2)],
        causal: false,
        ..plain.clone()
    };
    let four = |heads: usize, n: usize| input(&[2, heads, n, 8]);
    // The second query sees no key.
    let truths: Vec<bool> = (0..15).map(|i| !(5..10).contains(&i) && i != 1).collect();
    let truths = HostTensor::from_bool(&[3, 5], &truths).map(given);
    let operands = || vec![four(4, 3), four(2, 5), four(2, 5)];
    let mut all = vec![
        Case::new(plain.clone(), operands()).slack(4.0),
        Case::new(
            joined,
            vec![input(&[1, 3, 32]), input(&[1, 5, 16]), input(&[1, 5, 16])],
        )
        .slack(4.0),
        Case::new(windowed, operands()).slack(4.0),
    ];
    if let Ok(truths) = truths {
        let masked = [operands(), vec![truths.clone()]].concat();
        all.push(Case::new(plain.clone(), masked).slack(4.0));
        let new = vec![four(4, 3), four(2, 3), four(2, 3)];
        let behind = [new, vec![truths, four(2, 2), four(2, 2)]].concat();
        all.push(Case::new(plain, behind).slack(4.0));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(shapes: &[Option<&[usize]>], lengths: Option<i64>) -> OpResult<Vec<HostTensor>> {
        let op = Sdpa {
            causal: false,
            window: [None; 2],
            may_see_none: true,
            heads: None,
            scale: None,
            softcap: 0.0,
            scores: 0,
        };
        let mut tensors: Vec<Option<HostTensor>> = shapes
            .iter()
            .map(|s| s.map(|s| HostTensor::zeros(DType::F32, s).unwrap()))
            .collect();
        tensors.resize(6, None);
        tensors.push(lengths.map(|n| HostTensor::from_i64(&[1], &[n]).unwrap()));
        op.eval(&tensors.iter().map(Option::as_ref).collect::<Vec<_>>())
    }

    #[test]
    fn operands_fit() {
        let q: &[usize] = &[1, 4, 3, 8];
        let with = |mask: &[usize], past: &[usize]| {
            run(
                &[Some(q), Some(q), Some(q), Some(mask), Some(past), Some(past)],
                None,
            )
        };
        let past: &[usize] = &[1, 4, 2, 8];
        assert!(with(&[1, 4, 3, 5], past).is_ok());
        assert!(with(&[1, 1, 3, 5], past).is_ok());
        assert!(with(&[3, 4], past).is_ok(), "the rest of the keys is hidden");
        for mask in [&[1usize, 2, 3, 5][..], &[2, 4, 3, 5], &[2, 5], &[3, 6]] {
            assert!(with(mask, past).is_err(), "{mask:?}");
        }
        for past in [[1, 2, 2, 8], [2, 4, 2, 8], [1, 4, 2, 6]] {
            assert!(with(&[3, 5], &past).is_err(), "{past:?}");
        }
        for (n, fits) in [(3, true), (4, false), (-1, false)] {
            assert_eq!(
                run(&[Some(q), Some(q), Some(q)], Some(n)).is_ok(),
                fits,
                "{n} keys that count"
            );
        }
    }
}
