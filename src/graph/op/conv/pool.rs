//! Pooling over windows: `MaxPool`, `AveragePool`, `LpPool`.
//!
//! ONNX `MaxPool` from opset 1 (8: indices and `storage_order`; 10: `ceil_mode`, dilations; 12:
//! 8-bit integers), `AveragePool` from 1 (7: `count_include_pad`; 10: `ceil_mode`; 19: dilations),
//! `LpPool` from 2 (18: `ceil_mode`, dilations). In all versions, a window in ceil mode starts
//! before the padding at the end, and elements beyond that padding are not counted.

use crate::graph::op::case::{Case, EDGES, input};
use crate::graph::op::conv::{parts, sizes};
use crate::graph::op::sizes::Sizes;
use crate::graph::op::types::Types;
use crate::graph::op::window::{self, AutoPad, Axis, Window};
use crate::graph::op::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, no_number, onnx, operand};
use crate::kernels::pool::{Args, KERNEL, MEAN, NORM, PADDED};
use crate::lower::{Call, LowerCx, Planned};
use crate::num;
use crate::quota;
use crate::shape::{Fact, Shape};
use crate::tensor::{DType, HostTensor};

/// Reduction over a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Max {
        /// Result 1 holds the position of each maximum in the operand.
        indices: bool,
        /// In positions, the first spatial axis varies fastest, instead of the last.
        column_major: bool,
    },
    Average {
        /// Padding counts as zeros.
        include_pad: bool,
    },
    /// The p-th root of the sum of p-th powers of magnitudes.
    Lp { p: i64 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    pub kind: Kind,
    pub window: Window,
}

impl Op for Pool {
    fn name(&self) -> &str {
        match self.kind {
            Kind::Max { .. } => "MaxPool",
            Kind::Average { .. } => "AveragePool",
            Kind::Lp { .. } => "LpPool",
        }
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let types = match self.kind {
            Kind::Max { .. } => Types::NUMBER,
            _ => Types::FLOAT,
        };
        let x = cx.typed(0, types)?;
        let (n, c, spatial) = parts("the input", &x.shape.0)?;
        let (w, k) = (&self.window, &self.window.kernel);
        let windows = w.derive(cx, k, spatial)?;
        for (i, kernel) in k.iter().enumerate() {
            let (before, after) = w.explicit(i, k.len());
            if before.max(after) >= w.extent(i, *kernel) {
                return Err(OpError::expected(
                    "pads",
                    format!("less than the window's {}", w.extent(i, *kernel)),
                    before.max(after),
                ));
            }
        }
        let mut out = vec![n.clone(), c.clone()];
        out.extend(windows);
        let shape = Shape(out);
        let mut facts = vec![Fact::new(x.dtype, shape.clone())];
        if matches!(self.kind, Kind::Max { indices: true, .. }) {
            facts.push(Fact::new(DType::I64, shape));
        }
        Ok(facts)
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let (n, c, spatial) = sizes(x)?;
        let axes = self.window.axes(&self.window.kernel, spatial)?;
        let mut shape = vec![n, c];
        shape.extend(axes.iter().map(|a| a.out));
        if !x.dtype().is_float() {
            let Kind::Max {
                indices,
                column_major,
            } = self.kind
            else {
                return Err(OpError::expected("element type", "a float type", x.dtype()));
            };
            let (y, at) = maxima(&axes, &x.to_i128()?, &shape, i128::MIN)?;
            let mut out = vec![HostTensor::from_i128s(x.dtype(), &shape, &y)?];
            if indices {
                out.push(positions(&axes, &shape, at, column_major)?);
            }
            return Ok(out);
        }
        let data = x.to_f32()?;
        let y = match self.kind {
            Kind::Max {
                indices,
                column_major,
            } => {
                let (y, at) = maxima(&axes, &data, &shape, f32::NEG_INFINITY)?;
                if indices {
                    let y = HostTensor::from_floats(x.dtype(), &shape, &y)?;
                    return Ok(vec![y, positions(&axes, &shape, at, column_major)?]);
                }
                y
            }
            Kind::Average { include_pad } => {
                let mut y = sums(&axes, &data, &shape, |v| v)?;
                let counts = counts(&axes, include_pad);
                for (y, n) in y.iter_mut().zip(counts.iter().cycle()) {
                    *y /= n;
                }
                y
            }
            Kind::Lp { p } => {
                let mut y = match p {
                    1 => sums(&axes, &data, &shape, f32::abs)?,
                    2 => sums(&axes, &data, &shape, |v| v * v)?,
                    #[expect(clippy::cast_precision_loss, reason = "a small power")]
                    _ => sums(&axes, &data, &shape, |v| v.abs().powf(p as f32))?,
                };
                for v in &mut y {
                    *v = root(*v, p);
                }
                y
            }
        };
        Ok(vec![HostTensor::from_floats(x.dtype(), &shape, &y)?])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let (x, out) = (cx.shape(0)?, cx.out_fact(0)?.shape.clone());
        let ((_, _, spatial), (_, _, windows)) = (parts("the input", &x.0)?, parts("the result", &out.0)?);
        let lines = self.window.plane(&self.window.kernel, spatial, windows)?;
        cx.loops("windows", &self.window.taps().saturating_mul(4).into())?;
        let call = window::define(Call::new(&KERNEL, 64), &lines);
        let call = match self.kind {
            Kind::Max { indices: true, .. } => {
                return Err(OpError::NoKernel("the indices of MaxPool".to_owned()));
            }
            Kind::Max { .. } => call,
            Kind::Average { include_pad: true } => call.define(MEAN, 1).define(PADDED, 1),
            Kind::Average { .. } => call.define(MEAN, 1),
            Kind::Lp { p } => call.define(NORM, p),
        };
        let (count, [h, w]) = (out.count()?, &lines);
        let args = Args::<Planned> {
            x: cx.input(0)?,
            y: cx.output(0)?,
            in_h: h.size.clone(),
            in_w: w.size.clone(),
            out_h: h.out.clone(),
            out_w: w.out.clone(),
            pad_h: h.before.clone(),
            pad_w: w.before.clone(),
            end_h: h.size.add(&h.after)?,
            end_w: w.size.add(&w.after)?,
            count,
        };
        cx.emit(call.grid(args.count.ceil_div(2 * 64)?, 1, 1), args)
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        let taps = self.window.kernel.iter().filter_map(|n| u64::try_from(*n).ok());
        taps.fold(sizes.results(), u64::saturating_mul)
    }
}

pub(crate) fn root(v: f32, p: i64) -> f32 {
    match p {
        1 => v,
        2 => v.sqrt(),
        #[expect(clippy::cast_precision_loss, reason = "a small power")]
        _ => v.powf(1.0 / p as f32),
    }
}

/// Calls `each(plane, window, element)` for each element of each window in each plane of `x`.
fn every<T>(axes: &[Axis], x: &[T], mut each: impl FnMut(usize, usize, usize)) -> OpResult<()> {
    let [plane, area] = window::products(axes, [|a| a.size, |a| a.out])?;
    let stride = axes.last().map_or(1, |a| a.stride);
    for tap in window::meeting(axes) {
        for i in 0..x.len().checked_div(plane).unwrap_or(0) {
            quota::check()?;
            window::walk(axes, &tap, 0..area, |o, at, n| {
                for j in 0..n {
                    each(i, i * area + o + j, i * plane + at + j * stride);
                }
            });
        }
    }
    Ok(())
}

/// The maxima and their positions.
fn maxima<T: Copy + PartialOrd>(
    axes: &[Axis],
    x: &[T],
    shape: &[usize],
    least: T,
) -> OpResult<(Vec<T>, Vec<usize>)> {
    let mut y = crate::graph::op::filled(shape, least)?;
    let mut at = crate::graph::op::filled(shape, usize::MAX)?;
    every(axes, x, |_, o, i| {
        if let (Some(y), Some(at), Some(x)) = (y.get_mut(o), at.get_mut(o), x.get(i))
            && (*x > *y || *at == usize::MAX || no_number(x) && !no_number(y))
        {
            (*y, *at) = (*x, i);
        }
    })?;
    Ok((y, at))
}

fn positions(axes: &[Axis], shape: &[usize], at: Vec<usize>, column_major: bool) -> OpResult<HostTensor> {
    let [plane, _] = window::products(axes, [|a| a.size, |a| a.out])?;
    let column_major = |at: usize| {
        if !column_major {
            return at;
        }
        let (mut rest, mut out, mut step) = (at % plane, 0, plane);
        for a in axes.iter().rev() {
            step /= a.size;
            out += rest % a.size * step;
            rest /= a.size;
        }
        at / plane * plane + out
    };
    let at: Vec<i64> = at.into_iter().map(|a| num::signed(column_major(a))).collect();
    Ok(HostTensor::from_i64(shape, &at)?)
}

fn sums(axes: &[Axis], x: &[f32], shape: &[usize], f: impl Fn(f32) -> f32) -> OpResult<Vec<f32>> {
    let mut y = crate::graph::op::filled(shape, 0f32)?;
    every(axes, x, |_, o, i| {
        if let (Some(y), Some(x)) = (y.get_mut(o), x.get(i)) {
            *y += f(*x);
        }
    })?;
    Ok(y)
}

/// The number of elements in each window of a plane, at least 1.
fn counts(axes: &[Axis], padding: bool) -> Vec<f32> {
    let outs: Vec<usize> = axes.iter().map(|a| a.out).collect();
    #[expect(clippy::cast_precision_loss, reason = "a window is small")]
    window::indices(&outs)
        .map(|o| {
            axes.iter()
                .zip(&o)
                .map(|(a, o)| a.taps(*o, padding))
                .product::<usize>()
                .max(1) as f32
        })
        .collect()
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let kind = match a.op_type() {
        "MaxPool" => Kind::Max {
            indices: a.output_count() > 1,
            column_major: a.int("storage_order")?.unwrap_or(0) != 0,
        },
        "AveragePool" => Kind::Average {
            include_pad: a.int("count_include_pad")?.unwrap_or(0) != 0,
        },
        _ => Kind::Lp { p: power(a)? },
    };
    let window = Window::import(a)?;
    if window.kernel.is_empty() {
        return Err(OpError::expected("attribute `kernel_shape`", "sizes", "nothing"));
    }
    Ok(Box::new(Pool { kind, window }))
}

/// Reads attribute `p`; the default is 2.
pub(crate) fn power(a: &dyn Attributes) -> OpResult<i64> {
    let p = a.int("p")?.unwrap_or(2);
    if !(1..=64).contains(&p) {
        return Err(OpError::expected("attribute `p`", "1 to 64", p));
    }
    Ok(p)
}

pub static DEF: OpDef = OpDef {
    onnx: &[
        onnx("MaxPool", 1, 1).outputs(2),
        onnx("AveragePool", 1, 1),
        onnx("LpPool", 2, 1),
    ],
    import,
    kernels: &[&KERNEL.kernel],
    cases,
};

fn cases() -> Vec<Case> {
    let case = |kind, x: &[usize], window: Window| Case::new(Pool { kind, window }, vec![input(x)]);
    let largest = |indices| Kind::Max {
        indices,
        column_major: false,
    };
    let max = largest(false);
    let average = |include_pad| Kind::Average { include_pad };
    let window = |kernel: &[i64], strides: &[i64], pads: &[i64]| Window {
        strides: strides.to_vec(),
        pads: pads.to_vec(),
        ..Window::new(kernel)
    };
    let ceil = |window| Window { ceil: true, ..window };
    let same = |auto_pad, ceil| Window {
        auto_pad,
        ceil,
        ..window(&[3, 2], &[2, 2], &[])
    };
    let mut all = vec![Case::new(
        Pool {
            kind: max,
            window: window(&[2, 2], &[1, 1], &[1; 4]),
        },
        vec![input(&[1, 2, 5, 7]).floats(EDGES)],
    )];
    for kind in [max, average(false), average(true), Kind::Lp { p: 2 }] {
        all.extend([
            case(kind, &[1, 3, 9, 8], window(&[3, 3], &[2, 2], &[1; 4])),
            case(
                kind,
                &[2, 2, 7, 10],
                ceil(window(&[3, 2], &[2, 3], &[1, 0, 0, 1])),
            ),
            case(kind, &[1, 2, 7], ceil(window(&[2], &[4], &[]))),
            case(kind, &[1, 2, 5, 6], same(AutoPad::SameUpper, false)),
            case(kind, &[1, 2, 5, 6], same(AutoPad::SameLower, true)),
            case(kind, &[1, 1, 4, 5, 6], window(&[2, 2, 3], &[1, 2, 1], &[]))
                .host_only("kernels have two spatial axes"),
        ]);
    }
    let dilated = Window {
        dilations: vec![2, 3],
        ..window(&[3, 3], &[1, 2], &[])
    };
    let ints = Pool {
        kind: max,
        window: window(&[2, 3], &[1, 2], &[]),
    };
    all.extend([
        case(max, &[1, 2, 9, 9], dilated),
        case(max, &[1, 1, 1, 1], window(&[1, 1], &[1, 1], &[])),
        Case::new(ints, vec![input(&[1, 3, 5, 7]).ints32(-99, -3)]),
        case(largest(true), &[1, 2, 5], window(&[2], &[], &[])).host_only("the indices as a second output"),
        case(Kind::Lp { p: 1 }, &[1, 3, 17], window(&[3], &[1], &[1, 1])),
        case(Kind::Lp { p: 3 }, &[1, 2, 6], window(&[3], &[1], &[1, 1])),
    ]);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_of_padding_alone_costs_nothing() {
        let kernel = i64::from(i32::MAX);
        let window = Window {
            pads: vec![kernel - 4, kernel - 4, kernel - 4, kernel - 4],
            ..Window::new(&[kernel, kernel])
        };
        let x = HostTensor::from_f32(&[1, 1, 4, 4], &[1.0; 16]).unwrap();
        let window = Window {
            strides: vec![kernel, kernel],
            ..window
        };
        let pool = Pool {
            kind: Kind::Average { include_pad: false },
            window,
        };
        assert_eq!(pool.eval(&[Some(&x)]).unwrap()[0].to_f32().unwrap()[0], 1.0);
    }

    #[test]
    fn what_is_no_number_is_a_maximum() {
        let x = HostTensor::from_f32(&[1, 1, 4], &[1.0, f32::NAN, 3.0, 2.0]).unwrap();
        let max = Pool {
            kind: Kind::Max {
                indices: false,
                column_major: false,
            },
            window: Window::new(&[2]),
        };
        let y = max.eval(&[Some(&x)]).unwrap()[0].to_f32().unwrap().into_owned();
        assert!(y[0].is_nan() && y[1].is_nan() && y[2] == 3.0, "{y:?}");
    }

    #[test]
    fn positions_of_maxima() {
        let x = HostTensor::from_f32(&[1, 1, 2, 3], &[0.0, 5.0, 1.0, 7.0, 2.0, 7.0]).unwrap();
        let at = |column_major| {
            let op = Pool {
                kind: Kind::Max {
                    indices: true,
                    column_major,
                },
                window: Window::new(&[2, 2]),
            };
            let y = op.eval(&[Some(&x)]).unwrap();
            (y[0].to_f32().unwrap().into_owned(), y[1].to_i64().unwrap())
        };
        assert_eq!(at(false), (vec![7.0, 7.0], vec![3, 5]));
        assert_eq!(at(true), (vec![7.0, 7.0], vec![1, 5]));
    }

    #[test]
    fn averages_count_what_is_there() {
        let x = HostTensor::from_f32(&[1, 1, 5], &[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        let mean = |include_pad, ceil| {
            let window = Window {
                strides: vec![2],
                pads: vec![1, 0],
                ceil,
                ..Window::new(&[3])
            };
            let op = Pool {
                kind: Kind::Average { include_pad },
                window,
            };
            op.eval(&[Some(&x)]).unwrap()[0].to_f32().unwrap().into_owned()
        };
        assert_eq!(mean(false, false), [1.5, 3.0]);
        assert_eq!(mean(true, false), [1.0, 3.0]);
        assert_eq!(
            mean(true, true),
            [1.0, 3.0, 4.5],
            "the last window holds two elements"
        );
    }
}
