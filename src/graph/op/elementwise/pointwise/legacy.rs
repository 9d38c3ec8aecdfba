//! Broadcasting of the second operand as defined in opset 6.

use super::Pointwise;
use crate::graph::op::{InferCx, Inputs, Op, OpError, OpResult, operand};
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::HostTensor;

/// A binary function whose second operand has the axes of the first from `axis` on. The result has
/// the shape of the first operand.
#[derive(Clone, Debug, PartialEq)]
pub struct AxisBroadcast {
    pub op: Pointwise,
    /// The first operand's axis where the second one starts; negative values count from the end.
    pub axis: i64,
}

impl AxisBroadcast {
    /// The second operand's sizes, with trailing ones that align it.
    fn aligned<T: Clone>(&self, rank: usize, b: &[T], one: T) -> OpResult<Vec<T>> {
        let start = crate::graph::op::axis(self.axis, rank)?;
        let behind = rank
            .checked_sub(start + b.len())
            .ok_or_else(|| OpError::mismatch("ranks (the second from the axis on)", rank, b.len()))?;
        Ok(b.iter()
            .cloned()
            .chain(std::iter::repeat_n(one, behind))
            .collect())
    }
}

impl Op for AxisBroadcast {
    fn name(&self) -> &str {
        &self.op.name
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let (a, b) = (cx.fact(0)?, cx.fact(1)?);
        // A single element broadcasts to any shape.
        if !b.shape.0.iter().all(|d| d.is(1)) {
            let b = self.aligned(a.shape.rank(), &b.shape.0, Dim::from(1))?;
            for (x, y) in a
                .shape
                .0
                .iter()
                .rev()
                .zip(b.iter().rev())
                .filter(|(_, y)| !y.is(1))
            {
                cx.same("sizes of a broadcast axis", x, y)?;
            }
        }
        let dtype = self.op.expr.dtype(&[a.dtype, b.dtype])?;
        Ok(vec![Fact::new(dtype, Shape(a.shape.0.clone()))])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let (a, b) = (operand(inputs, 0)?, operand(inputs, 1)?);
        let shape = if b.len() == 1 {
            Vec::new()
        } else {
            self.aligned(a.shape().len(), b.shape(), 1)?
        };
        let b = b.reshape(&shape)?;
        self.op.eval(&[Some(a), Some(&b)])
    }
}

#[cfg(test)]
mod tests {
    use super::super::Binary;
    use super::*;
    use crate::shape::Constraints;
    use crate::tensor::DType;

    #[test]
    fn channels_from_an_axis() {
        let op = AxisBroadcast {
            op: Pointwise::binary("Add", Binary::Add),
            axis: 1,
        };
        let a = HostTensor::from_i64(&[1, 2, 2], &[1, 2, 3, 4]).unwrap();
        let b = HostTensor::from_i64(&[2], &[10, 20]).unwrap();
        assert_eq!(
            op.eval(&[Some(&a), Some(&b)]).unwrap()[0].to_i64().unwrap(),
            [11, 12, 23, 24]
        );
        let fact = |s: &[i64]| Fact::new(DType::F32, Shape(s.iter().map(|v| Dim::from(*v)).collect()));
        let constraints = Constraints::default();
        let infer = |a: &Fact, b: &Fact| op.infer(&InferCx::new(&[Some(a), Some(b)], &constraints));
        assert_eq!(infer(&fact(&[1, 2, 3]), &fact(&[2])).unwrap(), [fact(&[1, 2, 3])]);
        assert!(infer(&fact(&[1, 2, 3]), &fact(&[3])).is_err());
        assert!(infer(&fact(&[1, 2]), &fact(&[2, 1])).is_err());
    }
}
