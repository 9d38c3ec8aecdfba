//! Linear attention: a state of fixed size that each position updates. ONNX `LinearAttention` from
//! opset 27.
//!
//! Operands: queries `[b, t, hq * dk]`, keys `[b, t, h * dk]`, values `[b, t, h * dv]`, the state
//! before `[b, h, dk, dv]` (zeros if omitted), the logarithm of the decay `[b, t, h]` or
//! `[b, t, h * dk]`, and the update rate `[b, t, h]` or `[b, t, 1]`. Results: `[b, t, hq * dv]` and
//! the state after. Groups of query heads share a key head.

use crate::graph::op::case::{Case, input};
use crate::graph::op::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, filled, fit, onnx, operand,
};
use crate::num;
use crate::quota;
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::HostTensor;
use std::borrow::Cow;

#[derive(Clone, Debug, PartialEq)]
pub struct LinearAttention {
    pub query_heads: i64,
    /// Heads of keys and values.
    pub heads: i64,
    /// Scale of the results; 0 for one over the square root of the key size.
    pub scale: f32,
    /// The state decays (operand 4 is given).
    pub gated: bool,
    /// A value replaces the state's value for its key (operand 5, the rate, is given).
    pub delta: bool,
}

impl LinearAttention {
    /// The last size divided by the number of heads.
    fn per_head(x: &Fact, heads: i64) -> OpResult<Dim> {
        let [_, _, last] = x.shape.0.as_slice() else {
            return Err(OpError::expected("rank", 3, x));
        };
        last.exact_div(&heads.into())
            .ok_or_else(|| OpError::expected("last size", format!("a multiple of {heads} heads"), last))
    }
}

impl Op for LinearAttention {
    fn name(&self) -> &str {
        "LinearAttention"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let (q, k, v) = (cx.float(0)?, cx.float(1)?, cx.float(2)?);
        let (dk, dv) = (
            Self::per_head(q, self.query_heads)?,
            Self::per_head(v, self.heads)?,
        );
        cx.same("sizes of queries and keys", &dk, &Self::per_head(k, self.heads)?)?;
        for (i, x) in [
            (1, k),
            (2, v),
            (4, cx.opt(4).unwrap_or(q)),
            (5, cx.opt(5).unwrap_or(q)),
        ] {
            if x.shape.rank() != 3 {
                return Err(OpError::expected(format!("rank of input {i}"), 3, x));
            }
            for (a, b) in q.shape.0.iter().zip(&x.shape.0).take(2) {
                cx.same("batch sizes and lengths", a, b)?;
            }
        }
        for (i, name, wanted) in [(4, "decay", self.gated), (5, "rate", self.delta)] {
            if cx.opt(i).is_some() != wanted {
                let found = if wanted { "none" } else { "a value" };
                return Err(OpError::expected(
                    name,
                    if wanted { "given" } else { "none" },
                    found,
                ));
            }
        }
        let (heads, last) = (Dim::from(self.heads), |i: usize| {
            cx.opt(i).and_then(|x| x.shape.0.last())
        });
        if let Some(n) = last(4).filter(|n| **n != heads) {
            cx.same("widths of decay and keys", n, &heads.mul(&dk)?)?;
        }
        if let Some(n) = last(5).filter(|n| !n.is(1)) {
            cx.same("width of rate and number of heads", n, &heads)?;
        }
        let [batch, length, _] = q.shape.0.as_slice() else {
            return Err(OpError::expected("rank", 3, q));
        };
        let state = vec![batch.clone(), heads, dk, dv.clone()];
        let dtype = match cx.opt(3) {
            Some(before) => {
                if before.shape.rank() != 4 {
                    return Err(OpError::expected("rank of the state", 4, before));
                }
                for (a, b) in state.iter().zip(&before.shape.0) {
                    cx.same("sizes of the state", a, b)?;
                }
                cx.float(3)?.dtype
            }
            None => q.dtype,
        };
        let out = vec![batch.clone(), length.clone(), dv.mul(&self.query_heads.into())?];
        Ok(vec![
            Fact::new(q.dtype, Shape(out)),
            Fact::new(dtype, Shape(state)),
        ])
    }

    #[expect(clippy::cast_precision_loss, reason = "the size of a key")]
    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let facts = fit(self, inputs)?;
        let (out, state) = (
            num::at(&facts, 0)?.shape.sizes()?,
            num::at(&facts, 1)?.shape.sizes()?,
        );
        let ([batch, length, width], [_, heads, dk, dv]) = (out.as_slice(), state.as_slice()) else {
            return Err(OpError::expected("rank", 3, format!("{out:?}")));
        };
        let (batch, length, width, heads, dk, dv) = (*batch, *length, *width, *heads, *dk, *dv);
        let list = |i: usize| match inputs.get(i).copied().flatten() {
            Some(t) => t.to_f64().map(Some),
            None => Ok(None),
        };
        let (q, k, v) = (
            operand(inputs, 0)?.to_f64()?,
            operand(inputs, 1)?.to_f64()?,
            operand(inputs, 2)?.to_f64()?,
        );
        let (before, decay, rate) = (list(3)?, list(4)?, list(5)?);
        let mut states = before.map_or_else(|| filled(&state, 0.0), |s| Ok(s.into_owned()))?;
        let mut y = filled(&out, 0.0)?;
        let groups = width / (heads * dv).max(1);
        let scale = if self.scale == 0.0 {
            1.0 / (dk as f64).sqrt()
        } else {
            f64::from(self.scale)
        };
        let row = |x: &[f64], at: usize, n: usize| num::part(x, at * n..(at + 1) * n).map(<[f64]>::to_vec);
        // One number for each of `n` parts of a position, or one for all of them.
        let part = |x: &Option<Cow<'_, [f64]>>, at: usize, i: usize, n: usize, otherwise: f64| {
            let Some(x) = x else { return otherwise };
            let own = x.len() / (batch * length).max(1);
            x.get(at * own + i * own / n.max(1)).copied().unwrap_or(otherwise)
        };
        for (i, state) in states.chunks_exact_mut((dk * dv).max(1)).enumerate() {
            let (b, h) = (i / heads, i % heads);
            for at in (0..length).map(|t| b * length + t) {
                quota::check()?;
                let (key, mut value) = (row(&k, at * heads + h, dk)?, row(&v, at * heads + h, dv)?);
                for (d, line) in state.chunks_exact_mut(dv).enumerate() {
                    let decay = part(&decay, at, h * dk + d, heads * dk, 0.0).exp();
                    line.iter_mut().for_each(|s| *s *= decay);
                }
                if self.delta {
                    let rate = part(&rate, at, h, heads, 1.0);
                    for (m, v) in value.iter_mut().enumerate() {
                        let has: f64 = key
                            .iter()
                            .zip(state.iter().skip(m).step_by(dv))
                            .map(|(k, s)| k * s)
                            .sum();
                        *v = rate * (*v - has);
                    }
                }
                for (k, line) in key.iter().zip(state.chunks_exact_mut(dv)) {
                    line.iter_mut().zip(&value).for_each(|(s, v)| *s += k * v);
                }
                for head in h * groups..(h + 1) * groups {
                    let place = at * heads * groups + head;
                    let query = row(&q, place, dk)?;
                    let Some(out) = y.get_mut(place * dv..(place + 1) * dv) else {
                        continue;
                    };
                    for (q, line) in query.iter().zip(state.chunks_exact(dv)) {
                        out.iter_mut().zip(line).for_each(|(y, s)| *y += scale * q * s);
                    }
                }
            }
        }
        let tensor =
            |fact: &Fact, shape: &[usize], data: &[f64]| HostTensor::from_f64s(fact.dtype, shape, data);
        let [first, second] = facts.as_slice() else {
            return Err(OpError::expected("results", 2, facts.len()));
        };
        Ok(vec![tensor(first, &out, &y)?, tensor(second, &state, &states)?])
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let heads = |name| match a.int(name)? {
        Some(n) if (1..=i64::from(i32::MAX)).contains(&n) => Ok(n),
        found => Err(OpError::expected(
            format!("attribute `{name}`"),
            "1 or more",
            format!("{found:?}"),
        )),
    };
    let (query_heads, kv_heads) = (heads("q_num_heads")?, heads("kv_num_heads")?);
    if query_heads % kv_heads != 0 {
        return Err(OpError::expected(
            "heads of queries",
            format!("a multiple of {kv_heads}"),
            query_heads,
        ));
    }
    let (gated, delta) = match a.string("update_rule")?.as_deref() {
        Some("linear") => (false, false),
        Some("gated") => (true, false),
        Some("delta") => (false, true),
        None | Some("gated_delta") => (true, true),
        Some(other) => {
            let rules = "linear, gated, delta or gated_delta";
            return Err(OpError::expected("attribute `update_rule`", rules, other));
        }
    };
    // A hint on how to compute; it does not change the result.
    a.int("chunk_size")?;
    Ok(Box::new(LinearAttention {
        query_heads,
        heads: kv_heads,
        scale: a.float("scale")?.unwrap_or(0.0),
        gated,
        delta,
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("LinearAttention", 27, 6).outputs(2)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let op = |gated, delta| LinearAttention {
        query_heads: 4,
        heads: 2,
        scale: 0.0,
        gated,
        delta,
    };
    let qkv = || vec![input(&[2, 3, 12]), input(&[2, 3, 6]), input(&[2, 3, 10])];
    let whole = || {
        [
            input(&[2, 2, 3, 5]),
            input(&[2, 3, 6]).range(-1.0, 0.0),
            input(&[2, 3, 1]),
        ]
    };
    vec![
        Case::new(op(false, false), qkv()).host_only("no kernel"),
        Case::new(op(true, true), qkv().into_iter().chain(whole()).collect()).host_only("no kernel"),
    ]
}
