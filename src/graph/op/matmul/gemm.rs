//! General matrix multiplication with scaling and bias: `alpha * a * b + beta * c`.
//!
//! ONNX `Gemm` from opset 6 (attribute `broadcast`, implied by the shapes), 7 (`c` broadcasts to
//! the result) and 11 (`c` is optional).

use crate::graph::op::case::{Case, input};
use crate::graph::op::conv::floats;
use crate::graph::op::conv_transpose::transposed;
use crate::graph::op::sizes::Sizes;
use crate::graph::op::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, onnx, operand, pointwise};
use crate::shape::{Fact, Shape};
use crate::tensor::{HostTensor, product};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gemm {
    /// Scale of the matmul.
    pub alpha: f32,
    /// Scale of the bias.
    pub beta: f32,
    /// `a` is stored `[k, m]`.
    pub trans_a: bool,
    /// `b` is stored `[n, k]`.
    pub trans_b: bool,
}

/// Rows and columns of a matrix after its optional transpose.
fn matrix<'a, T>(what: &str, shape: &'a [T], transposed: bool) -> OpResult<(&'a T, &'a T)> {
    match shape {
        [a, b] if transposed => Ok((b, a)),
        [a, b] => Ok((a, b)),
        _ => Err(OpError::expected(format!("rank of {what}"), 2, shape.len())),
    }
}

impl Op for Gemm {
    fn name(&self) -> &str {
        "Gemm"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let dtype = floats(cx)?;
        let (m, k) = matrix("input 0", &cx.fact(0)?.shape.0, self.trans_a)?;
        let (k_b, n) = matrix("input 1", &cx.fact(1)?.shape.0, self.trans_b)?;
        cx.same("inner dimensions", k, k_b)?;
        let out = [m.clone(), n.clone()];
        if let Some(c) = cx.opt(2) {
            if c.shape.rank() > 2 {
                return Err(OpError::expected("rank of the bias", "at most 2", c.shape.rank()));
            }
            // The bias broadcasts to the result, never the reverse.
            for (size, have) in out
                .iter()
                .rev()
                .zip(c.shape.0.iter().rev())
                .filter(|(_, have)| !have.is(1))
            {
                cx.same("sizes of result and bias", size, have)?;
            }
        }
        Ok(vec![Fact::new(dtype, Shape(out.to_vec()))])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let (a, b) = (operand(inputs, 0)?, operand(inputs, 1)?);
        let ((m, k), (k_b, n)) = (
            matrix("input 0", a.shape(), self.trans_a)?,
            matrix("input 1", b.shape(), self.trans_b)?,
        );
        if k != k_b {
            return Err(OpError::mismatch("inner dimensions", k, k_b));
        }
        let (da, db) = (a.to_f32()?, b.to_f32()?);
        let transposed = if self.trans_a {
            Some(transposed(&da, *k, *m))
        } else {
            None
        };
        let mut y = crate::graph::op::filled(&[*m, *n], 0f32)?;
        product::gemm(
            *m,
            *n,
            *k,
            transposed.as_deref().unwrap_or(&da),
            &db,
            self.trans_b,
            &mut y,
        )?;
        if self.alpha != 1.0 {
            y.iter_mut().for_each(|v| *v *= self.alpha);
        }
        if let Some(c) = inputs.get(2).copied().flatten() {
            let c = pointwise::broadcast_to(c, &[*m, *n])?;
            for (y, c) in y.iter_mut().zip(c.to_f32()?.iter()) {
                *y += self.beta * c;
            }
        }
        Ok(vec![HostTensor::from_floats(a.dtype(), &[*m, *n], &y)?])
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        let [first, .., last] = sizes.input(0) else {
            return sizes.results();
        };
        sizes.multiply_adds(if self.trans_a { *first } else { *last })
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let flag = |name| Ok::<_, OpError>(a.int(name)?.unwrap_or(0) != 0);
    flag("broadcast")?;
    Ok(Box::new(Gemm {
        alpha: a.float("alpha")?.unwrap_or(1.0),
        beta: a.float("beta")?.unwrap_or(1.0),
        trans_a: flag("transA")?,
        trans_b: flag("transB")?,
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("Gemm", 6, 3)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let case = |trans_a, trans_b, shapes: &[&[usize]]| {
        let op = Gemm {
            alpha: 0.5,
            beta: 2.0,
            trans_a,
            trans_b,
        };
        Case::new(op, shapes.iter().map(|s| input(s)).collect()).host_only("no kernel yet")
    };
    vec![
        case(false, false, &[&[5, 7], &[7, 9], &[9]]),
        case(true, false, &[&[7, 5], &[7, 9], &[5, 1]]),
        case(false, true, &[&[1, 33], &[10, 33], &[]]),
        case(true, true, &[&[6, 4], &[3, 6]]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Constraints;
    use crate::shape::Dim;
    use crate::tensor::DType;

    #[test]
    fn values_and_refusals() {
        let t = |shape: &[usize], v: &[f32]| HostTensor::from_f32(shape, v).unwrap();
        let op = Gemm {
            alpha: 2.0,
            beta: -1.0,
            trans_a: true,
            trans_b: false,
        };
        let (a, b, c) = (
            t(&[2, 1], &[1.0, 2.0]),
            t(&[2, 2], &[1.0, 2.0, 3.0, 4.0]),
            t(&[2], &[5.0, 6.0]),
        );
        let y = op.eval(&[Some(&a), Some(&b), Some(&c)]).unwrap();
        assert_eq!(y[0].to_f32().unwrap().as_ref(), &[9.0, 14.0]);
        let fact = |sizes: &[&str]| {
            Fact::new(
                DType::F32,
                Shape(sizes.iter().map(|s| Dim::parse(s).unwrap()).collect()),
            )
        };
        let (a, b, c) = (fact(&["n", "4"]), fact(&["4", "3"]), fact(&["2", "3"]));
        let constraints = Constraints::default();
        let plain = Gemm { trans_a: false, ..op };
        assert!(
            plain
                .infer(&InferCx::new(&[Some(&b), Some(&b)], &constraints))
                .is_err(),
            "3 is not 4"
        );
        assert_eq!(
            plain
                .infer(&InferCx::new(&[Some(&a), Some(&b)], &constraints))
                .unwrap()[0]
                .shape,
            fact(&["n", "3"]).shape
        );
        let inputs = [Some(&a), Some(&b), Some(&c)];
        let cx = InferCx::new(&inputs, &constraints);
        plain.infer(&cx).unwrap();
        assert_eq!(cx.finish().1.len(), 1, "n must be 2");
    }
}
