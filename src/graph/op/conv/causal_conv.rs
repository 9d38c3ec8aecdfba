//! Causal depthwise convolution with state. ONNX `CausalConvWithState` from opset 27.
//!
//! Operands: `[b, c, n]`, weights `[c, 1, k]`, a bias per channel, and the previous `k - 1`
//! elements (zeros if omitted). Results: `[b, c, n]` and the last `k - 1` elements, for the next
//! call.

use crate::graph::op::case::{Case, input};
use crate::graph::op::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, fit, onnx, operand, room};
use crate::num;
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::HostTensor;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CausalConv {
    /// Applies `x * sigmoid(x)` to the results.
    pub silu: bool,
}

impl Op for CausalConv {
    fn name(&self) -> &str {
        "CausalConvWithState"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let (x, w) = (cx.float(0)?, cx.float(1)?);
        let ([batch, channels, _], [own, one, taps]) = (x.shape.0.as_slice(), w.shape.0.as_slice()) else {
            return Err(OpError::expected(
                "ranks of operand and weights",
                3,
                format!("{x} and {w}"),
            ));
        };
        cx.same("channels of operand and weights", channels, own)?;
        cx.same("middle size of the weights and 1", one, &Dim::from(1))?;
        if let Some(bias) = cx.opt(2) {
            cx.same("channels of operand and bias", channels, &bias.shape.count()?)?;
        }
        let past = taps.sub(&1.into())?;
        cx.require(past.clone(), "number of taps minus 1")?;
        let state = vec![batch.clone(), channels.clone(), past];
        if let Some(before) = cx.opt(3) {
            if before.shape.rank() != 3 {
                return Err(OpError::expected("rank of the state", 3, before));
            }
            for (a, b) in state.iter().zip(&before.shape.0) {
                cx.same("sizes of the state", a, b)?;
            }
        }
        Ok(vec![
            Fact::new(x.dtype, x.shape.clone()),
            Fact::new(x.dtype, Shape(state)),
        ])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        fit(self, inputs)?;
        let (x, w) = (operand(inputs, 0)?, operand(inputs, 1)?);
        let ([batch, channels, length], [.., taps]) = (x.shape(), w.shape()) else {
            return Err(OpError::expected(
                "ranks of operand and weights",
                3,
                format!("{x:?} and {w:?}"),
            ));
        };
        let past = taps.saturating_sub(1);
        let list = |i: usize| match inputs.get(i).copied().flatten() {
            Some(t) => t.to_f32().map(Some),
            None => Ok(None),
        };
        let (data, weights, bias, before) = (x.to_f32()?, w.to_f32()?, list(2)?, list(3)?);
        let state_shape = [*batch, *channels, past];
        let (mut y, mut state): (Vec<f32>, Vec<f32>) = (room(x.shape())?, room(&state_shape)?);
        for line in 0..batch * channels {
            let channel = line % channels;
            let mut padded: Vec<f32> = match &before {
                Some(b) => num::part(b, line * past..(line + 1) * past)?.to_vec(),
                None => vec![0.0; past],
            };
            padded.extend_from_slice(num::part(&data, line * length..(line + 1) * length)?);
            let weights = num::part(&weights, channel * taps..(channel + 1) * taps)?;
            let bias = bias.as_ref().and_then(|b| b.get(channel)).copied().unwrap_or(0.0);
            y.extend(padded.windows(*taps).map(|part| {
                let products = part
                    .iter()
                    .zip(weights)
                    .map(|(a, b)| f64::from(*a) * f64::from(*b));
                let sum = products.sum::<f64>() + f64::from(bias);
                let sum = if self.silu {
                    sum / (1.0 + (-sum).exp())
                } else {
                    sum
                };
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "rounding to the result type is intended"
                )]
                let sum = sum as f32;
                sum
            }));
            state.extend_from_slice(num::part(&padded, padded.len() - past..)?);
        }
        Ok(vec![
            HostTensor::from_floats(x.dtype(), x.shape(), &y)?,
            HostTensor::from_floats(x.dtype(), &state_shape, &state)?,
        ])
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let silu = match a.string("activation")?.as_deref() {
        None | Some("none") => false,
        Some("silu" | "swish") => true,
        Some(other) => {
            return Err(OpError::expected(
                "attribute `activation`",
                "none, silu or swish",
                other,
            ));
        }
    };
    Ok(Box::new(CausalConv { silu }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("CausalConvWithState", 27, 4).outputs(2)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let weights = || vec![input(&[2, 3, 5]), input(&[3, 1, 4])];
    let whole = [input(&[3]), input(&[2, 3, 3])];
    vec![
        Case::new(CausalConv { silu: false }, weights()).host_only("no kernel"),
        Case::new(
            CausalConv { silu: true },
            weights().into_iter().chain(whole).collect(),
        )
        .host_only("no kernel"),
    ]
}
