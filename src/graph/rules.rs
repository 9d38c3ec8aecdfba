//! Shape rules that several operators share.

use crate::graph::op::{OpError, OpResult};
use crate::shape::{Dim, Shape};

/// One axis under multidirectional broadcasting (ONNX "Broadcasting", NumPy rules). Two sizes of which neither
/// is 1 must be provably equal.
pub fn broadcast_dim(a: &Dim, b: &Dim) -> OpResult<Dim> {
    if a == b || b.is(1) {
        Ok(a.clone())
    } else if a.is(1) {
        Ok(b.clone())
    } else {
        Err(OpError::mismatch("broadcast sizes", a, b))
    }
}

/// Two shapes under multidirectional broadcasting.
pub fn broadcast(a: &[Dim], b: &[Dim]) -> OpResult<Shape> {
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
            .map(|i| broadcast_dim(&at(a, i), &at(b, i)))
            .collect::<OpResult<_>>()?,
    ))
}

/// Result shape of a matrix product with broadcast leading axes. `trans_b` swaps the last two axes of `b`.
/// One-dimensional operands are not promoted.
pub fn matmul(a: &Shape, b: &Shape, trans_b: bool) -> OpResult<Shape> {
    let ([batch_a @ .., m, k], [batch_b @ .., b0, b1]) = (a.0.as_slice(), b.0.as_slice()) else {
        return Err(OpError::mismatch(
            "ranks of a matrix product (each at least 2)",
            a,
            b,
        ));
    };
    let (kb, n) = if trans_b { (b1, b0) } else { (b0, b1) };
    if k != kb {
        return Err(OpError::mismatch("inner dims", k, kb));
    }
    let mut out = broadcast(batch_a, batch_b)?;
    out.0.extend([m.clone(), n.clone()]);
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
        assert_eq!(broadcast(&s("b,1,n").0, &s("4,n").0).unwrap(), s("b,4,n"));
        assert_eq!(broadcast(&s("1").0, &s("n").0).unwrap(), s("n"));
        assert!(broadcast(&s("2").0, &s("3").0).is_err());
        assert!(
            broadcast(&s("n").0, &s("m").0).is_err(),
            "undecided sizes are refused"
        );
    }

    #[test]
    fn products() {
        assert_eq!(matmul(&s("b,9,n,64"), &s("1,64,t"), false).unwrap(), s("b,9,n,t"));
        assert_eq!(matmul(&s("n,64"), &s("t,64"), true).unwrap(), s("n,t"));
        let e = matmul(&s("1,8,seq,64"), &s("1,8,80,t"), false).unwrap_err();
        assert_eq!(e.to_string(), "inner dims differ: 64 (left) and 80 (right)");
        assert!(matmul(&s("4"), &s("4,4"), false).is_err());
    }
}
