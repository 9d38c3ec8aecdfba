//! Scaled dot product attention as a model writes it. ONNX `Attention` from opset 23; `nonpad_kv_seqlen` from 24.
//!
//! Operands: queries, keys and values of four axes `[batch, heads, sequence, size]`, or of three with the heads joined;
//! then, each of which may be left out: a mask (truth values or what is added to the scores), past keys, past values, and
//! the number of keys of each batch that count. Results: as the queries; keys and values with the past before them; scores.
//! Devices run its parts, products of matrices around a softmax.

use super::case::{Case, input};
use super::concat::Concat;
use super::expand::Expand;
use super::matmul::MatMul;
use super::pad::{Mode, Pad};
use super::parts::Parts;
use super::pointwise::import::{binary, input as arg, number, select, unary};
use super::pointwise::{Binary, Expr, Unary};
use super::range::Range;
use super::shape_of::ShapeOf;
use super::softmax::Softmax;
use super::transpose::Transpose;
use super::trilu::Trilu;
use super::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, as_usize, filled, fit, onnx, operand, room,
    to_sizes,
};
use crate::backend::kernel::MASK_MIN;
use crate::graph::ValueId;
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::{DType, HostTensor};

/// See the module documentation.
#[derive(Clone, Debug, PartialEq)]
pub struct Sdpa {
    /// A query sees no key behind its own place.
    pub causal: bool,
    /// Heads of queries, of keys and values, for operands of three axes.
    pub heads: Option<(usize, usize)>,
    /// Factor on the scores; `None` means one over the square root of the size of a head.
    pub scale: Option<f32>,
    /// Scores are bent to below this; 0 leaves them.
    pub softcap: f32,
    /// Which scores are result 3: 0 products, 1 bent, 2 bent and with the mask, 3 after the softmax.
    pub scores: i64,
}

/// Sizes of one operand as batch, heads, sequence and size of a head.
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
            "four axes, or three and the numbers of heads",
            Shape(shape.to_vec()),
        )),
    }
}

/// One operand on the host, with a way to its elements.
struct Rows {
    data: Vec<f32>,
    heads: usize,
    sequence: usize,
    size: usize,
    joined: bool,
}

impl Rows {
    fn new(x: &HostTensor, heads: Option<usize>) -> OpResult<Self> {
        let sizes = split(&Shape::fixed(x.shape()).0, heads)?;
        let [_, heads, sequence, size] = sizes.map(|d| as_usize(&d).unwrap_or(0));
        Ok(Self {
            data: x.to_f32()?.into_owned(),
            heads,
            sequence,
            size,
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

    fn row(&self, batch: usize, head: usize, at: usize) -> &[f32] {
        let start = self.start(batch, head, at);
        self.data.get(start..start + self.size).unwrap_or_default()
    }

    /// As four axes.
    fn separate(&self, x: &HostTensor) -> OpResult<HostTensor> {
        if !self.joined {
            return Ok(x.clone());
        }
        let batches = x.shape().first().copied().unwrap_or(0);
        let mut out = Vec::with_capacity(self.data.len());
        for (b, h) in (0..batches).flat_map(|b| (0..self.heads).map(move |h| (b, h))) {
            (0..self.sequence).for_each(|s| out.extend_from_slice(self.row(b, h, s)));
        }
        Ok(HostTensor::from_floats(
            x.dtype(),
            &[batches, self.heads, self.sequence, self.size],
            &out,
        )?)
    }
}

/// What is added to the scores: minus infinity hides a key.
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
        let lead = lead.ok_or_else(|| OpError::expected("mask", "four axes at most", format!("{mask:?}")))?;
        for (slot, n) in shape.iter_mut().skip(lead).zip(mask.shape()) {
            *slot = *n;
        }
        Ok(Self { data, shape })
    }

    fn at(&self, index: [usize; 4]) -> f32 {
        // A mask may end before the keys do; the rest is hidden. Its last axis never broadcasts.
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
}

/// What stands for minus infinity on devices; half of it, so that a sum with a mask's own is finite.
const HIDDEN: f32 = MASK_MIN / 2.0;

/// `[batch, sequence, heads * size]` as `[batch, heads, sequence, size]`.
pub(super) fn heads_first(
    cx: &mut Parts<'_, '_>,
    name: &str,
    x: ValueId,
    heads: i64,
    size: i64,
) -> OpResult<ValueId> {
    let apart = cx.reshape(&format!("{name}/heads"), x, &[0, 0, heads, size])?;
    let perm = Some(vec![0, 2, 1, 3]);
    cx.node(&format!("{name}/turned"), Transpose { perm }, &[Some(apart)])
}

/// A value with a constant.
fn by_number(cx: &mut Parts<'_, '_>, what: &str, f: Binary, x: ValueId, by: f32) -> OpResult<ValueId> {
    let dtype = cx.fact(x)?.dtype;
    let by = cx.constant(&format!("{what}/by"), HostTensor::from_floats(dtype, &[], &[by])?);
    cx.pointwise(what, binary(f, arg(0), arg(1)), &[x, by])
}

/// The number of rows of keys or values `[b, heads, rows, size]`, as a list of one.
fn number_of_rows(cx: &mut Parts<'_, '_>, what: &str, x: ValueId) -> OpResult<ValueId> {
    let op = ShapeOf {
        start: 2,
        end: Some(3),
    };
    cx.node(what, op, &[Some(x)])
}

/// The integers from one to below another.
fn range(cx: &mut Parts<'_, '_>, what: &str, start: ValueId, end: ValueId) -> OpResult<ValueId> {
    let step = cx.ints(&format!("{what}/step"), &[1])?;
    cx.node(what, Range, &[Some(start), Some(end), Some(step)])
}

/// Places of the rows that `all` has behind those of `past`.
pub(super) fn new_places(
    cx: &mut Parts<'_, '_>,
    what: &str,
    past: ValueId,
    all: ValueId,
) -> OpResult<ValueId> {
    let first = number_of_rows(cx, &format!("{what}/first"), past)?;
    let end = number_of_rows(cx, &format!("{what}/end"), all)?;
    range(cx, what, first, end)
}

/// What is added to the scores of new queries and all keys `[b, heads, keys, size]`, of which those in `past` come first: a query sees no
/// key behind its own place, nor one `window` or more before it. `[queries, keys]` in the type of the keys.
pub(super) fn causal_mask(
    cx: &mut Parts<'_, '_>,
    keys: ValueId,
    past: ValueId,
    window: Option<i64>,
) -> OpResult<ValueId> {
    let dtype = cx.fact(keys)?.dtype;
    let zero = cx.ints("zero", &[0])?;
    let all = number_of_rows(cx, "all", keys)?;
    let columns = range(cx, "columns", zero, all)?;
    let rows = new_places(cx, "rows", past, keys)?;
    let rows = cx.unsqueeze("rows/apart", rows, &[1])?;
    let mut seen = binary(Binary::LessOrEqual, arg(0), arg(1));
    if let Some(window) = window {
        let first = binary(Binary::Sub, arg(1), Expr::Const(f64_of(window), DType::I64));
        seen = binary(Binary::And, seen, binary(Binary::Greater, arg(0), first));
    }
    let mask = select(
        seen,
        Expr::Const(0.0, dtype),
        Expr::Const(f64::from(HIDDEN), dtype),
    );
    cx.pointwise("causal", mask, &[columns, rows])
}

/// What is added to the scores by two masks, of which `given` may be truth values.
pub(super) fn both_masks(cx: &mut Parts<'_, '_>, added: ValueId, given: ValueId) -> OpResult<ValueId> {
    let dtype = cx.fact(added)?.dtype;
    let hidden = Expr::Const(f64::from(HIDDEN), dtype);
    let both = if cx.fact(given)?.dtype == DType::Bool {
        select(arg(1), arg(0), hidden)
    } else {
        let given = Expr::Cast(dtype, Box::new(arg(1)));
        binary(Binary::Add, arg(0), binary(Binary::Max, given, hidden))
    };
    cx.pointwise("mask", both, &[added, given])
}

#[expect(clippy::cast_precision_loss, reason = "windows are far smaller")]
fn f64_of(n: i64) -> f64 {
    n as f64
}

impl Sdpa {
    /// With past keys and values: these joined with the new ones, and attention over all without a past. `None` where the scores are asked
    /// for, and where a mask ends before the keys do.
    fn as_cached(&self, cx: &mut Parts<'_, '_>) -> OpResult<Option<Vec<ValueId>>> {
        let (Some(keys), Some(values)) = (cx.opt(4), cx.opt(5)) else {
            return Ok(None);
        };
        if cx.is_read(3) || cx.opt(6).is_some() {
            return Ok(None);
        }
        let new = [cx.input(0)?, cx.input(1)?, cx.input(2)?];
        let mask = cx.opt(3);
        self.behind(cx, new, mask, [keys, values])
    }

    /// The parts of attention of queries over past keys and values and new ones: its result, all keys, all values. `None` where sizes that must
    /// be numbers are not, and where a mask ends before the keys do.
    pub(super) fn behind(
        &self,
        cx: &mut Parts<'_, '_>,
        new: [ValueId; 3],
        mask: Option<ValueId>,
        past: [ValueId; 2],
    ) -> OpResult<Option<Vec<ValueId>>> {
        let [q, k, v] = new;
        let [old_keys, old_values] = past;
        let mut joined = Vec::with_capacity(2);
        for (i, name, x, old) in [(1, "keys", k, old_keys), (2, "values", v, old_values)] {
            let fact = cx.fact(x)?;
            let [_, heads, _, size] = split(&fact.shape.0, self.heads_of(i))?;
            let (Some(heads), Some(size)) = (heads.as_const(), size.as_const()) else {
                return Ok(None);
            };
            let new = if fact.shape.rank() == 4 {
                x
            } else {
                heads_first(cx, name, x, heads, size)?
            };
            joined.push(cx.node(name, Concat { axis: 2 }, &[Some(old), Some(new)])?);
        }
        let [keys, values] = joined.as_slice() else {
            return Ok(None);
        };
        let all = cx.fact(*keys)?.shape.0.get(2).cloned();
        let mut mask = mask;
        if let Some(given) = mask
            && cx.fact(given)?.shape.0.last() != all.as_ref()
        {
            return Ok(None);
        }
        if self.causal {
            let causal = causal_mask(cx, *keys, old_keys, None)?;
            mask = Some(match mask {
                None => causal,
                Some(given) => both_masks(cx, causal, given)?,
            });
        }
        let op = Self {
            causal: false,
            ..self.clone()
        };
        let y = cx.node("attention", op, &[Some(q), Some(*keys), Some(*values), mask])?;
        Ok(Some(vec![y, *keys, *values]))
    }

    /// As products of matrices around a softmax. `None` where sizes that must be numbers are not, and where scores with infinities are
    /// asked for.
    fn as_products(&self, cx: &mut Parts<'_, '_>) -> OpResult<Option<Vec<ValueId>>> {
        let (xq, xk, xv) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
        let (fq, fk, fv) = (cx.fact(xq)?, cx.fact(xk)?, cx.fact(xv)?);
        let [_, heads, _, size] = split(&fq.shape.0, self.heads_of(0))?;
        let [_, kv_heads, _, _] = split(&fk.shape.0, self.heads_of(1))?;
        let [_, _, _, v_size] = split(&fv.shape.0, self.heads_of(2))?;
        let numbers = [&heads, &kv_heads, &size, &v_size].map(|d| d.as_const().filter(|n| *n > 0));
        let [Some(heads), Some(kv_heads), Some(size), Some(v_size)] = numbers else {
            return Ok(None);
        };
        let separate = |cx: &mut Parts<'_, '_>, name: &str, x: ValueId, rank: usize, heads, size| {
            if rank == 4 {
                return Ok(x);
            }
            heads_first(cx, name, x, heads, size)
        };
        let q = separate(cx, "q", xq, fq.shape.rank(), heads, size)?;
        let mut k = separate(cx, "k", xk, fk.shape.rank(), kv_heads, size)?;
        let mut v = separate(cx, "v", xv, fv.shape.rank(), kv_heads, v_size)?;
        let mut past = Some(0);
        if let Some(before) = cx.opt(4) {
            let rows = cx.fact(before)?.shape.0.get(2).cloned();
            past = rows.and_then(|d| d.as_const());
            k = cx.node("keys", Concat { axis: 2 }, &[Some(before), Some(k)])?;
            v = cx.node("values", Concat { axis: 2 }, &[cx.opt(5), Some(v)])?;
        }
        let present = (k, v);
        let keys = cx.fact(k)?.shape.0.get(2).cloned().unwrap_or_default();
        if heads != kv_heads {
            for (name, x, size) in [("k", &mut k, size), ("v", &mut v, v_size)] {
                let apart = cx.unsqueeze(&format!("{name}/apart"), *x, &[2])?;
                let times = cx.ints(&format!("{name}/times"), &[1, 1, heads / kv_heads, 1, 1])?;
                let more = cx.node(&format!("{name}/shared"), Expand, &[Some(apart), Some(times)])?;
                *x = cx.reshape(&format!("{name}/all"), more, &[0, heads, -1, size])?;
            }
        }
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            reason = "the size of a head is small"
        )]
        let scale = self.scale.unwrap_or_else(|| (1.0 / (size as f64).sqrt()) as f32);
        let scaled = by_number(cx, "scaled", Binary::Mul, q, scale)?;
        let products = cx.node("products", MatMul { trans_b: true }, &[Some(scaled), Some(k)])?;
        let bent = if self.softcap > 0.0 {
            let inner = by_number(cx, "capped", Binary::Div, products, self.softcap)?;
            let bent = cx.pointwise("tanh", unary(Unary::Tanh, arg(0)), &[inner])?;
            by_number(cx, "bent", Binary::Mul, bent, self.softcap)?
        } else {
            products
        };
        let Some((masked, infinite)) = self.masked(cx, bent, past, &keys)? else {
            return Ok(None);
        };
        if infinite && self.scores == 2 && cx.is_read(3) {
            return Ok(None);
        }
        let softmax = Softmax {
            axis: -1,
            flatten: false,
        };
        let weights = cx.node("weights", softmax, &[Some(masked)])?;
        let sums = cx.node("sums", MatMul { trans_b: false }, &[Some(weights), Some(v)])?;
        let y = if fq.shape.rank() == 3 {
            let perm = Some(vec![0, 2, 1, 3]);
            let turned = cx.node("turned", Transpose { perm }, &[Some(sums)])?;
            cx.reshape("joined", turned, &[0, 0, heads * v_size])?
        } else {
            sums
        };
        let scores = match self.scores {
            0 => products,
            1 => bent,
            2 => masked,
            _ => weights,
        };
        Ok(Some(vec![y, present.0, present.1, scores]))
    }

    /// Scores with the masks, and whether a score may stand for minus infinity.
    fn masked(
        &self,
        cx: &mut Parts<'_, '_>,
        scores: ValueId,
        past: Option<i64>,
        keys: &Dim,
    ) -> OpResult<Option<(ValueId, bool)>> {
        let (mut y, mut infinite) = (scores, false);
        if let Some(given) = cx.opt(3) {
            let fact = cx.fact(given)?;
            let last = fact.shape.0.last().cloned().unwrap_or_default();
            let is_bool = fact.dtype == DType::Bool;
            let mut mask = given;
            let missing = keys.sub(&last)?;
            if !missing.is(0) {
                // A mask may end before the keys do; the rest is hidden.
                let Some(missing) = missing.as_const() else {
                    return Ok(None);
                };
                let mut pads = vec![0; 2 * fact.shape.rank()];
                if let Some(end) = pads.last_mut() {
                    *end = missing;
                }
                let pad = Pad {
                    mode: Mode::Constant,
                    pads: Some(pads),
                    value: if is_bool { 0.0 } else { HIDDEN },
                };
                mask = cx.node("mask", pad, &[Some(mask)])?;
                infinite = true;
            }
            infinite |= is_bool;
            // A sum of scores and a mask is what becomes one operator.
            let finite = if is_bool {
                select(arg(0), number(0.0), number(HIDDEN))
            } else {
                binary(Binary::Max, arg(0), number(HIDDEN))
            };
            let finite = cx.pointwise("finite", finite, &[mask])?;
            y = cx.pointwise("masked", binary(Binary::Add, arg(0), arg(1)), &[y, finite])?;
        }
        if self.causal {
            let Some(past) = past else { return Ok(None) };
            let sizes = cx.fact(scores)?.shape;
            let (rows, columns) = (sizes.0.iter().rev().nth(1).and_then(as_usize), as_usize(keys));
            if let (Some(rows), Some(columns)) = (rows, columns) {
                // One mask for all heads, in the form of any other.
                let mut hidden = super::filled(&[rows, columns], 0f32)?;
                for (row, line) in (past..).zip(hidden.chunks_exact_mut(columns.max(1))) {
                    let seen = usize::try_from(row.saturating_add(1)).unwrap_or(0);
                    line.iter_mut().skip(seen).for_each(|v| *v = HIDDEN);
                }
                let hidden = HostTensor::from_f32(&[rows, columns], &hidden)?;
                let hidden = cx.constant("hidden", hidden);
                y = cx.pointwise("causal", binary(Binary::Add, arg(0), arg(1)), &[y, hidden])?;
                return self.live(cx, y, keys);
            }
            let all = cx.pointwise("all", Expr::Const(1.0, DType::Bool), &[scores])?;
            let diagonal = cx.constant("past", HostTensor::from_i64(&[], &[past])?);
            let seen = cx.node("seen", Trilu { upper: false }, &[Some(all), Some(diagonal)])?;
            y = cx.pointwise("causal", select(arg(1), arg(0), number(HIDDEN)), &[y, seen])?;
            infinite = true;
        }
        let live = self.live(cx, y, keys)?;
        Ok(live.map(|(y, more)| (y, infinite || more)))
    }

    /// Scores of keys behind the given lengths hidden, and whether there may be such.
    fn live(&self, cx: &mut Parts<'_, '_>, scores: ValueId, keys: &Dim) -> OpResult<Option<(ValueId, bool)>> {
        let Some(lengths) = cx.opt(6) else {
            return Ok(Some((scores, self.causal)));
        };
        let Some(n) = as_usize(keys) else { return Ok(None) };
        let places: Vec<i64> = (0i64..).take(n).collect();
        let places = cx.constant("places", HostTensor::from_i64(&[n], &places)?);
        let lengths = cx.reshape("lengths", lengths, &[-1, 1, 1, 1])?;
        let live = select(binary(Binary::Less, arg(1), arg(2)), arg(0), number(HIDDEN));
        Ok(Some((
            cx.pointwise("live", live, &[scores, places, lengths])?,
            true,
        )))
    }
}

impl Op for Sdpa {
    fn name(&self) -> &str {
        "Attention"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let (q, k, v) = (cx.fact(0)?, cx.fact(1)?, cx.fact(2)?);
        let [batch, heads, queries, size] = split(&q.shape.0, self.heads_of(0))?;
        let [k_batch, kv_heads, mut keys, k_size] = split(&k.shape.0, self.heads_of(1))?;
        let [v_batch, v_heads, values, v_size] = split(&v.shape.0, self.heads_of(2))?;
        cx.same("batches of queries and keys", &batch, &k_batch)?;
        cx.same("batches of queries and values", &batch, &v_batch)?;
        cx.same("heads of keys and values", &kv_heads, &v_heads)?;
        cx.same("sizes of a head of queries and keys", &size, &k_size)?;
        cx.same("numbers of keys and values", &keys, &values)?;
        let per = heads.exact_div(&kv_heads);
        per.ok_or_else(|| OpError::mismatch("heads of queries and of keys", &heads, &kv_heads))?;
        if let Some(past) = cx.opt(4) {
            let [b, h, past, n] = split(&past.shape.0, None)?;
            cx.same("batches of queries and past keys", &batch, &b)?;
            cx.same("heads of keys and past keys", &kv_heads, &h)?;
            cx.same("sizes of a head of keys and past keys", &size, &n)?;
            let [b, h, values, n] = split(&cx.fact(5)?.shape.0, None)?;
            cx.same("batches of queries and past values", &batch, &b)?;
            cx.same("heads of values and past values", &kv_heads, &h)?;
            cx.same("sizes of a head of values and past values", &v_size, &n)?;
            cx.same("numbers of past keys and values", &past, &values)?;
            keys = keys.add(&past)?;
        } else if let Some(past) = cx.opt(5) {
            return Err(OpError::expected("past values", "none without past keys", past));
        }
        if let Some(mask) = cx.opt(3) {
            let [lead @ .., last] = mask.shape.0.as_slice() else {
                return Err(OpError::expected("mask", "an axis or more", mask));
            };
            let scores = [&batch, &heads, &queries];
            let skip = scores.len().checked_sub(lead.len());
            let skip = skip.ok_or_else(|| OpError::expected("mask", "four axes at most", mask))?;
            for (n, size) in lead
                .iter()
                .zip(scores.iter().skip(skip))
                .filter(|(n, _)| !n.is(1))
            {
                cx.same("sizes of mask and scores", n, size)?;
            }
            cx.require(keys.sub(last)?, "keys that the mask does not reach")?;
        }
        if let Some(lengths) = cx.opt(6) {
            let ([n], true) = (lengths.shape.0.as_slice(), lengths.dtype.is_int()) else {
                return Err(OpError::expected(
                    "numbers of keys that count",
                    "one integer a batch",
                    lengths,
                ));
            };
            cx.same("batches of queries and numbers of keys that count", &batch, n)?;
        }
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
        let q = Rows::new(xq, self.heads_of(0))?;
        let mut past = 0;
        let mut present = Vec::new();
        for (i, before) in [(1, 4), (2, 5)] {
            let x = operand(inputs, i)?;
            let new = Rows::new(x, self.heads_of(i))?.separate(x)?;
            present.push(match optional(before) {
                Some(old) => {
                    past = old.shape().get(2).copied().unwrap_or(0);
                    Concat { axis: 2 }.eval(&[Some(old), Some(&new)])?.remove(0)
                }
                None => new,
            });
        }
        let [xk, xv] = present.as_slice() else {
            return Err(OpError::expected("operands", 3, inputs.len()));
        };
        let (k, v) = (Rows::new(xk, None)?, Rows::new(xv, None)?);
        let mask = optional(3).map(Mask::new).transpose()?;
        let lengths = optional(6).map(to_sizes).transpose()?;
        if let Some(n) = lengths.iter().flatten().find(|n| **n > k.sequence) {
            return Err(OpError::expected(
                "number of keys that count",
                format!("{} at most", k.sequence),
                n,
            ));
        }
        let batches = xq.shape().first().copied().unwrap_or(0);
        #[expect(clippy::cast_precision_loss, reason = "the size of a head is small")]
        let scale = self.scale.map_or_else(|| 1.0 / (q.size as f64).sqrt(), f64::from);
        let (per, cap) = ((q.heads / k.heads.max(1)).max(1), f64::from(self.softcap));
        let mut y = filled(&[batches, q.heads, q.sequence, v.size], 0f32)?;
        let target = Rows {
            data: Vec::new(),
            size: v.size,
            ..Rows::new(xq, self.heads_of(0))?
        };
        let mut shown = room(&[batches, q.heads, q.sequence, k.sequence])?;
        for (b, h, i) in (0..batches)
            .flat_map(|b| (0..q.heads).map(move |h| (b, h)))
            .flat_map(|(b, h)| (0..q.sequence).map(move |i| (b, h, i)))
        {
            let dot = |j: usize| -> f64 {
                let pairs = q.row(b, h, i).iter().zip(k.row(b, h / per, j));
                pairs.map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>() * scale
            };
            let products: Vec<f64> = (0..k.sequence).map(dot).collect();
            let bent: Vec<f64> = products
                .iter()
                .map(|x| if cap > 0.0 { cap * (x / cap).tanh() } else { *x })
                .collect();
            let hidden = |j: usize| {
                let length = lengths.as_ref().and_then(|l| l.get(b)).copied();
                (self.causal && j > i + past) || length.is_some_and(|n| j >= n)
            };
            let bias = |j: usize| {
                let added = mask.as_ref().map_or(0.0, |m| f64::from(m.at([b, h, i, j])));
                if hidden(j) { f64::NEG_INFINITY } else { added }
            };
            let masked: Vec<f64> = bent.iter().enumerate().map(|(j, x)| x + bias(j)).collect();
            let top = masked.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let powers: Vec<f64> = masked.iter().map(|x| (x - top).exp()).collect();
            let sum: f64 = powers.iter().sum();
            let weights: Vec<f64> = powers.iter().map(|p| p / sum).collect();
            let start = target.start(b, h, i);
            for (slot, n) in y.iter_mut().skip(start).zip(0..v.size) {
                let terms = weights.iter().enumerate();
                let total: f64 = terms
                    .map(|(j, w)| w * f64::from(v.row(b, h / per, j).get(n).copied().unwrap_or(0.0)))
                    .sum();
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "rounding to the result type is meant"
                )]
                {
                    *slot = total as f32;
                }
            }
            let list = match self.scores {
                0 => products,
                1 => bent,
                2 => masked,
                _ => weights,
            };
            #[expect(
                clippy::cast_possible_truncation,
                reason = "rounding to the result type is meant"
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
            xk.clone(),
            xv.clone(),
            scores,
        ])
    }

    fn parts(&self, cx: &mut Parts<'_, '_>) -> OpResult<Option<Vec<ValueId>>> {
        match self.as_cached(cx)? {
            None => self.as_products(cx),
            parts => Ok(parts),
        }
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let heads = |name: &str| {
        let heads = a
            .int(name)?
            .map(|n| usize::try_from(n).ok().filter(|n| *n > 0).ok_or(n))
            .transpose();
        heads.map_err(|n| OpError::expected(format!("attribute `{name}`"), "1 or more", n))
    };
    // The softmax is in `f64` here, whatever is asked for.
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
        heads: heads("q_num_heads")?.zip(heads("kv_num_heads")?),
        scale: a.float("scale")?,
        softcap: a.float("softcap")?.unwrap_or(0.0),
        scores,
    }))
}

/// The registry's entry.
pub static DEF: OpDef = OpDef {
    onnx: &[onnx("Attention", 23)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let plain = Sdpa {
        causal: true,
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
    let four = |heads: usize, n: usize| input(&[2, heads, n, 8]);
    vec![
        Case::new(plain, vec![four(4, 3), four(2, 5), four(2, 5)]).slack(4.0),
        Case::new(
            joined,
            vec![input(&[1, 3, 32]), input(&[1, 5, 16]), input(&[1, 5, 16])],
        )
        .slack(4.0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(shapes: &[Option<&[usize]>], lengths: Option<i64>) -> OpResult<Vec<HostTensor>> {
        let op = Sdpa {
            causal: false,
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
