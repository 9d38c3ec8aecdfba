//! Inverse of `MaxPool`: puts elements back at their positions, with zeros elsewhere. ONNX
//! `MaxUnpool` from opset 9.
//!
//! Operands: `[n, c, sizes..]`, the positions of its elements in the pooled tensor, and optionally
//! the shape of the result, which may be larger than the pooled tensor.

use crate::graph::op::case::{Case, input};
use crate::graph::op::types::Types;
use crate::graph::op::window::Window;
use crate::graph::op::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, count, filled, onnx, operand, strides,
    to_sizes,
};
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::HostTensor;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaxUnpool {
    /// The window used for pooling.
    pub window: Window,
}

impl MaxUnpool {
    /// The shape of the pooled tensor, assuming no remainder at the end.
    fn pooled(&self, shape: &[Dim]) -> OpResult<Vec<Dim>> {
        let [n, c, spatial @ ..] = shape else {
            return Err(OpError::expected("rank", "3 or more", shape.len()));
        };
        self.window.check(&self.window.kernel, spatial.len())?;
        let mut out = vec![n.clone(), c.clone()];
        for (i, (size, kernel)) in spatial.iter().zip(&self.window.kernel).enumerate() {
            let (before, after) = self.window.explicit(i, spatial.len());
            let last = size.sub(&1.into())?.mul(&self.window.stride(i).into())?;
            out.push(last.add(&(kernel - before - after).into())?);
        }
        Ok(out)
    }
}

impl Op for MaxUnpool {
    fn name(&self) -> &str {
        "MaxUnpool"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let (x, places) = (cx.typed(0, Types::FLOAT)?, cx.typed(1, Types::INTEGER)?);
        if x.shape.rank() != places.shape.rank() {
            return Err(OpError::mismatch(
                "shapes of elements and positions",
                &x.shape,
                &places.shape,
            ));
        }
        for (a, b) in x.shape.0.iter().zip(&places.shape.0) {
            cx.same("shapes of elements and positions", a, b)?;
        }
        let pooled = self.pooled(&x.shape.0)?;
        let shape = if cx.opt(2).is_some() {
            cx.sizes(2)?
        } else {
            pooled.clone()
        };
        if shape.len() != pooled.len() {
            return Err(OpError::mismatch("ranks", pooled.len(), shape.len()));
        }
        for (n, least) in shape.iter().zip(&pooled) {
            cx.require(n.sub(least)?, "result size minus pooled size")?;
        }
        Ok(vec![Fact::new(x.dtype, Shape(shape))])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let (x, places) = (operand(inputs, 0)?, operand(inputs, 1)?.to_i64()?);
        let pooled = Shape(self.pooled(&Shape::fixed(x.shape()).0)?)
            .as_fixed()
            .unwrap_or_default();
        let shape = match inputs.get(2).copied().flatten() {
            Some(t) => to_sizes(t)?,
            None => pooled.clone(),
        };
        if shape.len() != pooled.len() || shape.iter().zip(&pooled).any(|(n, least)| n < least) {
            return Err(OpError::expected(
                "shape",
                format!("{pooled:?} or larger"),
                format!("{shape:?}"),
            ));
        }
        let (size, all) = (x.dtype().size(), count(&pooled)?);
        let (inner, outer) = (strides(&pooled), strides(&shape));
        let mut out = filled(&[count(&shape)?, size], 0u8)?;
        for (element, place) in x.bytes()?.chunks_exact(size).zip(places) {
            let from = usize::try_from(place).ok().filter(|p| *p < all);
            let from = from.ok_or_else(|| OpError::expected("position", format!("below {all}"), place))?;
            let axes = inner.iter().zip(&pooled).zip(&outer);
            let to: usize = axes.map(|((step, n), new)| from / step % n * new).sum();
            if let Some(slot) = out.get_mut(to * size..(to + 1) * size) {
                slot.copy_from_slice(element);
            }
        }
        Ok(vec![HostTensor::from_bytes(x.dtype(), &shape, &out)?])
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    Ok(Box::new(MaxUnpool {
        window: Window::import(a)?,
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("MaxUnpool", 9, 3)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let window = || Window {
        strides: vec![2, 2],
        ..Window::new(&[2, 2])
    };
    let places = || input(&[1, 1, 2, 2]).values(&[5, 7, 13, 15]);
    let shape = input(&[4]).values(&[1, 1, 5, 5]).constant();
    let case = |inputs| Case::new(MaxUnpool { window: window() }, inputs).host_only("no kernel");
    vec![
        case(vec![input(&[1, 1, 2, 2]), places()]),
        case(vec![input(&[1, 1, 2, 2]), places(), shape]),
    ]
}
