//! What hides keys from queries: positions, numbers of valid keys, and the mask.

use super::Sdpa;
use super::products::{HIDDEN, whole};
use crate::graph::ValueId;
use crate::graph::op::OpResult;
use crate::graph::op::pad::{Mode, Pad};
use crate::graph::op::parts::Parts;
use crate::graph::op::pointwise::import::{binary, cast, input as arg, number, select};
use crate::graph::op::pointwise::{Binary, Expr};
use crate::graph::op::reduce::{Kind, Reduce};
use crate::num;
use crate::shape::Dim;
use crate::tensor::DType;

/// What hides keys from queries.
#[derive(Default)]
pub(super) struct Bias {
    /// Added to the scores.
    pub added: Option<ValueId>,
    /// 1 for a query that sees a key, otherwise 0. `None` if each query sees one.
    some: Option<ValueId>,
}

impl Bias {
    /// `x`, with zeros for queries that see no key.
    pub(super) fn or_zeros(&self, cx: &mut Parts<'_, '_>, what: &str, x: ValueId) -> OpResult<ValueId> {
        let Some(some) = self.some else { return Ok(x) };
        let zero = Expr::Const(0.0, cx.fact(x)?.dtype);
        let y = select(binary(Binary::Greater, arg(1), number(0.5)), arg(0), zero);
        cx.pointwise(what, y, &[x, some])
    }
}

/// What must hold for a query to see a key, over operands that broadcast to the scores.
#[derive(Default)]
struct Conditions {
    operands: Vec<ValueId>,
    all: Option<Expr>,
}

impl Conditions {
    fn operand(&mut self, v: ValueId) -> Expr {
        self.operands.push(v);
        arg(self.operands.len() - 1)
    }

    fn require(&mut self, condition: Expr) {
        self.all = Some(match self.all.take() {
            Some(all) => binary(Binary::And, all, condition),
            None => condition,
        });
    }
}

/// Length of queries or keys `[b, heads, length, size]`.
fn length_of(cx: &Parts<'_, '_>, x: ValueId) -> OpResult<Dim> {
    Ok(num::at(&cx.fact(x)?.shape.0, 2)?.clone())
}

impl Sdpa {
    /// What hides keys `[b, heads, keys, size]`, the first of which are the `past`, from the
    /// queries `q` `[b, heads, queries, size]`. `None` if the length of a mask is not constant.
    pub(super) fn bias(
        &self,
        cx: &mut Parts<'_, '_>,
        q: ValueId,
        keys: ValueId,
        past: Option<ValueId>,
    ) -> OpResult<Option<Bias>> {
        let all = length_of(cx, keys)?;
        let missing = match cx.opt(3) {
            Some(mask) => all.sub(cx.fact(mask)?.shape.0.last().unwrap_or(&all))?,
            None => Dim::from(0),
        };
        let (missing, mask_end) = match (missing.as_const(), all.sub(&missing)?.as_const()) {
            (Some(0), _) => (0, None),
            (Some(missing), Some(end)) => (missing, Some(end)),
            _ => return Ok(None),
        };
        let mut seen = Conditions::default();
        self.require_position(cx, &mut seen, [q, keys], past, mask_end)?;
        let by_position = seen.all.clone();
        let dtype = cx.fact(q)?.dtype;
        let mut added = match cx.opt(3) {
            Some(mask) => {
                let mask = lengthened(cx, mask, missing)?;
                require_mask(cx, &mut seen, mask, dtype)?
            }
            None => Expr::Const(0.0, dtype),
        };
        if let Some(by_position) = by_position {
            added = select(by_position, added, Expr::Const(f64::from(HIDDEN), dtype));
        }
        let Some(condition) = seen.all else {
            return Ok(Some(Bias::default()));
        };
        let some = match self.may_see_none && self.can_see_none(cx, q, &all, past)? {
            true => Some(sees_some(cx, condition, &seen.operands)?),
            false => None,
        };
        let added = Some(cx.pointwise("bias", added, &seen.operands)?);
        Ok(Some(Bias { added, some }))
    }

    /// Requires that a key lies in the band of the query `q`, is valid, and that a mask of length
    /// `mask_end` covers it.
    fn require_position(
        &self,
        cx: &mut Parts<'_, '_>,
        seen: &mut Conditions,
        [q, keys]: [ValueId; 2],
        past: Option<ValueId>,
        mask_end: Option<i64>,
    ) -> OpResult<()> {
        let (lengths, [left, right]) = (cx.opt(6), self.band());
        let is_banded = left.is_some() || right.is_some();
        if !is_banded && lengths.is_none() && mask_end.is_none() {
            return Ok(());
        }
        let count = cx.size("all", keys, 2)?;
        let columns = cx.count_to("columns", count)?;
        let column = seen.operand(columns);
        let mut length = None;
        if let Some(lengths) = lengths {
            let lengths = cx.reshape("lengths", lengths, &[-1, 1, 1, 1])?;
            length = Some(seen.operand(lengths));
        }
        if is_banded {
            let count = cx.size("queries", q, 2)?;
            let rows = cx.count_to("rows", count)?;
            let rows = cx.unsqueeze("rows/apart", rows, &[1])?;
            let mut own = seen.operand(rows);
            if let Some(past) = past {
                let first = cx.size("first", past, 2)?;
                own = binary(Binary::Add, own, seen.operand(first));
            } else if let Some(length) = &length {
                let count = seen.operand(count);
                own = binary(Binary::Sub, binary(Binary::Add, own, length.clone()), count);
            }
            if let Some(left) = left {
                let first = binary(Binary::Sub, own.clone(), whole(left));
                seen.require(binary(Binary::GreaterOrEqual, column.clone(), first));
            }
            if let Some(right) = right {
                let last = binary(Binary::Add, own, whole(right));
                seen.require(binary(Binary::LessOrEqual, column.clone(), last));
            }
        }
        for end in length.into_iter().chain(mask_end.map(whole)) {
            seen.require(binary(Binary::Less, column.clone(), end));
        }
        Ok(())
    }

    /// True if not every query is known to see a key, of `all` keys.
    fn can_see_none(
        &self,
        cx: &Parts<'_, '_>,
        q: ValueId,
        all: &Dim,
        past: Option<ValueId>,
    ) -> OpResult<bool> {
        let before = past.map_or_else(|| Ok(Dim::from(0)), |past| length_of(cx, past))?;
        let own_is_a_key = all.sub(&before)? == length_of(cx, q)?;
        let [left, _] = self.band();
        Ok(cx.opt(3).is_some() || cx.opt(6).is_some() || left.is_some() && !own_is_a_key)
    }
}

/// Requires that `mask` does not hide a key by minus infinity; returns what it adds to scores of
/// type `dtype`.
fn require_mask(cx: &Parts<'_, '_>, seen: &mut Conditions, mask: ValueId, dtype: DType) -> OpResult<Expr> {
    let hidden = Expr::Const(f64::from(HIDDEN), dtype);
    let value = seen.operand(mask);
    if cx.fact(mask)?.dtype == DType::Bool {
        seen.require(value.clone());
        return Ok(select(value, Expr::Const(0.0, dtype), hidden));
    }
    let least = Expr::Const(f64::from(f32::MIN), DType::F32);
    let finite = binary(Binary::GreaterOrEqual, cast(DType::F32, value.clone()), least);
    seen.require(finite);
    Ok(binary(Binary::Max, cast(dtype, value), hidden))
}

/// 1 for each query that sees a key by `condition`, otherwise 0; the axis of keys has size 1.
fn sees_some(cx: &mut Parts<'_, '_>, condition: Expr, operands: &[ValueId]) -> OpResult<ValueId> {
    let one = select(condition, number(1.0), number(0.0));
    let each = cx.pointwise("seen", one, operands)?;
    let most = Reduce {
        kind: Kind::Max,
        axes: Some(vec![-1]),
        keep: true,
        noop_without_axes: false,
    };
    cx.node("some", most, &[Some(each)])
}

/// `mask` with `missing` more elements in its last axis, of any value.
fn lengthened(cx: &mut Parts<'_, '_>, mask: ValueId, missing: i64) -> OpResult<ValueId> {
    if missing == 0 {
        return Ok(mask);
    }
    let mut pads = vec![0; 2 * cx.fact(mask)?.shape.rank()];
    if let Some(end) = pads.last_mut() {
        *end = missing;
    }
    let pad = Pad {
        mode: Mode::Constant,
        pads: Some(pads),
        value: 0.0,
    };
    cx.node("mask", pad, &[Some(mask)])
}
