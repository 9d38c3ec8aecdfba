//! Padding, or cropping where a pad is negative.
//!
//! ONNX `Pad` from opset 2 (pads and value as attributes), 11 (as operands), 18 (axes), 19 (mode
//! `wrap`) to 27. Pads may be symbolic expressions, or depend on data.

use crate::graph::op::case::{Case, input};
use crate::graph::op::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, onnx, operand, strides, window,
};
pub use crate::kernels::pad::Mode;
use crate::kernels::pad::{Args, KERNEL};
use crate::lower::{Call, LowerCx};
use crate::num;
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::HostTensor;

/// Operands: the tensor; pads before all axes, then after all axes; a value; axes.
#[derive(Clone, Debug, PartialEq)]
pub struct Pad {
    /// Contents of the padding.
    pub mode: Mode,
    /// Pads from the attribute; `None` reads operand 1.
    pub pads: Option<Vec<i64>>,
    /// Value from the attribute, used if operand 2 is omitted.
    pub value: f32,
}

impl Pad {
    /// Pads before and after each axis of a tensor of this rank.
    fn pads(&self, rank: usize, pads: Vec<Dim>, axes: Option<&[i64]>) -> OpResult<Vec<(Dim, Dim)>> {
        let axes = crate::graph::op::axes(axes, rank)?;
        if pads.len() != 2 * axes.len() {
            return Err(OpError::mismatch(
                "numbers of pads and of axis ends",
                pads.len(),
                2 * axes.len(),
            ));
        }
        let mut out = vec![(Dim::from(0), Dim::from(0)); rank];
        let (before, after) = pads.split_at(axes.len());
        for ((a, before), after) in axes.into_iter().zip(before).zip(after) {
            if let Some(slot) = out.get_mut(a) {
                *slot = (before.clone(), after.clone());
            }
        }
        Ok(out)
    }
}

impl Op for Pad {
    fn name(&self) -> &str {
        "Pad"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.fact(0)?;
        if let Some(value) = cx.opt(2)
            && value.dtype != x.dtype
        {
            return Err(OpError::mismatch("element types", x.dtype, value.dtype));
        }
        let rank = x.shape.rank();
        let axes = match cx.opt(3) {
            Some(f) if f.as_dims().is_none() => None,
            Some(_) => Some(cx.ints(3)?),
            None => Some((0i64..).take(rank).collect()),
        };
        let given = match &self.pads {
            Some(list) => Some(list.iter().copied().map(Dim::from).collect()),
            None => cx.fact(1)?.as_dims(),
        };
        let (Some(given), Some(axes)) = (given, &axes) else {
            // The sizes that change, and by how much, are known only in the run.
            let padded = crate::graph::op::axes(axes.as_deref(), rank)?;
            let size = |(i, d): (usize, &Dim)| {
                if padded.contains(&i) {
                    cx.unknown(0, i, None)
                } else {
                    d.clone()
                }
            };
            return Ok(vec![Fact::new(
                x.dtype,
                Shape(x.shape.0.iter().enumerate().map(size).collect()),
            )]);
        };
        let mut shape = Vec::new();
        for (d, (before, after)) in x.shape.0.iter().zip(self.pads(rank, given, Some(axes))?) {
            if self.mode != Mode::Constant && !(before.is(0) && after.is(0)) {
                cx.require(d.sub(&1.into())?, "a size padded with its own elements minus 1")?;
            }
            let size = d.add(&before)?.add(&after)?;
            cx.require(size.clone(), "padded size")?;
            shape.push(size);
        }
        Ok(vec![Fact::new(x.dtype, Shape(shape))])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let list = |i: usize| {
            inputs
                .get(i)
                .copied()
                .flatten()
                .map(HostTensor::to_i64)
                .transpose()
        };
        let given = match &self.pads {
            Some(list) => list.clone(),
            None => operand(inputs, 1)?.to_i64()?,
        };
        let pads = self.pads(
            x.shape().len(),
            given.into_iter().map(Dim::from).collect(),
            list(3)?.as_deref(),
        )?;
        let size = x.dtype().size();
        let fill = match inputs.get(2).copied().flatten() {
            Some(v) if v.dtype() == x.dtype() => v.bytes()?.get(..size).map(<[u8]>::to_vec),
            Some(v) => return Err(OpError::mismatch("element types", x.dtype(), v.dtype())),
            None if x.dtype().is_float() => Some(
                HostTensor::from_floats(x.dtype(), &[], &[self.value])?
                    .bytes()?
                    .to_vec(),
            ),
            None => Some(vec![0; size]),
        };
        let fill = fill.ok_or_else(|| OpError::expected("value of the padding", "one element", "none"))?;
        // For each axis, the source element of each position; `None` is the value.
        let mut places: Vec<Vec<Option<usize>>> = Vec::new();
        for (n, (before, after)) in x.shape().iter().zip(&pads) {
            let constant = |d: &Dim| {
                d.as_const()
                    .ok_or_else(|| OpError::expected("pad", "a constant", d))
            };
            let (before, after) = (constant(before)?, constant(after)?);
            let n = num::signed(*n);
            let out = n
                .checked_add(before)
                .and_then(|v| v.checked_add(after))
                .filter(|v| *v >= 0)
                .ok_or_else(|| {
                    OpError::expected("padded size", "0 or more", format!("{n} + {before} + {after}"))
                })?;
            let mut list = crate::graph::op::filled(&[num::exact(out, "a padded size")?], None)?;
            for (i, slot) in (0..out).zip(&mut list) {
                *slot = self.source(i - before, n)?;
            }
            places.push(list);
        }
        let shape: Vec<usize> = places.iter().map(Vec::len).collect();
        let mut bytes = crate::graph::op::filled(&[crate::graph::op::count(&shape)?, size], 0u8)?;
        let (last, outer) = match places.split_last() {
            Some((last, outer)) => (last.clone(), outer.to_vec()),
            None => (vec![Some(0)], Vec::new()),
        };
        let steps = strides(x.shape());
        let data = x.bytes()?;
        let rows = window::indices(&outer.iter().map(Vec::len).collect::<Vec<_>>());
        for (index, row) in rows.zip(bytes.chunks_exact_mut((last.len() * size).max(1))) {
            let start: Option<usize> = outer
                .iter()
                .zip(&index)
                .zip(&steps)
                .map(|((places, i), step)| places.get(*i).copied().flatten().map(|p| p * step))
                .sum();
            for (to, place) in row.chunks_exact_mut(size).zip(&last) {
                let from = start
                    .zip(*place)
                    .and_then(|(s, p)| data.get((s + p) * size..(s + p + 1) * size));
                to.copy_from_slice(from.unwrap_or(&fill));
            }
        }
        Ok(vec![HostTensor::from_bytes(x.dtype(), &shape, &bytes)?])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let (x, out) = (cx.fact(0)?.clone(), cx.out_fact(0)?.shape.clone());
        let given = match &self.pads {
            Some(list) => list.iter().copied().map(Dim::from).collect(),
            None => cx.dims(1)?,
        };
        let axes: Option<Option<Vec<i64>>> = if cx.has(3) {
            Some(cx.dims(3)?.iter().map(Dim::as_const).collect())
        } else {
            None
        };
        let axes = axes
            .map(|a| a.ok_or_else(|| OpError::NoKernel("axes that are not constant".to_owned())))
            .transpose()?;
        let pads = self.pads(x.shape.rank(), given, axes.as_deref())?;
        if cx.has(2)
            && cx
                .fact(2)?
                .as_const()
                .is_some_and(|t| t.to_f32().is_ok_and(|v| v.iter().any(|v| !v.is_finite())))
        {
            return Err(OpError::NoKernel("a padding value that is not finite".to_owned()));
        }
        let ((y, words), (from, of_operand)) = (cx.output(0)?.words(), cx.input(0)?.words());
        let zeros = self.mode != Mode::Constant || self.value == 0.0 && !cx.has(2);
        if words != of_operand || words > 1 && !zeros {
            return Err(OpError::NoKernel(
                "padding of 64-bit integers with a value".to_owned(),
            ));
        }
        // Innermost first: sizes of result and operand, and the pad before; neighbouring axes
        // without pads are merged.
        let mut lines: Vec<(Dim, Dim, Dim)> = Vec::new();
        let mut plain = false;
        if words > 1 {
            lines.push((words.into(), words.into(), 0.into()));
            plain = true;
        }
        for ((m, n), (before, _)) in x.shape.0.iter().zip(&out.0).zip(&pads).rev() {
            let same = before.is(0) && m == n;
            match lines.last_mut() {
                Some((to, from, _)) if same && plain => (*to, *from) = (to.mul(n)?, from.mul(m)?),
                _ => lines.push((n.clone(), m.clone(), before.clone())),
            }
            plain = same;
        }
        if lines.len() > 5 {
            return Err(OpError::NoKernel(format!(
                "padding of {} axes that cannot be merged (limit 5)",
                lines.len()
            )));
        }
        let count = out.count()?.mul(&words.into())?;
        let mut call = Call::new(&KERNEL, 64)
            .define("RANK", num::signed(lines.len().max(1)))
            .grid(count.ceil_div(2 * 64)?, 1, 1);
        let part = |i: usize, of: fn(&(Dim, Dim, Dim)) -> &Dim, or: i64| {
            lines.get(i).map_or_else(|| Dim::from(or), |l| of(l).clone())
        };
        let [n0, n1, n2, n3] = std::array::from_fn(|i| part(i, |l| &l.0, 1));
        let [m0, m1, m2, m3, m4] = std::array::from_fn(|i| part(i, |l| &l.1, 1));
        let [b0, b1, b2, b3, b4] = std::array::from_fn(|i| part(i, |l| &l.2, 0));
        call = call.form(self.mode.define());
        let value = if cx.has(2) { Some(cx.input(2)?) } else { None };
        let (x, fill) = (from, self.value);
        #[rustfmt::skip]
        let args = Args {
            x, value, y, count, n0, n1, n2, n3, m0, m1, m2, m3, m4, b0, b1, b2, b3, b4, fill,
        };
        cx.emit(call, args)
    }

    fn reads(&self, input: usize) -> bool {
        matches!(input, 0 | 2)
    }

    fn moves(&self, input: usize) -> bool {
        matches!(input, 0 | 2) && self.value == 0.0
    }

    fn keeps_precision(&self) -> bool {
        true
    }
}

impl Pad {
    /// The source element on an axis of `n` elements for position `i`, which may be out of range;
    /// `None` for the value.
    fn source(&self, i: i64, n: i64) -> OpResult<Option<usize>> {
        let inside = (0..n).contains(&i);
        if n == 0 && self.mode != Mode::Constant {
            return Err(OpError::expected(
                "size padded with its own elements",
                "1 or more",
                0,
            ));
        }
        let at = match self.mode {
            _ if inside => i,
            Mode::Constant => return Ok(None),
            Mode::Edge => i.clamp(0, n - 1),
            Mode::Wrap => i.rem_euclid(n),
            Mode::Reflect if n == 1 => 0,
            Mode::Reflect => {
                let period = 2 * (n - 1);
                let at = i.rem_euclid(period);
                at.min(period - at)
            }
        };
        Ok(usize::try_from(at).ok())
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let mode = match a.string("mode")?.as_deref() {
        None | Some("constant") => Mode::Constant,
        Some("edge") => Mode::Edge,
        Some("reflect") => Mode::Reflect,
        Some("wrap") => Mode::Wrap,
        Some(other) => {
            return Err(OpError::expected(
                "attribute `mode`",
                "constant, edge, reflect or wrap",
                other,
            ));
        }
    };
    let (pads, value) = if a.opset() < 11 {
        (a.ints("pads")?, a.float("value")?)
    } else {
        (None, None)
    };
    if a.opset() < 11 && pads.is_none() {
        return Err(OpError::expected("attribute `pads`", "integers", "nothing"));
    }
    Ok(Box::new(Pad {
        mode,
        pads,
        value: value.unwrap_or(0.0),
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("Pad", 2, 4)],
    import,
    kernels: &[&KERNEL.kernel],
    cases,
};

fn cases() -> Vec<Case> {
    let op = |mode| Pad {
        mode,
        pads: None,
        value: 0.0,
    };
    let list = |v: &[i64]| input(&[v.len()]).values(v).constant();
    let case = |mode, x: &[usize], pads: &[i64]| Case::new(op(mode), vec![input(x), list(pads)]);
    let mut all = vec![
        case(Mode::Constant, &[2, 3, 5], &[0, 1, 2, 3, 0, 0]),
        case(Mode::Constant, &[4, 7], &[-1, 2, 1, -3]),
        Case::new(
            Pad {
                mode: Mode::Constant,
                pads: Some(vec![1, 0, 0, 2]),
                value: 1.5,
            },
            vec![input(&[3, 2])],
        ),
        Case::new(
            op(Mode::Constant),
            vec![input(&[3, 4]), list(&[2, 1]), input(&[]), list(&[-1])],
        ),
        Case::new(
            op(Mode::Constant),
            vec![
                input(&[3, 5]).ints32(-9, 9),
                list(&[0, 1, 1, 1]),
                input(&[]).ints32(7, 7),
            ],
        ),
        Case::new(
            op(Mode::Constant),
            vec![input(&[3, 5]).ints(-9, 9), list(&[0, 1, 1, 1])],
        ),
        Case::new(
            op(Mode::Wrap),
            vec![input(&[3, 4]).ints(-9, 9), list(&[1, 0, 0, 2])],
        ),
        case(Mode::Constant, &[2, 1, 3, 2, 2], &[1, 0, 0, 1, 1, 0, 2, 1, 0, 0]),
        case(Mode::Reflect, &[1, 3], &[2, 5, 0, 4]),
    ];
    all.extend(
        [Mode::Edge, Mode::Reflect, Mode::Wrap].map(|m| case(m, &[1, 2, 5, 4], &[0, 0, 2, 3, 0, 1, 4, 1])),
    );
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pads_that_are_data_may_be_negative() {
        use crate::tensor::DType;
        let x = Fact::new(DType::F32, Shape(vec![2.into(), 5.into()]));
        let (pads, axes) = (
            Fact::new(DType::I64, Shape::fixed(&[2])),
            HostTensor::from_i64(&[1], &[-1]).unwrap(),
        );
        let axes = Fact::of(axes.into());
        let (inputs, known) = (
            [Some(&x), Some(&pads), None, Some(&axes)],
            crate::shape::Constraints::default(),
        );
        let cx = InferCx::new(&inputs, &known).named(&["x", "pads", "", "axes"], &["y"]);
        let op = Pad {
            mode: Mode::Constant,
            pads: None,
            value: 0.0,
        };
        assert_eq!(op.infer(&cx).unwrap()[0].shape.to_string(), "[2, y_1]");
    }

    #[test]
    fn modes() {
        let x = HostTensor::from_i64(&[4], &[1, 2, 3, 4]).unwrap();
        let pads = HostTensor::from_i64(&[2], &[2, 3]).unwrap();
        let run = |mode| {
            let op = Pad {
                mode,
                pads: None,
                value: 0.0,
            };
            op.eval(&[Some(&x), Some(&pads)]).unwrap()[0].to_i64().unwrap()
        };
        assert_eq!(run(Mode::Constant), [0, 0, 1, 2, 3, 4, 0, 0, 0]);
        assert_eq!(run(Mode::Edge), [1, 1, 1, 2, 3, 4, 4, 4, 4]);
        assert_eq!(run(Mode::Reflect), [3, 2, 1, 2, 3, 4, 3, 2, 1]);
        assert_eq!(run(Mode::Wrap), [3, 4, 1, 2, 3, 4, 1, 2, 3]);
        let none = HostTensor::from_i64(&[0], &[]).unwrap();
        assert!(
            Pad {
                mode: Mode::Edge,
                pads: None,
                value: 0.0
            }
            .eval(&[Some(&none), Some(&pads)])
            .is_err()
        );
    }
}
