//! Attention on devices: appends to the cache, then matmuls around a softmax.

use super::{Sdpa, split};
use crate::backend::kernel::MASK_MIN;
use crate::graph::ValueId;
use crate::graph::op::OpResult;
use crate::graph::op::concat::Concat;
use crate::graph::op::expand::Expand;
use crate::graph::op::matmul::MatMul;
use crate::graph::op::parts::Parts;
use crate::graph::op::pointwise::import::{binary, input as arg, select, unary};
use crate::graph::op::pointwise::{Binary, Expr, Unary};
use crate::graph::op::softmax::Softmax;
use crate::graph::op::transpose::Transpose;
use crate::tensor::{DType, HostTensor};

/// Minus infinity as devices represent it, halved so that the sum with a mask's own value is
/// finite.
pub(super) const HIDDEN: f32 = MASK_MIN / 2.0;

/// Reshapes and transposes `[batch, sequence, heads * size]` to `[batch, heads, sequence, size]`.
pub(crate) fn heads_first(
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

/// A binary function of a value and a constant.
fn by_number(cx: &mut Parts<'_, '_>, what: &str, f: Binary, x: ValueId, by: f32) -> OpResult<ValueId> {
    let dtype = cx.fact(x)?.dtype;
    let by = cx.constant(&format!("{what}/by"), HostTensor::from_floats(dtype, &[], &[by])?);
    cx.pointwise(what, binary(f, arg(0), arg(1)), &[x, by])
}

/// Positions of the rows in `all` that come after those of `past`.
pub(crate) fn new_positions(
    cx: &mut Parts<'_, '_>,
    what: &str,
    past: ValueId,
    all: ValueId,
) -> OpResult<ValueId> {
    let first = cx.size(&format!("{what}/first"), past, 2)?;
    let end = cx.size(&format!("{what}/end"), all, 2)?;
    cx.range(what, first, end)
}

/// A causal mask `[queries, keys]` in the type of the keys. The first of the keys
/// `[b, heads, keys, size]` are the `past`. A query attends to no key after its own position, and
/// to none `window` or more positions before it.
pub(crate) fn causal_mask(
    cx: &mut Parts<'_, '_>,
    keys: ValueId,
    past: ValueId,
    window: Option<i64>,
) -> OpResult<ValueId> {
    let dtype = cx.fact(keys)?.dtype;
    let all = cx.size("all", keys, 2)?;
    let columns = cx.count_to("columns", all)?;
    let rows = new_positions(cx, "rows", past, keys)?;
    let rows = cx.unsqueeze("rows/apart", rows, &[1])?;
    let mut seen = binary(Binary::LessOrEqual, arg(0), arg(1));
    if let Some(window) = window {
        let first = binary(Binary::Sub, arg(1), whole(window));
        seen = binary(Binary::And, seen, binary(Binary::Greater, arg(0), first));
    }
    let mask = select(
        seen,
        Expr::Const(0.0, dtype),
        Expr::Const(f64::from(HIDDEN), dtype),
    );
    cx.pointwise("causal", mask, &[columns, rows])
}

/// The sum of two masks; `given` may be truth values.
pub(crate) fn both_masks(cx: &mut Parts<'_, '_>, added: ValueId, given: ValueId) -> OpResult<ValueId> {
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
    /// The parts of attention without windows over past and new keys and values: its result, all
    /// keys, all values. `None` if required sizes are not constant or if a mask is shorter than
    /// the keys.
    pub(crate) fn behind(
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

    /// Matmuls around a softmax. `None` if required sizes are not constant or if scores with
    /// infinities are requested.
    pub(super) fn as_products(&self, cx: &mut Parts<'_, '_>) -> OpResult<Option<Vec<ValueId>>> {
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
        let past = cx.opt(4);
        if let Some(before) = past {
            k = cx.node("keys", Concat { axis: 2 }, &[Some(before), Some(k)])?;
            v = cx.node("values", Concat { axis: 2 }, &[cx.opt(5), Some(v)])?;
        }
        let present = (k, v);
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
        let Some(bias) = self.bias(cx, q, present.0, past)? else {
            return Ok(None);
        };
        let masked = match bias.added {
            // Hidden keys have scores of minus infinity, which devices do not have.
            Some(_) if self.scores == 2 && cx.is_read(3) => return Ok(None),
            // A sum of scores and mask, which the attention pass fuses into one operator.
            Some(added) => cx.pointwise("masked", binary(Binary::Add, arg(0), arg(1)), &[bent, added])?,
            None => bent,
        };
        let softmax = Softmax {
            axis: -1,
            flatten: false,
        };
        let weights = cx.node("weights", softmax, &[Some(masked)])?;
        let sums = cx.node("sums", MatMul { trans_b: false }, &[Some(weights), Some(v)])?;
        let sums = bias.or_zeros(cx, "some/sums", sums)?;
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
            _ if cx.is_read(3) => bias.or_zeros(cx, "some/weights", weights)?,
            _ => weights,
        };
        Ok(Some(vec![y, present.0, present.1, scores]))
    }
}

/// An integer constant.
pub(super) fn whole(n: i64) -> Expr {
    Expr::Const(f64_of(n), DType::I64)
}
