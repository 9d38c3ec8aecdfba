//! Slices along axes with starts, ends and steps as operands.
//!
//! ONNX `Slice` from opset 1 (starts, ends and axes as attributes) and 10 (as operands). Starts and
//! ends may be symbolic expressions.

use crate::graph::op::case::{Case, input};
use crate::graph::op::transpose::Start;
use crate::graph::op::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, as_usize, axis, fixed_size, gather_strided,
    onnx, operand, strides, transpose,
};
use crate::lower::LowerCx;
use crate::num;
use crate::shape::{Constraints, Dim, Fact, Shape};
use crate::tensor::HostTensor;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice;

/// The part of an axis that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
struct AxisRange {
    start: Dim,
    step: i64,
    count: Dim,
}

/// An end at or beyond this means "to the end".
const FAR: i64 = 1 << 31;

/// Decides about sizes by the constraints; requires conditions that they do not decide.
struct Rule<'a> {
    known: &'a Constraints,
    require: &'a dyn Fn(Dim, &str) -> OpResult<()>,
}

/// Candidates of which a bound is the minimum or maximum.
type Choice = Vec<Dim>;

impl Rule<'_> {
    fn at_least(&self, dim: &Dim, v: i64) -> bool {
        self.known.at_least(dim, v) == Some(true)
    }

    /// The minimum or maximum of `all`, without candidates that are known to lose.
    fn pick(&self, all: &[Dim], smallest: bool) -> OpResult<Dim> {
        let mut kept: Vec<&Dim> = Vec::new();
        for d in all {
            let beats = |a: &Dim, b: &Dim| {
                self.known
                    .le(if smallest { a } else { b }, if smallest { b } else { a })
                    == Some(true)
            };
            if kept.iter().any(|k| beats(k, d)) {
                continue;
            }
            kept.retain(|k| !beats(d, k));
            kept.push(d);
        }
        let (first, rest) = kept
            .split_first()
            .ok_or_else(|| OpError::expected("bounds", "1 or more", 0))?;
        rest.iter().try_fold((*first).clone(), |m, d| {
            Ok(if smallest { m.minimum(d)? } else { m.maximum(d)? })
        })
    }

    /// Candidates for a bound, whose maximum counts; at least `low`. Negative bounds count from the
    /// end. If the sign of a symbolic bound is not known, it is required to be the usual one.
    fn place(&self, bound: &Dim, size: &Dim, low: i64) -> OpResult<Choice> {
        let backwards = match bound.as_const() {
            Some(v) if v >= FAR - 1 => return Ok(vec![size.clone()]),
            Some(v) if v <= -FAR + 1 => return Ok(vec![low.into()]),
            Some(v) => v < 0,
            None if self.at_least(bound, 0) => false,
            None => {
                let minus = Dim::from(0).sub(bound)?;
                let backwards = self.at_least(&minus, 0);
                if backwards {
                    (self.require)(
                        minus.sub(&1.into())?,
                        "a slice bound, counted from the end, minus 1",
                    )?;
                } else {
                    (self.require)(bound.clone(), "a slice bound, counted from the start")?;
                }
                backwards
            }
        };
        if !backwards {
            return Ok(vec![bound.clone()]);
        }
        let place = size.add(bound)?;
        Ok(if self.at_least(&place, low) {
            vec![place]
        } else {
            vec![place, low.into()]
        })
    }

    /// The part of an axis of `size` that is kept; both bounds are clamped as ONNX defines.
    fn part(&self, size: &Dim, start: &Dim, end: &Dim, step: i64) -> OpResult<AxisRange> {
        let by = step.checked_abs().filter(|by| *by > 0);
        let by = by.ok_or_else(|| OpError::expected("step", "a nonzero 64-bit integer", step))?;
        // Backward, positions run from the last one down to the one before the first.
        let (top, lower, upper) = if step > 0 {
            (
                size.clone(),
                self.place(start, size, 0)?,
                self.place(end, size, 0)?,
            )
        } else {
            (
                size.sub(&1.into())?,
                self.place(end, size, -1)?,
                self.place(start, size, 0)?,
            )
        };
        let upper = [self.pick(&upper, false)?, top.clone()];
        // min(upper) - max(lower), as the minimum of all differences until some are known to lose.
        let mut spans = Vec::with_capacity(upper.len() * lower.len());
        for u in &upper {
            for l in &lower {
                spans.push(u.sub(l)?);
            }
        }
        let span = self.pick(&[self.pick(&spans, true)?, 0.into()], false)?;
        let from = if step > 0 {
            [self.pick(&lower, false)?, top]
        } else {
            upper
        };
        // An empty axis would start at -1.
        let start = self.pick(&[self.pick(&from, true)?, 0.into()], false)?;
        Ok(AxisRange {
            start,
            step,
            count: span.ceil_div(by)?,
        })
    }

    fn parts(&self, shape: &[Dim], lists: &Lists) -> OpResult<Vec<AxisRange>> {
        let Lists {
            starts,
            ends,
            axes,
            steps,
        } = lists;
        let mut out: Vec<AxisRange> = shape
            .iter()
            .map(|d| AxisRange {
                start: 0.into(),
                step: 1,
                count: d.clone(),
            })
            .collect();
        if starts.len() != ends.len() {
            return Err(OpError::mismatch(
                "numbers of starts and ends",
                starts.len(),
                ends.len(),
            ));
        }
        for (i, (start, end)) in starts.iter().zip(ends).enumerate() {
            let number = |list: Option<&Vec<Dim>>, default: i64, what: &'static str| match list {
                None => Ok(default),
                Some(l) => l.get(i).and_then(Dim::as_const).ok_or_else(|| {
                    OpError::expected(what, "one constant per start", format!("{} values", l.len()))
                }),
            };
            let a = axis(number(axes.as_ref(), num::signed(i), "axes")?, shape.len())?;
            out[a] = self.part(&shape[a], start, end, number(steps.as_ref(), 1, "steps")?)?;
        }
        Ok(out)
    }
}

/// Starts, ends, axes and steps. Axes and steps are optional.
struct Lists {
    starts: Vec<Dim>,
    ends: Vec<Dim>,
    axes: Option<Vec<Dim>>,
    steps: Option<Vec<Dim>>,
}

impl Lists {
    /// Reads operands 1 to 4 with `get` if `has` is true for them.
    fn of(has: impl Fn(usize) -> bool, get: impl Fn(usize) -> OpResult<Vec<Dim>>) -> OpResult<Self> {
        let optional = |i| if has(i) { get(i).map(Some) } else { Ok(None) };
        Ok(Self {
            starts: get(1)?,
            ends: get(2)?,
            axes: optional(3)?,
            steps: optional(4)?,
        })
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.fact(0)?;
        let rule = Rule {
            known: cx.constraints(),
            require: &|dim, meaning| cx.require(dim, meaning),
        };
        let parts = rule.parts(&x.shape.0, self)?;
        Ok(vec![Fact::new(
            x.dtype,
            Shape(parts.into_iter().map(|p| p.count).collect()),
        )])
    }

    fn eval(&self, x: &HostTensor) -> OpResult<Vec<HostTensor>> {
        let rule = Rule {
            known: &Constraints::default(),
            require: &|_, _| Ok(()),
        };
        let parts = rule.parts(&Shape::fixed(x.shape()).0, self)?;
        let (mut start, mut sizes, mut step) = (0usize, Vec::new(), Vec::new());
        for (p, s) in parts.iter().zip(strides(x.shape())) {
            sizes.push(fixed_size(&p.count)?);
            start += fixed_size(&p.start)? * s;
            step.push(num::signed(s).saturating_mul(p.step));
        }
        Ok(vec![gather_strided(x, &sizes, start, &step)?])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let shape = cx.shape(0)?;
        // Each run checks what derivation required, so positions are in range.
        let rule = Rule {
            known: cx.constraints(),
            require: &|_, _| Ok(()),
        };
        let parts = rule.parts(&shape.0, self)?;
        if parts
            .iter()
            .zip(&shape.0)
            .all(|(p, d)| p.step == 1 && p.start.is(0) && p.count == *d)
        {
            return cx.alias(0, 0);
        }
        let (mut start, mut sizes, mut step) = (Dim::from(0), Vec::new(), Vec::new());
        let cut = parts
            .iter()
            .zip(&shape.0)
            .position(|(p, d)| p.count != *d || p.step != 1);
        let one_cut = cut.is_some_and(|a| {
            let whole = |(p, d): (&AxisRange, &Dim)| p.step == 1 && p.count == *d;
            parts[a].step == 1
                && shape.0[..a].iter().all(|d| d.is(1))
                && parts[a + 1..].iter().zip(&shape.0[a + 1..]).all(whole)
        });
        let mut padded = true;
        for (p, s) in parts.iter().zip(transpose::dim_strides(&shape.0)?) {
            padded &= p.start.is(0) || s.as_const().is_some();
            start = start.add(&p.start.mul(&s)?)?;
            sizes.push(p.count.clone());
            step.push(s.mul(&p.step.into())?);
        }
        if one_cut && cx.view(0, 0, &start)? {
            return Ok(());
        }
        transpose::emit_strided(cx, &sizes, &Start { at: start, padded }, &step)
    }
}

/// The fact of the result if bounds depend on data: the sizes of the sliced axes are unknown.
fn unknown(cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
    let x = cx.fact(0)?;
    let rank = x.shape.rank();
    let starts = cx.fact(1)?.shape.0.first().and_then(as_usize).unwrap_or(0);
    let axes: Vec<usize> = match cx.opt(3) {
        None => (0..rank).take(starts).collect(),
        Some(list) if list.as_dims().is_some() => crate::graph::op::axes(Some(&cx.ints(3)?), rank)?,
        Some(_) => (0..rank).collect(),
    };
    let size = |(i, n): (usize, &Dim)| {
        if axes.contains(&i) {
            cx.unknown(0, i, Some(n.clone()))
        } else {
            n.clone()
        }
    };
    Ok(vec![Fact::new(
        x.dtype,
        Shape(x.shape.0.iter().enumerate().map(size).collect()),
    )])
}

impl Op for Slice {
    fn name(&self) -> &str {
        "Slice"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        if (1..=4).any(|i| cx.opt(i).is_some_and(|f| f.as_dims().is_none())) {
            return unknown(cx);
        }
        Lists::of(|i| cx.opt(i).is_some(), |i| cx.dims(i))?.infer(cx)
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let has = |i: usize| inputs.get(i).copied().flatten().is_some();
        let list = |i| Ok(operand(inputs, i)?.to_i64()?.into_iter().map(Dim::from).collect());
        Lists::of(has, list)?.eval(operand(inputs, 0)?)
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        Lists::of(|i| cx.has(i), |i| cx.dims(i))?.lower(cx)
    }

    fn reads(&self, input: usize) -> bool {
        input == 0
    }

    fn moves(&self, input: usize) -> bool {
        input == 0
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    if a.opset() < 10 {
        let mut lists = Vec::new();
        for name in ["starts", "ends"] {
            lists
                .push(a.ints(name)?.ok_or_else(|| {
                    OpError::expected(format!("attribute `{name}`"), "integers", "nothing")
                })?);
        }
        lists.extend(a.ints("axes")?);
        for list in lists {
            a.add_operand(HostTensor::from_i64(&[list.len()], &list)?);
        }
    }
    Ok(Box::new(Slice))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("Slice", 1, 5)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let list = |v: &[i64]| input(&[v.len()]).values(v).constant();
    let case = |x: &[usize], start: &[i64], end: &[i64], axes: &[i64], steps: &[i64]| {
        Case::new(
            Slice,
            vec![input(x), list(start), list(end), list(axes), list(steps)],
        )
    };
    vec![
        case(&[3, 5, 64], &[32], &[i64::MAX], &[2], &[1]),
        case(&[7, 9], &[-3, 1], &[100, 8], &[0, 1], &[1, 3]),
        case(&[7, 9], &[-1], &[i64::MIN], &[1], &[-2]),
        case(&[2, 3, 4], &[1, 0, 1], &[2, 3, 3], &[0, 1, 2], &[1, 1, 1]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size that a slice of an axis leaves, its start, and what is assumed; of lists of one
    /// element each.
    fn sliced(known: &str, [size, start, end]: [&str; 3], step: i64) -> (String, Vec<String>) {
        let list = |text: &str| Fact {
            known: crate::shape::Known::Dims(vec![Dim::parse(text).unwrap()]),
            ..Fact::new(crate::tensor::DType::I64, Shape::fixed(&[1]))
        };
        let x = Fact::new(crate::tensor::DType::F32, Shape(vec![Dim::parse(size).unwrap()]));
        let (start, end, axes, step) = (list(start), list(end), list("0"), list(&step.to_string()));
        let inputs = [Some(&x), Some(&start), Some(&end), Some(&axes), Some(&step)];
        let known = Constraints::parse(known).unwrap();
        let cx = InferCx::new(&inputs, &known);
        let count = Slice.infer(&cx).unwrap()[0].shape.0[0].to_string();
        (
            count,
            cx.finish().1.into_iter().map(|a| a.dim.to_string()).collect(),
        )
    }

    const END: &str = "9223372036854775807";

    #[test]
    fn bounds_counted_from_the_end() {
        let none = Vec::<String>::new();
        assert_eq!(
            sliced("", ["past + seq", "0 - seq", END], 1),
            ("seq".into(), vec!["seq - 1".into()])
        );
        assert_eq!(
            sliced("seq >= 1", ["past + seq", "0 - seq", END], 1),
            ("seq".into(), none.clone())
        );
        assert_eq!(
            sliced("n >= 1, n <= 4, s >= 4", ["s", "0", "0 - n"], 1),
            ("-n + s".into(), none.clone())
        );
        assert_eq!(
            sliced("n >= 1", ["s", "0", "0 - n"], 1),
            ("max(0, -n + s)".into(), none.clone())
        );
        assert_eq!(
            sliced("", ["s", "a - b", END], 1).1,
            ["a - b"],
            "of either sign it is a place from the start"
        );
    }

    #[test]
    fn a_size_may_be_0() {
        let count = |size, start, end, step| sliced("", [size, start, end], step).0;
        assert_eq!(count("past", "-1", END, 1), "min(1, past)");
        assert_eq!(count("past", "1", END, 1), "max(1, past) - 1");
        assert_eq!(count("past", "0", "-1", 1), "max(1, past) - 1");
        assert_eq!(count("past", "-1", "-9223372036854775807", -1), "past");
        assert_eq!(count("past + 1", "-1", END, 1), "1");
        assert_eq!(sliced("s >= 1", ["s", "-1", END], 1).0, "1");
    }

    #[test]
    fn symbolic_bounds_end_with_the_operand() {
        assert_eq!(sliced("", ["64", "0", "s"], 1), ("min(64, s)".into(), vec![]));
        assert_eq!(sliced("s <= 64", ["64", "0", "s"], 1).0, "s");
        assert_eq!(sliced("past + s <= 64", ["64", "past", "past + s"], 1).0, "s");
        assert_eq!(sliced("", ["1 + s", "s", END], 1).0, "1");
    }

    #[test]
    fn a_step_of_0_is_refused() {
        let rule = Rule {
            known: &Constraints::default(),
            require: &|_, _| Ok(()),
        };
        for size in [0, 3] {
            assert!(rule.part(&size.into(), &0.into(), &1.into(), 0).is_err());
        }
    }
}
