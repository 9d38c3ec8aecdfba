//! Permutes axes; also holds the strided copy that slicing and expanding share.
//!
//! ONNX `Transpose` from opset 1.

use crate::graph::bounds::BoundsCx;
use crate::graph::op::case::{Case, input};
use crate::graph::op::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, gather_strided, onnx, operand, strides,
};
use crate::kernels::strided::{Args, KERNEL, RANK};
use crate::lower::{Call, LowerCx, Operand};
use crate::num;
use crate::shape::{Dim, Fact, Shape, product};
use crate::tensor::HostTensor;

const MAX_RANK: usize = 6;

/// Start of a strided copy in its operand.
pub(crate) struct Start {
    /// Index of the first element.
    pub at: Dim,
    /// The start does not change when lengths are padded: it depends on no stride that padding
    /// changes.
    pub padded: bool,
}

impl Start {
    pub(crate) fn first() -> Self {
        Self {
            at: 0.into(),
            padded: true,
        }
    }
}

/// Emits `y[m] = x[start + sum(m * step)]` over multi-indices `m` of `shape`, from operand 0 to
/// result 0.
pub(crate) fn emit_strided(cx: &mut LowerCx<'_>, shape: &[Dim], start: &Start, step: &[Dim]) -> OpResult<()> {
    let (from, to) = (cx.input(0)?, cx.output(0)?);
    emit_copy(cx, from, to, shape, start, step)
}

/// [`emit_strided`] between any two operands.
pub(crate) fn emit_copy(
    cx: &mut LowerCx<'_>,
    from: Operand,
    to: Operand,
    shape: &[Dim],
    start: &Start,
    step: &[Dim],
) -> OpResult<()> {
    let (from, each) = from.words();
    let (to, words) = to.words();
    if words != each {
        return Err(OpError::NoKernel(differ()));
    }
    let (mut shape, mut step, mut at) = (shape.to_vec(), step.to_vec(), start.at.clone());
    if each > 1 {
        for step in step.iter_mut().chain([&mut at]) {
            *step = step.mul(&each.into())?;
        }
        shape.push(each.into());
        step.push(1.into());
    }
    let joined = joined(&shape, &step)?;
    if joined.len() > MAX_RANK {
        return Err(OpError::NoKernel(format!(
            "a copy over {} axes that cannot be merged (limit {MAX_RANK})",
            joined.len()
        )));
    }
    let count = product(&shape)?;
    // A symbolic start may change at every step.
    let (live, at) = if at.as_const().is_some() {
        (None, at)
    } else {
        let (live, at) = cx.live(&at);
        (Some(live), at)
    };
    let mut call = Call::new(&KERNEL, 64)
        .define(RANK, num::signed(joined.len().max(1)))
        .grid(count.ceil_div(2 * 64)?, 1, 1);
    if start.padded {
        call = call.may_be_padded();
    }
    let [n1, n2, n3, n4, n5, _] =
        std::array::from_fn(|i| joined.get(i).map_or(Dim::from(1), |(n, _)| n.clone()));
    let [s0, s1, s2, s3, s4, s5]: [Dim; MAX_RANK] =
        std::array::from_fn(|i| joined.get(i).map_or(Dim::from(0), |(_, s)| s.clone()));
    let (x, y, start) = (from, to, at);
    #[rustfmt::skip]
    let args = Args { x, live, y, count, start, n1, n2, n3, n4, n5, s0, s1, s2, s3, s4, s5 };
    cx.emit(call, args)
}

/// Why a kernel that moves elements does not run.
pub(crate) fn differ() -> String {
    "operand and result store integers in different numbers of bits".to_owned()
}

/// Sizes and strides with neighbouring axes merged where they are walked as one, innermost first.
pub(crate) fn joined(shape: &[Dim], step: &[Dim]) -> OpResult<Vec<(Dim, Dim)>> {
    let mut joined: Vec<(Dim, Dim)> = Vec::new();
    for (size, step) in shape.iter().zip(step).rev() {
        if size.is(1) {
            continue;
        }
        match joined.last_mut() {
            Some((inner, inner_step)) if inner_step.mul(inner)? == *step => *inner = inner.mul(size)?,
            _ => joined.push((size.clone(), step.clone())),
        }
    }
    Ok(joined)
}

/// Row-major strides of a symbolic shape, in elements.
pub(crate) fn dim_strides(shape: &[Dim]) -> OpResult<Vec<Dim>> {
    let mut out = vec![Dim::from(1); shape.len()];
    for i in (1..shape.len()).rev() {
        out[i - 1] = out[i].mul(&shape[i])?;
    }
    Ok(out)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transpose {
    /// Axis of the operand for each axis of the result; `None` reverses the axes.
    pub perm: Option<Vec<i64>>,
}

impl Transpose {
    /// The permutation for operands of `rank` axes.
    pub fn axes(&self, rank: usize) -> OpResult<Vec<usize>> {
        let Some(perm) = &self.perm else {
            return Ok((0..rank).rev().collect());
        };
        let axes: Vec<usize> = perm
            .iter()
            .map(|a| crate::graph::op::axis(*a, rank))
            .collect::<OpResult<_>>()?;
        let mut sorted = axes.clone();
        sorted.sort_unstable();
        if sorted != (0..rank).collect::<Vec<_>>() {
            return Err(OpError::expected(
                "attribute `perm`",
                format!("a permutation of {rank} axes"),
                format!("{perm:?}"),
            ));
        }
        Ok(axes)
    }
}

impl Op for Transpose {
    fn name(&self) -> &str {
        "Transpose"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.fact(0)?;
        let axes = self.axes(x.shape.rank())?;
        Ok(vec![Fact::new(
            x.dtype,
            Shape(axes.iter().map(|a| x.shape.0[*a].clone()).collect()),
        )])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let axes = self.axes(x.shape().len())?;
        let from = strides(x.shape());
        let shape: Vec<usize> = axes.iter().map(|a| x.shape()[*a]).collect();
        let step: Vec<i64> = axes.iter().map(|a| num::signed(from[*a])).collect();
        Ok(vec![gather_strided(x, &shape, 0, &step)?])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let x = cx.shape(0)?;
        let axes = self.axes(x.rank())?;
        let moved: Vec<usize> = axes.iter().copied().filter(|a| !x.0[*a].is(1)).collect();
        if moved.is_sorted() {
            return cx.alias(0, 0);
        }
        let from = dim_strides(&x.0)?;
        let step: Vec<Dim> = axes.iter().map(|a| from[*a].clone()).collect();
        let shape = cx.out_fact(0)?.shape.0.clone();
        emit_strided(cx, &shape, &Start::first(), &step)
    }

    fn moves(&self, input: usize) -> bool {
        input == 0
    }

    fn keeps_all(&self, input: usize, _: &BoundsCx<'_>) -> bool {
        input == 0
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    Ok(Box::new(Transpose {
        perm: a.ints("perm")?,
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("Transpose", 1, 1)],
    import,
    kernels: &[&KERNEL.kernel],
    cases,
};

fn cases() -> Vec<Case> {
    let case = |x: &[usize], perm: &[i64]| {
        Case::new(
            Transpose {
                perm: Some(perm.to_vec()),
            },
            vec![input(x)],
        )
    };
    vec![
        case(&[3, 5], &[1, 0]),
        case(&[1, 5, 9, 64], &[0, 2, 1, 3]),
        case(&[2, 3, 5, 7, 2], &[4, 2, 0, 3, 1]),
        Case::new(Transpose { perm: None }, vec![input(&[7, 2, 3]).ints(-5, 5)]),
    ]
}
