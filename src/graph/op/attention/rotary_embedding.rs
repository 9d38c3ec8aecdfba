//! Rotary position embedding with caches of cosines and sines. ONNX `RotaryEmbedding` from opset
//! 23.
//!
//! Operands: x `[batch, heads, sequence, size]` or `[batch, sequence, heads * size]`; cosines and
//! sines, either per position of the batch `[batch, sequence, half]` or, with positions as operand
//! 3, as a table `[positions, half]`.

use crate::graph::ValueId;
use crate::graph::op::case::{Case, input};
use crate::graph::op::concat::Concat;
use crate::graph::op::gather::Gather;
use crate::graph::op::gather_elements::wrap;
use crate::graph::op::parts::Parts;
use crate::graph::op::pointwise::Binary;
use crate::graph::op::pointwise::import::{binary, input as arg};
use crate::graph::op::rotary::{Pairs, Rotary};
use crate::graph::op::slice::Slice;
use crate::graph::op::types::Types;
use crate::graph::op::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, fit, onnx, operand};
use crate::num;
use crate::shape::{Dim, Fact};
use crate::tensor::HostTensor;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RotaryEmbedding {
    /// Pairs are interleaved instead of halves.
    pub interleaved: bool,
    /// Elements of a head to rotate; 0 for all.
    pub rotated: usize,
    /// Number of heads if x has three axes.
    pub heads: usize,
}

impl Op for RotaryEmbedding {
    fn name(&self) -> &str {
        "RotaryEmbedding"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.typed(0, Types::FLOAT)?;
        let (batch, sequence, size) = match x.shape.0.as_slice() {
            [b, _, s, n] => (b, s, n.clone()),
            [b, s, n] if self.heads > 0 => {
                let size = n.exact_div(&Dim::from_usize(self.heads));
                (
                    b,
                    s,
                    size.ok_or_else(|| {
                        OpError::expected("last axis", format!("a multiple of {} heads", self.heads), n)
                    })?,
                )
            }
            _ => {
                return Err(OpError::expected(
                    "operand",
                    "rank 4, or rank 3 and attribute `num_heads`",
                    x,
                ));
            }
        };
        let rotated = if self.rotated == 0 {
            size.clone()
        } else {
            Dim::from_usize(self.rotated)
        };
        cx.require(size.sub(&rotated)?, "head size minus rotated elements")?;
        let half = rotated.floor_div(2)?;
        let lines = cx.opt(3).is_none();
        for (i, what) in [(1, "cosines"), (2, "sines")] {
            match (lines, cx.typed(i, Types::FLOAT)?.shape.0.as_slice()) {
                (true, [b, s, n]) => {
                    cx.same("batch sizes of operand and caches", batch, b)?;
                    cx.same("sequence lengths of operand and caches", sequence, s)?;
                    cx.same("pairs of a head and of caches", &half, n)?;
                }
                (false, [_, n]) => {
                    cx.same("pairs of a head and of caches", &half, n)?;
                }
                _ => {
                    return Err(OpError::expected(
                        what,
                        if lines { "rank 3" } else { "rank 2" },
                        cx.fact(i)?,
                    ));
                }
            }
        }
        if let Some(positions) = cx.opt(3) {
            let ([rows, _], [others, _], [b, s], true) = (
                &*cx.fact(1)?.shape.0,
                &*cx.fact(2)?.shape.0,
                &*positions.shape.0,
                positions.dtype.is_int(),
            ) else {
                return Err(OpError::expected(
                    "positions",
                    "integers [batch, sequence]",
                    positions,
                ));
            };
            cx.same("numbers of cosines and sines", rows, others)?;
            cx.same("batch sizes of operand and positions", batch, b)?;
            cx.same("sequence lengths of operand and positions", sequence, s)?;
        }
        Ok(vec![Fact::new(x.dtype, x.shape.clone())])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        fit(self, inputs)?;
        let x = operand(inputs, 0)?;
        let (cos, sin) = (operand(inputs, 1)?, operand(inputs, 2)?);
        let positions = inputs
            .get(3)
            .copied()
            .flatten()
            .map(HostTensor::to_i64)
            .transpose()?;
        // A row is one head of one token. If x has three axes, the rows of a token are adjacent.
        let (heads, sequence, size, together) = match x.shape() {
            [_, h, s, n] => (*h, *s, *n, false),
            [_, s, n] => (self.heads, *s, n / self.heads.max(1), true),
            _ => return Err(OpError::expected("operand", "whole heads", format!("{x:?}"))),
        };
        let half = if self.rotated == 0 { size } else { self.rotated } / 2;
        let lines = cos.len().checked_div(half).unwrap_or(0);
        let (data, cos, sin) = (x.to_f32()?, cos.to_f32()?, sin.to_f32()?);
        let mut y = data.to_vec();
        for (row, out) in y.chunks_exact_mut(size.max(1)).enumerate() {
            let token = if together {
                row / heads
            } else {
                row / (heads * sequence) * sequence + row % sequence
            };
            let line = match &positions {
                Some(p) => {
                    let missing = || OpError::expected("positions", "one for each token", p.len());
                    wrap(*p.get(token).ok_or_else(missing)?, lines)?
                }
                None => token,
            };
            for i in 0..half {
                let (a, b) = if self.interleaved {
                    (2 * i, 2 * i + 1)
                } else {
                    (i, half + i)
                };
                let (c, s) = (cos[line * half + i], sin[line * half + i]);
                (out[a], out[b]) = (c * out[a] - s * out[b], s * out[a] + c * out[b]);
            }
        }
        Ok(vec![HostTensor::from_floats(x.dtype(), x.shape(), &y)?])
    }

    fn parts(&self, cx: &mut Parts<'_, '_>) -> OpResult<Option<Vec<ValueId>>> {
        let x = cx.input(0)?;
        let shape = cx.fact(x)?.shape;
        let together = shape.rank() == 3;
        let heads = num::signed(self.heads);
        let Some(joined) = shape.0.last().and_then(Dim::as_const) else {
            return Ok(None);
        };
        let (x, size) = if together {
            let size = joined / heads.max(1);
            (cx.reshape("heads", x, &[0, 0, heads, size])?, size)
        } else {
            (x, joined)
        };
        let rotated = i64::try_from(self.rotated)
            .ok()
            .filter(|n| *n > 0)
            .unwrap_or(size);
        let half = rotated / 2;
        let mut angles = Vec::new();
        for (i, name) in [(1, "cos"), (2, "sin")] {
            let table = cx.input(i)?;
            let lines = match cx.opt(3) {
                Some(at) => cx.node(
                    &format!("{name}/lines"),
                    Gather { axis: 0 },
                    &[Some(table), Some(at)],
                )?,
                None => table,
            };
            angles.push(cx.unsqueeze(name, lines, &[if together { 2 } else { 1 }])?);
        }
        let pairs = match self.interleaved {
            true => Some(Pairs::Neighbours),
            false => (rotated == size).then_some(Pairs::Halves),
        };
        if let Some(pairs) = pairs.filter(|_| together && size % 2 == 0) {
            if pairs == Pairs::Halves {
                for (angle, name) in angles.iter_mut().zip(["cos/twice", "sin/twice"]) {
                    *angle = cx.node(name, Concat { axis: -1 }, &[Some(*angle), Some(*angle)])?;
                }
            }
            let operands: Vec<_> = std::iter::once(x).chain(angles).map(Some).collect();
            let y = cx.node("turned", Rotary { pairs }, &operands)?;
            return Ok(Some(vec![cx.reshape("joined", y, &[0, 0, joined])?]));
        }
        let [first, second] = if self.interleaved {
            [[0, rotated, 2], [1, rotated, 2]]
        } else {
            [[0, half, 1], [half, 2 * half, 1]]
        };
        let (a, b) = (slice(cx, "first", x, first)?, slice(cx, "second", x, second)?);
        let rotate = |cx: &mut Parts<'_, '_>, what: &str, f, a, b| {
            let terms = [
                binary(Binary::Mul, arg(0), arg(2)),
                binary(Binary::Mul, arg(1), arg(3)),
            ];
            let [p, q] = terms;
            let operands = [a, b]
                .into_iter()
                .chain(angles.iter().copied())
                .collect::<Vec<_>>();
            cx.pointwise(what, binary(f, p, q), &operands)
        };
        let mut parts = vec![
            rotate(cx, "left", Binary::Sub, a, b)?,
            rotate(cx, "right", Binary::Add, b, a)?,
        ];
        if self.interleaved {
            for (x, name) in parts.iter_mut().zip(["left/pairs", "right/pairs"]) {
                *x = cx.unsqueeze(name, *x, &[4])?;
            }
            let pairs: Vec<_> = parts.iter().copied().map(Some).collect();
            let pairs = cx.node("pairs", Concat { axis: -1 }, &pairs)?;
            parts = vec![cx.reshape("turned", pairs, &[0, 0, 0, rotated])?];
        }
        if 2 * half < size {
            parts.push(slice(cx, "rest", x, [2 * half, size, 1])?);
        }
        let mut y = match parts.as_slice() {
            [one] => *one,
            list => {
                let list: Vec<_> = list.iter().copied().map(Some).collect();
                cx.node("whole", Concat { axis: -1 }, &list)?
            }
        };
        if together {
            y = cx.reshape("joined", y, &[0, 0, joined])?;
        }
        Ok(Some(vec![y]))
    }
}

/// Elements of the last axis from `start` to `end` with a step.
fn slice(cx: &mut Parts<'_, '_>, what: &str, x: ValueId, range: [i64; 3]) -> OpResult<ValueId> {
    let mut operands = vec![Some(x)];
    let [start, end, step] = range;
    for (name, v) in [("start", start), ("end", end), ("axis", -1), ("step", step)] {
        operands.push(Some(cx.ints(&format!("{what}/{name}"), &[v])?));
    }
    cx.node(what, Slice, &operands)
}

impl RotaryEmbedding {
    /// The operator with these attributes.
    pub(crate) fn import(a: &dyn Attributes) -> OpResult<Self> {
        let number = |name: &str| {
            let v = a.int(name)?.unwrap_or(0);
            usize::try_from(v).map_err(|_| OpError::expected(format!("attribute `{name}`"), "0 or more", v))
        };
        Ok(Self {
            interleaved: a.int("interleaved")?.unwrap_or(0) != 0,
            rotated: number("rotary_embedding_dim")?,
            heads: number("num_heads")?,
        })
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    Ok(Box::new(RotaryEmbedding::import(a)?))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("RotaryEmbedding", 23, 4)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let table = || input(&[9, 4]).constant();
    let op = RotaryEmbedding {
        interleaved: false,
        rotated: 0,
        heads: 2,
    };
    let inputs = vec![input(&[2, 3, 16]), table(), table(), input(&[2, 3]).ints(0, 8)];
    let apart = RotaryEmbedding {
        interleaved: true,
        rotated: 6,
        heads: 0,
    };
    let lines = || input(&[2, 5, 3]);
    let neighbours = RotaryEmbedding {
        interleaved: true,
        rotated: 4,
        heads: 2,
    };
    let narrow = || input(&[9, 2]).constant();
    vec![
        Case::new(op, inputs),
        Case::new(
            neighbours,
            vec![input(&[2, 3, 16]), narrow(), narrow(), input(&[2, 3]).ints(0, 8)],
        ),
        Case::new(apart, vec![input(&[2, 3, 5, 8]), lines(), lines()]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::{Constraints, Shape};
    use crate::tensor::DType;

    #[test]
    fn operands_fit() {
        let op = RotaryEmbedding {
            interleaved: false,
            rotated: 0,
            heads: 2,
        };
        let float = |shape: &[usize]| HostTensor::zeros(DType::F32, shape).unwrap();
        let at = |list: &[i64]| HostTensor::from_i64(&[1, list.len()], list).unwrap();
        let run = |cos: &[usize], positions: Option<&HostTensor>| {
            op.eval(&[
                Some(&float(&[1, 3, 16])),
                Some(&float(cos)),
                Some(&float(cos)),
                positions,
            ])
        };
        assert!(run(&[9, 4], Some(&at(&[0, 1, 8]))).is_ok());
        assert!(
            run(&[9, 4], Some(&at(&[0, 1]))).is_err(),
            "a token without a position"
        );
        assert!(
            run(&[9, 4], Some(&at(&[0, 1, 9]))).is_err(),
            "a position behind the table"
        );
        assert!(run(&[9, 3], Some(&at(&[0, 1, 8]))).is_err());
        assert!(run(&[1, 3, 4], None).is_ok());
        assert!(run(&[1, 2, 4], None).is_err());
    }

    #[test]
    fn sizes_of_the_run_are_assumed_to_agree() {
        let op = RotaryEmbedding {
            interleaved: false,
            rotated: 0,
            heads: 0,
        };
        let fact = |sizes: &str| {
            Fact::new(
                DType::F32,
                Shape(sizes.split(' ').map(|d| Dim::parse(d).unwrap()).collect()),
            )
        };
        let (x, cos) = (fact("b 2 s 8"), fact("b total 4"));
        let (inputs, known) = ([Some(&x), Some(&cos), Some(&cos)], Constraints::default());
        let cx = InferCx::new(&inputs, &known);
        op.infer(&cx).unwrap();
        assert!(
            cx.finish()
                .1
                .iter()
                .any(|a| a.equal && a.dim == Dim::parse("s - total").unwrap())
        );
    }
}
