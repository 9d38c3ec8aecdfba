//! Shape rules that several operators share.

use crate::graph::op::{OpError, OpResult};
use crate::shape::{Dim, Shape};

/// Requires two sizes to be equal and returns one of them:
/// [`InferCx::same`](crate::graph::op::InferCx::same) during shape derivation, [`equal`] for
/// constant sizes.
pub type Same<'a> = &'a dyn Fn(&'static str, &Dim, &Dim) -> OpResult<Dim>;

/// [`Same`] for sizes that must be identical expressions.
pub fn equal(what: &'static str, a: &Dim, b: &Dim) -> OpResult<Dim> {
    if a == b {
        Ok(a.clone())
    } else {
        Err(OpError::mismatch(what, a, b))
    }
}

/// A shape without its leading axes of size 1, which do not matter for broadcasting.
pub fn without_leading_ones(mut shape: &[Dim]) -> &[Dim] {
    while let Some((_, rest)) = shape.split_first().filter(|(d, _)| d.is(1)) {
        shape = rest;
    }
    shape
}

/// One axis under multidirectional broadcasting (ONNX "Broadcasting", NumPy rules). If neither size
/// is the number 1, they must be equal.
pub fn broadcast_dim(a: &Dim, b: &Dim, same: Same<'_>) -> OpResult<Dim> {
    if b.is(1) {
        Ok(a.clone())
    } else if a.is(1) {
        Ok(b.clone())
    } else {
        same("sizes of a broadcast axis", a, b)
    }
}

/// Two shapes under multidirectional broadcasting.
pub fn broadcast(a: &[Dim], b: &[Dim], same: Same<'_>) -> OpResult<Shape> {
    let rank = a.len().max(b.len());
    let one = Dim::from(1);
    let at = |s: &[Dim], i: usize| {
        (i + s.len())
            .checked_sub(rank)
            .and_then(|j| s.get(j))
            .unwrap_or(&one)
            .clone()
    };
    Ok(Shape(
        (0..rank)
            .map(|i| broadcast_dim(&at(a, i), &at(b, i), same))
            .collect::<OpResult<_>>()?,
    ))
}

/// Result shape of a matmul with broadcast leading axes. `trans_b` swaps the last two axes of `b`.
/// A 1-D operand is a row on the left or a column on the right; its axis is dropped from the
/// result.
pub fn matmul(a: &Shape, b: &Shape, trans_b: bool, same: Same<'_>) -> OpResult<Shape> {
    let ranks = || OpError::mismatch("ranks of matmul operands (each at least 1)", a, b);
    let (batch_a, m, k) = match a.0.as_slice() {
        [] => return Err(ranks()),
        [k] => (&[] as &[Dim], None, k),
        [batch @ .., m, k] => (batch, Some(m), k),
    };
    let (batch_b, kb, n) = match b.0.as_slice() {
        [] => return Err(ranks()),
        [k] => (&[] as &[Dim], k, None),
        [batch @ .., n, k] if trans_b => (batch, k, Some(n)),
        [batch @ .., k, n] => (batch, k, Some(n)),
    };
    same("inner dimensions", k, kb)?;
    let mut out = broadcast(batch_a, batch_b, same)?;
    out.0.extend(m.into_iter().chain(n).cloned());
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(text: &str) -> Shape {
        Shape(text.split(',').map(|d| Dim::parse(d).unwrap()).collect())
    }

    #[test]
    fn broadcasting() {
        assert_eq!(broadcast(&s("b,1,n").0, &s("4,n").0, &equal).unwrap(), s("b,4,n"));
        assert_eq!(broadcast(&s("1").0, &s("n").0, &equal).unwrap(), s("n"));
        assert!(broadcast(&s("2").0, &s("3").0, &equal).is_err());
        assert!(
            broadcast(&s("n").0, &s("m").0, &equal).is_err(),
            "undecided sizes are refused"
        );
    }

    #[test]
    fn products() {
        assert_eq!(
            matmul(&s("b,9,n,64"), &s("1,64,t"), false, &equal).unwrap(),
            s("b,9,n,t")
        );
        assert_eq!(matmul(&s("n,64"), &s("t,64"), true, &equal).unwrap(), s("n,t"));
        let e = matmul(&s("1,8,seq,64"), &s("1,8,80,t"), false, &equal).unwrap_err();
        let sides = matches!(&e, OpError::Mismatch { left, right, .. } if (left.as_str(), right.as_str()) == ("64", "80"));
        assert!(sides, "{e}");
        assert_eq!(matmul(&s("4"), &s("b,4,n"), false, &equal).unwrap(), s("b,n"));
        assert_eq!(matmul(&s("b,m,4"), &s("4"), false, &equal).unwrap(), s("b,m"));
        assert_eq!(matmul(&s("4"), &s("4"), false, &equal).unwrap().rank(), 0);
        assert!(matmul(&Shape::default(), &s("4,4"), false, &equal).is_err());
    }
}
