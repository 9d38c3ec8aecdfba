//! Cumulative sums or products along an axis.
//!
//! ONNX `CumSum` from opset 11 and `CumProd` from 26. The axis is operand 1.

use crate::graph::bounds::{Bounds, BoundsCx};
use crate::graph::op::case::{Case, input};
use crate::graph::op::types::Types;
use crate::graph::op::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, around, axis, one_int, onnx, operand, reduce,
    split_at,
};
use crate::kernels::cumulative::{Args, EXCLUSIVE, KERNEL, REVERSE};
use crate::lower::{Call, LowerCx};
use crate::shape::{Dim, Fact, Known};
use crate::tensor::HostTensor;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cumulative {
    /// Products instead of sums.
    pub product: bool,
    /// Exclude the element itself.
    pub exclusive: bool,
    /// Accumulate from the end.
    pub reverse: bool,
}

impl Cumulative {
    /// `data` of `shape` accumulated along axis `a`; `None` as soon as `join` returns `None`.
    fn run<T: Clone>(
        &self,
        data: &[T],
        shape: &[usize],
        a: usize,
        first: &T,
        join: impl Fn(&T, &T) -> Option<T>,
    ) -> OpResult<Option<Vec<T>>> {
        let (outer, n, inner) = around(shape, a)?;
        let mut out = data.to_vec();
        for (o, i) in (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))) {
            let mut sum = first.clone();
            for step in 0..n {
                let j = if self.reverse { n - 1 - step } else { step };
                let Some(slot) = out.get_mut((o * n + j) * inner + i) else {
                    return Ok(None);
                };
                let Some(next) = join(&sum, slot) else {
                    return Ok(None);
                };
                *slot = if self.exclusive { sum } else { next.clone() };
                sum = next;
            }
        }
        Ok(Some(out))
    }
}

impl Op for Cumulative {
    fn name(&self) -> &str {
        if self.product { "CumProd" } else { "CumSum" }
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.typed(0, Types::SUM)?;
        cx.typed_if_given(1, Types::INTEGER)?;
        let mut fact = Fact::new(x.dtype, x.shape.clone());
        if let (Some(dims), Some(shape)) = (x.as_dims(), x.shape.as_fixed())
            && let Some([a]) = cx.opt(1).and_then(Fact::as_dims).as_deref()
            && let Some(a) = a.as_const()
        {
            let join = |a: &Dim, b: &Dim| {
                if self.product {
                    a.mul(b).ok()
                } else {
                    a.add(b).ok()
                }
            };
            let first = Dim::from(i64::from(self.product));
            if let Some(all) = self.run(&dims, &shape, axis(a, shape.len())?, &first, join)? {
                fact.known = Known::Dims(all);
            }
        }
        Ok(vec![fact])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let a = axis(one_int(operand(inputs, 1)?, "axis")?, x.shape().len())?;
        if x.dtype().is_float() {
            let data = x.to_f64()?;
            let (first, join) = if self.product { (1.0, 1) } else { (0.0, 0) };
            let y = self.run(&data, x.shape(), a, &first, |a, b| {
                Some(if join == 1 { a * b } else { a + b })
            })?;
            return Ok(vec![HostTensor::from_f64s(
                x.dtype(),
                x.shape(),
                &y.unwrap_or_default(),
            )?]);
        }
        let join = |a: &i64, b: &i64| {
            Some(if self.product {
                a.wrapping_mul(*b)
            } else {
                a.wrapping_add(*b)
            })
        };
        let y = self.run(&x.to_bits()?, x.shape(), a, &i64::from(self.product), join)?;
        Ok(vec![HostTensor::from_ints(
            x.dtype(),
            x.shape(),
            &y.unwrap_or_default(),
        )?])
    }

    fn bounds(&self, cx: &BoundsCx<'_>) -> Vec<Option<Bounds>> {
        let sum = cx.input(0).filter(|_| !self.product);
        vec![sum.map(|x| x.corners(Bounds::new(0, cx.count(0)), |x, n| x.saturating_mul(n)))]
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        reduce::wraps(cx)?;
        let (x, list) = (cx.shape(0)?, cx.dims(1)?);
        let at = list
            .first()
            .and_then(Dim::as_const)
            .ok_or_else(|| OpError::NoKernel("an axis that is not constant".to_owned()))?;
        let (outer, cols, inner) = split_at(&x, axis(at, x.rank())?)?;
        cx.loops("lines", &cols)?;
        let lines = outer.mul(&inner)?;
        let mut call = Call::new(&KERNEL, 64)
            .define_if(crate::kernels::cumulative::PRODUCT, self.product)
            .define_if(EXCLUSIVE, self.exclusive)
            .define_if(REVERSE, self.reverse)
            .grid(lines.ceil_div(64)?, 1, 1);
        // For a single line, padding comes after its current elements.
        let behind = outer.is(1) && !self.reverse;
        call = if behind { call.may_be_padded() } else { call };
        let (x, y) = (cx.input(0)?, cx.output(0)?);
        cx.emit(
            call,
            Args {
                x,
                y,
                lines,
                cols,
                inner,
            },
        )
    }

    fn reads(&self, input: usize) -> bool {
        input == 0
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    Ok(Box::new(Cumulative {
        product: a.op_type() == "CumProd",
        exclusive: a.int("exclusive")?.unwrap_or(0) != 0,
        reverse: a.int("reverse")?.unwrap_or(0) != 0,
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("CumSum", 11, 2), onnx("CumProd", 26, 2)],
    import,
    kernels: &[&KERNEL.kernel],
    cases,
};

fn cases() -> Vec<Case> {
    let case = |product, exclusive, reverse, x: &[usize], axis: i64| {
        let inputs = vec![input(x), input(&[]).values(&[axis]).constant()];
        Case::new(
            Cumulative {
                product,
                exclusive,
                reverse,
            },
            inputs,
        )
    };
    let ints = vec![input(&[3, 7]).ints(-9, 9), input(&[]).values(&[1]).constant()];
    vec![
        Case::new(
            Cumulative {
                product: false,
                exclusive: false,
                reverse: true,
            },
            ints,
        ),
        case(false, false, false, &[3, 5], 1),
        case(false, true, true, &[2, 4, 3], -2),
        case(true, true, false, &[7], 0),
    ]
}
