//! Shape inference of reductions over small symbolic integers.

use super::Kind;
use crate::graph::op::pointwise::{Binary, arithmetic};
use crate::graph::op::{InferCx, as_usize, offset_lists};
use crate::shape::{Dim, Fact, MAX_KNOWN, Shape};

/// All elements of the reduction of `x` over `axes`, row-major, if all elements of `x` are known.
pub(super) fn known(kind: Kind, cx: &InferCx<'_>, x: &Fact, axes: &[usize]) -> Option<Vec<Dim>> {
    let join = match kind {
        Kind::Sum => Binary::Add,
        Kind::Prod => Binary::Mul,
        Kind::Max => Binary::Max,
        Kind::Min => Binary::Min,
        _ => return None,
    };
    let (elements, shape) = (x.as_dims()?, x.shape.as_fixed()?);
    let results = Shape(
        shape
            .iter()
            .enumerate()
            .filter(|(i, _)| !axes.contains(i))
            .map(|(_, n)| Dim::from_usize(*n))
            .collect(),
    );
    if as_usize(&results.count().ok()?)? > MAX_KNOWN {
        return None;
    }
    let [outer, inner] = offset_lists(&shape, axes).ok()?;
    let of = |base: &usize| {
        let mut all = inner.iter().map(|i| elements.get(base + i));
        let Some(first) = all.next() else {
            return match kind {
                Kind::Sum => Some(0.into()),
                Kind::Prod => Some(1.into()),
                _ => None,
            };
        };
        all.try_fold(first?.clone(), |sum, next| {
            arithmetic(cx.constraints(), join, &sum, next?)
        })
    };
    outer.iter().map(of).collect()
}
