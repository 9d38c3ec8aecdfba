//! Softmax over one axis, or over all axes from one on.
//!
//! ONNX `Softmax` from opset 1 (over all axes from `axis` on, 1 by default) and 13 (over `axis`,
//! the last by default).

use crate::graph::op::case::{Case, MASKED, input};
use crate::graph::op::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, axis, onnx, operand, split_at,
};
use crate::kernels::softmax::{Args, Form, INNER, InnerArgs, LAST};
use crate::lower::{Call, LowerCx};
use crate::shape::{Dim, Fact, product};
use crate::tensor::HostTensor;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Softmax {
    /// The axis whose elements sum to 1; negative values count from the end.
    pub axis: i64,
    /// The elements of all axes from `axis` on sum to 1.
    pub flatten: bool,
}

/// Shape inference of softmax and its variants.
pub(crate) fn infer_rows(cx: &InferCx<'_>, at: i64) -> OpResult<Vec<Fact>> {
    let x = cx.fact(0)?;
    if !x.dtype.is_float() {
        return Err(OpError::expected("element type", "a float", x.dtype));
    }
    axis(at, x.shape.rank())?;
    Ok(vec![Fact::new(x.dtype, x.shape.clone())])
}

/// Evaluates softmax or a variant on the host: `f` changes each row in place. Rows lie along the
/// axis `at`, or along all axes from it on if `flatten`.
pub(crate) fn eval_rows(
    inputs: &Inputs<'_>,
    at: i64,
    flatten: bool,
    f: impl Fn(&mut [f64]),
) -> OpResult<Vec<HostTensor>> {
    let x = operand(inputs, 0)?;
    let shape = x.shape();
    let at = axis(at, shape.len())?;
    let end = if flatten { shape.len() } else { at + 1 };
    let product = |s: Option<&[usize]>| s.unwrap_or_default().iter().product::<usize>();
    let (count, step) = (product(shape.get(at..end)), product(shape.get(end..)));
    let mut y = x.to_f64()?.into_owned();
    let mut row = vec![0.0; count];
    for block in y.chunks_exact_mut((count * step).max(1)) {
        for s in 0..step {
            let from = block.iter().skip(s).step_by(step);
            row.iter_mut().zip(from).for_each(|(r, v)| *r = *v);
            f(&mut row);
            let to = block.iter_mut().skip(s).step_by(step);
            to.zip(&row).for_each(|(v, r)| *v = *r);
        }
    }
    Ok(vec![HostTensor::from_f64s(x.dtype(), shape, &y)?])
}

impl Op for Softmax {
    fn name(&self) -> &str {
        "Softmax"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        infer_rows(cx, self.axis)
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        eval_rows(inputs, self.axis, self.flatten, |row| {
            let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = row.iter().map(|v| (v - max).exp()).sum();
            row.iter_mut().for_each(|v| *v = (*v - max).exp() / sum);
        })
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        emit(cx, self.axis, self.flatten, Form::Plain)
    }
}

/// Emits softmax, or a variant of it.
pub(crate) fn emit(cx: &mut LowerCx<'_>, at: i64, flatten: bool, form: Form) -> OpResult<()> {
    let shape = cx.shape(0)?;
    let a = axis(at, shape.rank())?;
    let (outer, cols, inner) = if flatten {
        (product(&shape.0[..a])?, product(&shape.0[a..])?, Dim::from(1))
    } else {
        split_at(&shape, a)?
    };
    // Two rows, with three passes over each.
    let passes = cols.mul(&6.into())?;
    if inner.is(1) && form != Form::Hard {
        cx.loops("rows", &passes.ceil_div(64)?)?;
        let tile = if outer.is(1) || cols.exact_div(&2.into()).is_some() {
            1
        } else {
            2
        };
        let call = Call::new(&LAST, 64)
            .define("ROWS", tile)
            .grid(outer.ceil_div(tile)?, 1, 1);
        let call = call.may_work_in_place().form(form.define());
        let (x, y, rows) = (cx.input(0)?, cx.output(0)?, outer);
        return cx.emit(call, Args { x, y, rows, cols });
    }
    cx.loops("lines", &passes)?;
    let groups = outer.mul(&inner.ceil_div(2)?)?.ceil_div(64)?;
    let call = Call::new(&INNER, 64).define("RUN", 2).grid(groups, 1, 1);
    let call = call.form(form.define());
    let args = InnerArgs {
        x: cx.input(0)?,
        y: cx.output(0)?,
        outer,
        cols,
        inner,
    };
    cx.emit(call, args)
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let flatten = a.opset() < 13;
    Ok(Box::new(Softmax {
        axis: a.int("axis")?.unwrap_or(if flatten { 1 } else { -1 }),
        flatten,
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("Softmax", 1, 1)],
    import,
    kernels: &[&LAST.kernel, &INNER.kernel],
    cases,
};

fn cases() -> Vec<Case> {
    let case =
        |x: &[usize], axis| Case::new(Softmax { axis, flatten: false }, vec![input(x).range(-8.0, 8.0)]);
    let masked = |x: &[usize], axis| {
        let x = input(x).floats(MASKED);
        Case::new(Softmax { axis, flatten: false }, vec![x])
    };
    vec![
        masked(&[6, 3], -1),
        masked(&[3, 3], -1),
        masked(&[3, 6], 0),
        case(&[3, 130], -1),
        case(&[2, 5, 7], -1),
        case(&[1, 1025], -1),
        case(&[4, 1], -1),
        case(&[9, 33], 1),
        Case::new(
            Softmax {
                axis: 1,
                flatten: true,
            },
            vec![input(&[3, 5, 7])],
        ),
        Case::new(
            Softmax {
                axis: 0,
                flatten: true,
            },
            vec![input(&[2, 33])],
        ),
        case(&[2, 5, 7], 1),
        case(&[3, 16, 4, 21], 1),
        case(&[5, 2], 0),
        case(&[1, 1, 9], 1),
    ]
}
