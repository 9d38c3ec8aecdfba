//! Indices that kernels read. As on the host, a run fails if an index is outside its axis.
//!
//! The device checks nothing if bounds prove that all indices are inside. Indices from the caller
//! are checked when they are written.

use super::{OpResult, as_usize, pointwise};
use crate::graph::bounds::Bounds;
use crate::kernels::check_indices::{Args, KERNEL};
use crate::lower::{Call, LowerCx, Operand};
use crate::num;
use crate::shape::Dim;

/// Operand `i`, whose elements are indices of axes with these sizes, as 32-bit integers for
/// kernels. Adds a check unless bounds make it unnecessary. Negative indices count from the end. If
/// there are several sizes, the last axis of the operand has one index for each.
pub(super) fn checked(cx: &mut LowerCx<'_>, i: usize, sizes: &[Dim]) -> OpResult<Operand> {
    let x = pointwise::index(cx, i)?;
    let bounds = cx.bounds(i)?;
    let inside = |n: &Dim| {
        let n = as_usize(n).map(|n| Bounds::indices(num::signed(n).into()));
        n.zip(bounds).is_some_and(|(n, bounds)| bounds.within(n))
    };
    if sizes.iter().all(inside) {
        return Ok(x);
    }
    let count = cx.shape(i)?.count()?;
    let size = |i: usize| sizes.get(i).cloned().unwrap_or_else(|| 1.into());
    let [n0, n1, n2, n3] = std::array::from_fn(size);
    let list: Vec<String> = sizes.iter().map(ToString::to_string).collect();
    let axes = if list.len() == 1 { "an axis" } else { "axes" };
    let expected = format!("indices of {axes} of {} elements", list.join(", "));
    let (fault, code) = cx.fault(i, &expected)?;
    let args = Args {
        x,
        fault,
        count: count.clone(),
        columns: Dim::from_usize(sizes.len().max(1)),
        n0,
        n1,
        n2,
        n3,
        code,
    };
    cx.emit(Call::new(&KERNEL, 64).grid(count.ceil_div(64)?, 1, 1), args)?;
    Ok(x)
}
