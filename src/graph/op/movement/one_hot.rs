//! Adds an axis with one value at each index and another value elsewhere. ONNX `OneHot` from opset
//! 9.
//!
//! Operands: indices, depth, and the values off and on. Indices outside -depth to depth - 1 select
//! nothing.

use crate::graph::ValueId;
use crate::graph::op::case::{Case, constant, input};
use crate::graph::op::gather::Gather;
use crate::graph::op::parts::Parts;
use crate::graph::op::pointwise::import::{binary, cast, input as arg, select};
use crate::graph::op::pointwise::{Binary, Expr};
use crate::graph::op::types::Types;
use crate::graph::op::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, axis, onnx, operand};
use crate::num;
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::{DType, HostTensor};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OneHot {
    /// Position of the new axis in the result; negative values count from the end.
    pub axis: i64,
}

/// Maximum depth that is decomposed; more places would be a large constant.
const MAX_PLACES: usize = 1 << 20;

/// A numeric tensor as integers; fractions are truncated.
fn whole(x: &HostTensor) -> OpResult<Vec<i128>> {
    #[expect(clippy::cast_possible_truncation, reason = "as the operator is defined")]
    if x.dtype().is_float() {
        return Ok(x.to_f64()?.iter().map(|v| *v as i128).collect());
    }
    Ok(x.to_i128()?)
}

fn depth(x: &HostTensor) -> OpResult<usize> {
    match whole(x)?.as_slice() {
        [d] => usize::try_from(*d).map_err(|_| OpError::expected("depth", "0 or more", d)),
        list => Err(OpError::expected(
            "depth",
            "one number",
            format!("{} numbers", list.len()),
        )),
    }
}

impl Op for OneHot {
    fn name(&self) -> &str {
        "OneHot"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let (index, count) = (cx.typed(0, Types::NUMBER)?, cx.typed(1, Types::NUMBER)?);
        let values = cx.fact(2)?;
        let a = axis(self.axis, index.shape.rank() + 1)?;
        let size = match count.as_const() {
            Some(tensor) => Dim::from_usize(depth(tensor)?),
            None if count.dtype.is_int() => match cx.sizes(1)?.as_slice() {
                [one] => one.clone(),
                list => {
                    return Err(OpError::expected(
                        "depth",
                        "one number",
                        format!("{} numbers", list.len()),
                    ));
                }
            },
            None => cx.unknown(0, a, None),
        };
        let mut shape = index.shape.0.clone();
        shape.insert(a, size);
        Ok(vec![Fact::new(values.dtype, Shape(shape))])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let (index, values) = (operand(inputs, 0)?, operand(inputs, 2)?);
        let depth = depth(operand(inputs, 1)?)?;
        let a = axis(self.axis, index.shape().len() + 1)?;
        if values.len() != 2 {
            return Err(OpError::expected(
                "values",
                "two numbers (off and on)",
                format!("{values:?}"),
            ));
        }
        let (off, on) = values.bytes()?.split_at(values.dtype().size());
        let mut shape = index.shape().to_vec();
        shape.insert(a, depth);
        let (outer, _, inner) = crate::graph::op::around(&shape, a)?;
        let size = i128::from(num::signed(depth));
        let hot: Vec<i128> = whole(index)?
            .into_iter()
            .map(|i| if i < 0 { i.saturating_add(size) } else { i })
            .collect();
        let mut out: Vec<u8> =
            crate::graph::op::room(&[crate::graph::op::count(&shape)?, values.dtype().size()])?;
        for (o, d, i) in
            (0..outer).flat_map(|o| (0..size).flat_map(move |d| (0..inner).map(move |i| (o, d, i))))
        {
            out.extend_from_slice(if hot.get(o * inner + i) == Some(&d) {
                on
            } else {
                off
            });
        }
        Ok(vec![HostTensor::from_bytes(values.dtype(), &shape, &out)?])
    }

    fn parts(&self, cx: &mut Parts<'_, '_>) -> OpResult<Option<Vec<ValueId>>> {
        let (index, values) = (cx.input(0)?, cx.input(2)?);
        let fact = cx.fact(index)?;
        let Some(depth) = cx.fact(cx.input(1)?)?.as_const().map(|t| depth(t)).transpose()? else {
            return Ok(None);
        };
        if depth > MAX_PLACES {
            return Ok(None);
        }
        let rank = fact.shape.rank() + 1;
        let a = axis(self.axis, rank)?;
        let size = num::signed(depth);
        let mut shape = vec![1; rank];
        if let Some(n) = shape.get_mut(a) {
            *n = depth;
        }
        let places: Vec<i64> = (0..size).collect();
        let places = cx.constant("places", HostTensor::from_ints(DType::I64, &shape, &places)?);
        // As `i64`, the largest `u64` would count from the end.
        #[expect(clippy::cast_precision_loss, reason = "an integer constant")]
        let within = match fact.dtype {
            DType::U64 => binary(Binary::Min, arg(0), Expr::Const(size as f64, DType::U64)),
            _ => arg(0),
        };
        let index = cx.pointwise("index", cast(DType::I64, within), &[index])?;
        let index = cx.unsqueeze("lines", index, &[num::signed(a)])?;
        let mut ends = Vec::new();
        for (i, name) in [(0, "off"), (1, "on")] {
            let at = cx.constant(&format!("{name}/at"), HostTensor::from_i64(&[], &[i])?);
            ends.push(cx.node(name, Gather { axis: 0 }, &[Some(values), Some(at)])?);
        }
        let [off, on] = <[ValueId; 2]>::try_from(ends).unwrap_or([values; 2]);
        #[expect(clippy::cast_precision_loss, reason = "an integer constant")]
        let count = Expr::Const(size as f64, DType::I64);
        // Places are few, so their differences need no more bits.
        let is_at = |place| binary(Binary::Equal, arg(0), place);
        let from_end = binary(Binary::Sub, arg(1), count);
        let hot = binary(Binary::Or, is_at(arg(1)), is_at(from_end));
        let y = cx.pointwise("hot", select(hot, arg(2), arg(3)), &[index, places, on, off])?;
        Ok(Some(vec![y]))
    }

    fn decides(&self, input: usize) -> bool {
        input == 1
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    Ok(Box::new(OneHot {
        axis: a.int("axis")?.unwrap_or(-1),
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("OneHot", 9, 3)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let values = HostTensor::from_f32(&[2], &[0.0, 1.0]).map(constant);
    let case = |axis| {
        let inputs = vec![
            input(&[2, 3]).ints(-6, 6),
            input(&[]).values(&[5]).constant(),
            values.clone().ok()?,
        ];
        Some(Case::new(OneHot { axis }, inputs))
    };
    [case(-1), case(1)].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_out_of_range_select_nothing() {
        let values = HostTensor::from_floats(DType::BF16, &[2], &[1.0, 3.0]).unwrap();
        let index = HostTensor::from_i64(&[4], &[2, 3, -1, -4]).unwrap();
        let depth = HostTensor::from_f32(&[], &[3.0]).unwrap();
        let op = OneHot { axis: -1 };
        let y = op
            .eval(&[Some(&index), Some(&depth), Some(&values)])
            .unwrap()
            .remove(0);
        let rows = [1., 1., 3., 1., 1., 1., 1., 1., 3., 1., 1., 1.];
        assert_eq!(y, HostTensor::from_floats(DType::BF16, &[4, 3], &rows).unwrap());
    }
}
