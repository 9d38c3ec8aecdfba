//! Appends rows to a state in place (own domain, made by the pass `kv_cache`; paper, section 2.3
//! "KV cache copy optimization": the in-place operator that replaces the concatenation).
//!
//! Operands: the state `[1, past, ..]` and new rows `[1, n, ..]`. The result is the state with
//! `past + n` rows, in the same memory. The write offset is read from the per-step state buffer, so
//! nothing else changes from token to token. In a state with a window ([`LowerCx::ring`]) a new row
//! may overwrite one that is no longer read.
//!
//! A state with 8-bit rows ([`super::kv_append_q8`]) stores the new float rows in that form.
//!
//! A third operand, `places`, integers `[n]`, scatters the rows instead: row i becomes row
//! `places[i]` of the state, which keeps its size; a row with a negative place is dropped. Places
//! must be distinct.

use crate::graph::op::case::{Case, given, input};
use crate::graph::op::kv_append_q8::{self as q8, is_q8};
use crate::graph::op::sizes::Sizes;
use crate::graph::op::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, concat::Concat, operand, own,
};
use crate::kernels::kv_append::{Args, KERNEL, RING};
use crate::kernels::kv_append_q8;
use crate::kernels::kv_append_q8::DIM;
use crate::lower::{Call, Location, LowerCx, Operand};
use crate::num;
use crate::shape::{Dim, Fact, product};
use crate::tensor::{DType, HostTensor};

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
        let (state, new) = (cx.fact(0)?, cx.fact(1)?);
        let rows = match is_q8(state.dtype, new.dtype) {
            true => q8::encoded_fact(new)?,
            false => new.clone(),
        };
        // Also checks the sizes of the other axes.
        let all = cx.of(&self.as_concat(), &[Some(state), Some(&rows)])?;
        match cx.opt(2) {
            None => Ok(all),
            Some(places) => {
                check_places(places, new.shape.0.get(self.axis))?;
                Ok(vec![Fact::new(state.dtype, state.shape.clone())])
            }
        }
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let (state, new) = (operand(inputs, 0)?, operand(inputs, 1)?);
        let encoded;
        let mut rows = new;
        if is_q8(state.dtype(), new.dtype()) {
            encoded = q8::encoded(new)?;
            rows = &encoded;
        }
        let Some(places) = inputs.get(2).copied().flatten() else {
            return self.as_concat().eval(&[Some(state), Some(rows)]);
        };
        let data = scattered(state, rows.bytes()?, places, self.axis)?;
        Ok(vec![HostTensor::from_bytes(state.dtype(), state.shape(), &data)?])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let (state, new) = (cx.shape(0)?, cx.shape(1)?);
        let target = cx.output(0)?;
        if !matches!(target.location, Location::State(_)) {
            return Err(OpError::expected("result", "a state", "an activation"));
        }
        let q8 = is_q8(cx.fact(0)?.dtype, cx.fact(1)?.dtype);
        let row = product(&state.0[self.axis + 1..])?;
        if !product(&state.0[..self.axis])?.is(1) || !q8 && row.exact_div(&2.into()).is_none() {
            return Err(OpError::Unsupported(format!(
                "appending to {state} along axis {} (rows must be contiguous and of even length)",
                self.axis
            )));
        }
        let (past, rows) = (&state.0[self.axis], &new.0[self.axis]);
        if q8 {
            let (Some(dim), Some(heads)) = (new.0.last().and_then(Dim::as_const), new.0.get(self.axis + 1))
            else {
                return Err(OpError::Unsupported(format!(
                    "appending {new} in 8 bits (the row size is not constant)"
                )));
            };
            let (places, live, start) = destination(cx, 2, &past.mul(heads)?)?;
            let call = Call::new(&kv_append_q8::KERNEL, q8::ITEMS).define(DIM, dim);
            let call = wrapping(cx, call, [past, rows, heads], places)?;
            let rows = rows.mul(heads)?;
            let args = kv_append_q8::Args {
                x: cx.input(1)?,
                places,
                live,
                state: target,
                rows: rows.clone(),
                start,
                heads: heads.clone(),
            };
            return cx.emit(call.grid(rows, 1, 1), args);
        }
        let count = new.count()?;
        let (places, live, start) = destination(cx, 2, &past.mul(&row)?)?;
        let call = wrapping(cx, Call::new(&KERNEL, 64), [past, rows, &row], places)?;
        let args = Args {
            x: cx.input(1)?,
            places,
            live,
            row,
            state: target,
            count: count.clone(),
            start,
        };
        cx.emit(call.grid(count.ceil_div(2 * 64)?, 1, 1), args)
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        let [state, new] = [0, 1].map(|i| sizes.input(i).iter().skip(self.axis + 1));
        match state.eq(new) {
            true => 0,
            // In 8 bits, per element: the maximum, a division and a rounding.
            false => sizes.input_elements(1).saturating_mul(3),
        }
    }

    fn elements_read(&self, input: usize, sizes: &Sizes) -> u64 {
        if input == 0 {
            0
        } else {
            sizes.input_elements(input)
        }
    }
}

/// Checks places for `rows` rows.
fn check_places(places: &Fact, rows: Option<&Dim>) -> OpResult<()> {
    if places.dtype.is_int() && places.shape.0.as_slice() == rows.map_or(&[][..], std::slice::from_ref) {
        return Ok(());
    }
    Err(OpError::expected(
        "places",
        "integers, one for each new row",
        places,
    ))
}

/// Where new rows go: operand `i` with places, if there is one; else after the first `past`
/// elements or rows, with the table that holds this number and its position there.
pub(crate) fn destination(
    cx: &mut LowerCx<'_>,
    i: usize,
    past: &Dim,
) -> OpResult<(Option<Operand>, Operand, Dim)> {
    let places = if cx.has(i) { Some(cx.input(i)?) } else { None };
    let start = if places.is_some() { 0.into() } else { past.clone() };
    let (live, start) = cx.live(&start);
    Ok((places, live, start))
}

/// The bytes of a state whose rows along `axis` are replaced by those of `new` at their places.
fn scattered(state: &HostTensor, new: &[u8], places: &HostTensor, axis: usize) -> OpResult<Vec<u8>> {
    let rows = *num::at(state.shape(), axis)?;
    let mut data = state.bytes()?.to_vec();
    let row = data.len().checked_div(rows).unwrap_or(0);
    for (place, from) in places.to_i64()?.iter().zip(new.chunks_exact(row.max(1))) {
        let Ok(place) = usize::try_from(*place) else {
            continue;
        };
        let to = place
            .checked_mul(row)
            .and_then(|at| data.get_mut(at..at.checked_add(row)?));
        let to = to.ok_or_else(|| OpError::expected("a place", format!("less than {rows}"), place))?;
        to.copy_from_slice(from);
    }
    Ok(data)
}

/// Sets the ring capacity of the state in operand 0, in units of which a row has `unit`, if a run
/// may append beyond it. Rows beyond the capacity wrap to the start. Declares that padding is
/// harmless.
fn wrapping<A>(
    cx: &LowerCx<'_>,
    call: Call<A>,
    [past, new, unit]: [&Dim; 3],
    places: Option<Operand>,
) -> OpResult<Call<A>> {
    let call = call.may_be_padded();
    let most = cx.upper_bound(&past.add(new)?);
    let Some(rows) = cx.ring(0)?.filter(|n| most.is_none_or(|most| most > *n)) else {
        return Ok(call);
    };
    let Some(capacity) = unit.as_const().and_then(|unit| rows.checked_mul(unit)) else {
        return Err(OpError::Unsupported(format!(
            "a window of a cache whose row size {unit} is not constant"
        )));
    };
    Ok(match places {
        None => call.define(RING, capacity),
        Some(_) => call,
    })
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let axis = a.int("axis")?.and_then(|v| usize::try_from(v).ok());
    Ok(Box::new(KvAppend {
        axis: axis.ok_or_else(|| OpError::expected("attribute `axis`", "0 or more", "nothing"))?,
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[own("KvAppend", 3)],
    import,
    kernels: &[&KERNEL.kernel, &kv_append_q8::KERNEL.kernel],
    cases,
};

fn cases() -> Vec<Case> {
    let op = KvAppend { axis: 1 };
    let float = Some(input(&[1, 5, 3, 64]));
    let q8 = HostTensor::zeros(DType::I32, &[1, 5, 3, 17]).ok().map(given);
    let places = HostTensor::from_ints(DType::I32, &[3], &[4, -1, 0]);
    let places = places.ok().map(given);
    let cases = [float, q8].into_iter().flatten().flat_map(|state| {
        let appended = Case::new(op.clone(), vec![state.clone(), input(&[1, 2, 3, 64])]);
        let scattered = |places| vec![state.clone(), input(&[1, 3, 3, 64]), places];
        let scattered = places
            .clone()
            .map(|places| Case::new(op.clone(), scattered(places)));
        std::iter::once(appended).chain(scattered)
    });
    cases
        .map(|c| c.host_only("needs a state; the model tests append on every device"))
        .collect()
}
