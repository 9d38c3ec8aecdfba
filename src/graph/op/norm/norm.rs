//! Normalization of groups of elements by mean and variance, with scale and bias.
//!
//! ONNX `InstanceNormalization` from opset 6 (per channel of each image; scale and bias `[c]`),
//! `LayerNormalization` from 17 (over all axes from `axis` on; scale and bias broadcast to them;
//! results 1 and 2 are the mean and the inverse standard deviation), `GroupNormalization` from 18
//! (per group of channels of each image; scale and bias `[groups]` until 20, `[c]` from 21 on).
//! Computed in `f32`, whatever `stash_type` says.

use crate::graph::op::case::{Case, input};
use crate::graph::op::parts::Parts;
use crate::graph::op::pointwise::import::{binary, cast, input as arg, number, unary};
use crate::graph::op::pointwise::{Binary, Unary};
use crate::graph::op::reduce::{Kind, Reduce};
use crate::graph::op::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, axis, onnx, operand, pointwise,
};
use crate::graph::{ValueId, rules};
use crate::kernels::norm::{Args, BY_COLUMN, CENTER, KERNEL, ROW, ROW_ITEMS, RowArgs};
use crate::lower::{Call, DeviceProfile, LowerCx, Operand};
use crate::num;
use crate::shape::{Dim, Fact, Shape, product};
use crate::tensor::{DType, HostTensor};

const MAX_HELD: i64 = 16;

/// Which scale and bias apply to an element.
pub(crate) enum ScaleIndex {
    /// Those of its column.
    Column,
    /// Rows cycle through `sets` sets of `per` scales; each scale applies to `run` neighbours.
    Set {
        sets: Dim,
        per: Dim,
        /// Number of neighbours that share a scale.
        run: Dim,
    },
}

pub(crate) struct RowNorm {
    pub rows: Dim,
    pub cols: Dim,
    /// Assignment of scale and bias.
    pub place: ScaleIndex,
    pub center: bool,
    /// Mean and variance of each set are operands after the bias; otherwise they are computed per
    /// row.
    pub given: bool,
    /// Added to the variance.
    pub epsilon: f32,
}

/// Normalizes operand 0, with scale (operand 1) and bias (operand 2) if given.
pub(crate) fn emit(cx: &mut LowerCx<'_>, rows: &RowNorm) -> OpResult<()> {
    let x = cx.input(0)?;
    let mut others = [None; 4];
    for (i, other) in (1..).zip(&mut others) {
        if cx.has(i) && (i < 3 || rows.given) {
            *other = Some(cx.input(i)?);
        }
    }
    let y = cx.output(0)?;
    emit_to(cx, rows, x, others, y)
}

/// Normalizes `x` into `y`; `others` are the optional scale, bias, mean and variance.
pub(crate) fn emit_to(
    cx: &mut LowerCx<'_>,
    rows: &RowNorm,
    x: Operand,
    others: [Option<Operand>; 4],
    y: Operand,
) -> OpResult<()> {
    let (count, cols) = (&rows.rows, &rows.cols);
    let plain = matches!(rows.place, ScaleIndex::Column) && !rows.center && !rows.given;
    if plain
        && let [Some(scale), None, ..] = others
        && let Some(held) = held(cx.device(), cols)
    {
        let call = Call::new(&ROW, ROW_ITEMS)
            .define("VECTORS", held)
            .grid(count.clone(), 1, 1)
            .may_work_in_place();
        let args = RowArgs {
            x,
            scale,
            y,
            cols: cols.clone(),
            epsilon: rows.epsilon,
        };
        return cx.emit(call, args);
    }
    let tile = if count.is(1) || cols.exact_div(&2.into()).is_some() {
        1
    } else {
        2
    };
    // Two rows, with three passes over each.
    cx.loops("rows", &cols.mul(&6.into())?.ceil_div(64)?)?;
    let mut call = Call::new(&KERNEL, 64)
        .define("ROWS", tile)
        .grid(count.ceil_div(tile)?, 1, 1);
    let one = Dim::from(1);
    let (sets, per, run) = match &rows.place {
        ScaleIndex::Column => {
            call = call.define(BY_COLUMN, 1);
            (&one, cols, &one)
        }
        ScaleIndex::Set { sets, per, run } => (sets, per, run),
    };
    call = call.define_if(CENTER, rows.center);
    let [scale, bias, mean, variance] = others;
    let args = Args {
        x,
        scale,
        bias,
        mean,
        variance,
        y,
        rows: count.clone(),
        cols: cols.clone(),
        sets: sets.clone(),
        per: per.clone(),
        run: run.clone(),
        epsilon: rows.epsilon,
    };
    cx.emit(call.may_work_in_place(), args)
}

/// Vectors that a work-item of [`ROW`] holds for rows of `cols` elements; `None` if device or rows
/// do not suit the kernel.
fn held(device: &DeviceProfile, cols: &Dim) -> Option<i64> {
    /// Shorter rows leave most of a work-group idle.
    const MIN_COLUMNS: i64 = 512;
    let cols = cols.as_const().filter(|n| n % 4 == 0 && *n >= MIN_COLUMNS)?;
    let held = (cols / 4 - 1) / i64::from(ROW_ITEMS) + 1;
    (device.supports(&ROW) && held <= MAX_HELD).then_some(held)
}

/// Which elements are normalized together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// Each channel of each image.
    Instance,
    /// All axes from this one on; negative values count from the end.
    Layer { axis: i64 },
    /// Each group of channels of each image.
    Group {
        groups: i64,
        /// Scale and bias are per group instead of per channel.
        by_group: bool,
    },
}

/// Operands: the tensor, scale, bias (optional for layer normalization).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// Which elements are normalized together.
    pub over: Over,
    /// Added to the variance.
    pub epsilon: f32,
    /// Number of results: 1, or up to 3 with mean and inverse standard deviation.
    pub results: usize,
}

impl Norm {
    /// Elements normalized together, and neighbours that share a scale.
    fn lengths(&self, shape: &[usize]) -> OpResult<(usize, usize)> {
        let channels = shape.get(1).copied().unwrap_or(1);
        Ok(match self.over {
            Over::Instance | Over::Group { .. } if shape.len() < 2 => {
                return Err(OpError::expected("rank", "2 or more", shape.len()));
            }
            Over::Instance => {
                let plane = shape.iter().skip(2).product::<usize>();
                (plane, plane)
            }
            Over::Group { groups, by_group } => {
                let groups = num::exact(groups, "a number of groups")?;
                if !channels.is_multiple_of(groups) {
                    return Err(OpError::expected(
                        "channels",
                        format!("a multiple of {groups} groups"),
                        channels,
                    ));
                }
                let plane = shape.iter().skip(2).product::<usize>();
                let count = channels / groups * plane;
                (count, if by_group { count } else { plane })
            }
            Over::Layer { axis: a } => (shape.iter().skip(axis(a, shape.len())?).product::<usize>(), 1),
        })
    }
}

/// Requires that scale and bias have the shape `part`, the axes of operand 0 from `from` on.
fn fits_layer(cx: &LowerCx<'_>, part: &[Dim], from: usize) -> OpResult<()> {
    let whole = rules::without_leading_ones;
    for i in (1..3).filter(|i| cx.has(*i)) {
        let own = cx.shape(i)?;
        if whole(&own.0) != whole(part) {
            let x = cx.shape(0)?;
            return Err(OpError::NoKernel(format!(
                "a scale or bias {own} of {x} from axis {from}"
            )));
        }
    }
    Ok(())
}

impl Op for Norm {
    fn name(&self) -> &str {
        match self.over {
            Over::Instance => "InstanceNormalization",
            Over::Layer { .. } => "LayerNormalization",
            Over::Group { .. } => "GroupNormalization",
        }
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.float(0)?;
        let mut facts = vec![Fact::new(x.dtype, x.shape.clone())];
        let given = (1..3).filter_map(|i| cx.opt(i));
        if let Over::Layer { axis: a } = self.over {
            let a = axis(a, x.shape.rank())?;
            for f in given {
                if f.shape.rank() > x.shape.rank() {
                    return Err(OpError::mismatch(
                        "ranks (the second must not be larger)",
                        x.shape.rank(),
                        f.shape.rank(),
                    ));
                }
                for (size, have) in x
                    .shape
                    .0
                    .iter()
                    .rev()
                    .zip(f.shape.0.iter().rev())
                    .filter(|(_, have)| !have.is(1))
                {
                    cx.same("sizes of input and of scale or bias", size, have)?;
                }
            }
            let kept = x
                .shape
                .0
                .iter()
                .enumerate()
                .map(|(i, d)| if i < a { d.clone() } else { Dim::from(1) });
            let statistics = Fact::new(DType::F32, Shape(kept.collect()));
            facts.extend(std::iter::repeat_n(statistics, self.results.saturating_sub(1)));
            return Ok(facts);
        }
        let c = x
            .shape
            .0
            .get(1)
            .ok_or_else(|| OpError::expected("rank", "2 or more", x.shape.rank()))?;
        let want = match self.over {
            Over::Group { groups, by_group } => {
                if c.exact_div(&groups.into()).is_none() {
                    return Err(OpError::expected(
                        "channels",
                        format!("a multiple of {groups} groups"),
                        c,
                    ));
                }
                if by_group { Dim::from(groups) } else { c.clone() }
            }
            _ => c.clone(),
        };
        for i in 1..3 {
            let f = cx.fact(i)?;
            let [size] = f.shape.0.as_slice() else {
                return Err(OpError::expected(format!("rank of input {i}"), 1, f.shape.rank()));
            };
            cx.same("sizes of input and of scale or bias", &want, size)?;
        }
        Ok(facts)
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let shape = x.shape();
        let (count, run) = self.lengths(shape)?;
        let mut y = x.to_f32()?.into_owned();
        let (mut means, mut inverses) = (Vec::new(), Vec::new());
        for part in y.chunks_exact_mut(count.max(1)) {
            let (mean, inverse) = statistics(part, self.epsilon);
            for v in part.iter_mut() {
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "rounding to the result type is intended"
                )]
                let normal = ((f64::from(*v) - mean) * inverse) as f32;
                *v = normal;
            }
            #[expect(
                clippy::cast_possible_truncation,
                reason = "rounding to the result type is intended"
            )]
            {
                means.push(mean as f32);
                inverses.push(inverse as f32);
            }
        }
        for (i, f) in [(1, (|a, b| a * b) as fn(f32, f32) -> f32), (2, |a, b| a + b)] {
            let Some(list) = inputs.get(i).copied().flatten() else {
                continue;
            };
            let list = if matches!(self.over, Over::Layer { .. }) {
                pointwise::broadcast_to(list, shape)?
            } else {
                list.clone()
            };
            let list = list.to_f32()?;
            if list.is_empty() {
                continue;
            }
            for (part, v) in y.chunks_exact_mut(run.max(1)).zip(list.iter().cycle()) {
                part.iter_mut().for_each(|y| *y = f(*y, *v));
            }
        }
        let mut out = vec![HostTensor::from_floats(x.dtype(), shape, &y)?];
        if let Over::Layer { axis: a } = self.over {
            let a = axis(a, shape.len())?;
            let kept: Vec<usize> = shape
                .iter()
                .enumerate()
                .map(|(i, n)| if i < a { *n } else { 1 })
                .collect();
            for list in [&means, &inverses]
                .into_iter()
                .take(self.results.saturating_sub(1))
            {
                out.push(HostTensor::from_f32(&kept, list)?);
            }
        }
        Ok(out)
    }

    fn parts(&self, cx: &mut Parts<'_, '_>) -> OpResult<Option<Vec<ValueId>>> {
        let Over::Layer { axis: from } = self.over else {
            return Ok(None);
        };
        if self.results < 2 {
            return Ok(None);
        }
        let x = cx.input(0)?;
        let fact = cx.fact(x)?;
        let rank = fact.shape.rank();
        let over_axes = Reduce {
            kind: Kind::Mean,
            axes: Some((0i64..).take(rank).skip(axis(from, rank).unwrap_or(0)).collect()),
            keep: true,
            noop_without_axes: true,
        };
        let whole = Self { results: 1, ..*self };
        let y = cx.node("normal", whole, &[Some(x), cx.opt(1), cx.opt(2)])?;
        let x = match fact.dtype {
            DType::F32 => x,
            _ => cx.pointwise("Cast", cast(DType::F32, arg(0)), &[x])?,
        };
        let mean = cx.node("mean", over_axes.clone(), &[Some(x)])?;
        let off = binary(Binary::Sub, arg(0), arg(1));
        let squares = cx.pointwise("squares", binary(Binary::Mul, off.clone(), off), &[x, mean])?;
        let variance = cx.node("variance", over_axes, &[Some(squares)])?;
        let deviation = unary(Unary::Sqrt, binary(Binary::Add, arg(0), number(self.epsilon)));
        let inverse = cx.pointwise("inverse", unary(Unary::Reciprocal, deviation), &[variance])?;
        Ok(Some(vec![y, mean, inverse]))
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        if self.results > 1 {
            return Err(OpError::NoKernel("mean and deviation as results".to_owned()));
        }
        let x = cx.shape(0)?;
        let from = match self.over {
            Over::Layer { axis: a } => axis(a, x.rank())?,
            _ => 2.min(x.rank()),
        };
        let (before, part) = x.0.split_at(from);
        let plane = product(part)?;
        let (rows, cols, place) = match self.over {
            Over::Layer { .. } => {
                fits_layer(cx, part, from)?;
                (product(before)?, plane, ScaleIndex::Column)
            }
            Over::Instance => {
                let sets = num::at(before, 1)?.clone();
                (
                    product(before)?,
                    plane.clone(),
                    ScaleIndex::Set {
                        sets,
                        per: 1.into(),
                        run: plane,
                    },
                )
            }
            Over::Group { groups, by_group } => {
                let groups = Dim::from(groups);
                let [n, c] = before else {
                    return Err(OpError::expected("rank", "2 or more", x.rank()));
                };
                let each = c.exact_div(&groups);
                let each = each.ok_or_else(|| {
                    OpError::expected("channels", format!("a multiple of {groups} groups"), c)
                })?;
                let cols = each.mul(&plane)?;
                let (per, run) = if by_group {
                    (1.into(), cols.clone())
                } else {
                    (each, plane)
                };
                (
                    n.mul(&groups)?,
                    cols,
                    ScaleIndex::Set {
                        sets: groups,
                        per,
                        run,
                    },
                )
            }
        };
        emit(
            cx,
            &RowNorm {
                rows,
                cols,
                place,
                center: true,
                given: false,
                epsilon: self.epsilon,
            },
        )
    }
}

/// Mean and inverse standard deviation.
pub(crate) fn statistics(x: &[f32], epsilon: f32) -> (f64, f64) {
    #[expect(clippy::cast_precision_loss, reason = "a number of elements")]
    let n = x.len().max(1) as f64;
    let mean = x.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
    let variance = x.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / n;
    (mean, 1.0 / (variance + f64::from(epsilon)).sqrt())
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let over = match a.op_type() {
        "InstanceNormalization" => Over::Instance,
        "LayerNormalization" => {
            a.int("stash_type")?;
            Over::Layer {
                axis: a.int("axis")?.unwrap_or(-1),
            }
        }
        _ => {
            a.int("stash_type")?;
            let groups = a.int("num_groups")?.unwrap_or(0);
            if !(1..=i64::from(i32::MAX)).contains(&groups) {
                return Err(OpError::expected("attribute `num_groups`", "1 or more", groups));
            }
            Over::Group {
                groups,
                by_group: a.opset() < 21,
            }
        }
    };
    Ok(Box::new(Norm {
        over,
        epsilon: a.float("epsilon")?.unwrap_or(1e-5),
        results: a.output_count(),
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[
        onnx("InstanceNormalization", 6, 3),
        onnx("LayerNormalization", 17, 3).outputs(3),
        onnx("GroupNormalization", 18, 3),
    ],
    import,
    kernels: &[&KERNEL.kernel],
    cases,
};

fn cases() -> Vec<Case> {
    let case = |over, shapes: &[&[usize]]| {
        let op = Norm {
            over,
            epsilon: 1e-3,
            results: 1,
        };
        Case::new(op, shapes.iter().map(|s| input(s)).collect())
    };
    let group = |by_group| Over::Group { groups: 3, by_group };
    vec![
        case(Over::Instance, &[&[2, 3, 5, 7], &[3], &[3]]),
        case(Over::Layer { axis: -1 }, &[&[2, 5, 7], &[7], &[7]]),
        case(Over::Instance, &[&[1, 2, 33], &[2], &[2]]),
        case(Over::Layer { axis: 1 }, &[&[2, 5, 7], &[5, 7]]),
        case(Over::Layer { axis: -1 }, &[&[5, 130], &[130], &[1, 130]]),
        case(Over::Layer { axis: -1 }, &[&[5, 1], &[1]]),
        case(Over::Layer { axis: 1 }, &[&[2, 5, 7], &[7]]).host_only("a scale that is broadcast"),
        case(group(true), &[&[2, 6, 5], &[3], &[3]]),
        case(group(false), &[&[2, 6, 5, 3], &[6], &[6]]),
    ]
}
