//! Reductions of small integers that derivation knows as expressions of symbols.

use super::Kind;
use crate::graph::op::pointwise::{Binary, arithmetic};
use crate::graph::op::{InferCx, strides};
use crate::shape::{Dim, Fact, MAX_KNOWN};

/// Every element of the reduction of `x` over `axes`, row-major, when all elements of `x` are known.
pub(super) fn known(kind: Kind, cx: &InferCx<'_>, x: &Fact, axes: &[usize]) -> Option<Vec<Dim>> {
    let join = match kind {
        Kind::Sum => Binary::Add,
        Kind::Prod => Binary::Mul,
        Kind::Max => Binary::Max,
        Kind::Min => Binary::Min,
        _ => return None,
    };
    let (elements, shape) = (x.as_dims()?, x.shape.as_fixed()?);
    let (mut outer, mut inner) = (vec![0usize], vec![0usize]);
    for (i, (n, step)) in shape.iter().zip(strides(&shape)).enumerate() {
        let target = if axes.contains(&i) { &mut inner } else { &mut outer };
        *target = target.iter().flat_map(|base| (0..*n).map(move |j| base + j * step)).collect();
        if target.len() > MAX_KNOWN {
            return None;
        }
    }
    let of = |base: &usize| {
        let mut all = inner.iter().map(|i| elements.get(base + i));
        let Some(first) = all.next() else {
            return match kind {
                Kind::Sum => Some(0.into()),
                Kind::Prod => Some(1.into()),
                _ => None,
            };
        };
        all.try_fold(first?.clone(), |sum, next| arithmetic(cx.constraints(), join, &sum, next?))
    };
    outer.iter().map(of).collect()
}
